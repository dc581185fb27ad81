"""The sealer's thread: soon, seldom, and after the death of another."""

import asyncio

from fedclust_service.store import Store
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.core import Limits
from fedclust_service.usecases.unit_of_work import commit
from support.clock import ManualClock
from support.timeouts import TIMEOUT_S, eventually
from usecases.direct_api import DirectApi, working


def write(co: Coordinator, subject: str = "heart") -> None:
    commit(co, "test.write", lambda change: change.audit("coordinator", "did", subject))


def waiting(co: Coordinator) -> int:
    return co.store.read("test.waiting", lambda tx: tx.chain.waiting())


def test_a_flow_of_entries_costs_few_transactions(direct: DirectApi) -> None:
    """The first is sealed soon; those that follow wait for one another."""
    co = direct.co
    co.limits = Limits(seal_pause_s=60, seal_look_s=60)
    with working(co.sealer):
        eventually(lambda: co.sealer.head is not None)
        write(co)
        eventually(lambda: waiting(co) == 0)
        for number in range(50):
            write(co, f"session-{number % 5}")
        assert direct.calls("seal") == 1
        assert waiting(co) == 50
    assert waiting(co) == 0
    assert direct.calls("seal") == 2


def test_more_than_a_batch_is_sealed_at_once(direct: DirectApi) -> None:
    co = direct.co
    for number in range(1_001):
        co.store.run_tx(
            "test.write",
            lambda tx, n=number: tx.audit.append("a", f"did.{n}", "heart", {}, direct.clock.now()),
        )
    co.sealer.run_once()
    assert waiting(co) == 0
    assert co.sealer.head.number == 1_001
    assert direct.calls("seal") == 3


def test_another_worker_seals_what_a_dead_one_has_left(both: DirectApi) -> None:
    write(both.co)
    other = both.another()
    with working(other.sealer):
        eventually(lambda: waiting(other) == 0)
    assert not other.sealer.is_alive()


def test_a_worker_that_hears_of_a_seal_seals_nothing_at_once(direct: DirectApi) -> None:
    """Two workers that did would wake each other all the time."""
    here, there = direct.co, direct.another()
    here.sealer.run_once()
    write(here)
    there.sealer.run_once()
    write(there)
    here.sealer.run_once(seal=False)
    assert here.sealer.head == there.sealer.head
    assert waiting(here) == 1


def test_what_another_worker_seals_is_told_here(both: DirectApi) -> None:
    here, there = both.co, both.another()
    here.sealer.run_once()
    for _ in range(2):  # the second time, both know the head from before
        write(here)
        there.sealer.run_once()
        before = here.sealer.head
        heard = asyncio.run(after_a_look(here, before.number))
        assert heard
        assert here.sealer.head == there.sealer.head


def test_streams_of_another_worker_are_woken_by_the_seal(
    postgres_url: str, clock: ManualClock
) -> None:
    """Looks without being told are an hour apart."""
    processes = [
        DirectApi(Store.open(postgres_url, clock), clock, Limits(seal_look_s=3600, reread_s=3600))
        for _ in range(2)
    ]
    here, there = (direct.co for direct in processes)
    here.start()
    eventually(lambda: here.sealer.head is not None and bool(here.listening))
    write(there)
    there.sealer.run_once()
    assert asyncio.run(here.sealer.streams.wait("heart", 0, TIMEOUT_S))
    here.stop()
    for direct in processes:
        direct.store.close()


async def after_a_look(co: Coordinator, number: int) -> bool:
    waiter = asyncio.ensure_future(co.sealer.streams.wait("heart", number, TIMEOUT_S))
    await asyncio.sleep(0)
    await asyncio.to_thread(co.sealer.run_once)
    return await waiter
