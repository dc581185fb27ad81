"""The RO-Crate of a result: read by the rocrate library, true to its files, always the same."""

import hashlib
import json
import zipfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rocrate.rocrate import ROCrate

from fedclust import SessionResult, simulate
from fedclust.definition import canonical
from fedclust.result.ro_crate import NO_LICENSE, crate_bytes
from fedclust.wire.codec import sha256
from fedclust.wire.errors import UsageError
from fedclust.wire.models import AuditHead, Provenance, ProvenanceEntry

HOSTILE = '<script>alert("x")</script>&'
HEAD = AuditHead(number=17, hash="b" * 64)
PLATFORM = {
    "fedclust": "0.1.0",
    "python": "3.11.9",
    "numpy": "2.1.0",
    "scipy": "1.14.1",
    "scikit-learn": "1.6.0",
    "system": "Linux",
    "machine": "x86_64",
    "blas": "openblas 0.3.28 Haswell",
}


@pytest.fixture(scope="module")
def result() -> SessionResult:
    """What an analyst has of a session of three sites that tried two numbers of clusters."""
    rng = np.random.default_rng(0)
    rows = {
        site: rng.normal(size=(60, 2)) + 20.0 * (np.arange(60) % 2)[:, None]
        for site in ("basel", "lyon", "turku")
    }
    found = simulate(
        "fkm", rows, config={"n_clusters": [2, 3]}, features=[HOSTILE, {"name": "bp"}], seed=0
    )
    definition = found.definition
    same = ("algorithm", "method_version", "engine_version", "seed", "sites")
    provenance = Provenance(
        **{name: getattr(definition, name) for name in same},
        definition_sha256=sha256(canonical(definition)),
        server_version="0.1.0",
        platform=PLATFORM,
        submissions=(ProvenanceEntry(round=1, site="lyon", sha256="a" * 64),),
        audit_head=HEAD,
    )
    ended = datetime(2026, 1, 5, 8, 30, 59, 123456, tzinfo=UTC)
    return replace(found, provenance=provenance, completed_at=ended)


def unpacked(result: SessionResult, place: Path, **options: Any) -> ROCrate:
    """Write the crate, unpack it and let the library read it."""
    result.save_ro_crate(place / "crate.zip", **options)
    with zipfile.ZipFile(place / "crate.zip") as archive:
        archive.extractall(place / "crate")
    return ROCrate(place / "crate")


def test_the_library_reads_every_file_and_what_made_them(
    result: SessionResult, tmp_path: Path
) -> None:
    crate = unpacked(result, tmp_path, license="CC-BY-4.0")
    files = {entity.id: entity for entity in crate.data_entities}
    present = {
        path.relative_to(tmp_path / "crate").as_posix()
        for path in (tmp_path / "crate").rglob("*")
        if path.is_file()
    }
    assert set(files) == present - {"ro-crate-metadata.json", "ro-crate-preview.html"}
    assert {"figures/profile.svg", "figures/sizes.svg", "figures/choice.svg"} < set(files)
    assert all(entity.get("encodingFormat") and entity.get("name") for entity in files.values())
    for name in (*files, "ro-crate-preview.html"):
        entity, content = crate.dereference(name), (tmp_path / "crate" / name).read_bytes()
        assert entity["sha256"] == hashlib.sha256(content).hexdigest()
        assert entity["contentSize"] == str(len(content))
    sums = (tmp_path / "crate" / "SHA256SUMS").read_text("utf-8").splitlines()
    assert {line[66:]: line[:64] for line in sums} == {
        name: hashlib.sha256((tmp_path / "crate" / name).read_bytes()).hexdigest()
        for name in set(files) - {"SHA256SUMS"}
    }

    root = crate.root_dataset
    assert root["name"] == "simulation: 2 clusters"
    assert root["license"].id == "https://spdx.org/licenses/CC-BY-4.0"
    assert root["datePublished"] == "2026-01-05T08:30:59+00:00"
    run = root["mentions"]
    assert run.type == "CreateAction"
    assert run["object"].id == "definition.json"
    assert {each.id for each in run["result"]} == set(files) - {"definition.json", "SHA256SUMS"}
    assert [each["name"] for each in run["agent"]] == ["basel", "lyon", "turku"]
    assert run["identifier"]["value"] == f"17:{'b' * 64}"
    software = run["instrument"]
    assert (software["name"], software["softwareVersion"]) == ("fedclust", "0.1.0")
    needed = {each["name"]: each["softwareVersion"] for each in software["softwareRequirements"]}
    assert needed == {"BLAS": PLATFORM["blas"]} | {
        name: PLATFORM[name] for name in ("python", "numpy", "scipy", "scikit-learn")
    }
    method = software["softwareAddOn"]
    assert method["name"] == "fkm"
    assert method["softwareVersion"] == str(result.definition.method_version)
    assert "Garst" in method["citation"]["name"]


