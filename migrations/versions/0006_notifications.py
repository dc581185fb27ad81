"""Notifications that wait to be sent, and e-mail addresses of accounts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
KINDS = "'invited', 'overdue', 'finished', 'failed', 'token-expiring'"


def upgrade() -> None:
    op.add_column("principals", sa.Column("email", sa.Text(), nullable=True))
    op.create_table(
        "notifications",
        sa.Column("id", WORD, nullable=False),
        sa.Column("kind", WORD, nullable=False),
        sa.Column("subject", WORD, nullable=False),
        sa.Column("cause", WORD, nullable=False),
        sa.Column("recipient", WORD, nullable=False),
        sa.Column("channel", WORD, nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease_token", WORD, nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_notifications"),
        sa.UniqueConstraint(
            *("kind", "subject", "cause", "recipient"),
            name=op.f("uq_notifications_kind_subject_cause_recipient"),
        ),
        sa.CheckConstraint(f"kind IN ({KINDS})", name=op.f("ck_notifications_kind")),
        sa.CheckConstraint(
            "channel IN ('email', 'webhook')", name=op.f("ck_notifications_channel")
        ),
        sa.CheckConstraint(
            "state IN ('waiting', 'sent', 'failed')", name=op.f("ck_notifications_state")
        ),
    )
    op.create_index(
        "ix_notifications_state_channel_due_at", "notifications", ["state", "channel", "due_at"]
    )
    op.create_index("ix_notifications_ended_at", "notifications", ["ended_at"])


def downgrade() -> None:
    op.drop_table("notifications")
    op.drop_column("principals", "email")
