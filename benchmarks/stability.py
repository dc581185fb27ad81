"""Stability on data with known structure, against ``fpc::clusterboot``, and what it costs.

First table: Jaccard index of clusters that are there, and of those that a K too large makes of
real ones or of noise. A cluster is there if its persons and those of a true cluster have a Jaccard
similarity of at least .8. Second table: the number of clusters by gap statistic, prediction
strength and recommendation, on the same data and on a single Gaussian.

Third table: mean Jaccard index of each cluster against R's ``fpc::clusterboot`` on the pooled rows,
with the session's own clusters as its first clustering and ten starts for each bootstrap sample.
Left out without ``Rscript`` and its package fpc. fpc counts a row once however often it was drawn
(``multipleboot=FALSE``, its default), or each time (``TRUE``, the bootstrap proper). The difference
between the two is what agreement can be asked for.

Fourth table: time of a session with 100 models and of the same session without, in turns.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.preprocessing import scale

from _data import FloatArray, IntArray
from _report import write
from _runs import Job, Record, fingerprint, run
from fedclust import simulate
from fedclust.engine.stability import clusters_by_gap, clusters_by_prediction_strength
from fedclust.numeric.agreement import contingency_table, jaccard_by_cluster
from resolution import _points

Draw = Callable[[np.random.Generator], tuple[FloatArray, IntArray]]
PROTECTIONS: dict[str, dict[str, Any]] = {
    "none": {"protection": "none", "scaling": "none"},
    "p = 5": {"scaling": "none"},
}
MODELS = 100
#: Jaccard similarity with a true cluster from which on a cluster is there.
_THERE = 0.8

# --- data -----------------------------------------------------------------------------------------


def eight(rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Eight Gaussians in 10 columns."""
    y = rng.integers(8, size=4_000)
    return rng.normal(scale=3.0, size=(8, 10))[y] + rng.normal(size=(4_000, 10)), y


