"""The groups of a site's persons on disk: once formed, they are never formed again.

::

    <state directory>/cohorts/     FEDCLUST_STATE_DIR, or the platform's directory for state
        lock                held by the process that changes something
        key                 the site's own secret, made once, 0600; the hashes need it
        index               all tables that were ever formed
        <table id>.cohort   a cohort (``cohort_file``)

Every file has a checksum and is replaced as a whole: after a crash it is the old one or the new
one. A damaged, missing or foreign file ends the command; no other groups are formed instead.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedclust import errors
from fedclust.durable_files import (
    FileDamaged,
    FileLock,
    LockHeld,
    private_directory,
    read_sealed,
    write_sealed,
)
from fedclust.protection.cohort import Cohort, CohortRefused
from fedclust.protection.recognition import PersonBlocks, PersonSource, find_cohort
from fedclust.protection.update import Change, two_cohorts, update_cohort
from fedclust.schema.times import write_time
from fedclust.site.cohort_file import RESTORE, decode_cohort, encode_cohort, key_check
from fedclust.site.ledger import Ledger
from fedclust.site.paths import state_directory
from fedclust.wire.codec import canonical_json
from fedclust.wire.models import MOST_HEADS, TableHeads

#: A person is in at most this many tables: from the fifth on, single persons could be computed if
#: nothing were rounded.
_MOST_GROUPINGS = 3
#: Another process may be forming the groups of a large site.
_PATIENCE_S = 600.0
_RETRY_S = 0.1
#: A join sends so many heads; all of them only to a coordinator that asks for them.
_LAST_HEADS = 1_000


@dataclass(frozen=True)
class CohortRecord:
    """A cohort and its history.

    Attributes
    ----------
    cohort : Cohort
    history : tuple of dict
        What each change did, in counts: the lines of the ledger.
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


@dataclass(frozen=True)
class Draft:
    """A cohort after an update, before :meth:`CohortStore.keep` writes it.

    Attributes
    ----------
    record : CohortRecord
    change : Change
    seen : dict of str to int
        Number of changes of each table when the draft was made.
    """

    record: CohortRecord
    change: Change
    seen: Mapping[str, int]


