"""The questions of ``fedclust check --ask`` about a suggested mapping."""

import contextlib
import dataclasses
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import typer

from fedclust.cli.console import err, show
from fedclust.data.advice import (
    as_toml,
    bounds_text,
    conversion_text,
    count_repeated,
    repeated_text,
)
from fedclust.data.column_match import Match
from fedclust.data.column_points import Point, Section
from fedclust.data.known_names import (
    fits_person,
    folded,
    in_mmhg,
    is_absent_text,
    is_beyond,
    is_contrary,
    is_diastolic,
    is_id,
    is_time,
    is_unit,
    looks_missing,
    may_mean_no,
    meanings_of,
    other_units,
    plain_unit,
    rank_of,
    says_side,
    split_unit,
    without_side,
)
from fedclust.data.suggest import MappingSuggestion
from fedclust.data.table import are_ids
from fedclust.data.text_forms import NumberFormat, combined, usual_weights
from fedclust.schema.feature import Feature
from fedclust.site.terminal import WIDEST, printable
from fedclust.wire.errors import UsageError

#: Values of settings that nobody can guess.
_ASKED: Final = (None, "NAME HERE", 1.0)
#: So many texts or codes of one column are asked about.
_MOST_ASKED: Final = 20
#: A text that is no usual word for a missing value is asked about if so many rows have it.
_FREQUENT: Final = 10
#: A shorter code may be the beginning of another one, as "no" is of "not known".
_LEAST_KNOWN: Final = 4
#: An answer such as 0.42 for 5/12 is rounded.
_ROUNDED: Final = 0.01
#: So many spellings of a code are shown.
_MOST_SPELLINGS: Final = 4
#: So many of the numbers in a column are shown in one question.
_MOST_SHOWN: Final = 8
#: So many letters of a code say what a longer one means.
_LEAST_BEGUN: Final = 3
_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)?")
_THOUSANDS: Final = re.compile(r"(?<!\d)\d{1,3}(?:[.,'’]\d{3})+(?!\d)")
#: Two numbers of a blood pressure.
_PAIR: Final = re.compile(r"(?<!\d)(\d{2,3}) ?/ ?(\d{1,3})(?!\d)")
_DATE: Final = re.compile(r"\d{4}-(\d\d)-(\d\d) 00:00:00")
_HOW: Final = "  session's value = value here x FACTOR (+ OFFSET); 1 if they are the same"


