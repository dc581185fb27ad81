"""Indexes for the lists, filters and the retention of a long history."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

NOT_SCRUBBED = sa.text("scrubbed_at IS NULL")
AUDIT = (["actor", "id"], ["action", "id"], ["actor", "action", "id"])


def upgrade() -> None:
    op.create_index(
        "ix_sessions_not_scrubbed",
        "sessions",
        ["ended_at"],
        sqlite_where=NOT_SCRUBBED,
        postgresql_where=NOT_SCRUBBED,
    )
    op.create_index("ix_sessions_state_id", "sessions", ["state", "id"])
    for columns in AUDIT:
        op.create_index(f"ix_audit_{'_'.join(columns)}", "audit", columns)


def downgrade() -> None:
    for columns in AUDIT:
        op.drop_index(f"ix_audit_{'_'.join(columns)}", "audit")
    op.drop_index("ix_sessions_state_id", "sessions")
    op.drop_index("ix_sessions_not_scrubbed", "sessions")
