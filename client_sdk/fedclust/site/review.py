"""The page that a steward or an ethics board reads and signs before a site takes part."""

import re
import tomllib
from collections.abc import Mapping
from datetime import datetime
from html import escape, unescape
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedclust.data.table_figures import HEADINGS
from fedclust.durable_files import write_file
from fedclust.result.markup import html_document, html_facts, html_table
from fedclust.result.session_terms import SHORT, TECHNICAL, feature_text
from fedclust.schema.feature import asked_of
from fedclust.site.approvals import LEAST_DIGITS, Approvals, Review
from fedclust.site.consent import ConsentRequest

#: Terms of an approval as rows of a table. A value without an entry is shown as it is.
_TERMS = {
    "coordinator": "coordinator",
    "operator": "operator",
    "retention_days": "days until the coordinator deletes what was sent",
    "site": "site",
    "session": "session",
    "definition_sha256": "definition (purpose, contact, columns, first sites, method), SHA-256",
    "min_group_size": "least group size, in persons",
    "features": "columns that this site has",
    "persons_declared": "rows and persons",
    "data_source": "data source",
    "reading_sha256": "how its columns are read, SHA-256",
    "separate_groups": "approval of a second grouping of persons who have groups",
    "other_persons": "approval of persons who are not known",
    "points": "points for outcomes",
    "points_short": "too few points",
    "exact_outcomes": "outcomes",
    "two_sites_with": "express consent to a session of two sites, with",
    "protection_none": "express consent",
}
_YES_NO = {
    ("persons_declared", True): "A column says which rows belong to one person.",
    ("persons_declared", False): "Each row counts as a person.",
    ("points_short", True): "This site answers no outcomes in this session.",
    ("exact_outcomes", True): (
        "They are counted exactly, which ends the promise of the allowance for these persons."
    ),
    ("protection_none", True): "This session works on exact rows, without protection.",
}


def review_page(request: ConsentRequest, now: datetime) -> str:
    """Return the consent screen in full, the site's own figures, and lines to sign, as HTML."""
    definition, code = request.definition, request.approval_code
    written = f"Session {request.session} at {request.site}. Written {now:%Y-%m-%d %H:%M} UTC."
    body = "".join(
        [
            f"<h1>{escape(definition.title or request.session)}</h1>",
            f"<p>{escape(written)}</p>",
            f'<p class="code">Approval code <b>{code[:LEAST_DIGITS]}</b>{code[LEAST_DIGITS:]}</p>',
            _consent_lines(request, short=True),
            _decision(request),
            '<h1 class="annex">Annex</h1>',
            _covered(request),
            _own_figures(request, now),
            "<h2>Everything that is asked</h2>",
            _consent_lines(request, short=False),
        ]
    )
    body += _words(body) + _technical(request)
    which = f"{request.session}, code {code[:LEAST_DIGITS]}"
    sheet = f'@page{{@bottom-left{{content:"{which}"}}}}'
    return html_document(
        f"{request.session}: review at {request.site}", body, _read("review.css") + sheet
    )


def write_review(
    request: ConsentRequest, path: Path, approvals: Approvals, now: datetime
) -> Review:
    """Write the page to a file and record it in the ledger; UsageError if it cannot be written."""
    page = review_page(request, now).encode()
    write_file(path, page)
    return approvals.record_review(request, page, now)


def _consent_lines(request: ConsentRequest, *, short: bool) -> str:
    """Return lines of the consent screen by heading: those in short, or all others."""
    warned, deep = ' class="warning"', ' class="deep"'
    parts = []
    for heading, lines in request.sections():
        if short and heading == "warning":
            lines = (f"{len(lines)} about these rows, in the annex",)
        elif heading in TECHNICAL or (heading in SHORT) is not short:
            continue
        shown = "".join(
            f"<p{deep * line.startswith(' ')}>{escape(line.strip())}</p>" for line in lines
        )
        mark = warned if heading == "protection" and request.protection_none else ""
        parts.append(f"<dt>{escape(heading)}</dt><dd{mark}>{shown}</dd>")
    return f"<dl>{''.join(parts)}</dl>"


