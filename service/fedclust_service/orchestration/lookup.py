"""Finding what a request is about, seen with the eyes of the actor."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms import engine
from fedclust.algorithms.engine import Plan
from fedclust.definition import DefinitionError, plan_of, read_definition
from fedclust.wire import codec
from fedclust.wire.models import Definition
from fedclust.wire.problems import FieldError
from fedclust_service.domain.access import Actor, Role, absent, sees_session
from fedclust_service.domain.refusal import Refusal
from fedclust_service.domain.round import Round
from fedclust_service.domain.session import Participation, ParticipationState, Session
from fedclust_service.store import DataDamaged, Tx

T = TypeVar("T")
MAX_PAGE = 200
_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
#: Numbers up to here fit the columns of both databases.
_MAX_NUMBER = 2**31 - 1


def is_slug(name: str) -> bool:
    """Whether anything can have this name: the database is not asked about other strings."""
    return _SLUG.fullmatch(name) is not None


def session_for(
    tx: Tx, actor: Actor, name: str, *, lock: bool = False
) -> tuple[Session, Participation | None]:
    """Return a session and, for a site, its participation; what may not be seen is not found."""
    session, own = _found(tx, actor, name, lock=lock) if is_slug(name) else (None, None)
    if session is None:
        raise absent("session")
    if not sees_session(actor, session.created_by, takes_part=own is not None):
        raise absent("session")
    return session, own


def _found(
    tx: Tx, actor: Actor, name: str, *, lock: bool
) -> tuple[Session | None, Participation | None]:
    if actor.role is not Role.SITE:
        return (tx.sessions.lock(name) if lock else tx.sessions.get(name)), None
    find = tx.sessions.lock_for if lock else tx.sessions.get_for
    return find(name, actor.name) or (None, None)


def own_session(
    tx: Tx, actor: Actor, name: str, *, lock: bool = False
) -> tuple[Session, Participation]:
    """As :func:`session_for`, for a site's own doings."""
    session, own = session_for(tx, actor, name, lock=lock)
    if own is None:
        raise absent("session")
    return session, own


def round_numbered(tx: Tx, session: Session, number: int) -> Round | None:
    """Return a round by its number, which may be any number at all."""
    return tx.rounds.get(session.id, number) if is_row_number(number) else None


def is_row_number(number: int) -> bool:
    """Whether anything can have this number: the columns do not hold others."""
    return 1 <= number <= _MAX_NUMBER


def roster_of(tx: Tx, session: Session) -> tuple[str, ...]:
    """Return the sites that take part now, sorted."""
    return joined_of(tx.participations.list(session.id))


def joined_of(participations: Iterable[Participation]) -> tuple[str, ...]:
    """Return those sites of sorted participations that take part."""
    return tuple(each.site for each in participations if each.state is ParticipationState.JOINED)


# What raises is not cached: damage is found again each time.
@functools.lru_cache(maxsize=64)
def _read(definition: bytes, sha256: str) -> Definition:
    if codec.sha256(definition) != sha256:
        raise DataDamaged("definition")
    return read_definition(definition)


def definition_of(session: Session) -> Definition:
    """Return the definition that sites consented to; DataDamaged if another one is stored.

    DefinitionError where an earlier version has written it in a form that this one does not read.
    """
    return _read(session.definition, session.definition_sha256)


@functools.lru_cache(maxsize=64)
def _plan(definition: bytes, sha256: str) -> Plan:
    return plan_of(_read(definition, sha256))


def plan_for(session: Session) -> Plan:
    """Return what the engine runs; DefinitionError where this program does not speak it.

    Raises as `definition_of`.
    """
    return _plan(session.definition, session.definition_sha256)


def outdated() -> Refusal:
    """Return the refusal of what rests on a definition that this version does not read."""
    return Refusal(
        "version-unsupported",
        "An earlier version of fedclust made this session, and this coordinator does not read its "
        "definition. Create the session anew. Saved results (.fedclust) are read by the version "
        "that saved them.",
    )


def plan_or_refuse(session: Session) -> Plan:
    """As :func:`plan_for`, for a request."""
    try:
        return plan_for(session)
    except DefinitionError as error:
        raise Refusal(
            "unavailable",
            "The coordinator does not run this session's version of its method; its operator "
            "must install a version of fedclust that does.",
        ) from error


def masks_of(plan: Plan, participations: Iterable[Participation]) -> dict[str, NDArray[np.bool_]]:
    """Return which of the session's features (d,) each site has that has ever joined."""
    return {
        each.site: engine.has_features(plan, each.features)
        for each in participations
        if each.features
    }


def smallest_p(session_p: int, own: Participation) -> int:
    """Return the p that holds for a site: the larger of the session's and its own."""
    return max(session_p, own.min_group_size or 0)


def read_cursor(cursor: str | None, read: Callable[[str], T]) -> T | None:
    """Read a list's cursor; Refusal ``invalid`` for what no list has given out."""
    if cursor is None:
        return None
    try:
        return read(cursor)
    except ValueError:
        error = FieldError(pointer="/cursor", rule="cursor", message="not a cursor of this list")
        raise Refusal("invalid", "Begin the list again without a cursor.", [error]) from None


def row_number(cursor: str) -> int:
    """Read a cursor that is a row's number."""
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 10):
        raise ValueError("not a number")
    return min(int(cursor), _MAX_NUMBER)


def name_in_list(cursor: str) -> str:
    """Read a cursor that is a name."""
    if not is_slug(cursor):
        raise ValueError("not a name")
    return cursor


def page_size(limit: int) -> int:
    """Return how many items a page holds: what was asked, within reason."""
    return max(1, min(limit, MAX_PAGE))
