"""Excel workbooks: what their cells hold, which sheet and row is meant, and what cannot be read."""

import datetime
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest

from fedclust.data import Dataset, load
from fedclust.schema.feature import Feature
from fedclust.wire.errors import DataError

AGE = Feature(name="age", unit="years", lower=0.0, upper=120.0)
SEX = Feature(name="sex", kind="binary")
STAGE = Feature(name="stage", kind="categorical", levels=("1", "2", "x"))
HEADER = ["id", "age", "sex", "stage"]


def book(path: Path, *rows: list[Any], **sheets: list[list[Any]]) -> Path:
    """Write a workbook: the sheet "data", or sheets by name."""
    made = openpyxl.Workbook()
    made.remove(made.active)
    for name, content in (sheets or {"data": list(rows)}).items():
        sheet = made.create_sheet(name)
        for row in content:
            sheet.append(row)
    made.save(path / "rows.xlsx")
    return path / "rows.xlsx"


def edited(path: Path, part: str, old: str, new: str) -> Path:
    """Replace text in a part of a workbook, as another program would have written it."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert re.search(old, parts[part])
    parts[part] = re.sub(old, new, parts[part])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return path


SHEET = "xl/worksheets/sheet1.xml"


def refused(source: Any, *features: Feature, **options: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        load(source, features or (AGE,), **options)
    assert "SECRET" not in str(caught.value)
    return caught.value


def test_cells_of_every_type(tmp_path: Path) -> None:
    path = book(
        tmp_path,
        ["id", "age", "sex", "stage", None, "seen"],
        [101, 40, True, 1, None, datetime.date(2026, 1, 2)],
        [102.0, 41.5, False, "2", None, None],
        [None, None, None, None],
        ["  x7 ", "#N/A", 1, "x"],
        [104, " ", 0, None],
        [105, "n/a", None, 2.0],
    )
    table = load(path, (AGE, SEX, STAGE), id_column="id")
    assert table.ids == ("101", "102", "x7", "104", "105")
    nan = np.nan
    np.testing.assert_array_equal(
        table.X[:, :2], [[40, 1], [41.5, 0], [nan, 1], [nan, 0], [nan] * 2]
    )
    stages = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [nan] * 3, [0, 1, 0]]
    np.testing.assert_array_equal(table.X[:, 2:] > 0, np.array(stages) > 0)
    np.testing.assert_array_equal(np.isnan(table.X[:, 2]), [False] * 3 + [True, False])


@pytest.mark.parametrize(
    ("column", "cell", "rule"),
    [
        ("age", "SECRET", "not-a-number"),
        ("age", datetime.date(2026, 1, 2), "not-a-number"),
        ("age", "#DIV/0!", "error-cell"),
        ("stage", "#REF!", "error-cell"),
        ("id", "#VALUE!", "error-cell"),
        ("id", 12345678901234567, "rounded"),
        ("id", "#N/A", "persons"),
        ("age", "=1+1", "no-result"),
    ],
)
def test_a_cell_that_cannot_be_used_is_named(
    column: str, cell: Any, rule: str, tmp_path: Path
) -> None:
    rows = [[f"p{i}", 40 + i, 1, 2] for i in range(5)]
    rows[3][HEADER.index(column)] = cell
    # Two empty rows above the header: rows are numbered as the spreadsheet does.
    path = book(tmp_path, [], [], HEADER, *rows)
    error = refused(path, AGE, STAGE, person="id")
    assert (error.rule, error.row) == (rule, 7)
    assert f"column {column!r}" in str(error) or rule == "persons"
    if rule == "error-cell" and column != "id":
        assert f"--missing '{cell}'" in str(error)
        table = load(Dataset(path, missing=cell), (AGE, STAGE))
        assert np.isnan(table.X).any(axis=1).tolist() == [False] * 3 + [True, False]


def test_stored_results_of_formulas(tmp_path: Path) -> None:
    """An empty text is a result; a column that is not read needs none."""
    path = book(tmp_path, HEADER, ["a", "=20+20", 1, 1], ["b", '=IF(1,"",2)', 0, "=A2"])
    edited(path, SHEET, r"<f>20\+20</f><v ?/?>(</v>)?", "<f>20+20</f><v>40</v>")
    edited(path, SHEET, r'r="B3"><f>(.*?)</f><v ?/?>(</v>)?', r'r="B3" t="str"><f>\1</f><v></v>')
    table = load(path, (AGE, SEX), id_column="id")
    np.testing.assert_array_equal(table.X, [[40, 1], [np.nan, 0]])
    assert "save it" in str(refused(path, STAGE))


def test_dates_beyond_the_calendar_are_not_quoted(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = book(tmp_path, ["age"], [datetime.date(2026, 1, 2)])
    edited(path, SHEET, r"<v>\d{5}</v>", "<v>99999999</v>")
    assert refused(path).rule in ("error-cell", "not-a-number")
    assert not [each for each in recwarn.list if "99999999" in str(each.message)]


def test_the_size_that_a_program_writes_may_be_wrong(tmp_path: Path) -> None:
    path = book(tmp_path, ["age", "sex"], [40, 1], [41, 0])
    edited(path, SHEET, r'<dimension ref="A1:B3" ?/>', '<dimension ref="A1"/>')
    np.testing.assert_array_equal(load(path, (AGE, SEX)).X, [[40, 1], [41, 0]])


def test_numbers_in_cells_of_text_are_read_with_the_decimal_mark(tmp_path: Path) -> None:
    path = book(tmp_path, ["age"], ["40,5"], [41.5], [" 42 "], ["n/a"])
    found = load(Dataset(path, decimal=","), (AGE,)).X
    np.testing.assert_array_equal(found, [[40.5], [41.5], [42], [np.nan]])
    assert "write decimals with a point" in str(refused(path))


# --- which sheet, which row -----------------------------------------------------------------------


def test_the_sheet(tmp_path: Path) -> None:
    cohort, other = [["age"], [40], [41]], [["age"], [60]]
    path = book(tmp_path, notes=[["About this file"]], cohort=cohort, empty=[])
    assert load(path, (AGE,)).X.tolist() == [[40], [41]]
    path = book(tmp_path, cohort=cohort, codes=other)
    assert "'cohort', 'codes'; choose (sheet=, --sheet)" in str(refused(path))
    assert load(Dataset(path, sheet="codes"), (AGE,)).X.tolist() == [[60]]
    assert load(Dataset(path, mapping={"sheet": "codes"}), (AGE,)).X.tolist() == [[60]]
    assert "it has 'cohort', 'codes'" in str(refused(Dataset(path, sheet="Codes")))
    assert load(Dataset(path, sheet=["codes", "cohort"]), (AGE,)).X.tolist() == [[60], [40], [41]]
    edited(
        path,
        "xl/workbook.xml",
        r'name="codes" (sheetId="2") state="visible"',
        r'name="codes" \1 state="hidden"',
    )
    assert load(path, (AGE,)).X.tolist() == [[40], [41]]
    lower = book(tmp_path, cohort=cohort, codes=[["Codes"], *other], other=[["Age"], [1]])
    for second in ("codes", "other"):
        said = str(refused(Dataset(lower, sheet=["cohort", second])))
        assert f"the header of '{second}' is not that of 'cohort', row 1" in said
    assert refused(book(tmp_path, cohort=[])).rule == "no-header"
    assert refused(book(tmp_path, cohort=[["age"]])).rule == "no-rows"


def test_the_header(tmp_path: Path) -> None:
    title, top = ["Cohort 2026"], [" age", "sex\n(m/f) "]
    path = book(tmp_path, title, [], top, [40, 1], [41, 0])
    error = refused(path)
    assert "row 1 is read as the header; name another one (header_row=, --header-row)" in str(error)
    sex = {"features": {"sex": {"column": "sex (m/f)"}}}
    named = Dataset(path, header_row=3, mapping=sex)
    assert load(named, (AGE, SEX)).X.tolist() == [[40, 1], [41, 0]]
    assert "row 2 is empty" in str(refused(Dataset(path, header_row=2)))
    assert refused(Dataset(path, header_row=9)).rule == "no-header"
    bare = book(tmp_path, [40, 1], [41, 0])
    assert load(Dataset(bare, columns=["age", "sex"]), (AGE, SEX)).X.tolist() == [[40, 1], [41, 0]]
    assert refused(Dataset(bare, columns=["age"])).rule == "field-count"
    again = Dataset(book(tmp_path, ["age", "sex"], [40, 1]), columns=["age", "sex"])
    assert refused(again).rule == "header-twice"
    assert refused(book(tmp_path, ["age", "age"], [40, 1])).rule == "duplicate-column"


def test_a_merged_header_cell_is_refused(tmp_path: Path) -> None:
    """Of two columns below one name only the first would be read."""
    path = book(tmp_path, ["sex", "age", None, "id"], [1, 40, 44, "a"], [0, 41, None, "b"])
    error = refused(path)
    assert error.rule == "merged-header"
    assert error.column == "age"
    assert load(path, (SEX,)).X.tolist() == [[1], [0]]
    assert refused(book(tmp_path, ["sex", "age"], [1, 40, 44])).rule == "merged-header"


# --- files that are no workbook -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1SECRET", "protected by a password"),
        (b"age\n40\n", "no Excel workbook"),
        (b"PK\x03\x04SECRET", "damaged"),
        (b"", "no Excel workbook"),
    ],
)
def test_a_file_that_is_no_workbook(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.xlsx"
    path.write_bytes(content)
    assert says in str(refused(path))


def test_a_damaged_workbook(tmp_path: Path) -> None:
    path = book(tmp_path, ["age"], *[[40]] * 50)
    edited(path, SHEET, r"<v>40</v></c></row></sheetData>", "<v>40SECRET")
    assert "damaged" in str(refused(path))
    path.unlink()
    assert refused(path).rule == "unreadable"


@pytest.mark.parametrize("name", ["rows.xls", "rows.ods", "rows.xlsb"])
def test_other_spreadsheets_name_a_way(name: str, tmp_path: Path) -> None:
    assert "save it as .xlsx" in str(refused(tmp_path / name))
