"""The additional round of a session with evidence: the clusters against resampled models.

The coordinator computes all models from the sites' cells before the round opens. Each site labels
its records with the final clusters and with every model, and returns how many persons have each
pair of labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedclust.engine import evaluation
from fedclust.engine.evaluation import EvaluationTask
from fedclust.engine.evidence import (
    check_table,
    cluster_counts,
    clusterings,
    split_parts,
)
from fedclust.engine.record_cells import PooledCells
from fedclust.engine.stability import (
    count_ambiguous_pairs,
    paired_points,
    resampled_models,
    summarise,
)
from fedclust.engine.sweep import has_enough
from fedclust.engine.transfer import left_out_models
from fedclust.methods.common.cluster_sums import check_sizes
from fedclust.methods.common.kmeans_rounds import disclosure
from fedclust.numeric.agreement import contingency_table
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.arrays import (
    FloatMatrix,
    FloatTensor3,
    FloatVector,
    IntMatrix,
    IntTensor3,
    IntVector,
)
from fedclust.numeric.distances import nearest_centroid
from fedclust.protection.message_checks import check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.evidence import Stability
from fedclust.schema.model import Model
from fedclust.schema.points import Points
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import centroid_rule
from fedclust.schema.task import Contribution, Phase, SiteTask, Task, narrow

__all__ = ["NAME", "PHASE", "ResampledModels", "ResamplingPayload", "ResamplingTask"]

NAME = "resampling"
#: The most numbers in a task, of all models: 32 MB, as much as a message may have.
MAX_NUMBERS = 4_000_000


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
        As in :class:`~fedclust.engine.evidence.EvidenceTask`.
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
    pairs : (3,) float64
        Pairs of persons by how many models put both into one cluster: at most a tenth of them, in
        between, at least nine tenths. As floats: they can be more than a count may be.
    left_out : (K, K) int64 or None
        Persons by their cluster in the model made without the site (rows) and by their final
        cluster (columns).
    """

    models: IntTensor3
    pairs: FloatVector
    left_out: IntMatrix | None = None


class ResamplingPayload(Model):
    """A site's answer: in the task's order, None where no person belongs to a cluster."""

    parts: tuple[ResamplingTables | None, ...]


PHASE = Phase(
    name=NAME,
    once=True,
    optional=True,
    summary="Each site compares the final clusters with models of resampled data.",
    task=ResamplingTask,
    payload=ResamplingPayload,
    site_part=LeftOutModels,
    discloses=(
        disclosure(
            "parts.models",
            "K x K numbers for each model, for each K",
            "How many of your persons are in each pair of a final cluster and a model's cluster.",
        ),
        disclosure(
            "parts.pairs",
            "3 numbers, for each K",
            "How many pairs of your persons few, some or nearly all models put together.",
        ),
        disclosure(
            "parts.left_out",
            "K x K numbers, for each K, with the option transfer",
            "How many of your persons are in each pair of a cluster of the model made without you "
            "and a final cluster.",
        ),
    ),
)


