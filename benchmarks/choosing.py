"""Which method suits which data: each method on the same small data sets.

Each session runs with the default policy (p = 5) and with ``protection: none``; each seed has its
own rows or its own split. The classes are known, and no method sees them.

ARI
    Adjusted Rand index of the labels of all rows, compared with the classes.
cost
    Inertia of all rows about the session's centroids over the lowest inertia of pooled k-means
    (50 restarts), in pooled standard deviations.
warned
    Sessions with p = 5 whose result has a warning about its clusters.
rounds, kB a site, CPU
    Of the session with p = 5. Rounds include preparation and closing evaluation. kB: what a site
    sends in all of them, the mean over sites. CPU: of all sites and the coordinator together.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.cluster import SpectralClustering
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.metrics import adjusted_rand_score

from _baselines import central, centroid_cost, pooled_ari
from _data import Data, FloatArray, iid, structured
from _report import write
from _runs import Job, Record, fingerprint, run, spread
from _shapes import shape
from fedclust import SessionResult, simulate

warnings.simplefilter("ignore")

SPECTRAL = "pooled spectral"
KMEANS = ("pooled k-means", "lloyd", "fkm", "kfed")
OVERLAP = ("overlap", "overlap_oneshot")
#: Sites with few clusters choose their number of cells themselves.
SILHOUETTE = tuple(f"{method}, silhouette" for method in OVERLAP)
PROTECTIONS = ("groups", "none")
#: Of the warning that a feature is one site's alone, which says nothing about the clusters.
MASKED = "One site alone has"
#: Deviation of the blobs' centres in each feature, where a blob's own is 1.
_APART = 2.2


@dataclass(frozen=True)
class Case:
    """A data set with known classes.

    Attributes
    ----------
    data : callable
        Returns the data for a seed.
    k : int
        How many clusters are asked for.
    methods : tuple of str
    common, own : int
        If a site has only some features: how many all sites have, and how many others each has.
    """

    data: Callable[[int], Data]
    k: int
    methods: tuple[str, ...]
    common: int = 0
    own: int = 0


def blobs(few: bool, seed: int) -> Data:
    """Return eight clusters of 100 rows over four sites; ``few``: at most three at each site."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(8), 100)
    X = _APART * rng.normal(size=(8, 5))[y] + rng.normal(size=(len(y), 5))
    return Data(X, y, structured(y, 4, 3, rng) if few else iid(len(y), 4, rng))


def real(load: Callable[..., Any], n_sites: int, seed: int) -> Data:
    """Return a data set of scikit-learn, dealt to sites at random."""
    X, y = load(return_X_y=True)
    return Data(X, y.astype(np.int64), iid(len(y), n_sites, np.random.default_rng(seed)))


def uneven(name: str, per_cluster: int) -> Callable[[int], Data]:
    """Return a function that makes a shape over four sites, which hold uneven shares of it."""
    return lambda seed: shape(name, per_cluster, 4, 1.0, seed)


def cancer(seed: int) -> Data:
    """Return the breast cancer data over four sites."""
    return real(load_breast_cancer, 4, seed)


def wine(seed: int) -> Data:
    """Return the wine data over three sites."""
    return real(load_wine, 3, seed)


