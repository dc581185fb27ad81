"""A site's record of a session: it can resume, and never sends two answers to one round.

The exact bytes of an answer are stored before they are first sent, and never replaced by another
answer. With the newest answer the method's memory after it is stored. The outcome follows: the
receipt, or why the coordinator refused. If an answer is damaged or missing, the session stops: a
new answer to the same round could differ from the one that was sent.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from fedclust.schema.model import Memory, Model, Tree
from fedclust.schema.times import Timestamp
from fedclust.site.state import SiteState, seal
from fedclust.wire import codec
from fedclust.wire.errors import OtherData, StateDamaged, StateLocked
from fedclust.wire.models import Participation, Receipt, Sha256

M = TypeVar("M", bound=Model)


class SessionRecord(Model):
    """Consent to a definition, and the participation that was declared with it.

    ``within`` (d,) is the share of each column's variance within groups, as it was then: columns
    that other sessions release since would change it.
    """

    consented_at: Timestamp
    participation: Participation
    within: tuple[float, ...]


class SubmissionOutcome(Model):
    """The outcome of sending: a receipt, or the type of the problem with which it was refused."""

    receipt: Receipt | None = None
    refused: str | None = None


class ComputedAnswer(Model):
    """An answer before it is written: its exact bytes, and what the ledger says of them.

    ``memory`` is what the method remembers after it. :class:`_Standing` stores it for the newest
    answer, and an answer that is read has none.
    """

    phase: str
    body: bytes = Field(repr=False)
    fields: dict[str, str]
    smallest_count: int | None
    memory: dict[str, Tree] = Field(default_factory=dict, exclude=True, repr=False)


class WrittenAnswer(ComputedAnswer):
    """The answer to one round."""

    coordinator: str
    site: str
    session: str
    round: int
    task_digest: Sha256
    media: str
    data_digest: Sha256
    written_at: Timestamp

    @property
    def sha256(self) -> str:
        return codec.sha256(self.body)

    def entry(self, outcome: SubmissionOutcome) -> dict[str, Any]:
        """Return this answer's line of the ledger."""
        line = self.model_dump(
            mode="json",
            include={"coordinator", "site", "session", "round", "phase", "fields"}
            | {"smallest_count", "task_digest", "media", "written_at"},
        )
        line |= {"time": line.pop("written_at"), "sha256": self.sha256, "size": len(self.body)}
        return line | {"empty": not self.fields} | outcome.model_dump(mode="json")


class _Standing(Model):
    """The rounds that were answered, and the method's memory after the last of them."""

    rounds: tuple[int, ...] = ()
    memory: dict[str, Tree] = Field(default_factory=dict, repr=False)


