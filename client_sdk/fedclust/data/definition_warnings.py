"""What is right in a definition and may still be a mistake; analysts read it at each check."""

import re
from collections.abc import Iterator
from typing import Final

from fedclust.data.known_names import is_sex
from fedclust.definition import unbounded_text
from fedclust.schema.feature import ALLOWANCE, asked_of, outcomes_of
from fedclust.wire.models import SessionCreate

#: A code and what it means, such as ``0=never``; ``>=65`` is a level.
_CODE: Final = re.compile(r"\w ?= ?\w")
_OTHER_CODE: Final = re.compile(r"\b([2-9]|\d\d+) ?[=:]")


def definition_warnings(definition: SessionCreate) -> Iterator[str]:
    """Yield a text of one or two sentences for each possible mistake."""
    if said := unbounded_text(definition.features):
        yield said
    asked = [each for each in asked_of(definition.features) if each.kind == "binary"]
    unclear = dict.fromkeys(each.name for each in asked if is_sex(each.name) and not each.unit)
    if unclear:
        yield (
            f"The name does not say what 1 means: {', '.join(unclear)}. Sites may code it "
            "differently, and nothing would show it: give it the unit 1 = male, for example."
        )
    if other := [each.name for each in asked if _OTHER_CODE.search(each.unit)]:
        yield (
            f"Yes/no columns have 0 and 1, and the unit says another code: {', '.join(other)}. "
            "Say only what 1 means, such as 1 = male: each site says what its own codes are."
        )
    declared = {each.name: ", ".join(each.levels or ()) for each in asked_of(definition.features)}
    if coded := [name for name, levels in declared.items() if _CODE.search(levels)]:
        yield f"Name the levels without codes, which each site has its own: {', '.join(coded)}."
    points = sum(each.points for each in outcomes_of(definition.features))
    if points > ALLOWANCE and definition.policy.protection != "none":
        yield (
            f"The outcomes ask {points} points, and a site has {ALLOWANCE} unless its approval "
            "opens more. A site that is short counts none of them: ask fewer points."
        )
    stated = {"contact": definition.contact, "ethics approval": definition.approval}
    if lacking := [what for what, text in stated.items() if not text]:
        yield f"No {' and no '.join(lacking)} is given: stewards look for that first."
