"""The questions of ``fedclust check --ask``: the file reads the table as a person answered."""

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust.cli.mapping_dialogue import ask_mapping
from fedclust.data import Dataset, load
from fedclust.data.suggest import MappingSuggestion, suggest_mapping
from fedclust.schema.feature import Feature, Outcome, Trajectory
from fedclust.site.data_sources import DataSources
from fedclust.wire.errors import UsageError
from support.command_line import CommandLine, Terminal, at_desk

AGE = Feature(name="age", unit="years", lower=18, upper=110)
PRESSURE = Feature(name="systolic_bp", unit="mmHg", lower=50, upper=260)
HOME = Feature(name="nursing_home", kind="binary", unit="1 = lives in a nursing home")
AWAKE = Feature(name="consciousness", kind="categorical", levels=("alert", "confused", "drowsy"))
FEATURES = (AGE, PRESSURE, HOME, AWAKE)
TABLE = pd.DataFrame(
    {
        "Alter": ["54", "61", "70", "83", "48", "55"],
        "AF": ["120", "139/80", "n. e.", "118 (liegend)", "125", "130"],
        "Wohnform": ["PH", "zuhause", "zuhause", "PH", "k.A.", "zuhause"],
        "Vigilanz": ["wach", "somn.", "desor.", "wach", "n.e.", "wach"],
        "Station": ["A1", "A2", "A1", "A2", "A1", "A2"],
    }
)
COLUMNS = ("systolic_bp", "AF"), ("nursing_home", "Wohnform"), ("consciousness", "Vigilanz")

desk = at_desk(CommandLine)


@pytest.fixture
def answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[MappingSuggestion, str]]:
    """Return a function that asks about a table, and returns the suggestion and what was said."""

    def ask(
        *answers: str,
        features: Sequence[Any] = FEATURES,
        table: pd.DataFrame = TABLE,
        row: str | None = "id",
    ) -> tuple[MappingSuggestion, str]:
        table.to_csv(tmp_path / "table.csv", index=False)
        found = suggest_mapping(features, tmp_path / "table.csv")
        monkeypatch.setattr(sys, "stdin", Terminal("".join(f"{each}\n" for each in answers)))
        found.set_ids(*ask_mapping(found, row))
        (tmp_path / "m.toml").unlink(missing_ok=True)
        found.write(tmp_path / "m.toml")
        return found, " ".join(capsys.readouterr().err.split())

    return ask


def read(place: Path, features: Sequence[Feature]) -> np.ndarray:
    table = load(Dataset(place / "table.csv", mapping=place / "m.toml"), features)
    return table.X if table.cells is None else np.where(table.cells, table.X, np.nan)


def test_a_table_is_read_as_a_person_answered(answer: Any, tmp_path: Path) -> None:
    found, said = answer(
        *("", "1", "Wohnform", "9", "Alter", "3"),  # columns; 9 is none, and Alter is taken
        *("x", "0", "1"),  # homes: x is no level, and k.A. is missing
        *("al", "-", "e", "dr", "dr"),  # two have an e
        *("pulse", "systolic_bp consciousness"),  # these are wrong
        *("118 = 1", "118 (liegend) = -"),  # its texts
        *("desor. = e", "desor. = fus"),  # its codes
        "",
    )
    assert found.still_open == ()
    assert "to do" not in found.text
    assert "3 Vigilanz" in said
    assert (
        'systolic_bp = "AF": 118 to 139, 17% missing; missing = "n. e." 1; "118 (liegend)" = 118'
        in said
    )
    assert '; missing = "n. e." 1, "118 (liegend)" 1' in said
    assert 'known: missing = "k.A."' in said
    assert "write texts as they are shown" in said
    assert "write names of the session's features, or none" in said
    assert "Alter is the column of age" in said
    assert "each code means 1 (lives in a nursing home), 0, or -" in said
    assert "write 0 or 1, or -" in said
    nan = np.nan
    np.testing.assert_array_equal(
        read(tmp_path, FEATURES),
        [
            [54, 120, 1, 1, 0, 0],
            [61, 139, 0, nan, nan, nan],
            [70, nan, 0, 0, 1, 0],
            [83, nan, 1, 1, 0, 0],
            [48, 125, nan, 0, 0, 1],
            [55, 130, 0, 1, 0, 0],
        ],
    )


@pytest.mark.parametrize(
    ("table", "answers", "asked", "expected"),
    [
        (
            {"patient": [1, 1, 2], "Fallnr.": [4, 5, 6]},
            ["", "", ""],
            "[Fallnr.]",
            ("Fallnr.", "patient"),
        ),
        ({"patient": [1, 1, 2]}, ["", "last"], "several rows (2 rows)", ("patient", "patient")),
        ({"patient": [1, 1, 2]}, ["", "x", "-"], "write all or first or last or -", (None, None)),
        ({"patient": [1, 2, 3]}, [""], "[patient]", ("patient", None)),
        ({"nr": [1, 2, 3]}, ["2"], " 2 nr ", ("nr", None)),
        ({"nr": [f"A{i}" for i in range(40)]}, [""], "[nr]", ("nr", None)),
        (
            {"Person Stated Gender Code": [1, 2] * 20, "Hosp No": [*range(9000, 9040)]},
            [""],
            "[Hosp No]",
            ("Hosp No", None),
        ),
        ({"nr": [1, 2, 3]}, ["-"], "ids of persons", (None, None)),
    ],
)
def test_the_ids_of_persons_and_rows_are_asked(
    answer: Any, table: Any, answers: list[str], asked: str, expected: tuple[str | None, ...]
) -> None:
    rows = pd.DataFrame(table)
    rows.insert(0, "age", [*range(40, 40 + len(rows))])
    found, said = answer(*answers, "", features=[AGE], table=rows, row=None)
    assert asked in said
    assert found.ids == expected
    assert {*found.unused} == {*table} - {*expected}
    assert ('rows_of_person = "last"' in found.text) == ("last" in answers)


