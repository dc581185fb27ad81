"""Local names, units, codes, sentinels and markers: what a site writes in its mapping file."""

import datetime
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust.cli.options import Reading
from fedclust.data import Dataset, load
from fedclust.data.mapping import ColumnMap, ColumnsFile, canonical_code
from fedclust.data.row_source import RowSource
from fedclust.schema.feature import Feature
from fedclust.wire.errors import DataError, UsageError

CHOL = Feature(name="chol", unit="mg/dl", lower=50.0, upper=700.0)
SEX = Feature(name="sex", kind="binary")
TEMP = Feature(name="temp", unit="°C")
CP = Feature(name="cp", kind="categorical", levels=("typical", "none", "1", "2"))

FILE = """
delimiter = ";"
decimal = ","
missing = ["?", "-9"]

[features.chol]
column = "chol_mmol"
unit = "mmol/l"
to = "mg/dl"
factor = 38.67
sentinels = [0]

[features.sex]
column = "geschlecht"
levels = { m = 1, w = 0 }
missing = ["x"]

[features.temp]
unit = "°F"
to = "°C"
factor = 0.5555555555555556
offset = -17.77777777777778

[features.cp]
levels = { T = "typical", 4 = "2" }

[features.of_another_session]
column = "z"
"""
DATA = """geschlecht;chol_mmol;temp;cp
m;5,0;98,6;T
w;0;?;none
x;-9;-9,0;4,0
m;;32;1
w;NA;212;2,0
?;10;32;?
"""


def raw(source: Any, *features: Feature, **options: Any) -> list[list[float]]:
    """Return each feature's values: numbers, or places of levels, -1 for none."""
    rows = RowSource(source, features, **options)
    columns = zip(*(rows.session_values(block) for block in rows.scan()), strict=True)
    found = zip(features, map(np.concatenate, columns), strict=True)
    return [
        (np.nan_to_num(values, nan=-1) if feature.kind == "categorical" else values).tolist()
        for feature, values in found
    ]


