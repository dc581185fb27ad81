"""Sessions that are held for an operator, and how often the aggregation of their round died."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

STATES = "state IN ('recruiting', 'running', {}'completed', 'failed', 'cancelled')"
KINDS = "kind IN ('invited', 'overdue', 'finished', 'failed', {}'token-expiring')"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("held_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column(
        "sessions", sa.Column("deaths", sa.Integer(), nullable=False, server_default=sa.text("0"))
    )
    _change("sessions", "ck_sessions_state", STATES, "", "'held', ")
    _change("notifications", "ck_notifications_kind", KINDS, "", "'held', ")


def downgrade() -> None:
    # A session that is held runs again: its round is aggregated again.
    op.execute("UPDATE sessions SET state = 'running', failure = NULL WHERE state = 'held'")
    op.execute("DELETE FROM notifications WHERE kind = 'held'")
    _change("sessions", "ck_sessions_state", STATES, "'held', ", "")
    _change("notifications", "ck_notifications_kind", KINDS, "'held', ", "")
    op.drop_column("sessions", "held_at")
    op.drop_column("sessions", "deaths")


def _change(table: str, name: str, rule: str, before: str, after: str) -> None:
    """Replace a check. SQLite keeps it as text: copying the table would break its references."""
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        op.drop_constraint(op.f(name), table, type_="check")
        op.create_check_constraint(op.f(name), table, rule.format(after))
        return
    (version,) = connection.exec_driver_sql("PRAGMA schema_version").one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    changed = connection.exec_driver_sql(
        "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = ?",
        (rule.format(before), rule.format(after), table),
    )
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
    if changed.rowcount != 1:
        raise RuntimeError(f"{table} has another check than {name}")
