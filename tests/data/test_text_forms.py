"""What the numbers in texts of one form mean."""

from datetime import date, time, timedelta

import numpy as np
import pytest

from fedclust.data.decode import ColumnRule, Decoder
from fedclust.data.text_forms import NumberFormat, combined, forms_of, meaning_text

COMMA = NumberFormat(",")


@pytest.mark.parametrize(
    ("text", "form", "numbers"),
    [
        ("< 0,5 mg/l", "<#mg/l", [0.5]),
        ("RR 130 / 65", "RR#/#", [130, 65]),
        ("-3", "#", [-3]),
        ("30-40", "#-#", [30, 40]),
        ("1 250 ml", "#ml", [1250]),
        ("12.5 cm", "#cm", [12.5]),
        ("1.244 m", "#.000m", [1244]),
        ("0.244 m", "#m", [0.244]),
        ("120 80", "# #", [120, 80]),
        ("12.05.2024", "", []),
        ("nil", "", []),
    ],
)
def test_a_text_has_a_form_and_numbers(text: str, form: str, numbers: list[float]) -> None:
    assert COMMA.split(text) == (form, numbers)


@pytest.mark.parametrize(
    ("read", "forms"),
    [
        ({"120/80": 120.0}, {"#/#": (1, 0)}),
        ({"120/80": 80.0, "131/70": 70.0}, {"#/#": (0, 1)}),
        ({"30-40": 35.0}, {"#-#": (0.5, 0.5)}),
        ({"<5": 2.5, "<7": 3.5}, {"<#": (0.5,)}),
        ({"1.244": 1244.0}, {"#.000": (1,)}),
        ({"1.244": 1.244}, {"#.000": (0.001,)}),
        ({"10 lb": 4.536, "20 lb": 9.072}, {"#lb": (0.4536,)}),
        ({"98 F": 36.6667, "100 F": 37.7778, "104 F": 40.0}, {"#F": (0.555555, -17.7778)}),
        ({"1 J 10 Mo": 22.0, "2 J 3 Mo": 27.0, "5 J 7 Mo": 67.0}, {"#J#Mo": (12, 1)}),
        ({"15x13": None, "2x4": None}, {"#x#": ()}),
        # Single texts, chances and exceptions stay as they are.
        ({"999?": None}, {}),
        ({"10 lb": 4.5}, {}),
        ({"4:10": 1.0, "8:11": 2.0, "12:12": 3.0}, {}),
        ({"13/8": 130.0, "125/80": 125.0}, {}),
        ({"III": 3.0}, {}),
    ],
)
def test_texts_of_a_form_become_one_rule_that_reads_them(
    read: dict[str, float | None], forms: dict[str, tuple[float, ...]]
) -> None:
    found, others = forms_of(read, COMMA)
    assert set(found) == set(forms)
    for form, weights in forms.items():
        np.testing.assert_allclose(found[form], weights, rtol=1e-4)
    assert others == ({} if forms else read)
    values = {text: of for text, of in others.items() if of is not None}
    markers = frozenset(others) - frozenset(values)
    rule = ColumnRule(False, markers, decimal_mark=",", values=values, forms=found)
    decoded = Decoder(rule, textual=True)([*read])
    np.testing.assert_allclose(decoded.values, np.array([*read.values()], float), rtol=1e-5)
    assert not decoded.wrong


def test_a_sentinel_counts_before_a_value_and_behind_a_form() -> None:
    rule = ColumnRule(
        False, sentinels=frozenset({99.0, 4.5}), values={"99": 9.9}, forms={"<#": (0.5,)}
    )
    for cells in (["99", "<9", "<8"], [99.0, "<9", "<8"]):
        decoded = Decoder(rule, textual=True)(cells)
        np.testing.assert_array_equal(decoded.values, [np.nan, np.nan, 4])
    assert np.isnan(Decoder(rule, textual=True)(np.array([99.0])).values[0])


def test_a_time_of_a_workbook_has_a_form() -> None:
    forms = {"#day,#:#:#": (24.0, 1.0, 1 / 60, 0.0), "#:#:#": (1.0, 1 / 60, 0.0)}
    decoder = Decoder(ColumnRule(False, forms=forms), textual=True)
    decoded = decoder([timedelta(hours=28.25), time(10, 30), date(2026, 1, 1)])
    np.testing.assert_allclose(decoded.values, [28.25, 10.5, np.nan])


def test_a_form_is_said_in_words() -> None:
    said = [meaning_text(*each) for each in (("<#", [0.5]), ("#/#", [1, 0]), ("#½", [1, 0.5]))]
    assert said == ["<# means 0.5 x #", "#/# means 1. #", "#½ means # + 0.5"]
    assert (meaning_text("#x#", []), combined([0.5, 32], [10])) == ("#x# is missing", 37)
