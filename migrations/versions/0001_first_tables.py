"""The first tables: principals, sessions, rounds, submissions, states, results, audit."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# SQLite gives rising numbers only to INTEGER; PostgreSQL sorts by language unless told not to.
WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.DateTime(timezone=True)


def _column(name: str, kind: Any, *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def upgrade() -> None:
    op.create_table(
        "principals",
        _column("id", WHOLE),
        _column("role", WORD),
        _column("name", WORD),
        _column("title", sa.Text()),
        _column("disabled", sa.Boolean()),
        _column("created_at", TIME),
        _column("last_seen_at", TIME, null=True),
        sa.PrimaryKeyConstraint("id", name="pk_principals"),
        sa.UniqueConstraint("role", "name", name="uq_principals_role_name"),
        sa.CheckConstraint(
            "role IN ('operator', 'analyst', 'site')", name=op.f("ck_principals_role")
        ),
    )
    op.create_table(
        "tokens",
        _column("id", WORD),
        _column("principal_id", WHOLE),
        _column("secret_hmac", WORD),
        _column("created_at", TIME),
        _column("expires_at", TIME),
        _column("revoked_at", TIME, null=True),
        _column("last_used_at", TIME, null=True),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.ForeignKeyConstraint(
            ["principal_id"], ["principals.id"], name="fk_tokens_principal_id_principals"
        ),
    )
    op.create_index("ix_tokens_principal_id", "tokens", ["principal_id"])
    op.create_table(
        "sessions",
        _column("id", WHOLE),
        _column("name", WORD),
        _column("algorithm", WORD),
        _column("method_version", sa.Integer()),
        _column("definition", sa.LargeBinary()),
        _column("definition_sha256", WORD),
        _column("request_sha256", WORD),
        _column("created_by", WORD),
        _column("state", WORD),
        _column("version", WHOLE),
        _column("created_at", TIME),
        _column("started_at", TIME, null=True),
        _column("ended_at", TIME, null=True),
        _column("stopped_because", sa.Text(), null=True),
        _column("failure", sa.Text(), null=True),
        _column("scrubbed_at", TIME, null=True),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        sa.UniqueConstraint("name", name="uq_sessions_name"),
        sa.CheckConstraint(
            "state IN ('recruiting', 'running', 'completed', 'failed', 'cancelled')",
            name=op.f("ck_sessions_state"),
        ),
    )
    op.create_index("ix_sessions_state_ended_at", "sessions", ["state", "ended_at"])
    op.create_index("ix_sessions_created_by_id", "sessions", ["created_by", "id"])
    op.create_table(
        "participations",
        _column("session_id", WHOLE),
        _column("site", WORD),
        _column("state", WORD),
        _column("invited_at", TIME),
        _column("definition_sha256", WORD, null=True),
        _column("two_sites_with", WORD, null=True),
        _column("differencing_off", sa.Boolean()),
        _column("features", sa.Text()),
        _column("min_cluster_size", WHOLE, null=True),
        _column("size_band", WORD, null=True),
        _column("sdk_version", WORD, null=True),
        _column("joined_at", TIME, null=True),
        _column("left_at", TIME, null=True),
        sa.PrimaryKeyConstraint("session_id", "site", name="pk_participations"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_participations_session_id_sessions"
        ),
        sa.CheckConstraint(
            "state IN ('invited', 'joined', 'left', 'excluded')",
            name=op.f("ck_participations_state"),
        ),
    )
    op.create_index("ix_participations_site_session_id", "participations", ["site", "session_id"])
    op.create_table(
        "rounds",
        _column("id", WHOLE),
        _column("session_id", WHOLE),
        _column("number", sa.Integer()),
        _column("phase", WORD),
        _column("state", WORD),
        _column("needs_all", sa.Boolean()),
        _column("opened_at", TIME),
        _column("deadline", TIME),
        _column("overdue_since", TIME, null=True),
        _column("closed_at", TIME, null=True),
        _column("close_reason", sa.Text(), null=True),
        _column("lease_token", WORD, null=True),
        _column("lease_holder", WORD, null=True),
        _column("lease_expires_at", TIME, null=True),
        _column("attempts", sa.Integer()),
        _column("aggregation_s", sa.Float(), null=True),
        _column("metrics", sa.Text(), null=True),
        _column("common", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("id", name="pk_rounds"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_rounds_session_id_sessions"
        ),
        sa.UniqueConstraint("session_id", "number", name="uq_rounds_session_id_number"),
        sa.CheckConstraint(
            "state IN ('collecting', 'aggregating', 'closed', 'failed')",
            name=op.f("ck_rounds_state"),
        ),
        sa.CheckConstraint(
            "(lease_token IS NULL) = (lease_holder IS NULL)"
            " AND (lease_token IS NULL) = (lease_expires_at IS NULL)",
            name=op.f("ck_rounds_lease_whole"),
        ),
        sa.CheckConstraint(
            "lease_token IS NULL OR state = 'aggregating'", name=op.f("ck_rounds_lease_state")
        ),
    )
    op.create_index("ix_rounds_state_deadline", "rounds", ["state", "deadline"])
    op.create_table(
        "addressees",
        _column("round_id", WHOLE),
        _column("site", WORD),
        _column("task_digest", WORD),
        _column("released", sa.Boolean()),
        _column("site_part", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("round_id", "site", name="pk_addressees"),
        sa.ForeignKeyConstraint(["round_id"], ["rounds.id"], name="fk_addressees_round_id_rounds"),
    )
    op.create_table(
        "submissions",
        _column("id", WHOLE),
        _column("session_id", WHOLE),
        _column("round_id", WHOLE),
        _column("site", WORD),
        _column("phase", WORD),
        _column("sha256", WORD),
        _column("size", WHOLE),
        _column("empty", sa.Boolean()),
        _column("received_at", TIME),
        _column("payload", sa.LargeBinary(), null=True),
        sa.PrimaryKeyConstraint("id", name="pk_submissions"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_submissions_session_id_sessions"
        ),
        sa.ForeignKeyConstraint(
            ["round_id", "site"],
            ["addressees.round_id", "addressees.site"],
            name="fk_submissions_round_id_site_addressees",
        ),
        sa.UniqueConstraint("round_id", "site", name="uq_submissions_round_id_site"),
    )
    op.create_index("ix_submissions_session_id", "submissions", ["session_id"])
    op.create_table(
        "states",
        _column("session_id", WHOLE),
        _column("round_number", sa.Integer()),
        _column("state", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("session_id", "round_number", name="pk_states"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_states_session_id_sessions"
        ),
    )
    op.create_table(
        "results",
        _column("session_id", WHOLE),
        _column("completed_at", TIME),
        _column("result", sa.LargeBinary()),
        _column("provenance", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("session_id", name="pk_results"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name="fk_results_session_id_sessions"
        ),
    )
    op.create_table(
        "audit",
        _column("id", WHOLE),
        _column("at", TIME),
        _column("actor", WORD),
        _column("action", WORD),
        _column("subject", WORD),
        _column("details", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_subject_id", "audit", ["subject", "id"])


def downgrade() -> None:
    for table in (
        "audit",
        "results",
        "states",
        "submissions",
        "addressees",
        "rounds",
        "participations",
        "sessions",
        "tokens",
        "principals",
    ):
        op.drop_table(table)
