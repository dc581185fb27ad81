"""A form's fields: from the JSON Schema of a model, and between texts and JSON.

A field is named by the JSON pointer of its value in the definition, such as
``/config/n_clusters``, so every message of the API about a definition finds its input. Text that
is no number where a number belongs stays text: the API's own check refuses it.
"""

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pydantic import BaseModel

from fedclust.definition.json_text import read_json
from fedclust.methods.common.options import select_variant_model, variant_models
from fedclust.schema.method import AnyMethod
from fedclust.wire.errors import UsageError

Schema: TypeAlias = Mapping[str, Any]
#: A text that may be longer than this gets several lines.
_LONG_TEXT = 500
_RANGE = re.compile(r"([0-9]{1,3}) ?(?:-|–|to) ?([0-9]{1,3})")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_LABELS = {
    "algorithm": "Method",
    "n_clusters": "Number of clusters, K",
    "n_init": "Restarts",
    "tol": "Tolerance",
    "min_sites": "Fewest sites",
    "round_timeout_s": "Time limit of a round, seconds",
    "fail_after_s": "Fail when overdue for, seconds",
    "max_rounds": "Most rounds of the method",
    "min_group_size": "Least group size, p",
    "missing": "Missing values",
    "expires": "Deadline for joining (UTC)",
    "outcomes_k": "Count outcomes at K",
}
_NUMBERS = {"integer", "number"}
#: The kinds of lists, by what they hold.
_LISTS = {"number": "numbers", "text": "words", "choice": "words"}


@dataclass(frozen=True)
class FormField:
    """One input of a form.

    Attributes
    ----------
    pointer : str
        Of the value in the definition, and the name of the input.
    kind : str
        ``number``, or one of ``choices``; ``numbers``, a list, or one number where ``single``;
        ``choice``; ``text``, ``long_text``, ``time``; ``words``, texts with commas between them;
        ``json``, what no other kind covers.
    default : object
        The JSON value that counts if the input is empty.
    nullable : bool
        Whether the value may be null, which is typed as such where the default is another.
    whole : bool
        Whether its numbers are integers.
    """

    pointer: str
    label: str
    kind: str
    help: str = ""
    required: bool = False
    nullable: bool = False
    default: Any = None
    whole: bool = False
    single: bool = False
    limits: str = ""
    choices: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """The name of the field in its object."""
        return self.pointer.rpartition("/")[2].replace("~1", "/").replace("~0", "~")

    @property
    def default_text(self) -> str:
        """The default as an input would show it."""
        return "" if self.default is None else self.text(self.default)

    @functools.cached_property
    def choice_texts(self) -> tuple[str, ...]:
        """The choices as an input shows them."""
        return tuple(map(plain_text, self.choices))

    def text(self, value: Any) -> str:
        """Return what the input shows for a JSON value."""
        shown = json_text(value) if self.kind == "json" else plain_text(value)
        if self.kind in ("numbers", "words") and isinstance(value, list | tuple):
            joined = ", ".join(map(plain_text, value))
            return joined if self.value(joined) == list(value) else shown
        # What an input of a date and time takes: the zone is UTC.
        return re.sub(r"(\.0+)?(Z|\+00:00)$", "", shown) if self.kind == "time" else shown

    def value(self, text: str) -> Any:
        """Return the JSON value of a text that is not empty; the text itself where it has none."""
        if self.kind in ("text", "long_text"):
            return " ".join(filter(None, map(str.strip, re.split(r"[\r\n]", text))))
        if text in self.choice_texts:
            return self.choices[self.choice_texts.index(text)]
        if text == "null" and self.nullable:
            return None
        if self.kind == "json" or (self.kind == "words" and text.startswith("[")):
            try:
                return read_json(text, "the field")
            except UsageError:
                return text
        if self.kind == "words":
            return [word.strip() for word in text.split(",") if word.strip()]
        if self.kind == "numbers":
            if self.whole and (ranged := _RANGE.fullmatch(text)):
                low, high = map(int, ranged.groups())
                return list(range(low, high + 1)) or text
            parts = [_number(part) for part in re.split(r"[\s,;]+", text.strip("[], ")) if part]
            return parts[0] if self.single and len(parts) == 1 else parts
        if self.kind == "time":
            return text if re.search(r"(Z|[+-]\d\d:?\d\d)$", text, re.IGNORECASE) else f"{text}Z"
        return text if self.kind == "choice" else _number(text)


