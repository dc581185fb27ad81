"""A session's rounds, whatever the method: preparation, the method's rounds, evaluation.

The coordinator, the SDK and ``simulate`` drive a session through these functions alone, so that
none of them knows a method by name. A round is one task-and-answer exchange; the preparation
round is round 1 and, like the closing evaluation, outside ``max_rounds``.

At the coordinator: :func:`start`, then :func:`advance` for every closed round, until it returns
:class:`Done`. At a site: :func:`read_task`, :func:`local_step`, and :func:`label` at the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from fedclust.engine import evaluation, preparation, sweep
from fedclust.engine.site_points import complete_points, scaled_points
from fedclust.methods.common.finalize import complete
from fedclust.numeric.arrays import FloatVector
from fedclust.numeric.random import site_rng
from fedclust.numeric.threads import one_thread
from fedclust.schema.encoding import Column, columns_of
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.feature import Feature
from fedclust.schema.method import LocalAnswer, Method, Place
from fedclust.schema.model import Memory, Model, Slug, Tree
from fedclust.schema.points import Points
from fedclust.schema.policy import Policy
from fedclust.schema.result import HistoryEntry, Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import declared_space
from fedclust.schema.space import Space
from fedclust.schema.task import Contribution, Done, Next, Phase, SiteTask, Task

#: No site has more rows; and ten thousand of them still add up exactly as floats.
MAX_COUNT = 10**11


@dataclass(frozen=True)
class Plan:
    """A session's definition as the engine needs it.

    Attributes
    ----------
    method : Method
    options : Model
        An instance of ``method.options``.
    features : tuple of Feature
        As declared, in the session's order. ``columns`` (d,) are what methods see of them.
    policy : Policy
    seed : int
    """

    method: Method
    options: Model
    features: tuple[Feature, ...]
    policy: Policy
    seed: int

    @property
    def columns(self) -> tuple[Column, ...]:
        """What the features become."""
        return columns_of(self.features)


class EngineState(Model):
    """All that a session needs to go on after a round: stored whole, every round.

    Attributes
    ----------
    stage : {"prepare", "method", "evaluate"}
        What the open round belongs to.
    round : int
        Number of the open round, from 1.
    method_rounds : int
        Rounds of the method that were opened so far; ``max_rounds`` limits these.
    phase : str
        What the open round asks.
    center, scale, impute, limit : (d,) float64 or None
        The space; None until it is known.
    warnings : tuple of str
        Of the preparation; the result repeats them.
    method : dict
        The method's own state, as a tree; None before its start.
    result : Result or None
        In the evaluation: what is being evaluated, not yet sorted.
    history : tuple of HistoryEntry
    """

    stage: Literal["prepare", "method", "evaluate"]
    round: int
    phase: str = preparation.NAME
    method_rounds: int = 0
    center: FloatVector | None = None
    scale: FloatVector | None = None
    impute: FloatVector | None = None
    limit: FloatVector | None = None
    warnings: tuple[str, ...] = ()
    method: dict[str, Tree] | None = None
    result: Result | None = None
    history: tuple[HistoryEntry, ...] = ()


# --- at the coordinator ---------------------------------------------------------------------------


def max_rounds(plan: Plan) -> int:
    """Return how many rounds the method itself may take."""
    limit = plan.policy.max_rounds or plan.method.default_max_rounds
    fixed = None if plan.method.rounds is None else plan.method.rounds(plan.options)
    return limit if fixed is None else min(limit, fixed)


def most_rounds(plan: Plan) -> int:
    """Return how many rounds a session may take, with preparation and evaluation."""
    around = int(preparation.needed(plan.policy)) + int(getattr(plan.options, "evaluate", False))
    return max_rounds(plan) + around


Masks: TypeAlias = Mapping[str, NDArray[np.bool_]]


def has_features(plan: Plan, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return which columns (d,) a site has that names these features of the session."""
    held = set(names)
    return np.array([column.feature in held for column in plan.columns], dtype=np.bool_)


