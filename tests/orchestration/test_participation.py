"""Joining with consent, coming back, coming late, leaving, being excluded."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fedclust.methods.registry import METHODS
from fedclust.wire.models import Consents
from fedclust_service.domain.refusal import Refusal
from fedclust_service.orchestration import participation, rounds, sessions
from fedclust_service.orchestration.provenance import server_version
from support import tally
from support.clock import ManualClock
from support.office import ANALYST, OPERATOR, Office, site, unlike


def refused(office: Office, who: str = "north", **changes: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        office.join("heart", who, **changes)
    return caught.value


def test_joining_records_consent(office: Office) -> None:
    office.define()
    body = office.consent("heart", min_group_size=9)
    info, joined = participation.join(office.co, site("north"), "heart", body)
    assert joined
    assert (info.state, info.min_group_size, info.size_band) == ("joined", 9, "50-199")
    ((who, _, details),) = office.audit(action="site.joined")
    assert who == "site:north"
    assert details == {
        "definition": body.definition_sha256,
        "late": False,
        "table": None,
        "separate_groups": False,
    }


def test_coming_back_with_the_same_declaration_changes_nothing(office: Office) -> None:
    office.define()
    body = office.consent("heart")
    first, _ = participation.join(office.co, site("north"), "heart", body)
    newer = unlike(body, sdk_version="2.0", methods={tally.NAME: (1, 2)})
    second, joined = participation.join(office.co, site("north"), "heart", newer)
    assert not joined
    assert second == first
    assert len(office.audit(action="site.joined")) == 1


@pytest.mark.parametrize(
    "changes", [{"min_group_size": 9}, {"size_band": "<50"}, {"features": ("chol", "age")}]
)
def test_coming_back_with_another_declaration_is_refused(
    office: Office, changes: dict[str, Any]
) -> None:
    office.define()
    office.join("heart", "north")
    assert refused(office, **changes).slug == "wrong-state"


FIRST, SECOND = "0" * 32, "11111111-1111-1111-1111-111111111111"


def test_a_site_joins_with_a_table_that_it_has_used_before(office: Office) -> None:
    for name in ("heart", "liver", "lung", "skin", "bone"):
        office.define(name)
    office.join("heart", "north", table_id=FIRST)
    with pytest.raises(Refusal) as caught:
        office.join("liver", "north", table_id=SECOND)
    assert caught.value.slug == "table-changed"
    assert "--separate-groups" in caught.value.detail
    # Tables are a site's own; a session without a table asks for none.
    office.join("liver", "south", table_id=SECOND)
    office.join("liver", "north", table_id=FIRST)
    office.join("lung", "north")
    office.join("skin", "north", table_id=SECOND, separate_groups=True)
    office.join("bone", "north", table_id=SECOND)
    entries = office.audit(action="site.joined")
    assert [
        (details["table"], details["separate_groups"])
        for who, _, details in entries
        if who == "site:north"
    ] == [(FIRST, False), (FIRST, False), (None, False), (SECOND, True), (SECOND, False)]


@pytest.mark.parametrize("other", [None, SECOND])
def test_a_table_stays_the_same_until_the_session_ends(office: Office, other: str | None) -> None:
    office.define()
    office.join("heart", "north", table_id=FIRST)
    problem = refused(office, table_id=other, separate_groups=True)
    assert problem.slug == "table-changed"
    assert "backup" in problem.detail
    office.join("heart", "north", table_id=FIRST, separate_groups=True)


def test_no_site_joins_from_the_hour_at_which_the_session_expires(
    office: Office, clock: ManualClock
) -> None:
    body = office.request(start="manual")
    office.register(*body.sites)
    expires = clock.now() + timedelta(hours=1)
    dated = body.model_copy(update={"expires": expires})
    sessions.create_session(office.co, ANALYST, dated)
    clock.advance(3599)
    office.join("heart", "north")
    clock.advance(1)
    problem = refused(office, "south")
    assert problem.slug == "session-expired"
    assert "2026-01-05 09:00 UTC" in problem.detail
    # What a site has joined it stays in; and the request is known to have made the session.
    office.join("heart", "north")
    assert not sessions.create_session(office.co, ANALYST, dated)[1]


def test_coming_back_after_the_end_is_still_the_same(office: Office) -> None:
    office.session(rounds=1)
    office.finish("heart")
    office.join("heart", "north")


def test_consent_to_another_definition_is_refused(office: Office) -> None:
    office.define()
    assert refused(office, definition_sha256="0" * 64).slug == "consent-mismatch"


@pytest.mark.parametrize("methods", [{}, {tally.NAME: ()}, {tally.NAME: (2,)}, {"lloyd": (1,)}])
def test_an_sdk_without_the_version_is_told_how_to_upgrade(
    office: Office, methods: dict[str, tuple[int, ...]]
) -> None:
    office.define()
    problem = refused(office, methods=methods)
    assert problem.slug == "version-unsupported"
    newer = methods == {tally.NAME: (2,)}
    version = server_version()
    command = f"fedclust=={version}" if newer else f'pip install --upgrade "fedclust>={version}"'
    assert command in problem.detail
    assert ("--upgrade" in problem.detail) is not newer


@pytest.mark.parametrize(
    ("features", "rules"),
    [
        (("age",), ["missing-feature"]),
        (("age", "chol", "sex"), ["unknown-feature"]),
        (("age", "chol", "age"), ["repeated-feature"]),
        ((), ["missing-feature", "missing-feature"]),
    ],
)
def test_features_must_be_those_of_the_session(
    office: Office, features: tuple[str, ...], rules: list[str]
) -> None:
    office.define()
    problem = refused(office, features=features)
    assert problem.slug == "invalid"
    assert [error.rule for error in problem.errors] == rules
    assert "sex" not in str(problem.errors)


def test_the_size_band_is_one_of_the_bands(office: Office) -> None:
    office.define()
    problem = refused(office, size_band="about 73")
    assert (problem.slug, problem.errors[0].pointer) == ("invalid", "/size_band")
    assert "73" not in problem.errors[0].message


def test_two_sites_name_each_other(office: Office) -> None:
    office.define(sites=("a", "b"), policy={"min_sites": 2})
    for consents in (
        Consents(),
        Consents(two_sites_with="a"),
        Consents(two_sites_with="c"),
    ):
        problem = refused(office, "a", consents=consents)
        assert problem.slug == "consent-needed"
        assert problem.errors[0].pointer == "/consents/two_sites_with"
    office.join("heart", "a", consents=Consents(two_sites_with="b"))
    office.join("heart", "b", consents=Consents(two_sites_with="a"))
    assert office.info("heart").state == "running"


def test_a_session_without_the_guard_needs_consent(office: Office) -> None:
    office.define(policy={"protection": "none"})
    problem = refused(office)
    assert problem.slug == "consent-needed"
    assert problem.errors[0].pointer == "/consents/protection_none"
    office.join("heart", "north", consents=Consents(protection_none=True))


def test_the_refused_leave_no_trace(office: Office) -> None:
    office.define()
    refused(office, definition_sha256="0" * 64)
    assert office.audit(action="site.joined") == []
    assert office.info("heart").sites[0].state == "invited"


def test_a_late_site_is_asked_from_the_next_round(office: Office) -> None:
    office.define(sites=("a", "b", "c", "d"), start="manual", rounds=3)
    for name in ("a", "b", "c"):
        office.join("heart", name)
    sessions.start_session(office.co, ANALYST, "heart")
    late = participation.join(office.co, site("d"), "heart", office.consent("heart"))
    assert (late[0].state, late[1]) == ("joined", False)  # 200, not 201
    assert office.view("heart", "d").response.status == "waiting"
    office.answer_all("heart")
    office.drive()
    assert office.view("heart", "d").response.status == "work"
    assert office.finish("heart").state == "completed"


def test_methods_without_late_joining_refuse(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, tally.NAME, tally.method(joins_late=False))
    office.define(sites=("a", "b", "c", "d"), start="manual")
    for name in ("a", "b", "c"):
        office.join("heart", name)
    sessions.start_session(office.co, ANALYST, "heart")
    assert refused(office, "d").slug == "late-joining-refused"


# --- leaving --------------------------------------------------------------------------------------


def test_leaving_releases_an_unanswered_site_and_may_close_the_round(office: Office) -> None:
    office.session(sites=("a", "b", "c", "d"))
    for name in ("a", "b", "c"):
        office.answer("heart", name)
    participation.leave(office.co, site("d"), "heart")
    participation.leave(office.co, site("d"), "heart")
    assert office.view("heart", "d").response.status == "left"
    assert office.drive() == 1
    closed = rounds.get_round(office.co, ANALYST, "heart", 1)
    assert (closed.state, closed.close_reason) == ("closed", "all_answered")
    assert [each.late for each in closed.sites] == [False] * 4
    assert len(office.audit(action="site.left")) == 1


def test_what_a_site_sent_before_leaving_counts(office: Office) -> None:
    office.session(sites=("a", "b", "c", "d"), rounds=2)
    office.answer("heart", "d")
    participation.leave(office.co, site("d"), "heart")
    office.answer_all("heart")
    office.drive()
    assert office.tally("heart")[0].tolist() == [1, 1, 1, 1]
    addressed = [each.name for each in rounds.get_round(office.co, ANALYST, "heart", 2).sites]
    assert addressed == ["a", "b", "c"]


def test_a_site_that_left_does_not_come_back(office: Office) -> None:
    office.session(sites=("a", "b", "c", "d"))
    participation.leave(office.co, site("d"), "heart")
    assert refused(office, "d").slug == "wrong-state"


def test_excluding_works_like_leaving(office: Office) -> None:
    office.session(sites=("a", "b", "c", "d"))
    participation.exclude(office.co, ANALYST, "heart", "d")
    participation.exclude(office.co, OPERATOR, "heart", "d")
    assert office.info("heart").sites[3].state == "excluded"
    office.answer_all("heart")
    assert office.drive() == 1
    assert office.audit(action="site.excluded") == [("analyst:ada", "site.excluded", {"site": "d"})]


def test_excluding_who_is_not_there_is_not_found(office: Office) -> None:
    office.session()
    with pytest.raises(Refusal) as caught:
        participation.exclude(office.co, ANALYST, "heart", "nowhere")
    assert caught.value.slug == "not-found"


def test_nobody_leaves_an_ended_session(office: Office) -> None:
    office.session(rounds=1)
    office.finish("heart")
    with pytest.raises(Refusal) as caught:
        participation.leave(office.co, site("north"), "heart")
    assert caught.value.slug == "wrong-state"


def test_a_departure_wakes_the_departed(office: Office) -> None:
    office.session()
    before = office.view("heart", "north")
    participation.exclude(office.co, ANALYST, "heart", "north")
    after = office.view("heart", "north")
    assert after.version > before.version
    assert after.etag != before.etag


def test_too_few_sites_left_is_overdue_at_once(office: Office) -> None:
    office.session()
    office.answer("heart", "north")
    office.answer("heart", "south")
    participation.leave(office.co, site("west"), "heart")
    info = rounds.get_round(office.co, ANALYST, "heart", 1)
    assert (info.state, info.overdue) == ("collecting", True)
    assert office.info("heart").state == "running"
