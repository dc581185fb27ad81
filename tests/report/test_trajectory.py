"""Trajectories in a result: a curve for each cluster; and in an estimator, columns by name."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from fedclust import simulate
from fedclust.local.estimators import FederatedKMeans
from fedclust.result.drawing import short
from fedclust.wire.errors import UsageError

GRID = (0, 1, 7)
TRAJECTORY: dict[str, Any] = {"name": "crea", "kind": "trajectory", "grid": GRID, "window": 1}
COLUMNS = [f"crea@{time}" for time in GRID]
TRENDS = np.array([[1.0, 1.0, 1.0], [1.0, 3.0, 1.5]])


def rows(seed: int) -> pd.DataFrame:
    """Return 60 patients whose value stays level, or rises and falls."""
    rng = np.random.default_rng(seed)
    values = TRENDS[np.arange(60) % 2] + rng.normal(0.0, 0.1, (60, 3))
    return pd.DataFrame(values, columns=COLUMNS)


def test_the_page_draws_a_trajectory_with_the_means_of_the_clusters(tmp_path: Path) -> None:
    sites = {name: rows(seed) for seed, name in enumerate("abc")}
    result = simulate("fkm", sites, features=[TRAJECTORY], config={"n_clusters": 2})
    drawn = result.plot.trajectory("crea").svg
    assert result.plot.trajectory().svg == drawn
    for k, means in enumerate(result.result.profile.means):
        said = ", ".join(f"{short(mean)} at {time}" for mean, time in zip(means, GRID, strict=True))
        assert f"Cluster {k}: {said}" in drawn
    result.save_report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.count("crea over time") == page.count("cannot be known well from groups") == 1
    exact = simulate(
        *("fkm", sites),
        features=[TRAJECTORY],
        config={"n_clusters": 2},
        policy={"protection": "none"},
    )
    exact.save_report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert (page.count("crea over time"), page.count("from groups")) == (1, 0)
    with pytest.raises(UsageError, match=r"no trajectory x with a grid .* it has 'crea'"):
        result.plot.trajectory("x")


def test_the_heat_map_draws_a_trajectory_as_one_row_of_curves(tmp_path: Path) -> None:
    sites = {n: rows(s).assign(age=40 + np.arange(60) % 7) for s, n in enumerate("abc")}
    features = [{"name": "age"}, TRAJECTORY]
    result = simulate("fkm", sites, features=features, config={"n_clusters": 2})
    drawn = ElementTree.fromstring(result.plot.profile().svg)  # noqa: S314  (our own)
    words = [each.text for each in drawn.iter() if each.tag.endswith("text")]
    assert [word for word in words if word in ("age", "crea", *COLUMNS)] == ["crea", "age"]
    # Each curve has a point for each time, at heights that the means of all clusters fix.
    lines = [each.get("points", "") for each in drawn.iter() if each.tag.endswith("polyline")]
    assert len(lines) == 2 * 2
    means = np.array(result.result.profile.means)[:, 1:]
    heights = -np.array([[float(p.split(",")[1]) for p in line.split()] for line in lines[::2]])
    share = (heights - heights.min()) / np.ptp(heights)
    np.testing.assert_allclose(share, (means - means.min()) / np.ptp(means), atol=0.005)
    result.save_report(tmp_path / "report.html")
    assert "A trajectory is one row" in (tmp_path / "report.html").read_text("utf-8")


def test_a_summary_and_other_features_have_no_curve() -> None:
    summary = {"name": "crea", "kind": "trajectory", "summary": ["first", "peak"]}
    table = rows(0).iloc[:, :2].set_axis(["crea@first", "crea@peak"], axis=1)
    result = simulate(
        "fkm", dict.fromkeys("abc", table), features=[summary], config={"n_clusters": 2}
    )
    with pytest.raises(UsageError, match="no trajectory with a grid"):
        result.plot.trajectory()


def test_an_estimator_counts_the_columns_of_a_trajectory() -> None:
    table = pd.concat([rows(seed) for seed in range(3)])
    fitted = FederatedKMeans(2, features=[TRAJECTORY], random_state=0)
    fitted.fit(table, sites=np.repeat(["a", "b", "c"], 60))
    assert fitted.feature_names_in_.tolist() == COLUMNS
    assert fitted.n_features_in_ == len(COLUMNS)
    assert np.array_equal(fitted.predict(table), fitted.labels_)
