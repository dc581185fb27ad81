"""One bad site among honest ones: the effect on the honest rows' clusters.

Five honest sites of 259 rows share four clusters, six standard deviations apart. A sixth site has
other rows: 40 at 1e6 (3 % of all), five at 1e9, or 40 at the corners of wide bounds. It may also
lie: it sends moments of 1e6 with honest rows, or honest moments with rows at 1e6. ARI compares the
honest rows' labels with their true clusters.

A second part uses only honest data, for which nothing may change: the inertia of the centroids with
the rule over that without it. Sites that are split by the size of the tumours differ as much as
honest sites can.
"""

import argparse
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import adjusted_rand_score

from _data import digits, fkm
from _hospitals import heart
from _report import write
from _runs import Job, Record, fingerprint, run
from fedclust import simulate
from fedclust.rounds import preparation, stages
from fedclust.schema.task import SiteSide, SiteTask

warnings.simplefilter("ignore")

Rows = dict[str, NDArray[np.float64]]
CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [6.0, 6.0]])
METHODS = ("lloyd", "fkm", "kfed")
BAD = "site-5"
#: Rows of the bad site; where it lies, what of its moments is made up.
CASES = {
    "no bad site": (0, ""),
    "40 rows at 1e6": (40, ""),
    "five rows at 1e9": (5, ""),
    "corners of wide bounds": (40, ""),
    "honest rows, moments of 1e6": (40, "moments"),
    "moments of honest sites, 40 rows at 1e6": (40, "rows"),
}


def sites_of(case: str, seed: int) -> tuple[Rows, NDArray[np.int64]]:
    """Return all sites' rows, and the true clusters of the honest ones in order of sites."""
    rng = np.random.default_rng([20, seed])
    labels = rng.integers(0, 4, (5, 259))
    sites = {f"site-{i}": CENTRES[own] + rng.normal(size=(259, 2)) for i, own in enumerate(labels)}
    n = CASES[case][0]
    if case == "corners of wide bounds":
        sites[BAD] = 1e3 * rng.choice([-1.0, 1.0], (n, 2))
    elif case == "honest rows, moments of 1e6":
        sites[BAD] = CENTRES[rng.integers(0, 4, n)] + rng.normal(size=(n, 2))
    elif n:
        sites[BAD] = np.full((n, 2), 1e9 if n == 5 else 1e6) + rng.normal(size=(n, 2))
    return sites, labels.ravel()


@contextmanager
def lying(case: str) -> Iterator[None]:
    """Let the bad site, known by its size, make up its moments."""
    n, lie = CASES[case]

    def lying_step(task: SiteTask, site: SiteSide) -> Any:
        moments = preparation.local_step(task, site)
        if moments is None or site.points.n != n:
            return moments
        mean, spread = (1e6, 1e6) if lie == "moments" else (3.0, 3.0)
        made_up = {"mean": np.full(2, mean), "m2": np.full(2, n * spread**2)}
        return moments.model_copy(update=made_up)

    if not lie:
        yield
        return
    lying = dataclasses.replace(preparation.PHASE, local_step=lying_step)
    stage = type(stages.STAGES[0])
    with mock.patch.object(stage, "own_phases", (lying,)):
        yield


def measure(case: str, method: str, protection: str, seed: int) -> Record:
    """Return the ARI of the honest rows, and whether the bad site was named."""
    sites, truth = sites_of(case, seed)
    bounds = {"lower": -1e3, "upper": 1e3} if case == "corners of wide bounds" else {}
    with lying(case):
        found = simulate(
            method,
            sites,
            config={"n_clusters": 4},
            features=[{"name": f"x{j}", **bounds} for j in range(2)],
            policy={"protection": protection},
            seed=seed,
        )
    labels = np.concatenate([found.labels_[f"site-{i}"] for i in range(5)])
    named = [line for line in found.result.warnings if "stands apart" in line]
    return {
        "ari": float(adjusted_rand_score(truth, labels)),
        "named": any(repr(BAD) in line for line in named),
        "others named": any(repr(BAD) not in line for line in named),
    }


