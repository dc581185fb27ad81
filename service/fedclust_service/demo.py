"""``fedclust-service demo``: a coordinator and four hospitals as processes on this machine.

Nothing is mocked. The coordinator is ``fedclust-service serve``, each hospital is ``fedclust
participate`` with its own token, file and state, and they use HTTP on the loopback interface.
The data are scikit-learn's breast-cancer records (Wolberg, Street and Mangasarian, 1995), divided
unevenly and reproducibly. The hospitals take part in one session for each method. At the end, the
results are compared with k-means on all rows together, which no real consortium could compute.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedclust.client import Client
from fedclust.durable_files import write_atomically
from fedclust.result.session_terms import SessionTerms
from fedclust.wire.errors import FedclustError
from fedclust.wire.models import RoundInfo, SessionCreate, SessionInfo

#: The sessions in order, each with its method; the last is the baseline.
SESSIONS = {"breast-fkm": "fkm", "breast-kfed": "kfed", "breast-lloyd": "lloyd"}
ANALYST = "ada"
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
_START_S, _SESSION_S = 120.0, 600.0


class DemoFailure(Exception):
    """A part of the demo failed; the message names it and its output."""


@dataclass(frozen=True)
class Hospital:
    """One hospital's records. The hospital never gets ``diagnosis`` (0 malignant, 1 benign)."""

    name: str
    ids: tuple[str, ...]
    X: NDArray[np.float64]
    diagnosis: NDArray[np.int64]


