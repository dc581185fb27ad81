"""Rule: a group releases a column once, in the first pass in which it may.

Then all its persons are in the file, and p of them have a value of the column. One pass over a
source brings a cohort up to date. Persons may come in blocks; known groups release at the end.

A larger p is served by unions of whole groups, formed once, from records alone. For p' a union has
at least p'/p groups. It releases a column if so many of its groups do, and it decides once the
persons of all its groups were in a file with the column. Then its record never changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import BoolArray, ByteArray, FloatArray, IntArray, KeyArray
from fedclust.numeric.microaggregation import form_groups
from fedclust.protection.cohort import (
    Cohort,
    CohortRefused,
    PinnedColumn,
    Unions,
    column_seed,
    fingerprints,
    pad,
    person_keys,
)
from fedclust.protection.columns import (
    SourceColumn,
    TableColumn,
    choose_nearer,
    find_middles,
    group_members,
    weighted_mean,
)
from fedclust.protection.groups import Newcomers
from fedclust.protection.recognition import PersonSource, Recognition, find_cohort
from fedclust.protection.table import TooFewPersons, embed_records, order_records


def update_unions(cohort: Cohort, p: int) -> Cohort:
    """Return the cohort with unions for ``p`` of all groups that can be united, and their records.

    The same object if nothing changes.
    """
    known = cohort.unions_for(p)
    least = -(-p // cohort.p)
    labels = _label_groups(cohort, known, least)
    n_unions = max(len(known.released), int(labels.max(initial=-1)) + 1)
    released = np.full((n_unions, len(cohort.columns)), np.nan)
    decided = np.zeros(released.shape, dtype=np.bool_)
    kept = tuple(map(slice, known.released.shape))
    released[kept], decided[kept] = known.released, known.decided
    unions = [members[members >= 0] for members in group_members(labels, n_unions)]
    for place, pinned in enumerate(cohort.columns):
        of_all = _all_records(cohort, pinned)
        for union, groups in enumerate(unions):
            if len(groups) and not decided[union, place] and pinned.complete[groups].all():
                decided[union, place] = True
                releasing = groups[~np.isnan(pinned.released[groups])]
                if len(releasing) >= least:
                    own = np.repeat(pinned.released[releasing], cohort.sizes[releasing])
                    released[union, place] = _union_record(own, pinned, of_all)
    if np.array_equal(labels, known.labels) and np.array_equal(decided, known.decided):
        return cohort
    others = (each for each in cohort.unions if each.p != p)
    return replace(cohort, unions=(*others, Unions(p, labels, released, decided)))


def _label_groups(cohort: Cohort, known: Unions, least: int) -> NDArray[np.int32]:
    """Return the union (m,) of each group; those that wait are united if they are enough."""
    labels = pad(known.labels, len(cohort.sizes), fill=-1)
    waiting = np.flatnonzero(cohort.used & (labels < 0))
    if len(waiting) < least:
        return labels
    # Sorted: the unions do not depend on the order of the groups.
    records = [each.released[waiting] for each in cohort.columns]
    order = order_records(records, cohort.sizes[waiting])
    columns = [each.column for each in cohort.columns]
    points = embed_records(columns, [each[order] for each in records])
    labels[waiting[order]] = len(known.released) + form_groups(points, least)
    return labels


def _all_records(cohort: Cohort, pinned: PinnedColumn) -> FloatArray:
    """Return the mean of all records (1,); of levels the number of persons at each (L,)."""
    everyone = cohort.used & ~np.isnan(pinned.released)
    records, sizes = pinned.released[everyone], cohort.sizes[everyone]
    if pinned.column.n_levels is not None:
        counts = np.bincount(records.astype(np.int64), sizes, pinned.column.n_levels)
        return counts.astype(np.float64)
    return np.array([weighted_mean(records, sizes) if len(sizes) else 0.0])


def _union_record(own: FloatArray, pinned: PinnedColumn, of_all: FloatArray) -> float:
    """Return the middle one of the persons' records (n,), the nearer one to ``of_all``.

    Of levels the commonest; of equally common ones that of most persons of all groups.
    """
    if pinned.column.n_levels is not None:
        counts = np.bincount(own.astype(np.int64), minlength=pinned.column.n_levels)
        return float(np.lexsort((-of_all, -counts))[0])
    own = np.sort(own)
    middles = own[[(len(own) - 1) // 2, len(own) // 2]]
    return float(choose_nearer(middles[None], of_all[0])[0])


@dataclass(frozen=True)
class Change:
    """How many persons, groups and columns an update released first; how many persons wait."""

    persons: int
    groups: int
    columns: int
    waiting: int


def update_cohort(
    new: Cohort,
    cohorts: Sequence[Cohort],
    secret: bytes,
    source: PersonSource,
    all_cohorts: Sequence[Cohort] = (),
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
    all_cohorts : sequence of Cohort
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
    update = _Update(cohort, secret, source, cohorts, all_cohorts)
    for ids, sources in source.blocks():
        if sources:
            update.add(ids, sources)
    recognition = update.recognition()
    if cohorts and not any_persons:
        recognition.refuse_unknown(cohort.p, permanent=permanent_ids)
    updated, change = update.finish()
    if updated is not cohort or source.counted:
        recognition.refuse_other_values(cohort.p, newcomers=change.persons > 0)
    return update_unions(updated, p) if p > cohort.p else updated, change, recognition


class _ColumnUpdate:
    """One column during a pass: what it was before, and what the persons have of it."""

    def __init__(self, pinned: PinnedColumn, common: float, cohort: Cohort) -> None:
        """``common`` is the column's commonest value in the source, NaN if that is not needed."""
        self.pinned, self.common = pinned, common
        n = len(cohort.keys)
        #: Of known persons; values only where a group may still release the column.
        self.prints = np.zeros(n, np.uint8)
        undecided = np.isnan(pinned.released) & cohort.used
        self.values = np.full(n if undecided.any() else 0, np.nan)
        #: Of newcomers, by block.
        self.new_prints: list[ByteArray] = []
        #: How many values of known persons differ from those released, and of how many.
        self.differing = (0, 0)

    def add_known(
        self,
        values: FloatArray,
        prints: ByteArray,
        missing: ByteArray,
        index: IntArray,
        groups: NDArray[np.int32],
    ) -> BoolArray:
        """Add known persons, and return whose values (n,) differ from those released.

        ``missing`` are the fingerprints of a missing value; ``index`` and ``groups`` are each
        person's place in the cohort, and group.
        """
        before = self.pinned.prints[index]
        same = prints == before
        # Only values that both files have.
        counted = ~np.isnan(self.pinned.released)[groups] & ~np.isnan(values)
        counted &= same | (before != missing)
        # Two rare diseases agree in nearly everybody, who has neither.
        counted &= ~(same & (values == self.common))
        differs: BoolArray = counted & ~same
        differ, of = self.differing
        self.differing = differ + int(differs.sum()), of + int(counted.sum())
        self.prints[index] = prints
        if len(self.values):
            self.values[index] = values
        return differs

    def release(
        self, cohort: Cohort, new_found: Sequence[FloatArray], sizes: IntArray, complete: BoolArray
    ) -> PinnedColumn:
        """Return the column after this pass, with the prints of known persons.

        Parameters
        ----------
        cohort : Cohort
            As it was before this pass.
        new_found : sequence of (m_new, 2) or (m_new, L) float64
            What decides the records of the new groups, which come last.
        sizes : (m,) int64
            Of all groups.
        complete : (m,) bool
            Groups in use, all of whose persons are in the source.
        """
        m, m_known = len(sizes), len(cohort.sizes)
        before, n_levels = self.pinned.extended(m), self.pinned.column.n_levels
        found = np.full((m, 2 if n_levels is None else n_levels), np.nan)
        now = (complete & np.isnan(before.released))[:m_known]
        if now.any():
            members = group_members(np.where(now[cohort.groups], cohort.groups, -1), m_known)
            found[:m_known] = find_middles(self.values, members, cohort.p, n_levels)
        found[m_known:] = np.concatenate([found[:0], *new_found])
        column, released = before.column.release(before.released, found, sizes)
        now = ~np.isnan(released) & np.isnan(before.released)
        prints = np.where(now[cohort.groups], self.prints, before.prints)
        return PinnedColumn(column, before.rule, released, before.complete | complete, prints)


