"""The method `mixture` at p = 5 against EM on pooled rows.

ARI is the adjusted Rand index with the true classes, over all rows, and its mean over the splits.
Pooled is EM on all rows in one place: scikit-learn's ``GaussianMixture(covariance_type="diag")`` if
all columns are numbers, or else ``mixture`` with all rows at one site and ``protection: none``. Of
pooled EM and of the sessions the best of several starts by log-likelihood counts. Agreement is the
ARI of a session's labels with those of pooled EM. Warned is the share of the sessions at p = 5
whose result says that groups cost the classes much.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from _data import SHARED
from _report import write
from fedclust import SessionResult, simulate

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


def normal_classes(
    seed: int, sizes: tuple[int, ...], centres: FloatArray, sds: tuple[float, ...]
) -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return classes of so many persons, normal with one standard deviation in all columns."""
    rng = np.random.default_rng(seed)
    rows = [
        rng.normal(centre, sd, (n, len(centre)))
        for n, centre, sd in zip(sizes, centres, sds, strict=True)
    ]
    features = [{"name": f"x{j}"} for j in range(centres.shape[1])]
    return np.concatenate(rows), np.repeat(range(len(sizes)), sizes), features


def tight_in_wide() -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return a tight class in the middle of a wide one."""
    return normal_classes(3, (600, 600), np.zeros((2, 6)), (0.3, 2.0))


def spreads() -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return three classes with standard deviations of 1, 3 and 6."""
    centres = np.array([[0.0, 0, 0, 0, 0], [6, 0, 6, 0, 0], [0, 12, 0, 0, 12]])
    return normal_classes(4, (400, 400, 400), centres, (1.0, 3.0, 6.0))


def answers(
    seed: int, proportions: tuple[float, ...], shares: FloatArray, n: int, shift: float, d: int = 0
) -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return ``n`` persons: d numbers whose means are ``shift`` apart, and yes/no columns.

    ``shares`` (K, s) are the shares of yes by class.
    """
    rng = np.random.default_rng(seed)
    y = rng.choice(len(proportions), n, p=proportions)
    yes = (rng.random((n, shares.shape[1])) < shares[y]).astype(np.float64)
    numbers = rng.normal(shift * y[:, None], 1.0, (n, d))
    features: list[dict[str, Any]] = [{"name": f"lab{j}"} for j in range(d)]
    features += [{"name": f"sign{j}", "kind": "binary"} for j in range(shares.shape[1])]
    return np.column_stack([numbers, yes]), y, features


def rare_answers() -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return two classes in three numbers and five rare yes/no columns."""
    shares = np.array([[0.02] * 5, [0.25] * 5])
    return answers(5, (0.7, 0.3), shares, 1600, 1.5, 3)


def intensive_care() -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return three classes in six skewed numbers and four yes/no columns of 2 to 60 %."""
    shares = np.array([[0.02, 0.05, 0.1, 0.2], [0.05, 0.3, 0.1, 0.4], [0.3, 0.1, 0.6, 0.2]])
    X, y, features = answers(11, (0.5, 0.3, 0.2), shares, 2000, 1.2, 6)
    X[:, :6] = np.exp(0.4 * X[:, :6])
    for feature in features[:6]:
        feature |= {"transform": "log", "lower": 0.001}
    return X, y, features


def small_sites() -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return three classes with standard deviations of 1, 2 and 4 in six columns."""
    centres = np.array([[0.0] * 6, [3.0, 3, 0, 0, 0, 0], [0, 0, 5, 5, 5, 0]])
    return normal_classes(12, (250, 200, 150), centres, (1.0, 2.0, 4.0))


def rare_class() -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return a class of 8 % in eight yes/no columns."""
    return answers(13, (0.92, 0.08), np.array([[0.08] * 8, [0.55] * 8]), 2400, 0.0)


def small_sites_answers(*shares: float) -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return 600 persons of two classes in ten yes/no columns of these two shares."""
    return answers(16, (0.6, 0.4), np.array([[share] * 10 for share in shares]), 600, 0.0)


