"""The options of ``lloyd``."""

from __future__ import annotations

from fedclust.methods.common.given_start import StartOptions
from fedclust.methods.common.options import Tolerance


class Config(StartOptions, title="LloydConfig"):
    """Options of ``lloyd``.

    Attributes
    ----------
    tol : float
        Relative improvement of the inertia below which a round counts as no improvement.
    """

    tol: Tolerance = 1e-6

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases of a session; given centroids need no cells."""
        return ("lloyd",) if self.start == "given" else ("cells", "lloyd")