def three(rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Three equal Gaussians, 6 sd apart or more, in 5 columns."""
    y = rng.integers(3, size=2_000)
    return (np.eye(5) * 6.0 * [[1], [1], [0], [0], [0]])[y] + rng.normal(size=(2_000, 5)), y


def cloud(rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Three small Gaussians around a wide one, which has half of the rows, in 5 columns."""
    y = np.minimum(rng.integers(6, size=2_000), 3)
    centres = np.eye(5)[:4] * 9.0
    centres[3] = 0.0
    return centres[y] + rng.normal(size=(2_000, 5)) * np.where(y == 3, 2.0, 0.5)[:, None], y


def noise(rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Three small Gaussians, and a fifth of the rows anywhere around them, in 5 columns."""
    y = np.minimum(rng.integers(15, size=2_000) // 4, 3)
    rows = (np.eye(5)[:4] * 6.0)[y] + rng.normal(scale=0.5, size=(2_000, 5))
    rows[y == 3] = rng.uniform(-3.0, 9.0, size=(np.count_nonzero(y == 3), 5))
    return rows, y


def overlapping(rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Five Gaussians that touch, in 6 columns."""
    y = rng.integers(5, size=1_500)
    return scale(rng.normal(scale=1.1, size=(5, 6))[y] + rng.normal(size=(1_500, 6))), y


def gaussian(n_rows: int, d: int) -> Draw:
    def draw(rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
        return rng.normal(size=(n_rows, d)), np.zeros(n_rows, dtype=np.int64)

    return draw


def shipped(load: Callable[[], Any]) -> Draw:
    def draw(rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
        del rng
        data = load()
        return scale(data.data), data.target

    return draw


DRAW: dict[str, Draw] = {
    "8 clusters": eight,
    "3 clusters": three,
    "3 clusters in a cloud": cloud,
    "3 clusters in noise": noise,
    "5 that touch": overlapping,
    "one Gaussian, d = 2": gaussian(2_000, 2),
    "one Gaussian, d = 5": gaussian(2_000, 5),
    "one Gaussian, d = 10": gaussian(2_000, 10),
    "one Gaussian, d = 10, 400 rows": gaussian(400, 10),
    "iris": shipped(load_iris),
    "wine": shipped(load_wine),
    "breast cancer": shipped(load_breast_cancer),
}


def draw(name: str, n_sites: int, seed: int) -> tuple[dict[str, FloatArray], dict[str, IntArray]]:
    """Return rows and classes of each site, dealt at random."""
    rng = np.random.default_rng(seed)
    X, y = DRAW[name](rng)
    parts = np.array_split(rng.permutation(len(X)), n_sites)
    return (
        {f"site-{i}": X[part] for i, part in enumerate(parts)},
        {f"site-{i}": y[part] for i, part in enumerate(parts)},
    )


# --- known structure ------------------------------------------------------------------------------


def known(name: str, n_clusters: int, protection: str, seed: int) -> Record:
    """Return the Jaccard indices of clusters that are there and of those that are not."""
    sites, classes = draw(name, 5, seed)
    config = {"n_clusters": n_clusters, "stability": MODELS}
    found = simulate("fkm", sites, config=config, policy=PROTECTIONS[protection], seed=seed)
    y = np.concatenate(list(classes.values()))
    labels = np.concatenate([found.labels_[site] for site in sites])
    ones = np.ones(len(y), dtype=np.int64)
    truth = contingency_table(labels, y, ones, (n_clusters, int(y.max()) + 1))
    there = jaccard_by_cluster(truth) >= _THERE
    assert found.stability_ is not None
    jaccard = found.stability_.jaccard
    return {
        "there": jaccard[there].tolist(),
        "accidental": jaccard[~there].tolist(),
        "strength": found.stability_.prediction_strength,
    }


KNOWN = (
    ("8 clusters", 8),
    ("3 clusters", 3),
    ("3 clusters", 5),
    ("3 clusters in a cloud", 5),
    ("3 clusters in noise", 5),
)


def known_rows(runs: int) -> list[Record]:
    cases = [(*case, protection) for case in KNOWN for protection in PROTECTIONS]
    jobs = [
        Job(known, {"name": name, "n_clusters": k, "protection": protection, "seed": seed})
        for name, k, protection in cases
        for seed in range(runs)
    ]
    records = iter(run("stability", jobs, fingerprint(__file__)))
    rows = []
    for name, k, protection in cases:
        some = [next(records) for _ in range(runs)]
        there = [value for record in some for value in record["there"]]
        accidental = [value for record in some for value in record["accidental"]]
        rows.append(
            {
                "data": name,
                "K": k,
                "protection": protection,
                "there": len(there),
                "least Jaccard": min(there, default=float("nan")),
                "at least .85": sum(value >= 0.85 for value in there),
                "accidental": len(accidental),
                "most Jaccard": max(accidental, default=float("nan")),
                "below .6": sum(value < 0.6 for value in accidental),
                "prediction strength": " to ".join(
                    f"{pick(record['strength'] for record in some):.2f}" for pick in (min, max)
                ),
            }
        )
    return rows


# --- how many clusters ----------------------------------------------------------------------------

CHOICES = {
    "8 clusters": (8, [4, 6, 8, 10]),
    "3 clusters": (3, [2, 3, 4, 5, 6]),
    "3 clusters in a cloud": (4, [2, 3, 4, 5, 6]),
    "5 that touch": (5, [3, 4, 5, 6, 7]),
    **{name: (1, [2, 3, 4, 5]) for name in DRAW if name.startswith("one Gaussian")},
}


def chosen(name: str, seed: int) -> Record:
    """Return which K each measure chooses."""
    sites, _ = draw(name, 5, seed)
    config = {"n_clusters": CHOICES[name][1], "stability": 20}
    found = simulate("fkm", sites, config=config, policy=PROTECTIONS["p = 5"], seed=seed)
    entries = found.sweep_ or ()
    measured = {e.n_clusters: e.result.stability for e in entries if e.result.stability}
    silhouettes = {entry.n_clusters: entry.simplified_silhouette or -1.0 for entry in entries}
    return {
        "gap": clusters_by_gap(measured),
        "strength": clusters_by_prediction_strength(measured),
        "highest strength": max(each.prediction_strength or 0.0 for each in measured.values()),
        "silhouette": max(silhouettes, key=silhouettes.__getitem__),
        "recommended": found.result_.n_clusters,
        "says one": "for one cluster" in (found.result_.recommendation or ""),
    }


def chosen_rows(draws: int) -> list[Record]:
    jobs = [Job(chosen, {"name": name, "seed": seed}) for name in CHOICES for seed in range(draws)]
    records = iter(run("stability", jobs, fingerprint(__file__)))
    rows = []
    for name, (k, tried) in CHOICES.items():
        some = [next(records) for _ in range(draws)]
        either = sum(1 in (record["gap"], record["strength"]) for record in some)
        rows.append(
            {
                "data": name,
                "tried": f"{tried[0]} to {tried[-1]}",
                "true K": k,
                "gap": sum(record["gap"] == k for record in some),
                "prediction strength": sum(record["strength"] == k for record in some),
                "either says 1": either,
                "highest strength": max(record["highest strength"] for record in some),
                "silhouette": sum(record["silhouette"] == k for record in some),
                "recommended": sum(record["recommended"] == k for record in some),
                "reason says 1": sum(record["says one"] for record in some),
            }
        )
    return rows


# --- fpc::clusterboot -----------------------------------------------------------------------------

CLUSTERBOOT = r"""
suppressMessages(library(fpc))
given <- commandArgs(TRUE)
X <- as.matrix(read.csv(file.path(given[1], "rows.csv"), header = FALSE))
labels <- scan(file.path(given[1], "labels.csv"), quiet = TRUE) + 1
k <- max(labels)
first <- TRUE
method <- function(data, ...) {
  part <- if (first) labels else kmeans(data, k, nstart = 10, iter.max = 100)$cluster
  first <<- FALSE
  list(result = part, nc = k, clusterlist = lapply(1:k, function(i) part == i),
       partition = part, clustermethod = "kmeans")
}
for (multiple in c(FALSE, TRUE)) {
  set.seed(1)
  first <- TRUE
  found <- clusterboot(X, B = as.integer(given[2]), bootmethod = "boot", clustermethod = method,
                       multipleboot = multiple, count = FALSE)
  cat(found$bootmean, "\n")
}
"""
RSCRIPT = shutil.which("Rscript") or ""
COMPARED = (
    ("iris", 3),
    ("iris", 5),
    ("wine", 3),
    ("wine", 5),
    ("breast cancer", 2),
    ("breast cancer", 4),
    ("8 clusters", 8),
    ("3 clusters", 3),
    ("3 clusters", 5),
    ("5 that touch", 5),
    ("one Gaussian, d = 5", 3),
)


def lacking_r() -> str | None:
    """Return why ``clusterboot`` cannot run here, or None."""
    if not RSCRIPT:
        return "there is no Rscript"
    loaded = subprocess.run([RSCRIPT, "-e", "library(fpc)"], capture_output=True, check=False)
    return None if loaded.returncode == 0 else "R has no package fpc"


def compared(name: str, n_clusters: int, protection: str, seed: int) -> Record:
    """Return each cluster's Jaccard index here and by ``clusterboot``, once and multiple."""
    sites, _ = draw(name, 4, seed)
    config = {"n_clusters": n_clusters, "stability": MODELS}
    found = simulate("fkm", sites, config=config, policy=PROTECTIONS[protection], seed=seed)
    labels = np.concatenate([found.labels_[site] for site in sites])
    with tempfile.TemporaryDirectory() as folder:
        np.savetxt(Path(folder) / "rows.csv", np.concatenate(list(sites.values())), delimiter=",")
        np.savetxt(Path(folder) / "labels.csv", labels, fmt="%d")
        script = Path(folder) / "clusterboot.R"
        script.write_text(CLUSTERBOOT, "ascii")
        said = subprocess.run(
            [RSCRIPT, str(script), folder, str(MODELS)],
            capture_output=True,
            text=True,
            check=True,
        )
    once, multiple = ([float(word) for word in line.split()] for line in said.stdout.splitlines())
    assert found.stability_ is not None
    return {"here": found.stability_.jaccard.tolist(), "once": once, "multiple": multiple}


def compared_rows(runs: int) -> list[Record]:
    cases = [(*case, protection) for case in COMPARED for protection in PROTECTIONS]
    jobs = [
        Job(compared, {"name": name, "n_clusters": k, "protection": protection, "seed": seed})
        for name, k, protection in cases
        for seed in range(runs)
    ]
    records = iter(run("stability", jobs, fingerprint(__file__)))
    rows = []
    for name, k, protection in cases:
        some = [next(records) for _ in range(runs)]
        here, once, multiple = (
            np.concatenate([record[what] for record in some])
            for what in ("here", "once", "multiple")
        )
        rows.append(
            {
                "data": name,
                "K": k,
                "protection": protection,
                "here": float(here.mean()),
                "fpc, once": float(once.mean()),
                "fpc, multiple": float(multiple.mean()),
                "from once": float(np.abs(here - once).mean()),
                "from multiple": float(np.abs(here - multiple).mean()),
                "once from multiple": float(np.abs(once - multiple).mean()),
            }
        )
    for protection in PROTECTIONS:
        some = [row for row in rows if row["protection"] == protection]
        means = {name: float(np.mean([row[name] for row in some])) for name in list(rows[0])[3:]}
        rows.append({"data": "all", "K": "", "protection": protection, **means})
    return rows


# --- time -----------------------------------------------------------------------------------------


def timed(n_rows: int, d: int, structure: bool, repeats: int) -> Record:
    """Return CPU seconds with stability and without, and of forming the tables alone."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(10 * n_rows, d))
    if structure:
        X += rng.normal(scale=3.0, size=(8, d))[rng.integers(8, size=len(X))]
    sites = {f"site-{i}": X[i::10] for i in range(10)}
    seconds: dict[str, list[float]] = {"session": [], "with stability": [], "tables": []}
    for _ in range(repeats):
        for name, spent in seconds.items():
            begin = time.process_time()
            if name == "tables":
                for rows in sites.values():
                    _points(rows, 5)
            else:
                config = {"n_clusters": 8, "stability": 0 if name == "session" else MODELS}
                simulate("fkm", sites, config=config, progress=False)
            spent.append(time.process_time() - begin)
    middle = {name: median(spent) for name, spent in seconds.items()}
    added = middle["with stability"] - middle["session"]
    return {
        "data": "8 clusters" if structure else "one Gaussian",
        "d": d,
        "session, s": middle["session"],
        "of it tables, s": middle["tables"],
        "stability adds, s": added,
        "over the session": added / middle["session"],
        "over its rounds": added / (middle["session"] - middle["tables"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="seeds of each known structure")
    parser.add_argument("--draws", type=int, default=10, help="draws for the number of clusters")
    parser.add_argument("--repeats", type=int, default=3, help="sessions timed")
    options = parser.parse_args()
    write(
        "stability_known",
        known_rows(options.runs),
        note=(
            f"fkm, 5 sites, {MODELS} models, {options.runs} seeds; all clusters of all seeds. "
            "Asked for: at least .85 where clusters are there, below .6 where they are not. "
            "Prediction strength is of the whole K: from .8 on it holds."
        ),
    )
    write(
        "stability_number",
        chosen_rows(options.draws),
        note=(
            f"In how many of {options.draws} draws each measure chooses the true K, or says 1. "
            "fkm, 5 sites, p = 5. Asked for: 1 in at least 9 of 10 draws of one Gaussian."
        ),
    )
    reason = lacking_r()
    if reason is None:
        write(
            "stability_clusterboot",
            compared_rows(2),
            note=(
                "Mean Jaccard index of the clusters, and mean absolute difference by cluster. "
                f"fkm, 4 sites, {MODELS} models, 2 seeds; asked for: .05 without protection."
            ),
        )
    else:
        print(f"stability_clusterboot is left out: {reason}")
    write(
        "stability_time",
        [
            timed(2_000, d, structure, options.repeats)
            for d in (10, 20)
            for structure in (True, False)
        ],
        note=(
            f"CPU, medians of {options.repeats} in turns; fkm by default, K = 8, p = 5, ten sites "
            f"of 2,000 rows, {MODELS} models. Asked for: at most 3 times the session."
        ),
    )


if __name__ == "__main__":
    main()
