"""Heart disease at four hospitals: raw files, five processes, one clustering, a report.

    python examples/heart_disease.py --data DIRECTORY [--out DIRECTORY] [--figures DIRECTORY]

``DIRECTORY`` holds the four files ``processed.{cleveland,hungarian,switzerland,va}.data`` of the
UCI Machine Learning Repository (id 45; A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano),
unchanged: no header, ``?`` for a missing value, and a cholesterol of 0 in all rows from
Switzerland, where it was not measured.

A coordinator and four hospitals run as separate processes and talk over HTTP. Two sessions:

- ``heart-shared``: federated k-means on the eight features that all four hospitals have.
- ``heart-all``: all thirteen. Each hospital uses those that groups with 70 % of its patients
  release (``missing: mask``): all thirteen in Cleveland, fewer in the others.

No hospital sends the diagnosis: it is in a column that the sessions do not ask for. Only this
script, which plays all roles, compares it with the labels at the end.
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from fedclust import errors
from fedclust.client import Client, ConnectionOptions

HOSPITALS = {"cleveland": "cleveland", "budapest": "hungarian", "zurich": "switzerland"}
HOSPITALS["long-beach"] = "va"
FEATURES: tuple[str, ...] = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach")
FEATURES += ("exang", "oldpeak", "slope", "ca", "thal")
UNITS = {"age": "years", "trestbps": "mmHg", "chol": "mg/dl", "thalach": "/min", "oldpeak": "mm"}
BINARY = ("sex", "fbs", "exang")
SHARED = ("age", "sex", "cp", "trestbps", "restecg", "thalach", "exang", "oldpeak")
SESSIONS: dict[str, dict[str, Any]] = {
    "heart-shared": {
        "algorithm": "fkm",
        "config": {"n_clusters": 2},
        "features": SHARED,
        "policy": {"missing": "impute"},
    },
    "heart-all": {
        "algorithm": "overlap",
        "config": {"n_clusters": 2},
        "features": FEATURES,
        "policy": {"missing": "mask"},
    },
}
#: How to read every hospital's file: its columns, and the text that means a missing value.
READING = ("--columns", ",".join([*FEATURES, "num"]), "--missing", "?")
SEED = 7
_WAIT_S = 120.0


def main() -> int:
    """Run everything and print the results."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="directory of the four files")
    parser.add_argument("--out", type=Path, default=Path("heart-disease"))
    parser.add_argument("--figures", type=Path, help="directory for the report's figures, as SVG")
    given = parser.parse_args()
    absent = [name for name in map(file_of, HOSPITALS) if not (given.data / name).is_file()]
    if absent:
        parser.error(f"--data: no {', '.join(absent)} in {given.data}")
    out = given.out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        parser.error(f"--out: {given.out} exists and is not an empty directory")
    out.mkdir(parents=True, exist_ok=True)
    with coordinator(out / "coordinator") as (url, operator_token):
        analyst_token = register(url, operator_token, out, HOSPITALS)
        print(f"coordinator at {url}, four hospitals, one analyst")
        for session, definition in SESSIONS.items():
            with Client(url, analyst_token) as analyst:
                analyst.create_session(body(session, definition))
            take_part(url, session, given.data, out)
            report = out / f"{session}.html"
            command("session", "result", session, "--report", str(report), url=url, at=out)
            print(json.dumps({"session": session, **compared(session, given.data, out)}))
            print(f"report: {report}")
            if given.figures is not None:
                figures(url, analyst_token, session, given.figures)
    return 0


def body(session: str, definition: dict[str, Any]) -> dict[str, Any]:
    """Return the definition that the analyst sends."""
    features = [
        {
            "name": name,
            "unit": UNITS.get(name, ""),
            "kind": "binary" if name in BINARY else "numeric",
        }
        for name in definition["features"]
    ]
    sites = sorted(HOSPITALS)
    return {
        "name": session,
        "purpose": "Which types of coronary patients do the four hospitals share?",
        "seed": SEED,
        **definition,
        "features": features,
        "sites": sites,
    }


def file_of(hospital: str) -> str:
    """Return the name of a hospital's file."""
    return f"processed.{HOSPITALS[hospital]}.data"


# --- processes ------------------------------------------------------------------------------------


@contextmanager
def coordinator(directory: Path, *options: str) -> Iterator[tuple[str, str]]:
    """Run a coordinator with options of ``serve``; yield its address and the operator's token."""
    directory.mkdir()
    ready, log = directory / "ready", directory / "log"
    program = "import sys; from fedclust_service.cli import main; sys.exit(main())"
    arguments = ["serve", "--data-dir", str(directory), "--port", "0", "--ready-file", str(ready)]
    arguments += options
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], stdout=output, stderr=output, env=_env()
        )
    try:
        give_up = time.monotonic() + _WAIT_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"the coordinator did not start: see {log}")
            time.sleep(0.05)
        token = re.search(r"operator token \(shown once\): (fco_\S+)", log.read_text("utf-8"))
        if token is None:
            raise SystemExit(f"the coordinator printed no operator token: see {log}")
        yield ready.read_text("ascii").strip(), token[1]
    finally:
        process.terminate()
        process.wait(30)


