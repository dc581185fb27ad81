"""What results show of themselves: in a terminal, in a notebook, as tables of pandas."""

import html
import re
import sys
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fedclust import simulate
from fedclust.result.first_screen import answer
from fedclust.result.overview import html_overview, text_overview
from fedclust.result.session_result import SessionResult
from fedclust.schema.result import Bounds, HistoryEntry, Quality, Result, SweepEntry
from fedclust.site import SessionStatus
from fedclust.site.progress import Preview
from fedclust.wire.errors import UsageError
from fedclust.wire.models import Definition, ProvenanceEntry, SessionEntry, SitePresence
from support.definitions import definition
from support.html_page import Page
from support.results import PROVENANCE, result_of, unprotected
from support.site_rows import blobs

HOSTILE = "<script>alert(1)</script>&'\""
NOW = datetime(2026, 11, 22, tzinfo=UTC)


def declared(d: int, name: str = "x", n_sites: int = 3) -> Definition:
    features = [{"name": f"{name}{j}", "unit": "mg/dl"} for j in range(d)]
    sites = [f"site-{number}" for number in range(n_sites)]
    return definition(*features, name="heart-2026", sites=sites)


def outcome(n_clusters: int, d: int, n_sites: int = 3, **changes: Any) -> Result:
    means = np.random.default_rng(n_clusters).normal(size=(n_clusters, d)) * 100
    given: dict[str, Any] = {
        "columns": tuple(f"x{j}" for j in range(d)),
        "sizes": (30 * n_sites,) * n_clusters,
        "site_sizes": {f"site-{number}": (30,) * n_clusters for number in range(n_sites)},
        "quality": Quality(inertia=12.5, simplified_silhouette=0.5, davies_bouldin=0.7, n_rows=99),
        "history": tuple(
            HistoryEntry(round=number, phase="step", n_sites=3, inertia=20.0 / number)
            for number in range(1, 40)
        ),
        "n_rounds": 39,
        "stopped_because": "max_rounds",
    }
    return result_of(means, 1.0, 50.0, **{**given, **changes})


def wordy(n_clusters: int, d: int) -> Result:
    """Return a result that has everything that a result can say."""
    one = outcome(n_clusters, d, 30)
    bounds = {"certified": True, "statement": "Proven.", "n_clusters": n_clusters}
    counts = {"iterations": 3, "limited": 0, "splits": 1}
    return one.model_copy(
        update={
            "warnings": tuple(f"warning {number}: {HOSTILE} {'long ' * 80}" for number in range(9)),
            "bounds": Bounds(lower=9.0, upper=10.0, **bounds, **counts),
            "sweep": tuple(
                SweepEntry(n_clusters=k, inertia=100.0 / k, start_agreement=1.0, result=one)
                for k in range(2, 30)
            ),
            "n_clusters": n_clusters,
            "recommendation": f"K = 2: {HOSTILE}",
        }
    )


def site_result(found: Result, asked: Definition) -> SessionResult:
    entries = tuple(ProvenanceEntry(round=n, site="site-0", sha256="0" * 64) for n in range(90))
    return SessionResult(
        found,
        asked,
        PROVENANCE.model_copy(update={"sites": asked.sites, "submissions": entries}),
        NOW,
        site="site-0",
        labels_=np.zeros(100_000, dtype=np.int64),
        ids_=tuple(f"patient {number}" for number in range(1000)),
    )


def entry() -> SessionEntry:
    sites = tuple(SitePresence(name=f"site-{number}", state="joined") for number in range(200))
    return SessionEntry(
        name="heart-2026",
        state="running",
        created_by=HOSTILE,
        created_at=NOW,
        round=3,
        failure="long " * 500,
        definition=declared(50),
        definition_sha256="0" * 64,
        sites=sites,
    )


BIG = site_result(wordy(64, 50), declared(50, n_sites=30))
SHOWN = {
    "site": BIG,
    "analyst": SessionResult.of(BIG.document, BIG.definition),
    "document": BIG.document,
    "result": BIG.result,
    "one K": wordy(64, 50).sweep[0],  # type: ignore[index]
    "definition": BIG.definition,
    "long names": site_result(wordy(64, 50), declared(50, "ü" * 100)),
    "entry": entry(),
    "status": SessionStatus(
        session="heart",
        state="failed",
        site_state="joined",
        round=3,
        sent=2,
        in_flight=0,
        reason="reason " * 300,
    ),
    "preview": Preview(
        session="heart",
        round=1,
        body=bytes(10**5),
        fields={f"{HOSTILE} {k}": "(3, 4)" for k in range(99)},
        note="-" * 300,
    ),
    "profile": BIG.result.profile,
    "task": BIG.result.quality,
}


@pytest.mark.parametrize("kind", SHOWN)
def test_a_repr_fits_a_screen(kind: str) -> None:
    for text in (repr(SHOWN[kind]), str(SHOWN[kind])):
        lines = text.splitlines()
        assert 1 <= len(lines) <= 20, text
        assert max(map(len, lines)) <= 100, text
        assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("kind", ["site", "analyst", "entry", "status", "preview"])
def test_a_notebook_gets_escaped_markup_and_no_colour_of_text(kind: str) -> None:
    text = SHOWN[kind]._repr_html_()
    page = Page(text)

    assert "script" not in page.names
    assert len(text) < 700_000
    assert "fedclust" in text
    assert "body{" not in text
    assert kind not in ("site", "analyst", "entry", "preview") or HOSTILE in page.words


