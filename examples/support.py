"""A study of eight hospitals, from their files to the manuscript: SUPPORT.

    python examples/support.py [--study FILE.py] [--out DIRECTORY]

The file describes the study; by default it is ``support_study.py``, which needs the extra
``[examples]``. A coordinator and the hospitals run as separate processes and talk over HTTPS. Each
hospital does what a data manager does: it checks its file, registers it, has the session approved
and takes part. One hospital is killed in the middle and started again. Only this script, which
plays all roles, sees all patients at once.
"""

import argparse
import json
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hospitals
import numpy as np
import pandas as pd
from study import Study

from fedclust import simulate
from fedclust.client import Client, ConnectionOptions
from fedclust.data import Dataset
from fedclust.result.session_result import SessionResult

MODELS = 100


def main() -> int:
    """Run the study and print what comes of it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    study_file = Path(__file__).with_name("support_study.py")
    parser.add_argument("--study", type=Path, default=study_file, help="the file of the study")
    parser.add_argument("--out", type=Path, help="an empty directory; by default a temporary one")
    given = parser.parse_args()
    if given.out is not None and given.out.exists() and any(given.out.iterdir()):
        parser.error(f"--out: {given.out} is not an empty directory")
    began, study = time.monotonic(), Study.read(given.study)
    out = Path(tempfile.mkdtemp(prefix="fedclust-study-")) if given.out is None else given.out
    tell(study, out.absolute())
    print(f"\nEverything is in {out}. It took {time.monotonic() - began:.0f} s.")
    return 0


def tell(study: Study, out: Path) -> None:
    """Go from the hospitals' files to the manuscript."""
    title("1. Every hospital has its own file")
    sites = {}
    for name, rows in study.split(study.said["SEED"]).items():
        dialect = study.said["HOSPITALS"][name][2]
        write_file(study, rows, dialect, out / name)
        sites[name] = Dataset(out / name / "cohort.csv", mapping=out / name / "columns.toml")
        print(f"{name}: {len(rows)} patients; own {', '.join(dialect) or 'nothing'}")
    options, certificate = certify(out)
    with hospitals.coordinator(out / "coordinator", *certificate) as (url, operator_token):
        token = hospitals.register(url, operator_token, out, sites, options)
        with Client(url, token, options) as analyst:
            title("2. One definition, checked and approved at every hospital")
            session = study.said["NAME"]
            info = analyst.create_session(definition(study, list(sites)))
            print(f"All consent to the definition with the SHA-256 {info.definition_sha256}.")
            with ThreadPoolExecutor(2) as two:
                for said in two.map(lambda name: approve(session, url, out / name), sites):
                    print(said)
            title("3. One session, and a hospital that is killed")
            run(analyst, session, url, out, list(sites)[1])
            result = analyst.result(session)
    same_as_in_one_process(study, sites, result)
    title("4. How many clusters?")
    print(result.to_frame("k").to_string())
    print(result.result.recommendation)
    result = result.at(study.said["K"])
    title("5. The clusters that the protocol asked for")
    print(result)
    print(result.site_differences_)
    title("6. The outcomes")
    frame = result.to_frame("outcomes")
    shown = frame[frame["site"] == "all sites"].set_index(["outcome", "what", "cluster"])
    print(shown[["value", "lower", "upper", "p_value"]].round(3).to_string(na_rep=""))
    title("7. What to publish")
    publish(result, out)
    title("8. What the coordinator holds")
    what_the_coordinator_holds(out, out / "coordinator" / "fedclust.db")


def definition(study: Study, sites: list[str]) -> dict[str, Any]:
    """Return the definition that the analyst sends."""
    said = study.said
    return {
        "name": said["NAME"],
        "purpose": said["PURPOSE"],
        "contact": "Ada Example, ada@example.org",
        "algorithm": "fkm",
        "config": {"n_clusters": said["SEVERAL_K"], "stability": MODELS},
        "features": study.features() + study.outcomes,
        # Outcomes are counted once, and so at one number of clusters.
        "outcomes_k": said["K"],
        "sites": sites,
        "seed": said["SEED"],
    }


# --- a hospital -----------------------------------------------------------------------------------


def write_file(study: Study, rows: pd.DataFrame, dialect: Mapping[str, Any], at: Path) -> None:
    """Write a hospital's file, and the mapping that says how to read it."""
    at.mkdir(parents=True)
    own, lines = rows[study.columns()].copy(), [f'decimal = "{dialect.get("decimal", ".")}"']
    if "missing" in dialect:
        lines.append(f'missing = ["{dialect["missing"]}"]')
    session_units = {each["name"]: each["unit"] for each in study.features()}
    names, units = dialect.get("names", {}), dialect.get("units", {})
    for name in dict.fromkeys([*names, *units]):
        lines += [f"[features.{name}]", f'column = "{names.get(name, name)}"']
        if name in units:
            unit, per_unit = units[name]
            lines += [f'unit = "{unit}"', f'to = "{session_units[name]}"']
            lines.append(f"factor = {1 / per_unit!r}")
            own[name] = (own[name] * per_unit).round(1)
    (at / "columns.toml").write_text("\n".join(lines) + "\n", "utf-8")
    own.insert(0, "patient", [f"{at.name}-{number:05d}" for number in range(1, len(own) + 1)])
    own.rename(columns=names).to_csv(
        at / "cohort.csv",
        index=False,
        sep=";" if dialect.get("decimal") == "," else ",",
        decimal=dialect.get("decimal", "."),
        na_rep=dialect.get("missing", ""),
    )


