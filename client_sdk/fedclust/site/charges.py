"""Changes of the allowance: each is a change of a table's chain, with its line in the ledger.

A question is charged on the table that answers it and on each table that shares its counter, before
the site joins, and all in the transaction that stores the record of joining. The noise is drawn in
a transaction that first asks :meth:`Charges.require`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fedclust.client import Client
from fedclust.schema.states import ENDED
from fedclust.site.allowance import (
    Allowance,
    Balance,
    Charge,
    History,
    Place,
    Question,
    allowance_of,
    charged,
    sharing,
)
from fedclust.site.cohorts import CohortRecord, CohortStore, Overtaken, chosen_tables, outcomes_only
from fedclust.site.state import SiteState
from fedclust.wire import errors
from fedclust.wire.models import SiteTableInfo

#: An approval opens at most so many points at a time: more is a typing error.
MOST_RAISED: Final = 1_000
#: After these a join is sent again as it is.
_NOT_NOW = (errors.RequestTimeout, errors.TooManyRequests, errors.Unavailable, errors.Internal)


@dataclass(frozen=True)
class TablePoints:
    """The points of a table, for people.

    Attributes
    ----------
    table : str
    created : str
    allowance : Allowance
    left : int
        For its next question; less than its own where a table of the same counter has less.
    shares_with : tuple of str
        The other tables of the counter.
    answered : frozenset of str
        Keys of the charges for which noise was drawn.
    no_features : tuple of str
        Columns that were only ever outcomes: :meth:`Charges.release_role`.
    """

    table: str
    created: str
    allowance: Allowance
    left: int
    shares_with: tuple[str, ...]
    answered: frozenset[str]
    no_features: tuple[str, ...]


class Charges:
    """The allowances in a site's state.

    Parameters
    ----------
    state : SiteState
    """

    def __init__(self, state: SiteState) -> None:
        self.state, self._store = state, CohortStore(state)

    def allowances(self) -> dict[str, Allowance]:
        """Return the allowance of every table by its id."""
        return {name: allowance_of(each) for name, each in self._store.histories().items()}

    def overview(self) -> list[TablePoints]:
        """Return the points of every table, in the order of their ids."""
        records = self._store.records()
        histories = {name: record.history for name, record in records.items()}
        found = {name: allowance_of(history) for name, history in histories.items()}
        tables = []
        for name, record in records.items():
            shared = sharing(name, histories)
            charges = found[name].charges.items()
            tables.append(
                TablePoints(
                    table=name,
                    created=record.history[0]["time"],
                    allowance=found[name],
                    left=min(found[each].left for each in shared),
                    shares_with=tuple(each for each in shared if each != name),
                    answered=frozenset(key for key, each in charges if self._store.is_drawn(each)),
                    no_features=tuple(sorted(outcomes_only(record.cohort, found[name]))),
                )
            )
        return tables

    def balance(self, table_id: str, history: History, question: Question) -> Balance:
        """Return what is left for a question.

        Parameters
        ----------
        table_id : str
        history : sequence of mapping
            Of the table, which may not be stored yet.
        question : Question
        """
        histories = {**self._store.histories(), table_id: history}
        shared = [allowance_of(histories[name]) for name in sharing(table_id, histories)]
        least = min(shared, key=lambda each: each.left_for(question.key))
        return Balance(least.limit, least.left_for(question.key), least.covers(question))

    # --- what a session costs ---------------------------------------------------------------------

    def charge(self, table_id: str, question: Question, now: datetime) -> None:
        """Charge a question once, however often it is called.

        What an earlier attempt to join charged on another table, or for other columns, is given
        back.

        Raises
        ------
        Overtaken
            Points are short: another session was faster since :meth:`balance`.
        StateError
            Noise was drawn for this session, on another table.
        """
        with self.state.write():
            records = self._store.records()
            found = {name: allowance_of(record.history) for name, record in records.items()}
            shared = sharing(table_id, {name: each.history for name, each in records.items()})
            held = {name for name, each in found.items() if _is_open(each.charges, question.key)}
            if held and self._store.is_drawn(question):
                if table_id not in held:
                    raise errors.StateError(
                        "another table has answered the outcomes of this session"
                    )
                return
            kept = {n for n in held if n in shared and _asks_same(found[n], question)}
            for name in held - kept:
                self._return(records[name], found[name].charges[question.key], now, ended=False)
            # Again, with what was given back.
            records = self._store.records()
            found = {name: allowance_of(records[name].history) for name in shared}
            if not all(each.covers(question) for each in found.values()):
                raise Overtaken
            for name in shared:
                if name not in kept:
                    self._store.add_change(records[name], "charged", now, **charged(question))

    def require(self, table_id: str, key: str) -> None:
        """Return if noise may be drawn for a session; call it in the transaction of the draw.

        Parameters
        ----------
        table_id : str
        key : str
            :attr:`Question.key` of the session.

        Raises
        ------
        StateError
            Its points are not charged, were given back, or the state was restored since.
        """
        if refusal := self.refusal(table_id, key):
            raise errors.StateError(refusal)

    def refusal(self, table_id: str, key: str) -> str:
        """Return why no noise may be drawn for a session; "" if it may, as :meth:`require`."""
        charges = allowance_of(self._store.histories().get(table_id, ())).charges
        state = charges[key].state if key in charges else "returned"
        if state == "open":
            return ""
        if state == "closed":
            return (
                "the state was restored, or a coordinator knew a newer one, after the points of "
                "this session were charged. Its outcomes may have been counted before, so they are "
                "not counted again"
            )
        return "no points are charged for the outcomes of this session, or not any more"

    def open_charges(self, coordinator: str | None = None) -> list[Charge]:
        """Return the charges for which no noise was drawn, at one coordinator or at all."""
        found = {
            key: charge
            for allowance in self.allowances().values()
            for key, charge in allowance.charges.items()
            if charge.state == "open" and coordinator in (None, charge.coordinator)
        }
        return [charge for charge in found.values() if not self._store.is_drawn(charge)]

    def look_after(self, client: Client, now: datetime) -> None:
        """Give points of ended sessions back, and ask about a state that was restored.

        Nothing happens with the token of somebody else than a site.
        """
        waiting, doubted = self.open_charges(client.url), self.doubted_at(client.url)
        if not waiting and not doubted:
            return
        who = client.whoami()
        site = who.name if who.role == "site" else ""
        for charge in waiting:
            if charge.site == site and _has_ended(client, charge):
                self.give_back(charge.key, now, ended=True)
        if site in doubted:
            stored = {each.table_id: each for each in client.site_tables(site)}
            self.confirm((client.url, site), stored, now)

    def give_back(self, key: str, now: datetime, *, ended: bool) -> int:
        """Give the points of a session back, unless noise was drawn; return how many.

        Parameters
        ----------
        key : str
        now : datetime
        ended : bool
            Whether the session has ended for this site, which then never draws for it. Else its
            join was refused, and another join charges it again.
        """
        if not any(_is_open(each.charges, key) for each in self.allowances().values()):
            return 0
        with self.state.write():
            points = 0
            for record in self._store.records().values():
                charges = allowance_of(record.history).charges
                if not _is_open(charges, key) or self._store.is_drawn(charges[key]):
                    continue
                points = charges[key].points
                self._return(record, charges[key], now, ended=ended)
            return points

    def _return(self, record: CohortRecord, charge: Charge, now: datetime, *, ended: bool) -> None:
        facts = {"key": charge.key, "session": charge.session, "points": charge.points}
        self._store.add_change(record, "returned", now, ended=ended, **facts)

    def note_refusal(
        self, table_id: str | None, key: str, refused: errors.CoordinatorError, now: datetime
    ) -> None:
        """Give a session's points back after its join was refused.

        If the coordinator knows changes of the table that this state lacks, all of its points are
        lost: :meth:`lose`.
        """
        if isinstance(refused, errors.TableChanged):
            self.lose(table_id or "", now)
        elif not isinstance(refused, _NOT_NOW):
            self.give_back(key, now, ended=False)

    # --- approvals --------------------------------------------------------------------------------

    def raise_limit(
        self, start: str, points: int, approved_by: str, now: datetime
    ) -> dict[str, Allowance]:
        """Open more points for the persons of a table, and of each that shares its counter.

        Parameters
        ----------
        start : str
            Start of the table's id.
        points : int
        approved_by : str
        now : datetime

        Returns
        -------
        dict of str to Allowance
            After it, by table.

        Raises
        ------
        UsageError
            No table, or several, or no sensible number of points.
        """
        with self.state.write():
            names = self.raised_by(start, points)
            records = self._store.records()
            for name in names:
                facts = {"points": points, "approved_by": approved_by}
                self._store.add_change(records[name], "raised", now, **facts)
            return {name: each for name, each in self.allowances().items() if name in names}

    def raised_by(self, start: str, points: int) -> list[str]:
        """Return the tables for which :meth:`raise_limit` opens points; UsageError as there."""
        if not 1 <= points <= MOST_RAISED:
            raise errors.UsageError(f"open 1 to {MOST_RAISED} points at a time")
        histories = self._store.histories()
        (table,) = chosen_tables(histories, start)
        return sharing(table, histories)

    def release_role(self, column: str, approved_by: str, now: datetime) -> list[str]:
        """Let a column that was an outcome be a feature too; return the tables that it is about.

        Raises
        ------
        UsageError
            No table was asked for it as an outcome.
        """
        with self.state.write():
            names = []
            for name, record in self._store.records().items():
                if column in outcomes_only(record.cohort, allowance_of(record.history)):
                    facts = {"column": column, "approved_by": approved_by}
                    self._store.add_change(record, "role", now, **facts)
                    names.append(name)
            if not names:
                raise errors.UsageError(
                    f"no table has the outcome {column!r} that may not be a feature; fedclust "
                    "allowance show lists them"
                )
            return names

    # --- a state that may lack changes ------------------------------------------------------------

    def doubt(self, now: datetime) -> None:
        """Note that the state was restored: points count as spent until all places confirm.

        The places are the coordinators that the state has joined, or for which it was charged. One
        that was first joined after the backup is not known here.
        """
        with self.state.write():
            joined = set(self.state.rows("SELECT coordinator, site FROM sessions"))
            charges = [c for each in self.allowances().values() for c in each.charges.values()]
            places = joined | {(each.coordinator, each.site) for each in charges}
            # One without an address, such as a federation of Flower, never confirms: it counts only
            # where nobody else can.
            places = {each for each in places if "://" in each[0]} or places
            listed = [{"coordinator": each, "site": site} for each, site in sorted(places)]
            for record in self._store.records().values() if listed else ():
                self._store.add_change(record, "restored", now, places=listed)

    def doubted_at(self, coordinator: str) -> set[str]:
        """Return the names of this site under which a coordinator has to confirm a table."""
        doubted = frozenset[Place]().union(*(each.doubted for each in self.allowances().values()))
        return {site for place, site in doubted if place == coordinator}

    def confirm(self, place: Place, stored: Mapping[str, SiteTableInfo], now: datetime) -> None:
        """Note which tables have the changes that a coordinator accepted last.

        Parameters
        ----------
        place : Place
        stored : dict of str to SiteTableInfo
            What the coordinator stored of this site's tables, by their ids: all of them.
        now : datetime
        """
        with self.state.write():
            for name, record in self._store.records().items():
                if place not in allowance_of(record.history).doubted:
                    continue
                known = stored.get(name)
                head = known and self._store.heads(name, every=True).at(known.number)
                # A coordinator that has not seen the table knows no charge.
                if known is None or head == known.head:
                    facts = {"coordinator": place[0], "site": place[1]}
                    self._store.add_change(record, "confirmed", now, **facts)

    def lose(self, table_id: str, now: datetime) -> None:
        """Note that a coordinator knows changes of a table that this state lacks.

        All points of the table count as spent; only an approval opens more.
        """
        with self.state.write():
            record = self._store.records().get(table_id)
            if record is None:
                return
            found = allowance_of(record.history)
            is_open = any(each.state == "open" for each in found.charges.values())
            if is_open or found.left or found.withheld:
                self._store.add_change(record, "spent", now)


def open_text(charge: Charge) -> str:
    """Return what an open charge is about, since when it is open, and what to do."""
    return (
        f"{charge.points} points are charged since {charge.time[:10]} for {charge.session} at "
        f"{charge.coordinator} (as {charge.site}), and no answer was drawn; fedclust status there "
        "gives them back once the session has ended"
    )


def _has_ended(client: Client, charge: Charge) -> bool:
    """Return whether this site can answer no further round of a session."""
    try:
        info = client.session(charge.session)
    except errors.NotFound:
        return True
    except errors.FedclustError:
        # What cannot be read now is looked after by a later command.
        return False
    own = next((each.state for each in info.sites if each.name == charge.site), None)
    other = info.definition_sha256 != charge.definition_sha256
    return other or info.state in ENDED or own in ("left", "excluded", "refused")


def _is_open(charges: Mapping[str, Charge], key: str) -> bool:
    return key in charges and charges[key].state == "open"


def _asks_same(found: Allowance, question: Question) -> bool:
    charge = found.charges[question.key]
    return charge.outcomes == question.outcomes and charge.columns == question.columns
