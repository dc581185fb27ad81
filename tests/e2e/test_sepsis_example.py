"""`examples/sepsis.py` reads the challenge's files as they are, and its story runs to the end."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.processes import clean_environment
from support.timeouts import TIMEOUT_S

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("sepsis_files")


def test_a_patient_becomes_a_row_of_the_first_day(files: ModuleType, tmp_path: Path) -> None:
    def hour(**values: float) -> str:
        return "|".join(str(values.get(column, "NaN")) for column in files.HEADER)

    stay = [
        hour(HR=80, WBC=9, Age=61, Unit1=1, Unit2=0, ICULOS=1, SepsisLabel=0),
        hour(HR=90, WBC=12, Platelets=200, Age=61, ICULOS=24, SepsisLabel=0),
        hour(HR=150, WBC=30, Platelets=50, Age=61, ICULOS=25, SepsisLabel=1),
    ]
    path = tmp_path / "p000007.psv"
    path.write_text("\n".join([files.FIRST_LINE, *stay]) + "\n", "ascii")
    row, unit = files.summarise(path)
    assert unit == "medical"
    assert (row["patient"], row["heart_rate"], row["leukocytes"]) == ("p000007", 85.0, 12.0)
    assert (row["platelets"], row["creatinine"], row["age"]) == (200.0, "", 61.0)
    assert (row["sepsis"], row["icu_hours"]) == (1, 25)


def test_the_twin_is_read_as_the_challenge_is(
    files: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(files.HEADER) == 41
    monkeypatch.setattr(files, "MIX", {"a-medical": (3, 0, 1, 0), "b-surgical": (0, 2, 0, 1)})
    types = files.write_twin(tmp_path / "one")
    # The archive of the challenge has one more folder.
    (tmp_path / "training").mkdir()
    (tmp_path / "one").rename(tmp_path / "training" / "one")
    sites = files.load(tmp_path, patients=100)
    assert {site: len(rows) for site, rows in sites.items()} == {"a-medical": 4, "b-surgical": 3}
    assert {site: len(own) for site, own in types.items()} == {"a-medical": 4, "b-surgical": 3}
    assert set(sites["a-medical"][0]) == {"patient", *files.SUMMARY, *files.OUTCOMES}
    assert len(files.load(tmp_path, patients=1)["a-medical"]) == 1


@pytest.mark.long
def test_the_story_runs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "sepsis.py"), "--out", str(out)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "those of a run in one process: yes." in done.stdout
    assert "the whole database names 0." in done.stdout
    study = out / "sepsis-2019"
    for name in ("report.html", "methods.md", "references.bib", "checklist.md"):
        assert (study / name).stat().st_size > 1000
