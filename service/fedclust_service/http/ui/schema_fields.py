"""Form fields from a JSON Schema, such as that of a method's options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pydantic import BaseModel, RootModel, ValidationError

from fedclust.methods.common.options import variant_models
from fedclust_service.http.ui.form_field import (
    UNSET,
    FormField,
    Kind,
    plain_text,
    pointer_part,
    with_defaults,
)

__all__ = ["attribute_help", "model_field", "model_help", "options_field", "schema_field"]

Schema: TypeAlias = Mapping[str, Any]
#: A text that may be longer than this gets several lines.
_LONG_TEXT = 500
#: Deeper objects are written as JSON; a model may contain itself.
_DEEPEST = 8
_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+(?:, \w+)*) *(?::.*)?\n?((?:(?: +\S.*)?(?:\n|$))*)", re.MULTILINE)
_LABELS = {
    "n_clusters": "Number of clusters",
    "n_init": "Restarts",
    "tol": "Tolerance",
    "min_sites": "Fewest sites",
    "round_timeout_s": "Time limit of a round, seconds",
    "fail_after_s": "Fail when overdue for, seconds",
    "max_rounds": "Most rounds of the method",
    "min_group_size": "Least group size",
    "missing": "Missing values",
    "approval": "Approval",
    "expires": "Joining ends (UTC)",
    "start": "Start",
}


# --- from a schema --------------------------------------------------------------------------------


def options_field(options: type[BaseModel]) -> FormField:
    """Return the field of a method's options, ``/config``: a group, or a choice of variants."""
    models = variant_models(options)  # type: ignore[arg-type]
    inherited = [model_help(model) for model in models]
    field = schema_field(options.model_json_schema(), "/config", "Options", inherited)
    if field.chooser is None:
        return field
    # Whether a definition may leave the variant out is not in the schema.
    try:
        options.model_validate({})
    except ValidationError as error:
        if any(each["type"] == "union_tag_not_found" for each in error.errors()):
            return field
    chooser = replace(field.chooser, required=False, default=field.chooser.choices[0])
    return replace(field, chooser=chooser)


def model_field(model: type[BaseModel], pointer: str, label: str) -> FormField:
    """Return the group of a model's fields."""
    return schema_field(model.model_json_schema(), pointer, label, [model_help(model)])


def model_help(model: type[BaseModel], *, code: str = "") -> dict[str, str]:
    """Return what a model and its bases say about fields; a schema has only the model's text.

    ``code`` is put around what the docstrings mark as code.
    """
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if each not in (BaseModel, RootModel, object):
            found |= attribute_help(each.__doc__ or "", code=code)
    return found


def attribute_help(doc: str, *, code: str = "") -> dict[str, str]:
    """Return the text about each attribute in a docstring in numpy's format."""
    parts = _SECTION.split(inspect.cleandoc(doc))
    found: dict[str, str] = {}
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title not in ("Attributes", "Parameters"):
            continue
        for names, text in _ENTRY.findall(body):
            plain = re.sub(r":\w+:`([^`]*)`|``([^`]*)``|`([^`]*)`", rf"{code}\1\2\3{code}", text)
            for name in names.split(", "):
                found[name] = " ".join(plain.split())
    return {name: text for name, text in found.items() if text}


def schema_field(
    schema: Schema,
    pointer: str,
    label: str,
    inherited: Sequence[Mapping[str, str]] = (),
) -> FormField:
    """Return the field of a JSON Schema, with the fields below it.

    Parameters
    ----------
    schema : mapping
        With its own ``$defs``.
    pointer, label : str
    inherited : sequence of mapping
        Help for the fields by name, for an object, or for each variant of it.
    """
    return _SchemaReader(schema.get("$defs", {})).field(schema, pointer, label, inherited=inherited)


