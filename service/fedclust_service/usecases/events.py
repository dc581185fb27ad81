"""A session's events: sealed audit entries, limited to what the reader may see."""

from dataclasses import dataclass

from fedclust_service.domain.access import Actor, AuditEntry, Role
from fedclust_service.store import Tx
from fedclust_service.usecases.access_queries import session_for
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.unit_of_work import Detail, reads

PAGE = 100
#: Entries before it are about an earlier session of the same name.
_DELETED = "session.deleted"
#: The last event of a session; later entries are only in the audit trail.
END = frozenset({"session.completed", "session.failed", "session.cancelled"})
#: Events that a site reads about all sites.
FOR_SITES = END | {
    "session.created",
    "session.started",
    "session.held",
    "session.retried",
    "site.invited",
    "site.joined",
    "site.left",
    "site.excluded",
    "site.refused",
    "result.named",
    "round.opened",
    "round.deadline_moved",
    "round.overdue",
    "round.collected",
    "round.closed",
    "round.failed",
    "submission.stored",
}
#: Events that a site reads only about itself.
OF_ITS_OWN = frozenset({"submission.refused", "result.read"})
#: Events that the session's analyst and operators read.
FOR_ALL = FOR_SITES | OF_ITS_OWN | {"session.start_refused", "round.taken_over", "round.warned"}
#: Of an entry's details: no sizes, counts or hashes of what others sent.
_SHOWN_TO_SITES = frozenset({"round", "phase", "site", "reason", "deadline"})


@dataclass(frozen=True)
class Event:
    """One event: the entry's number and action, and the details that the reader may see."""

    number: int
    action: str
    data: dict[str, Detail]


@dataclass(frozen=True)
class EventBatch:
    """Events in order, and the number ``last`` after which to continue.

    ``more``: whether more events can be read at once. ``ended``: whether no event will follow.
    """

    events: tuple[Event, ...]
    last: int
    more: bool
    ended: bool


@reads("event.read", "events.read")
def read_events(
    tx: Tx, actor: Actor, session: str, after: int, wanted: frozenset[str] = FOR_ALL
) -> EventBatch:
    """Return a session's ``wanted`` events after number ``after``, at most :data:`PAGE`.

    They end with the session, unless its end is not wanted. Refusal ``not-found`` for a session
    that the reader may not see.
    """
    found, _ = session_for(tx, actor, session)
    known = tx.chain.last_of(found.name, (END & wanted) | {_DELETED})
    begun = known.pop(_DELETED, 0)
    if begun is None:  # nothing of this session is sealed yet
        return EventBatch((), after, more=False, ended=False)
    end = max((n for n in known.values() if n is not None and n > begun), default=None)
    if end is not None and after >= end:
        return EventBatch((), after, more=False, ended=True)
    rows = tx.chain.about(found.name, max(after, begun), PAGE)
    kept = [row for row in rows if end is None or (row.number or 0) <= end]
    last = kept[-1].number or after if kept else after
    kept = [row for row in kept if row.action in wanted]
    shown = tuple(event for row in kept if (event := _event_of(actor, row)) is not None)
    return EventBatch(shown, last, more=len(rows) == PAGE, ended=end is not None and last >= end)


def newest_number(co: Coordinator) -> int:
    """Return the number of the last sealed entry, of whatever: later events have larger ones."""
    head = co.store.read("events.newest", lambda tx: tx.chain.recorded())
    return 0 if head is None else head.number


def _event_of(actor: Actor, entry: AuditEntry) -> Event | None:
    if entry.number is None:
        return None
    role, _, name = entry.actor.partition(":")
    site = name if role == Role.SITE.value else None
    data: dict[str, Detail] = {"at": entry.at.isoformat().replace("+00:00", "Z")}
    if actor.role is not Role.SITE:
        data["by"] = entry.actor
        data |= {key: value for key, value in entry.details.items() if key != "via"}
    else:
        own = site == actor.name
        if entry.action not in FOR_SITES and not (own and entry.action in OF_ITS_OWN):
            return None
        if entry.action == "submission.stored" and not own:
            del data["at"]  # as in the lists of rounds: of other sites only that they answered
        data |= {key: value for key, value in entry.details.items() if key in _SHOWN_TO_SITES}
    if site is not None:
        data["site"] = site
    return Event(entry.number, entry.action, data)
