"""Open a coordinator: its data directory, secret keys, database and clock."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from fedclust.durable_files import reason, write_atomically
from fedclust.methods.registry import METHODS
from fedclust.schema.times import time_span
from fedclust_service.clock import ClockFault, StoreClock
from fedclust_service.delivery import outgoing
from fedclust_service.domain.access import Role
from fedclust_service.domain.notification import Outgoing
from fedclust_service.domain.tokens import SecretKeys
from fedclust_service.exit_codes import Exit, SettingsError, StartFailure
from fedclust_service.settings import MIN_KEY_LENGTH, Settings, load_settings
from fedclust_service.store import SchemaProblem, Store, StoreError, StoreLocked, UrlRefused
from fedclust_service.usecases import audit, principals
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.core import Limits

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Opened:
    """A coordinator ready to start.

    ``made`` says in sentences what was created for it; ``operator_token`` is set if no operator
    existed before.
    """

    coordinator: Coordinator
    made: tuple[str, ...] = ()
    operator_token: str | None = None

    def lines(self) -> list[str]:
        """Return what was created, with the operator token if there is one."""
        token = self.operator_token
        return [*self.made, *([] if token is None else [f"operator token (shown once): {token}"])]


@contextlib.contextmanager
def open_coordinator(
    settings: Settings,
    *,
    serving: bool,
    clock: StoreClock | None = None,
    accept_clock: bool = False,
    new_key: bool = False,
) -> Iterator[Opened]:
    """Open the database and the secret key, and create what is missing; StartFailure.

    At the end of the block the coordinator is stopped and the database closed.

    ``serving``: whether this process will serve requests. ``accept_clock``: whether an operator
    confirms the time although the last audit entry is later. ``new_key``: the key that the tokens
    were signed with is lost; they all become void.
    """
    clock = clock or StoreClock(settings.clock_limit_s)
    made = _make_data_dir(settings)
    sent = outgoing(settings) if serving else Outgoing()
    keys = _secret_keys(settings)
    with explain_store_errors(settings):
        # No other process may go on with the keys that a new one replaces.
        store = Store.open(settings.store_url, clock, serving=serving or new_key)
    token = None
    with contextlib.closing(store):
        with explain_store_errors(settings):
            if new_key:
                # Before the key is written: after a crash in between, this command runs again.
                principals.void_tokens(store)
                made.append(
                    "all tokens are void and all sign-ins have ended: issue new tokens, for "
                    "example with `fedclust site token NAME`"
                )
            if keys is None:
                keys = _first_key(settings, store, made)
            coordinator = Coordinator(
                store=store,
                keys=keys,
                limits=_limits(settings),
                outgoing=sent,
                operated_by=settings.operated_by,
            )
            if serving:
                _check_clock(coordinator, accept=accept_clock)
                for problem in METHODS.problems():
                    log.warning("method_unusable", why=problem)
            operators = store.read("has_operator", lambda tx: tx.principals.list(Role.OPERATOR, 1))
            if new_key or not operators:
                if serving:
                    where = settings.shown()["database_url"]
                    made.append(
                        f"new coordinator in {where}; if you expected an existing one, stop this "
                        "one and check --data-dir and --database-url"
                    )
                token = principals.bootstrap_operator(coordinator)
        try:
            yield Opened(coordinator, tuple(made), token)
        finally:
            coordinator.stop()


def _check_clock(co: Coordinator, *, accept: bool) -> None:
    """Refuse to serve if this machine's clock or the last audit entry contradicts the time."""
    limit_s, ahead_s = co.clock.limit_s, co.clock.skew.machine_s
    if co.clock.fault is ClockFault.MACHINE:
        raise StartFailure(
            Exit.CLOCK,
            f"this machine's clock is {time_span(abs(ahead_s))} "
            f"{'ahead of' if ahead_s > 0 else 'behind'} the database's, but only {limit_s:g} s "
            "are allowed: set both machines' clocks, for instance by NTP, or set --clock-limit-s",
        )
    last = co.store.read("clock.last_entry", lambda tx: tx.audit.list(1))
    behind_s = (last[0].at - co.clock.now()).total_seconds() if last else 0.0
    if behind_s <= limit_s:
        return
    if not accept:
        source = "this machine's" if co.store.single_process else "the database's"
        raise StartFailure(
            Exit.CLOCK,
            f"{source} clock is {time_span(behind_s)} behind the last entry of the audit trail, "
            f"but only {limit_s:g} s are allowed: set the clock. If it is right, it was wrong when "
            "the entry was written: start once with --accept-clock",
        )
    audit.record(co, "clock.record", "clock.accepted", behind_s=round(behind_s))


