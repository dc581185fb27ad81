"""The cost of the service compared with a minimal coordinator: wall time and CPU of a round.

Four sites, scikit-learn's digits, Dirichlet(.5) label skew, K = 10, 20 rounds of ``fkm``'s paper
variant (no early stopping), separate processes. ``_floor.py`` is the minimal coordinator: the same
local step and aggregation, without tokens, validation, journal or audit. CPU is that of all five
processes together. Start-up is left out: counting starts when round 3 opens and ends with round 20.
The two take turns, ``--repeats`` times.
"""

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _data import digits, label_skew  # noqa: E402
from _report import write  # noqa: E402
from fedclust.definition import canonical, freeze  # noqa: E402
from fedclust.wire.codec import canonical_json  # noqa: E402
from fedclust.wire.models import SessionCreate  # noqa: E402
from support.consortium import Consortium, columns  # noqa: E402
from support.processes import clean_environment  # noqa: E402
from support.server import running_server  # noqa: E402

ROUNDS = 20
FIRST, LAST = 3, ROUNDS
SESSION: dict[str, Any] = {
    "purpose": "What a benchmark measures on made-up rows.",
    "algorithm": "fkm",
    "config": {"n_clusters": 10, "variant": "paper", "rounds": ROUNDS, "evaluate": False},
    "policy": {"scaling": "none", "missing": "drop", "max_rounds": ROUNDS + 1},
    "seed": 7,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    X, y = digits()
    sites = {site: X[rows] for site, rows in label_skew(y, 4, 0.5, 0).items()}
    found: dict[str, list[tuple[float, float]]] = {"bare floor": [], "service": []}
    with tempfile.TemporaryDirectory() as name:
        for repeat in range(options.repeats):
            for kind, measure in (("bare floor", _bare), ("service", _service)):
                folder = Path(name) / f"{kind}{repeat}"
                folder.mkdir()
                for site, rows in sites.items():
                    np.save(folder / f"{site}.npy", rows)
                found[kind].append(measure(folder, sites))
    rows = []
    for kind, figures in found.items():
        wall, cpu = zip(*figures, strict=True)
        rows.append(
            {
                "what": kind,
                "wall ms / round": 1000 * median(wall),
                "CPU ms / round": 1000 * median(cpu),
                "wall, least to most": f"{1000 * min(wall):.1f} - {1000 * max(wall):.1f}",
                "CPU, least to most": f"{1000 * min(cpu):.1f} - {1000 * max(cpu):.1f}",
            }
        )
    ratio = {"what": "service / floor (at most 1.6)"}
    for column in ("wall ms / round", "CPU ms / round"):
        ratio[column] = f"{rows[1][column] / rows[0][column]:.2f}"
    ratio |= {"wall, least to most": "", "CPU, least to most": ""}
    write(
        "floor",
        [*rows, ratio],
        note=(
            f"Medians of {options.repeats} sessions of {ROUNDS} rounds; rounds {FIRST} to {LAST}; "
            "CPU of coordinator and four sites together."
        ),
    )


def _bare(folder: Path, sites: dict[str, np.ndarray]) -> tuple[float, float]:
    request = {"name": "floor", "features": _features(sites), "sites": sorted(sites), **SESSION}
    definition = freeze(SessionCreate.model_validate_json(canonical_json(request)), 7)
    (folder / "definition.json").write_bytes(canonical(definition))
    coordinator = _start("coordinator", folder)
    try:
        _until(lambda: (folder / "ready").exists())
        return _measure(folder, sites, "bare", coordinator.pid, folder / "floor.db")
    finally:
        coordinator.kill()
        coordinator.wait()


def _service(folder: Path, sites: dict[str, np.ndarray]) -> tuple[float, float]:
    with running_server(folder / "server") as server:
        consortium = Consortium.found(server.base_url, server.operator_token, tuple(sites))
        width = next(iter(sites.values())).shape[1]
        consortium.create("floor", width, **SESSION)
        for site, token in consortium.site_tokens.items():
            said = {"url": server.base_url, "token": token}
            (folder / f"{site}.json").write_text(json.dumps(said), "ascii")
        assert server.process is not None
        return _measure(folder, sites, "sdk", server.process.pid, folder / "server" / "fedclust.db")


def _features(sites: dict[str, np.ndarray]) -> list[dict[str, str]]:
    return [{"name": name} for name in columns(next(iter(sites.values())).shape[1])]


def _measure(
    folder: Path, sites: dict[str, np.ndarray], role: str, coordinator: int, database: Path
) -> tuple[float, float]:
    """Run the sites and return wall and CPU seconds of a round."""
    running = [_start(role, folder, site) for site in sites]
    try:
        _until(lambda: all((folder / f"{site}.warm").exists() for site in sites))
        processes = [psutil.Process(pid) for pid in (coordinator, *(p.pid for p in running))]
        (folder / "go").touch()
        rounds = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        number = "SELECT coalesce(max(number), 0) FROM rounds"
        _until(lambda: rounds.execute(number).fetchone()[0] >= FIRST)
        began, at_first = time.perf_counter(), rounds.execute(number).fetchone()[0]
        before = _cpu(processes)
        _until(lambda: rounds.execute(number).fetchone()[0] >= LAST)
        took, cpu = time.perf_counter() - began, _cpu(processes) - before
        at_last = rounds.execute(number).fetchone()[0]
        rounds.close()
        for process in running:
            assert process.wait(60) == 0, "a site failed"
        return took / (at_last - at_first), cpu / (at_last - at_first)
    finally:
        for process in running:
            process.kill()
            process.wait()


def _start(*arguments: Any) -> subprocess.Popen[bytes]:
    program = Path(__file__).with_name("_floor.py")
    return subprocess.Popen(
        [sys.executable, str(program), *map(str, arguments)], env=clean_environment()
    )


def _cpu(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (p.cpu_times() for p in processes))


def _until(true: Any, timeout_s: float = 120.0) -> None:
    give_up = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < give_up, "it takes too long"
        time.sleep(0.005)


if __name__ == "__main__":
    main()
