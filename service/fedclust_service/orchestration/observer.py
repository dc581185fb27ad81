"""The interface through which the coordinator's work is counted."""

from __future__ import annotations

from typing import Literal

#: How an aggregation ended: written, failed, or lost because another driver had taken it over.
AggregationEnd = Literal["written", "failed", "lost"]


class Observer:
    """Counts nothing; a subclass counts what it wants.

    The methods run after the commit, in the committing thread. They must be quick and must not
    raise.
    """

    def happened(self, action: str) -> None:
        """Count an entry of the audit trail, by its action."""

    def aggregated(self, method: str, end: AggregationEnd, seconds: float) -> None:
        """Count an aggregation that has ended after this many seconds."""
