"""Outcomes in a whole session: what is asked, what is sent and what the result says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust import simulate
from fedclust.definition import DefinitionError

FEATURES: list[Any] = ["x", "y", {"name": "died", "kind": "binary", "role": "outcome"}]


def hospital(seed: int, n: int = 240) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    sick = rng.integers(0, 3, n) == 0
    died = rng.random(n) < np.where(sick, 0.4, 0.1)
    return pd.DataFrame(
        {"x": rng.normal(size=n) + 7 * sick, "y": rng.normal(size=n), "died": died.astype(float)}
    )


SITES = {name: hospital(seed) for seed, name in enumerate(("berlin", "oslo", "porto"))}


def run(method: str = "lloyd", sites: Any = None, **config: Any) -> Any:
    policy = config.pop("policy", {})
    config = {"n_clusters": 2, **config}
    return simulate(method, sites or SITES, config=config, features=FEATURES, policy=policy)


@pytest.mark.parametrize("method", ["lloyd", "fkm", "kfed", "overlap", "spectral"])
def test_events_are_those_of_the_labels(method: str) -> None:
    found = run(method, policy={"protection": "none"})
    assert [entry.phase for entry in found.history_][-1] == "evidence"
    died = found.outcomes_.results[0]
    for name, rows in SITES.items():
        events = np.bincount(found.labels_[name], weights=rows["died"], minlength=2)
        assert [each.events for each in died.sites[name]] == events.tolist()
    assert sum(each.persons for each in died.clusters) == 720
    assert found.outcomes_.reference == int(np.argmax(found.sizes_))


def test_groups_of_persons_show_nearly_the_same() -> None:
    exact, protected = (
        run(policy={"protection": each}).outcomes_.results[0].comparisons[0].mantel_haenszel
        for each in ("none", "groups")
    )
    assert exact.odds_ratio.lower > 1 < protected.odds_ratio.lower
    assert np.log(exact.odds_ratio.value / protected.odds_ratio.value) == pytest.approx(0, abs=0.4)


def test_every_k_and_resampled_models_go_with_outcomes() -> None:
    swept = run(n_clusters=[2, 3], stability=20, policy={"protection": "none"})
    assert [entry.phase for entry in swept.history_][-2:] == ["evidence", "resampling"]
    for k in (2, 3):
        (died,) = swept.at(k).outcomes_.results
        assert (len(died.clusters), len(died.comparisons)) == (k, k - 1)


def test_a_site_may_lack_outcomes_where_it_may_lack_features() -> None:
    sites = {**SITES, "riga": hospital(9).drop(columns="died")}
    died = run("overlap", sites, policy={"missing": "mask"}).outcomes_.results[0]
    assert set(died.sites) == set(SITES)
    few = run("overlap", {**sites, "oslo": sites["riga"]}, policy={"missing": "mask"})
    assert few.outcomes_.results == ()
    warning = "in every cluster, fewer sites than min_sites have values of the outcomes 'died'"
    assert warning in few.result_.warnings


def test_another_k_does_not_show_what_one_k_withholds() -> None:
    """At K = 3 Porto alone has a cluster, which is a part of another one at K = 2."""
    porto = SITES["porto"]
    far = porto.assign(x=porto.x + 6 * ((porto.x > 3.5) & (porto.y > 0)))
    sites = {**SITES, "porto": far}
    swept = run(sites=sites, n_clusters=[2, 3], policy={"scaling": "none"})
    shown = {
        k: [own.events is not None for own in swept.at(k).outcomes_.results[0].clusters]
        for k in (2, 3)
    }
    assert shown == {2: [True, True], 3: [False, False, False]}


def test_outcomes_need_a_closing_evaluation() -> None:
    with pytest.raises(DefinitionError, match="these options have none"):
        run(evaluate=False)
