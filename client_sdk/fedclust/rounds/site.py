"""A site's side of the rounds: answer a task, label rows."""

from __future__ import annotations

import numpy as np
from pydantic import ValidationError

from fedclust.methods.common.assign import (
    keep_columns,
    label_by_centroid,
    label_by_probability,
    probabilities_of_rows,
)
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.numeric.random import site_rng
from fedclust.numeric.threads import one_thread
from fedclust.rounds import preparation
from fedclust.rounds.checks import refuse_unconsented, refuse_uncountable
from fedclust.rounds.plan import Plan
from fedclust.rounds.site_points import complete_points, scaled_points
from fedclust.rounds.sweep import memory_of
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import AnyMethod
from fedclust.schema.model import Memory, Model
from fedclust.schema.points import Points
from fedclust.schema.result import Result
from fedclust.schema.run_config import Assign, RunConfig
from fedclust.schema.space import Space
from fedclust.schema.task import Count, SiteSide, SiteTask


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
    with one_thread(), np.errstate(over="ignore", invalid="ignore"):
        config = plan.config(
            p,
            task.space,
            mask,
            size_band=size_band,
            assign=_assigner(plan.method, memory),
        )
        first = round_number == 1 + preparation.needed(plan.policy)
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


def _assigner(method: AnyMethod, memory: Memory) -> Assign | None:
    """Return what assigns points in the closing rounds; None: the nearest centroid does."""
    probabilities = method.probabilities
    if probabilities is None:
        return None

    def assign(result: Result, X: FloatArray) -> IntArray:
        try:
            found = probabilities(result, X, memory_of(result, memory))
        except RuleViolation as broken:  # what describes the clusters came with the task
            raise RuleViolation("task", broken.message, f"/parameters{broken.pointer}") from None
        return tolerant_argmax(found).astype(np.int64)

    return assign


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
