"""The first screen of a result: its answer, made from the numbers, and the card of each cluster."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from fedclust.result.comparison import compare
from fedclust.result.figures.plots import Plots
from fedclust.result.first_screen import answer, html_first_screen, in_words
from fedclust.result.outcomes import cluster_table
from fedclust.result.overview import frame, text_overview
from fedclust.result.page import html
from fedclust.result.tables import counts_text, csv_text
from fedclust.schema.encoding import Column
from fedclust.schema.result import CloudComparison
from support.drawings import check_drawing, words_of
from support.outcome_results import DIED, RELAPSE, outcome_facts
from support.results import facts_of, unprotected

NAMES = ("age", "systolic", "BNP", "sodium")
MEANS = np.array([[50.0, 120.0, 2.0, 1.0], [80.0, 150.0, 12.0, 1.0]])


@pytest.mark.parametrize(
    ("cloud", "said"),
    [
        (None, "2 clusters among 200 persons at 2 sites, not compared with what artificial"),
        (CloudComparison(n_draws=20, p=0.74), "No separate clusters were found among 200 persons"),
        (
            CloudComparison(n_draws=20, p=0.002, cluster_p=np.array([0.01, 0.02])),
            "artificial patients without clusters (p = 0.002). Each stands apart from the others.",
        ),
        (
            CloudComparison(n_draws=20, p=0.002, cluster_p=np.array([0.01, 0.3])),
            "Clusters that stand apart from their neighbours: 1 of 2.",
        ),
        (
            CloudComparison(n_draws=20, p=0.002, cluster_p=np.array([0.4, 0.3])),
            "Clusters that stand apart from their neighbours: 0 of 2.",
        ),
    ],
)
def test_the_answer_begins_with_whether_there_are_groups(
    cloud: CloudComparison | None, said: str
) -> None:
    facts = facts_of(MEANS, NAMES, one_cloud=cloud)
    assert said in answer(facts)[0]
    assert ('"cards found parts"' in html_first_screen(facts)) == said.startswith("No separate")


def test_a_near_tie_is_said_before_anything_else() -> None:
    cloud = CloudComparison(n_draws=20, p=0.002, cluster_p=np.array([0.01, 0.02]))
    tied = facts_of(MEANS, NAMES, one_cloud=cloud, choice="apart", tied=(4, 2, 3), n_clusters=2)
    assert answer(tied)[0].startswith(
        "2 or 3 or 4 clusters among 200 persons at 2 sites: too close to call. The 2 here are"
    )


def test_of_one_cloud_outcomes_are_a_description() -> None:
    facts = outcome_facts((DIED,))
    said = [
        answer(type(facts)(facts.result.model_copy(update={"one_cloud": each}), facts.definition))
        for each in (None, CloudComparison(n_draws=20, p=0.74))
    ]
    # Of three comparisons: .0004 times three.
    differ = "The clusters differ in died: yes is more frequent in cluster 1 (p = 0.0012) than in "
    for lines in said:
        assert f" {differ}cluster 0, the largest one (p adjusted for 3 comparisons). " in lines[0]
        assert "died: from 12.3 %" in lines[0]
    assert said[1][0].startswith("No separate clusters were found among 400 persons")
    assert "would give clusters as clear as these about 74 times in 100 (p = 0.74)." in said[1][0]
    assert "Report the clusters below as a description of these persons" in said[1][0]


def test_a_card_says_in_words_what_sets_a_cluster_apart() -> None:
    low, high = facts_of(MEANS, NAMES).clusters
    assert in_words(low) == "younger; BNP and systolic lower"
    assert in_words(high) == "older; BNP and systolic higher"
    entry = high.entries[0]
    smoker = Column(name="smoker", kind="binary", feature="smoker", unit="")
    often = type(entry)(smoker, "share", 0.8, difference=1.0)
    of_groups = type(entry)(smoker, "share of groups", 0.8, difference=1.0)
    rarely = type(entry)(smoker, "share", 0.1, difference=-1.0)
    assert in_words(type(high)(0, 1, 1.0, (often,))) == "smoker often (80 %)"
    assert in_words(type(high)(0, 1, 1.0, (of_groups,))) == "smoker often (80 % of groups)"
    assert in_words(type(high)(0, 1, 1.0, (rarely,))) == "smoker rarely (10 %)"
    assert in_words(type(high)(0, 1, 1.0, ())) == "cannot tell what differs"


def test_a_card_counts_the_sites_that_have_persons_in_the_cluster() -> None:
    facts = facts_of(MEANS, NAMES, site_sizes={"a": (60, 100), "b": (40, 0)})
    both, one = html_first_screen(facts).split("persons at ")[2:]
    assert both.startswith("2 of 2 sites")
    # Persons may be of another cluster than their group, so there may be some at the other site.
    assert one.startswith("1 or more of 2 sites")
    assert "persons at 1 of 2 sites" in html_first_screen(unprotected(facts))


def test_several_warnings_are_folded_and_one_is_not() -> None:
    one, two = (
        html_first_screen(facts_of(MEANS, NAMES, warnings=given)) for given in (("a",), ("a", "b"))
    )
    assert "warnings</summary>" not in one
    assert "<details><summary>2 warnings</summary>" in two


def test_past_a_dozen_clusters_the_tables_go_on() -> None:
    shown = html_first_screen(facts_of(np.arange(28.0).reshape(14, 2), ("u", "v")))
    assert shown.count('<div class="card">') == 12
    assert "2 more clusters: see the tables below." in shown


def test_figures_tables_and_files_use_the_names_of_clusters() -> None:
    facts = replace(outcome_facts((DIED, RELAPSE), 2), names={"2": ("Elderly <65>", "y" * 60)})
    page = html(facts)
    for words in ("<h2>Elderly &lt;65&gt;</h2>", "in Elderly &lt;65&gt;", f"<h2>{'y' * 60}</h2>"):
        assert words in page
    first = page.partition("Outcomes</h2>")[0]
    assert "luster 0" not in first
    assert "A site has its own line where noise does not hide its effect." in first
    plots = Plots(facts)
    for figure in (plots.profile(), plots.sizes(), plots.forest(), plots.survival()):
        check_drawing(figure)
        assert "Elderly <65>" in figure.description or "yyy" in figure.description
    assert csv_text(facts).splitlines()[1].endswith(",Elderly <65>")
    assert "Elderly <65>" in text_overview(facts)
    # Where a number stands, the name stands next to it.
    assert facts.labels == ("0 (Elderly <65>)", f"1 ({'y' * 60})")
    outcomes = facts.result.outcomes
    assert outcomes is not None
    assert cluster_table(outcomes.results[0], facts.labels)[1][0][0] == "0 (Elderly <65>)"
    assert page.count("0 (Elderly &lt;65&gt;)") > 8
    for table in ("clusters", "sites", "outcomes", "outcome_counts"):
        assert set(frame(facts, table)["name"]) - {""} == {"Elderly <65>", "y" * 60}
    lines = [*csv.DictReader(io.StringIO(counts_text(facts, outcomes)))]
    named = {(each["cluster"], each["name"]) for each in lines}
    assert named == {("0", "Elderly <65>"), ("1", "y" * 60), ("none", "")}
    mix = plots.mix()
    check_drawing(mix)
    assert "0 (Elderly <65>)" in words_of(mix)
    # One name is enough; a cluster without one keeps its number.
    some = replace(facts, names={"2": ("", "Young")})
    assert some.named
    assert (some.labels, some.cluster_names) == (("0", "1 (Young)"), ("cluster 0", "Young"))
    assert not replace(facts, names={"2": ("", "")}).named
    assert "without a partner" not in repr(compare(facts, some)).casefold()
    assert "0 (Elderly <65>) and 0: " in repr(compare(facts, some))
    drawn = compare(facts, some).figure()
    check_drawing(drawn)
    assert "0 (Elderly <65>) and 0" in words_of(drawn)
    # Names of another K are not these clusters' names.
    assert facts.cluster_names == ("Elderly <65>", "y" * 60)
    assert replace(facts, names={"3": ("a", "b", "c")}).cluster_names == ("cluster 0", "cluster 1")
