"""Hospitals whose files lack some of a session's features, over real HTTP and both databases."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from e2e.random_kills import shared
from fedclust import simulate
from fedclust.client import Client
from fedclust.data import DataWarning
from fedclust.result.session_result import SessionResult
from fedclust.rounds.preparation import SiteMoments
from fedclust.site.consent import ConsentRequest
from fedclust.wire.codec import to_tree
from fedclust.wire.errors import Invalid, SitesUnsuitable
from fedclust.wire.submissions import BINARY, write_submission
from support.consortium import Consortium, columns, declared, participation_in, write_csv
from support.databases import in_turn, sqlite_first  # noqa: F401  # in place of database_url
from support.local_coordinator import local_coordinator
from support.method_variants import ALL, IDS
from support.server import ServerProcess

HAS = {"ada": [0, 1, 2], "brno": [1, 2, 3], "cadiz": [0, 2, 3]}
POLICY = {"missing": "mask"}
MASKING = {name: case for name, case in zip(IDS, ALL, strict=True) if case[0].startswith("overlap")}


def rows() -> dict[str, NDArray[np.float64]]:
    """Return all four features of every site's rows; a file holds those of ``HAS``."""
    rng = np.random.default_rng(3)
    centres = np.array([[0.0, 0, 0, 0], [8.0, 8, 8, 8], [0.0, 8, 0, 8]])
    full = {
        site: centres[rng.integers(0, 3, n)] + rng.normal(size=(n, 4))
        for site, n in {"ada": 60, "brno": 45, "cadiz": 52}.items()
    }
    full["ada"][4, 1] = np.nan
    return full


@pytest.mark.parametrize(
    ("case", "database_url"),
    in_turn(list(MASKING.values()), list(MASKING)),
    indirect=["database_url"],
)
def test_sites_with_different_columns_get_what_simulate_gives(
    server: ServerProcess, tmp_path: Path, case: tuple[str, dict[str, Any]]
) -> None:
    method, options = case
    full, config = rows(), {"n_clusters": 3, **options}
    files = {site: tmp_path / site / "rows.csv" for site in HAS}
    for site, file in files.items():
        write_csv(file, full[site], HAS[site])
    expected = simulate(method, files, config=config, policy=POLICY, features=columns(4), seed=7)
    consortium = Consortium.found(server.base_url, server.operator_token, tuple(HAS))
    consortium.create("lacking", 4, algorithm=method, config=config, policy=POLICY)
    results = consortium.run("lacking", files, tmp_path, id_column="record")
    for name, found in results.items():
        assert np.array_equal(found.labels_, expected.labels_[name])
        assert (found.labels_ >= 0).all()
    assert shared(consortium.result("lacking").result) == shared(to_tree(expected.result))

    # The clusters are far apart: whatever columns a file has, its rows find them.
    saved = tmp_path / "result.fedclust"
    results["ada"].save(saved)
    centres = results["ada"].cluster_centers_
    assert results["ada"].result.mask.all()
    for has in ([2, 3], [0, 1, 2, 3], [1]):
        write_csv(new := tmp_path / "new.csv", full["brno"], has)
        distances = ((full["brno"][:, None] - centres[None])[:, :, has] ** 2).sum(axis=2)
        assert np.array_equal(SessionResult.load(saved).predict(new), distances.argmin(axis=1))


def test_sites_that_share_no_feature_wait_and_a_lie_is_refused(server: ServerProcess) -> None:
    consortium = Consortium.found(server.base_url, server.operator_token, tuple(HAS))
    body = {"algorithm": "overlap", "config": {"n_clusters": 3}, "policy": POLICY}
    info = consortium.create("apart", 4, **body)
    with consortium.analyst() as analyst:
        for name, has in {"ada": ("x0", "x1"), "brno": ("x2", "x3"), "cadiz": ("x2",)}.items():
            join(consortium, name, info, has)
        waiting = analyst.session("apart")
        assert waiting.state == "recruiting"
        assert "share no feature" in waiting.cannot_start
        with pytest.raises(SitesUnsuitable, match="share no feature"):
            analyst.start_session("apart")

    # Values of a feature that a site joined without.
    info = consortium.create("lying", 4, **body)
    for name, has in HAS.items():
        join(consortium, name, info, tuple(f"x{j}" for j in has))
    with Client(consortium.url, consortium.site_tokens["ada"], consortium.options) as site:
        view, _ = site.task("lying")
        lie = SiteMoments(
            n=60, observed=np.full(4, 60), mean=np.array([1.0, 1, 1, 1]), m2=np.ones(4)
        )
        with pytest.raises(Invalid) as refused:
            site.submit("lying", 1, write_submission("prepare", view.task.digest, lie, BINARY))
    assert [error.rule for error in refused.value.errors] == ["mask"]
    assert refused.value.errors[0].pointer == "/payload/observed/3"


DIED = {"name": "died", "kind": "binary", "role": "outcome"}
STAY = {"name": "stay", "kind": "ordered", "edges": [2, 5], "role": "outcome"}


def test_a_site_takes_part_without_outcomes(tmp_path: Path) -> None:
    """What each site is asked for.

    Tables and clusters: `simulate/test_outcomes.py`; what a site sees: `domain/test_access.py`.
    """
    body: dict[str, Any] = {
        "config": {"n_clusters": 2},
        "policy": POLICY,
        "features": [*declared(2), DIED, STAY],
    }
    rng, asked = np.random.default_rng(4), {}
    rows = {
        site: pd.DataFrame(
            np.repeat([[0.0, 0], [9.0, 9]], 30, axis=0) + rng.normal(size=(60, 2)),
            columns=columns(2),
        ).assign(died=rng.integers(0, 2, 60), stay=rng.gamma(2.0, 3.0, 60))
        for site in ("ada", "brno", "cadiz", "delft", "essen")
    }
    del rows["delft"]["died"]
    rows["essen"] = rows["essen"][columns(2)]
    with local_coordinator(tmp_path, threads=True) as local:
        consortium = Consortium.found(local.base_url, local.operator_token, tuple(rows))
        info = consortium.create("partly", 2, algorithm="overlap", **body)
        with pytest.raises(Invalid) as refused:
            join(consortium, "essen", info, ("died", "stay"))
        assert {error.rule for error in refused.value.errors} == {"missing-feature"}

        def consent(request: ConsentRequest) -> bool:
            asked[request.site] = request
            return True

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            consortium.run("partly", rows, tmp_path, consent=consent)
        outcomes = consortium.result("partly").clustering().outcomes
    assert outcomes.silent == ("essen",)
    assert [(each.name, each.n_sites) for each in outcomes.results] == [("died", 3), ("stay", 4)]
    # Each site consents to what it answers, and pays for no more.
    points = {name: request.points for name, request in asked.items()}
    assert points == {"ada": 20, "brno": 20, "cadiz": 20, "delft": 10, "essen": 0}
    said = {name: dict(request.sections()) for name, request in asked.items()}
    assert len(said["delft"]["warning"]) == 1
    assert "Once: noisy counts of stay by cluster." in said["delft"]["leaves"]
    assert not any("Once:" in line for line in said["essen"]["leaves"])
    assert not any("outcomes" in line for line in said["essen"]["protection"])


def join(consortium: Consortium, name: str, info: Any, has: tuple[str, ...]) -> None:
    with Client(consortium.url, consortium.site_tokens[name], consortium.options) as site:
        site.join(info.name, participation_in(info, has))
