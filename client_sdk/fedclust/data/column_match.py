"""The columns of a table that may be a session's features, by their names and their values."""

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedclust.data.advice import as_toml, is_free_text, list_names, with_counts
from fedclust.data.chunks import MISSING, Reader, is_blank
from fedclust.data.csvfile import CsvReader
from fedclust.data.decode import ColumnRule, Decoder, is_value, place_of_header
from fedclust.data.excel import ExcelReader, cell_name, sheets_with_rows
from fedclust.data.known_names import (
    conversion,
    death_of,
    fits_person,
    fits_time,
    fits_value,
    folded,
    has_other_span,
    is_another,
    is_birth,
    is_death,
    is_sex,
    is_unit,
    legend_of,
    likeness,
    looks_missing,
    may_become,
    meanings_of,
    rank_of,
    says_unit,
    sex_counted,
    sex_of_one,
    similarity,
    split_unit,
    status_of,
    statuses_of,
)
from fedclust.data.mapping import ColumnMap, ColumnsFile, Dataset, canonical_code
from fedclust.data.readings import limits
from fedclust.data.row_source import BLOCK
from fedclust.data.sources import open_reader
from fedclust.schema.feature import Feature, Trajectory
from fedclust.wire.errors import DataError

#: At most so many different cells of a column are distinguished, and so many codes are compared.
MOST_CELLS: Final = 100_000
MOST_CODES: Final = 40
#: A yes/no column may have so many spellings.
_MOST_YES_NO: Final = 12
#: Of a file with at most so many columns all are read.
_MOST_COLUMNS: Final = 200
#: A column whose values fit is taken if its name is so similar.
_SIMILAR: Final = 0.55
#: A column of few codes is proposed if its name is so similar.
_SOMEWHAT_SIMILAR: Final = 0.4
#: A column may be a feature if this share of its values is readable and within the bounds.
_FITTING: Final = 0.4
#: Encodings of Windows in Western Europe, Central Europe and Turkey.
_SINGLE_BYTE: Final = ("cp1252", "cp1250", "cp1254")
#: What a column without a name is called, before its letter.
UNNAMED: Final = "column "
POINTED: Final = re.compile(r"[+-]?\d*([.,])\d+")
THREE_DIGITS: Final = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")


@dataclass
class CountedTable:
    """A table's columns, as counts of their cells, and how it is written."""

    header: Sequence[str]
    columns: dict[str, Counter[Any]]
    written: ColumnsFile
    textual: bool
    notes: list[str] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)

    def read(self, reader: Reader, names: Sequence[str]) -> None:
        """Count the cells of these columns."""
        self.columns |= {name: Counter[Any]() for name in names}
        for chunk in reader.chunks(names, (), BLOCK) if names else ():
            for name, cells in chunk.cells.items():
                if not _count(self.columns[name], cells):
                    self.cut.add(name)

    def has_columns_of(self, of: Trajectory) -> bool:
        """Return whether the table has columns of a trajectory, and no row for each value."""
        return any(likeness(each.name, name) > 2 for each in of.columns for name in self.header)

    def options(self, dataset: Dataset) -> Any:
        names = ("encoding", "columns", "header_row")
        found = {name: getattr(self.written, name) for name in names}
        return dataset.options.model_copy(update=found)

    def set_decimal(self, columns: Iterable[Counter[Any]]) -> None:
        """Guess the decimal mark, and whether the other mark separates thousands."""
        marks, grouped, example = Counter[str](), Counter[str](), dict[str, str]()
        for cells in columns:
            for cell, n in cells.items():
                if isinstance(cell, str) and (found := POINTED.fullmatch(cell)):
                    marks[found[1]] += n
                    if THREE_DIGITS.fullmatch(cell):
                        grouped[found[1]] += n
                        example.setdefault(found[1], cell)
        mark, other = ",." if marks[","] > marks["."] else ".,"
        thousands = 0 < grouped[other] == marks[other] and marks[mark] > grouped[mark]
        if thousands:
            self.notes.append(f'does "{other}" separate thousands, as in {example[other]}?')
        update = {"decimal": mark, "thousands": thousands}
        self.written = self.written.model_copy(update=update)

    def given(self, name: str) -> Counter[Any]:
        """Return the counts of a column's cells without missing ones."""
        cells = self.columns[name].items()
        return Counter({cell: n for cell, n in cells if not is_missing(cell)})

    def contents(self, name: str) -> str:
        """Return what a column holds, in a few words; of free text only how many texts."""
        cells = self.given(name)
        found, _ = count_numbers(
            cells, self.written.decimal, self.textual, thousands=self.written.thousands
        )
        distinct = dict.fromkeys(value for value, _ in found)
        if len(distinct) > _MOST_YES_NO and 2 * sum(n for _, n in found) > cells.total():
            return f"{min(distinct):.15g} to {max(distinct):.15g}"
        texts = Counter[str]()
        for cell, n in cells.items():
            texts[canonical_code(str(cell))] += n
        return f"{len(texts)} different texts" if is_free_text(texts) else with_counts(texts, 3)


