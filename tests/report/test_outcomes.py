"""What page, terminal, file and figures say of outcomes: one set of words and rows."""

import json
import re
from dataclasses import replace
from html import escape
from typing import Any

import pytest

from fedclust.cli.result_output import show_outcomes
from fedclust.result.facts import Facts
from fedclust.result.figures.plots import Plots
from fedclust.result.first_screen import answer, html_first_screen
from fedclust.result.outcomes import (
    CANNOT_TELL,
    cluster_lines,
    difference_text,
    estimate_text,
    headed,
    noise_notes,
    outcome_sentences,
    p_text,
    range_text,
)
from fedclust.result.overview import frame, html_overview, text_overview
from fedclust.result.page import html, sections
from fedclust.result.table_one import table_one
from fedclust.result.tables import csv_text, json_text
from fedclust.schema.feature import Outcome
from fedclust.schema.outcomes import Estimate, Outcomes
from fedclust.wire.errors import UsageError
from support.outcome_results import (
    AT_LEAST,
    AT_MOST,
    CLOSED,
    DECLARED,
    DIED,
    RELAPSE,
    STAY,
    UNKNOWN,
    WARD,
    outcome_facts,
    outcome_result,
)


@pytest.fixture(scope="module")
def facts() -> Facts:
    return outcome_facts(n_clusters=5)


def section(facts: Facts, key: str = "outcomes") -> str:
    found = {each.key: each.html for each in sections(facts)}
    return found.get(key, "")


def changed(facts: Facts, **changes: Any) -> Facts:
    """Return the same with other fields of its outcomes."""
    outcomes = facts.result.outcomes.model_copy(update=changes)
    return replace(facts, result=facts.result.model_copy(update={"outcomes": outcomes}))


@pytest.mark.parametrize(
    ("found", "said", "per_cent"),
    [
        (None, "–", "–"),
        (CLOSED, "2.31 (1.4 to 3.8)", "231.0 % (140.0 to 380.0)"),
        (AT_LEAST, "at least 2.3", "at least 230.0 %"),
        (AT_MOST, "at most 0.8", "at most 80.0 %"),
        (UNKNOWN, CANNOT_TELL, CANNOT_TELL),
        (Estimate(value=1.0, lower=None, upper=None), CANNOT_TELL, CANNOT_TELL),
        (Estimate(value=None, lower=0.5, upper=2.0), "0.5 to 2", "50.0 to 200.0 %"),
    ],
)
def test_an_open_interval_is_said_in_words(
    found: Estimate | None, said: str, per_cent: str
) -> None:
    assert estimate_text(found) == said
    assert estimate_text(found, percent=True) == per_cent


def test_what_noise_takes_beyond_0_and_1_is_shown_within() -> None:
    found = Estimate(value=-0.02, lower=-0.1, upper=1.02)
    assert estimate_text(found, percent=True, within=True) == "0.0 % (0.0 to 100.0)"
    assert estimate_text(found) == "-0.02 (-0.1 to 1.02)"
    assert [p_text(p) for p in (None, 0.0004, 0.0321)] == ["–", "< .001", "0.032"]


def test_a_cluster_has_the_same_lines_as_every_other() -> None:
    found = outcome_result(STAY, 2)
    first, second = found.clusters
    without = first.model_copy(update={"median": None})
    assert [line.what for line in cluster_lines(found, without)] == [
        *(*STAY.cells[:-1], "median", "mean")
    ]
    assert len(cluster_lines(found, without)) == len(cluster_lines(found, second))
    in_words = [line.text for line in cluster_lines(found, second) if line.what == "median"]
    assert in_words == [f"{estimate_text(second.median)}, within 7 to below 14"]
    # An open cell is named if it holds the median for sure.
    first_cell, last_cell = STAY.cells[0], STAY.cells[-2]
    for most, least, said in (
        (0, 0.51, first_cell),
        (0, 0.49, CANNOT_TELL),
        (-1, 0.51, last_cell),
        (-1, 0.49, CANNOT_TELL),
    ):
        told = [Estimate(value=0.1, lower=0.0, upper=0.2)] * 4
        told[most] = Estimate(value=0.6, lower=least, upper=0.7)
        lines = cluster_lines(found, without.model_copy(update={"shares": tuple(told)}))
        assert [line.text for line in lines if line.what == "median"] == [said]
    survival = outcome_result(RELAPSE, 1)
    named = [line.what for line in cluster_lines(survival, survival.clusters[0])]
    assert named == ["S(6)", "S(12)", "S(24)", "S(36)", "restricted mean"]


