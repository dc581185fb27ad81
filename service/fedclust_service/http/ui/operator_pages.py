"""For operators: the coordinator at one glance, its audit trail, and whether that is whole."""

import re
from datetime import UTC, timedelta

from starlette.responses import Response

from fedclust.schema.times import read_time
from fedclust_service.domain.access import AuditSearch, Role
from fedclust_service.domain.audit_chain import Head
from fedclust_service.http.routes.health import REASONS, faults
from fedclust_service.http.ui.page_request import FilledForm, PageRequest, get, post
from fedclust_service.http.ui.rendering import account_path, address
from fedclust_service.usecases import admin, principals
from fedclust_service.usecases.admin import AdminAuditEntry, list_audit
from fedclust_service.usecases.audit import last_verification, record_verification, verify_audit

#: A copy that is older was not made every day: some time passes until a timer begins.
_DAILY = timedelta(hours=36)


def _first_steps(page: PageRequest, found: admin.Overview) -> dict[str, bool]:
    """Return which steps are done that a new coordinator needs before hospitals depend on it."""
    settings = page.service.settings

    def registered(role: Role) -> bool:
        return bool(principals.list_principals(*page.caller, role, limit=1).items)

    operators = principals.list_principals(*page.caller, Role.OPERATOR).items
    last = found.last_backup_at
    addressed = bool(settings.operator_emails) or any(each.email for each in operators)
    mailed = settings.smtp_host is not None and addressed
    steps = {
        "named": bool(settings.operated_by),
        "tls": page.request.url.scheme == "https",
        "sites": registered(Role.SITE),
        "analyst": registered(Role.ANALYST),
        "backup": last is not None and page.co.clock.now() - last < _DAILY,
        "messages": settings.webhook_url is not None or mailed,
    }
    if found.versions.database == "postgresql":
        del steps["backup"]  # its own tools make copies, and nobody here sees them
    return steps


def _back_up(page: PageRequest) -> Response:
    settings = page.service.settings
    admin.back_up(*page.caller, settings.store_url, settings.data_dir / "backups")
    return page.redirect("/ui/overview", "backed-up")


def _overview(page: PageRequest) -> Response:
    found = admin.overview(*page.caller, page.service.settings.data_dir)
    return page.render(
        "overview.html",
        overview=found,
        reasons=[REASONS[reason] for reason in faults(page.co)],
        done=_first_steps(page, found),
    )


_WORDS = ("subject", "actor", "action", "text")
_TIMES = ("since", "until")
#: What names, actors, actions and subjects consist of; the database is not asked about the rest.
_KNOWN = re.compile(r"[a-z0-9:._-]{1,200}")
_HASH = re.compile(r"[0-9a-f]{32,64}")
_NOT_A_WORD = "Names and actions consist of a-z, 0-9 and . : _ -"
_NOT_A_TIME = "Write a date such as 2026-01-31, or 2026-01-31T12:00."


def _subject_path(subject: str) -> str | None:
    """Return the address of the page of what an entry is about."""
    kind, _, name = subject.partition(":")
    if kind == "study":
        return f"/ui/studies/{name}"
    if not name and subject != "database":
        return f"/ui/sessions/{kind}"
    return account_path(subject)


# --- the search -----------------------------------------------------------------------------------


def _audit(page: PageRequest) -> Response:
    return _shown(page, FilledForm())


def _shown(page: PageRequest, noted: FilledForm, status: int = 200) -> Response:
    form = _asked(page)
    cursor, more = page.query("cursor"), None
    found: tuple[AdminAuditEntry, ...] = ()
    if not form.errors:
        listed = list_audit(*page.caller, cursor=cursor, search=_search(form))
        found = listed.items
        more = listed.next and address("/ui/audit", **form.texts, cursor=listed.next)
    return page.render(
        "audit.html",
        status=422 if form.errors else status,
        form=form,
        searching=any(form.texts.values()),
        noted=noted,
        verified=last_verification(*page.caller),
        entries_found=found,
        subject_path=_subject_path,
        is_hash=_HASH.fullmatch,
        older=more,
        newest=address("/ui/audit", **form.texts) if cursor else None,
    )


def _asked(page: PageRequest) -> FilledForm:
    texts = {name: (page.query(name) or "").strip() for name in (*_WORDS, *_TIMES)}
    wrong = {
        name: _NOT_A_WORD
        for name in _WORDS
        if texts[name] and not _KNOWN.fullmatch(texts[name].lower())
    }
    times = {name: texts[name] for name in _TIMES if texts[name]}
    wrong |= {name: _NOT_A_TIME for name, text in times.items() if read_time(text, UTC) is None}
    return FilledForm(texts, wrong)


def _search(form: FilledForm) -> AuditSearch:
    said = {name: form.text(name).lower() or None for name in _WORDS}
    since, until = (read_time(form.text(name), UTC) for name in _TIMES)
    return AuditSearch(**said, since=since, until=until)


# --- the verification -----------------------------------------------------------------------------


def _verify(page: PageRequest) -> Response:
    """Verify one step; the answer's form asks for the next one, by itself where scripts run."""
    texts = {name: page.form.get(name, "").strip() for name in ("noted", "after")}
    noted = Head.noted(texts["noted"]) if texts["noted"] else None
    if texts["noted"] and noted is None:
        said = "This is no head: it is 64 characters of 0-9 and a-f, or NUMBER:HASH."
        return _shown(page, FilledForm(texts, {"noted": said}), status=422)
    after = Head.noted(texts["after"])
    step = verify_audit(*page.caller, after if isinstance(after, Head) else None, noted)
    if step.done:
        record_verification(*page.caller, step)
    template = "audit_step.html" if page.partial else "audit_verification.html"
    return page.render(template, step=step, noted=texts["noted"])


ROUTES = (
    get("/overview", _overview),
    post("/overview/backup", _back_up),
    get("/audit", _audit),
    post("/audit/verification", _verify),
)
