"""A coordinator after some years: 1,000 sessions of 20 sites, written straight into its tables.

    fill(store, store.clock.now())    # about 4 s

For pages and lists. The rows are as the coordinator writes them, but tasks and payloads are made
up and results are missing: no session can go on, and no result can be opened.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Table, func, insert, select

from fedclust.definition import canonical, freeze
from fedclust.wire.codec import canonical_json, sha256
from fedclust.wire.models import SessionCreate
from fedclust_service.domain.access import Role
from fedclust_service.domain.round import Addressee, Round, RoundState, Submission
from fedclust_service.domain.session import (
    Participation,
    ParticipationState,
    Session,
    SessionState,
    Study,
)
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

    def add(self, table: Table, new: object) -> None:
        self.rows.setdefault(table, []).append(vars(new))

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
    sites = site_names()
    request = _request(sites)
    definition = freeze(request, 7)

    def write(tx: Tx) -> None:
        rows = _Rows()
        for role, names in ((Role.ANALYST, ANALYSTS), (Role.SITE, sites)):
            for name in names:
                tx.principals.add(role, name, name.title())
        for number in range(STUDIES):
            tx.studies.add(_study(request, number, now), sites)
        for number in range(sessions):
            name, created = session_name(number), now - timedelta(hours=6 * (sessions - number))
            study = f"study-{number % STUDIES:02}" if number % 2 else None
            changes = {"name": name, "title": f"Session {number}", "study": study}
            frozen = canonical(definition.model_copy(update=changes))
            rows.add(tables.sessions, _session(number, frozen, study, created))
            _rounds(rows, number, sites, created, now)
            for entry in range(entries):
                actor, at = f"site:{sites[entry % len(sites)]}", created + timedelta(seconds=entry)
                tx.audit.append(actor, "site.joined", name, {"n": entry}, at)
        rows.write(tx)
        tx.write_audit()
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


def _study(request: SessionCreate, number: int, now: datetime) -> Study:
    name, shared = f"study-{number:02}", {"title", "purpose", "contact", "sites", "features"}
    content = canonical_json({**request.model_dump(mode="json", include=shared), "name": name})
    creator = f"analyst:{ANALYSTS[number % 2]}"
    return Study(0, name, content, sha256(content), creator, now - timedelta(days=900))


def _session(number: int, definition: bytes, study: str | None, created: datetime) -> Session:
    state = SessionState(_TURN[number % len(_TURN)])
    started = state is not SessionState.RECRUITING
    completed = state is SessionState.COMPLETED
    return Session(
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
        ended_at=created + timedelta(hours=3) if state.ended else None,
        stopped_because="tolerance" if completed else None,
        failure="too few sites answered in time" if state is SessionState.FAILED else None,
        scrubbed_at=created + timedelta(days=30) if completed else None,
    )


def _rounds(
    rows: _Rows, number: int, sites: Sequence[str], created: datetime, now: datetime
) -> None:
    """Add participations and rounds; in every second running session one site is late."""
    state, session_id = _TURN[number % len(_TURN)], number + 1
    features = tuple(each["name"] for each in _FEATURES)
    for place, site in enumerate(sites):
        own = Participation(session_id, site, ParticipationState.INVITED, created)
        if state != "recruiting" or place % 2 == 0:
            said = {"features": features, "size_band": "1000-4999", "sdk_version": "1.0"}
            joined = {"state": ParticipationState.JOINED, "joined_at": created}
            own = replace(own, **joined, **said, table_id=f"{place:032}")
        rows.add(tables.participations, own)
    n_rounds = {"completed": ROUNDS, "running": 2, "failed": 1}.get(state, 0)
    late = number // len(_TURN) % 2 == 0
    for nth in range(1, n_rounds + 1):
        opened = created + timedelta(hours=1, minutes=nth)
        is_open = state == "running" and nth == n_rounds
        deadline = now + timedelta(hours=-2 if late else 20) if is_open else opened
        round_id = number * ROUNDS + nth
        new = Round(
            id=round_id,
            session_id=session_id,
            number=nth,
            phase="lloyd",
            state=RoundState.COLLECTING if is_open else RoundState.CLOSED,
            needs_all=False,
            opened_at=opened,
            deadline=deadline,
            overdue_since=deadline if is_open and late else None,
            closed_at=None if is_open else opened,
            close_reason=None if is_open else "all sites answered",
            attempts=1,
            aggregation_s=0.1,
            metrics={"inertia": 10.0 / nth},
            common=b"\x00" * 2000,
        )
        rows.add(tables.rounds, new)
        for site in sites:
            asked = {"round_id": round_id, "site": site, "site_part": b"\x00" * 32}
            rows.add(tables.addressees, Addressee(**asked, task_digest="0" * 64))
        for place, site in enumerate(sites[:-1] if is_open else sites):
            digest = f"{place:064x}"
            sent = (session_id, round_id, site, "lloyd", digest, 1200, False, opened, None)
            rows.add(tables.submissions, Submission(*sent))