def hospital_records() -> tuple[tuple[str, ...], list[Hospital]]:
    """Return the feature names and the four hospitals' records, always the same."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    X = np.asarray(data.data, dtype=np.float64)
    diagnosis = np.asarray(data.target, dtype=np.int64)
    rng = np.random.default_rng(SPLIT_SEED)
    owner = np.empty(len(X), dtype=np.int64)
    for kind in (0, 1):
        rows = rng.permutation(np.flatnonzero(diagnosis == kind))
        cuts = np.rint(np.cumsum([share[kind] for share in SHARES.values()]) * len(rows))
        owner[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
    found = []
    for index, name in enumerate(SHARES):
        mine = np.flatnonzero(owner == index)
        ids = tuple(f"{name[:2].upper()}-{number:04d}" for number in range(1, len(mine) + 1))
        found.append(Hospital(name, ids, X[mine], diagnosis[mine]))
    return tuple(str(name) for name in data.feature_names), found


def run(directory: Path, keep_running: bool | None = None, out: Console | None = None) -> int:
    """Run the demo and return its exit code.

    An earlier demo's folder is emptied; any other must be empty. With ``keep_running`` the
    coordinator runs until Ctrl-C, so that you can open its pages; by default only on a terminal and
    not in CI.
    """
    out = out or Console(highlight=False)
    if keep_running is None:
        keep_running = sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI")
    try:
        with _terminated_like_interrupted(), ExitStack() as stack:
            _demo(_Place.prepare(directory), keep_running, out, stack)
    except (DemoFailure, FedclustError) as error:
        out.print(f"the demo failed: {error}", style="bold red", markup=False)
        return 1
    except KeyboardInterrupt:
        out.print("stopped")
        return 130
    return 0


def _demo(place: _Place, keep_running: bool, out: Console, stack: ExitStack) -> None:
    features, hospitals = hospital_records()
    place.write(features, hospitals)
    out.rule("[bold]1. a coordinator")
    server = _Coordinator.start(place, stack)
    out.print(f"serving on {server.url}, SQLite in {place.coordinator}")
    operator = stack.enter_context(Client(server.url, server.operator_token))
    for hospital in hospitals:
        operator.add("sites", hospital.name)
        place.save_token(hospital.name, operator.issue_token("sites", hospital.name).token)
    operator.add("analysts", ANALYST)
    token = operator.issue_token("analysts", ANALYST).token
    analyst = stack.enter_context(Client(server.url, token))
    out.print(_hospital_table(hospitals))

    out.rule(f"[bold]2. the analyst {ANALYST} defines a session of each method")
    out.print(f"K={K}, {len(features)} features, standard scaling")
    sessions = [
        analyst.create_session(_session_definition(name, features, hospitals)) for name in SESSIONS
    ]
    _show_terms(sessions, server.url, out)

    out.rule("[bold]3. four hospitals take part, each in its own process")
    for session in sessions:
        began = time.monotonic()
        out.print(f"[bold]{session.name}[/bold]")
        processes = {
            hospital.name: _participate(place, server.url, session.name, hospital.name, stack)
            for hospital in hospitals
        }
        _watch(analyst, session.name, processes, place, out)
        seconds = time.monotonic() - began
        out.print(f"{seconds:.1f} s, mostly to start four Python processes")

    out.rule("[bold]4. compared with k-means on all rows together")
    results = {name: analyst.result_document(name).result for name in SESSIONS}
    _compare(place, hospitals, results, out)
    out.rule("[bold]5. what to look at")
    for line in place.left():
        out.print(line, soft_wrap=True)
    again = f"fedclust-service serve --data-dir {place.shown / 'coordinator'}"
    if keep_running:
        out.print(f"see the results in a browser:  {server.url}", soft_wrap=True)
        out.print(f"with the analyst's token:      {token}", soft_wrap=True)
        out.print(f"or with the operator's:        {server.operator_token}", soft_wrap=True)
        out.print("[bold]press Ctrl-C to stop[/bold]")
        with contextlib.suppress(KeyboardInterrupt):
            code = server.process.wait()
            raise DemoFailure(f"the coordinator ended unexpectedly with {code}: see {server.log}")
    else:
        out.print(
            f"the pages were at {server.url}; the coordinator stops now, and starts again with:"
        )
        out.print(f"  {again}", soft_wrap=True)


def _session_definition(
    session: str, features: Sequence[str], hospitals: Sequence[Hospital]
) -> SessionCreate:
    return SessionCreate.model_validate(
        {
            "name": session,
            "title": "Breast tumours at four hospitals",
            "purpose": "Which kinds of breast tumours do the four hospitals see? A demonstration "
            "with public data.",
            "contact": f"{ANALYST}, {ANALYST}@example.org",
            "algorithm": SESSIONS[session],
            "config": {"n_clusters": K},
            "seed": 7,
            "features": tuple({"name": name} for name in features),
            "sites": tuple(hospital.name for hospital in hospitals),
        }
    )


# --- files ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """The directory that the demo fills."""

    root: Path

    @classmethod
    def prepare(cls, root: Path) -> _Place:
        root = root.absolute()
        if root.exists() and any(root.iterdir()):
            if not (root / _MARKER).exists():
                raise DemoFailure(f"{root} is not empty and not of an earlier demo: choose another")
            shutil.rmtree(root)
        root.mkdir(parents=True, exist_ok=True)
        (root / _MARKER).write_text("made by fedclust-service demo; may be deleted\n", "utf-8")
        return cls(root)

    @property
    def coordinator(self) -> Path:
        return self.root / "coordinator"

    def site(self, name: str, file: str) -> Path:
        return self.root / name / file

    def write(self, features: Sequence[str], hospitals: Sequence[Hospital]) -> None:
        """Write each hospital's file with record numbers and exact values."""
        self.coordinator.mkdir()
        for hospital in hospitals:
            path = self.site(hospital.name, "hospital.csv")
            path.parent.mkdir()
            for session in SESSIONS:
                self.site(hospital.name, session).mkdir()
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["record", *features])
                for record, row in zip(hospital.ids, hospital.X.tolist(), strict=True):
                    writer.writerow([record, *row])

    def save_token(self, name: str, token: str) -> None:
        write_atomically(self.site(name, "token"), f"{token}\n".encode())

    def labels(self, session: str, hospital: Hospital) -> NDArray[np.int64]:
        """Read the labels of a hospital's records, in the cohort's order."""
        path = self.site(hospital.name, f"{session}/labels.csv")
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))[1:]
        by_record = {record: int(label) for record, label in rows}
        return np.array([by_record[record] for record in hospital.ids], dtype=np.int64)

    @property
    def shown(self) -> Path:
        """The directory relative to the current one."""
        return Path(os.path.relpath(self.root))

    def left(self) -> Iterator[str]:
        """Yield the files to look at, each path on a line of its own so that it is not broken."""
        some = self.shown / min(SHARES, key=lambda name: sum(SHARES[name]))
        first = some / next(iter(SESSIONS))
        for path, text in (
            (first / "labels.csv", "record and cluster; they never leave the hospital"),
            (first / "result.fedclust", "labels new rows: fedclust predict"),
            (some / "state", "what has left: FEDCLUST_STATE_DIR=... fedclust ledger show"),
            (first / "participate.log", "consent screen and progress"),
            (self.coordinator, "the coordinator's database and log"),
        ):
            yield f"  {os.path.relpath(path)}"
            yield f"      {text}"


