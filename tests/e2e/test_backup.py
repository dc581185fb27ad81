"""``backup`` beside a coordinator that is written to, and what a restored one goes on with."""

import json
import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e2e.random_kills import POLICY, SESSION, D, K, rows, shared
from fedclust import Site, errors, simulate
from fedclust.client import Client
from fedclust.wire.codec import sha256, to_tree
from support.api_caller import ApiCaller
from support.consortium import Consortium, columns
from support.proxies import Exchange, recorded
from support.server import ServerProcess, running_server, service
from support.timeouts import TIMEOUT_S, eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are ended by POSIX")
CONFIG = {"n_clusters": K}
SHORT = {**POLICY, "max_rounds": 10}


def set_back(server: ServerProcess, copy: Path) -> None:
    """Stop a coordinator and give it the database that a backup holds."""
    assert server.stop() == 0
    data = server.data_dir
    for path in data.glob("fedclust.db*"):
        path.rename(path.with_name(f"old-{path.name}"))
    done = service("restore", "--from", str(copy), "--data-dir", str(data))
    assert done.returncode == 0, done.stderr
    server.restart()


def receipts(database: Path) -> dict[tuple[int, str], tuple[str, str]]:
    """Return hash and time of every answer in a database, by round and site."""
    with sqlite3.connect(database) as connection:
        found = connection.execute(
            "SELECT r.number, s.site, s.sha256, s.received_at FROM submissions s"
            " JOIN rounds r ON r.id = s.round_id"
        ).fetchall()
    connection.close()
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
        set_back(server, copy)
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


@pytest.mark.long
def test_what_a_restored_coordinator_does_not_know(tmp_path: Path) -> None:
    """Of another history it gets nothing: a site never answers one round in two ways."""
    copy = tmp_path / "copy.db"
    data = {name: X[:60] for name, X in rows().items()}
    with running_server(tmp_path / "server") as server:
        people = Consortium.found(server.base_url, server.operator_token, tuple(data))
        people.create(SESSION, D, config=CONFIG, policy={**POLICY, "max_rounds": 4})
        journals = tmp_path / "journals"
        done = service("backup", "--out", str(copy), "--data-dir", str(server.data_dir))
        assert done.returncode == 0, done.stderr
        people.run(SESSION, data, journals)
        with Client(server.base_url, server.operator_token) as operator:
            late = operator.issue_token("sites", "oslo").token
            operator.add("sites", "later")
        set_back(server, copy)
        # A token issued after the backup is unknown, and a site registered after it.
        with pytest.raises(errors.Unauthenticated), Client(server.base_url, late) as client:
            client.whoami()
        api = ApiCaller(server.base_url, server.operator_token)
        assert api.request("GET", "/v1/sites/later", api.operator).status_code == 404
        # Other rows at one site would make another history: that site refuses by its journal.
        with (
            Site(
                server.base_url, token=people.site_tokens["oslo"], state_dir=journals / "oslo"
            ) as site,
            pytest.raises(errors.OtherData),
        ):
            site.participate(SESSION, data["oslo"] + 1, consent=True)
        # Sites that have ended take part again, with the same bytes and to the same result.
        again = people.run(SESSION, data, journals)
        assert set(again) == set(data)
        # Set back once more, and started without one of them: round 2 asks something else now.
        set_back(server, copy)
        three = {name: X for name, X in data.items() if name != "oslo"}
        refusals: list[BaseException] = []

        def take_part(name: str) -> None:
            token = people.site_tokens[name]
            with Site(server.base_url, token=token, state_dir=journals / name) as site:
                try:
                    site.participate(SESSION, three[name], consent=True)
                except errors.TaskRefused as error:
                    refusals.append(error)

        threads = [threading.Thread(target=take_part, args=(name,), daemon=True) for name in three]
        for thread in threads:
            thread.start()
        with people.analyst() as analyst:
            eventually(
                lambda: (
                    three.keys()
                    == {
                        each.name
                        for each in analyst.session(SESSION).sites
                        if each.state == "joined"
                    }
                )
            )
            analyst.start_session(SESSION)
        for thread in threads:
            thread.join(TIMEOUT_S)
        assert len(refusals) == len(three)
        assert all("asks something else" in str(refusal) for refusal in refusals)
        # Round 1 got the same bytes, round 2 nothing.
        kept = receipts(server.data_dir / "fedclust.db")
        assert sorted(kept) == [(1, name) for name in sorted(three)]


def round_of(path: str) -> int:
    return int(path.split("/rounds/")[1].split("/")[0])


def payloads(database: Path) -> int:
    with sqlite3.connect(database) as connection:
        (n,) = connection.execute("SELECT count(payload) FROM submissions").fetchone()
    connection.close()
    return int(n)


def trail(database: Path, what: str = "restored") -> list[Any]:
    with sqlite3.connect(database) as connection:
        found = connection.execute(
            "SELECT actor, details FROM audit WHERE action = ?", (f"database.{what}",)
        ).fetchall()
    connection.close()
    return [(actor, json.loads(details)) for actor, details in found]
