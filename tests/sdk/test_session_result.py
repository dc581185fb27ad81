"""What an analyst has of a session's result: labels of new rows, a file, an estimator."""

import doctest
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclust import Client, Feature, Policy, SessionResult, Site, simulate
from fedclust.local.estimators import FederatedKMeans, FederatedSpectralClustering
from fedclust.wire.errors import UsageError
from fedclust.wire.models import AuditHead
from support.command_line import CommandLine
from support.consortium import Consortium, declared
from support.server import running_server
from support.timeouts import eventually

ROWS = {
    name: np.random.default_rng(seed).normal(size=(60, 2)) + 20.0 * (np.arange(60) % 2)[:, None]
    for seed, name in enumerate(("berlin", "oslo", "porto"))
}


@dataclass
class Finished:
    """A coordinator with two sessions that have ended, and what their sites got."""

    consortium: Consortium
    at_sites: dict[str, SessionResult]
    examples: dict[str, SessionResult]
    journals: Path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """Of ``heart`` with two numbers of clusters, and ``heart-2026`` as docstrings have it."""
    folder = tmp_path_factory.mktemp("result")
    asked: dict[str, Any] = {"features": declared(2, -100, 100), "algorithm": "fkm"}
    with pytest.MonkeyPatch.context() as patch, running_server(folder / "server") as server:
        patch.setenv("FEDCLUST_STATE_DIR", str(folder / "state"))
        consortium = Consortium.found(server.base_url, server.operator_token, tuple(ROWS))
        consortium.create("heart", 2, config={"n_clusters": [2, 3]}, **asked)
        asked |= {"config": {"n_clusters": 2}, "purpose": "Phenotypes of heart failure."}
        consortium.create("heart-2026", 2, **asked)
        journals = folder / "journals"
        found = [consortium.run(name, ROWS, journals) for name in ("heart", "heart-2026")]
        yield Finished(consortium, *found, journals)


def test_an_analyst_labels_rows_as_the_site_does(finished: Finished, tmp_path: Path) -> None:
    consortium, at_site = finished.consortium, finished.at_sites["oslo"]
    with Client(consortium.url, consortium.analyst_token) as client:
        result = client.result("heart")
    assert (result.predict(ROWS["oslo"]) == at_site.predict(ROWS["oslo"])).all()
    three = result.at(3)
    assert set(three.predict(ROWS["oslo"])) == set(at_site.at(3).predict(ROWS["oslo"]))
    model = FederatedKMeans.from_result(three)
    assert (model.predict(ROWS["oslo"]) == three.predict(ROWS["oslo"])).all()
    assert not hasattr(model, "labels_")
    result.save(tmp_path / "heart.fedclust")
    loaded = SessionResult.load(tmp_path / "heart.fedclust")
    assert (loaded.predict(ROWS["oslo"]) == result.predict(ROWS["oslo"])).all()
    with pytest.raises(UsageError, match="cannot be written"):
        result.save(tmp_path / "nowhere" / "heart.fedclust")
    at_site.save(tmp_path / "site.fedclust")
    other = SessionResult.load(tmp_path / "site.fedclust")
    assert (other.provenance, other.site) == (at_site.provenance, "oslo")
    assert other.own_sizes_ == at_site.own_sizes_ == (30, 30)


