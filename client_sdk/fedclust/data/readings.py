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

from fedclust.data.decode import LARGEST
from fedclust.data.mapping import ColumnMap, canonical_code, level_name, number_or_none
from fedclust.engine.site_points import released_points
from fedclust.errors import DataError
from fedclust.numeric.array_types import FloatArray
from fedclust.protection.columns import NumericColumn, TableColumn
from fedclust.protection.table import ProtectedTable
from fedclust.schema.feature import Feature
from fedclust.schema.points import Points

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


# --- released values ------------------------------------------------------------------------------


def session_points(
    table: ProtectedTable,
    readings: Sequence[FeatureReading],
    codes: Mapping[str, Sequence[str] | None],
    source: str = "the site's table",
) -> Points:
    """Return a site's table as weighted points in the session's columns and units.

    Released values are clipped to the bounds, then transformed. NaN where a group does not release
    a feature, or the site lacks it.

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

    found = [_released(table, reading, codes, source) for reading in readings]
    features = tuple(reading.feature for reading in readings)
    values, within = (np.concatenate(each, axis=-1) for each in zip(*found, strict=True))
    return released_points(values, table.sizes, within, features)


def _released(
    table: ProtectedTable,
    reading: FeatureReading,
    codes: Mapping[str, Sequence[str] | None],
    source: str,
) -> tuple[FloatArray, FloatArray]:
    """Return the released values (m, w) of a feature, and its shares of variance within (w,)."""
    feature = reading.feature
    width = len(feature.levels or ()) if feature.kind == "categorical" else 1
    if reading.column is None:
        return np.full((len(table.sizes), width), np.nan), np.zeros(width)
    column, share = _table_column(table, reading.column)
    own_codes = codes[reading.column]
    if isinstance(column, NumericColumn) and own_codes is None and feature.kind == "numeric":
        found = reading.converted(table.values(column.name))[:, None]
        _refuse_other_unit(reading, found, table.sizes, source)
        return found, np.array([share or 0.0])
    own, shares = _code_shares(table, column, reading, own_codes, source)
    meanings = [reading.meaning(code) for code in own]
    shown = np.nan_to_num(shares).max(axis=0, initial=0.0) > 0.0
    if any(each is None and seen for each, seen in zip(meanings, shown, strict=True)):
        raise _unknown_code(reading, source)
    numbers = np.array([math.nan if each is None else each for each in meanings])
    if feature.kind == "categorical":
        targets = (numbers[:, None] == np.arange(width)).astype(np.float64)
    else:
        targets = np.nan_to_num(numbers)[:, None]
    # A group with a person whose code means "missing" does not release the feature.
    shares[(np.nan_to_num(shares) * np.isnan(numbers)).sum(axis=1) > 0.0] = np.nan
    values = shares @ targets
    _refuse_other_unit(reading, values, table.sizes, source)
    return values, _share_within(values, shares @ targets**2, table.sizes)


def _refuse_other_unit(
    reading: FeatureReading, values: FloatArray, sizes: NDArray[np.int64], source: str
) -> None:
    """Refuse a numeric feature if nearly all released values (m, 1) lie outside its bounds."""
    feature = reading.feature
    if feature.kind != "numeric":
        return
    values = values[:, 0]
    lower = -np.inf if feature.lower is None else feature.lower
    upper = np.inf if feature.upper is None else feature.upper
    outside = sizes[(values < lower) | (values > upper)].sum()
    if outside > 0 and outside >= _MOSTLY * sizes[~np.isnan(values)].sum():
        message = "nearly all values that its groups release lie outside the session's bounds; is "
        message += f"it in {feature.unit or 'the unit of the session'}? Say factor, offset and to "
        message += "in the mapping file (mapping=, --mapping); fedclust check suggests a factor"
        raise DataError(source, "bounds", message, column=reading.column)


def _share_within(values: FloatArray, squares: FloatArray, sizes: NDArray[np.int64]) -> FloatArray:
    """Return the share of variance within groups, from their means and mean squares (m, w)."""
    known = ~np.isnan(values[:, 0])
    if not known.any():
        return np.zeros(values.shape[1])
    values, squares, weights = values[known], squares[known], sizes[known]
    centre = np.average(values, axis=0, weights=weights)
    between = np.average((values - centre) ** 2, axis=0, weights=weights)
    within = np.average(np.maximum(squares - values**2, 0.0), axis=0, weights=weights)
    total = between + within
    return np.asarray(np.divide(within, total, out=np.zeros_like(total), where=total > 0.0))


def _table_column(table: ProtectedTable, name: str) -> tuple[TableColumn, float | None]:
    """Return a source column's column of the table, and its share of variance within groups."""
    for column, share in zip(table.columns, table.shares, strict=True):
        if name in ((column.name,) if isinstance(column, NumericColumn) else column.names):
            return column, share
    raise KeyError(name)


def _code_shares(
    table: ProtectedTable,
    column: TableColumn,
    reading: FeatureReading,
    codes: Sequence[str] | None,
    source: str,
) -> tuple[Sequence[str], FloatArray]:
    """Return the codes of a table's column, and the share of each in each group (m, C)."""
    name = str(reading.column)
    released = table.values(name)
    if isinstance(column, NumericColumn):
        # Numbers requested as codes: possible if the groups release nothing but codes.
        distinct = np.unique(released[~np.isnan(released)])
        own = _spell_codes(distinct.tolist(), codes)
        most = 2 if reading.feature.kind == "binary" or codes is not None else 1
        if len(own) > most or None in map(reading.meaning, own):
            raise _kept_as_numbers(reading, source)
        shares = (released[:, None] == distinct).astype(np.float64)
        shares[np.isnan(released)] = np.nan
        return own, shares
    if released.ndim == 2:
        assert codes is not None  # noqa: S101  (more than two levels are codes)
        return codes, np.array(released)
    values = column.values[column.names.index(name)]
    low, high = min(values), max(values)
    share = released - low
    if high > low:
        share = share / (high - low)
    own = _spell_codes(sorted({low, high}), codes)
    return own, np.column_stack([1.0 - share, share])[:, : len(own)]


def _spell_codes(values: Sequence[float], codes: Sequence[str] | None) -> list[str]:
    """Return the codes of a table column's values."""
    if codes is not None:
        return [codes[int(value)] for value in values]
    return [canonical_code(str(value)) for value in values]


def _kept_as_numbers(reading: FeatureReading, source: str) -> DataError:
    message = f"the session asks for it as {reading.feature.kind}, and this site keeps it as "
    message += "numbers; ask the analyst for kind numeric, or give another column in the mapping "
    message += "file"
    return DataError(source, "pinned-kind", message, column=reading.column)


def _unknown_code(reading: FeatureReading, source: str) -> DataError:
    feature = reading.feature
    if feature.kind == "categorical":
        levels = feature.levels or ()
        known = "has " + ", ".join(levels[:12]) + (", ..." if len(levels) > 12 else "")
    else:
        known = "asks for 0 and 1" if feature.kind == "binary" else "asks for numbers"
    message = f"it holds codes that the session does not know, which {known}; say in the mapping "
    message += 'file which level each is (levels), or that it is missing (= ""); fedclust check '
    message += "counts them and shows the lines"
    return DataError(source, "unknown-level", message, column=reading.column)