def check_installed(plan: Plan, place: Place) -> None:
    """Raise RuleViolation where the method needs something that is not installed at ``place``."""
    lacking = None if plan.method.lacks is None else plan.method.lacks(plan.options, place)
    if lacking is not None:
        raise RuleViolation("not-installed", lacking)


def check_roster(plan: Plan, roster: Sequence[str], masks: Masks | None = None) -> None:
    """Raise RuleViolation where these sites cannot serve the method; it says what to change."""
    if plan.method.check_roster is not None:
        state = EngineState(stage="prepare", round=0)
        plan.method.check_roster(_config(plan, state, roster, masks))


def start(plan: Plan, roster: Sequence[str], masks: Masks | None = None) -> Next:
    """Return the state and the task of round 1.

    Parameters
    ----------
    plan : Plan
    roster : sequence of str
        The sites that take part.
    masks : mapping of site to (d,) bool, optional
        The columns that each site has; by default, and where a site is not named, all.
    """
    with one_thread():
        if preparation.needed(plan.policy):
            return Next(EngineState(stage="prepare", round=1), preparation.task())
        space = declared_space(plan.columns, plan.policy.scaling)
        state = EngineState(stage="method", round=0, center=space.center, scale=space.scale)
        return _start_method(plan, state, _config(plan, state, roster, masks), {})


def advance(
    plan: Plan,
    state: EngineState,
    contributions: Sequence[Contribution],
    roster: Sequence[str],
    masks: Masks | None = None,
) -> Next | Done:
    """Close a round and return the next one's task, or the result.

    Parameters
    ----------
    plan : Plan
    state : EngineState
        What the previous call returned (or what was stored of it).
    contributions : sequence of Contribution
        One for each site that answered, in any order; an empty answer has payload None.
    roster : sequence of str
        The sites that the next round would address.
    masks : mapping of site to (d,) bool, optional
        The columns that each site has, those that have left included; by default all.

    Returns
    -------
    Next or Done

    Raises
    ------
    MethodFailure
        Too few sites answered with something, or the method cannot go on.
    """
    names = [contribution.site for contribution in contributions]
    if len(set(names)) != len(names):
        raise ValueError("a site answers a round once")
    ordered = sorted(contributions, key=lambda contribution: contribution.site)
    answered = sum(contribution.payload is not None for contribution in ordered)
    if answered < plan.policy.min_sites:
        if state.stage == "evaluate" and state.result is not None:
            # The clustering itself rests on rounds that had enough.
            return Done(_complete(plan, state, _unmeasured(state.result)))
        open_phase = phase(plan, state.phase)
        if state.stage == "method" and (open_phase.ends_with_site or open_phase.optional):
            return _end_early(plan, state, _config(plan, state, roster, masks), answered)
        raise MethodFailure(
            "too_few_contributors",
            f"{answered} sites answered round {state.round} with something, "
            f"{plan.policy.min_sites} are needed: invite more or larger sites, or lower "
            "min_group_size",
        )
    with one_thread(), np.errstate(over="raise", invalid="raise"):
        try:
            config = _config(plan, state, roster, masks)
            outcome = _advance(plan, state, ordered, config, answered)
            if not np.isfinite(list(outcome.metrics.values())).all():
                raise FloatingPointError
            return outcome
        except FloatingPointError:
            raise MethodFailure(
                "overflow",
                "the sites' numbers are too large to be added up: declare bounds for the features",
            ) from None


def write_task(
    plan: Plan, session: str, round_number: int, task: Task, site: str | None
) -> tuple[Tree, Tree | None]:
    """Return what travels to a site: the part common to all, and that site's own or None."""
    space = task.space
    common = {
        "session": session,
        "round": round_number,
        "phase": task.phase,
        "space": None
        if space is None
        else {name: getattr(space, name) for name in TaskSpace.model_fields},
        "parameters": task.common.model_dump(mode="python"),
    }
    part = None if site is None else task.per_site.get(site)
    if part is None or phase(plan, task.phase).site_part is None:
        return common, None
    return common, part.model_dump(mode="python")


