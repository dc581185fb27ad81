"""What is told of the coordinator's work while it happens, for whoever counts it."""

from __future__ import annotations

from typing import Literal, Protocol

#: What became of an aggregation: written, failed, or another's by the time it ended.
AggregationEnd = Literal["written", "failed", "lost"]


class Observer(Protocol):
    """Told after the commit, in the thread that committed: quick, without raising."""

    def happened(self, action: str) -> None:
        """Tell of an entry of the audit trail, by its action."""

    def aggregated(self, method: str, end: AggregationEnd, seconds: float) -> None:
        """Tell of an aggregation that has ended, and the seconds that it computed."""


class Nobody:
    """Counts nothing."""

    def happened(self, action: str) -> None:
        """Take no notice."""

    def aggregated(self, method: str, end: AggregationEnd, seconds: float) -> None:
        """Take no notice."""
