"""What to do about values that do not fit: the option, and the lines for the mapping file."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fedclust.schema.display import counted, first_few
from fedclust.schema.feature import Feature

#: What to do about codes.
CODES_ADVICE: Final = (
    'say in the mapping file (levels) what each code is, or that it is missing (= ""): fedclust '
    "check --ask asks"
)
#: At most this many names of columns are listed.
_MOST_NAMES: Final = 10
#: More texts than these are free text.
_MOST_TEXTS: Final = 40


def bounds_text(feature: Feature) -> str:
    """Return a feature's bounds in brackets; "" where it lacks one."""
    if feature.lower is None or feature.upper is None:
        return ""
    return f" ({feature.lower:g} to {feature.upper:g}{f' {feature.unit}' if feature.unit else ''})"


def outside_text(count: int, feature: Feature) -> str:
    """Return how many values are outside the bounds, and what happens to them."""
    what = "It counts as a measurement" if count == 1 else "They count as measurements"
    return (
        f"{counted(count, 'value')} outside the session's bounds{bounds_text(feature)}. {what}; "
        "only what leaves is limited to the bounds."
    )


def list_names(names: Sequence[str]) -> str:
    """Return names of columns, at most ten, and how many more there are."""
    return first_few(names, _MOST_NAMES)


def mapping_lines(feature: str, table: str, line: str) -> str:
    """Return lines of a mapping file; ``table`` is below the feature's own."""
    return f"[features.{mapping_key(feature)}{table}]\n{line}"


def mapping_key(feature: str) -> str:
    """Return a feature's name as a key of TOML."""
    return feature if re.fullmatch(r"[A-Za-z0-9_-]+", feature) else json.dumps(feature)


def conversion_text(factor: float, offset: float) -> str:
    """Return how a value becomes the session's, as `` x 1.25 - 25``; "" if it is the same."""
    said = f" x {factor:.4g}" if factor != 1 else ""
    return said + (f" {'+-'[offset < 0]} {abs(offset):.4g}" if offset else "")


def sentinel_advice(feature: str, number: str) -> str:
    """Return how to say that a number of a feature stands for a missing value."""
    option = shlex.join(["--sentinel", f"{feature}={number}"])
    lines = mapping_lines(feature, "", f"sentinels = [{number}]")
    return (
        f"If it stands for a missing value, give {option} (sentinels=), or in the mapping file "
        f"(mapping=, --mapping), in this section:\n{lines}"
    )


def unknown_text(feature: Feature) -> str:
    """Return which codes the session knows, and what to do about others."""
    levels = feature.levels or ("0", "1")
    known = ", ".join(levels[:12]) + (", ..." if len(levels) > 12 else "")
    return f"The session knows {known}: {CODES_ADVICE}"


def too_few_text(what: str, least: float) -> str:
    """Return that ``what`` is less than the share of values that the site asks for."""
    return (
        f"{what}, and min_present (--min-present) asks for {least:.1%}; only a session with "
        "missing: mask does without it"
    )


def on_one_line(advice: str) -> str:
    """Return advice without line breaks."""
    return advice.replace(":\n", ": ").replace("\n", " and ")


def count_repeated(ids: Iterable[str]) -> tuple[int, int]:
    """Return how many ids occur several times, and in how many rows."""
    counts = [count for count in Counter(ids).values() if count > 1]
    return len(counts), sum(counts)


def repeated_text(n_ids: int, n_rows: int) -> str:
    """Return how many ids occur several times, in words."""
    return f"{n_ids} id{'s occur' if n_ids > 1 else ' occurs'} in several rows ({n_rows} rows)"


def is_free_text(cells: Counter[str]) -> bool:
    """Return whether texts are so many, or so often alone, that they may name persons."""
    once = sum(n == 1 for n in cells.values())
    return len(cells) > _MOST_TEXTS or once > max(5, len(cells) // 2)


def with_counts(cells: Counter[str], most: int = 12) -> str:
    """Return the commonest texts with counts; of free text, which may name persons, a number."""
    if is_free_text(cells):
        shown = [as_toml(cell) for cell in cells if cell[:1].isdecimal()][:5]
        return f"{len(cells)} different texts{f', such as {list_names(shown)}' if shown else ''}"
    said = [f"{as_toml(cell) if cell else 'empty'} {n}" for cell, n in cells.most_common(most)]
    return ", ".join(said) + (f" and {len(cells) - most} more" if len(cells) > most else "")


def as_toml(value: Any) -> str:
    """Return a value of a mapping file as TOML, in one line."""
    if isinstance(value, Mapping):
        pairs = (f"{as_toml(key)} = {as_toml(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def setting_lines(settings: Mapping[str, Any]) -> list[str]:
    """Return a line of a mapping file for each setting; None is to be filled in."""
    return [
        f"{name} = {'' if value is None else as_toml(value)}" for name, value in settings.items()
    ]
