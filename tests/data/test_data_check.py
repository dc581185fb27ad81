"""`fedclust check`: what it finds, that it agrees with taking part, and that nothing is sent."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust.cli.agent import AgentEntries
from fedclust.cli.row_check import NoTable, RowCheck
from fedclust.data import Dataset, DataWarning, load, persons
from fedclust.data.outcome_rows import Staying
from fedclust.data.profile import profile
from fedclust.schema.feature import Feature
from fedclust.site.state import SiteState
from fedclust.wire.errors import DataError
from support.command_line import CommandLine, at_desk
from support.definitions import session_body, session_file, session_request
from support.fake_coordinator import FakeCoordinator

HEART = Path(__file__).resolve().parents[3] / "shared" / "data" / "heart_disease"
NAMES = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
NAMES += ["slope", "ca", "thal", "num"]
AGE = Feature(name="age", unit="years", lower=0.0, upper=120.0)
CHOL = Feature(name="chol", unit="mg/dl", lower=50.0, upper=700.0)
SEX = Feature(name="sex", kind="binary")
CP = Feature(name="cp", kind="categorical", levels=("1", "2", "3", "4"))
RNG = np.random.default_rng(8)


def column(values: Any, feature: Feature, **options: Any) -> Any:
    found = profile(Dataset(pd.DataFrame({feature.name: values}), **options), (feature,))
    return found.columns[0]


def test_the_figures_are_those_of_all_rows() -> None:
    values = np.where(RNG.random(150_000) < 0.3, np.nan, RNG.normal(1e6, 1.0, 150_000))
    found = column(values, Feature(name="x"))
    given = values[~np.isnan(values)]
    assert (found.n, found.state) == (len(given), "ok")
    assert found.present == len(given) / len(values)
    assert (found.minimum, found.maximum) == (given.min(), given.max())
    assert found.mean == pytest.approx(given.mean(), rel=1e-12)
    assert found.sd == pytest.approx(given.std(), rel=1e-9)
    assert column([1, 0, 1, None], SEX).levels == {"0": 1, "1": 2}
    assert column(["1", "4", None, "4"], CP).levels == {"1": 1, "2": 0, "3": 0, "4": 2}


def test_a_wrong_unit_is_recognised_by_the_factor_that_fits() -> None:
    mmol = RNG.normal(5.5, 1.0, 80).clip(3, 9)
    found = column(np.append(mmol, 200.0), CHOL)
    assert (found.state, found.below, found.above) == ("warning", 80, 0)
    assert any("The values would fit in mmol/l or" in text for text in found.says)
    assert not any("0.1 " in text for text in found.says)
    # Some wrong values are no wrong unit.
    few = column([100.0, 200, 210, 4, 5], CHOL)
    assert not any("They would fit" in text for text in few.says)
    assert any('\nto = "mg/dl"\nfactor = 38.67' in text for text in found.says)
    # Moles come first, and no factor is of another measure, such as of years and days.
    creatinine = Feature(name="creatinine", unit="mg/dl", lower=0.1, upper=20.0)
    found = column(RNG.uniform(50.0, 300.0, 80), creatinine)
    assert any("The values would fit in umol/l:" in text for text in found.says)
    wide = Feature(name="chol", unit="mg/dl", lower=0.0, upper=700.0)
    wbc = Feature(name="wbc", unit="10^9/l", lower=0, upper=200)
    (said,) = column(RNG.uniform(4000.0, 20_000.0, 80), wbc).says[1:]
    assert "The values would fit in /ul:\n" in said
    celsius = Feature(name="temp", unit="C", lower=30, upper=43)
    assert "factor = 0.555556\noffset = -17.7778" in column([97.0, 99, 101], celsius).says[1]
    assert any("twentieth" in text for text in column(mmol, wide).says)
    assert column(mmol * 38.67, wide).says == ()


@pytest.mark.parametrize(
    ("values", "feature", "says"),
    [
        (RNG.permutation(np.arange(1000, 9000, 7))[:50], Feature(name="x"), "identifiers"),
        ([7.0, 7.0, 7.0], Feature(name="x"), "the same"),
        ([1, 1, None], SEX, "the same"),
        (["3", "3"], CP, "the same"),
        ([1.5, None, None], Feature(name="x"), "67% of its values are missing"),
        ([None, None], Feature(name="x"), "100% of its values are missing"),
    ],
)
def test_probable_mistakes_are_described(values: Any, feature: Feature, says: str) -> None:
    found = column(values, feature)
    assert found.state == "warning"
    assert says in " ".join(found.says)


def test_all_faults_are_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(
        "age,sex,cp,note\n40,1,1,a\n130,3,1,a\nSECRET,0,7,a\n-4,0,8,a\n", "utf-8"
    )
    found = profile(tmp_path / "x.csv", (AGE, SEX, CP, CHOL))
    assert found.refused is not None
    assert "SECRET" not in repr(found)
    states = {each.feature: (each.state, len(each.says)) for each in found.columns}
    assert states == {
        "age": ("refused", 2),
        "sex": ("warning", 1),
        "cp": ("warning", 2),
        "chol": ("refused", 1),
    }
    age = found.columns[0]
    assert (age.below, age.above, found.ignored) == (1, 1, ("note",))
    text = pd.DataFrame({"age": list("abc")}).astype(object)
    assert not any("missing" in said for said in profile(text, (AGE,)).columns[0].says)
    assert [re.split("[:.]", text)[0] for text in age.says] == [
        "line 4",
        "2 values outside the session's bounds (0 to 120 years)",
    ]


MASKED = {"min_present": 0.7, "sentinels": {"chol": 0}, "missing": "?", "columns": NAMES}
SESSIONS: tuple[tuple[Any, bool], ...] = (
    ({}, False),
    ({"columns": NAMES}, False),
    ({"columns": NAMES, "missing": "?"}, False),
    ({**MASKED, "min_present": 0.0}, False),
    (MASKED, True),
    (MASKED, False),
)


@pytest.mark.skipif(not HEART.is_dir(), reason="needs the heart-disease files")
@pytest.mark.parametrize("hospital", ["cleveland", "hungarian", "switzerland", "va"])
def test_check_refuses_what_taking_part_would(hospital: str) -> None:
    path = HEART / f"processed.{hospital}.data"
    thal = Feature(name="thal", kind="categorical", levels=("3", "6", "7"))
    for how, lacking in SESSIONS:
        dataset, features = Dataset(path, **how), (AGE, SEX, CP, CHOL, thal)
        found = profile(dataset, features, lacking=lacking)
        refused, table = None, None
        try:
            table = load(dataset, features, lacking=lacking)
        except DataError as error:
            refused = str(error)
        assert (found.refused and str(found.refused)) == refused
        if table is not None:
            held = [c.feature for c in found.columns if c.state in ("ok", "warning")]
            assert held == list(table.features)


# --- the command ----------------------------------------------------------------------------------

FEATURES = (
    {"name": "age", "unit": "years", "lower": 0, "upper": 120},
    {"name": "chol", "unit": "mg/dl", "lower": 50, "upper": 700},
)
ASKED: dict[str, Any] = {"algorithm": "lloyd", "config": {"n_clusters": 3}}
DEFINITION = session_body(*FEATURES, **ASKED)


class Office(CommandLine):
    """A data manager's desk: files, and the command."""

    def open(self) -> None:
        path = self.place
        n = 60
        rows = pd.DataFrame({"id": range(n), "alter": RNG.integers(30, 80, n) + 0.5})
        rows["chol_mmol"] = RNG.normal(5.5, 1, n).clip(3, 9)
        rows.to_csv(path / "cohort.csv", index=False, sep=";", decimal=",", encoding="cp1252")
        (path / "columns.toml").write_text(
            'decimal = ","\n[features.age]\ncolumn = "alter"\n[features.chol]\n'
            'column = "chol_mmol"\nfactor = 38.67\nto = "mg/dl"\n',
            "utf-8",
        )
        others = {s: RNG.normal((55, 210), (9, 30), (50, 2)).clip(50, 119) for s in ("a", "b")}
        self.fake = FakeCoordinator(others, features=FEATURES)
        self._patch.setenv("FEDCLUST_STATE_DIR", str(path / "state"))
        self.reach(self.fake, path / "state")
        self.data = ("--data", str(path / "cohort.csv"))
        self.mapping = ("--mapping", str(path / "columns.toml"))


