"""One client takes all it can get: small limits hold, and another site is served."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from fedclust.wire.errors import Problem
from fedclust.wire.submissions import JSON
from fedclust_service import server
from fedclust_service.connections import RESERVED_DESCRIPTORS
from fedclust_service.http import app, docs, middleware, protocol
from fedclust_service.http.middleware import Budget
from support.api_caller import ApiCaller
from support.certificates import Authority
from support.server import running_server
from support.timeouts import TIMEOUT_S, eventually

from .conftest import SITES, Running, round_1
from .test_connections import begun, everything, parts

TASK = "/v1/sessions/heart/task"


@contextlib.contextmanager
def floods(base_url: str) -> Iterator[Callable[..., socket.socket]]:
    """Let an attacker open raw connections, which are closed at the end, and send bytes."""
    url = httpx.URL(base_url)
    with contextlib.ExitStack() as opened:

        def connect(sent: bytes = b"") -> socket.socket:
            connection = socket.create_connection((url.host, url.port), timeout=TIMEOUT_S)
            opened.enter_context(connection)
            connection.sendall(sent)
            return connection

        yield connect


def poll(
    running: Running, site: str, header: str = "Authorization: Bearer", more: str = "X: y"
) -> bytes:
    """Return a long poll that finds nothing new."""
    etag = running.api.request("GET", TASK, site).headers["ETag"]
    return (
        f"GET {TASK}?wait=25 HTTP/1.1\r\nHost: x\r\nIf-None-Match: {etag}\r\n"
        f"{header} {running.api.tokens[site]}\r\n{more}\r\n\r\n"
    ).encode()


def uploading(running: Running, connection: socket.socket) -> socket.socket:
    """Begin a submission of ``north`` and wait until its body is asked for."""
    connection.sendall(begun(running, "Content-Length: 1000\r\nExpect: 100-continue"))
    assert connection.recv(65_536).startswith(b"HTTP/1.1 100 ")
    return connection


def served(running: Running, site: str) -> None:
    """Assert that a site reads its task over a new connection and answers it."""
    api = ApiCaller(running.api.base_url, running.api.operator, running.api.tokens)
    api.send("heart", site)


def metric(running: Running, name: str) -> float:
    """Return a value of the coordinator's metrics, read without a connection."""
    service = running.local.coordinator.observer
    lines = service.text().decode().splitlines()  # type: ignore[attr-defined]
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


def slug(answer: bytes) -> tuple[int, str, dict[str, str]]:
    status, headers, body = parts(answer)
    return status, Problem.model_validate_json(body).slug, headers


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: "])
def test_silent_connections_make_room_oldest_first(tmp_path: Path, sent: bytes) -> None:
    with round_1(tmp_path, max_connections=12) as running, floods(running.api.base_url) as flood:
        silent = [flood(sent) for _ in range(40)]
        served(running, "south")
        assert metric(running, "fedclust_connections ") <= 12
        assert metric(running, "fedclust_connections_evicted_total") >= 28
        assert metric(running, "fedclust_connections_refused_total") == 0
        for connection in silent[:20]:
            assert everything(connection) == b""
        silent[-1].sendall(b"\r\n\r\n" if sent else b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert silent[-1].recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_a_connection_with_a_request_is_not_closed_for_another(tmp_path: Path) -> None:
    with round_1(tmp_path, max_connections=3) as running, floods(running.api.base_url) as flood:
        busy = [uploading(running, flood()) for _ in range(3)]
        assert everything(flood()) == b""  # refused: no room can be made
        assert metric(running, "fedclust_connections_refused_total") == 1
        busy.pop().close()
        # The two that are left go on, whoever comes and goes beside them.
        for _ in range(5):
            flood()
        served(running, "south")
        for connection in busy:
            connection.sendall(b" " * 1000)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 422 ")


def test_silent_connections_make_room_before_tls_too(tmp_path: Path) -> None:
    pair = Authority(tmp_path / "pki").issue("127.0.0.1", name="coordinator")
    flags = ["--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--max-connections", "6"]
    with running_server(tmp_path / "server", *flags) as server, floods(server.base_url) as flood:
        silent = [flood() for _ in range(20)]
        trusting = ssl.create_default_context(cafile=tmp_path / "pki" / "ca.pem")
        with httpx.Client(verify=trusting, timeout=TIMEOUT_S, trust_env=False) as client:
            assert client.get(f"{server.base_url}/healthz").status_code == 200
        for connection in silent[:13]:
            assert everything(connection) == b""
        assert "Error" not in server.output()


def test_long_polls_of_one_token_leave_room_for_others(tmp_path: Path) -> None:
    limits = {"max_connections": 100, "waits_per_token": 3}
    with round_1(tmp_path, **limits) as running, floods(running.api.base_url) as flood:
        request = poll(running, "north")
        held = [flood(request) for _ in range(3)]
        eventually(lambda: metric(running, "fedclust_waiting_requests") == 3)
        for header in ("Authorization: Bearer", "authorization:bearer  "):
            refused = flood(poll(running, "north", header, "Connection: close"))
            status, problem, headers = slug(everything(refused))
            assert (status, problem) == (429, "too-many-requests")
            assert int(headers["retry-after"]) > 0
        assert metric(running, 'fedclust_requests_over_budget_total{kind="wait"}') == 2
        # What the token asks without waiting is counted apart; another site waits as it likes.
        assert running.api.request("GET", "/v1/whoami", "north").status_code == 200
        flood(poll(running, "south"))
        eventually(lambda: metric(running, "fedclust_waiting_requests") == 4)
        served(running, "south")
        running.api.ok("POST", "/v1/sessions/heart/cancel", "ada")
        for connection in held:
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
        eventually(lambda: metric(running, "fedclust_waiting_requests") == 0)
        assert running.api.request("GET", f"{TASK}?wait=25", "north").status_code == 200


def test_hundreds_wait_without_holding_threads(tmp_path: Path) -> None:
    with round_1(tmp_path, max_connections=200) as running, floods(running.api.base_url) as flood:
        for request in [poll(running, site) for site in SITES] * 40:
            flood(request)
        eventually(lambda: metric(running, "fedclust_waiting_requests") == 120)
        assert running.api.request("GET", "/v1/whoami", "north").status_code == 200


def test_waiting_requests_of_all_tokens_leave_a_fourth_of_the_connections(tmp_path: Path) -> None:
    with round_1(tmp_path, max_connections=8) as running, floods(running.api.base_url) as flood:
        for site in SITES * 2:
            flood(poll(running, site))
        eventually(lambda: metric(running, "fedclust_waiting_requests") == 6)
        refused = running.api.request("GET", f"{TASK}?wait=25", "south")
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) > 0
        served(running, "south")


