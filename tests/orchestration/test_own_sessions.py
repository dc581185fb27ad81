"""What a site reads of its own part, on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from fedclust_service.domain.refusal import Refusal
from fedclust_service.orchestration.own_sessions import list_own_sessions, list_receipts
from fedclust_service.orchestration.sweeper import sweep
from orchestration.direct_api import ANALYST, OPERATOR, DirectApi, site


def test_a_site_reads_its_receipts(direct_on_both: DirectApi) -> None:
    direct = direct_on_both
    direct.session(sites=("east", "north", "south", "west"), rounds=2)
    direct.answer("heart", "east")
    sent = [direct.answer("heart", "north").receipt]
    direct.answer("heart", "south", empty=True)
    direct.answer("heart", "west")
    direct.drive()
    sent.append(direct.answer("heart", "north").receipt)

    def read(who: str, **page: Any) -> list[Any]:
        return list(list_receipts(direct.co, site(who), "heart", **page).items)

    found = read("north")
    for mine, receipt in zip(found, sent, strict=True):
        assert mine.model_dump(exclude={"empty", "scrubbed"}) == receipt.model_dump(
            exclude={"session", "site"}
        )
    assert [(each.empty, each.scrubbed) for each in found] == [(False, False)] * 2
    (empty,) = read("south")
    assert (empty.empty, empty.scrubbed) == (True, False)
    first = list_receipts(direct.co, site("north"), "heart", 1)
    assert [*first.items, *read("north", cursor=first.next)] == found
    direct.finish("heart")
    direct.clock.advance(31 * 86_400)
    sweep(direct.co)
    assert [each.scrubbed for each in read("north")] == [True, True]
    assert not any(each.scrubbed for each in read("south") if each.empty)


def test_nobody_else_reads_receipts(direct: DirectApi) -> None:
    direct.session()
    direct.register("elsewhere")
    for who, problem in ((OPERATOR, "forbidden"), (ANALYST, "forbidden")):
        for read in (list_own_sessions, lambda co, who: list_receipts(co, who, "heart")):
            with pytest.raises(Refusal) as caught:
                read(direct.co, who)
            assert caught.value.slug == problem
    with pytest.raises(Refusal) as caught:
        list_receipts(direct.co, site("elsewhere"), "heart")
    assert caught.value.slug == "not-found"


def test_a_site_reads_the_sessions_that_name_it(direct_on_both: DirectApi) -> None:
    direct = direct_on_both
    direct.session("heart", rounds=2)
    direct.define("liver")
    direct.define("lung", sites=("south", "west"), policy={"min_sites": 2})

    def read(who: str = "north") -> list[Any]:
        return list(list_own_sessions(direct.co, site(who)).items)

    assert [each.session.name for each in read("south")] == ["lung", "liver", "heart"]
    liver, heart = read()
    assert (liver.state, liver.answered, liver.late, liver.deadline) == ("invited",) + (None,) * 3
    assert (heart.state, heart.answered, heart.late) == ("joined", False, False)
    assert heart.session.definition.purpose
    direct.clock.advance(30 * 86_400)
    assert heart.deadline < direct.clock.now()
    assert read()[1].late
    direct.answer("heart", "north")
    assert (read()[1].answered, read()[1].late) == (True, False)
    first = list_own_sessions(direct.co, site("north"), 1)
    rest = list_own_sessions(direct.co, site("north"), 1, first.next)
    assert [*first.items, *rest.items] == read()
    direct.finish("heart")
    assert read()[1].deadline is None
