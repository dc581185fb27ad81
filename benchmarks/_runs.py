"""Run many measurements in two processes, and store each as soon as it has ended.

A measurement is a function of a module and its arguments. Its return value goes to
``benchmarks/results/cache/<part>.jsonl`` under a hash of both and of the code that was measured.
An interrupted benchmark continues where it stopped, and a larger ``--runs`` does not repeat stored
measurements.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from _report import RESULTS

ROOT = Path(__file__).parents[1]
Record = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """``function(**arguments)``; the function is a module's own, for another process finds it."""

    function: Callable[..., Record]
    arguments: dict[str, Any] = field(default_factory=dict)

    def key(self, code: str) -> str:
        """Return the name under which its record is kept."""
        said = json.dumps(
            [code, self.function.__name__, self.arguments], sort_keys=True, default=str
        )
        return hashlib.sha256(said.encode()).hexdigest()[:32]


def run(part: str, jobs: Sequence[Job], code: str) -> list[Record]:
    """Return the record of each job, in their order; ``code`` is :func:`fingerprint`'s."""
    path = RESULTS / "cache" / f"{part}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    known: dict[str, Record] = {}
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            try:
                kept = json.loads(line)
            except json.JSONDecodeError:
                continue  # Interrupted while it was written.
            known[kept["key"]] = kept["record"]
    keys = [job.key(code) for job in jobs]
    missing = {key: job for key, job in zip(keys, jobs, strict=True) if key not in known}
    if missing:
        with ProcessPoolExecutor(_workers()) as pool, path.open("a", encoding="utf-8") as file:
            futures = {
                pool.submit(job.function, **job.arguments): key for key, job in missing.items()
            }
            for number, future in enumerate(as_completed(futures), 1):
                known[futures[future]] = future.result()
                line = {"key": futures[future], "record": future.result()}
                file.write("\n" + json.dumps(line))
                file.flush()
                _progress(part, number, len(futures))
    return [known[key] for key in keys]


def fingerprint(*files: str) -> str:
    """Return a hash of the algorithms and of ``files``: a change makes old records worthless."""
    package = ROOT / "client_sdk" / "fedclust"
    parts = ("methods", "numeric", "protection", "rounds", "schema")
    paths = [path for part in parts for path in (package / part).rglob("*.py")]
    paths += (ROOT / "client_sdk" / "fedclust_dual").glob("*.py")
    paths += [Path(__file__).with_name(name) for name in ("_data.py", "_baselines.py")]
    paths += [Path(file) for file in files]
    digest = hashlib.sha256()
    for path in sorted(set(paths)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _workers() -> int:
    return max(1, min(2, os.cpu_count() or 1))


_last = 0.0


def _progress(part: str, done: int, whole: int) -> None:
    global _last
    if time.monotonic() - _last > 20 or done == whole:
        _last = time.monotonic()
        print(f"{part}: {done} of {whole}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation (ddof 1) and standard error of some figures."""

    mean: float
    sd: float
    se: float
    n: int
    worst: float
    best: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """Summarise; figures that are not there are left out."""
        x = np.array([value for value in values if value is not None], dtype=float)
        if not len(x):
            return cls(np.nan, np.nan, np.nan, 0, np.nan, np.nan)
        sd = float(x.std(ddof=1)) if len(x) > 1 else 0.0
        return cls(float(x.mean()), sd, sd / len(x) ** 0.5, len(x), float(x.min()), float(x.max()))

    def __str__(self) -> str:
        return "-" if not self.n else f"{self.mean:.4f} ±{self.sd:.4f} (se {self.se:.4f})"


def spread(records: Iterable[Record], name: str) -> Spread:
    """Summarise one figure of several records."""
    return Spread.of(record.get(name) for record in records)
