"""The tables. Nothing outside ``store/`` imports them; `docs/data_model.md` explains them.

Deleted are only sessions that nobody joined, studies without a session, the engine's states of
scrubbed sessions, old notifications and old sign-ins. Times are aware and in UTC on both databases.
Text that the database compares or sorts uses the binary collation, so that both databases sort site
names as Python does.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar, cast

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
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
from sqlmodel import Field, SQLModel

from fedclust.wire.codec import canonical_json
from fedclust_service.domain.access import Role
from fedclust_service.domain.notification import Channel, DeliveryState, NotificationKind
from fedclust_service.domain.round import RoundState
from fedclust_service.domain.session import ParticipationState, SessionState

SCHEMA_REVISION = "0001"
"""The migration that makes exactly these tables: Alembic's head (a test compares)."""

NAMING = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}


class Whole(TypeDecorator[int]):
    """A 64-bit integer; SQLite generates ids only in a column of type INTEGER."""

    impl = BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return Integer() if dialect.name == "sqlite" else BigInteger()


class Word(TypeDecorator[str]):
    """A short name or state, compared and sorted byte by byte on both databases.

    It has no maximum length: PostgreSQL would enforce it, SQLite would not.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        # SQLite's default collation is binary already.
        return Text(collation="C") if dialect.name == "postgresql" else Text()


def _stored(kind: type[StrEnum]) -> type[TypeDecorator[StrEnum]]:
    """Return the type of a column that holds the values of an enumeration."""

    class Stored(TypeDecorator[StrEnum]):
        impl = Word
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


class Names(TypeDecorator[tuple[str, ...]]):
    """Names as a list in canonical JSON."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:  # noqa: ARG002
        return canonical_json(list(value)).decode()

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else tuple(json.loads(value))


