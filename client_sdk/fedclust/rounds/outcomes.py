"""The last round of a session with outcomes: counts by final cluster, with noise.

A site labels its own rows with the final model, counts them by cluster and cell of each outcome
(``protection.outcome_counts`` does so, and adds the noise), and sends these tables. Here is what
travels, and what both ends check. ``rounds.outcome_statistics`` compares the clusters.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import NonNegativeInt

from fedclust.methods.common.kmeans_rounds import disclosures
from fedclust.numeric.arrays import IntMatrix
from fedclust.protection.message_checks import check_shape
from fedclust.rounds import evaluation
from fedclust.rounds.plan import Plan
from fedclust.rounds.stage import Closed, EngineState, Round, Stage
from fedclust.rounds.sweep import clusterings, is_measured, split_parts, update_each
from fedclust.schema.errors import RuleViolation
from fedclust.schema.feature import Outcome
from fedclust.schema.model import Model
from fedclust.schema.outcomes import Outcomes
from fedclust.schema.result import FinalModel, Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Phase, SiteSide, SiteTask, Task, narrow, payloads_of

NAME = "outcomes"
#: How far noise may take a count: no honest site draws more.
_MOST_SD = 40
_NOT_COUNTED = (
    "outcomes are not known: fewer sites than needed could answer. Where a site had not yet "
    "answered, its points are given back"
)
_NO_NUMBER_OF_CLUSTERS = (
    "outcomes were not asked, because no single number of clusters stands out, and all points are "
    "given back: choose K, and ask in a new session with outcomes_k"
)


class OutcomesTask(Model):
    """Count your persons by cluster of this model and by cell of each outcome.

    Attributes
    ----------
    model : FinalModel
        That of one number of clusters.
    """

    model: FinalModel


class OutcomesSitePart(Model):
    """What one site alone gets of the task.

    Attributes
    ----------
    persons : int
        Persons that the site counted in the closing round. The coordinator compares the tables
        with it. A site does not: whether it refuses must not depend on its data.
    mapping : tuple of int or None
        The site's own part of ``Result.mapping``.
    """

    persons: NonNegativeInt
    mapping: tuple[int, ...] | None = None


class OutcomesPayload(Model):
    """A site's tables.

    Attributes
    ----------
    cells : tuple of ((K + 1, J) int64 or None)
        Of each outcome in the definition's order: persons by cluster (the last row: by none) and by
        cell, with noise; None where the site joined without a column for it.
    """

    cells: tuple[IntMatrix | None, ...]


# --- At a site ------------------------------------------------------------------------------------


def _check_task(task: SiteTask[OutcomesTask], config: RunConfig) -> None:
    model, wanted = task.common.model, config.outcomes_k
    if task.site is None or task.space is None:
        raise RuleViolation("task", "each site has its own part of this task", "/site")
    n_clusters, d = model.centroids.shape
    if not n_clusters or model.centroids_original.shape != (n_clusters, d):
        raise RuleViolation("task", "a model has centroids", "/parameters/model/centroids")
    for pointer, clusters in (
        ("/parameters/model/prototype_labels", model.prototype_labels),
        ("/site/mapping", narrow(task.site, OutcomesSitePart).mapping),
    ):
        if not all(-1 <= cluster < n_clusters for cluster in clusters or ()):
            raise RuleViolation("task", "a cluster is one of the model's", pointer)
    if model.mask is not None:
        check_shape(model.mask, (n_clusters, d), "/parameters/model/mask")
    if isinstance(wanted, int) and model.n_clusters != wanted:
        raise RuleViolation("task", "outcomes are counted at another K", "/parameters")
    ks = () if model.n_clusters is None else (model.n_clusters,)
    for own, part in split_parts(ks, (evaluation.task(model),), config):
        evaluation.check_task(part, own)
    for name, vector in vars(task.space).items():
        # None equals None alone.
        if not np.array_equal(getattr(model, name), vector):
            message = "the model has another scaled space"
            raise RuleViolation("task-space", message, "/parameters")
    if model.dissimilarity != config.policy.dissimilarity:
        raise RuleViolation("task", "the model has another dissimilarity", "/parameters")


def _local_step(task: SiteTask[OutcomesTask], site: SiteSide) -> OutcomesPayload | None:
    if site.count is None:
        return None
    own = narrow(task.site, OutcomesSitePart).mapping
    mapping = {} if own is None else {site.name: own}
    payload = site.count(Result(**dict(task.common.model), mapping=mapping), site.memory)
    return None if payload is None else _check_shapes(task, payload, site.config)


def _check(task: SiteTask[OutcomesTask], payload: Model, config: RunConfig) -> None:
    sent = _check_shapes(task, payload, config)
    persons = narrow(task.site, OutcomesSitePart).persons
    for i, (table, outcome) in enumerate(zip(sent.cells, config.outcomes, strict=True)):
        if table is None:
            continue
        exact = config.policy.protection == "none"
        most = persons + (0.0 if exact else _MOST_SD * math.sqrt(outcome.variance))
        least = 0.0 if exact else -most
        known = table[:-1]
        if (known > most).any() or (known < least).any():
            message = "a count is larger than the site's persons and noise allow"
            raise RuleViolation("count-range", message, f"/cells/{i}")


def _check_shapes(
    task: SiteTask[OutcomesTask], payload: Model, config: RunConfig
) -> OutcomesPayload:
    """Return a site's tables if they have the form that does not depend on its data."""
    sent = narrow(payload, OutcomesPayload)
    n_clusters = len(task.common.model.centroids)
    if len(sent.cells) != len(config.outcomes):
        raise RuleViolation("shape", "one table is needed for each outcome", "/cells")
    for i, (table, outcome) in enumerate(zip(sent.cells, config.outcomes, strict=True)):
        if table is not None:
            check_shape(table, (n_clusters + 1, len(outcome.cells)), f"/cells/{i}")
    return sent


