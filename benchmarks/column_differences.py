"""Does a result name the hospital that codes a column otherwise, and only that one?

Rows are drawn, and each site forms its protected table and cells as it does for a session; the
rules are the coordinator's (``rounds.preparation``, ``rounds.column_differences``). A draw has 4 to
12 columns: numbers, skewed numbers, yes/no, or some of each. It has 2 to 6 clusters whose means
have a standard deviation of 1.5, 2 or 3 times that within clusters, or one correlated cloud. A
quarter of the columns tells no clusters apart. Sites differ from the others by 0, .2 or .5 standard
deviations in every column; in every other draw they have very different mixes of clusters. Values
are missing at random. The rule gets the number of clusters in half of the draws, and a session's
largest K of several, 8, in the other. With `--real`, real tables are divided into sites at random,
and one of their columns goes wrong; heart disease has its own hospitals.

In each draw all sites agree first; then one of them codes one column otherwise, in each of several
ways. Units may go wrong in any column of numbers, the rest in one of at least four columns that
tell clusters apart.

Table: sessions in which exactly the right site and column are named, these and more, others, and
none. Where all sites agree, ``none`` is right.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from _data import FloatArray
from _report import write
from evidence import prepared, site_points
from fedclust.numeric.array_types import BoolArray
from fedclust.numeric.random import site_rng
from fedclust.rounds.column_differences import differing_columns
from fedclust.rounds.record_cells import find_cells
from fedclust.schema.task import Points
from table_one import _real

P = 5
MISSING = (0.0, 0.15, 0.3)
LARGEST_K = 8
#: Sites, and persons of each: from the first number to the second.
SIZES = {
    "4 x 50": (4, 50, 50),
    "10 x 50": (10, 50, 50),
    "4 x 200": (4, 200, 200),
    "30 x 100": (30, 100, 100),
    "7 x 100 to 2,000": (7, 100, 2_000),
    "8 x 20 to 220": (8, 20, 220),
}
DATA = ("normal", "lognormal", "yes/no", "some of each", "cloud", "skewed cloud")
AGREE = "nothing: all agree"
#: What a unit multiplies by, and adds.
UNITS = {
    "x 10": (10.0, 0.0),
    "x 12": (12.0, 0.0),
    "x 18": (18.0, 0.0),
    "x 1.8 + 32": (1.8, 32.0),
    "/ 10": (0.1, 0.0),
}
SWAPPED, COLUMNS = "swaps yes and no", "swaps two columns"
KINDS = (*UNITS, "reverses", "mirrors about its mean", "shifts by 1.5 sd", SWAPPED, COLUMNS)


@dataclass(frozen=True)
class Hospitals:
    """Rows of each site; of each column whether it is yes/no, skewed, tells clusters apart (d,)."""

    rows: list[FloatArray]
    binary: BoolArray
    skewed: BoolArray
    telling: BoolArray
    n_clusters: int


def draw(rng: np.random.Generator, size: str, mix: float | None, missing: float) -> Hospitals:
    n_sites, least, most = SIZES[size]
    d, k = int(rng.choice([4, 6, 8, 12])), int(rng.choice([2, 3, 4, 6]))
    data = str(rng.choice(DATA))
    n_binary = {"yes/no": d, "some of each": int(rng.integers(1, d // 2 + 1))}.get(data, 0)
    binary = np.arange(d) >= d - n_binary
    odd = np.arange(d) % 2 == 1
    skewed = np.full(d, data in ("lognormal", "skewed cloud")) | (odd & (data == "some of each"))
    means = rng.normal(size=(k, d)) * float(rng.choice([1.5, 2.0, 3.0]))
    means[:, rng.random(d) < 0.25] = 0.0
    r = 0.0
    if "cloud" in data:
        means[:], r = 0.0, float(rng.choice([0.0, 0.3, 0.6]))
    root = np.linalg.cholesky(np.full((d, d), r) + (1.0 - r) * np.eye(d))
    shares = np.clip(rng.beta(0.5, 0.5, size=(k, d)), 0.02, 0.98)
    offsets = np.where(rng.random(d) < 0.5, 0.0, rng.uniform(5.0, 50.0, d))
    differ = float(rng.choice([0.0, 0.2, 0.5]))
    rows = []
    for effect in rng.normal(size=(n_sites, d)) * differ:
        n = int(np.exp(rng.uniform(np.log(least), np.log(most + 1))))
        mixture = np.full(k, 1.0 / k) if mix is None else rng.dirichlet(np.full(k, mix))
        labels = rng.choice(k, n, p=mixture)
        X = means[labels] + rng.normal(size=(n, d)) @ root.T + effect
        X = np.where(skewed, np.exp(0.6 * X), X + offsets)
        yes = rng.random((n, d)) < ndtr(ndtri(shares[labels]) + effect)
        X = np.where(binary, yes, X)
        rows.append(np.where(rng.random((n, d)) < missing, np.nan, X))
    telling = np.where(binary, np.ptp(shares, axis=0) > 0.4, means.std(axis=0) > 1.0)
    return Hospitals(rows, binary, skewed, telling, k)


def miscoded(
    kind: str, drawn: Hospitals, site: int, rng: np.random.Generator
) -> tuple[FloatArray, set[int]] | None:
    """Return a site's rows, one column coded otherwise, and which; None where none suits."""
    enough = drawn.telling.sum() >= 4
    suits = drawn.telling & ~drawn.binary & enough
    if kind in UNITS:
        suits = ~drawn.binary & (enough | ~drawn.telling.any())
    elif kind == SWAPPED:
        suits = drawn.telling & drawn.binary & enough
    columns = np.flatnonzero(suits)
    if len(columns) < 1 + (kind == COLUMNS):
        return None
    X, j = drawn.rows[site].copy(), int(rng.choice(columns))
    if kind == COLUMNS:
        other = int(rng.choice(columns[columns != j]))
        X[:, [j, other]] = X[:, [other, j]]
        return X, {j, other}
    every, own = np.concatenate(drawn.rows)[:, j], X[:, j]
    if kind in UNITS:
        factor, added = UNITS[kind]
        X[:, j] = factor * own + added
    elif kind == "reverses":
        X[:, j] = np.nanmax(every) + (np.nanmin(every) if not drawn.skewed[j] else 0.0) - own
    elif kind == SWAPPED:
        X[:, j] = 1.0 - own
    elif kind.startswith("mirrors"):
        X[:, j] = 2.0 * np.nanmean(own) - own
    else:
        X[:, j] = own + 1.5 * np.nanstd(every)
    return X, {j}