def _exact(plan: Plan) -> bool:
    """Whether the points are single rows."""
    return plan.policy.protection == "none"


def _config(
    plan: Plan, state: EngineState, roster: Sequence[str], masks: Masks | None
) -> RunConfig:
    every = np.ones(len(plan.columns), dtype=np.bool_)
    return RunConfig(
        options=plan.options,
        features=plan.features,
        policy=plan.policy,
        roster=tuple(sorted(roster)),
        p=1 if _exact(plan) else plan.policy.min_group_size,
        space=_space(state) or Space.identity(len(plan.columns)),
        masks=defaultdict(lambda: every, dict.fromkeys(roster, every) | dict(masks or {})),
    )


def _space(state: EngineState) -> Space | None:
    if state.center is None or state.scale is None:
        return None
    return Space(state.center, state.scale, state.impute, state.limit)


def _advance(
    plan: Plan,
    state: EngineState,
    contributions: Sequence[Contribution],
    config: RunConfig,
    answered: int,
) -> Next | Done:
    if state.stage == "prepare":
        space, warnings = preparation.merge(contributions, config)
        state = state.model_copy(
            update={
                "center": space.center,
                "scale": space.scale,
                "impute": space.impute,
                "limit": space.limit,
                "warnings": warnings,
                "history": (_entry(state, preparation.NAME, answered, {}),),
            }
        )
        metrics = {"n_sites": float(answered)}
        following = _start_method(plan, state, replace(config, space=space), metrics)
        return replace(following, warnings=warnings)
    if state.stage == "evaluate":
        return _close_evaluation(plan, state, contributions, config, answered)
    return _close_method_round(plan, state, contributions, config, answered)


def _start_method(
    plan: Plan, state: EngineState, config: RunConfig, metrics: Mapping[str, float]
) -> Next:
    method_state, task = plan.method.start(config, plan.seed)
    return _open(
        state,
        task,
        config,
        metrics,
        stage="method",
        method_rounds=1,
        method=_tree(method_state),
        phase=task.phase,
    )


def _open(
    state: EngineState,
    task: Task,
    config: RunConfig,
    metrics: Mapping[str, float],
    **update: Any,
) -> Next:
    """Open the next round: number it, and put the space into its task."""
    following = state.model_copy(update={"round": state.round + 1, **update})
    return Next(following, replace(task, space=config.space), metrics)


def _close_method_round(
    plan: Plan,
    state: EngineState,
    contributions: Sequence[Contribution],
    config: RunConfig,
    answered: int,
) -> Next | Done:
    method = plan.method
    outcome = method.aggregate(method.state.model_validate(state.method), contributions, config)
    metrics = {"n_sites": float(answered), **outcome.metrics}
    state = state.model_copy(
        update={"history": (*state.history, _entry(state, state.phase, answered, metrics))}
    )
    if isinstance(outcome, Done):
        return _end_method(plan, state, outcome.result, config, metrics)
    if state.method_rounds >= max_rounds(plan):
        finished = method.finish(outcome.state, config)
        finished = finished.model_copy(update={"stopped_because": "max_rounds"})
        return _end_method(plan, state, finished, config, metrics)
    return _open(
        state,
        outcome.task,
        config,
        metrics,
        method_rounds=state.method_rounds + 1,
        method=_tree(outcome.state),
        phase=outcome.task.phase,
    )


def _end_early(plan: Plan, state: EngineState, config: RunConfig, answered: int) -> Next | Done:
    """Complete a session whose open round too few sites answered with what it has found."""
    finished = plan.method.finish(plan.method.state.model_validate(state.method), config)
    update: dict[str, Any] = {"stopped_because": "site_left"}
    if phase(plan, state.phase).optional:
        warning = (
            f"{answered} sites answered round {state.round} with something, "
            f"{plan.policy.min_sites} are needed: the result is that of the rounds before."
        )
        update = {
            "stopped_because": "too_few_contributors",
            "warnings": (*finished.warnings, warning),
        }
    finished = finished.model_copy(update=update)
    metrics = {"n_sites": float(answered)}
    state = state.model_copy(
        update={"history": (*state.history, _entry(state, state.phase, answered, metrics))}
    )
    return _end_method(plan, state, finished, config, metrics)


