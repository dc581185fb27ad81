"""What commands say of outcomes before any point is spent."""

import json
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consortium]:
    with local_coordinator(tmp_path_factory.mktemp("worth")) as local:
        yield Consortium.found(local.base_url, local.operator_token, SITES)


@pytest.fixture
def desk(
    there: Consortium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    for name, definition in (("heart.json", SESSION), ("study.json", STUDY)):
        Path(name).write_text(json.dumps(definition), "utf-8")
    monkeypatch.setenv("FEDCLUST_COORDINATOR", there.url)
    monkeypatch.setenv("FEDCLUST_TOKEN", there.analyst_token)
    return command_line


def test_a_check_creates_nothing_and_says_whether_to_ask(desk: CommandLine) -> None:
    check = ("session", "create", "heart", "--file", "heart.json", "--check")
    said = desk.ran(*check).said
    assert "the definition is complete; nothing was created" in said
    assert "outcomes ask 10 points of the allowance of each site (died 10)" in said
    said = desk.ran(*check, "--persons", "600", "--shares", "died=0.1").said
    assert "died: too few points." in said
    assert "21 points would be enough." in said
    assert "Ask once: points" in said
    assert "warning: No lower or no upper bound: age." in said
    found = json.loads(desk.ran(*check, "--json").said)
    assert found["definition"]["name"] == "heart"
    assert [each.split(":")[0] for each in found["warnings"]] == [
        "No lower or no upper bound",
        "No contact and no ethics approval is given",
    ]
    assert json.loads(desk.ran("session", "list", "--json").said) == []
    said = desk.ran(*check, "--shares", "died=12", code=2).said
    assert "--shares: died=12: give NAME=SHARE" in said
    # Of several K the recommended one counts.
    assert desk.run(*check, "--clusters", "2,3") == 0


def test_a_study_shows_its_points_before_its_first_session(desk: CommandLine) -> None:
    asked = "10 points of the allowance of each site (died 10)"
    said = desk.ran("study", "create", "hearts", "--file", "study.json").said
    assert f"{asked}. Ask once" in said
    # The study completes what is checked.
    create = ("session", "create", "one", "--study", "hearts")
    assert "outcomes ask 10 points" in desk.ran(*create, "--check").said
    # A column that is a feature and an outcome is taken as both.
    create = (*create, "--features", "age,died")
    found = json.loads(desk.ran(*create, "--check", "--json").said)["definition"]["features"]
    assert [each.get("role", "feature") for each in found] == ["feature", "feature", "outcome"]
    assert f"points {asked}" in desk.ran(*create).said
