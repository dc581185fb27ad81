"""A validator for the part of JSON Schema that ``openapi.json`` uses; others raise KeyError."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_IGNORED = {"title", "description", "default", "format", "$ref", "allOf", "anyOf", "oneOf", "type"}


def faults(
    value: Any, schema: dict[str, Any], document: dict[str, Any], at: str = ""
) -> Iterator[str]:
    """Yield where ``value`` does not fit ``schema``, references being into ``document``."""
    if "$ref" in schema:
        yield from faults(value, resolve(schema["$ref"], document), document, at)
    for part in schema.get("allOf", ()):
        yield from faults(value, part, document, at)
    for key, enough in (("anyOf", lambda n: n > 0), ("oneOf", lambda n: n == 1)):
        if key in schema:
            fitting = sum(not [*faults(value, part, document, at)] for part in schema[key])
            if not enough(fitting):
                yield f"{at}: fits {fitting} of {key}"
    kinds = schema.get("type")
    if kinds is not None:
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not any(_TYPES[kind](value) for kind in kinds):
            yield f"{at}: is not {kinds}"
            return
    for key, limit in schema.items():
        if key not in _IGNORED:
            yield from _CHECKS[key](value, limit, schema, document, at)


def resolve(reference: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return what a reference of the document points to; KeyError where there is nothing."""
    found: Any = document
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return dict(found)


def _items(value: Any, items: Any, _: Any, document: Any, at: str) -> Iterator[str]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from faults(item, items, document, f"{at}/{index}")


def _properties(value: Any, properties: Any, _: Any, document: Any, at: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, part in properties.items():
            if name in value:
                yield from faults(value[name], part, document, f"{at}/{name}")


def _additional(value: Any, allowed: Any, schema: Any, document: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict) or allowed is True:
        return
    for name in value.keys() - schema.get("properties", {}).keys():
        if allowed is False:
            yield f"{at}/{name}: is not in the schema"
        else:
            yield from faults(value[name], allowed, document, f"{at}/{name}")


def _prefix_items(value: Any, parts: Any, _: Any, document: Any, at: str) -> Iterator[str]:
    for index, part in enumerate(parts):
        yield from faults(value[index], part, document, f"{at}/{index}")


def _required(value: Any, names: Any, _: Any, __: Any, at: str) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{at}/{name}: is missing" for name in names if name not in value)


def _check(test: Callable[[Any, Any], bool], *kinds: type) -> Callable[..., Iterator[str]]:
    def check(value: Any, limit: Any, _: Any, __: Any, at: str) -> Iterator[str]:
        wanted = not kinds or (isinstance(value, kinds) and not isinstance(value, bool))
        if wanted and not test(value, limit):
            yield f"{at}: breaks a limit of {limit}"

    return check


def _not(value: Any, schema: Any, _: Any, document: Any, at: str) -> Iterator[str]:
    if not [*faults(value, schema, document, at)]:
        yield f"{at}: is what it may not be"


def _discriminator(value: Any, said: Any, schema: Any, _: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    if value.get(said["propertyName"]) not in said["mapping"]:
        yield f"{at}/{said['propertyName']}: names no alternative"
    if {part["$ref"] for part in schema["oneOf"]} != set(said["mapping"].values()):
        yield f"{at}: the discriminator does not name every alternative"


_CHECKS: dict[str, Callable[..., Iterator[str]]] = {
    "discriminator": _discriminator,
    "items": _items,
    "properties": _properties,
    "additionalProperties": _additional,
    "prefixItems": _prefix_items,
    "required": _required,
    "not": _not,
    "const": _check(lambda value, limit: value == limit),
    "enum": _check(lambda value, limit: value in limit),
    "minimum": _check(lambda value, limit: value >= limit, int, float),
    "maximum": _check(lambda value, limit: value <= limit, int, float),
    "exclusiveMinimum": _check(lambda value, limit: value > limit, int, float),
    "exclusiveMaximum": _check(lambda value, limit: value < limit, int, float),
    "minLength": _check(lambda value, limit: len(value) >= limit, str),
    "maxLength": _check(lambda value, limit: len(value) <= limit, str),
    "pattern": _check(lambda value, limit: re.search(limit, value) is not None, str),
    "minItems": _check(lambda value, limit: len(value) >= limit, list),
    "maxItems": _check(lambda value, limit: len(value) <= limit, list),
}
