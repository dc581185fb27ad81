"""Proxies on loopback: they balance requests, break connections, or record what passes.

`TcpProxy` forwards bytes. `Link` does so to one address and can hold everything; `Balancer` to the
next of several coordinators. `served` puts an httpx transport behind a real socket, and
`RecordingProxy` is such a transport that passes requests on.
"""

import contextlib
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

from support.certificates import Pair
from support.reader import NOBODY
from support.timeouts import TIMEOUT_S

_CHUNK = 65536
_CONNECTION = re.compile(rb"\r\nconnection:[^\r]*", re.IGNORECASE)


class TcpProxy:
    """Forwards connections, each in threads of its own, to where `connect` leads."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._flows = threading.Event()
        self._flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def connect(self, client: socket.socket) -> socket.socket:
        """Return the connection that belongs to a client's; OSError refuses the client."""
        raise NotImplementedError

    def cut(self) -> None:
        """Break all connections."""
        for each in list(self._open):
            _shut_down(each)

    def close(self) -> None:
        """Stop listening and break all connections."""
        _shut_down(self._listener)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            self._open.add(client)
            with self.connect(client) as server:
                server.settimeout(None)
                self._open.add(server)
                back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
                back.start()
                self._pump(client, server)
                back.join(TIMEOUT_S)
            self._open.discard(server)
        self._open.discard(client)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                self._flows.wait()
                sink.sendall(data)
        _shut_down(source)
        _shut_down(sink)


class Link(TcpProxy):
    """Forwards connections to a TCP port on loopback, or to a Unix socket."""

    def __init__(self, target: int | Path) -> None:
        self._target = target
        super().__init__()

    def connect(self, client: socket.socket) -> socket.socket:
        """Return a connection to the target."""
        if isinstance(self._target, int):
            return socket.create_connection(("127.0.0.1", self._target), TIMEOUT_S)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self._target))
        return connection

    def hold(self) -> None:
        """Keep connections open and let nothing through, as a network that swallows packets."""
        self._flows.clear()

    def release(self) -> None:
        """Let through what was held."""
        self._flows.set()


class Balancer(TcpProxy):
    """Forwards each request to the next of the coordinators at ``ports`` that accepts it.

    A request is sent to one coordinator only: whether it may be sent again, the client decides.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self._next = 0
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}"

    def connect(self, client: socket.socket) -> socket.socket:
        """Return a connection to a coordinator that has been sent the client's request."""
        head = read_head(client)
        for _ in self._ports:
            port = self._ports[self._next % len(self._ports)]
            self._next += 1
            with contextlib.suppress(OSError):
                server = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
                break
        else:
            raise ConnectionRefusedError
        # One request a connection: the coordinator tells the client to close it.
        first, _, fields = _CONNECTION.sub(b"", head).partition(b"\r\n")
        server.sendall(first + b"\r\nConnection: close\r\n" + fields)
        return server


def read_head(client: socket.socket) -> bytes:
    """Read from a client until the head of its request is complete."""
    head = b""
    while b"\r\n\r\n" not in head:
        data = client.recv(_CHUNK)
        if not data:
            raise ConnectionError("the client has gone")
        head += data
    return head


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def serving(server: socketserver.TCPServer) -> Iterator[int]:
    """Let a server's thread work for the length of the block, and yield its port."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def served(transport: httpx.BaseTransport, pair: Pair | None = None) -> Iterator[str]:
    """Serve a transport on a free port of the loopback interface, and yield its address.

    With ``pair`` over TLS. Where the transport raises a TransportError, the client's connection
    breaks.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body go together: a body by itself is held until the head is acknowledged, 40 ms.
        wbufsize = -1

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length)
            if len(body) < length:
                # The client was killed while it sent: this is no request yet.
                self.close_connection = True
                return
            request = httpx.Request(
                self.command, f"{url}{self.path}", headers=dict(self.headers), content=body
            )
            try:
                response = transport.handle_request(request)
                content = b"".join(response.iter_raw())
            except httpx.TransportError:
                self.close_connection = True
                return
            self.send_response_only(response.status_code)
            for name, value in response.headers.multi_items():
                if name not in {"content-length", "transfer-encoding"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815  (as the base calls)

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Keep quiet: clients are killed in some tests."""

    server, scheme = Server(("127.0.0.1", 0), Handler), "http"
    if pair is not None:
        server.socket, scheme = pair.context().wrap_socket(server.socket, server_side=True), "https"
    with serving(server) as port:
        url = f"{scheme}://127.0.0.1:{port}"
        yield url


@dataclass
class Exchange:
    """A request as it passed, and the status of its answer (None: none came)."""

    method: str
    path: str
    token: str
    body: bytes
    status: int | None = None
    content: bytes = b""


class RecordingProxy(httpx.BaseTransport):
    """Passes requests to the coordinator at ``target`` and records them; use it with `recorded`.

    ``on_request`` is called, in the connection's thread, before a request is passed on. A
    TransportError that it raises breaks the connection.
    """

    def __init__(self, target: str) -> None:
        self.target = httpx.URL(target)
        self.url = ""
        self.exchanges: list[Exchange] = []
        self.on_request: Callable[[Exchange], None] = lambda _exchange: None
        self._transport = httpx.HTTPTransport(verify=NOBODY)

    def puts(self) -> list[Exchange]:
        """Return the submissions that passed, in order."""
        return [e for e in list(self.exchanges) if e.method == "PUT" and "/rounds/" in e.path]

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Record a request and pass it on."""
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        path = request.url.raw_path.decode("ascii")
        exchange = Exchange(request.method, path, token, request.content)
        self.exchanges.append(exchange)
        self.on_request(exchange)
        response = self._transport.handle_request(
            httpx.Request(
                request.method,
                self.target.copy_with(raw_path=request.url.raw_path),
                headers=request.headers,
                content=request.content,
            )
        )
        exchange.content = b"".join(response.iter_raw())
        exchange.status = response.status_code
        stream = httpx.ByteStream(exchange.content)
        return httpx.Response(response.status_code, headers=response.headers, stream=stream)


@contextmanager
def recorded(target: str) -> Iterator[RecordingProxy]:
    """Run a `RecordingProxy` in front of the coordinator at ``target``."""
    proxy = RecordingProxy(target)
    with served(proxy) as proxy.url:
        yield proxy
