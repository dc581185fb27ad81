"""Sessions that ask a trajectory, from files with a row for each value, over real HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from e2e.random_kills import shared
from fedclust import simulate
from fedclust.data import Dataset
from fedclust.site import Site
from fedclust.site.cohorts import CohortStore
from fedclust.site.state import SiteState
from fedclust.wire.codec import to_tree
from support.consortium import Consortium
from support.server import running_server

SITES = ("ada", "brno", "cadiz")
MAPPING = {
    "features": {"crea": {"column": "wert", "time": "hour", "time_factor": 1 / 24, "person": "mrn"}}
}
GRID: dict[str, Any] = {
    "name": "crea",
    "kind": "trajectory",
    "unit": "mg/dl",
    "time_unit": "days",
    "grid": [0, 2, 4, 6],
    "window": 1.5,
}


def write_visits(path: Path, seed: int, n: int = 60) -> None:
    """Write patients with seven values each: falling, level or rising."""
    rng = np.random.default_rng(seed)
    rows = [
        (f"{path.stem}-{person}", round(24 * day, 1), round(5 + (person % 3 - 1) * day / 2, 2))
        for person in range(n)
        for day in np.sort(rng.uniform(-0.5, 6.5, 7))
    ]
    table = pd.DataFrame(rows, columns=["mrn", "hour", "wert"])
    table.assign(wert=table["wert"] + rng.normal(0, 0.2, len(table)).round(2)).to_csv(
        path, index=False
    )


def released(directory: Path) -> dict[str, str]:
    """Return what the one table of a site has released, by column."""
    (record,) = CohortStore(SiteState(directory)).records().values()
    return {each.column.name: str(each.released) for each in record.cohort.columns}


def test_a_session_from_long_files_and_another_grid_after_it(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.csv" for name in SITES}
    for seed, path in enumerate(files.values()):
        write_visits(path, seed)
    data = {name: Dataset(path, mapping=MAPPING) for name, path in files.items()}
    persons = {name: pd.read_csv(path)["mrn"] for name, path in files.items()}
    with running_server(tmp_path / "server") as server:
        consortium = Consortium.found(server.base_url, server.operator_token, SITES)
        consortium.create("crea", 1, features=[GRID], config={"n_clusters": 3})
        with Site(
            server.base_url, token=consortium.site_tokens["ada"], state_dir=tmp_path / "ada"
        ) as site:
            request = site.check("crea", data["ada"], person="mrn")
        assert "crea [mg/dl] (trajectory at 0, 2, 4, 6 days" in dict(request.text())["columns"]
        assert any("from column wert; a row for each value" in each for each in request.data.lines)
        assert request.persons == 60

        results = consortium.run("crea", data, tmp_path, person="mrn")
        for name, found in results.items():
            labels = pd.Series(found.labels_).groupby(persons[name].to_numpy()).nunique()
            assert (labels == 1).all()
            kinds = pd.Series(found.labels_[: 7 * 60 : 7]).groupby(np.arange(60) % 3).nunique()
            assert (kinds == 1).all()
        expected = simulate(
            "lloyd", data, config={"n_clusters": 3}, features=[GRID], seed=7, persons=persons
        )
        assert shared(consortium.result("crea").result) == shared(to_tree(expected.result))

        # Two times of the new grid are columns that the table has released already.
        before = {name: released(tmp_path / name) for name in SITES}
        other = {**GRID, "grid": [0, 1, 2]}
        consortium.create("more", 1, features=[other], config={"n_clusters": 3})
        consortium.run("more", data, tmp_path, person="mrn")
        for name in SITES:
            after = released(tmp_path / name)
            assert {*after} - {*before[name]} == {"wert@1 (hour, days, mg/dl, linear, 1.5)"}
            assert {column: after[column] for column in before[name]} == before[name]
