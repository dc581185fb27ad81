"""A form's fields: from the JSON Schema of a model, and between texts and JSON.

A field is named by the JSON pointer of its value in the definition, such as
``/config/n_clusters``, so every message of the API about a definition finds its input. Text that
is no number where a number belongs stays text: the API's own check refuses it.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

from fedclust.definition.json_text import read_json
from fedclust.errors import UsageError
from fedclust.methods.common.options import select_variant_model, variant_models
from fedclust.schema.field_texts import model_help
from fedclust.schema.method import AnyMethod

Schema: TypeAlias = Mapping[str, Any]
#: Marks a default that is not there; None is JSON's null.
UNSET: Final[Any] = object()
#: A text that may be longer than this gets several lines.
_LONG_TEXT = 500
_RANGE = re.compile(r"([0-9]{1,5}) ?(?:-|–|to) ?([0-9]{1,5})")
#: No list that somebody writes as a range is longer; the program refuses less.
_LONGEST_RANGE = 100
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_LABELS = {
    "n_clusters": "Number of clusters, K",
    "n_init": "Restarts",
    "tol": "Tolerance",
    "min_sites": "Fewest sites",
    "round_timeout_s": "Time limit of a round, seconds",
    "fail_after_s": "Fail when overdue for, seconds",
    "max_rounds": "Most rounds of the method",
    "min_group_size": "Least group size, p",
    "missing": "Missing values",
    "expires": "Joining ends (UTC)",
    "outcomes_k": "Count outcomes at K",
}


@dataclass(frozen=True)
class FormField:
    """One input of a form.

    Attributes
    ----------
    pointer : str
        Of the value in the definition, and the name of the input.
    kind : str
        ``integer``, ``number``; ``numbers``, a list, or one number where ``single``; ``mixed``, a
        number or one of ``choices``; ``choice``; ``text``, ``long_text``, ``time``; ``words``,
        texts with commas between them; ``json``, what no other kind covers.
    default : object
        The JSON value that counts if the input is empty; UNSET for none.
    nullable : bool
        Whether the value may be null, which is typed as such where the default is another.
    """

    pointer: str
    label: str
    kind: str
    help: str = ""
    required: bool = False
    nullable: bool = False
    default: Any = UNSET
    whole: bool = False
    single: bool = False
    limits: str = ""
    choices: tuple[Any, ...] = ()
    examples: tuple[Any, ...] = ()

    @property
    def id(self) -> str:
        """The id of the input on the page: letters, digits and hyphens."""
        return input_id(self.pointer)

    @property
    def name(self) -> str:
        """The name of the field in its object."""
        return self.pointer.rpartition("/")[2].replace("~1", "/").replace("~0", "~")

    @property
    def default_text(self) -> str:
        """The default as an input would show it."""
        return "" if self.default in (UNSET, None) else self.text(self.default)

    @property
    def choice_texts(self) -> tuple[str, ...]:
        """The choices as an input shows them."""
        return tuple(map(plain_text, self.choices))

    def text(self, value: Any) -> str:
        """Return what the input shows for a JSON value."""
        if value is None:
            return "null"
        if self.kind in ("numbers", "words") and isinstance(value, list | tuple):
            words = [plain_text(each) for each in value]
            joined = ", ".join(words)
            again = [each.strip() for each in joined.split(",")] == words and joined[:1] != "["
            return joined if again else _json(value)
        if self.kind == "time":
            # What an input of a date and time takes: the zone is UTC.
            return re.sub(r"(\.0+)?(Z|\+00:00)$", "", plain_text(value))
        return _json(value) if self.kind == "json" else plain_text(value)

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
                return list(range(low, min(high, low + _LONGEST_RANGE) + 1)) or text
            parts = [_number(part) for part in re.split(r"[\s,;]+", text.strip("[], ")) if part]
            return parts[0] if self.single and len(parts) == 1 else parts
        if self.kind == "time":
            return text if re.search(r"(Z|[+-]\d\d:?\d\d)$", text, re.IGNORECASE) else f"{text}Z"
        return text if self.kind == "choice" else _number(text)


@functools.lru_cache(maxsize=256)
def fields_of(model: type[BaseModel], at: str = "") -> tuple[FormField, ...]:
    """Return a field for each field of a model, whose object is at the pointer ``at``."""
    whole, texts = model.model_json_schema(), model_help(model)
    defs: Schema = whole.get("$defs", {})
    schema = _resolved(whole, defs)
    found = []
    for name, each in schema.get("properties", {}).items():
        label = _LABELS.get(name) or name.replace("_", " ").strip().capitalize()
        # In Python a value that is left open is None; here it is an empty input.
        help_text = re.sub(r"\bNone:", "Empty:", each.get("description") or texts.get(name, ""))
        pointer = f"{at}/{name.replace('~', '~0').replace('/', '~1')}"
        base = FormField(pointer, label, "json", help_text, name in schema.get("required", ()))
        found.append(_field(_resolved(each, defs), defs, base))
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


def _resolved(schema: Any, defs: Schema) -> Schema:
    """Return what a schema refers to, with what it adds."""
    found = schema if isinstance(schema, Mapping) else {}
    for _ in range(20):  # a reference may lead to another one
        if "$ref" not in found:
            return found
        target = defs.get(str(found["$ref"]).rpartition("/")[2], {})
        found = {**target, **{key: each for key, each in found.items() if key != "$ref"}}
    return {}


def _alternatives(schema: Schema, defs: Schema) -> Iterator[Schema]:
    """Yield the members of a union, and of unions in it."""
    members = schema.get("anyOf") or schema.get("oneOf")
    if not members:
        yield schema
    for each in members or ():
        yield from _alternatives(_resolved(each, defs), defs)


def _field(schema: Schema, defs: Schema, base: FormField) -> FormField:
    """Return ``base`` as the field of a schema: of what kind, and within which limits."""
    found = list(_alternatives(schema, defs))
    options = [each for each in found if each.get("type") != "null"]
    listed = [[e["const"]] if "const" in e else e.get("enum", []) for e in options]
    words = tuple(word for each in listed for word in each if word is not None)
    plain = [each for each, said in zip(options, listed, strict=True) if not said]
    numeric = {"integer", "number"}
    numbers = [each for each in plain if each.get("type") in numeric]
    items = [_resolved(each.get("items"), defs) for each in plain]
    lists = [each for each in items if each.get("type") in numeric and "enum" not in each]
    types = [each.get("type") for each in plain]
    base = replace(
        base,
        nullable=len(options) < len(found) or any(None in each for each in listed),
        default=schema.get("default", UNSET),
        examples=tuple(schema.get("examples", ())),
        whole={each.get("type") for each in (*numbers, *lists)} == {"integer"},
        limits=_limits(next(iter([*numbers, *lists]), {})),
        single=bool(numbers and lists),
        choices=(True, False) if types == ["boolean"] else words,
    )
    if base.choices and not numbers and types in ([], ["boolean"]):
        return replace(base, kind="choice")
    if plain and len(numbers) == len(plain):
        return replace(base, kind="mixed" if words else "integer" if base.whole else "number")
    if lists and not words and len(numbers) + len(lists) == len(plain):
        return replace(base, kind="numbers")
    if types == ["array"] and items[0].get("type") == "string":
        return replace(base, kind="words")
    if types == ["string"] and not words:
        long = plain[0].get("maxLength", 0) >= _LONG_TEXT
        time = plain[0].get("format") == "date-time"
        return replace(base, kind="time" if time else "long_text" if long else "text")
    return replace(base, kind="json", choices=())


def _limits(schema: Schema) -> str:
    """Return the bounds of a number in words."""
    words = {"minimum": "from", "exclusiveMinimum": "above"}
    words |= {"maximum": "to", "exclusiveMaximum": "below"}
    texts = [f"{word} {plain_text(schema[name])}" for name, word in words.items() if name in schema]
    return " ".join(texts) if "maximum" in schema else ", ".join(texts)


def input_id(pointer: str) -> str:
    """Return the id of an input on the page."""
    return "f" + re.sub(r"[^A-Za-z0-9]+", "-", pointer)


def plain_text(value: Any) -> str:
    """Return a scalar as people write it, anything else as JSON."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(text: str) -> Any:
    """Return the number that a text is, or the text."""
    text = text.replace("\N{MINUS SIGN}", "-")
    if re.fullmatch(r"[+-]?[0-9]{1,400}", text):
        return int(text)
    found = float(text) if _NUMBER.fullmatch(text) else math.inf
    return found if math.isfinite(found) else text