def test_the_files_hold_what_the_result_holds(result: SessionResult, tmp_path: Path) -> None:
    unpacked(result, tmp_path)
    place = tmp_path / "crate"
    definition = (place / "definition.json").read_bytes()
    assert definition == canonical(result.definition)
    provenance = json.loads((place / "provenance.json").read_text("utf-8"))
    assert provenance["definition_sha256"] == hashlib.sha256(definition).hexdigest()
    assert provenance["submissions"] == [{"round": 1, "site": "lyon", "sha256": "a" * 64}]
    assert provenance["audit_head"] == HEAD.model_dump()
    assert len(provenance["rounds"]) == len(result.history_)
    centroids = json.loads((place / "result.json").read_text("utf-8"))["result"]["centroids"]
    np.testing.assert_array_equal(centroids, result.result.centroids)
    for name in ("report.html", "ro-crate-preview.html"):
        page = (place / name).read_text("utf-8")
        assert HEAD.noted in page
        assert "<script" not in page


def test_the_same_result_gives_the_same_bytes(result: SessionResult, tmp_path: Path) -> None:
    first = crate_bytes(result.document, result.definition)
    result.save(tmp_path / "result.fedclust")
    again = SessionResult.load(tmp_path / "result.fedclust")
    assert crate_bytes(again.document, again.definition) == first
    three = result.at(3)
    assert crate_bytes(three.document, three.definition) != first
    result.save_ro_crate(tmp_path / "crate.zip")
    with zipfile.ZipFile(tmp_path / "crate.zip") as archive:
        names = archive.namelist()
        assert names == ["ro-crate-metadata.json", *sorted(names[1:])]
        assert {entry.date_time for entry in archive.infolist()} == {(2026, 1, 5, 8, 30, 58)}


@pytest.mark.parametrize(
    ("given", "stated"),
    [
        (None, NO_LICENSE),
        (" ", NO_LICENSE),
        ("CC0-1.0", "https://spdx.org/licenses/CC0-1.0"),
        ("https://data.example/terms", "https://data.example/terms"),
    ],
)
def test_the_licence_is_the_callers_or_none(
    result: SessionResult, tmp_path: Path, given: str | None, stated: str
) -> None:
    licence = unpacked(result, tmp_path, license=given).root_dataset["license"]
    assert (licence if isinstance(licence, str) else licence.id) == stated
    assert stated in (tmp_path / "crate" / "ro-crate-preview.html").read_text("utf-8")


def test_what_cannot_be_written_is_refused(result: SessionResult, tmp_path: Path) -> None:
    for odd in ("CC BY", "javascript:alert(1)", 'https://x.example/"><script>', HOSTILE):
        with pytest.raises(UsageError, match="SPDX identifier"):
            result.save_ro_crate(tmp_path / "crate.zip", license=odd)
    with pytest.raises(UsageError, match="cannot be written"):
        result.save_ro_crate(tmp_path / "nowhere" / "crate.zip")
    other = result.definition.model_copy(update={"title": "Another"})
    with pytest.raises(UsageError, match="the version that the coordinator runs"):
        replace(result, definition=other).save_ro_crate(tmp_path / "crate.zip")
    with pytest.raises(UsageError, match="a simulation's result has no provenance to publish"):
        replace(result, provenance=None).save_ro_crate(tmp_path / "crate.zip")
    assert not list(tmp_path.iterdir())


def test_without_the_audit_entry_it_says_so(result: SessionResult, tmp_path: Path) -> None:
    provenance = result.document.provenance.model_copy(update={"audit_head": None})
    crate = unpacked(replace(result, provenance=provenance), tmp_path)
    assert crate.root_dataset["mentions"].get("identifier") is None
    page = (tmp_path / "crate" / "ro-crate-preview.html").read_text("utf-8")
    assert "It is not known here" in page
