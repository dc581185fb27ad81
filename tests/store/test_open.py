"""Opening a store: what is refused, with which words, and how SQLite is set up."""

import os
import sqlite3
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from fedclust_service.domain.access import Role
from fedclust_service.store import (
    SchemaMissing,
    SchemaProblem,
    Store,
    StoreLocked,
    StoreUnavailable,
    Tx,
    Unwritable,
    UrlRefused,
    migrate,
    tables,
)
from fedclust_service.store.errors import translate
from support.clock import ManualClock
from support.store_rows import at, open_round, submission

POSIX = pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")


def path_of(url: str) -> Path:
    return Path(make_url(url).database or "")


def pragma(store: Store, which: str, name: str) -> object:
    with getattr(store._engines, which).connect() as connection:
        return connection.execute(text(f"PRAGMA {name}")).scalar()


# ---------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "mysql://user:pass-word@host/db",
        "postgresql://user:pass-word@host/db",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file.db?mode=ro",
        "postgresql+psycopg://user:pass-word@host:port/db",
    ],
)
def test_addresses_that_are_refused_are_not_repeated(url: str, clock: ManualClock) -> None:
    with pytest.raises(UrlRefused) as caught:
        Store.open(url, clock)
    assert "pass-word" not in str(caught.value)


def test_postgresql_without_its_driver(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UrlRefused, match="pip install") as caught:
        Store.open("postgresql+psycopg://user:pass-word@host/db", clock)
    assert "fedclust[service,postgres]" in str(caught.value)
    assert "pass-word" not in str(caught.value)


def test_a_server_that_is_not_there(clock: ManualClock, tmp_path: Path) -> None:
    url = f"postgresql+psycopg://user:pass-word@/db?host={tmp_path}"
    with pytest.raises(StoreUnavailable, match="check that the database runs") as caught:
        Store.open(url, clock)
    assert "pass-word" not in str(caught.value)


# ------------------------------------------------------------------------------- SQLite files


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sqlite_is_set_up_to_lose_nothing(store: Store) -> None:
    full, on = 2, 1
    for which in ("write", "read"):
        assert pragma(store, which, "journal_mode") == "wal"
        assert pragma(store, which, "synchronous") == full
        assert pragma(store, which, "secure_delete") == on
        assert pragma(store, which, "foreign_keys") == on
        assert pragma(store, which, "busy_timeout") == 10_000
    assert pragma(store, "read", "query_only") == on
    assert pragma(store, "write", "query_only") == 0


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_postgres_is_set_up_to_lose_nothing(store: Store) -> None:
    def setting(tx: Tx, name: str) -> object:
        return tx._connection.execute(text(f"SHOW {name}")).scalar()

    def writing(tx: Tx) -> None:
        assert setting(tx, "synchronous_commit") == "on"
        assert setting(tx, "transaction_isolation") == "read committed"
        assert setting(tx, "TimeZone") == "UTC"
        assert setting(tx, "lock_timeout") == "10s"

    def reading(tx: Tx) -> None:
        assert setting(tx, "transaction_isolation") == "repeatable read"
        assert setting(tx, "transaction_read_only") == "on"

    for _ in range(2):  # a pooled connection goes back as it was
        store.run_tx("writing", writing)
        store.read("reading", reading)
    assert not store.single_process


@POSIX
def test_a_new_file_is_its_owners_alone(tmp_path: Path, clock: ManualClock) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/new.db", clock, serving=True)
    store.run_tx("add", lambda tx: tx.principals.add(Role.SITE, "zurich", ""))
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    store.close()
    assert set(modes) == {"new.db", "new.db-wal", "new.db-shm", "new.db.lock"}
    assert set(modes.values()) == {0o600}


def test_what_is_in_the_place_of_a_file_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "notes.db").write_text("patient notes, not a database " * 99)
    before = (tmp_path / "notes.db").read_bytes()
    for place, said in (
        ("missing/x.db", "does not exist; make it first"),
        ("", "cannot write"),
        ("notes.db", "not an SQLite database"),
    ):
        with pytest.raises(Unwritable, match=said):
            Store.open(f"sqlite:///{tmp_path / place}", clock)
    assert (tmp_path / "notes.db").read_bytes() == before


@POSIX
@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_one_may_not_write_to(tmp_path: Path, clock: ManualClock) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(Unwritable, match="cannot write"):
            Store.open(f"sqlite:///{tmp_path}/x.db", clock)
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (sqlite3.SQLITE_FULL, "the disk is full"),
        (sqlite3.SQLITE_IOERR_SHMSIZE, "the disk is full"),
        (sqlite3.SQLITE_READONLY, "read-only"),
        (sqlite3.SQLITE_IOERR | (3 << 8), "reading or writing"),  # an extended code
    ],
)
def test_a_disk_that_fails_is_named(code: int, words: str) -> None:
    error = sqlite3.OperationalError("what the driver says")
    error.sqlite_errorcode = code
    found = translate(error, "submit")
    assert isinstance(found, Unwritable)
    assert words in str(found)


# ---------------------------------------------------------------------------- one server a file


