"""Make the columns of a trajectory from a table with a row for each value of a person.

A session asks for the columns (`fedclust.schema.feature.Trajectory`), and all rows of a person get
the same value of each, so that they merge like rows of any other column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.data.chunks import MISSING, Chunk, Reader
from fedclust.data.mapping import ColumnMap, ColumnsFile
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.schema.feature import Feature, Trajectory, TrajectoryColumn, trajectories_of
from fedclust.wire.errors import DataError

#: Bits of a value that are kept. So sums of up to 8,192 equal values are exact, a person's mean is
#: the value, and the last bits of linear algebra do not make another value of it.
_BITS: Final = 40
#: Times this near to one of the grid, relative to its largest number, are that time: a factor such
#: as 0.041666667 days an hour makes 1.000000008 of 24.
_SAME_TIME: Final = 1e-6
#: How many times a summary needs, if more than one.
_LEAST_TIMES: Final = {"slope": 2, "auc": 2, "curvature": 3}


@dataclass(frozen=True)
class LongTrajectory:
    """A trajectory that a site has in rows, and the columns that a session asks of it."""

    of: Trajectory
    rule: ColumnMap
    columns: tuple[TrajectoryColumn, ...]

    @property
    def value(self) -> str:
        """The column of the values here."""
        return self.rule.column or self.of.name

    @property
    def sources(self) -> tuple[str, str, str]:
        """The columns here of value, time and person."""
        return self.value, str(self.rule.time), str(self.rule.person)

    def local(self, column: TrajectoryColumn) -> str:
        """Return the name under which the site keeps a column.

        It says how the column is made: another grid, fill or unit is another column, which does not
        take the place of what was released.
        """
        of, point = self.of, column.point
        how = [str(self.rule.time), of.time_unit, of.unit]
        if of.grid is not None:
            how += [of.fill, f"{of.window:g}"]
        if of.grid is not None and of.fill == "spline":
            how += [f"{knot:g}" for knot in of.grid]
        named = point if isinstance(point, str) else f"{point:g}"
        return f"{self.value}@{named} ({', '.join(filter(None, how))})"


def long_trajectories(
    file: ColumnsFile, features: Sequence[Feature], source: str
) -> tuple[LongTrajectory, ...]:
    """Return the trajectories whose values have rows here, as a mapping file says.

    Raises
    ------
    DataError
        The mapping does not say enough; ``source`` is its name.
    """
    found = []
    for of in trajectories_of(features):
        rule = file.features.get(of.name, ColumnMap())
        if rule.lacking or not (rule.long or rule.column):
            continue
        if rule.time is None or rule.person is None or not rule.time_factor > 0:
            message = f"features.{of.name}: a trajectory needs the columns of time and person: "
            message += 'time = "day", person = "patient_id"; its time_factor is above 0'
            raise DataError(source, "mapping", message)
        columns = [each for each in features if isinstance(each, TrajectoryColumn)]
        own = tuple(each for each in columns if each.of == of)
        said = [each.name for each in own if each.name in file.features]
        if said:
            message = f"features.{said[0]}: it is made of the rows of {of.name!r}: write what "
            message += f"holds for these into features.{of.name} (sentinels=, --sentinel)"
            raise DataError(source, "mapping", message)
        found.append(LongTrajectory(of, rule, own))
    return tuple(found)


def mapped_columns(
    file: ColumnsFile, features: Sequence[Feature], long: Sequence[LongTrajectory]
) -> dict[str, ColumnMap]:
    """Return how each feature's column is read, with those that are made of rows."""
    found = dict(file.features)
    for of in trajectories_of(features):
        rule = found.pop(of.name, ColumnMap())
        if rule.lacking:
            found |= {each.name: rule for each in of.columns}
    made = {column.name: each.local(column) for each in long for column in each.columns}
    return found | {name: ColumnMap(column=local) for name, local in made.items()}


#: Values in the session's unit (n,), times as they are here (n,), and persons of some rows.
Rows: TypeAlias = tuple[FloatArray, FloatArray, Sequence[str]]


