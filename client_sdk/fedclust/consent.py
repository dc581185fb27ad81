"""What a site is asked to consent to, in words: the text of the consent screen.

The lines about what leaves come from the method's own declaration (``Phase.discloses``), which
also feeds the API and the docs, so that they cannot say different things.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms import engine
from fedclust.algorithms.base import Phase
from fedclust.algorithms.engine import Plan
from fedclust.errors import ConsentNeeded
from fedclust.wire.models import Consents, Definition


@dataclass(frozen=True)
class ConsentRequest:
    """A session as a site's data manager has to judge it.

    Attributes
    ----------
    coordinator, site, session, analyst : str
    definition : Definition
    definition_sha256 : str
        What is consented to; recorded here and in the coordinator's audit trail.
    plan : Plan
    p : int
        Smallest number of persons behind anything that is sent: the larger of the session's and
        the site's own.
    rows : int
        The site's usable rows. Joining declares ``size_band``; the answers' totals tell how
        many rows took part.
    size_band : str
    persons_declared : bool
        Whether a column says which rows belong to one person.
    features : tuple of str
        Those of the session that the site has.
    """

    coordinator: str
    site: str
    session: str
    analyst: str
    definition: Definition
    definition_sha256: str
    plan: Plan
    p: int
    rows: int
    size_band: str
    persons_declared: bool
    features: tuple[str, ...]

    @functools.cached_property
    def mask(self) -> NDArray[np.bool_]:
        """Which of the session's features (d,) the site has."""
        return engine.has_features(self.plan, self.features)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that this session may have, with what each discloses."""
        return engine.all_phases(self.plan.method)

    @property
    def two_sites_with(self) -> str | None:
        """The other site, where a round may rest on two: each learns the other's part."""
        if self.definition.policy.min_sites > 2:
            return None
        return next((name for name in self.definition.sites if name != self.site), None)

    @property
    def protection_none(self) -> bool:
        """Whether sites compute with their exact rows (``protection: none``)."""
        return self.definition.policy.protection == "none"

    @property
    def consents(self) -> Consents:
        """What joining declares beyond the definition itself."""
        return Consents(two_sites_with=self.two_sites_with, protection_none=self.protection_none)

    @property
    def notes(self) -> tuple[str, ...]:
        """What protects the rows, and what remains possible: a sentence each."""
        notes = [
            f"Every number that is sent rests on at least {self.p} persons.",
            "Rows, labels, identifiers and person numbers never leave.",
            f"Joining declares the size band {self.size_band} and the names of the features.",
            "It also declares a smallest count of this site's own, and this software's version.",
        ]
        if self.protection_none:
            notes.append(
                "THE DIFFERENCING GUARD IS OFF in this session: whoever sees the answers of "
                "several rounds can subtract them and may recover single records."
            )
        else:
            notes.append(
                "The differencing guard keeps any two answers from differing by fewer persons "
                "than that. Combinations of more than two answers in ways that it does not see, "
                "and later sessions on nearly the same rows, remain possible ways to learn more."
            )
        if self.two_sites_with is not None:
            notes.append(
                f"With two sites, {self.two_sites_with} can subtract its own part from each "
                "aggregate and so learns yours, and you learn theirs."
            )
        if not self.persons_declared:
            notes.append(
                "No person column is given, so each row counts as a person: if one person may "
                "have several rows, name the column (person=, --person-column)."
            )
        return tuple(notes)

    def refuse_tacit(self) -> None:
        """Raise ConsentNeeded where taking part is not consent enough."""
        needed = []
        if self.two_sites_with is not None:
            needed.append(f"two_sites_with {self.two_sites_with}")
        if self.protection_none:
            needed.append("protection_none")
        if needed:
            raise ConsentNeeded(
                f"session {self.session} needs express consent to: {', '.join(needed)}; "
                "read it with preview or check, then pass consent=True",
                tuple(needed),
            )
