"""Run several numbers of clusters K in the rounds of one session.

Each K has its own state, task, payload and memory. It takes the steps of a session with that K
alone, with the same random numbers. A K that is done, or that fails, leaves the rounds; a failure
becomes a warning.
"""

import copy
import copyreg
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from pydantic import Field, SerializeAsAny, create_model

from fedclust.methods.common.finalize import result_of_several
from fedclust.methods.common.kmeans_rounds import collect_cells
from fedclust.numeric.array_types import IntArray
from fedclust.schema.errors import MethodFailure, RuleViolation, broken_at
from fedclust.schema.method import AnyMethod
from fedclust.schema.model import Memory, Model, Tree
from fedclust.schema.result import HistoryEntry, Result, SweepEntry
from fedclust.schema.run_config import MethodOptions, RunConfig
from fedclust.schema.scaling import centroid_rule
from fedclust.schema.task import (
    Contribution,
    Done,
    Next,
    Phase,
    SiteSide,
    SiteTask,
    Task,
    narrow,
    with_payload,
)

_Part = TypeVar("_Part")
_OWN = "sweep"


# --- what travels: a part for each K --------------------------------------------------------------


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
    asked: type[Model] = phase.task
    answered: type[Model] = phase.payload
    answer = _with_parts(SweepPayload, answered, answered | None)

    def local_step(task: SiteTask, site: SiteSide) -> Model | None:
        parts = []
        for config, one in split_task(task, site.config):
            # Each K draws what a session of its own would.
            every, name = site.memory.get(_OWN, {}), str(number_of(config))
            recalled, rng = dict(every.get(name, {})), copy.deepcopy(site.rng)
            own = replace(site, config=config, rng=rng, memory=recalled)
            parts.append(phase.local_step(one, own))
            site.memory[_OWN] = {**every, name: recalled}
        # Once a K is done, an answer about no K is one without parts. A round of empty answers
        # fails the session, and with it what others came to; so the Ks that are left, leave.
        if len(parts) == len(several_of(site.config)) and all(part is None for part in parts):
            return None
        return answer.model_validate({"parts": tuple(parts)})

    def check(task: SiteTask, payload: Model, config: RunConfig) -> None:
        parts = narrow(payload, SweepPayload).parts
        check_parts(split_task(task, config), parts, phase.check)

    return replace(
        phase,
        summary=f"{phase.summary} All of it once for each number of clusters that is compared.",
        task=_with_parts(SweepTask, asked, asked),
        payload=answer,
        local_step=local_step,
        check=check,
        discloses=tuple(
            line.model_copy(update={"shape": f"{line.shape}, for each K"})
            for line in phase.discloses
        ),
    )


@functools.cache
def _with_parts(base: type[Model], model: type[Model], part: Any) -> type[Model]:
    """Return ``base`` with the parts of one method's task or payload."""
    parts: Any = (tuple[part, ...], ...)
    name = f"Sweep{model.model_config.get('title') or model.__name__}"
    made = create_model(name, __base__=base, __module__=model.__module__, parts=parts)

    # pickle looks for a class by its name in its module, where this one is not.
    copyreg.pickle(made, lambda own: (_restore, (base, model, part, dict(own))))
    return made


def _restore(base: type[Model], model: type[Model], part: Any, values: dict[str, Any]) -> Any:
    """Return what was pickled."""
    return _with_parts(base, model, part).model_construct(**values)


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


def split_parts(
    ks: Sequence[int], parts: Sequence[_Part], config: RunConfig
) -> Iterator[tuple[RunConfig, _Part]]:
    """Yield each part of a task with its config; RuleViolation where these are not the session's.

    ``ks`` are the parts' numbers of clusters in a sweep; elsewhere there is one part, and no K.
    """
    several = isinstance(config.options.n_clusters, tuple)
    known = set(ks) <= set(several_of(config)) if several else not ks
    wanted = len(ks) if several else 1
    if list(ks) != sorted(set(ks)) or not known or not parts or len(parts) != wanted:
        raise RuleViolation(
            "task", "a task is about the session's numbers of clusters", "/parameters/n_clusters"
        )
    configs = [config_at(config, k) for k in ks] if several else [config]
    yield from zip(configs, parts, strict=True)


def parts_of(task: SiteTask[Any], config: RunConfig) -> list[tuple[RunConfig, Any]]:
    """Return each part of a task with its config; RuleViolation as of :func:`split_parts`."""
    ks = [int(k) for k in task.common.n_clusters]
    return list(split_parts(ks, task.common.parts, config))


