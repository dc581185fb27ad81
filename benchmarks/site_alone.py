"""How far transfer's figures of groups are from those of the rows of the same sites.

The adjusted Rand index of a site's own k-means and of the k-means of the other sites with the
common clusters, at p = 5, against the same k-means of rows and the labels of these. For each kind
of data and size of a site: the share of sites for which each is within .1 of that of the rows, the
least and greatest difference, the share for which the own one is in another band (.8, .65), and the
share of clusters for which the groups say otherwise than the rows whether the site has the cluster
alone (a Jaccard index of .5). "Again": the share of sites for which a second k-means of the rows is
within .1 of the first.

Mixed 3+2: three numbers and two yes/no columns. With `--support`, SUPPORT too (the extra
`examples`).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _hospitals import heart
from _report import write
from fedclust import simulate
from fedclust.numeric.agreement import adjusted_rand_index, contingency_table, matched
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from table_one import KINDS, Sites, _real

IntArray = NDArray[np.int64]
SIZES = (8, 60), (8, 200), (4, 1138)
DRAWN = (
    "Gaussian",
    "correlated",
    "lognormal",
    "gamma",
    "t3",
    "uniform",
    "counts",
    "zero-inflated",
    "Gaussian, no effect",
)
MIXED = (4, 1), (3, 2), (3, 5), (2, 8), (0, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--support", action="store_true", help="SUPPORT too")
    options = parser.parse_args()
    found: dict[tuple[str, int, float], list[tuple[float, ...]]] = defaultdict(list)
    for seed in range(options.first, options.first + options.seeds):
        for name, sites in _sites(seed, support=options.support):
            for missing in (0.0, 0.15):
                size = round(sum(map(len, sites)) / len(sites))
                found[name, size, missing] += _compare(sites, missing, seed)
    lines = [_line(*about, each) for about, each in found.items() if each]
    write("site_alone", lines, note="p = 5.")


def _sites(seed: int, *, support: bool) -> Iterator[tuple[str, Sites]]:
    for n_sites, n in SIZES:
        rng = np.random.default_rng([seed, n_sites, n])
        where = np.arange(n_sites * n) % n_sites
        for kind in DRAWN:
            centres = 2.0 * rng.normal(size=(3, 5))[rng.integers(0, 3, len(where))]
            X = KINDS[kind][0](rng, 0.0 * centres if kind.endswith("no effect") else centres)
            yield kind, [X[where == site] for site in range(n_sites)]
        for numbers, yes_no in MIXED:
            d = numbers + yes_no
            centres = 2.0 * rng.normal(size=(3, d))[rng.integers(0, 3, len(where))]
            X = rng.normal(size=centres.shape) + centres
            yes = 1.0 / (1.0 + np.exp(-centres[:, numbers:]))
            X[:, numbers:] = rng.random(yes.shape) < yes
            yield f"mixed {numbers}+{yes_no}", [X[where == site] for site in range(n_sites)]
    yield from _real(seed, support=support)
    hospitals, _ = heart()
    everywhere = np.all(list(hospitals.masks.values()), axis=0)
    split = hospitals.split.values()
    yield "heart, yes/no too", [hospitals.X[rows][:, everywhere] for rows in split]


def _compare(sites: Sites, missing: float, seed: int) -> list[tuple[float, ...]]:
    """Return of each site both indices of the groups and of the rows, and how many words differ."""
    rng, k = np.random.default_rng(seed), 2 + seed % 3
    tables = {
        f"{place:02}": np.where(rng.random(rows.shape) < missing, np.nan, rows)
        for place, rows in enumerate(sites)
    }
    every = np.concatenate(list(tables.values()))
    yes_no = (np.isin(every, (0.0, 1.0)) | np.isnan(every)).all(axis=0)
    columns = [
        {"name": f"x{j}", "kind": "binary" if one else "numeric"} for j, one in enumerate(yes_no)
    ]
    config = {"n_clusters": k, "transfer": True}
    session = simulate("lloyd", tables, config=config, features=columns, seed=seed)
    result, found = session.result, []
    assert result.transfer is not None
    # A missing value counts as the mean, which is 0 here.
    rows = {s: np.nan_to_num((X - result.center) / result.scale) for s, X in tables.items()}
    for site, own in result.transfer.sites.items():
        if own.own_table is None or own.own_ari is None or own.left_out_ari is None:
            continue
        labels = session.labels_[site]
        others = np.concatenate([X for name, X in rows.items() if name != site])
        first, again, without = (
            _table(fitted, rows[site], labels, k, rng)
            for fitted in (rows[site], rows[site], others)
        )
        alone = _held(own.own_table) != _held(first)
        known = own.own_table.any(axis=0)
        indices = map(adjusted_rand_index, (first, without, again))
        found.append((own.own_ari, own.left_out_ari, *indices, float(alone[known].mean())))
    return found


def _table(
    fitted: NDArray[np.float64],
    rows: NDArray[np.float64],
    labels: IntArray,
    k: int,
    rng: np.random.Generator,
) -> IntArray:
    """Count rows (n, d) by a k-means of some (m, d), matched, and by their labels: (K, K)."""
    own = nearest_centroid(rows, weighted_kmeans(fitted, np.ones(len(fitted)), k, rng, 10))
    table = contingency_table(own, labels, np.ones_like(labels), (k, k))
    ordered = np.zeros_like(table)
    ordered[matched(table)] = table
    return ordered


def _held(table: IntArray) -> NDArray[np.bool_]:
    both = np.diag(table)
    return np.asarray(both >= 0.5 * (table.sum(axis=0) + table.sum(axis=1) - both))


def _line(name: str, size: int, missing: float, found: list[tuple[float, ...]]) -> dict[str, Any]:
    own, left, rows_own, rows_left, again, words = np.array(found).reshape(-1, 6).T
    line = {"data": name, "persons": size, "missing": missing, "sites": len(own)}
    for what, off in (("alone", own - rows_own), ("without it", left - rows_left)):
        line[f"{what}, within .1"] = float((np.abs(off) <= 0.1).mean())
        line[f"{what}, from"], line[f"{what}, to"] = float(off.min()), float(off.max())
    line["again"] = float((np.abs(again - rows_own) <= 0.1).mean())
    bands = np.digitize(own, (0.65, 0.8)), np.digitize(rows_own, (0.65, 0.8))
    line["other band"] = float((bands[0] != bands[1]).mean())
    line["other words"] = float(words.mean())
    return line


if __name__ == "__main__":
    main()
