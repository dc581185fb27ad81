"""The cost of the protected table: k-means on the tables of several sites against central k-means.

The cost is the inertia of all rows with the centroids found on the tables, over that of central
k-means on the rows; both use 20 starts. The second table gives the CPU time of forming one table
and of one pass of scikit-learn's k-means: medians of three, taken in turns. Its cost is that of one
run of k-means from given centroids. The third table gives the CPU time of forming a table where
values are missing at random.
"""

import argparse
import time
from collections.abc import Callable
from statistics import mean, median

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import pairwise_distances_argmin_min

from _report import write
from fedclust.protection.columns import SourceColumn
from fedclust.protection.table import ProtectedTable, form_table

FloatArray = NDArray[np.float64]
P = 5
STARTS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    cancer, digits = load_breast_cancer().data, load_digits().data.astype(np.float64)
    cancer = cancer / cancer.std(axis=0)
    yes_no = (cancer > np.median(cancer, axis=0)).astype(np.float64)
    cases = [
        ("breast cancer", cancer, 2, 4, 1.004),
        ("breast cancer", cancer, 4, 4, 1.022),
        ("breast cancer", cancer, 8, 4, 1.06),
        ("digits", digits, 10, 4, 1.018),
        ("digits", digits, 20, 10, 1.11),
        ("breast cancer, yes/no", yes_no, 4, 4, 1.02),
        ("breast cancer, yes/no", yes_no, 8, 4, 1.05),
    ]
    rows = []
    for name, X, k, n_sites, reach in cases:
        central = KMeans(k, n_init=STARTS, random_state=0).fit(X).inertia_
        costs = [_cost(X, k, n_sites, seed) / central for seed in range(options.seeds)]
        rows.append(
            {
                "data": name,
                "K": k,
                "sites": n_sites,
                "cost (mean)": mean(costs),
                "most": max(costs),
                "reach": reach,
            }
        )
    write("protected_table", rows, note=f"p = {P}; {options.seeds} splits into sites.")
    speed = [_speed(n, 32) for n in (50_000, 1_000_000)]
    write("protected_table_speed", speed, note="CPU seconds. 16 clusters, 32 columns.")
    missing = [_missing_speed(n, 24) for n in (8_000, 16_000, 32_000)]
    write("protected_table_missing", missing, note="CPU seconds by share of missing values.")


def _sources(rows: FloatArray) -> list[SourceColumn]:
    columns = np.ascontiguousarray(rows.T)
    return [SourceColumn(f"x{column}", values) for column, values in enumerate(columns)]


def _points(table: ProtectedTable) -> FloatArray:
    return np.column_stack([table.values(name) for name in table.names()])


def _cost(X: FloatArray, k: int, n_sites: int, seed: int) -> float:
    order = np.random.default_rng(seed).permutation(len(X))
    tables = []
    for rows in np.array_split(order, n_sites):
        sources = _sources(X[rows])
        table = form_table(sources, P)
        tables.append((np.column_stack([table.values(each.name) for each in sources]), table.sizes))
    points = np.vstack([each for each, _ in tables])
    weights = np.concatenate([sizes for _, sizes in tables])
    found = KMeans(k, n_init=STARTS, random_state=0).fit(points, sample_weight=weights)
    nearest = pairwise_distances_argmin_min(X, found.cluster_centers_)[1]
    return float((nearest**2).sum())


def _speed(n: int, d: int) -> dict[str, object]:
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(16, d)) * 6.0 / np.sqrt(2 * d)
    X = centers[rng.integers(0, 16, n)] + rng.normal(size=(n, d))
    one_pass, forming = [], []
    for _ in range(3):
        one_pass.append(_seconds(KMeans(16, init=centers, n_init=1, max_iter=1).fit, X))
        forming.append(_seconds(lambda X: form_table(_sources(X), P), X))
    points = form_table(_sources(X), P)
    gaps = _points(points) - X.mean(axis=0)
    between = float((gaps**2 * points.sizes[:, None]).sum())
    central = KMeans(16, init=centers, n_init=1).fit(X)
    found = KMeans(16, init=centers, n_init=1).fit(_points(points), sample_weight=points.sizes)
    nearest = pairwise_distances_argmin_min(X, found.cluster_centers_)[1]
    return {
        "persons": n,
        "groups": len(points.sizes),
        "forming s": median(forming),
        "scikit-learn pass s": median(one_pass),
        "ratio": median(forming) / median(one_pass),
        "variance within groups": 1.0 - between / (n * float(X.var(axis=0).sum())),
        "cost": float((nearest**2).sum()) / float(central.inertia_),
    }


def _missing_speed(n: int, d: int) -> dict[str, object]:
    row: dict[str, object] = {"persons": n}
    for share in (0.0, 0.02, 0.1, 0.3):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(8, d))[rng.integers(0, 8, n)] * 1.5 + rng.normal(size=(n, d))
        X[rng.random(X.shape) < share] = np.nan
        row[f"{share:.0%}"] = _seconds(lambda X: form_table(_sources(X), P), X)
    return row


def _seconds(compute: Callable[[FloatArray], object], X: FloatArray) -> float:
    began = time.process_time()
    compute(X)
    return time.process_time() - began


if __name__ == "__main__":
    main()
