"""The coordinator's side of the rounds: start a session, aggregate its rounds, end it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.engine import (
    evidence,
    outcomes,
    preparation,
    resampling,
    sweep,
    transfer,
)
from fedclust.engine.evaluation import EvaluationOutcome
from fedclust.engine.model_selection import sole_choice
from fedclust.engine.outcome_statistics import summarise
from fedclust.engine.plan import Plan, is_exact, max_rounds, phase
from fedclust.engine.record_cells import PooledCells, pool_cells, principal_axes
from fedclust.engine.reference import compare_with_cloud
from fedclust.methods.common.finalize import complete_result, sort_clusters
from fedclust.numeric.arrays import FloatVector
from fedclust.numeric.threads import one_thread
from fedclust.schema.errors import MethodFailure
from fedclust.schema.evidence import CloudComparison
from fedclust.schema.model import Model, Tree
from fedclust.schema.outcomes import Outcomes
from fedclust.schema.result import HistoryEntry, Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import binary_columns, centroid_rule, declared_space
from fedclust.schema.space import Space
from fedclust.schema.task import Contribution, Done, Next, Task


class EngineState(Model):
    """The state of a session between rounds; the coordinator stores it after every round.

    Attributes
    ----------
    stage : {"prepare", "method", "evidence", "resample", "outcomes"}
        What the open round belongs to.
    round : int
        Number of the open round, from 1.
    method_rounds : int
        Rounds of the method that were opened so far; ``max_rounds`` limits these.
    phase : str
        What the open round asks.
    center, scale, impute, limit : (d,) float64 or None
        The space; None until it is known.
    warnings : tuple of str
        Of the preparation; the result repeats them.
    method : dict
        The method's own state, as a tree; None before its start.
    result : Result or None
        What is being evaluated, with sorted clusters; complete once resampled models are compared
        or outcomes counted.
    history : tuple of HistoryEntry
    """

    stage: Literal["prepare", "method", "evidence", "resample", "outcomes"]
    round: int
    phase: str = preparation.NAME
    method_rounds: int = 0
    center: FloatVector | None = None
    scale: FloatVector | None = None
    impute: FloatVector | None = None
    limit: FloatVector | None = None
    warnings: tuple[str, ...] = ()
    method: dict[str, Tree] | None = None
    result: Result | None = None
    history: tuple[HistoryEntry, ...] = ()


_UNMEASURED = (
    "sizes and quality are not known: fewer sites than min_sites could answer the closing "
    "evaluation"
)
_NOT_COMPARED = (
    "stability, and agreement with models made without a site, are not known: fewer sites than "
    "min_sites could compare the clusters with other models"
)
_NOT_COUNTED = (
    "outcomes are not known: fewer sites than min_sites could answer. Where a site had not yet "
    "answered, its points are given back"
)
_NO_NUMBER_OF_CLUSTERS = (
    "outcomes were not asked, because no single number of clusters stands out, and all points are "
    "given back: choose K, and ask in a new session with outcomes_k"
)
Masks: TypeAlias = Mapping[str, NDArray[np.bool_]]


def check_roster(plan: Plan, roster: Sequence[str], masks: Masks | None = None) -> None:
    """Raise RuleViolation where these sites cannot serve the method; it says what to change."""
    state = EngineState(stage="prepare", round=0)
    plan.method.check_roster(_run_config(plan, state, roster, masks))


def start(plan: Plan, roster: Sequence[str], masks: Masks | None = None) -> Next:
    """Return the state and the task of round 1.

    Parameters
    ----------
    plan : Plan
    roster : sequence of str
        The sites that take part.
    masks : mapping of site to (d,) bool, optional
        The columns that each site has; by default, and where a site is not named, all.
    """
    with one_thread():
        if preparation.needed(plan.policy):
            return Next(EngineState(stage="prepare", round=1), preparation.task())
        space = declared_space(plan.columns, plan.policy)
        state = EngineState(stage="method", round=0, center=space.center, scale=space.scale)
        return _start_method(plan, state, _run_config(plan, state, roster, masks), {})


def advance(
    plan: Plan,
    state: EngineState,
    contributions: Sequence[Contribution],
    roster: Sequence[str],
    masks: Masks | None = None,
    silent: Collection[str] = (),
) -> Next | Done:
    """Aggregate a round and return the next one's task, or the result.

    Parameters
    ----------
    plan : Plan
    state : EngineState
        What the previous call returned (or what was stored of it).
    contributions : sequence of Contribution
        One for each site that answered, in any order; an empty answer has payload None.
    roster : sequence of str
        The sites that the next round would address.
    masks : mapping of site to (d,) bool, optional
        The columns that each site has, those that have left included; by default all.
    silent : collection of str
        The sites that joined without enough points to answer about outcomes.

    Returns
    -------
    Next or Done

    Raises
    ------
    MethodFailure
        Too few sites answered with something, or the method cannot go on.
    """
    names = [contribution.site for contribution in contributions]
    if len(set(names)) != len(names):
        raise ValueError("a site answers a round once")
    ordered = sorted(contributions, key=lambda contribution: contribution.site)
    answered = sum(contribution.payload is not None for contribution in ordered)
    if answered < plan.policy.min_sites:
        # The clustering itself rests on rounds that had enough.
        if state.stage == "evidence" and state.result is not None:
            return Done(_final_result(plan, state, _add_warning(state.result, _UNMEASURED)))
        if state.stage == "resample" and state.result is not None:
            result = _add_warning(state.result, _NOT_COMPARED)
            return _ask_outcomes(
                plan, state, result, _run_config(plan, state, roster, masks, silent)
            )
        if state.stage == "outcomes" and state.result is not None:
            return Done(_report(plan, _add_warning(state.result, _NOT_COUNTED)))
        open_phase = phase(plan, state.phase)
        if state.stage == "method" and (open_phase.ends_with_site or open_phase.optional):
            return _end_early(plan, state, _run_config(plan, state, roster, masks), answered)
        raise MethodFailure(
            "too_few_contributors",
            f"{answered} sites answered round {state.round} with something, "
            f"{plan.policy.min_sites} are needed: invite more or larger sites, or lower "
            "min_group_size",
        )
    with one_thread(), np.errstate(over="raise", invalid="raise"):
        try:
            config = _run_config(plan, state, roster, masks, silent)
            outcome = _advance(plan, state, ordered, config, answered)
            if not np.isfinite(list(outcome.metrics.values())).all():
                raise FloatingPointError
            return outcome
        except FloatingPointError:
            raise MethodFailure(
                "overflow",
                "the sites' numbers are too large to be added up: declare bounds for the features",
            ) from None


def _run_config(
    plan: Plan,
    state: EngineState,
    roster: Sequence[str],
    masks: Masks | None,
    silent: Collection[str] = (),
) -> RunConfig:
    every = np.ones(len(plan.columns), dtype=np.bool_)
    return RunConfig(
        options=plan.options,
        features=plan.features,
        policy=plan.policy,
        roster=tuple(sorted(roster)),
        p=1 if is_exact(plan) else plan.policy.min_group_size,
        space=_space(state) or Space.identity(len(plan.columns)),
        masks=defaultdict(lambda: every, dict.fromkeys(roster, every) | dict(masks or {})),
        outcomes=plan.outcomes,
        silent=frozenset(silent),
    )


def _space(state: EngineState) -> Space | None:
    if state.center is None or state.scale is None:
        return None
    return Space(state.center, state.scale, state.impute, state.limit)


def _advance(
    plan: Plan,
    state: EngineState,
    contributions: Sequence[Contribution],
    config: RunConfig,
    answered: int,
) -> Next | Done:
    if state.stage == "prepare":
        space, warnings = preparation.merge(contributions, config)
        state = state.model_copy(
            update={
                "center": space.center,
                "scale": space.scale,
                "impute": space.impute,
                "limit": space.limit,
                "warnings": warnings,
                "history": (_history_entry(state, preparation.NAME, answered, {}),),
            }
        )
        metrics = {"n_sites": float(answered)}
        following = _start_method(plan, state, replace(config, space=space), metrics)
        return replace(following, warnings=warnings)
    if state.stage == "evidence":
        return _close_evidence(plan, state, contributions, config, answered)
    if state.stage == "resample":
        return _close_resampling(plan, state, contributions, config, answered)
    if state.stage == "outcomes":
        return _close_outcomes(plan, state, contributions, config, answered)
    return _close_method_round(plan, state, contributions, config, answered)


def _start_method(
    plan: Plan, state: EngineState, config: RunConfig, metrics: Mapping[str, float]
) -> Next:
    method_state, task = plan.method.start(config, plan.seed)
    return _open(
        state,
        task,
        config,
        metrics,
        stage="method",
        method_rounds=1,
        method=method_state.model_dump(),
        phase=task.phase,
    )


def _open(
    state: EngineState,
    task: Task,
    config: RunConfig,
    metrics: Mapping[str, float],
    **update: Any,
) -> Next:
    """Open the next round: number it, and put the space into its task."""
    following = state.model_copy(update={"round": state.round + 1, **update})
    return Next(following, replace(task, space=config.space), metrics)


def _close_method_round(
    plan: Plan,
    state: EngineState,
    contributions: Sequence[Contribution],
    config: RunConfig,
    answered: int,
) -> Next | Done:
    method = plan.method
    outcome = method.aggregate(method.state.model_validate(state.method), contributions, config)
    metrics = {"n_sites": float(answered), **outcome.metrics}
    state = _record(state, answered, metrics)
    if isinstance(outcome, Done):
        return _end_method(plan, state, outcome.result, config, metrics)
    if state.method_rounds >= max_rounds(plan):
        finished = method.finish(outcome.state, config)
        finished = finished.model_copy(update={"stopped_because": "max_rounds"})
        return _end_method(plan, state, finished, config, metrics)
    return _open(
        state,
        outcome.task,
        config,
        metrics,
        method_rounds=state.method_rounds + 1,
        method=outcome.state.model_dump(),
        phase=outcome.task.phase,
    )


def _end_early(plan: Plan, state: EngineState, config: RunConfig, answered: int) -> Next | Done:
    """Complete a session whose open round too few sites answered with what it has found."""
    finished = plan.method.finish(plan.method.state.model_validate(state.method), config)
    update: dict[str, Any] = {"stopped_because": "site_left"}
    if phase(plan, state.phase).optional:
        warning = (
            f"{answered} sites answered round {state.round} with something, "
            f"{plan.policy.min_sites} are needed: the result is that of the rounds before."
        )
        update = {
            "stopped_because": "too_few_contributors",
            "warnings": (*finished.warnings, warning),
        }
    finished = finished.model_copy(update=update)
    metrics = {"n_sites": float(answered)}
    return _end_method(plan, _record(state, answered, metrics), finished, config, metrics)


def _end_method(
    plan: Plan, state: EngineState, raw: Result, config: RunConfig, metrics: Mapping[str, float]
) -> Next | Done:
    raw = raw.model_copy(update={"warnings": (*state.warnings, *raw.warnings)})
    if not (plan.options.evaluated and len(raw.centroids) > 0):
        return Done(_final_result(plan, state, raw), metrics)
    raw = evidence.with_clusterings(raw, [sort_clusters(r) for r in evidence.clusterings(raw)])
    task = evidence.task(raw)
    return _open(
        state, task, config, metrics, stage="evidence", method=None, result=raw, phase=task.phase
    )


def _close_evidence(
    plan: Plan,
    state: EngineState,
    contributions: Sequence[Contribution],
    config: RunConfig,
    answered: int,
) -> Next | Done:
    raw = _result_of(state)
    found, flows = evidence.measured(raw, contributions, config)
    metrics = _evaluation_metrics(raw, found, answered)
    state = _record(state, answered, metrics)
    if all(each is None for each in found):
        return Done(_final_result(plan, state, _add_warning(raw, _UNMEASURED)), metrics)
    result = _complete(plan, state, raw, found)
    if result.sweep is not None:
        entries = [
            entry.model_copy(update={"flow": flow})
            for entry, flow in zip(result.sweep, flows, strict=True)
        ]
        result = result.model_copy(update={"sweep": tuple(entries)})
    sent = evidence.cells_of(contributions)
    result = _with_cloud(plan, result, contributions, config)
    if not sent:
        return _ask_outcomes(plan, state, result, config, metrics)
    cells = pool_cells(sent)
    axes = principal_axes(cells)
    own = [each.model_copy(update={"axes": axes}) for each in evidence.clusterings(result)]
    result = evidence.with_clusterings(result, own)
    if not evidence.is_resampled(plan.options):
        return _ask_outcomes(plan, state, result, config, metrics)
    result = _with_transfer(plan, result, contributions, config, cells)
    task = resampling.task(result, cells, config, plan.seed)
    if resampling.compares_nothing(task):
        return _ask_outcomes(plan, state, result, config, metrics)
    return _open(state, task, config, metrics, stage="resample", result=result, phase=task.phase)


def _with_cloud(
    plan: Plan, result: Result, contributions: Sequence[Contribution], config: RunConfig
) -> Result:
    """Add to every K how clear its clusters are, compared with one cloud, where that is asked."""
    if not plan.options.compared_with_cloud:
        return result
    own = evidence.clusterings(result)
    reason = evidence.not_judged(plan.method, plan.policy)
    if reason is not None:
        sentence = f"{reason[0].upper()}{reason[1:]}."
        found = [CloudComparison(n_draws=0, not_judged=sentence)] * len(own)
    else:
        by_k = {each.n_clusters or len(each.centroids): each.centroids for each in own}
        compared = compare_with_cloud(
            [*evidence.cells_of(contributions).values()],
            evidence.count_groups(contributions),
            by_k,
            p=config.p,
            seed=plan.seed,
            rule=centroid_rule(config),
        )
        found = [compared[k] for k in by_k]
    changed = [
        each.model_copy(update={"one_cloud": cloud}) for each, cloud in zip(own, found, strict=True)
    ]
    return evidence.with_clusterings(result, changed)


def _with_transfer(
    plan: Plan,
    result: Result,
    contributions: Sequence[Contribution],
    config: RunConfig,
    cells: PooledCells,
) -> Result:
    """Add to every K that was measured how far each site bears it out."""
    if not plan.options.transferred:
        return result
    changed = []
    for place, own in enumerate(evidence.clusterings(result)):
        if own.quality is not None:
            parts = evidence.part_contributions(contributions, place)
            found = transfer.summarise(parts, cells, config, plan.seed)
            own = own.model_copy(update={"transfer": found})
        changed.append(own)
    return evidence.with_clusterings(result, changed)


def _close_resampling(
    plan: Plan,
    state: EngineState,
    contributions: Sequence[Contribution],
    config: RunConfig,
    answered: int,
) -> Next | Done:
    result, metrics = _result_of(state), {"n_sites": float(answered)}
    state = _record(state, answered, metrics)
    found = resampling.stabilities(result, contributions, config)
    entry = state.history[-1:]
    tables = resampling.left_out_tables(result, contributions)
    own = []
    for each, stability, left_out in zip(evidence.clusterings(result), found, tables, strict=True):
        update: dict[str, Any] = {"stability": stability, "history": (*each.history, *entry)}
        if each.transfer is not None:
            update["transfer"] = transfer.add_left_out(each.transfer, left_out)
        own.append(each.model_copy(update=update))
    return _ask_outcomes(plan, state, evidence.with_clusterings(result, own), config, metrics)


def _ask_outcomes(
    plan: Plan,
    state: EngineState,
    result: Result,
    config: RunConfig,
    metrics: Mapping[str, float] = MappingProxyType({}),
) -> Next | Done:
    """Open the round of outcomes about a complete result; or end, where there are none to ask."""
    if not plan.outcomes:
        return Done(_report(plan, result), metrics)
    place = _outcomes_place(plan, result)
    if place is None:
        return Done(_report(plan, _add_warning(result, _NO_NUMBER_OF_CLUSTERS)), metrics)
    about = evidence.clusterings(result)[place]
    task = outcomes.task(about, config) if about.sizes is not None else None
    if task is None:
        found = Outcomes(
            n_clusters=len(about.centroids),
            reference=int(np.argmax(about.sizes or (0,))),
            results=(),
            refused=tuple(sorted(config.silent)),
        )
        result = _with_outcomes(result, place, found)
        return Done(_report(plan, _add_warning(result, _NOT_COUNTED)), metrics)
    return _open(
        state, task, config, metrics, stage="outcomes", method=None, result=result, phase=task.phase
    )


def _outcomes_place(plan: Plan, result: Result) -> int | None:
    """Return the place of the clustering whose outcomes are asked; None where no K stands out."""
    if result.sweep is None:
        return 0
    wanted = plan.outcomes_k
    if wanted == "recommended":
        wanted = sole_choice(result.sweep)
    ks = [entry.n_clusters for entry in result.sweep]
    return ks.index(wanted) if wanted in ks else None


def _with_outcomes(result: Result, place: int, found: Outcomes) -> Result:
    own = list(evidence.clusterings(result))
    own[place] = own[place].model_copy(update={"outcomes": found})
    return evidence.with_clusterings(result, own)


def _close_outcomes(
    plan: Plan,
    state: EngineState,
    contributions: Sequence[Contribution],
    config: RunConfig,
    answered: int,
) -> Done:
    result, metrics = _result_of(state), {"n_sites": float(answered)}
    place = _outcomes_place(plan, result)
    if place is None:
        raise ValueError("no outcomes were asked in this state")
    state = _record(state, answered, metrics)
    about = evidence.clusterings(result)[place]
    found = summarise(
        outcomes.tables_of(contributions),
        plan.outcomes,
        {site: np.asarray(row) for site, row in about.site_sizes.items()},
        exact=is_exact(plan),
        refused=config.silent,
    )
    result = _with_outcomes(result, place, found)
    own = [
        each.model_copy(update={"history": (*each.history, *state.history[-1:])})
        for each in evidence.clusterings(result)
    ]
    return Done(_report(plan, evidence.with_clusterings(result, own)), metrics)


def _result_of(state: EngineState) -> Result:
    if state.result is None:
        raise ValueError("there is nothing to evaluate in this state")
    return state.result


def _evaluation_metrics(
    raw: Result, found: Sequence[EvaluationOutcome | None], answered: int
) -> dict[str, float]:
    """Return the metrics of a closing round; of a sweep no inertia, for it has several."""
    metrics = {"n_sites": float(answered)}
    quality = None if found[0] is None else found[0].quality
    if raw.sweep is None and quality is not None:
        metrics["inertia"] = quality.inertia
    return metrics


def _record(state: EngineState, answered: int, metrics: Mapping[str, float]) -> EngineState:
    """Add the round that closes to the history."""
    entry = _history_entry(state, state.phase, answered, metrics)
    return state.model_copy(update={"history": (*state.history, entry)})


def _complete(
    plan: Plan,
    state: EngineState,
    raw: Result,
    found: Sequence[EvaluationOutcome | None] | None,
) -> Result:
    """Return a result with what was measured of it; None: nothing was."""
    if raw.sweep is not None:
        return sweep.complete_entries(raw, found, state.history)
    wanted = plan.options.n_clusters
    outcome = None if found is None else found[0]
    return complete_result(
        raw,
        n_clusters=wanted if isinstance(wanted, int) else None,
        history=state.history,
        n_rounds=state.method_rounds,
        **({} if outcome is None else vars(outcome)),
    )


def _report(plan: Plan, result: Result) -> Result:
    """Return what sites and analysts read of a complete result."""
    if result.sweep is None:
        return result
    binary = bool(binary_columns(plan.columns).all())
    return sweep.report_recommended(result, binary=binary)


def _add_warning(raw: Result, warning: str) -> Result:
    return raw.model_copy(update={"warnings": (*raw.warnings, warning)})


def _final_result(plan: Plan, state: EngineState, raw: Result) -> Result:
    """Return the result of a session in which nothing was measured."""
    return _report(plan, _complete(plan, state, raw, None))


def _history_entry(
    state: EngineState, phase_name: str, answered: int, metrics: Mapping[str, float]
) -> HistoryEntry:
    return HistoryEntry(
        round=state.round,
        phase=phase_name,
        n_sites=answered,
        inertia=metrics.get("inertia"),
        centroid_shift=metrics.get("centroid_shift"),
        lower_bound=metrics.get("lower_bound"),
        upper_bound=metrics.get("upper_bound"),
    )
