"""Flower's simulation runtime (Ray) with 4 and with 100 virtual sites: time, memory, bytes.

Each number of sites runs until its result or until `--limit-s`. Meanwhile the part prints the round
and the memory. `ARGS="--sites 4"` runs one of them. It makes an environment of its own,
.venv-flower-simulation, with Ray.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from _flower import environ, environment, same_bytes, started, write_app, write_rows
from _report import write

PORT = 19291
#: `flwr log` takes seconds of a core.
SAY_S = 20
_OUTPUT: Any = {"capture_output": True, "text": True, "check": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[4, 100])
    parser.add_argument("--limit-s", type=float, default=1_200, help="for each number of sites")
    given = parser.parse_args()
    programs = environment("flower-simulation", "flwr[simulation]>=1.42,<1.43")
    write(
        "flower_simulation",
        [simulated(programs, n, given.limit_s) for n in given.sites],
        note="Seconds from `flwr run` to the result, on "
        f"{os.cpu_count()} cores; MiB of all processes of Flower and Ray, shared parts once.",
    )


def simulated(programs: Path, n: int, limit_s: float) -> dict[str, Any]:
    """Run a session of ``n`` virtual sites, and compare its result with that of `simulate`."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        env = environ(programs, place)
        files = write_rows(place, [f"site-{i:03d}" for i in range(n)])
        app = write_app(place, list(files), env, "--simulate", str(place / "rows"))
        address, log = f"127.0.0.1:{PORT}", place / "superlink.log"
        link = ["flower-superlink", "--simulation", "--insecure", "--host", "127.0.0.1"]
        link += ["--port", str(PORT), "--disable-runtime-dependency-installation"]
        server = stack.enter_context(started(link, env, log))
        (place / "flwr").mkdir(exist_ok=True)
        (place / "flwr" / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "{address}"\ninsecure = true\n'
        )
        size = f"num-supernodes={n} client-resources-num-cpus=1"
        command = ["flwr", "run", str(app), "here", "--federation-config", size, "--format", "json"]
        until = time.monotonic() + limit_s
        run_id = None
        while run_id is None:
            asked = subprocess.run(command, env=env, **_OUTPUT)
            # flwr also ends with 0 when the SuperLink does not answer yet.
            run_id = None if asked.returncode else json.loads(asked.stdout).get("run-id")
            if time.monotonic() > until:
                raise SystemExit(f"the SuperLink takes no run: {asked.stdout}")
            time.sleep(1)
        says = ["flwr", "log", run_id, "here", "--show"]
        began, peak, said = time.monotonic(), 0, time.monotonic()
        result = app / "results" / "heart.fedclust"
        while not result.is_file():
            time.sleep(1)
            peak = max(peak, memory(server))
            if time.monotonic() > said + SAY_S or time.monotonic() > until:
                lines = subprocess.run(says, env=env, **_OUTPUT).stdout.splitlines()
                last = next((each for each in reversed(lines) if "round " in each), "no round yet")
                said = time.monotonic()
                print(
                    f"{n} sites, {said - began:.0f} s, {peak >> 20} MiB: {last.strip()}", flush=True
                )
            if time.monotonic() > until:
                raise SystemExit(f"{n} sites: no result in {limit_s:.0f} s")
        seconds = time.monotonic() - began
        submissions = json.loads(result.read_text())["provenance"]["submissions"]
        return {
            "virtual sites": n,
            "rounds": max(each["round"] for each in submissions),
            "answers": len(submissions),
            "bytes of simulate": same_bytes(result, files, env),
            "seconds": seconds,
            "MiB": peak / 2**20,
        }


def memory(process: psutil.Popen) -> int:
    """Return the bytes of a process and of those that it started."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += each.memory_full_info().pss
        except psutil.Error:
            continue
    return total


if __name__ == "__main__":
    main()
