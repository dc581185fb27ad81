"""Aggregate one round: from records of the database to the records to store.

:func:`aggregate_round` is pure: no store, no clock, no logs. It runs in a thread for rounds that
take a moment, and in a process for the others, so that requests and other rounds go on.

A process (:data:`COMMAND`) aggregates one round after the other. A job goes through its standard
input and the outcome through its standard output, as length-prefixed frames of the binary form.
Nothing is pickled, and standard error stays empty. The process runs at low priority with one
numerical thread and without fedclust's settings. It ends when it is killed or when its input
closes, also in the middle of a round, so it never outlives the coordinator.
"""

import contextlib
import hashlib
import math
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import IO, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedclust import rounds
from fedclust.definition import plan_of, read_definition
from fedclust.rounds import EngineState, Plan
from fedclust.schema.errors import MethodFailure
from fedclust.schema.task import Contribution, Done, Next
from fedclust.wire import codec
from fedclust.wire.submissions import payload_from_bytes
from fedclust_service.logging import exception_chain


@dataclass(frozen=True)
class Opening:
    """A round that is ready to be opened, encoded for the database."""

    number: int
    phase: str
    needs_all: bool
    common: bytes
    parts: Mapping[str, tuple[bytes, str]]
    state: bytes
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finished:
    """A result, encoded."""

    result: bytes
    stopped_because: str


@dataclass(frozen=True)
class Raised:
    """The type and place of an exception that a method raised; its text may repeat a value."""

    error: str
    where: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """A round to aggregate, without its answers.

    ``definition`` is frozen, ``state`` the engine's, encoded. ``roster`` are the sites that take
    part now, sorted; ``masks`` has for each site the features (d,) that it has; ``silent`` are the
    sites that joined without enough points to answer about outcomes.
    """

    session: str
    definition: bytes
    number: int
    phase: str
    state: bytes | None
    roster: tuple[str, ...]
    masks: Mapping[str, NDArray[np.bool_]]
    silent: tuple[str, ...]


class StoredAnswer(NamedTuple):
    """A stored answer; ``payload`` is None if it is empty, ``p`` holds at its site."""

    site: str
    p: int
    payload: bytes | None


@dataclass(frozen=True)
class AggregationOutcome:
    """The outcome of an aggregation and the method's finite metrics."""

    what: Opening | Finished | MethodFailure | Raised
    metrics: dict[str, float]


def aggregate_round(plan: Plan, job: Job, answers: Iterable[StoredAnswer]) -> AggregationOutcome:
    """Aggregate a round; an exception of the method is an outcome too.

    ``plan`` is that of ``job.definition``; ``answers`` come in any order.
    """
    metrics: dict[str, float] = {}
    try:
        step = _step(plan, job, answers)
        metrics = {name: float(value) for name, value in step.metrics.items()}
        metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return AggregationOutcome(_ready(plan, job, step), metrics)
    except MethodFailure as failure:
        return AggregationOutcome(failure, metrics)
    except Exception as error:
        return AggregationOutcome(
            Raised(type(error).__name__, tuple(exception_chain(error))), metrics
        )


def _step(plan: Plan, job: Job, answers: Iterable[StoredAnswer]) -> Next | Done:
    phase = rounds.phase(plan, job.phase)
    if job.state is None:
        raise LookupError("the round has no state")
    contributions = [
        Contribution(each.site, payload_from_bytes(phase, each.payload), each.p) for each in answers
    ]
    state = codec.decode_model(EngineState, job.state)
    return rounds.advance(plan, state, contributions, job.roster, job.masks, job.silent)


def _ready(plan: Plan, job: Job, step: Next | Done) -> Opening | Finished:
    if isinstance(step, Done):
        return Finished(codec.encode_model(step.result), step.result.stopped_because)
    return encode_opening(job.session, plan, job.number + 1, job.roster, step)


def encode_opening(
    session: str, plan: Plan, number: int, roster: Sequence[str], following: Next
) -> Opening:
    """Encode the engine's next task for storage and for the sites."""
    task = following.task
    sites = sorted(task.sites if task.sites is not None else roster)
    common, _ = rounds.write_task(plan, session, number, task, None)
    shared = codec.encode(common)
    own = [codec.encode(rounds.write_task(plan, session, number, task, site)[1]) for site in sites]
    parts = zip(own, task_digests(shared, own), strict=True)
    return Opening(
        number=number,
        phase=task.phase,
        needs_all=task.needs_all or rounds.phase(plan, task.phase).needs_all,
        common=shared,
        parts=dict(zip(sites, parts, strict=True)),
        state=codec.encode_model(following.state),
        warnings=following.warnings,
    )


def task_digests(common: bytes, parts: Iterable[bytes]) -> Iterator[str]:
    """Yield `codec.task_digest` of the common part with each site's part, from canonical bytes.

    The common part is hashed only once: it may be long, and there may be many sites.
    """
    # The binary form of a map with two sorted keys.
    begun = hashlib.sha256(b"\x82\xa6common" + common + b"\xa4site")
    for part in parts:
        digest = begun.copy()
        digest.update(part)
        yield digest.hexdigest()


#: ``-P``: never import modules from the folder that the server runs in.
COMMAND: tuple[str, ...] = (
    sys.executable,
    "-P",
    "-m",
    "fedclust_service.usecases.aggregation",
)
_NICE = 10
# On Windows the standard library can set a priority only when it starts a process.
_LOW_PRIORITY = int(getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0))
#: A process that has had no round for this long is ended: it holds about 100 MB.
_IDLE_FOR = timedelta(minutes=1)
_LENGTH = struct.Struct(">Q")
_KINDS = {"opening": Opening, "finished": Finished, "failure": MethodFailure, "raised": Raised}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class ProcessLost(Exception):
    """The process ended without an outcome."""


