"""Fewer drawn clouds to compare clusters with: most of a session's time, and seldom what is tried.

Sessions in the process of a test draw few, unless it asks for ``all_clouds``: to compare them with
what other processes find, or with numbers on a page.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedclust.rounds import reference

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
    yield
    draw(FEW)
