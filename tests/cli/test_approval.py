"""``fedclust review`` and ``fedclust approve``: what they show, record and refuse."""

import json
import re
import sys
from typing import Any

import numpy as np
import pytest

from fedclust.cli import options
from fedclust.cli.agent import AgentEntries
from fedclust.site.settings import settings_path
from fedclust.site.state import SiteState, state_directory
from support.command_line import CommandLine, Terminal, at_desk
from support.fake_coordinator import URL, FakeCoordinator

RNG = np.random.default_rng(8)


class Desk(CommandLine):
    """The machine of a site whose settings require an approval."""

    def open(self) -> None:
        self.page = self.place / "review.html"
        self.fake = FakeCoordinator(purpose="Which types of patients are there?")
        self.data = self.place / "cohort.csv"
        rows = RNG.normal(size=(60, 2))
        np.savetxt(self.data, rows, delimiter=",", header="x,y", comments="")
        settings_path(state_directory()).write_text("require_approval = true\n", "utf-8")
        self.reach(self.fake, state_directory())

    def run(self, *arguments: str) -> int:
        at = ("--coordinator", URL)
        given = () if arguments[0] in ("ledger", "data") else at
        return super().run(*arguments, *given)

    def review(self, *more: str) -> int:
        given = ("--data", str(self.data), "--out", str(self.page))
        return self.run("review", "heart", *given, *more)

    def approve(self, *more: str) -> int:
        return self.run("approve", "heart", "--name", "Dr Ruth Levi", *more)

    def take_part(self, command: tuple[str, ...] = ("participate",), *more: str) -> int:
        return self.run(*command, "heart", "--data", str(self.data), *more)

    def reviewed(self, *more: str) -> str:
        assert self.review("--json", *more) == 0, self.err
        return str(json.loads(self.out)["code"])


desk = at_desk(Desk)


def test_review_approve_participate_ledger(desk: Desk) -> None:
    assert desk.review() == 0
    assert "with the code on the page" in desk.err
    code = desk.reviewed()
    assert code in desk.page.read_text("utf-8").replace("</b>", "")
    # Neither --yes nor a page that was only printed is an approval.
    assert desk.take_part(("participate",), "--yes") == 4
    assert f"no recorded approval in {SiteState().path}" in desk.err
    assert "Nothing is sent" in desk.err
    assert f"fedclust review heart --data {desk.data} --out" in desk.err
    assert "fedclust approve heart --name NAME" in desk.err
    assert desk.approve("--code", code[:12]) == 0
    for text in ("Which types of patients are there?", "in persons: 5", "x; y", desk.fake.sha256):
        assert text in desk.out
    assert re.search(r"^operated by +not said$", desk.out, re.MULTILINE)
    assert code[:12] not in desk.out
    assert f"approved by Dr Ruth Levi, code {code}" in desk.err
    # Nobody is asked: there is no terminal, and no --yes.
    assert desk.take_part() == 0
    assert "approved by Dr Ruth Levi" in desk.err
    assert desk.run("ledger", "verify") == 0
    assert desk.run("ledger", "show", "--session", "heart") == 0
    assert "heart approved by Dr Ruth Levi (account " in desk.out
    assert "heart reviewed, page " in desk.out
    assert desk.out.count(f"code {code}") == 3  # two reviews


