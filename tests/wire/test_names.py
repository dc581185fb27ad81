"""Names, levels, units and titles show what they are, to the SDK and to the coordinator."""

import unicodedata

import pytest
from pydantic import ValidationError

from fedclust.schema.feature import Feature
from fedclust.wire.models import PrincipalCreate, PrincipalPatch

GOOD = ["age", "Größe", "年齢", "возраст", "السن", "β-hCG", "🫀", "x_1", "chol (total), %"]
UNITS = ["µmol/l", "μmol/l", "m²", "°C", "1/10³"]
BAD = {
    "a control character": "a\u0085b",
    "a zero-width space": "a\u200bb",
    "right to left": "a\u202eega",
    "a no-break space": "a\u00a0b",
    "a line separator": "a\u2028b",
    "spaces alone": "   ",
    "a space before": " age",
    "a space behind": "age ",
    "private use": "a\ue000",
    "unassigned": "a\u0378",
    "a Hangul filler": "a\u3164",
    "an empty Braille cell": "\u2800",
    "a variation selector": "a\ufe0f",
    "decomposed": unicodedata.normalize("NFD", "Größe"),
    "the Kelvin sign": "\u212a",
}


@pytest.mark.parametrize("text", [*GOOD, *UNITS])
def test_text_of_any_script_is_taken(text: str) -> None:
    assert Feature(name=text, unit=text).name == text
    assert Feature(name="sex", kind="categorical", levels=(text, "other")).levels is not None
    assert PrincipalCreate(name="north", title=text).title == text


@pytest.mark.parametrize("name", BAD)
def test_text_that_does_not_show_what_it_is_is_refused(name: str) -> None:
    text = BAD[name]
    for make in (
        lambda: Feature(name=text),
        lambda: Feature(name="age", unit=text),
        lambda: Feature(name="sex", kind="categorical", levels=("other", text)),
        lambda: PrincipalCreate(name="north", title=text),
        lambda: PrincipalPatch(title=text),
    ):
        with pytest.raises(ValidationError) as caught:
            make()
        (error,) = caught.value.errors(include_input=False)
        assert error["type"] in {"visible", "string_pattern_mismatch"}
        assert text not in error["msg"]


def test_no_text_at_all_is_no_fault_where_it_may_be_left_out() -> None:
    assert (Feature(name="age").unit, PrincipalCreate(name="north").title) == ("", "")


def test_the_refusal_says_what_to_change() -> None:
    for text, said in (("a ", "spaces"), ("a\u200b", "invisible"), ("e\u0301", "NFC")):
        with pytest.raises(ValidationError, match=said):
            Feature(name=text)
