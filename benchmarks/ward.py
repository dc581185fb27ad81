"""The method `ward` against Ward's clustering of pooled rows.

First table: with ``protection: none`` and M at least the rows of a site, heights and cuts are those
of scipy's ``linkage(method="ward")`` on all rows. Second table: ARI is the adjusted Rand index with
the classes, mean of the splits over 4 sites, at p = 5. Pooled is scipy's tree of all rows, scaled
to variance 1, cut at the same K; "pooled, nearest" labels these rows by the nearest mean of its
clusters, and 95 % of rows are draws without replacement, which show how far the rows alone move it.
Nearest and tree are the two values of the option ``labels``. Third table: CPU seconds of the
coordinator.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.metrics import adjusted_rand_score

from _data import SHARED, digits, mnist
from _report import write
from fedclust import SessionResult, simulate
from fedclust.methods import ward
from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.numeric.distances import nearest_centroid
from fedclust.schema.encoding import Space
from fedclust.schema.feature import Feature
from fedclust.schema.run_config import Policy, RunConfig
from fedclust.schema.task import Contribution

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Data = tuple[FloatArray, IntArray]
N_SITES = 4
#: Rows of the two large sets: scipy needs the distances of all pairs.
_MOST_ROWS = 3_000


def dim064() -> Data:
    """Return the 16 clusters in 64 columns of the DIM sets."""
    with np.load(SHARED / "dim_sets" / "dim064.npz") as file:
        return file["X"].astype(np.float64), file["y"].astype(np.int64)


def heart() -> Data:
    """Return the five measured columns of Cleveland's heart patients, and who is ill."""
    path = SHARED / "heart_disease" / "processed.cleveland.data"
    table = np.genfromtxt(path, delimiter=",", missing_values="?")
    return table[:, [0, 3, 4, 7, 9]], (table[:, 13] > 0).astype(np.int64)


def activities() -> Data:
    """Return smartphone measurements of the activities of the first seven persons."""
    with np.load(SHARED / "uci_har" / "har_train_part0.npz") as file:
        return file["X"].astype(np.float64), file["y"].astype(np.int64)


def handwriting() -> Data:
    """Return digits of MNIST, 14 x 14."""
    X, y = mnist()
    return X.reshape(len(X), -1)[:_MOST_ROWS], y[:_MOST_ROWS]


#: Data, and K where it is not the number of classes.
DATA: dict[str, tuple[Callable[[], Data], int | None]] = {
    "iris": (lambda: load_iris(return_X_y=True), None),
    "wine": (lambda: load_wine(return_X_y=True), None),
    "breast cancer": (lambda: load_breast_cancer(return_X_y=True), None),
    "breast cancer, K = 4": (lambda: load_breast_cancer(return_X_y=True), 4),
    "digits": (digits, None),
    "dim064": (dim064, None),
    "heart disease": (heart, None),
    "activities (HAR)": (activities, None),
    "handwriting (MNIST)": (handwriting, None),
}
#: Data of the first table: up to 500 rows at a site.
EXACT = ("iris", "wine", "breast cancer", "digits", "dim064", "heart disease")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--draws", type=int, default=20, help="of 95 %% of the rows")
    options = parser.parse_args()
    write("ward_exact", [compare_exactly(name) for name in EXACT])
    write(
        "ward",
        [row_of(name, options.splits, options.draws) for name in DATA],
        note=f"p = 5, {N_SITES} sites, mean of {options.splits} splits; M = 200 or as named.",
    )
    cases = (
        (4, 200, 10),
        (20, 200, 10),
        (8, 500, 10),
        (8, 500, 50),
        (100, 200, 10),
        (100, 200, 50),
    )
    write("ward_time", [time_of(*case) for case in cases])


def scaled(X: FloatArray) -> FloatArray:
    """Return columns of variance 1; constant ones stay 0."""
    spread = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def deal(n: int, split: int) -> dict[str, IntArray]:
    """Return the rows of each site, dealt out at random."""
    order = np.random.default_rng(split).permutation(n)
    return {f"site{i}": rows for i, rows in enumerate(np.array_split(order, N_SITES))}


def run(X: FloatArray, sites: dict[str, IntArray], **options: object) -> SessionResult:
    """Return a session of the method."""
    protection = options.pop("protection", "groups")
    return simulate(
        "ward",
        {site: X[rows] for site, rows in sites.items()},
        config=options,
        policy={"protection": protection},
    )