def test_approving_offline_asks_no_coordinator(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert desk.approve("--offline", "--code", "0" * 12) == 2
    assert "no review of session heart is in" in desk.err
    code = desk.reviewed()

    def connect(*_: object, **__: object) -> None:
        raise AssertionError("it asked the coordinator")

    with monkeypatch.context() as patch:
        patch.setattr(options.Connection, "site", connect)
        assert desk.approve("--offline", "--code", code[1:13]) == 2
        assert desk.approve("--offline", "--code", code[:12]) == 0
    assert desk.take_part() == 0
    assert "approved by Dr Ruth Levi" in desk.err


def test_approving_is_asked_in_a_terminal_and_needs_the_code_elsewhere(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = desk.reviewed()
    shown = []

    def typing(text: str) -> int:
        monkeypatch.setattr(sys, "stdin", Terminal(text))
        ended = desk.approve()
        shown.append(desk.out + desk.err)
        return ended

    assert desk.approve() == 4
    assert "give --code" in desk.err
    assert typing("\n") == 4
    assert "session heart was not approved" in desk.err
    assert "still holds" not in desk.err
    # A yes does not show that the page was read, and no refusal gives the code away.
    assert typing("yes\n") == 2
    assert typing("0" * 12 + "\n") == 2
    assert not any(code[:6] in text for text in shown)
    assert typing(f"{code[:6]} {code[6:12]}\n") == 0
    assert "Dr Ruth Levi approves this by typing the first 12 digits" in desk.err
    assert typing("\n") == 4
    assert "the earlier approval (Dr Ruth Levi, 2026-01-05T08:00:00.000Z) still holds" in desk.err
    assert "fedclust approve heart --withdraw" in desk.err


def test_other_data_than_the_approved_ones_are_refused(desk: Desk) -> None:
    mapping, other = desk.place / "columns.toml", desk.place / "other.csv"
    mapping.write_text("[features.x]\nsentinels = [-9]\n", "utf-8")
    other.write_bytes(desk.data.read_bytes())
    mapped = ("--mapping", str(mapping))
    assert desk.approve("--code", desk.reviewed(*mapped)) == 0
    page = desk.page.read_text("utf-8")
    assert "60 persons of cohort.csv" in page
    assert "x: from column x; -9 = missing" in page
    assert "y: each from the column of the same name" in page
    mapping.write_text("[features.x]\nsentinels = [-8]\n", "utf-8")
    assert desk.take_part(("participate",), *mapped) == 4
    assert "under other terms: how columns are read. Nothing is sent" in desk.err
    mapping.write_text("[features.x]\nsentinels = [-9]\n", "utf-8")
    assert desk.run("participate", "heart", "--data", str(other), *mapped) == 4
    assert "under other terms: data source (cohort.csv before, other.csv now)" in desk.err
    # A registered source has its name too, and another file under that name is another source.
    assert desk.run("data", "add", "mine", "--data", str(desk.data)) == 0
    assert desk.run("participate", "heart", "--data", "@mine", *mapped) == 4
    assert "(cohort.csv before, @mine (cohort.csv) now)" in desk.err
    assert "fedclust review heart --data @mine" in desk.err
    assert desk.fake.joined is None
    # New rows in the same file need no new approval.
    with desk.data.open("a") as file:
        np.savetxt(file, RNG.normal(size=(9, 2)), delimiter=",")
    assert desk.take_part(("participate",), *mapped) == 0, desk.err


def test_a_withdrawal_needs_no_coordinator_and_is_shown(desk: Desk) -> None:
    assert desk.approve("--code", desk.reviewed()) == 0

    def away(_request: Any) -> Any:
        raise AssertionError("nothing is asked")

    desk.fake.before = away
    assert desk.approve("--withdraw", "--json") == 0
    assert json.loads(desk.out)[0]["session"] == "heart"
    assert desk.approve("--withdraw") == 2
    desk.fake.before = lambda _request: None
    assert desk.take_part() == 4
    assert "was withdrawn (Dr Ruth Levi" in desk.err
    assert "Nothing is sent" in desk.err
    assert "heart approval withdrawn by Dr Ruth Levi" in desk.ran("ledger", "show").out
    assert "+00:00" not in desk.out
    assert json.loads(desk.ran("status", "heart", "--json").out)[0]["approval"] == "withdrawn"


def test_a_withdrawal_says_what_was_sent_and_how_to_leave(desk: Desk) -> None:
    code = desk.reviewed()
    assert desk.approve("--code", code) == 0
    assert desk.approve("--withdraw") == 0
    assert "nothing was sent, and nothing will be" in desk.err
    assert "keeps" not in desk.err
    assert "fedclust leave" not in desk.err
    assert desk.approve("--code", code) == 0
    assert desk.take_part() == 0
    n_sent = len(desk.fake.accepted)
    assert desk.approve("--withdraw") == 0
    said = f"The coordinator keeps what was sent: {n_sent} submissions"
    assert said in desk.err
    assert "fedclust leave heart" in desk.err
    assert "withdrawn" in desk.ran("status").out


def test_the_agent_takes_only_what_is_approved(desk: Desk) -> None:
    assert desk.take_part(("agent", "add"), "--yes") == 4
    assert "no recorded approval" in desk.err
    assert AgentEntries(SiteState()).read() == []
    assert desk.approve("--code", desk.reviewed()) == 0
    assert desk.take_part(("agent", "add")) == 0
    assert [entry.session for entry in AgentEntries(SiteState()).read()] == ["heart"]


def test_a_review_replaces_only_a_review(desk: Desk) -> None:
    desk.reviewed()
    desk.reviewed()
    desk.page.write_text("<!doctype html><p>mine", "utf-8")
    assert desk.review() == 2
    assert "holds something else" in desk.err
    assert desk.run("review", "heart", "--data", str(desk.data), "--out", "review.pdf") == 2
    assert "ends in .html" in desk.err
