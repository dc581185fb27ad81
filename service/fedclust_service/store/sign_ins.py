"""Sign-ins of browsers, each with the token that it was made with."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, bindparam, select, update

from fedclust_service.domain.access import Principal, Role, Token
from fedclust_service.domain.sign_in import SignIn
from fedclust_service.store import tables
from fedclust_service.store._sql import Ending, Part, select_parts, split
from fedclust_service.store.principals import PRINCIPAL, TOKEN

_S, _T, _P = tables.sign_ins.c, tables.tokens.c, tables.principals.c
_SIGN_IN = Part(SignIn, list(_S))
# This runs with every request of a page. Building a statement costs more than running it.
_OWNER = (
    select_parts(_SIGN_IN, TOKEN, PRINCIPAL)
    .join(tables.tokens, _T.id == _S.token_id)
    .join(tables.principals, _P.id == _T.principal_id)
    .where(_S.id == bindparam("id"))
)


class SignIns(Ending):
    """Sign-ins, by their id: the public part."""

    ended = _S.ends_at

    def add(self, new: SignIn) -> None:
        """Store a sign-in; AlreadyExists when the id is taken."""
        self._insert(tables.sign_ins, vars(new), ("id",))

    def with_owner(self, sign_in_id: str) -> tuple[SignIn, Token, Principal] | None:
        """Return a sign-in, even one that has ended, with its token and principal."""
        row = self._all(_OWNER, id=sign_in_id).one_or_none()
        if row is None:
            return None
        shown, token, owner = split(row, _SIGN_IN, TOKEN, PRINCIPAL)
        return shown, token, owner

    def open(self, role: Role, name: str, now: datetime, used_after: datetime) -> Sequence[SignIn]:
        """Return a principal's sign-ins that have not ended and whose tokens are valid.

        Only those that were used later than ``used_after``. Newest first.
        """
        query = (
            select(tables.sign_ins)
            .join(tables.tokens, _T.id == _S.token_id)
            .join(tables.principals, _P.id == _T.principal_id)
            .where(_P.role == role, _P.name == name, _P.disabled.is_(False))
            .where(_T.revoked_at.is_(None), _T.expires_at > now)
            .where(_S.ended_at.is_(None), _S.ends_at > now, _S.last_used_at > used_after)
            .order_by(_S.created_at.desc(), _S.id)
        )
        return self._list(SignIn, query)

    def touch_used(self, sign_in_id: str, at: datetime) -> None:
        """Record when a sign-in was last used; the time never moves backwards."""
        one = update(tables.sign_ins).where(_S.id == sign_in_id, _S.last_used_at < at)
        self._all(one.values(last_used_at=at))

    def end(self, sign_in_id: str, at: datetime) -> bool:
        """End a sign-in; False if there is none or it was ended before."""
        return self._end(_S.id == sign_in_id, at) == 1

    def end_all(self, role: Role, name: str, at: datetime) -> None:
        """End all sign-ins of a principal."""
        own = (
            select(_T.id)
            .join(tables.principals, _P.id == _T.principal_id)
            .where(_P.role == role, _P.name == name)
        )
        self._end(_S.token_id.in_(own), at)

    def end_every(self, at: datetime) -> int:
        """End the sign-ins of all principals; return how many had not ended by then."""
        return self._end(_S.ends_at > at, at)

    def _end(self, which: ColumnElement[bool], at: datetime) -> int:
        rows = update(tables.sign_ins).where(which, _S.ended_at.is_(None))
        return self._all(rows.values(ended_at=at)).rowcount
