"""Suggest a mapping file for a table, by its header and its values. Nothing of it is sent."""

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedclust.data.advice import bounds_text, list_names, mapping_key
from fedclust.data.chunks import MISSING, is_blank
from fedclust.data.csvfile import CsvReader
from fedclust.data.decode import (
    ColumnRule,
    Decoder,
    are_thousands_apart,
    is_value,
    looks_like_a_value,
    place_of_header,
)
from fedclust.data.excel import ExcelReader, cell_name, sheets_with_rows
from fedclust.data.known_names import (
    cell_unit,
    conversion,
    death_of,
    fits_person,
    fits_time,
    fits_value,
    folded,
    has_other_span,
    in_brackets,
    is_absent_text,
    is_contrary,
    is_death,
    is_sex,
    is_unit,
    legend_of,
    likeness,
    looks_missing,
    may_become,
    meanings_of,
    other_units,
    rank_of,
    same_measure,
    says_unit,
    sex_counted,
    sex_of_one,
    similarity,
    split_unit,
    status_of,
    statuses_of,
    time_unit_of,
    with_two_units,
)
from fedclust.data.mapping import ColumnMap, ColumnsFile, Dataset, as_dataset, canonical_code
from fedclust.data.outcome_rows import with_outcomes
from fedclust.data.readings import FeatureReading, limits
from fedclust.data.row_source import BLOCK
from fedclust.data.sources import describe, open_reader, read_columns
from fedclust.data.sql import SqlQuery
from fedclust.schema.feature import Declaration, Feature, Trajectory, clustered, outcomes_of
from fedclust.wire.errors import DataError, UsageError, writing

#: At most so many different cells of a column are distinguished, and so many codes are written.
_MOST_CELLS: Final = 100_000
_MOST_CODES: Final = 40
#: A yes/no column may have so many spellings.
_MOST_YES_NO: Final = 12
#: Of a file with at most so many columns all are read.
_MOST_COLUMNS: Final = 200
#: A column whose values fit is taken if its name is so similar.
_SIMILAR: Final = 0.55
#: A column of few codes is proposed if its name is so similar.
_SOMEWHAT_SIMILAR: Final = 0.4
#: A column may be a feature if this share of its values is readable and within the bounds. So many
#: are named at most, of so many with the most similar names.
_FITTING: Final = 0.4
#: Values may have another unit if this share of them is within the bounds in it.
_NEARLY_ALL: Final = 0.98
_MOST_NEAR: Final = 4
_MOST_TRIED: Final = 20
#: Encodings of Windows in Western Europe, Central Europe and Turkey.
_SINGLE_BYTE: Final = ("cp1252", "cp1250", "cp1254")
#: What a column without a name is called, before its letter.
_UNNAMED: Final = "column "
_POINTED: Final = re.compile(r"[+-]?\d*([.,])\d+")
_DEGREES: Final = re.compile("(?:[ _(\\[]|(?<=[a-z]))([FCK])[)\\]]?$|[ _]([fck])$")
#: A number with a sign, a unit or a remark: ``<0.3``, ``> 35000 pg/ml``, ``172 (lying)``, ``7/10``.
_NUMBER: Final = re.compile(r"([<>≤≥]?)=?\s*(\d+)(?:([.,])(\d+))?\s*(\([^\d()]*\)|/\d+|\D{0,8})")
_THREE_DIGITS: Final = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")


@dataclass(frozen=True)
class MappingSuggestion:
    """A mapping file that is suggested for a table.

    Attributes
    ----------
    text : str
        The file. Its comments hold codes and counts of rows: they are for the site alone.
    columns : mapping of str to (str or None)
        The column of each feature and outcome; None without one, or if one is only proposed.
    still_open : tuple of str
        What is uncertain, as the file marks it; for the site alone.
    unused : tuple of str
        The table's other columns.
    person : str or None
        The guessed column of persons, if a trajectory has a row for each value.
    """

    text: str = field(repr=False)
    columns: Mapping[str, str | None]
    still_open: tuple[str, ...] = field(repr=False)
    unused: tuple[str, ...]
    person: str | None = None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file; UsageError if one of this name exists, or it cannot be written."""
        if Path(path).exists():
            raise UsageError(f"{path} exists: use it (mapping=, --mapping), or give another name")
        with (
            writing(path),
            open(path, "x", encoding="utf-8", newline="\n", opener=_private) as file,
        ):
            file.write(self.text)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def suggest_mapping(declared: Sequence[Declaration], source: Any) -> MappingSuggestion:
    """Guess which column of a table is which feature, and how it is read.

    Parameters
    ----------
    declared : sequence of Feature, Trajectory or Outcome
        The ``features`` of a session's definition.
    source : Source
        A table whose columns have names. Options of a :class:`Dataset` are kept.

    Returns
    -------
    MappingSuggestion
        What is uncertain is marked, also each missing code that is taken.

    Raises
    ------
    DataError
        The table cannot be read.
    UsageError
        The data set has a mapping, or is an array, whose columns have no names.
    """
    dataset = as_dataset(source)
    if dataset.options.mapping is not None:
        raise UsageError("a mapping is suggested for a table without one: leave out the mapping")
    named = isinstance(dataset.source, str | os.PathLike | SqlQuery)
    if not (named or hasattr(dataset.source, "columns")):
        raise UsageError("a mapping is suggested for a table whose columns have names")
    trajectories = [each for each in declared if isinstance(each, Trajectory)]
    every = [*clustered(declared), *map(_as_number, trajectories)]
    table = _read(dataset, with_outcomes(every, outcomes_of(declared)), bool(trajectories))
    long = {each.name: each for each in trajectories if not table.has_columns_of(each)}
    given = [_as_number(long[e.name]) if e.name in long else e for e in declared]
    features = with_outcomes(clustered(given), outcomes_of(declared))
    matched = _match(features, table)
    for name in long:
        taken = {match.column for match in matched.values() if match}
        free = [each for each in table.columns if fits_value(each) and each not in taken]
        matched[name] = matched[name] or (_Match(free[0], 1) if free else None)
    if not any(matched.values()):
        # The header may be a title or a row.
        read_columns(Dataset.of(dataset.source, table.options(dataset)))
    columns = [table.columns[match.column] for match in matched.values() if match]
    if table.textual and dataset.options.decimal is None:
        table.set_decimal(columns or table.columns.values())
    _match_by_values([each for each in features if each.name not in long], matched, table)
    writer = _Writer(table)
    guessed = {name: match.column for name, match in matched.items() if match and match.score >= 0}
    used = set(guessed.values())
    proposed = {each.name: match.column for each in features if (match := matched[each.name])}
    for feature in features:
        others = {column for name, column in proposed.items() if name != feature.name}
        writer.add(feature, matched[feature.name], long.get(feature.name), used | others)
    used |= writer.places
    unused = tuple(name for name in table.header if name and name not in used)
    return MappingSuggestion(
        "\n".join([*table.head(describe(dataset.source), unused), *writer.lines]) + "\n",
        {name: guessed.get(name) for name in matched},
        (*table.notes, *writer.still_open),
        unused,
        writer.person,
    )


def _as_number(of: Trajectory) -> Feature:
    """Return the values of a trajectory as a feature."""
    return Feature(name=of.name, unit=of.unit, lower=of.lower, upper=of.upper)


# --- the table ------------------------------------------------------------------------------------


@dataclass
class _Table:
    """A table's columns, as counts of their cells, and how it is written."""

    header: Sequence[str]
    columns: dict[str, Counter[Any]]
    written: ColumnsFile
    textual: bool
    notes: list[str] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)

    def has_columns_of(self, of: Trajectory) -> bool:
        """Return whether the table has columns of a trajectory, and no row for each value."""
        return any(likeness(each.name, name) > 2 for each in of.columns for name in self.header)

    def options(self, dataset: Dataset) -> Any:
        names = ("encoding", "columns", "header_row")
        found = {name: getattr(self.written, name) for name in names}
        return dataset.options.model_copy(update=found)

    def set_decimal(self, columns: Iterable[Counter[Any]]) -> None:
        """Guess the decimal mark, and whether the other mark separates thousands."""
        marks, grouped = Counter[str](), Counter[str]()
        for cells in columns:
            for cell, n in cells.items():
                if isinstance(cell, str) and (found := _POINTED.fullmatch(cell)):
                    marks[found[1]] += n
                    if _THREE_DIGITS.fullmatch(cell):
                        grouped[found[1]] += n
        mark, other = ",." if marks[","] > marks["."] else ".,"
        thousands = 0 < grouped[other] == marks[other] and marks[mark] > grouped[mark]
        if thousands:
            self.notes.append(f'does "{other}" separate thousands, as in 1{other}250?')
        update = {"decimal": mark, "thousands": thousands}
        self.written = self.written.model_copy(update=update)

    def head(self, name: str, unused: Sequence[str]) -> list[str]:
        """Return the lines of the file before its features."""
        lines = [
            f"# How fedclust would read {_toml(name)}. Change what is marked as to do, and look at",
            "# what is marked as uncertain; the marks may stay. To accept a proposed line, delete",
            "# the # before it.",
            "# Counts are of rows: delete the comments before you give this file away.",
            *(f"# uncertain: {note}" for note in self.notes),
        ]
        settings = self.written.model_dump(exclude_defaults=True, exclude={"features"})
        lines += [f"{name} = {_toml(value)}" for name, value in settings.items()]
        return [
            *lines,
            f"# columns that are not used: {', '.join(map(_toml, unused)) or 'none'}",
            "",
        ]


