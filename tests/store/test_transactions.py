"""`Store.run_tx` and `Store.read`: one commit, repeated where that helps, counted, told about."""

import sqlite3
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import make_url

from fedclust_service.domain.access import Role, Token
from fedclust_service.store import Store, StoreBusy, StoreError, StoreUnavailable, Tx, Unwritable
from fedclust_service.store import store as module
from support.clock import ManualClock
from support.databases import PostgresServer
from support.store_rows import add_session, at, counted, open_round, submission

# What PostgreSQL asks a client to repeat, raised by PostgreSQL itself.
REPEATABLE = {"serialization failure": "40001", "deadlock": "40P01", "lock timeout": "55P03"}


@pytest.fixture
def other(sqlite_url: str) -> Iterator[sqlite3.Connection]:
    """Return another process's connection, which is writing."""
    path = Path(make_url(sqlite_url).database or "")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


@pytest.fixture
def pauses() -> list[float]:
    """Return the pauses that a store made between its tries."""
    return []


@pytest.fixture
def postgres(postgres_url: str, clock: ManualClock, pauses: list[float]) -> Iterator[Store]:
    opened = Store.open(postgres_url, clock, pause=pauses.append)
    yield opened
    opened.close()


def names(store: Store) -> list[str]:
    return [p.name for p in store.read("names", lambda tx: tx.principals.list(Role.SITE, 99))]


def add(name: str) -> Callable[[Tx], None]:
    def work(tx: Tx) -> None:
        tx.principals.add(Role.SITE, name, "")

    return work


def fail_with(tx: Tx, state: str) -> None:
    """Have PostgreSQL raise an error of its own."""
    statement = f"DO $$ BEGIN RAISE EXCEPTION 'injected' USING ERRCODE = '{state}'; END $$"
    tx._connection.exec_driver_sql(statement)


# --------------------------------------------------------------------------- all or nothing


def test_an_exception_undoes_everything_and_arrives_as_it_is(store: Store) -> None:
    class Mine(Exception):
        pass

    def work(tx: Tx) -> None:
        add("zurich")(tx)
        assert tx.principals.get(Role.SITE, "zurich") is not None
        raise Mine

    with pytest.raises(Mine):
        store.run_tx("work", work)
    assert names(store) == []
    store.run_tx("again", add("zurich"))
    assert names(store) == ["zurich"]


def test_reading_refuses_to_write(store: Store) -> None:
    with pytest.raises(Unwritable, match="read-only"):
        store.read("sneak", add("zurich"))
    store.run_tx("add", add("zurich"))
    assert names(store) == ["zurich"]


def test_a_read_stands_on_one_snapshot(store: Store) -> None:
    store.run_tx("add", add("a"))

    def look(tx: Tx) -> tuple[int, int]:
        before = len(tx.principals.list(Role.SITE, 9))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(store.run_tx, "add", add("b")).result()
        return before, len(tx.principals.list(Role.SITE, 9))

    assert store.read("look", look) == (1, 1)
    assert names(store) == ["a", "b"]


def test_a_transaction_inside_another_is_a_defect(store: Store) -> None:
    for outer in (store.run_tx, store.read):
        with pytest.raises(RuntimeError, match="inner inside outer"):
            outer("outer", lambda _: store.read("inner", lambda tx: tx.now))
        with pytest.raises(RuntimeError, match="inner inside outer"):
            outer("outer", lambda _: store.run_tx("inner", lambda tx: tx.now))
    assert names(store) == []


def test_all_writes_of_a_transaction_have_one_time(store: Store, clock: ManualClock) -> None:
    clock.advance(5)

    def work(tx: Tx) -> None:
        clock.advance(5)
        assert tx.now == at(5)
        assert tx.principals.add(Role.SITE, "zurich", "").created_at == at(5)

    store.run_tx("work", work)


# -------------------------------------------------------------------------------- repetition


def test_sqlite_waits_for_another_process_and_repeats(
    sqlite_url: str, clock: ManualClock, other: sqlite3.Connection, pauses: list[float]
) -> None:
    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            other.execute("ROLLBACK")

    with closing(Store.open(sqlite_url, clock, busy_timeout_s=0.01, pause=pause)) as store:
        store.run_tx("add", add("zurich"))
        assert names(store) == ["zurich"]
        assert counted(store, "add") == {"calls": 1, "retries": 3, "failures": 0}
    assert len(pauses) == 3
    assert 0 < pauses[0] < pauses[1] < pauses[2] < 0.05


