"""What a result says of new patients, and the file with which other programs say the same."""

import dataclasses
import json
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedclust import FederatedKMeans, SessionResult, simulate
from fedclust.data import DataWarning
from fedclust.methods.registry import METHODS
from fedclust.wire import codec
from fedclust.wire.errors import DataError, UsageError

PAGE = (Path(__file__).parents[2] / "docs/new-patients.md").read_text("utf-8")
FEATURES = [
    {"name": "age", "unit": "years", "lower": 0, "upper": 120},
    {"name": "chol", "unit": "mg/dl", "lower": 50, "upper": 800, "transform": "log"},
    {"name": "stay", "unit": "days", "lower": 0, "upper": 90, "transform": "log1p", "weight": 2},
    {"name": "male", "kind": "binary"},
    {"name": "pain", "kind": "categorical", "levels": ["typical", "atypical", "none"]},
]


def patients(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, n)
    return pd.DataFrame(
        {
            "age": rng.normal(np.array([40, 60, 75])[kind], 5),
            "chol": np.exp(rng.normal(np.array([5.2, 5.6, 5.3])[kind], 0.1)),
            "stay": rng.poisson(np.array([2, 9, 4])[kind]).astype(float),
            "male": (rng.random(n) < np.array([0.1, 0.9, 0.5])[kind]).astype(float),
            "pain": np.array(["typical", "none", "atypical"])[kind],
        }
    )


