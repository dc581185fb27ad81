"""Follow a session: print every change in a line.

The coordinator's events only trigger a new look at the session. So the lines are the same whether
events arrive live, arrive late after a lost connection, or are held back by a proxy.
"""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from fedclust.cli.console import flush_out, out, print_json, show, timestamp
from fedclust.client import Client
from fedclust.schema.states import ENDED
from fedclust.wire import errors
from fedclust.wire.models import RoundInfo, SessionInfo

#: The numbers of events in a part of their stream. A number may be cut: then the stream begins
#: again at an earlier event, which changes nothing.
_NUMBERS = re.compile(rb"^id: *([0-9]{1,18})", re.MULTILINE)


class _Over(Exception):
    """The session has ended; the rest of the stream is not needed."""


class Watcher:
    """Look at a session until it ends, and print what has changed.

    It looks every ``every_s`` seconds while no live events arrive. ``as_json``: one JSON object a
    line instead of sentences.
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
        self._last_event: int | None = None

    def follow(self) -> SessionInfo:
        """Print every change; return the session once it has ended."""
        while True:
            info = self._look()
            if info.state in ENDED:
                return info
            known = self._last_event
            self._listen()
            if self._last_event == known:
                self._sleep(self._every)

    def _look(self) -> SessionInfo:
        info = self._client.session(self._session)
        for event in self._changes(info):
            self._show(event)
        return info

    def _listen(self) -> None:
        """Look whenever a part of the stream of events comes, until the stream ends."""

        def take(part: bytes) -> None:
            numbers = [int(number) for number in _NUMBERS.findall(part)]
            self._last_event = max(numbers, default=self._last_event)
            if self._look().state in ENDED:
                raise _Over

        try:
            self._client.events(self._session, take, self._last_event)
        except (_Over, errors.TransportError, errors.CoordinatorError):
            # If the coordinator is away, the next look retries or raises.
            return

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
