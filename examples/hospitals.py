"""The processes of the examples: a coordinator and hospitals on this machine.

Nothing is mocked. The coordinator is ``fedclust-service serve``, each hospital is a ``fedclust``
command with its own token, files and state, and they use HTTP on the loopback interface.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedclust.client import Client, ConnectionOptions

WAIT_S = 600.0
Processes = Mapping[str, subprocess.Popen[bytes]]


@contextmanager
def coordinator(directory: Path, *options: str) -> Iterator[tuple[str, str]]:
    """Run a coordinator with options of ``serve``; yield its address and the operator's token."""
    directory.mkdir()
    ready, log = directory / "ready", directory / "log"
    program = "import sys; from fedclust_service.cli import main; sys.exit(main())"
    arguments = ["serve", "--data-dir", str(directory), "--port", "0", "--ready-file", str(ready)]
    arguments += options
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=output,
            stderr=output,
            env=_env() | {"FEDCLUST_OPERATED_BY": "an example on this machine, for trials"},
        )
    try:
        give_up = time.monotonic() + WAIT_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"the coordinator did not start: see {log}")
            time.sleep(0.05)
        token = re.search(r"operator token \(shown once\): (fco_\S+)", log.read_text("utf-8"))
        if token is None:
            raise SystemExit(f"the coordinator printed no operator token: see {log}")
        yield ready.read_text("ascii").strip(), token[1]
    finally:
        process.terminate()
        process.wait(30)


def register(
    url: str,
    operator_token: str,
    out: Path,
    sites: Iterable[str],
    options: ConnectionOptions | None = None,
) -> str:
    """Register sites and an analyst, write their token files, return the analyst's token."""
    with Client(url, operator_token, options) as operator:
        for name in sites:
            operator.add("sites", name)
            _keep(out / name / "token", operator.issue_token("sites", name).token)
        operator.add("analysts", "ada")
        token = operator.issue_token("analysts", "ada").token
    _keep(out / "token", token)
    return token


def command(*arguments: str, url: str, at: Path, wait: bool = True) -> subprocess.Popen[bytes]:
    """Run ``fedclust`` with the token in ``at``."""
    program = "import sys, fedclust.cli.main as cli; sys.exit(cli.main())"
    env = _env() | {"FEDCLUST_COORDINATOR": url, "FEDCLUST_TOKEN_FILE": str(at / "token")}
    # Keep the groups of this trial's persons apart from those of real sessions on this account.
    env["FEDCLUST_STATE_DIR"] = str(at / "state")
    with (at / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], stdout=log, stderr=log, cwd=at, env=env
        )
    if wait and process.wait(WAIT_S):
        raise SystemExit(f"fedclust {arguments[0]} ended with {process.returncode}: {at / 'log'}")
    return process


def wait(done: Callable[[], bool], running: Processes, out: Path) -> None:
    """Wait until ``done`` says so; SystemExit if a hospital fails or it takes too long."""
    give_up = time.monotonic() + WAIT_S
    while not done():
        failed = [name for name, process in running.items() if process.poll()]
        if failed or time.monotonic() > give_up:
            names = ", ".join(failed) or "a hospital"
            raise SystemExit(f"{names} did not get on: see {out}/*/log")
        time.sleep(0.05)


def all_ended(running: Processes) -> bool:
    """Return whether every hospital has ended without an error."""
    return all(process.poll() == 0 for process in running.values())


def end(running: Processes) -> None:
    """End the hospitals that still run."""
    for process in running.values():
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def _keep(path: Path, token: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(token + "\n")


def _env() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FEDCLUST_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