def test_the_section_says_what_readers_have_to_know(facts: Facts) -> None:
    shown = section(facts)
    for words in (
        "The counts come from the rows of each site. Cluster sizes come from groups",
        "standard deviation of 5.<",
        "standard deviation of 2.24.<",
        "compared with cluster 0, the largest one",
        "It does not mean that the clusters are equal.",
        "<td>at least 2.3</td>",
        "<td>at most 0.8</td>",
        f"<td>{CANNOT_TELL}</td>",
        "stay [days]",
    ):
        assert words in shown
    assert "12.3 % (10.0 to 20.0)" in section(facts, "clusters")
    # Every outcome has a forest plot, the first one on the first screen, and the time to event has
    # its curves before its table.
    assert shown.count("<svg") == len(DECLARED)
    assert "died: odds ratio" not in shown
    assert "died: odds ratio" in html_first_screen(facts)
    relapse = shown[shown.index("relapse [months]") :]
    assert relapse.index("at risk") < relapse.index("<table")


def test_the_page_says_once_how_outcomes_were_counted_and_how_clear_the_clusters_are(
    facts: Facts,
) -> None:
    said = "Do not report clusters as a finding."
    facts = replace(facts, result=facts.result.model_copy(update={"recommendation": said}))
    page, notes = html(facts), noise_notes(facts.result.outcomes)
    assert len(notes) < len(DECLARED)
    for note in (*notes, said):
        assert note in table_one(facts).footnotes
        assert page.count(f"<p>{escape(note)}</p>") == 1
    assert "S(t) of relapse: the share without relapsed after t." in table_one(facts).footnotes
    assert "difference of shares in percentage points" in page


def test_names_are_escaped_in_text_and_figures() -> None:
    hostile = DIED.model_copy(update={"name": "<died>"})
    shown = section(outcome_facts((hostile,)))
    assert "&lt;died&gt;" in shown
    assert "<died>" not in shown


def test_exact_counts_have_no_words_about_noise() -> None:
    results = (outcome_result(DIED, 2, exact=True),)
    shown = section(changed(outcome_facts((DIED,), 2), results=results))
    assert "The counts are exact." in shown
    assert "noise hides" not in shown


