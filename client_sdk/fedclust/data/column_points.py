"""What is said and to be decided about the column of each feature, for a suggested mapping."""

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedclust.data.advice import (
    as_toml,
    bounds_text,
    is_free_text,
    list_names,
    mapping_key,
    setting_lines,
    with_counts,
)
from fedclust.data.column_match import (
    MOST_CELLS,
    MOST_CODES,
    POINTED,
    THREE_DIGITS,
    UNNAMED,
    CountedTable,
    Match,
    count_codes,
    count_numbers,
    count_read,
    is_somewhat_like,
    level_of,
    may_be,
    usual_codes,
)
from fedclust.data.decode import looks_like_a_value
from fedclust.data.known_names import (
    cell_unit,
    conversion,
    death_of,
    fits_person,
    fits_time,
    fits_value,
    folded,
    in_brackets,
    in_mmhg,
    is_absent_text,
    is_contrary,
    is_death,
    is_diastolic,
    is_time,
    is_unit,
    legend_of,
    likeness,
    looks_missing,
    may_become,
    may_mean_no,
    meanings_of,
    other_units,
    rank_of,
    same_measure,
    similarity,
    split_unit,
    time_unit_of,
    with_two_units,
)
from fedclust.data.mapping import ColumnMap, ColumnsFile
from fedclust.data.readings import FeatureReading, limits
from fedclust.data.text_forms import NumberFormat, are_thousands_apart, combined, forms_of
from fedclust.schema.display import counted
from fedclust.schema.feature import Feature, Trajectory

#: Values may have another unit if this share of them is within the bounds in it.
_NEARLY_ALL: Final = 0.98
#: So many columns are named at most, of so many with the most similar names.
_MOST_NEAR: Final = 4
_MOST_TRIED: Final = 20
#: At least so many different numbers within the bounds are in another unit than the others.
_LEAST_APART: Final = 3
#: So many different numbers beyond the bounds are listed.
_MOST_BEYOND: Final = 40
#: At the end of a header; in other words min is a minimum.
_MINUTES: Final = re.compile(r"[ _(\[]min\.?[)\]]?$")
_DEGREES: Final = re.compile("(?:[ _(\\[]|(?<=[a-z]))([FCK])[)\\]]?$|[ _]([fck])$")
_FLAGS: Final = frozenset("?*!+")
#: Halves and quarters in one character.
_PARTS_OF_ONE: Final = {"½": "5", "¼": "25", "¾": "75"}
_ABOUT: Final = "ca|circa|approx|aprox|env|about|cca|ung|ok"
_ABOUT_BEHIND: Final = re.compile(rf"\d+(?:[.,]\d+)? ?(?:{_ABOUT})\.?", re.IGNORECASE)
#: A number with a sign, a unit or a remark: ``<0.3``, ``> 35000 pg/ml``, ``172 (lying)``, ``7/10``.
#: A number before other text, such as ``120/80`` or ``85 (4l O2)``; not a date or a range.
_FIRST_NUMBER: Final = re.compile(
    rf"(?:(?:{_ABOUT}|n)\b\.? ?|[~≈] ?)?"
    r"(\d+)(?:([.,])(\d+))?(?! ?[\d.,:+*x×–-]|/1[02]$).*",
    re.IGNORECASE,
)
_NUMBER_AND_WORD: Final = re.compile(r"(\d+(?:[.,]\d+)?) ?([^\W\d]+\.?)")
_WORDS_BEHIND: Final = re.compile(r"\d+(?:[.,]\d+)? ?([^\W\d]+)\.?(?: [^\d]+)")
#: Hours and minutes; a workbook's times of a day and more have days.
_CLOCK: Final = re.compile(r"(?:(\d+) days?, )?(\d+)(?::| ?h ?)(\d\d)(?::\d\d)?")
_RANGE: Final = re.compile(r"(-?\d+) ?(?:[–-]|à|to|bis|a) ?(-?\d+)")
_NUMBER: Final = re.compile(r"([<>≤≥]?)=?\s*(\d+)(?:([.,])(\d+))?\s*(\([^\d()]*\)|/\d+|\D{0,8})")


@dataclass(frozen=True)
class Point:
    """Something that is said, or to be decided, about the column of a feature.

    Attributes
    ----------
    why : str
        What is to be looked at; empty for settings that need no look.
    mark : str
        ``to do``, ``uncertain``, or empty if it needs no look.
    settings : mapping of str to object
        Proposed settings of the feature's section; one of None is to be filled in.
    taken : bool
        Whether the settings count as long as nobody changes them.
    choices : sequence of (str, mapping)
        What each of several proposals means, and its settings; one is to be chosen.
    levels : mapping of str to (str, int or None)
        The level of each code; None if it is to be said.
    counts : Counter of str
        How many rows have each code, or each text in a column of numbers.
    own : bool
        Whether these texts are numbers, which are read as they are.
    """

    why: str = ""
    mark: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    taken: bool = False
    choices: Sequence[tuple[str, Mapping[str, Any]]] = ()
    levels: Mapping[str, str | int | None] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter, repr=False)
    own: bool = False

    @property
    def known_levels(self) -> dict[str, str | int]:
        return {code: level for code, level in self.levels.items() if level is not None}

    def lines(self) -> list[str]:
        """Return the point's lines in a mapping file, without those of codes."""
        before = "" if self.taken else "# "
        said = [f"# {self.mark}{': ' * bool(self.mark)}{self.why}"] if self.why else []
        said += [before + line for line in setting_lines(self.settings)]
        for means, settings in self.choices:
            said += [f"# {line}  # {means}" for line in setting_lines(settings)]
        return said


