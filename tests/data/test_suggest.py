"""A suggested mapping file: messy tables are read as the clean one, or what differs is marked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pytest

from fedclust.data import Dataset, column_match, column_points, load
from fedclust.data.column_points import find_texts
from fedclust.data.mapping import ColumnsFile
from fedclust.data.suggest import MappingSuggestion, suggest_mapping
from fedclust.schema.feature import Feature, Outcome, Trajectory, clustered
from fedclust.wire.errors import DataError, UsageError

FEATURES = (
    Feature(name="age", unit="years", lower=18, upper=110),
    Feature(name="creatinine", unit="mg/dl", lower=0.2, upper=20),
    Feature(name="chol", unit="mg/dl", lower=50, upper=700),
    Feature(name="female", kind="binary"),
    Feature(name="smoker", kind="binary"),
    Feature(name="pain", kind="categorical", levels=("typical", "atypical", "none")),
)
SEX = Feature(name="sex", kind="binary", unit="1 = female")
SMOKING = Feature(name="smoking", kind="categorical", levels=("never", "former", "current"))
DIED = Outcome(name="died", role="outcome", kind="binary")
DECLARED = (*FEATURES, DIED)
N = 60
RNG = np.random.default_rng(37)
CLEAN = pd.DataFrame(
    {
        "age": RNG.integers(30, 90, N),
        "creatinine": RNG.uniform(0.6, 3.0, N).round(2),
        "chol": RNG.integers(120, 300, N),
        "female": RNG.integers(0, 2, N),
        "smoker": RNG.integers(0, 2, N),
        "pain": RNG.choice(["typical", "atypical", "none"], N),
        "died": RNG.integers(0, 2, N),
    }
)


def coded(column: str, *codes: Any) -> list[str]:
    """Return a column in other codes, in the order of its own; several of one in turn."""
    spelled = [each if isinstance(each, tuple) else (each,) for each in codes]
    own = sorted(CLEAN[column].unique())
    return [
        spelled[own.index(value)][i % len(spelled[own.index(value)])]
        for i, value in enumerate(CLEAN[column])
    ]


def comma(values: Sequence[float]) -> list[str]:
    return [f"{value!r}".replace(".", ",") for value in np.asarray(values).tolist()]


def replaced(column: str, **by_row: Any) -> list[Any]:
    values = CLEAN[column].tolist()
    for row, value in by_row.items():
        values[int(row[1:])] = value
    return values


def csv(encoding: str, sep: str, columns: dict[str, Any], first: str = "") -> Callable[..., Path]:
    def write(place: Path) -> Path:
        path = place / "table.csv"
        rows = [list(columns), *zip(*columns.values(), strict=True)]
        text = first + "".join(sep.join(map(str, row)) + "\n" for row in rows)
        path.write_bytes(text.encode(encoding))
        return path

    return write


def sheet(*rows: Sequence[Any], merged: Sequence[str] = ()) -> Callable[..., Path]:
    def write(place: Path) -> Path:
        book = openpyxl.Workbook()
        for row in rows:
            book.active.append(list(row))
        for area in merged:
            book.active.merge_cells(area)
        book.save(place / "table.xlsx")
        return place / "table.xlsx"

    return write


@dataclass(frozen=True)
class Messy:
    """A table, the edits that make the suggested file right, and the cells without a value."""

    write: Callable[[Path], Path]
    edits: tuple[tuple[str, str], ...] = ()
    lost: tuple[tuple[int, str], ...] = ()


GERMAN = {
    "Patienten-Nr": range(N),
    "Alter (Jahre)": CLEAN.age,
    "Kreatinin (µmol/l)": comma(CLEAN.creatinine / 0.01131),
    "Cholesterin mmol/l": comma(CLEAN.chol / 38.67),
    "Geschlecht": coded("female", ("M", "m", "männlich"), ("W", "w", "weiblich")),
    "Raucher": coded("smoker", ("Nein", "nein"), ("Ja", "JA")),
    "Pain": coded("pain", "Atypical", "NONE", "typical"),
    "verstorben": coded("died", "n", "j"),
}
ENGLISH = {
    "patient_id ": [f"P{i // 2}" for i in range(N)],
    "Age ": [f"{age} " for age in CLEAN.age],
    " Serum Creatinine": CLEAN.creatinine,
    "Total cholesterol [mg/dL]": CLEAN.chol,
    "Gender": coded("female", "Male ", "Female"),
    "smoking": coded("smoker", "No", " Yes"),
    "PAIN": [f"{pain}  " for pain in CLEAN.pain],
    "death": coded("died", "no", "YES"),
}
FRENCH = {
    "Âge (ans)": CLEAN.age,
    "Créatinine (mg/dl)": comma(CLEAN.creatinine),
    "Cholesterol": comma(CLEAN.chol + 0.0),
    "Sexe": coded("female", "H", "F"),
    "Fumeur": coded("smoker", "non", "oui"),
    "pain": CLEAN.pain,
    "dead": CLEAN.died,
}
SPANISH = {
    "Edad": CLEAN.age,
    "Creatinina": comma(CLEAN.creatinine),
    "Colesterol": CLEAN.chol,
    "Sexo": coded("female", "H", "M"),
    "Fumador": coded("smoker", "No", "Sí"),
    "Pain": CLEAN.pain,
    "fallecido": coded("died", "no", "sí"),
}
DUTCH = {
    "PatNr": range(N),
    "Leeftijd (jaar)": [999 if i == 4 else age for i, age in enumerate(CLEAN.age)],
    "Kreatinine (µmol/l)": comma(CLEAN.creatinine / 0.01131),
    "Cholesterol (mmol/l)": comma(CLEAN.chol / 38.67),
    "Geslacht (man/vrouw)": coded("female", "Man", ("Vrouw", "vrouw")),
    "Roker": coded("smoker", "nee", "ja"),
    "pain": CLEAN.pain,
    "Overleden": coded("died", "levend", "overleden"),
}
TURKISH = {
    "Hasta No": range(N),
    "Yaş": CLEAN.age,
    "Kreatinin (mg/dl)": comma(CLEAN.creatinine),
    "Kolesterol (mg/dl)": CLEAN.chol,
    "Cinsiyet": coded("female", ("Erkek", "ERKEK"), ("Kadın", "KADIN")),
    "Sigara": coded("smoker", "H", "E"),
    "pain": CLEAN.pain,
    "Ölüm": coded("died", ("Hayır", "HAYIR"), ("Evet", "EVET")),
}
POLISH = {
    "Nr karty": [f"KG/{i}/21" for i in range(N)],
    "Wiek [lata]": CLEAN.age,
    "Płeć": coded("female", "M", "K"),
    "Kreatynina [mg/dl]": ["brak danych", *comma(CLEAN.creatinine)[1:]],
    "Cholesterol": CLEAN.chol,
    "smoker": coded("smoker", "Nie", "TAK"),
    "pain": CLEAN.pain,
    "Zgon": coded("died", "nie", "tak"),
}
DAYS = pd.Series(pd.to_datetime("2024-01-05")).repeat(N) + pd.to_timedelta(range(N), "D")
DATES = {
    "admitted": DAYS.dt.strftime("%Y-%m-%d"),
    "Aufnahme": DAYS.dt.strftime("%d.%m.%Y"),
    "discharge": DAYS.dt.strftime("%m/%d/%Y"),
    "sortie": DAYS.dt.strftime("%d-%m-%y"),
}
PLAIN = {name: CLEAN[name] for name in CLEAN}
TWO_ROWS = (
    ["Patient", "Person", None, "Labor", None, "Raucher", "Pain", "Exitus"],
    [None, "Alter", "Geschlecht", "Kreatinin (mg/dl)", "Cholesterin (mg/dl)", None, None, None],
)
IN_TWO_ROWS = zip(
    range(1000, 1000 + N),
    CLEAN.age.tolist(),
    coded("female", "m", "w"),
    CLEAN.creatinine.tolist(),
    CLEAN.chol.tolist(),
    coded("smoker", "nein", "ja"),
    CLEAN.pain,
    CLEAN.died.tolist(),
    strict=True,
)
MESSY = {
    "German, of an old Excel": Messy(csv("cp1252", ";", GERMAN)),
    "English with spaces and duplicate ids": Messy(csv("utf-8", ",", ENGLISH)),
    "Unicode text of Excel": Messy(csv("utf-16", "\t", FRENCH)),
    "UTF-16 without a mark": Messy(csv("utf-16-le", ";", GERMAN)),
    "French": Messy(csv("utf-8", ";", FRENCH)),
    "Spanish, where M is a woman": Messy(csv("cp1252", ";", SPANISH)),
    "dates in four forms, a line that names the separator": Messy(
        csv("utf-8", ";", {**DATES, **PLAIN}, "sep=;\n")
    ),
    "missing codes": Messy(
        csv(
            "utf-8",
            ",",
            {
                **PLAIN,
                "age": replaced("age", r3=-99, r7="NA"),
                "chol": replaced("chol", r5=999, r8=999),
                "creatinine": replaced("creatinine", r6="k.A."),
            },
        ),
        (),
        ((3, "age"), (7, "age"), (5, "chol"), (8, "chol"), (6, "creatinine")),
    ),
    "codes in numbers": Messy(
        csv(
            "utf-8", "|", {**PLAIN, "smoker": coded("smoker", 2, 1), "pain": coded("pain", 2, 3, 1)}
        ),
        (
            ('# levels = { "2" = 0', 'levels = { "2" = 0'),
            ('# "1" =   #', '"1" = "typical" #'),
            ('# "2" =   #', '"2" = "atypical" #'),
            ('# "3" =   #', '"3" = "none" #'),
        ),
    ),
    "merged header cells": Messy(
        sheet(*TWO_ROWS, *IN_TWO_ROWS, merged=("B1:C1", "D1:E1", "A1:A2", "F1:F2"))
    ),
    "Dutch": Messy(csv("cp1252", ";", DUTCH), (), ((4, "age"),)),
    "Turkish": Messy(csv("cp1254", ";", TURKISH)),
    "Polish, of Windows": Messy(csv("cp1250", ";", POLISH), (), ((0, "creatinine"),)),
    "units below the names, a column without a name": Messy(
        sheet(
            ["Fall", None, "Alter", "Sex", "Krea", "Chol", "Raucher", "pain", "Exitus"],
            [None, None, "Jahre", None, "mg/dl", "mmol/l", None, None, None],
            *zip(
                range(N),
                range(N),
                CLEAN.age.tolist(),
                coded("female", "m", "w"),
                CLEAN.creatinine.tolist(),
                (CLEAN.chol / 38.67).tolist(),
                CLEAN.smoker.astype(bool).tolist(),
                CLEAN.pain,
                CLEAN.died.astype(bool).tolist(),
                strict=True,
            ),
        )
    ),
    "a title above": Messy(
        sheet(["Cohort 2024"], [], list(PLAIN), *CLEAN.itertuples(index=False, name=None))
    ),
}


def expected(lost: Sequence[tuple[int, str]] = ()) -> tuple[np.ndarray, np.ndarray]:
    clean = CLEAN.astype(object)
    for row, column in lost:
        clean.loc[row, column] = None
    table = load(clean, FEATURES, outcomes=(DIED,))
    assert table.cells is not None
    return table.X, table.cells


def read(path: Path, mapping: Path) -> tuple[np.ndarray, np.ndarray]:
    table = load(Dataset(path, mapping=mapping), FEATURES, outcomes=(DIED,))
    assert table.cells is not None
    return table.X, table.cells


@pytest.mark.parametrize("name", MESSY)
@pytest.mark.filterwarnings("ignore::fedclust.data.DataWarning")
def test_a_messy_table_is_read_as_the_clean_one(name: str, tmp_path: Path) -> None:
    messy = MESSY[name]
    path = messy.write(tmp_path)
    found = suggest_mapping(DECLARED, path)
    assert None not in found.columns.values()
    found.write(tmp_path / "suggested.toml")
    # What would be read wrongly without an edit is marked.
    for feature in (*FEATURES, *DIED.columns):
        wanted = load(CLEAN, [feature]).X
        try:
            own = load(Dataset(path, mapping=tmp_path / "suggested.toml"), [feature]).X
        except DataError:
            continue
        marked = any(said.startswith(f"{feature.name}: ") for said in found.still_open)
        assert marked or np.allclose(own, wanted, rtol=1e-9), feature.name
    text = found.text
    for old, new in messy.edits:
        assert old in text
        text = text.replace(old, new, 1)
    (tmp_path / "edited.toml").write_text(text, "utf-8")
    for own, wanted in zip(read(path, tmp_path / "edited.toml"), expected(messy.lost), strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-9)


def test_an_edit_each_is_enough() -> None:
    assert sum(len(messy.edits) for messy in MESSY.values()) <= len(MESSY) == 15


def suggested(place: Path, feature: Feature, **columns: Any) -> tuple[str, str]:
    """Return the file's text, and what it marks, of a table with a few columns."""
    path = csv("utf-8", ";", {name.replace("__", " "): cells for name, cells in columns.items()})
    found = suggest_mapping([feature], path(place))
    return found.text, "; ".join(found.still_open)


