"""Data sets on which protection and methods are compared with central k-means."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer

from _data import Data, digits, femnist, fkm, iid

#: Restarts of central k-means on the rows.
CENTRAL_N_INIT = 50


@dataclass(frozen=True)
class Case:
    """Data of a seed, K, and what the issue asks for: the mean cost at most, the ARI at least."""

    data: Callable[[int], Data]
    k: int
    reach: float
    ari: float | None = None
    guard: str = "-"
    kind: str = "numeric"


def _synthetic(split: str, noise: float) -> Callable[[int], Data]:
    return lambda seed: fkm(split, noise, seed=3000 + seed)


def _split(X: Any, y: Any, n_sites: int) -> Callable[[int], Data]:
    return lambda seed: Data(X, y, iid(len(X), n_sites, np.random.default_rng([seed, n_sites])))


def _binary_mixture(n_sites: int, rows: int) -> Callable[[int], Data]:
    """Return six classes of 20 yes/no columns, of which 2 % have each of the last three."""

    def data(seed: int) -> Data:
        rng = np.random.default_rng([seed, rows])
        shares = rng.beta(0.5, 0.5, size=(6, 20))
        shares[:, 17:] = 0.02
        y = rng.integers(0, 6, n_sites * rows)
        X = (rng.random((len(y), 20)) < shares[y]).astype(np.float64)
        return Data(X, y, iid(len(y), n_sites, rng))

    return data


def _gaussians(n_sites: int) -> Callable[[int], Data]:
    """Return 35 Gaussian clusters of 150 rows in two dimensions."""

    def data(seed: int) -> Data:
        rng = np.random.default_rng([seed, 35])
        y = np.repeat(np.arange(35), 150)
        X = rng.uniform(-20, 20, (35, 2))[y] + rng.normal(size=(len(y), 2))
        return Data(X, y, iid(len(y), n_sites, rng))

    return data


def cases() -> dict[str, Case]:
    """Return every case by its name."""
    found: dict[str, Case] = {}
    reaches = {"0.1": (1.025, "1.009"), "1": (1.05, "1.011"), "10": (1.015, "1.008")}
    reaches["uneven"] = (1.008, "1.005")
    for split, (reach, guard) in reaches.items():
        found[f"FKM's data, noise 1, {split}"] = Case(
            _synthetic(split, 1.0), 16, reach, 0.94, guard
        )
    for split in (*reaches, "voronoi"):
        data = _synthetic(split, 1.5)
        found[f"FKM's data, noise 1.5, {split}"] = Case(data, 16, 1.045, guard="1.020 to 1.037")
    cancer, ill = load_breast_cancer(return_X_y=True)
    cancer, ill = cancer / cancer.std(axis=0), ill.astype(np.int64)
    for k, reach, guard in ((2, 1.004, "1.000"), (4, 1.022, "1.018"), (8, 1.06, "1.086")):
        found[f"breast cancer, K = {k}"] = Case(_split(cancer, ill, 4), k, reach, guard=guard)
    X, y = digits()
    for k, n_sites, reach, guard in ((10, 4, 1.018, "1.048"), (20, 10, 1.11, "1.199")):
        name = f"digits, K = {k}, {n_sites} sites"
        found[name] = Case(_split(X, y, n_sites), k, reach, guard=guard)
    found["FEMNIST, 10 clients, K = 60"] = Case(lambda _: femnist(10), 60, 1.03, guard="1.067")
    yes_no = (cancer > np.median(cancer, axis=0)).astype(np.float64)
    for k, reach, guard in ((4, 1.02, "1.022"), (8, 1.05, "1.059")):
        name = f"breast cancer as yes/no, K = {k}"
        found[name] = Case(_split(yes_no, ill, 4), k, reach, guard=guard, kind="binary")
    for rows, reach, guard in ((200, 1.015, "1.003"), (50, 1.11, "1.065")):
        data = _binary_mixture(4, rows)
        name = f"binary mixture, 4 sites of {rows}"
        found[name] = Case(data, 6, reach, guard=guard, kind="binary")
    for n_sites, guard in ((5, "1.001"), (50, "1.19")):
        name = f"35 Gaussian clusters, {n_sites} sites"
        reach = 1.005 if n_sites == 5 else np.inf
        found[name] = Case(_gaussians(n_sites), 35, reach, guard=guard)
    return found