# --- at the driver --------------------------------------------------------------------------------


class AggregationPool:
    """Processes that were started and have no round at the moment. Any thread may use it."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._idle: list[tuple[datetime, subprocess.Popen[bytes]]] = []

    def take(self) -> subprocess.Popen[bytes]:
        """Return a process that waits for a job; OSError if the system starts no other."""
        while True:
            with self._lock:
                found = self._idle.pop()[1] if self._idle else None
            if found is None:
                return _start()
            if found.poll() is None:
                return found
            _end(found)

    def give_back(self, process: subprocess.Popen[bytes]) -> None:
        """Keep a process for the next round."""
        with self._lock:
            self._idle.append((self._now(), process))

    def end_idle(self, idle_for: timedelta = _IDLE_FOR) -> None:
        """End the processes that have had no round for so long."""
        before = self._now() - idle_for
        with self._lock:
            ended = [process for since, process in self._idle if since <= before]
            self._idle = [each for each in self._idle if each[0] > before]
        for process in ended:
            _end(process)


class PooledAggregation:
    """The aggregation of one round in a process: :meth:`run` in one thread, :meth:`end` from any.

    ``ended`` says whether :meth:`end` was called.
    """

    def __init__(self, pool: AggregationPool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.ended = False

    def run(self, job: Job, count: int, answers: Iterable[StoredAnswer]) -> AggregationOutcome:
        """Compute in a process of the pool.

        ``answers``, in all ``count``, are read one by one: together they may be large. The caller
        gets their exceptions, except OSError.

        Raises
        ------
        OSError
            No process could be started, and ``answers`` was not read.
        ProcessLost
            The process died or was ended.
        """
        process = self._pool.take()
        with self._lock:
            self._process = process
            if self.ended:
                process.kill()
        done = False
        try:
            _send_job(cast("IO[bytes]", process.stdin), job, count, answers)
            outcome = _decode_outcome(codec.decode(_receive(cast("IO[bytes]", process.stdout))))
            done = True
            return outcome
        except (OSError, EOFError):
            raise ProcessLost from None
        finally:
            with self._lock:
                self._process = None
                keep = done and not self.ended
            if keep:
                self._pool.give_back(process)
            else:
                _end(process)

    def end(self) -> None:
        """Kill the process; if there is none yet, the next one."""
        with self._lock:
            self.ended = True
            if self._process is not None:
                self._process.kill()


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own program, no shell
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # A traceback may hold what sites sent.
        stderr=subprocess.DEVNULL,
        env=_environment_without_secrets(),
        creationflags=_LOW_PRIORITY,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _environment_without_secrets() -> dict[str, str]:
    """Return this environment without the secret key and the database's password."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FEDCLUST_")}
    return {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _send_job(pipe: IO[bytes], job: Job, count: int, answers: Iterable[StoredAnswer]) -> None:
    head: Any = {**vars(job), "masks": dict(job.masks), "answers": count}
    _send(pipe, codec.encode(head))
    for each in answers:
        _send(pipe, codec.encode(each))
    pipe.flush()


def _decode_outcome(tree: Any) -> AggregationOutcome:
    return AggregationOutcome(_KINDS[tree["kind"]](**tree["what"]), tree["metrics"])


# --- frames ---------------------------------------------------------------------------------------


def _send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)


def _receive(pipe: IO[bytes]) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(pipe, _LENGTH.size))
    return _exactly(pipe, length)


def _exactly(pipe: IO[bytes], length: int) -> bytes:
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return data


# --- in the process -------------------------------------------------------------------------------


def main() -> None:
    """Read jobs from standard input, and write each outcome to standard output."""
    # These reach all processes of a terminal or a service: the coordinator decides what ends.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if sys.platform != "win32":
        os.nice(_NICE)
    # At most one frame waits: together they may be large.
    frames: queue.Queue[bytes] = queue.Queue(maxsize=1)
    threading.Thread(target=_read_frames, args=(sys.stdin.buffer, frames), daemon=True).start()
    with os.fdopen(os.dup(1), "wb") as outcomes:
        # A library's prints must not mix with the frames.
        os.dup2(2, 1)
        while True:
            _send(outcomes, codec.encode(_aggregate_next(frames)))
            outcomes.flush()


def _read_frames(jobs: IO[bytes], frames: queue.Queue[bytes]) -> None:
    """Read ahead, so that the end of the coordinator is noticed in the middle of a round."""
    try:
        while True:
            frames.put(_receive(jobs))
    finally:
        os._exit(1)


def _aggregate_next(frames: queue.Queue[bytes]) -> Any:
    head: Any = codec.decode(frames.get())
    answers = _receive_answers(frames, head.pop("answers"))
    job = Job(**head)
    computed = aggregate_round(plan_of(read_definition(job.definition)), job, answers)
    for _ in answers:
        # Of a round that failed before it had read them all.
        pass
    return {
        "kind": _NAMES[type(computed.what)],
        "what": vars(computed.what),
        "metrics": computed.metrics,
    }


def _receive_answers(frames: queue.Queue[bytes], count: int) -> Iterator[StoredAnswer]:
    for _ in range(count):
        answer: Any = codec.decode(frames.get())
        yield StoredAnswer(*answer)


if __name__ == "__main__":
    main()
