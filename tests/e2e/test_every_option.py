"""Sessions over HTTP end: every method with all its options, and those whose tasks are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust import engine, errors
from fedclust.definition import plan_of
from fedclust.engine.evidence import assigns_by_centroids
from fedclust.methods.common.options import select_variant_model
from fedclust.methods.registry import METHODS
from fedclust.schema.outcomes import OutcomeInCluster
from fedclust.site.session_run import SessionRun
from support.consortium import Consortium
from support.local_coordinator import local_coordinator
from support.method_variants import ALL, IDS, TRIED

SITES = ("north", "south", "west")
FEATURES = [{"name": name, "lower": -50, "upper": 50} for name in ("x", "y")]
OUTCOME = {"name": "died", "kind": "binary", "role": "outcome"}


def rows(seed: int, name: str) -> pd.DataFrame:
    """Return rows of two clusters; in the far one, west alone knows who returned."""
    rng = np.random.default_rng(seed)
    X = np.concatenate([rng.normal(at, 1.0, (12, 2)) for at in (0.0, 6.0)])
    died, returned = rng.integers(0, 2, (2, len(X)))
    known = (X[:, 0] < 3) | (name == "west")
    return pd.DataFrame(X, columns=["x", "y"]).assign(
        died=died, returned=np.where(known, returned, np.nan)
    )


#: All tests use the same columns: without ids, a file is recognised by those of its first session.
DATA = {name: rows(seed, name) for seed, name in enumerate(SITES)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("options")


@pytest.fixture(scope="module")
def consortium(place: Path) -> Iterator[Consortium]:
    with local_coordinator(place, threads=True) as local:
        yield Consortium.found(local.base_url, local.operator_token, SITES)


def every_option(method: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return a definition with all that this variant of a method can be asked for.

    The last variant compares several K, where the method does.
    """
    several = METHODS[method].sweeps and options == TRIED[method].variants[-1]
    model = select_variant_model(METHODS[method].options, options)
    read = model.model_validate({"n_clusters": 2, **options})
    more = {}
    if assigns_by_centroids(METHODS[method]) and "stability" in model.model_fields:
        more = {"stability": 20, "transfer": True}
    return {
        "algorithm": method,
        "config": {**options, "n_clusters": [2, 3] if several else 2, **more},
        "features": [*FEATURES, OUTCOME] if read.evaluated else FEATURES,
    }


@pytest.mark.parametrize(("method", "options"), ALL, ids=IDS)
def test_a_session_with_every_option_ends_when_its_rounds_are_used_up(
    consortium: Consortium, place: Path, method: str, options: dict[str, Any]
) -> None:
    definition = every_option(method, options)
    for most in range(1, 4):
        name = f"session-{ALL.index((method, options))}-{most}"
        info = consortium.create(name, 0, **definition, policy={"max_rounds": most})
        try:
            found = consortium.run(name, DATA, place)
            break
        except errors.SessionFailed as failed:
            if "raise max_rounds" not in str(failed):
                raise
    result = found["north"].result_
    assert len(result.history) == engine.most_rounds(plan_of(info.definition))
    assert (result.outcomes is not None) == (OUTCOME in definition["features"])
    config = definition["config"]
    for own in [each.result for each in result.sweep or ()] or [result]:
        assert (own.stability is not None) == ("stability" in config)
        assert (own.transfer is not None) == ("transfer" in config)


def test_a_site_does_not_read_the_outcomes_of_a_cluster_that_one_other_site_has(
    consortium: Consortium, place: Path
) -> None:
    features, config = [*FEATURES, {**OUTCOME, "name": "returned"}], {"n_clusters": 2}
    consortium.create("alone", 2, algorithm="lloyd", config=config, features=features)
    for name, own in consortium.run("alone", DATA, place).items():
        result = own.result_
        near, far = np.argsort(result.centroids_original[:, 0])
        (returned,) = result.outcomes.results
        assert returned.clusters[near].persons == 36
        assert returned.clusters[far] == OutcomeInCluster(persons=None)
        assert returned.comparisons[0].odds_ratio is None
        assert set(returned.sites) == {name}
        assert returned.sites[name][far].persons == (12 if name == "west" else 0)


def refuse_round(monkeypatch: pytest.MonkeyPatch, number: int, site: str) -> None:
    """Let a site refuse the task of a round, as if it asked for more than was consented to."""
    checked = SessionRun.answer_round

    def answer_round(run: SessionRun, asked: int, document: Any) -> Any:
        if (asked, run.request.site) == (number, site):
            raise errors.TaskRefused(run.session, "task-rounds", "it is beyond what is allowed")
        return checked(run, asked, document)

    monkeypatch.setattr(SessionRun, "answer_round", answer_round)


def test_a_session_ends_at_once_when_too_few_sites_are_left_that_do_not_refuse(
    consortium: Consortium, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_round(monkeypatch, 2, "west")
    consortium.create("refused", 2, algorithm="lloyd", config={"n_clusters": 2}, features=FEATURES)
    # Each site ends, though the round would wait for a week.
    with pytest.raises((errors.TaskRefused, errors.SessionFailed)):
        consortium.run("refused", DATA, place)
    with consortium.analyst() as analyst:
        ended = analyst.session("refused")
    assert (ended.state, ended.stopped_because) == ("failed", "task_refused")
    assert ended.failure is not None
    assert ended.failure.endswith("Refused: task-rounds (west).")
    assert {each.name: (each.state, each.refused_task) for each in ended.sites} == {
        "north": ("joined", None),
        "south": ("joined", None),
        "west": ("refused", "task-rounds"),
    }


def test_a_closing_round_that_sites_refuse_costs_only_what_it_measures(
    consortium: Consortium, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_round(monkeypatch, 4, "west")
    consortium.create(
        *("unmeasured", 2),
        algorithm="lloyd",
        config={"n_clusters": 2, "stability": 20},
        features=FEATURES,
        policy={"max_rounds": 1},
    )
    with pytest.raises(errors.TaskRefused):
        consortium.run("unmeasured", DATA, place)
    found = consortium.result("unmeasured").result
    assert found["stability"] is None
    assert any("could compare the clusters" in warning for warning in found["warnings"])
