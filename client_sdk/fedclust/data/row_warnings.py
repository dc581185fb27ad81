"""Warnings about a site's rows, shown at the site and nowhere else."""

import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.data.advice import (
    list_names,
    mapping_lines,
    on_one_line,
    outside_text,
    sentinel_advice,
    unknown_text,
)
from fedclust.data.chunks import DataWarning
from fedclust.data.readings import FeatureReading, limits
from fedclust.data.row_source import RowBlock, RowSource
from fedclust.schema.display import counted
from fedclust.schema.encoding import columns_of, transformed
from fedclust.schema.feature import Feature
from fedclust.schema.result import ClusterProfile

#: Of numbers, by feature, the mean of the session's persons and their standard deviation, both
#: after the feature's transform.
TypicalValues: TypeAlias = Mapping[str, tuple[float, float]]
#: A median so many standard deviations from the mean belongs to another unit, column or population,
#: and one this near to it fits.
_FAR, _FITS = 4.0, 1.5
#: The end of what is said of rows without a value, which may be a total below the table.
NO_VALUE: Final = "no value in any column of the session"
#: So many columns hardly lack their values together, and so many rows are named.
_LEAST_COLUMNS, _MOST_NAMED = 3, 3
#: A median needs so many values.
_LEAST_VALUES = 5
#: Integers without a repetition in this many rows are rarely measurements.
_IDS_FROM: Final = 30
#: At most this many are examined, because they are kept in memory and sorted for every block.
_IDS_ENOUGH: Final = 1_000_000


def typical_values(
    features: Sequence[Feature], profile: ClusterProfile | None
) -> dict[str, tuple[float, float]]:
    """Return what is typical of each number, as far as a result's profile knows it."""
    if profile is None:
        return {}
    pairs = np.column_stack([profile.overall_means, profile.estimated_overall_deviations]).tolist()
    return {
        column.name: tuple(pair)
        for column, pair in zip(columns_of(tuple(features)), pairs, strict=True)
        if column.kind == "numeric" and pair[1] > 0.0
    }