def _end_method(
    plan: Plan, state: EngineState, raw: Result, config: RunConfig, metrics: Mapping[str, float]
) -> Next | Done:
    raw = raw.model_copy(update={"warnings": (*state.warnings, *raw.warnings)})
    if not (getattr(plan.options, "evaluate", False) and len(raw.centroids) > 0):
        return Done(_complete(plan, state, raw), metrics)
    task = sweep.evaluation_task(raw) if raw.sweep else evaluation.task(raw)
    return _open(
        state, task, config, metrics, stage="evaluate", method=None, result=raw, phase=task.phase
    )


def _close_evaluation(
    plan: Plan,
    state: EngineState,
    contributions: Sequence[Contribution],
    config: RunConfig,
    answered: int,
) -> Done:
    raw = state.result
    if raw is None:
        raise ValueError("there is nothing to evaluate in this state")
    metrics = {"n_sites": float(answered)}
    if raw.sweep is not None:
        outcomes = sweep.measured(raw, contributions, config)
        entry = _entry(state, state.phase, answered, metrics)
        return Done(sweep.complete(raw, outcomes, (*state.history, entry)), metrics)
    outcome = evaluation.aggregate(raw, contributions, config)
    if outcome.quality is not None:
        metrics["inertia"] = outcome.quality.inertia
    state = state.model_copy(
        update={"history": (*state.history, _entry(state, state.phase, answered, metrics))}
    )
    result = _complete(
        plan,
        state,
        raw,
        sizes=outcome.sizes,
        site_sizes=outcome.site_sizes,
        quality=outcome.quality,
        profile=outcome.profile,
        warnings=outcome.warnings,
    )
    return Done(result, metrics)


def _unmeasured(raw: Result) -> Result:
    warning = (
        "sizes and quality are not known: fewer sites than min_sites could answer the closing "
        "evaluation"
    )
    return raw.model_copy(update={"warnings": (*raw.warnings, warning)})


def _complete(plan: Plan, state: EngineState, raw: Result, **measured: Any) -> Result:
    if raw.sweep is not None:
        return sweep.complete(raw, None, state.history)
    wanted = getattr(plan.options, "n_clusters", None)
    return complete(
        raw,
        n_clusters=wanted if isinstance(wanted, int) else None,
        history=state.history,
        n_rounds=state.method_rounds,
        **measured,
    )


def _entry(
    state: EngineState, phase_name: str, answered: int, metrics: Mapping[str, float]
) -> HistoryEntry:
    return HistoryEntry(
        round=state.round,
        phase=phase_name,
        n_sites=answered,
        inertia=metrics.get("inertia"),
        centroid_shift=metrics.get("centroid_shift"),
        lower_bound=metrics.get("lower_bound"),
        upper_bound=metrics.get("upper_bound"),
    )


def _tree(state: Model) -> dict[str, Tree]:
    return dict(state.model_dump(mode="python"))


# --- at a site ------------------------------------------------------------------------------------


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
        raise RuleViolation("task", "the task's phase is unknown", "/phase") from None
    except ValidationError:
        raise RuleViolation("task", "the task does not have its phase's form") from None
    space = None if envelope.space is None else _read_space(plan, envelope.space)
    if (space is None) != (envelope.phase == preparation.NAME):
        raise RuleViolation("task", "every task but the preparation's names the space", "/space")
    return SiteTask(phase=envelope.phase, common=parameters, site=part, space=space)


