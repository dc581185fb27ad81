"""A damaged SQLite file: refused at the start, and never served as if it were whole."""

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from fedclust_service.domain.access import Role
from fedclust_service.store import DatabaseDamaged, Store, StoreFault, Tx, Unwritable, health
from support.clock import ManualClock
from support.damage import overwrite, root_page
from support.store_rows import open_round, submission
from support.timeouts import eventually


def filled(url: str, clock: ManualClock) -> Path:
    """Return a database file, closed in order, with rows in most tables."""
    with closing(Store.open(url, clock)) as store:
        _, opened = open_round(store)

        def work(tx: Tx) -> None:
            tx.submissions.insert(submission(opened, "zurich", b"payload" * 9000))
            tx.audit.append("coordinator", "round.opened", "heart", {"round": 1}, clock.now())
            for number in range(50):
                tx.principals.add(Role.SITE, f"site-{number}", "")

        store.run_tx("fill", work)
    return Path(url.removeprefix("sqlite:///"))


def write(store: Store) -> None:
    store.run_tx("write", lambda tx: tx.principals.add(Role.SITE, "zurich", ""))


def page(tree: str) -> Callable[[Path], None]:
    return lambda path: overwrite(path, root_page(path, tree), b"\x5a" * 64)


def cut(kept: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(path.stat().st_size * kept))


def disagree(path: Path) -> None:
    index = root_page(path, "sqlite_autoindex_principals_1")
    overwrite(path, path.read_bytes().index(b"site-7", index), b"site-x")


