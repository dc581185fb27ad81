"""What the service gives is bit for bit what ``simulate`` gives."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from e2e.random_kills import shared
from fedclust import simulate
from fedclust.result.session_result import SessionResult
from fedclust.result.tables import centroid_table
from fedclust.wire.codec import to_tree
from support.api_caller import ApiCaller
from support.consortium import Consortium, declared
from support.databases import in_turn
from support.method_variants import ALL, IDS, LATER, SWEEP_IDS, SWEEPS
from support.server import ServerProcess, running_server
from support.sqlite_file import create_sqlite

SIZES = {"ada": 41, "brno": 73, "cadiz": 55, "delft": 30}
POLICY = {"scaling": "standard"}


def rows() -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(4, 3)) * 4
    return {
        name: centres[rng.integers(0, 4, n)] + rng.normal(size=(n, 3)) + [100.0, 0.0, 1e4]
        for name, n in SIZES.items()
    }


@pytest.fixture(scope="module")
def consortium(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Consortium]:
    """Return people and sites at a server on the database of this kind, for sessions of many."""
    place = tmp_path_factory.mktemp("many")
    if request.param == "sqlite":
        url = create_sqlite(place)
    else:
        postgres = request.getfixturevalue("postgres_server")
        url = postgres.url(name := postgres.create())
    with running_server(place / "server", env={"FEDCLUST_DATABASE_URL": url}) as server:
        yield Consortium.found(server.base_url, server.operator_token, tuple(SIZES))
    if request.param != "sqlite":
        postgres.give_back(name)


@pytest.mark.parametrize(
    ("case", "consortium"),
    in_turn(list(enumerate(ALL + SWEEPS)), IDS + SWEEP_IDS, LATER),
    indirect=["consortium"],
)
def test_the_sdk_in_binary_and_plain_http_in_json_give_what_simulate_gives(
    consortium: Consortium, tmp_path: Path, case: tuple[int, tuple[str, dict[str, Any]]]
) -> None:
    number, (method, options) = case
    binary, as_json = f"binary-{number}", f"json-{number}"
    data = rows()
    config = {"n_clusters": 4, **options}
    policy = {**POLICY, "max_rounds": 8}
    expected = simulate(method, data, config=config, policy=policy, features=declared(3), seed=7)
    rng = np.random.default_rng(0)

    session = {"algorithm": method, "config": config, "policy": policy}
    consortium.create(binary, 3, **session)
    results = consortium.run(binary, data, tmp_path / "journals")
    for name in data:
        found = results[name]
        assert np.array_equal(found.labels_, expected.labels_[name])
        assert np.array_equal(found.cluster_centers_, expected.cluster_centers_)
        own = {site: cells for site, cells in expected.result.mapping.items() if site == name}
        assert found.result.mapping == own
        for entry in expected.sweep_ or ():
            assert np.array_equal(
                found.at(entry.n_clusters).labels_, expected.at(entry.n_clusters).labels_[name]
            )
    assert shared(consortium.result(binary).result) == shared(to_tree(expected.result))

    consortium.create(as_json, 3, **session)
    api = ApiCaller(consortium.url, "", tokens=dict(consortium.site_tokens), data=data)
    for name in data:
        api.join(name, as_json, table_id=None, heads=None)
    assert api.finish(as_json, list(data), rng=rng) == "completed"
    assert shared(consortium.result(as_json).result) == shared(to_tree(expected.result))


def cohort(n: int, seed: int) -> str:
    """Return a CSV file's text with every kind of feature, and values missing of some."""
    rng = np.random.default_rng(seed)
    lines = ["age,pain,crp,sex,stay"]
    for row in range(n):
        group = row % 3
        level = LEVELS[group if rng.random() < 0.8 else rng.integers(0, 3)]
        cells = [
            f"{rng.normal(40 + 15 * group, 4):.3f}",
            "" if rng.random() < 0.05 else level,
            f"{np.exp(rng.normal(1.2 * group, 0.3)):.4f}",
            str(int(rng.random() < 0.2 + 0.3 * group)),
            "NA" if rng.random() < 0.05 else f"{np.expm1(rng.normal(2 + group, 0.1)):.2f}",
        ]
        lines.append(",".join(cells))
    return "\n".join(lines)


LEVELS = ("typical", "atypical", "none")
KINDS: list[dict[str, Any]] = [
    {"name": "age", "unit": "years", "lower": 0, "upper": 120, "weight": 2.0},
    {"name": "pain", "kind": "categorical", "levels": list(LEVELS)},
    {"name": "crp", "lower": 0.001, "upper": 100, "transform": "log"},
    {"name": "sex", "kind": "binary"},
    {"name": "stay", "lower": 0, "upper": 365, "transform": "log1p"},
]


MEASURED: list[dict[str, Any]] = [
    {},
    {"dissimilarity": "k-prototypes"},
    {"dissimilarity": "gower", "scaling": "bounds"},
    # That this is central Lloyd: `simulate/test_simulate.py`.
    {"protection": "none"},
]


@pytest.mark.parametrize(
    ("measured", "database_url"),
    in_turn(MEASURED, ["euclidean", "k-prototypes", "gower", "unprotected"]),
    indirect=["database_url"],
)
def test_with_every_kind_of_feature_the_service_gives_what_simulate_gives(
    server: ServerProcess, tmp_path: Path, measured: dict[str, Any]
) -> None:
    """And the table of centroids and a saved result know of the levels' columns."""
    paths = {}
    for number, (name, n) in enumerate(SIZES.items()):
        paths[name] = tmp_path / f"{name}.csv"
        paths[name].write_text(cohort(n, number), "utf-8")
    definition: dict[str, Any] = {
        "config": {"n_clusters": 3},
        "policy": {"missing": "impute", **measured},
        "features": KINDS,
    }
    expected = simulate("fkm", paths, seed=7, **definition)
    consortium = Consortium.found(server.base_url, server.operator_token, tuple(paths))
    consortium.create("kinds", 0, algorithm="fkm", **definition)
    results = consortium.run("kinds", paths, tmp_path / "journals")
    document = consortium.result("kinds")
    assert shared(document.result) == shared(to_tree(expected.result))
    names = ["age", *(f"pain={level}" for level in LEVELS), "crp", "sex", "stay"]
    assert centroid_table(document).decode().splitlines()[0].split(",")[2:] == names
    for name, found in results.items():
        assert np.array_equal(found.labels_, expected.labels_[name])
        assert list(found.columns_) == names
        found.save(tmp_path / "saved.fedclust")
        again = SessionResult.load(tmp_path / "saved.fedclust")
        assert np.array_equal(again.predict(paths[name]), found.predict(paths[name]))
