"""Fields of a form for any JSON Schema: every property has one, and its text is read back."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from fedclust.methods.common.options import variant_models
from fedclust.methods.registry import METHODS
from fedclust.schema.model import Written
from fedclust_service.http.ui.schema_fields import FormField, fields_of, option_fields


class Inner(BaseModel):
    """What a group holds."""

    a: int = 1


class Square(BaseModel):
    """A square."""

    shape: Literal["square"]


class Circle(BaseModel):
    """A circle."""

    shape: Literal["circle"]


class Recursive(BaseModel):
    """Holds itself."""

    inner: Recursive | None = None


class Everything(Written):
    """Options as a plug-in may have them."""

    n_clusters: int | tuple[int, ...]
    flag: bool = False
    maybe: bool | None = None
    count: Annotated[int, Field(ge=-3, lt=7, description="How many.")] = 2
    several: tuple[float, ...] = (1.0, 2.5)
    word: Literal["auto", 3, True, None] = "auto"
    """One of them, of which `auto` is
    usual. None: none of them.
    """
    number_or_word: int | Literal["all"] = "all"
    names: tuple[str, ...] | None = None
    text: str = "as it is"
    perhaps: str | None = None
    matrix: tuple[tuple[float, ...], ...] | None = None
    anything: Any = None
    mapping: dict[str, int] = Field(default_factory=dict)
    inner: Inner = Inner(a=5)
    figure: Annotated[Square | Circle, Field(discriminator="shape")] = Circle(shape="circle")
    recursive: Recursive = Recursive()
    text_or_number: str | int = 1
    word_or_text: Literal["auto"] | str = "auto"
    renamed: int = Field(default=1, alias="with/slash~")


FIELDS = {each.name: each for each in fields_of(Everything, "/config")}


def test_every_kind_of_option_has_its_input() -> None:
    assert {name: each.kind for name, each in FIELDS.items()} == {
        "n_clusters": "numbers",
        "flag": "choice",
        "maybe": "choice",
        "count": "number",
        "several": "numbers",
        "word": "choice",
        "number_or_word": "number",
        "names": "words",
        "text": "text",
        "perhaps": "text",
        **dict.fromkeys(("matrix", "anything", "mapping", "inner", "figure", "recursive"), "json"),
        **dict.fromkeys(("text_or_number", "word_or_text"), "json"),
        "with/slash~": "number",
    }
    assert (FIELDS["count"].help, FIELDS["count"].limits) == ("How many.", "from -3, below 7")
    assert FIELDS["word"].help == "One of them, of which auto is usual. Empty: none of them."
    assert FIELDS["with/slash~"].pointer == "/config/with~1slash~0"
    assert FIELDS["figure"].default_text == '{"shape": "circle"}'
    assert [each.kind for each in fields_of(Recursive)] == ["json"]


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
        ("maybe", "null", None),
        ("count", "5.5", 5.5),
        ("count", "-\u0665", "-\u0665"),
        ("count", "9" * 5_000, "9" * 5_000),
        ("count", "1e999", "1e999"),
        ("count", "nan", "nan"),
        ("several", "3", [3]),
        ("word", "3", 3),
        ("word", "other", "other"),
        ("number_or_word", "4", 4),
        ("names", '["low", "one, two"]', ["low", "one, two"]),
        ("names", "low, high,", ["low", "high"]),
        ("names", "[low, high", "[low, high"),
        ("text", "one\r\n  two", "one two"),
        ("perhaps", "null", "null"),
        ("matrix", "[[1, 2.5]]", [[1, 2.5]]),
        ("matrix", "[[1, 2.5", "[[1, 2.5"),
        ("matrix", "[" * 100_000, "[" * 100_000),
        ("matrix", "NaN", "NaN"),
        ("mapping", '{"a": 1}', {"a": 1}),
    ],
)
def test_typed_text_becomes_json_and_nothing_raises(name: str, text: str, value: Any) -> None:
    found = FIELDS[name].value(text)
    assert found == value
    assert FIELDS[name].value(FIELDS[name].text(found)) == found, "a definition shows what it is"


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
def test_a_long_text_takes_no_longer_than_its_length(kind: str, text: str) -> None:
    """A regular expression that goes back and forth would stop the coordinator for hours."""
    field = FormField("/a", "A", kind)
    began = time.process_time()
    assert field.text(field.value(text)) is not None
    assert field.text([text[:2]] * 50_000) is not None
    assert time.process_time() - began < 2


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_option_of_every_method_has_a_field_with_its_default(name: str) -> None:
    models = variant_models(METHODS[name].options)
    chooser = option_fields(METHODS[name], {})[0]
    for place, model in enumerate(models):
        chosen = {} if len(models) == 1 else {chooser.name: chooser.choices[place]}
        fields = {each.name: each for each in option_fields(METHODS[name], chosen)}
        assert fields.keys() == model.model_fields.keys()
        for option, info in model.model_fields.items():
            if not info.is_required():
                assert fields[option].default == json.loads(json.dumps(info.default)), option
                assert not fields[option].required
            assert fields[option].help, option
