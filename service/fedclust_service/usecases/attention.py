"""What an operator should look at, found in the database at the time of the request."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from fedclust.definition import DefinitionError
from fedclust_service.domain.access import Refusal
from fedclust_service.domain.overview import Attention
from fedclust_service.store import DataDamaged, Tx
from fedclust_service.usecases.round_lifecycle import unsuitable

FAILED_FOR = timedelta(days=7)
EXPIRING_IN = timedelta(days=14)
#: A backup that is older than this needs attention.
BACKUP_EVERY = timedelta(days=7)
#: Less free space than this needs attention: a day of submissions of large sessions.
LEAST_FREE_BYTES = 2**30
#: A restored backup is named for this long.
RESTORED_FOR = timedelta(days=7)
#: The most items of each kind that need attention.
MAX_CONCERNS = 50
#: The entries of the audit trail about a backup, its restore, and a verification of the trail.
BACKED_UP = "database.backed_up"
RESTORED = "database.restored"
VERIFIED = "audit.verified"


def find_attention(
    tx: Tx, now: datetime, free_bytes: int, *, backups: bool
) -> tuple[Attention, ...]:
    """Return what needs attention. ``backups``: whether this database is copied by `backup`."""
    found = [
        *tx.overview.concerns(
            now=now,
            failed_since=now - FAILED_FOR,
            expiring_by=now + EXPIRING_IN,
            limit=MAX_CONCERNS,
        ),
        *_cannot_start(tx),
        *(_backup_old(tx, now) if backups else ()),
        *_audit_changed(tx),
        *_restored(tx, now),
    ]
    if free_bytes < LEAST_FREE_BYTES:
        free = f"{free_bytes // 2**20} MiB are free"
        found.append(Attention.to("disk-low", "disk", now, detail=free))
    return tuple(found)


def _backup_old(tx: Tx, now: datetime) -> Iterator[Attention]:
    last = tx.audit.last("database", BACKED_UP)
    since = tx.audit.began() if last is None else last.at + BACKUP_EVERY
    if since is not None and now > since:
        why = f"the last one is of {last.at:%Y-%m-%d}" if last else "no backup was made"
        why += " since the restore" if last is None and tx.audit.last("database", RESTORED) else ""
        yield Attention.to("backup-old", "database", since, detail=why)


def _audit_changed(tx: Tx) -> Iterator[Attention]:
    last = tx.audit.last("database", VERIFIED)
    if last is not None and last.details.get("faults"):
        yield Attention.to("audit-changed", "database", last.at, detail=f"found by {last.actor}")


def _restored(tx: Tx, now: datetime) -> Iterator[Attention]:
    last = tx.audit.last("database", RESTORED)
    if last is not None and now - last.at <= RESTORED_FOR:
        (before,) = tx.audit.list(1, last.id) or (last,)
        lost = f"what happened after {before.at:%Y-%m-%d %H:%M} UTC, the backup's last entry"
        yield Attention.to("database-restored", "database", last.at, detail=f"{lost}, is lost")


def _cannot_start(tx: Tx) -> Iterator[Attention]:
    """Yield the sessions that all sites have answered and whose method cannot serve them."""
    for session in tx.sessions.answered_by_all(MAX_CONCERNS):
        sites = tx.participations.list(session.id)
        try:
            why = unsuitable(session, sites)
        except Refusal as refusal:
            why = refusal.detail
        except (DataDamaged, DefinitionError):
            continue  # shown where the session is listed
        if why is not None:
            came = max((each.joined_at for each in sites if each.joined_at), default=None)
            yield Attention.to("cannot-start", session.name, came or session.created_at, detail=why)
