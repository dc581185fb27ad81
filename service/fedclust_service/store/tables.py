"""The tables. Nothing outside ``store/`` imports them; `docs/data_model.md` explains them.

Most have the columns of a dataclass of `fedclust_service.domain`, which their rows become.

Deleted are only sessions that nobody joined, studies without a session, the engine's states of
scrubbed sessions, old notifications and old sign-ins. Times are aware and in UTC on both databases.
Text that the database compares or sorts uses the binary collation, so that both databases sort site
names as Python does.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeEngine

from fedclust.wire.codec import canonical_json
from fedclust_service.domain.access import AuditEntry, Principal, Token
from fedclust_service.domain.notification import Notification
from fedclust_service.domain.round import Addressee, Round, Submission
from fedclust_service.domain.session import Participation, Session, Study
from fedclust_service.domain.site_table import SiteTable
from fedclust_service.domain.tokens import SignIn

SCHEMA_REVISION = "0001"
"""The migration that makes exactly these tables: Alembic's head (a test compares)."""


#: A 64-bit integer; SQLite generates ids only in a column of type INTEGER.
WHOLE = BigInteger().with_variant(Integer(), "sqlite")
#: A short name or state, compared and sorted byte by byte on both databases, as SQLite does by
#: default. It has no maximum length: PostgreSQL would enforce it, SQLite would not.
WORD = Text().with_variant(Text(collation="C"), "postgresql")


