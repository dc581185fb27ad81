"""Sites that lack features: distances, evaluation, preparation and results, recomputed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from fedclust import simulate
from fedclust.methods.common.assign import label_by_centroid
from fedclust.methods.common.finalize import sort_clusters
from fedclust.methods.registry import METHODS
from fedclust.numeric.arrays import BoolMatrix
from fedclust.numeric.distances import masked_squared_distances, nearest_centroid
from fedclust.rounds import evaluation
from fedclust.schema.model import Model
from fedclust.schema.task import Contribution, Points
from fedclust.wire import codec
from support.points import config_of
from support.results import result_of

HAS = {"a": [0, 1, 2], "b": [1, 2, 3], "c": [0, 2, 3]}
POLICY = {"missing": "mask", "min_group_size": 5}
EXACT = {"missing": "mask", "protection": "none"}


def rows() -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0, 0, 0], [9.0, 9, 0, 9], [0.0, 9, 9, 0]])
    return {
        site: (centres[rng.integers(0, 3, n)] + rng.normal(size=(n, 4)))[:, HAS[site]]
        for site, n in {"a": 70, "b": 50, "c": 60}.items()
    }


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_masked_distances_are_means_over_the_shared_features(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X, centroids = rng.normal(size=(7, 5)), rng.normal(size=(4, 5))
    mask, known = rng.random(5) < 0.7, rng.random((4, 5)) < 0.6
    found = masked_squared_distances(
        np.where(mask, X, 0.0), mask, np.where(known, centroids, 0.0), known
    )
    for i in range(7):
        for k in range(4):
            both = mask & known[k]
            if not both.any():
                assert np.isinf(found[i, k])
                continue
            expected = ((X[i, both] - centroids[k, both]) ** 2).mean() * 5
            assert found[i, k] == pytest.approx(expected, abs=1e-9)


@example(431)  # a site that shares nothing with any centroid
@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_weighted_points_are_measured_over_what_they_share_with_their_centroid(seed: int) -> None:
    """Two sites' sums, the quality and the profile, point by point; -1 where nothing is shared."""
    rng = np.random.default_rng(seed)
    k, d = 3, 4
    known = rng.random((k, d)) < 0.7
    centroids = np.where(known, rng.normal(size=(k, d)), 0.0)
    raw = result_of(centroids, profile=None, columns=tuple("wxyz"), mask=known)
    has = {"a": rng.random(d) < 0.7, "b": rng.random(d) < 0.7}
    options = METHODS["lloyd"].options(n_clusters=len(centroids))
    config = replace(config_of(options, d=d, p=3, missing="mask"), roster=("a", "b"), masks=has)
    task = evaluation.task(raw)
    sent, inertia, terms, persons = [], 0.0, 0.0, 0
    members: dict[int, list[Any]] = {}
    for site, mask in has.items():
        points = Points(
            rng.normal(size=(9, d)) * mask, rng.integers(3, 9, 9), rng.uniform(0, 0.5, d) * mask
        )
        own = replace(config, mask=mask)
        labels = evaluation.label_points(task, points, own)
        shared = known & mask
        if not shared.any():
            assert (labels == -1).all()
            sent.append(Contribution(site, None, p=3))
            continue
        payload = evaluation.local_step(task, points, own, labels)
        sent.append(Contribution(site, payload, p=3))
        evaluation.check(task, payload, own)
        means = np.average(points.X, axis=0, weights=points.sizes)
        total = np.average((points.X - means) ** 2, axis=0, weights=points.sizes)
        spread = total / (1 - points.within) * points.within
        counts = np.zeros(k, dtype=int)
        for x, size in zip(points.X, points.sizes, strict=True):
            gaps = [
                ((x - centroids[c])[shared[c]] ** 2).mean() * d if shared[c].any() else np.inf
                for c in range(k)
            ]
            label = int(np.argmin(gaps))
            a, b = np.sqrt(sorted(gaps)[:2])
            inertia += size * a**2
            terms += size * (b - a) / b if np.isfinite(b) else 0.0
            counts[label] += size
            persons += size
            members.setdefault(label, []).append((x, size, mask, spread))
        assert payload.counts.tolist() == counts.tolist()
    outcome = evaluation.aggregate(raw, sent, config)
    if not persons:
        assert outcome.quality is None
        return
    quality, profile = outcome.quality, outcome.profile
    assert profile is not None
    assert quality.n_rows == persons
    assert quality.inertia == pytest.approx(inertia)
    assert quality.simplified_silhouette == pytest.approx(terms / persons)
    for c, inside in members.items():
        for j in range(d):
            seen = [(x[j], size, own[j]) for x, size, mask, own in inside if mask[j]]
            assert profile.known[c, j] == bool(seen)
            if seen:
                values, sizes, spreads = np.array(seen).T
                mean = np.average(values, weights=sizes)
                variance = np.average((values - mean) ** 2 + spreads, weights=sizes)
                assert profile.means[c, j] == pytest.approx(mean)
                # It has two digits.
                spread = np.sqrt(variance)
                assert profile.estimated_deviations[c, j] == pytest.approx(spread, rel=0.051)