def test_the_end_of_the_questions_keeps_answers_and_marks_the_rest(answer: Any) -> None:
    found, _ = answer("", "1", "2", "3")
    assert found.columns == {"age": "Alter", **dict(COLUMNS)}
    assert [said.partition(":")[0] for said in found.still_open] == [
        "systolic_bp",
        "nursing_home",
        "consciousness",
    ]
    assert '# to do: codes that are not known: "wach" 3' in found.text


def test_a_column_that_was_found_wrongly_is_asked_for(answer: Any) -> None:
    table = TABLE.rename(columns={"Alter": "age", "AF": "years of life"})
    answers = ("weight", "age", "2", "1", "139", "age", "", "age")
    found, said = answer(*answers, features=[AGE], table=table)
    assert 'Found by name: age (years) = "age"' in said
    assert "Columns of the table: 1 age" in said
    assert 'age = "age": 48 to 83 which features are wrong?' in said
    assert found.columns == {"age": "age"}
    assert found.still_open == ()


def test_a_feature_without_a_column_is_lacking(answer: Any) -> None:
    found, _ = answer("", "-", "", features=[AGE, AWAKE])
    assert "[features.consciousness]\nlacking = true\n" in found.text


def test_a_column_that_was_guessed_for_another_feature_is_given_up(answer: Any) -> None:
    side = Feature(name="side", kind="binary", unit="1 = left")
    smoker = Feature(name="smoker_now", kind="binary")
    table = pd.DataFrame({"x": ["ja", "nein"], "y": ["j", "n"]})
    found, _ = answer("2", "1", "", features=[side, smoker], table=table)
    assert found.columns == {"side": "y", "smoker_now": "x"}


def test_units_and_codes_in_numbers_are_taken_only_if_a_person_says_so(
    answer: Any, tmp_path: Path
) -> None:
    stay = Feature(name="los", unit="days", lower=0, upper=400)
    table = pd.DataFrame({"los": [*range(60), 99, 99, 99]})
    found, said = answer("", "n", "", features=[stay], table=table)
    assert 'these numbers may mean a missing value: "99" 3 right? [y/n]:' in said
    assert "sentinels" not in found.text
    assert found.still_open == ()
    found, _ = answer("", "y", "", features=[stay], table=table)
    assert "\nsentinels = [99]\n" in found.text
    table = pd.DataFrame({"los": [*range(60), 999, 999]})
    found, said = answer(*("", "los", "", "", "x", "99", ""), features=[stay], table=table)
    assert "\nsentinels = [99.0]\n" in found.text
    assert "write a number, or -" in said
    unit = Feature(name="creatinine", unit="mg/dl", lower=0.2, upper=20)
    enzyme = pd.DataFrame({"creatinine (U/l)": [1, 2, 3]})
    found, _ = answer("", "x", "0,5", features=[unit], table=enzyme)
    assert '\nto = "mg/dl"\nfactor = 0.5\n' in found.text
    np.testing.assert_array_equal(read(tmp_path, [unit])[:, 0], [0.5, 1, 1.5])
    answer("", "1", features=[unit], table=enzyme)
    np.testing.assert_array_equal(read(tmp_path, [unit])[:, 0], [1, 2, 3])
    found, _ = answer("", "-", features=[unit], table=enzyme)
    assert "# to do: the header says" in found.text


def test_a_doubt_that_no_setting_solves_is_shown(answer: Any) -> None:
    table = pd.DataFrame({"Smoker (former)": [0, 1]})
    smoker = Feature(name="smoker", kind="binary")
    found, said = answer("", "", features=[smoker], table=table)
    assert 'its header says "former", too' in said
    assert found.still_open == ()
    # Who chooses the column has seen its header.
    table["smoker now"] = [1, 0]
    found, said = answer("", "smoker", "Smoker (former)", "", features=[smoker], table=table)
    assert "too" not in said.partition("Other columns")[2]


def test_how_many_of_the_sessions_unit_one_is_can_be_said(answer: Any) -> None:
    found, said = answer("", "1", features=[AGE], table=pd.DataFrame({"Âge (j)": [40, 50]}))
    assert found.still_open == ()
    assert "factor" not in found.text
    found, _ = answer("", "0,5", features=[AGE], table=pd.DataFrame({"Âge (j)": [40, 50]}))
    assert 'to = "years"\nfactor = 0.5\n' in found.text
    for offset in ("2 - 25", "2 + -25", "2 -25"):
        found, _ = answer("", offset, features=[AGE], table=pd.DataFrame({"Âge (j)": [40, 50]}))
        assert "\nfactor = 2.0\noffset = -25.0\n" in found.text
    table = pd.DataFrame({"age": [*range(400, 900, 10)]})
    found, said = answer("", "0", "1/10", "age", "", "-", "", "", features=[AGE], table=table)
    assert "write a factor such as 0.5 or 1/60" in said
    assert "50 of 50 values lie outside the bounds" in said
    assert "session's value = value here x FACTOR (+ OFFSET); 1 if they are the same" in said
    assert 'to = "years"\nfactor = 0.1\n' in found.text
    assert 'age = "age": 400 to 890; x 0.1 to years' in said


