"""The coordinator and the site's command as processes.

Importing what they consist of takes a second of CPU, and a run of all tests starts some hundreds of
them. Under pytest they are therefore forked by the standard library's fork server, which has
imported it once. Other programs, and all of them outside pytest, are interpreters of their own.
"""

import gc
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

from support import few_clouds
from support.timeouts import TIMEOUT_S

SERVICE = "import sys; from fedclust_service.cli import main; sys.exit(main())"
COMMAND = "import sys, fedclust.cli.main as cli; sys.exit(cli.main())"
#: The coordinator on a machine whose clock is ahead by the seconds in the first argument's file.
WRONG_TIME = """
import sys
from datetime import timedelta
from pathlib import Path
from fedclust_service.clock import Machine
from fedclust_service.cli import main
right, ahead = Machine.wall, Path(sys.argv.pop(1))
Machine.wall = lambda self: right(self) + timedelta(seconds=float(ahead.read_text()))
sys.exit(main())
"""
#: Runs the programs above for scripts of a shell: see `support.shell_commands`.
SHELL_COMMANDS = "from support.shell_commands import serve; serve()"
_FORKED = (SERVICE, COMMAND, WRONG_TIME, SHELL_COMMANDS)
_FORKS = "PYTEST_VERSION" in os.environ and hasattr(os, "fork")
_IMPORTED_ONCE = [
    *("fedclust_service.cli", "fedclust_service.server", "fedclust_service.http.app"),
    *("fedclust.cli.main", "fedclust.site.compute", "fedclust.site.progress"),
    *("fedclust.local.estimators", "sklearn.cluster", "scipy.optimize"),
    *("uvicorn.protocols.http.h11_impl", "uvicorn.lifespan.off", "uvicorn.loops.asyncio"),
    *("alembic.command", "alembic.config", "alembic.ddl.impl"),
    "sqlalchemy.dialects.sqlite.pysqlite",
    *("sqlalchemy.dialects.postgresql.psycopg", "psycopg", "httpcore"),
    *("certifi", "anyio._backends._asyncio", "encodings.idna"),
    *("fedclust_service.store.backup", "scipy.cluster.hierarchy", "support.processes"),
    *("support.forked_commands", "support.shell_commands"),
]


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this environment without fedclust's own settings, with ``extra``."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "FEDCLUST_STATE_DIR" or not name.startswith("FEDCLUST_")
    }
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        **(extra or {}),
    }


def popen(command: Sequence[str], **options: Any) -> Any:
    """Start a process with nothing on its standard input; options as for ``subprocess.Popen``."""
    if _FORKS and command[:2] == [sys.executable, "-c"] and command[2] in _FORKED:
        return ForkedProcess(command[2:], **options)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)


def run(
    command: Sequence[str], *, timeout: float = TIMEOUT_S, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a process to its end, and return its output; ``options`` are its ``env`` and ``cwd``."""
    pipe = subprocess.PIPE
    process = popen(command, stdout=pipe, stderr=pipe, text=True, **options)
    out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


class ForkedProcess:
    """A forked process, with the part of ``subprocess.Popen`` that tests use."""

    #: The standard library reads an exit code only once, and not safely from several threads.
    _lock = threading.Lock()

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdout: int | IO[Any],
        stderr: int | IO[Any],
        text: bool = False,
    ) -> None:
        assert text or subprocess.PIPE not in (stdout, stderr), "pipes are read as text"
        self.stdout, out = _stream(stdout)
        self.stderr, err = (None, out) if stderr == subprocess.STDOUT else _stream(stderr)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_IMPORTED_ONCE)
        self._process = context.Process(
            target=_run,
            args=(arguments, dict(env), cwd or Path.cwd(), out, err, few_clouds.drawn()),
            daemon=True,
        )
        with self._lock:
            self._process.start()
        for stream in {out, err}:
            stream.close()
        self.pid = self._process.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit code: the negative number of a signal."""
        if self.returncode is None:
            if not wait([self._process.sentinel], timeout):
                raise subprocess.TimeoutExpired("forked", timeout or 0.0)
            with self._lock:
                self.returncode = self._process.exitcode
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

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        """Return all that it writes to its pipes until it ends."""
        with ThreadPoolExecutor() as pool:
            written = [pool.submit(pipe.read) if pipe else None for pipe in self._pipes()]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        for pipe in filter(None, self._pipes()):
            pipe.close()
        out, err = (each and each.result() for each in written)
        return out, err

    def _pipes(self) -> tuple[IO[str] | None, IO[str] | None]:
        return self.stdout, self.stderr


def _stream(wanted: int | IO[Any]) -> tuple[IO[str] | None, Connection]:
    """Return the test's end of a standard stream, if it is a pipe, and that of the process."""
    if wanted == subprocess.PIPE:
        reading, writing = os.pipe()
        return os.fdopen(reading, encoding="utf-8"), Connection(writing, readable=False)
    if wanted == subprocess.DEVNULL:
        return None, Connection(os.open(os.devnull, os.O_WRONLY), readable=False)
    assert not isinstance(wanted, int)
    return None, Connection(os.dup(wanted.fileno()), readable=False)


def _run(
    arguments: Sequence[str],
    env: dict[str, str],
    cwd: Path,
    out: Connection,
    err: Connection,
    clouds: dict[str, int],
) -> None:
    """Run a program in the forked process, as an interpreter of its own would."""
    from fedclust_service import bootstrap

    few_clouds.draw(clouds)
    limits = bootstrap._limits
    bootstrap._limits = lambda settings: few_clouds.without_pool(limits(settings))
    # Otherwise each collection of garbage touches, and so copies, all that is shared.
    gc.freeze()
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    # `multiprocessing` has put the null device on standard input.
    os.closerange(3, 1024)
    run_program(arguments, env, cwd)


def run_program(arguments: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
    """Run a program in this process, on its standard streams 1 and 2."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False), "utf-8", "backslashreplace", write_through=True
    )
    program, *rest = arguments
    sys.argv = ["-c", *rest]
    exec(program, {"__name__": "__main__"})  # noqa: S102
