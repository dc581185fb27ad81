"""A site's local Lloyd step on many rows: in memory, out of core on Parquet, on Dask.

First table: n = 1,000,000 rows, d = 32, K = 16, one thread, each figure the least of some
repetitions, taken in turns. The floor is the bare product of rows and centroids; scikit-learn's
``KMeans(max_iter=1, n_init=1, init=C)`` is what to compare with; ours is all that a site does in a
round, from the task to the checked answer, the first round's preparation apart.

Second table: a Parquet file of float32 in a process whose memory is limited, of n, 2n and 4n rows:
decoding alone (every value read, checked and put into rows), the round, and the round over the sum
of decoding and the step in memory; peak memory, and disk for numbers of each row beside it.

Third table: the same over a local Dask cluster of two workers, guard off, by the CPU time of the
workers and of this process together: decoding alone on the cluster, the round, and the round over
the sum of decoding and the step in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]

from _report import write  # noqa: E402
from fedclust.algorithms import engine, lloyd  # noqa: E402
from fedclust.algorithms.base import (  # noqa: E402
    Feature,
    Memory,
    Policy,
    SiteData,
    SiteTask,
    Space,
)
from fedclust.algorithms.engine import Plan  # noqa: E402
from fedclust.algorithms.rows import rows_of  # noqa: E402
from fedclust.algorithms.totals import SitePart  # noqa: E402
from fedclust.data import Dataset, load  # noqa: E402

D, K = 32, 16
FEATURES = tuple(Feature(name=f"x{j}") for j in range(D))
GROUP = 1 << 17
#: What a process may allocate, in MiB; the largest file is four times this.
LIMIT = 256
#: Two clocks tell a busy machine from a slow program.
CLOCKS = {"s": time.perf_counter, "CPU s": time.process_time}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--stored-rows", type=int, default=2_097_152, help="n of the second table")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", nargs=2, metavar=("FILE", "GUARD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(stored(Path(options.child[0]), options.child[1], options.repeats)))
        return
    in_memory = memory_rows(options.rows, options.repeats)
    write(
        "scale",
        in_memory,
        note=f"n = {options.rows:,}, d = {D}, K = {K}. At most .3 of scikit-learn is asked for.",
    )
    with tempfile.TemporaryDirectory() as name:
        files = [
            made(Path(name) / f"{times}.parquet", times * options.stored_rows)
            for times in (1, 2, 4)
        ]
        step = in_memory[-2]["CPU s"] / options.rows
        write(
            "scale_parquet",
            [parquet_row(file, guard, step) for guard in ("off", "guard") for file in files],
            note=(
                f"Limit: {LIMIT} MiB of private memory (RLIMIT_DATA), imports included. At most "
                "1.2 is asked for of the ratio, by CPU time: the round over decoding and the step "
                "in memory for as many rows."
            ),
        )
        files = [
            made(Path(name) / f"dask-{times}.parquet", times * options.rows // 4)
            for times in (1, 2, 4)
        ]
        write(
            "scale_dask",
            dask_rows(files, step, options.repeats),
            note=(
                "LocalCluster of two workers, guard off; CPU time is theirs and the site's. The "
                "ratio is the round's CPU time over that of decoding and the step in memory."
            ),
        )


def rows_and_centroids(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (n, D) around K centres, and centroids not far from these."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(K, D)) * 2
    centroids = centres + rng.normal(size=(K, D)) * 0.3
    return centres[rng.integers(0, K, n)] + rng.normal(size=(n, D)), centroids


def plan(guard: str, centroids: np.ndarray) -> Plan:
    return Plan(
        method=lloyd.METHOD,
        options=lloyd.Config(n_clusters=K, start="given", centroids=centroids),
        features=FEATURES,
        policy=Policy(protection=guard),
        seed=0,
    )


class Session:
    """A site's rounds of a session."""

    def __init__(self, X: np.ndarray, guard: str, centroids: np.ndarray) -> None:
        self.data, self.plan = SiteData(X), plan(guard, centroids)
        self.memory: Memory = {}
        self.centroids, self.round = centroids, 0

    def step(self) -> None:
        """Answer the next round, from where the last one left the centroids."""
        self.round += 1
        space = Space(np.zeros(D), np.ones(D))
        task = SiteTask("lloyd", lloyd.StepTask(centroids=self.centroids), SitePart(), space)
        payload, self.memory = engine.local_step(
            self.plan,
            task,
            self.data,
            site="site",
            round_number=self.round,
            p=5,
            size_band=None,
            memory=self.memory,
        )
        self.centroids = payload.sums / np.maximum(payload.counts, 1)[:, None]


def timed(call: Callable[[], Any]) -> dict[str, float]:
    begun = {name: clock() for name, clock in CLOCKS.items()}
    call()
    return {name: clock() - begun[name] for name, clock in CLOCKS.items()}


def least(figures: list[dict[str, float]]) -> dict[str, float]:
    return {name: min(each[name] for each in figures) for name in CLOCKS}


# --- in memory ------------------------------------------------------------------------------------


