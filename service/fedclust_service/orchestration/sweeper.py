"""The sweeper: deadlines, rounds given up, payloads past their retention."""

from __future__ import annotations

import contextlib
import functools
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from fedclust.definition import DefinitionError
from fedclust_service.clock import ClockFault
from fedclust_service.domain.round import FailureReason, Round, RoundState
from fedclust_service.domain.session import Session, SessionState
from fedclust_service.orchestration.change import COORDINATOR, Change, commit
from fedclust_service.orchestration.closing import (
    MESSAGES,
    changes_anything,
    end_session,
    fail_damaged,
    settle,
    verdict_on,
)
from fedclust_service.orchestration.lookup import plan_for
from fedclust_service.store import DataDamaged, StoreError, Tx, Unwritable

if TYPE_CHECKING:
    from fedclust_service.orchestration.coordinator import Coordinator

log = structlog.get_logger(__name__)


class Sweeper:
    """Runs :func:`end_unsupported` once and :func:`sweep` every now and then.

    Built by the Coordinator.
    """

    def __init__(self, co: Coordinator) -> None:
        self._co = co
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="fedclust-sweeper", daemon=True)
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Have the thread end after the sweep that it is in."""
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        upgraded = False
        while not self._stopping.is_set():
            try:
                if not upgraded:
                    end_unsupported(self._co)
                    upgraded = True
                sweep(self._co)
            except StoreError as error:
                log.warning("sweeper_store_error", error=type(error).__name__)
            except Exception as error:  # the thread outlives every defect
                log.error("sweeper_error", error=type(error).__name__, exc_info=error)
            self._stopping.wait(self._co.limits.sweep_every_s)


def end_unsupported(co: Coordinator) -> None:
    """End the sessions whose form or method's version this program has left behind."""
    for session in co.store.read("sweep.versions", lambda tx: tx.sessions.going_on()):
        try:
            plan_for(session)
        except DefinitionError:
            commit(co, "sweep.unsupported", functools.partial(_end, session))
        except DataDamaged:  # found, and told of, by whoever needs it
            continue


def _end(session: Session, change: Change) -> None:
    current = change.tx.sessions.lock_by_id(session.id)
    if current is not None and not current.state.ended:
        reason = FailureReason.METHOD_VERSION_UNSUPPORTED
        end_session(
            change, current, SessionState.FAILED, reason=reason.value, failure=MESSAGES[reason]
        )


def sweep(co: Coordinator) -> None:
    """Do once all that is due by the clock, unless the database's clock is in doubt."""
    with contextlib.suppress(Unwritable):
        co.store.try_failed_write()
    co.clock.check()
    if co.clock.fault is ClockFault.DATABASE:
        return
    for each in co.store.read("sweep.look", lambda tx: tx.rounds.due(co.clock.now())):
        try:
            _judge(co, each)
        except Exception as error:  # a session that cannot be judged keeps no other one waiting
            if isinstance(error, StoreError) and not isinstance(error, DataDamaged):
                raise
            log.error("sweeper_error", round_id=each.id, error=type(error).__name__, exc_info=error)
    _scrub(co)


def _judge(co: Coordinator, due: Round) -> None:
    try:
        if co.store.read("sweep.judge", functools.partial(_is_due, co, due)):
            commit(co, "sweep.round", functools.partial(_settle, due))
    except DataDamaged as damage:
        commit(co, "sweep.damaged", functools.partial(_fail, due, damage))


def _is_due(co: Coordinator, current: Round, tx: Tx) -> bool:
    """Whether something is to be written of a round: an overdue one stays so for days."""
    session = tx.sessions.get_by_id(current.session_id)
    if session is None or session.state is not SessionState.RUNNING:
        return False
    return changes_anything(current, verdict_on(tx, session, current, co.clock.now()))


def _fail(due: Round, damage: DataDamaged, change: Change) -> None:
    session = change.tx.sessions.lock_by_id(due.session_id)
    if session is not None and session.state is SessionState.RUNNING:
        fail_damaged(change, session, due.number, damage)


def _settle(due: Round, change: Change) -> None:
    session = change.tx.sessions.lock_by_id(due.session_id)
    current = change.tx.rounds.get_by_id(due.id)
    if session is None or current is None:
        return
    if session.state is SessionState.RUNNING and current.state is RoundState.COLLECTING:
        settle(change, session, current)


def _scrub(co: Coordinator) -> None:
    days = co.limits.retention_days
    if days is None or (days and not co.clock.settled):
        return
    before = co.clock.now() - timedelta(days=days)
    for session in co.store.read("sweep.retention", lambda tx: tx.sessions.to_scrub(before)):
        commit(co, "sweep.scrub", functools.partial(_forget, session))


def _forget(session: Session, change: Change) -> None:
    payloads = change.tx.submissions.scrub(session.id, change.now)
    change.audit(COORDINATOR, "session.scrubbed", session.name, payloads=payloads)