def require_terminal() -> None:
    """Raise UsageError without a terminal to ask on."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("--ask needs a terminal: leave it out, and edit the mapping file")


def ask_mapping(
    found: MappingSuggestion, row: str | None = None, person: str | None = None
) -> tuple[str | None, str | None]:
    """Ask a person about all that is uncertain in a suggestion, which takes the answers.

    Return the columns with the ids of rows and of persons, which are asked unless one is given.
    First what nobody can guess, column by column; then what is proposed is shown together, and the
    features that a person names are asked about. Ctrl-C and Ctrl-D end the questions, and what was
    not answered keeps its mark.

    Raises
    ------
    UsageError
        The file is written in another way, which only options can say.
    """
    _say(
        "Enter takes the answer in [brackets]; - means a missing value, or no column; the first "
        "letters of a level are enough. Ctrl-C ends the questions, and the file marks the rest."
    )
    dialogue = _Dialogue(found, row, person)
    with contextlib.suppress(typer.Abort):
        dialogue.hold()
    return dialogue.row, dialogue.person


def _say(text: str, indent: str = "") -> None:
    for line in textwrap.wrap(text, WIDEST, initial_indent=indent, subsequent_indent=indent + "  "):
        show(err, line)


def _asked(question: str, read: Callable[[str], Any], default: str | None = None) -> Any:
    """Return an answer as ``read`` returns it; typer.BadParameter there asks again."""
    mark = " " if question.endswith("?") and default is None else ": "
    question = printable(question)
    return typer.prompt(question, default, value_proc=read, prompt_suffix=mark, err=True)


def _confirmed(question: str, default: bool | None) -> bool:
    """Return whether a person says yes; None as the default asks until it is said."""
    return typer.confirm(f"  {printable(question)}", default, err=True)


def _like(
    first: str, number: float, texts: Sequence[str], written: NumberFormat
) -> dict[str, float]:
    """Return what the texts mean that can be read as the first one, which means ``number``."""
    form, own = written.split(first)
    split = {text: written.split(text) for text in texts}
    same = {text: of for text, (like, of) in split.items() if like.casefold() == form.casefold()}
    # An answer such as 0.42 for 5/12 is rounded.
    weights = usual_weights(first, own, number, _ROUNDED) if form and len(same) > 1 else None
    if weights is None:
        return {first: number}
    return {text: combined(weights, of) for text, of in same.items()}


def _proposed(text: str, feature: Feature, *, apart: bool) -> str | None:
    """Return the number that a text most likely means: 130 of RR 130/65, and 1244 of 1.244.

    The latter if marks set thousands ``apart``.
    """
    thousands, pair = _THOUSANDS.search(text), _PAIR.search(text)
    if apart and thousands:
        likely = float(re.sub(r"\D", "", thousands[0]))
    elif pair:
        likely = in_mmhg(float(pair[2 if is_diastolic(feature.name) else 1]), feature.unit)
    else:
        return None
    return f"{likely:.15g}"


def _typed(text: str) -> str:
    """Return what a spreadsheet may have made a date of; "" for other texts."""
    found = _DATE.fullmatch(text)
    if not found:
        return ""
    month, day = int(found[1]), int(found[2])
    or_so = f" or {day}/{month}" if day != month else ""
    return f" (a date, typed perhaps as {month}/{day}{or_so})"


def _number(answer: str) -> float | None:
    """Return a number that a person types, such as 0,5 or 1/60; None for -."""
    with contextlib.suppress(ValueError, ZeroDivisionError):
        return None if answer == "-" else float(Fraction(answer.replace(",", ".")))
    raise typer.BadParameter("write a number, or -")


def _numbers(answer: str) -> list[float]:
    """Return numbers with spaces between them; none for "none"."""
    parts = answer.replace(", ", " ").split() if answer != "none" else []
    return [number for part in parts if (number := _number(part)) is not None]


def _one_of(*words: str) -> Callable[[str], str]:
    """Return a function that returns an answer that is one of these words."""

    def read(answer: str) -> str:
        if answer not in words:
            raise typer.BadParameter(f"write {' or '.join(words)}")
        return answer

    return read


def _factor(answer: str) -> dict[str, float | None]:
    """Return a factor, and an offset if there is one; None for -."""
    signed = re.sub(r"[+\s]*([+-])\s*(?=\d)", r" \1", answer)  # 1.25 - 25
    factor, *offset = map(_number, signed.split())
    if factor == 0 or len(offset) > 1:
        raise typer.BadParameter("write a factor such as 0.5 or 1/60, or with an offset: 1.8 + 32")
    return {"factor": factor, **({"offset": offset[0]} if offset else {})}


def _is_of_thousands(note: str) -> bool:
    return "separate thousands" in note


def _is_of_sheets(note: str) -> bool:
    return "only the rows of" in note


def _called(feature: Feature) -> str:
    """Return a feature with its unit, or what 1 means."""
    return f"{feature.name} ({feature.unit})" if feature.unit else feature.name


def _meaning(feature: Feature) -> str:
    """Return what 1 means of a yes/no feature; "" of another."""
    return (feature.unit or "yes").removeprefix("1 = ") if feature.kind == "binary" else ""


def _heading(section: Section) -> str:
    return f"{section.feature.name} = {as_toml(section.settings.get('column', '-'))}"


def _conversion(section: Section) -> str:
    given = section.settings
    return conversion_text(given.get("factor", 1), given.get("offset", 0))


def _unit_meant(section: Section, settings: Mapping[str, Any]) -> str:
    """Return the unit of a column with this conversion, if it is another than the session's."""
    pair = settings.get("factor", 1.0), settings.get("offset", 0.0)
    if pair == (1.0, 0.0) or None in pair or section.match is None or section.match.unit:
        return ""
    units = other_units(section.feature.name, section.feature.unit)
    same = (unit for unit, of in units.items() if np.allclose(of, pair, rtol=_ROUNDED))
    return str(settings.get("unit") or next(same, ""))


def _form(text: str) -> str:
    """Return a text without its numbers, spaces and case."""
    return _NUMBER.sub("#", text.casefold().replace(" ", ""))


def _spelling(code: str, levels: Sequence[str], known: Collection[str]) -> str:
    """Return a code without case, spaces and points, and I to VI as numbers: IIb is 2b.

    Nor with the side that it says, if no level does; nor with the numbers behind a known code, such
    as of "smoker 20 cigarettes".
    """
    if not any(map(says_side, levels)):
        code = without_side(code)
    behind = any(code.startswith(f"{each} ") for each in known if len(each) > _LEAST_KNOWN)
    if behind and not any(map(_NUMBER.search, levels)):
        return _form(code)
    plain = re.sub(r"(?<=\d)[\s._]+(?=\d)", ",", folded(code))  # 1.2 is not 12
    plain = re.sub(r"[\s._]", "", plain)
    rank = rank_of(plain.rstrip("abc").upper(), alone=True)
    return plain if rank is None else f"{rank}{plain[len(plain.rstrip('abc')) :]}"


def _is_short_for(one: str, other: str) -> bool:
    """Return whether a code is the beginning of another word, as Pneu of Pneumonie."""
    short, long = sorted((folded(each).rstrip(".") for each in (one, other)), key=len)
    return len(short) >= _LEAST_BEGUN and long.startswith(short) and " " not in long