def memory_rows(n: int, repeats: int) -> list[dict[str, Any]]:
    from sklearn.cluster import KMeans

    X, centroids = rows_and_centroids(n)
    sessions = {guard: Session(X, guard, centroids) for guard in ("off", "guard")}
    kmeans = KMeans(K, max_iter=1, n_init=1, init=centroids, algorithm="lloyd")
    calls: dict[str, Callable[[], Any]] = {
        "the bare product": lambda: X @ centroids.T,
        "scikit-learn": lambda: kmeans.fit(X),
        "ours, guard off": sessions["off"].step,
        "ours, guard on": sessions["guard"].step,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = {name: timed(call) for name, call in calls.items()}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in calls}
        for _ in range(repeats):
            for name, call in calls.items():
                found[name].append(timed(call))
    central = least(found["scikit-learn"])
    return [
        {
            "what": name,
            **least(found[name]),
            "of scikit-learn": least(found[name])["s"] / central["s"],
            "first call, s": first[name]["s"],
        }
        for name in calls
    ]


# --- Parquet --------------------------------------------------------------------------------------


def made(path: Path, n: int) -> Path:
    """Write a Parquet file of n rows, float32, without compression."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(feature.name, pa.float32()) for feature in FEATURES])
    with pq.ParquetWriter(path, schema, compression="NONE", use_dictionary=False) as writer:
        for start in range(0, n, GROUP):
            X = rows_and_centroids(min(GROUP, n - start))[0].astype(np.float32)
            X += np.float32(1e-3) * np.arange(start, start + len(X), dtype=np.float32)[:, None] / n
            columns = [np.ascontiguousarray(column) for column in X.T]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=GROUP)
    return path


def parquet_row(path: Path, guard: str, step: float) -> dict[str, Any]:
    """Return the figures of one file, from a process of its own under the limit."""
    env = os.environ | {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        # What others reserve and do not use counts too.
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(8 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(16 << 20),
    }
    command = [sys.executable, __file__, "--child", str(path), guard, "--repeats", "3"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    size = path.stat().st_size >> 20
    row: dict[str, Any] = {"guard": guard, "file, MiB": size, "of the limit": size / LIMIT}
    if done.returncode:
        error = (done.stderr.strip().splitlines() or [""])[-1]
        return row | dict.fromkeys(_FIGURES, "-") | {"peak, MiB": error.split(":")[0]}
    found = json.loads(done.stdout)
    expected = found["decoding, CPU s"] + step * found["n"]
    return row | found | {"ratio": found["round, CPU s"] / expected}


_FIGURES = (
    "n",
    "decoding, s",
    "decoding, CPU s",
    "round, s",
    "round, CPU s",
    "first round, s",
    "private, MiB",
    "peak, MiB",
    "ratio",
)


def stored(path: Path, guard: str, repeats: int) -> dict[str, Any]:
    """Run in the child: limit memory, decode, answer rounds."""
    import resource

    # The stacks of threads that do nothing are not memory that is used.
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT << 20, LIMIT << 20))
    warnings.simplefilter("ignore")
    centroids = rows_and_centroids(1)[1]
    table = load(Dataset(path, out_of_core=True), FEATURES)
    rows, session = rows_of(table.X), Session(table.X, guard, centroids)
    first = timed(session.step)
    decoding, rounds = [], []
    for _ in range(repeats):
        decoding.append(timed(lambda: sum(rows.map(len))))
        rounds.append(timed(session.step))
    status = Path("/proc/self/status").read_text("ascii")
    sizes = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if " kB" in line}
    return {
        "n": rows.shape[0],
        "decoding, s": least(decoding)["s"],
        "decoding, CPU s": least(decoding)["CPU s"],
        "round, s": least(rounds)["s"],
        "round, CPU s": least(rounds)["CPU s"],
        "first round, s": first["s"],
        "private, MiB": int(sizes["VmData"]) >> 10,
        "peak, MiB": int(sizes["VmHWM"]) >> 10,
    }


# --- Dask -----------------------------------------------------------------------------------------


def dask_rows(files: list[Path], step: float, repeats: int) -> list[dict[str, Any]]:
    import dask.dataframe as dd
    from distributed import Client, LocalCluster

    found = []
    workers = LocalCluster(2, threads_per_worker=1, dashboard_address=None)
    with workers as cluster, Client(cluster) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore")

        def busy() -> float:
            return time.process_time() + sum(client.run(time.process_time).values())

        def measured(call: Callable[[], Any]) -> dict[str, float]:
            begun = busy()
            return timed(call) | {"CPU s": busy() - begun}

        for path in files:
            lazy = dd.read_parquet(path, split_row_groups=True)
            table = load(Dataset(lazy, out_of_core=True), FEATURES)
            rows = rows_of(table.X)
            session, n = Session(table.X, "off", rows_and_centroids(1)[1]), rows.shape[0]
            first = timed(session.step)
            decoding, rounds = [], []
            for _ in range(repeats):
                decoding.append(measured(lambda rows=rows: sum(rows.map(len))))
                rounds.append(measured(session.step))
            alone, whole = least(decoding), least(rounds)
            found.append(
                {
                    "n": n,
                    "partitions": lazy.npartitions,
                    "decoding, s": alone["s"],
                    "decoding, CPU s": alone["CPU s"],
                    "round, s": whole["s"],
                    "round, CPU s": whole["CPU s"],
                    "us a row": 1e6 * whole["s"] / n,
                    "first round, s": first["s"],
                    "ratio": whole["CPU s"] / (alone["CPU s"] + step * n),
                }
            )
    return found


if __name__ == "__main__":
    main()
