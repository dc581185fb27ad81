"""The heads of sites' tables: recorded with each join, refused, accepted by operators."""

from typing import Any

import pytest

from fedclust.wire.models import SiteTableInfo, TableAcceptance, TableHeads
from fedclust_service.domain.access import Refusal
from fedclust_service.usecases import participation, site_tables
from support.databases import BOTH, sqlite_first  # noqa: F401  # in place of database_url
from usecases.direct_api import OPERATOR, DirectApi, at_once, chain, paged, refusal, site

TABLE, OTHER = "0" * 32, "1" * 32
NAMES = ("one", "two", "three", "four", "five")


@pytest.fixture
def direct(both: DirectApi) -> DirectApi:
    """Return a coordinator with sessions of these names, on each kind of database."""
    for name in NAMES:
        both.define(name)
    return both


def join(
    direct: DirectApi, session: str, heads: TableHeads, table: str = TABLE, **more: Any
) -> None:
    direct.join(session, "north", table_id=table, heads=heads, **more)


def refused(direct: DirectApi, session: str, heads: TableHeads, **more: Any) -> Refusal:
    return refusal(join, direct, session, heads, **more)


def accepted(direct: DirectApi, who: str = "north") -> list[tuple[str, int, str]]:
    """Return table, number and first digit of the head of what was accepted."""
    page = site_tables.list_tables(direct.co, OPERATOR, who)
    return [(each.table_id, each.number, each.head[0]) for each in page.items]


def test_a_longer_chain_moves_the_accepted_head_forward(direct: DirectApi) -> None:
    join(direct, "one", chain("a"))
    assert accepted(direct) == [(TABLE, 1, "a")]
    # A crash between store and join leaves a longer chain.
    join(direct, "two", chain("abc"))
    assert accepted(direct) == [(TABLE, 3, "c")]
    join(direct, "three", chain("cd", first=3))
    assert accepted(direct) == [(TABLE, 4, "d")]
    assert accepted(direct, "south") == []
    direct.join("one", "south", table_id=TABLE, heads=chain("f"))
    assert accepted(direct) == [(TABLE, 4, "d")]


def test_a_join_that_is_sent_again_changes_nothing_or_moves_forward(direct: DirectApi) -> None:
    join(direct, "one", chain("ab"))
    (before,) = site_tables.list_tables(direct.co, OPERATOR, "north").items
    join(direct, "one", chain("ab"))
    assert [before] == list(site_tables.list_tables(direct.co, OPERATOR, "north").items)
    join(direct, "one", chain("abc"))
    assert accepted(direct) == [(TABLE, 3, "c")]
    assert refused(direct, "one", chain("ab")).slug == "table-changed"
    assert accepted(direct) == [(TABLE, 3, "c")]


@pytest.mark.parametrize(
    ("sent", "reason", "there"), [("ab", "older", None), ("abd", "branched", "d" * 16)]
)
def test_a_restored_store_is_refused_with_what_to_do(
    direct: DirectApi, sent: str, reason: str, there: str | None
) -> None:
    join(direct, "one", chain("abc"))
    problem = refused(direct, "two", chain(sent))
    last, head = len(sent), sent[-1] * 16
    assert problem.slug == "table-changed"
    for words in ("newer state", "backup", "another machine", "ask the coordinator's operator"):
        assert words in problem.detail
    command = f"fedclust site accept-table north --table {TABLE} --number {last} --head {head}"
    assert command in problem.detail
    assert direct.info("two").sites[0].state == "invited"
    assert accepted(direct) == [(TABLE, 3, "c")]
    # The entry stays, although the join does not.
    ((who, _, details),) = direct.audit(action="site.table_refused")
    assert who == "site:north"
    known = {"accepted_number": 3, "accepted_head": "c" * 16, "head_there": there}
    assert details == {"table": TABLE, "reason": reason, "number": last, "head": head, **known}


def test_heads_after_the_accepted_change_are_not_enough_and_a_session_keeps_its_table(
    direct: DirectApi,
) -> None:
    join(direct, "one", chain("a"))
    assert refused(direct, "two", chain("bc", first=2)).slug == "table-heads-needed"
    assert direct.audit(action="site.table_refused") == []
    assert accepted(direct) == [(TABLE, 1, "a")]
    join(direct, "two", chain("abc"))
    assert refusal(direct.join, "one", "north").slug == "table-changed", "nor without one"
    assert refused(direct, "one", chain("a"), table=OTHER).slug == "table-changed"
    (*_, (_, _, details)) = direct.audit(action="site.table_refused")
    assert details["reason"] == "other"


def test_an_unknown_table_is_refused_or_brought_as_separate_groups(direct: DirectApi) -> None:
    join(direct, "one", chain("a"))
    problem = refused(direct, "two", chain("b"), table=OTHER)
    assert problem.slug == "table-changed"
    assert "--separate-groups" in problem.detail
    assert "lost without a backup" in problem.detail
    assert f"--table {OTHER} --number 1 --head {'b' * 16}" in problem.detail
    ((_, _, details),) = direct.audit(action="site.table_refused")
    assert details == {"table": OTHER, "reason": "unknown", "number": 1, "head": "b" * 16}
    join(direct, "two", chain("b"), table=OTHER, separate_groups=True)
    assert accepted(direct) == [(TABLE, 1, "a"), (OTHER, 1, "b")]
    join(direct, "three", chain("d"), table="c" * 32, other_persons=True)
    details = direct.audit(action="site.joined")[-1][2]
    assert (details["separate_groups"], details["other_persons"]) == (False, True)
    # What is known is compared, whatever the site says about groups.
    for said in ("separate_groups", "other_persons"):
        assert refused(direct, "four", chain("c"), **{said: True}).slug == "table-changed"


