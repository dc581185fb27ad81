"""Operators, analysts, sites and their tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import Connection, bindparam, select, update

from fedclust_service.domain.access import Principal, Role, Token
from fedclust_service.store import tables
from fedclust_service.store._sql import Row, insert_unless_there, labelled, names, split
from fedclust_service.store.errors import AlreadyExists

# This runs with every request. Building a statement costs more than running it.
_OWNER = (
    select(tables.tokens, *labelled(tables.principals.c))
    .join(tables.principals, tables.principals.c.id == tables.tokens.c.principal_id)
    .where(tables.tokens.c.id == bindparam("id"))
)
TOKEN_COLUMNS, PRINCIPAL_COLUMNS = names(tables.tokens.c), names(tables.principals.c)


class Principals:
    """Operators, analysts and sites, by role and name. They are never deleted."""

    def __init__(self, connection: Connection, now: datetime) -> None:
        self._connection = connection
        self._now = now

    def add(self, role: Role, name: str, title: str) -> Principal:
        """Register a principal, enabled; AlreadyExists when the role has one of that name."""
        values = {
            "role": role.value,
            "name": name,
            "title": title,
            "disabled": False,
            "created_at": self._now,
        }
        if not insert_unless_there(self._connection, tables.principals, values, ("role", "name")):
            raise AlreadyExists(f"a principal with role {role.value} has that name")
        added = self.get(role, name)
        assert added is not None  # noqa: S101  # inserted in this transaction
        return added

    def get(self, role: Role, name: str) -> Principal | None:
        """Return the principal of a role by its name."""
        t = tables.principals
        query = select(t).where(t.c.role == role.value, t.c.name == name)
        row = self._connection.execute(query).mappings().one_or_none()
        return to_principal(row) if row else None

    def list(self, role: Role, limit: int, after: str | None = None) -> Sequence[Principal]:
        """Return at most ``limit`` principals of a role by name, after the name ``after``."""
        t = tables.principals
        query = select(t).where(t.c.role == role.value).order_by(t.c.name).limit(limit)
        if after is not None:
            query = query.where(t.c.name > after)
        return [to_principal(row) for row in self._connection.execute(query).mappings()]

    def existing(self, role: Role, names: Collection[str]) -> frozenset[str]:
        """Return which of ``names`` a role has, including disabled ones."""
        t = tables.principals
        query = select(t.c.name).where(t.c.role == role.value, t.c.name.in_(sorted(set(names))))
        return frozenset(self._connection.execute(query).scalars())

    def update(self, principal: Principal) -> None:
        """Write ``title`` and ``disabled``."""
        t = tables.principals
        self._connection.execute(
            update(t)
            .where(t.c.id == principal.id)
            .values(title=principal.title, disabled=principal.disabled)
        )

    def lock(self, role: Role) -> None:
        """Lock all principals of a role until this transaction ends.

        On SQLite a write transaction excludes all others anyway.
        """
        t = tables.principals
        query = select(t.c.id).where(t.c.role == role.value).order_by(t.c.id).with_for_update()
        self._connection.execute(query).all()

    def touch_seen(self, principal_id: int, at: datetime) -> None:
        """Record when a principal was last seen; the time never moves backwards."""
        t = tables.principals
        self._connection.execute(
            update(t)
            .where(t.c.id == principal_id)
            .where(t.c.last_seen_at.is_(None) | (t.c.last_seen_at < at))
            .values(last_seen_at=at)
        )


class Tokens:
    """Tokens, by their id: the public part."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, token: Token) -> None:
        """Store a token; AlreadyExists when the id is taken."""
        if not insert_unless_there(self._connection, tables.tokens, vars(token), ("id",)):
            raise AlreadyExists("a token has that id")

    def get(self, token_id: str) -> Token | None:
        """Return a token by its id, even a revoked or expired one."""
        found = self.with_owner(token_id)
        return found[0] if found else None

    def with_owner(self, token_id: str) -> tuple[Token, Principal] | None:
        """Return a token as `get` does, with its principal."""
        row = self._connection.execute(_OWNER, {"id": token_id}).one_or_none()
        if row is None:
            return None
        shown, owner = split(row, TOKEN_COLUMNS, PRINCIPAL_COLUMNS)
        return to_token(shown), to_principal(owner)

    def list_for(self, principal_id: int) -> Sequence[Token]:
        """Return all tokens of a principal, oldest first."""
        t = tables.tokens
        query = select(t).where(t.c.principal_id == principal_id).order_by(t.c.created_at, t.c.id)
        return [to_token(row) for row in self._connection.execute(query).mappings()]

    def any_valid(self, role: Role, at: datetime) -> bool:
        """Whether an enabled principal of a role has a token that is valid at a time."""
        t, p = tables.tokens, tables.principals
        query = (
            select(t.c.id)
            .join(p, p.c.id == t.c.principal_id)
            .where(p.c.role == role.value, p.c.disabled.is_(False))
            .where(t.c.revoked_at.is_(None), t.c.expires_at > at)
            .limit(1)
        )
        return self._connection.execute(query).first() is not None

    def revoke(self, token_id: str, at: datetime) -> bool:
        """Revoke a token; False if there is none or it was revoked before."""
        t = tables.tokens
        done = self._connection.execute(
            update(t).where(t.c.id == token_id, t.c.revoked_at.is_(None)).values(revoked_at=at)
        )
        return done.rowcount == 1

    def touch_used(self, token_id: str, at: datetime) -> None:
        """Record when a token was last used; the time never moves backwards."""
        t = tables.tokens
        self._connection.execute(
            update(t)
            .where(t.c.id == token_id)
            .where(t.c.last_used_at.is_(None) | (t.c.last_used_at < at))
            .values(last_used_at=at)
        )


def to_principal(row: Row) -> Principal:
    """Return a principal from its columns."""
    return Principal(**{**row, "role": Role(row["role"])})


def to_token(row: Row) -> Token:
    """Return a token from its columns."""
    return Token(**row)
