"""Does transfer name the hospital that codes a column otherwise, and only that one?

Each session has 5 to 10 sites of 100 to 2,000 persons, 4 to 20 columns, and 2 to 8 clusters whose
means have a standard deviation of 1.5, 2 or 3 times that within clusters; the method is ``fkm``. A
quarter of the columns tells no clusters apart. In some sessions up to half of the columns are
yes/no. In half of the sessions every site differs a little from the others in every column (.2
standard deviations). At most one site codes one column otherwise: a number in a unit ten times
smaller or larger, reversed, mirrored about the site's mean, shifted by 1.5 standard deviations, or
noise in its place; a yes/no column swapped. The column tells clusters apart, as do three others. Of
units it may be any column of numbers.

Table: sessions in which exactly the right site and column are named, these and more, others, and
none. Where all sites agree, ``none`` is right.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _report import write
from fedclust import simulate

FloatArray = NDArray[np.float64]

KINDS = ("agree", "tenfold", "tenth", "reversed", "mirrored", "shifted", "noise", "swapped")
MIXES = {"even": None, "Dirichlet(.3)": 0.3}
SITE_EFFECTS = (0.0, 0.2)


@dataclass(frozen=True)
class Hospitals:
    """Rows by site, features, K, and the site and column that are coded otherwise."""

    rows: dict[str, FloatArray]
    features: list[dict[str, Any]]
    n_clusters: int
    wrong: tuple[str, str] | None


def draw(rng: np.random.Generator, kind: str, mix: float | None) -> Hospitals | None:
    """Draw a session's sites; None where no column suits the kind."""
    d, k = int(rng.choice([4, 6, 8, 12, 20])), int(rng.choice([2, 3, 4, 6, 8]))
    n_sites = int(rng.integers(5, 11))
    n_binary = 0
    if kind == "swapped" or rng.random() < 0.4:
        n_binary = int(rng.integers(1, d // 2 + 1))
    binary = np.arange(d) >= d - n_binary
    means = rng.normal(size=(k, d)) * float(rng.choice([1.5, 2.0, 3.0]))
    means[:, rng.random(d) < 0.25] = 0.0
    shares = rng.beta(0.5, 0.5, size=(k, d))
    offsets = np.where(rng.random(d) < 0.5, 0.0, rng.uniform(5.0, 50.0, d))
    effects = rng.normal(size=(n_sites, d)) * rng.choice(SITE_EFFECTS)
    rows = []
    for effect in effects:
        n = int(np.exp(rng.uniform(np.log(100), np.log(2000))))
        mixture = np.full(k, 1.0 / k) if mix is None else rng.dirichlet(np.full(k, mix))
        labels = rng.choice(k, n, p=mixture)
        numbers = means[labels] + rng.normal(size=(n, d)) + offsets + effect
        rows.append(np.where(binary, rng.random((n, d)) < shares[labels], numbers))
    names = [f"site-{s}" for s in range(n_sites)]
    features: list[dict[str, Any]] = [
        {"name": f"x{j}", "kind": "binary" if binary[j] else "numeric"} for j in range(d)
    ]
    wrong = None
    if kind != "agree":
        telling = np.where(binary, np.ptp(shares, axis=0) > 0.4, means.std(axis=0) > 1.0)
        suits = {"swapped": telling & binary, "tenfold": ~binary, "tenth": ~binary}
        columns = np.flatnonzero(suits.get(kind, telling & ~binary))
        if not len(columns) or telling.sum() < 4:
            return None
        s, j = int(rng.integers(n_sites)), int(rng.choice(columns))
        every = np.concatenate([own[:, j] for own in rows])
        width = float(np.hypot(1.0, means[:, j].std()))
        rows[s][:, j] = miscoded(kind, rows[s][:, j], float(offsets[j]), width, every, rng)
        wrong = names[s], f"x{j}"
    return Hospitals(dict(zip(names, rows, strict=True)), features, k, wrong)


# What the kinds of miscoding need.
def miscoded(
    kind: str,
    column: FloatArray,
    offset: float,
    width: float,
    every: FloatArray,
    rng: np.random.Generator,
) -> FloatArray:
    """Return a site's column (n,) coded otherwise; ``every`` holds all sites'."""
    match kind:
        case "tenfold":
            return 10.0 * column
        case "tenth":
            return column / 10.0
        case "reversed":
            return 2.0 * offset - column
        case "mirrored":
            return 2.0 * column.mean() - column
        case "shifted":
            return column + 1.5 * width
        case "noise":
            return rng.normal(every.mean(), every.std(), len(column))
        case _:
            return 1.0 - column


def verdict(drawn: Hospitals, protection: str, seed: int) -> str:
    """Return whether the right site and column are named: right, more, others or none."""
    result = simulate(
        "fkm",
        drawn.rows,
        config={"n_clusters": drawn.n_clusters, "transfer": True},
        policy={"protection": protection},
        features=drawn.features,
        seed=seed,
        progress=False,
    )
    transfer = result.transfer_
    assert transfer is not None
    named = {(s, name) for s, own in transfer.sites.items() for name in own.differing_columns}
    if not named:
        return "none"
    if drawn.wrong not in named:
        return "others"
    return "right" if len(named) == 1 else "more"


def row(kind: str, mix: str, protection: str, draws: int) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    seed = 0
    while counts.total() < draws:
        seed += 1
        drawn = draw(np.random.default_rng([seed, KINDS.index(kind)]), kind, MIXES[mix])
        if drawn is not None:
            counts[verdict(drawn, protection, seed)] += 1
    found = {name: counts[name] for name in ("right", "more", "others", "none")}
    return {"kind": kind, "mix": mix, "protection": protection, "sessions": draws, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--protection", choices=("groups", "none"), action="append")
    parser.add_argument("--kind", choices=KINDS, action="append")
    options = parser.parse_args()
    write(
        "transfer",
        [
            row(kind, mix, protection, options.draws)
            for protection in options.protection or ("groups", "none")
            for mix in MIXES
            for kind in options.kind or KINDS
        ],
        note="fkm with default options; groups: p = 5. Sites of 100 to 2,000 persons.",
    )


if __name__ == "__main__":
    main()
