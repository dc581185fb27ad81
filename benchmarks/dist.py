"""Check that the release installs without a network, and with the Dockerfile's own steps.

Runs ``make dist`` into a new folder. Each bundle is installed into a fresh virtual environment with
``--no-index --require-hashes`` and without pip's configuration; the installed packages must be
those of its SBOM. The Dockerfile's COPY and pip steps run in a folder and an environment made for
them, and its health check runs against a coordinator that its command started. Prints a table,
writes ``benchmarks/results/dist.json``.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]

from _report import write  # noqa: E402

COMMANDS = {
    "site": ("fedclust", "--help"),
    "site-dual": ("fedclust", "--help"),
    "coordinator": ("fedclust-service", "config", "show", "--json"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", action="store_true", help="the Dockerfile's steps alone")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.image:
            for row in _image(folder / "image"):
                print(f"{row['what']}: {row['value']} {row['unit']}")
            return
        out = folder / "dist"
        took = _run(sys.executable, str(ROOT / "deploy" / "bundle.py"), "--out", str(out))
        rows.append(_row("make dist", took, "s"))
        for bundle in COMMANDS:
            rows += _offline(bundle, out, folder / bundle)
        rows += _image(folder / "image")
    write("dist", rows)


def _row(what: str, value: float, unit: str) -> dict[str, object]:
    return {"what": what, "value": round(value, 1), "unit": unit}


def _offline(bundle: str, out: Path, place: Path) -> list[dict[str, object]]:
    wheels = out / bundle
    began = time.perf_counter()
    venv.create(place, with_pip=True)
    bin_ = place / ("Scripts" if os.name == "nt" else "bin")
    # An index that cannot be asked: whatever is missing from the folder makes this fail.
    _run(
        *(str(bin_ / "python"), "-m", "pip", "install", "--quiet", "--no-index"),
        *("--require-hashes", "--find-links", str(wheels)),
        *("--requirement", str(wheels / "requirements.txt")),
        PIP_CONFIG_FILE=os.devnull,
    )
    took = time.perf_counter() - began
    _run(*(str(bin_ / COMMANDS[bundle][0]), *COMMANDS[bundle][1:]), cwd=place)
    listed = subprocess.run(
        [str(bin_ / "python"), "-m", "pip", "list", "--format=json"],
        capture_output=True,
        check=True,
    )
    installed = {(each["name"].lower().replace("_", "-"), each["version"])
                 for each in json.loads(listed.stdout)}  # fmt: skip
    sbom = json.loads((out / f"sbom-{bundle}.cdx.json").read_text("utf-8"))
    parts = [sbom["metadata"]["component"], *sbom["components"]]
    named = {(each["name"], each["version"]) for each in parts}
    # The environment came with pip and perhaps setuptools.
    extra = {name for name, _ in installed - named}
    assert named <= installed, sorted(named - installed)
    assert extra <= {"pip", "setuptools"}, extra
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels.glob("*.whl")}
    assert {each["hashes"][0]["content"] for each in parts} == digests
    size = sum(path.stat().st_size for path in wheels.iterdir()) / 2**20
    return [
        _row(f"{bundle}: wheels", len(digests), "files"),
        _row(f"{bundle}: size of the folder", size, "MB"),
        _row(f"{bundle}: into a fresh environment without an index", took, "s"),
    ]


def _image(place: Path) -> list[dict[str, object]]:
    """Do what the Dockerfile does, in folders instead of an image."""
    source, target = place / "src", place / "opt"
    source.mkdir(parents=True)
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text("utf-8"))
    began = time.perf_counter()
    built = text.split("\nFROM ")[1]
    for line in built.splitlines():
        name, _, rest = line.partition(" ")
        if name == "COPY":
            *names, into = shlex.split(rest)
            for each in names:
                if (ROOT / each).is_dir():
                    shutil.copytree(ROOT / each, source / into, dirs_exist_ok=True)
                else:
                    (source / into).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / each, source / into)
        elif name == "RUN":
            for step in rest.replace("/opt/fedclust", str(target)).split(" && "):
                program, *arguments = shlex.split(step)
                program = sys.executable if program == "python" else program
                _run(program, *arguments, cwd=source)
    installing = time.perf_counter() - began
    (command,) = re.findall(r"^HEALTHCHECK .*?CMD (\[.*\])$", text, re.MULTILINE)
    _, *check = json.loads(command)
    data = place / "data"
    with (place / "log").open("wb") as log:
        # Its port is the image's own: the check asks there.
        server = subprocess.Popen(
            [str(target / "bin" / "fedclust-service"), "serve", "--port", "8400"],
            env=_environment(FEDCLUST_DATA_DIR=str(data)),
            stdout=log,
            stderr=log,
            cwd=place,
        )
    try:
        began, healthy = time.perf_counter(), False
        while not healthy and server.poll() is None and time.perf_counter() - began < 30:
            # Another coordinator on this port would answer, too.
            if b"listening on" not in (place / "log").read_bytes():
                time.sleep(0.02)
                continue
            asked = [str(target / "bin" / "python"), *check]
            healthy = subprocess.run(asked, capture_output=True, check=False).returncode == 0
        starting = time.perf_counter() - began
    finally:
        server.terminate()
        ended = server.wait(10)
    assert healthy, (place / "log").read_text("utf-8")
    assert ended == 0
    assert (data / "fedclust.db").exists()
    return [
        _row("Dockerfile: COPY and pip steps", installing, "s"),
        _row("Dockerfile: from start to healthy", starting, "s"),
    ]


def _environment(**extra: str) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("FEDCLUST_")}
    return {**kept, **extra}


def _run(*command: str, cwd: Path | None = None, **extra: str) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=cwd, env=_environment(**extra), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
