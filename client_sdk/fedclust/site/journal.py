"""A site's record of a session: it can resume, and never sends two answers to one round.

::

    <state directory>/ledger.jsonl                                 what left (site.ledger)
    <state directory>/<coordinator>/<site>/<session>.<hash>/       hash: of the definition
        lock           held by the process that runs this session for this site
        session        consent, and what the site declared when it joined
        round-00001    the exact bytes sent in a round, and the method's memory after it; written
                       and synced before the first PUT, and never replaced by another answer
        round-00001.outcome    the receipt, or why the coordinator refused

Only the newest round keeps its memory; the round before keeps it until the newest has an outcome.
Every file has a checksum. If one is damaged or missing, the message names it and the session stops:
a new answer to the same round could differ from the one that was sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from fedclust.durable_files import (
    FileDamaged,
    FileLock,
    LockHeld,
    private_directory,
    read_sealed,
    seal_all,
)
from fedclust.errors import (
    JournalDamaged,
    JournalError,
    JournalLocked,
    OtherData,
)
from fedclust.schema.model import Memory, Model, Tree
from fedclust.schema.times import Timestamp
from fedclust.site.ledger import LedgerDamaged
from fedclust.site.other_data import other_data_text
from fedclust.site.paths import coordinator_directory
from fedclust.wire import codec
from fedclust.wire.models import Participation, Receipt, Sha256

_ROUND = re.compile(r"round-(\d{5})")
M = TypeVar("M", bound=Model)


class SessionRecord(Model):
    """Consent to a definition, and the participation that was declared with it."""

    coordinator: str
    site: str
    session: str
    definition_sha256: Sha256
    consented_at: Timestamp
    participation: Participation


class SubmissionOutcome(Model):
    """The outcome of sending: a receipt, or the type of the problem with which it was refused."""

    receipt: Receipt | None = None
    refused: str | None = None


class WrittenAnswer(Model):
    """The answer to one round; ``after`` is the round answered before it, 0 for none.

    ``memory`` is None once a later round has an outcome.
    """

    coordinator: str
    site: str
    session: str
    round: int
    after: int
    phase: str
    task_digest: Sha256
    media: str
    body: bytes = Field(repr=False)
    fields: dict[str, str]
    smallest_count: int | None
    data_digest: Sha256
    written_at: Timestamp
    memory: dict[str, Tree] | None = Field(repr=False)

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


@contextmanager
def state_errors(directory: Path) -> Iterator[None]:
    """Turn errors of files in a state directory into JournalError."""
    try:
        yield
    except LedgerDamaged as error:
        raise JournalDamaged(
            f"{error}; fedclust ledger verify says more. Bring ledger.jsonl and ledger.jsonl.head "
            "back from a backup"
        ) from None
    except LockHeld as error:
        raise JournalLocked(f"another process holds {error}; try again") from None
    except OSError as error:
        where = Path(error.filename or "")
        if not error.filename or not (
            where.is_relative_to(directory) or directory.is_relative_to(where)
        ):
            raise  # An error of another file, or of none.
        raise JournalError(
            f"{where}: {error.strerror}. Fix this and run the same command again: it resumes "
            "where it stopped. A session that has not begun may use another directory "
            "(journal_dir=, --journal-dir)"
        ) from None


class Journal:
    """The journal of one session at one site; call :meth:`lock` before writing."""

    def __init__(
        self, directory: Path, coordinator: str, site: str, session: str, definition_sha256: str
    ) -> None:
        place = coordinator_directory(directory, coordinator)
        self.directory = place / site / f"{session}.{definition_sha256[:12]}"
        self._lock = FileLock(self.directory / "lock")
        self.record: SessionRecord | None = None
        self.answers: dict[int, WrittenAnswer] = {}
        self.outcomes: dict[int, SubmissionOutcome] = {}
        self._load()

    def lock(self) -> None:
        """Lock the session for this process; JournalLocked if another process runs it."""
        private_directory(self.directory)
        try:
            self._lock.acquire()
        except LockHeld:
            raise JournalLocked(
                f"another process runs this session for this site ({self._lock.path})"
            ) from None
        self._load()

    def unlock(self) -> None:
        """Unlock the session."""
        self._lock.release()

    @property
    def memory(self) -> Memory:
        """The method's memory after the last answer; ``{}`` before the first."""
        return dict(self.answers[max(self.answers)].memory or {}) if self.answers else {}

    def unsettled(self) -> list[WrittenAnswer]:
        """Return the answers without an outcome, which may have left, oldest first."""
        return [self.answers[n] for n in sorted(self.answers) if n not in self.outcomes]

    def refuse_other_data(self, digest: str, declared: Participation | None = None) -> None:
        """Raise OtherData unless the session began with the rows of this ``digest``.

        ``declared`` is what the site would declare with the present data, to say what differs.
        """
        if any(answer.data_digest != digest for answer in self.answers.values()):
            begun = self.record.participation if self.record else None
            raise OtherData(other_data_text(begun, declared, self.directory))

    def write_record(self, record: SessionRecord) -> None:
        """Record consent, before joining."""
        self._write({"session": record})
        self.record = record

    def commit(self, answer: WrittenAnswer) -> None:
        """Write an answer and the memory after it. Only then may the answer be sent."""
        previous = max(self.answers, default=0)
        if answer.after != previous or answer.round <= previous:
            raise JournalDamaged(f"round {answer.round} was answered already ({self.directory})")
        self._write({_round_file_name(answer.round): answer})
        self.answers[answer.round] = answer

    def settle(self, number: int, outcome: SubmissionOutcome) -> None:
        """Write the outcome of an answer, and drop the memory before it."""
        written: dict[str, Model] = {_round_file_name(number) + ".outcome": outcome}
        if previous := self.answers.get(self.answers[number].after):
            previous = previous.model_copy(update={"memory": None})
            written[_round_file_name(previous.round)] = self.answers[previous.round] = previous
        self._write(written)
        self.outcomes[number] = outcome

    def _write(self, models: dict[str, Model]) -> None:
        seal_all({self.directory / name: codec.encode_model(models[name]) for name in models})

    def _load(self) -> None:
        path = self.directory / "session"
        self.record = _read_entry(SessionRecord, path) if path.exists() else None
        self.answers, self.outcomes = {}, {}
        complete = True
        for answer, outcome in _session_answers(self.directory):
            complete &= answer.after == max(self.answers, default=0)
            self.answers[answer.round] = answer
            if outcome is not None:
                self.outcomes[answer.round] = outcome
        if not complete or (self.answers and self.answers[max(self.answers)].memory is None):
            raise JournalDamaged(
                f"{self.directory}: a round's file is missing; bring it back from a backup, or "
                "leave the session: fedclust leave"
            )


def recorded_answers(directory: Path) -> Iterator[tuple[WrittenAnswer, SubmissionOutcome | None]]:
    """Yield every answer in a state directory, with its outcome, None while it is in flight."""
    for path in sorted(directory.glob("*/*/*/")):
        yield from _session_answers(path)


def _session_answers(directory: Path) -> Iterator[tuple[WrittenAnswer, SubmissionOutcome | None]]:
    paths = sorted(directory.iterdir()) if directory.exists() else []
    for path in paths:
        if _ROUND.fullmatch(path.name):
            outcome = path.with_name(path.name + ".outcome")
            yield (
                _read_entry(WrittenAnswer, path),
                _read_entry(SubmissionOutcome, outcome) if outcome.exists() else None,
            )


def _round_file_name(number: int) -> str:
    return f"round-{number:05d}"


def _read_entry(model: type[M], path: Path) -> M:
    try:
        return codec.decode_model(model, read_sealed(path))
    except FileDamaged as error:
        raise JournalDamaged(str(error)) from None
    except (ValidationError, codec.CodecError):
        raise JournalDamaged(
            f"{path}: written by another version of fedclust, or not by fedclust"
        ) from None
