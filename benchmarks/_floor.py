"""The processes of ``floor.py``: a minimal coordinator, its sites, and the service's sites.

The minimal coordinator is FastAPI, SQLite with ``synchronous=FULL`` and a long poll. It has neither
tokens nor validation, and stores only what a restart would need: states, each site's task and the
submissions.

    python _floor.py coordinator FOLDER     writes FOLDER/ready with its address
    python _floor.py bare FOLDER NAME       a site of it
    python _floor.py sdk FOLDER NAME        a site of the service, through the SDK

FOLDER holds ``definition.json`` and the sites' rows as ``NAME.npy``. Sites load everything, write
``NAME.warm`` and wait for ``go``, so that start-up is not measured as part of the rounds.
"""

import asyncio
import json
import os
import socket
import sqlite3
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response

from fedclust import Site, rounds
from fedclust.data import load
from fedclust.data.site_data import site_data
from fedclust.definition import plan_of
from fedclust.rounds import EngineState, Plan
from fedclust.schema.task import Contribution, Next
from fedclust.wire import codec
from fedclust.wire.models import Definition
from fedclust.wire.submissions import payload_bytes, payload_from_bytes

POLL_S = 30.0


def plan_in(folder: Path) -> tuple[Plan, list[str], int]:
    """Return the plan, the sites and p of the definition in ``folder``."""
    definition = Definition.model_validate_json((folder / "definition.json").read_bytes())
    return plan_of(definition), sorted(definition.sites), definition.policy.min_group_size


def coordinate(folder: Path) -> None:
    """Serve one session until it is done."""
    plan, names, p = plan_in(folder)
    database = sqlite3.connect(folder / "floor.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE rounds (number INTEGER PRIMARY KEY, state BLOB)")
    columns = "(number INTEGER, site TEXT, body BLOB, PRIMARY KEY (number, site))"
    database.execute(f"CREATE TABLE tasks {columns}")
    database.execute(f"CREATE TABLE answers {columns}")
    app = FastAPI()
    opened = asyncio.Condition()
    step = rounds.start(plan, names)
    tasks: dict[int, dict[str, bytes]] = {}
    answers: dict[str, bytes] = {}

    def open_round(following: Next) -> None:
        number = following.state.round
        tasks[number] = {}
        for name in names:
            common, part = rounds.write_task(plan, "floor", number, following.task, name)
            tasks[number][name] = codec.encode({"common": common, "site": part})
        # One commit, and with it one sync, for all that a round needs.
        database.execute("BEGIN IMMEDIATE")
        state = codec.encode_model(following.state)
        database.execute("INSERT INTO rounds VALUES (?, ?)", (number, state))
        rows = [(number, name, task) for name, task in tasks[number].items()]
        database.executemany("INSERT INTO tasks VALUES (?, ?, ?)", rows)
        database.execute("COMMIT")

    open_round(step)

    @app.get("/tasks/{number}/{site}")
    async def task(number: int, site: str) -> Response:
        async with opened:
            await asyncio.wait_for(
                opened.wait_for(lambda: number in tasks or 0 in tasks), timeout=POLL_S
            )
        if number not in tasks:
            return Response(status_code=204)
        return Response(tasks[number][site])

    @app.post("/answers/{number}/{site}")
    async def answer(number: int, site: str, request: Request) -> Response:
        nonlocal step
        body = await request.body()
        database.execute("INSERT INTO answers VALUES (?, ?, ?)", (number, site, body))
        answers[site] = body
        if len(answers) < len(names):
            return Response(status_code=202)
        phase = rounds.phase(plan, step.task.phase)
        sent = [
            Contribution(name, payload_from_bytes(phase, answers[name] or None), p)
            for name in names
        ]
        answers.clear()
        state = codec.decode_model(EngineState, codec.encode_model(step.state))
        following = rounds.advance(plan, state, sent, names)
        async with opened:
            if isinstance(following, Next):
                step = following
                open_round(following)
            else:
                tasks[0] = {}
                database.execute(
                    "INSERT INTO rounds VALUES (?, ?)",
                    (number + 1, codec.encode_model(following.result)),
                )
            opened.notify_all()
        return Response(status_code=202)

    # With its protocol named, asyncio sends without Nagle's delay; else an answer takes 40 ms.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    (folder / "ready").write_text(f"http://127.0.0.1:{port}", "ascii")
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([listening])


def take_part(folder: Path, name: str) -> None:
    """Answer every round of the bare coordinator."""
    plan, _, p = plan_in(folder)
    rows = np.load(folder / f"{name}.npy")
    points, *_ = site_data(plan, rows, load(rows, plan.features), p)
    memory: dict[str, object] = {}
    number = 1
    with httpx.Client(base_url=(folder / "ready").read_text("ascii"), timeout=2 * POLL_S) as http:
        _wait(folder, name)
        while (reply := http.get(f"/tasks/{number}/{name}")).status_code == 200:
            sent = codec.decode(reply.content)
            task = rounds.read_task(plan, sent["common"], sent["site"])
            payload, memory = rounds.local_step(
                plan,
                task,
                points,
                site=name,
                round_number=number,
                p=p,
                size_band=None,
                memory=memory,
            )
            http.post(f"/answers/{number}/{name}", content=payload_bytes(payload) or b"")
            number += 1


def take_part_by_sdk(folder: Path, name: str) -> None:
    """Take part in the service's session "floor" as a hospital would."""
    rows = np.load(folder / f"{name}.npy")
    os.environ["FEDCLUST_STATE_DIR"] = str(folder / "groups" / name)
    said = json.loads((folder / f"{name}.json").read_text("ascii"))
    with Site(said["url"], token=said["token"], state_dir=folder / "states" / name) as site:
        _wait(folder, name)
        site.participate("floor", rows, consent=True)


def _wait(folder: Path, name: str) -> None:
    # What a first local step would import; otherwise it would count as part of a round.
    from sklearn.cluster import KMeans, kmeans_plusplus

    assert callable(KMeans)
    assert callable(kmeans_plusplus)
    (folder / f"{name}.warm").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)


if __name__ == "__main__":
    role, where, *rest = sys.argv[1:]
    roles = {"coordinator": coordinate, "bare": take_part, "sdk": take_part_by_sdk}
    roles[role](Path(where), *rest)
