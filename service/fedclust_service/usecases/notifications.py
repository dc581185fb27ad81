"""Write notifications into the outbox, in the transaction of the change that causes them.

So no change is forgotten if the process dies, and none is notified of twice. Without a configured
channel nothing is written.

A worker sends the notifications of one channel from the outbox, each at least once. It takes a row
for some minutes, sends it outside any transaction, and writes how it ended. If the worker dies in
between, another one sends the row again later, with the same id.
"""

import dataclasses
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

import structlog

from fedclust.rounds.collecting import Rules
from fedclust.schema import notification_texts as texts
from fedclust.schema.times import write_time
from fedclust_service.background import BackgroundThread
from fedclust_service.clock import ClockFault
from fedclust_service.domain.access import Principal, Role, Token
from fedclust_service.domain.notification import (
    DELIVERY_LEASE,
    OPERATOR_EMAILS,
    WEBHOOK,
    Channel,
    DeliveryFailed,
    DeliveryState,
    Notification,
    NotificationKind,
    Sender,
    next_attempt,
)
from fedclust_service.domain.round import Round, RoundState
from fedclust_service.domain.session import ParticipationState, Session, SessionState
from fedclust_service.store import Tx
from fedclust_service.usecases.core import CoordinatorCore, survived
from fedclust_service.usecases.unit_of_work import UnitOfWork


@dataclass(frozen=True)
class _Event:
    """What has happened to a session, or to the token of an account.

    ``cause`` distinguishes it from others of its kind and subject. ``text`` is for operators,
    analysts and the webhook; ``own_text`` for one of ``sites``, by name, or for the owner of a
    token.
    """

    kind: NotificationKind
    about: Session | Principal
    cause: str
    text: str
    own_text: Callable[[str], str]
    round: int | None = None
    sites: Sequence[str] = ()
    expires_at: datetime | None = None

    def write(self, uow: UnitOfWork) -> None:
        """Write the notifications of this event to all that get one."""
        outgoing = uow.co.outgoing
        if self.kind not in outgoing.kinds:
            return
        rows = []
        if Channel.WEBHOOK in outgoing.senders:
            rows.append(_outbox_row(uow, self, WEBHOOK, Channel.WEBHOOK, self.text))
        if Channel.EMAIL in outgoing.senders:
            for recipient, text in _mails_of(uow, self):
                rows.append(_outbox_row(uow, self, recipient, Channel.EMAIL, text))
        uow.tx.notifications.add(rows)


def sites_invited(uow: UnitOfWork, session: Session, sites: Sequence[str]) -> None:
    """Notify sites of their invitation."""
    names = sorted(sites)
    _Event(
        kind=NotificationKind.INVITED,
        about=session,
        # A site is invited once, so its name identifies this invitation.
        cause=f"invited with {names[0]}",
        text=texts.invited(session.name, names),
        own_text=lambda site: texts.site_invited(session.name, site),
        sites=names,
    ).write(uow)


def round_overdue(uow: UnitOfWork, session: Session, current: Round, rules: Rules) -> None:
    """Notify operators, the analyst and the late sites that a round is overdue.

    Each cause is notified of once: the deadline that has passed, and too few sites that are left,
    also if the round was overdue already.
    """
    turnout = uow.tx.rounds.turnout(current.id)
    lacking = turnout.joined < rules.policy.min_sites
    if current.overdue_since is not None and not lacking:
        return
    pending = uow.tx.overview.attendance([session.id])[session.id].pending
    since = current.overdue_since or uow.now
    waiting = texts.Waiting(session.name, current.number, since + rules.fail_after, rules.optional)
    if lacking:
        late: list[str] = []
        cause = f"round {current.number} too few sites"
        possible = [] if rules.cannot_close(turnout) else pending
        text = texts.too_few_sites(waiting, turnout.joined, rules.policy.min_sites, possible)
    else:
        late = pending
        cause = f"round {current.number} overdue since {uow.now.isoformat()}"
        spare = rules.spare(turnout)
        text = texts.overdue(
            waiting, current.deadline, late, spare, rules.policy.sites_needed, uow.now
        )
    at = current.deadline
    _Event(
        kind=NotificationKind.OVERDUE,
        about=session,
        cause=cause,
        text=text,
        own_text=lambda site: texts.site_late(session.name, current.number, site, at),
        round=current.number,
        sites=late,
    ).write(uow)


def session_held(uow: UnitOfWork, session: Session, current: Round) -> None:
    """Notify operators and the analyst that a session waits for an operator."""
    _Event(
        kind=NotificationKind.HELD,
        about=session,
        cause=f"round {current.number} held at {uow.now.isoformat()}",
        text=texts.held(session.name, current.number, session.deaths),
        own_text=lambda _: "",
        round=current.number,
    ).write(uow)


