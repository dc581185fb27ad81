"""Names and numbers that no row can have: not found on both databases, never an error of theirs."""

from collections.abc import Callable
from typing import Any

from fedclust.wire.models import TokenCreate
from fedclust_service.domain.access import Role
from fedclust_service.usecases import (
    participation,
    principals,
    results,
    rounds,
    sessions,
    submissions,
)
from fedclust_service.usecases.submissions import Body
from usecases.direct_api import ANALYST, OPERATOR, DirectApi, refusal, site

NAMES = ["", "\x00", "heart\x00", "Heart", "é" * 40, "x" * 64, "\ud800", "heart\n", "'; --"]
NUMBERS = [0, 2, 2**31 - 1]


def slug(call: Callable[..., Any], *given: Any) -> str:
    return refusal(call, *given).slug


def test_names_that_nothing_has(both: DirectApi) -> None:
    co = both.co
    both.session()
    for name in NAMES:
        for call in (sessions.get_session, sessions.cancel_session, results.get_result):
            assert slug(call, co, ANALYST, name) == "not-found"
        assert slug(participation.leave, co, site("north"), name) == "not-found"
        assert slug(participation.exclude, co, ANALYST, "heart", name) == "not-found"
        assert slug(principals.get_principal, co, OPERATOR, Role.SITE, name) == "not-found"
        issue = (co, OPERATOR, Role.SITE, name, TokenCreate())
        assert slug(principals.issue_token, *issue) == "not-found"
        revoke = (co, OPERATOR, Role.SITE, "north", name)
        assert slug(principals.revoke_token, *revoke) == "not-found"
        listed = (co, ANALYST, Role.SITE, 5, name)
        assert slug(principals.list_principals, *listed) == "invalid"
    # There is a site of this name, and no analyst.
    issue = (co, OPERATOR, Role.ANALYST, "north", TokenCreate())
    assert slug(principals.issue_token, *issue) == "not-found"


def test_rounds_of_any_number(both: DirectApi) -> None:
    both.session()
    for number in NUMBERS:
        for call in (rounds.get_round, rounds.close_round):
            assert slug(call, both.co, ANALYST, "heart", number) == "not-found"
        sent = (both.co, site("north"), "heart", number, Body(b"x", "application/json"))
        assert slug(submissions.submit, *sent) == "round-closed"
    assert rounds.list_rounds(both.co, ANALYST, "heart", 5, "9999999999").items == ()
    assert slug(rounds.list_rounds, both.co, ANALYST, "heart", 5, "9" * 11) == "invalid"
