"""Convert a site's columns to the session's features, units and levels.

A site's table holds columns in the site's own units and codes. A :class:`FeatureReading` converts
one of them to one feature: released values, and rows that are labelled with the final model.
Nothing here compares a session's settings with rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedclust.data.advice import CODES_ADVICE
from fedclust.data.decode import LARGEST
from fedclust.data.mapping import ColumnMap, canonical_code, level_name, number_or_none
from fedclust.numeric.array_types import FloatArray
from fedclust.protection.table import ProtectedTable
from fedclust.rounds.site_points import released_points
from fedclust.schema.feature import Feature
from fedclust.schema.task import Points
from fedclust.wire.errors import DataError

#: If this share of the persons is outside the bounds, the unit is probably wrong.
_MOSTLY = 0.9
_TRUTH = {"true": "1", "false": "0", "1": "true", "0": "false"}


@dataclass(frozen=True)
class FeatureReading:
    """How a feature is derived from a column of the site.

    Attributes
    ----------
    feature : Feature
    column : str or None
        The column's name here; None if the site lacks the feature.
    factor, offset : float
        session's value = value here x factor + offset.
    meanings : mapping of str to float
        What the codes in the mapping file mean: 0 or 1, or the index of the session's level; NaN
        for a missing value.
    """

    feature: Feature
    column: str | None
    factor: float = 1.0
    offset: float = 0.0
    meanings: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, feature: Feature, rule: ColumnMap, column: str | None) -> FeatureReading:
        """Return the reading that a mapping file's entry describes."""
        places = {name: place for place, name in enumerate(feature.levels or ())}
        meanings = {
            canonical_code(code): math.nan
            if value == ""
            else float(value if feature.kind == "binary" else places[level_name(value)])
            for code, value in rule.levels.items()
        }
        return cls(feature, column, rule.factor, rule.offset, meanings)

    def meaning(self, code: str) -> float | None:
        """Return what a code means in the session: NaN for a missing value, None if unknown.

        The index of the level for a categorical feature, else a number.
        """
        for spelling in (code, _TRUTH.get(code)):
            if spelling is None:
                continue
            if spelling in self.meanings:
                return self.meanings[spelling]
            if self.feature.kind == "categorical":
                found = self._level(spelling)
            elif self.feature.kind == "binary":
                found = float(spelling) if spelling in ("0", "1") else None
            else:
                number = number_or_none(spelling)
                found = None if number is None else number * self.factor + self.offset
            if found is not None:
                return found
        return None

    def _level(self, code: str) -> float | None:
        levels = self.feature.levels or ()
        if code in levels:
            return float(levels.index(code))
        # A level may be spelled 1.0; of several spellings of one number the first counts.
        canonical = [canonical_code(level) for level in levels]
        return float(canonical.index(code)) if code in canonical else None

    def converted(self, values: FloatArray) -> FloatArray:
        """Return numbers in the session's unit; NaN if the unit makes them too large."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = values * self.factor + self.offset
            return np.where(np.abs(found) <= LARGEST, found, np.nan)


# --- rows -----------------------------------------------------------------------------------------


def values_of_rows(
    reading: FeatureReading, values: FloatArray, codes: Sequence[str] | None
) -> FloatArray:
    """Return a feature's values (n,) of rows to label; NaN where missing or unknown.

    Values outside the session's bounds are not changed.

    Parameters
    ----------
    reading : FeatureReading
    values : (n,) float64
        Numbers, or indices of ``codes``.
    codes : sequence of str or None
        The column's codes; None for numbers.
    """
    if codes is None:
        if reading.feature.kind == "numeric":
            return reading.converted(values)
        return np.where((values == 0.0) | (values == 1.0), values, np.nan)
    meanings = [reading.meaning(code) for code in codes]
    known = np.array([math.nan if each is None else each for each in meanings] + [math.nan])
    return np.asarray(known[np.where(np.isnan(values), len(codes), values).astype(np.int64)])


def limits(feature: Feature) -> tuple[float, float]:
    """Return a feature's bounds, infinite where it has none."""
    lower = -math.inf if feature.lower is None else feature.lower
    return lower, math.inf if feature.upper is None else feature.upper


# --- released values ------------------------------------------------------------------------------


