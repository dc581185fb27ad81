"""Rows without clusters and with clusters, of the kinds that hospitals have."""

from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

from _data import FloatArray, IntArray

Cloud = Callable[[np.random.Generator, int], FloatArray]
Clusters = Callable[[np.random.Generator, int], tuple[FloatArray, IntArray]]

# --- without clusters -----------------------------------------------------------------------------


def gaussian(r: float, d: int) -> Cloud:
    """One Gaussian whose columns are all correlated by ``r``."""
    correlation = np.full((d, d), r) + (1.0 - r) * np.eye(d)

    def draw(rng: np.random.Generator, n: int) -> FloatArray:
        return rng.multivariate_normal(np.zeros(d), correlation, n, method="cholesky")

    return draw


def lognormal(r: float) -> Cloud:
    """Six skewed columns: the exponential of a Gaussian."""
    return lambda rng, n: np.exp(gaussian(r, 6)(rng, n))


def uniform(d: int) -> Cloud:
    return lambda rng, n: rng.uniform(size=(n, d))


def t3(rng: np.random.Generator, n: int) -> FloatArray:
    """Six columns with heavy tails."""
    return np.asarray(rng.normal(size=(n, 6)) / np.sqrt(rng.chisquare(3, (n, 1)) / 3.0))


def yes_no(r: float) -> Cloud:
    """Eight yes/no columns, the shares of yes between .15 and .6."""
    cuts = ndtri(np.linspace(0.15, 0.6, 8))
    return lambda rng, n: (gaussian(r, 8)(rng, n) < cuts).astype(np.float64)


def mixed(rng: np.random.Generator, n: int) -> FloatArray:
    """Five numbers and three yes/no columns."""
    X = gaussian(0.3, 8)(rng, n)
    X[:, 5:] = X[:, 5:] < ndtri([0.2, 0.4, 0.5])
    return X


def zero_inflated(rng: np.random.Generator, n: int) -> FloatArray:
    """Three columns of which half are 0 and the others lognormal, and three Gaussian ones."""
    X = gaussian(0.3, 6)(rng, n)
    X[:, :3] = np.where(X[:, :3] > 0.0, np.exp(X[:, :3]), 0.0)
    return X


CLOUDS: dict[str, Cloud] = {
    **{
        f"Gaussian, r = {r}, d = {d}": gaussian(r, d)
        for d in (2, 6, 20)
        for r in (0, 0.3, 0.6, 0.9)
    },
    "lognormal, independent": lognormal(0.0),
    "lognormal, r = .5": lognormal(0.5),
    "uniform, d = 2": uniform(2),
    "uniform, d = 6": uniform(6),
    "t with 3 degrees": t3,
    "yes/no, independent": yes_no(0.0),
    "yes/no, r = .4": yes_no(0.4),
    "numbers with yes/no": mixed,
    "zero-inflated": zero_inflated,
}


def lacking(cloud: Cloud, how: str, share: float) -> Cloud:
    """Values are missing: anywhere, or in the last half of the columns.

    ``how``: "anywhere"; "sick" in the last columns, more of them where the first is high;
    "panel" in all of the last columns of a person at once; "sick panel" both.
    """

    def draw(rng: np.random.Generator, n: int) -> FloatArray:
        X = cloud(rng, n)
        d = X.shape[1]
        chance = np.full(n, share)
        if "sick" in how:
            chance = 1.0 / (1.0 + np.exp(-2.0 * X[:, 0] - 1.6 * np.log(share / (1.0 - share))))
        lot = rng.random((n, 1 if "panel" in how else d)) < chance[:, None]
        missing = np.broadcast_to(lot, (n, d)).copy()
        if how != "anywhere":
            missing[:, : d // 2] = False
        return np.where(missing, np.nan, X)

    return draw


# --- with clusters --------------------------------------------------------------------------------


def apart(
    k: int, gap: float, scale: tuple[float, ...] = (), shares: tuple[float, ...] = ()
) -> Clusters:
    """Gaussians of one standard deviation in six columns, each pair ``gap`` apart."""

    def draw(rng: np.random.Generator, n: int) -> tuple[FloatArray, IntArray]:
        y = rng.choice(k, n, p=shares or None)
        noise = rng.normal(size=(n, 6)) * (np.array(scale)[y][:, None] if scale else 1.0)
        return (np.eye(k, 6) * gap / np.sqrt(2.0))[y] + noise, y

    return draw


def eight(rng: np.random.Generator, n: int) -> tuple[FloatArray, IntArray]:
    """Eight Gaussians in eight columns, at least six standard deviations apart."""
    centres, y = rng.normal(size=(8, 8)), rng.integers(8, size=n)
    gaps = np.linalg.norm(centres[:, None] - centres, axis=2) + 1e9 * np.eye(8)
    return (centres * 6.0 / gaps.min())[y] + rng.normal(size=(n, 8)), y


def mixed_pair(rng: np.random.Generator, n: int) -> tuple[FloatArray, IntArray]:
    """Two clusters in three of five numbers and in three yes/no columns."""
    y = rng.integers(2, size=n)
    numbers = rng.normal(size=(n, 5)) + np.outer(y, [2.0, 2.0, 2.0, 0.0, 0.0])
    return np.column_stack([numbers, rng.random((n, 3)) < np.array([0.15, 0.8])[y, None]]), y


def skewed(rng: np.random.Generator, n: int) -> tuple[FloatArray, IntArray]:
    """Three lognormal clusters."""
    X, y = apart(3, 4.5)(rng, n)
    return np.exp(0.5 * X), y


def traits(rng: np.random.Generator, n: int) -> tuple[FloatArray, IntArray]:
    """Three clusters in yes/no columns alone: three traits each that the others rarely have."""
    y = rng.integers(3, size=n)
    shares = np.where(np.arange(9) // 3 == np.arange(3)[:, None], 0.8, 0.15)
    return (rng.random((n, 9)) < shares[y]).astype(np.float64), y


CLUSTERS: dict[str, tuple[int, Clusters]] = {
    "3 at 3 sd": (3, apart(3, 3.0)),
    "3 at 4.5 sd": (3, apart(3, 4.5)),
    "5 at 3 sd": (5, apart(5, 3.0)),
    "5 at 4.5 sd": (5, apart(5, 4.5)),
    "8 at 6 sd": (8, eight),
    "3 of unequal density": (3, apart(3, 7.0, scale=(0.5, 1.0, 1.5))),
    "2 of mixed data": (2, mixed_pair),
    "3 of unequal size": (3, apart(3, 4.5, shares=(0.7, 0.2, 0.1))),
    "3 lognormal": (3, skewed),
    "3 of yes/no alone": (3, traits),
}
