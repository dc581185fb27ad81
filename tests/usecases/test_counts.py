"""What metrics tell of rounds that are late, leased, or taken over from a dead worker."""

import dataclasses

from fedclust_service.connections import Connections
from fedclust_service.metrics import Metrics
from support.clock import ManualClock
from usecases import counting_method
from usecases.direct_api import SITES, DirectApi


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics._registry.get_sample_value(f"fedclust_{name}", labels)


def test_a_late_round_is_overdue_until_its_quorum(both: DirectApi) -> None:
    metrics = Metrics(both.co, Connections(1))
    both.session("heart", rounds=2)
    assert value(metrics, "rounds_overdue") == 0
    both.later(4000)
    assert value(metrics, "rounds_overdue") == 1
    assert value(metrics, "rounds", state="collecting") == 1
    both.answer("heart", *SITES)
    assert value(metrics, "rounds_overdue") == 0
    assert value(metrics, "rounds_waiting") == 1
    assert value(metrics, "events_total", action="round.overdue") == 1


def test_leases_and_takeovers(both: DirectApi, clock: ManualClock) -> None:
    """One worker loses its round to another while it computes."""
    both.co.limits = dataclasses.replace(both.co.limits, heartbeat_s=1000.0)
    other = both.another()
    mine, others = Metrics(both.co, Connections(1)), Metrics(other, Connections(1))
    both.answered("heart", rounds=2)
    seen = []

    def meanwhile(*_: object) -> None:
        counting_method.HOOK.clear()
        for seconds in (0, both.co.limits.lease_s + 1):
            clock.advance(seconds)
            seen.append((value(others, "leases"), value(others, "rounds_waiting")))
        assert other.driver.run_once()

    counting_method.HOOK.append(meanwhile)
    assert both.co.driver.run_once()
    assert seen == [(1, 0), (0, 1)], "held, then expired"
    for metrics, taken_over, end in ((others, 1, "written"), (mine, 0, "lost")):
        assert value(metrics, "events_total", action="round.taken_over") == taken_over
        assert value(metrics, "aggregation_seconds_count", end=end, method="counting") == 1
    assert value(mine, "rounds_waiting") == 0
