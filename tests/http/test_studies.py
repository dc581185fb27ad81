"""Studies and deleted sessions over HTTP: bodies, statuses, long polls and streams that end."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.api_caller import FEATURES, ApiCaller
from support.clock import ManualClock
from support.local_coordinator import LocalCoordinator, local_coordinator
from support.timeouts import TIMEOUT_S, eventually

SITES = ["north", "south", "west"]
DEFAULTS = {"algorithm": "lloyd", "config": {"n_clusters": 2}, "policy": {"min_group_size": 6}}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCoordinator]:
    place: Path = tmp_path_factory.mktemp("studies")
    with local_coordinator(place, clock=ManualClock(), threads=True) as found:
        yield found


@pytest.fixture(scope="module")
def api(local: LocalCoordinator) -> ApiCaller:
    found = ApiCaller.found(local, SITES)
    found.study("ada", "hearts", SITES, features=FEATURES, defaults=DEFAULTS)
    return found


def problem(response: Any) -> tuple[int, str, list[str]]:
    document = response.json()
    pointers = [error["pointer"] for error in document.get("errors", ())]
    return response.status_code, document["type"].rpartition(":")[2], pointers


def test_a_study_is_created_once(api: ApiCaller) -> None:
    body = {"name": "once", "purpose": "Which groups of patients are there?", "sites": SITES}
    statuses = [api.request("POST", "/v1/studies", "ada", json=body) for _ in range(2)]
    assert [each.status_code for each in statuses] == [201, 200]
    assert statuses[0].headers["Location"] == "/v1/studies/once"
    other = api.request("POST", "/v1/studies", "ada", json={**body, "title": "other"})
    assert problem(other) == (409, "name-taken", [])
    wrong = {**body, "purpose": "short", "defaults": {"policy": {"quorum": 0}}}
    refused = problem(api.request("POST", "/v1/studies", "ada", json=wrong))
    assert refused == (422, "invalid", ["/purpose", "/defaults/policy/quorum"])
    assert api.request("DELETE", "/v1/studies/once", "ada").status_code == 204
    assert api.request("GET", "/v1/studies/once", "ada").status_code == 404


def test_a_short_request_becomes_a_whole_definition(api: ApiCaller) -> None:
    info = api.ok("POST", "/v1/sessions", "ada", json={"name": "short", "study": "hearts"})
    definition = info["definition"]
    assert (info["study"], definition["study"]) == ("hearts", "hearts")
    assert definition["sites"] == SITES
    assert definition["policy"]["min_group_size"] == 6
    assert [feature["name"] for feature in definition["features"]] == ["age", "chol"]
    listed = api.ok("GET", "/v1/sessions?study=hearts", "north")["items"]
    assert [each["name"] for each in listed] == ["short"]
    shown = api.ok("GET", "/v1/studies/hearts", "north")
    assert (shown["n_sessions"], shown["sites"], shown["defaults"]) == (1, None, None)
    assert api.ok("GET", "/v1/studies/hearts", "ada")["defaults"] == DEFAULTS
    remaining = api.request("DELETE", "/v1/studies/hearts", "ada")
    assert problem(remaining) == (409, "wrong-state", [])
    assert "short" in remaining.json()["detail"]
    api.ok("DELETE", "/v1/sessions/short", "ada")


def test_who_waits_for_a_deleted_session_hears_that_it_is_gone(
    api: ApiCaller, local: LocalCoordinator
) -> None:
    api.define("ada", "doomed", SITES)
    task = api.request("GET", "/v1/sessions/doomed/task", "north")
    known = {"If-None-Match": task.headers["ETag"]}

    def poll() -> Any:
        path = "/v1/sessions/doomed/task?wait=25"
        return api.request("GET", path, "north", headers=known)

    def stream() -> str:
        return api.request("GET", "/v1/sessions/doomed/events", "ada").text

    with ThreadPoolExecutor(2) as pool:
        polling, streaming = pool.submit(poll), pool.submit(stream)
        notifier, streams = local.coordinator.notifier, local.coordinator.sealer.streams
        eventually(lambda: notifier.waiting == 1)
        eventually(lambda: streams.waiting == 1)
        assert api.request("DELETE", "/v1/sessions/doomed", "ada").status_code == 204
        assert polling.result(TIMEOUT_S).status_code == 404
        assert "session.deleted" not in streaming.result(TIMEOUT_S)
    assert api.request("GET", "/v1/sessions/doomed/events", "ada").status_code == 404

    # The name is used again: whoever knows the old task waits, and is not asked in a loop.
    api.define("ada", "doomed", SITES, seed=8)
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(poll)
        eventually(lambda: notifier.waiting == 1)
        api.ok("POST", "/v1/sessions/doomed/cancel", "ada")
        assert polling.result(TIMEOUT_S).json()["status"] == "ended"
