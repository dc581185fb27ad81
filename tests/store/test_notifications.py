"""The outbox, on SQLite and on PostgreSQL."""

from dataclasses import replace
from typing import Any

from fedclust_service.domain.notification import (
    Channel,
    DeliveryState,
    Notification,
    NotificationKind,
)
from fedclust_service.store import Store
from support.store_rows import EPOCH, at


def notification(new: str = "n1", **changes: Any) -> Notification:
    made = Notification(
        id=new,
        kind=NotificationKind.OVERDUE,
        subject="heart",
        cause="round 1",
        recipient="operator_emails:1",
        channel=Channel.EMAIL,
        body={"id": new, "text": "late", "sites": ["zurich"]},
        created_at=EPOCH,
        due_at=at(10),
    )
    return replace(made, **changes)


def add(store: Store, *new: Notification) -> None:
    store.run_tx("add", lambda tx: tx.notifications.add(new))


def due(store: Store, seconds: float) -> Notification | None:
    return store.read("due", lambda tx: tx.notifications.due(Channel.EMAIL, at(seconds)))


def take(store: Store, seen: Any, token: str, until: float) -> bool:
    return store.run_tx("take", lambda tx: tx.notifications.take(seen, token, at(until)))


def test_one_worker_takes_what_is_due_and_another_only_after_its_time(store: Store) -> None:
    add(store, notification())
    assert due(store, 9) is None
    seen = due(store, 10)
    assert seen == notification()
    assert take(store, seen, "a", 300)
    assert not take(store, seen, "b", 300)
    assert due(store, 299) is None
    assert take(store, due(store, 300), "b", 600)
    taken = store.read("get", lambda tx: tx.notifications.get("n1"))
    assert (taken.attempts, taken.lease_token) == (2, "b")

    def write(tx: Any) -> tuple[bool, bool, bool]:
        back = tx.notifications.give_back
        tx.notifications.drop("n1", "a")
        return (
            back("n1", "a", state=DeliveryState.SENT, ended_at=at(301)),
            back("n1", "b", due_at=at(400), failure="busy"),
            back("n1", "b", state=DeliveryState.SENT, ended_at=at(302)),
        )

    assert store.run_tx("write", write) == (False, True, False)
    again = due(store, 400)
    assert (again.due_at, again.failure, again.state) == (at(400), "busy", DeliveryState.WAITING)


def test_older_rows_of_a_recipient_come_first_and_are_hastened(store: Store) -> None:
    new = notification("n2", cause="b", created_at=at(5))
    other = notification("n3", cause="c", recipient="site:zurich", due_at=at(900))
    old = notification(due_at=at(900))
    add(store, new, other, old)
    older = lambda tx: tx.notifications.older(new)  # noqa: E731
    assert store.read("older", older) == old
    store.run_tx("hasten", lambda tx: tx.notifications.hasten(new, at(20)))
    assert due(store, 20) == replace(old, due_at=at(20))
    assert take(store, due(store, 20), "a", 300)
    assert store.read("older", older) is None
    assert take(store, due(store, 20), "b", 300)
    assert due(store, 299) is None