def read_with(found: MappingSuggestion, path: Path, features: Sequence[Feature]) -> np.ndarray:
    """Write the suggested file, and return what is read with it."""
    found.write(path.with_suffix(".toml"))
    return load(Dataset(path, mapping=path.with_suffix(".toml")), features).X


AGE, CREATININE, CHOL, FEMALE, SMOKER, PAIN = FEATURES
LOS = Feature(name="los", unit="days", lower=0, upper=400)
TSH = Feature(name="tsh", unit="mU/l", lower=0, upper=20)
HB = Feature(name="haemoglobin", unit="g/dL", lower=4, upper=22)
TEMP = Feature(name="temp", unit="°C", lower=30, upper=45)
NYHA = Feature(name="nyha", kind="categorical", levels=("I", "II", "III", "IV"))


@pytest.mark.parametrize(
    ("feature", "columns", "says"),
    [
        (
            CHOL,
            {"chol": comma(CLEAN.chol / 38.67)},
            "60 of 60 values lie outside the bounds (50 to 700 mg/dl), such as",
        ),
        (CHOL, {"chol": [f"{i}.250" for i in range(60, 90)]}, "They may separate thousands"),
        (
            AGE,
            {"age": [*range(20, 70), 200]},
            "1 of 51 values lie outside the bounds (18 to 110 years), such as 200 here",
        ),
        (AGE, {"age": ["40", "2024-03-01"]}, 'a date or time: "2024-03-01" 1'),
        (AGE, {"age": ["middle-aged", "?"]}, "the column has no number"),
        (AGE, {"age": ["40", "50", "999", "999.0"]}, '"999" 2'),
        (AGE, {"age": [40, 41], "Age": [50, 51]}, ""),
        (AGE, {"Age": [40, 41], "AGE": [50, 51]}, 'it may be "AGE" too'),
        (AGE, {"age_at_death": [40, 41]}, 'is "age_at_death" this column?'),
        (
            CREATININE,
            {"creatinine__(U/l)": [1, 2]},
            'the header says "U/l", and the session "mg/dl"',
        ),
        (AGE, {"age__(days)": [14610, 18262]}, ""),
        (
            Feature(name="nt", unit="x"),
            {"nt__(a)": [1, 2]},
            'the header says "a", and the session "x"',
        ),
        (FEMALE, {"sex": [0, 1]}, 'codes that are not known: "0" 1, "1" 1'),
        (FEMALE, {"sex": ["m", "v"]}, 'codes that are not known: "m" 1, "v" 1'),
        (SMOKER, {"smoker": ["ja", "nein", "ex"]}, 'codes that are not known: "ex" 1'),
        (SMOKER, {"Smoker__(0/1)": [0, 1]}, ""),
        (SMOKER, {"smoker": ["y", ""]}, 'not known: "y" 1'),
        (
            SMOKER,
            {"smoker": [1, ""], "x": ["a", "b"]},
            'only "1" is there: do the others mean that there is no value?',
        ),
        (AGE, {"w": [70, 80], "name": ["A", "B"]}, 'may it be "w"?'),
        (SMOKER, {"Smoker__(0=yes)": [0, 1]}, 'its header says "0=yes", too'),
        (SMOKER, {"Smoker__(former)": [0, 1]}, 'its header says "former", too'),
        (SMOKER, {"Nichtraucher": ["ja", "nein"]}, '"Nichtraucher" may say the opposite of it'),
        (SMOKER, {"smoker no/yes": ["y", "n"]}, 'is "smoker no/yes" this column?'),
        (DIED.columns[0], {"Przeżycie": ["tak", "nie"]}, 'is "Przeżycie" this column?'),
        (DIED.columns[0], {"Vivo a 1 anno": ["sì", "no"]}, 'may say the opposite of it: "sì" 1'),
        (DIED.columns[0], {"Oddział": ["Intensywna", "Interna"]}, "called like it"),
        (HB, {"Hb": [6.3, 8.5, 10.9]}, "says no unit, and its values would fit in mmol/l too"),
        (HB, {"Hb__[g/dl]": [6.3, 8.5, 10.9]}, ""),
        (SMOKER, {"smoker": [1, 2]}, 'codes that are not known: "1" 1, "2" 1'),
        (SMOKER, {"smoker": ["None", "ja"]}, 'codes that are not known: "ja" 1, "None" 1'),
        (FEMALE, {"sex": ["Varon", "M", "M"]}, 'codes that are not known: "M" 2, "Varon" 1'),
        (FEMALE, {"sex": ["H", "Mujer", "M"]}, ""),
        (Feature(name="male_partner", kind="binary"), {"sex": ["m", "w"]}, "no column here"),
        (CHOL, {"chol (HDL) [mmol/l]": [1.5]}, 'its header says "HDL", too'),
        (CHOL, {"chol": ["1.234", "850.5", "2.345", "910.5", "920.5"]}, "They may separate thous"),
        (AGE, {"age": [f"Anna {i}" for i in range(9)]}, "9 different texts"),
        (SMOKER, {"smoker": ["-1", "1", "0"]}, 'codes that are not known: "-1" 1'),
        (SMOKER, {"smoker": [f"c{i}" for i in range(60)]}, "60 different texts"),
        (Feature(name="sex", kind="binary"), {"sex": ["m", "w"]}, "codes that are not known"),
        (Feature(name="s", kind="categorical", levels=("no", "yes")), {"s": ["Ja", "n"]}, ""),
        (Feature(name="s", kind="categorical", levels=("n", "m")), {"s": ["nein"]}, '"nein" 1'),
        (PAIN, {"pain": ["None", "typical"]}, ""),
        (LOS, {"los": [*range(60), 99, 99, 99]}, 'may mean a missing value: "99" 3'),
        (LOS, {"los": [*range(5, 60), -8]}, 'codes, read as missing: "-8" 1'),
        (LOS, {"los": [*range(5, 60), 777, 9999]}, '"777" 1, "9999" 1'),
        (LOS, {"los": [*range(120)]}, ""),
        (LOS, {"los": [0, *range(18, 90), 0]}, 'may mean a missing value: "0" 2'),
        (LOS, {"los": [0, 0, 0, 0, *range(1, 60)]}, ""),
        (AGE, {"age": [0, *range(18, 90)]}, 'codes, read as missing: "0" 1'),
        (SMOKER, {"Sigara": ["E", "H", "?"]}, 'codes, read as missing: "?" 1'),
        (FEMALE, {"Cinsiyet__(E/K)": ["E", "K"]}, ""),
        (FEMALE, {"cinsiyet": ["E", "H", "K"]}, 'not known: "E" 1'),
        (TSH, {"tsh": [*range(60, 100)]}, "40 of 40 values lie outside the bounds"),
        (CREATININE, {"creatinine": ["1.1", "<0.2"]}, 'read as below: "<0.2" 1'),
        (TSH, {"tsh__(MU/l)": [1, 2]}, 'the header says "MU/l", and the session "mU/l"'),
        (TSH, {"TSH__(mIU/L)": [1, 2]}, ""),
        (TEMP, {"TEMP_F": [97, 99]}, 'is "TEMP_F" this column?'),
        (AGE, {"Âge (j)": [40, 50]}, 'the header says "j", and the session "years"'),
        (
            Feature(name="admission", kind="categorical", levels=("a", "b")),
            {"Aufnahmeart": ["a"]},
            'is "Aufnahmeart" this column?',
        ),
        (NYHA, {"nyha": ["NYHA I", "NYHA II"]}, ""),
        (NYHA, {"nyha": [1, 2, 3, 4]}, ""),
        (NYHA, {"nyha": [0, 1, 2, 3]}, '"0" 1, "1" 1, "2" 1, "3" 1'),
        (NYHA, {"nyha": ["I", "IIIa"]}, 'codes that are not known: "IIIa" 1'),
        (DIED.columns[0], {"died": ["dead", "alive"]}, ""),
        (DIED.columns[0], {"Vital_Status": ["Dead", "Alive"]}, ""),
        (DIED.columns[0], {"Vital_Status": [0, 1]}, 'codes that are not known: "0" 1, "1" 1'),
        (Feature(name="lvef", unit="%"), {"FEVE": [40, 60]}, ""),
        (Feature(name="lvef", unit="%"), {"FEVD": [40, 60]}, "no column here is called like it"),
        (Feature(name="troponin_t"), {"Troponin_I": [40, 60]}, 'is "Troponin_I" this column?'),
        (Feature(name="troponin"), {"TropI": [40, 60]}, 'is "TropI" this column?'),
        (Feature(name="egfr_ckdepi"), {"eGFR_MDRD": [40, 60]}, 'is "eGFR_MDRD" this column?'),
        (
            Feature(name="intubated", kind="binary"),
            {"ventilation": [0, 1]},
            'is "ventilation" this column?',
        ),
        (
            Feature(name="hb", unit="g/dl"),
            {"Hb__%": [90, 99]},
            'the header says "%", and the session "g/dl"',
        ),
        (
            Feature(name="wbc", unit="10^9/l"),
            {"Leuko%": [5, 9]},
            'the header says "%", and the session "10^9/l"',
        ),
        (SMOKER, {"smoker": ["dead", "alive"]}, '"dead" 1, "alive" 1'),
        (FEMALE, {"Sex__(M/F)": ["M", "F"]}, ""),
        (SEX, {"Geschlecht": ["w", "m"]}, ""),
        (SEX, {"sex": [0, 1]}, 'not known: "0" 1, "1" 1'),
        (SMOKING, {"Raucherstatus": ["Nichtraucher", "Ex-Raucher", "Raucher"]}, ""),
        (SMOKING, {"Palenie": ["nie", "tak"]}, 'not known: "nie" 1, "tak" 1'),
    ],
)
def test_what_is_uncertain_is_marked(
    feature: Feature, columns: dict[str, Any], says: str, tmp_path: Path
) -> None:
    text, marked = suggested(tmp_path, feature, **columns)
    assert says in marked
    assert bool(marked) == bool(says)
    assert "Oddział" not in marked
    marks = text.count("# uncertain: ") + text.count("# to do: ")
    assert marks == marked.count(f"{feature.name}: ")


