"""Reproduce FKM's figures (Garst & Reinders), and compare the default variant with central k-means.

"paper" is the paper variant with `protection: none`; "default" is the default variant with the same
policy; "p=5" is the default on the protected tables. The paper's own data come from
RandomState(42); the clients' places are ours (``_data.LOCATIONS``). ``--runs 200`` is the paper's
number of runs, and is resumable; without it, each figure states its number of runs.
"""

import argparse
import warnings
from typing import Any

import numpy as np
from sklearn.metrics import silhouette_score

from _baselines import (
    BARE,
    GROUPS,
    by_nearest,
    central,
    centroid_cost,
    client_ari,
    local_only,
    naive,
    pooled_ari,
    simplified_silhouette,
    steps_of,
)
from _data import CORNERS, LOCATIONS, femnist, fkm
from _report import write
from _runs import Job, Record, Spread, fingerprint, run, spread
from fedclust import simulate

warnings.simplefilter("ignore")

K = 16
CENTRAL_N_INIT = 50
#: Published means by split and noise: after 10 rounds, after 100, central, and the latter's name.
PUBLISHED = {
    ("0.1", 1.0): (0.9517, 0.9492, 0.9549),
    ("1", 1.0): (0.9577, 0.9577, 0.9549),
    ("10", 1.0): (0.9571, 0.9571, 0.9549),
    ("0.1", 1.5): (0.6888, 0.6965, 0.7246),
    ("1", 1.5): (None, None, 0.7246),
    ("10", 1.5): (None, None, 0.7246),
    ("uneven", 1.0): (0.9009, 0.9016, None),
}
ABLATION = {
    "paper": ({}, 0.9517),
    "without dropping": ({"drop_empty": False}, 0.9295),
    "unweighted": ({"weighted": False}, 0.8328),
    "neither": ({"drop_empty": False, "weighted": False}, 0.8062),
}


def paper(rounds: int, **options: Any) -> dict[str, Any]:
    """Return the arguments of a run of the paper variant."""
    return {
        "config": {
            "n_clusters": K,
            "variant": "paper",
            "rounds": rounds,
            "evaluate": False,
            **options,
        },
        "policy": {**BARE, "max_rounds": rounds + 1},
    }


def default(policy: dict[str, Any], k: int = K) -> dict[str, Any]:
    """Return the arguments of a run of the default variant."""
    return {"config": {"n_clusters": k, "evaluate": False}, "policy": policy}


# --- figures 1, 3 and 4 ---------------------------------------------------------------------------


def published_data(split: str, noise: float, seed: int, points: int = 50) -> Record:
    """Run all methods once on the paper's own data."""
    data = fkm(split, noise, points)
    found: Record = {}
    result = simulate("fkm", data.sites(), **paper(100), seed=seed)
    curve = [
        client_ari(data, by_nearest(data, centroids))
        for centroids in [*steps_of(result), result.cluster_centers_]
    ]
    found["curve"] = curve
    assert len(curve) == 100
    found["paper, 10"], found["paper, 100"] = curve[9], curve[99]
    for name, policy in (("default", BARE), ("p=5", GROUPS)):
        found[name] = client_ari(
            data, simulate("fkm", data.sites(), **default(policy), seed=seed).labels_
        )
    found["k-FED, k'=K"] = _kfed(data, K, seed)
    labels = by_nearest(data, central(data.X[data.held], K, CENTRAL_N_INIT, seed)[1])
    found["central"] = client_ari(data, labels)
    found["naive"] = client_ari(data, naive(data, K, seed).labels_)
    found["local only"] = client_ari(data, local_only(data, K, seed))
    return found


def informed(split: str, noise: float, k_prime: int, seed: int) -> Record:
    """Run k-FED's paper variant with one k' of the exhaustive search ("informed")."""
    return {"ARI": _kfed(fkm(split, noise), k_prime, seed)}


def _kfed(data: Any, k_prime: int, seed: int) -> float:
    config = {"n_clusters": K, "variant": "paper", "local_clusters": k_prime, "evaluate": False}
    result = simulate("kfed", data.sites(), config=config, policy=BARE, seed=seed)
    return client_ari(data, result.labels_)


