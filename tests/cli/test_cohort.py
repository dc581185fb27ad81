"""``fedclust cohort``: what it prints and refuses, and the code it ends with."""

import io
import json
import sqlite3
import sys
from contextlib import closing

import numpy as np
import pytest

from fedclust.site.state import SiteState
from support.command_line import CommandLine, Terminal, at_desk
from support.definitions import session_file

STATE = "state.sqlite3"


class Command(CommandLine):
    """Runs ``fedclust cohort`` in this process."""

    def open(self) -> None:
        self.state, self.data = self.place / "state", self.place / "cohort.csv"
        self._patch.setenv("FEDCLUST_STATE_DIR", str(self.state))
        self.write()

    def write(self, n: int = 80, first: int = 0) -> None:
        rng = np.random.default_rng(first)
        rows = [f"p{first + i},{rng.integers(20, 90)},{rng.normal(200, 30):.1f}" for i in range(n)]
        self.data.write_text("\n".join(["mrn,age,chol", *rows]) + "\n", "utf-8")

    def run(self, *arguments: str, typed: str | io.StringIO = "") -> int:
        return self.fedclust("cohort", *arguments, typed=typed)

    def fedclust(self, *arguments: str, typed: str | io.StringIO = "") -> int:
        stdin = io.StringIO(typed) if isinstance(typed, str) else typed
        self._patch.setattr(sys, "stdin", stdin)
        return super().run(*arguments)

    def create(self, *arguments: str) -> int:
        named = ("--id-column", "mrn", "--features", "age,chol")
        return self.run("create", "--data", str(self.data), *named, *arguments)


command = at_desk(Command)


def test_groups_are_formed_up_front_and_shown_in_counts(command: Command) -> None:
    assert json.loads(command.ran("show", "--json").out) == []
    assert command.create("--json") == 0
    made = json.loads(command.out)
    assert made["persons"] == made["change"]["persons"] == 80
    assert made["group_sizes"][0] >= 5

    assert command.create() == 0
    assert "0 persons in 0 new groups" in command.err
    (shown,) = json.loads(command.ran("show", "--json").out)
    assert {name: made[name] for name in shown} == shown
    assert made["table"] in command.ran("show").out
    assert "p7" not in command.out
    assert command.create("--separate-groups", "board 7") == 0
    assert len(json.loads(command.ran("show", "--json").out)) == 2


def test_groups_are_no_smaller_than_the_settings_ask(command: Command) -> None:
    command.state.mkdir()
    (command.state / "site.toml").write_text("min_group_size = 11\n", "utf-8")
    path = command.place / "heart.json"
    check = ("check", "--definition", str(path), "--data", str(command.data), "--json")
    session_file(path, "age", "chol")
    assert command.fedclust(*check) == 0
    assert json.loads(command.out)["min_group_size"] == 11
    session_file(path, "age", "chol", policy={"protection": "none"})
    assert command.fedclust(*check) == 9
    assert json.loads(command.out)["refused"]["rule"] == "min-group-size"
    assert command.create("--min-group-size", "5", "--json") == 0
    formed = json.loads(command.out)
    assert formed["min_group_size"] == 11
    assert formed["group_sizes"][0] >= 11


def test_one_person_is_withdrawn_at_a_time(command: Command) -> None:
    def withdrawn() -> int:
        return int(json.loads(command.ran("show", "--json").out)[0]["withdrawn"])

    assert command.create() == 0
    for typed in ("", "\n", "p7\np8\n"):
        assert "on one line" in command.ran("withdraw", "--yes", typed=typed, code=2).err
    # The shell's history would keep an argument.
    assert command.run("withdraw", "p7", "--yes") == 2
    assert "The person's id" in command.ran("withdraw", typed=Terminal("p7\nn\n"), code=4).err
    assert withdrawn() == 0

    assert command.run("withdraw", typed=Terminal("p7\ny\n")) == 0
    assert withdrawn() == 1
    assert json.loads(command.ran("withdraw", "--yes", "--json", typed="p8\n").out) == {"tables": 1}
    assert withdrawn() == 2
    assert command.run("withdraw", "--yes", typed=" p700 \n\n") == 3
    assert "no group holds this person" in command.err
    assert "p700" not in command.err


