"""Flower's simulation runtime (Ray) with 4 and with 100 virtual sites: time, memory, bytes.

It makes an environment of its own, .venv-flower-simulation, with Ray.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from _flower import environ, environment, same_bytes, started, wait_for, write_app, write_rows
from _report import write

PORT, CONTROL = 19291, 19293


def main() -> None:
    programs = environment("flower-simulation", flower="flwr[simulation]>=1.42,<1.43")
    note = (
        "Seconds from `flwr run` to the result; memory is that of all processes, shared parts once."
    )
    write("flower_simulation", [simulated(programs, n) for n in (4, 100)], note=note)


def simulated(programs: Path, n: int) -> dict[str, Any]:
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        env = environ(programs, place)
        files = write_rows(place, [f"site-{i:03d}" for i in range(n)])
        app = write_app(place, list(files), env, "--simulate", str(place / "rows"))
        control = f"127.0.0.1:{CONTROL}"
        link = ["flower-superlink", "--simulation", "--insecure", "--host", "127.0.0.1"]
        link += ["--port", str(PORT), "--control-api-address", control]
        link += ["--disable-runtime-dependency-installation"]
        server = stack.enter_context(started(link, env, place / "superlink.log"))
        (place / "flwr").mkdir(exist_ok=True)
        (place / "flwr" / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "{control}"\ninsecure = true\n'
        )
        size = f"num-supernodes={n} client-resources-num-cpus=1"
        command = ["flwr", "run", str(app), "here", "--federation-config", size]
        peak = stack.enter_context(Peak(server))
        began = time.monotonic()

        def submit() -> bool:
            done = subprocess.run(command, env=env, check=False, capture_output=True)
            return done.returncode == 0

        wait_for("the SuperLink", submit)
        result = app / "results" / "heart.fedclust"
        wait_for("the result", result.is_file)
        seconds = time.monotonic() - began
        submissions = json.loads(result.read_text())["provenance"]["submissions"]
        rounds = max(each["round"] for each in submissions)
        return {
            "virtual sites": n,
            "rounds": rounds,
            "bytes of simulate": same_bytes(result, files, env),
            "seconds": seconds,
            "MiB": peak.bytes / 2**20,
        }


class Peak:
    """The largest memory of a process and those that it started, looked at once a second."""

    def __init__(self, process: psutil.Popen) -> None:
        self.bytes, self._process, self._over = 0, process, threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(1):
            total = 0
            for each in [self._process, *self._process.children(recursive=True)]:
                try:
                    total += each.memory_full_info().pss
                except psutil.Error:
                    continue
            self.bytes = max(self.bytes, total)


if __name__ == "__main__":
    main()
