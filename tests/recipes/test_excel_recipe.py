"""The Excel recipe on a workbook like the page's, compared with what was put into it."""

from __future__ import annotations

import random
from pathlib import Path

import openpyxl
import pytest

from recipes.recipe_page import PAGES, Recipe, persons


def test_the_workbook_becomes_persons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (PAGES / "excel.md").read_text("utf-8").splitlines()
    shown = [line.strip("|").split("|") for line in page if line.startswith("| ")][1:]
    made = openpyxl.Workbook()
    sheet, codes = made.active, made.create_sheet("Codes")
    sheet.title = "Cohort"
    for _, *cells in shown:
        sheet.append([_cell(each.strip()) for each in cells])
    for row in (["code", "meaning"], ["f", "female"], ["m", "male"]):
        codes.append(row)
    expected_rows = {"1001": [63, 1, 102, 7.1, 1], "1002": [58, 0, 95, float("nan"), 0]}
    draw = random.Random(2)
    for number in range(1003, 1031):
        values = [draw.randint(20, 90), draw.choice("fm"), draw.randint(60, 300)]
        values += [draw.randint(50, 100) / 10, draw.choice(["yes", "no"])]
        sheet.append([number, *values])
        age, sex, creatinine, hba1c, diabetes = values
        expected_rows[str(number)] = [
            age,
            int(sex == "f"),
            creatinine,
            hba1c,
            int(diabetes == "yes"),
        ]
    made.save("cohort.xlsx")
    recipe = Recipe("excel.md", monkeypatch, capsys)
    recipe.save("excel.toml", "toml")
    recipe.follow()
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
