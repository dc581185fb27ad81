"""Which shares are rounded, against brute force and against the attacker of all methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedclust.privacy import shares as module
from fedclust.privacy.counting import PersonIndex
from fedclust.privacy.guard import Guard
from fedclust.privacy.shares import Shares, small_difference
from fedclust.wire.codec import decode, encode
from support.attacker import levels_given_back, shares_given_back


def yes_no(
    rows: np.ndarray,
    p: int,
    *,
    persons: np.ndarray | None = None,
    observed: np.ndarray | None = None,
    blocks: Sequence[np.ndarray] = (),
) -> Shares:
    """Return the features (n, b) beside a number that tells all rows apart."""
    n, b = rows.shape
    X = np.column_stack([rows, np.arange(float(n))])
    seen = None if observed is None else np.column_stack([observed, np.ones(n, dtype=bool)])
    return Shares(
        X,
        PersonIndex(X, persons),
        p,
        columns=np.arange(b + 1) < b,
        center=np.zeros(b + 1),
        scale=np.ones(b + 1),
        observed=seen,
        blocks=blocks,
    )


@dataclass
class Session:
    """Rows (n, b) of yes/no features, and what is wanted one after another."""

    rows: np.ndarray
    p: int
    wanted: list[tuple[str, int, np.ndarray]]
    blocks: list[np.ndarray] = field(default_factory=list)

    def send(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the partitions sent and the shares that are rounded in each."""
        index = PersonIndex(np.arange(float(len(self.rows)))[:, None])
        columns = yes_no(self.rows, self.p, blocks=self.blocks)
        guard = Guard(index, self.p)
        sent = []
        for name, n_cells, labels in self.wanted:
            labels = guard.release(labels, n_cells, name)
            sent.append((labels, guard.round_shares(columns, labels, n_cells)))
        return sent


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    n = draw(st.integers(10, 80))
    p = draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = rng.random((n, 3)) < rng.choice([0.1, 0.3, 0.5, 0.9], 3)
    wanted = []
    cells = {name: draw(st.integers(2, 6)) for name in ("cells", "0", "1")}
    labels = {name: rng.integers(-1, k, n) for name, k in cells.items()}
    for _ in range(draw(st.integers(2, 6))):
        name = draw(st.sampled_from(["0", "0", "1", "cells"]))
        movers = rng.random(n) < draw(st.sampled_from([0.1, 0.3, 1.0]))
        labels[name] = np.where(movers, rng.integers(-1, cells[name], n), labels[name])
        if draw(st.booleans()):
            labels[name] = np.where(labels[name] == 0, 1, labels[name])
        wanted.append((name, cells[name], labels[name]))
    return Session(rows.astype(float), p, wanted)


@settings(max_examples=150, deadline=None)
@given(session=sessions())
def test_no_difference_of_two_partitions_gives_a_share_back(session: Session) -> None:
    sent = session.send()
    assert shares_given_back(sent, session.rows > 0.5, p=session.p) == []


def nested(p: int = 5) -> Session:
    """Two cells become one, and another cell joins: the smaller of the two has two positives."""
    first = np.repeat([0, 1, 2, 3], [20, 20, 12, 40])
    second = np.where(first == 2, 1, first)
    values = np.zeros(92)
    values[:8] = values[20:28] = values[40:42] = values[52:72] = 1.0
    return Session(values[:, None], p, [("a", 4, first), ("b", 4, second)])


def test_a_cell_that_holds_a_rounded_one_is_rounded_too() -> None:
    session = nested()
    (_, before), (_, after) = session.send()
    # Cell 2 has two positives; cell 0, the smallest exact one, hides what the total leaves.
    assert before[:, 0].tolist() == [True, False, True, False]
    assert after[1, 0]
    assert shares_given_back(session.send(), session.rows > 0.5, p=5) == []


