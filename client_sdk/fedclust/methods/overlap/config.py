"""The options of ``overlap``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

from fedclust.methods.common.options import Count, EvaluatedOptions, Restarts
from fedclust.methods.overlap.meta_clustering import Meta


class Config(EvaluatedOptions, title="OverlapConfig"):
    """Options of ``overlap``.

    Attributes
    ----------
    n_clusters : int
        Number of clusters K.
    local_clusters : int, "silhouette" or None
        K_i, the most cells of a site. None: K. ``silhouette``: the number from 2 to K with the best
        simplified silhouette at each site, for sites that lack some clusters.
    n_init : int or None
        Restarts of each site's k-means. None: 10, down to 2 at a large site.
    meta : {"agglomerative", "A", "B", "auto"}
        How local clusters are grouped to global ones. ``auto`` chooses by the graph of the sites'
        overlapping features and gives the reason in a warning.
    rounds : int
        F, the number of federated rounds after the first round.
    local_iterations : int
        Lloyd iterations of a site in each federated round.
    alpha : float
        Step size: 1 replaces the centroids by what the sites send; a smaller value moves them
        towards it.
    """

    n_clusters: Count
    local_clusters: Count | Literal["silhouette"] | None = None
    n_init: Restarts | None = None
    meta: Meta = "agglomerative"
    rounds: Annotated[int, Field(ge=0, le=99)] = 3
    local_iterations: Annotated[int, Field(ge=1, le=100)] = 5
    alpha: Annotated[FiniteFloat, Field(gt=0, le=1)] = 0.8

    @property
    def round_limit(self) -> int:
        """The fixed number of rounds."""
        return 1 + self.rounds
