"""From a column's cells to a feature's values: markers, sentinels, codes, units, and the rules."""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.base import Feature
from fedclust.data.mapping import ColumnMap, level_name, number_or_none
from fedclust.data.raw import MISSING, Cells

_PLAIN_NUMBER: Final = frozenset("0123456789+-.eE ")
_DATE: Final = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}")
_GROUPED: Final = re.compile(r"[-+]?[\d.,' \u00a0\u202f\u2019]*\d")
_A_DATE = "a date or time; give a number instead, such as an age or days since a fixed day"
_CONVERT: Final = "convert the column where it comes from"
_DATES: Final = (
    datetime.date,
    datetime.time,
    datetime.timedelta,
    np.datetime64,
    np.timedelta64,
)
#: What a row whose value cannot be used is told apart by: (rule, message).
Wrong = tuple[str, str]


@dataclass
class Decoded:
    """A feature's values for a run of rows, and which of them break which rule.

    ``values``: float64 in the session's unit, NaN where missing; of a categorical feature int64,
    the place of the declared level, -1 where missing. ``raw``: the numbers before the unit was
    changed, where the feature is numeric.
    """

    values: NDArray[Any] = field(repr=False)
    raw: NDArray[np.float64] | None = field(default=None, repr=False)
    wrong: dict[Wrong, NDArray[np.intp]] = field(default_factory=dict)


