"""Decode a column's cells into numbers or the codes of levels.

A column is read by the site's own rules (missing markers, sentinels, decimal mark), in the site's
own units. No setting of a session changes the values.
"""

import datetime
import decimal
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedclust.data.chunks import MISSING, SHEET_ERRORS, Cells, is_blank
from fedclust.data.mapping import canonical_code, number_or_none
from fedclust.data.text_forms import NumberFormat, combined, plain_form

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
_NUMBERS: Final = (bool, np.bool_, int, float, np.integer, np.floating, decimal.Decimal)
_TRUTH: Final = {"false": 0.0, "true": 1.0}
#: Why a value cannot be used: (rule, message).
Wrong = tuple[str, str]
#: No measurement is larger. Squares of such values, and sums of these over all persons, stay far
#: below the largest double.
LARGEST: Final = 1e50
_TOO_LARGE: Final[Wrong] = (
    "too-large",
    (
        f"infinite, or beyond {LARGEST:.0e}: correct it where it comes from, choose another unit, "
        "or name the number as a missing value with --sentinel COLUMN=NUMBER (sentinels=)"
    ),
)


@dataclass(frozen=True)
class ColumnRule:
    """How a column of the site is read.

    Attributes
    ----------
    coded : bool
        Whether its cells are codes of levels; else they are numbers.
    markers : frozenset of str
        Text that means a missing value, in addition to the usual markers.
    sentinels : frozenset of float
        Numbers that mean a missing value.
    decimal_mark : str
        The decimal mark of numbers in text.
    values : mapping of str to float
        The numbers of texts such as ``<5``.
    forms : mapping of str to tuple of float
        What the numbers in texts of each form mean: see :mod:`fedclust.data.text_forms`.
    thousands : bool
        Whether the mark that is not the decimal one separates thousands.
    rows_of_person : str
        Which of a person's rows count: ``all``, the ``first`` or the ``last``.
    """

    coded: bool
    markers: frozenset[str] = frozenset()
    sentinels: frozenset[float] = frozenset()
    decimal_mark: str = "."
    values: Mapping[str, float] = field(default_factory=dict)
    forms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    thousands: bool = False
    rows_of_person: str = "all"

    def text(self) -> str:
        """Return this rule as JSON. Rules that read each cell in the same way give the same text.

        It holds the site's options, and nothing of its rows.
        """
        sentinels, markers = set(self.sentinels), set(self.markers)
        # A marker that is a number works as a sentinel does, if both are written with a point.
        for marker in self.markers if self.decimal_mark == "." else ():
            number = number_or_none(marker)
            if number is not None and math.isfinite(number):
                sentinels.add(number)
                markers.remove(marker)
        tree = {
            "coded": self.coded,
            "missing": sorted(markers),
            "sentinels": sorted(sentinels),
            "decimal": self.decimal_mark,
        }
        for name, numbers in (("values", self.values), ("forms", self.forms)):
            if numbers:
                tree[name] = dict(sorted(numbers.items()))
        if self.thousands:
            tree["thousands"] = True
        if self.rows_of_person != "all":
            tree["rows_of_person"] = self.rows_of_person
        return json.dumps(tree)


def rule_differences(now: str, before: str) -> str:
    """Return in words how a column was read before, of what is read otherwise now.

    Both are texts of :meth:`ColumnRule.text`; "" if they differ in nothing that is an option.
    """
    new, old = json.loads(now), json.loads(before)
    said = []
    if new["missing"] != old["missing"]:
        markers = ", ".join(map(repr, old["missing"]))
        said.append(f"missing markers {markers}" if markers else "no missing markers")
    if new["sentinels"] != old["sentinels"]:
        numbers = ", ".join(f"{number:.15g}" for number in old["sentinels"])
        said.append(f"sentinels {numbers}" if numbers else "no sentinels")
    if new["decimal"] != old["decimal"]:
        said.append(f"decimal mark {old['decimal']!r}")
    for name in ("values", "forms"):
        if new.get(name, {}) != (numbers := old.get(name, {})):
            pairs = ", ".join(f"{text!r} = {json.dumps(of)}" for text, of in numbers.items())
            said.append(f"{name} of texts {pairs}" if pairs else f"no {name} of texts")
    if new.get("thousands", False) != (thousands := old.get("thousands", False)):
        said.append(f"thousands {'separated' if thousands else 'not separated'}")
    if new.get("rows_of_person") != (rows := old.get("rows_of_person")):
        said.append(f"rows_of_person {rows or 'all'}")
    return " and ".join(said)


