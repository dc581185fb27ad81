"""What a stage of a session is: the interface of the rounds' parts, and the state between rounds.

A session goes through its stages in order (``rounds.stages``). Coordinator, site and consent walk
the list and know no stage by name. What a site does is said by each stage's phases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from pydantic import Field

from fedclust.rounds.plan import Plan
from fedclust.schema.encoding import Space
from fedclust.schema.errors import MethodFailure
from fedclust.schema.model import Model, Tree
from fedclust.schema.result import HistoryEntry, Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Phase, Task

StageName: TypeAlias = Literal["prepare", "method", "evidence", "resample", "outcomes"]


class EngineState(Model):
    """The state of a session between rounds; the coordinator stores it after every round.

    Attributes
    ----------
    stage : {"prepare", "method", "evidence", "resample", "outcomes"}
        What the open round belongs to.
    round : int
        Number of the open round, from 1.
    method_rounds : int
        Rounds of the method that were opened so far; ``max_rounds`` limits these.
    phase : str
        What the open round asks.
    space : Space or None
        None until it is known.
    warnings : tuple of str
        Of the preparation; the result repeats them.
    differing : dict of site to tuple of int
        Columns that sites seem to code otherwise, by the preparation.
    method : dict
        The method's own state, as a tree; None before its start.
    result : Result or None
        What is being evaluated, with sorted clusters. The rounds are added at the end.
    history : tuple of HistoryEntry
    """

    stage: StageName
    round: int
    phase: str = "prepare"
    method_rounds: int = 0
    space: Space | None = None
    warnings: tuple[str, ...] = ()
    differing: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    method: dict[str, Tree] | None = None
    result: Result | None = None
    history: tuple[HistoryEntry, ...] = ()

    def with_result(self, result: Result, *warnings: str) -> EngineState:
        """Return the state with another result, which also warns."""
        result = result.model_copy(update={"warnings": (*result.warnings, *warnings)})
        return self.model_copy(update={"result": result, "method": None})

    @property
    def found(self) -> Result:
        """The result; ValueError before the method has come to one."""
        if self.result is None:
            raise ValueError("there is nothing to evaluate in this state")
        return self.result


@dataclass(frozen=True)
class Round:
    """What the coordinator knows when a round closes, or before the first one.

    Attributes
    ----------
    plan : Plan
    state : EngineState
    config : RunConfig
    contributions : sequence of Contribution
        Sorted by site.
    """

    plan: Plan
    state: EngineState
    config: RunConfig
    contributions: Sequence[Contribution] = ()

    @property
    def answered(self) -> int:
        """How many sites answered with something."""
        return sum(contribution.payload is not None for contribution in self.contributions)


@dataclass(frozen=True)
class Closed:
    """What a round came to.

    Attributes
    ----------
    state : EngineState
    task : Task or None
        Of another round of the stage; None: the stage is over.
    metrics : mapping or None
        None: the history has no such round, because too few sites answered it.
    warnings : tuple of str
        Of the round.
    """

    state: EngineState
    task: Task | None = None
    metrics: Mapping[str, float] | None = None
    warnings: tuple[str, ...] = ()


class Stage(ABC):
    """One part of a session: its phases, and its rounds at the coordinator.

    Attributes
    ----------
    name : str
        As in :class:`EngineState`.
    own_phases : tuple of Phase
        The engine's own; none of the method's stage.
    """

    name: ClassVar[StageName]
    own_phases: ClassVar[tuple[Phase, ...]] = ()

    @abstractmethod
    def phases(self, plan: Plan) -> tuple[Phase, ...]:
        """Return the phases that this session can have here, with what they ask in it."""

    @abstractmethod
    def task(self, before: Round) -> tuple[EngineState, Task | None]:
        """Open the stage after the round that closed before; no task: the session skips it."""

    @abstractmethod
    def aggregate(self, closing: Round) -> Closed:
        """Aggregate a round that enough sites answered."""

    def give_up(self, closing: Round) -> Closed:
        """Close a round that too few sites answered with something; MethodFailure if none can."""
        raise MethodFailure(
            "too_few_contributors",
            f"{closing.answered} sites answered round {closing.state.round} with something, "
            f"{closing.plan.policy.min_sites} are needed: invite more or larger sites, or lower "
            "min_group_size",
        )