class RowWarnings:
    """Notices in rows what is allowed but probably a mistake.

    Values outside the session's bounds, unknown codes, identifiers among the features, and outcomes
    without a value.

    Parameters
    ----------
    rows : RowSource
    missing : bool
        Whether unknown codes count as missing values; else a group may release them.
    """

    def __init__(self, rows: RowSource, *, missing: bool = False) -> None:
        self._rows, self._missing = rows, missing
        self._outside, self._unknown = [0] * len(rows.readings), [0] * len(rows.readings)
        self._without = [outcome.name for outcome in rows.outcomes]
        self._empty = list[int]()
        self._ids = {
            place: IdDetector()
            for place, reading in enumerate(rows.readings[: rows.n_features])
            if reading.feature.kind == "numeric" and rows.reader.named and reading.column
        }

    def add(self, block: RowBlock) -> None:
        """Examine a block of rows."""
        for place, reading in enumerate(self._rows.readings):
            if reading.column is None:
                continue
            values, codes = block.values[place], self._rows.coded(reading.feature.name)
            self._unknown[place] += unknown_codes(reading, values, codes).total()
            if place in self._ids:
                self._ids[place].add(values)
            lower, upper = limits(reading.feature)
            if np.isfinite(lower) or np.isfinite(upper):
                own = reading.converted(values)
                self._outside[place] += int(np.count_nonzero((own < lower) | (own > upper)))
        there = [
            values
            for reading, values in zip(self._rows.readings, block.values, strict=True)
            if reading.column is not None
        ]
        if len(there) >= _LEAST_COLUMNS:
            numbers = block.numbers or range(block.start, block.start + len(block))
            empty = np.flatnonzero(np.isnan(there).all(axis=0))
            self._empty += [numbers[row] for row in empty.tolist()]
        for outcome, cells in zip(self._rows.outcomes, self._rows.cells(block).T, strict=True):
            if outcome.name in self._without and (cells < len(outcome.cells) - 1).any():
                self._without.remove(outcome.name)

    def warn(self, of_persons: Sequence[str] = ()) -> tuple[str, ...]:
        """Issue the warnings, each a DataWarning, and return them without the source's name.

        ``of_persons``: further ones, of what the rows of a person hold.
        """
        found = [
            f"column {reading.column!r}: {text}"
            for place, reading in enumerate(self._rows.readings)
            for text in self._texts(place, reading)
        ]
        found += [*self._empty_texts(), *self._unvalued_texts(), *of_persons]
        for said in found:
            warnings.warn(f"{self._rows.origin.source}, {said}", DataWarning, stacklevel=4)
        return tuple(found)

    def _texts(self, place: int, reading: FeatureReading) -> Iterator[str]:
        if self._outside[place]:
            text = outside_text(self._outside[place], reading.feature)
            if reading.feature.kind == "numeric":
                said = self._rows.said_of(reading.feature.name)
                text += f" {on_one_line(sentinel_advice(said, 'NUMBER'))}"
            yield text
        yield from self._unknown_texts(place, reading)
        if reading.column is not None:
            yield from self._rows.opposite_texts(reading.feature.name)
        if place in self._ids and self._ids[place].suspicious:
            yield IdDetector.MESSAGE

    def _unknown_texts(self, place: int, reading: FeatureReading) -> Iterator[str]:
        if count := self._unknown[place]:
            text, last = counted(count, "value"), ""
            if self._missing:
                text = f"{counted(count, 'row')} {'has' if count == 1 else 'have'} a value"
                last = ", and it counts as missing"
            yield f"{text} that the session does not know{last}. {unknown_text(reading.feature)}"

    def _empty_texts(self) -> Iterator[str]:
        if self._empty:
            named = ", ".join(map(str, self._empty[:_MOST_NAMED]))
            named += ", ..." if len(self._empty) > _MOST_NAMED else ""
            have = "has" if len(self._empty) == 1 else "have"
            yield (
                f"{counted(len(self._empty), 'row')} {have} {NO_VALUE} "
                f"({self._rows.origin.unit} {named}): take out what is no person, such as a total"
            )

    def _unvalued_texts(self) -> Iterator[str]:
        """Yield a sentence for each outcome that the site would answer and that has no value.

        A wrong name looks like an outcome without a column. For one without a value, points of the
        allowance buy nothing.
        """
        rows = self._rows
        answered = rows.declared(rows.own_columns)
        for outcome in rows.outcomes:
            said = "no row has a value, and its points would be spent all the same"
            if outcome.name not in answered:
                names = [each.name for each in outcome.columns if each.name not in rows.columns]
                if any(rows.rules[name].lacking for name in names):
                    continue
                lacked = list_names([rows.local[name] for name in names])
                said = f"there is no column {lacked}, and this site takes part without it"
            elif outcome.name not in self._without:
                continue
            yield f"outcome {outcome.name!r}: {said}"


