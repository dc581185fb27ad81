"""The guard against brute force: every rule is looked at again, set by set, from scratch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedclust.privacy.counting import PersonIndex
from fedclust.privacy.guard import Guard
from fedclust.wire.codec import decode, encode


@dataclass
class Oracle:
    """Every set of rows sent so far, in the plainest form."""

    X: np.ndarray
    persons: np.ndarray | None
    p: int
    views: Sequence[np.ndarray]
    sent: list[list[frozenset[int]]] = field(default_factory=list)

    def count(self, rows: frozenset[int]) -> int:
        if self.persons is not None:
            return len({int(self.persons[i]) for i in rows})
        return min(len({tuple(self.X[i]) for i in rows}), 1) if self._one(rows) else len(rows)

    def _one(self, rows: frozenset[int]) -> bool:
        return len({tuple(self.X[i]) for i in rows}) <= 1

    def allows(self, rows: frozenset[int]) -> bool:
        everything = frozenset(range(len(self.X)))
        sets = [everything, *(frozenset(np.flatnonzero(view).tolist()) for view in self.views)]
        return all(not rows & view or self.count(rows & view) >= self.p for view in sets)

    def judge(self, labels: np.ndarray, n_cells: int, *, differences: bool = True) -> None:
        assert labels.dtype == np.int64
        assert ((labels >= -1) & (labels < n_cells)).all()
        partition = [frozenset(np.flatnonzero(labels == c).tolist()) for c in range(-1, n_cells)]
        if not any(partition[1:]):
            return  # nothing is sent
        assert all(self.allows(rows) for rows in partition)
        if differences:
            total = [frozenset(range(len(labels)))]
            for earlier in [total, *self.sent]:
                for now, then in itertools.product(_unions(partition), _unions(earlier)):
                    assert self.allows(now ^ then)
        self.sent.append(partition)


def _unions(partition: list[frozenset[int]]) -> list[frozenset[int]]:
    """Return all unions of up to four sets, else the sets themselves."""
    filled = [rows for rows in partition if rows]
    sizes = range(1, len(filled) + 1) if len(filled) <= 4 else [1]
    return [
        frozenset().union(*chosen)
        for size in sizes
        for chosen in itertools.combinations(filled, size)
    ]


@dataclass
class Session:
    """A site's rows, and the partitions that are wanted one after another."""

    X: np.ndarray
    persons: np.ndarray | None
    p: int
    views: list[np.ndarray]
    wanted: list[tuple[str, int, np.ndarray]]

    @property
    def index(self) -> PersonIndex:
        return PersonIndex(self.X, self.persons)

    def guard(self, memory: dict[str, object] | None = None) -> Guard:
        return Guard(self.index, self.p, views=self.views, memory=memory)


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    n = draw(st.integers(1, 26))
    p = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X = rng.normal(size=(n, 2))
    if draw(st.booleans()):
        X = rng.integers(0, 2, (n, 2)).astype(float)
    persons = rng.integers(0, max(n // 2, 1), n) if draw(st.booleans()) else None
    index = PersonIndex(X, persons)
    views = []
    for _ in range(draw(st.integers(0, 2))):
        view = rng.random(n) < 0.7
        if index.allows(view, p):
            views.append(view)
    wanted = []
    cells = {name: draw(st.integers(1, 4)) for name in ("cells", "0", "1")}
    labels = {name: rng.integers(-1, k, n) for name, k in cells.items()}
    for _ in range(draw(st.integers(1, 6))):
        name = draw(st.sampled_from(["0", "0", "1", "cells"]))
        movers = rng.random(n) < draw(st.sampled_from([0.0, 0.1, 0.3, 1.0]))
        labels[name] = np.where(movers, rng.integers(-1, cells[name], n), labels[name])
        wanted.append((name, cells[name], labels[name].astype(np.int64)))
    return Session(X, persons, p, views, wanted)


@settings(max_examples=250, deadline=None)
@given(session=sessions())
def test_every_rule_holds_for_whatever_is_wanted(session: Session) -> None:
    oracle = Oracle(session.X, session.persons, session.p, session.views)
    guard = session.guard()
    for name, n_cells, labels in session.wanted:
        before = labels.copy()
        released = guard.release(labels, n_cells, name)
        oracle.judge(released, n_cells)
        assert np.array_equal(labels, before)
        # Sending it once more changes nothing, for the same candidate or another one.
        assert np.array_equal(guard.release(released, n_cells, name), released)
        assert np.array_equal(guard.release(released, n_cells, "another"), released)


@settings(max_examples=60, deadline=None)
@given(session=sessions())
def test_a_guard_woken_from_its_journal_decides_alike(session: Session) -> None:
    staying, memory = session.guard(), None
    for name, n_cells, labels in session.wanted:
        woken = session.guard(memory)
        assert np.array_equal(
            woken.release(labels, n_cells, name), staying.release(labels, n_cells, name)
        )
        memory = decode(encode(woken.memory()))
        assert encode(memory) == encode(staying.memory())


@settings(max_examples=60, deadline=None)
@given(session=sessions())
def test_with_differencing_off_sizes_and_complement_still_hold(session: Session) -> None:
    oracle = Oracle(session.X, session.persons, session.p, session.views)
    guard = Guard(session.index, session.p, views=session.views, differencing=False)
    for name, n_cells, labels in session.wanted:
        released = guard.release(labels, n_cells, name)
        oracle.judge(released, n_cells, differences=False)
        kept = released >= 0
        assert np.array_equal(released[kept], labels[kept])


@settings(max_examples=40, deadline=None)
@given(session=sessions())
@example(Session(np.zeros((0, 2)), None, 3, [], [("0", 2, np.zeros(0, dtype=np.int64))]))
def test_with_one_person_enough_everything_goes(session: Session) -> None:
    guard = Guard(session.index, 1, views=session.views)
    for name, n_cells, labels in session.wanted:
        assert np.array_equal(guard.release(labels, n_cells, name), labels)


def site(n: int, **options: object) -> Guard:
    return Guard(PersonIndex(np.arange(float(n))[:, None]), 3, **options)  # type: ignore[arg-type]


def test_a_single_move_is_undone_and_nothing_else() -> None:
    guard = site(20)
    first = np.repeat([0, 1], 10)
    assert np.array_equal(guard.release(first, 2), first)
    second = first.copy()
    second[4] = 1
    assert np.array_equal(guard.release(second, 2), first)
    second[[5, 6]] = 1
    assert np.array_equal(guard.release(second, 2), second)


def test_moves_between_other_cells_stay() -> None:
    guard = site(40)
    first = np.repeat([0, 1, 2, 3], 10)
    guard.release(first, 4)
    wanted = first.copy()
    wanted[0] = 1
    wanted[[20, 21, 22]] = 3
    expected = first.copy()
    expected[[20, 21, 22]] = 3
    assert np.array_equal(guard.release(wanted, 4), expected)


def test_a_row_hidden_among_larger_moves_is_found() -> None:
    """Every cell differs by three rows or more; cells 0 and 1 together differ by row 3 alone."""
    guard = site(40)
    first = np.repeat([0, 1, 2, 3], 10)
    guard.release(first, 4)
    wanted = first.copy()
    wanted[[0, 1, 2]] = 1
    wanted[3] = 2
    wanted[[20, 21, 22]] = 3
    for cell in range(4):
        assert ((wanted == cell) != (first == cell)).sum() >= 3
    together = np.isin(wanted, [0, 1]) != np.isin(first, [0, 1])
    assert np.flatnonzero(together).tolist() == [3]
    released = guard.release(wanted, 4)
    together = np.isin(released, [0, 1]) != np.isin(first, [0, 1])
    assert together.sum() in (0, *range(3, 40))
    assert released[3] == 0


def test_a_swap_of_two_rows_is_a_difference_of_two() -> None:
    guard = site(20)
    first = np.repeat([0, 1], 10)
    guard.release(first, 2)
    wanted = first.copy()
    wanted[0], wanted[15] = 1, 0
    assert np.array_equal(guard.release(wanted, 2), first)


def test_a_return_to_an_older_partition_is_seen() -> None:
    """Differences to every earlier round count, not only to the last one."""
    guard = site(30)
    first = np.repeat([0, 1], 15)
    second = first.copy()
    second[:5] = 1
    third = first.copy()
    third[0] = 1
    for labels in (first, second):
        assert np.array_equal(guard.release(labels, 2), labels)
    assert np.array_equal(guard.release(third, 2), second)


def test_small_cells_are_withheld_and_so_is_what_would_betray_them() -> None:
    guard = site(30)
    labels = np.repeat([0, 1, 2, 3], [2, 16, 8, 4])
    released = guard.release(labels, 4)
    # Two rows alone in the rest: the next-smallest cell joins them.
    assert np.array_equal(released, np.where(np.isin(labels, [0, 3]), -1, labels))


def test_rows_wanted_in_no_cell_are_no_way_round() -> None:
    guard = site(20)
    labels = np.repeat([0, 1, -1], [10, 9, 1])
    assert (guard.release(labels, 2) == np.repeat([0, -1], 10)).all()


def test_a_site_that_is_too_small_sends_nothing_and_remembers_nothing() -> None:
    guard = site(2)
    assert (guard.release(np.zeros(2, dtype=np.int64), 1) == -1).all()
    assert guard.memory()["partitions"] == ()


def test_identical_rows_are_one_person() -> None:
    X = np.concatenate([np.zeros((9, 2)), np.arange(22.0).reshape(11, 2)])
    labels = np.repeat([0, 1], [9, 11])
    assert (Guard(PersonIndex(X), 3).release(labels, 2) == -1).all()
    proven = Guard(PersonIndex(X, np.arange(20)), 3)
    assert np.array_equal(proven.release(labels, 2), labels)


def test_rows_of_one_person_are_one_person() -> None:
    persons = np.repeat(np.arange(10), 3)
    guard = Guard(PersonIndex(np.arange(30.0)[:, None], persons), 3)
    first = np.repeat([0, 1], 15)
    guard.release(first, 2)
    wanted = first.copy()
    wanted[:6] = 1  # six rows, two persons
    assert np.array_equal(guard.release(wanted, 2), first)
    wanted[6] = 1
    assert np.array_equal(guard.release(wanted, 2), wanted)


def test_a_feature_seen_in_few_rows_of_a_cell_withholds_it() -> None:
    view = np.ones(20, dtype=bool)
    view[2:10] = False
    guard = site(20, views=(view,))
    labels = np.repeat([0, 1], 10)
    # Cell 0 has ten rows, but the feature was observed in two of them.
    assert (guard.release(labels, 2) == -1).all()
    assert np.array_equal(site(20).release(labels, 2), labels)


def test_a_feature_that_is_too_rare_to_send_is_refused() -> None:
    view = np.zeros(20, dtype=bool)
    view[:2] = True
    with pytest.raises(ValueError, match="fewer than 3 persons"):
        site(20, views=(view,))
    view[:] = False
    labels = np.repeat([0, 1], 10)
    assert np.array_equal(site(20, views=(view,)).release(labels, 2), labels)


def test_a_first_partition_near_an_earlier_one_keeps_its_cells() -> None:
    """Another candidate, cells numbered differently, one row away: that row is given up."""
    guard = site(30)
    first = np.repeat([0, 1, 2], 10)
    guard.release(first, 3, "cells")
    renumbered = np.repeat([2, 0, 1], 10)
    wanted = renumbered.copy()
    wanted[0] = 0
    assert np.array_equal(guard.release(wanted, 3, "0"), renumbered)


def test_a_stand_in_is_the_most_similar_partition_not_the_latest() -> None:
    guard = site(30)
    thirds, halves = np.repeat([0, 1, 2], 10), np.repeat([0, 1], 15)
    for name, n_cells, labels in (("a", 3, thirds), ("b", 2, halves)):
        assert np.array_equal(guard.release(labels, n_cells, name), labels)
    wanted = thirds.copy()
    wanted[0] = 1
    assert np.array_equal(guard.release(wanted, 3, "c"), thirds)
    # Row 10 would stand alone between this cell 0 and that of the thirds.
    wanted = np.repeat([0, 1], [11, 19])
    assert np.array_equal(guard.release(wanted, 2, "d"), halves)


def test_an_earlier_partition_of_more_cells_stands_in_with_those_that_fit() -> None:
    guard = site(30)
    guard.release(np.repeat([0, 1, 2], 10), 3, "cells")
    wanted = np.repeat([0, 1], [11, 19])
    released = guard.release(wanted, 2, "0")
    assert np.array_equal(np.flatnonzero(released == 0), np.arange(10))
    assert set(released[10:].tolist()) <= {-1, 1}


def test_of_withholding_and_sending_again_the_one_that_serves_more_rows_is_taken() -> None:
    first = np.repeat([0, 1, 2], 10)
    # Two rows stay in cell 0. Withholding them would cost the next-smallest cell as well.
    shrunk = first.copy()
    shrunk[2:10] = 1
    guard = site(30)
    guard.release(first, 3)
    assert np.array_equal(guard.release(shrunk, 3), first)
    # The same two rows, but nearly all others have moved and two more go unsent.
    moved = np.repeat([0, 1, 2, 1, -1], [2, 8, 10, 8, 2])
    guard = site(30)
    guard.release(first, 3)
    assert np.array_equal(guard.release(moved, 3), np.where(moved == 0, -1, moved))


def test_memory_stays_small_while_little_changes() -> None:
    rng = np.random.default_rng(0)
    n = 20_000
    guard = Guard(PersonIndex(rng.normal(size=(n, 1))), 5)
    labels = rng.integers(0, 8, n)
    for _ in range(10):
        labels = labels.copy()
        labels[rng.choice(n, 200, replace=False)] = rng.integers(0, 8)
        guard.release(labels, 8)
        guard.release(labels, 8)
    assert len(guard.memory()["partitions"]) == 10
    assert len(encode(guard.memory())) < 2 * n


def test_memory_of_other_rows_is_refused() -> None:
    guard = site(12)
    guard.release(np.repeat([0, 1], 6), 2)
    memory = guard.memory()
    with pytest.raises(ValueError, match="other rows"):
        site(13, memory=memory)
    with pytest.raises(ValueError, match="other rows"):
        site(13, memory={**memory, "rows": 13})
    with pytest.raises(ValueError, match="other rows"):
        site(12, memory={**memory, "format": 0})


@pytest.mark.parametrize(
    ("labels", "n_cells", "message"),
    [
        (np.zeros(4, dtype=np.int64), 1, "for each row"),
        (np.full(5, 2), 2, "0 to n_cells - 1"),
        (np.full(5, -2), 2, "0 to n_cells - 1"),
        (np.zeros(5, dtype=np.int64), 40_000, "at most"),
    ],
)
def test_partitions_that_are_none_are_refused(
    labels: np.ndarray, n_cells: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        site(5).release(labels, n_cells)


def test_no_cells_at_all() -> None:
    assert (site(5).release(np.full(5, -1), 0) == -1).all()


def test_many_cells_need_no_table_of_all_pairs() -> None:
    """A dense table would take 3 GB here."""
    n, cells = 60_000, 10_000
    rng = np.random.default_rng(0)
    guard = Guard(PersonIndex(rng.normal(size=(n, 1))), 3)
    labels = np.arange(n) % cells
    assert np.array_equal(guard.release(labels, cells), labels)
    moved = labels.copy()
    moved[0] = 1
    assert np.array_equal(guard.release(moved, cells), labels)
