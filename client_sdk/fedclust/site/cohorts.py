"""The groups of a site's persons, as its state keeps them: once formed, never formed again.

A change of a table is stored together with its line in the ledger; these lines are the table's
history. Where either is damaged or missing, the command ends; no other groups are formed instead.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

import msgpack
import numpy as np
from numpy.typing import NDArray

from fedclust.protection.cohort import Cohort, CohortRefused, PinnedColumn, Unions, pad
from fedclust.protection.columns import TableColumn
from fedclust.protection.recognition import PersonBlocks, PersonSource, Recognition, find_cohort
from fedclust.protection.update import Change, two_cohorts, update_cohort
from fedclust.schema.times import write_time
from fedclust.site.allowance import Allowance, Question, allowance_of, created_with
from fedclust.site.journal import recorded_answers
from fedclust.site.ledger import Ledger
from fedclust.site.state import SiteState, seal
from fedclust.wire import errors
from fedclust.wire.codec import canonical_json
from fedclust.wire.models import MOST_HEADS, TableHeads

#: A person is in at most this many tables: from the fifth on, single persons could be computed if
#: nothing were rounded.
_MOST_GROUPINGS = 3
#: The phase in which counts with noise leave.
OUTCOMES: Final = "outcomes"
#: A join sends so many heads; all of them only to a coordinator that asks for them.
_LAST_HEADS = 1_000


@dataclass(frozen=True)
class CohortRecord:
    """A cohort and its history.

    Attributes
    ----------
    cohort : Cohort
    history : tuple of dict
        What each change did, in counts: its lines in the ledger, without their places there.
    """

    cohort: Cohort
    history: tuple[Mapping[str, Any], ...]

    def after(self, cohort: Cohort, what: str, now: datetime, **facts: Any) -> CohortRecord:
        """Return the record after one more change."""
        line = {
            "event": "cohort",
            "what": what,
            "table": cohort.table_id,
            "change": len(self.history) + 1,
            "time": write_time(now),
            # The coordinator gets a hash of this line. It must not be able to guess the counts.
            "random": secrets.token_hex(16),
        }
        return CohortRecord(cohort, (*self.history, {**line, **facts}))


def table_heads(history: Sequence[Mapping[str, Any]], *, every: bool = False) -> TableHeads:
    """Return the heads of a table's changes: the last ones, or every one.

    A head covers its change and all changes before it.
    """
    head, heads = bytes(32), []
    for line in history:
        head = hashlib.sha256(head + hashlib.sha256(canonical_json(line)).digest()).digest()
        heads.append(head[:8].hex())
    sent = heads[-(MOST_HEADS if every else _LAST_HEADS) :]
    return TableHeads(first=len(heads) - len(sent) + 1, heads=tuple(sent))


def _head(history: Sequence[Mapping[str, Any]]) -> str:
    """Return the last head of a table."""
    return table_heads(history).heads[-1] if history else ""


@dataclass(frozen=True)
class Draft:
    """A cohort after an update, before :meth:`CohortStore.keep` writes it.

    Attributes
    ----------
    record : CohortRecord
    change : Change
    recognition : Recognition
    seen : dict of str to int
        Number of changes of each table when the draft was made.
    """

    record: CohortRecord
    change: Change
    recognition: Recognition
    seen: Mapping[str, int]


class Overtaken(Exception):
    """Somebody else has changed the groups of these persons since the draft was made: redo it."""


class CohortStore:
    """The cohorts in a site's state.

    Parameters
    ----------
    state : SiteState
    """

    def __init__(self, state: SiteState) -> None:
        self.state, self._ledger = state, Ledger(state)

    # As many parameters as a site's rows have options.
    def draft(
        self,
        source: PersonSource,
        *,
        p: int,
        now: datetime,
        has_ids: bool = True,
        earlier: Mapping[str, str] | None = None,
        table: str | None = None,
        separate: str | None = None,
        other_persons: str | None = None,
        no_person_in_another_table: bool = False,
        any_persons: bool = False,
        permanent_ids: bool = False,
    ) -> Draft:
        """Bring the cohort of a source's persons up to date; nothing is stored but the site's key.

        Parameters
        ----------
        source : PersonSource
        p : int
            Of a new table; an older one with a smaller p gets unions of its groups.
        now : datetime
        has_ids : bool
            Of a new table: whether its persons have ids.
        earlier : mapping of str to str, optional
            Columns of a later measurement, and their names without the suffix.
        table : str, optional
            Start of the id of the table to use.
        separate : str, optional
            The approval of groups apart from those that the persons have; entered in the ledger.
        other_persons : str, optional
            Who approves that persons take part who are not known; entered in the ledger.
        no_person_in_another_table : bool
            Whether the same approval states this of a new table, which then has points of its own.
        any_persons : bool
            Whether it was approved before.
        permanent_ids : bool
            Whether nobody's id changes at this site.

        Raises
        ------
        PersonsRefused
            The source does not fit the groups.
        StateError
        TooFewPersons
        """
        records, secret = self.records(), self.state.secret()
        chosen = [records[name].cohort for name in chosen_tables(records, table)]
        new = Cohort.empty(secrets.token_hex(16), p, has_ids=has_ids)
        usable = [] if separate else chosen
        everyone = [record.cohort for record in records.values()]
        with cohort_refusals():
            cohort, change, recognition = update_cohort(
                new,
                usable,
                secret,
                source,
                everyone,
                p=p,
                any_persons=any_persons or other_persons is not None,
                permanent_ids=permanent_ids,
            )
            if table and cohort.table_id not in records:
                raise CohortRefused(
                    "other-table", f"table {chosen[0].table_id} has no person of this source"
                )
            if separate is None:
                _refuse_held(cohort, records)
            _refuse_further_grouping(cohort, records)
        seen = {name: len(record.history) for name, record in records.items()}
        before = records.get(cohort.table_id)
        # An approval is entered also while the other persons wait for a group.
        entered = other_persons is None or any(
            line.get("other_persons") == other_persons
            for line in (before.history if before else ())
        )
        if before is not None and cohort is before.cohort and entered:
            return Draft(before, change, recognition, seen)
        what = "updated" if before else "separate" if separate else "created"
        approvals = {"separate_groups": separate, "other_persons": other_persons}
        facts = asdict(change) | {"missing": recognition.missing}
        facts |= {name: text for name, text in approvals.items() if text}
        if cohort.unions is not (before.cohort.unions if before else ()):
            facts["unions_for"] = p
        if before is None:
            if no_person_in_another_table:
                facts["no_person_in_another_table"] = True
            else:
                others = {name: each.history for name, each in records.items()}
                facts |= created_with(others, self.is_drawn)
        record = (before or CohortRecord(cohort, ())).after(cohort, what, now, **facts)
        with cohort_refusals():
            _refuse_outcomes(record, before, source, earlier or {})
        return Draft(record, change, recognition, seen)

    def find(self, blocks: PersonBlocks, table: str | None = None) -> Cohort | None:
        """Return the cohort that holds a source's persons; None if nobody is known."""
        records = self.records()
        chosen = [records[name].cohort for name in chosen_tables(records, table)]
        return find_cohort(chosen, self.state.secret(), blocks)

    def keep(self, draft: Draft) -> Cohort:
        """Store a draft with its line in the ledger, before anything of it leaves.

        Raises
        ------
        Overtaken
        StateError
        """
        with self.state.write():
            records = self.records()
            cohort = draft.record.cohort
            kept = records.get(cohort.table_id)
            if kept is None or kept.history != draft.record.history:
                for name, record in records.items():
                    unseen = len(record.history) != draft.seen.get(name)
                    # Another site on this account may have formed groups of other persons; a new
                    # table names all those that share its points.
                    if unseen and (kept is None or (record.cohort.find(cohort.keys) >= 0).any()):
                        raise Overtaken
                self._store(draft.record)
        return draft.record.cohort

    def withdraw(self, person: str, now: datetime) -> int:
        """Withdraw a person from every table, and return from how many.

        Raises
        ------
        PersonsRefused
            No table holds this person.
        """
        with self.state.write():
            records, secret = self.records(), self.state.secret()
            found = 0
            refused: CohortRefused | None = None
            for record in records.values():
                try:
                    cohort = record.cohort.withdraw(secret, person)
                except CohortRefused as error:
                    refused = error
                    continue
                found += 1
                ended = int(record.cohort.used.sum() - cohort.used.sum())
                self._store(record.after(cohort, "withdrawn", now, persons=1, groups=ended))
            if not found:
                with cohort_refusals("the id"):
                    raise refused or CohortRefused("unknown-person", "there is no table yet")
            return found

    def records(self) -> dict[str, CohortRecord]:
        """Return every cohort by the id of its table.

        Raises
        ------
        StateDamaged
            A table is damaged, or is not what the ledger says that was stored last.
        """
        with self.state.read():
            found = self.state.rows(
                "SELECT table_id, content FROM cohorts UNION "
                "SELECT table_id, NULL FROM ledger WHERE table_id IS NOT NULL AND table_id NOT IN "
                "(SELECT table_id FROM cohorts) ORDER BY table_id"
            )
            return {name: self._read(name, content) for name, content in found}

    def histories(self) -> dict[str, tuple[Mapping[str, Any], ...]]:
        """Return the changes of every table by its id; :meth:`records` also reads the groups."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for line in self._ledger.events():
            if line["event"] == "cohort":
                found.setdefault(line["table"], []).append(_change_of(line))
        return {name: tuple(lines) for name, lines in found.items()}

    def add_change(self, record: CohortRecord, what: str, now: datetime, **facts: Any) -> None:
        """Store a change of a table that leaves its groups as they are."""
        self._store(record.after(record.cohort, what, now, **facts))

    def is_drawn(self, question: Question) -> bool:
        """Return whether noise was drawn for a question."""
        asked = (OUTCOMES, question.coordinator, question.site)
        answers = recorded_answers(self.state, question.session)
        return any((each.phase, each.coordinator, each.site) == asked for each, _ in answers)

    def heads(self, table_id: str, *, every: bool = False) -> TableHeads:
        """Return the heads of a table as it is stored now; see :func:`table_heads`."""
        return table_heads(self._history(table_id), every=every)

    # --- in the database --------------------------------------------------------------------------

    def _read(self, name: str, content: bytes | None) -> CohortRecord:
        history = self._history(name)
        try:
            if content is None:
                raise ValueError("it is missing")
            cohort, head = decode_cohort(self.state.unseal(content))
            if cohort.table_id != name or head != _head(history):
                raise ValueError("it is not what was stored last")
        except ValueError as error:
            raise self.state.damaged(f"table {name} cannot be read ({error})") from None
        return CohortRecord(cohort, history)

    def _history(self, name: str) -> tuple[Mapping[str, Any], ...]:
        return tuple(_change_of(line) for line in self._ledger.read(table_id=name))

    def _store(self, record: CohortRecord) -> None:
        """Store a record with its last change."""
        content = seal(encode_cohort(record.cohort, _head(record.history)))
        with self.state.write() as connection:
            named = record.cohort.table_id, content
            connection.execute("REPLACE INTO cohorts VALUES (?, ?)", named)
            self._ledger.append(record.history[-1])


def chosen_tables(known: Iterable[str], start: str | None) -> list[str]:
    """Return all tables, or the one whose id begins with ``start``; UsageError for none."""
    found = [name for name in known if name.startswith(start or "")]
    if start is not None and len(found) != 1:
        raise errors.UsageError(
            f"{len(found)} tables have an id that begins with {start!r}; fedclust cohort show "
            "lists them"
        )
    return found


def _change_of(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a line of the ledger as the change that a head covers."""
    return {key: value for key, value in line.items() if key not in ("line", "previous")}


