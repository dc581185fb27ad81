"""``fedclust cohort``: what it prints and refuses, and the code it ends with."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fedclust.cli import main as cli
from fedclust.durable_files import FileLock
from fedclust.site import cohorts
from support.purpose import PURPOSE


class Command:
    """Runs ``fedclust cohort`` in this process."""

    def __init__(
        self, place: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.place, self._patch, self._capsys = place, patch, capsys
        self.state, self.data = place / "state", place / "cohort.csv"
        patch.setenv("FEDCLUST_STATE_DIR", str(self.state))
        patch.setenv("FEDCLUST_JOURNAL_DIR", str(place / "journal"))
        self.out = self.err = ""

    def write(self, n: int = 80, first: int = 0) -> None:
        rng = np.random.default_rng(first)
        rows = [f"p{first + i},{rng.integers(20, 90)},{rng.normal(200, 30):.1f}" for i in range(n)]
        self.data.write_text("\n".join(["mrn,age,chol", *rows]) + "\n", "utf-8")

    def run(self, *arguments: str, typed: str | io.StringIO = "") -> int:
        return self.fedclust("cohort", *arguments, typed=typed)

    def fedclust(self, *arguments: str, typed: str | io.StringIO = "") -> int:
        stdin = io.StringIO(typed) if isinstance(typed, str) else typed
        self._patch.setattr(sys, "stdin", stdin)
        self._patch.setattr(sys, "argv", ["fedclust", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        self.out, self.err = self._capsys.readouterr()
        return int(ended.value.code or 0)

    def create(self, *arguments: str) -> int:
        named = ("--id-column", "mrn", "--features", "age,chol")
        return self.run("create", "--data", str(self.data), *named, *arguments)


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    found = Command(tmp_path, monkeypatch, capsys)
    found.write()
    return found


def test_groups_are_formed_up_front_and_shown_in_counts(command: Command) -> None:
    assert command.run("show", "--json") == 0
    assert json.loads(command.out) == []
    assert command.create("--json") == 0
    made = json.loads(command.out)
    assert made["persons"] == made["change"]["persons"] == 80
    assert made["group_sizes"][0] >= 5

    assert command.create() == 0
    assert "0 persons in 0 new groups" in command.err
    assert command.run("show", "--json") == 0
    (shown,) = json.loads(command.out)
    assert {name: made[name] for name in shown} == shown
    assert command.run("show") == 0
    assert made["table"] in command.out
    assert "p7" not in command.out


def test_groups_are_no_smaller_than_the_settings_ask(command: Command) -> None:
    command.state.mkdir()
    (command.state / "site.toml").write_text("min_group_size = 11\n", "utf-8")
    assert command.create("--min-group-size", "5", "--json") == 0
    formed = json.loads(command.out)
    assert formed["min_group_size"] == 11
    assert formed["group_sizes"][0] >= 11


def test_check_knows_the_settings_without_a_coordinator(command: Command) -> None:
    command.state.mkdir()
    (command.state / "site.toml").write_text("min_group_size = 11\n", "utf-8")
    definition = {
        "name": "heart",
        "purpose": PURPOSE,
        "algorithm": "fkm",
        "config": {"n_clusters": 2},
        "features": [{"name": "age"}, {"name": "chol"}],
        "sites": ["a", "b", "c"],
    }
    path = command.place / "heart.json"
    check = ("check", "--definition", str(path), "--data", str(command.data), "--json")
    path.write_text(json.dumps(definition), "utf-8")
    assert command.fedclust(*check) == 0
    assert json.loads(command.out)["min_group_size"] == 11
    path.write_text(json.dumps({**definition, "policy": {"protection": "none"}}), "utf-8")
    assert command.fedclust(*check) == 9
    assert json.loads(command.out)["refused"]["rule"] == "min-group-size"


def test_a_person_is_withdrawn(command: Command) -> None:
    assert command.create() == 0
    assert command.run("withdraw", "--yes", "--json", typed="p7\n") == 0
    assert json.loads(command.out) == {"tables": 1}
    assert command.run("show", "--json") == 0
    assert json.loads(command.out)[0]["withdrawn"] == 1
    assert command.run("withdraw", "--yes", typed=" p700 \n\n") == 3
    assert "no group holds this person" in command.err
    assert "p700" not in command.err


class Keyboard(io.StringIO):
    """Standard input of a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code", "withdrawn"), [("n", 4, 0), ("y", 0, 1)])
def test_a_persons_id_is_asked_for(
    command: Command, answer: str, code: int, withdrawn: int
) -> None:
    assert command.create() == 0
    assert command.run("withdraw", typed=Keyboard(f"p7\n{answer}\n")) == code
    assert "The person's id" in command.err
    assert command.run("show", "--json") == 0
    assert json.loads(command.out)[0]["withdrawn"] == withdrawn


