"""A coordinator after some years: 1,000 sessions of 20 sites, written straight into its tables.

    fill(store, store.clock.now())    # about 4 s

For pages and lists. The rows are as the coordinator writes them, but tasks and payloads are made
up and results are missing: no session can go on, and no result can be opened.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Table, func, insert, select

from fedclust.definition import canonical, freeze
from fedclust.wire.codec import canonical_json, sha256
from fedclust.wire.models import SessionCreate
from fedclust_service.store import Store, Tx, tables
from support.definitions import session_request

SESSIONS, SITES, ROUNDS = 1000, 20, 4
ANALYSTS = ("ada", "ben")
STUDIES = 50
#: The states of sessions in turn: half of them are completed, some run with a late site.
_TURN = (
    *("running", "completed", "recruiting", "completed", "completed"),
    *("failed", "completed", "recruiting", "completed", "cancelled"),
)
_FEATURES: list[dict[str, Any]] = [
    {"name": f"measure_{number:02}", "unit": "mmol/l", "lower": 0.0, "upper": 400.0}
    for number in range(15)
]
_AT_ONCE = 20_000


@dataclass
class _Rows:
    """Rows by table, in the order in which the database takes them."""

    rows: dict[Table, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, table: Table, **values: Any) -> None:
        self.rows.setdefault(table, []).append(values)

    def write(self, tx: Tx) -> None:
        for table, rows in self.rows.items():
            for first in range(0, len(rows), _AT_ONCE):
                tx._connection.execute(insert(table), rows[first : first + _AT_ONCE])
            if tx._connection.dialect.name == "postgresql" and "id" in rows[0]:
                # Later rows get ids of their own.
                sequence = func.pg_get_serial_sequence(table.name, "id")
                highest = select(func.setval(sequence, func.max(table.c.id)))
                tx._connection.execute(highest)


def site_names(n: int = SITES) -> tuple[str, ...]:
    """Return the names of the sites."""
    return tuple(f"hospital-{number:02}" for number in range(1, n + 1))


def session_name(number: int) -> str:
    """Return the name of a session, numbered from 0; the last one is the newest."""
    return f"session-{number:04}"


def fill(store: Store, now: datetime, sessions: int = SESSIONS, entries: int = 20) -> None:
    """Fill an empty database with sessions, and with audit entries for each, which are sealed."""
    rows, sites = _Rows(), site_names()
    people = [("analyst", name) for name in ANALYSTS] + [("site", name) for name in sites]
    for role, name in people:
        rows.add(
            tables.principals,
            role=role,
            name=name,
            title=name.title(),
            disabled=False,
            created_at=now - timedelta(days=900),
            last_seen_at=now,
        )
    for number in range(STUDIES):
        _study(rows, number, sites, now)
    definition = freeze(_request(sites), 7)
    for number in range(sessions):
        name, created = session_name(number), now - timedelta(hours=6 * (sessions - number))
        study = f"study-{number % STUDIES:02}" if number % 2 else None
        changes = {"name": name, "title": f"Session {number}", "study": study}
        _session(rows, number, canonical(definition.model_copy(update=changes)), study, created)
        _rounds(rows, number, sites, created, now)
        for entry in range(entries):
            site = sites[entry % len(sites)]
            rows.add(
                tables.audit,
                at=created + timedelta(seconds=entry),
                actor=f"site:{site}",
                action="site.joined",
                subject=name,
                details={"n": entry},
            )

    def write(tx: Tx) -> None:
        rows.write(tx)
        tx.chain.seal(sessions * entries + 1)

    store.run_tx("test.fill", write)


def _request(sites: Sequence[str]) -> SessionCreate:
    return session_request(
        *_FEATURES,
        name="session",
        title="Session",
        contact="ada@registry.example",
        algorithm="lloyd",
        config={"n_clusters": 5},
        sites=list(sites),
    )


def _study(rows: _Rows, number: int, sites: Sequence[str], now: datetime) -> None:
    name = f"study-{number:02}"
    body = _request(sites).model_dump(
        mode="json", include={"title", "purpose", "contact", "sites", "features"}
    )
    content = canonical_json({**body, "name": name})
    rows.add(
        tables.studies,
        id=number + 1,
        name=name,
        definition=content,
        definition_sha256=sha256(content),
        created_by=f"analyst:{ANALYSTS[number % 2]}",
        created_at=now - timedelta(days=900),
    )
    for site in sites:
        rows.add(tables.study_sites, study_id=number + 1, site=site)


def _session(
    rows: _Rows, number: int, definition: bytes, study: str | None, created: datetime
) -> None:
    state = _TURN[number % len(_TURN)]
    started, ended = state != "recruiting", state in ("completed", "failed", "cancelled")
    rows.add(
        tables.sessions,
        id=number + 1,
        name=session_name(number),
        algorithm="lloyd",
        method_version=1,
        definition=definition,
        study=study,
        state=state,
        definition_sha256=sha256(definition),
        request_sha256=sha256(definition),
        created_by=f"analyst:{ANALYSTS[number % 2]}",
        version=5,
        created_at=created,
        started_at=created + timedelta(hours=1) if started else None,
        ended_at=created + timedelta(hours=3) if ended else None,
        stopped_because="tolerance" if state == "completed" else None,
        failure="too few sites answered in time" if state == "failed" else None,
        scrubbed_at=created + timedelta(days=30) if state == "completed" else None,
        deaths=0,
    )


def _rounds(
    rows: _Rows, number: int, sites: Sequence[str], created: datetime, now: datetime
) -> None:
    """Add participations and rounds; in every second running session one site is late."""
    state = _TURN[number % len(_TURN)]
    for place, site in enumerate(sites):
        came = state != "recruiting" or place % 2 == 0
        rows.add(
            tables.participations,
            session_id=number + 1,
            site=site,
            state="joined" if came else "invited",
            invited_at=created,
            protection_none=False,
            features=[each["name"] for each in _FEATURES],
            size_band="1000-4999" if came else None,
            other_persons=False,
            points_short=False,
            sdk_version="1.0" if came else None,
            joined_at=created if came else None,
            table_id=f"{place:032}",
            separate_groups=False,
        )
    n_rounds = {"completed": ROUNDS, "running": 2, "failed": 1}.get(state, 0)
    late = number // len(_TURN) % 2 == 0
    for nth in range(1, n_rounds + 1):
        opened = created + timedelta(hours=1, minutes=nth)
        open_round = state == "running" and nth == n_rounds
        deadline = now + timedelta(hours=-2 if late else 20) if open_round else opened
        round_id = number * ROUNDS + nth
        rows.add(
            tables.rounds,
            id=round_id,
            session_id=number + 1,
            number=nth,
            phase="lloyd",
            state="collecting" if open_round else "closed",
            needs_all=False,
            opened_at=opened,
            deadline=deadline,
            overdue_since=deadline if open_round and late else None,
            closed_at=None if open_round else opened,
            close_reason=None if open_round else "all sites answered",
            attempts=1,
            aggregation_s=0.1,
            metrics={"inertia": 10.0 / nth},
            common=b"\x00" * 2000,
        )
        for place, site in enumerate(sites):
            rows.add(
                tables.addressees,
                round_id=round_id,
                site=site,
                site_part=b"\x00" * 32,
                task_digest="0" * 64,
                released=False,
            )
            if open_round and place == len(sites) - 1:
                continue
            rows.add(
                tables.submissions,
                session_id=number + 1,
                round_id=round_id,
                site=site,
                phase="lloyd",
                sha256=f"{place:064x}",
                size=1200,
                empty=False,
                received_at=opened,
            )
