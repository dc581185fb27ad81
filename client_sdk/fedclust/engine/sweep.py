"""Run several numbers of clusters K in the rounds of one session.

Each K has its own state, task, payload and memory. It takes the steps of a session with that K
alone, with the same random numbers. A K that is done, or that fails, leaves the rounds; a failure
becomes a warning. One closing evaluation measures every K.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedclust.engine import evidence, preparation
from fedclust.engine.evaluation import EvaluationOutcome
from fedclust.engine.model_selection import choose, start_agreement
from fedclust.engine.sweep_messages import (
    check_parts,
    config_at,
    has_enough,
    join_tasks,
    number_of,
    part_of,
    phase_of,
    several_of,
    split_task,
    swept_phase,
)
from fedclust.methods.common.finalize import complete_result
from fedclust.methods.common.kmeans_rounds import Cells
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.method import AnyMethod, LocalAnswer
from fedclust.schema.model import Memory, Model, Tree
from fedclust.schema.options import MethodOptions
from fedclust.schema.points import Points
from fedclust.schema.result import HistoryEntry, Result, SweepEntry
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import centroid_rule
from fedclust.schema.task import (
    Contribution,
    Done,
    Next,
    Phase,
    SiteTask,
    Task,
    payloads_of,
)

_Found = TypeVar("_Found")
_OWN = "sweep"
_UNMEASURED = (
    "sizes and quality are not known: fewer sites than min_sites could answer the closing "
    "evaluation for this number of clusters"
)


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
    return swept(method) if isinstance(options.n_clusters, tuple) else method


@functools.cache
def swept(method: AnyMethod) -> AnyMethod:
    """Return a method whose ``n_clusters`` are several."""
    # Longer than a screen because it holds one small function for each of the method's.

    def check_config(config: RunConfig) -> None:
        if not config.options.evaluated:
            raise RuleViolation(
                "sweep", "a sweep is judged by its closing evaluation: leave it on", "/evaluate"
            )
        for k in several_of(config):
            try:
                method.check_config(config_at(config, k))
            except RuleViolation as broken:
                message = f"with {k} clusters: {broken.message}"
                raise RuleViolation(broken.rule, message, broken.pointer) from None

    def start(config: RunConfig, seed: int) -> tuple[Model, Task]:
        begun = {k: method.start(config_at(config, k), seed) for k in several_of(config)}
        tasks = {k: task for k, (_, task) in begun.items()}
        states = {str(k): state.model_dump() for k, (state, _) in begun.items()}
        return State(phase=phase_of(tasks), seed=seed, states=states), join_tasks(tasks)

    def local_step(
        task: SiteTask, points: Points, config: RunConfig, rng: np.random.Generator, memory: Memory
    ) -> LocalAnswer:
        parts = []
        for one, own in split_task(task, config):
            # Each K draws what a session of its own would.
            payload, kept = method.local_step(
                one, points, own, copy.deepcopy(rng), _recalled(memory, own)
            )
            memory = _remembered(memory, own, kept)
            parts.append(payload)
        first = len(parts) == len(several_of(config))
        return _merge_answers(swept(method).phase(task.phase), parts, empty=first), memory

    def check(task: SiteTask, payload: Model, config: RunConfig) -> None:
        check_parts(task, payload, config, method.check)

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
        local_step=local_step,
        check=check,
        aggregate=aggregate,
        finish=finish,
        label=_with_own_memory(method.label),
        probabilities=method.probabilities and _with_own_memory(method.probabilities),
    )


def _with_own_memory(
    step: Callable[[Result, NDArray[np.float64], Memory | None], _Found],
) -> Callable[[Result, NDArray[np.float64], Memory | None], _Found]:
    """Return a step of a result's number of clusters that gets what that K remembers."""

    def wrapped(result: Result, X: NDArray[np.float64], memory: Memory | None) -> _Found:
        return step(result, X, None if memory is None else _memory_of(result, memory))

    return wrapped


def _memory_of(result: Result, memory: Memory) -> Memory:
    """Return what the method itself would remember of a result's number of clusters."""
    return {**memory, **memory.get(_OWN, {}).get(str(result.n_clusters), {})}


# --- at a site ------------------------------------------------------------------------------------


def _recalled(memory: Memory, config: RunConfig) -> Memory:
    """Return the memory of one K."""
    return dict(memory.get(_OWN, {}).get(str(number_of(config)), {}))


def _remembered(memory: Memory, config: RunConfig, kept: Memory) -> Memory:
    """Put what one K keeps back into the memory of all."""
    return {**memory, _OWN: {**memory.get(_OWN, {}), str(number_of(config)): kept}}