office = at_desk(Office)


def test_the_command_before_joining(office: Office) -> None:
    assert office.run("check", "heart", *office.data, *office.mapping, "--full") == 0, office.err
    assert "\nleaves " in office.err
    assert office.run("check", "heart", *office.data, *office.mapping) == 0, office.err
    assert "\nleaves " not in office.err
    assert "Nothing is left to do." in office.out
    text = " ".join(office.out.split())
    assert "all 2 features, 60 rows" in text
    assert "chol_mmol" in text
    assert "sends nothing" in text
    assert office.run("check", "heart", *office.data, *office.mapping, "--json") == 0
    facts = json.loads(office.out)
    assert facts["refused"] is None
    assert facts["definition_sha256"] == office.fake.sha256
    assert (facts["usable_rows"], facts["ignored_columns"]) == (60, ["id"])
    assert facts["columns"][1]["minimum"] > 100
    few = ("--json", "--min-group-size", "70")
    assert office.run("check", "heart", *office.data, *office.mapping, *few) == 3
    facts = json.loads(office.out)
    assert (facts["rows"], facts["usable_rows"], facts["enough_rows"]) == (60, 0, False)
    assert (facts["min_group_size"], facts["table"]) == (70, None)
    assert all(request.startswith("GET") for request in office.fake.requests)


