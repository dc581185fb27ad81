"""Wakes the long polls of this process when a session has changed."""

import asyncio
import contextlib
import threading
from collections import OrderedDict
from dataclasses import dataclass

#: Sessions whose last version is remembered, so that no change between reading and waiting is lost.
#: A waiter of a session that was dropped from here learns of the change when its wait ends.
_REMEMBERED = 10_000


@dataclass(frozen=True, eq=False)
class _Waiter:
    loop: asyncio.AbstractEventLoop
    event: asyncio.Event
    seen: int

    def wake(self) -> None:
        # The loop may have been closed meanwhile.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.event.set)


class Notifier:
    """Thread-safe on the writing side, asyncio on the waiting side."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: OrderedDict[str, int] = OrderedDict()
        self._waiters: dict[str, set[_Waiter]] = {}
        self._closed = False

    def bump(self, session: str, version: int) -> None:
        """Record a session's new version and wake those who wait for it. Any thread."""
        with self._lock:
            # Two commits may report in the wrong order.
            newest = max(version, self._versions.pop(session, version))
            self._versions[session] = newest
            if len(self._versions) > _REMEMBERED:
                self._versions.popitem(last=False)
            waiting = [w for w in self._waiters.get(session, ()) if w.seen < newest]
        for waiter in waiting:
            waiter.wake()

    async def wait(self, session: str, seen_version: int, timeout_s: float) -> bool:
        """Wait until the session is newer than ``seen_version``, at most ``timeout_s`` seconds.

        Returns whether it is newer: False if the time is over or the notifier is closed.
        """
        waiter = _Waiter(asyncio.get_running_loop(), asyncio.Event(), seen_version)
        with self._lock:
            if self._closed:
                return False
            if self._versions.get(session, seen_version) > seen_version:
                return True
            self._waiters.setdefault(session, set()).add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.event.wait()
        except TimeoutError:
            return False
        finally:
            with self._lock:
                others = self._waiters[session]
                others.discard(waiter)
                if not others:
                    del self._waiters[session]
        return not self.closed

    def waited_for(self) -> dict[str, int]:
        """Return the sessions that requests wait for, each with its newest known version."""
        with self._lock:
            return {
                session: max(self._versions.get(session, 0), min(w.seen for w in waiters))
                for session, waiters in self._waiters.items()
            }

    def close(self) -> None:
        """Wake all waiters and end every later wait at once. Any thread."""
        with self._lock:
            self._closed = True
            waiting = [waiter for group in self._waiters.values() for waiter in group]
        for waiter in waiting:
            waiter.wake()

    @property
    def closed(self) -> bool:
        """Whether the process is shutting down. Long polls then answer 503."""
        with self._lock:
            return self._closed

    @property
    def waiting(self) -> int:
        """The number of current waits."""
        with self._lock:
            return sum(len(group) for group in self._waiters.values())
