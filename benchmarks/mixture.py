"""The method `mixture` at p = 5 against EM on pooled rows.

Every site holds at least 20 persons of each class. ARI is the adjusted Rand index with the true
classes, over all rows, and its mean over the splits. Pooled is EM on all rows in one place:
scikit-learn's ``GaussianMixture(covariance_type="diag")`` if all columns are numbers, or else
``mixture`` with all rows at one site and ``protection: none``. Of pooled EM and of the sessions the
best of several starts by log-likelihood counts. Agreement is the ARI of a session's labels with
those of pooled EM.

Without completion, the variance within groups is taken as 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from _data import SHARED
from _report import write
from fedclust import simulate
from fedclust.methods.mixture import client
from fedclust.simulate import SimulationResult

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
STARTS = 3
DIM = SHARED / "dim_sets" / "dim032.npz"
LEVELS = ("none", "mild", "severe")


def published(loader: Callable[[], Any]) -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return rows, classes and features of one of scikit-learn's data sets."""
    found = loader()
    return found.data, found.target, [{"name": f"x{j}"} for j in range(found.data.shape[1])]


def dim032() -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return the 16 clusters in 32 columns of the DIM sets."""
    with np.load(DIM) as file:
        X, y = file["X"].astype(np.float64), file["y"].astype(np.int64)
    return X, y - y.min(), [{"name": f"x{j}"} for j in range(X.shape[1])]


def unequal() -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return three normal classes with standard deviations of .5, 1 and 2."""
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0, 0, 0], [3, 0, 1, 0], [0, 4, 0, 3]])
    rows = [rng.normal(c, s, (400, 4)) for c, s in zip(centres, (0.5, 1.0, 2.0), strict=True)]
    return np.concatenate(rows), np.repeat(range(3), 400), [{"name": n} for n in "abcd"]


def latent_classes() -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return three latent classes of twelve yes/no columns, in uneven proportions."""
    rng = np.random.default_rng(1)
    y = rng.choice(3, 1600, p=(0.5, 0.3, 0.2))
    shares = np.full((3, 12), 0.15)
    for k in range(3):
        shares[k, 4 * k : 4 * k + 4] = 0.8
    X = (rng.random((1600, 12)) < shares[y]).astype(np.float64)
    return X, y, [{"name": f"sign{j}", "kind": "binary"} for j in range(12)]


def mixed() -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return two classes in four numbers, four yes/no columns and two of levels, as codes."""
    rng = np.random.default_rng(2)
    y = rng.choice(2, 1200, p=(0.65, 0.35))
    numbers = rng.normal(1.3 * y[:, None], 1.0 + 0.5 * y[:, None], (1200, 4))
    yes = rng.random((1200, 4)) < np.where(y[:, None], 0.6, 0.25)
    levels = [
        np.where(y, rng.choice(3, 1200, p=(0.2, 0.3, 0.5)), rng.choice(3, 1200, p=(0.6, 0.3, 0.1)))
        for _ in range(2)
    ]
    features: list[dict[str, Any]] = [{"name": f"lab{j}"} for j in range(4)]
    features += [{"name": f"sign{j}", "kind": "binary"} for j in range(4)]
    features += [{"name": f"grade{j}", "kind": "categorical", "levels": LEVELS} for j in range(2)]
    return np.column_stack([numbers, yes, *levels]), y, features


