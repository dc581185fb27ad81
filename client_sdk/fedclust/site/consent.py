"""What a site is asked to consent to: the session's terms and what only the site knows."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust import engine
from fedclust.protection.figures import TableFigures
from fedclust.protection.recognition import Recognition
from fedclust.report.session_terms import COORDINATOR_LEARNS, SessionTerms
from fedclust.schema.display import COLUMNS, LINES, cut, html_fields
from fedclust.site.data_terms import DataTerms
from fedclust.wire.codec import canonical_json, sha256
from fedclust.wire.models import Consents

#: At most this many columns are listed with their share of persons in groups of one value,
_MOST_COLUMNS = 3
#: if that share is at least this.
_LEAST_SHARE = 0.005


@dataclass(frozen=True, repr=False)
class ConsentRequest(SessionTerms):
    """What a site's data manager needs to know to decide on a session.

    It has the attributes of `SessionTerms`, and these.

    Attributes
    ----------
    p : int
        The least number of persons behind every number: the larger of the session's and the
        site's own.
    persons : int
        Persons of the site's table. Joining declares ``size_band``.
    size_band : str
    persons_declared : bool
        Whether a column says which rows belong to one person.
    features : tuple of str
        Features and outcomes of the session that the site has.
    data : DataTerms
        Which rows, and how they are read.
    figures : TableFigures or None
        How close the site's table is to its persons; None with ``protection: none``, or if the
        site has fewer than p persons.
    recognition : Recognition or None
        How many of the persons the site's tables know; None if it has none.
    fences : bool
        Whether extremes count as a fence in the site's table.
    warnings : tuple of str
        What about the rows is allowed but probably a mistake. Stays at the site.
    separate_groups : str or None
        The approval of groups apart from those that these persons have.
    other_persons : str or None
        Who approves that persons take part whom the site's tables do not know.
    """

    persons: int
    size_band: str
    persons_declared: bool
    features: tuple[str, ...]
    data: DataTerms
    figures: TableFigures | None = None
    recognition: Recognition | None = None
    fences: bool = True
    warnings: tuple[str, ...] = ()
    separate_groups: str | None = None
    other_persons: str | None = None

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
    def consents(self) -> Consents:
        """The express consents that joining declares."""
        return Consents(two_sites_with=self.two_sites_with, protection_none=self.protection_none)

    @property
    def notes(self) -> tuple[str, ...]:
        """What remains possible, one sentence each."""
        notes = list(self._two_sites_notes())
        if self.separate_groups is not None:
            notes.append(
                "Persons who already have groups get a second grouping, which reveals more about "
                f"each of them. Its approval: {self.separate_groups}"
            )
        if self.other_persons is not None:
            notes.append(
                "Persons take part whom your tables do not know. If they are known persons under "
                "other ids, they get a second grouping, which reveals more about each of them. "
                f"The approval: {self.other_persons}"
            )
        if not self.persons_declared:
            notes.append(
                "No person column is given, so each row counts as a person. If a person may have "
                "several rows, name the column (person=, --person-column)."
            )
        if self.protection_none:
            return tuple(notes)
        notes.append(COORDINATOR_LEARNS)
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

    def _site_lines(self, *, full: bool) -> Iterator[tuple[str, str]]:
        persons = f"{self.persons} persons (joining declares {self.size_band})"
        yield "this site", f"{self.site}, {persons} of {self.data.text}"
        for place, how in enumerate(self.data.lines if full else ()):
            yield "read as" if place == 0 else "", how

    def _warning_lines(self) -> Iterator[tuple[str, str]]:
        for place, warning in enumerate(self.warnings):
            yield "warning" if place == 0 else "", warning

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
            "other_persons": self.other_persons,
            **self.consents.model_dump(mode="json"),
        }

    @property
    def approval_code(self) -> str:
        """The SHA-256 of the terms in canonical form, in hexadecimal digits."""
        return sha256(canonical_json(self.terms))
