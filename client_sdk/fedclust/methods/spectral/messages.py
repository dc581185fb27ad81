"""The messages of ``spectral``, and their checks at both ends."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field, FiniteFloat, RootModel

from fedclust.methods.common.kmeans_rounds import Cells, check_cells, count_sent_cells
from fedclust.methods.common.options import EvaluatedOptions, variants
from fedclust.methods.spectral.embedding import MAX_RBF_POINTS
from fedclust.numeric.arrays import FloatMatrix
from fedclust.protection.message_checks import check_empty, check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.model import Model
from fedclust.schema.options import MethodOptions
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import SiteTask

# --- Options --------------------------------------------------------------------------------------


#: Anchors of the Procrustes alignment by default, or K if that is more.
_N_ANCHORS = 16

Clusters = Annotated[int, Field(ge=1, le=1_000)]
Neighbours = Annotated[int, Field(ge=1, le=1_000)]
AnchorCount = Annotated[int, Field(ge=1, le=100)]


class LandmarksConfig(EvaluatedOptions, title="SpectralLandmarksConfig"):
    """Options of the default alignment: one graph over the landmarks of all sites.

    Attributes
    ----------
    n_clusters : int
        Number of clusters K.
    landmarks : int
        Largest number of landmarks of a site. Use at least 60: larger cells reach across gaps.
    neighbours : int or None
        Neighbours of a landmark in the self-tuning graph. None: the count between 5 and 25 with the
        most reliable outcome.
    """

    alignment: Literal["landmarks"]
    n_clusters: Clusters
    landmarks: Annotated[int, Field(ge=1, le=1_000)] = 200
    neighbours: Neighbours | None = None

    @property
    def round_limit(self) -> int:
        """The fixed number of rounds."""
        return 1

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases of this variant."""
        return ("landmarks",)


class EigenConfig(MethodOptions):
    """Options of the variants in which each site has a graph of its own.

    There is no evaluation: sites count in their last round, and no site could tell another's
    clusters apart.

    Attributes
    ----------
    n_clusters : int
        Number of clusters K.
    neighbours : int
        Neighbours of a point in the self-tuning graph.
    gamma : float or None
        Scale of an RBF graph exp(-gamma d^2), where d is the distance of two points. None: the
        self-tuning graph.
    """

    n_clusters: Clusters
    neighbours: Neighbours = 10
    gamma: Annotated[FiniteFloat, Field(gt=0)] | None = None

    @property
    def n_anchors(self) -> int:
        """The largest number of anchors of the reference site."""
        return 0

    @property
    def round_limit(self) -> int | None:
        """One round; with anchors, one more for every site that is asked for them."""
        return None if self.n_anchors else 1

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases of a session; without anchors only the eigenvectors."""
        return ("anchors", "eigen") if self.n_anchors else ("eigen",)


class NaiveConfig(EigenConfig, title="SpectralNaiveConfig"):
    """Options without alignment: eigenvectors keep their signs, the paper's naive variant."""

    alignment: Literal["none"]


class SignConfig(EigenConfig, title="SpectralSignConfig"):
    """Options of the paper's alignment: anchors determine which eigenvectors to flip.

    Attributes
    ----------
    anchors : int
        Largest number of anchors of the reference site.
    """

    alignment: Literal["sign"]
    anchors: AnchorCount = 1

    @property
    def n_anchors(self) -> int:
        """The largest number of anchors of the reference site."""
        return self.anchors


class ProcrustesConfig(EigenConfig, title="SpectralProcrustesConfig"):
    """Options of the Procrustes alignment: anchors determine how to rotate eigenvectors.

    Attributes
    ----------
    anchors : int or None
        Largest number of anchors of the reference site. None: the larger of 16 and K.
    """

    alignment: Literal["procrustes"]
    anchors: AnchorCount | None = None

    @property
    def n_anchors(self) -> int:
        """The largest number of anchors of the reference site."""
        return self.anchors or max(_N_ANCHORS, self.n_clusters)


EigenVariants: TypeAlias = SignConfig | NaiveConfig | ProcrustesConfig
Variants: TypeAlias = LandmarksConfig | EigenVariants
Config: type[RootModel[Variants]] = variants(
    "SpectralConfig",
    LandmarksConfig,
    SignConfig,
    NaiveConfig,
    ProcrustesConfig,
    by="alignment",
)


# --- What travels ---------------------------------------------------------------------------------


#: Relative rounding error of means of eigenvectors.
_SLACK = 1e-6

# --- Payloads -------------------------------------------------------------------------------------


class LandmarksTask(Model):
    """Cluster your own points into at most ``n_cells`` small cells."""

    n_cells: Annotated[int, Field(ge=1)]


class Landmarks(Cells):
    """A site's small cells.

    Attributes
    ----------
    counts : (m,) int64
        Persons in each cell.
    means : (m, d) float64
        Mean of each cell, scaled.
    """


