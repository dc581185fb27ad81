"""The consent screen: one screen that a data manager reads in a minute."""

import dataclasses
import re
from datetime import UTC, datetime
from html import escape
from typing import Any

import pytest
import typer

from fedclust import rounds
from fedclust.cli.console import consent_screen
from fedclust.cli.main import app
from fedclust.data import Dataset
from fedclust.data.outcome_rows import Staying
from fedclust.data.table_figures import TableFigures
from fedclust.definition import freeze
from fedclust.result.session_terms import SessionTerms
from fedclust.schema.feature import Feature
from fedclust.site.allowance import Balance, Question
from fedclust.site.consent import ConsentRequest
from fedclust.site.data_terms import data_terms
from fedclust.site.review import review_page
from fedclust.wire.models import OperatorInfo
from support.definitions import session_request

FIGURES = TableFigures(
    n_persons=303,
    n_groups=51,
    p=5,
    group_sizes=(5, 9),
    distance_sd=0.32,
    one_value={f"x{j}": 0.01 * j for j in range(8)},
    unreleased=dict.fromkeys((f"x{j}" for j in range(8)), 0.0),
    steps={"x0": 0.2, "x1": 5.0},
    all_equal=(),
    coarse=(),
    units={"x0": "mmol/l", "x1": ""},
)
DATA = data_terms(
    Dataset(
        "data/cohort.csv",
        mapping={
            "missing": ["?"],
            "features": {
                "x0": {"column": "chol", "unit": "mmol/l", "to": "mg/dl", "factor": 38.67}
            },
        },
        sentinels={"x1": -9},
    ),
    [Feature(name=f"x{j}", unit="mg/dl") for j in range(8)],
    [f"x{j}" for j in range(7)],
    person="mrn",
)
DATA = dataclasses.replace(DATA, n_rows=310)

#: The analyst, and who runs the coordinator.
WHO = "ada", OperatorInfo(name="Heart registry, it@registry.example", retention_days=30)


def request(**changes: Any) -> ConsentRequest:
    features = [{"name": f"x{j}", "unit": "mg/dl", "lower": 0, "upper": 9} for j in range(8)]
    given: dict[str, Any] = {
        "name": "heart-2026",
        "title": "Types of coronary patients",
        "purpose": ("Which types of coronary patients do four hospitals share? " * 2).strip(),
        "contact": "Ada Lovelace, ada@example.org",
        "approval": "Ethics board of Zurich, 2026-17",
        "expires": "2027-01-01T00:00:00Z",
        "config": {"n_clusters": 4},
        "sites": ["budapest", "cleveland", "long-beach", "zurich"],
    }
    definition = freeze(session_request(*features, **{**given, **changes}), 7)
    rows = {"p": 5, "persons": 303, "groups_of": 5, "size_band": "200-999", "data": DATA}
    return ConsentRequest(
        coordinator="https://coordinator.example",
        site="zurich",
        analyst=WHO[0],
        operator=WHO[1],
        definition=definition,
        persons_declared=True,
        features=tuple(feature.name for feature in definition.features),
        figures=FIGURES,
        **rows,
    )


def shown(capsys: pytest.CaptureFixture[str], asked: ConsentRequest, *, full: bool = False) -> str:
    consent_screen(asked, full=full)
    return capsys.readouterr().err


def test_one_screen_says_who_asks_for_what_and_how_close_the_table_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = request()
    screen = shown(capsys, asked)
    assert len(screen.splitlines()) <= 30
    assert max(map(len, screen.splitlines())) <= 100
    said = " ".join(screen.split())
    for text in (
        *("Types of coronary patients", "do four hospitals share?", "ada@example.org"),
        *("2026-17", "2027-01-01", "budapest", asked.definition_sha256),
        *("51 groups of 5 to 9 persons.", "x7 7.0%, x6 6.0%, x5 5.0%"),
    ):
        assert text in said
    assert "Other sessions get" not in said