def split_task(task: SiteTask, config: RunConfig) -> list[tuple[RunConfig, SiteTask]]:
    """Return the task of each K with its config; a task without parts is returned as it is."""
    if not isinstance(task.common, SweepTask):
        return [(config, task)]
    return [(own, replace(task, common=part)) for own, part in parts_of(task, config)]


def check_parts(
    asked: Sequence[tuple[RunConfig, Any]],
    parts: Sequence[Model | None],
    check: Callable[[Any, Any, RunConfig], None],
) -> None:
    """Check every part of an answer, at either end, by what was ``asked`` and its config."""
    if len(parts) != len(asked):
        raise RuleViolation("shape", "one part is needed for each number of clusters", "/parts")
    for i, ((own, about), part) in enumerate(zip(asked, parts, strict=True)):
        if part is not None:
            with broken_at(f"/parts/{i}", f"with {number_of(own)} clusters: " if own.sweep else ""):
                check(about, part, own)


def part_of(
    contributions: Sequence[Contribution], kind: Any, place: int
) -> list[Contribution[Any]]:
    """Return the sites' parts about the K at ``place``, of payloads of one kind."""
    return [
        each.part(lambda payload: payload.parts[place])
        for each in with_payload(contributions, kind)
    ]


def has_enough(contributions: Sequence[Contribution], config: RunConfig) -> bool:
    """Return whether enough sites answered for one K."""
    return sum(c.payload is not None for c in contributions) >= config.policy.min_sites


# --- what a result holds: a clustering for each K -------------------------------------------------


def clusterings(result: Result) -> tuple[Result, ...]:
    """Return the clustering of every K of a sweep, or the result itself."""
    return (result,) if result.sweep is None else tuple(each.result for each in result.sweep)


def with_clusterings(result: Result, changed: Sequence[Result]) -> Result:
    """Inverse of :func:`clusterings`."""
    if result.sweep is None:
        return changed[0]
    entries = tuple(
        SweepEntry.of(entry.n_clusters, own, entry.start_agreement)
        for entry, own in zip(result.sweep, changed, strict=True)
    )
    return result.model_copy(update={"sweep": entries})


def update_each(result: Result, change: Callable[[int, Result], dict[str, Any]]) -> Result:
    """Return a result with fields of each clustering changed, by its place and itself."""
    return with_clusterings(
        result,
        [
            own.model_copy(update=change(place, own))
            for place, own in enumerate(clusterings(result))
        ],
    )


def cluster_counts(result: Result) -> IntArray:
    """Return every K of a sweep, ascending; empty for another result."""
    return np.array([entry.n_clusters for entry in result.sweep or ()], dtype=np.int64)


def is_measured(result: Result) -> bool:
    """Return whether the closing evaluation measured any clustering of a result."""
    return any(each.quality is not None for each in clusterings(result))


# --- wrapping a method ----------------------------------------------------------------------------


class State(Model):
    """What a sweep keeps between rounds. Keys are K, as text.

    Attributes
    ----------
    phase : str
        What the open round asks, for every K that is not done.
    seed : int
    states : dict of K to tree
        The method's state, of those that are not done.
    results : dict of K to Result
        Raw, of those that are; with their histories, rounds counted from 1.
    history : dict of K to tuple of HistoryEntry
        Of those that are not done.
    start_agreement : dict of K to float or None
    warnings : tuple of str
        Of those that could not go on.
    """

    phase: str
    seed: int
    states: dict[str, dict[str, Tree]]
    results: dict[str, Result] = Field(default_factory=dict)
    history: dict[str, tuple[HistoryEntry, ...]] = Field(default_factory=dict)
    start_agreement: dict[str, float | None] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def open(self) -> tuple[int, ...]:
        """Every K that is not done, ascending."""
        return tuple(sorted(int(k) for k in self.states))


def for_options(method: AnyMethod, options: MethodOptions) -> AnyMethod:
    """Return what runs a method with these options: wrapped, where they name several K."""
    return for_several(method) if isinstance(options.n_clusters, tuple) else method


