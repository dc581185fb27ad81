"""A result as an RO-Crate: one ZIP file with everything that a publication cites.

RO-Crate 1.1 with the profile Process Run Crate 0.5. The crate holds no more than the result and its
report do. The same result gives the same bytes: nothing comes from the clock or the machine, and
files are stored without compression, because zlib's output differs between versions.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from fedclust.definition import canonical, read_definition
from fedclust.errors import UsageError
from fedclust.methods.registry import METHODS
from fedclust.report.facts import Facts, facts_of_document
from fedclust.report.figures import Plots, drawn_figures
from fedclust.report.markup import html_document, html_table
from fedclust.report.methods_text import WRITE_UP
from fedclust.report.page import html
from fedclust.report.tables import centroid_table, counts_text, csv_text
from fedclust.report.wording import named_values
from fedclust.wire import codec
from fedclust.wire.models import Definition, Provenance, ResultDocument

__all__ = ["METADATA", "NO_LICENSE", "check_license", "crate_bytes"]

METADATA = "ro-crate-metadata.json"
PREVIEW = "ro-crate-preview.html"
CHECKSUMS = "SHA256SUMS"
#: What a crate says of its licence if its writer named none.
NO_LICENSE = "No licence is stated. Ask those who ran the session before you reuse the content."
_PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_SPDX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,62}")
_ADDRESS = re.compile(r"https?://[^\s<>\"{}|\\^`]+")
#: Software whose version the provenance names: its home page.
_HOMES = {
    "python": "https://www.python.org/",
    "numpy": "https://numpy.org/",
    "scipy": "https://scipy.org/",
    "scikit-learn": "https://scikit-learn.org/",
}

Entity = dict[str, Any]


#: Files by path: type, name, and what they hold.
_DESCRIBED = {
    "definition.json": (
        "application/json",
        "Definition",
        (
            "The session as the sites consented to it, byte for byte: method, options, features, "
            "policy, sites, purpose. Its SHA-256 is the hash of their consent."
        ),
    ),
    "result.json": (
        "application/json",
        "Result",
        (
            "Everything that the coordinator released about the clusters: centroids in scaled and "
            "own units, sizes, quality, rounds."
        ),
    ),
    "centroids.csv": (
        "text/csv",
        "Centroids",
        "One line for each cluster: its size and its centroid in the features' own units.",
    ),
    "profile.csv": (
        "text/csv",
        "Profile",
        (
            "One line for each cluster and column: its value and what that measures, standard "
            "deviation, and difference from all clusters. Outcomes have 95 % intervals."
        ),
    ),
    "outcome_counts.csv": (
        "text/csv",
        "Counts of outcomes",
        (
            "Persons by outcome, site, cluster and cell, with random noise of the standard "
            "deviation sigma."
        ),
    ),
    "report.html": (
        "text/html",
        "Report",
        "The result for people: profile, sizes, quality, figures, provenance.",
    ),
    "methods.md": (
        "text/markdown",
        "Methods",
        "The methods section of a paper about the result, with every choice and figure.",
    ),
    "references.bib": (
        "application/x-bibtex",
        "References",
        "What the methods section cites, as BibTeX.",
    ),
    "provenance.json": (
        "application/json",
        "Provenance",
        (
            "Method and its version, seed, software and platform, the rounds, the SHA-256 of the "
            "submissions, and the entry of the audit trail that records the completion."
        ),
    ),
    CHECKSUMS: (
        "text/plain",
        "Checksums",
        "The SHA-256 of each file above, in the form that sha256sum -c reads.",
    ),
    PREVIEW: ("text/html", "Preview", "What this crate holds, for people."),
}


@dataclass(frozen=True)
class _File:
    """A file of the crate."""

    path: str
    media: str
    name: str
    about: str
    content: bytes

    @property
    def produced(self) -> bool:
        """Whether the session produced the content."""
        return self.path not in ("definition.json", CHECKSUMS)

    @property
    def entity(self) -> Entity:
        return {
            "@id": self.path,
            "@type": "File",
            "name": self.name,
            "description": self.about,
            "encodingFormat": self.media,
            "contentSize": str(len(self.content)),
            "sha256": codec.sha256(self.content),
        }


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
        The licence is neither, or the definition has not the hash that the sites consented to.
    """
    chosen = check_license(licence)
    frozen = canonical(definition)
    if codec.sha256(frozen) != document.provenance.definition_sha256:
        raise UsageError(
            "this version of fedclust writes the session's definition differently than the one "
            "that the sites consented to: use the version that the coordinator runs"
        )
    # As they are stored and travel: the order of keys may differ in memory.
    document = codec.decode_model(ResultDocument, codec.encode_model(document))
    facts = facts_of_document(document, read_definition(frozen))
    files = _files(facts, document, frozen)
    sums = "".join(f"{codec.sha256(file.content)}  {file.path}\n" for file in files)
    files.append(_File(CHECKSUMS, *_DESCRIBED[CHECKSUMS], sums.encode()))
    graph = _graph(facts, document, files, chosen)
    preview = _File(PREVIEW, *_DESCRIBED[PREVIEW], _preview(graph, files, document).encode())
    graph.append({**preview.entity, "@type": "CreativeWork", "about": {"@id": "./"}})
    described = {
        "@context": [
            "https://w3id.org/ro/crate/1.1/context",
            "https://w3id.org/ro/terms/workflow-run/context",
        ],
        "@graph": graph,
    }
    metadata = json.dumps(described, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    contents = {file.path: file.content for file in (*files, preview)}
    return _zip(document, {METADATA: metadata.encode(), **dict(sorted(contents.items()))})


# --- the files ------------------------------------------------------------------------------------


def _files(facts: Facts, document: ResultDocument, definition: bytes) -> list[_File]:
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
        contents["outcome_counts.csv"] = counts_text(facts.result.outcomes).encode()
    found = [_File(path, *_DESCRIBED[path], content) for path, content in contents.items()]
    for name, figure in drawn_figures(Plots(facts)).items():
        content = f"{figure.titled_svg}\n".encode()
        about = figure.description
        found.append(_File(f"figures/{name}.svg", "image/svg+xml", figure.title, about, content))
    return found


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


def _graph(
    facts: Facts, document: ResultDocument, files: list[_File], licence: tuple[str, str] | None
) -> list[Entity]:
    definition, provenance = facts.definition, document.provenance
    end = document.completed_at.isoformat(timespec="seconds")
    action = f"#session-{definition.name}"
    root: Entity = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"{definition.title or definition.name}: {_clusters(facts)}",
        "description": _description(facts, provenance),
        "datePublished": end,
        "license": NO_LICENSE if licence is None else {"@id": licence[0]},
        "conformsTo": {"@id": _PROFILE},
        "hasPart": _references(file.path for file in files),
        "mentions": {"@id": action},
    }
    software = _software(provenance)
    sites = [
        {"@id": f"#site-{site}", "@type": "Organization", "name": site} for site in provenance.sites
    ]
    run: Entity = {
        "@id": action,
        "@type": "CreateAction",
        "name": f"Session {definition.name}",
        "description": _settings(definition),
        "endTime": end,
        "actionStatus": "http://schema.org/CompletedActionStatus",
        "instrument": {"@id": software[0]["@id"]},
        "agent": _references(each["@id"] for each in sites),
        "object": {"@id": "definition.json"},
        "result": _references(file.path for file in files if file.produced),
    }
    graph = [
        {
            "@id": METADATA,
            "@type": "CreativeWork",
            "about": {"@id": "./"},
            "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
        },
        root,
        {"@id": _PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"},
        *(file.entity for file in files),
        run,
        *software,
        *sites,
    ]
    if licence is not None:
        graph.append(
            {
                "@id": licence[0],
                "@type": "CreativeWork",
                "name": licence[1],
                "description": "The licence of everything in this crate.",
            }
        )
    if provenance.audit_head is not None:
        run["identifier"] = {"@id": "#audit-head"}
        graph.append(
            {
                "@id": "#audit-head",
                "@type": "PropertyValue",
                "name": "Entry of the coordinator's audit trail that records the completion",
                "description": _audit_text(provenance),
                "value": provenance.audit_head.noted,
            }
        )
    return graph


def _references(ids: Iterable[str]) -> list[Entity]:
    return [{"@id": each} for each in ids]


def _clusters(facts: Facts) -> str:
    count = len(facts.clusters)
    return f"{count} cluster{'' if count == 1 else 's'}"


def _description(facts: Facts, provenance: Provenance) -> str:
    sites = len(provenance.sites)
    persons = sum(facts.result.sizes or ())
    of = f" of {persons} persons" if persons else ""
    purpose = facts.definition.purpose
    seen = f" As the site {facts.own_site} may see it." if facts.own_site else ""
    return (
        f"{_clusters(facts)}{of} at {sites} "
        f"site{'' if sites == 1 else 's'}, found by {facts.definition.algorithm} in the session "
        f"{facts.definition.name} of fedclust.{seen}" + (f" Purpose: {purpose}" if purpose else "")
    )


def _settings(definition: Definition) -> str:
    policy = definition.policy.model_dump(mode="json")
    return (
        f"{definition.algorithm}, version {definition.method_version}; "
        f"rounds that all methods share: version {definition.engine_version}; "
        f"options: {named_values(definition.config)}; policy: {named_values(policy)}; "
        f"seed: {definition.seed}."
    )


def _software(provenance: Provenance) -> list[Entity]:
    """Return fedclust first, then the method and what both need, each with its version."""
    platform = provenance.platform
    method = METHODS.get(provenance.algorithm)
    needed = [
        {
            "@id": home,
            "@type": "SoftwareApplication",
            "name": name,
            "url": home,
            "softwareVersion": platform[name],
        }
        for name, home in _HOMES.items()
        if name in platform
    ]
    if "blas" in platform:
        blas = {"@id": "#software-blas", "@type": "SoftwareApplication", "name": "BLAS"}
        needed.append({**blas, "softwareVersion": platform["blas"]})
    step: Entity = {
        "@id": f"#method-{provenance.algorithm}",
        "@type": "SoftwareApplication",
        "name": provenance.algorithm,
        "softwareVersion": str(provenance.method_version),
    }
    papers: list[Entity] = []
    if method is not None:
        step |= {"description": method.title, "citation": {"@id": "#method-paper"}}
        papers.append(
            {"@id": "#method-paper", "@type": "ScholarlyArticle", "name": method.citation}
        )
    fedclust: Entity = {
        "@id": "#software-fedclust",
        "@type": "SoftwareApplication",
        "name": "fedclust",
        "description": "Clustering across organisations that may not pool their data.",
        "softwareVersion": provenance.server_version,
        "softwareAddOn": {"@id": step["@id"]},
    }
    if needed:
        fedclust["softwareRequirements"] = _references(each["@id"] for each in needed)
    if "system" in platform:
        fedclust["operatingSystem"] = f"{platform['system']}, {platform.get('machine', 'unknown')}"
    return [fedclust, step, *needed, *papers]


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


def _preview(graph: list[Entity], files: list[_File], document: ResultDocument) -> str:
    by_id = {each["@id"]: each for each in graph}
    root, licence = by_id["./"], NO_LICENSE
    if isinstance(root["license"], dict):
        address = root["license"]["@id"]
        licence = f'<a href="{escape(address)}">{escape(by_id[address]["name"])}</a>'
    listed = html_table(
        "To check all files that were unpacked here: sha256sum -c SHA256SUMS",
        ["file", "content", "bytes"],
        [[file.path, f"{file.name}. {file.about}", len(file.content)] for file in files],
        text=(1,),
    )
    versions = html_table(
        "What ran at the coordinator.",
        ["name", "version"],
        [
            [each["name"], each["softwareVersion"]]
            for each in graph
            if each["@type"] == "SoftwareApplication"
        ],
        text=(1,),
    )
    head = document.provenance.audit_head
    noted = "" if head is None else f"<p><code>{head.noted}</code></p>"
    return html_document(
        root["name"],
        f"<h1>{escape(root['name'])}</h1><p>{escape(root['description'])}</p>"
        f"<p><b>Completed:</b> {document.completed_at:%Y-%m-%d %H:%M} UTC</p>"
        f"<p><b>Licence:</b> {licence}</p>"
        f'<p>Begin with <a href="report.html">the report</a>. The file <a href="{METADATA}">'
        f"{METADATA}</a> describes this RO-Crate for programs. The crate holds no rows of persons "
        "and no labels of rows.</p>"
        f"<h2>Files</h2>{listed}<h2>Software</h2>{versions}<h2>Audit trail</h2>"
        "<p>The coordinator records sessions in a chain of entries. One of them is about the "
        f"completion of this session.</p>{noted}<p>{escape(_audit_text(document.provenance))}</p>",
    )
