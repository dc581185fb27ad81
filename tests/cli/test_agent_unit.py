"""The agent's unit for systemd: what the page shows, and what the program takes."""

from __future__ import annotations

import configparser
import inspect
import re
from pathlib import Path

import pytest

from fedclust.cli import options
from fedclust.cli.help_text import EXIT_CODES
from fedclust.wire.errors import UsageError

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "fedclust-agent.service"
pytestmark = pytest.mark.skipif(not UNIT.exists(), reason="not the repository's tree")


def test_the_page_shows_the_file() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    shown = re.search(r"```ini\n(.*?)```", page, re.S)
    assert shown[1] == UNIT.read_text("utf-8")


def test_the_unit_runs_what_there_is_and_stops_where_restarting_does_not_help() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT, "utf-8")
    service = unit["Service"]
    assert service["ExecStart"].split()[1:] == ["agent"]
    assert service["RestartPreventExitStatus"] == str(dict(EXIT_CODES)[UsageError])
    text = UNIT.read_text("utf-8")
    used = set(re.findall(r"^Environment=(FEDCLUST_\w+)=", text, re.M))
    options_of = set(re.findall(r'envvar="(\w+)"', inspect.getsource(options)))
    assert used <= options_of | {"FEDCLUST_STATE_DIR"}
    # Token, journal and labels are for this user alone.
    assert (service["UMask"], service["StateDirectoryMode"]) == ("0077", "0700")
