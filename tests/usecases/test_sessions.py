"""Defining, inviting, starting, cancelling."""

import dataclasses
from datetime import datetime, timedelta

import pytest

from fedclust.schema.run_config import Policy
from fedclust.wire.models import OperatorInfo, SessionCreate, SessionPatch
from fedclust_service.domain.access import Role
from fedclust_service.usecases import participation, sessions
from usecases.direct_api import ANALYST, LIMITS, OPERATOR, DirectApi, actor, refusal, site


def invite(direct: DirectApi, *names: str) -> None:
    direct.register(*names)
    sessions.patch_session(direct.co, ANALYST, "heart", SessionPatch(invite=names))


# --- creating -------------------------------------------------------------------------------------


def test_creating_again_returns_the_same_session_and_seed(direct: DirectApi) -> None:
    request = direct.request().model_copy(update={"seed": None})
    direct.register(*request.sites)
    first, created = sessions.create_session(direct.co, ANALYST, request)
    second, again = sessions.create_session(direct.co, ANALYST, request)
    assert created
    assert not again
    assert second == first
    assert 0 <= first.definition.seed < 2**53


def test_a_name_is_taken_by_another_body_or_creator(direct: DirectApi) -> None:
    direct.define()
    other = direct.request(rounds=9)
    assert refusal(sessions.create_session, direct.co, ANALYST, other).slug == "name-taken"
    same = direct.request()
    eve = actor(Role.ANALYST, "eve")
    assert refusal(sessions.create_session, direct.co, eve, same).slug == "name-taken"
    namesake = actor(Role.OPERATOR, "ada")
    assert refusal(sessions.create_session, direct.co, namesake, same).slug == "name-taken"
    sessions.cancel_session(direct.co, ANALYST, "heart")
    assert refusal(sessions.create_session, direct.co, ANALYST, other).slug == "name-taken"


# --- seeing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cursor", ["x", "-1", "1 ", "9" * 11, "²"])
def test_a_foreign_cursor_is_invalid(direct: DirectApi, cursor: str) -> None:
    refused = refusal(sessions.list_sessions, direct.co, ANALYST, 5, cursor)
    assert refused.slug == "invalid"
    assert cursor not in refused.detail


# --- starting -------------------------------------------------------------------------------------


def test_it_does_not_wait_for_sites_that_declined(direct: DirectApi) -> None:
    direct.define(sites=("a", "b", "c", "d"), policy={"min_sites": 3})
    direct.join("heart", "a", "b", "c")
    participation.leave(direct.co, site("d"), "heart")
    info = direct.info("heart")
    assert info.state == "running"
    assert [(each.name, each.answered) for each in info.sites if each.name == "d"] == [("d", None)]


def test_too_few_left_do_not_start(direct: DirectApi) -> None:
    direct.define()
    direct.join("heart", "north", "south")
    participation.leave(direct.co, site("west"), "heart")
    assert direct.info("heart").state == "recruiting"
    assert refusal(sessions.start_session, direct.co, ANALYST, "heart").slug == "quorum-missing"
    invite(direct, "east")
    direct.join("heart", "east")
    assert direct.info("heart").state == "running"


@pytest.mark.parametrize("mode", ["manual", "when_all_joined"])
def test_start_needs_the_quorum_in_both_modes(direct: DirectApi, mode: str) -> None:
    direct.define(sites=("a", "b", "c", "d"), start=mode, policy={"quorum": 3})
    direct.join("heart", "a", "b")
    refused = refusal(sessions.start_session, direct.co, ANALYST, "heart")
    assert refused.slug == "quorum-missing"
    assert "2 of the 3" in refused.detail
    direct.join("heart", "c")
    assert direct.info("heart").state == "recruiting"
    assert sessions.start_session(direct.co, ANALYST, "heart").state == "running"
    assert sessions.start_session(direct.co, ANALYST, "heart").state == "running"
    assert len(direct.audit(action="session.started")) == 1
    # The fourth comes late and is asked from the next round on.
    direct.join("heart", "d")
    assert direct.view("heart", "d").response.status == "waiting"


def test_manual_sessions_wait_for_the_word(direct: DirectApi) -> None:
    direct.session(start="manual")
    assert direct.info("heart").state == "recruiting"
    assert sessions.start_session(direct.co, OPERATOR, "heart").state == "running"


def test_a_method_that_cannot_start_fails_the_session_not_the_site(direct: DirectApi) -> None:
    direct.session(refuse_to_start=True)
    info = direct.info("heart")
    assert (info.state, info.stopped_because) == ("failed", "cannot_start")
    assert info.failure == "Choose other options."
    assert info.sites[2].state == "joined"
    assert refusal(invite, direct, "east").slug == "wrong-state"


