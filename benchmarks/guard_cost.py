"""What disclosure control costs: inertia and ARI with the differencing guard on and off.

scikit-learn's breast-cancer rows over four uneven hospitals, ten splits. Inertia is over all rows,
withheld ones included, and is divided by that of central k-means with 50 restarts; ARI is against
those central labels. "recovered" is how many rows the attacker of the tests reads off the answers;
at p=2 the guard lets two rows change places, a difference of two persons, and such pairs are not
counted there.
Writes ``benchmarks/results/guard_cost.json``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from fedclust import SimulationResult, simulate  # noqa: E402
from support.attacker import findings  # noqa: E402
from support.hospitals import breast_cancer, pooled  # noqa: E402
from support.traces import statistics_of  # noqa: E402

VARIANTS: dict[str, dict[str, Any]] = {
    "guard, p=5 (default)": {"min_cluster_size": 5},
    "no guard, p=5": {"min_cluster_size": 5, "differencing": "off"},
    "guard, p=2": {"min_cluster_size": 2},
    "no guard, p=2": {"min_cluster_size": 2, "differencing": "off"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=10)
    options = parser.parse_args()
    write("guard_cost", [row for k in (2, 4, 8) for row in _measure(k, options.splits)])


def _measure(n_clusters: int, splits: int) -> list[dict[str, Any]]:
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in VARIANTS}
    for seed in range(splits):
        sites = breast_cancer(seed)
        X = pooled(sites)
        scaled = (X - X.mean(axis=0)) / X.std(axis=0)
        central = KMeans(n_clusters, n_init=50, random_state=0).fit(scaled)
        for name, policy in VARIANTS.items():
            result = simulate(
                "lloyd", sites, config={"n_clusters": n_clusters}, policy=policy, seed=seed
            )
            labels = np.concatenate([result.labels_[site] for site in sorted(sites)])
            inertia = ((scaled - result.result_.centroids[labels]) ** 2).sum()
            sent = 0 if result.quality_ is None else result.quality_.n_rows
            found[name].append(
                (
                    inertia / central.inertia_,
                    adjusted_rand_score(central.labels_, labels),
                    result.n_rounds_,
                    len(X) - sent,
                    _recovered(result, sites, policy["min_cluster_size"]),
                )
            )
    rows = []
    for name, figures in found.items():
        ratio, ari, rounds, withheld, recovered = np.mean(figures, axis=0)
        rows.append(
            {
                "K": n_clusters,
                "variant": name,
                "inertia / central": float(ratio),
                "worst": float(max(figure[0] for figure in figures)),
                "ARI": float(ari),
                "rounds": float(rounds),
                "rows withheld": float(withheld),
                "recovered": float(recovered),
            }
        )
    return rows


def _recovered(result: SimulationResult, sites: dict[str, np.ndarray], p: int) -> int:
    space = result.result_
    recovered = set()
    for site, rows in sites.items():
        scaled = (rows - space.center) / space.scale
        for row, how in findings(statistics_of(result, site), scaled, rows, p=p):
            if p > 2 or not how.endswith("a swap"):
                recovered.add((site, row))
    return len(recovered)


if __name__ == "__main__":
    main()
