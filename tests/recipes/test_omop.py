"""The OMOP recipe on a small database of each kind, compared with loops over its rows."""

import json
import random
import shlex
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from recipes.recipe_page import block, compare_persons
from support.command_line import CommandLine

TABLES = {
    "person": "person_id INTEGER, gender_concept_id INTEGER, year_of_birth INTEGER",
    "visit_occurrence": "visit_occurrence_id INTEGER, person_id INTEGER, visit_concept_id INTEGER, "
    "visit_start_date DATE",
    "observation_period": "person_id INTEGER, observation_period_start_date DATE, "
    "observation_period_end_date DATE",
    "measurement": "measurement_id INTEGER, person_id INTEGER, measurement_concept_id INTEGER, "
    "measurement_date DATE, operator_concept_id INTEGER, value_as_number NUMERIC, "
    "unit_concept_id INTEGER",
    "condition_occurrence": "person_id INTEGER, condition_concept_id INTEGER, "
    "condition_start_date DATE",
    "concept_ancestor": "ancestor_concept_id INTEGER, descendant_concept_id INTEGER",
}
N = 240
Rows = dict[str, list[tuple[Any, ...]]]


def hospital() -> Rows:
    """Return the rows of each table; every reason to leave one out occurs."""
    draw = random.Random(7)
    rows: Rows = {name: [] for name in TABLES}
    rows["concept_ancestor"] = [(201820, 201820), (201820, 201826), (4329847, 312327)]

    def day(*years: int) -> str:
        return f"{draw.choice(years)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"

    for person in range(1, N + 1):
        gender = draw.choice([8507, 8532, 8532, 0])
        rows["person"].append((person, gender, draw.randint(1935, 2000)))
        start, end = draw.choice(["2024-01-01", "2020-05-01", "2024-03-01"]), "2025-12-31"
        rows["observation_period"].append((person, start, draw.choice([end, end, "2025-02-01"])))
        for _ in range(draw.randint(1, 3)):
            kind = draw.choice([9201, 262, 9202])
            number = len(rows["visit_occurrence"]) + 1
            rows["visit_occurrence"].append((number, person, kind, day(2024, 2025, 2025)))
        for _ in range(draw.randint(3, 14)):
            concept, units, value = draw.choice(
                [
                    (3004410, [8554, 8554, 9579], draw.uniform(4, 12)),
                    (3016723, [8840, 8840, 0], draw.uniform(0.5, 5)),
                    (3020564, [8749], draw.uniform(40, 400)),
                    (3000963, [8713], draw.uniform(9, 15)),
                ]
            )
            number = len(rows["measurement"]) + 1
            operator, given = draw.choice([None, None, 0, 4172703, 4171756]), round(value, 2)
            # No value, and two markers that mean none.
            shown = draw.choice([given, given, given, given, None, 0.0, 9999.0])
            unit = draw.choice(units)
            # Two values on one day: the one with the higher number is the last.
            rows["measurement"] += [
                (number + k, person, concept, date, operator, shown, unit)
                for date in [day(2023, 2024, 2024, 2024, 2025)]
                for k in range(draw.choice([1, 1, 2]))
            ]
        if draw.random() < 0.6:
            concept = draw.choice([201826, 201826, 312327])
            rows["condition_occurrence"].append((person, concept, day(2022, 2022, 2025)))
    return rows


def expected(rows: Rows) -> dict[str, list[float]]:
    """Return what the page promises, by loops over the rows."""
    found = {}
    for person, gender, born in rows["person"]:
        stays = sorted(
            (date, number)
            for number, who, kind, date in rows["visit_occurrence"]
            if who == person and kind in (9201, 262) and date.startswith("2025")
        )
        if not stays:
            continue
        index = stays[0][0]
        periods = [(a, b) for who, a, b in rows["observation_period"] if who == person]
        if not any(a <= "2024-01-01" and index <= b for a, b in periods):
            continue
        last: dict[str, tuple[tuple[str, int], float]] = {}
        for number, who, concept, date, operator, value, unit in rows["measurement"]:
            known = {
                (3004410, 8554): ("hba1c", 1.0),
                (3016723, 8840): ("creatinine", 1.0),
                (3020564, 8749): ("creatinine", 88.42),
            }.get((concept, unit))
            exact = value is not None and operator in (None, 0, 4172703)
            if who != person or known is None or not exact or not "2024-01-01" <= date <= index:
                continue
            name, divisor = known
            least, most = {"hba1c": (3.0, 20.0), "creatinine": (0.1, 25.0)}[name]
            if not least <= value / divisor <= most:
                continue
            if name not in last or (date, number) > last[name][0]:
                last[name] = (date, number), value / divisor
        nan = float("nan")
        diabetes = any(
            who == person and concept in (201820, 201826) and date <= index
            for who, concept, date in rows["condition_occurrence"]
        )
        found[str(person)] = [
            2025.0 - born,
            {8532: 1.0, 8507: 0.0}.get(gender, nan),
            last["creatinine"][1] if "creatinine" in last else nan,
            last["hba1c"][1] if "hba1c" in last else nan,
            float(diabetes),
        ]
    return found


def fill(url: str) -> Rows:
    """Make the hospital's database, and return its rows."""
    rows, engine = hospital(), sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        for name, columns in TABLES.items():
            connection.exec_driver_sql(f"CREATE TABLE {name} ({columns})")
            names = [each.split()[0] for each in columns.split(", ")]
            table = sqlalchemy.table(name, *map(sqlalchemy.column, names))
            connection.execute(
                sqlalchemy.insert(table), [dict(zip(names, row, strict=True)) for row in rows[name]]
            )
    engine.dispose()
    return rows


@pytest.fixture
def rows(empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rows:
    monkeypatch.chdir(tmp_path)
    Path("address.txt").write_text(f"{empty_database_url}\n", "utf-8")
    Path("address.txt").chmod(0o600)
    return fill(empty_database_url)


def test_the_query_makes_the_table(rows: Rows, command_line: CommandLine) -> None:
    Path("kidney.json").write_text(block("README.md", "json"), "utf-8")
    Path("cohort.sql").write_text(block("omop.md", "sql", "WITH stay"), "utf-8")
    script = block("omop.md", "sh")
    command_line.run_script(script)
    assert "all 5 features" in command_line.out
    assert command_line.run(*shlex.split(script.splitlines()[-1])[1:], "--json") == 0
    facts = json.loads(command_line.out)
    assert facts["refused"] is None
    assert min(column["n"] for column in facts["columns"]) > 10, facts
    expected_rows = expected(rows)
    assert 30 < len(expected_rows) < N
    compare_persons("omop", expected_rows)


def test_the_query_of_units_counts_every_value(rows: Rows) -> None:
    engine = sqlalchemy.create_engine(Path("address.txt").read_text("utf-8").strip())
    with engine.connect() as connection:
        counted = connection.exec_driver_sql(block("omop.md", "sql", "COUNT(*)")).all()
    engine.dispose()
    known = [each for each in rows["measurement"] if each[2] in (3004410, 3016723, 3020564)]
    assert {(3004410, 9579), (3016723, 0)} < {(concept, unit) for concept, unit, _ in counted}
    assert sum(n for _, _, n in counted) == len(known)
