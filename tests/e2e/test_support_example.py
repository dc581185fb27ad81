"""`examples/support.py` on made-up patients with SUPPORT's columns, in real processes."""

import importlib
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from support.processes import popen

EXAMPLES = Path(__file__).parents[2] / "examples"
STUDY = """
import numpy as np
import pandas as pd
from support_study import *

SEVERAL_K, MORE_FEATURES = [2, 4], ""
HOSPITALS = {name: HOSPITALS[name] for name in ("aarhus", "basel", "cork")}

def load():
    rng, n = np.random.default_rng(0), 400
    kind, names = rng.integers(0, 4, n), [each.split()[0] for each in FEATURES.split(";")]
    rows = pd.DataFrame(rng.uniform(30, 40, (n, len(names))).round(2), columns=names)
    rows["age"] += 12 * (kind % 2)
    rows["crea"], rows["sod"] = 1 + 3 * (kind // 2), rows["sod"] + 100
    rows.loc[rng.random(n) < 0.05, "wblc"] = np.nan
    died, days = rng.random(n) < 0.2 + 0.15 * kind, rng.integers(1, 500, n)
    more = {"hospital_days": rng.integers(1, 30, n), "days": days, "death": died.astype(int)}
    return rows.assign(**more, died_60=(died & (days <= 60)).astype(int), dzgroup="CHF")
"""


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, whose commands are forked as those of other tests are."""
    # At the end, where its name does not hide the tests' own package.
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])
    monkeypatch.setattr(importlib.import_module("hospitals"), "subprocess", SimpleNamespace())
    sys.modules["hospitals"].subprocess.Popen = popen
    spec = spec_from_file_location("support_example", EXAMPLES / "support.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_study_goes_from_files_to_manuscript(
    example: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, study = tmp_path / "out", tmp_path / "made_up.py"
    study.write_text(STUDY, "utf-8")
    monkeypatch.setattr(example, "MODELS", 20)
    monkeypatch.setattr(sys, "argv", ["support.py", "--study", str(study), "--out", str(out)])

    assert example.main() == 0

    said = capsys.readouterr().out
    assert "basel is killed; round" in said
    assert "to a run in one process: yes." in said
    assert "the identifiers of all 400 patients: it holds 0 of them." in said
    assert "https://" in (out / "basel" / "log").read_text("utf-8")
    for name in ("report.html", "methods.md", "references.bib", "crate.zip"):
        assert (out / name).stat().st_size > 1000


def test_a_package_that_is_absent_is_named(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "SurvSet", None)
    monkeypatch.setattr(sys, "argv", ["support.py", "--out", str(tmp_path / "out")])

    with pytest.raises(SystemExit) as ended:
        example.main()

    assert "support_study.py needs SurvSet" in str(ended.value)
    assert ".venv/bin/pip install -e '.[examples]'" in str(ended.value)
    assert not (tmp_path / "out").exists()
