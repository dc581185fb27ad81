"""The closing round: how good the final clusters are, and cells of each site's records.

Every session with ``evaluate`` ends its method's rounds with it. A site measures the clusters of
every K (``engine.evaluation``) and counts the persons who move between one K and the next. Where
the clusters are compared with one cloud (``engine.reference``) or with models of resampled data
(``engine.resampling``), it also describes its records by cells. The clusters are sorted before, so
that everything is in their final order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fedclust.engine import evaluation
from fedclust.engine.evaluation import Evaluation, EvaluationOutcome, EvaluationTask
from fedclust.engine.record_cells import (
    MOST_VALUES,
    N_CELLS,
    RecordCells,
    check_record_cells,
    find_cells,
)
from fedclust.engine.sweep import config_at, has_enough, several_of
from fedclust.methods.common.kmeans_rounds import disclosure
from fedclust.methods.common.local_kmeans import local_kmeans, local_restarts
from fedclust.numeric.agreement import contingency_table
from fedclust.numeric.array_types import IntArray
from fedclust.numeric.arrays import IntMatrix, IntVector
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.modes import CentroidRule
from fedclust.protection.message_checks import check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import AnyMethod
from fedclust.schema.model import Model
from fedclust.schema.options import MethodOptions
from fedclust.schema.points import Points
from fedclust.schema.policy import Policy
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import centroid_rule
from fedclust.schema.task import Contribution, Phase, SiteTask, Task, narrow, payloads_of

__all__ = ["NAME", "PHASE", "EvidencePart", "EvidencePayload", "EvidenceTask"]

NAME = "evidence"


class EvidenceTask(Model):
    """Measure your points against the final clusters, and describe the points.

    Attributes
    ----------
    n_clusters : (n,) int64
        In a sweep, every K that came to a clustering, ascending; elsewhere empty.
    parts : tuple of EvaluationTask
        The final clusters of each of these; elsewhere one part.
    """

    n_clusters: IntVector
    parts: tuple[EvaluationTask, ...]


class EvidencePart(Model):
    """A site's numbers about one K.

    Attributes
    ----------
    evaluation : Evaluation
    flow : (K', K) int64 or None
        Persons by their cluster of the part before and of this one; None in the first part, and
        after a part without persons.
    own : (K, K) int64 or None
        With ``transfer``: persons by cluster of the site's own k-means (rows) and by their cluster
        (columns). A row of zeros stands for each cluster that the site does not find.
    """

    evaluation: Evaluation
    flow: IntMatrix | None = None
    own: IntMatrix | None = None


class EvidencePayload(Model):
    """A site's answer.

    Attributes
    ----------
    parts : tuple of EvidencePart or None
        In the task's order; None where no person belongs to a cluster.
    cells : RecordCells or None
        The site's own k-means cells, where the session asks for them.
    """

    parts: tuple[EvidencePart | None, ...]
    cells: RecordCells | None = None


PHASE = Phase(
    name=NAME,
    once=True,
    optional=True,
    summary="Sizes and quality of the final clusters, and cells of your own records.",
    task=EvidenceTask,
    payload=EvidencePayload,
    discloses=(
        *(
            line.model_copy(
                update={
                    "field": f"parts.evaluation.{line.field}",
                    "shape": f"{line.shape}, for each K",
                }
            )
            for line in evaluation.DISCLOSES
        ),
        disclosure(
            "parts.flow",
            "K x K numbers, for each K of several",
            "How many of your persons move from each cluster to each of the next number of "
            "clusters.",
        ),
        disclosure(
            "parts.own",
            "K x K numbers, for each K, with the option transfer",
            "How many of your persons are in each pair of a cluster that you find alone and a "
            "final cluster.",
        ),
        disclosure(
            "cells.counts",
            f"up to {N_CELLS} numbers",
            "How many of your persons are in each cell of your own clustering.",
        ),
        disclosure(
            "cells.means",
            f"up to {N_CELLS} x d numbers",
            "The mean of each column over each cell, scaled.",
        ),
        disclosure(
            "cells.known",
            f"up to {N_CELLS} x d numbers, with imputed values",
            "For how many of your persons in each cell the record's value is not imputed.",
        ),
        disclosure(
            "cells.n_values",
            "d numbers",
            "How many different values your records hold in each column, where these are at most "
            f"{MOST_VALUES}; elsewhere 0.",
            "Describes all your groups together.",
        ),
        disclosure(
            "cells.values",
            f"up to {MOST_VALUES} numbers for each column",
            "These values, scaled.",
            "Values of records.",
        ),
        disclosure(
            "cells.persons",
            f"up to {MOST_VALUES} numbers for each column",
            "How many of your persons are in groups whose record holds each of these values.",
        ),
        disclosure(
            "cells.middles",
            f"up to {N_CELLS} x d numbers, from sites with more than {N_CELLS} groups",
            "The middle value of the records in each cell, of these columns, scaled.",
            "Values of records.",
        ),
    ),
)


def is_resampled(options: MethodOptions) -> bool:
    """Whether a round that compares the clusters with other models follows."""
    return options.evaluated and (options.resampled_models > 0 or options.transferred)


def not_judged(method: AnyMethod, policy: Policy) -> str | None:
    """Return why clusters of such a session are not compared with one cloud; None: they are."""
    if method.probabilities is not None:
        return "the classes of a mixture are compared by their BIC"
    if method.by_prototypes:
        return f"{method.name} tells its clusters apart by prototypes, not by centroids"
    if policy.dissimilarity == "gower":
        return "the comparison takes dissimilarity: euclidean or k-prototypes"
    if policy.missing == "mask":
        return "the comparison needs every column at every site: drop or impute missing values"
    return None


def sends_cells(method: AnyMethod, options: MethodOptions, policy: Policy) -> bool:
    """Whether sites describe their records by cells."""
    compared = options.compared_with_cloud and not_judged(method, policy) is None
    return compared or is_resampled(options)


def assigns_by_centroids(method: AnyMethod) -> bool:
    """Whether rows go with the nearest centroid, as in models of resampled data."""
    return not method.by_prototypes and method.probabilities is None


def check_options(method: AnyMethod, config: RunConfig) -> None:
    """Raise RuleViolation where evidence cannot be gathered for these options; says what to change.

    Its pointer is below the method's options.
    """
    options = config.options
    if config.outcomes and not options.evaluated:
        message = "outcomes are counted after the closing evaluation"
        # Variants that never evaluate have no such option.
        message += (
            ": leave evaluate on"
            if "evaluate" in type(options).model_fields
            else f", which {method.name} lacks with these options: take its default ones"
        )
        raise RuleViolation("evidence", message)
    one_k = not isinstance(options.n_clusters, tuple)
    asked = {
        "stability": options.resampled_models > 0,
        "transfer": options.transferred,
        "evidence": options.compared_with_cloud and one_k,
    }
    names = [name for name, wanted in asked.items() if wanted]
    if not names:
        return
    pointer = f"/{names[0]}"
    if not options.evaluated:
        message = "it rests on the closing evaluation: leave evaluate on"
        raise RuleViolation("evidence", message, pointer)
    reason = not_judged(method, config.policy)
    if reason is not None:
        raise RuleViolation("evidence", f"{reason}: leave {names[0]} out", pointer)


def clusterings(result: Result) -> tuple[Result, ...]:
    """Return the clustering of every K of a sweep, or the result itself."""
    return (result,) if result.sweep is None else tuple(each.result for each in result.sweep)


def with_clusterings(result: Result, changed: Sequence[Result]) -> Result:
    """Inverse of :func:`clusterings`."""
    if result.sweep is None:
        return changed[0]
    entries = tuple(
        entry.model_copy(update={"result": own})
        for entry, own in zip(result.sweep, changed, strict=True)
    )
    return result.model_copy(update={"sweep": entries})


def task(raw: Result) -> Task[EvidenceTask]:
    """Return the task about a result whose clusters are sorted."""
    parts = tuple(evaluation.task(each) for each in clusterings(raw))
    return Task(NAME, EvidenceTask(n_clusters=cluster_counts(raw), parts=parts))


def cluster_counts(result: Result) -> IntArray:
    """Return every K of a sweep, ascending; empty for another result."""
    return np.array([entry.n_clusters for entry in result.sweep or ()], dtype=np.int64)


def split_parts(n_clusters: IntArray, n_parts: int, config: RunConfig) -> Iterator[RunConfig]:
    """Yield the config of each part of a task; RuleViolation where these are not the session's."""
    ks = n_clusters.tolist()
    several = isinstance(config.options.n_clusters, tuple)
    known = set(ks) <= set(several_of(config)) if several else not ks
    if ks != sorted(set(ks)) or not known or n_parts != (len(ks) if several else 1) or not n_parts:
        raise RuleViolation(
            "task", "a task is about the session's numbers of clusters", "/parameters/n_clusters"
        )
    yield from (config_at(config, k) for k in ks) if several else (config,)


def check_task(task: SiteTask, config: RunConfig, *, prototypes: bool) -> None:
    """Refuse what the definition does not provide for; RuleViolation."""
    asked = narrow(task.common, EvidenceTask)
    for own, part in zip(
        split_parts(asked.n_clusters, len(asked.parts), config), asked.parts, strict=True
    ):
        evaluation.check_task(replace(task, common=part), own, prototypes=prototypes)


# --- At a site ------------------------------------------------------------------------------------


def local_step(
    task: SiteTask, points: Points, config: RunConfig, rng: np.random.Generator, *, cells: bool
) -> EvidencePayload | None:
    """Describe a site's scaled points; ``cells``: whether the session asks for cells."""
    asked = narrow(task.common, EvidenceTask)
    parts: list[EvidencePart | None] = []
    before: IntArray | None = None
    for own, part in zip(
        split_parts(asked.n_clusters, len(asked.parts), config), asked.parts, strict=True
    ):
        found = evaluation.local_step(replace(task, common=part), points, own)
        if found is None:
            parts.append(None)
            before = None
            continue
        labels = evaluation.label_points(part, points, own)
        flow = None
        if before is not None:
            shape = len(asked.parts[len(parts) - 1].centroids), len(part.centroids)
            flow = contingency_table(before, labels, points.sizes, shape)
        own_table = None
        if config.options.transferred:
            own_rng, rule = rng.spawn(1)[0], centroid_rule(config)
            own_table = _own_table(points, labels, len(part.centroids), own_rng, rule)
        parts.append(EvidencePart(evaluation=found, flow=flow, own=own_table))
        before = labels
    if all(part is None for part in parts):
        return None
    return EvidencePayload(parts=tuple(parts), cells=find_cells(points, rng) if cells else None)


def _own_table(
    points: Points,
    labels: IntArray,
    n_clusters: int,
    rng: np.random.Generator,
    rule: CentroidRule,
) -> IntArray:
    """Cluster a site's own points, and count persons by own and by final cluster (m,): (K, K)."""
    m, d = points.X.shape
    n_init = local_restarts(m, d, n_clusters)
    centroids = rule(local_kmeans(points, n_clusters, n_init, rng, rule).means)
    own = nearest_centroid(points.X, centroids)
    return contingency_table(own, labels, points.sizes, (n_clusters, n_clusters))


# --- Check ----------------------------------------------------------------------------------------


def check(task: SiteTask, payload: Model, config: RunConfig, *, cells: bool) -> None:
    """Check a site's answer at either end; RuleViolation."""
    asked, sent = narrow(task.common, EvidenceTask), narrow(payload, EvidencePayload)
    if len(sent.parts) != len(asked.parts):
        raise RuleViolation("shape", "one part is needed for each number of clusters", "/parts")
    configs = split_parts(asked.n_clusters, len(asked.parts), config)
    before: IntArray | None = None
    for i, (own, part, about) in enumerate(zip(configs, sent.parts, asked.parts, strict=True)):
        if part is None:
            before = None
            continue
        try:
            evaluation.check(replace(task, common=about), part.evaluation, own)
        except RuleViolation as broken:
            pointer = f"/parts/{i}/evaluation{broken.pointer}"
            raise RuleViolation(broken.rule, broken.message, pointer) from None
        _check_flow(part.flow, before, part.evaluation.counts, config.p, f"/parts/{i}/flow")
        before = part.evaluation.counts
        _check_own_table(part.own, before, own, f"/parts/{i}/own")
    if (sent.cells is not None) != cells:
        raise RuleViolation("cells", "a site sends cells where the session asks for them", "/cells")
    if sent.cells is not None:
        check_record_cells(sent.cells, config)


def _check_flow(
    flow: IntArray | None, before: IntArray | None, counts: IntArray, p: int, pointer: str
) -> None:
    if (flow is None) != (before is None):
        message = "a part has a flow if the part before it has persons"
        raise RuleViolation("flow", message, pointer)
    if flow is not None and before is not None:
        check_table(flow, before, counts, p, pointer)


def _check_own_table(
    table: IntArray | None, counts: IntArray, config: RunConfig, pointer: str
) -> None:
    if (table is not None) != config.options.transferred:
        raise RuleViolation("own", "the option transfer asks for it, and nothing else", pointer)
    if table is not None:
        check_shape(table, (len(counts), len(counts)), pointer)
        check_table(table, None, counts, config.p, pointer)


def check_table(
    table: IntArray, rows: IntArray | None, columns: IntArray | None, p: int, pointer: str
) -> None:
    """Check a table (K, L) of persons: whole groups that add up to ``rows`` and ``columns``.

    Raises
    ------
    RuleViolation
        Another shape, a count below p other than 0, or other sums.
    """
    shape = (
        len(table) if rows is None else len(rows),
        table.shape[1] if columns is None else len(columns),
    )
    check_shape(table, shape, pointer)
    if ((table < p) & (table != 0)).any():
        raise RuleViolation("smallest-count", f"a count is 0 or at least {p}", pointer)
    wrong = rows is not None and (table.sum(axis=1) != rows).any()
    wrong |= columns is not None and (table.sum(axis=0) != columns).any()
    if wrong:
        raise RuleViolation("complement", "the persons do not add up to the clusters'", pointer)


# --- Aggregation ----------------------------------------------------------------------------------


def measured(
    raw: Result, contributions: Sequence[Contribution], config: RunConfig
) -> tuple[tuple[EvaluationOutcome | None, ...], tuple[IntArray | None, ...]]:
    """Return the evaluation of every K, and the flow from the K before; in the result's order.

    None for a K that fewer than ``min_sites`` sites measured; no flow where fewer have one.
    """
    found: list[EvaluationOutcome | None] = []
    flows: list[IntArray | None] = []
    for place, own in enumerate(clusterings(raw)):
        sent = part_contributions(contributions, place)
        scores = [
            Contribution(c.site, None if c.payload is None else c.payload.evaluation, c.p)
            for c in sent
        ]
        enough = has_enough(scores, config)
        found.append(evaluation.aggregate(own, scores, config) if enough else None)
        tables = [
            c.payload.flow for c in sent if c.payload is not None and c.payload.flow is not None
        ]
        known = enough and len(tables) >= max(config.policy.min_sites, 1)
        flows.append(np.sum(tables, axis=0) if known else None)
    return tuple(found), tuple(flows)


def part_contributions(
    contributions: Sequence[Contribution], place: int
) -> list[Contribution[EvidencePart]]:
    """Return the sites' parts about the K at ``place``."""
    return [
        Contribution(
            c.site,
            None if c.payload is None else narrow(c.payload, EvidencePayload).parts[place],
            c.p,
        )
        for c in contributions
    ]


def cells_of(contributions: Sequence[Contribution]) -> dict[str, RecordCells]:
    """Return the cells of the sites that sent any; contributions sorted by site."""
    sent = payloads_of(contributions, EvidencePayload)
    return {site: each.cells for site, each in sent.items() if each.cells is not None}


def count_groups(contributions: Sequence[Contribution]) -> list[int]:
    """Return the number of groups of each site that sent cells."""
    sent = payloads_of(contributions, EvidencePayload).values()
    firsts = [next(filter(None, each.parts)) for each in sent if each.cells is not None]
    return [int(part.evaluation.points.sum()) for part in firsts]
