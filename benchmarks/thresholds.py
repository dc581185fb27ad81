"""The cost of common thresholds: `fkm` at p = 5, 10 and 11 against no protection, on real data.

The cost is the inertia of all rows with the session's centroids, over that of central k-means (50
restarts) on the pooled rows. The ARI compares labels with the true classes. Rows are scaled
beforehand, except for the pixels of the digits, and dealt to the sites at random; every seed has
another split.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn import datasets

from _baselines import BARE, GROUPS, by_nearest, central, centroid_cost, pooled_ari
from _data import Data, FloatArray, iid
from _report import write
from _runs import Job, Record, fingerprint, run, spread
from fedclust import simulate

CENTRAL_N_INIT = 50


@dataclass(frozen=True)
class Case:
    """A data set that scikit-learn ships, over ``n_sites``; without classes there is no ARI."""

    load: Callable[..., Any]
    k: int
    n_sites: int
    classes: bool = True
    scaled: bool = True
    yes_no: bool = False

    def rows(self) -> tuple[FloatArray, Any]:
        """Return the rows (n, d), each column by its standard deviation, and the classes (n,)."""
        X, y = self.load(return_X_y=True)
        if self.yes_no:
            return (np.median(X, axis=0) < X).astype(np.float64), y
        return (X / X.std(axis=0) if self.scaled else X), y


def _cancer(k: int, n_sites: int, **others: bool) -> Case:
    return Case(datasets.load_breast_cancer, k, n_sites, **others)


def _digits(n_sites: int) -> Case:
    return Case(datasets.load_digits, 10, n_sites, scaled=False)


#: Sites of about 450 to 45 persons; diabetes has one yes/no column.
CASES = {
    "breast cancer, 4 sites": _cancer(2, 4),
    "breast cancer, 8 sites": _cancer(2, 8),
    "breast cancer, K = 8, 4 sites": _cancer(8, 4, classes=False),
    "breast cancer as yes/no, 4 sites": _cancer(4, 4, classes=False, yes_no=True),
    "diabetes, 4 sites": Case(datasets.load_diabetes, 4, 4, classes=False),
    "wine, 3 sites": Case(datasets.load_wine, 3, 3),
    "iris, 3 sites": Case(datasets.load_iris, 3, 3),
    "digits, 4 sites": _digits(4),
    "digits, 10 sites": _digits(10),
    "digits, 20 sites": _digits(20),
    "digits, 40 sites": _digits(40),
}


def measure(name: str, seed: int, thresholds: list[int]) -> Record:
    """Run one case with each threshold and without protection."""
    case = CASES[name]
    X, y = case.rows()
    data = Data(X, y, iid(len(X), case.n_sites, np.random.default_rng([seed, case.n_sites])))
    best = central(X, case.k, CENTRAL_N_INIT, seed)[2]
    policies = {f"p = {p}": {**GROUPS, "min_group_size": p} for p in thresholds}
    found: Record = {}
    for label, policy in {"none": BARE, **policies}.items():
        config = {"n_clusters": case.k}
        result = simulate("fkm", data.sites(), config=config, policy=policy, seed=seed)
        centroids = result.cluster_centers_
        found[f"cost, {label}"] = centroid_cost(X, centroids) / best
        if case.classes:
            found[f"ARI, {label}"] = pooled_ari(data, by_nearest(data, centroids))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="Cases whose names begin so.")
    parser.add_argument("--p", type=int, nargs="+", default=[5, 10, 11], help="The thresholds.")
    options = parser.parse_args()
    chosen = {name: case for name, case in CASES.items() if name.startswith(options.only)}
    jobs = [
        Job(measure, {"name": name, "seed": seed, "thresholds": options.p})
        for name in chosen
        for seed in range(options.runs)
    ]
    records = run("thresholds", jobs, fingerprint(__file__))
    labels = ["none", *(f"p = {p}" for p in options.p)]
    rows = []
    for index, (name, case) in enumerate(chosen.items()):
        part = records[index * options.runs : (index + 1) * options.runs]
        row: dict[str, Any] = {
            "case": name,
            "K": case.k,
            "persons a site": round(len(case.rows()[0]) / case.n_sites),
        }
        for figure in ("cost", "ARI"):
            for label in labels:
                mean = spread(part, f"{figure}, {label}").mean
                row[f"{figure}, {label}"] = "-" if np.isnan(mean) else round(mean, 3)
        rows.append(row)
    write("thresholds", rows, note=f"Means of {options.runs} splits.")


if __name__ == "__main__":
    main()
