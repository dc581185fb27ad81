"""The stages of a session, in order: preparation, the method's rounds, and what closes them.

Also tasks as they travel: written at the coordinator, read at a site.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedclust.numeric.array_types import BoolArray
from fedclust.rounds import evidence, outcomes, preparation, resampling
from fedclust.rounds.plan import Plan, assigns_by_centroids
from fedclust.rounds.stage import Closed, EngineState, Round, Stage
from fedclust.schema.encoding import Space
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import AnyMethod
from fedclust.schema.model import Model, Slug, Tree
from fedclust.schema.result import Result
from fedclust.schema.scaling import declared_space
from fedclust.schema.task import Done, Phase, SiteTask, Task
from fedclust.wire.codec import task_digest
from fedclust.wire.models import TaskDocument

#: No site has more rows; and ten thousand of them still add up exactly as floats.
MAX_COUNT = 10**11


class _Preparation(Stage):
    name = "prepare"
    own_phases = (preparation.PHASE,)

    def phases(self, plan: Plan) -> tuple[Phase, ...]:
        return self.own_phases if plan.is_prepared else ()

    def task(self, before: Round) -> tuple[EngineState, Task | None]:
        plan = before.plan
        if plan.is_prepared:
            return before.state, Task(preparation.NAME, preparation.PreparationTask())
        space = declared_space(plan.columns, plan.policy)
        return before.state.model_copy(update={"space": space}), None

    def aggregate(self, closing: Round) -> Closed:
        space, warnings, differing = preparation.merge(closing.contributions, closing.config)
        found = {"space": space, "warnings": warnings, "differing": differing}
        return Closed(closing.state.model_copy(update=found), metrics={}, warnings=warnings)


# --- The method's rounds --------------------------------------------------------------------------


class _Method(Stage):
    name = "method"

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
        state, metrics = closing.state, outcome.metrics
        if isinstance(outcome, Done):
            return Closed(_with_raw(state, outcome.result), metrics=metrics)
        if state.method_rounds >= plan.max_rounds:
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
        open_phase = phase(method, state.phase)
        if not (open_phase.ends_with_site or open_phase.optional):
            return super().give_up(closing)
        raw = method.finish(method.state.model_validate(state.method), closing.config)
        update: dict[str, Any] = {"stopped_because": "site_left"}
        if open_phase.optional:
            warning = (
                f"{closing.answered} sites answered round {state.round} with something, "
                f"{closing.plan.policy.min_sites} are needed: the result is that of the rounds "
                "before."
            )
            update = {
                "stopped_because": "too_few_contributors",
                "warnings": (*raw.warnings, warning),
            }
        return Closed(_with_raw(state, raw.model_copy(update=update)), metrics={})


def _with_raw(state: EngineState, raw: Result) -> EngineState:
    """Return the state after the method's rounds, with what they came to."""
    warnings = (*state.warnings, *raw.warnings)
    return state.with_result(raw.model_copy(update={"warnings": warnings}))


# --- The list -------------------------------------------------------------------------------------

METHOD_STAGE = _Method()
STAGES: tuple[Stage, ...] = (
    _Preparation(),
    METHOD_STAGE,
    evidence.EvidenceStage(),
    resampling.ResamplingStage(),
    outcomes.OutcomesStage(),
)


def all_phases(method: AnyMethod) -> tuple[Phase, ...]:
    """Return every phase that a session of this method may have, in order."""
    resampled = (resampling.PHASE,) if assigns_by_centroids(method) else ()
    return (preparation.PHASE, *method.phases, evidence.PHASE, *resampled, outcomes.PHASE)


def phase(plan_or_method: Plan | AnyMethod, name: str) -> Phase:
    """Return the phase called ``name``, the engine's own included; KeyError where there is none."""
    method = plan_or_method.method if isinstance(plan_or_method, Plan) else plan_or_method
    return {each.name: each for each in all_phases(method)}[name]


def possible_phases(plan: Plan) -> tuple[Phase, ...]:
    """Return the phases that a session of this definition can have, in order."""
    return tuple(each for stage in STAGES for each in stage.phases(plan))


def most_rounds(plan: Plan) -> int:
    """Return how many rounds a session may take, with the preparation and the closing rounds."""
    others = [each for each in possible_phases(plan) if each not in plan.method.phases]
    return plan.max_rounds + len(others)


# --- An answer, at both ends ----------------------------------------------------------------------


