"""What the sites of ``fkm`` are asked and answer, in both variants, and how both ends check it.

Each candidate's step is checked as a step of ``lloyd``, and as its first cells the paper's means.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from fedclust.algorithms import guarded_lloyd as lloyd
from fedclust.algorithms.arrays import FloatMatrix, FloatTensor3, IntMatrix, IntVector
from fedclust.algorithms.base import (
    Disclosure,
    Model,
    Phase,
    RuleViolation,
    RunConfig,
    SiteTask,
    Totals,
)
from fedclust.algorithms.guarded_lloyd import Cells, Step, StepTask
from fedclust.algorithms.spaces import scaled_bounds
from fedclust.algorithms.totals import DISCLOSURE, SitePart, check_sizes, check_totals
from fedclust.privacy.checks import check_empty, check_means, check_shape

# --- Payloads -------------------------------------------------------------------------------------


class SeedsTask(Model):
    """Draw ``n_clusters`` rows by k-means++; send the means of the rows nearest to each."""

    n_clusters: Annotated[int, Field(ge=1)]


class Seeds(Model):
    """A site's first means.

    Attributes
    ----------
    counts : (K,) int64
        Rows behind each; 0 for the means that are not there, which are 0.
    means : (K, d) float64
        Scaled.
    """

    counts: IntVector
    means: FloatMatrix


class MeansTask(Model):
    """Do one k-means iteration from these centroids.

    Attributes
    ----------
    centroids : (K, d) float64
        Scaled.
    drop_empty : bool
        Whether centroids without rows are dropped first.
    """

    centroids: FloatMatrix
    drop_empty: bool


class Means(Model, title="FkmMeans"):
    """A site's means after one k-means iteration.

    Attributes
    ----------
    members : (K,) int64
        Rows behind each mean; 0 for the means that are not there, which are 0.
    means : (K, d) float64
        Scaled.
    counts : (K,) int64
        Rows nearest to each of the means: their weight.
    """

    members: IntVector
    means: FloatMatrix
    counts: IntVector


class CandidatesTask(Model):
    """Assign your rows to the nearest centroid, for each of several candidates by itself.

    Attributes
    ----------
    names : tuple of str, length c
        Under which the site remembers what it sent of each.
    centroids : (c, K, d) float64
        Scaled.
    """

    names: tuple[Annotated[str, StringConstraints(pattern=r"^start-[0-9]{1,4}$")], ...]
    centroids: FloatTensor3


class Steps(Model):
    """A site's part of one Lloyd step of every candidate: additive.

    Attributes
    ----------
    counts : (c, K) int64
    sums : (c, K, d) float64
        Scaled.
    costs : (c, K) float64
        Squared distances of the rows from the candidate's centroid, added up.
    totals : Totals or None
    """

    counts: IntMatrix
    sums: FloatTensor3
    costs: FloatMatrix
    totals: Totals | None = None

    def step(self, candidate: int) -> Step:
        """Return the part of one candidate."""
        return Step(
            counts=self.counts[candidate],
            sums=self.sums[candidate],
            costs=self.costs[candidate],
            totals=self.totals,
        )


_GUARDED = (
    "Each number describes 0 or at least the smallest count of persons. The guard holds back "
    "whatever would single out fewer when this answer is compared with any earlier one, or one "
    "part of it with another."
)
_ROUNDED = (
    " The share of a yes/no feature or level is rounded where fewer than the smallest count "
    "have, or lack, it."
)
_CELLS = lloyd.METHOD.phase("cells")

PHASES = (
    _CELLS,
    Phase(
        name="candidates",
        summary="Each site adds up its rows at the nearest centroids, for c candidates.",
        task=CandidatesTask,
        site_part=SitePart,
        payload=Steps,
        discloses=(
            Disclosure(
                field="counts",
                shape="c x K numbers",
                meaning=(
                    "How many of your rows are nearest to each centroid of each of c candidate "
                    "clusterings: 8 at first, fewer later."
                ),
                identifies=_GUARDED,
            ),
            Disclosure(
                field="sums",
                shape="c x K x d numbers",
                meaning="The sum of each feature over these rows, scaled.",
                identifies=_GUARDED + _ROUNDED,
            ),
            Disclosure(
                field="costs",
                shape="c x K numbers",
                meaning="How far these rows lie from their centroid, squared and added up.",
                identifies=_GUARDED,
            ),
            DISCLOSURE,
        ),
    ),
    Phase(
        name="seeds",
        summary="Only in the paper's variant: means of cells around rows drawn, not those rows.",
        task=SeedsTask,
        site_part=SitePart,
        payload=Seeds,
        discloses=_CELLS.discloses[:2],
    ),
    Phase(
        name="means",
        summary="Only in the paper's variant: each site does one k-means iteration of its own.",
        task=MeansTask,
        site_part=SitePart,
        payload=Means,
        discloses=(
            Disclosure(
                field="members",
                shape="K numbers",
                meaning="How many of your rows are nearest to each centroid.",
                identifies=_GUARDED,
            ),
            Disclosure(
                field="means",
                shape="K x d numbers",
                meaning="The mean of each feature over these rows, scaled.",
                identifies=_GUARDED + " No mean is a person's record." + _ROUNDED,
            ),
            Disclosure(
                field="counts",
                shape="K numbers",
                meaning="How many of your rows are nearest to each of these means.",
                identifies=_GUARDED,
            ),
        ),
    ),
)


def check(task: SiteTask, payload: Cells | Steps | Seeds | Means, config: RunConfig) -> None:
    """Check an answer at either end: shapes, counts, complement, bounds, costs."""
    if isinstance(payload, Steps):
        _check_steps(task, payload, config)
    elif isinstance(payload, Seeds):
        whole = Cells(counts=payload.counts, means=payload.means)
        lloyd.check(task, whole, config)
    elif isinstance(payload, Means):
        n_clusters, d = len(task.common.centroids), len(config.columns)
        check_shape(payload.members, (n_clusters,), "/members")
        check_shape(payload.means, (n_clusters, d), "/means")
        check_shape(payload.counts, (n_clusters,), "/counts")
        check_sizes(payload.counts, None, task.site, config)
        check_sizes(payload.members, None, task.site, config, "/members")
        check_empty(payload.members, payload.means, "/means")
        check_means(payload.members, payload.means, *scaled_bounds(config), "/means")
    else:
        lloyd.check(task, payload, config)


def _check_steps(task: SiteTask, payload: Steps, config: RunConfig) -> None:
    centroids = task.common.centroids
    n_candidates, n_clusters, d = centroids.shape
    check_totals(payload.totals, task.site, config)
    check_shape(payload.counts, (n_candidates, n_clusters), "/counts")
    check_shape(payload.sums, (n_candidates, n_clusters, d), "/sums")
    check_shape(payload.costs, (n_candidates, n_clusters), "/costs")
    for i in range(n_candidates):
        one = SiteTask(task.phase, StepTask(centroids=centroids[i]), task.site, task.space)
        try:
            lloyd.check(one, payload.step(i), config)
        except RuleViolation as broken:
            _, field, *rest = broken.pointer.split("/")
            raise RuleViolation(
                broken.rule,
                f"candidate {i}: {broken.message}",
                "/".join(["", field, str(i), *rest]),
            ) from None
