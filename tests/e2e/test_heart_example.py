"""`examples/heart_disease.py` on files of the same form as the UCI's, in real processes."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from support.processes import clean_environment, run

EXAMPLE = Path(__file__).parents[2] / "examples" / "heart_disease.py"


@pytest.fixture(autouse=True)
def _beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the script import the other modules of the examples."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLE.parent)])


def _example() -> ModuleType:
    return importlib.import_module(EXAMPLE.stem)


def _write(directory: Path) -> None:
    """Write four raw files: no header, ``?``, and one hospital with a cholesterol of 0."""
    rng = np.random.default_rng(0)
    for number, file in enumerate(_example().HOSPITALS.values()):
        lines = []
        for row in range(80):
            sick = int(rng.random() < 0.5)
            values = [50 + 12 * sick + rng.normal(), row % 2, 2 + 2 * sick, 120 + 15 * sick]
            values += [0 if number == 2 else 200 + 60 * sick, 0, sick, 170 - 40 * sick, sick]
            values += [2.0 * sick + 0.1 * rng.random(), 1 + sick, sick, 3 + 3 * sick]
            cells = [f"{value:g}" for value in values]
            if number:  # Cleveland alone has the last two
                cells[-2:] = ["?", "?"]
            lines.append(",".join([*cells, str(sick * int(rng.integers(1, 5)))]))
        (directory / f"processed.{file}.data").write_text("\n".join(lines) + "\n", "ascii")


@pytest.mark.parametrize("given", ["absent", "empty", "one file short"])
def test_data_that_are_not_there_are_named_before_anything_starts(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    if given != "absent":
        data.mkdir()
    if given == "one file short":
        _write(data)
        (data / "processed.va.data").unlink()
    monkeypatch.setattr(
        sys, "argv", ["heart_disease.py", "--data", str(data), "--out", str(tmp_path / "out")]
    )
    with pytest.raises(SystemExit) as ended:
        _example().main()

    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "processed.va.data" in said
    assert str(data) in said
    assert ("processed.cleveland.data" in said) == (given != "one file short")
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_the_example_runs_from_raw_files_to_reports(tmp_path: Path) -> None:
    _write(tmp_path)
    out = tmp_path / "out"
    given = ("--data", tmp_path, "--out", out, "--figures", tmp_path / "figures")
    done = run([sys.executable, str(EXAMPLE), *map(str, given)], env=clean_environment())

    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [each["session"] for each in printed] == ["heart-shared", "heart-all"]
    for each in printed:
        assert each["labelled"] == each["rows"] == 320
        assert each["accuracy"] > 0.95
        report = (out / f"{each['session']}.html").read_text("utf-8")
        assert "<title>Profile of the clusters" in report
        assert 'aria-label="Mix of the clusters by site.' in report
    assert len(list(out.glob("*/state/state.sqlite3"))) == 4
    zurich = (out / "zurich" / "log").read_text("utf-8")
    assert "chol" in zurich
    figures = {path.name for path in (tmp_path / "figures").iterdir()}
    assert figures >= {"heart_shared_profile.svg", "heart_all_profile.svg"}


def test_agreement_is_of_the_better_naming_and_of_labelled_rows() -> None:
    agreement = _example().agreement
    labels, sick = np.array([1, 1, 0, 0, -1]), np.array([False, False, True, False, True])

    shares = {"accuracy": 0.75, "ari": 0.0, "majority": 0.75}
    assert agreement(labels, sick) == {"rows": 5, "labelled": 4, **shares}
