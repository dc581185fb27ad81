"""Changes that other processes commit, through PostgreSQL's LISTEN and NOTIFY.

A transaction notifies before it commits: PostgreSQL delivers the notification at the commit, and
never after a rollback. Notifications can be lost: a connection breaks, or a pooler in transaction
mode forwards none. So the listener reads the awaited versions again after each reconnect and at
regular intervals.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, text

from fedclust_service.background import BackgroundThread
from fedclust_service.store._sql import Pending
from fedclust_service.store.errors import StoreError

log = structlog.get_logger(__name__)

_SESSIONS, _HEAD = "fedclust_session", "fedclust_head"
_NOTIFY = text("SELECT pg_notify(:channel, :payload)")
#: The thread checks this often whether it should end.
_LOOK_S = 0.2
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


def announce(connection: Connection, pending: Pending) -> None:
    """Notify all processes of what the transaction changed, once it is committed."""
    touched = pending.touched.items()
    payloads = [{"channel": _SESSIONS, "payload": f"{name} {v}"} for name, v in touched]
    if pending.sealed is not None:
        payloads.append({"channel": _HEAD, "payload": str(pending.sealed)})
    if payloads:
        connection.execute(_NOTIFY, payloads)


class Listener(BackgroundThread):
    """Passes on the commits of all processes; made by `Store.listener`.

    Parameters
    ----------
    engine : Engine
        Its connections are outside the pool and commit each statement.
    read_versions : callable
        Returns the versions of the sessions with these names.
    changed : callable
        Gets a session's name and version, also after this process's own commits.
    sealed : callable
        Gets the number of the audit trail's new head.
    waited_for : callable
        Returns the sessions that requests wait for, each with the newest version known.
    reread_s : float
        The versions of these sessions are read again at least this often.
    """

    def __init__(
        self,
        engine: Engine,
        read_versions: Callable[[list[str]], Mapping[str, int]],
        changed: Callable[[str, int], None],
        sealed: Callable[[int], None],
        waited_for: Callable[[], Mapping[str, int]],
        reread_s: float,
    ) -> None:
        super().__init__("fedclust-listener")
        self._engine = engine
        self._read_versions = read_versions
        self._changed = changed
        self._sealed = sealed
        self._waited_for = waited_for
        self._reread_s = reread_s
        #: Whether the listening connection works.
        self.connected = False
        #: How many changes were found by reading again, before or without a notification.
        self.missed = 0

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                with self._engine.connect() as connection:
                    try:
                        for channel in (_SESSIONS, _HEAD):
                            connection.exec_driver_sql(f"LISTEN {channel}")
                        self.connected, pause = True, _FIRST_PAUSE_S
                        self._listen(connection)
                    except BaseException:
                        connection.invalidate()
                        raise
            except Exception as error:  # reconnect, whatever the driver raises
                if not self._stopping.is_set():
                    log.warning("listener_disconnected", error=type(error).__name__)
                self.connected = False
                self._read_again()
                self._stopping.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        self.connected = False

    def _listen(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        due = time.monotonic()
        while not self._stopping.is_set():
            if time.monotonic() >= due:
                self._read_again()
                due = time.monotonic() + self._reread_s
            for each in driver.notifies(timeout=_LOOK_S, stop_after=1):
                self._dispatch(each.channel, each.payload)

    def _dispatch(self, channel: str, payload: str) -> None:
        if channel == _HEAD:
            self._sealed(int(payload))
        else:
            session, _, version = payload.rpartition(" ")
            self._changed(session, int(version))

    def _read_again(self) -> None:
        known = self._waited_for()
        if not known:
            return
        try:
            versions = self._read_versions(sorted(known))
        except StoreError as error:
            log.warning("listener_store_error", error=type(error).__name__)
            return
        for session, seen in known.items():
            # A session that is gone was deleted, which raised its version.
            version = versions.get(session, seen + 1)
            if version > seen:
                self.missed += 1
                self._changed(session, version)