def _read(dataset: Dataset, features: Sequence[Feature], rows_of: bool) -> _Table:
    """Read the columns that features may have; ``rows_of``: those of rows of values too."""
    written = dataset.options.resolved()
    try:
        return _read_as(dataset, features, rows_of, written)
    except DataError as error:
        if error.rule == "sheet" and written.sheet is None:
            tries = [{"sheet": name} for name in sheets_with_rows(Path(dataset.source))]
        elif error.rule == "encoding" and written.encoding is None:
            tries = [{"encoding": name} for name in _encodings(Path(dataset.source))]
        else:
            raise
        if not tries:
            raise
    tables: list[_Table] = []
    for each in tries:
        try:
            tables.append(_read_as(dataset, features, rows_of, written.model_copy(update=each)))
        except DataError:  # each encoding lacks some bytes, and sheets may have no columns
            if each == tries[-1] and not tables:
                raise
    # The first of those that show most names like a feature's.
    table = max(
        tables, key=lambda each: sum(_is_like(name, features, rows_of) for name in each.columns)
    )
    if "sheet" in tries[0]:
        names = list_names([_toml(each["sheet"]) for each in tries])
        table.notes.append(f"{names} have rows: is {_toml(table.written.sheet)} the sheet?")
    elif len(tries) > 1:
        odd = next((f"is {_toml(name)} right" for name in table.header if not name.isascii()), "")
        table.notes.append(
            f"the file is not in UTF-8: {odd or 'are letters such as ä right'} with "
            f"{table.written.encoding}? If not, give encoding= (--encoding)"
        )
    return table


def _encodings(path: Path) -> tuple[str, ...]:
    """Return the encodings that a file without a mark may have."""
    with path.open("rb") as file:
        start = file.read(4)
    if b"\0" in start:
        return ("utf-16-be" if start.startswith(b"\0") else "utf-16-le",)
    return _SINGLE_BYTE


def _read_as(
    dataset: Dataset, features: Sequence[Feature], rows_of: bool, written: ColumnsFile
) -> _Table:
    reader = open_reader(dataset, written)
    notes: list[str] = []
    found: dict[str, Any] = {}
    if isinstance(reader, CsvReader) and written.delimiter is None:
        found = {"delimiter": reader.delimiter}
    if isinstance(reader, CsvReader | ExcelReader) and not (written.columns or written.header_row):
        found |= _likely_header(reader, notes)
    if found:
        reader.close()
        written = written.model_copy(update=found)
        reader = open_reader(dataset, written)
    times = Counter(reader.header)
    notes += [
        f"the header names {_toml(name)} twice" for name, n in times.items() if name and n > 1
    ]
    # Every column of a file may fit by its values; of a wider table those that fit by name.
    every = isinstance(reader, CsvReader | ExcelReader) and len(reader.header) <= _MOST_COLUMNS
    names = [
        name
        for name in reader.header
        if name and times[name] == 1 and (every or _is_like(name, features, rows_of))
    ]
    cut: set[str] = set()
    columns: dict[str, Counter[Any]] = {name: Counter() for name in names}
    for chunk in reader.chunks(names, (), BLOCK) if names else ():
        for name, cells in chunk.cells.items():
            if not _count(columns[name], cells):
                cut.add(name)
    return _Table(reader.header, columns, written, reader.textual, notes, cut)