@dataclass
class Section:
    """How one feature is read: the column, and the points about it."""

    feature: Feature
    match: Match | None
    points: list[Point]
    written: NumberFormat

    def note(
        self,
        why: str,
        settings: Mapping[str, Any] | None = None,
        *,
        mark: str = "uncertain",
        taken: bool = False,
    ) -> None:
        """Add what is to be looked at, with the settings that it proposes."""
        self.points.append(Point(why, mark, settings or {}, taken))

    def remark(self, why: str) -> None:
        self.points.append(Point(why))

    def set(self, **settings: Any) -> None:
        """Add settings that need no look."""
        self.points.append(Point(settings=settings, taken=True))

    def drop(self, *names: str) -> None:
        """Take back settings of all points."""
        self.points = [
            dataclasses.replace(
                each, settings={a: b for a, b in each.settings.items() if a not in names}
            )
            for each in self.points
        ]

    def scale(self, factor: float) -> None:
        """Multiply what units in cells are, as after another unit of the column."""
        for place, each in enumerate(self.points):
            if forms := each.settings.get("forms"):
                scaled = {form: (np.array(of) * factor).tolist() for form, of in forms.items()}
                settings = {**each.settings, "forms": scaled}
                self.points[place] = dataclasses.replace(each, settings=settings)

    def answer(self, place: int, point: Point) -> None:
        """Replace a point by what a person says, which decides others about the same settings.

        Texts and numbers of several points are read as each point says.
        """
        said = {name for name, value in point.settings.items() if not _is_many(value)}
        for other, each in enumerate(self.points):
            if said & {*each.settings}:
                left = {name: of for name, of in each.settings.items() if name not in said}
                self.points[other] = dataclasses.replace(each, why="", mark="", settings=left)
        self.points[place] = point

    def settle(self) -> None:
        """Take what is uncertain as it is proposed; what is to do stays."""
        self.points = [
            dataclasses.replace(each, why="", mark="", settings=each.settings if each.taken else {})
            if each.mark == "uncertain"
            else each
            for each in self.points
        ]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that count as long as nobody changes them."""
        found: dict[str, Any] = {}
        for point in self.points:
            for name, value in point.settings.items() if point.taken else ():
                before = found.get(name)
                if isinstance(before, Mapping):
                    found[name] = {**before, **value}
                elif isinstance(before, list):
                    found[name] = [*dict.fromkeys([*before, *value])]
                else:
                    found[name] = value
        return self._with_forms(found)

    def _with_forms(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings with forms in place of texts, so that they hold for other rows, too."""
        gone, values = settings.get("missing", ()), settings.get("values", {})
        texts = {
            text: number
            for text, number in {**dict.fromkeys(gone), **values}.items()
            if self.feature.kind == "numeric" and self.written.number(text) is None
        }
        known = {
            form: tuple(np.atleast_1d(of).tolist())
            for form, of in settings.get("forms", {}).items()
        }
        forms, others = forms_of(texts, self.written, known)
        wrong = {self.written.split(text)[0] for text in others}
        said = {
            "missing": [text for text in gone if text in others or text not in texts],
            "values": {a: of for a, of in values.items() if a in others or a not in texts},
            "forms": {
                form: of[0] if len(of) == 1 else [*of]
                for form, of in {**known, **forms}.items()
                if form not in wrong
            },
        }
        return {name: of for name, of in {**settings, **said}.items() if of or name not in said}

    @property
    def marked(self) -> list[Point]:
        """What is to be looked at."""
        return [each for each in self.points if each.mark]

    def lines(self) -> list[str]:
        """Return the section as lines of a mapping file."""
        key = f"features.{mapping_key(self.feature.name)}"
        lines, left = [f"[{key}]"], self.settings
        for each in self.points:
            given = self._with_forms(each.settings)
            if each.taken:  # a setting has one line, at the first point with it
                given = {name: left.pop(name) for name in given if name in left}
            lines += dataclasses.replace(each, settings=given).lines()
        lines += setting_lines(left)
        for each in self.points:
            if each.levels:
                lines.append(f"[{key}.levels]")
            if None in each.levels.values():
                asked = ", ".join(map(as_toml, self.feature.levels or (0, 1)))
                lines.append(f'# write one of {asked} for each code, or "" for a missing value:')
            for code, level in each.levels.items():
                line = f"{as_toml(code)} = {'' if level is None else as_toml(level)}"
                lines.append(f"{'# ' * (level is None)}{line}  # {each.counts[code]}")
        return [*lines, ""]


