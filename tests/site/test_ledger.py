"""The ledger's chain: what was done to a line is found, and a crash is not taken for it."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fedclust import durable_files
from fedclust.site.ledger import FIRST, Ledger, LedgerDamaged


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "state")
    for number in range(1, 6):
        ledger.append({"round": number, "sha256": f"{number:064x}", "receipt": None})
    return ledger


def lines(ledger: Ledger) -> list[bytes]:
    return ledger.path.read_bytes().splitlines(keepends=True)


def test_a_sound_ledger(ledger: Ledger) -> None:
    assert ledger.verify() == []
    entries = list(ledger.read())
    assert [entry["line"] for entry in entries] == [1, 2, 3, 4, 5]
    assert entries[0]["previous"] == FIRST
    count, head = ledger.head()
    assert count == 5
    assert ledger.verify(expected_head=head) == []
    ledger.append({"round": 6})
    # A head that was noted earlier is in every longer chain.
    assert ledger.verify(expected_head=head) == []


def test_an_empty_ledger_is_sound(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.check()
    assert ledger.verify() == []
    assert list(ledger.read()) == []
    assert ledger.head() == (0, FIRST)
    assert list(tmp_path.iterdir()) == []


def swap(texts: list[bytes]) -> list[bytes]:
    return [texts[0], texts[2], texts[1], *texts[3:]]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda t: [t[0], t[1].replace(b'"round": 2', b'"round": 9'), *t[2:]], 3),
        (lambda t: [*t[:4], t[4].replace(b'"round": 5', b'"round": 9')], 5),
        (lambda t: t[1:], 1),
        (lambda t: [t[0], *t[2:]], 2),
        (lambda t: t[:-1], 5),
        (lambda t: t[:2], 3),
        (lambda _t: [], 1),
        (swap, 2),
        (lambda t: [*t, t[4]], 6),
        (lambda t: [*t, b"{}\n", b"{}\n"], 6),
        (lambda t: [*t[:3], b"not json\n", *t[4:]], 4),
        (lambda t: [*t[:4], t[4][:-9]], 5),
        (lambda t: [*t[:2], b"\n", *t[2:]], 3),
    ],
)
def test_what_was_done_to_a_line_is_found(
    ledger: Ledger, change: Callable[[list[bytes]], list[bytes]], line: int
) -> None:
    ledger.path.write_bytes(b"".join(change(lines(ledger))))
    faults = ledger.verify()
    assert faults
    assert faults[0].line == line


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: [*t[:4], t[4][:-9] + b"x}\n"]])
def test_nothing_is_appended_to_a_ledger_that_was_cut_or_changed(
    ledger: Ledger, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    ledger.path.write_bytes(b"".join(change(lines(ledger))))
    before = ledger.path.read_bytes()
    with pytest.raises(LedgerDamaged):
        ledger.check()
    with pytest.raises(LedgerDamaged):
        ledger.append({"round": 6})
    assert ledger.path.read_bytes() == before


def test_a_removed_head_is_found_and_a_rewritten_ledger_by_a_noted_head(
    ledger: Ledger, tmp_path: Path
) -> None:
    _, noted = ledger.head()
    head = ledger.path.with_name("ledger.jsonl.head")
    kept = head.read_bytes()
    head.unlink()
    assert ledger.verify()
    with pytest.raises(LedgerDamaged):
        ledger.check()
    head.write_bytes(b"{")
    assert ledger.verify()
    with pytest.raises(LedgerDamaged):
        ledger.check()
    head.write_bytes(kept)
    forged = Ledger(tmp_path / "forged")
    for number in range(1, 6):
        forged.append({"round": number, "sha256": "f" * 64, "receipt": None})
    assert forged.verify() == []
    assert forged.verify(expected_head=noted)


class Crash(BaseException):
    pass


@pytest.mark.parametrize("at", range(6))
def test_a_crash_at_any_write_leaves_a_ledger_that_goes_on(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Before and after each sync: the line is there whole or not at all, never twice."""
    counted = iter(range(100))
    real = durable_files.sync

    def sync(descriptor: int) -> None:
        if next(counted) == at:
            raise Crash
        real(descriptor)
        if next(counted) == at:
            raise Crash

    entry = {"round": 6, "sha256": "6" * 64, "receipt": None}
    monkeypatch.setattr(durable_files, "sync", sync)
    with contextlib.suppress(Crash):
        ledger.append(entry)
    assert next(counted) > at, "no crash there"
    monkeypatch.setattr(durable_files, "sync", real)
    again = Ledger(ledger.path.parent)
    again.append(entry, unless=frozenset({"round", "sha256"}))
    again.append({"round": 7}, unless=frozenset({"round"}))
    assert [e["round"] for e in again.read()] == [1, 2, 3, 4, 5, 6, 7]
    assert again.verify() == []


def test_a_line_cut_short_by_a_crash_is_written_over(ledger: Ledger) -> None:
    with ledger.path.open("ab") as file:
        file.write(b'{"line": 6, "previo')
    ledger.check()
    ledger.append({"round": 6})
    assert ledger.verify() == []
    assert len(lines(ledger)) == 6


def test_two_processes_append_one_after_the_other(tmp_path: Path) -> None:
    def write(name: str) -> None:
        for number in range(20):
            Ledger(tmp_path).append({"session": name, "round": number})

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger = Ledger(tmp_path)
    assert ledger.verify() == []
    assert len(list(ledger.read())) == 60


def test_lines_are_json_with_nothing_in_between(ledger: Ledger) -> None:
    for line in lines(ledger):
        assert line.endswith(b"}\n")
        json.loads(line)


@pytest.mark.skipif(sys.platform == "win32", reason="file modes are POSIX")
def test_files_belong_to_their_owner_alone(ledger: Ledger) -> None:
    for path in [ledger.path.parent, *ledger.path.parent.iterdir()]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_what_a_crash_left_of_a_line_is_no_fault(ledger: Ledger) -> None:
    whole = list(ledger.read())
    with ledger.path.open("ab") as file:
        file.write(b'{"line": 6, "prev')
    assert ledger.verify() == []
    assert list(ledger.read()) == whole


def test_a_line_that_no_parser_survives_is_a_fault(ledger: Ledger) -> None:
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join([b"[" * 100_000 + b"\n", *lines[1:]]))
    assert ledger.verify()[0].line == 1
