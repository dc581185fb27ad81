"""The outbox: notifications that wait to be sent, were sent, or failed."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import ColumnElement, bindparam, delete, select, update

from fedclust_service.domain.notification import Channel, DeliveryState, Notification
from fedclust_service.store import tables
from fedclust_service.store._sql import Ending

_N = tables.notifications.c
_KEY = ("kind", "subject", "cause", "recipient")
# This runs every second. Building a statement costs more than running it.
_DUE = (
    select(tables.notifications)
    .where(
        _N.state == DeliveryState.WAITING,
        _N.channel == bindparam("channel"),
        _N.due_at <= bindparam("now"),
    )
    .order_by(_N.created_at, _N.id)
    .limit(1)
)


class Notifications(Ending):
    """Rows of the outbox, by id."""

    ended = _N.ended_at

    def add(self, new: Iterable[Notification]) -> None:
        """Store those whose kind, subject, cause and recipient are not stored yet."""
        for each in new:
            self._insert_unless_there(tables.notifications, vars(each), _KEY)

    def get(self, notification_id: str) -> Notification | None:
        """Return one row."""
        query = select(tables.notifications).where(_N.id == notification_id)
        return self._one(Notification, query)

    def due(self, channel: Channel, now: datetime) -> Notification | None:
        """Return the oldest waiting row that is due, if any."""
        return self._one(Notification, _DUE, channel=channel, now=now)

    def older(self, than: Notification) -> Notification | None:
        """Return the recipient's oldest row that waits for its next attempt, if it is older."""
        query = select(tables.notifications).where(
            *_waiting_for_attempt(than), _N.created_at < than.created_at
        )
        return self._one(Notification, query.order_by(_N.created_at, _N.id).limit(1))

    def take(self, seen: Notification, token: str, until: datetime) -> bool:
        """Take a waiting row until a time; False if another worker has changed it since."""
        one = update(tables.notifications).where(
            _N.id == seen.id, _N.state == DeliveryState.WAITING, _N.due_at == seen.due_at
        )
        return self._changed(one.values(lease_token=token, due_at=until, attempts=_N.attempts + 1))

    def hasten(self, like: Notification, now: datetime) -> None:
        """Make all rows of a recipient due that wait for their next attempt."""
        rows = update(tables.notifications).where(*_waiting_for_attempt(like), _N.due_at > now)
        self._all(rows.values(due_at=now))

    def give_back(self, notification_id: str, token: str, **changes: object) -> bool:
        """Change a taken row, so that it ends or is sent again; False if another worker has it."""
        one = update(tables.notifications).where(*_taken_by(notification_id, token))
        return self._changed(one.values(lease_token=None, **changes))

    def forget(self, session: str) -> None:
        """Remove the rows about a session that is deleted: another one may get its name."""
        self._all(delete(tables.notifications).where(_N.subject == session))

    def drop(self, notification_id: str, token: str) -> None:
        """Remove a taken row that nobody needs any more."""
        self._all(delete(tables.notifications).where(*_taken_by(notification_id, token)))

    def counts(self) -> dict[DeliveryState, int]:
        """Return how many rows are in each state."""
        return self._by_state(_N.state, DeliveryState)


def _waiting_for_attempt(like: Notification) -> tuple[ColumnElement[bool], ...]:
    """Select the rows of the same recipient that no worker has taken."""
    return (
        _N.state == DeliveryState.WAITING,
        _N.channel == like.channel,
        _N.recipient == like.recipient,
        _N.lease_token.is_(None),
    )


def _taken_by(notification_id: str, token: str) -> tuple[ColumnElement[bool], ...]:
    return _N.id == notification_id, _N.lease_token == token
