"""The attacks that the differencing guard could not stop, against the protected table.

Each attack is tried on ``protection: none`` too, where it succeeds: it is a real one.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

from fedclust.local.simulate import simulate
from support.site_rows import breast_cancer

P = 5
D = 6
#: A sum belongs to a row where it agrees to this many standard deviations in every column.
CLOSE = 1e-6

FloatArray = NDArray[np.float64]


def sums_of(counts: Any, sums: Any) -> Iterator[tuple[int, FloatArray]]:
    yield from ((int(n), np.asarray(s)) for n, s in zip(counts, sums, strict=True) if n)


def recovered(sets: list[tuple[int, FloatArray]], X: FloatArray) -> set[int]:
    """Return the rows (n, d) that any set, or the difference of any two, gives away."""
    found: set[int] = set()
    counts = np.array([n for n, _ in sets])
    sums = np.array([s for _, s in sets])
    for n, s in zip(np.append(counts, 0), np.vstack([sums, np.zeros(D)]), strict=True):
        small = (counts - n >= 1) & (counts - n < P)
        for vector in (sums[small] - s) / (counts[small] - n)[:, None]:
            hits = np.flatnonzero((np.abs(X - vector) <= CLOSE).all(axis=1))
            found.update(int(hit) for hit in hits)
    return found


@pytest.mark.parametrize("protection", ["groups", "none"])
def test_many_sessions_of_an_analyst_give_no_real_record(protection: str) -> None:
    """Given centroids, other seeds, K and weights, session after session, on the same rows."""
    X = load_breast_cancer().data[:150, :D]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    sites = {"a": X, "b": X[::-1] + 0.3, "c": X + 0.1}
    sets: list[tuple[int, FloatArray]] = []
    rng = np.random.default_rng(1)
    for number in range(24):
        K = 2 + number % 7
        start = X[rng.choice(len(X), K, replace=False)]
        run = simulate(
            "lloyd",
            sites,
            config={
                "n_clusters": K,
                "start": "given",
                "centroids": start.tolist(),
                "evaluate": False,
            },
            policy={"protection": protection, "scaling": "none", "max_rounds": 4},
            seed=number,
        )
        for entry in run.trace_:
            if entry.site == "a" and entry.phase == "lloyd":
                sets += sums_of(entry.payload.counts, entry.payload.sums)
    assert bool(recovered(sets, X)) == (protection == "none")


@pytest.mark.parametrize("protection", ["groups", "none"])
def test_yes_no_columns_declared_numeric_tell_no_real_record(protection: str) -> None:
    """No sum over a cluster tells of 1 to p - 1 persons who have, or lack, a property."""
    rng = np.random.default_rng(2)
    X = (rng.random((217, D)) < [0.02, 0.05, 0.2, 0.5, 0.9, 0.98]).astype(float)
    small = 0
    for seed in range(6):
        run = simulate(
            "lloyd",
            {"a": X, "b": X[::-1], "c": X},
            config={"n_clusters": 8, "evaluate": False},
            policy={"protection": protection, "scaling": "none"},
            seed=seed,
        )
        for entry in run.trace_:
            if entry.site != "a" or entry.phase != "lloyd":
                continue
            for n, s in sums_of(entry.payload.counts, entry.payload.sums):
                persons = np.rint(np.concatenate([s, n - s]))
                exact = np.abs(np.concatenate([s, n - s]) - persons) < 1e-6
                small += int((exact & (persons > 0) & (persons < P)).sum())
    assert (small > 0) == (protection == "none")


@pytest.mark.parametrize("protection", ["groups", "none"])
def test_moments_of_whole_numbers_give_no_real_record(protection: str) -> None:
    """Of few whole numbers, their number, sum and sum of squares leave one set of values."""
    rng = np.random.default_rng(3)
    X = rng.integers(0, 7, (60, D)).astype(float)
    run = simulate(
        "lloyd",
        {"a": X, "b": X[::-1], "c": X},
        config={"n_clusters": 8},
        policy={"protection": protection, "scaling": "none"},
        seed=0,
    )
    (closing,) = [e.payload for e in run.trace_ if e.site == "a" and e.phase == "evidence"]
    final = closing.parts[0]
    solved = 0
    for k, n in enumerate(final.counts):
        if not 0 < n <= 8:
            continue
        for j in range(D):
            total = n * final.means[k, j]
            squares = final.m2[k, j] + n * final.means[k, j] ** 2
            worlds = _whole_numbers(int(n), total, squares)
            solved += len(worlds) == 1 and len(set(worlds[0])) > 1
    assert (solved > 0) == (protection == "none")


def _whole_numbers(n: int, total: float, squares: float) -> list[tuple[int, ...]]:
    """Return the multisets of n numbers 0..6 with this sum and sum of squares."""
    if abs(total - round(total)) > 1e-6 or abs(squares - round(squares)) > 1e-6:
        return []
    found: list[tuple[int, ...]] = []

    def go(chosen: tuple[int, ...], low: int, total: int, squares: int) -> None:
        left = n - len(chosen)
        if not left:
            if total == squares == 0:
                found.append(chosen)
            return
        for value in range(low, 7):
            if value * left <= total and value**2 * left <= squares:
                go((*chosen, value), value, total - value, squares - value**2)

    go((), 0, round(total), round(squares))
    return found


@pytest.mark.parametrize(
    ("method", "config", "protection"),
    [
        ("kfed", {}, "groups"),
        ("kfed", {"variant": "paper"}, "groups"),
        ("kfed", {"refine": 1}, "groups"),
        ("spectral", {}, "groups"),
        ("spectral", {"alignment": "sign"}, "groups"),
        ("spectral", {"alignment": "procrustes"}, "groups"),
        ("spectral", {"alignment": "procrustes"}, "none"),
    ],
)
def test_no_vector_sent_is_a_real_record(
    method: str, config: dict[str, Any], protection: str
) -> None:
    """A site may send a group's record, never a person's; an anchor is none, even of rows."""
    sites = breast_cancer()
    config, policy = {"n_clusters": 3, **config}, {"protection": protection}
    run = simulate(method, sites, config=config, policy=policy, seed=4)
    n_vectors = 0
    for entry in run.trace_:
        means = getattr(entry.payload, "means", None)
        if means is None or (protection == "none" and entry.phase == "eigen"):
            continue
        sent = means[entry.payload.counts > 0]
        n_vectors += len(sent)
        rows = run.result.space.to_scaled(sites[entry.site])
        for vector in sent:
            assert np.abs(rows - vector).max(axis=1).min() > CLOSE
    assert n_vectors > 0
