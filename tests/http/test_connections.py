"""What arrives on a bare socket: slowly, in part, or not as HTTP at all."""

import contextlib
import socket
from pathlib import Path

import httpx
import pytest

from fedclust.wire.errors import Problem
from fedclust_service.http import protocol
from support.timeouts import TIMEOUT_S

from .conftest import Running, round_1

SUBMISSION = "/v1/sessions/heart/rounds/1/submission"


def connect(running: Running) -> socket.socket:
    address = httpx.URL(running.local.base_url)
    return socket.create_connection((address.host, address.port), timeout=TIMEOUT_S)


def everything(connection: socket.socket) -> bytes:
    """Return all that comes until the server closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):  # It closed before it had read everything.
        while chunk := connection.recv(65_536):
            received += chunk
    return received


def parts(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, body


def begun(running: Running, length: str) -> bytes:
    """Return the head of a submission and the first byte of its body."""
    return (
        f"PUT {SUBMISSION} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {running.api.tokens['north']}\r\n{length}\r\n\r\n"
    ).encode()


@pytest.mark.parametrize(
    ("length", "body"),
    [("Content-Length: 1000", b"{"), ("Transfer-Encoding: chunked", b"1\r\n{\r\n")],
)
def test_a_body_that_trickles_is_given_up_and_taken_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: str, body: bytes
) -> None:
    monkeypatch.setattr("fedclust_service.http.middleware._DRAIN_SECONDS", 0.1)
    with round_1(tmp_path, body_timeout_s=1) as running:
        with connect(running) as connection:
            connection.sendall(begun(running, length) + body)
            status, headers, answer = parts(everything(connection))
        problem = Problem.model_validate_json(answer)
        assert (status, problem.slug) == (408, "request-timeout")
        # The rest of the body must not be read as the next request.
        assert headers["connection"] == "close"
        assert headers["retry-after"] == "1"
        assert running.stored() == 0
        whole = running.api.answer("north", "heart")
        assert running.api.put("north", "heart", 1, whole).status_code == 201


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /v1/sessions/h\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/sites HTTP/1.1\r\nHost: x\r\nContent-Length: -4\r\n\r\n",
        b"POST /v1/sites HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n",
    ],
    ids=["tls", "no host", "path", "length", "two lengths"],
)
def test_what_is_not_http_is_refused_like_everything_else(running: Running, sent: bytes) -> None:
    with connect(running) as connection:
        connection.sendall(sent)
        status, headers, answer = parts(everything(connection))
    problem = Problem.model_validate_json(answer)
    assert (status, problem.status, problem.slug) == (400, 400, "malformed-request")
    assert headers["content-type"] == "application/problem+json"
    assert headers["fedclust-request-id"] == problem.request_id
    assert headers["connection"] == "close"


def head_of(size: int, header: bytes) -> bytes:
    """Return a request's head of ``size`` bytes: one header again and again, and a last one."""
    start = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    end = b"\r\n\r\n"
    times, rest = divmod(size - len(start) - len(end) - 4, len(header))
    return start + header * times + b"Y: " + b"y" * (rest + 1) + end


@pytest.mark.parametrize("together", [True, False], ids=["one piece", "small pieces"])
@pytest.mark.parametrize(
    "header",
    [b"X: " + b"a" * 60_000 + b"\r\n", b"X: abc\r\n", b"X:" + b" " * 900 + b"\r\n"],
    ids=["long", "many", "spaces"],
)
def test_heads_of_64_kib_at_most(
    running: Running, monkeypatch: pytest.MonkeyPatch, header: bytes, together: bool
) -> None:
    # Whoever is still sending by then would lose the answer.
    monkeypatch.setattr(protocol, "LINGER_SECONDS", TIMEOUT_S)
    for size, wanted in ((65_536, 200), (65_537, 431), (200_000, 431), (1_000_000, 431)):
        sent = head_of(size, header)
        assert len(sent) == size
        step = size if together else 8_000
        with connect(running) as connection:
            for start in range(0, size, step):
                connection.sendall(sent[start : start + step])
            status, headers, answer = parts(everything(connection))
        assert status == wanted, size
        if wanted == 431:
            problem = Problem.model_validate_json(answer)
            assert (problem.slug, problem.status) == ("headers-too-large", 431)
            assert "65536 bytes" in problem.detail
            assert headers["connection"] == "close"


def test_a_long_body_is_no_long_head(running: Running) -> None:
    head = b"POST /v1/sites HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n"
    with connect(running) as connection:
        connection.sendall(head + b" " * 200_000 + head_of(300, b"X: abc\r\n"))
        answer = everything(connection)
    assert parts(answer)[0] == 401
    assert b"HTTP/1.1 200 OK" in answer


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: "])
def test_a_head_that_never_ends_is_given_up(
    running: Running, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with monkeypatch.context() as patch:
        patch.setattr(protocol, "HEAD_SECONDS", 0.1)
        with connect(running) as connection:
            connection.sendall(sent)
            assert everything(connection) == b""
    with connect(running) as connection:
        # Nor on a connection that has answered before.
        connection.sendall(whole)
        received = b""
        while not received.endswith(b'{"status":"ok"}'):
            received += connection.recv(65_536)
        monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)
        connection.sendall(b"GET /healthz")
        assert everything(connection) == b""


def test_the_bound_on_a_head_is_none_on_an_answer(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 1.0)
    task = "/v1/sessions/heart/task"
    etag = running.api.request("GET", task, "west").headers["ETag"]
    waited = running.api.request("GET", f"{task}?wait=1.3", "west", headers={"If-None-Match": etag})
    assert waited.status_code == 304
    assert running.api.request("GET", "/healthz").status_code == 200


def test_after_a_body_with_two_ends_no_request_is_read(running: Running) -> None:
    """A proxy that believed `Content-Length` would take the second request for part of a body."""
    twice = f"PUT {SUBMISSION} HTTP/1.1\r\nHost: x\r\nContent-Length: 60\r\n"
    twice += "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with connect(running) as connection:
        connection.sendall(twice.encode())
        answer = everything(connection)
    status, headers, _ = parts(answer)
    assert (status, headers["connection"]) == (401, "close")
    assert answer.count(b"HTTP/1.1 ") == 1
