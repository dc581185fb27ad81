"""Kill the coordinator and sites in 23 sessions that between them have every kind of round.

The sessions run one after another, on SQLite and PostgreSQL in turn. Each is compared byte for byte
with the undisturbed run and has a line of its own, also in ``benchmarks/results/crash.json``. The
exit code is 1 if a session hangs or differs, or if anything is lost or doubled.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from e2e.random_kills import run_with_kills  # noqa: E402
from support.databases import PostgresServer  # noqa: E402
from support.sqlite_file import create_sqlite  # noqa: E402

SWEEP = {"n_clusters": [2, 3, 5]}
STABLE = {"stability": 20}
FEW, ONE, MASK = {"max_rounds": 3}, {"max_rounds": 1}, {"missing": "mask"}
#: Method, options, policy, and whether there is an outcome. Most stop at max_rounds.
SESSIONS: dict[str, tuple[str, dict[str, Any], dict[str, Any], bool]] = {
    "lloyd": ("lloyd", {}, FEW, False),
    "lloyd stability": ("lloyd", STABLE, ONE, False),
    "lloyd outcome": ("lloyd", {}, FEW, True),
    "lloyd sweep outcome stability": ("lloyd", {**SWEEP, **STABLE}, ONE, True),
    "fkm": ("fkm", {}, FEW, False),
    "fkm stability": ("fkm", STABLE, ONE, False),
    "fkm sweep stability": ("fkm", {**SWEEP, **STABLE}, FEW, False),
    "fkm outcome": ("fkm", {}, FEW, True),
    "kfed": ("kfed", {"refine": 1}, {}, False),
    "kfed stability": ("kfed", {"refine": 0, **STABLE}, {}, False),
    "kfed stability outcome": ("kfed", STABLE, {}, True),
    "kfed sweep stability": ("kfed", {**SWEEP, **STABLE}, {}, False),
    "overlap": ("overlap", {}, FEW, False),
    "overlap lacking": ("overlap", {}, {**FEW, **MASK}, False),
    "overlap stability": ("overlap", STABLE, FEW, False),
    "overlap_oneshot lacking": ("overlap_oneshot", {}, MASK, False),
    "overlap_oneshot stability": ("overlap_oneshot", STABLE, {}, False),
    "mixture": ("mixture", {}, FEW, False),
    "mixture outcome": ("mixture", {"proportions": "by_site"}, FEW, True),
    "mixture sweep": ("mixture", SWEEP, FEW, False),
    "spectral": ("spectral", {}, {}, False),
    "spectral outcome": ("spectral", {}, {}, True),
    "dual": ("dual", {"node_limit": 100, "iterations": 2, "n_clusters": 3}, {}, False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=2, help="of the coordinator, and of sites")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--within-s", type=float, default=300.0, help="a longer session hangs")
    parser.add_argument("--only", choices=SESSIONS)
    parser.add_argument("--database", help="of --only; by default SQLite")
    options = parser.parse_args()
    if options.only is not None:
        print(json.dumps(_run(options)))
        return
    postgres = PostgresServer()
    rows = []
    try:
        for number, name in enumerate(SESSIONS):
            url = postgres.url(postgres.create()) if number % 2 else None
            row = _apart(name, number, url, options)
            rows.append(row)
            said = f"{row['outcome']}, {row['rounds']} rounds, {row['seconds']:.0f} s"
            print(f"{number + 1:2} {name} on {row['database']}: {said}", flush=True)
    finally:
        postgres.stop()
    write("crash", rows)
    if any(row["outcome"] != "same" for row in rows):
        raise SystemExit(1)


def _apart(name: str, number: int, url: str | None, options: argparse.Namespace) -> dict[str, Any]:
    """Run a session in a process group of its own, which ends with it."""
    command = [sys.executable, __file__, "--only", name, "--kills", str(options.kills)]
    command += ["--seed", str(options.seed + number), *(["--database", url] if url else [])]
    row: dict[str, Any] = {"session": name, "database": "PostgreSQL" if url else "SQLite"}
    row |= {"outcome": "", "rounds": 0, "seconds": options.within_s}
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        out, err = child.communicate(timeout=options.within_s)
    except subprocess.TimeoutExpired:
        return {**row, "outcome": "hangs"}
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if child.returncode:
        return {**row, "outcome": (err.strip().splitlines() or ["no message"])[-1][:200]}
    return {**row, "outcome": "same", **json.loads(out.splitlines()[-1])}


def _run(options: argparse.Namespace) -> dict[str, Any]:
    method, config, policy, outcome = SESSIONS[options.only]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = run_with_kills(
            folder,
            method,
            config,
            policy,
            outcome=outcome,
            database_url=options.database or create_sqlite(folder),
            coordinator_kills=options.kills,
            site_kills=options.kills,
            seed=options.seed,
            requests_between=4,
        )
        return asdict(report)


if __name__ == "__main__":
    main()
