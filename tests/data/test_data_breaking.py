"""Tables as hospitals write them: the same matrix from every source, and faults named in each."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from data.stored_rows import stored_as
from fedclust.data import Dataset, SqlQuery, load
from fedclust.data.profile import profile
from fedclust.data.row_source import RowSource
from fedclust.data.row_warnings import IdDetector
from fedclust.schema.encoding import encode_features
from fedclust.schema.feature import Feature
from fedclust.wire.errors import DataError

AGE = Feature(name="age", unit="years")
CHOL = Feature(name="chol", unit="mg/dl", lower=0.0)
SEX = Feature(name="sex", kind="binary")
CP = Feature(name="cp", kind="categorical", levels=("typical", "none", "2"))
TYPE = Feature(name="type", kind="categorical", levels=("0", "1", "2"))
FEATURES = (CHOL, SEX, CP, TYPE)
#: chol is kept in another unit, -9 is missing; cp has codes of its own; type's 0 means missing.
HOW: dict[str, Any] = {
    "mapping": {
        "features": {
            "chol": {"column": "chol_mmol", "factor": 38.67, "to": "mg/dl", "sentinels": [-9]},
            "cp": {"levels": {"T": "typical", "x": "none"}, "missing": ["?"]},
            "type": {"sentinels": [0]},
        }
    }
}
CP_CODES = {"T": 0, "typical": 0, "x": 1, "2": 2, "?": -1, None: -1}
CELL = st.fixed_dictionaries(
    {
        "chol_mmol": st.sampled_from([None, -9.0, 0.0]) | st.floats(0.001, 50),
        "sex": st.sampled_from([None, 0, 1]),
        "cp": st.sampled_from(sorted(CP_CODES, key=str)),
        "type": st.sampled_from([None, 0, 1, 2]),
        "note": st.sampled_from(["a", 'quoted "b"', "two\nlines", "c;d,e\tf|g"]),
    }
)


def divided(frame: pd.DataFrame, parts: int) -> Any:
    from dask.dataframe import from_pandas

    return from_pandas(frame, npartitions=parts)


def written(frame: pd.DataFrame, folder: Path, rows: int) -> dict[str, Any]:
    """Return the same table in every kind of source."""
    frame.to_csv(folder / "excel.csv", index=False, sep=";", decimal=",", encoding="cp1252")
    frame.to_csv(
        folder / "wide.csv", index=False, sep="\t", encoding="utf-16", lineterminator="\r\n"
    )
    categories = frame.astype({"cp": "category", "sex": "boolean", "type": "float32"})
    lazy = divided(frame, 2).clear_divisions()
    return {
        "frame": Dataset(frame, **HOW),
        "categories": Dataset(categories, **HOW),
        "arrow": Dataset(frame.convert_dtypes(dtype_backend="pyarrow"), **HOW),
        "excel": Dataset(folder / "excel.csv", decimal=",", encoding="cp1252", **HOW),
        "wide": Dataset(folder / "wide.csv", **HOW),
        **{
            kind: Dataset(stored_as(kind, frame, folder, rows), **HOW)
            for kind in ("csv", "parquet", "parts", "sql")
        },
        "dask": Dataset(lazy[lazy["note"] != "absent"], **HOW),
    }


@settings(max_examples=4, phases=[Phase.generate])
@given(st.lists(CELL, min_size=1, max_size=9), st.integers(1, 10))
def test_the_matrix_is_the_same_whatever_the_source_and_the_blocks(
    cells: list[dict[str, Any]], rows: int
) -> None:
    frame = pd.DataFrame(cells).astype({"chol_mmol": float, "sex": "Int64", "type": "Int64"})
    chol = [np.nan if c["chol_mmol"] in (None, -9.0) else c["chol_mmol"] * 38.67 for c in cells]
    sex = [np.nan if c["sex"] is None else c["sex"] for c in cells]
    cp = [CP_CODES[c["cp"]] for c in cells]
    kind = [-1 if not c["type"] else c["type"] for c in cells]
    expected = encode_features(FEATURES, [np.array(values) for values in (chol, sex, cp, kind)])
    with tempfile.TemporaryDirectory() as folder:
        for name, source in written(frame, Path(folder), rows).items():
            opened = RowSource(source, FEATURES, text=("note",))
            blocks = list(opened.scan(rows))
            matrix = np.concatenate([opened.matrix(block) for block in blocks])
            np.testing.assert_array_equal(matrix, expected, err_msg=name)
            notes = [note for block in blocks for note in block.text["note"]]
            assert [n.split() for n in notes] == [c["note"].split() for c in cells], name


def bad(folder: Path, rows: int) -> dict[str, tuple[Any, int]]:
    """Return a table whose row 5 breaks a rule, in every kind of source, and its number there."""
    frame = pd.DataFrame({"age": range(1, 8), "note": ["a\nb"] * 7, "chol": [1.0] * 7})
    frame.loc[5, "chol"] = np.inf
    sources = written(frame.assign(cp="T", sex=1, type=1), folder, rows)
    where = {"csv": 12, "excel": 12, "wide": 12, "parts": 5 % rows}
    return {name: (given.source, where.get(name, 5)) for name, given in sources.items()}


@pytest.mark.parametrize("rows", [2, 3, 10])
def test_the_first_offending_row_is_named_in_every_source(rows: int, tmp_path: Path) -> None:
    for name, (source, row) in bad(tmp_path, rows).items():
        how: dict[str, Any] = {"decimal": ",", "encoding": "cp1252"} if name == "excel" else {}
        with pytest.raises(DataError) as caught:
            load(Dataset(source, **how), (CHOL,))
        error = caught.value
        found = (error.rule, error.column, error.row, error.count)
        assert found == ("too-large", "chol", row, 1), name
        if name == "parts" and rows < 7:
            assert error.source == f"{5 // rows:03}.parquet"
            assert f"{error.source}, row {row}" in profile(source, (CHOL,)).columns[0].says[0]


def fault(source: Any, *features: Feature, **options: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        load(source, features, **options)
    return caught.value


# --- CSV ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["sep=;\r\n", '"sep=;"\n', "\ufeffSEP=;\r\n"])
def test_a_first_line_that_names_the_separator(first: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(f"{first}age;chol\n1;2\n3;4\n".encode())
    np.testing.assert_array_equal(load(path, (AGE, CHOL)).X, [[1, 2], [3, 4]])
    path.write_bytes(f'{first}age;chol\n1;2\n"3;-4\n'.encode())
    assert fault(path, AGE, CHOL).row == 4
    path.write_bytes(f"{first}age;chol\n1;2\n3;x\n".encode())
    assert fault(path, AGE, CHOL).row == 4


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_wide_characters_without_a_mark_are_recognised(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("age\n1.5\n".encode(encoding))
    error = fault(path, AGE)
    assert error.rule == "encoding"
    assert f"--encoding {encoding}" in str(error)
    assert load(Dataset(path, encoding=encoding), (AGE,)).X.tolist() == [[1.5]]


def test_a_quotation_mark_that_is_never_closed_is_named_where_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    for more in (5, 50_000):  # the second is longer than a field may be
        path.write_text('age,chol\n1,2\n"3,4\n' + "5,6\n" * more, "utf-8")
        error = fault(path, AGE)
        assert (error.rule, error.row) == ("csv", 3)


# --- names and values -----------------------------------------------------------------------------


def test_spaces_around_a_name_are_no_part_of_it(tmp_path: Path) -> None:
    frame = pd.DataFrame([[1.5, 2.0]], columns=["age ", " chol"])
    frame.to_parquet(tmp_path / "rows.parquet")
    lazy = divided(frame, 1)
    for source in (frame, tmp_path / "rows.parquet", lazy):
        assert load(source, (AGE, CHOL)).X.tolist() == [[1.5, 2.0]]
    twice = pd.DataFrame([[1.5, 2.0]], columns=["age ", "age"])
    assert fault(twice, AGE).rule == "duplicate-column"


def test_a_sentinel_is_found_in_single_precision() -> None:
    narrow = np.array([99.9, 1.5], dtype=np.float32)
    for source in (pd.DataFrame({"age": narrow}), narrow[:, None]):
        X = load(Dataset(source, sentinels={"age": 99.9}), (AGE,)).X
        np.testing.assert_array_equal(X, [[np.nan], [1.5]])


# A connection that an earlier test left may be collected here.
@pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
def test_a_number_that_its_unit_makes_too_large_is_missing() -> None:
    how = {"features": {"age": {"factor": 100.0, "to": "years"}}}
    found = load(Dataset(pd.DataFrame({"age": [1.0, 1e50]}), mapping=how), (AGE,))
    np.testing.assert_array_equal(found.X[:, 0], [100.0, np.nan])


def test_no_more_identifiers_are_kept_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedclust.data.row_warnings._IDS_ENOUGH", 50)
    watch = IdDetector()
    for start in range(0, 500, 20):
        watch.add(np.arange(start, start + 20, dtype=np.float64))
    assert watch.suspicious
    assert len(watch._seen) <= 60


def test_a_database_file_of_a_misspelt_name_is_not_made(tmp_path: Path) -> None:
    query = SqlQuery("SELECT 1 AS age", url=f"sqlite:///{tmp_path}/cohrt.db")
    assert "not there" in str(fault(query, AGE))
    assert list(tmp_path.iterdir()) == []
