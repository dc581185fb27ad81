"""A coordinator and four hospitals as processes on this machine: ``make demo``.

    python examples/demo.py [--dir DIRECTORY] [--keep-running | --no-keep-running]

The data are scikit-learn's breast-cancer records (Wolberg, Street and Mangasarian, 1995), divided
unevenly and reproducibly. The hospitals take part in one session for each method. At the end, the
results are compared with k-means on all rows together, which no real consortium could compute.
"""

import argparse
import csv
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hospitals
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import adjusted_rand_score

from fedclust.client import Client
from fedclust.result.session_terms import SessionTerms
from fedclust.wire.models import RoundInfo, SessionInfo

#: The sessions in order, each with its method; the last is the baseline.
SESSIONS = {"breast-fkm": "fkm", "breast-kfed": "kfed", "breast-lloyd": "lloyd"}
SPLIT_SEED = 2026
#: Each hospital's share of all malignant and of all benign records. The cancer centre has other
#: patients than the small hospitals, so each hospital alone would find other clusters.
SHARES = {
    "cancer-centre": (0.60, 0.22),
    "city-hospital": (0.22, 0.38),
    "county-hospital": (0.12, 0.25),
    "island-clinic": (0.06, 0.15),
}
K = 2
_MARKER = ".fedclust-demo"


@dataclass(frozen=True)
class Hospital:
    """One hospital's records. The hospital never gets ``diagnosis`` (0 malignant, 1 benign)."""

    name: str
    X: NDArray[np.float64]
    diagnosis: NDArray[np.int64]

    def write(self, features: Sequence[str], path: Path) -> None:
        """Write the hospital's file, with record numbers and exact values."""
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["record", *features])
            for number, row in enumerate(self.X.tolist(), 1):
                writer.writerow([f"{self.name[:2].upper()}-{number:04d}", *row])

    def labels(self, session: str, out: Path) -> NDArray[np.int64]:
        """Read the labels of the hospital's records, which are in the file's order."""
        path = out / self.name / f"{session}.csv"
        return np.loadtxt(path, np.int64, delimiter=",", skiprows=1, usecols=1)


def hospital_records() -> tuple[list[str], list[Hospital]]:
    """Return the names of the features and the four hospitals' records, always the same."""
    data = load_breast_cancer()
    rng = np.random.default_rng(SPLIT_SEED)
    owner = np.empty(len(data.data), dtype=np.int64)
    for kind in (0, 1):
        rows = rng.permutation(np.flatnonzero(data.target == kind))
        cuts = np.rint(np.cumsum([share[kind] for share in SHARES.values()]) * len(rows))
        owner[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
    return list(data.feature_names), [
        Hospital(name, data.data[owner == place], data.target[owner == place])
        for place, name in enumerate(SHARES)
    ]


def main() -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--dir", type=Path, default=Path("fedclust-demo"), help="the folder for results and ledgers"
    )
    parser.add_argument(
        "--keep-running",
        action=argparse.BooleanOptionalAction,
        default=sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI"),
        help="keep the coordinator running afterwards; by default only on a terminal",
    )
    given = parser.parse_args()
    out = given.dir.absolute()
    if out.exists() and any(out.iterdir()):
        if not (out / _MARKER).exists():
            parser.error(f"{out} is not empty and not of an earlier demo: choose another (--dir)")
        shutil.rmtree(out)
    # The processes end with this one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        show(out, keep_running=given.keep_running)
    except KeyboardInterrupt:
        print("stopped")
        return 130
    return 0


def show(out: Path, *, keep_running: bool) -> None:
    """Run the sessions and print what happens, in a folder that is empty."""
    console, (features, everyone) = Console(highlight=False), hospital_records()
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARKER).write_text("made by the demo of fedclust; may be deleted\n", "utf-8")
    for each in everyone:
        (out / each.name).mkdir()
        each.write(features, out / each.name / "hospital.csv")
    console.rule("[bold]1. a coordinator")
    with hospitals.coordinator(out / "coordinator") as (url, operator_token):
        console.print(f"serving on {url}, SQLite in {out / 'coordinator'}")
        token = hospitals.register(url, operator_token, out, SHARES)
        console.print(_hospital_table(everyone))
        with Client(url, token) as analyst:
            console.rule("[bold]2. the analyst ada defines a session of each method")
            console.print(f"K={K}, {len(features)} features, standard scaling")
            sessions = [analyst.create_session(definition(each, features)) for each in SESSIONS]
            _show_terms(sessions, url, console)
            console.rule("[bold]3. four hospitals take part, each in its own process")
            for session in SESSIONS:
                take_part(analyst, session, url, out, console)
            console.rule("[bold]4. compared with k-means on all rows together")
            results = {each: analyst.result_document(each).result for each in SESSIONS}
        _compare(everyone, results, out, console)
        console.rule("[bold]5. what to look at")
        _show_files(out, console)
        if keep_running:
            console.print(f"see the results in a browser:  {url}", soft_wrap=True)
            console.print(f"with the analyst's token:      {token}", soft_wrap=True)
            console.print(f"or with the operator's:        {operator_token}", soft_wrap=True)
            console.print("[bold]press Ctrl-C to stop[/bold]")
            with suppress(KeyboardInterrupt):
                while True:
                    time.sleep(1)
    again = f"fedclust-service serve --data-dir {os.path.relpath(out / 'coordinator')}"
    stopped = f"the pages were at {url}; the coordinator has stopped, and starts again with:"
    console.print(stopped, soft_wrap=True)
    console.print(f"  {again}", soft_wrap=True)


