"""Forked processes: to a test they are what interpreters of their own are."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import forked
from support.server import ServerProcess, clean_environment, running_server
from support.timeouts import TIMEOUT_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")


@pytest.mark.parametrize(
    ("program", "arguments"),
    [(forked.SITE, ["session", "watch"]), (forked.SERVICE, ["config", "show", "--json"])],
)
def test_it_says_and_ends_what_an_interpreter_does(
    tmp_path: Path, program: str, arguments: list[str]
) -> None:
    command = [sys.executable, "-c", program, *arguments]
    env = clean_environment({"FEDCLUST_DATA_DIR": str(tmp_path), "FEDCLUST_TOKEN": "fca_x"})

    ours = forked.run(command, env=env, timeout=TIMEOUT_S)
    its = subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    assert (ours.returncode, ours.stdout, ours.stderr) == (its.returncode, its.stdout, its.stderr)
    assert ours.stdout or ours.stderr


def test_it_dies_of_a_signal_and_leaves_the_others_alone(tmp_path: Path) -> None:
    with running_server(tmp_path / "one") as one, running_server(tmp_path / "two") as two:
        assert isinstance(one.process, forked.Forked)
        assert one.process.pid != _process(two).pid
        one.kill()
        assert one.process.returncode == -signal.SIGKILL
        assert _process(two).poll() is None
        assert two.stop() == 0
        assert "listening on" in two.output()


def _process(server: ServerProcess) -> forked.Forked:
    assert isinstance(server.process, forked.Forked)
    return server.process


def test_other_programs_are_interpreters_of_their_own() -> None:
    process = forked.popen([sys.executable, "-c", "print(1)"], stdout=subprocess.PIPE, text=True)
    assert isinstance(process, subprocess.Popen)
    assert process.communicate(timeout=TIMEOUT_S) == ("1\n", None)
