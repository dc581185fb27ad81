"""The stages of a session, in order: preparation, the method's rounds, and what closes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedclust.engine import evidence, outcomes, preparation, resampling, transfer
from fedclust.engine.evaluation import EvaluationOutcome
from fedclust.engine.model_selection import sole_choice
from fedclust.engine.outcome_statistics import summarise
from fedclust.engine.plan import Plan, is_exact, max_rounds, sends_cells
from fedclust.engine.record_cells import PooledCells, pool_cells, principal_axes
from fedclust.engine.reference import compare_with_cloud
from fedclust.engine.stage import Asked, Closed, EngineState, Round, SiteSide, Stage
from fedclust.engine.sweep import split_task
from fedclust.methods.common.finalize import complete_result, sort_clusters
from fedclust.methods.common.task_checks import check_centroids
from fedclust.numeric.canonical import coordinate_tolerance
from fedclust.schema.errors import RuleViolation
from fedclust.schema.evidence import CloudComparison
from fedclust.schema.method import AnyMethod, LocalAnswer
from fedclust.schema.model import Model
from fedclust.schema.outcomes import Outcomes
from fedclust.schema.result import HistoryEntry, Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import centroid_rule, declared_space
from fedclust.schema.task import CentroidTask, Done, Phase, SiteTask, Task

#: After the method's rounds; the same for every method.
CLOSING_PHASES = (evidence.PHASE, resampling.PHASE, outcomes.PHASE)

_UNMEASURED = (
    "sizes and quality are not known: fewer sites than min_sites could answer the closing "
    "evaluation"
)
_K_UNMEASURED = (
    "sizes and quality are not known: fewer sites than min_sites could answer the closing "
    "evaluation for this number of clusters"
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


class _Preparation(Stage):
    name = "prepare"
    own_phases = (preparation.PHASE,)

    def phases(self, plan: Plan) -> tuple[Phase, ...]:
        return self.own_phases if preparation.needed(plan.policy) else ()

    def task(self, before: Round) -> tuple[EngineState, Task | None]:
        plan = before.plan
        if preparation.needed(plan.policy):
            return before.state, preparation.task()
        return before.state.with_space(declared_space(plan.columns, plan.policy)), None

    def local_step(self, asked: Asked, own: SiteSide) -> LocalAnswer:
        return preparation.local_step(own.points, asked.config), own.memory

    def check(self, asked: Asked, payload: Model) -> None:
        preparation.check(payload, asked.config)

    def aggregate(self, closing: Round) -> Closed:
        space, warnings = preparation.merge(closing.contributions, closing.config)
        state = closing.recorded({}).with_space(space)
        state = state.model_copy(update={"warnings": warnings})
        return Closed(state, metrics=closing.metrics, warnings=warnings)


# --- The method's rounds --------------------------------------------------------------------------


class _Method(Stage):
    name = "method"

    def every_phase(self, method: AnyMethod) -> tuple[Phase, ...]:
        return method.phases

    def phases(self, plan: Plan) -> tuple[Phase, ...]:
        names = plan.options.phases
        return tuple(each for each in plan.method.phases if names is None or each.name in names)

    def task(self, before: Round) -> tuple[EngineState, Task | None]:
        plan = before.plan
        method_state, task = plan.method.start(before.config, plan.seed)
        update = {"method_rounds": 1, "method": method_state.model_dump()}
        return before.state.model_copy(update=update), task

    def check_task(self, asked: Asked) -> None:
        check_method_task(asked.plan.method, asked.task, asked.config, asked.plan.seed)

    def local_step(self, asked: Asked, own: SiteSide) -> LocalAnswer:
        step = asked.plan.method.local_step
        return step(asked.task, own.points, asked.config, own.rng, own.memory)

    def check(self, asked: Asked, payload: Model) -> None:
        asked.plan.method.check(asked.task, payload, asked.config)

    def aggregate(self, closing: Round) -> Closed:
        plan, method = closing.plan, closing.plan.method
        before = method.state.model_validate(closing.state.method)
        outcome = method.aggregate(before, closing.contributions, closing.config)
        metrics = {**closing.metrics, **outcome.metrics}
        state = closing.recorded(metrics)
        if isinstance(outcome, Done):
            return Closed(_with_raw(state, outcome.result), metrics=metrics)
        if state.method_rounds >= max_rounds(plan):
            raw = method.finish(outcome.state, closing.config)
            raw = raw.model_copy(update={"stopped_because": "max_rounds"})
            return Closed(_with_raw(state, raw), metrics=metrics)
        update = {
            "method_rounds": state.method_rounds + 1,
            "method": outcome.state.model_dump(),
        }
        return Closed(state.model_copy(update=update), outcome.task, metrics)

    def give_up(self, closing: Round) -> Closed:
        """Complete the session with what it has found, where the open phase allows it."""
        method, state = closing.plan.method, closing.state
        phase = method.phase(state.phase)
        if not (phase.ends_with_site or phase.optional):
            return super().give_up(closing)
        raw = method.finish(method.state.model_validate(state.method), closing.config)
        update: dict[str, Any] = {"stopped_because": "site_left"}
        if phase.optional:
            warning = (
                f"{closing.answered} sites answered round {state.round} with something, "
                f"{closing.plan.policy.min_sites} are needed: the result is that of the rounds "
                "before."
            )
            update = {
                "stopped_because": "too_few_contributors",
                "warnings": (*raw.warnings, warning),
            }
        metrics = closing.metrics
        raw = raw.model_copy(update=update)
        return Closed(_with_raw(closing.recorded(metrics), raw), metrics=metrics)


def _with_raw(state: EngineState, raw: Result) -> EngineState:
    """Return the state after the method's rounds, with what they came to."""
    warnings = (*state.warnings, *raw.warnings)
    return state.with_result(raw.model_copy(update={"warnings": warnings}))


