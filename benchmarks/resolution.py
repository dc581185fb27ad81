"""How often the warning on resolution is right: clusters that are finer than the sites' groups.

A run's cost is the inertia of all rows with the centroids found by weighted k-means on the tables,
over that of central k-means on the rows. The warning should come in at least 95 % of the runs with
cost above 1.05, and in at most 5 % of those below 1.01. The constants of the criterion were chosen
on the first set's kinds of data; the second set has other seeds, the third other kinds of data.
"""

import argparse
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_moons,
)
from sklearn.metrics import pairwise_distances_argmin_min

from _data import SHARED, fkm, mnist
from _report import write
from _runs import Job, Record, fingerprint, run
from fedclust.data.readings import FeatureReading, session_points
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.protection.columns import SourceColumn
from fedclust.protection.table import form_table
from fedclust.rounds.resolution import resolution_warning
from fedclust.schema.feature import Feature
from fedclust.schema.task import Points, total_variances

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
SPLITS = ("even", "uneven", "Dirichlet", "Voronoi")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="of each set")
    options = parser.parse_args()
    usual = {kind: 1 for kind in DRAW if kind not in FRESH}
    usual |= {"Gaussian": 8, "noise": 2, "yes/no mixture": 3}
    for name, first, kinds in (
        ("calibration", 0, usual),
        ("other seeds", 10_000_000, usual),
        ("other data", 40_000_000, dict.fromkeys(FRESH, 1)),
    ):
        drawn = [kind for kind, times in kinds.items() for _ in range(times)]
        jobs = [
            Job(simulate, {"kind": drawn[i % len(drawn)], "seed": first + i})
            for i in range(options.runs)
        ]
        records = run("resolution", jobs, fingerprint(__file__))
        rows = [_rates(kind, [each for each in records if each["kind"] == kind]) for kind in kinds]
        write(f"resolution_{name.replace(' ', '_')}", [*rows, _rates("all", records)])
    write("resolution_known", [_known(*case) for case in KNOWN], note="p = 5; means of 5 seeds.")


def _rates(kind: str, records: list[Record]) -> Record:
    """Return how often the warning came, by cost."""
    found: Record = {"data": kind, "runs": len(records)}
    for name, low, high in (("< 1.01", 0.0, 1.01), ("between", 1.01, 1.05), ("> 1.05", 1.05, 99e9)):
        some = [each["warned"] for each in records if low <= each["cost"] < high]
        found[f"cost {name}"] = len(some)
        found[f"warned {name}"] = sum(some)
    return found


# --- one run --------------------------------------------------------------------------------------


