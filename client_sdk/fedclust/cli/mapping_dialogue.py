"""The questions of ``fedclust check --ask`` about a suggested mapping."""

import contextlib
import dataclasses
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from fedclust.cli.console import err, show
from fedclust.data.advice import as_toml
from fedclust.data.column_match import Match
from fedclust.data.column_points import Point, Section
from fedclust.data.suggest import MappingSuggestion
from fedclust.schema.feature import Feature
from fedclust.site.terminal import WIDEST, typed
from fedclust.wire.errors import UsageError

_INSTEAD: Final = "no --ask"
#: Of more texts than these, numbers are not asked one by one.
_MOST_ASKED: Final = 12


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
        The file is not written in the way that was found, which only options can change.
    """
    _say("Enter takes the answer in [brackets]; - stands for none, or for a missing value.")
    _say(
        "Texts in a column of numbers are shown with how they are read. Write - if all of them are "
        "missing values, or change one: TEXT = NUMBER, or TEXT = -."
    )
    _say("Ctrl-C ends the questions: then the mapping file marks what is still open.")
    with contextlib.suppress(KeyboardInterrupt, EOFError):
        _ask_format(found)
        _ask_columns(found)
        for section in found.sections.values():
            if section.marked:
                _ask_points(section)


def _say(text: str, indent: str = "") -> None:
    for line in textwrap.wrap(text, WIDEST, initial_indent=indent, subsequent_indent=indent + "  "):
        show(err, line)


def _asked(question: str, indent: str = "  ") -> str:
    return typed(f"{indent}{question}", _INSTEAD, end=True)


def _confirmed(question: str, default: bool | None) -> bool:
    """Return whether a person says yes; None as the default asks until it is said."""
    choices = {True: "[y]/n", False: "y/[n]", None: "y/n"}[default]
    while True:
        answer = _asked(f"{question} {choices}").casefold()
        if answer in ("y", "yes", "n", "no"):
            return answer in ("y", "yes")
        if not answer and default is not None:
            return default


def _number(question: str) -> float | None:
    """Return a number that a person types; None for -."""
    while True:
        answer = _asked(question)
        if answer == "-":
            return None
        if (number := _as_number(answer)) is not None:
            return number


def _as_number(text: str) -> float | None:
    try:
        number = float(text.replace(",", "."))
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def _ask_format(found: MappingSuggestion) -> None:
    for note in [*found.table.notes]:
        _say(note)
        if not _confirmed("right?", True):
            raise UsageError(
                "say how the table is written (--sheet, --header-row, --encoding, --delimiter, "
                "--decimal), and start again"
            )
        found.table.notes.remove(note)


# --- columns --------------------------------------------------------------------------------------


def _called(feature: Feature) -> str:
    """Return a feature with its unit, or what 1 means, and its levels."""
    said = feature.name
    if feature.unit:
        said += f" ({feature.unit})"
    return said + (f", one of {', '.join(feature.levels)}" if feature.levels else "")


def _is_sure(section: Section) -> bool:
    return section.match is not None and section.match.score > 1 and not section.match.others


def _ask_columns(found: MappingSuggestion) -> None:
    """Ask for the column of each feature that no single name fits, or that was found wrongly."""
    #: The column of each feature that is settled, None if there is none.
    settled: dict[str, str | None] = {
        name: of.match.column for name, of in found.sections.items() if _is_sure(of) and of.match
    }
    said, new = "Found by name", dict(settled)
    while True:
        if new:
            pairs = (f"{a} = {'-' if b is None else as_toml(b)}" for a, b in new.items())
            _say(f"{said}: {', '.join(pairs)}")
            for name in _wrong_names(settled):
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


def _wrong_names(settled: Collection[str]) -> list[str]:
    while True:
        names = _asked("which of these are wrong? [none]").replace(",", " ").split()
        if {*names} <= {*settled}:
            return names


def _ask_column(
    found: MappingSuggestion,
    section: Section,
    left: Sequence[str],
    settled: dict[str, str | None],
) -> None:
    feature, match = section.feature, section.match
    used = {name: of for of, name in settled.items() if name is not None}
    guess = match.column if match is not None and match.column not in used else None
    likely = guess is not None and match is not None and match.score >= 0
    question = f"{_called(feature)}: which column?"
    if guess is not None:
        number = f"{left.index(guess) + 1} {as_toml(guess)}"
        question += f" [{number}]" if likely else f" maybe {number}"
    while True:
        answer = _asked(question, "")
        name = guess if likely and not answer else answer
        if answer.isdecimal() and 0 < int(answer) <= len(left):
            name = left[int(answer) - 1]
        if name == "-":
            settled[feature.name] = section.match = None
            section.points = [Point(settings={"lacking": True}, taken=True)]
            return
        if name in used:
            _say(f"{name} is the column of {used[name]}", "  ")
        elif name in found.table.columns:
            break
        else:
            _say("give the number or the name of a column, or - if there is none", "  ")
    settled[feature.name] = name
    # A score of 2: the name is right, and its codes may still mean anything.
    found.choose(feature, Match(name, 2), used)
    # Who had it as a guess needs another one.
    for other in [*found.sections.values()]:
        guessed = other.match is not None and other.match.column == name
        if guessed and other.feature.name not in settled:
            found.choose(other.feature, None, {*used, name})


# --- how a column is read -------------------------------------------------------------------------


def _ask_points(section: Section) -> None:
    """Ask about each point of a feature that is marked; later settings replace earlier ones."""
    show(err, "")
    column = section.settings.get("column", "")
    _say(f"{_called(section.feature)} = {as_toml(column)}")
    for place, point in enumerate(section.points):
        if not point.mark:
            continue
        answered = _answered(section.feature, point)
        section.points[place] = answered
        if answered.taken:
            for before, other in enumerate(section.points[:place]):
                kept = {a: b for a, b in other.settings.items() if a not in answered.settings}
                section.points[before] = dataclasses.replace(other, settings=kept)


def _answered(feature: Feature, point: Point) -> Point:
    """Return a point as a person answers it: without a mark, unless it stays open."""
    if point.counts and feature.kind == "numeric":
        return _ask_texts(point)
    if point.counts and point.mark == "to do":
        return _ask_levels(feature, point)
    if any(value in (None, "NAME HERE") for value in point.settings.values()):
        return _ask_setting(point)
    return _ask_yes_no(point)


def _ask_yes_no(point: Point) -> Point:
    _say(point.why, "  ")
    if _confirmed("right?" if point.taken or not point.settings else "take it?", _default(point)):
        return dataclasses.replace(point, mark="", taken=True)
    if not point.settings:  # only a person who knows the table can say it in the file
        return dataclasses.replace(point, mark="to do")
    return Point()


def _default(point: Point) -> bool | None:
    return True if point.taken or not point.settings else None


def _ask_setting(point: Point) -> Point:
    """Ask for the value of a setting that nobody can guess."""
    _say(point.why, "  ")
    settings = dict(point.settings)
    for name, value in point.settings.items():
        if value == "NAME HERE":
            settings[name] = _asked(f"{name}:") or value
        elif value is None:
            settings[name] = _number(f"{name} (session's value = value here x {name}):")
    if any(value in (None, "NAME HERE") for value in settings.values()):
        return point
    return dataclasses.replace(point, mark="", settings=settings, taken=True)


def _ask_levels(feature: Feature, point: Point) -> Point:
    """Ask for the level of each code that has none."""
    levels = [*(feature.levels or ("0", "1"))]
    known = {code: level for code, level in point.levels.items() if level is not None}
    if known:
        pairs = (f"{as_toml(code)} = {level}" for code, level in known.items())
        _say(f"known: {', '.join(pairs)}", "  ")
    meant = f"1 ({(feature.unit or 'yes').removeprefix('1 = ')}), 0"
    if feature.kind != "binary":
        meant = ", ".join(levels)
    _say(f"what does each code mean? {meant}, or - for a missing value", "  ")
    gone = [*point.settings.get("missing", ())]
    missing: list[str] = []
    codes = [
        code
        for code, _ in point.counts.most_common()
        if code not in known and _is_open(code, point)
    ]
    codes.sort(key=lambda code: code in gone)
    answers: dict[str, str | int | None] = {}
    for code in codes:
        level = _ask_level(f"{as_toml(code)} {point.counts[code]}:", levels, code in gone)
        if level == "-":
            missing.append(code)
        else:
            answers[code] = int(level) if feature.kind == "binary" else level
    return dataclasses.replace(
        point,
        mark="",
        settings={"missing": missing} if missing else {},
        taken=True,
        choices=(),
        levels={**known, **answers},
    )


def _is_open(code: str, point: Point) -> bool:
    """Return whether a code has no level and is none of the session's."""
    of_choices = {code for _, settings in point.choices for code in settings["levels"]}
    return code in {*point.levels, *of_choices, *point.settings.get("missing", ())}


