"""A site's receipts, on both databases."""

from typing import Any

from fedclust_service.usecases.submissions import list_receipts
from support.databases import sqlite_first  # noqa: F401  # in place of database_url
from usecases.direct_api import DirectApi, site


def test_a_site_reads_its_receipts(both: DirectApi) -> None:
    both.session(sites=("east", "north", "south", "west"), rounds=2)
    both.answer("heart", "east")
    sent = [both.answer("heart", "north").receipt]
    both.answer("heart", "south", empty=True)
    both.answer("heart", "west")
    both.drive()
    sent.append(both.answer("heart", "north").receipt)

    def read(who: str, **page: Any) -> list[Any]:
        return list(list_receipts(both.co, site(who), "heart", **page).items)

    found = read("north")
    for mine, receipt in zip(found, sent, strict=True):
        assert mine.model_dump(exclude={"empty", "scrubbed"}) == receipt.model_dump(
            exclude={"session", "site"}
        )
    assert [(each.empty, each.scrubbed) for each in found] == [(False, False)] * 2
    (empty,) = read("south")
    assert (empty.empty, empty.scrubbed) == (True, False)
    first = list_receipts(both.co, site("north"), "heart", 1)
    assert [*first.items, *read("north", cursor=first.next)] == found
    both.finish("heart")
    both.later(31 * 86_400)
    assert [each.scrubbed for each in read("north")] == [True, True]
    assert not any(each.scrubbed for each in read("south") if each.empty)
