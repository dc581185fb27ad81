"""Phenotypes of intensive-care patients: hospitals disagree alone, and one session settles it.

    python examples/sepsis.py [--data DIRECTORY] [--heart DIRECTORY] [--out DIRECTORY]

``--data`` holds the files of the PhysioNet/CinC Challenge 2019 (``training_setA`` and
``training_setB``); without it the example writes a made-up twin of them (``sepsis_files``).
``--heart`` holds the four files of ``heart_disease.py``, for the same story with them.

A coordinator and the sites run as separate processes and talk over HTTP. One site is killed in the
middle and started again. Only this script, which plays all roles, sees all patients at once.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import heart_disease as heart
import numpy as np
import sepsis_files
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from fedclust import simulate
from fedclust.client import Client
from fedclust.session_result import SessionResult

SEED = 7
MODELS = 100
_WAIT_S = 300.0


@dataclass(frozen=True)
class Study:
    """What the sites want to know, and their patients.

    Attributes
    ----------
    name, purpose : str
    sites : dict of site to rows
    features, outcomes : dict of name to declaration
    k : int
        The number of clusters of the study's protocol; one less and one more are tried too.
    types : dict of site to the true type of each patient
        Known of made-up patients alone.
    """

    name: str
    purpose: str
    sites: dict[str, list[dict[str, Any]]]
    features: dict[str, dict[str, Any]]
    outcomes: dict[str, dict[str, Any]]
    k: int
    types: dict[str, list[str]] = field(default_factory=dict)

    @property
    def definition(self) -> dict[str, Any]:
        """The definition that the analyst sends."""
        return {
            "name": self.name,
            "purpose": self.purpose,
            "algorithm": "fkm",
            "config": {
                "n_clusters": [self.k - 1, self.k, self.k + 1],
                "stability": MODELS,
                "transfer": True,
            },
            "features": self.declared,
            # Outcomes are counted once, and so at one number of clusters.
            "outcomes_k": self.k,
            "sites": list(self.sites),
            "seed": SEED,
        }

    @property
    def declared(self) -> list[dict[str, Any]]:
        """The features and outcomes as a definition declares them."""
        outcomes = {name: {"role": "outcome", **about} for name, about in self.outcomes.items()}
        return [{"name": name, **about} for name, about in (self.features | outcomes).items()]

    @property
    def columns(self) -> list[str]:
        """The columns of every site's table."""
        return [*self.features, *self.outcomes]


def main() -> int:
    """Tell the story of each study."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, help="directory of the challenge's files")
    parser.add_argument("--heart", type=Path, help="directory of the four heart files")
    parser.add_argument(
        "--patients", type=int, default=1_000, help="patients to read of each hospital's files"
    )
    parser.add_argument("--out", type=Path, help="an empty directory; by default a temporary one")
    given = parser.parse_args()
    if given.out is not None and given.out.exists() and any(given.out.iterdir()):
        parser.error(f"--out: {given.out} is not an empty directory")
    for hospital in ("A", "B") if given.data is not None else ():
        if not sepsis_files.files_of(given.data, hospital):
            parser.error(f"--data: no training_set{hospital} with p*.psv in {given.data}")
    out = Path(tempfile.mkdtemp(prefix="fedclust-sepsis-")) if given.out is None else given.out
    began = time.monotonic()
    studies = [sepsis(given.data, given.patients, out)]
    if given.heart is not None:
        studies.append(heart_disease(given.heart))
    for study in studies:
        tell(study, out.absolute() / study.name)
    print(f"\nEverything is in {out}. It took {time.monotonic() - began:.0f} s.")
    return 0


# --- the studies ----------------------------------------------------------------------------------


def sepsis(data: Path | None, patients: int, out: Path) -> Study:
    """Return the study of the challenge's files, or of their twin."""
    types: dict[str, list[str]] = {}
    if data is None:
        data = out / "twin"
        types = sepsis_files.write_twin(data)
    return Study(
        name="sepsis-2019",
        purpose="Which types of patients do the intensive-care units share, and who gets sepsis?",
        sites=sepsis_files.load(data, patients),
        features={name: about for name, (_, _, about) in sepsis_files.SUMMARY.items()},
        outcomes=sepsis_files.OUTCOMES,
        k=4,
        types=types,
    )


