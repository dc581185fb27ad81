"""What a definition that is right is warned of."""

import json
from typing import Any

import pytest

from fedclust.data.definition_warnings import definition_warnings
from fedclust.wire.models import SessionCreate
from support.definitions import session_body

AGE = {"name": "age", "lower": 0, "upper": 120}
SEX = {"name": "sex", "kind": "binary"}
DIED = {"name": "died", "kind": "binary", "role": "outcome"}


def warned(*features: dict[str, Any], **changes: Any) -> list[str]:
    stated = {"contact": "Ada", "approval": "E-7", **changes}
    body = session_body(AGE, *features, **stated)
    return [*definition_warnings(SessionCreate.model_validate_json(json.dumps(body)))]


def test_a_definition_that_says_everything_has_no_warning() -> None:
    assert warned({**SEX, "unit": "1 = male"}, {**SEX, "name": "diabetes"}, DIED) == []


@pytest.mark.parametrize(
    ("stated", "lacking"),
    [
        ({"approval": ""}, "No ethics approval is"),
        ({"contact": ""}, "No contact is"),
        ({"approval": "", "contact": ""}, "No contact and no ethics approval is"),
    ],
)
def test_what_stewards_look_for_is_missed_in_one_sentence(
    stated: dict[str, str], lacking: str
) -> None:
    assert warned(**stated) == [f"{lacking} given: stewards look for that first."]


def test_a_sex_of_which_nobody_knows_the_one_is_named_once() -> None:
    both = warned(SEX, {**SEX, "role": "outcome"}, {**SEX, "name": "Geschlecht"})
    assert len(both) == 1
    assert both[0].startswith("The name does not say what 1 means: sex, Geschlecht. ")
    assert warned({**SEX, "name": "male"}, {**SEX, "name": "sex_female"}) == []


def test_a_unit_with_codes_other_than_0_and_1_is_named() -> None:
    for unit in ("1=male, 2=female", "0 = no, 9: unknown"):
        (said,) = warned({**SEX, "unit": unit})
        assert said.startswith("Yes/no columns have 0 and 1, and the unit says another code: sex.")
    assert warned({**SEX, "unit": "1 = male, 0 = female"}) == []


def test_codes_among_levels_are_named() -> None:
    levels = {"name": "smoking", "kind": "categorical", "levels": ["0=never", "1=former"]}
    assert warned(levels) == [
        "Name the levels without codes, which each site has its own: smoking."
    ]
    assert warned({**levels, "levels": ["<65", ">=65"]}) == []


def test_more_points_than_a_site_has_lose_the_outcomes() -> None:
    asked = [{**DIED, "name": name, "points": 50} for name in ("died", "stroke")]
    assert warned(*asked) == []
    (said,) = warned(*asked, {**DIED, "name": "fall", "points": 1})
    assert said.startswith("The outcomes ask 101 points, and a site has 100 unless its approval")
    # Exact counts cost nothing.
    exact = {"protection": "none", "scaling": "standard"}
    assert warned({**DIED, "points": 101}, policy=exact) == []


def test_missing_bounds_are_named() -> None:
    (said,) = warned({"name": "bmi", "lower": 10})
    assert said.startswith("No lower or no upper bound: bmi.")
