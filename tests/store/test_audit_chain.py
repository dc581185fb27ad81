"""The audit trail's chain on both databases: sealing, late commits, and ten ways of tampering."""

import contextlib
import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import cast

import pytest
from sqlalchemy import Connection, text

from fedclust_service.domain.access import Actor, Role
from fedclust_service.domain.audit_chain import FIRST, Head
from fedclust_service.store import Store, Tx
from fedclust_service.usecases.audit import VerificationStep, verify_audit, verify_trail
from fedclust_service.usecases.core import CoordinatorCore
from support.clock import ManualClock
from support.databases import in_turn
from support.timeouts import TIMEOUT_S

OPERATOR = Actor(Role.OPERATOR, "root", "token", datetime(2040, 1, 1, tzinfo=UTC))


def write(store: Store, clock: ManualClock, number: int, subject: str = "heart") -> None:
    details = {"round": number, "why": "größer"}
    store.run_tx(
        "test.write",
        lambda tx: tx.audit.append("site:zurich", f"did.{number}", subject, details, clock.now()),
    )


def seal(store: Store, limit: int = 500) -> Head:
    return store.run_tx("seal", lambda tx: tx.chain.seal(limit))[0]


def sql(store: Store, statement: str, **values: object) -> None:
    with store._engines.write.begin() as connection:
        connection.execute(text(statement), values)


def rows(connection: Connection) -> list[tuple[object, ...]]:
    at = (
        "replace(at, ' ', 'T') || 'Z'"
        if connection.dialect.name == "sqlite"
        else "to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
    )
    columns = "actor, action, subject, details, hash"
    query = f"SELECT number, id, {at}, {columns} FROM audit"  # noqa: S608  # constants
    return [tuple(row) for row in connection.execute(text(f"{query} ORDER BY number"))]


@pytest.fixture
def sealed(store: Store, clock: ManualClock) -> Store:
    """Return a store whose trail has twelve sealed entries."""
    for number in range(1, 13):
        write(store, clock, number)
    assert seal(store) == Head(12, store.read("h", lambda tx: tx.chain.hash_of(12) or ""))
    return store


def judged(store: Store, noted: str | Head | None = None) -> VerificationStep:
    """Return the verdict on the whole trail; steps of any size agree with it."""
    whole = verify_trail(store, noted)
    for most in (3, 100):
        last = in_steps(store, noted, most)
        assert last.done
        if whole.faults:
            assert set(last.faults) <= set(whole.faults)
            assert last.faults
        else:
            assert (last.head, last.entries) == (whole.head, whole.entries)
            assert last.faults == ()
        if not last.faults:
            assert last.holds_noted is (None if noted is None else True)
    return whole


def in_steps(store: Store, noted: str | Head | None, most: int) -> VerificationStep:
    """Verify step by step, as a page does that keeps only the head of the last step."""
    core, after = cast(CoordinatorCore, SimpleNamespace(store=store)), None
    while True:
        step = verify_audit(core, OPERATOR, after, noted, most)
        if step.done:
            return step
        head = Head.noted(step.head)
        assert head.number == step.entries <= step.sealed
        after = head


def test_somebody_else_computes_the_same_hashes(sealed: Store) -> None:
    """As docs/audit.md describes them, from plain SQL."""
    previous = FIRST
    with sealed._engines.read.connect() as connection:
        found = rows(connection)
    assert len(found) == 12
    for number, *fields, digest in found:
        lines = "\n".join([previous, str(number), *map(str, fields)])
        previous = hashlib.sha256(lines.encode()).hexdigest()
        assert digest == previous
    assert judged(sealed, previous).faults == ()
    assert judged(sealed).head == f"12:{previous}"


def rechained(store: Store) -> None:
    """Rewrite history as somebody would who knows how it is hashed."""
    sql(store, "DELETE FROM audit WHERE number = 5")
    sql(store, "UPDATE audit SET number = NULL, hash = NULL")
    sql(store, "UPDATE audit_chain SET number = 0, hash = :first", first=FIRST)
    seal(store)


