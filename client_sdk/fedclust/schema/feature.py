"""What the analyst asks every site for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, StringConstraints

from fedclust.schema.model import FeatureName, Model, Visible

__all__ = ["Feature"]


class Feature(Model):
    """What every site is asked for, in the units of the session.

    Attributes
    ----------
    name, unit : str
    lower, upper : float or None
        Bounds of a number; released values outside them count as the bound.
    kind : {"numeric", "binary", "categorical"}
    levels : tuple of str or None
        Of a categorical feature: all that it can be.
    transform : {"none", "log", "log1p"}
        Applied to a number before it is scaled, and undone in the result.
    weight : float
        Factor of the feature's part in squared distances: 2 counts as two copies of it.
    """

    name: FeatureName
    unit: Annotated[
        str, StringConstraints(max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$"), Visible
    ] = ""
    lower: FiniteFloat | None = None
    upper: FiniteFloat | None = None
    kind: Literal["numeric", "binary", "categorical"] = "numeric"
    levels: tuple[FeatureName, ...] | None = None
    transform: Literal["none", "log", "log1p"] = "none"
    weight: Annotated[FiniteFloat, Field(gt=0)] = 1.0
