"""Joining with consent, coming back, coming late, leaving, being excluded, refusing a task."""

from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import pytest

from fedclust import rounds
from fedclust.methods.registry import METHODS
from fedclust.schema.display import session_fields
from fedclust.wire.models import Consents, ParticipationInfo, SessionPatch, TaskRefusal
from fedclust_service.domain.access import Refusal
from fedclust_service.store import Tx
from fedclust_service.usecases import participation, sessions
from fedclust_service.usecases import rounds as round_cases
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.definitions import plan_for
from fedclust_service.usecases.driver import load_round
from support.databases import sqlite_first  # noqa: F401  # in place of database_url
from usecases import counting_method
from usecases.direct_api import ANALYST, OPERATOR, DirectApi, refusal, site


def refused(direct: DirectApi, who: str = "north", **changes: Any) -> Refusal:
    return refusal(direct.join, "heart", who, **changes)


def test_joining_records_consent(direct: DirectApi) -> None:
    direct.define()
    body = direct.consent("heart", min_group_size=9)
    info, joined = participation.join(direct.co, site("north"), "heart", body)
    assert joined
    assert (info.state, info.min_group_size, info.size_band) == ("joined", 9, "50-199")
    ((who, _, details),) = direct.audit(action="site.joined")
    assert who == "site:north"
    persons = ("separate_groups", "other_persons", "no_person_in_another_table")
    usual = {"table": None, **dict.fromkeys((*persons, "late", "points_short"), False)}
    assert details == {"definition": body.definition_sha256, **usual}


def test_a_site_comes_back_with_the_same_declaration_alone(direct: DirectApi) -> None:
    direct.define(rounds=1)
    body = direct.consent("heart")
    first, _ = participation.join(direct.co, site("north"), "heart", body)
    newer = direct.consent("heart", sdk_version="2.0", methods={counting_method.NAME: (1, 2)})
    second, joined = participation.join(direct.co, site("north"), "heart", newer)
    assert not joined
    assert second == first
    assert len(direct.audit(action="site.joined")) == 1
    for changes in ({"min_group_size": 9}, {"size_band": "<50"}, {"features": ("chol", "age")}):
        assert refused(direct, **changes).slug == "wrong-state", changes

    # Also after the end; but then nobody leaves, and nothing is cancelled.
    direct.join("heart", "south", "west")
    assert direct.finish("heart").state == "completed"
    direct.join("heart", "north")
    assert refusal(participation.leave, direct.co, site("north"), "heart").slug == "wrong-state"
    assert refusal(sessions.cancel_session, direct.co, ANALYST, "heart").slug == "wrong-state"


def test_no_site_joins_from_the_hour_at_which_the_session_expires(direct: DirectApi) -> None:
    body = direct.request(start="manual")
    direct.register(*body.sites)
    expires = direct.clock.now() + timedelta(hours=1)
    dated = body.model_copy(update={"expires": expires})
    sessions.create_session(direct.co, ANALYST, dated)
    direct.clock.advance(3599)
    direct.join("heart", "north")
    direct.clock.advance(1)
    problem = refused(direct, "south")
    assert problem.slug == "session-expired"
    assert "2026-01-05 09:00 UTC" in problem.detail
    # What a site has joined it stays in; and the request is known to have made the session.
    direct.join("heart", "north")
    assert not sessions.create_session(direct.co, ANALYST, dated)[1]
    late = refusal(
        sessions.create_session, direct.co, ANALYST, dated.model_copy(update={"name": "late"})
    )
    assert (late.slug, late.errors[0].pointer) == ("invalid", "/expires")


@pytest.mark.parametrize(
    "spoken",
    [
        {"methods": {"lloyd": (1,)}},
        {"methods": {counting_method.NAME: (2,)}},
        {"engine": ()},
        {"engine": (rounds.VERSION + 1,)},
    ],
)
def test_an_sdk_without_a_version_is_told_which_one_to_install(
    direct: DirectApi, spoken: dict[str, Any]
) -> None:
    direct.define()
    problem = refused(direct, **spoken)
    assert problem.slug == "version-unsupported"
    assert f'pip install "fedclust=={version("fedclust")}"' in problem.detail