def test_a_factor_answers_all_doubts_about_the_unit(answer: Any, tmp_path: Path) -> None:
    barthel = Feature(name="barthel", unit="points", lower=0, upper=20)
    table = pd.DataFrame({"Barthel (0-100)": [*range(25, 105, 5)]})
    found, said = answer("", "0.2", "", features=[barthel], table=table)
    assert said.count("FACTOR") == 1
    assert "outside the bounds" not in said
    assert found.still_open == ()
    assert read(tmp_path, [barthel])[[0, -1], 0].tolist() == [5, 20]


def test_numbers_beyond_the_bounds_may_mean_others(answer: Any, tmp_path: Path) -> None:
    table = pd.DataFrame({"age": [*range(30, 50), 0.5, 151, 200]})
    found, said = answer(
        *("", "age", "0.5 = 50, 151 = 51, 200 = -", ""), features=[AGE], table=table
    )
    assert "outside the bounds (18 to 110 years), kept: " in said
    assert found.still_open == ()
    assert read(tmp_path, [AGE])[-3:, 0].tolist()[:2] == [50, 51]
    assert np.isnan(read(tmp_path, [AGE])[-1, 0])
    found, _ = answer("", "", features=[AGE], table=table)
    assert read(tmp_path, [AGE])[-3:, 0].tolist() == [0.5, 151, 200]


@pytest.mark.parametrize(
    ("feature", "numbers", "few", "unit", "expected"),
    [
        (("lvef", "%, by echo", 5, 85), range(25, 70), [0.35, 0.4], "fraction", [35, 40]),
        (("lvef", "%", 0, 85), range(25, 70), [0.35, 0.4, 0.55], "fraction", [35, 40, 55]),
        (("haemoglobin", "g/l", 0, 250), range(90, 160), [11.2, 9.5, 13], "g/dl", [112, 95, 130]),
        (("height", "cm", 100, 230), range(150, 190), [1.72, 1.8, 1.8], "m", [172, 180, 180]),
        (("temperature", "°C", 30, 43), [36, 37, 38, 36.5] * 5, [98.6, 98.6], "°f", [37, 37]),
    ],
)
def test_a_few_numbers_far_from_the_others_are_read_in_the_unit_that_fits(
    answer: Any, tmp_path: Path, feature: Any, numbers: Any, few: Any, unit: str, expected: Any
) -> None:
    name, of, lower, upper = feature
    asked = Feature(name=name, unit=of, lower=lower, upper=upper)
    table = pd.DataFrame({name: [*numbers, *few]})
    found, said = answer("", "", features=[asked], table=table)
    assert f"{len(few)} numbers far from the others, read as {unit}: " in said
    assert found.still_open == ()
    read_here = read(tmp_path, [asked])[-len(few) :, 0]
    np.testing.assert_allclose(read_here, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("feature", "numbers", "few"),
    [
        # 4 % is below all others; two may be small values; a few may be outliers.
        (("lvef", "%", 5, 85), range(25, 70), [0.04, 0.35, 0.4]),
        (("lvef", "%", 0, 85), range(25, 70), [0.35, 0.4]),
        (("crp", "mg/l", 0, 600), range(1, 80), [200, 250, 300]),
        (("crp", "mg/l", 0, 200), range(1, 180), [250, 300]),
        (("age", "years", 0, 110), range(18, 90), [0.5, 0.6, 0.7]),
    ],
)
def test_a_few_numbers_that_may_be_right_stay_as_they_are(
    answer: Any, tmp_path: Path, feature: Any, numbers: Any, few: Any
) -> None:
    name, of, lower, upper = feature
    asked = Feature(name=name, unit=of, lower=lower, upper=upper)
    _, said = answer("", "", features=[asked], table=pd.DataFrame({name: [*numbers, *few]}))
    assert "far from the others" not in said
    np.testing.assert_array_equal(read(tmp_path, [asked])[-len(few) :, 0], few)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((), [389, 38.2]),
        (("temp", "389 = 38.9", ""), [38.9, 38.2]),
        (("temp", "", "38.2 rekt. = 37.7", ""), [389, 37.7]),
        (("temp", "389 = 38.9", "temp", "", "38.2 rekt. = 37.7", ""), [38.9, 37.7]),
        (("temp", "389 = -", "temp", "", "38.2 rekt. = -", ""), [np.nan, np.nan]),
    ],
)
def test_numbers_beyond_the_bounds_and_texts_of_one_column_are_corrected_apart(
    answer: Any, tmp_path: Path, answers: tuple[str, ...], expected: list[float]
) -> None:
    temp = Feature(name="temp", unit="°C", lower=30, upper=43)
    table = pd.DataFrame({"temp": [*np.arange(35, 40, 0.1).round(1), 999, "389", "38.2 rekt."]})
    found, said = answer("", *answers, "", features=[temp], table=table)
    assert 'read as missing: "999" 1' in said
    assert found.still_open == ()
    np.testing.assert_array_equal(read(tmp_path, [temp])[-3:, 0], [np.nan, *expected])


def test_a_time_of_day_in_a_column_of_minutes_is_a_duration(answer: Any, tmp_path: Path) -> None:
    wait = Feature(name="wait", unit="minutes", lower=0, upper=500)
    table = pd.DataFrame({"wait (min)": ["30", "00:45:00", "1:05", "20"]})
    _, said = answer("", "", features=[wait], table=table)
    assert '"00:45:00" = 45 (1), "1:05" = 65 (1)' in said
    assert read(tmp_path, [wait])[:, 0].tolist() == [30, 45, 65, 20]


def test_a_limit_has_the_unit_that_it_says(answer: Any, tmp_path: Path) -> None:
    door = Feature(name="onset_to_door", unit="minutes", lower=0, upper=900)
    table = pd.DataFrame({"onset to door": ["49", "2:48", "3h52", "> 24 h", "<10 min"]})
    _, said = answer("", "", "", features=[door], table=table)
    assert '"> 24 h" = 1440' in said
    own = read(tmp_path, [door])[:, 0]
    np.testing.assert_array_equal(own, [49, 168, 232, 1440, 5])


