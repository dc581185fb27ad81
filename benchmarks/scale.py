"""A site with more rows than memory holds: forming its table, a round, and labels, on Parquet.

A file of float32 with n, 2n and 4n rows, read by a process whose memory is limited; the last file
is four times the limit. "Decoding alone" reads every value once. The pass describes the columns and
forms the table, so it decodes twice. It is compared with decoding and grouping as many rows in
memory, which grows with the rows; both use the same least group size. Labels are those of all rows
by the nearest centroid, from one pass.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _report import write
from fedclust.data import Dataset, LabelRows
from fedclust.data.persons import read_persons
from fedclust.data.row_source import RowSource
from fedclust.data.site_data import form_once, table_points
from fedclust.schema.feature import Feature

D, K, P = 32, 16, 5
FEATURES = tuple(Feature(name=f"x{j}") for j in range(D))
GROUP = 1 << 17
#: RowSource that are grouped in memory, for comparison.
IN_MEMORY = 1 << 20
#: What a process may allocate, in MiB; the largest file is four times this.
LIMIT = 448


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_670_016, help="n")
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(limited(Path(options.child))))
        return
    with tempfile.TemporaryDirectory() as name:
        files = [made(Path(name) / f"{times}.parquet", times * options.rows) for times in (1, 2, 4)]
        small = made(Path(name) / "memory.parquet", IN_MEMORY)
        rows = [measured(file, small) for file in files]
    write(
        "scale_parquet",
        rows,
        note=(
            f"d = {D}, p = {P}. Limit: {LIMIT} MiB of private memory (RLIMIT_DATA), imports "
            "included. CPU time; at most 1.25 is asked for of the ratio."
        ),
    )


def centres() -> NDArray[np.float64]:
    return np.random.default_rng(0).normal(size=(K, D)) * 2


def made(path: Path, n: int) -> Path:
    """Write a Parquet file of n rows around K centres, float32, without compression."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(n)
    schema = pa.schema([(feature.name, pa.float32()) for feature in FEATURES])
    with pq.ParquetWriter(path, schema, compression="NONE", use_dictionary=False) as writer:
        for start in range(0, n, GROUP):
            m = min(GROUP, n - start)
            X = (centres()[rng.integers(0, K, m)] + rng.normal(size=(m, D))).astype(np.float32)
            columns = [np.ascontiguousarray(column) for column in X.T]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=GROUP)
    return path


def measured(path: Path, small: Path) -> dict[str, Any]:
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
    command = [sys.executable, __file__, "--child", str(path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    size = path.stat().st_size >> 20
    row: dict[str, Any] = {"file, MiB": size, "of the limit": size / LIMIT}
    if done.returncode:
        error = (done.stderr.strip().splitlines() or [""])[-1]
        return row | dict.fromkeys(_FIGURES, "-") | {"peak, MiB": error.split(":")[0]}
    found = json.loads(done.stdout)
    grouping = grouped_in_memory(small, found["n"]) * found["n"] / IN_MEMORY
    ratio = found["pass, s"] / (found["decoding, s"] + grouping)
    return row | found | {"grouping in memory, s": grouping, "ratio": ratio}


def grouped_in_memory(path: Path, n: int) -> float:
    """Return the time that grouping takes in memory, in groups as large as those of n persons."""
    persons = replace(read_persons(path, FEATURES), n_persons=n)
    return timed(lambda: form_once(persons, P))


_FIGURES = (
    *("n", "decoding, s", "pass, s", "labels, s", "groups", "private, MiB", "peak, MiB"),
    *("grouping in memory, s", "ratio"),
)


def limited(path: Path) -> dict[str, Any]:
    """Run in the child: limit memory, decode, form the table, label."""
    import resource

    # The stacks of threads that do nothing are not memory that is used.
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT << 20, LIMIT << 20))
    source, found = Dataset(path, out_of_core=True), []

    def decode() -> None:
        found.append(sum(len(block) for block in RowSource(source, FEATURES).scan()))

    def form() -> None:
        persons = read_persons(source, FEATURES)
        table = form_once(persons, P)[0]
        found.append(len(table_points(persons, table).X))

    def label() -> None:
        nearest = [_nearest(X).astype(np.int16) for X, _ in LabelRows(source, FEATURES).blocks()]
        found.append(len(np.concatenate(nearest)))

    times = [timed(each) for each in (decode, form, label)]
    status = Path("/proc/self/status").read_text("ascii")
    sizes = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if " kB" in line}
    return {
        "n": found[0],
        "decoding, s": times[0],
        "pass, s": times[1],
        "labels, s": times[2],
        "groups": found[1],
        "private, MiB": int(sizes["VmData"]) >> 10,
        "peak, MiB": int(sizes["VmHWM"]) >> 10,
    }


def _nearest(X: NDArray[np.float64]) -> NDArray[np.intp]:
    squares = (centres() ** 2).sum(axis=1) - 2.0 * (X @ centres().T)
    return np.asarray(squares.argmin(axis=1))


def timed(call: Callable[[], Any]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun


if __name__ == "__main__":
    main()
