"""A site's state: one database, one writer at a time, and clear errors where it cannot be used."""

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from fedclust import errors
from fedclust.schema.model import Model
from fedclust.site import state as state_module
from fedclust.site.state import SiteState, StateDocument
from support.processes import clean_environment
from support.timeouts import TIMEOUT_S


class Counts(Model):
    """A document."""

    n: int = 0


ADD = """
import sys
from fedclust.site.state import SiteState, StateDocument
from fedclust.schema.model import Model
class Counts(Model):
    n: int = 0
document = StateDocument(SiteState(sys.argv[1]), "counts", Counts)
for _ in range(20):
    document.update(lambda was: Counts(n=was.n + 1))
"""


def test_processes_that_begin_at_once_wait_for_each_other(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ADD, str(tmp_path / "state")]
    started = [subprocess.Popen(command, env=clean_environment()) for _ in range(2)]
    assert [each.wait(TIMEOUT_S) for each in started] == [0] * 2
    state = SiteState(tmp_path / "state")
    assert StateDocument(state, "counts", Counts).read() == Counts(n=40)
    # One of them made it, and the others left nothing.
    assert {path.name for path in state.directory.iterdir()} == {"state.sqlite3", "running"}


def test_who_waits_too_long_is_told_who_writes(tmp_path: Path) -> None:
    state, other = SiteState(tmp_path), SiteState(tmp_path, patience_s=0.01)
    caught: list[BaseException] = []

    def write() -> None:
        try:
            with other.write():
                pass
        except errors.StateLocked as error:
            caught.append(error)

    with state.write():
        thread = threading.Thread(target=write)
        thread.start()
        thread.join(TIMEOUT_S)
        # Readers do not wait.
        with other.read():
            pass
    assert "another process has been writing" in str(caught[0])


@pytest.mark.parametrize("kept_open", [False, True])
def test_what_raises_is_not_stored_and_a_block_sees_one_moment(
    tmp_path: Path, kept_open: bool
) -> None:
    state = SiteState(tmp_path)
    document = StateDocument(state, "counts", Counts)
    assert document.read() == Counts()
    assert not state.path.exists(), "reading makes no file"
    document.update(lambda _: Counts(n=1))

    def fail() -> None:
        with state.write():
            document.update(lambda _: Counts(n=2))
            assert document.read() == Counts(n=2), "a block within belongs to the outer one"
            raise KeyError

    def add_elsewhere(n: int) -> None:
        other = threading.Thread(target=document.update, args=(lambda was: Counts(n=was.n + n),))
        other.start()
        other.join(TIMEOUT_S)

    with state.kept_open() if kept_open else nullcontext():
        with state.read() as first:
            pass
        with state.write() as second:
            assert (second is first) == kept_open
        with pytest.raises(KeyError):
            fail()
        assert document.read() == Counts(n=1)
        with state.read():
            assert StateDocument(SiteState(tmp_path), "counts", Counts).read() == Counts(n=1)
            add_elsewhere(2)
            document.update(lambda was: Counts(n=was.n + 4))
            assert document.read() == Counts(n=1)
            assert list(state.rows("SELECT count(*) FROM documents")) == [(2,)]
        add_elsewhere(8)
        document.update(lambda was: Counts(n=was.n + 16))
        assert document.read() == Counts(n=31)
    assert document.read() == Counts(n=31)


def test_the_database_is_durable_and_private(tmp_path: Path) -> None:
    state = SiteState(tmp_path / "state")
    with state.write() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        if sys.platform != "win32":
            modes = {path.stat().st_mode & 0o777 for path in state.files if path.exists()}
            assert modes == {0o600}
            assert state.directory.stat().st_mode & 0o777 == 0o700


def test_the_log_stays_until_a_state_that_is_kept_open_is_closed(tmp_path: Path) -> None:
    state = SiteState(tmp_path)
    database, log, *_ = state.files
    with state.kept_open():
        pass
    assert not database.exists()
    state.secret()
    before = database.read_bytes()
    with state.kept_open():
        with state.write() as connection:
            connection.execute("INSERT INTO ledger (text) VALUES ('line')")
        assert database.read_bytes() == before
        assert list(SiteState(tmp_path).rows("SELECT text FROM ledger")) == [("line",)]
    assert database.read_bytes() != before
    assert not log.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be replaced")
def test_a_database_that_replaces_the_one_kept_open_is_written(tmp_path: Path) -> None:
    state, restored = SiteState(tmp_path / "a"), SiteState(tmp_path / "b")
    for each in (state, restored):
        StateDocument(each, "counts", Counts).update(lambda was: Counts(n=was.n + 1))
    document = StateDocument(state, "counts", Counts)
    with state.kept_open():
        document.update(lambda was: Counts(n=was.n + 1))
        for left in state.files[1:]:
            left.unlink(missing_ok=True)
        restored.path.replace(state.path)
        document.update(lambda was: Counts(n=was.n + 10))
        assert document.read() == Counts(n=11)
    assert document.read() == Counts(n=11)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write it")
def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(errors.StateError, match="Permission denied"), SiteState(tmp_path).write():
        pass
    tmp_path.chmod(0o700)


def test_a_newer_state_and_another_database_are_refused(tmp_path: Path) -> None:
    state = SiteState(tmp_path)
    with state.write():
        pass
    for statement, said in (
        ("PRAGMA user_version = 99", "has format 99"),
        ("PRAGMA application_id = 7", "fedclust did not write it"),
    ):
        with closing(sqlite3.connect(state.path)) as connection:
            connection.execute(statement)
        with pytest.raises(errors.StateError, match=said), state.read():
            pass


def test_the_kind_of_a_mount_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/proc/self/mounts").exists():
        pytest.skip("no list of mounts")
    mounts = "/dev/a / ext4 rw 0 0\nserver:/b /mnt/my\\040files nfs4 rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda *_a, **_k: mounts)
    assert state_module.network_file_system(Path("/mnt/my files/state")) == "nfs4"
    assert state_module.network_file_system(Path("/mnt/my")) is None
