"""Mixed data: federated k-prototypes against ``kmodes``, and federated Gower clustering, pooled.

Both are compared with the known classes, and with what central software finds on the pooled rows:
``kmodes.KPrototypes`` with ten starts, and k-medians with modes under Gower's dissimilarity, also
with ten starts. The agreement is the adjusted Rand index (ARI).
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from kmodes.kprototypes import KPrototypes
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.metrics import adjusted_rand_score

from _data import SHARED
from _hospitals import HEART_FEATURES
from _report import write
from _runs import Job, Record, fingerprint, run
from fedclust import simulate

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: Rows, classes, K, and the levels of each categorical column; yes/no columns have none.
Mixed = tuple[pd.DataFrame, IntArray, int, dict[str, tuple[str, ...]]]
N_SITES = 5
STARTS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="seeds of each data set")
    options = parser.parse_args()
    for name in ("k-prototypes", "gower"):
        jobs = [
            Job(measure, {"data": data, "dissimilarity": name, "seed": seed})
            for data in DRAW
            for seed in range(options.runs)
        ]
        records = run("mixed_data", jobs, fingerprint(__file__))
        rows = [_means([each for each in records if each["data"] == data]) for data in DRAW]
        write(
            f"mixed_data_{name.replace('-', '_')}",
            rows,
            note=f"Means of {options.runs} seeds, {N_SITES} sites, fkm; ARI with the classes, and "
            "between the federated and the pooled labels.",
        )


def _means(records: list[Record]) -> Record:
    numbers = [name for name, value in records[0].items() if isinstance(value, float)]
    first = {name: records[0][name] for name in ("data", "rows", "K")}
    found = {**first, **{name: float(np.mean([r[name] for r in records])) for name in numbers}}
    # Of one seed, in the agreement with the classes.
    found["largest loss"] = max(record["pooled"] - record["p = 5"] for record in records)
    return found


def measure(data: str, dissimilarity: str, seed: int) -> Record:
    """Cluster data of a seed by site and pooled; return the ARI of both."""
    rng = np.random.default_rng([seed, 7])
    X, y, k, levels = DRAW[data](np.random.default_rng(seed))
    order = rng.permutation(len(X))
    X, y = X.iloc[order].reset_index(drop=True), y[order]
    categories = [*levels, *(name for name in X if set(X[name]) <= {0.0, 1.0})]
    central = _k_prototypes if dissimilarity == "k-prototypes" else _gower_medians
    pooled, cost = central(X, categories, k, seed)
    found: Record = {"data": data, "rows": len(X), "K": k}
    found["pooled"] = float(adjusted_rand_score(y, pooled))
    for title, protection in (("exact", "none"), ("p = 5", "groups")):
        policy: dict[str, Any] = {"dissimilarity": dissimilarity, "protection": protection}
        if dissimilarity == "gower":
            policy["scaling"] = "bounds"
        sites = {f"s{i}": X[i::N_SITES].reset_index(drop=True) for i in range(N_SITES)}
        result = simulate(
            "fkm",
            sites,
            config={"n_clusters": k},
            features=_features(X, categories, levels),
            policy=policy,
            seed=seed,
            progress=False,
        )
        labels = np.empty(len(X), dtype=np.int64)
        for i in range(N_SITES):
            labels[i::N_SITES] = result.labels_[f"s{i}"]
        found[title] = float(adjusted_rand_score(y, labels))
        found[f"{title}, with pooled"] = float(adjusted_rand_score(pooled, labels))
        if protection == "none":
            found["cost"] = float((result.inertia_ or 0.0) / cost)
    return found


def _features(
    X: pd.DataFrame, categories: list[str], levels: dict[str, tuple[str, ...]]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in X:
        if name in levels:
            found.append({"name": name, "kind": "categorical", "levels": levels[name]})
        elif name in categories:
            found.append({"name": name, "kind": "binary"})
        else:
            lower, upper = float(X[name].min()), float(X[name].max())
            found.append({"name": name, "lower": lower, "upper": upper})
    return found


# --- pooled ---------------------------------------------------------------------------------------


def _k_prototypes(
    X: pd.DataFrame, categories: list[str], k: int, seed: int
) -> tuple[IntArray, float]:
    numbers = X.drop(columns=categories)
    Z = X.astype(object)
    Z[numbers.columns] = ((numbers - numbers.mean()) / numbers.std(ddof=0)).astype(object)
    places = [X.columns.get_loc(name) for name in categories]
    model = KPrototypes(k, n_init=STARTS, random_state=seed).fit(Z.to_numpy(), categorical=places)
    return np.asarray(model.labels_, dtype=np.int64), float(model.cost_)


def _gower_medians(
    X: pd.DataFrame, categories: list[str], k: int, seed: int
) -> tuple[IntArray, float]:
    """Return labels and cost of the best of several runs of k-medians with modes."""
    rng = np.random.default_rng(seed)
    numbers = X.drop(columns=categories).to_numpy(dtype=np.float64)
    numbers = (numbers - numbers.min(axis=0)) / np.ptp(numbers, axis=0)
    codes = np.column_stack([pd.factorize(X[name])[0] for name in categories])
    best, least = np.zeros(len(X), dtype=np.int64), np.inf
    for _ in range(STARTS):
        first = rng.choice(len(X), k, replace=False)
        medians, modes = numbers[first], codes[first]
        labels = np.zeros(len(X), dtype=np.int64)
        for _ in range(100):
            apart = np.abs(numbers[:, None] - medians).sum(axis=2)
            apart += (codes[:, None] != modes).sum(axis=2)
            before, labels = labels, apart.argmin(axis=1)
            if (before == labels).all():
                break
            for j in np.unique(labels):
                held = labels == j
                medians[j] = np.median(numbers[held], axis=0)
                modes[j] = [np.bincount(column).argmax() for column in codes[held].T]
        cost = float(apart.min(axis=1).sum()) / X.shape[1]
        if cost < least:
            best, least = labels, cost
    return best, least


# --- data -----------------------------------------------------------------------------------------


def _classes(
    rng: np.random.Generator, rows: int, k: int, numbers: int, categories: int, apart: float
) -> Mixed:
    """Return k classes that differ in every column: numbers, as many yes/no values and levels."""
    y = rng.integers(0, k, rows)
    names = ("a", "b", "c", "d")
    X = {f"x{j}": rng.normal(size=(k,))[y] * apart + rng.normal(size=rows) for j in range(numbers)}
    for j in range(categories):
        yes = rng.beta(0.4, 0.4, k)
        X[f"b{j}"] = (rng.random(rows) < yes[y]).astype(np.float64)
        shares = rng.dirichlet(np.full(4, 0.4), k)
        drawn = (rng.random(rows)[:, None] > shares.cumsum(axis=1)[y]).sum(axis=1)
        X[f"c{j}"] = np.array(names)[np.minimum(drawn, 3)]
    return pd.DataFrame(X), y, k, {f"c{j}": names for j in range(categories)}


def _cut(X: FloatArray, y: IntArray, k: int, every: int) -> Mixed:
    """Return numbers of which every so many are cut at their median, or into three levels."""
    found, levels = {}, {}
    for j, values in enumerate(X.T):
        name = f"x{j}"
        if j % every == 0:
            found[name] = (values > np.median(values)).astype(np.float64)
        elif j % every == 1:
            levels[name] = ("low", "middle", "high")
            thirds = np.quantile(values, [1 / 3, 2 / 3])
            found[name] = np.array(levels[name])[np.searchsorted(thirds, values)]
        else:
            found[name] = values
    return pd.DataFrame(found), y, k, levels


def _wine(_rng: np.random.Generator) -> Mixed:
    X, y = load_wine(return_X_y=True)
    return _cut(X, y, 3, 4)


def _cancer(_rng: np.random.Generator) -> Mixed:
    X, y = load_breast_cancer(return_X_y=True)
    return _cut(X, y, 2, 3)


def _heart(_rng: np.random.Generator) -> Mixed:
    """Return Cleveland's and Budapest's patients with the nine features that both have."""
    parts = [
        pd.read_csv(
            SHARED / "heart_disease" / f"processed.{name}.data",
            names=[*HEART_FEATURES, "num"],
            na_values="?",
        )
        for name in ("cleveland", "hungarian")
    ]
    levels = {
        "cp": ("typical", "atypical", "no angina", "none"),
        "restecg": ("normal", "st-t", "hypertrophy"),
    }
    kept = ["age", "sex", "cp", "trestbps", "chol", "restecg", "thalach", "exang", "oldpeak"]
    rows = pd.concat(parts)[[*kept, "num"]].dropna()
    X = rows[kept].copy()
    X["cp"] = np.array(levels["cp"])[rows["cp"].astype(int) - 1]
    X["restecg"] = np.array(levels["restecg"])[rows["restecg"].astype(int)]
    return X, (rows["num"] > 0).to_numpy(dtype=np.int64), 2, levels


DRAW: dict[str, Callable[[np.random.Generator], Mixed]] = {
    "four classes, mostly numbers": lambda rng: _classes(rng, 1_000, 4, 6, 2, 2.0),
    "four classes, mostly categories": lambda rng: _classes(rng, 1_000, 4, 2, 4, 2.0),
    "wine, half of it cut": _wine,
    "breast cancer, two thirds cut": _cancer,
    "heart disease, two hospitals": _heart,
}


if __name__ == "__main__":
    main()