def test_a_second_server_on_a_file_is_refused(sqlite_url: str, clock: ManualClock) -> None:
    first = Store.open(sqlite_url, clock, serving=True)
    assert first.single_process
    with pytest.raises(StoreLocked, match="another process serves") as caught:
        Store.open(sqlite_url, clock, serving=True)
    assert "\n" not in str(caught.value)
    with pytest.raises(StoreLocked):
        migrate.upgrade(sqlite_url)
    # A command beside the server is not.
    beside = Store.open(sqlite_url, clock)
    beside.run_tx("add", lambda tx: tx.principals.add(Role.OPERATOR, "operator", ""))
    beside.close()
    found = first.read("get", lambda tx: tx.principals.get(Role.OPERATOR, "operator"))
    assert found is not None
    first.close()
    first.close()
    Store.open(sqlite_url, clock, serving=True).close()


def test_a_link_to_a_file_is_the_same_file(
    sqlite_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    link = tmp_path / "link.db"
    try:
        link.symlink_to(path_of(sqlite_url))
    except OSError:
        pytest.skip("links need a privilege here")
    with closing(Store.open(sqlite_url, clock, serving=True)), pytest.raises(StoreLocked):
        Store.open(f"sqlite:///{link}", clock, serving=True)


def test_a_file_with_two_names_is_refused(
    sqlite_url: str, clock: ManualClock, tmp_path: Path
) -> None:
    other = tmp_path / "elsewhere" / "hard.db"
    other.parent.mkdir()
    os.link(path_of(sqlite_url), other)
    for url in (sqlite_url, f"sqlite:///{other}"):
        with pytest.raises(Unwritable, match="hard link"):
            Store.open(url, clock, serving=True)
    other.unlink()
    Store.open(sqlite_url, clock, serving=True).close()


def test_a_failed_start_leaves_no_lock(empty_database_url: str, clock: ManualClock) -> None:
    if empty_database_url.startswith("sqlite"):
        with pytest.raises(Unwritable, match="there is no database"):
            Store.open(empty_database_url, clock, serving=True, create=False)
        file = Path(empty_database_url.removeprefix("sqlite:///"))
        file.touch(exist_ok=False)
    with pytest.raises(SchemaMissing, match="fedclust-service db upgrade"):
        Store.open(empty_database_url, clock, serving=True, create=False)
    Store.open(empty_database_url, clock, serving=True).close()


# -------------------------------------------------------------------------------------- schema


def test_several_that_start_at_once_on_an_empty_database(
    empty_database_url: str, clock: ManualClock
) -> None:
    def start(_: int) -> str | None:
        with closing(Store.open(empty_database_url, clock)) as store:
            return store.migration_head()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(start, range(4))) == [tables.SCHEMA_REVISION] * 4


def change_revision(url: str, revision: str) -> None:
    made = migrate._engines(url)
    with made.write.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :r"), {"r": revision})
    made.dispose()


def test_a_newer_database_is_refused_and_left_alone(database_url: str, clock: ManualClock) -> None:
    change_revision(database_url, "9999")
    for attempt in (
        lambda: Store.open(database_url, clock),
        lambda: migrate.upgrade(database_url),
        lambda: migrate.downgrade(database_url, "base"),
    ):
        with pytest.raises(SchemaProblem, match="9999, which a later version"):
            attempt()
    assert migrate.current(database_url) == "9999"


def test_an_older_database_is_refused_with_the_command(
    database_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = tables.SCHEMA_REVISION
    monkeypatch.setattr(tables, "SCHEMA_REVISION", "of-tomorrow")
    with pytest.raises(SchemaProblem, match="`fedclust-service db upgrade`"):
        Store.open(database_url, clock)
    assert migrate.current(database_url) == present


def test_a_database_of_something_else_is_left_alone(
    empty_database_url: str, clock: ManualClock
) -> None:
    made = migrate._engines(empty_database_url)
    with made.write.begin() as connection:
        connection.execute(text("CREATE TABLE patients (id INTEGER)"))
    made.dispose()
    with pytest.raises(SchemaProblem, match="not fedclust's"):
        Store.open(empty_database_url, clock)
    assert migrate.current(empty_database_url) is None


# ------------------------------------------------------------------------------------ scrubbing


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_scrubbed_bytes_leave_the_disk(store: Store, database_url: str) -> None:
    path = path_of(database_url)
    session, opened = open_round(store)
    payload, state = b"marker-of-a-payload" * 600, b"marker-of-a-state" * 600

    def arrange(tx: Tx) -> None:
        tx.submissions.insert(submission(opened, "zurich", payload))
        tx.states.put(session.id, 1, state)

    store.run_tx("arrange", arrange)

    def on_disk(marker: bytes) -> bool:
        files = [path, path.with_name(path.name + "-wal")]
        return any(marker in file.read_bytes() for file in files if file.exists())

    assert on_disk(b"marker-of-a-payload")
    assert on_disk(b"marker-of-a-state")
    store.run_tx("scrub", lambda tx: tx.submissions.scrub(session.id, at(9)))
    assert not on_disk(b"marker-of-a-payload")
    assert not on_disk(b"marker-of-a-state")