def test_a_minus_beside_a_plus_is_no_missing_value(answer: Any, tmp_path: Path) -> None:
    delirium = Feature(name="delirium", kind="binary")
    table = pd.DataFrame({"delirium": ["+", "-", "+", "?"], "age": [50, 60, 70, 80]})
    answer("", "1", "0", "", features=[delirium], table=table)
    assert read(tmp_path, [delirium])[:3, 0].tolist() == [1, 0, 1]


def test_a_column_of_a_wide_table_is_taken_by_its_name(answer: Any, tmp_path: Path) -> None:
    table = pd.DataFrame({f"v{i}": [i, i + 1] for i in range(250)} | {"Jahre": [50, 60]})
    _, said = answer("Jahr", "Jahre", "", features=[AGE], table=table)
    assert "give a column's number or name" in said
    assert read(tmp_path, [AGE])[:, 0].tolist() == [50, 60]


def test_days_and_hours_are_added_and_other_words_are_asked(answer: Any, tmp_path: Path) -> None:
    wait = Feature(name="wait", unit="hours from admission", lower=0, upper=500)
    table = pd.DataFrame({"wait [h]": ["30", "2 d 17 h", "2 x 9 y", "20"]})
    _, said = answer("", "7", "", features=[wait], table=table)
    assert '"2 x 9 y" (1) means which number' in said
    assert read(tmp_path, [wait])[:, 0].tolist() == [30, 65, 7, 20]


def test_times_of_a_workbook_are_read_next_month_too(answer: Any, tmp_path: Path) -> None:
    wait = Feature(name="wait", unit="hours", lower=0, upper=500)
    hours = [30.5, 8.75, 50.25, 27, 61.1, 9.25, 33.5, 71.2, 49.5, 25.75, 10.5, 11, 26.4, 33.9, 72.5]
    times = [str(timedelta(hours=each)) for each in hours]
    correction = f'"{times[0]}" = 31, "{times[3]}" = -'
    answer("", "", "wait", "", features=[wait], table=pd.DataFrame({"wait": times}))
    for values in (hours, [7.5, 28.25, 90]):
        table = pd.DataFrame({"wait": [str(timedelta(hours=each)) for each in values]})
        table.to_csv(tmp_path / "table.csv", index=False)
        np.testing.assert_allclose(read(tmp_path, [wait])[:, 0], values, rtol=1e-5)
    # A text with a comma can be corrected.
    answer("", "wait", correction, "", features=[wait], table=pd.DataFrame({"wait": times}))
    expected = [31, 8.75, 50.25, np.nan, *hours[4:]]
    np.testing.assert_allclose(read(tmp_path, [wait])[:, 0], expected, rtol=1e-5)


def test_a_number_among_scores_is_no_missing_code(answer: Any, tmp_path: Path) -> None:
    delirium = Feature(name="delirium", kind="binary", unit="1 = 4AT of 4 or more")
    scores = [0, 9, 1, 2, 4, 12, 4, 0]
    _, said = answer("", "4", "", features=[delirium], table=pd.DataFrame({"delirium": scores}))
    assert "missing" not in said.partition("delirium = ")[2]
    assert read(tmp_path, [delirium])[:, 0].tolist() == [0, 1, 0, 0, 1, 1, 1, 0]


def test_words_behind_a_time_are_asked_only_if_they_may_be_its_unit(
    answer: Any, tmp_path: Path
) -> None:
    table = pd.DataFrame({"tug": [*range(9, 30), "12.3 c stick", "14 w frame", "5 J"]})
    tug = Feature(name="tug", unit="s", lower=0, upper=200)
    _, said = answer("", "7", "", features=[tug], table=table)
    assert said.count("means which number") == said.count('"5 J" (1) means which number') == 1
    assert read(tmp_path, [tug])[-3:, 0].tolist() == [12.3, 14, 7]


def test_a_new_row_is_read_as_the_answers_say_and_the_file_names_no_cell(
    answer: Any, tmp_path: Path
) -> None:
    cells = ["139/80", "125/70", "110-130", "< 90 (lying)", "121", "131", "126"]
    answer("RR", "", "", "", "", features=[PRESSURE], table=pd.DataFrame({"RR": cells}))
    file = (tmp_path / "m.toml").read_text("utf-8")
    assert "139" not in file.partition("[features.")[2]
    rows = pd.DataFrame({"RR": ["140", "118/71", "100 - 120", "<80(lying)"]})
    rows.to_csv(tmp_path / "table.csv", index=False)
    assert read(tmp_path, [PRESSURE])[:, 0].tolist() == [140, 118, 110, 40]


def test_a_blood_pressure_in_cmhg_is_read_in_mmhg(answer: Any, tmp_path: Path) -> None:
    table = pd.DataFrame({"RR": ["139/80", "125/70", "13/8", "17.5/9", "13/10", "RR 12/9"]})
    _, said = answer("RR", "", "", "", features=[PRESSURE], table=table)
    assert '"13/10" (1) means which number, or - if none [130]:' in said
    assert '"13/8" = 130 and 1 like it (2 rows)' in said
    assert "the column has no number" not in said
    own = read(tmp_path, [PRESSURE])[:, 0]
    np.testing.assert_array_equal(own, [139, 125, 130, 175, 130, 120])


