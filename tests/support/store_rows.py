"""Rows for tests of the store, with the smallest values that are allowed."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from prometheus_client import CollectorRegistry
from sqlalchemy import select

from fedclust.wire.codec import canonical_json, sha256
from fedclust_service.domain.round import Addressee, Round, RoundState, Submission
from fedclust_service.domain.session import (
    Participation,
    ParticipationState,
    Session,
    SessionState,
    Study,
)
from fedclust_service.store import Store, Tx, tables

EPOCH = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
SITES = ("budapest", "cleveland", "zurich")


def counted(store: Store, transaction: str) -> dict[str, int]:
    """Return what a store counted of the transactions of a name but their seconds."""
    read = CollectorRegistry()
    for counter in store.counters.values():
        read.register(counter)
    found = {
        key: read.get_sample_value(f"fedclust_store_{key}_total", {"transaction": transaction})
        for key in ("calls", "retries", "failures")
    }
    return {key: int(value or 0) for key, value in found.items()}


def at(seconds: float) -> datetime:
    """Return the moment so many seconds after the tests' epoch."""
    return EPOCH + timedelta(seconds=seconds)


def add_study(tx: Tx, name: str = "hearts", created_by: str = "ana") -> Study:
    """Add a study that names `SITES`."""
    definition = canonical_json({"name": name})
    new = Study(0, name, definition, sha256(definition), created_by, EPOCH)
    return tx.studies.add(new, SITES)


def add_session(
    tx: Tx, name: str = "heart", created_by: str = "ana", study: str | None = None
) -> Session:
    """Add a recruiting session."""
    return tx.sessions.add(
        Session(
            id=0,
            name=name,
            algorithm="lloyd",
            method_version=1,
            definition=b'{"name":"heart"}',
            definition_sha256="d" * 64,
            request_sha256="e" * 64,
            created_by=created_by,
            state=SessionState.RECRUITING,
            version=1,
            created_at=EPOCH,
            study=study,
        )
    )


def participation(session: Session, site: str) -> Participation:
    """Return an invitation."""
    return Participation(session.id, site, ParticipationState.INVITED, EPOCH)


def new_round(
    session: Session,
    number: int = 1,
    state: RoundState = RoundState.COLLECTING,
    deadline: datetime | None = None,
) -> Round:
    """Return a round that is not stored yet."""
    return Round(
        id=0,
        session_id=session.id,
        number=number,
        phase="means",
        state=state,
        needs_all=False,
        common=b"common" * 100,
        opened_at=EPOCH,
        deadline=deadline or at(3600),
    )


def addressees(sites: Sequence[str] = SITES) -> list[Addressee]:
    """Return the sites that a round is to address, in no useful order."""
    return [
        Addressee(round_id=0, site=site, site_part=f"part of {site}".encode(), task_digest="a" * 64)
        for site in reversed(sites)
    ]


def submission(opened: Round, site: str, payload: bytes | None = b"\x00payload") -> Submission:
    """Return an answer to a round."""
    return Submission(
        session_id=opened.session_id,
        round_id=opened.id,
        site=site,
        phase=opened.phase,
        sha256="c" * 64,
        size=8,
        empty=payload is None,
        payload=payload,
        received_at=at(5),
    )


def lease(
    name: str = "t1", holder: str = "worker-1", expires_at: datetime | None = None
) -> dict[str, Any]:
    """Return a lease of thirty seconds, as `Rounds.take_lease` takes it."""
    return {"token": name, "holder": holder, "expires_at": expires_at or at(30)}


def open_round(store: Store, state: RoundState = RoundState.COLLECTING) -> tuple[Session, Round]:
    """Store a session with one round that addresses `SITES`."""

    def work(tx: Tx) -> tuple[Session, Round]:
        session = add_session(tx)
        return session, tx.rounds.add(new_round(session, state=state), addressees())

    return store.run_tx("arrange", work)


def latest_state(tx: Tx, session_id: int) -> bytes | None:
    """Return the engine's state after the last round."""
    for number in range(100, -1, -1):
        state = tx.states.get(session_id, number)
        if state is not None:
            return state
    return None


def rounds_to_aggregate(tx: Tx) -> list[Round]:
    """Return the rounds to aggregate, leased or not, oldest first."""
    rounds = tables.rounds
    found = select(rounds).where(rounds.c.state == RoundState.AGGREGATING).order_by(rounds.c.id)
    return [Round(**row) for row in tx._connection.execute(found).mappings()]
