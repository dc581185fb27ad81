"""One round: a site's points, what is asked, answered and disclosed, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias

import numpy as np
from typing_extensions import TypeVar

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.arrays import FloatMatrix, FloatTensor3
from fedclust.schema.encoding import Space
from fedclust.schema.model import Memory, Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import OptionsT_co, RunConfig


@dataclass(frozen=True)
class Points:
    """A site's weighted points: what a method computes from at a site (``protection``).

    Attributes
    ----------
    X : (m, d) float64
        One record for each group of persons. Given to the engine in own units, NaN where a group
        does not release a column. Given to a method scaled and free of NaN, and 0 in the columns
        of features that the site has not got.
    sizes : (m,) int64
        Persons in each group; ones with ``protection: none``, where each point is a row.
    within : (d,) float64
        The share of each column's variance that lies within the groups, estimated from the records
        alone, from .05 to .8; 0 with ``protection: none``.
    observed : (m, d) bool or None
        False where a value was imputed or the feature is lacking; None: every value was observed.
    left_out : int
        Persons of the groups that ``missing: drop`` leaves out of these points.
    derived : dict
        What was made of these points, to be used again; it decides nothing.
    """

    X: FloatArray
    sizes: IntArray
    within: FloatArray
    observed: BoolArray | None = None
    left_out: int = 0
    derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def n(self) -> int:
        """Persons behind all points."""
        return int(self.sizes.sum())


def row_points(X: FloatArray) -> Points:
    """Return rows (n, d) as points of one person each, for ``protection: none``."""
    return Points(X, np.ones(len(X), dtype=np.int64), np.zeros(X.shape[1]))


def total_variances(points: Points) -> FloatArray:
    """Return each column's variance (d,) over all persons, between and within groups."""
    means = np.average(points.X, axis=0, weights=points.sizes)
    between = np.average((points.X - means) ** 2, axis=0, weights=points.sizes)
    return np.asarray(between / (1.0 - points.within))


Count: TypeAlias = Callable[[Result, Memory], Model | None]
KindT = TypeVar("KindT")
TaskT = TypeVar("TaskT", bound=Model, default=Any)
PayloadT = TypeVar("PayloadT", bound=Model, default=Any)
#: In annotations, a bare ``SiteTask`` is one whose own fields do not matter; so for the others.
TaskT_co = TypeVar("TaskT_co", bound=Model, covariant=True, default=Model)
StateT_co = TypeVar("StateT_co", bound=Model, covariant=True, default=Model)
PayloadT_co = TypeVar("PayloadT_co", bound=Model, covariant=True, default=Model)


class CentroidTask(Model):
    """Base of tasks that ask about centroids: a site refuses one that names none."""

    centroids: FloatMatrix | FloatTensor3


class Disclosure(Model):
    """One line of what leaves the hospital in a phase. Shown to data protection officers."""

    field: str
    shape: str
    meaning: str
    identifies: str


@dataclass(frozen=True)
class Task(Generic[TaskT_co]):
    """What a round asks. ``sites`` None means every site of the roster.

    ``per_site`` holds a part of its own for each addressed site, where the phase has one.
    ``space`` is set by the engine: every task after the preparation carries it.
    """

    phase: str
    common: TaskT_co
    per_site: Mapping[str, Model] = field(default_factory=dict)
    sites: tuple[str, ...] | None = None
    needs_all: bool = False
    space: Space | None = None


@dataclass(frozen=True)
class SiteTask(Generic[TaskT_co]):
    """A task as one site sees it; ``space`` is None in the preparation round alone."""

    phase: str
    common: TaskT_co
    site: Model | None = None
    space: Space | None = None


