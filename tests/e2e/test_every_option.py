"""Sessions over HTTP end: every method with all its options, and those whose tasks are refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust import errors, rounds
from fedclust.definition import plan_of
from fedclust.methods.common.options import select_variant_model, takes_several
from fedclust.methods.registry import METHODS
from fedclust.rounds.plan import assigns_by_centroids
from fedclust.site.session_run import SessionRun
from support.consortium import Consortium
from support.local_coordinator import local_coordinator
from support.method_variants import once

SITES = ("north", "south", "west")
FEATURES = [{"name": name, "lower": -50, "upper": 50} for name in ("x", "y")]
#: All sessions ask the same persons: together they cost less than the allowance.
OUTCOME = {"name": "died", "kind": "binary", "role": "outcome", "points": 1}


def rows(seed: int) -> pd.DataFrame:
    """Return rows of two clusters."""
    rng = np.random.default_rng(seed)
    X = np.concatenate([rng.normal(at, 1.0, (12, 2)) for at in (0.0, 6.0)])
    return pd.DataFrame(X, columns=["x", "y"]).assign(died=rng.integers(0, 2, len(X)))


#: All tests use the same columns: without ids, a file is recognised by those of its first session.
DATA = {name: rows(seed) for seed, name in enumerate(SITES)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("options")


@pytest.fixture(scope="module")
def consortium(place: Path) -> Iterator[Consortium]:
    with local_coordinator(place, threads=True) as local:
        yield Consortium.found(local.base_url, local.operator_token, SITES)


def every_option(method: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return a definition with all that this variant of a method can be asked for."""
    several = takes_several(METHODS[method].options)
    model = select_variant_model(METHODS[method].options, options)
    read = model.model_validate({"n_clusters": 2, **options})
    more = {}
    if assigns_by_centroids(METHODS[method]) and "stability" in model.model_fields:
        more = {"stability": 20}
    asked = {"outcomes_k": 2} if several and read.evaluated else {}
    return {
        "algorithm": method,
        "config": {**options, "n_clusters": [2, 3] if several else 2, **more},
        "features": [*FEATURES, OUTCOME] if read.evaluated else FEATURES,
        **asked,
    }


@pytest.mark.parametrize(("method", "options"), once("lloyd", "spectral", "dual", "mixture"))
def test_a_session_with_every_option_ends_when_its_rounds_are_used_up(
    consortium: Consortium, place: Path, method: str, options: dict[str, Any]
) -> None:
    definition = every_option(method, options)
    for most in range(1, 4):
        name = f"session-{method.replace('_', '-')}-{most}"
        info = consortium.create(name, 0, **definition, policy={"max_rounds": most})
        try:
            found = consortium.run(name, DATA, place)
            break
        except errors.SessionFailed as failed:
            if "raise max_rounds" not in str(failed):
                raise
    result = found["north"].result
    assert len(result.history) == rounds.most_rounds(plan_of(info.definition))
    every_k = [each.result for each in result.sweep or ()] or [result]
    counted = [each.outcomes for each in every_k if each.outcomes is not None]
    assert len(counted) == (OUTCOME in definition["features"])
    # A site sees its own table, and the total.
    for outcomes in counted:
        (died,) = outcomes.results
        assert set(died.tables) == {"north"}
        assert died.total.shape == (outcomes.n_clusters + 1, 3)
    config = definition["config"]
    for own in every_k:
        assert (own.stability is not None) == ("stability" in config)
        assert (own.site_differences is not None) == ("stability" in config)


def test_a_closing_round_that_sites_refuse_costs_only_what_it_measures(
    consortium: Consortium, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = SessionRun.answer_round

    def answer_round(run: SessionRun, asked: int, document: Any) -> Any:
        if (asked, run.request.site) == (4, "west"):
            # As if it asked for more than was consented to.
            raise errors.TaskRefused(run.session, "task-rounds", "it is beyond what is allowed")
        return checked(run, asked, document)

    monkeypatch.setattr(SessionRun, "answer_round", answer_round)
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
    assert any("stability is not known" in warning for warning in found["warnings"])
