"""Weighted points for the tests of methods: made up, or of the protected table of some rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from fedclust import rounds
from fedclust.schema.encoding import Space
from fedclust.schema.errors import RuleViolation
from fedclust.schema.feature import Feature
from fedclust.schema.method import AnyMethod
from fedclust.schema.model import Memory
from fedclust.schema.run_config import Policy, RunConfig
from fedclust.schema.task import Points, SiteSide, SiteTask
from support.driven import data_of, plan_for


def config_of(
    options: Any,
    *,
    d: int = 2,
    p: int = 5,
    features: tuple[Feature, ...] | None = None,
    space: Space | None = None,
    size_band: str | None = None,
    **policy: Any,
) -> RunConfig:
    """Return what a step is given, over numeric features x0, x1, ... where none are named."""
    features = features or tuple(Feature(name=f"x{j}") for j in range(d))
    return RunConfig(
        options=options,
        features=features,
        policy=Policy(**{"min_group_size": p, "scaling": "none", **policy}),
        roster=("a", "b", "c"),
        p=p,
        size_band=size_band,
        space=space or Space.identity(len(features)),
    )


def answer_task(
    method: AnyMethod,
    task: SiteTask,
    points: Points,
    config: RunConfig,
    *,
    rng: np.random.Generator | None = None,
    memory: Memory | None = None,
) -> Any:
    """Return a site's answer to a task of a method, checked; ``memory`` gets what it remembers."""
    kept = {} if memory is None else memory
    site = SiteSide(points, config, rng or np.random.default_rng(0), kept)
    payload = rounds.phase(method, task.phase).local_step(task, site)
    if payload is not None:
        check_answer(method, task, payload, config)
    return payload


def check_answer(method: AnyMethod, task: SiteTask, payload: Any, config: RunConfig) -> None:
    """Check an answer to a task of a method; RuleViolation."""
    rounds.phase(method, task.phase).check(task, payload, config)


def violation(call: Callable[..., object], *given: Any, **options: Any) -> RuleViolation:
    """Return the broken rule with which a call ends."""
    with pytest.raises(RuleViolation) as caught:
        call(*given, **options)
    return caught.value


def weighted(X: ArrayLike, sizes: ArrayLike | int = 5) -> Points:
    """Return records (m, d) of so many persons each, that say nothing of their spread."""
    rows = np.asarray(X, dtype=np.float64)
    sizes = np.broadcast_to(np.asarray(sizes, dtype=np.int64), len(rows)).copy()
    return Points(rows, sizes, np.zeros(rows.shape[1]))


def of_rows(X: NDArray[np.float64], p: int = 5) -> Points:
    """Return the points of the protected table of rows (n, d) of numbers, a person each."""
    return data_of(plan_for(X.shape[1], {"n_clusters": 1}, {"min_group_size": p}), X)


def repeated(points: Points) -> NDArray[np.float64]:
    """Return the records of all persons (n, d): what weighted sums are the plain sums of."""
    return np.repeat(points.X, points.sizes, axis=0)