@pytest.mark.parametrize("typed", ["", "\n", "p7\np8\n"])
def test_one_id_is_withdrawn_at_a_time(command: Command, typed: str) -> None:
    assert command.create() == 0
    assert command.run("withdraw", "--yes", typed=typed) == 2
    assert "on one line" in command.err
    assert command.run("show", "--json") == 0
    assert json.loads(command.out)[0]["withdrawn"] == 0


def test_an_id_is_no_argument(command: Command) -> None:
    """The shell's history would keep it."""
    assert command.create() == 0
    assert command.run("withdraw", "p7", "--yes") == 2


def test_a_backup_is_verified(command: Command) -> None:
    target = command.place / "copy"
    assert command.run("backup", str(target)) == 2
    assert command.create() == 0
    assert command.run("backup", str(target), "--json") == 0
    assert len(json.loads(command.out)["files"]) == 3
    assert command.run("backup", str(target)) == 2


def test_bad_input_is_refused_with_what_to_do(command: Command) -> None:
    assert command.run("create", "--data", str(command.data)) == 2
    assert "--features" in command.err
    assert command.create("--min-group-size", "81") == 3
    assert "No groups were formed" in command.err
    assert command.create() == 0
    text = command.data.read_text("utf-8")
    command.data.write_text(text + text.splitlines()[1] + "\n", "utf-8")
    assert command.create() == 3
    command.data.write_text(text.replace("p", "q"), "utf-8")
    assert command.create() == 3
    assert "ids that they had" in command.err


def test_a_store_that_cannot_be_used_ends_with_8(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.create() == 0
    directory = command.state / "cohorts"
    monkeypatch.setattr(cohorts.CohortStore.__init__, "__kwdefaults__", {"patience_s": 0.0})
    with FileLock(directory / "lock"):
        assert command.create() == 8
    assert "another process" in command.err
    (path,) = directory.glob("*.cohort")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert command.create() == 8
    assert "backup" in command.err
    path.unlink()
    assert command.create() == 8
    for each in directory.iterdir():
        each.unlink()
    assert command.create() == 8, "the ledger names a table"
    assert "groups are not formed twice" in command.err


def test_separate_groups_are_entered_in_the_ledger(command: Command) -> None:
    assert command.create() == 0
    assert command.create("--separate-groups", "board 7") == 0
    assert command.run("show", "--json") == 0
    assert len(json.loads(command.out)) == 2
    assert command.create() == 3
    assert "--cohort" in command.err


def test_a_wrong_read_needs_an_express_word(command: Command) -> None:
    """Two columns are swapped: nothing is stored, unless the site accepts it for good."""
    names = ["mrn", "a", "b", "c", "d", "e"]
    rng = np.random.default_rng(0)
    rows = [f"p{i}," + ",".join(f"{x:.3f}" for x in rng.normal(size=5)) for i in range(80)]
    asked = ("--id-column", "mrn", "--features", "a,b,c,d,e", "--data", str(command.data))

    def create(header: list[str], *arguments: str) -> int:
        command.data.write_text("\n".join([",".join(header), *rows]) + "\n", "utf-8")
        return command.run("create", *asked, *arguments)

    assert create(names) == 0
    backup = command.place / "backup"
    assert command.run("backup", str(backup)) == 0
    stored = {path: path.read_bytes() for path in command.state.rglob("*.cohort")}

    swapped = ["mrn", "b", "a", "c", "d", "e"]
    assert create(swapped) == 3
    said = " ".join(command.err.split())
    assert "a (" in said
    assert "c (" not in said
    assert "--accept-corrections" in said
    definition = {
        "name": "study",
        "purpose": PURPOSE,
        "algorithm": "lloyd",
        "config": {"n_clusters": 2},
        "features": [{"name": name, "lower": -9, "upper": 9} for name in names[1:]],
        "sites": ["north", "south", "west"],
    }
    file = command.place / "study.json"
    file.write_text(json.dumps(definition), "utf-8")
    check = ("check", "--definition", str(file), "--data", str(command.data), "--id-column", "mrn")
    assert command.fedclust(*check) == 3
    assert said in " ".join(command.err.split()), "check compares with the table that is stored"
    assert command.fedclust(*check, "--accept-corrections") == 0, command.err
    assert create(names) == 0
    assert command.fedclust(*check) == 0, command.err
    assert "persons who take part: 80" in command.out
    assert {path: path.read_bytes() for path in command.state.rglob("*.cohort")} == stored

    assert create(swapped, "--accept-corrections") == 0
    ledger = (command.place / "journal" / "ledger.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["accepted_columns"] for line in ledger] == [0, 2]
    assert create(names) == 0
    assert "0 records corrected" in " ".join(command.err.split())

    for path in backup.iterdir():
        (command.state / "cohorts" / path.name).write_bytes(path.read_bytes())
    assert create(names) != 0, "what was released since is not forgotten"
    assert "as it was released last" in " ".join(command.err.split())