def _merge_answers(phase: Phase, parts: Sequence[Model | None], *, empty: bool) -> Model | None:
    """Return a site's answer; with ``empty``, None where nothing may be sent for any K.

    Once a K is done that answer is one without parts. A round of empty answers fails the session,
    and with it what others came to; so the Ks that are left, leave.
    """
    if empty and all(part is None for part in parts):
        return None
    return phase.payload.model_validate({"parts": tuple(parts)})


# --- at the coordinator ---------------------------------------------------------------------------


def _too_few() -> MethodFailure:
    return MethodFailure(
        "too_few_contributors",
        "fewer sites than min_sites may send anything for it: invite more or larger sites, ask "
        "for fewer clusters, or lower min_group_size",
    )


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
        sent = part_of(contributions, place)
        try:
            if not has_enough(sent, config):
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
    largest = part_of(contributions, len(state.open) - 1)
    cells = [sent for sent in payloads_of(largest, Cells).values() if sent.counts.any()]
    every: dict[str, float | None] = dict.fromkeys(map(str, state.open))
    # Nothing is released about fewer sites.
    if len(cells) < config.policy.min_sites:
        return every
    counts = np.concatenate([sent.counts for sent in cells])
    means = np.concatenate([sent.means for sent in cells])[counts > 0]
    counts = counts[counts > 0]
    rule, seed = centroid_rule(config), state.seed
    return {name: start_agreement(means, counts, int(name), seed, rule) for name in every}


def _raw(state: State) -> Result:
    """Return the outcome of every K before any is measured; the largest stands for all."""
    ks = sorted(int(k) for k in state.results)
    entries = tuple(
        SweepEntry(
            n_clusters=k,
            start_agreement=state.start_agreement[str(k)],
            result=state.results[str(k)].model_copy(update={"n_clusters": k}),
        )
        for k in ks
    )
    update = {"sweep": entries, "warnings": state.warnings, "history": ()}
    return entries[-1].result.model_copy(update=update)


# --- the closing evaluation -----------------------------------------------------------------------


def _sweep_entries(raw: Result) -> tuple[SweepEntry, ...]:
    if raw.sweep is None:
        raise ValueError("this is no sweep's result")
    return raw.sweep


def complete_entries(
    raw: Result,
    outcomes: Sequence[EvaluationOutcome | None] | None,
    history: Sequence[HistoryEntry],
) -> Result:
    """Return a result whose clustering of every K is complete; none is recommended yet.

    Parameters
    ----------
    raw : Result
    outcomes : sequence of EvaluationOutcome or None
        Of :func:`evidence.measured`; None where nothing could be measured of any K.
    history : sequence of HistoryEntry
        Every round that closed, as the engine counts them.
    """
    before = [entry for entry in history if entry.phase == preparation.NAME]
    after = [entry for entry in history if entry.phase == evidence.NAME]
    entries = []
    for place, entry in enumerate(_sweep_entries(raw)):
        k, own = entry.n_clusters, entry.result
        outcome = None if outcomes is None else outcomes[place]
        quality = None if outcome is None else outcome.quality
        inertia = None if quality is None else quality.inertia
        rounds = [r.model_copy(update={"round": r.round + len(before)}) for r in own.history]
        closing = [r.model_copy(update={"inertia": inertia}) for r in after]
        measures: dict[str, Any] = {}
        if outcome is not None:
            measures = dict(vars(outcome))
        elif outcomes is not None:
            measures = {"warnings": (_UNMEASURED,)}
        result = complete_result(
            own,
            n_clusters=k,
            history=(*before, *rounds, *closing),
            n_rounds=len(rounds),
            **measures,
        )
        update: dict[str, Any] = {"result": result, "inertia": inertia}
        if quality is not None:
            update |= {
                "simplified_silhouette": quality.simplified_silhouette,
                "davies_bouldin": quality.davies_bouldin,
                "n_rows": quality.n_rows,
            }
        entries.append(entry.model_copy(update=update))
    return raw.model_copy(update={"sweep": tuple(entries)})


def report_recommended(result: Result, *, binary: bool) -> Result:
    """Return what sites and analysts read: the recommended K's clustering, and every K.

    ``binary``: whether all columns are yes/no columns.
    """
    entries = _sweep_entries(result)
    choice = choose(entries, binary=binary)
    best = next(entry.result for entry in entries if entry.n_clusters == choice.n_clusters)
    return best.model_copy(
        update={
            "sweep": entries,
            "choice": choice.reason,
            "tied": choice.tied,
            "recommendation": choice.text,
            "warnings": (*result.warnings, *best.warnings),
        }
    )