def check_method_task(method: AnyMethod, task: SiteTask, config: RunConfig, seed: int) -> None:
    """Refuse a task of the method's rounds that the definition does not provide for.

    The site computes the first task as the coordinator does. A phase that comes once is compared
    in every round: a site may have joined later.
    """
    if config.first or method.phase(task.phase).once:
        # No part of a site's own is compared, so it does not matter which sites there are.
        _, expected = method.start(replace(config, roster=("",)), seed)
        if task.phase == expected.phase and _differs(task.common, expected.common):
            raise RuleViolation("task", "the definition asks for another first task", "/parameters")
    for one, own in split_task(task, config):
        if isinstance(one.common, CentroidTask):
            check_centroids(one.common, own)
        method.check_task(one, own)


def _differs(found: Any, expected: Any) -> bool:
    """Return whether two parts of tasks differ by more than rounding."""
    if isinstance(expected, Model):
        names = type(expected).model_fields
        return not isinstance(found, type(expected)) or any(
            _differs(getattr(found, name), getattr(expected, name)) for name in names
        )
    if isinstance(expected, tuple):
        same = isinstance(found, tuple) and len(found) == len(expected)
        return not same or any(map(_differs, found, expected))
    if expected is None or found is None:
        return found is not expected
    if not isinstance(expected, np.ndarray) or expected.dtype.kind != "f":
        return not np.array_equal(found, expected)
    tolerance = coordinate_tolerance(expected)
    return found.shape != expected.shape or bool((np.abs(found - expected) > tolerance).any())


# --- The closing evaluation -----------------------------------------------------------------------


