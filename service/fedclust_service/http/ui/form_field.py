"""A form's fields: what their inputs show, and the JSON that a filled form stands for.

A field is named by the JSON pointer of its value in the definition, such as
``/config/n_clusters``. So every message of the API about a definition finds its input.

Text that is no number where a number belongs is passed on as text: then the API's own check refuses
it, in the same words as for any other client.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from fedclust.errors import UsageError
from fedclust.json_text import read_json

__all__ = [
    "SHOWN",
    "UNSET",
    "FormField",
    "Kind",
    "chosen_fields",
    "fill",
    "plain_text",
    "pointer_part",
    "shown_fields",
    "split_words",
    "take",
    "unknown_names",
    "with_defaults",
    "without_defaults",
]

Kind = Literal[
    "integer",
    "number",
    "numbers",
    "mixed",
    "text",
    "long_text",
    "time",
    "words",
    "checkbox",
    "choice",
    "json",
    "group",
    "variant",
]
#: Marks a value that is not there; None is JSON's null.
UNSET: Final[Any] = object()
#: The prefix of hidden fields that say which variant's options a page showed.
SHOWN: Final = "shown:"
_RANGE = re.compile(r"([0-9]{1,5}) ?(?:-|–|to) ?([0-9]{1,5})")
#: No list that somebody writes as a range is longer; the program refuses less.
_LONGEST_RANGE = 100
_INTEGER = re.compile(r"[+-]?[0-9]{1,400}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")


@dataclass(frozen=True)
class FormField:
    """One input of a form, or a set of them.

    Attributes
    ----------
    pointer : str
        Of the value in the definition, and the name of the input.
    kind : str
        ``numbers`` is a list, or one number where ``single``; ``mixed`` a number or one of
        ``choices``; ``words`` texts with commas between them; ``json`` what no other kind covers.
        A ``group`` has ``fields``. A ``variant`` has the field that chooses, ``chooser``, and the
        fields of each choice in ``variants``.
    hint : str
        How to write the value into the input.
    default : object
        The JSON value that counts if the field is left out; UNSET for none.
    explicit : bool
        Whether the value is written out, even unchanged, as soon as another one of its group is:
        its default is that of the group.
    nullable : bool
        Whether an empty input is null: then the program decides.
    whole : bool
        Whether numbers are integers.
    examples : tuple
        Common values, which the input suggests.
    """

    pointer: str
    label: str
    kind: Kind
    help: str = ""
    hint: str = ""
    required: bool = False
    nullable: bool = False
    default: Any = UNSET
    explicit: bool = False
    whole: bool = False
    single: bool = False
    minimum: float | None = None
    maximum: float | None = None
    limits: str = ""
    max_length: int | None = None
    choices: tuple[Any, ...] = ()
    examples: tuple[Any, ...] = ()
    fields: tuple[FormField, ...] = ()
    chooser: FormField | None = None
    variants: tuple[tuple[FormField, ...], ...] = ()

    @property
    def id(self) -> str:
        """The id of the input on the page: letters, digits and hyphens."""
        return "f" + re.sub(r"[^A-Za-z0-9]+", "-", self.pointer)

    @property
    def name(self) -> str:
        """The name of the field in its object."""
        return _unescape(self.pointer.rpartition("/")[2])

    @property
    def input_mode(self) -> str:
        """The keyboard of a phone; that for numbers may lack the minus, the comma and letters."""
        if self.kind not in ("integer", "number") or self.minimum is None or self.minimum < 0:
            return "text"
        return "numeric" if self.kind == "integer" else "decimal"

    @property
    def suggestions(self) -> tuple[str, ...]:
        """What an input for text suggests: its examples, and the words of a ``mixed`` one."""
        words = self.choices if self.kind == "mixed" else ()
        return tuple(map(self.text, (*self.examples, *words)))

    @property
    def choice_texts(self) -> tuple[str, ...]:
        """The choices as an input shows them."""
        return tuple(map(self.text, self.choices))

    def input_type(self, text: str) -> str:
        """Return the type of an input that shows this text; others would show nothing."""
        time = self.kind == "time" and re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d.{0,7})?", text)
        return "datetime-local" if time else "text"

    @property
    def default_text(self) -> str:
        """What the input shows before somebody types."""
        return self.text(None if self.default is UNSET else self.default)

    def text(self, value: Any) -> str:
        """Return what the input shows for a JSON value."""
        if value is None:
            return ""
        if self.kind == "json":
            return json.dumps(value, ensure_ascii=False)
        if self.kind == "numbers" and isinstance(value, list | tuple):
            return ", ".join(map(plain_text, value))
        if self.kind == "words" and isinstance(value, list | tuple):
            return _join_words(value)
        if self.kind == "time" and isinstance(value, str):
            # What an input of a date and time takes: the zone is UTC.
            return re.sub(r"(\.0+)?(Z|\+00:00)$", "", value)
        return plain_text(value)

    def value(self, text: str) -> Any:
        """Return the JSON value of a text; the text itself where it has none.

        UNSET stands for an empty input that is not null: the default counts.
        """
        text = text.strip()
        if self.kind in ("text", "long_text"):
            text = " ".join(filter(None, map(str.strip, re.split(r"[\r\n]", text))))
            return None if self.nullable and not text else text
        if not text:
            return None if self.nullable else UNSET
        if self.kind in ("choice", "checkbox"):
            return next((each for each in self.choices if plain_text(each) == text), text)
        if self.kind == "mixed":
            found = next((each for each in self.choices if plain_text(each) == text), UNSET)
            return _number(text) if found is UNSET else found
        if self.kind == "numbers":
            if self.whole and (ranged := _RANGE.fullmatch(text)):
                low, high = map(int, ranged.groups())
                return list(range(low, min(high, low + _LONGEST_RANGE) + 1)) or text
            parts = [_number(part) for part in re.split(r"[\s,;]+", text.strip("[], ")) if part]
            return parts[0] if self.single and len(parts) == 1 else parts
        if self.kind == "words":
            return split_words(text)
        if self.kind == "time":
            zoned = re.search(r"(Z|[+-]\d\d:?\d\d)$", text, re.IGNORECASE)
            return text if zoned or not re.match(r"\d{4}-\d\d-\d\dT", text) else f"{text}Z"
        return _json(text) if self.kind == "json" else _number(text)


# --- a filled form --------------------------------------------------------------------------------


def shown_fields(field: FormField, texts: Mapping[str, str]) -> Iterator[FormField]:
    """Yield the inputs of a field, with those of the variant that ``texts`` choose."""
    if field.kind == "group":
        for each in field.fields:
            yield from shown_fields(each, texts)
    elif field.chooser is not None:
        yield field.chooser
        for each in chosen_fields(field, texts):
            yield from shown_fields(each, texts)
    else:
        yield field


def chosen_fields(
    field: FormField, texts: Mapping[str, str], prefix: str = ""
) -> tuple[FormField, ...]:
    """Return the fields of the variant that ``texts`` choose, by default the first."""
    if field.chooser is None:
        return field.fields
    text = texts.get(prefix + field.chooser.pointer, field.chooser.default_text)
    for value, fields in zip(field.chooser.choices, field.variants, strict=True):
        if plain_text(value) == text:
            return fields
    return field.variants[0]


def fill(field: FormField, value: Any) -> dict[str, str]:
    """Return the texts that show a JSON value; what it lacks shows its default."""
    if field.kind == "group" or field.chooser is not None:
        found = dict(value) if isinstance(value, Mapping) else {}
        texts: dict[str, str] = {}
        if field.chooser is not None and field.chooser.name in found:
            texts[field.chooser.pointer] = field.chooser.text(found[field.chooser.name])
        for each in chosen_fields(field, texts):
            if each.name in found:
                texts |= fill(each, found[each.name])
        return texts
    return {field.pointer: field.text(value)}


def unknown_names(field: FormField, value: Any) -> list[str]:
    """Return the names in a JSON object for which a group has no field."""
    if not isinstance(value, Mapping):
        return []
    texts = fill(field, value)
    known = {each.name for each in chosen_fields(field, texts)}
    known |= {field.chooser.name} if field.chooser is not None else set()
    return [str(name) for name in value if name not in known]


def take(field: FormField, texts: Mapping[str, str]) -> Any:
    """Return the JSON value of a filled form, without what equals its default; UNSET for none."""
    if field.kind != "group" and field.chooser is None:
        text = texts.get(field.pointer)
        if text is None or text.strip() == field.default_text.strip():
            return UNSET
        return field.value(text)
    found = {}
    if field.chooser is not None:
        choice = take(field.chooser, texts)
        if choice is UNSET and field.chooser.required:
            choice = field.chooser.choices[0]
        if choice is not UNSET:
            found[field.chooser.name] = choice
    for each in chosen_fields(field, texts):
        value = take(each, texts)
        if value is not UNSET:
            found[each.name] = value
    if found:
        unchanged = (each for each in field.fields if each.explicit)
        found = {**{each.name: each.default for each in unchanged}, **found}
    return found if found or field.required else UNSET


def with_defaults(field: FormField, value: Any) -> FormField:
    """Return a field whose defaults are these, where they are given, such as those of a study."""
    if field.kind != "group" and field.chooser is None:
        return replace(field, default=value, required=False)
    if not isinstance(value, Mapping):
        return field
    chooser = field.chooser
    if chooser is not None and chooser.name in value:
        chooser = with_defaults(chooser, value[chooser.name])

    def changed(fields: Iterable[FormField]) -> tuple[FormField, ...]:
        return tuple(
            with_defaults(each, value[each.name]) if each.name in value else each for each in fields
        )

    return replace(
        field,
        fields=changed(field.fields),
        chooser=chooser,
        variants=tuple(map(changed, field.variants)),
    )


def without_defaults(field: FormField, texts: Mapping[str, str]) -> dict[str, str]:
    """Return the texts that somebody changed on a page that showed ``field``.

    The page says in fields with the prefix SHOWN which variant it showed. The choice of a variant
    stays.
    """
    kept = dict(texts)
    waiting = [field]
    while waiting:
        each = waiting.pop()
        if each.kind == "group" or each.chooser is not None:
            waiting += chosen_fields(each, texts, SHOWN)
        elif kept.get(each.pointer, "").strip() == each.default_text.strip():
            kept.pop(each.pointer, None)
    return kept


# --- texts ----------------------------------------------------------------------------------------


def plain_text(value: Any) -> str:
    """Return a scalar as people write it, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)


def _number(text: str) -> Any:
    """Return the number that a text is, or the text."""
    text = text.strip().replace("\N{MINUS SIGN}", "-")
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        found = float(text)
        return found if math.isfinite(found) else text
    return text


def _json(text: str) -> Any:
    try:
        return read_json(text, "the field")
    except UsageError:
        return text


def split_words(text: str, separator: str = ",") -> list[str]:
    """Return the texts between separators; quotation marks keep a separator in a text."""
    line = re.sub(r"[\r\n]", " ", text)
    line = re.sub(rf'" +(?={re.escape(separator)}|$)', '"', line)
    try:
        read = csv.reader([line], delimiter=separator, skipinitialspace=True, strict=True)
        rows = list(read)
    except csv.Error:
        rows = [line.split(separator)]
    return [word.strip() for row in rows for word in row if word.strip()]


def _join_words(words: Iterable[Any]) -> str:
    return ", ".join(_quoted(plain_text(word)) for word in words)


def _quoted(word: str) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="").writerow([word])
    return written.getvalue()


def pointer_part(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
