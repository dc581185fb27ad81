"""Coordinator and sites are upgraded apart from each other, by processes whose versions are faked.

Same method version: a running session goes on. Another one: refused with the command that helps.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedclust import simulate
from fedclust.algorithms.lloyd import VERSION
from fedclust.wire.codec import to_tree
from support.consortium import Command, Consortium, columns, write_csv
from support.crash import POLICY, SESSION, D, rows, shared
from support.patience import eventually
from support.server import running_server

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are ended by POSIX")

#: A program of another release: what it calls itself, and the version of lloyd that it speaks.
FAKED = """
import dataclasses, importlib.metadata, sys
release, spoken = {release!r}, {spoken}
real = importlib.metadata.version
importlib.metadata.version = lambda name: release if name == "fedclust" else real(name)
from fedclust.algorithms.registry import METHODS
METHODS["lloyd"] = dataclasses.replace(METHODS["lloyd"], version=spoken)
from {module} import main
sys.exit(main())
"""
CONFIG = {"n_clusters": 3}
SHORT = {**POLICY, "max_rounds": 3}


def program(module: str, release: str, spoken: int = VERSION) -> str:
    return FAKED.format(module=module, release=release, spoken=spoken)


def site_of(release: str, spoken: int, people: Consortium, name: str, place: Path) -> Command:
    """Return a site's command, run by a program of another release."""
    command = Command(people, SESSION, name, place)
    command._command[2] = program("fedclust.cli.main", release, spoken)
    return command


@pytest.mark.long
def test_a_session_survives_and_a_skew_is_refused_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {name: X[:120] for name, X in rows().items()}
    with running_server(tmp_path / "server") as server:
        people = Consortium.found(server.base_url, server.operator_token, tuple(data))
        people.create(SESSION, D, config=CONFIG, policy=SHORT)
        places = {name: tmp_path / name for name in data}
        for name, X in data.items():
            write_csv(places[name] / "rows.csv", X)
        # Too new and too old: refused before anything is sent, with what to install.
        for release, spoken, told in (
            ("9.0.0", VERSION + 1, 'pip install "fedclust=='),
            ("0.0.1", VERSION - 1, "pip install --upgrade"),
        ):
            skewed = site_of(release, spoken, people, "oslo", places["oslo"])
            skewed.start()
            assert skewed.wait() != 0
            said = " ".join(skewed.log.read_text("utf-8").split())
            assert told in said
            assert "Traceback" not in said
            skewed.log.unlink()
        # Three sites join and wait; the coordinator is upgraded under them and keeps the version.
        waiting = [Command(people, SESSION, name, places[name]) for name in data if name != "oslo"]
        for each in waiting:
            each.start()
        with people.analyst() as analyst:
            eventually(
                lambda: (
                    sum(site.state == "joined" for site in analyst.session(SESSION).sites)
                    == len(waiting)
                ),
                lambda: [each.log.read_text("utf-8") for each in waiting],
            )
            assert server.stop() == 0
            upgraded = [sys.executable, "-c", program("fedclust_service.cli", "9.9.9")]
            monkeypatch.setattr("support.server._COMMAND", upgraded)
            server.restart()
            assert analyst.whoami().server_version == "9.9.9"
            # The last site comes with a later release, too.
            last = site_of("9.9.9", VERSION, people, "oslo", places["oslo"])
            last.start()
            for each in (*waiting, last):
                assert each.wait() == 0, each.log.read_text("utf-8")
        result = people.result(SESSION).result
    alone = simulate("lloyd", data, config=CONFIG, policy=SHORT, features=columns(D), seed=7)
    assert shared(result) == shared(to_tree(alone.result_))
