"""Sites refuse tasks, and say which rule a task breaks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
BEFORE = "state IN ('invited', 'joined', 'left', 'excluded')"
AFTER = "state IN ('invited', 'joined', 'left', 'excluded', 'refused')"
REFUSED = sa.text("refused_task IS NOT NULL")


def upgrade() -> None:
    with op.batch_alter_table("participations") as table:
        table.add_column(sa.Column("refused_task", WORD, nullable=True))
        table.drop_constraint(op.f("ck_participations_state"))
        table.create_check_constraint(op.f("ck_participations_state"), AFTER)
    op.create_index(
        "ix_participations_refused_task",
        "participations",
        ["session_id"],
        sqlite_where=REFUSED,
        postgresql_where=REFUSED,
    )


def downgrade() -> None:
    op.execute("UPDATE participations SET state = 'left' WHERE state = 'refused'")
    op.drop_index("ix_participations_refused_task", "participations")
    with op.batch_alter_table("participations") as table:
        table.drop_column("refused_task")
        table.drop_constraint(op.f("ck_participations_state"))
        table.create_check_constraint(op.f("ck_participations_state"), BEFORE)
