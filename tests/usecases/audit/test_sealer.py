"""The sealer's thread: soon, seldom, and after the death of another."""

from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.core import Limits
from fedclust_service.usecases.unit_of_work import commit
from support.timeouts import eventually
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