@dataclass(frozen=True)
class _SchemaReader:
    """Reads one schema with these definitions."""

    defs: Schema

    def resolve(self, schema: Any) -> Schema:
        """Return what a schema refers to, with what it adds."""
        found = schema if isinstance(schema, Mapping) else {}
        for _ in range(20):  # a reference may lead to another one
            reference = found.get("$ref")
            if not isinstance(reference, str):
                break
            target = self.defs.get(reference.rpartition("/")[2])
            if not isinstance(target, Mapping):
                return {}
            found = {**target, **{key: each for key, each in found.items() if key != "$ref"}}
        whole = found.get("allOf")
        if isinstance(whole, list) and len(whole) == 1:
            rest = {key: each for key, each in found.items() if key != "allOf"}
            return {**self.resolve(whole[0]), **rest}
        return found

    def field(
        self,
        schema: Any,
        pointer: str,
        label: str,
        *,
        help_text: str = "",
        required: bool = False,
        inherited: Sequence[Mapping[str, str]] = (),
    ) -> FormField:
        """Return the field of a schema at a pointer."""
        schema = self.resolve(schema) if pointer.count("/") <= _DEEPEST else {}
        options = [self.resolve(each) for each in _alternatives(schema, self.resolve)]
        nullable = any(_is_null(each) for each in options)
        options = [each for each in options if not _is_null(each)]
        base = FormField(
            pointer,
            label,
            "json",
            help=help_text,
            required=required,
            nullable=nullable,
            default=schema.get("default", UNSET),
            examples=tuple(schema.get("examples", ())),
        )
        if len(options) == 1 and not nullable and _properties(options[0]) is not None:
            return self.group(base, options[0], next(iter(inherited), {}))
        discriminator = schema.get("discriminator")
        if isinstance(discriminator, Mapping) and not nullable:
            found = self.variant(base, str(discriminator.get("propertyName")), options, inherited)
            if found is not None:
                return found
        return _leaf(base, options, [self.resolve(each.get("items", {})) for each in options])

    def group(self, base: FormField, schema: Schema, inherited: Mapping[str, str]) -> FormField:
        """Return the group of an object's properties, with the defaults of the object."""
        given = base.default if isinstance(base.default, Mapping) else {}
        fields = tuple(
            replace(with_defaults(each, given[each.name]), explicit=True)
            if each.name in given and given[each.name] != each.default
            else each
            for each in self.properties(base.pointer, schema, inherited)
        )
        return replace(base, kind="group", fields=fields)

    def properties(
        self, pointer: str, schema: Schema, inherited: Mapping[str, str], but: str = ""
    ) -> tuple[FormField, ...]:
        """Return a field for each property of an object; ``but`` is left out."""
        own = attribute_help(str(schema.get("description", "")))
        needed = schema.get("required", ())
        fields = []
        for name, each in (_properties(schema) or {}).items():
            if name == but:
                continue
            resolved = each if isinstance(each, Mapping) else {}
            help_text = resolved.get("description") or own.get(name) or inherited.get(name, "")
            fields.append(
                self.field(
                    each,
                    f"{pointer}/{pointer_part(name)}",
                    _label(name),
                    # In Python a value that is left open is None; here it is an empty input.
                    help_text=re.sub(r"\bNone:", "Empty:", str(help_text)),
                    required=name in needed,
                )
            )
        return tuple(fields)

    def variant(
        self,
        base: FormField,
        by: str,
        options: Sequence[Schema],
        inherited: Sequence[Mapping[str, str]],
    ) -> FormField | None:
        """Return the choice of a union's variants; None if they are no objects with a constant."""
        names, variants = [], []
        for place, each in enumerate(options):
            tag = self.resolve((_properties(each) or {}).get(by, {}))
            if "const" not in tag:
                return None
            known = inherited[place] if place < len(inherited) else {}
            names.append(tag["const"])
            variants.append(self.properties(base.pointer, each, known, but=by))
        default = base.default.get(by, UNSET) if isinstance(base.default, Mapping) else UNSET
        chooser = FormField(
            f"{base.pointer}/{pointer_part(by)}",
            _label(by),
            "choice",
            help=_summaries(names, options),
            required=default is UNSET,
            default=default,
            choices=tuple(names),
        )
        return replace(base, kind="variant", chooser=chooser, variants=tuple(variants))


