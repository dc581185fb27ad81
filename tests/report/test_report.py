"""Reports: the right numbers, in forms that hold nothing dangerous."""

import csv
import io
import json
import math
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from fedclust import simulate
from fedclust.cli.result_output import show_result
from fedclust.result.drawing import line_chart
from fedclust.result.facts import Facts
from fedclust.result.figures.plots import Plots
from fedclust.result.page import html, sections
from fedclust.result.session_result import SessionResult
from fedclust.result.tables import centroid_table, csv_text, json_text
from fedclust.schema.result import HistoryEntry, Quality, Result, SweepEntry
from fedclust.site.ledger import Ledger
from fedclust.site.state import SiteState
from fedclust.wire.errors import UsageError
from fedclust.wire.models import Definition, ResultDocument
from support.command_line import CommandLine
from support.consortium import Consortium
from support.definitions import definition
from support.html_page import Page
from support.local_coordinator import local_coordinator
from support.results import PROVENANCE, result_of, unprotected
from support.site_rows import blobs

HOSTILE = '<script>alert("x")</script>&'
LEVELS = ["none", "mild", "bad"]


def _document(facts: Facts) -> ResultDocument:
    """Return the result as a coordinator would send it."""
    return replace(
        facts, provenance=PROVENANCE, completed_at=datetime(2026, 1, 1, tzinfo=UTC)
    ).document


def _definition(features: list[dict[str, Any]], **changes: Any) -> Definition:
    return definition(*features, **{"name": "heart-2026", **changes})


def _result(means: Any, deviations: Any, **changes: Any) -> Result:
    """Return a result whose centroids are the clusters' means, all of it told."""
    given: dict[str, Any] = {
        "sizes": (60, 40),
        "site_sizes": {"a": (30, 20), "b": (30, 20)},
        "quality": Quality(inertia=12.5, simplified_silhouette=0.5, davies_bouldin=0.7, n_rows=100),
        "history": (
            HistoryEntry(round=2, phase="step", n_sites=3, inertia=20.0),
            HistoryEntry(round=3, phase="step", n_sites=3, inertia=12.5),
        ),
        "n_rounds": 2,
        "stopped_because": "converged",
    }
    return result_of(means, deviations, 2.0, **{**given, **changes})


@pytest.fixture(scope="module")
def cohort() -> tuple[Any, pd.DataFrame, Any]:
    """Return a simulation that holds nothing back, its rows, and their labels."""
    rng = np.random.default_rng(0)
    of = rng.integers(0, 3, 300)
    rows = pd.DataFrame(
        {
            "age": 50 + 8 * of + rng.normal(0, 3, 300),
            "smoker": (rng.random(300) < of / 3).astype(float),
            "bp": rng.normal(130, 12, 300),
            "pain": np.array(LEVELS)[(of + rng.integers(0, 2, 300)) % 3],
        }
    )
    names = np.array(["basel", "lyon", "turku"])[np.arange(300) % 3]
    result = simulate(
        "lloyd",
        {name: rows[names == name] for name in np.unique(names)},
        config={"n_clusters": 3},
        features=[
            {"name": "age", "unit": "years"},
            {"name": "smoker", "kind": "binary"},
            "bp",
            {"name": "pain", "kind": "categorical", "levels": LEVELS},
        ],
        policy={"protection": "none"},
        seed=1,
    )
    labels = np.empty(300, dtype=int)
    for name in np.unique(names):
        labels[names == name] = result.labels_[name]
    for level in LEVELS:
        rows[f"pain={level}"] = (rows["pain"] == level).astype(float)
    return result, rows.assign(site=names), labels