def test_the_attacker_finds_what_is_looked_at_in_single_partitions_only() -> None:
    session = nested()
    with mock.patch.object(Shares, "_across"):
        assert shares_given_back(session.send(), session.rows > 0.5, p=5)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    p=st.integers(2, 6),
    density=st.sampled_from([0.2, 0.5, 1.0]),
)
def test_small_differences_are_those_of_some_unions(
    seed: int, size: tuple[int, int], p: int, density: float
) -> None:
    rng = np.random.default_rng(seed)
    shared = rng.random(size) < density
    weights = np.where(shared, rng.integers(0, p + 2, size), 0).astype(float)
    smallest = np.inf
    for i in range(1 << size[0]):
        first = (i >> np.arange(size[0])) & 1 == 1
        for j in range(1 << size[1]):
            second = (j >> np.arange(size[1])) & 1 == 1
            if not shared[np.ix_(~first, second)].any():
                apart = weights[np.ix_(first, ~second)].sum()
                smallest = min(smallest, apart if apart else np.inf)
    found = small_difference(weights, shared, p)
    assert (found is not None) == (smallest < p)
    if found is not None:
        first, second = found
        assert not shared[np.ix_(~first, second)].any()
        assert 0 < weights[np.ix_(first, ~second)].sum() < p


def test_a_partition_sent_again_has_the_same_shares_rounded() -> None:
    session = nested()
    (labels, before), _ = session.send()
    session.wanted += [("c", 6, np.array([4, 5, 0, 2])[labels]), ("a", 4, labels)]
    *_, renumbered, again = session.send()
    assert np.array_equal(again[1], before)
    assert np.array_equal(renumbered[1][[4, 5, 0, 2]], before)
    assert not renumbered[1][[1, 3]].any()


@settings(max_examples=40, deadline=None)
@given(session=sessions())
def test_a_guard_woken_from_its_journal_rounds_alike(session: Session) -> None:
    index = PersonIndex(np.arange(float(len(session.rows)))[:, None])
    memory = None
    woken = []
    for name, n_cells, labels in session.wanted:
        guard = Guard(index, session.p, memory=memory)
        labels = guard.release(labels, n_cells, name)
        woken.append(guard.round_shares(yes_no(session.rows, session.p), labels, n_cells))
        memory = decode(encode(guard.memory()))
    for here, (_, staying) in zip(woken, session.send(), strict=True):
        assert np.array_equal(here, staying)


def test_with_differencing_off_earlier_partitions_do_not_count() -> None:
    session = nested()
    index = PersonIndex(np.arange(92.0)[:, None])
    guard = Guard(index, 5, differencing=False)
    columns = yes_no(session.rows, 5)
    rounded = []
    for name, n_cells, labels in session.wanted:
        labels = guard.release(labels, n_cells, name)
        rounded.append(guard.round_shares(columns, labels, n_cells)[:, 0].tolist())
    assert rounded == [[True, False, True, False], [False] * 4]


def test_a_difference_counts_persons_not_rows() -> None:
    """Ten rows of two persons move between cells, each with the property."""
    first = np.repeat([0, 1, 2], [40, 40, 40])
    second = first.copy()
    second[30:40] = -1
    values = np.tile([1.0, 0.0], 60)
    values[30:40] = 1.0
    before = [(first.astype(np.int16), np.zeros((3, 1), dtype=bool))]
    persons = np.arange(120)
    assert not yes_no(values[:, None], 5, persons=persons).to_round(second, 3, before).any()
    persons[30:40] = np.repeat([30, 35], 5)
    assert yes_no(values[:, None], 5, persons=persons).to_round(second, 3, before)[0, 0]


def test_imputed_values_count_for_neither_side_of_a_difference() -> None:
    first = np.repeat([0, 1, 2], [40, 40, 40])
    second = first.copy()
    second[20:40] = -1
    values = np.tile([1.0, 0.0], 60)[:, None]
    before = [(first.astype(np.int16), np.zeros((3, 1), dtype=bool))]
    observed = np.ones((120, 1), dtype=bool)
    assert not yes_no(values, 5, observed=observed).to_round(second, 3, before).any()
    observed[20:34] = False
    assert yes_no(values, 5, observed=observed).to_round(second, 3, before)[0, 0]


