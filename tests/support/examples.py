"""The bodies in ``openapi/examples``, taken from a real session over real HTTP.

Three sites with seeded rows run ``lloyd`` to its end. Of each phase the first round's task,
submission (JSON and binary), receipt and a problem are kept, as ``north`` saw them; of the session
its definition and its result. Clock, rows and seed are fixed. What differs between machines is
made the same (the platform, request ids); last bits of numbers, and hashes over them, may differ.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedclust.algorithms import engine
from fedclust.algorithms.registry import METHODS
from fedclust.wire.submissions import BINARY, JSON, read_head, read_payload, write_submission
from support.clock import ManualClock
from support.inprocess import local_coordinator
from support.world import World

SITES = ("north", "south", "west")
METHOD, SESSION, SITE = "lloyd", "heart-2026", "north"


def make(place: Path) -> dict[str, bytes]:
    """Run the session in a coordinator below ``place``; return file names and contents."""
    with local_coordinator(place, clock=ManualClock(), threads=True) as local:
        world = World(local.base_url, local.operator_token)
        world.register("sites", *SITES)
        world.register("analysts", "ada")
        policy = {"max_rounds": 2}
        files = {
            f"{METHOD}/session.json": _text(world.definition(SESSION, list(SITES), policy=policy))
        }
        world.define("ada", SESSION, list(SITES), policy=policy)
        files[f"{METHOD}/participation.json"] = _text(world.participation(SITE, SESSION))
        for site in SITES:
            world.join(site, SESSION)
        while (task := _ask(world, None))["status"] == "work":
            files |= _round(world, task)
        assert task["session_state"] == "completed", task
        result = world.ok("GET", f"/v1/sessions/{SESSION}/result", "ada")
        platform = result["provenance"]["platform"]
        result["provenance"]["platform"] = dict.fromkeys(platform, "example")
        files[f"{METHOD}/result.json"] = _text(result)
    return files


def _round(world: World, task: dict[str, Any]) -> dict[str, bytes]:
    number, phase = task["round"], task["task"]["phase"]
    folder = f"{METHOD}/{phase}"
    body = world.answer(SITE, SESSION)
    problem = world.put(SITE, SESSION, number, _too_small(body))
    assert problem.status_code == 422, problem.text
    binary = _in_binary(body)
    receipt = world.put(SITE, SESSION, number, body)
    assert receipt.status_code == 201, receipt.text
    etag = receipt.headers["Fedclust-Task-ETag"]
    for site in SITES[1:]:
        stored = world.put(site, SESSION, number, world.answer(site, SESSION))
        assert stored.status_code == 201, stored.text
    _ask(world, etag)
    return {
        f"{folder}/task.json": _text(task),
        f"{folder}/submission.json": body,
        f"{folder}/submission.msgpack": binary,
        f"{folder}/receipt.json": _text(receipt.json()),
        f"{folder}/problem.json": _text({**problem.json(), "request_id": "0" * 16}),
    }


def _ask(world: World, etag: str | None) -> dict[str, Any]:
    """Return the task; with an ETag, once it is another."""
    headers = {"If-None-Match": etag} if etag else {}
    path = f"/v1/sessions/{SESSION}/task?wait=25"
    response = world.request("GET", path, SITE, headers=headers)
    assert response.status_code == 200, response.text
    return dict(response.json())


def _in_binary(body: bytes) -> bytes:
    head = read_head(body, JSON)
    payload = read_payload(engine.phase(METHODS[METHOD], head.phase), body, JSON)
    return write_submission(head.phase, head.task_digest, payload, BINARY)


def _too_small(body: bytes) -> bytes:
    """Return an answer in which one count is below the smallest count of 5."""
    answer = json.loads(body)
    for name in ("counts", "observed"):
        if name in answer["payload"]:
            answer["payload"][name][0] = 4
    return json.dumps(answer).encode()


def _text(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
