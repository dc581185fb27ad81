"""Coordinator and sites are killed at random moments; nothing is lost, doubled or different."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.crash import ROUNDS, shake
from support.databases import in_turn
from support.methods import SWEEPS, TRIED

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX"),
]


@pytest.mark.parametrize(
    ("method", "database_url"),
    in_turn(list(TRIED), list(TRIED), on_both=["lloyd"]),
    indirect=["database_url"],
)
def test_kill_9_changes_nothing(tmp_path: Path, database_url: str, method: str) -> None:
    # A session of three rounds is over after some 40 requests.
    short = TRIED[method].few
    coordinator_kills, site_kills, requests_between = (2, 2, 5) if short else (3, 2, 20)
    report = shake(
        tmp_path,
        method,
        database_url=database_url,
        coordinator_kills=coordinator_kills,
        site_kills=site_kills,
        seed=1,
        requests_between=requests_between,
    )
    assert (report.coordinator_kills, report.site_kills) == (coordinator_kills, site_kills)
    # Preparation and evaluation are rounds, too.
    assert report.rounds >= (3 if short else ROUNDS)
    assert report.submissions == report.rounds * 4


def test_kill_9_changes_nothing_in_a_sweep(tmp_path: Path, database_url: str) -> None:
    (options,) = [options for name, options in SWEEPS if name == "kfed"]
    report = shake(
        *(tmp_path, "kfed", {**options, "refine": 1}),
        database_url=database_url,
        coordinator_kills=1,
        site_kills=2,
        seed=1,
        requests_between=5,
    )
    assert (report.coordinator_kills, report.site_kills) == (1, 2)
    assert report.submissions == report.rounds * 4