def _limits(settings: Settings) -> Limits:
    return Limits(
        aggregation_timeout_s=settings.aggregation_timeout_s,
        aggregation_processes=settings.aggregation_processes,
        lease_s=settings.lease_s,
        sweep_every_s=settings.sweep_every_s,
        retention_days=settings.retention_days,
        sign_in_idle_s=settings.sign_in_idle_minutes * 60,
        sign_in_s=settings.sign_in_hours * 3_600,
    )


def _make_data_dir(settings: Settings) -> list[str]:
    path = settings.data_dir
    if path.is_dir():
        return []
    try:
        path.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise StartFailure(
            Exit.DATABASE, f"the data directory {path} cannot be made: {reason(error)}"
        ) from None
    return [f"made the data directory {path}"]


def require_key(settings: Settings) -> None:
    """Raise SettingsError if there is no secret key."""
    if _secret_keys(settings) is None:
        raise SettingsError(
            f"the secret key {settings.key_file} is missing, and without it no token of the "
            "database is valid: put it there first. If it is lost, add --new-key: all tokens "
            "become void, and you get a new operator token"
        )


def _first_key(settings: Settings, store: Store, made: list[str]) -> SecretKeys:
    """Write a secret key, unless the database has tokens that were signed with another one."""
    path = settings.key_file
    signed = store.read("token.signed", lambda tx: tx.tokens.any_unrevoked())
    # Another process may have made the key and the first token in the meantime.
    if signed and not path.exists():
        raise SettingsError(
            f"the secret key {path} is missing, and the tokens of the database are signed with it: "
            "copy it from a backup or from the data directory of another worker. If it is lost, "
            "run `fedclust-service init --new-key`: all tokens become void, and you get a new "
            "operator token"
        )
    try:
        if _write_key(path):
            made.append(f"wrote a secret key to {path}")
    except OSError as error:
        raise _unusable_key(path, error) from None
    keys = _secret_keys(settings)
    assert keys is not None  # noqa: S101  # written above
    return keys


def _unusable_key(path: Path, error: OSError) -> SettingsError:
    return SettingsError(f"the secret key {path} cannot be used: {reason(error)}")


def _secret_keys(settings: Settings) -> SecretKeys | None:
    """Return the secret keys; None if there is no file. SettingsError if they cannot be used."""
    if settings.secret_key:
        return SecretKeys([key.get_secret_value().encode() for key in settings.secret_key])
    path = settings.key_file
    try:
        lines = path.read_text("ascii").split()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        lines = []
    except OSError as error:
        raise _unusable_key(path, error) from None
    if not lines or any(len(line) < MIN_KEY_LENGTH for line in lines):
        raise SettingsError(
            f"the secret key {path} holds no key of at least {MIN_KEY_LENGTH} characters: "
            "restore it from a backup"
        )
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise SettingsError(f"others may read the secret key: run chmod 600 {path}")
    return SecretKeys([line.encode() for line in lines])


def reload_keys(co: Coordinator, settings: Settings) -> None:
    """Read the secret keys again; keep the current ones if the new ones cannot be used."""
    folder = None if settings.secrets_dir is None else str(settings.secrets_dir)
    try:
        now = load_settings({"data_dir": str(settings.data_dir), "secrets_dir": folder})
        keys, why = _secret_keys(now), f"{now.key_file} is missing"
    except SettingsError as error:
        keys, why = None, str(error)
    if keys is None:
        log.error("secret_keys_not_reloaded", why=why)
        return
    co.keys = keys
    log.info("secret_keys_reloaded", keys=len(co.keys))


def _write_key(path: Path) -> bool:
    """Write a new key file atomically; False if another process was first."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        write_atomically(draft, f"{secrets.token_urlsafe(48)}\n".encode())
        os.link(draft, path)  # fails if the file exists
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def explain_store_errors(settings: Settings, failed: str | None = None) -> Iterator[None]:
    """Turn the store's errors into a StartFailure.

    ``failed`` says what did not happen, where the error may be about another file than the
    database.
    """
    where = settings.shown()["database_url"]
    try:
        yield
    except StoreError as error:
        failed = failed or f"the database {where} cannot be used"
        code, message = Exit.DATABASE, f"{failed}: {error}"
        if isinstance(error, StoreLocked):
            code = Exit.LOCKED
            message = f"another coordinator serves {where}: stop it, or use another data directory"
        elif isinstance(error, SchemaProblem):
            code, message = Exit.SCHEMA, str(error)
        elif isinstance(error, UrlRefused):
            code, message = Exit.SETTINGS, f"database_url: {error}"
        raise StartFailure(code, message) from None