class Decoder:
    """Reads one feature's column.

    Parameters
    ----------
    feature : Feature
    rule : ColumnMap
    missing : sequence of str
        Markers that hold for every column.
    decimal_mark : str
        In text.
    textual : bool
        Whether numbers are written as text, as in a CSV file. Elsewhere text is no number.
    """

    def __init__(
        self,
        feature: Feature,
        rule: ColumnMap,
        missing: Sequence[str] = (),
        decimal_mark: str = ".",
        *,
        textual: bool,
    ) -> None:
        self.feature, self._rule, self._textual = feature, rule, textual
        self._decimal = decimal_mark
        self._markers = frozenset(text.strip() for text in (*missing, *rule.missing))
        numbers = [number_or_none(text) for text in self._markers]
        sentinels = {*rule.sentinels, *(value for value in numbers if value is not None)}
        self._sentinels = np.array(sorted(sentinels), dtype=np.float64)
        self._is_sentinel = frozenset(sentinels)
        self._codes = _codes(feature, rule)
        self._numbers = _numeric_codes(self._codes)
        self.discrete = feature.kind == "categorical" or bool(rule.levels)

    def __call__(self, cells: Cells) -> Decoded:
        """Decode a run of cells. Never raises: what is wrong is in the answer."""
        # Truth values may have codes of their own.
        numeric = "iuf" if self.discrete else "iufb"
        if isinstance(cells, np.ndarray) and cells.dtype.kind in numeric:
            found = self._numeric(cells)
        elif isinstance(cells, np.ndarray) and cells.dtype.kind in "mM":
            given = np.flatnonzero(~np.isnat(cells))
            found = Decoded(np.full(len(cells), np.nan))
            if len(given):
                found.wrong["not-a-number", _A_DATE] = given
        else:
            found = self._each(cells if isinstance(cells, list) else cells.tolist())
        return self._checked(found)

    def _numeric(self, cells: NDArray[Any]) -> Decoded:
        values = cells.astype(np.float64)
        if len(self._sentinels):
            # In single precision 99.9 is another number than the double.
            own = cells.dtype if cells.dtype.kind == "f" else values.dtype
            values[np.isin(values, self._sentinels.astype(own).astype(np.float64))] = np.nan
        if not self.discrete:
            return Decoded(values)
        distinct, place = np.unique(values, return_inverse=True)
        codes = np.array([self._numbers.get(value, math.nan) for value in distinct.tolist()])
        found = Decoded(codes[place.ravel()] if len(codes) else values)
        unknown = np.flatnonzero(np.isnan(found.values) & ~np.isnan(values))
        if len(unknown):
            found.wrong[self._unknown()] = unknown
        return found

    def _each(self, cells: list[Any]) -> Decoded:
        if self._textual and not self.discrete:
            quick = self._plain(cells)
            if quick is not None:
                return quick
        values = np.empty(len(cells))
        wrong: dict[Wrong, list[int]] = {}
        seen: dict[str, float | Wrong] = {}
        for index, cell in enumerate(cells):
            if isinstance(cell, str):
                value = seen.get(cell)
                if value is None:
                    value = seen[cell] = self._text(cell.strip())
            else:
                value = self._object(cell)
            if isinstance(value, tuple):
                wrong.setdefault(value, []).append(index)
                value = math.nan
            values[index] = value
        places = {why: np.array(rows, dtype=np.intp) for why, rows in wrong.items()}
        return Decoded(values, wrong=places)

    def _plain(self, cells: list[str]) -> Decoded | None:
        """Read a run of nothing but plain numbers at once; None where there is anything else."""
        if self._decimal != "." or not _PLAIN_NUMBER.issuperset("".join(cells)):
            return None
        try:
            values = np.array([float(cell) for cell in cells], dtype=np.float64)
        except ValueError:
            return None
        return self._numeric(values) if np.isfinite(values).all() else None

    def _text(self, text: str) -> float | Wrong:
        if text in self._markers:
            return math.nan
        if self.discrete:
            return self._discrete_text(text)
        if text.casefold() in MISSING:
            return math.nan
        if self.feature.kind == "binary" and text.casefold() in ("true", "false"):
            return float(text.casefold() == "true")
        value = self._parsed(text) if self._textual else None
        if value is None:
            return "not-a-number", self._no_number(text)
        return math.nan if value in self._is_sentinel else value

    def _discrete_text(self, text: str) -> float | Wrong:
        value = self._parsed(text)
        if value is not None and value in self._is_sentinel:
            return math.nan
        code = self._codes.get(text)
        if code is not None:
            return code
        word = text.casefold()
        if word in MISSING:
            return math.nan
        if word in ("true", "false"):
            code = self._truth(word == "true")
        elif value is not None:
            code = self._numbers.get(value)
        return self._unknown(text) if code is None else code

    def _truth(self, value: bool) -> float | None:
        """Return what a truth value's code stands for: its name's, else that of 0 or 1."""
        for code in (str(value).lower(), str(value)):
            if code in self._codes:
                return self._codes[code]
        return self._numbers.get(float(value))

    def _object(self, cell: Any) -> float | Wrong:
        """Read a cell that is no text: a number, nothing, or something that cannot be used."""
        if cell is None:
            return math.nan
        if isinstance(cell, (bool, np.bool_)):
            code = self._truth(bool(cell)) if self.discrete else float(cell)
            return self._unknown() if code is None else code
        if isinstance(cell, _DATES):
            return "not-a-number", _A_DATE
        if not isinstance(cell, (int, float, np.integer, np.floating, decimal.Decimal)):
            return "not-a-number", f"not a number ({type(cell).__name__}); {_CONVERT}"
        try:
            value = float(cell)
        except OverflowError:
            value = math.inf
        except (TypeError, ValueError):
            return "not-a-number", f"not a number ({type(cell).__name__}); {_CONVERT}"
        if math.isnan(value) or value in self._is_sentinel:
            return math.nan
        if not self.discrete:
            return value
        code = self._numbers.get(value)
        return self._unknown() if code is None else code

    def _parsed(self, text: str) -> float | None:
        if self._decimal == ",":
            if "." in text:
                return None
            text = text.replace(",", ".")
        return number_or_none(text)

    def _no_number(self, text: str) -> str:
        if not self._textual:
            return f"not a number (str); {_CONVERT}"
        if _DATE.fullmatch(text):
            return _A_DATE
        hint = "empty or NA is a missing value; others are named with --missing"
        if _GROUPED.fullmatch(text):
            mark, other = ("comma", "point") if self._decimal == "," else ("point", "comma")
            hint = f"write decimals with a {mark}, and no separators between thousands"
            hint += f"; a file with decimals after a {other} is read with --decimal "
            hint += "." if self._decimal == "," else ","
        return f"text in a number column; {hint}"

    def _unknown(self, text: str = "") -> Wrong:
        if self.feature.kind == "binary":
            known = "0 and 1"
        else:
            levels = self.feature.levels or ()
            known = ", ".join(levels[:12]) + (", ..." if len(levels) > 12 else "")
        message = f"no level of the session, which has {known}"
        if text and text.casefold() in map(str.casefold, self._codes):
            message += "; upper and lower case are told apart"
        message += "; say in the mapping file which it is (levels), or that it is missing"
        return "unknown-level", message

    def _checked(self, found: Decoded) -> Decoded:
        """Change the unit and hold what came to the session's rules."""
        values, feature = found.values, self.feature
        if feature.kind == "categorical":
            found.values = np.where(np.isnan(values), -1, values).astype(np.int64)
            return found
        if feature.kind == "numeric":
            found.raw = values
            if self._rule.factor != 1 or self._rule.offset != 0:
                with np.errstate(over="ignore", invalid="ignore"):
                    values = values * self._rule.factor + self._rule.offset
                found.values = values
        present = ~np.isnan(values)
        rules: list[tuple[str, str, NDArray[np.bool_]]] = []
        rules.append(("not-finite", "infinite, or beyond what a double holds", np.isinf(values)))
        if feature.kind == "binary":
            message = "neither 0 nor 1"
            if not self._rule.levels:
                message += "; say in the mapping file which code is which (levels)"
            rules.append(("not-binary", message, present & (values != 0) & (values != 1)))
        if feature.lower is not None:
            message = f"below the session's lower bound {feature.lower:g}"
            rules.append(("bounds", message, present & (values < feature.lower)))
        if feature.upper is not None:
            message = f"above the session's upper bound {feature.upper:g}"
            rules.append(("bounds", message, present & (values > feature.upper)))
        for rule, message, where in rules:
            if where.any():
                found.wrong[rule, message] = np.flatnonzero(where)
        return found


def _codes(feature: Feature, rule: ColumnMap) -> dict[str, float]:
    """Return what each code stands for: the session's own levels, and the site's before them."""
    codes: dict[str, float] = {}
    if feature.kind == "categorical":
        codes = {name: float(place) for place, name in enumerate(feature.levels or ())}
        own = {code: codes[level_name(value)] for code, value in rule.levels.items()}
    else:
        codes = {"0": 0.0, "1": 1.0} if rule.levels else {}
        own = {code: float(value) for code, value in rule.levels.items()}
    return {**codes, **{code.strip(): value for code, value in own.items()}}


def _numeric_codes(codes: dict[str, float]) -> dict[float, float]:
    """Return the codes that are numbers: ``1``, ``1.0`` and the number 1 are the same level.

    Two codes of one number that mean different levels are told apart as text alone.
    """
    numbers: dict[float, float] = {}
    unclear = set()
    for code, place in codes.items():
        value = number_or_none(code)
        if value is None:
            continue
        if numbers.setdefault(value, place) != place:
            unclear.add(value)
    return {value: place for value, place in numbers.items() if value not in unclear}
