"""The stages of a session, in order: preparation, the method's rounds, and what closes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedclust.methods.common.task_checks import check_centroids
from fedclust.numeric.canonical import coordinate_tolerance
from fedclust.rounds import evidence, outcomes, preparation, resampling
from fedclust.rounds.plan import Plan, max_rounds
from fedclust.rounds.stage import Closed, EngineState, Round, Stage
from fedclust.rounds.sweep import split_task
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import AnyMethod
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import declared_space
from fedclust.schema.task import CentroidTask, Done, Phase, SiteTask, Task

#: After the method's rounds; the same for every method.
CLOSING_PHASES = (evidence.PHASE, resampling.PHASE, outcomes.PHASE)


class _Preparation(Stage):
    name = "prepare"
    own_phases = (preparation.PHASE,)

    def phases(self, plan: Plan) -> tuple[Phase, ...]:
        return self.own_phases if preparation.needed(plan.policy) else ()

    def task(self, before: Round) -> tuple[EngineState, Task | None]:
        plan = before.plan
        if preparation.needed(plan.policy):
            return before.state, preparation.task()
        return before.state.with_space(declared_space(plan.columns, plan.policy)), None

    def aggregate(self, closing: Round) -> Closed:
        space, warnings = preparation.merge(closing.contributions, closing.config)
        state = closing.recorded({}).with_space(space)
        state = state.model_copy(update={"warnings": warnings})
        return Closed(state, metrics=closing.metrics, warnings=warnings)


# --- The method's rounds --------------------------------------------------------------------------


class _Method(Stage):
    name = "method"

    def every_phase(self, method: AnyMethod) -> tuple[Phase, ...]:
        return method.phases

    def phases(self, plan: Plan) -> tuple[Phase, ...]:
        names = plan.options.phases
        return tuple(each for each in plan.method.phases if names is None or each.name in names)

    def task(self, before: Round) -> tuple[EngineState, Task | None]:
        plan = before.plan
        method_state, task = plan.method.start(before.config, plan.seed)
        update = {"method_rounds": 1, "method": method_state.model_dump()}
        return before.state.model_copy(update=update), task

    def aggregate(self, closing: Round) -> Closed:
        plan, method = closing.plan, closing.plan.method
        before = method.state.model_validate(closing.state.method)
        outcome = method.aggregate(before, closing.contributions, closing.config)
        metrics = {**closing.metrics, **outcome.metrics}
        state = closing.recorded(metrics)
        if isinstance(outcome, Done):
            return Closed(_with_raw(state, outcome.result), metrics=metrics)
        if state.method_rounds >= max_rounds(plan):
            raw = method.finish(outcome.state, closing.config)
            raw = raw.model_copy(update={"stopped_because": "max_rounds"})
            return Closed(_with_raw(state, raw), metrics=metrics)
        update = {
            "method_rounds": state.method_rounds + 1,
            "method": outcome.state.model_dump(),
        }
        return Closed(state.model_copy(update=update), outcome.task, metrics)

    def give_up(self, closing: Round) -> Closed:
        """Complete the session with what it has found, where the open phase allows it."""
        method, state = closing.plan.method, closing.state
        phase = method.phase(state.phase)
        if not (phase.ends_with_site or phase.optional):
            return super().give_up(closing)
        raw = method.finish(method.state.model_validate(state.method), closing.config)
        update: dict[str, Any] = {"stopped_because": "site_left"}
        if phase.optional:
            warning = (
                f"{closing.answered} sites answered round {state.round} with something, "
                f"{closing.plan.policy.min_sites} are needed: the result is that of the rounds "
                "before."
            )
            update = {
                "stopped_because": "too_few_contributors",
                "warnings": (*raw.warnings, warning),
            }
        metrics = closing.metrics
        raw = raw.model_copy(update=update)
        return Closed(_with_raw(closing.recorded(metrics), raw), metrics=metrics)


def _with_raw(state: EngineState, raw: Result) -> EngineState:
    """Return the state after the method's rounds, with what they came to."""
    warnings = (*state.warnings, *raw.warnings)
    return state.with_result(raw.model_copy(update={"warnings": warnings}))


def check_method_task(
    method: AnyMethod, task: SiteTask, config: RunConfig, seed: int, *, first: bool
) -> None:
    """Refuse a task of the method's rounds that the definition does not provide for.

    The site computes the first task as the coordinator does. A phase that comes once is compared
    in every round: a site may have joined later.
    """
    phase = method.phase(task.phase)
    if first or phase.once:
        # No part of a site's own is compared, so it does not matter which sites there are.
        _, expected = method.start(replace(config, roster=("",)), seed)
        if task.phase == expected.phase and _differs(task.common, expected.common):
            raise RuleViolation("task", "the definition asks for another first task", "/parameters")
    for one, own in split_task(task, config):
        if isinstance(one.common, CentroidTask):
            check_centroids(one.common, own)
        phase.check_task(one, own)


def _differs(found: Any, expected: Any) -> bool:
    """Return whether two parts of tasks differ by more than rounding."""
    if isinstance(expected, Model):
        names = type(expected).model_fields
        return not isinstance(found, type(expected)) or any(
            _differs(getattr(found, name), getattr(expected, name)) for name in names
        )
    if isinstance(expected, tuple):
        same = isinstance(found, tuple) and len(found) == len(expected)
        return not same or any(map(_differs, found, expected))
    if expected is None or found is None:
        return found is not expected
    if not isinstance(expected, np.ndarray) or expected.dtype.kind != "f":
        return not np.array_equal(found, expected)
    tolerance = coordinate_tolerance(expected)
    return found.shape != expected.shape or bool((np.abs(found - expected) > tolerance).any())


# --- The list -------------------------------------------------------------------------------------

STAGES: tuple[Stage, ...] = (
    _Preparation(),
    _Method(),
    evidence.EvidenceStage(),
    resampling.ResamplingStage(),
    outcomes.OutcomesStage(),
)


def phase(plan_or_method: Plan | AnyMethod, name: str) -> Phase:
    """Return the phase called ``name``, the engine's own included; KeyError where there is none."""
    method = plan_or_method.method if isinstance(plan_or_method, Plan) else plan_or_method
    return {each.name: each for each in all_phases(method)}[name]


def staged_phases(method: AnyMethod) -> list[tuple[Stage, Phase]]:
    """Return every phase that a session of this method may have, in order, with its stage."""
    return [(stage, each) for stage in STAGES for each in stage.every_phase(method)]


def all_phases(method: AnyMethod) -> tuple[Phase, ...]:
    """Return every phase that a session of this method may have, in order."""
    return tuple(each for _, each in staged_phases(method))


def possible_phases(plan: Plan) -> tuple[Phase, ...]:
    """Return the phases that a session of this definition can have, in order."""
    return tuple(each for stage in STAGES for each in stage.phases(plan))


def most_rounds(plan: Plan) -> int:
    """Return how many rounds a session may take, with the preparation and the closing rounds."""
    others = [each for each in possible_phases(plan) if each not in plan.method.phases]
    return max_rounds(plan) + len(others)
