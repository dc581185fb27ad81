"""Studies, and which of them a session belongs to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "studies",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("name", WORD, nullable=False),
        sa.Column("definition", sa.LargeBinary(), nullable=False),
        sa.Column("definition_sha256", WORD, nullable=False),
        sa.Column("created_by", WORD, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_studies"),
        sa.UniqueConstraint("name", name="uq_studies_name"),
    )
    op.create_index("ix_studies_created_by_id", "studies", ["created_by", "id"])
    op.create_table(
        "study_sites",
        sa.Column("study_id", WHOLE, nullable=False),
        sa.Column("site", WORD, nullable=False),
        sa.PrimaryKeyConstraint("study_id", "site", name="pk_study_sites"),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name="fk_study_sites_study_id_studies"
        ),
    )
    op.create_index("ix_study_sites_site_study_id", "study_sites", ["site", "study_id"])
    # SQLite adds a foreign key only together with its column.
    word = "TEXT" if op.get_bind().dialect.name == "sqlite" else 'TEXT COLLATE "C"'
    op.execute(
        f"ALTER TABLE sessions ADD COLUMN study {word}"
        " CONSTRAINT fk_sessions_study_studies REFERENCES studies (name)"
    )
    op.create_index("ix_sessions_study_id", "sessions", ["study", "id"])


def downgrade() -> None:
    op.drop_index("ix_sessions_study_id", "sessions")
    op.drop_column("sessions", "study")
    op.drop_table("study_sites")
    op.drop_table("studies")
