"""Serve a coordinator over HTTP until a signal ends the process."""

import asyncio
import errno
import functools
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI

from fedclust_service.bootstrap import explain_store_errors, open_coordinator, reload_keys
from fedclust_service.connections import (
    DEFAULT_CONNECTIONS,
    RESERVED_DESCRIPTORS,
    Connections,
    raise_descriptor_limit,
)
from fedclust_service.exit_codes import Exit, SettingsError, StartFailure
from fedclust_service.http.app import create_app
from fedclust_service.http.protocol import HEAD_SECONDS, Protocol
from fedclust_service.settings import Settings

log = structlog.get_logger(__name__)

# Long enough for a proxy or SDK to keep its connection between two rounds.
_KEEP_ALIVE_SECONDS = 75
#: What the kernel holds of an answer that nobody reads. Up to 4 MiB by default, it took complete
#: files, so the budget of downloads did not count unread ones. 256 KiB allow 5 MB/s at a round trip
#: of 50 ms.
_SEND_BUFFER_BYTES = 1 << 18
#: At shutdown, the time for ending threads and closing the database, after that of open requests.
_CLOSING_SECONDS = 2.5


class Server(uvicorn.Server):
    """Uvicorn that makes waiting requests answer at once when it shuts down.

    Uvicorn itself waits for open requests before it informs the application, so a long poll would
    delay the shutdown. ``connections`` accepts the connections, because asyncio's server has no
    limit and logs thousands of errors a second when it runs out of descriptors.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        connections: Connections,
        ready: Callable[[], None],
        ending: Callable[[], None],
        reload: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._connections = connections
        self._ready = ready
        self._ending = ending
        self._reload = reload
        self._loop: asyncio.AbstractEventLoop | None = None
        self._accepting: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections and report that the server is ready."""
        await super().startup(sockets=[])
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_loop_failed)
        if self._reload is not None and sys.platform != "win32":
            self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        context = self.config.ssl
        tls = {"ssl": context, "ssl_handshake_timeout": HEAD_SECONDS} if context else {}
        for listener in sockets or []:
            listener.setblocking(False)
            accepting = self._connections.accept(listener, self._protocol, tls)
            self._accepting.append(self._loop.create_task(accepting))
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections and wait for open requests."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    def _protocol(self) -> Protocol:
        return Protocol(self.config, self.server_state, self.lifespan.state, self._connections)

    def handle_exit(self, sig: int, _frame: FrameType | None) -> None:
        """Begin the shutdown; a second SIGINT ends the process at once.

        Uvicorn's own would raise the signal again after the shutdown.
        """
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        if self._loop is not None:
            # Not in the signal handler, which may have interrupted a lock's holder.
            self._loop.call_soon_threadsafe(self._ending)


def _loop_failed(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log type and place; the loop's own message may repeat a value."""
    log.error("loop_error", exc_info=context.get("exception"))


def connections_within_limit(settings: Settings) -> Connections:
    """Raise the limit on file descriptors and return the connections that it allows.

    SettingsError if ``max_connections`` needs more descriptors than the hard limit allows.
    """
    descriptors = raise_descriptor_limit()
    room = descriptors - RESERVED_DESCRIPTORS
    most = settings.max_connections or min(DEFAULT_CONNECTIONS, room)
    if not 0 < most <= room:
        raise SettingsError(
            f"{most} connections need {most + RESERVED_DESCRIPTORS} file descriptors and this "
            f"process may open {descriptors}: raise the limit (LimitNOFILE of a systemd unit, "
            "ulimit -Hn) or lower --max-connections"
        )
    log.info("descriptors", limit=descriptors, max_connections=most)
    return Connections(most)


def http_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Return uvicorn's configuration: no server header, forwarded headers only from the proxy."""
    return uvicorn.Config(
        app,
        http=Protocol,
        proxy_headers=bool(settings.behind_proxy),
        forwarded_allow_ips=[str(network) for network in settings.behind_proxy],
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=settings.shutdown_grace_s,
    )


def serve(
    settings: Settings,
    say: Callable[[str], None],
    ready_file: Path | None = None,
    *,
    accept_clock: bool = False,
) -> None:
    """Run a coordinator until SIGINT or SIGTERM; StartFailure if it cannot start.

    ``say`` prints a line for the operator. ``ready_file`` is written with the address once the
    server answers requests. ``accept_clock`` is that of `open_coordinator`.
    """
    settings.check_listening()
    context = settings.ssl_context() if settings.tls else None
    connections = connections_within_limit(settings)
    if ready_file is not None and not ready_file.parent.is_dir():
        raise SettingsError(f"the folder of the ready file {ready_file} is missing")
    with (
        listen(settings.host, settings.port) as listener,
        open_coordinator(settings, serving=True, accept_clock=accept_clock) as opened,
    ):
        co, address = opened.coordinator, address_of(listener, settings)
        for line in opened.lines():
            say(line)

        def ready() -> None:
            log.info("listening", address=address)
            say(f"listening on {address}")
            # Last, so that a reader of the file finds everything printed.
            if ready_file is not None:
                draft = ready_file.with_name(f".{ready_file.name}.{os.getpid()}")
                draft.write_text(address + "\n", "ascii")
                draft.replace(ready_file)

        def ending() -> None:
            co.ask_to_stop()
            _exit_after(settings.shutdown_grace_s + _CLOSING_SECONDS)

        try:
            with explain_store_errors(settings):
                config = http_config(create_app(co, settings, connections), settings)
                config.load()
                config.ssl = context
                co.start()
                # Everything allocated so far stays: without freezing it, each full collection would
                # block all requests for a tenth of a second.
                gc.collect()
                gc.freeze()
                reload = functools.partial(reload_keys, co, settings)
                Server(config, connections, ready, ending, reload).run(sockets=[listener])
        finally:
            if ready_file is not None:
                ready_file.unlink(missing_ok=True)


def _exit_after(seconds: float) -> None:
    """End the process after this time even if it still waits, for example for the database.

    Everything acknowledged is committed; the rest is rolled back, as after a power cut.
    """

    def end() -> None:
        waited = [each.name for each in threading.enumerate() if not each.daemon]
        log.warning("shutdown_cut_short", threads=waited)
        os._exit(Exit.OK)

    timer = threading.Timer(seconds, end)
    timer.daemon = True  # so that it does not delay a process that ends in time
    timer.start()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket; StartFailure if the address is not available."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise StartFailure(
            Exit.ADDRESS, f"there is no address {host} to listen on: set --host"
        ) from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # on Windows two servers could share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # The accepted connections inherit it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        listener.bind(address)
        # At once, because another process can bind the port until this one listens.
        listener.listen(2048)
    except OSError as error:
        listener.close()
        why = "is in use: stop what listens there or set --port"
        if error.errno != errno.EADDRINUSE:
            why = f"cannot be listened on ({error.strerror}): set --host or --port"
        if error.errno == errno.EACCES:
            why += ", or give the account CAP_NET_BIND_SERVICE for a port below 1024"
        raise StartFailure(Exit.ADDRESS, f"{host} port {port} {why}") from None
    return listener


def address_of(listener: socket.socket, settings: Settings) -> str:
    """Return a listening socket's URL."""
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls else 'http'}://{host}:{port}"