@pytest.mark.parametrize("limits", [{"waits_per_token": 1}, {"max_connections": 5}])
def test_waiting_requests_keep_no_answer_out(tmp_path: Path, limits: dict[str, int]) -> None:
    """Where no more may wait, an answer that asks for the next task gets its receipt at once."""
    with round_1(tmp_path, **limits) as running, floods(running.api.base_url) as flood:
        request = poll(running, "north")
        most = limits.get("waits_per_token", 3)
        for _ in range(most):
            flood(request)
        eventually(lambda: metric(running, "fedclust_waiting_requests") == most)
        path = "/v1/sessions/heart/rounds/1/submission?wait=25"
        body = running.api.answer("north", "heart")
        headers = {"Content-Type": JSON, "Connection": "close"}
        answered = running.api.request("PUT", path, "north", content=body, headers=headers)
        assert (answered.status_code, "next" in answered.json()) == (201, False)


def test_an_answer_that_waits_counts_as_a_long_poll(tmp_path: Path) -> None:
    """Its body counts among those that arrive, and its wait leaves room for the next one."""
    limits = {"requests_per_token": 1, "waits_per_token": 1}
    with round_1(tmp_path, **limits) as running, floods(running.api.base_url) as flood:
        body = running.api.answer("north", "heart")
        more = f"Content-Length: {len(body)}\r\nConnection: close\r\nExpect: 100-continue"
        head = begun(running, more).replace(b"/submission ", b"/submission?wait=25 ")
        waiting = flood(head + body)
        eventually(lambda: metric(running, "fedclust_waiting_requests") == 1)
        refused = running.api.request("GET", f"{TASK}?wait=25", "north")
        assert refused.status_code == 429
        slow = flood(head)
        assert slow.recv(65_536).startswith(b"HTTP/1.1 100 ")
        assert slug(everything(flood(head)))[:2] == (429, "too-many-requests")
        slow.close()
        running.api.ok("POST", "/v1/sessions/heart/cancel", "ada")
        assert b"HTTP/1.1 201 " in everything(waiting)
        eventually(lambda: metric(running, "fedclust_waiting_requests") == 0)
        # Both places are free again.
        assert running.api.request("GET", f"{TASK}?wait=25", "north").status_code == 200
        assert running.api.request("GET", "/v1/whoami", "north").status_code == 200


def test_bodies_of_one_token_leave_room_for_others(tmp_path: Path) -> None:
    with (
        round_1(tmp_path, requests_per_token=2) as running,
        floods(running.api.base_url) as flood,
    ):
        slow = [uploading(running, flood()) for _ in range(2)]
        third = flood(begun(running, "Content-Length: 2\r\nConnection: close") + b"{}")
        status, problem, headers = slug(everything(third))
        assert (status, problem, headers["retry-after"]) == (429, "too-many-requests", "1")
        served(running, "south")
        slow.pop().close()
        # North's own answer finds the place that is free now.
        eventually(lambda: running.api.request("GET", "/v1/whoami", "north").status_code == 200)
        served(running, "north")
        assert running.stored() == 2