def test_the_command_where_taking_part_would_be_refused(office: Office) -> None:
    assert office.run("check", "heart", *office.data, "--json") == 3
    assert json.loads(office.out)["refused"]["rule"] == "missing-column"
    (office.place / "cohort.csv").write_text("age,chol\n" + 9 * "40,5.2\n50,4.9\n", "utf-8")
    assert "38.67" in office.ran("check", "heart", *office.data, code=3).out
    assert "outside the session's bounds" in office.err
    assert office.run("check", "heart", *office.data, "--person-column", "id") == 3
    assert all(request.startswith("GET") for request in office.fake.requests)


@pytest.mark.parametrize("name", ["none.csv", "broken.parquet", "none.sql", "table.xlsx"])
def test_an_unreadable_file_is_reported_to_scripts(name: str, office: Office) -> None:
    if name.startswith("broken"):
        (office.place / name).write_bytes(b"PAR1 and no more")
    assert office.run("check", "heart", "--data", str(office.place / name), "--json") == 3
    facts = json.loads(office.out)
    assert facts["refused"]["rule"] in ("unreadable", "parquet", "sql", "spreadsheet")
    assert facts["refused"]["message"] in " ".join(office.err.split())
    assert facts["rows"] is facts["usable_rows"] is None
    assert facts["columns"] == []


def test_out_of_core_without_protection_is_refused_by_the_command(office: Office) -> None:
    file = office.place / "heart.json"
    given = ("--definition", str(file), *office.data, *office.mapping, "--json", "--out-of-core")
    session_file(file, *FEATURES, **ASKED)
    assert office.run("check", *given) == 0, office.err
    session_file(file, *FEATURES, **ASKED, policy={"protection": "none"})
    assert json.loads(office.ran("check", *given, code=3).out)["refused"]["rule"] == "out-of-core"


def test_the_command_without_a_coordinator(office: Office) -> None:
    body = DEFINITION
    file = office.place / "heart.json"
    for tree in (body, {"state": "recruiting", "definition": {**body, "method_version": 1}}):
        file.write_text(json.dumps(tree), "utf-8")
        given = ("--definition", str(file), *office.data)
        assert office.run("check", *given, *office.mapping, "--json") == 0, office.err
        facts = json.loads(office.out)
        assert (facts["usable_rows"], facts["table"]["n_persons"]) == (60, 60)
        assert office.run("check", *given) == 3
        assert office.run("check", *given, *office.mapping, "--sentinel", "chol=x") == 2
    assert office.fake.requests == []
    assert office.run("check", "heart", *given) == 2
    assert office.run("check", *office.data) == 2
    for bad in ("{", "[]", '{"name": "heart"}', json.dumps({**body, "sites": ["a"]})):
        file.write_text(bad, "utf-8")
        assert str(file) in office.ran("check", *given, code=2).err


