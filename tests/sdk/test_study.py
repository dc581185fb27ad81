"""A session of a study: what the study gives, what the session says, what is refused."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from fedclust.definition import DefinitionError
from fedclust.definition.study import (
    SessionOfStudy,
    SessionRequest,
    StudyCreate,
    StudyInfo,
    check_study,
    complete,
)
from fedclust.wire.models import SessionCreate
from support.purpose import PURPOSE

SITES = ["budapest", "cleveland", "zurich"]
FEATURES = [
    {"name": "age", "unit": "years", "lower": 0.0, "upper": 120.0},
    {"name": "chol", "unit": "mg/dl"},
]


def study(**changes: Any) -> StudyCreate:
    rules = {"policy": {"quorum": 3, "min_group_size": 7}, "start": "manual"}
    body = {
        "name": "hearts",
        "purpose": PURPOSE,
        "contact": "ada@example.org",
        "sites": SITES,
        "features": FEATURES,
        "defaults": {"algorithm": "fkm", "config": {"n_clusters": 4, "n_init": 2}, **rules},
    }
    return StudyCreate.model_validate_json(json.dumps({**body, **changes}))


def request(**fields: Any) -> SessionCreate:
    body = {"name": "first", "study": "hearts", **fields}
    return SessionRequest.model_validate_json(json.dumps(body)).root


def faults(wanted: StudyCreate, **fields: Any) -> dict[str, str]:
    with pytest.raises(DefinitionError) as caught:
        complete(wanted, request(**fields))
    return {error.pointer: error.message for error in caught.value.errors}


def test_what_a_session_leaves_out_the_study_gives() -> None:
    found = complete(study(), request())
    assert type(found) is SessionCreate
    assert (found.name, found.study) == ("first", "hearts")
    assert (found.purpose, found.contact, found.title) == (PURPOSE, "ada@example.org", "")
    assert (found.algorithm, found.start) == ("fkm", "manual")
    assert found.sites == tuple(SITES)
    assert [each.name for each in found.features] == ["age", "chol"]
    assert found.features[0].upper == 120.0


def test_the_sessions_own_fields_win_one_by_one() -> None:
    found = complete(
        study(),
        request(
            title="With five",
            config={"n_clusters": 5},
            policy={"quorum": None, "max_rounds": 9},
            start="when_all_joined",
        ),
    )
    assert (found.title, found.algorithm, found.start) == ("With five", "fkm", "when_all_joined")
    assert found.config == {"n_clusters": 5, "n_init": 2}
    policy = found.policy
    assert (policy.quorum, policy.max_rounds, policy.min_group_size) == (None, 9, 7)
    assert policy.model_fields_set == {"quorum", "max_rounds", "min_group_size"}


def test_the_studys_config_is_for_the_studys_method() -> None:
    other = {"algorithm": "overlap", "config": {"n_clusters": 3}, "policy": {"missing": "mask"}}
    found = complete(study(), request(**other))
    assert found.config == {"n_clusters": 3}
    assert (found.policy.quorum, found.start) == (3, "manual")
    named = request(algorithm="fkm")
    assert complete(study(), named).config == {"n_clusters": 4, "n_init": 2}
    # A study without a method gives its config to all.
    common = study(defaults={"config": {"n_clusters": 4}})
    assert complete(common, request(algorithm="kfed")).config == {"n_clusters": 4}


def test_a_session_has_the_studys_sites() -> None:
    assert complete(study(), request(sites=SITES[::-1])).sites == tuple(SITES[::-1])
    for other in (SITES[:2], [*SITES, "basel"], ["basel"]):
        assert "leave sites out" in faults(study(), sites=other)["/sites"]


def test_a_feature_is_declared_as_in_the_study() -> None:
    fewer = complete(study(), request(features=[FEATURES[1]]))
    assert [each.name for each in fewer.features] == ["chol"]
    more = complete(study(), request(features=[*FEATURES, {"name": "sex", "kind": "binary"}]))
    assert len(more.features) == 3
    found = faults(study(), features=[FEATURES[1], {"name": "age", "upper": 90.0}])
    assert list(found) == ["/features/1"]
    assert "'age' with another unit, lower, upper" in found["/features/1"]


def test_what_nobody_says_is_named_and_all_faults_at_once() -> None:
    bare = study(features=[], defaults={})
    said = "the study has none either: give it here"
    assert faults(bare) == {"/algorithm": said, "/features": said}
    found = faults(study(defaults={}), sites=["basel"], features=[{"name": "age"}])
    assert set(found) == {"/sites", "/features/0", "/algorithm"}


def test_a_study_is_checked() -> None:
    check_study(study())
    twice = [FEATURES[0], {"name": "age", "transform": "log"}]
    with pytest.raises(DefinitionError) as caught:
        check_study(study(sites=[*SITES, "zurich"], features=twice))
    pointers = [error.pointer for error in caught.value.errors]
    assert pointers == ["/sites/3", "/features/1/name", "/features/1/lower"]
    for wrong in ({"purpose": "short"}, {"sites": []}, {"defaults": {"policy": {"rounds": 1}}}):
        with pytest.raises(ValidationError):
            study(**wrong)


@pytest.mark.parametrize(
    ("defaults", "pointer", "said"),
    [
        ({"algorithm": "kmeans"}, "/defaults/algorithm", "choose one of: dual, fkm, kfed, lloyd"),
        (
            {"algorithm": "fkm", "config": {"candidats": 3}},
            "/defaults/config",
            'unknown option of this variant "candidats": did you mean "candidates"',
        ),
        ({"policy": {"min_sites": 4}}, "/defaults/policy/min_sites", "fewer sites (3)"),
    ],
)
def test_defaults_that_no_session_could_have_are_refused(
    defaults: dict[str, Any], pointer: str, said: str
) -> None:
    with pytest.raises(DefinitionError) as caught:
        check_study(study(defaults=defaults))
    (error,) = caught.value.errors
    assert error.pointer == pointer
    assert said in error.message


def test_defaults_may_leave_out_what_sessions_say() -> None:
    check_study(study(defaults={"algorithm": "lloyd", "config": {"tol": 0.01}}))
    check_study(study(sites=SITES[:2], defaults={"config": {"anything": 1}}))


def test_a_request_is_read_as_what_it_is() -> None:
    assert isinstance(request(), SessionOfStudy)
    with pytest.raises(ValidationError, match="algorithm"):
        SessionRequest.model_validate_json('{"name": "first", "study": null}')


def test_a_study_shows_only_the_defaults_that_were_set() -> None:
    info = StudyInfo(
        name="hearts",
        title="",
        purpose=PURPOSE,
        contact="",
        n_sessions=0,
        created_by="ada",
        created_at="2026-01-05T08:00:00Z",  # type: ignore[arg-type]  # read from text
        defaults=study().defaults,
    )
    shown = json.loads(info.model_dump_json())
    assert shown["defaults"]["policy"] == {"quorum": 3, "min_group_size": 7}
    assert StudyInfo.model_validate_json(info.model_dump_json()) == info
    assert info.model_copy(update={"defaults": None}).model_dump()["defaults"] is None