class CanonicalJson(TypeDecorator[Any]):
    """JSON as text with sorted keys and no spaces: the same bytes on both databases."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else canonical_json(value).decode()

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else json.loads(value)


def _one_of(column: str, values: type[StrEnum]) -> CheckConstraint:
    allowed = ", ".join(f"'{value.value}'" for value in values)
    return CheckConstraint(f"{column} IN ({allowed})", name=column)


class Row(SQLModel):
    """The base of all tables, with metadata that names every constraint."""

    metadata: ClassVar[MetaData] = MetaData(naming_convention=NAMING)


class PrincipalRow(Row, table=True):
    """Operators, analysts and sites."""

    __tablename__ = "principals"
    __table_args__ = (UniqueConstraint("role", "name"), _one_of("role", Role))

    id: int | None = Field(default=None, primary_key=True, sa_type=Whole)
    role: Role = Field(sa_type=_stored(Role))
    name: str = Field(sa_type=Word)
    title: str = Field(sa_type=Text)
    disabled: bool
    created_at: datetime = Field(sa_type=UtcDateTime)
    last_seen_at: datetime | None = Field(sa_type=UtcDateTime)
    email: str | None = Field(sa_type=Text)


class TokenRow(Row, table=True):
    """Tokens. Of the secret only the HMAC is stored; its key is not in the database."""

    __tablename__ = "tokens"
    __table_args__ = (
        ForeignKeyConstraint(["principal_id"], ["principals.id"]),
        Index(None, "principal_id"),
    )

    id: str = Field(primary_key=True, sa_type=Word)
    principal_id: int = Field(sa_type=Whole)
    secret_hmac: str = Field(sa_type=Word)
    created_at: datetime = Field(sa_type=UtcDateTime)
    expires_at: datetime = Field(sa_type=UtcDateTime)
    revoked_at: datetime | None = Field(sa_type=UtcDateTime)
    last_used_at: datetime | None = Field(sa_type=UtcDateTime)


class SignInRow(Row, table=True):
    """Sign-ins: browsers that have exchanged a token for a cookie. Of the cookie only the HMAC."""

    __tablename__ = "sign_ins"
    __table_args__ = (
        ForeignKeyConstraint(["token_id"], ["tokens.id"]),
        Index(None, "token_id"),
        Index(None, "ends_at"),
    )

    id: str = Field(primary_key=True, sa_type=Word)
    token_id: str = Field(sa_type=Word)
    secret_hmac: str = Field(sa_type=Word)
    created_at: datetime = Field(sa_type=UtcDateTime)
    last_used_at: datetime = Field(sa_type=UtcDateTime)
    ends_at: datetime = Field(sa_type=UtcDateTime)
    ended_at: datetime | None = Field(sa_type=UtcDateTime)


class StudyRow(Row, table=True):
    """Studies: what several sessions have in common."""

    __tablename__ = "studies"
    __table_args__ = (UniqueConstraint("name"), Index(None, "created_by", "id"))

    id: int | None = Field(default=None, primary_key=True, sa_type=Whole)
    name: str = Field(sa_type=Word)
    definition: bytes = Field(sa_type=LargeBinary)
    definition_sha256: str = Field(sa_type=Word)
    created_by: str = Field(sa_type=Word)
    created_at: datetime = Field(sa_type=UtcDateTime)


class StudySiteRow(Row, table=True):
    """The sites that a study names."""

    __tablename__ = "study_sites"
    __table_args__ = (
        ForeignKeyConstraint(["study_id"], ["studies.id"]),
        Index(None, "site", "study_id"),
    )

    study_id: int = Field(primary_key=True, sa_type=Whole)
    site: str = Field(primary_key=True, sa_type=Word)


class SessionRow(Row, table=True):
    """Sessions. ``version`` increases with every change that a request may wait for."""

    __tablename__ = "sessions"
    __table_args__ = (
        UniqueConstraint("name"),
        ForeignKeyConstraint(["study"], ["studies.name"]),
        Index(None, "study", "id"),
        _one_of("state", SessionState),
        Index(None, "state", "ended_at"),
        Index(None, "state", "id"),
        Index(None, "created_by", "id"),
        Index(
            "ix_sessions_not_scrubbed",
            "ended_at",
            sqlite_where=text("scrubbed_at IS NULL"),
            postgresql_where=text("scrubbed_at IS NULL"),
        ),
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=Whole)
    name: str = Field(sa_type=Word)
    algorithm: str = Field(sa_type=Word)
    method_version: int
    definition: bytes = Field(sa_type=LargeBinary)
    definition_sha256: str = Field(sa_type=Word)
    request_sha256: str = Field(sa_type=Word)
    created_by: str = Field(sa_type=Word)
    state: SessionState = Field(sa_type=_stored(SessionState))
    version: int = Field(sa_type=Whole)
    created_at: datetime = Field(sa_type=UtcDateTime)
    started_at: datetime | None = Field(sa_type=UtcDateTime)
    ended_at: datetime | None = Field(sa_type=UtcDateTime)
    stopped_because: str | None = Field(sa_type=Text)
    failure: str | None = Field(sa_type=Text)
    scrubbed_at: datetime | None = Field(sa_type=UtcDateTime)
    study: str | None = Field(sa_type=Word)
    held_at: datetime | None = Field(sa_type=UtcDateTime)
    deaths: int


class ParticipationRow(Row, table=True):
    """One site in one session, with its consents and declarations."""

    __tablename__ = "participations"
    __table_args__ = (
        ForeignKeyConstraint(["session_id"], ["sessions.id"]),
        _one_of("state", ParticipationState),
        Index(None, "site", "session_id"),
        Index(
            "ix_participations_refused_task",
            "session_id",
            sqlite_where=text("refused_task IS NOT NULL"),
            postgresql_where=text("refused_task IS NOT NULL"),
        ),
    )

    session_id: int = Field(primary_key=True, sa_type=Whole)
    site: str = Field(primary_key=True, sa_type=Word)
    state: ParticipationState = Field(sa_type=_stored(ParticipationState))
    invited_at: datetime = Field(sa_type=UtcDateTime)
    definition_sha256: str | None = Field(sa_type=Word)
    two_sites_with: str | None = Field(sa_type=Word)
    protection_none: bool
    features: tuple[str, ...] = Field(sa_type=Names)
    min_group_size: int | None = Field(sa_type=Whole)
    size_band: str | None = Field(sa_type=Word)
    sdk_version: str | None = Field(sa_type=Word)
    joined_at: datetime | None = Field(sa_type=UtcDateTime)
    left_at: datetime | None = Field(sa_type=UtcDateTime)
    table_id: str | None = Field(sa_type=Word)
    separate_groups: bool
    refused_task: str | None = Field(sa_type=Word)
    other_persons: bool
    points_short: bool


class SiteTableRow(Row, table=True):
    """The change of a site's protected table that was accepted last."""

    __tablename__ = "site_tables"

    site: str = Field(primary_key=True, sa_type=Word)
    table_id: str = Field(primary_key=True, sa_type=Word)
    number: int = Field(sa_type=Whole)
    head: str = Field(sa_type=Word)
    accepted_at: datetime = Field(sa_type=UtcDateTime)


