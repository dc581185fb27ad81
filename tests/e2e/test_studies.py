"""A study by commands: an analyst makes it and its sessions, a site checks and is asked again."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from support.api_caller import FEATURES, ApiCaller
from support.command_line import CommandLine
from support.purpose import PURPOSE
from support.server import running_server

SITES = ("ada", "brno", "cadiz")
Run = Callable[..., str]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiCaller]:
    """Return a coordinator and the tokens of its people."""
    with running_server(tmp_path_factory.mktemp("studies") / "server") as server:
        yield ApiCaller.found(server, SITES, "eva")


@pytest.fixture
def run(
    api: ApiCaller, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine, tmp_path: Path
) -> Run:
    """Run ``fedclust`` as somebody; return what it prints, with standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDCLUST_COORDINATOR", api.base_url)
    monkeypatch.setenv("FEDCLUST_STATE_DIR", str(tmp_path / "state"))

    def act(who: str, *arguments: str, code: int = 0) -> str:
        monkeypatch.setenv("FEDCLUST_TOKEN", api.tokens[who])
        assert command_line.run(*arguments) == code, command_line.err
        return command_line.out + command_line.err * ("--json" not in arguments)

    return act


def test_a_study_from_its_creation_to_its_deletion(run: Run, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(json.dumps({"features": FEATURES}), "utf-8")
    asked = ["--sites", ",".join(SITES), "--purpose", PURPOSE, "--algorithm", "lloyd"]
    made = ("study", "create", "hearts", "--file", "study.json", *asked, "--clusters", "4")
    assert "fedclust session create NAME --study hearts" in run("eva", *made)
    assert '{"algorithm": "lloyd", "config": {"n_clusters": 4}}' in run("eva", *made)
    assert "hearts" in run("eva", "study", "list")

    def definition(name: str) -> dict[str, Any]:
        shown = json.loads(run("eva", "session", "show", name, "--json"))
        assert shown["study"] == "hearts"
        return dict(shown["definition"])

    run("eva", "session", "create", "four", "--study", "hearts", "--title", "With four")
    assert definition("four")["config"]["n_clusters"] == 4
    run("eva", "session", "create", "five", "--from", "four", "--clusters", "5")
    five = definition("five")
    assert (five["config"]["n_clusters"], five["title"]) == (5, "With four")
    run("eva", "session", "create", "ages", "--study", "hearts", "--features", "age")
    assert [each["upper"] for each in definition("ages")["features"]] == [120.0]
    listed = run("eva", "session", "list", "--study", "hearts")
    assert all(name in listed for name in ("four", "five", "ages", "hearts"))
    assert "five" in run("eva", "study", "show", "hearts")

    # Mistakes are named: a feature, an option of another method, a field of a file, a study.
    wrong = ("session", "create", "agex", "--study", "hearts", "--features", "agge")
    assert 'study hearts has no feature "agge": did you mean "age"?' in run("eva", *wrong, code=2)
    text = run("eva", "session", "create", "kfed", "--from", "four", "--algorithm", "kfed")
    assert "not taken over from four: options of lloyd (" in text
    assert definition("kfed")["config"]["n_clusters"] == 4
    run("eva", "session", "delete", "kfed", "--yes")
    run("eva", "session", "list", "--study", "heart", code=5)

    # A site checks its rows against all of them, and sends nothing.
    numbers = np.arange(40)
    ages = pd.DataFrame({"age": 30 + numbers % 23})
    ages.to_csv(tmp_path / "bad.csv", index=False)
    ages.assign(chol=150 + 7 * (numbers % 17)).to_csv(tmp_path / "good.csv", index=False)
    text = run("ada", "check", "--study", "hearts", "--data", "good.csv")
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert all(lines[name].rstrip().endswith("ok") for name in ("four", "five", "ages")), text
    checked = json.loads(
        run("ada", "check", "--study", "hearts", "--data", "bad.csv", "--json", code=3)
    )
    refused = {each["session"]: each["refused"] for each in checked["sessions"]}
    assert refused["ages"] is None
    assert refused["four"]["rule"] == refused["five"]["rule"] == "missing-column"
    text = run("ada", "check", "--study", "hearts", "--data", "bad.csv", code=3)
    assert "four, five" in text
    assert text.count("column here") == 1, "sessions that read the rows in one way are one reading"

    # The site's agent has consented to a session that is deleted, and made again otherwise.
    run("ada", "agent", "add", "four", "--data", "good.csv", "--yes")
    run("ada", "agent", "add", "five", "--data", "good.csv", "--yes")
    for name in ("four", "five"):
        assert "--yes" in run("eva", "session", "delete", name, code=4)
        run("eva", "session", "delete", name, "--yes")
    run("eva", "session", "create", "four", "--study", "hearts", "--clusters", "6")
    assert definition("four")["config"]["n_clusters"] == 6
    assert "no session is left" in run("ada", "agent", "--until-done")
    entries = {e["session"]: e for e in json.loads(run("ada", "agent", "list", "--json"))}
    assert {each["state"] for each in entries.values()} == {"ended"}
    assert "fedclust agent add four" in entries["four"]["said"]
    assert "may have deleted it" in entries["five"]["said"]

    remaining = run("eva", "study", "delete", "hearts", "--yes", code=5)
    assert "four, ages" in remaining or "ages, four" in remaining
    for name in ("four", "ages"):
        run("eva", "session", "delete", name, "--yes")
    run("eva", "study", "delete", "hearts", "--yes")
    run("eva", "study", "show", "hearts", code=5)


def test_what_does_not_fit_is_named(run: Run) -> None:
    asked = ["--sites", ",".join(SITES), "--purpose", PURPOSE]
    run("eva", "study", "create", "lungs", *asked, "--features", "age")
    said = run("ada", "check", "--study", "lungs", "--data", "none.csv")
    assert "no session of the study lungs invites this site yet" in said
    method = ("--algorithm", "lloyd", "--clusters", "2")
    make = ("session", "create", "one", "--study", "lungs", *method)
    assert "--sites: a session has the sites" in run("eva", *make, "--sites", "ada,brno", code=2)
    assert "no study of this name" in run("eva", *make[:4], "nothing", *method, code=2)
    run("eva", *make)
    # From a session of another study, or of none, it gets the sites of the named one.
    run("eva", "study", "create", "others", *asked)
    shown = run("eva", "session", "create", "two", "--from", "one", "--study", "others", "--json")
    assert json.loads(shown)["study"] == "others"
    assert "analyst" in run("eva", "check", "--study", "lungs", "--data", "none.csv", code=5)
