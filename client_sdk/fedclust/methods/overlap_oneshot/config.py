"""The options of ``overlap_oneshot``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

from fedclust.methods.common.options import Count, EvaluatedOptions, Restarts
from fedclust.schema.errors import RuleViolation
from fedclust.schema.run_config import RunConfig

#: The most cells that a site tries if neither K nor K_i is given.
_MAX_CELLS = 20
#: The most numbers in the covariances of one message: a body has at most 32 MiB.
_MAX_NUMBERS = 3_000_000


class Config(EvaluatedOptions, title="OverlapOneshotConfig"):
    """Options of ``overlap_oneshot``.

    Attributes
    ----------
    n_clusters : int or None
        Number of clusters K. None: the number, at least 2, at which cutting the merge tree gives
        the best simplified silhouette.
    local_clusters : int, "silhouette" or None
        K_i, the most cells of a site. ``silhouette``: the number from 2 to K (to 20 if K is not
        given) with the best simplified silhouette at each site. None: K, or ``silhouette`` if K is
        not given.
    n_init : int or None
        Restarts of each site's k-means. None: 10, down to 2 at a large site.
    covariance : {"diagonal", "full"}
        Whether a Gaussian has variances, or a covariance matrix (only with ``protection: none``).
    proxies : int
        M, the number of points that the coordinator draws from each Gaussian.
    w : float
        The power of the distance in the attractive forces.
    cannot_link : {"auto", "on", "off"}
        Whether clusters of one site are kept apart as long as any others can be merged. ``on`` is
        right if sites do not split clusters, and wrong if a site has fewer clusters than cells.
        ``off`` is the paper's rule. ``auto`` tries both and takes the one with the better
        simplified silhouette.
    """

    n_clusters: Count | None = None
    local_clusters: Count | Literal["silhouette"] | None = None
    n_init: Restarts | None = None
    covariance: Literal["diagonal", "full"] = "diagonal"
    proxies: Annotated[int, Field(ge=2, le=1_000)] = 50
    w: Annotated[FiniteFloat, Field(ge=1, le=50)] = 2.0
    cannot_link: Literal["auto", "on", "off"] = "auto"

    @property
    def searches(self) -> bool:
        """Whether each site chooses the number of its cells."""
        if self.local_clusters is None:
            return self.n_clusters is None
        return self.local_clusters == "silhouette"

    @property
    def most_cells(self) -> int:
        """The most cells of a site."""
        if isinstance(self.local_clusters, int):
            return self.local_clusters
        return _MAX_CELLS if self.n_clusters is None else self.n_clusters


def check_config(config: RunConfig[Config]) -> None:
    """Raise RuleViolation for full covariances under protection, or too large for a message."""
    options = config.options
    d = len(config.columns)
    if options.covariance != "full":
        return
    if config.policy.protection != "none":
        raise RuleViolation(
            "covariance",
            "full covariances need exact records: take covariance: diagonal, or protection: none "
            "with every site's consent",
            "/covariance",
        )
    if options.most_cells * d * d > _MAX_NUMBERS:
        raise RuleViolation(
            "covariance",
            f"full covariances of {options.most_cells} cells and {d} features do not fit one "
            "answer: take covariance: diagonal, fewer features or fewer local_clusters",
            "/covariance",
        )
