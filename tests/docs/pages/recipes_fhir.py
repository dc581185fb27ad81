"""A small bulk export; tests/recipes/test_fhir.py compares a larger one with its table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docs.page import Page
from recipes.recipe_page import block
from recipes.test_fhir import ICD, condition, observation, write


@contextmanager
def around(page: Page) -> Iterator[None]:
    (page.place / "kidney.json").write_text(block("README.md", "json"), "utf-8")
    page.file("fhir_table.py", "fhir_table.py FOLDER")
    patients, observations, conditions = [], [], []
    for n in range(24):
        key, sex = f"p{n}", ("female", "male")[n % 2]
        born = f"{1940 + n}-06-15"
        patients.append({"resourceType": "Patient", "id": key, "gender": sex, "birthDate": born})
        observations += [
            observation(key, "59261-8", 40 + n, "mmol/mol", "2025-03-10"),
            observation(key, "14682-9", 80 + 5 * n, "umol/L", "2025-03-10"),
        ]
        if n % 3 == 0:
            conditions.append(condition(f"Patient/{key}", ICD, "E11.9", onsetDateTime="2020"))
    write("Patient.ndjson", patients)
    write("Observation.ndjson", observations)
    write("Condition.ndjson", conditions)
    yield
