"""Lists, filters and sweeps of a long history: 10,000 sessions, 200,000 audit entries.

On SQLite and on PostgreSQL, by the use cases without HTTP. 500 rounds are late. The targets: p95 of
every list and filter at most 50 ms, a sweep at most 10 ms of CPU.
"""

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import create_engine, text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from fedclust_service.clock import StoreClock  # noqa: E402
from fedclust_service.domain.access import Actor, AuditSearch  # noqa: E402
from fedclust_service.domain.session import SessionState  # noqa: E402
from fedclust_service.store import Store, migrate  # noqa: E402
from fedclust_service.usecases import admin, sessions  # noqa: E402
from fedclust_service.usecases.sweeper import end_unsupported, sweep  # noqa: E402
from support.databases import PostgresServer  # noqa: E402
from support.many_sessions import fill  # noqa: E402
from usecases.direct_api import ANALYST, OPERATOR, DirectApi, site  # noqa: E402

READS = 30
READERS = {"operator": OPERATOR, "analyst": ANALYST, "site": site("hospital-03")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--database", action="append", choices=["sqlite", "postgresql"])
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    postgres = PostgresServer()
    try:
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            addresses = {
                "sqlite": f"sqlite:///{place / 'lists.db'}",
                "postgresql": postgres.url(postgres.create(migrated=False)),
            }
            for database in options.database or addresses:
                url = addresses[database]
                rows += _measure(database, url, options.sessions, place)
                write("lists", rows, note="Milliseconds; cpu: user and system, of one call.")
    finally:
        postgres.stop()


def _measure(database: str, url: str, n_sessions: int, place: Path) -> list[dict[str, Any]]:
    migrate.upgrade(url)
    store = Store.open(url, StoreClock())
    try:
        direct = DirectApi(store, store.clock)
        fill(store, store.clock.now(), sessions=n_sessions)
        if database == "postgresql":  # where autovacuum does it
            engine = create_engine(url, isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.execute(text("VACUUM ANALYZE"))
            engine.dispose()
        for _ in range(2):
            sweep(direct.co)
        gc.collect()
        gc.freeze()  # as `serve` does
        return [
            {"database": database, "what": what, **_timed(read)}
            for what, read in _reads(direct, place).items()
        ]
    finally:
        store.close()


def _reads(direct: DirectApi, place: Path) -> dict[str, Callable[[], object]]:
    co, now = direct.co, direct.co.clock.now()
    reads: dict[str, Callable[[], object]] = {
        "sweep": partial(sweep, co),
        "unsupported sessions, at the start": partial(end_unsupported, co),
        "overview": partial(admin.overview, co, OPERATOR, place),
    }

    def sessions_of(actor: Actor, **wanted: Any) -> Callable[[], object]:
        return partial(sessions.list_sessions, co, actor, **wanted)

    for name, actor in READERS.items():
        reads[f"sessions, {name}"] = sessions_of(actor)
        for state in SessionState:
            reads[f"sessions {state.value}, {name}"] = sessions_of(actor, state=state)
        reads[f"sessions of a study, {name}"] = sessions_of(actor, study="study-01")
        reads[f"studies, {name}"] = partial(sessions.list_studies, co, actor)
        completed = sessions_of(actor, limit=200, state=SessionState.COMPLETED)
        reads[f"sessions to compare, {name}"] = completed
    past = now - timedelta(days=1500)
    searches = {
        "none": AuditSearch(),
        "subject": AuditSearch(subject="session-0007"),
        "actor": AuditSearch(actor="site:hospital-03"),
        "actor, rare": AuditSearch(actor="analyst:ada"),
        "action": AuditSearch(action="site.joined"),
        "action, rare": AuditSearch(action="session.created"),
        "actor and action": AuditSearch(actor="site:hospital-03", action="site.joined"),
        "actor and subject": AuditSearch(actor="site:hospital-03", subject="session-0007"),
        "action and subject": AuditSearch(action="site.joined", subject="session-0007"),
        "since": AuditSearch(since=now - timedelta(days=30)),
        "since, nothing": AuditSearch(since=now + timedelta(days=1)),
        "until": AuditSearch(until=now - timedelta(days=2000)),
        "until, nothing": AuditSearch(until=now - timedelta(days=9000)),
        "until and actor": AuditSearch(until=past, actor="site:hospital-03"),
        "until and action": AuditSearch(until=past, action="site.joined"),
        "part": AuditSearch(text="hospital-03"),
        "part, rare": AuditSearch(text="session-0007"),
        "part, nothing": AuditSearch(text="nowhere"),
    }
    for name, search in searches.items():
        reads[f"audit by {name}"] = partial(admin.list_audit, co, OPERATOR, search=search)
    return reads


def _timed(read: Callable[[], object]) -> dict[str, float]:
    took, spent = [], []
    for _ in range(READS):
        began, cpu = time.perf_counter(), time.process_time()
        read()
        took.append(1000 * (time.perf_counter() - began))
        spent.append(1000 * (time.process_time() - cpu))
    return {
        "p50": float(np.median(took)),
        "p95": float(np.quantile(took, 0.95)),
        "cpu": float(np.median(spent)),
    }


if __name__ == "__main__":
    main()
