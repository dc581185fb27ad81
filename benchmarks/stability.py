"""Stability on data with known structure, against a bootstrap of rows, and what it costs.

First table: Jaccard index of clusters that are there, and of those that a K too large makes of
real ones or of noise. A cluster is there if its persons and those of a true cluster have a Jaccard
similarity of at least .8. Whether clusters are there is what ``evidence`` measures, not this.

Second table: mean Jaccard index of each cluster against a bootstrap of the pooled rows, with the
session's own clusters, k-means of ten starts for each sample, and all rows labelled by each model.
"Nearly all": the clusters that stand apart and of which the result says that they are found again
in nearly all samples; "of them by rows": those of which the bootstrap of rows says it too; "not
apart": those that do not stand apart, so that the result does not say it. "Within .1": the clusters
that stand apart, and the others, whose index is so near that of the rows.

Third table: the same of data without clusters, at p = 5.

Fourth table: time of a session with 100 models and of the same session without, in turns.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.preprocessing import scale

from _clouds import CLOUDS
from _data import FloatArray, IntArray
from _report import write
from _runs import Job, Record, fingerprint, run
from fedclust import simulate
from fedclust.numeric.agreement import contingency_table, jaccard_by_cluster
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.result.one_cloud import stands_apart
from fedclust.rounds.stability import NEARLY_ALL
from resolution import _points

Draw = Callable[[np.random.Generator], tuple[FloatArray, IntArray]]
PROTECTIONS: dict[str, dict[str, Any]] = {
    "none": {"protection": "none", "scaling": "none"},
    "p = 5": {"scaling": "none"},
}
MODELS = 100
#: Jaccard similarity with a true cluster from which on a cluster is there.
_THERE = 0.8
#: Jaccard index with a model's cluster from which on that model recovers a cluster, as in results.
_RECOVERED = 0.75

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


def lognormal(rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Six skewed columns without clusters."""
    return scale(np.exp(rng.normal(size=(800, 6)))), np.zeros(800, dtype=np.int64)


