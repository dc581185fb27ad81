"""HTTP/1.1 below the application: bytes that are no request, and requests that never complete."""

import asyncio
import re
import secrets
from http import HTTPStatus
from typing import Any, Literal

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from fedclust_service.connections import Connections
from fedclust_service.domain.access import Refusal
from fedclust_service.http.problems import refused

#: Longest request line and headers together, in bytes.
MAX_HEAD = 65_536
_HEAD_END = re.compile(rb"\n\r?\n")
#: How long a refused client may continue to send, so that it can read the refusal.
LINGER_SECONDS = 1.0
#: Longest time for a TLS handshake and for a request's line and headers: a waiting connection holds
#: a file descriptor. Clients send both at once; 15 s allow for lost packets.
HEAD_SECONDS = 15.0
#: Longest time in which a client reads nothing of an answer, which stays in memory.
STUCK_SECONDS = 60.0
#: The same while the process ends.
_ENDING_STUCK_SECONDS = 0.5


class _Connection(h11.Connection):
    """Limits a request's head even if it arrives in one read.

    h11 checks its limit only while a head is incomplete.
    """

    head_too_large = False

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD)

    def next_event(self) -> Any:
        """Return the next event; RemoteProtocolError if the bytes are no HTTP or too many."""
        if self.their_state is h11.IDLE:
            received, _ = self.trailing_data
            if len(received) > MAX_HEAD and not _HEAD_END.search(received, 0, MAX_HEAD):
                self.head_too_large = True
                raise h11.RemoteProtocolError("head too large", error_status_hint=431)
        return super().next_event()


class Protocol(H11Protocol):
    """Uvicorn's HTTP with refusals of the catalogue and limits on heads and stuck connections.

    It is always h11, even if httptools is installed: h11 can limit a request's head.
    ``connections`` learns when this connection is idle, busy or closed.
    """

    conn: _Connection
    _refused = False
    _ending = False

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        connections: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._connections = connections
        self._timers: dict[Literal["head", "stuck"], asyncio.TimerHandle] = {}
        self.conn = _Connection()

    def connection_made(self, transport: Any) -> None:
        """Begin a connection."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Process received bytes; drop those of a refused client."""
        if self._refused:
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Continue with the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._connections.leave(self)
        self._forget("head")
        self._forget("stuck")
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Pause an answer with a slow reader, and limit the pause."""
        super().pause_writing()
        self._watch()
        self._watch_stuck()

    def resume_writing(self) -> None:
        """Resume after the reader has caught up."""
        self._forget("stuck")
        super().resume_writing()
        self._watch()

    def shutdown(self) -> None:
        """Close after the current answer, if its reader takes it soon."""
        self._ending = True
        if "stuck" in self._timers:
            self._watch_stuck()
        super().shutdown()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # replaced by a problem document
        """Refuse bytes that are no HTTP, and close."""
        refusal = Refusal("malformed-request", "This is not HTTP/1.1: check address and port.")
        if self.conn.head_too_large:
            refusal = Refusal("headers-too-large", f"Send at most {MAX_HEAD} bytes of headers.")
        request_id = secrets.token_hex(8)
        answer = refused(refusal, request_id)
        answer.headers["Fedclust-Request-Id"] = request_id
        answer.headers["Connection"] = "close"
        status, reason = answer.status_code, HTTPStatus(answer.status_code).phrase.encode()
        start = h11.Response(status_code=status, headers=answer.raw_headers, reason=reason)
        for event in (start, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        # Closing with unread bytes would reset the connection and lose the answer.
        self._refused = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _watch(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if idle or self.flow.write_paused:
            self._connections.idle(self, self.transport.abort)
        else:
            self._connections.busy(self)
        if not idle or self.timeout_keep_alive_task is not None or self.transport.is_closing():
            self._forget("head")
        elif "head" not in self._timers:
            self._timers["head"] = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _forget(self, name: Literal["head", "stuck"]) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _watch_stuck(self) -> None:
        self._forget("stuck")
        seconds = _ENDING_STUCK_SECONDS if self._ending else STUCK_SECONDS
        self._timers["stuck"] = self.loop.call_later(seconds, self.transport.abort)