def _likely_header(reader: CsvReader | ExcelReader, notes: list[str]) -> dict[str, Any]:
    """Return the number of a header's last row, and its names if it has two rows or gaps.

    As settings of a mapping file: none where the first row is the header. Of two rows the lower one
    has units, or in a sheet names below merged cells. There a column without a name is called by
    its letter. ``notes`` get what is to be looked at.
    """
    rows, unit = reader.first_records(), reader.origin.unit
    top = last = place_of_header(rows)
    width = max(len(row) for _, row in rows[top:])
    cells = [[*row, *[None] * (width - len(row))][:width] for _, row in rows]
    texts = [[*map(cell_name, row)] for row in cells]
    names, gaps = texts[top], False
    if top:
        first, end = rows[0][0], rows[top][0]
        above = f"{unit}s {first} to {end - 1} are" if end - first > 1 else f"{unit} {first} is"
        notes.append(f"{above} taken as a title: is {unit} {end} the header?")
    if len(rows) > top + 2 and not any(map(is_value, cells[top + 1])):
        pairs = list(zip(names, texts[top + 1], strict=True))
        below = [b for _, b in pairs if b]
        if 2 * sum(map(says_unit, below)) > len(below):
            names, last = [f"{a} [{b}]" if b else a for a, b in pairs], top + 1
        elif isinstance(reader, ExcelReader) and any(b > a == "" for a, b in pairs):
            names, last = [b or a for a, b in pairs], top + 1
    if isinstance(reader, ExcelReader):
        gaps = any(
            not name and not all(is_blank(row[place]) for row in cells[last + 1 :])
            for place, name in enumerate(names)
        )
        if last > top or gaps:
            from openpyxl.utils import get_column_letter

            letters = (f"{_UNNAMED}{get_column_letter(place + 1)}" for place in range(width))
            names = [a or b for a, b in zip(names, letters, strict=True)]
    if last > top or gaps:
        notes.append("the header has two rows or gaps; are these the columns' names?")
        return {"header_row": rows[last][0], "columns": tuple(names)}
    return {"header_row": rows[top][0]} if top else {}


def _is_like(header: str, features: Sequence[Feature], rows_of: bool) -> bool:
    """Return whether a header is like a feature's name, or one of rows of values."""
    place = rows_of and (fits_person(header) or fits_time(header) or fits_value(header))
    return bool(place) or any(likeness(each.name, header) for each in features)


def _count(found: Counter[Any], cells: Any) -> bool:
    """Count cells; return False if some were left out: never usual codes of a missing value."""
    whole = True
    if isinstance(cells, np.ndarray):
        cells = list(cells) if cells.dtype.kind in "mM" else cells.tolist()
    for cell in cells:
        key = cell.strip() if isinstance(cell, str) else None if cell != cell else cell
        if key in found or len(found) < _MOST_CELLS or looks_missing(str(key)):
            found[key] += 1
        else:
            whole = False
    return whole


# --- which column ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Match:
    """The column of a feature: how well its name fits, and others that fit as well.

    A score of 0: only its values fit; -1: so little that the column is proposed, not taken.
    """

    column: str
    score: int
    others: tuple[str, ...] = ()


def _match(features: Sequence[Feature], table: _Table) -> dict[str, _Match | None]:
    """Return the column of each feature; a column is used once, where its name fits best."""
    scores = {
        (feature.name, name): (score, _fit(feature, table, name))
        for feature in features
        for name in table.columns
        if (score := likeness(feature.name, name))
    }
    found: dict[str, _Match | None] = {feature.name: None for feature in features}
    used: set[str] = set()
    # Equal ones keep the order of the session and of the table.
    for (feature, name), (score, fit) in sorted(scores.items(), key=lambda e: [-x for x in e[1]]):
        if found[feature] is None and name not in used and (score > 1 or fit > _FITTING):
            rivals = (
                other for (own, other), each in scores.items()
                if own == feature and other != name and each[0] == score
            )  # fmt: skip
            found[feature] = _Match(name, score, tuple(rivals))
            used.add(name)
    return found


def _match_by_values(
    features: Sequence[Feature], matched: dict[str, _Match | None], table: _Table
) -> None:
    """Match features without a column to columns that no name fits, by units and codes."""
    used = {match.column for match in matched.values() if match}
    fits = {
        (each.name, name): fit
        for each in features
        for name in table.columns
        if matched[each.name] is None and name not in used
        if not has_other_span(each.name, name)
        if (fit := _values_fit(each, table, name))
    }
    wanted = Counter(name for _, name in fits)
    for own in dict.fromkeys(own for own, _ in fits):
        found = {name: fit for (other, name), fit in fits.items() if other == own}
        best = [each for each in found if found[each] == max(found.values()) and each not in used]
        # A column is proposed for the features whose names are most like its own.
        like = {each: max(similarity(o, each) for o, name in fits if name == each) for each in best}
        best = [each for each in best if similarity(own, each) == like[each] or found[each] > 1]
        best.sort(key=lambda name: -similarity(own, name))
        if best:
            telling = found[best[0]] > 1 and len(best) == wanted[best[0]] == 1
            taken = telling or similarity(own, best[0]) > _SIMILAR
            matched[own] = _Match(best[0], 0 if taken else -1, tuple(best[1:]))
            used |= {best[0]} if taken else set()


def _values_fit(feature: Feature, table: _Table, name: str) -> int:
    """Return how well values fit a feature: 2 by unit and bounds or telling codes, 1 by yes/no."""
    cells = table.columns[name]
    if feature.kind != "numeric":
        codes, _ = _codes(feature, cells)
        if is_death(feature.name) and any(map(death_of, codes)):
            return 2 * (len(codes) <= _MOST_YES_NO)
        present = [code for code in codes if not looks_missing(code)]
        if len(present) > _MOST_CODES + len(feature.levels or ()):
            return 0  # Names, dates or numbers; each code would be compared with all others.
        known = [_level(feature, code, codes, _Match(name, 1)) is not None for code in present]
        if {"male", "female"} <= set(meanings_of(codes, name).values()):
            return 2 * any(known)
        return (1 + (feature.kind != "binary")) * (len(present) > 1 and all(known))
    return 2 * (_conversion(feature, name) is not None and _fit(feature, table, name) > 0.9)


def _conversion(feature: Feature, name: str) -> tuple[float, float] | None:
    unit = split_unit(name)[1]
    return conversion(feature.name, name, unit, feature.unit) if unit else None


def _fit(feature: Feature, table: _Table, name: str) -> float:
    """Return the share of a column's cells that a feature could have."""
    cells = table.columns[name]
    if feature.kind != "numeric":
        codes, _ = _codes(feature, cells)
        usual = _usual(codes, feature)
        levels = {code: _level(feature, code, usual, _Match(name, 4)) for code in usual}
        known = sum(n for code, n in usual.items() if levels[code] is not None)
        most = _MOST_YES_NO if feature.kind == "binary" else _MOST_CODES
        return (known / max(1, codes.total()) + (len(codes) <= most)) / 2
    values = max((_numbers(cells, mark, table.textual)[0] for mark in ".,"), key=len)
    lower, upper = limits(feature)
    factor, offset = _conversion(feature, name) or (1.0, 0.0)
    inside = sum(n for value, n in values if lower <= value * factor + offset <= upper)
    given = sum(n for cell, n in cells.items() if not _is_missing(cell))
    return (inside + sum(n for _, n in values)) / max(1, 2 * given)


