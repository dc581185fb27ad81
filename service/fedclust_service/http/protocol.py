"""HTTP/1.1 below the application: what is no request at all, and one that never gets complete."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedclust.wire import problems

#: A connection whose request line and headers take longer is closed: it holds a file descriptor.
HEAD_SECONDS = 30.0
#: So is one whose other end takes nothing of an answer for so long: it holds the answer, too.
STUCK_SECONDS = 60.0
#: The same while the process ends.
_ENDING_STUCK_SECONDS = 0.5


class Protocol(H11Protocol):
    """Uvicorn's HTTP with the refusals of the catalogue, and bounds on a request's head and on
    the time in which nothing of an answer is read.

    h11 by name, whatever else is installed: it takes at most 64 KiB of headers, others any number.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _stuck_timer: asyncio.TimerHandle | None = None
    _ending = False

    def connection_made(self, transport: Any) -> None:
        """Begin a connection."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Take what has arrived."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._forget_head()
        self._forget_stuck()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Hold an answer back whose reader is slow, for a while."""
        super().pause_writing()
        self._watch_stuck()

    def resume_writing(self) -> None:
        """Go on: the reader has caught up."""
        self._forget_stuck()
        super().resume_writing()

    def shutdown(self) -> None:
        """Close after the answer that is under way, if somebody reads it."""
        self._ending = True
        if self._stuck_timer is not None:
            self._watch_stuck()
        super().shutdown()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # uvicorn's words are for people
        """Refuse what cannot be read as HTTP, and close."""
        problem = problems.problem(
            "malformed-request", "This is not HTTP/1.1, or its headers are too long."
        )
        problem.request_id = secrets.token_hex(8)
        body = problem.model_dump_json(exclude_none=True).encode()
        headers = [
            ("Content-Type", problems.CONTENT_TYPE),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Fedclust-Request-Id", problem.request_id),
            ("Connection", "close"),
        ]
        start = h11.Response(status_code=problem.status, headers=headers, reason=b"Bad Request")
        for event in (start, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch_head(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if not idle or self.timeout_keep_alive_task is not None or self.transport.is_closing():
            self._forget_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _watch_stuck(self) -> None:
        self._forget_stuck()
        seconds = _ENDING_STUCK_SECONDS if self._ending else STUCK_SECONDS
        self._stuck_timer = self.loop.call_later(seconds, self.transport.abort)

    def _forget_stuck(self) -> None:
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
            self._stuck_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
