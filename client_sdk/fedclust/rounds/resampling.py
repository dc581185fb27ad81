"""The additional round of a session with evidence: the clusters against resampled models.

The coordinator computes all models from the sites' cells before the round opens. Each site labels
its records with the final clusters and with every model, and returns how many persons have each
pair of labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedclust.methods.common.kmeans_rounds import check_sizes, disclosure
from fedclust.numeric.agreement import contingency_table
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.arrays import (
    FloatMatrix,
    FloatTensor3,
    IntMatrix,
    IntTensor3,
    IntVector,
)
from fedclust.numeric.distances import nearest_centroid
from fedclust.protection.message_checks import check_shape
from fedclust.rounds import evaluation
from fedclust.rounds.evaluation import EvaluationTask
from fedclust.rounds.evidence import cells_of, check_table
from fedclust.rounds.plan import Plan, finds_own_clusters, is_resampled
from fedclust.rounds.record_cells import PooledCells, pool_cells
from fedclust.rounds.stability import resampled_models, summarise
from fedclust.rounds.stage import Closed, EngineState, Round, Stage
from fedclust.rounds.sweep import (
    cluster_counts,
    clusterings,
    has_enough,
    is_measured,
    part_of,
    split_parts,
    update_each,
    with_history,
)
from fedclust.rounds.transfer import add_left_out, left_out_models
from fedclust.schema.errors import RuleViolation
from fedclust.schema.evidence import Stability
from fedclust.schema.model import Model
from fedclust.schema.points import Points
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import centroid_rule
from fedclust.schema.task import (
    Contribution,
    Phase,
    SiteSide,
    SiteTask,
    Task,
    narrow,
    payloads_of,
)

NAME = "resampling"
_NOT_COMPARED = (
    "the clusters were not compared with other models, for stability or transfer: fewer sites than "
    "min_sites could answer"
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


class LeftOutModels(Model):
    """A site's own part of the task.

    Attributes
    ----------
    parts : tuple of (K, d) float64 or None
        In the task's order: scaled centroids of the model made without this site. None where there
        is none.
    """

    parts: tuple[FloatMatrix | None, ...]


class ResamplingTables(Model):
    """A site's numbers about one K.

    Attributes
    ----------
    models : (B, K, K) int64
        Persons by their final cluster and that of each model.
    left_out : (K, K) int64 or None
        Persons by their cluster in the model made without the site (rows) and by their final
        cluster (columns).
    """

    models: IntTensor3
    left_out: IntMatrix | None = None


class ResamplingPayload(Model):
    """A site's answer: in the task's order, None where no person belongs to a cluster."""

    parts: tuple[ResamplingTables | None, ...]


# --- At a site ------------------------------------------------------------------------------------


def check_task(task: SiteTask[ResamplingTask], config: RunConfig) -> None:
    """Refuse other models than the definition provides for; RuleViolation."""
    n_models = config.options.resampled_models
    for i, (own, part) in enumerate(_parts(task, config)):
        evaluation.check_task(part.clusters, own)
        shape = part.clusters.centroids.shape
        if part.models.shape != (n_models, *shape):
            message = f"the definition provides for {n_models} models of {shape[0]} clusters"
            raise RuleViolation("task", message, f"/parameters/parts/{i}/models")
    _check_left_out(task.site, task.common, config)


def _check_left_out(site: Model | None, asked: ResamplingTask, config: RunConfig) -> None:
    """Refuse another number, or other shapes, of models made without the site; RuleViolation."""
    if (site is not None) != finds_own_clusters(config):
        raise RuleViolation("task", "transfer without protection gives each site a part of its own")
    if site is None:
        return
    models = narrow(site, LeftOutModels).parts
    wanted = [part.clusters.centroids.shape for part in asked.parts]
    shapes = [None if model is None else model.shape for model in models]
    pairs = zip(shapes, wanted, strict=False)
    if len(shapes) != len(wanted) or any(found not in (None, shape) for found, shape in pairs):
        raise RuleViolation("task", "the definition provides for other models without a site")


def _parts(
    task: SiteTask[ResamplingTask], config: RunConfig
) -> Iterator[tuple[RunConfig, ResampledModels]]:
    """Yield each part of a task with its config."""
    return split_parts(task.common.n_clusters.tolist(), task.common.parts, config)


def _left_out(task: SiteTask[ResamplingTask]) -> tuple[FloatArray | None, ...]:
    """Return the models made without a site, in the task's order."""
    if task.site is None:
        return (None,) * len(task.common.parts)
    return narrow(task.site, LeftOutModels).parts