def test_bad_input_is_refused_with_what_to_do(command: Command) -> None:
    assert "--features" in command.ran("create", "--data", str(command.data), code=2).err
    assert command.create("--min-group-size", "81") == 3
    assert "No groups were formed" in command.err
    assert command.create() == 0
    text = command.data.read_text("utf-8")
    command.data.write_text(text + text.splitlines()[1] + "\n", "utf-8")
    assert command.create() == 3
    command.data.write_text(text.replace("p", "q"), "utf-8")
    assert command.create() == 3
    assert "80 of the 80 persons" in command.err


def test_a_state_that_cannot_be_used_ends_with_8(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.create() == 0
    command.write(20, first=500)
    others = ("--other-persons", "board 7")
    monkeypatch.setattr(SiteState.__init__, "__kwdefaults__", {"patience_s": 0.0, "name": STATE})
    with closing(sqlite3.connect(command.state / STATE, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert command.create(*others) == 8
    assert "another process" in command.err
    assert command.create(*others) == 0, command.err
    with SiteState().write() as connection:
        connection.execute("UPDATE cohorts SET content = substr(content, 2)")
    assert command.create() == 8
    assert "fedclust restore" in command.err
    with SiteState().write() as connection:
        connection.execute("DELETE FROM cohorts")
    assert command.create() == 8, "the ledger names a table"
    assert "is missing" in command.err


def test_check_says_how_many_persons_are_known_and_what_differs(command: Command) -> None:
    assert command.create() == 0
    lines = command.data.read_text("utf-8").splitlines()
    changed = [line.rsplit(",", 1)[0] + ",999" for line in lines[3:10]]
    command.data.write_text("\n".join([lines[0], *changed, *lines[10:], "q1,30,200"]) + "\n")
    path = command.place / "study.json"
    session_file(path, *({"name": name, "lower": -999, "upper": 999} for name in ("age", "chol")))
    check = ("check", "--definition", str(path), "--data", str(command.data), "--id-column", "mrn")
    assert command.fedclust(*check, "--json") == 0, command.err
    known = json.loads(command.out)["persons_known"]
    assert (known["known"], known["unknown"], known["missing"]) == (78, 1, 2)
    assert known["differing"]["chol"][0] == 7
    assert command.fedclust(*check) == 0
    assert "78 persons are known, 1 are not; 2 known persons are missing" in command.out
    assert "chol: 7 of 78 values differ from those released" in command.out

    assert command.fedclust("data", "add", "later", "--data", str(command.data)) == 0
    assert "warning: a session would refuse these rows" in command.said
    named = ("--id-column", "mrn", "--replace")
    assert command.fedclust("data", "add", "later", "--data", str(command.data), *named) == 0
    assert "chol: 7 of 78 values differ" in command.err


def test_new_ids_other_persons_and_later_measurements(command: Command) -> None:
    assert command.create() == 0
    text = command.data.read_text("utf-8")
    command.data.write_text(text.replace("p", "q"), "utf-8")
    ids = [line.split(",")[0] for line in text.splitlines()[1:]]
    pairs = command.place / "ids.csv"
    pairs.write_text("\n".join(["new,old", *(f"q{i[1:]},{i}" for i in ids)]) + "\n", "utf-8")
    assert command.create("--id-map", str(pairs)) == 0, command.err
    assert "80 persons are known" in command.err
    assert command.create("--id-map", str(pairs), "--later", "_2027", "--json") == 0
    assert json.loads(command.out)["columns"] == ["age", "chol", "age_2027", "chol_2027"]
    assert command.create("--other-persons", "board 9", "--json") == 0
    assert json.loads(command.out)["change"]["persons"] == 80
    assert len(json.loads(command.ran("show", "--json").out)) == 2
