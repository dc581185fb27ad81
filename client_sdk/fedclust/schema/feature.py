"""What the analyst asks every site for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, StringConstraints, model_serializer

from fedclust.schema.model import FeatureName, Model, Visible

__all__ = ["Feature", "clustered", "outcomes_of"]


class Feature(Model):
    """What every site is asked for, in the units of the session.

    Attributes
    ----------
    name : str
        The name of the feature, and of its column at the sites.
    unit : str
        Unit of the numbers; the consent screen shows it, and a site converts its own numbers to it.
    lower, upper : float or None
        Bounds of a number: the smallest and the largest value that a person can have. Released
        values outside count as the bound. None: one site's extreme values can move the clusters.
    kind : {"numeric", "binary", "categorical"}
        ``numeric``: a number. ``binary``: 0 or 1. ``categorical``: one of ``levels``.
    levels : tuple of str or None
        All possible values of a categorical feature, 2 to 64; rows with another value get no label.
    transform : {"none", "log", "log1p"}
        Applied to a number before it is scaled, and undone in the result. ``log`` needs ``lower``
        above 0, ``log1p`` above -1.
    weight : float
        Factor of the feature's part in squared distances: 2 counts as two copies of it. From 1e-6
        to 1e6.
    role : {"feature", "outcome"}
        ``feature``: persons are clustered by it. ``outcome``: no method sees it; the result
        compares it between the clusters. An outcome has no transform and no weight, and a person
        without its value is clustered all the same.

    Examples
    --------
    >>> Feature(name="age", unit="years", lower=0, upper=120).kind
    'numeric'
    >>> Feature(name="pain", kind="categorical", levels=("typical", "atypical", "none")).levels
    ('typical', 'atypical', 'none')
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
    role: Literal["feature", "outcome"] = "feature"

    @model_serializer(mode="wrap")
    def _without_default_role(self, write: Any) -> dict[str, Any]:
        # A definition without outcomes keeps the canonical form and the hash of one that knows
        # none.
        return {k: v for k, v in write(self).items() if (k, v) != ("role", "feature")}


def clustered(features: tuple[Feature, ...]) -> tuple[Feature, ...]:
    """Return the features that persons are clustered by; the same tuple if these are all."""
    if all(feature.role == "feature" for feature in features):
        return features
    return tuple(feature for feature in features if feature.role == "feature")


def outcomes_of(features: tuple[Feature, ...]) -> tuple[Feature, ...]:
    """Return the outcomes among a definition's features."""
    return tuple(feature for feature in features if feature.role == "outcome")
