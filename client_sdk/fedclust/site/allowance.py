"""The allowance: how many points for questions about outcomes a table of persons has left.

A site gives ``ALLOWANCE`` points for ever to each set of persons, and each question costs some.
Charges and whatever changes them are changes of the table's chain. All numbers here follow from
these lines alone. A state that is rolled back past a charge is refused by a coordinator like any
other state that lacks a change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from fedclust.schema.feature import ALLOWANCE, Outcome
from fedclust.wire.codec import canonical_json, sha256

History: TypeAlias = Sequence[Mapping[str, Any]]
#: A coordinator's address, and the name under which this site joined there.
Place: TypeAlias = tuple[str, str]
#: What says which session a question is of.
_SESSION = ("coordinator", "site", "session", "definition_sha256")


@dataclass(frozen=True)
class Question:
    """What a session asks of a site's outcomes.

    Attributes
    ----------
    coordinator, site, session, definition_sha256 : str
    outcomes : dict of str to int
        The outcomes that the site has, and the points of each.
    columns : tuple of str
        The site's own columns that are counted.
    """

    coordinator: str
    site: str
    session: str
    definition_sha256: str
    outcomes: Mapping[str, int]
    columns: tuple[str, ...]

    @functools.cached_property
    def key(self) -> str:
        """What identifies the charge, however often the site joins."""
        return charge_key(self.coordinator, self.site, self.session, self.definition_sha256)

    @property
    def points(self) -> int:
        """What the question costs."""
        return sum(self.outcomes.values())


@dataclass(frozen=True)
class Charge(Question):
    """A question that was charged.

    Attributes
    ----------
    time : str
    state : {"open", "returned", "ended", "closed"}
        ``open``: noise may be drawn, or was drawn. ``returned``: the join was refused; it may be
        charged again. ``ended``: the session ended without noise; it is never charged again.
        ``closed``: the state was restored or refused since; the points stay spent, and no noise is
        drawn, since it may have been drawn before.
    """

    time: str = ""
    state: Literal["open", "returned", "ended", "closed"] = "open"

    @property
    def spends(self) -> bool:
        """Whether its points count as spent."""
        return self.state in ("open", "closed")


@dataclass(frozen=True)
class Allowance:
    """The points of a table; see :func:`allowance_of`.

    Attributes
    ----------
    limit : int
        ``ALLOWANCE``, and what was opened since.
    carried : int
        Spent by tables with the same counter before this table was created. What they had charged
        and not answered then is in ``charges``, so it can come back here too.
    lost : int
        Spent for good: a coordinator knew changes that this state lacks.
    charges : dict of str to Charge
        By key, the last one of each session.
    withheld : int
        Points that count as spent while ``doubted`` is not empty.
    doubted : frozenset of Place
        Coordinators that have not confirmed this table since the state was restored.
    earlier_columns : frozenset of str
        Columns that tables with the same counter had been asked for as outcomes.
    released_roles : frozenset of str
        Columns that were outcomes, and may be features by an approval.
    """

    limit: int = ALLOWANCE
    carried: int = 0
    lost: int = 0
    charges: Mapping[str, Charge] = field(default_factory=dict)
    withheld: int = 0
    doubted: frozenset[Place] = frozenset()
    earlier_columns: frozenset[str] = frozenset()
    released_roles: frozenset[str] = frozenset()

    @property
    def spent(self) -> int:
        """Points that were spent, without those that are withheld."""
        charged = sum(each.points for each in self.charges.values() if each.spends)
        return self.carried + self.lost + charged

    @property
    def left(self) -> int:
        """Points for further questions."""
        return max(0, self.limit - self.spent - self.withheld)

    @property
    def outcome_columns(self) -> frozenset[str]:
        """The site's columns that were counted, or may have been, as outcomes."""
        charged = (each.columns for each in self.charges.values() if each.spends)
        return self.earlier_columns.union(*charged)

    def left_for(self, key: str) -> int:
        """Return the points for a session's question, with what is charged for it already."""
        charge = self.charges.get(key)
        if charge is None or charge.state == "returned":
            return self.left
        return self.left + charge.points if charge.state == "open" else 0

    def covers(self, question: Question) -> bool:
        """Return whether a question is charged, or can be."""
        return question.points <= self.left_for(question.key)

    def without_open(self, keys: Collection[str]) -> Allowance:
        """Return this without those of its open charges that have one of these keys."""
        kept = {
            key: charge
            for key, charge in self.charges.items()
            if charge.state != "open" or key not in keys
        }
        return replace(self, charges=kept)


