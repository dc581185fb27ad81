"""Cohorts on disk: whole after a crash, refused where they are damaged, never formed anew."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclust import durable_files, errors
from fedclust.durable_files import FileLock, read_sealed, write_sealed
from fedclust.protection.cohort import Cohort
from fedclust.protection.columns import SourceColumn
from fedclust.protection.recognition import PersonBlocks, PersonSource
from fedclust.site.cohorts import CohortStore, Draft
from fedclust.site.ledger import Ledger
from fedclust.site.paths import state_directory
from support.cohorts import persons, sources_of

NOW = datetime(2026, 3, 1, tzinfo=UTC)
People = dict[str, np.ndarray]


class Hospital:
    """A store and a ledger in a directory of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.store = CohortStore(directory / "state" / "cohorts", patience_s=0.0)
        self.ledger = Ledger(directory / "journal")

    def draft(self, people: People, **options: Any) -> Draft:
        rules = {f"x{column}": "number" for column in range(9)}
        return self.store.draft(PersonSource(blocks_of(people), rules), p=5, now=NOW, **options)

    def update(self, people: People, **options: Any) -> Cohort:
        return self.store.keep(self.draft(people, **options), self.ledger)

    def lines(self) -> list[dict[str, object]]:
        return list(self.ledger.read())


def blocks_of(people: People) -> PersonBlocks:
    return lambda: [(list(people), sources_of(list(people.values())))]


def mixed(n: int, first: int = 0) -> People:
    """Return persons with a number, a yes/no column and a column of few numbers."""
    rows = persons(n, 3, first=first)
    return {
        name: np.array([row[0], row[1] > 0, np.rint(row[2])], dtype=np.float64)
        for name, row in rows.items()
    }


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    return Hospital(tmp_path)


def same(first: Cohort, second: Cohort) -> bool:
    """Return whether two cohorts hold the same."""
    for name in ("keys", "groups", "withdrawn", "signatures", "sizes", "used"):
        mine, theirs = getattr(first, name), getattr(second, name)
        if mine.dtype != theirs.dtype or not np.array_equal(mine, theirs):
            return False
    for mine, theirs in zip(first.columns, second.columns, strict=True):
        arrays = ("released", "decided", "prints")
        if any(
            not np.array_equal(
                np.nan_to_num(getattr(mine, name)), np.nan_to_num(getattr(theirs, name))
            )
            for name in arrays
        ):
            return False
        if (mine.column, mine.rules, mine.share) != (theirs.column, theirs.rules, theirs.share):
            return False
    return (first.table_id, first.p, first.base, dict(first.aliases)) == (
        second.table_id,
        second.p,
        second.base,
        dict(second.aliases),
    )


def test_a_cohort_is_read_as_it_was_written(hospital: Hospital) -> None:
    cohort = hospital.update(mixed(80))

    (record,) = Hospital(hospital.store.directory.parents[1]).store.records().values()

    assert same(record.cohort, cohort)
    assert len(record.cohort.table_id) == 32


def test_the_files_belong_to_the_owner_alone(hospital: Hospital) -> None:
    hospital.update(mixed(80))
    for path in hospital.store.directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(hospital.store.directory.stat().st_mode) == 0o700


def test_no_id_and_no_value_is_in_the_files_real_record(hospital: Hospital) -> None:
    people = {f"patient-{i:05d}": row for i, row in enumerate(persons(60).values())}
    hospital.update(people)
    hospital.store.withdraw("patient-00007", hospital.ledger, NOW)

    written = b"".join(
        path.read_bytes()
        for path in hospital.store.directory.parents[1].rglob("*")
        if path.is_file()
    )
    assert b"patient-" not in written
    for row in people.values():
        assert all(value.tobytes() not in written for value in row)


