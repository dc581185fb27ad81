"""Several numbers of clusters in the rounds of one session: choosing K.

A method that sweeps is wrapped, not changed: every K has a state at the coordinator, a task in
each round, a payload in each answer and a memory at each site of its own, and its steps are those
that a session with that K alone would take, from the same random numbers. All K share the rounds.
A K that is done leaves the rounds; one that cannot go on leaves with a warning. The closing
evaluation measures every K in one round.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializeAsAny, create_model

from fedclust.engine import evaluation, preparation
from fedclust.engine.evaluation import Outcome
from fedclust.engine.model_selection import recommend, stability
from fedclust.methods.common.finalize import complete_result as complete_one
from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.method import AnyMethod, LocalAnswer
from fedclust.schema.model import Memory, Model, Tree
from fedclust.schema.options import MethodOptions
from fedclust.schema.points import Points
from fedclust.schema.result import HistoryEntry, Result, SweepEntry
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import (
    Contribution,
    Disclosure,
    Done,
    Next,
    Phase,
    SiteTask,
    Task,
    narrow,
    payloads_of,
    with_payload,
)

_OWN = "sweep"
_UNMEASURED = (
    "sizes and quality are not known: fewer sites than min_sites could answer the closing "
    "evaluation for this number of clusters"
)

# --- Payloads -------------------------------------------------------------------------------------


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


def _phase(phase: Phase) -> Phase:
    """Return a phase whose task and payload hold a part for every K."""
    return replace(
        phase,
        summary=f"{phase.summary} All of it once for each number of clusters that is compared.",
        task=_tasks(phase.task),
        payload=_payloads(phase.payload),
        discloses=tuple(_line(line) for line in phase.discloses),
    )


@functools.cache
def _tasks(task: Any) -> type[Model]:
    parts: Any = (tuple[task, ...], ...)
    return create_model(
        _swept_name(task), __base__=SweepTask, __module__=task.__module__, parts=parts
    )


@functools.cache
def _payloads(payload: Any) -> type[Model]:
    parts: Any = (tuple[payload | None, ...], ...)
    return create_model(
        _swept_name(payload), __base__=SweepPayload, __module__=payload.__module__, parts=parts
    )


def _swept_name(model: type[Model]) -> str:
    return f"Sweep{model.model_config.get('title') or model.__name__}"


def _line(line: Disclosure) -> Disclosure:
    return line.model_copy(update={"shape": f"{line.shape}, for each K"})


#: The closing round of a sweep.
EVALUATION = _phase(evaluation.PHASE)


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
    stability : dict of K to float or None
    warnings : tuple of str
        Of those that could not go on.
    """

    phase: str
    seed: int
    states: dict[str, dict[str, Tree]]
    results: dict[str, Result] = Field(default_factory=dict)
    history: dict[str, tuple[HistoryEntry, ...]] = Field(default_factory=dict)
    stability: dict[str, float | None] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def open(self) -> tuple[int, ...]:
        """Every K that is not done, ascending."""
        return tuple(sorted(int(k) for k in self.states))


def for_options(method: AnyMethod, options: MethodOptions) -> AnyMethod:
    """Return what runs a method with these options: wrapped, where they name several K."""
    return swept(method) if isinstance(options.n_clusters, tuple) else method


def _ks(config: RunConfig) -> tuple[int, ...]:
    """Return every K of a sweep."""
    several = config.options.n_clusters
    if not isinstance(several, tuple):
        raise ValueError("this is no sweep's definition")
    return several


def _k(config: RunConfig) -> int:
    """Return the K of one part of a sweep."""
    return narrow(config.options.n_clusters, int)


def _at(config: RunConfig, n_clusters: int) -> RunConfig:
    """Return the config of one K of a sweep."""
    options = config.options.model_copy(update={"n_clusters": n_clusters})
    return replace(config, options=options, sweep=_ks(config))


