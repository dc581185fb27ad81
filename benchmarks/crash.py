"""Kill the coordinator and sites, equally often, in a session of 20 rounds, on both databases.

Prints counts of kills and requests, and writes them to ``benchmarks/results/crash.json``. Fails
with an AssertionError if anything is lost, doubled or different.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from e2e.random_kills import KillReport, run_with_kills  # noqa: E402
from support.databases import PostgresServer, SqliteFiles  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=8, help="of the coordinator, and of sites")
    parser.add_argument("--seed", type=int, default=2026)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reports = {"SQLite": _run(folder / "sqlite", _sqlite(folder), options)}
        postgres = PostgresServer()
        try:
            url = postgres.url(postgres.create())
            reports["PostgreSQL"] = _run(folder / "postgres", url, options)
        finally:
            postgres.stop()
    rows = [{"database": database, **asdict(report)} for database, report in reports.items()]
    write("crash", rows)
    print("same final bytes as simulate; nothing acknowledged was lost; nothing differed")


def _sqlite(folder: Path) -> str:
    return SqliteFiles(folder).create(folder)


def _run(folder: Path, url: str, options: argparse.Namespace) -> KillReport:
    folder.mkdir(exist_ok=True)
    return run_with_kills(
        folder,
        database_url=url,
        coordinator_kills=options.kills,
        site_kills=options.kills,
        seed=options.seed,
        requests_between=4,
    )


if __name__ == "__main__":
    main()
