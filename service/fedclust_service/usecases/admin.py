"""Pages for operators: the coordinator's state, the audit trail.

Everything comes from the database at the time of the request, so all workers answer the same and a
crash loses nothing. Never a payload, a count of rows or a token.
"""

import platform
import shutil
import threading
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from fedclust.schema.model import Model
from fedclust.schema.times import Timestamp
from fedclust.wire.models import Page
from fedclust_service.domain.access import Actor, AuditEntry, AuditSearch, Refusal, require
from fedclust_service.domain.overview import Attention
from fedclust_service.store import StoreError, Tx
from fedclust_service.store import backup as copies
from fedclust_service.usecases.access_queries import page_of, read_cursor, row_number, show
from fedclust_service.usecases.attention import BACKED_UP, find_attention
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.unit_of_work import UnitOfWork, commit, reads

_COPYING = threading.Lock()


class Versions(Model):
    """Versions of the service, and how many sites last joined a session with which SDK."""

    server: str
    python: str
    database: Literal["sqlite", "postgresql"]
    migration: str
    sdk: Mapping[str, int]


class ClockSkew(Model):
    """How far clocks are ahead of the coordinator's time, in seconds, and the limit.

    ``machine_s``: the clock of the machine that answers. ``database_s``: null on SQLite. ``fault``:
    the clock that is off by more than ``limit_s``.
    """

    machine_s: float
    database_s: float | None
    limit_s: float
    fault: Literal["machine-clock", "database-clock"] | None


class Overview(Model):
    """The coordinator at one glance. Threads, clock and listening are of the process that answers.

    ``listening``: whether it learns of other workers' changes at once; null on SQLite, where there
    is one process. ``last_backup_at`` is of the last copy by ``fedclust-service backup``, which
    copies SQLite only.
    """

    at: Timestamp
    sessions: Mapping[str, int]
    rounds: Mapping[str, int]
    rounds_overdue: int
    leases: int
    attention: tuple[Attention, ...]
    last_backup_at: Timestamp | None
    last_backup_bytes: int | None
    audit_unsealed: int
    database_bytes: int
    disk_free_bytes: int
    threads_alive: bool
    clock: ClockSkew
    listening: bool | None
    versions: Versions


class AdminAuditEntry(Model):
    """An entry of the audit trail; ``number`` and ``hash`` are null until it is sealed."""

    id: int
    at: Timestamp
    actor: str
    action: str
    subject: str
    details: Mapping[str, str | int | float | bool | None]
    number: int | None
    hash: str | None


def overview(co: Coordinator, actor: Actor, place: Path) -> Overview:
    """Return the coordinator's state (operators); ``place`` is on the disk to measure."""
    require(actor, "admin.read")
    now = co.clock.now()
    free = shutil.disk_usage(place).free if place.exists() else 0

    def work(tx: Tx) -> Overview:
        sessions, rounds = tx.sessions.counts(), tx.rounds.counts(now)
        backups, backup = co.store.single_process, tx.audit.last("database", BACKED_UP)
        return Overview(
            at=now,
            sessions={state.value: count for state, count in sessions.items()},
            rounds={state.value: count for state, count in rounds.by_state.items()},
            rounds_overdue=rounds.overdue,
            leases=rounds.leased,
            attention=find_attention(tx, now, free, backups=backups),
            last_backup_at=backup.at if backup else None,
            last_backup_bytes=_bytes_of(backup) if backup else None,
            audit_unsealed=tx.chain.waiting(),
            database_bytes=tx.overview.database_bytes(),
            disk_free_bytes=free,
            threads_alive=co.alive,
            clock=show(ClockSkew, co.clock.skew, limit_s=co.clock.limit_s, fault=co.clock.fault),
            listening=co.listening,
            versions=Versions(
                server=version("fedclust"),
                python=platform.python_version(),
                database="sqlite" if co.store.single_process else "postgresql",
                migration=co.store.expected_migration(),
                sdk=tx.overview.sdk_versions(),
            ),
        )

    return co.store.read("admin.overview", work)


def back_up(co: Coordinator, actor: Actor, url: str, folder: Path) -> Path:
    """Copy the SQLite database to a new file of ``folder``, and record it (operators).

    The file's name has the time, and a number if the folder has a copy of this second. Refusal
    ``unavailable`` if the database cannot be copied.
    """
    require(actor, "database.back_up")
    name = f"fedclust-{co.clock.now():%Y-%m-%dT%H%M%SZ}"
    try:
        # One after another, so that each gets a name of its own.
        with _COPYING:
            folder.mkdir(mode=0o700, exist_ok=True)
            there = len([*folder.glob(f"{name}*.db")])
            target = folder / (f"{name}-{there + 1}.db" if there else f"{name}.db")
            made = copies.backup(url, target)
    except (OSError, StoreError) as error:
        raise Refusal("unavailable", f"No backup was made: {error}.") from error

    def note(uow: UnitOfWork) -> None:
        uow.audit(actor, BACKED_UP, "database", backup=made.sha256, bytes=made.size)

    commit(co, "database.back_up", note)
    return target


def _bytes_of(backup: AuditEntry) -> int | None:
    size = backup.details.get("bytes")
    return size if isinstance(size, int) else None


@reads("admin.read", "admin.audit")
def list_audit(
    tx: Tx,
    _: Actor,
    limit: int = 50,
    cursor: str | None = None,
    search: AuditSearch | None = None,
) -> Page[AdminAuditEntry]:
    """List the audit trail, newest first (operators)."""
    after = read_cursor(cursor, row_number)
    rows = tx.audit.list(limit + 1, after, search)
    return page_of(rows, limit, "id", lambda each: show(AdminAuditEntry, each))