def heart_disease(data: Path) -> Study:
    """Return the study of the four hospitals' coronary patients, with what all have measured."""
    kinds = {name: {"kind": "binary"} if name in heart.BINARY else {} for name in heart.SHARED}
    sites: dict[str, list[dict[str, Any]]] = {}
    for name in heart.HOSPITALS:
        with (data / heart.file_of(name)).open(encoding="ascii", newline="") as file:
            lines = [["" if cell == "?" else cell for cell in line] for line in csv.reader(file)]
        rows = [dict(zip([*heart.FEATURES, "num"], line, strict=True)) for line in lines if line]
        sites[name] = [
            {"patient": f"{name}-{i}", **row, "sick": int(row["num"] != "0")}
            for i, row in enumerate(rows)
        ]
    return Study(
        name="heart-shared",
        purpose="Which types of coronary patients do the four hospitals share?",
        sites=dict(sorted(sites.items())),
        features={name: {"unit": heart.UNITS.get(name, ""), **kinds[name]} for name in kinds},
        outcomes={"sick": {"kind": "binary", "points": 50}},
        k=3,
    )


# --- the story ------------------------------------------------------------------------------------


def tell(study: Study, out: Path) -> None:
    """Run everything and print what comes of it."""
    out.mkdir(parents=True)
    files = {name: out / name / "patients.csv" for name in study.sites}
    for name, rows in study.sites.items():
        files[name].parent.mkdir()
        sepsis_files.write_rows(files[name], rows, study.columns)
    title(f"{study.name}: {study.purpose}")
    table(
        ["site", "patients", *study.outcomes],
        [
            [name, len(rows), *(mean_of(rows, outcome) for outcome in study.outcomes)]
            for name, rows in study.sites.items()
        ],
    )
    alone(study)
    with heart.coordinator(out / "coordinator") as (url, operator_token):
        token = heart.register(url, operator_token, out, study.sites)
        result = one_session(study, url, token, out)
    same_as_in_one_process(study, files, result)
    several_k(result)
    result = result.at(study.k)
    clusters(study, result)
    stability(result)
    transfer(result)
    outcomes(result)
    to_publish(result, out)
    what_the_coordinator_holds(study, out / "coordinator" / "fedclust.db")


def alone(study: Study) -> None:
    """Let each site cluster its own patients, and apply every site's clusters to all patients."""
    title("1. Alone, the sites disagree")
    everyone, of = matrix(study, study.sites), {}
    for name in study.sites:
        own = matrix(study, [name])
        centre, spread = own.mean(axis=0), own.std(axis=0)
        spread[spread == 0] = 1.0
        model = KMeans(study.k, n_init=10, random_state=0).fit((own - centre) / spread)
        of[name] = model.predict((everyone - centre) / spread)
    table(
        ["clusters of", *of],
        [[a, *(adjusted_rand_score(of[a], of[b]) for b in of)] for a in of],
    )
    print(
        f"Each site's own k-means (K = {study.k}), applied to the patients of all sites: adjusted "
        "Rand index, 1 where two sites put all patients into the same clusters."
    )


def one_session(study: Study, url: str, token: str, out: Path) -> SessionResult:
    """Run the session, kill a site in the middle, and return the analyst's result."""
    title("2. One session, and a site that is killed")
    victim = list(study.sites)[-1]
    with Client(url, token) as analyst:
        info = analyst.create_session(study.definition)
        print(f"All sites consent to one definition, SHA-256 {info.definition_sha256}.")
        running = {name: participate(study.name, url, out / name) for name in study.sites}
        try:
            wait(lambda: open_round(analyst, study.name) >= 2, running, out)
            running[victim].send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
            running[victim].wait()
            wait(lambda: answered(analyst, study.name) >= set(study.sites) - {victim}, {}, out)
            number = open_round(analyst, study.name)
            print(f"{victim} is killed; round {number} has the answers of the others and waits.")
            running[victim] = participate(study.name, url, out / victim)
            wait(lambda: all(p.poll() == 0 for p in running.values()), running, out)
        finally:
            for process in running.values():
                if process.poll() is None:
                    process.terminate()
                    process.wait(30)
        rounds = list(analyst.rounds(study.name))
        print(f"{victim} starts again and resumes: the session completes in {len(rounds)} rounds.")
        return analyst.result(study.name)


