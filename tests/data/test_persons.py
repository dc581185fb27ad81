"""A site's persons: local units and codes, pinned columns, and the same from memory and disk."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from data.stored_rows import stored_as
from fedclust.data import Dataset, persons
from fedclust.data.decode import ColumnRule, rule_differences
from fedclust.data.persons import PersonBlock, SiteColumn, SitePersons, read_persons
from fedclust.data.table import read_id_map
from fedclust.schema.feature import Feature
from fedclust.wire.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore::fedclust.data.DataWarning")
AGE = Feature(name="age", unit="years", lower=0.0, upper=120.0)
CHOL = Feature(name="chol", unit="mg/dl", lower=50.0, upper=700.0)
SEX = Feature(name="sex", kind="binary")
FLAG = Feature(name="flag", kind="binary")
CP = Feature(name="cp", kind="categorical", levels=("typical", "none"))
FEATURES = (AGE, CHOL, SEX, FLAG, CP)
MAPPING: dict[str, Any] = {
    "features": {
        "chol": {"column": "chol_mmol", "unit": "mmol/l", "factor": 38.67, "to": "mg/dl"},
        "sex": {"levels": {"w": 0, "m": 1}},
        "cp": {"levels": {"T": "typical"}, "missing": ["?"]},
    }
}


def _frame(n: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "who": np.repeat([f"p{i:03}" for i in range(n // 2)], 2),
            "age": rng.integers(20, 90, n),
            "chol_mmol": np.round(rng.normal(5, 1, n), 2),
            "sex": rng.choice(["m", "w"], n),
            "flag": rng.choice([0.0, 1.0, np.nan], n),
            "cp": rng.choice(["T", "none", "4", "?"], n),
        }
    )


def _read(source: Any, features: Any = FEATURES, **options: Any) -> SitePersons:
    if not isinstance(source, Dataset):
        source = Dataset(source, mapping=MAPPING)
    return read_persons(source, features, **options)


def _whole(found: SitePersons) -> PersonBlock:
    return persons.join_blocks(list(found.blocks()))


def _fault(source: Any, features: Any = FEATURES, **options: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        for _ in _read(source, features, **options).blocks():
            pass
    assert "SECRET" not in str(caught.value)
    return caught.value


# --- what is read ---------------------------------------------------------------------------------


def test_values_are_in_the_units_and_codes_of_the_site() -> None:
    frame = _frame()

    found = _read(frame)

    age, chol, sex, flag, cp = _whole(found).sources
    np.testing.assert_array_equal(age.values, frame["age"])
    np.testing.assert_array_equal(chol.values, frame["chol_mmol"])
    np.testing.assert_array_equal(sex.values, (frame["sex"] == "w").astype(float))
    np.testing.assert_array_equal(flag.values, frame["flag"])
    assert (chol.name, sex.n_levels, flag.n_levels, cp.n_levels) == ("chol_mmol", None, None, 4)
    codes = found.codes()
    assert codes["chol_mmol"] is None
    assert codes["sex"] == ("m", "w")
    assert codes["cp"] == ("4", "T", "none", "typical"), "a declared level is no missing value"
    shown = [None if np.isnan(v) else (codes["cp"] or ())[int(v)] for v in cp.values]
    assert shown == [None if v == "?" else v for v in frame["cp"]]
    assert [column.by_vote for column in found.columns] == [False, False, True, True, True]
    assert found.units == {"age": "years", "chol_mmol": "mmol/l"}, "what 1 means is no unit"


def test_a_person_is_the_mean_of_the_rows_and_of_levels_the_commonest() -> None:
    frame = pd.DataFrame(
        {
            "who": ["b", "a", "b", "a", "b"],
            "age": [30, 40, 50, np.nan, 40],
            "flag": [1, 0, 1, np.nan, 0],
            "cp": ["T", "none", "none", "none", None],
        }
    )

    block = _whole(_read(frame, (AGE, FLAG, CP), person="who"))

    assert block.keys == ("b", "a")
    assert [source.values.tolist() for source in block.sources] == [[40, 40], [1, 0], [0, 1]]


def test_a_column_of_three_numbers_is_a_mean_although_a_person_has_two() -> None:
    frame = pd.DataFrame({"who": ["a", "a", "b"], "age": [1.0, 2.0, 7.0]})
    assert _whole(_read(frame, (AGE,), person="who")).sources[0].values.tolist() == [1.5, 7.0]


def test_persons_are_named_by_their_column_else_by_that_of_the_rows() -> None:
    frame = _frame().assign(mrn=[f"m{i}" for i in range(60)])
    assert _whole(_read(frame)).keys is None
    assert _whole(_read(frame, id_column="mrn")).keys == tuple(frame["mrn"])
    both = _whole(_read(frame, id_column="mrn", person="who"))
    assert both.keys == tuple(dict.fromkeys(frame["who"]))
    given = _whole(_read(frame, person=np.repeat(np.arange(30), 2)))
    assert given.keys == tuple(map(str, range(30)))


def test_bounds_levels_and_transforms_of_the_session_change_nothing_that_is_read() -> None:
    frame = _frame()
    narrow = (
        AGE.model_copy(update={"lower": 40.0, "upper": 41.0, "transform": "log", "weight": 2.0}),
        CHOL.model_copy(update={"lower": None, "upper": None}),
        SEX,
        FLAG,
        CP,
    )

    one, other = _read(frame), _read(frame, narrow)

    assert one.columns == other.columns
    pairs = zip(_whole(one).sources, _whole(other).sources, strict=True)
    assert all(np.array_equal(a.values, b.values, equal_nan=True) for a, b in pairs)


@pytest.mark.parametrize(
    ("change", "options", "rule"),
    [
        ({"age": "SECRET"}, {}, "not-a-number"),
        ({"age": np.inf}, {}, "too-large"),
        ({"who": None}, {"person": "who"}, "persons"),
        ({"who": "NaN"}, {"person": "who"}, "persons"),
        ({"who": pd.NaT}, {"person": "who"}, "persons"),
        ({"who": "SECRET"}, {"id_column": "who"}, "persons"),
    ],
)
@pytest.mark.parametrize("out_of_core", [False, True])
def test_what_cannot_be_read_is_refused(
    change: dict[str, Any], options: dict[str, Any], rule: str, out_of_core: bool
) -> None:
    frame = _frame().astype(object)
    if options.get("id_column"):
        frame["who"] = [f"p{i}" for i in range(len(frame))]
        frame.loc[[20, 40], "who"] = "SECRET"
    else:
        for name, value in change.items():
            frame[name] = frame[name].where(frame.index != 40, value)
    error = _fault(Dataset(frame, mapping=MAPPING, out_of_core=out_of_core), **options)
    assert error.rule == rule
    if not (out_of_core and options.get("id_column")):
        assert error.row == 40


def test_dates_as_persons_that_are_not_there_are_named() -> None:
    seen = pd.Series([datetime.date(2026, 1, 1), pd.NaT], dtype=object)
    frame = pd.DataFrame({"who": seen, "age": [1.0, 2.0]})
    assert _fault(frame, (AGE,), person=pd.to_datetime(frame["who"]).to_numpy()).row == 1


def test_a_column_of_text_is_no_column_of_levels() -> None:
    frame = pd.DataFrame({"cp": [f"SECRET {i}" for i in range(1_200)]})
    error = _fault(frame, (CP,))
    assert (error.rule, error.column) == ("too-many-levels", "cp")


def test_progress_is_reported_with_the_number_of_rows_where_it_is_known(tmp_path: Path) -> None:
    _frame().to_csv(tmp_path / "rows.csv", index=False)
    reported: list[tuple[str, int, int | None]] = []
    for source, name, total in (
        (_frame(), "the DataFrame", 60),
        (tmp_path / "rows.csv", "rows.csv", None),
    ):
        reported.clear()
        _read(Dataset(source, mapping=MAPPING, on_read=lambda *each: reported.append(each)))
        assert reported == [(name, 0, total), (name, 60, total), (name, 60, 60)]


# --- pinned columns -------------------------------------------------------------------------------


def _pinned(found: SitePersons) -> dict[str, SiteColumn]:
    return {column.name: column for column in found.columns}


def test_a_pinned_column_keeps_its_codes_and_later_ones_are_missing() -> None:
    first = _read(_frame())
    later = _frame(seed=1)
    later.loc[:5, "cp"] = "new"

    found = _read(later, pinned=_pinned(first))

    assert found.columns == first.columns
    assert np.isnan(_whole(found).sources[4].values[:6]).all()


def test_a_column_that_was_pinned_as_numbers_stays_one_whatever_a_session_asks() -> None:
    frame = pd.DataFrame({"stage": [1.0, 2.0, 3.0] * 10})
    first = _read(frame, (Feature(name="stage"),))
    levels = Feature(name="stage", kind="categorical", levels=("1", "2", "3"))

    found = _read(frame, (levels,), pinned=_pinned(first))

    assert found.columns == first.columns
    np.testing.assert_array_equal(_whole(found).sources[0].values, frame["stage"])


def test_the_order_of_rows_does_not_change_how_a_column_is_read() -> None:
    frame = _frame()
    assert _read(frame[::-1]).columns == _read(frame).columns


@pytest.mark.parametrize(
    ("before", "options", "says"),
    [
        ({}, {"missing": "8"}, "no sentinels"),
        ({}, {"missing": "x"}, "no missing markers"),
        ({}, {"sentinels": {"age": 99}}, "no sentinels"),
        ({"decimal": ","}, {}, "decimal mark ','"),
        (
            {"sentinels": {"age": [-9, 99]}, "missing": ["?"]},
            {},
            "missing markers '?' and sentinels -9, 99",
        ),
    ],
)
def test_a_pinned_column_is_not_read_by_another_rule(
    before: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    first = _read(Dataset(_frame(), mapping=MAPPING, **before))
    other = Dataset(_frame(), mapping=MAPPING, **options)
    error = _fault(other, pinned=_pinned(first))
    assert (error.rule, error.column) == ("pinned", "age")
    assert f"it was first read with {says}, and released values cannot change" in str(error)


@pytest.mark.parametrize("out_of_core", [False, True])
@pytest.mark.parametrize("which", ["first", "last"])
def test_one_row_of_each_person_counts(which: str, out_of_core: bool) -> None:
    mapping = {**MAPPING, "rows_of_person": which}
    source = Dataset(_frame(), mapping=mapping, out_of_core=out_of_core)
    found = _whole(read_persons(source, FEATURES, person="who"))
    alone = _frame().drop_duplicates("who", keep=which)
    expected = _whole(_read(alone, person="who"))
    assert found.keys == expected.keys
    for one, other in zip(found.sources, expected.sources, strict=True):
        np.testing.assert_array_equal(one.values, other.values)
    # Values that were released are of the rows of then.
    assert "first read with rows_of_person all" in str(
        _fault(source, person="who", pinned=_pinned(_read(_frame(), person="who")))
    )


def test_another_number_for_a_text_is_another_rule() -> None:
    plain, half, all_ = (ColumnRule(False, values=each) for each in ({}, {"<5": 2.5}, {"<5": 5.0}))
    assert rule_differences(half.text(), plain.text()) == "no values of texts"
    assert rule_differences(all_.text(), half.text()) == "values of texts '<5' = 2.5"
    assert "values" not in plain.text()
    unit = ColumnRule(False, forms={"#kg": (1.0,)})
    assert rule_differences(unit.text(), plain.text()) == "no forms of texts"
    assert rule_differences(plain.text(), unit.text()) == "forms of texts '#kg' = [1.0]"


def test_a_number_may_be_named_as_a_marker_or_as_a_sentinel() -> None:
    first = _read(Dataset(_frame(), mapping=MAPPING, sentinels={"age": -9}))
    named = {**MAPPING["features"], "age": {"missing": ["-9"]}}
    found = _read(Dataset(_frame(), mapping={"features": named}), pinned=_pinned(first))
    assert found.columns == first.columns


def test_a_pinned_column_is_not_read_in_another_unit() -> None:
    first = _read(_frame())
    plain = {"features": {**MAPPING["features"], "chol": {"column": "chol_mmol"}}}
    error = _fault(Dataset(_frame(), mapping=plain), pinned=_pinned(first))
    assert (error.rule, error.column) == ("unit", "chol_mmol")


# --- larger than memory ---------------------------------------------------------------------------


@pytest.mark.parametrize("person", [None, "who"])
def test_a_source_on_disk_is_read_as_in_memory(
    person: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persons, "_PERSONS", 8)
    monkeypatch.setattr(persons, "_ROWS", 5)
    frame = _frame(62)
    expected = _read(frame, person=person)
    whole = _whole(expected)
    for name in ("csv", "parquet", "sql", "dask", "frame"):
        source = stored_as(name, frame, tmp_path)
        found = _read(Dataset(source, mapping=MAPPING, out_of_core=True), person=person)
        for _again in range(2):
            blocks = list(found.blocks())
            assert len(blocks) == whole.n // 8, name
            assert {block.n for block in blocks} <= {8, 9, 10, 11}, name
            joined = persons.join_blocks(blocks)
            assert joined.keys == whole.keys, name
            for one, other in zip(joined.sources, whole.sources, strict=True):
                np.testing.assert_array_equal(one.values, other.values, err_msg=name)
                assert (one.name, one.n_levels) == (other.name, other.n_levels), name
        assert found.columns == expected.columns, name
        assert (found.n_rows, found.n_persons) == (expected.n_rows, expected.n_persons), name


def test_rows_of_one_person_have_to_follow_each_other_out_of_core() -> None:
    frame = _frame().sort_values("age")
    error = _fault(Dataset(frame, mapping=MAPPING, out_of_core=True), person="who")
    assert error.rule == "persons"
    assert "sort" in str(error)


def test_a_sample_of_a_sorted_file_is_drawn_from_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persons, "_SAMPLE", 2_000)
    monkeypatch.setattr(persons, "_ROWS", 500)
    n = 20_000
    frame = pd.DataFrame({"x": np.where(np.arange(n) < n // 4, np.nan, np.arange(n))})

    found = read_persons(Dataset(frame, out_of_core=True), (Feature(name="x"),))

    (x,) = found.sample
    assert 2_000 <= len(x.values) <= 4_000
    assert np.isnan(x.values).mean() == pytest.approx(0.25, abs=0.03)
    assert np.nanmedian(x.values) == pytest.approx(n * 5 / 8, rel=0.05)


def _rewritten(path: Path, frame: pd.DataFrame) -> None:
    frame.to_parquet(path, row_group_size=7)


@pytest.mark.parametrize("change", ["value", "order", "fewer", "more"])
def test_rows_that_change_between_two_passes_are_refused(change: str, tmp_path: Path) -> None:
    frame, path = _frame(), tmp_path / "rows.parquet"
    _rewritten(path, frame)
    found = _read(Dataset(path, mapping=MAPPING, out_of_core=True))
    changed = {
        "value": frame.assign(age=np.where(np.arange(60) == 30, 1, frame["age"])),
        "order": frame[::-1],
        "fewer": frame[:-1],
        "more": pd.concat([frame, frame[:1]]),
    }
    list(found.blocks())
    _rewritten(path, changed[change])
    with pytest.raises(DataError) as caught:
        list(found.blocks())
    assert caught.value.rule == "changed"


def test_no_value_and_no_identifier_is_in_a_repr() -> None:
    frame = pd.DataFrame({"who": ["SECRET-1", "b"], "age": [77.25, 3.0], "cp": ["SECRET-2", "x"]})
    found = _read(frame, (AGE, CP), person="who")
    for shown in (repr(found), repr(list(found.blocks()))):
        assert "SECRET" not in shown
        assert "77.25" not in shown


# --- lists of new and old ids ---------------------------------------------------------------------


def test_a_file_and_a_mapping_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "ids.csv"
    path.write_text("old,site,new\n007,a, N1 \n8,a,N2\n", "utf-8")
    assert read_id_map(path) == read_id_map({"N1": "007", "N2": "8"}) == {"N1": "007", "N2": "8"}
    assert read_id_map(None) == {}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("N1,007\nN2,", "a new or an old id is missing"),
        ("N1,007\n,9", "a new or an old id is missing"),
        ("N1,007\nN1,9", "the new id is in an earlier row too"),
        ("N1,007\nN2,007", "the old id is in an earlier row too"),
    ],
)
def test_a_wrong_row_is_named_and_no_id(tmp_path: Path, lines: str, said: str) -> None:
    path = tmp_path / "ids.csv"
    path.write_text(f"new,old\n{lines}\n", "utf-8")
    with pytest.raises(DataError) as caught:
        read_id_map(path)
    assert said in str(caught.value)
    assert "row 2" in str(caught.value)
    assert caught.value.rule == "id-map"
    assert "007" not in str(caught.value)
    assert "N1" not in str(caught.value)


def test_a_file_without_the_columns_and_no_file_at_all(tmp_path: Path) -> None:
    path = tmp_path / "ids.csv"
    path.write_text("new,former\nN1,007\n", "utf-8")
    with pytest.raises(DataError, match="old"):
        read_id_map(path)
    with pytest.raises(DataError):
        read_id_map(tmp_path / "absent.csv")