def test_the_diastolic_pressure_is_the_second_number(answer: Any, tmp_path: Path) -> None:
    diastolic = Feature(name="diastolic_bp", unit="mmHg", lower=20, upper=160)
    cells = ["139/80", "125/70", "160-95", "13/8", "13/10", "RR 120/60"]
    answer("", "RR", "", "", "", features=[diastolic], table=pd.DataFrame({"RR": cells}))
    own = read(tmp_path, [diastolic])[:, 0]
    np.testing.assert_array_equal(own, [80, 70, 95, 80, 100, 60])


def test_the_commonest_code_is_asked_though_it_may_be_missing(answer: Any) -> None:
    smoker = Feature(name="smoker", kind="binary")
    table = pd.DataFrame({"smoker": ["NR", "NR", "NR", "nr", "ja", "k.A."]})
    _, said = answer("", "0", "", features=[smoker], table=table)
    assert '"NR", "nr" 4:' in said


def test_what_a_meter_shows_beyond_its_range_is_asked(answer: Any, tmp_path: Path) -> None:
    glucose = Feature(name="glucose", unit="mg/dl", lower=10, upper=900)
    table = pd.DataFrame({"glucose": [*range(80, 130), "HI", "clotted"]})
    _, said = answer("", "600", "", features=[glucose], table=table)
    assert '"HI" (1) is missing (-), or which number?' in said
    np.testing.assert_array_equal(read(tmp_path, [glucose])[-2:, 0], [600, np.nan])


def test_a_remark_that_denies_proposes_nothing(answer: Any) -> None:
    cpap = Feature(name="cpap", kind="binary")
    table = pd.DataFrame({"cpap": ["ja", "nee", "ja, draagt niet", "ja, nachts", "ng"]})
    cough = Feature(name="cough", kind="binary")
    table["cough"] = ["ja", "nee", "ja", "nee", "ng"]
    _, said = answer("", "0", "", "-", "", "", features=[cpap, cough], table=table)
    assert '"ja, draagt niet" 1:' in said
    assert '"ja, nachts" 1 [1]:' in said
    assert '"ng" 1 [-]:' in said


def test_a_word_may_say_the_sign_of_a_number(answer: Any, tmp_path: Path) -> None:
    table = pd.DataFrame({"drop": [*range(9, 30), "rise 7"]})
    drop = Feature(name="drop", unit="mmHg", lower=-50, upper=100)
    answer("", "-7", "", features=[drop], table=table)
    assert read(tmp_path, [drop])[-1, 0] == -7


def test_a_date_says_what_it_may_have_been_typed_as(answer: Any) -> None:
    table = pd.DataFrame({"pain": [*range(11), "2024-03-02 00:00:00", "2024-04-03 00:00:00"]})
    _, said = answer("", "2", "3", "", features=[Feature(name="pain")], table=table)
    first = '"2024-03-02 00:00:00" (a date, typed perhaps as 3/2 or 2/3) and 1 like it (2)'
    assert f"{first} means which number, or - if none of them has one" in said


def test_a_site_may_lack_an_outcome(answer: Any) -> None:
    died = {"name": "died", "role": "outcome", "kind": "binary", "points": 30}
    found, said = answer("", "-", features=[AGE, Outcome.model_validate(died)])
    assert "died: which column, or - (a site may lack an outcome)?" in said
    assert found.still_open == ()


def test_codes_beside_a_missing_one_keep_their_levels(answer: Any, tmp_path: Path) -> None:
    icu = Feature(name="icu", kind="binary")
    table = pd.DataFrame({"ICU": ["ja", "nein", "j", "k.A."], "age": [50, 60, 70, 80]})
    for answers in (("", ""), ("", "icu", "", "", "", "", "", "")):
        found, said = answer(*answers, features=[icu], table=table)
        assert 'icu = "ICU": 1 (yes) = "ja", "j" (2); 0 = "nein" (1); missing = "k.A." (1)' in said
        assert found.still_open == ()
        assert str(read(tmp_path, [icu])[:, 0].tolist()) == "[1.0, 0.0, 1.0, nan]"


@pytest.mark.parametrize(
    ("feature", "header", "cells", "expected"),
    [
        (Feature(name="vintage", unit="years"), "vintage (Mon.)", ["24", "6"], [2, 0.5]),
        (Feature(name="recovery", unit="hours"), "recovery min", ["120", "90"], [2, 1.5]),
        (Feature(name="urine", unit="L/day"), "urine ml/d", ["1500", "0"], [1.5, 0]),
        (Feature(name="pth", unit="pmol/L"), "iPTH pg/ml", ["94.25"], [10]),
        (Feature(name="gain", unit="g between two sessions"), "gain kg", ["2.1"], [2100]),
        (
            Feature(name="creatinine", unit="µmol/L"),
            "creatinine",
            ["179 H", "84 ?", "40+"],
            [179, 84, 40],
        ),
        (
            Feature(name="rass", unit="points", lower=-5, upper=4),
            "rass",
            [*map(str, range(5)), "-1", "-2", "-3", "-4", "-9"],
            [0, 1, 2, 3, 4, -1, -2, -3, -4, np.nan],
        ),
    ],
)
def test_what_a_table_means_is_taken_after_enter(
    answer: Any, tmp_path: Path, feature: Feature, header: str, cells: list[str], expected: Any
) -> None:
    found, _ = answer("", "", "", "", features=[feature], table=pd.DataFrame({header: cells}))
    assert found.still_open == ()
    own = read(tmp_path, [feature])[:, 0]
    # Two hours in minutes are 2, no less: an outcome may have an edge there.
    assert own[0] >= expected[0]
    np.testing.assert_allclose(own, expected, rtol=1e-12)


