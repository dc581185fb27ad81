"""Trajectories of three and four trends, at four sites of 200 persons, against all rows.

The trends are those that the manuals of the R packages kml (`gald`, at times 0 to 10) and latrend
(`generateLongData`, at times 0 to 1) describe. Sites have a row for each value. "irregular" moves
every visit by up to half a step and loses 20 % of them. A session gets the values on a grid and
clusters them with `fkm`, or gets summaries and clusters them with `mixture`. In all rows of the
complete visits, k-means or a Gaussian mixture with diagonal covariances finds the same columns.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler

from _data import FloatArray
from _report import write
from _runs import ROOT, Job, Record, fingerprint, run, spread
from fedclust import simulate
from fedclust.data import Dataset, load

SITES, PERSONS = 4, 200
MISSED = 0.2
REACHED, NEAR = 0.95, 0.05
SUMMARY = ["slope", "curvature", "auc"]
KINDS = {"grid": "grid, `fkm`", "summary": f"{', '.join(SUMMARY)}, `mixture`"}
#: What makes the columns.
DATA = str(ROOT / "client_sdk" / "fedclust" / "data" / "trajectories.py")
COLUMNS = {"features": {"y": {"column": "value", "time": "time", "person": "person"}}}


@dataclass(frozen=True)
class Trends:
    """Mean trajectories, and how persons and single values differ from them.

    ``person`` are standard deviations of intercept and slope, ``noise`` that of a value.
    """

    times: tuple[float, ...]
    means: tuple[Callable[[FloatArray], FloatArray], ...]
    person: tuple[float, float]
    noise: float

    def visits(self, seed: int, irregular: bool) -> tuple[pd.DataFrame, FloatArray]:
        """Return a row for each value, and the trend of each person."""
        rng = np.random.default_rng(seed)
        n, step = SITES * PERSONS, self.times[1] - self.times[0]
        trends = rng.integers(0, len(self.means), n)
        times = np.tile(self.times, (n, 1))
        if irregular:
            times = times + rng.uniform(-step / 2, step / 2, times.shape)
        own = rng.normal(0, 1, (n, 2)) * self.person
        values = np.stack([self.means[k](t) for k, t in zip(trends, times, strict=True)])
        values += own[:, :1] + own[:, 1:] * times + rng.normal(0, self.noise, times.shape)
        persons = np.repeat(np.arange(n), len(self.times))
        table = pd.DataFrame({"person": persons, "time": times.ravel(), "value": values.ravel()})
        if irregular:
            table = table[rng.random(len(table)) >= MISSED]
        return table, trends


def _lines(*coefficients: tuple[float, ...]) -> tuple[Callable[[FloatArray], FloatArray], ...]:
    """Return trends as polynomials of the time, the constant first."""
    return tuple(np.polynomial.Polynomial(each) for each in coefficients)


_KML = tuple(map(float, range(11)))
_LATREND = tuple(np.linspace(0, 1, 11).round(1).tolist())
#: Of kml the defaults of `gald`, and its three trends 0, 10 and 10 - t; of latrend the defaults of
#: `generateLongData` with a level cluster between its two.
CASES = {
    "kml, four trends": Trends(_KML, _lines((0,), (0, 1), (10, -1), (0, 4, -0.4)), (2.0, 0.0), 2.0),
    "kml, three trends": Trends(_KML, _lines((0,), (10,), (10, -1)), (2.0, 0.0), 2.0),
    "latrend, three trends": Trends(_LATREND, _lines((-2, 1), (2, -1), (0,)), (0.1, 0.0), 0.1),
    "latrend, four trends": Trends(
        _LATREND, _lines((-2, 1), (2, -1), (0,), (-1, 2)), (0.1, 0.0), 0.1
    ),
}


def _fit(kind: str, rows: FloatArray, k: int, seed: int) -> FloatArray:
    """Cluster the columns of all persons (n, m) without a session."""
    if kind == "grid":
        return KMeans(k, n_init=20, random_state=seed).fit_predict(rows)
    scaled = StandardScaler().fit_transform(rows)
    mixture = GaussianMixture(k, covariance_type="diag", n_init=20, random_state=seed)
    return mixture.fit_predict(scaled)


def measure(name: str, kind: str, seed: int) -> Record:
    """Run a session on complete and on irregular visits, and cluster all rows of the complete."""
    case = CASES[name]
    k = len(case.means)
    columns: dict[str, Any] = {"summary": SUMMARY}
    method, policy = "mixture", {"scaling": "standard"}
    if kind == "grid":
        columns = {"grid": list(case.times), "window": 1.5 * case.times[1]}
        method, policy = "fkm", {"scaling": "none"}
    features = [{"name": "y", "kind": "trajectory", **columns}]
    found: Record = {}
    for what, irregular in (("complete", False), ("irregular", True)):
        table, trends = case.visits(seed, irregular)
        sites = {
            f"site-{j}": Dataset(table[table["person"] % SITES == j], mapping=COLUMNS)
            for j in range(SITES)
        }
        result = simulate(
            method,
            sites,
            config={"n_clusters": k},
            policy=policy,
            features=features,
            seed=seed,
            persons={site: data.source["person"] for site, data in sites.items()},
        )
        labels = np.full(len(trends), -1)
        for site, data in sites.items():
            labels[data.source["person"]] = result.labels_[site]
        here = labels >= 0
        found[what] = adjusted_rand_score(trends[here], labels[here])
        found[f"{what}, labelled"] = float(here.mean())
        if not irregular:
            rows = load(Dataset(table, mapping=COLUMNS), result.features).X[:: len(case.times)]
            found["all rows"] = adjusted_rand_score(trends, _fit(kind, rows, k, seed))
    return found


def main() -> None:
    """Measure, print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="of each half of the seeds")
    runs = parser.parse_args().runs
    parts = [(name, kind, half) for name in CASES for kind in KINDS for half in (0, 1)]
    jobs = [
        Job(measure, {"name": name, "kind": kind, "seed": seed})
        for name, kind, half in parts
        for seed in range(half * runs, (half + 1) * runs)
    ]
    records = run("trajectories", jobs, fingerprint(__file__, DATA))
    rows = []
    for index, (name, kind, half) in enumerate(parts):
        part = records[index * runs : (index + 1) * runs]
        row: dict[str, Any] = {"case": name, "K": len(CASES[name].means), "columns": KINDS[kind]}
        row["seeds"] = f"{half * runs} to {(half + 1) * runs - 1}"
        for figure in ("all rows", "complete", "irregular"):
            row[f"ARI, {figure}"] = round(spread(part, figure).mean, 3)
            row[f"worst, {figure}"] = round(spread(part, figure).worst, 3)
        reached = [each["complete"] >= REACHED for each in part]
        near = [each["irregular"] >= each["all rows"] - NEAR for each in part]
        row[f"complete of at least {REACHED}"] = f"{sum(reached)} of {runs}"
        row[f"irregular within {NEAR} of all rows"] = f"{sum(near)} of {runs}"
        rows.append(row)
    note = f"""{runs} draws a line; {SITES} sites of {PERSONS}, p = 5. "all rows": of the complete
visits of all persons, k-means on the grid, or a Gaussian mixture with diagonal covariances on the
summaries. "irregular": each visit moved by up to half a step, and {MISSED:.0%} of them lost."""
    write("trajectories", rows, note=" ".join(note.split()))


if __name__ == "__main__":
    main()
