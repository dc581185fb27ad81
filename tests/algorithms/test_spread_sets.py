"""What is told of spreads, against an attacker who takes sets from one another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import simulate
from fedclust.algorithms import evaluation
from fedclust.algorithms.base import Feature, Policy, RunConfig, SiteData
from fedclust.algorithms.lloyd import Config
from fedclust.algorithms.spreads import tellable
from fedclust.privacy.counting import PersonIndex
from support.methods import KS, SWEEPS

P = 5
HALF = np.arange(60) < 30
Sets = list[NDArray[np.bool_]]


def config_of(kinds: str, p: int = P) -> RunConfig:
    """Return a config with a column for each letter: n for a number, b for yes/no."""
    features = tuple(
        Feature(name=f"x{j}", kind="binary" if kind == "b" else "numeric")
        for j, kind in enumerate(kinds)
    )
    policy = Policy(min_group_size=p)
    return RunConfig(Config(n_clusters=2), features, policy, ("a", "b", "c"), p)


class Teller:
    """Tells of one partition after the other; gives what is held back of each, (K, d)."""

    def __init__(self, data: SiteData, config: RunConfig) -> None:
        self._data, self._config, self._memory = data, config, dict[str, Any]()

    def hold(self, labels: NDArray[np.int64], m2: NDArray[np.float64]) -> NDArray[np.bool_]:
        told, self._memory = tellable(self._data, labels, m2, self._config, self._memory)
        return ~told


def known_sets(labels: NDArray[np.int64], held: NDArray[np.bool_]) -> Sets:
    """Return the sets of which M2 is known: told cells, and all other rows, from the totals."""
    told = [labels == k for k in np.flatnonzero(~held) if (labels == k).any()]
    rest = ~np.any([np.zeros(len(labels), dtype=np.bool_), *told], axis=0)
    return [*told, rest] if rest.any() else told


def differences(outer: Sets, inner: Sets) -> Iterator[NDArray[np.bool_]]:
    """Yield every union of the one, less all sets of the other that lie inside it."""
    for chosen in product([False, True], repeat=len(outer)):
        union = np.any([one & take for one, take in zip(outer, chosen, strict=True)], axis=0)
        inside = [one for one in inner if not (one & ~union).any()]
        yield union
        yield union & ~np.any([np.zeros_like(union), *inside], axis=0)


def told_of_few(
    x: NDArray[np.float64], tellings: list[tuple[NDArray[np.int64], NDArray[np.bool_]]]
) -> list[str]:
    """Return where the M2 of all but 1 to p - 1 rows of one value follows, for a column (n,)."""
    every = [known_sets(labels, held) for labels, held in tellings]
    found = []
    for (a, outer), (b, inner) in product(enumerate(every), repeat=2):
        for rows in differences(outer, inner):
            counts = np.unique(x[rows], return_counts=True)[1]
            usual = int(counts.max(initial=0))
            # Of all rows together totals tell.
            if usual >= P and 0 < rows.sum() - usual < P and not rows.all():
                found.append(f"{int(rows.sum())} rows, {usual} alike, from {a} and {b}")
    return found


def spiky(n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return rows of a column that is mostly 0, one of few whole numbers, and a continuous one."""
    dose = np.zeros(n)
    dose[rng.choice(n, n // 10, replace=False)] = rng.normal(3.0, 1.0, n // 10)
    return np.column_stack(
        [dose, rng.integers(0, 4, n) * (rng.random(n) < 0.2), rng.normal(size=n)]
    )


@pytest.mark.parametrize("seed", range(12))
def test_no_lone_value_of_a_real_record_follows_from_several_partitions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = spiky(90, rng)
    # Nested, crossing and equal partitions; cells of 5 rows or more, as the guard lets go.
    fine = rng.integers(0, 5, 90)
    tellings = [fine // 2, fine, rng.integers(-1, 3, 90), np.where(fine == 4, -1, fine), fine]
    teller = Teller(SiteData(X, index=PersonIndex(X)), config_of("nnn"))
    told = [(labels, teller.hold(labels, np.ones((5, 3)))) for labels in tellings]
    for j in range(3):
        assert told_of_few(X[:, j], [(labels, held[:, j]) for labels, held in told]) == []
    # What is held of any column is held beside it, or the cost would tell it.
    for _, held in told:
        assert set(held[held.any(axis=1)].sum(axis=1)) <= {2, 3}
    loose = [(labels, np.zeros(5, dtype=np.bool_)) for labels in tellings]
    assert told_of_few(X[:, 0], loose)


def test_where_values_differ_all_is_told() -> None:
    X = np.random.default_rng(1).normal(size=(60, 3))
    teller = Teller(SiteData(X, index=PersonIndex(X)), config_of("nnn"))
    for width in (6, 4, 3):
        assert not teller.hold(np.arange(60) % width, np.ones((width, 3))).any()
    X[1:] = 0.0
    teller = Teller(SiteData(X, index=PersonIndex(X)), config_of("nnn", 1))
    assert not teller.hold(np.arange(60) % 3, np.ones((3, 3))).any()


def test_persons_count_and_not_their_rows() -> None:
    """Six rows differ, all one person's."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 2))
    X[:, 0] = np.where(np.arange(60) < 6, X[:, 0], 0.0)
    for persons, expected in ((np.maximum(np.arange(60), 5), True), (np.arange(60), False)):
        data = SiteData(X, persons, index=PersonIndex(X, persons))
        held = Teller(data, config_of("nn")).hold(np.repeat([0, 1], 30), np.ones((2, 2)))
        assert held[0].tolist() == [expected, expected]


def test_never_is_one_column_of_a_cell_held_back_alone() -> None:
    """Nor two of which one is constant there: the cost would tell the other."""
    rng = np.random.default_rng(4)
    X = np.column_stack(
        [np.zeros(60), rng.normal(size=(60, 2)), np.arange(60) % 6, np.arange(60) % 2]
    )
    X[0, 0] = 2.0
    X[:30, 1:3] = 7.0
    m2 = np.array([((X[rows] - X[rows].mean(axis=0)) ** 2).sum(axis=0) for rows in (HALF, ~HALF)])
    teller = Teller(SiteData(X, index=PersonIndex(X)), config_of("nnnnb"))
    held = teller.hold(np.repeat([0, 1], 30), m2)
    assert held[0].tolist() == [True, True, True, True, False]


@pytest.mark.parametrize(("method", "options"), SWEEPS)
def test_a_real_record_follows_neither_from_the_totals_nor_from_another_k(
    method: str, options: dict[str, Any]
) -> None:
    """Of 20 rows 19 have a 3; they are a cell with five clusters and part of one with two."""
    rng = np.random.default_rng(6)
    sites = {}
    for name in "abc":
        rows = rng.normal(size=(120, 3)) + np.repeat([[0.0, 0, 0], [8, 0, 0], [60, 60, 0]], 40, 0)
        rows[40:80, 2] = 3.0
        rows[40, 2] = 4.5
        sites[name] = rows
    result = simulate(method, sites, config=options, policy={"scaling": "none"}, seed=0)
    answers = [entry for entry in result.trace_ if entry.phase == evaluation.NAME]
    assert len(answers) == 3
    for entry in answers:
        X = sites[entry.site]
        tellings, costs = [], []
        for k, part in zip(KS, entry.payload.parts, strict=True):
            centroids = entry.task.common.parts[KS.index(k)].centroids
            labels = ((X[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
            held = part.m2 == 0.0
            if np.array_equal(np.bincount(labels, minlength=k), part.counts):
                tellings.append((labels, held[:, 2]))
                costs.append(held.sum(axis=1))
        assert len(tellings) >= 2
        assert told_of_few(X[:, 2], tellings) == []
        assert not any((each == 1).any() for each in costs)
