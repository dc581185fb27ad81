"""A site's side of the rounds: answer a task, label rows."""

import functools
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedclust.methods.common.assign import (
    keep_columns,
    label_by_centroid,
    label_by_probability,
    probabilities_of_rows,
)
from fedclust.methods.common.kmeans_rounds import check_centroids
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.canonical import coordinate_tolerance, tolerant_argmax
from fedclust.numeric.random import site_rng
from fedclust.numeric.threads import one_thread
from fedclust.rounds.plan import Plan
from fedclust.rounds.site_points import complete_points, scaled_points
from fedclust.rounds.stages import METHOD_STAGE, STAGES, all_phases, leaves, refuse_uncountable
from fedclust.rounds.sweep import memory_of, split_task
from fedclust.schema.encoding import Space
from fedclust.schema.errors import RuleViolation, broken_task_rule
from fedclust.schema.method import AnyMethod, Probabilities
from fedclust.schema.model import Memory, Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import declared_space
from fedclust.schema.task import CentroidTask, Count, Phase, Points, SiteSide, SiteTask

#: No number of an honest task is larger: sums of squares over the largest values that a site reads
#: (1e50) and the most persons (1e11). Its own square, added up over all persons, is still finite.
_LARGEST = 1e140


# What a step depends on; all but the first three are named.
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
    mask: BoolArray | None = None,
    count: Count | None = None,
) -> tuple[Model | None, Memory]:
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
    count : callable, optional
        Counts the outcomes of the site's rows by a model's clusters, with noise. Without it the
        site answers no question about outcomes.

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
    soft = plan.method.probabilities
    assign = None if soft is None else functools.partial(_assign, soft, memory)
    with one_thread(), np.errstate(over="ignore", invalid="ignore"):
        config = plan.config(p, task.space, mask, size_band=size_band, assign=assign)
        first = round_number == 1 + plan.is_prepared
        try:
            phase, memory = refuse_unconsented(plan, task, config, memory, first=first)
            kept = _usable_points(points, task.space, config)
            if not len(kept.X):
                return None, memory
            rng = site_rng(plan.seed, site, round_number)
            own = SiteSide(kept, config, rng, memory, site, count)
            payload = phase.local_step(task, own)
        except ValidationError as error:
            raise _payload_fault(plan.method, task.phase, error) from None
        if payload is not None and phase.checked_at_site:
            refuse_uncountable(payload)
            phase.check(task, payload, config)
        return payload, memory


def _assign(
    probabilities: Probabilities, memory: Memory, result: Result, X: FloatArray
) -> IntArray:
    """Return the most probable cluster (n,) of each point, for the closing rounds."""
    try:
        found = probabilities(result, X, memory_of(result, memory))
    except RuleViolation as broken:  # what describes the clusters came with the task
        raise RuleViolation("task", broken.message, f"/parameters{broken.pointer}") from None
    return tolerant_argmax(found).astype(np.int64)


def _payload_fault(method: AnyMethod, phase: str, error: ValidationError) -> RuleViolation:
    """Return what is wrong: the units, if numbers are not finite; otherwise the method."""
    faults = error.errors(include_url=False, include_input=False)
    if all(fault["type"] == "finite_number" for fault in faults):
        return RuleViolation(
            "overflow", "values are too large to be squared and added up: choose other units"
        )
    pointer = "".join(f"/{part}" for part in faults[0]["loc"])
    return RuleViolation(
        "payload",
        f"{method.name} {method.version} made an invalid payload in phase {phase!r}: "
        f"{pointer}: {faults[0]['msg']}",
        pointer,
    )


def _usable_points(points: Points, space: Space | None, config: RunConfig) -> Points:
    """Return the points that take part, scaled once there is a space and kept for later rounds."""
    if space is None:
        return complete_points(points, config)
    asked = [each is not None and each.tobytes() for each in (*vars(space).values(), config.mask)]
    known = points.derived.get("scaled")
    if known is None or known[0] != asked:
        scaled = scaled_points(complete_points(points, config), space, config)
        known = points.derived["scaled"] = asked, scaled
    return known[1]


# --- A task: a site answers what was consented to -------------------------------------------------


