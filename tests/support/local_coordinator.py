"""A coordinator inside the test's process, answering real HTTP: its clock can be moved.

    with local_coordinator(tmp_path, clock=ManualClock()) as local:
        local.http(token).get("/v1/whoami")
        local.coordinator, local.operator_token

The driver and the sweeper run only with ``threads=True``; without, tests call what they need.
"""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import structlog
import uvicorn.server

from fedclust_service import logging, server
from fedclust_service.clock import StoreClock
from fedclust_service.settings import Settings, load_settings
from fedclust_service.usecases.coordinator import Coordinator
from support import few_clouds
from support.reader import NOBODY
from support.sqlite_file import create_sqlite
from support.timeouts import TIMEOUT_S

# Uvicorn looks every 0.1 s whether it should end, and then lets another 0.1 s pass.
uvicorn.server.asyncio = SimpleNamespace(
    **{**vars(asyncio), "sleep": lambda seconds: asyncio.sleep(seconds / 10)}
)


@dataclass
class LocalCoordinator:
    """A coordinator, its address, and clients that are closed with it."""

    coordinator: Coordinator
    settings: Settings
    base_url: str
    operator_token: str
    end: Any
    _stack: ExitStack = field(default_factory=ExitStack)

    def http(self, token: str | None = None, **headers: str) -> httpx.Client:
        """Return a client; ``token`` None sends no Authorization."""
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        client = httpx.Client(
            base_url=self.base_url,
            headers=headers,
            timeout=TIMEOUT_S,
            trust_env=False,
            verify=NOBODY,
        )
        return self._stack.enter_context(client)


@contextmanager
def local_coordinator(
    place: Path, *, clock: StoreClock | None = None, threads: bool = False, **settings: str
) -> Iterator[LocalCoordinator]:
    """Serve a new coordinator on a free port for the length of a ``with`` block."""
    through_logging()
    flags = {"data_dir": str(place / "coordinator"), "port": "0", **settings}
    if not {"data_dir", "database_url"} & settings.keys():
        create_sqlite(place / "coordinator")
    read = load_settings(flags, env_file=None)
    opening = ExitStack()
    opened = opening.enter_context(server.open_coordinator(read, serving=True, clock=clock))
    co = opened.coordinator
    co.limits = few_clouds.without_pool(co.limits)
    listener = server.listen(read.host, read.port)
    started = threading.Event()
    connections = server.connections_within_limit(read)
    config = server.http_config(server.create_app(co, read, connections), read)
    running = server.Server(config, connections, started.set, co.ask_to_stop)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    if threads:
        co.start()
    thread.start()
    assert started.wait(TIMEOUT_S)

    def end() -> None:
        if thread.is_alive():
            running.handle_exit(signal.SIGTERM, None)
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), "the server did not end"

    address = server.address_of(listener, read)
    local = LocalCoordinator(co, read, address, opened.operator_token, end)
    try:
        yield local
    finally:
        local._stack.close()
        end()
        opening.close()


def through_logging() -> None:
    """Send structlog's records to the standard library's logging and its current handlers."""
    structlog.configure(
        processors=[*logging._shared(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
