"""A result as an RO-Crate: one ZIP file with everything that a publication cites.

RO-Crate 1.1 with the profile Process Run Crate 0.5; the library rocrate writes the description. The
crate holds no more than the result and its report do. The same result gives the same bytes: nothing
comes from the clock or the machine, and files are stored without compression, because zlib's output
differs between versions.
"""

import io
import json
import re
import zipfile
from collections.abc import Mapping
from html import escape
from pathlib import PurePath
from typing import Any

from fedclust.definition import canonical, read_definition
from fedclust.methods.registry import METHODS
from fedclust.result.facts import Facts
from fedclust.result.figures.plots import Plots, drawn_figures
from fedclust.result.markup import html_document, html_table
from fedclust.result.methods_text import LIBRARIES, WRITE_UP
from fedclust.result.page import html
from fedclust.result.tables import centroid_table, counts_text, csv_text
from fedclust.result.wording import named_values, time_text
from fedclust.schema.display import counted
from fedclust.wire import codec
from fedclust.wire.errors import UsageError, of_extra
from fedclust.wire.models import Definition, Provenance, ResultDocument

METADATA = "ro-crate-metadata.json"
PREVIEW = "ro-crate-preview.html"
CHECKSUMS = "SHA256SUMS"
#: What a crate says of its licence if its writer named none.
NO_LICENSE = "No licence is stated. Ask those who ran the session before you reuse the content."
_PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_TERMS = "https://w3id.org/ro/terms/workflow-run/context"
_SPDX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,62}")
_ADDRESS = re.compile(r"https?://[^\s<>\"{}|\\^`]+")
_MEDIA = {
    ".json": "application/json",
    ".csv": "text/csv",
    ".html": "text/html",
    ".md": "text/markdown",
    ".bib": "application/x-bibtex",
    ".svg": "image/svg+xml",
    "": "text/plain",
}
#: Files by path: the name, which ends at the first full stop, and what the file holds.
_DESCRIBED = {
    "definition.json": "Definition. The session as the sites consented to it, byte for byte: "
    "method, options, features, policy, sites, purpose. Its SHA-256 is the hash of their consent.",
    "result.json": "Result. Everything that the coordinator released about the clusters: centroids "
    "in scaled and own units, sizes, quality, rounds.",
    "centroids.csv": "Centroids. One line for each cluster: its size and its centroid in the "
    "features' own units.",
    "profile.csv": "Profile. One line for each cluster and column: its value and what that "
    "measures, and its difference from all persons. Outcomes have 95 % intervals.",
    "outcome_counts.csv": "Counts of outcomes. Persons by outcome, site, cluster and cell, with "
    "random noise of the standard deviation sigma.",
    "report.html": "Report. The result for people: profile, sizes, quality, figures, provenance.",
    "methods.md": "Methods. The methods section of a paper about the result, with every choice and "
    "figure.",
    "references.bib": "References. What the methods section cites, as BibTeX.",
    "provenance.json": "Provenance. Method and its version, seed, software and platform, the "
    "rounds, the SHA-256 of the submissions, and the entry of the audit trail that records the "
    "completion.",
    CHECKSUMS: "Checksums. The SHA-256 of each file above, in the form that sha256sum -c reads.",
    PREVIEW: "Preview. What this crate holds, for people.",
}

#: The library has no types: a crate, and one of its entities.
Crate = Any
Entity = Any


def check_license(text: str | None) -> tuple[str, str] | None:
    """Return a licence's address and name; None for none.

    Raises
    ------
    UsageError
        ``text`` is neither an SPDX identifier nor an address.
    """
    if text is None or not text.strip():
        return None
    given = text.strip()
    if _ADDRESS.fullmatch(given):
        return given, given
    if _SPDX.fullmatch(given):
        return f"https://spdx.org/licenses/{given}", given
    raise UsageError(
        "license: give an SPDX identifier, such as CC-BY-4.0, or the address of a licence's text"
    )


