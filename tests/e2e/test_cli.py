"""Everybody's commands, as processes, against a real coordinator."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust import simulate
from fedclust.client import Client
from fedclust.result.session_result import SessionResult
from fedclust_service.usecases.admin import AdminAuditEntry
from support import processes
from support.processes import COMMAND, clean_environment
from support.purpose import PURPOSE
from support.server import ServerProcess, running_server
from support.timeouts import TIMEOUT_S, eventually

SITES = ("ada", "brno", "cadiz")


class Shell:
    """Runs ``fedclust`` with one person's token."""

    def __init__(self, url: str, place: Path) -> None:
        self.url, self.place = url, place
        self.code = 0
        self.out = self.err = ""

    def start(self, who: str, *arguments: str, **env: str) -> subprocess.Popen[str]:
        settings = {
            **clean_environment(),
            "FEDCLUST_COORDINATOR": self.url,
            "FEDCLUST_TOKEN_FILE": str(self.place / f"{who}.token"),
            "FEDCLUST_STATE_DIR": str(self.place / f"{who}.state"),
            **env,
        }
        return processes.popen(
            [sys.executable, "-c", COMMAND, *arguments],
            env=settings,
            cwd=self.place,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, who: str, *arguments: str, code: int = 0, **env: str) -> str:
        process = self.start(who, *arguments, **env)
        self.out, self.err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == code, self.err
        assert "\x1b" not in self.out + self.err, "control codes in a pipe"
        return self.out


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with running_server(tmp_path / "server") as server:
        yield _shell(server, tmp_path)


def _shell(server: ServerProcess, place: Path) -> Shell:
    token = place / "operator.token"
    token.write_text(server.operator_token, "utf-8")
    token.chmod(0o600)
    return Shell(server.base_url, place)


