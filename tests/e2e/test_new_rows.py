"""New rows at a site: with the result alone, or with what the site remembers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import simulate
from fedclust.result.session_result import SessionResult
from support.consortium import Consortium, declared
from support.method_variants import ALL, IDS, TRIED
from support.server import running_server

SITES = ("ada", "brno", "cadiz")


def blobs(n: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    of = rng.integers(0, 2, n)
    return np.array([[0.0, 0.0], [40.0, 30.0]])[of] + rng.normal(size=(n, 2)), of


@pytest.mark.parametrize(("method", "options"), ALL, ids=IDS)
def test_a_site_labels_new_rows_as_it_labelled_its_own(
    method: str, options: dict[str, Any]
) -> None:
    sites = {name: blobs(80, i)[0] for i, name in enumerate(SITES)}
    config = {"n_clusters": 2, **options}
    result = simulate(
        *(method, sites), config=config, features=declared(2), policy={"scaling": "none"}, seed=1
    )
    for name, X in sites.items():
        found = result.predict(X + 1e-3, site=name)
        assert (found >= 0).all()
        assert np.mean(found == result.labels_[name]) > 0.98
    alone = result.predict(sites["ada"])
    needs_site = options in TRIED[method].own_only
    assert (alone == -1).all() if needs_site else (alone >= 0).all()


def test_what_a_site_remembers_is_never_saved_with_its_result(tmp_path: Path) -> None:
    data = {name: blobs(60, i)[0] for i, name in enumerate(SITES)}
    new, _ = blobs(20, 9)
    with running_server(tmp_path / "server") as server:
        consortium = Consortium.found(server.base_url, server.operator_token, SITES)
        consortium.create(
            "eigen", 2, algorithm="spectral", config={"n_clusters": 2, "alignment": "procrustes"}
        )
        results = consortium.run("eigen", data, tmp_path / "journals")
    expected = simulate(
        "spectral",
        data,
        config={"n_clusters": 2, "alignment": "procrustes"},
        features=declared(2),
        seed=7,
    )
    found = results["ada"]
    assert np.array_equal(found.predict(new), expected.predict(new, site="ada"))
    assert (found.predict(new) >= 0).all()

    found.save(tmp_path / "saved")
    assert (SessionResult.load(tmp_path / "saved").predict(new) == -1).all()
    held = (tmp_path / "saved").read_bytes()
    scaled = (data["ada"] - found.result.center) / found.result.scale
    for row in (*scaled, *data["ada"]):
        assert row.tobytes() not in held