def _has_remark(code: str, other: str) -> bool:
    """Return whether a code is another one with a remark: yes, insulin; not "yes, not worn".

    Or with an amount, as in aspirin 75.
    """
    rest = folded(code).removeprefix(folded(other))
    remark = rest.startswith((", ", " (")) or re.fullmatch(r" \d+(?:[.,]\d+)? ?[a-z%/]*", rest)
    return bool(remark) and not any(map(may_mean_no, re.split("[, (]+", rest)))


def _without_words(code: str, column: str) -> str:
    """Return a code without the words of its column's name, such as 2 of ASA 2."""
    said = {*folded(column).split()}
    return " ".join(word for word in folded(code).split() if word not in said)


def _quoted(level: str) -> str:
    """Return a level as it is listed: in quotes if it has spaces."""
    return as_toml(level) if " " in level else level


def _level(feature: Feature, answer: str) -> str:
    """Return the level that a person means, - for a missing value; typer.BadParameter."""
    names = feature.levels or ("0", "1")
    exact = [name for name in names if name.casefold() == answer.casefold()]
    begun = [name for name in names if name.casefold().startswith(answer.casefold())]
    inside = [name for name in names if answer.casefold() in name.casefold()]
    found = ["-"] if answer == "-" else exact or begun or inside
    if len(found) != 1:
        raise typer.BadParameter(f"write {' or '.join(map(_quoted, names))}, or -")
    return found[0]


def _may_be_ids(header: str, cells: Counter[Any], unused: bool) -> bool:
    """Return whether a column may identify persons or rows, by its name or its values."""
    if len(cells) ** 2 < cells.total():
        return False  # as of a "person's sex"
    if is_id(header):
        return True
    differ = unused and 2 * len(cells) > cells.total()
    return differ and are_ids([*map(str, cells.elements())])


def _level_of_rank(code: str, levels: Sequence[str]) -> str | None:
    """Return the only level with the number of a code, such as grade_2 for II."""
    rank = rank_of(code)
    found = [name for name in levels if re.findall(r"\d+", name) == [str(rank)]]
    return found[0] if len(found) == 1 else None


def _level_begun(code: str, levels: Sequence[str]) -> str | None:
    """Return the only level whose name begins with a code, as sleeve gastrectomy with sleeve."""
    found = [name for name in levels if folded(name).startswith(folded(code))]
    return found[0] if len(found) == 1 and len(code) >= _LEAST_BEGUN else None