#: Data, and their number of sites.
DATA: dict[str, tuple[Callable[[], tuple[FloatArray, IntArray, list[dict[str, Any]]]], int]] = {
    "breast cancer": (lambda: published(load_breast_cancer), 4),
    "dim032": (dim032, 3),
    "normal classes of unequal spread": (unequal, 4),
    "latent classes, 12 yes/no columns": (latent_classes, 4),
    "numbers, yes/no and levels": (mixed, 4),
    "wine": (lambda: published(load_wine), 2),
    "iris": (lambda: published(load_iris), 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=5)
    options = parser.parse_args()
    write(
        "mixture",
        [row_of(name, options.splits) for name in DATA],
        note=(
            f"Means over {options.splits} splits, the best of {STARTS} starts each; the default "
            "options. Iris has about 15 groups at a site, five of each class."
        ),
    )


def row_of(name: str, splits: int) -> dict[str, Any]:
    """Return the means over splits."""
    make, n_sites = DATA[name]
    X, y, features = make()
    k = len(np.unique(y))
    pooled = pooled_labels(X, features, k)
    found: dict[str, list[float]] = {}
    for split in range(splits):
        sites = deal(y, n_sites, split)
        for what, protection, completed in (
            ("rows", "none", True),
            ("p = 5", "groups", True),
            ("p = 5 without completion", "groups", False),
        ):
            labels = session_labels(X, features, sites, k, protection, completed=completed)
            found.setdefault(f"ARI, {what}", []).append(adjusted_rand_score(y, labels))
            if what == "p = 5":
                agreement = adjusted_rand_score(pooled, labels)
                found.setdefault("agreement, p = 5", []).append(agreement)
    least = min(int(np.bincount(y[rows]).min()) for rows in deal(y, n_sites, 0).values())
    row: dict[str, Any] = {"data": name, "K": k, "sites": n_sites, "least of a class": least}
    row["ARI, pooled"] = round(adjusted_rand_score(y, pooled), 3)
    row |= {what: round(float(np.mean(values)), 3) for what, values in found.items()}
    row["p = 5 less pooled"] = round(row["ARI, p = 5"] - row["ARI, pooled"], 3)
    return row


def deal(y: IntArray, n_sites: int, seed: int) -> dict[str, IntArray]:
    """Return the rows of each site: the persons of every class dealt out evenly, at random."""
    rng = np.random.default_rng(seed)
    hands: dict[str, list[IntArray]] = {f"site-{i}": [] for i in range(n_sites)}
    for k in np.unique(y):
        parts = np.array_split(rng.permutation(np.flatnonzero(y == k)), n_sites)
        for hand, part in zip(hands.values(), parts, strict=True):
            hand.append(part)
    return {site: np.sort(np.concatenate(parts)) for site, parts in hands.items()}


def pooled_labels(X: FloatArray, features: list[dict[str, Any]], k: int) -> IntArray:
    """Return the labels of EM on pooled rows."""
    if all("kind" not in feature for feature in features):
        rows = (X - X.mean(axis=0)) / X.std(axis=0)
        model = GaussianMixture(
            k, covariance_type="diag", n_init=STARTS, tol=1e-6, max_iter=1000, random_state=0
        )
        return model.fit(rows).predict(rows).astype(np.int64)
    return session_labels(X, features, {"all": np.arange(len(X))}, k, "none", completed=True)


def session_labels(
    X: FloatArray,
    features: list[dict[str, Any]],
    sites: dict[str, IntArray],
    k: int,
    protection: str,
    *,
    completed: bool,
) -> IntArray:
    """Return the labels (n,) of the session of highest log-likelihood."""
    tables = {site: frame(X[rows], features) for site, rows in sites.items()}
    policy = {"protection": protection, "min_sites": 1}
    with without_completion(not completed):
        results = [
            simulate(
                "mixture", tables, config={"n_clusters": k}, policy=policy, features=features,
                seed=seed, progress=False,
            )
            for seed in range(STARTS)
        ]  # fmt: skip
    best = max(results, key=log_likelihood)
    labels = np.empty(len(X), dtype=np.int64)
    for site, rows in sites.items():
        labels[rows] = best.labels_[site]
    return labels


def frame(X: FloatArray, features: list[dict[str, Any]]) -> Any:
    """Return rows as a DataFrame, with the names of levels."""
    import pandas as pd

    columns = {}
    for j, feature in enumerate(features):
        values: Any = X[:, j]
        if feature.get("kind") == "categorical":
            values = np.array(LEVELS)[values.astype(np.int64)]
        columns[feature["name"]] = values
    return pd.DataFrame(columns)


def log_likelihood(result: SimulationResult) -> float:
    fit = result.result_.likelihood
    return -np.inf if fit is None else fit.log_likelihood


@contextmanager
def without_completion(wanted: bool) -> Iterator[None]:
    """Let groups count as if nothing varied within them."""
    if not wanted:
        yield
        return
    with mock.patch.object(client, "variance_within", return_value=None):
        yield


if __name__ == "__main__":
    main()
