"""What the actor may see: sessions, participations and rounds, lists of them, and their cursors."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from fedclust.schema.model import SLUG
from fedclust.wire.models import Page
from fedclust_service.domain.access import Actor, Role, absent, sees_session, wrong_field
from fedclust_service.domain.session import Participation, ParticipationState, Session, Study
from fedclust_service.store import Tx

#: Both databases can store numbers up to this one.
MAX_ROW_NUMBER = 2**31 - 1


def is_slug(name: str) -> bool:
    """Whether a string can be a name. The database is not asked about any other string."""
    return re.fullmatch(SLUG, name) is not None


def is_part_of_slug(part: str) -> bool:
    """Whether a name can contain this string."""
    return re.fullmatch(r"[a-z0-9-]{1,63}", part) is not None


def session_for(
    tx: Tx, actor: Actor, name: str, *, lock: bool = False
) -> tuple[Session, Participation | None]:
    """Return a session and, for a site, its participation.

    Refusal ``not-found`` if there is no such session or the actor may not see it.
    """
    # A locked row is read first: rows joined to one that had to wait may be outdated.
    session = tx.sessions.get(name, lock=lock) if is_slug(name) else None
    own = None
    if session is not None and actor.role is Role.SITE:
        own = tx.participations.get(session.id, actor.name)
    if session is None or not sees_session(actor, session.created_by, takes_part=own is not None):
        raise absent("session")
    return session, own


def own_session(
    tx: Tx, actor: Actor, name: str, *, lock: bool = False
) -> tuple[Session, Participation]:
    """Return a site's session and participation; raises as :func:`session_for`."""
    session, own = session_for(tx, actor, name, lock=lock)
    if own is None:
        raise absent("session")
    return session, own


def study_for(tx: Tx, actor: Actor, name: str, *, lock: bool = False) -> Study:
    """Return a study; Refusal ``not-found`` if there is none or the actor may not see it."""
    study = tx.studies.get(name, lock=lock) if is_slug(name) else None
    if study is not None:
        named = actor.role is Role.SITE and tx.studies.names(study.id, actor.name)
        if sees_session(actor, study.created_by, takes_part=named):
            return study
    raise absent("study")


def deleted_before(tx: Tx, actor: Actor, action: str, subject: str) -> bool:
    """Whether the last one of a name was deleted by this actor, who may ask for it again."""
    last = tx.audit.last(subject, action)
    return last is not None and last.actor == actor.key


def joined(participations: Iterable[Participation]) -> tuple[Participation, ...]:
    """Return the participations of the sites that take part, in the given order."""
    return tuple(each for each in participations if each.state is ParticipationState.JOINED)


def joined_sites(participations: Iterable[Participation]) -> tuple[str, ...]:
    """Return the sites that take part, in the order of ``participations``."""
    return tuple(each.site for each in joined(participations))


M = TypeVar("M", bound=BaseModel)


def show(model: type[M], record: object, **others: Any) -> M:
    """Return what a model shows of a record: the fields of the same names, and ``others``."""
    names = model.model_fields.keys() - others.keys()
    return model(**{name: getattr(record, name) for name in names}, **others)


R = TypeVar("R")
T = TypeVar("T")


def read_cursor(cursor: str | None, read: Callable[[str], T]) -> T | None:
    """Read a list's cursor; Refusal ``invalid`` if no list gave it out."""
    if cursor is None:
        return None
    try:
        return read(cursor)
    except ValueError:
        why, detail = "not a cursor of this list", "Begin the list again without a cursor."
        raise wrong_field("/cursor", "cursor", why, detail) from None


def page_of(rows: Sequence[R], limit: int, key: str, show: Callable[[R], T]) -> Page[Any]:
    """Return a page that shows the first ``limit`` rows, of which the list asked for one more.

    ``key`` is the attribute that continues the list as a cursor.
    """
    further = str(getattr(rows[limit - 1], key)) if len(rows) > limit else None
    return Page(items=tuple(map(show, rows[:limit])), next=further)


def row_number(cursor: str) -> int:
    """Read a cursor that is a row's number."""
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 10):
        raise ValueError("not a number")
    return min(int(cursor), MAX_ROW_NUMBER)


def name_in_list(cursor: str) -> str:
    """Read a cursor that is a name."""
    if not is_slug(cursor):
        raise ValueError("not a name")
    return cursor
