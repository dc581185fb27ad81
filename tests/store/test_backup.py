"""Copies of a SQLite file: whole, private, never over anything, never of anything else."""

import os
import shlex
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from fedclust.wire.codec import sha256
from fedclust_service.domain.access import Role
from fedclust_service.store import (
    SchemaProblem,
    Store,
    StoreError,
    StoreLocked,
    Tx,
    Unwritable,
    UrlRefused,
    backup,
    tables,
)
from support.clock import ManualClock

POSTGRES = "postgresql+psycopg://fedclust:secret-word@db.example:5433/clusters?sslpassword=hush"


@pytest.fixture
def copy(sqlite_url: str, tmp_path: Path, clock: ManualClock) -> Path:
    """Return a copy of a database with one site, taken while it is served."""
    with_site(sqlite_url, clock, "north")
    with closing(Store.open(sqlite_url, clock, serving=True)):
        made = backup.backup(sqlite_url, tmp_path / "copies.db")
    assert made.sha256 == sha256(made.path.read_bytes())
    assert made.size == made.path.stat().st_size
    assert made.migration == tables.SCHEMA_REVISION
    return made.path


def with_site(url: str, clock: ManualClock, name: str) -> None:
    with closing(Store.open(url, clock)) as store:
        store.run_tx("add", lambda tx: tx.principals.add(Role.SITE, name, ""))


def test_a_copy_is_one_private_file_that_can_be_read_where_nothing_can_be_written(
    copy: Path, tmp_path: Path
) -> None:
    assert not list(tmp_path.glob("*copies*-*"))
    assert not list(tmp_path.glob(".copies*"))
    if os.name == "posix":
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with closing(sqlite3.connect(f"{copy.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        assert connection.execute("SELECT name FROM principals").fetchall() == [("north",)]


def test_a_transaction_under_way_is_not_in_it(
    sqlite_url: str, tmp_path: Path, clock: ManualClock
) -> None:
    def add_and_copy(tx: Tx) -> None:
        tx.principals.add(Role.SITE, "half", "")
        backup.backup(sqlite_url, tmp_path / "copy.db")

    with closing(Store.open(sqlite_url, clock, serving=True)) as store:
        store.run_tx("add", add_and_copy)
    with closing(sqlite3.connect(tmp_path / "copy.db")) as connection:
        assert connection.execute("SELECT count(*) FROM principals").fetchone() == (0,)


def test_a_copy_put_back_is_a_store(copy: Path, tmp_path: Path, clock: ManualClock) -> None:
    url = f"sqlite:///{tmp_path / 'back.db'}"
    made = backup.restore(copy, url)
    assert made.sha256 == sha256(copy.read_bytes())
    with closing(Store.open(url, clock, serving=True)) as store:
        found = store.read("all", lambda tx: tx.principals.list(Role.SITE, 9))
        assert [each.name for each in found] == ["north"]
        with_site(url, clock, "south")
        with pytest.raises(StoreLocked):
            backup.restore(copy, url)


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_nothing_is_overwritten(copy: Path, sqlite_url: str, tmp_path: Path, suffix: str) -> None:
    with pytest.raises(Unwritable, match="nothing is overwritten"):
        backup.backup(sqlite_url, copy)
    left = tmp_path / f"back.db{suffix}"
    left.write_bytes(b"left behind")
    with pytest.raises(Unwritable, match="exists: move it aside"):
        backup.restore(copy, f"sqlite:///{tmp_path / 'back.db'}")
    assert left.read_bytes() == b"left behind"


def test_only_our_databases_are_copied(copy: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'back.db'}"
    text = tmp_path / "text"
    text.write_text("no database, but long enough to be read as one " * 50)
    foreign = tmp_path / "foreign"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE theirs (id INTEGER)")
    for source in (text, foreign):
        with pytest.raises(SchemaProblem, match="not a database of fedclust"):
            backup.restore(source, url)
    with pytest.raises(Unwritable, match="no file"):
        backup.restore(tmp_path / "missing", url)
    with pytest.raises(Unwritable, match="does not exist"):
        backup.restore(copy, f"sqlite:///{tmp_path / 'no' / 'back.db'}")
    with pytest.raises(Unwritable, match="no database"):
        backup.backup(f"sqlite:///{tmp_path / 'missing.db'}", tmp_path / "copy.db")
    with pytest.raises(Unwritable, match="cannot write"):
        backup.backup(url.replace("back.db", "copies.db"), tmp_path / "no" / "copy.db")
    assert not (tmp_path / "back.db").exists()
    assert not list(tmp_path.glob(".*db*"))


def test_a_damaged_copy_is_not_put_back(copy: Path, tmp_path: Path) -> None:
    data = bytearray(copy.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 8192] = b"\xff" * 8192
    copy.write_bytes(data)
    with pytest.raises(StoreError):
        backup.restore(copy, f"sqlite:///{tmp_path / 'back.db'}")
    assert not (tmp_path / "back.db").exists()


def test_a_full_disk_is_named_and_nothing_is_left_on_it(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own limit on the pages of a file stands for the disk."""
    connect, target = sqlite3.connect, tmp_path / "other.db"

    def limited(path: Path, **more: Any) -> sqlite3.Connection:
        connection = connect(path, **more)
        if path not in (copy, target):
            connection.execute("PRAGMA max_page_count = 10")
        return connection

    monkeypatch.setattr(sqlite3, "connect", limited)
    before = set(tmp_path.iterdir())
    with pytest.raises(Unwritable, match=r"cannot write .*other.db: the disk is full"):
        backup.restore(copy, f"sqlite:///{target}")
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "other.db.lock"}


def test_postgresql_is_told_its_own_tools_and_no_secret(tmp_path: Path) -> None:
    with pytest.raises(UrlRefused, match="pg_dump --format=custom --file=") as dump:
        backup.backup(POSTGRES, tmp_path / "copy.db")
    (said,) = (each for each in shlex.split(str(dump.value)) if each.startswith("--dbname="))
    known = {"host=db.example", "dbname=clusters", "user=fedclust", "port=5433"}
    assert set(said.removeprefix("--dbname=").split()) == known
    with pytest.raises(UrlRefused, match="pg_restore") as restored:
        backup.restore(tmp_path / "copy.db", POSTGRES)
    for caught in (dump, restored):
        assert "secret-word" not in str(caught.value)
        assert "hush" not in str(caught.value)


def test_the_dump_of_a_postgresql_that_is_reached_by_a_socket(
    postgres_url: str, tmp_path: Path
) -> None:
    """The command that is printed reaches the database: the folder is in the address's query."""
    there = make_url(postgres_url)
    assert there.query["host"]
    url = there.set(password="secret-word").update_query_dict({"application_name": "a 'b\\ c"})
    with pytest.raises(UrlRefused) as caught:
        backup.backup(url.render_as_string(hide_password=False), tmp_path / "my copy")
    assert "secret-word" not in str(caught.value)
    command = shlex.split(str(caught.value).partition("pgpass: ")[2])
    assert command[:3] == ["pg_dump", "--format=custom", f"--file={tmp_path / 'my copy'}"]
    with psycopg.connect(command[3].removeprefix("--dbname=")) as connection:
        found = connection.execute("SELECT current_database(), current_setting('application_name')")
        assert found.fetchone() == (there.database, "a 'b\\ c")
