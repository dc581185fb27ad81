"""Estimators: scikit-learn's own checks, the same numbers as `simulate`, and a live session."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from fedclust import simulate
from fedclust.local.estimators import FederatedKMeans, FederatedSpectralClustering
from fedclust.result.session_result import SessionResult
from fedclust.site import Site
from fedclust.wire import codec
from support.consortium import Consortium
from support.local_coordinator import local_coordinator
from support.site_rows import blobs, breast_cancer
from support.timeouts import TIMEOUT_S

CENTRES = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 9.0]])
PLAIN: dict[str, Any] = {"scaling": "none", "policy": {"protection": "none"}, "random_state": 3}


def _sites() -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Return sites, all rows mixed, and the site of each."""
    sites = blobs(CENTRES, [20, 30, 15], spread=0.5)
    rows = np.concatenate(list(sites.values()))
    names = np.repeat(list(sites), [len(X) for X in sites.values()])
    return sites, rows, names


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("estimator", [FederatedKMeans(), FederatedSpectralClustering()])
def test_scikit_learn_finds_no_fault(estimator: Any) -> None:
    """None of its checks is left out; that of array_api is skipped by itself."""
    found = check_estimator(estimator, on_skip=None, on_fail=None)
    failed = [(each["check_name"], each["exception"]) for each in found if each["exception"]]

    assert len(found) > 40
    assert {name for name, _ in failed} <= {"check_array_api_input"}, failed


@pytest.mark.parametrize("method", ["fkm", "kfed", "lloyd"])
def test_rows_by_site_give_what_simulate_gives_in_the_order_of_the_rows(method: str) -> None:
    sites, rows, names = _sites()
    order = np.random.default_rng(0).permutation(len(rows))
    model = FederatedKMeans(3, method=method, random_state=5).fit(rows[order], sites=names[order])
    expected = simulate(
        method,
        {name: rows[order][names[order] == name] for name in sites},
        config={"n_clusters": 3},
        seed=5,
    )

    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
    for name in sites:
        at = names[order] == name
        np.testing.assert_array_equal(model.labels_[at], expected.labels_[name])
    assert (model.inertia_, model.n_iter_) == (expected.inertia_, expected.n_rounds_)
    assert model.n_features_in_ == 2


def test_a_mapping_of_sites_is_the_same_as_rows_with_their_sites() -> None:
    sites, rows, names = _sites()
    by_row = FederatedKMeans(3, random_state=1).fit(rows, sites=names)
    by_site = FederatedKMeans(3, random_state=1).fit(sites)
    framed = {name: pd.DataFrame(X, columns=["u", "v"]) for name, X in sites.items()}
    with_names = FederatedKMeans(3, random_state=1).fit(framed)

    np.testing.assert_array_equal(by_site.labels_, by_row.labels_)
    np.testing.assert_array_equal(with_names.labels_, by_row.labels_)
    assert list(with_names.feature_names_in_) == ["u", "v"]
    np.testing.assert_array_equal(with_names.predict(framed), by_row.predict(rows))
    with pytest.raises(ValueError, match="leave sites out"):
        FederatedKMeans(3).fit(sites, sites=names)