@dataclass(frozen=True)
class _Made:
    """The columns (n persons, m) of a trajectory, and the number of each person."""

    numbers: Mapping[str, int] = field(repr=False)
    values: FloatArray = field(repr=False)
    text: str


class TrajectoryReader(Reader):
    """A source with the columns of trajectories; it is read once more for each of these.

    Parameters
    ----------
    inner : Reader
    long : sequence of LongTrajectory
    read : callable
        Yields the rows of a trajectory.
    lacking : bool
        Whether the source may lack columns.

    Raises
    ------
    DataError
        The source lacks one.
    """

    def __init__(
        self,
        inner: Reader,
        long: Sequence[LongTrajectory],
        read: Callable[[LongTrajectory], Iterator[Rows]],
        lacking: bool,
    ) -> None:
        self._inner, self._read = inner, read
        self.origin, self.textual, self.named = inner.origin, inner.textual, inner.named
        self._of: dict[str, tuple[LongTrajectory, int]] = {}
        self._made: dict[str, _Made] = {}
        for each in long:
            value, time, person = each.sources
            if not lacking or set(each.sources) <= set(inner.header):
                inner.origin.columns(inner.header, [value, time], [person])
                self._of |= {each.local(column): (each, j) for j, column in enumerate(each.columns)}
        self.header = [*inner.header, *self._of]
        self.n_rows = inner.n_rows

    @property
    def texts(self) -> tuple[str, ...]:
        """How many values the persons have and what was filled, once all was read."""
        return tuple(made.text for made in self._made.values())

    def chunks(self, columns: Sequence[str], text: Sequence[str], rows: int) -> Iterator[Chunk]:
        """Yield all rows; those of a person have the same values of a trajectory."""
        own = {name: self._of[name] for name in columns if name in self._of}
        others = [name for name in columns if name not in own]
        persons = [each.sources[2] for each, _ in own.values()]
        kept = [*dict.fromkeys((*text, *persons))]
        made = {name: self._find(each) for name, (each, _) in own.items()}
        for chunk in self._inner.chunks(others, kept, rows):
            cells = dict(chunk.cells)
            for name, (each, j) in own.items():
                numbers = made[name].numbers
                try:
                    rows_of = [numbers[person] for person in chunk.text[each.sources[2]]]
                except KeyError:
                    message = "it holds other persons than when it was read first"
                    raise self.origin.fault("changed", message) from None
                cells[name] = made[name].values[rows_of, j]
            yield replace(chunk, cells=cells, text={name: chunk.text[name] for name in text})

    def close(self) -> None:
        """Release what is held."""
        self._inner.close()

    def _find(self, each: LongTrajectory) -> _Made:
        if each.of.name not in self._made:
            self._made[each.of.name] = self._make(each)
        return self._made[each.of.name]

    def _make(self, each: LongTrajectory) -> _Made:
        numbers: dict[str, int] = {}
        parts: list[tuple[FloatArray, FloatArray, IntArray]] = [(np.empty(0), np.empty(0), _NONE)]
        n = 0
        for values, times, keys in self._read(each):
            for index, key in enumerate(keys):
                if key.casefold() in MISSING:
                    column = each.sources[2]
                    message = "no person is given; each row needs one"
                    raise self.origin.fault("persons", message, column=column, index=n + index)
            persons = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
            parts.append((values, _on_grid(each.of, times * each.rule.time_factor), persons))
            n += len(keys)
        values, times, of = (np.concatenate(column) for column in zip(*parts, strict=True))
        visits = Visits.of(values, times, of, len(numbers))
        found = trajectory_columns(each.of, visits)
        places = [each.of.columns.index(column) for column in each.columns]
        if not np.isfinite(found).any() and len(visits.times):
            message = f"no person has enough values for {each.of.name!r}: a slope and an area need "
            message += (
                "two times, a curvature three, a spline as many as knots, and a grid a value "
            )
            message += "within its window"
            raise self.origin.fault("trajectory", message, column=each.value)
        return _Made(numbers, found[:, places], _text(each.of, visits, found))