@pytest.mark.parametrize(
    ("features", "columns", "wanted"),
    [
        (
            (SEX, SMOKING),
            {"Geslacht": ["V", "M"], "Tabac": ["non-fumeur", "ancien fumeur"]},
            [[1, 1, 0, 0], [0, 0, 1, 0]],
        ),
        # A header that says what its codes mean is believed.
        (
            (SEX, SMOKING),
            {"Kön (man=1, kvinna=2)": [1, 2], "Rökning (0=aldrig, 1=tidigare, 2=rökare)": [2, 0]},
            [[0, 0, 0, 1], [1, 1, 0, 0]],
        ),
        ((SMOKING,), {"Palenie": ["nie", "były", "tak"]}, np.eye(3).tolist()),
        # A status of yes and no needs another of former.
        ((SMOKING,), {"Fumatore": ["mai", "ex", "sì"]}, np.eye(3).tolist()),
    ],
)
def test_codes_of_sex_and_smoking_become_the_levels_that_they_mean(
    features: tuple[Feature, ...], columns: dict[str, Any], wanted: Any, tmp_path: Path
) -> None:
    path = csv("utf-8", ";", columns)(tmp_path)
    assert read_with(suggest_mapping(features, path), path, features).tolist() == wanted


def test_the_two_sides_of_a_yes_no_column_are_a_line_each(tmp_path: Path) -> None:
    sex = Feature(name="sex", kind="binary")
    text, _ = suggested(tmp_path, sex, Geschlecht=["w", "M", "weiblich", "?"])
    own = '# levels = { "w" = 1, "M" = 0, "weiblich" = 1 }  # 1 = female'
    assert own in text
    (tmp_path / "m.toml").write_text(text.replace(own, own[2:]), "utf-8")
    read = load(Dataset(tmp_path / "table.csv", mapping=tmp_path / "m.toml"), [sex]).X
    np.testing.assert_array_equal(read[:, 0], [1, 0, 1, np.nan])


