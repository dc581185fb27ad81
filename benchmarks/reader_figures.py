"""Figures of two results against those of the rows.

Each table is divided at random into two halves of its rows, at the same sites, as two years would
be. Both are clustered at p = 5, and compared as a reader compares two results. The same is computed
from the rows of the same clusters. For each kind of data, the share of draws or of pairs for which:

- "returns": the comparison says of a pair of clusters what the rows say, where it says anything;
  "cannot tell": it says nothing;
- "apart": the distance of a pair is within .25 standard deviations of that of the rows; "too far":
  the mean of the given distance less that of the rows.

With `--support`, SUPPORT too (the extra `examples`).
"""

import argparse
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _report import write
from fedclust import SessionResult, simulate
from fedclust.result.comparison import compare
from fedclust.result.matching import distances, match, nearest_mutually
from table_one import MISSING, Sites, _drawn, _real, with_missing

FloatArray = NDArray[np.float64]
SIZES = ((4, 400), (6, 200), (8, 120))
DRAWN = ("Gaussian", "lognormal", "zero-inflated", "mixed", "t3", "Gaussian, no effect")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--support", action="store_true", help="SUPPORT too")
    options = parser.parse_args()
    found: dict[tuple[str, float], list[dict[str, list[float]]]] = defaultdict(list)
    for seed in range(options.first, options.first + options.seeds):
        tables = [(kind, *_drawn(kind, *size, seed)[:2]) for kind in DRAWN for size in SIZES]
        tables += [(name, sites, {}) for name, sites in _real(seed, support=options.support)]
        for name, sites, feature in tables:
            for missing in MISSING:
                found[name, missing].append(_measure(sites, feature, missing, seed))
    lines = []
    for (name, missing), draws in found.items():
        parts = {what: np.array([x for draw in draws for x in draw[what]]) for what in draws[0]}
        means = {what: float(each.mean()) if len(each) else None for what, each in parts.items()}
        lines.append({"data": name, "missing": missing, "draws": len(draws), **means})
    write("reader_figures", lines, note="p = 5; K = 3 to 5. Shares that are as those of the rows.")


def _measure(
    sites: Sites, feature: dict[str, Any], missing: float, seed: int
) -> dict[str, list[float]]:
    rng, k = np.random.default_rng(seed), 3 + seed % 3
    sites, columns = with_missing(sites, feature, missing, rng)
    halves: list[dict[str, FloatArray]] = [{}, {}]
    for place, rows in enumerate(sites):
        for half, own in zip(halves, np.array_split(rng.permutation(len(rows)), 2), strict=True):
            half[f"site{place}"] = rows[own]
    config = {"n_clusters": k, "evidence": True}
    first, second = (
        simulate("lloyd", half, config=config, features=columns, seed=seed + place)
        for place, half in enumerate(halves)
    )
    return _compared(first, second, halves)


def _joined(
    found: SessionResult, half: dict[str, FloatArray]
) -> tuple[FloatArray, NDArray[np.int64]]:
    return np.concatenate(list(half.values())), np.concatenate([found.labels_[s] for s in half])


def _means(rows: FloatArray, labels: NDArray[np.int64], k: int) -> FloatArray:
    return np.array([np.nanmean(rows[labels == own], axis=0) for own in range(k)])


def _compared(
    first: SessionResult, second: SessionResult, halves: list[dict[str, FloatArray]]
) -> dict[str, list[float]]:
    """Compare both results by what they released, and by the means of their rows."""
    pairs = compare(first, second).pairs
    both = [_joined(each, half) for each, half in zip((first, second), halves, strict=True)]
    k = len(first.result.centroids)
    spread = np.sqrt(np.mean([np.nanvar(rows, axis=0) for rows, _ in both], axis=0))
    places = [
        _means(rows, labels, k) / np.where(spread > 0, spread, np.inf) for rows, labels in both
    ]
    apart = distances(*places)
    room = []
    for own in places:
        between = distances(own, own)
        np.fill_diagonal(between, np.inf)
        room.append(between.min(axis=1))
    back = {
        (i, j)
        for i, j in match(apart)
        if nearest_mutually(apart, i, j) and apart[i, j] <= min(room[0][i], room[1][j]) / 2
    }
    off = np.array([pair.distance - apart[pair.first, pair.second] for pair in pairs])
    return {
        "returns": [
            float(pair.returns == ((pair.first, pair.second) in back))
            for pair in pairs
            if pair.returns is not None
        ],
        "cannot tell": [float(pair.returns is None) for pair in pairs],
        "apart": (np.abs(off) <= 0.25).astype(float).tolist(),
        "too far": off.tolist(),
    }


if __name__ == "__main__":
    main()
