"""Check an answer against its task: at the site before it leaves, at the coordinator again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.engine import evidence, outcomes, preparation, resampling
from fedclust.engine.plan import Plan, is_exact, sends_cells
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.run_config import RunConfig
from fedclust.schema.space import Space
from fedclust.schema.task import SiteTask

#: No site has more rows; and ten thousand of them still add up exactly as floats.
MAX_COUNT = 10**11


def check(
    plan: Plan,
    task: SiteTask,
    payload: Model | None,
    *,
    p: int,
    size_band: str | None,
    mask: NDArray[np.bool_] | None = None,
) -> None:
    """Check an answer against its task, at either end; RuleViolation. None always passes."""
    if payload is None:
        return
    _check_countable(payload)
    config = site_config(plan, task.space, p, size_band, mask)
    # Numbers near the largest float overflow in the checks' own arithmetic: not within bounds.
    with np.errstate(over="ignore", invalid="ignore"):
        if task.phase == preparation.NAME:
            preparation.check(payload, config)
        elif task.phase == evidence.NAME:
            evidence.check(task, payload, config, cells=sends_cells(plan))
        elif task.phase == resampling.NAME:
            resampling.check(task, payload, config)
        elif task.phase == outcomes.NAME:
            outcomes.check(task, payload, config)
        else:
            plan.method.check(task, payload, config)


def _check_countable(payload: Model, at: str = "") -> None:
    """Raise RuleViolation where a count is more than any site can have."""
    for name, value in payload:
        pointer = f"{at}/{name}"
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


def site_config(
    plan: Plan, space: Space | None, p: int, size_band: str | None, mask: NDArray[np.bool_] | None
) -> RunConfig:
    every = np.ones(len(plan.columns), dtype=np.bool_)
    return RunConfig(
        options=plan.options,
        features=plan.features,
        policy=plan.policy,
        roster=(),
        p=1 if is_exact(plan) else max(p, plan.policy.min_group_size),
        size_band=size_band,
        space=space or Space.identity(len(plan.columns)),
        mask=every if mask is None else mask,
        outcomes=plan.outcomes,
    )
