"""What the sites of ``spectral`` are asked and answer, and how both ends check it.

Means and radii are checked against the declared bounds, eigenvectors only for being as small as
those of so many rows are.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedclust.algorithms.arrays import FloatMatrix, FloatVector, IntVector
from fedclust.algorithms.base import (
    Disclosure,
    Model,
    Phase,
    RuleViolation,
    RunConfig,
    SiteTask,
    Totals,
)
from fedclust.algorithms.spaces import scaled_bounds
from fedclust.algorithms.spectral_graph import MOST_JOINED
from fedclust.algorithms.totals import DISCLOSURE, SitePart, check_sizes, check_totals
from fedclust.privacy.checks import check_empty, check_means, check_shape

#: Of what rows allow: rounding may exceed it by so much.
_SLACK = 1e-6

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# --- Payloads -------------------------------------------------------------------------------------


class LandmarksTask(Model):
    """Cluster your rows by yourself into at most ``n_cells`` small cells."""

    n_cells: Annotated[int, Field(ge=1)]


class Landmarks(Model):
    """A site's small cells.

    Attributes
    ----------
    counts : (m,) int64
    means : (m, d) float64
        Scaled.
    radii : (m,) float64
        Root mean squared distances of the cells' rows from their means, scaled.
    totals : Totals or None
    """

    counts: IntVector
    means: FloatMatrix
    radii: FloatVector
    totals: Totals | None = None


class AnchorPart(SitePart):
    """A site's own part; ``anchors``: whether it is the reference and sends them."""

    anchors: bool = False


class AnchorsTask(Model):
    """Send at most ``n_anchors`` anchors and what your first K eigenvectors say of them."""

    n_anchors: Annotated[int, Field(ge=1)]


class Anchors(Model):
    """The reference site's anchors; all 0 from every other site.

    Attributes
    ----------
    counts : (A,) int64
    means : (A, d) float64
        Scaled: each is the mean of rows near one another.
    vectors : (A, K) float64
        What the site's eigenvectors are at the anchors.
    totals : Totals or None
    """

    counts: IntVector
    means: FloatMatrix
    vectors: FloatMatrix
    totals: Totals | None = None


class EigenTask(Model):
    """Find your eigenvectors, make them agree with the reference's, and cluster your rows there.

    Attributes
    ----------
    anchors : (A, d) float64 or None
        Scaled. None: nothing is made to agree.
    vectors : (A, K) float64 or None
    """

    anchors: FloatMatrix | None = None
    vectors: FloatMatrix | None = None


class Eigen(Model):
    """A site's clusters among its eigenvectors.

    Attributes
    ----------
    counts : (K,) int64
    means : (K, d) float64
        Of the features, scaled.
    vectors : (K, K) float64
        Of the aligned eigenvectors, over the same rows.
    totals : Totals or None
    """

    counts: IntVector
    means: FloatMatrix
    vectors: FloatMatrix
    totals: Totals | None = None


_GUARDED = (
    "Each number describes 0 or at least the smallest count of persons. The guard holds back "
    "whatever would single out fewer when this answer is compared with any earlier one."
)
_MEANS = (
    _GUARDED + " No mean is a person's record. The share of a yes/no feature or level is rounded "
    "where fewer than the smallest count have, or lack, it."
)
_OF_ALL_ROWS = (
    "Follows from all your rows together, as to how near they are to one another. An eigenvector "
    "that rests on fewer than the smallest count of persons is not told, and where most rows are "
    "like many others, the rest count as the nearest of those. What else may be inferred is not "
    "known; with alignment: landmarks nothing of the kind is sent."
)
_TO_ALL = " Goes to every other site, so that theirs can agree with it."
PHASES = (
    Phase(
        name="landmarks",
        summary=(
            "Each site sends the means of small cells of its rows; the coordinator finds clusters "
            "among all of them. The means that are used go to everyone with the result, without "
            "site, count or radius."
        ),
        task=LandmarksTask,
        site_part=SitePart,
        payload=Landmarks,
        discloses=(
            Disclosure(
                field="counts",
                shape="up to 60 numbers, or as many as the session says",
                meaning="How many of your rows are in each small cell of your own clustering.",
                identifies=_GUARDED,
            ),
            Disclosure(
                field="means",
                shape="as many x d numbers",
                meaning="The mean of each feature over the rows of each cell, scaled.",
                identifies=_MEANS + " Part of the result, without your name.",
            ),
            Disclosure(
                field="radii",
                shape="as many numbers",
                meaning="How far these rows lie from their mean: root of the mean square.",
                identifies=_GUARDED,
            ),
            DISCLOSURE,
        ),
    ),
    Phase(
        name="anchors",
        summary=(
            "Paper variant: one site, the reference, sends a few means of rows near one another, "
            "and its eigenvectors there. The others send nothing but totals."
        ),
        task=AnchorsTask,
        site_part=AnchorPart,
        payload=Anchors,
        discloses=(
            Disclosure(
                field="counts",
                shape="A numbers",
                meaning="How many of your rows are behind each anchor; 0 unless you are asked.",
                identifies=_GUARDED,
            ),
            Disclosure(
                field="means",
                shape="A x d numbers",
                meaning="The mean of each feature over these rows, scaled.",
                identifies=_MEANS + _TO_ALL,
            ),
            Disclosure(
                field="vectors",
                shape="A x K numbers",
                meaning="Where the anchors lie among the eigenvectors of all your rows' graph.",
                identifies=_OF_ALL_ROWS + _TO_ALL,
            ),
            DISCLOSURE,
        ),
    ),
    Phase(
        name="eigen",
        summary=(
            "Paper variant: each site clusters its rows among the eigenvectors of its own graph "
            "and sends the clusters' means."
        ),
        task=EigenTask,
        site_part=SitePart,
        payload=Eigen,
        discloses=(
            Disclosure(
                field="counts",
                shape="K numbers",
                meaning="How many of your rows are in each of your clusters.",
                identifies=_GUARDED,
            ),
            Disclosure(
                field="means",
                shape="K x d numbers",
                meaning="The mean of each feature over these rows, scaled.",
                identifies=_MEANS,
            ),
            Disclosure(
                field="vectors",
                shape="K x K numbers",
                meaning="The mean of your eigenvectors over the same rows.",
                identifies=_OF_ALL_ROWS,
            ),
            DISCLOSURE,
        ),
    ),
)


