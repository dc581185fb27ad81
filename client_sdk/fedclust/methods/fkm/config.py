"""What the analyst chooses in ``fkm``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedclust.methods.common.options import Restarts, SweptOptions, Tolerance, variants


class DefaultConfig(SweptOptions, title="FkmDefaultConfig"):
    """What the analyst chooses in the default variant.

    Attributes
    ----------
    candidates : int
        The most partitions that are carried on at once.
    halve_every : int
        Rounds after which the better half of them goes on.
    n_init : int
        Restarts of each site's local k-means.
    tol : float
        Relative improvement of the inertia below which a round counts as no improvement.
    """

    variant: Literal["default"]
    candidates: Annotated[int, Field(ge=1, le=64)] = 8
    halve_every: Annotated[int, Field(ge=1, le=1_000)] = 3
    n_init: Restarts = 3
    tol: Tolerance = 1e-6


class PaperConfig(SweptOptions, title="FkmPaperConfig"):
    """What the analyst chooses in the paper's variant.

    Attributes
    ----------
    rounds : int
        How often the coordinator clusters; a fixed number.
    drop_empty : bool
        Whether a site drops the global centres that none of its points are nearest to (line 15).
        False is for the paper's ablation.
    drop_below : int
        A mean that fewer persons are nearest to is not sent.
    weighted : bool
        Whether means weigh as much as they have persons (equation 1). False is for the paper's
        ablation.
    """

    variant: Literal["paper"]
    rounds: Annotated[int, Field(ge=1, le=10_000)] = 10
    drop_empty: bool = True
    drop_below: Annotated[int, Field(ge=1, le=1_000_000)] = 2
    weighted: bool = True


Config = variants("FkmConfig", DefaultConfig, PaperConfig)


def rounds(options: DefaultConfig | PaperConfig) -> int | None:
    """Return the paper variant's fixed number of rounds."""
    return options.rounds if isinstance(options, PaperConfig) else None


def possible_phases(options: DefaultConfig | PaperConfig) -> tuple[str, ...]:
    """Return the phases of a session, by its variant."""
    paper = isinstance(options, PaperConfig)
    return ("seeds", "means") if paper else ("cells", "candidates")