def test_plain_it_is_scikit_learns_k_means() -> None:
    rows = np.concatenate(list(breast_cancer().values()))[:, :4]
    scaled = StandardScaler().fit_transform(rows)
    model = FederatedKMeans(4, **{**PLAIN, "scaling": "standard"}).fit(rows)
    central = KMeans(4, n_init=20, random_state=0).fit(scaled)

    assert model.inertia_ <= central.inertia_ * 1.01
    np.testing.assert_allclose(model.score(rows), -model.inertia_, rtol=1e-9)
    own = (model.cluster_centers_ - rows.mean(axis=0)) / rows.std(axis=0)
    apart = np.sqrt(((scaled[:, None] - own) ** 2).sum(axis=2))
    np.testing.assert_allclose(model.transform(rows), apart, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(model.labels_, apart.argmin(axis=1))
    assert list(model.get_feature_names_out()) == [f"federatedkmeans{k}" for k in range(4)]


def test_pipelines_searches_and_copies() -> None:
    _, rows, names = _sites()
    pipe = make_pipeline(StandardScaler(), FederatedKMeans(3, **PLAIN))
    pipe.fit(rows, federatedkmeans__sites=names)
    again = clone(pipe).set_params(federatedkmeans__n_clusters=2)
    search = GridSearchCV(FederatedKMeans(**PLAIN), {"n_clusters": [2, 3]}, cv=3).fit(rows)

    assert len(again.fit(rows)[-1].cluster_centers_) == 2
    assert search.best_params_ == {"n_clusters": 3}
    kept = pickle.loads(pickle.dumps(pipe))  # noqa: S301
    np.testing.assert_array_equal(kept.predict(rows), pipe.predict(rows))
    several = FederatedKMeans([2, 3], **PLAIN).fit(rows, sites=names)
    kept = pickle.loads(pickle.dumps(several))  # noqa: S301
    for own, restored in zip(several.result_.trace_, kept.result_.trace_, strict=True):
        assert type(restored.payload) is type(own.payload)
        assert codec.encode_model(restored.payload) == codec.encode_model(own.payload)


def test_missing_values_are_the_sessions_to_treat() -> None:
    _, rows, names = _sites()
    rows[::7, 0] = np.nan
    dropped = FederatedKMeans(3, missing="drop", random_state=0).fit(rows, sites=names)
    filled = FederatedKMeans(3, random_state=0).fit(rows, sites=names)

    np.testing.assert_array_equal(dropped.labels_ < 0, np.isnan(rows).any(axis=1))
    assert np.isnan(dropped.transform(rows)[::7]).all()
    assert np.isfinite(dropped.score(rows))
    assert (filled.labels_ >= 0).all()
    assert np.isfinite(filled.transform(rows)).all()


def test_declared_features_pick_their_columns() -> None:
    _, rows, names = _sites()
    frame = pd.DataFrame({"note": "x", "v": rows[:, 1], "u": rows[:, 0], "sex": rows[:, 0] > 3})
    frame["sex"] = frame["sex"].astype(float)
    features = [{"name": "u", "lower": -50, "upper": 50}, {"name": "sex", "kind": "binary"}]
    model = FederatedKMeans(2, features=features, random_state=0).fit(frame, sites=names)

    assert model.cluster_centers_.shape == (2, 2)
    assert list(model.feature_names_in_) == ["u", "sex"]
    np.testing.assert_array_equal(model.predict(frame[["sex", "u"]]), model.labels_)
    with pytest.warns(UserWarning, match="feature names"):
        np.testing.assert_array_equal(model.predict(frame[["u", "sex"]].to_numpy()), model.labels_)
    for label in (model.predict, model.transform):
        with pytest.raises(ValueError, match="'sex'"):
            label(frame[["u", "v"]])
        with pytest.raises(ValueError, match="'sex'"):
            label(frame.assign(sex="no"))
    np.testing.assert_array_equal(model.labels_, model.predict(frame))
    np.testing.assert_array_equal(model.transform(frame).argmin(axis=1), model.labels_)


def test_of_several_numbers_of_clusters_the_recommended_is_kept() -> None:
    _, rows, names = _sites()
    model = FederatedKMeans([2, 3, 4], random_state=0).fit(rows, sites=names)

    assert len(model.cluster_centers_) == 3
    assert model.transform(rows).shape == (len(rows), 3)
    assert {entry.n_clusters for entry in model.result_.result.sweep} == {2, 3, 4}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sites": ["a", "b"]}, "one site is needed for each row"),
        ({"persons": ["a", "b"]}, "one is needed for each row"),
        ({"session": "heart"}, "belong together"),
        ({"sites": ["Not A Slug"] * 65}, r"sites\[0\]: a name is a-z"),
        ({"sites": pd.Series(["a", np.nan, None, "b", pd.NA] * 13)}, "sites: row 1 has none"),
        ({"sites": [1.0] * 64 + [np.nan]}, "sites: row 64 has none"),
    ],
)
def test_what_does_not_fit_is_named(given: dict[str, Any], message: str) -> None:
    _, rows, _ = _sites()
    with pytest.raises(ValueError, match=message):
        FederatedKMeans(3).fit(rows[:65], **given)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"min_group_size": "five"}, "min_group_size is 'five'"),
        ({"policy": {"min_group_size": None}}, "min_group_size is None"),
        ({"policy": "off"}, "policy is 'off'"),
        ({"options": ["candidates"]}, "options is"),
        ({"options": {"candidate": 2}}, "candidates"),
        ({"n_clusters": "three"}, "n_clusters"),
        ({"random_state": -1}, "seed"),
        ({"scaling": "bounds"}, "lower and upper"),
        ({"method": "spectral"}, "fkm, kfed, lloyd"),
    ],
)
def test_a_parameter_of_no_use_is_named(params: dict[str, Any], message: str) -> None:
    _, rows, names = _sites()
    with pytest.raises(ValueError, match=message):
        FederatedKMeans().set_params(**params).fit(rows, sites=names)


def test_sites_have_the_same_columns_unless_they_may_lack_some() -> None:
    sites, _, _ = _sites()
    frames = {name: pd.DataFrame(X, columns=["u", "v"]) for name, X in sites.items()}
    frames["b"] = frames["b"][["u"]].assign(note="x")
    with pytest.raises(ValueError, match="site 'b' has no column 'v'"):
        FederatedKMeans(3, missing="impute", features=["u", "v"]).fit(frames)
    model = FederatedKMeans(2, features=["u"], random_state=0).fit(frames)
    assert model.n_features_in_ == 1
    assert (model.labels_ >= 0).all()
    masked = FederatedKMeans(
        3, method="overlap", missing="mask", features=["u", "v"], random_state=0
    )
    assert (masked.fit(frames).predict(frames["b"]) >= 0).all()


