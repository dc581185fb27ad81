"""The README's own lines, run against a real coordinator."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
import threading
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.consortium import Consortium
from support.processes import clean_environment
from support.server import running_server
from support.timeouts import TIMEOUT_S, eventually

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
SITES = ("budapest", "cleveland", "zurich")


def block(language: str, containing: str) -> str:
    """Return the README's only code block of a language that contains a text."""
    found = [
        text for text in re.findall(rf"```{language}\n(.*?)```", README, re.S) if containing in text
    ]
    assert len(found) == 1
    return found[0]


def _await_session(consortium: Consortium) -> None:
    """Return once the session exists."""
    with consortium.analyst() as analyst:
        eventually(lambda: [each.name for each in analyst.sessions()])


def _shell(script: str, directory: Path) -> subprocess.Popen[str]:
    """Run commands of the README, each of which has to succeed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.Popen(
        ["sh", "-ec", script],
        cwd=directory,
        env={**clean_environment(), "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _done(commands: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = commands.communicate(timeout=TIMEOUT_S)
    assert commands.returncode == 0, err
    return out, err


def test_a_session_of_your_own(tmp_path: Path) -> None:
    """From nothing to two sites' labels, by the README's lines; files from two spreadsheets."""
    rng = np.random.default_rng(4)
    for name, mark in (("north", ","), ("south", ";"), ("new", ",")):
        rows = [
            [f"{name}-{i}", *(f"{x:.3f}" for x in rng.normal(10 * (i % 2), 1, 3)), "kept"]
            for i in range(40)
        ]
        lines = [["patient_id", "radius", "texture", "area", "note"], *rows]
        text = "\n".join(mark.join(line) for line in lines)
        (tmp_path / f"{name}.csv").write_text(text, "utf-8-sig")

    begin = block("sh", "init --token-out").replace("fedclust-service serve", ": ")
    assert "fco_" not in "".join(_done(_shell(begin, tmp_path)))
    with running_server(tmp_path / "fedclust-data") as server:

        def commands(containing: str) -> str:
            text = block("sh", containing).replace("http://127.0.0.1:8400", server.base_url)
            # Nobody is asked here.
            return text.replace("fedclust participate trial", "fedclust participate trial --yes")

        preparing, mark, taking_part = commands("site add north").partition("fedclust participate")
        _done(_shell(preparing, tmp_path))
        environment = f"export FEDCLUST_COORDINATOR={server.base_url}\n"
        north = _shell(environment + mark + taking_part, tmp_path)
        south = _shell(commands("token-file south.token"), tmp_path)
        for site, (out, err) in (("north", _done(north)), ("south", _done(south))):
            other = "south" if site == "north" else "north"
            assert f"With two sites, {other} can subtract its own part" in err
            assert f"each row's cluster: {site}-labels.csv" in err
            assert "own sizes        20, 20" in out
        out, err = _done(_shell(environment + commands("session result trial"), tmp_path))
    assert "the coordinator's audit trail has all" in out + err
    for name in ("north", "south", "new"):
        with (tmp_path / f"{name}-labels.csv").open(encoding="utf-8") as file:
            labels = list(csv.DictReader(file))
        found = [{each["cluster"] for each in labels[odd::2]} for odd in (0, 1)]
        assert len(labels) == 40
        assert sorted(map(sorted, found)) == [["0"], ["1"]]
        assert labels[3]["patient_id"] == f"{name}-3"


class _Person(io.StringIO):
    """A terminal with somebody who always says yes."""

    def isatty(self) -> bool:
        return True

    def readline(self, *_: Any) -> str:
        return "yes\n"


def test_what_the_readme_says_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_STATE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "state"))
    rng = np.random.default_rng(4)
    (tmp_path / "heart.json").write_text(block("json", "features"), "utf-8")
    for name in SITES:
        age, chol = rng.uniform(20, 90, 80), rng.normal(220, 40, 80)
        lines = [f"{a},{rng.integers(0, 2)},{c}" for a, c in zip(age, chol, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,sex,chol", *lines]), "utf-8")

    with running_server(tmp_path / "server") as server:
        consortium = Consortium.found(server.base_url, server.operator_token, SITES)
        token = tmp_path / "analyst.token"
        token.write_text(consortium.analyst_token, "utf-8")
        token.chmod(0o600)
        script = block("sh", "session create heart-2026")
        commands = _shell(script.replace("https://coordinator.example", server.base_url), tmp_path)
        _await_session(consortium)
        code = block("python", "Site(").replace("https://coordinator.example", server.base_url)
        seen: dict[str, Any] = {}

        def take_part(name: str) -> None:
            mine = code.replace("fcs_...", consortium.site_tokens[name])
            mine = mine.replace("cohort.csv", str(tmp_path / f"{name}.csv"))
            scope: dict[str, Any] = {}
            exec(compile(mine, "README.md", "exec"), scope)  # noqa: S102 - our own text
            seen[name] = scope["result"]

        monkeypatch.setattr(sys, "stdin", _Person())
        monkeypatch.setattr(sys, "stderr", _Person())
        threads = [threading.Thread(target=take_part, args=(name,)) for name in SITES]
        with redirect_stdout(io.StringIO()):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(TIMEOUT_S)
        assert {name: result.labels_.shape for name, result in seen.items()} == dict.fromkeys(
            SITES, (80,)
        )

        _done(commands)
        with (tmp_path / "centroids.csv").open(encoding="utf-8") as file:
            assert file.readline().strip() == "cluster,size,age,sex,chol"

        code = block("python", "Client(").replace("https://coordinator.example", server.base_url)
        code = code.replace("fca_...", consortium.analyst_token)
        out = io.StringIO()
        rows = {f"X{letter}": rng.random((60, 3)) for letter in "abc"}
        with redirect_stdout(out):
            exec(compile(code, "README.md", "exec"), rows)  # noqa: S102 - our own text
        assert out.getvalue().startswith("completed (")