def cut_with_head(store: Store) -> None:
    before = store.read("h", lambda tx: tx.chain.hash_of(10))
    sql(store, "DELETE FROM audit WHERE number > 10")
    sql(store, "UPDATE audit_chain SET number = 10, hash = :hash", hash=before)


def swapped(store: Store) -> None:
    for old, new in ((4, 100), (5, 4), (100, 5)):
        sql(store, "UPDATE audit SET number = :new WHERE number = :old", new=new, old=old)


def inserted(store: Store) -> None:
    for number in range(12, 5, -1):
        sql(store, "UPDATE audit SET number = number + 1 WHERE number = :n", n=number)
    sql(
        store,
        "INSERT INTO audit (id, at, actor, action, subject, details, number, hash)"
        " SELECT id + 100, at, actor, action, subject, details, 6, hash FROM audit"
        " WHERE number = 5",
    )
    sql(store, "UPDATE audit_chain SET number = 13")


def one(statement: str) -> Callable[[Store], None]:
    return lambda store: sql(store, statement)


TAMPERINGS: dict[str, Callable[[Store], None]] = {
    "time": one("UPDATE audit SET at = '2020-01-01 00:00:00.000000' WHERE number = 5"),
    "actor": one("UPDATE audit SET actor = 'site:basel' WHERE number = 5"),
    "action": one("UPDATE audit SET action = 'did.6' WHERE number = 5"),
    "subject": one("UPDATE audit SET subject = 'lungs' WHERE number = 1"),
    "details": one("UPDATE audit SET details = '{}' WHERE number = 5"),
    "details of the last": one("UPDATE audit SET details = '{}' WHERE number = 12"),
    "hash": one("UPDATE audit SET hash = 'abc' WHERE number = 12"),
    "text moved over a border": one(
        "UPDATE audit SET actor = actor || '\n' || action, action = '' WHERE number = 5"
    ),
    "first removed": one("DELETE FROM audit WHERE number = 1"),
    "one removed": one("DELETE FROM audit WHERE number = 5"),
    "one made unsealed": one("UPDATE audit SET number = NULL, hash = NULL WHERE number = 5"),
    "two swapped": swapped,
    "one inserted": inserted,
    "one inserted before the first": one(
        "INSERT INTO audit (id, at, actor, action, subject, details, number, hash)"
        " SELECT id + 100, at, actor, action, subject, details, -1, hash FROM audit"
        " WHERE number = 5"
    ),
    "tail cut": one("DELETE FROM audit WHERE number > 9"),
    "all removed": one("DELETE FROM audit"),
    "head removed": one("DELETE FROM audit_chain"),
    "head set back": one("UPDATE audit_chain SET number = 3"),
    "another hash for the head": one("UPDATE audit_chain SET hash = '0f'"),
}
#: What a hand may write into SQLite, whose columns take anything.
ODD = {
    "no UTF-8": "UPDATE audit SET action = CAST(x'6469642eff' AS TEXT) WHERE number = 5",
    "bytes for text": "UPDATE audit SET details = CAST(details AS BLOB) WHERE number = 5",
    "a word for a number": "UPDATE audit SET number = 'five' WHERE number = 5",
    "half a number": "UPDATE audit SET number = 5.5 WHERE number = 5",
    "a word for the head": "UPDATE audit_chain SET number = 'twelve'",
    "bytes for the head": "UPDATE audit_chain SET hash = x'00ff'",
}
#: What looks sound by itself: the head that was noted elsewhere finds it.
WITH_HEAD = {"tail cut and head set back": cut_with_head, "all chained anew": rechained}


@pytest.mark.parametrize(
    ("tamper", "database_url"),
    [
        *in_turn([*TAMPERINGS.values()], [*TAMPERINGS]),
        *(pytest.param(one(statement), "sqlite", id=way) for way, statement in ODD.items()),
    ],
    indirect=["database_url"],
)
def test_tampering_is_found(sealed: Store, tamper: Callable[[Store], None]) -> None:
    """What no program writes is a fault, and no error."""
    tamper(sealed)
    assert judged(sealed).faults


