"""What travels in a sweep: a part for each number of clusters, and how they are taken apart."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import SerializeAsAny, create_model

from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import (
    Contribution,
    Disclosure,
    Phase,
    SiteTask,
    Task,
    narrow,
    with_payload,
)


class SweepTask(Model):
    """A task of each of several K.

    Attributes
    ----------
    n_clusters : tuple of int
        The numbers of clusters that are not done, ascending.
    parts : tuple
        The method's task for each.
    """

    n_clusters: tuple[int, ...]
    parts: tuple[SerializeAsAny[Model], ...]


class SweepPayload(Model):
    """A site's answer for each of several K.

    Attributes
    ----------
    parts : tuple
        The method's answer for each, in the task's order; None where nothing may be sent for it.
    """

    parts: tuple[SerializeAsAny[Model] | None, ...]


def swept_phase(phase: Phase) -> Phase:
    """Return a phase whose task and payload hold a part for every K."""
    return replace(
        phase,
        summary=f"{phase.summary} All of it once for each number of clusters that is compared.",
        task=_sweep_task(phase.task),
        payload=_sweep_payload(phase.payload),
        discloses=tuple(_line(line) for line in phase.discloses),
    )


@functools.cache
def _sweep_task(task: Any) -> type[Model]:
    parts: Any = (tuple[task, ...], ...)
    return create_model(
        _swept_name(task), __base__=SweepTask, __module__=task.__module__, parts=parts
    )


@functools.cache
def _sweep_payload(payload: Any) -> type[Model]:
    parts: Any = (tuple[payload | None, ...], ...)
    return create_model(
        _swept_name(payload), __base__=SweepPayload, __module__=payload.__module__, parts=parts
    )


def _swept_name(model: type[Model]) -> str:
    return f"Sweep{model.model_config.get('title') or model.__name__}"


def _line(line: Disclosure) -> Disclosure:
    return line.model_copy(update={"shape": f"{line.shape}, for each K"})


def several_of(config: RunConfig) -> tuple[int, ...]:
    """Return every K of a sweep."""
    several = config.options.n_clusters
    if not isinstance(several, tuple):
        raise ValueError("this is no sweep's definition")
    return several


def number_of(config: RunConfig) -> int:
    """Return the K of one part of a sweep."""
    return narrow(config.options.n_clusters, int)


def config_at(config: RunConfig, n_clusters: int) -> RunConfig:
    """Return the config of one K of a sweep."""
    options = config.options.model_copy(update={"n_clusters": n_clusters})
    return replace(config, options=options, sweep=several_of(config))


def phase_of(tasks: Mapping[int, Task]) -> str:
    """Return the phase that every K is in."""
    (name,) = {task.phase for task in tasks.values()}
    return name


def join_tasks(tasks: Mapping[int, Task]) -> Task:
    """Return one task of several K; what each site is asked besides is the same for all."""
    first = next(iter(tasks.values()))
    common = SweepTask(n_clusters=tuple(tasks), parts=tuple(task.common for task in tasks.values()))
    return replace(first, common=common)


def split_task(task: SiteTask, config: RunConfig) -> list[tuple[SiteTask, RunConfig]]:
    """Return the task of each K with its config; of one K the task itself."""
    if not isinstance(config.options.n_clusters, tuple):
        return [(task, config)]
    common, asked = narrow(task.common, SweepTask), several_of(config)
    known = common.n_clusters and set(common.n_clusters) <= set(asked)
    ordered = common.n_clusters == tuple(sorted(set(common.n_clusters)))
    if not known or not ordered or len(common.parts) != len(common.n_clusters):
        raise RuleViolation(
            "task", "a sweep's task is about its numbers of clusters", "/parameters/n_clusters"
        )
    return [
        (replace(task, common=one), config_at(config, k))
        for k, one in zip(common.n_clusters, common.parts, strict=True)
    ]


def check_parts(
    task: SiteTask,
    payload: Model,
    config: RunConfig,
    check: Callable[[SiteTask, Model, RunConfig], None],
) -> None:
    """Check every part of a payload with ``check``, at either end."""
    tasks, parts = split_task(task, config), narrow(payload, SweepPayload).parts
    if len(parts) != len(tasks):
        raise RuleViolation("shape", "one part is needed for each number of clusters", "/parts")
    for i, ((one, own), part) in enumerate(zip(tasks, parts, strict=True)):
        if part is None:
            continue
        try:
            check(one, part, own)
        except RuleViolation as broken:
            raise RuleViolation(
                broken.rule,
                f"with {number_of(own)} clusters: {broken.message}",
                f"/parts/{i}{broken.pointer}",
            ) from None


def part_of(contributions: Sequence[Contribution], place: int) -> list[Contribution]:
    """Return the sites' answers for the K at ``place`` of the task."""
    return [
        Contribution(c.site, None if c.payload is None else c.payload.parts[place], c.p)
        for c in with_payload(contributions, SweepPayload)
    ]


def has_enough(contributions: Sequence[Contribution], config: RunConfig) -> bool:
    """Return whether enough sites answered for one K."""
    return sum(c.payload is not None for c in contributions) >= config.policy.min_sites