def _leaf(
    base: FormField,
    options: Sequence[Schema],
    items: Sequence[Schema],
) -> FormField:
    """Return the field of a value that has no fields itself; ``items`` are those of arrays."""
    types = [str(each.get("type")) for each in options]
    words = [_constants(each) for each in options]
    numeric = {"integer", "number"}
    if options and all(each is not None for each in words):
        choices = [value for each in words for value in each or () if value is not None]
        null = base.nullable or any(None in (each or ()) for each in words)
        return replace(base, kind="choice", choices=tuple(choices), nullable=null)
    if types == ["boolean"]:
        return replace(base, kind="choice" if base.nullable else "checkbox", choices=(True, False))
    numbers = [each for each, kind in zip(options, types, strict=True) if kind in numeric]
    arrays = [
        each
        for each, kind, item in zip(options, types, items, strict=True)
        if kind == "array" and item.get("type") in numeric and _constants(item) is None
    ]
    rest = [each for each in words if each is not None]
    kinds = {each.get("type") for each in (*numbers, *(items if arrays else ()))} & numeric
    whole = kinds == {"integer"}
    bounded = _with_limits(base, [*numbers, *(items if arrays else ())])
    if numbers and len(numbers) == len(options):
        return replace(bounded, kind="integer" if whole else "number", whole=whole)
    if arrays and len(arrays) + len(numbers) == len(options):
        wanted = "One number, or several: 2, 3, 5" if numbers else "Several numbers: 2, 3, 5"
        wanted += " or 2-5." if whole else "."
        return replace(bounded, kind="numbers", whole=whole, single=bool(numbers), hint=wanted)
    if numbers and len(numbers) + len(rest) == len(options):
        choices = [value for each in rest for value in each]
        return replace(bounded, kind="mixed", whole=whole, choices=tuple(choices))
    if len(options) == 1 and types == ["array"] and items[0].get("type") == "string":
        return replace(base, kind="words")
    if len(options) == 1 and types == ["string"]:
        longest = options[0].get("maxLength")
        kind: Kind = "long_text" if isinstance(longest, int) and longest >= _LONG_TEXT else "text"
        if options[0].get("format") == "date-time":
            kind = "time"
        return replace(base, kind=kind, max_length=longest)
    return base


def _alternatives(schema: Schema, resolve: Callable[[Any], Schema]) -> Iterator[Schema]:
    """Yield the members of a union, and of unions in it."""
    for key in ("anyOf", "oneOf"):
        members = schema.get(key)
        if isinstance(members, list):
            for each in members:
                found = resolve(each)
                if found is not schema:
                    yield from _alternatives(found, resolve)
            return
    yield schema


def _is_null(schema: Schema) -> bool:
    return schema.get("type") == "null"


def _properties(schema: Schema) -> Schema | None:
    found = schema.get("properties")
    return found if schema.get("type") == "object" and isinstance(found, Mapping) else None


def _constants(schema: Schema) -> tuple[Any, ...] | None:
    """Return the values of a schema that lists them."""
    if "const" in schema:
        return (schema["const"],)
    found = schema.get("enum")
    return tuple(found) if isinstance(found, list) else None


def _with_limits(base: FormField, numbers: Iterable[Schema]) -> FormField:
    """Return a field with the bounds of its first number."""
    schema = next(iter(each for each in numbers if each), {})
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    texts = [
        *([f"from {plain_text(least)}"] if least is not None else []),
        *([f"above {plain_text(above)}"] if above is not None else []),
        *([f"to {plain_text(most)}"] if most is not None else []),
        *([f"below {plain_text(below)}"] if below is not None else []),
    ]
    return replace(
        base,
        minimum=above if least is None else least,
        maximum=below if most is None else most,
        limits=" ".join(texts) if most is not None else ", ".join(texts),
    )


def _summaries(names: Sequence[Any], options: Sequence[Schema]) -> str:
    """Return the first line of each variant's description."""
    lines = (str(each.get("description", "")).partition("\n")[0] for each in options)
    return " ".join(
        f"{plain_text(name)}: {line}" for name, line in zip(names, lines, strict=True) if line
    )


def _label(name: str) -> str:
    plain = name.replace("_", " ").strip()
    return _LABELS.get(name) or plain[:1].upper() + plain[1:]