def figures_1_3_4(runs: int | None, code: str) -> None:
    """Print per-client ARI on the paper's data, and its course over the rounds."""
    runs = runs or 3
    searched = max(3, runs // 4)
    cases = list(PUBLISHED)
    jobs = [
        Job(published_data, {"split": split, "noise": noise, "seed": seed})
        for split, noise in cases
        for seed in range(runs)
    ]
    tries = [
        Job(informed, {"split": split, "noise": noise, "k_prime": k_prime, "seed": seed})
        for split, noise in cases
        for k_prime in range(1, K + 1)
        for seed in range(searched)
    ]
    records = run("fkm", [*jobs, *tries], code)
    searches = records[len(jobs) :]
    rows, curves = [], []
    for index, (split, noise) in enumerate(cases):
        part = records[index * runs : (index + 1) * runs]
        best = max(
            (
                spread(searches[begin : begin + searched], "ARI")
                for begin in range(index * K * searched, (index + 1) * K * searched, searched)
            ),
            key=lambda figures: figures.mean,
        )
        ten, hundred, pooled = PUBLISHED[split, noise]
        rows.append(
            {
                "split": _named(split),
                "noise": noise,
                "published 10 / 100": f"{ten or '-'} / {hundred or '-'}",
                "paper, 10": str(spread(part, "paper, 10")),
                "paper, 100": str(spread(part, "paper, 100")),
                "passes": _passes(part, ten, hundred),
                "default": str(spread(part, "default")),
                "p=5": str(spread(part, "p=5")),
                "k-FED, k'=K": str(spread(part, "k-FED, k'=K")),
                "k-FED, best k'": str(best),
                "published central": pooled or "-",
                "central": str(spread(part, "central")),
                "naive": str(spread(part, "naive")),
                "local only": str(spread(part, "local only")),
            }
        )
        course = np.array([record["curve"] for record in part])
        curves.append(
            {
                "split": _named(split),
                "noise": noise,
                **{
                    f"round {r}": round(float(course[:, r - 1].mean()), 4)
                    for r in (1, 2, 5, 10, 40, 100)
                },
                "central": round(spread(part, "central").mean, 4),
                "curve": np.round(course.mean(axis=0), 4).tolist(),
            }
        )
    write(
        "fkm_figures1and4",
        rows,
        note=(
            f"Adjusted Rand index per client, weighted by size; mean ±sd (standard error), {runs} "
            f"runs on the data of RandomState(42), 50 rows a centre; central n_init="
            f"{CENTRAL_N_INIT}; best k' of 1..16 by exhaustive search, {searched} runs each. "
            "passes: mean not below the published one minus 2 standard errors."
        ),
    )
    write(
        "fkm_figure3",
        curves,
        hidden=("curve",),
        note="Figure 3 d-f: the paper variant's mean after each round.",
    )


def _passes(part: list[Record], ten: float | None, hundred: float | None) -> str:
    verdicts = []
    for name, target in (("paper, 10", ten), ("paper, 100", hundred)):
        figures = spread(part, name)
        if target is not None:
            verdicts.append("yes" if figures.mean >= target - 2 * figures.se else "NO")
    return " / ".join(verdicts) or "-"


# --- the ablation ---------------------------------------------------------------------------------


PLACES = {"quarters": LOCATIONS, "corners": CORNERS}


def ablated(options: dict[str, Any], places: str, seed: int) -> Record:
    """Run the paper variant without a part of it, the clients at one of ``PLACES``."""
    data = fkm("0.1", 1.0, locations=PLACES[places])
    result = simulate("fkm", data.sites(), **paper(10, **options), seed=seed)
    return {"ARI": client_ari(data, by_nearest(data, result.cluster_centers_))}


def ablation(runs: int | None, code: str) -> None:
    """Print what dropping and weights are worth."""
    runs = runs or 4
    jobs = [
        Job(ablated, {"options": options, "places": places, "seed": seed})
        for options, _ in ABLATION.values()
        for places in PLACES
        for seed in range(runs)
    ]
    records = iter(run("fkm", jobs, code))
    rows = [
        {
            "variant": name,
            "published": published,
            **{
                f"clients in {places}": str(spread([next(records) for _ in range(runs)], "ARI"))
                for places in PLACES
            },
        }
        for name, (_, published) in ABLATION.items()
    ]
    write(
        "fkm_ablation",
        rows,
        note=(
            f"beta 0.1, noise 1, 10 rounds, {runs} runs. Where the clients are, which the paper "
            "does not say, decides what weights are worth: in the middles of the quarters, as "
            "elsewhere here, all hold about as many rows; with four in the corners the one in the "
            "centre holds 561 of 800."
        ),
    )


# --- how far from central -------------------------------------------------------------------------


def reach(split: str, noise: float, points: int, seed: int) -> Record:
    """Compare with central k-means on fresh data."""
    data = fkm(split, noise, points, seed)
    X = data.X[data.held]
    _, centroids, cost = central(X, K, CENTRAL_N_INIT, seed)
    found: Record = {"central": pooled_ari(data, by_nearest(data, centroids))}
    runs = {
        "default": default(BARE),
        "p=5": default(GROUPS),
    }
    if points == 50:
        runs["paper, 10"] = paper(10)
    for name, arguments in runs.items():
        result = simulate("fkm", data.sites(), **arguments, seed=seed)
        found[name] = pooled_ari(data, by_nearest(data, result.cluster_centers_))
        found[f"{name} cost"] = centroid_cost(X, result.cluster_centers_) / cost
        found[f"{name} rounds"] = result.n_rounds_
    for name in ("default", "p=5"):
        found[f"{name} gap"] = found["central"] - found[name]
    return found


def reaches(runs: int | None, code: str) -> None:
    """Print the default variant's distance from central, case by case."""
    runs = runs or 4
    cases = [
        (split, noise, points)
        for points in (50, 200)
        for noise in ((1.0, 1.25, 1.5) if points == 50 else (1.0, 1.5))
        for split in ("0.1", "1", "10")
    ]
    cases += [("uneven", 1.0, 50), ("uneven", 1.0, 200), ("voronoi", 1.5, 50)]
    jobs = [
        Job(reach, {"split": split, "noise": noise, "points": points, "seed": seed})
        for split, noise, points in cases
        for seed in range(runs)
    ]
    records = run("fkm", jobs, code)
    rows = []
    for index, (split, noise, points) in enumerate(cases):
        part = records[index * runs : (index + 1) * runs]
        gap, cost = spread(part, "default gap"), spread(part, "default cost")
        allowed = 0.01 if split == "voronoi" else 0.005
        reached = gap.mean <= allowed and (split == "voronoi" or cost.best <= 1.01)
        rows.append(
            {
                "split": _named(split),
                "noise": noise,
                "points": points,
                "central": _short(spread(part, "central")),
                "default": _short(spread(part, "default")),
                "gap (se)": f"{gap.mean:+.4f} ({gap.se:.4f})",
                "cost: mean, worst": f"{cost.mean:.4f}, {cost.best:.4f}",
                "rounds: mean, most": _rounds(spread(part, "default rounds")),
                "reached": "yes" if reached else "NO",
                "p=5": _short(spread(part, "p=5")),
                "its cost": f"{spread(part, 'p=5 cost').mean:.4f}",
                "paper, 10": _short(spread(part, "paper, 10")),
            }
        )
    write(
        "fkm_reach",
        rows,
        note=(
            f"Pooled ARI, fresh data for each of {runs} seeds; default: protection none; central "
            f"n_init={CENTRAL_N_INIT}. reached: mean gap at most .005 (.01 for the nearest-client "
            "split), cost at most 1.01 x central in every run."
        ),
    )


def _rounds(figures: Spread) -> str:
    return f"{figures.mean:.1f}, {figures.best:.0f}"


# --- figure 6 -------------------------------------------------------------------------------------


def points(split: str, noise: float, points: int, seed: int) -> Record:
    """Run on the paper's data with more rows a centre."""
    data = fkm(split, noise, points)
    found: Record = {}
    runs = {"paper, 10": paper(10), "default": default(BARE), "p=5": default(GROUPS)}
    for name, arguments in runs.items():
        result = simulate("fkm", data.sites(), **arguments, seed=seed)
        found[name] = client_ari(data, by_nearest(data, result.cluster_centers_))
    found["k-FED, k'=K"] = _kfed(data, K, seed)
    found["central"] = client_ari(
        data, by_nearest(data, central(data.X, K, CENTRAL_N_INIT, seed)[1])
    )
    return found


def figure_6(runs: int | None, code: str) -> None:
    """Print Appendix B: 50, 100 and 200 rows a centre, noise 1 to 1.5."""
    runs = max(1, (runs or 3) // 3)
    cases = [
        (split, noise, count)
        for count in (50, 100, 200)
        for split in ("0.1", "1", "10")
        for noise in (1.0, 1.25, 1.5)
    ]
    jobs = [
        Job(points, {"split": split, "noise": noise, "points": count, "seed": seed})
        for split, noise, count in cases
        for seed in range(runs)
    ]
    records = run("fkm", jobs, code)
    rows = [
        {"points": count, "split": _named(split), "noise": noise}
        | {name: _short(spread(records[i * runs : (i + 1) * runs], name)) for name in records[0]}
        for i, (split, noise, count) in enumerate(cases)
    ]
    write(
        "fkm_figure6",
        rows,
        note=f"Per-client ARI, {runs} runs each; central n_init={CENTRAL_N_INIT}.",
    )


# --- figure 5 -------------------------------------------------------------------------------------


def letters(method: str, seed: int) -> Record:
    """Cluster FEMNIST's clients 0-9 into 60."""
    data = femnist(10)
    k = 60
    if method == "central":
        centroids = central(data.X, k, 10, seed)[1]
    elif method == "naive":
        centroids = naive(data, k, seed).cluster_centers_
    else:
        name, config, policy = {
            "paper, 10": ("fkm", {"variant": "paper", "rounds": 10}, BARE),
            "default": ("fkm", {}, BARE),
            "p=5": ("fkm", {}, GROUPS),
            "k-FED, k'=60": ("kfed", {"variant": "paper", "local_clusters": 60}, BARE),
            "k-FED, k'=8": ("kfed", {"variant": "paper", "local_clusters": 8}, BARE),
        }[method]
        centroids = simulate(
            name,
            data.sites(),
            config={"n_clusters": k, "evaluate": False, **config},
            policy=policy,
            seed=seed,
        ).cluster_centers_
    labels = data.pooled(by_nearest(data, centroids))
    return {
        "silhouette": float(silhouette_score(data.X, labels)),
        "simplified": simplified_silhouette(data.X, centroids),
        "clusters": len(np.unique(labels)),
        "cost": centroid_cost(data.X, centroids),
    }


def figure_5(runs: int | None, code: str) -> None:
    """Print Figure 5: silhouettes on FEMNIST."""
    runs = runs or 1
    methods = (
        "paper, 10",
        "default",
        "p=5",
        "k-FED, k'=60",
        "k-FED, k'=8",
        "central",
        "naive",
    )
    jobs = [
        Job(letters, {"method": name, "seed": seed}) for name in methods for seed in range(runs)
    ]
    records = run("fkm", jobs, code)
    rows = []
    for index, name in enumerate(methods):
        part = records[index * runs : (index + 1) * runs]
        rows.append(
            {
                "method": name,
                "silhouette": str(spread(part, "silhouette")),
                "simplified silhouette": str(spread(part, "simplified")),
                "clusters with rows": round(spread(part, "clusters").mean, 1),
                "cost": round(spread(part, "cost").mean, 0),
            }
        )
    write(
        "fkm_figure5",
        rows,
        note=(
            f"FEMNIST, clients 0-9, 1,210 rows, k = 60, {runs} runs; central n_init=10. The paper "
            "shows boxes without figures: above k-FED and below central is what can be compared. "
            "With 122 rows a client, p=5 leaves at most 24 cells of 60 to a client."
        ),
    )


# --- the whole ------------------------------------------------------------------------------------


def _named(split: str) -> str:
    return split if split in ("uneven", "voronoi") else f"beta {split}"


def _short(figures: Spread) -> str:
    return "-" if not figures.n else f"{figures.mean:.4f} ±{figures.sd:.4f}"


PARTS = {
    "figures134": figures_1_3_4,
    "ablation": ablation,
    "reach": reaches,
    "figure6": figure_6,
    "figure5": figure_5,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=None)
    parser.add_argument("--only", choices=PARTS, nargs="*", default=list(PARTS))
    options = parser.parse_args()
    code = fingerprint(__file__)
    for name in options.only:
        PARTS[name](options.runs, code)


if __name__ == "__main__":
    main()