class _Evidence(Stage):
    name = "evidence"
    own_phases = (evidence.PHASE,)

    def phases(self, plan: Plan) -> tuple[Phase, ...]:
        """Return the phase without what nobody sends in this session."""
        if not plan.options.evaluated:
            return ()
        several = isinstance(plan.options.n_clusters, tuple)
        absent = {
            "parts.own": not plan.options.transferred,
            "parts.flow": not several,
            "cells": not sends_cells(plan),
        }
        left_out = tuple(field for field, nobody in absent.items() if nobody)
        discloses = tuple(
            line
            if several
            else line.model_copy(update={"shape": line.shape.replace(", for each K", "")})
            for line in evidence.PHASE.discloses
            if not line.field.startswith(left_out)
        )
        return (replace(evidence.PHASE, discloses=discloses),)

    def task(self, before: Round) -> tuple[EngineState, Task | None]:
        plan, state, raw = before.plan, before.state, before.state.found
        if not (plan.options.evaluated and len(raw.centroids) > 0):
            return state.with_result(_complete(plan, state, None)), None
        raw = evidence.with_clusterings(raw, [sort_clusters(r) for r in evidence.clusterings(raw)])
        return state.with_result(raw), evidence.task(raw)

    def check_task(self, asked: Asked) -> None:
        evidence.check_task(asked.task, asked.config, prototypes=asked.prototypes)

    def local_step(self, asked: Asked, own: SiteSide) -> LocalAnswer:
        cells, step = sends_cells(asked.plan), evidence.local_step
        return step(asked.task, own.points, asked.config, own.rng, cells=cells), own.memory

    def check(self, asked: Asked, payload: Model) -> None:
        evidence.check(asked.task, payload, asked.config, cells=sends_cells(asked.plan))

    def aggregate(self, closing: Round) -> Closed:
        plan, raw = closing.plan, closing.state.found
        found, flows = evidence.measured(raw, closing.contributions, closing.config)
        metrics = closing.metrics
        quality = None if found[0] is None else found[0].quality
        # A sweep has several inertias.
        if raw.sweep is None and quality is not None:
            metrics["inertia"] = quality.inertia
        state = closing.recorded(metrics)
        if all(each is None for each in found):
            return Closed(_unmeasured(plan, state), metrics=metrics)
        result = _complete(plan, state, found)
        if result.sweep is not None:
            entries = [
                entry.model_copy(update={"flow": flow})
                for entry, flow in zip(result.sweep, flows, strict=True)
            ]
            result = result.model_copy(update={"sweep": tuple(entries)})
        result = _with_cloud(closing, result)
        sent = evidence.cells_of(closing.contributions)
        if sent:
            cells = pool_cells(sent)
            axes = principal_axes(cells)
            own = [each.model_copy(update={"axes": axes}) for each in evidence.clusterings(result)]
            result = _with_transfer(closing, evidence.with_clusterings(result, own), cells)
        return Closed(state.with_result(result), metrics=metrics)

    def give_up(self, closing: Round) -> Closed:
        """Keep the clustering: it rests on rounds that had enough."""
        return Closed(_unmeasured(closing.plan, closing.state))


def _unmeasured(plan: Plan, state: EngineState) -> EngineState:
    state = state.with_result(state.found, _UNMEASURED)
    return state.with_result(_complete(plan, state, None))


def _complete(
    plan: Plan, state: EngineState, found: Sequence[EvaluationOutcome | None] | None
) -> Result:
    """Return the state's result with what was measured of it; None: nothing was."""
    raw = state.found
    if raw.sweep is not None:
        return complete_entries(raw, found, state.history)
    wanted = plan.options.n_clusters
    outcome = None if found is None else found[0]
    return complete_result(
        raw,
        n_clusters=wanted if isinstance(wanted, int) else None,
        history=state.history,
        n_rounds=state.method_rounds,
        **({} if outcome is None else vars(outcome)),
    )


def complete_entries(
    raw: Result,
    found: Sequence[EvaluationOutcome | None] | None,
    history: Sequence[HistoryEntry],
) -> Result:
    """Return a result whose clustering of every K is complete; none is recommended yet.

    Parameters
    ----------
    raw : Result
    found : sequence of EvaluationOutcome or None
        Of :func:`evidence.measured`; None where nothing could be measured of any K.
    history : sequence of HistoryEntry
        Every round that closed, as the engine counts them.
    """
    before = [entry for entry in history if entry.phase == preparation.NAME]
    after = [entry for entry in history if entry.phase == evidence.NAME]
    entries = []
    for place, entry in enumerate(raw.sweep or ()):
        k, own = entry.n_clusters, entry.result
        outcome = None if found is None else found[place]
        quality = None if outcome is None else outcome.quality
        inertia = None if quality is None else quality.inertia
        rounds = [r.model_copy(update={"round": r.round + len(before)}) for r in own.history]
        closing = [r.model_copy(update={"inertia": inertia}) for r in after]
        measures: dict[str, Any] = {}
        if outcome is not None:
            measures = dict(vars(outcome))
        elif found is not None:
            measures = {"warnings": (_K_UNMEASURED,)}
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