def _local_step(task: SiteTask[ResamplingTask], site: SiteSide) -> ResamplingPayload | None:
    points = site.points
    found: list[ResamplingTables | None] = []
    for (own, part), without in zip(_parts(task, site.config), _left_out(task), strict=True):
        labels = evaluation.label_points(part.clusters, points, own)
        found.append(_compare(part, without, labels, points) if (labels >= 0).any() else None)
    if all(part is None for part in found):
        return None
    return ResamplingPayload(parts=tuple(found))


def _compare(
    part: ResampledModels, without: FloatArray | None, labels: IntArray, points: Points
) -> ResamplingTables:
    k = len(part.clusters.centroids)
    shape = (k, k)

    def table(rows: IntArray, columns: IntArray) -> IntArray:
        return contingency_table(rows, columns, points.sizes, shape)

    models = [table(labels, nearest_centroid(points.X, each)) for each in part.models]
    return ResamplingTables(
        models=np.array(models, dtype=np.int64).reshape(-1, k, k),
        left_out=None if without is None else table(nearest_centroid(points.X, without), labels),
    )


def _check(task: SiteTask[ResamplingTask], payload: ResamplingPayload, config: RunConfig) -> None:
    asked = task.common.parts
    if len(payload.parts) != len(asked):
        raise RuleViolation("shape", "one part is needed for each number of clusters", "/parts")
    for i, (part, about, without) in enumerate(
        zip(payload.parts, asked, _left_out(task), strict=True)
    ):
        if part is not None:
            _check_tables(part, about, without, config, f"/parts/{i}")


def _check_tables(
    part: ResamplingTables,
    about: ResampledModels,
    without: FloatArray | None,
    config: RunConfig,
    at: str,
) -> None:
    """Check a site's numbers about one K."""
    k = len(about.clusters.centroids)
    check_shape(part.models, (len(about.models), k, k), f"{at}/models")
    persons: IntArray | None = None
    for table in part.models:
        check_table(table, persons, None, config.p, f"{at}/models")
        if persons is None:
            persons = table.sum(axis=1)
            check_sizes(persons, config, f"{at}/models")
    if (part.left_out is None) != (without is None):
        raise RuleViolation("left-out", "a model without the site gives a table", at)
    if part.left_out is not None:
        check_shape(part.left_out, (k, k), f"{at}/left_out")
        check_table(part.left_out, None, persons, config.p, f"{at}/left_out")
        check_sizes(part.left_out.sum(axis=0), config, f"{at}/left_out")


PHASE = Phase(
    name=NAME,
    once=True,
    optional=True,
    summary="Each site compares the final clusters with models of resampled data.",
    task=ResamplingTask,
    payload=ResamplingPayload,
    site_part=LeftOutModels,
    local_step=_local_step,
    check=_check,
    check_task=check_task,
    discloses=(
        disclosure(
            "parts.models",
            "K x K numbers for each model, for each K",
            "How many of your persons are in each pair of a final cluster and a model's cluster.",
        ),
        disclosure(
            "parts.left_out",
            "K x K numbers, for each K, with transfer and without protection",
            "How many of your persons are in each pair of a cluster of the model made without you "
            "and a final cluster.",
        ),
    ),
)


# --- The stage ------------------------------------------------------------------------------------


