"""The driver: aggregates rounds, each under a lease, outside any transaction.

A round that has stopped collecting is taken by one driver: a compare-and-set writes its lease. A
heartbeat renews the lease while the engine computes, and the result is written only if the lease
is still the same one. A driver that dies leaves a lease that runs out, and another takes over; on
SQLite no other process can be alive, so a starting one takes over at once. What was computed twice
is the same twice, and is written once.
"""

from __future__ import annotations

import dataclasses
import functools
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from fedclust.algorithms.engine import Plan
from fedclust.definition import DefinitionError
from fedclust_service.clock import ClockFault
from fedclust_service.domain.round import (
    ROUND_TRANSITIONS,
    FailureReason,
    Lease,
    Round,
    RoundState,
)
from fedclust_service.domain.session import Session, SessionState
from fedclust_service.domain.submission import Submission
from fedclust_service.domain.transition import advance
from fedclust_service.orchestration.aggregation import (
    Answer,
    Computed,
    Failure,
    Finished,
    Job,
    Opening,
    Raised,
    compute,
    task_digests,
)
from fedclust_service.orchestration.change import COORDINATOR, Change, commit
from fedclust_service.orchestration.closing import MESSAGES, end_session, fail_damaged
from fedclust_service.orchestration.lookup import joined_of, masks_of, plan_for, smallest_p
from fedclust_service.orchestration.observer import AggregationEnd
from fedclust_service.orchestration.opening import open_round
from fedclust_service.orchestration.process import AggregationProcess, NotStarted, ProcessLost
from fedclust_service.orchestration.provenance import platform_of
from fedclust_service.store import DataDamaged, StoreError, StoreFault, Tx

if TYPE_CHECKING:
    from fedclust_service.orchestration.coordinator import Coordinator

log = structlog.get_logger(__name__)
#: Between two answers that are handed to a process.
_PAUSE_S = 0.001


@dataclasses.dataclass(frozen=True)
class _Work:
    """A round taken under a lease."""

    session: Session
    round: Round
    lease: Lease
    taken_at: datetime


@dataclasses.dataclass(frozen=True)
class _Stored:
    """A round's answers, without payloads where it is large, and every site's p."""

    answers: Sequence[Submission]
    ps: Mapping[str, int]
    large: bool

    def answer(self, full: Submission) -> Answer:
        if full.empty is not (full.payload is None):
            raise DataDamaged("submission", full.site)
        return Answer(full.site, self.ps[full.site], full.payload)


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """What an aggregation came to, ready to be written."""

    what: Opening | Finished | Failure | DataDamaged
    metrics: dict[str, float]
    seconds: float


