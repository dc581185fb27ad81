"""Clusters against one cloud: how often clusters that are not there are endorsed, and real ones.

Rows are drawn, and each site forms its protected table as it does for a session; the comparison is
the coordinator's (``rounds.reference``). A K is endorsed where p is at most .05.

First table: rows without clusters; second: with missing values; third: with clusters, and the K
that is chosen; fourth: data sets whose truth is known from elsewhere; fifth: what it costs.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from _clouds import CLOUDS, CLUSTERS, Cloud, lacking
from _data import SHARED, FloatArray, IntArray
from _report import write
from _runs import Job, Record, fingerprint, run
from fedclust.numeric.random import server_rng, site_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.protection.columns import SourceColumn
from fedclust.protection.table import form_table, within_shares
from fedclust.rounds import preparation
from fedclust.rounds.record_cells import find_cells
from fedclust.rounds.reference import compare_with_cloud
from fedclust.rounds.site_points import complete_points, scaled_points
from fedclust.schema.encoding import Space
from fedclust.schema.feature import Feature
from fedclust.schema.result import CloudComparison
from fedclust.schema.run_config import Policy, RunConfig
from fedclust.schema.task import Contribution, Points, SiteSide, SiteTask, row_points

LEVEL = 0.05
TRIED = (2, 3, 4, 5, 6)
#: Sites, rows of each, and p; None: 800 rows, dealt to the sites by a Dirichlet distribution.
SIZES: dict[str, tuple[int, int | None, int]] = {
    "4 x 200": (4, 200, 5),
    "10 x 50": (10, 50, 5),
    "4 x 50": (4, 50, 5),
    "4 x 2,000": (4, 2_000, 5),
    "10 x 2,000": (10, 2_000, 5),
    "30 x 100": (30, 100, 5),
    "8, Dirichlet(.3)": (8, None, 5),
    "4 x 200, no protection": (4, 200, 1),
    "10 x 50, no protection": (10, 50, 1),
}
#: Where clusters are drawn too; without protection, these are analyses of the rows.
WITH_CLUSTERS = ("10 x 50", "4 x 200, no protection", "10 x 50, no protection")

# --- a session's part of it -----------------------------------------------------------------------


def site_points(rows: FloatArray, p: int) -> Points:
    """Return what a site releases of its rows (n, d), in own units; NaN where it does not."""
    if p == 1:
        return row_points(rows)
    columns = [
        SourceColumn(f"x{j}", column) for j, column in enumerate(np.ascontiguousarray(rows.T))
    ]
    table = form_table(columns, p).sorted_by_value()
    X = np.column_stack(table.released)
    return Points(X, table.sizes, within_shares(X, table.sizes, table.neighbours))


def prepared(
    found: Sequence[Points], binary: Iterable[int] = ()
) -> tuple[list[Points], dict[str, tuple[int, ...]]]:
    """Return all sites' points imputed and standardised: a session's own preparation.

    And the columns that sites code otherwise by it. ``binary``: the yes/no columns.
    """
    features = tuple(
        Feature(name=f"x{j}", kind="binary" if j in binary else "numeric")
        for j in range(found[0].X.shape[1])
    )
    roster = tuple(f"{place:03}" for place in range(len(found)))
    config = RunConfig(
        options=None,
        features=features,
        policy=Policy(missing="impute", scaling="standard"),
        roster=roster,
        p=5,
        size_band=None,
        space=Space.identity(len(features)),
    )
    complete = [complete_points(points, config) for points in found]
    task, rng = SiteTask(preparation.NAME, preparation.PreparationTask()), np.random.default_rng(0)
    sides = [SiteSide(points, config, rng, {}) for points in complete]
    moments = [preparation.local_step(task, side) for side in sides]
    sent = [Contribution(*pair, config.p) for pair in zip(roster, moments, strict=True)]
    space, _, differing = preparation.merge(sent, config)
    return [scaled_points(points, space, config) for points in complete], differing


def compared(
    rows: Sequence[FloatArray], p: int, tried: Sequence[int], seed: int
) -> tuple[dict[int, CloudComparison], float]:
    """Return the comparison of each K, and CPU seconds of the coordinator."""
    found, _ = prepared([site_points(own, p) for own in rows if len(own) >= p])
    sites = [
        find_cells(points, site_rng(seed, str(place), 1)) for place, points in enumerate(found)
    ]
    X = np.concatenate([points.X for points in found])
    weights = np.concatenate([points.sizes for points in found]).astype(np.float64)
    rng = server_rng(seed, "benchmark")
    centroids = {k: weighted_kmeans(X, weights, k, rng) for k in tried}
    begin = time.process_time()
    n_groups = [len(points.X) for points in found]
    judged = compare_with_cloud(sites, n_groups, centroids, p=p, seed=seed)
    return judged, time.process_time() - begin


def dealt(X: FloatArray, size: str, rng: np.random.Generator) -> list[FloatArray]:
    n_sites, each, _ = SIZES[size]
    if each is not None:
        return np.split(X, n_sites)
    counts = rng.multinomial(len(X), rng.dirichlet(np.full(n_sites, 0.3)))
    return np.split(X, np.cumsum(counts)[:-1])


#: Kinds that are drawn at all sizes.
ELSEWHERE = (
    "Gaussian, r = 0.3, d = 6",
    "Gaussian, r = 0.9, d = 6",
    "lognormal, r = .5",
    "uniform, d = 6",
    "yes/no, r = .4",
    "numbers with yes/no",
)


def n_rows(size: str) -> int:
    n_sites, each, _ = SIZES[size]
    return 800 if each is None else n_sites * each


def chosen(found: dict[int, CloudComparison]) -> tuple[int, str]:
    """Return the K that is recommended, and why; (1, "one cloud") where none is."""
    clear = [k for k, each in found.items() if each.p is not None and each.p <= LEVEL]
    if not clear:
        return 1, "one cloud"
    gaps = {1: 0.0, **{k: each.gap or 0.0 for k, each in sorted(found.items())}}
    if whole := [k for k in sorted(clear) if stand_apart(found[k])]:
        best = whole[0]
        for k in whole[1:]:
            best = k if gaps[k] - (found[k].gap_error or 0.0) > gaps[best] else best
        return best, "apart"
    ks = list(gaps)
    steps = {k: (gaps[k] - gaps[b]) / (k - b) for b, k in pairwise(ks)}
    return max(clear, key=steps.__getitem__), "step"


def stand_apart(found: CloudComparison) -> bool:
    return found.cluster_p is not None and bool((found.cluster_p <= LEVEL).all())


def said(found: dict[int, CloudComparison], seconds: float) -> Record:
    return {
        "p": {k: each.p for k, each in found.items()},
        "apart": [k for k, each in found.items() if stand_apart(each)],
        "chosen": chosen(found),
        "seconds": seconds,
    }


# --- tables ---------------------------------------------------------------------------------------


def without(kind: str, size: str, seed: int) -> Record:
    """Compare one draw of rows without clusters."""
    rng = np.random.default_rng([seed, 35, crc32(f"{kind} {size}".encode())])
    X = LACKING[kind](rng, n_rows(size)) if kind in LACKING else CLOUDS[kind](rng, n_rows(size))
    return said(*compared(dealt(X, size, rng), SIZES[size][2], TRIED, seed))


LACKING: dict[str, Cloud] = {
    f"{kind}, {how}, {share:.0%}": lacking(CLOUDS[kind], how, share)
    for kind in ("Gaussian, r = 0.3, d = 6", "lognormal, r = .5")
    for how in ("anywhere", "sick", "panel", "sick panel")
    for share in (0.03, 0.1, 0.3)
}


def drawn(
    function: Callable[..., Record], kinds: Iterable[str], sizes: Iterable[str], draws: int
) -> Iterator[tuple[str, str, list[Record]]]:
    """Yield kind, size and the records of their draws."""
    cases = [(kind, size) for size in sizes for kind in kinds]
    jobs = [
        Job(function, {"kind": kind, "size": size, "seed": seed})
        for kind, size in cases
        for seed in range(draws)
    ]
    records = iter(run("evidence", jobs, fingerprint(__file__, CLOUDS_FILE)))
    for kind, size in cases:
        yield kind, size, [next(records) for _ in range(draws)]


def without_rows(kinds: Sequence[str], sizes: Sequence[str], draws: int) -> list[Record]:
    rows = []
    for kind, size, some in drawn(without, kinds, sizes, draws):
        least = [min(p for p in record["p"].values() if p is not None) for record in some]
        rows.append(
            {
                "sites": size,
                "data": kind,
                "draws": draws,
                "endorsed at any K": sum(p <= LEVEL for p in least),
                "all apart at any K": sum(bool(record["apart"]) for record in some),
                "least p": min(least),
                "median of least p": float(np.median(least)),
                "seconds": float(np.mean([record["seconds"] for record in some])),
            }
        )
    return rows


def within(kind: str, size: str, seed: int) -> Record:
    """Compare one draw of rows with clusters."""
    k, draw = CLUSTERS[kind]
    rng = np.random.default_rng([seed, 36, crc32(f"{kind} {size}".encode())])
    X, _ = draw(rng, n_rows(size))
    tried = sorted({*TRIED, k, k + 1, k + 2})
    return said(*compared(dealt(X, size, rng), SIZES[size][2], tried, seed))


def within_rows(sizes: Sequence[str], draws: int) -> list[Record]:
    rows = []
    for kind, size, some in drawn(within, CLUSTERS, sizes, draws):
        k = CLUSTERS[kind][0]
        shown = [record for record in some if record["chosen"][0] > 1]
        rows.append(
            {
                "sites": size,
                "data": kind,
                "draws": draws,
                "endorsed": len(shown),
                "right K": sum(record["chosen"][0] == k for record in shown),
                "all apart at K": sum(k in record["apart"] for record in some),
                "at K + 1": sum(k + 1 in record["apart"] for record in some),
                "at K + 2": sum(k + 2 in record["apart"] for record in some),
            }
        )
    return rows


def heart() -> tuple[FloatArray, IntArray]:
    """Return age, sex, blood pressure, cholesterol, heart rate, angina and oldpeak of Cleveland."""
    table = np.genfromtxt(SHARED / "heart_disease" / "processed.cleveland.data", delimiter=",")
    columns = table[:, [0, 1, 3, 4, 7, 8, 9]]
    return columns, (table[:, -1] > 0.0).astype(np.int64)


#: Rows, sites, and what is known of them.
REAL: dict[str, tuple[Any, int, str]] = {
    "wine": (lambda: load_wine(return_X_y=True), 4, "three cultivars"),
    "iris": (lambda: load_iris(return_X_y=True), 3, "three species, two of which touch"),
    "breast cancer": (
        lambda: load_breast_cancer(return_X_y=True),
        4,
        "benign and malignant are a gradation of size",
    ),
    "digits": (lambda: load_digits(return_X_y=True), 4, "ten digits"),
    "heart, Cleveland": (heart, 2, "disease is a gradation"),
}


def real(name: str, seed: int) -> Record:
    load, n_sites, _ = REAL[name]
    X, y = load()
    rng = np.random.default_rng([seed, 37])
    parts = np.array_split(rng.permutation(len(X)), n_sites)
    k = len(np.unique(y))
    tried = sorted({*TRIED, k, k + 1, k + 2})
    return said(*compared([X[part] for part in parts], 5, tried, seed))


def real_rows(draws: int) -> list[Record]:
    jobs = [Job(real, {"name": name, "seed": seed}) for name in REAL for seed in range(draws)]
    records = iter(run("evidence", jobs, fingerprint(__file__, CLOUDS_FILE)))
    rows = []
    for name, (_, n_sites, truth) in REAL.items():
        some = [next(records) for _ in range(draws)]
        least = [min(p for p in record["p"].values() if p is not None) for record in some]
        rows.append(
            {
                "data": name,
                "known": truth,
                "sites": n_sites,
                "endorsed": f"{sum(p <= LEVEL for p in least)} of {draws}",
                "least p": ", ".join(f"{p:.2g}" for p in least),
                "K": ", ".join(f"{r['chosen'][0]} ({r['chosen'][1]})" for r in some),
            }
        )
    return rows


def time_rows(repeats: int) -> list[Record]:
    rows = []
    for n_sites, each in ((4, 200), (30, 300)):
        seconds = []
        for seed in range(repeats):
            X = CLOUDS["Gaussian, r = 0.3, d = 6"](np.random.default_rng(seed), n_sites * each)
            seconds.append(compared(np.split(X, n_sites), 5, TRIED, seed)[1])
        rows.append(
            {"sites": f"{n_sites} x {each}", "K": "2 to 6", "CPU s": float(np.median(seconds))}
        )
    return rows


CLOUDS_FILE = __file__.replace("evidence.py", "_clouds.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=4, help="draws of each kind at 4 x 200")
    parser.add_argument("--others", type=int, default=1, help="draws of each kind elsewhere")
    options = parser.parse_args()
    first, *others = SIZES
    write(
        "evidence_clouds",
        without_rows([*CLOUDS], [first], options.draws)
        + without_rows(ELSEWHERE, others, options.others),
        note=(
            "Rows without clusters, K = 2 to 6, p = 5. Asked for: endorsed in at most 5 % of the "
            "draws, two uniform columns in at most 25 % and never all apart."
        ),
    )
    write(
        "evidence_missing",
        without_rows([*LACKING], [first], options.others),
        note="Rows without clusters whose values are missing; imputed.",
    )
    write(
        "evidence_clusters",
        within_rows([first], options.draws) + within_rows(WITH_CLUSTERS, options.others),
        note=(
            "Rows with clusters, K = 2 to 6 and up to two more than there are, p = 5. Right K: "
            "that which is recommended, among the endorsed draws."
        ),
    )
    write("evidence_real", real_rows(3), note="Three splits over sites, p = 5.")
    write(
        "evidence_time",
        time_rows(3),
        note="CPU of the coordinator; asked for: 4 s and 8 s.",
    )


if __name__ == "__main__":
    main()
