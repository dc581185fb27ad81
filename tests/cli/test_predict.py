"""``fedclust predict``: a table, one patient, and what stands in the way."""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedclust import SessionResult, simulate
from support.command_line import CommandLine

FEATURES = [
    {"name": "age", "unit": "years", "lower": 0, "upper": 120},
    {"name": "crp", "unit": "mg/l", "lower": 1, "transform": "log"},
    {"name": "male", "kind": "binary"},
    {"name": "pain", "kind": "categorical", "levels": ["typical", "none", "other"]},
]
PATIENT = ["age=41", "crp=3", "male=yes", "pain=typical"]
Run = Callable[..., CommandLine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return models of two clusters: the old with pain none and the young with pain typical."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    old = np.arange(120) % 2
    sites = {}
    for name in ("ada", "bern", "cork"):
        age = rng.normal(40 + 30 * old, 4)
        crp = np.exp(rng.normal(1 + 2 * old, 0.3))
        male = (rng.random(120) < 0.5).astype(int)
        pain = np.where(old, "none", "typical")
        sites[name] = pd.DataFrame({"age": age, "crp": crp, "male": male, "pain": pain})
    for missing in ("impute", "drop"):
        found = simulate(
            "fkm",
            sites,
            config={"n_clusters": [2, 3]},
            policy={"missing": missing},
            features=FEATURES,
        ).at(2)
        found.save(folder / f"{missing}.fc")
    return folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine) -> Run:
    monkeypatch.chdir(folder)

    return partial(command_line.ran, "predict")


def typed(*values: str) -> list[str]:
    return [word for value in values for word in ("--value", value)]


def test_one_patient_gets_a_plain_answer(run: Run) -> None:
    out = run("impute.fc", *typed(*PATIENT)).out
    lines = {line[:16].strip(): line[17:] for line in out.splitlines()}
    assert lines["cluster"] == "0 of 0 to 1 (180 persons over all sites)"
    assert "younger" in lines["its persons"]
    assert "pain=typical often (100 % of groups)" in lines["its persons"]
    # Half of the persons are around 40 and half around 70.
    (value,) = re.search(r"age ([\d.]+) years", lines["typical values"]).groups()
    assert float(value) == pytest.approx(40, abs=2)
    assert lines["margin"].endswith("clear, the next is cluster 1")
    assert lines["outside"].startswith("no")
    assert "missing" not in lines


def test_without_protection_a_far_value_is_set_against_one_sd_of_the_rows(
    run: Run, folder: Path
) -> None:
    rng = np.random.default_rng(3)
    rows = pd.DataFrame({"age": rng.normal(60, 4, 90), "crp": np.exp(rng.normal(2, 0.5, 90))})
    policy = {"protection": "none", "min_sites": 1}
    model = simulate(
        "lloyd", {"a": rows}, config={"n_clusters": 1}, features=FEATURES[:2], policy=policy
    )
    model.save(folder / "rows.fc")
    of_groups, out = (
        run(name, *typed("age=110", "crp=900")).out for name in ("impute.fc", "rows.fc")
    )

    assert "one SD" not in of_groups
    logs = np.log(rows.crp)
    for name, mean, spread, undo in (
        ("years, far from this cluster's mean", rows.age.mean(), rows.age.std(ddof=0), float),
        ("this cluster's geometric mean", logs.mean(), logs.std(ddof=0), np.exp),
    ):
        said = re.search(rf"{name} ([\d.]+) \(within one SD: ([\d.]+) to ([\d.]+)\)", out)
        expected = [undo(each) for each in (mean, mean - spread, mean + spread)]
        assert [float(each) for each in said.groups()] == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("impute.fc", ["age=41", "crp=3"], "male: counts as 5"),
        ("impute.fc", ["age=41", "crp=3"], "pain: counts as the shares of its levels"),
        ("impute.fc", ["crp=3"], "years, the mean of all sites' records"),
        ("impute.fc", ["age=130", *PATIENT[1:]], "yes: age 130 years is above the bound of 120"),
        ("impute.fc", ["age=-1", "crp=3"], "yes: age -1 years is below the bound of 0"),
        ("impute.fc", ["age=80", "crp=3", *PATIENT[2:]], "yes: age 80 years, far from this"),
        ("impute.fc", [*PATIENT[:3], "pain=other"], "yes: pain other, which hardly anybody had"),
        ("impute.fc", ["age=54", "crp=7", "male=0"], "close to cluster"),
        ("drop.fc", ["age=41", "crp=", *PATIENT[2:]], "crp: this model gives no cluster"),
    ],
)
def test_one_patient_who_is_not_simple(run: Run, name: str, values: list[str], said: str) -> None:
    assert said in run(name, *typed(*values)).out


def test_one_patient_as_json(run: Run) -> None:
    found = json.loads(run("impute.fc", *typed("age=130", "crp=20", "male=0"), "--json").out)
    assert (found["cluster"], found["second"], found["outside"]) == (1, 0, True)
    assert (found["why"], found["missing"]) == (["age"], ["pain"])
    # A level may have the name of a missing value.
    done = run("impute.fc", *typed("age=70", "crp=n/a", "male=NA", "pain=none"), "--json")
    assert json.loads(done.out)["missing"] == ["crp", "male"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (typed("ag=3"), "the model has no feature 'ag': it has age, crp, male, pain"),
        (typed("age"), "--value age: write FEATURE=VALUE"),
        (typed("age=4,5"), "age is a number in years, with a decimal point"),
        (typed("age=4", "age=5"), "--value gives age twice"),
        (typed("male=2"), "male is 1 (yes) or 0 (no)"),
        (typed("pain=bad"), "pain is one of typical, none, other"),
        ([*typed("age=4"), "--out", "x.csv"], "leave out --data, --out, --id-column"),
        (["--data", "new.csv"], "give --data and --out for a table"),
        ([*typed("age=4"), "--k", "9"], "this session compared no numbers of clusters"),
    ],
)
def test_what_cannot_be_done_is_said(run: Run, words: list[str], said: str) -> None:
    refused = run("impute.fc", *words, code=2)
    assert refused.out == ""
    assert said in refused.said


