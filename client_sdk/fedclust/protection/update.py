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

from fedclust.numeric.array_types import ByteArray, FloatArray, IntArray, KeyArray, WordArray
from fedclust.protection.cohort import Cohort, CohortRefused
from fedclust.protection.columns import (
    LevelColumn,
    NumericColumn,
    SourceColumn,
    describe_columns,
    snap_to_grid,
    source_names,
)
from fedclust.protection.fingerprints import RowIds, column_seed, fingerprints, person_keys
from fedclust.protection.groups import least_group_size
from fedclust.protection.recognition import (
    PersonSource,
    find_cohort,
    find_new_names,
    other_file,
    refuse_known_values,
    sign,
)
from fedclust.protection.releases import ColumnUpdate, UpdatedGroups, extend_column, pad
from fedclust.protection.table import TooFewPersons, embed_persons, encode_sources, group_persons

#: Newcomers of a source in blocks are grouped when this many wait: grouping more at a time gains
#: little and takes memory.
_BLOCK = 100_000
#: More changed values than these, as a share of a column's released values and in persons as a
#: multiple of p, are more likely a wrong query, mapping or unit than corrections. What a group has
#: released cannot be taken back, and a wrong value that is put right is no new value.
_MOST_CORRECTED = 0.25
_LEAST_DOUBTED = 4


@dataclass(frozen=True)
class Change:
    """What an update changed.

    Attributes
    ----------
    persons, groups : int
        Released for the first time.
    columns : int
        Source columns pinned.
    corrected : int
        Releases of a group's column after the first.
    waiting : int
        Newcomers without a group so far.
    absent : int
        Known persons who are not in the source.
    renamed : dict of str to str
        New names, and the pinned columns that they stand for.
    accepted_columns : int
        Columns with so many changed values that they were used only because the site accepted it.
    """

    persons: int
    groups: int
    columns: int
    corrected: int
    waiting: int
    absent: int
    renamed: dict[str, str]
    accepted_columns: int = 0