DAMAGES = {
    "a table's page": page("submissions"),
    "an index's page": page("ix_submissions_session_id"),
    "an index unlike its table": disagree,
    "most is cut off": cut(0.3),
    "the end is cut off": cut(0.95),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_found_at_the_start(
    sqlite_url: str, clock: ManualClock, damage: Callable[[Path], None]
) -> None:
    path = filled(sqlite_url, clock)
    whole = path.read_bytes()
    damage(path)
    with pytest.raises(DatabaseDamaged, match="fedclust-service restore"):
        Store.open(sqlite_url, clock, serving=True)
    # The refused file can be replaced at once.
    path.write_bytes(whole)
    Store.open(sqlite_url, clock, serving=True).close()


def test_damage_met_while_serving_stops_all_writing(sqlite_url: str, clock: ManualClock) -> None:
    path = filled(sqlite_url, clock)
    with closing(Store.open(sqlite_url, clock)) as store:
        overwrite(path, root_page(path, "submissions"), b"\x5a" * 64)
        with structlog.testing.capture_logs() as logged:
            for _ in range(3):
                with pytest.raises(DatabaseDamaged):
                    store.read("look", lambda tx: tx.submissions.summaries(round_id=1))
        assert [each["event"] for each in logged] == ["database_damaged"]
        assert store.faults == (StoreFault.DAMAGED,)
        calls = []
        with pytest.raises(DatabaseDamaged):
            store.run_tx("write", calls.append)
        assert calls == []


def test_the_check_of_a_long_file_goes_on_beside_the_service(
    sqlite_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled(sqlite_url, clock)
    overwrite(path, root_page(path, "submissions"), b"\x5a" * 64)
    checked, run = threading.Event(), health.FileCheck.run

    def slowly(self: health.FileCheck) -> None:
        checked.wait()
        run(self)

    monkeypatch.setattr(health.FileCheck, "run", slowly)
    with closing(Store.open(sqlite_url, clock, serving=True, check_wait_s=0)) as store:
        assert store.faults == (StoreFault.UNCHECKED,)
        write(store)
        checked.set()
        eventually(lambda: store.faults == (StoreFault.DAMAGED,))


def test_a_check_is_cut_short_when_the_store_closes(
    sqlite_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def endlessly(self: health.FileCheck) -> None:
        begun.set()
        query = (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
        )
        with pytest.raises(sqlite3.OperationalError):
            self._connection.execute(query).fetchone()

    monkeypatch.setattr(health.FileCheck, "run", endlessly)
    store = Store.open(sqlite_url, clock, serving=True, check_wait_s=0)
    assert begun.wait()
    store.close()
    assert store.faults == ()


def test_a_failed_write_is_told_until_one_succeeds(sqlite_url: str, clock: ManualClock) -> None:
    with closing(Store.open(sqlite_url, clock)) as store:

        def read_only(value: str) -> None:
            # The only connection that writes; to the driver itself, since it begins no transaction.
            with closing(store._engines.write.raw_connection()) as connection:
                connection.cursor().execute(f"PRAGMA query_only={value}")

        read_only("ON")
        with pytest.raises(Unwritable):
            write(store)
        assert store.faults == (StoreFault.READ_ONLY,)
        store.read("look", lambda tx: tx.sessions.get("heart"))
        with pytest.raises(Unwritable):
            store.try_failed_write()
        assert store.faults == (StoreFault.READ_ONLY,)
        read_only("OFF")
        store.try_failed_write()
        assert store.faults == ()
        write(store)


def test_a_small_write_does_not_end_a_full_disk(
    sqlite_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, free = [], 4 * 2**20 - 1

    def disk_usage(folder: Path) -> SimpleNamespace:
        folders.append(folder)
        return SimpleNamespace(free=free)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    with closing(Store.open(sqlite_url, clock)) as store:
        write(store)
        assert not folders, "asked without need"
        store._health.write_ended(StoreFault.DISK_FULL)
        store.try_failed_write()
        assert store.faults == (StoreFault.DISK_FULL,)
        free += 1
        store.try_failed_write()
        assert store.faults == ()
    assert folders == [Path(sqlite_url.removeprefix("sqlite:///")).parent] * 2


def test_nothing_is_read_or_written_when_the_file_is_gone(
    sqlite_url: str, clock: ManualClock
) -> None:
    path = filled(sqlite_url, clock)
    aside = path.with_name("aside.db")

    with closing(Store.open(sqlite_url, clock)) as store:
        shutil.copy(path, aside)
        aside.replace(path)
        with pytest.raises(DatabaseDamaged):
            write(store)
        assert store.faults == (StoreFault.DAMAGED,)
    with closing(Store.open(sqlite_url, clock)) as store:
        path.unlink()
        assert store.faults == (StoreFault.DAMAGED,)
        path.touch()  # also behind somebody who makes a new one
        with pytest.raises(DatabaseDamaged):
            write(store)
        # A new connection would read the new file: a site's token would be unknown there.
        with pytest.raises(DatabaseDamaged):
            store.read("read", lambda tx: tx.principals.list(Role.SITE, 100))


@pytest.fixture
def crashed(sqlite_url: str, clock: ManualClock, tmp_path: Path) -> Path:
    """Return a database as a killed process leaves it: ten transactions in its log alone."""
    path = tmp_path / "crashed.db"
    source = Path(sqlite_url.removeprefix("sqlite:///"))
    with closing(Store.open(sqlite_url, clock)) as store:
        for number in range(10):
            store.run_tx("add", lambda tx, n=number: tx.principals.add(Role.SITE, f"s-{n}", ""))
        for suffix in ("", "-wal"):
            shutil.copy(f"{source}{suffix}", f"{path}{suffix}")
    return path


def sites(path: Path, clock: ManualClock) -> int:
    with closing(Store.open(f"sqlite:///{path}", clock, serving=True)) as store:
        return len(store.read("sites", lambda tx: tx.principals.list(Role.SITE, 100)))


def test_what_a_killed_process_left_is_read(crashed: Path, clock: ManualClock) -> None:
    assert sites(crashed, clock) == 10


def test_a_log_damaged_before_its_end_is_refused(crashed: Path, clock: ManualClock) -> None:
    """SQLite would read up to the damage and go on without what was acknowledged after it."""
    log = crashed.with_name("crashed.db-wal")
    overwrite(log, log.stat().st_size // 2, b"\x5a" * 64)
    for _ in range(2):
        with pytest.raises(DatabaseDamaged, match="transactions in its write-ahead log"):
            sites(crashed, clock)
    # Whoever takes the log away goes on with what stood before the damage.
    crashed.with_name("crashed.db-wal-damaged").unlink()
    assert 0 < sites(crashed, clock) < 10


def test_an_unfinished_end_of_the_log_is_dropped(crashed: Path, clock: ManualClock) -> None:
    """What a power cut leaves of a transaction that nobody was told of."""
    log = crashed.with_name("crashed.db-wal")
    with log.open("rb+") as file:
        file.truncate(log.stat().st_size - 100)
    assert sites(crashed, clock) == 9