def test_ways_of_admission_are_levels_and_a_longer_code_is_open(tmp_path: Path) -> None:
    levels = ("emergency", "elective", "transfer")
    text, marked = suggested(
        tmp_path,
        Feature(name="admission", kind="categorical", levels=levels),
        Aufnahmeart=["Notfall ", "elektiv", "Verlegung ext.", "nicht elektiv"],
    )
    lines = ['"Notfall" = "emergency"', '# "Verlegung ext." =  ', '# "nicht elektiv" =  ']
    assert all(f"\n{line}" in text for line in lines)
    assert 'is "Aufnahmeart" this column?' in marked


def test_a_limit_gets_a_number_and_a_unit_in_a_cell_is_shown(tmp_path: Path) -> None:
    cells = ["<0,3", "> 35", "1,5", "odd sample", "<1.5"]
    path = csv("utf-8", ";", {"crp": cells, "age": [f"{50 + i} ans" for i in range(5)]})(tmp_path)
    features = Feature(name="crp"), Feature(name="age")
    found = suggest_mapping(features, path)
    forms = 'forms = { "<#" = 0.5, ">#" = 1.0 }'
    assert f'\n# missing = ["odd sample"]\n# {forms}' in found.text
    text = found.text.replace("# missing", "missing").replace("# forms", "forms")
    (tmp_path / "m.toml").write_text(text, "utf-8")
    table = Dataset(path, mapping=tmp_path / "m.toml")
    np.testing.assert_array_equal(load(table, features[:1]).X[:, 0], [0.15, 35, 1.5, np.nan, 0.75])
    years = {"age": [f"{30 + i} ans" for i in range(45)]}
    found = suggest_mapping(features[1:], csv("utf-8", ";", years)(tmp_path))
    assert '45 different texts, such as "30 ans"' in found.still_open[0]
    assert '\n# forms = { "#ans" = 1.0 }\n' in found.text
    assert "missing = " not in found.text
    # The session's unit is certain, and marked.
    of_unit = Feature(name="age", unit="years", lower=0, upper=120)
    found = suggest_mapping([of_unit], csv("utf-8", ";", years)(tmp_path))
    assert found.still_open == ('age: cells such as "30 ans" are read as numbers',)
    (tmp_path / "n.toml").write_text(found.text, "utf-8")
    table = Dataset(tmp_path / "table.csv", mapping=tmp_path / "n.toml")
    np.testing.assert_array_equal(load(table, [of_unit]).X[:, 0], 30.0 + np.arange(45))
    # Only behind a number: NA is missing, whatever the unit is.
    rows = csv("utf-8", ";", {"age": ["58 A", "NA", "61"]})(tmp_path)
    read = load(Dataset(rows, mapping={"features": {"age": {"forms": {"# A": 1}}}}), features[1:])
    np.testing.assert_array_equal(read.X[:, 0], [58, np.nan, 61])
    years["age"][7] = "8 mois"
    assert "forms" not in suggested(tmp_path, features[1], **years)[0], "two units"
    remark = suggested(tmp_path, features[0], crp=["1,5", "<1", "2,5 (repeat)", "3,5", "4,5"])[0]
    assert 'forms = { "<#" = 0.5, "#(repeat)" = 1.0 }' in remark


