"""No task with a number that is not finite, or too large to be squared, reaches a method."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from fedclust import rounds
from fedclust.local.simulate import simulate
from fedclust.schema.errors import RuleViolation, broken_task_rule
from fedclust.schema.task import Task
from support.method_variants import ALL, IDS

BAD = cycle((np.nan, np.inf, -np.inf, 1e300, -1e141))


def _with_bad_numbers(tree: Any) -> Iterator[Any]:
    """Yield a task as often as it has arrays and numbers, one of them replaced by a bad one."""
    if isinstance(tree, float) or (isinstance(tree, np.ndarray) and tree.dtype.kind == "f"):
        if np.size(tree):
            changed = np.array(tree)
            changed.flat[-1] = next(BAD)
            yield changed if isinstance(tree, np.ndarray) else float(changed)
    elif isinstance(tree, dict):
        for name, each in tree.items():
            for changed in _with_bad_numbers(each):
                yield tree | {name: changed}
    elif isinstance(tree, tuple | list):
        for i, each in enumerate(tree):
            for changed in _with_bad_numbers(each):
                yield (*tree[:i], changed, *tree[i + 1 :])


@pytest.mark.parametrize(("method", "options"), ALL, ids=IDS)
def test_numbers_that_cannot_be_squared_are_refused(
    method: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, tuple[Any, ...]] = {}
    answer = rounds.local_step

    def remember(plan: Any, task: Any, points: Any, **step: Any) -> Any:
        asked.setdefault(task.phase, (plan, task, points, step))
        return answer(plan, task, points, **step)

    monkeypatch.setattr(rounds, "local_step", remember)
    rng = np.random.default_rng(0)
    sites = {name: rng.normal(size=(40, 2)) + 6.0 * (rng.random((40, 1)) < 0.5) for name in "abc"}
    features = [{"name": name, "lower": -9.0, "upper": 15.0} for name in ("x", "y")]
    simulate(method, sites, config={"n_clusters": 2, **options}, features=features)

    for plan, task, points, step in asked.values():
        parts = {} if task.site is None else {"a": task.site}
        whole = Task(task.phase, task.common, per_site=parts, space=task.space)
        written = rounds.write_task(plan, "session", step["round_number"], whole, "a")
        for common, part in _with_bad_numbers(written):
            with pytest.raises(RuleViolation) as refused:
                answer(plan, rounds.read_task(plan, common, part), points, **step)
            assert broken_task_rule(refused.value) is not None
