"""What the parts that run Flower share: processes, rows, a definition, approvals, a comparison."""

import json
import os
import subprocess
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

from fedclust.site.ledger import Ledger
from fedclust.site.state import SiteState

ROOT = Path(__file__).parents[1]
FEATURES = [{"name": name, "lower": -1e5, "upper": 1e5} for name in ("x0", "x1", "x2")]
SEED = 7
#: A SuperLink takes about a minute to notice that a node is gone.
LIMIT_S = 600


def environment(name: str, *requirements: str) -> Path:
    """Return the programs of an environment with this fedclust and ``requirements``."""
    folder = ROOT / f".venv-{name}"
    done = folder / ".installed"
    if not done.exists():
        venv.create(folder, with_pip=True)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, "--upgrade", "pip>=25.1"], check=True)
        subprocess.run(
            [*install, "--editable", ".[crate,data]", *requirements], check=True, cwd=ROOT
        )
        done.touch()
    return folder / "bin"


def environ(programs: Path, place: Path) -> dict[str, str]:
    """Return the variables of every process: its programs, and Flower's own folder."""
    own = {"FLWR_HOME": str(place / "flwr"), "PATH": f"{programs}:{os.environ['PATH']}"}
    return {**os.environ, **own, "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}


def run(command: Sequence[str], env: Mapping[str, str], **given: Any) -> str:
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True, **given)
    return done.stdout


@contextmanager
def started(command: Sequence[str], env: Mapping[str, str], log: Path) -> Iterator[Any]:
    """Run a process until the end of the block."""
    with log.open("ab") as out:
        process = psutil.Popen(
            command, env=env, stdout=out, stderr=out, start_new_session=True, cwd=log.parent
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: psutil.Popen) -> None:
    """End a process and those that it started, as a loss of power does."""
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for each in family:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def wait_for(what: str, found: Callable[[], object]) -> object:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        if value := found():
            return value
        time.sleep(0.5)
    raise SystemExit(f"waited in vain for {what}")


def write_rows(place: Path, names: Sequence[str]) -> dict[str, Path]:
    """Write 200 rows for each site: three numbers around three centres."""
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(3, 3)) * 5
    (place / "rows").mkdir()
    files = {name: place / "rows" / f"{name}.csv" for name in names}
    for file in files.values():
        X = centres[rng.integers(0, 3, 200)] + rng.normal(size=(200, 3))
        pd.DataFrame(X, columns=[each["name"] for each in FEATURES]).to_csv(file, index=False)
    return files


def write_app(place: Path, names: Sequence[str], env: Mapping[str, str], *options: str) -> Path:
    """Write the app of the session ``heart`` with these sites, and return its folder."""
    definition = {
        "title": "Sites that are alike",
        "purpose": "Which patients of these hospitals are alike?",
        "algorithm": "lloyd",
        "config": {"n_clusters": 3},
        "features": FEATURES,
        "sites": sorted(names),
        "policy": policy_of(names),
        "seed": SEED,
    }
    (place / "heart.json").write_text(json.dumps(definition))
    new = ["fedclust", "flower", "new", str(place / "app"), "--session", "heart"]
    run([*new, "--definition", str(place / "heart.json"), *options], env)
    return place / "app"


def policy_of(names: Sequence[str]) -> dict[str, int]:
    return {"min_sites": 2} if len(names) == 2 else {}


def approve(place: Path, name: str, file: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Review and approve the session at a site; return the variables of its processes."""
    own = {**env, "FEDCLUST_STATE_DIR": str(place / name)}
    definition = str(place / "app" / "session" / "definition.json")
    asked = ["fedclust", "flower", "review", definition, "--site", name, "--data", str(file)]
    review = json.loads(run([*asked, "--out", str(place / f"{name}.html"), "--json"], own))
    signed = ["fedclust", "approve", "heart", "--offline", "--name", "Dr Ruth Levi"]
    run([*signed, "--code", review["code"], "--json"], own)
    return own


def answers(state: Path) -> list[dict[str, Any]]:
    """Return the lines of answers in a site's ledger, in their order."""
    return [line for line in Ledger(SiteState(state)).read() if "event" not in line]


def same_bytes(result: Path, files: Mapping[str, Path], env: Mapping[str, str]) -> bool:
    """Whether a result has the bytes of ``simulate`` with the same rows."""
    given = json.dumps({name: str(file) for name, file in files.items()})
    policy = json.dumps(policy_of(list(files)))
    return run(["python", "-c", _COMPARE, str(result), given, policy], env).strip() == "True"


_COMPARE = """
import json, sys
from pathlib import Path
from fedclust import SessionResult, simulate
from fedclust.wire.codec import encode_model
found, files = SessionResult.load(sys.argv[1]), json.loads(sys.argv[2])
own = found.definition
features = [each.model_dump(mode="json") for each in own.features]
expected = simulate(own.algorithm, {name: Path(file) for name, file in files.items()},
                    config=own.config, policy=json.loads(sys.argv[3]), features=features,
                    seed=own.seed, progress=False)
print(encode_model(found.result) == encode_model(expected.result))
"""
