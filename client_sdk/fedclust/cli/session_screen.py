"""A session as its analyst or an operator sees it in a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from rich.filesize import decimal

from fedclust.cli.console import (
    print_json,
    show_facts,
    show_records,
)
from fedclust.client import Client
from fedclust.result.session_terms import feature_text
from fedclust.result.worth_asking import asked_of_sites
from fedclust.schema.model import Model
from fedclust.schema.session_display import standing
from fedclust.schema.times import Timestamp, time_span
from fedclust.wire.models import (
    RoundInfo,
    SessionEntry,
    SessionInfo,
)


def session_row(info: SessionEntry, overview: AdminSessionView | None) -> list[object]:
    """Return a session's line in a list of sessions."""
    joined = sum(site.state == "joined" for site in info.sites)
    late = ", ".join(site.name for site in info.sites if site.late)
    return [
        info.name,
        info.definition.algorithm if info.definition else "(unreadable)",
        info.state,
        info.round,
        f"{joined} of {len(info.sites)}",
        sum(bool(site.answered) for site in info.sites) if info.round else None,
        overview.late(datetime.now(UTC)) if overview else late,
        info.failure or info.stopped_because,
    ]


def overview_fields(known: Mapping[str, AdminSessionView], info: SessionEntry) -> dict[str, Any]:
    """Return what only operators can read about a session, for ``--json``."""
    overview = known.get(info.name)
    return {} if overview is None else {"standing": overview.model_dump(mode="json")}


def show_session(
    info: SessionInfo,
    rounds: tuple[RoundInfo, ...],
    as_json: bool,
    known: Mapping[str, AdminSessionView] = MappingProxyType({}),
) -> None:
    """Print a session, its rounds and its sites, with what operators can read in ``known``."""
    if as_json:
        shown = {**info.model_dump(mode="json"), **overview_fields(known, info)}
        print_json({**shown, "rounds": [each.model_dump(mode="json") for each in rounds]})
        return
    frozen = info.definition
    show_facts(
        {
            "session": info.name,
            "study": info.study,
            "title": frozen.title,
            "purpose": frozen.purpose,
            "contact": frozen.contact,
            "approval": frozen.approval,
            "expires": frozen.expires and f"{frozen.expires:%Y-%m-%d %H:%M:%S} UTC",
            "state": info.state,
            "why": info.failure or info.stopped_because,
            "cannot start": info.cannot_start,
            "waits": overdue_text(info, rounds),
            "defined by": info.created_by,
            "definition": f"SHA-256 {info.definition_sha256}",
            "method": f"{frozen.algorithm} version {frozen.method_version}, "
            f"shared rounds version {frozen.engine_version}",
            "options": json.dumps(frozen.config, sort_keys=True),
            "features": ", ".join(map(feature_text, frozen.features)),
            "outcomes_k": frozen.outcomes_k,
            "points": asked_of_sites(frozen),
            "seed": frozen.seed,
            "started": info.started_at and f"{info.started_at:%Y-%m-%d %H:%M:%S} UTC",
            "ended": info.ended_at and f"{info.ended_at:%Y-%m-%d %H:%M:%S} UTC",
        }
    )
    _show_sites(info, known.get(info.name))
    if rounds:
        show_records(list(map(_round_row, rounds)))


def overdue_text(info: SessionInfo, rounds: tuple[RoundInfo, ...]) -> str | None:
    """Return until when an overdue round waits, and what the analyst can do."""
    if info.state != "running" or not rounds or not rounds[-1].overdue:
        return None
    last, policy = rounds[-1], info.definition.policy
    until = last.deadline + timedelta(seconds=policy.fail_after_s)
    ends = f"round {last.number} is overdue: it waits until {until:%Y-%m-%d %H:%M} UTC at most"
    joined = sum(site.state == "joined" for site in info.sites)
    if joined >= policy.min_sites:
        return ends
    return (
        f"{ends}. Only {joined} of {policy.min_sites} needed sites take part; to end it: fedclust "
        f"session cancel {info.name}"
    )


def _round_row(info: RoundInfo) -> dict[str, object]:
    answered = sum(site.answered for site in info.sites)
    return {
        "round": info.number,
        "phase": info.phase,
        "state": info.state + (" (overdue)" if info.overdue else ""),
        "answered": f"{answered} of {len(info.sites)}",
        "opened": f"{info.opened_at:%Y-%m-%d %H:%M:%S}",
        "closed because": info.close_reason,
    }


def _show_sites(info: SessionInfo, overview: AdminSessionView | None) -> None:
    common = {
        site.name: {
            "site": site.name,
            "takes part": standing(site),
            "answered": _yes_or_no(site.answered),
        }
        for site in info.sites
    }
    if overview is None:
        show_records([{**common[s.name], "late": _yes_or_no(s.late)} for s in info.sites])
        return
    now = datetime.now(UTC)
    show_records(
        [
            {
                **common[each.name],
                "late since": ago(each.late_since, now),
                "last seen": f"{ago(each.last_seen_at, now)} ago" if each.last_seen_at else "never",
                "sdk": each.sdk_version,
                "refused": each.refusals or None,
                "in": decimal(each.bytes_in),
                "out": decimal(each.bytes_out),
            }
            for each in sorted(overview.sites, key=lambda site: site.late_since is None)
            if each.name in common  # others were invited between the two requests
        ]
    )


def _yes_or_no(answer: bool | None) -> str:
    return "" if answer is None else "yes" if answer else "no"


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
    return "" if time is None else time_span((now - time).total_seconds(), 1)


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
