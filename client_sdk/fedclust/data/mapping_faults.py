"""Say in plain words what is wrong in a mapping file or in the options of a data set."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from pydantic import ValidationError

from fedclust.schema.field_names import nearest_name

#: What to write instead, by pydantic's type of the error; ``{name}`` is from its context.
_PLAIN: Final = {
    "string_type": "write text, in quotes",
    "tuple_type": "write a list, in square brackets",
    "float_type": "write a number, without quotes",
    "finite_number": "write a finite number",
    "int_type": "write a whole number, without quotes",
    "bool_type": "write true or false, without quotes",
    "dict_type": "write a table of names and values",
    "model_type": "write a table of settings",
    "literal_error": "write {expected}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "string_too_long": "too long: the limit is {max_length}",
    "string_too_short": "it is empty",
}
#: Levels, of which the errors name each kind that a level may have.
_A_LEVEL: Final = "write the level in quotes, or 0 or 1 for a binary feature"


def first_fault(error: Exception, known: Sequence[Collection[str]]) -> tuple[str, str]:
    """Return the place of the first fault, and what to do, without repeating text from there.

    Parameters
    ----------
    error : ValidationError, TypeError or ValueError
    known : sequence of collection of str
        The settings at the top, and those below the name of a feature.
    """
    if not isinstance(error, ValidationError):
        return "", "only text, numbers, lists and tables can be given"
    found = error.errors(include_url=False)[0]
    location, kind, given = list(found["loc"]), found["type"], found["input"]
    if "levels" in location and len(location) > location.index("levels") + 1:
        location = location[: location.index("levels") + 2]
        return _place(location), _A_LEVEL
    if kind == "extra_forbidden":
        names = known[0 if len(location) == 1 else 1]
        near = nearest_name(str(location[-1]), names)
        meant = f": did you mean {near}?" if near else f"; there are {', '.join(names)}"
        return _place(location), f"there is no such setting{meant}"
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if kind == "string_type" and is_number and "missing" in location:
        below = "" if location[0] == "features" else " below [features.NAME]"
        why = f'write it in quotes ("{given}"), or use sentinels = [{given}]{below}'
        return _place(location), why
    plain = _PLAIN.get(kind)
    return _place(location), plain.format(**found.get("ctx", {})) if plain else found["msg"]


def _place(location: Sequence[Any]) -> str:
    """Return the path of a setting; an entry of a list by its number, from 1."""
    names = ".".join(part for part in location if isinstance(part, str))
    entries = [part + 1 for part in location if isinstance(part, int)]
    return f"{names}, entry {entries[-1]}" if entries else names
