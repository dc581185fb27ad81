"""From declared features to the columns that methods see, and back."""

from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import simulate
from fedclust.methods.registry import METHODS
from fedclust.schema.encoding import (
    blocks_of,
    columns_of,
    encode_features,
    feature_names,
    transformed,
    undone,
)
from fedclust.schema.feature import Feature
from fedclust.schema.run_config import Policy
from fedclust.schema.scaling import declared_space, own_bounds, standard_scale
from support.method_variants import TRIED

pd = pytest.importorskip("pandas")

LEVELS = ("typical", "atypical", "none")
FEATURES = (
    Feature(name="age", unit="years", lower=0, upper=120, weight=4.0),
    Feature(name="pain", kind="categorical", levels=LEVELS),
    Feature(name="crp", unit="mg/l", lower=0.5, upper=200, transform="log"),
    Feature(name="sex", kind="binary"),
    Feature(name="stay", lower=0, transform="log1p"),
)
#: Exact rows, not scaled.
OPEN = {"min_sites": 1, "protection": "none", "scaling": "none"}


def test_columns_follow_the_features_and_their_levels() -> None:
    columns = columns_of(FEATURES)
    assert [column.name for column in columns] == [
        *("age", "pain=typical", "pain=atypical", "pain=none", "crp", "sex", "stay")
    ]
    assert [column.kind for column in columns].count("binary") == 4
    assert [block.tolist() for block in blocks_of(columns)] == [[1, 2, 3]]
    lower, upper = own_bounds(columns)
    assert lower.tolist() == [0, 0, 0, 0, np.log(0.5), 0, 0]
    assert upper.tolist() == [120, 1, 1, 1, np.log(200), 1, np.inf]
    chosen = np.array([False, True, True, False, True, False, False])
    assert feature_names(columns, chosen) == ["pain", "crp"]


def test_values_become_one_column_for_each_level_and_are_undone() -> None:
    raw = [
        np.array([30.0, np.nan, 50.0]),
        np.array([2, -1, 0]),
        np.array([1.0, 10.0, np.nan]),
        np.array([0.0, 1.0, np.nan]),
        np.array([0.0, np.nan, 9.0]),
    ]
    nan = np.nan
    expected = np.array(
        [
            [30, 0, 0, 1, 0.0, 0, 0.0],
            [nan, nan, nan, nan, np.log(10), 1, nan],
            [50, 1, 0, 0, nan, nan, np.log(10)],
        ]
    )
    found = encode_features(FEATURES, raw)
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    columns = columns_of(FEATURES)
    original = undone(columns, found)
    np.testing.assert_allclose(original[:, 4], raw[2], rtol=1e-14)
    np.testing.assert_allclose(original[:, 6], raw[4], rtol=1e-14)
    np.testing.assert_allclose(transformed(columns, original), found, rtol=1e-14)


@pytest.mark.parametrize("scaling", ["none", "bounds"])
def test_two_levels_are_as_far_apart_as_yes_and_no(scaling: Literal["none", "bounds"]) -> None:
    features = (
        Feature(name="sex", kind="binary"),
        Feature(name="pain", kind="categorical", levels=LEVELS),
        Feature(name="side", kind="categorical", levels=("l", "r"), weight=3.0),
    )
    places = [np.array([0.0, 1.0, 0, 0]), np.array([0, 0, 2, 0]), np.array([1, 1, 1, 0])]
    space = declared_space(columns_of(features), Policy(scaling=scaling))
    scaled = space.to_scaled(encode_features(features, places))
    squares = ((scaled - scaled[0]) ** 2).sum(axis=1)
    np.testing.assert_allclose(squares, [0, 1, 1, 3], rtol=1e-12)