class CohortStore:
    """The cohorts of this account.

    Parameters
    ----------
    directory : Path, optional
        By default ``cohorts`` in :func:`fedclust.site.paths.state_directory`.
    patience_s : float
        How long to wait for another process.
    """

    def __init__(self, directory: Path | None = None, *, patience_s: float = _PATIENCE_S) -> None:
        self.directory = directory or state_directory() / "cohorts"
        self._patience_s = patience_s

    def draft(
        self,
        source: PersonSource,
        *,
        p: int,
        now: datetime,
        fences: bool = True,
        table: str | None = None,
        separate: str | None = None,
        accept_corrections: bool = False,
    ) -> Draft:
        """Bring the cohort of a source's persons up to date; only the site's key is written.

        Parameters
        ----------
        source : PersonSource
        p : int
            Of a new table.
        now : datetime
        fences : bool
            Of a new table: whether lone extremes are protected.
        table : str, optional
            Start of the id of the table to use.
        separate : str, optional
            The approval of groups apart from those that the persons have; entered in the ledger.
        accept_corrections : bool
            Whether to use a column in which implausibly many values of known persons have
            changed; entered in the ledger.

        Raises
        ------
        PersonsRefused
            The source does not fit the groups.
        CohortError
        TooFewPersons
        """
        with self._locked():
            records, secret = self._records(), self.secret()
            chosen = self._choose(records, table)
            new = Cohort.empty(secrets.token_hex(16), p, fences=fences)
            usable = [] if separate else chosen
            everyone = [record.cohort for record in records.values()]
            with cohort_refusals():
                cohort, change = update_cohort(
                    new, usable, secret, source, everyone, accept_corrections=accept_corrections
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
            if before is not None and cohort is before.cohort:
                return Draft(before, change, seen)
            what = "updated" if before else "separate" if separate else "created"
            facts = {name: n for name, n in asdict(change).items() if name != "renamed"}
            facts |= {"renamed": len(change.renamed)}
            facts |= {"approval": separate} if separate else {}
            record = (before or CohortRecord(cohort, ())).after(cohort, what, now, **facts)
            return Draft(record, change, seen)

    def find(self, blocks: PersonBlocks, table: str | None = None) -> Cohort | None:
        """Return the cohort that holds a source's persons; None if they are new."""
        with self._locked(), cohort_refusals():
            return find_cohort(self._choose(self._records(), table), self.secret(), blocks)

    def keep(self, draft: Draft, ledger: Ledger) -> Cohort:
        """Write a draft before anything of it leaves, and enter it in the ledger.

        Raises
        ------
        CohortLocked
            Another process has changed the groups of these persons since the draft was made.
        """
        with self._locked():
            records = self._records()
            cohort = draft.record.cohort
            kept = records.get(cohort.table_id)
            if kept is None or kept.history != draft.record.history:
                for name, record in records.items():
                    unseen = len(record.history) != draft.seen.get(name)
                    # Another site on this account may have formed groups of other persons.
                    if unseen and (record.cohort.find(cohort.keys) >= 0).any():
                        raise errors.CohortLocked(
                            "another process has changed the groups of these persons: run the same "
                            "command again"
                        )
                self._write(draft.record, records)
            self._enter(draft.record, ledger)
        return draft.record.cohort

    def withdraw(self, person: str, ledger: Ledger, now: datetime) -> int:
        """Withdraw a person from every table, and return from how many.

        Raises
        ------
        PersonsRefused
            No table holds this person.
        """
        with self._locked():
            records, secret = self._records(), self.secret()
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
                changed = record.after(cohort, "withdrawn", now, persons=1, groups=ended)
                self._write(changed, records)
                self._enter(changed, ledger)
            if not found:
                with cohort_refusals("the id"):
                    raise refused or CohortRefused("unknown-person", "there is no table yet")
            return found

    def records(self, ledger: Ledger | None = None) -> dict[str, CohortRecord]:
        """Return every cohort by the id of its table, verified.

        Raises CohortLost if ``ledger`` names one that is not here.
        """
        if not self.directory.exists():
            records: dict[str, CohortRecord] = {}
        else:
            with self._locked():
                records = self._records()
        if ledger is not None:
            self.refuse_lost(records, ledger)
        return records

    def heads(self, table_id: str, *, every: bool = False) -> TableHeads:
        """Return the heads of a table as it is stored now; see :func:`table_heads`."""
        return table_heads(self.records()[table_id].history, every=every)

    def refuse_lost(self, records: Mapping[str, CohortRecord], ledger: Ledger) -> None:
        """Raise CohortLost if the ledger names a table or a change that is not here."""
        for line in ledger.read():
            if line.get("event") == "cohort":
                record = records.get(str(line.get("table")))
                if record is None or len(record.history) < int(line.get("change", 0)):
                    raise self._lost(str(line.get("table")), f"{ledger.path} names it")

    def backup(self, target: Path) -> list[Path]:
        """Copy key, index and cohorts into a new directory, verify the copy, and return its files.

        The copy holds the key: whoever has it can test ids and values.
        """
        if target.exists() and any(target.iterdir()):
            raise errors.UsageError(f"{target} is not empty: name a new directory")
        with self._locked():
            if not self._records():
                raise errors.UsageError(f"{self.directory} holds no groups to back up")
            private_directory(target)
            copied = []
            for path in sorted(self.directory.iterdir()):
                if path.name in ("key", "index") or path.suffix == ".cohort":
                    copied.append(target / path.name)
                    write_sealed(copied[-1], read_sealed(path))
        CohortStore(target).records()
        return copied

    def secret(self) -> bytes:
        """Return the site's own secret; made once."""
        path = self.directory / "key"
        if not path.exists():
            if self._paths() or (self.directory / "index").exists():
                raise errors.CohortLost(
                    f"{path} is missing: without it no person is recognised. {RESTORE}"
                )
            write_sealed(path, secrets.token_bytes(32))
        return self._sealed(path)

    # --- files ------------------------------------------------------------------------------------

    def _paths(self) -> dict[str, Path]:
        return {path.stem: path for path in sorted(self.directory.glob("*.cohort"))}

    def _records(self) -> dict[str, CohortRecord]:
        paths, index = self._paths(), self.directory / "index"
        listed = json.loads(self._sealed(index)) if index.exists() else []
        for name in listed:
            if name not in paths:
                raise self._lost(name, f"{index} names it")
        if not paths:
            return {}
        check = key_check(self.secret())
        return {
            name: CohortRecord(*decode_cohort(path, self._sealed(path), check))
            for name, path in paths.items()
        }

    def _write(self, record: CohortRecord, records: Mapping[str, CohortRecord]) -> None:
        name = record.cohort.table_id
        write_sealed(
            self.directory / f"{name}.cohort",
            encode_cohort(record.cohort, record.history, key_check(self.secret())),
        )
        if name not in records:
            names = sorted({*records, name})
            write_sealed(self.directory / "index", json.dumps(names).encode())

    def _enter(self, record: CohortRecord, ledger: Ledger) -> None:
        """Enter the changes of a cohort that the ledger lacks: after a crash, or a new ledger."""
        entered = {
            line.get("change")
            for line in ledger.read()
            if line.get("table") == record.cohort.table_id
        }
        for line in record.history:
            if line["change"] not in entered:
                ledger.append(line)

    def _sealed(self, path: Path) -> bytes:
        try:
            return read_sealed(path)
        except FileDamaged as error:
            raise errors.CohortDamaged(f"{error}. {RESTORE}") from None

    def _lost(self, name: str, why: str) -> errors.CohortLost:
        return errors.CohortLost(
            f"{self.directory} does not hold table {name} as it was released last ({why}). "
            f"{RESTORE}, or set FEDCLUST_STATE_DIR to where it is: groups are not formed twice"
        )

    def _choose(self, records: Mapping[str, CohortRecord], start: str | None) -> list[Cohort]:
        """Return all cohorts, or the one whose table's id begins with ``start``."""
        found = [each.cohort for name, each in records.items() if name.startswith(start or "")]
        if start and len(found) != 1:
            raise errors.UsageError(
                f"{len(found)} tables have an id that begins with {start!r}; fedclust cohort show "
                "lists them"
            )
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock, end = FileLock(self.directory / "lock"), time.monotonic() + self._patience_s
        try:
            private_directory(self.directory)
            while not self._acquired(lock, end):
                time.sleep(_RETRY_S)
            try:
                yield
            finally:
                lock.release()
        except OSError as error:
            if not Path(error.filename or "").is_relative_to(self.directory):
                raise
            raise errors.CohortError(
                f"{error.filename}: {error.strerror}. Fix this and run the same command again"
            ) from None

    def _acquired(self, lock: FileLock, end: float) -> bool:
        try:
            lock.acquire()
        except LockHeld:
            if time.monotonic() < end:
                return False
            raise errors.CohortLocked(
                f"another process is changing the groups of this site's persons ({lock.path}); "
                "try again when it has ended"
            ) from None
        return True


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
