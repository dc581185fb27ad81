"""``/v1/admin``: what operators are shown, on both databases, through the real server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from fedclust_service.domain.session import SessionState
from fedclust_service.usecases.sweeper import sweep
from support.api_caller import ApiCaller
from support.clock import ManualClock
from support.databases import sqlite_first  # noqa: F401  # in place of database_url
from support.local_coordinator import local_coordinator
from support.timeouts import eventually

from .conftest import SITES, Running


class Watched(Running):
    """A coordinator whose threads do not run, and its people."""

    def get(self, path: str) -> Any:
        return self.api.ok("GET", f"/v1/admin/{path}", self.local.operator_token)

    def attention(self) -> list[Any]:
        """Return what needs attention but that no backup was made."""
        found = self.get("overview")["attention"]
        return [each for each in found if each["kind"] != "backup-old"]

    def session(self, name: str) -> Any:
        return self.api.ok("GET", f"/v1/sessions/{name}", self.local.operator_token)


@pytest.fixture
def watched(tmp_path: Path, database_url: str, clock: ManualClock) -> Iterator[Watched]:
    with local_coordinator(tmp_path, clock=clock, database_url=database_url) as local:
        api = ApiCaller.found(local, SITES)
        yield Watched(local, api, clock)


def test_a_session_that_waits_for_a_late_site(watched: Watched) -> None:
    api, clock = watched.api, watched.clock
    watched.api.begin("ada", "heart", SITES)
    bodies = {site: api.answer(site, "heart") for site in ("north", "south")}
    tasks = [len(_task_bytes(watched, site)) for site in SITES]
    refused = json.loads(bodies["north"]) | {"task_digest": "0" * 64}
    assert api.put("north", "heart", 1, json.dumps(refused).encode()).status_code == 409
    for site, body in bodies.items():
        assert api.put(site, "heart", 1, body).status_code == 201
    before = watched.session("heart")
    assert before["round"] == 1
    assert not any(site["late"] for site in before["sites"])
    clock.advance(90_000)
    api.ok("GET", "/v1/whoami", "south")
    eventually(lambda: not watched.local.coordinator.touching)  # written after the answer
    sweep(watched.local.coordinator)
    found = watched.session("heart")
    assert found["deadline"] == before["deadline"] is not None
    sites = found["sites"]
    assert [site["name"] for site in sites] == list(SITES)
    assert [site["late"] for site in sites] == [False, False, True]
    assert [site["answered"] for site in sites] == [True, True, False]
    standing = [site["standing"] for site in sites]
    assert [each["bytes_out"] for each in standing] == tasks
    assert [each["refusals"] for each in standing] == [1, 0, 0]
    assert [each["bytes_in"] for each in standing] == [*map(len, bodies.values()), 0]
    assert standing[1]["last_seen_at"] > standing[0]["last_seen_at"]
    assert len({each["sdk_version"] for each in standing}) == 1
    assert len({each["table_id"] for each in standing}) == 3
    assert not any(each["separate_groups"] for each in standing)
    (late,) = watched.attention()
    assert (late["kind"], late["subject"], late["detail"]) == ("round-late", "heart", "west")


def test_who_left_is_not_waited_for_and_an_ended_session_waits_for_nobody(watched: Watched) -> None:
    watched.api.begin("ada", "heart", SITES)
    watched.api.ok("DELETE", "/v1/sessions/heart/participation", "west")
    watched.clock.advance(90_000)
    found = watched.session("heart")
    sites = {site["name"]: site for site in found["sites"]}
    assert sites["west"]["state"] == "left"
    assert (sites["west"]["answered"], sites["west"]["late"]) == (None, None)
    assert sites["north"]["late"]
    assert found["deadline"] is not None
    watched.api.ok("POST", "/v1/sessions/heart/cancel", "ada")
    assert watched.session("heart")["deadline"] is None
    assert watched.attention() == []


def _task_bytes(watched: Watched, site: str) -> bytes:
    """Return a site's task as it is stored: the common part and its own."""

    def read(tx: Any) -> bytes:
        current = tx.rounds.latest(tx.sessions.get("heart").id)
        own = {each.site: each for each in tx.rounds.addressees(current.id)}[site]
        return bytes(current.common) + bytes(own.site_part)

    return watched.local.coordinator.store.read("test.task", read)