class RoundRow(Row, table=True):
    """Rounds, and the lease of the process that aggregates one."""

    __tablename__ = "rounds"
    __table_args__ = (
        ForeignKeyConstraint(["session_id"], ["sessions.id"]),
        UniqueConstraint("session_id", "number"),
        _one_of("state", RoundState),
        CheckConstraint(
            "(lease_token IS NULL) = (lease_holder IS NULL)"
            " AND (lease_token IS NULL) = (lease_expires_at IS NULL)",
            name="lease_whole",
        ),
        CheckConstraint("lease_token IS NULL OR state = 'aggregating'", name="lease_state"),
        Index(None, "state", "deadline"),
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=Whole)
    session_id: int = Field(sa_type=Whole)
    number: int
    phase: str = Field(sa_type=Word)
    state: RoundState = Field(sa_type=_stored(RoundState))
    needs_all: bool
    opened_at: datetime = Field(sa_type=UtcDateTime)
    deadline: datetime = Field(sa_type=UtcDateTime)
    overdue_since: datetime | None = Field(sa_type=UtcDateTime)
    closed_at: datetime | None = Field(sa_type=UtcDateTime)
    close_reason: str | None = Field(sa_type=Text)
    lease_token: str | None = Field(sa_type=Word)
    lease_holder: str | None = Field(sa_type=Word)
    lease_expires_at: datetime | None = Field(sa_type=UtcDateTime)
    attempts: int
    aggregation_s: float | None
    metrics: dict[str, float] | None = Field(sa_type=CanonicalJson)
    # Last, so that SQLite reads the other columns without reading a long value's pages.
    common: bytes = Field(sa_type=LargeBinary)


class AddresseeRow(Row, table=True):
    """The sites that a round addresses, each with its part of the task."""

    __tablename__ = "addressees"
    __table_args__ = (ForeignKeyConstraint(["round_id"], ["rounds.id"]),)

    round_id: int = Field(primary_key=True, sa_type=Whole)
    site: str = Field(primary_key=True, sa_type=Word)
    task_digest: str = Field(sa_type=Word)
    released: bool
    site_part: bytes = Field(sa_type=LargeBinary)


class SubmissionRow(Row, table=True):
    """The sites' answers: at most one row for each round and site."""

    __tablename__ = "submissions"
    __table_args__ = (
        ForeignKeyConstraint(["session_id"], ["sessions.id"]),
        ForeignKeyConstraint(["round_id", "site"], ["addressees.round_id", "addressees.site"]),
        UniqueConstraint("round_id", "site"),
        Index(None, "session_id"),
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=Whole)
    session_id: int = Field(sa_type=Whole)
    round_id: int = Field(sa_type=Whole)
    site: str = Field(sa_type=Word)
    phase: str = Field(sa_type=Word)
    sha256: str = Field(sa_type=Word)
    size: int = Field(sa_type=Whole)
    empty: bool
    received_at: datetime = Field(sa_type=UtcDateTime)
    payload: bytes | None = Field(sa_type=LargeBinary)
    payload_sha256: str | None = Field(sa_type=Word)


class StateRow(Row, table=True):
    """The engine's state after every round, from which a crashed aggregation restarts."""

    __tablename__ = "states"
    __table_args__ = (ForeignKeyConstraint(["session_id"], ["sessions.id"]),)

    session_id: int = Field(primary_key=True, sa_type=Whole)
    round_number: int = Field(primary_key=True, sa_type=Integer)
    state: bytes = Field(sa_type=LargeBinary)
    sha256: str | None = Field(sa_type=Word)


