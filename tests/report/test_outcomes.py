"""The report's section on outcomes: its numbers, and what it says of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust import simulate
from fedclust.cli.result_output import show_outcomes
from fedclust.report import Facts, html, json_text, sections
from fedclust.report.methods_text import methods_text
from fedclust.report.outcomes import outcome_sentences
from fedclust.report.overview import frame


def facts_of(well: str = "") -> Facts:
    """Return a result of three sites; those in ``well`` have no persons in the second cluster."""

    def site(name: str, seed: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        sick = rng.integers(0, 2, 200) * (name not in well)
        died = (rng.random(200) < np.where(sick, 0.5, 0.2)).astype(float)
        days = rng.gamma(2.0, 3.0 + sick)
        return pd.DataFrame({"x": rng.normal(size=200) + 8 * sick, "<died>": died, "stay": days})

    features: list[Any] = [
        "x",
        {"name": "<died>", "kind": "binary", "role": "outcome"},
        {"name": "stay", "unit": "days", "role": "outcome"},
    ]
    sites = {name: site(name, seed) for seed, name in enumerate("abc")}
    found = simulate("lloyd", sites, config={"n_clusters": 2}, features=features)
    return Facts(found.result_, found.definition_)


@pytest.fixture(scope="module")
def facts() -> Facts:
    return facts_of()


def section(facts: Facts) -> str:
    found = {each.key: each.html for each in sections(facts)}
    return found.get("outcomes", "")


def test_the_section_shows_what_the_result_says(facts: Facts) -> None:
    shown = section(facts)
    assert facts.result.outcomes is not None
    died, stay = facts.result.outcomes.results
    (one,) = died.comparisons
    assert one.mantel_haenszel is not None
    for number in (
        f"{one.mantel_haenszel.odds_ratio.value:.2f}".rstrip("0"),
        f"{100 * died.clusters[0].value.value:.1f} %",
        f"{stay.clusters[1].deviation:.2f}".rstrip("0"),
    ):
        assert number in shown
    assert "&lt;died&gt;" in shown
    assert "<died>" not in shown
    assert "stay [days]" in shown
    assert "not adjusted for the number of comparisons" in shown
    assert "for at least 5 of its persons" in shown
    assert html(facts).count('<section id="outcomes">') == 1


def test_the_downloads_hold_it(facts: Facts) -> None:
    written = json.loads(json_text(facts))["outcomes"]
    assert facts.result.outcomes is not None
    assert written == facts.result.outcomes.model_dump(mode="json")


def test_numbers_that_are_withheld_are_said_to_be(
    facts: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "fewer than 3 sites have persons with a value in this cluster"
    said = "withheld of clusters that fewer than 3 sites have"
    lone = facts_of(well="ab")
    for shown, times in ((facts, 0), (lone, 2)):
        assert shown.result.outcomes is not None
        page = section(shown)
        assert page.count("<td>withheld</td>") == times
        assert (why in page) == (said in methods_text(shown)) == bool(times)
        table = frame(shown, "outcomes")
        assert table[table.site == "all sites"].persons.isna().sum() == times
        show_outcomes(shown.result.outcomes)
        assert capsys.readouterr().out.count("  withheld") == times


def test_a_session_without_outcomes_has_no_section(facts: Facts) -> None:
    plain = replace(facts, result=facts.result.model_copy(update={"outcomes": None}))
    assert section(plain) == ""
    assert outcome_sentences(plain) == ()


def test_a_site_reads_its_own_rows_by_site(facts: Facts) -> None:
    assert facts.result.outcomes is not None
    own = facts.result.model_copy(
        update={"outcomes": facts.result.outcomes.of_sites(frozenset({"b"}))}
    )
    shown = section(replace(facts, result=own))
    assert ">b</th>" in shown
    assert ">a</th>" not in shown