def uneven() -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return four classes of 60, 25, 10 and 5 % of different spread; two columns are noise."""
    centres = np.array([[0.0, 0, 0, 0, 0], [4, 0, 0, 0, 0], [0, 4, 4, 0, 0], [5, 5, 0, 0, 0]])
    return normal_classes(14, (1200, 500, 200, 100), centres, (1.0, 0.7, 1.5, 0.5))


def levels_alone() -> tuple[FloatArray, IntArray, list[dict[str, Any]]]:
    """Return three classes in eight columns of three levels, as codes."""
    rng = np.random.default_rng(15)
    y = rng.choice(3, 1800, p=(0.5, 0.3, 0.2))
    shares = np.array([(0.7, 0.2, 0.1), (0.2, 0.6, 0.2), (0.1, 0.2, 0.7)])
    drawn = rng.random((1800, 8))[:, :, None] > np.cumsum(shares, axis=1)[y][:, None, :]
    features = [{"name": f"grade{j}", "kind": "categorical", "levels": LEVELS} for j in range(8)]
    return drawn.sum(axis=2).astype(np.float64), y, features


#: Data, and their number of sites. The last seven came last.
DATA: dict[str, tuple[Callable[[], tuple[FloatArray, IntArray, list[dict[str, Any]]]], int]] = {
    "breast cancer": (lambda: published(load_breast_cancer), 4),
    "dim032": (dim032, 3),
    "normal classes of unequal spread": (unequal, 4),
    "latent classes, 12 yes/no columns": (latent_classes, 4),
    "numbers, yes/no and levels": (mixed, 4),
    "wine": (lambda: published(load_wine), 2),
    "iris": (lambda: published(load_iris), 2),
    "a tight class in a wide one": (tight_in_wide, 4),
    "spreads of 1, 3 and 6": (spreads, 4),
    "3 numbers, 5 rare yes/no": (rare_answers, 4),
    "6 skewed numbers, 4 yes/no": (intensive_care, 4),
    "spreads of 1, 2 and 4, small sites": (small_sites, 10),
    "a class of 8 %, 8 yes/no": (rare_class, 4),
    "classes of 60 to 5 %": (uneven, 5),
    "8 columns of levels": (levels_alone, 4),
    "10 yes/no of 3 and 30 %, small sites": (lambda: small_sites_answers(0.03, 0.3), 10),
    "10 yes/no of 25 and 60 %, small sites": (lambda: small_sites_answers(0.25, 0.6), 10),
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
        for what, protection in (("rows", "none"), ("p = 5", "groups")):
            labels, warned = session_labels(X, features, sites, k, protection)
            found.setdefault(f"ARI, {what}", []).append(adjusted_rand_score(y, labels))
        agreement = adjusted_rand_score(pooled, labels)
        found.setdefault("agreement, p = 5", []).append(agreement)
        found.setdefault("warned", []).append(warned)
    least = min(int(np.bincount(y[rows]).min()) for rows in deal(y, n_sites, 0).values())
    row: dict[str, Any] = {"data": name, "K": k, "sites": n_sites, "least of a class": least}
    row["ARI, pooled"] = round(adjusted_rand_score(y, pooled), 3)
    row |= {what: round(float(np.mean(values)), 3) for what, values in found.items()}
    row["p = 5 less rows"] = round(row["ARI, p = 5"] - row["ARI, rows"], 3)
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
    return session_labels(X, features, {"all": np.arange(len(X))}, k, "none")[0]


def session_labels(
    X: FloatArray,
    features: list[dict[str, Any]],
    sites: dict[str, IntArray],
    k: int,
    protection: str,
) -> tuple[IntArray, float]:
    """Return the labels (n,) of the session of highest log-likelihood, and the share warned."""
    tables = {site: frame(X[rows], features) for site, rows in sites.items()}
    policy = {"protection": protection, "min_sites": 1}
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
    warned = [any("cost these classes" in each for each in one.warnings_) for one in results]
    return labels, float(np.mean(warned))


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


def log_likelihood(result: SessionResult) -> float:
    fit = result.result.likelihood
    return -np.inf if fit is None else fit.log_likelihood


if __name__ == "__main__":
    main()
