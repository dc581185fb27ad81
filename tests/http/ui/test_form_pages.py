"""The pages that create sessions and studies, without scripts, and htmx's check."""

import json
import re
from typing import Any

import httpx
import pytest

from support.api_caller import ApiCaller
from support.definitions import session_body
from support.html_forms import PageForm
from support.local_coordinator import LocalCoordinator
from support.purpose import PURPOSE
from support.reader import Reader

SITES = ("north", "south", "west")
HOSTILE = '<b onload="x">\u05d1\u05d3\u05d9\u05e7\u05d4</b>&amp;' + "x" * 160
PAGE, STUDY = "/ui/new-session", "/ui/new-study"
BOUNDS = {"features__0__name": "age", "features__0__lower": "0", "features__0__upper": "120"}


class Place:
    """A coordinator with four sites and two analysts."""

    def __init__(self, local: LocalCoordinator) -> None:
        self.api = ApiCaller.found(local, (*SITES, "east"), "ada", "bob")
        self.ada = self.api.reader("ada")

    def form(self, query: str = "") -> PageForm:
        return PageForm(self.ada.open(PAGE + query))

    def send(self, fields: list[tuple[str, str]], path: str = PAGE) -> httpx.Response:
        return self.ada.post(path, [each for each in fields if each[0] != "csrf"])

    def post(
        self, fields: list[tuple[str, str]], *, status: int = 200, path: str = PAGE
    ) -> PageForm:
        answer = self.send(fields, path)
        assert answer.status_code == status, answer.text
        return PageForm(answer.text)


@pytest.fixture(scope="module")
def place(served: LocalCoordinator) -> Place:
    return Place(served)


def filled(
    form: PageForm, name: str, *more: tuple[str, str], **texts: str
) -> list[tuple[str, str]]:
    sites = [("/sites", site) for site in SITES]
    given = {"name": name, "purpose": PURPOSE, "config__n_clusters": "3", **BOUNDS, **texts}
    return form.changed(*sites, *more, **given)


def body_of(name: str, **changes: Any) -> dict[str, Any]:
    """Return the body that the API takes for the same."""
    age = {"name": "age", "lower": 0, "upper": 120}
    return session_body(age, name=name, sites=list(SITES), **changes)


def test_a_form_of_defaults_creates_what_the_api_creates(place: Place) -> None:
    form, name = place.form("?method=kfed"), "form-kfed"
    assert form.value("/algorithm") == "kfed"
    sent = filled(form, name, ("create", "1"), seed="7")
    answer = place.send(sent)
    assert (answer.status_code, answer.text) == (303, "")
    assert answer.headers["Location"] == f"/ui/sessions/{name}?notice=session-created"
    body = body_of(name, algorithm="kfed", config={"n_clusters": 3}, seed=7)
    # The same request again gives the session that is there.
    there = place.api.request("POST", "/v1/sessions", "ada", json=body)
    assert there.status_code == 200, there.text


def test_wrong_values_have_the_messages_of_the_api_and_are_not_lost(place: Place) -> None:
    wrong = {"config__tol": "2", "config__n_clusters": "many", "policy__quorum": "9"}
    sent = filled(place.form(), "wrong", ("create", "1"), title=HOSTILE, **wrong)
    page = place.post(sent, status=422)
    config, policy = {"n_clusters": "many", "tol": 2}, {"quorum": 9}
    body = body_of("wrong", title=HOSTILE, config=config, policy=policy)
    refused = place.api.request("POST", "/v1/sessions", "ada", json=body)
    errors = {each["pointer"]: each["message"] for each in refused.json()["errors"]}
    assert len(errors) == 3
    assert page.messages == {
        "f" + at.replace("/", "-").replace("_", "-"): text for at, text in errors.items()
    }
    assert page.value("/config/n_clusters") == "many"
    assert page.value("/title") == HOSTILE
    assert page.value("/features/0/name") == "age"
    assert '<details class="card" open>' in page.html, "what is wrong is not folded away"
    assert [text for name, text in page.fields if name == "/sites"] == list(SITES)
    assert "The session was not created." in page.text
    assert "<b onload" not in page.html


def test_the_expert_part_stays_folded_where_all_errors_are_above_it(place: Place) -> None:
    wrong = {"features__0__name": "patient_id", "config__n_clusters": "many"}
    page = place.post(filled(place.form(), "above", ("create", "1"), **wrong), status=422)
    assert {"f-features-0-name", "f-config-n-clusters"} <= set(page.messages)
    assert '<details class="card" open>' not in page.html


