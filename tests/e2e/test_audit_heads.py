"""The audit trail over real HTTP: crashes, and the heads that sites note."""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from e2e.random_kills import POLICY, SESSION, D, K, rows
from fedclust import errors
from fedclust.client import Client
from support.command_line import CommandLine
from support.consortium import Consortium
from support.ledgers import body_lines
from support.server import ServerProcess, running_server, service

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are ended by POSIX")
CONFIG = {"n_clusters": K}
SHORT = {**POLICY, "max_rounds": 3}


def found(server: ServerProcess) -> Consortium:
    people = Consortium.found(server.base_url, server.operator_token, tuple(rows()))
    people.create(SESSION, D, algorithm="lloyd", config=CONFIG, policy=SHORT)
    return people


def test_the_heads_in_ledgers_are_those_of_the_trail(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server:
        people = found(server)
        for extra in ("one", "two"):
            # Written, and killed before or after it was sealed, as it happens.
            with Client(server.base_url, server.operator_token) as operator:
                operator.add("sites", extra)
            server.kill()
            server.restart()
        people.run(SESSION, rows(), tmp_path)
        name = min(people.site_tokens)
        heads = [line["audit_head"] for line in body_lines(tmp_path / name)]
        assert all(heads)
        numbers = [int(head.split(":")[0]) for head in heads]
        assert numbers == sorted(numbers)
        with Client(server.base_url, people.site_tokens[name]) as client:
            for head in heads:
                number, digest = head.split(":")
                assert client.audit_head_at(int(number)).hash == digest
            with pytest.raises(errors.NotFound):
                client.audit_head_at(10**9)
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