_NONE: Final = np.empty(0, dtype=np.int64)


# --- the columns of a person ----------------------------------------------------------------------


@dataclass(frozen=True)
class Visits:
    """The values of persons by person and time, those of one time as their mean.

    Attributes
    ----------
    values, times : (n,) float64
    persons : (n,) int64
        Ascending.
    counts : (n persons,) int64
        Values of each person.
    """

    values: FloatArray = field(repr=False)
    times: FloatArray = field(repr=False)
    persons: IntArray = field(repr=False)
    counts: IntArray = field(repr=False)

    @classmethod
    def of(cls, values: FloatArray, times: FloatArray, persons: IntArray, n_persons: int) -> Visits:
        """Sort rows (n,); those without a value or a time are left out."""
        known = ~(np.isnan(values) | np.isnan(times))
        order = np.flatnonzero(known)[np.lexsort((times[known], persons[known]))]
        values, times, persons = values[order], times[order], persons[order]
        new = np.ones(len(times), dtype=np.bool_)
        new[1:] = (np.diff(times) != 0) | (np.diff(persons) != 0)
        place = np.cumsum(new) - 1
        means = np.bincount(place, values) / np.bincount(place)
        return cls(means, times[new], persons[new], np.bincount(persons[new], minlength=n_persons))

    @property
    def starts(self) -> IntArray:
        """Where each person's values begin."""
        return np.cumsum(self.counts) - self.counts

    def sums(self, numbers: NDArray[Any]) -> FloatArray:
        """Return the sum of each person's numbers (n,)."""
        return np.asarray(np.bincount(self.persons, numbers, len(self.counts)), dtype=np.float64)


def trajectory_columns(of: Trajectory, visits: Visits) -> FloatArray:
    """Return the columns of a trajectory (n persons, m), NaN where a person has not enough values.

    Parameters
    ----------
    of : Trajectory
    visits : Visits
        In the session's units.
    """
    window = (of.window or 0.0) + _slack(of)
    if of.grid is None:
        found = [_summarised(visits, name) for name in of.summary or ()]
    elif of.fill == "spline":
        found = list(_spline(visits, np.array(of.grid), window).T)
    else:
        found = [_at(visits, time, of.fill, window) for time in of.grid]
    mantissas, exponents = np.frexp(np.stack(found, axis=1))
    return np.asarray(np.ldexp(np.round(np.ldexp(mantissas, _BITS)), exponents - _BITS))


def _slack(of: Trajectory) -> float:
    return _SAME_TIME * max(map(abs, (*(of.grid or ()), of.window or 0.0)))


def _on_grid(of: Trajectory, times: FloatArray) -> FloatArray:
    """Return times (n,), those that are nearly one of the grid as this."""
    for time in of.grid or ():
        times = np.where(np.abs(times - time) <= _slack(of), time, times)
    return times


def _at(visits: Visits, time: float, fill: str, window: float) -> FloatArray:
    """Return each person's value (n persons,) at a time of the grid."""
    until, before = visits.sums(visits.times <= time), visits.sums(visits.times < time)
    # The last one until then, and the first from then on; -1 is the NaN at the end.
    own = np.where(until > 0, visits.starts + until - 1, -1).astype(np.int64)
    following = np.where(before < visits.counts, visits.starts + before, -1).astype(np.int64)
    times, values = np.append(visits.times, np.nan), np.append(visits.values, np.nan)
    since, ahead = time - times[own], times[following] - time
    last = np.where(since <= window, values[own], np.nan)
    if fill == "last":
        return last
    first = np.where(ahead <= window, values[following], np.nan)
    if fill == "none":
        found = np.where(ahead < since, first, last)
    else:
        apart = since + ahead
        share = np.divide(since, apart, out=np.zeros_like(apart), where=apart > 0)
        found = last + share * (first - last)
    alone = np.where(np.isnan(last), first, last)
    return np.where(np.isnan(found), alone, found)