def _stored(kind: type[StrEnum]) -> type[TypeDecorator[StrEnum]]:
    """Return the type of a column that holds the values of an enumeration."""

    class Stored(TypeDecorator[StrEnum]):
        impl = WORD
        cache_ok = True

        def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
            return None if value is None else str(value)

        def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
            return None if value is None else kind(value)

    return Stored


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC. SQLite has no time zones: it stores naive UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a stored time must be aware")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(
        self,
        value: datetime | None,
        dialect: Dialect,  # noqa: ARG002  # the signature is SQLAlchemy's
    ) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class CanonicalJson(TypeDecorator[Any]):
    """JSON as text with sorted keys and no spaces: the same bytes on both databases."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else canonical_json(value).decode()

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else json.loads(value)


class Names(CanonicalJson):
    """Names as a list in canonical JSON."""

    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else tuple(json.loads(value))


_Type: TypeAlias = TypeEngine[Any] | type[TypeEngine[Any]]
#: The columns of fields, by the fields' types.
_TYPES: Mapping[Any, _Type] = {
    str: WORD,
    int: WHOLE,
    float: Float,
    bool: Boolean,
    bytes: LargeBinary,
    datetime: UtcDateTime,
    tuple: Names,
    dict: CanonicalJson,
    Mapping: CanonicalJson,
}


def _columns(
    record: type, *, key: Collection[str] = ("id",), **types: _Type
) -> Iterator[Column[Any] | CheckConstraint]:
    """Yield a column for each field of a dataclass, and a check for each enumeration.

    ``types`` are the columns whose type does not follow from the field.
    """
    for name, hint in get_type_hints(record).items():
        kinds = set(get_args(hint) if isinstance(hint, UnionType) else (hint,))
        null = NoneType in kinds
        (kind,) = kinds - {NoneType}
        stored = types.get(name) or _TYPES.get(get_origin(kind) or kind) or _stored(kind)
        column = Column[Any](stored, primary_key=name in key, nullable=null)
        # A name in the call is made another kind of string: rows become records half as fast.
        column.name = column.key = name
        yield column
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            allowed = ", ".join(f"'{value.value}'" for value in kind)
            yield CheckConstraint(f"{name} IN ({allowed})", name=name)


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def _partial_index(name: str, column: str, condition: str) -> Index:
    where = text(condition)
    return Index(name, column, sqlite_where=where, postgresql_where=where)


principals = Table(
    "principals",
    metadata,
    *_columns(Principal, title=Text, email=Text),
    UniqueConstraint("role", "name"),
)
# Of a token's secret only the HMAC is stored; its key is not in the database.
tokens = Table(
    "tokens",
    metadata,
    *_columns(Token),
    ForeignKeyConstraint(["principal_id"], ["principals.id"]),
    Index(None, "principal_id"),
)
sign_ins = Table(
    "sign_ins",
    metadata,
    *_columns(SignIn),
    ForeignKeyConstraint(["token_id"], ["tokens.id"]),
    Index(None, "token_id"),
    Index(None, "ends_at"),
)
studies = Table(
    "studies",
    metadata,
    *_columns(Study),
    UniqueConstraint("name"),
    Index(None, "created_by", "id"),
)
# The sites that a study names.
study_sites = Table(
    "study_sites",
    metadata,
    Column("study_id", WHOLE, primary_key=True),
    Column("site", WORD, primary_key=True),
    ForeignKeyConstraint(["study_id"], ["studies.id"]),
    Index(None, "site", "study_id"),
)
sessions = Table(
    "sessions",
    metadata,
    *_columns(Session, method_version=Integer, deaths=Integer, stopped_because=Text, failure=Text),
    UniqueConstraint("name"),
    ForeignKeyConstraint(["study"], ["studies.name"]),
    Index(None, "study", "id"),
    Index(None, "state", "ended_at"),
    Index(None, "state", "id"),
    Index(None, "created_by", "id"),
    _partial_index("ix_sessions_not_scrubbed", "ended_at", "scrubbed_at IS NULL"),
)
participations = Table(
    "participations",
    metadata,
    *_columns(Participation, key=("session_id", "site")),
    ForeignKeyConstraint(["session_id"], ["sessions.id"]),
    Index(None, "site", "session_id"),
    _partial_index("ix_participations_refused_task", "session_id", "refused_task IS NOT NULL"),
)
site_tables = Table("site_tables", metadata, *_columns(SiteTable, key=("site", "table_id")))
# A round's lease is that of the process that aggregates it.
rounds = Table(
    "rounds",
    metadata,
    *_columns(Round, number=Integer, attempts=Integer, close_reason=Text),
    ForeignKeyConstraint(["session_id"], ["sessions.id"]),
    UniqueConstraint("session_id", "number"),
    CheckConstraint(
        "(lease_token IS NULL) = (lease_holder IS NULL)"
        " AND (lease_token IS NULL) = (lease_expires_at IS NULL)",
        name="lease_whole",
    ),
    CheckConstraint("lease_token IS NULL OR state = 'aggregating'", name="lease_state"),
    Index(None, "state", "deadline"),
)
addressees = Table(
    "addressees",
    metadata,
    *_columns(Addressee, key=("round_id", "site")),
    ForeignKeyConstraint(["round_id"], ["rounds.id"]),
)
# At most one row for each round and site.
submissions = Table(
    "submissions",
    metadata,
    Column("id", WHOLE, primary_key=True),
    *_columns(Submission),
    Column("payload_sha256", WORD),
    ForeignKeyConstraint(["session_id"], ["sessions.id"]),
    ForeignKeyConstraint(["round_id", "site"], ["addressees.round_id", "addressees.site"]),
    UniqueConstraint("round_id", "site"),
    Index(None, "session_id"),
)
# A crashed aggregation restarts from the state after the round before it.
states = Table(
    "states",
    metadata,
    Column("session_id", WHOLE, primary_key=True),
    Column("round_number", Integer, primary_key=True),
    Column("state", LargeBinary, nullable=False),
    Column("sha256", WORD),
    ForeignKeyConstraint(["session_id"], ["sessions.id"]),
)
# Provenance is separate, because it differs between platforms. The hash is that of the result
# followed by the provenance.
results = Table(
    "results",
    metadata,
    Column("session_id", WHOLE, primary_key=True),
    Column("completed_at", UtcDateTime, nullable=False),
    Column("result", LargeBinary, nullable=False),
    Column("provenance", LargeBinary, nullable=False),
    Column("sha256", WORD),
    # By K, what somebody calls the clusters.
    Column("cluster_names", CanonicalJson),
    ForeignKeyConstraint(["session_id"], ["sessions.id"]),
)
# Rows are only appended; the sealer adds number and hash once.
audit = Table(
    "audit",
    metadata,
    *_columns(AuditEntry),
    Index(None, "subject", "id"),
    Index(None, "actor", "id"),
    Index(None, "action", "id"),
    Index(None, "actor", "action", "id"),
    Index(None, "number", unique=True),
)
# The last sealed entry of the audit trail. One row.
audit_chain = Table(
    "audit_chain",
    metadata,
    Column("id", WHOLE, primary_key=True),
    Column("number", WHOLE, nullable=False),
    Column("hash", WORD, nullable=False),
)
# The outbox: a row for each notification, recipient and channel.
notifications = Table(
    "notifications",
    metadata,
    *_columns(Notification, attempts=Integer, failure=Text),
    UniqueConstraint("kind", "subject", "cause", "recipient"),
    Index(None, "state", "channel", "due_at"),
    Index(None, "ended_at"),
)