def test_a_site_that_is_not_registered_stays_chosen_and_is_marked(place: Place) -> None:
    page = place.post([("/sites", "gone"), ("/sites", "west"), ("check", "1")])
    assert [text for name, text in page.fields if name == "/sites"] == ["gone", "west"]
    assert page.html.count("not registered") == 1
    assert page.html.index(">gone<") < page.html.index("not registered") < page.html.index(">west<")


def test_a_name_that_is_taken_is_said_at_the_name(place: Place) -> None:
    for status in (303, 409):
        sent = filled(place.form(), "taken", ("create", "1"), seed=str(status))
        page = place.post(sent, status=status)
    assert page.messages["f-name"].startswith("A session of this name")
    first = filled(place.form(), "taken", ("create", "1"), seed="303")
    again = place.send(first)
    assert again.headers["Location"].endswith("/taken?notice=session-created-before")


def test_a_check_says_what_is_wrong_and_what_is_missing_at_any_time(place: Place) -> None:
    empty = place.post(place.form().changed(("check", "1")))
    assert empty.messages == {}
    needed = "Purpose; Name of the session; Sites; Columns; Number of clusters, K"
    assert f"Still needed: {needed}" in empty.text
    wrong = place.post(place.form().changed(("check", "1"), policy__min_sites="x"))
    assert wrong.messages.keys() == {"f-policy-min-sites"}, "what is missing hides none"
    assert empty.text.count("*") == 6  # five inputs, and what the mark means
    sent = filled(place.form(), "typing", title=HOSTILE, policy__min_sites="x")
    part = place.post(sent)
    assert part.messages == {"f-policy-min-sites": "it should be a whole number"}
    done = place.post(filled(place.form(), "typing", patients="20"))
    said = done.text
    assert "Complete: the session can be created." in said
    assert "Every number is computed from groups of at least 5 of your persons." in said
    assert "20 are enough up to K = 2." in said
    other = filled(place.form(), "typing", ("/config/tol", "0.5"), algorithm="kfed")
    changed = place.post(other)
    assert changed.value("/config/refine") == ""
    assert changed.value("/config/tol") == "0.5", "what was typed stays for another method"


def test_a_column_that_identifies_is_refused_in_the_form_and_rows_come_and_go(place: Place) -> None:
    sent = filled(place.form(), "ids", ("create", "1"), features__7__name="Patient_ID")
    page = place.post(sent, status=422)
    assert page.messages["f-features-7-name"].startswith("it looks like identifiers, which no")
    page = place.post(page.changed(("remove", "7")))
    assert page.messages == {}
    more = place.post(page.changed(("check", "1"), features__3__name="sex"))
    names = [value for at, value in more.fields if re.fullmatch(r"/features/\d+/name", at)]
    assert names[-2:] == ["sex", ""]  # One empty row follows those that are filled in.
    assert "" not in names[:-1]
    place.post(more.changed(("create", "1")), status=303)


def send_as_it_is(reader: Reader, fields: list[tuple[str, str]]) -> httpx.Response:
    return reader.post(PAGE, [e for e in fields if e[0] != "csrf"], csrf=dict(fields)["csrf"])


def test_what_was_typed_comes_back_after_another_sign_in(place: Place) -> None:
    reader = place.api.reader("ada")
    sent = filled(PageForm(reader.open(PAGE)), "outlives", ("create", "1"))
    reader.post("/ui/sign-out")
    lost = send_as_it_is(reader, sent)
    assert (lost.status_code, 'target="_blank"' in lost.text) == (401, True)
    assert "load this page again" in lost.text
    part = reader.client.post(PAGE, data=dict(sent), headers={"HX-Request": "true"})
    assert (part.status_code, "HX-Redirect" in part.headers) == (401, False)
    reader.client.post("/ui/sign-in", data={"token": place.api.tokens["ada"]})
    # The browser sends it again, with the token of the earlier sign-in: nothing is created.
    again = send_as_it_is(reader, sent)
    page = PageForm(again.text)
    assert (again.status_code, page.value("/name")) == (200, "outlives")
    assert "You signed in again." in page.text
    assert "outlives" not in reader.open("/ui/sessions")
    created = send_as_it_is(reader, page.changed(("create", "1")))
    assert created.headers["Location"].startswith("/ui/sessions/outlives")