@contextmanager
def cohort_refusals(source: str = "the source") -> Iterator[None]:
    """Turn refusals of the rules into PersonsRefused, which names ``source``."""
    try:
        yield
    except CohortRefused as error:
        raise errors.PersonsRefused(source, error.rule, str(error)) from None


def _refuse_held(cohort: Cohort, records: Mapping[str, CohortRecord]) -> None:
    """Refuse newcomers who are in another table, unless the two are approved as separate."""
    before = records.get(cohort.table_id)
    if before is None or cohort is before.cohort:
        return
    newcomers = cohort.keys[before.cohort.find(cohort.keys) < 0]
    for name, record in records.items():
        separate = "separate" in (before.history[0]["what"], record.history[0]["what"])
        approved = separate and (record.cohort.find(before.cohort.keys) >= 0).any()
        if name == cohort.table_id or approved:
            continue
        if (record.cohort.find(newcomers) >= 0).any():
            raise two_cohorts(cohort, record.cohort)


def outcomes_only(cohort: Cohort, allowance: Allowance) -> frozenset[str]:
    """Return the columns that were only ever outcomes, and may be no features."""
    return allowance.outcome_columns - allowance.released_roles - set(cohort.rules())


def _refuse_outcomes(
    record: CohortRecord,
    before: CohortRecord | None,
    source: PersonSource,
    earlier: Mapping[str, str],
) -> None:
    """Refuse to release a column that was only ever an outcome: groups would publish it."""
    known = before.cohort if before else Cohort.empty("", record.cohort.p)
    asked = {earlier.get(name, name) for name in source.rules}
    for name in sorted(outcomes_only(known, allowance_of(record.history)) & asked):
        raise CohortRefused(
            "outcome-role",
            f"column {name!r} was an outcome of these persons, which is counted with noise. As a "
            "feature, its values would be released by the groups. If that is wanted, its data "
            f'steward says so: fedclust allowance role {name} --approved-by "NAME"',
        )


