"""Who lies outside what a model saw: rows of the session itself, and rows that were moved away.

Each session runs over four sites with the default policy (p = 5) and with ``protection: none``. The
figures are per cent of the rows that ``predict_details`` calls outside. The first should be small,
at most about 1, and the others large.

own
    Rows of the session.
6 sd
    The same rows, with one column moved by 6 standard deviations away from its mean.
population
    The same rows, with half of the columns moved by 3 standard deviations, up or down: persons of
    another kind.
unit
    The same rows, with one column times 10.
level
    The same rows with a yes that nobody in the session has.

Distances in standard deviations are after the transform. Data named ``..., log`` declare a
logarithm. Without it, columns with long tails such as the sizes of tumours break the limits more
often: the figures say how much.
"""

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine

from _data import FloatArray, iid
from _report import write
from _runs import Job, Record, fingerprint, run
from fedclust import SessionResult, simulate

warnings.simplefilter("ignore")

#: Rows of drawn data.
_ROWS = 2_000


@dataclass(frozen=True)
class Case:
    """Rows (n, d), the number of clusters, which columns are yes/no, and a transform of others."""

    X: FloatArray
    k: int
    binary: tuple[int, ...] = ()
    transform: str = "none"


def blobs(rng: np.random.Generator, d: int = 8) -> FloatArray:
    """Return four Gaussian clusters."""
    return 2.0 * rng.normal(size=(4, d))[rng.integers(0, 4, _ROWS)] + rng.normal(size=(_ROWS, d))


def correlated(rng: np.random.Generator) -> FloatArray:
    """Return ten columns that mostly measure the same."""
    return rng.normal(size=(_ROWS, 1)) + 0.4 * rng.normal(size=(_ROWS, 10))


def long_tails(rng: np.random.Generator) -> FloatArray:
    """Return clusters with Student's t of 4 degrees."""
    return blobs(rng) + rng.standard_t(4, size=(_ROWS, 8))


def mixed(rng: np.random.Generator) -> FloatArray:
    """Return four numbers and nine yes/no columns of four classes; the last one is never yes."""
    z, centres = rng.integers(0, 4, _ROWS), rng.normal(size=(4, 12))
    shares = 1.0 / (1.0 + np.exp(-3.0 * centres[z, 4:] + np.array([0, 0, 0, 0, 0, 3, 4, 5])))
    yes_no = (rng.random((_ROWS, 8)) < shares).astype(np.float64)
    numbers = 2.0 * centres[z, :4] + rng.normal(size=(_ROWS, 4))
    return np.column_stack([numbers, yes_no, np.zeros(_ROWS)])


CASES: dict[str, Callable[[np.random.Generator], Case]] = {
    "iris": lambda _: Case(load_iris().data, 3),
    "wine": lambda _: Case(load_wine().data, 3),
    "diabetes": lambda _: Case(load_diabetes().data, 3),
    "cancer": lambda _: Case(load_breast_cancer().data, 2),
    "cancer, log": lambda _: Case(load_breast_cancer().data + 0.01, 2, transform="log"),
    "blobs": lambda rng: Case(blobs(rng), 4),
    "one Gaussian": lambda rng: Case(rng.normal(size=(_ROWS, 12)), 4),
    "correlated": lambda rng: Case(correlated(rng), 3),
    "long tails": lambda rng: Case(long_tails(rng), 4),
    "log-normal": lambda rng: Case(np.exp(0.3 * blobs(rng)), 4),
    "log-normal, log": lambda rng: Case(np.exp(0.3 * blobs(rng)), 4, transform="log"),
    "mixed": lambda rng: Case(mixed(rng), 4, binary=tuple(range(4, 13))),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    seeds = range(options.seeds)
    jobs = [
        Job(measure, {"data": name, "protection": protection, "seed": seed})
        for name in CASES
        for protection in ("groups", "none")
        for seed in seeds
    ]
    records = run("outside", jobs, fingerprint(__file__))
    rows = [
        {"data": name, "protection": protection, **_means(name, protection, records)}
        for name in CASES
        for protection in ("groups", "none")
    ]
    write("outside", rows, note=f"Per cent of the rows; means of {options.seeds} seeds.")


def _means(name: str, protection: str, records: list[Record]) -> Record:
    some = [r for r in records if (r["data"], r["protection"]) == (name, protection)]
    kinds = ("own", "6 sd", "population", "unit", "level")
    found = {kind: [r[kind] for r in some if r[kind] is not None] for kind in kinds}
    return {kind: float(np.mean(values)) if values else "" for kind, values in found.items()}


def measure(data: str, protection: str, seed: int) -> Record:
    """Run one session and return the per cent of rows outside, by how they were moved."""
    rng = np.random.default_rng(seed)
    case = CASES[data](rng)
    X, d = case.X, case.X.shape[1]
    features: list[dict[str, Any]] = [
        {"name": f"x{j}", "kind": "binary"}
        if j in case.binary
        else {"name": f"x{j}", "transform": case.transform}
        | ({"lower": 1e-9} if case.transform == "log" else {})
        for j in range(d)
    ]
    split = iid(len(X), 4, rng)
    sites = {name: X[rows] for name, rows in split.items()}
    result = simulate(
        "fkm",
        sites,
        config={"n_clusters": case.k},
        features=features,
        policy={"protection": protection},
        seed=seed,
        progress=False,
    )
    numbers = [j for j in range(d) if j not in case.binary]
    log = case.transform == "log"
    Y = np.log(X) if log else X
    means, wide = Y.mean(axis=0), Y.std(axis=0)
    at, column = np.arange(len(X)), rng.choice(numbers, len(X))
    far, other, unit = Y.copy(), Y.copy(), X.copy()
    far[at, column] += 6.0 * wide[column] * np.where(Y[at, column] >= means[column], 1.0, -1.0)
    half = rng.permutation(numbers)[: max(len(numbers) // 2, 1)]
    other[:, half] += 3.0 * wide[half] * rng.choice([-1.0, 1.0], len(half))
    unit[at, column] *= 10.0
    level = X.copy()
    level[:, -1] = 1.0
    return {
        "data": data,
        "protection": protection,
        "own": _outside(result, X),
        "6 sd": _outside(result, np.exp(far) if log else far),
        "population": _outside(result, np.exp(other) if log else other),
        "unit": _outside(result, unit),
        "level": _outside(result, level) if case.binary else None,
    }


def _outside(result: SessionResult, rows: FloatArray) -> float:
    return 100.0 * float((result.predict_details(rows).outside > 0).mean())


if __name__ == "__main__":
    main()
