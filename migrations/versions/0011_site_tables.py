"""The change of each site's protected table that was accepted last.

Tables that sites have used are entered with number 0: their next join says which heads they have.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "site_tables",
        sa.Column("site", WORD, nullable=False),
        sa.Column("table_id", WORD, nullable=False),
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("head", WORD, nullable=False),
        sa.Column("accepted_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("site", "table_id", name="pk_site_tables"),
    )
    op.execute(
        "INSERT INTO site_tables (site, table_id, number, head, accepted_at) "
        "SELECT site, table_id, 0, '0000000000000000', max(coalesce(joined_at, invited_at)) "
        "FROM participations WHERE table_id IS NOT NULL GROUP BY site, table_id"
    )
    op.drop_index("ix_participations_site_table_id", "participations")


def downgrade() -> None:
    op.create_index("ix_participations_site_table_id", "participations", ["site", "table_id"])
    op.drop_table("site_tables")