@functools.lru_cache(maxsize=256)
def fields_of(model: type[BaseModel], at: str = "") -> tuple[FormField, ...]:
    """Return a field for each field of a model, whose object is at the pointer ``at``."""
    whole = model.model_json_schema()
    defs: Schema = whole.get("$defs", {})
    (schema,) = _members(whole, defs)
    found = []
    for name, each in schema.get("properties", {}).items():
        label = _LABELS.get(name) or name.replace("_", " ").strip().capitalize()
        # In Python a value that is left open is None; here it is an empty input.
        text = " ".join(each.get("description", "").replace("`", "").split())
        help_text = re.sub(r"\bNone:", "Empty:", text)
        pointer = f"{at}/{name.replace('~', '~0').replace('/', '~1')}"
        base = FormField(pointer, label, "json", help_text, name in schema.get("required", ()))
        found.append(_field(each, defs, base))
    return tuple(found)


def option_fields(method: AnyMethod, config: Mapping[str, Any]) -> tuple[FormField, ...]:
    """Return the fields of a method's options, of the variant that ``config`` names."""
    models = variant_models(method.options)
    fields = fields_of(select_variant_model(method.options, config), "/config")
    if len(models) == 1:
        return fields
    by = method.options.model_fields["root"].discriminator
    of_each = [each for model in models for each in fields_of(model, "/config") if each.name == by]
    names = tuple(name for each in of_each for name in each.choices)
    lines = ((model.__doc__ or "").partition("\n")[0] for model in models)
    about = " ".join(f"{name}: {line}" for name, line in zip(names, lines, strict=True))
    chooser = replace(of_each[0], choices=names, default=names[0], help=about, required=False)
    return (chooser, *(each for each in fields if each.name != by))


def _members(schema: Schema, defs: Schema) -> Iterator[Schema]:
    """Yield the members of a union, also of unions in it, with what they refer to."""
    while "$ref" in schema:
        target = defs[schema["$ref"].rpartition("/")[2]]
        schema = {**target, **{key: each for key, each in schema.items() if key != "$ref"}}
    members = schema.get("anyOf") or schema.get("oneOf")
    if not members:
        yield schema
    for each in members or ():
        yield from _members(each, defs)


def _field(schema: Schema, defs: Schema, base: FormField) -> FormField:
    """Return ``base`` as the field of a schema: of what kind, and within which limits."""
    members = list(_members(schema, defs))
    held = [each for each in members if each.get("type") != "null"]
    inner = [item for each in held for item in _members(each.get("items", each), defs)]
    numbers = [each for each in inner if each.get("type") in _NUMBERS]
    words = [word for each in held for word in _words(each)]
    kinds = frozenset(_kind(each, defs) for each in held)
    mixed = {frozenset({"number", "choice"}): "number", frozenset({"number", "numbers"}): "numbers"}
    return replace(
        base,
        kind=min(kinds) if len(kinds) == 1 else mixed.get(kinds, "json"),
        nullable=len(held) < len(members) or None in words,
        default=schema.get("default"),
        whole={each["type"] for each in numbers} == {"integer"},
        limits=_limits(next(iter(numbers), {})),
        single="number" in kinds,
        choices=tuple(word for word in words if word is not None),
    )


def _words(schema: Schema) -> list[Any]:
    """Return the values that a schema lists."""
    listed = [True, False] if schema.get("type") == "boolean" else schema.get("enum", [])
    return [schema["const"]] if "const" in schema else list(listed)


def _kind(schema: Schema, defs: Schema) -> str:
    """Return the kind of input for a schema that is no union."""
    if "items" in schema:
        inner = {_kind(each, defs) for each in _members(schema["items"], defs)}
        return _LISTS.get(min(inner), "json") if len(inner) == 1 else "json"
    if _words(schema):
        return "choice"
    if schema.get("type") != "string":
        return "number" if schema.get("type") in _NUMBERS else "json"
    long = schema.get("maxLength", 0) >= _LONG_TEXT
    return "time" if schema.get("format") == "date-time" else "long_text" if long else "text"


def _limits(schema: Schema) -> str:
    """Return the bounds of a number in words."""
    words = {"minimum": "from", "exclusiveMinimum": "above"}
    words |= {"maximum": "to", "exclusiveMaximum": "below"}
    texts = [f"{word} {plain_text(schema[name])}" for name, word in words.items() if name in schema]
    return " ".join(texts) if "maximum" in schema else ", ".join(texts)


def plain_text(value: Any) -> str:
    """Return a scalar as people write it, anything else as JSON."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return value if isinstance(value, str) else json_text(value)


def json_text(value: Any) -> str:
    """Return JSON with every character as it is."""
    return json.dumps(value, ensure_ascii=False)


def _number(text: str) -> Any:
    """Return the number that a text is, or the text."""
    text = text.replace("\N{MINUS SIGN}", "-")
    if re.fullmatch(r"[+-]?[0-9]{1,400}", text):
        return int(text)
    found = float(text) if _NUMBER.fullmatch(text) else math.inf
    return found if math.isfinite(found) else text
