"""The driver: aggregates rounds, each under a lease, outside any transaction.

A driver takes a round that has stopped collecting by writing its lease with a compare-and-set. A
heartbeat renews the lease while the engine computes. The driver writes the outcome only if it still
holds this lease. If a driver dies, its lease expires and another driver takes the round. On SQLite
only one process can run, so a driver that starts need not wait for old leases to expire. If two
drivers compute the same outcome, both get the same bytes and only one writes them.

Several rounds are aggregated at a time: a short one in a thread of this process, long ones in
processes of a pool.
"""

import dataclasses
import functools
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Event
from typing import Any

import structlog

from fedclust.definition import DefinitionError
from fedclust.result.provenance import platform_of
from fedclust.rounds import Plan
from fedclust.rounds.workload import aggregation_seconds
from fedclust.schema.errors import MethodFailure
from fedclust_service.background import BackgroundThread
from fedclust_service.clock import ClockFault
from fedclust_service.domain.round import FailureReason, Round, Submission
from fedclust_service.domain.session import Session, SessionState
from fedclust_service.store import DataDamaged, Store, StoreError, StoreFault, Tx, WaitingRound
from fedclust_service.usecases.access_queries import joined_sites
from fedclust_service.usecases.aggregation import (
    AggregationOutcome,
    AggregationPool,
    Finished,
    Job,
    Opening,
    PooledAggregation,
    ProcessLost,
    Raised,
    StoredAnswer,
    aggregate_round,
)
from fedclust_service.usecases.core import AggregationEnd, CoordinatorCore, set_apart, survived
from fedclust_service.usecases.definitions import masks_of, plan_for, silent_sites, smallest_p
from fedclust_service.usecases.round_lifecycle import (
    FAILURE_MESSAGES,
    check_tasks,
    end_session,
    fail_damaged,
    fail_session,
    hold_session,
    open_round,
)
from fedclust_service.usecases.unit_of_work import COORDINATOR, UnitOfWork, commit

#: The pause between two answers that are sent to a process.
_PAUSE_S = 0.001


@dataclass(frozen=True)
class StoredRound:
    """A round's answers, without payloads if they are read one by one, and every site's p."""

    round_id: int
    answers: Sequence[Submission]
    ps: Mapping[str, int]

    def answer(self, full: Submission) -> StoredAnswer:
        """Return an answer for the aggregation; DataDamaged if its payload is gone."""
        if full.empty is not (full.payload is None):
            raise DataDamaged("submission", full.site)
        return StoredAnswer(full.site, self.ps[full.site], full.payload)

    def one_by_one(self, store: Store, stopping: Event) -> Iterator[StoredAnswer]:
        """Yield the answers of a long round, with a pause after each for other requests.

        Reading holds the interpreter's lock. A pause lets waiting threads wake up; releasing the
        lock for a moment does not.
        """
        for each in self.answers:
            read = functools.partial(_read_answer, self.round_id, each.site)
            yield self.answer(store.read("driver.load_one", read))
            stopping.wait(_PAUSE_S)


def load_round(
    tx: Tx, plan: Plan, session: Session, current: Round, *, whole: bool
) -> tuple[Job, StoredRound]:
    """Read a round; unless ``whole``, without payloads."""
    check_tasks(current, tx.rounds.addressees(current.id))
    participations = tx.participations.list(session.id)
    job = Job(
        session=session.name,
        definition=session.definition,
        number=current.number,
        phase=current.phase,
        state=tx.states.get(session.id, current.number - 1),
        roster=joined_sites(participations),
        masks=masks_of(plan, participations),
        silent=silent_sites(plan, participations),
    )
    smallest = plan.policy.min_group_size
    ps = {each.site: smallest_p(smallest, each) for each in participations}
    read = tx.submissions.list if whole else tx.submissions.summaries
    return job, StoredRound(current.id, read(round_id=current.id), ps)