class Journal:
    """The journal of one session at one site; call :meth:`lock` before writing."""

    def __init__(
        self, state: SiteState, coordinator: str, site: str, session: str, definition_sha256: str
    ) -> None:
        self.state = state
        self._names = (session, coordinator, site, definition_sha256)
        self.record: SessionRecord | None = None
        self.answers: dict[int, WrittenAnswer] = {}
        self.outcomes: dict[int, SubmissionOutcome] = {}
        #: The method's memory after the last answer; empty before the first.
        self.memory: Memory = {}
        self._load()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the session for this process; StateLocked if another process runs it."""
        try:
            lock = self.state.lock("session", *self._names)
        except StateLocked as error:
            raise StateLocked(f"another process runs this session for this site: {error}") from None
        try:
            with self.state.kept_open():
                self._load()
                yield
        finally:
            lock.release()

    def unsettled(self) -> list[WrittenAnswer]:
        """Return the answers without an outcome, which may have left, oldest first."""
        return [self.answers[n] for n in sorted(self.answers) if n not in self.outcomes]

    def refuse_other_data(self, digest: str, declared: Participation | None = None) -> None:
        """Raise OtherData unless the session began with the rows of this ``digest``.

        ``declared`` is what the site would declare with the present data, to say what differs.
        """
        if any(answer.data_digest != digest for answer in self.answers.values()):
            begun = self.record.participation if self.record else None
            raise OtherData(
                f"the session was begun with other data: {_difference(begun, declared)}. Give the "
                "same again, in the same order, or leave the session: fedclust leave. If a live "
                "database gave the rows, take part with a copy of them (docs/data.md). The session "
                f"is recorded in {self.state.path}"
            )

    def write_record(self, record: SessionRecord) -> None:
        """Record consent, before joining."""
        with self.state.write() as connection:
            connection.execute(
                "INSERT INTO sessions (session, coordinator, site, definition_sha256, record) "
                "VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET record = excluded.record",
                (*self._names, _sealed(record)),
            )
        self.record = record

    def commit(self, answer: WrittenAnswer) -> None:
        """Store an answer and the memory after it. Only then may the answer be sent."""
        if answer.round <= max(self.answers, default=0):
            raise StateDamaged(f"round {answer.round} was answered already ({self.state.path})")
        standing = _Standing(rounds=(*self.answers, answer.round), memory=answer.memory)
        with self.state.write() as connection:
            place = self._id(connection)
            connection.execute(
                "INSERT INTO answers (session_id, round, answer) VALUES (?, ?, ?)",
                (place, answer.round, _sealed(answer)),
            )
            stored = _sealed(standing), place
            connection.execute("UPDATE sessions SET standing = ? WHERE id = ?", stored)
        self.answers[answer.round], self.memory = answer, answer.memory

    def settle(self, number: int, outcome: SubmissionOutcome) -> None:
        """Store the outcome of an answer."""
        with self.state.write() as connection:
            connection.execute(
                "UPDATE answers SET outcome = ? WHERE session_id = ? AND round = ?",
                (_sealed(outcome), self._id(connection), number),
            )
        self.outcomes[number] = outcome

    def _id(self, connection: sqlite3.Connection) -> int:
        found = connection.execute(f"SELECT id {_THIS}", self._names).fetchone()
        if found is None:
            raise self.state.damaged(f"the record of joining session {self._names[0]} is missing")
        return int(found[0])

    def _load(self) -> None:
        with self.state.read() as connection:
            found = connection.execute(f"SELECT record, standing {_THIS}", self._names).fetchone()
            answers = list(_answers(self.state, _THIS, self._names))
        record, stored = found or (None, None)
        self.record = None if record is None else _read(self.state, SessionRecord, record)
        standing = _Standing() if stored is None else _read(self.state, _Standing, stored)
        self.memory = standing.memory
        self.answers = {answer.round: answer for answer, _ in answers}
        self.outcomes = {answer.round: each for answer, each in answers if each is not None}
        if standing.rounds != tuple(self.answers):
            raise StateDamaged(
                f"{self.state.path}: a round of session {self._names[0]} is missing; restore the "
                "state from a backup, or leave the session: fedclust leave"
            )


_THIS = "FROM sessions WHERE session = ? AND coordinator = ? AND site = ? AND definition_sha256 = ?"


def has_joined(state: SiteState, *, session: str | None = None, url: str | None = None) -> bool:
    """Return whether this site has joined a session of this name, or one at this coordinator."""
    asked = "session = coalesce(?, session) AND coordinator = coalesce(?, coordinator)"
    statement = f"SELECT 1 FROM sessions WHERE {asked}"  # noqa: S608
    return bool(state.rows(statement, (session, url)))


def recorded_answers(
    state: SiteState, session: str | None = None
) -> Iterator[tuple[WrittenAnswer, SubmissionOutcome | None]]:
    """Yield every answer in a site's state, with its outcome, None while it is in flight.

    With ``session`` only those of sessions of this name, at any coordinator.
    """
    return _answers(state, "FROM sessions WHERE session = coalesce(?, session)", (session,))


def _answers(
    state: SiteState, sessions: str, names: tuple[str | None, ...]
) -> Iterator[tuple[WrittenAnswer, SubmissionOutcome | None]]:
    chosen = f"WHERE session_id IN (SELECT id {sessions}) ORDER BY session_id, round"
    statement = f"SELECT answer, outcome FROM answers {chosen}"  # noqa: S608
    for answer, outcome in state.rows(statement, names):
        yield (
            _read(state, WrittenAnswer, answer),
            None if outcome is None else _read(state, SubmissionOutcome, outcome),
        )


def _sealed(model: Model) -> bytes:
    return seal(codec.encode_model(model))


def _read(state: SiteState, model: type[M], content: bytes) -> M:
    try:
        return codec.decode_model(model, state.unseal(content))
    except (ValidationError, codec.CodecError):
        raise state.damaged("another version of fedclust wrote its journal") from None


def _difference(begun: Participation | None, now: Participation | None) -> str:
    if begun is None or now is None:
        return "the persons or their values no longer fit the groups that it uses"
    found = []
    if begun.features != now.features:
        found.append("other features have values here")
    if begun.min_group_size != now.min_group_size:
        found.append("min_group_size (--min-group-size, site.toml) differs")
    if begun.table_id != now.table_id:
        found.append("the persons are in another table (cohort=, --cohort)")
    if begun.size_band != now.size_band:
        found.append("the number of persons has changed")
    return "; ".join(found) or (
        "the options that it recorded are the same, so the rows, their order or how they are read "
        "(mapping, columns of ids and persons) differ, or a person was withdrawn or a value "
        "corrected since"
    )
