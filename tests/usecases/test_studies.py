"""Studies and their sessions; sessions that are deleted and made again."""

import json
from typing import Any

import pytest

from fedclust.definition.study import SessionRequest, StudyCreate
from fedclust_service.domain.access import Role
from fedclust_service.store import DataDamaged
from fedclust_service.usecases import participation, sessions
from support.damage import change_stored
from support.purpose import PURPOSE
from usecases import counting_method
from usecases.direct_api import ANALYST, OPERATOR, SITES, DirectApi, actor, paged, refusal, site

EVE = actor(Role.ANALYST, "eve")


def body(name: str = "hearts", **changes: Any) -> StudyCreate:
    method = {"algorithm": counting_method.NAME, "config": {"width": len(SITES)}}
    fields = {
        "name": name,
        "title": "Hearts",
        "purpose": PURPOSE,
        "sites": SITES,
        "features": [{"name": "age"}, {"name": "chol"}],
        "defaults": {**method, "policy": {"scaling": "none", "missing": "drop"}},
        **changes,
    }
    return StudyCreate.model_validate_json(json.dumps(fields))


@pytest.fixture
def study(both: DirectApi) -> DirectApi:
    """Return a coordinator with the study ``hearts`` of ada."""
    both.register(*SITES)
    sessions.create_study(both.co, ANALYST, body())
    return both


def add(direct: DirectApi, name: str, who: Any = ANALYST, **fields: Any) -> Any:
    wanted = json.dumps({"name": name, "study": "hearts", "seed": 7, **fields})
    request = SessionRequest.model_validate_json(wanted).root
    return sessions.create_session(direct.co, who, request)[0]


# --- studies --------------------------------------------------------------------------------------


def test_a_study_is_frozen(study: DirectApi) -> None:
    info, created = sessions.create_study(study.co, ANALYST, body())
    assert (info.title, created) == ("Hearts", False)
    for who, other in ((ANALYST, body(title="Lungs")), (EVE, body())):
        assert refusal(sessions.create_study, study.co, who, other).slug == "name-taken"
    assert [action for _, action, _ in study.audit(action="study.created")] == ["study.created"]


def test_sites_of_a_study_are_registered_and_its_features_right(study: DirectApi) -> None:
    refused = refusal(sessions.create_study, study.co, ANALYST, body("x", sites=["north", "mars"]))
    assert [error.pointer for error in refused.errors] == ["/sites/1"]
    twice = body("x", features=[{"name": "age"}, {"name": "age"}])
    refused = refusal(sessions.create_study, study.co, ANALYST, twice)
    assert [error.pointer for error in refused.errors] == ["/features/1/name"]


def test_studies_are_seen_by_those_they_concern(study: DirectApi) -> None:
    study.register("other")
    add(study, "first")
    add(study, "second", OPERATOR)
    absent = refusal(sessions.get_study, study.co, OPERATOR, "nothing")
    for stranger in (EVE, site("other")):
        hidden = refusal(sessions.get_study, study.co, stranger, "hearts")
        assert hidden.to_problem() == absent.to_problem()
        assert sessions.list_studies(study.co, stranger).items == ()
    whole = sessions.get_study(study.co, OPERATOR, "hearts")
    assert (whole.sites, whole.n_sessions) == (SITES, 2)
    assert whole.defaults == body().defaults
    # As in the list of sessions: not those of the operator.
    assert sessions.get_study(study.co, ANALYST, "hearts").n_sessions == 1
    own = sessions.get_study(study.co, site("north"), "hearts")
    assert (own.title, own.purpose, own.n_sessions) == ("Hearts", PURPOSE, 2)
    assert {own.approval, own.expires, own.sites, own.features, own.defaults} == {None}
    assert sessions.list_studies(study.co, site("north")).items == (own,)


def test_studies_are_listed_by_pages(study: DirectApi) -> None:
    for name in ("a", "b"):
        sessions.create_study(study.co, ANALYST, body(name))
    found = paged(sessions.list_studies, study.co, ANALYST, limit=2)
    assert [each.name for each in found] == ["b", "a", "hearts"]


def test_a_study_is_deleted_only_without_sessions(study: DirectApi) -> None:
    add(study, "first")
    refused = refusal(sessions.delete_study, study.co, ANALYST, "hearts")
    assert refused.slug == "wrong-state"
    assert "first" in refused.detail
    sessions.delete_session(study.co, ANALYST, "first")
    assert refusal(sessions.delete_study, study.co, EVE, "hearts").slug == "not-found"
    assert refusal(sessions.delete_study, study.co, site("north"), "hearts").slug == "forbidden"
    for _ in range(2):  # asked again, for instance because the answer was lost
        sessions.delete_study(study.co, ANALYST, "hearts")
    assert refusal(sessions.delete_study, study.co, EVE, "hearts").slug == "not-found"
    assert refusal(sessions.get_study, study.co, ANALYST, "hearts").slug == "not-found"
    assert len(study.audit(action="study.deleted")) == 1
    assert sessions.create_study(study.co, ANALYST, body(title="Again"))[1]


