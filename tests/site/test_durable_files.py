"""Durable files: whole or not at all, locked."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedclust import durable_files
from fedclust.durable_files import FileLock, LockHeld, write_atomically


@pytest.mark.parametrize("at", range(4))
def test_a_crash_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    path = tmp_path / "f"
    write_atomically(path, b"old")
    counted = iter(range(100))

    def sync(descriptor: int) -> None:
        for _ in range(2):
            if next(counted) == at:
                raise KeyboardInterrupt

    monkeypatch.setattr(durable_files, "sync", sync)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() in (b"old", b"new")


def test_the_file_is_synced_before_it_takes_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, order = tmp_path / "f", []

    def sync(descriptor: int) -> None:
        order.append((os.fstat(descriptor).st_ino, path.exists()))

    monkeypatch.setattr(durable_files, "sync", sync)
    write_atomically(path, b"x")
    if sys.platform != "win32":
        assert order == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX")
def test_a_lock_does_not_outlive_a_killed_process(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, fedclust.durable_files as f\n"
        "f.FileLock(pathlib.Path(sys.argv[1])).acquire()\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "lock")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "held\n"
        lock = FileLock(tmp_path / "lock")
        with pytest.raises(LockHeld):
            lock.acquire()
        process.send_signal(signal.SIGKILL)
        process.wait()
        lock.acquire()
        lock.release()


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable_files, "sync", full)
    path = tmp_path / "f"
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, b"x")
    assert caught.value.filename == str(path)


def test_a_file_system_without_locks_is_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_descriptor: int, _wait: bool) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(durable_files, "_lock", none)
    with pytest.raises(OSError, match="not supported") as caught:
        FileLock(tmp_path / "lock").acquire()
    assert caught.value.filename == str(tmp_path / "lock")
