"""The SHA-256 of stored bytes that an aggregation rests on, so that damage to them is found."""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
# Each column, and what is hashed for it, one after the other.
COLUMNS = (
    ("submissions", "payload_sha256", ("payload",)),
    ("states", "sha256", ("state",)),
    ("results", "sha256", ("result", "provenance")),
)


def upgrade() -> None:
    bind = op.get_bind()
    sqlite = bind.dialect.name == "sqlite"
    if sqlite:
        bind.connection.driver_connection.create_function("sha256_hex", -1, _sha256_hex)
    for table, column, hashed in COLUMNS:
        op.add_column(table, sa.Column(column, WORD, nullable=True))
        digest = "encode(sha256(" + " || ".join(hashed) + "), 'hex')"
        if sqlite:
            digest = "sha256_hex(" + ", ".join(hashed) + ")"
        op.execute(f"UPDATE {table} SET {column} = {digest}")  # noqa: S608  # constants


def downgrade() -> None:
    for table, column, _ in reversed(COLUMNS):
        op.drop_column(table, column)


def _sha256_hex(*parts: bytes | None) -> str | None:
    there = [part for part in parts if part is not None]
    return hashlib.sha256(b"".join(there)).hexdigest() if there else None