class ResultRow(Row, table=True):
    """Results of completed sessions. Provenance is separate: it differs between platforms.

    ``sha256`` is the hash of the result followed by the provenance.
    """

    __tablename__ = "results"
    __table_args__ = (ForeignKeyConstraint(["session_id"], ["sessions.id"]),)

    session_id: int = Field(primary_key=True, sa_type=Whole)
    completed_at: datetime = Field(sa_type=UtcDateTime)
    result: bytes = Field(sa_type=LargeBinary)
    provenance: bytes = Field(sa_type=LargeBinary)
    sha256: str | None = Field(sa_type=Word)


class AuditRow(Row, table=True):
    """The audit trail. Rows are only appended; the sealer adds ``number`` and ``hash`` once."""

    __tablename__ = "audit"
    __table_args__ = (
        Index(None, "subject", "id"),
        Index(None, "actor", "id"),
        Index(None, "action", "id"),
        Index(None, "actor", "action", "id"),
        Index(None, "number", unique=True),
        Index(None, "subject", "number"),
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=Whole)
    at: datetime = Field(sa_type=UtcDateTime)
    actor: str = Field(sa_type=Word)
    action: str = Field(sa_type=Word)
    subject: str = Field(sa_type=Word)
    details: dict[str, Any] = Field(sa_type=CanonicalJson)
    number: int | None = Field(sa_type=Whole)
    hash: str | None = Field(sa_type=Word)


class ChainRow(Row, table=True):
    """The last sealed entry of the audit trail and the sealer's lease. One row."""

    __tablename__ = "audit_chain"
    __table_args__ = (
        CheckConstraint("(lease_holder IS NULL) = (lease_expires_at IS NULL)", name="lease_whole"),
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=Whole)
    number: int = Field(sa_type=Whole)
    hash: str = Field(sa_type=Word)
    lease_holder: str | None = Field(sa_type=Word)
    lease_expires_at: datetime | None = Field(sa_type=UtcDateTime)


class NotificationRow(Row, table=True):
    """The outbox: a row for each notification, recipient and channel."""

    __tablename__ = "notifications"
    __table_args__ = (
        UniqueConstraint("kind", "subject", "cause", "recipient"),
        _one_of("kind", NotificationKind),
        _one_of("channel", Channel),
        _one_of("state", DeliveryState),
        Index(None, "state", "channel", "due_at"),
        Index(None, "ended_at"),
    )

    id: str = Field(primary_key=True, sa_type=Word)
    kind: NotificationKind = Field(sa_type=_stored(NotificationKind))
    subject: str = Field(sa_type=Word)
    cause: str = Field(sa_type=Word)
    recipient: str = Field(sa_type=Word)
    channel: Channel = Field(sa_type=_stored(Channel))
    body: dict[str, Any] = Field(sa_type=CanonicalJson)
    state: DeliveryState = Field(sa_type=_stored(DeliveryState))
    created_at: datetime = Field(sa_type=UtcDateTime)
    due_at: datetime = Field(sa_type=UtcDateTime)
    attempts: int
    lease_token: str | None = Field(sa_type=Word)
    ended_at: datetime | None = Field(sa_type=UtcDateTime)
    failure: str | None = Field(sa_type=Text)


def _sql_table(row: type[Row]) -> Table:
    return cast(Table, row.__table__)  # type: ignore[attr-defined]  # SQLModel sets it at run time


metadata = Row.metadata
principals = _sql_table(PrincipalRow)
tokens = _sql_table(TokenRow)
sign_ins = _sql_table(SignInRow)
studies = _sql_table(StudyRow)
study_sites = _sql_table(StudySiteRow)
sessions = _sql_table(SessionRow)
participations = _sql_table(ParticipationRow)
site_tables = _sql_table(SiteTableRow)
rounds = _sql_table(RoundRow)
addressees = _sql_table(AddresseeRow)
submissions = _sql_table(SubmissionRow)
states = _sql_table(StateRow)
results = _sql_table(ResultRow)
audit = _sql_table(AuditRow)
audit_chain = _sql_table(ChainRow)
notifications = _sql_table(NotificationRow)
