"""A real federation of Flower on this machine: a SuperLink with TLS and two SuperNodes.

Two sites approve a session, and `flwr run` starts it; the second time one SuperNode is killed with
SIGKILL in the first round and started again. The result must have the bytes of `simulate`, and each
site's ledger a line for each answer. In the first run, Flower's FedAvg then exchanges a vector of
the size of the largest answer in the same federation, and fedclust's own service runs the same
session: seconds a round of each. It needs the environment of `make test-flower`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import trustme

from _flower import (
    FEATURES,
    ROOT,
    SEED,
    answers,
    approve,
    environ,
    kill,
    policy_of,
    run,
    same_bytes,
    started,
    wait_for,
    write_app,
    write_rows,
)
from _report import write

sys.path.insert(0, str(ROOT / "tests"))

from support.consortium import Consortium
from support.local_coordinator import local_coordinator

BIN = ROOT / ".venv-flower" / "bin"
PORT = 19091
NODE_PORTS = {"ada": 19194, "brno": 19195}


def certificates(place: Path) -> list[str]:
    """Write an authority and a certificate for this machine; return the SuperLink's options."""
    authority = trustme.CA()
    own = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(place / "ca.crt")
    own.private_key_pem.write_to_path(place / "server.key")
    (place / "server.crt").write_bytes(b"".join(each.bytes() for each in own.cert_chain_pems))
    names = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
    return [part for name, file in names.items() for part in (f"--ssl-{name}", str(place / file))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", choices=("both", "quiet", "killed"), default="both")
    runs = parser.parse_args().runs
    if not BIN.exists():
        print("nothing was run: `make test-flower` makes the environment for it")
        return
    rows = [federation(kill_one=each) for each in (False, True) if runs in ("both", _NAMES[each])]
    write(
        "flower",
        rows,
        note="SuperLink with TLS and two SuperNodes. Seconds a round: from one answer of a site to "
        "the next. FedAvg exchanges a vector of the size of the largest answer.",
    )


_NAMES = {False: "quiet", True: "killed"}


def federation(*, kill_one: bool) -> dict[str, Any]:
    """Run a session over a real federation, and compare its result with that of `simulate`."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = write_rows(place, sorted(NODE_PORTS))
        env = environ(BIN, place)
        app = write_app(place, list(files), env)
        own = {name: approve(place, name, file, env) for name, file in files.items()}
        address = f"127.0.0.1:{PORT}"
        link = ["flower-superlink", "--disable-runtime-dependency-installation"]
        link += [*certificates(place), "--port", str(PORT)]
        stack.enter_context(started(link, env, place / "superlink.log"))

        def node(name: str) -> Any:
            command = ["flower-supernode", "--root-certificates", str(place / "ca.crt")]
            command += ["--superlink", address, "--port", str(NODE_PORTS[name])]
            return started(command, own[name], place / f"{name}.log")

        (place / "flwr").mkdir(exist_ok=True)
        (place / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\n'
            f'root-certificates = "{place / "ca.crt"}"\n'
        )
        nodes = {name: stack.enter_context(node(name)) for name in NODE_PORTS}
        began = time.monotonic()
        wait_for("the SuperLink", lambda: try_run(app, env))
        wait_for("the first answer", lambda: answers(place / "brno"))
        if kill_one:
            kill(nodes["brno"])
            stack.enter_context(node("brno"))
        result = app / "results" / "heart.fedclust"
        wait_for("the result", result.is_file)
        found: dict[str, Any] = {
            "killed": kill_one,
            "answers in the ledgers": [len(answers(place / name)) for name in NODE_PORTS],
            "bytes of simulate": same_bytes(result, files, env),
            "seconds": time.monotonic() - began,
            "seconds a round": pace(answers(place / "ada")),
            "FedAvg": "",
            "own service": "",
        }
        if not kill_one:
            size = max(int(line["size"]) for line in answers(place / "ada"))
            found["FedAvg"] = fedavg(place, env, size, found["answers in the ledgers"][0])
            found["own service"] = own_service(place / "service", files)
        return found


def try_run(app: Path, env: Mapping[str, str]) -> bool:
    """Start the run; False while the SuperLink does not answer."""
    command = [str(BIN / "flwr"), "run", str(app), "here", "-c", "again-after-s=10"]
    return subprocess.run(command, env=env, check=False, capture_output=True).returncode == 0


def pace(lines: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean seconds from one answer of a site to the next."""
    first, last = (datetime.fromisoformat(lines[i]["time"]) for i in (0, -1))
    return (last - first).total_seconds() / (len(lines) - 1)


def own_service(place: Path, files: Mapping[str, Path]) -> float:
    """Return the seconds a round of the same session over fedclust's own service."""
    place.mkdir()
    # Not the account's own groups.
    os.environ["FEDCLUST_STATE_DIR"] = str(place / "groups")
    rows = {name: pd.read_csv(file) for name, file in files.items()}
    with local_coordinator(place, threads=True) as local:
        consortium = Consortium.found(local.base_url, local.operator_token, tuple(files))
        options = {"config": {"n_clusters": 3}, "policy": policy_of(list(files)), "seed": SEED}
        consortium.create("heart", len(FEATURES), features=FEATURES, **options)
        consortium.run("heart", rows, place / "states")
    return pace(answers(place / "states" / "ada"))


def fedavg(place: Path, env: Mapping[str, str], size: int, n_rounds: int) -> float:
    """Return the seconds a round of FedAvg with a vector of ``size`` bytes."""
    app, times = place / "fedavg", place / "fedavg-times"
    (app / "session").mkdir(parents=True)
    (app / "pyproject.toml").write_text(_APP)
    (app / "session" / "client.py").write_text(_CLIENT.format(times=times))
    (app / "session" / "server.py").write_text(_SERVER.format(n=size // 4, rounds=n_rounds))
    run([str(BIN / "flwr"), "run", str(app), "here"], env)

    def seen() -> list[float]:
        text = times.read_text() if times.exists() else ""
        return [float(line) for line in text.splitlines()]

    wait_for("FedAvg", lambda: len(seen()) >= 2 * n_rounds)
    # Both nodes write their lines: the mean of two neighbours is a round.
    return (seen()[-1] - seen()[0]) / (n_rounds - 1)


_APP = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "average"
version = "1.0.0"
description = "FedAvg of one vector"
license = "Apache-2.0"
dependencies = ["flwr"]
[tool.hatch.build.targets.wheel]
packages = ["session"]
[tool.flwr.app]
publisher = "fedclust"
[tool.flwr.app.components]
serverapp = "session.server:app"
clientapp = "session.client:app"
[tool.flwr.app.config]
"""
_CLIENT = """
import time
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    with open("{times}", "a") as file:
        file.write(f"{{time.time()}}\\n")
    counted = MetricRecord({{"num-examples": 1}})
    content = RecordDict({{"arrays": message.content["arrays"], "metrics": counted}})
    return Message(content, reply_to=message)
"""
_SERVER = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    start = ArrayRecord([np.zeros({n}, np.float32)])
    FedAvg(fraction_evaluate=0.0).start(grid, start, num_rounds={rounds})
"""


if __name__ == "__main__":
    main()
