"""The clock, injected wherever time matters."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """Return the time, aware, in UTC."""


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)