def test_a_table_gets_a_line_for_each_row(run: Run, folder: Path) -> None:
    new = folder / "new.csv"
    new.write_text(
        "mrn,age,crp,male,pain\na,41,3,1,typical\nb,130,20,0,none\nc,,3,1,typical\n", "utf-8"
    )
    given = ("--data", "new.csv", "--id-column", "mrn", "--out", "labels.csv")
    err = run("drop.fc", *given).said
    assert "1 row lies outside what the model saw, most often in age (1)" in err
    assert "1 of its 2 values lies outside the session's bounds" in err
    assert "right column" not in err
    assert "row number" not in err
    assert "2 rows labelled: labels.csv" in err
    with (folder / "labels.csv").open(newline="") as file:
        rows = {row["mrn"]: row for row in csv.DictReader(file)}
    assert [rows[name]["cluster"] for name in "abc"] == ["0", "1", ""]
    assert [rows[name]["outside"] for name in "abc"] == ["no", "yes", ""]
    assert (rows["b"]["second"], rows["b"]["why"]) == ("0", "age")
    margin = float(rows["a"]["margin"])
    found = SessionResult.load(folder / "drop.fc").predict_details("new.csv", "mrn")
    assert margin == pytest.approx(found.margin[0], rel=1e-3)
    # Clusters that have names are also named, and stay numbers.
    named = {"2": ("Old, grey", "=young"), "3": ("a", "b", "c")}
    replace(SessionResult.load(folder / "drop.fc"), names=named).save(folder / "named.fc")
    # The second run replaces what the first one wrote.
    for _again in range(2):
        run("named.fc", *given[:-1], "named.csv")
    with (folder / "named.csv").open(newline="") as file:
        names = {row["mrn"]: (row["cluster"], row["name"]) for row in csv.DictReader(file)}
    assert names == {"a": ("0", "Old, grey"), "b": ("1", "'=young"), "c": ("", "")}
    # The same file again, but no other file.
    run("drop.fc", *given)
    assert "holds something else" in run("drop.fc", *given[:-1], "impute.fc", code=2).said
    facts = json.loads(run("drop.fc", *given, "--json").out)
    counts = [facts[k] for k in ("rows", "labelled", "close", "outside")]
    assert counts == [3, 2, 0, 1]


def test_a_table_with_another_name_is_told_which(run: Run, folder: Path) -> None:
    (folder / "named.csv").write_text("mrn,age,CRP,male,pain\na,41,3,1,typical\n", "utf-8")
    given = ("impute.fc", "--data", "named.csv", "--out", "named-labels.csv", "--id-column")
    needed = "'crp': the session needs this column and the header has"
    assert needed in run(*given, "mrn", code=3).said
    other = "none of that name (and 1 more); upper and lower case are"
    assert other in run(*given, "mnr", code=3).said


def test_probabilities_follow_in_columns_of_their_own(run: Run, folder: Path) -> None:
    rng = np.random.default_rng(0)
    sites = {
        name: np.concatenate([rng.normal(0, 1, (30, 2)), rng.normal(4, 1, (30, 2))])
        for name in ("ada", "bern", "cork")
    }
    config, features = {"n_clusters": [2, 3]}, [{"name": "x"}, {"name": "y"}]
    policy = {"missing": "drop"}
    found = simulate("mixture", sites, config=config, features=features, policy=policy).at(2)
    found.save(folder / "soft.fedclust")
    (folder / "soft.csv").write_text("mrn,x,y\na,2,2.1\nb,9,\nc,4,4\n", "utf-8")
    given = ("--data", "soft.csv", "--id-column", "mrn", "--out", "soft-labels.csv")
    for words in (given, (*given, "--probabilities"), (*given, "--probabilities")):
        run("soft.fedclust", *words)
    said = run("soft.fedclust", *given[:2], "--out", "numbered.csv").said
    assert "row number only; give --id-column to name the rows" in said
    with (folder / "soft-labels.csv").open(newline="") as file:
        rows = {row["mrn"]: row for row in csv.DictReader(file)}
    expected = found.probabilities([[2.0, 2.1], [4.0, 4.0]])
    shares = [[float(rows[name][f"p{k}"]) for k in range(2)] for name in "ac"]
    np.testing.assert_allclose(shares, expected, atol=6e-5)
    assert [rows["b"][name] for name in ("cluster", "p0", "p1", "margin")] == [""] * 4
    assert list(rows["a"])[-2:] == ["p0", "p1"]
    details = found.predict_details([[2.0, 2.1], [4.0, 4.0]]).to_frame()
    np.testing.assert_array_equal(details[["p0", "p1"]], expected)


def test_other_methods_have_no_probabilities(run: Run, folder: Path) -> None:
    (folder / "some.csv").write_text("age,crp,male,pain\n41,3,1,typical\n", "utf-8")
    given = ("--data", "some.csv", "--out", "none.csv", "--probabilities")
    assert "fkm assigns each row to one cluster" in run("impute.fc", *given, code=2).said
    assert not (folder / "none.csv").exists()
    refused = run("impute.fc", *typed("age=41"), "--probabilities", code=2)
    assert "--id-column and --probabilities" in refused.said