@pytest.fixture
def run(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> Callable[..., str]:
    """Run ``fedclust`` as the analyst; return what it prints, with standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDCLUST_COORDINATOR", finished.consortium.url)
    monkeypatch.setenv("FEDCLUST_TOKEN", finished.consortium.analyst_token)

    def act(*arguments: str, code: int = 0) -> str:
        assert command_line.run(*arguments) == code, command_line.err
        return command_line.out + command_line.err

    return act


def test_the_command_writes_what_predict_reads(
    finished: Finished, tmp_path: Path, run: Callable[..., str]
) -> None:
    at_site = finished.at_sites["oslo"]
    lines = ["x0,x1", *(f"{a},{b}" for a, b in ROWS["oslo"])]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n", "utf-8")

    said = run("session", "result", "heart", "--result-out", "heart.fedclust")
    assert "fedclust predict heart.fedclust" in said
    predict = ("predict", "heart.fedclust", "--data", "rows.csv", "--out", "labels.csv")
    for k, expected in ((), at_site), (("--k", "3"), at_site.at(3)):
        run(*predict, *k)
        lines = Path("labels.csv").read_text().splitlines()[1:]
        labels = [int(line.split(",")[1]) for line in lines]
        assert labels == expected.predict(ROWS["oslo"]).tolist()
    assert "2, 3" in run(*predict, "--k", "4", code=2)
    said = run("session", "result", "heart", "--out", "other.fedclust", code=2)
    assert "--result-out other.fedclust" in said


def test_the_command_writes_an_ro_crate(
    finished: Finished, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    consortium = finished.consortium
    run = partial(run, "session", "result", "heart")

    def head() -> AuditHead | None:
        return client.result("heart").provenance.audit_head

    with Client(consortium.url, consortium.analyst_token) as client:
        eventually(lambda: head() is not None, head)
        result = client.result("heart")
        known = result.provenance.audit_head
        assert client.audit_head_at(known.number) == known
    result.save_ro_crate("python.zip", "CC-BY-4.0")
    result.at(3).save_ro_crate("three.zip")
    run("--format", "ro-crate", "--out", "crate.zip", "--license", "CC-BY-4.0")
    assert Path("crate.zip").read_bytes() == Path("python.zip").read_bytes()
    # A crate is replaced, anything else is not; the ending alone is enough.
    run("--out", "crate.zip", "--k", "3")
    assert Path("crate.zip").read_bytes() == Path("three.zip").read_bytes()
    Path("notes.zip").write_bytes(b"mine")
    assert "holds something else" in run("--out", "notes.zip", code=2)
    # To write a paper.
    assert run("--format", "methods") == result.methods_text()
    assert run("--format", "bibtex", "--k", "3") == result.at(3).bibtex()
    run("--out", "heart.bib")
    run("--out", "heart.bib")
    assert Path("heart.bib").read_text("utf-8") == result.bibtex()
    run("--format", "methods", "--out", "heart.bib")
    assert Path("heart.bib").read_text("utf-8") == result.methods_text()
    assert "give its name with --out" in run("--format", "ro-crate", code=2)
    assert "--license is for an RO-Crate" in run("--license", "CC0-1.0", code=2)
    assert "SPDX identifier" in run("--out", "new.zip", "--license", "all rights", code=2)
    assert "cannot be written" in run("--out", "nowhere/new.zip", code=2)
    monkeypatch.setitem(sys.modules, "rocrate.rocrate", None)
    assert "pip install 'fedclust[crate]'" in run("--out", "new.zip", code=2)
    assert not Path("new.zip").exists()


# --- the examples in the docstrings of what users call --------------------------------------------


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
    "item", [simulate, FederatedKMeans, FederatedSpectralClustering, Feature, Policy]
)
def test_an_example_without_a_coordinator_runs_as_it_stands(item: Any) -> None:
    run_examples(item)


def test_the_example_of_a_site_takes_part_in_a_session(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It resumes from the journal a session that has ended."""
    monkeypatch.setenv("FEDCLUST_STATE_DIR", str(finished.journals / "oslo"))
    there = finished.consortium
    run_examples(Site, url=there.url, token=there.site_tokens["oslo"], rows=ROWS["oslo"])


@pytest.mark.parametrize("item", [Client.create_study, Client])
def test_the_examples_of_the_client_create_a_study_and_read_a_result(
    finished: Finished, item: Any
) -> None:
    run_examples(item, url=finished.consortium.url, token=finished.consortium.analyst_token)


def test_the_example_of_a_result_saves_it_and_labels_rows(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with finished.consortium.analyst() as client:
        of_analyst = client.result("heart-2026")
    for result in (of_analyst, finished.examples["oslo"]):
        run_examples(SessionResult, result=result, rows=ROWS["oslo"])