def _read_answer(round_id: int, site: str, tx: Tx) -> Submission:
    found = tx.submissions.get(round_id, site)
    if found is None:
        raise LookupError("an answer is gone")
    return found


#: Reading so many bytes holds up this process for a second, whatever is computed from them.
_BYTES_PER_S = 50_000_000


class WaitingRounds:
    """Estimates each waiting round once. For one thread at a time."""

    def __init__(self, co: CoordinatorCore) -> None:
        self._co = co
        #: The rounds that waited at the last look: since when, and how long each takes.
        self._known: dict[int, tuple[datetime, float]] = {}

    def in_order(self, now: datetime) -> list[tuple[WaitingRound, bool]]:
        """Return the waiting rounds, each with whether a process of the pool aggregates it.

        The shortest comes first. What a round has waited counts as if it took that much less,
        so none waits for ever.
        """
        waiting, known = self._co.store.read("driver.look", lambda tx: self._look(tx, now))
        self._known = known
        ordered = sorted(
            (each for each in waiting if each.id in known),
            key=lambda each: known[each.id][1] - (now - known[each.id][0]).total_seconds(),
        )
        above_s, after = self._co.limits.pooled_above_s, self._co.limits.pooled_after
        return [(each, known[each.id][1] > above_s or each.attempts >= after) for each in ordered]

    def _look(
        self, tx: Tx, now: datetime
    ) -> tuple[Sequence[WaitingRound], dict[int, tuple[datetime, float]]]:
        waiting, known = tx.rounds.waiting(now), {}
        for each in waiting:
            with set_apart("driver", each.id):
                known[each.id] = self._known.get(each.id) or (now, _estimate(tx, each))
        return waiting, known


def _estimate(tx: Tx, waiting: WaitingRound) -> float:
    """Return how long the session's last round of this phase took, or what the engine expects."""
    count, n_bytes, measured = tx.rounds.effort(waiting)
    if measured is not None:
        return max(measured, n_bytes / _BYTES_PER_S)
    session = tx.sessions.get_by_id(waiting.session_id)
    if session is None:
        return 0.0
    try:
        return aggregation_seconds(plan_for(session), waiting.phase, count, n_bytes)
    except (DataDamaged, DefinitionError):
        # It fails at once, where it is aggregated.
        return 0.0


log = structlog.get_logger(__name__)
#: A round that takes longer in a thread than expected keeps other short ones waiting for so long.
_SHORT_S = 1.0


@dataclasses.dataclass(frozen=True)
class _Work:
    """A round taken under a lease; ``pooled`` if it is aggregated in a process."""

    session: Session
    round: Round
    lease_token: str
    taken_at: datetime
    pooled: PooledAggregation | None
    began: float = dataclasses.field(default_factory=time.perf_counter)


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """The outcome of an aggregation, ready to be written."""

    what: Opening | Finished | MethodFailure | DataDamaged
    metrics: dict[str, float]
    seconds: float


