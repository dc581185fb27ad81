"""Rule: newcomers form groups of their own; known groups only change by the rules of ``releases``.

One pass over a source brings a cohort up to date. All sums are additive, so persons may come in
blocks. A first table of several blocks is grouped block by block, and its columns are described by
the first block unless a sample is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedclust.numeric.array_types import (
    BoolArray,
    ByteArray,
    FloatArray,
    IntArray,
    KeyArray,
    WordArray,
)
from fedclust.protection.cohort import Cohort, CohortRefused, PinnedColumn
from fedclust.protection.columns import (
    LevelColumn,
    NumericColumn,
    SourceColumn,
    TableColumn,
    describe_columns,
    snap_to_grid,
    source_names,
)
from fedclust.protection.fingerprints import column_seed, fingerprints, person_keys
from fedclust.protection.groups import least_group_size
from fedclust.protection.recognition import (
    PersonSource,
    Recognition,
    ValueComparison,
    commonest,
    find_cohort,
    refuse_same_columns,
)
from fedclust.protection.releases import ColumnUpdate, UpdatedGroups, extend_column, pad
from fedclust.protection.table import TooFewPersons, embed_persons, encode_sources, group_persons

#: Newcomers of a source in blocks are grouped when this many wait: grouping more at a time gains
#: little and takes memory.
_BLOCK = 100_000


@dataclass(frozen=True)
class Change:
    """What an update changed.

    Attributes
    ----------
    persons, groups : int
        Released for the first time.
    columns : int
        Source columns pinned.
    waiting : int
        Newcomers without a group so far.
    """

    persons: int
    groups: int
    columns: int
    waiting: int


def update_cohort(
    new: Cohort,
    cohorts: Sequence[Cohort],
    secret: bytes,
    source: PersonSource,
    others: Sequence[Cohort] = (),
    *,
    any_persons: bool = False,
    permanent_ids: bool = False,
) -> tuple[Cohort, Change, Recognition]:
    """Bring the cohort that holds a source's persons up to date.

    Parameters
    ----------
    new : Cohort
        Without persons: a new table starts from it.
    cohorts : sequence of Cohort
        Those that may be used. If nothing has to be stored, one of these objects is returned.
    secret : bytes
        The site's own.
    source : PersonSource
    others : sequence of Cohort
        All cohorts of the site: a person withdrawn from one joins no other.
    any_persons : bool
        Whether persons who are not known may take part, however many they are.
    permanent_ids : bool
        Whether nobody's id changes at this site.
        also where nothing new is released: their outcomes would be counted.

    Raises
    ------
    CohortRefused
        The source does not fit; nothing has changed.
    TooFewPersons
        A new cohort has fewer than p persons.
    """
    cohort = find_cohort(cohorts, secret, source.blocks) or new
    refuse_same_columns(cohort, secret, source.blocks)
    update = _Update(cohort, secret, source)
    update.others = [other for other in cohorts if other is not cohort]
    update.withdrawn = np.concatenate(
        [cohort.keys[:0], *(each.keys[each.withdrawn] for each in others)]
    )
    for ids, sources in source.blocks():
        update.add(ids, sources)
    if cohorts and not any_persons:
        update.recognition().refuse_unknown(cohort.p, permanent=permanent_ids)
    return update.finish()


@dataclass
class _Persons:
    """Some persons: encoded values and fingerprints (n, source columns) by table column.

    ``index`` (n,) is that in the cohort, -1 for newcomers.
    """

    keys: KeyArray
    index: IntArray
    values: list[FloatArray]
    prints: list[ByteArray]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: Any) -> _Persons:
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_ and rows.all():
            return self
        values, prints = [v[rows] for v in self.values], [v[rows] for v in self.prints]
        return _Persons(self.keys[rows], self.index[rows], values, prints)


def _concatenate(parts: Sequence[_Persons]) -> _Persons:
    return _Persons(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.index for part in parts]),
        [np.concatenate(each) for each in zip(*(part.values for part in parts), strict=True)],
        [np.concatenate(each) for each in zip(*(part.prints for part in parts), strict=True)],
    )


class _Update:
    """A pass over a source: :meth:`add` its blocks, then :meth:`finish`."""

    def __init__(self, cohort: Cohort, secret: bytes, source: PersonSource) -> None:
        self.cohort, self.secret, self.source = cohort, secret, source
        #: Cohorts that the persons may not be in, and the keys of persons withdrawn from any.
        self.others: Sequence[Cohort] = ()
        self.withdrawn = cohort.keys[:0]
        #: Known persons who are in the source, and how many of each group.
        self.seen = np.zeros(len(cohort.keys), bool)
        self.present = np.zeros(len(cohort.sizes), np.int64)
        self.sizes = cohort.sizes
        self.columns: list[ColumnUpdate] = []
        #: By place in ``columns``, those that were released before; and whose values differ.
        self.comparisons: dict[int, ValueComparison] = {}
        self.differs = np.zeros(len(cohort.keys), bool)
        self.waiting: list[_Persons] = []
        #: Known persons whose group ended with the withdrawal of another person.
        self.left_over: list[_Persons] = []
        #: Newcomers, and persons left over, who were put into groups by this pass.
        self.formed: list[tuple[_Persons, IntArray]] = []

    # --- a block ----------------------------------------------------------------------------------

    def add(self, ids: Sequence[str], sources: Sequence[SourceColumn]) -> None:
        given = {source.name: source for source in sources}
        if not self.waiting:
            self._begin(given)
        keys, masks = person_keys(self.secret, ids)
        compared = [_compared(each.column, given) for each in self.columns]
        block = _Persons(
            keys,
            self.cohort.find(keys),
            encode_sources([each.column for each in self.columns], sources),
            [
                self._fingerprints(each.column, values, masks)
                for each, values in zip(self.columns, compared, strict=True)
            ],
        )
        is_known = block.index >= 0
        known = block[is_known]
        self._note_seen(block.keys, known.index)
        remaining = ~self.cohort.withdrawn[known.index]
        used = self.cohort.used[self.cohort.groups[known.index]]
        rows = np.flatnonzero(is_known)[remaining & used]
        self._add_known(
            block[rows],
            [[each[rows] for each in values] for values in compared],
            [
                [each[rows] for each in self._changed(column.column, given, block.index, masks)]
                for column in self.columns
            ],
        )
        self.left_over.append(known[remaining & ~used])
        newcomers = block[~is_known & ~np.isin(block.keys, self.withdrawn)]
        n_waiting = sum(len(each) for each in self.waiting)
        if n_waiting >= _BLOCK and len(newcomers) >= self._least_to_group(len(newcomers)):
            self._form_groups()
        self.waiting.append(newcomers)

    def _begin(self, given: Mapping[str, SourceColumn]) -> None:
        """Decide how each column is released: as pinned, or as its values say."""
        cohort, pinned = self.cohort, self.cohort.rules()
        for name in given:
            if name in pinned and self.source.rules[name] != pinned[name]:
                raise CohortRefused(
                    "other-rule",
                    f"column {name!r} was released as read by another rule: as numbers, yes/no or "
                    "codes, with other codes or missing markers. Read it as before, or give the "
                    "column another name",
                )
        sample = {each.name: each for each in self.source.sample or given.values()}
        for each in cohort.columns:
            if set(source_names(each.column)) <= set(given):
                common = [commonest(values) for values in _compared(each.column, sample)]
                self.comparisons[len(self.columns)] = ValueComparison(each, common)
                self.columns.append(self._column_update(each.column, each))
        new = [source for name, source in sample.items() if name not in pinned]
        for column in describe_columns(new, cohort.p, fences=cohort.fences):
            self.columns.append(self._column_update(column, None))

    def _column_update(self, column: TableColumn, pinned: PinnedColumn | None) -> ColumnUpdate:
        return ColumnUpdate(column, pinned, self.cohort, len(self._earlier(column)))

    def _earlier(self, column: TableColumn) -> list[tuple[str, PinnedColumn, str]]:
        """Return each source column, and the releases of its earlier measurements and their names.

        ``later`` names what the column measures again. A column of that name with a suffix is
        taken for a measurement of it, too.
        """
        measured = {
            name: self.source.later[name]
            for name in source_names(column)
            if name in self.source.later
        }
        return [
            (name, pinned, earlier)
            for name, again in measured.items()
            for pinned in self.cohort.columns
            for earlier in source_names(pinned.column)
            if earlier.startswith(again) and earlier != name
        ]

    def _fingerprints(
        self, column: TableColumn, compared: Sequence[FloatArray], masks: WordArray
    ) -> ByteArray:
        pairs = zip(source_names(column), compared, strict=True)
        made = [fingerprints(each, masks, column_seed(self.secret, name)) for name, each in pairs]
        return np.column_stack(made)

    def _changed(
        self,
        column: TableColumn,
        given: Mapping[str, SourceColumn],
        index: IntArray,
        masks: WordArray,
    ) -> list[BoolArray]:
        """Return, for each earlier measurement, whose value (n,) differs from it."""
        changed = []
        for name, pinned, earlier in self._earlier(column):
            values = given[name].values
            if isinstance(pinned.column, NumericColumn):
                values = snap_to_grid(pinned.column, values)
            now = fingerprints(values, masks, column_seed(self.secret, earlier))
            place = source_names(pinned.column).index(earlier)
            changed.append(now != pinned.prints[index, place])
        return changed

    def _note_seen(self, keys: KeyArray, index: IntArray) -> None:
        """Note who is in the source; refuse persons who occur twice or are in another cohort."""
        if self.seen[index].any() or np.bincount(index).max(initial=0) > 1:
            raise _repeated_ids()
        self.seen[index] = True
        for other in self.others:
            if (other.find(keys) >= 0).any():
                raise two_cohorts(self.cohort, other)

    def _add_known(
        self,
        block: _Persons,
        compared: Sequence[Sequence[FloatArray]],
        changed: Sequence[Sequence[BoolArray]],
    ) -> None:
        groups = self.cohort.groups[block.index].astype(np.int64)
        self.present += np.bincount(groups, minlength=len(self.present))
        for place, column in enumerate(self.columns):
            values, prints = block.values[place], block.prints[place]
            column.add_known(values, prints, changed[place], block.index, groups, len(self.sizes))
            if place in self.comparisons:
                comparison = self.comparisons[place]
                differs = comparison.add(compared[place], prints, block.index, groups)
                self.differs[block.index] |= differs

    # --- groups of newcomers ----------------------------------------------------------------------

    def _least_to_group(self, n: int) -> int:
        """Return how many newcomers have to be there before they are grouped."""
        is_later = bool(len(self.cohort.keys) or self.formed)
        has_levels = any(isinstance(each.column, LevelColumn) for each in self.columns)
        n = max(n, self.source.n_persons)
        return least_group_size(n, self.cohort.p, has_levels=is_later and has_levels)

    def _form_groups(self) -> None:
        """Form groups of the persons who wait, if there are enough."""
        persons = _concatenate(self.waiting)
        self.waiting = [persons]
        if len(np.unique(persons.keys)) < len(persons):
            raise _repeated_ids()
        if not self.columns or len(persons) < self._least_to_group(len(persons)):
            return
        for column, values in zip(self.columns, persons.values, strict=True):
            column.drop_two_values(values)
        columns = [each.column for each in self.columns]
        n_persons = max(len(self.cohort.keys) + len(persons), self.source.n_persons)
        groups = group_persons(columns, persons.values, self.cohort.p, n_persons)
        persons, groups = self._add_left_over(persons, groups)
        groups = groups + len(self.sizes)
        self.sizes = np.append(self.sizes, np.bincount(groups)[len(self.sizes) :])
        for column, values in zip(self.columns, persons.values, strict=True):
            column.sums.add(values, groups, len(self.sizes))
        self.formed.append((persons, groups))
        self.waiting = [persons[:0]]

    def _add_left_over(self, persons: _Persons, groups: IntArray) -> tuple[_Persons, IntArray]:
        """Put persons left over by withdrawals into the nearest group, if no value is missing."""
        left_over = _concatenate(self.left_over)
        self.left_over = [left_over[:0]]
        left_over = left_over[~np.isnan(np.column_stack(left_over.values)).any(axis=1)]
        if not len(left_over):
            return persons, groups
        # Imported here: it takes a third of the time of `import fedclust`.
        from scipy.spatial import cKDTree

        both = _concatenate([persons, left_over])
        columns = [each.column for each in self.columns]
        points = embed_persons(columns, both.values)
        sizes = np.bincount(groups)
        centres = [np.bincount(groups, weights=each) / sizes for each in points[: len(groups)].T]
        nearest = cKDTree(np.column_stack(centres)).query(points[len(groups) :])[1]
        return both, np.concatenate([groups, nearest.astype(np.int64)])

    # --- the end ----------------------------------------------------------------------------------

    def recognition(self) -> Recognition:
        """Return how many persons of the source are known."""
        cohort = self.cohort
        unknown = sum(int((persons.index < 0).sum()) for persons, _ in self.formed)
        tables = [cohort] if len(cohort.keys) else self.others
        remaining = sum(int((~each.withdrawn).sum()) for each in tables)
        return Recognition(
            known=int(self.seen.sum()),
            unknown=unknown + sum(map(len, self.waiting)),
            missing=remaining - int((self.seen & ~cohort.withdrawn).sum()),
            differing={
                name: counts
                for each in self.comparisons.values()
                for name, counts in each.counts.items()
            },
            persons_differing=int(self.differs.sum()),
        )

    def finish(self) -> tuple[Cohort, Change, Recognition]:
        if not self.waiting:
            raise TooFewPersons(0, self.cohort.p)
        recognition = self.recognition()
        self._form_groups()
        if not len(self.sizes):
            raise TooFewPersons(len(self.waiting[0]), self.cohort.p)
        merged, change = self._merge()
        if merged is not self.cohort or self.source.counted:
            recognition.refuse_other_values(self.cohort.p, newcomers=change.persons > 0)
        return merged, change, recognition

    def _merge(self) -> tuple[Cohort, Change]:
        """Return the cohort with all that this pass releases."""
        cohort, m = self.cohort, len(self.sizes)
        formed = _concatenate([persons for persons, _ in self.formed] or [self.waiting[0][:0]])
        labels = np.concatenate([cohort.groups[:0], *(groups for _, groups in self.formed)])
        moved = formed.index >= 0
        new = formed[~moved]
        groups = cohort.groups.copy()
        groups[formed.index[moved]] = labels[moved]
        for update, prints in zip(self.columns, formed.prints, strict=True):
            update.prints[formed.index[moved]] = prints[moved]
        used = pad(cohort.used, m, fill=True)
        complete = pad(self.present == cohort.sizes, m, fill=True)
        after = UpdatedGroups(cohort.p, self.sizes, len(cohort.sizes), used, complete, groups)
        # Pinned columns stay in their order; new ones follow.
        n_persons = len(cohort.keys) + len(new)
        in_source = {source_names(each.column) for each in self.columns}
        columns = {source_names(each.column): each for each in cohort.columns}
        for names in set(columns) - in_source:
            columns[names] = extend_column(columns[names], m, n_persons)
        n_columns, changed = 0, len(new) > 0
        for update, prints in zip(self.columns, new.prints, strict=True):
            names = source_names(update.column)
            columns[names], decided = update.release(after, self.source.rules, prints)
            n_columns += len(names) if update.pinned is None else 0
            changed |= decided
        change = Change(
            persons=len(new),
            groups=m - len(cohort.sizes),
            columns=n_columns,
            waiting=len(self.waiting[0]),
        )
        if not changed and not n_columns:
            return cohort, change
        keys = np.concatenate([cohort.keys, new.keys])
        order = np.argsort(keys, kind="stable")
        merged = replace(
            cohort,
            keys=keys[order],
            groups=np.concatenate([groups, labels[~moved]]).astype(np.int32)[order],
            withdrawn=pad(cohort.withdrawn, len(keys))[order],
            sizes=self.sizes,
            used=used,
            columns=tuple(replace(each, prints=each.prints[order]) for each in columns.values()),
        )
        return merged, change


def _compared(column: TableColumn, given: Mapping[str, SourceColumn]) -> list[FloatArray]:
    """Return the values (n,) of each source column that fingerprints are taken of."""
    values = [given[name].values for name in source_names(column)]
    if isinstance(column, NumericColumn):
        # Changes beyond a fence, or smaller than the step, change no release.
        return [snap_to_grid(column, each) for each in values]
    return values


def two_cohorts(first: Cohort, second: Cohort) -> CohortRefused:
    """Return the refusal of a source with persons of two tables."""
    return CohortRefused(
        "two-cohorts",
        f"this source has persons of the tables {first.table_id} and {second.table_id}. Give the "
        "persons of each in a file of their own. If one was formed with separate_groups= "
        "(--separate-groups), name the table (cohort=, --cohort)",
    )


def _repeated_ids() -> CohortRefused:
    return CohortRefused(
        "ids-repeat",
        "an id is there twice. If a person has several rows, name the column that says so "
        "(person=, --person-column); otherwise remove the repeated rows",
    )