PHASE = Phase(
    name=NAME,
    summary="Counts of each outcome by final cluster, with random noise.",
    task=OutcomesTask,
    payload=OutcomesPayload,
    site_part=OutcomesSitePart,
    local_step=_local_step,
    check=_check,
    check_task=_check_task,
    # Whether a site refuses its own answer must not depend on its rows.
    checked_at_site=False,
    discloses=disclosures(
        cells="J numbers for each cluster, and for persons in none: How many of your "
        "persons are in each final cluster and cell, computed from your rows, each number with "
        "random noise.",
        identify={
            "cells": "The noise limits what anybody can learn of one person, whatever else they "
            "know."
        },
    ),
    once=True,
    optional=True,
)


# --- The stage ------------------------------------------------------------------------------------


class OutcomesStage(Stage):
    """The counts of outcomes."""

    name = "outcomes"
    own_phases = (PHASE,)

    def phases(self, plan: Plan) -> tuple[Phase, ...]:
        if not (plan.options.evaluated and plan.outcomes):
            return ()
        return (_phase_of(plan.outcomes, exact=plan.policy.protection == "none"),)

    def task(self, before: Round) -> tuple[EngineState, Task | None]:
        plan, state, result = before.plan, before.state, before.state.found
        if not (plan.outcomes and is_measured(result)):
            return state, None
        place = _outcomes_place(plan, result)
        if place is None:
            return state.with_result(result, _NO_NUMBER_OF_CLUSTERS), None
        about = clusterings(result)[place]
        task = _task(about, before.config) if about.sizes is not None else None
        if task is not None:
            return state, task
        found = Outcomes(
            n_clusters=len(about.centroids),
            reference=int(np.argmax(about.sizes or (0,))),
            results=(),
            silent=tuple(sorted(before.config.silent)),
        )
        return state.with_result(_with_outcomes(result, place, found), _NOT_COUNTED), None

    def aggregate(self, closing: Round) -> Closed:
        # Imported here: a site does not load what only a coordinator computes.
        from fedclust.rounds.outcome_statistics import summarise

        plan, result = closing.plan, closing.state.found
        place = _outcomes_place(plan, result)
        if place is None:
            raise ValueError("no outcomes were asked in this state")
        about = clusterings(result)[place]
        found = summarise(
            {
                site: sent.cells
                for site, sent in payloads_of(closing.contributions, OutcomesPayload).items()
            },
            plan.outcomes,
            {site: np.asarray(row) for site, row in about.site_sizes.items()},
            exact=plan.policy.protection == "none",
            min_sites=plan.policy.min_sites,
            silent=closing.config.silent,
        )
        state = closing.state.with_result(_with_outcomes(result, place, found))
        return Closed(state, metrics={})

    def give_up(self, closing: Round) -> Closed:
        return Closed(closing.state.with_result(closing.state.found, _NOT_COUNTED))


def _phase_of(outcomes: Sequence[Outcome], *, exact: bool) -> Phase:
    """Return the phase with a line for each outcome: its noise and its points."""
    lines = []
    for each in outcomes:
        noise = f"each with random noise (sd {math.sqrt(each.variance):.3g}): {each.points} points"
        lines.append(
            PHASE.discloses[0].model_copy(
                update={
                    "shape": f"{len(each.cells)} numbers for each cluster, and for persons in none",
                    "meaning": f"Counts of {each.name} by final cluster, computed from your rows, "
                    f"{'exact' if exact else noise}.",
                    **({"identifies": "Single persons: the counts are exact."} if exact else {}),
                }
            )
        )
    return replace(PHASE, discloses=tuple(lines))


def _task(result: Result, config: RunConfig) -> Task[OutcomesTask] | None:
    """Return the task about a complete result; None where too few sites would answer.

    Parameters
    ----------
    result : Result
        Sorted, with the persons of each site.
    config : RunConfig
        ``silent`` names the sites that answer no question about outcomes.
    """
    persons = {site: sum(row) for site, row in result.site_sizes.items()}
    asked = tuple(site for site in config.roster if persons.get(site) and site not in config.silent)
    if len(asked) < config.policy.min_sites:
        return None
    parts = {
        site: OutcomesSitePart(persons=persons[site], mapping=result.mapping.get(site))
        for site in asked
    }
    model = FinalModel(**{name: getattr(result, name) for name in FinalModel.model_fields})
    return Task(NAME, OutcomesTask(model=model), per_site=parts, sites=asked)


def _outcomes_place(plan: Plan, result: Result) -> int | None:
    """Return the place of the clustering whose outcomes are asked; None where no K stands out."""
    if result.sweep is None:
        return 0
    wanted = plan.outcomes_k
    if wanted == "recommended":
        # Imported here, as above.
        from fedclust.rounds.model_selection import sole_choice

        wanted = sole_choice(result.sweep)
    ks = [entry.n_clusters for entry in result.sweep]
    return ks.index(wanted) if wanted in ks else None


def _with_outcomes(result: Result, place: int, found: Outcomes) -> Result:
    return update_each(result, lambda at, _: {"outcomes": found} if at == place else {})