def test_units_in_cells_are_converted_and_marked(tmp_path: Path) -> None:
    cells = {
        "weight": ["82", "82 kg", "180 lb", "11st", "12 st 4", "76.5kg"],
        "height": ["180", "178 cm", "1.80 m", "5'11", "5 ft 11 in", "1m72"],
        "Hb (g/dL)": ["13.5", "135 g/L", "14 g/dl", "<7", "b.d.", "15"],
    }
    path = csv("utf-8", ";", cells)(tmp_path)
    features = (
        Feature(name="weight", unit="kg", lower=30, upper=200),
        Feature(name="height", unit="cm", lower=100, upper=220),
        Feature(name="hemoglobin", unit="g/L", lower=30, upper=200),
    )
    found = suggest_mapping(features, path)
    assert [note.partition(":")[0] for note in found.still_open] == [
        *("weight", "weight", "height", "height", "hemoglobin", "hemoglobin")
    ]
    assert "to do" not in found.text.replace("marked as to do", "")
    foot, pound = 30.48, 0.45359237
    expected = [
        [82, 82, 180 * pound, 11 * 14 * pound, (12 * 14 + 4) * pound, 76.5],
        [180, 178, 180, 5 * foot + 11 * 2.54, 5 * foot + 11 * 2.54, 172],
        [135, 135, 140, 35, np.nan, 150],
    ]
    np.testing.assert_allclose(read_with(found, path, features), np.transpose(expected), rtol=1e-5)
    # Cells in the session's unit, where all bare numbers are in another one.
    hba1c = (Feature(name="hba1c", unit="%", lower=3.5, upper=18),)
    path.unlink()
    path.with_suffix(".toml").unlink()
    path = csv("utf-8", ";", {"HbA1c": ["53", "7.0%", "64"]})(tmp_path)
    read = read_with(suggest_mapping(hba1c, path), path, hba1c)[:, 0]
    np.testing.assert_allclose(read, [53 * 0.09148 + 2.152, 7, 64 * 0.09148 + 2.152], 1e-5)
    years = (Feature(name="duration", unit="years"),)
    months = csv("utf-8", ";", {"duration": ["3", "18/12", "7/10", "12/10", "nil"]})(tmp_path)
    values = '# values = { "18/12" = 1.5, "7/10" = 7.0, "nil" = 0.0 }'
    assert values in suggest_mapping(years, months).text
    # Another number may be meant of two, and a unit of something else is not converted.
    unclear = suggest_mapping(features[:1], csv("utf-8", ";", {"weight": ["120/80"] * 9})(tmp_path))
    assert "# to do: text in a number column" in unclear.text
    swiss = csv("utf-8", ";", {"height": ["180", "1'250"]})(tmp_path)
    assert "values = " not in suggest_mapping(features[1:2], swiss).text
    of_size = csv("utf-8", ";", {"weight": ["80", "180 cm", "80 kg"]})(tmp_path)
    assert '\n# missing = ["180 cm"]' in suggest_mapping(features[:1], of_size).text


def test_single_cells_with_the_other_decimal_mark_are_read_and_marked(tmp_path: Path) -> None:
    cells = ["5,1", "9.3", "7,25", "9,3", "1 250,5", "b.d.", "<0.5", "1.250"]
    path = csv("utf-8", ";", {"glucose": cells})(tmp_path)
    glucose = (Feature(name="glucose"),)
    unclear = suggest_mapping(glucose, path)
    assert "# to do: text in a number column" in unclear.text, "1.250 may be 1250"
    assert '# missing = ["b.d."]\n' in unclear.text
    path = csv("utf-8", ";", {"glucose": cells[:-1]})(tmp_path)
    found = suggest_mapping(glucose, path)
    assert 'forms = { "#" = 1.0, "<#" = 0.5 }' in found.text
    assert [note.partition(",")[0] for note in found.still_open] == [
        'glucose: "1 250',
        "glucose: text in a number column",
    ]
    read = read_with(found, path, glucose)[:, 0]
    np.testing.assert_array_equal(read, [5.1, 9.3, 7.25, 9.3, 1250.5, np.nan, 0.25])
    # A marker in the other spelling is that text alone, and no number.
    mapping = {"decimal": ",", "features": {"glucose": {"missing": ["9.3", "b.d.", "<0.5"]}}}
    (tmp_path / "two.csv").write_text("glucose;x\n" + "\n".join(f"{c};1" for c in cells[:-1]))
    marked = load(Dataset(tmp_path / "two.csv", mapping=mapping), glucose).X[:, 0]
    np.testing.assert_array_equal(marked, [5.1, np.nan, 7.25, 9.3, 1250.5, np.nan, np.nan])


def test_a_number_of_a_workbook_is_no_text_whatever_the_mark_of_its_texts_is() -> None:
    assert find_texts(["9.3", "b.d.", "9,3"], ColumnsFile(decimal=","), "x") == {"b.d.": 1}


def test_months_become_years_and_a_number_before_them_says_when(tmp_path: Path) -> None:
    duration = Feature(name="duration", unit="years", lower=0, upper=70)
    text, _ = suggested(tmp_path, duration, **{"duration__[mdr]": [12, 240, 600]})
    assert 'unit = "mdr"\nto = "years"\nfactor = 0.0833333' in text
    score = Feature(name="score_12m", unit="points")
    text, _ = suggested(tmp_path, score, Score__12__mdr=[1, 2, 3])
    assert "unit = " not in text


def test_grams_of_urea_nitrogen_are_not_grams_of_urea(tmp_path: Path) -> None:
    urea = Feature(name="urea", unit="mmol/L", lower=0, upper=80)
    for header, factor in (("BUN", "0.357015"), ("Harnstoff", "0.1665")):
        text, _ = suggested(tmp_path, urea, **{f"{header}__[mg/dl]": [20, 30, 40]})
        assert f"factor = {factor}" in text


def test_a_remark_about_yes_is_no_missing_code(tmp_path: Path) -> None:
    effect = Feature(name="effect", kind="binary")
    text, _ = suggested(tmp_path, effect, effect=["Ja", "Nej", "Ja (mild)", "uopl.", "Nej"])
    assert '# missing = ["uopl."]\n' in text
    assert '\n# "Ja (mild)" =   # 1\n' in text


def test_a_name_in_brackets_is_a_name(tmp_path: Path) -> None:
    ecog = Feature(name="ecog", kind="categorical", levels=("0", "1", "2"))
    text, marked = suggested(
        tmp_path, ecog, **{"PS__(ECOG)": ["0", "1", "2"], "op": ["0", "1", "2"]}
    )
    assert '\ncolumn = "PS (ECOG)"\n' in text
    assert marked == ""


def test_a_column_is_proposed_for_the_feature_whose_name_is_most_like_it(tmp_path: Path) -> None:
    features = (
        Feature(name="retinopathy", kind="binary"),
        Feature(name="admission_12m", kind="binary"),
        Feature(name="ethnicity", kind="categorical", levels=("white", "black", "asian")),
    )
    cells = {
        "Emerg adm 12m": ["N", "Y"] * 6,
        "Retinal screen": ["R0M0", "R1M0", "R2M1", "DNA"] * 3,
        "Eth cat": [*"ABCDEFGHIJKL"],
    }
    found = suggest_mapping(features, csv("utf-8", ";", cells)(tmp_path)).text
    proposed = {
        name: found.partition(f"[features.{name}]")[2].partition("[features.")[0]
        for name in ("retinopathy", "admission_12m", "ethnicity")
    }
    assert '# column = "Retinal screen"' in proposed["retinopathy"]
    assert "Emerg" not in proposed["retinopathy"]
    assert '# column = "Emerg adm 12m"' in proposed["admission_12m"]
    assert '# column = "Eth cat"' in proposed["ethnicity"]


def test_a_column_of_many_names_is_not_compared_code_by_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    names = [f"name {i:04}" for i in range(3_000)]
    known = column_match.meanings_of
    for module in (column_match, column_points):
        monkeypatch.setattr(module, "meanings_of", lambda *a: calls.append(a) or known(*a))
    suggest_mapping([SMOKER], csv("utf-8", ";", {"who": names, "raucher": names})(tmp_path))
    assert len(calls) < 500


