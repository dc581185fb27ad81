"""The sweeper: deadlines, overdue rounds, tokens that end soon, what is past its retention."""

import contextlib
import functools
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from fedclust.definition import DefinitionError
from fedclust.schema.notification_texts import TOKEN_WARNINGS
from fedclust_service.background import BackgroundThread
from fedclust_service.clock import ClockFault
from fedclust_service.domain.notification import KEPT_FOR, NotificationKind
from fedclust_service.domain.round import FailureReason, RoundState
from fedclust_service.domain.session import Session, SessionState
from fedclust_service.domain.tokens import SIGN_IN_KEPT_FOR
from fedclust_service.store import DataDamaged, DueRound, Ending, Tx, Unwritable
from fedclust_service.usecases import notifications
from fedclust_service.usecases.core import CoordinatorCore, set_apart, survived
from fedclust_service.usecases.definitions import plan_for
from fedclust_service.usecases.round_lifecycle import (
    changes_anything,
    decide_stored_round,
    fail_session,
    rules_of,
    update_round,
)
from fedclust_service.usecases.unit_of_work import COORDINATOR, UnitOfWork, commit

log = structlog.get_logger(__name__)

_TIDIED_EVERY = timedelta(minutes=10)


class Sweeper(BackgroundThread):
    """Runs :func:`end_unsupported` once, :func:`sweep` often and :func:`tidy` less often."""

    def __init__(self, co: CoordinatorCore) -> None:
        super().__init__("fedclust-sweeper")
        self._co = co

    def run(self) -> None:
        """Run in the thread."""
        upgraded = False
        tidied_at: datetime | None = None
        while not self._stopping.is_set():
            with survived("sweeper"):
                if not upgraded:
                    end_unsupported(self._co)
                    upgraded = True
                sweep(self._co)
                if tidied_at is None or self._co.clock.now() >= tidied_at + _TIDIED_EVERY:
                    tidied_at = self._co.clock.now()
                    tidy(self._co)
            self._stopping.wait(self._co.limits.sweep_every_s)


def end_unsupported(co: CoordinatorCore) -> None:
    """End the sessions whose form or method version this program no longer supports."""
    for session in co.store.read("sweep.versions", lambda tx: tx.sessions.not_ended()):
        try:
            plan_for(session)
        except DefinitionError:
            commit(co, "sweep.unsupported", functools.partial(_lock_and_end, session))
        except DataDamaged:  # reported when the session is used
            continue


def _lock_and_end(session: Session, uow: UnitOfWork) -> None:
    current = uow.tx.sessions.get_by_id(session.id, lock=True)
    if current is not None and not current.state.ended:
        fail_session(uow, current, FailureReason.VERSION_UNSUPPORTED)


def sweep(co: CoordinatorCore) -> None:
    """Do everything that is due, unless the database's clock is wrong."""
    with contextlib.suppress(Unwritable):
        co.store.try_failed_write()
    co.clock.check()
    if co.clock.fault is ClockFault.DATABASE:
        return
    now = co.clock.now()
    due = co.store.read("sweep.look", lambda tx: tx.rounds.due(now))
    co.waits = {each.id: co.waits[each.id] for each in due if each.id in co.waits}
    for each in due:
        since, until = co.waits.get(each.id, (None, now))
        # Whatever else changes an overdue round decides on it at once.
        if since is None or since != each.overdue_since or now >= until:
            with set_apart("sweeper", each.id):
                _update_if_due(co, each)
    _scrub(co)


def _update_if_due(co: CoordinatorCore, due: DueRound) -> None:
    # Most late rounds only wait: they are read, and nothing is written.
    until = co.store.read("sweep.judge", functools.partial(_waits_until, due))
    if until is None:
        commit(co, "sweep.round", functools.partial(_lock_and_update, due))
    else:
        co.waits[due.id] = due.overdue_since, until


def _waits_until(due: DueRound, tx: Tx) -> datetime | None:
    """Return when time alone changes a round that only waits; None if it changes now."""
    session, current = tx.sessions.get_by_id(due.session_id), tx.rounds.get_by_id(due.id)
    if session is None or current is None or session.state is not SessionState.RUNNING:
        return tx.now
    try:
        if changes_anything(current, decide_stored_round(tx, session, current)):
            return None
    except DataDamaged:  # update_round fails the session
        return None
    since = current.overdue_since
    return tx.now if since is None else since + rules_of(session, current).fail_after


def _lock_and_update(due: DueRound, uow: UnitOfWork) -> None:
    session = uow.tx.sessions.get_by_id(due.session_id, lock=True)
    current = uow.tx.rounds.get_by_id(due.id)
    if session is None or current is None:
        return
    if session.state is SessionState.RUNNING and current.state is RoundState.COLLECTING:
        update_round(uow, session, current)


def _scrub(co: CoordinatorCore) -> None:
    days = co.limits.retention_days
    if days is None or (days and not co.clock.settled):
        return
    before = co.clock.now() - timedelta(days=days)
    for session in co.store.read("sweep.retention", lambda tx: tx.sessions.to_scrub(before)):
        commit(co, "sweep.scrub", functools.partial(_scrub_session, session))


def _scrub_session(session: Session, uow: UnitOfWork) -> None:
    payloads = uow.tx.submissions.scrub(session.id, uow.now)
    uow.audit(COORDINATOR, "session.scrubbed", session.name, payloads=payloads)


def tidy(co: CoordinatorCore) -> None:
    """Warn of tokens that end soon, each once; remove old notifications and sign-ins.

    Nothing is removed before the time can be trusted.
    """
    now = co.clock.now()
    if co.clock.fault is ClockFault.DATABASE:
        return
    if co.outgoing.senders and NotificationKind.TOKEN_EXPIRING in co.outgoing.kinds:
        by = now + max(TOKEN_WARNINGS)
        for token, owner in co.store.read("sweep.tokens", lambda tx: tx.tokens.expiring(now, by)):
            warn = functools.partial(notifications.token_expiring, owner=owner, token=token)
            commit(co, "sweep.token", warn)
    if co.clock.settled:
        _remove(co, "sweep.notifications", lambda tx: tx.notifications, now - KEPT_FOR)
        _remove(co, "sweep.sign_ins", lambda tx: tx.sign_ins, now - SIGN_IN_KEPT_FOR)


def _remove(co: CoordinatorCore, name: str, rows: Callable[[Tx], Ending], before: datetime) -> None:
    # A write that has nothing to do would pass for a sign that a full disk can be written again.
    if co.store.read(name, lambda tx: rows(tx).to_remove(before)):
        co.store.run_tx(name, lambda tx: rows(tx).remove(before))