def _may_be(feature: Feature, table: _Table, name: str) -> bool:
    """Return whether a column's values do not exclude that it is a feature."""
    if has_other_span(feature.name, name):
        return False
    if feature.kind == "numeric":
        unit = split_unit(name)[1]
        other = bool(feature.unit) and is_unit(unit) and not may_become(unit, feature.unit)
        return not other and _fit(feature, table, name) > _FITTING
    # Few codes alone say nothing: wards have few names, too.
    codes, _ = _codes(feature, table.columns[name])
    numbers = len(codes) <= _MOST_YES_NO and all(code.isdecimal() for code in codes)
    as_many = len(codes) == len(feature.levels or ())
    return numbers or as_many or _fit(feature, table, name) > 0.5


def _is_somewhat_like(feature: Feature, name: str, table: _Table) -> bool:
    """Return whether a column of few codes has a name that is somewhat like a feature's."""
    few = len(_codes(feature, table.columns[name])[0]) <= _MOST_CODES
    return few and similarity(feature.name, name) > _SOMEWHAT_SIMILAR


def _is_missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and cell.casefold() in MISSING)


def _numbers(
    cells: Counter[Any], mark: str, textual: bool, **read: Any
) -> tuple[list[tuple[float, int]], dict[tuple[str, str], list[Any]]]:
    """Return a column's numbers with their counts, and its other cells by what is wrong."""
    distinct = list(cells)
    rule = ColumnRule(coded=False, decimal_mark=mark, **read)
    decoder = Decoder(rule, textual=textual)
    decoded = decoder(distinct)
    values = [
        (value, cells[cell])
        for value, cell in zip(decoded.values.tolist(), distinct, strict=True)
        if value == value
    ]
    return values, {why: [distinct[i] for i in rows] for why, rows in decoded.wrong.items()}


def _codes(feature: Feature, cells: Counter[Any]) -> tuple[Counter[str], Counter[str]]:
    """Return a column's codes with their counts, and the cells that are read as missing."""
    levels = feature.levels or ()
    spelled = {level.casefold() for level in levels}
    codes: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    for cell, n in cells.items():
        text = "" if cell is None else str(cell)
        empty = _is_missing(cell) and text.casefold() not in spelled
        (missing if empty else codes)[text if empty else canonical_code(text)] += n
    return codes, missing


def _usual(codes: Counter[str], feature: Feature) -> dict[str, int]:
    """Return the commonest codes: to compare each of many names with all others takes long."""
    return dict(codes.most_common(_MOST_CODES + len(feature.levels or ())))


def _level(feature: Feature, code: str, codes: Collection[str], match: _Match) -> str | int | None:
    """Return the level that a code certainly is; None if that is not certain."""
    legend = legend_of(match.column)
    if code in legend:
        code, codes = legend[code], [legend.get(each, each) for each in codes]
    if (
        feature.kind == "categorical"
        and len(ranked := _of_rank(feature.levels or (), code, codes)) == 1
    ):
        return ranked[0]
    meanings = meanings_of(codes, match.column)
    what, meant = meanings[code], set(meanings.values())
    numbers = {each for each in codes if each.isdecimal() and not looks_missing(each)}
    unclear = not numbers <= {"0", "1"} or is_sex(feature.name)
    if code in ("0", "1") and unclear and code not in (feature.levels or ()):
        return None  # 1 and 2, or 0, 1 and 2, do not say which is which
    if what in ("male", "female") and not {"male", "female"} <= meant:
        return None
    if feature.kind == "binary":
        if is_death(feature.name) and (died := death_of(code)) is not None:
            return died
        sex = sex_counted(feature.name)
        if what in ("male", "female"):
            sex = sex or sex_of_one(feature.unit)
            return int(what == sex) if sex else None
        # A column "sex" with 0 and 1 does not say which is which, nor does a vital status.
        status = is_death(feature.name) and "status" in folded(match.column)
        vague = (sex or status) and match.score < 3
        # One letter alone may be another word.
        vague = vague or not ({"no", "yes"} <= meant or code.isdecimal())
        return None if what is None or vague else int(what == "yes")
    levels = feature.levels or ()
    same = [level for level in levels if folded(level) == folded(code)]
    if not same and what is not None:
        stand = meanings_of([level for level in levels if not level.isdecimal()])
        pair = {"no", "yes"} if what in ("no", "yes") else {"male", "female"}
        if pair <= set(stand.values()):
            same = [level for level, other in stand.items() if other == what]
    statuses = statuses_of([each for each in codes if not looks_missing(each)], match.column)
    # "nie" is "never" in German, "no" in Polish.
    if not same and (all(statuses.values()) or meanings_of([code])[code] is None):
        same = [level for level in levels if status_of(level) == statuses.get(code, "")]
    return same[0] if len(same) == 1 else None


def _of_rank(levels: Sequence[str], code: str, codes: Iterable[str]) -> list[str]:
    """Return the level with the number of a code, if all levels and codes have numbers."""
    ranks = [rank_of(level, alone=True) for level in levels]
    own = [rank_of(each) for each in codes if not (looks_missing(each) or each in levels)]
    if None in ranks or None in own or not set(own) <= set(ranks):
        return []
    return [level for level, rank in zip(levels, ranks, strict=True) if rank == rank_of(code)]


# --- the file -------------------------------------------------------------------------------------


def _levels_line(feature: Feature) -> list[str]:
    """Return a comment with the levels of a categorical feature."""
    return [f"# its levels: {', '.join(map(_toml, feature.levels))}"] if feature.levels else []


@dataclass(frozen=True)
class _Column:
    """A feature's name, its column, and the unit of the column."""

    feature: str
    name: str
    unit: str


