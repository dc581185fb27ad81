"""What the navigation offers to each role, and where a reader begins."""

from __future__ import annotations

from typing import NamedTuple

from fedclust_service.domain.access import PERMISSIONS, Role


class Entry(NamedTuple):
    """A line of the navigation; ``action`` is what a reader must be allowed to do to see it."""

    path: str
    label: str
    action: str


_ENTRIES = (
    Entry("/ui/overview", "Overview", "admin.read"),
    Entry("/ui/sessions", "Sessions", "session.read"),
    Entry("/ui/studies", "Studies", "study.read"),
    Entry("/ui/sites", "Sites", "site.read"),
    Entry("/ui/analysts", "Analysts", "analyst.read"),
    Entry("/ui/operators", "Operators", "operator.read"),
    Entry("/ui/audit", "Audit trail", "admin.read"),
)


def entries_for(role: Role) -> tuple[Entry, ...]:
    """Return the lines of a role's navigation; the first is where its readers begin."""
    return tuple(entry for entry in _ENTRIES if role in PERMISSIONS[entry.action])
