"""The files of the PhysioNet/CinC Challenge 2019, one row a patient; and a made-up twin of them.

The challenge (Reyna et al., Critical Care Medicine 48(2), 2020, https://doi.org/10.13026/v64v-d857)
published the intensive-care stays of two hospital systems: 20,336 patients in ``training_setA`` and
20,000 in ``training_setB``. Each patient has a file ``p*.psv`` with a row for each hour and 41
columns separated by ``|``. Of all patients 2,932 (7.3 %) have a sepsis label. The files are not
part of fedclust.

Where they are absent, :func:`write_twin` writes files of the same form about patients who never
lived. From the challenge come the form, the names of the columns, and roughly the share of
patients with sepsis. Everything else was chosen for this example: four types of patients, their
values, and how many of each type are in each unit.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

#: The first line of every file, and its columns.
FIRST_LINE = (
    "HR|O2Sat|Temp|SBP|MAP|DBP|Resp|EtCO2|BaseExcess|HCO3|FiO2|pH|PaCO2|SaO2|AST|BUN|"
    "Alkalinephos|Calcium|Chloride|Creatinine|Bilirubin_direct|Glucose|Lactate|Magnesium|"
    "Phosphate|Potassium|Bilirubin_total|TroponinI|Hct|Hgb|PTT|WBC|Fibrinogen|Platelets|Age|"
    "Gender|Unit1|Unit2|HospAdmTime|ICULOS|SepsisLabel"
)
HEADER = FIRST_LINE.split("|")
#: Hours of the stay that describe a patient.
HOURS = 24
#: A feature: the file's column, how the first hours become one number, and its declaration. Bounds
#: are values that any patient could have.
SUMMARY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "age": ("Age", "mean", {"unit": "years", "lower": 0, "upper": 120}),
    "heart_rate": ("HR", "mean", {"unit": "/min", "lower": 20, "upper": 250}),
    "mean_pressure": ("MAP", "mean", {"unit": "mmHg", "lower": 20, "upper": 200}),
    "breathing_rate": ("Resp", "mean", {"unit": "/min", "lower": 4, "upper": 70}),
    "temperature": ("Temp", "mean", {"unit": "°C", "lower": 25, "upper": 45}),
    "oxygen": ("O2Sat", "mean", {"unit": "%", "lower": 40, "upper": 100}),
    "creatinine": (
        "Creatinine",
        "highest",
        {"unit": "mg/dl", "lower": 0.1, "upper": 40, "transform": "log"},
    ),
    "leukocytes": (
        "WBC",
        "highest",
        {"unit": "10³/µl", "lower": 0.1, "upper": 400, "transform": "log"},
    ),
    "platelets": ("Platelets", "lowest", {"unit": "10³/µl", "lower": 1, "upper": 2000}),
}
#: Not clustered. Sepsis is any label of the whole stay, so it can begin within the first hours.
OUTCOMES: dict[str, dict[str, Any]] = {
    "sepsis": {"kind": "binary", "points": 50},
    "icu_hours": {
        "kind": "ordered",
        "unit": "h",
        "edges": [24, 48, 96],
        "values": [16, 36, 66, 140],
        "points": 50,
    },
}
_COMBINE = {"mean": np.nanmean, "highest": np.nanmax, "lowest": np.nanmin}

Row = dict[str, Any]


# --- from the files to a row for each patient -----------------------------------------------------


def load(directory: Path, patients: int) -> dict[str, list[Row]]:
    """Return the patients of each site: an intensive-care unit of one of the two hospitals.

    Two sites would learn each other's part of every sum by subtraction, and need the express
    consent of both. Units within a hospital also differ in their patients, as hospitals do. So each
    hospital is divided by its units: medical, surgical, and those whose files do not say which.

    Parameters
    ----------
    directory : Path
        Holds ``training_setA`` and ``training_setB``, at any depth.
    patients : int
        The first patients of each hospital, by file name.
    """
    sites: dict[str, list[Row]] = defaultdict(list)
    for hospital in ("A", "B"):
        for path in files_of(directory, hospital)[:patients]:
            row, unit = summarise(path)
            sites[f"{hospital.lower()}-{unit}"].append(row)
    return dict(sorted(sites.items()))


def files_of(directory: Path, hospital: str) -> list[Path]:
    """Return a hospital's files, sorted by patient."""
    found = sorted(directory.rglob(f"training_set{hospital}"))
    return sorted(found[0].rglob("p*.psv"), key=lambda path: path.name) if found else []


def summarise(path: Path) -> tuple[Row, str]:
    """Return a patient as one row, with the unit: ``medical``, ``surgical`` or ``unstated``.

    Vital signs are means of the first 24 hours, laboratory values the worst of them. A value that
    was never measured in this time is empty.
    """
    with path.open(encoding="ascii", newline="") as file:
        lines = list(csv.reader(file, delimiter="|"))
    place = {name: j for j, name in enumerate(lines[0])}
    stay = np.array(lines[1:], dtype=np.float64)
    first = stay[stay[:, place["ICULOS"]] <= HOURS]
    row: Row = {"patient": path.stem}
    for name, (column, how, _) in SUMMARY.items():
        values = first[:, place[column]]
        known = not np.isnan(values).all()
        row[name] = round(float(_COMBINE[how](values)), 3) if known else ""
    row["sepsis"] = int(np.nanmax(stay[:, place["SepsisLabel"]]) > 0)
    row["icu_hours"] = int(stay[-1, place["ICULOS"]])
    medical, surgical = stay[0, place["Unit1"]], stay[0, place["Unit2"]]
    return row, "medical" if medical == 1 else "surgical" if surgical == 1 else "unstated"