class _Writer:
    """Writes the section of each feature."""

    def __init__(self, table: _Table) -> None:
        self._table = table
        self.lines: list[str] = []
        self.still_open: list[str] = []
        #: The columns of persons and times, and that of persons.
        self.places: set[str] = set()
        self.person: str | None = None

    def add(
        self, feature: Feature, match: _Match | None, of: Trajectory | None, used: Collection[str]
    ) -> None:
        """Write the section of one feature, or of a trajectory in rows; ``used`` are taken."""
        key = mapping_key(feature.name)
        self.lines.append(f"[features.{key}]")
        if match is None:
            free = (name for name in self._table.columns if name not in used)
            near = sorted(free, key=lambda name: -similarity(feature.name, name))
            tried = near[:_MOST_TRIED]
            fit = [each for each in tried if _may_be(feature, self._table, each)][:_MOST_NEAR]
            if not fit and feature.kind != "numeric":
                like = (each for each in tried if _is_somewhat_like(feature, each, self._table))
                fit = [*itertools.islice(like, 1)]
            if fit and feature.kind != "numeric":
                match = _Match(fit[0], -1, tuple(fit[1:]))
        if match is None:
            why = "no column here is called like it"
            why += f"; may it be {' or '.join(map(_toml, fit))}?" if fit else ""
            self._note(feature, why, '# column = "NAME HERE"', *_levels_line(feature), mark="to do")
        else:
            unit = split_unit(match.column)[1] if feature.kind == "numeric" else ""
            cells = self._table.columns[match.column]
            names, lines = [match.column], [f"column = {_toml(match.column)}"]
            if match.score < 0:
                names += match.others[: _MOST_NEAR - 1]
                lines = [f"# column = {_toml(each)}" for each in names]
            if match.score < 1:
                said = list_names([*map(_toml, names)])
                why = f"no column here is called like it; by its values it may be {said}"
                self._note(feature, why, mark="to do" if match.score < 0 else "uncertain")
            self.lines += lines
            if match.score == 1:
                said = self._range_text(cells) if feature.kind == "numeric" else ""
                self._note(feature, f"is {_toml(match.column)} this column?{said}")
            if of is not None and fits_value(match.column):
                self._note(feature, "are values of other measurements in it? Give each a column")
            if of is not None:
                self._add_places(feature, of, used)
            if match.others and match.score >= 0:
                self._note(feature, f"it may be {list_names([*map(_toml, match.others)])} too")
            if match.column in self._table.cut:
                self._note(feature, f"only its first {_MOST_CELLS:,} different cells are judged")
            right = self._table.header.index(match.column) + 1
            if "".join(self._table.header[right : right + 1]).startswith(_UNNAMED):
                self._note(feature, "is its header cell above the column to its right too?")
            also = {
                each
                for each in in_brackets(match.column)
                if each not in ("", unit) and not all(meanings_of(each.split("/")).values())
                if likeness(feature.name, each) < 2
            }
            if also and match.score < 4:
                said = list_names([*map(_toml, sorted(also))])
                self._note(feature, f"what does {said} in the header mean?")
            if len(names) > 1:  # each has codes of its own
                self.lines += _levels_line(feature)
            elif feature.kind == "numeric":
                self._add_number(feature, match.column, cells)
            else:
                self._add_codes(feature, match, cells)
        self.lines.append("")

    def _add_places(self, feature: Feature, of: Trajectory, used: Collection[str]) -> None:
        """Write the columns of persons and of times, and the unit of these."""
        free = {name: cells for name, cells in self._table.columns.items() if name not in used}
        repeats = {name: max(cells.values(), default=0) > 1 for name, cells in free.items()}
        persons = sorted(free, key=lambda name: (-repeats[name], -fits_person(name)))
        times = sorted(free, key=lambda name: -fits_time(name))
        for setting, fits, names in (
            ("person", fits_person, persons),
            ("time", fits_time, times),
        ):
            found = [name for name in names if fits(name)]
            if not found:
                self._note(feature, f"which column is the {setting}?", f'# {setting} = "NAME HERE"')
                continue
            self.places.add(found[0])
            self.lines.append(f"{setting} = {_toml(found[0])}")
            rivals = [name for name in found[1:] if fits(name) == fits(found[0])]
            if fits(found[0]) == 1:
                self._note(feature, f"is {_toml(found[0])} the {setting}?")
            if rivals:
                also = list_names([*map(_toml, rivals)])
                self._note(feature, f"the {setting} may be {also} too")
            if setting == "person":
                self.person = found[0]
                self.lines[-1:] = [f"{self.lines[-1]}  # give person= (--person-column) too"]
            else:
                self._add_times(feature, of, found[0], free[found[0]])

    def _add_times(
        self, feature: Feature, of: Trajectory, column: str, cells: Counter[Any]
    ) -> None:
        """Write the factor of times; mark what is no number, and a unit that is not known."""
        values, wrong = _numbers(cells, self._table.written.decimal, self._table.textual)
        for _, message in wrong:
            said = f"its times: {message.partition(';')[0]}; they are numbers, such as days since"
            self._note(feature, f"{said} admission")
        unit = time_unit_of(column)
        found = conversion("", "", unit, of.time_unit)
        if found is None or not (unit and of.time_unit):
            asked = _toml(of.time_unit) if of.time_unit else "the session"
            self._note(feature, f"in which unit are its times, for {asked}?", "# time_factor = 1.0")
        elif found[0] != 1:
            self.lines.append(f"time_factor = {found[0]!r}")
        window, factor = of.window or 0.0, 1.0 if found is None else found[0]
        near = (
            of.grid and of.grid[0] - window <= value * factor <= of.grid[-1] + window
            for value, _ in values
        )
        if of.grid and values and not any(near):
            self._note(feature, "no time lies near the grid: which unit?")

    def _note(self, feature: Feature, why: str, *lines: str, mark: str = "uncertain") -> None:
        self.lines += [f"# {mark}: {why}", *lines]
        self.still_open.append(f"{feature.name}: {why}")

    def _range_text(self, cells: Counter[Any]) -> str:
        found, _ = _numbers(cells, self._table.written.decimal, self._table.textual)
        values = [value for value, _ in found]
        return f" Its values: {min(values):g} to {max(values):g}" if values else ""

    def _add_missing(self, missing: Counter[str]) -> None:
        if any(missing):  # more than empty cells
            self.lines.append(f"# read as missing: {with_counts(missing)}")

    def _add_number(self, feature: Feature, column: str, cells: Counter[Any]) -> None:
        table = self._table
        mark, thousands = table.written.decimal, table.written.thousands
        found, wrong = _numbers(cells, mark, table.textual, thousands=thousands)
        self._add_missing(_codes(feature, cells)[1])
        factor, offset = self._add_unit(feature, column)
        unit = split_unit(column)[1] or feature.unit
        given = table.written.features.get(feature.name, ColumnMap()).sentinels
        if given:
            self.lines.append(f"sentinels = [{', '.join(map(repr, given))}]")
            found = [(value, n) for value, n in found if value not in given]
        if found:
            own = np.array([value for value, _ in found])
            counts = np.array([n for _, n in found])
            values = own * factor + offset
            absent, no_values = _absent(own, counts, _outside(feature, values))
            if absent.any():
                codes = [f"{value:.15g}" for value in own[absent].tolist()]
                said = with_counts(Counter(dict(zip(codes, counts[absent].tolist(), strict=True))))
                taken = no_values and not given
                why = "seem to be codes, read as missing" if taken else "may mean a missing value"
                line = f"sentinels = [{', '.join([*map(repr, given), *codes])}]"
                self._note(feature, f"these numbers {why}: {said}", line if taken else f"# {line}")
            kept = ~absent
            other = self._judge_bounds(feature, column, own[kept], values[kept], counts[kept])
            unit = other or unit
            self._judge_marks(feature, cells, found)
        texts: dict[str, Counter[str]] = {}
        for (_, why), unread in wrong.items():
            counts_of = texts.setdefault(why.partition(";")[0], Counter())
            counts_of.update({str(cell): cells[cell] for cell in unread})
        if not self._add_texts(feature, _Column(feature.name, column, unit), texts) and not found:
            self._note(feature, "the column has no number")

    def _add_texts(self, feature: Feature, here: _Column, texts: dict[str, Counter[str]]) -> bool:
        """Write how texts in numbers are read, by what is wrong; return whether some are read."""
        mark = self._table.written.decimal
        every = sum(texts.values(), Counter[str]())
        of_cells = _values_of(every, mark, here)[1]
        if units := {name: factor for name, factor in of_cells.items() if factor}:
            shown = [next(text for text in every if _has_unit(text, {name})) for name in units]
            how = "read as numbers"
            if any(factor != 1 for factor in units.values()):
                how = f"converted to {here.unit or 'the unit here'}"
            said = f"cells such as {list_names([*map(_toml, shown)])} are {how}"
            self._note(feature, said, _units_line(units))
        left = {
            why: Counter({t: n for t, n in each.items() if not _has_unit(t, units)})
            for why, each in texts.items()
        }
        listed = sum(left.values(), Counter[str]())
        # Of 120/80 another number may be meant.
        numbers = {text for text in _values_of(listed, mark, here)[0] if "/" not in text}
        taken = all(is_absent_text(text) or text in numbers for text in listed)
        for why, each in left.items():
            if each:
                how = "as below" if numbers & {*each} else "as missing"
                said = f"{why}{f', read {how}' * taken}: {with_counts(each)}"
                self._note(feature, said, mark="uncertain" if taken else "to do")
        lines = _text_lines(listed, mark, ColumnMap(units=units), here)
        self.lines += ["# " * (not taken) + line for line in lines]
        return bool(units or numbers)

    def _judge_marks(
        self, feature: Feature, cells: Counter[Any], found: Sequence[tuple[float, int]]
    ) -> None:
        """Mark numbers whose marks may separate thousands."""
        mark = self._table.written.decimal
        if apart := next(filter(are_thousands_apart, map(str, cells)), ""):
            self._note(feature, f"is {_toml(apart)} one number, with separated thousands?")
        spelled = [cell for cell in cells if isinstance(cell, str) and _POINTED.fullmatch(cell)]
        threes = [*filter(_THREE_DIGITS.fullmatch, spelled)]
        read, _ = _numbers(Counter(threes), mark, textual=True)
        # As 1.234 among 850.5 and 2.345: far below the others, if these are decimals.
        largest = max((abs(value) for value, _ in read), default=np.inf)
        far_below = largest < np.median(np.abs([value for value, _ in found])) / 10
        if self._table.written.thousands or not threes:
            return
        if len(threes) == len(spelled) or far_below:
            self._note(feature, "are its marks decimal marks, or do they separate thousands?")

    def _add_unit(self, feature: Feature, column: str) -> tuple[float, float]:
        """Write how the unit in a column's header becomes the session's; return factor, offset."""
        unit = split_unit(column)[1]
        degrees = _DEGREES.search(column)
        if degrees and feature.unit and conversion("", "", "°F", feature.unit):
            unit = f"°{(degrees[1] or degrees[2]).upper()}"
        if not unit or same_measure(unit, feature.unit):
            return 1.0, 0.0
        if not feature.unit or not (is_unit(unit) or "/" in unit):
            asked = _toml(feature.unit) if feature.unit else "the session's unit"
            self._note(feature, f"does {_toml(unit)} in the header mean {asked}?")
            return 1.0, 0.0
        self.lines.append(f"unit = {_toml(unit)}")
        found = conversion(feature.name, column, unit, feature.unit)
        if found is None:
            why = f"how does {_toml(unit)} become {_toml(feature.unit)}? Give to and factor"
            lines = f"# to = {_toml(feature.unit)}", "# factor = "
            self._note(feature, why, *lines, mark="to do")
            return np.nan, 0.0  # no number is outside the bounds then
        factor, offset = found
        self.lines += [f"to = {_toml(feature.unit)}", f"factor = {float(f'{factor:.6g}')!r}"]
        if offset:
            self.lines[-1:] = [f"factor = {factor!r}", f"offset = {offset!r}"]
        return found

    def _judge_bounds(
        self,
        feature: Feature,
        column: str,
        own: NDArray[np.float64],
        values: NDArray[np.float64],
        counts: NDArray[np.int64],
    ) -> str | None:
        """Mark values that are outside the bounds or very low in them, or may have another unit.

        Return the other unit if it is taken.
        """
        said_unit = bool(split_unit(column)[1])
        beyond = _outside(feature, values)
        total, outside = int(counts.sum()), int(counts[beyond].sum())
        others = _other_units(feature, values, counts)
        if outside:
            shown = ", ".join(f"{value:.15g}" for value in own[beyond][:5].tolist())
            why = f"{outside} of {total} values lie outside the bounds{bounds_text(feature)}, "
            why += f"such as {shown} here"
        elif total and _is_low(feature, values):
            why = "all values lie in the lowest twentieth of the bounds: which unit?"
        elif others and not said_unit:
            why = f"the header says no unit, and its values would fit in {others[0][0]} too"
        else:
            return None
        lines = []
        for unit, factor, offset in others[:1]:
            lines = [f"unit = {_toml(unit)}", f"to = {_toml(feature.unit)}"]
            lines += [f"factor = {factor:.6g}", f"offset = {offset!r}"][: 1 + bool(offset)]
        # No value can be one in the session's unit, and all fit in a single other one.
        single = len({(factor, offset) for _, factor, offset in others}) == 1
        taken = single and outside == total and not said_unit
        if lines:
            why += f": read as {others[0][0]}" if taken else f": are they in {others[0][0]}?"
        self._note(feature, why, *(line if taken else f"# {line}" for line in lines))
        return others[0][0] if taken else None

    def _add_codes(self, feature: Feature, match: _Match, cells: Counter[Any]) -> None:
        codes, missing = _codes(feature, cells)
        self._add_missing(missing)
        if any(text.casefold() == "none" for text in missing):
            self._note(feature, '"None" is read as missing: does it mean no?')
        sure, known, unknown = _sort_codes(feature, codes, match)
        taken = match.score >= 0 and 0 < len(unknown) < len(codes)
        taken = taken and all(map(is_absent_text, unknown))
        if known:
            self.lines.append(f"# codes of the session: {with_counts(known)}")
        if feature.kind == "binary" and missing and len(codes) == 1 and not unknown:
            self._note(
                feature, f"only {_toml(*codes)} is there: do the others mean no value, or no?"
            )
        if feature.kind == "binary" and is_contrary(feature.name, match.column):
            why = f"{_toml(match.column)} may say the opposite of it: {with_counts(codes)}"
            self._note(feature, why, mark="to do")
        elif taken:
            self._note(feature, f"codes, read as missing: {with_counts(unknown)}")
        elif unknown:
            said = f"codes that are not known: {with_counts(unknown)}"
            self._note(feature, said, mark="to do")
        asked, lines, levels = _code_lines(
            feature, codes, match.column, sure, known, unknown, ColumnMap(), "# " * (not taken)
        )
        head = [f"# {asked}:"] if asked != "write" else []
        if levels:
            head = [*lines, f"[features.{mapping_key(feature.name)}.levels]", *head]
        self.lines += [*head, *(levels or lines)]


