"""Rows are labelled block by block: the same labels as from memory, whatever the source."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust import simulate
from fedclust.data import Dataset, DataWarning, load
from fedclust.data import table as tables
from fedclust.result.session_result import SessionResult
from fedclust.schema.feature import Feature
from fedclust.wire.errors import DataError

FEATURES = [
    {"name": "x", "lower": 0, "upper": 12},
    {"name": "s", "kind": "categorical", "levels": ["a", "b"]},
]


def _rows(seed: int, n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    of = rng.integers(0, 2, n)
    x = np.clip(10 * of + rng.normal(1, 0.5, n), 0, 12)
    return pd.DataFrame({"id": [f"r{i}" for i in range(n)], "x": x, "s": np.array(["a", "b"])[of]})


@pytest.fixture(scope="module")
def result() -> SessionResult:
    """Return a session's result as a site has it."""
    sites = {name: _rows(seed) for seed, name in enumerate("abc")}
    found = simulate(
        "lloyd", sites, config={"n_clusters": 2}, features=FEATURES, policy={"missing": "drop"}
    )
    return SessionResult(found.result, found.definition, site="a")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have rows read seven at a time, and tell how many were in each block."""
    sizes: list[int] = []
    real = tables.RowSource.scan

    def scan(rows: Any, _n: int = 0) -> Iterator[Any]:
        for block in real(rows, 7):
            sizes.append(len(block))
            yield block

    monkeypatch.setattr(tables.RowSource, "scan", scan)
    return sizes


@pytest.mark.parametrize("kind", ["frame", "csv", "parquet"])
def test_labels_and_identifiers_by_blocks(
    result: SessionResult, kind: str, tmp_path: Path, small_blocks: list[int]
) -> None:
    rows = _rows(7)
    sources = {"frame": rows, "csv": tmp_path / "rows.csv", "parquet": tmp_path / "rows.parquet"}
    rows.to_csv(tmp_path / "rows.csv", index=False)
    rows.to_parquet(tmp_path / "rows.parquet", row_group_size=11)

    found = result.place_rows(result.new_rows(sources[kind], "id"))
    labels = found.labels

    assert 7 <= max(small_blocks) < 14
    assert found.ids == tuple(rows["id"])
    assert result.predict(sources[kind]).tolist() == labels.tolist()
    low = int(result.cluster_centers_[:, 0].argmin())
    np.testing.assert_array_equal(labels == low, rows["s"] == "a")


def test_values_outside_the_bounds_are_used_and_unknown_ones_give_no_label(
    result: SessionResult,
) -> None:
    rows = pd.DataFrame({"x": [-50.0, 500.0, 1.0, None], "s": ["a", "b", "other", "a"]})
    low = int(result.cluster_centers_[:, 0].argmin())
    with pytest.warns(DataWarning) as told:
        assert result.predict(rows).tolist() == [low, 1 - low, -1, -1]
    said = " ".join(str(each.message) for each in told)
    assert "column 'x': 2 of its 3 values lie outside the session's bounds: check" in said
    assert "that it is the right column, and that it is in the session's unit" in said


@pytest.mark.parametrize("n_unknown", [0, 1, 3])
def test_unknown_levels_that_count_as_missing_are_told(n_unknown: int) -> None:
    """Without protection no table is formed, which would refuse them."""
    rows = _rows(7)
    known = rows["s"].copy()
    rows.loc[rows.index < n_unknown, "s"] = "SECRET"
    blank = rows.assign(s=known.where(rows["s"] != "SECRET"))
    given = {"config": {"n_clusters": 2}, "features": FEATURES}
    policy = {"protection": "none", "missing": "impute"}
    features = tuple(Feature.model_validate_json(json.dumps(each)) for each in FEATURES)
    with pytest.warns(DataWarning) if n_unknown else nullcontext([]) as caught:
        found = simulate("lloyd", {"a": rows}, policy=policy, **given)
        loaded = load(rows, features)
    counted = "1 row has a value" if n_unknown == 1 else f"{n_unknown} rows have a value"
    assert len(caught) == 2 * (n_unknown > 0)
    for each in caught:
        text = str(each.message)
        assert f"column 's': {counted} that the session does not know, and it counts as mis" in text
        assert "The session knows a, b: say in the mapping file" in text
        assert "SECRET" not in text
    same = simulate("lloyd", {"a": blank}, policy=policy, **given)
    assert found.cluster_centers_.tobytes() == same.cluster_centers_.tobytes()
    assert loaded.digest() == load(blank, features).digest()


def test_a_cell_that_cannot_be_read_is_named_after_all_rows_were(
    result: SessionResult, small_blocks: list[int]
) -> None:
    rows = _rows(7).astype({"x": object})
    rows.loc[[8, 30], "x"] = "SECRET"
    with pytest.raises(DataError) as caught:
        result.predict(Dataset(rows))
    assert (caught.value.row, caught.value.count) == (8, 2)
    assert "SECRET" not in str(caught.value)
    assert sum(small_blocks) == 60
