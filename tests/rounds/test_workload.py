"""How long the coordinator will compute: what grows with what, and what is refused."""

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
    ("config", "models"),
    [
        ({"stability": 200}, "200 models"),
        ({"stability": 50, "n_clusters": [3, 5, 9]}, "150 models"),
        ({"evidence": True}, "0 models"),
    ],
)
def test_what_would_take_too_long_is_refused(config: dict[str, Any], models: str) -> None:
    asked = plan(**config)
    seconds = aggregation_seconds(asked, "evidence", 50, 0)
    check_workload(asked, 50, seconds)
    with pytest.raises(RuleViolation, match=rf"with 50 sites .* {models}") as refused:
        check_workload(asked, 50, 0.99 * seconds)
    assert refused.value.pointer == "/" + next(iter(config))
