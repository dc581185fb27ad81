"""The options of ``fkm``."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, RootModel

from fedclust.methods.common.options import Restarts, SweptOptions, Tolerance, variants
from fedclust.methods.common.task_checks import refuse_dissimilarity
from fedclust.schema.run_config import RunConfig


class DefaultConfig(SweptOptions, title="FkmDefaultConfig"):
    """Options of the default variant: exact Lloyd rounds of several candidates.

    Attributes
    ----------
    candidates : int
        The most candidate clusterings that continue in parallel.
    halve_every : int
        Rounds after which the worse half of the candidates is dropped.
    n_init : int
        Restarts of each site's k-means in the phase ``cells``.
    tol : float
        Relative improvement of the inertia below which a round counts as no improvement.
    """

    variant: Literal["default"]
    candidates: Annotated[int, Field(ge=1, le=64)] = 8
    halve_every: Annotated[int, Field(ge=1, le=1_000)] = 3
    n_init: Restarts = 3
    tol: Tolerance = 1e-6

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases of this variant."""
        return ("cells", "candidates")

    @property
    def shape_numbers(self) -> dict[str, str]:
        """The values of K and c."""
        return {**super().shape_numbers, "c": str(self.candidates)}


class PaperConfig(SweptOptions, title="FkmPaperConfig"):
    """Options of the paper's variant: the published algorithm.

    Attributes
    ----------
    rounds : int
        How often the coordinator clusters the sites' means.
    drop_empty : bool
        Whether a site drops the global centroids that none of its points are nearest to (line 15 of
        the paper's algorithm). False is the paper's ablation.
    drop_below : int
        A site does not send a mean that fewer persons than this are nearest to.
    weighted : bool
        Whether means are weighted by persons (equation 1). False is the paper's ablation.
    """

    variant: Literal["paper"]
    rounds: Annotated[int, Field(ge=1, le=10_000)] = 10
    drop_empty: bool = True
    drop_below: Annotated[int, Field(ge=1, le=1_000_000)] = 2
    weighted: bool = True

    @property
    def round_limit(self) -> int:
        """The fixed number of rounds."""
        return self.rounds

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases of this variant."""
        return ("seeds", "means")


Variants: TypeAlias = DefaultConfig | PaperConfig


def check_config(config: RunConfig[Variants]) -> None:
    """Raise RuleViolation if the paper variant is asked for another dissimilarity."""
    if isinstance(config.options, PaperConfig):
        refuse_dissimilarity(config)


Config: type[RootModel[Variants]] = variants("FkmConfig", DefaultConfig, PaperConfig)
