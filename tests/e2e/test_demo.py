"""The demo, as ``make demo`` runs it in CI."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support.processes import clean_environment
from support.timeouts import TIMEOUT_S

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
METHODS = ("fkm", "kfed", "lloyd")
HOSPITALS = ("cancer-centre", "city-hospital", "county-hospital", "island-clinic")


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(DEMO), "--dir", str(directory), *arguments],
        env=clean_environment({"CI": "true", "COLUMNS": "160"}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.long
def test_the_demo_runs_and_leaves_what_it_says(tmp_path: Path) -> None:
    process = start(tmp_path / "demo")
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, out
    for method in METHODS:
        line = re.search(
            rf"^\s*breast-{method}\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+[\d.]+\s", out, re.M
        )
        assert line is not None, out
        assert int(line[1]) >= 3
        assert 1 <= float(line[2]) < 1.05
        # Where whole cells are labelled, in one shot, it is less than row by row.
        assert float(line[3]) > (0.7 if method == "kfed" else 0.9)
    assert out.count("Everything else is as above.") == len(METHODS) - 1
    assert "ARI with diagnosis" in out
    assert re.search(r"pages were at http://127\.0\.0\.1:\d+;", out)
    assert out.count("4 of 4 answered") >= 3
    for name in HOSPITALS:
        assert name in out
        for method in METHODS:
            for ending in ("csv", "fedclust"):
                assert (tmp_path / "demo" / name / f"breast-{method}.{ending}").stat().st_size > 0
        assert (tmp_path / "demo" / name / "state" / "state.sqlite3").exists()
    assert not children_of(tmp_path), "a process was left behind"


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
@pytest.mark.long
def test_the_demo_takes_its_processes_along_when_it_is_stopped(tmp_path: Path) -> None:
    process = start(tmp_path / "demo", "--keep-running")
    # In the midst of a session: its processes run, and none is just being started.
    assert any("4 of 4 answered" in line for line in process.stdout)
    assert children_of(tmp_path)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode != 0
    assert not children_of(tmp_path)


def test_the_demo_does_not_touch_a_directory_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("irreplaceable", "utf-8")
    process = start(tmp_path)
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 2
    assert "not empty" in out
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def children_of(directory: Path) -> list[int]:
    """Return the processes that work below a directory."""
    return [
        process.pid
        for process in psutil.process_iter(["cwd"])
        if process.info["cwd"] and Path(process.info["cwd"]).is_relative_to(directory)
    ]
