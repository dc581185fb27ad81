"""A session as its analyst or an operator sees it in a terminal."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from rich.filesize import decimal

from fedclust.cli.console import JSON, print_json, show_facts, show_records
from fedclust.result.session_terms import feature_text
from fedclust.result.worth_asking import asked_of_sites
from fedclust.schema.session_display import standing
from fedclust.schema.times import time_span
from fedclust.wire.models import (
    RoundInfo,
    SessionEntry,
    SessionInfo,
    SitePresence,
)


def session_row(info: SessionEntry, *, study_shown: bool) -> list[object]:
    """Return a session's line in a list of sessions, which may have a column of studies."""
    joined = sum(site.state == "joined" for site in info.sites)
    late = ", ".join(site.name for site in info.sites if site.late and info.deadline)
    if late:
        late += f" since {ago(info.deadline, datetime.now(UTC))}"
    return [
        info.name,
        *[info.study] * study_shown,
        info.definition.algorithm if info.definition else "(unreadable)",
        info.state,
        info.round,
        f"{joined} of {len(info.sites)}",
        sum(bool(site.answered) for site in info.sites) if info.round else None,
        late,
        info.failure or info.stopped_because,
    ]


def show_session(info: SessionInfo, rounds: tuple[RoundInfo, ...]) -> None:
    """Print a session, its rounds and its sites."""
    if JSON.get():
        print_json({**info.model_dump(mode="json"), "rounds": rounds})
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
    _show_sites(info)
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


def _show_sites(info: SessionInfo) -> None:
    now = datetime.now(UTC)

    def row(site: SitePresence) -> dict[str, object]:
        stands, common = site.standing, {"site": site.name, "takes part": standing(site)}
        common["answered"] = _yes_or_no(site.answered)
        if stands is None:
            return {**common, "late": _yes_or_no(site.late)}
        seen = stands.last_seen_at
        return {
            **common,
            "late since": ago(info.deadline, now) if site.late else "",
            "last seen": f"{ago(seen, now)} ago" if seen else "never",
            "sdk": stands.sdk_version,
            "refused": stands.refusals or None,
            "in": decimal(stands.bytes_in),
            "out": decimal(stands.bytes_out),
        }

    show_records(list(map(row, sorted(info.sites, key=lambda site: not site.late))))


def _yes_or_no(answer: bool | None) -> str:
    return "" if answer is None else "yes" if answer else "no"


def late_first(sessions: Iterable[SessionEntry]) -> list[SessionEntry]:
    """Return sessions with late sites first, those late for the longest time at the top."""

    def key(info: SessionEntry) -> tuple[bool, datetime]:
        late = info.state == "running" and any(site.late for site in info.sites)
        since = info.deadline if late else None
        return not late, since or datetime.max.replace(tzinfo=UTC)

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