def test_no_result_shows_labels_or_identifiers() -> None:
    for text in (repr(BIG), BIG._repr_html_()):
        assert not re.search(r"patient \d", text)
        assert "labels" not in text


@pytest.fixture(scope="module")
def swept() -> Any:
    sites = blobs(np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 9.0]]), [40, 50, 45], spread=0.5)
    return simulate("lloyd", sites, config={"n_clusters": [2, 3]}, features=["u", "size"])


def test_a_result_says_what_was_found(swept: Any) -> None:
    first, *lines = repr(swept).splitlines()
    assert first.startswith("SessionResult: 3 clusters by lloyd, 2 columns, 3 sites, 405 persons")
    head = next(
        i for i, line in enumerate(lines) if line.split() == ["cluster", "persons", "u", "size"]
    )
    for k, line in enumerate(lines[head + 1 : head + 4]):
        number, size, *values = line.split()
        assert (int(number), int(size)) == (k, swept.sizes_[k])
        np.testing.assert_allclose(
            [float(value) for value in values], swept.cluster_centers_[k], atol=0.01
        )
    assert " ".join(answer(swept)) in repr(swept).replace("\n", " ")
    # The table of all K says it.
    assert "recommended" not in "".join(answer(swept))
    assert "recommended" not in repr(swept.at(2))
    words = Page(swept._repr_html_()).words
    assert answer(swept)[0] in words
    for key in ("Each cluster in numbers", "Persons in each cluster", "Number of clusters"):
        assert key in words


def test_every_warning_and_an_unknown_entry_are_shown() -> None:
    known = np.array([[True, False], [True, True]])
    found = outcome(2, 2, mask=known, warnings=("first <b>", "second"), profile=None)
    result = site_result(found, declared(2))
    text, page = repr(result), Page(result._repr_html_())

    for warning in ("first <b>", "second"):
        assert f"warning: {warning}" in text
        assert f"Warning: {warning}" in page.words
    row = next(line for line in text.splitlines() if line.split()[:1] == ["0"])
    assert row.split()[-1] == "–"
    assert np.isnan(result.to_frame()["x1"][0])


def test_without_evaluation_a_result_says_so() -> None:
    bare = outcome(2, 2, sizes=None, site_sizes={}, quality=None, profile=None, history=())
    result = site_result(bare, declared(2))
    assert "<svg" not in result._repr_html_()
    assert result.to_frame()["size"].isna().all()
    with pytest.raises(UsageError, match="no closing evaluation"):
        result.to_frame("sites")
    assert len(result.to_frame("history")) == 0
    assert repr(result.plot) == "Plots of heart-2026: none"


@pytest.mark.parametrize(
    ("sizes", "unknown"),
    [(None, "sizes, profile and quality"), ((90, 90), "profile and quality")],
)
def test_a_method_may_count_persons_without_evaluation(sizes: Any, unknown: str) -> None:
    result = site_result(outcome(2, 2, sizes=sizes, quality=None, profile=None), declared(2))
    said = f"no closing evaluation: {unknown} are not known"
    assert said in repr(result)
    assert f"There was {said}." in Page(result._repr_html_()).words


def test_frames_hold_what_the_result_does(swept: Any) -> None:
    clusters = swept.to_frame()
    assert clusters.index.name == "cluster"
    # A feature has the name size.
    assert list(clusters.columns) == ["size_", "u", "size"]
    np.testing.assert_array_equal(clusters[["u", "size"]], swept.cluster_centers_)
    assert clusters["size_"].tolist() == list(swept.sizes_)
    by_k = swept.to_frame("k")
    assert by_k.index.tolist() == [2, 3]
    assert by_k["inertia"].tolist() == [each.inertia for each in swept.sweep_]
    assert by_k["start_agreement"].dtype == float
    sites = swept.to_frame("sites")
    assert {name: tuple(sites[name]) for name in sites} == swept.result.site_sizes
    history = swept.to_frame("history")
    assert history.index.tolist() == [each.round for each in swept.history_]
    assert history["lower_bound"].isna().all()


def test_a_frame_that_cannot_be_had_says_why(swept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for table, reason in (
        ("k", "nothing to compare"),
        ("rows", "outcomes, outcome_counts, k, history"),
    ):
        with pytest.raises(UsageError, match=reason):
            swept.at(2).to_frame(table)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"pip install 'fedclust\[data\]'"):
        swept.to_frame()


def test_plots_list_themselves_and_a_figure_is_short(swept: Any) -> None:
    names = ["profile", "sizes", "mix", "forest"]
    names += ["survival", "choice", "convergence", "tree", "trajectory"]
    assert set(names) == {name for name in dir(swept.plot) if not name.startswith("_")}
    assert "choice()" in repr(swept.plot)
    figure = swept.plot.choice()
    assert repr(figure) == str(figure) == "Figure('Choosing the number of clusters', 720 x 260)"
    ElementTree.fromstring(figure._repr_svg_())  # noqa: S314


def test_measures_of_quality_say_that_they_are_of_the_records() -> None:
    said = "inertia 12.5, simplified silhouette 0.5, Davies-Bouldin 0.7"
    for found, of in ((BIG, " of the groups' records"), (unprotected(BIG), "")):
        assert f"{said}{of}\n" in text_overview(found)
        assert f"<p>quality: {said}{of}</p>" in html.unescape(html_overview(found))
