"""A clock that tests move."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta


class ManualClock:
    """Stands still until `advance` is called. Safe to share between threads."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """Return the time, aware, in UTC."""
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> datetime:
        """Move the time forward and return it."""
        with self._lock:
            self._now += timedelta(seconds=seconds)
            return self._now