def local_step(
    plan: Plan,
    task: SiteTask,
    points: Points,
    *,
    site: str,
    round_number: int,
    p: int,
    size_band: str | None,
    memory: Memory,
    mask: NDArray[np.bool_] | None = None,
) -> LocalAnswer:
    """Compute a site's answer to a task from the points of its table.

    Parameters
    ----------
    plan : Plan
    task : SiteTask
    points : Points
        In own units, NaN where a group does not release a column. The same in every round of a
        session.
    site : str
    round_number : int
    p : int
        The larger of the session's least number of persons and the site's own.
    size_band : str or None
        The band that the site declared.
    memory : dict
        What the previous call returned; ``{}`` at first. It never leaves the site and must be
        stored together with the answer, before the answer is sent.
    mask : (d,) bool, optional
        The columns that the site joined with; by default all.

    Returns
    -------
    payload : Model or None
        None: nothing may be sent; the site answers empty.
    memory : dict

    Raises
    ------
    RuleViolation
        The rows, the task or the answer break a rule; names column and count, never a value.
    """
    with one_thread():
        config = _site_config(plan, task.space, p, size_band, mask)
        payload: Model | None
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                first = round_number == 1 + preparation.needed(plan.policy)
                memory = _refuse_unconsented(plan, task, replace(config, first=first), memory)
                kept = complete_points(points, config)
                if not len(kept.X):
                    return None, memory
                if task.space is None:
                    payload = preparation.local_step(kept, config)
                else:
                    scaled = _scaled(points, kept, task.space, config)
                    if task.phase != evaluation.NAME:
                        rng = site_rng(plan.seed, site, round_number)
                        payload, memory = plan.method.local_step(task, scaled, config, rng, memory)
                    elif plan.method.sweeping:
                        payload = sweep.evaluate(task, scaled, config)
                    else:
                        payload = evaluation.local_step(task, scaled, config)
        except ValidationError:  # a payload holds finite numbers only
            raise RuleViolation(
                "overflow", "values are too large to be squared and added up: choose other units"
            ) from None
        check(plan, task, payload, p=p, size_band=size_band, mask=mask)
        return payload, memory


def _scaled(points: Points, kept: Points, space: Space, config: RunConfig) -> Points:
    """Return complete points scaled; the next round of a session has the same."""
    vectors = (space.center, space.scale, space.impute, space.limit, config.mask)
    asked = tuple(None if each is None else each.tobytes() for each in vectors)
    known = points.derived.get("scaled")
    if known is None or known[0] != asked:
        known = points.derived["scaled"] = asked, scaled_points(kept, space, config)
    return known[1]


def _refuse_unconsented(plan: Plan, task: SiteTask, config: RunConfig, memory: Memory) -> Memory:
    """Refuse a task that the definition does not provide for; remember how far the session is.

    A phase that comes once comes before all that are listed after it, and the method's rounds are
    no more than the definition allows.
    """
    before = memory.get("progress", {"phase": -1, "rounds": 0})
    if task.phase not in {each.name for each in possible_phases(plan)}:
        message = f"the definition provides for no phase {task.phase!r}"
        raise RuleViolation("task", message, "/phase")
    phases = all_phases(plan.method)
    place = next(i for i, each in enumerate(phases) if each.name == task.phase)
    of_method = 0 < place < len(phases) - 1
    if before["phase"] >= (place if phases[place].once else len(phases) - 1):
        raise RuleViolation("task", f"the phase {task.phase!r} is over in this session", "/phase")
    rounds = before["rounds"] + of_method
    if rounds > max_rounds(plan):
        raise RuleViolation(
            "task", f"the definition allows {max_rounds(plan)} rounds of the method", "/phase"
        )
    _refuse_no_centroids(task.common)
    if of_method and plan.method.check_task is not None:
        plan.method.check_task(task, config)
    if task.phase == evaluation.NAME:
        _check_evaluation_task(plan, task, config)
    space = _refuse_other_space(plan, task.space, before.get("space"))
    progress = {"phase": max(place, before["phase"]), "rounds": rounds, "space": space}
    return {**memory, "progress": progress}


