"""The options of ``kfed``."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field, RootModel

from fedclust.methods.common.options import Restarts, SweptOptions, variants
from fedclust.methods.common.task_checks import refuse_dissimilarity
from fedclust.schema.errors import RuleViolation
from fedclust.schema.run_config import RunConfig

#: The default local_clusters, per cluster. On the grid of the FKM paper more cells gave better
#: labels up to about this number: a cell on the border of two clusters mixes them.
_CELLS_PER_CLUSTER = 8
#: The fewest cells with which the default variant projects.
_MIN_PROJECTED_CELLS = 32


class _KfedOptions(SweptOptions):
    """Options of both variants.

    Attributes
    ----------
    local_clusters : int or None
        k', the most cells of a site. None: 8 K; in the paper variant sqrt(K), rounded up.
    refine : int
        Exact Lloyd rounds after the first round.
    """

    local_clusters: Annotated[int, Field(ge=1, le=10_000)] | None = None
    refine: Annotated[int, Field(ge=0, le=99)] = 0

    @property
    def round_limit(self) -> int:
        """The fixed number of rounds."""
        return 1 + self.refine

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases of a session; ``refine`` is optional."""
        return ("cells", "refine") if self.refine else ("cells",)


class DefaultConfig(_KfedOptions, title="KfedDefaultConfig"):
    """Options of the default variant: more cells than clusters, and restarts.

    Attributes
    ----------
    n_init : int or None
        Restarts of each site's k-means. None: 10, down to 2 at a large site.
    projection : {"auto", "on", "off"}
        Whether a site runs its k-means among projections on its singular vectors above the noise.
        ``auto``: from 32 cells on.
    labels : {"nearest", "cells"}
        How a site that took part labels its rows: by the nearest centroid, or by the cluster of its
        own nearest cell (Definition 3.3). All other rows, and all rows after refinement, get the
        nearest centroid.
    """

    variant: Literal["default"]
    n_init: Restarts | None = None
    projection: Literal["auto", "on", "off"] = "auto"
    labels: Literal["nearest", "cells"] = "nearest"

    @property
    def cells(self) -> int:
        """The most cells of a site, k'."""
        return self.local_clusters or min(_CELLS_PER_CLUSTER * self.k, 10_000)

    @property
    def projects(self) -> bool:
        """Whether sites project their points."""
        if self.projection == "auto":
            return self.cells >= _MIN_PROJECTED_CELLS
        return self.projection == "on"


class PaperConfig(_KfedOptions, title="KfedPaperConfig"):
    """Options of the paper's variant: Algorithms 1 and 2 as published.

    Attributes
    ----------
    projection : {"on", "off"}
        Whether a site seeds its k-means in the space of its first k' singular vectors.
    labels : {"cells", "nearest"}
        How a site that took part labels its rows: by the cluster of its own nearest cell
        (Definition 3.3), or by the nearest centroid. All other rows, and all rows after refinement,
        get the nearest centroid.
    server_lloyd : {"converge", "one"}
        Whether the coordinator runs Lloyd to convergence, as the authors' program does, or once
        (Algorithm 2, line 7).
    """

    variant: Literal["paper"]
    projection: Literal["on", "off"] = "on"
    labels: Literal["cells", "nearest"] = "cells"
    server_lloyd: Literal["converge", "one"] = "converge"

    @property
    def cells(self) -> int:
        """The most cells of a site, k'."""
        return self.local_clusters or int(np.ceil(np.sqrt(self.k)))

    @property
    def projects(self) -> bool:
        """Whether sites project their points."""
        return self.projection == "on"


Variants: TypeAlias = DefaultConfig | PaperConfig
Config: type[RootModel[Variants]] = variants("KfedConfig", DefaultConfig, PaperConfig)


def check_config(config: RunConfig[Variants]) -> None:
    """Raise RuleViolation if the paper variant has too many local clusters, or is not Euclidean."""
    options = config.options
    if isinstance(options, PaperConfig):
        refuse_dissimilarity(config)
    if isinstance(options, PaperConfig) and options.cells > options.k:
        raise RuleViolation(
            "variant",
            "variant: paper starts from one site's means: local_clusters is at most n_clusters",
            "/local_clusters",
        )