def session_points(
    table: ProtectedTable,
    readings: Sequence[FeatureReading],
    codes: Mapping[str, Sequence[str] | None],
    source: str = "the site's table",
) -> Points:
    """Return a site's table as weighted points in the session's columns and units.

    Released values are clipped to the bounds, then transformed; with ``log``, one that was rounded
    to 0 counts as a quarter of its step. NaN where a group does not release a feature, or the site
    lacks it.

    Parameters
    ----------
    table : ProtectedTable
        In the site's own columns, units and codes.
    readings : sequence of FeatureReading
        One for each of the session's features.
    codes : mapping of str to (sequence of str or None)
        The codes of each column here, None for numbers.
    source : str
        The name of the site's data in messages.

    Raises
    ------
    DataError
        If a column does not fit the session. This depends on the header, the mapping file and the
        table alone.
    """
    table = table.sorted_by_value()
    features = tuple(reading.feature for reading in readings)
    widths = [len(each.levels or ()) if each.kind == "categorical" else 1 for each in features]
    X, end = np.empty((len(table.sizes), sum(widths))), 0
    for reading, width in zip(readings, widths, strict=True):
        X[:, end : end + width] = _released(table, reading, width, codes, source)
        end += width
    return released_points(X, table.sizes, features, table.neighbours)


def _released(
    table: ProtectedTable,
    reading: FeatureReading,
    width: int,
    codes: Mapping[str, Sequence[str] | None],
    source: str,
) -> FloatArray:
    """Return the released values (m, width) of a feature; those of levels are 0 or 1."""
    feature = reading.feature
    if reading.column is None:
        return np.full((len(table.sizes), width), np.nan)
    released, own_codes = table.values(reading.column), codes[reading.column]
    if own_codes is None and feature.kind == "numeric":
        found = reading.converted(released)
        _refuse_other_unit(reading, found, table.sizes, source)
        if feature.transform == "log":
            # The middle of what is rounded to a record, as far as it is above 0: the logarithm of
            # `lower`, which can be any small number, would stand for many persons.
            half = abs(reading.factor) * table.step(reading.column) / 2.0
            found = np.maximum(found, (found + half) / 2.0)
        return found[:, None]
    own, released = _as_codes(released, reading, own_codes, source)
    met = np.unique(released[~np.isnan(released)]).astype(np.int64).tolist()
    if any(reading.meaning(own[place]) is None for place in met):
        raise _unknown_code(reading, source)
    # A group whose commonest code means "missing" does not release the feature.
    values = values_of_rows(reading, released, own)
    if feature.kind == "categorical":
        shown = (values[:, None] == np.arange(width)).astype(np.float64)
        shown[np.isnan(values)] = np.nan
        return np.asarray(shown)
    _refuse_other_unit(reading, values, table.sizes, source)
    return values[:, None]


def _refuse_other_unit(
    reading: FeatureReading, values: FloatArray, sizes: NDArray[np.int64], source: str
) -> None:
    """Refuse a numeric feature if nearly all released values (m, 1) lie outside its bounds."""
    feature = reading.feature
    if feature.kind != "numeric":
        return
    lower, upper = limits(feature)
    outside = sizes[(values < lower) | (values > upper)].sum()
    if outside > 0 and outside >= _MOSTLY * sizes[~np.isnan(values)].sum():
        message = "nearly all values that its groups release lie outside the session's bounds; is "
        message += f"it in {feature.unit or 'the unit of the session'}? Say factor, offset and to "
        message += "in the mapping file (mapping=, --mapping); fedclust check suggests a factor"
        raise DataError(source, "bounds", message, column=reading.column)


def _as_codes(
    released: FloatArray, reading: FeatureReading, codes: Sequence[str] | None, source: str
) -> tuple[Sequence[str], FloatArray]:
    """Return codes, and which of them each group releases (m,): NaN if it releases none."""
    if codes is not None:
        return codes, released
    # Numbers requested as codes: possible if the groups release nothing but codes.
    known = ~np.isnan(released)
    distinct, places = np.unique(released[known], return_inverse=True)
    if len(distinct) > 2:
        message = f"the session asks for it as {reading.feature.kind}, and this site keeps it as "
        message += "numbers; ask the analyst for kind numeric, or give another column in the "
        message += "mapping file"
        raise DataError(source, "pinned-kind", message, column=reading.column)
    found = np.full(len(released), np.nan)
    found[known] = places
    return [canonical_code(str(value)) for value in distinct.tolist()], found


def _unknown_code(reading: FeatureReading, source: str) -> DataError:
    feature = reading.feature
    if feature.kind == "categorical":
        levels = feature.levels or ()
        known = "has " + ", ".join(levels[:12]) + (", ..." if len(levels) > 12 else "")
    else:
        known = "asks for 0 and 1" if feature.kind == "binary" else "asks for numbers"
    message = f"it holds codes that the session does not know, which {known}; {CODES_ADVICE}"
    return DataError(source, "unknown-level", message, column=reading.column)
