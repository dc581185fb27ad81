"""A page of docs/recipes: its files, its commands, and the persons that its table describes."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclust.data.persons import read_persons
from fedclust.schema.feature import Feature
from fedclust.site import data_source

PAGES = Path(__file__).parents[2] / "docs" / "recipes"
NAMES = ("age", "female", "creatinine", "hba1c", "diabetes")


def block(page: str, language: str, containing: str = "") -> str:
    """Return the only code block of a page in a language that contains a text."""
    text = (PAGES / page).read_text("utf-8")
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    (only,) = [each for each in found if containing in each]
    return str(only)


def persons(name: str) -> dict[str, list[float]]:
    """Return the values of each person in a registered source, in its own units and codes.

    Yes/no values are 0 and 1, whatever their codes are.
    """
    source = data_source(name)
    features = [Feature(**each) for each in json.loads(block("README.md", "json"))["features"]]
    person, id_column = source.row_options["person"], source.row_options["id_column"]
    found = read_persons(source.rows(), features, person=person, id_column=id_column)
    (whole,) = found.blocks()
    values: dict[str, Any] = {}
    for reading, column in zip(found.readings, whole.sources, strict=True):
        own = column.values
        codes = found.columns[len(values)].codes
        if codes is not None:
            meanings = [reading.meaning(code) for code in codes]
            own = [np.nan if np.isnan(k) else meanings[int(k)] for k in own]
        values[reading.feature.name] = own
    return {
        key: [float("nan") if v is None else float(v) for v in row]
        for key, row in zip(whole.keys, zip(*values.values(), strict=True), strict=True)
    }


def compare_persons(name: str, expected_rows: Mapping[str, Any], rel: float = 1e-12) -> None:
    """A registered source has these persons, with these values in own units."""
    found = persons(name)
    assert list(found) == list(expected_rows)
    for key, values in expected_rows.items():
        assert found[key] == pytest.approx(values, rel=rel, nan_ok=True), key
