"""``/metrics``: who may read it, what it counts, and that nothing in it names anybody."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fedclust_service.http.routes import api_routes
from fedclust_service.store import StoreUnavailable, Tx
from support.api_caller import ApiCaller
from support.clock import ManualClock
from support.databases import PostgresServer
from support.local_coordinator import LocalCoordinator, local_coordinator
from support.timeouts import eventually

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
SITES = ("north", "south", "west")
TYPE = "text/plain; version=0.0.4; charset=utf-8"


def read(text: str) -> Samples:
    """Parse a scrape with Prometheus' own parser."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def scrape(local: LocalCoordinator, **headers: str) -> Samples:
    response = local.http(**headers).get("/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == TYPE
    return read(response.text)


def test_a_session_is_counted_and_nobody_is_named(tmp_path: Path) -> None:
    clock = ManualClock()
    with local_coordinator(tmp_path, clock=clock, threads=True) as local:
        api = ApiCaller.found(local, SITES)
        api.begin("ada", "heart", SITES)
        assert api.finish("heart", SITES) == "completed"
        api.request("BREW", "/v1/whoami", "north")
        api.request("GET", f"/{api.tokens['north']}")
        api.request("GET", "/v1/sessions/no-such-session", "ada")
        rounds = api.ok("GET", "/v1/sessions/heart/rounds?limit=100", "ada")["items"]
        n, series = len(rounds), "fedclust_aggregation_seconds_count"
        counted = {"method": "lloyd", "end": "written"}
        # The driver counts after the session is completed.
        eventually(lambda: value(scrape(local), series, **counted) == n)
        text = local.http().get("/metrics").text
    samples = read(text)
    page = (Path(__file__).parents[2] / "docs" / "details" / "monitoring.md").read_text("utf-8")
    for family in text_string_to_metric_families(text):
        name = family.name.removesuffix("_created")
        if name.startswith("fedclust_"):
            # One line of the page names what the store counts by the first in full.
            assert name.removeprefix("fedclust_store") in page, name
    assert value(samples, "fedclust_sessions", state="completed") == 1
    assert value(samples, "fedclust_rounds", state="closed") == n
    assert value(samples, "fedclust_rounds", state="collecting") == 0
    assert value(samples, "fedclust_rounds_overdue") == 0
    assert value(samples, "fedclust_leases") == 0
    assert value(samples, "fedclust_audit_unsealed") >= 0
    assert value(samples, "fedclust_database_up") == 1
    assert value(samples, "fedclust_threads_alive") == 1
    total = sum(each["aggregation_s"] for each in rounds)
    assert value(samples, "fedclust_aggregation_seconds_sum", **counted) == pytest.approx(total)
    assert value(samples, "fedclust_events_total", action="round.closed") == n
    puts = {
        "method": "PUT",
        "route": "/v1/sessions/{session}/rounds/{number}/submission",
        "status": "201",
    }
    assert value(samples, "fedclust_http_request_seconds_count", **puts) == 3 * n
    assert value(samples, "fedclust_store_calls_total", transaction="driver.finish") == n
    # Whatever callers invent, labels come from what the program knows.
    routes = {route.path for route in api_routes()} | {"docs", "unknown"}
    labels = [dict(pairs) for _, pairs in samples]
    assert {each["route"] for each in labels if "route" in each} <= routes
    assert "other" in {each["method"] for each in labels if "route" in each}
    named = {text for each in labels for text in each.values()}
    assert not named & {"heart", "ada", *SITES, "no-such-session", "BREW"}
    assert api.tokens["north"] not in text


def test_who_may_read_it(tmp_path: Path) -> None:
    with local_coordinator(tmp_path) as local:
        api = ApiCaller.found(local, ("north",))
        assert api.request("GET", "/metrics").status_code == 200
        assert api.request("GET", "/metrics", local.operator_token).status_code == 200
        for token, status in (("north", 403), ("ada", 403), ("nonsense", 401)):
            refused = api.request("GET", "/metrics", token)
            assert refused.status_code == status
            assert "fedclust_" not in refused.text
        # Through a proxy on this machine that nobody told of, or a page that has its name
        # resolved to here: not from this machine.
        elsewhere = [
            {"X-Forwarded-For": "127.0.0.1"},
            {"Forwarded": "for=127.0.0.1"},
            {"X-Real-IP": "127.0.0.1"},
            {"Via": "1.1 proxy"},
            {"Host": "evil.example"},
            {"Host": "[::1"},
            {"Host": ""},
        ]
        for headers in elsewhere:
            assert local.http(**headers).get("/metrics").status_code == 401, headers
        for name in ("localhost", "127.0.0.1:9", "[::1]:8400"):
            assert local.http(Host=name).get("/metrics").status_code == 200, name


def test_behind_a_proxy_loopback_is_no_exemption(tmp_path: Path) -> None:
    with local_coordinator(tmp_path, behind_proxy="127.0.0.0/8") as local:
        assert local.http().get("/metrics").status_code == 401
        assert local.http(local.operator_token).get("/metrics").status_code == 200


def test_repetitions_are_counted_and_a_lost_database_is_told(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = postgres_server.create()
    with local_coordinator(tmp_path, database_url=postgres_server.url(name)) as local:
        samples = scrape(local)
        build = next(dict(pairs) for key, pairs in samples if key == "fedclust_build_info")
        assert build["database"] == "postgresql"
        # Its threads do not run.
        assert value(samples, "fedclust_listening") == 0
        assert value(samples, "fedclust_changes_missed_total") == 0
        cuts = iter([True])

        def cut_once(tx: Tx) -> None:
            if next(cuts, False):
                postgres_server.terminate_clients(name)
            tx.sessions.not_ended()

        local.coordinator.store.run_tx("cut", cut_once)
        samples = scrape(local)
        assert value(samples, "fedclust_store_calls_total", transaction="cut") == 1
        assert value(samples, "fedclust_store_retries_total", transaction="cut") == 1
        assert value(samples, "fedclust_store_failures_total", transaction="cut") == 0

        gone = Mock(side_effect=StoreUnavailable("gone"))
        monkeypatch.setattr(local.coordinator.store, "read", gone)
        samples = scrape(local)
        assert value(samples, "fedclust_database_up") == 0
        assert "fedclust_rounds_overdue" not in {key for key, _ in samples}
    postgres_server.drop(name)
