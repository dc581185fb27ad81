"""What ``render.py`` writes about fields: options of methods, definitions, settings."""

import re
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel

from fedclust.methods.common.options import variant_models
from fedclust.methods.registry import METHODS
from fedclust_service.http.ui.schema_fields import FormField, fields_of, option_fields, plain_text

#: What a field holds that the browser's form takes as JSON.
_OF_SEVERAL = {
    "centroids": "list of lists of numbers",
    "config": "object",
    "features": "list of objects, see below",
}
_JSON = {"None": "`null`", "True": "`true`", "False": "`false`"}


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def texts_of(model: type[BaseModel]) -> dict[str, str]:
    """Return what a model says of its fields, in Markdown."""
    fields = model.model_fields.items()
    return {name: " ".join((each.description or "").split()) for name, each in fields}


#: Options that mean the same in each method that has them: docs/methods/common.md.
SHARED_OPTIONS = ("stability", "evidence", "evaluate")


def shared_options() -> str:
    """Return the options that methods share, and which methods have them."""
    found: dict[str, tuple[FormField, str, list[str]]] = {}
    for name in METHODS:
        model = variant_models(METHODS[name].options)[0]
        for each in fields_of(model):
            if each.name in SHARED_OPTIONS:
                text = meaning(each.name, texts_of(model))
                found.setdefault(each.name, (each, text, []))[2].append(f"`{name}`")
    rows = (
        (f"`{name}`", with_facts(text, {**_facts(each), "Methods": ", ".join(methods)}))
        for name, (each, text, methods) in found.items()
    )
    return markdown_table(("option", "meaning"), rows)


def options(method: str) -> str:
    """Return the own options of ``method``, those of each variant in a table of their own."""
    models = variant_models(METHODS[method].options)
    meanings = texts_of(models[0])
    if len(models) == 1:
        return options_table(fields_of(models[0]), meanings)
    by, *own = option_fields(METHODS[method], {})
    first = options_table([by], {by.name: f"Variant. {_OF_PAPER}"})
    return f"{first}\n\n{options_table(own, meanings)}"


_OF_PAPER = (
    "This page lists the default's options; the others reproduce [papers](../results/papers.md)."
)


def paper_options(method: str) -> str:
    """Return the options of the variants of ``method`` that reproduce a paper."""
    by, *_ = option_fields(METHODS[method], {})
    models = variant_models(METHODS[method].options)
    parts = []
    for name, model in list(zip(by.choices, models, strict=True))[1:]:
        about = (model.__doc__ or "").partition("\n")[0].partition(": ")[2]
        parts.append(f"**`{by.name}: {name}`**: {about}")
        own = (each for each in fields_of(model) if each.name != by.name)
        parts.append(options_table(own, texts_of(model)))
    return "\n\n".join(parts)


def options_table(fields: Iterable[FormField], meanings: Mapping[str, str]) -> str:
    """Return a table of options; ValueError if one lacks a meaning."""
    own = [each for each in fields if each.name not in SHARED_OPTIONS]
    # An inherited option comes first in a schema.
    in_order = sorted(own, key=lambda each: each.name != "n_clusters")
    return fields_table("option", in_order, meanings)


def fields_table(
    head: str, fields: Iterable[FormField], meanings: Mapping[str, str], prefix: str = ""
) -> str:
    """Return a table of fields, as JSON writes them; ValueError if one lacks a meaning."""
    rows = (
        (f"`{prefix}{each.name}`", with_facts(meaning(each.name, meanings), _facts(each)))
        for each in fields
    )
    return markdown_table((head, "meaning"), rows)


def with_facts(text: str, facts: Mapping[str, str]) -> str:
    """Return a cell: a text, and below it short facts. Columns of their own would be too narrow."""
    said = (f"*{name}:* {fact}." if fact else f"*{name}.*" for name, fact in facts.items())
    return f"{text}<br>{' '.join(said)}"


def _facts(field: FormField) -> dict[str, str]:
    known = {"Required": ""} if default(field) == "required" else {"Default": default(field)}
    found = values(field)
    return known if found == "text" else {**known, "Values": found}


def values(field: FormField) -> str:
    """Return what a field may hold."""
    limits = re.sub(r"\d{4,}", lambda found: f"{int(found[0]):,}", field.limits)
    numbers = " ".join(filter(None, ["integer" if field.whole else "number", limits]))
    words = [f"`{plain_text(each)}`" for each in field.choices]
    if field.kind == "numbers":
        return f"{numbers}, or a list of them" if field.single else f"list: each {numbers}"
    if field.kind == "number":
        return f"{numbers}, or {', '.join(words)}" if words else numbers
    if field.kind == "choice":
        return ", ".join(words)
    texts = {"text": "text", "long_text": "text", "time": "date and time", "words": "list of texts"}
    return texts.get(field.kind) or _OF_SEVERAL[field.name]


def default(field: FormField) -> str:
    """Return the default of a field."""
    if field.default is None and not field.nullable:
        return "required" if field.required else "-"
    return f"`{plain_text(field.default)}`" if field.default != "" else '`""`'


def meaning(name: str, meanings: Mapping[str, str]) -> str:
    """Return what the code says about a field, in JSON's words."""
    text = meanings.get(name, "")
    if not text:
        raise ValueError(f"{name} has no text below it in its model")
    text = re.sub(r"\b(None|True|False)\b", lambda found: _JSON[found[0]], text)
    return text.replace("|", "\\|")