@pytest.mark.parametrize("way", WITH_HEAD)
def test_a_noted_head_finds_what_looks_sound(sealed: Store, way: str) -> None:
    whole = Head.noted(judged(sealed).head)
    noted = whole.hash
    assert judged(sealed, noted).faults == ()
    assert judged(sealed, whole).faults == ()
    WITH_HEAD[way](sealed)
    assert judged(sealed).faults == ()
    assert len(judged(sealed, noted).faults) == 1
    assert len(judged(sealed, whole).faults) == 1


def test_an_entry_that_is_no_text_does_not_stop_the_sealing(
    sqlite_url: str, clock: ManualClock
) -> None:
    with contextlib.closing(Store.open(sqlite_url, clock)) as store:
        write(store, clock, 1)
        sql(store, "UPDATE audit SET action = CAST(x'6469642eff' AS TEXT)")
        write(store, clock, 2)
        seal(store)
        assert verify_trail(store).unsealed == 0
        assert judged(store).faults == ()
        # Byte by byte: a question mark is not the same.
        sql(store, "UPDATE audit SET action = 'did.?' WHERE number = 1")
        assert len(judged(store).faults) == 1


def test_a_head_noted_elsewhere_is_read_in_either_form() -> None:
    digest = "0f" * 32
    assert Head.noted(digest.upper() + "\n") == digest
    assert Head.noted(f"17:{digest}") == Head(17, digest)
    for wrong in ("", "17", digest[1:], f"{digest}0", f"x:{digest}", f"-1:{digest}"):
        assert Head.noted(wrong) is None


def test_one_change_is_one_fault_and_a_noted_number_counts(sealed: Store) -> None:
    last = judged(sealed).head.rpartition(":")[2]
    assert judged(sealed, Head(11, last)).faults
    assert judged(sealed, Head()).faults == ()
    # What is no time is a fault, and no error.
    bad = "yesterday" if sealed.single_process else "infinity"
    sql(sealed, "UPDATE audit SET at = :bad WHERE number = 5", bad=bad)
    assert judged(sealed).faults == ("entry 5: it or its place in the chain was changed",)


def test_a_sealed_entry_is_not_sealed_again(sealed: Store, clock: ManualClock) -> None:
    before = judged(sealed).head
    assert str(seal(sealed)) == before
    write(sealed, clock, 13)
    step = verify_trail(sealed)
    assert (step.head, step.unsealed, step.faults) == (before, 1, ())
    after = seal(sealed)
    assert after.number == 13


def test_small_batches_make_the_same_chain(sealed: Store, clock: ManualClock) -> None:
    whole = Head.noted(judged(sealed).head)
    sql(sealed, "UPDATE audit SET number = NULL, hash = NULL")
    sql(sealed, "UPDATE audit_chain SET number = 0, hash = :first", first=FIRST)
    for _ in range(4):
        last = seal(sealed, limit=3)
    assert last == whole


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_entry_that_commits_late_is_not_skipped(store: Store, clock: ManualClock) -> None:
    """Its id is smaller than one that has been sealed while it was in the air."""
    written, go_on = threading.Event(), threading.Event()

    def late() -> None:
        def work(tx: Tx) -> None:
            tx.audit.append("site:a", "late", "heart", {}, clock.now())
            tx.write_audit()
            written.set()
            assert go_on.wait(TIMEOUT_S)

        store.run_tx("late", work)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(late)
        try:
            assert written.wait(TIMEOUT_S)
            write(store, clock, 1)
            assert seal(store).number == 1
        finally:
            go_on.set()
    second = seal(store)
    assert second.number == 2
    late_id, early_id = (
        next(e.id for e in store.read("l", lambda tx: tx.audit.list(9)) if e.number == n)
        for n in (2, 1)
    )
    assert late_id < early_id
    assert judged(store).faults == ()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_two_sealers_at_once_number_each_entry_once(store: Store, clock: ManualClock) -> None:
    """The chain's row is locked."""
    for number in range(60):
        write(store, clock, number)

    def go(_: int) -> None:
        for _ in range(30):
            seal(store, limit=2)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(go, range(3)))
    step = verify_trail(store)
    assert (step.entries, step.faults, step.unsealed) == (60, (), 0)
