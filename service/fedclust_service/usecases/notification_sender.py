"""Sends the notifications of one channel from the outbox, each at least once.

A worker takes a row for some minutes, sends it outside any transaction, and writes how it ended. If
the worker dies in between, another one sends the row again later, with the same id.
"""

import dataclasses
import secrets
from datetime import datetime

import structlog

from fedclust_service.background import BackgroundThread
from fedclust_service.clock import ClockFault
from fedclust_service.domain.access import Role
from fedclust_service.domain.notification import (
    DELIVERY_LEASE,
    OPERATOR_EMAILS,
    WEBHOOK,
    Channel,
    DeliveryFailed,
    DeliveryState,
    Notification,
    Sender,
    next_attempt,
)
from fedclust_service.store import Tx
from fedclust_service.usecases.core import CoordinatorCore, survived
from fedclust_service.usecases.notifications import is_stale

log = structlog.get_logger(__name__)
#: Deliveries of a channel under way at once, so that a slow one does not delay the others. Mails
#: go one by one: they share a server, and arrive in the order of their events.
AT_ONCE = {Channel.EMAIL: 1, Channel.WEBHOOK: 4}


class NotificationSender(BackgroundThread):
    """Sends what is due, one after another. The Coordinator builds some for each channel."""

    def __init__(self, co: CoordinatorCore, channel: Channel, sender: Sender) -> None:
        super().__init__(f"fedclust-{channel.value}")
        self._co = co
        self._channel = channel
        self._sender = sender

    def _run(self) -> None:
        while not self._stopping.is_set():
            with survived("notification"):
                while not self._stopping.is_set() and self.run_once():
                    pass
            self._stopping.wait(self._co.limits.send_poll_s)

    def run_once(self) -> bool:
        """Send what is due longest in the calling thread; False when nothing is due.

        If an older notification of the recipient waits for its next attempt, it goes first. If that
        fails, the due one is tried all the same: its fault may lie in the older one alone.
        """
        if self._co.clock.fault is ClockFault.DATABASE:
            return False
        store, now = self._co.store, self._co.clock.now()
        due = store.read("notify.look", lambda tx: tx.notifications.due(self._channel, now))
        if due is None:
            return False
        older = store.read("notify.older", lambda tx: tx.notifications.older(due))
        if older is None or not self._deliver(older, now):
            self._deliver(due, now)
        return True

    def _deliver(self, seen: Notification, now: datetime) -> bool:
        """Send a notification, or drop it if nobody needs it; False if it waits on or failed."""
        store, token = self._co.store, secrets.token_hex(16)
        until = now + DELIVERY_LEASE
        if not store.run_tx("notify.take", lambda tx: tx.notifications.take(seen, token, until)):
            return False  # another worker sends it
        taken = dataclasses.replace(seen, attempts=seen.attempts + 1, lease_token=token)
        stale, address = store.read(
            "notify.address", lambda tx: (is_stale(tx, taken), self._address(tx, taken))
        )
        if stale or (self._channel is Channel.EMAIL and address is None):
            store.run_tx("notify.drop", lambda tx: tx.notifications.drop(seen.id, token))
            log.info("notification_dropped", **_log_facts(taken), stale=stale)
            return True
        try:
            self._sender.send(taken.body, address, now)
        except DeliveryFailed as failed:
            self._failed(taken, token, failed)
            return False
        except Exception as error:  # a defect must not stop the others
            log.error("notification_error", error=type(error).__name__, exc_info=error)
            self._failed(taken, token, DeliveryFailed(f"internal error {type(error).__name__}"))
            return False

        def write(tx: Tx) -> None:
            tx.notifications.end(seen.id, token, DeliveryState.SENT, tx.now)
            # The recipient can be reached again.
            tx.notifications.hasten(taken, now)

        store.run_tx("notify.sent", write)
        log.info("notification_sent", **_log_facts(taken))
        return True

    def _address(self, tx: Tx, taken: Notification) -> str | None:
        role, _, name = taken.recipient.partition(":")
        if taken.recipient == WEBHOOK:
            return None
        if role == OPERATOR_EMAILS:
            # The setting may have become shorter since the row was written.
            named = self._co.outgoing.operator_emails
            return named[int(name) - 1] if int(name) <= len(named) else None
        return tx.principals.emails(Role(role), [name]).get(name)

    def _failed(self, taken: Notification, token: str, failed: DeliveryFailed) -> None:
        now = self._co.clock.now()
        draw = secrets.randbelow(1001) / 1000
        again = None if failed.final else next_attempt(taken.created_at, taken.attempts, now, draw)

        def write(tx: Tx) -> None:
            if again is not None:
                tx.notifications.postpone(taken.id, token, again, failed.reason)
            else:
                tx.notifications.end(taken.id, token, DeliveryState.FAILED, now, failed.reason)

        self._co.store.run_tx("notify.failed", write)
        facts = {**_log_facts(taken), "attempts": taken.attempts, "why": failed.reason}
        if again is not None:
            log.warning("notification_postponed", **facts)
        else:
            log.error("notification_failed", **facts)


def _log_facts(taken: Notification) -> dict[str, str]:
    """Return what log lines say of a notification. No address."""
    return {
        "notification": taken.id,
        "kind": taken.kind.value,
        "subject": taken.subject,
        "recipient": taken.recipient,
    }