def check(
    plan: Plan,
    task: SiteTask,
    payload: Model | None,
    *,
    p: int,
    size_band: str | None,
    mask: BoolArray | None = None,
) -> None:
    """Check an answer against its task, at either end; RuleViolation. None always passes."""
    if payload is None:
        return
    refuse_uncountable(payload)
    # Numbers near the largest float overflow in the checks' own arithmetic: not within bounds.
    with np.errstate(over="ignore", invalid="ignore"):
        config = plan.config(p, task.space, mask, size_band=size_band)
        phase(plan, task.phase).check(task, payload, config)


def refuse_uncountable(payload: Model) -> None:
    """Raise RuleViolation where a count is more than any site can have."""
    for pointer, value in leaves(payload):
        # An int may be too large for any dtype.
        whole = isinstance(value, int) or (
            isinstance(value, np.ndarray) and value.dtype.kind == "i"
        )
        if whole and np.any(value > MAX_COUNT):
            raise RuleViolation("count-range", f"no count may exceed {MAX_COUNT}", pointer)


def leaves(value: Tree | Model, pointer: str = "") -> Iterator[tuple[str, Tree]]:
    """Yield all that a task or an answer holds, each array or value with its place."""
    if isinstance(value, tuple):
        for i, each in enumerate(value):
            yield from leaves(each, f"{pointer}/{i}")
    elif isinstance(value, Model | dict):
        for name, each in (value if isinstance(value, dict) else vars(value)).items():
            yield from leaves(each, f"{pointer}/{name}")
    else:
        yield pointer, value


def write_task(
    plan: Plan, session: str, round_number: int, task: Task, site: str | None
) -> tuple[Tree, Tree | None]:
    """Return what travels to a site: the part common to all, and that site's own or None."""
    common = {
        "session": session,
        "round": round_number,
        "phase": task.phase,
        "space": None if task.space is None else task.space.model_dump(),
        "parameters": task.common.model_dump(mode="python"),
    }
    part = None if site is None else task.per_site.get(site)
    if part is None or phase(plan, task.phase).site_part is None:
        return common, None
    return common, part.model_dump(mode="python")


def task_document(
    plan: Plan, session: str, round_number: int, task: Task, site: str
) -> TaskDocument:
    """Return the task of a round as a site gets it."""
    common, part = write_task(plan, session, round_number, task, site)
    digest = task_digest(common, part)
    return TaskDocument(phase=task.phase, digest=digest, common=common, site=part)


def read_task(plan: Plan, common: Tree, site: Tree | None) -> SiteTask:
    """Read what :func:`write_task` wrote; RuleViolation where it is not a task of this plan."""
    try:
        envelope = TaskCommon.model_validate(common)
        described = phase(plan, envelope.phase)
        parameters = described.task.model_validate(envelope.parameters)
        part = None
        if site is not None:
            if described.site_part is None:
                raise RuleViolation("task", "this phase has no part of a site's own")
            part = described.site_part.model_validate(site)
    except KeyError:
        known = ", ".join(each.name for each in plan.method.phases)
        message = f"{plan.method.name} has no phase {envelope.phase!r}; it has: {known}"
        raise RuleViolation("task-phase", message, "/phase") from None
    except ValidationError:
        raise RuleViolation("task", "the task does not have its phase's form") from None
    space = envelope.space
    if space is not None:
        _check_space(plan, space)
    if (space is None) != (envelope.phase == preparation.NAME):
        message = "every task but the preparation's names the space"
        raise RuleViolation("task-space", message, "/space")
    return SiteTask(phase=envelope.phase, common=parameters, site=part, space=space)


class TaskCommon(Model):
    """The part of a task that all sites get; ``parameters`` are the phase's own."""

    session: Slug
    round: int
    phase: str
    space: Space | None
    parameters: dict[str, Tree]


def _check_space(plan: Plan, space: Space) -> None:
    d = len(plan.columns)
    vectors = [each for each in vars(space).values() if each is not None]
    positive = (space.scale > 0).all() and (space.limit is None or (space.limit > 0).all())
    if any(vector.shape != (d,) for vector in vectors) or not positive:
        raise RuleViolation("task-space", "the space does not fit the session's features", "/space")
    if (space.impute is not None) != (plan.policy.missing != "drop"):
        message = "values are imputed as the definition says"
        raise RuleViolation("task-space", message, "/space/impute")
    if (space.limit is not None) != (plan.policy.scaling == "standard"):
        raise RuleViolation("task-space", "scaling: standard alone has a limit", "/space/limit")
