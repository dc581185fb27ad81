"""What metrics tell of rounds that are late, leased, or taken over from a dead worker."""

import dataclasses

from prometheus_client.parser import text_string_to_metric_families

from fedclust_service.connections import Connections
from fedclust_service.metrics import Metrics
from support.clock import ManualClock
from usecases import counting_method
from usecases.direct_api import SITES, DirectApi


def read(metrics: Metrics) -> dict[str, float]:
    """Return the samples of a scrape, labels written behind the name."""
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        ".".join([sample.name, *(sample.labels[key] for key in sorted(sample.labels))]): (
            sample.value
        )
        for family in families
        for sample in family.samples
    }


def test_a_late_round_is_overdue_until_its_quorum(both: DirectApi) -> None:
    metrics = Metrics(both.co, Connections(1))
    both.session("heart", rounds=2)
    assert read(metrics)["fedclust_rounds_overdue"] == 0
    both.later(4000)
    assert read(metrics)["fedclust_rounds_overdue"] == 1
    assert read(metrics)["fedclust_rounds.collecting"] == 1
    both.answer("heart", *SITES)
    after = read(metrics)
    assert after["fedclust_rounds_overdue"] == 0
    assert after["fedclust_rounds_waiting"] == 1
    assert after["fedclust_events_total.round.overdue"] == 1


def test_leases_and_takeovers(both: DirectApi, clock: ManualClock) -> None:
    """One worker loses its round to another while it computes."""
    both.co.limits = dataclasses.replace(both.co.limits, heartbeat_s=1000.0)
    other = both.another()
    mine, others = Metrics(both.co, Connections(1)), Metrics(other, Connections(1))
    both.answered("heart", rounds=2)
    seen: list[dict[str, float]] = []

    def meanwhile(*_: object) -> None:
        counting_method.HOOK.clear()
        seen.append(read(others))
        clock.advance(both.co.limits.lease_s + 1)
        seen.append(read(others))
        assert other.driver.run_once()

    counting_method.HOOK.append(meanwhile)
    assert both.co.driver.run_once()
    held, expired = seen
    assert (held["fedclust_leases"], held["fedclust_rounds_waiting"]) == (1, 0)
    assert (expired["fedclust_leases"], expired["fedclust_rounds_waiting"]) == (0, 1)
    assert read(others)["fedclust_events_total.round.taken_over"] == 1
    assert read(others)["fedclust_aggregation_seconds_count.written.counting"] == 1
    assert read(mine)["fedclust_events_total.round.taken_over"] == 0
    assert read(mine)["fedclust_aggregation_seconds_count.lost.counting"] == 1
    assert read(mine)["fedclust_rounds_waiting"] == 0