def test_of_refused_bodies_a_few_are_read_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are answered at once: without a token nobody holds a connection by sending."""
    monkeypatch.setattr(middleware, "_MAX_DRAINS", 1)
    monkeypatch.setattr(middleware, "_DRAIN_SECONDS", 2 * TIMEOUT_S)
    with round_1(tmp_path) as running, floods(running.api.base_url) as flood:
        request = begun(running, "Content-Length: 9").replace(b"Bearer fcs", b"Bearer nobody")
        sending = [flood(request) for _ in range(4)]
        eventually(lambda: len(select.select(sending, [], [], 0)[0]) == 3)
        answered = select.select(sending, [], [], 0)[0]
        assert [parts(everything(each))[0] for each in answered] == [401] * 3
        (drained,) = set(sending) - set(answered)
        drained.sendall(b"123456789")
        assert parts(drained.recv(65_536))[0] == 401


FILE = "/static/swagger-ui/swagger-ui-bundle.js"


@contextlib.contextmanager
def reading_nothing(running: Running) -> Iterator[socket.socket]:
    """Ask for a file that no buffer holds, and take nothing more of it once it comes."""
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        url = httpx.URL(running.api.base_url)
        reader.connect((url.host, url.port))
        reader.sendall(f"GET {FILE} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert reader.recv(12) == b"HTTP/1.1 200"
        yield reader


def test_files_that_nobody_reads_hold_only_their_own_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_DOWNLOADS", 1)
    with round_1(tmp_path) as running, reading_nothing(running):
        assert running.api.request("GET", FILE).status_code == 503
        assert running.api.request("GET", "/healthz").status_code == 200
        served(running, "south")


def test_who_reads_nothing_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_DOWNLOADS", 1)
    monkeypatch.setattr(protocol, "STUCK_SECONDS", 0.3)
    with round_1(tmp_path) as running, reading_nothing(running) as reader:
        eventually(lambda: running.api.request("GET", FILE).status_code == 200)
        # Torn off, not ended.
        assert len(everything(reader)) < len(running.api.request("GET", FILE).content)


def test_who_reads_nothing_does_not_hold_a_shutdown_up(tmp_path: Path) -> None:
    """Other requests would have a minute."""
    size = (docs.STATIC / "swagger-ui" / "swagger-ui-bundle.js").stat().st_size
    with (
        round_1(tmp_path, threads=True, shutdown_grace_s=60) as running,
        reading_nothing(running) as reader,
    ):
        running.local.end()
        assert len(everything(reader)) < size


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


def test_an_answer_that_nobody_reads_does_not_vanish_into_the_kernel() -> None:
    """Else its download ends, and the budget takes another: 1,010 of them cost 4 s of CPU."""
    file = docs.STATIC / "swagger-ui" / "swagger-ui-bundle.js"
    listener = server.listen("127.0.0.1", 0)
    with listener, socket.create_connection(listener.getsockname(), timeout=TIMEOUT_S):
        accepted, _ = listener.accept()
        with accepted, contextlib.suppress(BlockingIOError):
            accepted.setblocking(False)
            rest = memoryview(file.read_bytes())
            while rest:
                rest = rest[accepted.send(rest) :]
    assert rest


def test_the_budget_of_a_token_is_not_used_up_by_who_knows_only_its_id() -> None:
    budget = Budget(1, 3, 1)
    assert budget.enter("fcs_id_secret") is None
    assert budget.enter("fcs_id_secret") is not None
    assert budget.enter("fcs_id_guessed") is None
    budget.leave("fcs_id_secret")
    assert budget.enter("fcs_id_secret") is None


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
def test_the_soft_limit_on_descriptors_is_raised_to_the_hard_one() -> None:
    program = (
        "import resource\n"
        "from fedclust_service.connections import raise_descriptor_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))\n"
        "print(raise_descriptor_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [b"512", b"512"]


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit")
def test_without_descriptors_idle_connections_still_make_room(tmp_path: Path) -> None:
    import resource

    with running_server(tmp_path / "server", "--max-connections", "50") as server:
        # As if something else in the process had taken the reserved ones.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (45, hard))
        with floods(server.base_url) as flood:
            for _ in range(100):
                flood()
            assert server.get("/healthz").status_code == 200
        # Once in each interval of the log.
        assert 1 <= server.output().count('"event": "accept_failed"') < 10
        assert len(server.output()) < 10_000


def test_more_connections_than_descriptors_are_refused_at_start(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="LimitNOFILE") as caught,
        running_server(tmp_path / "server", "--max-connections", str(2**16)),
    ):
        pass
    assert f"need {2**16 + RESERVED_DESCRIPTORS} file descriptors" in str(caught.value)
