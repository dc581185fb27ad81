"""The coordinator at one glance, for operators: what needs attention, and what to do."""

from datetime import timedelta

from starlette.responses import Response

from fedclust_service.domain.access import Role, require
from fedclust_service.http.routes.health import REASONS, faults
from fedclust_service.http.ui.page_request import PageRequest, get, post
from fedclust_service.usecases import admin, principals

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
    require(page.actor, "admin.read")
    found = admin.overview(*page.caller, page.service.settings.data_dir)
    return page.render(
        "overview.html",
        overview=found,
        reasons=[REASONS[reason] for reason in faults(page.co)],
        done=_first_steps(page, found),
    )


ROUTES = (get("/overview", _overview), post("/overview/backup", _back_up))