@pytest.mark.parametrize(
    ("header", "said", "n"),
    [
        (["age", "crp"], 'the rows of "2023", "2024" are read, which have the same columns', 4),
        (["crp", "age"], 'only the rows of "2023" are read, and "2023", "2024" have such', 2),
    ],
)
def test_sheets_with_one_header_are_one_table(
    tmp_path: Path, header: list[str], said: str, n: int
) -> None:
    book = openpyxl.Workbook()
    book.active.title = "2023"
    for name, columns in (("2023", ["age", "crp"]), ("2024", header)):
        sheet = book[name] if name in book.sheetnames else book.create_sheet(name)
        for row in (columns, [50, 1.5], [60, 2.5]):
            sheet.append(row)
    book.save(tmp_path / "two.xlsx")
    features = Feature(name="age"), Feature(name="crp")
    found = suggest_mapping(features, tmp_path / "two.xlsx")
    assert said in "; ".join(found.still_open)
    assert len(read_with(found, tmp_path / "two.xlsx", features)) == n


def test_the_sheet_with_the_sessions_columns_is_proposed(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.append(["variable", "meaning"])
    book.active.append(["bmi", "kg/m2"])
    data = book.create_sheet("Données")
    for row in (["age", "crp"], [50, "1,5"], [60, "2,5"]):
        data.append(row)
    book.save(tmp_path / "two.xlsx")
    features = Feature(name="age"), Feature(name="crp")
    found = suggest_mapping(features, tmp_path / "two.xlsx")
    assert 'is "Données" the sheet?' in "; ".join(found.still_open)
    np.testing.assert_array_equal(
        read_with(found, tmp_path / "two.xlsx", features), [[50, 1.5], [60, 2.5]]
    )


def test_a_known_missing_code_is_taken_and_marked_another_text_is_proposed(tmp_path: Path) -> None:
    numbers = (Feature(name="age", lower=0, upper=120), Feature(name="bmi"), Feature(name="crp"))
    columns = {"age": [50, 999, 60], "bmi": ["k. A.", 22, 31], "crp": [1, 2, "odd sample"]}
    found = suggest_mapping(numbers, csv("utf-8", ";", columns)(tmp_path))
    assert [said.partition(":")[0] for said in found.still_open] == ["age", "bmi", "crp"]
    (tmp_path / "m.toml").write_text(found.text, "utf-8")
    table = Dataset(tmp_path / "table.csv", mapping=tmp_path / "m.toml")
    X = load(table, numbers[:2]).X
    np.testing.assert_array_equal(X, [[50, np.nan], [np.nan, 22], [60, 31]])
    with pytest.raises(DataError, match=r"text in a number column.*, missing = \[\.\.\.\]"):
        load(table, numbers)
    text = found.text.replace('# missing = ["odd sample"]', 'missing = ["odd sample"]')
    (tmp_path / "m.toml").write_text(text, "utf-8")
    assert np.isnan(load(table, numbers).X[2, 2])


@pytest.mark.parametrize(
    ("feature", "columns", "line"),
    [
        (LOS, {"los": [*range(1, 30), -99]}, "sentinels = [-99]"),
        (LOS, {"los": [-99, -99]}, "sentinels = [-99]"),
        (LOS, {"los": [*range(1, 30), 99]}, "# sentinels = [99]"),
        (LOS, {"los": [*range(1, 30), 99, 999]}, "# sentinels = [99, 999]"),
        (Feature(name="los"), {"los": [*range(1, 30), -99]}, "sentinels = [-99]"),
        (Feature(name="change"), {"change": [*range(30), -1, -2]}, "# sentinels = [-1, -2]"),
        (Feature(name="los", lower=0), {"los": [*range(1, 30), 999]}, "# sentinels = [999]"),
        (Feature(name="los", lower=0), {"los": [*range(1, 30), -9]}, "sentinels = [-9]"),
        # It may be a value in the unit of the column, if that is none of the session's.
        (CREATININE, {"creatinine": [*range(60, 150), 999]}, "# sentinels = [999]"),
        (CREATININE, {"creatinine__(U/l)": [1, 1, 2, 3, 2, 999]}, "# sentinels = [999]"),
        (CREATININE, {"creatinine__(µmol/l)": [*range(60, 150), 9999]}, "sentinels = [9999]"),
        (CREATININE, {"creatinine__(µmol/l)": [*range(60, 150), 999]}, "# sentinels = [999]"),
        (LOS, {"los": [*range(30), "k. A."]}, 'missing = ["k. A."]'),
        (LOS, {"los": [*range(30), "home"]}, '# missing = ["home"]'),
        (LOS, {"los": [*range(30), "k. A.", "home"]}, '# missing = ["k. A.", "home"]'),
        (SMOKER, {"smoker": ["ja", "nein", "k. A."]}, 'missing = ["k. A."]'),
        (SMOKER, {"smoker": [0, 1, 9]}, '# missing = ["9"]'),
    ],
)
def test_a_missing_code_is_taken_only_if_it_cannot_be_a_value(
    feature: Feature, columns: dict[str, Any], line: str, tmp_path: Path
) -> None:
    text, marked = suggested(tmp_path, feature, **columns)
    assert line in text.splitlines()
    assert marked


@pytest.mark.parametrize(
    ("feature", "columns", "line"),
    [
        # A name that is similar; a unit; codes of a sex or of persons who died: taken, and marked.
        (Feature(name="colostomy", kind="binary"), {"Kolostoma": ["j", "n"]}, 'column = "Kolost'),
        (Feature(name="citrate", unit="mmol/l"), {"Zitr mmol/l": [1, 2]}, 'column = "Zitr'),
        (
            Feature(name="myoglobin", unit="µg/l", lower=10, upper=100),
            {"Mb mg/l": [0.02, 0.09]},
            'column = "Mb mg/l"',
        ),
        (FEMALE, {"m/w/d": ["m", "w", "d"]}, 'column = "m/w/d"'),
        (DIED.columns[0], {"Alta": ["Falecido", "Domicílio"]}, 'column = "Alta"'),
        # Of a yes/no column that has another name nothing says that it is this one.
        (Feature(name="colostomy", kind="binary"), {"ASS": ["j", "n"]}, '# column = "ASS"'),
        (
            Feature(name="colostomy", kind="binary"),
            {"ASS": ["j", "n"], "OAK": ["ja", "nein"]},
            '# column = "ASS"  # "j" 1, "n" 1\n# column = "OAK"',
        ),
        (Feature(name="colostomy", kind="binary"), {"ASS": ["j", "x"]}, '# column = "NAME HERE"'),
        (
            Feature(name="citrate", unit="mmol/l"),
            {"Zitr mmol/l": [1, 2], "Ca mmol/l": [2, 3]},
            '# column = "Zitr mmol/l"  # "1" 1, "2" 1\n# column = "Ca mmol/l"',
        ),
        (Feature(name="citrate", unit="mmol/l", upper=9), {"Glukose mmol/l": [4, 99]}, "may it"),
    ],
)
def test_a_column_of_another_name_is_found_by_its_values(
    feature: Feature, columns: dict[str, Any], line: str, tmp_path: Path
) -> None:
    text, marked = suggested(tmp_path, feature, **columns)
    assert line in text
    assert "no column here is called like it" in marked


def test_codes_of_several_proposed_columns_are_not_mixed(tmp_path: Path) -> None:
    side = Feature(name="side", kind="categorical", levels=("left", "right"))
    columns = {"a": ["P", "L", "P"], "b": ["Q", "R", "Q"]}
    text, _ = suggested(tmp_path, side, **columns)
    assert '# column = "a"  # "P" 2, "L" 1\n# column = "b"  # "Q" 2, "R" 1\n# its levels' in text
    assert '# "P" =' not in text
    one, _ = suggested(tmp_path, side, a=["P", "L", "P"])
    assert '# "P" =   # 2' in one


def test_who_is_not_dead_is_alive_only_where_no_code_says_alive(tmp_path: Path) -> None:
    died = DIED.columns[0]
    text, marked = suggested(tmp_path, died, exit=["Died", "Home", "-9"])
    assert (
        '\n# missing = ["-9"]\n[features.died.levels]\n"Died" = 1  # 1\n"Home" = 0  # 1\n' in text
    )
    assert '"Home" 1, "-9" 1' in marked
    text, _ = suggested(tmp_path, died, exit=["Died", "Alive", "Lost"])
    assert '\n# missing = ["Lost"]' in text, "both levels have a code"


def test_a_unit_that_is_not_known_is_not_read(tmp_path: Path) -> None:
    path = csv("utf-8", ";", {"creatinine (U/l)": [1, 2]})(tmp_path)
    with pytest.raises(DataError, match="say factor, offset and to"):
        read_with(suggest_mapping([CREATININE], path), path, [CREATININE])


@pytest.mark.parametrize(
    ("feature", "header", "value", "wanted"),
    [
        (TSH, "TSH (µIU/ml)", 1.5, 1.5),
        (TEMP, "TEMP_F", 98.6, 37),
        (Feature(name="temp", unit="C"), "Temp. °F", 98.6, 37),
        (Feature(name="temp", unit="C"), "Temp (K)", 310.15, 37),
        (Feature(name="wbc", unit="10^9/l"), "Leukos /µl", 7500, 7.5),
        (AGE, "Alter (J.)", 61, 61),
        (Feature(name="hb", unit="g/dl"), "Hb (mmol/l)", 8.5, 13.7),
        (Feature(name="nt_probnp", unit="pg/ml"), "NT-proBNP [pmol/l]", 100, 845.7),
        (Feature(name="ldl", unit="mg/dl"), "LDL-Cholesterin (mmol/l)", 3, 116),
        (Feature(name="hba1c", unit="%"), "HbA1c (mmol/mol)", 53, 7.0),
        (Feature(name="hba1c", unit="mmol/mol"), "HbA1c (%)", 7, 53),
        (Feature(name="hba1c", unit="mmol/mol"), "HbA1c%", 7, 53),
        (Feature(name="wbc", unit="10^9/l"), "Leukozyten (Tsd./µl)", 7.5, 7.5),
        (Feature(name="wblc", unit="/µl"), "Leukozyten (10⁹/l)", 7.5, 7500),
        (Feature(name="wbc", unit="10³/µl"), "Leukozyten (G/l)", 7.5, 7.5),
        (Feature(name="hb", unit="g/dl"), "Hb (g/l)", 140, 14),
        (Feature(name="resp", unit="/min"), "Atemfrequenz (1/min)", 16, 16),
        (Feature(name="los", unit="days"), "Verweildauer (Std.)", 48, 2),
        (Feature(name="alt", unit="U/l"), "alt (kU/l)", 0.03, 30),
    ],
)
def test_a_unit_in_the_header_is_converted(
    feature: Feature, header: str, value: float, wanted: float, tmp_path: Path
) -> None:
    path = csv("utf-8", ";", {header: [value, value]})(tmp_path)
    read = read_with(suggest_mapping([feature], path), path, [feature])
    np.testing.assert_allclose(read, wanted, rtol=1e-3)


CREA = Trajectory(
    name="crea", kind="trajectory", unit="mg/dl", time_unit="days", lower=0.1, upper=20,
    grid=(0, 1, 3), window=1,
)  # fmt: skip


def visits(**columns: Any) -> pd.DataFrame:
    """Return four values of each of ten patients, twelve hours apart."""
    hours, rows = np.tile([0, 12, 36, 72], 10), np.arange(40)
    named = {"lfd": rows, "Pat-Nr": rows // 4, "Zeit (Std.)": hours, "Krea (µmol/l)": 100 + rows}
    return pd.DataFrame({**named, **columns})


def test_rows_of_values_get_the_columns_of_person_and_time_and_their_units(tmp_path: Path) -> None:
    table = visits(Alter=50)
    table.to_csv(tmp_path / "t.csv", sep=";", index=False)
    found = suggest_mapping([AGE, CREA], tmp_path / "t.csv")
    assert found.still_open == ()
    assert found.unused == ("lfd",)
    assert "# give person= (--person-column) too" in found.text
    own = read_with(found, tmp_path / "t.csv", clustered([AGE, CREA])).reshape(10, 4, 4)
    mg = (100 + np.arange(40)).reshape(10, 4) * 0.01131
    day_one = (mg[:, 1] + mg[:, 2]) / 2
    wanted = np.stack([np.full(10, 50), mg[:, 0], day_one, mg[:, 3]], axis=1)
    np.testing.assert_allclose(own, np.repeat(wanted[:, None], 4, axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("columns", "dropped", "says"),
    [
        ({"Zeit (Std.)": "2024-01-05"}, (), "its times: a date or time; they are numbers"),
        ({"Tag": 1}, (), 'the time may be "Tag" too'),
        ({"Tag": 900}, ("Zeit (Std.)",), "no time lies near the grid"),
        ({"visit": 1}, ("Zeit (Std.)",), 'in which unit are its times, for "days"?'),
        ({}, ("Zeit (Std.)",), "which column is the time?"),
        ({}, ("Pat-Nr",), "which column is the person?"),
        ({"fall_des_monats": 1}, ("Pat-Nr",), ""),
        ({"naechster_patient": 1}, ("Pat-Nr",), 'is "naechster_patient" the person?'),
        ({"wert": 1.0}, ("Krea (µmol/l)",), "is every value in it of this measurement?"),
        ({"crea": 9999}, ("Krea (µmol/l)",), '"9999" 40'),
    ],
)
def test_what_is_uncertain_of_rows_of_values_is_marked(
    columns: dict[str, Any], dropped: Sequence[str], says: str, tmp_path: Path
) -> None:
    visits(**columns).drop(columns=[*dropped]).to_csv(tmp_path / "t.csv", index=False)
    found = suggest_mapping([CREA], tmp_path / "t.csv")
    assert says in "; ".join(found.still_open)
    assert bool(says) == bool(found.still_open)


def test_a_table_with_the_columns_of_a_trajectory_needs_no_person_or_time() -> None:
    found = suggest_mapping([CREA], pd.DataFrame({"crea@0": [9.0], "crea 1": [9.0], "CREA@3": 9.0}))
    assert found.columns == {"crea@0": "crea@0", "crea@1": "crea 1", "crea@3": "CREA@3"}
    assert found.still_open == ()


def test_a_row_of_units_below_the_header_of_a_csv_file_is_part_of_it(tmp_path: Path) -> None:
    path = csv(
        "utf-8",
        ";",
        {"Alter": ["Jahre", 40, 50], "Krea": ["µmol/l", 190, 199], "pain": ["", "none", "typical"]},
    )(tmp_path)
    found = suggest_mapping([AGE, CREATININE, PAIN], path)
    names = '"Alter [Jahre]", "Krea [µmol/l]", "pain"'
    said = f"the header has two rows or gaps: are the columns' names {names}?"
    assert found.still_open == (said,)
    read = read_with(found, path, [AGE, CREATININE])
    np.testing.assert_allclose(read, [[40, 190 * 0.01131], [50, 199 * 0.01131]], rtol=1e-3)


def test_a_name_in_a_cell_that_is_merged_with_the_one_above_is_kept(tmp_path: Path) -> None:
    rows = [["Export", "", ""], ["Patient", "", "Remark"], ["Alter", "Taille (cm)", ""]]
    rows += [[40 + i, 150 + i, "a"] for i in range(12)]
    pd.DataFrame(rows).to_excel(tmp_path / "t.xlsx", index=False, header=False)
    waist = Feature(name="waist", unit="cm", lower=50, upper=200)
    found = suggest_mapping([AGE, waist], tmp_path / "t.xlsx")
    assert "Remark" in found.table.header
    assert found.sections["waist"].match is None, "a height is no waist, whatever its values are"


@pytest.mark.parametrize(
    "title", ["Export ICU\n\n", "Export, of 2026;;\nof;12.11.2026;\n", "sep=;\nE\n"]
)
def test_lines_above_the_header_of_a_csv_file_are_named_and_skipped(
    title: str, tmp_path: Path
) -> None:
    columns, features = {"Alter": comma([40.5, 50.5]), "crp": [1, 2]}, [AGE, Feature(name="crp")]
    path = csv("utf-8", ";", columns | {"x": "ab"}, title)(tmp_path)
    found = suggest_mapping(features, path)
    above = "line 2 is" if title.startswith("sep") else "lines 1 to 2 are"
    said = f"{above} taken as a title, and line 3 as the header: are the columns' names"
    assert [note.partition(' "Alter"')[0] for note in found.still_open] == [said]
    assert "\nheader_row = 3\n" in found.text
    assert read_with(found, path, features).tolist() == [[40.5, 1], [50.5, 2]]


def test_a_line_that_is_named_as_the_header_is_below_the_end_of_the_file(tmp_path: Path) -> None:
    path = csv("utf-8", ";", {"age": [40, 50]})(tmp_path)
    assert load(Dataset(path, header_row=1), [AGE]).X.tolist() == [[40], [50]]
    named = Dataset(path, header_row=1, columns=["age"])
    assert load(named, [AGE]).X.tolist() == [[40], [50]]
    with pytest.raises(DataError, match="line 9: the file ends above this line"):
        load(Dataset(path, header_row=9), [AGE])


def test_an_encoding_that_lacks_a_byte_is_not_chosen(tmp_path: Path) -> None:
    # cp1252 lacks the byte of ť, and cp1250 that of ƒ.
    for encoding, letter in (("cp1250", "ť"), ("cp1252", "ƒ")):
        path = csv(
            encoding, ";", {"Płeć" if letter == "ť" else "sexe": ["M", "K"], "n": [letter] * 2}
        )
        assert f'\nencoding = "{encoding}"\n' in suggest_mapping([FEMALE], path(tmp_path)).text


def test_sentinels_that_were_given_are_written_and_not_proposed_again(tmp_path: Path) -> None:
    path = csv("utf-8", ";", {"los": [*range(60), 0, -1, 9999]})(tmp_path)
    found = suggest_mapping([LOS], Dataset(path, sentinels={"los": [-1, 0]}))
    assert "\nsentinels = [-1.0, 0.0]\n" in found.text
    assert "# sentinels = [-1.0, 0.0, 9999]" in found.text
    assert np.isnan(read_with(found, path, [LOS])).sum() == 3


@pytest.mark.parametrize(
    ("header", "marked"), [(["los", None], True), (["age", None, "los"], False)]
)
def test_a_column_without_a_name_is_called_by_its_letter(
    header: list[str | None], marked: bool, tmp_path: Path
) -> None:
    width = len(header)
    path = sheet(header, [1, 2, 3][:width], [4, 5, 6][:width])(tmp_path)
    found = suggest_mapping([LOS], path)
    assert ("the column to its right has no name" in found.text) == marked
    assert "column B" in found.unused
    read = read_with(found, path, [LOS])
    assert read[:, 0].tolist() == ([1, 4] if marked else [3, 6])


def test_other_sources_and_options(tmp_path: Path) -> None:
    frame = CLEAN.rename(columns={"age": "Alter"}).assign(day=DAYS.to_numpy())
    found = suggest_mapping(DECLARED, frame)
    assert (found.columns["age"], found.unused, found.still_open) == ("Alter", ("day",), ())
    assert "SECRET" not in repr(suggest_mapping([AGE], pd.DataFrame({"age": ["SECRET"]})))
    path = csv("utf-8", ";", {"age": ["40,5", "50"]})(tmp_path)
    text = suggest_mapping([AGE], Dataset(path, missing=["?"], decimal=".")).text
    assert 'missing = ["?"]' in text
    assert 'decimal = ","' not in text


def test_what_no_mapping_can_be_suggested_for(tmp_path: Path) -> None:
    path = csv("utf-8", ";", {"age": [40]})(tmp_path)
    with pytest.raises(UsageError, match="leave out the mapping"):
        suggest_mapping([AGE], Dataset(path, mapping={}))
    with pytest.raises(UsageError, match="have names"):
        suggest_mapping([AGE], np.ones((2, 1)))
    rows = csv("utf-8", ";", {"40": [41, 42], "1": [1, 2]})(tmp_path)
    with pytest.raises(DataError, match="its first row holds numbers or dates"):
        suggest_mapping([AGE], rows)


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    found = suggest_mapping([AGE], CLEAN)
    found.write(tmp_path / "m.toml")
    with pytest.raises(UsageError, match="exists: use it"):
        found.write(tmp_path / "m.toml")
    assert (tmp_path / "m.toml").read_text("utf-8") == found.text


def test_marks_that_separate_thousands_are_read_and_marked(tmp_path: Path) -> None:
    columns = {"age": ["50,5", "61,5", "70"], "ige": ["1.250", "12.345,5", "99"]}
    path = csv("utf-8", ";", columns)(tmp_path)
    features = Feature(name="age"), Feature(name="ige")
    found = suggest_mapping(features, path)
    assert "thousands = true" in found.text
    assert found.still_open == ('does "." separate thousands, as in 1.250?',)
    assert read_with(found, path, features).tolist() == [[50.5, 1250], [61.5, 12345.5], [70, 99]]
    # A mark that is no separator in one cell is none.
    assert "thousands" not in suggested(tmp_path, features[0], **columns, x=["1.5", "2,5", "3"])[0]


def test_one_letter_of_a_word_that_is_there_is_a_code_and_another_span_is_no_column(
    tmp_path: Path,
) -> None:
    polyps = Feature(name="polyps", kind="binary")
    text, _ = suggested(tmp_path, polyps, polyps=["Sim", "Não", "S", "N"])
    assert '"S" = 1' in text
    died = Feature(name="death_1y", kind="binary")
    text, _ = suggested(tmp_path, died, **{"30d mort": ["Y", "N", "N"]})
    assert "30d mort" not in text.partition("[features")[2]


def test_a_unit_is_taken_and_marked_if_no_value_can_be_in_that_of_the_session(
    tmp_path: Path,
) -> None:
    hb = Feature(name="haemoglobin", unit="g/L", lower=40, upper=230)
    path = csv("utf-8", ";", {"Hb": [12.5, 15.5, 9.5]})(tmp_path)
    found = suggest_mapping([hb], path)
    assert "3 of 3 values lie outside the bounds" in found.still_open[0]
    assert read_with(found, path, [hb]).tolist() == [[125], [155], [95]]
    # These may be in mmol/l too, and 95 in the session's unit.
    assert "\nfactor" not in suggested(tmp_path, hb, Hb=[12.5, 13.5])[0]
    assert "\nfactor" not in suggested(tmp_path, hb, Hb=[12.5, 13.5, 95])[0]