def test_standard_scaling_gives_a_category_the_variance_of_a_number() -> None:
    rng = np.random.default_rng(0)
    features = (
        Feature(name="age"),
        Feature(name="pain", kind="categorical", levels=LEVELS),
        Feature(name="never", kind="categorical", levels=LEVELS),
        Feature(name="dose", weight=2.0),
    )
    raw = [
        rng.normal(50, 9, 400),
        rng.choice(3, 400, p=[0.7, 0.2, 0.1]),
        np.ones(400, dtype=np.int64),
        rng.normal(size=400),
    ]
    X = encode_features(features, raw)
    columns = columns_of(features)
    mean = X.mean(axis=0)
    scale = standard_scale(columns, mean, X.var(axis=0))
    variances = ((X - mean) / scale).var(axis=0)
    assert variances[0] == pytest.approx(1)
    assert variances[1:4].sum() == pytest.approx(1)
    assert len(set(scale[1:4].tolist())) == 1
    assert scale[4:7].tolist() == [1, 1, 1]
    assert variances[7] == pytest.approx(2)


def cohort(n: int, seed: int) -> Any:
    """Three groups that differ in every kind of feature."""
    rng = np.random.default_rng(seed)
    group = np.arange(n) % 3
    stays = rng.random(n) < 0.8
    return pd.DataFrame(
        {
            "age": rng.normal(40.0 + 15 * group, 4),
            "pain": np.array(LEVELS)[np.where(stays, group, rng.integers(0, 3, n))],
            "crp": np.clip(np.exp(rng.normal(1.2 * group, 0.3)), 0.5, 200),
            "sex": (rng.random(n) < 0.2 + 0.3 * group).astype(int),
            "stay": np.expm1(rng.normal(2.0 + group, 0.1)),
        }
    )


SITES = {"a": cohort(60, 1), "b": cohort(75, 2), "c": cohort(90, 3)}


def encoded(frame: Any) -> NDArray[np.float64]:
    """The columns of a cohort, in so many words."""
    levels = np.column_stack([frame["pain"] == level for level in LEVELS])
    return np.column_stack(
        [frame["age"], levels, np.log(frame["crp"]), frame["sex"], np.log1p(frame["stay"])]
    ).astype(np.float64)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_gives_centroids_in_declared_units(method: str) -> None:
    """What it gives is what the labels say of the rows: means, geometric means and shares."""
    config = {"n_clusters": 3, **TRIED[method].variants[0]}
    # With both bounds of each, which some methods need.
    features = [*FEATURES[:-1], FEATURES[-1].model_copy(update={"upper": 1000.0})]
    sites = {site: frame[:30] for site, frame in SITES.items()}
    found = simulate(method, sites, config=config, features=features, policy=OPEN)
    assert found.columns_ == tuple(column.name for column in columns_of(FEATURES))
    rows = np.vstack([encoded(frame) for frame in sites.values()])
    labels = np.concatenate([found.labels_[site] for site in sites])
    columns = columns_of(FEATURES)
    for cluster, centre in enumerate(found.cluster_centers_):
        members = rows[labels == cluster]
        expected = undone(columns, members.mean(axis=0)[None])[0]
        # The closing labels may differ from those that the last centroids rest on.
        np.testing.assert_allclose(centre, expected, rtol=0.05, atol=0.05)
    shares = found.cluster_centers_[:, 1:4]
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-12)


def test_a_declared_session_is_the_one_of_rows_encoded_beforehand() -> None:
    """Same labels and centroids as of plain numbers that somebody encoded and scaled by hand."""
    found = simulate("lloyd", SITES, config={"n_clusters": 3}, features=FEATURES, policy=OPEN)
    factors = np.sqrt([4.0, 0.5, 0.5, 0.5, 1, 1, 1])
    by_hand = {site: encoded(frame) * factors for site, frame in SITES.items()}
    plain = simulate("lloyd", by_hand, config={"n_clusters": 3}, policy=OPEN)
    for site in SITES:
        assert np.array_equal(found.labels_[site], plain.labels_[site])
    original = undone(columns_of(FEATURES), plain.cluster_centers_ / factors)
    np.testing.assert_allclose(found.cluster_centers_, original, rtol=1e-9)


