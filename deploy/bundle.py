"""``make dist``: build the release, and bundles that install without a network.

::

    dist/fedclust-<version>-py3-none-any.whl, fedclust-<version>.tar.gz
    dist/fedclust_dual-<version>-py3-none-any.whl, fedclust_dual-<version>.tar.gz
    dist/site/           every wheel that a hospital installs, and requirements.txt
    dist/site-dual/      the same with fedclust-dual
    dist/coordinator/    the same for fedclust[service,postgres] and fedclust-dual
    dist/sbom-site.cdx.json, sbom-site-dual.cdx.json, sbom-coordinator.cdx.json

``requirements.txt`` names each wheel with its SHA-256. Copy the folder to a machine without a
network; only what was bundled is installed there:

    pip install --no-index --require-hashes --find-links site --requirement site/requirements.txt

Wheels are for one platform and one Python: by default those of this machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import uuid
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
#: The distributions of this repository in each bundle, with their extras.
BUNDLES = {
    "site": ("fedclust",),
    "site-dual": ("fedclust", "fedclust-dual"),
    "coordinator": ("fedclust[service,postgres]", "fedclust-dual"),
}


@dataclass(frozen=True)
class Wheel:
    """A wheel in a bundle."""

    name: str
    version: str
    sha256: str
    metadata: Message

    @classmethod
    def read(cls, path: Path) -> Wheel:
        """Return name, version, hash and metadata of a wheel file."""
        name, version, _, _ = parse_wheel_filename(path.name)
        with zipfile.ZipFile(path) as archive:
            (inside,) = [
                entry
                for entry in archive.namelist()
                if entry.endswith(".dist-info/METADATA") and entry.count("/") == 1
            ]
            metadata = message_from_bytes(archive.read(inside))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return cls(str(name), str(version), digest, metadata)

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def build(out: Path) -> None:
    """Build wheels and source distributions, with the documentation site that was built last."""
    for project in (ROOT, ROOT / "client_sdk" / "fedclust_dual"):
        _run("-m", "build", "--outdir", str(out), str(project))


def bundle(out: Path, name: str, target: list[str]) -> list[Wheel]:
    """Download a bundle's wheels into a folder of ``out``; write their hashes and their SBOM."""
    folder = out / name
    folder.mkdir()
    options = ["--only-binary", ":all:", "--dest", str(folder)]
    wanted = (_built(out, Requirement(each)) for each in BUNDLES[name])
    _run("-m", "pip", "download", "--quiet", *options, *target, *wanted)
    wheels = [Wheel.read(path) for path in sorted(folder.glob("*.whl"))]
    lines = [f"{each.name}=={each.version} --hash=sha256:{each.sha256}\n" for each in wheels]
    (folder / "requirements.txt").write_text("".join(lines), "utf-8")
    document = json.dumps(sbom(wheels, BUNDLES[name]), indent=2, sort_keys=True) + "\n"
    (out / f"sbom-{name}.cdx.json").write_text(document, "utf-8")
    return wheels


def _built(out: Path, requirement: Requirement) -> str:
    """Return a requirement for the wheel that was built: no index may have another of its name."""
    (wheel,) = out.glob(f"{requirement.name.replace('-', '_')}-*.whl")
    return f"{wheel}[{','.join(requirement.extras)}]" if requirement.extras else str(wheel)


def sbom(wheels: list[Wheel], wanted: tuple[str, ...]) -> dict[str, Any]:
    """Return a bill of materials (CycloneDX 1.6), the same for the same wheels."""
    by_name = {each.name: each for each in wheels}
    needed: dict[str, set[str]] = {each.name: set() for each in wheels}
    roots = map(Requirement, wanted)
    waiting, done = [(each.name, extra) for each in roots for extra in ("", *each.extras)], set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        for line in by_name[name].metadata.get_all("Requires-Dist") or []:
            requirement = Requirement(line)
            other = canonicalize_name(requirement.name)
            if other in by_name and _asked_for(requirement, extra):
                needed[name].add(other)
                waiting += [(other, each) for each in ("", *requirement.extras)]
    root = by_name["fedclust"]
    hashes = "".join(each.sha256 for each in wheels)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, hashes)}",
        "version": 1,
        "metadata": {"component": _component(root, "application")},
        "components": [_component(each, "library") for each in wheels if each is not root],
        "dependencies": [
            {
                "ref": each.purl,
                "dependsOn": sorted(by_name[other].purl for other in needed[each.name]),
            }
            for each in wheels
        ],
    }


def _asked_for(requirement: Requirement, extra: str) -> bool:
    if requirement.marker is None:
        return True
    try:
        return requirement.marker.evaluate({"extra": extra})
    except UndefinedEnvironmentName:
        return False


def _component(wheel: Wheel, kind: str) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": kind,
        "bom-ref": wheel.purl,
        "name": wheel.name,
        "version": wheel.version,
        "purl": wheel.purl,
        "hashes": [{"alg": "SHA-256", "content": wheel.sha256}],
    }
    if expression := wheel.metadata["License-Expression"]:
        component["licenses"] = [{"expression": expression}]
    elif named := _named_license(wheel.metadata):
        component["licenses"] = [{"license": {"name": named}}]
    if summary := wheel.metadata["Summary"]:
        component["description"] = summary
    return component


def _named_license(metadata: Message) -> str | None:
    """Return a licence's name; some packages put the full text there instead."""
    first = (metadata["License"] or "").strip()
    if first and "\n" not in first:
        return first
    classified = [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier") or []
        if line.startswith("License :: ")
    ]
    return ", ".join(classified) or None


def _run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True)


def main() -> None:
    """Build everything into an empty folder."""
    parser = argparse.ArgumentParser(description="Build the release.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--platform", action="append", default=[], help="for example win_amd64")
    parser.add_argument("--python-version", help="of that platform, for example 3.12")
    options = parser.parse_args()
    target = [f"--platform={each}" for each in options.platform]
    if options.python_version:
        target.append(f"--python-version={options.python_version}")
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    build(out)
    for name in BUNDLES:
        wheels = bundle(out, name, target)
        size = sum(path.stat().st_size for path in (out / name).iterdir()) / 2**20
        print(f"{name}: {len(wheels)} wheels, {size:.0f} MB, {out / name}")


if __name__ == "__main__":
    main()