def test_a_feature_is_scaled_by_the_sites_that_have_it() -> None:
    sites = rows()
    sites["a"][3, 1] = np.nan
    result = simulate("overlap", sites, config={"n_clusters": 3}, policy=EXACT, features=HAS).result
    for j in range(4):
        held = [sites[site][:, has.index(j)] for site, has in HAS.items() if j in has]
        values = np.concatenate(held)
        mean = np.nanmean(values)
        assert result.center[j] == pytest.approx(mean)
        # A value missing at a site that has the feature counts in n and adds nothing.
        assert result.scale[j] == pytest.approx(np.where(np.isnan(values), mean, values).std())


def test_equal_values_are_one_cluster_only_where_the_same_features_are_known() -> None:
    centroids = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 5.0], [1.0, 0.0]])
    mask = np.array([[True, True], [True, False], [True, True], [True, True]])
    about = {"mask": mask, "center": np.array([10.0, 10.0]), "mapping": {"a": (0, 1, 2, 3)}}
    raw = result_of(np.where(mask, centroids, 7.0), profile=None, **about)
    done = sort_clusters(raw, None)
    assert done.mask is not None
    assert len(done.centroids) == 3
    assert (done.centroids[~done.mask] == 0).all()
    assert (done.centroids_original[~done.mask] == 0).all()
    first, unknown, other, again = done.mapping["a"]
    assert first == again
    assert len({first, unknown, other}) == 3


def test_prototypes_keep_their_clusters_when_these_are_sorted() -> None:
    prototypes = {"prototypes": np.array([[9.0], [0.0], [4.0]]), "prototype_labels": (0, 1, 0)}
    raw = result_of([[5.0], [1.0]], profile=None, **prototypes)
    done = sort_clusters(raw, None)
    assert done.prototypes.ravel().tolist() == [0.0, 4.0, 9.0]
    assert done.prototype_labels == (0, 1, 1)
    labels = label_by_centroid(done, np.array([[8.0], [1.9], [2.1], [np.nan]]))
    assert labels.tolist() == [1, 0, 1, -1]


def test_rows_without_a_known_feature_have_no_label() -> None:
    about = {"mask": np.array([[False, True]] * 2), "impute": np.array([1.0, 7.9])}
    result = result_of([[0.0, 3.0], [0.0, 8.0]], profile=None, **about)
    assert label_by_centroid(result, np.array([[1.0, np.nan]])).tolist() == [-1]
    assert label_by_centroid(result, np.array([[np.nan, 3.5], [2.0, np.nan]])).tolist() == [0, 1]


def test_nothing_is_shared_by_rows_and_centroids_that_lack_the_rest() -> None:
    known = np.array([[True, False], [False, True]])
    labels = nearest_centroid(np.array([[0.0, 5.0]]), np.array([[4.0, 0.0], [0.0, 5.5]]), known)
    assert labels.tolist() == [1]


class _Flags(Model):
    mask: BoolMatrix


def test_booleans_travel_as_bytes_and_as_lists() -> None:
    mask = np.array([[True, False, True]])
    encoded = codec.encode({"mask": mask})
    assert codec.decode(encoded)["mask"].tolist() == mask.tolist()
    assert _Flags.model_validate_json('{"mask": [[true, false, true]]}').mask.dtype == bool
    assert encoded.count(b"\x01\x00\x01") == 1
    with pytest.raises(codec.CodecError, match="0 or 1"):
        codec.decode(encoded.replace(b"\x01\x00\x01", b"\x01\x02\x01"))
    for wrong in ('{"mask": [[1, 0]]}', '{"mask": [[true], []]}', '{"mask": [true]}'):
        with pytest.raises(ValidationError):
            _Flags.model_validate_json(wrong)
    with pytest.raises(ValidationError):
        _Flags.model_validate({"mask": np.array([[1.0, 0.0]])})


def test_a_row_is_labelled_alike_whatever_rows_come_with_it() -> None:
    """Rows without clusters: whether a value is imputed or its feature left out would show."""
    names = ["x0", "x1", "x2", "x3"]
    rng = np.random.default_rng(0)
    sites = {
        site: pd.DataFrame(rng.normal(size=(60, 4)), columns=names).iloc[:, has]
        for site, has in HAS.items()
    }
    found = simulate("overlap", sites, config={"n_clusters": 4}, policy=POLICY, seed=7)
    result = found.result
    assert result.impute is not None
    assert result.mask.all()
    gaps = rng.normal(size=(60, 4))
    gaps[::2, 1] = np.nan
    gaps[1::3, 2] = np.nan
    framed = pd.DataFrame(gaps, columns=names)
    filled = np.where(np.isnan(gaps), result.impute, gaps)

    def nearest_over(has: list[int]) -> NDArray[np.int64]:
        apart = (filled[:, None] - result.centroids_original[None]) / result.scale
        return np.asarray((apart[:, :, has] ** 2).sum(axis=2).argmin(axis=1))

    def one_by_one(site: str | None = None, columns: list[str] = names) -> list[int]:
        return [
            int(found.predict(framed.iloc[i : i + 1][columns], site=site)[0])
            for i in range(len(gaps))
        ]

    assert found.predict(gaps).tolist() == nearest_over([0, 1, 2, 3]).tolist() == one_by_one()
    # A column that is not there is a feature that these rows lack.
    assert one_by_one(columns=names[:3]) == nearest_over([0, 1, 2]).tolist()
    assert nearest_over([0, 1, 2]).tolist() != nearest_over([0, 1, 2, 3]).tolist()
    # A site that lacks a feature labels without it, new rows as its own.
    expected = nearest_over(HAS["b"]).tolist()
    assert found.predict(gaps, site="b").tolist() == expected == one_by_one("b")