def refuse_unconsented(
    plan: Plan, task: SiteTask, config: RunConfig, memory: Memory, *, first: bool
) -> tuple[Phase, Memory]:
    """Return a task's phase and the memory of it; refuse what the definition does not provide for.

    A phase that comes once comes before all that are listed after it, and the method's rounds are
    no more than the definition allows. The rule of every violation is one of ``TASK_RULES``.
    ``first``: whether this is the method's first round.
    """
    _refuse_not_finite(task)
    before = memory.get("progress", {"phase": -1, "rounds": 0})
    phases = all_phases(plan.method)
    place = [each.name for each in phases].index(task.phase)
    asked = phases[place]
    stage = next((each for each in STAGES if asked in each.own_phases), METHOD_STAGE)
    if task.phase not in [each.name for each in stage.phases(plan)]:
        message = f"the definition provides for no phase {task.phase!r}"
        raise RuleViolation("task-phase", message, "/phase")
    closing = 1 + len(plan.method.phases)
    if before["phase"] >= (place if asked.once else closing):
        message = f"the phase {task.phase!r} is over in this session"
        raise RuleViolation("task-phase", message, "/phase")
    own = 0 < place < closing
    rounds = before["rounds"] + own
    if rounds > plan.max_rounds:
        message = f"the definition allows {plan.max_rounds} rounds of the method"
        raise RuleViolation("task-rounds", message, "/phase")
    try:
        if own:
            check_method_task(plan.method, asked, task, config, plan.seed, first=first)
        elif asked.check_task is not None:
            asked.check_task(task, config)
    except RuleViolation as broken:
        rule = broken_task_rule(broken) or "task"
        raise RuleViolation(rule, broken.message, broken.pointer) from None
    space = _refuse_other_space(plan, task.space, before.get("space"))
    progress = {"phase": max(place, before["phase"]), "rounds": rounds, "space": space}
    return asked, {**memory, "progress": progress}


def _refuse_not_finite(task: SiteTask) -> None:
    """Refuse NaN, infinite numbers, and numbers whose squares could not be added up."""
    parts = {"parameters": task.common, "site": task.site, "space": task.space}
    for pointer, value in leaves(parts):
        numbers = np.asarray(value)
        if numbers.dtype.kind == "f" and not (np.abs(numbers) <= _LARGEST).all():
            message = f"every number of a task is finite and at most {_LARGEST:.0e}"
            raise RuleViolation("task", message, pointer)


def _refuse_other_space(plan: Plan, space: Space | None, known: str | None) -> str | None:
    """Refuse another scaled space than the definition's or the session's; return its digest."""
    if space is None:
        return known
    parts = (space.center, space.scale, space.impute, space.limit)
    digest = sha256(b"".join(b"-" if each is None else each.tobytes() for each in parts))
    found = digest.hexdigest()
    other = known is not None and found != known
    if not plan.is_prepared:
        declared = declared_space(plan.columns, plan.policy)
        other |= not np.array_equal(space.center, declared.center)
        other |= not np.array_equal(space.scale, declared.scale)
    if other:
        raise RuleViolation("task-space", "the session has another scaled space", "/space")
    return found


def check_method_task(
    method: AnyMethod, asked: Phase, task: SiteTask, config: RunConfig, seed: int, *, first: bool
) -> None:
    """Refuse a task of the method's rounds that the definition does not provide for.

    The site computes the first task as the coordinator does. A phase that comes once is compared
    in every round: a site may have joined later.
    """
    if first or asked.once:
        # No part of a site's own is compared, so it does not matter which sites there are.
        _, expected = method.start(replace(config, roster=("",)), seed)
        if task.phase == expected.phase and _differs(task.common, expected.common):
            raise RuleViolation("task", "the definition asks for another first task", "/parameters")
    for own, one in split_task(task, config):
        if isinstance(one.common, CentroidTask):
            check_centroids(one.common, own)
        if asked.check_task is not None:
            asked.check_task(one, own)


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


# --- Rows -----------------------------------------------------------------------------------------


def label(
    plan_or_method: Plan | AnyMethod,
    result: Result,
    X: FloatArray,
    memory: Memory | None = None,
    site: str | None = None,
    mask: BoolArray | None = None,
    *,
    new: bool = False,
) -> IntArray:
    """Label rows that ``encoding.encode_features`` gave.

    Parameters
    ----------
    plan_or_method : Plan or AnyMethod
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
    own = {name: cells for name, cells in result.mapping.items() if name == site and not new}
    result = result.model_copy(update={"mapping": own})
    with one_thread():
        rows = np.asarray(X, dtype=np.float64)
        if mask is not None and rows.ndim == 2:
            rows = keep_columns(result, rows, mask)
        memory = memory_of(result, memory)
        if method.label is not None:
            return method.label(result, rows, memory)
        if method.probabilities is not None:
            return label_by_probability(method.probabilities, result, rows, memory)
        return label_by_centroid(result, rows)


def probabilities(
    plan: Plan, result: Result, X: FloatArray, memory: Memory | None = None
) -> FloatArray | None:
    """Return how probable each cluster is of rows; None where the method has no soft clusters.

    Parameters
    ----------
    plan : Plan
    result : Result
    X : (n, d) float64
        In own units.
    memory : dict, optional
        That of the site that asks, after the session's last round.

    Returns
    -------
    (n, K) float64 or None
        NaN where missing values forbid a label.
    """
    if plan.method.probabilities is None:
        return None
    with one_thread():
        memory = memory_of(result, memory)
        return probabilities_of_rows(plan.method.probabilities, result, X, memory)
