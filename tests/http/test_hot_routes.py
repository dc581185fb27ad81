"""The two routes that every site asks in each round: what they read, and in which order."""

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from support.store_rows import counted
from support.timeouts import eventually

from .conftest import Running
from .problems import problem

TASK = "/v1/sessions/heart/task"


def calls(running: Running, name: str) -> int:
    """Return how many transactions of a name there were."""
    return counted(running.local.coordinator.store, name)["calls"]


@pytest.mark.parametrize(
    "query", ["wait=26", "wait=-1", "wait=nan", "wait=1e999", "wait=x", "wait=1&wait=x"]
)
def test_a_wait_that_is_none_is_refused(running: Running, query: str) -> None:
    response = running.api.request("GET", f"{TASK}?{query}", "north")
    problem(response, "invalid")
    assert response.json()["errors"][0]["pointer"] == "/wait"


def test_a_submission_looks_into_the_database_once_before_it_is_stored(live: Running) -> None:
    body = live.api.answer("north", "heart")
    looks, tokens = calls(live, "submission.look"), calls(live, "token.check")
    assert live.api.put("north", "heart", 1, body).status_code == 201
    assert calls(live, "submission.look") == looks + 1
    assert calls(live, "token.check") == tokens


def interrupted(running: Running, body: bytes, between: Callable[[], object]) -> httpx.Response:
    """Send a submission in two parts; ``between`` runs once the first has been looked at."""
    before = calls(running, "submission.look")

    def parts() -> Iterator[bytes]:
        yield body[:5]
        eventually(lambda: calls(running, "submission.look") > before)
        between()
        yield body[5:]

    return running.local.http(running.api.tokens["north"]).put(
        "/v1/sessions/heart/rounds/1/submission",
        content=parts(),
        headers={"Content-Type": "application/json"},
    )


@pytest.mark.parametrize("honest", [True, False])
def test_what_is_refused_is_what_stands_when_the_body_has_arrived(
    live: Running, honest: bool
) -> None:
    """A session that ends during the upload: 409, before anything in the body is looked at."""
    body = live.api.answer("north", "heart")
    if not honest:
        body = json.dumps({**json.loads(body), "payload": {"mean": "x"}}).encode()
    cancel = ("POST", "/v1/sessions/heart/cancel", "ada")
    response = interrupted(live, body, lambda: live.api.ok(*cancel))
    problem(response, "wrong-state")
    assert live.stored() == 0


def test_the_same_bytes_that_were_stored_during_the_upload_are_answered_as_stored(
    live: Running,
) -> None:
    body = live.api.answer("north", "heart")
    sent = []
    second = interrupted(live, body, lambda: sent.append(live.api.put("north", "heart", 1, body)))
    assert (sent[0].status_code, second.status_code) == (201, 200)
    assert second.json() == sent[0].json()
    assert live.stored() == 1


def test_tasks_are_read_while_another_program_holds_the_writer(live: Running) -> None:
    """A command beside the server: what is sent waits for it, what is read does not."""
    co = live.local.coordinator
    bodies = {name: live.api.answer(name, "heart") for name in ("north", "south")}
    live.clock.advance(61)  # each token's use is to be recorded again
    with (
        contextlib.closing(
            sqlite3.connect(live.local.settings.data_dir / "fedclust.db", isolation_level=None)
        ) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        other.execute("BEGIN IMMEDIATE")
        sent = [pool.submit(live.api.put, name, "heart", 1, bodies[name]) for name in bodies]
        eventually(lambda: calls(live, "submission.look") >= 2)
        assert live.api.request("GET", TASK, "west").status_code == 200
        for name in ("north", "south", "west"):
            assert live.api.request("GET", TASK, name).status_code == 200
        assert not any(each.done() for each in sent)
        other.execute("ROLLBACK")
        assert [each.result().status_code for each in sent] == [201, 201]
    eventually(lambda: not co.touching)


def test_a_repeated_key_is_found_where_the_body_is_parsed(live: Running) -> None:
    """What was stored, and the session's state, come before it."""
    body = live.api.answer("north", "heart")
    twice = body.replace(b"{", b'{"phase": "x", ', 1)
    response = live.api.put("north", "heart", 1, twice)
    assert problem(response, "invalid").errors[0].rule == "repeated-key"
    assert live.api.put("north", "heart", 1, body).status_code == 201
    problem(live.api.put("north", "heart", 1, twice), "submission-differs")
    live.api.ok("POST", "/v1/sessions/heart/cancel", "ada")
    problem(live.api.put("south", "heart", 1, twice), "wrong-state")
