"""What the methods section says of the evidence that a result holds: one sentence each."""

from __future__ import annotations

from collections.abc import Callable

from fedclust.report.facts import Facts

__all__ = ["EVIDENCE"]

#: By name, as ``methods_text.SENTENCES``.
EVIDENCE: dict[str, Callable[[Facts], str]] = {}
