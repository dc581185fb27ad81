"""One pass over a source brings a cohort up to date: what is released, and what waits.

All sums are additive, so that persons may come in blocks. A first table of several blocks is
grouped block by block, and its columns are described by the first block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from fedclust.protection.cohort import Cohort, CohortRefused, PinnedColumn
from fedclust.protection.columns import (
    NumericColumn,
    SourceColumn,
    TableColumn,
    collect_distinct,
    describe_columns,
    snap_to_grid,
    source_names,
)
from fedclust.protection.fingerprints import (
    column_seed,
    fingerprints,
    numbered_rows,
    person_keys,
)
from fedclust.protection.groups import least_group_size
from fedclust.protection.recognition import (
    PersonBlocks,
    find_cohort,
    find_new_names,
    other_file,
    refuse_known_values,
    sign,
)
from fedclust.protection.records import GroupSums
from fedclust.protection.table import (
    TooFewPersons,
    embed_persons,
    encode_sources,
    group_persons,
    has_levels,
)

__all__ = ["Change", "two_cohorts", "update_cohort"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
ByteArray = NDArray[np.uint8]
WordArray = NDArray[np.uint64]

#: Newcomers of a source in blocks are grouped when so many wait: to group more at a time gains
#: little and takes memory.
_BLOCK = 100_000


@dataclass(frozen=True)
class Change:
    """What an update did, in numbers.

    Attributes
    ----------
    persons, groups : int
        Released for the first time.
    columns : int
        SourceColumn columns pinned.
    corrected : int
        Releases of a group's column anew.
    waiting : int
        Newcomers without a group as yet.
    absent : int
        Known persons who are not in the source.
    renamed : dict of str to str
        New names, and the pinned columns that they stand for.
    """

    persons: int
    groups: int
    columns: int
    corrected: int
    waiting: int
    absent: int
    renamed: dict[str, str]


def update_cohort(
    new: Cohort,
    cohorts: Sequence[Cohort],
    secret: bytes,
    blocks: PersonBlocks,
    rules: Mapping[str, str],
    *,
    others: Sequence[Cohort] = (),
    sample: Sequence[SourceColumn] | None = None,
    n_persons: int = 0,
) -> tuple[Cohort, Change]:
    """Bring the cohort that holds a source's persons up to date.

    Parameters
    ----------
    new : Cohort
        Without persons: what a new table starts from.
    cohorts : sequence of Cohort
        Those that may be used.
    secret : bytes
        The site's own.
    blocks : callable
        Starts a pass over the source.
    rules : mapping of str to str
        How each source column is read.
    others : sequence of Cohort
        All of the site's: whoever was withdrawn from one joins no other.
    sample : sequence of SourceColumn, optional
        Persons from all of the source: new columns are described by these, by default by the first
        block.
    n_persons : int
        About how many there are in all blocks.

    Returns
    -------
    Cohort
        The same object as before if nothing has to be kept.
    Change

    Raises
    ------
    CohortRefused
        The source does not fit; nothing has changed.
    TooFewPersons
        A new cohort has fewer than p persons.
    """
    cohort = find_cohort(cohorts, secret, blocks) or new
    names = find_new_names(cohort, secret, blocks) if cohort.columns else {}
    update = _Update(cohort, secret, rules, names, cohorts, others)
    update.sample, update.n_persons = sample, n_persons
    for ids, sources in blocks():
        update.add(ids, sources)
    return update.finish()


@dataclass
class _Persons:
    """Some persons: encoded values and fingerprints (n, source columns) by table column.

    ``places`` are those in the cohort, -1 for newcomers.
    """

    keys: NDArray[Any]
    signatures: WordArray
    places: IntArray
    values: list[FloatArray]
    prints: list[ByteArray]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: Any) -> _Persons:
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_ and rows.all():
            return self
        values, prints = [v[rows] for v in self.values], [v[rows] for v in self.prints]
        return _Persons(self.keys[rows], self.signatures[rows], self.places[rows], values, prints)


def _joined(parts: Sequence[_Persons]) -> _Persons:
    return _Persons(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.signatures for part in parts]),
        np.concatenate([part.places for part in parts]),
        [np.concatenate(each) for each in zip(*(part.values for part in parts), strict=True)],
        [np.concatenate(each) for each in zip(*(part.prints for part in parts), strict=True)],
    )


class _Update:
    def __init__(
        self,
        cohort: Cohort,
        secret: bytes,
        rules: Mapping[str, str],
        names: Mapping[str, str],
        cohorts: Sequence[Cohort],
        others: Sequence[Cohort],
    ) -> None:
        self.cohort, self.secret, self.rules = cohort, secret, rules
        self.others = [other for other in cohorts if other is not cohort]
        self.withdrawn = np.concatenate(
            [cohort.keys[:0], *(each.keys[each.withdrawn] for each in others)]
        )
        self.sample: Sequence[SourceColumn] | None = None
        self.n_persons = 0
        self.new_names, self.aliases = dict(names), {**cohort.aliases, **names}
        n, m = len(cohort.keys), len(cohort.sizes)
        self.seen, self.persons, self.sizes = np.zeros(n, bool), np.zeros(m, np.int64), cohort.sizes
        self.own_names: set[str] = set()
        self.columns: list[TableColumn] = []
        self.pinned: list[PinnedColumn | None] = []
        self.sums: list[GroupSums] = []
        self.changed: list[IntArray] = []
        self.current: list[ByteArray] = []
        self.waiting: list[_Persons] = []
        self.left_over: list[_Persons] = []
        self.formed: list[tuple[_Persons, IntArray]] = []
        self.signed: list[WordArray] = []
        self.cells = np.zeros(2, np.int64)
        #: Up to three different values of the known persons in each column.
        self.distinct: list[FloatArray] = []

    # --- a block ----------------------------------------------------------------------------------

    def add(self, ids: Sequence[str] | None, sources: Sequence[SourceColumn]) -> None:
        given = {source.name: source for source in sources}
        if not self.waiting:
            self.begin(given, has_ids=ids is not None)
        block = self.read(ids, given)
        known = block.places >= 0
        self.notice(block.keys, block.places[known])
        places = block.places[known]
        kept, used = ~self.cohort.withdrawn[places], self.cohort.used[self.cohort.groups[places]]
        self.add_known(block[known][kept & used])
        self.left_over.append(block[known][kept & ~used])
        newcomers = block[~known & ~np.isin(block.keys, self.withdrawn)]
        waiting = sum(len(each) for each in self.waiting)
        if waiting >= _BLOCK and len(newcomers) >= self.least(len(newcomers)):
            self.form_groups()
        self.waiting.append(newcomers)

    def begin(self, given: Mapping[str, SourceColumn], *, has_ids: bool) -> None:
        """Decide how each column is released: as pinned, or as its values say."""
        if not self.cohort.base:
            self.cohort = replace(self.cohort, base=tuple(given), has_ids=has_ids)
        cohort, pinned = self.cohort, self.cohort.rules()
        for name in given:
            if name in pinned and self.rules[name] != pinned[name]:
                raise CohortRefused(
                    "other-rule",
                    f"column {name!r} was released as read by another rule: as numbers, yes/no or "
                    "codes, with other codes or missing markers. Read it as before, or give the "
                    "column another name",
                )
        self.own_names = set(given)
        present = self.under_pinned_names(given)
        for each in cohort.columns:
            if all(name in present for name in source_names(each.column)):
                self.columns.append(each.column)
                self.pinned.append(each)
        shown = present
        if self.sample is not None:
            shown = self.under_pinned_names({each.name: each for each in self.sample})
        new = [source for name, source in shown.items() if name not in pinned]
        described = describe_columns(new, cohort.p, fences=cohort.fences)
        self.columns += described
        self.pinned += [None] * len(described)
        for column in self.columns:
            self.sums.append(GroupSums(column))
            self.changed.append(np.zeros(len(cohort.sizes), np.int64))
            self.distinct.append(np.zeros(0))
            self.current.append(np.zeros((len(cohort.keys), len(source_names(column))), np.uint8))

    def under_pinned_names(self, given: Mapping[str, SourceColumn]) -> dict[str, SourceColumn]:
        found = {name: source for name, source in given.items() if name not in self.aliases}
        for name, source in given.items():
            if name in self.aliases and self.aliases[name] not in found:
                found[self.aliases[name]] = replace(source, name=self.aliases[name])
        return found

    def read(self, ids: Sequence[str] | None, given: Mapping[str, SourceColumn]) -> _Persons:
        sources = self.under_pinned_names(given)
        signed = sign(self.cohort, list(sources.values()), self.secret)
        if ids is None:
            ids = numbered_rows(signed, np.concatenate([signed[:0], *self.signed]))
            self.signed.append(signed)
        keys, masks = person_keys(self.secret, ids)
        values = encode_sources(self.columns, list(sources.values()))
        prints = []
        for column, encoded in zip(self.columns, values, strict=True):
            each = [
                # A change beyond a fence is none, nor is one below the step of the means.
                snap_to_grid(column, encoded)
                if isinstance(column, NumericColumn)
                else sources[name].values
                for name in source_names(column)
            ]
            seeds = [column_seed(self.secret, name) for name in source_names(column)]
            made = [fingerprints(v, masks, seed) for v, seed in zip(each, seeds, strict=True)]
            prints.append(np.column_stack(made))
        return _Persons(keys, signed, self.cohort.find(keys), values, prints)

    def notice(self, keys: NDArray[Any], places: IntArray) -> None:
        """Note who is there; refuse persons who are there twice or in another cohort."""
        if self.seen[places].any() or np.bincount(places).max(initial=0) > 1:
            raise _repeated_ids()
        self.seen[places] = True
        for other in self.others:
            if (other.find(keys) >= 0).any():
                raise two_cohorts(self.cohort, other)

    def add_known(self, block: _Persons) -> None:
        """Count what changed, and add up what groups would release."""
        groups = self.cohort.groups[block.places].astype(np.int64)
        m = len(self.cohort.sizes)
        self.persons += np.bincount(groups, minlength=m)
        for place, pinned in enumerate(self.pinned):
            now = block.prints[place]
            self.sums[place].add(block.values[place], groups, len(self.sizes))
            self.current[place][block.places] = now
            self.distinct[place] = collect_distinct(self.distinct[place], block.values[place])
            if pinned is not None:
                fresh = _fresh(pinned.prints[block.places], now)
                self.changed[place] += np.bincount(groups[fresh], minlength=m)
                told = _releases(pinned.released)[groups]
                self.cells += np.array([told.sum(), (fresh & told).sum()])

    # --- groups of newcomers ----------------------------------------------------------------------

    def least(self, n: int) -> int:
        """Return how many newcomers have to be there before they are grouped."""
        later = bool(len(self.cohort.keys) or self.formed)
        n = max(n, self.n_persons)
        return least_group_size(n, self.cohort.p, has_levels=later and has_levels(self.columns))

    def form_groups(self) -> None:
        """Form groups of the persons who wait, if there are enough."""
        persons = _joined(self.waiting)
        self.waiting = [persons]
        if len(np.unique(persons.keys)) < len(persons):
            raise _repeated_ids()
        if not self.columns or len(persons) < self.least(len(persons)):
            return
        for column, pinned, values in zip(self.columns, self.pinned, persons.values, strict=True):
            if pinned is not None and isinstance(column, NumericColumn):
                _drop_two_values(column, values)
        n = max(len(self.cohort.keys) + len(persons), self.n_persons)
        groups = group_persons(self.columns, persons.values, self.cohort.p, n)
        persons, groups = self.with_left_over(persons, groups)
        self.sizes = np.concatenate([self.sizes, np.bincount(groups)])
        groups = groups + len(self.sizes) - (int(groups.max()) + 1)
        for sums, values in zip(self.sums, persons.values, strict=True):
            sums.add(values, groups, len(self.sizes))
        self.formed.append((persons, groups))
        self.waiting = [persons[:0]]

    def with_left_over(self, persons: _Persons, groups: IntArray) -> tuple[_Persons, IntArray]:
        """Put persons left over by withdrawals into the nearest group, if no value is missing."""
        left = _joined(self.left_over)
        self.left_over = [left[:0]]
        left = left[~np.isnan(np.column_stack(left.values)).any(axis=1)]
        if not len(left):
            return persons, groups
        both = _joined([persons, left])
        points = embed_persons(self.columns, both.values)
        sizes = np.bincount(groups)
        centres = [np.bincount(groups, weights=each) / sizes for each in points[: len(groups)].T]
        nearest = cKDTree(np.column_stack(centres)).query(points[len(groups) :])[1]
        return both, np.concatenate([groups, nearest.astype(np.int64)])

    # --- the end ----------------------------------------------------------------------------------

    def finish(self) -> tuple[Cohort, Change]:
        if not self.waiting:
            raise TooFewPersons("the source has no persons")
        self.form_groups()
        self.refuse_other_persons()
        if not len(self.sizes):
            n, p = len(self.waiting[0]), self.cohort.p
            raise TooFewPersons(f"{n} persons: a group has at least {p}")
        return self.merged()

    def refuse_other_persons(self) -> None:
        cohort = self.cohort
        newcomers = np.concatenate(
            [persons.signatures[persons.places < 0] for persons, _ in self.formed]
            + [persons.signatures for persons in self.waiting]
        )
        gone = ~self.seen & ~cohort.withdrawn
        if len(cohort.keys) and not cohort.has_ids and (gone.any() or len(newcomers)):
            raise other_file()
        if self.cells[1] * 2 > self.cells[0]:
            raise CohortRefused(
                "other-values",
                "most values of known persons have changed. If the ids belong to other persons, "
                "or to another site on this account, set FEDCLUST_STATE_DIR to a directory for "
                "these alone. If these are later measurements, give their columns new names",
            )
        refuse_known_values(newcomers, cohort, gone)

    def merged(self) -> tuple[Cohort, Change]:
        """Return the cohort with all that this pass releases."""
        cohort, m = self.cohort, len(self.sizes)
        formed = _joined([persons for persons, _ in self.formed] or [self.waiting[0][:0]])
        labels = np.concatenate([cohort.groups[:0], *(groups for _, groups in self.formed)])
        moved = formed.places >= 0
        new = formed[~moved]
        groups = cohort.groups.copy()
        groups[formed.places[moved]] = labels[moved]
        for current, prints in zip(self.current, formed.prints, strict=True):
            current[formed.places[moved]] = prints[moved]
        used = _padded(cohort.used, m, fill=True)
        columns, corrected, same = [], 0, not len(new)
        for pinned in cohort.columns:
            place = next((i for i, each in enumerate(self.pinned) if each is pinned), None)
            if place is None:
                n = len(cohort.keys) + len(new)
                columns.append(_blank(pinned, m, _padded(pinned.prints, n)))
                continue
            column, anew, untouched = self.released(place, pinned, used, groups, new)
            columns.append(column)
            corrected, same = corrected + anew, same and untouched
        n_new = 0
        for place, each in enumerate(self.pinned):
            if each is None:
                n_new += len(source_names(self.columns[place]))
                pinned = self.described(place)
                columns.append(self.released(place, pinned, used, groups, new)[0])
        change = Change(
            persons=len(new),
            groups=m - len(cohort.sizes),
            columns=n_new,
            corrected=corrected,
            waiting=len(self.waiting[0]),
            absent=int((~self.seen & ~cohort.withdrawn).sum()),
            renamed=self.new_names,
        )
        if same and not n_new and not self.new_names:
            return cohort, change
        keys = np.concatenate([cohort.keys, new.keys])
        order = np.argsort(keys, kind="stable")
        after = replace(
            cohort,
            keys=keys[order],
            groups=np.concatenate([groups, labels[~moved]]).astype(np.int32)[order],
            withdrawn=_padded(cohort.withdrawn, len(keys))[order],
            signatures=np.concatenate([cohort.signatures, new.signatures])[order],
            sizes=self.sizes,
            used=used,
            columns=tuple(replace(each, prints=each.prints[order]) for each in columns),
            aliases=self.aliases,
        )
        return after, change

    def released(
        self,
        place: int,
        pinned: PinnedColumn,
        used: BoolArray,
        groups: NDArray[np.int32],
        new: _Persons,
    ) -> tuple[PinnedColumn, int, bool]:
        """Return a column after this pass, its releases anew, and whether all is as it was.

        ``groups`` are those of the persons who were known.
        """
        m, sums = len(self.sizes), self.sums[place]
        sums.add(np.zeros(0), np.zeros(0, np.int64), m)
        told = sums.release(self.sizes, self.cohort.p)
        old = _blank(pinned, m, pinned.prints)
        # An absent person may have a value: a later file decides.
        whole = _padded(self.persons == self.cohort.sizes, m, fill=True)
        first = used & ~old.decided & whole
        anew = used & old.decided & _releases(old.released) & _releases(told)
        anew &= _padded(self.changed[place], m) >= self.cohort.p
        # A column under another name may have been taken for this one by mistake.
        anew &= self.own_names >= set(source_names(pinned.column))
        # Means of two values on a finer step are counts: known groups do not release them.
        known = np.arange(m) < len(self.cohort.sizes)
        now = (first | anew) & ~(known & _are_counts(old.column, self.distinct[place]))
        first &= now
        released = old.released.copy()
        released[now] = told[now]
        prints, current = pinned.prints, self.current[place]
        fresh = (now & _releases(told))[groups] & _fresh(prints, current)
        if fresh.any():
            version = np.where(fresh[:, None], current, prints[:, :, -1])
            prints = np.concatenate([prints, version[:, :, None]], axis=2)
        joining = np.repeat(new.prints[place][:, :, None], prints.shape[2], axis=2)
        after = replace(
            old,
            released=released,
            decided=old.decided | first,
            prints=np.concatenate([prints, joining]),
        )
        return after, int(anew.sum()), not now.any()

    def described(self, place: int) -> PinnedColumn:
        """Return a new column that no group has released yet."""
        column, sums = self.columns[place], self.sums[place]
        rules = tuple(self.rules[name] for name in source_names(column))
        blank = GroupSums(column).sums
        prints = self.current[place][:, :, None]
        return PinnedColumn(column, rules, sums.share(), blank, np.zeros(0, bool), prints)


def _blank(pinned: PinnedColumn, m: int, prints: ByteArray) -> PinnedColumn:
    """Return a column with further groups, up to ``m``, that have not released it."""
    fill = np.nan if pinned.released.ndim == 1 else 0.0
    released, decided = _padded(pinned.released, m, fill=fill), _padded(pinned.decided, m)
    return replace(pinned, released=released, decided=decided, prints=prints)


def _padded(array: NDArray[Any], length: int, *, fill: float = 0) -> NDArray[Any]:
    blank = np.full((length - len(array), *array.shape[1:]), fill, dtype=array.dtype)
    return np.concatenate([array, blank])


def _fresh(prints: ByteArray, now: ByteArray) -> BoolArray:
    """Return whose value (n,) is in no earlier release: (n, k, versions) against (n, k)."""
    return np.asarray((prints != now[:, :, None]).all(axis=2).any(axis=1))


def _releases(released: FloatArray) -> BoolArray:
    """Return which groups (m,) release a column."""
    return np.asarray(~np.isnan(released) if released.ndim == 1 else released.sum(axis=1) > 0.0)


def _drop_two_values(column: NumericColumn, values: FloatArray) -> None:
    """Drop newcomers' values, in place, if there are two: a mean on a finer step is a count."""
    if _are_counts(column, collect_distinct(np.zeros(0), values)):
        values[:] = np.nan


def _are_counts(column: TableColumn, distinct: FloatArray) -> bool:
    """Return whether means of these different values tell how many persons have each."""
    if not isinstance(column, NumericColumn) or len(distinct) != 2:
        return False
    return bool(column.step < distinct[1] - distinct[0])


def two_cohorts(first: Cohort, second: Cohort) -> CohortRefused:
    """Return the refusal of a source with persons of two tables."""
    return CohortRefused(
        "two-cohorts",
        f"this source has persons of the tables {first.table_id} and {second.table_id}. Give the "
        "persons of each in a file of their own. If one was formed with --separate-groups, name "
        "the table (--cohort, cohort=)",
    )


def _repeated_ids() -> CohortRefused:
    return CohortRefused(
        "ids-repeat",
        "an id is there twice. If a person has several rows, name the column that says so "
        "(person=, --person-column); otherwise remove the repeated rows",
    )
