"""Values as people read them: no Python literals, and no rounding noise in shares."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal

from fedclust.schema.feature import Feature, Outcome, Trajectory

#: Shares and scaled values this close to 0, and shares this close to 1, differ by rounding.
_ROUNDING = 1e-12
#: The share of a column's spread below which a value only differs from 0 by sums of numbers.
_REST = 1e-6
#: First characters of a formula in a spreadsheet.
_SIGNS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
#: In English, whatever locale a program around this one has set.
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
#: What marks text up within a line of Markdown, Pandoc's included, and what undoes an escape.
_MARKUP = re.compile(
    r"[\\`*~^$|]|(?<![^\W_])_|_(?![^\W_])|<(?=[A-Za-z/!?])|&(?=#?\w+;)|(?<!\w)@(?=\w)"
    r"|\](?=[(\[:{])|\[(?=\^)"
)
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")


#: Most clusters, columns or sites that a figure's description names.
MOST_JOINED = 12


def value_text(value: object) -> str:
    """Return an option's value: yes and no, a list with commas, "not set" for None."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return f"({named_values(value)})"
    if isinstance(value, list | tuple):
        return listed(value)
    return plain(value) if isinstance(value, float) else str(value)


def listed(values: Iterable[object]) -> str:
    """Return values with commas between them."""
    return ", ".join(map(value_text, values))


def and_text(values: Iterable[str]) -> str:
    """Return texts as in a sentence: a, b and c."""
    *first, last = values
    return f"{', '.join(first)} and {last}" if first else last


def named_values(values: Mapping[str, object]) -> str:
    """Return names and values, such as ``n_clusters: 3, evaluate: yes``."""
    return ", ".join(f"{name}: {value_text(value)}" for name, value in values.items())


def plain(value: float, digits: int = 6) -> str:
    """Return a number in so many digits, without a power of ten: 44.9, 0.00000019."""
    shown = f"{Decimal(f'{value + 0.0:.{digits}g}'):f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def time_text(at: datetime) -> str:
    """Return a time as people write it, with its zone: 26 Nov 2026, 18:35 UTC."""
    at = at.astimezone(UTC)
    month = _MONTHS[3 * at.month - 3 : 3 * at.month]
    return f"{at.day} {month} {at:%Y, %H:%M} UTC"


def percent(share: float | None) -> str:
    """Return a share as a whole number of per cent; a dash for none."""
    return "–" if share is None else f"{100 * share:.0f} %"


def share(value: float) -> float:
    """Return a share without rounding noise: 1.1e-16 is 0, and 1 - 1.1e-16 is 1."""
    return 1.0 if abs(value - 1.0) < _ROUNDING else without_noise(value)


def equal_text(all_equal: Mapping[str, tuple[int, int]]) -> str:
    """Return at how many sites the records of each column are all equal."""
    found = (f"{isolated(name)} at {n} of {held} sites" for name, (n, held) in all_equal.items())
    return ", ".join(found)


def without_noise(value: float) -> float:
    """Return a share, or a number in the scaled space, as 0 if it differs from it by rounding."""
    return 0.0 if abs(value) < _ROUNDING else value


def without_rest(value: float, spread: float) -> float:
    """Return a value in own units as 0 if its distance from 0 is a trifle of the spread."""
    return 0.0 if abs(value) < _REST * spread else value


def spreadsheet_text(text: str) -> str:
    """Return a text that no spreadsheet reads as a formula.

    Some languages also use the wide forms of the signs.
    """
    return f"'{text}" if text.lstrip()[:1] in _SIGNS else text


def isolated(text: str) -> str:
    """Isolate a name written from right to left, so that numbers after it keep their order."""
    return text if text.isascii() else f"\u2068{text}\u2069"


def titled(name: str) -> str:
    """Return a name of a cluster as it stands alone; what somebody wrote keeps its letters."""
    return isolated(re.sub(r"^cluster(?= \d+$)", "Cluster", name))


def in_markdown(text: str) -> str:
    """Return what somebody else wrote so that Markdown shows it and does nothing else.

    It stands within a line: text that people write into a definition has no line break.
    """
    return _MARKUP.sub(r"\\\g<0>", text)


def from_markdown(text: str) -> str:
    """Undo :func:`in_markdown`, for a page that shows the text as it is."""
    return _ESCAPED.sub(r"\1", text)


def outcome_details(outcome: Outcome) -> list[str]:
    """Return unit, kind, cells and values of an outcome."""
    details = [outcome.unit] if outcome.unit else []
    if outcome.kind == "binary":
        details.append("yes/no")
    elif outcome.kind == "categorical":
        details.append(f"categorical: {listed(outcome.levels or ())}")
    elif outcome.kind == "ordered":
        details.append(f"counted in {listed(outcome.cells[:-1])}")
    else:
        details.append(f"time to {outcome.event}, intervals to {listed(outcome.edges or ())}")
    if outcome.values is not None:
        details.append(f"cells count as {listed(outcome.values)}")
    return details


_FILLS = {
    "linear": "the line between values",
    "last": "the last value before",
    "none": "the nearest value",
    "spline": "a natural spline through the values, fitted by least squares,",
}


def trajectory_text(trajectory: Trajectory) -> str:
    """Return how a trajectory becomes columns, in one line."""
    unit = f" {trajectory.time_unit}" if trajectory.time_unit else ""
    if trajectory.grid is None:
        return f"trajectory: {', '.join(trajectory.summary or ())} of each person"
    times = ", ".join(f"{time:g}" for time in trajectory.grid)
    how = _FILLS[trajectory.fill]
    return f"trajectory at {times}{unit}: {how} within {trajectory.window:g}{unit}"


def variable_text(feature: Feature | Outcome | Trajectory) -> str:
    """Return a variable with unit, levels, transform, bounds and weight."""
    if isinstance(feature, Outcome):
        return f"{feature.name} ({', '.join(outcome_details(feature))})"
    details = [feature.unit] if feature.unit else []
    if isinstance(feature, Trajectory):
        details.append(trajectory_text(feature))
    elif feature.kind == "binary":
        details.append("yes/no")
    elif feature.levels:
        details.append(f"categorical: {', '.join(feature.levels)}")
    if feature.transform != "none":
        details.append("log(1 + x)" if feature.transform == "log1p" else "natural logarithm")
    low, high = feature.lower, feature.upper
    if low is not None and high is not None:
        details.append(f"bounds {low:g} to {high:g}")
    elif low is not None:
        details.append(f"lower bound {low:g}")
    elif high is not None:
        details.append(f"upper bound {high:g}")
    if feature.weight != 1.0:
        details.append(f"weight {feature.weight:g}")
    return f"{feature.name} ({', '.join(details)})" if details else feature.name


def joined(entries: Iterable[str]) -> str:
    """Return the first entries as one text, and how many more there are."""
    every = list(entries)
    more = len(every) - MOST_JOINED
    return "; ".join(every[:MOST_JOINED]) + (f"; and {more} more." if more > 0 else ".")


def persons(size: int | None, share: float | None) -> str:
    """Return a number of persons with its share, where they are known."""
    if size is None:
        return "not measured"
    return f"{size} persons" + ("" if share is None else f" ({percent(share)})")
