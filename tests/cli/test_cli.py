"""The command line: what it prints, writes, refuses, and the code it ends with."""

import base64
import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pandas as pd
import pytest
from typer.main import get_command

import fedclust
from fedclust.cli import console, options, participate, session
from fedclust.cli import main as cli
from fedclust.cli.session_screen import risk_of_exclusion
from fedclust.client import Client
from fedclust.site.ledger import Ledger
from fedclust.site.state import SiteState
from fedclust_service import cli as service_cli
from support.command_line import CommandLine, Terminal, at_desk
from support.fake_coordinator import FakeCoordinator, answer, refusal, three_clusters
from support.ledgers import body_lines

MINE = three_clusters(60, 3)


class Command(CommandLine):
    """Runs ``fedclust`` in this process against a coordinator that is not there."""

    def open(self) -> None:
        place, patch = self.place, self._patch
        self.fake = FakeCoordinator()
        self.token = place / "token"
        self.token.write_text("fcs_secret\n", "utf-8")
        self.token.chmod(0o600)
        self.reached = ("--token-file", str(self.token), "--coordinator", "https://c.example")
        self.data: Path | str = place / "cohort.csv"
        rows = pd.DataFrame(MINE, columns=["x", "y"], index=[f"p{i}" for i in range(len(MINE))])
        rows.to_csv(self.data, index_label="mrn")
        for name in ("FEDCLUST_TOKEN", "FEDCLUST_COORDINATOR"):
            patch.delenv(name, raising=False)
        patch.setenv("FEDCLUST_STATE_DIR", str(place / "state"))

        def connected(connection: Any, _patience: float = 0.0, *, json_bodies: bool = False) -> Any:
            assert connection.token
            return self.fake.site(place / "state", json_bodies=json_bodies)

        def asked(connection: Any, **_: Any) -> Client:
            assert connection.url
            assert connection.token
            return self.fake.site(place / "state")._client

        self._faked = {"site": connected, "client": asked}
        self._real = {name: getattr(options.Connection, name) for name in self._faked}

    def run(self, *arguments: str, real: bool = False) -> int:
        for name, way in (self._real if real else self._faked).items():
            self._patch.setattr(options.Connection, name, way)
        return super().run(*arguments)

    def site(self, command: str, *arguments: str) -> int:
        given = ("--data", str(self.data), *self.reached, *arguments)
        return self.run(*command.split(), "heart", *given)


command = at_desk(Command)


