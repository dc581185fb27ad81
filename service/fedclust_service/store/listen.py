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
from sqlalchemy import Connection

from fedclust_service.background import BackgroundThread
from fedclust_service.store.errors import StoreError
from fedclust_service.store.store import SESSIONS, Store

log = structlog.get_logger(__name__)

#: The thread checks this often whether it should end.
_LOOK_S = 0.2
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


class Listener(BackgroundThread):
    """Passes on the commits of all processes.

    Parameters
    ----------
    store : Store
        One on PostgreSQL.
    changed : callable
        Gets a session's name and version, also after this process's own commits.
    waited_for : callable
        Returns the sessions that requests wait for, each with the newest version known.
    reread_s : float
        The versions of these sessions are read again at least this often.
    """

    def __init__(
        self,
        store: Store,
        changed: Callable[[str, int], None],
        waited_for: Callable[[], Mapping[str, int]],
        reread_s: float,
    ) -> None:
        super().__init__("fedclust-listener")
        self._store = store
        self._changed = changed
        self._waited_for = waited_for
        self._reread_s = reread_s
        #: Whether the listening connection works.
        self.connected = False
        #: How many changes were found by reading again, before or without a notification.
        self.missed = 0

    def run(self) -> None:
        """Run in the thread."""
        pause, engine = _FIRST_PAUSE_S, self._store.listening_engine
        assert engine is not None, "SQLite has no other processes"  # noqa: S101
        while not self._stopping.is_set():
            try:
                with engine.connect() as connection:
                    try:
                        connection.exec_driver_sql(f"LISTEN {SESSIONS}")
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
                session, _, version = each.payload.rpartition(" ")
                self._changed(session, int(version))

    def _read_again(self) -> None:
        known = self._waited_for()
        if not known:
            return
        try:
            versions = self._store.read(
                "listen.versions", lambda tx: tx.sessions.versions(sorted(known))
            )
        except StoreError as error:
            log.warning("listener_store_error", error=type(error).__name__)
            return
        for session, seen in known.items():
            # A session that is gone was deleted, which raised its version.
            version = versions.get(session, seen + 1)
            if version > seen:
                self.missed += 1
                self._changed(session, version)