def read_table(dataset: Dataset, features: Sequence[Feature], rows_of: bool) -> CountedTable:
    """Read the columns that features may have; ``rows_of``: those of rows of values too."""
    written = dataset.options.resolved()
    try:
        return _read_as(dataset, features, rows_of, written)
    except DataError as error:
        tries: list[dict[str, Any]]
        if error.rule == "sheet" and not written.sheet:
            tries = [{"sheet": (name,)} for name in sheets_with_rows(Path(dataset.source))]
        elif error.rule == "encoding" and written.encoding is None:
            tries = [{"encoding": name} for name in _encodings(Path(dataset.source))]
        else:
            raise
        if not tries:
            raise
    tables: list[CountedTable] = []
    for each in tries:
        try:
            tables.append(_read_as(dataset, features, rows_of, written.model_copy(update=each)))
        except DataError:  # each encoding lacks some bytes, and sheets may have no columns
            if each == tries[-1] and not tables:
                raise
    # The first of those that show most names like a feature's.
    n_like = [sum(_is_like(name, features, rows_of) for name in each.columns) for each in tables]
    table = tables[n_like.index(max(n_like))]
    if "sheet" in tries[0]:
        sheet = as_toml(*table.written.sheet)
        parts = [of for of, n in zip(tables, n_like, strict=True) if 2 * n >= max(n_like)]
        names = list_names([as_toml(*each.written.sheet) for each in parts])
        said = f"only the rows of {sheet} are read, and {names} have such columns"
        if len(parts) == 1:
            others = list_names([as_toml(*each["sheet"]) for each in tries])
            said = f"{others} have rows: is {sheet} the sheet?"
        elif all(each.header == table.header for each in parts):
            every = {"sheet": tuple(each.written.sheet[0] for each in parts)}
            table = _read_as(dataset, features, rows_of, written.model_copy(update=every))
            said = f"the rows of {names} are read, which have the same columns"
        table.notes.append(said)
    elif len(tries) > 1:
        texts = itertools.chain(table.header, *table.columns.values())
        odd = next((text for text in texts if not str(text).isascii()), "ä")
        table.notes.append(
            f"the file is not in UTF-8: is {as_toml(odd)} right with {table.written.encoding}? If "
            "not, give encoding= (--encoding)"
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
) -> CountedTable:
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
        f"the header names {as_toml(name)} twice" for name, n in times.items() if name and n > 1
    ]
    # Every column may fit by its values; of a wide table those that fit by name are read.
    every = len(reader.header) <= _MOST_COLUMNS
    names = [
        name
        for name in reader.header
        if name and times[name] == 1 and (every or _is_like(name, features, rows_of))
    ]
    table = CountedTable(reader.header, {}, written, reader.textual, notes)
    table.read(reader, names)
    return table


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
    if top and isinstance(reader, ExcelReader) and sum(map(bool, texts[top - 1])) > 1:
        # A name may stand in a cell that is merged with the one above.
        names = [a or b for a, b in zip(names, texts[top - 1], strict=True)]
        gaps = names != texts[top]
    if top:
        first, end = rows[0][0], rows[top][0]
        above = f"{unit}s {first} to {end - 1} are" if end - first > 1 else f"{unit} {first} is"
        notes.append(f"{above} taken as a title, and {unit} {end} as the header")
    if len(rows) > top + 2 and not any(map(is_value, cells[top + 1])):
        pairs = list(zip(names, texts[top + 1], strict=True))
        below = [b for _, b in pairs if b]
        if 2 * sum(map(says_unit, below)) > len(below):
            names, last = [f"{a} [{b}]" if b else a for a, b in pairs], top + 1
        elif isinstance(reader, ExcelReader) and any(b > a == "" for a, b in pairs):
            names, last = [b or a for a, b in pairs], top + 1
    if isinstance(reader, ExcelReader):
        gaps = gaps or any(
            not name and not all(is_blank(row[place]) for row in cells[last + 1 :])
            for place, name in enumerate(names)
        )
        if last > top or gaps:
            from openpyxl.utils import get_column_letter

            letters = (f"{UNNAMED}{get_column_letter(place + 1)}" for place in range(width))
            names = [a or b for a, b in zip(names, letters, strict=True)]
    if last > top or gaps:
        notes[:] = ["the header has two rows or gaps"]
    if notes:
        notes[0] += f": are the columns' names {list_names([*map(as_toml, names)])}?"
    if last > top or gaps:
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
        if key in found or len(found) < MOST_CELLS or looks_missing(str(key)):
            found[key] += 1
        else:
            whole = False
    return whole


