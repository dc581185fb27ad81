"""Figures of stability, of the way from K to K, and the map: what is drawn is what was counted."""

import re
from dataclasses import replace
from html import escape
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fedclust.result.drawing import Figure
from fedclust.result.facts import Facts
from fedclust.result.figures.flow import MOST_STAGES, draw_flow
from fedclust.result.figures.plots import Plots
from fedclust.result.one_cloud import chosen_text, shown_text
from fedclust.result.page import html
from fedclust.schema.evidence import (
    CloudComparison,
    Stability,
)
from fedclust.schema.result import SweepEntry
from fedclust.wire.errors import UsageError
from support.drawings import check_drawing, words_of
from support.results import facts_of

NAMES = ["age", "systolic blood pressure after ten minutes at rest", "lactate", "noise"]
MEANS = np.array([[50.0, 120.0, 2.0, 0.1], [50.0, 150.0, 8.0, 0.1], [62.0, 120.0, 2.0, 0.0]])
SPLIT = np.array([[60, 0, 40], [0, 100, 0]])


def _elements(figure: Figure, name: str, **wanted: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(figure.svg)  # noqa: S314 (our own)
    return [
        each
        for each in root.iter(f"{{http://www.w3.org/2000/svg}}{name}")
        if all(each.get(key.replace("_", "-")) == value for key, value in wanted.items())
    ]


def _measured(jaccard: list[float]) -> Stability:
    count = len(jaccard)
    consensus = np.full((count, count), 0.125)
    np.fill_diagonal(consensus, jaccard)
    return Stability(
        n_models=50,
        jaccard=np.array(jaccard),
        recovered=np.ones(count),
        dissolved=np.zeros(count),
        consensus=consensus,
    )


# --- stability ------------------------------------------------------------------------------------


def test_a_bar_stands_beside_what_the_comparison_with_one_cloud_says() -> None:
    cloud = CloudComparison(n_draws=20, p=0.002, cluster_p=np.array([0.02, 0.3, 0.0001]))
    facts = facts_of(MEANS, NAMES, stability=_measured([0.95, 0.7, 0.02]), one_cloud=cloud)
    figure = Plots(facts).stability()

    bars = _elements(figure, "rect", fill="#0072b2")
    lengths = np.array([float(each.attrib["width"]) for each in bars])
    np.testing.assert_allclose(lengths / lengths[0], [1.0, 0.7 / 0.95, 0.02 / 0.95], atol=1e-3)
    said = ["stands apart: p = 0.02", "does not stand apart: p = 0.3", "stands apart: p < 0.001"]
    bar_ends = [f"{k}, {says}" for k, says in zip(("0.95", "0.70", "0.02"), said, strict=True)]
    assert set(bar_ends) <= set(words_of(figure))
    named = replace(facts, names={"3": ("Elderly", "", "Young")})
    drawn = Plots(named).stability()
    check_drawing(drawn)
    assert {"0 (Elderly)", "1", "2 (Young)"} <= set(words_of(drawn))
    again = "found again in nearly all resampled data sets"
    assert f"Cluster 1: 0.70, {again}, does not stand apart: p = 0.3" in figure.description
    check_drawing(figure)
    page = html(facts).replace("\u00a0", " ")
    for text in said:
        assert page.count(f">{escape(text)}</td>") == 1
        assert f'<p class="soft">{escape(text)}; found' in page
    # The one that does not stand apart says that being found again is no proof.
    assert page.count(" (parts of one whole can be, too)") == 1
    assert "nearly all resampled data sets (parts" in page
    assert "highly stable" not in page


@pytest.mark.parametrize(
    ("cloud", "says"),
    [
        (None, "not judged"),
        (CloudComparison(n_draws=0, not_judged="why"), "not judged"),
        (CloudComparison(n_draws=20, p=0.74), "does not stand apart"),
        (CloudComparison(n_draws=20, p=0.05, not_judged="why"), "not judged"),
    ],
)
def test_stability_is_never_shown_without_the_verdict(
    cloud: CloudComparison | None, says: str
) -> None:
    facts = facts_of(MEANS, NAMES, stability=_measured([0.95, 0.9, 0.9]), one_cloud=cloud)
    drawn = words_of(Plots(facts).stability())
    assert [word for word in drawn if says in word] == [
        f"{j}, {says}" for j in ("0.95", "0.90", "0.90")
    ]
    check_drawing(Plots(facts).stability())


# --- from K to K ----------------------------------------------------------------------------------


def test_the_heights_of_ribbons_and_bars_are_persons() -> None:
    figure = draw_flow(["K = 2", "K = 3"], [SPLIT], "Persons")
    bars = _elements(figure, "rect", width="24.0")
    heights = [float(each.attrib["height"]) for each in bars]
    np.testing.assert_allclose(np.array(heights) / heights[0], [1, 1, 0.6, 1, 0.4], atol=0.01)
    thick = [float(v) for v in re.findall(r"v([\d.]+)C", figure.svg)]
    np.testing.assert_allclose(np.array(thick) / heights[0], [1.0, 0.6, 0.4], atol=0.01)
    # The new cluster 2 stands next to the one that it came from, and has a colour of its own.
    places = {k: float(bars[2 + k].attrib["y"]) for k in range(3)}
    assert places[0] < places[2] < places[1]
    fills = [each.get("fill") for each in bars]
    assert (fills[0], fills[1]) == (fills[2], fills[3])
    assert fills[4] not in fills[:4]
    assert "of cluster 0 (100 persons) 60 % to 0, 40 % to 2" in figure.description
    check_drawing(figure)


def test_small_clusters_keep_their_numbers_apart() -> None:
    table = np.diag([10_000, *([1] * 24)])
    figure = draw_flow(["K = 25", "again"], [table], "Persons")
    spots = [
        (float(each.attrib["x"]), float(each.attrib["y"]))
        for each in _elements(figure, "text", text_anchor="middle")
    ]
    left = sorted(y for x, y in spots if x < 100)
    assert len(left) == 25
    assert np.diff(left).min() >= 12
    check_drawing(figure)


def _swept(count: int, recommended: int) -> Facts:
    rng = np.random.default_rng(0)
    entries, sizes = [], None
    for k in range(2, count + 2):
        found = facts_of(rng.normal(size=(k, 2)), ["u", "v"]).result
        flow = None if sizes is None else rng.integers(0, 40, (sizes, k))
        entries.append(SweepEntry(n_clusters=k, flow=flow, start_agreement=0.5, result=found))
        sizes = k
    means = rng.normal(size=(recommended, 2))
    return facts_of(means, ["u", "v"], sweep=tuple(entries), n_clusters=recommended)


def test_a_sweep_shows_how_clusters_divide_around_the_recommended_number() -> None:
    short, long = _swept(3, 3), _swept(20, 12)
    assert words_of(Plots(short).flow())[:3] == ["K = 2", "K = 3", "K = 4"]
    shown = [word for word in words_of(Plots(long).flow()) if word.startswith("K = ")]
    assert len(shown) == MOST_STAGES
    assert "K = 12" in shown
    check_drawing(Plots(long).flow())
    page = html(short)
    assert page.count("Persons by cluster of ") == 2
    assert "<title>Persons by number of clusters" in page


def test_a_break_in_the_tables_has_no_ribbons() -> None:
    figure = draw_flow(
        ["K = 2", "K = 3", "K = 4", "K = 5"], [SPLIT, None, np.eye(4, 5, dtype=int)], "t"
    )
    assert figure.svg.count("<path") == 3 + 4 + 1
    check_drawing(figure)
    with pytest.raises(UsageError, match="no table has any persons"):
        draw_flow(["K = 2", "K = 3"], [np.zeros((2, 3), dtype=int)], "t")
    with pytest.raises(UsageError, match="at most 60 clusters"):
        draw_flow(["K = 61", "K = 61"], [np.eye(61, dtype=int)], "t")
    with pytest.raises(UsageError, match="between two numbers"):
        Plots(facts_of(MEANS, NAMES)).flow()


def test_what_was_not_measured_is_not_drawn() -> None:
    nothing = facts_of(MEANS, NAMES, profile=None)
    for draw, reason in (
        (Plots(nothing).stability, "set the option `stability`"),
        (Plots(nothing).profile, "no differences between clusters are known"),
    ):
        with pytest.raises(UsageError, match=reason):
            draw()


# --- the number of clusters -----------------------------------------------------------------------


def _compared(ps: list[float], **changes: Any) -> Facts:
    plain = _swept(len(ps), 2)
    entries = []
    for entry, p in zip(plain.result.sweep or (), ps, strict=True):
        apart = np.full(entry.n_clusters, 0.01) if p <= 0.05 else None
        cloud = CloudComparison(n_draws=20, p=p, gap=0.1, gap_error=0.05, cluster_p=apart)
        own = entry.result.model_copy(update={"one_cloud": cloud})
        entries.append(entry.model_copy(update={"result": own}))
    best = entries[0].result.one_cloud
    update = {"sweep": tuple(entries), "one_cloud": best, **changes}
    return replace(plain, result=plain.result.model_copy(update=update))


def test_the_choice_marks_every_k_that_is_clearer_than_one_cloud() -> None:
    plain = Plots(_swept(3, 3)).choice()
    assert "clearer than a cloud" not in words_of(plain)
    facts = _compared([0.002, 0.05, 0.3], choice="apart")
    figure = Plots(facts).choice()
    assert "clearer than a cloud" in words_of(figure)
    # Two K and the legend.
    assert len(_elements(figure, "path", fill="#222222")) == 3
    assert "3 clusters: silhouette –, agreement of starts 0.5, p = 0.05" in figure.description
    page = html(facts)
    for text in ("against one cloud", "p\u00a0=\u00a00.002", "2 of 2", "3 of 3", "0 of 4"):
        assert text in page
    check_drawing(figure)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"choice": "apart"}, "K = 2 is recommended"),
        ({"choice": "one-cloud"}, "no K is recommended; K = 2 is shown"),
        (
            {"choice": "silhouette", "tied": (2, 3, 4)},
            "K = 2 or 3 or 4 is too close to call; K = 2 is shown",
        ),
        ({"choice": "apart", "tied": (10, 3)}, "K = 3 or 10 is too close to call; K = 2 is shown"),
        ({"choice": "starts"}, "no K is recommended; K = 2 is shown"),
    ],
)
def test_near_ties_and_one_cloud_recommend_no_k(changes: dict[str, Any], words: str) -> None:
    facts = _compared([0.6, 0.7, 0.8], **changes)
    assert shown_text(facts.result) == words
    assert chosen_text(facts.result) == words.partition("; ")[0]
    assert f"number of clusters ({words})" in words_of(Plots(facts).choice())
