"""The README's own lines, run against a real coordinator."""

from __future__ import annotations

import io
import json
import re
import threading
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclust import Client
from support.consortium import Consortium
from support.server import running_server

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
SITES = ("budapest", "cleveland", "zurich")


def block(language: str, containing: str) -> str:
    """Return the README's only code block of a language that contains a text."""
    found = [
        text for text in re.findall(rf"```{language}\n(.*?)```", README, re.S) if containing in text
    ]
    assert len(found) == 1
    return found[0]


def test_what_the_readme_says_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_STATE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "state"))
    rng = np.random.default_rng(4)
    request = re.search(r"--json '(\{.*?\})'", block("sh", "--json"), re.S)
    assert request is not None
    definition = json.loads(request[1])
    for name in SITES:
        age, chol = rng.uniform(20, 90, 80), rng.normal(220, 40, 80)
        lines = [f"{a},{rng.integers(0, 2)},{c}" for a, c in zip(age, chol, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,sex,chol", *lines]), "utf-8")

    with running_server(tmp_path / "server") as server:
        consortium = Consortium.found(server.base_url, server.operator_token, SITES)
        with Client(server.base_url, consortium.analyst_token) as analyst:
            analyst.create_session(definition)
        code = block("python", "Site(").replace("https://coordinator.example", server.base_url)
        seen: dict[str, Any] = {}

        def take_part(name: str) -> None:
            mine = code.replace("fcs_...", consortium.site_tokens[name])
            mine = mine.replace("cohort.csv", str(tmp_path / f"{name}.csv"))
            scope: dict[str, Any] = {}
            exec(compile(mine, "README.md", "exec"), scope)  # noqa: S102 - our own text
            seen[name] = scope["result"]

        threads = [threading.Thread(target=take_part, args=(name,)) for name in SITES]
        with redirect_stdout(io.StringIO()):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        assert {name: result.labels_.shape for name, result in seen.items()} == dict.fromkeys(
            SITES, (80,)
        )

        code = block("python", "Client(").replace("https://coordinator.example", server.base_url)
        code = code.replace("fca_...", consortium.analyst_token)
        out = io.StringIO()
        rows = {f"X{letter}": rng.random((60, 3)) for letter in "abc"}
        with redirect_stdout(out):
            exec(compile(code, "README.md", "exec"), rows)  # noqa: S102 - our own text
        assert out.getvalue().startswith("completed (")
