"""Clocks that tests move."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from fedclust_service.clock import Machine, StoreClock

BEGIN = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)


class ManualMachine(Machine):
    """A machine whose clocks stand still until they are moved. Safe to share between threads."""

    def __init__(self, start: datetime = BEGIN) -> None:
        self._wall, self._monotonic = start, 0.0
        self._lock = threading.Lock()

    def wall(self) -> datetime:
        """Return the time of day."""
        with self._lock:
            return self._wall

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        with self._lock:
            return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._wall += timedelta(seconds=seconds)
            self._monotonic += seconds

    def set_ahead(self, seconds: float) -> None:
        """Set the time of day, as somebody with the wrong time would; no time passes."""
        with self._lock:
            self._wall += timedelta(seconds=seconds)


class ManualClock(StoreClock):
    """A store's time that tests move. It follows its machine, on PostgreSQL too."""

    def __init__(self, start: datetime = BEGIN) -> None:
        self.machine = ManualMachine(start)
        super().__init__(machine=self.machine)

    def follow(self, database: Callable[[], datetime] | None) -> None:
        super().follow(None)

    def advance(self, seconds: float) -> datetime:
        """Let time pass and return the time."""
        self.machine.advance(seconds)
        return self.now()
