"""A transport of httpx behind a real socket: what a test makes up is read from the wire."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx


@contextmanager
def served(transport: httpx.BaseTransport) -> Iterator[str]:
    """Serve a transport on a free port of the loopback interface, and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = httpx.Request(
                self.command, f"{url}{self.path}", headers=dict(self.headers), content=body
            )
            response = transport.handle_request(request)
            content = response.read()
            self.send_response(response.status_code)
            for name, value in response.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_DELETE = answer  # noqa: N815  (what the base class calls)

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield url
        finally:
            server.shutdown()
            thread.join()
