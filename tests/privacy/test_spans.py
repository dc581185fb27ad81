"""What all sums of a session tell together: against exact arithmetic, and against the guard."""

from __future__ import annotations

from fractions import Fraction
from unittest import mock

import numpy as np
import pytest

from fedclust.privacy import spans
from fedclust.privacy.counting import PersonIndex
from fedclust.privacy.guard import Guard
from fedclust.privacy.spans import Span
from fedclust.simulate import simulate
from support.hospitals import breast_cancer
from support.traces import partitions_of, watched


def index_of(n: int, persons: np.ndarray | None = None) -> PersonIndex:
    return PersonIndex(np.arange(float(n))[:, None], persons)


def rank(rows: list[list[int]]) -> int:
    """Gaussian elimination over the rationals."""
    left, found = [[Fraction(value) for value in row] for row in rows], 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((row for row in left[found:] if row[column]), None)
        if pivot is None:
            continue
        left.remove(pivot)
        left.insert(found, pivot)
        for i in range(found + 1, len(left)):
            factor = left[i][column] / pivot[column]
            if factor:
                left[i] = [a - factor * b for a, b in zip(left[i], pivot, strict=True)]
        found += 1
    return found


def sets_of(partitions: list[np.ndarray]) -> list[list[int]]:
    n = len(partitions[0])
    every = [np.ones(n, dtype=int)]
    every += [(labels == k).astype(int) for labels in partitions for k in np.unique(labels)]
    return [row.tolist() for row in every]


def singled_out(partitions: list[np.ndarray]) -> set[int]:
    """Return the rows whose own values a combination of the sums gives."""
    sets, n = sets_of(partitions), len(partitions[0])
    full = rank(sets)
    return {i for i in range(n) if rank([*sets, [int(i == j) for j in range(n)]]) == full}


@pytest.mark.parametrize("p", [2, 3])
def test_finds_exactly_the_real_records_that_sums_tell(p: int) -> None:
    """With p = 2 by way of the test vectors, with p = 3 by looking at every small atom."""
    told = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n = 10
        partitions = [rng.integers(0, 3, n) for _ in range(2 + seed % 2)]
        if singled_out(partitions[:-1]):
            continue
        sent = np.array(partitions[:-1], dtype=np.int16)
        found = Span(sent, np.arange(n), index_of(n), p).told(partitions[-1]).tolist()
        expected = singled_out(partitions)
        assert expected <= set(found)
        if p == 2:
            assert expected == set(found)
        told += bool(expected)
    assert told > 5


def test_two_atoms_count_together() -> None:
    """Nobody's own values are told, but row 0 minus row 1 is: two persons, fewer than p."""
    first = np.array([0, 1, 0, 0, 0, 1, 1, 1])
    second = np.array([1, 0, 0, 0, 0, 1, 1, 1])
    assert singled_out([first, second]) == set()
    sent, rows = first[None].astype(np.int16), np.arange(8)
    assert Span(sent, rows, index_of(8), 3).told(second).tolist() == [0, 1]
    assert Span(sent, rows, index_of(8), 2).told(second).size == 0