def find_texts(cells: Iterable[str], file: ColumnsFile, feature: str) -> Counter[str]:
    """Count the texts in a column of numbers that are not read; not dates."""
    own = file.features.get(feature, ColumnMap())
    counted = Counter(map(str.strip, cells))
    read = {"units": own.units, "values": own.values, "thousands": file.thousands}
    markers = frozenset({*file.missing, *own.missing})
    _, wrong = _numbers(counted, file.decimal, textual=True, markers=markers, **read)
    texts = (cell for unread in wrong.values() for cell in unread)
    # A workbook's numbers have a point here, whatever the mark of its texts is.
    return Counter({cell: counted[cell] for cell in texts if not looks_like_a_value(cell)})


def ask_texts(
    feature: Feature, column: str, texts: Counter[str], file: ColumnsFile
) -> tuple[str, list[str]]:
    """Return what to write into a mapping file about texts in numbers, and the lines."""
    said = f"text in a number column: {with_counts(texts)}"
    own = file.features.get(feature.name, ColumnMap())
    here = _Column(feature.name, column, own.unit or feature.unit)
    lines = _text_lines(texts, file.decimal, own, here)
    below = f"below [features.{mapping_key(feature.name)}]"
    if not lines:
        return f"{said}; name {below} what means a missing value (missing)", lines
    instead = ", in place of such a line" * bool(own.missing or own.values or own.units)
    return f"{said}; to read it, write {below}{instead}", lines