def test_a_finished_session_keeps_its_numbers_when_its_payloads_are_scrubbed(
    watched: Watched,
) -> None:
    co, api = watched.local.coordinator, watched.api
    watched.api.begin("ada", "heart", SITES)
    sent = []
    while watched.session("heart")["state"] == "running":
        for site in SITES:
            number, body = watched.session("heart")["round"], api.answer(site, "heart")
            assert api.put(site, "heart", number, body).status_code == 201
            sent.append(len(body))
        assert co.driver.run_once()
    before = watched.session("heart")
    assert before["state"] == "completed"
    assert sum(site["standing"]["bytes_in"] for site in before["sites"]) == sum(sent)
    assert len(sent) > len(SITES)
    watched.clock.advance(31 * 86_400)
    sweep(co)
    after = watched.session("heart")
    assert after.pop("scrubbed_at") is not None
    assert before.pop("scrubbed_at") is None
    for each in (before, after):
        for site in each["sites"]:
            del site["standing"]["last_seen_at"]
    assert after == before
    # Past the last round's deadline, but nobody is waited for any more.
    assert after["deadline"] is None


def test_overview_tells_states_sizes_and_versions(watched: Watched) -> None:
    api = watched.api
    watched.api.begin("ada", "heart", SITES)
    api.define("ada", "liver", list(SITES))
    seen = watched.get("overview")
    assert seen["sessions"] == dict.fromkeys(SessionState, 0) | {"recruiting": 1, "running": 1}
    assert seen["rounds"]["collecting"] == 1
    assert seen["attention"] == []
    assert seen["database_bytes"] > 10_000
    assert seen["disk_free_bytes"] > 0
    assert seen["audit_unsealed"] > 0
    assert seen["threads_alive"] is False
    assert seen["listening"] is (None if seen["versions"]["database"] == "sqlite" else False)
    assert list(seen["versions"]["sdk"].values()) == [3]
    watched.local.coordinator.sealer.run_once()
    assert watched.get("overview")["audit_unsealed"] == 0
    # Each site counts once, with what it said in the newest session that it joined, also of
    # sessions that have ended.
    api.ok("POST", "/v1/sessions/heart/cancel", "ada")
    assert list(watched.get("overview")["versions"]["sdk"].values()) == [3]
    watched.clock.advance(60)
    newer = api.participation("north", "liver") | {"sdk_version": "99.1"}
    api.ok("PUT", "/v1/sessions/liver/participation", "north", json=newer)
    counts = watched.get("overview")["versions"]["sdk"]
    assert counts.pop("99.1") == 1
    assert list(counts.values()) == [2]
    api.ok("DELETE", "/v1/sessions/liver/participation", "north")
    assert watched.get("overview")["versions"]["sdk"]["99.1"] == 1


def test_what_needs_attention(watched: Watched) -> None:
    """A worker that died, a session that failed, a token without a successor: each alone."""
    api, co = watched.api, watched.local.coordinator
    watched.api.begin("ada", "stuck", SITES)
    api.send("stuck", *SITES)
    # Taken by a worker that dies.
    assert co.driver._take(lambda _: True) is not None
    assert watched.attention() == []
    watched.clock.advance(60)
    (stuck,) = watched.attention()
    assert (stuck["kind"], stuck["subject"], stuck["round"]) == ("round-stuck", "stuck", 1)
    # Ends in ten days. One that follows it takes the concern away; a revoked one does not.
    api.ok("POST", "/v1/sites", api.operator, json={"name": "east"})
    ten = {"expires_in_days": 10}
    api.ok("POST", "/v1/sites/east/tokens", api.operator, json=ten)
    expiring = [each for each in watched.attention() if each != stuck]
    assert [(each["kind"], each["subject"]) for each in expiring] == [
        ("token-expiring", "site:east")
    ]
    later = api.ok("POST", "/v1/sites/east/tokens", api.operator)
    assert watched.attention() == [stuck]
    api.ok("DELETE", f"/v1/sites/east/tokens/{later['id']}", api.operator)
    assert watched.attention() == [stuck, *expiring]
    # Once it has ended nothing is left to renew; and nobody is late who has answered.
    watched.clock.advance(11 * 86_400)
    assert watched.attention() == [stuck]
    assert watched.session("stuck")["deadline"] is None


