"""The questions of ``fedclust check --ask`` about a suggested mapping."""

import contextlib
import dataclasses
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

import typer

from fedclust.cli.console import err, show
from fedclust.data.advice import as_toml
from fedclust.data.column_match import Match
from fedclust.data.column_points import Point, Section
from fedclust.data.known_names import is_absent_text, looks_missing
from fedclust.data.suggest import MappingSuggestion
from fedclust.schema.feature import Feature
from fedclust.site.terminal import WIDEST, printable
from fedclust.wire.errors import UsageError

#: Values of settings that nobody can guess.
_ASKED: Final = (None, "NAME HERE", 1.0)


def require_terminal() -> None:
    """Raise UsageError without a terminal to ask on."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("--ask needs a terminal: leave it out, and edit the mapping file")


def ask_mapping(found: MappingSuggestion) -> None:
    """Ask a person about all that is uncertain in a suggestion, which takes the answers.

    Ctrl-C and Ctrl-D end the questions, and what was not answered keeps its mark.

    Raises
    ------
    UsageError
        The file is written in another way, which only options can say.
    """
    _say("Enter takes the answer in [brackets]; - stands for none, or for a missing value.")
    _say(
        "Texts in a column of numbers are shown with how they are read. Write - if all of them are "
        "missing values, or change some: TEXT = NUMBER, TEXT = -. Numbers are in your unit."
    )
    _say("Ctrl-C ends the questions: then the mapping file marks what is still open.")
    with contextlib.suppress(typer.Abort):
        decided = any(map(_is_of_thousands, found.table.notes))
        _ask_format(found)
        _ask_columns(found)
        if not decided:
            found.judge_decimal_mark()
            _ask_format(found)
        gone = set[str]()
        for section in found.sections.values():
            if section.marked:
                _ask_points(section, gone)


def _say(text: str, indent: str = "") -> None:
    for line in textwrap.wrap(text, WIDEST, initial_indent=indent, subsequent_indent=indent + "  "):
        show(err, line)


def _asked(question: str, read: Callable[[str], Any], default: str | None = None) -> Any:
    """Return an answer as ``read`` returns it; typer.BadParameter there asks again."""
    mark = " " if question.endswith("?") and default is None else ": "
    question = printable(question)
    return typer.prompt(question, default, value_proc=read, prompt_suffix=mark, err=True)


def _confirmed(why: str, question: str, *, default: bool | None) -> bool:
    """Return whether a person says yes; None as the default asks until it is said."""
    _say(why, "  ")
    return typer.confirm(f"  {question}", default, err=True)


def _number(answer: str) -> float | None:
    """Return a number that a person types, such as 0,5 or 1/60; None for -."""
    with contextlib.suppress(ValueError, ZeroDivisionError):
        return None if answer == "-" else float(Fraction(answer.replace(",", ".")))
    raise typer.BadParameter("write a number, or -")


def _is_of_thousands(note: str) -> bool:
    return "separate thousands" in note


def _ask_format(found: MappingSuggestion) -> None:
    """Ask whether the table is written as it seems."""
    for note in [*found.table.notes]:
        if not _confirmed(note, "right?", default=True):
            if not _is_of_thousands(note):
                raise UsageError(
                    "say how the table is written (--sheet, --header-row, --encoding, "
                    "--delimiter, --decimal), and start again"
                )
            found.table.written = found.table.written.model_copy(update={"thousands": False})
            found.judge_again()
        found.table.notes.remove(note)


def _factor(answer: str) -> dict[str, float | None]:
    """Return a factor, and an offset if there is one; None for -."""
    signed = re.sub(r"[+\s]*([+-])\s*(?=\d)", r" \1", answer)  # 1.25 - 25
    factor, *offset = map(_number, signed.split())
    if len(offset) > 1:
        raise typer.BadParameter("write a factor such as 0.5 or 1/60, or a factor and an offset")
    return {"factor": factor, **({"offset": offset[0]} if offset else {})}


# --- columns --------------------------------------------------------------------------------------


def _called(feature: Feature) -> str:
    """Return a feature with its unit, or what 1 means, and its levels."""
    said = f"{feature.name} ({feature.unit})" if feature.unit else feature.name
    return said + (f", one of {', '.join(feature.levels)}" if feature.levels else "")


def _ask_columns(found: MappingSuggestion) -> None:
    """Ask for the column of each feature that no single name fits, or that was found wrongly."""
    #: The column of each feature that is settled, None if there is none.
    settled: dict[str, str | None] = {
        name: of.match.column
        for name, of in found.sections.items()
        if of.match is not None and of.match.score > 1 and not of.match.others
    }

    def wrong_names(answer: str) -> list[str]:
        names = [answer] if answer in settled else answer.replace(",", " ").split()
        if answer == "none" or {*names} <= {*settled}:
            return [] if answer == "none" else names
        raise typer.BadParameter("write names of the session's features")

    said, new = "Found by name", dict(settled)
    while True:
        if new:
            pairs = (f"{a} = {'-' if b is None else as_toml(b)}" for a, b in new.items())
            _say(f"{said}: {', '.join(pairs)}")
            for name in _asked("  which of these are wrong?", wrong_names, "none"):
                del settled[name]
        open_ones = [each for name, each in found.sections.items() if name not in settled]
        if not open_ones:
            return
        left = [name for name in found.table.columns if name not in settled.values()]
        show(err, "Other columns of the table:")
        for number, name in enumerate(left, 1):
            _say(f"{number:3}  {name}   {found.contents(name)}")
        for section in open_ones:
            _ask_column(found, section, left, settled)
        said, new = "Chosen", {each.feature.name: settled[each.feature.name] for each in open_ones}


def _ask_column(
    found: MappingSuggestion,
    section: Section,
    left: list[str],
    settled: dict[str, str | None],
) -> None:
    feature, match = section.feature, section.match
    used = {name: of for of, name in settled.items() if name is not None}

    def column(answer: str) -> str | None:
        name = answer
        if answer.isdecimal() and 0 < int(answer) <= len(left):
            name = left[int(answer) - 1]
        if name in used:
            raise typer.BadParameter(f"{name} is the column of {used[name]}")
        if name != "-" and not found.has_column(name):
            raise typer.BadParameter("give a column's number or name, or - if there is none")
        return None if name == "-" else name

    question, default = f"{_called(feature)}: which column?", None
    if match is not None and match.column not in used:
        near = [each for each in (match.column, *match.others[:2]) if each in left]
        question += f" Maybe {' or '.join(f'{left.index(n) + 1} {as_toml(n)}' for n in near)}"
        likely = match.score >= 0 and not match.others
        default = str(left.index(match.column) + 1) if likely else None
    name = settled[feature.name] = _asked(question, column, default)
    if name is None:
        section.match, section.points = None, [Point(settings={"lacking": True}, taken=True)]
        return
    # A score of 2: the name is right, and its codes may still mean anything.
    found.choose(feature, Match(name, 2), used)
    # Who had it as a guess needs another one.
    for other in [*found.sections.values()]:
        guessed = other.match is not None and other.match.column == name
        if guessed and other.feature.name not in settled:
            found.choose(other.feature, None, {*used, name})


# --- how a column is read -------------------------------------------------------------------------


def _ask_points(section: Section, gone: set[str]) -> None:
    """Ask about each point of a feature that is marked; later settings replace earlier ones.

    ``gone`` are the texts that are missing values in a column before, and gets those of this one.
    """
    show(err, "")
    given = section.settings
    said = f"{_called(section.feature)} = {as_toml(given.get('column', ''))}"
    said += f" x {given.get('factor', 1):.6g}" * ("factor" in given)
    _say(said + f" + {given.get('offset', 0):.6g}" * ("offset" in given))
    for place, point in enumerate(section.points):
        if point.mark:
            answered = section.points[place] = _answered(section.feature, point, gone)
            for before, other in enumerate(section.points[:place]):
                kept = {a: b for a, b in other.settings.items() if a not in answered.settings}
                section.points[before] = dataclasses.replace(other, settings=kept)


def _answered(feature: Feature, point: Point, gone: set[str]) -> Point:
    """Return a point as a person answers it: without a mark, unless it stays open."""
    if point.counts and feature.kind == "numeric":
        return _ask_texts(point, gone)
    if point.counts and point.mark == "to do":
        return _ask_levels(feature, point)
    if not point.taken and any(each in _ASKED for each in point.settings.values()):
        return _ask_settings(point)
    if "sentinels" in point.settings:
        return _ask_sentinels(point)
    if not point.settings:  # only the file can say more
        right = _confirmed(point.why, "right?", default=True)
        return Point() if right else dataclasses.replace(point, mark="to do")
    default = True if point.taken else None
    if _confirmed(point.why, "right?" if point.taken else "take it?", default=default):
        return dataclasses.replace(point, why="", mark="", taken=True)
    return _ask_levels(feature, point) if point.counts else Point()


def _ask_sentinels(point: Point) -> Point:
    """Ask which numbers mean a missing value."""
    numbers = point.settings["sentinels"]

    def chosen(answer: str) -> list[float]:
        if answer in ("all", "none"):
            return numbers if answer == "all" else []
        found = {*map(_number, answer.replace(", ", " ").split())}
        if not found <= {*numbers}:
            raise typer.BadParameter("write some of these numbers, all or none")
        return [number for number in numbers if number in found]

    _say(point.why, "  ")
    kept = _asked("  which are missing values?", chosen, "all" if point.taken else "none")
    return Point(settings={"sentinels": kept}, taken=True) if kept else Point()


def _ask_settings(point: Point) -> Point:
    """Ask for the values of settings that nobody can guess."""
    _say(point.why, "  ")
    settings = dict(point.settings)
    for name, value in point.settings.items():
        if value == "NAME HERE":
            settings[name] = _asked(f"  column of the {name}", str)
        elif value in _ASKED:
            question = "  session's value = value here x FACTOR (+ OFFSET)"
            settings |= _asked(question, _factor, value and "1")
            if name == "time_factor":
                settings = {"time_factor": settings["factor"]}
    if None in settings.values():
        return point
    if settings.get("factor", settings.get("time_factor")) == 1.0:
        # The header's unit, if it was taken, is that of the session.
        return Point(settings={"unit": settings["to"]} if "to" in settings else {}, taken=True)
    return Point(settings=settings, taken=True)


def _ask_levels(feature: Feature, point: Point) -> Point:
    """Ask for the level of each code that has none."""
    names = [*(feature.levels or ("0", "1"))]
    levels = {code: level for code, level in point.levels.items() if level is not None}
    of_choices = {code for _, settings in point.choices for code in settings["levels"]}
    asked = {*point.levels, *of_choices, *point.settings.get("missing", ())} - {*levels}
    known = {code: levels.get(code, code) for code in point.counts if code not in asked}
    if known:
        pairs = (f"{as_toml(code)} = {level}" for code, level in known.items())
        _say(f"known: {', '.join(pairs)}", "  ")
    meant = f"1 ({(feature.unit or 'yes').removeprefix('1 = ')}), 0"
    if feature.kind != "binary":
        meant = f"{', '.join(names)} (first letters are enough)"
    _say(f"what does each code mean? {meant}, or - if missing", "  ")

    def level(answer: str) -> str:
        exact = [name for name in names if name.casefold() == answer.casefold()]
        begun = [name for name in names if name.casefold().startswith(answer.casefold())]
        found = ["-"] if answer == "-" else exact or begun
        if len(found) != 1:
            raise typer.BadParameter(f"write {' or '.join(names)}, or -")
        return found[0]

    many = f"it has {len(asked)} codes"
    if len(asked) > 20 and not _confirmed(many, "is it the right column?", default=True):
        return point
    missing = []
    for code, n in sorted(point.counts.most_common(), key=lambda each: looks_missing(each[0])):
        if code in asked:
            # With a plus it is a minus.
            default = "-" if looks_missing(code) and not (code == "-" and "+" in asked) else None
            answer = _asked(f"    {as_toml(code)} {n}", level, default)
            if answer == "-":
                missing.append(code)
            else:
                levels[code] = int(answer) if feature.kind == "binary" else answer
    settings = {"missing": missing} if missing else {}
    return Point(settings=settings, taken=True, levels=levels, counts=point.counts)


def _ask_texts(point: Point, gone: set[str]) -> Point:
    """Ask whether texts in a column of numbers, or numbers beyond the bounds, are read rightly.

    ``gone`` are texts that were missing values in a column before.
    """
    # Of numbers beyond the bounds nothing is proposed.
    beyond = point.mark == "uncertain" and not point.settings
    own = {text: float(text.replace(",", ".")) for text in point.counts if beyond}
    #: The number of each text, None for a missing value.
    read: dict[str, float | None] = dict.fromkeys(point.settings.get("missing", ()))
    read |= own | point.settings.get("values", {})
    # A frequent text may well mean a number, such as 0.
    unread = [
        text
        for text, n in point.counts.items()
        if text not in gone
        if text not in read or (read[text] is None and n >= 10 and not is_absent_text(text))
    ]
    if len(unread) > 20:
        _say(f"{point.why}; say in the mapping file what means a missing value", "  ")
        return point
    for text in unread:
        read[text] = _asked(f"  {as_toml(text)} {point.counts[text]}: a number, or -", _number)

    def change(answer: str) -> dict[str, float | None]:
        if answer in ("yes", "y", "-"):
            return dict.fromkeys(read if answer == "-" else ())
        changed = {}
        for each in re.split(r"[,;] ", answer):
            text, _, value = (part.strip().strip('"') for part in each.rpartition("="))
            if text not in read:
                raise typer.BadParameter('write texts as they are shown: "<5" = 2.5, "no" = -')
            changed[text] = _number(value)
        return changed

    if beyond:
        _say(point.why, "  ")
    shown, grouped = {text: of for text, of in read.items() if text not in unread}, True
    while shown:
        _say(f"read as: {_readings_text(shown, point.counts, grouped)}", "  ")
        changed = _asked("  right?", change, "yes")
        read = read | changed
        # What was shown as similar to a text that changed is shown by itself.
        kinds = {_kind(text) for text in changed}
        shown = {text: of for text, of in read.items() if changed and _kind(text) in kinds}
        grouped = False
    values = {text: number for text, number in read.items() if number is not None}
    missing = [text for text, number in read.items() if number is None]
    gone |= {*missing}
    settings = dict(point.settings)
    settings["values"] = {text: of for text, of in values.items() if own.get(text) != of}
    settings["missing"] = [text for text in missing if text not in own]
    settings["sentinels"] = [own[text] for text in missing if text in own]
    return Point(settings={name: of for name, of in settings.items() if of}, taken=True)


def _kind(text: str) -> str:
    """Return a text without its first number."""
    return re.sub(r"\d+([.,]\d+)?", "#", text, count=1)


def _readings_text(
    read: Mapping[str, float | None], counts: Mapping[str, int], grouped: bool
) -> str:
    """Return texts with what is read and their counts; of those of one kind only the first.

    What is missing and not known as such comes first, with a question mark.
    """
    similar: dict[tuple[bool, str], list[str]] = {}
    for text, number in read.items():
        unsure = number is None and not is_absent_text(text)
        first = re.search(r"\d+([.,]\d+)?", text)
        same = first is not None and number == float(first[0].replace(",", "."))
        kind = _kind(text) if grouped and same else text
        similar.setdefault((not unsure, kind), []).append(text)
    said = []
    for (sure, _), texts in sorted(
        similar.items(), key=lambda each: (each[0][0], read[each[1][0]] is None)
    ):
        number = read[texts[0]]
        value = f"missing{'' if sure else '?'}" if number is None else f"{number:.15g}"
        value += f" and {len(texts) - 1} like it" if len(texts) > 1 else ""
        said.append(f"{as_toml(texts[0])} = {value} ({sum(counts[text] for text in texts)})")
    return ", ".join(said)
