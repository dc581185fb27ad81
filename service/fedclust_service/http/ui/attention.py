"""What needs an operator's attention, in sentences: what it is, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from fedclust_service.domain.notification import Channel
from fedclust_service.http.readiness import REASONS
from fedclust_service.orchestration.attention import Attention


@dataclass(frozen=True)
class Matter:
    """One thing to look at.

    ``badge`` is how urgent it is, as a badge's class, and ``label`` its word. ``at`` is when it
    began, or for what is still to come, when it will happen: ``when`` says which. ``where`` is the
    address of the page where it is solved, ``link`` that link's text. ``detail_is`` are words in
    front of the detail.
    """

    badge: str
    label: str
    what: str
    to_do: str
    when: str = "Since"
    at: datetime | None = None
    detail: str | None = None
    detail_is: str = ""
    where: str | None = None
    link: str = "Open"


def concerns(items: Sequence[Attention], faults: Sequence[str]) -> tuple[Matter, ...]:
    """Return everything that needs attention: first why the coordinator cannot serve."""
    serving = (
        Matter("failed", "not ready", REASONS[fault], "Until then, sites cannot go on.")
        for fault in faults
    )
    return (*serving, *(_WORDS.get(each.kind, _unknown)(each) for each in items))


def _session(each: Attention) -> str:
    return f"/ui/sessions/{each.subject}"


def account_path(key: str) -> str | None:
    """Return the address of the page of an actor or an account such as ``site:north``."""
    role, _, name = key.partition(":")
    return f"/ui/{role}s/{name}" if name and role in ("site", "analyst", "operator") else None


def _round_late(each: Attention) -> Matter:
    return Matter(
        "late",
        "late",
        f"Round {each.round} of session {each.subject} is past its deadline.",
        "Ask the sites that have not answered. You can extend the deadline, close the round with "
        "the answers that are there, or exclude a site.",
        at=each.at,
        detail=each.detail,
        detail_is="Waits for",
        where=_session(each),
        link="Open session",
    )


def _round_stuck(each: Attention) -> Matter:
    return Matter(
        "failed",
        "stuck",
        f"The worker that computed round {each.round} of session {each.subject} has died.",
        "Another worker takes over by itself within a minute. If this stays, restart the "
        "coordinator and look at its log.",
        at=each.at,
        where=_session(each),
        link="Open session",
    )


def _cannot_start(each: Attention) -> Matter:
    return Matter(
        "late",
        "cannot start",
        f"Session {each.subject} cannot start with the sites that joined.",
        "Its analyst can invite another site, or create the session again with another method.",
        at=each.at,
        detail=each.detail,
        where=_session(each),
        link="Open session",
    )


def _task_refused(each: Attention) -> Matter:
    return Matter(
        "late",
        "task refused",
        f"Sites of session {each.subject} have refused a task; it continues without them.",
        "Compare the versions of fedclust at the sites and here. If they are the same, tell the "
        "developers: the coordinator asked for something that the definition does not provide for.",
        at=each.at,
        detail=each.detail,
        detail_is="Broken rules:",
        where=_session(each),
        link="Open session",
    )


def _table_refused(each: Attention) -> Matter:
    _, _, name = each.subject.partition(":")
    return Matter(
        "late",
        "table refused",
        f"Site {name} cannot join: its protected table does not continue what was accepted.",
        "Ask the site to look for its newer state. If there is none, accept what it has, with the "
        "table, number and head that its message names.",
        at=each.at,
        detail=each.detail,
        where=account_path(each.subject),
        link="Open site",
    )


def _backup_old(each: Attention) -> Matter:
    return Matter(
        "late",
        "backup",
        "The database has no new backup.",
        "Run fedclust-service backup on the coordinator's machine, and have it run every day.",
        at=each.at,
        detail=each.detail,
    )


def _audit_changed(each: Attention) -> Matter:
    return Matter(
        "failed",
        "audit trail",
        "The last verification found that the audit trail was changed.",
        "Keep a copy of the database as it is now, find out who could write to it, and compare the "
        "trail with the newest backup. A verification without faults ends this message.",
        at=each.at,
        detail=each.detail,
        where="/ui/audit",
        link="Open the audit trail",
    )


def _disk_low(each: Attention) -> Matter:
    return Matter(
        "failed",
        "disk",
        "The coordinator's disk is almost full.",
        "Make space before it is full: then no answer of a site can be stored.",
        detail=each.detail,
    )


def _session_held(each: Attention) -> Matter:
    return Matter(
        "failed",
        "held",
        f"Session {each.subject} is held: it waits for you.",
        "Look for the cause, for example too little memory. Then have it try again, or cancel it. "
        "All answers of its sites are kept.",
        at=each.at,
        detail=each.detail,
        where=_session(each),
        link="Open session",
    )


def _session_failed(each: Attention) -> Matter:
    return Matter(
        "failed",
        "failed",
        f"Session {each.subject} has failed.",
        "Its analyst can create it again, with what went wrong changed. This line goes a week "
        "after the failure.",
        at=each.at,
        detail=each.detail,
        where=_session(each),
        link="Open session",
    )


def _token_expiring(each: Attention) -> Matter:
    role, _, name = each.subject.partition(":")
    return Matter(
        "expiring",
        "token ends",
        f"The last valid token of {role} {name} ends soon.",
        "Issue another one and hand it over before then.",
        when="Ends",
        at=each.at,
        where=account_path(each.subject),
        link="Issue a token",
    )


def _notifications_waiting(each: Attention) -> Matter:
    channel = {Channel.EMAIL.value: "by e-mail", Channel.WEBHOOK.value: "to the webhook"}
    return Matter(
        "late",
        "unsent",
        f"Notifications {channel.get(each.subject, each.subject)} cannot be delivered.",
        "The coordinator keeps trying for a day. Check its settings and the server that takes "
        "them: fedclust-service notify test sends one.",
        at=each.at,
        detail=each.detail,
    )


def _notification_failed(each: Attention) -> Matter:
    path = account_path(each.subject)
    return Matter(
        "late",
        "unsent",
        f"A notification to {each.subject.replace(':', ' ')} was given up.",
        "Check the address. What it said can be read in the sessions and in the audit trail.",
        at=each.at,
        detail=each.detail,
        where=path,
        link="Check the address",
    )


def _unknown(each: Attention) -> Matter:
    words = each.kind.replace("-", " ")
    what = f"{words.capitalize()}: {each.subject}."
    return Matter("late", words, what, "", at=each.at, detail=each.detail)


_WORDS: dict[str, Callable[[Attention], Matter]] = {
    "round-late": _round_late,
    "round-stuck": _round_stuck,
    "cannot-start": _cannot_start,
    "task-refused": _task_refused,
    "table-refused": _table_refused,
    "session-held": _session_held,
    "session-failed": _session_failed,
    "token-expiring": _token_expiring,
    "notifications-waiting": _notifications_waiting,
    "notification-failed": _notification_failed,
    "backup-old": _backup_old,
    "audit-changed": _audit_changed,
    "disk-low": _disk_low,
}
