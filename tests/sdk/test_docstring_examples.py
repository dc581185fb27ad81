"""The examples in the docstrings of what users call, run as they stand."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclust import (
    Client,
    Feature,
    Policy,
    SessionResult,
    Site,
    simulate,
)
from fedclust.local.estimators import FederatedKMeans, FederatedSpectralClustering
from support.consortium import Consortium, declared
from support.server import running_server

ROWS = {
    name: np.random.default_rng(seed).normal(size=(60, 2)) + 20.0 * (np.arange(60) % 2)[:, None]
    for seed, name in enumerate(("berlin", "oslo", "porto"))
}


def run_examples(item: Any, **names: Any) -> None:
    module = __import__(item.__module__, fromlist=["_"])
    globs = {**vars(module), item.__name__: item, **names}
    found = doctest.DocTestFinder(recurse=False).find(item, item.__name__, module, globs)
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    assert found
    assert found[0].examples, f"{item.__name__} has no example"
    for test in found:
        assert runner.run(test).failed == 0


@pytest.mark.parametrize(
    "item",
    [
        simulate,
        FederatedKMeans,
        FederatedSpectralClustering,
        Feature,
        Policy,
    ],
)
def test_an_example_without_a_coordinator_runs_as_it_stands(item: Any) -> None:
    run_examples(item)


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Consortium, dict[str, SessionResult], Path]]:
    """A coordinator at which the session ``heart-2026`` has ended, and what its sites got."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch, running_server(folder / "server") as server:
        patch.setenv("FEDCLUST_STATE_DIR", str(folder / "state"))
        consortium = Consortium.found(server.base_url, server.operator_token, tuple(ROWS))
        consortium.create(
            "heart-2026",
            2,
            features=declared(2, -100, 100),
            algorithm="fkm",
            config={"n_clusters": 2},
            purpose="Phenotypes of heart failure.",
        )
        yield consortium, consortium.run("heart-2026", ROWS, folder / "journals"), folder


def test_the_example_of_a_site_takes_part_in_a_session(
    finished: tuple[Consortium, dict[str, SessionResult], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It resumes from the journal a session that has ended."""
    consortium, _, folder = finished
    monkeypatch.setenv("FEDCLUST_STATE_DIR", str(folder / "state"))
    monkeypatch.setenv("FEDCLUST_STATE_DIR", str(folder / "journals" / "oslo"))
    run_examples(Site, url=consortium.url, token=consortium.site_tokens["oslo"], rows=ROWS["oslo"])


def test_the_example_of_a_study_creates_one_with_a_session(
    finished: tuple[Consortium, dict[str, SessionResult], Path],
) -> None:
    consortium, _, _ = finished
    names = {"url": consortium.url, "token": consortium.analyst_token}
    run_examples(Client.create_study, **names)


def test_the_example_of_the_client_reads_the_result(
    finished: tuple[Consortium, dict[str, SessionResult], Path],
) -> None:
    consortium, _, _ = finished
    run_examples(Client, url=consortium.url, token=consortium.analyst_token)


def test_the_example_of_a_result_saves_it_and_labels_rows(
    finished: tuple[Consortium, dict[str, SessionResult], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    consortium, at_sites, _ = finished
    with Client(consortium.url, consortium.analyst_token) as client:
        of_analyst = client.result("heart-2026")
    for result in (of_analyst, at_sites["oslo"]):
        run_examples(SessionResult, result=result, rows=ROWS["oslo"])
