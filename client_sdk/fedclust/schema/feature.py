"""What the analyst asks every site for: features to cluster by, and outcomes to compare."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Discriminator, Field, FiniteFloat, GetJsonSchemaHandler, StringConstraints, Tag
from pydantic_core import CoreSchema

from fedclust.schema.model import FeatureName, Visible, Written, leave_out

_MOST_UNIT = 64
Unit = Annotated[
    str, StringConstraints(max_length=_MOST_UNIT, pattern=r"^[^\x00-\x1f\x7f]*$"), Visible
]
#: A person who has another value changes two cells by one, so noise of variance v is zCDP of
#: rho = 1 / v: points / 250.
POINTS_TIMES_VARIANCE = 250
#: The points that a site gives to a table of persons for ever, unless an approval opens more: rho
#: is .4.
ALLOWANCE = 100


class Feature(Written):
    """What every site is asked for, in the units of the session.

    Examples
    --------
    >>> Feature(name="age", unit="years", lower=0, upper=120).kind
    'numeric'
    >>> Feature(name="pain", kind="categorical", levels=("typical", "atypical", "none")).levels
    ('typical', 'atypical', 'none')
    """

    name: FeatureName
    """The name of the feature, and of its column at the sites."""
    unit: Unit = ""
    """Unit of the numbers; the consent screen shows it, and a site converts its own numbers to it.
    """
    lower: FiniteFloat | None = None
    """The smallest value that a person can have. Released values below count as it. None: one
    site's extreme values can move the clusters.
    """
    upper: FiniteFloat | None = None
    """The largest value that a person can have; as `lower`."""
    kind: Literal["numeric", "binary", "categorical"] = "numeric"
    """`numeric`: a number. `binary`: 0 or 1. `categorical`: one of `levels`."""
    levels: tuple[FeatureName, ...] | None = None
    """All possible values of a categorical feature, 2 to 64; rows with another value get no label.
    """
    transform: Literal["none", "log", "log1p"] = "none"
    """Applied to a number before it is scaled, and undone in the result. `log` needs `lower` above
    0, `log1p` above -1.
    """
    weight: Annotated[FiniteFloat, Field(gt=0)] = 1.0
    """Factor of the feature's part in squared distances: 2 counts as two copies of it. From 1e-6 to
    1e6.
    """
    role: Literal["feature"] = "feature"
    """Persons are clustered by it; see `Outcome` for what is compared between clusters."""

    _written = leave_out(role="feature")


#: What a trajectory can be summarised by.
Summary: TypeAlias = Literal["first", "slope", "curvature", "peak", "auc"]
#: The unit of each summary that is not in the unit of the values: of the values' and the times'.
SUMMARY_UNITS: Final = {"slope": "{}/{}", "curvature": "{}/{}²", "auc": "{} x {}"}


class Outcome(Written):
    """What is counted by final cluster, with noise; no method sees it (docs/evidence.md).

    A person has exactly one of its cells. The declaration fixes the cells: nothing is read from
    data. A column that is a feature too stands in the definition twice.

    Examples
    --------
    >>> Outcome(name="died", role="outcome", kind="binary").cells
    ('no', 'yes', 'no value')
    >>> Outcome(name="days", role="outcome", kind="ordered", edges=(3, 7)).cells
    ('below 3', '3 to below 7', '7 and more', 'no value')
    """

    name: FeatureName
    """The name of the outcome, and of its column at the sites."""
    role: Literal["outcome"]
    """Distinguishes an outcome from a feature."""
    kind: Literal["binary", "categorical", "ordered", "time"]
    """`binary`: 0 or 1. `categorical`: one of `levels`. `ordered`: a number, counted between
    `edges`. `time`: a number, the time until the event or until the person left.
    """
    unit: Unit = ""
    """Unit of the number; a site converts its own numbers to it."""
    levels: tuple[FeatureName, ...] | None = None
    """All possible values of a categorical outcome, 2 to 12."""
    edges: tuple[FiniteFloat, ...] | None = None
    """Ascending. Of an ordered outcome 2 to 5, where each cell after the first begins; of a time 4
    to 6 above 0, where each interval ends.
    """
    values: tuple[FiniteFloat, ...] | None = None
    """Of an ordered outcome: what each cell counts as where means are compared. None: no means."""
    event: FeatureName | None = None
    """Of a time: the column of 0 and 1 that says whether the event occurred."""
    points: Annotated[int, Field(ge=1, le=10_000)] = 10
    """What the question costs of the 100 points that a site gives to its persons: the noise in each
    cell has variance `250 / points`.
    """

    @property
    def cells(self) -> tuple[str, ...]:
        """The names of its J cells, the last of which is for persons without a value."""
        edges = [f"{edge:g}" for edge in self.edges or ()]
        named: Sequence[str] = ("no", "yes")
        if self.kind == "categorical":
            named = self.levels or ()
        elif self.kind == "ordered":
            between = [f"{a} to below {b}" for a, b in pairwise(edges)]
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
            return (Feature(name=self.name, unit=self.unit, kind="binary"),)
        levels = self.levels
        return (Feature(name=self.name, unit=self.unit, kind="categorical", levels=levels),)

    _written = leave_out(unit="", levels=None, edges=None, values=None, event=None)


class Trajectory(Written):
    """A number that is measured several times, and the columns that it becomes.

    Methods see only its columns (:attr:`columns`), each a number. What it has by name, such as
    ``lower`` and ``transform``, holds for every column that is in its unit.

    Examples
    --------
    >>> crea = Trajectory(name="crea", kind="trajectory", grid=(0, 3), window=1)
    >>> [column.name for column in crea.columns]
    ['crea@0', 'crea@3']
    """

    name: Annotated[FeatureName, StringConstraints(max_length=100)]
    """The name of the measurement; its columns are `name@0`, `name@slope`."""
    kind: Literal["trajectory"]
    """"""
    unit: Unit = ""
    """Unit of the values."""
    time_unit: Unit = ""
    """Unit of the times, such as `days`; a site converts its own."""
    lower: FiniteFloat | None = None
    """As of a `Feature`."""
    upper: FiniteFloat | None = None
    """As of a `Feature`."""
    transform: Literal["none", "log", "log1p"] = "none"
    """As of a `Feature`."""
    weight: Annotated[FiniteFloat, Field(gt=0)] = 1.0
    """Of all columns together: a trajectory counts as one number does, however many they are."""
    grid: tuple[FiniteFloat, ...] | None = None
    """Ascending times. Each is a column: the value at that time."""
    fill: Literal["linear", "last", "none", "spline"] = "linear"
    """Where the value at a time of the grid comes from. `linear`: the line between the values
    before and after it, or one of these alone; `last`: the last one until then; `none`: the nearest
    one; `spline`: the natural cubic spline with the grid as its knots that fits all values of the
    person best (least squares).
    """
    window: Annotated[FiniteFloat, Field(ge=0)] | None = None
    """A value that is further than this from a time of the grid does not count for it."""
    summary: tuple[Summary, ...] | None = None
    """In place of a grid. `first`: the first value; `slope`: of the straight line that fits all
    values best (least squares); `curvature`: the quadratic coefficient of the parabola that does;
    `peak`: the largest value; `auc`: the area under the lines between the values, from the first
    time to the last. Slope and area need values at two times, a curvature at three.
    """
    role: Literal["feature"] = "feature"

    @property
    def columns(self) -> tuple[TrajectoryColumn, ...]:
        """Its columns, as features of a session."""
        points: tuple[float | Summary, ...] = self.grid or self.summary or ()
        return tuple(self._column(point, self.weight / len(points)) for point in points)

    def _column(self, point: float | Summary, weight: float) -> TrajectoryColumn:
        name = f"{self.name}@{point if isinstance(point, str) else format(point, 'g')}"
        column = TrajectoryColumn(name=name, weight=weight, of=self, point=point)
        if point in SUMMARY_UNITS:
            both = self.unit and self.time_unit
            unit = SUMMARY_UNITS[point].format(self.unit, self.time_unit) if both else ""
            return column.model_copy(update={"unit": unit[:_MOST_UNIT]})
        same = {name: getattr(self, name) for name in ("unit", "lower", "upper", "transform")}
        return column.model_copy(update=same)

    _written = leave_out(
        role="feature", lower=None, upper=None, grid=None, window=None, summary=None
    )


class TrajectoryColumn(Feature):
    """A column of a trajectory, which knows how a site with a row for each value makes it."""

    of: Trajectory
    point: FiniteFloat | Summary


def _tag(declared: Any) -> str:
    """Return which model declares something: its role says it, or the kind of a feature."""
    get = declared.get if isinstance(declared, dict) else functools.partial(getattr, declared)
    role = str(get("role", "feature"))
    return "trajectory" if role == "feature" and get("kind", "") == "trajectory" else role


class _AnyOf:
    """Describes a choice without a discriminator: a feature may leave its role out."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        found = handler(schema)
        return {"anyOf": found.pop("oneOf"), **found}