@functools.cache
def for_several(method: AnyMethod) -> AnyMethod:
    """Return a method whose ``n_clusters`` are several: itself if one answer serves all."""
    if method.every_k:
        return method
    # Longer than a screen because it holds one small function for each of the method's.

    def check_config(config: RunConfig) -> None:
        for k in several_of(config):
            with broken_at(where=f"with {k} clusters: "):
                method.check_config(config_at(config, k))

    def start(config: RunConfig, seed: int) -> tuple[Model, Task]:
        begun = {k: method.start(config_at(config, k), seed) for k in several_of(config)}
        tasks = {k: task for k, (_, task) in begun.items()}
        states = {str(k): state.model_dump() for k, (state, _) in begun.items()}
        return State(phase=phase_of(tasks), seed=seed, states=states), join_tasks(tasks)

    def aggregate(
        state: State, contributions: Sequence[Contribution], config: RunConfig
    ) -> Next | Done:
        if not state.start_agreement:
            found = _start_agreements(state, contributions, config)
            state = state.model_copy(update={"start_agreement": found})
        return _aggregate(method, state, contributions, config)

    def finish(state: State, config: RunConfig) -> Result:
        results, warnings = dict(state.results), state.warnings
        failure: MethodFailure | None = None
        for k in state.open:
            own = method.state.model_validate(state.states[str(k)])
            try:
                raw = method.finish(own, config_at(config, k))
            except MethodFailure as error:
                failure, warnings = error, (*warnings, _left(k, error))
                continue
            entries = state.history.get(str(k), ())
            update = {"history": entries, "stopped_because": "max_rounds"}
            results[str(k)] = raw.model_copy(update=update)
        if not results and failure is not None:
            raise failure
        return _raw(state.model_copy(update={"results": results, "warnings": warnings}))

    return replace(
        method,
        state=State,
        phases=tuple(swept_phase(phase) for phase in method.phases),
        check_config=check_config,
        start=start,
        aggregate=aggregate,
        finish=finish,
    )


def memory_of(result: Result, memory: Memory | None) -> Memory | None:
    """Return what the method itself would remember of a result's number of clusters."""
    own = (memory or {}).get(_OWN, {}).get(str(result.n_clusters), {})
    return None if memory is None else {**memory, **own}


# --- at the coordinator ---------------------------------------------------------------------------


def _aggregate(
    method: AnyMethod, state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    """Aggregate a round for every K that is not done."""
    states: dict[str, dict[str, Tree]] = {}
    results, history = dict(state.results), dict(state.history)
    warnings, tasks, metrics = state.warnings, dict[int, Task](), dict[str, float]()
    failure: MethodFailure | None = None
    for place, k in enumerate(state.open):
        name, own = str(k), config_at(config, k)
        sent = part_of(contributions, SweepPayload, place)
        try:
            if not has_enough(sent, config):
                raise MethodFailure(
                    "too_few_contributors",
                    "fewer sites than needed may send anything for it: invite more or larger "
                    "sites, ask for fewer clusters, or lower min_group_size",
                )
            outcome = method.aggregate(method.state.model_validate(state.states[name]), sent, own)
        except MethodFailure as error:
            failure, warnings = error, (*warnings, _left(k, error))
            continue
        entries, n_sites = history.get(name, ()), sum(c.payload is not None for c in sent)
        entry = HistoryEntry.of(len(entries) + 1, state.phase, n_sites, outcome.metrics)
        history[name] = (*entries, entry)
        metrics |= {f"{what}_{k}": value for what, value in outcome.metrics.items()}
        if isinstance(outcome, Done):
            results[name] = outcome.result.model_copy(update={"history": history[name]})
        else:
            states[name], tasks[k] = outcome.state.model_dump(), outcome.task
    if not tasks and not results and failure is not None:
        raise failure
    following = state.model_copy(
        update={"states": states, "results": results, "history": history, "warnings": warnings}
    )
    if not tasks:
        return Done(_raw(following), metrics)
    following = following.model_copy(update={"phase": phase_of(tasks)})
    return Next(following, join_tasks(tasks), metrics)


def _left(n_clusters: int, failure: MethodFailure) -> str:
    return f"K = {n_clusters} came to no clustering: {failure.message}"


def _start_agreements(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> dict[str, float | None]:
    """Return how far starts agree, for every K, from the first answers for the largest."""
    # Imported here: a site does not load what only a coordinator computes.
    from fedclust.rounds.model_selection import start_agreement

    largest = part_of(contributions, SweepPayload, len(state.open) - 1)
    every: dict[str, float | None] = dict.fromkeys(map(str, state.open))
    # Nothing is released about fewer sites.
    if not has_enough(largest, config):
        return every
    means, counts = collect_cells(largest)
    persons, rule, seed = counts.astype(np.int64), centroid_rule(config), state.seed
    return {name: start_agreement(means, persons, int(name), seed, rule) for name in every}


def _raw(state: State) -> Result:
    """Return the outcome of every K before any is measured."""
    results = {int(k): result for k, result in state.results.items()}
    agreements = {int(k): found for k, found in state.start_agreement.items()}
    raw = result_of_several(results, agreements)
    return raw.model_copy(update={"warnings": state.warnings})
