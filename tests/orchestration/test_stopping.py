"""What an orderly stop leaves to others: rounds without a lease, for whoever is there to take."""

from __future__ import annotations

import threading

import pytest

from fedclust_service.domain.round import Round, RoundState
from fedclust_service.orchestration.core import Limits
from fedclust_service.store import StoreUnavailable
from support import tally
from support.office import Office
from support.patience import PATIENCE_S, eventually


def latest(office: Office) -> Round:
    row = office.row("heart")
    found = office.store.read("test.latest", lambda tx: tx.rounds.latest(row.id))
    assert found is not None
    return found


def test_nobody_waits_for_the_lease_of_one_that_stopped(both_office: Office) -> None:
    """An aggregation that goes on is given up: another worker does it, and it writes nothing."""
    office = both_office
    office.co.limits = Limits(driver_poll_s=0.01)
    office.session(rounds=2)
    stuck, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        tally.HOOK.clear()
        stuck.set()
        go_on.wait(PATIENCE_S)

    tally.HOOK.append(hang)
    office.co.driver.start()
    office.answer_all("heart")
    assert stuck.wait(PATIENCE_S)
    (left,) = [each for each in threading.enumerate() if each.name == "fedclust-driver"]
    office.co.driver.ask_to_stop()
    office.co.driver.join(0.05)
    assert (latest(office).state, latest(office).lease) == (RoundState.AGGREGATING, None)
    # The clock stands still: nothing has run out.
    assert office.another().driver.run_once()
    assert latest(office).number == 2
    go_on.set()
    left.join(PATIENCE_S)
    assert latest(office).number == 2
    assert len(office.audit(action="round.closed")) == 1
    office.answer_all("heart")
    office.another().driver.run_once()
    assert office.tally("heart")[0].tolist() == [1, 1, 1]


def test_a_stop_writes_what_waits_and_ends_all_threads(both_office: Office) -> None:
    office = both_office
    before = set(threading.enumerate())
    office.co.start()
    office.session()
    inside, go_on, written = threading.Event(), threading.Event(), []

    def hold(_: object) -> None:
        inside.set()
        go_on.wait(PATIENCE_S)

    office.co.submissions.commit("heart", hold)
    assert inside.wait(PATIENCE_S)
    last = office.co.submissions.commit("heart", lambda _: written.append("last"))
    stopping = threading.Thread(target=office.co.stop, args=(PATIENCE_S,))
    stopping.start()
    go_on.set()
    stopping.join(PATIENCE_S)
    assert last.done()
    assert written == ["last"]
    with pytest.raises(StoreUnavailable):
        office.co.submissions.commit("heart", hold)
    eventually(
        lambda: not [each for each in set(threading.enumerate()) - before if each.is_alive()]
    )
