"""What a result says where its numbers rest on little: few groups, no persons, missing values."""

from typing import Any

import numpy as np
import pytest

from fedclust import SessionResult, simulate
from fedclust.result.page import html


def run(method: str, n_clusters: Any, rows: dict[str, Any], **policy: Any) -> SessionResult:
    config = {"n_clusters": n_clusters}
    return simulate(method, rows, config=config, policy=policy, progress=False)


def sites(n: int, d: int = 2) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(n, d)) for name in "abc"}


@pytest.mark.parametrize("method", ["lloyd", "overlap", "spectral", "mixture"])
def test_more_clusters_than_groups_are_said(method: str) -> None:
    found = run(method, 20, sites(20))

    assert any("have 9 groups of persons in all, and 20" in text for text in found.warnings_)
    assert "have 9 groups of persons in all" in html(found)
    empty = sum(size == 0 for size in found.result.sizes or ())
    said = f"{empty} of the {len(found.result.sizes or ())} clusters hold no persons"
    assert any(said in text for text in found.warnings_) == (empty > 0)
    assert (empty > 0) == (method == "mixture")


def test_each_number_of_clusters_has_its_own_warning() -> None:
    found = run("lloyd", [2, 20], sites(20)).result

    said = ["groups of persons in all" in " ".join(found.at(k).warnings) for k in (2, 20)]
    assert said == [False, True]


def test_a_site_below_p_is_said_to_be_not_in_the_result() -> None:
    found = run("lloyd", 2, {**sites(40), "few": sites(4)["a"]})

    assert "few" not in found.result.site_sizes
    assert any(text.startswith("1 of 4 sites sent no numbers") for text in found.warnings_)


@pytest.mark.parametrize(("share", "warns"), [(0.0, False), (0.2, False), (0.8, True)])
def test_a_result_that_rests_on_imputed_values_says_so(share: float, *, warns: bool) -> None:
    rng, rows = np.random.default_rng(1), sites(200, 6)
    for each in rows.values():
        each[rng.random(each.shape) < share] = np.nan

    found = run("lloyd", 3, rows, missing="impute")

    assert any("of the values are imputed, also" in text for text in found.warnings_) == warns


def test_persons_of_groups_that_lack_a_value_are_said_to_be_left_out() -> None:
    """At each site 20 of 60 persons lack the same column, so groups of theirs are left out."""
    rows = sites(60)
    for each in rows.values():
        each[:20, 1] = np.nan

    found = run("lloyd", 2, rows, missing="drop")

    quality = found.result.quality
    assert (quality.n_rows, quality.n_left_out) == (120, 60)
    said = "60 of 180 persons are not in the result"
    assert any(said in text and "missing: impute" in text for text in found.warnings_)
    assert said in html(found)
    assert "were left out (60 of 180 persons)" in found.methods_text()
    assert not any("not in the result" in text for text in run("lloyd", 2, sites(60)).warnings_)
