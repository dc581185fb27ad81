"""Whether a site joined without answering outcomes, because its allowance has too few points."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("points_short", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("participations", column)


def downgrade() -> None:
    op.drop_column("participations", "points_short")