def simulate(kind: str, seed: int) -> Record:
    """Draw data, sites and K by a seed; return cost and whether the warning came."""
    rng = np.random.default_rng(seed)
    X, labels, k = DRAW[kind](rng)
    n_sites = min(int(rng.choice([2, 3, 4, 5, 10, 20, 50])), len(X) // 50)
    if kind == "many small sites":
        n_sites = len(X) // int(rng.choice([15, 25, 40]))
    how = "Dirichlet" if kind.endswith("Dirichlet") else str(rng.choice(SPLITS))
    sites = _split(X, labels, n_sites, how, rng)
    cost, warned = _measure(X, sites, min(k, len(X) // 12), int(rng.choice([3, 5, 5, 10, 10])), rng)
    return {"kind": kind, "cost": cost, "warned": warned}


def _measure(
    X: FloatArray, sites: list[IntArray], k: int, p: int, rng: np.random.Generator
) -> tuple[float, bool]:
    """Cluster the tables of sites, each with its rows' numbers; return cost and the warning."""
    rows = [X[site] for site in sites if len(site) >= p]
    tables = [_points(each, p) for each in rows]
    whole = np.vstack(rows)
    points = np.vstack([each.X for each in tables])
    weights = np.concatenate([each.sizes for each in tables]).astype(np.float64)
    centroids = weighted_kmeans(points, weights, k, rng, 20)
    k = len(centroids)
    central = min(
        KMeans(k, n_init=10, random_state=0).fit(whole).inertia_,
        KMeans(k, init=centroids, n_init=1).fit(whole).inertia_,
    )
    cost = float((pairwise_distances_argmin_min(whole, centroids)[1] ** 2).sum()) / central
    return cost, _warned(tables, centroids)


def _points(rows: FloatArray, p: int) -> Points:
    names = [f"x{column}" for column in range(rows.shape[1])]
    sources = [
        SourceColumn(*each) for each in zip(names, np.ascontiguousarray(rows.T), strict=True)
    ]
    readings = [FeatureReading(Feature(name=name, kind="numeric"), name) for name in names]
    return session_points(form_table(sources, p), readings, dict.fromkeys(names), "made up")


def _warned(tables: list[Points], centroids: FloatArray) -> bool:
    counts, points, costs = np.zeros((3, len(tables), len(centroids)))
    for site, table in enumerate(tables):
        labels, gaps = pairwise_distances_argmin_min(table.X, centroids)
        np.add.at(counts[site], labels, table.sizes)
        np.add.at(points[site], labels, 1)
        np.add.at(costs[site], labels, table.sizes * gaps**2)
    within = np.stack([table.within * total_variances(table) for table in tables])
    whole = counts.astype(np.int64), points.astype(np.int64)
    return resolution_warning(*whole, costs, within, centroids) is not None


def _split(
    X: FloatArray, labels: IntArray, n_sites: int, how: str, rng: np.random.Generator
) -> list[IntArray]:
    n = len(X)
    if how == "even":
        taker = rng.permutation(n) % n_sites
    elif how == "uneven":
        share = np.exp(rng.normal(size=n_sites))
        taker = rng.choice(n_sites, n, p=share / share.sum())
    elif how == "Dirichlet":
        shares = rng.dirichlet(np.full(n_sites, 0.3), int(labels.max()) + 1)
        taker = np.array([rng.choice(n_sites, p=shares[label]) for label in labels])
    else:
        taker = pairwise_distances_argmin_min(X, X[rng.choice(n, n_sites, replace=False)])[0]
    return [np.flatnonzero(taker == site) for site in range(n_sites)]


# --- data -----------------------------------------------------------------------------------------


def _n_rows(rng: np.random.Generator, d: int) -> int:
    return int(np.exp(rng.uniform(np.log(200), np.log(2_500 if d <= 5 else 1_800))))


def _gaussian(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    d, k = int(rng.choice([2, 3, 5, 8, 15, 30])), int(rng.choice([2, 3, 5, 8, 12, 20, 35, 50]))
    apart = np.exp(rng.uniform(np.log(0.7), np.log(10.0))) * rng.choice([1.0, (2 / d) ** 0.5])
    weights = np.full(k, 1 / k) if rng.random() < 0.6 else rng.dirichlet(np.full(k, 3.0))
    labels = rng.choice(k, _n_rows(rng, d), p=weights)
    scales = np.exp(rng.normal(size=k) * rng.choice([0.0, 0.3]))
    noise = rng.normal(size=(len(labels), d)) * scales[labels, None]
    wanted = k if rng.random() < 0.7 else int(rng.choice([2, 4, 8, 16, 30]))
    return rng.normal(size=(k, d))[labels] * apart + noise, labels, wanted


def _noise(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    d = int(rng.choice([2, 3, 5, 8, 15, 30]))
    X = rng.normal(size=(_n_rows(rng, d), d))
    return X, (X[:, 0] > 0).astype(np.int64), int(rng.choice([2, 4, 8, 16, 30]))


def _binary(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    d, k = int(rng.choice([8, 20, 40])), int(rng.choice([3, 6, 10]))
    X, labels = _binary_rows(_n_rows(rng, d), d, k, rng)
    return X, labels, k if rng.random() < 0.7 else int(rng.choice([2, 4, 8, 12]))


def _binary_rows(n: int, d: int, k: int, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    shares = rng.beta(0.5, 0.5, (k, d))
    shares[:, :3] = 0.02
    labels = rng.choice(k, n)
    return (rng.random((n, d)) < shares[labels]).astype(np.float64), labels


REAL = {
    "cancer": load_breast_cancer,
    "digits": load_digits,
    "wine": load_wine,
    "iris": load_iris,
    "diabetes": load_diabetes,
}


@cache
def _real(name: str) -> tuple[FloatArray, IntArray]:
    if name == "MNIST":
        X, y = mnist(7)
        X = X.reshape(len(X), -1)[:2_000]
        return X[:, X.std(axis=0) > 0.05], y[:2_000]
    if name == "activity":
        with np.load(SHARED / "uci_har" / "har_train_part0.npz") as file:
            return file["X"][::2, ::14].astype(np.float64), file["y"][::2].astype(np.int64) - 1
    if name == "dim032":
        with np.load(SHARED / "dim_sets" / "dim032.npz") as file:
            return file["X"].astype(np.float64), file["y"].astype(np.int64)
    if name == "heart":
        table = np.genfromtxt(SHARED / "heart_disease" / "processed.cleveland.data", delimiter=",")
        table = table[~np.isnan(table).any(axis=1)]
        return table[:, :-1] / table[:, :-1].std(axis=0), (table[:, -1] > 0.0).astype(np.int64)
    X, y = REAL[name](return_X_y=True)
    X = X[:, X.std(axis=0) > 0.0]
    return (X if name == "digits" else X / X.std(axis=0)), np.unique(y, return_inverse=True)[1]


def _some(
    name: str, most_clusters: int, yes_no: bool = False
) -> Callable[[np.random.Generator], tuple[FloatArray, IntArray, int]]:
    def draw(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
        X, y = _real(name)
        X = (np.median(X, axis=0) < X).astype(np.float64) if yes_no else X
        kept = rng.permutation(len(X))[: int(len(X) * rng.choice([0.6, 0.8, 1.0]))]
        return X[kept], y[kept], int(rng.integers(2, most_clusters + 1))

    return draw


def _whole_numbers(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    X, labels, k = _gaussian(rng)
    return np.rint(X * 2.0), labels, k


def _heavy_tails(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    X, labels, k = _gaussian(rng)
    return X + 0.5 * rng.standard_t(3, X.shape), labels, k


def _stretched(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    X, labels, k = _gaussian(rng)
    d = X.shape[1]
    return X @ (rng.normal(size=(d, d)) / d**0.5), labels, k


def _uniform(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    d = int(rng.choice([2, 4, 10]))
    X = rng.random((_n_rows(rng, d), d))
    return X, (X[:, 0] > 0.5).astype(np.int64), int(rng.integers(2, 31))


def _skewed(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    X, labels, k = _gaussian(rng)
    return np.exp(X / X.std()), labels, k


# --- data that the criterion was not calibrated on ------------------------------------------------


def _far(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    """Three large clusters, and five far ones of a twentieth of their persons."""
    d, n = int(rng.choice([2, 4, 8])), int(rng.integers(200, 700))
    far = rng.normal(size=(5, d))
    far *= rng.uniform(12.0, 25.0) / np.linalg.norm(far, axis=1, keepdims=True)
    centers = np.vstack([rng.normal(size=(3, d)) * 3.0, far])
    labels = np.repeat(np.arange(8), [n] * 3 + [max(n // 20, 5)] * 5)
    return centers[labels] + rng.normal(size=(len(labels), d)), labels, int(rng.choice([5, 8, 8]))


def _ring(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    """31 round clusters: one in the middle, ten and twenty on rings around it."""
    turns = 2.0 * np.pi * np.concatenate([[0.0], np.arange(10) / 10, np.arange(20) / 20])
    radii = np.repeat([0.0, 1.0, 2.0], [1, 10, 20])[:, None]
    labels = np.repeat(np.arange(31), int(rng.integers(15, 80)))
    centers = radii * np.column_stack([np.cos(turns), np.sin(turns)])
    noise = rng.normal(size=(len(labels), 2)) * rng.uniform(0.05, 0.25)
    return centers[labels] + noise, labels, int(rng.choice([11, 31, 31]))


def _square(
    n_clusters: tuple[int, int], apart: tuple[float, float]
) -> Callable[[np.random.Generator], tuple[FloatArray, IntArray, int]]:
    """Round clusters whose centres are drawn in a square with this side per root of a cluster."""

    def draw(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
        k = int(rng.integers(n_clusters[0], n_clusters[1] + 1))
        labels = rng.choice(k, _n_rows(rng, 2))
        centers = rng.random((k, 2)) * k**0.5 * rng.uniform(*apart)
        return centers[labels] + rng.normal(size=(len(labels), 2)), labels, k

    return draw


def _mixed(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    """Ten yes/no columns and five numbers."""
    k = int(rng.choice([3, 5, 8]))
    yes_no, labels = _binary_rows(_n_rows(rng, 15), 10, k, rng)
    numbers = rng.normal(size=(k, 5))[labels] * rng.uniform(0.5, 2.5) + rng.normal(
        size=(len(labels), 5)
    )
    return np.hstack([yes_no / np.maximum(yes_no.std(axis=0), 0.05), numbers]), labels, k


def _spending(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    """Amounts that many persons have none of; their logarithms."""
    d, k = int(rng.choice([3, 6, 10])), int(rng.choice([3, 5, 8, 12]))
    labels = rng.choice(k, _n_rows(rng, d))
    some = rng.random((len(labels), d)) < rng.random((k, d))[labels]
    return some * (5.0 + rng.normal(size=(k, d))[labels] + rng.normal(size=some.shape)), labels, k


def _wild_tails(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    d, k = int(rng.choice([3, 5, 10])), int(rng.choice([2, 4, 8, 15]))
    labels = rng.choice(k, _n_rows(rng, d))
    centers = rng.normal(size=(k, d)) * rng.uniform(1.0, 5.0)
    return centers[labels] + rng.standard_t(2.5, (len(labels), d)), labels, k


def _factors(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    """Many columns that follow from a few."""
    d, inner = int(rng.choice([10, 25, 50])), int(rng.choice([1, 2, 3, 5]))
    factors = rng.normal(size=(_n_rows(rng, d), inner))
    X = factors @ rng.normal(size=(inner, d)) + rng.normal(size=(len(factors), d)) * rng.uniform(
        0.1, 1.0
    )
    return X, (factors[:, 0] > 0.0).astype(np.int64), int(rng.integers(2, 21))


def _fkm(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    """FKM's 16 clusters on a grid."""
    data = fkm("1", float(rng.choice([0.5, 1.0, 1.5])), int(rng.choice([25, 50, 100])), 0)
    return data.X + rng.normal(size=data.X.shape) * 0.1, data.y, int(rng.choice([8, 16, 16]))


def _moons(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    X, y = make_moons(_n_rows(rng, 2), noise=0.1, random_state=int(rng.integers(1_000)))
    return X, y, int(rng.integers(2, 16))


def _unequal(rng: np.random.Generator) -> tuple[FloatArray, IntArray, int]:
    """Clusters of very unequal sizes and spreads, in correlated columns."""
    d, k = int(rng.choice([3, 6, 12])), int(rng.choice([4, 8, 16]))
    labels = rng.choice(k, _n_rows(rng, d), p=rng.dirichlet(np.full(k, 0.7)))
    spreads = np.exp(rng.normal(size=(k, 1)))
    X = rng.normal(size=(k, d))[labels] * 4.0 + rng.normal(size=(len(labels), d)) * spreads[labels]
    return X @ (np.eye(d) + 0.3 * rng.normal(size=(d, d))), labels, k


FRESH: dict[str, Callable[[np.random.Generator], tuple[FloatArray, IntArray, int]]] = {
    "small far clusters": _far,
    "clusters on rings": _ring,
    "15 that overlap": _square((15, 15), (1.5, 6.0)),
    "20 to 50, Dirichlet": _square((20, 50), (4.0, 9.0)),
    "yes/no and numbers": _mixed,
    "spending": _spending,
    "wild tails": _wild_tails,
    "factors": _factors,
    "many small sites": _gaussian,
    "human activity": _some("activity", 20),
    "dim032": _some("dim032", 20),
    "heart disease": _some("heart", 10),
    "FKM's grid": _fkm,
    "moons": _moons,
    "unequal spreads": _unequal,
}

DRAW: dict[str, Callable[[np.random.Generator], tuple[FloatArray, IntArray, int]]] = {
    "Gaussian": _gaussian,
    "noise": _noise,
    "yes/no mixture": _binary,
    "breast cancer": _some("cancer", 12),
    "breast cancer, yes/no": _some("cancer", 12, yes_no=True),
    "digits": _some("digits", 30),
    "MNIST": _some("MNIST", 30),
    "wine": _some("wine", 8),
    "whole numbers": _whole_numbers,
    "heavy tails": _heavy_tails,
    "stretched": _stretched,
    "iris": _some("iris", 8),
    "diabetes": _some("diabetes", 12),
    "uniform": _uniform,
    "skewed": _skewed,
    **FRESH,
}


# --- cases with known costs -----------------------------------------------------------------------


def _grid(rng: np.random.Generator) -> FloatArray:
    centers = np.array([(x, y) for x in range(7) for y in range(5)]) * 5.0
    return np.repeat(centers, 150, axis=0) + rng.normal(size=(5_250, 2))


def _mixture(n: int) -> Callable[[np.random.Generator], FloatArray]:
    return lambda rng: _binary_rows(n, 20, 6, rng)[0]


def _whole(name: str) -> Callable[[np.random.Generator], FloatArray]:
    return lambda _: _real(name)[0]


KNOWN: tuple[tuple[str, Callable[[np.random.Generator], FloatArray], int, int], ...] = (
    ("35 Gaussians of 150 rows", _grid, 35, 5),
    ("35 Gaussians of 150 rows", _grid, 35, 50),
    ("yes/no mixture, sites of 200", _mixture(800), 6, 4),
    ("yes/no mixture, sites of 50", _mixture(200), 6, 4),
    ("digits", _whole("digits"), 10, 4),
    ("digits", _whole("digits"), 20, 10),
    ("breast cancer", _whole("cancer"), 2, 4),
    ("breast cancer", _whole("cancer"), 8, 4),
)


def _known(name: str, draw: Callable[[np.random.Generator], FloatArray], k: int, s: int) -> Record:
    costs, warned = [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X = draw(rng)
        sites = np.array_split(rng.permutation(len(X)), s)
        cost, warns = _measure(X, [np.asarray(site) for site in sites], k, 5, rng)
        costs.append(cost)
        warned.append(warns)
    return {"data": name, "K": k, "sites": s, "cost": float(np.mean(costs)), "warned": sum(warned)}


if __name__ == "__main__":
    main()
