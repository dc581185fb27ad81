"""The ledger's chain: what was done to a line is found, and a crash is not taken for it."""

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from fedclust.site.ledger import FIRST, Ledger
from fedclust.site.state import SiteState
from fedclust.wire.errors import StateDamaged
from support.crashes import each_moment

Line = tuple[int, str]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(SiteState(tmp_path / "state"))
    for number in range(1, 6):
        ledger.append({"round": number, "sha256": f"{number:064x}", "receipt": None})
    return ledger


def lines(ledger: Ledger) -> list[Line]:
    return list(enumerate(ledger.texts(), 1))


def rewrite(ledger: Ledger, changed: list[Line]) -> None:
    """Replace the lines as no program of fedclust does."""
    with closing(sqlite3.connect(ledger.state.path)) as connection:
        connection.execute("DELETE FROM ledger")
        connection.executemany("INSERT INTO ledger (line, text) VALUES (?, ?)", changed)
        connection.commit()


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
    ledger = Ledger(SiteState(tmp_path))
    ledger.check()
    assert ledger.verify() == []
    assert list(ledger.read()) == []
    assert ledger.head() == (0, FIRST)
    assert list(tmp_path.iterdir()) == []


def other(line: Line, old: str, new: str) -> Line:
    return line[0], line[1].replace(old, new)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda t: [t[0], other(t[1], '"round": 2', '"round": 9'), *t[2:]], 3),
        (lambda t: [*t[:4], other(t[4], '"round": 5', '"round": 9')], 5),
        (lambda t: t[1:], 1),
        (lambda t: [t[0], *t[2:]], 2),
        (lambda t: t[:-1], 5),
        (lambda _t: [], 1),
        (lambda t: [t[0], (2, t[2][1]), (3, t[1][1]), *t[3:]], 2),
        (lambda t: [*t, (6, t[4][1])], 6),
        (lambda t: [*t[:3], (4, "not json"), *t[4:]], 4),
        (lambda t: [*t[:4], (5, t[4][1][:-9])], 5),
        (lambda t: [*t[:4], (9, t[4][1])], 5),
        (lambda t: [(1, "[" * 100_000), *t[1:]], 1),
    ],
)
def test_what_was_done_to_a_line_is_found(
    ledger: Ledger, change: Callable[[list[Line]], list[Line]], line: int
) -> None:
    rewrite(ledger, change(lines(ledger)))
    assert ledger.verify()[0].startswith(f"line {line}: ")


def test_a_damaged_line_is_found_among_the_events(ledger: Ledger) -> None:
    rewrite(ledger, [*lines(ledger)[:-1], (5, "damaged")])
    with pytest.raises(StateDamaged, match="line 5 of the ledger"):
        list(ledger.events())


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: [*t[:4], (5, t[4][1][:-9] + "x}")]])
def test_nothing_is_appended_to_a_ledger_that_was_cut_or_changed(
    ledger: Ledger, change: Callable[[list[Line]], list[Line]]
) -> None:
    rewrite(ledger, change(lines(ledger)))
    before = lines(ledger)
    with pytest.raises(StateDamaged, match="ledger verify"):
        ledger.check()
    with pytest.raises(StateDamaged):
        ledger.append({"round": 6})
    assert lines(ledger) == before


def test_a_removed_head_is_found_and_a_rewritten_ledger_by_a_noted_head(
    ledger: Ledger, tmp_path: Path
) -> None:
    _, noted = ledger.head()
    for statement in (
        "UPDATE documents SET content = substr(content, 2) WHERE name = 'ledger-head'",
        "DELETE FROM documents WHERE name = 'ledger-head'",
    ):
        with closing(sqlite3.connect(ledger.state.path)) as connection:
            connection.execute(statement)
            connection.commit()
        with pytest.raises(StateDamaged):
            ledger.check()
    assert ledger.verify(), "without a head all lines are too many"
    forged = Ledger(SiteState(tmp_path / "forged"))
    for number in range(1, 6):
        forged.append({"round": number, "sha256": "f" * 64, "receipt": None})
    assert forged.verify() == []
    assert forged.verify(expected_head=noted)


def test_a_kill_at_any_write_leaves_a_ledger_that_goes_on(ledger: Ledger, tmp_path: Path) -> None:
    """The line is there whole or not at all."""
    copies = tmp_path / "moments"
    for left in each_moment(copies, ledger.state, lambda: ledger.append({"round": 6})):
        again = Ledger(SiteState(left))
        assert again.verify() == []
        if again.head()[0] == 5:
            again.append({"round": 6})
        again.append({"round": 7})
        assert [e["round"] for e in again.read()] == [1, 2, 3, 4, 5, 6, 7]
        assert again.verify() == []


def test_two_processes_append_one_after_the_other(tmp_path: Path) -> None:
    def write(name: str) -> None:
        for number in range(20):
            Ledger(SiteState(tmp_path)).append({"session": name, "round": number})

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, "abc"))
    ledger = Ledger(SiteState(tmp_path))
    assert ledger.verify() == []
    assert len(list(ledger.read())) == 60
