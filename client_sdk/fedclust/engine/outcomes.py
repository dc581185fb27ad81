"""The last round of a session with outcomes: counts by final cluster, with noise.

A site labels its own rows with the final model, counts them by cluster and cell of each outcome
(``protection.outcome_counts`` does so, and adds the noise), and sends these tables. Here is what
travels, and what both ends check. ``engine.outcome_statistics`` compares the clusters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from pydantic import NonNegativeInt

from fedclust.engine import evaluation
from fedclust.engine.evidence import split_parts
from fedclust.numeric.array_types import IntArray
from fedclust.numeric.arrays import IntMatrix
from fedclust.protection.message_checks import check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.feature import Outcome
from fedclust.schema.model import Memory, Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Disclosure, Phase, SiteTask, Task, narrow

NAME = "outcomes"
#: How far noise may take a count: no honest site draws more.
_MOST_SD = 40
#: What labels rows of a result; the other fields describe how it was found.
_MODEL = (
    *("centroids", "centroids_original", "columns", "mask", "prototypes", "prototype_labels"),
    *("center", "scale", "impute", "limit", "dissimilarity", "extra", "n_clusters", "soft"),
)


class OutcomesTask(Model):
    """Count your persons by cluster of this model and by cell of each outcome.

    Attributes
    ----------
    model : Result
        The final model of one number of clusters: what labels rows, and nothing else.
    """

    model: Result


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


#: Labels the rows of a site with a model, counts and adds noise; None: the site answers empty.
Count: TypeAlias = Callable[[Result, Memory], OutcomesPayload | None]

PHASE = Phase(
    name=NAME,
    summary="Counts of each outcome by final cluster, with random noise.",
    task=OutcomesTask,
    payload=OutcomesPayload,
    site_part=OutcomesSitePart,
    discloses=(
        Disclosure(
            field="cells",
            shape="(K + 1) x J numbers for each outcome",
            meaning="How many of your persons are in each final cluster and cell, computed from "
            "your rows, each number with random noise.",
            identifies="The noise limits what anybody can learn of one person, whatever else they "
            "know.",
        ),
    ),
    once=True,
    optional=True,
)


def phase_of(outcomes: Sequence[Outcome], *, exact: bool) -> Phase:
    """Return the phase with a line for each outcome: its noise and its points."""
    lines = []
    for each in outcomes:
        noise = f"each with random noise (sd {math.sqrt(each.variance):.3g}): {each.points} points"
        lines.append(
            PHASE.discloses[0].model_copy(
                update={
                    "shape": f"(K + 1) x {len(each.cells)} numbers",
                    "meaning": f"Counts of {each.name} by final cluster, computed from your rows, "
                    f"{'exact' if exact else noise}.",
                    **({"identifies": "Single persons: the counts are exact."} if exact else {}),
                }
            )
        )
    return replace(PHASE, discloses=tuple(lines))


def task(result: Result, config: RunConfig) -> Task[OutcomesTask] | None:
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
    return Task(NAME, OutcomesTask(model=model_of(result)), per_site=parts, sites=asked)


def model_of(result: Result) -> Result:
    """Return what labels rows of a result, and nothing else."""
    return Result(**{name: getattr(result, name) for name in _MODEL})


def site_model(task: SiteTask, site: str) -> Result:
    """Return the model of a task with the site's own mapping."""
    model = model_of(narrow(task.common, OutcomesTask).model)
    mapping = narrow(task.site, OutcomesSitePart).mapping
    return model if mapping is None else model.model_copy(update={"mapping": {site: mapping}})


# --- Check ----------------------------------------------------------------------------------------


def check_task(
    task: SiteTask, config: RunConfig, outcomes_k: int | str | None, *, prototypes: bool
) -> None:
    """Refuse a model that the definition does not provide for; RuleViolation.

    ``outcomes_k`` is the definition's, ``prototypes`` whether the method tells clusters apart by
    prototypes.
    """
    model = narrow(task.common, OutcomesTask).model
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
    asked = model.n_clusters
    if isinstance(outcomes_k, int) and asked != outcomes_k:
        raise RuleViolation("task", "outcomes are counted at another K", "/parameters")
    ks = np.array([] if asked is None else [asked], dtype=np.int64)
    about = replace(task, common=evaluation.task(model))
    for own in split_parts(ks, 1, config):
        evaluation.check_task(about, own, prototypes=prototypes)
    for name, vector in vars(task.space).items():
        own = getattr(model, name)
        if (own is None) != (vector is None) or not (own is None or np.array_equal(own, vector)):
            raise RuleViolation("task-space", "the model has another scaled space", "/parameters")
    if model.dissimilarity != config.policy.dissimilarity:
        raise RuleViolation("task", "the model has another dissimilarity", "/parameters")


def check_shapes(task: SiteTask, payload: OutcomesPayload, outcomes: Sequence[Outcome]) -> None:
    """Check the form of a site's tables, which does not depend on its data; RuleViolation."""
    n_clusters = len(narrow(task.common, OutcomesTask).model.centroids)
    if len(payload.cells) != len(outcomes):
        raise RuleViolation("shape", "one table is needed for each outcome", "/cells")
    for i, (table, outcome) in enumerate(zip(payload.cells, outcomes, strict=True)):
        if table is not None:
            check_shape(table, (n_clusters + 1, len(outcome.cells)), f"/cells/{i}")


def check(task: SiteTask, payload: Model, config: RunConfig) -> None:
    """Check a site's tables at the coordinator; RuleViolation."""
    sent = narrow(payload, OutcomesPayload)
    check_shapes(task, sent, config.outcomes)
    persons = narrow(task.site, OutcomesSitePart).persons
    for i, (table, outcome) in enumerate(zip(sent.cells, config.outcomes, strict=True)):
        exact = config.policy.protection == "none"
        most = persons + (0.0 if exact else _MOST_SD * math.sqrt(outcome.variance))
        least = 0.0 if exact else -most
        if table is None:
            continue
        known = table[:-1]
        if (known > most).any() or (known < least).any():
            message = "a count is larger than the site's persons and noise allow"
            raise RuleViolation("count-range", message, f"/cells/{i}")


# --- Aggregation ----------------------------------------------------------------------------------


def tables_of(
    contributions: Sequence[Contribution],
) -> Mapping[str, tuple[IntArray | None, ...]]:
    """Return what each site sent, sorted by site."""
    return {
        each.site: narrow(each.payload, OutcomesPayload).cells
        for each in sorted(contributions, key=lambda each: each.site)
        if each.payload is not None
    }