def test_sqlite_gives_up_when_it_stays_busy_or_the_time_is_over(
    sqlite_url: str,
    clock: ManualClock,
    other: sqlite3.Connection,
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store.open(sqlite_url, clock, busy_timeout_s=0.01, pause=pauses.append)
    with pytest.raises(StoreBusy, match="add: the database is busy"):
        store.run_tx("add", add("zurich"))
    assert names(store) == []  # readers are not in the writer's way
    with monkeypatch.context() as patch:
        patch.setattr(module, "REPEAT_WITHIN_S", 0.0)
        with pytest.raises(StoreBusy):
            store.run_tx("late", add("zurich"))
    assert counted(store, "late")["retries"] == 0
    other.execute("ROLLBACK")
    tried = module.MAX_ATTEMPTS - 1
    assert counted(store, "add") == {"calls": 1, "retries": tried, "failures": 1}
    assert len(pauses) == module.MAX_ATTEMPTS - 1
    store.run_tx("add", add("zurich"))
    store.close()


@pytest.mark.parametrize("state", REPEATABLE.values(), ids=REPEATABLE.keys())
def test_postgres_repeats_what_is_worth_it(
    postgres: Store, pauses: list[float], state: str
) -> None:
    session = postgres.run_tx("add", add_session)
    runs: list[Tx] = []
    notified: list[object] = []
    postgres.on_touch(lambda *each: notified.append(each))

    def work(tx: Tx) -> int:
        runs.append(tx)
        add("zurich")(tx)
        tx.sessions.touch(session.id)
        assert tx.pending.touched == {"heart": 2}
        if len(runs) < 3:
            fail_with(tx, state)
        return len(runs)

    assert postgres.run_tx("work", work) == 3
    assert len(set(map(id, runs))) == 3
    assert notified == [("heart", 2)]
    assert len(pauses) == 2
    assert names(postgres) == ["zurich"]
    assert counted(postgres, "work")["retries"] == 2


def test_postgres_gives_up_in_the_end_and_repeats_no_other_error(postgres: Store) -> None:
    with pytest.raises(StoreBusy):
        postgres.run_tx("work", lambda tx: fail_with(tx, "40001"))
    assert counted(postgres, "work")["retries"] == module.MAX_ATTEMPTS - 1
    postgres.run_tx("add", add("zurich"))
    with pytest.raises(StoreError, match=r"other: .* \(22012\)"):
        postgres.run_tx("other", lambda tx: fail_with(tx, "22012"))
    assert counted(postgres, "other")["retries"] == 0


def test_a_connection_lost_before_the_commit_is_replaced(
    postgres: Store, postgres_url: str, postgres_server: PostgresServer
) -> None:
    database = make_url(postgres_url).database or ""
    cuts: list[int] = []

    def work(tx: Tx) -> None:
        add("zurich")(tx)
        if not cuts:
            cuts.append(postgres_server.terminate_clients(database))
            tx.principals.get(Role.SITE, "zurich")

    postgres.run_tx("work", work)
    assert cuts == [1]
    assert names(postgres) == ["zurich"]
    assert counted(postgres, "work")["retries"] == 1


def test_a_connection_lost_during_the_commit_is_not_repeated(
    postgres: Store, postgres_url: str, postgres_server: PostgresServer
) -> None:
    database = make_url(postgres_url).database or ""

    def cut(_: object) -> None:
        postgres_server.terminate_clients(database)

    event.listen(postgres._engines.write, "commit", cut)
    with pytest.raises(StoreUnavailable, match="during the commit"):
        postgres.run_tx("work", add("zurich"))
    event.remove(postgres._engines.write, "commit", cut)
    assert counted(postgres, "work")["retries"] == 0
    assert counted(postgres, "work")["failures"] == 1
    assert names(postgres) == []


def test_an_error_kept_quiet_does_not_pass_for_a_commit(store: Store) -> None:
    def work(tx: Tx) -> None:
        add("zurich")(tx)
        if store.single_process:
            tx._connection.exec_driver_sql("ROLLBACK")  # as SQLite does when the disk is full
        else:
            with pytest.raises(Exception, match="foreign key"):
                tx.tokens.add(Token("t", 999, "h", at(0), at(1)))

    with pytest.raises(StoreError, match="hid an error of the database"):
        store.run_tx("work", work)
    assert names(store) == []
    store.run_tx("add", add("zurich"))


def test_a_transaction_may_do_nothing(store: Store) -> None:
    assert store.run_tx("nothing", lambda _: 7) == 7
    assert store.read("nothing", lambda _: 8) == 8


# ------------------------------------------------------------------------------ what is told


def test_listeners_hear_of_commits_and_of_nothing_else(store: Store) -> None:
    first = store.run_tx("add", lambda tx: add_session(tx, "a"))
    second = store.run_tx("add", lambda tx: add_session(tx, "b"))
    notified: list[tuple[str, int]] = []
    seen: list[int] = []

    def listen(session: str, version: int) -> None:
        notified.append((session, version))
        # What listeners hear of is there for everybody: read it in another thread.
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(store.read, "look", lambda tx: tx.sessions.get("a")).result()
        seen.append(found.version)

    store.on_touch(listen)

    def work(tx: Tx) -> None:
        tx.sessions.touch(first.id)
        tx.sessions.touch(second.id)
        tx.sessions.touch(first.id)
        assert notified == []

    store.run_tx("touch", work)
    assert sorted(notified) == [("a", 3), ("b", 2)]
    assert seen == [3, 3]

    def undone(tx: Tx) -> None:
        tx.sessions.touch(first.id)
        raise LookupError

    with pytest.raises(LookupError):
        store.run_tx("undone", undone)
    store.run_tx("quiet", add("zurich"))
    assert len(notified) == 2


def test_a_listener_that_fails_stops_nobody(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    session = store.run_tx("add", add_session)
    notified: list[object] = []

    def broken(*_: object) -> None:
        raise ValueError("secret-bytes")

    store.on_touch(broken)
    store.on_touch(lambda *each: notified.append(each))
    store.run_tx("touch", lambda tx: tx.sessions.touch(session.id))
    assert notified == [("heart", 2)]
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


def test_transactions_are_counted_by_name(store: Store) -> None:
    assert counted(store, "write") == {"calls": 0, "retries": 0, "failures": 0}
    store.run_tx("write", add("a"))
    store.run_tx("write", add("b"))
    orphan = Token("t", 999, "h", at(0), at(1))
    with pytest.raises(StoreError):
        store.run_tx("broken", lambda tx: tx.tokens.add(orphan))
    with pytest.raises(LookupError):
        store.run_tx("refused", lambda tx: {}[tx.now])
    names(store)
    assert counted(store, "write") == {"calls": 2, "retries": 0, "failures": 0}
    assert counted(store, "broken")["failures"] == 1
    # A refusal by the program is no failure of the database.
    assert counted(store, "refused")["failures"] == 0
    samples = [each for family in store.counters["seconds"].collect() for each in family.samples]
    found = {each.labels["transaction"] for each in samples}
    assert found == {"write", "broken", "refused", "names"}
    assert all(each.value > 0 for each in samples)


def test_no_error_repeats_what_a_row_held(store: Store) -> None:
    session, opened = open_round(store)
    marker = "secret-bytes"
    bad = replace(submission(opened, "nowhere", marker.encode() * 9), phase=marker)

    def broken_check(tx: Tx) -> None:
        # PostgreSQL's own words for this quote the whole row.
        statement = text("UPDATE sessions SET failure = :m, state = :m WHERE id = :id")
        tx._connection.execute(statement, {"m": marker, "id": session.id})

    for work in (lambda tx: tx.submissions.insert(bad), broken_check):
        with pytest.raises(StoreError) as caught:
            store.run_tx("work", work)
        assert marker not in "".join(traceback.format_exception(caught.value))


def test_asking_for_the_migration_fails_when_the_database_is_gone(
    postgres: Store, postgres_url: str, postgres_server: PostgresServer
) -> None:
    name = make_url(postgres_url).database or ""
    postgres_server.drop(name)
    try:
        with pytest.raises(StoreUnavailable):
            postgres.migration_head()
    finally:
        postgres_server._execute(f'CREATE DATABASE "{name}"')  # the fixture drops it again
