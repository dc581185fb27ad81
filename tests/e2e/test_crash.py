"""Coordinator and sites are killed at random moments; nothing is lost, doubled or different."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.crash import ROUNDS, shake
from support.methods import TRIED

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX"),
]


@pytest.mark.parametrize("method", TRIED)
def test_kill_9_changes_nothing(tmp_path: Path, database_url: str, method: str) -> None:
    report = shake(
        tmp_path,
        method,
        database_url=database_url,
        coordinator_kills=5,
        site_kills=3,
        seed=1,
        requests_between=20,
    )
    assert (report.coordinator_kills, report.site_kills) == (5, 3)
    # Preparation and evaluation are rounds, too.
    assert report.rounds >= ROUNDS
    assert report.submissions == report.rounds * 4
