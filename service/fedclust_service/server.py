"""One coordinator process: what it needs is made or opened, served, and closed again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import gc
import os
import secrets
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI

from fedclust_service.clock import ClockFault, StoreClock
from fedclust_service.connections import (
    DEFAULT_CONNECTIONS,
    RESERVED_DESCRIPTORS,
    Connections,
    raise_descriptor_limit,
)
from fedclust_service.domain.access import Role
from fedclust_service.domain.tokens import SecretKeys
from fedclust_service.exit_codes import Exit, StartFailure
from fedclust_service.http.app import create_app
from fedclust_service.http.protocol import HEAD_SECONDS, Protocol
from fedclust_service.orchestration import principals
from fedclust_service.orchestration.audit.trail import record_accepted_clock
from fedclust_service.orchestration.coordinator import Coordinator
from fedclust_service.orchestration.core import Limits
from fedclust_service.settings import (
    MIN_KEY_LENGTH,
    Settings,
    SettingsError,
    load_settings,
)
from fedclust_service.store import (
    SchemaProblem,
    Store,
    StoreBusy,
    StoreError,
    StoreLocked,
    StoreUnavailable,
    Unwritable,
    UrlRefused,
)

log = structlog.get_logger(__name__)

#: Failures of the store that end by themselves, or by an operator's hand: 503, not 500.
PASSING = (StoreBusy, StoreUnavailable, Unwritable)
# A hospital's proxy or SDK keeps its connection between two rounds.
_KEEP_ALIVE_SECONDS = 75
#: At shutdown, beyond what open requests have: for threads to end and the database to be closed.
_CLOSING_SECONDS = 2.5


# --- what a coordinator needs ---------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """A coordinator ready to start, and what had to be made for it.

    ``made`` says so in sentences; ``operator_token`` is set when no operator existed before.
    """

    coordinator: Coordinator
    made: tuple[str, ...] = ()
    operator_token: str | None = None

    def close(self) -> None:
        """Stop what was started and close the database."""
        self.coordinator.stop()
        self.coordinator.store.close()


def open_coordinator(
    settings: Settings,
    *,
    serving: bool,
    clock: StoreClock | None = None,
    accept_clock: bool = False,
) -> Opened:
    """Open the database and the secret key, making what is missing on an empty machine.

    Parameters
    ----------
    settings : Settings
    serving : bool
        Whether this process will serve requests; commands beside a running server will not.
    clock : StoreClock, optional
    accept_clock : bool
        Whether an operator has said that the time is right, however late the last audit entry is.

    Raises
    ------
    StartFailure
    """
    clock = clock or StoreClock(settings.clock_limit_s)
    made = _make_data_dir(settings)
    keys, made_key = _secret_keys(settings, make=True)
    if made_key:
        made.append(f"wrote a secret key to {settings.key_file}")
    with explained(settings):
        store = Store.open(settings.store_url, clock, serving=serving)
    coordinator = Coordinator(store=store, keys=keys, limits=_limits(settings))
    token = None
    try:
        with explained(settings):
            if serving:
                _check_clock(coordinator, accept=accept_clock)
            if not _has_operator(store):
                token = principals.bootstrap_operator(coordinator)
            elif made_key:
                made.append(
                    f"{settings.key_file} was missing: tokens issued before are not valid under "
                    "the new key; restore it from a backup, or issue new ones"
                )
    except BaseException:
        store.close()
        raise
    return Opened(coordinator, tuple(made), token)


def _check_clock(co: Coordinator, *, accept: bool) -> None:
    """Refuse to serve by a time that this machine, or what the database holds, contradicts."""
    limit_s, ahead_s = co.clock.limit_s, co.clock.skew.machine_s
    if co.clock.fault is ClockFault.MACHINE:
        raise StartFailure(
            Exit.CLOCK,
            f"this machine's clock is {_span(ahead_s)} {_side(ahead_s)} the database's, and "
            f"{limit_s:g} s are allowed: set both machines' clocks, by NTP for instance, or "
            "--clock-limit-s",
        )
    last = co.store.read("clock.last_entry", lambda tx: tx.audit.list(1))
    behind_s = (last[0].at - co.clock.now()).total_seconds() if last else 0.0
    if behind_s <= limit_s:
        return
    if not accept:
        source = "this machine's" if co.store.single_process else "the database's"
        raise StartFailure(
            Exit.CLOCK,
            f"{source} clock is {_span(behind_s)} behind the last entry of the audit trail, and "
            f"{limit_s:g} s are allowed: set it. If it is right, the entry was written while it "
            "was wrong: start once with --accept-clock",
        )
    record_accepted_clock(co, behind_s)


def _side(ahead_s: float) -> str:
    return "ahead of" if ahead_s > 0 else "behind"


def _span(seconds: float) -> str:
    """Return a length of time in its largest fitting unit: ``31 days``."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if abs(seconds) >= 2 * length:
            return f"{abs(seconds) / length:.0f} {unit}"
    return f"{abs(seconds):.1f} s"


