"""The options of ``mixture``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

from fedclust.methods.common.given_start import StartOptions
from fedclust.methods.common.options import Tolerance


class Config(StartOptions, title="MixtureConfig"):
    """Options of ``mixture``.

    Attributes
    ----------
    proportions : {"common", "by_site"}
        Whether all sites have the classes in the same proportions, or each site in its own. A
        site's own proportions do not leave it.
    reg_covar : float
        Added to every variance, scaled, as in scikit-learn.
    tol : float
        Relative gain of the log-likelihood below which a round counts as no improvement.
    """

    proportions: Literal["common", "by_site"] = "common"
    reg_covar: Annotated[FiniteFloat, Field(ge=0, le=1)] = 1e-6
    tol: Tolerance = 1e-6

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases of a session; given centroids need no cells."""
        own = ("partition", "em")
        return own if self.start == "given" else ("cells", *own)
