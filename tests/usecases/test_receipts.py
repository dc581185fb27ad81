"""A site's receipts, on both databases."""

from __future__ import annotations

from typing import Any

from fedclust_service.usecases.receipts import list_receipts
from fedclust_service.usecases.sweeper import sweep
from support.databases import sqlite_first  # noqa: F401  # in place of database_url
from usecases.direct_api import DirectApi, site


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