@dataclass(frozen=True)
class SiteSide(Generic[OptionsT_co]):
    """What a site answers a task with.

    Attributes
    ----------
    points : Points
        Those that take part; scaled, if the task has a space.
    config : RunConfig
    rng : numpy.random.Generator
        For this round.
    memory : dict
        What the site remembers of the rounds before. A step puts in what later ones need, and
        never changes a value in place.
    name : str
        The site's.
    count : callable or None
        Counts the outcomes of the site's rows by a model's clusters, with noise; for the rounds
        after the method's. None: the site answers no question about outcomes.
    """

    points: Points
    config: RunConfig[OptionsT_co]
    rng: np.random.Generator
    memory: Memory
    name: str = ""
    count: Count | None = None


@dataclass(frozen=True)
class Phase(Generic[TaskT, PayloadT]):
    """A kind of round: its task, its answer, what the answer discloses, and what a site does.

    Attributes
    ----------
    name, summary : str
    task, payload : type of Model
    discloses : tuple of Disclosure
    local_step : (task, site) -> payload or None
        None: nothing may be sent, the site answers empty.
    check : (task, payload, config) -> None
        Raises :class:`RuleViolation`. Runs at the site before sending and at the coordinator
        before storing.
    check_task : (task, config) -> None, optional
        Raises :class:`RuleViolation` where a task asks for more than the definition says. Runs at
        the site before the local step. The engine itself compares the first task with that of
        ``start``, and checks centroids (:class:`CentroidTask`), the order of phases (by ``once``)
        and the number of rounds.
    site_part : type of Model, optional
        Of a part of the task for each site.
    needs_all : bool
        Whether it waits for every addressed site.
    ends_with_site : bool
        Whether the round is aggregated at once if a site leaves, and the session completes with
        what was found so far.
    optional : bool
        Whether the session completes with what was found before if too few sites answer.
    once : bool
        Whether a site answers it once in a session, and not after any phase that is listed later.
    checked_at_site : bool
        Whether a site checks its own answer as the coordinator does.
    """

    name: str
    summary: str
    task: type[TaskT]
    payload: type[PayloadT]
    discloses: tuple[Disclosure, ...]
    local_step: Callable[[SiteTask[TaskT], SiteSide[Any]], PayloadT | None]
    check: Callable[[SiteTask[TaskT], PayloadT, RunConfig[Any]], None]
    check_task: Callable[[SiteTask[TaskT], RunConfig[Any]], None] | None = None
    site_part: type[Model] | None = None
    needs_all: bool = False
    ends_with_site: bool = False
    optional: bool = False
    once: bool = False
    checked_at_site: bool = True


@dataclass(frozen=True)
class Contribution(Generic[PayloadT_co]):
    """A site's answer to a round; ``payload`` is None for an empty answer."""

    site: str
    payload: PayloadT_co | None
    p: int

    def part(self, of: Callable[[PayloadT_co], PayloadT | None]) -> Contribution[PayloadT]:
        """Return the contribution with a part of its payload alone; an empty one stays empty."""
        return Contribution(self.site, None if self.payload is None else of(self.payload), self.p)


def narrow(value: object, kind: type[KindT]) -> KindT:
    """Return ``value`` as the ``kind`` that its phase or variant has; TypeError for another."""
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} in the place of {kind.__name__}")
    return value


def with_payload(
    contributions: Sequence[Contribution], kind: type[PayloadT]
) -> list[Contribution[PayloadT]]:
    """Return contributions whose payloads are all ``kind``, the empty ones included; TypeError."""
    return [each.part(lambda payload: narrow(payload, kind)) for each in contributions]


def payloads_of(contributions: Sequence[Contribution], kind: type[PayloadT]) -> dict[str, PayloadT]:
    """Return the payload, a ``kind``, of each site that sent one, in their order; TypeError."""
    return {
        each.site: narrow(each.payload, kind) for each in contributions if each.payload is not None
    }


@dataclass(frozen=True)
class Next(Generic[StateT_co]):
    """Another round is needed. ``metrics`` and ``warnings`` are of the aggregated round."""

    state: StateT_co
    task: Task
    metrics: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Done:
    """The clustering is found. ``metrics`` describe the aggregated round."""

    result: Result
    metrics: Mapping[str, float] = field(default_factory=dict)
