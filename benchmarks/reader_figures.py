"""Figures of two results against those of the rows.

Each table is divided at random into two halves of its rows, at the same sites, as two years would
be. Both are clustered at p = 5, and compared as a reader compares two results. The same is computed
from the rows of the same clusters. For each kind of data, the share of draws or of pairs for which:

- "returns": the comparison says of a pair of clusters what the rows say, where it says anything: a
  cluster returns by the rows if it and its match are at most half as far apart as either is from
  the next cluster of either half; "yes": the same, of those that it says return; "cannot tell": it
  says nothing;
- "apart": the distance of a pair that returns is within .25 standard deviations of that of the
  rows;
- "direction": a column that is named, because it differs by .5 or more, differs in this direction
  in the rows too;
- "same sites", "or more": rows of a cluster are at as many sites as groups, and at as many or more;
- "joins first": of the clusters of all rows by `ward`, the tree joins those first that Ward's rule
  joins first by their rows.

With `--support`, SUPPORT too (the extra `examples`).
"""

import argparse
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _report import write
from fedclust import SessionResult, simulate
from fedclust.result.comparison import compare, named
from fedclust.result.matching import distances, next_cluster
from table_one import MISSING, Sites, _drawn, _real, with_missing

FloatArray = NDArray[np.float64]
SIZES = ((4, 400), (6, 200), (8, 120))
DRAWN = (
    *("Gaussian", "lognormal", "zero-inflated", "mixed", "t3", "offsets"),
    *("Gaussian, no effect", "lognormal, no effect"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--support", action="store_true", help="SUPPORT too")
    parser.add_argument("--only", default="", help="data whose name has this text")
    options = parser.parse_args()
    found: dict[tuple[str, float], list[dict[str, list[float]]]] = defaultdict(list)
    for seed in range(options.first, options.first + options.seeds):
        tables = [(kind, *_drawn(kind, *size, seed)[:2]) for kind in DRAWN for size in SIZES]
        tables += [(name, sites, {}) for name, sites in _real(seed, support=options.support)]
        for name, sites, feature in tables:
            if options.only not in name:
                continue
            for missing in MISSING:
                measured = _measure(sites, feature, missing, seed)
                found[name, missing].append(measured)
                found["all", missing].append(measured)
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
    whole = {f"site{place}": rows for place, rows in enumerate(sites)}
    tree = simulate("ward", whole, config={"n_clusters": k}, features=columns, seed=seed)
    halves: list[dict[str, FloatArray]] = [{}, {}]
    for place, rows in enumerate(sites):
        for half, own in zip(halves, np.array_split(rng.permutation(len(rows)), 2), strict=True):
            half[f"site{place}"] = rows[own]
    first, second = (
        simulate("lloyd", half, config={"n_clusters": k}, features=columns, seed=seed + place)
        for place, half in enumerate(halves)
    )
    sizes = tree.result.site_sizes.values()
    groups = np.sum(np.array(list(sizes)) > 0, axis=0)
    rows = np.sum([np.isin(range(len(groups)), own) for own in tree.labels_.values()], axis=0)
    return {
        **_compared(first, second, halves),
        "same sites": (rows == groups).tolist(),
        "or more": (rows >= groups).tolist(),
        "joins first": [_joins_first(tree, whole)],
    }


def _joined(
    found: SessionResult, half: dict[str, FloatArray]
) -> tuple[FloatArray, NDArray[np.int64]]:
    return np.concatenate(list(half.values())), np.concatenate([found.labels_[s] for s in half])


def _means(rows: FloatArray, labels: NDArray[np.int64], k: int) -> FloatArray:
    return np.array([np.nanmean(rows[labels == own], axis=0) for own in range(k)])


def _joins_first(found: SessionResult, sites: dict[str, FloatArray]) -> bool:
    """Return whether the tree's first merge of clusters is that of Ward's rule by their rows."""
    tree = found.result.dendrogram
    assert tree is not None
    below = [{own} for own in tree.clusters.tolist()]
    for one, other in tree.merges.tolist():
        below.append(below[one] | below[other])
    joined = next(each for each in below if len(each) > 1)
    rows, labels = _joined(found, sites)
    spread = np.nanstd(rows, axis=0)
    k = len(found.result.centroids)
    means = _means(rows / np.where(spread > 0, spread, np.inf), labels, k)
    n = np.array([(labels == own).sum() for own in range(k)])
    added = distances(means, means) ** 2 * (n[:, None] * n / np.maximum(n[:, None] + n, 1))
    np.fill_diagonal(added, np.inf)
    return joined == {*map(int, np.unravel_index(added.argmin(), added.shape))}


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
    every = np.concatenate(places)
    apart = distances(every, every)
    found: dict[str, list[float]] = {
        name: [] for name in ("returns", "yes", "cannot tell", "apart", "direction")
    }
    for pair in pairs:
        i, j = pair.first, k + pair.second
        found["cannot tell"].append(pair.returns is None)
        back = bool(apart[i, j] <= next_cluster(apart, i, j) / 2)
        if pair.returns is not None:
            found["returns"].append(pair.returns == back)
        if pair.returns:
            found["yes"].append(back)
            found["apart"].append(abs(pair.distance - apart[i, j]) <= 0.25)
        for each in named(pair):
            column = int(each.column.name.removeprefix("x"))
            moved = every[j, column] - every[i, column]
            found["direction"].append(moved * (each.difference or 0.0) > 0)
    return found


if __name__ == "__main__":
    main()
