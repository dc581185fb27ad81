"""Sends the notifications of one channel from the outbox, each at least once.

A worker takes a row for some minutes, sends it outside any transaction, and writes how it ended. If
the worker dies in between, another one sends the row again later, with the same id.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence

import structlog

from fedclust_service.background import BackgroundThread
from fedclust_service.clock import ClockFault
from fedclust_service.domain.access import Role
from fedclust_service.domain.notification import (
    DELIVERY_LEASE,
    OPERATORS,
    Channel,
    DeliveryFailed,
    DeliveryState,
    Notification,
    Sender,
    next_attempt,
)
from fedclust_service.orchestration.core import CoordinatorCore
from fedclust_service.store import StoreError, Tx

log = structlog.get_logger(__name__)


class NotificationSender(BackgroundThread):
    """Sends what is due, one after another. Built by the Coordinator, one for each channel."""

    def __init__(self, co: CoordinatorCore, channel: Channel, sender: Sender) -> None:
        super().__init__(f"fedclust-{channel.value}")
        self._co = co
        self._channel = channel
        self._sender = sender

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                while not self._stopping.is_set() and self.run_once():
                    pass
            except StoreError as error:
                log.warning("notification_store_error", error=type(error).__name__)
            except Exception as error:  # the thread survives every defect
                log.error("notification_error", error=type(error).__name__, exc_info=error)
            self._stopping.wait(self._co.limits.send_poll_s)

    def run_once(self) -> bool:
        """Send one notification in the calling thread; False when none is due."""
        if self._co.clock.fault is ClockFault.DATABASE:
            return False
        store, now, token = self._co.store, self._co.clock.now(), secrets.token_hex(16)
        due = store.read("notify.look", lambda tx: tx.notifications.due(self._channel, now))
        if due is None:
            return False
        until = now + DELIVERY_LEASE
        if not store.run_tx(
            "notify.take", lambda tx: tx.notifications.take(due.id, token, now, until)
        ):
            return True  # another worker sends it
        taken = dataclasses.replace(due, attempts=due.attempts + 1, lease_token=token)
        addresses = store.read("notify.address", lambda tx: self._addresses(tx, taken))
        if self._channel is Channel.EMAIL and not addresses:
            store.run_tx("notify.drop", lambda tx: tx.notifications.drop(due.id, token))
            return True
        try:
            self._sender.send(taken.body, addresses, now)
        except DeliveryFailed as failed:
            self._failed(taken, token, failed)
        except Exception as error:  # a defect must not stop the others
            log.error("notification_error", error=type(error).__name__, exc_info=error)
            self._failed(taken, token, DeliveryFailed(f"internal error {type(error).__name__}"))
        else:
            store.run_tx(
                "notify.sent",
                lambda tx: tx.notifications.end(due.id, token, DeliveryState.SENT, tx.now),
            )
            log.info("notification_sent", **_log_facts(taken))
        return True

    def _addresses(self, tx: Tx, taken: Notification) -> Sequence[str]:
        if self._channel is not Channel.EMAIL:
            return ()
        if taken.recipient == OPERATORS:
            named = (
                *self._co.outgoing.operator_emails,
                *tx.principals.emails(Role.OPERATOR).values(),
            )
            return tuple(dict.fromkeys(named))
        role, _, name = taken.recipient.partition(":")
        return tuple(tx.principals.emails(Role(role), [name]).values())

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