class _Dialogue:
    """The questions about one suggestion, in order."""

    def __init__(self, found: MappingSuggestion, row: str | None, person: str | None) -> None:
        self._found, self.row, self.person = found, row, person
        #: Whether a mark before three digits may separate thousands.
        self._marks_thousands = True
        #: The columns that were listed with a number.
        self._listed: list[str] = []
        #: Texts in numbers, and codes, that a person has read, with their feature.
        self._seen: set[tuple[str, str]] = set()
        #: Texts that a person has corrected, which are shown one by one.
        self._corrected: set[str] = set()
        #: Texts that are missing values in a column before.
        self._missing: set[str] = set()

    def hold(self) -> None:
        """Ask; typer.Abort if a person ends the questions."""
        found = self._found
        decided = any(map(_is_of_thousands, found.table.notes))
        self._ask_format()
        if (self.row, self.person) == (None, None) and not found.has_rows_of_values:
            self._ask_ids()
        self._ask_columns()
        if not decided:
            found.judge_decimal_mark()
            self._ask_format()
        for section in found.sections.values():
            self._ask_unknown(section)
        self._ask_limits()
        self._review()

    def _ask_format(self) -> None:
        """Ask whether the table is written as it seems."""
        table = self._found.table
        for note in [*table.notes]:
            _say(note)
            # Enter must not leave out the rows of other sheets.
            if not _confirmed("right?", None if _is_of_sheets(note) else True):
                if not _is_of_thousands(note):
                    raise UsageError(
                        "say how the table is written (--sheet, --header-row, --encoding, "
                        "--delimiter, --decimal), and start again"
                    )
                self._marks_thousands = False
                table.written = table.written.model_copy(update={"thousands": False})
                self._found.judge_again()
            table.notes.remove(note)

    # --- columns ----------------------------------------------------------------------------------

    def _ask_ids(self) -> None:
        """Ask which columns have the ids of persons and of rows."""
        found, table = self._found, self._found.table
        cells = {name: table.given(name) for name in table.columns}
        likely = [each for each in cells if _may_be_ids(each, cells[each], each in found.unused)]
        repeated = {name: count_repeated(cells[name].elements()) for name in likely}
        # That of persons is called so, or has several rows of one.
        named = sorted(likely, key=lambda x: (-fits_person(x), not is_id(x), -repeated[x][0], x))
        if not named:
            self._list_columns()
        question = "ids of persons: which column, or - if there is none?"
        self.row = self._column(question, next(iter(named), None))
        n_ids, n_rows = count_repeated(cells[self.row].elements()) if self.row else (0, 0)
        if n_ids:
            _say(
                f"{repeated_text(n_ids, n_rows)}. What counts of a person: all of them (the mean "
                "of numbers, the commonest code), the first or the last row? - if each row, such "
                "as a stay, is to count as a person."
            )
            rows = _asked("  all, first, last or -", _one_of("all", "first", "last", "-"), "all")
            self.person = self.row = self.row if rows != "-" else None
        if self.person:
            table.written = table.written.model_copy(update={"rows_of_person": rows})
            question = "which column has an id of each row, or - if there is none?"
            single = next((name for name in named if not repeated[name][0]), None)
            self.row = (self._column(question, single) if single else None) or self.person
        found.set_ids(self.row, self.person)
        found.guess()

    def _ask_columns(self) -> None:
        """Ask for the column of each feature that no single name fits, or that is found wrongly."""
        found = self._found
        #: The column of each feature that is settled, None if there is none.
        settled: dict[str, str | None] = {}
        guessed = list[str]()
        for said, score in (("Found by name", 2), ("Perhaps", 1)):
            matches = {
                name: of.match.column
                for name, of in found.sections.items()
                if of.match is not None and min(of.match.score, 2) == score and not of.match.others
            }
            if pairs := [
                f"{_called(found.sections[name].feature)} = {as_toml(column)}"
                + _conversion(found.sections[name])
                for name, column in matches.items()
            ]:
                _say(f"{said}: {', '.join(pairs)}")
            settled |= matches
            guessed = [*matches]
        for name in self._wrong_ones(settled) if settled else ():
            del settled[name]
            found.sections[name].match = None  # no answer to be taken by Enter
        for name in guessed:
            if name in settled:
                self._choose(name, settled)
        open_ones = [name for name in found.sections if name not in settled]
        if open_ones and not self._listed:
            self._list_columns({*settled.values()})
        for name in open_ones:
            used = {column: of for of, column in settled.items() if column is not None}
            settled[name] = self._column_of(found.sections[name], used)
            self._choose(name, settled)

    def _wrong_ones(self, features: Iterable[str]) -> list[str]:
        """Ask which features are read wrongly."""
        known = {*features}

        def names(answer: str) -> list[str]:
            given = [answer] if answer in known else answer.replace(",", " ").split()
            if answer == "none" or known >= {*given}:
                return [] if answer == "none" else given
            raise typer.BadParameter("write names of the session's features, or none")

        found: list[str] = _asked("  which features are wrong?", names, "none")
        return found

    def _list_columns(self, used: Collection[str | None] = ()) -> None:
        """Show the columns without those that are used, with a number to choose them by."""
        show(err, f"{'Other columns' if used else 'Columns'} of the table:")
        self._listed = [name for name in self._found.table.columns if name not in used]
        for number, column in enumerate(self._listed, 1):
            _say(f"{number:3}  {column}   {self._found.contents(column)}")

    def _column_of(self, section: Section, used: Mapping[str, str]) -> str | None:
        """Ask which column a feature is; ``used`` are those of others."""
        match = section.match
        sure = match is not None and match.score >= 0 and not match.others
        default = match.column if match and sure and match.column not in used else None
        said, levels = _called(section.feature), section.feature.levels
        said += f", one of {', '.join(map(_quoted, levels))}" if levels else ""
        lacks = ", or - (a site may lack an outcome)" * (
            section.feature.name in self._found.may_lack
        )
        return self._column(f"{said}: which column{lacks}?", default, used)

    def _column(
        self, question: str, default: str | None, used: Mapping[str, str] = MappingProxyType({})
    ) -> str | None:
        """Ask for a column, by its name or number; ``used`` are those of features."""

        def column(answer: str) -> str | None:
            name = answer
            # A column may be called by a number.
            if answer != default and answer.isdecimal() and 0 < int(answer) <= len(self._listed):
                name = self._listed[int(answer) - 1]
            if name in used:
                raise typer.BadParameter(f"{name} is the column of {used[name]}")
            if name != "-" and not self._found.has_column(name):
                raise typer.BadParameter("give a column's number or name, or - if there is none")
            return None if name == "-" else name

        name: str | None = _asked(question, column, default)
        return name

    def _choose(self, name: str, settled: Mapping[str, str | None]) -> None:
        """Take the column of a feature, None if there is none."""
        section, column = self._found.sections[name], settled[name]
        if column is None:
            section.match, section.points = None, [Point(settings={"lacking": True}, taken=True)]
            return
        used = {other for of, other in settled.items() if other is not None and of != name}
        # A score of 2: the name is right, and its codes may still mean anything.
        self._found.choose(section.feature, Match(column, 2, chosen=True), used)
        # Who had it as a guess needs another one.
        for other in [*self._found.sections.values()]:
            guessed = other.match is not None and other.match.column == column
            if guessed and other.feature.name not in settled:
                self._found.choose(other.feature, None, {*used, column})

    # --- what nobody can guess --------------------------------------------------------------------

    def _ask_unknown(self, section: Section) -> None:
        """Ask about each marked point of a feature that has no proposal."""
        for place in range(len(section.points)):
            point = section.points[place]  # an answer before may have decided it
            if not point.mark:
                continue
            if point.counts and section.feature.kind == "numeric":
                section.answer(place, self._texts(section, point))
            elif point.counts and not point.taken:
                section.answer(place, self._levels(section, point))
            elif point.settings and not point.taken:
                said = self._settings(section, point)
                if (unit := _unit_meant(section, said.settings)) and section.match:
                    # Cells with a unit of their own are converted to that of the column.
                    match = dataclasses.replace(section.match, chosen=True, unit=unit)
                    self._found.choose(section.feature, match)
                    self._ask_unknown(self._found.sections[section.feature.name])
                    return
                section.answer(place, said)

    def _texts(self, section: Section, point: Point) -> Point:
        """Ask about texts in numbers that may be anything; of those of one form about the first."""
        read = _readings(point)
        known = (text for text in point.counts if text in self._missing or is_absent_text(text))
        read |= dict.fromkeys(known)
        name = section.feature.name
        forms: dict[str, list[str]] = {}
        for text, n in point.counts.items():
            # A frequent text may well mean a number, such as 0; 15x13 has some.
            likely = n >= _FREQUENT or _NUMBER.search(text) or is_beyond(text)
            lost = likely and read.get(text, 0) is None and not is_absent_text(text)
            if text not in self._missing and (text not in read or lost):
                forms.setdefault(_form(text), []).append(text)
        if len(forms) > _MOST_ASKED:
            _say(f"{_heading(section)}: {point.why}; say in the mapping file what is missing")
            return point
        unit = split_unit(section.settings.get("column", ""))[1]
        unit = f" in {unit}" if is_unit(unit) else ""
        for texts in forms.values():
            while texts:
                n, first = sum(point.counts[text] for text in texts), texts[0]
                more = f" and {len(texts) - 1} like it" * (len(texts) > 1)
                text = f"{_heading(section)}: {as_toml(first)}{_typed(first)}{more} ({n})"
                none = f"- if {'none of them has one' if more else 'none'}"
                default = _proposed(first, section.feature, apart=self._marks_thousands)
                question = f"{text} means which number{unit}, or {none}"
                if not _NUMBER.search(first) and default is None:
                    question = f"{text} is missing (-), or which number{unit}?"
                answer = _asked(question, _number, default)
                # The others are read as the answer reads the first, and are shown afterwards.
                same: Mapping[str, float | None] = dict.fromkeys(texts)
                if answer is not None:
                    same = _like(first, answer, texts, section.written)
                texts = [text for text in texts if text not in same]
                read |= same
                self._seen.add((name, first))
        self._missing |= {text for text, number in read.items() if number is None}
        return _with_readings(point, read)

    def _settings(self, section: Section, point: Point) -> Point:
        """Ask for settings that nobody can guess, or whether another unit is right."""
        _say(f"{_heading(section)}: {point.why}")
        settings = dict(point.settings)
        if not any(each in _ASKED for each in settings.values()):
            right = _confirmed("right?", None)
            return Point(settings=settings if right else {}, taken=True)
        for name, value in point.settings.items():
            if value == "NAME HERE":
                settings[name] = _asked(f"  column of the {name}", str)
            elif value in _ASKED:
                # A stay of 1 to 14 hardly is in hours.
                default = "1" if is_time(section.feature.unit) and value == 1.0 else None
                settings |= _asked(_HOW, _factor, default)
                if name == "time_factor":
                    settings = {"time_factor": settings["factor"]}
        if None in settings.values():
            return point
        if settings.get("factor", settings.get("time_factor")) == 1.0 and "offset" not in settings:
            # The header's unit, if it was taken, is that of the session.
            settings = {"unit": settings["to"]} if "to" in settings else {}
        return Point(settings=settings, taken=True)

    def _levels(self, section: Section, point: Point) -> Point:
        """Ask for the level of each code that has none."""
        feature = section.feature
        names = [*(feature.levels or ("0", "1"))]
        levels = point.known_levels
        proposed = point.settings.get("missing", ())
        of_choices = {code for _, settings in point.choices for code in settings["levels"]}
        asked = {*point.levels, *of_choices, *proposed} - {*levels}
        # Where plus is a code, minus is one, too; "brak" may mean no, and NR Nichtraucher.
        commonest = {folded(code) for code, _ in point.counts.most_common(1)}
        missing = [
            code
            for code in proposed
            if looks_missing(code) and not may_mean_no(code) and not (code == "-" and "+" in asked)
            if folded(code) not in commonest
        ]
        known = {
            code: levels.get(code, code)
            for code in point.counts
            if code in levels or (code in (feature.levels or ("0", "1")) and code not in asked)
        }
        known |= dict.fromkeys(missing, "-")
        asked -= {*missing}
        rarer = len({*point.counts} - {*asked, *known, *levels})
        many = f"{_heading(section)} has {len(asked) + rarer} codes"
        many += f", of which the commonest {len(asked)} are asked" * (rarer > 0)
        many += ": is it the right column?"
        if len(asked) > _MOST_ASKED and not _confirmed(many, True):
            return point
        meant = f"1 ({_meaning(feature)}), 0"
        if feature.kind != "binary":
            meant = ", ".join(map(_quoted, names)) + (f" ({feature.unit})" if feature.unit else "")
        _say(f"{_heading(section)}: each code means {meant}, or -")
        if said := _levels_text(known):
            _say(f"known: {said}", "  ")
        if feature.kind == "binary" and len(amounts := _amounts(point.counts, known)) > 2:
            numbers = {code: int(level) for code, level in _ask_least(amounts).items()}
            levels |= numbers
            asked -= {*numbers}
        answers = _ask_codes(section, point.counts, asked, known, self._missing)
        self._missing |= {
            code for code, of in answers.items() if of == "-" and not code.isdecimal()
        }
        self._seen |= {(feature.name, code) for code in point.counts}
        return _with_levels(feature, point.counts, known | levels | answers)

    def _ask_limits(self) -> None:
        """Ask once what counts of numbers below a limit."""
        below = [
            (point.settings["values"], text)
            for name, section in self._found.sections.items()
            for point in section.points
            for text in point.settings.get("values", ())
            if text[:1] in ("<", "≤") and point.taken and (name, text) not in self._seen
        ]
        if not below:
            return
        what = f"of a limit such as {as_toml(below[0][1])} counts half of it, or the limit?"
        if _asked(f"{what} half or limit", _one_of("half", "limit"), "half") == "limit":
            for values, text in below:
                values[text] *= 2

    # --- what is proposed -------------------------------------------------------------------------

    def _review(self) -> None:
        """Show how features are read, and ask about those that a person calls wrong."""
        names = [*self._found.sections]
        while names:
            show(err, "So these are read:")
            for section in map(self._found.sections.__getitem__, names):
                _say(f"{_heading(section)}: {self._reading_text(section) or 'no value'}")
            wrong = self._wrong_ones(self._found.sections)
            for name in names:
                if name not in wrong:
                    self._found.sections[name].settle()
            for name in wrong:
                self._correct(name)
            names = wrong

    def _reading_text(self, section: Section) -> str:
        """Return what a feature's column holds, and how it is read where no answer says it."""
        column = section.settings.get("column", "")
        if section.settings.get("lacking"):
            return "this site lacks it"
        seen = {text for name, text in self._seen if name == section.feature.name}
        conversion = _conversion(section).strip()
        said = [self._found.range_text(section) if section.feature.kind == "numeric" else ""]
        said += [f"{conversion} to {plain_unit(section.feature.unit)}" if conversion else ""]
        for point in section.points:
            if point.counts and section.feature.kind != "numeric" and point.mark != "to do":
                known = {*(section.feature.levels or ("0", "1"))}
                levels: dict[str, str | int] = {c: c for c in point.counts if c in known}
                levels |= point.known_levels
                levels |= dict.fromkeys(("", *point.settings.get("missing", ())), "-")
                cells = self._found.table.columns.get(column, Counter())
                counts = point.counts + Counter({"": cells.total() - point.counts.total()})
                said.append(_levels_text(levels, _meaning(section.feature), counts, seen))
            elif point.mark == "uncertain" and point.counts:
                read = {text: of for text, of in _readings(point).items() if text not in seen}
                text = _read_as(read, point.counts, self._corrected, section.written)
                if point.own:
                    kept_as = f"outside the bounds{bounds_text(section.feature)}, kept"
                    text = f"{point.why if point.settings else kept_as}: {text}"
                said.append(text)
            elif point.mark == "uncertain":
                said.append(point.why)
        return "; ".join(filter(None, said))

    def _correct(self, name: str) -> None:
        """Ask how a feature is read that a person calls wrong."""
        sections = self._found.sections
        section = sections[name]
        for place, point in enumerate(section.points):
            changed = _changed(section, point) if point.counts else None
            if changed is not None:
                before, after = _readings(point), _readings(changed)
                self._corrected |= {text for text in after if before.get(text) != after[text]}
                section.answer(place, changed)
                return
        settled = {of: each.settings.get("column") for of, each in sections.items()}
        used = {other: of for of, other in settled.items() if other is not None and of != name}
        column = self._column_of(section, used)
        if column != settled[name]:
            self._choose(name, settled | {name: column})
            self._ask_unknown(sections[name])
            return
        if section.feature.kind == "numeric" and column is not None:
            self._convert(section)

    def _convert(self, section: Section) -> None:
        """Ask how the numbers of a column become the session's, and which are missing values."""
        given, unit = section.settings, section.feature.unit
        now = _conversion(section).strip() or "1"
        found = _asked(_HOW, lambda answer: {} if answer == now else _factor(answer), now)
        if None not in found.values() and found:
            # Units in cells are those of the column, whose factor changes.
            changed = given.get("factor", 1.0) / found["factor"]
            section.scale(changed)
            section.drop("unit", "to", "factor", "offset")
            section.set(**found, **({"to": unit} if unit else {}))
        numbers = " ".join(f"{number:.15g}" for number in given.get("sentinels", ()))
        asked = "  numbers that mean a missing value"
        found = _asked(asked, _numbers, numbers or "none")
        section.drop("sentinels")
        section.set(**({"sentinels": found} if found else {}))


