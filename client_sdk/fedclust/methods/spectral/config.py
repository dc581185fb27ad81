"""What the analyst chooses in ``spectral``."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, FiniteFloat, RootModel

from fedclust.methods.common.options import Options, variants
from fedclust.schema.options import MethodOptions

_ANCHORS = 16

Clusters = Annotated[int, Field(ge=1, le=1_000)]
Neighbours = Annotated[int, Field(ge=1, le=1_000)]
AnchorCount = Annotated[int, Field(ge=1, le=100)]


class LandmarksConfig(Options, title="SpectralLandmarksConfig"):
    """What the analyst chooses where the graph is built over the landmarks of all sites.

    Attributes
    ----------
    n_clusters : int
        Number of clusters K.
    landmarks : int
        The most that a site sends. With 60, cells of a site's points reach across gaps.
    neighbours : int or None
        Neighbours of a landmark in the self-tuning graph. None: the count of the surest outcome
        among 5 to 25.
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
    """What the analyst chooses where each site has a graph of its own.

    Nothing is evaluated: sites count in their last round, and no site could tell another's clusters
    apart.

    Attributes
    ----------
    n_clusters : int
        Number of clusters K.
    neighbours : int
        Neighbours of a point in the self-tuning graph.
    gamma : float or None
        An RBF graph exp(-gamma |x - y|^2) in the place of the self-tuning one.
    """

    n_clusters: Clusters
    neighbours: Neighbours = 10
    gamma: Annotated[FiniteFloat, Field(gt=0)] | None = None

    @property
    def n_anchors(self) -> int:
        """The most anchors that the reference site sends."""
        return 0

    @property
    def round_limit(self) -> int | None:
        """One round; with anchors, one more for every site that is asked for them."""
        return None if self.n_anchors else 1

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases of a session: without anchors the eigenvectors alone."""
        return ("anchors", "eigen") if self.n_anchors else ("eigen",)


class NaiveConfig(EigenConfig, title="SpectralNaiveConfig"):
    """What the analyst chooses where eigenvectors are taken as they come, the paper's variant."""

    alignment: Literal["none"]


class SignConfig(EigenConfig, title="SpectralSignConfig"):
    """What the analyst chooses where an anchor tells which eigenvectors to flip, as in the paper.

    Attributes
    ----------
    anchors : int
        The most that the reference site sends.
    """

    alignment: Literal["sign"]
    anchors: AnchorCount = 1

    @property
    def n_anchors(self) -> int:
        """The most anchors that the reference site sends."""
        return self.anchors


class ProcrustesConfig(EigenConfig, title="SpectralProcrustesConfig"):
    """What the analyst chooses where anchors tell how to turn eigenvectors.

    Attributes
    ----------
    anchors : int or None
        The most that the reference site sends. None: 16 or K, whichever is more.
    """

    alignment: Literal["procrustes"]
    anchors: AnchorCount | None = None

    @property
    def n_anchors(self) -> int:
        """The most anchors that the reference site sends."""
        return self.anchors or max(_ANCHORS, self.n_clusters)


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
