"""What only operators can read about a session: late sites, last contact, traffic."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fedclust.client import Client
from fedclust.schema.model import Model
from fedclust.schema.times import Timestamp
from fedclust.wire.models import SessionEntry, SessionInfo


class AdminSiteView(Model):
    """What the command shows of an ``AdminSite``: a site in a session, as operators read it."""

    name: str
    late_since: Timestamp | None
    last_seen_at: Timestamp | None
    sdk_version: str | None
    refusals: int
    bytes_in: int
    bytes_out: int


class AdminSessionView(Model):
    """What the command shows of an ``AdminSession``: a session, as operators read it."""

    name: str
    deadline: Timestamp | None
    late_since: Timestamp | None
    refusals: int
    bytes_in: int
    bytes_out: int
    sites: tuple[AdminSiteView, ...]

    def late(self, now: datetime) -> str:
        """Return the late sites and since when, or an empty text."""
        if self.late_since is None:
            return ""
        names = ", ".join(site.name for site in self.sites if site.late_since is not None)
        return f"{names} since {ago(self.late_since, now)}" if names else ""


def overviews(
    client: Client, state: str | None = None, session: str | None = None
) -> dict[str, AdminSessionView]:
    """Return the overviews by session; empty unless the token is an operator's."""
    if client.whoami().role != "operator":
        return {}
    found = client.admin(AdminSessionView, "sessions", state=state, session=session, limit="200")
    return {each.name: each for each in found}


def late_first(
    sessions: list[SessionEntry], known: dict[str, AdminSessionView]
) -> list[SessionEntry]:
    """Return sessions with late sites first, those late for the longest time at the top."""

    def key(info: SessionEntry) -> tuple[bool, datetime]:
        overview = known.get(info.name)
        if overview is not None:
            late = overview.late_since if any(site.late_since for site in overview.sites) else None
            return late is None, late or datetime.max.replace(tzinfo=UTC)
        late_now = info.state == "running" and any(site.late for site in info.sites)
        return not late_now, datetime.max.replace(tzinfo=UTC)

    return sorted(sessions, key=key)


def ago(time: datetime | None, now: datetime) -> str:
    """Return how long ago a time was, in the largest unit, such as ``2 h``."""
    if time is None:
        return ""
    seconds = max(timedelta(0), now - time).total_seconds()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def risk_of_exclusion(info: SessionInfo, site: str) -> str | None:
    """Return what follows if a running session would be left with too few sites."""
    joined = [each.name for each in info.sites if each.state == "joined"]
    needed = info.definition.policy.min_sites
    if info.state not in ("running", "held") or site not in joined or len(joined) > needed:
        return None
    return (
        f"{info.name} needs {needed} sites, and {len(joined) - 1} would be left: it cannot go on "
        f"then, and fails. `fedclust session deadline {info.name} UNTIL` gives the site more time."
    )
