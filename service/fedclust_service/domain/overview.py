"""What people see of sessions, and what needs an operator's attention."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self, TypeAlias

from fedclust.schema.display import first_few
from fedclust.schema.model import Model
from fedclust.schema.times import Timestamp
from fedclust.wire.models import SitePresence
from fedclust_service.domain.round import Round, RoundState

AttentionKind: TypeAlias = Literal[
    "round-late",
    "round-stuck",
    "cannot-start",
    "task-refused",
    "table-refused",
    "session-held",
    "session-failed",
    "token-expiring",
    "notifications-waiting",
    "notification-failed",
    "backup-old",
    "audit-changed",
    "database-restored",
    "disk-low",
]
#: The most sites that are named at once.
MOST_NAMED = 20


@dataclass(frozen=True)
class Attendance:
    """A session's latest round, without its task, and its sites by name.

    ``answered`` of a site is None unless the round asks or asked it. Who is late is not said yet.
    """

    round: Round | None
    sites: tuple[SitePresence, ...]

    @property
    def pending(self) -> list[str]:
        """The sites that the latest round asks and that have not answered it, by name."""
        return [each.name for each in self.sites if each.answered is False]

    @property
    def deadline(self) -> datetime | None:
        """The deadline of the round that collects answers now."""
        collects = self.round is not None and self.round.state is RoundState.COLLECTING
        return self.round.deadline if self.round is not None and collects else None


class Attention(Model):
    """Something to look at. ``at`` is when it began or was due; for a token, when it ends."""

    # ``subject`` is a session; for ``token-expiring`` and ``table-refused`` an account's
    # ``role:name``; for ``notifications-waiting`` a channel and for ``notification-failed`` a
    # recipient. ``detail`` names late sites, or says why something was refused, failed or cannot
    # start.

    kind: AttentionKind
    subject: str
    at: Timestamp
    round: int | None
    detail: str | None

    @classmethod
    def to(
        cls,
        kind: AttentionKind,
        subject: str,
        at: datetime,
        number: int | None = None,
        detail: str | None = None,
    ) -> Self:
        """Return one item; ``number`` is that of a round."""
        return cls(kind=kind, subject=subject, at=at, round=number, detail=detail)


def refusals_in_words(refusals: Mapping[str, str]) -> str:
    """Return which sites have refused a task, by the rule that it broke."""
    rules: dict[str, list[str]] = {}
    for site, rule in refusals.items():
        rules.setdefault(rule, []).append(site)
    said = sorted(rules.items())
    return "; ".join(f"{rule} ({first_few(sites, MOST_NAMED)})" for rule, sites in said)
