"""Backups of a site's state: what is in one comes back, and a damaged one changes nothing."""

import itertools
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from fedclust import errors
from fedclust.site import DataSource, DataSources, backup
from fedclust.site.backup import back_up, restore, verify_state
from fedclust.site.cohorts import CohortStore
from fedclust.site.ledger import Ledger
from fedclust.site.settings import settings_path
from fedclust.site.state import SiteState
from support.cohorts import persons, source_of
from support.fake_coordinator import FakeCoordinator
from support.timeouts import TIMEOUT_S

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SETTINGS = "require_approval = true\n"


def grow(state: SiteState, n: int) -> None:
    """Bring the groups of the site's n persons up to date."""
    store = CohortStore(state)
    store.keep(store.draft(source_of(persons(n)), p=5, now=NOW))


@pytest.fixture
def site(tmp_path: Path) -> SiteState:
    state = SiteState(tmp_path / "state")
    grow(state, 40)
    (tmp_path / "state" / "rows.csv").write_text("x0\n1\n", "utf-8")
    DataSources(state).add("cohort", DataSource(data=str(tmp_path / "state" / "rows.csv")))
    Ledger(state).append({"event": "other"})
    settings_path(state.directory).write_text(SETTINGS, "utf-8")
    return state


def content(state: SiteState) -> list[list[tuple[object, ...]]]:
    names = ("documents", "cohorts", "sessions", "answers", "ledger")
    with state.read() as connection:
        return [
            connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall()  # noqa: S608
            for name in names
        ]


