"""``session watch``: each change is told once."""

import json
from collections.abc import Callable
from datetime import timedelta

import httpx
import numpy as np
import pytest

from fedclust import Client
from fedclust.cli.session_screen import Watcher, overdue_text
from fedclust.client.http import Http
from fedclust.wire import models
from support.fake_coordinator import EPOCH, URL, FakeCoordinator, in_json

SITES = ("alpha", "beta", "me")
Step = Callable[[], None]


class Stage(httpx.BaseTransport):
    """A session that moves on between two looks."""

    def __init__(self) -> None:
        self.fake = FakeCoordinator({name: np.zeros((5, 2)) for name in SITES[:2]})
        self.joined: set[str] = set()
        self.answered: list[set[str]] = []
        self.closed = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        parts = request.url.path.split("/")[3:]
        if parts[:2] == ["heart", "rounds"]:
            return in_json(self._round(int(parts[2])))
        assert parts == ["heart"]
        return in_json(self._info())

    def _info(self) -> models.SessionInfo:
        states = {name: "joined" if name in self.joined else "invited" for name in SITES}
        return self.fake._info().model_copy(
            update={
                "round": len(self.answered) or None,
                "sites": tuple(models.SitePresence(name=n, state=s) for n, s in states.items()),
            }
        )

    def _round(self, number: int) -> models.RoundInfo:
        there = self.answered[number - 1]
        return self.fake._round(number).model_copy(
            update={
                "state": "closed" if number <= self.closed else "collecting",
                "close_reason": "all_answered" if number <= self.closed else None,
                "sites": tuple(
                    models.RoundSite(
                        name=name,
                        answered=name in there,
                        late=False,
                        answered_at=EPOCH if name in there else None,
                    )
                    for name in SITES
                ),
            }
        )

    # --- what happens ---

    def join(self) -> None:
        self.joined |= set(SITES)
        self.fake.state = "running"
        self.answered.append(set())

    def first(self) -> None:
        self.answered[-1].add("beta")

    def rest(self) -> None:
        self.answered[-1] |= set(SITES)
        self.closed += 1

    def end(self) -> None:
        self.fake.state = "completed"


def watched(stage: Stage, capsys: pytest.CaptureFixture[str], sleep: Step) -> list[dict[str, str]]:
    http = Http(URL, "fca_x", transport=stage, sleep=lambda _: None)
    with Client(URL, "", http=http) as client:
        info = Watcher(client, "heart", 2.0, True, sleep=lambda _: sleep()).follow()
    assert info.state == "completed"
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_an_overdue_round_says_until_when_it_waits() -> None:
    stage = Stage()
    stage.join()
    with Client(URL, "", http=Http(URL, "fca_x", transport=stage)) as client:
        info, last = client.session("heart"), client.round("heart", 1)
    assert overdue_text(info, (last,)) is None
    late = (last.model_copy(update={"overdue": True}),)
    ends = last.deadline + timedelta(seconds=info.definition.policy.fail_after_s)
    until = f"it waits until {ends:%Y-%m-%d %H:%M} UTC at most"
    assert overdue_text(info, late) == f"round 1 is overdue: {until}"
    gone = [site.model_copy(update={"state": "left"}) for site in info.sites[:2]]
    left = info.model_copy(update={"sites": (*gone, *info.sites[2:])})
    needed = f"Only 1 of {info.definition.policy.min_sites} needed sites take part"
    ending = "to end it: fedclust session cancel heart"
    assert overdue_text(left, late) == f"round 1 is overdue: {until}. {needed}; {ending}"
    assert overdue_text(info.model_copy(update={"state": "failed"}), late) is None


EXPECTED = [
    ("session.recruiting", None, None),
    ("site.joined", None, "alpha"),
    ("site.joined", None, "beta"),
    ("site.joined", None, "me"),
    ("session.running", None, None),
    ("round.opened", 1, None),
    ("site.answered", 1, "beta"),
    ("site.answered", 1, "alpha"),
    ("site.answered", 1, "me"),
    ("round.closed", 1, None),
    ("session.completed", None, None),
]


def event_keys(events: list[dict[str, str]]) -> list[tuple[object, object, object]]:
    return [(each["event"], each.get("round"), each.get("site")) for each in events]


def test_every_change_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage()
    happens = iter([stage.join, lambda: None, stage.first, stage.rest, stage.end])
    events = watched(stage, capsys, lambda: next(happens)())
    assert event_keys(events) == EXPECTED
