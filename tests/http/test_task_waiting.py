"""Long polls: an ETag that covers what matters, 304 after the wait, woken by changes, ended."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from fedclust.wire import codec
from fedclust.wire.models import SubmissionReceipt, TaskResponse, read_reply
from fedclust.wire.submissions import BINARY, JSON
from support.timeouts import TIMEOUT_S, eventually

from .conftest import SITES, Running

TASK = "/v1/sessions/heart/task"


def get(running: Running, site: str, etag: str | None = None, wait: float = 0) -> httpx.Response:
    headers = {"If-None-Match": etag} if etag else {}
    return running.api.request("GET", TASK, site, params={"wait": wait}, headers=headers)


def in_background(call: Callable[[], httpx.Response]) -> Future[httpx.Response]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future


def revoke(running: Running, site: str) -> None:
    (token,) = running.api.ok("GET", f"/v1/sites/{site}", "operator")["tokens"]
    running.api.ok("DELETE", f"/v1/sites/{site}/tokens/{token['id']}", "operator")


def waiting(running: Running, count: int = 1) -> None:
    """Return once ``count`` requests are waiting, seen from inside the server."""
    notifier: Any = running.local.coordinator.notifier
    eventually(lambda: notifier.waiting >= count, lambda: f"{notifier.waiting} wait")


def test_without_an_etag_it_answers_at_once(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[object] = []
    monkeypatch.setattr(
        running.local.coordinator.notifier, "wait", lambda *args: waits.append(args)
    )
    response = get(running, "north", wait=25)
    assert not waits
    assert response.status_code == 200
    body = response.json()
    assert body["status"] == "work"
    assert body["round"] == body["task"]["common"]["round"] == 1
    assert response.headers["Vary"] == "Accept"


def test_a_matching_etag_gives_304_after_the_wait(running: Running) -> None:
    etag = get(running, "north").headers["ETag"]
    for known in (etag, etag.removeprefix("W/"), f'"other", {etag}', "*"):
        response = get(running, "north", known)
        assert (response.status_code, response.content) == (304, b"")
        assert response.headers["ETag"] == etag
    assert get(running, "north", '"other"').status_code == 200
    started = time.monotonic()
    assert get(running, "north", etag, wait=0.3).status_code == 304
    assert time.monotonic() - started >= 0.3


def test_a_task_has_a_tag_for_each_representation(running: Running) -> None:
    def ask(accept: str, known: str = "") -> httpx.Response:
        headers = {"Accept": accept, **({"If-None-Match": known} if known else {})}
        return running.api.request("GET", TASK, "north", headers=headers)

    tags = {accept: ask(accept).headers["ETag"] for accept in (JSON, BINARY)}
    assert tags[JSON] != tags[BINARY]
    for accept in tags:
        for form, tag in tags.items():
            assert ask(accept, tag).status_code == (304 if form == accept else 200)
        assert ask(accept, ", ".join(tags.values())).status_code == 304


def test_a_change_of_progress_alone_does_not_end_a_wait(live: Running) -> None:
    etag = get(live, "south").headers["ETag"]
    future = in_background(lambda: get(live, "south", etag, wait=25))
    waiting(live)
    live.api.send("heart", "north")
    assert get(live, "south", etag).status_code == 304
    assert not future.done()
    deadline = {"deadline": "2026-01-05T20:00:00.000Z"}
    live.api.ok("PATCH", "/v1/sessions/heart", "ada", json=deadline)
    assert future.result(TIMEOUT_S).json()["deadline"] == deadline["deadline"]
    # What was not counted for the wait is counted for a view that is sent.
    assert get(live, "north").json()["progress"]["answered"] == 1


def put(running: Running, body: bytes, wait: float = 25, **headers: str) -> httpx.Response:
    path = "/v1/sessions/heart/rounds/1/submission"
    sent = {"Content-Type": JSON, **headers}
    return running.api.request(
        "PUT", path, "north", params={"wait": wait}, content=body, headers=sent
    )


@pytest.mark.parametrize("accept", [JSON, BINARY])
def test_a_receipt_that_waits_has_the_next_task(live: Running, accept: str) -> None:
    """One request a round. The body and the tag are those that GET would give."""
    body = live.api.answer("north", "heart")
    future = in_background(lambda: put(live, body, Accept=accept))
    waiting(live)
    live.api.send("heart", *set(SITES) - {"north"})
    response = future.result(TIMEOUT_S)
    assert (response.status_code, response.headers["Content-Type"]) == (201, accept)
    found = read_reply(SubmissionReceipt, response.content, accept)
    assert (found.site, found.round, found.next.round) == ("north", 1, 2)
    task = live.api.request("GET", TASK, "north", headers={"Accept": accept})
    same = read_reply(TaskResponse, task.content, accept)
    assert codec.encode_model(found.next) == codec.encode_model(same)
    assert task.headers["ETag"] in response.headers["Fedclust-Task-ETag"].split(", ")


def test_a_receipt_comes_alone_once_the_wait_is_over(live: Running) -> None:
    body = live.api.answer("north", "heart")
    # One that nobody can read is refused before anything is stored.
    assert put(live, body, Accept="text/html").status_code == 406
    assert get(live, "north").json()["status"] == "work"
    first = put(live, body, wait=0.1)
    assert first.status_code == 201
    assert "next" not in first.json()
    assert get(live, "north", first.headers["Fedclust-Task-ETag"]).status_code == 304
    # Sent again, it waits too.
    again = in_background(lambda: put(live, body))
    waiting(live)
    live.local.coordinator.notifier.close()
    assert (again.result(TIMEOUT_S).status_code, again.result().json()) == (200, first.json())


def test_a_receipt_survives_a_token_that_is_revoked_while_it_waits(live: Running) -> None:
    body = live.api.answer("north", "heart")
    future = in_background(lambda: put(live, body))
    waiting(live)
    revoke(live, "north")
    response = future.result(TIMEOUT_S)
    assert (response.status_code, "next" in response.json()) == (201, False)
    assert "Fedclust-Task-ETag" not in response.headers


@pytest.mark.parametrize("how", ["revoked", "disabled"])
def test_a_site_that_is_shut_out_learns_so_at_once(
    live: Running, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier: Any = live.local.coordinator.notifier
    real, woken = notifier.wait, []

    async def wait(*asked: Any) -> bool:
        woken.append(await real(*asked))
        return bool(woken[-1])

    monkeypatch.setattr(notifier, "wait", wait)
    etag = get(live, "north").headers["ETag"]
    future = in_background(lambda: get(live, "north", etag, wait=25))
    waiting(live)
    if how == "revoked":
        revoke(live, "north")
    else:
        live.api.ok("PATCH", "/v1/sites/north", live.api.operator, json={"disabled": True})
    assert future.result(TIMEOUT_S).status_code == 401
    assert woken == [True], "not after the wait"


def test_who_waits_for_a_deleted_session_hears_that_it_is_gone(live: Running) -> None:
    api, path = live.api, "/v1/sessions/doomed"
    api.define("ada", "doomed", [*SITES])
    known = {"If-None-Match": api.request("GET", f"{path}/task", "north").headers["ETag"]}

    def poll() -> httpx.Response:
        return api.request("GET", f"{path}/task?wait=25", "north", headers=known)

    polling = in_background(poll)
    waiting(live)
    assert api.request("DELETE", path, "ada").status_code == 204
    assert polling.result(TIMEOUT_S).status_code == 404
    # The name is used again: whoever knows the old task waits, and is not asked in a loop.
    api.define("ada", "doomed", [*SITES], seed=8)
    polling = in_background(poll)
    waiting(live)
    api.ok("POST", f"{path}/cancel", "ada")
    assert polling.result(TIMEOUT_S).json()["status"] == "ended"
