"""What is checked at both ends: a task at the site, an answer before it leaves and on arrival."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import numpy as np

from fedclust.numeric.array_types import BoolArray, FloatArray
from fedclust.rounds import preparation
from fedclust.rounds.plan import Plan, max_rounds
from fedclust.rounds.stages import check_method_task, phase, staged_phases
from fedclust.schema.errors import RuleViolation, broken_task_rule
from fedclust.schema.model import Memory, Model, Tree
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import declared_space
from fedclust.schema.space import Space
from fedclust.schema.task import Phase, SiteTask

#: No number of an honest task is larger: sums of squares over the largest values that a site reads
#: (1e50) and the most persons (1e11). Its own square, added up over all persons, is still finite.
_LARGEST = 1e140
#: No site has more rows; and ten thousand of them still add up exactly as floats.
MAX_COUNT = 10**11


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
    phases = staged_phases(plan.method)
    place = [each.name for _, each in phases].index(task.phase)
    stage, asked = phases[place]
    if task.phase not in [each.name for each in stage.phases(plan)]:
        message = f"the definition provides for no phase {task.phase!r}"
        raise RuleViolation("task-phase", message, "/phase")
    closing = 1 + len(plan.method.phases)
    if before["phase"] >= (place if asked.once else closing):
        message = f"the phase {task.phase!r} is over in this session"
        raise RuleViolation("task-phase", message, "/phase")
    own = 0 < place < closing
    rounds = before["rounds"] + own
    if rounds > max_rounds(plan):
        message = f"the definition allows {max_rounds(plan)} rounds of the method"
        raise RuleViolation("task-rounds", message, "/phase")
    try:
        if own:
            check_method_task(plan.method, task, config, plan.seed, first=first)
        else:
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
    for pointer, numbers in _numbers(parts):
        if not (np.abs(numbers) <= _LARGEST).all():
            message = f"every number of a task is finite and at most {_LARGEST:.0e}"
            raise RuleViolation("task", message, pointer)


def _numbers(value: Tree, pointer: str = "") -> Iterator[tuple[str, FloatArray]]:
    """Yield all floats in a task, each array or number with its place."""
    if isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
        yield pointer, np.asarray(value)
    elif isinstance(value, tuple):
        for i, each in enumerate(value):
            yield from _numbers(each, f"{pointer}/{i}")
    elif isinstance(value, Model | Space | dict):
        for name, each in (value if isinstance(value, dict) else vars(value)).items():
            yield from _numbers(each, f"{pointer}/{name}")


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


# --- An answer ------------------------------------------------------------------------------------


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


def refuse_uncountable(payload: Model, at: str = "") -> None:
    """Raise RuleViolation where a count is more than any site can have."""
    for name, value in payload:
        pointer = f"{at}/{name}"
        if isinstance(value, Model):
            refuse_uncountable(value, pointer)
            continue
        if isinstance(value, tuple):
            for i, part in enumerate(value):
                if isinstance(part, Model):
                    refuse_uncountable(part, f"{pointer}/{i}")
            continue
        whole = isinstance(value, int)
        if isinstance(value, np.ndarray) and value.dtype.kind == "i" and value.size:
            whole, value = True, int(value.max())
        if whole and value > MAX_COUNT:
            raise RuleViolation("count-range", f"no count may exceed {MAX_COUNT}", pointer)
