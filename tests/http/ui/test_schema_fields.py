"""Fields of a form for any JSON Schema: every property has one, and its text is read back."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, RootModel

from fedclust.methods.common.options import variant_models
from fedclust.methods.registry import METHODS
from fedclust.schema.options import MethodOptions
from fedclust.schema.policy import Policy
from fedclust_service.http.ui.form_field import (
    UNSET,
    FormField,
    fill,
    shown_fields,
    split_words,
    take,
    unknown_names,
    with_defaults,
    without_defaults,
)
from fedclust_service.http.ui.schema_fields import (
    attribute_help,
    model_field,
    options_field,
    schema_field,
)


class Inner(BaseModel):
    """What a group holds.

    Attributes
    ----------
    a, b : int
        Two numbers, of which ``a`` is
        :func:`larger`.
    """

    a: int = 1
    b: int = 2


class Square(BaseModel):
    """A square."""

    shape: Literal["square"]
    side: float = 1.0


class Circle(BaseModel):
    """A circle."""

    shape: Literal["circle"]
    radius: Annotated[float, Field(gt=0, le=9)] = 2.5


class Recursive(BaseModel):
    """Holds itself."""

    inner: Recursive | None = None


class Everything(BaseModel):
    """Options as a plug-in may have them."""

    n_clusters: int | tuple[int, ...]
    flag: bool = False
    maybe: bool | None = None
    count: Annotated[int, Field(ge=-3, lt=7, description="How many.")] = 2
    several: tuple[float, ...] = (1.0, 2.5)
    word: Literal["auto", 3, True, None] = "auto"
    number_or_word: int | Literal["all"] = "all"
    names: tuple[str, ...] | None = None
    text: str = "as it is"
    perhaps: str | None = None
    matrix: tuple[tuple[float, ...], ...] | None = None
    anything: Any = None
    mapping: dict[str, int] = Field(default_factory=dict)
    inner: Inner = Inner(a=5)
    plain: Inner = Inner()
    maybe_inner: Inner | None = None
    figure: Annotated[Square | Circle, Field(discriminator="shape")] = Circle(shape="circle")
    recursive: Recursive = Recursive()
    renamed: int = Field(default=1, alias="with/slash~")


def texts_of(field: FormField, texts: dict[str, str] | None = None) -> dict[str, str]:
    """Return what a page that shows ``field`` posts."""
    typed = texts or {}
    return {
        each.pointer: typed.get(each.pointer, each.default_text)
        for each in shown_fields(field, typed)
    }


def kinds(field: FormField) -> dict[str, str]:
    return {each.name: each.kind for each in field.fields}


def test_every_kind_of_option_has_its_input() -> None:
    found = model_field(Everything, "/config", "Options")
    assert kinds(found) == {
        "n_clusters": "numbers",
        "flag": "checkbox",
        "maybe": "choice",
        "count": "integer",
        "several": "numbers",
        "word": "choice",
        "number_or_word": "mixed",
        "names": "words",
        "text": "text",
        "perhaps": "text",
        "matrix": "json",
        "anything": "json",
        "mapping": "json",
        "inner": "group",
        "plain": "group",
        "maybe_inner": "json",
        "figure": "variant",
        "recursive": "group",
        "with/slash~": "integer",
    }
    by_name = {each.name: each for each in found.fields}
    assert by_name["count"].help == "How many."
    assert by_name["count"].limits == "from -3, below 7"
    assert by_name["count"].input_mode == "text", "a phone's number pad may lack the minus"
    assert by_name["with/slash~"].pointer == "/config/with~1slash~0"
    assert by_name["inner"].fields[0].help == "Two numbers, of which a is larger."
    ids = [each.id for each in shown_fields(found, {})]
    assert len(set(ids)) == len(ids)


def test_common_values_and_words_are_suggested() -> None:
    policy = {each.name: each for each in model_field(Policy, "/policy", "Policy").fields}
    assert policy["min_group_size"].suggestions == ("5", "10", "11")
    assert "10 is the rule of" in policy["min_group_size"].help
    options = {each.name: each for each in model_field(Everything, "/config", "Options").fields}
    assert options["number_or_word"].suggestions == ("all",)
    assert options["count"].suggestions == options["word"].suggestions == ()


def test_defaults_are_left_out_whatever_the_kind() -> None:
    found = model_field(Everything, "/config", "Options")
    assert take(found, texts_of(found)) is UNSET
    assert take(found, {}) is UNSET


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("n_clusters", "3", 3),
        ("n_clusters", "2, 3 4", [2, 3, 4]),
        ("n_clusters", "[2,3]", [2, 3]),
        ("n_clusters", "2-4", [2, 3, 4]),
        ("n_clusters", "2 to 4", [2, 3, 4]),
        ("n_clusters", "4-2", "4-2"),
        ("n_clusters", "two", "two"),
        ("n_clusters", "2, x", [2, "x"]),
        ("flag", "true", True),
        ("maybe", "false", False),
        ("count", " 5 ", 5),
        ("count", "5.5", 5.5),
        ("count", "-\u0665", "-\u0665"),
        ("count", "9" * 5_000, "9" * 5_000),
        ("count", "1e999", "1e999"),
        ("count", "nan", "nan"),
        ("several", "3", [3]),
        ("word", "3", 3),
        ("word", "", None),
        ("word", "other", "other"),
        ("number_or_word", "4", 4),
        ("names", 'low, "one, two" ,high', ["low", "one, two", "high"]),
        ("text", "", ""),
        ("text", "one\r\n  two", "one two"),
        ("perhaps", "x", "x"),
        ("matrix", "[[1, 2.5]]", [[1, 2.5]]),
        ("matrix", "[[1, 2.5", "[[1, 2.5"),
        ("matrix", "[" * 100_000, "[" * 100_000),
        ("matrix", "NaN", "NaN"),
        ("mapping", '{"a": 1}', {"a": 1}),
    ],
)
def test_typed_text_becomes_json_and_nothing_raises(name: str, text: str, value: Any) -> None:
    found = model_field(Everything, "/config", "Options")
    assert take(found, {f"/config/{name}": text}) == {name: value}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("number", "1" * 200_000 + "x"),
        ("text", "a" + " " * 200_000 + "b"),
        ("words", '"" ' * 100_000 + '"'),
        ("numbers", "[1; " * 100_000 + "x"),
        ("time", "2026-01-01T00:00" + ".0" * 100_000 + "x"),
        ("json", "[" * 200_000),
    ],
)
def test_a_long_text_takes_no_longer_than_its_length(kind: Any, text: str) -> None:
    """A regular expression that goes back and forth would stop the coordinator for hours."""
    field = FormField("/a", "A", kind)
    began = time.process_time()
    value = field.value(text)
    assert field.text(value) is not None
    assert field.text([text[:2]] * 50_000) is not None
    assert time.process_time() - began < 2


def test_a_group_whose_defaults_are_its_own_is_written_out_once_it_differs() -> None:
    found = model_field(Everything, "/config", "Options")
    changed = take(found, {"/config/inner/b": "9", "/config/plain/b": "9"})
    assert changed == {"inner": {"a": 5, "b": 9}, "plain": {"b": 9}}
    read = Everything.model_validate({"n_clusters": 3, **changed})
    assert (read.inner, read.plain) == (Inner(a=5, b=9), Inner(a=1, b=9))


def test_a_variant_shows_its_own_fields_and_forgets_the_defaults_of_another() -> None:
    found = model_field(Everything, "/config", "Options")
    figure = next(each for each in found.fields if each.name == "figure")
    assert [each.name for each in shown_fields(figure, {})] == ["shape", "radius"]
    typed = {"/config/figure/shape": "square", "/config/figure/side": "3"}
    assert [each.name for each in shown_fields(figure, typed)] == ["shape", "side"]
    assert take(figure, typed) == {"shape": "square", "side": 3}
    shown = {"shown:/config/figure/shape": "circle", "/config/figure/radius": "2.5"}
    assert "/config/figure/radius" not in without_defaults(found, shown)
    assert "/config/figure/radius" in without_defaults(
        found, {**shown, "/config/figure/radius": "3"}
    )


def test_other_defaults_count_and_are_left_out() -> None:
    found = with_defaults(model_field(Everything, "/config", "Options"), {"count": 4, "flag": True})
    assert texts_of(found)["/config/count"] == "4"
    assert take(found, texts_of(found)) is UNSET
    assert take(found, {"/config/count": "2", "/config/flag": "false"}) == {
        "count": 2,
        "flag": False,
    }


def test_a_definition_fills_the_form_and_comes_out_again() -> None:
    found = model_field(Everything, "/config", "Options")
    value = {
        "n_clusters": [2, 5],
        "flag": True,
        "maybe": False,
        "word": None,
        "number_or_word": 7,
        "names": ['say "a", b', "c"],
        "perhaps": "x",
        "matrix": [[1.5]],
        "inner": {"a": 6, "b": 2},
        "figure": {"shape": "square", "side": 4},
        "with/slash~": 2,
    }
    assert take(found, fill(found, value)) == {**value, "inner": {"a": 6}}
    assert unknown_names(found, {**value, "other": 1}) == ["other"]
    hostile = {"count": {"deep": [1]}, "flag": "maybe", "inner": 3, "figure": {"shape": []}}
    assert take(found, fill(found, hostile))["count"] == '{"deep": [1]}'


def test_schemas_that_fit_nothing_are_json() -> None:
    for schema in (
        {},
        {"$ref": "#/$defs/absent"},
        {"$ref": "#/$defs/self", "$defs": {"self": {"$ref": "#/$defs/self"}}},
        {"type": ["integer", "string"]},
        {"anyOf": []},
        {"type": "array"},
        {"properties": 3, "type": "object"},
        {"discriminator": {"propertyName": "x"}, "oneOf": [{"type": "integer"}, {"type": "array"}]},
    ):
        assert schema_field(schema, "/config", "Options").kind == "json", schema

    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {}}}}
    endless["$defs"]["a"]["properties"]["b"] = {"$ref": "#/$defs/a"}  # type: ignore[index]
    assert len(list(shown_fields(schema_field(endless, "/config", "Options"), {}))) == 1


def test_a_union_that_needs_its_tag_always_writes_it() -> None:
    union = RootModel[Annotated[Square | Circle, Field(discriminator="shape")]]
    assert take(options_field(union), {}) == {"shape": "square"}


# --- the methods ----------------------------------------------------------------------------------


def fields_of(name: str, model: type[MethodOptions]) -> dict[str, FormField]:
    found = options_field(METHODS[name].options)
    groups = found.variants or (found.fields,)
    place = variant_models(METHODS[name].options).index(model)
    fields = {each.name: each for each in groups[place]}
    return fields if found.chooser is None else {found.chooser.name: found.chooser, **fields}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_option_of_every_method_has_a_field_with_its_default(name: str) -> None:
    for model in variant_models(METHODS[name].options):
        fields = fields_of(name, model)
        assert fields.keys() == model.model_fields.keys()
        for option, info in model.model_fields.items():
            field = fields[option]
            assert field.kind not in ("group", "variant")
            if not info.is_required():
                assert field.default == json.loads(json.dumps(info.default)), option
                assert not field.required


def test_help_comes_from_the_docstrings_of_a_model_and_its_bases() -> None:
    model = variant_models(METHODS["kfed"].options)[0]
    fields = fields_of("kfed", model)
    assert fields["refine"].help == "Exact Lloyd rounds after the first round."
    assert fields["n_init"].help.endswith("Empty: 10, down to 2 at a large site.")
    assert fields["evaluate"].help.startswith("Whether a closing round")
    assert attribute_help("One line.") == {}


def test_names_in_a_line_of_csv() -> None:
    assert split_words('a;"b;c";d', ";") == ["a", "b;c", "d"]
    assert split_words('broken "quote, b') == ['broken "quote', "b"]
