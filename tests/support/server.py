"""A real coordinator: ``fedclust-service serve`` in a process of its own, on a free port.

    with running_server(tmp_path / "coordinator") as server:
        server.base_url, server.operator_token
        server.kill()       # SIGKILL: nothing is said goodbye to
        server.restart()    # same data, same port
        server.stop()       # SIGTERM: returns the exit code

A restart keeps the address. Everything that the process printed is in ``server.output()``.
"""

import itertools
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from support import processes
from support.processes import SERVICE, clean_environment
from support.reader import NOBODY
from support.sqlite_file import create_sqlite
from support.timeouts import TIMEOUT_S, eventually

_COMMAND = [sys.executable, "-c", SERVICE]


def service(
    *arguments: str, env: Mapping[str, str] | None = None, timeout: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run ``fedclust-service`` with arguments, to its end."""
    return processes.run([*_COMMAND, *arguments], env=clean_environment(env), timeout=timeout)


@dataclass
class ServerProcess:
    """One coordinator over its restarts; ``command`` is what ``serve`` is said to.

    It begins on a migrated SQLite file, unless it is told another database or ``empty``.
    """

    data_dir: Path
    flags: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = field(default_factory=lambda: tuple(_COMMAND))
    base_url: str = ""
    operator_token: str = ""
    empty: bool = False
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    @property
    def log(self) -> Path:
        return self.data_dir.with_name(self.data_dir.name + ".log")

    def start(self) -> None:
        """Start and wait until requests are answered; AssertionError with its output if not."""
        ready = self.data_dir.with_name(self.data_dir.name + ".ready")
        ready.unlink(missing_ok=True)
        self.port = self.port or lasting_port()
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        elsewhere = "FEDCLUST_DATABASE_URL" in self.env or "--database-url" in self.flags
        if not (self.empty or elsewhere or self.data_dir.exists()):
            create_sqlite(self.data_dir)
        with self.log.open("ab") as log:
            place = ("--data-dir", str(self.data_dir), "--port", str(self.port))
            self.process = processes.popen(
                [*self.command, "serve", *place, "--ready-file", str(ready), *self.flags],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.data_dir.parent,
                env=clean_environment(self.env),
            )
        eventually(lambda: ready.exists() or self.process.poll() is not None, self.output)
        assert ready.exists(), f"the coordinator did not start:\n{self.output()}"
        self.base_url = ready.read_text("ascii").strip()
        self.port = int(self.base_url.rpartition(":")[2])
        token = re.search(r"operator token \(shown once\): (fco_\S+)", self.output())
        if token and not self.operator_token:
            self.operator_token = token[1]

    def get(self, path: str, token: str | None = None) -> httpx.Response:
        """Ask for something, as whoever has a token, or without one."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"{self.base_url}{path}"
        return httpx.get(url, headers=headers, timeout=TIMEOUT_S, trust_env=False, verify=NOBODY)

    def kill(self) -> None:
        """End the process with SIGKILL, as a power cut would."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(TIMEOUT_S)

    def stop(self) -> int:
        """End the process with SIGTERM and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT_S)

    def restart(self) -> None:
        """Start again on the same data and port; a process that still runs is killed first."""
        self.kill()
        self.start()

    def output(self) -> str:
        """Return all that the processes printed so far, stdout and stderr."""
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""


#: Test processes beside each other take ports from places of their own.
_PLACES = 16
_place = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _PLACES
_turns = itertools.count(secrets.randbelow(12_000))


def lasting_port() -> int:
    """Return a free port that nothing else is given while a server starts or restarts on it."""
    for turn in _turns:
        port = 20_000 + (_PLACES * turn + _place) % 12_000
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("ports do not end")


@contextmanager
def running_server(data_dir: Path, *flags: str, **more: Any) -> Iterator[ServerProcess]:
    """Run a coordinator on ``data_dir`` (made if missing) for the length of a ``with`` block."""
    server = ServerProcess(data_dir, flags, **more)
    try:
        server.start()
        yield server
    finally:
        server.kill()