def test_a_check_while_typing_lists_messages_and_sends_no_table(place: Place) -> None:
    reader = place.ada
    sent = filled(place.form(), "partial", features__0__lower="x")
    typed = {**dict(sent), "csrf": reader.csrf()}
    answer = reader.client.post(PAGE, data=typed, headers={"HX-Request": "true"})
    assert 'href="#f-features-0-lower">age, lower</a>: it should be a number such as' in answer.text
    page = PageForm(answer.text)
    assert not [name for name, _ in page.fields if name.startswith("/features")]


def test_outcomes_say_whether_they_are_worth_their_points(place: Place) -> None:
    died = {"features__3__name": "died", "features__3__role": "outcome"}
    died |= {"features__3__kind": "binary", "features__3__guess": "10", "patients": "200"}
    page = place.post(filled(place.form(), "deaths", **died))
    said = " ".join(page.text.split())
    assert "Worth asking?" in said
    assert "Together: 10 points of the allowance of each site (died 10)." in said
    # 600 persons in 3 clusters: 20 deaths in each are likely, and 44 are needed.
    assert "died: too few points." in said
    assert "47 points would be enough." in said
    assert "Expert: title, deadline, options" in said
    assert "Deadline for joining (UTC) No site joins from then on. Options" in said
    assert page.value("/features/3/guess") == "10"
    assert "died (outcome, yes/no, 10 points)" in said, "what each site will read"
    assert "No contact and no ethics approval is given: stewards look for that first." in said
    unbounded = place.post(filled(place.form(), "deaths", features__0__upper="", **died))
    assert "No lower or no upper bound: " in " ".join(unbounded.text.split())
    dear = place.post(filled(place.form(), "dear", **died, features__3__points="101"))
    assert "Complete: the session can be created." in dear.text
    assert "The outcomes ask 101 points, and a site has 100" in dear.text
    place.post(filled(page, "deaths", ("create", "1"), **died), status=303)
    shown = place.ada.open("/ui/sessions/deaths")
    assert "The session asks 10 points of the allowance of each site (died 10)." in shown
    again = place.form("?from=deaths")
    names = [again.value(f"/features/1/{name}") for name in ("name", "role", "kind")]
    assert names == ["died", "outcome", "binary"]


def test_a_session_is_copied_and_downloaded(place: Place) -> None:
    sent = filled(place.form("?method=kfed"), "origin", ("create", "1"), config__refine="2")
    place.post(sent, status=303)
    copied = place.form("?from=origin")
    assert copied.value("/config/refine") == "2"
    assert (copied.value("/name"), copied.value("/seed")) == ("", "")
    assert "Given: Refine" in copied.text
    other = place.form("?from=origin&method=fkm")
    assert "not taken over from origin: options of kfed" in other.text
    sent = copied.changed(("file", "1"), name="again")
    file = place.send(sent)
    assert file.headers["Content-Disposition"] == 'attachment; filename="definition.json"'
    assert json.loads(file.text)["config"] == {"n_clusters": 3, "refine": 2}
    page = place.post([("definition", file.text), ("load", "1")])
    assert page.value("/config/refine") == "2"
    page = place.post([("definition", "[1]"), ("load", "1"), ("/name", "kept")])
    assert page.value("/name") == "kept"
    misspelt = json.dumps({**json.loads(file.text), "tilte": ""})
    page = place.post([("definition", misspelt), ("load", "1")])
    assert "Not taken over: tilte." in page.text


def test_a_study_fixes_its_sites_and_gives_its_features(place: Place) -> None:
    features = [{"name": HOSTILE[:120]}, {"name": "age"}]
    defaults = {"algorithm": "kfed", "config": {"n_clusters": 5}}
    place.api.study("ada", "hearts", list(SITES), features=features, defaults=defaults)
    page = place.form("?study=hearts")
    assert (page.value("/config/n_clusters"), "Default: 5." in page.html) == ("", True)
    assert page.value("/features/1/name") == "age"
    assert not [name for name, _ in page.fields if name == "/sites"]
    sent = page.changed(("create", "1"), name="of-study", config__n_clusters="4")
    place.post(sent, status=303)
    made = place.api.request("GET", "/v1/sessions/of-study", "ada")
    definition = made.json()["definition"]
    assert (definition["study"], definition["config"]["n_clusters"]) == ("hearts", 4)
    assert len(definition["features"]) == 2
    assert place.form("?from=of-study").value("study") == "hearts"


