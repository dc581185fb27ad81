"""The closing round: how good the final clusters are, and cells of each site's records.

Every session with ``evaluate`` ends its method's rounds with it. A site measures the clusters of
every K (``rounds.evaluation``). Where the clusters are compared with one cloud
(``rounds.reference``) or with models of resampled data (``rounds.resampling``), it also describes
its records by cells. From these the coordinator finds how sites differ. The clusters are sorted
before, so that everything is in their final order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedclust.methods.common.finalize import sort_clusters
from fedclust.methods.common.kmeans_rounds import disclosures
from fedclust.numeric.agreement import cramers_v
from fedclust.numeric.arrays import IntVector
from fedclust.rounds import evaluation
from fedclust.rounds.evaluation import Evaluation, EvaluationTask
from fedclust.rounds.plan import Plan, not_judged
from fedclust.rounds.record_cells import (
    MOST_VALUES,
    N_CELLS,
    RecordCells,
    check_record_cells,
    find_cells,
)
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
    with_clusterings,
)
from fedclust.schema.errors import RuleViolation, broken_at
from fedclust.schema.model import Model
from fedclust.schema.result import CloudComparison, Result, SiteDifferences
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import binary_columns, centroid_rule
from fedclust.schema.task import Contribution, Phase, SiteSide, SiteTask, Task, payloads_of

NAME = "evidence"
_UNMEASURED = (
    "sizes and quality are not known: fewer sites than needed could answer the closing evaluation"
)
#: With protection, Cramér's V takes so many groups for each site. With fewer it is too often more
#: than .1 off that of the persons (docs/results/table_one.md).
_FEWEST_GROUPS = 30
_K_UNMEASURED = f"{_UNMEASURED} for this number of clusters"


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


class EvidencePayload(Model):
    """A site's answer.

    Attributes
    ----------
    parts : tuple of Evaluation or None
        In the task's order; None where no person belongs to a cluster.
    cells : RecordCells or None
        The site's own k-means cells, where the session asks for them.
    """

    parts: tuple[Evaluation | None, ...]
    cells: RecordCells | None = None


# --- At a site ------------------------------------------------------------------------------------


def _check_task(task: SiteTask[EvidenceTask], config: RunConfig) -> None:
    for own, part in parts_of(task, config):
        evaluation.check_task(part, own)


def _local_step(task: SiteTask[EvidenceTask], site: SiteSide) -> EvidencePayload | None:
    points = site.points
    found = list[Evaluation | None]()
    for own, part in parts_of(task, site.config):
        labels = evaluation.label_points(part, points, own)
        some = (labels >= 0).any()
        found.append(evaluation.local_step(part, points, own, labels) if some else None)
    if all(part is None for part in found):
        return None
    cells = find_cells(points, site.rng) if site.config.sends_cells else None
    return EvidencePayload(parts=tuple(found), cells=cells)


# --- Check ----------------------------------------------------------------------------------------


def _check(task: SiteTask[EvidenceTask], payload: EvidencePayload, config: RunConfig) -> None:
    check_parts(parts_of(task, config), payload.parts, evaluation.check)
    if (payload.cells is not None) != config.sends_cells:
        message = "a site sends cells where the session asks for them"
        raise RuleViolation("cells", message, "/cells")
    if payload.cells is not None:
        with broken_at("/cells"):
            check_record_cells(payload.cells, config)


PHASE = Phase(
    name=NAME,
    once=True,
    optional=True,
    summary="Sizes and quality of the final clusters, and cells of your own records.",
    task=EvidenceTask,
    payload=EvidencePayload,
    local_step=_local_step,
    check=_check,
    check_task=_check_task,
    discloses=(
        *evaluation.DISCLOSES,
        *disclosures(
            "cells",
            counts=f"up to {N_CELLS} numbers: How many of your persons are in each cell of your "
            "own clustering.",
            means=f"up to {N_CELLS} x d numbers: The mean of each column over each cell, scaled.",
            known=f"up to {N_CELLS} x d numbers, with imputed values: For how many of your persons "
            "in each cell the record's value is not imputed.",
            n_values="d numbers: How many different values your records hold in each column, "
            f"where these are at most {MOST_VALUES}; elsewhere 0.",
            values=f"up to {MOST_VALUES} numbers for each column: These values, scaled.",
            persons=f"up to {MOST_VALUES} numbers for each column: How many of your persons are in "
            "groups whose record holds each of these values.",
            middles=f"up to {N_CELLS} x d numbers, from sites with more than {N_CELLS} groups: The "
            "middle value of the records in each cell, of these columns, scaled.",
            identify={
                "n_values": "Describes all your groups together.",
                "values": "Values of records.",
                "middles": "Values of records.",
            },
        ),
    ),
)


# --- The stage ------------------------------------------------------------------------------------


class EvidenceStage(Stage):
    """The closing round."""

    name = "evidence"
    own_phases = (PHASE,)

    def phases(self, plan: Plan) -> tuple[Phase, ...]:
        """Return the phase without what nobody sends in this session."""
        if not plan.options.evaluated:
            return ()
        several = isinstance(plan.options.n_clusters, tuple)
        discloses = tuple(
            line
            if several
            else line.model_copy(update={"shape": line.shape.replace(", for each K", "")})
            for line in PHASE.discloses
            if plan.sends_cells or not line.field.startswith("cells")
        )
        return (replace(PHASE, discloses=discloses),)

    def task(self, before: Round) -> tuple[EngineState, Task | None]:
        plan, state, raw = before.plan, before.state, before.state.found
        ks = plan.options.ks
        sole = ks[0] if len(ks) == 1 else None
        found = [sort_clusters(each, each.n_clusters or sole) for each in clusterings(raw)]
        raw = with_clusterings(raw, found)
        state = state.with_result(raw)
        if not (plan.options.evaluated and len(raw.centroids) > 0):
            return state, None
        parts = tuple(evaluation.task(each) for each in clusterings(raw))
        task = Task(NAME, EvidenceTask(n_clusters=cluster_counts(raw), parts=parts))
        return state, task

    def aggregate(self, closing: Round) -> Closed:
        found = measured(closing.state.found, closing.contributions, closing.config)
        state, metrics = closing.state, dict[str, float]()
        # A sweep has several inertias.
        if found.sweep is None and found.quality is not None:
            metrics["inertia"] = found.quality.inertia
        if not is_measured(found):
            return Closed(state.with_result(state.found, _UNMEASURED), metrics=metrics)
        result = _with_cloud(closing, found)
        sent = cells_of(closing.contributions)
        if sent:
            result = _with_site_differences(closing, result, sent)
        return Closed(state.with_result(result), metrics=metrics)

    def give_up(self, closing: Round) -> Closed:
        """Keep the clustering: it rests on rounds that had enough."""
        return Closed(closing.state.with_result(closing.state.found, _UNMEASURED))


# --- Aggregation ----------------------------------------------------------------------------------


def measured(raw: Result, contributions: Sequence[Contribution], config: RunConfig) -> Result:
    """Return a result in which every K is measured that ``min_sites`` sites or more measured."""
    found = []
    for place, own in enumerate(clusterings(raw)):
        sent = part_of(contributions, EvidencePayload, place)
        if has_enough(sent, config):
            found.append(evaluation.aggregate(own, sent, config))
        else:
            warnings = (_K_UNMEASURED, *own.warnings)
            found.append(own.model_copy(update={"warnings": warnings}))
    return with_clusterings(raw, found)


def cells_of(contributions: Sequence[Contribution]) -> dict[str, RecordCells]:
    """Return the cells of the sites that sent any; contributions sorted by site."""
    sent = payloads_of(contributions, EvidencePayload)
    return {site: each.cells for site, each in sent.items() if each.cells is not None}


# --- What a result gets ---------------------------------------------------------------------------


def _with_cloud(closing: Round, result: Result) -> Result:
    """Add to every K how clear its clusters are, compared with one cloud, where that is asked."""
    plan, contributions = closing.plan, closing.contributions
    if not plan.options.compared_with_cloud:
        return result
    own = clusterings(result)
    reason = not_judged(plan.method, plan.policy)
    if reason is not None:
        sentence = f"{reason[0].upper()}{reason[1:]}."
        found = [CloudComparison(n_draws=0, not_judged=sentence)] * len(own)
    else:
        # Imported here: a site does not load what only a coordinator computes.
        from fedclust.rounds.reference import compare_with_cloud

        sent = payloads_of(contributions, EvidencePayload)
        cells = cells_of(contributions)
        firsts = [next(filter(None, sent[site].parts)) for site in cells]
        by_k = {each.n_clusters or len(each.centroids): each.centroids for each in own}
        compared = compare_with_cloud(
            [*cells.values()],
            [int(part.points.sum()) for part in firsts],
            by_k,
            p=closing.config.p,
            seed=plan.seed,
            rule=centroid_rule(closing.config),
        )
        found = [compared[k] for k in by_k]
    return update_each(result, lambda place, _: {"one_cloud": found[place]})


def _with_site_differences(
    closing: Round, result: Result, cells: Mapping[str, RecordCells]
) -> Result:
    """Add to every K that was measured how the sites differ."""
    # Imported here: a site does not load what only a coordinator computes.
    from fedclust.rounds.column_differences import differing_columns

    config = closing.config
    found = differing_columns(
        cells,
        binary_columns(config.columns),
        max(len(own.centroids) for own in clusterings(result)),
        config.policy.min_sites,
        closing.plan.seed,
        closing.state.differing,
    )
    columns = None
    if found is not None:
        names = [column.name for column in config.columns]
        columns = {site: tuple(names[j] for j in own) for site, own in found.items()}

    def described(place: int, own: Result) -> dict[str, Any]:
        if own.quality is None:
            return {}
        sent = payloads_of(part_of(closing.contributions, EvidencePayload, place), Evaluation)
        groups = np.stack([part.points for part in sent.values()])
        known = config.policy.protection == "none" or groups.sum() >= _FEWEST_GROUPS * len(groups)
        v = cramers_v(groups) if known and len(groups) > 1 else None
        return {"site_differences": SiteDifferences(columns=columns, cramers_v=v)}

    return update_each(result, described)
