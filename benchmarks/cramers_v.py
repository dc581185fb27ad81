"""Cramér's V of the groups by site and cluster against that of the rows, by groups a site.

Rows are drawn at 3 to 10 sites of about 130 to 300 persons, all of one size or .3 to 1.7 times it.
Three clusters, or none, in equal shares, or in shares that differ little or much between sites
(Dirichlet 2 and .5). Each session is asked for 2 to 5 clusters at p = 5. With `--real`, real tables
too, whole and every second row of them; with `--support`, SUPPORT (the extra `examples`).

Table: sessions, the share in which V is within .1 of that of the rows' labels, and the mean
difference.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from _report import write
from fedclust import simulate
from fedclust.numeric.agreement import cramers_v
from table_one import COLUMNS, KINDS, MISSING, NO_EFFECT, Sites, _real, with_missing

DRAWN = ("Gaussian", "correlated", "lognormal", "zero-inflated", "mixed", "t3", "counts")
EMPTY = tuple(kind + NO_EFFECT for kind in ("Gaussian", "lognormal", "mixed"))
#: Groups a site, on average: from one number to the next.
EDGES = (15, 20, 25, 30, 35, 40, 60)


def drawn(seed: int) -> Iterator[tuple[Sites, dict[str, Any]]]:
    rng = np.random.default_rng(seed)
    for n_sites in (3, 4, 6, 10):
        for n_rows in (100, 130, 160, 190, 220, 260, 300):
            kind = str(rng.choice([*DRAWN, *EMPTY]))
            mix = (None, 2.0, 0.5)[rng.integers(3)]
            sizes = n_rows * (
                rng.uniform(0.3, 1.7, n_sites) if rng.integers(2) else np.ones(n_sites)
            )
            where = np.repeat(np.arange(n_sites), sizes.astype(int))
            shares = (
                np.full((n_sites, 3), 1 / 3) if mix is None else rng.dirichlet([mix] * 3, n_sites)
            )
            labels = [rng.choice(3, p=shares[site]) for site in where]
            centres = 2.0 * rng.normal(size=(3, COLUMNS))[labels]
            draw, feature = KINDS[kind]
            X = draw(rng, 0.0 * centres if kind in EMPTY else centres)
            yield [X[where == site] for site in range(n_sites)], feature


def measure(
    sites: Sites, feature: dict[str, Any], missing: float, seed: int
) -> tuple[float, float]:
    """Return the groups a site, and by how much their V is larger than that of the rows."""
    rng, k = np.random.default_rng(seed), 2 + seed % 4
    sites, columns = with_missing(sites, feature, missing, rng)
    data: Any = {f"site{place}": rows for place, rows in enumerate(sites)}
    found = simulate("lloyd", data, config={"n_clusters": k}, features=columns, seed=seed)
    sent = [each.payload for each in found.trace_ if each.phase == "evidence" and each.payload]
    groups = np.stack([each.parts[0].evaluation.points for each in sent])
    rows = [np.bincount(own[own >= 0], minlength=k) for own in found.labels_.values()]
    return groups.sum() / len(groups), cramers_v(groups) - cramers_v(np.stack(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--real", type=int, default=0, help="seeds of real tables")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--support", action="store_true", help="SUPPORT too, with --real")
    options = parser.parse_args()
    found: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)

    def add(what: str, sites: Sites, feature: dict[str, Any], missing: float, seed: int) -> None:
        n, off = measure(sites, feature, missing, seed)
        found[what, int(np.searchsorted(EDGES, n, side="right"))].append((missing, off))

    for seed in range(options.first, options.first + options.seeds):
        for place, (sites, feature) in enumerate(drawn(seed)):
            add("drawn", sites, feature, MISSING[place % 3], 100 * seed + place)
    for seed in range(options.first, options.first + options.real):
        for name, sites in _real(seed, support=options.support):
            for step in (1, 2):
                for missing in MISSING:
                    add(name, [rows[::step] for rows in sites], {}, missing, seed)
    lines = []
    for (what, place), measured in sorted(found.items()):
        missing, off = np.array(measured).T
        line: dict[str, Any] = {"data": what, "groups a site, from": (0, *EDGES)[place]}
        line |= {"sessions": len(off), "within .1": float((np.abs(off) <= 0.1).mean())}
        for share in MISSING:
            own = np.abs(off[missing == share]) <= 0.1
            line[f"{share:g} missing"] = float(own.mean()) if len(own) else None
        lines.append({**line, "difference": float(off.mean())})
    write("cramers_v", lines, note="p = 5; K = 2 to 5.")


if __name__ == "__main__":
    main()