def verdict(
    points: list[Points], drawn: Hospitals, wrong: tuple[int, set[int]] | None, seed: int
) -> str:
    """Return whether the right site and column are named: right, more, others or none."""
    scaled, differing = prepared(points, np.flatnonzero(drawn.binary))
    cells = {
        f"{place:03}": find_cells(own, site_rng(seed, str(place), 1))
        for place, own in enumerate(scaled)
    }
    n_clusters = LARGEST_K if seed % 4 > 1 else drawn.n_clusters
    found = differing_columns(cells, drawn.binary, n_clusters, 3, seed, differing)
    named = {(int(site), j) for site, columns in found.items() for j in columns}
    right = set() if wrong is None else {(wrong[0], j) for j in wrong[1]}
    if not named:
        return "none"
    return "others" if not named & right else "right" if named <= right else "more"


def verdicts(drawn: Hospitals, rng: np.random.Generator, seed: int) -> Iterator[tuple[str, str]]:
    """Yield each kind and its verdict for one draw."""
    points = [site_points(rows, P) for rows in drawn.rows]
    yield AGREE, verdict(points, drawn, None, seed)
    for kind in KINDS:
        site = int(rng.integers(len(points)))
        found = miscoded(kind, drawn, site, rng)
        if found is not None:
            changed = [*points[:site], site_points(found[0], P), *points[site + 1 :]]
            yield kind, verdict(changed, drawn, (site, found[1]), seed)


def real(seed: int, missing: float, *, support: bool) -> Iterator[tuple[str, Hospitals]]:
    """Yield real tables; every column may go wrong."""
    for name, sites in _real(seed, support=support):
        rng = np.random.default_rng(seed)
        rows = [np.where(rng.random(own.shape) < missing, np.nan, own) for own in sites]
        every = np.concatenate(rows)
        binary = (np.isin(every, (0.0, 1.0)) | np.isnan(every)).all(axis=0)
        yes = np.ones(len(binary), dtype=np.bool_)
        yield name, Hospitals(rows, binary, yes, yes, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--draws", type=int, default=60, help="of each size; a quarter of 30 x 100")
    parser.add_argument("--real", type=int, default=0, help="draws of real tables")
    parser.add_argument("--first", type=int, default=1_000, help="the first seed")
    parser.add_argument("--support", action="store_true", help="SUPPORT too, with --real")
    options = parser.parse_args()
    counts: dict[tuple[str, float, str], Counter[str]] = defaultdict(Counter)
    for missing in MISSING:
        for place, (size, (n_sites, _, _)) in enumerate(SIZES.items()):
            if size not in options.sizes:
                continue
            for seed in range(
                options.first, options.first + options.draws // (1 + 3 * (n_sites > 10))
            ):
                mix = 0.3 if seed % 2 else None
                rng = np.random.default_rng([seed, place, mix is None])
                for kind, found in verdicts(draw(rng, size, mix, missing), rng, seed):
                    counts[size, missing, kind][found] += 1
        for seed in range(options.first, options.first + options.real):
            for name, drawn in real(seed, missing, support=options.support):
                for kind, found in verdicts(drawn, np.random.default_rng(seed), seed):
                    counts[name, missing, kind][found] += 1
    rows = [
        {"sites": name, "missing": missing, "what the site does": kind, "sessions": found.total()}
        | {each: found[each] for each in ("right", "more", "others", "none")}
        for (name, missing, kind), found in counts.items()
    ]
    write("column_differences", rows, note=f"Groups: p = {P}.")


if __name__ == "__main__":
    main()