#: Of a session of all sites.
ASKED = ["--algorithm", "lloyd", "--clusters", "2", "--features", "x,y", "--purpose", PURPOSE]
ASKED += ["--sites", ",".join(SITES)]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Return the shell of an operator, the analyst eva and the sites, who are registered."""
    place = tmp_path_factory.mktemp("known")
    with running_server(place / "server") as server:
        shell = _shell(server, place)
        for name in SITES:
            shell.run("operator", "site", "add", name, "--token-out", f"{name}.token")
        shell.run("operator", "analyst", "add", "eva", "--token-out", "eva.token")
        yield shell


def _rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        name: 8.0 * rng.integers(0, 3, (n, 1)) + rng.normal(size=(n, 2))
        for name, n in zip(SITES, (60, 50, 55), strict=True)
    }


def _write(path: Path, rows: np.ndarray) -> Path:
    ids = [f"p{i}" for i in range(len(rows))]
    pd.DataFrame(rows, ids, ["x", "y"]).to_csv(path, index_label="mrn")
    return path


def test_a_stolen_operator_token_is_found_and_ended(shell: Shell) -> None:
    """By commands alone; what the thief made is named in the audit trail, and ended too."""

    def listed() -> dict[str, Any]:
        found = json.loads(shell.run("grace", "operator", "list", "--json"))
        return {each["name"]: each for each in found}

    shell.run("operator", "operator", "add", "grace", "--token-out", "grace.token")
    assert "fco_" not in shell.out + shell.err
    shell.run("operator", "operator", "add", "grace", code=2)
    assert "fedclust operator token grace" in shell.err
    # A file may hold the only copy of another token.
    kept = (shell.place / "grace.token").read_text("utf-8")
    for what in ("add", "token"):
        shell.run("operator", "operator", what, "greta", "--token-out", "grace.token", code=2)
        assert "grace.token exists" in shell.err
    assert (shell.place / "grace.token").read_text("utf-8") == kept
    assert "greta" not in listed()
    # The thief makes an operator with the token that was stolen, and that one an analyst.
    shell.run("operator", "operator", "add", "mallory", "--token-out", "mallory.token")
    shell.run("mallory", "analyst", "add", "eva", "--token-out", "eva.token")
    shell.run("eva", "operator", "list", code=5)
    with Client(shell.url, (shell.place / "grace.token").read_text("utf-8").strip()) as grace:
        trail = list(grace.admin(AdminAuditEntry, "audit", actor="operator:operator"))
    issued = {each.subject for each in trail if each.action == "token.issued"}
    assert issued == {"operator:grace", "operator:mallory"}
    (stolen,) = listed()["operator"]["tokens"]
    shell.run("grace", "operator", "revoke", "operator", stolen["id"])
    shell.run("grace", "operator", "disable", "mallory")
    for who in ("operator", "mallory"):
        shell.run(who, "site", "list", code=5)
        assert "401" in shell.err
    known = listed()
    assert known["operator"]["tokens"][0]["revoked_at"]
    assert known["mallory"]["disabled"]
    (last,) = known["grace"]["tokens"]
    for given in (("revoke", "grace", last["id"]), ("disable", "grace")):
        shell.run("grace", "operator", *given, code=5)
        assert "fedclust operator token" in shell.err
        assert shell.err.count("\n") == 1
    shell.run("grace", "operator", "token", "grace", "--token-out", "grace.new")
    shell.run("grace", "operator", "revoke", "grace", last["id"])
    shell.run("grace", "site", "list", code=5)


def test_from_the_first_token_to_labels_with_agents(shell: Shell) -> None:
    place, rows = shell.place, _rows()
    for name in SITES:
        shell.run("operator", "site", "add", name, "--token-out", f"{name}.token")
        assert "fcs_" not in shell.out + shell.err
        assert (place / f"{name}.token").stat().st_mode & 0o077 == 0
        _write(place / f"{name}.csv", rows[name])
    shell.run("operator", "analyst", "add", "eva", "--token-out", "eva.token")
    listed = json.loads(shell.run("operator", "site", "list", "--json"))
    assert [each["name"] for each in listed] == list(SITES)
    assert all(len(each["tokens"]) == 1 for each in listed)

    shell.run("eva", "session", "create", "heart", *ASKED, "--seed", "11")
    assert "fedclust participate heart" in shell.err
    shell.run("eva", "session", "start", "heart", code=5)

    agents = []
    for name in SITES:
        given = ["--data", f"{name}.csv", "--id-column", "mrn", "--yes"]
        given += ["--labels-out", f"{name}.labels", "--result-out", f"{name}.fedclust"]
        shell.run(name, "agent", "add", "heart", *given)
        assert "groups of at least 5 similar persons" in " ".join(shell.err.split())
        agents.append(shell.start(name, "agent", "--until-done"))
    events = shell.run("eva", "session", "watch", "heart", "--every", "0.2", "--json")
    for process in agents:
        _, said = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, said
        assert "heart: completed: 2 clusters" in said

    watched = [json.loads(line) for line in events.splitlines()]
    assert watched[-1]["event"] == "session.completed"
    answered = {(e["round"], e["site"]) for e in watched if e["event"] == "site.answered"}
    closed = [e["round"] for e in watched if e["event"] == "round.closed"]
    assert closed == list(range(1, max(closed) + 1))
    assert answered == {(number, site) for number in closed for site in SITES}

    expected = simulate("lloyd", rows, config={"n_clusters": 2}, features=["x", "y"], seed=11)
    for name in SITES:
        table = pd.read_csv(place / f"{name}.labels")
        assert [*table] == ["mrn", "cluster"]
        assert table["cluster"].tolist() == expected.labels_[name].tolist()
        assert SessionResult.load(place / f"{name}.fedclust").site == name
        assert [e["state"] for e in json.loads(shell.run(name, "agent", "list", "--json"))] == [
            "done"
        ]

    text = shell.run("eva", "session", "result", "heart", "--format", "csv")
    centres = [[float(v) for v in line[2:]] for line in list(csv.reader(text.splitlines()))[1:]]
    assert np.allclose(centres, expected.cluster_centers_, rtol=1e-9, atol=1e-9)
    document = json.loads(shell.run("eva", "session", "result", "heart", "--json"))
    assert np.allclose(document["result"]["centroids_original"], centres, rtol=1e-9, atol=1e-9)
    assert "stopped because" in shell.run("eva", "session", "result", "heart")

    shell.run("eva", "session", "create", "heart-2", "--from", "heart", "--clusters", "3")
    shell.run("eva", "session", "cancel", "heart-2")
    shell.run("eva", "session", "watch", "heart-2", code=7)
    states = json.loads(shell.run("eva", "session", "list", "--json"))
    found = {each["name"]: each["state"] for each in states}
    assert found == {"heart": "completed", "heart-2": "cancelled"}


def test_a_site_leaves_when_it_says_so(known: Shell) -> None:
    known.run("eva", "session", "create", "left", *ASKED)
    known.run("ada", "leave", "left", code=4)  # Nobody can be asked.
    known.run("ada", "leave", "left", "--yes")
    sites = json.loads(known.run("eva", "session", "show", "left", "--json"))["sites"]
    assert {each["name"]: each["state"] for each in sites}["ada"] == "left"


def test_a_session_says_why_before_all_else(known: Shell) -> None:
    asked = [*ASKED, "--title", "Heart", "--contact", "Eva, eva@example.org"]
    asked += ["--approval", "2026-01", "--expires", "2999-01-01T01:00+01:00"]
    known.run("eva", "session", "create", "why", *asked)
    assert "No lower or no upper bound: x, y" in known.err
    lines = known.run("eva", "session", "show", "why").splitlines()
    assert [" ".join(line.split()) for line in lines[:6]] == [
        "session why",
        "title Heart",
        f"purpose {PURPOSE}",
        "contact Eva, eva@example.org",
        "approval 2026-01",
        "expires 2999-01-01 00:00:00 UTC",
    ]


def test_an_operator_changes_where_mail_goes(known: Shell) -> None:
    def address() -> str | None:
        return json.loads(known.run("operator", "site", "list", "--json"))[0]["email"]

    email, new = ("operator", "site", "email", "aarhus"), "new@aarhus.example"
    known.run("operator", "site", "add", "aarhus", "--email", "it@aarhus.example")
    assert "it@aarhus.example" in known.run("operator", "site", "list")
    known.run(*email, new)
    assert f"aarhus: notifications are mailed to {new}" in known.err
    assert address() == new
    known.run(*email, "--remove")
    assert address() is None
    for wrong in ((), ("x@y.example", "--remove"), ("it@aarhus.example\nBcc: x@y.example",)):
        known.run(*email, *wrong, code=2)
        assert "Bcc" not in known.err


def test_an_operator_accepts_a_sites_table(known: Shell) -> None:
    tables = ("operator", "site", "tables", "brno")
    known.run(*tables)
    assert "brno has joined no session with a protected table" in known.err
    given = ["--table", "5b0a0ad3f5f0443fbd2f3a4a8f6f7a3e", "--number", "7"]
    accept = ("site", "accept-table", "brno", *given, "--head")
    known.run("operator", *accept, "9f86d081884c7d65")
    assert f"brno: table {given[1]} is accepted with 7 changes" in known.err
    (found,) = json.loads(known.run(*tables, "--json"))
    assert (found["table_id"], found["number"]) == (given[1], 7)
    assert "9f86d081884c7d65" in known.run(*tables)
    known.run("operator", *accept, "9F86", code=2)
    assert "--head" in known.err
    known.run("operator", *accept[:4], "x", *accept[5:], "9f86d081884c7d65", code=2)
    assert "--table" in known.err
    assert json.loads(known.run(*tables, "--json")) == [found]
    known.run("operator", "site", "tables", "nobody", code=5)


def test_doctor_says_what_is_well_and_what_to_do(known: Shell) -> None:
    _write(known.place / "cadiz.csv", _rows()["cadiz"])
    known.run("eva", "session", "create", "examined", *ASKED)
    given = ["--data", "cadiz.csv", "--session", "examined", "--json"]
    found = json.loads(known.run("cadiz", "doctor", *given))
    checks = {"versions", "disk", "coordinator", "token", "session", "data"}
    assert {each["check"] for each in found} >= checks
    assert {each["state"] for each in found} == {"ok"}, found


def test_completion_knows_the_commands() -> None:
    script = Path(sys.executable).with_name("fedclust.exe" if os.name == "nt" else "fedclust")
    words = {"COMP_WORDS": "fedclust session ", "COMP_CWORD": "2"}
    env = {**clean_environment(), **words, "_FEDCLUST_COMPLETE": "complete_bash"}
    done = subprocess.run([script], env=env, capture_output=True, text=True, check=False)
    assert {"create", "watch", "result"} <= set(done.stdout.split()), done
    # Without a shell around it, the name is given.
    env = {**clean_environment(), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = [script, "--show-completion", "bash"]
    done = subprocess.run(shown, env=env, capture_output=True, text=True, check=False)
    assert "_FEDCLUST_COMPLETE=complete_bash" in done.stdout, done


# --- the agent -----------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_second_agent_is_refused_and_a_signal_ends_the_first(known: Shell) -> None:
    # Which of the two comes first is theirs to find out.
    agents = [known.start("ada", "agent") for _ in range(2)]
    eventually(lambda: any(each.poll() is not None for each in agents))
    refused, running = sorted(agents, key=lambda each: each.poll() is None)
    _, said = refused.communicate(timeout=TIMEOUT_S)
    assert refused.returncode == 8
    assert "another agent" in said
    assert running.poll() is None
    # Commands work beside it.
    data = _write(known.place / "ada.csv", _rows()["ada"])
    known.run("ada", "data", "add", "mine", "--data", str(data))
    known.run("ada", "cohort", "create", "--data", str(data), "--features", "x,y")
    known.run("ada", "backup", "--out", str(known.place / "backup.sqlite3"))
    known.run("ada", "ledger", "verify")
    assert running.poll() is None
    running.terminate()
    assert running.wait(TIMEOUT_S) == 0