def register(
    url: str,
    operator_token: str,
    out: Path,
    sites: Iterable[str],
    options: ConnectionOptions | None = None,
) -> str:
    """Register sites and an analyst, write their token files, return the analyst's token."""
    with Client(url, operator_token, options) as operator:
        for name in sites:
            operator.add("sites", name)
            _keep(out / name / "token", operator.issue_token("sites", name).token)
        operator.add("analysts", "ada")
        token = operator.issue_token("analysts", "ada").token
    _keep(out / "token", token)
    return token


def command(*arguments: str, url: str, at: Path, wait: bool = True) -> subprocess.Popen[bytes]:
    """Run ``fedclust`` with the token in ``at``."""
    program = "import sys, fedclust.cli.main as cli; sys.exit(cli.main())"
    env = _env() | {"FEDCLUST_COORDINATOR": url, "FEDCLUST_TOKEN_FILE": str(at / "token")}
    # Keep the groups of this trial's persons apart from those of real sessions on this account.
    env["FEDCLUST_STATE_DIR"] = str(at / "state")
    with (at / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], stdout=log, stderr=log, cwd=at, env=env
        )
    if wait and process.wait(_WAIT_S):
        raise SystemExit(f"fedclust {arguments[0]} ended with {process.returncode}: {at / 'log'}")
    return process


def take_part(url: str, session: str, data: Path, out: Path) -> None:
    """Let all hospitals take part in a session, each in a separate process."""
    masked = SESSIONS[session]["policy"]["missing"] == "mask"
    running = {}
    try:
        for name in HOSPITALS:
            rows = data.absolute() / file_of(name)
            arguments = ["participate", session, "--data", str(rows), *READING, "--yes"]
            if masked:
                arguments += ["--min-present", "0.7", "--sentinel", "chol=0"]
            arguments += ["--labels-out", f"{session}.csv"]
            running[name] = command(*arguments, url=url, at=out / name, wait=False)
        give_up = time.monotonic() + _WAIT_S
        while any(process.poll() is None for process in running.values()):
            # The others would wait for ever for one that has failed.
            failed = [name for name, process in running.items() if process.poll()]
            if failed or time.monotonic() > give_up:
                break
            time.sleep(0.05)
        for name, process in running.items():
            if process.poll():
                log = out / name / "log"
                raise SystemExit(f"{name} ended with {process.returncode}: see {log}")
        late = [name for name, process in running.items() if process.poll() is None]
        if late:
            raise SystemExit(f"{', '.join(late)} did not end in {_WAIT_S:.0f} s: see {out}")
    finally:
        for process in running.values():
            if process.poll() is None:
                process.terminate()
                process.wait(30)


def _keep(path: Path, token: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(token + "\n")


def _env() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FEDCLUST_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


# --- comparison with the diagnosis ----------------------------------------------------------------


def compared(session: str, data: Path, out: Path) -> dict[str, Any]:
    """Compare all hospitals' labels with the diagnosis: sick is ``num`` above 0."""
    labels: list[int] = []
    sick: list[bool] = []
    for name in HOSPITALS:
        with (out / name / f"{session}.csv").open(encoding="utf-8", newline="") as lines:
            own = [-1 if row[1] == "" else int(row[1]) for row in list(csv.reader(lines))[1:]]
        rows = (data / file_of(name)).read_text("ascii").split()
        labels += own
        sick += [row.rpartition(",")[2] != "0" for row in rows]
    return agreement(np.array(labels), np.array(sick))


def agreement(labels: NDArray[np.int64], sick: NDArray[np.bool_]) -> dict[str, Any]:
    """Return accuracy (with the better naming of two clusters), ARI and the majority's rate."""
    known = labels >= 0
    same = float((labels[known] == sick[known]).mean())
    share = float(sick[known].mean())
    return {
        "rows": len(labels),
        "labelled": int(known.sum()),
        "accuracy": round(max(same, 1.0 - same), 4),
        "ari": round(float(adjusted_rand_score(sick[known], labels[known])), 4),
        "majority": round(max(share, 1.0 - share), 4),
    }


def figures(url: str, token: str, session: str, directory: Path) -> None:
    """Write the report's figures, one file each."""
    with Client(url, token) as analyst:
        plots = analyst.result(session).plot
    directory.mkdir(parents=True, exist_ok=True)
    for draw in (plots.convergence, plots.profile, plots.sizes):
        # A result may lack a figure: a line needs two rounds.
        with suppress(errors.UsageError):
            draw().save(directory / f"{session.replace('-', '_')}_{draw.__name__}.svg")


if __name__ == "__main__":
    sys.exit(main())