def _is_limit(text: str) -> bool:
    return text[:1] in tuple("<>≤≥")


def _values_of(
    texts: Iterable[str], mark: str, here: _Column
) -> tuple[dict[str, float], dict[str, float | None]]:
    """Return the number of each text such as a limit or a grade, and units behind numbers.

    ``mark`` is the decimal mark. The number is half the limit of values below it, and the limit of
    values above it. A unit has its factor to that of the column, None if it is not known.
    """
    found, units = dict[str, float](), dict[str, float | None]()
    for text in texts:
        parts = _NUMBER.fullmatch(text)
        other = parts is not None and parts[3] not in (None, mark)
        # Three digits after the other mark may be thousands.
        if parts and not (other and len(parts[4]) == 3):
            number, unit = float(f"{parts[2]}.{parts[4] or 0}"), parts[5].strip()
            if unit.startswith("/"):  # a score, or months
                if same_measure(here.unit, "years") and unit == "/12":
                    found[text] = float(f"{number / 12:.6g}")
                elif number <= int(unit[1:]):
                    found[text] = number
            elif parts[1] or unit.startswith("("):
                found[text] = number / 2 if parts[1] in tuple("<≤") else number
            elif unit and not other:
                factor, offset = cell_unit(here.feature, here.name, unit, here.unit)
                if offset:
                    found[text] = float(f"{number * factor + offset:.6g}")
                else:
                    units[unit] = factor or None
            elif other and not unit:
                found[text] = number
        elif text.casefold() in ("nil", "zero"):
            found[text] = 0.0
        elif of_two := with_two_units(here.feature, here.name, text, here.unit):
            found[text] = of_two
        elif (rank := rank_of(text)) is not None:
            found[text] = float(rank)
    return found, units


def _units_line(units: Mapping[str, float]) -> str:
    pairs = (f"{_toml(unit)} = {factor!r}" for unit, factor in units.items())
    return f"units = {{ {', '.join(pairs)} }}"


def _text_lines(texts: Counter[str], mark: str, own: ColumnMap, here: _Column) -> list[str]:
    """Return lines of a mapping file that read texts; ``own`` is the present section."""
    found, of_cells = _values_of(texts, mark, here)
    values = {**own.values, **found}
    alone = len(of_cells) == 1 and not (own.units or here.unit)
    units = {name: factor or 1.0 for name, factor in of_cells.items() if factor or alone}
    units |= own.units
    others = {
        text: n
        for text, n in texts.items()
        if not (text in values or _is_limit(text) or _has_unit(text, units))
        if not looks_like_a_value(text)
    }
    lines = []
    # Free text may name persons.
    if others and not is_free_text(Counter(others)):
        lines.append(f"missing = {_toml([*own.missing, *others])}")
    if len(values) > len(own.values):
        pairs = (f"{_toml(text)} = {number!r}" for text, number in values.items())
        lines.append(f"values = {{ {', '.join(pairs)} }}")
    if units != own.units:
        lines.append(_units_line(units))
    return lines


def _has_unit(text: str, units: Collection[str]) -> bool:
    """Return whether a text is a number with one of these units."""
    found = _NUMBER.fullmatch(text)
    return found is not None and not found[1] and found[5].strip() in units


def ask_codes(
    feature: Feature, codes: Counter[str], column: str, own: ColumnMap, contact: str = ""
) -> tuple[str, list[str]]:
    """Return what to write into a mapping file about codes of a column, and its lines.

    ``own`` is the present section; ``contact`` is to be asked what 1 means if no code says it.
    """
    sure, known, unknown = _sort_codes(feature, codes, _Match(column, 1))
    there = {*own.missing, *own.levels}
    unknown = Counter({code: n for code, n in unknown.items() if code not in there})
    asked, lines, levels = _code_lines(feature, codes, column, sure, known, unknown, own, "")
    if own.missing and lines:
        asked += ", missing in place of such a line"
    if feature.kind == "binary" and is_contrary(feature.name, column):
        asked += f"; {_toml(column)} may say the opposite of {feature.name}"
    if contact and feature.kind == "binary" and is_sex(feature.name) and not (sure or own.levels):
        asked += f"; ask {contact} what 1 means"
    section = f"features.{mapping_key(feature.name)}"
    found = [*([f"[{section}]"] if lines else []), *lines]
    found += [*([f"[{section}.levels]"] if levels else []), *levels]
    return f"below these headings of the file, {asked}", found