def _summarised(visits: Visits, name: str) -> FloatArray:
    """Return each person's value (n persons,) of a summary."""
    persons, times, values = visits.persons, visits.times, visits.values
    if name == "first":
        found = np.append(values, np.nan)[visits.starts]
    elif name == "peak":
        found = np.full(len(visits.counts), -np.inf)
        np.maximum.at(found, persons, values)
    elif name in ("slope", "curvature"):
        # The powers of the time, each orthogonal to those before it.
        basis = _without(visits, times, np.ones(len(times)))
        if name == "curvature":
            square = _without(visits, basis**2, np.ones(len(times)))
            basis = _without(visits, square, basis)
        found = _coefficient(visits, values, basis)
    else:
        areas = np.zeros(len(values))
        between = np.diff(times) * (values[1:] + values[:-1]) / 2
        areas[:-1] = np.where(np.diff(persons) == 0, between, 0.0)
        found = visits.sums(areas)
    return np.where(visits.counts >= _LEAST_TIMES.get(name, 1), found, np.nan)


def _coefficient(visits: Visits, numbers: FloatArray, basis: FloatArray) -> FloatArray:
    """Return each person's least-squares coefficient (n persons,) of a basis (n,).

    It is 0 if only rounding makes it another number: persons without a trend share this value.
    """
    terms, squares = basis * numbers, visits.sums(basis**2)
    sums, sizes = visits.sums(terms), visits.sums(np.abs(terms))
    sums = np.where(np.abs(sums) > sizes * 2.0**-_BITS, sums, 0.0)
    return sums / np.where(squares > 0, squares, 1.0)


def _without(visits: Visits, numbers: FloatArray, basis: FloatArray) -> FloatArray:
    """Return what of numbers (n,) each person's best multiple of a basis (n,) leaves."""
    return numbers - _coefficient(visits, numbers, basis)[visits.persons] * basis


def _spline(visits: Visits, knots: FloatArray, window: float) -> FloatArray:
    """Return the values at the knots (n persons, m) of each person's least-squares spline."""
    basis = natural_basis(knots, visits.times)
    found = np.full((len(visits.counts), len(knots)), np.nan)
    for person in np.flatnonzero(visits.counts >= len(knots)):
        own = slice(visits.starts[person], visits.starts[person] + visits.counts[person])
        fitted, _, rank, _ = np.linalg.lstsq(basis[own], visits.values[own], rcond=1e-8)
        if rank == len(knots):
            near = np.abs(visits.times[own, None] - knots).min(axis=0) <= window
            found[person] = np.where(near, fitted, np.nan)
    return found


def natural_basis(knots: FloatArray, times: FloatArray) -> FloatArray:
    """Return natural cubic splines at ``times`` (n, m): the j-th is 1 at knot j, 0 at the others.

    A spline is so the sum of its values at the knots times these. It is a straight line beyond the
    first and the last knot.
    """
    from scipy.interpolate import CubicSpline  # few sites have a spline

    spline = CubicSpline(knots, np.eye(len(knots)), bc_type="natural")
    inside = np.clip(times, knots[0], knots[-1])
    return np.asarray(spline(inside) + (times - inside)[:, None] * spline(inside, 1))


def _text(of: Trajectory, visits: Visits, found: FloatArray) -> str:
    """Return how many values the persons have, and where the columns come from."""
    some = visits.counts[visits.counts > 0]
    said = f"{of.name}: {len(some)} of {len(visits.counts)} persons have values"
    if len(some):
        unit = f" {of.time_unit}" if of.time_unit else ""
        said += f", {some.min()} to {some.max()} each (median {np.median(some):g}), at times from "
        said += f"{visits.times.min():g} to {visits.times.max():g}{unit}"
    missing = int(np.isnan(found).sum())
    if of.grid is None or of.fill == "spline":
        return f"{said}; of {found.size} values {missing} are missing"
    exact = sum(int((visits.times == time).sum()) for time in of.grid)
    filled = found.size - missing - exact
    how = {"linear": "interpolated", "last": "a value before", "none": "the nearest value"}
    said += f"; of {found.size} values {exact} were measured at the time of the grid, {filled} are "
    return f"{said}{how[of.fill]}, and {missing} are missing"
