"""The pages of a coordinator after some years: 1,000 sessions of 20 sites, over HTTP with a cookie.

The coordinator runs in a process of its own, on SQLite and on PostgreSQL. One reader asks for each
page one request after another, over a connection that is kept. Two sessions of four sites that ran
through are added, so that a result is opened and two are compared.

The target: p95 of every page at most 150 ms. ``--only`` takes pages whose name contains a text.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from fedclust_service.clock import StoreClock  # noqa: E402
from fedclust_service.store import Store  # noqa: E402
from support.api_caller import ApiCaller  # noqa: E402
from support.databases import PostgresServer  # noqa: E402
from support.many_sessions import ANALYSTS, fill, session_name, site_names  # noqa: E402
from support.reader import Reader  # noqa: E402
from support.server import ServerProcess  # noqa: E402
from support.site_rows import NAMES, breast_cancer  # noqa: E402

REQUESTS, REACH_MS = 50, 150
SITE = site_names()[2]
RESULTS = ("tumours-2025", "tumours-2026")
_RUNNING = session_name(990)
#: The reader and the address of each page.
PAGES: dict[str, tuple[str, str]] = {
    "overview": ("operator", "/ui/overview"),
    "sessions, operator": ("operator", "/ui/sessions"),
    "sessions, analyst": ("ada", "/ui/sessions"),
    "sessions, site": (SITE, "/ui/sessions"),
    "sessions, running": ("operator", "/ui/sessions?state=running"),
    "session, operator": ("operator", f"/ui/sessions/{_RUNNING}"),
    "session, analyst": ("ada", f"/ui/sessions/{_RUNNING}"),
    "session, site": (SITE, f"/ui/sessions/{_RUNNING}"),
    "audit": ("operator", "/ui/audit"),
    "audit, searched": ("operator", f"/ui/audit?subject={_RUNNING}"),
    "sites": ("operator", "/ui/sites"),
    "studies": ("ada", "/ui/studies"),
    "new session": ("ada", "/ui/new-session"),
    "consent": (SITE, f"/ui/sessions/{_RUNNING}/consent"),
    "receipts": (SITE, f"/ui/sessions/{_RUNNING}/receipts"),
    "result": ("ada", f"/ui/sessions/{RESULTS[1]}/result"),
    "compare": ("ada", f"/ui/compare?first={RESULTS[0]}&second={RESULTS[1]}"),
}


def main() -> None:
    """Measure every page on each kind of database."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--only", default="", help="pages whose name contains this")
    options = parser.parse_args()
    rows = []
    for database in options.databases:
        with _coordinator(database) as (server, api):
            assert server.process is not None
            watched = psutil.Process(server.process.pid)
            readers = {
                who: Reader(server.base_url, api.tokens[who]) for who in ("operator", "ada", SITE)
            }
            for page, (who, path) in PAGES.items():
                if options.only in page:
                    row = _measured(readers[who], path, watched)
                    rows.append({"database": database, "page": page, **row})
    write(
        "pages",
        rows,
        note=(
            f"1,000 sessions of 20 sites, 20,000 audit entries; {REQUESTS} requests each, one after"
            f" another. CPU of the coordinator by request. At most: p95 {REACH_MS} ms."
        ),
    )


def _measured(reader: Reader, path: str, watched: psutil.Process) -> dict[str, Any]:
    size = len(reader.open(path).encode())
    cpu, times = sum(watched.cpu_times()[:2]), []
    for _ in range(REQUESTS):
        began = time.perf_counter()
        answer = reader.client.get(path)
        times.append(1000 * (time.perf_counter() - began))
        assert answer.status_code == 200, f"{path}: {answer.status_code}"
    times.sort()
    return {
        "p50 ms": median(times),
        "p95 ms": times[int(0.95 * REQUESTS)],
        "CPU ms": 1000 * (sum(watched.cpu_times()[:2]) - cpu) / REQUESTS,
        "kB": size / 1000,
    }


@contextmanager
def _coordinator(database: str) -> Iterator[tuple[ServerProcess, ApiCaller]]:
    postgres = PostgresServer(fsync=True) if database == "postgresql" else None
    with tempfile.TemporaryDirectory() as folder:
        address = postgres and postgres.url(postgres.create(migrated=False))
        env = {"FEDCLUST_DATABASE_URL": address} if address else {}
        command = (str(Path(sys.executable).with_name("fedclust-service")),)
        server = ServerProcess(Path(folder) / "data", env=env, command=command)
        try:
            server.start()
            server.stop()
            store = Store.open(address or f"sqlite:///{folder}/data/fedclust.db", StoreClock())
            fill(store, store.clock.now())
            store.close()
            server.start()
            yield server, _people(server)
        finally:
            server.kill()
            if postgres is not None:
                postgres.stop()


def _people(server: ServerProcess) -> ApiCaller:
    api = ApiCaller(server.base_url, server.operator_token)
    for role, name in (("analysts", ANALYSTS[0]), ("sites", SITE)):
        api.tokens[name] = api.ok("POST", f"/v1/{role}/{name}/tokens", "operator")["token"]
    api.register("sites", *NAMES)
    api.data |= {site: rows[:, :8] for site, rows in breast_cancer().items()}
    features = [{"name": f"x{i}", "lower": 0.0, "upper": 1e4} for i in range(8)]
    for seed, session in enumerate(RESULTS):
        more = {"algorithm": "fkm", "config": {"n_clusters": [2, 3, 4]}, "seed": seed}
        api.define("ada", session, list(NAMES), features=features, **more)
        for site in NAMES:
            api.join(site, session)
        assert api.finish(session, NAMES) == "completed"
    return api


if __name__ == "__main__":
    main()
