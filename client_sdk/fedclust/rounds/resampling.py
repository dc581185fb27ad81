"""The additional round of a session with evidence: the clusters against resampled models.

The coordinator computes all models from the sites' cells before the round opens. Each site labels
its records with the final clusters and with every model, and returns how many persons have each
pair of labels.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedclust.methods.common.kmeans_rounds import check_sizes, disclosures
from fedclust.numeric.agreement import contingency_table
from fedclust.numeric.array_types import IntArray
from fedclust.numeric.arrays import FloatTensor3, IntTensor3, IntVector
from fedclust.numeric.distances import nearest_centroid
from fedclust.protection.message_checks import check_shape
from fedclust.rounds import evaluation
from fedclust.rounds.evaluation import EvaluationTask
from fedclust.rounds.evidence import cells_of
from fedclust.rounds.plan import Plan
from fedclust.rounds.record_cells import RecordCells
from fedclust.rounds.stability import resampled_models, summarise
from fedclust.rounds.stage import Closed, EngineState, Round, Stage
from fedclust.rounds.sweep import (
    check_parts,
    cluster_counts,
    clusterings,
    has_enough,
    is_measured,
    part_of,
    parts_of,
    update_each,
)
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.result import Result, Stability
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import centroid_rule
from fedclust.schema.task import Contribution, Phase, Points, SiteSide, SiteTask, Task, payloads_of

NAME = "resampling"
_NOT_COMPARED = (
    "stability is not known: fewer sites than min_sites could compare the clusters with models of "
    "resampled data"
)


class ResampledModels(Model):
    """What the final clusters of one K are compared with.

    Attributes
    ----------
    clusters : EvaluationTask
        The final clusters.
    models : (B, K, d) float64
        Scaled centroids of models of resampled data. Of several equal centroids the first counts.
    """

    clusters: EvaluationTask
    models: FloatTensor3


class ResamplingTask(Model):
    """Label your records with the final clusters and with each of these models.

    Attributes
    ----------
    n_clusters : (n,) int64
        As in :class:`~fedclust.rounds.evidence.EvidenceTask`.
    parts : tuple of ResampledModels
    """

    n_clusters: IntVector
    parts: tuple[ResampledModels, ...]


class ResamplingTables(Model):
    """A site's numbers about one K.

    Attributes
    ----------
    models : (B, K, K) int64
        Persons by their final cluster and that of each model.
    """

    models: IntTensor3


class ResamplingPayload(Model):
    """A site's answer: in the task's order, None where no person belongs to a cluster."""

    parts: tuple[ResamplingTables | None, ...]


# --- At a site ------------------------------------------------------------------------------------


def check_task(task: SiteTask[ResamplingTask], config: RunConfig) -> None:
    """Refuse other models than the definition provides for; RuleViolation."""
    n_models = config.options.resampled_models
    for i, (own, part) in enumerate(parts_of(task, config)):
        evaluation.check_task(part.clusters, own)
        shape = part.clusters.centroids.shape
        if part.models.shape != (n_models, *shape):
            message = f"the definition provides for {n_models} models of {shape[0]} clusters"
            raise RuleViolation("task", message, f"/parameters/parts/{i}/models")


def _local_step(task: SiteTask[ResamplingTask], site: SiteSide) -> ResamplingPayload | None:
    points = site.points
    found: list[ResamplingTables | None] = []
    for own, part in parts_of(task, site.config):
        labels = evaluation.label_points(part.clusters, points, own)
        found.append(_compare(part, labels, points) if (labels >= 0).any() else None)
    if all(part is None for part in found):
        return None
    return ResamplingPayload(parts=tuple(found))


def _compare(part: ResampledModels, labels: IntArray, points: Points) -> ResamplingTables:
    k = len(part.clusters.centroids)
    tables = [
        contingency_table(labels, nearest_centroid(points.X, each), points.sizes, (k, k))
        for each in part.models
    ]
    return ResamplingTables(models=np.array(tables))


def _check(task: SiteTask[ResamplingTask], payload: ResamplingPayload, config: RunConfig) -> None:
    check_parts(parts_of(task, config), payload.parts, _check_tables)


def _check_tables(about: ResampledModels, sent: ResamplingTables, config: RunConfig) -> None:
    """Check a site's tables (B, K, K) of one K."""
    k, models, at = len(about.clusters.centroids), sent.models, "/models"
    check_shape(models, (len(about.models), k, k), at)
    if ((models < config.p) & (models != 0)).any():
        raise RuleViolation("smallest-count", f"a count is 0 or at least {config.p}", at)
    persons = models.sum(axis=2)
    check_sizes(persons[0], config, at)
    if (persons != persons[0]).any():
        raise RuleViolation("complement", "the persons do not add up to the clusters'", at)


PHASE = Phase(
    name=NAME,
    once=True,
    optional=True,
    summary="Each site compares the final clusters with models of resampled data.",
    task=ResamplingTask,
    payload=ResamplingPayload,
    local_step=_local_step,
    check=_check,
    check_task=check_task,
    discloses=disclosures(
        "parts",
        models="K x K numbers for each model, for each K: How many of your persons are in each "
        "pair of a final cluster and a model's cluster.",
    ),
)


# --- The stage ------------------------------------------------------------------------------------


class ResamplingStage(Stage):
    """The comparison with resampled models."""

    name = "resample"
    own_phases = (PHASE,)

    def phases(self, plan: Plan) -> tuple[Phase, ...]:
        """Return the phase with its number of models."""
        n_models = plan.options.resampled_models
        if not n_models:
            return ()
        (line,) = PHASE.discloses
        shape = f"K x K numbers for each of {n_models} models, for each K"
        return (replace(PHASE, discloses=(line.model_copy(update={"shape": shape}),)),)

    def task(self, before: Round) -> tuple[EngineState, Task | None]:
        plan, state = before.plan, before.state
        if not (plan.options.resampled_models and is_measured(state.found)):
            return state, None
        sent = [*cells_of(before.contributions).values()]
        return state, _task(state.found, sent, before.config, plan.seed) if sent else None

    def aggregate(self, closing: Round) -> Closed:
        def compared(place: int, _: Result) -> dict[str, Any]:
            sent = part_of(closing.contributions, ResamplingPayload, place)
            return {"stability": _stability(sent, closing.config)}

        state = closing.state
        return Closed(state.with_result(update_each(state.found, compared)), metrics={})

    def give_up(self, closing: Round) -> Closed:
        return Closed(closing.state.with_result(closing.state.found, _NOT_COMPARED))


# --- At the coordinator ---------------------------------------------------------------------------


def _task(
    result: Result, cells: Sequence[RecordCells], config: RunConfig, seed: int
) -> Task[ResamplingTask]:
    """Return the task that compares a complete result with models of resampled cells."""
    parts = []
    for own in clusterings(result):
        models = resampled_models(
            cells,
            len(own.centroids),
            n_models=config.options.resampled_models,
            min_sites=config.policy.min_sites,
            seed=seed,
            rule=centroid_rule(config),
        )
        parts.append(ResampledModels(clusters=evaluation.task(own), models=models))
    return Task(NAME, ResamplingTask(n_clusters=cluster_counts(result), parts=tuple(parts)))


def _stability(
    sent: Sequence[Contribution[ResamplingTables]], config: RunConfig
) -> Stability | None:
    """Return the stability of one K; None where too few sites answered for it."""
    if not has_enough(sent, config):
        return None
    tables = payloads_of(sent, ResamplingTables).values()
    return summarise(np.sum([each.models for each in tables], axis=0, dtype=np.int64))