def test_features_and_band_that_a_site_declares_are_those_there_are(direct: DirectApi) -> None:
    direct.define()
    for features, rules in (
        (("age",), ["missing-feature"]),
        (("age", "chol", "sex"), ["unknown-feature"]),
        (("age", "chol", "age"), ["repeated-feature"]),
        ((), ["missing-feature", "missing-feature"]),
    ):
        problem = refused(direct, features=features)
        assert problem.slug == "invalid"
        assert [error.rule for error in problem.errors] == rules
        assert "sex" not in str(problem.errors)
    problem = refused(direct, size_band="about 73")
    assert (problem.slug, problem.errors[0].pointer) == ("invalid", "/size_band")
    assert "73" not in problem.errors[0].message


def test_two_sites_name_each_other(direct: DirectApi) -> None:
    direct.define(sites=("a", "b"), policy={"min_sites": 2})
    for consents in (Consents(), Consents(two_sites_with="a"), Consents(two_sites_with="c")):
        problem = refused(direct, "a", consents=consents)
        assert problem.slug == "consent-needed"
        assert problem.errors[0].pointer == "/consents/two_sites_with"
    direct.join("heart", "a", consents=Consents(two_sites_with="b"))
    direct.join("heart", "b", consents=Consents(two_sites_with="a"))
    assert direct.info("heart").state == "running"


def test_a_session_without_the_guard_needs_consent(direct: DirectApi) -> None:
    direct.define(policy={"protection": "none"})
    problem = refused(direct)
    assert problem.slug == "consent-needed"
    assert problem.errors[0].pointer == "/consents/protection_none"
    direct.join("heart", "north", consents=Consents(protection_none=True))