def test_each_change_is_a_line_of_the_ledger_in_counts(hospital: Hospital) -> None:
    people = mixed(80)
    hospital.update(people)
    hospital.update(people)
    more = people | mixed(20, 200)
    hospital.update(more)
    hospital.store.withdraw("P7", hospital.ledger, NOW)

    lines = hospital.lines()

    assert [(line["what"], line["persons"]) for line in lines] == [
        ("created", 80),
        ("updated", 20),
        ("withdrawn", 1),
    ]
    allowed = {"line", "previous", "event", "what", "table", "change", "time", "random"}
    for line in lines:
        assert all(isinstance(line[key], int) for key in set(line) - allowed)
    assert hospital.ledger.verify() == []


def test_a_line_that_a_crash_cost_is_entered_with_the_next_table(hospital: Hospital) -> None:
    hospital.store.keep(hospital.draft(mixed(80)), Ledger(hospital.store.directory / "elsewhere"))
    assert hospital.lines() == []

    hospital.update(mixed(80))

    assert [line["what"] for line in hospital.lines()] == ["created"]


def test_a_draft_writes_nothing(hospital: Hospital) -> None:
    draft = hospital.draft(mixed(80))
    assert draft.change.persons == 80
    assert hospital.store.records() == {}
    assert hospital.lines() == []


def test_a_draft_from_before_another_change_is_not_kept(hospital: Hospital) -> None:
    draft = hospital.draft(mixed(80))
    other = hospital.update(mixed(80))

    with pytest.raises(errors.CohortLocked, match="run the same command again"):
        hospital.store.keep(draft, hospital.ledger)

    assert list(hospital.store.records()) == [other.table_id]


def test_two_sites_on_one_account_may_begin_at_once(hospital: Hospital) -> None:
    first, second = hospital.draft(mixed(80)), hospital.draft(mixed(80, 500))
    hospital.store.keep(first, hospital.ledger)
    hospital.store.keep(second, hospital.ledger)
    assert len(hospital.store.records()) == 2


class Crashed(Exception):
    pass


