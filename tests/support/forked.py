"""Processes of ours, forked from one that has imported everything already.

A coordinator or a command needs more than a second of CPU to import what it is made of, and a run
of all tests starts some hundreds. :func:`popen` takes what ``subprocess.Popen`` takes. A command
that is one of :data:`KNOWN` is forked from a process that has these modules and has done nothing
with them; any other, and every one where there is no fork, is an interpreter of its own. A forked
process has its own number, environment, folder and standard streams, dies by any signal, and ends
as an interpreter does. What it shares with the others of a run is the seed of its hashes.

It is for tests alone: ``tests/conftest.py`` calls :func:`allow`, benchmarks do not. The demo, the
README's lines, the example of the heart data and the wheel start real interpreters.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from support.clock import WRONG_TIME
from support.timeouts import TIMEOUT_S

#: How the tests start the coordinator and the sites' command.
SERVICE = "import sys; from fedclust_service.cli import main; sys.exit(main())"
SITE = "import sys, fedclust.cli.main as cli; sys.exit(cli.main())"
KNOWN = (("-c", SERVICE), ("-c", WRONG_TIME), ("-c", SITE), ("-m", "fedclust.cli"))

_MODULES = (
    *("fedclust_service.cli", "fedclust_service.server", "fedclust_service.http.app"),
    *(
        "fedclust.cli.main",
        "fedclust.site.compute",
        "fedclust.site.progress",
        "fedclust.estimators",
    ),
    *("uvicorn.protocols.http.h11_impl", "uvicorn.lifespan.on", "uvicorn.loops.auto"),
    *("alembic.command", "alembic.ddl.impl", "sqlalchemy.dialects.sqlite.pysqlite"),
    *("sqlalchemy.dialects.postgresql.psycopg", "sklearn.cluster", "scipy.optimize"),
)
_NUMBER = struct.Struct("<i")


def allow() -> None:
    """Fork what can be forked, from now on."""
    global _allowed
    _allowed = hasattr(os, "fork")


def end() -> None:
    """Let the process go that others were forked from; these go on."""
    global _parent, _allowed
    _allowed = False
    if _parent is not None:
        _parent.close()
        _parent = None


def popen(command: Sequence[str], **options: Any) -> Any:
    """Start a process: as ``subprocess.Popen`` does, and with what it returns."""
    global _parent
    if not _allowed or command[0] != sys.executable or tuple(command[1:3]) not in KNOWN:
        start: Any = subprocess.Popen
        return start(list(command), **options)
    with _lock:
        _parent = _parent or _Parent()
    return Forked(_parent, command[1:], **options)


def run(
    command: Sequence[str], *, env: Mapping[str, str], timeout: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a process to its end, and return what it said."""
    pipe = subprocess.PIPE
    process = popen(command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


# --- in the test's process ------------------------------------------------------------------------


class _Parent:
    """The process that the others are forked from."""

    def __init__(self) -> None:
        self._socket, its = socket.socketpair()
        self._lock = threading.Lock()
        with its:
            environment = {name: os.environ[name] for name in os.environ if name[:9] != "FEDCLUST_"}
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from support.forked import serve; serve()"],
                env=environment
                | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=its.fileno(),
                start_new_session=True,
            )

    def fork(self, job: Mapping[str, Any], files: Sequence[int]) -> None:
        """Ask for a process; ``files`` are its standard streams and where its end is told."""
        body = json.dumps(job).encode()
        with self._lock:
            socket.send_fds(self._socket, [_NUMBER.pack(len(body))], list(files))
            self._socket.sendall(body)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(TIMEOUT_S)