def test_the_commands_that_stop_a_session_are_complete() -> None:
    (stop, *_) = dict(request().sections())["afterwards"]
    commands = re.findall(r"fedclust (\w+) ([^,.]*)", stop)
    assert [name for name, _ in commands] == ["leave", "approve"]
    for name, arguments in commands:
        typer.main.get_command(app).commands[name].make_context(name, arguments.split())


def test_it_says_who_runs_the_coordinator_and_how_long_it_keeps_what_was_sent() -> None:
    asked = request()
    (said,) = dict(asked.sections())["operated by"]
    assert said.startswith("Heart registry, it@registry.example. ")
    assert "deletes what was sent 30 days after the session ends" in said
    page = review_page(asked, datetime(2026, 3, 1, tzinfo=UTC))
    assert f"<dt>operated by</dt><dd><p>{escape(said)}</p>" in page.split("Annex")[0]
    silent, flower, longer = (
        dataclasses.replace(asked, operator=operator)
        for operator in (
            OperatorInfo(retention_days=1),
            OperatorInfo(),
            WHO[1].model_copy(update={"retention_days": 90}),
        )
    )
    (said,) = dict(silent.sections())["operated by"]
    assert "has not said who they are" in said
    assert "1 day after the" in said
    assert "deleted" not in str(dict(flower.sections())["operated by"])
    # A definition in a file has no coordinator yet.
    assert "operated by" not in dict(dataclasses.replace(asked, coordinator="").sections())
    codes = {each.approval_code for each in (asked, silent, flower, longer)}
    assert len(codes) == 4, "an approval covers both"


def test_a_column_of_events_is_named_with_its_outcome() -> None:
    time = {"name": "days", "kind": "time", "role": "outcome", "edges": [1, 2, 3, 4]}
    asked = request(features=[{"name": "x0"}, {**time, "event": "death"}])
    said = dict(asked.sections())["read as"]
    assert said[-1] == "death: whether the event of days occurred"
    lacking = dataclasses.replace(asked, features=("x0",))
    assert dict(lacking.sections())["read as"] == said[:-1]


def test_every_field_is_behind_full_with_the_sessions_own_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = request()
    said = " ".join(shown(capsys, asked, full=True).split())
    for phase in rounds.possible_phases(asked.plan):
        for line in phase.discloses:
            assert line.meaning in said
            assert line.identifies in said
    assert "multiples of: x0 0.2 mmol/l, x1 5" in said
    assert f"{asked.plan.options.candidates} x 4 x 8" in said, "c x K x d"
    windows = {"algorithm": "overlap_oneshot", "policy": {"missing": "mask"}, "config": {}}
    assert "up to 1000 x 8" in " ".join(shown(capsys, request(**windows), full=True).split())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"policy": {"protection": "none"}},
        {"sites": ["geneva", "zurich"], "policy": {"min_sites": 2}},
        {"algorithm": "overlap_oneshot", "policy": {"missing": "mask"}, "config": {}},
    ],
)
def test_the_definition_alone_gives_all_lines_but_those_of_the_site(changes: Any) -> None:
    asked = request(**changes)
    terms = SessionTerms(asked.coordinator, asked.site, *WHO, asked.definition, 5)
    own = {line for heading, line in asked.text(full=True)}
    common = {line for heading, line in terms.text(full=True)}
    only_here = sorted(common - own)
    assert only_here[-1].startswith("zurich; only the site knows")
    stricter = (
        f"{terms.p} persons is the session's number. If your site has set a larger one, "
        "that applies, and the review at your site shows it."
    )
    shared = (
        "Similar persons share values: whoever knows that a person is in a group knows the values "
        "that all of it share. The review at your site says for how many persons this holds."
    )
    assert only_here[:-1] == ([] if asked.protection_none else [stricter, shared])
    told = " ".join(own - common)
    for text in ("303 persons", "missing", "Your table" if not asked.protection_none else ""):
        assert text in told
    by_heading = dict(terms.sections())
    assert set(dict(asked.sections())) - set(by_heading) == {"read as", "rounded to"}
    assert by_heading["purpose"] == (asked.definition.purpose,)
    assert by_heading["fields"][1].startswith("  ")