def update_cohort(
    new: Cohort,
    cohorts: Sequence[Cohort],
    secret: bytes,
    source: PersonSource,
    others: Sequence[Cohort] = (),
    *,
    accept_corrections: bool = False,
) -> tuple[Cohort, Change]:
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
    accept_corrections : bool
        Whether to use a column in which implausibly many values of known persons have changed.

    Raises
    ------
    CohortRefused
        The source does not fit; nothing has changed.
    TooFewPersons
        A new cohort has fewer than p persons.
    """
    cohort = find_cohort(cohorts, secret, source.blocks) or new
    names = find_new_names(cohort, secret, source.blocks) if cohort.columns else {}
    update = _Update(cohort, secret, source, names)
    update.others = [other for other in cohorts if other is not cohort]
    update.withdrawn = np.concatenate(
        [cohort.keys[:0], *(each.keys[each.withdrawn] for each in others)]
    )
    for ids, sources in source.blocks():
        update.add(ids, sources)
    return update.finish(accept_corrections=accept_corrections)


@dataclass
class _Persons:
    """Some persons: encoded values and fingerprints (n, source columns) by table column.

    ``index`` (n,) is that in the cohort, -1 for newcomers.
    """

    keys: KeyArray
    signatures: WordArray
    index: IntArray
    values: list[FloatArray]
    prints: list[ByteArray]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: Any) -> _Persons:
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_ and rows.all():
            return self
        values, prints = [v[rows] for v in self.values], [v[rows] for v in self.prints]
        return _Persons(self.keys[rows], self.signatures[rows], self.index[rows], values, prints)


def _concatenate(parts: Sequence[_Persons]) -> _Persons:
    return _Persons(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.signatures for part in parts]),
        np.concatenate([part.index for part in parts]),
        [np.concatenate(each) for each in zip(*(part.values for part in parts), strict=True)],
        [np.concatenate(each) for each in zip(*(part.prints for part in parts), strict=True)],
    )


class _Update:
    """A pass over a source: :meth:`add` its blocks, then :meth:`finish`."""

    def __init__(
        self, cohort: Cohort, secret: bytes, source: PersonSource, new_names: Mapping[str, str]
    ) -> None:
        self.cohort, self.secret, self.source = cohort, secret, source
        self.new_names, self.aliases = dict(new_names), {**cohort.aliases, **new_names}
        self.apart = frozenset(self.aliases.get(name, name) for name in source.apart)
        #: Cohorts that the persons may not be in, and the keys of persons withdrawn from any.
        self.others: Sequence[Cohort] = ()
        self.withdrawn = cohort.keys[:0]
        #: Known persons who are in the source, and how many of each group.
        self.seen = np.zeros(len(cohort.keys), bool)
        self.present = np.zeros(len(cohort.sizes), np.int64)
        self.sizes = cohort.sizes
        self.columns: list[ColumnUpdate] = []
        self.row_ids = RowIds()
        self.waiting: list[_Persons] = []
        #: Known persons whose group ended with the withdrawal of another person.
        self.left_over: list[_Persons] = []
        #: Newcomers, and persons left over, who were put into groups by this pass.
        self.formed: list[tuple[_Persons, IntArray]] = []

    # --- a block ----------------------------------------------------------------------------------

    def add(self, ids: Sequence[str] | None, sources: Sequence[SourceColumn]) -> None:
        given = {source.name: source for source in sources}
        if not self.waiting:
            self._begin(given, has_ids=ids is not None)
        block = self._read(ids, given)
        is_known = block.index >= 0
        known = block[is_known]
        self._note_seen(block.keys, known.index)
        remaining = ~self.cohort.withdrawn[known.index]
        used = self.cohort.used[self.cohort.groups[known.index]]
        self._add_known(known[remaining & used])
        self.left_over.append(known[remaining & ~used])
        newcomers = block[~is_known & ~np.isin(block.keys, self.withdrawn)]
        n_waiting = sum(len(each) for each in self.waiting)
        if n_waiting >= _BLOCK and len(newcomers) >= self._least_to_group(len(newcomers)):
            self._form_groups()
        self.waiting.append(newcomers)

    def _begin(self, given: Mapping[str, SourceColumn], *, has_ids: bool) -> None:
        """Decide how each column is released: as pinned, or as its values say."""
        if not self.cohort.base:
            self.cohort = replace(self.cohort, base=tuple(given), has_ids=has_ids)
        cohort, pinned = self.cohort, self.cohort.rules()
        for name in given:
            if name in pinned and self.source.rules[name] != pinned[name]:
                raise CohortRefused(
                    "other-rule",
                    f"column {name!r} was released as read by another rule: as numbers, yes/no or "
                    "codes, with other codes or missing markers. Read it as before, or give the "
                    "column another name",
                )
        present = self._by_pinned_name(given)
        for each in cohort.columns:
            names = set(source_names(each.column))
            if names <= set(present):
                own_name = names <= set(given)
                self.columns.append(ColumnUpdate(each.column, each, cohort, own_name=own_name))
        if self.source.sample is not None:
            present = self._by_pinned_name({each.name: each for each in self.source.sample})
        new = [source for name, source in present.items() if name not in pinned]
        for column in describe_columns(new, cohort.p, fences=cohort.fences):
            self.columns.append(ColumnUpdate(column, None, cohort, own_name=True))

    def _by_pinned_name(self, given: Mapping[str, SourceColumn]) -> dict[str, SourceColumn]:
        found = {name: source for name, source in given.items() if name not in self.aliases}
        for name, source in given.items():
            if name in self.aliases and self.aliases[name] not in found:
                found[self.aliases[name]] = replace(source, name=self.aliases[name])
        return found

    def _read(self, ids: Sequence[str] | None, given: Mapping[str, SourceColumn]) -> _Persons:
        sources = self._by_pinned_name(given)
        signed = sign(self.cohort, list(sources.values()), self.secret)
        keys, masks = person_keys(self.secret, self.row_ids.of(signed) if ids is None else ids)
        columns = [each.column for each in self.columns]
        values = encode_sources(columns, list(sources.values()))
        prints = []
        for column, encoded in zip(columns, values, strict=True):
            made = []
            for name in source_names(column):
                compared = sources[name].values
                if isinstance(column, NumericColumn):
                    # Changes beyond a fence, or smaller than the step, change no release.
                    compared = snap_to_grid(column, encoded)
                made.append(fingerprints(compared, masks, column_seed(self.secret, name)))
            prints.append(np.column_stack(made))
        return _Persons(keys, signed, self.cohort.find(keys), values, prints)

    def _note_seen(self, keys: KeyArray, index: IntArray) -> None:
        """Note who is in the source; refuse persons who occur twice or are in another cohort."""
        if self.seen[index].any() or np.bincount(index).max(initial=0) > 1:
            raise _repeated_ids()
        self.seen[index] = True
        for other in self.others:
            if (other.find(keys) >= 0).any():
                raise two_cohorts(self.cohort, other)

    def _add_known(self, block: _Persons) -> None:
        groups = self.cohort.groups[block.index].astype(np.int64)
        self.present += np.bincount(groups, minlength=len(self.present))
        for column, values, prints in zip(self.columns, block.values, block.prints, strict=True):
            column.add_known(values, prints, block.index, groups, len(self.sizes))

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
        groups = group_persons(columns, persons.values, self.cohort.p, n_persons, self.apart)
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
        points = embed_persons(columns, both.values, self.apart)
        sizes = np.bincount(groups)
        centres = [np.bincount(groups, weights=each) / sizes for each in points[: len(groups)].T]
        nearest = cKDTree(np.column_stack(centres)).query(points[len(groups) :])[1]
        return both, np.concatenate([groups, nearest.astype(np.int64)])

    # --- the end ----------------------------------------------------------------------------------

    def finish(self, *, accept_corrections: bool) -> tuple[Cohort, Change]:
        if not self.waiting:
            raise TooFewPersons(0, self.cohort.p)
        self._form_groups()
        self._refuse_other_persons()
        doubted = [each for each in self.columns if self._is_doubted(each)]
        if doubted and not accept_corrections:
            raise _many_corrections(doubted)
        if not len(self.sizes):
            raise TooFewPersons(len(self.waiting[0]), self.cohort.p)
        return self._merge(accepted_columns=len(doubted))

    def _is_doubted(self, column: ColumnUpdate) -> bool:
        """Return whether so many values have changed that they may have been read wrongly."""
        n = column.n_changed if column.own_name else 0
        return n > _MOST_CORRECTED * column.n_released and n >= _LEAST_DOUBTED * self.cohort.p

    def _refuse_other_persons(self) -> None:
        cohort = self.cohort
        newcomers = np.concatenate(
            [persons.signatures[persons.index < 0] for persons, _ in self.formed]
            + [persons.signatures for persons in self.waiting]
        )
        gone = ~self.seen & ~cohort.withdrawn
        if len(cohort.keys) and not cohort.has_ids and (gone.any() or len(newcomers)):
            raise other_file()
        n_changed = sum(each.n_changed for each in self.columns)
        if 2 * n_changed > sum(each.n_released for each in self.columns):
            raise CohortRefused(
                "other-values",
                "most values of known persons have changed. If the ids belong to other persons, "
                "or to another site on this account, set FEDCLUST_STATE_DIR to a directory for "
                "these alone. If these are later measurements, give their columns new names",
            )
        refuse_known_values(newcomers, cohort, gone)

    def _merge(self, *, accepted_columns: int) -> tuple[Cohort, Change]:
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
        n_corrected, n_columns, changed = 0, 0, len(new) > 0 or bool(self.new_names)
        for update, prints in zip(self.columns, new.prints, strict=True):
            names = source_names(update.column)
            columns[names], n_again, released = update.release(after, self.source.rules, prints)
            if update.pinned is None:
                n_columns += len(names)
            else:
                n_corrected += n_again
                changed |= released
        change = Change(
            persons=len(new),
            groups=m - len(cohort.sizes),
            columns=n_columns,
            corrected=n_corrected,
            waiting=len(self.waiting[0]),
            absent=int((~self.seen & ~cohort.withdrawn).sum()),
            renamed=self.new_names,
            accepted_columns=accepted_columns,
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
            signatures=np.concatenate([cohort.signatures, new.signatures])[order],
            sizes=self.sizes,
            used=used,
            columns=tuple(replace(each, prints=each.prints[order]) for each in columns.values()),
            aliases=self.aliases,
        )
        return merged, change


def two_cohorts(first: Cohort, second: Cohort) -> CohortRefused:
    """Return the refusal of a source with persons of two tables."""
    return CohortRefused(
        "two-cohorts",
        f"this source has persons of the tables {first.table_id} and {second.table_id}. Give the "
        "persons of each in a file of their own. If one was formed with separate_groups= "
        "(--separate-groups), name the table (cohort=, --cohort)",
    )


def _many_corrections(columns: Sequence[ColumnUpdate]) -> CohortRefused:
    parts = (
        f"{', '.join(source_names(each.column))} ({each.n_changed / each.n_released:.0%} of "
        f"{each.n_released} persons)"
        for each in columns
    )
    return CohortRefused(
        "many-corrections",
        "so many values of known persons have changed since the groups were formed that they may "
        f"have been read wrongly: {'; '.join(parts)}. Nothing was stored or sent. Check the query, "
        "the mapping and the units, for example whether two columns are swapped. If the new "
        "values are right, give --accept-corrections (accept_corrections=True). This cannot be "
        "undone: once a wrong value is released, the right one does not replace it. If these are "
        "later measurements, give their columns new names",
    )


def _repeated_ids() -> CohortRefused:
    return CohortRefused(
        "ids-repeat",
        "an id is there twice. If a person has several rows, name the column that says so "
        "(person=, --person-column); otherwise remove the repeated rows",
    )