@dataclass
class Decoded:
    """A column's values (n,), NaN where missing, and the rows that break each rule.

    The values of codes are their indices in the decoder's ``codes``.
    """

    values: NDArray[np.float64] = field(repr=False)
    wrong: Mapping[Wrong, Sequence[int] | NDArray[np.intp]] = field(default_factory=dict)


class Decoder:
    """Reads one column.

    Parameters
    ----------
    rule : ColumnRule
    textual : bool
        Whether numbers may be written as text, as in a CSV file or a workbook. In other sources
        text is no number.
    codes : collection of str
        Codes that are known before. They come first, and they are levels even if they look like a
        missing value, such as "none".
    closed : bool
        Whether other codes are missing values. Otherwise a new code is added to ``codes``.
    text_advice : str
        What to do about text in a column of 0 and 1; "" for other numbers.

    Attributes
    ----------
    rule : ColumnRule
    codes : list of str
        Those known so far.
    """

    def __init__(
        self,
        rule: ColumnRule,
        *,
        textual: bool,
        codes: Collection[str] = (),
        closed: bool = False,
        text_advice: str = "",
    ) -> None:
        self.rule, self._textual, self._closed = rule, textual, closed
        self._text_advice = text_advice
        self._written = NumberFormat(rule.decimal_mark, rule.thousands)
        self._forms = {plain_form(form): weights for form, weights in rule.forms.items()}
        numbers = map(self._written.number, rule.markers)
        self._is_sentinel = rule.sentinels | {value for value in numbers if value is not None}
        self._sentinels = np.array(sorted(self._is_sentinel), dtype=np.float64)
        #: The numbers that other numbers stand for.
        given = {self._written.number(text): value for text, value in rule.values.items()}
        self._instead = {
            number: value
            for number, value in given.items()
            if number is not None and number not in self._is_sentinel
        }
        self.codes = list(dict.fromkeys(codes))
        self._declared = frozenset(self.codes)
        #: Number of codes known before reading.
        self._places = {code: float(place) for place, code in enumerate(self.codes)}

    def __call__(self, cells: Cells) -> Decoded:
        """Decode a chunk of cells. Never raises: the answer lists the values that break a rule."""
        if isinstance(cells, np.ndarray) and cells.dtype.kind in "iufb":
            return self._numeric(cells)
        if isinstance(cells, np.ndarray) and cells.dtype.kind in "mM":
            given = np.flatnonzero(~np.isnat(cells))
            wrong = {("not-a-number", _A_DATE): given} if len(given) else {}
            return Decoded(np.full(len(cells), np.nan), wrong)
        return self._decode_each(cells if isinstance(cells, list) else cells.tolist())

    def close(self, codes: Sequence[str]) -> None:
        """Accept only these codes, in this order; others are missing values."""
        self.codes, self._closed = list(codes), True
        self._places = {code: float(place) for place, code in enumerate(codes)}

    def _numeric(self, cells: NDArray[Any]) -> Decoded:
        values = cells.astype(np.float64)
        if len(self._sentinels) and cells.dtype.kind != "b":
            # In single precision 99.9 differs from the double.
            own = cells.dtype if cells.dtype.kind == "f" else values.dtype
            values[np.isin(values, self._sentinels.astype(own).astype(np.float64))] = np.nan
        for number, value in self._instead.items():
            values[cells == number] = value
        too_large = np.flatnonzero(np.abs(values) > LARGEST)
        wrong = {_TOO_LARGE: too_large} if len(too_large) else {}
        values[too_large] = np.nan
        if not self.rule.coded:
            return Decoded(values, wrong)
        known = ~np.isnan(values)
        distinct, places = np.unique(cells[known], return_inverse=True)
        found = np.array([self._code_index(canonical_code(str(cell))) for cell in distinct])
        values[known] = found[places.ravel()] if len(found) else values[known]
        return Decoded(values, wrong)

    def _decode_each(self, cells: list[Any]) -> Decoded:
        if self._textual and not self.rule.coded:
            quick = self._decode_plain(cells)
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
        return Decoded(values, wrong)

    def _decode_plain(self, cells: list[str]) -> Decoded | None:
        """Read a chunk of plain numbers at once; None if there is anything else."""
        if self.rule.decimal_mark != ".":
            return None
        try:
            if not _PLAIN_NUMBER.issuperset("".join(cells)):
                return None
            values = np.array([float(cell) for cell in cells], dtype=np.float64)
        except (TypeError, ValueError):  # a workbook has cells of other types, too
            return None
        return self._numeric(values) if np.isfinite(values).all() else None

    def _text(self, text: str) -> float | Wrong:
        value = self._written.number(text)
        if text in self.rule.markers or value in self._is_sentinel:
            return math.nan
        if text in self.rule.values:
            return self.rule.values[text]
        if text.casefold() in SHEET_ERRORS:
            return _error_cell(text)
        if value in self._instead:
            return self._instead[value]
        if value is None and self._forms:
            form, numbers = self._written.split(text)
            weights = self._forms.get(form)
            value = None if weights is None else combined(weights, numbers)
            if value is not None and (math.isnan(value) or value in self._is_sentinel):
                return math.nan
        if self.rule.coded:
            code = canonical_code(text if value is None else text.replace(",", "."))
            if text.casefold() in MISSING and code not in self._declared:
                return math.nan
            return self._code_index(code)
        if text.casefold() in MISSING:
            return math.nan
        if text.casefold() in _TRUTH:
            return _TRUTH[text.casefold()]
        if value is None or not self._textual:
            return "not-a-number", self._not_a_number(text)
        return value if abs(value) <= LARGEST else _TOO_LARGE

    def _object(self, cell: Any) -> float | Wrong:
        """Read a cell that is no text."""
        if cell is None:
            return math.nan
        if isinstance(cell, _DATES):
            text = str(cell)
            named = text in self.rule.markers or text in self.rule.values
            named = named or self._written.split(text)[0] in self._forms
            return self._text(text) if named else ("not-a-number", _A_DATE)
        try:
            value = float(cell) if isinstance(cell, _NUMBERS) else None
        except OverflowError:
            value = math.inf
        except (TypeError, ValueError):
            value = None
        if value is None:
            return "not-a-number", f"not a number ({type(cell).__name__}); {_CONVERT}"
        truth = isinstance(cell, (bool, np.bool_))
        if math.isnan(value) or (value in self._is_sentinel and not truth):
            return math.nan
        if value in self._instead:
            return self._instead[value]
        if abs(value) > LARGEST:
            return _TOO_LARGE
        return self._code_index(canonical_code(str(cell))) if self.rule.coded else value

    def _code_index(self, code: str) -> float:
        place = self._places.get(code)
        if place is None and not self._closed:
            place = self._places[code] = float(len(self.codes))
            self.codes.append(code)
        return math.nan if place is None else place

    def _not_a_number(self, text: str) -> str:
        is_code = not (_GROUPED.fullmatch(text) or _DATE.fullmatch(text))
        if self._text_advice and is_code and number_or_none(text) is None:
            return f"text in a column of 0 and 1; {self._text_advice}"
        if not self._textual:
            return f"not a number (str); {_CONVERT}"
        if _DATE.fullmatch(text):
            return _A_DATE
        hint = "empty or NA is a missing value; name others in its section of the mapping file, "
        hint += "missing = [...], or for all columns with --missing (missing=)"
        if _GROUPED.fullmatch(text):
            comma = self.rule.decimal_mark == ","
            mark, other = ("comma", "point") if comma else ("point", "comma")
            hint = f"write decimals with a {mark}, and no separators between thousands"
            hint += f"; a file with decimals after a {other} is read with --decimal "
            hint += f"{'.' if comma else ','} (decimal=)"
        return f"text in a number column; {hint}"


def _error_cell(text: str) -> Wrong:
    """Return why an error of a spreadsheet, such as ``#DIV/0!``, cannot be used."""
    message = "an error of a spreadsheet's formula; correct it, or name it as a missing value: "
    return "error-cell", f"{message}--missing '{text}' (missing=)"


def looks_like_a_value(text: str) -> bool:
    """Return whether a text is a number or a date, and hardly the name of a column."""
    return number_or_none(text) is not None or any(p.fullmatch(text) for p in (_DATE, _GROUPED))


def place_of_header(records: Sequence[tuple[int, Sequence[Any]]]) -> int:
    """Return the place of the header among first records: below a title, which has fewer cells."""
    filled = [sum(not is_blank(cell) for cell in cells) for _, cells in records]
    widest = max(filled, default=0)
    wide = (i for i, n in enumerate(filled) if 2 * n >= widest and (n > 1 or widest < 2))
    # Below a header with gaps there are values.
    return next((i for i in wide if not any(map(is_value, records[i][1]))), 0)


def is_value(cell: Any) -> bool:
    """Return whether a cell is a number, a date or the like, and no name."""
    return not is_blank(cell) and not (isinstance(cell, str) and not looks_like_a_value(cell))