def same_as_in_one_process(study: Study, files: dict[str, Path], result: SessionResult) -> None:
    """Compare the result with that of a simulation, in which nobody is killed."""
    expected = simulate(
        "fkm",
        {name: str(path) for name, path in files.items()},
        config=study.definition["config"],
        policy=study.definition["policy"],
        features=study.declared,
        outcomes_k=study.k,
        seed=SEED,
        progress=False,
    )
    same = all(
        np.array_equal(entry.result.centroids, other.result.centroids)
        for entry, other in zip(result.sweep_ or (), expected.sweep_ or (), strict=True)
    )
    print(f"Centroids equal to the last bit to those of a run in one process: {yes(same)}.")
    if study.types:
        found = np.concatenate([expected.at(study.k).labels_[name] for name in study.sites])
        truth = np.concatenate([study.types[name] for name in study.sites])
        index = adjusted_rand_score(truth, found)
        print(f"The patients are made up, so the truth is known: adjusted Rand index {index:.2f}.")


def several_k(result: SessionResult) -> None:
    """Print what the session says of each number of clusters."""
    title("3. How many clusters?")
    rows = []
    for entry in result.sweep_ or ():
        found = entry.result.stability
        assert found is not None  # noqa: S101 - the definition asks for it
        rows.append(
            [
                entry.n_clusters,
                entry.simplified_silhouette,
                float(found.jaccard.min()),
                found.prediction_strength,
                found.gap,
            ]
        )
    table(["K", "silhouette", "least stable cluster", "prediction strength", "gap"], rows)
    print("\n".join(line for line in [result.result_.recommendation] if line))


def clusters(study: Study, result: SessionResult) -> None:
    """Print sizes and means of the clusters."""
    title(f"4. The clusters (K = {study.k})")
    centroids, sizes = result.cluster_centers_.tolist(), result.sizes_ or ()
    table(
        ["cluster", "persons", *result.columns_],
        [[k, size, *row] for k, (size, row) in enumerate(zip(sizes, centroids, strict=True))],
    )


def stability(result: SessionResult) -> None:
    """Print how stable each cluster is."""
    title("5. Is it stable?")
    found = result.stability_
    assert found is not None  # noqa: S101 - the definition asks for it
    table(
        ["cluster", "mean Jaccard", "found again", "dissolved"],
        [
            [k, *(float(values[k]) for values in (found.jaccard, found.recovered, found.dissolved))]
            for k in range(len(found.jaccard))
        ],
    )
    print(f"{found.n_models} models of resampled sites and patients. Stable from .75, .85: highly.")


def transfer(result: SessionResult) -> None:
    """Print whether each site would have found the clusters alone."""
    title("6. Would each site have found this alone?")
    found = result.result_.transfer
    assert found is not None  # noqa: S101 - the definition asks for it
    table(
        ["site", "patients", "own clusters", "found alone", "model without it", "codes otherwise"],
        [
            [
                name,
                site.n_rows,
                site.own_ari,
                site.found_alone,
                site.left_out_ari,
                ", ".join(site.differing_columns) or None,
            ]
            for name, site in sorted(found.sites.items())
        ],
    )
    print(
        "Adjusted Rand index with the common clusters: of the site's own, and of a model made "
        "without the site."
    )


def outcomes(result: SessionResult) -> None:
    """Print how outcomes differ between the clusters: counts of rows with random noise."""
    title("7. Does it matter?")
    found = result.outcomes_
    assert found is not None  # noqa: S101 - the definition asks for it
    for outcome in found.results:
        binary = outcome.kind == "binary"
        measure = "odds_ratio" if binary else "mean_difference"
        others = {each.cluster: each for each in outcome.comparisons if each.measure == measure}
        rows: list[list[Any]] = []
        for k, own in enumerate(outcome.clusters):
            typical = own.shares[0] if binary else own.mean
            effect, p = "reference", None
            if k in others:
                effect, p = interval(others[k].estimate), others[k].p_value
            rows.append([k, round(own.persons), interval(typical), effect, p])
        names = ("share", "odds ratio") if binary else ("mean", "difference")
        unit = f" ({outcome.unit})" if outcome.unit else ""
        print(f"{outcome.name}{unit}, noise with a standard deviation of {outcome.sigma:.2g}:")
        table(["cluster", "persons", *names, "p"], rows)


