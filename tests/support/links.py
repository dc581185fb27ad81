"""What stands between processes: a proxy that balances requests, and connections that break.

``Balancer`` forwards each HTTP request to the next of several coordinators, whatever connection it
came on. ``Link`` forwards connections to one TCP or Unix address and can cut or hold all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from support.timeouts import TIMEOUT_S

_T = TypeVar("_T")
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_CHUNK = 65536
_CONNECTION = re.compile(rb"\r\nconnection:[^\r]*", re.IGNORECASE)


class _Forwarder:
    """Listens on loopback, in a thread of its own, until ``close``."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open: set[asyncio.Task[None]] = set()
        self._server = self._call(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break all connections."""
        self._call(self._cut())

    def close(self) -> None:
        """Stop listening and break all connections."""
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    def _call(self, what: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(TIMEOUT_S)

    async def _end(self) -> None:
        self._server.close()
        await self._cut()

    async def _cut(self) -> None:
        ending = list(self._open)
        for each in ending:
            each.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        opened = [writer]
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._forward((reader, writer), opened)
        finally:
            self._open.discard(task)
            for each in opened:
                each.transport.abort() if task.cancelling() else each.close()

    async def _forward(self, client: _Streams, opened: list[asyncio.StreamWriter]) -> None:
        raise NotImplementedError

    async def _both_ways(self, client: _Streams, server: _Streams) -> None:
        ways = [
            asyncio.ensure_future(self._one_way(client[0], server[1])),
            asyncio.ensure_future(self._one_way(server[0], client[1])),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _one_way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()


class Balancer(_Forwarder):
    """Forwards requests to the coordinators at ``ports`` in turn; one that refuses is passed over.

    A request is sent to one coordinator only: whether it may be sent again, the client decides.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self._next = 0
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}"

    async def _forward(self, client: _Streams, opened: list[asyncio.StreamWriter]) -> None:
        head = await client[0].readuntil(b"\r\n\r\n")
        server = await self._connect()
        opened.append(server[1])
        # One request a connection: the coordinator tells the client to close it.
        first, _, fields = _CONNECTION.sub(b"", head).partition(b"\r\n")
        server[1].write(first + b"\r\nConnection: close\r\n" + fields)
        await self._both_ways(client, server)

    async def _connect(self) -> _Streams:
        for _ in self._ports:
            port = self._ports[self._next % len(self._ports)]
            self._next += 1
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        raise ConnectionRefusedError


class Link(_Forwarder):
    """Forwards connections to a TCP port on loopback, or to a Unix socket."""

    def __init__(self, target: int | Path) -> None:
        self._target = target
        self._flows: asyncio.Event | None = None
        super().__init__()
        self.release()

    def hold(self) -> None:
        """Keep connections open and let nothing through, as a network that swallows packets."""
        self._call(self._let_flow(False))

    def release(self) -> None:
        """Let through what was held."""
        self._call(self._let_flow(True))

    async def _let_flow(self, flows: bool) -> None:
        self._flows = self._flows or asyncio.Event()
        self._flows.set() if flows else self._flows.clear()

    async def _forward(self, client: _Streams, opened: list[asyncio.StreamWriter]) -> None:
        if isinstance(self._target, Path):
            server = await asyncio.open_unix_connection(self._target)
        else:
            server = await asyncio.open_connection("127.0.0.1", self._target)
        opened.append(server[1])
        await self._both_ways(client, server)

    async def _one_way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._flows is not None
        while data := await reader.read(_CHUNK):
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