@functools.cache
def swept(method: AnyMethod) -> AnyMethod:
    """Return a method whose ``n_clusters`` are several."""

    def check_config(config: RunConfig) -> None:
        if not config.options.evaluated:
            raise RuleViolation(
                "sweep", "a sweep is judged by its closing evaluation: leave it on", "/evaluate"
            )
        for k in _ks(config):
            try:
                method.check_config(_at(config, k))
            except RuleViolation as broken:
                message = f"with {k} clusters: {broken.message}"
                raise RuleViolation(broken.rule, message, broken.pointer) from None

    def start(config: RunConfig, seed: int) -> tuple[Model, Task]:
        begun = {k: method.start(_at(config, k), seed) for k in _ks(config)}
        tasks = {k: task for k, (_, task) in begun.items()}
        states = {str(k): _tree(state) for k, (state, _) in begun.items()}
        return State(phase=_name(tasks), seed=seed, states=states), _together(tasks)

    def local_step(
        task: SiteTask, points: Points, config: RunConfig, rng: np.random.Generator, memory: Memory
    ) -> LocalAnswer:
        parts = []
        for one, own in _site_tasks(task, config):
            # Each K draws what a session of its own would.
            payload, kept = method.local_step(
                one, points, own, copy.deepcopy(rng), _recalled(memory, own)
            )
            memory = _remembered(memory, own, kept)
            parts.append(payload)
        first = len(parts) == len(_ks(config))
        return _answer(swept(method).phase(task.phase), parts, empty=first), memory

    def check(task: SiteTask, payload: Model, config: RunConfig) -> None:
        _check(task, payload, config, method.check)

    def aggregate(
        state: State, contributions: Sequence[Contribution], config: RunConfig
    ) -> Next | Done:
        if not state.stability:
            found = _stabilities(state, contributions, config)
            state = state.model_copy(update={"stability": found})
        return _aggregate(method, state, contributions, config)

    def finish(state: State, config: RunConfig) -> Result:
        results, warnings = dict(state.results), state.warnings
        failure: MethodFailure | None = None
        for k in state.open:
            own = method.state.model_validate(state.states[str(k)])
            try:
                raw = method.finish(own, _at(config, k))
            except MethodFailure as error:
                failure, warnings = error, (*warnings, _left(k, error))
                continue
            entries = state.history.get(str(k), ())
            update = {"history": entries, "stopped_because": "max_rounds"}
            results[str(k)] = raw.model_copy(update=update)
        if not results and failure is not None:
            raise failure
        return _raw(state.model_copy(update={"results": results, "warnings": warnings}))

    def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
        return method.label(result, X, None if memory is None else _memory_of(result, memory))

    def check_task(task: SiteTask, config: RunConfig) -> None:
        for one, own in _site_tasks(task, config):
            method.check_task(one, own)

    return replace(
        method,
        state=State,
        phases=tuple(_phase(phase) for phase in method.phases),
        check_config=check_config,
        start=start,
        local_step=local_step,
        check=check,
        aggregate=aggregate,
        finish=finish,
        label=label,
        check_task=check_task,
        sweeping=True,
    )


def _memory_of(result: Result, memory: Memory) -> Memory:
    """Return what the method itself would remember of a result's number of clusters."""
    return {**memory, **memory.get(_OWN, {}).get(str(result.n_clusters), {})}


def _tree(state: Model) -> dict[str, Tree]:
    return dict(state.model_dump(mode="python"))


def _name(tasks: Mapping[int, Task]) -> str:
    """Return the phase that every K is in."""
    (name,) = {task.phase for task in tasks.values()}
    return name


def _together(tasks: Mapping[int, Task]) -> Task:
    """Return one task of several K; what each site is asked besides is the same for all."""
    first = next(iter(tasks.values()))
    common = SweepTask(n_clusters=tuple(tasks), parts=tuple(task.common for task in tasks.values()))
    return replace(first, common=common)


# --- at a site ------------------------------------------------------------------------------------


def _site_tasks(task: SiteTask, config: RunConfig) -> list[tuple[SiteTask, RunConfig]]:
    """Return the task of each K with its config."""
    common, asked = narrow(task.common, SweepTask), _ks(config)
    known = common.n_clusters and set(common.n_clusters) <= set(asked)
    ordered = common.n_clusters == tuple(sorted(set(common.n_clusters)))
    if not known or not ordered or len(common.parts) != len(common.n_clusters):
        raise RuleViolation(
            "task", "a sweep's task is about its numbers of clusters", "/parameters/n_clusters"
        )
    return [
        (replace(task, common=one), _at(config, k))
        for k, one in zip(common.n_clusters, common.parts, strict=True)
    ]


def _recalled(memory: Memory, config: RunConfig) -> Memory:
    """Return the memory of one K."""
    return dict(memory.get(_OWN, {}).get(str(_k(config)), {}))


