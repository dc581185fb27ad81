"""Hostile bodies and schemathesis examples against a coordinator, on both databases.

The examples are stateful: they follow the links of the published ``/openapi.json``. Prints the
counts and writes them to ``benchmarks/results/hostile.json``. Prints and fails for: a server error,
a status that the operation does not name, a response that does not match its schema, a response
that repeats a refused value, and a change or refusal without its entry in the audit trail.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from support.api_caller import ApiCaller  # noqa: E402
from support.databases import PostgresServer, SqliteFiles  # noqa: E402
from support.hostile import KINDS, Watch, fuzz, hostile_bodies, populate  # noqa: E402
from support.server import running_server  # noqa: E402

_SESSION = "target"
_BOTH = ("SQLite", "PostgreSQL")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bodies", type=int, default=150)
    parser.add_argument("--examples", type=int, default=600)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--databases", nargs="+", choices=_BOTH, default=_BOTH)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "SQLite" in options.databases:
            sqlite = SqliteFiles(folder).create(folder)
            rows.append(_sent("SQLite", folder / "sqlite", sqlite, options))
        if "PostgreSQL" in options.databases:
            postgres = PostgresServer()
            try:
                url = postgres.url(postgres.create())
                rows.append(_sent("PostgreSQL", folder / "postgres", url, options))
            finally:
                postgres.stop()
    write("hostile", rows)
    return int(any(row[kind] for row in rows for kind in KINDS))


def _sent(database: str, place: Path, url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Send everything to a coordinator of its own; return the counts."""
    with running_server(place / "coordinator", env={"FEDCLUST_DATABASE_URL": url}) as server:
        api = ApiCaller(server.base_url, server.operator_token)
        populate(api, _SESSION)
        watch = Watch(api, url)
        for sent in hostile_bodies(api, _SESSION, options.bodies, options.seed):
            watch.send(sent)
        fuzz(api, watch, options.examples, options.seed)
        watch.close()
    findings = watch.findings
    for kind, found in findings.faults.items():
        for text in sorted(set(found)):
            print(f"{database}: {kind}: {text}")
    print(f"{database}: answers by status:", dict(sorted(findings.statuses.items())))
    print(f"{database}: requests by operation:", dict(findings.operations.most_common()))
    row: dict[str, Any] = {
        "database": database,
        "hostile bodies": options.bodies,
        "schemathesis examples": findings.requests - options.bodies,
        "operations": len(findings.operations),
    }
    return row | {kind: findings.count(kind) for kind in KINDS}


if __name__ == "__main__":
    sys.exit(main())