def test_a_damaged_study_is_refused_and_left_out_of_lists(direct: DirectApi) -> None:
    direct.register(*SITES)
    for name in ("hearts", "lungs"):
        sessions.create_study(direct.co, ANALYST, body(name))
    changed = {"change": lambda old: old.replace(b"Hearts", b"Harts"), "name": "hearts"}
    change_stored(direct.store, "studies", "definition", **changed)
    with pytest.raises(DataDamaged):
        sessions.get_study(direct.co, ANALYST, "hearts")
    with pytest.raises(DataDamaged):
        add(direct, "first")
    assert [each.name for each in sessions.list_studies(direct.co, ANALYST).items] == ["lungs"]


# --- sessions of a study --------------------------------------------------------------------------


def test_a_session_takes_over_what_its_study_gives(study: DirectApi) -> None:
    info = add(study, "first", config={"rounds": 1})
    frozen = info.definition
    assert (info.study, frozen.study, frozen.title) == ("hearts", "hearts", "Hearts")
    assert (frozen.sites, frozen.config["width"], frozen.config["rounds"]) == (SITES, 3, 1)
    assert b'"study":"hearts"' in study.row("first").definition
    # The same request again gives the same session.
    assert add(study, "first", config={"rounds": 1}) == info
    study.join("first", *SITES)
    assert study.finish("first").state == "completed"


def test_a_session_that_does_not_fit_is_refused(study: DirectApi) -> None:
    for name, fields, pointer in (
        ("other-sites", {"sites": ["north", "south"]}, "/sites"),
        ("other-feature", {"features": [{"name": "age", "unit": "months"}]}, "/features/0"),
        ("other-study", {"study": "nothing"}, "/study"),
        ("other-option", {"config": {"widht": 3}}, "/config"),
    ):
        refused = refusal(add, study, name, **fields)
        assert (refused.slug, refused.errors[0].pointer) == ("invalid", pointer)
    # A foreign study is as one that does not exist.
    refused = refusal(add, study, "x", EVE)
    assert refused.to_problem() == refusal(add, study, "x", study="nothing").to_problem()


def test_a_study_that_is_deleted_meanwhile_gets_no_session(
    study: DirectApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sessions.freeze

    def freeze(*given: Any) -> Any:
        monkeypatch.setattr(sessions, "freeze", real)
        sessions.delete_study(study.co, ANALYST, "hearts")
        return real(*given)

    monkeypatch.setattr(sessions, "freeze", freeze)
    assert refusal(add, study, "first").slug == "unavailable"
    assert [error.pointer for error in refusal(add, study, "first").errors] == ["/study"]


# --- deleting sessions ----------------------------------------------------------------------------


def test_a_session_that_nobody_joined_is_deleted_and_its_name_used_again(both: DirectApi) -> None:
    first = both.define(rounds=9)
    participation.leave(both.co, site("south"), "heart")  # declined, never joined
    assert refusal(sessions.delete_session, both.co, EVE, "heart").slug == "not-found"
    assert refusal(sessions.delete_session, both.co, site("north"), "heart").slug == "forbidden"
    for _ in range(2):  # asked again, for instance because the answer was lost
        sessions.delete_session(both.co, ANALYST, "heart")
    absent = refusal(sessions.get_session, both.co, ANALYST, "nothing")
    for who in (ANALYST, OPERATOR, site("north")):
        gone = refusal(sessions.get_session, both.co, who, "heart")
        assert gone.to_problem() == absent.to_problem()
    assert refusal(sessions.delete_session, both.co, EVE, "heart").slug == "not-found"

    second = both.session(rounds=1)
    assert second.definition_sha256 != first.definition_sha256
    assert {each.state for each in second.sites} == {"joined"}
    assert both.finish("heart").state == "completed"
    actions = [action for _, action, _ in both.audit()]
    assert actions.count("session.created") == 2
    assert len(both.audit(action="session.deleted")) == 1


def test_a_session_that_a_site_ever_joined_stays(direct: DirectApi) -> None:
    direct.define()
    direct.join("heart", "north")
    participation.leave(direct.co, site("north"), "heart")
    for _ in range(2):
        refused = refusal(sessions.delete_session, direct.co, OPERATOR, "heart")
        assert refused.slug == "wrong-state"
        assert "Cancel it instead" in refused.detail
        sessions.cancel_session(direct.co, ANALYST, "heart")
    assert direct.info("heart").state == "cancelled"


def test_a_consent_to_the_deleted_session_joins_no_other(direct: DirectApi) -> None:
    direct.define(rounds=9)
    before = direct.consent("heart")
    sessions.delete_session(direct.co, ANALYST, "heart")
    north = site("north")
    assert refusal(participation.join, direct.co, north, "heart", before).slug == "not-found"
    direct.define(rounds=1)
    assert refusal(participation.join, direct.co, north, "heart", before).slug == "consent-mismatch"


def test_the_version_continues_so_that_nobody_waits_in_vain(direct: DirectApi) -> None:
    """Whoever waits for a name keeps the last version of it that was seen."""
    for _ in range(3):
        direct.define()
        version = direct.row("heart").version
        sessions.delete_session(direct.co, ANALYST, "heart")
        direct.define()
        assert direct.row("heart").version > version + 1
        assert direct.row("heart").version > direct.co.notifier._versions["heart"]
        sessions.delete_session(direct.co, ANALYST, "heart")