def test_the_command_writes_a_mapping_and_checks_with_it(office: Office) -> None:
    mapping = office.place / "suggested.toml"
    write = ("--write-mapping", str(mapping))
    rows = office.place / "cohort.csv"
    text = rows.read_text("cp1252").replace("chol_mmol", "Cholesterin (mmol/l)")
    rows.write_text(text, "cp1252")
    assert office.run("check", "heart", *office.data, *write) == 0, office.err
    assert "suggested.toml: the mapping" in office.err
    assert "all 2 features, 60 rows" in office.out
    assert office.run("check", "heart", *office.data, "--mapping", str(mapping)) == 0
    assert "columns that are not used (1): id" in office.out
    assert "Nothing is left to do." in office.out
    added = " ".join(office.data[:2])
    assert f"next: fedclust data add heart {added} " in office.out
    assert "\nthen: fedclust review heart --data @heart --out review.html\n" in office.out
    assert (
        "\nor:   fedclust participate heart --data @heart --labels-out labels.csv\n" in office.out
    )
    office.ran("data", "add", "hearts", *office.data, "--mapping", str(mapping))
    office.ran("check", "heart", "--data", "@hearts")
    assert "fedclust data add" not in office.out
    assert "next: fedclust review heart --data @hearts --out review.html" in office.out
    with mapping.open("a", encoding="utf-8") as file:
        file.write("# uncertain: a\n# uncertain: b\n")
    office.ran("check", "heart", *office.data, "--mapping", str(mapping))
    said = " ".join(office.out.split())
    assert (
        "Nothing is left to do if you have looked at what is uncertain in the mapping file (2)"
        in said
    )
    written = mapping.read_bytes()
    again = office.ran("check", "heart", *office.data, *write, code=2).err
    assert "suggested.toml exists: use it" in again
    assert mapping.read_bytes() == written
    assert office.run("check", "--study", "s", *office.data, *write) == 2
    other = ("--write-mapping", str(office.place / "other.toml"))
    assert office.run("check", "heart", *office.data, *office.mapping, *other) == 2
    assert "leave out the mapping" in office.err


def test_what_is_still_to_do_is_listed(office: Office) -> None:
    smoker = {"name": "smoker", "kind": "binary"}
    chest = {"name": "pain", "kind": "categorical", "levels": ["typical", "none"]}
    flow = {"name": "flow", "unit": "l/min", "lower": 0, "upper": 9}
    file = session_file(
        office.place / "heart.json",
        FEATURES[0],
        "age2",
        flow,
        smoker,
        {**smoker, "name": "sex"},
        chest,
        contact="Ada",
    )
    codes = ["w;vielleicht;typical", "M;ja;Sharp", "m;nein;typical", "w;ja;Sharp"]
    lines = "".join(f"{50 + i % 9};{i % 4};{codes[i % 4]};{i};x{i}\n" for i in range(20))
    table = f"alter;Flow (gal/s);Geschlecht;smoker;pain;no;note\n{lines}"
    (office.place / "cohort.csv").write_text(table, "utf-8")
    mapping = office.place / "suggested.toml"
    check = ("check", "--definition", file, *office.data)
    written = office.ran(*check, "--write-mapping", str(mapping), code=3)
    assert '5 lines marked "to do", ' in written.err
    assert written.out == ""  # the file says it all
    suggested = mapping.read_text("utf-8")
    assert 'no column here is called like it; may it be "no"?' in suggested
    assert '# to do: the header says "gal/s", and the session "l/min"' in suggested
    sex = '# levels = { "w" = 1, "M" = 0, "m" = 0 }  # 1 = female'
    assert f'{sex}\n# levels = {{ "w" = 0, "M" = 1, "m" = 1 }}  # 1 = male\n' in suggested
    asked = office.ran(*check, "--mapping", str(mapping), code=3)
    # Only what is open, then a list; the refusal repeats none of it.
    assert "alter" not in asked.out
    todo = asked.out.partition("Still to do in the mapping file:")[2]
    text = " ".join(todo.split())
    assert re.findall(r"\b(\d+)\. ([\w ]+)", text)[:5] == [
        ("1", "age2"), ("2", "flow"), ("3", "smoker"), ("4", "sex"), ("5", "pain")
    ]  # fmt: skip
    assert "it gives 'gal/s' and the session's" in text
    # "ja" is in the file.
    said = 'not read: "vielleicht" 5; say below [features.smoker] what each means (levels, missing)'
    assert f"3. smoker: {said} 4. sex" in text
    # Of a smoker yes and no are known.
    assert re.findall(r"\d\. (\w+): [^]]*\] [^;]*; ask Ada what 1 means", text) == ["sex"]
    assert office.err.count("\n") == 1
    assert "this site could not take part yet: edit the mapping file" in office.err
    assert "ask Ada" not in office.ran(*check, code=3).out
    # What a person accepts is read.
    mapping.write_text(suggested.replace(sex, sex[2:]), "utf-8")
    plain, office.out = office.out, office.ran(*check, "--mapping", str(mapping), code=3).out
    assert "sex" not in office.out
    assert "--ask makes" not in office.out
    assert "--ask makes" in plain
    assert office.run(*check, "--mapping", str(mapping), "--json") == 3
    found = {each["feature"]: each["levels"] for each in json.loads(office.out)["columns"]}
    assert found["sex"] == {"0": 10, "1": 10}
    for code in ("Sharp", "vielleicht", '"w"'):
        assert code not in office.out + office.err