def test_the_profile_is_that_of_pandas(cohort: Any) -> None:
    result, rows, labels = cohort
    document = json.loads(json_text(Facts(result.result, result.definition)))
    for cluster in document["clusters"]:
        own = rows[labels == cluster["cluster"]]
        assert cluster["size"] == len(own)
        assert cluster["share"] == pytest.approx(len(own) / len(rows))
        by_name = {each["column"]: each for each in cluster["columns"]}
        for name in by_name:
            assert by_name[name]["value"] == pytest.approx(own[name].mean(), rel=1e-9)
            apart = (own[name].mean() - rows[name].mean()) / rows[name].std(ddof=0)
            assert by_name[name]["difference"] == pytest.approx(apart, abs=1e-9)
        for name in ("age", "bp"):
            assert by_name[name]["sd"] == pytest.approx(own[name].std(ddof=0), rel=1e-6)
        assert by_name["smoker"]["sd"] is None
        measures = {name: by_name[name]["measure"] for name in by_name}
        assert [*measures] == ["age", "smoker", "bp", "pain=none", "pain=mild", "pain=bad"]
        assert [*measures.values()] == ["mean", "share", "mean", "share", "share", "share"]
        widest = max(by_name, key=lambda name: abs(by_name[name]["difference"]))
        assert cluster["sets_apart"] == [] or cluster["sets_apart"][0] == widest
        for site, sizes in document["sizes_by_site"].items():
            assert sizes[cluster["cluster"]] == (own["site"] == site).sum()
    assert [entry["inertia"] for entry in document["history"]][-1] == result.inertia_
    assert document["definition"]["seed"] == 1
    assert document["provenance"] is None


def test_transforms_are_undone_and_levels_are_shares() -> None:
    features = [
        {"name": "crp", "unit": "mg/l", "lower": 0.1, "transform": "log"},
        {"name": "count", "transform": "log1p"},
        {"name": "site of pain", "kind": "categorical", "levels": ["chest", "arm"]},
    ]
    result = _result([[1.0, 2.0, 0.25, 0.75], [2.0, 3.0, 1.0, 0.0]], np.full((2, 4), 0.5))
    first = Facts(result, _definition(features)).clusters[0].entries

    names = [entry.column.name for entry in first]
    assert names == ["crp", "count", "site of pain=chest", "site of pain=arm"]
    assert first[0].mean == pytest.approx(math.exp(1.0))
    assert first[0].deviation is None
    assert first[1].mean == pytest.approx(math.expm1(2.0))
    assert [entry.mean for entry in first[2:]] == [0.25, 0.75]
    assert [entry.column.level for entry in first[2:]] == ["chest", "arm"]


def test_values_of_repeated_records_are_not_called_means_or_shares_of_persons(
    capsys: pytest.CaptureFixture[str],
) -> None:
    features = [
        {"name": "crp", "lower": 0.1, "transform": "log"},
        {"name": "cost"},
        {"name": "smoker", "kind": "binary"},
        {"name": "pain", "kind": "categorical", "levels": ["chest", "arm"]},
    ]
    names = ("crp", "cost", "smoker", "pain=chest", "pain=arm")
    result = _result([[1.0, 2.0, 0.25, 0.75, 0.25], [2.0, 3.0, 1.0, 0.0, 1.0]], np.ones((2, 5)))
    repeated = {"typical": names, "all_equal": {"cost": (2, 3), "smoker": (1, 4)}}
    profile = result.profile.model_copy(update=repeated)
    facts = Facts(result.model_copy(update={"profile": profile}), _definition(features))

    measures = [entry.measure for entry in facts.clusters[0].entries]
    assert measures == ["typical value"] * 2 + ["share of groups"] * 3
    lines = [*csv.DictReader(io.StringIO(csv_text(facts)))]
    assert [line["measure"] for line in lines][:5] == measures
    assert json.loads(json_text(facts))["all_equal"] == {"cost": [2, 3], "smoker": [1, 4]}
    page = {section.key: section.html for section in sections(facts)}
    for name in ("crp, typical value", "cost, typical value", "smoker, % of groups"):
        assert f'<th scope="row">{name}</th>' in page["clusters"]
    assert "pain, % of groups" in page["clusters"]
    assert "the mean or share of persons can differ" in page["clusters"]
    assert "equal in cost at 2 of 3 sites, smoker at 1 of 4 sites" in page["clusters"]
    assert not re.search("[Mm]eans? of|prevalence", page["clusters"])
    show_result(facts)
    printed = capsys.readouterr().out
    assert "cost at 2 of 3 sites, smoker at 1 of 4 sites" in printed
    assert "Davies-Bouldin 0.7 of the groups' records" in " ".join(printed.split())