def test_spellings_of_one_code_are_one_question(answer: Any) -> None:
    stage = Feature(name="stage", kind="categorical", levels=("low", "high"))
    codes = ["2b", "2b", "IIb", "2 B", "1.2", "12", "1. 2"]
    _, said = answer("", "l", "h", "l", "", features=[stage], table=pd.DataFrame({"stage": codes}))
    assert '"2b", "IIb", "2 B" 4:' in said
    assert '"1.2", "1. 2" 2:' in said
    assert '"12" 1:' in said


def test_a_code_that_begins_one_level_proposes_it(answer: Any) -> None:
    kinds = ("sleeve gastrectomy", "gastric bypass", "gastric band")
    operation = Feature(name="operation", kind="categorical", levels=kinds)
    table = pd.DataFrame({"operation": ["Sleeve", "gastric", "gastric bypass"]})
    _, said = answer("", "", "gastric ba", features=[operation], table=table)
    assert '"Sleeve" 1 [sleeve gastrectomy]:' in said
    assert '"gastric" 1:' in said


def test_a_code_that_is_short_for_another_proposes_its_level(answer: Any) -> None:
    focus = Feature(name="focus", kind="categorical", levels=("lung", "skin_1", "other"))
    codes = ["Pneumonie", "Pneumonie", "Pneu.", "Pneumonie, Ery", "Gruppe 1", "ohne"]
    said = answer(
        "", "l", "", "", "o", "o", "", features=[focus], table=pd.DataFrame({"focus": codes})
    )
    assert '"Pneu." 1 [lung]:' in said[1]
    assert '"Pneumonie, Ery" 1:' in said[1]
    assert '"Gruppe 1" 1 [skin_1]:' in said[1]


@pytest.mark.parametrize(("none", "yes", "no"), [("None", "yes", "no"), ("brak", "tak", "nie")])
def test_none_may_mean_no(answer: Any, tmp_path: Path, none: str, yes: str, no: str) -> None:
    attack = Feature(name="attack", kind="binary")
    table = pd.DataFrame({"attack": [none, yes, no, "NA", none]})
    _, said = answer("", "0", "", features=[attack], table=table)
    assert f'"{none}" 2:' in said
    assert "NA" not in said
    assert str(read(tmp_path, [attack])[:, 0].tolist()) == "[0.0, 1.0, 0.0, nan, 0.0]"


def test_a_word_for_no_is_the_answer_of_enter(answer: Any, tmp_path: Path) -> None:
    home = Feature(name="diabetes", kind="binary")
    table = pd.DataFrame({"diabetes": ["nee", "DM2", "nee"]})
    _, said = answer("", "", "1", "", features=[home], table=table)
    assert '"nee" 2 [0]:' in said
    assert read(tmp_path, [home])[:, 0].tolist() == [0, 1, 0]
    died = Feature(name="died", kind="binary")
    _, said = answer(
        "", "1", "0", features=[died], table=pd.DataFrame({"overleefd": ["nee", "ja"]})
    )
    assert '"nee" 1:' in said


def test_an_outcome_says_what_its_1_means(answer: Any) -> None:
    died = Outcome(name="died", role="outcome", kind="binary", unit="1 = within 30 days")
    table = pd.DataFrame({"status": ["a", "b", "c"]})
    _, said = answer("", "1", "0", "-", features=[died], table=table)
    assert "each code means 1 (within 30 days), 0, or -" in said


def test_texts_that_differ_in_their_number_alone_are_shown_once(answer: Any) -> None:
    table = pd.DataFrame({"age": ["50", *(f"{i} (ca.)" for i in range(60, 70)), "k.A."]})
    found, said = answer(*("", "age", "61 (ca.) = -", ""), features=[AGE], table=table)
    assert 'missing = "k.A." 1; "60 (ca.)" = 60 and 9 like it (10 rows)' in said
    # Where something is wrong each is shown.
    assert '"60 (ca.)" = 60 (1), "61 (ca.)" = 61 (1), "62 (ca.)" = 62 (1)' in said
    assert 'missing = ["k.A.", "61 (ca.)"]' in found.text


def test_texts_that_one_rule_reads_are_shown_once(answer: Any, tmp_path: Path) -> None:
    texts = [
        "<20",
        "<30",
        "60-65",
        "50-55",
        "XX",
        "VIII",
        "XII",
        "120/80",
        "139/85",
        "n.d.",
        "15x13",
    ]
    table = pd.DataFrame({"crp": [*range(20, 80), *texts]})
    crp = Feature(name="crp", unit="mg/l", lower=0, upper=300)
    _, said = answer("", "-", "", features=[crp], table=table)
    assert '"15x13" (1) means which number' in said
    assert (
        'missing = "n.d." 1; "<20" = 10 (half of it) and 1 like it (2 rows), "XX" = 20 and 2 like '
        'it (3 rows), "60-65" = 62.5 and 1 like it (2 rows), "120/80" = 120 and 1 like it'
    ) in said
    own = read(tmp_path, [crp])[60:, 0]
    expected = [10, 15, 62.5, 52.5, 20, 8, 12, 120, 139, np.nan, np.nan]
    np.testing.assert_array_equal(own, expected)
    _, said = answer("", "-", "limit", "", features=[crp], table=table)
    assert 'of a limit such as "<20" counts half of it, or the limit? half or limit [half]' in said
    np.testing.assert_array_equal(read(tmp_path, [crp])[60:, 0], [20, 30, *expected[2:]])


def test_which_column_has_the_times_of_values_is_asked(answer: Any) -> None:
    crea = Trajectory(
        name="crea", kind="trajectory", grid=(0, 1), time_unit="days", lower=0, upper=9
    )
    table = pd.DataFrame({"mrn": [1, 1, 2, 2], "when": [0, 1, 0, 1], "crea": [1, 2, 3, 4]})
    found, said = answer("", "when", "", features=[crea], table=table)
    assert "which column is the time?" in said
    assert '\ntime = "when"\n' in found.text