CASES: dict[str, Case] = {
    "blobs_even": Case(lambda seed: blobs(False, seed), 8, (*KMEANS, "spectral", *OVERLAP)),
    "blobs_few": Case(
        lambda seed: blobs(True, seed), 8, (*KMEANS, "spectral", *OVERLAP, *SILHOUETTE)
    ),
    "cancer": Case(cancer, 2, (*KMEANS, "spectral")),
    "wine": Case(wine, 3, (*KMEANS, "spectral")),
    "iris": Case(lambda seed: real(load_iris, 3, seed), 3, (*KMEANS, "spectral", "dual")),
    "moons": Case(uneven("moons2", 400), 2, (SPECTRAL, "spectral", "fkm")),
    "rings_400": Case(uneven("circles", 400), 3, (SPECTRAL, "spectral", "fkm")),
    "rings_1600": Case(uneven("circles", 1_600), 3, (SPECTRAL, "spectral", "fkm")),
    "cancer_features": Case(cancer, 2, (KMEANS[0], "fkm", *OVERLAP), common=3, own=9),
    "wine_features": Case(wine, 3, (KMEANS[0], "fkm", *OVERLAP), common=2, own=5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="seeds of each data set")
    options = parser.parse_args()
    jobs = [
        Job(measure, {"case": name, "method": method, "protection": protection, "seed": seed})
        for name, case in CASES.items()
        for method in case.methods
        for protection in (PROTECTIONS[1:] if method.startswith("pooled") else PROTECTIONS)
        for seed in range(options.runs)
    ]
    found: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for job, record in zip(jobs, run("choosing", jobs, fingerprint(__file__)), strict=True):
        case_name, method, protection, _ = job.arguments.values()
        by_protection = found.setdefault((case_name, method), {each: [] for each in PROTECTIONS})
        by_protection[protection].append(record)
    note = f"Mean ± standard deviation of {options.runs} seeds."
    for name, case in CASES.items():
        rows = [{"method": each, **_summary(found[name, each])} for each in case.methods]
        write(f"choosing_{name}", rows, note=note)
    bounds = {
        protection: f"{spread(records, 'gap').mean:.1%} ({spread(records, 'CPU, s').mean:.2g} s)"
        for protection, records in found["iris", "dual"].items()
    }
    write("choosing_bounds", [bounds], note="iris: gap of the bounds of dual, and CPU.")


def _summary(records: dict[str, list[Record]]) -> Record:
    """Return a line of a table."""
    found: Record = {}
    for name in ("ARI", "cost"):
        for protection in PROTECTIONS:
            values = spread(records[protection], name)
            shown = f"{values.mean:.3f} ±{values.sd:.3f}" if values.n else "-"
            found[f"{name}, {'p = 5' if protection == 'groups' else protection}"] = shown
    for name in ("rounds", "kB a site", "CPU, s"):
        values = spread(records["groups"], name)
        found[name] = f"{values.mean:.2g}" if values.n else "-"
    warned = [record["warned"] for record in records["groups"]]
    return {**found, "warned": f"{sum(warned)} of {len(warned)}" if warned else "-"}


def measure(case: str, method: str, protection: str, seed: int) -> Record:
    """Run a session, or cluster the pooled rows, and return its figures."""
    chosen = CASES[case]
    data = chosen.data(seed)
    center, scale = data.X.mean(axis=0), data.X.std(axis=0)
    rows = (data.X - center) / scale
    if method == SPECTRAL:
        graph = SpectralClustering(chosen.k, affinity="nearest_neighbors", random_state=seed)
        return {"ARI": float(adjusted_rand_score(data.y, graph.fit_predict(rows)))}
    labels, _, least = central(rows, chosen.k, 50, seed)
    if method == KMEANS[0]:
        return {"ARI": float(adjusted_rand_score(data.y, labels)), "cost": 1.0}
    before = time.process_time()
    result = session(chosen, method, protection, data, seed)
    cpu = time.process_time() - before
    found = {"ARI": pooled_ari(data, result.labels_), "CPU, s": cpu, **_traffic(result)}
    found["warned"] = any(MASKED not in warning for warning in result.result.warnings)
    if method != "spectral" and not chosen.common:
        centroids = (result.cluster_centers_ - center) / scale
        found["cost"] = centroid_cost(rows, centroids) / least
    if result.result.bounds is not None:
        found["gap"] = result.result.bounds.gap
    return found


def session(case: Case, method: str, protection: str, data: Data, seed: int) -> SessionResult:
    """Run a method on the rows of the sites; without masks it has only the common features."""
    method, _, own_cells = method.partition(", ")
    policy: dict[str, Any] = {"protection": protection}
    config: dict[str, Any] = {"n_clusters": case.k}
    sites: dict[str, FloatArray] = data.sites()
    features: Any = None
    names = [f"x{column}" for column in range(data.X.shape[1])]
    if own_cells:
        config["local_clusters"] = own_cells
    if method == "dual":
        features = [{"name": name, "lower": 0, "upper": 10} for name in names]
    if case.common:
        rng = np.random.default_rng([seed, len(names)])
        order = rng.permutation(len(names))
        common, others = order[: case.common], order[case.common :]
        held = dict.fromkeys(sites, common)
        if method in OVERLAP:
            policy["missing"] = "mask"
            held = {site: np.append(common, rng.permutation(others)[: case.own]) for site in sites}
        features = {site: [names[column] for column in own] for site, own in held.items()}
        sites = {site: rows[:, held[site]] for site, rows in sites.items()}
        if method not in OVERLAP:
            features = [names[column] for column in common]
    return simulate(method, sites, config=config, policy=policy, features=features, seed=seed)


def _traffic(result: SessionResult) -> Record:
    sent = sum(entry.size for entry in result.trace_) / len(result.labels_)
    return {"rounds": result.trace_[-1].round, "kB a site": sent / 1000}


if __name__ == "__main__":
    main()
