"""What a site is asked to consent to, and the text of the consent screen.

What leaves a site is listed from the method's declaration (``Phase.discloses``), as in the API and
the docs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust import engine
from fedclust.engine import Plan
from fedclust.protection.figures import TableFigures
from fedclust.report.wording import named_values
from fedclust.schema.display import COLUMNS, LINES, cut, html_fields
from fedclust.schema.feature import Feature
from fedclust.schema.task import Phase
from fedclust.site.data_terms import DataTerms
from fedclust.wire.codec import canonical_json, sha256
from fedclust.wire.models import Consents, Definition

#: At most this many columns are listed with their share of persons in groups of one value,
_MOST_COLUMNS = 3
#: if that share is at least this.
_LEAST_SHARE = 0.005


@dataclass(frozen=True, repr=False)
class ConsentRequest:
    """What a site's data manager needs to know to decide on a session.

    Attributes
    ----------
    coordinator, site, session, analyst : str
    definition : Definition
    definition_sha256 : str
        The hash that a site consents to; recorded at the site and in the coordinator's audit trail.
    plan : Plan
    p : int
        The least number of persons behind every number: the larger of the session's and the
        site's own.
    persons : int
        Persons of the site's table. Joining declares ``size_band``.
    size_band : str
    persons_declared : bool
        Whether a column says which rows belong to one person.
    features : tuple of str
        Those of the session that the site has.
    data : DataTerms
        Which rows, and how they are read.
    figures : TableFigures or None
        How close the site's table is to its persons; None with ``protection: none``, or if the
        site has fewer than p persons.
    fences : bool
        Whether extremes count as a fence in the site's table.
    warnings : tuple of str
        What about the rows is allowed but probably a mistake. Stays at the site.
    separate_groups : str or None
        The approval of groups apart from those that these persons have.
    """

    coordinator: str
    site: str
    session: str
    analyst: str
    definition: Definition
    definition_sha256: str
    plan: Plan
    p: int
    persons: int
    size_band: str
    persons_declared: bool
    features: tuple[str, ...]
    data: DataTerms
    figures: TableFigures | None = None
    fences: bool = True
    warnings: tuple[str, ...] = ()
    separate_groups: str | None = None

    def __repr__(self) -> str:
        lines = [cut(f"{heading:<11} {line}", COLUMNS) for heading, line in self.text()]
        more = len(lines) - (LINES - 2)
        if more > 0:
            lines = [*lines[: LINES - 2], f"... {more} more lines: text()"]
        return "\n".join([cut(f"ConsentRequest of session {self.session}", COLUMNS), *lines])

    def _repr_html_(self) -> str:
        return html_fields("Request for consent", self.text())

    @functools.cached_property
    def mask(self) -> NDArray[np.bool_]:
        """Which of the session's features (d,) the site has."""
        return engine.has_features(self.plan, self.features)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that this session can have, with the fields that each discloses."""
        return engine.possible_phases(self.plan)

    @property
    def two_sites_with(self) -> str | None:
        """The other site of a session of two sites: each learns the other's part."""
        if self.definition.policy.min_sites > 2:
            return None
        return next((name for name in self.definition.sites if name != self.site), None)

    @property
    def protection_none(self) -> bool:
        """Whether the session asks for exact rows."""
        return self.definition.policy.protection == "none"

    @property
    def consents(self) -> Consents:
        """The express consents that joining declares."""
        return Consents(two_sites_with=self.two_sites_with, protection_none=self.protection_none)

    @property
    def promise(self) -> str:
        """How the persons are protected, in one sentence."""
        if self.protection_none:
            return (
                "NONE: this session works on exact rows. The coordinator can compute single "
                "records from what you send."
            )
        return (
            f"Everything that leaves is computed from a table of groups of at least {self.p} "
            "similar persons; nothing finer can be learned, whoever asks, in any number of rounds "
            "and sessions. Rows, labels and identifiers never leave."
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What remains possible, one sentence each."""
        notes = []
        if self.two_sites_with is not None:
            notes.append(
                f"With two sites, {self.two_sites_with} can subtract its own part from each sum "
                "and so learns yours, and you learn theirs."
            )
        if self.separate_groups is not None:
            notes.append(
                "Persons who already have groups get a second grouping, which reveals more about "
                f"each of them. Its approval: {self.separate_groups}"
            )
        if not self.persons_declared:
            notes.append(
                "No person column is given, so each row counts as a person. If a person may have "
                "several rows, name the column (person=, --person-column)."
            )
        if self.protection_none:
            return tuple(notes)
        notes.append(
            "A malicious coordinator may in the end learn this table of groups. At very "
            "small sites it can guess better than by chance whether a known person is in it."
        )
        if self.persons < self.p:
            notes.append(
                f"Fewer than {self.p} persons have the values that this session needs, so this "
                "site sends only empty submissions. See which columns lack values: fedclust check."
            )
        if not self.fences:
            notes.append(
                "Your table was formed without fences: the record of a group that holds a lone "
                "extreme shows that there is one."
            )
        if self.figures is not None:
            notes += self._table_notes(self.figures)
        return tuple(notes)

    def _table_notes(self, figures: TableFigures) -> Iterator[str]:
        smallest, largest = figures.group_sizes
        close = (
            ""
            if figures.distance_sd is None
            else f", half of the persons within {figures.distance_sd:.2f} standard deviations of "
            "their group's record"
        )
        yield (
            f"Your table: {figures.n_groups} groups of {smallest} to {largest} persons{close}. "
            "A larger least group size makes it coarser."
        )
        shares = sorted(figures.one_value.items(), key=lambda item: (-item[1], item[0]))
        listed = [f"{name} {share:.0%}" for name, share in shares if share >= _LEAST_SHARE]
        if listed:
            more = len(listed) - _MOST_COLUMNS
            rest = f" and {more} columns more (fedclust check)" if more > 0 else ""
            yield (
                "Persons in groups of one value, which whoever knows the group knows: "
                f"{', '.join(listed[:_MOST_COLUMNS])}{rest}."
            )

    def text(self, *, full: bool = False) -> tuple[tuple[str, str], ...]:
        """Return the consent screen as pairs of a heading and a line, "" for the same heading.

        Parameters
        ----------
        full : bool
            Whether to list every field that leaves, with what it can identify.
        """
        return tuple(self._lines(full=full))

    def _lines(self, *, full: bool) -> Iterator[tuple[str, str]]:
        definition, policy = self.definition, self.definition.policy
        title = definition.title
        yield "session", f"{title} ({self.session})" if title else self.session
        if definition.study is not None:
            yield "study", definition.study
        yield "purpose", definition.purpose or "not stated"
        contact = f"; contact: {definition.contact}" if definition.contact else ""
        yield "asked by", f"{self.analyst}{contact}; coordinator at {self.coordinator}"
        approval = f"approval: {definition.approval}; " if definition.approval else ""
        expires = f"; joining ends {definition.expires:%Y-%m-%d}" if definition.expires else ""
        sites = f"{len(definition.sites)} sites ({', '.join(definition.sites)})"
        rounds = (
            f"at least {policy.min_sites} in each of at most {engine.most_rounds(self.plan)} rounds"
        )
        yield "terms", f"{approval}{sites}, {rounds}{expires}"
        persons = f"{self.persons} persons (joining declares {self.size_band})"
        yield "this site", f"{self.site}, {persons} of {self.data.text}"
        for place, how in enumerate(self.data.lines if full else ()):
            yield "read as" if place == 0 else "", how
        method = self.plan.method
        yield "method", f"{method.title} ({definition.algorithm} version {method.version})"
        yield "columns", ", ".join(feature_text(feature) for feature in definition.features)
        for place, warning in enumerate(self.warnings):
            yield "warning" if place == 0 else "", warning
        for place, phase in enumerate(self.phases):
            heading = "leaves" if place == 0 else ""
            yield (
                heading,
                f"{phase.name}: {self._shape(phase.summary)}{'' if full else self._fields(phase)}",
            )
            for line in phase.discloses if full else ():
                yield "", f"  {line.field}, {self._shape(line.shape)}: {line.meaning}"
        if full:
            yield from self._identifies()
        yield "protection", self.promise
        for place, note in enumerate(self.notes):
            yield "remains" if place == 0 else "", note
        if full:
            yield (
                "afterwards",
                "What was sent cannot be recalled; withdrawing stops what has not been sent.",
            )
            who = "The analyst, the coordinator's operators and the session's sites"
            yield "", f"{who} get the result."
            yield "", "How long submissions are kept: ask the coordinator's operator."
            yield "options", named_values(definition.config)
            yield "policy", named_values(policy.model_dump())
            yield "seed", str(definition.seed)
        yield "definition", f"SHA-256 {self.definition_sha256}"

    def _identifies(self) -> Iterator[tuple[str, str]]:
        """Yield what the fields can identify, each text once with the fields that it is about."""
        about = (
            "Numbers can be about single persons."
            if self.protection_none
            else f"No number is about fewer than {self.p} of your persons."
        )
        yield "identifies", f"{about} What each can identify:"
        fields: dict[str, dict[str, list[str]]] = {}
        for phase in self.phases:
            for line in phase.discloses:
                fields.setdefault(line.identifies, {}).setdefault(phase.name, []).append(line.field)
        for text, by_phase in fields.items():
            named = (f"{', '.join(names)} ({phase})" for phase, names in by_phase.items())
            yield "", f"  {'; '.join(named)}: {text}"

    def _fields(self, phase: Phase) -> str:
        """Return the fields of a phase and how many numbers each has."""
        shapes = ((line.field, self._shape(line.shape)) for line in phase.discloses)
        short = (
            f"{name} {re.sub('one number|(?<=.) numbers?', '', shape)}".strip()
            for name, shape in shapes
        )
        return f" ({', '.join(short)})"

    def _shape(self, shape: str) -> str:
        """Return the shape of a field with the session's numbers for its letters (K, d, ...)."""
        numbers = _shape_numbers(self.plan)
        return re.sub(r"\b[A-Za-z]\b", lambda found: numbers.get(found[0], found[0]), shape)

    @functools.cached_property
    def terms(self) -> dict[str, Any]:
        """What an approval of this request covers, as plain JSON values.

        Counts are left out: they change with a new row.
        """
        return {
            "coordinator": self.coordinator,
            "site": self.site,
            "session": self.session,
            "definition_sha256": self.definition_sha256,
            "min_group_size": self.p,
            "features": list(self.features),
            "persons_declared": self.persons_declared,
            "fences": self.fences,
            "data_source": self.data.source,
            "reading_sha256": self.data.digest,
            "separate_groups": self.separate_groups,
            **self.consents.model_dump(mode="json"),
        }

    @property
    def approval_code(self) -> str:
        """The SHA-256 of the terms in canonical form, in hexadecimal digits."""
        return sha256(canonical_json(self.terms))


def feature_text(feature: Feature) -> str:
    """Return a feature's name, unit, bounds and kind for people."""
    text = feature.name + (f" [{feature.unit}]" if feature.unit else "")
    if feature.lower is not None or feature.upper is not None:
        low = "" if feature.lower is None else f"{feature.lower:g}"
        text += f" {low}..{'' if feature.upper is None else f'{feature.upper:g}'}"
    details: list[str] = [] if feature.kind == "numeric" else [feature.kind]
    if feature.levels:
        details.append(" | ".join(feature.levels))
    if feature.transform != "none":
        details.append(feature.transform)
    if feature.weight != 1.0:
        details.append(f"weight {feature.weight:g}")
    return f"{text} ({', '.join(details)})" if details else text


def _shape_numbers(plan: Plan) -> dict[str, str]:
    """Return the session's numbers for the letters in the shapes of fields."""
    return {"d": str(len(plan.columns)), **plan.options.shape_numbers}
