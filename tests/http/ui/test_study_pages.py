"""Studies in the browser: made in a form, listed, read, deleted."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.api_caller import ApiCaller
from support.clock import ManualClock
from support.html_forms import PageForm
from support.local_coordinator import local_coordinator
from support.purpose import PURPOSE
from support.reader import Reader

SITES = ["north", "south", "west"]
HOSTILE = '<b onload="x">\u05d1\u05d3\u05d9\u05e7\u05d4</b>&amp;' + "x" * 160
Readers = dict[str, Reader]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiCaller]:
    place: Path = tmp_path_factory.mktemp("studies")
    with local_coordinator(place, clock=ManualClock()) as local:
        yield ApiCaller.found(local, (*SITES, "east"), "ada", "bob")


@pytest.fixture(scope="module")
def readers(api: ApiCaller) -> Readers:
    return {name: api.reader(name) for name in ("ada", "bob", *SITES, "east")}


def post(reader: Reader, path: str, fields: list[tuple[str, str]], status: int) -> PageForm:
    answer = reader.post(path, [each for each in fields if each[0] != "csrf"])
    assert answer.status_code == status, answer.text
    return PageForm(answer.text)


def filled(
    form: PageForm, name: str, *more: tuple[str, str], **texts: str
) -> list[tuple[str, str]]:
    sites = [("/sites", site) for site in SITES]
    return form.changed(*sites, *more, name=name, purpose=PURPOSE, **texts)


def test_a_form_makes_the_study_that_the_api_makes(api: ApiCaller, readers: Readers) -> None:
    ada = readers["ada"]
    form = PageForm(ada.open("/ui/new-study"))
    assert form.value("/algorithm") == ""
    sent = [each for each in filled(form, "hearts") if each[0] != "/algorithm"]
    for more in ([], [("/algorithm", "kfed")]):
        form = post(ada, "/ui/new-study", [*sent, *more], 200)
        assert "Complete: the study can be created." in "".join(form.texts), "K is left to sessions"
    create = ("create", "1")
    sent = form.changed(create, features__0__name="age", config__refine="2", policy__quorum="3")
    wrong = form.changed(create, config__refine="x", policy__quorum="9")
    refused = post(ada, "/ui/new-study", wrong, 422)
    assert refused.messages.keys() == {"f-config-refine", "f-policy-quorum"}
    post(ada, "/ui/new-study", sent, 303)
    defaults = {"algorithm": "kfed", "config": {"refine": 2}, "policy": {"quorum": 3}}
    # Another study of this name would be refused.
    api.study("ada", "hearts", SITES, features=[{"name": "age"}], defaults=defaults)
    page = ada.open("/ui/studies/hearts")
    assert "refine: 2" in page
    assert 'href="/ui/new-session?study=hearts"' in page
    of_study = ada.open("/ui/new-session?study=hearts")
    assert re.search("Exact Lloyd rounds[^<]*<span[^<]*</span> Default: 2.", of_study)


def test_who_sees_which_study(api: ApiCaller, readers: Readers) -> None:
    api.study("ada", "private", SITES, title=HOSTILE)
    for name in ("ada", "north"):
        assert "private" in readers[name].open("/ui/studies")
        page = readers[name].open("/ui/studies/private")
        assert "<b onload" not in page
        assert HOSTILE[14:19] in page
    assert "south" not in readers["north"].open("/ui/studies/private")
    for name in ("bob", "east"):
        assert "private" not in readers[name].open("/ui/studies")


def test_only_a_study_without_sessions_is_deleted(api: ApiCaller, readers: Readers) -> None:
    ada = readers["ada"]
    api.study("ada", "old", SITES)
    api.define("ada", "of-old", SITES, study="old")
    assert "/ui/sessions/of-old" in ada.open("/ui/studies/old")
    refused = post(ada, "/ui/studies/old/delete", [], 409)
    assert "The study has sessions: of-old." in "".join(refused.texts)
    api.study("ada", "empty", SITES)
    assert "its name can be used again" in ada.open("/ui/studies/empty/delete")
    post(ada, "/ui/studies/empty/delete", [], 303)
    ada.open("/ui/studies/empty", status=404)


def test_a_study_shows_the_points_of_its_outcomes(api: ApiCaller, readers: Readers) -> None:
    died = {"name": "died", "kind": "binary", "role": "outcome", "points": 25}
    body = {
        "name": "deaths",
        "purpose": PURPOSE,
        "sites": SITES,
        "features": [{"name": "age"}, {"name": "died", "kind": "binary"}, died],
    }
    made = api.request("POST", "/v1/studies", "ada", json=body)
    assert (made.status_code, made.headers["Location"]) == (201, "/v1/studies/deaths")
    page = readers["ada"].open("/ui/studies/deaths")
    assert "A session that counts every outcome asks 25 points" in page
    assert "Ask once: points" in page
    form = PageForm(readers["ada"].open("/ui/new-session?study=deaths"))
    rows = [
        (form.value(f"/features/{n}/name"), form.value(f"/features/{n}/role")) for n in range(3)
    ]
    assert rows == [("age", ""), ("died", ""), ("died", "outcome")]