@pytest.mark.parametrize("several", [False, True])
def test_a_steward_signs_one_page_of_350_words(several: bool) -> None:
    config = {"n_clusters": [2, 3, 4], "stability": 100} if several else {"n_clusters": 4}
    asked = request(config=config, purpose="Which types of patients do four hospitals share?")
    asked = dataclasses.replace(asked, warnings=("a " * 60, "b"))
    page = review_page(asked, datetime(2026, 3, 1, tzinfo=UTC))
    body, annex = page.split("<body>")[1].split('<h1 class="annex">')
    assert "2 about these rows, in the annex" in body
    assert "a a a" in annex
    assert len(re.sub(r"<[^>]*>", " ", body).split()) <= 350
    for phase in asked.phases:
        for line in phase.discloses:
            assert line.meaning not in body


@pytest.mark.parametrize(("persons", "said"), [(0.79, True), (0.8, False)])
def test_the_text_says_if_few_persons_stay(persons: float, said: bool) -> None:
    asked = dataclasses.replace(request(), staying=Staying(groups=0.5, persons=persons))
    text = f"50.0% of the groups stay, with {persons:.1%} of the persons; ask the analyst"
    assert any(text in note for note in asked.notes) is said
    exact = request(policy={"protection": "none"})
    asked = dataclasses.replace(exact, staying=Staying(groups=0.5, persons=persons))
    assert not any("stay" in note for note in asked.notes)


def test_the_text_notes_what_the_table_hides_and_that_a_larger_p_holds_here_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hidden = dataclasses.replace(FIGURES, all_equal=("x2",), coarse=("x1",))
    said = " ".join(shown(capsys, dataclasses.replace(request(), figures=hidden)).split())
    assert "All records are equal in x2" in said
    assert "x1: rounded to more than half of the standard deviation of the records." in said
    assert "Wait for 15 persons" not in said
    few = dataclasses.replace(hidden, n_persons=14)
    said = " ".join(shown(capsys, dataclasses.replace(request(), figures=few)).split())
    assert "Wait for 15 persons, or subtract the usual value first." in said
    said = " ".join(shown(capsys, dataclasses.replace(request(), p=12)).split())
    assert "at least 12 persons. Other sessions get records of groups of at least" in said


def test_it_names_no_phase_that_cannot_happen(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"n_clusters": 2, "start": "given", "centroids": [[0.0] * 8, [1.0] * 8]}
    asked = request(algorithm="lloyd", config={**given, "evaluate": False})
    assert [phase.name for phase in asked.phases] == ["prepare", "lloyd"]
    asked = request(algorithm="lloyd", config=given, policy={"scaling": "none", "missing": "drop"})
    assert [phase.name for phase in asked.phases] == ["lloyd", "evidence"]
    assert "cells:" not in shown(capsys, asked)


def test_the_text_warns_if_there_is_no_protection(capsys: pytest.CaptureFixture[str]) -> None:
    asked = request(policy={"protection": "none"})
    said = " ".join(shown(capsys, asked).split())
    assert "The coordinator can compute single records from what you send" in said
    assert "groups of at least" not in said
    assert "numbers computed from exact rows" in said


def test_a_request_shows_itself_on_one_screen_and_as_a_table() -> None:
    names = [{"name": f"x{j}", "unit": "<b>"} for j in range(300)]
    asked = request(features=names, purpose="A & B: <i>which</i> patients do we share?")
    lines = repr(asked).splitlines()

    assert len(lines) <= 20
    assert max(map(len, lines)) <= 100
    assert lines[0] == "ConsentRequest of session heart-2026"
    page = asked._repr_html_()
    assert "A &amp; B: &lt;i&gt;which&lt;/i&gt;" in page
    assert "<b>" not in page
    assert escape(asked.promise) in page