def test_no_share_is_exact_where_that_of_all_rows_is_not() -> None:
    """The totals round it: four positives in sixty rows, and cells without any."""
    values = np.zeros((60, 1))
    values[:4] = 1.0
    labels = np.repeat([0, 1, 2], 20)
    assert yes_no(values, 5).to_round(labels, 3).all()
    values[:5] = 1.0
    assert not yes_no(values, 5).to_round(labels, 3).any()


def test_where_there_are_too_many_sets_to_look_all_shares_are_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.tile([1.0, 0.0], 60)[:, None]
    labels = np.repeat([0, 1, 2], 40)
    before = [(np.roll(labels, 20).astype(np.int16), np.zeros((3, 1), dtype=bool))]
    assert not yes_no(values, 5).to_round(labels, 3, before).any()
    monkeypatch.setattr(module, "_MOST_NUMBERS", 10)
    assert yes_no(values, 5).to_round(labels, 3, before).all()


@pytest.mark.parametrize("incomplete", [False, True])
def test_many_features_are_counted_at_a_time(incomplete: bool) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.random((3_000, 11)) < rng.random(11)).astype(float)
    observed = rng.random(rows.shape) < 0.8 if incomplete else None
    now, then = rng.integers(-1, 4, 3_000), rng.integers(-1, 6, 3_000)
    found = yes_no(rows, 5, observed=observed)._shared(now, 4, then.astype(np.int16), 6)
    seen = np.ones(rows.shape, dtype=bool) if observed is None else observed
    for side, having in enumerate((rows > 0.5, rows < 0.5)):
        for a in range(5):
            for b in range(7):
                both = (now == a - 1) & (then == b - 1)
                expected = (having & seen)[both].sum(axis=0)
                assert np.array_equal(found[side, :, a, b], expected)


@st.composite
def sessions_of_levels(draw: st.DrawFn) -> Session:
    """A yes/no feature and two categorical ones, of three and four levels."""
    session = draw(sessions())
    n = len(session.rows)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = [rng.choice(m, n, p=rng.dirichlet(np.ones(m))) for m in (3, 4)]
    levels = [np.eye(m)[kind] for m, kind in zip((3, 4), kinds, strict=True)]
    rows = np.column_stack([levels[0], session.rows[:, 0], levels[1]])
    return replace(session, rows=rows, blocks=[np.arange(3), np.arange(4, 8)])


@settings(max_examples=100, deadline=None)
@given(session=sessions_of_levels())
def test_shares_that_add_up_to_1_give_no_level_back(session: Session) -> None:
    sent = session.send()
    rows = session.rows > 0.5
    assert shares_given_back(sent, rows, p=session.p) == []
    assert levels_given_back(sent, rows, session.blocks, p=session.p) == []
    for _, flags in sent:
        for block in session.blocks:
            assert (flags[:, block].any(axis=1) == flags[:, block].all(axis=1)).all()


def test_the_attacker_finds_a_level_that_is_rounded_by_itself() -> None:
    """In one cell two rows have level 0, in another nine: alone it hides, not beside the others."""
    places = np.repeat([0, 1, 2, 0, 1, 2], [2, 20, 20, 9, 15, 15])
    rows = np.eye(3)[places]
    labels = np.repeat([0, 1], [42, 39])
    session = Session(rows, 5, [("a", 2, labels)])
    block = [np.arange(3)]
    assert levels_given_back(session.send(), rows > 0.5, block, p=5)
    together = replace(session, blocks=block)
    assert levels_given_back(together.send(), rows > 0.5, block, p=5) == []
    ((_, flags),) = together.send()
    assert flags.all()
