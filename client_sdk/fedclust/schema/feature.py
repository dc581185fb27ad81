"""What the analyst asks every site for: features to cluster by, and outcomes to compare."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    Discriminator,
    Field,
    FiniteFloat,
    GetJsonSchemaHandler,
    StringConstraints,
    Tag,
    model_serializer,
)
from pydantic_core import CoreSchema

from fedclust.schema.model import FeatureName, Model, Visible

Unit = Annotated[str, StringConstraints(max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$"), Visible]
#: A person who has another value changes two cells by one, so noise of variance v is zCDP of
#: rho = 1 / v: points / 250. The allowance of 100 points is rho = .4.
POINTS_TIMES_VARIANCE = 250


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
    role : {"feature"}
        Persons are clustered by it; see :class:`Outcome` for what is compared between clusters.

    Examples
    --------
    >>> Feature(name="age", unit="years", lower=0, upper=120).kind
    'numeric'
    >>> Feature(name="pain", kind="categorical", levels=("typical", "atypical", "none")).levels
    ('typical', 'atypical', 'none')
    """

    name: FeatureName
    unit: Unit = ""
    lower: FiniteFloat | None = None
    upper: FiniteFloat | None = None
    kind: Literal["numeric", "binary", "categorical"] = "numeric"
    levels: tuple[FeatureName, ...] | None = None
    transform: Literal["none", "log", "log1p"] = "none"
    weight: Annotated[FiniteFloat, Field(gt=0)] = 1.0
    role: Literal["feature"] = "feature"

    @model_serializer(mode="wrap")
    def _without_default_role(self, write: Any) -> dict[str, Any]:
        # A definition without outcomes keeps the canonical form and the hash of one that knows
        # none.
        return {k: v for k, v in write(self).items() if k != "role"}


class Outcome(Model):
    """What is counted by final cluster, with noise; no method sees it (docs/evidence.md).

    A person has exactly one of its cells. The declaration fixes the cells: nothing is read from
    data. A column that is a feature too stands in the definition twice.

    Attributes
    ----------
    name : str
        The name of the outcome, and of its column at the sites.
    role : {"outcome"}
        Distinguishes an outcome from a feature.
    kind : {"binary", "categorical", "ordered", "time"}
        ``binary``: 0 or 1. ``categorical``: one of ``levels``. ``ordered``: a number, counted
        between ``edges``. ``time``: a number, the time until the event or until the person left.
    unit : str
        Unit of the number; a site converts its own numbers to it.
    levels : tuple of str or None
        All possible values of a categorical outcome, 2 to 12.
    edges : tuple of float or None
        Ascending. Of an ordered outcome 2 to 5, where each cell after the first begins; of a time 4
        to 6 above 0, where each interval ends.
    values : tuple of float or None
        Of an ordered outcome: what each cell counts as where means are compared. None: no means.
    event : str or None
        Of a time: the column of 0 and 1 that says whether the event occurred.
    points : int
        What the question costs of the 100 points that a site gives to its persons: the noise in
        each cell has variance ``250 / points``.

    Examples
    --------
    >>> Outcome(name="died", role="outcome", kind="binary").cells
    ('no', 'yes', 'no value')
    >>> Outcome(name="days", role="outcome", kind="ordered", edges=(3, 7)).cells
    ('below 3', '3 to 7', '7 and more', 'no value')
    """

    name: FeatureName
    role: Literal["outcome"]
    kind: Literal["binary", "categorical", "ordered", "time"]
    unit: Unit = ""
    levels: tuple[FeatureName, ...] | None = None
    edges: tuple[FiniteFloat, ...] | None = None
    values: tuple[FiniteFloat, ...] | None = None
    event: FeatureName | None = None
    points: Annotated[int, Field(ge=1, le=10_000)] = 10

    @property
    def cells(self) -> tuple[str, ...]:
        """The names of its J cells, the last of which is for persons without a value."""
        edges = [f"{edge:g}" for edge in self.edges or ()]
        named: Sequence[str] = ("no", "yes")
        if self.kind == "categorical":
            named = self.levels or ()
        elif self.kind == "ordered":
            between = [f"{a} to {b}" for a, b in pairwise(edges)]
            named = (f"below {edges[0]}", *between, f"{edges[-1]} and more")
        elif self.kind == "time":
            spans = [f"{a} to {b}" for a, b in zip(["0", *edges], edges, strict=False)]
            named = [f"{what} {span}" for span in spans for what in ("event", "left")]
            named = (*named, f"past {edges[-1]}")
        return (*named, "no value")

    @property
    def variance(self) -> Fraction:
        """The variance of the noise in each cell."""
        return Fraction(POINTS_TIMES_VARIANCE, self.points)

    @property
    def columns(self) -> tuple[Feature, ...]:
        """The columns of a site that it is read from, as features to read."""
        if self.kind == "time" and self.event is not None:
            event = Feature(name=self.event, kind="binary")
            return Feature(name=self.name, unit=self.unit), event
        if self.kind in ("ordered", "time"):
            return (Feature(name=self.name, unit=self.unit),)
        if self.kind == "binary":
            return (Feature(name=self.name, kind="binary"),)
        return (Feature(name=self.name, kind="categorical", levels=self.levels),)

    @model_serializer(mode="wrap")
    def _without_defaults(self, write: Any) -> dict[str, Any]:
        return {k: v for k, v in write(self).items() if v is not None and (k, v) != ("unit", "")}


def _role(declared: Any) -> str:
    if isinstance(declared, dict):
        return str(declared.get("role", "feature"))
    return str(getattr(declared, "role", "feature"))


class _AnyOf:
    """Describes a choice without a discriminator: a feature may leave its role out."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        found = handler(schema)
        return {"anyOf": found.pop("oneOf"), **found}


#: What a definition lists. The role says which it is.
Declared: TypeAlias = Annotated[
    Annotated[Feature, Tag("feature")] | Annotated[Outcome, Tag("outcome")],
    Discriminator(_role),
    _AnyOf,
]


def clustered(declared: Sequence[Feature | Outcome]) -> tuple[Feature, ...]:
    """Return the features that persons are clustered by."""
    return tuple(each for each in declared if isinstance(each, Feature))


def outcomes_of(declared: Sequence[Feature | Outcome]) -> tuple[Outcome, ...]:
    """Return the outcomes of a definition."""
    return tuple(each for each in declared if isinstance(each, Outcome))
