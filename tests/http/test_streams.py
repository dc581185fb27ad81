"""Event streams as connections: asked only for their head, counted, and not read at all."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from fedclust_service.http import protocol
from support.store_rows import counted
from support.timeouts import eventually

from .conftest import Running, round_1
from .test_connections import everything
from .test_metrics import Samples, scrape, value

EVENTS = "/v1/sessions/heart/events"
ROUTE = {"route": "/v1/sessions/{session}/events", "status": "200"}
#: Far more than the buffers of two sockets hold.
ROWS, BYTES = 2_000, 10_000


def opened(live: Running) -> contextlib.AbstractContextManager[httpx.Response]:
    return live.local.http(live.api.tokens["ada"]).stream("GET", EVENTS)


def begun(samples: Samples) -> float:
    """Return how many streams there have been."""
    name = "fedclust_http_request_seconds_count"
    labels = tuple(sorted({"method": "GET", **ROUTE}.items()))
    return samples.get((name, labels), 0.0)


def streams(live: Running) -> float:
    return value(scrape(live.local), "fedclust_event_streams")


def test_its_head_is_told_at_once_and_takes_no_place(live: Running) -> None:
    with opened(live) as stream:
        got = dict(stream.headers)
        for _ in range(20):  # more than a token may have open
            head = live.api.request("HEAD", EVENTS, "ada")
            assert (head.status_code, head.content) == (200, b"")
        assert streams(live) == 1
    for header in ("content-type", "cache-control", "x-accel-buffering", "transfer-encoding"):
        assert head.headers[header] == got[header], header
    assert "content-length" not in head.headers
    for token, status in (("nonsense", 401), ("north", 200)):
        assert live.api.request("HEAD", EVENTS, token).status_code == status


def test_a_stream_is_no_long_request(live: Running, caplog: pytest.LogCaptureFixture) -> None:
    """It is counted and logged once when it begins, and apart from requests when it ends."""

    def logged() -> list[Any]:
        lines = [each.msg for each in caplog.records if isinstance(each.msg, dict)]
        return [line for line in lines if line.get("route") == ROUTE["route"]]

    caplog.set_level("INFO")
    with opened(live) as stream:
        lines = stream.iter_lines()  # kept: the stream ends with it
        assert next(lines).startswith("retry")
        during = scrape(live.local)
        assert begun(during) == 1
        assert value(during, "fedclust_event_streams") == 1
        assert value(during, "fedclust_event_stream_seconds_count") == 0
        assert [line["event"] for line in logged()] == ["request"]
    eventually(lambda: len(logged()) == 2)
    after = scrape(live.local)
    assert (begun(after), value(after, "fedclust_event_streams")) == (1, 0)
    assert value(after, "fedclust_event_stream_seconds_count") == 1
    first, last = logged()
    assert (first["event"], last["event"]) == ("request", "stream_ended")
    for line in (first, last):
        assert (line["actor"], line["session"], line["status"]) == ("ada", "heart", 200)
        assert line["ms"] >= 0


@contextlib.contextmanager
def reading_nothing(live: Running) -> Iterator[socket.socket]:
    """Ask for a stream that no buffer holds, and take nothing of it."""
    store = live.local.coordinator.store

    def fill(tx: Any) -> None:
        for _ in range(ROWS):
            details = {"reason": "x" * BYTES}
            tx.audit.append("coordinator", "round.overdue", "heart", details, live.clock.now())

    store.run_tx("test.fill", fill)
    live.local.coordinator.sealing_due.set()
    eventually(lambda: store.read("test.waiting", lambda tx: tx.chain.waiting()) == 0)
    address = httpx.URL(live.api.base_url)
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        reader.connect((address.host, address.port))
        token = live.api.tokens["ada"]
        request = f"GET {EVENTS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        reader.sendall(request.encode())
        # It may be let go before anybody looks how many are open.
        eventually(lambda: begun(scrape(live.local)) == 1)
        yield reader


def test_who_reads_nothing_is_let_go(live: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long trail the coordinator reads only what it can hand on."""
    monkeypatch.setattr(protocol, "STUCK_SECONDS", 0.3)
    with reading_nothing(live) as reader:
        # It keeps nobody waiting.
        assert live.api.request("GET", "/v1/whoami", "ada").status_code == 200
        eventually(lambda: streams(live) == 0)
        assert counted(live.local.coordinator.store, "events.read")["calls"] < ROWS / 100 - 5
        # Torn off, not ended.
        assert not everything(reader).endswith(b"0\r\n\r\n")


def test_who_reads_nothing_does_not_hold_a_shutdown_up(tmp_path: Path) -> None:
    """Other requests would have a minute."""
    with (
        round_1(tmp_path, threads=True, shutdown_grace_s=60) as live,
        reading_nothing(live) as reader,
    ):
        live.local.end()
        assert not everything(reader).endswith(b"0\r\n\r\n")


def test_who_reads_on_is_kept() -> None:
    """The time begins anew whenever something was taken."""
    connection: Any = object.__new__(protocol.Protocol)
    connection.loop, connection.transport, connection.flow = Mock(), Mock(), Mock()
    connection.cycle, connection._connections = Mock(response_complete=False), Mock()
    connection.timeout_keep_alive_task, connection._timers = None, {}
    for _ in range(3):
        connection.pause_writing()
        begun = connection.loop.call_later.return_value
        connection.loop.call_later.assert_called_with(60.0, connection.transport.abort)
        begun.cancel.reset_mock()
        connection.resume_writing()
        begun.cancel.assert_called_once_with()
    assert connection.loop.call_later.call_count == 3


def test_a_revoked_token_ends_its_stream(live: Running) -> None:
    with opened(live) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("retry")
        (token,) = live.api.ok("GET", "/v1/analysts/ada", "operator")["tokens"]
        live.api.ok("DELETE", f"/v1/analysts/ada/tokens/{token['id']}", "operator")
        # Something happens: the stream looks.
        live.api.ok("POST", "/v1/sessions/heart/cancel", "operator")
        assert "session.cancelled" not in "\n".join(lines)


def test_no_path_to_a_stream_survives_its_places(tmp_path: Path) -> None:
    """Places are given back however a stream ends: more come and go than may be open."""
    with round_1(tmp_path, threads=True, waits_per_token=2) as live:
        with opened(live), opened(live), opened(live) as third:
            assert third.status_code == 429
            assert int(third.headers["Retry-After"]) > 0
        for _ in range(3):
            with opened(live) as stream:
                assert stream.status_code == 200
            eventually(lambda: streams(live) == 0)
