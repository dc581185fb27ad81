"""What the analyst chooses in ``spectral``."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, FiniteFloat

from fedclust.methods.common.options import Options, variants
from fedclust.schema.model import Model

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

    phases: ClassVar = ("landmarks",)

    alignment: Literal["landmarks"]
    n_clusters: Clusters
    landmarks: Annotated[int, Field(ge=1, le=1_000)] = 200
    neighbours: Neighbours | None = None


class _EigenConfig(Model):
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

    phases: ClassVar[tuple[str, ...]] = ("anchors", "eigen")

    n_clusters: Clusters
    neighbours: Neighbours = 10
    gamma: Annotated[FiniteFloat, Field(gt=0)] | None = None


class NaiveConfig(_EigenConfig, title="SpectralNaiveConfig"):
    """What the analyst chooses where eigenvectors are taken as they come, the paper's variant."""

    phases: ClassVar = ("eigen",)
    n_anchors: ClassVar = 0

    alignment: Literal["none"]


class SignConfig(_EigenConfig, title="SpectralSignConfig"):
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


class ProcrustesConfig(_EigenConfig, title="SpectralProcrustesConfig"):
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


Config = variants(
    "SpectralConfig",
    LandmarksConfig,
    SignConfig,
    NaiveConfig,
    ProcrustesConfig,
    by="alignment",
)


def rounds(options: Any) -> int | None:
    """Return how many rounds a session takes; None: as many as its policy admits."""
    return None if "anchors" in options.phases else 1


def possible_phases(options: Any) -> tuple[str, ...]:
    """Return the phases of a session, by its variant."""
    return tuple(options.phases)
