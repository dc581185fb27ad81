"""Many at once: of those who try the same step, exactly one wins, and somebody does."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedclust_service.store import Store, StoreError, Tx
from support.clock import ManualClock
from support.store_rows import (
    add_session,
    add_study,
    addressees,
    counted,
    new_round,
    open_round,
    submission,
)
from support.timeouts import TIMEOUT_S

CROWD = 12


@pytest.fixture
def two(database_url: str, clock: ManualClock) -> Iterator[list[Store]]:
    """Return two stores on one database, as two processes would have them."""
    stores = [Store.open(database_url, clock) for _ in range(2)]
    yield stores
    for store in stores:
        store.close()


def crowd(stores: list[Store], step: Callable[[Store, int], bool]) -> list[int]:
    """Let a crowd try a step at the same moment; return the numbers of those who did it."""
    ready = threading.Barrier(CROWD)

    def one(number: int) -> bool:
        ready.wait(TIMEOUT_S)
        return step(stores[number % len(stores)], number)

    with ThreadPoolExecutor(CROWD) as pool:
        return [number for number, won in enumerate(pool.map(one, range(CROWD))) if won]


def test_one_of_many_answers_is_stored(two: list[Store]) -> None:
    _, opened = open_round(two[0])

    def step(store: Store, number: int) -> bool:
        mine = submission(opened, "zurich", f"answer {number}".encode())
        return store.run_tx("submit", lambda tx: tx.submissions.insert(mine))

    winners = crowd(two, step)
    assert len(winners) == 1
    listed = two[1].read("list", lambda tx: tx.submissions.list(opened.id))
    assert [s.payload for s in listed] == [f"answer {winners[0]}".encode()]


def test_one_of_many_opens_the_next_round_or_creates_the_session(two: list[Store]) -> None:
    def create(store: Store, number: int) -> bool:
        try:
            store.run_tx("create", lambda tx: add_session(tx, created_by=f"a{number}"))
        except StoreError:
            return False
        return True

    winners = crowd(two, create)
    assert len(winners) == 1
    session = two[0].read("get", lambda tx: tx.sessions.get("heart"))
    assert session.created_by == f"a{winners[0]}"

    def opens(store: Store, _: int) -> bool:
        try:
            store.run_tx("open", lambda tx: tx.rounds.add(new_round(session), addressees()))
        except StoreError:
            return False
        return True

    assert len(crowd(two, opens)) == 1


def test_no_touch_is_lost_and_sqlite_never_spins(two: list[Store]) -> None:
    session = two[0].run_tx("add", add_session)
    heard: list[tuple[str, int]] = []
    for store in two:
        store.on_touch(lambda *each: heard.append(each))

    def step(tx: Tx) -> bool:
        """Touch under the lock of the session: nobody else has meanwhile."""
        before = tx.sessions.get("heart", lock=True)
        tx.sessions.touch(session.id)
        return tx.sessions.get("heart").version == before.version + 1

    def touch(store: Store, _: int) -> bool:
        return all(store.run_tx("touch", step) for _ in range(5))

    assert len(crowd(two, touch)) == CROWD
    expected = list(range(2, 2 + 5 * CROWD))
    assert sorted(version for _, version in heard) == expected
    counts = [counted(store, "touch") for store in two]
    assert sum(each["calls"] for each in counts) == len(expected)
    assert sum(each["retries"] for each in counts) == 0


def test_a_study_is_deleted_or_gets_a_session_but_not_both(two: list[Store]) -> None:
    """Whoever has the lock first wins; the other sees what became of the study."""
    two[0].run_tx("arrange", lambda tx: [add_study(tx, f"s{n}") for n in range(CROWD // 2)])

    def extend(tx: Tx, name: str) -> bool:
        if tx.studies.get(name, lock=True) is None:
            return False
        add_session(tx, name, study=name)
        return True

    def delete(tx: Tx, name: str) -> bool:
        study = tx.studies.get(name, lock=True)
        if tx.studies.session_counts([name])[name]:
            return False
        tx.studies.delete(study.id)
        return True

    def step(store: Store, number: int) -> bool:
        work, name = (extend, delete)[number % 2], f"s{number // 2}"
        return store.run_tx("step", lambda tx: work(tx, name))

    # Members of a pair use different stores.
    assert sorted(number // 2 for number in crowd(two, step)) == list(range(CROWD // 2))
