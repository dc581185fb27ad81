"""No task reaches a method that the definition does not provide for, or that nobody can compute."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
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


@cache
def _asked(at: int) -> list[tuple[Any, ...]]:
    """Return the first task of each phase of a session, with all that a site's step is given."""
    method, options = ALL[at]
    asked: dict[str, tuple[Any, ...]] = {}
    answer = rounds.local_step

    def remember(plan: Any, task: Any, points: Any, **step: Any) -> Any:
        asked.setdefault(task.phase, (plan, task, points, step))
        return answer(plan, task, points, **step)

    rng = np.random.default_rng(0)
    sites = {name: rng.normal(size=(40, 2)) + 6.0 * (rng.random((40, 1)) < 0.5) for name in "abc"}
    features = [{"name": name, "lower": -9.0, "upper": 15.0} for name in ("x", "y")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rounds, "local_step", remember)
        simulate(method, sites, config={"n_clusters": 2, **options}, features=features)
    return list(asked.values())


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


@pytest.mark.parametrize("at", range(len(ALL)), ids=IDS)
def test_numbers_that_cannot_be_squared_are_refused(at: int) -> None:
    for plan, task, points, step in _asked(at):
        parts = {} if task.site is None else {"a": task.site}
        whole = Task(task.phase, task.common, per_site=parts, space=task.space)
        written = rounds.write_task(plan, "session", step["round_number"], whole, "a")
        for common, part in _with_bad_numbers(written):
            with pytest.raises(RuleViolation) as refused:
                rounds.local_step(plan, rounds.read_task(plan, common, part), points, **step)
            assert broken_task_rule(refused.value) is not None


def _beyond(common: Any) -> Iterator[dict[str, Any]]:
    """Yield changes of a task: an option is another one, or all arrays are longer along an axis."""
    fields = {name: getattr(common, name) for name in type(common).model_fields}
    for name, value in fields.items():
        match value:
            case bool():
                yield {name: not value}
            case int():
                yield {name: value + 1}
            case str():
                others = type(common).model_fields[name].annotation.__args__
                yield from ({name: other} for other in others if other != value)
    arrays = {name: value for name, value in fields.items() if np.ndim(value) > 1}
    for axis in range(max(map(np.ndim, arrays.values()), default=0)):
        yield {
            name: np.repeat(value, 100, axis) if axis < np.ndim(value) else value
            for name, value in arrays.items()
        }


@pytest.mark.parametrize("at", range(len(ALL)), ids=IDS)
def test_more_than_the_definition_says_is_refused(at: int) -> None:
    for plan, task, points, step in _asked(at):
        for change in _beyond(task.common):
            wrong = replace(task, common=task.common.model_copy(update=change))
            with pytest.raises(RuleViolation) as refused:
                rounds.local_step(plan, wrong, points, **step)
            assert broken_task_rule(refused.value) is not None, change
