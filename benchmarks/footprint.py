"""Size of a hospital's installation, and how fast programs start.

A fresh virtual environment gets ``pip install .`` without extras; the coordinator's figures are
taken with this interpreter. Prints a table, writes ``benchmarks/results/footprint.json``.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from support.code_lines import code_lines  # noqa: E402
from support.server import ServerProcess  # noqa: E402

REPEATS = 5
SITE = ROOT / "client_sdk" / "fedclust"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        rows = [*_install(Path(name) / "bare"), *_serving(Path(name))]
    network = [SITE / f"{name}.py" for name in ("_http", "client", "site/participate")]
    network += [SITE / "site" / "journal.py", *(SITE / "wire").glob("*.py")]
    lines = sum(code_lines(path) for path in network)
    rows.append(_row("network-facing code at a site", lines, "lines", 1500))
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in network)
    rows.append(_row("the same with blanks, comments, docstrings", lines, "lines", 0))
    readme = (ROOT / "README.md").read_text("utf-8")
    code = next(b for b in re.findall(r"```python\n(.*?)```", readme, re.S) if "Site(" in b)
    count = len([line for line in code.splitlines() if line.strip()])
    rows.append(_row("a site's code in the README", count, "lines", 6))
    write("footprint", rows)


def _row(what: str, value: float, unit: str, at_most: float) -> dict[str, object]:
    return {"what": what, "value": round(value, 3), "unit": unit, "at most": at_most or ""}


def _install(folder: Path) -> list[dict[str, object]]:
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(ROOT)], check=True)
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format", "json"], check=True, capture_output=True
    )
    # pip and setuptools come with the environment.
    ours = [d for d in json.loads(listed.stdout) if d["name"] not in ("pip", "setuptools")]
    packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    size = sum(
        path.stat().st_size
        for path in Path(packages).rglob("*")
        if path.is_file() and path.relative_to(packages).parts[0] not in ("pip", "setuptools")
    )
    return [
        _row("bare install, distributions", len(ours), "", 30),
        _row("bare install, size", size / 2**20, "MiB", 350),
        _row("import fedclust", _median(python, "import fedclust"), "s", 1),
        _row("import fedclust.Site", _median(python, "from fedclust import Site"), "s", 1),
    ]


def _median(python: Path, program: str) -> float:
    """Return what a program takes beyond an interpreter's start, compiled files being there."""
    taken = []
    for statement in ("pass", program):
        times = []
        for _ in range(REPEATS + 1):
            began = time.perf_counter()
            subprocess.run([python, "-c", statement], check=True)
            times.append(time.perf_counter() - began)
        taken.append(sorted(times[1:])[REPEATS // 2])
    return taken[1] - taken[0]


def _serving(folder: Path) -> list[dict[str, object]]:
    times = []
    for number in range(REPEATS):
        server = ServerProcess(folder / f"data{number}")
        began = time.perf_counter()
        server.start()
        try:
            with urlopen(f"{server.base_url}/healthz") as reply:  # noqa: S310 - our own, loopback
                assert reply.status == 200
            times.append(time.perf_counter() - began)
        finally:
            server.kill()
    return [_row("serve on an empty machine to first 200", sorted(times)[REPEATS // 2], "s", 2)]


if __name__ == "__main__":
    main()