def test_no_real_record_is_told_by_any_combination() -> None:
    """Many clusterings of the same rows, each close to the others, at the smallest p."""
    rng = np.random.default_rng(2)
    n = 40
    X = rng.normal(size=(n, 2))
    plain, guarded = [], []
    guard = Guard(PersonIndex(X), 2)
    for number in range(12):
        centres = X[rng.choice(n, 4, replace=False)]
        wanted = ((X[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1).astype(np.int64)
        plain.append(wanted)
        guarded.append(guard.release(wanted, 4, str(number)))
    assert singled_out(plain)
    assert not singled_out(guarded)
    # It still says something of most rows.
    assert np.mean([labels >= 0 for labels in guarded]) > 0.7


def test_where_values_are_imputed_no_real_record_is_told_of_a_single_feature() -> None:
    rng = np.random.default_rng(4)
    n = 40
    X = rng.normal(size=(n, 2))
    view = rng.random(n) < 0.6
    sent, unseen = [], []
    for views, kept in (((view,), sent), ((), unseen)):
        guard = Guard(PersonIndex(X), 2, views=views)
        for number in range(12):
            centres = X[np.random.default_rng(number).choice(n, 4, replace=False)]
            wanted = ((X[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1).astype(np.int64)
            kept.append(guard.release(wanted, 4, str(number))[view])
    assert singled_out(unseen)
    assert not singled_out(sent)


def test_rows_of_one_person_count_once() -> None:
    """Two rows of one person, told together; without persons, two are allowed."""
    first = np.array([0, 0, 1, 1, 1, 2, 2, 2])
    second = np.array([1, 1, 1, 1, 1, 2, 2, 2])
    sent = first[None].astype(np.int16)
    rows, persons = np.arange(8), np.array([0, 0, 1, 2, 3, 4, 5, 6])
    assert Span(sent, rows, index_of(8), 2).told(second).size == 0
    assert Span(sent, rows, index_of(8, persons), 2).told(second).tolist() == [0, 1]


@pytest.mark.parametrize("limit", ["_MOST_SETS", "_MOST_PLACES"])
def test_beyond_the_limit_nothing_new_is_sent(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """A candidate repeats what was sent, and one that cannot sends nothing."""
    monkeypatch.setattr(spans, limit, {"_MOST_SETS": 4, "_MOST_PLACES": 60}[limit])
    guard = Guard(index_of(30), 2)
    first = np.repeat([0, 1], 15)
    assert np.array_equal(guard.release(first, 2, "a"), first)
    # Two partitions, the total and one more would be too many: this one is still looked at.
    second = np.roll(first, 6)
    assert np.array_equal(guard.release(second, 2, "a"), second)
    restarted = Guard(index_of(30), 2, memory=guard.memory())
    for each in (guard, restarted):
        assert np.array_equal(each.release(np.roll(first, 3), 2, "a"), second)
        assert np.array_equal(each.release(first, 2, "a"), first)
        new = each.release(np.arange(30) % 5, 5, "b")
        sets = {tuple(np.flatnonzero(new == k)) for k in range(5) if (new == k).any()}
        assert each.exhausted
        assert sets <= {tuple(np.flatnonzero(first == k)) for k in (0, 1)} | {
            tuple(np.flatnonzero(second == k)) for k in (0, 1)
        }


@pytest.mark.parametrize("p", [2, 3, 5])
def test_what_is_taken_up_at_once_or_one_by_one_is_the_same(p: int) -> None:
    """To the bit, so that a site that was restarted sends what it would have sent."""
    rng = np.random.default_rng(p)
    n, rows = 60, np.arange(60)
    sent = rng.integers(0, 4, (8, n)).astype(np.int16)
    monotone = [spans.span_of(sent[:h], rows, index_of(n), p) for h in range(9)]
    spans._KEPT.clear()
    whole = spans.span_of(sent, rows, index_of(n), p)
    assert np.array_equal(monotone[-1]._basis, whole._basis)
    assert np.array_equal(whole._basis, Span(sent, rows, index_of(n), p)._basis)
    # An orthonormal basis of all that the sets span.
    sets = np.array(sets_of(list(sent)), dtype=float)
    unit = whole._overlap / np.outer(whole._lengths, whole._lengths)
    products = whole._basis @ unit @ whole._basis.T
    assert np.allclose(products, np.eye(len(products)), atol=1e-10)
    assert len(products) == np.linalg.matrix_rank(sets)


def told_of_a_session() -> int:
    """Return how many records linear algebra gives of fkm's answers at p = 2."""
    sites, told = breast_cancer(), 0
    declared = [{"name": f"x{j}", "kind": "numeric"} for j in range(30)]
    with watched() as seen:
        simulate(
            "fkm",
            sites,
            config={"n_clusters": 8},
            features=declared,
            policy={"min_group_size": 2},
            seed=0,
        )
    for site in sites:
        sets = np.array(sets_of([labels for _, labels in partitions_of(seen, site)]), dtype=float)
        _, values, vectors = np.linalg.svd(sets, full_matrices=False)
        share = (vectors[values > 1e-8] ** 2).sum(axis=0)
        told += int((share > 1.0 - 1e-7).sum())
    return told


def test_no_real_record_is_told_by_all_answers_of_eight_candidates() -> None:
    assert told_of_a_session() == 0
    with mock.patch.object(Span, "told", return_value=np.zeros(0, dtype=np.intp)):
        assert told_of_a_session() > 50