def table(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_participate_and_the_agent_take_a_registered_source(command: Command) -> None:
    """The agent's entry keeps the name, and only the options that were given."""
    named = ("--data", str(command.data), "--id-column", "mrn", "--missing", "?")
    assert command.run("data", "add", "cohort", *named) == 0
    command.data = "@cohort"
    labels = command.place / "labels.csv"
    assert command.site("participate", "--preview-out", str(command.place / "body")) == 0
    assert command.site("agent add", "--yes", "--missing", "x") == 0, command.err
    (entry,) = json.loads(command.ran("agent", "list", "--json").out)
    assert (entry["data"], entry["id_column"]) == ("@cohort", None)
    assert entry["reading"]["missing"] == ["x"]
    assert command.site("participate", "--yes", "--labels-out", str(labels)) == 0, command.err
    assert table(labels)[0] == ["mrn", "cluster"]


def test_participate_from_the_consent_screen_to_labels(command: Command) -> None:
    labels = command.place / "labels.csv"
    outputs = ("--labels-out", str(labels), "--json")
    assert command.site("participate", "--yes", "--id-column", "mrn", *outputs) == 0, command.err
    summary = json.loads(command.out)
    assert summary["clusters"] == 3
    assert sum(summary["own_sizes"]) == 60
    for text in (command.fake.sha256, "ada", "alpha, beta, me"):
        assert text in command.said
    assert "Everything is computed from these records, whoever asks" in command.said
    written = table(labels)
    assert written[0] == ["mrn", "cluster"]
    assert [row[0] for row in written[1:]] == [f"p{i}" for i in range(60)]
    assert "fcs_secret" not in command.out + command.err
    if sys.platform != "win32":
        assert labels.stat().st_mode & 0o077 == 0


def test_preview_shows_the_bytes_and_sends_none(command: Command) -> None:
    assert command.site("participate", "--preview", "--json") == 0
    shown = json.loads(command.out)
    body = base64.b64decode(shown["body"])
    assert command.site("participate", "--preview") == 0
    dumped = "".join(
        line[10:].replace(" ", "") for line in command.out.splitlines() if line[8:10] == "  "
    )
    assert bytes.fromhex(dumped) == body
    assert shown["sha256"] in command.err
    assert command.site("participate", "--preview-out", str(command.place / "body")) == 0
    assert (command.place / "body").read_bytes() == body
    assert command.site("participate", "--preview", "--json-bodies") == 0
    assert json.loads(command.out)["phase"] == "prepare"
    assert all(request.startswith("GET") for request in command.fake.requests)
    assert Ledger(SiteState()).head()[0] == 0
    assert command.site("participate", "--yes") == 0
    assert command.fake.accepted[1] == body


def test_an_answer_at_the_prompt(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    class Typist(Terminal):
        def readline(self, *_: Any) -> str:
            line = super().readline()
            if line == "^C\n":
                raise KeyboardInterrupt
            return line

    assert command.site("participate") == 4, "there is nobody to ask"
    assert "--yes" in command.err
    for typed in ("", "\n", "n\n", "what\nNo\n"):
        monkeypatch.setattr(sys, "stdin", Typist(typed))
        assert command.site("participate") == 4, typed
    monkeypatch.setattr(sys, "stdin", Typist("^C\n"))
    assert command.site("participate") == 130
    assert "same command again" in command.err
    assert command.fake.joined is None
    monkeypatch.setattr(sys, "stdin", Typist("Yes\n"))
    assert command.site("participate") == 0


def test_ask_each_asks_before_every_one(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def confirmed(question: str, instead: str) -> bool:
        asked.append(question)
        return len(asked) < 4

    for module in (console, participate):
        monkeypatch.setattr(module, "confirmed", confirmed)
    assert command.site("participate", "--ask", "each") == 4
    assert len(asked) == 4
    assert len(command.fake.puts) == 2
    assert "exact bytes" in command.err
    assert "to decide again, run the same command" in command.err


def test_status_and_ledger(command: Command) -> None:
    assert command.ran("ledger", "show").err == "nothing has left\n"
    assert command.run("ledger", "verify") == 0
    assert command.site("participate", "--yes") == 0
    n = len(command.fake.accepted)
    (status,) = json.loads(command.ran("status", *command.reached, "--json").out)
    assert (status["state"], status["sent"], status["in_flight"]) == ("completed", n, 0)
    assert "completed" in command.ran("status", "heart", *command.reached).out
    lines = [json.loads(line) for line in command.ran("ledger", "show", "--json").out.splitlines()]
    assert lines[0]["event"] == "cohort"
    assert [line["round"] for line in lines[1:]] == list(range(1, n + 1))
    assert command.ran("ledger", "show", "--session", "other", "--json").out == ""
    assert "evidence" in command.ran("ledger", "show").out
    head = json.loads(command.ran("ledger", "verify", "--json").out)["head"]
    assert command.run("ledger", "verify", "--head", head) == 0
    assert command.run("ledger", "verify", "--head", "0" * 64) == 8


def test_what_is_missing_in_the_ledger_is_found_by_the_journals(command: Command) -> None:
    state = command.place / "state"
    assert command.site("participate", "--yes") == 0
    lines = body_lines(state)
    with SiteState(state).write() as connection:
        connection.execute("DELETE FROM ledger")
        connection.execute("DELETE FROM documents WHERE name = 'ledger-head'")
    shorter = Ledger(SiteState(state))
    for line in lines[:-1]:
        shorter.append({k: v for k, v in line.items() if k not in ("line", "previous")})
    assert shorter.verify() == []
    assert f"round {len(lines)}: no line" in command.ran("ledger", "verify", code=8).err


def test_a_body_in_flight_is_shown(command: Command) -> None:
    def lost(request: Any) -> Any:
        return refusal("unauthenticated") if "submission" in request.url.path else None

    command.fake.before = lost
    assert command.site("participate", "--yes") == 5
    assert "in flight" in command.ran("ledger", "show").out


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "code", "said"),
    [
        (lambda: refusal("unauthenticated", "ask your operator"), 5, "ask your operator"),
        (lambda: refusal("not-found", "ask your operator"), 5, "ask your operator"),
        (lambda: refusal("unavailable", "ask your operator"), 6, "ask your operator"),
        (lambda: refusal("forbidden", "no\x1b[2J[red]\x07"), 5, "[red]"),
        (lambda: answer(200, b"<html>", "text/html"), 6, ""),
        (lambda: httpx.ConnectError("no"), 6, ""),
        (lambda: RuntimeError("row 7 holds SECRET"), 1, "RuntimeError"),
    ],
)
def test_what_the_coordinator_says_ends_the_command(
    command: Command, reply: Callable[[], Any], code: int, said: str
) -> None:
    """It cannot steer the terminal, and an unforeseen error shows its type alone."""

    def before(_: httpx.Request) -> httpx.Response:
        if isinstance(found := reply(), Exception):
            raise found
        return found

    command.fake.before = before
    assert command.site("participate", "--yes") == code
    assert said in command.err
    assert not [each for each in ("SECRET", "\x1b") if each in command.err]


def test_a_failed_session(command: Command) -> None:
    command.fake.state, command.fake.failure = "failed", "too_few_contributors"
    assert command.site("participate", "--yes") == 7
    assert "too_few_contributors" in command.err


@pytest.mark.skipif(sys.platform == "win32", reason="file modes are POSIX")
def test_a_token_file_that_others_can_read(command: Command) -> None:
    command.token.chmod(0o644)
    assert command.site("check") == 2
    assert "chmod 600" in command.err


def test_an_output_replaces_neither_the_data_nor_another_output(command: Command) -> None:
    before = command.data.read_bytes()
    same = str(command.place / "state" / ".." / command.data.name)
    (command.place / "state").mkdir(exist_ok=True)
    assert command.site("participate", "--yes", "--labels-out", same) == 2
    assert command.data.name in command.err
    out = str(command.place / "out")
    assert command.site("participate", "--yes", "--labels-out", out, "--result-out", out) == 2
    assert command.site("participate", "--yes", "--labels-out", str(command.place)) == 2
    assert not command.fake.requests
    assert command.site("participate", "--yes", "--result-out", out) == 0
    data = ("--data", str(command.data))
    for target in (out, str(command.data)):
        assert command.run("predict", out, *data, "--out", target) == 2
    assert command.data.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "code"), [(b"\xef\xbb\xbffcs_secret\r\n", 0), (b"\n", 2), (b"\xff\xfe", 2)]
)
def test_token_files_of_other_programs(command: Command, content: bytes, code: int) -> None:
    command.token.write_bytes(content)
    assert command.site("check") == code
    assert str(command.token) in command.err or code == 0


