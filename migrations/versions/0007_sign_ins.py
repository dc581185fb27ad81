"""Sign-ins: browsers that have exchanged a token for a cookie."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "sign_ins",
        sa.Column("id", WORD, nullable=False),
        sa.Column("token_id", WORD, nullable=False),
        sa.Column("secret_hmac", WORD, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_sign_ins"),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name="fk_sign_ins_token_id_tokens"),
    )
    op.create_index("ix_sign_ins_token_id", "sign_ins", ["token_id"])
    op.create_index("ix_sign_ins_ends_at", "sign_ins", ["ends_at"])


def downgrade() -> None:
    op.drop_table("sign_ins")