def _ask_level(question: str, levels: Sequence[str], missing: bool) -> str:
    while True:
        answer = _asked(f"{question}{' [-]' * missing}", "    ")
        if answer == "-" or (not answer and missing):
            return "-"
        exact = [level for level in levels if level.casefold() == answer.casefold()]
        begun = [level for level in levels if level.casefold().startswith(answer.casefold())]
        found = exact or begun
        if answer and len(found) == 1:
            return found[0]
        _say(f"write {' or '.join(levels)}, or its first letters, or -", "    ")


def _ask_texts(point: Point) -> Point:
    """Ask whether texts in a column of numbers are read rightly."""
    settings = dict(point.settings)
    values: dict[str, float] = dict(settings.pop("values", {}))
    missing = dict.fromkeys(settings.pop("missing", ()))
    unread = [text for text in point.counts if text not in values and text not in missing]
    if len(unread) > _MOST_ASKED:
        _say(f"{point.why}; say in the mapping file what means a missing value", "  ")
        return point

    def read_as(text: str, number: float | None) -> None:
        values.pop(text, None)
        missing.pop(text, None)
        if number is None:
            missing[text] = None
        else:
            values[text] = number

    for text in unread:
        read_as(text, _number(f"{as_toml(text)} {point.counts[text]}: a number, or -:"))
    while True:
        _say(_readings_text(values, missing, point.counts), "  ")
        answer = _asked("right? [yes]")
        if answer in ("", "y", "yes"):
            break
        text, _, value = (part.strip().strip('"') for part in answer.rpartition("="))
        if answer == "-":
            for each in point.counts:
                read_as(each, None)
        elif text in point.counts and (value == "-" or _as_number(value) is not None):
            read_as(text, _as_number(value))
        else:
            _say('write a text as it is shown, such as "<5" = 2.5', "  ")
    settings |= {"missing": [*missing]} if missing else {}
    settings |= {"values": values} if values else {}
    return dataclasses.replace(point, mark="", settings=settings, taken=True)


def _readings_text(
    values: Mapping[str, float], missing: Iterable[str], counts: Mapping[str, int]
) -> str:
    """Return texts with their counts and what is read."""
    gone = ", ".join(f"{as_toml(text)} ({counts[text]})" for text in missing)
    said = [f"{as_toml(text)} = {number:.15g} ({counts[text]})" for text, number in values.items()]
    parts = [", ".join(said), f"missing: {gone}" * bool(gone)]
    return f"texts: {'; '.join(filter(None, parts))}"
