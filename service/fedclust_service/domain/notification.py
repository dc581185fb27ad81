"""Notifications of people outside the coordinator, and when a failed delivery is repeated.

They hold names, states, numbers of rounds and times. They never hold a value of the data, a token,
or text that an analyst wrote.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol, TypeAlias


class NotificationKind(StrEnum):
    """What a notification is about. A cancelled session is ``finished``."""

    INVITED = "invited"
    OVERDUE = "overdue"
    FINISHED = "finished"
    FAILED = "failed"
    HELD = "held"
    TOKEN_EXPIRING = "token-expiring"  # noqa: S105


class Channel(StrEnum):
    EMAIL = "email"
    WEBHOOK = "webhook"


class DeliveryState(StrEnum):
    WAITING = "waiting"
    SENT = "sent"
    FAILED = "failed"


#: The recipient of the webhook's rows, and the first part of ``operator_emails:2``: the second
#: address of that setting. The recipient of other mails is an account, such as ``site:north``. Its
#: address is looked up when the mail is sent.
WEBHOOK, OPERATOR_EMAILS = "webhook", "operator_emails"

#: The fields of a webhook's body.
Body: TypeAlias = Mapping[str, str | int | Sequence[str] | None]

FIRST_RETRY = timedelta(seconds=30)
LONGEST_PAUSE = timedelta(hours=3)
GIVE_UP_AFTER = timedelta(days=1)
#: How long a crashed worker's rows wait. Several answers of a mail server may take as long as its
#: timeout allows in this time. After a slower attempt another worker may send the row too.
DELIVERY_LEASE = timedelta(minutes=1)
#: A channel needs attention if a row waits for so long since its first attempt failed.
FAILING_FOR = timedelta(minutes=10)
#: Ended rows are removed after this time. It is longer than the earliest warning of a token, which
#: would otherwise be written again.
KEPT_FOR = timedelta(days=30)


@dataclass(frozen=True, kw_only=True)
class Notification:
    """One notification to one recipient by one channel.

    ``subject`` is a session, or the owner of a token. No two have the same kind, subject, cause and
    recipient. ``due_at`` is when to send it next; while a worker sends it, when others may take it.
    """

    id: str
    kind: NotificationKind
    subject: str
    cause: str
    recipient: str
    channel: Channel
    body: Body
    state: DeliveryState = DeliveryState.WAITING
    created_at: datetime
    due_at: datetime
    attempts: int = 0
    lease_token: str | None = None
    ended_at: datetime | None = None
    failure: str | None = None


def next_attempt(
    created_at: datetime, attempts: int, now: datetime, draw: float
) -> datetime | None:
    """Return when to repeat a delivery that failed now for the ``attempts``-th time.

    The pauses double from half a minute to three hours, each by a factor of .75 to 1.25 as ``draw``
    between 0 and 1 says, so that not all rows are sent at once. None after a day: the delivery has
    failed.
    """
    pause = min(FIRST_RETRY * 2.0 ** min(attempts - 1, 20), LONGEST_PAUSE) * (0.75 + draw / 2)
    at = now + pause
    return at if at <= created_at + GIVE_UP_AFTER else None


class DeliveryFailed(Exception):
    """A notification was not delivered.

    ``reason`` names the setting to look at and holds none of the receiver's text. ``final``:
    another attempt would fail too.
    """

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.final = final


class Sender(Protocol):
    """One configured channel."""

    def send(self, body: Body, address: str | None, now: datetime) -> str:
        """Deliver a notification and return what the receiver answered; DeliveryFailed.

        ``address`` is the recipient of a mail, and None for the webhook.
        """


@dataclass(frozen=True)
class Outgoing:
    """What is sent, as configured: the channels, the kinds and the operators' addresses.

    ``public_url`` is the address at which people reach the coordinator.
    """

    senders: Mapping[Channel, Sender] = field(default_factory=dict)
    kinds: frozenset[NotificationKind] = frozenset(NotificationKind)
    operator_emails: tuple[str, ...] = ()
    public_url: str | None = None
