"""The form that creates a session: read, filled, changed, and turned into the API's body."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fedclust.client.session_request import inherit
from fedclust.definition import DefinitionError, canonical, freeze
from fedclust.methods.common.options import variant_models
from fedclust.methods.registry import METHODS
from fedclust.study import SessionRequest, StudyCreate, StudyDefaults, StudyInfo, complete
from fedclust.wire.models import Definition, SessionCreate
from fedclust_service.domain.refusal import Refusal
from fedclust_service.http.bodies import parse
from fedclust_service.http.ui.form_field import SHOWN
from fedclust_service.http.ui.session_form import MOST_ROWS, SessionForm
from fedclust_service.http.ui.session_form_sources import form_of, new_form, read_form
from support.purpose import PURPOSE

SITES = ("alpha", "beta", "gamma")
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


def typed(form: SessionForm, **more: str) -> list[tuple[str, str]]:
    """Return what a browser posts: every input that the form shows."""
    shown = [*form.about, *form.shown_options, *form.running, *form.counting]
    shown += [*form.policy.fields, *(each for row in form.all_rows for each in row.fields)]
    texts = {each.pointer: form.text(each) for each in shown}
    texts |= {"/" + name.replace("__", "/"): text for name, text in more.items()}
    posted = [("shown_method", form.method), ("/algorithm", form.method), *texts.items()]
    posted += [*form.hidden, *(("study_feature", name) for name in form.taken)]
    return posted + ([] if form.study else [("/sites", site) for site in SITES])


def variants() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in sorted(METHODS):
        models = variant_models(METHODS[name].options)
        for model in models:
            field = new_form(name).options.chooser
            yield (
                name,
                {} if field is None else {field.name: field.choices[list(models).index(model)]},
            )


@pytest.mark.parametrize(("method", "variant"), list(variants()))
def test_a_form_of_defaults_is_the_shortest_definition_with_the_same_hash(
    method: str, variant: dict[str, str]
) -> None:
    chosen = {f"config__{name}": text for name, text in variant.items()}
    form = read_form(typed(new_form(method), **chosen), None)
    feature = {"features__0__name": "age", "features__0__lower": "0", "features__0__upper": "99.5"}
    filled = {"name": "heart", "purpose": PURPOSE, "config__n_clusters": "3", **feature}
    form = read_form(typed(form, **filled), None)
    form, definition = form.checked(check)
    assert (form.errors, form.general) == ({}, ())
    first = new_form(method).options.chooser
    left_out = first is not None and variant == {first.name: first.choices[0]}
    short = {
        "name": "heart",
        "purpose": PURPOSE,
        "algorithm": method,
        "config": {"n_clusters": 3} if left_out else {**variant, "n_clusters": 3},
        "features": [{"name": "age", "lower": 0, "upper": 99.5}],
        "sites": list(SITES),
    }
    assert form.body == short
    wanted = freeze(SessionCreate.model_validate_json(json.dumps(short)), seed=1)
    assert definition is not None
    assert canonical(definition) == canonical(wanted)
    # The definition fills a form that makes the same one.
    again = form_of(json.loads(canonical(definition)), None)
    assert (again.body["config"], again.notes) == (short["config"], ())
    assert canonical(check(again.json.encode())) == canonical(wanted)


def test_the_messages_of_the_api_stand_at_their_inputs() -> None:
    form = new_form("fkm").add_row({"name": "age", "lower": "9", "upper": "3"}).add_row()
    form = form.add_row({"name": "sex", "kind": "binary", "transform": "log"})
    posted = typed(form, name="No Name", purpose=PURPOSE, config__n_clusters="x")
    form, _ = read_form(posted, None).checked(check)
    assert {"/name", "/config/n_clusters", "/features/1/lower"} <= set(form.errors)
    assert form.wrong("/name")[0].startswith("a name is a-z, 0-9 and hyphens")
    posted = typed(form, name="heart", purpose="Short.", policy__quorum="9", config__tol="9")
    form, _ = read_form(posted, None).checked(check)
    assert set(form.errors) == {
        *("/purpose", "/policy/quorum", "/features/1/lower", "/features/3/transform"),
        *("/config/n_clusters", "/config/tol"),
    }
    assert form.wrong("/features/1/lower") == ("lower must be below upper",)
    labels = {label for _, label, _ in form.summary}
    assert {"Feature age", "Feature sex"} <= labels, "numbers of rows have gaps"
    assert form.body["config"]["n_clusters"] == "x", "what was typed is not lost"
    empty, _ = new_form("fkm").checked(check)
    needed = {"/name", "/purpose", "/config/n_clusters", "/features", "/sites"}
    assert set(empty.errors) == needed
    assert [label for _, label, _ in empty.summary] == list(empty.open), "in the page's order"
    early, _ = read_form(typed(new_form("fkm"), config__n_clusters="two"), None).checked(check)
    assert early.while_typing().wrong("/config/n_clusters") == ("it should be a whole number",)
    assert set(early.errors) == {"/name", "/purpose", "/config/n_clusters", "/features"}
    one = typed(new_form("fkm").add_row({"name": "age"}), name="heart", purpose=PURPOSE)
    one = [each for each in one if each not in [("/sites", site) for site in SITES[1:]]]
    alone, _ = read_form(one, None).checked(check)
    assert set(alone.errors) == {"/config/n_clusters", "/sites"}
    assert alone.wrong("/sites")[0].endswith("than it needs (3): name more")
    assert empty.while_typing().errors == {}
    assert empty.open == ("Name", "Purpose", "Number of clusters", "Features", "Sites")
    assert empty.wrong("/features") == ("add at least one feature",)
    assert empty.wrong("/sites") == ("invite at least one site",)
    unknown = [*typed(new_form("fkm")), ("/sites", "Delta 4")]
    form, _ = read_form(unknown, None).checked(check)
    assert form.wrong("/sites")[0].startswith("Delta 4: a name is")


def test_a_refusal_without_fields_stands_above_the_form() -> None:
    def refuse(_body: bytes) -> Definition:
        raise Refusal("unavailable", "Try again.")

    def taken(_body: bytes) -> Definition:
        raise Refusal("name-taken", "Choose another name.")

    assert new_form("fkm").checked(refuse)[0].general == ("Try again.",)
    assert new_form("fkm").checked(taken)[0].wrong("/name") == ("Choose another name.",)


def test_another_method_keeps_what_was_typed_and_shows_its_own_defaults() -> None:
    form = read_form(typed(new_form("fkm"), config__n_clusters="4", config__tol="0.5"), None)
    posted = [each for each in typed(form) if each[0] != "/algorithm"] + [("/algorithm", "kfed")]
    other = read_form(posted, None)
    assert other.method == "kfed"
    assert other.body["config"] == {"n_clusters": 4}
    assert ("/config/tol", "0.5") in other.hidden
    back = [each for each in typed(other) if each[0] != "/algorithm"] + [("/algorithm", "fkm")]
    assert read_form(back, None).body["config"] == {"n_clusters": 4, "tol": 0.5}
    assert read_form([("/algorithm", "absent")], None).method == "fkm"


def test_another_variant_shows_its_own_defaults() -> None:
    form = new_form("kfed")
    assert (SHOWN + "/config/variant", "default") in form.hidden
    paper = read_form(typed(form, config__variant="paper"), None)
    texts = {each.name: paper.text(each) for each in paper.shown_options}
    assert (texts["projection"], texts["labels"]) == ("on", "cells")
    assert "n_init" not in texts


def test_rows_of_features_come_and_go() -> None:
    form = new_form("fkm").add_names('\ufeff\n"age";sex;"blood; pressure";age\n1;2;3\n')
    assert [each["name"] for each in form.body["features"]] == ["age", "sex", "blood; pressure"]
    form = form.remove_row(form.rows["/features"][1]).add_names("age,chol")
    assert [each["name"] for each in form.body["features"]] == ["age", "blood; pressure", "chol"]
    again = read_form(typed(form), None)
    assert again.body["features"] == form.body["features"]
    full = form.add_names(",".join(f"x{n}" for n in range(MOST_ROWS + 5)))
    assert len(full.rows["/features"]) == MOST_ROWS
    assert len(full.notes) == 1


def test_a_form_holds_so_many_features_however_many_are_given() -> None:
    names = [f"n{i}" for i in range(100_000)]
    for form in (
        new_form("lloyd").add_names(",".join(names)),
        form_of({"features": names}, None),
    ):
        assert len(form.rows["/features"]) == MOST_ROWS
        assert len(form.notes) == 1
        assert [each["name"] for each in form.body["features"]] == names[:MOST_ROWS]


def test_a_study_gives_what_the_form_leaves_alone() -> None:
    form = new_form(None, STUDY)
    assert (form.method, form.taken, form.rows) == ("kfed", ("feature:age", "feature:chol"), {})
    shown = {each.name: form.text(each) for each in (*form.about, *form.shown_options)}
    assert (shown["title"], shown["refine"]) == ("Hearts", "2")
    form = read_form(typed(form, name="heart", config__n_clusters="3"), STUDY)
    assert form.body == {"name": "heart", "study": "hearts", "config": {"n_clusters": 3}}
    definition = check(form.json.encode())
    assert definition.policy.quorum == 3
    assert definition.config["refine"] == 2
    cleared = read_form(typed(form, title="", policy__quorum="", config__refine="0"), STUDY)
    assert cleared.body["title"] == ""
    assert cleared.body["policy"] == {"quorum": None}
    assert cleared.body["config"] == {"refine": 0, "n_clusters": 3}
    fewer = [each for each in typed(form) if each != ("study_feature", "feature:age")]
    assert read_form(fewer, STUDY).body["features"] == [{"name": "chol"}]
    # The options of a study are those of its own method.
    other = read_form([("/algorithm", "fkm"), ("/config/n_clusters", "2")], STUDY)
    assert other.body["algorithm"] == "fkm"
    copied = form_of(inherit(definition, {"name": ""})[0], STUDY)
    assert copied.body == {"study": "hearts", "config": {"n_clusters": 3}}


def test_pasted_json_of_any_shape_gives_a_form() -> None:
    body = {"algorithm": "absent", "config": {"n_clusters": 2, "other": 1}, "what": 1, "sites": 3}
    form = form_of({**body, "features": ["age", 7, {"name": ["x"]}], "policy": []}, None)
    assert form.notes == (
        "This coordinator does not have the method of the definition.",
        "Not taken over: what, config.other.",
    )
    assert [each["name"] for each in form.body["features"]] == ["age", '["x"]']
    for value in (None, 1, "x", [], {}, [[]], {"a": 1}, True, 1e308):
        strange = dict.fromkeys([*SessionCreate.model_fields, "x"], value)
        form, definition = form_of(strange, None).checked(check)
        assert definition is None
        assert form.errors


def test_nothing_that_is_posted_raises() -> None:
    hostile = "<script>alert(1)</script>\x00\u05d0\ud800" + "x" * 200
    names = [name for name, _ in typed(new_form("spectral").add_row())]
    for text in (hostile, "9" * 9_000, "[" * 9_000, "", '"'):
        posted = [(name, text) for name in [*names, "/features/999999/name", "/features/x/y", "/"]]
        form, definition = read_form(posted, None).checked(check)
        assert definition is None
        assert form.errors or form.general


OUTCOMES: list[dict[str, Any]] = [
    {"name": "died", "kind": "binary", "role": "outcome"},
    {"name": "ward", "kind": "categorical", "levels": ["icu", "home"], "role": "outcome"},
    {
        "name": "stay",
        "kind": "ordered",
        "unit": "days",
        "edges": [3, 7.5],
        "values": [1.5, 5, 10],
        "points": 50,
        "role": "outcome",
    },
    {
        "name": "relapse",
        "kind": "time",
        "edges": [6, 12, 24, 36],
        "event": "relapsed",
        "role": "outcome",
    },
]


def test_a_form_makes_outcomes_of_every_kind_and_shows_them_again() -> None:
    body = {
        "name": "heart",
        "purpose": PURPOSE,
        "algorithm": "fkm",
        "config": {"n_clusters": [2, 3]},
        "outcomes_k": 3,
        "features": [{"name": "age"}, {"name": "died", "kind": "binary"}, *OUTCOMES],
        "sites": list(SITES),
    }
    form = form_of(body, None)
    assert ([*map(len, form.rows.values())], form.notes) == ([2, 4], ())
    form, definition = read_form(typed(form), None).checked(check)
    assert (form.errors, form.general) == ({}, ())
    assert definition is not None
    wanted = freeze(SessionCreate.model_validate_json(json.dumps(body)), seed=1)
    assert canonical(definition) == canonical(wanted)
    # From the session, as somebody copies it.
    again = form_of(inherit(definition, {"name": "heart"})[0], None)
    assert canonical(check(again.json.encode())) == canonical(wanted)
    recommended = read_form(typed(again, outcomes_k="recommended"), None)
    assert recommended.body["outcomes_k"] == "recommended"


def test_the_messages_about_an_outcome_stand_at_its_inputs() -> None:
    form = new_form("fkm").add_row({"name": "age"})
    form = form.add_row({"name": "stay", "kind": "ordered", "edges": "7, 3"}, table="/outcomes")
    form = form.add_row({"name": "relapse", "kind": "time"}, table="/outcomes")
    posted = typed(form, name="heart", purpose=PURPOSE, config__n_clusters="2, 3")
    form, _ = read_form(posted, None).checked(check)
    assert set(form.errors) == {
        *("/outcomes/0/edges", "/outcomes/1/edges", "/outcomes/1/event"),
    }
    assert ("f-outcomes-1-event", "Outcome relapse") in [each[:2] for each in form.summary]
    form = read_form([*posted, ("/outcomes_k", "4")], None)
    form = form.remove_row(0, table="/outcomes").remove_row(1, table="/outcomes")
    form = form.add_row({"name": "died", "kind": "binary"}, table="/outcomes")
    assert set(form.checked(check)[0].errors) == {"/outcomes_k"}


def test_rows_of_outcomes_are_removed_with_their_guess() -> None:
    form = new_form("fkm").add_row({"name": "died", "kind": "binary"}, table="/outcomes")
    guessed = {"/guess/outcomes/0": "12 %", "/guess/persons": "800"}
    form = replace(form, texts={**form.texts, **guessed})
    assert (form.guessed_shares, form.guessed_persons) == ({"died": 0.12}, 800)
    assert "guess" not in form.json
    form = form.remove_row(0, table="/outcomes").add_row(table="/outcomes")
    assert (form.rows["/outcomes"], form.guessed_shares) == ((0,), {})
    for text in ("", "many", "0", "150", "-3"):
        assert replace(form, texts={"/guess/outcomes/0": text}).guessed_shares == {}
        assert replace(form, texts={"/guess/persons": "-1"}).guessed_persons is None


def test_a_study_gives_a_column_as_feature_and_as_outcome() -> None:
    both = ({"name": "died", "kind": "binary"}, OUTCOMES[0])
    body = {**STUDY.model_dump(mode="json"), "features": both}
    study = StudyInfo.model_validate_json(json.dumps(body))
    form = new_form(None, study)
    assert form.taken == ("feature:died", "outcome:died")
    assert "features" not in form.body
    fewer = replace(form, taken=("feature:died",))
    assert fewer.body["features"] == [{"name": "died", "kind": "binary"}]
    shown = form_of({"features": [OUTCOMES[0]]}, study)
    assert (shown.taken, shown.numbers("/outcomes")) == (("outcome:died",), ())
