"""What a site is asked to consent to: the session's terms and what only the site knows."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedclust.data.outcome_rows import Staying
from fedclust.data.table_figures import TableFigures
from fedclust.numeric.array_types import BoolArray
from fedclust.protection.recognition import Recognition
from fedclust.result.privacy_loss import guesses, noise_sd
from fedclust.result.session_terms import COORDINATOR_LEARNS, SessionTerms
from fedclust.schema.display import COLUMNS, LINES, cut, first_few, html_fields
from fedclust.schema.feature import Outcome
from fedclust.site.allowance import Balance, Question, charge_key
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
    groups_of : int
        The least size of a group of this table; smaller than ``p`` if groups are united.
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
    staying : Staying or None
        How much of the site's table ``missing: drop`` does not leave out; None if it is all of it.
    recognition : Recognition or None
        How many of the persons the site's tables know; None if it has none.
    warnings : tuple of str
        What about the rows is allowed but probably a mistake. Stays at the site.
    separate_groups : str or None
        The approval of groups apart from those that these persons have.
    other_persons : str or None
        Who approves that persons take part whom the site's tables do not know.
    table_id : str or None
        The table that answers the question.
    question : Question or None
        What is asked of the points for outcomes; None if nothing is.
    balance : Balance or None
        The points for it.
    also_features : tuple of str
        Outcomes whose columns the site's table releases too.
    """

    persons: int
    groups_of: int
    size_band: str
    persons_declared: bool
    features: tuple[str, ...]
    data: DataTerms
    figures: TableFigures | None = None
    staying: Staying | None = None
    recognition: Recognition | None = None
    warnings: tuple[str, ...] = ()
    separate_groups: str | None = None
    other_persons: str | None = None
    table_id: str | None = None
    question: Question | None = None
    balance: Balance | None = None
    also_features: tuple[str, ...] = ()

    def __repr__(self) -> str:
        lines = [cut(f"{heading:<11} {line}", COLUMNS) for heading, line in self.text()]
        more = len(lines) - (LINES - 2)
        if more > 0:
            lines = [*lines[: LINES - 2], f"... {more} more lines: text()"]
        return "\n".join([cut(f"ConsentRequest of session {self.session}", COLUMNS), *lines])

    def _repr_html_(self) -> str:
        return html_fields("Request for consent", self.text())

    @functools.cached_property
    def mask(self) -> BoolArray:
        """Which of the session's features (d,) the site has."""
        return self.plan.has_features(self.features)

    @property
    def persons_guess(self) -> int | None:
        """About how many persons all sites have, if each has as many as this one."""
        return self.persons * len(self.definition.sites)

    @property
    def charge_key(self) -> str:
        """What identifies the session's charge in the chain of the table."""
        return charge_key(self.coordinator, self.site, self.session, self.definition_sha256)

    @property
    def charged(self) -> tuple[str, Question] | None:
        """The table and the question that joining charges; None if it charges nothing."""
        if self.table_id is None or self.question is None or self.points_short:
            return None
        return self.table_id, self.question

    @property
    def points(self) -> int:
        """What the session asks of the points for outcomes."""
        return self.question.points if self.question else 0

    @property
    def points_left(self) -> int | None:
        """Points before this session; None if it asks none."""
        return self.balance.left if self.balance else None

    @property
    def points_short(self) -> bool:
        """Whether the site answers no outcomes, because too few points are left."""
        return self.balance is not None and not self.balance.covers

    @property
    def counted_outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes that the site answers: those that it has, if there are points for them."""
        held = (each for each in self.plan.outcomes if each.name in self.features)
        return () if self.points_short else tuple(held)

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
                "Each row counts as a person. If a person may have several rows, name the column "
                "of persons (person=, --person-column)."
            )
        if self.protection_none:
            return tuple(notes)
        notes.append(COORDINATOR_LEARNS)
        if self.persons < self.p:
            notes.append(
                f"Fewer than {self.p} persons have the values that this session needs, so this "
                "site sends only empty submissions. See which columns lack values: fedclust check."
            )
        if self.staying is not None and self.staying.few:
            notes.append(f"{self.staying.text}.")
        if self.figures is not None:
            notes += self._table_notes(self.figures)
        return tuple(notes)

    def _table_notes(self, figures: TableFigures) -> Iterator[str]:
        smallest, largest = figures.group_sizes
        larger = " Missing values make groups larger."
        yield (
            f"Your table: {figures.n_groups} groups of {smallest} to {largest} persons"
            f".{larger if largest >= 2 * self.groups_of else ''}"
        )
        if self.p > self.groups_of:
            yield (
                f"This session gets records of at least {self.p} persons. Other sessions get "
                f"records of groups of at least {self.groups_of} of the same persons."
            )
        yield from figures.warnings()
        shares = sorted(figures.one_value.items(), key=lambda item: (-item[1], item[0]))
        listed = [f"{name} {share:.1%}" for name, share in shares if share >= _LEAST_SHARE]
        if listed:
            yield (
                "Share of persons whose value follows from their group: "
                f"{first_few(listed, _MOST_COLUMNS)}."
            )

    def _points_lines(self) -> Iterator[str]:
        """Yield what the session's outcomes cost, and what that means."""
        if self.exact_outcomes:
            yield from super()._points_lines()
        if self.question is None or self.balance is None:
            return
        if self.points_short:
            yield (
                f"Points short: {named(self.question)} would use {self.points} points, and "
                f"{self.balance.left} of {self.balance.limit} are left. This site answers no "
                "outcomes in this session, everybody sees that, and the clustering continues. "
                "fedclust allowance show says what used them."
            )
            return
        yield question_text(self.question, self.balance)
        yield (
            "Once the site has answered, points never come back, even if fewer than "
            f"{self.definition.policy.min_sites} sites have the outcome and the result omits it."
        )
        for name in self.also_features:
            yield (
                f"{name}: this column is also a feature, so the {guesses(self.balance.limit)} of "
                "100 does not hold for it."
            )
        yield (
            "Persons added to this table later share its points. More points need a new approval "
            f"at this site (fedclust allowance raise), and make the {guesses(self.balance.limit)} "
            "larger."
        )

    def _own_sections(self, *, full: bool) -> dict[str, Sequence[str]]:
        source, rows = self.data.source, self.data.n_rows
        of = f"{source}, {rows} rows" if rows not in (None, self.persons) else source
        found: dict[str, Sequence[str]] = {
            "this site": [f"{self.site}: {self.persons} persons of {of}"],
            "warning": self.warnings,
            "points": tuple(self._points_lines()),
        }
        if full:
            events = (
                f"{each.event}: whether the event of {each.name} occurred"
                for each in self.plan.outcomes
                if each.event is not None and each.name in self.features
            )
            found["read as"] = (*self.data.lines, *events)
        if full and self.figures is not None:
            steps = {name: self.figures.step_text(name) for name in self.figures.steps}
            said = ", ".join(f"{name} {step}" for name, step in steps.items() if step)
            found["rounded to"] = [f"multiples of: {said}"] if said else []
        return found

    @functools.cached_property
    def terms(self) -> dict[str, Any]:
        """What an approval of this request covers, as plain JSON values.

        Counts are left out: they change with a new row.
        """
        return {
            "coordinator": self.coordinator,
            "operator": self.operator.name or None,
            "retention_days": self.operator.retention_days,
            "site": self.site,
            "session": self.session,
            "definition_sha256": self.definition_sha256,
            "min_group_size": self.p,
            "features": list(self.features),
            "persons_declared": self.persons_declared,
            "data_source": self.data.source,
            "reading_sha256": self.data.digest,
            "separate_groups": self.separate_groups,
            "other_persons": self.other_persons,
            "points": self.points or None,
            "points_short": self.points_short or None,
            "exact_outcomes": bool(self.exact_outcomes) or None,
            **self.consents.model_dump(mode="json"),
        }

    @property
    def approval_code(self) -> str:
        """The SHA-256 of the terms in canonical form, in hexadecimal digits."""
        return sha256(canonical_json(self.terms))


def question_text(question: Question, balance: Balance) -> str:
    """Return what a question costs, and what its answer lets anybody learn."""
    sds = ", ".join(
        dict.fromkeys(f"{noise_sd(points):.2g}" for points in question.outcomes.values())
    )
    these = "these questions" if len(question.outcomes) > 1 else "this question"
    used, remain = balance.limit - balance.left, balance.left - question.points
    before = f"{guesses(used + question.points)} with those before, " if used else ""
    return (
        f"Counts of {named(question)} by final cluster, computed from your rows, each with random "
        f"noise that only this site knows (standard deviation {sds} persons). Uses "
        f"{question.points} of your {balance.limit} points; {used} were used before, {remain} "
        "remain. Where a coin would be right 50 times in 100, somebody who knows everything else "
        "about all patients guesses one patient's yes/no outcome right "
        f"{guesses(question.points)} times from {these}, {before}and {guesses(balance.limit)} "
        f"once all {balance.limit} points are used; more often where patients share an outcome, "
        "such as a family."
    )


def named(question: Question) -> str:
    """Return the names of a question's outcomes."""
    return ", ".join(question.outcomes)
