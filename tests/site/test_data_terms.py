"""Which rows are meant and how they are read: in words for people, and as a digest."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust.data import Dataset
from fedclust.data.mapping import ReadOptions
from fedclust.schema.feature import Feature
from fedclust.site.data_sources import DataSource, DataSources
from fedclust.site.data_terms import DataTerms, data_terms

FEATURES = (
    Feature(name="chol", unit="mg/dl"),
    Feature(name="sex", kind="categorical", levels=("f", "m")),
    Feature(name="age"),
    Feature(name="height"),
)
MAPPING: dict[str, Any] = {
    "missing": ["?"],
    "min_present": 0.5,
    "features": {
        "chol": {
            "column": "Chol",
            "unit": "mmol/l",
            "to": "mg/dl",
            "factor": 38.67,
            "offset": -1,
            "sentinels": [-9],
            "missing": ["k.A."],
        },
        "sex": {"levels": {"1": "m", "2": "f", "9": ""}},
        "height": {"lacking": True},
        "weight": {"column": "kg"},
    },
}


def terms(source: Any = "cohort.csv", **options: Any) -> DataTerms:
    held = ("chol", "sex", "age")
    return data_terms(Dataset(source, mapping=MAPPING, **options), FEATURES, held)


def test_each_feature_is_said_in_words() -> None:
    chol = "value here (mmol/l) x 38.67 - 1 = value in mg/dl; -9, 'k.A.' = missing"
    assert terms().lines == (
        "age: each from the column of the same name, unchanged",
        f"chol: from column Chol; {chol}",
        "sex: from column sex; codes: 1 = m, 2 = f, 9 = missing",
        "height: this site does not have it",
        "in every column: '?' = missing",
        "a column with less than 50% of its values counts as absent",
    )
    said = data_terms("cohort.csv", FEATURES[2:3], ("age",), person="mrn", id_column="row")
    assert said.lines[1:] == (
        "persons: column mrn says which rows belong to one person; it is never sent",
        "names of rows: column row; it is never sent",
    )


@pytest.mark.parametrize(
    "change",
    [
        {"sentinels": {"age": -1}},
        {"missing": ["-"]},
        {"decimal": ","},
        {"sheet": "2026"},
        {"min_present": 0.1},
        {"mapping": {**MAPPING, "features": {}}},
    ],
)
def test_another_way_to_read_is_another_digest(change: dict[str, Any]) -> None:
    options = {"mapping": MAPPING, **change}
    other = data_terms(Dataset("cohort.csv", **options), FEATURES, ("age",))
    assert other.digest != terms().digest


def test_features_of_other_sessions_and_the_folder_do_not_count() -> None:
    features = {name: rule for name, rule in MAPPING["features"].items() if name != "weight"}
    mapping = {**MAPPING, "features": features}
    same = data_terms(Dataset("/data/cohort.csv", mapping=mapping), FEATURES, ("age",))
    assert (same.digest, same.source) == (terms().digest, terms().source)


def test_the_columns_of_persons_and_of_rows_count() -> None:
    found = {
        data_terms("cohort.csv", FEATURES, (), person=person, id_column=named).digest
        for person, named in ((None, None), ("mrn", None), (["a", "b"], None), (None, "mrn"))
    }
    assert len(found) == 4


def test_a_source_has_the_name_that_a_person_gave(tmp_path: Path) -> None:
    assert terms("/data/cohort.xlsx", sheet="2026").source == "cohort.xlsx, sheet 2026"
    assert terms("/data/my cohort.csv").option == "'/data/my cohort.csv'"
    for rows in (np.zeros((3, 4)), pd.DataFrame({"age": [1.0]})):
        assert (terms(rows).source, terms(rows).option) == ("rows in memory", "FILE")
    path = tmp_path / "cohort.csv"
    path.write_text("age\n50\n", "utf-8")
    DataSources().add("mine", DataSource(data=str(path), given="cohort.csv"))
    found = DataSource(data="@mine", reading=ReadOptions(missing=("?",)), given="@mine").resolved()
    said = data_terms(found.rows(), FEATURES, ("age",))
    assert (said.source, said.option) == ("@mine (cohort.csv)", "@mine")


def test_another_query_is_another_way_to_read(tmp_path: Path) -> None:
    path, found = tmp_path / "cohort.sql", set()
    for query in ("SELECT age FROM a ORDER BY id", "SELECT age FROM b ORDER BY id"):
        path.write_text(query, "utf-8")
        said = data_terms(path, FEATURES, ("age",))
        assert said.source == "cohort.sql"
        assert "the rows of a query with the SHA-256" in said.lines[-1]
        found.add(said.digest)
    assert len(found) == 2