def test_a_site_without_rows_is_one_of_the_sites() -> None:
    sites, rows, _ = _sites()
    sites["z"] = rows[:0]
    model = FederatedKMeans(3, random_state=0).fit(sites)

    assert list(model.result_.labels_) == ["a", "b", "c", "z"]
    assert len(model.labels_) == len(rows)


def test_a_result_of_another_kind_of_method_is_refused() -> None:
    _, rows, _ = _sites()
    found = FederatedKMeans(3, random_state=0).fit(rows).result_
    with pytest.raises(ValueError, match="take FederatedKMeans"):
        FederatedSpectralClustering.from_result(found)
    other = found.definition.model_copy(update={"algorithm": "spectral"})
    with pytest.raises(ValueError, match="take FederatedSpectralClustering"):
        FederatedKMeans.from_result(replace(found, definition=other))


def test_persons_count_and_not_rows() -> None:
    """Where three persons have all the rows of a site, it can send nothing."""
    _, rows, names = _sites()
    persons = np.where(names == "a", np.arange(len(rows)) % 3, np.arange(len(rows)))
    model = FederatedKMeans(3, policy={"min_sites": 2}, random_state=0)
    found = model.fit(rows, sites=names, persons=persons).result_

    assert {entry.site for entry in found.trace_ if entry.payload is not None} == {"b", "c"}


def test_in_a_live_session_it_is_one_site_and_reads_frames_as_the_session_does(
    tmp_path: Path,
) -> None:
    """The estimator was told of no features: the session's definition has them."""
    rng = np.random.default_rng(1)
    features = [{"name": "pain", "kind": "categorical", "levels": ["none", "bad"]}, {"name": "u"}]
    frames = {}
    for name in "abc":
        of = rng.integers(0, 2, 30)
        frames[name] = pd.DataFrame(
            {
                "note": "seen",
                "u": 8.0 * of + rng.normal(size=30),
                "pain": np.where(of == 1, "bad", "none"),
            }
        )

    def take_part(name: str) -> FederatedKMeans:
        with Site(there.url, there.site_tokens[name], state_dir=tmp_path / name) as site:
            given: dict[str, Any] = {"coordinator": site, "session": "live"}
            if name == "a":
                with pytest.raises(ValueError, match="n_clusters 2"):
                    FederatedKMeans(4, method="lloyd").fit(frames["a"], **given)
                assert [row.site_state for row in site.status("live")] == ["invited"]
            return FederatedKMeans(2, method="lloyd").fit(frames[name], consent=True, **given)

    with local_coordinator(tmp_path / "coordinator", threads=True) as local:
        there = Consortium.found(local.base_url, local.operator_token, tuple(frames))
        asked = {"config": {"n_clusters": 2}, "features": features, "policy": {"missing": "drop"}}
        there.create("live", 2, **asked)
        with ThreadPoolExecutor() as pool:
            models = dict(zip(frames, pool.map(take_part, frames, timeout=TIMEOUT_S), strict=True))

    local_fit = FederatedKMeans(
        2, method="lloyd", features=features, missing="drop", random_state=7
    ).fit(frames)
    model, labels = models["a"], np.split(local_fit.labels_, 3)
    assert list(model.feature_names_in_) == ["pain", "u"]
    model.result_.save(tmp_path / "saved")
    loaded = FederatedKMeans.from_result(SessionResult.load(tmp_path / "saved"))
    kept = pickle.loads(pickle.dumps(model))  # noqa: S301
    for (name, frame), expected in zip(frames.items(), labels, strict=True):
        np.testing.assert_array_equal(models[name].labels_, expected)
        np.testing.assert_array_equal(models[name].cluster_centers_, local_fit.cluster_centers_)
        for each in (model, kept, loaded):
            np.testing.assert_array_equal(each.predict(frame), expected)
    found = model.transform(frames["b"][["pain", "u"]])
    np.testing.assert_array_equal(found, local_fit.transform(frames["b"]))
    np.testing.assert_array_equal(found, loaded.transform(frames["b"]))
    assert (model.predict(frames["b"].assign(pain="worse")) == -1).all()
    # Whoever gets the pickle gets no rows with it.
    assert frames["a"]["u"].to_numpy()[:1].tobytes() not in pickle.dumps(model)
    assert loaded.get_params()["n_clusters"] == 2
    assert not hasattr(loaded, "labels_")
    assert clone(loaded).get_params().keys() == loaded.get_params().keys()


def test_an_estimator_of_spectral_clustering_has_no_distances() -> None:
    _, rows, names = _sites()
    model = FederatedSpectralClustering(3, random_state=0).fit(rows, sites=names)

    np.testing.assert_array_equal(model.predict(rows), model.labels_)
    assert not hasattr(model, "transform")
    again = FederatedSpectralClustering.from_result(model.result_)
    assert again.get_params()["alignment"] == "landmarks"
    np.testing.assert_array_equal(again.predict(rows), model.labels_)
