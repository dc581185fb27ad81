"""The REDCap recipe on a small export, compared with what was put into it."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import pytest

from recipes.recipe_page import PAGES, Recipe, persons

NAN = float("nan")


def header() -> list[str]:
    """Return the columns of the page's example."""
    page = (PAGES / "redcap.md").read_text("utf-8")
    (line,) = [each for each in page.splitlines() if each.startswith("| record_id |")]
    return [name.strip() for name in line.strip("|").split("|")]


def export() -> dict[str, list[float]]:
    """Write an export as REDCap does, and return each record's values in its own units."""
    draw, expected_rows = random.Random(5), {}
    with Path("export.csv").open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, header(), restval="", quoting=csv.QUOTE_ALL)
        writer.writeheader()
        for number in range(1, 41):
            key: dict[str, Any] = {"record_id": number}
            age, sex = draw.choice([-99, 50, 70]), draw.choice([1, 2, 2, -99])
            a1c, box = draw.choice([7.5, 6.25, -99]), draw.choice([0, 1])
            base = {"age_years": age, "sex": sex, "hba1c": a1c, "comorbidity___1": box}
            writer.writerow({**key, "redcap_event_name": "baseline_arm_1", **base})
            visit = {**key, "redcap_event_name": "visit_arm_1", "comorbidity___1": 0}
            later = draw.choice([8.0, "NI", ""])
            writer.writerow({**visit, "hba1c": later})
            values = [draw.choice([-99, 80, 120, 250]) for _ in range(draw.randint(1, 4))]
            for place, value in enumerate(values, 1):
                form = {"redcap_repeat_instrument": "laboratory", "redcap_repeat_instance": place}
                writer.writerow({**visit, **form, "crea_umol": value})
            known = [value for value in values if value != -99]
            a1cs = [value for value in (a1c, later) if isinstance(value, float)]
            expected_rows[str(number)] = [
                NAN if age == -99 else age,
                {1: 0.0, 2: 1.0}.get(sex, NAN),
                sum(known) / len(known) if known else NAN,
                sum(a1cs) / len(a1cs) if a1cs else NAN,
                box,
            ]
    return expected_rows


def test_the_export_becomes_persons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    expected_rows = export()
    recipe = Recipe("redcap.md", monkeypatch, capsys)
    recipe.save("redcap.toml", "toml")
    recipe.save("clear_checkboxes.py", "python")
    recipe.follow()
    found = persons("redcap")
    assert len(found) == 40
    for key, values in expected_rows.items():
        assert found[key] == pytest.approx(values, nan_ok=True), key
    creatinine = recipe.facts["columns"][2]
    assert creatinine["maximum"] == pytest.approx(250 / 88.42, rel=1e-5)
    # As the page warns: without the script the zeros of other rows outvote a ticked box.
    changed = ("--data", "export.csv", "--person-column", "record_id", "--mapping", "redcap.toml")
    assert recipe.run("data", "add", "redcap", *changed, "--replace") == 0
    assert sum(values[4] for values in persons("redcap").values()) == 0
