"""Refuse tasks that the definition does not provide for: a site answers what was consented to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.engine import evidence, outcomes, preparation, resampling
from fedclust.engine.plan import Plan, all_phases, max_rounds, possible_phases
from fedclust.engine.sweep_messages import split_task
from fedclust.methods.common.task_checks import check_centroids
from fedclust.numeric.canonical import coordinate_tolerance
from fedclust.schema.errors import RuleViolation, broken_task_rule
from fedclust.schema.method import AnyMethod
from fedclust.schema.model import Memory, Model, Tree
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import declared_space
from fedclust.schema.space import Space
from fedclust.schema.task import CentroidTask, SiteTask

#: No number of an honest task is larger: sums of squares over the largest values that a site reads
#: (1e50) and the most persons (1e11). Its own square, added up over all persons, is still finite.
_LARGEST = 1e140


def refuse_unconsented(plan: Plan, task: SiteTask, config: RunConfig, memory: Memory) -> Memory:
    """Refuse a task that the definition does not provide for; remember how far the session is.

    A phase that comes once comes before all that are listed after it, and the method's rounds are
    no more than the definition allows. The rule of every violation is one of ``TASK_RULES``.
    """
    try:
        return _checked(plan, task, config, memory)
    except RuleViolation as broken:
        rule = broken_task_rule(broken) or "task"
        raise RuleViolation(rule, broken.message, broken.pointer) from None


def _checked(plan: Plan, task: SiteTask, config: RunConfig, memory: Memory) -> Memory:
    _refuse_not_finite(task)
    before = memory.get("progress", {"phase": -1, "rounds": 0})
    if task.phase not in {each.name for each in possible_phases(plan)}:
        message = f"the definition provides for no phase {task.phase!r}"
        raise RuleViolation("task-phase", message, "/phase")
    phases = all_phases(plan.method)
    place = next(i for i, each in enumerate(phases) if each.name == task.phase)
    closing = 1 + len(plan.method.phases)
    of_method = 0 < place < closing
    if before["phase"] >= (place if phases[place].once else closing):
        message = f"the phase {task.phase!r} is over in this session"
        raise RuleViolation("task-phase", message, "/phase")
    rounds = before["rounds"] + of_method
    if rounds > max_rounds(plan):
        message = f"the definition allows {max_rounds(plan)} rounds of the method"
        raise RuleViolation("task-rounds", message, "/phase")
    if of_method:
        check_method_task(plan.method, task, config, plan.seed)
    _check_closing_task(plan, task, config)
    space = _refuse_other_space(plan, task.space, before.get("space"))
    progress = {"phase": max(place, before["phase"]), "rounds": rounds, "space": space}
    return {**memory, "progress": progress}


def _refuse_not_finite(task: SiteTask) -> None:
    """Refuse NaN, infinite numbers, and numbers whose squares could not be added up."""
    parts = {"parameters": task.common, "site": task.site, "space": task.space}
    for pointer, numbers in _numbers(parts):
        if not (np.abs(numbers) <= _LARGEST).all():
            message = f"every number of a task is finite and at most {_LARGEST:.0e}"
            raise RuleViolation("task", message, pointer)


def _numbers(value: Tree, pointer: str = "") -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield all floats in a task, each array or number with its place."""
    if isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
        yield pointer, np.asarray(value)
    elif isinstance(value, tuple):
        for i, each in enumerate(value):
            yield from _numbers(each, f"{pointer}/{i}")
    elif isinstance(value, Model | Space | dict):
        for name, each in (value if isinstance(value, dict) else vars(value)).items():
            yield from _numbers(each, f"{pointer}/{name}")


def check_method_task(method: AnyMethod, task: SiteTask, config: RunConfig, seed: int) -> None:
    """Refuse a task of the method's rounds that the definition does not provide for.

    The site computes the first task as the coordinator does. A phase that comes once is compared
    in every round: a site may have joined later.
    """
    # No part of a site's own is compared, so it does not matter which sites there are.
    _, expected = method.start(replace(config, roster=("",)), seed)
    compared = config.first or method.phase(task.phase).once
    if compared and task.phase == expected.phase and _differs(task.common, expected.common):
        raise RuleViolation("task", "the definition asks for another first task", "/parameters")
    for one, own in split_task(task, config):
        if isinstance(one.common, CentroidTask):
            check_centroids(one.common, own)
        method.check_task(one, own)


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


def _refuse_other_space(plan: Plan, space: Space | None, known: str | None) -> str | None:
    """Refuse another scaled space than the definition's or the session's; return its digest."""
    if space is None:
        return known
    parts = (space.center, space.scale, space.impute, space.limit)
    digest = sha256(b"".join(b"-" if each is None else each.tobytes() for each in parts))
    found = digest.hexdigest()
    other = known is not None and found != known
    if not preparation.needed(plan.policy):
        declared = declared_space(plan.columns, plan.policy)
        other |= not np.array_equal(space.center, declared.center)
        other |= not np.array_equal(space.scale, declared.scale)
    if other:
        raise RuleViolation("task-space", "the session has another scaled space", "/space")
    return found


def _check_closing_task(plan: Plan, task: SiteTask, config: RunConfig) -> None:
    prototypes = plan.method.by_prototypes
    if task.phase == evidence.NAME:
        evidence.check_task(task, config, prototypes=prototypes)
    elif task.phase == resampling.NAME:
        resampling.check_task(task, config, prototypes=prototypes)
    elif task.phase == outcomes.NAME:
        outcomes.check_task(task, config, plan.outcomes_k, prototypes=prototypes)