def _ask_codes(
    section: Section,
    counts: Counter[str],
    asked: Collection[str],
    known: Mapping[str, str | int],
    gone: Collection[str],
) -> dict[str, str]:
    """Ask for the level of codes, or -; spellings of one code are one question.

    ``gone`` are texts that are missing values in other columns.
    """
    feature, column = section.feature, section.settings.get("column", "")
    names = feature.levels or ()
    likely = dict[str, str | None]()
    if feature.kind == "binary" and not is_contrary(feature.name, column):
        words = meanings_of(counts, column)
        likely = {code: {"no": "0", "yes": "1"}.get(word or "") for code, word in words.items()}

    spellings: dict[str, list[str]] = {}
    for code, _ in counts.most_common():
        if code in asked:
            spellings.setdefault(_spelling(code, names, known), []).append(code)
    before = {code: str(of) for code, of in known.items()}
    answers: dict[str, str] = {}
    for codes in spellings.values():
        begun = (
            before[of]
            for of in before
            if _is_short_for(codes[0], of)
            # A further diagnosis may be another level.
            or (feature.kind == "binary" and _has_remark(codes[0], of))
            or _without_words(codes[0], column) == folded(of)
        )
        default = likely.get(codes[0]) or _level_of_rank(codes[0], names) or next(begun, None)
        default = default or _level_begun(codes[0], names) or ("-" if codes[0] in gone else None)
        shown = ", ".join(map(as_toml, codes))
        if len(codes) > _MOST_SPELLINGS:
            shown = f"{as_toml(codes[0])} and {len(codes) - 1} like it"
        shown += f" {sum(counts[code] for code in codes)}"
        before[codes[0]] = _asked(f"    {shown}", lambda answer: _level(feature, answer), default)
        answers |= dict.fromkeys(codes, before[codes[0]])
    return answers


