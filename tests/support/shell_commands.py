"""``fedclust`` and ``fedclust-service`` as commands that scripts of a shell can call.

    with shell_commands(place) as folder:  # a folder for PATH
        subprocess.run(["sh", "-c", "fedclust --version"], env={"PATH": f"{folder}:/bin", ...})

A command of its own would import for a second what it consists of. These pass their standard
streams to a server that is forked as in `support.processes`, and that forks for each of them.
"""

import io
import marshal
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from support import processes
from support.processes import COMMAND, SERVICE, SHELL_COMMANDS, clean_environment
from support.timeouts import TIMEOUT_S, eventually

_PROGRAMS = {"fedclust": COMMAND, "fedclust-service": SERVICE}
# Imports only what an interpreter without `site` starts with: 10 ms in all.
_CLIENT = """
import _socket, marshal, os, sys
folder, program, *arguments = sys.argv[1:]
request = marshal.dumps((program, arguments, os.getcwd(), dict(os.environ)))
os.chdir(folder)  # the path of a socket has to be short
line = _socket.socket(_socket.AF_UNIX)
line.connect("socket")
streams = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
line.sendmsg([b"%12d" % len(request)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
while request:
    request = request[line.send(request):]
sys.exit(int(line.recv(12) or b"70"))
"""


@contextmanager
def shell_commands(place: Path) -> Iterator[Path]:
    """Make the commands in a new folder; they work for the length of the ``with`` block."""
    place.mkdir()
    client, log = place / "client.py", place / "log"
    client.write_text(_CLIENT, "ascii")
    for name in _PROGRAMS:
        words = [sys.executable, "-IS", str(client), str(place), name]
        command = place / name
        command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', "utf-8")
        command.chmod(0o700)
    with log.open("ab") as file:
        server = processes.popen(
            [sys.executable, "-c", SHELL_COMMANDS],
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=place,
            env=clean_environment(),
        )
    try:
        eventually(lambda: (place / "ready").exists() or server.poll() is not None, log.read_text)
        assert server.poll() is None, log.read_text()
        yield place
    finally:
        # The server leads a group with all that it forked.
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(TIMEOUT_S)


def serve() -> None:
    """Run commands until the process is ended; called in the forked process, in their folder."""
    os.setsid()
    running: dict[int, tuple[int, socket.socket]] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        listener.listen(64)
        Path("ready").touch()
        while True:
            for each in select.select([listener, *running], [], [])[0]:
                if each is listener:
                    line, _ = listener.accept()
                    ended, pid = _start(line)
                    running[ended] = (pid, line)
                else:
                    pid, line = running.pop(each)
                    os.close(each)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with suppress(OSError), line:
                        line.sendall(b"%d" % (code if code >= 0 else 128 - code))


def _start(line: socket.socket) -> tuple[int, int]:
    """Fork what a command asks for; return a pipe that its end closes, and its process."""
    head, streams, _, _ = socket.recv_fds(line, 12, 3)
    with line.makefile("rb") as file:
        request = marshal.loads(file.read(int(head)))  # noqa: S302 - our own client's
    ended, kept_open = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            for target, stream in enumerate(streams):
                os.dup2(stream, target)
            code = _run(*request)
        finally:
            os._exit(code)
    for each in (kept_open, *streams):
        os.close(each)
    return ended, pid


def _run(name: str, arguments: list[str], cwd: str, env: dict[str, str]) -> int:
    """Run a command in the forked process; return its exit code."""
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), "utf-8")
    code: Any = 0
    try:
        processes.run_program([_PROGRAMS[name], *arguments], env, Path(cwd))
    except SystemExit as ending:
        code = ending.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    # As an interpreter does at its end.
    threading._shutdown()  # type: ignore[attr-defined]
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return code if isinstance(code, int) else 1