def approve(session: str, url: str, at: Path) -> str:
    """Do what comes before taking part; return what to say about it."""
    (at / "state").mkdir(mode=0o700)
    (at / "state" / "site.toml").write_text("require_approval = true\n", "utf-8")
    reading = ("--id-column", "patient", "--mapping", "columns.toml")
    secure = ("--ca-bundle", "../ca.pem")
    do(at, url, "check", session, "--data", "cohort.csv", *reading, *secure)
    do(at, url, "data", "add", "cohort", "--data", "cohort.csv", *reading)
    page = ("--data", "@cohort", "--out", "review.html", "--json")
    # The last line: warnings come before it.
    review = json.loads(do(at, url, "review", session, *page, *secure).splitlines()[-1])
    by = ("--name", f"steward of {at.name}", "--code", review["code"][:12])
    do(at, url, "approve", session, *by, *secure)
    return f"{at.name}: checked, mapped, registered, approved with the code {review['code'][:12]}"


def do(at: Path, url: str, *arguments: str) -> str:
    """Run a command of a hospital to its end; return what it printed last, or SystemExit."""
    before = (at / "log").stat().st_size if (at / "log").exists() else 0
    hospitals.command(*arguments, url=url, at=at)
    return (at / "log").read_bytes()[before:].decode("utf-8")


# --- the session ----------------------------------------------------------------------------------


def certify(out: Path) -> tuple[ConnectionOptions, tuple[str, ...]]:
    """Make a certificate; return how clients trust it, and how the coordinator uses it."""
    import trustme

    authority = trustme.CA()
    bundle, cert, key = out / "ca.pem", out / "server.pem", out / "server.key"
    authority.cert_pem.write_to_path(str(bundle))
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(str(key))
    key.chmod(0o600)
    cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    return ConnectionOptions(ca_bundle=bundle), ("--tls-cert", str(cert), "--tls-key", str(key))


def run(analyst: Client, session: str, url: str, out: Path, victim: str) -> None:
    """Let all hospitals take part, kill one of them in the middle, and start it again."""

    def newest() -> Any:
        return max(analyst.rounds(session), key=lambda each: each.number, default=None)

    def waits() -> bool:
        return {site.name for site in newest().sites if not site.answered} == {victim}

    sites = [site.name for site in analyst.session(session).sites]
    running = {name: participate(session, url, out / name) for name in sites}
    try:
        hospitals.wait(lambda: (last := newest()) is not None and last.number >= 2, running, out)
        running[victim].send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
        running.pop(victim).wait()
        hospitals.wait(waits, running, out)
        print(f"{victim} is killed; round {newest().number} has the other answers, and waits.")
        running[victim] = participate(session, url, out / victim)
        hospitals.wait(lambda: hospitals.all_ended(running), running, out)
    finally:
        hospitals.end(running)
    rounds = newest().number
    print(f"{victim} starts again and resumes: the session completes in {rounds} rounds.")


def participate(session: str, url: str, at: Path) -> subprocess.Popen[bytes]:
    """Start a hospital; its state is in its own folder."""
    files = ("--labels-out", "labels.csv", "--ca-bundle", "../ca.pem")
    return hospitals.command(
        "participate", session, "--data", "@cohort", *files, url=url, at=at, wait=False
    )


# --- the result -----------------------------------------------------------------------------------


def same_as_in_one_process(study: Study, sites: dict[str, Dataset], result: SessionResult) -> None:
    """Compare the result with that of a simulation, in which nobody is killed."""
    asked = definition(study, list(sites))
    same_words = {name: asked[name] for name in ("config", "features", "outcomes_k", "seed")}
    expected = simulate("fkm", sites, progress=False, **same_words)
    same = all(
        np.array_equal(entry.result.centroids, other.result.centroids)
        for entry, other in zip(result.sweep_ or (), expected.sweep_ or (), strict=True)
    )
    print(f"Equal to the last bit to a run in one process: {'yes' if same else 'NO'}.")


def publish(result: SessionResult, out: Path) -> None:
    """Write the report, the methods section with its references, and the RO-Crate."""
    result.save_report(out / "report.html")
    for name, text in (
        ("methods.md", result.methods_text()),
        ("references.bib", result.bibtex()),
    ):
        (out / name).write_text(text, "utf-8")
    result.save_ro_crate(out / "crate.zip", license="CC-BY-4.0")
    print("report.html, methods.md, references.bib; crate.zip to deposit with them")


def what_the_coordinator_holds(out: Path, path: Path) -> None:
    """Print what the coordinator's database has of the patients."""
    with sqlite3.connect(path) as database:
        query = "SELECT phase, COUNT(*) AS submissions, SUM(size) AS bytes FROM submissions"
        print(pd.read_sql(f"{query} GROUP BY phase ORDER BY MIN(id)", database).to_string())
    everything, labels = path.read_bytes(), [pd.read_csv(each) for each in out.glob("*/labels.csv")]
    ids = pd.concat(labels).iloc[:, 0]
    found = sum(each.encode() in everything for each in ids)
    print(f"Searched for the identifiers of all {len(ids)} patients: it holds {found} of them.")


def title(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