def write_rows(path: Path, rows: Sequence[Row], columns: Iterable[str]) -> None:
    """Write a site's table."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["patient", *columns], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


# --- the twin -------------------------------------------------------------------------------------

#: The types of the twin: the mean and the spread of each column (of the last two columns, of their
#: logarithms), the probability of sepsis, and the mean stay in hours.
_COLUMNS = ("Age", "HR", "MAP", "Resp", "Temp", "O2Sat", "Platelets", "Creatinine", "WBC")
TYPES: dict[str, tuple[tuple[float, ...], tuple[float, ...], float, float]] = {
    "mild": (
        (58, 80, 86, 17, 36.8, 97.5, 230, np.log(0.85), np.log(9)),
        (13, 10, 9, 2.5, 0.35, 1.2, 55, 0.25, 0.25),
        0.03,
        32,
    ),
    "kidney": (
        (70, 84, 84, 19, 36.7, 97.0, 210, np.log(3.4), np.log(9.5)),
        (9, 10, 9, 2.5, 0.35, 1.2, 55, 0.3, 0.25),
        0.08,
        38,
    ),
    "inflamed": (
        (61, 104, 78, 25, 38.4, 94.5, 265, np.log(1.0), np.log(17)),
        (12, 10, 9, 2.5, 0.45, 1.5, 60, 0.25, 0.25),
        0.15,
        46,
    ),
    "shock": (
        (66, 114, 62, 26, 36.4, 94.0, 95, np.log(2.4), np.log(16)),
        (11, 11, 7, 3, 0.5, 1.6, 30, 0.3, 0.3),
        0.35,
        60,
    ),
}
#: Patients of each unit of the twin, by type in the order above.
MIX: dict[str, tuple[int, int, int, int]] = {
    "a-medical": (200, 130, 3, 20),
    "a-surgical": (270, 8, 14, 60),
    "b-medical": (170, 3, 165, 8),
    "b-surgical": (300, 70, 6, 10),
}


def write_twin(directory: Path, seed: int = 2019) -> dict[str, list[str]]:
    """Write the twin's files, and return the type of each patient of each unit, in their order."""
    rng = np.random.default_rng(seed)
    types: dict[str, list[str]] = {}
    numbers = {"a": 0, "b": 100_000}
    for unit, mix in MIX.items():
        hospital = unit[0]
        folder = directory / f"training_set{hospital.upper()}"
        folder.mkdir(parents=True, exist_ok=True)
        types[unit] = [str(each) for each in rng.permutation(np.repeat(list(TYPES), mix))]
        for name in types[unit]:
            numbers[hospital] += 1
            patient = folder / f"p{numbers[hospital]:06d}.psv"
            _write_patient(patient, _stay(name, unit.endswith("medical"), rng))
    return types


def _stay(name: str, medical: bool, rng: np.random.Generator) -> np.ndarray:
    """Return the hours of a made-up patient (hours, 41)."""
    means, spreads, risk, hours = TYPES[name]
    length = int(np.clip(rng.gamma(9, hours / 9), 8, 120))
    stay = np.full((length, len(HEADER)), np.nan)
    place = {column: j for j, column in enumerate(HEADER)}
    own = rng.normal(means, spreads)
    for column, value, spread in zip(_COLUMNS, own, spreads, strict=True):
        hourly = value + 0.4 * spread * rng.standard_normal(length)
        hourly = np.exp(hourly) if column in ("Creatinine", "WBC") else np.maximum(hourly, 5)
        if column in ("Creatinine", "WBC", "Platelets"):
            # Measured every eight hours.
            hourly[np.arange(length) % 8 != 2] = np.nan
        else:
            hourly[rng.random(length) < 0.1] = np.nan
        stay[:, place[column]] = hourly
    stay[:, place["O2Sat"]] = np.minimum(stay[:, place["O2Sat"]], 100)
    stay[:, place["Age"]] = round(float(np.clip(own[0], 18, 95)))
    stay[:, place["Gender"]] = rng.integers(0, 2)
    stay[:, place["Unit1"]], stay[:, place["Unit2"]] = int(medical), int(not medical)
    stay[:, place["HospAdmTime"]] = -1
    stay[:, place["ICULOS"]] = np.arange(1, length + 1)
    stay[:, place["SepsisLabel"]] = 0
    if rng.random() < risk:
        stay[rng.integers(4, length) :, place["SepsisLabel"]] = 1
    return stay


def _write_patient(path: Path, stay: np.ndarray) -> None:
    rows = ("|".join(f"{value:.6g}".replace("nan", "NaN") for value in hour) for hour in stay)
    path.write_text("\n".join([FIRST_LINE, *rows]) + "\n", "ascii")