def test_what_may_say_the_opposite_is_named_until_levels_decide(office: Office) -> None:
    """Accepted as the column of deaths, "Survived" would give the share of survivors."""
    died = {"name": "died", "kind": "binary"}
    # Of 1 and 2 the 1 may mean no.
    file = session_file(office.place / "s.json", FEATURES[0], died, {**died, "name": "mi"})
    rows = "".join(f"{50 + i % 9},{'yn'[i % 2]},{1 + i % 2}\n" for i in range(20))
    (office.place / "cohort.csv").write_text(f"age,Survived,mi\n{rows}", "utf-8")
    said = "'Survived' may say the opposite of 'died'"
    for levels in ("", 'levels = { "y" = 0, "n" = 1 }\n'):
        own = f'[features.died]\ncolumn = "Survived"\n{levels}'
        (office.place / "columns.toml").write_text(own, "utf-8")
        check = ("check", "--definition", file, *office.data, *office.mapping)
        out = office.ran(*check, code=3).out
        assert (said in " ".join(out.split())) == (not levels)
        assert 'mi: all its values are the same; not read: "1" 10, "2" 10; say' in out
    # Codes that need no levels are read, with a warning.
    rows = pd.DataFrame({"Survived": [0, 1] * 9})
    table = Dataset(rows, mapping={"features": {"died": {"column": "Survived"}}})
    with pytest.warns(DataWarning, match="may say the opposite"):
        persons.read_persons(table, [Feature(name="died", kind="binary")])


def test_texts_in_numbers_are_listed(office: Office) -> None:
    cells = [*["<5"] * 3, *["lysed"] * 2, "NA", "old", "2020-01-02T03:04", "1.234.5"]
    cells += ["1e2"] * 8
    table = "".join(f"{40 + i},{cell}\n" for i, cell in enumerate(cells))
    (office.place / "cohort.csv").write_text(f"age,chol\n{table}", "utf-8")
    own = '[features.chol]  # uncertain: a\nmissing = ["old"]\n'
    (office.place / "columns.toml").write_text(own, "utf-8")
    out = office.ran("check", "heart", *office.data, *office.mapping, code=3).out
    text = " ".join(out.split())
    assert "chol [mg/dl] chol refused 23.5% + 29.4% open 100 100 100" in text
    assert "1. chol: line 9: a date or time" in text
    assert "; line 10: text in a number column; write decimals with a point" in text
    said = 'not read: "<5" 3, "lysed" 2; say below [features.chol] what each means'
    assert f"; {said} (missing, values, forms)" in text
    assert "Nothing is left" not in text


def test_the_command_names_rows_and_columns_that_need_a_look(office: Office) -> None:
    rows = pd.DataFrame({"age": RNG.uniform(30, 80, 60), "chol": RNG.normal(200, 30, 60)})
    rows["dialysis"] = (np.arange(60) < 30).astype(float)
    rows["rare"] = (np.arange(60) < 4).astype(float)
    rows["ktv"] = np.where(rows["dialysis"] == 1, RNG.normal(1.4, 0.2, 60), np.nan)
    rows.loc[[7, 41], ["age", "chol"]] = 99_999.0
    rows.to_csv(office.place / "cohort.csv", index=False)
    yes_no = [{"name": name, "kind": "binary"} for name in ("dialysis", "rare")]
    file = office.place / "heart.json"
    session_file(file, "age", "chol", "ktv", *yes_no)
    given = ("check", "--definition", str(file), *office.data)
    assert office.run(*given) == 0, office.err
    text = " ".join(office.out.split())
    assert "2 rows lie more than 10 robust sd from the median in at least half of 3 numbers" in text
    assert "(line 9, 43): look at them" in text
    assert "ktv has no value just where dialysis is 0: absence reads like a yes/no feature" in text
    assert "fewer than 5 rows have rare = 1: groups of 5 hardly show a trait that rare" in text
    assert office.run(*given, "--json") == 0, office.err
    facts = json.loads(office.out)
    assert facts["rows_far_out"] == {"rows": 2, "columns": 3, "unit": "line", "first": [9, 43]}
    assert facts["absences"] == [{"features": ["ktv"], "column": "dialysis", "value": "0"}]
    assert facts["columns"][0]["maximum"] == 99_999.0
    # Exact rows show every trait.
    session_file(file, "age", "chol", "ktv", *yes_no, policy={"protection": "none"})
    assert "trait" not in office.ran(*given).out