def _own_figures(request: ConsentRequest, now: datetime) -> str:
    counts: list[list[object]] = [
        ["persons who take part", request.persons],
        ["what joining says of their number", request.size_band],
    ]
    found = request.figures
    by_column = ""
    if found is not None:
        smallest, largest = found.group_sizes
        counts += [
            ["groups", found.n_groups],
            ["persons of a group", f"{smallest} to {largest}"],
        ]
        if found.distance_sd is not None:
            near = f"{found.distance_sd:.2f} standard deviations"
            counts.append(["half of the persons are nearer to their group's record than", near])
        by_column = html_table(
            "Share of persons, by column. In groups of one value: a reader who knows that somebody "
            "is in such a group knows the value.",
            HEADINGS,
            found.by_column(),
        )
    table = html_facts(
        f"Of {now:%Y-%m-%d}. They may change with a new row and are not part of the code. The "
        "coordinator learns the number of persons, and with the table of groups their number and "
        "sizes, and what is not released.",
        counts,
    )
    return f"<h2>This site's own figures</h2>{table}{by_column}"


def terms_rows(
    terms: Mapping[str, Any], features: Mapping[str, str] = MappingProxyType({})
) -> list[list[object]]:
    """Return what an approval covers: each term in words, and its value.

    Parameters
    ----------
    terms : mapping of str to JSON value
        :attr:`ConsentRequest.terms`.
    features : mapping of str to str
        What is said of a column besides its name.
    """

    def words(value: object) -> str:
        if isinstance(value, list):
            return ", ".join(features.get(name, name) for name in map(str, value)) or "none"
        return str(value)

    return [
        [word, _YES_NO[name, value] if isinstance(value, bool) else words(value)]
        for name, word in _TERMS.items()
        for value in [terms.get(name)]
        if value is not None and (name, value) != ("protection_none", False)
    ]


def _covered(request: ConsentRequest) -> str:
    asked = asked_of(request.definition.features)
    rows = terms_rows(request.terms, {each.name: feature_text(each) for each in asked})
    table = html_facts(
        "An approval covers what stands here. If any of it has changed when the site's program "
        "starts, the approval has ended. Otherwise "
        "it holds until the session ends, also for patients who are added to the same source and "
        "sites that are invited later. It does not replace a patient's consent.",
        rows,
    )
    return f"<h2>What an approval covers</h2>{table}"


def _decision(request: ConsentRequest) -> str:
    command = f"fedclust approve {request.session} --name NAME"
    lines = "".join(
        f"<div>{each}</div>" for each in ("legal basis", "name", "role", "date", "signature")
    )
    return (
        "<h2>Decision</h2><p>☐ approved &nbsp; ☐ not approved</p>"
        f"<p>To record it: <code>{escape(command)}</code>, with the approval code.</p>"
        f'<div class="sign">{lines}</div>'
    )


def _words(body: str) -> str:
    """Return what the words mean that occur in the body of the page."""
    said = unescape(re.sub(r"<[^>]*>", " ", body))
    glossary = tomllib.loads(_read("review_words.toml"))
    written = glossary["written"]
    rows = [
        [word, meaning]
        for word, meaning in glossary["words"].items()
        if re.search(rf"\b(?:{written.get(word, f'{word}s?')})\b", said, re.IGNORECASE)
    ]
    table = html_facts("In the sense of this page.", rows)
    return f"<h2>Words on this page</h2>{table}"


def _technical(request: ConsentRequest) -> str:
    rows = [
        [TECHNICAL[heading], line]
        for heading, lines in request.sections()
        if heading in TECHNICAL
        for line in lines
    ]
    caption = "Settings of the session, for experts, as they take effect."
    table = html_facts(caption, rows)
    return f"<h2>Technical details</h2>{table}"


def _read(name: str) -> str:
    """Return a file that stands next to this one."""
    return files(__package__).joinpath(name).read_text("utf-8")