def _refuse_further_grouping(cohort: Cohort, records: Mapping[str, CohortRecord]) -> None:
    """Refuse a table with a person who is in the most tables already."""
    n_tables = np.zeros(len(cohort.keys), dtype=np.int64)
    for name, record in records.items():
        if name != cohort.table_id:
            n_tables += record.cohort.find(cohort.keys) >= 0
    if n_tables.max() >= _MOST_GROUPINGS:
        raise CohortRefused(
            "too-many-groupings",
            f"a person is in {_MOST_GROUPINGS} tables already. Use one of them (cohort=, --cohort)",
        )


def encode_cohort(cohort: Cohort, head: str) -> bytes:
    """Return a cohort as bytes, with the head of its last change."""
    m = len(cohort.sizes)
    unions = [replace(each, labels=pad(each.labels, m, fill=-1)) for each in cohort.unions]
    tree = {"head": head, **asdict(replace(cohort, unions=tuple(unions)))}
    return bytes(msgpack.packb(tree, default=_bytes_of, unicode_errors="surrogatepass"))


def decode_cohort(content: bytes) -> tuple[Cohort, str]:
    """Return the cohort and the head that :func:`encode_cohort` was given.

    Raises
    ------
    ValueError
        Says what is wrong.
    """
    try:
        tree = msgpack.unpackb(
            content, use_list=False, object_hook=_array_of, unicode_errors="surrogatepass"
        )
        head = str(tree.pop("head"))
        columns = [{**each, "column": TableColumn(**each["column"])} for each in tree["columns"]]
        tree["columns"] = tuple(PinnedColumn(**each) for each in columns)
        tree["unions"] = tuple(Unions(**each) for each in tree["unions"])
        return Cohort(**tree), head
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not what it should be: {error}") from None


def _bytes_of(array: NDArray[Any]) -> dict[str, Any]:
    return {"dtype": array.dtype.str, "shape": array.shape, "data": array.tobytes()}


def _array_of(raw: dict[str, Any]) -> Any:
    if raw.keys() != {"dtype", "shape", "data"}:
        return raw
    return np.frombuffer(raw["data"], raw["dtype"]).reshape(raw["shape"]).copy()
