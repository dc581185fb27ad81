"""Whole sessions: equality with central Lloyd, the order of sites, and every awkward case."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust import SessionResult, simulate
from fedclust.data import Dataset
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.wire.codec import encode_model
from support.points import of_rows, repeated
from support.site_rows import blobs, breast_cancer, central_lloyd, pooled

CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [6.0, 6.0]])


def lloyd(sites: Any, n_clusters: int, **how: Any) -> SessionResult:
    return simulate("lloyd", sites, config={"n_clusters": n_clusters}, **how)


def _pooled_labels(result: SessionResult) -> np.ndarray:
    return np.concatenate([result.labels_[site] for site in sorted(result.labels_)])


# --- equality with the central algorithm ----------------------------------------------------------


@pytest.mark.parametrize(("n_clusters", "seed"), [(2, 1), (3, 2), (5, 7)])
@pytest.mark.parametrize(
    ("protection", "scaling"), [("none", "none"), ("none", "standard"), ("groups", "none")]
)
def test_it_equals_central_lloyd_on_the_rows_or_the_points_of_all_sites(
    n_clusters: int, seed: int, protection: str, scaling: str
) -> None:
    sites = breast_cancer(seed)
    exact = protection == "none"
    points = pooled({name: X if exact else repeated(of_rows(X)) for name, X in sites.items()})
    start = points[np.random.default_rng(seed).choice(len(points), n_clusters, replace=False)]
    result = simulate(
        "lloyd",
        sites,
        config={"n_clusters": n_clusters, "start": "given", "centroids": start, "tol": 0.0},
        policy={"protection": protection, "scaling": scaling, "max_rounds": 500},
    )
    center, scale = 0.0, 1.0
    if scaling == "standard":
        center, scale = points.mean(axis=0), points.std(axis=0)
    centroids, labels, inertia = central_lloyd((points - center) / scale, (start - center) / scale)
    order = np.lexsort(centroids.T[::-1])

    assert result.stopped_because_ == "converged"
    assert result.quality_.n_rows == len(points)
    np.testing.assert_allclose(result.result.centroids, centroids[order], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        result.cluster_centers_, centroids[order] * scale + center, rtol=1e-10
    )
    assert result.inertia_ == pytest.approx(inertia, rel=1e-10)
    assert result.sizes_ == tuple(np.bincount(labels)[order])
    if exact:
        np.testing.assert_array_equal(_pooled_labels(result), np.argsort(order)[labels])


def test_an_offset_of_1e8_changes_nothing_but_the_offset() -> None:
    """Without groups: their records of such numbers are rounded to a two-thousandth of them."""
    sites = blobs(CENTRES, (12, 20, 31))
    shifted = {site: rows + 1e8 for site, rows in sites.items()}
    how: Any = {"config": {"n_clusters": 4}, "policy": {"protection": "none"}}
    here, there = (simulate("lloyd", rows, **how) for rows in (sites, shifted))

    np.testing.assert_allclose(there.cluster_centers_ - 1e8, here.cluster_centers_, atol=1e-6)
    np.testing.assert_array_equal(_pooled_labels(there), _pooled_labels(here))
    np.testing.assert_allclose(there.result.scale, here.result.scale, rtol=1e-7)


def test_cells_find_separated_clusters_from_nothing_and_the_trace_holds_all_that_was_sent() -> None:
    result = lloyd(blobs(CENTRES, (12, 20, 31)), 4)

    found = sorted((result.cluster_centers_ / 6).round().tolist())
    assert found == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert result.sizes_ == (63, 63, 63, 63)
    assert result.quality_.simplified_silhouette > 0.9
    rounds = [entry.round for entry in result.history_]
    assert [(e.round, e.site) for e in result.trace_] == [(n, s) for n in rounds for s in "abc"]
    assert all(entry.size > 0 for entry in result.trace_)
    assert result.n_rounds_ == len(rounds) - 2


# --- same bytes -----------------------------------------------------------------------------------


def test_the_order_of_sites_changes_no_byte() -> None:
    sites = breast_cancer()
    reference = lloyd(sites, 4, seed=5)
    reordered = lloyd(dict(reversed(sites.items())), 4, seed=5)
    assert encode_model(reordered.result) == encode_model(reference.result)


# --- defined for every awkward case ---------------------------------------------------------------


def test_fewer_received_cells_than_clusters_are_returned_with_a_warning() -> None:
    sites = blobs(CENTRES[:1], (6, 7, 8))
    result = lloyd(sites, 12)

    assert len(result.cluster_centers_) < 12
    few = ("3 groups of persons in all", "all at one site", "All records are equal", "3 distinct")
    for said, warning in zip(few, result.warnings_, strict=True):
        assert said in warning
    assert sum(size or 0 for size in result.sizes_) == 21


@pytest.mark.parametrize("scaling", ["none", "standard"])
def test_sites_with_fewer_than_p_persons_everywhere_fail_and_say_what_to_change(
    scaling: str,
) -> None:
    sites = {site: rows[:4] for site, rows in blobs(CENTRES, (3, 3, 3)).items()}

    with pytest.raises(MethodFailure, match="min_group_size") as caught:
        lloyd(sites, 4, policy={"scaling": scaling})
    assert caught.value.reason == "too_few_contributors"


def test_rows_that_are_all_alike_are_one_group_and_one_centroid() -> None:
    sites = {site: np.full((40, 2), 3.5) for site in ("a", "b", "c")}
    result = lloyd(sites, 2)

    assert result.cluster_centers_.tolist() == [[3.5, 3.5]]
    assert result.sizes_ == (120,)


def test_repeated_given_centroids_are_one_with_a_warning() -> None:
    result = simulate(
        "lloyd",
        blobs(CENTRES[:1], (20, 20, 20)),
        config={"n_clusters": 3, "start": "given", "centroids": [[0, 0], [99, 99], [99, 99]]},
        policy={"scaling": "none"},
    )

    assert result.cluster_centers_[1].tolist() == [99.0, 99.0]
    assert result.sizes_ == (60, 0)
    assert "2 distinct" in " ".join(result.warnings_)


def test_a_site_without_a_feature_takes_part_with_it_imputed() -> None:
    sites = blobs(CENTRES, (20, 20, 20, 20))
    sites["b"][:, 1] = np.nan
    result = lloyd(sites, 4, policy={"missing": "impute"})
    own = {
        entry.payload.observed[1]
        for entry in result.trace_
        if entry.site == "b" and entry.phase == "prepare"
    }

    assert own == {0}
    assert (result.labels_["b"] >= 0).all()


# --- how it is called -----------------------------------------------------------------------------


ROWS = np.random.default_rng(0).normal(size=(20, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": {"p": 3}}, 'policy: unknown field "p". There are: min_sites'),
        ({"policy": {"scaling": "zscore"}}, "policy.scaling: .*'bounds'"),
        ({"features": [1, 2]}, r"features\[0\]"),
        ({"features": [{"name": "x", "units": "kg"}, "y"]}, r"features\[0\]: unknown field"),
        ({"features": "xy"}, "sequence of features"),
        ({"config": None}, "config: "),
        ({"config": {"n_clusters": 2, "tol": np.nan}}, "JSON"),
        ({"config": {"n_clusters": object()}}, "JSON"),
        ({"seed": -1}, "seed"),
        ({"seed": None}, "seed"),
        ({"sites": [ROWS, ROWS, ROWS]}, "mapping of each site's name"),
        ({"sites": {}}, "at least one site"),
        ({"sites": {1: ROWS, "b": ROWS, "c": ROWS}}, "must be text, not 1"),
        ({"sites": {"A b": ROWS, "b": ROWS, "c": ROWS}}, r"sites\[0\]"),
        ({"persons": np.arange(20)}, "persons must be a mapping"),
        ({"persons": {"z": np.arange(20)}}, "persons are given for z"),
        ({"persons": {"b": np.arange(3)}}, "site 'b': .*3 persons were given for 20 rows"),
        ({"persons": {"b": [np.nan, *range(19)]}}, "site 'b': .*row 0: no person"),
    ],
)
def test_a_wrong_call_is_a_value_error_that_names_what_to_change(
    change: dict[str, Any], message: str
) -> None:
    sites = {"a": ROWS, "b": ROWS + 1, "c": ROWS + 2}
    arguments = {"sites": sites, "config": {"n_clusters": 2}, **change}

    with pytest.raises(ValueError, match=message) as caught:
        simulate("lloyd", **arguments)
    assert "pydantic" not in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("n_clusters", r'write config=\{"n_clusters": \.\.\.\} instead of n_clusters='),
        ("clusters", r'write config=\{"n_clusters": '),
        ("min_group_sizes", r'write policy=\{"min_group_size": '),
        ("feature", 'did you mean "features"'),
        ("q", "There are: method, sites, config, "),
    ],
)
def test_an_argument_that_is_unknown_names_what_was_meant(argument: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        simulate("lloyd", {"a": ROWS}, **{argument: 4})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[:, :1], "shape"),
        ([[1, 2], [3]], "equally long"),
        (None, "not numbers"),
        (np.where(ROWS > 1, np.inf, ROWS), "column 'x0': infinite"),
        (pd.DataFrame(ROWS, columns=["x0", "y"]), "column 'x1'"),
        (pd.DataFrame({"x0": ROWS[:, 0], "x1": "?"}), "row 0, column 'x1': not a number"),
    ],
)
def test_rows_that_do_not_fit_are_refused_naming_site_and_column(rows: Any, message: str) -> None:
    with pytest.raises(RuleViolation, match=f"site 'b': .*{message}"):
        lloyd({"a": ROWS, "b": rows, "c": ROWS}, 2, features=["x0", "x1"])


def _rows_with_a_value_too_large() -> dict[str, Any]:
    yes_no = np.column_stack([np.arange(20) % 2, np.linspace(0, 1, 20)])
    wrong = yes_no.copy()
    wrong[3:5, 0] = 1.5
    return {"a": yes_no, "b": wrong, "c": yes_no}


def test_a_column_of_more_than_two_numbers_is_no_yes_no_feature() -> None:
    features = [{"name": "x", "kind": "binary"}, "y"]

    sites = _rows_with_a_value_too_large()
    sites["b"][:, 0] *= 2

    with pytest.raises(RuleViolation, match=r"site 'b': .*asks for 0 and 1"):
        lloyd(sites, 1, features=features)


def test_bounds_clip_the_rows_of_a_session_without_protection() -> None:
    sites = _rows_with_a_value_too_large()
    clipped = {site: np.minimum(rows, 1.0) for site, rows in sites.items()}
    options = {"config": {"n_clusters": 2}, "policy": {"protection": "none"}}
    bounded = [{"name": "x", "lower": 0, "upper": 1}, "y"]

    found = simulate("lloyd", sites, features=bounded, **options)
    same = simulate("lloyd", clipped, features=bounded, **options)

    np.testing.assert_array_equal(found.cluster_centers_, same.cluster_centers_)


def test_what_is_masked_or_missing_is_missing_whatever_holds_it() -> None:
    sites = {"a": ROWS, "b": np.where(ROWS > 1, np.nan, ROWS), "c": ROWS}
    frame = pd.DataFrame(ROWS, columns=["x0", "x1"]).mask(ROWS > 1).astype("Float64")
    plain = lloyd(sites, 2)
    for rows in (np.ma.masked_greater(ROWS, 1), frame):
        result = lloyd({**sites, "b": rows}, 2)
        assert encode_model(result.result) == encode_model(plain.result)
        np.testing.assert_array_equal(result.labels_["b"], plain.labels_["b"])


def test_numbers_of_numpy_files_and_sites_without_rows_are_taken(tmp_path: Any) -> None:
    path = tmp_path / "b.csv"
    pd.DataFrame(ROWS, columns=["x1", "x0"]).to_csv(path, index=False)
    sites = {"a": ROWS, "b": path, "c": ROWS, "d": np.empty((0, 2))}
    sites["e"] = pd.DataFrame({"x0": [], "x1": []})
    result = lloyd(sites, np.int64(2), seed=np.int64(3))

    np.testing.assert_array_equal(result.labels_["b"], result.predict(ROWS[:, ::-1]))
    in_blocks = lloyd({**sites, "b": Dataset(path, out_of_core=True)}, 2, seed=3)
    np.testing.assert_array_equal(result.labels_["b"], in_blocks.labels_["b"])
    assert result.labels_["d"].shape == result.labels_["e"].shape == (0,)

    levels = {"name": "x1", "kind": "categorical", "levels": ["0", "1", "2"]}
    whole = np.column_stack([ROWS[:, 0], np.arange(len(ROWS)) % 3])
    sites = {"a": whole, "b": whole, "c": whole, "d": np.empty((0, 2))}
    result = lloyd(sites, 2, features=["x0", levels])
    assert result.labels_["d"].shape == (0,)
