"""Figures of stability, of the way from K to K, and the map: what is drawn is what was counted."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fedclust.engine.stability import band
from fedclust.errors import UsageError
from fedclust.report import Facts, Figure, Plots, html
from fedclust.report.figures.flow import MOST_STAGES, draw_flow
from fedclust.report.figures.map import MOST_NAMED_SITES
from fedclust.report.figures.stability import BOUNDS
from fedclust.schema.evidence import PrincipalAxes, Stability
from fedclust.schema.result import SweepEntry
from fedclust.schema.transfer import SiteTransfer, Transfer
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


def test_the_bands_drawn_are_those_of_the_table() -> None:
    figure = Plots(facts_of(MEANS, NAMES, stability=_measured([0.95, 0.7, 0.02]))).stability()

    for bound in BOUNDS:
        assert band(bound) != band(bound - 1e-9)
    grounds, bars = _elements(figure, "rect")[:4], _elements(figure, "rect", fill="#0072b2")
    left, wide = float(grounds[0].attrib["x"]), float(grounds[0].attrib["width"]) / BOUNDS[0]
    edges = [(float(each.attrib["x"]) - left) / wide for each in grounds]
    np.testing.assert_allclose(edges, [0.0, *BOUNDS], atol=1e-3)
    lengths = [float(each.attrib["width"]) / wide for each in bars]
    np.testing.assert_allclose(lengths, [0.95, 0.7, 0.02], atol=1e-3)
    assert {"0.95", "0.70", "0.02", "not to be trusted", "stable"} <= set(words_of(figure))
    assert "Cluster 1: 0.70, a pattern whose members are doubtful" in figure.description
    check_drawing(figure)


@pytest.mark.parametrize("count", [2, 30])
def test_the_consensus_has_a_cell_for_each_pair(count: int) -> None:
    means = np.random.default_rng(0).normal(size=(count, 2))
    facts = facts_of(means, ["u", "v"], stability=_measured([0.9] * count))
    figure = Plots(facts).consensus()
    assert len(_elements(figure, "rect")) == count**2 + 5
    assert words_of(figure).count("0.12") == (2 if count == 2 else 0)
    assert "Between: clusters 0 and 1 0.12" in figure.description
    check_drawing(figure)


def test_without_stability_there_is_none_to_draw() -> None:
    for name in ("stability", "consensus"):
        with pytest.raises(UsageError, match="set the option `stability`"):
            getattr(Plots(facts_of(MEANS, NAMES)), name)()
    alone = facts_of(MEANS[:1], NAMES, stability=_measured([1.0]))
    means = np.random.default_rng(0).normal(size=(61, 2))
    many = facts_of(means, ["u", "v"], stability=_measured([1.0] * 61))
    with pytest.raises(UsageError, match="at most 60 clusters"):
        Plots(many).consensus()
    with pytest.raises(UsageError, match="one cluster"):
        Plots(alone).consensus()


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


def _transfer(tables: dict[str, Any]) -> Transfer:
    return Transfer(
        sites={site: SiteTransfer(n_rows=200, own_table=table) for site, table in tables.items()}
    )


@pytest.mark.parametrize("count", [1, 2, 15])
def test_own_clusters_have_a_panel_for_each_site(count: int) -> None:
    names = [f"hospital {number} with a long name" for number in range(count)]
    tables = {**dict.fromkeys(names, SPLIT), "nobody": SPLIT * 0, "unknown": None}
    facts = facts_of(MEANS, NAMES, transfer=_transfer(tables))
    figure = Plots(facts).own_clusters()
    assert words_of(figure).count("own") == min(count, 12)
    assert ("3 more sites are not drawn." in words_of(figure)[-1]) == (count == 15)
    assert "nobody" not in figure.description
    assert "<title>Each site&#x27;s own clusters" in html(facts)
    check_drawing(figure)


def test_an_own_cluster_that_was_not_found_leaves_a_gap() -> None:
    table = np.array([[0, 90, 0], [0, 0, 0], [0, 10, 80]])
    figure = Plots(facts_of(MEANS, NAMES, transfer=_transfer({"oslo": table}))).own_clusters()
    bars = _elements(figure, "rect", width="24.0")
    assert [each.get("fill") for each in bars] == ["#0072b2", "#009e73", "#e69f00", "#009e73"]
    assert words_of(figure)[:4] == ["oslo", "180 persons", "own", "common"]
    assert "of cluster 2 (90 persons) 89 % to 2, 11 % to 1" in figure.description
    check_drawing(figure)


def test_without_transfer_no_site_has_own_clusters() -> None:
    for given in (None, _transfer({"a": None, "b": SPLIT * 0})):
        with pytest.raises(UsageError, match="set the option `transfer`"):
            Plots(facts_of(MEANS, NAMES, transfer=given)).own_clusters()


# --- the map --------------------------------------------------------------------------------------


def _axes(**changes: Any) -> PrincipalAxes:
    given: dict[str, Any] = {
        "origin": np.array([5.0, 6.0, 1.0, 0.0]),
        "axes": np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]),
        "shares": np.array([0.5, 0.3]),
    }
    return PrincipalAxes(**{**given, **changes})


def test_a_map_places_clusters_sites_and_the_mean_on_one_scale() -> None:
    sizes = {"a": (100, 0, 0), "b": (0, 50, 50)}
    facts = facts_of(MEANS, NAMES, axes=_axes(), site_sizes=sizes)
    figure = Plots(facts).centroids()

    # In the scaled space: age in 10 years, blood pressure in 20 mmHg.
    places = np.array([[0.0, 0.0], [0.0, 1.5], [1.2, 0.0]])
    np.testing.assert_allclose(facts.axes[0], places)
    np.testing.assert_allclose(facts.site_places["a"], [0.0, 0.0])
    np.testing.assert_allclose(facts.site_places["b"], [0.6, 0.75])
    discs = _elements(figure, "circle", stroke="#333333")
    drawn = {
        each.get("fill"): (float(each.attrib["cx"]), -float(each.attrib["cy"])) for each in discs
    }
    spots = np.array([drawn[fill] for fill in ("#0072b2", "#e69f00", "#009e73")])
    unit = spots[2, 0] - spots[0, 0]
    np.testing.assert_allclose(spots[1, 1] - spots[0, 1], unit * 1.5 / 1.2, atol=0.3)
    assert {"first axis, 50 %", "second axis, 30 %", "a", "b", "1  age"} <= set(words_of(figure))
    assert not any("lactate" in word for word in words_of(figure))
    check_drawing(figure)
    page = html(facts)
    assert "<title>Map of the clusters and sites" in page
    assert '<th scope="row">b</th><td>0.6</td><td>0.75</td>' in page


def test_a_map_of_many_sites_and_columns_stays_legible() -> None:
    rng = np.random.default_rng(0)
    names = [f"a long name of a column, number {j}" for j in range(30)]
    loadings = np.linalg.qr(rng.normal(size=(30, 2)))[0]
    axes = PrincipalAxes(origin=np.zeros(30), axes=loadings, shares=np.array([0.2, 0.1]))
    for count in (MOST_NAMED_SITES, 40):
        sites = {
            f"hospital {n} with a long name": tuple(rng.integers(1, 99, 5).tolist())
            for n in range(count)
        }
        facts = facts_of(rng.normal(size=(5, 30)), names, axes=axes, site_sizes=sites)
        figure = Plots(facts).centroids()
        named = [e for e in _elements(figure, "text") if "hospital" in (e.text or "")]
        assert len(named) == (count if count == MOST_NAMED_SITES else 0)
        heights = sorted(float(each.attrib["y"]) for each in named)
        assert not named or np.diff(heights).min() >= 15.9
        # Names end above the arrows.
        assert not named or heights[-1] < 240
        assert len(_elements(figure, "path", fill="#222222")) == count + 1
        check_drawing(figure)


def test_without_two_axes_of_all_persons_the_centroids_have_their_own() -> None:
    flat = _axes(axes=np.eye(4, 2) * [1.0, 0.0], shares=np.array([1.0, 0.0]))
    for given in (None, flat):
        figure = Plots(facts_of(MEANS, NAMES, axes=given)).centroids()
        assert figure.title == "Centroids in two dimensions"
        check_drawing(figure)


def test_the_choice_of_a_number_shows_its_stability_where_that_was_measured() -> None:
    plain = _swept(3, 3)
    assert "prediction strength" not in html(plain)
    assert "prediction strength" not in words_of(Plots(plain).choice())
    strong = _measured([0.9, 0.61]).model_copy(update={"prediction_strength": 0.87, "gap": 1.25})
    sweep = plain.result.sweep or ()
    first = sweep[0].result.model_copy(update={"stability": strong})
    entries = (sweep[0].model_copy(update={"result": first}), *sweep[1:])
    stable = replace(plain, result=plain.result.model_copy(update={"sweep": entries}))
    page = html(stable)
    for text in (
        "least stable cluster (Jaccard)",
        "<td>0.61</td>",
        "<td>0.87</td>",
        "<td>1.25</td>",
    ):
        assert text in page
    assert "prediction strength" in words_of(Plots(stable).choice())
    check_drawing(Plots(stable).choice())