# --- cancelling -----------------------------------------------------------------------------------


def test_cancelling_fails_the_open_round_and_is_idempotent(direct: DirectApi) -> None:
    direct.session()
    info = sessions.cancel_session(direct.co, ANALYST, "heart")
    assert (info.state, info.stopped_because) == ("cancelled", "cancelled")
    assert sessions.cancel_session(direct.co, ANALYST, "heart") == info
    assert direct.view("heart", "north").response.status == "ended"


def test_recruiting_moves_no_deadline_and_once_cancelled_does_not_start(direct: DirectApi) -> None:
    direct.define()
    assert refusal(move, direct, direct.clock.now()).slug == "wrong-state", "nothing collects"
    sessions.cancel_session(direct.co, ANALYST, "heart")
    assert refusal(sessions.start_session, direct.co, ANALYST, "heart").slug == "wrong-state"
    assert refusal(direct.join, "heart", "north").slug == "wrong-state"


# --- inviting -------------------------------------------------------------------------------------


def test_an_invited_site_joins_a_running_session(direct: DirectApi) -> None:
    direct.session(rounds=2, width=4)
    invite(direct, "east")
    invite(direct, "east")
    assert direct.view("heart", "east").response.status == "invited"
    direct.join("heart", "east")
    assert direct.info("heart").definition.sites == ("north", "south", "west")
    assert len(direct.audit(action="site.invited")) == 1
    body = SessionPatch(invite=("north", "nowhere"))
    refused = refusal(sessions.patch_session, direct.co, ANALYST, "heart", body)
    assert [error.pointer for error in refused.errors] == ["/invite/1"]


def test_two_sites_stay_two_until_completion(direct: DirectApi) -> None:
    direct.define(sites=("a", "b"), policy={"min_sites": 2}, rounds=1)
    assert refusal(invite, direct, "c").slug == "wrong-state"


def test_no_more_models_sites_and_clusters_than_the_coordinator_can_compute(
    direct: DirectApi,
) -> None:
    """Also where sites are invited later."""
    direct.co.limits = dataclasses.replace(LIMITS, aggregation_timeout_s=3)
    names = tuple(f"s{i}" for i in range(9))
    direct.register(*names)

    def request(stability: int) -> SessionCreate:
        config = {"n_clusters": 4, "stability": stability}
        changes = {"algorithm": "lloyd", "config": config, "policy": Policy(min_sites=3)}
        return direct.request(sites=names[:8]).model_copy(update=changes)

    for call in (sessions.check_session, sessions.create_session):
        refused = refusal(call, direct.co, ANALYST, request(300))
        (error,) = refused.errors
        assert refused.slug == "invalid"
        assert (error.pointer, error.rule) == ("/config/stability", "workload")
    assert "300 models, which takes about 6 s; it allows 3 s" in error.message
    sessions.create_session(direct.co, ANALYST, request(106))
    (error,) = refusal(invite, direct, names[8]).errors
    assert (error.pointer, error.rule) == ("/invite", "workload")
    assert "with 9 sites" in error.message


# --- deadlines ------------------------------------------------------------------------------------


def move(direct: DirectApi, deadline: datetime) -> None:
    sessions.patch_session(direct.co, ANALYST, "heart", SessionPatch(deadline=deadline))


def test_a_moved_deadline_is_told_to_those_who_are_asked(direct: DirectApi) -> None:
    direct.session(sites=("a", "b", "c", "d"), policy={"quorum": 3})
    before = direct.view("heart", "a")
    later = direct.clock.now() + timedelta(days=2)
    move(direct, later)
    after = direct.view("heart", "a")
    assert after.response.deadline == later
    assert after.digest != before.digest
    assert after.version > before.version
    # One in the past closes with the quorum.
    direct.answer("heart", "a", "b", "c")
    move(direct, direct.clock.now())
    assert direct.drive() == 1
    assert direct.info("heart").round == 2


def test_a_site_reads_who_asks_and_who_runs_the_coordinator(both: DirectApi) -> None:
    both.co.operated_by = "Registry, it@registry.example"
    both.define()
    asked = sessions.get_session(both.co, site("north"), "heart")
    assert asked.operator == OperatorInfo(
        name="Registry, it@registry.example", retention_days=both.co.limits.retention_days
    )
    assert asked.asker == "ada"
    both.store.run_tx(
        "test.analyst",
        lambda tx: tx.principals.add(Role.ANALYST, "ada", "Dr Ada, Example University"),
    )
    asked = sessions.get_session(both.co, site("north"), "heart")
    assert asked.asker == "Dr Ada, Example University (analyst ada)"