def test_texts_of_an_ordered_outcome_and_no_number_of_a_text_as_a_code(office: Office) -> None:
    rows = pd.DataFrame(RNG.normal(50, 5, (60, 2)).round(1), columns=["age", "chol"])
    rows["crp"] = ["<0.3"] * 30 + ["5"] * 30
    rows["los"] = ["still here"] * 6 + ["4"] * 54
    rows.to_csv(office.place / "cohort.csv", index=False)
    file, mapping = office.place / "heart.json", office.place / "columns.toml"
    crp = {"name": "crp", "lower": 1, "upper": 500}
    los = {"name": "los", "role": "outcome", "kind": "ordered", "edges": [3, 7]}
    session_file(file, "age", "chol", crp, los)
    mapping.write_text('[features.crp]\nvalues = { "<0.3" = 0.15 }\n', "utf-8")
    given = ("check", "--definition", str(file), *office.data, "--mapping", str(mapping))
    text = " ".join(office.ran(*given, code=3).out.split())
    assert 'los: not read: "still here" 6; say below [features.los] what each means' in text
    mapping.write_text(mapping.read_text("utf-8") + '[features.los]\nmissing = ["still here"]\n')
    text = " ".join(office.ran(*given).out.split())
    assert "30 values outside the session's bounds" in text
    assert "--sentinel crp=NUMBER" in text


def test_no_mapping_is_written_for_a_column_of_ids_that_is_not_there(office: Office) -> None:
    written = office.place / "new.toml"
    given = ("--write-mapping", str(written), "--id-column", "mrn")
    office.ran("check", "heart", *office.data, *given, code=3)
    assert "the table has no column 'mrn'; others are id" in " ".join(office.err.split())
    assert not written.exists()


def test_codes_that_the_mapping_calls_one_do_not_differ(office: Office) -> None:
    rows = pd.DataFrame({"age": [*range(40, 70)] * 2, "mrn": [*range(20), *range(20), *range(20)]})
    rows["sex"] = ["M", "F"] * 10 + ["H", "F"] * 10 + ["M", "F"] * 10
    rows.to_csv(office.place / "cohort.csv", index=False)
    (office.place / "columns.toml").write_text("[features.sex.levels]\nM = 0\nH = 0\nF = 1\n")
    file = office.place / "heart.json"
    session_file(file, "age", {"name": "sex", "kind": "binary"})
    given = ("check", "--definition", str(file), *office.data, *office.mapping)
    text = " ".join(office.ran(*given, "--person-column", "mrn").out.split())
    assert "20 ids occur in several rows (60 rows); each id is one person" in text


def test_a_total_below_the_table_is_named(office: Office) -> None:
    rows = pd.DataFrame(RNG.normal(50, 5, (60, 3)).round(1), columns=["age", "chol", "ktv"])
    rows.insert(0, "mrn", [f"p{i}" for i in range(60)])
    table = rows.to_csv(index=False)
    (office.place / "cohort.csv").write_text(f"{table}Rows: 60,,,\n", "utf-8")
    file = office.place / "heart.json"
    session_file(file, "age", "chol", "ktv")
    given = ("check", "--definition", str(file), *office.data, "--person-column", "mrn")
    text = " ".join(office.ran(*given).out.split())
    assert "1 row has no value in any column of the session (line 62): take out what is no" in text
    assert "Nothing is left to do if rows without a value are persons." in text
    (office.place / "cohort.csv").write_text(table, "utf-8")
    assert "no value in any" not in office.ran(*given).out