def definition(session: str, features: Sequence[str]) -> dict[str, Any]:
    """Return the definition that the analyst sends."""
    return {
        "name": session,
        "title": "Breast tumours at four hospitals",
        "purpose": "Which kinds of breast tumours do the four hospitals see? A demonstration with "
        "public data.",
        "contact": "ada, ada@example.org",
        "algorithm": SESSIONS[session],
        "config": {"n_clusters": K},
        "seed": 7,
        "features": [{"name": name} for name in features],
        "sites": list(SHARES),
    }


def take_part(analyst: Client, session: str, url: str, out: Path, console: Console) -> None:
    """Let all hospitals take part in a session, and print each round that has ended."""
    began, printed = time.monotonic(), 0
    console.print(f"[bold]{session}[/bold]")
    arguments = ["participate", session, "--data", "hospital.csv", "--id-column", "record", "--yes"]
    arguments += ["--labels-out", f"{session}.csv", "--result-out", f"{session}.fedclust"]
    running = {
        name: hospitals.command(*arguments, url=url, at=out / name, wait=False) for name in SHARES
    }

    def ended() -> bool:
        nonlocal printed
        over = hospitals.all_ended(running)
        for round_ in list(analyst.rounds(session))[printed:]:
            if round_.state not in ("closed", "failed"):
                break
            console.print(_round_line(round_), soft_wrap=True)
            printed += 1
        return over

    try:
        hospitals.wait(ended, running, out)
    finally:
        hospitals.end(running)
    console.print(f"completed: {analyst.session(session).stopped_because}")
    console.print(f"{time.monotonic() - began:.1f} s, mostly to start four Python processes")


# --- what is printed ------------------------------------------------------------------------------


def _hospital_table(everyone: Sequence[Hospital]) -> Table:
    table = Table("hospital", "records", "malignant (the hospitals do not know)", box=None)
    for each in everyone:
        table.add_row(each.name, str(len(each.X)), f"{np.mean(each.diagnosis == 0):.0%}")
    return table


def _show_terms(sessions: Sequence[SessionInfo], url: str, console: Console) -> None:
    """Print the consent screen of each session; what an earlier one said is left out."""
    shown: set[str] = set()
    for session in sessions:
        site = session.definition.sites[0]
        table = Table.grid("heading", "line", padding=(0, 2))
        p = session.definition.policy.min_group_size
        terms = SessionTerms(url, site, session.asker, session.operator, session.definition, p)
        said = [(heading, line) for heading, line in terms.text() if line not in shown]
        for heading, line in said:
            table.add_row(heading, line)
        if shown:
            table.add_row("", "Everything else is as above.")
        shown.update(line for _, line in said)
        console.print(
            f"\n[bold]{session.name}[/bold] asks of each hospital, such as {site}:", table
        )
    console.print("fedclust participate --full lists every field, and says what it can identify")


def _round_line(round_: RoundInfo) -> str:
    closed = round_.closed_at or round_.opened_at
    answered = sum(site.answered for site in round_.sites)
    metrics = ", ".join(
        f"{name} {value:.6g}" for name, value in round_.metrics.items() if name != "n_sites"
    )
    return (
        f"round {round_.number:>2} {round_.phase:<9} {answered} of {len(round_.sites)} answered, "
        f"{round_.state} after {(closed - round_.opened_at).total_seconds():5.2f} s  {metrics}"
    )


def _compare(
    everyone: Sequence[Hospital], results: dict[str, dict[str, Any]], out: Path, console: Console
) -> None:
    X = np.vstack([each.X for each in everyone])
    diagnosis = np.concatenate([each.diagnosis for each in everyone])
    center, scale = X.mean(axis=0), X.std(axis=0)
    rows = (X - center) / scale
    pooled = KMeans(K, n_init=50, random_state=0).fit(rows)
    table = Table(
        *("", "rounds", "inertia over all rows, of pooled", "ARI with pooled labels"),
        *("ARI with diagnosis", "persons in each cluster"),
        box=None,
    )
    for session, result in results.items():
        found = (np.asarray(result["centroids_original"]) - center) / scale
        distances = ((rows[:, None, :] - found[None]) ** 2).sum(axis=2)
        labels = np.concatenate([each.labels(session, out) for each in everyone])
        table.add_row(
            *(session, str(len(result["history"]))),
            f"{distances.min(axis=1).sum() / pooled.inertia_:.5f}",
            f"{adjusted_rand_score(pooled.labels_, labels):.4f}",
            f"{adjusted_rand_score(diagnosis, labels):.4f}",
            ", ".join(map(str, result["sizes"])),
        )
    table.add_row(
        *("pooled", "", "1", "1"),
        f"{adjusted_rand_score(diagnosis, pooled.labels_):.4f}",
        ", ".join(map(str, np.bincount(pooled.labels_, minlength=K))),
    )
    console.print(table)
    console.print("rounds: all, with preparation and evaluation")
    console.print("pooled: k-means, 50 starts, on all rows together, which no consortium may have")


def _show_files(out: Path, console: Console) -> None:
    """Print the files to look at, each path on a line of its own so that it is not broken."""
    some, first = out / min(SHARES, key=lambda name: sum(SHARES[name])), next(iter(SESSIONS))
    for path, text in (
        (some / f"{first}.csv", "record and cluster; they never leave the hospital"),
        (some / f"{first}.fedclust", "labels new rows: fedclust predict"),
        (some / "state", "what has left: FEDCLUST_STATE_DIR=... fedclust ledger show"),
        (some / "log", "consent screen and progress"),
        (out / "coordinator", "the coordinator's database and log"),
    ):
        console.print(f"  {os.path.relpath(path)}\n      {text}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