# --- processes ------------------------------------------------------------------------------------


def _command(module: str, *arguments: str) -> list[str]:
    # The installed commands, found through this interpreter rather than through PATH.
    return [sys.executable, "-c", f"import sys, {module}; sys.exit({module}.main())", *arguments]


def _own_environment() -> dict[str, str]:
    """Return the environment without the user's fedclust settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FEDCLUST_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}


def _start(
    command: Sequence[str], log: Path, directory: Path, stack: ExitStack
) -> subprocess.Popen[bytes]:
    """Start a process that ends with ``stack`` at the latest."""
    with log.open("ab") as file:
        process = subprocess.Popen(  # noqa: S603 - our own programs, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=_own_environment() | {"FEDCLUST_STATE_DIR": str(directory / "state")},
        )
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class _Coordinator:
    url: str
    operator_token: str
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, place: _Place, stack: ExitStack) -> _Coordinator:
        data_dir = ("--data-dir", str(place.coordinator))
        command = _command("fedclust_service.cli", "init", *data_dir)
        init = subprocess.run(  # noqa: S603 - our own program, no shell
            command,
            capture_output=True,
            text=True,
            env=_own_environment(),
            cwd=place.root,
            check=False,
        )
        token = re.search(r"fco_\S+", init.stdout)
        if init.returncode or token is None:
            raise DemoFailure(f"fedclust-service init ended with {init.returncode}: {init.stderr}")
        log = place.coordinator / "serve.log"
        command = _command("fedclust_service.cli", "serve", *data_dir, "--port", "0")
        process = _start(command, log, place.root, stack)
        give_up = time.monotonic() + _START_S
        while time.monotonic() < give_up and process.poll() is None:
            ready = re.search(r"listening on (http://\S+)\n", log.read_text("utf-8"))
            if ready:
                return cls(ready[1].rstrip("/"), token[0], process, log)
            time.sleep(0.05)
        raise DemoFailure(f"the coordinator did not start: {_tail(log)}")


def _participate(
    place: _Place, url: str, session: str, name: str, stack: ExitStack
) -> subprocess.Popen[bytes]:
    command = _command(
        "fedclust.cli.main",
        *("participate", session, "--coordinator", url, "--token-file", "token"),
        *("--data", "hospital.csv", "--id-column", "record"),
        *("--labels-out", f"{session}/labels.csv"),
        *("--result-out", f"{session}/result.fedclust", "--yes"),
    )
    log = place.site(name, f"{session}/participate.log")
    return _start(command, log, log.parent.parent, stack)


def _tail(log: Path, lines: int = 12) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:])


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Make SIGTERM unwind the stack too, so that no process is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- what is printed ------------------------------------------------------------------------------


def _hospital_table(hospitals: Sequence[Hospital]) -> Table:
    table = Table("hospital", "records", "malignant (the hospitals do not know)", box=None)
    for hospital in hospitals:
        malignant = float(np.mean(hospital.diagnosis == 0))
        table.add_row(hospital.name, str(len(hospital.ids)), f"{malignant:.0%}")
    return table


def _show_terms(sessions: Sequence[SessionInfo], url: str, out: Console) -> None:
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
        out.print(f"\n[bold]{session.name}[/bold] asks of each hospital, such as {site}:", table)
    out.print("fedclust participate --full lists every field, and says what it can identify")


def _watch(
    analyst: Client,
    session: str,
    processes: dict[str, subprocess.Popen[bytes]],
    place: _Place,
    out: Console,
) -> None:
    """Print each round that has ended until every hospital has its labels."""
    printed, give_up = 0, time.monotonic() + _SESSION_S
    while True:
        running = any(process.poll() is None for process in processes.values())
        for round_ in list(analyst.rounds(session))[printed:]:
            if round_.state not in ("closed", "failed"):
                break
            out.print(_round_line(round_), soft_wrap=True)
            printed += 1
        for name, process in processes.items():
            if process.poll():
                log = place.site(name, f"{session}/participate.log")
                raise DemoFailure(f"{name} ended with {process.returncode}: {_tail(log)}")
        if not running:
            break
        if time.monotonic() > give_up:
            raise DemoFailure(f"no result after {_SESSION_S:.0f} s")
        time.sleep(0.1)
    state = analyst.session(session)
    if state.state != "completed":
        raise DemoFailure(f"the session is {state.state}: {state.failure}")
    out.print(f"completed: {state.stopped_because}")


def _round_line(round_: RoundInfo) -> str:
    seconds = 0.0
    if round_.closed_at is not None:
        seconds = (round_.closed_at - round_.opened_at).total_seconds()
    answered = sum(site.answered for site in round_.sites)
    metrics = ", ".join(
        f"{name} {value:.6g}" for name, value in round_.metrics.items() if name != "n_sites"
    )
    return (
        f"round {round_.number:>2} {round_.phase:<9} {answered} of {len(round_.sites)} answered, "
        f"{round_.state} after {seconds:5.2f} s  {metrics}"
    )


def _compare(
    place: _Place, hospitals: Sequence[Hospital], results: dict[str, dict[str, Any]], out: Console
) -> None:
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score
    from threadpoolctl import threadpool_limits

    X = np.vstack([hospital.X for hospital in hospitals])
    diagnosis = np.concatenate([hospital.diagnosis for hospital in hospitals])
    center, scale = X.mean(axis=0), X.std(axis=0)
    rows = (X - center) / scale
    with threadpool_limits(1):
        pooled = KMeans(K, n_init=50, random_state=0).fit(rows)
    table = Table(
        *("", "rounds", "inertia over all rows, of pooled", "ARI with pooled labels"),
        *("ARI with diagnosis", "persons in each cluster"),
        box=None,
    )
    for session, result in results.items():
        found = (np.asarray(result["centroids_original"]) - center) / scale
        distances = ((rows[:, None, :] - found[None]) ** 2).sum(axis=2)
        ratio = float(distances.min(axis=1).sum()) / float(pooled.inertia_)
        labels = np.concatenate([place.labels(session, hospital) for hospital in hospitals])
        sizes = [str(size) for size in result["sizes"]]
        table.add_row(
            session,
            str(len(result["history"])),
            f"{ratio:.5f}",
            f"{adjusted_rand_score(pooled.labels_, labels):.4f}",
            f"{adjusted_rand_score(diagnosis, labels):.4f}",
            ", ".join(sizes),
        )
    table.add_row(
        *("pooled", "", "1", "1"),
        f"{adjusted_rand_score(diagnosis, pooled.labels_):.4f}",
        ", ".join(map(str, np.bincount(pooled.labels_, minlength=K))),
    )
    out.print(table)
    out.print("rounds: all, with preparation and evaluation")
    out.print("pooled: k-means, 50 starts, on all rows in one place, which no consortium may have")