def holed(rows: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Return the rows with a missing value in about half of them."""
    rng, rows = np.random.default_rng(seed), rows.astype(object)
    for row in np.flatnonzero(rng.random(len(rows)) < 0.5):
        rows.iloc[row, rng.integers(0, rows.shape[1])] = None
    return rows


def session(
    method: str = "fkm", missing: str = "impute", distance: str = "euclidean", **config: Any
) -> SessionResult:
    sites = {name: patients(120, seed) for seed, name in enumerate(("ada", "bern", "cork"))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return simulate(
            method,
            sites,
            config={"n_clusters": 3, **config},
            policy={
                "missing": missing,
                "dissimilarity": distance,
                "scaling": "bounds" if distance == "gower" else "standard",
            },
            features=FEATURES,
        )


@pytest.fixture(scope="module")
def result() -> SessionResult:
    return session()


@pytest.fixture(scope="module")
def model(result: SessionResult, tmp_path_factory: pytest.TempPathFactory) -> SessionResult:
    return reread(result, tmp_path_factory.mktemp("model"))


def reread(result: SessionResult, folder: Path) -> SessionResult:
    """Return a result as another reads it."""
    result.save(folder / "heart.fedclust")
    return SessionResult.load(folder / "heart.fedclust")


def changed(content: dict[str, Any], path: Path) -> SessionResult:
    """Return the changed content of a result file, read with a right checksum."""
    content.pop("sha256", None)
    content["sha256"] = codec.sha256(codec.canonical_json(content))
    path.write_text(json.dumps(content), "utf-8")
    return SessionResult.load(path)


def plain(content: bytes) -> Any:
    """Return the function of the page, for a result file."""
    (code,) = re.findall(r"^def cluster\(.*?(?=^```)", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"np": np, "file": json.loads(content)}
    exec(code, names)  # noqa: S102 - the page's own example
    return names["cluster"]


# --- the page's program, the model file and the result agree --------------------------------------


@pytest.mark.parametrize(
    ("method", "missing", "distance"),
    [
        ("fkm", "drop", "euclidean"),
        ("fkm", "impute", "k-prototypes"),
        ("spectral", "drop", "euclidean"),
        ("lloyd", "impute", "gower"),
    ],
)
def test_a_plain_program_gives_the_same_labels(
    method: str, missing: str, distance: str, tmp_path: Path
) -> None:
    found = session(method, missing, distance)
    rows = holed(patients(80, 9))
    labels = found.predict(rows)
    cluster = plain(found.to_json())
    expected = [cluster(patient) for patient in rows.to_dict("records")]
    assert [-1 if k is None else k for k in expected] == labels.tolist()
    assert (set(labels) >= {-1}) is (missing == "drop")
    by_file = reread(found, tmp_path)
    details, ours = by_file.predict_details(rows), found.predict_details(rows)
    for name in ("labels", "second", "margin", "distance", "outside"):
        np.testing.assert_array_equal(getattr(details, name), getattr(ours, name))
    assert details.why == ours.why


def test_a_session_whose_sites_lack_features(tmp_path: Path) -> None:
    def lacking(seed: int, *names: str) -> pd.DataFrame:
        return patients(120, seed).drop(columns=[*names])

    sites = {"ada": lacking(0), "bern": lacking(1, "chol"), "cork": lacking(2, "age", "male")}
    policy = {"missing": "mask"}
    found = simulate(
        "overlap", sites, config={"n_clusters": 3}, policy=policy, features=FEATURES, seed=1
    )
    model = reread(found, tmp_path)
    for rows in (patients(40, 8), lacking(8, "age", "pain"), holed(patients(40, 8))):
        assert (model.predict(rows) == found.predict(rows)).all()
        details = model.predict_details(rows)
        np.testing.assert_array_equal(details.margin, found.predict_details(rows).margin)


_NUMBERS = st.one_of(st.none(), st.floats(-1e6, 1e6), st.sampled_from([0.0, 60.0, 1e50, -1e50]))
_ROWS = st.lists(
    st.tuples(
        _NUMBERS,
        _NUMBERS,
        _NUMBERS,
        st.sampled_from([None, 0.0, 1.0]),
        st.sampled_from([None, "typical", "none", "worse"]),
    ),
    min_size=1,
    max_size=5,
)


@given(rows=_ROWS)
@settings(max_examples=60, deadline=None)
def test_whatever_the_rows_are_each_is_placed_by_itself(
    model: SessionResult, result: SessionResult, rows: list[tuple[Any, ...]]
) -> None:
    frame = pd.DataFrame(rows, columns=[each["name"] for each in FEATURES], dtype=object)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        found, ours = model.predict_details(frame), result.predict_details(frame)
        alone = [model.predict_details(frame.iloc[[i]]) for i in range(len(frame))]
    assert ours.labels.tolist() == found.labels.tolist()
    assert ((found.margin >= 0) & (found.margin <= 1)).all()
    assert (found.second != found.labels).all()
    assert set(found.outside) <= {0, 1}
    for i, one in enumerate(alone):
        for name in ("labels", "outside", "why"):
            assert getattr(one, name)[0] == getattr(found, name)[i], name
        assert one.margin[0] == pytest.approx(found.margin[i], abs=1e-9)
    beyond = frame["age"].map(lambda age: age is not None and not 0 <= age <= 120)
    assert (found.outside[beyond.to_numpy(dtype=bool)] == 1).all()


# --- margin ---------------------------------------------------------------------------------------


def test_the_margin_is_the_simplified_silhouette_of_a_row(result: SessionResult) -> None:
    rows, estimator = patients(200, 4), FederatedKMeans.from_result(result)
    found, apart = result.predict_details(rows), estimator.transform(rows)
    same = estimator.predict_details(rows).to_frame()
    pd.testing.assert_frame_equal(same, found.to_frame())
    ordered = np.sort(apart, axis=1)
    np.testing.assert_allclose(found.distance, ordered[:, 0], rtol=1e-9)
    np.testing.assert_allclose(found.margin, 1 - ordered[:, 0] / ordered[:, 1], atol=1e-9)
    assert (found.second == apart.argsort(axis=1)[:, 1]).all()
    assert (found.close == (found.margin < 0.1)).all()


def test_the_margin_on_a_centroid_and_halfway(result: SessionResult) -> None:
    first, second = result.cluster_centers_[:2, 0]
    ages = {"ada": np.repeat([[40.0], [70.0]], 20, axis=0)}
    two = simulate("fkm", ages, config={"n_clusters": 2})
    found = two.predict_details([[40.0], [70.0], [55.0]])
    np.testing.assert_allclose(found.margin, [1.0, 1.0, 0.0], atol=1e-9)
    assert found.second[:2].tolist() == [1, 0]
    assert first != second
    one = simulate("fkm", ages, config={"n_clusters": 1}).predict_details([[40.0]])
    assert (one.second.tolist(), np.isnan(one.margin).tolist()) == ([-1], [True])


def test_prototypes_count_by_cluster() -> None:
    """The next cluster is that of the nearest prototype of another cluster."""
    found = session("spectral", "drop")
    rows = patients(50, 7)
    details = found.predict_details(rows)
    one = found.result
    levels = [(rows["pain"] == level).astype(float) for level in ("typical", "atypical", "none")]
    numbers = [rows["age"], np.log(rows["chol"]), np.log1p(rows["stay"]), rows["male"]]
    X = one.space.to_scaled(np.column_stack([*numbers, *levels]))
    apart = np.sqrt(((X[:, None] - one.prototypes) ** 2).sum(axis=2))
    of = np.array(one.prototype_labels)
    nearest = np.stack([apart[:, of == k].min(axis=1) for k in range(3)], axis=1)
    assert (nearest.argmin(axis=1) == details.labels).all()
    assert (nearest.argsort(axis=1)[:, 1] == details.second).all()


def test_labels_by_something_else_than_distance_have_no_margin() -> None:
    found = session("spectral", "drop", alignment="sign", n_clusters=2)
    rows = patients(20, 3)
    details = found.predict_details(rows)
    assert set(details.labels) == {-1}
    assert np.isnan(details.margin).all()
    assert set(found.predict_details(rows, site="ada").second) == {-1}
    assert json.loads(found.to_json())["rule"] == "method"


# --- the file -------------------------------------------------------------------------------------


def test_the_file_is_readable_and_read_as_it_was_written(
    result: SessionResult, model: SessionResult
) -> None:
    text = result.to_json().decode()
    content = json.loads(text)
    assert (content["format"], content["rule"]) == ("fedclust-result-1", "nearest-centroid")
    assert "A missing value counts as the column's impute" in content["rule_text"]
    assert content["definition"]["features"][1]["unit"] == "mg/dl"
    assert content["result"]["sizes"] == list(result.sizes_ or ())
    assert "male" in content["result"]["profile"]["typical"]
    assert any(line.startswith('  "centroids": [[') for line in text.splitlines())
    assert model.to_json() == result.to_json()
    assert (model.labels_, model.trace_) == (None, ())


def test_another_version_of_the_method_reads_what_goes_by_distance(
    result: SessionResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = patients(20, 3)
    result.save(tmp_path / "heart.fedclust")
    other = session("spectral", "drop", alignment="sign", n_clusters=2)
    other.save(tmp_path / "other.fedclust")
    for name in ("fkm", "spectral"):
        monkeypatch.setitem(METHODS, name, dataclasses.replace(METHODS[name], version=99))
    loaded = SessionResult.load(tmp_path / "heart.fedclust")
    assert (loaded.predict(rows) == result.predict(rows)).all()
    with pytest.raises(UsageError, match="of this method; this program supports: 99"):
        SessionResult.load(tmp_path / "other.fedclust")


@given(data=st.data())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_changed_file_is_refused(
    model: SessionResult, tmp_path: Path, data: st.DataObject
) -> None:
    """Whatever is changed, also with a right checksum: a UsageError, or a model that works."""
    content = json.loads(model.to_json())
    place, key = content, data.draw(st.sampled_from(sorted(content)))
    while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
        place = place[key]
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(list(keys)))
    place[key] = data.draw(st.sampled_from([None, "x", -1, 1e9, [], {}, True]))
    sealed = data.draw(st.booleans())
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(content), "utf-8")
    try:
        found = changed(content, path) if sealed else SessionResult.load(path)
    except UsageError:
        return
    assert sealed or content == json.loads(model.to_json())
    # Of other bounds a row may be outside, and a weight says what the scale is.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        assert len(found.predict(patients(3, 0))) == 3


@pytest.mark.parametrize("name", ["uncertain", "few"])
def test_a_profile_whose_parts_do_not_fit_is_refused(
    name: str, model: SessionResult, tmp_path: Path
) -> None:
    content = json.loads(model.to_json())
    content["result"]["profile"][name].pop()
    with pytest.raises(UsageError, match="not a result"):
        changed(content, tmp_path / "changed.json")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("x", "this is no result file"),
        ('{"format": "fedclust-result-9"}', "reads fedclust-result-1: upgrade"),
        ('{"format": "fedclust-result-1"}', "the checksum does not match"),
    ],
)
def test_another_file_is_refused(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(content, "utf-8")
    with pytest.raises(UsageError, match=said):
        SessionResult.load(path)


# --- checks of the rows ---------------------------------------------------------------------------


def test_what_is_wrong_with_a_table_is_named_without_its_values(model: SessionResult) -> None:
    with pytest.raises(DataError, match="'chol'") as caught:
        model.predict(patients(9, 0).drop(columns="chol"))
    assert caught.value.rule == "missing-column"
    rows = patients(40, 2)
    rows["chol"] /= 38.67
    rows.loc[3, "pain"] = "SECRET"
    rows.loc[4, "age"] = 123.25
    with pytest.warns(DataWarning) as told:
        found = model.predict_details(rows)
    said = "\n".join(str(each.message) for each in told)
    assert "column 'pain': 1 row has a value that the session does not know" in said
    assert "column 'age': 1 of its 40 values lies outside the session's bounds" in said
    assert "column 'chol': 40 of its 40 values lie outside" in said
    assert 'would fit in mmol/l: [features.chol] and unit = "mmol/l" and to = "mg/dl"' in said
    assert "SECRET" not in said
    assert "123.25" not in said
    assert (found.outside == 1).all()
    assert found.why[4][0] in ("age", "chol")


def test_a_unit_is_noticed_without_bounds() -> None:
    rows = {s: patients(60, i)[["age"]] + 0.0 for i, s in enumerate("abc")}
    model = simulate("fkm", rows, config={"n_clusters": 2})
    days = patients(60, 9)[["age"]] * 365.25
    with pytest.warns(DataWarning, match="median of its values lies more than 4"):
        model.predict(days)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        model.predict(patients(60, 9)[["age"]])
        # Too few values for a median.
        model.predict(days[:4])


# --- rows of a simulation -------------------------------------------------------------------------


def test_a_result_and_an_estimator_hold_labels_of_each_k_and_no_rows() -> None:
    rng = np.random.default_rng(5)
    rows = {name: rng.normal(size=(40, 2)) + 6 * (np.arange(40) % 2)[:, None] for name in "abc"}
    found = simulate("lloyd", rows, config={"n_clusters": [2, 3]}, features=["u", "v"])
    fitted = FederatedKMeans(n_clusters=[2, 3], method="lloyd").fit(
        np.concatenate([*rows.values()]), sites=np.repeat([*rows], 40)
    )
    for result in (found, fitted.result_):
        for k in (2, 3):
            at = result.at(k)
            assert all((at.labels_[name] == at.predict(rows[name])).all() for name in "abc")
        shown = result.at(result.result.n_clusters)
        assert all((result.labels_[name] == shown.labels_[name]).all() for name in "abc")
    one = simulate("lloyd", rows, config={"n_clusters": 2})
    content = pickle.dumps(one)
    assert not any(own[:1].tobytes() in content for own in rows.values())
    kept = pickle.loads(content)  # noqa: S301 - its own
    assert all((kept.labels_[name] == one.labels_[name]).all() for name in "abc")


def test_a_site_that_a_result_does_not_know_is_named() -> None:
    with pytest.raises(UsageError, match="does not know the site 'rome'"):
        session().predict(patients(5, 1), site="rome")
