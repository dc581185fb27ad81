"""Figures of stability and of the number of clusters: what is drawn is what was counted."""

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fedclust.result.drawing import Figure
from fedclust.result.facts import Facts
from fedclust.result.figures.plots import Plots
from fedclust.result.methods_text import methods_text
from fedclust.result.one_cloud import NOT_MEASURED, chosen_text, shown_text
from fedclust.result.page import html
from fedclust.schema.result import CloudComparison, Stability, SweepEntry
from fedclust.wire.errors import UsageError
from support.drawings import check_drawing, words_of
from support.results import facts_of

NAMES = ["age", "systolic blood pressure after ten minutes at rest", "lactate", "noise"]
MEANS = np.array([[50.0, 120.0, 2.0, 0.1], [50.0, 150.0, 8.0, 0.1], [62.0, 120.0, 2.0, 0.0]])


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
        recovered=np.array([0.9, *[1.0] * (count - 2), 0.89]),
        dissolved=np.zeros(count),
        consensus=consensus,
    )


# --- stability ------------------------------------------------------------------------------------


def _stability_rows(page: str) -> list[list[str]]:
    """Return the cells of the table of stability, without its head."""
    table = page.partition("mean Jaccard</th>")[2].partition("</table>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]


def test_measures_of_stability_are_those_of_clusters_that_stand_apart() -> None:
    cloud = CloudComparison(n_draws=20, p=0.002, cluster_p=np.array([0.02, 0.3, 0.0001]))
    facts = facts_of(MEANS, NAMES, stability=_measured([0.95, 0.7, 0.02]), one_cloud=cloud)
    page = html(facts).replace("\u00a0", " ")
    said = ["stands apart: p = 0.02", "does not stand apart: p = 0.3", "stands apart: p &lt; 0.001"]
    for text in said:
        assert f'<p class="soft">{text}' in page
    assert [row[1:] for row in _stability_rows(page)] == [
        [said[0], "0.95", "90 %", "0 %"],
        [said[1], "cannot tell", "", ""],
        [said[2], "0.02", "89 %", "0 %"],
    ]
    # Of the third, found again in 89 %, nobody can tell how often its persons are.
    assert page.count("; found again in nearly all resampled data sets") == 1
    text = methods_text(facts)
    assert "was 0.95 (cluster 0), 0.02 (cluster 2)." in text
    # Records of one person each tell it of every cluster.
    exact = facts.definition.model_copy(
        update={"policy": facts.definition.policy.model_copy(update={"protection": "none"})}
    )
    rows = _stability_rows(html(replace(facts, definition=exact)))
    assert [row[2] for row in rows] == ["0.95", "0.7", "0.02"]


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
    rows = _stability_rows(html(facts))
    assert [row[1:] for row in rows] == [[says, "cannot tell", "", ""]] * 3
    assert NOT_MEASURED in methods_text(facts)


def _swept(count: int, recommended: int) -> Facts:
    rng = np.random.default_rng(0)
    entries = []
    for k in range(2, count + 2):
        found = facts_of(rng.normal(size=(k, 2)), ["u", "v"]).result
        entries.append(SweepEntry(n_clusters=k, start_agreement=0.5, result=found))
    means = rng.normal(size=(recommended, 2))
    return facts_of(means, ["u", "v"], sweep=tuple(entries), n_clusters=recommended)


def test_what_was_not_measured_is_not_drawn() -> None:
    with pytest.raises(UsageError, match="no differences between clusters are known"):
        Plots(facts_of(MEANS, NAMES, profile=None)).profile()


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