@pytest.mark.parametrize("changes", [{"heads": None}, {"table_id": None}])
def test_heads_go_together_with_a_table(direct: DirectApi, changes: dict[str, Any]) -> None:
    direct.define()
    given = {"table_id": TABLE, "heads": chain("a"), **changes}
    problem = refusal(direct.join, "heart", "north", **given)
    assert (problem.slug, [each.pointer for each in problem.errors]) == ("invalid", ["/heads"])


# --- the operator's act ---------------------------------------------------------------------------


def accept(
    direct: DirectApi, number: int, letter: str, table: str = TABLE, who: str = "north"
) -> SiteTableInfo:
    body = TableAcceptance(number=number, head=letter * 16)
    return site_tables.accept_table(direct.co, OPERATOR, who, table, body)


def test_an_operator_accepts_a_restored_chain_or_another_table(direct: DirectApi) -> None:
    join(direct, "one", chain("abc"))
    refused(direct, "two", chain("abd"))
    first = accept(direct, 3, "d")
    assert accept(direct, 3, "d") == first
    ((who, _, details),) = direct.audit(action="site.table_accepted")
    assert who == "operator:root"
    before = {"number_before": 3, "head_before": "c" * 16}
    assert details == {"table": TABLE, "number": 3, "head": "d" * 16, **before}
    join(direct, "two", chain("abde"))
    # The newer state was found after all: now it is the one that branched.
    assert refused(direct, "three", chain("abcf")).slug == "table-changed"
    assert accepted(direct) == [(TABLE, 4, "e")]
    # All state was lost.
    refused(direct, "three", chain("d"), table=OTHER)
    accept(direct, 1, "d", OTHER)
    (*_, (_, _, details)) = direct.audit(action="site.table_accepted")
    assert (details["number_before"], details["head_before"]) == (None, None)
    join(direct, "three", chain("d"), table=OTHER)


def concerns(direct: DirectApi) -> list[list[str | None]]:
    return [each for kind, *each in direct.attention() if kind == "table-refused"]


def test_the_overview_names_refused_sites_until_it_is_solved(direct: DirectApi) -> None:
    join(direct, "one", chain("abc"))
    direct.join("one", "south", table_id=TABLE, heads=chain("a"))
    assert concerns(direct) == []
    refused(direct, "two", chain("ab"))
    older = "session two: its table ends with change 2, and change 3 was accepted"
    assert concerns(direct) == [["site:north", older]]
    refused(direct, "two", chain("b"), table=OTHER)
    assert concerns(direct) == [["site:north", "session two: it has not used this table before"]]
    refused(direct, "one", chain("a"), table=OTHER)
    assert concerns(direct) == [["site:north", "session one: it joined with another table"]]
    refused(direct, "two", chain("abd"))
    assert concerns(direct) == [["site:north", "session two: its table has another change 3"]]
    # The newer state was found.
    join(direct, "two", chain("abc"))
    assert concerns(direct) == []
    refused(direct, "three", chain("abd"))
    accept(direct, 3, "d")
    assert concerns(direct) == []
    refused(direct, "three", chain("abc"))
    direct.clock.advance(8 * 86_400)
    assert concerns(direct) == []


def test_tables_are_listed_page_by_page(direct: DirectApi) -> None:
    direct.define()
    tables = [f"{number:032x}" for number in range(5)]
    for each in tables:
        accept(direct, 1, "a", each)
    found = paged(site_tables.list_tables, direct.co, OPERATOR, "north", limit=2)
    assert [each.table_id for each in found] == tables


# --- several workers ------------------------------------------------------------------------------


@pytest.mark.parametrize("database_url", BOTH, indirect=True)
@pytest.mark.parametrize("before", ["", "a"], ids=["first", "later"])
def test_of_two_branches_that_join_at_once_one_is_accepted(both: DirectApi, before: str) -> None:
    """In two sessions, by two workers: each transaction locks another session."""

    def come(given: tuple[Any, ...]) -> str:
        try:
            participation.join(*given)
        except Refusal as refusal:
            return refusal.slug
        return "joined"

    for number in range(8):
        who, given = f"site-{number}", []
        for co, letter in ((both.co, "b"), (both.another(), "c")):
            session = both.define(f"s{number}-{letter}", sites=(who, "south", "west")).name
            body = both.consent(session, table_id=TABLE, heads=chain(before + letter))
            given.append((co, site(who), session, body))
        if before:
            accept(both, 1, before, who=who)
        assert sorted(at_once(come, given)) == ["joined", "table-changed"]
        ((_, length, _),) = accepted(both, who)
        assert length == len(before) + 1
