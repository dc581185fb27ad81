"""Commands that read rows show on a terminal how far they have come."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedclust.cli import console
from fedclust.cli import main as cli
from fedclust.cli.options import Connection
from fedclust.site import progress
from support.command_line import Terminal
from support.fake_coordinator import FakeCoordinator, three_clusters
from support.purpose import PURPOSE

SESSION = {
    "name": "heart",
    "purpose": PURPOSE,
    "algorithm": "lloyd",
    "config": {"n_clusters": 2},
    "features": [{"name": "x"}, {"name": "y"}],
    "sites": ["a", "b", "c"],
}


@pytest.mark.parametrize(
    "command",
    [
        "cohort create --data rows.csv --features x,y",
        "check --definition session.json --data rows.csv",
        "check heart --data rows.csv",
        "participate heart --data rows.csv --preview --json",
        "participate heart --data rows.csv --yes",
        "agent add heart --data rows.csv --yes",
    ],
)
def test_reading_is_shown(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCoordinator({"alpha": three_clusters(50, 1), "beta": three_clusters(45, 2)})
    with (tmp_path / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["x", "y"], *three_clusters(60, 3).tolist()])
    (tmp_path / "session.json").write_text(json.dumps(SESSION), "utf-8")

    def site(_: Connection, *__: Any, **___: Any) -> Any:
        return fake.site(tmp_path / "journal")

    def client(_: Connection, *__: Any) -> Any:
        return fake.site(tmp_path / "journal")._client

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDCLUST_STATE_DIR", str(tmp_path / "journal"))
    monkeypatch.setattr(Connection, "site", site)
    monkeypatch.setattr(Connection, "client", client)
    monkeypatch.setattr(progress, "SLOW_S", 0.0)
    terminal = Console(file=(file := Terminal()), force_terminal=True, width=80, no_color=True)
    monkeypatch.setattr(console, "err", terminal)
    monkeypatch.setattr(sys, "argv", ["fedclust", *command.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    shown = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", file.getvalue())
    assert "rows.csv: 60 rows read" in shown
