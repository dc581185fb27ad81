"""Coordinator and sites are killed at random moments; nothing is lost, doubled or different."""

import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.random_kills import ROUNDS, run_with_kills
from support.method_variants import SWEEPS, TRIED

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX"),
    pytest.mark.usefixtures("all_clouds"),
]

#: Each takes as long as forty other tests: the others are among the long ones. Here, many rounds
#: and few, tasks for all and for each site.
DEFAULT = {"sqlite": ("overlap",), "postgresql": ("lloyd",)}


def _case(method: str, kind: str) -> Any:
    marks = [] if method in DEFAULT[kind] else [pytest.mark.long]
    return pytest.param(method, kind, id=f"{kind}-{method}", marks=marks)


@pytest.mark.parametrize(
    ("method", "database_url"),
    [_case(method, kind) for kind in DEFAULT for method in TRIED],
    indirect=["database_url"],
)
def test_kill_9_changes_nothing(tmp_path: Path, database_url: str, method: str) -> None:
    # A session of three rounds is over after some 40 requests.
    short = TRIED[method].few
    coordinator_kills, site_kills, requests_between = (2, 2, 5) if short else (3, 2, 20)
    report = run_with_kills(
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


@pytest.mark.long
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_kill_9_changes_nothing_in_a_sweep(tmp_path: Path, database_url: str) -> None:
    (options,) = [options for name, options in SWEEPS if name == "kfed"]
    # A third K would only be computed.
    options = {**options, "n_clusters": [2, 3], "refine": 1}
    report = run_with_kills(
        *(tmp_path, "kfed", options),
        database_url=database_url,
        coordinator_kills=1,
        site_kills=2,
        seed=1,
        requests_between=5,
    )
    assert (report.coordinator_kills, report.site_kills) == (1, 2)
    assert report.submissions == report.rounds * 4
