"""Participations name the site's protected table, and policies as definitions do."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
RENAMED = (("differencing_off", "protection_none"), ("min_cluster_size", "min_group_size"))


def upgrade() -> None:
    for before, after in RENAMED:
        op.execute(f"ALTER TABLE participations RENAME COLUMN {before} TO {after}")
    op.add_column("participations", sa.Column("table_id", WORD, nullable=True))
    op.add_column(
        "participations",
        sa.Column("separate_groups", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.create_index("ix_participations_site_table_id", "participations", ["site", "table_id"])


def downgrade() -> None:
    op.drop_index("ix_participations_site_table_id", "participations")
    op.drop_column("participations", "separate_groups")
    op.drop_column("participations", "table_id")
    for before, after in RENAMED:
        op.execute(f"ALTER TABLE participations RENAME COLUMN {after} TO {before}")
