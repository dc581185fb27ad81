"""Read a site's token, session and round in one statement, as every round needs them.

The statements are built once: building a statement costs more than running it.
"""

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, FromClause, Select, and_, bindparam, func, select

from fedclust_service.domain.access import Principal, Token
from fedclust_service.domain.session import Participation, Session
from fedclust_service.store import tables
from fedclust_service.store._sql import Part, Repository, select_parts, split
from fedclust_service.store.principals import PRINCIPAL, TOKEN
from fedclust_service.store.rounds import ROUND_PARTS, RoundView


class SiteView(NamedTuple):
    """A session as one site sees it: its participation and one round."""

    session: Session
    own: Participation | None
    round: RoundView | None


class TokenView(NamedTuple):
    """A token, its owner, and the session as the owner sees it."""

    token: Token
    owner: Principal
    seen: SiteView | None


_SEEN = (
    Part(Session, list(tables.sessions.c)),
    Part(Participation, list(tables.participations.c)),
    *ROUND_PARTS,
)
_OWNED = (TOKEN, PRINCIPAL, *_SEEN)


def _with_round(start: FromClause, site: ColumnElement[str], *, latest: bool) -> FromClause:
    """Join a site's participation and a round, by number or the latest."""
    s, p, r = tables.sessions, tables.participations, tables.rounds
    a, answers = tables.addressees, tables.submissions
    every = r.alias()
    newest = select(func.max(every.c.number)).where(every.c.session_id == s.c.id)
    number = newest.scalar_subquery() if latest else bindparam("number")
    return (
        start.outerjoin(p, and_(p.c.session_id == s.c.id, p.c.site == site))
        .outerjoin(r, and_(r.c.session_id == s.c.id, r.c.number == number))
        .outerjoin(a, and_(a.c.round_id == r.c.id, a.c.site == site))
        .outerjoin(answers, and_(answers.c.round_id == r.c.id, answers.c.site == site))
    )


def _by_token(*, latest: bool) -> Select[Any]:
    t, o, s = tables.tokens, tables.principals, tables.sessions
    known = t.join(o, o.c.id == t.c.principal_id).outerjoin(s, s.c.name == bindparam("session"))
    joined = _with_round(known, o.c.name, latest=latest)
    return select_parts(*_OWNED).select_from(joined).where(t.c.id == bindparam("token"))


def _by_name(*, latest: bool) -> Select[Any]:
    s = tables.sessions
    joined = _with_round(s, bindparam("site"), latest=latest)
    return select_parts(*_SEEN).select_from(joined).where(s.c.name == bindparam("session"))


_BY_TOKEN = {latest: _by_token(latest=latest) for latest in (True, False)}
_BY_NAME = {latest: _by_name(latest=latest) for latest in (True, False)}
_LOCK = select(tables.sessions.c.id).where(tables.sessions.c.name == bindparam("session"))
_LOCK = _LOCK.with_for_update(key_share=True)


class SiteViews(Repository):
    """Reads what sites ask for. ``number`` None means the latest round."""

    def by_token(self, token_id: str, name: str, number: int | None = None) -> TokenView | None:
        """Return a token with its owner, and the session as a site with the owner's name sees it.

        None if there is no such token. Revoked and expired tokens are found too.
        """
        query = _BY_TOKEN[number is None]
        row = self._all(query, token=token_id, session=name, number=number).one_or_none()
        if row is None:
            return None
        token, owner, *seen = split(row, *_OWNED)
        return TokenView(token, owner, _seen(*seen))

    def by_name(
        self, name: str, site: str, number: int | None = None, *, lock: bool = False
    ) -> SiteView | None:
        """Return a session as a site sees it; ``lock`` locks it as `Sessions.lock` does."""
        if lock and not self._sqlite:
            # A separate statement: rows joined to a row that had to wait for its lock may be
            # outdated. On SQLite a write transaction has excluded all others since it began.
            self._all(_LOCK, session=name)
        query = _BY_NAME[number is None]
        row = self._all(query, session=name, site=site, number=number).one_or_none()
        return None if row is None else _seen(*split(row, *_SEEN))


def _seen(session: Any, own: Any, *in_round: Any) -> SiteView | None:
    if session is None:
        return None
    return SiteView(session, own, None if in_round[0] is None else RoundView(*in_round))