def test_how_the_file_is_written_is_asked(answer: Any, tmp_path: Path) -> None:
    table = pd.DataFrame({"age": ["50,5", "61,5"], "ige": ["1.250", "12"]})
    features = [Feature(name="age"), Feature(name="ige")]
    for answers, read_as in ((("", ""), 1250), (("n", "", "", "1.25", ""), 1.25)):
        found, said = answer(*answers, features=features, table=table)
        assert 'does "." separate thousands' in said
        assert found.still_open == ()
        assert read(tmp_path, features)[0].tolist() == [50.5, read_as]


def test_a_column_that_is_chosen_says_whether_marks_separate_thousands(answer: Any) -> None:
    table = pd.DataFrame({"age": ["50,5", "61,5"], "Menge": ["1.250", "12.345,5"]})
    features = [Feature(name="age"), Feature(name="volume")]
    found, said = answer("", "Menge", "", "", features=features, table=table)
    assert 'does "." separate thousands' in said
    assert "\nthousands = true\n" in found.text
    assert found.still_open == ()


def test_enter_does_not_leave_out_the_rows_of_another_sheet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pd.ExcelWriter(tmp_path / "two.xlsx") as book:
        TABLE.to_excel(book, sheet_name="2023", index=False)
        TABLE.iloc[:, ::-1].to_excel(book, sheet_name="2024", index=False)
    found = suggest_mapping(FEATURES, tmp_path / "two.xlsx")
    monkeypatch.setattr(sys, "stdin", Terminal("\n\nn\n"))
    with pytest.raises(UsageError, match="say how the table is written"):
        ask_mapping(found, "id")
    assert capsys.readouterr().err.count("right? [y/n]") == 3