class Driver(BackgroundThread):
    """Takes rounds that wait to be aggregated. Built by the Coordinator."""

    def __init__(self, co: CoordinatorCore) -> None:
        super().__init__("fedclust-driver")
        self._co = co
        self._waiting = WaitingRounds(co)
        self._pool = AggregationPool(co.clock.now)
        #: The rounds taken, by id. One thread adds them, others remove them.
        self._taken: dict[int, _Work] = {}
        self._working: set[threading.Thread] = set()
        #: Whether rounds may wait that nobody has taken, so that one that ends makes a place.
        self._crowded = False

    # --- the thread -------------------------------------------------------------------------------

    def start(self) -> None:
        """Void the leases of a dead process, if it is certain that it is dead; start the thread."""
        if self._co.store.single_process:
            self._co.store.run_tx("driver.take_over", lambda tx: tx.rounds.void_leases())
        super().start()

    def ask_to_stop(self) -> None:
        """Ask the thread to end after short aggregations, and end long ones now. Any thread.

        A long aggregation would hardly be done in time; another driver repeats it.
        """
        super().ask_to_stop()
        self._co.aggregation_due.set()
        for work in self._taken.copy().values():
            self._end(work)

    def join(self, timeout: float | None = None) -> None:
        """Wait for all threads to end; leave aggregations that take longer to another driver."""
        until = time.monotonic() + (timeout or 0.0)
        super().join(timeout)
        for thread in tuple(self._working):
            thread.join(max(0.0, until - time.monotonic()))
        for work in self._taken.copy().values():
            self._end(work)
            self._give_back(work)
        self._pool.end_idle(timedelta(0))

    def _give_back(self, work: _Work) -> None:
        """End a lease early. Its holder can write no more, and no driver has to wait for it."""
        try:
            self._co.store.run_tx(
                "driver.give_back",
                lambda tx: tx.rounds.release_lease(work.round.id, work.lease_token),
            )
        except StoreError as error:
            log.warning("lease_not_given_back", error=type(error).__name__)

    def run(self) -> None:
        """Run in the thread."""
        while not self._stopping.is_set():
            self._co.aggregation_due.clear()
            with survived("driver"):
                while not self._stopping.is_set() and self._begin_next():
                    pass
            self._pool.end_idle()
            if not self._stopping.is_set():
                self._co.aggregation_due.wait(self._co.limits.driver_poll_s)

    def _begin_next(self) -> bool:
        """Begin the first waiting round for which there is a place.

        Returns whether another one may begin.
        """
        work = self._take(self._has_place)
        if work is None:
            return False
        thread = threading.Thread(
            target=self._carry_out_here, args=(work,), name="fedclust-aggregation", daemon=True
        )
        self._working.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the system starts no other thread
            self._working.discard(thread)
            self._forget(work)
            raise
        return self._crowded

    def _has_place(self, pooled: bool) -> bool:
        taken = self._taken.copy().values()
        if pooled:
            count = sum(each.pooled is not None for each in taken)
            return count < self._co.limits.aggregation_processes
        now = time.perf_counter()
        return not any(each.pooled is None and now - each.began < _SHORT_S for each in taken)

    def _carry_out_here(self, work: _Work) -> None:
        try:
            with survived("driver"):
                self._carry_out(work)
        finally:
            self._working.discard(threading.current_thread())
            if self._crowded:
                self._co.aggregation_due.set()

    # --- one round --------------------------------------------------------------------------------

    def run_once(self) -> bool:
        """Aggregate one round in the calling thread; False when none is waiting."""
        work = self._take(lambda _: True)
        if work is not None:
            self._carry_out(work)
        return work is not None

    def _carry_out(self, work: _Work) -> None:
        beating = threading.Event()
        heart = threading.Thread(
            target=self._heartbeat, args=(work, beating), name="fedclust-heartbeat", daemon=True
        )
        try:
            heart.start()
            with structlog.contextvars.bound_contextvars(**_log_fields(work)):
                self._finish(work, self._aggregate(work))
        except ProcessLost:
            if self._stopping.is_set():
                self._give_back(work)
            # As if this driver had died: the lease runs out, and another driver takes over.
            elif work.pooled is not None and not work.pooled.ended:
                log.warning(
                    "aggregation_process_lost", session=work.session.name, round=work.round.number
                )
                commit(self._co, "driver.died", functools.partial(self._count_death, work))
        finally:
            beating.set()
            if heart.ident is not None:  # it was started
                # A renewal under way would keep the lease of a lost process alive once more.
                heart.join()
            self._forget(work)

    def _forget(self, work: _Work) -> None:
        """Let the round be taken again once its lease has run out."""
        self._taken.pop(work.round.id, None)

    def _take(self, has_place: Callable[[bool], bool]) -> _Work | None:
        if self._co.clock.fault is ClockFault.DATABASE:
            # Other drivers would compare the lease with another time.
            return None
        if StoreFault.DAMAGED in self._co.store.faults:
            # The result could not be written.
            return None
        waiting = self._waiting.in_order(self._co.clock.now())
        # Before the places are counted: a round that ends meanwhile then wakes the thread.
        self._crowded = bool(waiting)
        for each, pooled in waiting:
            if each.id in self._taken or not has_place(pooled):
                continue
            with set_apart("driver", each.id):
                lease = functools.partial(self._lease, each, pooled)
                work = commit(self._co, "driver.take", lease)
                if work is not None:
                    self._taken[each.id] = work
                    self._crowded = len(waiting) > 1
                    return work
        return None

    def _lease(self, seen: WaitingRound, pooled: bool, uow: UnitOfWork) -> _Work | None:
        tx, limits = uow.tx, self._co.limits
        session = tx.sessions.get_by_id(seen.session_id, lock=True)
        if session is None or session.state is not SessionState.RUNNING:
            return None
        token, until = secrets.token_hex(16), uow.now + timedelta(seconds=limits.lease_s)
        current = tx.rounds.take_lease(
            seen.id, uow.now, token=token, holder=self._co.holder, expires_at=until
        )
        if current is None:
            return None
        if current.attempts > 1:
            uow.audit(
                COORDINATOR,
                "round.taken_over",
                session.name,
                round=current.number,
                attempt=current.attempts,
            )
        process = PooledAggregation(self._pool) if pooled else None
        return _Work(session, current, token, uow.now, process)

    def _aggregate(self, work: _Work) -> _Outcome:
        """Compute; whatever goes wrong is an outcome, except StoreError and ProcessLost."""
        try:
            plan = plan_for(work.session)
            whole = work.pooled is None
            job, stored = self._co.store.read(
                "driver.load",
                lambda tx: load_round(tx, plan, work.session, work.round, whole=whole),
            )
            began = time.perf_counter()
            computed = self._compute(plan, work, job, stored)
        except DefinitionError:
            return _Outcome(_failure(FailureReason.VERSION_UNSUPPORTED), {}, 0.0)
        except DataDamaged as damage:
            return _Outcome(damage, {}, 0.0)
        seconds = time.perf_counter() - began
        what = computed.what
        if isinstance(what, Raised):  # whatever a method raises fails only its own session
            log.error(
                "aggregation_error",
                method=work.session.algorithm,
                error=what.error,
                raised=list(what.where),
            )
            what = _failure(FailureReason.AGGREGATION_ERROR)
        return _Outcome(what, computed.metrics, seconds)

    def _compute(
        self, plan: Plan, work: _Work, job: Job, stored: StoredRound
    ) -> AggregationOutcome:
        """Compute a short round here and a long one in a process; the bytes are the same."""
        full = stored.answers
        if work.pooled is not None:
            try:
                return work.pooled.run(
                    job, len(full), stored.one_by_one(self._co.store, self._stopping)
                )
            except OSError:  # no process could be started
                log.warning("aggregation_process_not_started", session=job.session)
            full = self._co.store.read("driver.load", lambda tx: tx.submissions.list(work.round.id))
        return aggregate_round(plan, job, [stored.answer(each) for each in full])

    def _count_death(self, work: _Work, uow: UnitOfWork) -> None:
        """Count a process that died while it aggregated, and hold the session after too many."""
        found = _still_held(uow.tx, work)
        if found is None:
            return
        session = dataclasses.replace(found, deaths=found.deaths + 1)
        number, deaths = work.round.number, session.deaths
        uow.audit(COORDINATOR, "round.process_died", session.name, round=number, deaths=deaths)
        if deaths < self._co.limits.max_deaths:
            uow.tx.sessions.update(session)
        else:
            uow.tx.rounds.release_lease(work.round.id, work.lease_token)
            hold_session(uow, session, work.round)

    def _finish(self, work: _Work, outcome: _Outcome) -> None:
        finish = functools.partial(self._write, work, outcome)
        end: AggregationEnd = commit(self._co, "driver.finish", finish)
        self._co.observer.aggregated(work.session.algorithm, end, outcome.seconds)

    def _write(self, work: _Work, outcome: _Outcome, uow: UnitOfWork) -> AggregationEnd:
        tx = uow.tx
        fails = isinstance(outcome.what, DataDamaged | MethodFailure)
        # Below, `finish` asks for the lease itself.
        session = (
            _still_held(tx, work) if fails else tx.sessions.get_by_id(work.session.id, lock=True)
        )
        if session is None:
            # Cancelled, failed, timed out, or another driver's by now: write nothing.
            return "lost"
        if isinstance(outcome.what, DataDamaged):
            fail_damaged(uow, session, work.round.number, outcome.what)
            return "failed"
        if isinstance(outcome.what, MethodFailure):
            reason, message = outcome.what.reason, outcome.what.message
            end_session(uow, session, SessionState.FAILED, reason=reason, failure=message)
            return "failed"
        done = outcome.seconds, outcome.metrics
        if not tx.rounds.finish(work.round.id, work.lease_token, *done):
            return "lost"
        uow.audit(COORDINATOR, "round.closed", session.name, round=work.round.number)
        if session.deaths:
            session = dataclasses.replace(session, deaths=0)
            tx.sessions.update(session)
        if isinstance(outcome.what, Opening):
            open_round(uow, session, outcome.what)
            return "written"
        platform = platform_of(session.algorithm)
        tx.results.put(session.id, outcome.what.result, platform, uow.now)
        end_session(uow, session, SessionState.COMPLETED, reason=outcome.what.stopped_because)
        return "written"

    # --- the lease --------------------------------------------------------------------------------

    def _heartbeat(self, work: _Work, done: threading.Event) -> None:
        """Renew the lease until the work is ``done`` or has taken too long."""
        structlog.contextvars.bind_contextvars(**_log_fields(work))
        limits = self._co.limits
        until = work.taken_at + timedelta(seconds=limits.aggregation_timeout_s)
        while not done.wait(limits.beat_s):
            if self._stopping.is_set():
                return
            now = self._co.clock.now()
            try:
                if now >= until:
                    commit(self._co, "driver.time_out", functools.partial(_time_out, work))
                    self._end(work)
                    return
                renew = functools.partial(_renew, work, now + timedelta(seconds=limits.lease_s))
                if not self._co.store.run_tx("driver.renew", renew):
                    # Cancelled, failed, or another driver's by now: nothing could be written.
                    self._end(work)
                    return
            except StoreError as error:
                # The next beat tries again. The lease holds as long as its token is stored.
                log.warning("lease_not_renewed", error=type(error).__name__)

    def _end(self, work: _Work) -> None:
        """End a computation that is not wanted any more, if it has a process of its own."""
        if work.pooled is not None:
            work.pooled.end()


def _log_fields(work: _Work) -> dict[str, Any]:
    return {"session": work.session.name, "round": work.round.number}


def _failure(reason: FailureReason) -> MethodFailure:
    return MethodFailure(reason.value, FAILURE_MESSAGES[reason])


def _still_held(tx: Tx, work: _Work) -> Session | None:
    """Return the session, locked, if the lease is still the same one."""
    session = tx.sessions.get_by_id(work.session.id, lock=True)
    current = tx.rounds.get_by_id(work.round.id)
    if session is None or session.state is not SessionState.RUNNING:
        return None
    if current is None or current.lease_token != work.lease_token:
        return None
    return session


def _renew(work: _Work, expires_at: datetime, tx: Tx) -> bool:
    return tx.rounds.renew_lease(work.round.id, work.lease_token, expires_at)


def _time_out(work: _Work, uow: UnitOfWork) -> None:
    held = _still_held(uow.tx, work)
    if held is not None:
        fail_session(uow, held, FailureReason.AGGREGATION_TIMEOUT)