class _Update:
    """A pass over a source: :meth:`add` its blocks, then :meth:`finish`."""

    def __init__(
        self,
        cohort: Cohort,
        secret: bytes,
        source: PersonSource,
        cohorts: Sequence[Cohort],
        all_cohorts: Sequence[Cohort],
    ) -> None:
        self.cohort, self.secret, self.source = cohort, secret, source
        #: Cohorts that the persons may not be in.
        self.elsewhere = [each for each in cohorts if each is not cohort]
        #: Keys of persons withdrawn from any cohort.
        withdrawn = [each.keys[each.withdrawn] for each in all_cohorts]
        self.withdrawn = np.concatenate([cohort.keys[:0], *withdrawn])
        #: Known persons who are in the source, and those whose values differ.
        self.seen = np.zeros(len(cohort.keys), np.bool_)
        self.differs = np.zeros(len(cohort.keys), np.bool_)
        self.columns: list[_ColumnUpdate] = []
        least = cohort.least if len(cohort.sizes) else None
        self.newcomers = Newcomers(cohort.p, source.sample, source.n_persons, least)
        self.new_keys: list[KeyArray] = []

    def add(self, ids: Sequence[str], sources: Sequence[SourceColumn]) -> None:
        """Add some persons and their columns, at least one and the same in each block."""
        # Pinned columns stay in their order; new ones follow.
        order = {name: place for place, name in enumerate(self.cohort.rules())}
        sources = sorted(sources, key=lambda each: order.get(each.name, len(order)))
        if not self.columns:
            self._begin(sources)
        keys, masks = person_keys(self.secret, ids)
        index = self.cohort.find(keys)
        is_known = index >= 0
        self._note_seen(keys, index[is_known])
        # Groups that are no longer used release nothing.
        known = np.flatnonzero(is_known)
        known = known[self.cohort.used[self.cohort.groups[index[known]]]]
        index, groups = index[known], self.cohort.groups[index[known]]
        # Nor are the others of a withdrawn person's group newcomers: a group that overlaps with it
        # can tell that person's value.
        is_new = ~is_known & ~np.isin(keys, self.withdrawn)
        new = slice(None) if is_new.all() else np.flatnonzero(is_new)
        for column, source in zip(self.columns, sources, strict=True):
            seed = column_seed(self.secret, source.name)
            prints = fingerprints(source.values, masks, seed)
            column.new_prints.append(prints[new])
            if len(known):
                missing = fingerprints(np.full(len(known), np.nan), masks[known], seed)
                self.differs[index] |= column.add_known(
                    source.values[known], prints[known], missing, index, groups
                )
        self.new_keys.append(keys[new])
        self.newcomers.add([replace(each, values=each.values[new]) for each in sources])

    def _begin(self, sources: Sequence[SourceColumn]) -> None:
        """Prepare the columns."""
        cohort, rules = self.cohort, self.source.rules
        pinned = {each.column.name: each for each in cohort.columns}
        given = {each.name: each.values for each in self.source.sample or sources}
        m, n = len(cohort.sizes), len(cohort.keys)
        nothing = np.full(m, np.nan), np.zeros(m, np.bool_), np.zeros(n, np.uint8)
        for source in sources:
            name = source.name
            new = PinnedColumn(TableColumn(name, source.n_levels), rules[name], *nothing)
            column = pinned.get(name, new)
            if rules[name] != column.rule:
                raise CohortRefused(
                    "other-rule",
                    f"column {name!r} was released as read by another rule: as numbers, yes/no or "
                    "codes, with other codes or missing markers. Read it as before, or give the "
                    "column another name",
                )
            common = _commonest(given[name]) if name in pinned else np.nan
            self.columns.append(_ColumnUpdate(column, common, cohort))

    def _note_seen(self, keys: KeyArray, index: IntArray) -> None:
        """Note who is in the source; refuse persons who occur twice or are in another cohort."""
        if self.seen[index].any() or np.bincount(index).max(initial=0) > 1:
            raise _repeated_ids()
        self.seen[index] = True
        for other in self.elsewhere:
            if (other.find(keys) >= 0).any():
                raise two_cohorts(self.cohort, other)

    def recognition(self) -> Recognition:
        """Return how many persons of the source are known."""
        pinned = self.cohort.rules()
        tables = [self.cohort] if len(self.seen) else self.elsewhere
        remaining = sum(int((~each.withdrawn).sum()) for each in tables)
        named = ((each.pinned.column.name, each.differing) for each in self.columns)
        return Recognition(
            known=int(self.seen.sum()),
            unknown=sum(map(len, self.new_keys)),
            missing=remaining - int((self.seen & ~self.cohort.withdrawn).sum()),
            differing={name: differing for name, differing in named if name in pinned},
            persons_differing=int(self.differs.sum()),
        )

    def finish(self) -> tuple[Cohort, Change]:
        """Return the cohort with all that this pass releases; the same one if that is nothing."""
        cohort, newcomers = self.cohort, self.newcomers
        labels = newcomers.finish()
        sizes = np.append(cohort.sizes, newcomers.sizes)
        if not self.columns or not len(sizes):
            raise TooFewPersons(newcomers.n, cohort.p)
        keys = np.concatenate([cohort.keys[:0], *self.new_keys])
        if len(np.unique(keys)) < len(keys):
            raise _repeated_ids()
        m, formed = len(sizes), labels >= 0
        keys = np.concatenate([cohort.keys, keys[formed]])
        order = np.argsort(keys, kind="stable")
        used = pad(cohort.used, m, fill=True)
        present = np.bincount(cohort.groups[self.seen], minlength=len(cohort.sizes))
        complete = used & pad(present == cohort.sizes, m, fill=True)
        columns = {each.column.name: each.extended(m) for each in cohort.columns}
        n_pinned, changed = len(columns), bool(formed.any())
        new_prints: dict[str, ByteArray] = {}
        for place, column in enumerate(self.columns):
            after = column.release(cohort, newcomers.found[place], sizes, complete)
            name, before = after.column.name, column.pinned.extended(m)
            columns[name] = after
            changed |= not np.array_equal(after.complete, before.complete)
            changed |= not np.array_equal(after.released, before.released, equal_nan=True)
            new_prints[name] = np.concatenate([after.prints[:0], *column.new_prints])[formed]
            newcomers.found[place], column.new_prints = [], []
        n_new, n_columns = int(formed.sum()), len(columns) - n_pinned
        change = Change(n_new, m - len(cohort.sizes), n_columns, len(labels) - n_new)
        if not changed and not n_columns:
            return cohort, change
        groups = np.append(cohort.groups, labels[formed] + len(cohort.sizes))
        blank = np.zeros(n_new, np.uint8)
        for name, each in columns.items():
            prints = np.append(each.prints, new_prints.get(name, blank))
            columns[name] = replace(each, prints=prints[order])
        merged = replace(
            cohort,
            least=cohort.least if len(cohort.sizes) else newcomers.parts.least[-1],
            keys=keys[order],
            groups=groups.astype(np.int32)[order],
            withdrawn=pad(cohort.withdrawn, len(keys))[order],
            sizes=sizes,
            used=used,
            columns=tuple(columns.values()),
        )
        return merged, change


def _commonest(values: FloatArray) -> float:
    """Return the commonest of values (n,), the smallest of equally common ones; NaN for none."""
    distinct, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    return float(distinct[counts.argmax()]) if len(distinct) else float("nan")


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