def files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_all_of_a_state_comes_back(site: SiteState, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "backup.sqlite3", SiteState(tmp_path / "elsewhere")
    said = back_up(site, out)
    assert (said.tables, said.sessions, said.in_flight) == (1, 0, 0)
    if sys.platform != "win32":
        assert out.stat().st_mode & 0o777 == 0o600
    # One file: SQLite needs no other to read it.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.sqlite3", "state"]

    assert restore(elsewhere, out) == said == verify_state(elsewhere)

    assert content(elsewhere) == content(site)
    assert elsewhere.secret() == site.secret()
    assert settings_path(elsewhere.directory).read_text("utf-8") == SETTINGS
    names = {path.name for path in elsewhere.directory.iterdir() if path.is_file()}
    assert names <= {"state.sqlite3", "state.sqlite3-wal", "state.sqlite3-shm", "site.toml"}
    # Both go on from there in the same way.
    for state in (site, elsewhere):
        grow(state, 60)
    (one,), (other,) = (CohortStore(s).records().values() for s in (site, elsewhere))
    for column in ("x0", "x1"):
        np.testing.assert_array_equal(
            one.cohort.table([column]).values(column), other.cohort.table([column]).values(column)
        )


def test_a_backup_made_while_something_is_written_is_of_one_moment(
    site: SiteState, tmp_path: Path
) -> None:
    before = content(site)
    with site.write() as connection:
        connection.execute("DELETE FROM cohorts")
        out = tmp_path / "backup.sqlite3"
        # Another thread's connection, as another process's, sees what was stored last.
        with closing(sqlite3.connect(site.path)) as source:
            assert source.execute("SELECT count(*) FROM cohorts").fetchone() == (1,)
        connection.execute("ROLLBACK")
        connection.execute("BEGIN IMMEDIATE")
    back_up(site, out)
    restore(SiteState(tmp_path / "elsewhere"), out)
    assert content(SiteState(tmp_path / "elsewhere")) == before


def test_a_state_is_never_replaced(site: SiteState, tmp_path: Path) -> None:
    out = tmp_path / "backup.sqlite3"
    back_up(site, out)
    grow(site, 50)
    before = files(site.directory)
    with pytest.raises(errors.UsageError, match="move all files whose names begin with"):
        restore(site, out)
    with pytest.raises(errors.UsageError, match="exists: name a new file"):
        back_up(site, out)
    assert files(site.directory) == before


def test_a_log_without_its_database_is_not_applied_to_another(
    site: SiteState, tmp_path: Path
) -> None:
    """As a killed process leaves it; then the database is lost, or moved away without its log."""
    out, state = tmp_path / "backup.sqlite3", SiteState(tmp_path / "killed")
    back_up(site, out)
    grow(site, 60)
    with site.read() as connection:
        connection.execute("SELECT count(*) FROM cohorts").fetchone()
        grow(site, 80)
        shutil.copytree(site.directory, state.directory)
    log = state.files[1]
    assert log.stat().st_size > 0
    state.path.unlink()

    for use in (state.read, state.write):
        with pytest.raises(errors.StateError, match=f"its log {log.name} may hold"), use():
            pass
    with pytest.raises(errors.UsageError, match="move all files whose names begin with"):
        restore(state, out)
    assert not state.path.exists()

    for left in state.files:
        left.unlink(missing_ok=True)
    restore(state, out)
    assert verify_state(state).lines == 2


def test_a_state_is_not_taken_for_damaged_while_another_process_writes(
    site: SiteState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody withdraws a person whenever this thread has opened the database."""
    connect, me, number = SiteState._connect, threading.get_ident(), itertools.count()

    def connect_and_wait(state: SiteState) -> sqlite3.Connection:
        connection = connect(state)
        if threading.get_ident() == me:
            person = f"P{next(number)}"
            other = threading.Thread(target=CohortStore(site).withdraw, args=(person, NOW))
            other.start()
            other.join(TIMEOUT_S)
        return connection

    monkeypatch.setattr(SiteState, "_connect", connect_and_wait)
    assert verify_state(site).tables == 1
    assert Ledger(site).verify() == []
    assert len(CohortStore(site).records()) == 1
    Ledger(site).check()
    assert next(number) == 4


def test_settings_that_are_there_stay(site: SiteState, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "backup.sqlite3", SiteState(tmp_path / "elsewhere")
    back_up(site, out)
    elsewhere.directory.mkdir()
    settings_path(elsewhere.directory).write_text("min_group_size = 9\n", "utf-8")
    restore(elsewhere, out)
    assert settings_path(elsewhere.directory).read_text("utf-8") == "min_group_size = 9\n"
    assert content(elsewhere) == content(site)


def test_a_backup_that_cannot_be_written_or_read(site: SiteState, tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="nothing to back up"):
        back_up(SiteState(tmp_path / "none"), tmp_path / "x")
    assert not (tmp_path / "none").exists()
    with pytest.raises(errors.UsageError, match="cannot be written"):
        back_up(site, tmp_path / "absent" / "x")
    with pytest.raises(errors.UsageError, match="cannot be read"):
        restore(SiteState(tmp_path / "elsewhere"), tmp_path / "absent")
    assert not (tmp_path / "elsewhere" / "state.sqlite3").exists()
    assert [
        path for path in site.directory.iterdir() if path.name.startswith("state.sqlite3.")
    ] == []


def _edit(statement: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(statement)
            connection.commit()

    return change


def _flip_in_the_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        (sealed,) = connection.execute("SELECT content FROM cohorts").fetchone()
    data = bytearray(path.read_bytes())
    data[data.find(sealed[:32]) + 3] ^= 1
    path.write_bytes(bytes(data))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "another file": lambda path: path.write_text("mrn,age\n7,60\n" * 99, "utf-8"),
    "another database": lambda path: _edit("PRAGMA application_id = 1")(path),
    "first half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "one bit": _flip_in_the_table,
    "no key": _edit("DELETE FROM documents WHERE name = 'key'"),
    "no line": _edit("DELETE FROM ledger WHERE line = 1"),
    "no table": _edit("DELETE FROM cohorts"),
    "no list of data sources": _edit("UPDATE documents SET content = x'00'"),
    "no answers": _edit("DROP TABLE answers"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_backup_is_refused_and_changes_nothing(
    kind: str, site: SiteState, tmp_path: Path
) -> None:
    out, elsewhere = tmp_path / "backup.sqlite3", SiteState(tmp_path / "elsewhere")
    back_up(site, out)
    DAMAGE[kind](out)
    with pytest.raises(errors.StateDamaged, match="Nothing was restored"):
        restore(elsewhere, out)
    assert files(elsewhere.directory) == {}


@pytest.mark.parametrize("which", ["min", "max"])
def test_a_lost_answer_is_missed_by_the_ledger(which: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(3, 40, 2))
    fake = FakeCoordinator({"alpha": rows[0], "beta": rows[1]})
    fake.site(tmp_path / "state").participate("heart", rows[2], consent=True)
    state = SiteState(tmp_path / "state")
    assert verify_state(state).sessions == 1
    with state.write() as connection:
        connection.execute(
            f"DELETE FROM answers WHERE round = (SELECT {which}(round) FROM answers)"  # noqa: S608
        )
    with pytest.raises(errors.StateDamaged, match=r"round \d: no answer in the journal"):
        verify_state(state)


def test_a_restore_that_ends_early_leaves_no_state(
    site: SiteState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, elsewhere = tmp_path / "backup.sqlite3", SiteState(tmp_path / "elsewhere")
    back_up(site, out)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(elsewhere.path))

    with monkeypatch.context() as patched:
        patched.setattr(backup, "write_atomically", full)
        with pytest.raises(errors.StateError, match="the disk is full"):
            restore(elsewhere, out)
    assert files(elsewhere.directory) == {}
    restore(elsewhere, out)
    assert content(elsewhere) == content(site)