class NewRowWarnings(RowWarnings):
    """Warns of rows that took no part, so that nobody has checked them.

    Also of columns that seem to be in another unit: medians are those of the first block.
    """

    def __init__(self, rows: RowSource, typical: TypicalValues) -> None:
        super().__init__(rows, missing=True)
        self._typical, self._n = typical, [0] * len(rows.readings)
        self._medians: dict[int, float] = {}

    def add(self, block: RowBlock) -> None:
        """Examine a block of rows."""
        super().add(block)
        for place, reading in enumerate(self._rows.readings):
            if reading.feature.kind == "numeric":
                own = reading.converted(block.values[place])
                own = own[~np.isnan(own)]
                self._n[place] += len(own)
                median = float(np.median(own)) if len(own) >= _LEAST_VALUES else np.nan
                self._medians.setdefault(place, median)

    def _texts(self, place: int, reading: FeatureReading) -> Iterator[str]:
        yield from self._unknown_texts(place, reading)
        if reading.column is None or reading.feature.kind != "numeric":
            return
        outside, n, text = self._outside[place], self._n[place], ""
        if outside:
            lie = "lies" if outside == 1 else "lie"
            text = f"{outside} of its {counted(n, 'value')} {lie} outside the session's bounds"
        far, fitting = self._other_unit(reading.feature, self._medians[place])
        if far and 2 * outside <= n:
            text += "; the median" if text else "the median of its values"
            text += f" lies more than {_FAR:.0f} standard deviations from the session's mean"
        if far or 2 * outside > n:
            text += ": check that it is the right column, and that it is in "
            text += reading.feature.unit or "the session's unit"
            text += f". {fitting}" if fitting else ""
        if text:
            yield text

    def _other_unit(self, feature: Feature, median: float) -> tuple[bool, str]:
        """Return whether a median is far from what is typical, and which factors would fit."""
        if feature.name not in self._typical or np.isnan(median):
            return False, ""
        mean, spread = self._typical[feature.name]
        from fedclust.data.known_names import other_units  # few tables need it

        units = other_units(feature.name, feature.unit)
        values = np.array(
            [median, *(median * factor + offset for factor, offset in units.values())]
        )
        if feature.lower is not None:
            values = np.maximum(values, feature.lower)
        (column,) = columns_of((feature,))
        apart = np.abs(transformed([column], values[:, None])[:, 0] - mean) / spread
        if not apart[0] > _FAR:
            return False, ""
        fits = dict(zip(units, (apart[1:] <= _FITS).tolist(), strict=True))
        return True, on_one_line(fitting_units(feature, {u: units[u] for u in units if fits[u]}))


class IdDetector:
    """Notices a column whose values are integers without repetition: probably an identifier."""

    MESSAGE: ClassVar = (
        "all its values are different whole numbers, as identifiers are and measurements hardly "
        "ever: should it be a feature?"
    )

    def __init__(self) -> None:
        self._seen: NDArray[np.float64] | None = np.empty(0)

    def add(self, values: NDArray[np.float64]) -> None:
        """Examine further values, NaN where missing."""
        if self._seen is None or len(self._seen) >= _IDS_ENOUGH:
            return
        given = values[~np.isnan(values)]
        if not np.array_equal(given, np.trunc(given)):
            self._seen = None
            return
        values = np.concatenate([self._seen, given])
        distinct = np.unique(values)
        self._seen = distinct if len(distinct) == len(values) else None

    @property
    def suspicious(self) -> bool:
        """Whether the values so far look like identifiers: many, or a running number."""
        seen = self._seen
        if seen is None or len(seen) < 3:
            return False
        return len(seen) >= _IDS_FROM or bool(seen[-1] - seen[0] == len(seen) - 1)


def unknown_codes(
    reading: FeatureReading, values: NDArray[np.float64], codes: Sequence[str] | None
) -> Counter[str]:
    """Count the codes in a column (n,) that are neither missing nor known to the session."""
    if codes is None:
        if reading.feature.kind == "numeric":
            return Counter()
        others = values[~np.isnan(values) & (values != 0.0) & (values != 1.0)]
        return Counter(f"{value:.15g}" for value in others.tolist())
    met = np.bincount(values[~np.isnan(values)].astype(np.int64), minlength=len(codes)).tolist()
    found = zip(codes, met, strict=True)
    return Counter({code: n for code, n in found if n and reading.meaning(code) is None})


def fitting_units(feature: Feature, units: Mapping[str, tuple[float, float]]) -> str:
    """Return how a feature is read from the first of the units that fit; "" without one."""
    if not units:
        return ""
    unit, (factor, offset) = next(iter(units.items()))
    lines = [f"unit = {json.dumps(unit)}", f"to = {json.dumps(feature.unit, ensure_ascii=False)}"]
    lines += [f"factor = {factor:.6g}", *([f"offset = {offset:.6g}"] if offset else [])]
    said = f"The values would fit in {' or '.join(list(units)[:3])}"
    return f"{said}:\n{mapping_lines(feature.name, '', chr(10).join(lines))}"
