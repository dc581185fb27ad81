"""What a session asks of a site, in the words of the consent screen.

What leaves a site is listed from the method's declaration (``Phase.discloses``), as in the API and
the docs. `fedclust.site.consent` adds what only the site knows.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fedclust import rounds
from fedclust.definition import canonical, plan_of
from fedclust.numeric.distances import N_CELLS as N_PARTS
from fedclust.result.dissimilarity import dissimilarity_text
from fedclust.result.privacy_loss import guesses
from fedclust.result.wording import named_values, outcome_details, variable_text
from fedclust.rounds import Plan, evidence, resampling
from fedclust.rounds.record_cells import N_CELLS
from fedclust.schema.display import counted, first_few
from fedclust.schema.feature import (
    ALLOWANCE,
    Declaration,
    Feature,
    Outcome,
    Trajectory,
    outcomes_of,
)
from fedclust.schema.task import Disclosure, Phase
from fedclust.schema.times import time_span
from fedclust.wire.codec import sha256
from fedclust.wire.models import Definition, OperatorInfo

#: At most this many columns are named where all are named elsewhere.
_MOST_NAMES = 20
#: Headings of what a steward reads before the decision; all others stand in an annex.
SHORT = (
    "purpose",
    "asked by",
    "operated by",
    "terms",
    "this site",
    "leaves",
    "points",
    "protection",
    "remains",
    "afterwards",
)
#: Headings of lines that only experts need, with what they say.
TECHNICAL = {
    "options": "options of the method",
    "policy": "policy of the session",
    "seed": "seed of random numbers, not of the noise",
    "definition": "definition of the session",
}

COORDINATOR_LEARNS = (
    "The operator may learn every group's record and its changes, and guess who is in a small "
    "table. Whoever knows all but one of a group may learn that one's "
    "values."
)

#: What stopping and withdrawing mean.
_AFTERWARDS = (
    "A site that leaves before it has answered the outcomes gets their points back.",
    "After a pause a new approval is needed. The others wait for this site up to each deadline.",
    "The group of a patient who withdraws is not used again, nor its other persons in this table.",
    "Others may notice that this group is missing.",
    "Sites, analyst and operator keep the results that they have downloaded.",
    "How long backups of the coordinator are kept is the operator's decision.",
    "First write the labels of ended sessions. Delete the patient's rows last.",
)

#: What the sums of a round are where centroids hold medians.
_CODES = (
    f"The sum of each column over these. A number is {N_PARTS} columns: how many of these lie "
    f"above each of {N_PARTS} equal parts of its range."
)

#: What a record holds of numbers, and of yes/no and categorical columns.
_IN_A_RECORD = {True: "rounded middle value", False: "commonest category"}
#: What a field can identify without protection; what methods say of it is about groups.
_EXACT = "Single persons: a number about few rows shows their values."


@dataclass(frozen=True, repr=False)
class SessionTerms:
    """What a session asks of one site, as its definition says.

    Attributes
    ----------
    coordinator, site, analyst : str
    operator : OperatorInfo
    definition : Definition
    p : int
        The least number of persons behind every number.
    """

    coordinator: str
    site: str
    analyst: str
    operator: OperatorInfo
    definition: Definition
    p: int

    @property
    def session(self) -> str:
        """The session's name."""
        return self.definition.name

    @functools.cached_property
    def definition_sha256(self) -> str:
        """The hash that a site consents to; recorded there and in the coordinator's audit trail."""
        return sha256(canonical(self.definition))

    @functools.cached_property
    def plan(self) -> Plan:
        """The session's plan; DefinitionError if this program does not run its versions."""
        return plan_of(self.definition)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that this session can have, with the fields that each discloses."""
        return tuple(
            replace(
                phase,
                summary=self._shape(phase.summary),
                discloses=tuple(self._of_session(line) for line in phase.discloses),
            )
            for phase in rounds.possible_phases(self.plan)
        )

    def _of_session(self, line: Disclosure) -> Disclosure:
        """Return a method's line about a field with what holds in this session."""
        identifies = _EXACT if self.protection_none else line.identifies
        if self.definition.policy.dissimilarity == "gower" and line.field == "sums":
            codes = {"shape": line.shape.replace("d", "D"), "meaning": _CODES}
            line = line.model_copy(update=codes)
        return line.model_copy(update={"shape": self._shape(line.shape), "identifies": identifies})

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
    def promise(self) -> str:
        """How the persons are protected, in one sentence."""
        if self.protection_none:
            return (
                "NONE: this session works on exact rows. The coordinator can compute single "
                "records from what you send."
            )
        counted = self.counted_outcomes != ()
        return (
            f"Everything{' but counts of outcomes' * counted} is computed from these records, "
            "whoever asks, however often. Rows, ids and persons' clusters never leave."
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What remains possible, one sentence each."""
        if self.protection_none:
            return self._two_sites_notes()
        stricter = (
            f"{self.p} persons is the session's number. If your site has set a larger one, that "
            "applies, and the review at your site shows it."
        )
        shared = (
            "Similar persons share values: whoever knows that a person is in a group knows the "
            "values that all of it share. The review at your site says for how many persons this "
            "holds."
        )
        return (*self._two_sites_notes(), COORDINATOR_LEARNS, shared, stricter)

    @property
    def counted_outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes that the site answers, as far as its columns are known."""
        return self.plan.outcomes

    @property
    def exact_outcomes(self) -> tuple[str, ...]:
        """Outcomes that leave exactly, with the rows of a session without protection."""
        return tuple(o.name for o in self.counted_outcomes) if self.protection_none else ()

    def _two_sites_notes(self) -> tuple[str, ...]:
        if self.two_sites_with is None:
            return ()
        note = (
            f"With two sites, {self.two_sites_with} can subtract its own part from each sum and so "
            "learns yours, and you learn theirs."
        )
        return (note,)

    def text(self, *, full: bool = False) -> tuple[tuple[str, str], ...]:
        """Return the consent screen as pairs of a heading and a line, "" for the same heading.

        Parameters
        ----------
        full : bool
            Whether to list every field that leaves, with what it can identify.
        """
        return tuple(
            (heading if place == 0 else "", line)
            for heading, lines in self._sections(full=full)
            for place, line in enumerate(lines)
        )

    def sections(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the whole screen by heading. A line that begins with blanks is a detail."""
        found = ((heading, tuple(lines)) for heading, lines in self._sections(full=True))
        return tuple((heading, lines) for heading, lines in found if lines)

    def _sections(self, *, full: bool) -> Iterator[tuple[str, Iterable[str]]]:
        definition, policy = self.definition, self.definition.policy
        title, own = definition.title, self._own_sections(full=full)
        yield "session", [f"{title} ({self.session})" if title else self.session]
        yield "study", [] if definition.study is None else [definition.study]
        yield "purpose", [definition.purpose or "not stated"]
        contact = f"; contact: {definition.contact}" if definition.contact else "; no contact given"
        yield "asked by", [f"{self.analyst}{contact}"]
        yield "operated by", [self._operator_line()] if self.coordinator else []
        approval = f"ethics approval: {definition.approval or 'none stated'}"
        expires = f"; joining ends {definition.expires:%Y-%m-%d}" if definition.expires else ""
        sites = f"{len(definition.sites)} sites ({', '.join(definition.sites)})"
        most = rounds.most_rounds(self.plan)
        in_rounds = f"at most {most} rounds, each with at least {policy.min_sites} sites"
        later = "later others, without asking you"
        terms = f"{approval}; {sites}, {later}; {in_rounds}{expires}"
        yield "terms", [terms]
        for heading in ("this site", "read as", "rounded to"):
            yield heading, own.get(heading, ())
        method = self.plan.method
        yield "method", [f"{method.title} ({definition.algorithm} version {method.version})"]
        yield "columns", [", ".join(map(feature_text, self._declared()))]
        yield "outcomes", self._outcome_lines()
        if full or policy.dissimilarity != "euclidean":
            yield "distance", [dissimilarity_text(policy, definition.features)]
        yield "warning", own.get("warning", ())
        yield "leaves", self._leaves_lines()
        if full:
            yield "fields", self._field_lines()
            yield "identifies", self._identifies()
        yield "points", own.get("points", ())
        yield "protection", [self.promise]
        yield "remains", self.notes
        if full:
            stop = f"fedclust leave {self.session}. To pause, withdraw: fedclust approve"
            yield (
                "afterwards",
                [
                    f"To stop for good: {stop} {self.session} --withdraw --name NAME.",
                    "What was sent cannot be recalled and may enter the result.",
                    "If a patient withdraws: leave, and run fedclust cohort withdraw.",
                ],
            )
            wait = time_span(policy.fail_after_s)
            ends = f"The session fails if a round still lacks sites {wait} after its deadline."
            yield "more on that", (ends, *_AFTERWARDS)
            yield "options", [named_values(definition.config)]
            of_method = f"{self.plan.max_rounds} of the method, {most} in all"
            yield "policy", [named_values({**policy.model_dump(), "max_rounds": of_method})]
            yield "seed", [str(definition.seed)]
        yield "definition", [f"SHA-256 {self.definition_sha256}"]

    def _operator_line(self) -> str:
        """Return who runs the coordinator, and how long it keeps what the site sends."""
        operator = self.operator
        who = operator.name or "The operator has not said who they are: ask before you sign"
        if operator.retention_days is None:
            return f"{who}. Coordinator: {self.coordinator}"
        days = counted(operator.retention_days, "day")
        return (
            f"{who}. Coordinator: {self.coordinator}. It deletes what was sent {days} after the "
            "session ends. Results and audit trail stay."
        )

    @property
    def persons_guess(self) -> int | None:
        """About how many persons all sites have; None where nobody can say."""
        return None

    def _outcome_lines(self) -> Iterator[str]:
        """Yield what is counted by final cluster, what it costs, and whether it is worth that."""
        from fedclust.result.worth_asking import asked_of_sites, worth_lines  # once terms are shown

        outcomes, guess = outcomes_of(self.definition.features), self.persons_guess
        yield from map(feature_text, outcomes)
        if cost := asked_of_sites(self.definition):
            yield f"Together: {cost}."
        if outcomes and guess is not None:
            yield f"All sites have {guess} persons if they are as large as this one:"
        yield from worth_lines(self.definition, persons=guess)

    def _own_sections(self, *, full: bool) -> dict[str, Sequence[str]]:  # noqa: ARG002
        """Return what only the site knows, by heading: at least who it is."""
        known = "only the site knows which rows take part and how they are read"
        return {
            "this site": [f"{self.site}; {known} (fedclust check)"],
            "points": tuple(self._points_lines()),
        }

    def _points_lines(self) -> Iterator[str]:
        """Yield what the counts of outcomes let anybody learn of one patient."""
        if self.exact_outcomes:
            yield (
                f"{', '.join(self.exact_outcomes)}: counted exactly. Exact counts end the promise "
                "of the allowance for these persons: whoever knows everything else learns one "
                "patient's outcome from them."
            )
        elif points := sum(outcome.points for outcome in self.counted_outcomes):
            yield (
                f"The outcomes use {points} of the {ALLOWANCE} points that a site usually gives. "
                "Where a coin would be right 50 times in 100, somebody who knows everything else "
                "about all patients guesses one patient's yes/no outcome right "
                f"{guesses(points)} times, and {guesses(ALLOWANCE)} once all {ALLOWANCE} points "
                "are used."
            )

    def _leaves_lines(self) -> Iterator[str]:
        """Yield what leaves, in plain words: at most five lines."""
        phases = {phase.name for phase in self.phases}
        if not self.protection_none:
            kinds = {each.kind == "numeric" for each in self.plan.features}
            values = " or ".join(_IN_A_RECORD[numeric] for numeric in sorted(kinds, reverse=True))
            yield (
                f"The site forms groups of at least {self.p} similar persons. A group's record has "
                f"the {values} of its persons, for each of {self._names()}."
            )
        what = "exact rows" if self.protection_none else "these records"
        yield f"In each round: numbers computed from {what}."
        last = []
        if evidence.NAME in phases:
            last = ["sizes and clarity of the clusters"]
        if resampling.NAME in phases:
            last.append("counts from repeated clusterings")
        if evidence.NAME in phases and self.plan.sends_cells:
            what = "rows" if self.protection_none else "records"
            last.append(
                f"the {what} with their sizes (of more than {N_CELLS}: means and middle values of "
                f"{N_CELLS} sets, perhaps single ones; counts of values where few)"
            )
        if last:
            yield f"At the end: {'; '.join(last)}."
        if self.counted_outcomes:
            names = ", ".join(
                " and ".join(column.name for column in each.columns)
                for each in self.counted_outcomes
            )
            kind = "exact" if self.protection_none else "noisy"
            yield f"Once: {kind} counts of {names} by cluster."
        yield (
            "The operator can read all, the analyst sizes and outcomes by site, sites means and "
            "sums."
        )

    def _declared(self) -> list[Feature | Trajectory]:
        """Return what is clustered by, as declared: a trajectory is one entry."""
        return [each for each in self.definition.features if not isinstance(each, Outcome)]

    def _names(self) -> str:
        """Return the names of the columns that are clustered, of many the first."""
        names = [feature.name for feature in self._declared()]
        return first_few(names, _MOST_NAMES)

    def _field_lines(self) -> Iterator[str]:
        """Yield every field that leaves, by phase."""
        for phase in self.phases:
            yield f"{phase.name}: {phase.summary}"
            for line in phase.discloses:
                yield f"  {line.field}, {line.shape}: {line.meaning}"

    def _identifies(self) -> Iterator[str]:
        """Yield what the fields can identify, each text once with the fields that it is about."""
        about = (
            "Numbers can be about single persons. Where the text says group or record, it means "
            "a single row."
            if self.protection_none
            else f"Every number{' but the counts of outcomes' * bool(self.counted_outcomes)} is "
            f"computed from groups of at least {self.p} of your persons."
        )
        yield f"{about} What each can identify:"
        fields: dict[str, dict[str, list[str]]] = {}
        for phase in self.phases:
            for line in phase.discloses:
                fields.setdefault(line.identifies, {}).setdefault(phase.name, []).append(line.field)
        for text, by_phase in fields.items():
            named = (
                f"{', '.join(dict.fromkeys(names))} ({phase})" for phase, names in by_phase.items()
            )
            yield f"  {'; '.join(named)}: {text}"

    def _shape(self, shape: str) -> str:
        """Return the shape of a field with the session's numbers for its letters (K, d, ...)."""
        numbers = _shape_numbers(self.plan)
        return re.sub(r"\b[A-Za-z]\b", lambda found: numbers.get(found[0], found[0]), shape)


def feature_text(feature: Declaration) -> str:
    """Return a feature in words, or an outcome with its points."""
    if not isinstance(feature, Outcome):
        return variable_text(feature)
    details = ["outcome", *outcome_details(feature), counted(feature.points, "point")]
    return f"{feature.name} ({', '.join(details)})"


def _shape_numbers(plan: Plan) -> dict[str, str]:
    """Return the session's numbers for the letters in the shapes of fields."""
    columns = plan.columns
    codes = sum(N_PARTS if column.kind == "numeric" else 1 for column in columns)
    numbers = {"d": str(len(columns)), "D": str(codes)}
    return {**numbers, **plan.options.shape_numbers}
