"""What the navigation offers to each role, and where a reader begins."""

from typing import NamedTuple

from fedclust_service.domain.access import PERMISSIONS, Role


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