def test_audit_is_filtered_and_paged(watched: Watched) -> None:
    api, clock = watched.api, watched.clock
    watched.api.begin("ada", "heart", SITES)
    clock.advance(100)
    begin = clock.now()
    watched.api.begin("ada", "liver", SITES)
    watched.local.coordinator.sealer.run_once()

    def read(query: str) -> list[Any]:
        return list(watched.get(f"audit?limit=200&{query}")["items"])

    everything = read("")
    assert [each["number"] for each in everything] == list(range(len(everything), 0, -1))
    assert all(len(each["hash"]) == 64 for each in everything)
    written = begin.isoformat().replace("+00:00", "Z")
    chosen = {
        "session=heart": lambda each: each["subject"] == "heart",
        "actor=site:north": lambda each: each["actor"] == "site:north",
        "action=site.joined": lambda each: each["action"] == "site.joined",
        f"since={written}": lambda each: each["subject"] == "liver",
        f"until={written}": lambda each: each["subject"] != "liver",
    }
    for query, matches in chosen.items():
        wanted = [each for each in everything if matches(each)]
        assert wanted
        assert read(query) == wanted, query
    assert [each["subject"] for each in read("actor=site:north&session=liver")] == ["liver"]
    page = watched.get("audit?limit=3")
    rest = watched.get(f"audit?limit=200&cursor={page['next']}")
    assert [*page["items"], *rest["items"]] == everything
    token = api.tokens["north"]
    assert token not in json.dumps(everything)


def test_a_list_asks_as_much_of_the_database_for_one_session_as_for_many(watched: Watched) -> None:
    """And tells of each what is told of it alone."""
    api = watched.api

    def read_lists() -> tuple[Any, Any]:
        listed = api.ok("GET", "/v1/sessions?limit=200", "ada")["items"]
        return listed, api.ok("GET", "/v1/sessions?limit=200", api.operator)["items"]

    def statements() -> int:
        seen: list[str] = []
        engine = watched.local.coordinator.store._engines.read

        def count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            seen.append(statement)

        event.listen(engine, "before_cursor_execute", count)
        read_lists()
        event.remove(engine, "before_cursor_execute", count)
        return len(seen)

    watched.api.begin("ada", "heart", SITES)
    read_lists()  # Who was last seen when is noted at the first request.
    alone = statements()
    for name in ("liver", "lung", "skin"):
        watched.api.begin("ada", name, SITES)
    api.send("lung", "south")
    api.ok("DELETE", "/v1/sessions/lung/participation", "west")
    api.define("ada", "later", list(SITES))
    api.ok("POST", "/v1/sessions/skin/cancel", "ada")
    watched.clock.advance(90_000)
    read_lists()
    assert statements() == alone
    listed, standing = read_lists()
    assert [each["name"] for each in listed] == [each["name"] for each in standing]
    for each, known in zip(listed, standing, strict=True):
        one = api.ok("GET", f"/v1/sessions/{each['name']}", "ada")
        of_one_alone = {name: one[name] for name in ("operator", "title_of_creator")}
        assert {**one, "cannot_start": None} == {**each, "cannot_start": None, **of_one_alone}
        assert all(site.pop("standing") for site in known["sites"])
        assert not any(site.pop("standing") for site in each["sites"])
        assert known == each
    states = {each["name"]: [site["answered"] for site in each["sites"]] for each in listed}
    assert states["lung"] == [False, True, None]
    assert states["later"] == [None, None, None]


UNMATCHED = (
    "audit?since=2026-01-01T00:00:00",
    "audit?since=0001-01-01T00:00:00%2B23:59",
    "audit?since=yesterday",
    "audit?until=2026-01-01T00:00:00",
    "audit?actor=north",
    "audit?actor=site:north%00",
    "audit?action=a%0A",
)


def test_a_filter_that_cannot_match_is_refused(tmp_path: Path) -> None:
    with local_coordinator(tmp_path) as local:
        operator = local.http(local.operator_token)
        for query in UNMATCHED:
            answer = operator.get(f"/v1/admin/{query}")
            assert answer.status_code == 422, answer.text
            assert answer.json()["type"].endswith("invalid")
