"""What the benchmarks rest on: data as the papers count them, resumable runs."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import _data
import _hospitals
import _runs
from _baselines import accuracy, partition_cost
from _separation import separation


def test_every_benchmark_can_be_imported() -> None:
    for path in sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py")):
        runpy.run_path(str(path))


def test_sites_of_benchmarks_and_examples_leave_the_accounts_groups_alone() -> None:
    taking_part = re.compile(r"\.participate\(|consortium\.run\(|\"participate\"")
    root = Path(__file__).parents[1]
    files = [*(root / "benchmarks").glob("*.py"), *(root / "examples").glob("*.py")]
    found = [path for path in files if taking_part.search(path.read_text("utf-8"))]
    names = {path.name for path in found}
    assert {"_floor.py", "workers.py", "heart_disease.py", "support.py"} <= names
    # `hospitals.command` starts the sites of the examples.
    for path in (*found, root / "examples" / "hospitals.py"):
        text = path.read_text("utf-8")
        assert "FEDCLUST_STATE_DIR" in text or "hospitals.command(" in text, path.name


def test_the_uneven_split_has_the_published_clusters_and_sizes() -> None:
    for seed in range(20):
        data = _data.fkm("uneven", 1.0, seed=seed)
        counted = [(len(np.unique(data.y[rows])), len(rows)) for rows in data.split.values()]
        assert counted == list(_data.UNEVEN)
        assert len(np.unique(data.held)) == len(data.held) == 788


def test_beta_deals_every_row_to_one_client_and_more_evenly_as_it_grows() -> None:
    held = {}
    for split in ("voronoi", "0.1", "1", "10"):
        data = _data.fkm(split, 1.0)
        assert np.array_equal(data.held, np.arange(800))
        held[split] = sum(len(np.unique(data.y[rows])) for rows in data.split.values())
    assert held["voronoi"] < held["0.1"] < held["1"] <= held["10"] == 80


def test_the_papers_data_are_x_then_y_of_each_cluster_from_seed_42() -> None:
    rng = np.random.RandomState(42)
    x, y = rng.normal(-7.5, 1.5, 50), rng.normal(-7.5, 1.5, 50)
    assert np.array_equal(_data.fkm("1", 1.5).X[:50], np.column_stack([x, y]))


def means_and_gap(data: Any) -> tuple[Any, float]:
    """Return the means of 16 classes, and the least distance between two of them."""
    means = np.array([data.X[data.y == k].mean(axis=0) for k in range(16)])
    return means, np.linalg.norm(means[:, None] - means, axis=2)[np.triu_indices(16, 1)].min()


def test_mixtures_are_as_far_apart_as_asked() -> None:
    data = _data.mixture(16, 20, sigma=6.0, points=400)
    assert means_and_gap(data)[1] == pytest.approx(6.0, abs=0.15)
    assert len(data.split) == 20
    assert all(len(np.unique(data.y[rows])) == 4 for rows in data.split.values())


def test_c_is_the_active_separation_of_definition_3_5() -> None:
    data = _data.mixture(16, 20, c=2.0)
    norm = _data.norm_of_rest(data.X, data.y)
    means, gap = means_and_gap(data)
    rest = data.X - means[data.y]
    assert norm == pytest.approx(np.linalg.norm(rest, 2))
    delta = 4 * norm / np.sqrt(100)
    assert gap == pytest.approx(2 * 2.0 * np.sqrt(5) * 2 * delta, rel=0.01)


def test_a_structured_split_gives_no_site_more_clusters_than_asked() -> None:
    y = np.repeat(np.arange(20), 30)
    split = _data.structured(y, 20, 3, np.random.default_rng(0))
    assert max(len(np.unique(y[rows])) for rows in split.values()) <= 3
    assert np.array_equal(np.sort(np.concatenate(list(split.values()))), np.arange(600))


def test_measures_by_hand() -> None:
    y = np.array([0, 0, 1, 1])
    assert accuracy(y, np.array([1, 1, 0, 1])) == 0.75
    X = np.array([[0.0], [2.0], [5.0], [5.0]])
    assert partition_cost(X, np.array([0, 0, 1, 1])) == 2.0


def _square(x: int) -> dict[str, Any]:
    if x > 2:
        raise ArithmeticError("measured again")
    return {"y": x * x}


def test_what_was_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_runs, "RESULTS", tmp_path)
    path = tmp_path / "cache" / "part.jsonl"
    job = _runs.Job(_square, {"x": 3})
    path.parent.mkdir()
    key = job.key("code")
    # The last line is what a kill leaves of a record.
    path.write_text(f'{{"key": "{key}", "record": {{"y": 9}}}}\n{{"key": "ab', "utf-8")
    assert _runs.run("part", [job], "code") == [{"y": 9}]
    assert job.key("other code") != key
    assert _runs.Job(_square, {"x": 4}).key("code") != key


def test_spreads_leave_out_what_is_not_there() -> None:
    figures = _runs.Spread.of([1.0, None, 3.0])
    assert (figures.mean, figures.n) == (2.0, 2)
    assert figures.sd == pytest.approx(np.sqrt(2))
    assert figures.se == pytest.approx(1.0)
    assert str(_runs.Spread.of([])) == "-"


def test_hospitals_have_the_features_that_the_benchmark_says() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 40)
    # Windows share 30 % with the next, and leave no feature out.
    masks = _hospitals.masks(1, rng.normal(size=(80, 370)) + y[:, None], y, 10, seed=1)
    assert masks.any(axis=0).all()
    shared = masks.astype(int) @ masks.T
    assert np.abs(np.diag(shared, 1) / masks.sum(axis=1)[0] - 0.3).max() < 0.05
    assert not np.triu(shared, 2).any()
    # A tenth of the features is everywhere, the rest at one site each.
    masks = _hospitals.masks(2, rng.normal(size=(80, 400)) + y[:, None], y, 10, seed=1)
    counts = masks.sum(axis=0)
    assert (counts == 10).sum() == 40
    assert (counts == 1).sum() == 360
    # Every site gets its share of the telling features.
    X = rng.normal(size=(80, 100))
    X[:, :10] += 9.0 * y[:, None]
    hands = _hospitals.dealt(X, y, 10, rng)
    assert all((hand < 10).sum() == 1 for hand in hands)


def test_numbers_of_rows_are_those_of_a_session_without_protection() -> None:
    """Of rows by statsmodels, lifelines and SciPy; of exact counts by the session."""
    support = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "support.py"))
    study_file = Path(__file__).parents[1] / "examples" / "support_study.py"
    said = runpy.run_path(str(study_file)) | {"MORE_FEATURES": "", "K": 2}
    rng, n = np.random.default_rng(0), 600
    names = [each.split()[0] for each in said["FEATURES"].split(";")]
    kind, days = rng.integers(0, 2, n), rng.integers(1, 500, n)
    rows = pd.DataFrame(rng.normal(30 + 5 * kind[:, None], 1, (n, len(names))), columns=names)
    died = (rng.random(n) < 0.2 + 0.3 * kind).astype(int)
    more = {"died_60": died, "hospital_days": rng.integers(1, 30, n)}
    rows = rows.assign(**more, days=days, death=(days < 400).astype(int), dzgroup="CHF")
    study = support["Study"](rows, said)
    one = support["compare"](study, study.split(0), support["UNPROTECTED"], 1)
    assert np.array_equal(one.label, one.own)
    found = {(x["outcome"], x["what"], x["cluster"]): x for x in support["numbers"](study, one)}
    assert all(each["inside"] != "no" for each in found.values())
    exact = ("yes", "odds_ratio", "risk_difference", "cell 2", "superiority", "S(60)", "S(180)")
    told = [each for (_, what, _), each in found.items() if what in exact]
    assert len(told) == 11
    for each in told:
        assert each["printed"] == pytest.approx(each["rows"], rel=1e-9)


def test_the_conditions_of_kfeds_theorem_3_1_are_measured_as_by_hand() -> None:
    # Clusters 0, 1 and 2 about 0, 10 and 40, of 4, 4 and 2 rows; each row 1 from its mean.
    on_line = {"a": [-1, 1, -1, 9, 11], "b": [1, 39, 41], "c": [9, 11]}
    labels = {"a": [0, 0, 0, 1, 1], "b": [0, 2, 2], "c": [1, 1]}
    found = separation(
        {site: np.array(own, dtype=float)[:, None] for site, own in on_line.items()},
        {site: np.array(own) for site, own in labels.items()},
    )

    root = np.sqrt(10)  # ||A - C||: all ten rows are 1 from their means
    assert found.spread == pytest.approx(root)
    assert (found.k_prime, found.m0) == (2, 4.0)
    assert (found.active.tolist(), found.inactive.tolist()) == ([[0, 1], [0, 2]], [[1, 2]])
    delta = {r: 2 * root / np.sqrt(n) for r, n in ((0, 4), (1, 4), (2, 2))}
    expected = [10 / (2 * (delta[0] + delta[1])), 40 / (2 * (delta[0] + delta[2]))]
    np.testing.assert_allclose(found.active_separation, expected)
    lambdas = [np.sqrt(2) * root / 2, np.sqrt(2) * root / np.sqrt(2)]
    np.testing.assert_allclose(found.inactive_separation, [30 / (2 * sum(lambdas))])

    near = np.concatenate([np.linspace(-1, 1, 40), np.linspace(99, 101, 40)])[:, None]
    halves = {"a": np.repeat([0, 1], 40)}
    assert separation({"a": near}, halves).proximity == 1
    near[0] = 49.0
    assert separation({"a": near}, halves).proximity == pytest.approx(1 - 1 / 80)
