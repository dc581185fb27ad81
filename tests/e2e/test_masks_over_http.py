"""A site that lacks features and comes late, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust.client import Client
from fedclust.errors import Invalid
from fedclust.wire.models import Consents, Participation, SessionInfo
from support.consortium import Consortium, columns
from support.server import running_server

CENTRES = np.array([[0.0, 0, 0, 0], [9.0, 9, 9, 9], [0.0, 9, 0, 18]])
POLICY = {"missing": "mask", "protection": "none"}


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consortium]:
    with running_server(tmp_path_factory.mktemp("masks")) as server:
        sites = ("ada", "brno", "cadiz", "dora")
        yield Consortium.found(server.base_url, server.operator_token, sites)


def rows(has: list[int], seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return 60 rows, NaN in the columns of features that are not in ``has``, and clusters."""
    rng = np.random.default_rng(seed)
    of = rng.integers(0, 3, 60)
    full = CENTRES[of] + rng.normal(size=(60, 4))
    return np.where(np.isin(np.arange(4), has), full, np.nan), of


def join(consortium: Consortium, info: SessionInfo, site: str, has: list[int]) -> str:
    names = columns(4)
    body = Participation(
        definition_sha256=info.definition_sha256,
        consents=Consents(protection_none=True),
        features=tuple(names[j] for j in has),
        size_band="50-199",
        sdk_version="0",
        methods={info.definition.algorithm: (info.definition.method_version,)},
        engine=(info.definition.engine_version,),
    )
    with Client(consortium.url, consortium.site_tokens[site], consortium.options) as client:
        return client.join(info.name, body).state


def test_a_site_that_comes_late_is_served_with_the_features_that_it_has(
    consortium: Consortium, tmp_path: Path
) -> None:
    """Each feature was somebody's when the session began, so nobody late stands apart."""
    has = {"ada": [0, 1, 2], "brno": [1, 2, 3], "cadiz": [0, 2, 3], "dora": [3]}
    data = {site: rows(own, i) for i, (site, own) in enumerate(has.items())}
    session = "late"
    config = {"n_clusters": 3}
    info = consortium.create(
        session, 4, algorithm="overlap", config=config, policy=POLICY, start="manual"
    )
    for site in ("ada", "brno", "cadiz"):
        assert join(consortium, info, site, has[site]) == "joined"
    with consortium.analyst() as analyst:
        assert analyst.start_session(session).state == "running"
    with pytest.raises(Invalid, match="at least one"):
        join(consortium, info, "dora", [])
    assert join(consortium, info, "dora", has["dora"]) == "joined"

    results = consortium.run(session, {site: X for site, (X, _) in data.items()}, tmp_path)

    centres = results["dora"].cluster_centers_
    known = results["dora"].result.mask
    assert known is not None
    assert known.all()
    order = np.abs(centres[:, None, :] - CENTRES[None]).sum(axis=2).argmin(axis=0)
    for site, (X, of) in data.items():
        labels = results[site].labels_
        apart = ((X[:, None] - centres)[:, :, has[site]] ** 2).sum(axis=2)
        assert labels is not None
        assert np.array_equal(labels, apart.argmin(axis=1))
        assert np.mean(labels == order[of]) > 0.97
