"""Event streams and noted heads over real HTTP: order, resuming, crashes, two workers."""

import json
import signal
import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.random_kills import POLICY, SESSION, D, K, rows
from fedclust import errors
from fedclust.client import Client
from support.command_line import CommandLine
from support.consortium import Consortium
from support.ledgers import body_lines
from support.server import ServerProcess, running_server, service
from support.timeouts import TIMEOUT_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are ended by POSIX")
CONFIG = {"n_clusters": K}
SHORT = {**POLICY, "max_rounds": 3}
Event = dict[str, Any]


@contextmanager
def stream(
    url: str, token: str, session: str = SESSION, last: int | str | None = None
) -> Iterator[httpx.Response]:
    headers = {"Authorization": f"Bearer {token}"}
    if last is not None:
        headers["Last-Event-ID"] = str(last)
    path = f"{url}/v1/sessions/{session}/events"
    with (
        httpx.Client(trust_env=False, timeout=TIMEOUT_S) as client,
        client.stream("GET", path, headers=headers) as response,
    ):
        yield response


def events(response: httpx.Response) -> Iterator[Event]:
    """Read events as the standard says."""
    assert response.status_code == 200, response.read()
    assert response.headers["Content-Type"].startswith("text/event-stream")
    event: Event = {}
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if not line and event:
            yield {**event, "data": json.loads(event["data"]), "id": int(event["id"])}
            event = {}
        elif name in ("id", "event", "data"):
            event[name] = value


def all_events(url: str, token: str, last: int | None = None) -> list[Event]:
    with stream(url, token, last=last) as response:
        return list(events(response))


def found(server: ServerProcess) -> Consortium:
    people = Consortium.found(server.base_url, server.operator_token, tuple(rows()))
    people.create(SESSION, D, algorithm="lloyd", config=CONFIG, policy=SHORT)
    return people


def test_a_session_is_followed_to_its_end(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server:
        people = found(server)
        with ThreadPoolExecutor(1) as pool:
            live = pool.submit(all_events, server.base_url, people.analyst_token)
            people.run(SESSION, rows(), tmp_path)
            seen = live.result(TIMEOUT_S)  # The stream ends with the session.
        ids = [event["id"] for event in seen]
        assert ids == sorted(set(ids))
        names = [event["event"] for event in seen]
        assert names[0] == "session.created"
        assert names[-1] == "session.completed"
        for number in {e["data"]["round"] for e in seen if "round" in e["data"]}:
            of_round = [e["event"] for e in seen if e["data"].get("round") == number]
            stored = ["submission.stored"] * len(people.site_tokens)
            assert of_round == ["round.opened", *stored, "round.collected", "round.closed"]

        # Read again, whole and from everywhere, it is the same.
        assert all_events(server.base_url, people.analyst_token) == seen
        for cut in range(0, len(seen) - 1, 5):
            rest = all_events(server.base_url, people.analyst_token, seen[cut]["id"])
            assert rest == seen[cut + 1 :]
        with stream(server.base_url, people.analyst_token, last=ids[-1]) as response:
            assert response.status_code == 204
        # Who else may follow it: `http/test_access.py`.
        with stream(server.base_url, people.analyst_token, last="x' OR 1") as response:
            assert response.status_code == 422
            assert b"OR 1" not in response.read()

        # A site reads of others that they answered, and no more.
        name = min(people.site_tokens)
        own = all_events(server.base_url, people.site_tokens[name])
        assert [e["id"] for e in own] == ids
        allowed = {"at", "round", "phase", "site", "reason", "deadline"}
        for event in own:
            assert set(event["data"]) <= allowed
            if event["event"] == "submission.stored":
                assert ("at" in event["data"]) == (event["data"]["site"] == name)

        # Each submission's line in a ledger names a head that the coordinator still has.
        lines = body_lines(tmp_path / name)
        heads = [line["audit_head"] for line in lines]
        assert all(heads)
        numbers = [int(head.split(":")[0]) for head in heads]
        assert numbers == sorted(numbers)
        with Client(server.base_url, people.site_tokens[name]) as client:
            for head in heads:
                number, digest = head.split(":")
                assert client.audit_head_at(int(number)).hash == digest
            with pytest.raises(errors.NotFound):
                client.audit_head_at(10**9)


def test_sigterm_ends_streams_before_the_grace_does(tmp_path: Path) -> None:
    with running_server(tmp_path / "server", "--shutdown-grace-s", "600") as server:
        people = found(server)
        with stream(server.base_url, people.analyst_token) as response:
            reading = events(response)
            assert next(reading)["event"] == "session.created"
            server.process.send_signal(signal.SIGTERM)
            list(reading)
        assert server.process.wait(TIMEOUT_S) == 0


def test_after_kill_nothing_is_lost_or_told_twice(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server:
        people = found(server)
        with stream(server.base_url, people.analyst_token) as response:
            seen = [next(events(response))]
        for extra in ("one", "two"):
            # Written, and killed before or after it was sealed, as it happens.
            with Client(server.base_url, server.operator_token) as operator:
                operator.add("sites", extra)
            server.kill()
            server.restart()
        people.run(SESSION, rows(), tmp_path)
        seen += all_events(server.base_url, people.analyst_token, seen[-1]["id"])
        assert seen == all_events(server.base_url, people.analyst_token)
        assert seen[-1]["event"] == "session.completed"
        server.stop()
        done = service("audit", "verify", "--json", "--data-dir", str(server.data_dir))
        assert done.returncode == 0, done.stdout + done.stderr
        said = json.loads(done.stdout)
        assert said["unsealed"] == 0
        assert said["faults"] == []


def test_a_cut_trail_is_found_by_a_sites_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> None:
    """The coordinator's own check finds nothing: the head was set back too."""
    with running_server(tmp_path / "server") as server:
        people = found(server)
        people.run(SESSION, rows(), tmp_path)
        name = min(people.site_tokens)

        def verify(url: str = server.base_url) -> int:
            monkeypatch.setenv("FEDCLUST_COORDINATOR", url)
            monkeypatch.setenv("FEDCLUST_TOKEN", people.site_tokens[name])
            monkeypatch.setenv("FEDCLUST_STATE_DIR", str(tmp_path / name))
            return command_line.run("ledger", "verify", "--against-coordinator")

        assert verify() == 0
        assert "noted here" in command_line.out
        # By another name it is another coordinator: that is said, not passed over.
        assert verify(server.base_url.replace("127.0.0.1", "localhost")) == 0
        assert "nothing to compare" in command_line.out
        assert server.base_url in command_line.out
        server.stop()
        number = int(body_lines(tmp_path / name)[-1]["audit_head"].split(":")[0]) - 1
        base = ["audit", "verify", "--data-dir", str(server.data_dir)]
        head = json.loads(service(*base, "--json").stdout)["head"]
        database = server.data_dir / "fedclust.db"
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("DELETE FROM audit WHERE number > ?", [number])
            connection.execute(
                "UPDATE audit_chain SET number = ?,"
                " hash = (SELECT hash FROM audit WHERE number = ?)",
                [number, number],
            )
        assert service(*base).returncode == 0
        assert service(*base, "--head", head).returncode == 1
        noted = body_lines(tmp_path / name)[-1]["audit_head"]
        assert service(*base, "--head", noted).returncode == 1
        assert service(*base, "--head", "5d41").returncode == 2
        server.restart()
        assert verify() == 8
        assert f"{number + 1}" in command_line.err
