"""Operators, analysts, sites; their tokens and sign-ins; what was accepted of sites' tables."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, bindparam, delete, exists, select, tuple_, update

from fedclust_service.domain.access import Principal, Role, Token
from fedclust_service.domain.site_table import SiteTable
from fedclust_service.domain.tokens import SignIn
from fedclust_service.store import tables
from fedclust_service.store._sql import Ending, Part, Repository, select_parts, split

_P, _T = tables.principals.c, tables.tokens.c
TOKEN, PRINCIPAL = Part(Token, list(_T)), Part(Principal, list(_P))
_OWNED = select_parts(TOKEN, PRINCIPAL).join(tables.principals, _P.id == _T.principal_id)
# This runs with every request. Building a statement costs more than running it.
_OWNER = _OWNED.where(_T.id == bindparam("id"))


class Principals(Repository):
    """Operators, analysts and sites, by role and name. They are never deleted."""

    def add(self, role: Role, name: str, title: str, email: str | None = None) -> Principal:
        """Register a principal, enabled; StoreError when the role has one of that name."""
        now = self._pending.now
        new = Principal(0, role, name, title, disabled=False, created_at=now, email=email)
        return replace(new, id=self._added(tables.principals, vars(new)))

    def get(self, role: Role, name: str) -> Principal | None:
        """Return the principal of a role by its name."""
        query = select(tables.principals).where(_P.role == role, _P.name == name)
        return self._one(Principal, query)

    def list(
        self, role: Role, limit: int, after: str | None = None, part: str | None = None
    ) -> Sequence[Principal]:
        """Return at most ``limit`` principals of a role by name, after the name ``after``.

        ``part`` limits it to names that contain this.
        """
        query = select(tables.principals).where(_P.role == role).order_by(_P.name)
        if part is not None:
            query = query.where(_P.name.contains(part, autoescape=True))
        if after is not None:
            query = query.where(_P.name > after)
        return self._list(Principal, query.limit(limit))

    def existing(self, role: Role, names: Collection[str]) -> frozenset[str]:
        """Return which of ``names`` a role has, including disabled ones."""
        query = select(_P.name).where(_P.role == role, _P.name.in_(sorted(set(names))))
        return frozenset(self._all(query).scalars())

    def emails(self, role: Role, names: Collection[str] | None = None) -> dict[str, str]:
        """Return the e-mail addresses of enabled principals of a role that have one, by name.

        ``names`` limits it to these.
        """
        query = select(_P.name, _P.email).where(
            _P.role == role, _P.disabled.is_(False), _P.email.is_not(None)
        )
        if names is not None:
            query = query.where(_P.name.in_(sorted(set(names))))
        return {row.name: row.email for row in self._all(query.order_by(_P.name))}

    def update(self, principal: Principal) -> None:
        """Write ``title``, ``email`` and ``disabled``."""
        one = update(tables.principals).where(_P.id == principal.id)
        values = {name: getattr(principal, name) for name in ("title", "email", "disabled")}
        self._all(one.values(values))

    def lock(self, role: Role) -> None:
        """Lock all principals of a role until this transaction ends.

        On SQLite a write transaction excludes all others anyway.
        """
        query = select(_P.id).where(_P.role == role).order_by(_P.id).with_for_update()
        self._all(query).all()

    def touch_seen(self, principal_id: int, at: datetime) -> None:
        """Record when a principal was last seen; the time never moves backwards."""
        earlier = _P.last_seen_at.is_(None) | (_P.last_seen_at < at)
        one = update(tables.principals).where(_P.id == principal_id, earlier)
        self._all(one.values(last_seen_at=at))


class Tokens(Repository):
    """Tokens, by their id: the public part."""

    def add(self, token: Token) -> None:
        """Store a token; StoreError when the id is taken."""
        self._insert(tables.tokens, vars(token))

    def get(self, token_id: str) -> Token | None:
        """Return a token by its id, even a revoked or expired one."""
        found = self.with_owner(token_id)
        return found[0] if found else None

    def with_owner(self, token_id: str) -> tuple[Token, Principal] | None:
        """Return a token as `get` does, with its principal."""
        row = self._all(_OWNER, id=token_id).one_or_none()
        return None if row is None else _owned(row)

    def list_for(self, *principal_ids: int) -> Sequence[Token]:
        """Return all tokens of principals, oldest first."""
        query = select(tables.tokens).where(_T.principal_id.in_(principal_ids))
        return self._list(Token, query.order_by(_T.created_at, _T.id))

    def any_valid(self, role: Role, at: datetime) -> bool:
        """Whether an enabled principal of a role has a token that is valid at a time."""
        query = (
            select(_T.id)
            .join(tables.principals, _P.id == _T.principal_id)
            .where(_P.role == role, _P.disabled.is_(False))
            .where(_T.revoked_at.is_(None), _T.expires_at > at)
            .limit(1)
        )
        return self._all(query).first() is not None

    def expiring(self, now: datetime, by: datetime) -> Sequence[tuple[Token, Principal]]:
        """Return enabled principals whose last valid token ends by a time, with that token."""
        later = tables.tokens.alias()
        replaced = exists().where(
            later.c.principal_id == _T.principal_id,
            later.c.revoked_at.is_(None),
            tuple_(later.c.expires_at, later.c.id) > tuple_(_T.expires_at, _T.id),
        )
        query = (
            _OWNED.where(_T.expires_at > now, _T.expires_at <= by, _T.revoked_at.is_(None))
            .where(_P.disabled.is_(False), ~replaced)
            .order_by(_T.expires_at, _T.id)
        )
        return [_owned(row) for row in self._all(query)]

    def any_unrevoked(self) -> bool:
        """Whether any token was never revoked. Expired ones count: the clock may be wrong."""
        query = select(_T.id).where(_T.revoked_at.is_(None)).limit(1)
        return self._all(query).first() is not None

    def revoke_all(self, at: datetime) -> int:
        """Revoke the tokens of all principals; return how many had not been revoked."""
        rows = update(tables.tokens).where(_T.revoked_at.is_(None))
        return self._all(rows.values(revoked_at=at)).rowcount

    def revoke(self, token_id: str, at: datetime) -> bool:
        """Revoke a token; False if there is none or it was revoked before."""
        valid = update(tables.tokens).where(_T.id == token_id, _T.revoked_at.is_(None))
        return self._changed(valid.values(revoked_at=at))

    def touch_used(self, token_id: str, at: datetime) -> None:
        """Record when a token was last used; the time never moves backwards."""
        earlier = _T.last_used_at.is_(None) | (_T.last_used_at < at)
        one = update(tables.tokens).where(_T.id == token_id, earlier)
        self._all(one.values(last_used_at=at))


def _owned(row: Sequence[Any]) -> tuple[Token, Principal]:
    token, owner = split(row, TOKEN, PRINCIPAL)
    return token, owner


_S = tables.sign_ins.c
_SIGN_IN = Part(SignIn, list(_S))
# This runs with every request of a page. Building a statement costs more than running it.
_SIGNED_IN = (
    select_parts(_SIGN_IN, TOKEN, PRINCIPAL)
    .join(tables.tokens, _T.id == _S.token_id)
    .join(tables.principals, _P.id == _T.principal_id)
    .where(_S.id == bindparam("id"))
)


class SignIns(Ending):
    """Sign-ins, by their id: the public part."""

    ended = _S.ends_at

    def add(self, new: SignIn) -> None:
        """Store a sign-in; StoreError when the id is taken."""
        self._insert(tables.sign_ins, vars(new))

    def with_owner(self, sign_in_id: str) -> tuple[SignIn, Token, Principal] | None:
        """Return a sign-in, even one that has ended, with its token and principal."""
        row = self._all(_SIGNED_IN, id=sign_in_id).one_or_none()
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


_ST = tables.site_tables.c
_LOCK_SITE = (
    select(_P.id)
    .where(_P.role == Role.SITE, _P.name == bindparam("site"))
    .with_for_update(key_share=True)
)
_OF_SITE = select(tables.site_tables).where(_ST.site == bindparam("site"))
_ONE = _OF_SITE.where(_ST.table_id == bindparam("table_id"))
_ANY = select(exists().where(_ST.site == bindparam("site")))


class SiteTables(Repository):
    """The protected tables of sites."""

    def lock(self, site: str) -> None:
        """Let other transactions that lock the same site wait until this one ends.

        A transaction that writes the tables of a site takes this lock before it reads them.
        """
        self._all(_LOCK_SITE, site=site).all()

    def get(self, site: str, table_id: str) -> SiteTable | None:
        """Return what was accepted of a table; None if the site has not used it."""
        return self._one(SiteTable, _ONE, site=site, table_id=table_id)

    def any(self, site: str) -> bool:
        """Whether the site has used a table."""
        return bool(self._all(_ANY, site=site).scalar_one())

    def list(self, site: str, limit: int, after: str | None = None) -> Sequence[SiteTable]:
        """Return at most ``limit`` tables of a site by id, after the id ``after``."""
        query = _OF_SITE.order_by(_ST.table_id).limit(limit)
        if after is not None:
            query = query.where(_ST.table_id > after)
        return self._list(SiteTable, query, site=site)

    def put(self, table: SiteTable) -> None:
        """Write what was accepted of a table, in place of what was accepted before."""
        before = _ST.site == table.site, _ST.table_id == table.table_id
        self._all(delete(tables.site_tables).where(*before))
        self._insert(tables.site_tables, vars(table))