def crate_bytes(
    document: ResultDocument, definition: Definition, licence: str | None = None
) -> bytes:
    """Return the crate of a result as the bytes of a ZIP file.

    Parameters
    ----------
    document : ResultDocument
        As far as its reader may see it; so is everything in the crate.
    definition : Definition
    licence : str, optional
        An SPDX identifier, or an address. Without it the crate says that none is stated.

    Raises
    ------
    UsageError
        The licence is neither, the definition has not the hash that the sites consented to, or the
        extra ``fedclust[crate]`` is not installed.
    """
    chosen = check_license(licence)
    frozen = canonical(definition)
    if codec.sha256(frozen) != document.provenance.definition_sha256:
        raise UsageError(
            "this version of fedclust writes the session's definition differently than the one "
            "that the sites consented to: use the version that the coordinator runs"
        )
    with of_extra("crate", "an RO-Crate needs rocrate"):
        from rocrate.model import Preview
        from rocrate.rocrate import ROCrate
    # As they are stored and travel: the order of keys may differ in memory.
    document = codec.decode_model(ResultDocument, codec.encode_model(document))
    facts = Facts.of(document, read_definition(frozen))
    contents = _contents(facts, document, frozen)
    figures = {f"figures/{name}.svg": each for name, each in drawn_figures(Plots(facts)).items()}
    contents |= {path: f"{each.titled_svg}\n".encode() for path, each in figures.items()}
    described = {path: tuple(each.split(". ", 1)) for path, each in _DESCRIBED.items()}
    described |= {path: (each.title, each.description) for path, each in figures.items()}
    sums = "".join(f"{codec.sha256(each)}  {path}\n" for path, each in contents.items())
    contents[CHECKSUMS] = sums.encode()
    crate = ROCrate(version="1.1")
    crate.metadata.extra_contexts.append(_TERMS)
    for path, content in contents.items():
        crate.add_file(dest_path=path, properties=_of_file(path, content, *described[path]))
    _describe(crate, facts, document, chosen)
    contents[PREVIEW] = _preview(crate, contents, document).encode()
    properties = _of_file(PREVIEW, contents[PREVIEW], *described[PREVIEW])
    crate.add(Preview(crate, properties=properties))
    metadata = json.dumps(crate.metadata.generate(), ensure_ascii=False, allow_nan=False, indent=1)
    return _zip(document, {METADATA: f"{metadata}\n".encode(), **dict(sorted(contents.items()))})


# --- the files ------------------------------------------------------------------------------------


def _contents(facts: Facts, document: ResultDocument, definition: bytes) -> dict[str, bytes]:
    contents = {
        "definition.json": definition,
        "result.json": codec.to_json(codec.to_tree(document)),
        "centroids.csv": centroid_table(document),
        "profile.csv": csv_text(facts).encode(),
        "report.html": html(facts).encode(),
        **{path: write(facts).encode() for path, write in WRITE_UP.items()},
        "provenance.json": _provenance(facts, document),
    }
    if facts.result.outcomes is not None:
        contents["outcome_counts.csv"] = counts_text(facts, facts.result.outcomes).encode()
    return contents


def _of_file(path: str, content: bytes, name: str, about: str) -> dict[str, str]:
    return {
        "name": name,
        "description": about,
        "encodingFormat": _MEDIA[PurePath(path).suffix],
        "contentSize": str(len(content)),
        "sha256": codec.sha256(content),
    }


def _provenance(facts: Facts, document: ResultDocument) -> bytes:
    content = {
        "session": document.session,
        "completed_at": document.completed_at.isoformat(),
        **document.provenance.model_dump(mode="json"),
        "rounds": [entry.model_dump(mode="json") for entry in facts.result.history],
    }
    return (json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1) + "\n").encode()


def _zip(document: ResultDocument, files: Mapping[str, bytes]) -> bytes:
    end = document.completed_at
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, end.timetuple()[:6])
            entry.create_system = 3  # Unix, on every platform
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


# --- the metadata ---------------------------------------------------------------------------------


def _describe(
    crate: Crate, facts: Facts, document: ResultDocument, licence: tuple[str, str] | None
) -> None:
    """Add to a crate with its files what they are, what made them, and who took part."""
    definition, provenance = facts.definition, document.provenance
    end = document.completed_at.isoformat(timespec="seconds")
    profile = _add(crate, _PROFILE, "CreativeWork", {"name": "Process Run Crate", "version": "0.5"})
    run = crate.add_action(
        _software(crate, provenance),
        f"#session-{definition.name}",
        object=crate.get("definition.json"),
        result=[
            each for each in crate.data_entities if each.id not in ("definition.json", CHECKSUMS)
        ],
        properties={
            "name": f"Session {definition.name}",
            "description": _settings(definition),
            "endTime": end,
            "actionStatus": "http://schema.org/CompletedActionStatus",
        },
    )
    run["agent"] = [
        _add(crate, f"#site-{site}", "Organization", {"name": site}) for site in provenance.sites
    ]
    if provenance.audit_head is not None:
        of_entry = {
            "name": "Entry of the coordinator's audit trail that records the completion",
            "description": _audit_text(provenance),
            "value": provenance.audit_head.noted,
        }
        run["identifier"] = _add(crate, "#audit-head", "PropertyValue", of_entry)
    crate.name = f"{definition.title or definition.name}: {counted(len(facts.clusters), 'cluster')}"
    crate.description = _description(facts, provenance)
    crate.datePublished = end
    crate.license = NO_LICENSE
    if licence is not None:
        address, name = licence
        about = {"name": name, "description": "The licence of everything in this crate."}
        crate.license = crate.get(address) or _add(crate, address, "CreativeWork", about)
    crate.root_dataset["conformsTo"] = profile
    crate.root_dataset["mentions"] = run