def _has_operator(store: Store) -> bool:
    return bool(store.read("has_operator", lambda tx: tx.principals.list(Role.OPERATOR, 1)))


def _limits(settings: Settings) -> Limits:
    return Limits(
        aggregation_timeout_s=settings.aggregation_timeout_s,
        aggregation_process_bytes=settings.aggregation_process_bytes,
        lease_s=settings.lease_s,
        sweep_every_s=settings.sweep_every_s,
        retention_days=settings.retention_days,
    )


def _make_data_dir(settings: Settings) -> list[str]:
    path = settings.data_dir
    if path.is_dir():
        return []
    try:
        path.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise StartFailure(
            Exit.DATABASE, f"the data directory {path} cannot be made: {error.strerror}"
        ) from None
    return [f"made the data directory {path}"]


def _secret_keys(settings: Settings, *, make: bool) -> tuple[SecretKeys, bool]:
    if settings.secret_key:
        return SecretKeys([key.get_secret_value().encode() for key in settings.secret_key]), False
    path, made = settings.key_file, False
    try:
        if make and not path.exists():
            made = _write_key(path)
        lines = path.read_text("ascii").split()
    except UnicodeDecodeError:
        lines = []
    except OSError as error:
        raise StartFailure(
            Exit.SETTINGS, f"the secret key {path} cannot be used: {error.strerror}"
        ) from None
    if not lines or any(len(line) < MIN_KEY_LENGTH for line in lines):
        raise StartFailure(
            Exit.SETTINGS,
            f"the secret key {path} holds no key of at least {MIN_KEY_LENGTH} characters: "
            "restore it from a backup, or move it away and issue new tokens",
        )
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise StartFailure(Exit.SETTINGS, f"others may read the secret key: run chmod 600 {path}")
    return SecretKeys([line.encode() for line in lines]), made


def reload_keys(co: Coordinator, settings: Settings) -> None:
    """Take the secret keys as they are now; where they cannot be used, keep those in force."""
    folder = None if settings.secrets_dir is None else str(settings.secrets_dir)
    try:
        now = load_settings({"data_dir": str(settings.data_dir), "secrets_dir": folder})
        co.keys = _secret_keys(now, make=False)[0]
    except (SettingsError, StartFailure) as error:
        log.error("secret_keys_not_reloaded", why=str(error))
        return
    log.info("secret_keys_reloaded", keys=len(co.keys))


def _write_key(path: Path) -> bool:
    """Write a new key that is there whole or not at all; False if another process was first."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(48) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # fails where the name is taken
        except FileExistsError:
            return False
    finally:
        draft.unlink()
    return True


@contextlib.contextmanager
def explained(settings: Settings) -> Iterator[None]:
    """Turn what the store raises into a line and an exit code."""
    where = settings.shown()["database_url"]
    try:
        yield
    except StoreLocked:
        raise StartFailure(
            Exit.LOCKED,
            f"another coordinator serves {where}: stop it, or use another data directory",
        ) from None
    except SchemaProblem as error:
        raise StartFailure(Exit.SCHEMA, str(error)) from None
    except UrlRefused as error:
        raise StartFailure(Exit.SETTINGS, f"database_url: {error}") from None
    except StoreError as error:
        raise StartFailure(Exit.DATABASE, f"the database {where} cannot be used: {error}") from None


# --- serving --------------------------------------------------------------------------------------


class Server(uvicorn.Server):
    """Uvicorn that tells waiting requests to answer as soon as it is told to end.

    Uvicorn waits for open requests before it tells the application anything, so a long poll
    would hold a shutdown up until its time is over. Connections are accepted by ``connections``:
    asyncio's own server has no limit, and without a free descriptor it logs thousands of errors a
    second.
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
        """Listen, then say so."""
        await super().startup(sockets=[])
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_loop_failed)
        for listener in sockets or []:
            listener.setblocking(False)
            accepting = self._connections.accept(
                listener, self._protocol, self.config.ssl, HEAD_SECONDS
            )
            self._accepting.append(self._loop.create_task(accepting))
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more and wait for open requests."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    def _protocol(self) -> Protocol:
        return Protocol(self.config, self.server_state, self.lifespan.state, self._connections)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown; a second SIGINT ends at once."""
        super().handle_exit(sig, frame)
        if self._loop is not None:
            # Not from within the signal handler: it may have interrupted a lock's holder.
            self._loop.call_soon_threadsafe(self._ending)

    def handle_reload(self, _sig: int, _frame: FrameType | None) -> None:
        """Read the secret keys again (SIGHUP)."""
        if self._loop is not None and self._reload is not None:
            self._loop.call_soon_threadsafe(self._reload)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT, SIGTERM and SIGHUP; having ended well is no death by signal."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]]
        handlers = {signal.SIGINT: self.handle_exit, signal.SIGTERM: self.handle_exit}
        if sys.platform != "win32":
            handlers[signal.SIGHUP] = self.handle_reload
        before = {sig: signal.signal(sig, handler) for sig, handler in handlers.items()}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def _loop_failed(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say where; what the loop itself would say may repeat a value."""
    log.error("loop_error", exc_info=context.get("exception"))