def _refuse_no_centroids(common: Any) -> None:
    """Refuse a task that asks about no centroids at all."""
    for part in getattr(common, "parts", (common,)):
        centroids = getattr(part, "centroids", None)
        if centroids is not None and 0 in centroids.shape:
            raise RuleViolation(
                "task", "a task names at least one centroid", "/parameters/centroids"
            )


def _refuse_other_space(plan: Plan, space: Space | None, known: str | None) -> str | None:
    """Refuse another scaled space than the definition's or the session's; return its digest."""
    if space is None:
        return known
    parts = (space.center, space.scale, space.impute, space.limit)
    digest = sha256(b"".join(b"-" if each is None else each.tobytes() for each in parts))
    found = digest.hexdigest()
    other = known is not None and found != known
    if not preparation.needed(plan.policy):
        declared = declared_space(plan.columns, plan.policy.scaling)
        other |= not np.array_equal(space.center, declared.center)
        other |= not np.array_equal(space.scale, declared.scale)
    if other:
        raise RuleViolation("task", "the session has another scaled space", "/space")
    return found


def _check_evaluation_task(plan: Plan, task: SiteTask, config: RunConfig) -> None:
    if not getattr(plan.options, "evaluate", False):
        raise RuleViolation("task", "the definition has no evaluation", "/phase")
    if plan.method.sweeping:
        sweep.check_evaluation_task(task, config)
    else:
        evaluation.check_task(task, config, prototypes=plan.method.by_prototypes)


def check(
    plan: Plan,
    task: SiteTask,
    payload: Any,
    *,
    p: int,
    size_band: str | None,
    mask: NDArray[np.bool_] | None = None,
) -> None:
    """Check an answer against its task, at either end; RuleViolation. None always passes."""
    if payload is None:
        return
    _check_countable(payload)
    config = _site_config(plan, task.space, p, size_band, mask)
    # Numbers near the largest float overflow in the checks' own arithmetic: not within bounds.
    with np.errstate(over="ignore", invalid="ignore"):
        if task.phase == preparation.NAME:
            preparation.check(payload, config)
        elif task.phase == evaluation.NAME:
            closing = sweep.check_evaluation if plan.method.sweeping else evaluation.check
            closing(task, payload, config)
        else:
            plan.method.check(task, payload, config)


def _check_countable(payload: Model, at: str = "") -> None:
    """Raise where a whole number is more than any site can count (RuleViolation)."""
    for name in type(payload).model_fields:
        value, pointer = getattr(payload, name), f"{at}/{name}"
        if isinstance(value, Model):
            _check_countable(value, pointer)
            continue
        if isinstance(value, tuple):
            for i, part in enumerate(value):
                if isinstance(part, Model):
                    _check_countable(part, f"{pointer}/{i}")
            continue
        whole = isinstance(value, int)
        if isinstance(value, np.ndarray) and value.dtype.kind == "i" and value.size:
            whole, value = True, int(value.max())
        if whole and value > MAX_COUNT:
            raise RuleViolation("count-range", f"no count may exceed {MAX_COUNT}", pointer)


def label(
    plan_or_method: Plan | Method,
    result: Result,
    X: NDArray[np.float64],
    memory: Memory | None = None,
    site: str | None = None,
    mask: NDArray[np.bool_] | None = None,
    *,
    new: bool = False,
) -> NDArray[np.int64]:
    """Label rows that ``encoding.encode`` gave.

    Parameters
    ----------
    plan_or_method : Plan or Method
    result : Result
    X : (n, d) float64
        All rows of the session at ``site``, in order, with its ``memory``; or new rows.
    memory : dict, optional
        That site's, after the session's last round.
    site : str, optional
    mask : (d,) bool, optional
        The columns that these rows have. By default those with any value.
    new : bool
        Whether the rows are others than those of the session, though a memory is given.

    Returns
    -------
    (n,) int64
        -1 where missing values forbid a label.
    """
    method = plan_or_method.method if isinstance(plan_or_method, Plan) else plan_or_method
    own = {name: cells for name, cells in result.mapping.items() if name == site}
    result = result.model_copy(update={"mapping": own})
    with one_thread():
        rows = np.asarray(X, dtype=np.float64)
        if mask is not None and rows.ndim == 2:
            rows = _with_columns(result, rows, mask)
        if new and memory is not None:
            if method.label_new is not None:
                return method.label_new(result, rows, memory)
            memory = None
        return method.label(result, rows, memory)


