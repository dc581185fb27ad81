"""State machines as tables: each row is an allowed change of state."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

S = TypeVar("S", bound=StrEnum)


class IllegalTransition(RuntimeError):
    """A change of state that no row allows: a defect of the caller, not a user's mistake."""


@dataclass(frozen=True)
class Transition:
    """One allowed change of state. ``why`` labels the arrow in the docs' diagram."""

    source: StrEnum
    target: StrEnum
    why: str


def next_state(table: tuple[Transition, ...], source: S, target: S) -> S:
    """Return ``target`` if the table has a row for the change; IllegalTransition otherwise."""
    if not any(row.source == source and row.target == target for row in table):
        raise IllegalTransition(f"{type(source).__name__}: {source.value} -> {target.value}")
    return target