def _code_lines(
    feature: Feature,
    codes: Counter[str],
    column: str,
    sure: Mapping[str, str | int],
    known: Counter[str],
    unknown: Counter[str],
    own: ColumnMap,
    mark: str,
) -> tuple[str, list[str], list[str]]:
    """Return what to do about codes, lines of the feature's section, and those of its levels.

    ``mark`` is before proposals. A yes/no column whose codes have two sides gets a line for each
    way to read it.
    """
    meanings = meanings_of(codes, column)
    # A further code hardly is a level if each level has one.
    every = {*known, *sure.values()} >= {*(feature.levels or (0, 1))}
    spelled = {*known, *sure}  # Ja (mild) is a remark about Ja
    gone = [
        code
        for code in unknown
        if looks_missing(code) or (every and code.partition("(")[0].strip() not in spelled)
    ]
    given = [code for code in unknown if code not in gone]
    lines = [f"{mark}missing = {_toml([*own.missing, *gone])}"] if gone else []
    of_sex = {meanings[code] for code in given} == {"male", "female"}
    if feature.kind == "binary" and len(unknown) == len(codes) and (of_sex or len(given) == 2):
        side = {code: meanings[code] if of_sex else code for code in given}
        for one in dict.fromkeys(side.values()):
            pairs = [f"{_toml(c)} = {int(side[c] == one)}" for c in given]
            says = f"  # 1 = {one}" * of_sex
            lines.append(f"{mark}levels = {{ {', '.join(pairs)} }}{says}")
        return "choose one of the lines of levels", lines, []
    levels = [
        f"{_toml(code)} = {_toml(level)}  # {codes[code]}"
        for code, level in sure.items()
        if code not in own.levels
    ]
    # Where only death has a word, as among ways of discharge, the others are alive.
    dead = is_death(feature.name) and set(map(death_of, codes)) == {1, None}
    levels += [
        f"{mark * (not dead)}{_toml(code)} = {'0' if dead else ''}  # {codes[code]}"
        for code in given[:_MOST_CODES]
    ]
    asked = ", ".join(map(_toml, feature.levels or (0, 1)))
    said = f'write one of {asked} for each code, or "" for a missing value' if given else "write"
    return said, lines, levels


def _sort_codes(
    feature: Feature, codes: Counter[str], match: _Match
) -> tuple[dict[str, str | int], Counter[str], Counter[str]]:
    """Return the codes that are certainly a level, those of the session, and the others."""
    reading = FeatureReading.of(feature, ColumnMap(), match.column)
    legend = legend_of(match.column)
    contrary = feature.kind == "binary" and is_contrary(feature.name, match.column)
    sure: dict[str, str | int] = {}
    known, unknown = Counter[str](), Counter[str]()
    usual = _usual(codes, feature)
    for code, n in codes.most_common():
        level = _level(feature, code, usual, match) if code in usual else None
        # M may be mujer.
        spanish = folded(code) == "m" and meanings_of(codes, match.column)[code] is None
        level = None if contrary else level
        if level is None and (feature.kind == "binary" or spanish or code in legend):
            unknown[code] = n
        elif reading.meaning(code) is not None and code not in legend:
            known[code] = n
        elif level is not None and len(sure) < _MOST_CODES:
            sure[code] = level
        else:
            unknown[code] = n
    return sure, known, unknown


def _outside(feature: Feature, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    lower, upper = limits(feature)
    return np.asarray((values < lower) | (values > upper))


def _is_low(feature: Feature, values: NDArray[np.float64]) -> bool:
    """Return whether all values lie in the lowest twentieth of a feature's bounds."""
    lower, upper = limits(feature)
    return bool(0 <= lower < upper < np.inf and values.max() < lower + (upper - lower) / 20)


def _other_units(
    feature: Feature, values: NDArray[np.float64], counts: NDArray[np.int64]
) -> list[tuple[str, float, float]]:
    """Return units, with factor and offset, in which nearly all values are within the bounds.

    None for ages: nobody counts those of adults in months.
    """
    known = feature.unit and feature.unit != "years" and len(values)
    if not known or None in (feature.lower, feature.upper):
        return []
    found = []
    for unit, (factor, offset) in other_units(feature.name, feature.unit).items():
        own = values * factor + offset
        inside = counts[~_outside(feature, own)].sum() >= _NEARLY_ALL * counts.sum()
        if inside and (factor, offset) != (1.0, 0.0) and not _is_low(feature, own):
            found.append((unit, factor, offset))
    return found


def _absent(
    own: NDArray[np.float64], counts: NDArray[np.int64], outside: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], bool]:
    """Return which distinct numbers look like missing codes, and whether none can be a value.

    They are usual ones or 0, and outside the bounds, or beyond all others and far from these or
    more frequent, or negative among others that are not, or far more frequent than any. A 0 must be
    far below all others, as among ages: 0 is a usual count. None can be a value if all are outside
    the bounds and most others are not; nor, if a single number is negative.
    """
    zero = own == 0
    usual: NDArray[np.bool_] = zero | [looks_missing(f"{value:.15g}") for value in own.tolist()]
    if usual.all():
        return usual & outside, True
    others, of_others = own[~usual], counts[~usual]
    if 2 * of_others[outside[~usual]].sum() > of_others.sum():
        outside = np.zeros_like(usual)  # the values have another unit
    gap = np.maximum(others.min() - own, own - others.max())
    far = (gap > np.ptp(others) / 4) | (counts > 2 * np.median(of_others))
    negative = (own < 0) & (others.min() >= 0)
    apart = ((gap > 0) & far) | negative | (counts > 3 * of_others.max())
    step = np.median(np.diff(np.unique(others))) if len(others) > 1 else np.inf
    apart[zero] = others.min() > max(2 * step, np.median(others) / 5)
    absent = np.asarray(usual & (outside | apart))
    certain = outside | (negative & (negative[usual].sum() == 1))
    return absent, bool(certain[absent].all())


def is_free_text(cells: Counter[str]) -> bool:
    """Return whether texts are so many, or so often alone, that they may name persons."""
    once = sum(n == 1 for n in cells.values())
    return len(cells) > _MOST_CODES or once > max(5, len(cells) // 2)


def with_counts(cells: Counter[str]) -> str:
    """Return texts with their counts; of free text, which may name persons, at most a number."""
    if is_free_text(cells):
        shown = [_toml(cell) for cell in cells if cell[:1].isdecimal()][:5]
        return f"{len(cells)} different texts{f', such as {list_names(shown)}' if shown else ''}"
    said = [f"{_toml(cell) if cell else 'empty'} {n}" for cell, n in cells.most_common(12)]
    return ", ".join(said) + (f" and {len(cells) - 12} more" if len(cells) > 12 else "")


def _toml(value: Any) -> str:
    """Return a value as TOML, in one line."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
