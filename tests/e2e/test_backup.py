"""``backup`` beside a coordinator that is written to, and what a restored one goes on with.

What sites refuse to a restored one: `site/test_participate.py`.
"""

import json
import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e2e.random_kills import POLICY, SESSION, D, K, rows, shared
from fedclust import simulate
from fedclust.wire.codec import sha256, to_tree
from support.consortium import Consortium, columns
from support.proxies import Exchange, recorded
from support.server import running_server, service
from support.timeouts import TIMEOUT_S, eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are ended by POSIX")
CONFIG = {"n_clusters": K}
SHORT = {**POLICY, "max_rounds": 10}


def select(database: Path, statement: str, *values: str) -> list[Any]:
    """Return the rows that a statement finds in a database."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(statement, values).fetchall()


def receipts(database: Path) -> dict[tuple[int, str], tuple[str, str]]:
    """Return hash and time of every answer in a database, by round and site."""
    found = select(
        database,
        "SELECT r.number, s.site, s.sha256, s.received_at FROM submissions s"
        " JOIN rounds r ON r.id = s.round_id",
    )
    return {(number, site): (digest, at) for number, site, digest, at in found}


def test_a_session_goes_on_from_a_backup_taken_while_it_was_written(tmp_path: Path) -> None:
    """All acknowledged before is in it; of what came later sites send the same bytes again."""
    data = rows()
    reference = simulate("lloyd", data, config=CONFIG, policy=SHORT, features=columns(D), seed=7)
    copy = tmp_path / "copy.db"
    with (
        running_server(tmp_path / "server") as server,
        recorded(server.base_url) as tap,
        ThreadPoolExecutor(1) as pool,
    ):
        people = Consortium.found(server.base_url, server.operator_token, tuple(data))
        people.create(SESSION, D, algorithm="lloyd", config=CONFIG, policy=SHORT)
        fourth, tenth = threading.Event(), threading.Event()
        copied, restored = threading.Event(), threading.Event()

        def pace(each: Exchange) -> None:
            """Keep the copy within rounds 3 to 6, and the restore behind round 9."""
            if each.method != "PUT" or "/rounds/" not in each.path:
                return
            number = round_of(each.path)
            if number >= 4:
                fourth.set()
            if number >= 7:
                copied.wait(TIMEOUT_S)
            if number >= 10:
                tenth.set()
                restored.wait(TIMEOUT_S)

        tap.on_request = pace
        running = pool.submit(people.at(tap.url).run, SESSION, data, tmp_path)
        assert fourth.wait(TIMEOUT_S)
        before = {
            (each.path, each.token): sha256(each.body) for each in tap.puts() if each.status == 201
        }
        backed = service("backup", "--out", str(copy), "--data-dir", str(server.data_dir))
        assert backed.returncode == 0, backed.stderr
        assert trail(server.data_dir / "fedclust.db", "backed_up") == [
            ("coordinator", {"backup": sha256(copy.read_bytes()), "bytes": copy.stat().st_size})
        ]
        copied.set()
        assert tenth.wait(TIMEOUT_S)
        acknowledged = receipts(copy)
        assert server.stop() == 0
        for path in server.data_dir.glob("fedclust.db*"):
            path.rename(path.with_name(f"old-{path.name}"))
        done = service("restore", "--from", str(copy), "--data-dir", str(server.data_dir))
        assert done.returncode == 0, done.stderr
        server.restart()
        restored.set()
        results = running.result(TIMEOUT_S)
        final = people.result(SESSION)
        database = server.data_dir / "fedclust.db"
        kept = receipts(database)
        assert trail(database) == [("coordinator", {"backup": sha256(copy.read_bytes())})]
        assert payloads(database) > 0
        server.flags = ("--retention-days", "0", "--sweep-every-s", "0.05")
        server.restart()
        eventually(lambda: payloads(database) == 0)
        assert receipts(database) == kept
    # Nothing that was acknowledged before the backup's moment is lost ...
    names = {token: name for name, token in people.site_tokens.items()}
    for (path, token), digest in before.items():
        assert acknowledged[round_of(path), names[token]][0] == digest
    # ... with its receipts, and the restored service went on to the same bytes.
    assert {key: kept[key] for key in acknowledged} == acknowledged
    assert shared(final.result) == shared(to_tree(reference.result))
    for name in data:
        assert np.array_equal(results[name].labels_, reference.labels_[name])
    # Rounds that came after the backup were answered twice, each with the same bytes.
    sent: dict[tuple[str, str], set[str]] = {}
    again = 0
    for each in tap.puts():
        key = each.path, each.token
        again += key in sent
        sent.setdefault(key, set()).add(sha256(each.body))
    assert all(len(digests) == 1 for digests in sent.values())
    assert again >= 3 * len(data)


def round_of(path: str) -> int:
    return int(path.split("/rounds/")[1].split("/")[0])


def payloads(database: Path) -> int:
    ((n,),) = select(database, "SELECT count(payload) FROM submissions")
    return int(n)


def trail(database: Path, what: str = "restored") -> list[Any]:
    query = "SELECT actor, details FROM audit WHERE action = ?"
    found = select(database, query, f"database.{what}")
    return [(actor, json.loads(details)) for actor, details in found]