def check(task: SiteTask, payload: Landmarks | Anchors | Eigen, config: RunConfig) -> None:
    """Check an answer at either end: shapes, counts, complement, bounds, radii, vectors."""
    d, k = len(config.columns), config.options.n_clusters
    lower, upper = scaled_bounds(config)
    check_totals(payload.totals, task.site, config)
    if isinstance(payload, Landmarks):
        n_cells = min(max(len(payload.counts), 1), task.common.n_cells)
    else:
        n_cells = task.common.n_anchors if isinstance(payload, Anchors) else k
    check_shape(payload.counts, (n_cells,), "/counts")
    check_shape(payload.means, (n_cells, d), "/means")
    check_sizes(payload.counts, payload.totals, task.site, config)
    check_empty(payload.counts, payload.means, "/means")
    check_means(payload.counts, payload.means, lower, upper, "/means")
    if isinstance(payload, Landmarks):
        _check_radii(payload, lower, upper)
        return
    check_shape(payload.vectors, (n_cells, k), "/vectors")
    check_empty(payload.counts, payload.vectors, "/vectors")
    if isinstance(payload, Anchors):
        if payload.counts.any() and not (task.site is not None and task.site.anchors):
            raise RuleViolation("anchors", "another site is the reference", "/counts")
        members = np.minimum(payload.counts, 1)
    else:
        members = payload.counts
    _check_vectors(payload, members, task, config)


def _check_radii(sent: Landmarks, lower: FloatArray, upper: FloatArray) -> None:
    """Raise unless each radius is one that rows within bounds can have."""
    check_shape(sent.radii, sent.counts.shape, "/radii")
    check_empty(sent.counts, sent.radii, "/radii")
    with np.errstate(invalid="ignore"):
        widest = ((upper - sent.means) * (sent.means - lower)).sum(axis=1)
    widest = np.where(np.isfinite(widest), np.maximum(widest, 0.0), np.inf)
    wrong = (sent.radii < 0) | (sent.radii**2 > widest * (1.0 + _SLACK) + _SLACK)
    if wrong.any():
        cell = int(np.flatnonzero(wrong)[0])
        raise RuleViolation(
            "radius",
            f"the radius of cell {cell} is negative or wider than the bounds allow",
            f"/radii/{cell}",
        )


def _check_vectors(
    sent: Anchors | Eigen, members: IntArray, task: SiteTask, config: RunConfig
) -> None:
    """Raise where a mean is larger than K vectors of length sqrt(m) allow, m rows and anchors.

    Where a graph joins all of these, no K entries exceed K m together, nor their mean over a cell
    of c rows K m / c. The self-tuning graph joins distinct rows: those of a cell may all be one.
    Nystroem's formula, for more rows than a graph takes, gives no such bound.
    """
    options = config.options
    rows = sent.totals.n if sent.totals is not None else None
    if rows is None and task.site is not None:
        rows = task.site.rows
    if rows is None:
        return
    joined = rows + options.n_anchors
    if options.gamma is not None and joined > MOST_JOINED:
        return
    apart = np.maximum(members, 1) if options.gamma is not None else 1
    most = np.broadcast_to(options.n_clusters * joined / apart, members.shape)
    wrong = (sent.vectors**2).sum(axis=1) > most * (1.0 + _SLACK)
    if wrong.any():
        cell = int(np.flatnonzero(wrong)[0])
        raise RuleViolation(
            "vectors",
            f"cell {cell}: no mean of eigenvectors of this many rows is as large",
            f"/vectors/{cell}",
        )