def traits(rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Eight yes/no columns without clusters, of which one trait makes all likelier."""
    latent = rng.normal(size=(800, 1)) * 0.4**0.5 + rng.normal(size=(800, 8)) * 0.6**0.5
    return scale((latent > np.linspace(-0.3, 1.0, 8)).astype(float)), np.zeros(800, dtype=np.int64)


def one_cloud(name: str) -> Draw:
    def draw(rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
        return scale(CLOUDS[name](rng, 800)), np.zeros(800, dtype=np.int64)

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
    "one Gaussian": gaussian(800, 5),
    "one lognormal": lognormal,
    "yes/no columns": traits,
    "one t3": one_cloud("t with 3 degrees"),
    "one uniform cube": one_cloud("uniform, d = 6"),
    "one correlated Gaussian": one_cloud("Gaussian, r = 0.6, d = 6"),
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
            }
        )
    return rows


# --- a bootstrap of rows --------------------------------------------------------------------------

#: Ten sets; the last three have no clusters.
COMPARED = (
    ("iris", 3),
    ("wine", 3),
    ("breast cancer", 2),
    ("breast cancer", 4),
    ("3 clusters", 3),
    ("3 clusters", 5),
    ("5 that touch", 5),
    ("one Gaussian", 3),
    ("one lognormal", 3),
    ("yes/no columns", 3),
)
#: Without clusters, with many seeds.
WITHOUT = [(name, 3) for name in DRAW if name.startswith("one ") or name == "yes/no columns"]


def compared(name: str, n_clusters: int, protection: str, seed: int) -> Record:
    """Return each cluster's mean Jaccard index here and in a bootstrap of rows."""
    sites, _ = draw(name, 4, seed)
    config = {"n_clusters": n_clusters, "stability": MODELS, "evidence": True}
    found = simulate("fkm", sites, config=config, policy=PROTECTIONS[protection], seed=seed)
    assert found.stability_ is not None
    apart = [stands_apart(found.result, k) for k in range(n_clusters)]
    often = found.stability_.recovered >= NEARLY_ALL
    labels = np.concatenate([found.labels_[site] for site in sites])
    X, rng = np.concatenate(list(sites.values())), np.random.default_rng(seed)
    ones = np.ones(len(X), dtype=np.int64)
    rows = []
    for _ in range(MODELS):
        times = np.bincount(rng.integers(len(X), size=len(X)), minlength=len(X)).astype(float)
        model = weighted_kmeans(X[times > 0], times[times > 0], n_clusters, rng, 10)
        table = contingency_table(
            labels, nearest_centroid(X, model), ones, (n_clusters, n_clusters)
        )
        rows.append(jaccard_by_cluster(table))
    again = np.mean(np.array(rows) >= _RECOVERED, axis=0)
    return {
        "here": found.stability_.jaccard.tolist(),
        "rows": np.mean(rows, axis=0).tolist(),
        "apart": apart,
        "again": (again >= NEARLY_ALL)[often & apart].tolist(),
        "not apart": int((often & ~np.array(apart)).sum()),
    }


def compared_rows(
    data: Sequence[tuple[str, int]], protections: Sequence[str], seeds: range
) -> list[Record]:
    cases = [(*case, protection) for case in data for protection in protections]
    jobs = [
        Job(compared, {"name": name, "n_clusters": k, "protection": protection, "seed": seed})
        for name, k, protection in cases
        for seed in seeds
    ]
    records = iter(run("stability", jobs, fingerprint(__file__)))
    lines: list[Record] = []
    for name, k, protection in cases:
        some = [next(records) for _ in seeds]
        here, rows, again = (
            np.concatenate([record[what] for record in some]) for what in ("here", "rows", "again")
        )
        apart = np.concatenate([record["apart"] for record in some]).astype(bool)
        near = np.abs(here - rows) <= 0.1
        lines.append(
            {
                "data": name,
                "K": k,
                "protection": protection,
                "here": float(here.mean()),
                "of rows": float(rows.mean()),
                "here above rows": float((here - rows).mean()),
                "apart, by cluster": float(np.abs(here - rows).mean()),
                "nearly all": len(again),
                "of them by rows": int(again.sum()),
                "not apart": sum(record["not apart"] for record in some),
                "stand apart": int(apart.sum()),
                "within .1": int((near & apart).sum()),
                "others": int((~apart).sum()),
                "of them within .1": int((near & ~apart).sum()),
            }
        )
    for protection in protections:
        own = [line for line in lines if line["protection"] == protection]
        names = list(lines[0])[3:]
        means: Record = {name: float(np.mean([line[name] for line in own])) for name in names[:4]}
        sums: Record = {name: sum(line[name] for line in own) for name in names[4:]}
        lines.append({"data": "all", "K": "", "protection": protection, **means, **sums})
    return lines


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
    parser.add_argument("--repeats", type=int, default=3, help="sessions timed")
    parser.add_argument("--clouds", type=int, default=12, help="seeds without clusters")
    parser.add_argument("--first", type=int, default=90, help="first of them")
    parser.add_argument("--only-clouds", action="store_true")
    parser.add_argument("--rows", type=int, default=0, help="first of two seeds of known data")
    options = parser.parse_args()
    clouds = range(options.first, options.first + options.clouds)
    write(
        "stability_clouds",
        compared_rows(WITHOUT, ["p = 5"], clouds),
        note=f"Without clusters. fkm, 4 sites, {MODELS} models, {options.clouds} seeds.",
    )
    if options.only_clouds:
        return
    write(
        "stability_known",
        known_rows(options.runs),
        note=(
            f"fkm, 5 sites, {MODELS} models, {options.runs} seeds; all clusters of all seeds. "
            "Accidental clusters are often found again too: only the comparison with one cloud "
            "tells them apart."
        ),
    )
    write(
        "stability_rows",
        compared_rows(COMPARED, [*PROTECTIONS], range(options.rows, options.rows + 2)),
        note=(
            "Mean Jaccard index of the clusters, and mean difference by cluster, with its sign and "
            f"without. fkm, 4 sites, {MODELS} models, 2 seeds."
        ),
    )
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