def _is_many(value: Any) -> bool:
    """Return whether a setting is about texts or numbers, one by one."""
    return isinstance(value, Mapping | list)


@dataclass(frozen=True)
class _Column:
    """A feature's name, its column, the column's unit, how its numbers are written, their signs."""

    feature: str
    name: str
    unit: str
    mark: str
    thousands: bool
    signed: bool


class ColumnJudge:
    """Judges how the columns of a table are read as features."""

    def __init__(self, table: CountedTable) -> None:
        self._table = table

    def section(
        self, feature: Feature, match: Match | None, of: Trajectory | None, used: Collection[str]
    ) -> Section:
        """Return the section of a feature, or of a trajectory in rows; ``used`` are taken."""
        written = self._table.written
        found = Section(feature, match, [], NumberFormat(written.decimal, written.thousands))
        if match is None or match.score < 0:
            self._propose_columns(found, match, used)
            names = [] if found.match is None else [found.match.column, *found.match.others]
            if len(names) != 1 or (match is None and feature.kind == "numeric"):
                if feature.levels:
                    found.remark(f"its levels: {', '.join(map(as_toml, feature.levels))}")
                return found
        else:
            self._take_column(found, match, of, used)
        assert found.match is not None  # noqa: S101  (a single column is proposed or taken)
        cells = self._table.columns[found.match.column]
        if feature.kind == "numeric":
            self._add_number(found, found.match, cells)
        else:
            self._add_codes(found, found.match, cells)
        return found

    def _propose_columns(
        self, section: Section, match: Match | None, used: Collection[str]
    ) -> None:
        """Propose columns for a feature without one: by their values, or those that may be it."""
        feature, why = section.feature, "no column here is called like it"
        if match is not None:
            names = [match.column, *match.others][:_MOST_NEAR]
            why += f"; by its values it may be {list_names([*map(as_toml, names)])}"
        else:
            free = (name for name in self._table.columns if name not in used)
            tried = sorted(free, key=lambda name: -_nearness(feature, name))[:_MOST_TRIED]
            names = [each for each in tried if may_be(feature, self._table, each)][:_MOST_NEAR]
            if not names and feature.kind != "numeric":
                like = (each for each in tried if is_somewhat_like(feature, each, self._table))
                names = [*itertools.islice(like, 1)]
            if names:
                why += f"; may it be {' or '.join(map(as_toml, names))}?"
        section.match = Match(names[0], -1, tuple(names[1:])) if names else None
        choices = [(self._table.contents(name), {"column": name}) for name in names]
        point = Point(why, "to do", choices=choices)
        if not names:
            point = Point(why, "to do", {"column": "NAME HERE"})
        section.points.append(point)

    def _take_column(
        self, section: Section, match: Match, of: Trajectory | None, used: Collection[str]
    ) -> None:
        """Add the column of a feature, and what is uncertain about it."""
        feature, name, table = section.feature, match.column, self._table
        numeric = feature.kind == "numeric"
        column = {"column": name}
        if match.score == 0:
            why = f"no column here is called like it; by its values it may be {as_toml(name)}"
            section.note(why, column, taken=True)
        elif match.score == 1:
            said = self._range_text(table.columns[name]) if numeric else ""
            section.note(f"is {as_toml(name)} this column?{said}", column, taken=True)
        else:
            section.set(column=name)
        if of is not None and fits_value(name):
            section.note("is every value in it of this measurement?")
        if of is not None:
            self._add_places(section, of, used)
        if match.others:
            section.note(f"it may be {list_names([*map(as_toml, match.others)])} too")
        if name in table.cut:
            section.note(f"only its first {MOST_CELLS:,} different cells are judged")
        right = table.header.index(name) + 1
        if not match.chosen and "".join(table.header[right : right + 1]).startswith(UNNAMED):
            section.note("the column to its right has no name: is this the right one?")
        unit = split_unit(name)[1] if numeric else ""
        also = {
            each
            for each in in_brackets(name)
            if each not in ("", unit) and not all(meanings_of(each.split("/")).values())
            if likeness(feature.name, each) < 2
        }
        if also and match.score < 4 and not match.chosen:
            said = list_names([*map(as_toml, sorted(also))])
            section.note(f"its header says {said}, too: is it the right measurement?")

    def _add_places(self, section: Section, of: Trajectory, used: Collection[str]) -> None:
        """Add the columns of persons and of times, and the unit of these."""
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
                why = f"which column is the {setting}?"
                section.note(why, {setting: "NAME HERE"}, mark="to do")
                continue
            if setting == "person":
                section.remark("give person= (--person-column) too")
            section.set(**{setting: found[0]})
            rivals = [name for name in found[1:] if fits(name) == fits(found[0])]
            if fits(found[0]) == 1:
                section.note(f"is {as_toml(found[0])} the {setting}?")
            if rivals:
                also = list_names([*map(as_toml, rivals)])
                section.note(f"the {setting} may be {also} too")
            if setting == "time":
                self._add_times(section, of, found[0], free[found[0]])

    def _add_times(
        self, section: Section, of: Trajectory, column: str, cells: Counter[Any]
    ) -> None:
        """Add the factor of times; mark what is no number, and a unit that is not known."""
        values, wrong = count_numbers(cells, self._table.written.decimal, self._table.textual)
        for _, message in wrong:
            said = f"its times: {message.partition(';')[0]}; they are numbers, such as days since"
            section.note(f"{said} admission")
        unit = time_unit_of(column)
        found = conversion("", "", unit, of.time_unit)
        if found is None or not (unit and of.time_unit):
            asked = as_toml(of.time_unit) if of.time_unit else "the session"
            section.note(f"in which unit are its times, for {asked}?", {"time_factor": 1.0})
        elif found[0] != 1:
            section.set(time_factor=found[0])
        window, factor = of.window or 0.0, 1.0 if found is None else found[0]
        near = (
            of.grid and of.grid[0] - window <= value * factor <= of.grid[-1] + window
            for value, _ in values
        )
        if of.grid and values and not any(near):
            section.note("no time lies near the grid: is their unit right?")

    def _range_text(self, cells: Counter[Any]) -> str:
        found, _ = count_numbers(cells, self._table.written.decimal, self._table.textual)
        values = [value for value, _ in found]
        return f" Its values: {min(values):g} to {max(values):g}" if values else ""

    def _add_number(self, section: Section, match: Match, cells: Counter[Any]) -> None:
        feature, table, column = section.feature, self._table, match.column
        mark, thousands = table.written.decimal, table.written.thousands
        found, wrong = count_numbers(cells, mark, table.textual, thousands=thousands)
        _add_missing(section, count_codes(feature, cells)[1])
        said = match.unit or split_unit(column)[1]
        factor, offset = _add_unit(section, column, said)
        unit = section.settings.get("unit") or (said if is_unit(said) else feature.unit)
        signed = limits(feature)[0] < 0
        given = table.written.features.get(feature.name, ColumnMap()).sentinels
        if given:
            section.set(sentinels=[*given])
            found = [(value, n) for value, n in found if value not in given]
        if found:
            own = np.array([value for value, _ in found])
            counts = np.array([n for _, n in found])
            values = own * factor + offset
            absent, no_values = _absent(
                *(own, counts, _outside(feature, values), limits(feature)[0])
            )
            if absent.any():
                codes = {f"{value:.15g}": value for value in own[absent].tolist()}
                said = with_counts(Counter(dict(zip(codes, counts[absent].tolist(), strict=True))))
                taken = no_values and not given
                why = "seem to be codes, read as missing" if taken else "may mean a missing value"
                settings = {"sentinels": [*given, *map(_plain, codes.values())]}
                section.note(f"these numbers {why}: {said}", settings, taken=taken)
            here = _Column(feature.name, column, unit, mark, thousands, signed)
            kept = np.flatnonzero(~absent)
            beyond = _outside(feature, values[kept])
            kept = kept[~_read_apart(section, here, own[kept], counts[kept], beyond)]
            other = _judge_bounds(section, column, own[kept], values[kept], counts[kept], mark)
            unit = other or unit
            self._judge_marks(section, cells, found)
        texts: dict[str, Counter[str]] = {}
        for (_, why), unread in wrong.items():
            counts_of = texts.setdefault(why.partition(";")[0], Counter())
            counts_of.update({str(cell): cells[cell] for cell in unread})
        here = _Column(feature.name, column, unit, mark, thousands, signed)
        if not self._add_texts(section, here, texts) and not found:
            section.note("the column has no number")

    def _add_texts(
        self, section: Section, here: _Column, texts: Mapping[str, Counter[str]]
    ) -> bool:
        """Add how texts in numbers are read, by what is wrong; return whether some are read."""
        every = sum(texts.values(), Counter[str]())
        of_cells = _values_of(every, here)[1]
        units = {name: factor for name, factor in of_cells.items() if factor}
        forms = _forms(every, units, section.written)
        if units:
            shown = [next(text for text in every if _unit_behind(text) == name) for name in units]
            how = "read as numbers"
            if any(factor != 1 for factor in units.values()):
                how = f"converted to {here.unit or 'the unit here'}"
            said = f"cells such as {list_names([*map(as_toml, shown)])} are {how}"
            section.note(said, {"forms": forms}, taken=True)
        left = {
            why: Counter(
                {t: n for t, n in each.items() if section.written.split(t)[0] not in forms}
            )
            for why, each in texts.items()
        }
        listed = sum(left.values(), Counter[str]())
        # Of 120/80 another number may be meant.
        numbers = {text for text in _values_of(listed, here)[0] if "/" not in text}
        taken = all(is_absent_text(text) or text in numbers for text in listed)
        texts_said = []
        for why, each in left.items():
            how = "as below" if numbers & {*each} else "as missing"
            if each:
                texts_said.append(f"{why}{f', read {how}' * taken}: {with_counts(each)}")
        if texts_said:
            settings = _text_settings(listed, here, section.written)
            numbers |= {*settings.get("values", ())}
            marked = "uncertain" if taken else "to do"
            section.points.append(
                Point("; ".join(texts_said), marked, settings, taken, counts=listed)
            )
        return bool(units or numbers)

    def _judge_marks(
        self, section: Section, cells: Counter[Any], found: Sequence[tuple[float, int]]
    ) -> None:
        """Mark numbers whose marks may separate thousands."""
        mark = self._table.written.decimal
        if apart := next(filter(are_thousands_apart, map(str, cells)), ""):
            section.note(f"{as_toml(apart)} is read as one number, with separated thousands")
        spelled = [cell for cell in cells if isinstance(cell, str) and POINTED.fullmatch(cell)]
        threes = [*filter(THREE_DIGITS.fullmatch, spelled)]
        read, _ = count_numbers(Counter(threes), mark, textual=True)
        # As 1.234 among 850.5 and 2.345: far below the others, if these are decimals.
        largest = max((abs(value) for value, _ in read), default=np.inf)
        far_below = largest < np.median(np.abs([value for value, _ in found])) / 10
        if self._table.written.thousands or not read:
            return
        if len(threes) == len(spelled) or far_below:
            section.note("are its marks decimal marks? They may separate thousands")

    def _add_codes(self, section: Section, match: Match, cells: Counter[Any]) -> None:
        feature = section.feature
        codes, missing = count_codes(feature, cells)
        for text in [*filter(may_mean_no, missing)]:
            codes[text] = missing.pop(text)  # it may mean no, or that there is no value
        _add_missing(section, missing)
        sorted_codes = _sort_codes(feature, codes, match)
        _, known, unknown = sorted_codes
        taken = match.score >= 0 and 0 < len(unknown) < len(codes)
        taken = taken and all(map(is_absent_text, unknown)) and not any(map(may_mean_no, unknown))
        if known:
            section.remark(f"codes of the session: {with_counts(known)}")
        if feature.kind == "binary" and missing and len(codes) == 1 and not unknown:
            section.note(
                f"only {as_toml(*codes)} is there: do the others mean that there is no value?"
            )
        point = _propose_levels(feature, codes, match.column, sorted_codes)
        why, mark = "", ""
        if feature.kind == "binary" and is_contrary(feature.name, match.column):
            why = f"{as_toml(match.column)} may say the opposite of it: {with_counts(codes)}"
            mark = "to do"
        elif taken:
            why, mark = f"codes, read as missing: {with_counts(unknown)}", "uncertain"
        elif unknown:
            why, mark = f"codes that are not known: {with_counts(unknown)}", "to do"
        section.points.append(dataclasses.replace(point, why=why, mark=mark, taken=taken))


