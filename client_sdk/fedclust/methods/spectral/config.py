"""Options of ``spectral``: one model for each alignment."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, FiniteFloat, RootModel

from fedclust.methods.common.options import EvaluatedOptions, variants
from fedclust.schema.options import MethodOptions

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
