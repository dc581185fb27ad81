"""A hospital's forward proxy: CONNECT only, with a user name and a password."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading

from support.timeouts import TIMEOUT_S


class ForwardProxy:
    """Tunnels to any host for who authenticates; 407 for all others.

    ``tunnels`` lists the targets that were asked for, in order, ``refused`` counts the 407s.
    """

    def __init__(self, user: str, password: str) -> None:
        self._expected = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.tunnels: list[str] = []
        self.refused = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> ForwardProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            head = b""
            while b"\r\n\r\n" not in head:
                data = client.recv(4096)
                if not data:
                    return
                head += data
            lines = head.decode("latin-1").split("\r\n")
            method, target, _ = lines[0].split(" ", 2)
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
            if method != "CONNECT":
                client.sendall(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
                return
            if headers.get("proxy-authorization") != self._expected:
                self.refused += 1
                client.sendall(
                    b"HTTP/1.1 407 Proxy Authentication Required\r\n"
                    b"Proxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"
                )
                return
            self.tunnels.append(target)
            host, _, port = target.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as server:
                server.settimeout(None)
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                back.start()
                _pump(client, server)
                back.join(TIMEOUT_S)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
