"""What a method is: the interface that every method implements.

The functions of a method do no I/O, read no clock and know no address: they run at a hospital, in
the coordinator and in ``simulate``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import RootModel

from fedclust.schema.model import Memory, Model
from fedclust.schema.points import Points
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Done, Next, Phase, SiteTask, Task

__all__ = ["LocalAnswer", "Method", "Place"]

Place: TypeAlias = Literal["site", "coordinator"]
LocalAnswer: TypeAlias = tuple[Model | None, Memory]


@dataclass(frozen=True)
class Method:
    """A method: the functions of its module, by name.

    Attributes
    ----------
    options : type of Model
        What reads the definition's ``config``: a model, or :func:`options.variants` of several.
    start : (config, seed) -> (state, task)
    local_step : (task, data, config, rng, memory) -> (payload or None, memory)
        None: nothing may be sent, the site answers empty.
    check : (task, payload, config) -> None
        Raises :class:`RuleViolation`. Runs at the site before sending and at the coordinator
        before storing.
    aggregate : (state, contributions, config) -> Next or Done
        Deterministic; contributions come sorted by site name.
    finish : (state, config) -> Result
        The best clustering so far: what a session that used up its rounds ends with.
    label : (result, rows in own units (n, d), memory) -> (n,) int64
        -1 where a row cannot be labelled. With a memory the rows are all rows of the session at
        that site, in order, and ``result.mapping`` holds at most that site's own.
    label_new : (result, rows in own units (n, d), memory) -> (n,) int64, or None
        Where the result alone cannot label rows that took no part: a site does it with what it
        remembers. None: ``label`` without a memory does.
    check_config : (config) -> None, or None
        Raises :class:`RuleViolation` for options that do not fit features or policy.
    check_task : (task, config) -> None, or None
        Raises :class:`RuleViolation` where a task asks for more than the definition says, as other
        numbers of clusters. Runs at the site before the local step. (The engine itself checks the
        order of phases, by ``Phase.once``, and the number of rounds.)
    rounds : (options) -> int or None, or None
        How many rounds of the method a session with these options takes at most; None: as many as
        ``max_rounds`` admits.
    possible_phases : (options) -> names of phases, or None
        The phases that a session with these options can have; None: all.
    by_prototypes : bool
        Whether its results tell clusters apart by prototypes.
    takes_masks : bool
        Whether sites may lack features (``missing: mask``).
    sweeps : bool
        Whether ``n_clusters`` may be several (``engine.sweep``). Whatever K is, the phases of
        the method's rounds come at the same places, so that every K has its step in each round.
    sweeping : bool
        Whether this is a method wrapped to run several K side by side.
    lacks : (options, place) -> str or None, or None
        What has to be installed first at the ``"site"`` or ``"coordinator"``, as a sentence with
        the command; None where nothing has.
    check_roster : (config) -> None, or None
        Raises :class:`RuleViolation` where the sites of the roster, with the features that they
        have, cannot serve the method; says what to change. Called before ``start``.
    """

    name: str
    version: int
    title: str
    citation: str
    options: type[Model] | type[RootModel[Any]]
    default_max_rounds: int
    joins_late: bool
    state: type[Model]
    phases: tuple[Phase, ...]
    start: Callable[[RunConfig, int], tuple[Model, Task]]
    local_step: Callable[[SiteTask, Points, RunConfig, np.random.Generator, Memory], LocalAnswer]
    check: Callable[[SiteTask, Any, RunConfig], None]
    aggregate: Callable[[Any, Sequence[Contribution], RunConfig], Next | Done]
    finish: Callable[[Any, RunConfig], Result]
    label: Callable[[Result, NDArray[np.float64], Memory | None], NDArray[np.int64]]
    check_config: Callable[[RunConfig], None] | None = None
    check_task: Callable[[SiteTask, RunConfig], None] | None = None
    rounds: Callable[[Any], int | None] | None = None
    possible_phases: Callable[[Any], Sequence[str]] | None = None
    by_prototypes: bool = False
    takes_masks: bool = False
    sweeps: bool = False
    sweeping: bool = False
    lacks: Callable[[Any, Place], str | None] | None = None
    check_roster: Callable[[RunConfig], None] | None = None
    label_new: Callable[[Result, NDArray[np.float64], Memory], NDArray[np.int64]] | None = None

    def phase(self, name: str) -> Phase:
        """Return the phase called ``name``; KeyError where there is none."""
        for phase in self.phases:
            if phase.name == name:
                return phase
        raise KeyError(name)
