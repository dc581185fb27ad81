"""The page that creates a session, as a browser without scripts sees it, and htmx's check."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from support.api_caller import ApiCaller
from support.clock import ManualClock
from support.html_forms import PageForm
from support.local_coordinator import local_coordinator
from support.purpose import PURPOSE
from support.reader import Reader

SITES = ("north", "south", "west")
HOSTILE = '<b onload="x">\u05d1\u05d3\u05d9\u05e7\u05d4</b>&amp;' + "x" * 160
PAGE = "/ui/new-session"
BOUNDS = {"features__0__name": "age", "features__0__lower": "0", "features__0__upper": "120"}


class Place:
    """A coordinator with three sites, two analysts, and a study."""

    def __init__(self, url: str, operator_token: str) -> None:
        self.api = ApiCaller(url, operator_token)
        self.api.tokens["operator"] = operator_token
        for site in SITES:
            self.api.register("sites", site)
        for analyst in ("ada", "bob"):
            self.api.register("analysts", analyst)
        self.readers = {name: Reader(url, token) for name, token in self.api.tokens.items()}

    def form(self, query: str = "", reader: str = "ada") -> PageForm:
        return PageForm(self.readers[reader].open(PAGE + query))

    def post(
        self, fields: list[tuple[str, str]], path: str = PAGE, *, status: int = 200
    ) -> PageForm:
        reader = self.readers["ada"]
        answer = reader.post(path, [each for each in fields if each[0] != "csrf"])
        assert answer.status_code == status, answer.text
        return PageForm(answer.text)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with local_coordinator(tmp_path_factory.mktemp("form"), clock=ManualClock()) as local:
        yield Place(local.base_url, local.operator_token)


def filled(
    form: PageForm, name: str, *more: tuple[str, str], **texts: str
) -> list[tuple[str, str]]:
    sites = [("/sites", site) for site in SITES]
    given = {"name": name, "purpose": PURPOSE, "config__n_clusters": "3", **BOUNDS, **texts}
    return form.changed(*sites, *more, **given)


def test_a_form_of_defaults_creates_what_the_api_creates(place: Place) -> None:
    form, name = place.form("?method=kfed"), "form-kfed"
    assert form.value("/algorithm") == "kfed"
    sent = filled(form, name, ("create", "1"), seed="7")
    answer = place.readers["ada"].post(PAGE, [each for each in sent if each[0] != "csrf"])
    assert (answer.status_code, answer.text) == (303, "")
    assert answer.headers["Location"] == f"/ui/sessions/{name}?notice=session-created"
    body = {
        "name": name,
        "purpose": PURPOSE,
        "algorithm": "kfed",
        "config": {"n_clusters": 3},
        "features": [{"name": "age", "lower": 0, "upper": 120}],
        "sites": list(SITES),
        "seed": 7,
    }
    # The same request again gives the session that is there.
    there = place.api.request("POST", "/v1/sessions", "ada", json=body)
    assert there.status_code == 200, there.text


def test_wrong_values_have_the_messages_of_the_api_and_are_not_lost(place: Place) -> None:
    wrong = {"config__tol": "2", "config__n_clusters": "many", "policy__quorum": "9"}
    sent = filled(place.form(), "wrong", ("create", "1"), title=HOSTILE, **wrong)
    page = place.post(sent, status=422)
    body = {
        "name": "wrong",
        "title": HOSTILE,
        "purpose": PURPOSE,
        "algorithm": "fkm",
        "config": {"n_clusters": "many", "tol": 2},
        "features": [{"name": "age", "lower": 0, "upper": 120}],
        "sites": list(SITES),
        "policy": {"quorum": 9},
    }
    refused = place.api.request("POST", "/v1/sessions", "ada", json=body)
    errors = {each["pointer"]: each["message"] for each in refused.json()["errors"]}
    assert len(errors) == 3
    assert page.messages == {
        "f" + at.replace("/", "-").replace("_", "-"): text for at, text in errors.items()
    }
    assert page.value("/config/n_clusters") == "many"
    assert page.value("/title") == HOSTILE
    assert page.value("/features/0/name") == "age"
    assert [text for name, text in page.fields if name == "/sites"] == list(SITES)
    assert "The session was not created." in "".join(page.texts)
    assert "<b onload" not in page.html


def test_a_name_that_is_taken_is_said_at_the_name(place: Place) -> None:
    for status in (303, 409):
        sent = filled(place.form(), "taken", ("create", "1"), seed=str(status))
        page = place.post(sent, status=status)
    assert page.messages["f-name"].startswith("A session of this name")
    first = filled(place.form(), "taken", ("create", "1"), seed="303")
    again = place.readers["ada"].post(PAGE, [each for each in first if each[0] != "csrf"])
    assert again.headers["Location"].endswith("/taken?notice=session-created-before")


def test_a_check_while_typing_answers_with_parts_alone(place: Place) -> None:
    empty = place.post(place.form().fields, f"{PAGE}/check")
    assert empty.messages == {}
    assert "Still needed: name, purpose, number of clusters, features, sites." in "".join(
        empty.texts
    )
    assert "<html" not in empty.html
    sent = filled(place.form(), "typing", title=HOSTILE, policy__min_sites="x")
    part = place.post(sent, f"{PAGE}/check")
    assert part.messages == {"f-policy-min-sites": "it should be a whole number"}
    assert "<b onload" not in part.html
    assert 'id="options"' not in part.html, "inputs with the focus stay"
    done = place.post(filled(place.form(), "typing", title=HOSTILE), f"{PAGE}/check")
    assert "Complete" in "".join(done.texts)
    assert "No number is about fewer than 5 of your persons." in "".join(done.texts)
    assert len(set(done.ids)) == len(done.ids)
    other = filled(place.form(), "typing")
    other = [each for each in other if each[0] != "/algorithm"] + [("/algorithm", "kfed")]
    changed = place.post(other, f"{PAGE}/check")
    assert 'id="options" hx-swap-oob="true"' in changed.html
    assert changed.value("shown_method") == "kfed"


def test_outcomes_come_and_go_and_say_whether_they_are_worth_their_points(place: Place) -> None:
    page = place.post(place.form().changed(("add_outcome", "1")))
    died = {"outcomes__0__name": "died", "outcomes__0__kind": "binary"}
    guess = {"guess__outcomes__0": "10", "guess__persons": "600"}
    page = place.post(filled(page, "deaths", **died, **guess))
    said = " ".join("".join(page.texts).split())
    assert "Worth asking?" in said
    assert "Together: 10 points of the allowance of each site (died 10)." in said
    # 600 persons in 3 clusters: 20 deaths in each are likely, and 44 are needed.
    assert "died: too few points." in said
    assert "47 points would be enough." in said
    assert page.value("/guess/outcomes/0") == "10"
    assert "guess" not in page.html.split("<code>{")[1].split("</code>")[0]
    assert "died (outcome, yes/no, 10 points)" in said, "what each site will read"
    sent = filled(page, "deaths", ("create", "1"), **died, **guess)
    place.post(sent, status=303)
    shown = place.readers["ada"].open("/ui/sessions/deaths")
    assert "died (outcome, yes/no, 10 points)" in shown
    assert "The session asks 10 points of the allowance of each site (died 10)." in shown
    again = place.form("?from=deaths")
    assert (again.value("/outcomes/0/name"), again.value("/outcomes/0/kind")) == ("died", "binary")
    page = place.post(page.changed(("remove_outcome:0", "1")))
    assert not [name for name, _ in page.fields if "outcomes/" in name]


def test_every_input_has_its_label_and_ids_are_unique(place: Place) -> None:
    page = place.post(place.form("?method=kfed").changed(("add_outcome", "1")))
    assert len(set(page.ids)) == len(page.ids)
    inputs = [each for each in page.ids if each.startswith("f-") and each[-5:] not in _PARTS]
    lacking = {each for each in inputs if each not in page.labelled}
    groups = {"f-config", "f-features", "f-features-0", "f-policy", "f-sites"}
    groups |= {"f-outcomes", "f-outcomes-0"}
    assert lacking == groups, "sections and groups have a heading"


_PARTS = ("-help", "wrong", "words")


def test_a_session_is_copied_and_downloaded(place: Place) -> None:
    sent = filled(place.form("?method=kfed"), "origin", ("create", "1"), config__refine="2")
    place.post(sent, status=303)
    copied = place.form("?from=origin")
    assert copied.value("/config/refine") == "2"
    assert (copied.value("/name"), copied.value("/seed")) == ("", "")
    other = place.form("?from=origin&method=fkm")
    assert "not taken over from origin: options of kfed" in "".join(other.texts)
    reader = place.readers["ada"]
    file = reader.post(f"{PAGE}/file", [e for e in copied.changed(name="again") if e[0] != "csrf"])
    assert file.headers["Content-Disposition"] == 'attachment; filename="again.json"'
    assert json.loads(file.text)["config"] == {"n_clusters": 3, "refine": 2}
    page = place.post([("definition_json", file.text), ("load_json", "1")])
    assert page.value("/config/refine") == "2"
    page = place.post([("definition_json", "[1]"), ("load_json", "1"), ("/name", "kept")])
    assert page.value("/name") == "kept"


def test_a_study_fixes_its_sites_and_gives_its_features(place: Place) -> None:
    study = {
        "name": "hearts",
        "purpose": PURPOSE,
        "sites": list(SITES),
        "features": [{"name": HOSTILE[:120]}, {"name": "age"}],
        "defaults": {"algorithm": "kfed", "config": {"n_clusters": 5}},
    }
    made = place.api.request("POST", "/v1/studies", "ada", json=study)
    assert made.status_code == 201, made.text
    page = place.form("?study=hearts")
    assert page.value("/config/n_clusters") == "5"
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
    place.post([("definition_json", text), ("load_json", "1")])