def _nearness(feature: Feature, name: str) -> float:
    """Return how near a column's name is to a feature's; a unit that may be its own counts, too."""
    unit = split_unit(name)[1]
    fits = bool(unit and feature.unit) and is_unit(unit) and may_become(unit, feature.unit)
    return similarity(feature.name, name) + fits


def _plain(number: float) -> float | int:
    """Return a whole number as an integer."""
    return int(number) if number.is_integer() else number


def _add_missing(section: Section, missing: Counter[str]) -> None:
    if any(missing):  # more than empty cells
        section.remark(f"read as missing: {with_counts(missing)}")


def _add_unit(section: Section, column: str, unit: str) -> tuple[float, float]:
    """Add how the unit of a column becomes the session's; return factor, offset."""
    feature = section.feature
    degrees = _DEGREES.search(column)
    if degrees and feature.unit and conversion("", "", "°F", feature.unit):
        unit = f"°{(degrees[1] or degrees[2]).upper()}"
    if _MINUTES.search(column) and feature.unit and conversion("", "", "minutes", feature.unit):
        unit = "minutes"
    if not unit or same_measure(unit, feature.unit):
        return 1.0, 0.0
    percent = "%" in column and same_measure("%", feature.unit)  # as in FEV1 %pred (GLI)
    words = " " in unit and unit.replace(" ", "").isalpha()
    of_name = _joined(unit) in _joined(feature.name)  # as CKD-EPI of egfr_ckd_epi
    if not is_unit(unit) and (percent or words or of_name):
        return 1.0, 0.0
    if not feature.unit or not (is_unit(unit) or "/" in unit):
        asked = as_toml(feature.unit) if feature.unit else "no unit"
        settings = {"to": feature.unit, "factor": 1.0} if feature.unit else {}
        section.note(f"the header says {as_toml(unit)}, and the session {asked}", settings)
        return 1.0, 0.0
    found = conversion(feature.name, column, unit, feature.unit)
    if found is None:
        section.set(unit=unit)
        why = f"the header says {as_toml(unit)}, and the session {as_toml(feature.unit)}"
        section.note(why, {"to": feature.unit, "factor": None}, mark="to do")
        return np.nan, 0.0  # no number is outside the bounds then
    section.set(unit=unit, **_conversion_settings(feature, *found))
    return found