def check_options(config: RunConfig) -> None:
    """Raise RuleViolation where the models would not fit into one message."""
    wanted = config.options.n_clusters
    n_models = config.options.resampled_models
    if wanted is None or not n_models:
        return
    n_clusters = wanted if isinstance(wanted, int) else sum(wanted)
    per_model = n_clusters * len(config.columns)
    # The answer has a table of K x K for each model, and perhaps one more.
    per_table = wanted**2 if isinstance(wanted, int) else sum(k**2 for k in wanted)
    most = min(MAX_NUMBERS // per_model, MAX_NUMBERS // per_table - 1)
    if n_models > most:
        message = "so many models of these clusters and columns are too large: at most {}"
        raise RuleViolation("evidence", message.format(max(most, 0)), "/stability")


def task(result: Result, cells: PooledCells, config: RunConfig, seed: int) -> Task[ResamplingTask]:
    """Return the task that compares a complete result with models of resampled cells."""
    n_models = config.options.resampled_models
    parts = []
    for own in clusterings(result):
        clusters = evaluation.task(own)
        models = np.zeros((0, *own.centroids.shape))
        if n_models:
            models = resampled_models(
                cells.means,
                cells.counts,
                cells.sites,
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
    if not config.options.transferred:
        return {}
    by_k = [
        left_out_models(
            cells.means,
            cells.counts,
            cells.sites,
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


def compares_nothing(task: Task[ResamplingTask]) -> bool:
    """Whether a task has no model to compare with."""
    every = [each.parts for each in task.per_site.values() if isinstance(each, LeftOutModels)]
    known = any(model is not None for parts in every for model in parts)
    return not known and not any(len(part.models) for part in task.common.parts)


def check_task(task: SiteTask, config: RunConfig, *, prototypes: bool) -> None:
    """Refuse what the definition does not provide for; RuleViolation."""
    asked = narrow(task.common, ResamplingTask)
    n_models = config.options.resampled_models
    configs = split_parts(asked.n_clusters, len(asked.parts), config)
    for i, (own, part) in enumerate(zip(configs, asked.parts, strict=True)):
        evaluation.check_task(replace(task, common=part.clusters), own, prototypes=prototypes)
        shape = part.clusters.centroids.shape
        if part.models.shape != (n_models, *shape):
            message = f"the definition provides for {n_models} models of {shape[0]} clusters"
            raise RuleViolation("task", message, f"/parameters/parts/{i}/models")
    _check_left_out(task.site, asked, config)


def _check_left_out(site: Model | None, asked: ResamplingTask, config: RunConfig) -> None:
    """Refuse another number, or other shapes, of models made without the site; RuleViolation."""
    if (site is not None) != config.options.transferred:
        raise RuleViolation("task", "the option transfer gives each site a part of its own")
    if site is None:
        return
    models = narrow(site, LeftOutModels).parts
    wanted = [part.clusters.centroids.shape for part in asked.parts]
    shapes = [None if model is None else model.shape for model in models]
    pairs = zip(shapes, wanted, strict=False)
    if len(shapes) != len(wanted) or any(found not in (None, shape) for found, shape in pairs):
        raise RuleViolation("task", "the definition provides for other models without a site")


# --- At a site ------------------------------------------------------------------------------------


def local_step(task: SiteTask, points: Points, config: RunConfig) -> ResamplingPayload | None:
    """Compare the clusters of a site's scaled points."""
    asked = narrow(task.common, ResamplingTask)
    parts: list[ResamplingTables | None] = []
    configs = split_parts(asked.n_clusters, len(asked.parts), config)
    left_out = _left_out(task)
    for own, part, without in zip(configs, asked.parts, left_out, strict=True):
        labels = evaluation.label_points(part.clusters, points, own)
        parts.append(_compare(part, without, labels, points) if (labels >= 0).any() else None)
    if all(part is None for part in parts):
        return None
    return ResamplingPayload(parts=tuple(parts))


def _left_out(task: SiteTask) -> tuple[FloatArray | None, ...]:
    """Return the models made without a site, in the task's order."""
    if task.site is None:
        return (None,) * len(narrow(task.common, ResamplingTask).parts)
    return narrow(task.site, LeftOutModels).parts


def _compare(
    part: ResampledModels, without: FloatArray | None, labels: IntArray, points: Points
) -> ResamplingTables:
    k = len(part.clusters.centroids)
    shape = (k, k)

    def table(rows: IntArray, columns: IntArray) -> IntArray:
        return contingency_table(rows, columns, points.sizes, shape)

    # One model after the other: a site may have 200,000 points.
    models, compared = [], paired_points(len(points.X))
    by_model = np.empty((len(part.models), len(compared)), dtype=np.int64)
    for b, centroids in enumerate(part.models):
        found = nearest_centroid(points.X, centroids)
        models.append(table(labels, found))
        by_model[b] = found[compared]
    pairs = np.zeros(3)
    if models:
        pairs = count_ambiguous_pairs(by_model, points.sizes[compared]).astype(np.float64)
    return ResamplingTables(
        models=np.array(models, dtype=np.int64).reshape(-1, k, k),
        pairs=pairs,
        left_out=None if without is None else table(nearest_centroid(points.X, without), labels),
    )


def check(task: SiteTask, payload: Model, config: RunConfig) -> None:
    """Check a site's answer at either end; RuleViolation."""
    asked, sent = narrow(task.common, ResamplingTask), narrow(payload, ResamplingPayload)
    if len(sent.parts) != len(asked.parts):
        raise RuleViolation("shape", "one part is needed for each number of clusters", "/parts")
    every = zip(sent.parts, asked.parts, _left_out(task), strict=True)
    for i, (part, about, without) in enumerate(every):
        if part is None:
            continue
        at, k = f"/parts/{i}", len(about.clusters.centroids)
        check_shape(part.models, (len(about.models), k, k), f"{at}/models")
        check_shape(part.pairs, (3,), f"{at}/pairs")
        if (part.pairs < 0).any():
            raise RuleViolation("count-range", "no count is negative", f"{at}/pairs")
        n_persons = sum(map(int, part.models[:1].ravel()))
        if part.pairs.sum() > n_persons * (n_persons - 1) / 2:
            raise RuleViolation("count-range", "more pairs than persons have", f"{at}/pairs")
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


# --- Aggregation ----------------------------------------------------------------------------------


def stabilities(
    result: Result, contributions: Sequence[Contribution], config: RunConfig
) -> tuple[Stability | None, ...]:
    """Return the stability of every K of a result; None where too few sites answered for it."""
    found: list[Stability | None] = []
    for place in range(len(clusterings(result))):
        sent = _parts(contributions, place)
        tables = [c.payload for c in sent if c.payload is not None]
        if not has_enough(sent, config) or not config.options.resampled_models:
            found.append(None)
            continue
        summary = summarise(
            np.sum([each.models for each in tables], axis=0, dtype=np.int64),
            np.sum([each.pairs for each in tables], axis=0),
        )
        found.append(summary)
    return tuple(found)


def left_out_tables(
    result: Result, contributions: Sequence[Contribution]
) -> tuple[dict[str, IntArray], ...]:
    """Return the tables of the models made without each site, by site, for every K of a result."""
    found = []
    for place in range(len(clusterings(result))):
        sent = {c.site: c.payload for c in _parts(contributions, place) if c.payload is not None}
        tables = {site: part.left_out for site, part in sent.items()}
        found.append({site: table for site, table in tables.items() if table is not None})
    return tuple(found)


def _parts(
    contributions: Sequence[Contribution], place: int
) -> list[Contribution[ResamplingTables]]:
    return [
        Contribution(
            c.site,
            None if c.payload is None else narrow(c.payload, ResamplingPayload).parts[place],
            c.p,
        )
        for c in contributions
    ]
