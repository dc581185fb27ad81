"""Which columns of tables are features where nobody names any."""

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import create_engine

from fedclust import RuleViolation, simulate
from fedclust.data import Dataset, DataWarning, SqlQuery
from fedclust.data.numeric_columns import numeric_features
from fedclust.data.table import read_text_column
from fedclust.wire.errors import DataError

N = 30


def columns(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "age": np.round(rng.normal(60, 9, N), 1),
        "beds": rng.integers(0, 4, N),
        "sex": rng.choice(["m", "f"], N),
        "serial": np.arange(N) + 1,
        "file": rng.permutation(10**6)[:N] + 10**7,
        "patientId": rng.integers(0, 5, N),
        "empty": [None] * N,
        "bmi index": rng.normal(25, 2, N).round(2),
    }


def write(path: Path, table: dict[str, Any]) -> Path:
    pd.DataFrame(table).to_csv(path, index=False)
    return path


def names(found: list[dict[str, Any]]) -> list[str]:
    return [feature["name"] for feature in found]


def test_columns_of_numbers_are_features_and_a_warning_names_the_others(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", {**columns(1), "only here": np.linspace(0.1, 1, N)})
    second = write(tmp_path / "b.csv", columns(2))
    with pytest.warns(DataWarning) as warned:
        found = numeric_features({"a": first, "b": second}, leave_out=["beds"])

    assert names(found) == ["age", "bmi index"]
    (line,) = (str(each.message) for each in warned)
    assert "sex (not numeric)" in line
    assert "patientId, serial, file (looks like an identifier)" in line
    assert "empty (without values)" in line
    assert "only here (not at every site)" in line
    assert "beds" not in line
    with pytest.warns(DataWarning):
        found = numeric_features({"a": first, "b": second}, lacking=True)
    assert names(found) == ["age", "beds", "bmi index", "only here"]


def test_names_that_identify_persons_are_those_of_the_form(tmp_path: Path) -> None:
    rows = write(tmp_path / "a.csv", {"nr_of_children": [0, 2], "zip": [8001, 8002], "u": [1, 1.5]})
    with pytest.warns(DataWarning, match=r"left out: zip \(looks like an identifier\);"):
        assert names(numeric_features({"a": rows})) == ["nr_of_children", "u"]


def test_a_column_counts_as_numeric_only_if_it_is_in_every_file(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", {"u": [0.5, 1.5], "v": [1.5, 2.5]})
    second = write(tmp_path / "b.csv", {"u": [0.5, 1.5], "v": ["low", 2]})
    with pytest.warns(DataWarning, match=r"v \(not numeric\)"):
        assert names(numeric_features({"a": first, "b": second})) == ["u"]


def test_a_few_whole_numbers_and_repeated_ones_are_no_identifiers(tmp_path: Path) -> None:
    few = write(tmp_path / "few.csv", {"age": np.arange(40, 50)})
    assert names(numeric_features({"a": few})) == ["age"]
    many = write(tmp_path / "many.csv", {"cells": np.arange(0, 100 * N, 100)[::-1] // 2 * 7 % 1999})
    assert names(numeric_features({"a": many})) == ["cells"]


def test_a_mapping_names_the_features_and_their_units(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", {"Alter": [40.5, 50.5], "Raucher": [1, 2], "x": [0.5, 1.5]})
    mapping = {"features": {"age": {"column": "Alter", "unit": "years"}}}
    mapping["features"]["smoker"] = {"column": "Raucher", "levels": {"1": 1, "2": 0}}
    mapping["features"]["x"] = {"lacking": True}
    with pytest.warns(DataWarning, match=r"smoker \(the mapping says that it holds codes\)"):
        found = numeric_features({"a": Dataset(path, mapping=mapping)})
    assert found == [{"name": "age", "unit": "years"}]


def test_a_file_without_a_header_is_noticed_and_its_first_line_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("61.5,heavy\n62.5,light\n", "utf-8")
    with pytest.raises(DataError, match="--columns") as refused:
        numeric_features({"a": tmp_path / "a.csv"})
    assert "61" not in str(refused.value)
    assert "heavy" not in str(refused.value)
    given = Dataset(tmp_path / "a.csv", columns=["age", "smoker"])
    with pytest.warns(DataWarning, match="smoker"):
        assert names(numeric_features({"a": given})) == ["age"]


def test_without_a_column_of_numbers_there_is_nothing_to_do(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", {"sex": ["m", "f"], "id": [1, 2]})
    with pytest.raises(DataError, match=r"no column of numbers.*sex \(not numeric\)"):
        numeric_features({"a": path})
    with pytest.raises(RuleViolation, match="no column of numbers"):
        simulate("lloyd", {"a": path}, config={"n_clusters": 1})


def test_a_query_has_columns_too(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "wards.db") as base:
        base.execute("CREATE TABLE t (mrn TEXT, age REAL)")
        base.executemany("INSERT INTO t VALUES (?, ?)", [("p1", 40.5), ("p2", 50.5)])
    base.close()
    query = SqlQuery(
        "SELECT mrn, age FROM t", engine=create_engine(f"sqlite:///{tmp_path}/wards.db")
    )
    with pytest.warns(DataWarning, match="mrn"):
        assert names(numeric_features({"a": query})) == ["age"]
    assert read_text_column(query, "mrn") == ("p1", "p2")


def test_data_frames_give_what_files_give(tmp_path: Path) -> None:
    frames = {site: pd.DataFrame(columns(seed)) for site, seed in (("a", 4), ("b", 5))}
    frames["b"].insert(0, "patient_id", [f"p{row}" for row in range(N)])
    paths = {
        site: write(tmp_path / f"{site}.csv", {name: frame[name] for name in frame})
        for site, frame in frames.items()
    }
    given: Any = {"config": {"n_clusters": 2}, "policy": {"min_sites": 2}}
    with pytest.warns(DataWarning) as of_files:
        read = simulate("fkm", paths, **given)
    with pytest.warns(DataWarning) as of_frames:
        found = simulate("fkm", frames, **given)

    assert found.columns_ == read.columns_ == ("age", "beds", "bmi index")
    np.testing.assert_array_equal(found.labels_["b"], read.labels_["b"])
    (line,) = {str(each.message) for each in of_frames}
    assert {str(each.message) for each in of_files} == {line}
    assert "patient_id" in line
    assert "sex (not numeric)" in line
    assert of_frames[0].filename == __file__
    with pytest.warns(DataWarning, match="columns left out"):
        mixed = simulate("fkm", {"a": Dataset(frames["a"]), "b": paths["b"]}, **given)
    np.testing.assert_array_equal(mixed.labels_["b"], read.labels_["b"])


def test_a_site_without_rows_or_values_leaves_no_column_out() -> None:
    full = pd.DataFrame({"u": np.linspace(0, 1, N), "v": np.linspace(1, 2, N) ** 2})
    assert names(numeric_features({"a": full, "b": full.iloc[:0]})) == ["u", "v"]
    partly = full.assign(v=np.nan)
    assert names(numeric_features({"a": full, "b": partly}, lacking=True)) == ["u", "v"]
    with pytest.warns(DataWarning, match=r"v \(without values\)"):
        assert names(numeric_features({"a": full, "b": partly})) == ["u"]
    with pytest.warns(DataWarning, match=r"v \(without values\)"):
        assert names(numeric_features({"a": partly, "b": partly}, lacking=True)) == ["u"]