def _amounts(codes: Iterable[str], known: Collection[str]) -> dict[str, float]:
    """Return the codes that are numbers or grades such as IIIb (leak), and not known, in order."""
    found = dict[str, float]()
    for code in codes:
        plain = code.partition("(")[0].strip()
        rank = rank_of(plain.rstrip("abc"), alone=True)
        if code not in known and (rank is not None or _NUMBER.fullmatch(plain)):
            found[code] = _own_number(plain) if rank is None else rank
    return dict(sorted(found.items(), key=lambda pair: pair[1]))


def _ask_least(amounts: Mapping[str, float]) -> dict[str, bool]:
    """Ask from which number on amounts mean 1; none of these numbers if they are codes."""
    shown = [f"{number:.15g}" for number in dict.fromkeys(amounts.values())]
    if len(shown) > _MOST_SHOWN:
        shown = [*shown[: _MOST_SHOWN - 1], "...", shown[-1]]
    question = "which is the smallest number that means 1, or - if they are codes?"
    least = _asked(f"  {', '.join(shown)}: {question}", _number)
    return {} if least is None else {code: number >= least for code, number in amounts.items()}


def _own_number(text: str) -> float:
    return float(text.replace(",", "."))


def _readings(point: Point) -> dict[str, float | None]:
    """Return the number that each text in a column of numbers means, None for a missing value."""
    read: dict[str, float | None] = {text: _own_number(text) for text in point.counts if point.own}
    read |= dict.fromkeys(point.settings.get("missing", ()))
    read |= point.settings.get("values", {})
    return read