#: What a definition lists: one of these.
Declaration: TypeAlias = Feature | Trajectory | Outcome
#: As the field of a body, read by role and kind.
Declared: TypeAlias = Annotated[
    Annotated[Feature, Tag("feature")]
    | Annotated[Trajectory, Tag("trajectory")]
    | Annotated[Outcome, Tag("outcome")],
    Discriminator(_tag),
    _AnyOf,
]


def clustered(declared: Sequence[Declaration]) -> tuple[Feature, ...]:
    """Return the features that persons are clustered by: of a trajectory its columns."""
    found: list[Feature] = []
    for each in declared:
        if isinstance(each, Trajectory):
            found += each.columns
        elif isinstance(each, Feature):
            found.append(each)
    return tuple(found)


def outcomes_of(declared: Sequence[Declaration]) -> tuple[Outcome, ...]:
    """Return the outcomes of a definition."""
    return tuple(each for each in declared if isinstance(each, Outcome))


def asked_of(declared: Sequence[Declaration]) -> tuple[Feature | Outcome, ...]:
    """Return what a site is asked for: the features that are clustered, then the outcomes."""
    return (*clustered(declared), *outcomes_of(declared))


def trajectories_of(features: Sequence[Feature]) -> tuple[Trajectory, ...]:
    """Return the trajectories that columns are of, each once."""
    return tuple(dict.fromkeys(each.of for each in features if isinstance(each, TrajectoryColumn)))