def test_the_page_stands_alone_runs_nothing_and_describes_its_plots(cohort: Any) -> None:
    result, _, _ = cohort
    text = html(Facts(result.result, result.definition))
    page = Page(text)

    assert not page.names & {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    for tag, attributes in page.tags:
        assert not {"style", "srcset", "action"} & attributes.keys(), tag
    assert "url(" not in text
    assert "@import" not in text
    policy = [a["content"] for tag, a in page.tags if a.get("http-equiv")]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert text.count("<table>") >= 4
    assert len(text) < 60_000
    # Every plot says what it shows.
    images = re.findall(r"<svg.*?</svg>", text, re.S)
    drawn = [ElementTree.fromstring(image) for image in images]  # noqa: S314
    space = "{http://www.w3.org/2000/svg}"

    assert len(drawn) == 3
    titles = [image.findtext(f"{space}title") for image in drawn]
    assert titles == ["Profile of the clusters", "Mix of the clusters by site", "Inertia by round"]
    for image in drawn:
        title, described = (image.findtext(f"{space}{part}") for part in ("title", "desc"))
        assert title != described
        assert image.get("aria-label") == f"{title}. {described}"
        assert image.get("role") == "img"
        assert re.search(r"\d", str(described)), described
        wide, high = (float(size) for size in str(image.get("viewBox")).split()[2:])
        for mark in image.iter(f"{space}rect"):
            x, width = float(str(mark.get("x"))), float(str(mark.get("width")))
            y, height = float(str(mark.get("y"))), float(str(mark.get("height")))
            assert 0 <= x <= x + width <= wide + 0.1
            assert 0 <= y <= y + height <= high + 0.1
    lines = drawn[2].findall(f"{space}polyline")
    measured = [entry for entry in result.history_ if entry.inertia is not None]
    assert len(str(lines[0].get("points")).split()) == len(measured)


def test_names_that_are_markup_stay_names() -> None:
    features = [{"name": HOSTILE, "unit": HOSTILE}, {"name": "=cmd|' /C calc'!A0"}]
    features += [{"name": "＝cmd"}]  # A wide sign.
    means = [[0.0, 5.0, 1.0], [9.0, 5.0, 1.0]]
    result = _result(means, np.ones((2, 3)), warnings=(HOSTILE,))
    found = Facts(result, _definition(features, config={"n_clusters": HOSTILE}))
    page = Page(html(found))

    assert "script" not in page.names
    assert page.words.count(HOSTILE) >= 5
    column = [line["column"] for line in csv.DictReader(io.StringIO(csv_text(found)))]
    assert column[1].startswith("'=")
    assert column[2].startswith("'＝")
    header = next(csv.reader(io.StringIO(centroid_table(_document(found)).decode())))
    assert header[2:] == column[:3]
    assert json.loads(json_text(found))["warnings"] == [HOSTILE]


def test_a_name_from_right_to_left_leaves_the_numbers_after_it_in_place() -> None:
    result = _result([[0.0], [9.0]], np.ones((2, 1)))
    words = Page(html(Facts(result, _definition([{"name": "גיל", "unit": "שנים"}])))).words

    # First-strong isolate and its end, around the name alone.
    assert "\u2068גיל\u2069 9\u2068 שנים\u2069" in words
    assert "\u2068" not in Page(html(Facts(result, _definition([{"name": "age"}])))).words


def test_of_many_clusters_and_sites_each_is_told_from_the_others() -> None:
    rng = np.random.default_rng(0)
    sites = [f"s{number:02d}" for number in range(20)]
    result = _result(
        rng.normal(size=(60, 1)),
        np.ones((60, 1)),
        sizes=(200,) * 60,
        site_sizes=dict.fromkeys(sites, (10,) * 60),
    )
    found = Facts(result, _definition([{"name": "u"}], sites=sites))
    drawn = [Plots(found).profile().svg, Plots(found).sizes().svg]
    heat, bars = (ElementTree.fromstring(image) for image in drawn)  # noqa: S314
    space = "{http://www.w3.org/2000/svg}"
    header = [text for text in heat.iter(f"{space}text") if text.get("font-weight")]
    places = [float(str(text.get("x"))) for text in header]
    assert len(header) > 10
    assert min(np.diff(places)) >= 20
    marks = list(bars.iter(f"{space}rect"))[-len(sites) :]
    looks = [(mark.get("fill"), mark.get("fill-opacity")) for mark in marks]
    assert len(set(looks)) == len(sites)
    first = [(mark.get("fill"), mark.get("fill-opacity")) for mark in bars.iter(f"{space}rect")]
    assert first[: len(sites)] == looks


def test_beyond_what_a_double_holds_there_is_no_number() -> None:
    features = [{"name": "u", "lower": 1e-9, "transform": "log"}]
    result = _result([[710.0], [2.0]], [[20.0], [1.0]])
    found = Facts(result, _definition(features))

    assert found.clusters[0].entries[0].mean is None
    assert json.loads(json_text(found))["clusters"][0]["columns"][0]["value"] is None
    Page(html(found))


@pytest.mark.parametrize(
    "changes",
    [
        {"profile": None, "quality": None, "sizes": None, "site_sizes": {}, "history": ()},
        {"mask": np.array([[True, False], [True, True]])},
    ],
)
def test_a_result_with_less_in_it_still_makes_a_page(changes: dict[str, Any]) -> None:
    result = _result([[0.0, 5.0], [9.0, 5.0]], np.ones((2, 2)), **changes)
    found = Facts(result, _definition([{"name": "u"}, {"name": "v"}]))

    Page(html(found))
    assert len(csv_text(found).splitlines()) == 5
    keys = " ".join(section.key for section in sections(found))
    assert keys == f"participants clusters{' holds' * bool(result.quality)} methods provenance"
    if result.profile is None:
        assert found.clusters[1].entries[0].mean == 9.0
        assert "Warning:</b> There was no closing evaluation: sizes, profile and" in html(found)
    else:
        assert [entry.mean for entry in found.centroids[0]] == [0.0, None]


def test_a_cluster_that_was_compared_with_nothing_is_not_said_to_differ_in_nothing() -> None:
    definition = _definition([{"name": "u"}, {"name": "v"}])
    alike = _result([[4.0, 5.0], [4.1, 5.0]], np.ones((2, 2)))
    untold = alike.model_copy(update={"profile": None})
    said = [html(Facts(result, definition)) for result in (alike, untold)]
    assert ["close to the average of all" in page for page in said] == [True, False]
    assert ["cannot tell what differs" in page for page in said] == [False, True]


def test_groups_tell_no_spread_and_differences_with_one_digit_of_enough_persons() -> None:
    result = _result([[0.0, 5.0], [1.9, 5.5]], np.full((2, 2), 3.0))
    few = np.array([[True, False], [False, False]])
    profile = result.profile.model_copy(update={"few": few})
    found = result.model_copy(update={"profile": profile})
    told = {}
    for protection in ("groups", "none"):
        definition = _definition([{"name": "u"}, {"name": "v"}], policy={"protection": protection})
        clusters = json.loads(json_text(Facts(found, definition)))["clusters"]
        told[protection] = [
            (each["sd"], each["difference"]) for one in clusters for each in one["columns"]
        ]
    assert told["groups"] == [(None, None), (None, -0.1), (None, 0.5), (None, 0.1)]
    sds, differences = zip(*told["none"], strict=True)
    assert sds == (3.0,) * 4
    assert differences == pytest.approx((-0.475, -0.125, 0.475, 0.125))


def test_one_cluster_and_none() -> None:
    features = _definition([{"name": "u"}])
    one = _result([[3.0]], [[1.0]], sizes=(10,), site_sizes={"a": (10,)})
    empty = {"centroids": np.zeros((0, 1)), "centroids_original": np.zeros((0, 1))}
    none = one.model_copy(update={**empty, "sizes": (), "site_sizes": {}, "profile": None})
    for result in (one, none):
        Page(html(Facts(result, features)))


def test_a_sweep_shows_every_number_of_clusters_and_the_reason() -> None:
    found = _result([[0.0], [9.0]], np.ones((2, 1)))
    same = {"davies_bouldin": None, "n_rows": 100, "result": found}
    measured = {
        k: {"inertia": 100.0 / k, "simplified_silhouette": 0.9 - 0.1 * k, "start_agreement": agreed}
        for k, agreed in ((2, 1.0), (3, 1.0), (4, None))
    }
    tried = [SweepEntry(n_clusters=k, **each, **same) for k, each in measured.items()]
    whole = {"sweep": tuple(tried), "n_clusters": 2, "recommendation": f"2: {HOSTILE}"}
    shown = Facts(found.model_copy(update=whole), _definition([{"name": "u"}]))
    page, document = Page(html(shown)), json.loads(json_text(shown))

    assert "script" not in page.names
    assert "2 (shown here)" in page.words
    assert "Choosing the number of clusters" in page.words
    assert page.words.count(HOSTILE) >= 2
    found = {each["n_clusters"]: each["shown"] for each in document["sweep"]}
    assert found == {2: True, 3: False, 4: False}
    assert document["sweep"][2]["start_agreement"] is None


def test_a_value_that_sums_leave_of_0_is_0() -> None:
    result = _result([[1.9e-7, 44.900000000000006], [5.0, 1.0]], np.ones((2, 2)))
    facts = Facts(result, _definition([{"name": "u"}, {"name": "v"}]))
    assert "1.9e-07" not in csv_text(facts) + html(facts)
    lines = list(csv.DictReader(io.StringIO(csv_text(facts))))
    assert [line["value"] for line in lines] == ["0", "44.9", "5", "1"]
    assert centroid_table(_document(facts)).decode().splitlines()[1] == "0,60,0,44.9"


def test_the_centroids_have_the_names_of_clusters_last() -> None:
    result = _result([[1.0], [5.0]], np.ones((2, 1)))
    names = {"2": ("", "=Young"), "3": ("a", "b", "c")}
    facts = Facts(result, _definition([{"name": "u"}]), names=names)
    lines = centroid_table(_document(facts)).decode().splitlines()
    assert lines == ["cluster,size,u,name", "0,60,1,", "1,40,5,'=Young"]


def test_centroids_stand_in_own_units_and_levels_as_shares() -> None:
    features = [
        {"name": "crp", "unit": "mg/l", "lower": 0.1, "transform": "log"},
        {"name": "smoker", "kind": "binary"},
        {"name": "sex", "kind": "binary", "unit": "1 = male"},
    ]
    own = np.array([[3.25, 0.25, 0.0], [88.0, 1.0, 0.5]])
    result = _result(np.log(own + 1), np.ones((2, 3)), centroids_original=own)
    described = {each.key: each for each in sections(Facts(result, _definition(features)))}
    # One number for each column: the profile's, where there is one.
    assert "centroids in own units" not in described["clusters"].html
    result = result.model_copy(update={"profile": None})
    found = {each.key: each for each in sections(Facts(result, _definition(features)))}
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", found["clusters"].html)

    assert cells[-12:-4] == ["crp", "mg/l", "3.25", "88", "smoker", "share", "25 %", "100 %"]
    assert cells[-4:] == ["sex", "share (1 = male)", "0 %", "50 %"]
    # Two centroids lie on one axis: there is no column of zeros.
    assert "second axis" not in found["clusters"].html
    assert "prototypes" not in found["clusters"].html
    many = result.model_copy(update={"prototypes": np.zeros((7, 3)), "prototype_labels": (0,) * 7})
    assert "Here 7 prototypes" in html(Facts(many, _definition(features)))


def test_quality_says_what_it_is_measured_over() -> None:
    result = _result([[0.0], [9.0]], np.ones((2, 1)))
    found = {each.key: each for each in sections(Facts(result, _definition([{"name": "u"}])))}
    said = "Inertia 12.5, simplified silhouette 0.5, Davies-Bouldin 0.7 of the groups' records."
    assert said in Page(found["holds"].html).words
    assert "records; of persons the silhouette is lower, and inertia and" in found["holds"].html
    of_rows = sections(unprotected(Facts(result, _definition([{"name": "u"}]))))
    assert "over the persons. A simplified" in {each.key: each for each in of_rows}["holds"].html


def test_a_site_reads_of_its_own_sizes() -> None:
    own = _result([[0.0], [9.0]], np.ones((2, 1)), site_sizes={"b": (10, 30)})
    site = Facts(own, _definition([{"name": "u"}]), PROVENANCE)
    words = Page({each.key: each for each in sections(site)}["clusters"].html).words

    assert site.own_site == "b"
    assert "among your site's persons" in words
    assert "060 (60 %)10 (25 %)" in words
    analyst = replace(site, result=_result([[0.0], [9.0]], np.ones((2, 1))))
    words = Page(html(analyst)).words
    assert analyst.own_site is None
    assert "your site" not in words
    assert "060 (60 %)30 (60 %)30 (60 %)" in words
    assert "all1005050" in words


def test_a_notebook_shows_the_figures_of_the_report(cohort: Any, tmp_path: Path) -> None:
    result, _, _ = cohort
    page = html(Facts(result.result, result.definition))
    plots = result.plot
    names = ("profile", "mix", "convergence")
    for draw in (getattr(plots, name) for name in names):
        assert draw()._repr_svg_() in page
        draw().save(tmp_path / "figure.svg")
        saved = ElementTree.parse(tmp_path / "figure.svg")  # noqa: S314
        # A file has its title inside the drawing; a page has a heading above it.
        words = [text.text for text in saved.iter("{http://www.w3.org/2000/svg}text")]
        assert words[0] == draw().title
        assert f">{draw().title}</text>" not in page
    with pytest.raises(UsageError, match="nothing to compare"):
        plots.choice()
    with pytest.raises(AttributeError, match="There are: profile, sizes"):
        plots.radar  # noqa: B018


def test_one_flat_line_is_no_figure() -> None:
    rounds = [HistoryEntry(round=n, phase="step", n_sites=3, inertia=12.5) for n in (2, 3)]
    result = _result([[0.0], [9.0]], np.ones((2, 1)), history=tuple(rounds))
    with pytest.raises(UsageError, match="the same in every round"):
        Plots(Facts(result, _definition([{"name": "u"}]))).convergence()


def test_a_figure_is_saved_as_png_with_its_words(cohort: Any, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    result, _, _ = cohort
    figure = result.plot.profile()
    try:
        figure.save(tmp_path / "figure.PNG")
    except UsageError as error:
        pytest.skip(str(error))  # a system without fonts
    saved = (tmp_path / "figure.PNG").read_bytes()
    assert saved.startswith(b"\x89PNG")
    assert int.from_bytes(saved[16:20], "big") == 1440
    figure.titled_svg = re.sub("<text.*?</text>", "", figure.titled_svg)
    assert len(figure.png()) < 0.8 * len(saved)


def test_a_system_without_fonts_gets_no_png_without_words(
    cohort: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    resvg = pytest.importorskip("resvg_py")
    draw = resvg.svg_to_bytes
    bare = {"skip_system_fonts": True}
    monkeypatch.setattr(resvg, "svg_to_bytes", lambda **given: draw(**given, **bare))
    with pytest.raises(UsageError, match="no font found"):
        cohort[0].plot.profile().png()


def test_a_figure_or_report_that_cannot_be_saved_says_why(
    cohort: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figure = cohort[0].plot.sizes()
    with pytest.raises(UsageError, match=r"ends in \.svg or \.png"):
        figure.save(tmp_path / "figure.pdf")
    with pytest.raises(UsageError, match=r"\.html, \.json, \.csv"):
        cohort[0].save_report(tmp_path / "report.pdf")
    for save, name in ((figure.save, "figure.svg"), (cohort[0].save_report, "report.html")):
        with pytest.raises(UsageError, match="cannot be written"):
            save(tmp_path / "nowhere" / name)
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(UsageError, match=r"pip install 'fedclust\[plot\]'"):
        figure.save(tmp_path / "figure.png")
    assert not list(tmp_path.iterdir())


def test_a_line_chart_shows_every_point_and_names_the_lines() -> None:
    series = {"k'=K <5>": [(1, 0.5), (2, None), (3, 0.75)], "other": [(1, 0.25), (3, 1.0)]}
    chart = line_chart("a < b & c", "x", "y", series)
    tree = ElementTree.fromstring(chart.svg)  # noqa: S314
    space = "{http://www.w3.org/2000/svg}"
    ways = [
        [[float(at) for at in point.split(",")] for point in str(way.get("points")).split()]
        for way in tree.iter(f"{space}polyline")
    ]

    assert {"k'=K <5>", "other", "x", "y"} <= {text.text for text in tree.iter(f"{space}text")}
    assert [len(way) for way in ways] == [2, 2]
    first, other = np.array(ways)
    np.testing.assert_array_equal(first[:, 0], other[:, 0])
    scale = (first[1, 1] - first[0, 1]) / 0.25
    np.testing.assert_allclose(other[:, 1], first[0, 1] + scale * np.array([-0.25, 0.5]), atol=0.2)


def test_each_reader_gets_a_report_of_what_it_may_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> None:
    sites = blobs(np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 9.0]]), [20, 30, 15], spread=0.5)
    with local_coordinator(tmp_path / "coordinator", threads=True) as local:
        consortium = Consortium.found(local.base_url, local.operator_token, tuple(sites))
        consortium.create("heart", 2, algorithm="fkm", config={"n_clusters": 3})
        results = consortium.run("heart", sites, tmp_path / "journals")
        token = tmp_path / "token"
        token.write_text(consortium.analyst_token, "utf-8")
        token.chmod(0o600)
        given = ["--coordinator", consortium.url, "--token-file", str(token)]
        target = tmp_path / "analyst.json"
        command = ["session", "result", "heart", *given]
        assert command_line.run(*command, "--report", str(target)) == 0
        assert command_line.run(*command, "--report", str(tmp_path / "analyst.html")) == 0
        assert command_line.run(*command, "--report", str(tmp_path / "a.txt")) == 2
    for name, result in results.items():
        result.save_report(tmp_path / f"{name}.json")
    analyst = json.loads(target.read_text("utf-8"))
    own = {name: json.loads((tmp_path / f"{name}.json").read_text("utf-8")) for name in sites}

    assert set(analyst["sizes_by_site"]) == set(sites)
    assert analyst["definition"]["config"]["n_clusters"] == 3
    sent = {
        (entry["site"], entry["round"]): entry["sha256"]
        for entry in analyst["provenance"]["submissions"]
    }
    for name in sites:
        document = own[name]
        assert document["sizes_by_site"].keys() == {name}
        assert document["clusters"] == analyst["clusters"]
        listed = {e["round"]: e["sha256"] for e in document["provenance"]["submissions"]}
        assert listed == {number: digest for (site, number), digest in sent.items() if site == name}
        ledger = Ledger(SiteState(tmp_path / "journals" / name))
        assert set(listed.values()) <= {entry.get("sha256") for entry in ledger.read()}
    page = Page((tmp_path / "analyst.html").read_text("utf-8"))
    assert all(digest in page.words for digest in sent.values())

    # At a site that took no part: the saved result alone, no coordinator.
    results["a"].save(tmp_path / "heart.fedclust")
    elsewhere = SessionResult.load(tmp_path / "heart.fedclust")
    for odd in ({"sizes": (9,)}, {"centroids": np.zeros((3, 1))}, {"site_sizes": {"a": (9,)}}):
        wrong = elsewhere.result.model_copy(update=odd)
        with pytest.raises(ValidationError, match="its parts do not fit each other"):
            replace(elsewhere, result=wrong).save(tmp_path / "odd.fedclust")
    elsewhere.save_report(tmp_path / "again.html")
    results["a"].save_report(tmp_path / "first.html")
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "first.html").read_bytes()