def test_sites_that_gave_no_outcome_are_named(
    facts: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    short = changed(facts, silent=("b",))
    said = "Not counted: the persons of b, without a column of an outcome or points for it."
    assert said in section(short)
    outcomes = short.result.outcomes
    show_outcomes(outcomes, short.labels)
    assert said in capsys.readouterr().out
    assert said in section(short, "methods")
    # Another site sees itself alone.
    own = outcomes.of_sites(frozenset({"a"}))
    assert "Not counted" not in section(changed(facts, **dict(own)))
    assert said in section(changed(facts, results=(), silent=("b",)))


def test_the_result_says_how_many_sites_gave_an_outcome(
    facts: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = facts.result.outcomes
    first, *rest = outcomes.results
    n = first.n_sites
    assert n == len(first.tables) > 1
    assert f"Given by {n} sites. Each count" in section(facts)
    # A site sees its own table alone, and all the same how many gave one.
    seen = outcomes.of_sites(frozenset({"a"}))
    assert f"Given by {n} sites. Each count" in section(changed(facts, **dict(seen)))
    alone = first.model_copy(update={"n_sites": n - 1})
    said = f"Counted at fewer sites: {first.name} at {n - 1} of these {n} sites."
    assert said in section(changed(facts, results=(alone, *rest)), "methods")
    fewer = changed(facts, results=tuple(rest), withheld=(first.name,))
    said = f"Not shown: {first.name}, given by fewer sites than needed."
    assert said in section(fewer)
    assert f"{first.name}: " not in section(fewer)
    assert said in section(fewer, "methods")
    show_outcomes(fewer.result.outcomes, fewer.labels)
    assert said in capsys.readouterr().out


def test_outcomes_stand_at_one_number_of_clusters(facts: Facts) -> None:
    asked = facts.definition.model_copy(update={"outcomes_k": 5, "config": {"n_clusters": [3, 5]}})
    here = replace(facts, definition=asked)
    assert outcome_sentences(here)[0] == "Outcomes were counted at K = 5."
    elsewhere = replace(here, result=facts.result.model_copy(update={"outcomes": None}))
    assert section(elsewhere) == "<p>Outcomes were counted at K = 5.</p>"
    with pytest.raises(UsageError, match="Outcomes were counted at K = 5"):
        frame(elsewhere, "outcomes")
    recommended = asked.model_copy(update={"outcomes_k": "recommended"})
    assert "at the recommended K only" in section(replace(elsewhere, definition=recommended))


def test_a_session_without_outcomes_has_no_section(facts: Facts) -> None:
    features = tuple(each for each in facts.definition.features if each.role == "feature")
    plain = replace(
        facts,
        result=facts.result.model_copy(update={"outcomes": None}),
        definition=facts.definition.model_copy(update={"features": features}),
    )
    assert section(plain) == ""
    assert outcome_sentences(plain) == ()
    with pytest.raises(UsageError, match="no outcomes"):
        frame(plain, "outcomes")
    with pytest.raises(UsageError, match="no outcome to draw"):
        Plots(plain).forest()


def test_programs_get_tables_and_sigma(facts: Facts) -> None:
    written = json.loads(json_text(facts))["outcomes"]
    assert written == facts.result.outcomes.model_dump(mode="json")
    counts = frame(facts, "outcome_counts")
    found = facts.result.outcomes.results[0]
    mine = counts[(counts.outcome == "died") & (counts.site == "a")]
    assert mine["count"].tolist() == found.tables["a"].ravel().tolist()
    assert set(mine.sigma) == {5.0}
    assert set(mine.cluster) == {0, 1, 2, 3, 4, "none"}
    estimates = frame(facts, "outcomes")
    odds = estimates[(estimates.outcome == "died") & (estimates.what == "odds_ratio")]
    assert odds[odds.site == "all sites"].lower.notna().tolist() == [True, True, False, False]
    assert odds[odds.site == "a"].value.tolist() == [2.31]
    table = csv_text(facts).splitlines()
    assert any(re.match(r"0,100,died: yes,died,yes,outcome,,,0.123,", line) for line in table)


def test_overviews_hold_the_share_with_its_interval(facts: Facts) -> None:
    shown = html_overview(facts)
    assert "died: <b>22.3 % (10.0 to 30.0)" in shown
    assert all(escape(cell) in shown for row in table_one(facts).rows for cell in row)
    assert "outcomes: died, ward, stay, relapse; counted in rows" in text_overview(facts)


def test_the_summary_says_from_which_to_which_cluster_an_outcome_goes(facts: Facts) -> None:
    outcomes = facts.result.outcomes
    for found in outcomes.results:
        line = range_text(found, facts.cluster_names, "death")
        shares = [[x for x in cluster_lines(found, own) if x.is_share] for own in found.clusters]
        least, greatest = (-1, 0) if found.kind == "time" else (0, -1)
        assert line.lower().startswith(headed(found, "death").lower())
        assert f"from {shares[least][-1].text} in cluster" in line
        assert f"to {shares[greatest][-1].text} in cluster" in line
    assert range_text(outcomes.results[0], facts.cluster_names, "") in answer(facts)[0]
    without = replace(facts, result=facts.result.model_copy(update={"outcomes": None}))
    assert answer(without)[1:] == list(outcome_sentences(without))


NAMES = ("cluster 0", "cluster 1", "cluster 2")


def test_the_summary_counts_the_clusters_that_it_cannot_tell() -> None:
    found = outcome_result(DECLARED[0], 3)
    unknown = [own.model_copy(update={"shares": (UNKNOWN,) * 2}) for own in found.clusters[1:]]
    one = found.model_copy(update={"clusters": (found.clusters[0], *unknown)})
    text = cluster_lines(found, found.clusters[0])[-1].text
    assert range_text(one, NAMES, "").endswith(
        f": {text} in cluster 0 alone; this table cannot tell 2 of 3 clusters."
    )
    none = found.model_copy(update={"clusters": tuple(unknown)})
    assert range_text(none, NAMES, "").endswith(f": {CANNOT_TELL}.")


DEAD = DIED.model_copy(update={"unit": "1 = dead at day 60"})


@pytest.mark.parametrize(
    ("outcome", "value", "p", "upper", "said"),
    [
        (DIED, 2.0, 0.019, 3.0, "yes is more frequent in B (p = 0.038) than in A, the largest"),
        (DIED, 0.5, 0.0001, 3.0, "differ in died: yes is less frequent in B (p < 0.001) than in A"),
        (DEAD, 2.0, 0.019, 3.0, "differ in died (yes = dead at day 60): yes is more frequent in B"),
        (DIED, 2.0, 0.026, 3.0, "clear difference in died: chance and noise alone can give"),
        (DIED, 2.0, 0.021, None, "table cannot tell whether the clusters differ in died."),
        (DIED, 2.0, None, 3.0, "table cannot tell whether the clusters differ in died."),
        (STAY, 0.6, 0.001, 0.9, "differ in stay: values are higher in B (p = 0.002) than in A"),
        (STAY, 0.4, 0.001, 0.9, "differ in stay: values are lower in B (p = 0.002) than in A"),
        (RELAPSE, 0.6, 0.001, 0.9, "death is less frequent in B (p = 0.002) than in A"),
    ],
)
def test_a_sentence_says_whether_clusters_differ(
    outcome: Outcome, value: float, p: float | None, upper: float | None, said: str
) -> None:
    """B has the difference, and C an estimate that tells nothing: two comparisons."""
    own = {"estimate": Estimate(value=value, lower=0.1, upper=upper), "p_value": p}
    other = {"estimate": Estimate(value=1.0, lower=0.1, upper=9.0), "p_value": 0.9}
    found = outcome_result(outcome, 3)
    compared = tuple(
        each.model_copy(update=own if each.cluster == 1 else other) for each in found.comparisons
    )
    assert said in difference_text(
        found.model_copy(update={"comparisons": compared}), "ABC", 0, "death"
    )
    single = found.model_copy(update={"comparisons": ()})
    assert difference_text(single, "A", 0, "death") == ""


@pytest.mark.parametrize(("p", "varies"), [(0.019, True), (0.021, False), (None, False)])
def test_a_sentence_says_where_the_difference_varies_between_sites(
    p: float | None, varies: bool
) -> None:
    """As for the p-values of differences, two comparisons count."""
    found = outcome_result(DIED, 3)
    compared = tuple(
        each.model_copy(update={"homogeneity_p": p if each.cluster == 1 else 0.9, "p_value": 0.001})
        for each in found.comparisons
    )
    said = difference_text(found.model_copy(update={"comparisons": compared}), "ABC", 0, "")
    assert said.endswith("How large the difference is varies between sites: B.") is varies


def test_levels_are_named_and_exact_counts_have_no_noise() -> None:
    found = outcome_result(WARD, 2, exact=True)
    assert difference_text(found, "AB", 0, "").startswith(
        "The clusters differ in ward: icu is more frequent in B (p = 0.0012), step-down is more"
    )
    equal = tuple(each.model_copy(update={"p_value": 0.5}) for each in found.comparisons)
    found = found.model_copy(update={"comparisons": equal})
    assert difference_text(found, "AB", 0, "") == (
        "The clusters show no clear difference in ward: chance alone can give differences as large "
        "(p = 1)."
    )


def test_the_card_of_a_cluster_has_one_line_for_each_outcome(facts: Facts) -> None:
    cards = html_first_screen(facts)
    assert cards.count('<div class="card">') == len(facts.clusters)
    for words in (
        "died: <b>22.3 % (10.0 to 30.0)</b>",
        "ward, home: <b>",
        "stay, 14 and more days: <b>",
        "relapse, without relapsed at 36 months: <b>",
    ):
        assert words in cards
    assert cards.count("stay, ") == len(facts.clusters)


def test_figures_say_in_words_what_they_show(facts: Facts) -> None:
    plots = Plots(facts)
    forest = plots.forest().description
    assert "died: odds ratio. cluster 1 2.31 (1.4 to 3.8); a 2.31 (1.4 to 3.8); cluster 2" in forest
    assert f"cluster 4 {CANNOT_TELL}" in forest
    one = plots.forest("stay")
    assert "stay: difference of means." in one.description
    assert "died" not in one.description
    survival = plots.survival()
    assert "relapse, cluster 0: 94.2 %" in survival.description
    assert survival.svg.count("<polyline") == 5
    with pytest.raises(UsageError, match="no outcome to draw named 'died'"):
        plots.survival("died")


def test_an_interval_without_marks_is_drawn_as_words_alone() -> None:
    facts = outcome_facts((DIED,), 5)
    found = facts.result.outcomes.results[0]
    unknown = tuple(c for c in found.comparisons if c.cluster == 4)
    only = Outcomes(
        n_clusters=5, reference=0, results=(found.model_copy(update={"comparisons": unknown}),)
    )
    figure = Plots(changed(facts, **dict(only))).forest()
    assert CANNOT_TELL in figure.svg
    assert "<rect" not in figure.svg


def test_ratios_beyond_the_axis_end_in_an_arrow() -> None:
    facts = outcome_facts((DIED,), 2)
    found = facts.result.outcomes.results[0]
    wide = Estimate(value=90.0, lower=-0.5, upper=1e9)
    # A site of which one limit is known reads like an effect.
    one_limit = {"s0": Estimate(value=0.3, lower=None, upper=0.9)}
    comparisons = (
        found.comparisons[0].model_copy(update={"estimate": wide, "by_site": one_limit}),
    )
    results = (found.model_copy(update={"comparisons": comparisons}),)
    figure = Plots(changed(facts, results=results)).forest()
    assert not re.search(r'="[^"]*\b(nan|inf)\b', figure.svg)
    assert "(-0.5 to 1000000000)" in figure.svg
    assert "at most" not in figure.svg
    assert figure.svg.count("<path d=") == 4