def test_a_weight_of_two_counts_as_two_copies() -> None:
    rng = np.random.default_rng(4)
    rows = {site: rng.normal(size=(50, 2)) * [1, 3] for site in "abc"}
    twice = {site: X[:, [0, 1, 1]] for site, X in rows.items()}
    weighted = [{"name": "x"}, {"name": "y", "weight": 2.0}]
    policy = {"min_sites": 1, "protection": "none"}
    one = simulate("lloyd", rows, config={"n_clusters": 4}, features=weighted, policy=policy)
    two = simulate("lloyd", twice, config={"n_clusters": 4}, policy=policy)
    assert one.inertia_ == pytest.approx(two.inertia_, rel=1e-9)
    for site in rows:
        assert np.array_equal(one.labels_[site], two.labels_[site])


def test_given_centroids_are_in_declared_units() -> None:
    start = np.array([[40, 1, 0, 0, 1.0, 0.2, 6], [70, 0, 0, 1, 11, 0.8, 50]])
    config = {"n_clusters": 2, "start": "given", "centroids": start.tolist()}
    found = simulate(
        *("lloyd", SITES), config=config, features=FEATURES, policy={**OPEN, "max_rounds": 2}
    )
    step = transformed(columns_of(FEATURES), start)
    scaled = np.sqrt([4.0, 0.5, 0.5, 0.5, 1, 1, 1])
    rows = np.vstack([encoded(frame) for frame in SITES.values()])
    nearest = ((rows * scaled)[:, None] - (step * scaled)[None]) ** 2
    labels = nearest.sum(axis=2).argmin(axis=1)
    means = np.array([rows[labels == k].mean(axis=0) for k in range(2)])
    np.testing.assert_allclose(
        found.cluster_centers_, undone(columns_of(FEATURES), means), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("method", ["overlap", "overlap_oneshot"])
def test_a_category_is_had_or_lacked_as_a_whole(method: str) -> None:
    sites = {
        "a": SITES["a"].drop(columns="pain"),
        "b": SITES["b"],
        "c": SITES["c"].drop(columns="age"),
    }
    policy = {"min_group_size": 3, "missing": "mask"}
    found = simulate(method, sites, config={"n_clusters": 3}, features=FEATURES, policy=policy)
    masks = {name: found._has(own.features) for name, own in found._sites.items()}
    assert masks["a"].tolist() == [True, False, False, False, True, True, True]
    assert masks["c"].tolist() == [False, True, True, True, True, True, True]
    shares = found.cluster_centers_[:, 1:4]
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-9)
    # The groups are told apart by what every site has, too.
    assert sorted(shares.argmax(axis=1).tolist()) == [0, 1, 2]
    labels = found.predict(sites["a"])
    assert np.mean(labels == found.labels_["a"]) > 0.95


def test_one_site_alone_has_a_category_is_said_once() -> None:
    sites = {name: SITES[name].drop(columns="pain") for name in "ac"} | {"b": SITES["b"]}
    policy = {"min_group_size": 3, "missing": "mask"}
    found = simulate("overlap", sites, config={"n_clusters": 3}, features=FEATURES, policy=policy)
    assert any("One site alone has 'pain':" in warning for warning in found.warnings_)


def test_missing_levels_are_imputed_with_the_shares_of_all_sites() -> None:
    sites = {name: frame.copy() for name, frame in SITES.items()}
    sites["b"].loc[:20, "pain"] = None
    policy = {"protection": "none", "missing": "impute"}
    found = simulate("lloyd", sites, config={"n_clusters": 3}, features=FEATURES, policy=policy)
    pooled = pd.concat(sites.values())["pain"].value_counts(normalize=True)
    np.testing.assert_allclose(found.result.impute[1:4], [pooled[level] for level in LEVELS])
    assert (found.labels_["b"] >= 0).all()
    np.testing.assert_allclose(found.cluster_centers_[:, 1:4].sum(axis=1), 1.0, rtol=1e-9)
