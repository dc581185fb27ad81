"""Fewer drawn clouds to compare clusters with: most of a session's time, and seldom what is tried.

Sessions in the process of a test draw few, and so do processes that it forks, unless it asks for
``all_clouds``: to compare them with numbers on a page. Where few are drawn, a coordinator
aggregates all rounds itself: a process of its pool is a new interpreter, which would draw all.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from fedclust.rounds import reference

if TYPE_CHECKING:
    from fedclust_service.usecases.core import Limits

FEW = {"_DRAWS": 5, "_PASSES": 1, "_TRIAL_DRAWS": 1}
ALL = {name: getattr(reference, name) for name in FEW}


def draw(numbers: dict[str, int]) -> None:
    """Let sessions of this process draw so many from now on."""
    for name, number in numbers.items():
        setattr(reference, name, number)


@contextmanager
def all_drawn() -> Iterator[None]:
    """Draw as many clouds as sessions do outside tests, for the length of a ``with`` block."""
    draw(ALL)
    try:
        yield
    finally:
        draw(FEW)


def drawn() -> dict[str, int]:
    """Return how many sessions of this process draw."""
    return {name: getattr(reference, name) for name in FEW}


def without_pool(limits: Limits) -> Limits:
    """Return limits under which a coordinator aggregates all rounds itself, if few are drawn."""
    if drawn() == ALL:
        return limits
    return replace(limits, pooled_above_s=math.inf, pooled_after=sys.maxsize)
