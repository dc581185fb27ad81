"""The outbox, on SQLite and on PostgreSQL."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from fedclust_service.domain.access import Role, Token
from fedclust_service.domain.notification import (
    Channel,
    DeliveryState,
    Notification,
    NotificationKind,
)
from fedclust_service.store import Store
from support.store_rows import EPOCH, at

MAIL = Channel.EMAIL


def notification(new: str = "n1", **changes: Any) -> Notification:
    made = Notification(
        id=new,
        kind=NotificationKind.OVERDUE,
        subject="heart",
        cause="round 1",
        recipient="operator_emails:1",
        channel=MAIL,
        body={"id": new, "text": "late", "sites": ["zurich"]},
        created_at=EPOCH,
        due_at=at(10),
    )
    return replace(made, **changes)


def add(store: Store, *new: Notification) -> None:
    store.run_tx("add", lambda tx: tx.notifications.add(new))


def due(store: Store, seconds: float, channel: Channel = MAIL) -> Notification | None:
    return store.read("due", lambda tx: tx.notifications.due(channel, at(seconds)))


def take(store: Store, new: str, token: str, seconds: float, until: float) -> bool:
    """Take a row if it is due then."""

    def work(tx: Any) -> bool:
        seen = tx.notifications.get(new)
        return seen.due_at <= at(seconds) and tx.notifications.take(seen, token, at(until))

    return store.run_tx("take", work)


def test_what_is_due_comes_by_channel_and_the_oldest_first(store: Store) -> None:
    late = notification("n2", cause="b", created_at=at(-5), due_at=at(12))
    other = notification("n3", cause="c", channel=Channel.WEBHOOK, due_at=at(1))
    add(store, notification(), late, other)
    assert due(store, 4) is None
    assert due(store, 11) == notification()
    assert due(store, 20) == late
    assert due(store, 20, Channel.WEBHOOK) == other


def test_one_worker_takes_a_row_and_another_only_after_its_time(store: Store) -> None:
    add(store, notification())
    assert not take(store, "n1", "a", 9, 300)  # not due yet
    assert take(store, "n1", "a", 10, 300)
    assert not take(store, "n1", "b", 10, 300)
    assert due(store, 299) is None
    assert take(store, "n1", "b", 300, 600)
    taken = store.read("get", lambda tx: tx.notifications.get("n1"))
    assert (taken.attempts, taken.lease_token) == (2, "b")

    def write(tx: Any) -> tuple[bool, bool, bool]:
        back = tx.notifications.give_back
        return (
            back("n1", "a", state=DeliveryState.SENT, ended_at=at(301)),
            back("n1", "b", due_at=at(400), failure="busy"),
            back("n1", "b", state=DeliveryState.SENT, ended_at=at(302)),
        )

    assert store.run_tx("write", write) == (False, True, False)
    again = store.read("get", lambda tx: tx.notifications.get("n1"))
    assert (again.due_at, again.failure, again.state) == (at(400), "busy", DeliveryState.WAITING)


def test_ended_rows_are_counted_listed_and_removed(store: Store) -> None:
    add(store, notification(), notification("n2", cause="b"), notification("n3", cause="c"))
    for each, state in (("n1", DeliveryState.SENT), ("n2", DeliveryState.FAILED)):
        assert take(store, each, each, 10, 300)
        store.run_tx(
            "end",
            lambda tx, each=each, state=state: tx.notifications.give_back(
                each, each, state=state, ended_at=at(20), failure="refused"
            ),
        )
    counts = store.read("counts", lambda tx: tx.notifications.counts())
    assert counts == dict.fromkeys(DeliveryState, 1)
    (concern,) = store.read(
        "concerns",
        lambda tx: tx.overview.concerns(
            now=at(30), failed_since=EPOCH, expiring_by=at(60), limit=5
        ),
    )
    assert (concern.kind, concern.subject) == ("notification-failed", "operator_emails:1")
    assert (concern.at, concern.detail) == (at(20), "refused")
    store.run_tx("remove", lambda tx: tx.notifications.remove(at(20)))
    assert store.read("counts", lambda tx: tx.notifications.counts())[DeliveryState.SENT] == 1
    store.run_tx("remove", lambda tx: tx.notifications.remove(at(21)))
    left = store.read("counts", lambda tx: tx.notifications.counts())
    assert left == {**dict.fromkeys(DeliveryState, 0), DeliveryState.WAITING: 1}


def test_older_rows_of_a_recipient_come_first_and_are_hastened(store: Store) -> None:
    new = notification("n2", cause="b", created_at=at(5))
    other = notification("n3", cause="c", recipient="site:zurich", due_at=at(900))
    old = notification(due_at=at(900))
    add(store, new, other, old)
    older = lambda tx: tx.notifications.older(new)  # noqa: E731
    assert store.read("older", older) == old
    store.run_tx("hasten", lambda tx: tx.notifications.hasten(new, at(20)))
    assert due(store, 20) == replace(old, due_at=at(20))
    assert take(store, "n1", "a", 20, 300)
    assert store.read("older", older) is None
    assert take(store, "n2", "b", 20, 300)
    assert due(store, 299) is None


def test_a_row_without_an_address_is_dropped_by_who_took_it(store: Store) -> None:
    add(store, notification())
    assert take(store, "n1", "a", 10, 300)
    store.run_tx("drop", lambda tx: tx.notifications.drop("n1", "b"))
    assert store.read("get", lambda tx: tx.notifications.get("n1")) is not None
    store.run_tx("drop", lambda tx: tx.notifications.drop("n1", "a"))
    assert store.read("get", lambda tx: tx.notifications.get("n1")) is None


def test_addresses_of_enabled_principals(store: Store) -> None:
    def work(tx: Any) -> None:
        tx.principals.add(Role.SITE, "budapest", "", "b@x.example")
        tx.principals.add(Role.SITE, "zurich", "")
        gone = tx.principals.add(Role.SITE, "cleveland", "", "c@x.example")
        tx.principals.update(replace(gone, disabled=True))
        tx.principals.add(Role.ANALYST, "ada", "", "a@x.example")

    store.run_tx("add", work)
    read = store.read("emails", lambda tx: tx.principals.emails(Role.SITE))
    assert read == {"budapest": "b@x.example"}
    named = store.read("emails", lambda tx: tx.principals.emails(Role.SITE, ["zurich", "none"]))
    assert named == {}
    kept = store.read("get", lambda tx: tx.principals.get(Role.SITE, "cleveland"))
    assert kept.email == "c@x.example"


def test_tokens_that_end_soon_are_the_last_of_somebody(store: Store) -> None:
    def work(tx: Any) -> None:
        for name, ends in (("budapest", (5, 40)), ("zurich", (3, 9)), ("cleveland", (-1,))):
            site = tx.principals.add(Role.SITE, name, "")
            for days in ends:
                new = f"{name}{days}".replace("-", "x")
                tx.tokens.add(Token(new, site.id, "h", EPOCH, EPOCH + timedelta(days=days)))
        revoked = tx.principals.add(Role.SITE, "revoked", "")
        tx.tokens.add(Token("r", revoked.id, "h", EPOCH, EPOCH + timedelta(days=4), EPOCH))

    store.run_tx("add", work)
    found = store.read("expiring", lambda tx: tx.tokens.expiring(EPOCH, EPOCH + timedelta(days=14)))
    assert [(token.id, owner.key) for token, owner in found] == [("zurich9", "site:zurich")]