def test_in_a_study_the_line_of_a_session_says_what_to_look_at() -> None:
    rows = pd.DataFrame({"age": [40.0] * 20, "chol": RNG.normal(200, 30, 20)})
    rows["sex"] = (np.arange(20) < 8).astype(float)
    rows.loc[rows["sex"] == 1, "chol"] = np.nan
    rows.loc[[9, 19], ["age", "chol"]] = 99_999.0
    rows["age"] += np.arange(20)
    found = profile(rows, (Feature(name="age"), Feature(name="chol"), SEX))
    body = session_request(*FEATURES)
    for share, few in ((0.79, ["missing: drop"]), (0.8, [])):
        table = NoTable(20, ("age",), staying=Staying(0.5, share))
        assert RowCheck(body, found, 5, table).look_at == ["chol", "rows far out", *few]


def test_repeated_ids_are_decided_on_before_nothing_is_left_to_do(office: Office) -> None:
    """Rows of one person would count as persons, and their levels may differ."""
    ids, smokers = [*range(56), 0, 1, 2, 2], [*[1, 0] * 28, 0, 1, 1, 1]
    rows = pd.DataFrame({"age": RNG.uniform(30, 80, 60), "smoker": smokers, "patient id": ids})
    rows.to_csv(office.place / "cohort.csv", index=False)
    file = session_file(office.place / "heart.json", "age", {"name": "smoker", "kind": "binary"})
    given = ("check", "--definition", str(file), *office.data)
    said = " ".join(office.ran(*given).out.split())
    assert "if each id is one person, give --person-column 'patient id'" in said
    assert "Nothing is left to do if each row is a person (patient id)." in said
    said = " ".join(office.ran(*given, "--person-column", "patient id").out.split())
    # The rows of 0 and 1 have other smokers; those of 2 are two of 1 and one of 0.
    assert "the rows of a person differ in smoker (2): the commonest counts" in said
    assert "Nothing is left to do." in " ".join(office.out.split())
    # Other spellings of one level are no difference.
    rows["smoker"] = ["ja", "Ja"] * 30
    rows.to_csv(office.place / "cohort.csv", index=False)
    levels = '[features.smoker.levels]\n"ja" = 1\n"Ja" = 1\n'
    (office.place / "columns.toml").write_text(levels, "utf-8")
    said = office.ran(*given, "--person-column", "patient id", *office.mapping).out
    assert "rows of a person differ" not in said


def test_a_column_named_by_hand_is_compared_with_the_unit_of_its_header(office: Office) -> None:
    vitamin = {"name": "glucose", "unit": "mmol/L", "lower": 1, "upper": 60}
    rows = pd.DataFrame({"age": np.arange(60) + 30.5, "BZ (mg/dL)": np.arange(60) + 4.5})
    rows.to_csv(office.place / "cohort.csv", index=False)
    file = session_file(office.place / "s.json", "age", vitamin)
    own = office.place / "columns.toml"
    check = ("check", "--definition", file, *office.data, "--mapping", str(own))
    own.write_text('[features.glucose]\ncolumn = "BZ (mg/dL)"\n', "utf-8")
    said = " ".join(office.ran(*check).out.split())
    assert "the header says mg/dL, and the session's unit is mmol/L. The values would fit" in said
    assert "factor = 0.0555062" in said
    assert "if what is said above of glucose is right." in said
    with own.open("a", encoding="utf-8") as toml:
        toml.write('unit = "mg/dL"\nto = "mmol/L"\nfactor = 0.0555\n')
    assert "the header says" not in office.ran(*check).out


def test_a_missing_code_differs_from_nothing() -> None:
    smoker = Feature(name="smoker", kind="binary")
    rows = pd.DataFrame({"id": [*range(9), 0, 1], "smoker": ["J", "N", "?"] * 3 + ["?", "J"]})
    levels = {"J": 1, "N": 0, "?": ""}
    data = Dataset(rows, mapping={"features": {"smoker": {"levels": levels}}})
    with pytest.warns(DataWarning, match=r"differ in smoker \(1\)"):
        persons.read_persons(data, [smoker], person="id")


def test_an_outcome_without_a_column_is_left_to_decide(office: Office) -> None:
    died = {"name": "died", "kind": "binary", "role": "outcome"}
    file = session_file(office.place / "heart.json", *FEATURES, died)
    check = ("check", "--definition", file, *office.data, *office.mapping)
    assert "Nothing is left to do if this site has no died." in " ".join(
        office.ran(*check).out.split()
    )


