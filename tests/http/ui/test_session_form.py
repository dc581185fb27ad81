"""The form that defines a session: read, filled, and turned into the API's body."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fedclust.client.session_request import inherit
from fedclust.definition import DefinitionError, canonical, freeze
from fedclust.definition.study import (
    SessionRequest,
    StudyCreate,
    StudyDefaults,
    StudyInfo,
    complete,
)
from fedclust.methods.common.options import variant_models
from fedclust.methods.registry import METHODS
from fedclust.wire.models import Definition, SessionCreate
from fedclust_service.domain.access import Refusal
from fedclust_service.http.bodies import parse
from fedclust_service.http.ui.schema_fields import option_fields
from fedclust_service.http.ui.session_form import MOST_ROWS, SessionForm
from support.definitions import session_body
from support.outcome_results import DECLARED as OUTCOMES
from support.purpose import PURPOSE

SITES = ("alpha", "beta", "gamma")
SITES_TEXT = ", ".join(SITES)
STUDY = StudyInfo(
    name="hearts",
    title="Hearts",
    purpose=PURPOSE,
    contact="",
    approval="",
    n_sessions=0,
    created_by="ada",
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    sites=SITES,
    features=({"name": "age", "upper": 120.0}, {"name": "chol"}),  # type: ignore[arg-type]
    defaults=StudyDefaults.model_validate_json(
        '{"algorithm": "kfed", "config": {"refine": 2}, "policy": {"quorum": 3}}'
    ),
)
READY = {"/name": "heart", "/purpose": PURPOSE, "/config/n_clusters": "3"}


def check(body: bytes) -> Definition:
    """Check a body as the API does, without a database."""
    request = parse(SessionRequest, body).root
    try:
        if request.study is not None:
            fields = {name: getattr(STUDY, name) for name in StudyCreate.model_fields}
            request = complete(StudyCreate.model_construct(**fields), request)
        return freeze(request, seed=1)
    except DefinitionError as error:
        raise Refusal("invalid", str(error), error.errors) from None


def form_of(texts: Mapping[str, str], study: StudyInfo | None = None) -> SessionForm:
    """Return the form in which somebody typed these texts."""
    return SessionForm("session", study, {**({} if study else {"/sites": SITES_TEXT}), **texts})


def row(number: int, **texts: str) -> dict[str, str]:
    return {f"/features/{number}/{name}": text for name, text in texts.items()}


# --- what it makes --------------------------------------------------------------------------------


def definitions() -> Iterator[dict[str, Any]]:
    """Yield definitions: of every variant of every method, and of all fields."""
    for name in METHODS:
        models = variant_models(METHODS[name].options)
        by = option_fields(METHODS[name], {})[0]
        for place in range(len(models)):
            variant = {} if len(models) == 1 else {by.name: by.choices[place]}
            yield {"algorithm": name, "config": {"n_clusters": 3, **variant}}
    yield {
        "title": "Hearts, of three hospitals",
        "contact": "Ada",
        "approval": "E-7",
        "expires": "2027-01-31T12:00:30Z",
        "algorithm": "lloyd",
        "config": {"n_clusters": [2, 3], "stability": 100, "evidence": True, "tol": 1e-4},
        "outcomes_k": "recommended",
        "seed": 5,
        "start": "manual",
        "policy": {"min_group_size": 10, "quorum": 3, "scaling": "bounds", "round_timeout_s": 60},
        "features": [
            {"name": "age", "unit": "years", "lower": 0, "upper": 99.5, "weight": 2},
            {"name": "crp", "lower": 0, "upper": 500, "transform": "log1p"},
            {"name": "died", "kind": "binary"},
            {"name": "bnp", "kind": "trajectory", "lower": 0, "upper": 9, "summary": ["first"]},
            {
                "name": "crea",
                "kind": "trajectory",
                "lower": 0.1,
                "upper": 20,
                "time_unit": "days",
                "grid": [0, 1.5, 3],
                "fill": "spline",
                "window": 2,
            },
            {"name": "pain", "kind": "categorical", "levels": ["no", "a, b", '"c"']},
            *(each.model_dump(mode="json", exclude_unset=True) for each in OUTCOMES),
        ],
    }
    yield {
        "algorithm": "lloyd",
        "config": {"n_clusters": 2, "start": "given", "centroids": [[0.0], [1.5]]},
        "policy": {"scaling": "none"},
    }


@pytest.mark.parametrize("given", list(definitions()), ids=lambda each: each["algorithm"])
def test_a_definition_fills_a_form_that_makes_the_same_definition(given: dict[str, Any]) -> None:
    whole = {"name": "heart", "purpose": PURPOSE, "sites": [*SITES]}
    whole["features"] = [{"name": "x", "lower": 0, "upper": 9}]
    frozen = freeze(SessionCreate.model_validate_json(json.dumps({**whole, **given})), 1)
    for body in (
        frozen.model_dump(mode="json"),
        inherit(frozen, {"seed": frozen.seed})[0],
        {**whole, **given},
    ):
        form = SessionForm().filled(body)
        assert form.notes == ()
        form, made = form.checked(check)
        assert (form.errors, form.general, dict(form.missing)) == ({}, (), {})
        assert canonical(made) == canonical(frozen)


def test_what_is_left_empty_is_not_in_the_body() -> None:
    age = row(0, name="age", lower="0", upper="99.5", kind="numeric")
    form = form_of({**READY, **age, **row(1, guess="5")})
    column = {"name": "age", "lower": 0, "upper": 99.5, "kind": "numeric"}
    assert form.body == session_body(column, config={"n_clusters": 3}, sites=list(SITES))
    assert json.loads(form.json) == form.body


def test_another_method_or_variant_keeps_what_was_typed_and_shows_its_own_defaults() -> None:
    texts = {**READY, "/config/tol": "0.5"}
    other = form_of({**texts, "/algorithm": "kfed"})
    assert other.body["config"] == {"n_clusters": 3}
    assert form_of(texts).body["config"] == {"n_clusters": 3, "tol": 0.5}
    paper = form_of({"/algorithm": "kfed", "/config/variant": "paper"})
    defaults = {paper.fields[at].name: paper.fields[at].default_text for at in paper.fields}
    assert [*map(defaults.get, ("projection", "labels", "n_init"))] == ["on", "cells", None]


def test_a_study_gives_what_the_form_leaves_alone() -> None:
    form = SessionForm("session", STUDY).filled({})
    assert (form.method, len(form.rows)) == ("kfed", 2)
    shown = {each.name: each.default_text for each in form.fields.values()}
    assert (shown["title"], shown["refine"], shown["quorum"]) == ("Hearts", "2", "3")
    texts = {**form.texts, "/name": "heart", "/config/n_clusters": "3"}
    form = form_of(texts, STUDY)
    assert form.body == {"name": "heart", "study": "hearts", "config": {"n_clusters": 3}}
    form, definition = form.checked(check)
    assert (form.errors, dict(form.missing)) == ({}, {})
    assert (definition.policy.quorum, definition.config["refine"]) == (3, 2)
    changed = form_of({**texts, "/policy/quorum": "null", "/config/refine": "0"}, STUDY)
    assert changed.body["policy"] == {"quorum": None}
    assert changed.body["config"] == {"n_clusters": 3, "refine": 0}
    fewer = {name: text for name, text in texts.items() if not name.startswith("/features/0/")}
    assert form_of(fewer, STUDY).body["features"] == [{"name": "chol"}]
    # The options of a study are those of its own method.
    assert form_of({"/algorithm": "fkm"}, STUDY).body["algorithm"] == "fkm"
    copied = SessionForm("session", STUDY).filled(inherit(definition, {"name": ""})[0])
    assert copied.body == {"study": "hearts", "config": {"n_clusters": 3}}


# --- messages -------------------------------------------------------------------------------------


def test_every_message_stands_at_its_input_and_nothing_typed_is_lost() -> None:
    table = row(1, name="age", lower="9", upper="3") | row(4, name="sex", kind="binary", lower="1")
    table |= row(5, name="pain", kind="categorical", levels="one")
    table |= row(6, name="stay", kind="ordered", edges="7, 3", role="outcome")
    table |= row(7, name="relapse", kind="time", role="outcome") | row(8, name="o", role="outcome")
    texts = {**READY, **table, "/name": "No Name", "/config/tol": "9", "/config/n_clusters": "x"}
    form, made = form_of(texts).checked(check)
    assert made is None
    assert set(form.errors) == {"/name", "/features/8/kind"}, "the API reads fields first"
    form, _ = form_of({**texts, "/features/8/kind": "binary", "/name": "no-name"}).checked(check)
    assert set(form.errors) == {
        *("/config/tol", "/config/n_clusters"),
        *("/features/1/lower", "/features/4/kind", "/features/5/levels", "/features/6/edges"),
        *("/features/7/edges", "/features/7/event"),
    }
    assert form.errors["/features/1/lower"] == ("lower must be below upper",)
    assert form.label("/features/4/kind") == "sex, kind"
    assert form.body["config"] == {"n_clusters": "x", "tol": 9}
    form, _ = form_of({**READY, **row(0, name="x"), "/sites": "Delta 4"}).checked(check)
    assert form.errors["/sites"][0].startswith("Delta 4: a name is")
    form, _ = form_of({**READY, **row(0, name="x"), "/policy/quorum": "9"}).checked(check)
    assert set(form.errors) == {"/policy/quorum"}
    form, _ = form_of({**READY, **row(0, unit="mm"), "/algorithm": "dual"}).checked(check)
    assert "/features/0/name" in form.errors


def test_a_row_that_cannot_be_read_hides_no_message_of_another_row() -> None:
    table = row(1, name="stay", role="outcome", lower="0")
    table |= row(10, name="crp", lower="0", upper="9", transform="log")
    form, _ = form_of({**READY, **table}).checked(check)
    assert form.errors["/features/1/kind"][0].startswith("a number is counted in ranges: choose")
    assert form.errors["/features/10/lower"] == ("log needs a lower bound above 0: log1p takes 0",)
    assert set(form.errors) == {"/features/1/kind", "/features/1/lower", "/features/10/lower"}


def test_a_trajectory_is_one_row_and_has_messages_of_its_own() -> None:
    crea = {**READY, **row(2, name="crea", kind="trajectory", grid="0, 1, 3", window="1")}
    form, made = form_of(crea).checked(check)
    assert (dict(form.errors), made is None) == ({}, False)
    form, _ = form_of({**crea, "/features/2/levels": "low, high"}).checked(check)
    message = "a column of this role and kind has none: leave it empty"
    assert form.errors == {"/features/2/levels": (message,)}
    form, _ = form_of({**crea, "/features/2/grid": "3, 1"}).checked(check)
    assert form.errors.keys() == {"/features/2/grid"}


def test_a_refusal_without_fields_stands_above_the_form() -> None:
    def refuse(slug: str) -> SessionForm:
        return form_of(READY).refused(Refusal(slug, "Try again."))

    assert refuse("unavailable").general == ("Try again.",)
    assert refuse("name-taken").errors["/name"] == ("Try again.",)


@pytest.mark.parametrize(
    ("name", "held"),
    [
        *((each, "identifiers") for each in ("id", "MRN", "patient_id", "caseId", "Patient")),
        *((each, "the names of persons") for each in ("name", "Last Name", "Nachname")),
        *((each, "dates of birth") for each in ("dob", "Date of birth", "geburtsdatum")),
        *((each, "addresses") for each in ("email", "phone", "zip_code")),
        *((each, "numbers of persons") for each in ("ssn", "insurance_no")),
        *((each, None) for each in ("age", "birth_weight", "hamming", "paid", "drug_name")),
    ],
)
def test_a_column_that_identifies_persons_is_refused(name: str, held: str | None) -> None:
    form, made = form_of({**READY, **row(3, name=name)}).checked(check)
    said = form.errors.get("/features/3/name", ("",))[0]
    assert (made is None) == (held is not None)
    assert (held or "") in said


def test_how_many_patients_a_site_needs() -> None:
    form = form_of({**READY, "/config/n_clusters": "2-4"})
    assert "With 3 sites, K = 4 and p = 5 you need at least 40 patients a site" in form.size
    assert form_of({**form.texts, "/patients": "39"}).size.endswith("39 are enough up to K = 3.")
    assert form_of({**form.texts, "/patients": "40"}).size.endswith("40 are enough.")
    # What sites gave comes first; what the analyst states is about the others.
    bands = {"a": "50-199", "b": "<50", "elsewhere": "<50"}
    texts = {**form.texts, "/patients": "39", "/sites": "a, b, c"}
    reported = replace(form_of(texts), bands=bands)
    assert reported.size.endswith(
        "By what sites gave in your completed sessions: enough at a (50-199); perhaps enough at b "
        "(<50). At the other sites, as you state, 39 are enough up to K = 3."
    )
    texts |= {"/sites": "a, b", "/policy/min_group_size": "10"}
    reported = replace(form_of(texts), bands=bands)
    assert reported.size.endswith("too few at b (<50); perhaps enough at a (50-199).")
    larger = form_of({**READY, "/policy/min_group_size": "11"}).size
    assert "K = 3 and p = 11 you need at least 66" in larger
    assert {form_of({"/config/n_clusters": text}).size for text in ("", "many", "-1")} == {""}


def test_guesses_are_of_their_outcome_and_stay_on_the_page() -> None:
    died = row(2, name="died", role="outcome", kind="binary", guess="12")
    age, other = row(0, name="age"), row(1, name="x", guess="150")
    form = form_of({**died, **age, **other, "/patients": "8"})
    assert (form.shares, form.patients) == ({"died": 0.12}, 8)
    assert all(word not in form.json for word in ("guess", "patients"))
    for text, share in (("5%", 0.05), ("0.5 %", 0.005), ("5", 0.05)):
        assert form_of({**died, "/features/2/guess": text}).shares == {"died": share}
    for text in ("5 percent", "0", "0 %", "0.5", "100", "many", "%"):
        form, _ = form_of({**died, "/features/2/guess": text}).checked(check)
        assert form.errors["/features/2/guess"] == ("write a percentage: 15 for .15, or 0.5 %",)


# --- anything -------------------------------------------------------------------------------------


def test_pasted_json_of_any_shape_gives_a_form() -> None:
    body = {"algorithm": "absent", "config": {"n_clusters": 2, "other": 1}, "what": 1, "sites": 3}
    features = ["age", 7, {"name": ["x"], "y": 1}]
    form = SessionForm().filled({**body, "features": features, "policy": []})
    assert form.notes == ("Not taken over: features/2/y, config/other, what.",)
    assert form.body["algorithm"] == "absent"
    assert [each["name"] for each in form.body["features"]] == ["age", '["x"]']
    for value in (None, 1, "x", [], {}, [[]], {"a": 1}, True, 1e308):
        strange = dict.fromkeys([*SessionCreate.model_fields, "x"], value)
        form, definition = SessionForm().filled(strange).checked(check)
        assert definition is None
        assert form.errors or form.missing


def test_a_form_holds_so_many_columns_however_many_are_given() -> None:
    form = SessionForm().filled({"features": [f"n{i}" for i in range(100_000)]})
    assert (len(form.rows), len(form.features)) == (MOST_ROWS + 1,) * 2
    assert form.refusals == {"/features": ("a form holds 500 columns: create it in a terminal",)}


def test_nothing_that_is_posted_raises() -> None:
    hostile = "<script>alert(1)</script>\x00\u05d0" + "x" * 200
    names = [*form_of({**row(0, name="x"), "/algorithm": "spectral"}).fields, "/", "/features/0/y"]
    for text in (hostile, "9" * 9_000, "[" * 9_000, '"', r'"\ud800"', "null"):
        form, definition = form_of(dict.fromkeys(names, text)).checked(check)
        assert definition is None
        assert form.errors or form.general


@pytest.mark.parametrize(
    ("at", "said", "typed"),
    [
        (
            "levels",
            "a categorical feature declares 2 to 64 levels, with commas between them: never, ",
            {"kind": "categorical", "levels": "never/former/current"},
        ),
        (
            "levels",
            "a categorical outcome declares 2 to 12 levels, with commas between them: each is ",
            {"kind": "categorical", "levels": "a/b", "role": "outcome"},
        ),
        (
            "levels",
            "only a categorical feature has levels: the unit says what 1 means, such as 1 = male",
            {"kind": "binary", "levels": "male, female"},
        ),
        ("levels", "only a categorical feature has levels", {"levels": "a, b"}),
        ("kind", "it should be 'numeric', 'binary', 'categorical' or 'trajectory'", {"kind": "x"}),
        ("lower", "log1p needs a lower bound above -1", {"transform": "log1p", "lower": "-1"}),
    ],
)
def test_a_message_says_what_to_write(at: str, said: str, typed: dict[str, str]) -> None:
    form, _ = form_of({**READY, **row(0, name="x", **typed)}).checked(check)
    (message,) = form.errors[f"/features/0/{at}"]
    assert message[: len(said)] == said
    assert said[-1] == " " or message == said, "nothing follows where nothing would help"


def test_a_wrong_text_has_its_message_at_its_own_input() -> None:
    wrong = {
        "/features/0/role": ("foo", "it should be 'feature' or 'outcome'"),
        "/features/0/edges": ("1, 2", "leave it empty"),
        "/config/n_clusters": ("0", "equal to 1"),
        "/patients": ("-1", "at least 1"),
    }
    for place, (text, said) in wrong.items():
        form, made = form_of({**READY, **row(0, name="age"), place: text}).checked(check)
        assert (made, said in form.errors[place][0]) == (None, True)