def test_simulate_writes_a_report_of_files(tmp_path: Path, command_line: CommandLine) -> None:
    given = ["simulate", "lloyd", "--clusters", "2", "--features", "u,v"]
    for name, rows in blobs(np.array([[0.0, 0.0], [9.0, 9.0]]), [20, 20, 20]).items():
        pd.DataFrame(rows, columns=["u", "v"]).to_csv(tmp_path / f"{name}.csv", index=False)
        given += ["--site", f"{name}={tmp_path / name}.csv"]
    assert command_line.run(*given, "--report", str(tmp_path / "found.csv")) == 0
    assert len((tmp_path / "found.csv").read_text("utf-8").splitlines()) == 5


def test_a_report_begins_with_why(cohort: Any) -> None:
    result, _, _ = cohort
    changed = {
        "title": "Smokers <at> three sites",
        "purpose": "Which groups of smokers do three hospitals share?",
        "contact": "Ada, ada@example.org",
        "approval": "Ethics committee, 2026-01",
        "expires": datetime(2030, 1, 1, tzinfo=UTC),
    }
    page = html(Facts(result.result, result.definition.model_copy(update=changed)))
    opening = page[page.index("<h1>") : page.index("3 clusters among 300 persons at 3 sites")]
    assert "Smokers &lt;at&gt; three sites" in opening
    assert str(changed["purpose"]) in opening
    provenance = page[page.index("Provenance</h2>") :]
    for said in (changed["contact"], changed["approval"], "1 Jan 2030, 00:00 UTC"):
        assert str(said) in provenance
    document = json.loads(json_text(Facts(result.result, result.definition)))
    assert document["definition"]["purpose"] == ""
