"""Participations name what a session may ask of a site as its definition does."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

RENAMED = (("differencing_off", "protection_none"), ("min_cluster_size", "min_group_size"))


def upgrade() -> None:
    for before, after in RENAMED:
        op.execute(f"ALTER TABLE participations RENAME COLUMN {before} TO {after}")


def downgrade() -> None:
    for before, after in RENAMED:
        op.execute(f"ALTER TABLE participations RENAME COLUMN {after} TO {before}")
