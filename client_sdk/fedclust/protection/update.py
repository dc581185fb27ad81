"""Rule: newcomers form groups of their own, and a group releases a column once.

One pass over a source brings a cohort up to date. Persons may come in blocks: no group spans two
blocks of newcomers, and known groups are completed at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from fedclust.protection.cohort import Cohort, CohortRefused, PinnedColumn, pad
from fedclust.protection.columns import SourceColumn, TableColumn
from fedclust.protection.fingerprints import column_seed, fingerprints, person_keys, row_ids
from fedclust.protection.groups import form_groups, least_for_site
from fedclust.protection.parts import (
    Parts,
    embed_persons,
    embed_presence,
    find_parts,
    newcomer_parts,
)
from fedclust.protection.recognition import (
    PersonSource,
    Recognition,
    ValueComparison,
    commonest,
    find_cohort,
)
from fedclust.protection.records import find_middles, group_members
from fedclust.protection.table import ProtectedTable, TooFewPersons
from fedclust.protection.unions import update_unions

#: Newcomers of a source in blocks are grouped when this many wait: grouping more at a time gains
#: little and takes memory.
_BLOCK = 50_000


@dataclass(frozen=True)
class Change:
    """What an update changed.

    Attributes
    ----------
    persons, groups : int
        Released for the first time.
    columns : int
        Columns pinned.
    waiting : int
        Persons without a group so far.
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
    p: int = 0,
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
    p : int
        If larger than the cohort's own p, unions of groups are formed for it.
    any_persons : bool
        Whether persons who are not known may take part, however many they are.
    permanent_ids : bool
        Whether nobody's id changes at this site.

    Raises
    ------
    CohortRefused
        The source does not fit; nothing has changed.
    TooFewPersons
        A new cohort has fewer than p persons.
    """
    cohort = find_cohort(cohorts, secret, source.blocks) or new
    update = _Update(cohort, secret, source)
    update.others = [other for other in cohorts if other is not cohort]
    update.withdrawn = np.concatenate(
        [cohort.keys[:0], *(each.keys[each.withdrawn] for each in others)]
    )
    for ids, sources in source.blocks():
        update.add(ids, sources)
    if cohorts and not any_persons:
        update.recognition().refuse_unknown(cohort.p, permanent=permanent_ids)
    updated, change, recognition = update.finish()
    return update_unions(updated, p) if p > cohort.p else updated, change, recognition


def form_table(sources: Sequence[SourceColumn], p: int) -> ProtectedTable:
    """Form the protected table of persons who have no group yet, without a state.

    Raises
    ------
    TooFewPersons
        If there are fewer than ``p`` persons.
    """
    ids = row_ids(1, len(sources[0].values))
    names = [source.name for source in sources]
    persons = PersonSource(lambda: [(ids, sources)], dict.fromkeys(names, ""))
    return update_cohort(Cohort.empty("", p), [], b"", persons)[0].table(names)


# --- a pass over a source -------------------------------------------------------------------------


@dataclass
class _Persons:
    """Some persons: their values (n,) and fingerprints (n,) by column.

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
    if len(parts) == 1:
        return parts[0]
    return _Persons(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.index for part in parts]),
        [np.concatenate(each) for each in zip(*(part.values for part in parts), strict=True)],
        [np.concatenate(each) for each in zip(*(part.prints for part in parts), strict=True)],
    )


