"""The coordinator's metrics in Prometheus' text form.

Each process counts its own requests, transactions and aggregations, so each worker on PostgreSQL is
scraped separately. Sessions, rounds and leases are read from the database during the scrape and are
the same from every worker. No label has a value that a caller can choose, such as a name.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from fedclust_service.connections import Connections
from fedclust_service.domain.round import RoundState
from fedclust_service.store import StoreError, Tx
from fedclust_service.usecases.core import AggregationEnd, Observer

if TYPE_CHECKING:
    from fedclust_service.usecases.coordinator import Coordinator

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Other methods are counted as "other", because callers could invent any number of them.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# A task request may wait up to 25 s.
_HTTP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_AGGREGATION_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0)


class Metrics(Observer):
    """The metrics of one process, which becomes the coordinator's observer. Thread-safe."""

    def __init__(self, co: Coordinator, connections: Connections) -> None:
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "fedclust_http_request_seconds",
            "Time from a request's arrival to the end of its answer; long polls wait on purpose.",
            ("method", "route", "status"),
            buckets=_HTTP_BUCKETS,
            registry=self._registry,
        )
        self._over_budget = Counter(
            "fedclust_requests_over_budget",
            "Requests refused because too many of their kind are open: wait, download, request.",
            ("kind",),
            registry=self._registry,
        )
        self._events = Counter(
            "fedclust_events",
            "Entries of the audit trail that this process wrote, by action.",
            ("action",),
            registry=self._registry,
        )
        # From 0 on: an alert sees a rise only between two values.
        self._events.labels("round.taken_over")
        self._aggregations = Histogram(
            "fedclust_aggregation_seconds",
            "Time that an aggregation computed, by method and by what became of it.",
            ("method", "end"),
            buckets=_AGGREGATION_BUCKETS,
            registry=self._registry,
        )
        Info("fedclust_build", "What runs here; always 1.", registry=self._registry).info(
            {
                "version": version("fedclust"),
                "python": platform.python_version(),
                "database": "sqlite" if co.store.single_process else "postgresql",
            }
        )
        self._registry.register(_ScrapeCollector(co, connections))
        ProcessCollector(registry=self._registry)
        for counter in co.store.counters.values():
            self._registry.register(counter)
        co.observer = self

    def requested(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request; ``route`` is the template, never the path."""
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status)).observe(seconds)

    def over_budget(self, kind: str) -> None:
        """Count a request refused because too many of its kind are open."""
        self._over_budget.labels(kind).inc()

    def happened(self, action: str) -> None:
        """Count an entry of the audit trail."""
        self._events.labels(action).inc()

    def aggregated(self, method: str, end: AggregationEnd, seconds: float) -> None:
        """Count an aggregation."""
        self._aggregations.labels(method, end).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics as :data:`CONTENT_TYPE`; reads the database."""
        return generate_latest(self._registry)


class _ScrapeCollector(Collector):
    """The metrics that are read during a scrape."""

    def __init__(self, co: Coordinator, connections: Connections) -> None:
        self._co, self._connections = co, connections

    def collect(self) -> Iterator[Metric]:
        """Return the families."""
        co, connections = self._co, self._connections
        text = "Requests that wait for a session to change."
        yield GaugeMetricFamily("fedclust_waiting_requests", text, co.notifier.waiting)
        yield GaugeMetricFamily("fedclust_connections", "Open connections.", len(connections))
        text = "Most open connections."
        yield GaugeMetricFamily("fedclust_connections_limit", text, connections.most)
        text = "Idle connections that were closed to make room for others."
        yield CounterMetricFamily("fedclust_connections_evicted", text, connections.evicted)
        text = "Connections closed at once because all others were busy."
        yield CounterMetricFamily("fedclust_connections_refused", text, connections.refused)
        text = "1 while driver, sweeper, sealer, listener and the senders of notifications run."
        yield GaugeMetricFamily("fedclust_threads_alive", text, co.alive)
        if co.listener is not None:
            text = "1 while other workers' changes are heard at once. On PostgreSQL."
            yield GaugeMetricFamily("fedclust_listening", text, co.listener.connected)
            text = "Changes that were found by reading again before they were heard of."
            yield CounterMetricFamily("fedclust_changes_missed", text, co.listener.missed)
        clocks = {"machine": co.clock.skew.machine_s, "database": co.clock.skew.database_s}
        yield _by_label(
            "clock_skew_seconds",
            "How far a clock is ahead of the coordinator's time: this machine's, the database's.",
            "clock",
            {clock: value for clock, value in clocks.items() if value is not None},
        )
        try:
            stored = co.store.read("metrics", lambda tx: tuple(self._stored(tx)))
        except StoreError:
            stored = ()
        text = "1 when the database answered this scrape."
        yield GaugeMetricFamily("fedclust_database_up", text, bool(stored))
        yield from stored

    def _stored(self, tx: Tx) -> Iterator[Metric]:
        rounds = tx.rounds.counts(self._co.clock.now())
        yield _by_label("sessions", "Sessions by state.", "state", tx.sessions.counts())
        yield _by_label("rounds", "Rounds by state.", "state", rounds.by_state)
        text = "Notifications of the last 30 days by state."
        yield _by_label("notifications", text, "state", tx.notifications.counts())
        text = "Rounds past their deadline and below their quorum."
        yield GaugeMetricFamily("fedclust_rounds_overdue", text, rounds.overdue)
        text = "Rounds that some worker aggregates under a lease in force."
        yield GaugeMetricFamily("fedclust_leases", text, rounds.leased)
        text = "Rounds to be aggregated that no worker holds."
        waiting = rounds.by_state[RoundState.AGGREGATING] - rounds.leased
        yield GaugeMetricFamily("fedclust_rounds_waiting", text, waiting)
        text = "Entries of the audit trail that wait to be sealed: for a second at most."
        yield GaugeMetricFamily("fedclust_audit_unsealed", text, tx.chain.waiting())


def _by_label(name: str, text: str, label: str, values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(f"fedclust_{name}", text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