def test_a_feature_that_too_few_groups_release_is_named(office: Office) -> None:
    """The rows have enough values, but their only group has fewer than five."""
    rows = [f"{20 + i},{'' if i > 3 else 150 + 2 * i}" for i in range(9)]
    (office.place / "cohort.csv").write_text("\n".join(["age,chol", *rows]), "utf-8")
    asked = {"algorithm": "overlap", "policy": {"missing": "mask"}}
    file = session_file(office.place / "heart.json", *FEATURES, **asked)
    given = ("check", "--definition", file, *office.data, "--min-present", "0.4")
    assert "all 2 features" in office.ran(*given).out
    assert "takes part without chol: too few persons" in office.out
    assert json.loads(office.ran(*given, "--json").out)["features_unreleased"] == ["chol"]
    rows[4] = "24,158"
    (office.place / "cohort.csv").write_text("\n".join(["age,chol", *rows]), "utf-8")
    assert "takes part without" not in office.ran(*given).out


@pytest.mark.parametrize("identified", [(), ("--id-column", "id")])
def test_the_table_has_the_same_figures_out_of_core(
    office: Office, identified: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("check", "heart", *office.data, *office.mapping, *identified, "--json")
    tables = []
    for more in ((), ("--out-of-core",)):
        assert office.run(*given, *more) == 0, office.err
        tables.append(json.loads(office.out)["table"])
    assert tables[0]["n_persons"] == 60
    assert tables[0]["distance_sd"] > 0.0
    assert tables[1] == tables[0]
    # Blocks that groups do not cross: other groups, of the same persons.
    monkeypatch.setattr(persons, "_PERSONS", 20)
    monkeypatch.setattr(persons, "_ROWS", 7)
    body = office.fake.definition.model_dump(mode="json")
    file = office.place / "heart.json"
    file.write_text(json.dumps({"state": "recruiting", "definition": body}), "utf-8")
    offline = ("check", "--definition", str(file), *given[2:])
    assert office.run(*offline, "--out-of-core") == 0, office.err
    table = json.loads(office.out)["table"]
    assert (table["n_persons"], table["group_sizes"][0] >= 5) == (60, True)
    assert table["steps"].keys() == tables[0]["steps"].keys()


def test_one_mapping_file_serves_every_command(office: Office) -> None:
    """Whoever takes part, by hand or by the agent, and labels new rows: one way of reading."""
    result, labels = str(office.place / "heart.fedclust"), office.place / "labels.csv"
    shared = (*office.data, *office.mapping)
    left = (*shared, "--yes", "--result-out", result)
    assert office.run("agent", "add", "heart", *left) == 0, office.err
    (known,) = AgentEntries(SiteState()).read()
    assert known.reading.mapping == str(office.place / "columns.toml")
    out = ("--labels-out", str(labels), "--result-out", result)
    assert office.run("participate", "heart", *shared, "--yes", *out) == 0, office.err
    own = labels.read_text("utf-8")
    assert "--out LABELS, with the options that read your table here" in office.err
    assert office.run("predict", result, *shared, "--out", str(labels)) == 0, office.err
    again = [line.split(",")[:2] for line in labels.read_text("utf-8").splitlines()]
    assert again == [line.split(",") for line in own.splitlines()]
    assert office.run("predict", result, *office.data, "--out", str(labels)) == 3


def test_simulate_reads_each_site_its_own_way(office: Office) -> None:
    plain = office.place / "plain.csv"
    plain.write_text("age,chol\n" + "".join(f"{i}.5,{150 + i}\n" for i in range(30, 90)), "utf-8")
    sites = (f"--site=a={plain}", f"--site=b={plain}", f"--site=c={office.place / 'cohort.csv'}")
    given = ("simulate", "lloyd", "--clusters", "2", "--features", "age,chol", *sites)
    assert "'c'" in office.ran(*given, code=2).err
    own = office.place / "own.toml"
    text = (office.place / "columns.toml").read_text("utf-8").replace('to = "mg/dl"', 'to = ""')
    own.write_text(text, "utf-8")
    assert office.run(*given, f"--site-mapping=c={own}", "--json") == 0, office.err
    assert office.run(*given, f"--site-mapping=d={own}") == 2


def test_an_identifier_among_the_features_is_said_in_one_line(office: Office) -> None:
    (office.place / "cohort.csv").write_text(
        "age,chol\n" + "".join(f"{i},{100 + 7 * i}\n" for i in range(20, 60)), "utf-8"
    )
    assert office.run("participate", "heart", *office.data, "--preview") == 0
    lines = [line for line in office.err.splitlines() if line.startswith("warning: ")]
    assert len(lines) == 2
    assert "'age'" in lines[0]