class _ColumnUpdate:
    """One column during a pass over a source.

    Attributes
    ----------
    name : str
    n_levels : int or None
    pinned : PinnedColumn
        Its releases so far; none of a new column.
    is_new : bool
    found : list of (m, 2) or (m, L) float64
        Middle values, or counts of levels, of the groups that newcomers formed.
    """

    def __init__(
        self, source: SourceColumn, pinned: PinnedColumn | None, rule: str, cohort: Cohort
    ):
        self.name, self.n_levels = source.name, source.n_levels
        n, m = len(cohort.keys), len(cohort.sizes)
        blank = PinnedColumn(
            TableColumn(source.name, source.n_levels),
            rule,
            np.full(m, np.nan),
            np.zeros(m, np.bool_),
            np.zeros(n, np.uint8),
        )
        self.is_new, self.pinned = pinned is None, pinned or blank
        self.found: list[FloatArray] = []
        self.prints = np.zeros(n, np.uint8)
        #: The known persons' values, where a group may still release the column.
        undecided = np.isnan(self.pinned.released) & cohort.used
        self._values = np.full(n if undecided.any() else 0, np.nan)

    def add_known(self, block: _Persons, place: int) -> None:
        """Add known persons."""
        self.prints[block.index] = block.prints[place]
        if len(self._values):
            self._values[block.index] = block.values[place]

    def release(
        self, cohort: Cohort, groups: IntArray, sizes: IntArray, complete: BoolArray
    ) -> tuple[PinnedColumn, bool]:
        """Return the column after this pass, and whether it has changed.

        Parameters
        ----------
        cohort : Cohort
            Before this pass.
        groups : (n,) int64
            The group of each person who was known before, after this pass.
        sizes : (m,) int64
            Of all groups, new ones last.
        complete : (m,) bool
            Groups in use, all of whose persons are in the source.
        """
        m, n_known = len(sizes), len(cohort.sizes)
        before = self.pinned.extended(m)
        now = complete & np.isnan(before.released)
        width = 2 if self.n_levels is None else self.n_levels
        found = np.full((m, width), np.nan)
        if now[:n_known].any():
            # Persons who left a group by a withdrawal are in none of these.
            own = np.where(now[cohort.groups], cohort.groups, -1).astype(np.int64)
            members = group_members(own, n_known)
            found[:n_known] = find_middles(self._values, members, cohort.p, self.n_levels)
        found[n_known:] = np.concatenate([found[:0], *self.found])
        self.found = []
        now &= ~np.isnan(found[:, 0])
        column = before.column
        if not column.is_set and now.any():
            # What was released before it was set were zeros.
            zeros = ~np.isnan(before.released)
            found[zeros] = 0.0
            column = column.set_by(found[now | zeros], sizes[now | zeros])
        released = before.released.copy()
        if now.any():
            released[now] = column.records(found[now])
        prints = np.where(now[groups], self.prints, before.prints)
        after = replace(
            before,
            column=column,
            released=released,
            complete=before.complete | complete,
            prints=prints,
        )
        return after, bool((after.complete != before.complete).any() or now.any())


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
        self.columns: list[_ColumnUpdate] = []
        #: By place in ``columns``, those that were released before; and whose values differ.
        self.comparisons: dict[int, ValueComparison] = {}
        self.differs = np.zeros(len(cohort.keys), bool)
        self.parts: Parts | None = None
        #: Persons without a group.
        self.waiting: list[_Persons] = []
        #: Those of them who were put into groups by this pass, and the parts with such groups.
        self.formed: list[tuple[_Persons, IntArray]] = []
        self._grouped: set[int] = set()

    # --- a block ----------------------------------------------------------------------------------

    def add(self, ids: Sequence[str], sources: Sequence[SourceColumn]) -> None:
        """Add some persons and their columns, the same in each block."""
        if self.parts is None:
            self.parts = self._begin(sources)
        given = {source.name: source.values for source in sources}
        values = [given[column.name] for column in self.columns]
        keys, masks = person_keys(self.secret, ids)
        seeds = [column_seed(self.secret, column.name) for column in self.columns]
        prints = [fingerprints(v, masks, s) for v, s in zip(values, seeds, strict=True)]
        block = _Persons(keys, self.cohort.find(keys), values, prints)
        is_known = block.index >= 0
        self._note_seen(block.keys, block.index[is_known])
        withdrawn = np.isin(block.keys, self.withdrawn)
        withdrawn[is_known] |= self.cohort.withdrawn[block.index[is_known]]
        in_use = is_known.copy()
        in_use[is_known] = self.cohort.used[self.cohort.groups[block.index[is_known]]]
        rows = np.flatnonzero(in_use & ~withdrawn)
        self._add_known(block[rows], masks[rows])
        # Whoever is left over by a withdrawal waits like a newcomer.
        self.waiting.append(block[~in_use & ~withdrawn])
        if sum(map(len, self.waiting)) >= _BLOCK:
            self._form_groups(self.parts)

    def _begin(self, sources: Sequence[SourceColumn]) -> Parts:
        """Prepare the columns, and return the parts of newcomers."""
        cohort, rules = self.cohort, self.source.rules
        pinned = {each.column.name: each for each in cohort.columns}
        for name in pinned.keys() & {source.name for source in sources}:
            if rules[name] != pinned[name].rule:
                raise CohortRefused(
                    "other-rule",
                    f"column {name!r} was released as read by another rule: as numbers, yes/no or "
                    "codes, with other codes or missing markers. Read it as before, or give the "
                    "column another name",
                )
        sample = {each.name: each for each in self.source.sample or sources}
        # Pinned columns stay in their order; new ones follow.
        order = {name: place for place, name in enumerate(pinned)}
        for source in sorted(sources, key=lambda each: order.get(each.name, len(order))):
            known = pinned.get(source.name)
            if known is not None:
                common = commonest(sample[source.name].values)
                self.comparisons[len(self.columns)] = ValueComparison(known, common)
            self.columns.append(_ColumnUpdate(source, known, rules[source.name], cohort))
        if len(cohort.sizes):
            return newcomer_parts(cohort.least, len(self.columns))
        persons = [sample[column.name] for column in self.columns]
        n_persons = max(self.source.n_persons, len(persons[0].values))
        return find_parts(persons, cohort.p, n_persons)

    def _note_seen(self, keys: KeyArray, index: IntArray) -> None:
        """Note who is in the source; refuse persons who occur twice or are in another cohort."""
        if self.seen[index].any() or np.bincount(index).max(initial=0) > 1:
            raise _repeated_ids()
        self.seen[index] = True
        for other in self.others:
            if (other.find(keys) >= 0).any():
                raise two_cohorts(self.cohort, other)

    def _add_known(self, block: _Persons, masks: WordArray) -> None:
        groups = self.cohort.groups[block.index].astype(np.int64)
        self.present += np.bincount(groups, minlength=len(self.present))
        for place, column in enumerate(self.columns):
            column.add_known(block, place)
            if place in self.comparisons:
                seed = column_seed(self.secret, column.name)
                missing = fingerprints(np.full(len(masks), np.nan), masks, seed)
                differs = self.comparisons[place].add(
                    block.values[place], block.prints[place], missing, block.index, groups
                )
                self.differs[block.index] |= differs

    # --- groups of newcomers ----------------------------------------------------------------------

    def _form_groups(self, parts: Parts, *, last: bool = False) -> None:
        """Form groups of the persons who wait, in each part with enough of them."""
        persons, p = _concatenate(self.waiting), self.cohort.p
        self.waiting = []
        sources = [
            SourceColumn(column.name, values, column.n_levels)
            for column, values in zip(self.columns, persons.values, strict=True)
        ]
        points = embed_persons(sources, p)
        part_of = parts.of(np.column_stack([np.isnan(each) for each in persons.values]))
        groups = np.full(len(persons), -1)
        for part, least_of_part in enumerate(parts.least):
            rows = np.flatnonzero(part_of == part)
            least = least_for_site(least_of_part, max(self.source.n_persons, len(persons)))
            # All persons of a first table's small part are one group.
            is_whole = last and not len(self.cohort.sizes) and part not in self._grouped
            if len(rows) < least and not (is_whole and len(rows) >= 2 * p):
                continue
            # Not copied where all persons are of one part.
            mine: Any = rows if len(rows) < len(persons) else slice(None)
            own, similar = [each[mine] for each in persons.values], points[mine]
            if parts.rare[part].any():
                presence = [own[place] for place in np.flatnonzero(parts.rare[part])]
                similar = np.column_stack([similar, embed_presence(presence)])
            groups[rows] = groups.max(initial=-1) + 1 + form_groups(similar, least, own)
            self._grouped.add(part)
        self.waiting = [persons[groups < 0]]
        persons, groups = persons[groups >= 0], groups[groups >= 0]
        if not len(persons):
            return
        sizes = np.bincount(groups)
        members = group_members(groups, len(sizes))
        for column, values in zip(self.columns, persons.values, strict=True):
            column.found.append(find_middles(values, members, p, column.n_levels))
        # Their values are not needed any more.
        self.formed.append((replace(persons, values=[]), groups + len(self.sizes)))
        self.sizes = np.append(self.sizes, sizes)

    # --- the end ----------------------------------------------------------------------------------

    def recognition(self) -> Recognition:
        """Return how many persons of the source are known."""
        cohort = self.cohort
        not_grouped = [*(persons for persons, _ in self.formed), *self.waiting]
        tables = [cohort] if len(cohort.keys) else self.others
        remaining = sum(int((~each.withdrawn).sum()) for each in tables)
        return Recognition(
            known=int(self.seen.sum()),
            unknown=sum(int((persons.index < 0).sum()) for persons in not_grouped),
            missing=remaining - int((self.seen & ~cohort.withdrawn).sum()),
            differing={
                self.columns[place].name: each.counts for place, each in self.comparisons.items()
            },
            persons_differing=int(self.differs.sum()),
        )

    def finish(self) -> tuple[Cohort, Change, Recognition]:
        """Return the cohort with all that this pass releases."""
        if self.parts is None or not self.columns:
            raise TooFewPersons(0, self.cohort.p)
        recognition = self.recognition()
        self._form_groups(self.parts, last=True)
        if not len(self.sizes):
            raise TooFewPersons(len(self.waiting[0]), self.cohort.p)
        merged, change = self._merge(self.parts)
        if merged is not self.cohort or self.source.counted:
            recognition.refuse_other_values(self.cohort.p, newcomers=change.persons > 0)
        return merged, change, recognition

    def _merge(self, parts: Parts) -> tuple[Cohort, Change]:
        cohort, m, waiting = self.cohort, len(self.sizes), self.waiting[0]
        nobody = replace(waiting[:0], values=[])
        formed = _concatenate([*(persons for persons, _ in self.formed), nobody])
        labels = np.concatenate([cohort.groups[:0], *(groups for _, groups in self.formed)])
        self.formed = []
        moved = formed.index >= 0
        new = formed[~moved]
        keys = np.concatenate([cohort.keys, new.keys])
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        others = waiting.keys[waiting.index < 0]
        known = replace(cohort, keys=keys).find(others) >= 0
        if (keys[1:] == keys[:-1]).any() or known.any() or len(np.unique(others)) < len(others):
            raise _repeated_ids()
        groups = cohort.groups.astype(np.int64)
        groups[formed.index[moved]] = labels[moved]
        used = pad(cohort.used, m, fill=True)
        complete = used & pad(self.present == cohort.sizes, m, fill=True)
        columns = {each.column.name: each.extended(m) for each in cohort.columns}
        n_persons = len(cohort.keys) + len(new)
        n_columns, changed = 0, len(formed) > 0
        for place, column in enumerate(self.columns):
            column.prints[formed.index[moved]] = formed.prints[place][moved]
            after, has_changed = column.release(cohort, groups, self.sizes, complete)
            columns[column.name] = after
            n_columns += column.is_new
            changed |= has_changed
        change = Change(
            persons=len(new), groups=m - len(cohort.sizes), columns=n_columns, waiting=len(waiting)
        )
        if not changed and not n_columns:
            return cohort, change
        prints = {column.name: new.prints[place] for place, column in enumerate(self.columns)}
        blank = np.zeros(len(new), np.uint8)
        merged = replace(
            cohort,
            least=cohort.least if len(cohort.sizes) else parts.least_of_newcomers(cohort.p),
            keys=keys,
            groups=np.concatenate([groups, labels[~moved]]).astype(np.int32)[order],
            withdrawn=pad(cohort.withdrawn, n_persons)[order],
            sizes=self.sizes,
            used=used,
            columns=tuple(
                replace(each, prints=np.concatenate([each.prints, prints.get(name, blank)])[order])
                for name, each in columns.items()
            ),
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


def _repeated_ids() -> CohortRefused:
    return CohortRefused(
        "ids-repeat",
        "an id is there twice. If a person has several rows, name the column that says so "
        "(person=, --person-column); otherwise remove the repeated rows",
    )