def _with_readings(point: Point, read: Mapping[str, float | None]) -> Point:
    """Return a point with what its texts mean, which counts until it is changed."""
    own = {_own_number(text): text for text in point.counts if point.own}
    gone = [text for text, number in read.items() if number is None]
    settings = dict(point.settings)
    settings["sentinels"] = [number for number, text in own.items() if text in gone]
    settings["missing"] = [text for text in gone if text not in own.values()]
    settings["values"] = {
        text: number
        for text, number in read.items()
        if number is not None and own.get(number) != text
    }
    kept = {name: value for name, value in settings.items() if value}
    return dataclasses.replace(point, settings=kept, mark="uncertain", taken=True)


def _changed(section: Section, point: Point) -> Point | None:
    """Ask which texts or codes of a column mean something else; None if no one does."""
    feature = section.feature
    if feature.kind == "numeric":
        read = _readings(point)
        alone = read if len(read) <= _MOST_ASKED else ()
        _say(_read_as(read, point.counts, alone, section.written), "  ")
        changed = _ask_changes(read, _number)
        return _with_readings(point, read | changed) if changed else None
    levels: dict[str, str | int] = {code: code for code in point.counts}
    levels |= point.known_levels | dict.fromkeys(point.settings.get("missing", ()), "-")
    _say(
        ", ".join(f"{as_toml(code)} = {of} ({point.counts[code]})" for code, of in levels.items()),
        "  ",
    )
    changed = _ask_changes(levels, lambda answer: _level(feature, answer))
    return _with_levels(feature, point.counts, levels | changed) if changed else None