def _remembered(memory: Memory, config: RunConfig, kept: Memory) -> Memory:
    """Put what one K keeps back into the memory of all."""
    return {**memory, _OWN: {**memory.get(_OWN, {}), str(_k(config)): kept}}


def _answer(phase: Phase, parts: Sequence[Model | None], *, empty: bool) -> Model | None:
    """Return a site's answer; with ``empty``, None where nothing may be sent for any K.

    Once a K is done that answer is one without parts. A round of empty answers fails the session,
    and with it what others came to; so the Ks that are left, leave.
    """
    if empty and all(part is None for part in parts):
        return None
    return phase.payload.model_validate({"parts": tuple(parts)})


def _check(
    task: SiteTask,
    payload: Model,
    config: RunConfig,
    check: Callable[[SiteTask, Model, RunConfig], None],
) -> None:
    """Check every part at either end."""
    tasks, parts = _site_tasks(task, config), narrow(payload, SweepPayload).parts
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
                f"with {_k(own)} clusters: {broken.message}",
                f"/parts/{i}{broken.pointer}",
            ) from None


# --- at the coordinator ---------------------------------------------------------------------------


def _part(contributions: Sequence[Contribution], place: int) -> list[Contribution]:
    """Return what the sites answered for one K."""
    return [
        Contribution(c.site, None if c.payload is None else c.payload.parts[place], c.p)
        for c in with_payload(contributions, SweepPayload)
    ]


def _enough(contributions: Sequence[Contribution], config: RunConfig) -> bool:
    """Whether as many sites told something of one K as a round and a result need."""
    return sum(c.payload is not None for c in contributions) >= config.policy.min_sites


def _too_few() -> MethodFailure:
    return MethodFailure(
        "too_few_contributors",
        "fewer sites than min_sites may send anything for it: invite more or larger sites, ask "
        "for fewer clusters, or lower min_group_size",
    )


