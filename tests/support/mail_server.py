"""A mail server on this machine that keeps what it gets, and a receiver of webhooks.

with mail_server() as server:      # pair=..., login=(user, password)
    server.port, server.mails      # each mail as (sender, recipients, message)
    server.replies["RCPT"] = ["550 no such user"]    # the next answers to a command
"""

import base64
import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import httpx

from support.certificates import Pair
from support.proxies import served, serving
from support.timeouts import TIMEOUT_S

#: The usual answer, among scripted ones.
OK = "as usual"


@dataclass
class MailServer:
    """What the server does and has got."""

    port: int = 0
    context: ssl.SSLContext | None = None
    login: tuple[str, str] | None = None
    mails: list[tuple[str, list[str], EmailMessage]] = field(default_factory=list)
    replies: dict[str, list[str]] = field(default_factory=dict)
    #: Whether each mail came over TLS.
    encrypted: list[bool] = field(default_factory=list)


class _Talk(socketserver.StreamRequestHandler):
    """One connection of a client."""

    server: Any

    def handle(self) -> None:
        self.wanted: MailServer = self.server.wanted
        self.sender, self.recipients = "", []
        self.say("220 ready")
        try:
            while line := self.rfile.readline():
                verb, _, rest = line.decode("ascii").strip().partition(" ")
                if self.answer(verb.upper(), rest) is False:
                    return
        except OSError:
            return

    def say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())

    def answer(self, verb: str, rest: str) -> bool | None:
        scripted = self.wanted.replies.get(verb)
        if scripted and (reply := scripted.pop(0)) != OK:
            if not reply:
                return False  # the connection breaks
            self.say(reply)
            return None
        if verb == "EHLO":
            encrypted = isinstance(self.request, ssl.SSLSocket)
            self.say("250-local")
            if self.wanted.context and not encrypted:
                self.say("250-STARTTLS")
            if self.wanted.login:
                self.say("250-AUTH PLAIN")
            self.say("250 SIZE 1000000")
        elif verb == "STARTTLS" and self.wanted.context:
            self.say("220 go on")
            self.request = self.wanted.context.wrap_socket(self.request, server_side=True)
            self.rfile = self.request.makefile("rb")
            self.wfile = self.request.makefile("wb", buffering=0)
        elif verb == "AUTH":
            said = base64.b64decode(rest.split()[1]).decode().split("\0")[1:]
            fits = tuple(said) == self.wanted.login
            self.say("235 welcome" if fits else "535 not these")
        elif verb == "MAIL":
            self.sender, self.recipients = _address(rest), []
            self.say("250 fine")
        elif verb == "RCPT":
            self.recipients.append(_address(rest))
            self.say("250 fine")
        elif verb == "DATA":
            self.say("354 begin")
            self.keep()
        else:
            self.say("221 bye" if verb == "QUIT" else "250 fine")
            return None if verb != "QUIT" else False
        return None

    def keep(self) -> None:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line[1:] if line.startswith(b"..") else line)
        message = message_from_bytes(b"".join(lines), policy=policy.default)
        self.wanted.mails.append((self.sender, self.recipients, message))
        self.wanted.encrypted.append(isinstance(self.request, ssl.SSLSocket))
        self.say("250 kept")


def _address(rest: str) -> str:
    return rest.partition("<")[2].partition(">")[0]


class _TcpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def mail_server(
    pair: Pair | None = None, *, login: tuple[str, str] | None = None
) -> Iterator[MailServer]:
    """Run a mail server on a free port; with ``pair`` it offers STARTTLS."""
    wanted = MailServer(context=pair and pair.context(), login=login)
    server = _TcpServer(("127.0.0.1", 0), _Talk)
    server.wanted = wanted  # type: ignore[attr-defined]
    with serving(server) as wanted.port:
        yield wanted


@dataclass
class Receiver:
    """Requests that a webhook got, and the statuses of its next answers; afterwards 204."""

    port: int = 0
    statuses: list[int] = field(default_factory=list)
    requests: list[tuple[Mapping[str, str], bytes]] = field(default_factory=list)


@contextmanager
def webhook_receiver(pair: Pair | None = None) -> Iterator[Receiver]:
    """Run a receiver of webhooks on a free port; with ``pair`` over TLS."""
    kept = Receiver()

    def receive(request: httpx.Request) -> httpx.Response:
        headers = {name.decode(): text.decode() for name, text in request.headers.raw}
        kept.requests.append((headers, request.content))
        status = kept.statuses.pop(0) if kept.statuses else 204
        other = {"Location": f"http://127.0.0.1:{kept.port}/other"} if status == 301 else {}
        return httpx.Response(status, headers=other, stream=httpx.ByteStream(b""))

    with served(httpx.MockTransport(receive), pair) as url:
        kept.port = int(url.rpartition(":")[2])
        yield kept


@contextmanager
def dripping(begin: bytes, drop: bytes) -> Iterator[int]:
    """Serve one connection: ``begin``, then ``drop`` every moment without end. Yields the port.

    AssertionError if the other side leaves the connection open.
    """
    cut = threading.Event()

    def drip(listening: socket.socket) -> None:
        talk, _ = listening.accept()
        with talk, contextlib.suppress(OSError):
            talk.sendall(begin)
            while not cut.wait(0.02):
                talk.sendall(drop)
        cut.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=[listening], daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(TIMEOUT_S)
    assert cut.is_set(), "the connection stays open"