def _joined(name: str) -> str:
    return re.sub(r"[\W_]", "", folded(name))


def _conversion_settings(feature: Feature, factor: float, offset: float) -> dict[str, Any]:
    if offset:
        return {"to": feature.unit, "factor": factor, "offset": offset}
    return {"to": feature.unit, "factor": factor}


def _read_apart(
    section: Section,
    here: _Column,
    own: NDArray[np.float64],
    counts: NDArray[np.int64],
    beyond: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Read a few numbers far from the others in the unit that puts them among these.

    Such as 0.35 where the others are in percent: a spreadsheet shows both as 35 %. ``beyond`` are
    those outside the bounds. Return which numbers these are.
    """
    apart, none = np.zeros_like(beyond), np.zeros_like(beyond)
    order = np.argsort(own)[np.count_nonzero(own <= 0) :]
    gaps = own[order[1:]] / own[order[:-1]]
    if not len(gaps):
        return none
    place = int(np.argmax(gaps)) + 1
    few = min(order[:place], order[place:], key=lambda rows: int(counts[rows].sum()))
    apart[few] = True
    others = own[~apart]
    outside = bool(beyond[apart].all()) and counts[apart].sum() > 1
    if (len(few) < _LEAST_APART and not outside) or 3 * counts[apart].sum() > counts.sum():
        return none
    found = {}
    for unit, (factor, offset) in other_units(here.feature, here.unit).items():
        values = own[apart] * factor + offset
        # Far outliers may fit in some unit, too, so the gap is to be like the factor.
        like = max(factor, 1 / factor) ** (1 / 3 if outside else 1 / 2)
        if others.min() <= values.min() and values.max() <= others.max() and like <= gaps.max():
            found[unit] = np.median(values) - np.median(others), values
    if not found:
        return none
    to = section.feature.unit
    unit = min(found, key=lambda name: (abs(found[name][0]), not same_measure(name, to)))
    texts = [f"{value:.15g}".replace(".", here.mark) for value in own[apart].tolist()]
    asked = Counter(dict(zip(texts, counts[apart].tolist(), strict=True)))
    read = [float(f"{value:.12g}") for value in found[unit][1].tolist()]
    settings = {"values": dict(zip(texts, read, strict=True))}
    n = counted(asked.total(), "number")
    why = f"{n} far from the others, read as {unit}"
    section.points.append(Point(why, "uncertain", settings, True, counts=asked, own=True))
    return apart


def _judge_bounds(
    section: Section,
    column: str,
    own: NDArray[np.float64],
    values: NDArray[np.float64],
    counts: NDArray[np.int64],
    mark: str,
) -> str | None:
    """Mark values that are outside the bounds or very low in them, or may have another unit.

    Return the other unit if it is taken.
    """
    feature, match = section.feature, section.match
    said_unit = bool(split_unit(column)[1] or (match and match.unit))
    # KH-Tage 12M are days.
    words = re.split(r"[\W_]+", column)
    says_time = said_unit or any(same_measure(word, feature.unit) for word in words)
    lower, _ = limits(feature)
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
    elif total and lower == -np.inf and is_time(feature.unit) and not says_time:
        why = f"the session wants {feature.unit}; here are {own.min():.15g} to {own.max():.15g}"
    else:
        return None
    # No value can be one in the session's unit, and all fit in a single other one.
    single = len({(factor, offset) for _, factor, offset in others}) == 1
    taken = single and outside == total and not said_unit
    settings = {}
    if others:
        unit, *found = others[0]
        settings = {"unit": unit, **_conversion_settings(feature, *found)}
        why += f": read as {unit}" if taken else f": are they in {unit}?"
    elif feature.unit and "factor" not in section.settings and not 0 < 5 * outside < total:
        years = is_time(feature.unit) and 1900 < np.median(own) < 2100
        if years:
            why += "; for years of birth write -1 and the year of the ages, such as -1 2024"
        # Whole numbers without bounds hardly are in another unit, and are shown.
        if years or outside or lower > -np.inf or (own % 1).any():
            settings = {"to": feature.unit, "factor": 1.0}
    asked = Counter[str]()
    if beyond.sum() <= _MOST_BEYOND and not settings:
        texts = [f"{value:.15g}".replace(".", mark) for value in own[beyond].tolist()]
        asked.update(dict(zip(texts, counts[beyond].tolist(), strict=True)))
    section.points.append(Point(why, "uncertain", settings, taken, counts=asked, own=bool(asked)))
    return others[0][0] if taken else None


def find_texts(cells: Iterable[str], file: ColumnsFile, feature: str) -> Counter[str]:
    """Count the texts in a column of numbers that are not read; not dates."""
    own = file.features.get(feature, ColumnMap())
    texts = Counter(map(str.strip, cells))
    _, wrong = count_read(texts, file, own, textual=True)
    unread = [cell for each in wrong.values() for cell in each]
    # A workbook's numbers have a point here, whatever the mark of its texts is.
    return Counter({cell: texts[cell] for cell in unread if not looks_like_a_value(cell)})


def _is_limit(text: str) -> bool:
    return text[:1] in tuple("<>≤≥")


def _is_flag(unit: str, to: str) -> bool:
    """Return whether a mark behind a number is a laboratory's H for high, a doubt, or a limit."""
    return _FLAGS.issuperset(unit) or (unit in ("H", "L") and not may_become(unit, to))


def _values_of(
    texts: Iterable[str], here: _Column
) -> tuple[dict[str, float], dict[str, float | None]]:
    """Return the number of each text such as a limit or a grade, and units behind numbers.

    The number is half the limit of values below it, and the limit of values above it. A unit has
    its factor to that of the column, None if it is not known.
    """
    found, units = dict[str, float](), dict[str, float | None]()
    for text in texts:
        apart = rf"(?<=\d)\{',' if here.mark == '.' else '.'}(?=\d{{3}})"
        spelled = re.sub(apart, "", text) if here.thousands else text
        for sign, part in _PARTS_OF_ONE.items():
            spelled = re.sub(rf"(?<=\d) ?{sign}", f"{here.mark}{part}", spelled)
        parts = _NUMBER.fullmatch(spelled)
        other = parts is not None and parts[3] not in (None, here.mark)
        # Three digits after the other mark may be thousands.
        if parts and not (other and len(parts[4]) == 3):
            number, unit = float(f"{parts[2]}.{parts[4] or 0}"), parts[5].strip()
            if unit.startswith("/"):  # a score, or months
                if same_measure(here.unit, "years") and unit == "/12":
                    found[text] = float(f"{number / 12:.6g}")
                elif number <= int(unit[1:]):
                    found[text] = number
            elif parts[1] or unit.startswith("(") or _is_flag(unit, here.unit):
                plain = _is_flag(unit, here.unit) or not is_unit(unit)
                factor, offset = (1.0, 0.0) if plain else _cell_unit(unit, here)
                number = float(f"{number * factor + offset:.6g}")
                # In a unit that is not known it may mean anything.
                if factor:
                    found[text] = number / 2 if parts[1] in tuple("<≤") else number
            elif unit and not other:
                factor, offset = _cell_unit(unit, here)
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
        elif (rank := rank_of(text, alone=here.signed)) is not None:  # "rise 7" may be -7
            found[text] = float(rank)
    return found, units


def _cell_unit(unit: str, here: _Column) -> tuple[float, float]:
    """Return factor and offset from a unit in cells to the column's; a factor of 0 if unknown.

    In a column of Jahre J is that unit, though elsewhere it may be jours.
    """
    own = is_time(here.unit) and folded(here.unit).startswith(folded(unit).rstrip("."))
    return (1.0, 0.0) if own else cell_unit(here.feature, here.name, unit, here.unit)


def _text_settings(texts: Counter[str], here: _Column, written: NumberFormat) -> dict[str, Any]:
    """Return the settings that read texts without a unit that is known."""
    values, of_cells = _values_of(texts, here)
    durations = dict[str, tuple[float, ...]]()
    for text in texts:
        form, numbers = written.split(text)
        if weights := _duration(text, here, len(numbers)):
            durations[form], values[text] = weights, combined(weights, numbers)
    # In a column without a unit a single one behind its numbers is that of the column.
    units = dict.fromkeys(of_cells, 1.0) if len(of_cells) == 1 and not here.unit else {}
    others = {
        text: n
        for text, n in texts.items()
        if not (text in values or _is_limit(text) or _unit_behind(text) in units)
        if not looks_like_a_value(text)
    }
    likely = {text: of for text in others if (of := _likely_number(text, here)) is not None}
    # A word behind a number of days or the like may be a unit, as in 5 J.
    asked = [
        text
        for text in others
        if is_time(here.unit) and text[:1].isdecimal() and "(" not in text
        if not (_RANGE.fullmatch(text) or _ABOUT_BEHIND.fullmatch(text))
        if not ((words := _WORDS_BEHIND.fullmatch(text)) and not is_time(words[1]))
    ]
    values |= {text: of for text, of in likely.items() if text not in asked}
    others = {text: n for text, n in others.items() if text not in (*likely, *asked)}
    settings: dict[str, Any] = {}
    # Free text may name persons.
    if others and not is_free_text(Counter(others)):
        settings["missing"] = [*others]
    if values:
        settings["values"] = values
    if forms := durations | _forms(texts, units, written):
        settings["forms"] = forms
    return settings


def _forms(
    texts: Iterable[str], units: Mapping[str, float], written: NumberFormat
) -> dict[str, tuple[float, ...]]:
    """Return the factor of each form of numbers with one of these units behind."""
    found = dict[str, tuple[float, ...]]()
    for text in texts:
        if (unit := _unit_behind(text)) in units:
            form, _ = written.split(text)
            number = written.number(text.removesuffix(unit).rstrip())
            # 1.244 kg is another form than 12 kg: its mark is a decimal mark, or is to be asked.
            if not (doubtful := form[2:5] == "000") or number is not None:
                found[form] = (units[unit] / 1000 if doubtful else units[unit],)
    return found


def _duration(text: str, here: _Column, n_numbers: int) -> tuple[float, ...]:
    """Return the weights of the numbers of a time such as ``2 days 17 h`` or ``00:45:00``.

    In the unit of a column of times; none for another text.
    """
    pairs = _NUMBER_AND_WORD.findall(text)
    units = [word for _, word in pairs]
    if units == ["y", "m"]:
        units[1] = "months"
    if clock := _CLOCK.fullmatch(text):
        units = ["days", "hours", "minutes", "seconds"][clock[1] is None :][:n_numbers]
    elif len(pairs) < 2 or _NUMBER_AND_WORD.sub("", text).strip():
        return ()
    factors = [_cell_unit(unit, here)[0] for unit in units] if is_time(here.unit) else [0.0]
    return tuple(factors) if all(factors) and len(factors) == n_numbers else ()


def _likely_number(text: str, here: _Column) -> float | None:
    """Return the middle of ``30-40``, the first number of ``120/80`` and 160-85; of 180 cm none."""
    if span := _RANGE.fullmatch(text):
        first, second = int(span[1]), int(span[2])
        lower = second if is_diastolic(here.feature) else first
        return (first + second) / 2 if first < second else lower
    found, whole = _FIRST_NUMBER.fullmatch(text), _NUMBER.fullmatch(text)
    if not found or found[2] not in (None, here.mark) or (whole and is_unit(whole[5])):
        return None
    number = float(f"{found[1]}.{found[3] or 0}")
    if (behind := re.search(r"(?<=/) ?\d+", text)) and is_diastolic(here.feature):
        number = float(behind[0])
    return in_mmhg(number, here.unit) if "/" in text else number


def _unit_behind(text: str) -> str:
    """Return the unit behind the number that a text is; "" without one."""
    found = _NUMBER.fullmatch(text)
    return "" if found is None or found[1] else found[5].strip()


def _propose_levels(
    feature: Feature,
    codes: Counter[str],
    column: str,
    sorted_codes: tuple[Mapping[str, str | int], Counter[str], Counter[str]],
) -> Point:
    """Return the levels of codes, and what else is proposed.

    A yes/no column whose codes have two sides gets a choice for each way to read it.
    """
    sure, known, unknown = sorted_codes
    meanings = meanings_of(codes, column)
    # A further code hardly is a level if each level has one.
    every = {*known, *sure.values()} >= {*(feature.levels or (0, 1))}
    spelled = {*known, *sure}  # Ja (mild) is a remark about Ja
    numbers = [int(code) for code in codes if code.isdecimal()]
    gone = [
        code
        for code in unknown
        # 9 is a code of a missing value, and not one of the scores 0 to 12.
        if (looks_missing(code) and not (code.isdecimal() and int(code) < max(numbers)))
        or (every and code.partition("(")[0].strip() not in spelled)
    ]
    given = [code for code in unknown if code not in gone]
    settings = {"missing": gone} if gone else {}
    of_sex = {meanings[code] for code in given} == {"male", "female"}
    if feature.kind == "binary" and len(unknown) == len(codes) and (of_sex or len(given) == 2):
        side = {code: str(meanings[code]) if of_sex else as_toml(code) for code in given}
        choices = [
            (f"1 = {one}", {"levels": {code: int(side[code] == one) for code in given}})
            for one in dict.fromkeys(side.values())
        ]
        return Point(settings=settings, choices=choices, counts=codes)
    # Where only death has a word, as among ways of discharge, the others are alive.
    dead = is_death(feature.name) and set(map(death_of, codes)) == {1, None}
    levels: dict[str, str | int | None] = dict(sure)
    levels |= dict.fromkeys(given[:MOST_CODES], 0 if dead else None)
    return Point(settings=settings, levels=levels, counts=codes)


def _sort_codes(
    feature: Feature, codes: Counter[str], match: Match
) -> tuple[dict[str, str | int], Counter[str], Counter[str]]:
    """Return the codes that are certainly a level, those of the session, and the others."""
    reading = FeatureReading.of(feature, ColumnMap(), match.column)
    legend = legend_of(match.column)
    contrary = feature.kind == "binary" and is_contrary(feature.name, match.column)
    sure: dict[str, str | int] = {}
    known, unknown = Counter[str](), Counter[str]()
    usual = usual_codes(codes, feature)
    for code, n in codes.most_common():
        level = level_of(feature, code, usual, match) if code in usual else None
        # M may be mujer.
        spanish = folded(code) == "m" and meanings_of(codes, match.column)[code] is None
        level = None if contrary else level
        if level is None and (feature.kind == "binary" or spanish or code in legend):
            unknown[code] = n
        elif reading.meaning(code) is not None and code not in legend:
            known[code] = n
        elif level is not None and len(sure) < MOST_CODES:
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
    own: NDArray[np.float64],
    counts: NDArray[np.int64],
    outside: NDArray[np.bool_],
    lower: float,
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
    # Where negative numbers are within the bounds they may be values.
    within = (own < 0) & ~outside & bool(-np.inf < lower < 0)
    negative = (own < 0) & (others.min() >= 0)
    apart = ((gap > 0) & far) | negative | (counts > 3 * of_others.max())
    step = np.median(np.diff(np.unique(others))) if len(others) > 1 else np.inf
    apart[zero] = others.min() > max(2 * step, np.median(others) / 5)
    absent = np.asarray(usual & (outside | apart) & ~within)
    certain = outside | (negative & (negative[usual].sum() == 1))
    return absent, bool(certain[absent].all())