def _aggregate(
    method: AnyMethod, state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    """Close a round for every K that is not done."""
    states: dict[str, dict[str, Tree]] = {}
    results, history = dict(state.results), dict(state.history)
    warnings, tasks, metrics = state.warnings, dict[int, Task](), dict[str, float]()
    failure: MethodFailure | None = None
    for place, k in enumerate(state.open):
        name, own = str(k), _at(config, k)
        sent = _part(contributions, place)
        try:
            if not _enough(sent, config):
                raise _too_few()
            outcome = method.aggregate(method.state.model_validate(state.states[name]), sent, own)
        except MethodFailure as error:
            failure, warnings = error, (*warnings, _left(k, error))
            continue
        entries = history.get(name, ())
        entry = HistoryEntry(
            round=len(entries) + 1,
            phase=state.phase,
            n_sites=sum(c.payload is not None for c in sent),
            inertia=outcome.metrics.get("inertia"),
            centroid_shift=outcome.metrics.get("centroid_shift"),
        )
        history[name] = (*entries, entry)
        metrics |= {f"{what}_{k}": value for what, value in outcome.metrics.items()}
        if isinstance(outcome, Done):
            results[name] = outcome.result.model_copy(update={"history": history[name]})
        else:
            states[name], tasks[k] = _tree(outcome.state), outcome.task
    if not tasks and not results and failure is not None:
        raise failure
    following = state.model_copy(
        update={"states": states, "results": results, "history": history, "warnings": warnings}
    )
    if not tasks:
        return Done(_raw(following), metrics)
    following = following.model_copy(update={"phase": _name(tasks)})
    return Next(following, _together(tasks), metrics)


def _left(n_clusters: int, failure: MethodFailure) -> str:
    return f"K = {n_clusters} came to no clustering: {failure.message}"


def _stabilities(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> dict[str, float | None]:
    """Return the stability of every K from the first answers for the largest."""
    largest = _part(contributions, len(state.open) - 1)
    cells = [sent for sent in payloads_of(largest, Cells).values() if sent.counts.any()]
    every: dict[str, float | None] = dict.fromkeys(map(str, state.open))
    # Of fewer sites nothing is told.
    if len(cells) < config.policy.min_sites:
        return every
    counts = np.concatenate([sent.counts for sent in cells])
    means = np.concatenate([sent.means for sent in cells])[counts > 0]
    counts = counts[counts > 0]
    return {name: stability(means, counts, int(name), state.seed) for name in every}


def _raw(state: State) -> Result:
    """Return the outcome of every K before any is measured; the largest stands for all."""
    ks = sorted(int(k) for k in state.results)
    entries = tuple(
        SweepEntry(n_clusters=k, stability=state.stability[str(k)], result=state.results[str(k)])
        for k in ks
    )
    update = {"sweep": entries, "warnings": state.warnings, "history": ()}
    return entries[-1].result.model_copy(update=update)


# --- the closing evaluation -----------------------------------------------------------------------


def _entries(raw: Result) -> tuple[SweepEntry, ...]:
    if raw.sweep is None:
        raise ValueError("this is no sweep's result")
    return raw.sweep


def evaluation_task(raw: Result) -> Task:
    """Return the task that evaluates the outcome of every K."""
    tasks = {entry.n_clusters: evaluation.task(entry.result) for entry in _entries(raw)}
    return _together(tasks)


def check_evaluation_task(task: SiteTask, config: RunConfig) -> None:
    """Refuse more centroids than the definition names clusters, of any K; RuleViolation."""
    for one, own in _site_tasks(task, config):
        evaluation.check_task(one, own)


def evaluate(task: SiteTask, points: Points, config: RunConfig) -> Model | None:
    """Measure a site's scaled points against the centroids of every K."""
    parts = [evaluation.local_step(one, points, own) for one, own in _site_tasks(task, config)]
    return _answer(EVALUATION, parts, empty=True)


def check_evaluation(task: SiteTask, payload: Model, config: RunConfig) -> None:
    """Check a site's evaluation of every K at either end; RuleViolation."""
    _check(task, payload, config, evaluation.check)


def measured(
    raw: Result, contributions: Sequence[Contribution], config: RunConfig
) -> tuple[Outcome | None, ...]:
    """Add up what the sites measured of every K; contributions sorted by site.

    None for a K of which fewer than ``min_sites`` told anything: nothing is made of that.
    """
    outcomes: list[Outcome | None] = []
    for place, entry in enumerate(_entries(raw)):
        sent = _part(contributions, place)
        enough = _enough(sent, config)
        outcomes.append(evaluation.aggregate(entry.result, sent, config) if enough else None)
    return tuple(outcomes)


def complete(
    raw: Result, outcomes: Sequence[Outcome | None] | None, history: Sequence[HistoryEntry]
) -> Result:
    """Return what sites and analysts read: the recommended K's clustering, and every K beside it.

    Parameters
    ----------
    raw : Result
    outcomes : sequence of Outcome or None
        Of :func:`measured`; None where nothing could be measured of any K.
    history : sequence of HistoryEntry
        Every round that closed, as the engine counts them.
    """
    before = [entry for entry in history if entry.phase == preparation.NAME]
    after = [entry for entry in history if entry.phase == evaluation.NAME]
    entries = []
    for place, entry in enumerate(_entries(raw)):
        k, own = entry.n_clusters, entry.result
        outcome = None if outcomes is None else outcomes[place]
        quality = None if outcome is None else outcome.quality
        inertia = None if quality is None else quality.inertia
        rounds = [r.model_copy(update={"round": r.round + len(before)}) for r in own.history]
        closing = [r.model_copy(update={"inertia": inertia}) for r in after]
        told: dict[str, Any] = {}
        if outcome is not None:
            told = dict(vars(outcome))
        elif outcomes is not None:
            told = {"warnings": (_UNMEASURED,)}
        result = complete_one(
            own,
            n_clusters=k,
            history=(*before, *rounds, *closing),
            n_rounds=len(rounds),
            **told,
        ).model_copy(update={"n_clusters": k})
        update: dict[str, Any] = {"result": result, "inertia": inertia}
        if quality is not None:
            update |= {
                "simplified_silhouette": quality.simplified_silhouette,
                "davies_bouldin": quality.davies_bouldin,
                "n_rows": quality.n_rows,
            }
        entries.append(entry.model_copy(update=update))
    chosen, why = recommend(entries)
    best = next(entry.result for entry in entries if entry.n_clusters == chosen)
    return best.model_copy(
        update={
            "sweep": tuple(entries),
            "recommendation": why,
            "warnings": (*raw.warnings, *best.warnings),
        }
    )
