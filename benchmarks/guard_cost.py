"""What disclosure control costs: inertia and ARI with the guard on and off.

scikit-learn's breast-cancer rows over four uneven hospitals, in some splits; then, in half as
many, as yes/no features (above the 0.8 quantile or not). Inertia is over all rows,
withheld ones included, and is divided by that of central k-means with 50 restarts; ARI is against
those central labels. "recovered" is how many rows the attacker of the tests reads off the answers;
at p=2 the guard lets two rows change places, a difference of two persons, and such pairs are not
counted there. Of yes/no rows, "shares given back" is how often two answers tell that fewer than p
rows of a site have, or lack, a feature; "shares rounded" is the part of all cells' shares that is.
Writes ``benchmarks/results/guard_cost.json``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from fedclust import SimulationResult, simulate  # noqa: E402
from fedclust.privacy.shares import Shares  # noqa: E402
from support.attacker import findings, shares_given_back  # noqa: E402
from support.hospitals import binarised, breast_cancer, pooled  # noqa: E402
from support.traces import Released, statistics_of, watched  # noqa: E402

VARIANTS: dict[str, dict[str, Any]] = {
    "guard, p=5 (default)": {"min_group_size": 5},
    "no guard, p=5": {"min_group_size": 5, "protection": "none"},
    "guard, p=2": {"min_group_size": 2},
    "no guard, p=2": {"min_group_size": 2, "protection": "none"},
}
#: Of yes/no rows: the default, each answer's shares judged by itself, and no guard.
YES_NO = ("guard, p=5 (default)", "guard, p=5, shares singly", "no guard, p=5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=3)
    options = parser.parse_args()
    rows = [row for k in (2, 4, 8) for row in _measure("lloyd", k, options.splits, VARIANTS)]
    for method in ("lloyd", "kfed", "fkm"):
        for k in (4, 8):
            rows += _measure(method, k, max(1, options.splits // 2), YES_NO, yes_no=True)
    write("guard_cost", rows)


def _measure(
    method: str, n_clusters: int, splits: int, variants: Iterable[str], *, yes_no: bool = False
) -> list[dict[str, Any]]:
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in variants}
    for seed in range(splits):
        sites = breast_cancer(seed)
        if yes_no:
            sites = binarised(sites, range(30))
        X = pooled(sites)
        scaled = (X - X.mean(axis=0)) / X.std(axis=0)
        central = KMeans(n_clusters, n_init=50, random_state=0).fit(scaled)
        for name in found:
            singly = name.endswith("shares singly")
            policy = VARIANTS["guard, p=5 (default)" if singly else name]
            alone = mock.patch.object(Shares, "_across") if singly else nullcontext()
            with watched() as seen, alone:
                result = simulate(
                    method,
                    sites,
                    config={"n_clusters": n_clusters},
                    features=[_feature(j, yes_no) for j in range(X.shape[1])],
                    policy=policy,
                    seed=seed,
                )
            labels = np.concatenate([result.labels_[site] for site in sorted(sites)])
            inertia = ((scaled - result.result_.centroids[labels]) ** 2).sum()
            sent = 0 if result.quality_ is None else result.quality_.n_rows
            given_back, rounded = _shares(seen, sites, policy["min_group_size"])
            found[name].append(
                (
                    inertia / central.inertia_,
                    adjusted_rand_score(central.labels_, labels),
                    result.n_rounds_,
                    len(X) - sent,
                    _recovered(result, seen, sites, policy["min_group_size"], yes_no),
                    given_back,
                    rounded,
                )
            )
    rows = []
    for name, figures in found.items():
        ratio, ari, rounds, withheld, recovered, given_back, rounded = np.mean(figures, axis=0)
        rows.append(
            {
                "method": method,
                "rows": "yes/no" if yes_no else "numeric",
                "K": n_clusters,
                "variant": name,
                "inertia / central": float(ratio),
                "worst": float(max(figure[0] for figure in figures)),
                "ARI": float(ari),
                "rounds": float(rounds),
                "rows withheld": float(withheld),
                "recovered": float(recovered),
                "shares given back": float(given_back),
                "shares rounded": float(rounded),
            }
        )
    return rows


def _feature(number: int, yes_no: bool) -> dict[str, Any]:
    return {"name": f"x{number}", "kind": "binary" if yes_no else "numeric"}


def _shares(seen: Released, sites: dict[str, np.ndarray], p: int) -> tuple[int, float]:
    """Return how many shares two answers give back, and the part of all that went rounded."""
    given_back, flags = 0, [np.zeros(0, dtype=np.bool_)]
    for site, sent in seen.rounded.items():
        columns = sites[site] > 0.5
        if any(rounded.shape[1] for _, rounded in sent):
            given_back += len(shares_given_back(sent, columns, p=p))
        for labels, rounded in sent:
            flags.append(rounded[np.unique(labels[labels >= 0])].reshape(-1))
    together = np.concatenate(flags)
    return given_back, float(together.mean()) if together.size else 0.0


def _recovered(
    result: SimulationResult, seen: Released, sites: dict[str, np.ndarray], p: int, yes_no: bool
) -> int:
    space = result.result_
    recovered = set()
    for site, rows in sites.items():
        scaled = (rows - space.center) / space.scale
        statistics = statistics_of(result, site, seen)
        for row, how in findings(statistics, scaled, rows, p=p, discrete=yes_no):
            if p > 2 or not how.endswith("a swap"):
                recovered.add((site, row))
    return len(recovered)


if __name__ == "__main__":
    main()
