"""The time that the coordinator goes by. Leases, deadlines and retention need one time, not two.

Everything that asks for the time uses the store's `StoreClock`. It starts from the database's clock
on PostgreSQL, which all workers share, and from this machine's clock on SQLite, which one process
serves. From there it follows this machine's monotonic clock, so setting a clock changes nothing.
`StoreClock.check` reads the clocks again, follows small corrections and refuses large ones.
"""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import structlog

log = structlog.get_logger(__name__)

#: Machines that keep time by NTP agree within this.
WARNING_S = 2.0
#: Irreversible actions wait until the clocks have agreed for this long.
SETTLING_S = 3600.0
# The time of a slower answer is too uncertain for a correction.
_LONGEST_ROUND_TRIP_S = 1.0
_FIRST_READINGS = 3


class Machine:
    """The clocks of the machine that the process runs on."""

    def wall(self) -> datetime:
        """Return the time of day, aware, in UTC. A user can set this clock."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds since some moment. Nobody can set this clock."""
        # Linux stops CLOCK_MONOTONIC while the machine is suspended.
        if sys.platform == "linux":
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()


class ClockFault(StrEnum):
    """The clock that differs from the coordinator's time by more than the limit."""

    MACHINE = "machine-clock"
    DATABASE = "database-clock"


@dataclass(frozen=True)
class Skew:
    """Seconds by which clocks were ahead of the coordinator's time at the last check.

    ``machine_s`` is this machine's clock, ``database_s`` the database's; None on SQLite.
    """

    machine_s: float = 0.0
    database_s: float | None = None


class StoreClock:
    """The time of one store. It never goes back, and threads may share it.

    A clock that differs by more than ``limit_s`` is a `fault` and is not followed.
    """

    _last: datetime
    _skew: Skew

    def __init__(self, limit_s: float = 60.0, machine: Machine | None = None) -> None:
        self.limit_s = limit_s
        self._machine = machine or Machine()
        self._lock = threading.Lock()
        self.follow(None)

    def follow(self, database: Callable[[], datetime] | None) -> None:
        """Restart from the database's clock, or from this machine's if ``database`` is None.

        The caller gets exceptions of ``database``.
        """
        self._database = database
        if database is None:
            self._start(self._machine.wall(), self._machine.monotonic())
            return
        readings = [self._read_database(database) for _ in range(_FIRST_READINGS)]
        took, time_there, at = min(readings)
        self._start(time_there, at, _doubt(took))
        self.check()

    def now(self) -> datetime:
        """Return the time, aware, in UTC."""
        with self._lock:
            self._last = max(self._last, self._at(self._machine.monotonic()))
            return self._last

    def check(self) -> None:
        """Read the clocks and compare them with the time; raise what the database raises.

        A slow answer of the database is ignored, unless even the delay cannot explain it.
        """
        wall, at = self._machine.wall(), self._machine.monotonic()
        there = None if self._database is None else self._read_database(self._database)
        with self._lock:
            doubt_s, database_s = 0.0, None
            if there is None:
                machine_s = (wall - self._at(at)).total_seconds()
                self._correct(wall, at)
            else:
                took, time_there, at_there = there
                doubt_s = _doubt(took)
                database_s = (time_there - self._at(at_there)).total_seconds()
                if not doubt_s:
                    self._correct(time_there, at_there)
                elif self._allowed(database_s, doubt_s):
                    database_s = self._skew.database_s
                machine_s = (wall - self._at(at)).total_seconds()
            before, self._skew = self._level(), Skew(machine_s, database_s)
            level = self._level()
            if self._fault() is not None:
                self._agreed = None
            elif not doubt_s:
                self._agreed = (self._agreed[0] if self._agreed else at, at)
        if level != before:
            _log_skew(level, Skew(machine_s, database_s), self.limit_s)

    @property
    def skew(self) -> Skew:
        """How far the other clocks differed at the last `check`."""
        with self._lock:
            return self._skew

    @property
    def fault(self) -> ClockFault | None:
        """The clock that differs by more than the limit, if any. The time ignores it."""
        with self._lock:
            return self._fault()

    @property
    def settled(self) -> bool:
        """Whether all clocks have agreed for an hour between two comparisons."""
        with self._lock:
            return self._agreed is not None and self._agreed[1] - self._agreed[0] >= SETTLING_S

    def _start(self, time_of_day: datetime, at: float, doubt_s: float = 0.0) -> None:
        with self._lock:
            self._anchor = (time_of_day, at)
            # The uncertainty of the anchor after a slow answer.
            self._doubt_s = doubt_s
            self._last = time_of_day
            self._skew = Skew(database_s=None if self._database is None else 0.0)
            # The times of the first and the last comparison since all clocks agree.
            self._agreed = None if self._database else (at, at)

    def _at(self, monotonic: float) -> datetime:
        time_of_day, at = self._anchor
        return time_of_day + timedelta(seconds=monotonic - at)

    def _allowed(self, ahead_s: float, doubt_s: float = 0.0) -> bool:
        return abs(ahead_s) <= self.limit_s + self._doubt_s + doubt_s

    def _correct(self, time_of_day: datetime, at: float) -> None:
        if self._allowed((time_of_day - self._at(at)).total_seconds()):
            self._anchor, self._doubt_s = (time_of_day, at), 0.0

    def _fault(self) -> ClockFault | None:
        if not self._allowed(self._skew.database_s or 0.0):
            return ClockFault.DATABASE
        return None if self._allowed(self._skew.machine_s) else ClockFault.MACHINE

    def _level(self) -> str | None:
        worst = max(abs(self._skew.machine_s), abs(self._skew.database_s or 0.0))
        return self._fault() or ("warning" if worst > WARNING_S else None)

    def _read_database(self, database: Callable[[], datetime]) -> tuple[float, datetime, float]:
        """Return the answer's delay, the answer, and its moment by this machine's clock."""
        asked = self._machine.monotonic()
        time_there = database()
        took = self._machine.monotonic() - asked
        return took, time_there, asked + took / 2


def _doubt(took_s: float) -> float:
    """Return the uncertainty of an answer with this delay; 0 for a fast one."""
    return took_s if took_s > _LONGEST_ROUND_TRIP_S else 0.0


def _log_skew(level: str | None, skew: Skew, limit_s: float) -> None:
    facts = {"machine_s": skew.machine_s, "database_s": skew.database_s, "limit_s": limit_s}
    if level is None:
        log.info("clocks_agree", **facts)
    elif level == "warning":
        log.warning("clocks_differ", **facts)
    else:
        log.error("clock_refused", clock=level, **facts)
