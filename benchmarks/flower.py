"""A real federation of Flower on this machine: a SuperLink with TLS and two SuperNodes.

Two sites approve a session, `flwr run` starts it, and one SuperNode is killed with SIGKILL in the
first round and started again. The result must have the bytes of `simulate`, and each site's ledger
a line for each answer. It needs the environment of `make test-flower`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import trustme

from _report import write

ROOT = Path(__file__).parents[1]
BIN = ROOT / ".venv-flower" / "bin"
PORT = 19091
NODE_PORTS = {"ada": 19194, "brno": 19195}
FEATURES = [{"name": name, "lower": -1e5, "upper": 1e5} for name in ("x0", "x1", "x2")]
SESSION: dict[str, Any] = {
    "title": "Two sites",
    "purpose": "Which patients of these hospitals are alike?",
    "algorithm": "lloyd",
    "config": {"n_clusters": 3},
    "features": FEATURES,
    "sites": sorted(NODE_PORTS),
    "policy": {"min_sites": 2},
    "seed": 7,
}
#: A SuperLink takes about a minute to notice that a node is gone.
LIMIT_S = 420


def run(command: list[str], env: Mapping[str, str], **given: Any) -> str:
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True, **given)
    return done.stdout


@contextmanager
def started(command: list[str], env: Mapping[str, str], log: Path) -> Iterator[Any]:
    """Run a process in a group of its own until the end of the block."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, env=env, stdout=out, stderr=out, start_new_session=True, cwd=log.parent
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen) -> None:
    """End a process and those that it started, as a loss of power does."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        return
    process.wait()


def wait_for(what: str, found: Callable[[], object]) -> object:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        if value := found():
            return value
        time.sleep(0.5)
    raise SystemExit(f"waited in vain for {what}")


def certificates(place: Path) -> list[str]:
    """Write an authority and a certificate for this machine; return the SuperLink's options."""
    authority = trustme.CA()
    own = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(place / "ca.crt")
    own.private_key_pem.write_to_path(place / "server.key")
    (place / "server.crt").write_bytes(b"".join(each.bytes() for each in own.cert_chain_pems))
    names = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
    return [part for name, file in names.items() for part in (f"--ssl-{name}", str(place / file))]


def write_rows(place: Path) -> dict[str, Path]:
    rng, files = np.random.default_rng(3), {}
    for name in NODE_PORTS:
        X = rng.normal(size=(3, 3))[rng.integers(0, 3, 200)] * 5 + rng.normal(size=(200, 3))
        files[name] = place / f"{name}.csv"
        pd.DataFrame(X, columns=[each["name"] for each in FEATURES]).to_csv(
            files[name], index=False
        )
    return files


def main() -> None:
    if not BIN.exists():
        print("nothing was run: `make test-flower` makes the environment for it")
        return
    write(
        "flower",
        [federation(kill_one=False), federation(kill_one=True)],
        note="SuperLink with TLS and two SuperNodes; the second time one is killed with SIGKILL.",
    )


def federation(*, kill_one: bool) -> dict[str, Any]:
    """Run a session over a real federation, and compare its result with that of `simulate`."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = write_rows(place)
        env = {
            **os.environ,
            "FLWR_HOME": str(place / "flwr"),
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        env |= {"FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        (place / "heart.json").write_text(json.dumps(SESSION))
        app = place / "app"
        new = ["fedclust", "flower", "new", str(app), "--session", "heart"]
        run([*new, "--definition", str(place / "heart.json")], env)
        definition = str(app / "session" / "definition.json")
        for name, file in files.items():
            own = {**env, "FEDCLUST_STATE_DIR": str(place / name)}
            page = str(place / f"{name}.html")
            site = [definition, "--site", name]
            asked = ["fedclust", "flower", "review", *site, "--data", str(file), "--out", page]
            review = json.loads(run([*asked, "--json"], own))
            approve = ["fedclust", "flower", "approve", *site, "--name", "Dr Ruth Levi"]
            run([*approve, "--code", review["code"], "--json"], own)
        address = f"127.0.0.1:{PORT}"
        tls = certificates(place)
        stack.enter_context(
            started(
                [
                    "flower-superlink",
                    "--disable-runtime-dependency-installation",
                    *tls,
                    "--port",
                    str(PORT),
                ],
                env,
                place / "superlink.log",
            )
        )

        def node(name: str) -> Any:
            config = f'site="{name}" data="{files[name]}" state-dir="{place / name}"'
            command = ["flower-supernode", "--root-certificates", str(place / "ca.crt")]
            command += ["--superlink", address, "--port", str(NODE_PORTS[name])]
            return started([*command, "--node-config", config], env, place / f"{name}.log")

        (place / "flwr").mkdir(exist_ok=True)
        (place / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\n'
            f'root-certificates = "{place / "ca.crt"}"\n'
        )
        nodes = {name: stack.enter_context(node(name)) for name in NODE_PORTS}
        began = time.monotonic()
        wait_for("the SuperLink", lambda: try_run(app, env))
        wait_for("the first answer", lambda: answers(place, "brno", env))
        if kill_one:
            kill(nodes["brno"])
            stack.enter_context(node("brno"))
        result = app / "results" / "heart.fedclust"
        wait_for("the result", result.is_file)
        seconds = time.monotonic() - began
        check = run([str(BIN / "python"), "-c", _COMPARE, str(result), str(place)], env)
        return {
            "killed": kill_one,
            "answers in the ledgers": [answers(place, name, env) for name in NODE_PORTS],
            "bytes of simulate": check.strip(),
            "seconds": seconds,
        }


def try_run(app: Path, env: Mapping[str, str]) -> bool:
    """Start the run; False while the SuperLink does not answer."""
    command = [str(BIN / "flwr"), "run", str(app), "here", "-c", "again-after-s=10"]
    return subprocess.run(command, env=env, check=False, capture_output=True).returncode == 0


def answers(place: Path, name: str, env: Mapping[str, str]) -> int:
    """Return how many answers are in a site's ledger."""
    own = {**env, "FEDCLUST_STATE_DIR": str(place / name)}
    shown = run(["fedclust", "ledger", "show", "--session", "heart"], own)
    return len(re.findall(r"heart round \d+", shown))


_COMPARE = """
import sys
from pathlib import Path
from fedclust import SessionResult, simulate
from fedclust.wire.codec import encode_model
found = SessionResult.load(sys.argv[1])
files = {name: Path(sys.argv[2]) / f"{name}.csv" for name in ("ada", "brno")}
own = found.definition
features = [each.model_dump(mode="json") for each in own.features]
expected = simulate("lloyd", files, config=own.config, policy={"min_sites": 2},
                    features=features, seed=7, progress=False)
print(encode_model(found.result) == encode_model(expected.result))
"""


if __name__ == "__main__":
    main()
