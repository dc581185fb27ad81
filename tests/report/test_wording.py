"""How values are written for people."""

import html
import re
import string
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fedclust.result.wording import (
    from_markdown,
    in_markdown,
    named_values,
    plain,
    share,
    time_text,
    value_text,
    without_noise,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (44.900000000000006, "44.9"),
        (1.9e-7, "0.00000019"),
        (-0.0, "0"),
        (12_345_678.0, "12345700"),
        (100.0, "100"),
        (-2.5, "-2.5"),
    ],
)
def test_a_number_has_no_power_of_ten(value: float, text: str) -> None:
    assert plain(value) == text


def test_a_time_is_english_and_has_its_zone() -> None:
    berlin = timezone(timedelta(hours=1))
    assert time_text(datetime(2026, 12, 1, 0, 5, tzinfo=berlin)) == "30 Nov 2026, 23:05 UTC"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not set"),
        (True, "yes"),
        (False, "no"),
        (3, "3"),
        (1e-06, "0.000001"),
        (0.5, "0.5"),
        ((2, 3), "2, 3"),
        ("given", "given"),
        ({"kind": "none", "k": [2, None]}, "(kind: none, k: 2, not set)"),
    ],
)
def test_a_value_is_no_python_literal(value: object, text: str) -> None:
    assert value_text(value) == text
    assert named_values({"tol": value, "seed": 7}) == f"tol: {text}, seed: 7"


def test_rounding_noise_of_a_share_is_left_out_and_a_small_share_is_kept() -> None:
    assert [share(value) for value in (1.11022e-16, -1e-17, 1 - 2e-16)] == [0.0, 0.0, 1.0]
    assert [share(value) for value in (1e-9, 1 / 3, 0.999999)] == [1e-9, 1 / 3, 0.999999]
    assert without_noise(1 - 2e-16) == 1 - 2e-16


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("<img src=x>", r"\<img src=x>"),
        (r"\<img src=x>", r"\\\<img src=x>"),
        ("[@lloyd1982]", r"[\@lloyd1982]"),
        ("![a](javascript:1)", r"![a\](javascript:1)"),
        ("[a]{.b}", r"[a\]{.b}"),
        # Units and levels as they are usual stay as they are.
        ("age (<65, >=65)", "age (<65, >=65)"),
        ("mm[Hg], mmol/L, a_b", "mm[Hg], mmol/L, a_b"),
    ],
)
def test_names_are_no_markdown(name: str, shown: str) -> None:
    assert in_markdown(name) == shown
    assert from_markdown(shown) == name


MARKUP = (
    *("a", "*b*", "_c_", "__d__", "x_y", "`e`", "~~f~~", "10*9", "[^1]", "[n]: o", "(", " ", "|"),
    *("[g](h)", "[g][h]", "![i](j)", "<k>", "<https://l>", "</m>", "&amp;", "&#35;", "&", "\\"),
)


@given(
    st.text(st.sampled_from([*string.printable[:95], "é", "א"]), max_size=60)
    | st.lists(st.sampled_from(MARKUP)).map("".join)
)
def test_whatever_people_write_a_reader_of_markdown_shows(name: str) -> None:
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    name = " ".join(name.split())
    table = reader.render(f"| a | b |\n|---|---|\n| x{in_markdown(name)}x | y |")
    line = reader.render(f"x{in_markdown(name)}x")
    for shown, tag in ((table, "td"), (line, "p")):
        found = re.search(f"<{tag}>x(.*?)x</{tag}>", shown, re.DOTALL)
        assert "<" not in found[1]
        assert html.unescape(found[1]) == name
    assert from_markdown(in_markdown(name)) == name
