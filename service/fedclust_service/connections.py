"""Open connections: never more than the process has file descriptors for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import Callable, Hashable
from typing import TypeVar

import structlog

log = structlog.get_logger(__name__)

#: Descriptors for everything but connections. Measured: 15 when idle, 58 with every connection to
#: SQLite in use; files that are being sent take 32, processes that aggregate a few.
RESERVED_DESCRIPTORS = 150
#: Without a setting. A site keeps one or two connections open: enough for 1,000 sites that take
#: part in two sessions. A long poll takes 25 KiB, a silent connection 4.
DEFAULT_CONNECTIONS = 4096
#: Soft limits are not raised beyond this: a hard limit may be infinite, and a process that closes
#: all its possible descriptors before it starts another takes seconds for 2**30 of them.
_ENOUGH_DESCRIPTORS = 2**16
#: Until the next attempt where no connection can be accepted.
_ACCEPT_PAUSE_S = 0.01

P = TypeVar("P", bound=asyncio.Protocol)


def raise_descriptor_limit() -> int:
    """Raise the soft limit on file descriptors to the hard one and return it."""
    if sys.platform == "win32":  # sockets are no descriptors there
        return _ENOUGH_DESCRIPTORS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = _ENOUGH_DESCRIPTORS if hard == unlimited else min(hard, _ENOUGH_DESCRIPTORS)
    if soft != unlimited and soft < wanted:
        # macOS refuses more than the kernel's own limit.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _ENOUGH_DESCRIPTORS if soft == unlimited else soft


class Connections:
    """Accepts connections and counts them; the one that is idle longest makes room for a new one.

    A connection is idle while the server waits for the client: for TLS, for a request's head, or
    for an answer to be read. Used in the event loop's thread alone.

    Parameters
    ----------
    most : int
        Where as many are open and none is idle, a new one is closed at once.

    Attributes
    ----------
    evicted, refused : int
        Idle connections that were closed to make room; new ones that were closed.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.evicted = self.refused = 0
        self._open: set[Hashable] = set()
        # In the order in which they became idle, each with what closes it.
        self._idle: dict[Hashable, Callable[[], object]] = {}
        self._starting: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def idle(self, connection: Hashable, close: Callable[[], object]) -> None:
        """Say that a connection waits for its client; while it stays idle it keeps its turn."""
        if connection in self._open:
            self._idle[connection] = close

    def busy(self, connection: Hashable) -> None:
        """Say that a connection has a request to answer."""
        self._idle.pop(connection, None)

    def leave(self, connection: Hashable) -> None:
        """Say that a connection is closed."""
        self._idle.pop(connection, None)
        self._open.discard(connection)

    async def accept(
        self,
        listener: socket.socket,
        protocol: Callable[[], P],
        tls: ssl.SSLContext | None,
        handshake_s: float,
    ) -> None:
        """Accept connections until cancelled.

        Parameters
        ----------
        listener : socket
            Listening and not blocking.
        protocol : callable
            Makes the protocol of a connection. The protocol says when it is idle, busy or closed.
        tls : ssl.SSLContext or None
        handshake_s : float
            A TLS handshake that takes longer is given up.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                # Something else in the process has taken the reserved descriptors, too.
                log.error("accept_failed", exc_info=error)
                self._evict()
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if len(self._open) < self.most or self._evict():
                self._begin(connection, protocol(), tls, handshake_s)
            else:
                self.refused += 1
                connection.close()
            # One at a time: a queue of new connections holds no open request up.
            await asyncio.sleep(0)

    def _evict(self) -> bool:
        if not self._idle:
            return False
        self._idle.pop(next(iter(self._idle)))()
        self.evicted += 1
        return True

    def _begin(
        self,
        connection: socket.socket,
        protocol: asyncio.Protocol,
        tls: ssl.SSLContext | None,
        handshake_s: float,
    ) -> None:
        loop = asyncio.get_running_loop()

        async def start() -> None:
            try:
                await loop.connect_accepted_socket(
                    lambda: protocol,
                    connection,
                    ssl=tls,
                    ssl_handshake_timeout=None if tls is None else handshake_s,
                )
            except OSError:  # no TLS, or the client has gone
                self.leave(protocol)
            except asyncio.CancelledError:
                self.leave(protocol)
                raise

        task = loop.create_task(start())
        self._open.add(protocol)
        self.idle(protocol, task.cancel)
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
