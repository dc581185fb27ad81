"""``fedclust agent`` as a process, over whatever happens in the weeks that it runs."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import simulate
from fedclust.cli.agent import AgentEntries
from fedclust.site.ledger import Ledger
from fedclust.site.state import SiteState
from support import processes
from support.command_line import CommandLine
from support.consortium import Consortium, columns, read_labels, write_csv
from support.processes import COMMAND, clean_environment
from support.proxies import Exchange, recorded
from support.server import running_server
from support.timeouts import TIMEOUT_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX")
SITES = ("ada", "brno", "cadiz")
#: What its agent says is read.
WATCHED = "ada"
SESSIONS = {"heart": 3, "liver": 4}
POLICY = {"min_group_size": 3, "max_rounds": 8}
KILLS = 2


def _rows() -> dict[str, NDArray[np.float64]]:
    """Return rows without clusters: the sessions last as long as they may."""
    rng = np.random.default_rng(3)
    return {name: rng.random((240, 3)) for name in SITES}


def test_a_coordinator_that_is_killed_while_agents_serve_two_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> None:
    """Twice ``kill -9``: every round is answered once, and the results are undisturbed."""
    rows, moved, last = _rows(), threading.Condition(), 0

    def open_through(number: int) -> None:
        nonlocal last
        with moved:
            last = number
            moved.notify_all()

    def keep_back(exchange: Exchange) -> None:
        """Keep back other sites' answers to later rounds: no session is faster than the test."""
        answered = re.search(r"/rounds/(\d+)/submission", exchange.path)
        with moved:
            assert moved.wait_for(lambda: not answered or int(answered[1]) <= last, TIMEOUT_S)

    with running_server(tmp_path / "server") as server, recorded(server.base_url) as tap:
        tap.on_request = keep_back
        consortium = Consortium.found(server.base_url, server.operator_token, SITES)
        for session, k in SESSIONS.items():
            consortium.create(session, 3, config={"n_clusters": k}, policy=POLICY)
        agents = {}
        for name in SITES:
            place, watched = tmp_path / name, name == WATCHED
            write_csv(place / "rows.csv", rows[name])
            settings = {
                "FEDCLUST_COORDINATOR": server.base_url if watched else tap.url,
                "FEDCLUST_TOKEN": consortium.site_tokens[name],
                "FEDCLUST_STATE_DIR": str(place / "state"),
            }
            for variable, value in settings.items():
                monkeypatch.setenv(variable, value)
            for session in SESSIONS:
                given = ("--data", str(place / "rows.csv"), "--id-column", "record", "--yes")
                out = f"--labels-out={place / session}.csv"
                command_line.ran("agent", "add", session, *given, out)
            agents[name] = processes.popen(
                [sys.executable, "-c", COMMAND, "agent", "--until-done"],
                env=clean_environment(settings),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE if watched else subprocess.DEVNULL,
                text=True,
            )
        try:
            stream = agents[WATCHED].stderr
            heard: list[str] = []
            # First when the site has answered in both; then as soon as anything has moved on.
            for kill, wanted in enumerate((len(SESSIONS), *[1] * (KILLS - 1)), start=1):
                # The site answers this round after the kill before, and no session passes it.
                number = 2 * kill
                open_through(number)
                answered: set[str] = set()
                while len(answered) < wanted:
                    heard.append(stream.readline())
                    assert heard[-1], heard
                    answered |= set(re.findall(rf"(\w+): round {number} sent", heard[-1]))
                server.restart()
                with consortium.analyst() as analyst:
                    assert {analyst.session(each).state for each in SESSIONS} == {"running"}
            open_through(sys.maxsize)
            _, said = agents[WATCHED].communicate(timeout=TIMEOUT_S)
            assert "Traceback" not in said
            assert {each.wait(TIMEOUT_S) for each in agents.values()} == {0}, said
        finally:
            for each in agents.values():
                each.kill()
        for session, k in SESSIONS.items():
            expected = simulate(
                "lloyd", rows, config={"n_clusters": k}, policy=POLICY, features=columns(3), seed=7
            )
            document = consortium.result(session)
            centres = np.asarray(document.result["centroids_original"])
            assert np.array_equal(centres, expected.cluster_centers_)
            kept = {
                (each.round, each.site): each.sha256 for each in document.provenance.submissions
            }
            assert len(kept) == len(document.provenance.submissions)
            left = {}
            for name in SITES:
                labels = read_labels(tmp_path / name / f"{session}.csv")
                assert np.array_equal(labels, expected.labels_[name])
                ledger = Ledger(SiteState(tmp_path / name / "state"))
                assert ledger.verify() == []
                lines = [line for line in ledger.read() if line.get("session") == session]
                left |= {(line["round"], name): line["sha256"] for line in lines}
                # No body stands in it twice, nor did any leave that is not stored.
                assert len(lines) == sum(site == name for _, site in kept)
            assert left == kept
    for name in SITES:
        entries = AgentEntries(SiteState(tmp_path / name / "state"))
        assert {entry.state for entry in entries.read()} == {"done"}
