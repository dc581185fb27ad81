"""A workbook like the page's, compared with the persons that the page makes of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import openpyxl
import pytest

from docs.page import Page
from recipes.recipe_page import block, persons


@contextmanager
def around(page: Page) -> Iterator[None]:
    (page.place / "kidney.json").write_text(block("README.md", "json"), "utf-8")
    page.file("excel.toml", 'sheet = "Cohort"')
    shown = [line.strip("|").split("|") for line in page.source.splitlines() if line[:2] == "| "]
    made = openpyxl.Workbook()
    sheet, codes = made.active, made.create_sheet("Codes")
    sheet.title = "Cohort"
    for _, *cells in shown[1:]:
        sheet.append([_cell(each.strip()) for each in cells])
    for row in (["code", "meaning"], ["f", "female"], ["m", "male"]):
        codes.append(row)
    expected_rows = {"1001": [63, 1, 102, 7.1, 1], "1002": [58, 0, 95, float("nan"), 0]}
    draw = random.Random(2)
    for number in range(1003, 1031):
        age, sex, creatinine = draw.randint(20, 90), draw.choice("fm"), draw.randint(60, 300)
        hba1c, diabetes = draw.randint(50, 100) / 10, draw.choice(["yes", "no"])
        sheet.append([number, age, sex, creatinine, hba1c, diabetes])
        values = [age, int(sex == "f"), creatinine, hba1c, int(diabetes == "yes")]
        expected_rows[str(number)] = values
    made.save(page.place / "cohort.xlsx")
    yield
    found = persons("ward")
    assert list(found) == list(expected_rows)
    for key, values in expected_rows.items():
        assert found[key] == pytest.approx(values, nan_ok=True), key


def _cell(text: str) -> float | int | str | None:
    """Return a cell as somebody would type it."""
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text or None
