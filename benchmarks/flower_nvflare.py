"""A session as a Flower job of NVFlare: its server and two sites in POC mode on this machine.

Two sites approve a session, and the analyst submits it with FlowerRecipe. The result must have the
bytes of `simulate`, and each site's ledger a line for each answer. NVFlare 2.9 passes an option
that Flower 1.36 and later refuse, so the part makes an environment of its own with Flower 1.34,
.venv-flower-nvflare.
"""

import argparse
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _flower import (
    answers,
    approve,
    environ,
    environment,
    run,
    same_bytes,
    started,
    write_app,
    write_rows,
)
from _report import write

NVFLARE, FLOWER = "2.9.0", "1.34.0"
NAMES = ("site-1", "site-2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit-s", type=float, default=900)
    limit_s = parser.parse_args().limit_s
    programs = environment("flower-nvflare", f"nvflare=={NVFLARE}", f"flwr=={FLOWER}")
    note = f"NVFlare {NVFLARE} with Flower {FLOWER}; seconds from the submission of the job."
    write("flower_nvflare", [job(programs, limit_s)], note=note)


def job(programs: Path, limit_s: float) -> dict[str, Any]:
    """Run a session as a job, and compare its result with that of `simulate`."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        env = environ(programs, place) | {
            "NVFLARE_POC_WORKSPACE": str(place / "poc"),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        }
        files = write_rows(place, NAMES)
        app = write_app(place, NAMES, env)
        own = {name: approve(place, name, file, env) for name, file in files.items()}
        run(["nvflare", "poc", "prepare", "-n", "2"], env)
        kits = place / "poc" / "example_project" / "prod_00"
        listens = kits / "server" / "startup" / "fed_server.json"
        # Else it listens on every address of the machine.
        listens.write_text(listens.read_text().replace('"server:8002"', '"localhost:8002"'))
        for name, variables in {"server": env, **own}.items():
            command = ["bash", str(kits / name / "startup" / "sub_start.sh")]
            stack.enter_context(started(command, variables, place / f"{name}.log"))
        began = time.monotonic()
        command = ["python", "-c", _SUBMIT, str(app), str(place / "job"), str(kits), str(limit_s)]
        log = place / "job.log"
        asked, said = stack.enter_context(started(command, env, log)), began
        while asked.poll() is None:
            time.sleep(1)
            if time.monotonic() > said + 20:
                said = time.monotonic()
                counts = [len(answers(place / name)) for name in NAMES]
                print(f"{said - began:.0f} s, answers in the ledgers: {counts}", flush=True)
        lines, result = log.read_text().splitlines(), app / "results" / "heart.fedclust"
        if not result.is_file():
            raise SystemExit("\n".join(["no result", *lines[-5:]]))
        submissions = json.loads(result.read_text())["provenance"]["submissions"]
        return {
            "job": lines[-1],
            "rounds": max(each["round"] for each in submissions),
            "answers in the ledgers": [len(answers(place / name)) for name in NAMES],
            "bytes of simulate": same_bytes(result, files, env),
            "seconds": time.monotonic() - began,
        }


#: NVFlare's own time limits of 10 s are too short where two cores start all of its processes.
_SUBMIT = """
import sys
from nvflare.app_opt.flower.recipe import FlowerRecipe
from nvflare.fuel.flare_api.flare_api import new_secure_session
app, job, kits, limit_s = sys.argv[1:]
recipe = FlowerRecipe(flower_content=app, name="heart", min_clients=2,
                      superlink_ready_timeout=240.0, configure_task_timeout=240,
                      start_task_timeout=240, max_client_op_interval=600.0)
recipe.export(job)
session = new_secure_session("lead@nvidia.com", kits + "/lead@nvidia.com", timeout=120)
number = session.submit_job(job + "/heart")
session.monitor_job(number, timeout=float(limit_s))
print(session.get_job_meta(number)["status"])
session.close()
"""


if __name__ == "__main__":
    main()