@pytest.mark.parametrize(
    "text",
    [
        r'{"title": "\ud800"}',
        r'{"\ud800": 1}',
        r'{"study": "\u0000"}',
        '{"config": {"init": ' + "[" * 900 + "]" * 900 + "}}",
        "[" * 100_000,
        '{"seed": ' + "9" * 5_000 + "}",
        '{"sites": [1, {}, null], "features": [{"name": [1], "levels": {"a": 1}}, 5], "start": []}',
    ],
)
def test_no_pasted_text_is_an_error(place: Place, text: str) -> None:
    place.post([("definition", text), ("load", "1")])


# --- studies --------------------------------------------------------------------------------------


def test_a_form_makes_the_study_that_the_api_makes(place: Place) -> None:
    ada, api = place.ada, place.api
    form = PageForm(ada.open(STUDY))
    assert form.value("/algorithm") == ""
    sites = [("/sites", site) for site in SITES]
    sent = form.changed(*sites, name="kidneys", purpose=PURPOSE)
    sent.remove(("/algorithm", ""))
    for more in ([], [("/algorithm", "kfed")]):
        form = place.post([*sent, *more], path=STUDY)
        assert "Complete: the study can be created." in form.text, "K is left to sessions"
    create = ("create", "1")
    sent = form.changed(create, features__0__name="age", config__refine="2", policy__quorum="3")
    wrong = form.changed(create, config__refine="x", policy__quorum="9")
    refused = place.post(wrong, status=422, path=STUDY)
    assert refused.messages.keys() == {"f-config-refine", "f-policy-quorum"}
    place.post(sent, status=303, path=STUDY)
    defaults = {"algorithm": "kfed", "config": {"refine": 2}, "policy": {"quorum": 3}}
    # Another study of this name would be refused.
    api.study("ada", "kidneys", list(SITES), features=[{"name": "age"}], defaults=defaults)
    page = ada.open("/ui/studies/kidneys")
    assert "refine: 2" in page
    assert 'href="/ui/new-session?study=kidneys"' in page
    of_study = ada.open("/ui/new-session?study=kidneys")
    assert re.search("Exact Lloyd rounds[^<]*<span[^<]*</span> Default: 2.", of_study)


def test_who_sees_which_study(place: Place) -> None:
    place.api.study("ada", "private", list(SITES), title=HOSTILE)
    for name in ("ada", "north"):
        reader = place.api.reader(name)
        assert "private" in reader.open("/ui/studies")
        page = reader.open("/ui/studies/private")
        assert "<b onload" not in page
        assert HOSTILE[14:19] in page
    assert "south" not in page
    for name in ("bob", "east"):
        assert "private" not in place.api.reader(name).open("/ui/studies")


def test_only_a_study_without_sessions_is_deleted(place: Place) -> None:
    ada, api = place.ada, place.api
    api.study("ada", "old", list(SITES))
    api.define("ada", "of-old", list(SITES), study="old")
    assert "/ui/sessions/of-old" in ada.open("/ui/studies/old")
    refused = place.post([], status=409, path="/ui/studies/old/delete")
    assert "The study has sessions: of-old." in refused.text
    api.study("ada", "empty", list(SITES))
    assert "its name can be used again" in ada.open("/ui/studies/empty/delete")
    place.post([], status=303, path="/ui/studies/empty/delete")
    ada.open("/ui/studies/empty", status=404)


def test_a_study_shows_the_points_of_its_outcomes(place: Place) -> None:
    died = {"name": "died", "kind": "binary", "role": "outcome", "points": 25}
    body = {
        "name": "deaths",
        "purpose": PURPOSE,
        "sites": list(SITES),
        "features": [{"name": "age"}, {"name": "died", "kind": "binary"}, died],
    }
    made = place.api.request("POST", "/v1/studies", "ada", json=body)
    assert (made.status_code, made.headers["Location"]) == (201, "/v1/studies/deaths")
    page = place.ada.open("/ui/studies/deaths")
    assert "A session that counts every outcome asks 25 points" in page
    assert "Ask once: points" in page
    form = PageForm(place.ada.open("/ui/new-session?study=deaths"))
    rows = [
        (form.value(f"/features/{n}/name"), form.value(f"/features/{n}/role")) for n in range(3)
    ]
    assert rows == [("age", ""), ("died", ""), ("died", "outcome")]
