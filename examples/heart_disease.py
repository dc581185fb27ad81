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
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import hospitals
import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from fedclust import errors
from fedclust.client import Client

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
    with hospitals.coordinator(out / "coordinator") as (url, operator_token):
        analyst_token = hospitals.register(url, operator_token, out, HOSPITALS)
        print(f"coordinator at {url}, four hospitals, one analyst")
        for session, definition in SESSIONS.items():
            with Client(url, analyst_token) as analyst:
                analyst.create_session(body(session, definition))
            take_part(url, session, given.data, out)
            report = out / f"{session}.html"
            hospitals.command(
                "session", "result", session, "--report", str(report), url=url, at=out
            )
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


def take_part(url: str, session: str, data: Path, out: Path) -> None:
    """Let all hospitals take part in a session, each in a separate process."""
    masked = SESSIONS[session]["policy"]["missing"] == "mask"
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in HOSPITALS:
            rows = data.absolute() / file_of(name)
            arguments = ["participate", session, "--data", str(rows), *READING, "--yes"]
            if masked:
                arguments += ["--min-present", "0.7", "--sentinel", "chol=0"]
            arguments += ["--labels-out", f"{session}.csv"]
            running[name] = hospitals.command(*arguments, url=url, at=out / name, wait=False)
        hospitals.wait(lambda: hospitals.all_ended(running), running, out)
    finally:
        hospitals.end(running)


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
