"""Verify, back up and restore a site's state: everything in one file, the key included."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedclust.durable_files import private_directory, reason, write_atomically
from fedclust.site.charges import Charges
from fedclust.site.cohorts import CohortStore
from fedclust.site.journal import recorded_answers
from fedclust.site.ledger import Ledger
from fedclust.site.settings import settings_path
from fedclust.site.state import SiteState, seal
from fedclust.wire.errors import StateDamaged, UsageError


@dataclass(frozen=True)
class StateSummary:
    """What a sound state holds.

    Attributes
    ----------
    tables, sessions, lines : int
        Number of tables, of joined sessions and of lines of the ledger.
    in_flight : int
        Number of submissions without an outcome.
    head : str
        Hash of the ledger's last line.
    """

    tables: int
    sessions: int
    lines: int
    in_flight: int
    head: str


def ledger_faults(state: SiteState, expected_head: str | None = None) -> list[str]:
    """Return the faults of the ledger's chain, and where ledger and journal disagree."""
    ledger = Ledger(state)
    with state.read():
        faults = ledger.verify(expected_head)
        if not faults:
            lines = {
                (entry.get("session"), entry.get("round"), entry.get("sha256"))
                for entry in ledger.read()
                if "event" not in entry
            }
            answers = {
                (answer.session, answer.round, answer.sha256): outcome is not None
                for answer, outcome in recorded_answers(state)
            }
            faults = [
                f"session {each[0]}, round {each[1]}: no line"
                for each, settled in answers.items()
                if settled and each not in lines
            ]
            faults += [
                f"session {session}, round {number}: no answer in the journal"
                for session, number, _ in lines - answers.keys()
            ]
    return faults


def verify_state(state: SiteState) -> StateSummary:
    """Read everything that a state holds: its pages, key, tables with their heads, and the ledger.

    Raises
    ------
    StateError
        StateDamaged says what is wrong first.
    """
    with state.read() as connection:
        state.check()
        if state.path.exists():
            state.secret()
        sealed = "SELECT content FROM documents UNION ALL SELECT record FROM sessions "
        sealed += "UNION ALL SELECT standing FROM sessions WHERE standing IS NOT NULL"
        for (content,) in connection.execute(sealed):
            state.unseal(content)
        tables, answers = CohortStore(state).records(), list(recorded_answers(state))
        if faults := ledger_faults(state):
            raise state.damaged(f"ledger: {faults[0]}")
        (sessions,) = connection.execute("SELECT count(*) FROM sessions").fetchone()
        lines, head = Ledger(state).head()
        in_flight = sum(outcome is None for _, outcome in answers)
        return StateSummary(len(tables), sessions, lines, in_flight, head)


def back_up(state: SiteState, out: Path) -> StateSummary:
    """Write all of a site's state to one file, readable by its owner alone, and verify it.

    It may be used while sessions run. The settings are in it too.

    Raises
    ------
    UsageError
        There is no state yet, or the file exists or cannot be written.
    StateError
    """
    if not state.path.exists():
        raise UsageError(f"there is nothing to back up: {state.path} does not exist")
    if out.exists():
        raise UsageError(f"{out} exists: name a new file")
    with state.draft() as draft:
        with state.read() as source, closing(sqlite3.connect(draft.path)) as target:
            source.backup(target)
            # Otherwise the copy would need a second file.
            target.execute("PRAGMA journal_mode = DELETE")
            settings = settings_path(state.directory)
            if settings.exists():
                target.execute(
                    "INSERT INTO documents VALUES (?, ?)",
                    (settings.name, seal(settings.read_bytes())),
                )
            target.commit()
        found = verify_state(draft)
        try:
            write_atomically(out, draft.path.read_bytes())
        except OSError as error:
            raise UsageError(f"{out} cannot be written: {reason(error)}") from None
        return found


def restore(state: SiteState, source: Path, now: datetime | None = None) -> StateSummary:
    """Make a backup the state of a directory that has none, once it is verified.

    Settings that are there already stay. Points for outcomes count as spent until the coordinators
    that the state has joined confirm that no later charge is lost.

    Raises
    ------
    UsageError
        The file cannot be read, or there is a state already.
    StateDamaged
        The file is not a sound backup. Nothing was changed.
    """
    # SQLite would apply an old log to the backup.
    found_there = next((path for path in state.files if path.exists()), None)
    if found_there is not None:
        raise UsageError(
            f"{found_there} exists, and may hold what the backup lacks: move all files whose names "
            f"begin with {state.path.name} away first, or name another FEDCLUST_STATE_DIR"
        )
    try:
        content = source.read_bytes()
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {reason(error)}") from None
    with state.errors():
        private_directory(state.directory)
    with state.draft() as draft:
        with state.errors():
            draft.path.write_bytes(content)
        try:
            found = verify_state(draft)
        except StateDamaged as error:
            raise StateDamaged(
                f"{source} is not a sound backup ({error.what}). Nothing was restored"
            ) from None
        Charges(draft).doubt(now or datetime.now(UTC))
        with state.errors(), closing(sqlite3.connect(draft.path)) as connection:
            settings = settings_path(state.directory)
            kept = connection.execute(
                "SELECT content FROM documents WHERE name = ?", (settings.name,)
            ).fetchone()
            if kept and not settings.exists():
                write_atomically(settings, state.unseal(kept[0]))
            connection.execute("DELETE FROM documents WHERE name = ?", (settings.name,))
            connection.commit()
            connection.execute("PRAGMA journal_mode = WAL")
        draft.become(state)
        return found
