"""What an operator should look at, on both databases."""

from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
from sqlalchemy import update

from fedclust import rounds
from fedclust.schema.errors import RuleViolation
from fedclust_service.domain.overview import Attention
from fedclust_service.domain.session import SessionState
from fedclust_service.store import tables
from fedclust_service.usecases import admin
from fedclust_service.usecases.attention import BACKED_UP, RESTORED
from fedclust_service.usecases.audit import record_command
from usecases.direct_api import OPERATOR, DirectApi


def test_a_late_round_names_the_sites_that_it_waits_for(both: DirectApi) -> None:
    sites = tuple(f"site-{number:02}" for number in range(24))
    both.session(sites=sites)
    both.answer("heart", "site-01")
    assert both.attention() == []
    both.clock.advance(30 * 86_400)
    (line,) = both.attention()
    names = [name for name in sites if name != "site-01"]
    assert line == ("round-late", "heart", f"{', '.join(names[:20])} and 3 more")


def test_a_session_that_all_answered_and_that_cannot_start(
    both: DirectApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_feature = RuleViolation("shared", "the sites share no feature: invite others", "/sites")
    monkeypatch.setattr(rounds, "check_roster", Mock(side_effect=no_feature))
    both.define("heart")
    assert both.attention() == []
    both.join("heart", "north", "south", "west")
    assert both.attention() == [
        ("cannot-start", "heart", "the sites share no feature: invite others")
    ]


def test_a_disk_that_is_nearly_full(both: DirectApi) -> None:
    assert both.attention(300 * 2**20) == [("disk-low", "disk", "300 MiB are free")]


def test_an_old_backup_and_none(both: DirectApi, tmp_path: Path) -> None:
    assert both.attention(backups=True) == []
    both.define()
    both.clock.advance(1)
    assert both.attention(backups=True) == [("backup-old", "database", "no backup was made")]
    assert both.attention() == []
    record_command(both.store, BACKED_UP, backup="f" * 64, bytes=4096)
    made = both.clock.now()
    assert both.attention(backups=True) == []
    seen = admin.overview(both.co, OPERATOR, tmp_path)
    assert (seen.last_backup_at, seen.last_backup_bytes) == (made, 4096)
    both.clock.advance(8 * 86_400)
    assert both.attention(backups=True) == [
        ("backup-old", "database", f"the last one is of {made:%Y-%m-%d}")
    ]
    shown = admin.overview(both.co, OPERATOR, tmp_path).attention
    kinds = {each.kind: each.at for each in shown}
    # `backup` copies no PostgreSQL.
    assert kinds.get("backup-old") == (
        made + timedelta(days=7) if both.store.single_process else None
    )


def test_a_restore_is_named_for_a_week_with_what_is_lost(both: DirectApi) -> None:
    both.define()
    last = both.clock.now()
    both.clock.advance(86_400)
    record_command(both.store, RESTORED, backup="f" * 64)
    lost = f"what happened after {last:%Y-%m-%d %H:%M} UTC, the backup's last entry, is lost"
    both.define("later")
    both.clock.advance(7 * 86_400)
    assert both.attention() == [("database-restored", "database", lost)]
    old = "no backup was made since the restore"
    assert ("backup-old", "database", old) in both.attention(backups=True)
    both.clock.advance(1)
    assert both.attention() == []


def test_an_error_while_reading_leaves_no_old_snapshot(
    both: DirectApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an old snapshot, a request would accept a token that was revoked meanwhile."""
    for name in ("one", "two"):
        both.define(name)
    ended = {"state": SessionState.FAILED, "ended_at": both.clock.now(), "failure": "no sites"}
    with both.store._engines.write.begin() as connection:
        connection.execute(update(tables.sessions).values(**ended))
    assert [kind for kind, *_ in both.attention()].count("session-failed") == 2

    def damaged(kind: str, *_: object, **__: object) -> None:
        raise ValueError(kind)

    monkeypatch.setattr(Attention, "to", damaged)
    # The error keeps what was read in its frames.
    with pytest.raises(ValueError, match="session-failed") as kept:
        both.attention()
    both.define("three")
    names = both.store.read("test", lambda tx: [s.name for s in tx.sessions.list(limit=9)])
    assert names == ["three", "two", "one"], kept
