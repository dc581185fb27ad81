"""A small export, compared with the persons that the page makes of it."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from docs.page import Page
from recipes.recipe_page import block, persons

NAN = float("nan")


@contextmanager
def around(page: Page) -> Iterator[None]:
    (page.place / "kidney.json").write_text(block("README.md", "json"), "utf-8")
    page.file("redcap.toml", 'missing = ["NI"')
    page.file("clear_checkboxes.py", "clear_checkboxes.py EXPORT.csv")
    expected_rows = export(page)
    yield
    found = persons("redcap")
    assert len(found) == 40
    for key, values in expected_rows.items():
        assert found[key] == pytest.approx(values, nan_ok=True), key
    # As the page warns: without the script the zeros of other rows outvote a ticked box.
    options = "--person-column record_id --mapping redcap.toml --replace"
    page.terminal.run(f"fedclust data add redcap --data export.csv {options}")
    assert sum(values[4] for values in persons("redcap").values()) == 0


def export(page: Page) -> dict[str, list[float]]:
    """Write an export as REDCap does, and return each record's values in its own units."""
    (line,) = [each for each in page.source.splitlines() if each.startswith("| record_id |")]
    header = [name.strip() for name in line.strip("|").split("|")]
    draw, expected_rows = random.Random(5), {}
    with (page.place / "export.csv").open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, header, restval="", quoting=csv.QUOTE_ALL)
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
