"""How long the coordinator will compute: what grows with what, and what is refused."""

import re
from typing import Any

import pytest

from fedclust.rounds import Plan
from fedclust.rounds.workload import aggregation_seconds, check_workload
from fedclust.schema.errors import RuleViolation
from support import driven


def plan(**config: Any) -> Plan:
    return driven.plan_for(5, {"n_clusters": 4, **config})


def test_estimates_grow_with_sites_models_clusters_and_bytes() -> None:
    def closing(n_sites: int = 10, **config: Any) -> float:
        return aggregation_seconds(plan(**config), "evidence", n_sites, 10_000)

    least = closing(stability=20)
    assert closing() < 0.001 < 0.1 < least
    assert closing(40, stability=20) > least
    assert closing(stability=100) > closing(stability=20)
    assert closing(evidence=True) > 0.1
    assert closing(stability=20, n_clusters=[2, 4]) > 1.2 * least
    assert aggregation_seconds(plan(), "lloyd", 10, 1_000) < 0.1
    assert aggregation_seconds(plan(), "lloyd", 10, 1_000_000) > 0.1
    assert aggregation_seconds(plan(), "resampling", 10, 1_000_000) < 0.1


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ({"stability": 200}, 4.8),
        ({"stability": 50, "n_clusters": [3, 5, 9]}, 4.8),
    ],
)
def test_what_would_take_too_long_is_refused_with_what_fits(
    config: dict[str, Any], most: float
) -> None:
    check_workload(plan(**config), 50, 3_600)
    with pytest.raises(RuleViolation) as refused:
        check_workload(plan(**config), 50, most)
    assert refused.value.pointer == "/" + next(iter(config))
    said, fits = refused.value.message.split("At most ")
    assert "50 sites" in said
    (sites,) = map(int, re.findall(r"(\d+) sites", fits))
    check_workload(plan(**config), sites, most)
    with pytest.raises(RuleViolation):
        check_workload(plan(**config), sites + 1, most)
    models = [int(found) for found in re.findall(r"stability (\d+)", fits)]
    for n in models:
        check_workload(plan(**{**config, "stability": n}), 50, most)


def test_where_nothing_fits_it_is_to_be_left_out() -> None:
    with pytest.raises(RuleViolation, match=r"40 models.*Leave it out"):
        check_workload(plan(stability=20, n_clusters=[2, 9]), 5, 0.1)
    with pytest.raises(RuleViolation, match=r"^for evidence with 50 sites"):
        check_workload(plan(evidence=True), 50, 0.1)
