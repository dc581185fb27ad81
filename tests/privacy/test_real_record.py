"""The attacker against Lloyd's traces on breast-cancer data, without the guard and with it.

A plain Lloyd of its own, so that what is tested here is the guard and the attacker alone; the
methods themselves meet the same attacker in tests/simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer

from fedclust.privacy.counting import PersonIndex
from fedclust.privacy.guard import Guard
from fedclust.privacy.moments import CellMoments, cell_moments, round_prevalence
from fedclust.privacy.shares import Shares
from support.attacker import (
    Statistic,
    cells,
    findings,
    recover,
    small_prevalences,
    total,
    vectors,
)

P = 5
#: Uneven hospitals: 40, 100, 160 and 269 of the 569 patients.
BORDERS = (40, 140, 300)
ROUNDS = 15


@cache
def hospitals(binary: bool) -> tuple[np.ndarray, ...]:
    X = load_breast_cancer(return_X_y=True)[0]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    if binary:
        X = (np.median(X, axis=0) < X).astype(float)
    order = np.random.default_rng(7).permutation(len(X))
    return tuple(X[rows] for rows in np.split(order, BORDERS))


@dataclass
class Trace:
    """What each hospital sent, and the lowest inertia over all rows that was reached."""

    sent: list[list[Statistic]]
    inertia: float


@cache
def lloyd(binary: bool, n_clusters: int, guarded: bool) -> Trace:
    """Run cells and then Lloyd rounds; without the guard, cells and totals go out as they are."""
    sites = hospitals(binary)
    d = sites[0].shape[1]
    guards = [Guard(PersonIndex(X), P) for X in sites]
    sent = [[total("totals", len(X), X.mean(axis=0))] for X in sites]

    def send(s: int, labels: np.ndarray, n_cells: int, phase: str, candidate: str) -> CellMoments:
        if guarded:
            labels = guards[s].release(labels, n_cells, candidate)
        moments = cell_moments(sites[s], labels, n_cells)
        if guarded and binary:
            space = {"center": np.zeros(d), "scale": np.ones(d)}
            yes_no = Shares(sites[s], PersonIndex(sites[s]), P, columns=np.ones(d) > 0, **space)
            rounded = guards[s].round_shares(yes_no, labels, n_cells)
            moments = round_prevalence(moments, rounded, P, **space)
        sent[s].extend(cells(phase, moments.counts, moments.sums))
        return moments

    local = []
    for s, X in enumerate(sites):
        k = min(n_clusters, len(X) // P)
        labels = KMeans(k, n_init=3, random_state=0).fit(X).labels_.astype(np.int64)
        local.append(send(s, labels, k, "cells", "cells"))
    means = np.concatenate([moments.means[moments.counts > 0] for moments in local])
    counts = np.concatenate([moments.counts[moments.counts > 0] for moments in local])
    start = KMeans(n_clusters, n_init=10, random_state=0).fit(means, sample_weight=counts)
    centroids = start.cluster_centers_
    pooled, best = np.concatenate(sites), np.inf
    for number in range(ROUNDS):
        nearest = ((pooled[:, None] - centroids) ** 2).sum(axis=2)
        best = min(best, float(nearest.min(axis=1).sum()))
        answers = [
            send(s, labels, n_clusters, f"round {number}", "0")
            for s, labels in enumerate(np.split(nearest.argmin(axis=1), BORDERS))
        ]
        n = np.sum([answer.counts for answer in answers], axis=0)[:, None]
        sums = np.sum([answer.sums for answer in answers], axis=0)
        centroids = np.where(n > 0, sums / np.maximum(n, 1), centroids)
    return Trace(sent, best)


@pytest.mark.parametrize("binary", [False, True], ids=["continuous", "binary"])
@pytest.mark.parametrize("n_clusters", [2, 4, 8])
def test_no_real_record_is_recovered_under_the_guard(binary: bool, n_clusters: int) -> None:
    trace = lloyd(binary, n_clusters, True)
    for X, sent in zip(hospitals(binary), trace.sent, strict=True):
        assert findings(sent, X, X, p=P, discrete=binary) == []
    # It is no guard that keeps everything in: most rounds of most sites say something.
    told = sum(item.count or 0 for sent in trace.sent for item in sent if item.group)
    assert told > 0.75 * 569 * (ROUNDS + 1)


@pytest.mark.parametrize("binary", [False, True], ids=["continuous", "binary"])
@pytest.mark.parametrize("n_clusters", [4, 8])
def test_real_records_are_recovered_without_it(binary: bool, n_clusters: int) -> None:
    """The attacker bites, or the test above would prove nothing."""
    trace = lloyd(binary, n_clusters, False)
    recovered = [
        recover(sent, X, X, p=P, discrete=binary)
        for X, sent in zip(hospitals(binary), trace.sent, strict=True)
    ]
    assert sum(map(len, recovered)) >= 3


@pytest.mark.parametrize("n_clusters", [2, 4, 8])
def test_the_guard_that_hides_every_real_record_costs_little_inertia(n_clusters: int) -> None:
    for binary in (False, True):
        ratio = lloyd(binary, n_clusters, True).inertia / lloyd(binary, n_clusters, False).inertia
        assert ratio < 1.08


def test_no_prevalence_names_a_few_real_records() -> None:
    d = hospitals(True)[0].shape[1]
    space = {"columns": np.ones(d, dtype=bool), "center": np.zeros(d), "scale": np.ones(d)}
    guarded, plain = lloyd(True, 8, True), lloyd(True, 8, False)
    for sent in guarded.sent:
        assert small_prevalences(sent[1:], p=P, **space) == []
    assert sum(len(small_prevalences(sent[1:], p=P, **space)) for sent in plain.sent) > 100


# --- each weapon of the attacker, by itself -------------------------------------------------------


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(40, 6))


def partition(rows: np.ndarray, labels: np.ndarray, name: str) -> list[Statistic]:
    moments = cell_moments(rows, labels, int(labels.max()) + 1)
    return cells(name, moments.counts, moments.sums)


def test_a_real_record_sent_as_a_seed(rows: np.ndarray) -> None:
    own = rows * 3 + 100
    assert recover(vectors("seeds", rows[[4, 9]]), rows, own, p=P) == {4, 9}
    assert recover(vectors("seeds", own[[7]]), rows, own, p=P) == {7}
    near = rows[[4]] + 1e-4 * rows.std(axis=0)
    assert recover(vectors("seeds", near), rows, own, p=P) == set()


def test_a_real_record_as_a_cell_of_one(rows: np.ndarray) -> None:
    labels = np.repeat([0, 1, 2], [20, 1, 19])
    assert recover(partition(rows, labels, "a"), rows, p=P) == {20}


def test_a_real_record_between_two_rounds(rows: np.ndarray) -> None:
    first = np.repeat([0, 1, 2, 3], 10)
    second = first.copy()
    second[3] = 2
    sent = partition(rows, first, "a") + partition(rows, second, "b")
    assert recover(sent, rows, p=P) == {3}


def test_real_records_that_change_places(rows: np.ndarray) -> None:
    first = np.repeat([0, 1], 20)
    second = first.copy()
    second[3], second[30] = 1, 0
    sent = partition(rows, first, "a") + partition(rows, second, "b")
    assert recover(sent, rows, p=P) == {3, 30}


def test_a_real_record_that_totals_give_back(rows: np.ndarray) -> None:
    labels = np.repeat([0, 1, -1], [20, 19, 1])
    sent = [total("totals", 40, rows.mean(axis=0)), *partition(rows, labels, "a")]
    assert recover(sent, rows, p=P) == {39}
    assert recover(sent[1:], rows, p=P) == set()


def test_a_real_record_between_two_rests(rows: np.ndarray) -> None:
    first = np.repeat([0, 1, -1], [20, 10, 10])
    second = first.copy()
    second[[30, 0, 1, 2, 3, 4, 10, 11, 12, 13, 14]] = [0, 1, 1, 1, 1, 1, -2, -2, -2, -2, -2]
    second[10:15] = 1
    sent = [total("totals", 40, rows.mean(axis=0))]
    sent += partition(rows, first, "a") + partition(rows, second, "b")
    assert recover(sent, rows, p=P) == {30}


def test_a_real_record_hidden_in_every_cell_but_not_in_two_together(rows: np.ndarray) -> None:
    first = np.repeat([0, 1, 2, 3], 10)
    second = first.copy()
    second[:5], second[5], second[20:26] = 1, 2, 3
    renumbered = np.array([2, 0, 3, 1])[second]
    for labels in (second, renumbered):
        sent = partition(rows, first, "a") + partition(rows, labels, "b")
        assert recover(sent, rows, p=P) == {5}


def test_a_binary_real_record_counts_only_if_it_is_rare() -> None:
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 2, (60, 12)).astype(float)
    rows[10:20] = rows[10]
    first = np.repeat([0, 1], 30)
    for row, expected in ((3, {3}), (12, set())):
        second = first.copy()
        second[row] = 1
        sent = partition(rows, first, "a") + partition(rows, second, "b")
        assert recover(sent, rows, p=P, discrete=True) == expected
