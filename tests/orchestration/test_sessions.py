"""Defining, inviting, starting, cancelling."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from fedclust.methods.registry import METHODS
from fedclust.wire.codec import canonical_json, decode, sha256
from fedclust.wire.models import SessionPatch
from fedclust_service.domain.access import Role
from fedclust_service.domain.refusal import Refusal
from fedclust_service.orchestration import participation, rounds, session_start, sessions
from support import tally
from support.clock import ManualClock
from support.office import ANALYST, OPERATOR, Office, actor, site


def refusal(call: Any, *args: Any, **given: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        call(*args, **given)
    return caught.value


def invite(office: Office, *names: str) -> None:
    office.register(*names)
    sessions.patch_session(office.co, ANALYST, "heart", SessionPatch(invite=names))


# --- creating -------------------------------------------------------------------------------------


def test_a_definition_is_frozen_under_its_hash(office: Office) -> None:
    info = office.define(rounds=2)
    assert info.state == "recruiting"
    assert info.created_by == "ada"
    frozen = office.row("heart").definition
    assert info.definition_sha256 == sha256(frozen)
    assert canonical_json(info.definition.model_dump(mode="json")) == frozen
    assert info.definition.method_version == 1
    assert [each.state for each in info.sites] == ["invited"] * 3


def test_creating_again_returns_the_same_session_and_seed(office: Office) -> None:
    request = office.request().model_copy(update={"seed": None})
    office.register(*request.sites)
    first, created = sessions.create_session(office.co, ANALYST, request)
    second, again = sessions.create_session(office.co, ANALYST, request)
    assert created
    assert not again
    assert second == first
    assert 0 <= first.definition.seed < 2**53


def test_a_name_is_taken_by_another_body_or_creator(office: Office) -> None:
    office.define()
    other = office.request(rounds=9)
    assert refusal(sessions.create_session, office.co, ANALYST, other).slug == "name-taken"
    same = office.request()
    eve = actor(Role.ANALYST, "eve")
    assert refusal(sessions.create_session, office.co, eve, same).slug == "name-taken"
    namesake = actor(Role.OPERATOR, "ada")
    assert refusal(sessions.create_session, office.co, namesake, same).slug == "name-taken"


def test_the_name_of_an_ended_session_is_not_used_again(office: Office) -> None:
    office.define()
    sessions.cancel_session(office.co, ANALYST, "heart")
    other = office.request(rounds=9)
    assert refusal(sessions.create_session, office.co, ANALYST, other).slug == "name-taken"


def test_unregistered_sites_are_named_by_pointer(office: Office) -> None:
    office.register("south")
    refused = refusal(sessions.create_session, office.co, ANALYST, office.request())
    assert refused.slug == "invalid"
    assert [error.pointer for error in refused.errors] == ["/sites/0", "/sites/2"]
    assert refusal(sessions.get_session, office.co, ANALYST, "heart").slug == "not-found"


def test_a_contradictory_definition_is_invalid(office: Office) -> None:
    request = office.request(policy={"quorum": 9})
    office.register(*request.sites)
    refused = refusal(sessions.create_session, office.co, ANALYST, request)
    assert refused.slug == "invalid"
    assert refused.errors[0].pointer == "/policy/quorum"


# --- seeing ---------------------------------------------------------------------------------------


def test_a_session_that_has_expired_is_not_created(office: Office, clock: ManualClock) -> None:
    body = office.request().model_copy(update={"expires": clock.now()})
    office.register(*body.sites)
    problem = refusal(sessions.create_session, office.co, ANALYST, body)
    assert (problem.slug, problem.errors[0].pointer) == ("invalid", "/expires")


def test_sessions_are_seen_by_those_they_concern(office: Office) -> None:
    office.define()
    office.register("other")
    absent = refusal(sessions.get_session, office.co, OPERATOR, "nothing")
    for stranger in (actor(Role.ANALYST, "eve"), site("other")):
        hidden = refusal(sessions.get_session, office.co, stranger, "heart")
        assert hidden.to_problem() == absent.to_problem()
        assert sessions.list_sessions(office.co, stranger).items == ()
    for friend in (OPERATOR, ANALYST, site("north")):
        assert sessions.get_session(office.co, friend, "heart").name == "heart"
        assert len(sessions.list_sessions(office.co, friend).items) == 1


def test_lists_page_and_filter_by_state(office: Office) -> None:
    from fedclust_service.domain.session import SessionState

    for name in ("a", "b", "c"):
        office.define(name)
    sessions.cancel_session(office.co, ANALYST, "b")
    first = sessions.list_sessions(office.co, ANALYST, 2)
    second = sessions.list_sessions(office.co, ANALYST, 2, first.next)
    assert [each.name for each in (*first.items, *second.items)] == ["c", "b", "a"]
    assert second.next is None
    cancelled = sessions.list_sessions(office.co, ANALYST, state=SessionState.CANCELLED)
    assert [each.name for each in cancelled.items] == ["b"]


@pytest.mark.parametrize("cursor", ["x", "-1", "1 ", "9" * 11, "²"])
def test_a_foreign_cursor_is_invalid(office: Office, cursor: str) -> None:
    refused = refusal(sessions.list_sessions, office.co, ANALYST, 5, cursor)
    assert refused.slug == "invalid"
    assert cursor not in refused.detail


# --- starting -------------------------------------------------------------------------------------


def test_it_starts_with_the_last_site(office: Office) -> None:
    office.define()
    for name in ("north", "south"):
        office.join("heart", name)
        assert office.info("heart").state == "recruiting"
    office.join("heart", "west")
    info = office.info("heart")
    assert (info.state, info.round) == ("running", 1)
    assert office.audit(action="session.started") == [
        ("site:west", "session.started", {"sites": 3})
    ]


def test_it_does_not_wait_for_sites_that_declined(office: Office) -> None:
    office.define(sites=("a", "b", "c", "d"), policy={"min_sites": 3})
    for name in ("a", "b", "c"):
        office.join("heart", name)
    participation.leave(office.co, site("d"), "heart")
    info = office.info("heart")
    assert info.state == "running"
    assert [(each.name, each.answered) for each in info.sites if each.name == "d"] == [("d", None)]


def test_too_few_left_do_not_start(office: Office) -> None:
    office.define()
    office.join("heart", "north")
    office.join("heart", "south")
    participation.leave(office.co, site("west"), "heart")
    assert office.info("heart").state == "recruiting"
    assert refusal(sessions.start_session, office.co, ANALYST, "heart").slug == "quorum-missing"
    invite(office, "east")
    office.join("heart", "east")
    assert office.info("heart").state == "running"


@pytest.mark.parametrize("mode", ["manual", "when_all_joined"])
def test_start_needs_the_quorum_in_both_modes(office: Office, mode: str) -> None:
    office.define(sites=("a", "b", "c", "d"), start=mode, policy={"quorum": 3})
    office.join("heart", "a")
    office.join("heart", "b")
    refused = refusal(sessions.start_session, office.co, ANALYST, "heart")
    assert refused.slug == "quorum-missing"
    assert "2 of the 3" in refused.detail
    office.join("heart", "c")
    assert office.info("heart").state == "recruiting"
    assert sessions.start_session(office.co, ANALYST, "heart").state == "running"
    assert sessions.start_session(office.co, ANALYST, "heart").state == "running"
    assert len(office.audit(action="session.started")) == 1
    # The fourth comes late and is asked from the next round on.
    office.join("heart", "d")
    assert office.view("heart", "d").response.status == "waiting"


def test_manual_sessions_wait_for_the_word(office: Office) -> None:
    office.session(start="manual")
    assert office.info("heart").state == "recruiting"
    assert sessions.start_session(office.co, OPERATOR, "heart").state == "running"


def test_who_joins_or_leaves_while_the_first_round_is_made(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.define(sites=("a", "b", "c", "d", "e"), start="manual")
    for name in ("a", "b", "c", "d"):
        office.join("heart", name)
    real = session_start._make_start
    meanwhile = iter(
        [
            lambda: office.join("heart", "e"),
            lambda: participation.leave(office.co, site("a"), "heart"),
        ]
    )

    def make(*given: Any) -> session_start.Start:
        made = real(*given)
        for change in meanwhile:
            change()
            break
        return made

    monkeypatch.setattr(session_start, "_make_start", make)
    sessions.start_session(office.co, ANALYST, "heart")
    asked = rounds.get_round(office.co, ANALYST, "heart", 1)
    assert [each.name for each in asked.sites] == ["b", "c", "d", "e"]
    seen = office.store.read("t", lambda tx: tx.site_views.by_name("heart", "e", 1))
    assert decode(seen.round.addressee.site_part) == {"rank": 3}


def test_a_method_that_cannot_start_fails_the_session_not_the_site(office: Office) -> None:
    office.session(refuse_to_start=True)
    info = office.info("heart")
    assert (info.state, info.stopped_because) == ("failed", "cannot_start")
    assert info.failure == "Choose other options."
    assert info.sites[2].state == "joined"


def test_strangers_start_nothing(office: Office) -> None:
    office.session(start="manual")
    eve = actor(Role.ANALYST, "eve")
    assert refusal(sessions.start_session, office.co, eve, "heart").slug == "not-found"
    assert refusal(sessions.start_session, office.co, site("north"), "heart").slug == "forbidden"


# --- cancelling -----------------------------------------------------------------------------------


def test_cancelling_fails_the_open_round_and_is_idempotent(office: Office) -> None:
    office.session()
    info = sessions.cancel_session(office.co, ANALYST, "heart")
    assert (info.state, info.stopped_because) == ("cancelled", "cancelled")
    assert sessions.cancel_session(office.co, ANALYST, "heart") == info
    assert office.view("heart", "north").response.status == "ended"


def test_a_cancelled_recruiting_session_does_not_start(office: Office) -> None:
    office.define()
    sessions.cancel_session(office.co, ANALYST, "heart")
    assert refusal(sessions.start_session, office.co, ANALYST, "heart").slug == "wrong-state"
    assert refusal(office.join, "heart", "north").slug == "wrong-state"


def test_a_completed_session_is_not_cancelled(office: Office) -> None:
    office.session(rounds=1)
    assert office.finish("heart").state == "completed"
    assert refusal(sessions.cancel_session, office.co, ANALYST, "heart").slug == "wrong-state"


# --- inviting -------------------------------------------------------------------------------------


def test_an_invited_site_joins_a_running_session(office: Office) -> None:
    office.session(rounds=2, width=4)
    invite(office, "east")
    invite(office, "east")
    assert office.view("heart", "east").response.status == "invited"
    office.join("heart", "east")
    assert office.info("heart").definition.sites == ("north", "south", "west")
    assert len(office.audit(action="site.invited")) == 1


def test_unregistered_invitations_are_named_by_pointer(office: Office) -> None:
    office.define()
    body = SessionPatch(invite=("north", "nowhere"))
    refused = refusal(sessions.patch_session, office.co, ANALYST, "heart", body)
    assert [error.pointer for error in refused.errors] == ["/invite/1"]


def test_no_invitation_where_the_method_takes_no_late_site(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, tally.NAME, tally.method(joins_late=False))
    office.session()
    assert refusal(invite, office, "east").slug == "late-joining-refused"


def test_two_sites_stay_two_until_completion(office: Office) -> None:
    office.define(sites=("a", "b"), policy={"min_sites": 2}, rounds=1)
    assert refusal(invite, office, "c").slug == "wrong-state"


def test_after_completion_sites_are_invited_as_readers(office: Office) -> None:
    office.session(rounds=1)
    office.finish("heart")
    invite(office, "east")
    assert office.view("heart", "east").response.status == "ended"
    assert refusal(office.join, "heart", "east").slug == "wrong-state"


def test_a_failed_session_invites_nobody(office: Office) -> None:
    office.session(refuse_to_start=True)
    assert refusal(invite, office, "east").slug == "wrong-state"


# --- deadlines ------------------------------------------------------------------------------------


def move(office: Office, deadline: datetime) -> None:
    sessions.patch_session(office.co, ANALYST, "heart", SessionPatch(deadline=deadline))


def test_a_moved_deadline_is_told_to_those_who_are_asked(
    office: Office, clock: ManualClock
) -> None:
    office.session(policy={"quorum": 3})
    before = office.view("heart", "north")
    later = clock.now() + timedelta(days=2)
    move(office, later)
    after = office.view("heart", "north")
    assert after.response.deadline == later
    assert after.etag != before.etag
    assert after.version > before.version


def test_a_deadline_in_the_past_closes_with_the_quorum(office: Office, clock: ManualClock) -> None:
    office.session(sites=("a", "b", "c", "d"), policy={"quorum": 3})
    for name in ("a", "b", "c"):
        office.answer("heart", name)
    move(office, clock.now())
    assert office.drive() == 1
    assert office.info("heart").round == 2


def test_a_deadline_without_offset_is_invalid(office: Office) -> None:
    office.session()
    body = SessionPatch.model_construct(deadline=datetime(2026, 5, 1), invite=())  # noqa: DTZ001
    refused = refusal(sessions.patch_session, office.co, ANALYST, "heart", body)
    assert refused.errors[0].pointer == "/deadline"


def test_no_deadline_moves_while_nothing_collects(office: Office, clock: ManualClock) -> None:
    office.define()
    assert refusal(move, office, clock.now()).slug == "wrong-state"
