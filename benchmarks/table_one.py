"""Table 1's numbers against those of the rows of the same clusters.

For each kind of data: how often the standard deviation of all persons is .8 to 1.25 times that of
the rows, how often a cluster's would be (the reason why table 1 prints none), and how often a
cluster's mean is within .15 standard deviations of all persons. Columns that the profile calls a
typical value or a share of groups are left out, and clusters of fewer than 100 persons.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

from _hospitals import heart
from _report import write
from fedclust import simulate

FloatArray = NDArray[np.float64]
Sites = list[FloatArray]
#: Sites and the rows of each.
SIZES = ((4, 200), (10, 60), (4, 600), (6, 100), (3, 400))
COLUMNS = 5
FEWEST = 100
OFFSETS = "offsets, 15 % missing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    options = parser.parse_args()
    rows = []
    for kind in KINDS:
        seeds = range(options.first, options.first + options.seeds)
        drawn = [_drawn(kind, *size, seed) for size in SIZES for seed in seeds]
        rows.append(_line(kind, drawn))
    for name, found in _real():
        rows.append(_line(name, [(found, {}, seed) for seed in range(options.seeds)]))
    write("table_one", rows, note="p = 5; K = 2 to 5. Shares of the numbers that are right.")


def _line(name: str, drawn: list[tuple[Sites, dict[str, Any], int]]) -> dict[str, Any]:
    means: list[float] = []
    whole: list[float] = []
    parts: list[float] = []
    for sites, feature, seed in drawn:
        _compare(sites, feature, seed, means, whole, parts)
    return {
        "data": name,
        "means": len(means),
        "within .15 sd": _share(np.abs(means) <= 0.15),
        "SD of all": _share(_right(whole)),
        "SD of a cluster": _share(_right(parts)),
    }


def _share(right: NDArray[np.bool_]) -> float | None:
    return float(right.mean()) if len(right) else None


def _right(ratios: list[float]) -> NDArray[np.bool_]:
    found = np.array(ratios)
    return (found >= 0.8) & (found <= 1.25)


def _compare(
    sites: Sites,
    feature: dict[str, Any],
    seed: int,
    means: list[float],
    whole: list[float],
    parts: list[float],
) -> None:
    tables = {f"site{place}": rows for place, rows in enumerate(sites)}
    columns = [{"name": f"x{j}", **feature} for j in range(sites[0].shape[1])]
    config = {"n_clusters": 2 + seed % 4}
    found = simulate("lloyd", tables, config=config, features=columns, seed=seed)
    labels = np.concatenate([found.labels_[name] for name in tables])
    undo = {"log": np.log, "log1p": np.log1p}.get(feature.get("transform", ""), np.asarray)
    rows = undo(np.concatenate(sites))
    profile = found.result.profile
    assert profile is not None
    for j, values in enumerate(rows.T):
        spread = np.nanstd(values)
        if f"x{j}" in profile.typical or not spread:
            continue
        whole.append(float(profile.overall_deviations[j] / spread))
        for k in range(len(profile.means)):
            own = values[(labels == k) & ~np.isnan(values)]
            if (labels == k).sum() >= FEWEST and own.std() > 0:
                means.append(float((profile.means[k, j] - own.mean()) / spread))
                parts.append(float(profile.deviations[k, j] / own.std()))


# --- Data -----------------------------------------------------------------------------------------


def _drawn(kind: str, n_sites: int, n_rows: int, seed: int) -> tuple[Sites, dict[str, Any], int]:
    rng = np.random.default_rng([seed, n_sites, n_rows, *kind.encode()])
    n = n_sites * n_rows
    centres = 2.0 * rng.normal(size=(3, COLUMNS))[rng.integers(0, 3, n)]
    where = np.arange(n) % n_sites
    draw, feature = KINDS[kind]
    X = draw(rng, centres)
    if kind == OFFSETS:
        X += 0.5 * rng.normal(size=(n_sites, COLUMNS))[where]
        X[rng.random(X.shape) < 0.15] = np.nan
    return [X[where == site] for site in range(n_sites)], feature, seed


def _gaussian(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    return rng.normal(size=centres.shape) + centres


def _correlated(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    root = np.linalg.cholesky(0.6 + 0.4 * np.eye(COLUMNS))
    return rng.normal(size=centres.shape) @ root.T + centres


def _lognormal(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    wide = rng.choice([0.3, 0.6, 1.0], COLUMNS)
    return np.maximum(np.exp(wide * (rng.normal(size=centres.shape) + 0.7 * centres)), 0.1)


def _gamma(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    shape = rng.choice([1.0, 2.0, 4.0], COLUMNS)
    return np.maximum(rng.gamma(shape, size=centres.shape) * np.exp(0.4 * centres), 0.1)


def _zeros(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    found = rng.gamma(2.0, size=centres.shape) * np.exp(0.4 * centres)
    found[rng.random(centres.shape) < rng.choice([0.3, 0.6, 0.8], COLUMNS)] = 0.0
    found[:, 3:] = rng.normal(size=(len(centres), COLUMNS - 3)) + centres[:, 3:]
    return found


def _counts(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    rate = np.exp(rng.choice([0.0, 1.0, 2.5], COLUMNS) + 0.4 * centres)
    return rng.poisson(rate).astype(np.float64)


Draw = Callable[[np.random.Generator, FloatArray], FloatArray]
_LOG = {"transform": "log", "lower": 0.1}
KINDS: dict[str, tuple[Draw, dict[str, Any]]] = {
    "Gaussian": (_gaussian, {}),
    "correlated": (_correlated, {}),
    "lognormal": (_lognormal, {}),
    "gamma": (_gamma, {}),
    "t3": (lambda rng, centres: rng.standard_t(3, centres.shape) + 0.75 * centres, {}),
    "zero-inflated": (_zeros, {}),
    OFFSETS: (_gaussian, {}),
    "counts": (_counts, {}),
    "lognormal, log": (_lognormal, _LOG),
    "gamma, log": (_gamma, _LOG),
    "counts, log1p": (_counts, {"transform": "log1p", "lower": 0}),
}


def _real() -> Iterator[tuple[str, Sites]]:
    """Yield real tables, split into four sites at random; heart disease by its hospitals."""
    for load in (load_breast_cancer, load_diabetes, load_wine):
        X = np.asarray(load().data, dtype=np.float64)
        order = np.random.default_rng(0).permutation(len(X))
        yield load.__name__.removeprefix("load_"), [X[order[site::4]] for site in range(4)]
    hospitals, features = heart()
    everywhere = np.all(list(hospitals.masks.values()), axis=0)
    numeric = np.array([each["kind"] == "numeric" for each in features])
    split = hospitals.split.values()
    yield "heart disease", [hospitals.X[rows][:, everywhere & numeric] for rows in split]


if __name__ == "__main__":
    main()
