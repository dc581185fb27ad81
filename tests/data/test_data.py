"""Rows that do not fit: named by file, column, row and rule, without repeating a value."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclust.data import Table, load
from fedclust.schema.feature import Feature
from fedclust.wire.errors import DataError

AGE = Feature(name="age", unit="years", lower=0.0, upper=120.0)
SEX = Feature(name="sex", kind="binary")
CHOL = Feature(name="chol")
FEATURES = (AGE, SEX, CHOL)


def csv(tmp_path: Path, text: str | bytes, name: str = "cohort.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def fault(source: Any, **options: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        load(source, FEATURES, **options)
    return caught.value


def test_columns_are_found_by_name_and_come_in_the_sessions_order(tmp_path: Path) -> None:
    path = csv(
        tmp_path, "mrn, chol ,note,age,sex\nA1,200.5,x y,40,1\nA2,,,NA,0\n\nA3,-1e2,n/a,7,1\n"
    )
    table = load(path, FEATURES, id_column="mrn")
    expected = [[40, 1, 200.5], [np.nan, 0, np.nan], [7, 1, -100]]
    np.testing.assert_array_equal(table.X, expected)
    assert table.ids == ("A1", "A2", "A3")
    assert table.X.dtype == np.float64
    assert table.X.flags.c_contiguous


@pytest.mark.parametrize(
    ("text", "rule", "column", "row"),
    [
        ("age,chol\n1,2\n", "missing-column", "sex", None),
        ("age,sex,age,chol\n1,0,1,2\n", "duplicate-column", "age", None),
        ("age,sex,x,chol,x\n1,0,1,2,3\n", "duplicate-column", "x", None),
        ("age,sex,chol\n1,0,2\n1,0,SECRET\n", "not-a-number", "chol", 3),
        ("age,sex,chol\n1,0,2\n1,0,1_000\n", "not-a-number", "chol", 3),
        ('note,age,sex,chol\n"a\nb\nc",1,0,SECRET\n', "not-a-number", "chol", 2),
        ("age;chol,sex\n1;0,2\n", "missing-column", "age", None),
        ("age;sex;chol\n1;0;1,5\n", "not-a-number", "chol", 2),
        ("SECRET,SECRET,1\n2,0,1\n", "missing-column", "age", None),
        ("age,sex,chol\n1,0,٣\n", "not-a-number", "chol", 2),
        ('age,sex,chol\n1,0,"1,5"\n', "not-a-number", "chol", 2),
        ('note,age,sex,chol\n"two\nlines",1,0,2\n,1,0,SECRET\n', "not-a-number", "chol", 4),
        ("age,sex,chol\n1,0,inf\n", "too-large", "chol", 2),
        ("age,sex,chol\n1,0,-1e155\n", "too-large", "chol", 2),
        ("age,sex,chol\n1,0\n", "field-count", None, 2),
        ("age,sex,chol\n", "no-rows", None, None),
        ("age,sex,chol\n\n\n", "no-rows", None, None),
        ("", "no-header", None, None),
        ('age,sex,chol\n1,0,"2\n', "csv", None, 2),
        ("age,sex,chol\n\n1,0,2\n1,x,3\n", "not-a-number", "sex", 4),
        (b"age,sex,chol\n1,0,\xff\n", "encoding", None, 2),
        ("age,sex,chol\n".encode("utf-16"), "no-rows", None, None),
        ("age,sex,chol\n1,0,2\n".encode("utf-16")[:-1], "encoding", None, 2),
    ],
)
def test_a_csv_that_does_not_fit(
    tmp_path: Path, text: str | bytes, rule: str, column: str | None, row: int | None
) -> None:
    error = fault(csv(tmp_path, text))
    assert (error.source, error.rule, error.column, error.row) == ("cohort.csv", rule, column, row)
    message = str(error)
    assert message.startswith("cohort.csv")
    assert "SECRET" not in message
    assert column is None or repr(column) in message
    assert row is None or f"line {row}" in message


@pytest.mark.parametrize(
    ("text", "value"),
    [("1'234.5", 1234.5), ("1 234", 1234), ("-12\u202f345\u202f678.5", -12345678.5)],
)
def test_spaces_and_apostrophes_separate_thousands(tmp_path: Path, text: str, value: float) -> None:
    path = csv(tmp_path, f"age,sex,chol\n1,0,{text}\n")
    assert load(path, FEATURES).X[0, 2] == value


@pytest.mark.parametrize("text", ['"1,234.5"', "1'23.5", "1 2345", "0 123", "-1.234.567"])
def test_separators_between_thousands_are_recognised(tmp_path: Path, text: str) -> None:
    assert "thousands" in str(fault(csv(tmp_path, f"age,sex,chol\n1,0,{text}\n")))
    assert "thousands" not in str(fault(csv(tmp_path, "age,sex,chol\n1,0,2026-01-01\n")))


def test_what_spreadsheets_leave_behind(tmp_path: Path) -> None:
    path = csv(tmp_path, "\ufeff\r\nage,sex,chol,,\r\n1,0,2,,\r\n   \r\n\r\n3,1,4,,\r\n")
    np.testing.assert_array_equal(load(path, FEATURES).X, [[1, 0, 2], [3, 1, 4]])
    remark = str(fault(csv(tmp_path, "age,sex,chol\n1,0,2\n1 row returned\n")))
    assert "line 3: 1 field, and 3 fields in the header; if it is a remark and no row" in remark
    # In a file of one column a line of quotes is a row whose value is missing.
    alone = load(csv(tmp_path, 'chol\n1\n""\n2\n'), (CHOL,)).X[:, 0]
    np.testing.assert_array_equal(alone, [1, np.nan, 2])


def test_no_value_is_in_a_repr(tmp_path: Path) -> None:
    path = csv(tmp_path, "who,age,sex,chol\nSECRET,77.25,1,2\n")
    table = load(path, FEATURES, id_column="who", person=["SECRET"])
    assert "SECRET" not in repr(table)
    assert "77.25" not in repr(table)


def test_identifiers_may_not_be_features(tmp_path: Path) -> None:
    path = csv(tmp_path, "age,sex,chol\n1,0,2\n")
    assert fault(path, id_column="age").rule == "reserved-column"
    assert fault(path, person="chol").rule == "reserved-column"
    unnamed = fault(path, id_column="mrn")
    assert unnamed.rule == "missing-column"
    assert "the session needs" not in str(unnamed)
    assert fault(path, person="who").column == "who"


# --- arrays and DataFrames ------------------------------------------------------------------------


def test_arrays_of_any_number_type() -> None:
    for dtype in (np.int32, np.float32, np.float64, bool):
        rows = np.array([[1, 0, 1], [0, 1, 0]]).astype(dtype)
        assert load(rows, FEATURES).X.dtype == np.float64
    listed = load([[1, 0, 2.5], [3, 1, np.nan]], FEATURES)
    assert listed.X.shape == (2, 3)
    rows = np.zeros((2, 3))
    table = load(rows, FEATURES)
    rows[:] = 1
    assert not table.X.any(), "what was checked is what is used"


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        (np.zeros((2, 2)), "shape"),
        (np.zeros(3), "shape"),
        (np.zeros((2, 3, 1)), "shape"),
        (np.zeros((0, 3)), "no-rows"),
        (np.array([["SECRET", "b", "c"]]), "not-a-number"),
        (np.array([[1, 2, None]], dtype=object), "not-a-number"),
        (np.zeros((2, 3), dtype=complex), "not-a-number"),
        ([[1, 2, 3], [1, 2]], "shape"),
    ],
)
def test_an_array_that_does_not_fit(source: Any, rule: str) -> None:
    error = fault(source)
    assert error.rule == rule
    assert error.source == "the array"
    assert "SECRET" not in str(error)


def test_infinity_is_named_by_column_count_and_first_row() -> None:
    rows = np.array([[1, 0, 1.0], [1, 0, np.inf], [1, 0, -np.inf]])
    error = fault(rows)
    assert (error.column, error.row, error.count) == ("chol", 1, 2)


# --- the digest that pins rows --------------------------------------------------------------------


def test_anything_else_has_another_digest() -> None:
    X = np.array([[1, 0, 2.5], [3, 1, 4.0]])
    names = ("age", "sex", "chol")
    tables = [
        Table(X, names),
        Table(X[::-1].copy(), names),
        Table(X, names[::-1]),
        Table(X + np.array([0, 0, 1e-12]), names),
        Table(X[:1], names),
    ]
    for one, other in itertools.combinations(tables, 2):
        assert one.digest() != other.digest()


@given(st.lists(st.floats(-1e50, 1e50), min_size=1, max_size=8))
def test_numbers_read_back_bit_for_bit(values: list[float]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = csv(Path(directory), "chol\n" + "\n".join(map(repr, values)) + "\n")
        assert load(path, (CHOL,)).X[:, 0].tolist() == values
