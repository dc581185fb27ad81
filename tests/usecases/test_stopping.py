"""What an orderly stop leaves to others: rounds without a lease, for whoever is there to take."""

import dataclasses
import threading

import pytest

from fedclust_service.domain.round import RoundState
from fedclust_service.store import StoreUnavailable
from support.databases import sqlite_first  # noqa: F401  # in place of database_url
from support.timeouts import TIMEOUT_S, eventually
from usecases import counting_method
from usecases.direct_api import LIMITS, DirectApi


def test_nobody_waits_for_the_lease_of_one_that_stopped(both: DirectApi) -> None:
    """An aggregation that goes on is given up: another worker does it, and it writes nothing."""
    both.co.limits = dataclasses.replace(LIMITS, driver_poll_s=0.01)
    both.session(rounds=2)
    stuck, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        counting_method.HOOK.clear()
        stuck.set()
        go_on.wait(TIMEOUT_S)

    counting_method.HOOK.append(hang)
    both.co.driver.start()
    both.answer_all("heart")
    assert stuck.wait(TIMEOUT_S)
    (left,) = [each for each in threading.enumerate() if each.name == "fedclust-driver"]
    both.co.driver.ask_to_stop()
    both.co.driver.join(0.05)
    assert (both.latest().state, both.latest().lease_token) == (RoundState.AGGREGATING, None)
    # The clock stands still: nothing has run out.
    assert both.another().driver.run_once()
    assert both.latest().number == 2
    go_on.set()
    left.join(TIMEOUT_S)
    assert both.latest().number == 2
    assert len(both.audit(action="round.closed")) == 1
    both.answer_all("heart")
    both.another().driver.run_once()
    assert both.votes("heart")[0].tolist() == [1, 1, 1]


def test_a_stop_writes_what_waits_and_ends_all_threads(both: DirectApi) -> None:
    before = set(threading.enumerate())
    both.co.start()
    both.session()
    inside, go_on, written = threading.Event(), threading.Event(), []

    def hold(_: object) -> None:
        inside.set()
        go_on.wait(TIMEOUT_S)

    both.co.submissions.commit("heart", hold)
    assert inside.wait(TIMEOUT_S)
    last = both.co.submissions.commit("heart", lambda _: written.append("last"))
    stopping = threading.Thread(target=both.co.stop, args=(TIMEOUT_S,))
    stopping.start()
    go_on.set()
    stopping.join(TIMEOUT_S)
    assert last.done()
    assert written == ["last"]
    with pytest.raises(StoreUnavailable):
        both.co.submissions.commit("heart", hold)
    eventually(
        lambda: not [each for each in set(threading.enumerate()) - before if each.is_alive()]
    )
