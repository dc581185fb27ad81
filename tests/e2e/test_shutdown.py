"""SIGTERM to a coordinator in the middle of its work: it ends, and nothing is lost."""

import contextlib
import re
import socket
import sqlite3
import sys
from pathlib import Path

import httpx
import pytest

from fedclust import simulate
from fedclust.wire.codec import to_tree
from support.api_caller import FEATURES, ApiCaller, rows_of
from support.processes import SERVICE
from support.server import ServerProcess, running_server
from support.timeouts import TIMEOUT_S, eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM is POSIX")

SITES = ("north", "south", "west")
SESSION = "/v1/sessions/heart"
POLLS, STREAMS = 20, 5
#: Aggregates the first round and does not come to an end with the second.
STUCK = """
import sys, threading
from fedclust import rounds
advance, calls = rounds.advance, iter(range(9))
def stuck(*args):
    return advance(*args) if next(calls) == 0 else threading.Event().wait()
rounds.advance = stuck
from fedclust_service.cli import main
sys.exit(main())
"""


class Open:
    """A request on a socket of its own, whose answer is read later."""

    def __init__(self, server: ServerProcess, head: str, token: str) -> None:
        address = httpx.URL(server.base_url)
        self.socket = socket.create_connection((address.host, address.port), timeout=TIMEOUT_S)
        request = f"{head} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        self.socket.sendall(request.encode())

    def send(self, text: str) -> None:
        self.socket.sendall(text.encode())

    def receive(self) -> bytes:
        return self.socket.recv(65_536)

    def rest(self) -> bytes:
        """Return everything until the other end closes."""
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while part := self.socket.recv(65_536):
                received += part
        return received


def gauge(server: ServerProcess, name: str) -> float:
    text = server.get("/metrics").text
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def wait_until(server: ServerProcess, name: str, value: float) -> None:
    eventually(lambda: gauge(server, name) >= value, lambda: f"{name} is {gauge(server, name)}")


def test_a_lock_that_somebody_else_holds_does_not_hold_it_up(tmp_path: Path) -> None:
    """Threads that wait for the database cannot be told to stop: the process ends with them."""
    with running_server(tmp_path / "data") as server:
        api = ApiCaller(server.base_url, server.operator_token)
        api.register("analysts", "ada")
        locked = sqlite3.connect(tmp_path / "data" / "fedclust.db", isolation_level=None)
        locked.execute("BEGIN IMMEDIATE")
        body = '{"name": "north"}'
        waiting = Open(server, "POST /v1/sites", api.operator)
        waiting.send(f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n")
        waiting.send("Expect: 100-continue\r\n\r\n")
        assert waiting.receive().startswith(b"HTTP/1.1 100 ")
        waiting.send(body)
        assert server.stop() == 0
        assert waiting.rest().startswith(b"HTTP/1.1 503 ")
        assert "shutdown_cut_short" in server.output()
        locked.rollback()
        # What was answered 503 was not done.
        done = locked.execute("SELECT count(*) FROM principals WHERE name = 'north'").fetchone()
        assert done == (0,)
        locked.close()


@pytest.mark.long
def test_in_the_middle_of_everything(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polls and event streams open, a body half sent, a round being aggregated."""
    monkeypatch.setattr("support.server._COMMAND", [sys.executable, "-c", STUCK])
    environment = {"FEDCLUST_DATABASE_URL": database_url}
    with running_server(tmp_path / "data", "--lease-s", "1", env=environment) as server:
        api = ApiCaller.found(server, SITES)
        definition = api.definition("heart", list(SITES))
        api.begin("ada", "heart", SITES)
        receipts = {}
        for number in (1, 2):
            for site in SITES:
                path = f"{SESSION}/task"
                etag = ""
                while (task := api.task(site, "heart"))["status"] != "work":
                    etag = api.request("GET", path, site).headers["ETag"]
                    headers = {"If-None-Match": etag}
                    api.request("GET", f"{path}?wait=25", site, headers=headers)
                assert task["round"] == number
                body = api.answer(site, "heart")
                stored = api.put(site, "heart", number, body)
                assert stored.status_code == 201
                receipts[site, number] = (body, stored.json())
        wait_until(server, "fedclust_leases", 1)

        etag = api.request("GET", f"{SESSION}/task", "north").headers["ETag"]
        polls = [
            Open(server, f"GET {SESSION}/task?wait=25", api.tokens["north"]) for _ in range(POLLS)
        ]
        for poll in polls:
            poll.send(f"If-None-Match: {etag}\r\n\r\n")
        streams = [Open(server, f"GET {SESSION}/events", api.tokens["ada"]) for _ in range(STREAMS)]
        for stream in streams:
            stream.send("\r\n")
            assert stream.receive().startswith(b"HTTP/1.1 200 ")
        upload = Open(server, f"PUT {SESSION}/rounds/2/submission", api.tokens["west"])
        upload.send("Content-Type: application/json\r\nContent-Length: 999\r\n")
        upload.send("Expect: 100-continue\r\n\r\n")
        # Asked for once the caller is known: the request is under way.
        assert upload.receive().startswith(b"HTTP/1.1 100 ")
        wait_until(server, "fedclust_waiting_requests", POLLS)

        assert server.stop() == 0
        for poll in polls:
            answer = poll.receive()
            assert answer.startswith(b"HTTP/1.1 503 "), answer
            assert b"retry-after" in answer.lower()
        for stream in streams:
            # Ended as a response ends, not torn off.
            assert stream.rest().endswith(b"0\r\n\r\n")
        assert upload.receive().startswith(b"HTTP/1.1 503 ")
        assert "Traceback" not in server.output()

        server.command = (sys.executable, "-c", SERVICE)
        server.restart()
        for (site, number), (body, receipt) in receipts.items():
            again = api.put(site, "heart", number, body)
            assert (again.status_code, again.json()) == (200, receipt)
        assert api.finish("heart", SITES) == "completed"
        result = api.ok("GET", f"{SESSION}/result", "ada")["result"]
        attempts = api.ok("GET", f"{SESSION}/rounds/2", "ada")
        assert attempts["state"] == "closed"
    alone = simulate(
        "lloyd",
        {site: rows_of(site) for site in SITES},
        config=definition["config"],
        policy=definition["policy"],
        features=FEATURES,
        seed=7,
    )
    assert result["centroids"] == to_tree(alone.result)["centroids"].tolist()
