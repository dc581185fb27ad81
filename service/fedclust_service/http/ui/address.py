"""Addresses of pages, and which of them the navigation offers to each role."""

from typing import NamedTuple
from urllib.parse import urlencode

from fedclust_service.domain.access import PERMISSIONS, Role


def address(path: str, **query: str | None) -> str:
    """Return the address of a page; what is None or empty is left out of the query."""
    said = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(said)}" if said else path


def account_path(key: str) -> str | None:
    """Return the address of the page of an actor or an account such as ``site:north``."""
    role, _, name = key.partition(":")
    return f"/ui/{role}s/{name}" if name and role in ("site", "analyst", "operator") else None


class PageLink(NamedTuple):
    """A line of the navigation; ``action`` is what a reader must be allowed to do to see it."""

    path: str
    label: str
    action: str


_ENTRIES = (
    PageLink("/ui/overview", "Overview", "admin.read"),
    PageLink("/ui/sessions", "Sessions", "session.read"),
    PageLink("/ui/studies", "Studies", "study.read"),
    PageLink("/ui/sites", "Sites", "site.read"),
    PageLink("/ui/analysts", "Analysts", "analyst.read"),
    PageLink("/ui/operators", "Operators", "operator.read"),
    PageLink("/ui/audit", "Audit trail", "admin.read"),
)


def entries_for(role: Role) -> tuple[PageLink, ...]:
    """Return the lines of a role's navigation; the first is where its readers begin."""
    return tuple(entry for entry in _ENTRIES if role in PERMISSIONS[entry.action])
