"""The audit trail's chain: a number and a hash for each entry, and the head of the chain."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    # Entries written before are numbered and chained by the first sealer that starts.
    op.add_column("audit", sa.Column("number", WHOLE, nullable=True))
    op.add_column("audit", sa.Column("hash", WORD, nullable=True))
    op.create_index("ix_audit_number", "audit", ["number"], unique=True)
    op.create_index("ix_audit_subject_number", "audit", ["subject", "number"])
    chain = op.create_table(
        "audit_chain",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("number", WHOLE, nullable=False),
        sa.Column("hash", WORD, nullable=False),
        sa.Column("lease_holder", WORD, nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_audit_chain"),
        sa.CheckConstraint(
            "(lease_holder IS NULL) = (lease_expires_at IS NULL)",
            name=op.f("ck_audit_chain_lease_whole"),
        ),
    )
    op.bulk_insert(chain, [{"id": 1, "number": 0, "hash": "0" * 64}])


def downgrade() -> None:
    op.drop_table("audit_chain")
    op.drop_index("ix_audit_subject_number", "audit")
    op.drop_index("ix_audit_number", "audit")
    op.drop_column("audit", "hash")
    op.drop_column("audit", "number")