@dataclass(frozen=True)
class Balance:
    """The points of a counter, before a question is charged.

    Attributes
    ----------
    limit, left : int
        Of the table that has least left, of those that share the counter.
    covers : bool
        Whether the question is charged, or can be.
    """

    limit: int
    left: int
    covers: bool


def charge_key(coordinator: str, site: str, session: str, definition_sha256: str) -> str:
    """Return what identifies the charge of a session at a site."""
    return sha256(canonical_json([coordinator, site, session, definition_sha256]))


def points_of(outcomes: Iterable[Outcome], features: Sequence[str]) -> dict[str, int]:
    """Return the points of each outcome that a site has.

    Parameters
    ----------
    outcomes : iterable of Outcome
    features : sequence of str
        Names of what the site has.
    """
    return {each.name: each.points for each in outcomes if each.name in features}


def allowance_of(history: History) -> Allowance:
    """Return the allowance of a table after its changes.

    Parameters
    ----------
    history : sequence of mapping
        All changes of the table: ``CohortRecord.history``.
    """
    found = Allowance()
    for line in history:
        found = _after(found, line)
    return found


def _after(found: Allowance, line: Mapping[str, Any]) -> Allowance:
    """Return the allowance after one more change of the table."""
    charges = dict(found.charges)
    match line["what"]:
        case "created" | "separate":
            columns = frozenset(line.get("outcome_columns", ()))
            charges = {each["key"]: _charge(each) for each in line.get("charges", ())}
            carried = line.get("spent", 0)
            return replace(found, carried=carried, charges=charges, earlier_columns=columns)
        case "charged":
            charges[line["key"]] = _charge(line)
            return replace(found, charges=charges)
        case "returned":
            state: Any = "ended" if line["ended"] else "returned"
            charges[line["key"]] = replace(charges[line["key"]], state=state)
            return replace(found, charges=charges)
        case "raised":
            return replace(found, limit=found.limit + line["points"])
        case "restored":
            closed = replace(found, charges=_closed(charges))
            doubted = frozenset((each["coordinator"], each["site"]) for each in line["places"])
            return replace(closed, doubted=doubted, withheld=max(0, closed.limit - closed.spent))
        case "confirmed":
            doubted = found.doubted - {(line["coordinator"], line["site"])}
            return replace(found, doubted=doubted, withheld=found.withheld if doubted else 0)
        case "spent":
            closed = replace(found, charges=_closed(charges), withheld=0, doubted=frozenset())
            return replace(closed, lost=closed.lost + max(0, closed.limit - closed.spent))
        case "role":
            return replace(found, released_roles=found.released_roles | {line["column"]})
    return found


def _charge(line: Mapping[str, Any]) -> Charge:
    named = {name: line[name] for name in (*_SESSION, "outcomes", "time")}
    return Charge(**named, columns=tuple(line["columns"]))


def _closed(charges: Mapping[str, Charge]) -> dict[str, Charge]:
    """Return the charges without open ones."""
    return {
        key: replace(each, state="closed") if each.state == "open" else each
        for key, each in charges.items()
    }


def charged(question: Question) -> dict[str, Any]:
    """Return what a line says of the question that it charges."""
    return {
        "key": question.key,
        **{name: getattr(question, name) for name in _SESSION},
        "outcomes": dict(question.outcomes),
        "columns": list(question.columns),
        "points": question.points,
    }


def created_with(
    others: Mapping[str, History], is_drawn: Callable[[Question], bool]
) -> dict[str, Any]:
    """Return what the first line of a table says that shares one counter with ``others``.

    A person of the new table may be in any of them, under another id. Charges without an answer
    are charges of the new table too: what gives them back does so in all tables.

    Parameters
    ----------
    others : mapping of str to sequence of mapping
    is_drawn : callable
        Whether noise was drawn for a question.
    """
    if not others:
        return {}
    known = [allowance_of(each) for each in others.values()]
    waiting = {
        key: charge
        for each in known
        for key, charge in each.charges.items()
        if charge.state == "open" and not is_drawn(charge)
    }
    known = [each.without_open(waiting) for each in known]
    columns = frozenset[str]().union(
        *(each.outcome_columns - each.released_roles for each in known)
    )
    return {
        "shares_with": sorted(others),
        "spent": max(each.spent for each in known),
        "outcome_columns": sorted(columns),
        "charges": [{**charged(each), "time": each.time} for each in waiting.values()],
    }


def sharing(table_id: str, histories: Mapping[str, History]) -> list[str]:
    """Return the tables that share one counter with a table, itself included."""
    own = histories[table_id][0].get("shares_with", ())
    return [
        name
        for name, history in histories.items()
        if name == table_id or name in own or table_id in history[0].get("shares_with", ())
    ]
