"""The coordinator at one glance, for operators: what needs attention, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from starlette.responses import Response

from fedclust_service.domain.access import Role, require
from fedclust_service.domain.notification import Channel
from fedclust_service.domain.overview import Attention, AttentionKind
from fedclust_service.http.readiness import REASONS, faults
from fedclust_service.http.ui.address import account_path
from fedclust_service.http.ui.page_request import PageRequest, get, post
from fedclust_service.usecases import admin, principals

_SESSION = "/ui/sessions/{subject}"
_ACCOUNT = "{account}"


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
    where: str | None = None
    link: str = "Open session"
    when: str = "Since"
    detail_is: str = ""
    at: datetime | None = None
    detail: str | None = None


#: The words of each kind; names in braces are filled in.
_WORDS: Mapping[AttentionKind, Matter] = MappingProxyType(
    {
        "round-late": Matter(
            "late",
            "late",
            "Round {round} of session {subject} is past its deadline.",
            "Ask the sites that have not answered. You can extend the deadline, close the round "
            "with the answers that are there, or exclude a site.",
            _SESSION,
            detail_is="Waits for",
        ),
        "round-stuck": Matter(
            "failed",
            "stuck",
            "The worker that computed round {round} of session {subject} has died.",
            "Another worker takes over by itself within a minute. If this stays, restart the "
            "coordinator and look at its log.",
            _SESSION,
        ),
        "cannot-start": Matter(
            "late",
            "cannot start",
            "Session {subject} cannot start with the sites that joined.",
            "Its analyst can invite another site, or create the session again with another method.",
            _SESSION,
        ),
        "task-refused": Matter(
            "late",
            "task refused",
            "Sites of session {subject} have refused a task; it continues without them.",
            "Compare the versions of fedclust at the sites and here. If they are the same, tell "
            "the developers: the coordinator asked for something that the definition does not "
            "provide for.",
            _SESSION,
            detail_is="Broken rules:",
        ),
        "table-refused": Matter(
            "late",
            "table refused",
            "Site {name} cannot join: its protected table does not continue what was accepted.",
            "Ask the site to look for its newer state. If there is none, accept what it has, with "
            "the table, number and head that its message names.",
            _ACCOUNT,
            "Open site",
        ),
        "session-held": Matter(
            "failed",
            "held",
            "Session {subject} is held: it waits for you.",
            "Its page has the buttons “Try again” and “Cancel”.",
            _SESSION,
        ),
        "session-failed": Matter(
            "failed",
            "failed",
            "Session {subject} has failed.",
            "Its analyst can create it again. This line goes a week after the failure.",
            _SESSION,
        ),
        "token-expiring": Matter(
            "expiring",
            "token ends",
            "The last valid token of {role} {name} ends soon.",
            "Issue another one and hand it over before then.",
            _ACCOUNT,
            "Issue a token",
            when="Ends",
        ),
        "notifications-waiting": Matter(
            "late",
            "unsent",
            "Notifications {channel} cannot be delivered.",
            "The coordinator keeps trying for a day. Check its settings and the server that takes "
            "them: fedclust-service notify-test sends one.",
        ),
        "notification-failed": Matter(
            "late",
            "unsent",
            "A notification to {recipient} was given up.",
            "Check the address. What it said can be read in the sessions and in the audit trail.",
            _ACCOUNT,
            "Check the address",
        ),
        "backup-old": Matter(
            "late",
            "backup",
            "The database has no new backup.",
            "Run fedclust-service backup every day: systemctl enable --now fedclust-backup.timer "
            "does so. If that timer is there, systemctl status fedclust-backup says what failed.",
            "/help/operations/backup.html#make-a-backup",
            "Read how",
        ),
        "audit-changed": Matter(
            "failed",
            "audit trail",
            "The last verification found that the audit trail was changed.",
            "Keep a copy of the database as it is now, find out who could write to it, and compare "
            "the trail with the newest backup. A verification without faults ends this message.",
            "/ui/audit",
            "Open the audit trail",
        ),
        "disk-low": Matter(
            "failed",
            "disk",
            "The coordinator's disk is almost full.",
            "Make space before it is full: then no answer of a site can be stored.",
        ),
    }
)


@dataclass(frozen=True)
class Step:
    """A step of a coordinator's first days.

    ``where`` is the page on which it is taken or explained, ``at`` when it was last done.
    """

    done: bool
    what: str
    to_do: str
    where: str
    at: datetime | None = None


#: A copy that is older was not made every day: some time passes until a timer begins.
_DAILY = timedelta(hours=36)
_CHANNELS = {Channel.EMAIL.value: "by e-mail", Channel.WEBHOOK.value: "to the webhook"}


def matters(items: Sequence[Attention], reasons: Sequence[str]) -> tuple[Matter, ...]:
    """Return everything that needs attention: first why the coordinator cannot serve."""
    serving = (
        Matter("failed", "not ready", REASONS[reason], "Until then, sites cannot go on.")
        for reason in reasons
    )
    return (*serving, *map(_matter, items))


def _matter(item: Attention) -> Matter:
    words, account = _WORDS[item.kind], account_path(item.subject)
    role, _, name = item.subject.partition(":")
    where = words.where and words.where.format(subject=item.subject, account=account or "")
    what = words.what.format(
        subject=item.subject,
        round=item.round,
        role=role,
        name=name,
        recipient=item.subject.replace(":", " "),
        channel=_CHANNELS.get(item.subject),
    )
    # Space on a disk is of this moment.
    at = None if item.kind == "disk-low" else item.at
    return replace(words, what=what, where=where or None, at=at, detail=item.detail)


def _first_steps(page: PageRequest, found: admin.Overview) -> tuple[Step, ...]:
    """Return what a new coordinator needs before hospitals depend on it."""
    settings = page.service.settings

    def registered(role: Role) -> bool:
        return bool(principals.list_principals(page.co, page.actor, role, limit=1).items)

    operators = principals.list_principals(page.co, page.actor, Role.OPERATOR).items
    last, postgresql = found.last_backup_at, found.versions.database == "postgresql"
    addressed = bool(settings.operator_emails) or any(each.email for each in operators)
    return (
        Step(
            page.request.url.scheme == "https",
            "Encrypt connections (TLS)",
            "You reached this page without TLS. Set --tls-cert and --tls-key, or put a proxy in "
            "front and name it with --behind-proxy.",
            "/help/operations/service.html#tls-without-a-proxy",
        ),
        Step(
            registered(Role.SITE),
            "Register the sites",
            "Each hospital gets an account and a token.",
            "/ui/register/sites",
        ),
        Step(
            registered(Role.ANALYST),
            "Register an analyst",
            "Analysts create sessions and read their results.",
            "/ui/register/analysts",
        ),
        Step(
            postgresql or (last is not None and page.co.clock.now() - last < _DAILY),
            "Back up the database every day",
            "systemctl enable --now fedclust-backup.timer makes a copy each day. “Back up now” "
            "below makes one, and this step is open again a day later.",
            "/help/operations/backup.html#make-a-backup",
            last,
        ),
        Step(
            settings.webhook_url is not None or (settings.smtp_host is not None and addressed),
            "Get a message when something is wrong",
            "Set FEDCLUST_SMTP_HOST, FEDCLUST_SMTP_FROM and FEDCLUST_OPERATOR_EMAILS for e-mail, "
            "or FEDCLUST_WEBHOOK_URL. Then run fedclust-service notify-test.",
            "/help/notifications.html",
        ),
    )


def _back_up(page: PageRequest) -> Response:
    settings = page.service.settings
    admin.back_up(page.co, page.actor, settings.store_url, settings.data_dir / "backups")
    return page.redirect("/ui/overview", "backed-up")


def _overview(page: PageRequest) -> Response:
    require(page.actor, "admin.read")
    found = admin.overview(page.co, page.actor, page.service.settings.data_dir)
    reasons = faults(page.co)
    return page.render(
        "overview.html",
        overview=found,
        concerns=matters(found.attention, reasons),
        steps=_first_steps(page, found),
        ready=not reasons,
    )


ROUTES = (get("/overview", _overview), post("/overview/backup", _back_up))
