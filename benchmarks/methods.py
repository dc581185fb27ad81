"""What a session of each method costs: rounds, bytes, and the CPU time of sites and coordinator.

Each method runs a typical session, and a large one, in one process and one thread. A site's time
includes the forming of its protected table; the coordinator's is that of all its aggregations.
Bytes are those of the payloads, by phase and round, before a submission adds its envelope.

Second table: the methods for one common k-means on the same data, compared with central k-means.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.datasets import load_iris, load_wine, make_blobs

from _baselines import BARE, GROUPS, central, centroid_cost
from _cases import CENTRAL_N_INIT, cases
from _report import write
from fedclust import simulate

Session = tuple[dict[str, Any], dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="one method, without the second table")
    parser.add_argument("--runs", type=int, default=5, help="of the second table")
    options = parser.parse_args()
    rows = [
        measure(method, case, *session())
        for method, cases in SESSIONS.items()
        if options.only in (None, method)
        for case, session in cases.items()
    ]
    write(
        "methods",
        rows,
        note=(
            "p = 5, scaled to variance 1, options by default. CPU seconds of one thread: the "
            "slowest site and the coordinator, all rounds. kB: payloads of one site by phase, "
            "each round, the largest."
        ),
    )
    if options.only is None:
        write(
            "methods_compared",
            [row for name in COMPARED for row in compare(name, options.runs)],
            note=(
                f"Means and worst of {options.runs} seeds: inertia of all rows with the session's "
                f"centroids, over that of central k-means (n_init={CENTRAL_N_INIT}). Options by "
                "default. Rounds of the method, p = 5."
            ),
        )


def blobs(sites: int, rows: int, columns: int, k: int, lacking: float = 0.0) -> Session:
    """Return overlapping clusters over the sites; each lacks some of the columns."""
    X, _ = make_blobs(sites * rows, columns, centers=k, cluster_std=4.0, random_state=0)
    rng = np.random.default_rng(0)
    names = [f"x{column}" for column in range(columns)]
    parts: dict[str, Any] = {}
    held: dict[str, list[str]] = {}
    for number, part in enumerate(np.array_split(X, sites)):
        kept = np.sort(rng.permutation(columns)[: columns - int(lacking * columns)])
        parts[f"site-{number:02}"] = part[:, kept]
        held[f"site-{number:02}"] = [names[column] for column in kept]
    options: dict[str, Any] = {"config": {"n_clusters": k}}
    if lacking:
        options |= {"features": held, "policy": {"missing": "mask"}}
    return parts, options


def bounded(X: np.ndarray) -> Session:
    """Return small data over three sites, with bounds a quarter of the range wider."""
    room = np.ptp(X, axis=0) / 4
    low, high = X.min(axis=0) - room, X.max(axis=0) + room
    features = [
        {"name": f"x{column}", "lower": float(a), "upper": float(b)}
        for column, (a, b) in enumerate(zip(low, high, strict=True))
    ]
    order = np.random.default_rng(0).permutation(len(X))
    parts = {f"site-{i}": X[rows] for i, rows in enumerate(np.array_split(order, 3))}
    return parts, {"config": {"n_clusters": 3}, "features": features}


SESSIONS: dict[str, dict[str, Callable[[], Session]]] = {
    **{
        method: {
            "4 sites x 500 rows, d = 10, K = 4": lambda: blobs(4, 500, 10, 4),
            "20 sites x 20,000 rows, d = 50, K = 20": lambda: blobs(20, 20_000, 50, 20),
        }
        for method in ("lloyd", "fkm", "kfed", "spectral", "mixture", "ward")
    },
    **{
        method: {
            "4 sites x 500 rows, 8 of d = 10, K = 4": lambda: blobs(4, 500, 10, 4, 0.2),
            "20 sites x 20,000 rows, 40 of d = 50, K = 20": lambda: blobs(20, 20_000, 50, 20, 0.2),
        }
        for method in ("overlap", "overlap_oneshot")
    },
    "dual": {
        "3 sites, 150 rows, d = 4, K = 3": lambda: bounded(load_iris().data),
        "3 sites, 178 rows, d = 4, K = 3": lambda: bounded(load_wine().data[:, [0, 6, 9, 12]]),
    },
}


def measure(
    method: str, case: str, sites: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """Run a session; return what it cost."""
    if method == "dual":
        simulate(method, sites, **options)  # What a site compiles once is not measured.
    with clock() as spent:
        result = simulate(method, sites, **options)
    by_phase: dict[str, list[int]] = defaultdict(list)
    for entry in result.trace_:
        by_phase[entry.phase].append(entry.size)
    rounds = {phase: len(sizes) // len(sites) for phase, sizes in by_phase.items()}
    total = sum(each.size for each in result.trace_) / len(sites)
    return {
        "method": method,
        "session": case,
        "rounds": sum(rounds.values()),
        "kB by phase": ", ".join(
            f"{phase} {max(sizes) / 1000:.2g}"
            + (f" x {rounds[phase]}" if rounds[phase] > 1 else "")
            for phase, sizes in by_phase.items()
        ),
        "kB, all": total / 1000,
        "table s": spent["table"] / len(sites),
        "site s": max(v for k, v in spent.items() if k not in ("table", "coordinator")),
        "coordinator s": spent["coordinator"],
    }


#: Of the cases of ``protection.py``.
COMPARED = (
    "FKM's data, noise 1, uneven",
    "FKM's data, noise 1.5, 0.1",
    "FKM's data, noise 1.5, voronoi",
    "breast cancer, K = 8",
    "digits, K = 10, 4 sites",
    "digits, K = 20, 10 sites",
)


def compare(name: str, runs: int) -> list[dict[str, Any]]:
    """Return the cost of each k-means method on the data of one case."""
    case = cases()[name]
    costs: dict[tuple[str, str], list[float]] = defaultdict(list)
    rounds: dict[str, list[int]] = defaultdict(list)
    for seed in range(runs):
        data = case.data(seed)
        held = data.X[data.held]
        best = central(held, case.k, CENTRAL_N_INIT, seed)[2]
        for method in ("lloyd", "fkm", "kfed"):
            for p, policy in (("5", GROUPS), ("none", BARE)):
                config = {"n_clusters": case.k}
                result = simulate(method, data.sites(), config=config, policy=policy, seed=seed)
                costs[method, p].append(centroid_cost(held, result.cluster_centers_) / best)
                if p == "5":
                    rounds[method].append(result.n_rounds_)
    return [
        {
            "data": name,
            "method": method,
            "cost, none": float(np.mean(costs[method, "none"])),
            "worst, none": max(costs[method, "none"]),
            "cost, p=5": float(np.mean(costs[method, "5"])),
            "worst, p=5": max(costs[method, "5"]),
            "rounds": float(np.mean(rounds[method])),
        }
        for method in rounds
    ]


@contextmanager
def clock() -> Iterator[dict[str, float]]:
    """Add up the CPU time of tables, of each site's steps and of the coordinator."""
    module: Any = sys.modules["fedclust.local.simulate"]
    spent: dict[str, float] = defaultdict(float)

    def timed(function: Callable[..., Any], key: Callable[..., str]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            begin = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent[key(**kwargs)] += time.process_time() - begin

        return wrapped

    kept = {
        (module, "site_data"): lambda **_: "table",
        (module.rounds, "local_step"): lambda site, **_: site,
        (module.rounds, "start"): lambda **_: "coordinator",
        (module.rounds, "advance"): lambda **_: "coordinator",
    }
    before = {place: getattr(*place) for place in kept}
    for place, key in kept.items():
        setattr(*place, timed(before[place], key))
    try:
        yield spent
    finally:
        for place, function in before.items():
            setattr(*place, function)


if __name__ == "__main__":
    main()
