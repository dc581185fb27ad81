"""What another process commits is heard at once, or found by reading again."""

from collections.abc import Iterator
from queue import Empty, Queue

import pytest
from sqlalchemy.engine import make_url

from fedclust_service.store import Listener, Store, Tx
from support.clock import ManualClock
from support.databases import PostgresServer
from support.store_rows import add_session
from support.timeouts import TIMEOUT_S, eventually

NEVER_S = 3600.0


class Ear:
    """A listener of its own process, and what it has told."""

    def __init__(self, url: str, clock: ManualClock) -> None:
        self.store = Store.open(url, clock)
        self.changed: Queue[tuple[str, int]] = Queue()
        self.waited_for: dict[str, int] = {}
        self.listener = Listener(
            self.store,
            lambda session, version: self.changed.put((session, version)),
            lambda: self.waited_for,
            NEVER_S,
        )

    def start(self) -> None:
        self.listener.start()
        self.until_connected()

    def until_connected(self) -> None:
        eventually(lambda: self.listener.connected)

    def close(self) -> None:
        self.listener.ask_to_stop()
        self.listener.join(TIMEOUT_S)
        assert not self.listener.is_alive()
        self.store.close()


@pytest.fixture
def ear(postgres_url: str, clock: ManualClock) -> Iterator[Ear]:
    made = Ear(postgres_url, clock)
    yield made
    made.close()


@pytest.fixture
def writer(postgres_url: str, clock: ManualClock) -> Iterator[Store]:
    """Return the store of another process, with two sessions of version 1."""
    opened = Store.open(postgres_url, clock)
    for name in ("heart", "lungs"):
        opened.run_tx("add", lambda tx, name=name: add_session(tx, name))
    yield opened
    opened.close()


def touch(store: Store, name: str) -> None:
    def work(tx: Tx) -> None:
        session = tx.sessions.get(name, lock=True)
        tx.sessions.touch(session.id)

    store.run_tx("touch", work)


def test_a_deleted_session_is_heard_and_found_by_reading_again(ear: Ear, writer: Store) -> None:
    ear.start()

    def delete(tx: Tx) -> None:
        session = tx.sessions.get("heart", lock=True)
        tx.sessions.delete(session.id)

    writer.run_tx("delete", delete)
    assert ear.changed.get(timeout=TIMEOUT_S) == ("heart", 2)
    # As if the notification had been lost.
    ear.waited_for = {"heart": 1}
    ear.listener._read_again()
    assert ear.changed.get(timeout=TIMEOUT_S) == ("heart", 2)


def test_nothing_is_heard_of_what_was_rolled_back(ear: Ear, writer: Store) -> None:
    ear.start()

    def fail(tx: Tx) -> None:
        session = tx.sessions.get("heart", lock=True)
        tx.sessions.touch(session.id)
        raise RuntimeError("undone")

    with pytest.raises(RuntimeError):
        writer.run_tx("fail", fail)
    touch(writer, "lungs")
    assert ear.changed.get(timeout=TIMEOUT_S) == ("lungs", 2)
    with pytest.raises(Empty):
        ear.changed.get_nowait()
    assert ear.listener.missed == 0


def test_a_reconnect_reads_again_at_once(
    ear: Ear, writer: Store, postgres_server: PostgresServer, postgres_url: str
) -> None:
    ear.start()
    touch(writer, "heart")
    assert ear.changed.get(timeout=TIMEOUT_S) == ("heart", 2)
    # As if it had been committed while nobody listened.
    ear.waited_for = {"heart": 1}
    for _ in range(2):
        # The change may be read before the listener has a new connection that can be cut.
        ear.until_connected()
        assert postgres_server.terminate_clients(str(make_url(postgres_url).database))
        assert ear.changed.get(timeout=TIMEOUT_S) == ("heart", 2)
    ear.waited_for = {}

    def heard() -> bool:
        # What is told before it listens again reaches nobody.
        touch(writer, "lungs")
        changes = [ear.changed.get_nowait() for _ in range(ear.changed.qsize())]
        return "lungs" in dict(changes)

    eventually(heard)
