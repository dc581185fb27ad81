"""A recorder between sites and a coordinator, on plain HTTP over the loopback interface.

It keeps one address while the coordinator behind it is killed and started again elsewhere, and it
records every request with its body and the status that came back, or None where the connection
broke first. What was *sent*, and how often, is read from here and not from either program.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from support.timeouts import TIMEOUT_S


@dataclass
class Exchange:
    """A request as it passed, and the status of its answer (None: none came)."""

    method: str
    path: str
    token: str
    body: bytes
    status: int | None = None
    content: bytes = b""


@dataclass
class _Messages:
    """Cuts a stream of HTTP/1.1 messages with declared lengths."""

    buffer: bytes = b""

    def feed(self, data: bytes) -> list[tuple[str, dict[str, str], bytes]]:
        self.buffer += data
        found = []
        while b"\r\n\r\n" in self.buffer:
            head, rest = self.buffer.split(b"\r\n\r\n", 1)
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (s.partition(":") for s in lines)
            }
            if "chunked" in headers.get("transfer-encoding", ""):
                body = _unchunk(rest)
                if body is None:
                    break
                content, self.buffer = body
            else:
                length = int(headers.get("content-length", "0"))
                if first.startswith(("HTTP/1.1 304", "HTTP/1.1 204")):
                    length = 0
                if len(rest) < length:
                    break
                content, self.buffer = rest[:length], rest[length:]
            found.append((first, headers, content))
        return found


def _unchunk(data: bytes) -> tuple[bytes, bytes] | None:
    content = b""
    while True:
        size, mark, rest = data.partition(b"\r\n")
        if not mark:
            return None
        n = int(size.split(b";")[0], 16)
        if len(rest) < n + 2:
            return None
        content, data = content + rest[:n], rest[n + 2 :]
        if n == 0:
            return content, data


class Wiretap:
    """Forwards connections to ``target`` (a base URL, may change) and records what passes.

    ``on_request`` is called, in the connection's thread, when a whole request has been read and
    before it is passed on.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.exchanges: list[Exchange] = []
        self.on_request: Callable[[Exchange], None] | None = None
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Wiretap:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def puts(self) -> list[Exchange]:
        """Return the submissions that passed, in order."""
        with self._lock:
            return [e for e in self.exchanges if e.method == "PUT" and "/rounds/" in e.path]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        where = urlsplit(self.target)
        try:
            server = socket.create_connection(
                (where.hostname or "", where.port or 80), timeout=TIMEOUT_S
            )
        except OSError:
            client.close()
            return
        server.settimeout(None)
        waiting: list[Exchange] = []
        back = threading.Thread(target=self._answer, args=(server, client, waiting), daemon=True)
        back.start()
        messages = _Messages()
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                for first, headers, body in messages.feed(data):
                    method, path, _ = first.split(" ", 2)
                    token = headers.get("authorization", "").removeprefix("Bearer ")
                    exchange = Exchange(method, path, token, body)
                    with self._lock:
                        self.exchanges.append(exchange)
                    waiting.append(exchange)
                    if self.on_request is not None:
                        self.on_request(exchange)
                server.sendall(data)
        _close(server, client)

    def _answer(
        self, server: socket.socket, client: socket.socket, waiting: list[Exchange]
    ) -> None:
        messages = _Messages()
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                for first, _, body in messages.feed(data):
                    status = int(first.split(" ")[1])
                    if status >= 200:
                        exchange = waiting.pop(0)
                        exchange.status, exchange.content = status, body
                client.sendall(data)
        _close(server, client)


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