def session_ended(uow: UnitOfWork, session: Session, last_round: int | None) -> None:
    """Notify operators, the analyst and the session's sites of its end."""
    failed = session.state is SessionState.FAILED
    text = texts.ended(session.name, session.state.value)
    sites = [each.site for each in uow.tx.participations.list(session.id) if not each.state.gone]
    _Event(
        kind=NotificationKind.FAILED if failed else NotificationKind.FINISHED,
        about=session,
        cause=session.state.value,
        text=text,
        own_text=lambda _: text,
        round=last_round,
        sites=sites,
    ).write(uow)


def token_expiring(uow: UnitOfWork, owner: Principal, token: Token) -> None:
    """Notify operators and the owner of a token that ends soon, once for each warning."""
    lifetime = token.expires_at - token.created_at
    left = token.expires_at - uow.now
    # A token that never was valid for that long is warned of when half of its life is left.
    warnings = [each for each in texts.TOKEN_WARNINGS if each < lifetime] or [lifetime / 2]
    reached = [each for each in warnings if left <= each]
    if not reached:
        return
    named = owner.role.value, owner.name, token.expires_at
    _Event(
        kind=NotificationKind.TOKEN_EXPIRING,
        about=owner,
        cause=f"token {token.id} within {reached[0].days} days",
        text=texts.token_expiring(*named),
        own_text=lambda _: texts.own_token_expiring(*named),
        expires_at=token.expires_at,
    ).write(uow)


def is_stale(tx: Tx, waiting: Notification) -> bool:
    """Whether the cause of an invitation or of an overdue round has passed meanwhile."""
    if waiting.kind not in (NotificationKind.INVITED, NotificationKind.OVERDUE):
        return False
    session = tx.sessions.get(waiting.subject)
    if session is None or session.state.ended:
        return True
    known = tx.overview.attendance([session.id])[session.id]
    role, _, name = waiting.recipient.partition(":")
    sites = [name] if role == Role.SITE.value else waiting.body["sites"]
    if waiting.kind is NotificationKind.INVITED:
        invited = {each.name for each in known.sites if each.state == ParticipationState.INVITED}
        return invited.isdisjoint(cast(Sequence[str], sites))
    current = known.round
    if current is None or current.number != waiting.body["round"]:
        return True
    since = current.overdue_since if current.state is RoundState.COLLECTING else None
    if since is None or since > waiting.created_at:
        return True
    return role == Role.SITE.value and name not in known.pending


def _mails_of(uow: UnitOfWork, event: _Event) -> Iterable[tuple[str, str]]:
    """Yield the recipients that have an address, each with its text."""
    emails, about = uow.tx.principals.emails, event.about
    for site in emails(Role.SITE, event.sites) if event.sites else ():
        yield f"{Role.SITE.value}:{site}", event.own_text(site)
    if event.kind is NotificationKind.INVITED:
        return
    named = list(dict.fromkeys(uow.co.outgoing.operator_emails))
    for address in named:
        yield f"{OPERATOR_EMAILS}:{uow.co.outgoing.operator_emails.index(address) + 1}", event.text
    for name, address in emails(Role.OPERATOR).items():
        if address not in named:
            named.append(address)
            yield f"{Role.OPERATOR.value}:{name}", event.text
    owner = about.key if isinstance(about, Principal) else about.created_by
    role, _, name = owner.partition(":")
    # An operator gets the operators' mail.
    if role != Role.OPERATOR.value and emails(Role(role), [name]):
        yield owner, event.own_text(name) if isinstance(about, Principal) else event.text


def _outbox_row(
    uow: UnitOfWork, event: _Event, recipient: str, channel: Channel, text: str
) -> Notification:
    new, url = secrets.token_hex(16), uow.co.outgoing.public_url
    about, ends = event.about, event.expires_at
    session = about if isinstance(about, Session) else None
    link = None if url is None or session is None else f"{url}/ui/sessions/{session.name}"
    return Notification(
        id=new,
        kind=event.kind,
        subject=about.name if isinstance(about, Session) else about.key,
        cause=event.cause,
        recipient=recipient,
        channel=channel,
        body={
            "id": new,
            "kind": event.kind.value,
            "time": write_time(uow.now),
            "session": None if session is None else session.name,
            "round": event.round,
            "sites": list(event.sites),
            "state": None if session is None else session.state.value,
            "account": about.key if isinstance(about, Principal) else None,
            "expires_at": None if ends is None else write_time(ends),
            "text": texts.with_address(text, url, link),
            "link": link,
        },
        created_at=uow.now,
        due_at=uow.now,
    )


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

    def run(self) -> None:
        """Run in the thread."""
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
            sent = {"state": DeliveryState.SENT, "ended_at": tx.now, "failure": None}
            tx.notifications.give_back(seen.id, token, **sent)
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

        end = {"state": DeliveryState.FAILED, "ended_at": now}
        changes = {"failure": failed.reason, **(end if again is None else {"due_at": again})}
        self._co.store.run_tx(
            "notify.failed", lambda tx: tx.notifications.give_back(taken.id, token, **changes)
        )
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