def test_another_way_of_writing_needs_an_option(answer: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("âge,weight\n50,7\n".encode("cp1252"))
    found = suggest_mapping([AGE], tmp_path / "t.csv")
    assert "the file is not in UTF-8" in found.still_open[0]


def test_the_command_asks_only_in_a_terminal_and_for_a_new_file(
    desk: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (desk.place / "heart.json").write_text(
        '{"name": "heart", "title": "t", "purpose": "Which kinds of residents are there?",'
        ' "algorithm": "fkm", "config": {"n_clusters": 2}, "sites": ["a", "b", "c"],'
        ' "features": [{"name": "age", "unit": "years", "lower": 18, "upper": 110},'
        ' {"name": "home", "kind": "binary"}]}',
        "utf-8",
    )
    table = pd.DataFrame({"age": [*range(40, 70)] * 2, "Wohnform": ["PH", "daheim", "PH"] * 20})
    table["visit"], table["patient"] = range(60), [*range(30)] * 2
    table.to_csv(desk.place / "t.csv", index=False)
    given = ("--definition", str(desk.place / "heart.json"), "--data", str(desk.place / "t.csv"))
    monkeypatch.chdir(desk.place)
    assert "needs a terminal" in desk.ran("check", *given, "--ask", code=2).err
    assert not Path("columns.toml").exists()
    monkeypatch.setattr(sys, "stdin", Terminal("patient\nall\nvisit\n\nWohnform\n1\n0\n"))
    desk.ran("check", *given, "--ask")
    assert "columns.toml: the mapping\n" in desk.err
    assert 'home = "Wohnform": 1 (yes) (40); 0 (20)' in " ".join(desk.err.split())
    assert desk.err.startswith("t: Which kinds of residents are there?")
    # What was shown is not shown again, and the rows are registered.
    assert "33.3%" not in desk.out
    assert "Nothing is left to do." in desk.out
    assert "@heart: these rows with the mapping" in desk.err
    assert "fedclust data add" not in desk.out
    source = DataSources().get("heart")
    assert (source.id_column, source.person_column) == ("visit", "patient")
    assert source.reading.mapping == str(desk.place / "columns.toml")
    assert "columns.toml exists" in desk.ran("check", *given, "--ask", code=2).err
    # Another table of this name is kept.
    table.to_csv(desk.place / "u.csv", index=False)
    given = (*given[:-1], str(desk.place / "u.csv"), "--write-mapping", "u.toml")
    monkeypatch.setattr(sys, "stdin", Terminal("patient\nall\nvisit\n\nWohnform\n1\n0\n"))
    assert "next: fedclust data add heart --data u.csv" in desk.ran("check", *given, "--ask").out
    assert DataSources().get("heart").data == str(desk.place / "t.csv")


def test_a_factor_that_a_person_corrects_does_not_change_units_in_cells(
    answer: Any, tmp_path: Path
) -> None:
    weight = Feature(name="weight", unit="kg", lower=1, upper=400)
    table = pd.DataFrame({"weight": [*map(str, range(60, 90)), "150 lb", "80 kg"]})
    answers = ("", "n", "weight", "none", "", "0.9", "", "")
    answer(*answers, features=[weight], table=table)
    own = read(tmp_path, [weight])[:, 0]
    np.testing.assert_allclose(own[[0, -2, -1]], [54, 68.04, 80], rtol=1e-3)


@pytest.mark.parametrize("how", ["y", "88.4"])
def test_a_unit_in_cells_is_converted_to_the_unit_that_a_person_says(
    answer: Any, tmp_path: Path, how: str
) -> None:
    creatinine = Feature(name="creatinine", unit="µmol/l", lower=15, upper=1500)
    numbers = ["1.1", "0.7", "2.1"] if how == "y" else ["1.1", "0.7", "17"]
    table = pd.DataFrame({"crea": [*numbers, "0.61 mg/dl", "97 µmol/l"]})
    answers = ("", how, "") if how == "y" else ("", "crea", "", how, "", "none", "")
    answer(*answers, features=[creatinine], table=table)
    own = read(tmp_path, [creatinine])[:, 0]
    np.testing.assert_allclose(own[[0, 1, -2, -1]], [97.26, 61.89, 53.93, 97], rtol=1e-3)


@pytest.mark.parametrize(
    ("amounts", "least", "expected"),
    [
        (["0", "1 (phone)", "2", "9"], "2", [0, 0, 1, np.nan]),
        (["0", "I (wound)", "IIIb", "IV"], "3", [0, 0, 1, 1]),
        (["0", "1", "2", "3"], "-", [0, 1, 0, 1]),
    ],
)
def test_amounts_are_yes_from_a_number_on(
    answer: Any, tmp_path: Path, amounts: Any, least: str, expected: Any
) -> None:
    fell = Feature(name="fell", kind="binary", unit="1 = fell at least twice")
    answers = ["", least, *(["0", "1", "0", "1"] if least == "-" else []), ""]
    _, said = answer(*answers, features=[fell], table=pd.DataFrame({"fell": amounts}))
    assert "which is the smallest number that means 1, or - if they are codes?" in said
    np.testing.assert_array_equal(read(tmp_path, [fell])[:, 0], expected)


def test_codes_that_differ_in_their_side_or_in_an_amount_are_one_question(answer: Any) -> None:
    smoker = Feature(name="smoking", kind="categorical", levels=("never", "former", "current"))
    access = Feature(name="access", kind="categorical", levels=("fistula", "graft"))
    side = Feature(name="side", kind="categorical", levels=("left", "right"))
    codes = ["smoker", "smoker 20/d", "smoker 5/d", "ex-smoker", "ex-smoker"]
    ways = ["Cimino li", "Cimino re.", "Cimino", "Loop re", "Loop"]
    sides = ["hip left", "hip left", "hip left", "hip right", "hip right"]
    table = pd.DataFrame({"smoking": codes, "access": ways, "side": sides})
    answers = ("", "curr", "fi", "gr", "le", "ri", "")
    found, said = answer(*answers, features=[smoker, access, side], table=table)
    assert '"smoker 20/d", "smoker 5/d" 2:' in said
    assert '"Cimino li", "Cimino re.", "Cimino" 3:' in said
    assert found.still_open == ()


@pytest.mark.parametrize(
    ("texts", "answers", "expected"),
    [
        (["4 zz", "5ZZ"], ["4"], [4, 5]),
        (["2 zz", "3 zz"], ["14"], [14, 21]),
        (["5+9", "3 + 12"], ["14"], [14, 15]),
        (["x 6 or 8", "x 3 or 5"], ["8"], [8, 5]),
        (["zz 1.244", "zz 1.300"], [""], [1244, 1300]),
        (["RR 130/65", "RR 120/80"], [""], [130, 120]),
        (["since 2007", "since 2009"], ["16", "14"], [16, 14]),
        (["4 zz 1", "5 zz 1"], ["-"], [np.nan, np.nan]),
    ],
)
def test_texts_of_one_form_are_read_as_the_answer_reads_the_first(
    answer: Any, tmp_path: Path, texts: Any, answers: Any, expected: Any
) -> None:
    stay = Feature(name="stay", unit="days", lower=0, upper=2000)
    table = pd.DataFrame({"stay (d)": ["33", "900", "1500", *texts]})
    found, said = answer("", *answers, "", features=[stay], table=table)
    assert f'{texts[0]}" and 1 like it (2) means which number' in said
    assert (f'"{texts[1]}" =' in said) == (len(answers) == 1 and answers != ["-"])
    assert found.still_open == ()
    np.testing.assert_array_equal(read(tmp_path, [stay])[-2:, 0], expected)


@pytest.mark.parametrize(
    ("feature", "header", "cells", "expected"),
    [
        (
            Feature(name="age", unit="months", lower=0, upper=220),
            "Age (mths)",
            ["110", "9y 2m"],
            [110, 110],
        ),
        (Feature(name="fev1", unit="% of predicted"), "FEV1 %pred (GLI)", ["80"], [80]),
        (
            Feature(name="eosinophils", unit="cells per microlitre, blood"),
            "Eosinophils (x10^9/L)",
            ["0.3"],
            [300],
        ),
        (Feature(name="abi", unit="index at rest"), "abi (worse leg)", ["0.9"], [0.9]),
        (Feature(name="admissions", unit="number in 12 months"), "admissions (months)", ["2"], [2]),
        (Feature(name="walk", unit="s, timed", lower=0, upper=60), "walk (s)", ["9"], [9]),
        (Feature(name="walk", unit="m in 6 minutes"), "walk (metri)", ["90"], [90]),
        (Feature(name="ulcer", unit="cm2, worst"), "ulcer (mm²)", ["90"], [0.9]),
        (Feature(name="lavi", unit="mL/m2, left atrium"), "LAVI (ml/m²)", ["40"], [40]),
        (Feature(name="pulse", unit="beats per minute, at rest"), "pulse (/min)", ["80"], [80]),
    ],
)
def test_units_of_a_header_need_no_question(
    answer: Any, tmp_path: Path, feature: Feature, header: str, cells: list[str], expected: Any
) -> None:
    _, said = answer("", "", features=[feature], table=pd.DataFrame({header: cells}))
    assert "FACTOR" not in said
    np.testing.assert_allclose(read(tmp_path, [feature])[:, 0], expected)
