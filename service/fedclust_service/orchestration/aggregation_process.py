"""A large aggregation in its own process, so that requests are answered meanwhile.

The driver starts one process for one round (:data:`COMMAND`). The job goes through its standard
input and the outcome through its standard output, as length-prefixed frames of the binary form.
Nothing is pickled, and standard error stays empty. The process runs at low priority with one
numerical thread and without fedclust's settings. It ends after its answer, when it is killed, or
when its input closes, so it never outlives the coordinator.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Any, cast

from fedclust.definition import plan_of, read_definition
from fedclust.wire import codec
from fedclust_service.orchestration.aggregation import (
    AggregationOutcome,
    Failure,
    Finished,
    Job,
    Opening,
    Raised,
    StoredAnswer,
    aggregate_round,
)

#: ``-P``: never import modules from the folder that the server runs in.
COMMAND: tuple[str, ...] = (
    sys.executable,
    "-P",
    "-m",
    "fedclust_service.orchestration.aggregation_process",
)
_NICE = 10
# On Windows the standard library can set a priority only when it starts a process.
_LOW_PRIORITY = int(getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0))
_LENGTH = struct.Struct(">Q")
_KINDS = {"opening": Opening, "finished": Finished, "failure": Failure, "raised": Raised}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class NotStarted(Exception):
    """The operating system did not start the process."""


class ProcessLost(Exception):
    """The process ended without an outcome."""


# --- at the driver --------------------------------------------------------------------------------


class AggregationProcess:
    """One round's process: :meth:`run` in one thread, :meth:`end` from any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False

    @property
    def pid(self) -> int | None:
        """The process's number, while there is one."""
        with self._lock:
            return None if self._process is None else self._process.pid

    @property
    def ended(self) -> bool:
        """Whether :meth:`end` was called."""
        with self._lock:
            return self._ended

    def run(self, job: Job, count: int, answers: Iterable[StoredAnswer]) -> AggregationOutcome:
        """Compute in the process.

        ``answers``, in all ``count``, are read one by one: together they may be large. The caller
        gets their exceptions, except OSError.

        Raises
        ------
        NotStarted
            ``answers`` was not read.
        ProcessLost
            The process died or was ended.
        """
        process = self._start()
        jobs, outcomes = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        try:
            # A process that failed early stops reading, but still sends its outcome.
            with contextlib.suppress(OSError):
                _send_job(jobs, job, count, answers)
            return _decode_outcome(codec.decode(_receive(outcomes)))
        except (OSError, EOFError):
            raise ProcessLost from None
        finally:
            with self._lock:
                self._process = None
                process.kill()
                process.wait()
            for pipe in (jobs, outcomes):
                with contextlib.suppress(OSError):
                    pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._ended:
                raise ProcessLost
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own program, no shell
                    COMMAND,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    # A traceback may hold what sites sent.
                    stderr=subprocess.DEVNULL,
                    env=_environment_without_secrets(),
                    creationflags=_LOW_PRIORITY,
                )
            except OSError:
                raise NotStarted from None
            return self._process

    def end(self) -> None:
        """Kill the process; if none runs yet, none will start."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.kill()


def _environment_without_secrets() -> dict[str, str]:
    """Return this environment without the secret key and the database's password."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FEDCLUST_")}
    return {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _send_job(pipe: IO[bytes], job: Job, count: int, answers: Iterable[StoredAnswer]) -> None:
    head: Any = {**vars(job), "masks": dict(job.masks), "answers": count}
    _send(pipe, codec.encode(head))
    for each in answers:
        _send(pipe, codec.encode((each.site, each.p, each.payload is None)))
        _send(pipe, each.payload or b"")
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
    """Read one job from standard input, write its outcome to standard output."""
    # Ctrl-C reaches all processes of a terminal: the coordinator decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        os.nice(_NICE)
    jobs = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as outcomes:
        # A library's prints must not mix with the frames.
        os.dup2(2, 1)
        head: Any = codec.decode(_receive(jobs))
        count = head.pop("answers")
        job = Job(**head)
        plan = plan_of(read_definition(job.definition))
        computed = aggregate_round(plan, job, _receive_answers(jobs, count))
        reply: Any = {
            "kind": _NAMES[type(computed.what)],
            "what": vars(computed.what),
            "metrics": computed.metrics,
        }
        _send(outcomes, codec.encode(reply))


def _receive_answers(jobs: IO[bytes], count: int) -> Iterator[StoredAnswer]:
    """Yield the answers as they arrive; then watch for the coordinator's end."""
    for _ in range(count):
        site, p, empty = cast("tuple[str, int, bool]", codec.decode(_receive(jobs)))
        payload = _receive(jobs)
        yield StoredAnswer(site, p, None if empty else payload)
    threading.Thread(target=_end_with, args=(jobs,), daemon=True).start()


def _end_with(jobs: IO[bytes]) -> None:
    # Nothing more is sent, so reading returns only when the other end is closed.
    jobs.read(1)
    os._exit(1)


if __name__ == "__main__":
    main()