def _add(crate: Crate, name: str, kind: str, properties: Mapping[str, Any]) -> Entity:
    return crate.add_jsonld({"@id": name, "@type": kind, **properties})


def _description(facts: Facts, provenance: Provenance) -> str:
    persons = sum(facts.result.sizes or ())
    of = f" of {persons} persons" if persons else ""
    purpose = facts.definition.purpose
    seen = f" As the site {facts.own_site} may see it." if facts.own_site else ""
    return (
        f"{counted(len(facts.clusters), 'cluster')}{of} at "
        f"{counted(len(provenance.sites), 'site')}, found by {facts.definition.algorithm} in the "
        f"session {facts.definition.name} of fedclust.{seen}"
        + (f" Purpose: {purpose}" if purpose else "")
    )


def _settings(definition: Definition) -> str:
    policy = definition.policy.model_dump(mode="json")
    return (
        f"{definition.algorithm}, version {definition.method_version}; "
        f"rounds that all methods share: version {definition.engine_version}; "
        f"options: {named_values(definition.config)}; policy: {named_values(policy)}; "
        f"seed: {definition.seed}."
    )


def _software(crate: Crate, provenance: Provenance) -> Entity:
    """Add fedclust, the method and what both need, each with its version; return fedclust."""
    platform, method = provenance.platform, METHODS.get(provenance.algorithm)

    def add(place: str, name: str, version: str, **more: Any) -> Entity:
        properties = {"name": name, "softwareVersion": version, **more}
        return _add(crate, place, "SoftwareApplication", properties)

    description = "Clustering across organisations that may not pool their data."
    version = provenance.server_version
    fedclust = add("#software-fedclust", "fedclust", version, description=description)
    step = add(
        f"#method-{provenance.algorithm}", provenance.algorithm, str(provenance.method_version)
    )
    fedclust["softwareAddOn"] = step
    needed = [
        add(home, name, platform[name], url=home)
        for name, (_, home) in LIBRARIES.items()
        if name in platform
    ]
    if "blas" in platform:
        needed.append(add("#software-blas", "BLAS", platform["blas"]))
    if needed:
        fedclust["softwareRequirements"] = needed
    if "system" in platform:
        system = f"{platform['system']}, {platform.get('machine', 'unknown')}"
        fedclust["operatingSystem"] = system
    if method is not None:
        paper = {"name": method.citation}
        step["description"] = method.title
        step["citation"] = _add(crate, "#method-paper", "ScholarlyArticle", paper)
    return fedclust


def _audit_text(provenance: Provenance) -> str:
    if provenance.audit_head is None:
        return (
            "It is not known here. A coordinator seals its entries within about a second: read the "
            "result again, and export it again. A simulation has no such entry."
        )
    return (
        "Number and SHA-256 of the entry. The coordinator's operator checks it with: "
        f"fedclust-service audit verify --head {provenance.audit_head.noted}"
    )


# --- the page -------------------------------------------------------------------------------------


def _preview(crate: Crate, contents: Mapping[str, bytes], document: ResultDocument) -> str:
    licence = crate.license
    if not isinstance(licence, str):
        licence = f'<a href="{escape(licence.id)}">{escape(licence["name"])}</a>'
    listed = html_table(
        "To check all files that were unpacked here: sha256sum -c SHA256SUMS",
        ["file", "content", "bytes"],
        [
            [each.id, f"{each['name']}. {each['description']}", len(contents[each.id])]
            for each in crate.data_entities
        ],
        text=(1,),
    )
    return html_document(
        crate.name,
        f"<h1>{escape(crate.name)}</h1><p>{escape(crate.description)}</p>"
        f"<p><b>Completed:</b> {time_text(document.completed_at)}</p>"
        f"<p><b>Licence:</b> {licence}</p>"
        f'<p>Begin with <a href="report.html">the report</a>. The file <a href="{METADATA}">'
        f"{METADATA}</a> describes this RO-Crate for programs. The crate holds no rows of persons "
        "and no labels of rows.</p>"
        f"<h2>Files</h2>{listed}<h2>Audit trail</h2>"
        "<p>The coordinator records sessions in a chain of entries. One of them is about the "
        f"completion of this session. {escape(_audit_text(document.provenance))}</p>",
    )