class Driver:
    """Takes rounds that wait to be aggregated. Built by the Coordinator."""

    def __init__(self, co: Coordinator) -> None:
        self._co = co
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        #: The rounds taken, each with its process; None while it is being taken.
        self._in_hand: dict[int, tuple[_Work, AggregationProcess] | None] = {}

    # --- the thread -------------------------------------------------------------------------------

    def start(self) -> None:
        """Take over what a dead process left, where that is certain; start the worker thread."""
        if self._co.store.single_process:
            commit(self._co, "driver.take_over", self._void_leases)
        self._start_worker()

    def wake(self) -> None:
        """Look for work now. Any thread."""
        self._wake.set()

    def ask_to_stop(self) -> None:
        """Have the worker thread end after the small aggregation that it is in. Any thread.

        A large one ends now: it would hardly be done in time, and is done anew elsewhere.
        """
        self._stopping.set()
        self._wake.set()
        for _, process in self._taken():
            process.end()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the worker thread. An aggregation that goes on longer is left to another process."""
        self.ask_to_stop()
        with self._lock:
            worker = self._worker
        if worker is not None:
            worker.join(timeout_s)
        for work, _ in self._taken():
            self._give_back(work)

    def _taken(self) -> list[tuple[_Work, AggregationProcess]]:
        with self._lock:
            return [each for each in self._in_hand.values() if each is not None]

    def _give_back(self, work: _Work) -> None:
        """End a lease, so that nobody waits for it to run out; its holder can write no more."""
        try:
            self._co.store.run_tx(
                "driver.give_back",
                lambda tx: tx.rounds.release_lease(work.round.id, work.lease.token),
            )
        except StoreError as error:
            log.warning("lease_not_given_back", error=type(error).__name__)

    @property
    def alive(self) -> bool:
        """Whether the worker thread runs."""
        with self._lock:
            return self._worker is not None and self._worker.is_alive()

    def _start_worker(self) -> None:
        # Daemon: an aggregation that does not end must not keep the process from ending.
        worker = threading.Thread(target=self._run, name="fedclust-driver", daemon=True)
        with self._lock:
            self._worker = worker
        worker.start()

    def _run(self) -> None:
        while self._current():
            self._wake.clear()
            try:
                while self._current() and self.run_once():
                    pass
            except StoreError as error:
                log.warning("driver_store_error", error=type(error).__name__)
            except Exception as error:  # the thread outlives every defect; the round does not
                log.error("driver_error", error=type(error).__name__, exc_info=error)
            if not self._current():
                return
            self._wake.wait(self._co.limits.driver_poll_s)

    def _current(self) -> bool:
        """Whether the calling worker should go on: it has not been replaced nor told to stop."""
        with self._lock:
            mine = self._worker is threading.current_thread()
        return mine and not self._stopping.is_set()

    def _void_leases(self, change: Change) -> None:
        for each in change.tx.rounds.aggregating():
            if each.lease is not None and each.lease.holder != self._co.holder:
                change.tx.rounds.release_lease(each.id, each.lease.token)

    # --- one round --------------------------------------------------------------------------------

    def run_once(self) -> bool:
        """Aggregate one round in the calling thread; False when none is waiting."""
        work = self._take()
        if work is None:
            return False
        beating, process = threading.Event(), AggregationProcess()
        with self._lock:
            self._in_hand[work.round.id] = (work, process)
        heart = threading.Thread(
            target=self._beat, args=(work, process, beating), name="fedclust-heartbeat", daemon=True
        )
        heart.start()
        try:
            with _logged_as(work):
                self._finish(work, self._aggregate(work, process))
        except ProcessLost:
            if self._stopping.is_set():
                self._give_back(work)
            # As if this driver had died: the lease runs out, and whoever finds that takes it over.
            elif not process.ended:
                log.warning(
                    "aggregation_process_lost", session=work.session.name, round=work.round.number
                )
        finally:
            beating.set()
            with self._lock:
                self._in_hand.pop(work.round.id, None)
        return True

    def _take(self) -> _Work | None:
        if self._co.clock.fault is ClockFault.DATABASE:
            # Other workers would read another time in the lease.
            return None
        if StoreFault.DAMAGED in self._co.store.faults:
            # Nothing could be written of it.
            return None
        now = self._co.clock.now()
        waiting = self._co.store.read("driver.look", lambda tx: tx.rounds.aggregating())
        for each in waiting:
            if each.lease is not None and each.lease.expires_at > now:
                continue
            with self._lock:
                if each.id in self._in_hand:
                    continue
                self._in_hand[each.id] = None
            work: _Work | None = None
            try:
                work = commit(self._co, "driver.take", functools.partial(self._lease, each))
            except Exception as error:  # a round that cannot be taken keeps no other one waiting
                if isinstance(error, StoreError) and not isinstance(error, DataDamaged):
                    raise
                log.error(
                    "driver_error", round_id=each.id, error=type(error).__name__, exc_info=error
                )
            finally:
                if work is None:
                    with self._lock:
                        self._in_hand.pop(each.id, None)
            if work is not None:
                return work
        return None

    def _lease(self, seen: Round, change: Change) -> _Work | None:
        tx, limits = change.tx, self._co.limits
        session = tx.sessions.lock_by_id(seen.session_id)
        current = tx.rounds.get_by_id(seen.id)
        if session is None or current is None or current.state is not RoundState.AGGREGATING:
            return None
        if current.lease is not None and current.lease.expires_at > change.now:
            return None
        if current.attempts >= limits.max_attempts:
            _fail(change, session, _failure(FailureReason.AGGREGATION_ABANDONED))
            return None
        lease = Lease(
            token=secrets.token_hex(16),
            holder=self._co.holder,
            expires_at=change.now + timedelta(seconds=limits.lease_s),
        )
        if not tx.rounds.take_lease(current.id, lease, change.now):
            return None
        if current.attempts:
            change.audit(
                COORDINATOR,
                "round.taken_over",
                session.name,
                round=current.number,
                attempt=current.attempts + 1,
            )
        return _Work(session, current, lease, change.now)

    def _aggregate(self, work: _Work, process: AggregationProcess) -> _Outcome:
        """Compute; every way that this can end but two is an outcome.

        Raises
        ------
        StoreError
        ProcessLost
        """
        most = self._co.limits.aggregation_process_bytes
        try:
            plan = plan_for(work.session)
            job, stored = self._co.store.read("driver.load", lambda tx: _load(tx, plan, work, most))
            began = time.perf_counter()
            computed = self._compute(plan, work, job, stored, process)
        except DefinitionError:
            return _Outcome(_failure(FailureReason.METHOD_VERSION_UNSUPPORTED), {}, 0.0)
        except DataDamaged as damage:
            return _Outcome(damage, {}, 0.0)
        seconds = time.perf_counter() - began
        what = computed.what
        if isinstance(what, Raised):  # whatever a method raises fails its own session alone
            log.error(
                "aggregation_error",
                method=work.session.algorithm,
                error=what.error,
                raised=list(what.where),
            )
            what = _failure(FailureReason.AGGREGATION_ERROR)
        return _Outcome(what, computed.metrics, seconds)

    def _compute(
        self, plan: Plan, work: _Work, job: Job, stored: _Stored, process: AggregationProcess
    ) -> Computed:
        """Compute here what is small, in a process what is large: the bytes are the same."""
        full = stored.answers
        if stored.large:
            try:
                return process.run(job, len(stored.answers), self._one_by_one(work, stored))
            except NotStarted:
                log.warning("aggregation_process_not_started", session=job.session)
            full = self._co.store.read("driver.load", lambda tx: tx.submissions.list(work.round.id))
        return compute(plan, job, [stored.answer(each) for each in full])

    def _one_by_one(self, work: _Work, stored: _Stored) -> Iterator[Answer]:
        """Yield the answers of a large round. Between two of them requests get their turn.

        Reading keeps the interpreter to itself; a pause, unlike a mere release of its lock, lets
        the threads that wait for it wake up.
        """
        for each in stored.answers:
            read = functools.partial(_read_answer, work.round.id, each.site)
            yield stored.answer(self._co.store.read("driver.load_one", read))
            self._stopping.wait(_PAUSE_S)

    def _finish(self, work: _Work, outcome: _Outcome) -> None:
        end = commit(self._co, "driver.finish", lambda change: self._write(change, work, outcome))
        self._co.observer.aggregated(work.session.algorithm, end, outcome.seconds)

    def _write(self, change: Change, work: _Work, outcome: _Outcome) -> AggregationEnd:
        tx = change.tx
        held = _still_held(tx, work)
        if held is None:
            # Cancelled, failed, timed out, or another driver's by now: nothing of this is written.
            return "lost"
        session, current = held
        if isinstance(outcome.what, DataDamaged):
            fail_damaged(change, session, current.number, outcome.what)
            return "failed"
        if isinstance(outcome.what, Failure):
            _fail(change, session, outcome.what)
            return "failed"
        closed = advance(ROUND_TRANSITIONS, current.state, RoundState.CLOSED)
        if not tx.rounds.finish(
            work.round.id,
            work.lease.token,
            closed,
            closed_at=change.now,
            aggregation_s=outcome.seconds,
            metrics=outcome.metrics,
        ):
            return "lost"
        change.audit(COORDINATOR, "round.closed", session.name, round=work.round.number)
        if isinstance(outcome.what, Opening):
            open_round(change, session, outcome.what)
            return "written"
        tx.results.put(session.id, outcome.what.result, platform_of(), change.now)
        end_session(change, session, SessionState.COMPLETED, reason=outcome.what.stopped_because)
        return "written"

    # --- the lease --------------------------------------------------------------------------------

    def _beat(self, work: _Work, process: AggregationProcess, done: threading.Event) -> None:
        with _logged_as(work):
            self._keep(work, process, done)

    def _keep(self, work: _Work, process: AggregationProcess, done: threading.Event) -> None:
        limits = self._co.limits
        until = work.taken_at + timedelta(seconds=limits.aggregation_timeout_s)
        while not done.wait(limits.beat_s):
            if self._stopping.is_set():
                return
            now = self._co.clock.now()
            try:
                if now >= until:
                    commit(self._co, "driver.time_out", lambda change: _time_out(change, work))
                    process.end()
                    self._replace_worker()
                    return
                renew = functools.partial(_renew, work, now + timedelta(seconds=limits.lease_s))
                if not self._co.store.run_tx("driver.renew", renew):
                    # Cancelled, failed, or another driver's by now: nothing could be written.
                    process.end()
                    return
            except StoreError as error:
                # Tried again at the next beat: nobody has taken over as long as the token stands.
                log.warning("lease_not_renewed", error=type(error).__name__)

    def _replace_worker(self) -> None:
        """Leave a worker that is stuck in an aggregation to itself: other sessions go on."""
        with self._lock:
            stuck = self._worker
        if stuck is not None and not self._stopping.is_set():
            self._start_worker()


def _logged_as(work: _Work) -> AbstractContextManager[object]:
    """Have every log line of this thread name the round that it is about."""
    return structlog.contextvars.bound_contextvars(
        session=work.session.name, round=work.round.number
    )


def _load(tx: Tx, plan: Plan, work: _Work, most: int) -> tuple[Job, _Stored]:
    """Read a round; of ``most`` bytes or more, what its sites sent is left to be read singly."""
    _check_tasks(tx, work.round)
    participations = tx.participations.list(work.session.id)
    state = tx.states.get(work.session.id, work.round.number - 1)
    job = Job(
        session=work.session.name,
        definition=work.session.definition,
        number=work.round.number,
        phase=work.round.phase,
        state=None if state is None else state.state,
        roster=joined_of(participations),
        masks=masks_of(plan, participations),
    )
    smallest = plan.policy.min_group_size
    ps = {each.site: smallest_p(smallest, each) for each in participations}
    large = len(job.state or b"") + tx.submissions.size(work.round.id) >= most
    read = tx.submissions.summaries if large else tx.submissions.list
    return job, _Stored(read(round_id=work.round.id), ps, large)


def _check_tasks(tx: Tx, current: Round) -> None:
    """Raise DataDamaged unless every site was given the task that its digest stands for."""
    asked = tx.rounds.addressees(current.id)
    digests = task_digests(current.common, (each.site_part for each in asked))
    for each, digest in zip(asked, digests, strict=True):
        if digest != each.task_digest:
            raise DataDamaged("task", each.site)


def _read_answer(round_id: int, site: str, tx: Tx) -> Submission:
    found = tx.submissions.get(round_id, site)
    if found is None:
        raise LookupError("an answer is gone")
    return found


def _failure(reason: FailureReason) -> Failure:
    return Failure(reason.value, MESSAGES[reason])


def _fail(change: Change, session: Session, failure: Failure) -> None:
    end_session(
        change, session, SessionState.FAILED, reason=failure.reason, failure=failure.message
    )


def _still_held(tx: Tx, work: _Work) -> tuple[Session, Round] | None:
    """Return session and round, locked, where the lease is still this taking's."""
    session = tx.sessions.lock_by_id(work.session.id)
    current = tx.rounds.get_by_id(work.round.id)
    if session is None or session.state is not SessionState.RUNNING:
        return None
    if current is None or current.lease is None or current.lease.token != work.lease.token:
        return None
    return session, current


def _renew(work: _Work, expires_at: datetime, tx: Tx) -> bool:
    return tx.rounds.renew_lease(work.round.id, work.lease.token, expires_at)


def _time_out(change: Change, work: _Work) -> None:
    held = _still_held(change.tx, work)
    if held is not None:
        _fail(change, held[0], _failure(FailureReason.AGGREGATION_TIMEOUT))
