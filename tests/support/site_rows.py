"""Sites with real and made-up rows, and the central algorithms that answers are compared with."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import adjusted_rand_score

FloatArray = NDArray[np.float64]

NAMES = ("basel", "gdansk", "lyon", "turku")
#: Uneven: the smallest site has 49 of the 569 rows.
CUTS = (250, 420, 520)


def breast_cancer(seed: int = 0) -> dict[str, FloatArray]:
    """Return scikit-learn's breast-cancer rows (569, 30), shuffled and split unevenly."""
    X = load_breast_cancer().data
    order = np.random.default_rng(seed).permutation(len(X))
    return dict(zip(NAMES, np.split(X[order], CUTS), strict=True))


def bounded(sites: dict[str, FloatArray]) -> list[dict[str, Any]]:
    """Return features x0, x1, ... with bounds that leave room around all rows of these sites."""
    widest = np.abs(np.concatenate(list(sites.values()))).max(axis=0)
    return [
        {"name": f"x{j}", "lower": -float(top), "upper": 2 * float(top)}
        for j, top in enumerate(widest)
    ]


def blobs(
    centres: FloatArray, sizes: Sequence[int], spread: float = 0.1, seed: int = 0
) -> dict[str, FloatArray]:
    """Return sites ``a``, ``b``, ... of ``sizes`` rows for each of the ``centres`` (K, d)."""
    rng = np.random.default_rng(seed)
    sites = {}
    for number, size in enumerate(sizes):
        rows = np.repeat(centres, size, axis=0)
        sites["abcdefgh"[number]] = rows + spread * rng.standard_normal(rows.shape)
    return sites


def some_of(
    centres: FloatArray, held: Sequence[Sequence[int]], n: int = 20, seed: int = 0
) -> tuple[dict[str, FloatArray], dict[str, NDArray[np.int64]]]:
    """Return sites with ``n`` rows around each of the ``centres`` they hold, and these."""
    rng = np.random.default_rng(seed)
    truth = {"abcdefgh"[i]: np.repeat(own, n) for i, own in enumerate(held)}
    sites = {site: centres[y] + rng.normal(size=(len(y), 2)) for site, y in truth.items()}
    return sites, truth


def pooled(sites: dict[str, FloatArray]) -> FloatArray:
    """Return all rows, sites in order of their names."""
    return np.concatenate([sites[site] for site in sorted(sites)])


def agreement(result: Any, truth: dict[str, NDArray[np.int64]]) -> float:
    """Return the adjusted Rand index of a result's labels and the true clusters, over all sites."""
    return float(adjusted_rand_score(pooled(truth), pooled(result.labels_)))


def central_lloyd(
    X: FloatArray, start: FloatArray, rounds: int = 1000
) -> tuple[FloatArray, NDArray[np.int64], float]:
    """Return centroids, labels and inertia of textbook Lloyd, run until nothing moves."""
    centroids = np.array(start, dtype=np.float64)
    for _ in range(rounds):
        distances = ((X[:, None, :] - centroids[None, :, :]) ** 2).sum(axis=2)
        labels = distances.argmin(axis=1)
        moved = centroids.copy()
        for k in range(len(centroids)):
            if (labels == k).any():
                moved[k] = X[labels == k].mean(axis=0)
        if np.array_equal(moved, centroids):
            break
        centroids = moved
    distances = ((X[:, None, :] - centroids[None, :, :]) ** 2).sum(axis=2)
    return centroids, distances.argmin(axis=1), float(distances.min(axis=1).sum())


def least_inertia(X: FloatArray, k: int = 2, sizes: Any = None) -> tuple[float, FloatArray]:
    """Return the least weighted inertia of k centroids, and these, by trying every labelling."""
    n, sizes = len(X), np.ones(len(X)) if sizes is None else sizes
    labels = (np.arange(k ** (n - 1))[:, None] // k ** np.arange(n)) % k
    mean = np.average(X, axis=0, weights=sizes)
    middle = X - mean
    members = [(labels == cluster) * sizes for cluster in range(k)]
    counts = np.stack([own.sum(axis=1) for own in members])
    sums = np.stack([own @ middle for own in members])
    gains = ((sums**2).sum(axis=2) / np.maximum(counts, 1)).sum(axis=0)
    best = int(gains.argmax())
    means = sums[:, best] / np.maximum(counts[:, best], 1)[:, None] + mean
    return float(sizes @ (middle**2).sum(axis=1) - gains[best]), means
