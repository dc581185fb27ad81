"""What commands say of outcomes before any point is spent."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command_line import CommandLine
from support.consortium import Consortium
from support.local_coordinator import local_coordinator
from support.purpose import PURPOSE

SITES = ("north", "south", "west")
DIED = {"name": "died", "kind": "binary", "role": "outcome"}
STUDY: dict[str, Any] = {
    "purpose": PURPOSE,
    "sites": list(SITES),
    "features": [{"name": "age"}, {"name": "died", "kind": "binary"}, DIED],
    "defaults": {"algorithm": "fkm", "config": {"n_clusters": 2}},
}
SESSION: dict[str, Any] = {
    **{key: value for key, value in STUDY.items() if key != "defaults"},
    **STUDY["defaults"],
}
Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("worth")
    with local_coordinator(place) as local:
        there = Consortium.found(local.base_url, local.operator_token, SITES)
        (place / "token").write_text(there.analyst_token, "utf-8")
        (place / "token").chmod(0o600)
        (place / "url").write_text(local.base_url, "utf-8")
        (place / "heart.json").write_text(json.dumps(SESSION), "utf-8")
        (place / "study.json").write_text(json.dumps(STUDY), "utf-8")
        yield place


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine) -> Run:
    monkeypatch.chdir(place)
    monkeypatch.setenv("FEDCLUST_COORDINATOR", (place / "url").read_text("utf-8"))
    monkeypatch.setenv("FEDCLUST_TOKEN_FILE", "token")

    def fedclust(*words: str) -> tuple[int, str]:
        code = command_line.run(*words)
        return code, " ".join((command_line.out + command_line.err).split())

    return fedclust


def test_a_check_creates_nothing_and_says_whether_to_ask(run: Run) -> None:
    check = ("session", "create", "heart", "--file", "heart.json", "--check")
    code, said = run(*check)
    assert code == 0
    assert "the definition is complete; nothing was created" in said
    assert "outcomes ask 10 points of the allowance of each site (died 10)" in said
    code, said = run(*check, "--persons", "600", "--shares", "died=0.1")
    assert "died: too few points." in said
    assert "21 points would be enough." in said
    assert "Ask once: points" in said
    assert "warning: No lower or no upper bound: age." in said
    code, said = run(*check, "--json")
    assert json.loads(said)["definition"]["name"] == "heart"
    assert [each.split(":")[0] for each in json.loads(said)["warnings"]] == [
        "No lower or no upper bound",
        "No contact and no ethics approval is given",
    ]
    code, said = run("session", "list", "--json")
    assert json.loads(said) == []
    code, said = run(*check, "--shares", "died=12")
    assert (code, "--shares: died=12: give NAME=SHARE" in said) == (2, True)
    # Of several K the recommended one counts.
    assert run(*check, "--clusters", "2,3")[0] == 0


def test_a_study_shows_its_points_before_its_first_session(run: Run) -> None:
    code, said = run("study", "create", "hearts", "--file", "study.json")
    assert code == 0
    assert "10 points of the allowance of each site (died 10). Ask once" in said
    # The study completes what is checked.
    code, said = run("session", "create", "one", "--study", "hearts", "--check")
    assert (code, "outcomes ask 10 points" in said) == (0, True)
    # A column that is a feature and an outcome is taken as both.
    named = ("--features", "age,died")
    code, said = run("session", "create", "one", "--study", "hearts", *named, "--check", "--json")
    found = json.loads(said)["definition"]["features"]
    assert [each.get("role", "feature") for each in found] == ["feature", "feature", "outcome"]
    code, said = run("session", "create", "one", "--study", "hearts", *named)
    assert "points 10 points of the allowance of each site (died 10)" in said