def bad(seeds: int) -> None:
    """The ARI of the honest rows by case, method and protection."""
    grid = [(c, m, p) for c in CASES for m in METHODS for p in ("none", "groups")]
    jobs = [
        Job(measure, {"case": c, "method": m, "protection": p, "seed": seed})
        for c, m, p in grid
        for seed in range(seeds)
    ]
    records = run("bad_site", jobs, fingerprint(__file__))
    rows = []
    for i, (case, method, protection) in enumerate(grid):
        own = records[i * seeds : (i + 1) * seeds]
        rows.append(
            {
                "the sixth site": case,
                "method": method,
                "protection": protection,
                "ARI": float(np.mean([r["ari"] for r in own])),
                "least": min(r["ari"] for r in own),
                "named": f"{sum(r['named'] for r in own)} of {seeds}",
                "others named": sum(r["others named"] for r in own),
            }
        )
    write(
        "bad_site", rows, note="p = 5. Declared bounds in the corners' case alone: -1000 to 1000."
    )


# --- honest sites ---------------------------------------------------------------------------------


def honest_data(name: str, seed: int) -> tuple[Rows, int]:
    """Return honest sites' rows by site, and the number of clusters asked for."""
    if name.startswith("fkm "):
        return fkm(name.removeprefix("fkm "), 1.0, seed=seed).sites(), 16
    rng = np.random.default_rng(seed)
    if name == "heart":
        return _heart(), 2
    if name == "digits":
        X, _ = digits()
        return dict(zip("abcdefghij", np.array_split(rng.permutation(X), 10), strict=True)), 10
    X, y = load_breast_cancer(return_X_y=True)
    if name == "breast cancer":
        parts = np.split(rng.permutation(X), (250, 420, 520))
    elif name == "breast cancer, by diagnosis":
        parts = [X[y == 0], *np.array_split(rng.permutation(X[y == 1]), 2)]
    else:  # From the smallest tumours to the largest.
        parts = np.array_split(X[np.argsort(X[:, 0])], 5)
    return dict(zip("abcde", parts, strict=False)), 4


def _heart() -> Rows:
    """Return the eight features that all four hospitals have, complete rows alone."""
    found, _ = heart()
    shared = np.all(list(found.masks.values()), axis=0)
    parts = {site: found.X[rows][:, shared] for site, rows in found.split.items()}
    return {site: rows[~np.isnan(rows).any(axis=1)] for site, rows in parts.items()}


HONEST = (
    *("fkm 0.1", "fkm uneven", "fkm voronoi", "breast cancer", "breast cancer, by diagnosis"),
    *("breast cancer, by size", "heart", "digits"),
)


def compare(name: str, method: str, protection: str, seed: int) -> Record:
    """Return what the centroids cost with the rule, over their cost without it."""
    sites, k = honest_data(name, seed)
    X = np.concatenate(list(sites.values()))
    scale = X.std(axis=0)
    costs, named = [], False
    for rule in (True, False):
        off = {} if rule else {"_APART": np.inf, "_LIMIT": 1e300}
        with mock.patch.multiple(preparation, **off) if off else nullcontext():
            found = simulate(
                method,
                sites,
                config={"n_clusters": k},
                policy={"protection": protection},
                seed=seed,
            )
        named |= any("stands apart" in line for line in found.result.warnings)
        apart = (X[:, None] - found.cluster_centers_[None]) / np.where(scale > 0, scale, 1.0)
        costs.append(float((apart**2).sum(axis=2).min(axis=1).sum()))
    return {"cost": costs[0] / costs[1], "named": named}


def honest(seeds: int) -> None:
    """Honest data with the rule and without it."""
    grid = [(h, m, p) for h in HONEST for m in ("lloyd", "fkm") for p in ("none", "groups")]
    jobs = [
        Job(compare, {"name": h, "method": m, "protection": p, "seed": seed})
        for h, m, p in grid
        for seed in range(seeds)
    ]
    records = run("bad_site_honest", jobs, fingerprint(__file__))
    rows = []
    for i, (name, method, protection) in enumerate(grid):
        own = records[i * seeds : (i + 1) * seeds]
        rows.append(
            {
                "data": name,
                "method": method,
                "protection": protection,
                "cost": float(np.mean([r["cost"] for r in own])),
                "farthest from 1": max((r["cost"] for r in own), key=lambda c: abs(c - 1.0)),
                "sites named": f"{sum(r['named'] for r in own)} of {seeds}",
            }
        )
    write(
        "bad_site_honest",
        rows,
        note="Cost of the centroids on all rows with the rule, over that without it. p = 5.",
    )


PARTS: dict[str, Callable[[int], None]] = {"bad": bad, "honest": honest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=PARTS, nargs="*", default=list(PARTS))
    options = parser.parse_args()
    for name in options.only:
        PARTS[name](options.seeds)


if __name__ == "__main__":
    main()
