"""State machines as tables: a state changes only along a row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

S = TypeVar("S", bound=StrEnum)


class IllegalTransition(RuntimeError):
    """A change of state that no row allows: a defect of the caller, never a user's mistake."""


@dataclass(frozen=True)
class Transition:
    """One allowed change of state. ``why`` is what the docs' diagram prints beside the arrow."""

    source: StrEnum
    target: StrEnum
    why: str


def advance(table: tuple[Transition, ...], source: S, target: S) -> S:
    """Return ``target`` where the table has a row for it; IllegalTransition otherwise."""
    if not any(row.source == source and row.target == target for row in table):
        raise IllegalTransition(f"{type(source).__name__}: {source.value} -> {target.value}")
    return target