class ResamplingStage(Stage):
    """The comparison with resampled models, and with models made without a site."""

    name = "resample"
    own_phases = (PHASE,)

    def phases(self, plan: Plan) -> tuple[Phase, ...]:
        """Return the phase without what nobody sends in this session, with its number of models."""
        if not is_resampled(plan):
            return ()
        n_models, own = plan.options.resampled_models, finds_own_clusters(plan)
        shapes = {"parts.models": f"K x K numbers for each of {n_models} models, for each K"}
        absent = set() if n_models else {"parts.models"}
        absent |= set() if own else {"parts.left_out"}
        discloses = tuple(
            line.model_copy(update={"shape": shapes.get(line.field, line.shape)})
            for line in PHASE.discloses
            if line.field not in absent
        )
        return (replace(PHASE, discloses=discloses),)

    def task(self, before: Round) -> tuple[EngineState, Task | None]:
        plan, state = before.plan, before.state
        if not (is_resampled(plan) and is_measured(state.found)):
            return state, None
        sent = cells_of(before.contributions)
        if not sent:
            return state, None
        task = _task(state.found, pool_cells(sent), before.config, plan.seed)
        return state, None if _compares_nothing(task) else task

    def aggregate(self, closing: Round) -> Closed:
        result, metrics = closing.state.found, closing.metrics

        def compared(place: int, own: Result) -> dict[str, Any]:
            sent = part_of(closing.contributions, ResamplingPayload, place)
            update: dict[str, Any] = {"stability": _stability(sent, closing.config)}
            if own.transfer is not None:
                tables = {
                    site: part.left_out
                    for site, part in payloads_of(sent, ResamplingTables).items()
                    if part.left_out is not None
                }
                update["transfer"] = add_left_out(own.transfer, tables)
            return update

        state = with_history(closing.recorded(metrics), update_each(result, compared))
        return Closed(state, metrics=metrics)

    def give_up(self, closing: Round) -> Closed:
        return Closed(closing.state.with_result(closing.state.found, _NOT_COMPARED))


# --- At the coordinator ---------------------------------------------------------------------------


def _task(result: Result, cells: PooledCells, config: RunConfig, seed: int) -> Task[ResamplingTask]:
    """Return the task that compares a complete result with models of resampled cells."""
    n_models = config.options.resampled_models
    parts = []
    for own in clusterings(result):
        clusters = evaluation.task(own)
        models = np.zeros((0, *own.centroids.shape))
        if n_models:
            models = resampled_models(
                cells,
                len(own.centroids),
                n_models=n_models,
                min_sites=config.policy.min_sites,
                seed=seed,
                rule=centroid_rule(config),
            )
        parts.append(ResampledModels(clusters=clusters, models=models))
    common = ResamplingTask(n_clusters=cluster_counts(result), parts=tuple(parts))
    return Task(NAME, common, per_site=_left_out_parts(result, cells, config, seed))


def _left_out_parts(
    result: Result, cells: PooledCells, config: RunConfig, seed: int
) -> dict[str, LeftOutModels]:
    """Return the models made without each site of the roster."""
    if not finds_own_clusters(config):
        return {}
    by_k = [
        left_out_models(
            cells,
            len(own.centroids),
            min_sites=config.policy.min_sites,
            seed=seed,
            rule=centroid_rule(config),
        )
        for own in clusterings(result)
    ]
    none = (None,) * len(by_k)
    known = dict(zip(cells.names, zip(*by_k, strict=True), strict=True))
    return {site: LeftOutModels(parts=known.get(site, none)) for site in config.roster}


def _compares_nothing(task: Task[ResamplingTask]) -> bool:
    """Whether a task has no model to compare with."""
    every = [each.parts for each in task.per_site.values() if isinstance(each, LeftOutModels)]
    known = any(model is not None for parts in every for model in parts)
    return not known and not any(len(part.models) for part in task.common.parts)


def _stability(
    sent: Sequence[Contribution[ResamplingTables]], config: RunConfig
) -> Stability | None:
    """Return the stability of one K; None where too few sites answered for it."""
    if not has_enough(sent, config) or not config.options.resampled_models:
        return None
    tables = payloads_of(sent, ResamplingTables).values()
    return summarise(np.sum([each.models for each in tables], axis=0, dtype=np.int64))