def to_publish(result: SessionResult, out: Path) -> None:
    """Write the report, the methods section, its references and the checklist."""
    title("8. What to publish")
    result.save_report(out / "report.html")
    for name, text in (
        ("methods.md", result.methods_text()),
        ("references.bib", result.bibtex()),
        ("checklist.md", result.checklist().markdown()),
    ):
        (out / name).write_text(text, "utf-8")
    print(result.methods_text().split("\n\n")[3])
    print(f"The report, methods.md, references.bib and checklist.md are in {out}.")


def what_the_coordinator_holds(study: Study, path: Path) -> None:
    """Print what the coordinator's database has of the patients."""
    title("9. What the coordinator holds")
    with sqlite3.connect(path) as database:
        sent = database.execute(
            "SELECT phase, COUNT(*), SUM(size) FROM submissions GROUP BY phase ORDER BY MIN(id)"
        ).fetchall()
    table(["phase", "submissions", "bytes"], [list(row) for row in sent])
    ids = [str(row["patient"]) for rows in study.sites.values() for row in rows]
    everything = path.read_bytes()
    named = sum(name.encode() in everything for name in ids)
    print(
        f"Of {len(ids)} patients, the whole database names {named}. Every number in a submission "
        "rests on at least five patients of its site, except counts of outcomes, which have noise."
    )


# --- processes ------------------------------------------------------------------------------------


def participate(session: str, url: str, at: Path) -> subprocess.Popen[bytes]:
    """Start a site; its FEDCLUST_STATE_DIR is in its own folder, as in ``heart.command``."""
    return heart.command(
        *("participate", session, "--data", "patients.csv", "--id-column", "patient", "--yes"),
        *("--labels-out", "labels.csv"),
        url=url,
        at=at,
        wait=False,
    )


def open_round(analyst: Client, session: str) -> int:
    """Return the number of the newest round, 0 before the first."""
    return max((each.number for each in analyst.rounds(session)), default=0)


def answered(analyst: Client, session: str) -> set[str]:
    """Return the sites that have answered the newest round."""
    newest = max(analyst.rounds(session), key=lambda each: each.number)
    return {site.name for site in newest.sites if site.answered}


def wait(done: Any, running: dict[str, subprocess.Popen[bytes]], out: Path) -> None:
    """Wait until ``done`` says so; SystemExit if a site fails or it takes too long."""
    give_up = time.monotonic() + _WAIT_S
    while not done():
        failed = [name for name, process in running.items() if process.poll()]
        if failed or time.monotonic() > give_up:
            names = ", ".join(failed) or "a site"
            raise SystemExit(f"{names} did not get on: see {out}/*/log")
        time.sleep(0.05)


# --- tables ---------------------------------------------------------------------------------------


def matrix(study: Study, sites: Iterable[str]) -> NDArray[np.float64]:
    """Return the features of these sites' patients; the mean of all stands for a missing value."""
    rows = [row for site in sites for row in study.sites[site]]
    values = np.array(
        [[np.nan if row[name] == "" else row[name] for name in study.features] for row in rows],
        dtype=np.float64,
    )
    for j, about in enumerate(study.features.values()):
        if about.get("transform") == "log":
            values[:, j] = np.log(values[:, j])
    return np.where(np.isnan(values), np.nanmean(values, axis=0), values)


def mean_of(rows: Sequence[dict[str, Any]], name: str) -> float:
    """Return the mean of an outcome."""
    return float(np.mean([float(row[name]) for row in rows if row[name] != ""]))


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}")


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table."""
    shown = [[cell(value) for value in row] for row in [list(header), *rows]]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        print("  ".join(value.rjust(width) for value, width in zip(row, widths, strict=True)))


def cell(value: Any) -> str:
    """Return a value of a table."""
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def interval(estimate: Any) -> str:
    """Return an estimate with its 95 % interval, which may be open."""
    if estimate is None or (estimate.lower is None and estimate.upper is None):
        return "this table cannot tell"
    if estimate.upper is None:
        return f"at least {estimate.lower:.3g}"
    if estimate.lower is None:
        return f"at most {estimate.upper:.3g}"
    return f"{estimate.value:.3g} ({estimate.lower:.3g} to {estimate.upper:.3g})"


def yes(fact: bool) -> str:
    """Return yes or no."""
    return "yes" if fact else "NO"


if __name__ == "__main__":
    sys.exit(main())