# --- which column ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Match:
    """The column of a feature: how well its name fits, and others that fit as well.

    A score of 0: only its values fit; -1: so little that the column is proposed, not taken.
    ``chosen``: a person named the column. ``unit``: the unit that a person named.
    """

    column: str
    score: int
    others: tuple[str, ...] = ()
    chosen: bool = False
    unit: str = ""


def match_by_name(features: Sequence[Feature], table: CountedTable) -> dict[str, Match | None]:
    """Return the column of each feature; a column is used once, where its name fits best."""
    scores = {
        (feature.name, name): (score, _fit(feature, table, name))
        for feature in features
        for name in table.columns
        if (score := likeness(feature.name, name))
    }
    found: dict[str, Match | None] = {feature.name: None for feature in features}
    used: set[str] = set()
    # Equal ones keep the order of the session and of the table.
    for (feature, name), (score, fit) in sorted(scores.items(), key=lambda e: [-x for x in e[1]]):
        if found[feature] is None and name not in used and (score > 1 or fit > _FITTING):
            rivals = (
                other for (own, other), each in scores.items()
                if own == feature and other != name and each[0] == score
            )  # fmt: skip
            found[feature] = Match(name, score, tuple(rivals))
            used.add(name)
    return found


def match_by_values(
    features: Sequence[Feature], matched: dict[str, Match | None], table: CountedTable
) -> None:
    """Match features without a column to columns that no name fits, by units and codes."""
    used = {match.column for match in matched.values() if match}
    fits = {
        (each.name, name): fit
        for each in features
        for name in table.columns
        if matched[each.name] is None and name not in used
        if not (has_other_span(each.name, name) or is_another(each.name, name) or is_birth(name))
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
            matched[own] = Match(best[0], 0 if taken else -1, tuple(best[1:]))
            used |= {best[0]} if taken else set()


def _values_fit(feature: Feature, table: CountedTable, name: str) -> int:
    """Return how well values fit a feature: 2 by unit and bounds or telling codes, 1 by yes/no."""
    cells = table.columns[name]
    if feature.kind != "numeric":
        codes, _ = count_codes(feature, cells)
        if is_death(feature.name) and any(map(death_of, codes)):
            return 2 * (len(codes) <= _MOST_YES_NO)
        present = [code for code in codes if not looks_missing(code)]
        if len(present) > MOST_CODES + len(feature.levels or ()):
            return 0  # Names, dates or numbers; each code would be compared with all others.
        known = [level_of(feature, code, codes, Match(name, 1)) is not None for code in present]
        if {"male", "female"} <= set(meanings_of(codes, name).values()):
            return 2 * any(known)
        return (1 + (feature.kind != "binary")) * (len(present) > 1 and all(known))
    return 2 * (_conversion(feature, name) is not None and _fit(feature, table, name) > 0.9)


def _conversion(feature: Feature, name: str) -> tuple[float, float] | None:
    unit = split_unit(name)[1]
    return conversion(feature.name, name, unit, feature.unit) if unit else None


def _fit(feature: Feature, table: CountedTable, name: str) -> float:
    """Return the share of a column's cells that a feature could have."""
    cells = table.columns[name]
    if feature.kind != "numeric":
        codes, _ = count_codes(feature, cells)
        usual = usual_codes(codes, feature)
        levels = {code: level_of(feature, code, usual, Match(name, 4)) for code in usual}
        known = sum(n for code, n in usual.items() if levels[code] is not None)
        most = _MOST_YES_NO if feature.kind == "binary" else MOST_CODES
        return (known / max(1, codes.total()) + (len(codes) <= most)) / 2
    values = max((count_numbers(cells, mark, table.textual)[0] for mark in ".,"), key=len)
    lower, upper = limits(feature)
    factor, offset = _conversion(feature, name) or (1.0, 0.0)
    inside = sum(n for value, n in values if lower <= value * factor + offset <= upper)
    given = sum(n for cell, n in cells.items() if not is_missing(cell))
    return (inside + sum(n for _, n in values)) / max(1, 2 * given)


def may_be(feature: Feature, table: CountedTable, name: str) -> bool:
    """Return whether a column's values do not exclude that it is a feature."""
    other = has_other_span(feature.name, name) or is_another(feature.name, name)
    if other or is_birth(name):
        return False
    if feature.kind == "numeric":
        unit = split_unit(name)[1]
        other = bool(feature.unit) and is_unit(unit) and not may_become(unit, feature.unit)
        return not other and _fit(feature, table, name) > _FITTING
    # Few codes alone say nothing: wards have few names, too.
    codes, _ = count_codes(feature, table.columns[name])
    numbers = len(codes) <= _MOST_YES_NO and all(code.isdecimal() for code in codes)
    as_many = len(codes) == len(feature.levels or ())
    return numbers or as_many or _fit(feature, table, name) > 0.5


def is_somewhat_like(feature: Feature, name: str, table: CountedTable) -> bool:
    """Return whether a column of few codes has a name that is somewhat like a feature's."""
    few = len(count_codes(feature, table.columns[name])[0]) <= MOST_CODES
    return few and similarity(feature.name, name) > _SOMEWHAT_SIMILAR


def is_missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and cell.casefold() in MISSING)


