"""The cost of protection: `fkm` on the protected tables of several sites against central k-means.

The cost is the inertia of all true rows with the session's centroids, over that of central k-means
(50 restarts) on the rows. The ARI compares labels with the true classes. Every seed has fresh data
or a fresh split. Each case is measured with p = 5 and with `protection: none`; the table also shows
the cost of the differencing guard, which the tables have replaced. Rows are scaled beforehand and
not in the session.
"""

import argparse
import warnings

from _baselines import BARE, GROUPS, by_nearest, central, centroid_cost, pooled_ari
from _cases import CENTRAL_N_INIT, cases
from _report import write
from _runs import Job, Record, fingerprint, run, spread
from fedclust import simulate

warnings.simplefilter("ignore")


def measure(name: str, seed: int) -> Record:
    """Run one case with and without protection."""
    case = cases()[name]
    data = case.data(seed)
    held = data.X[data.held]
    best = central(held, case.k, CENTRAL_N_INIT, seed)[2]
    features = [{"name": f"x{j}", "kind": case.kind} for j in range(data.X.shape[1])]
    found: Record = {}
    for policy, of in (("p=5", GROUPS), ("none", BARE)):
        result = simulate(
            "fkm",
            data.sites(),
            config={"n_clusters": case.k},
            policy=of,
            features=features,
            seed=seed,
        )
        found[f"cost, {policy}"] = centroid_cost(held, result.cluster_centers_) / best
        found[f"ARI, {policy}"] = pooled_ari(data, by_nearest(data, result.cluster_centers_))
        found[f"rounds, {policy}"] = result.n_rounds_
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="Cases whose names begin so.")
    options = parser.parse_args()
    chosen = {name: case for name, case in cases().items() if name.startswith(options.only)}
    jobs = [
        Job(measure, {"name": name, "seed": seed})
        for name in chosen
        for seed in range(options.runs)
    ]
    records = run("protection", jobs, fingerprint(__file__))
    rows = []
    for index, (name, case) in enumerate(chosen.items()):
        part = records[index * options.runs : (index + 1) * options.runs]
        mean = {figure: spread(part, figure).mean for figure in part[0]}
        ari = mean["ARI, none"] - 0.02 if case.ari is None else case.ari
        judged = name.startswith("FKM")
        reached = mean["cost, p=5"] <= case.reach and (not judged or mean["ARI, p=5"] >= ari)
        rows.append(
            {
                "case": name,
                "cost": mean["cost, p=5"],
                "worst": spread(part, "cost, p=5").best,
                "reach": case.reach,
                "reached": "yes" if reached else "no",
                "cost, none": mean["cost, none"],
                "guard": case.guard,
                "ARI": mean["ARI, p=5"],
                "ARI, none": mean["ARI, none"],
                "rounds": mean["rounds, p=5"],
            }
        )
    write("protection", rows, note=f"Means of {options.runs} seeds; p = 5 unless said otherwise.")


if __name__ == "__main__":
    main()
