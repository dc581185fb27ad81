"""Whether a site joined with persons whom its tables did not know."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("other_persons", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("participations", column)


def downgrade() -> None:
    op.drop_column("participations", "other_persons")