def test_a_state_that_cannot_be_written_is_exit_code_8(command: Command) -> None:
    (command.place / "state").write_text("", "utf-8")
    assert command.site("participate", "--yes") == 8
    assert "state" in command.err
    assert "unexpected" not in command.err


def test_what_is_there_already_is_replaced_if_it_was_written_by_the_same_command(
    command: Command,
) -> None:
    """Said before anything is asked of the coordinator; the same command again is no mistake."""
    labels, result = command.place / "labels.csv", command.place / "heart.fedclust"
    outputs = ("--labels-out", str(labels), "--result-out", str(result))
    for stranger in (labels, result):
        stranger.write_text("mrn,age,cluster\n7,60,2\n", "utf-8")
        assert command.site("participate", "--yes", *outputs) == 2
        assert f"{stranger} exists and holds something else" in command.err
        assert not command.fake.requests
        assert stranger.read_text("utf-8").endswith("7,60,2\n")
        stranger.unlink()
    assert command.site("participate", "--yes", *outputs) == 0, command.err
    first = labels.read_bytes()
    labels.write_text("row,cluster\n", "utf-8")
    assert command.site("participate", "--yes", *outputs) == 0, command.err
    assert labels.read_bytes() == first
    state = command.place / "state" / "state.sqlite3"
    assert command.site("participate", "--yes", "--result-out", str(state)) == 2
    # Only an attempt tells that the name is too long to be written beside.
    long = command.place / ("x" * 250 + ".csv")
    assert command.site("participate", "--yes", "--labels-out", str(long)) == 2
    assert "too long" in command.err
    assert [path.name for path in command.place.glob("*.new")] == []