@pytest.mark.parametrize("step", range(1, 13))
def test_a_crash_leaves_the_old_state_or_the_new_one(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Fail at each sync in turn: nothing is written half, and running again completes it."""
    people, more = mixed(80), mixed(80) | mixed(30, 200)
    old = hospital.update(people)
    draft = hospital.draft(more)
    left = step

    def sync(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Crashed
        os.fsync(descriptor)

    monkeypatch.setattr(durable_files, "sync", sync)
    with contextlib.suppress(Crashed):
        hospital.store.keep(draft, hospital.ledger)
    monkeypatch.undo()

    (record,) = hospital.store.records(hospital.ledger).values()
    assert same(record.cohort, old) or same(record.cohort, draft.record.cohort)
    after = hospital.update(more)
    assert same(after, draft.record.cohort)
    assert [line["what"] for line in hospital.lines()] == ["created", "updated"]
    assert hospital.ledger.verify() == []


def test_a_killed_process_leaves_a_readable_store(hospital: Hospital) -> None:
    hospital.update(mixed(80))
    path = hospital.store.directory
    script = (
        "import sys; from pathlib import Path; from datetime import UTC, datetime\n"
        "sys.path[:0] = sys.argv[2:]\n"
        "from site_cohorts_child import main; main(Path(sys.argv[1]))\n"
    )
    here = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(path.parents[1]), *here], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    for _ in range(3):
        assert child.stdout.readline() == b"written\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()

    (record,) = hospital.store.records().values()
    assert len(record.history) >= 4
    sizes = np.bincount(record.cohort.groups)
    np.testing.assert_array_equal(sizes, record.cohort.sizes)
    hospital.store.withdraw("P7", hospital.ledger, NOW)  # the lock is free


def test_another_process_holds_the_lock(hospital: Hospital) -> None:
    hospital.update(mixed(80))
    with (
        FileLock(hospital.store.directory / "lock"),
        pytest.raises(errors.CohortLocked, match="try again"),
    ):
        hospital.update(mixed(80))


def _damages(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    yield data[:-1]
    yield data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
    yield b""


@pytest.mark.parametrize("name", ["key", "index", "*.cohort"])
def test_a_damaged_file_ends_the_command_and_forms_no_groups(hospital: Hospital, name: str) -> None:
    hospital.update(mixed(80))
    (path,) = hospital.store.directory.glob(name)
    whole = path.read_bytes()
    for damaged in [*_damages(path)]:
        path.write_bytes(damaged)
        with pytest.raises(errors.CohortDamaged, match="backup"):
            hospital.update(mixed(80))
        with pytest.raises(errors.CohortDamaged, match="backup"):
            hospital.update(mixed(80, 500))
        assert path.read_bytes() == damaged
    path.write_bytes(whole)
    hospital.update(mixed(80))


def test_a_file_with_arrays_of_another_length_is_damaged(hospital: Hospital) -> None:
    hospital.update(mixed(80))
    (path,) = hospital.store.directory.glob("*.cohort")
    head, _, body = read_sealed(path).partition(b"\n")
    header = json.loads(head)
    for change in ({"persons": 2**60}, {"groups": -1}, {"columns": []}, {"format": 2}):
        changed = json.dumps(header | change).encode()
        write_sealed(path, changed + b"\n" + body)
        with pytest.raises(errors.CohortDamaged):
            hospital.store.records()


@pytest.mark.parametrize("name", ["key", "*.cohort"])
def test_a_lost_file_is_missed(hospital: Hospital, name: str) -> None:
    hospital.update(mixed(80))
    (path,) = hospital.store.directory.glob(name)
    path.unlink()
    with pytest.raises(errors.CohortLost, match="backup"):
        hospital.update(mixed(80))


def test_a_lost_or_older_store_is_missed_by_the_ledger(hospital: Hospital) -> None:
    hospital.update(mixed(80))
    (path,) = hospital.store.directory.glob("*.cohort")
    old = path.read_bytes()
    hospital.update(mixed(80) | mixed(30, 200))
    path.write_bytes(old)
    with pytest.raises(errors.CohortLost, match="released"):
        hospital.store.records(hospital.ledger)

    for each in hospital.store.directory.iterdir():
        each.unlink()
    with pytest.raises(errors.CohortLost, match="FEDCLUST_STATE_DIR"):
        hospital.store.records(hospital.ledger)


def test_a_cohort_of_another_key_is_foreign(hospital: Hospital, tmp_path: Path) -> None:
    other = Hospital(tmp_path / "other")
    hospital.update(mixed(80))
    other.update(mixed(80))
    (path,) = hospital.store.directory.glob("*.cohort")
    (theirs,) = other.store.directory.glob("*.cohort")
    path.write_bytes(theirs.read_bytes())
    with pytest.raises(errors.CohortForeign, match="another key"):
        hospital.update(mixed(80))


def test_a_backup_is_a_store(hospital: Hospital, tmp_path: Path) -> None:
    cohort = hospital.update(mixed(80))
    copied = hospital.store.backup(tmp_path / "copy")
    assert len(copied) == 3

    (record,) = CohortStore(tmp_path / "copy").records().values()
    assert same(record.cohort, cohort)
    with pytest.raises(errors.UsageError, match="not empty"):
        hospital.store.backup(tmp_path / "copy")
    with pytest.raises(errors.UsageError, match="no groups"):
        Hospital(tmp_path / "new").store.backup(tmp_path / "copy2")


def test_two_sites_on_one_account_have_cohorts_of_their_own(hospital: Hospital) -> None:
    here, there = hospital.update(mixed(80)), hospital.update(mixed(80, 500))
    assert here.table_id != there.table_id
    assert hospital.update(mixed(80)).table_id == here.table_id


def test_neither_another_journal_nor_another_coordinator_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDCLUST_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("FEDCLUST_JOURNAL_DIR", str(tmp_path / "elsewhere"))
    assert state_directory() == tmp_path / "state"
    assert CohortStore().directory == tmp_path / "state" / "cohorts"
    monkeypatch.delenv("FEDCLUST_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "xdg"))
    assert state_directory() == tmp_path / "xdg" / "fedclust"


def test_a_refused_source_changes_nothing(hospital: Hospital) -> None:
    hospital.update(mixed(80))
    people = {f"new-{name}": row for name, row in mixed(80).items()}
    with pytest.raises(errors.PersonsRefused, match="ids that they had") as refused:
        hospital.update(people)
    assert refused.value.rule == "other-ids"
    assert len(hospital.store.records()) == 1


def test_separate_groups_need_an_approval_and_end_at_three(hospital: Hospital) -> None:
    people = mixed(80)
    first = hospital.update(people)
    second = hospital.update(people, separate="board decision 7")
    third = hospital.update(people, separate="board decision 8")
    assert len({first.table_id, second.table_id, third.table_id}) == 3
    with pytest.raises(errors.PersonsRefused, match="3 tables") as refused:
        hospital.update(people, separate="board decision 9")
    assert refused.value.rule == "too-many-groupings"

    with pytest.raises(errors.PersonsRefused, match="--cohort") as refused:
        hospital.update(people)
    assert refused.value.rule == "two-cohorts"
    assert hospital.update(people, table=second.table_id[:8]).table_id == second.table_id
    with pytest.raises(errors.UsageError, match="0 tables"):
        hospital.update(people, table="no")
    with pytest.raises(errors.PersonsRefused, match="no person of this source"):
        hospital.update(mixed(80, 500), table=second.table_id)
    changes = [(line["what"], line.get("approval")) for line in hospital.lines()]
    assert changes == [
        ("created", None),
        ("separate", "board decision 7"),
        ("separate", "board decision 8"),
    ]


def test_withdrawal_reaches_every_table_and_no_unknown_person(hospital: Hospital) -> None:
    people = mixed(80)
    hospital.update(people)
    hospital.update(people, separate="board decision 7")

    assert hospital.store.withdraw("P7", hospital.ledger, NOW) == 2
    assert all(not r.cohort.used.all() for r in hospital.store.records().values())
    with pytest.raises(errors.PersonsRefused, match="no group holds"):
        hospital.store.withdraw("P700", hospital.ledger, NOW)


def test_who_was_withdrawn_is_in_no_later_table_real_record(hospital: Hospital) -> None:
    people = persons(60)
    hospital.update(people)
    hospital.store.withdraw("P7", hospital.ledger, NOW)

    apart = hospital.update(people, separate="board decision 7")

    rows = apart.table_rows(hospital.store.secret(), list(people))
    assert np.flatnonzero(rows < 0).tolist() == [7]
    assert len(apart.keys) == 59


def test_a_named_table_takes_no_person_of_another_real_record(hospital: Hospital) -> None:
    here, there = persons(60), persons(60, first=100)
    first = hospital.update(here)
    hospital.update(there)
    with pytest.raises(errors.PersonsRefused, match="of the tables"):
        hospital.update(here | there, table=first.table_id)
    apart = hospital.update(here, separate="board decision 7")
    with pytest.raises(errors.PersonsRefused, match="of the tables"):
        hospital.update(here | there, table=apart.table_id)

    more = here | persons(20, first=200)
    assert len(hospital.update(more, table=first.table_id).keys) == 80
    assert len(hospital.update(more, table=apart.table_id).keys) == 80, "both were approved"


def test_withdrawal_without_a_table_is_refused(hospital: Hospital) -> None:
    with pytest.raises(errors.PersonsRefused, match="no table yet"):
        hospital.store.withdraw("P7", hospital.ledger, NOW)


def test_levels_and_ties_survive(hospital: Hospital) -> None:
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, 90)
    sources = [
        *(SourceColumn(f"x{k}", (kinds == k).astype(np.float64)) for k in range(3)),
        SourceColumn("x3", rng.integers(0, 4, 90).astype(np.float64), 4),
    ]
    ids = [f"P{i}" for i in range(90)]
    rules = {f"x{column}": "number" for column in range(4)}
    draft = hospital.store.draft(PersonSource(lambda: [(ids, sources)], rules), p=5, now=NOW)
    hospital.store.keep(draft, hospital.ledger)

    (record,) = hospital.store.records().values()

    assert same(record.cohort, draft.record.cohort)
    table = record.cohort.table(["x1", "x3"])
    assert table.names() == ("x0", "x1", "x2", "x3")
