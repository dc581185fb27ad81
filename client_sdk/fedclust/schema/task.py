"""One round: what is asked, what is answered and disclosed, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.space import Space

__all__ = ["Contribution", "Disclosure", "Done", "Next", "Phase", "SiteTask", "Task"]


class Disclosure(Model):
    """One line of what leaves the hospital in a phase. Shown to data protection officers."""

    field: str
    shape: str
    meaning: str
    identifies: str


@dataclass(frozen=True)
class Phase:
    """A kind of round: its task, its answer, and what the answer discloses.

    ``needs_all``: it waits for every addressed site. ``ends_with_site``: it does not, for one that
    leaves: the round is closed at once, and the session completes with what was found so far.
    ``optional``: where too few sites answer, the session completes with what was found before.
    ``once``: a site answers it once in a session, and not after any phase that is listed later.
    """

    name: str
    summary: str
    task: type[Model]
    payload: type[Model]
    discloses: tuple[Disclosure, ...]
    site_part: type[Model] | None = None
    needs_all: bool = False
    ends_with_site: bool = False
    optional: bool = False
    once: bool = False


@dataclass(frozen=True)
class Task:
    """What a round asks. ``sites`` None means every site of the roster.

    ``per_site`` holds a part of its own for each addressed site, where the phase has one.
    ``space`` is set by the engine: every task after the preparation carries it.
    """

    phase: str
    common: Model
    per_site: Mapping[str, Model] = field(default_factory=dict)
    sites: tuple[str, ...] | None = None
    needs_all: bool = False
    space: Space | None = None


@dataclass(frozen=True)
class SiteTask:
    """A task as one site sees it; ``space`` is None in the preparation round alone."""

    phase: str
    common: Any
    site: Any = None
    space: Space | None = None


@dataclass(frozen=True)
class Contribution:
    """A site's answer to a round; ``payload`` is None for an empty answer."""

    site: str
    payload: Any
    p: int


@dataclass(frozen=True)
class Next:
    """Another round is needed. ``metrics`` and ``warnings`` are of the round that just closed."""

    state: Model
    task: Task
    metrics: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Done:
    """The clustering is found. ``metrics`` describe the round that has just closed."""

    result: Result
    metrics: Mapping[str, float] = field(default_factory=dict)