def labels_of(result: SessionResult, sites: dict[str, IntArray]) -> IntArray:
    """Return the labels of all rows, in the data's order."""
    found = np.empty(sum(map(len, sites.values())), dtype=np.int64)
    for site, rows in sites.items():
        found[rows] = result.labels_[site]
    return found


def compare_exactly(name: str) -> dict[str, object]:
    """Return how far a session on exact rows is from scipy's tree of them."""
    make, _ = DATA[name]
    X, _ = make()
    ks = list(range(2, 11))
    sites = deal(len(X), 0)
    result = run(X, sites, n_clusters=ks, cells=500, labels="tree", protection="none")
    central = linkage(scaled(X), "ward")
    top = result.at(2).result.dendrogram
    cells = [entry.payload for entry in result.trace_ if entry.phase == "cells"]
    means, counts, _ = ward.gather({str(i): each for i, each in enumerate(cells)}, X.shape[1])
    heights = np.sqrt(2.0 * ward.ward_merges(means, counts)[:, 2])
    assert np.array_equal(heights[-len(top.heights) :], top.heights)
    agree = [
        adjusted_rand_score(fcluster(central, k, "maxclust"), labels_of(result.at(k), sites))
        for k in ks
    ]
    return {
        "data": name,
        "rows": len(X),
        "most at a site": max(map(len, sites.values())),
        "heights, largest relative difference": float(
            np.abs(heights - central[:, 2]).max() / central[:, 2].max()
        ),
        "least ARI of the cuts at K = 2 to 10": min(agree),
    }


def row_of(name: str, splits: int, draws: int) -> dict[str, object]:
    """Return the agreement with the classes, pooled and in sessions."""
    make, wanted = DATA[name]
    X, y = make()
    k = wanted or len(np.unique(y))

    def clusters(rows: IntArray) -> IntArray:
        return np.asarray(fcluster(linkage(scaled(X[rows]), "ward"), k, "maxclust"))

    def pooled(rows: IntArray) -> float:
        return float(adjusted_rand_score(y[rows], clusters(rows)))

    every = np.arange(len(X))
    Z, own = scaled(X), clusters(every)
    means_of = np.array([Z[own == label].mean(axis=0) for label in np.unique(own)])
    by_mean = adjusted_rand_score(y, nearest_centroid(Z, means_of))
    part = int(0.95 * len(X))
    few = 5 if len(X) > 2_000 else draws
    drawn = [pooled(np.random.default_rng(i).permutation(every)[:part]) for i in range(few)]
    found: dict[str, list[float]] = {}
    for split in range(splits):
        sites = deal(len(X), split)
        for what, labels, cells in (
            ("nearest", "nearest", 200),
            ("tree", "tree", 200),
            ("tree, M = 50", "tree", 50),
        ):
            result = run(X, sites, n_clusters=k, labels=labels, cells=cells)
            score = adjusted_rand_score(y, labels_of(result, sites))
            found.setdefault(what, []).append(float(score))
    row: dict[str, object] = {
        "data": name,
        "rows": len(X),
        "K": k,
        "pooled": round(pooled(every), 3),
    }
    row["pooled, nearest"] = round(float(by_mean), 3)
    row["pooled, 95 % of rows"] = f"{np.mean(drawn):.3f} ({min(drawn):.3f} to {max(drawn):.3f})"
    means = {what: round(float(np.mean(values)), 3) for what, values in found.items()}
    row |= means
    row["tree less pooled"] = round(means["tree"] - pooled(every), 3)
    return row


def time_of(n_sites: int, n_cells: int, d: int) -> dict[str, object]:
    """Return the coordinator's time for so many cells."""
    rng = np.random.default_rng(0)
    config = RunConfig(
        ward.Config(n_clusters=tuple(range(2, 11)), cells=n_cells),
        tuple(Feature(name=f"x{j}") for j in range(d)),
        Policy(),
        (),
        5,
        space=Space.identity(d),
    )
    sent = [
        Contribution(
            f"site{i:03}",
            Cells(counts=rng.integers(5, 10, n_cells), means=rng.normal(size=(n_cells, d))),
            5,
        )
        for i in range(n_sites)
    ]
    began = time.process_time()
    done = ward.aggregate(ward.State(), sent, config)
    tree = done.result.sweep[0].result.dendrogram
    return {
        "sites": n_sites,
        "cells a site": n_cells,
        "d": d,
        "cells of the tree": tree.n_cells,
        "CPU s, nine K": time.process_time() - began,
    }


if __name__ == "__main__":
    main()