class Forked:
    """A forked process, as ``subprocess.Popen`` shows one."""

    def __init__(
        self,
        parent: _Parent,
        arguments: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
    ) -> None:
        self.returncode: int | None = None
        self._ending = threading.Lock()
        told, tell = os.pipe()
        ours: list[IO[Any] | None] = []
        theirs: list[int] = []
        closing = [tell]
        for number, wanted in enumerate((stdin, stdout, stderr)):
            mine = None
            if wanted == subprocess.PIPE:
                reading, writing = os.pipe()
                near, far = (writing, reading) if number == 0 else (reading, writing)
                mode = ("w" if number == 0 else "r") + ("" if text else "b")
                mine = os.fdopen(near, mode, encoding="utf-8" if text else None)
                closing.append(far)
            elif wanted == subprocess.DEVNULL:
                far = os.open(os.devnull, os.O_RDWR)
                closing.append(far)
            elif wanted == subprocess.STDOUT:
                far = theirs[1]
            elif wanted is None:
                far = number
            else:
                far = wanted if isinstance(wanted, int) else wanted.fileno()
            ours.append(mine)
            theirs.append(far)
        self.stdin, self.stdout, self.stderr = ours
        job = {
            "arguments": list(arguments),
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
        }
        try:
            parent.fork(job, [*theirs, tell])
        finally:
            for each in closing:
                os.close(each)
        self._told = os.fdopen(told, "rb", buffering=0)
        self.pid = self._read()

    def _read(self) -> int:
        data = self._told.read(_NUMBER.size)
        if len(data or b"") != _NUMBER.size:
            raise RuntimeError("the process that others are forked from has gone")
        return int(_NUMBER.unpack(data)[0])

    def poll(self) -> int | None:
        """Return how it ended, None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return how it ended: a signal's number is negative."""
        with self._ending:
            if self.returncode is None:
                with selectors.DefaultSelector() as selector:
                    selector.register(self._told, selectors.EVENT_READ)
                    if not selector.select(timeout):
                        raise subprocess.TimeoutExpired("forked", timeout or 0.0)
                self.returncode = self._read()
                self._told.close()
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Return all that it writes to its pipes, and wait for its end."""
        until = None if timeout is None else time.monotonic() + timeout
        if self.stdin is not None:
            self.stdin.close()
        said: dict[int, Any] = {}
        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
        readers = [
            threading.Thread(
                target=lambda pipe=pipe: said.update({id(pipe): pipe.read()}), daemon=True
            )
            for pipe in pipes
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if until is None else max(until - time.monotonic(), 0))
            if reader.is_alive():
                raise subprocess.TimeoutExpired("forked", timeout or 0.0)
        self.wait(None if until is None else max(until - time.monotonic(), 0))
        for pipe in pipes:
            pipe.close()
        return said.get(id(self.stdout)), said.get(id(self.stderr))


_parent: _Parent | None = None
_allowed = False
_lock = threading.Lock()


# --- in the process that others are forked from ---------------------------------------------------


def serve() -> None:
    """Fork what is asked for on standard input, until that is closed."""
    asked = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for name in _MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(ended, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    tells: dict[int, int] = {}
    selector = selectors.DefaultSelector()
    selector.register(asked, selectors.EVENT_READ)
    selector.register(ended, selectors.EVENT_READ)
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if ended in ready:
            os.read(ended, 4096)
            _tell_ends(tells)
        if asked in ready:
            head, files, _, _ = socket.recv_fds(asked, _NUMBER.size, 4)
            if not head:
                return
            body = b""
            while len(body) < _NUMBER.unpack(head)[0]:
                body += asked.recv(1 << 20)
            *streams, tell = files
            pid = os.fork()
            if pid == 0:
                _become(json.loads(body), streams)
            for each in streams:
                os.close(each)
            tells[pid] = tell
            _write(tell, pid)


def _tell_ends(tells: dict[int, int]) -> None:
    while tells:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        tell = tells.pop(pid)
        _write(tell, os.waitstatus_to_exitcode(status))
        os.close(tell)


def _write(tell: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # Nobody waits for it any more.
        os.write(tell, _NUMBER.pack(number))


def _become(job: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be the process that was asked for, to its end."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 1024)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), "utf-8")
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False), "utf-8", "backslashreplace", write_through=True
    )
    kind, program, *rest = job["arguments"]
    sys.argv = ["-c" if kind == "-c" else program, *rest]
    code = 1
    try:
        if kind == "-c":
            exec(program, {"__name__": "__main__"})  # noqa: S102
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as asked:
        code = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    try:
        # As an interpreter ends: threads, then what wanted to be called.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        os._exit(code)