def _with_cloud(closing: Round, result: Result) -> Result:
    """Add to every K how clear its clusters are, compared with one cloud, where that is asked."""
    plan, contributions = closing.plan, closing.contributions
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
            p=closing.config.p,
            seed=plan.seed,
            rule=centroid_rule(closing.config),
        )
        found = [compared[k] for k in by_k]
    changed = [
        each.model_copy(update={"one_cloud": cloud}) for each, cloud in zip(own, found, strict=True)
    ]
    return evidence.with_clusterings(result, changed)


def _with_transfer(closing: Round, result: Result, cells: PooledCells) -> Result:
    """Add to every K that was measured how far each site bears it out."""
    if not closing.plan.options.transferred:
        return result
    changed = []
    for place, own in enumerate(evidence.clusterings(result)):
        if own.quality is not None:
            parts = evidence.part_contributions(closing.contributions, place)
            found = transfer.summarise(parts, cells, closing.config, closing.plan.seed)
            own = own.model_copy(update={"transfer": found})
        changed.append(own)
    return evidence.with_clusterings(result, changed)


def _is_measured(result: Result) -> bool:
    """Return whether the closing evaluation measured any clustering of a result."""
    return any(each.quality is not None for each in evidence.clusterings(result))


# --- Resampled models -----------------------------------------------------------------------------


class _Resampling(Stage):
    name = "resample"

    def every_phase(self, method: AnyMethod) -> tuple[Phase, ...]:
        return (resampling.PHASE,) if evidence.assigns_by_centroids(method) else ()

    def phases(self, plan: Plan) -> tuple[Phase, ...]:
        """Return the phase without what nobody sends in this session, with its number of models."""
        if not evidence.is_resampled(plan.options):
            return ()
        n_models, transferred = plan.options.resampled_models, plan.options.transferred
        shapes = {"parts.models": f"K x K numbers for each of {n_models} models, for each K"}
        absent = set() if n_models else {"parts.models", "parts.pairs"}
        absent |= set() if transferred else {"parts.left_out"}
        discloses = tuple(
            line.model_copy(update={"shape": shapes.get(line.field, line.shape)})
            for line in resampling.PHASE.discloses
            if line.field not in absent
        )
        return (replace(resampling.PHASE, discloses=discloses),)

    def task(self, before: Round) -> tuple[EngineState, Task | None]:
        plan, state = before.plan, before.state
        if not (evidence.is_resampled(plan.options) and _is_measured(state.found)):
            return state, None
        sent = evidence.cells_of(before.contributions)
        if not sent:
            return state, None
        task = resampling.task(state.found, pool_cells(sent), before.config, plan.seed)
        return state, None if resampling.compares_nothing(task) else task

    def check_task(self, asked: Asked) -> None:
        resampling.check_task(asked.task, asked.config, prototypes=asked.prototypes)

    def local_step(self, asked: Asked, own: SiteSide) -> LocalAnswer:
        return resampling.local_step(asked.task, own.points, asked.config), own.memory

    def check(self, asked: Asked, payload: Model) -> None:
        resampling.check(asked.task, payload, asked.config)

    def aggregate(self, closing: Round) -> Closed:
        result, metrics = closing.state.found, closing.metrics
        state = closing.recorded(metrics)
        found = resampling.stabilities(result, closing.contributions, closing.config)
        tables = resampling.left_out_tables(result, closing.contributions)
        every = zip(evidence.clusterings(result), found, tables, strict=True)
        own = []
        for each, stability, left_out in every:
            update: dict[str, Any] = {"stability": stability}
            if each.transfer is not None:
                update["transfer"] = transfer.add_left_out(each.transfer, left_out)
            own.append(each.model_copy(update=update))
        return Closed(_with_history(state, evidence.with_clusterings(result, own)), None, metrics)

    def give_up(self, closing: Round) -> Closed:
        return Closed(closing.state.with_result(closing.state.found, _NOT_COMPARED))


def _with_history(state: EngineState, result: Result) -> EngineState:
    """Return the state with a complete result, to whose history the last round is added."""
    last = state.history[-1:]
    own = [
        each.model_copy(update={"history": (*each.history, *last)})
        for each in evidence.clusterings(result)
    ]
    return state.with_result(evidence.with_clusterings(result, own))


