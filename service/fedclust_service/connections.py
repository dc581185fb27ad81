"""Accept connections within the limit on file descriptors."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import structlog

log = structlog.get_logger(__name__)

#: Descriptors for everything else. Measured: 15 when idle, 58 with every connection to SQLite in
#: use. Downloads take up to 32, aggregation processes a few.
RESERVED_DESCRIPTORS = 150
#: The default limit. It is enough for 1,000 sites in two sessions, because a site keeps one or two
#: connections open. A long poll takes 25 KiB, a silent connection 4 KiB.
DEFAULT_CONNECTIONS = 4096
#: The highest soft limit. The hard limit may be infinite, and closing 2**30 possible descriptors
#: before starting a process takes seconds.
_ENOUGH_DESCRIPTORS = 2**16
#: The pause after a failure to accept a connection.
_ACCEPT_PAUSE_S = 0.01


def raise_descriptor_limit() -> int:
    """Raise the soft limit on file descriptors to the hard one and return it."""
    if sys.platform == "win32":  # where sockets are no descriptors
        return _ENOUGH_DESCRIPTORS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = _ENOUGH_DESCRIPTORS if hard == unlimited else min(hard, _ENOUGH_DESCRIPTORS)
    if soft != unlimited and soft < wanted:
        # macOS refuses values above the kernel's limit.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _ENOUGH_DESCRIPTORS if soft == unlimited else soft


class Connections:
    """Accepts connections up to a limit; beyond it closes the one that is idle longest.

    A connection is idle while the server waits for the client: for TLS, for a request's head, or
    for an answer to be read. If none of the open connections is idle, a new one is closed at once.
    Only the event loop's thread may use this class.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        #: Idle connections closed for new ones, and new ones closed at once.
        self.evicted = self.refused = 0
        self._open: set[Hashable] = set()
        # Idle connections in the order in which they became idle, each with its close function.
        self._idle: dict[Hashable, Callable[[], object]] = {}
        self._starting: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def idle(self, connection: Hashable, close: Callable[[], object]) -> None:
        """Mark a connection as idle; one that is idle already keeps its place."""
        if connection in self._open:
            self._idle[connection] = close

    def busy(self, connection: Hashable) -> None:
        """Mark a connection as busy with a request."""
        self._idle.pop(connection, None)

    def leave(self, connection: Hashable) -> None:
        """Remove a closed connection."""
        self._idle.pop(connection, None)
        self._open.discard(connection)

    async def accept(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        tls: Mapping[str, Any],
    ) -> None:
        """Accept connections until cancelled; ``protocol`` makes the protocol of each one.

        The protocol reports when it is idle, busy or closed. ``listener`` listens and does not
        block. ``tls`` holds the options of `connect_accepted_socket` for TLS.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                # Something in the process has used even the reserved descriptors.
                log.error("accept_failed", exc_info=error)
                self._evict()
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if len(self._open) < self.most or self._evict():
                made = protocol()
                task = loop.create_task(self._start(made, connection, tls))
                self._open.add(made)
                self.idle(made, task.cancel)
                self._starting.add(task)
                task.add_done_callback(self._starting.discard)
            else:
                self.refused += 1
                connection.close()
            # Let open requests run between two new connections.
            await asyncio.sleep(0)

    def _evict(self) -> bool:
        if not self._idle:
            return False
        self._idle.pop(next(iter(self._idle)))()
        self.evicted += 1
        return True

    async def _start(
        self, protocol: asyncio.Protocol, connection: socket.socket, tls: Mapping[str, Any]
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: protocol, connection, **tls)
        except OSError:  # no TLS, or the client has gone
            self.leave(protocol)
        except asyncio.CancelledError:
            self.leave(protocol)
            raise