def count_numbers(
    cells: Counter[Any], mark: str, textual: bool, **read: Any
) -> tuple[list[tuple[float, int]], dict[tuple[str, str], list[Any]]]:
    """Return a column's numbers with their counts, and its other cells by what is wrong."""
    distinct = list(cells)
    rule = ColumnRule(coded=False, decimal_mark=mark, **read)
    decoder = Decoder(rule, textual=textual)
    decoded = decoder(distinct)
    values = Counter[float]()  # 99 and 99,0 are one
    for value, cell in zip(decoded.values.tolist(), distinct, strict=True):
        if value == value:
            values[value] += cells[cell]
    return [*values.items()], {
        why: [distinct[i] for i in rows] for why, rows in decoded.wrong.items()
    }


def count_read(
    cells: Counter[Any], file: ColumnsFile, own: ColumnMap, textual: bool
) -> tuple[list[tuple[float, int]], dict[tuple[str, str], list[Any]]]:
    """Return what :func:`count_numbers` does, as a mapping file reads the column."""
    markers, sentinels = frozenset((*file.missing, *own.missing)), frozenset(own.sentinels)
    read = {"values": own.values, "forms": own.forms, "thousands": file.thousands}
    return count_numbers(cells, file.decimal, textual, markers=markers, sentinels=sentinels, **read)


def count_codes(feature: Feature, cells: Counter[Any]) -> tuple[Counter[str], Counter[str]]:
    """Return a column's codes with their counts, and the cells that are read as missing."""
    levels = feature.levels or ()
    spelled = {level.casefold() for level in levels}
    codes: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    for cell, n in cells.items():
        text = "" if cell is None else str(cell)
        empty = is_missing(cell) and text.casefold() not in spelled
        (missing if empty else codes)[text if empty else canonical_code(text)] += n
    return codes, missing


def usual_codes(codes: Counter[str], feature: Feature) -> dict[str, int]:
    """Return the commonest codes: to compare each of many names with all others takes long."""
    return dict(codes.most_common(MOST_CODES + len(feature.levels or ())))


def level_of(feature: Feature, code: str, codes: Collection[str], match: Match) -> str | int | None:
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
    # As GOLD B in a column GOLD.
    said = {*folded(match.column).split(), *folded(feature.name).replace("_", " ").split()}
    plain = " ".join(word for word in folded(code).split() if word not in said)
    same = [level for level in levels if folded(level) in (folded(code), plain)]
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
    own = {rank_of(each) for each in codes if not (looks_missing(each) or each in levels)}
    if None in ranks or not own - {None} <= set(ranks):
        return []
    return [level for level, rank in zip(levels, ranks, strict=True) if rank == rank_of(code)]