def _ask_changes(texts: Collection[str], read: Callable[[str], Any]) -> dict[str, Any]:
    """Ask what texts mean in place of what is shown; ``read`` reads it."""

    def change(answer: str) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        # A text in quotes may have commas.
        for each in re.findall(
            r'(?:"[^"]*"|[^",;]|[,;](?! ))+', answer if answer != "none" else ""
        ):
            text, _, value = (part.strip().strip('"') for part in each.rpartition("="))
            if text not in texts:
                raise typer.BadParameter('write texts as they are shown: "<5" = 2.5, no = -')
            changed[text] = read(value)
        return changed

    how = "  which mean something else? TEXT = ANSWER or TEXT = - (missing), with commas between"
    found: dict[str, Any] = _asked(how, change, "none")
    return found


def _with_levels(feature: Feature, counts: Counter[str], levels: Mapping[str, str | int]) -> Point:
    """Return what codes mean, - for a missing value, which counts until it is changed."""
    missing = [code for code, of in levels.items() if of == "-"]
    given = {
        code: int(of) if feature.kind == "binary" else of
        for code, of in levels.items()
        if of not in ("-", code)
    }
    settings = {"missing": missing} if missing else {}
    return Point(settings=settings, taken=True, levels=given, counts=counts)


def _read_as(
    read: Mapping[str, float | None],
    counts: Mapping[str, int],
    alone: Collection[str],
    written: NumberFormat,
) -> str:
    """Return missing texts, and others with their numbers: of one form the first, or ``alone``."""
    same: dict[tuple[Any, ...], list[str]] = {}
    for text, number in read.items():
        form, own = written.split(text)
        weights = usual_weights(text, own, number) if form and number is not None else None
        key = (form or ("" if _is_rank(text, number) else text), weights, number is None)
        same.setdefault((text,) if text in alone else key, []).append(text)
    missing, numbers = list[str](), list[str]()
    for key, texts in same.items():
        text, n = as_toml(texts[0]), sum(counts[text] for text in texts)
        more = f" and {len(texts) - 1} like it" if len(texts) > 1 else ""
        n_rows = f"{n} rows" if more else f"{n}"
        value = f"{read[texts[0]] or 0:.15g}"
        value += " (half of it)" * (key[1:2] == ((0.5,),))
        if read[texts[0]] is None:
            missing.append(f"{text}{more} {n}")
        else:
            numbers.append(f"{text} = {value}{more} ({n_rows})")
    missing = [f"missing = {', '.join(missing)}"] if missing else []
    return "; ".join([*missing, ", ".join(numbers)] if numbers else missing)


def _is_rank(text: str, number: float | None) -> bool:
    return number is not None and rank_of(text) == number and _NUMBER.search(text) is None


def _levels_text(
    levels: Mapping[str, str | int],
    one: str = "",
    counts: Mapping[str, int] = MappingProxyType({}),
    seen: Collection[str] = (),
) -> str:
    """Return the codes of each level, - for missing values; not those that are a level's name.

    ``one`` is what 1 means. With ``counts`` of the codes, each level has its rows; codes that a
    person has ``seen`` are left out.
    """
    names = {"-": "missing", **({"1": f"1 ({one})"} if one else {})}
    codes: dict[str, list[str]] = {}
    rows = Counter[str]()
    for code, level in levels.items():
        rows[str(level)] += counts.get(code, 0)
        own = codes.setdefault(str(level), [])
        own += [code] * (code != "" and code not in seen)
    said = {
        level: f" = {', '.join(map(as_toml, own))}" if {*own} - {level} else ""
        for level, own in codes.items()
    }
    return "; ".join(
        f"{names.get(level, level)}{text}{f' ({rows[level]})' if counts else ''}"
        for level, text in said.items()
        if text or rows[level]
    )