def test_what_joining_tells_of_the_table_is_said() -> None:
    said = "The operator may learn every group's record"
    asked = request()
    other = SessionTerms(asked.coordinator, "zurich", *WHO, asked.definition, 5)
    for terms in (asked, other):
        assert any(said in note for note in terms.notes)
    exact = request(policy={"protection": "none"})
    assert not any(said in note for note in exact.notes)


# --- points for outcomes --------------------------------------------------------------------------

OUTCOMES = [
    {"name": "x0"},
    {"name": "died", "kind": "binary", "role": "outcome"},
    {"name": "readmitted", "kind": "binary", "role": "outcome"},
]


def asking(
    outcomes: dict[str, int], *, limit: int = 100, left: int = 70, **changes: Any
) -> ConsentRequest:
    """Return a request that asks for outcomes at so many points each."""
    question = Question(
        "https://coordinator.example", "zurich", "heart-2026", "0" * 64, outcomes, tuple(outcomes)
    )
    balance = Balance(limit, left, question.points <= left)
    asked = request(features=OUTCOMES)
    return dataclasses.replace(asked, question=question, balance=balance, **changes)


def points_said(asked: ConsentRequest) -> str:
    return " ".join(dict(asked.sections()).get("points", ()))


OF_FEW_SITES = "even if fewer than 3 sites have the outcome and the result omits it."


def test_the_text_says_what_an_outcome_costs_and_teaches() -> None:
    said = points_said(asking({"died": 10}))
    for text in (
        OF_FEW_SITES,
        "Counts of died by final cluster",
        "(standard deviation 5 persons). Uses 10 of your 100 points; 30 were used before, 60",
        "56 times from this question, 61 with those before, and 67 once all",
        "(fedclust allowance raise), and make the 67 larger.",
    ):
        assert text in said


def test_the_text_has_the_sessions_own_numbers_for_several_outcomes() -> None:
    asked = asking({"died": 10, "readmitted": 50}, limit=150, left=150, also_features=("died",))
    said = points_said(asked)
    for text in (
        "Counts of died, readmitted by final cluster",
        "(standard deviation 5, 2.2 persons). Uses 60 of your 150 points; 0 were used before",
        "64 times from these questions, and 71 once all",
        "died: this column is also a feature, so the 71 of 100 does not hold for it.",
    ):
        assert text in said


def test_the_text_says_if_points_are_short() -> None:
    said = points_said(asking({"died": 10}, left=5))
    assert said.startswith("Points short: died would use 10 points, and 5 of 100 are left.")
    assert "Uses" not in said
    assert OF_FEW_SITES not in said


def test_the_text_says_that_exact_counts_end_the_promise() -> None:
    asked = request(features=OUTCOMES, policy={"protection": "none"})
    said = points_said(asked)
    assert said.startswith("died, readmitted: counted exactly. Exact counts end the promise")
    assert points_said(request(policy={"protection": "none"})) == ""


def test_an_approval_covers_the_points_and_not_what_is_left() -> None:
    few, many = asking({"died": 10}), asking({"died": 50})
    assert few.approval_code != many.approval_code
    assert few.approval_code == asking({"died": 10}, left=20).approval_code
    assert few.approval_code != asking({"died": 10}, left=5).approval_code
    assert request().terms["points"] is None
    exact = request(features=OUTCOMES, policy={"protection": "none"})
    assert exact.terms["exact_outcomes"] is True


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (asking({"died": 10}), ("points for outcomes", "Uses 10 of your 100 points")),
        (asking({"died": 10}, left=5), ("too few points", "This site answers no outcomes")),
        (
            request(features=OUTCOMES, policy={"protection": "none"}),
            ("They are counted exactly, which ends the promise",),
        ),
    ],
)
def test_the_page_to_sign_says_the_same(asked: ConsentRequest, said: tuple[str, ...]) -> None:
    page = review_page(asked, datetime(2026, 3, 1, tzinfo=UTC))
    for text in said:
        assert text in page
    assert "Each table of persons has one lasting stock of points" in page
