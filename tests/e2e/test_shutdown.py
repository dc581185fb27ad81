"""SIGTERM to a coordinator in the middle of its work: it ends, and nothing is lost."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import sys
from pathlib import Path

import httpx
import pytest

from support.api_caller import ApiCaller
from support.server import running_server
from support.timeouts import TIMEOUT_S


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM is POSIX")
def test_a_lock_that_somebody_else_holds_does_not_hold_it_up(tmp_path: Path) -> None:
    """Threads that wait for the database cannot be told to stop: the process ends with them."""
    with running_server(tmp_path / "data") as server:
        api = ApiCaller(server.base_url, server.operator_token)
        api.register("analysts", "ada")
        locked = sqlite3.connect(tmp_path / "data" / "fedclust.db", isolation_level=None)
        locked.execute("BEGIN IMMEDIATE")
        body = '{"name": "north"}'
        head = (
            "POST /v1/sites HTTP/1.1",
            *("Host: x", f"Authorization: Bearer {api.operator}", "Expect: 100-continue"),
            *("Content-Type: application/json", f"Content-Length: {len(body)}", "", ""),
        )
        address = httpx.URL(server.base_url)
        with socket.create_connection((address.host, address.port), TIMEOUT_S) as waiting:
            waiting.sendall("\r\n".join(head).encode())
            assert waiting.recv(65_536).startswith(b"HTTP/1.1 100 ")
            waiting.sendall(body.encode())
            assert server.stop() == 0
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while part := waiting.recv(65_536):
                    answer += part
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert "shutdown_cut_short" in server.output()
        locked.rollback()
        # What was answered 503 was not done.
        done = locked.execute("SELECT count(*) FROM principals WHERE name = 'north'").fetchone()
        assert done == (0,)
        locked.close()