class AnchorPart(Model):
    """A site's own part; ``anchors``: whether it is the reference site, which sends anchors."""

    anchors: bool = False


class AnchorsTask(Model):
    """Send at most ``n_anchors`` anchors and the values of your first K eigenvectors there."""

    n_anchors: Annotated[int, Field(ge=1)]


class Anchors(Cells):
    """The reference site's anchors; all 0 from every other site.

    Attributes
    ----------
    counts : (A,) int64
        Persons behind each anchor.
    means : (A, d) float64
        The anchors, scaled: each is the mean of a small cell of points.
    vectors : (A, K) float64
        Values of the site's eigenvectors at the anchors.
    """

    vectors: FloatMatrix


class EigenTask(Model):
    """Find your eigenvectors, align them with the reference's, and cluster your points by them.

    Attributes
    ----------
    anchors : (A, d) float64 or None
        Scaled. None: no alignment.
    vectors : (A, K) float64 or None
        Values of the reference site's eigenvectors at the anchors.
    """

    anchors: FloatMatrix | None = None
    vectors: FloatMatrix | None = None


class Eigen(Cells):
    """A site's clusters among its eigenvectors.

    Attributes
    ----------
    counts : (K,) int64
        Persons in each cluster.
    means : (K, d) float64
        Mean of each cluster's points, scaled.
    vectors : (K, K) float64
        Mean of the aligned eigenvectors over the same points.
    """

    vectors: FloatMatrix


def check_anchors_task(task: SiteTask[AnchorsTask], config: RunConfig[EigenVariants]) -> None:
    """Refuse another number of anchors than the definition's."""
    n_anchors = config.options.n_anchors
    if task.common.n_anchors != n_anchors:
        message = f"the definition says {n_anchors}"
        raise RuleViolation("task", message, "/parameters/n_anchors")


def check_eigen_task(task: SiteTask[EigenTask], config: RunConfig[EigenVariants]) -> None:
    """Refuse more anchors than the definition names, or none where it names some."""
    options, anchors, vectors = config.options, task.common.anchors, task.common.vectors
    if anchors is None or vectors is None:
        if options.n_anchors or anchors is not None or vectors is not None:
            raise RuleViolation("task", "the task lacks anchors or vectors", "/parameters/anchors")
        return
    n_anchors = min(len(anchors), options.n_anchors)
    check_shape(anchors, (n_anchors, len(config.columns)), "/parameters/anchors")
    check_shape(vectors, (n_anchors, options.n_clusters), "/parameters/vectors")


def check_landmarks(
    task: SiteTask[LandmarksTask], payload: Landmarks, config: RunConfig[Variants]
) -> None:
    """Check landmarks at either end: shapes, counts and bounds."""
    check_cells(payload, count_sent_cells(payload, task.common.n_cells), config)


def check_anchors(
    task: SiteTask[AnchorsTask], payload: Anchors, config: RunConfig[EigenVariants]
) -> None:
    """Check anchors at either end: shapes, counts and bounds; only the reference sends any."""
    n_anchors = task.common.n_anchors
    if payload.counts.any():
        check_cells(payload, n_anchors, config)
        if task.site != AnchorPart(anchors=True):
            raise RuleViolation("anchors", "another site is the reference", "/counts")
    else:
        check_shape(payload.counts, (n_anchors,), "/counts")
        check_shape(payload.means, (n_anchors, len(config.columns)), "/means")
        check_empty(payload.counts, payload.means, "/means")
    check_shape(payload.vectors, (n_anchors, config.options.n_clusters), "/vectors")
    check_empty(payload.counts, payload.vectors, "/vectors")


def check_eigen(
    _task: SiteTask[EigenTask], payload: Eigen, config: RunConfig[EigenVariants]
) -> None:
    """Check a site's clusters at either end: shapes, counts, bounds, eigenvectors."""
    k = config.options.n_clusters
    check_cells(payload, k, config)
    check_shape(payload.vectors, (k, k), "/vectors")
    check_empty(payload.counts, payload.vectors, "/vectors")
    _check_vectors(payload, config.options)


def _check_vectors(payload: Eigen, options: EigenConfig) -> None:
    """Refuse means larger than K vectors of length sqrt(m) allow, for m points and anchors.

    Nystroem's formula, which places points outside of a full graph's sample, gives no such limit.
    """
    n_vertices = int(payload.counts.sum()) + options.n_anchors
    if options.gamma is not None and n_vertices > MAX_RBF_POINTS:
        return
    limit = options.n_clusters * n_vertices * (1.0 + _SLACK)
    too_large = np.flatnonzero((payload.vectors**2).sum(axis=1) > limit)
    if too_large.size:
        cell = int(too_large[0])
        raise RuleViolation(
            "vectors",
            f"cell {cell}: no mean of eigenvectors over this many persons is as large",
            f"/vectors/{cell}",
        )
