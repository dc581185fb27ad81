"""Forked processes behave as interpreters of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import processes
from support.processes import COMMAND, ForkedProcess, clean_environment
from support.server import ServerProcess, running_server

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")


def test_output_and_exit_code_are_those_of_an_interpreter(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMMAND, "session", "watch"]
    env = clean_environment({"FEDCLUST_DATA_DIR": str(tmp_path), "FEDCLUST_TOKEN": "fca_x"})

    forked = processes.run(command, env=env)
    alone = subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    assert (forked.returncode, forked.stdout) == (alone.returncode, alone.stdout)
    assert forked.stderr == alone.stderr
    assert forked.stdout or forked.stderr


def test_a_signal_ends_one_process_and_not_the_others(tmp_path: Path) -> None:
    def process(server: ServerProcess) -> ForkedProcess:
        assert isinstance(server.process, ForkedProcess)
        return server.process

    with running_server(tmp_path / "one") as one, running_server(tmp_path / "two") as two:
        assert process(one).pid != process(two).pid
        one.kill()
        assert process(one).returncode == -signal.SIGKILL
        assert process(two).poll() is None
        assert two.stop() == 0
        assert "listening on" in two.output()