# --- Outcomes -------------------------------------------------------------------------------------


class _Outcomes(Stage):
    name = "outcomes"
    own_phases = (outcomes.PHASE,)
    #: Whether a site refuses its own answer must not depend on its rows.
    checked_at_site = False

    def phases(self, plan: Plan) -> tuple[Phase, ...]:
        if not (plan.options.evaluated and plan.outcomes):
            return ()
        return (outcomes.phase_of(plan.outcomes, exact=is_exact(plan)),)

    def task(self, before: Round) -> tuple[EngineState, Task | None]:
        plan, state, result = before.plan, before.state, before.state.found
        if not (plan.outcomes and _is_measured(result)):
            return state, None
        place = _outcomes_place(plan, result)
        if place is None:
            return state.with_result(result, _NO_NUMBER_OF_CLUSTERS), None
        about = evidence.clusterings(result)[place]
        task = outcomes.task(about, before.config) if about.sizes is not None else None
        if task is not None:
            return state, task
        found = Outcomes(
            n_clusters=len(about.centroids),
            reference=int(np.argmax(about.sizes or (0,))),
            results=(),
            refused=tuple(sorted(before.config.silent)),
        )
        return state.with_result(_with_outcomes(result, place, found), _NOT_COUNTED), None

    def check_task(self, asked: Asked) -> None:
        wanted = asked.plan.outcomes_k
        outcomes.check_task(asked.task, asked.config, wanted, prototypes=asked.prototypes)

    def local_step(self, asked: Asked, own: SiteSide) -> LocalAnswer:
        payload = None
        if own.count is not None:
            payload = own.count(outcomes.site_model(asked.task, own.name), own.memory)
        if payload is not None:
            outcomes.check_shapes(asked.task, payload, asked.plan.outcomes)
        return payload, own.memory

    def check(self, asked: Asked, payload: Model) -> None:
        outcomes.check(asked.task, payload, asked.config)

    def aggregate(self, closing: Round) -> Closed:
        plan, result, metrics = closing.plan, closing.state.found, closing.metrics
        place = _outcomes_place(plan, result)
        if place is None:
            raise ValueError("no outcomes were asked in this state")
        about = evidence.clusterings(result)[place]
        found = summarise(
            outcomes.tables_of(closing.contributions),
            plan.outcomes,
            {site: np.asarray(row) for site, row in about.site_sizes.items()},
            exact=is_exact(plan),
            refused=closing.config.silent,
        )
        state = _with_history(closing.recorded(metrics), _with_outcomes(result, place, found))
        return Closed(state, metrics=metrics)

    def give_up(self, closing: Round) -> Closed:
        return Closed(closing.state.with_result(closing.state.found, _NOT_COUNTED))


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


# --- The list -------------------------------------------------------------------------------------

STAGES: tuple[Stage, ...] = (_Preparation(), _Method(), _Evidence(), _Resampling(), _Outcomes())


def stage_of(method: AnyMethod, phase_name: str) -> Stage:
    """Return the stage that a phase belongs to; KeyError where there is none."""
    for stage in STAGES:
        if any(each.name == phase_name for each in stage.every_phase(method)):
            return stage
    raise KeyError(phase_name)


def phase(plan_or_method: Plan | AnyMethod, name: str) -> Phase:
    """Return the phase called ``name``, the engine's own included; KeyError where there is none."""
    method = plan_or_method.method if isinstance(plan_or_method, Plan) else plan_or_method
    for each in all_phases(method):
        if each.name == name:
            return each
    raise KeyError(name)


def all_phases(method: AnyMethod) -> tuple[Phase, ...]:
    """Return every phase that a session of this method may have, in order."""
    return tuple(each for stage in STAGES for each in stage.every_phase(method))


def possible_phases(plan: Plan) -> tuple[Phase, ...]:
    """Return the phases that a session of this definition can have, in order."""
    return tuple(each for stage in STAGES for each in stage.phases(plan))


def most_rounds(plan: Plan) -> int:
    """Return how many rounds a session may take, with the preparation and the closing rounds."""
    others = [each for each in possible_phases(plan) if each not in plan.method.phases]
    return max_rounds(plan) + len(others)
