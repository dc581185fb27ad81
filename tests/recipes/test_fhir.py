"""The FHIR recipe on a small bulk export, compared with what was put into it."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recipes.recipe_page import block

NAN = float("nan")
LOINC, UCUM = "http://loinc.org", "http://unitsofmeasure.org"
ICD, SNOMED = "http://hl7.org/fhir/sid/icd-10-cm", "http://snomed.info/sct"


def observation(
    patient: str, code: str, value: Any, unit: str, when: str | None, **more: Any
) -> dict[str, Any]:
    quantity = {"value": value, "unit": unit, "system": UCUM, "code": unit}
    made = {
        "resourceType": "Observation",
        "status": "final",
        "code": {"coding": [{"system": "urn:own", "code": "K1"}, {"system": LOINC, "code": code}]},
        "subject": {"reference": f"Patient/{patient}"},
        "valueQuantity": quantity,
        **({} if when is None else {"effectiveDateTime": when}),
    }
    made["valueQuantity"] |= more.pop("quantity", {})
    return made | more


def condition(patient: str, system: str, code: str, **more: Any) -> dict[str, Any]:
    return {
        "resourceType": "Condition",
        "subject": {"reference": patient},
        "code": {"coding": [{"system": system, "code": code}]},
        **more,
    }


def write(name: str, resources: list[dict[str, Any]]) -> None:
    Path("export").mkdir(exist_ok=True)
    lines = [json.dumps(each) for each in resources]
    Path("export", name).write_text("\n".join(lines) + "\n\n", "utf-8")


def export() -> dict[str, list[float]]:
    """Write a bulk export here; return each patient's values in own units.

    `tests/docs/page_set_ups.py` compares the table that the page makes of it.
    """
    draw = random.Random(3)
    expected_rows: dict[str, list[float]] = {}
    patients, observations, conditions = [], [], []
    for number in range(40):
        key, year, female = f"p{number:02}", draw.randint(1940, 2000), draw.random() < 0.5
        sex = "female" if female else "male"
        born = f"{year}-06-15"
        patients.append({"resourceType": "Patient", "id": key, "gender": sex, "birthDate": born})
        expected_rows[key] = [2025.0 - year, float(female), NAN, NAN, 0.0]
        days = sorted(draw.sample([f"2025-{month:02}-10T08:00:00Z" for month in range(1, 13)], 3))
        for day in days:
            mmol, crea = draw.randint(30, 100), draw.randint(50, 300)
            observations.append(observation(key, "59261-8", mmol, "mmol/mol", day))
            observations.append(observation(key, "14682-9", crea, "umol/L", day))
            expected_rows[key][2:4] = [crea / 88.42, mmol * 0.09148 + 2.152]
        if draw.random() < 0.4:
            conditions.append(condition(f"Patient/{key}", ICD, "E11.9"))
            expected_rows[key][4] = 1.0
    draw.shuffle(observations)

    # What does not count, or counts in another way.
    late, day = "2026-01-01", "2025-12-31"
    patients[0]["birthDate"], expected_rows["p00"][0] = "1960-12", 65.0
    patients[1]["birthDate"], expected_rows["p01"][0] = "1960", 65.0
    del patients[2]["birthDate"]
    expected_rows["p02"][0] = NAN
    patients[3]["gender"], expected_rows["p03"][1] = "unknown", NAN
    observations += [
        observation("p00", "2160-0", 9.5, "mg/dL", late),
        observation("p00", "2160-0", 9.5, "mg/dL", None),
        observation("p00", "2160-0", 9.5, "mg/dL", day, status="entered-in-error"),
        observation("p00", "2160-0", 9.5, "mg/dL", day, quantity={"comparator": "<"}),
        observation("p00", "2160-0", 9.5, "g/L", day),
        observation("p00", "718-7", 14, "g/dL", day),
        observation("nobody", "2160-0", 9.5, "mg/dL", day),
        observation("p01/_history/2", "2160-0", 1.25, "mg/dL", day, status="amended"),
    ]
    expected_rows["p01"][2] = 1.25
    for key in ("p04", "p05", "p06", "p07", "p08"):
        conditions = [each for each in conditions if key not in each["subject"]["reference"]]
        expected_rows[key][4] = 0.0
    refuted = {"coding": [{"system": "x/condition-ver-status", "code": "refuted"}]}
    conditions += [
        condition("Patient/p04", SNOMED, "44054006", recordedDate="2024-05-05"),
        condition("Patient/p05", ICD, "E11", onsetDateTime=late),
        condition("Patient/p06", ICD, "E11.9", verificationStatus=refuted),
        condition("Patient/p07", ICD, "E1", onsetDateTime="2020"),
        condition("https://host/fhir/Patient/p08", ICD, "E10", onsetDateTime="2020"),
    ]
    expected_rows["p04"][4] = expected_rows["p08"][4] = 1.0
    write("Patient.ndjson", patients)
    write("Observation.000.ndjson", observations[::2])
    write("Observation.001.ndjson", observations[1::2])
    write("Condition.ndjson", conditions)
    return expected_rows


#: What the script says of values that it left out.
LEFT_OUT = ("no date, or after", "not final", "no number, or only a limit", "unknown unit g/L")


def test_an_export_that_is_not_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def said() -> str:
        program = [sys.executable, "-c", block("fhir.md", "python"), "export", "cohort.csv"]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        return done.stderr

    write("Patient.ndjson", [{"resourceType": "Patient", "id": "a"}])
    assert "no file *Observation*" in said()
    Path("export", "Observation.ndjson").write_text('\n{"resourceType": "Obs', "utf-8")
    assert "line 2: this is no JSON" in said()