def _with_columns(
    result: Result, rows: NDArray[np.float64], mask: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return rows (n, d) that have the columns of ``mask`` (d,) and no others."""
    if result.mask is not None and result.impute is not None:
        # Here, or whether a value is imputed would depend on the other rows' values.
        rows = np.where(np.isnan(rows), result.impute, rows)
    return np.where(mask, rows, np.nan)


class TaskSpace(Model):
    """The scaled space in a task: ``center``, ``scale`` and ``impute`` (d,) in own units.

    ``limit`` (d,): scaled values count as at most so far from 0.
    """

    center: FloatVector
    scale: FloatVector
    impute: FloatVector | None
    limit: FloatVector | None


class TaskCommon(Model):
    """The part of a task that all sites get; ``parameters`` are the phase's own."""

    session: Slug
    round: int
    phase: str
    space: TaskSpace | None
    parameters: dict[str, Tree]


def _read_space(plan: Plan, tree: TaskSpace) -> Space:
    d = len(plan.columns)
    vectors = [each for each in (tree.impute, tree.limit) if each is not None]
    vectors += [tree.center, tree.scale]
    positive = (tree.scale > 0).all() and (tree.limit is None or (tree.limit > 0).all())
    if any(vector.shape != (d,) for vector in vectors) or not positive:
        raise RuleViolation("task", "the space does not fit the session's features", "/space")
    if (tree.impute is not None) != (plan.policy.missing != "drop"):
        raise RuleViolation("task", "values are imputed as the definition says", "/space/impute")
    if (tree.limit is not None) != (plan.policy.scaling == "standard"):
        raise RuleViolation("task", "scaling: standard alone has a limit", "/space/limit")
    return Space(tree.center, tree.scale, tree.impute, tree.limit)


def _site_config(
    plan: Plan, space: Space | None, p: int, size_band: str | None, mask: NDArray[np.bool_] | None
) -> RunConfig:
    every = np.ones(len(plan.columns), dtype=np.bool_)
    return RunConfig(
        options=plan.options,
        features=plan.features,
        policy=plan.policy,
        roster=(),
        p=1 if _exact(plan) else max(p, plan.policy.min_group_size),
        size_band=size_band,
        space=space or Space.identity(len(plan.columns)),
        mask=every if mask is None else mask,
    )


# --- phases ---------------------------------------------------------------------------------------


def phase(plan_or_method: Plan | Method, name: str) -> Phase:
    """Return the phase called ``name``, the engine's own included; KeyError where there is none."""
    method = plan_or_method.method if isinstance(plan_or_method, Plan) else plan_or_method
    for own in (preparation.PHASE, _closing_phase(method)):
        if own.name == name:
            return own
    return method.phase(name)


def all_phases(method: Method) -> tuple[Phase, ...]:
    """Return every phase that a session of this method may have, in order."""
    return (preparation.PHASE, *method.phases, _closing_phase(method))


def possible_phases(plan: Plan) -> tuple[Phase, ...]:
    """Return the phases that a session of this definition can have, in order."""
    found = [preparation.PHASE] if preparation.needed(plan.policy) else []
    possible = plan.method.possible_phases
    names = None if possible is None else possible(plan.options)
    found += [each for each in plan.method.phases if names is None or each.name in names]
    if getattr(plan.options, "evaluate", False):
        found.append(_closing_phase(plan.method))
    return tuple(found)


def _closing_phase(method: Method) -> Phase:
    return sweep.EVALUATION if method.sweeping else evaluation.PHASE