def room_for_connections(settings: Settings) -> Connections:
    """Raise the limit on file descriptors and return how many connections go below it.

    Raises
    ------
    StartFailure
        ``max_connections`` needs more descriptors than the hard limit allows.
    """
    descriptors = raise_descriptor_limit()
    room = descriptors - RESERVED_DESCRIPTORS
    most = settings.max_connections or min(DEFAULT_CONNECTIONS, room)
    if not 0 < most <= room:
        raise StartFailure(
            Exit.SETTINGS,
            f"{most} connections need {most + RESERVED_DESCRIPTORS} file descriptors and this "
            f"process may open {descriptors}: raise the limit (LimitNOFILE of a systemd unit, "
            "ulimit -Hn) or lower --max-connections",
        )
    log.info("descriptors", limit=descriptors, max_connections=most)
    return Connections(most)


def build_app(coordinator: Coordinator, settings: Settings, connections: Connections) -> FastAPI:
    """Return the application that serves a coordinator."""
    return create_app(coordinator, settings, connections, PASSING)


def http_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Return how HTTP is spoken: no header of the server's own, proxies believed where named."""
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
    """Run a coordinator until SIGINT or SIGTERM.

    Parameters
    ----------
    settings : Settings
    say : callable
        Takes each line meant for the operator.
    ready_file : Path, optional
        Written with the address once requests are answered.
    accept_clock : bool
        See `open_coordinator`.

    Raises
    ------
    StartFailure
    """
    context = _checked(settings)
    connections = room_for_connections(settings)
    if ready_file is not None and not ready_file.parent.is_dir():
        raise StartFailure(Exit.SETTINGS, f"the folder of the ready file {ready_file} is missing")
    listener = listen(settings.host, settings.port)
    try:
        opened = open_coordinator(settings, serving=True, accept_clock=accept_clock)
        try:
            for line in opened.made:
                say(line)
            if opened.operator_token is not None:
                say(f"operator token (shown once): {opened.operator_token}")
            with explained(settings):
                _run(settings, opened.coordinator, connections, listener, context, say, ready_file)
        finally:
            if ready_file is not None:
                ready_file.unlink(missing_ok=True)
            opened.close()
    finally:
        listener.close()


def _checked(settings: Settings) -> ssl.SSLContext | None:
    try:
        settings.check_listening()
        return settings.ssl_context() if settings.tls else None
    except SettingsError as error:
        raise StartFailure(Exit.SETTINGS, str(error)) from None


def _run(
    settings: Settings,
    coordinator: Coordinator,
    connections: Connections,
    listener: socket.socket,
    context: ssl.SSLContext | None,
    say: Callable[[str], None],
    ready_file: Path | None,
) -> None:
    address = address_of(listener, settings)

    def ready() -> None:
        log.info("listening", address=address)
        say(f"listening on {address}")
        # Last: whoever waits for the file finds everything said.
        if ready_file is not None:
            draft = ready_file.with_name(f".{ready_file.name}.{os.getpid()}")
            draft.write_text(address + "\n", "ascii")
            draft.replace(ready_file)

    config = http_config(build_app(coordinator, settings, connections), settings)
    config.load()
    config.ssl = context
    coordinator.start()

    def ending() -> None:
        coordinator.ask_to_stop()
        _end_by(settings.shutdown_grace_s + _CLOSING_SECONDS)

    reload = functools.partial(reload_keys, coordinator, settings)
    # What is here now stays: a full collection that looks through all of it again and again would
    # hold up every request by a tenth of a second.
    gc.collect()
    gc.freeze()
    Server(config, connections, ready, ending, reload).run(sockets=[listener])


def _end_by(seconds: float) -> None:
    """End the process after this time, whatever it waits for: a lock, a database that is gone.

    What was acknowledged is committed, and what was not is rolled back, as after a power cut.
    """

    def end() -> None:
        waited = [each.name for each in threading.enumerate() if not each.daemon]
        log.warning("shutdown_cut_short", threads=waited)
        os._exit(Exit.OK)

    timer = threading.Timer(seconds, end)
    timer.daemon = True  # a process that has ended in time does not wait for it
    timer.start()


def listen(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket; StartFailure where the address cannot be had."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise StartFailure(Exit.ADDRESS, f"there is no address {host} to listen on") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # on Windows it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # At once: until it listens, another process can bind the port too.
        listener.listen(2048)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        why = "is in use: stop what listens there or set --port" if taken else error.strerror
        raise StartFailure(Exit.ADDRESS, f"{host} port {port} {why}") from None
    return listener


def address_of(listener: socket.socket, settings: Settings) -> str:
    """Return the URL that a socket answers at."""
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls else 'http'}://{host}:{port}"
