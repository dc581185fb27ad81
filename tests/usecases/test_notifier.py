"""Long polls are woken by commits of any thread, and by shutdown."""

import asyncio
import dataclasses
import threading

import pytest

from fedclust_service.store import Store, listen
from fedclust_service.usecases.core import Notifier
from support.clock import ManualClock
from support.timeouts import TIMEOUT_S
from usecases.direct_api import LIMITS, DirectApi


def run(coroutine: object) -> object:
    return asyncio.run(coroutine)  # type: ignore[arg-type]


async def _started(notifier: Notifier, n: int = 1) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while notifier.waiting < n:
            await asyncio.sleep(0)


@pytest.mark.parametrize("bump", [("lung", 9), ("heart", 3)])
def test_what_does_not_concern_it_does_not_wake(bump: tuple[str, int]) -> None:
    notifier = Notifier()

    async def main() -> bool:
        waiting = asyncio.create_task(notifier.wait("heart", 3, 0.05))
        await _started(notifier)
        notifier.bump(*bump)
        return await waiting

    assert run(main()) is False
    assert notifier.waiting == 0


def test_commits_reported_out_of_order_count_once() -> None:
    notifier = Notifier()
    notifier.bump("heart", 5)
    notifier.bump("heart", 4)
    assert run(notifier.wait("heart", 4, TIMEOUT_S)) is True
    assert run(notifier.wait("heart", 5, 0.01)) is False


def test_closing_wakes_everybody_now_and_later() -> None:
    notifier = Notifier()

    async def main() -> list[bool]:
        waiting = [asyncio.create_task(notifier.wait(f"s{i}", 1, TIMEOUT_S)) for i in range(20)]
        await _started(notifier, 20)
        threading.Thread(target=notifier.close).start()
        return await asyncio.gather(*waiting, notifier.wait("late", 1, TIMEOUT_S))

    assert run(main()) == [False] * 21
    assert notifier.closed


def test_a_loop_that_is_gone_does_not_harm_the_writer() -> None:
    notifier = Notifier()
    loop = asyncio.new_event_loop()
    task = loop.create_task(notifier.wait("heart", 1, TIMEOUT_S))
    loop.run_until_complete(_started(notifier))
    loop.close()
    notifier.bump("heart", 2)
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # meant to be left behind
    task.get_coro().close()  # type: ignore[union-attr]


def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    notifier = Notifier()

    async def main() -> None:
        waiting = asyncio.create_task(notifier.wait("heart", 1, TIMEOUT_S))
        await _started(notifier)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(main())
    assert notifier.waiting == 0


def test_what_is_waited_for_is_known_by_its_newest_version() -> None:
    notifier = Notifier()

    async def main() -> list[dict[str, int]]:
        seen = [notifier.waited_for()]
        waits = [
            asyncio.create_task(notifier.wait(session, version, 60))
            for session, version in (("heart", 3), ("heart", 4), ("lungs", 7))
        ]
        await _started(notifier, 3)
        seen.append(notifier.waited_for())
        notifier.bump("heart", 4)  # wakes the one that has seen 3
        await waits[0]
        seen.append(notifier.waited_for())
        notifier.close()
        await asyncio.gather(*waits)
        return [*seen, notifier.waited_for()]

    assert run(main()) == [{}, {"heart": 3, "lungs": 7}, {"heart": 4, "lungs": 7}, {}]


@pytest.mark.parametrize("notified", [True, False], ids=["notified", "read again"])
def test_a_commit_of_another_process_wakes(
    postgres_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, notified: bool
) -> None:
    here, there = (DirectApi(Store.open(postgres_url, clock), clock) for _ in range(2))
    here.co.limits = dataclasses.replace(LIMITS, reread_s=3600 if notified else 0.01)
    there.session(rounds=2)
    version = here.view("heart", "north").version
    if not notified:
        # A pooler in transaction mode takes LISTEN and forwards nothing.
        monkeypatch.setattr(listen, "SESSIONS", "nobody")

    async def main() -> bool:
        waiting = asyncio.create_task(here.co.notifier.wait("heart", version, TIMEOUT_S))
        await _started(here.co.notifier)
        here.co.start()
        async with asyncio.timeout(TIMEOUT_S):
            while not here.co.listening:
                await asyncio.sleep(0)
        there.co.start()
        there.answer_all("heart")
        return await waiting

    assert run(main()) is True
    assert (here.co.listener.missed == 0) is notified
    for direct in (here, there):
        direct.co.stop()
        direct.store.close()
