"""A session as its analyst or an operator sees it in a terminal, or follows it."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.filesize import decimal

from fedclust.cli.console import (
    JSON,
    flush_out,
    out,
    print_json,
    show,
    show_facts,
    show_records,
    timestamp,
)
from fedclust.client import Client
from fedclust.result.session_terms import feature_text
from fedclust.result.worth_asking import asked_of_sites
from fedclust.schema.display import session_fields, standing
from fedclust.schema.states import ENDED
from fedclust.schema.times import ago
from fedclust.wire.models import RoundInfo, SessionEntry, SessionInfo, SitePresence


def show_session(info: SessionInfo, rounds: tuple[RoundInfo, ...]) -> None:
    """Print a session, its rounds and its sites."""
    if JSON.get():
        print_json({**info.model_dump(mode="json"), "rounds": rounds})
        return
    frozen, facts = info.definition, session_fields(info)
    del facts["sites"]
    facts |= {
        "waits": overdue_text(info, rounds),
        "definition": f"SHA-256 {info.definition_sha256}",
        "method": f"{frozen.algorithm} version {frozen.method_version}, "
        f"shared rounds version {frozen.engine_version}",
        "options": json.dumps(frozen.config, sort_keys=True),
        "features": ", ".join(map(feature_text, frozen.features)),
        "points": asked_of_sites(frozen),
    }
    show_facts(facts)
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


class Watcher:
    """Look at a session every ``every_s`` seconds until it ends, and print what has changed.

    ``as_json``: one JSON object a line instead of sentences.
    """

    def __init__(
        self,
        client: Client,
        session: str,
        every_s: float,
        as_json: bool,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client, self._session, self._every = client, session, every_s
        self._as_json, self._sleep = as_json, sleep
        self._shown: set[tuple[Any, ...]] = set()
        self._state: str | None = None
        self._number = 0

    def follow(self) -> SessionInfo:
        """Print every change; return the session once it has ended."""
        while True:
            info = self._client.session(self._session)
            for event in self._changes(info):
                self._show(event)
            if info.state in ENDED:
                return info
            self._sleep(self._every)

    def _changes(self, info: SessionInfo) -> Iterator[dict[str, Any]]:
        for site in info.sites:
            if site.state != "invited" and (site.name, site.state) not in self._shown:
                self._shown.add((site.name, site.state))
                why = site.refused_task or ("points short" if site.points_short else None)
                yield {"event": f"site.{site.state}", "site": site.name, "why": why}
        if info.state != self._state and info.state not in ENDED:
            waiting = [site.name for site in info.sites if site.state == "invited"]
            self._state = info.state
            since = info.started_at or info.created_at
            event = f"session.{info.state}"
            yield {"event": event, "waiting_for": waiting or None, "time": since}
        if info.cannot_start and (info.cannot_start,) not in self._shown:
            self._shown.add((info.cannot_start,))
            yield {"event": "session.cannot_start", "why": info.cannot_start}
        while info.round is not None and self._number <= info.round:
            # Also report rounds that opened and closed between two looks.
            number = max(self._number, 1)
            known = self._client.round(self._session, number)
            yield from self._of_round(known)
            if known.state not in ("closed", "failed"):
                self._number = number
                break
            self._number = number + 1
        if info.state in ENDED and info.state != self._state:
            self._state = info.state
            reason = info.failure or info.stopped_because
            yield {"event": f"session.{info.state}", "why": reason, "time": info.ended_at}

    def _of_round(self, seen: RoundInfo) -> Iterator[dict[str, Any]]:
        known = {"round": seen.number, "phase": seen.phase}
        waiting = [site.name for site in seen.sites if not site.answered]
        events: list[dict[str, Any]] = [
            {"event": "round.opened", "sites": len(seen.sites), "time": seen.opened_at}
        ]
        events += [
            {"event": "site.answered", "site": site.name, "time": site.answered_at}
            for site in sorted(seen.sites, key=lambda each: (str(each.answered_at), each.name))
            if site.answered
        ]
        if seen.overdue:
            events.append({"event": "round.overdue", "waiting_for": waiting})
        if seen.state in ("closed", "failed"):
            closed = {"why": seen.close_reason, "time": seen.closed_at}
            events.append({"event": f"round.{seen.state}", **closed})
        for event in events:
            mark = (seen.number, event["event"], event.get("site"))
            if mark not in self._shown:
                self._shown.add(mark)
                yield known | event

    def _show(self, event: dict[str, Any]) -> None:
        # When it happened; when it was seen, if the coordinator does not say.
        event["time"] = timestamp(event.get("time"))
        if self._as_json:
            print_json({key: value for key, value in event.items() if value is not None})
            flush_out()
            return
        where = f"round {event['round']} {event['phase']}: " if "round" in event else ""
        text = event["event"].replace(".", " ").replace("_", " ")
        if event.get("site"):
            text = f"{event['site']} {event['event'].rpartition('.')[2]}"
        if event.get("sites"):
            text += f", {event['sites']} sites asked"
        if event.get("waiting_for"):
            text += f", waiting for {', '.join(event['waiting_for'])}"
        if event.get("why"):
            text += f" ({event['why']})"
        show(out, f"{event['time']} {where}{text}")