def test_an_output_that_fails_at_the_end_is_written_by_the_same_command_again(
    command: Command,
) -> None:
    labels, result = command.place / "labels.csv", command.place / "heart.fedclust"

    def occupy(request: Any) -> None:
        if request.url.path.endswith("/result"):
            result.mkdir()

    command.fake.after = occupy
    outputs = ("--labels-out", str(labels), "--result-out", str(result))
    assert command.site("participate", "--yes", *outputs) == 2
    assert "the same command again" in command.err
    # The other one is there, and so is what was found out.
    assert table(labels)[0] == ["row", "cluster"]
    assert "stopped because" in command.out
    command.fake.after = lambda _request: None
    result.rmdir()
    sent = len(command.fake.puts)
    assert command.site("participate", "--yes", *outputs) == 0, command.err
    assert len(command.fake.puts) == sent
    assert result.is_file()


def test_scripts_can_read_what_every_command_says() -> None:
    def leaves(path: str, group: Any) -> Any:
        inner = getattr(group, "commands", {})
        if not inner:
            yield path, group
        for name, each in inner.items():
            yield from leaves(f"{path} {name}", each)

    found = dict(leaves("fedclust", get_command(cli.app)))
    lacking = {
        path
        for path, each in found.items()
        if not any("--json" in option.opts for option in each.params)
    }
    assert lacking == set()
    assert len(found) > 30


def test_a_watch_that_is_interrupted_says_that_the_session_goes_on(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session.Watcher, "follow", interrupted)
    said = command.ran("session", "watch", "heart", *command.reached, code=130).err
    assert "heart continues" in said


def test_a_deadline_that_has_passed_needs_a_yes(command: Command) -> None:
    assert command.run("session", "deadline", "heart", "2020-01-01T00:00Z", *command.reached) == 4
    assert "--yes" in command.err


def test_excluding_a_site_that_a_running_session_needs_is_a_risk() -> None:
    def info(state: str, policy: dict[str, int]) -> Any:
        sites = [SimpleNamespace(name=name, state="joined") for name in ("a", "b", "c")]
        policy_of = SimpleNamespace(policy=SimpleNamespace(**policy))
        return SimpleNamespace(name="heart", state=state, sites=sites, definition=policy_of)

    risk = risk_of_exclusion(info("running", {"min_sites": 3}), "c")
    assert "heart needs 3 sites, and 2 would be left" in risk
    for known, site in (
        (info("running", {"min_sites": 2}), "c"),
        (info("running", {"min_sites": 3}), "gone"),
        (info("recruiting", {"min_sites": 3}), "c"),
    ):
        assert risk_of_exclusion(known, site) is None


@pytest.mark.parametrize("words", ["participate", "check", "predict", "status", "ledger show"])
def test_every_command_has_examples(command: Command, words: str) -> None:
    out = command.ran(*words.split(), "--help", real=True).out
    assert f"\n    fedclust {words}" in out
    assert "Exit codes" in out
    assert "\x1b" not in out


def test_usage(command: Command) -> None:
    missing = command.place / "absent" / "labels.csv"
    assert command.site("participate", "--yes", "--labels-out", str(missing)) == 2
    assert not command.fake.requests
    assert command.run("participate", real=True) == 2
    assert command.site("check", "--token", "fcs_x") == 2
    assert command.run("frobnicate", real=True) == 2
    assert "no" in command.ran("check", "heart", "--data", "x.csv", real=True, code=2).err
    data = ("--data", str(command.data), "--coordinator", "http://10.0.0.1")
    assert command.run("check", "heart", *data, "--token-file", str(command.token), real=True) == 2
    assert "https" in command.err
    assert command.run("check", "heart", *data, real=True) == 2
    assert "Exit codes" in command.ran("--help", real=True).out


def test_both_commands_print_their_version(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.ran("--version").out == f"fedclust {fedclust.__version__}\n"
    monkeypatch.setattr(sys, "argv", ["fedclust-service", "--version"])
    assert service_cli.main() == 0
    assert capsys.readouterr().out == f"fedclust-service {fedclust.__version__}\n"