def test_a_round_has_the_features_of_late_sites_and_of_those_that_left(
    direct: DirectApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = replace(counting_method.method(), takes_masks=True)
    monkeypatch.setitem(METHODS, counting_method.NAME, method)
    policy = {"missing": "mask"}
    direct.define(sites=("a", "b", "c", "d", "e"), start="manual", rounds=3, policy=policy)
    direct.join("heart", *"abc")
    sessions.start_session(direct.co, ANALYST, "heart")
    body = direct.consent("heart", features=("chol",), points_short=True)
    late, created = participation.join(direct.co, site("d"), "heart", body)
    assert (late.state, created) == ("joined", False)  # 200, not 201
    participation.leave(direct.co, site("c"), "heart")
    row = direct.row("heart")

    def load(tx: Tx) -> Any:
        return load_round(tx, plan_for(row), row, tx.rounds.get(row.id, 1), whole=True)

    job, _ = direct.store.read("test.load", load)
    assert (job.roster, job.silent) == (("a", "b", "d"), ("d",))
    both = dict.fromkeys("abc", (True, True))
    assert {name: tuple(mask) for name, mask in job.masks.items()} == both | {"d": (False, True)}


def test_methods_without_late_joining_refuse_it_and_invitations(
    direct: DirectApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, counting_method.NAME, counting_method.method(joins_late=False))
    direct.define(sites=("a", "b", "c", "d"), start="manual")
    direct.join("heart", "a", "b", "c")
    sessions.start_session(direct.co, ANALYST, "heart")
    assert refused(direct, "d").slug == "late-joining-refused"
    direct.register("east")
    invite = SessionPatch(invite=("east",))
    invited = refusal(sessions.patch_session, direct.co, ANALYST, "heart", invite)
    assert invited.slug == "late-joining-refused"


# --- leaving --------------------------------------------------------------------------------------


def test_leaving_releases_an_unanswered_site_and_may_close_the_round(direct: DirectApi) -> None:
    direct.session(sites=("a", "b", "c", "d"))
    direct.answer("heart", "a", "b", "c")
    participation.leave(direct.co, site("d"), "heart")
    participation.leave(direct.co, site("d"), "heart")
    assert direct.view("heart", "d").response.status == "left"
    assert refused(direct, "d").slug == "wrong-state", "it does not come back"
    assert direct.drive() == 1
    closed = round_cases.get_round(direct.co, ANALYST, "heart", 1)
    assert (closed.state, closed.close_reason) == ("closed", "all_answered")
    assert [each.late for each in closed.sites] == [False] * 4
    assert len(direct.audit(action="site.left")) == 1


@pytest.mark.parametrize("refuses", [False, True])
def test_what_a_site_sent_before_leaving_counts(direct: DirectApi, refuses: bool) -> None:
    direct.session(sites=("a", "b", "c", "d"), rounds=2)
    direct.answer("heart", "d")
    if refuses:
        refuse_task(direct, "d")
    else:
        participation.leave(direct.co, site("d"), "heart")
    direct.answer_all("heart")
    direct.drive()
    assert direct.votes("heart")[0].tolist() == [1, 1, 1, 1]
    addressed = [each.name for each in round_cases.get_round(direct.co, ANALYST, "heart", 2).sites]
    assert addressed == ["a", "b", "c"]


def test_excluding_works_like_leaving(direct: DirectApi) -> None:
    direct.session(sites=("a", "b", "c", "d"))
    before = direct.view("heart", "d")
    participation.exclude(direct.co, ANALYST, "heart", "d")
    after = direct.view("heart", "d")
    assert after.version > before.version
    assert after.digest != before.digest
    participation.exclude(direct.co, OPERATOR, "heart", "d")
    assert direct.info("heart").sites[3].state == "excluded"
    direct.answer_all("heart")
    assert direct.drive() == 1
    assert direct.audit(action="site.excluded") == [("analyst:ada", "site.excluded", {"site": "d"})]


# --- refusing a task ------------------------------------------------------------------------------

RULE = TaskRefusal(rule="task-rounds")


def refuse_task(direct: DirectApi, who: str, co: Coordinator | None = None) -> ParticipationInfo:
    number = direct.info("heart").round or 1
    return participation.refuse(co or direct.co, site(who), "heart", number, RULE)


def test_a_round_does_not_wait_for_a_site_that_refused_its_task(both: DirectApi) -> None:
    both.session(sites=("a", "b", "c", "d"), rounds=2)
    before = both.view("heart", "d")
    assert refuse_task(both, "d").state == "refused"
    # The answer was lost: repeated, also at another worker, it changes nothing.
    assert refuse_task(both, "d", both.another()).state == "refused"
    found = [("site:d", "site.refused", {"site": "d", "round": 1, "reason": "task-rounds"})]
    assert both.audit(action="site.refused") == found
    after = both.view("heart", "d")
    assert (after.response.status, after.version > before.version) == ("left", True)
    shown = both.info("heart").sites[3]
    assert (shown.state, shown.refused_task, shown.late) == ("refused", "task-rounds", None)
    assert both.attention() == [("task-refused", "heart", "task-rounds (d)")]

    assert both.finish("heart").state == "completed"
    addressed = [each.name for each in round_cases.get_round(both.co, ANALYST, "heart", 2).sites]
    assert addressed == ["a", "b", "c"]
    assert both.attention() == []


def test_too_few_sites_after_a_refusal_end_the_session_with_the_reason(both: DirectApi) -> None:
    both.session()
    both.answer("heart", "north")
    refuse_task(both, "west")
    ended = both.info("heart")
    assert (ended.state, ended.stopped_because) == ("failed", "task_refused")
    assert ended.failure.endswith("Refused: task-rounds (west).")
    assert round_cases.get_round(both.co, ANALYST, "heart", 1).close_reason == "task_refused"
    assert refuse_task(both, "west").state == "refused"


def test_a_session_whose_next_round_has_too_few_sites_after_a_refusal_ends_at_once(
    direct: DirectApi,
) -> None:
    direct.session(sites=("a", "b", "c", "d"), rounds=3)
    direct.answer("heart", "a")
    participation.leave(direct.co, site("a"), "heart")
    refuse_task(direct, "d")
    direct.answer_all("heart")
    direct.drive()
    assert direct.info("heart").round == 2
    assert direct.info("heart").stopped_because == "task_refused"


def test_who_cannot_refuse_a_task(direct: DirectApi) -> None:
    direct.session(sites=("a", "b", "c", "d"), rounds=1)
    participation.leave(direct.co, site("d"), "heart")
    for who, number, slug in (("d", 1, "wrong-state"), ("a", 2, "not-found")):
        given = (direct.co, site(who), "heart", number, RULE)
        assert refusal(participation.refuse, *given).slug == slug
    assert direct.finish("heart").state == "completed"
    assert refusal(refuse_task, direct, "a").slug == "wrong-state"


def test_everybody_sees_which_site_has_too_few_points(direct: DirectApi) -> None:
    direct.define()
    direct.join("heart", "north", points_short=True)
    direct.join("heart", "south")
    for who in (OPERATOR, ANALYST, site("south")):
        info = sessions.get_session(direct.co, who, "heart")
        shown = {each.name: each.points_short for each in info.sites}
        assert shown["north"]
        assert not any(short for name, short in shown.items() if name != "north")
        sites = dict(session_fields(info))["sites"]
        assert "joined (points short: no outcomes): north" in sites
    # It holds until the session ends, as all that was declared.
    assert refused(direct).slug == "wrong-state"
