"""Cohorts in the state: whole after a crash, refused where damaged, never formed anew."""

import contextlib
import os
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from fedclust import errors
from fedclust.protection.cohort import ARRAYS, Cohort
from fedclust.protection.columns import SourceColumn
from fedclust.protection.recognition import PersonSource
from fedclust.site.backup import verify_state
from fedclust.site.cohorts import CohortStore, Draft, Overtaken
from fedclust.site.ledger import Ledger
from fedclust.site.state import SiteState, seal
from fedclust_service.domain.site_table import SiteTable, TableVerdict, accepts
from support.cohorts import persons, source_of
from support.crashes import each_moment

NOW = datetime(2026, 3, 1, tzinfo=UTC)
People = dict[str, np.ndarray]


class Hospital:
    """The groups in a state of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.state = SiteState(directory)
        self.store, self.ledger = CohortStore(self.state), Ledger(self.state)

    def draft(self, people: People, **options: Any) -> Draft:
        return self.store.draft(source_of(people), p=5, now=NOW, **options)

    def update(self, people: People, **options: Any) -> Cohort:
        return self.store.keep(self.draft(people, **options))

    def lines(self) -> list[dict[str, object]]:
        return list(self.ledger.read())

    def change(self, statement: str, *values: object) -> None:
        """Change the database as no program of fedclust does."""
        with closing(sqlite3.connect(self.state.path)) as connection:
            connection.execute(statement, values)
            connection.commit()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def mixed(n: int, first: int = 0) -> People:
    """Return persons with a number, a yes/no column and a column of few numbers."""
    rows = persons(n, 3, first=first)
    return {
        name: np.array([row[0], row[1] > 0, np.rint(row[2])], dtype=np.float64)
        for name, row in rows.items()
    }


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    return Hospital(tmp_path / "state")


def same(first: Cohort, second: Cohort) -> bool:
    """Return whether two cohorts hold the same, in arrays of the same types."""
    for name in ARRAYS:
        if getattr(first, name).dtype != getattr(second, name).dtype:
            return False
    try:
        np.testing.assert_equal(asdict(first), asdict(second))
    except AssertionError:
        return False
    return True


def test_no_id_and_no_value_is_in_the_files_real_record(hospital: Hospital) -> None:
    people = {f"patient-{i:05d}": row for i, row in enumerate(persons(60).values())}
    hospital.update(people)
    hospital.store.withdraw("patient-00007", NOW)

    written = b"".join(
        path.read_bytes() for path in hospital.state.directory.rglob("*") if path.is_file()
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
    hospital.store.withdraw("P7", NOW)

    lines = hospital.lines()

    counts = {line["what"]: line["persons"] for line in lines}
    assert counts == {"created": 80, "updated": 20, "withdrawn": 1}
    assert len(lines) == 3
    allowed = {"line", "previous", "event", "what", "table", "change", "time", "random"}
    for line in lines:
        assert all(isinstance(line[key], int) for key in set(line) - allowed)
    assert hospital.ledger.verify() == []


def test_a_draft_from_before_another_change_is_made_again(hospital: Hospital) -> None:
    """Also of a new table: it names the tables that share its points."""
    first, again, second = (hospital.draft(mixed(80, first)) for first in (0, 0, 500))
    table = hospital.store.keep(first)
    for late in (again, second):
        with pytest.raises(Overtaken):
            hospital.store.keep(late)
    assert list(hospital.store.records()) == [table.table_id]
    hospital.update(mixed(80, 500), other_persons="board 7")
    created = [line for line in hospital.lines() if line["what"] == "created"]
    assert [line.get("shares_with") for line in created] == [None, [table.table_id]]


def test_a_kill_at_any_write_leaves_the_old_groups_or_the_new_ones(
    hospital: Hospital, tmp_path: Path
) -> None:
    """The files are copied at each write, as kill -9 leaves them."""
    old = hospital.update(mixed(80))
    more = mixed(80) | mixed(30, 200)
    draft = hospital.draft(more)
    found = set()

    def write() -> None:
        hospital.store.keep(draft)

    for left in each_moment(tmp_path / "moments", hospital.state, write):
        killed = Hospital(left)
        (record,) = killed.store.records().values()
        is_new = same(record.cohort, draft.record.cohort)
        assert is_new or same(record.cohort, old)
        found.add(is_new)
        assert [line["what"] for line in killed.lines()] == ["created", "updated"][: 1 + is_new]
        assert killed.ledger.verify() == []
        assert same(killed.store.keep(draft), draft.record.cohort)
        assert [line["what"] for line in killed.lines()] == ["created", "updated"]
    assert found == {False, True}


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of a file's size")
def test_a_full_disk_at_any_write_stores_a_whole_release_or_nothing(hospital: Hospital) -> None:
    """The system refuses to write beyond a limit, which grows page by page."""
    import resource

    old = hospital.update(mixed(300))
    draft = hospital.draft(mixed(300) | mixed(250, 500))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    said: list[str] = []
    while True:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_096 * len(said), hard))
        try:
            hospital.store.keep(draft)
        except errors.StateError as error:
            said.append(str(error))
        else:
            break
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        (record,) = hospital.store.records().values()
        assert same(record.cohort, old)
        assert verify_state(hospital.state).lines == 1
    assert len(said) > 5
    assert all("run the same command again" in each for each in said)
    (record,) = hospital.store.records().values()
    assert same(record.cohort, draft.record.cohort)
    assert verify_state(hospital.state).lines == 2


def test_a_read_only_state_says_so(hospital: Hospital, monkeypatch: pytest.MonkeyPatch) -> None:
    old = hospital.update(mixed(80))
    connect = SiteState._connect

    def read_only(state: SiteState) -> sqlite3.Connection:
        connection = connect(state)
        connection.execute("PRAGMA query_only = ON")
        return connection

    monkeypatch.setattr(SiteState, "_connect", read_only)
    with pytest.raises(errors.StateError, match=r"readonly database\. Fix this and run"):
        hospital.update(mixed(80) | mixed(30, 200))
    (record,) = hospital.store.records().values()
    assert same(record.cohort, old)


def test_a_damaged_log_loses_whole_releases_and_the_heads_tell(
    hospital: Hospital, tmp_path: Path
) -> None:
    """What a killed process leaves: SQLite ignores the log from the first damaged frame on."""
    old, left = hospital.update(mixed(80)), Hospital(tmp_path / "left")
    with hospital.state.read() as connection:
        connection.execute("SELECT count(*) FROM ledger").fetchone()
        new = hospital.store.keep(hospital.draft(mixed(80) | mixed(30, 200)))
        shutil.copytree(hospital.state.directory, left.state.directory)
    before, log = left.state.path.read_bytes(), left.state.files[1]
    whole = log.read_bytes()
    heads = hospital.store.heads(new.table_id)
    accepted = SiteTable("north", new.table_id, heads.last, heads.heads[-1], NOW)
    found = set()
    for place in range(0, len(whole) + 1, 1_000):
        for beside in left.state.files[2:]:
            beside.unlink(missing_ok=True)
        left.state.path.write_bytes(before)
        log.write_bytes(_flipped(whole, place) if place < len(whole) else whole)
        (record,) = left.store.records().values()
        is_new = same(record.cohort, new)
        assert is_new or same(record.cohort, old)
        assert verify_state(left.state).lines == 1 + is_new
        verdict = accepts(accepted, left.store.heads(new.table_id))
        assert (verdict is TableVerdict.ACCEPTED) == is_new
        found.add(is_new)
    assert False in found


def test_a_kill_while_the_state_is_made_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    hospital = Hospital(tmp_path / "new")
    for left in each_moment(
        tmp_path / "moments", hospital.state, lambda: hospital.update(mixed(80))
    ):
        killed = Hospital(left)
        killed.state.check()
        assert len(killed.store.records()) == len(killed.lines()) <= 1
        killed.update(mixed(80))
        assert len(killed.lines()) == 1


def test_first_uses_at_once_wait_for_one_another(tmp_path: Path) -> None:
    """Two programs form groups of the same persons at once: one does, the other uses them."""
    drafted = threading.Barrier(2)

    def begin(_: int) -> str:
        site = Hospital(tmp_path / "state")
        draft = site.draft(mixed(80))
        drafted.wait()
        with contextlib.suppress(Overtaken):
            return site.store.keep(draft).table_id
        return site.update(mixed(80)).table_id

    with ThreadPoolExecutor(2) as pool:
        tables = set(pool.map(begin, range(2)))

    hospital = Hospital(tmp_path / "state")
    assert tables == hospital.store.records().keys()
    assert [line["what"] for line in hospital.lines()] == ["created"]


# --- damage ---------------------------------------------------------------------------------------


def _flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(("table", "where"), [("documents", "name = 'key'"), ("cohorts", "TRUE")])
@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-1], lambda data: _flipped(data, len(data) // 2), lambda _: b"", None],
    ids=["one byte less", "a flipped bit", "nothing", "no row"],
)
def test_damaged_contents_end_the_command_and_form_no_groups(
    hospital: Hospital, table: str, where: str, change: Callable[[bytes], bytes] | None
) -> None:
    hospital.update(mixed(80))
    query = f"SELECT content FROM {table} WHERE {where}"  # noqa: S608
    ((whole,),) = hospital.state.rows(query)
    if change is None:
        hospital.change(f"DELETE FROM {table} WHERE {where}")  # noqa: S608
    else:
        damaged = change(whole)
        hospital.change(f"UPDATE {table} SET content = ? WHERE {where}", damaged)  # noqa: S608

    for people in (mixed(80), mixed(80, 500)):
        with pytest.raises(errors.StateDamaged, match="fedclust restore"):
            hospital.update(people)

    assert len(hospital.lines()) == 1


@pytest.mark.parametrize(
    "change", [{"columns": None}, {"unions": [5]}, {"table_id": "0"}, {"head": "0"}]
)
def test_contents_that_do_not_fit_together_are_damaged(
    hospital: Hospital, change: dict[str, object]
) -> None:
    hospital.update(mixed(80))
    ((content,),) = hospital.state.rows("SELECT content FROM cohorts")
    changed = msgpack.packb(msgpack.unpackb(hospital.state.unseal(content)) | change)
    hospital.change("UPDATE cohorts SET content = ?", seal(changed))
    with pytest.raises(errors.StateDamaged, match="table"):
        hospital.store.records()


def test_an_older_table_is_not_what_was_stored_last(hospital: Hospital) -> None:
    hospital.update(mixed(80))
    ((old,),) = hospital.state.rows("SELECT content FROM cohorts")
    hospital.update(mixed(80) | mixed(30, 200))
    hospital.change("UPDATE cohorts SET content = ?", old)
    with pytest.raises(errors.StateDamaged, match="not what was stored last"):
        hospital.store.records()


def test_a_table_of_another_state_is_foreign(hospital: Hospital, tmp_path: Path) -> None:
    other = Hospital(tmp_path / "other")
    hospital.update(mixed(80))
    other.update(mixed(80))
    (row,) = other.state.rows("SELECT table_id, content FROM cohorts")
    hospital.change("UPDATE cohorts SET table_id = ?, content = ?", *row)
    with pytest.raises(errors.StateDamaged, match=r"not what was stored last|is missing"):
        hospital.update(mixed(80))


def test_damaged_pages_end_the_command_or_are_never_read(hospital: Hospital) -> None:
    """Overwrite each page: an answer is refused, or it is the same as before."""
    before = hospital.update(mixed(80))
    hospital.change("PRAGMA user_version")  # moves all pages into one file
    whole = hospital.state.path.read_bytes()
    size = int.from_bytes(whole[16:18], "big")

    def put(damaged: bytes) -> None:
        for beside in hospital.state.files[1:]:
            beside.unlink(missing_ok=True)
        hospital.state.path.write_bytes(damaged)

    refused = 0
    for start in range(0, len(whole), size):
        put(whole[:start] + os.urandom(size) + whole[start + size :])
        try:
            (record,) = hospital.store.records().values()
            assert same(record.cohort, before)
        except errors.StateError:
            refused += 1
    assert refused
    # One that was emptied or cut is refused, and left as it is.
    for damaged in (b"", whole[:50], whole[: len(whole) // 2], b"x" * len(whole)):
        put(damaged)
        with pytest.raises(errors.StateDamaged, match="fedclust restore"):
            hospital.update(mixed(80))
        assert hospital.state.path.read_bytes() == damaged


# --- who is in which table ------------------------------------------------------------------------


def test_an_approval_of_persons_who_wait_is_entered_once(hospital: Hospital) -> None:
    before = hospital.update(mixed(80))
    few = mixed(3) | mixed(4, 500)
    with pytest.raises(errors.PersonsRefused, match="4 of the 7 persons"):
        hospital.update(few)
    for text in ("board 9", "board 9", "board 10"):
        assert same(hospital.update(few, other_persons=text), before)
    assert [line.get("other_persons") for line in hospital.lines()] == [None, "board 9", "board 10"]


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
        hospital.update(mixed(80, 500), table=second.table_id, other_persons="board 9")
    changes = [(line["what"], line.get("separate_groups")) for line in hospital.lines()]
    acts = [("separate", f"board decision {number}") for number in (7, 8)]
    assert changes == [("created", None), *acts]


def test_who_is_withdrawn_leaves_every_table_and_is_in_no_later_one_real_record(
    hospital: Hospital,
) -> None:
    people = persons(60)
    hospital.update(people)
    hospital.update(people, separate="board decision 7")

    assert hospital.store.withdraw("P7", NOW) == 2
    assert all(not r.cohort.used.all() for r in hospital.store.records().values())
    with pytest.raises(errors.PersonsRefused, match="no group holds"):
        hospital.store.withdraw("P700", NOW)

    apart = hospital.update(people, separate="board decision 8")
    rows = apart.table_rows(hospital.state.secret(), list(people))
    assert np.flatnonzero(rows < 0).tolist() == [7]
    assert len(apart.keys) == 59


def test_a_named_table_takes_no_person_of_another_real_record(hospital: Hospital) -> None:
    here, there = persons(60), persons(60, first=100)
    first = hospital.update(here)
    hospital.update(there, other_persons="board 6")
    with pytest.raises(errors.PersonsRefused, match="of the tables"):
        hospital.update(here | there, table=first.table_id, other_persons="board 6")
    apart = hospital.update(here, separate="board decision 7")
    with pytest.raises(errors.PersonsRefused, match="of the tables"):
        hospital.update(here | there, table=apart.table_id, other_persons="board 6")

    more = here | persons(20, first=200)
    assert len(hospital.update(more, table=first.table_id).keys) == 80
    assert len(hospital.update(more, table=apart.table_id).keys) == 80, "both were approved"


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
    hospital.store.keep(draft)

    (record,) = hospital.store.records().values()

    assert same(record.cohort, draft.record.cohort)
    assert len(record.cohort.table_id) == 32
    table = record.cohort.table(["x1", "x3"])
    assert table.names() == ("x1", "x3")
    assert set(table.values("x3")) <= {0.0, 1.0, 2.0, 3.0}