def fault(source: Any, *features: Feature, **options: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        load(source, features, **options)
    assert "SECRET" not in str(caught.value)
    return caught.value


@pytest.fixture
def site(tmp_path: Path) -> Dataset:
    (tmp_path / "columns.toml").write_text(FILE, "utf-8")
    (tmp_path / "cohort.csv").write_text(DATA, "utf-8")
    return Dataset(tmp_path / "cohort.csv", mapping=tmp_path / "columns.toml")


def test_a_mapping_file_with_everything(site: Dataset) -> None:
    sex, chol, temp, cp = raw(site, SEX, CHOL, TEMP, CP)
    nan = np.nan
    np.testing.assert_array_equal(sex, [1, 0, nan, 1, 0, nan])
    np.testing.assert_allclose(chol, [193.35, nan, nan, nan, nan, 386.7])
    np.testing.assert_allclose(temp, [37, nan, nan, 0, 100, 0], atol=1e-9)
    assert cp == [0, 1, 3, 2, 3, -1], "a declared level called none is no missing value"


def test_options_go_before_the_file_and_markers_add_up(site: Dataset, tmp_path: Path) -> None:
    data = tmp_path / "other.csv"
    data.write_text("geschlecht,chol_mmol\nm,5.0\n?,99\nkeine,0\n", "utf-8")
    dataset = Dataset(
        data,
        mapping=tmp_path / "columns.toml",
        delimiter=",",
        decimal=".",
        missing=["keine"],
        sentinels={"chol": [99]},
    )
    np.testing.assert_array_equal(raw(dataset, SEX, CHOL)[0], [1, np.nan, np.nan])
    np.testing.assert_allclose(raw(dataset, SEX, CHOL)[1], [193.35, np.nan, np.nan])


@pytest.mark.parametrize(
    "word", ["", " ", "NA", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None", "."]
)
def test_the_usual_markers(word: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(f'chol,cp\n"{word}","{word}"\n', "utf-8")
    chol, cp = raw(tmp_path / "x.csv", CHOL, CP)
    assert np.isnan(chol).all()
    assert cp == [-1]


def test_a_text_has_the_number_that_the_mapping_gives_it(tmp_path: Path) -> None:
    (tmp_path / "cohort.csv").write_text("chol_mmol\n <0.5\n> 15\n5.0\n<0.6\n", "utf-8")
    rule = {"column": "chol_mmol", "unit": "mmol/l", "to": "mg/dl", "factor": 38.67}
    rule["values"] = {"<0.5": 0.25, "> 15": 15}
    given = Dataset(tmp_path / "cohort.csv", mapping={"features": {"chol": rule}})
    assert "line 5" in str(fault(given, CHOL)), "only texts that are named"
    rule["values"]["<0.6"] = 0.3
    given = Dataset(tmp_path / "cohort.csv", mapping={"features": {"chol": rule}})
    np.testing.assert_allclose(raw(given, CHOL)[0], np.array([0.25, 15, 5, 0.3]) * 38.67)


def test_codes_are_compared_as_numbers_or_as_unchanged_text() -> None:
    rows = pd.DataFrame({"cp": ["1", "1.0", " 2", None], "chol": [0, 0.0, -9, 100.0]})
    dataset = Dataset(rows, missing="-9", sentinels={"chol": 0})
    cp, chol = raw(dataset, CP, CHOL)
    assert cp == [2, 2, 3, -1]
    np.testing.assert_array_equal(chol, [np.nan, np.nan, np.nan, 100])
    for column in ([1, 2, None], [1.0, 2.0, np.nan], pd.array([1, 2, None], dtype="Int8")):
        assert raw(pd.DataFrame({"cp": column}), CP) == [[2, 3, -1]]
    assert raw(np.array([[1.0], [2.0], [np.nan]]), CP) == [[2, 3, -1]]


def test_levels_that_are_one_number_differ_as_text() -> None:
    both = Feature(name="cp", kind="categorical", levels=("1", "01", "2"))
    assert raw(pd.DataFrame({"cp": ["01", "1", "2.0"]}), both) == [[1, 0, 2]]
    assert raw(pd.DataFrame({"cp": [2, 1]}), both) == [[2, 0]]


def test_truth_values(tmp_path: Path) -> None:
    assert raw(pd.DataFrame({"sex": [True, False]}), SEX) == [[1, 0]]
    (tmp_path / "x.csv").write_text("sex\nTRUE\nFalse\n1\n", "utf-8")
    assert raw(tmp_path / "x.csv", SEX) == [[1, 0, 1]]
    levels = {"true": "typical", "false": "none"}
    for kind in (bool, object, "boolean"):
        rows = pd.DataFrame({"cp": pd.Series([True, False], dtype=kind)})
        dataset = Dataset(rows, mapping={"features": {"cp": {"levels": levels}}})
        assert raw(dataset, CP) == [[0, 1]]


def test_a_number_may_stand_for_another_one(tmp_path: Path) -> None:
    """A fraction among percents, a year of two digits, and a time of a workbook."""
    age = Feature(name="age")
    values = {"0,23": 23, "49": 1949, "00:45:00": 45}
    mapping = {"features": {"age": {"values": values}}, "decimal": ","}
    (tmp_path / "x.csv").write_text("age;chol\n0,23;1\n49;1\n49,0;1\n50;1\n00:45:00;1\n", "utf-8")
    wanted = [[23, 1949, 1949, 50, 45]]
    assert raw(Dataset(tmp_path / "x.csv", mapping=mapping), age) == wanted
    cells = pd.DataFrame({"age": [0.23, 49, "49,0", 50, datetime.time(0, 45)]})
    cells.to_excel(tmp_path / "x.xlsx", index=False)
    assert raw(Dataset(tmp_path / "x.xlsx", mapping=mapping), age) == wanted
    numbers = pd.DataFrame({"age": [0.23, 49, 50]})
    assert raw(Dataset(numbers, mapping=mapping), age) == [[23, 1949, 50]]


def test_a_header_among_the_rows_is_no_row(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("age;sex\n50;1\nage; sex\n60;0\n", "utf-8")
    cells = pd.DataFrame([[50, 1], ["age", "sex"], [60, 0]], columns=["age", "sex"])
    cells.to_excel(tmp_path / "x.xlsx", index=False)
    for name in ("x.csv", "x.xlsx"):
        assert raw(tmp_path / name, Feature(name="age")) == [[50, 60]]


def test_lines_of_separators_below_the_last_row_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("age;sex\n50;1\n;\n60;0\n;\n ; \n", "utf-8")
    assert str(raw(tmp_path / "x.csv", Feature(name="age"))) == "[[50.0, nan, 60.0]]"


@pytest.mark.parametrize(
    ("rows", "feature", "expected"),
    [
        ({"cp": ["1", "x", None]}, CP, [2, -1, -1]),
        ({"cp": ["1", "Typical"]}, CP, [2, -1]),
        ({"cp": [1, 3, 3]}, CP, [2, -1, -1]),
        ({"sex": [1, 2]}, SEX, [1, np.nan]),
        ({"chol": [100, 4.5]}, CHOL, [100, 4.5]),
    ],
)
def test_unknown_codes_are_missing_and_bounds_change_nothing(
    rows: dict[str, Any], feature: Feature, expected: list[float]
) -> None:
    np.testing.assert_array_equal(raw(pd.DataFrame(rows), feature)[0], expected)


def test_a_date_among_codes_is_refused() -> None:
    error = fault(pd.DataFrame({"cp": pd.to_datetime(["2026-01-01"])}), CP)
    assert (error.rule, error.column, error.row) == ("not-a-number", "cp", 0)
    assert "date" in str(error)


def test_a_fault_names_the_column_as_it_is_called_here(site: Dataset) -> None:
    Path(site.source).write_text(
        "chol_mmol;geschlecht;temp\n5,0;m;1\nSECRET;d;x\n30;d;x\n", "utf-8"
    )
    error = fault(site, SEX, TEMP, CHOL)
    assert (error.rule, error.column, error.row, error.count) == ("not-a-number", "temp", 3, 2)
    assert "1 more column with faults" in str(error)
    assert fault(site, CHOL).column == "chol_mmol"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("1", "1"),
        ("1.0", "1"),
        ("+1.", "1"),
        ("-0.0", "0"),
        (".50", "0.5"),
        ("01", "01"),
        ("1E3", "1E3"),
        ("9007199254740993", "9007199254740993"),
        ("True", "true"),
        ("\u0661", "\u0661"),
    ],
)
def test_a_code_has_one_spelling(text: str, code: str) -> None:
    assert canonical_code(text) == code


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[features.chol]\nfactor = 38.67", 'add the line to = "mg/dl"'),
        ("[features.chol]\nfactor = 38.67\nto = 'mmol/l'", "'mg/dl'"),
        ("[features.chol]\nunit = 'mmol/l'", "'mg/dl'"),
        ("[features.chol]\nfactor = 0\nto = 'mg/dl'", "factor"),
        ("[features.chol]\nlevels = { a = 1 }", "binary and categorical"),
        ("[features.sex]\nlevels = { m = 2 }", "0 and 1"),
        ("[features.sex]\nfactor = 2\nto = ''", "this feature is binary"),
        ("[features.cp]\nlevels = { a = 'SECRET' }", "'typical'"),
        ("[features.cp]\nlevels = { 1 = '1', '1.0' = '2' }", "two spellings"),
        ("[features.chol]\ncolumn = 'sex'", "one column"),
        ("[features.chol]\nkolumn = 'x'", "features.chol.kolumn: there is no such setting: did yo"),
        ("[features.chol]\nxyz = 'x'", "there is no such setting; there are column, unit, to,"),
        ("featurs = 1", "featurs: there is no such setting: did you mean features?"),
        ("[features.chol]\nfactor = 'x'", "features.chol.factor: write a number, without quotes"),
        ("[features.chol]\nfactor = inf", "features.chol.factor: write a finite number"),
        ("[features.sex]\nvalues = { '<5' = 1 }", "values and forms are for numbers"),
        ("[features.chol]\nforms = { 'm' = 1 }", "a form has # in the place of each number"),
        ("[features.chol]\nforms = { '#/#' = 1 }", "'#/#' has 2 numbers: give a factor for each"),
        ("[features.chol]\nforms = { '#m' = [0, 3] }", "factors of 0 would lose the values"),
        ("[features.chol]\nsentinels = 0", "features.chol.sentinels: write a list, in square brac"),
        ("[features.chol]\nsentinels = [0, '9']", "sentinels, entry 2: write a number, without q"),
        (
            "[features.chol]\nmissing = ['x', -99]",
            'features.chol.missing, entry 2: write it in quotes ("-99"), or use sentinels = [-99]',
        ),
        ("missing = [-99]", "or use sentinels = [-99] below [features.NAME]"),
        ("[features.chol]\nlacking = 'yes'", "features.chol.lacking: write true or false"),
        ("[features.cp]\nlevels = { a = 1.5 }", "features.cp.levels.a: write the level in quotes"),
        ("[features.cp]\nlevels = ['a']", "features.cp.levels: write a table"),
        ("features = ['a']", "features: write a table"),
        ("[features]\nchol = 'x'", "features.chol: write a table of settings"),
        ("sheet = 2", "sheet, entry 1: write text, in quotes"),
        ("header_row = 1.5", "header_row: write a whole number"),
        ("header_row = 0", "header_row: at least 1"),
        ("min_present = 2", "min_present: at most 1"),
        ("encoding = 'klingon'", "encoding"),
        ("encoding = 'base64'", "encoding"),
        ("decimal = ';'", "decimal"),
        ("delimiter = 'ab'", "delimiter"),
        ("when = 2026-01-01", "lists and tables"),
        ("missing = ]", "line 1"),
        (b"\xff", "UTF-8"),
    ],
)
def test_a_mapping_file_that_cannot_be_used(text: str | bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "columns.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    rows = pd.DataFrame({"chol": [100.0], "sex": [1], "cp": ["1"]})
    error = fault(Dataset(rows, mapping=path), SEX, CHOL, CP)
    assert error.source == "columns.toml"
    assert error.rule in ("mapping", "unit")
    assert says in str(error)


@pytest.mark.parametrize(
    ("here", "session"), [("mm²", "mm2"), ("\u00b5mol/l", "\u03bcmol/l"), (" mg/dl ", "mg/dl")]
)
def test_two_spellings_of_a_unit_are_one(here: str, session: str) -> None:
    feature = Feature(name="x", unit=session)
    rows = Dataset(pd.DataFrame({"x": [1.0, 2.0]}), mapping={"features": {"x": {"unit": here}}})
    assert load(rows, (feature,)).X.ravel().tolist() == [1.0, 2.0]
    other = Dataset(rows.source, mapping={"features": {"x": {"unit": session.upper()}}})
    assert fault(other, feature).rule == "unit"


def test_a_mapping_that_is_not_there(tmp_path: Path) -> None:
    error = fault(Dataset(pd.DataFrame({"chol": [100.0]}), mapping=tmp_path / "x.toml"), CHOL)
    assert (error.source, error.rule) == ("x.toml", "unreadable")


def test_options_that_are_none() -> None:
    for options, says in (
        ({"decimal": ";"}, "decimal of the data: write"),
        ({"min_present": -1}, "min_present of the data: at least 0"),
        ({"sentinels": {"x": "a"}}, "sentinels.x, entry 1 of the data: write a number"),
        ({"missing": 3}, 'missing, entry 1 of the data: write it in quotes ("3")'),
        ({"mising": ["?"]}, "mising of the data: there is no such setting: did you mean missing"),
        ({"columns": 3}, "columns of the data: write a list"),
    ):
        with pytest.raises(UsageError, match=re.escape(says)):
            Dataset(np.zeros((1, 1)), **options)
    error = fault(Dataset(pd.DataFrame({"chol": [100.0]}), sentinels={"chl": 0}), CHOL)
    assert "'chl'" in str(error)


# --- features that a site has not got -------------------------------------------------------------


def test_the_share_of_values_below_which_a_feature_is_lacking() -> None:
    nan = np.nan
    rows = pd.DataFrame({"chol": [100, nan, nan, nan], "temp": [1, 2, 3, nan], "sex": [1, 1, 1, 0]})
    features = (CHOL, TEMP, SEX)
    for least, held in ((0, 3), (0.25, 3), (0.26, 2), (0.75, 2), (0.76, 1)):
        table = load(Dataset(rows, min_present=least), features, lacking=True)
        assert len(table.features) == held, least
        assert table.columns == ("chol", "temp", "sex")
        empty = np.isnan(table.X).all(axis=0).tolist()
        assert empty == [feature.name not in table.features for feature in features]
    # Rows to be labelled took no part: what is there counts.
    new = load(Dataset(rows, min_present=0.9), features, lacking=True, new=True)
    assert new.features == ("chol", "temp", "sex")
    load(Dataset(rows, min_present=0.9), features, new=True)
    error = fault(Dataset(rows, min_present=0.5), *features)
    assert (error.rule, error.column) == ("too-few-present", "chol")
    assert fault(Dataset(rows[["chol"]], min_present=0.5), *features, lacking=True).rule == (
        "no-features"
    )
    tables = [load(Dataset(rows, min_present=p), features, lacking=True) for p in (0.1, 0.5, 1.0)]
    for one, other in itertools.combinations(tables, 2):
        assert one.digest() != other.digest(), "a journal has to notice another threshold"


def test_a_feature_that_the_mapping_says_is_lacking() -> None:
    rows = Dataset(
        pd.DataFrame({"chol": [1.0], "sex": [1]}), mapping={"features": {"chol": {"lacking": True}}}
    )
    table = load(rows, (CHOL, SEX), lacking=True)
    assert (table.features, table.columns) == (("sex",), ("sex",))
    assert fault(rows, CHOL, SEX).rule == "missing-column"


def test_levels_and_transforms_in_the_matrix_that_the_methods_get() -> None:
    skewed = Feature(name="chol", unit="mg/dl", lower=50.0, transform="log")
    rows = pd.DataFrame({"sex": [1, 0, 1], "chol": [5.0, None, 6.0], "cp": ["T", "2", None]})
    how = {"chol": {"factor": 38.67, "to": "mg/dl"}, "cp": {"levels": {"T": "typical"}}}
    nan = np.nan
    levels = [[1, 0, 0, 0], [0, 0, 0, 1], [nan] * 4]
    for least, expected in ((0.0, levels), (0.7, [[nan] * 4] * 3)):
        dataset = Dataset(rows, mapping={"features": how, "min_present": least})
        table = load(dataset, (SEX, skewed, CP), lacking=True, new=False)
        assert table.X.shape == (3, 6)
        np.testing.assert_array_equal(table.X[:, 2:], expected)
        assert table.X[:, 0].tolist() == [1, 0, 1]
        if not least:
            np.testing.assert_allclose(table.X[:, 1], [np.log(193.35), nan, np.log(232.02)])
            assert table.features == ("sex", "chol", "cp")


def test_identifiers_may_not_be_a_features_column(site: Dataset) -> None:
    assert fault(site, SEX, CHOL, id_column="geschlecht").rule == "reserved-column"


# --- the page that describes it -------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_page_shows_a_mapping_file_that_can_be_used(tmp_path: Path) -> None:
    text = re.findall(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), re.S)[0]
    (tmp_path / "columns.toml").write_text(text, "utf-8")
    cp = Feature(name="cp", kind="categorical", levels=("typical", "asymptomatic"))
    data = tmp_path / "cohort.csv"
    data.write_bytes(b"chol_mmol;geschlecht;temp;cp;thal\n5,0;w;98,6;4;3\n0;x;?;T;6")
    dataset = Dataset(data, mapping=tmp_path / "columns.toml", min_present=0)
    features = (CHOL, SEX, TEMP, cp, Feature(name="thal"))
    chol, sex, temp, level, thal = raw(dataset, *features, lacking=True)
    np.testing.assert_allclose(chol, [193.35, np.nan])
    np.testing.assert_array_equal(sex, [0, np.nan])
    np.testing.assert_allclose(temp, [37, np.nan])
    assert level == [1, 0]
    assert np.isnan(thal).all()


def test_the_page_names_every_rule_and_option() -> None:
    folder = PAGE.parents[1] / "client_sdk" / "fedclust" / "data"
    source = "".join(path.read_text("utf-8") for path in folder.glob("*.py"))
    rules = set(re.findall(r"""fault\(\s*"([a-z-]+)",""", source))
    rules |= set(re.findall(r"""DataError\([\w.]+,\s*"([a-z-]+)",""", source))
    rules |= {"too-large", "not-a-number"}
    assert len(rules) > 15
    page = PAGE.read_text("utf-8")
    page += (PAGE.parent / "details" / "data.md").read_text("utf-8")
    assert [rule for rule in sorted(rules) if f"`{rule}`" not in page] == []
    for name in Reading.model_fields:
        assert f"--{name.replace('_', '-')}" in page
    for model in (ColumnMap, ColumnsFile):
        assert [name for name in model.model_fields if name not in page] == []
