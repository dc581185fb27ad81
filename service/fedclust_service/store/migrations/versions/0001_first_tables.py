"""All tables. Until the first release there is one migration: change it where tables change."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# SQLite gives rising numbers only to INTEGER; PostgreSQL sorts by language without COLLATE "C".
WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
TIME = sa.DateTime(timezone=True)


def _column(name: str, kind: Any, *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


# Longer than a screen: it creates every table.
def upgrade() -> None:
    op.create_table(
        "audit",
        _column("id", WHOLE),
        _column("at", TIME),
        _column("actor", WORD),
        _column("action", WORD),
        _column("subject", WORD),
        _column("details", sa.Text()),
        _column("number", WHOLE, null=True),
        _column("hash", WORD, null=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index("ix_audit_action_id", "audit", ["action", "id"])
    op.create_index("ix_audit_actor_action_id", "audit", ["actor", "action", "id"])
    op.create_index("ix_audit_actor_id", "audit", ["actor", "id"])
    op.create_index("ix_audit_number", "audit", ["number"], unique=True)
    op.create_index("ix_audit_subject_id", "audit", ["subject", "id"])
    op.create_index("ix_audit_subject_number", "audit", ["subject", "number"])
    chain = op.create_table(
        "audit_chain",
        _column("id", WHOLE),
        _column("number", WHOLE),
        _column("hash", WORD),
        _column("lease_holder", WORD, null=True),
        _column("lease_expires_at", TIME, null=True),
        sa.CheckConstraint(
            "(lease_holder IS NULL) = (lease_expires_at IS NULL)",
            name=op.f("ck_audit_chain_lease_whole"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_chain")),
    )
    op.bulk_insert(chain, [{"id": 1, "number": 0, "hash": "0" * 64}])
    op.create_table(
        "notifications",
        _column("id", WORD),
        _column("kind", WORD),
        _column("subject", WORD),
        _column("cause", WORD),
        _column("recipient", WORD),
        _column("channel", WORD),
        _column("body", sa.Text()),
        _column("state", WORD),
        _column("created_at", TIME),
        _column("due_at", TIME),
        _column("attempts", sa.Integer()),
        _column("lease_token", WORD, null=True),
        _column("ended_at", TIME, null=True),
        _column("failure", sa.Text(), null=True),
        sa.CheckConstraint(
            "channel IN ('email', 'webhook')", name=op.f("ck_notifications_channel")
        ),
        sa.CheckConstraint(
            "kind IN ('invited', 'overdue', 'finished', 'failed', 'held', 'token-expiring')",
            name=op.f("ck_notifications_kind"),
        ),
        sa.CheckConstraint(
            "state IN ('waiting', 'sent', 'failed')", name=op.f("ck_notifications_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notifications")),
        sa.UniqueConstraint(
            "kind",
            "subject",
            "cause",
            "recipient",
            name=op.f("uq_notifications_kind_subject_cause_recipient"),
        ),
    )
    op.create_index("ix_notifications_ended_at", "notifications", ["ended_at"])
    op.create_index(
        "ix_notifications_state_channel_due_at", "notifications", ["state", "channel", "due_at"]
    )
    op.create_table(
        "principals",
        _column("id", WHOLE),
        _column("role", WORD),
        _column("name", WORD),
        _column("title", sa.Text()),
        _column("disabled", sa.Boolean()),
        _column("created_at", TIME),
        _column("last_seen_at", TIME, null=True),
        _column("email", sa.Text(), null=True),
        sa.CheckConstraint(
            "role IN ('operator', 'analyst', 'site')", name=op.f("ck_principals_role")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_principals")),
        sa.UniqueConstraint("role", "name", name=op.f("uq_principals_role_name")),
    )
    op.create_table(
        "site_tables",
        _column("site", WORD),
        _column("table_id", WORD),
        _column("number", WHOLE),
        _column("head", WORD),
        _column("accepted_at", TIME),
        sa.PrimaryKeyConstraint("site", "table_id", name=op.f("pk_site_tables")),
    )
    op.create_table(
        "studies",
        _column("id", WHOLE),
        _column("name", WORD),
        _column("definition", sa.LargeBinary()),
        _column("definition_sha256", WORD),
        _column("created_by", WORD),
        _column("created_at", TIME),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
        sa.UniqueConstraint("name", name=op.f("uq_studies_name")),
    )
    op.create_index("ix_studies_created_by_id", "studies", ["created_by", "id"])
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
        _column("study", WORD, null=True),
        _column("held_at", TIME, null=True),
        _column("deaths", sa.Integer()),
        sa.CheckConstraint(
            "state IN ('recruiting', 'running', 'held', 'completed', 'failed', 'cancelled')",
            name=op.f("ck_sessions_state"),
        ),
        sa.ForeignKeyConstraint(
            ["study"], ["studies.name"], name=op.f("fk_sessions_study_studies")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("name", name=op.f("uq_sessions_name")),
    )
    op.create_index("ix_sessions_created_by_id", "sessions", ["created_by", "id"])
    op.create_index(
        "ix_sessions_not_scrubbed",
        "sessions",
        ["ended_at"],
        sqlite_where=sa.text("scrubbed_at IS NULL"),
        postgresql_where=sa.text("scrubbed_at IS NULL"),
    )
    op.create_index("ix_sessions_state_ended_at", "sessions", ["state", "ended_at"])
    op.create_index("ix_sessions_state_id", "sessions", ["state", "id"])
    op.create_index("ix_sessions_study_id", "sessions", ["study", "id"])
    op.create_table(
        "study_sites",
        _column("study_id", WHOLE),
        _column("site", WORD),
        sa.ForeignKeyConstraint(
            ["study_id"], ["studies.id"], name=op.f("fk_study_sites_study_id_studies")
        ),
        sa.PrimaryKeyConstraint("study_id", "site", name=op.f("pk_study_sites")),
    )
    op.create_index("ix_study_sites_site_study_id", "study_sites", ["site", "study_id"])
    op.create_table(
        "tokens",
        _column("id", WORD),
        _column("principal_id", WHOLE),
        _column("secret_hmac", WORD),
        _column("created_at", TIME),
        _column("expires_at", TIME),
        _column("revoked_at", TIME, null=True),
        _column("last_used_at", TIME, null=True),
        sa.ForeignKeyConstraint(
            ["principal_id"], ["principals.id"], name=op.f("fk_tokens_principal_id_principals")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )
    op.create_index("ix_tokens_principal_id", "tokens", ["principal_id"])
    op.create_table(
        "participations",
        _column("session_id", WHOLE),
        _column("site", WORD),
        _column("state", WORD),
        _column("invited_at", TIME),
        _column("definition_sha256", WORD, null=True),
        _column("two_sites_with", WORD, null=True),
        _column("protection_none", sa.Boolean()),
        _column("features", sa.Text()),
        _column("min_group_size", WHOLE, null=True),
        _column("size_band", WORD, null=True),
        _column("sdk_version", WORD, null=True),
        _column("joined_at", TIME, null=True),
        _column("left_at", TIME, null=True),
        _column("table_id", WORD, null=True),
        _column("separate_groups", sa.Boolean()),
        _column("refused_task", WORD, null=True),
        _column("other_persons", sa.Boolean()),
        _column("points_short", sa.Boolean()),
        sa.CheckConstraint(
            "state IN ('invited', 'joined', 'left', 'excluded', 'refused')",
            name=op.f("ck_participations_state"),
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_participations_session_id_sessions")
        ),
        sa.PrimaryKeyConstraint("session_id", "site", name=op.f("pk_participations")),
    )
    op.create_index(
        "ix_participations_refused_task",
        "participations",
        ["session_id"],
        sqlite_where=sa.text("refused_task IS NOT NULL"),
        postgresql_where=sa.text("refused_task IS NOT NULL"),
    )
    op.create_index("ix_participations_site_session_id", "participations", ["site", "session_id"])
    op.create_table(
        "results",
        _column("session_id", WHOLE),
        _column("completed_at", TIME),
        _column("result", sa.LargeBinary()),
        _column("provenance", sa.LargeBinary()),
        _column("sha256", WORD, null=True),
        _column("cluster_names", sa.Text(), null=True),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_results_session_id_sessions")
        ),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_results")),
    )
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
        sa.CheckConstraint(
            "lease_token IS NULL OR state = 'aggregating'", name=op.f("ck_rounds_lease_state")
        ),
        sa.CheckConstraint(
            "state IN ('collecting', 'aggregating', 'closed', 'failed')",
            name=op.f("ck_rounds_state"),
        ),
        sa.CheckConstraint(
            "(lease_token IS NULL) = (lease_holder IS NULL)"
            " AND (lease_token IS NULL) = (lease_expires_at IS NULL)",
            name=op.f("ck_rounds_lease_whole"),
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_rounds_session_id_sessions")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
        sa.UniqueConstraint("session_id", "number", name=op.f("uq_rounds_session_id_number")),
    )
    op.create_index("ix_rounds_state_deadline", "rounds", ["state", "deadline"])
    op.create_table(
        "sign_ins",
        _column("id", WORD),
        _column("token_id", WORD),
        _column("secret_hmac", WORD),
        _column("created_at", TIME),
        _column("last_used_at", TIME),
        _column("ends_at", TIME),
        _column("ended_at", TIME, null=True),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name=op.f("fk_sign_ins_token_id_tokens")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sign_ins")),
    )
    op.create_index("ix_sign_ins_ends_at", "sign_ins", ["ends_at"])
    op.create_index("ix_sign_ins_token_id", "sign_ins", ["token_id"])
    op.create_table(
        "states",
        _column("session_id", WHOLE),
        _column("round_number", sa.Integer()),
        _column("state", sa.LargeBinary()),
        _column("sha256", WORD, null=True),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_states_session_id_sessions")
        ),
        sa.PrimaryKeyConstraint("session_id", "round_number", name=op.f("pk_states")),
    )
    op.create_table(
        "addressees",
        _column("round_id", WHOLE),
        _column("site", WORD),
        _column("task_digest", WORD),
        _column("released", sa.Boolean()),
        _column("site_part", sa.LargeBinary()),
        sa.ForeignKeyConstraint(
            ["round_id"], ["rounds.id"], name=op.f("fk_addressees_round_id_rounds")
        ),
        sa.PrimaryKeyConstraint("round_id", "site", name=op.f("pk_addressees")),
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
        _column("payload_sha256", WORD, null=True),
        sa.ForeignKeyConstraint(
            ["round_id", "site"],
            ["addressees.round_id", "addressees.site"],
            name=op.f("fk_submissions_round_id_site_addressees"),
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_submissions_session_id_sessions")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_submissions")),
        sa.UniqueConstraint("round_id", "site", name=op.f("uq_submissions_round_id_site")),
    )
    op.create_index("ix_submissions_session_id", "submissions", ["session_id"])
    # ### end Alembic commands ###


def downgrade() -> None:
    for table in (
        "submissions",
        "addressees",
        "states",
        "sign_ins",
        "rounds",
        "results",
        "participations",
        "tokens",
        "study_sites",
        "sessions",
        "studies",
        "site_tables",
        "principals",
        "notifications",
        "audit_chain",
        "audit",
    ):
        op.drop_table(table)
