"""``fedclust-service`` as processes: start, ready, shutdown, and every way of not starting."""

import json
import os
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from fedclust_service.exit_codes import Exit
from support.api_caller import ApiCaller
from support.server import ServerProcess, running_server, service
from support.timeouts import TIMEOUT_S

POSIX = os.name == "posix"


def one_line(result: subprocess.CompletedProcess[str], code: Exit) -> str:
    """Assert the exit code and one line of explanation, and return it."""
    assert result.returncode == code, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    explained = [line for line in lines if line.startswith("fedclust-service: ")]
    assert len(explained) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return explained[0]


def test_an_empty_machine_becomes_a_coordinator(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", empty=True) as server:
        output = server.output()
        assert "made the data directory" in output
        assert "wrote a secret key" in output
        new = f"new coordinator in sqlite:///{tmp_path / 'data' / 'fedclust.db'}; if you expected"
        assert output.count(new) == 1
        assert output.count("fco_") == 1
        assert re.search(r"^listening on http://127\.0\.0\.1:\d+$", output, re.MULTILINE)
        assert server.get("/readyz").status_code == 200
        me = server.get("/v1/whoami", server.operator_token).json()
        assert (me["role"], me["name"]) == ("operator", "operator")
        if POSIX:
            key = stat.S_IMODE((tmp_path / "data" / "secret.key").stat().st_mode)
            assert key == 0o600
            assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
        assert server.stop() == 0
        server.restart()
        assert server.get("/v1/whoami", server.operator_token).status_code == 200
        assert server.output().count("fco_") == 1  # shown once
        assert server.output().count("new coordinator") == 1
        server.kill()
        server.restart()
        assert server.get("/v1/whoami", server.operator_token).status_code == 200


def test_operator_tokens_are_printed_or_go_into_a_new_file_of_their_owner(tmp_path: Path) -> None:
    data, file = ["--data-dir", str(tmp_path / "data")], tmp_path / "operator.token"
    assert "--data-dir" in one_line(service("operator-token", *data), Exit.SETTINGS)
    assert not (tmp_path / "data").exists(), "a token of another coordinator opens nothing"
    printed = service("init", "--data-dir", str(tmp_path / "printed"))
    assert (printed.returncode, printed.stdout.count("fco_")) == (0, 1), printed.stderr
    file.write_text("mine", "utf-8")
    refused = service("init", *data, "--token-out", str(file))
    assert refused.returncode == Exit.USAGE
    assert file.read_text("utf-8") == "mine"
    assert not (tmp_path / "data").exists(), "no operator whose token nobody has"
    file.unlink()

    made = service("init", *data, "--token-out", str(file))
    # What is logged while it serves is said in words here.
    assert (made.returncode, made.stderr) == (0, "")
    assert "fco_" not in made.stdout
    assert file.stat().st_mode & 0o777 == 0o600
    again = service("init", *data, "--token-out", str(tmp_path / "none.token"))
    assert (again.returncode, "fco_" in again.stdout) == (0, False)
    assert not (tmp_path / "none.token").exists()
    with running_server(tmp_path / "data") as server:
        assert "fco_" not in server.output()
        fresh = service("operator-token", *data, "--token-out", str(tmp_path / "fresh.token"))
        assert (fresh.returncode, fresh.stdout) == (0, "")
        for name in ("operator.token", "fresh.token"):
            token = (tmp_path / name).read_text("utf-8").strip()
            assert server.get("/v1/whoami", token).status_code == 200
        named = service("operator-token", *data, "--name", "night-shift").stdout.strip()
        assert server.get("/v1/whoami", named).json()["name"] == "night-shift"


@pytest.mark.skipif(not POSIX, reason="signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_shutdown_ends_long_polls_and_exits_with_0(tmp_path: Path, number: int) -> None:
    # The grace is so long that only a poll that is told ends before it.
    with running_server(tmp_path / "data", "--shutdown-grace-s", "600") as server:
        api = ApiCaller.found(server, ("north", "south", "west"))
        api.define("ada", "heart", ["north", "south", "west"])
        path = "/v1/sessions/heart/task"
        etag = api.request("GET", path, "north").headers["ETag"]
        address = httpx.URL(server.base_url)
        with socket.create_connection((address.host, address.port), timeout=TIMEOUT_S) as waiting:
            waiting.sendall(
                f"GET {path}?wait=25 HTTP/1.1\r\nHost: x\r\nIf-None-Match: {etag}\r\n"
                f"Authorization: Bearer {api.tokens['north']}\r\n\r\n".encode()
            )
            # Answered in order on one process: the poll before it has been taken up.
            assert server.get("/healthz").status_code == 200
            server.process.send_signal(number)
            answer = waiting.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after" in answer.lower()
        assert server.process.wait(TIMEOUT_S) == 0
        assert "Traceback" not in server.output()


def begun(server: ServerProcess, length: int) -> socket.socket:
    """Begin to register a site; the request is under way, and its body is to be sent."""
    address = httpx.URL(server.base_url)
    sending = socket.create_connection((address.host, address.port), timeout=TIMEOUT_S)
    sending.sendall(
        b"POST /v1/sites HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer " + server.operator_token.encode() + b"\r\n"
        b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % length
    )
    # Asked for once the caller is known.
    assert sending.recv(65_536).startswith(b"HTTP/1.1 100 ")
    return sending


@pytest.mark.skipif(not POSIX, reason="signals")
def test_a_request_that_outlasts_the_grace_of_a_shutdown_is_told(tmp_path: Path) -> None:
    with (
        running_server(tmp_path / "data", "--shutdown-grace-s", "1") as server,
        begun(server, 99) as sending,
    ):
        server.process.send_signal(signal.SIGTERM)
        answer = sending.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 503 "), answer
        assert b"application/problem+json" in answer
        assert server.process.wait(TIMEOUT_S) == 0
        assert "Exception in ASGI" not in server.output()


@pytest.mark.skipif(not POSIX, reason="signals")
def test_a_lock_that_somebody_else_holds_does_not_hold_a_shutdown_up(tmp_path: Path) -> None:
    """Threads that wait for the database cannot be told to stop: the process ends with them."""
    body = b'{"name": "north"}'
    with (
        running_server(tmp_path / "data") as server,
        closing(sqlite3.connect(tmp_path / "data" / "fedclust.db", isolation_level=None)) as locked,
    ):
        locked.execute("BEGIN IMMEDIATE")
        with begun(server, len(body)) as sending:
            sending.sendall(body)
            assert server.stop() == 0
            assert sending.recv(65_536).startswith(b"HTTP/1.1 503 ")
        assert "shutdown_cut_short" in server.output()
        locked.rollback()
        # What was answered 503 was not done.
        done = locked.execute("SELECT count(*) FROM principals WHERE name = 'north'").fetchone()
        assert done == (0,)


def test_logs_are_json_lines_and_hold_no_secrets(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        api = ApiCaller.found(server, ("north", "south", "west"))
        api.begin("ada", "heart", ("north", "south", "west"))
        api.request("GET", f"/v1/sessions/heart?token={api.tokens['ada']}", "ada")
        api.request("GET", f"/v1/sites/{api.tokens['north']}", api.operator)
        api.request("GET", f"/{api.tokens['north']}", "ada")
        body = api.answer("north", "heart")
        assert api.put("north", "heart", 1, body).status_code == 201
        refused = json.loads(api.answer("south", "heart"))
        refused["payload"]["observed"] = [1, 1]
        assert api.put("south", "heart", 1, json.dumps(refused).encode()).status_code == 422
        server.stop()
        lines = [line for line in server.output().splitlines() if line.startswith("{")]
    events = [json.loads(line) for line in lines]
    stored = [
        event
        for event in events
        if event["event"] == "request" and event["route"].endswith("/submission")
    ]
    assert [event["status"] for event in stored] == [201, 422]
    assert stored[0]["session"] == "heart"
    assert (stored[0]["round"], stored[0]["role"], stored[0]["actor"]) == ("1", "site", "north")
    assert all(re.fullmatch("[0-9a-f]{16}", event["request_id"]) for event in stored)
    logged = "\n".join(lines)
    for token in (*api.tokens.values(), api.operator):
        assert token not in logged
        assert token.split("_")[2] not in logged
    numbers = json.loads(body)["payload"]
    for value in (*numbers["mean"], *numbers["m2"]):
        assert repr(value)[:8] not in logged


def test_the_port_is_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = service("serve", "--data-dir", str(tmp_path / "data"), "--port", port)
    assert port in one_line(result, Exit.ADDRESS)


def test_a_second_server_on_the_same_file(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        second = service("serve", "--data-dir", str(tmp_path / "data"), "--port", "0")
        assert "another" in one_line(second, Exit.LOCKED)
        assert server.get("/v1/whoami", server.operator_token).status_code == 200


def test_a_schema_that_is_newer(tmp_path: Path) -> None:
    data = ["--data-dir", str(tmp_path / "data")]
    assert service("init", *data).returncode == 0
    current = service("db", "current", *data).stdout
    head = re.search(r"program: +(\S+)", current)
    assert head
    assert f"database: {head[1]}" in current
    with closing(sqlite3.connect(tmp_path / "data" / "fedclust.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    for command in (("serve", "--port", "0"), ("operator-token",), ("init",), ("db", "upgrade")):
        one_line(service(*command, *data), Exit.SCHEMA)


def test_an_empty_database_is_upgraded(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    data = ["--data-dir", str(tmp_path / "data")]
    assert "empty ->" in service("db", "upgrade", *data).stdout
    assert "nothing to do" in service("db", "upgrade", *data).stdout


def test_starting_imports_no_scikit_learn() -> None:
    script = (
        "import sys, fedclust_service.server; heavy = {'sklearn', 'scipy', 'pandas'}; "
        "sys.exit(any(name.split('.')[0] in heavy for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
