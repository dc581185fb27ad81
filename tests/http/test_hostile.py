"""Hostile requests, a short seeded run of them; ``make bench hostile`` is the long one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from support.api_caller import ApiCaller
from support.hostile import MARK, Sent, Watch, fuzz, hostile_bodies, populate
from support.server import running_server

BODIES, FUZZED = 160, 240


@pytest.fixture(scope="module")
def watch(
    tmp_path_factory: pytest.TempPathFactory, module_database_url: str
) -> Iterator[tuple[ApiCaller, Watch]]:
    """Return a coordinator in a process of its own and a watch over it."""
    place: Path = tmp_path_factory.mktemp("hostile")
    env = {"FEDCLUST_DATABASE_URL": module_database_url}
    with running_server(place / "coordinator", env=env) as server:
        api = ApiCaller(server.base_url, server.operator_token)
        populate(api, "target")
        watching = Watch(api, module_database_url)
        yield api, watching
        watching.close()


@pytest.fixture(scope="module")
def module_database_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a migrated SQLite database."""
    from support.databases import SqliteFiles

    place = tmp_path_factory.mktemp("database")
    return SqliteFiles(place).create(place)


def test_hostile_bodies_are_refused_as_the_contract_says(watch: tuple[ApiCaller, Watch]) -> None:
    api, watching = watch
    for sent in hostile_bodies(api, "target", BODIES, seed=3):
        watching.send(sent)
    assert watching.findings.faults == {}
    refused = sum(n for status, n in watching.findings.statuses.items() if status >= 400)
    assert refused > 0.9 * BODIES, watching.findings.statuses
    assert {400, 415, 422} <= watching.findings.statuses.keys()
    assert len(watching.findings.operations) >= 10


def test_what_schemathesis_makes_is_answered_as_the_contract_says(
    watch: tuple[ApiCaller, Watch],
) -> None:
    api, watching = watch
    before = watching.findings.requests
    fuzz(api, watching, FUZZED, seed=3)
    assert watching.findings.requests - before == FUZZED
    assert watching.findings.faults == {}
    assert {200, 201, 403, 404} <= watching.findings.statuses.keys()


# --- the watch sees what it is for ----------------------------------------------------------------


def test_a_changed_title_is_in_the_audit_trail(watch: tuple[ApiCaller, Watch]) -> None:
    api, watching = watch

    def entries() -> list[str]:
        with watching._engine.connect() as connection:
            found = connection.execute(text("SELECT action FROM audit WHERE subject LIKE '%other'"))
            return [row[0] for row in found]

    before = len(entries())
    for _ in range(2):  # the second changes nothing
        api.ok("PATCH", "/v1/sites/other", "operator", json={"title": "Anew"})
    assert entries()[before:] == ["site.titled"]


def test_an_excluded_site_is_refused_the_result_as_the_description_says(
    watch: tuple[ApiCaller, Watch],
) -> None:
    api, watching = watch
    api.define("bob", "without-oslo", ["lima", "oslo", "rome"], start="manual")
    api.ok("DELETE", "/v1/sessions/without-oslo/participation/oslo", "bob")
    before = dict(watching.findings.faults)
    path = "/v1/sessions/without-oslo/result"
    assert watching.send(Sent("get_result", "GET", path, "oslo", b"", {})).status_code == 403
    assert watching.findings.faults == before


def test_a_watch_finds_each_kind_of_fault(watch: tuple[ApiCaller, Watch]) -> None:
    api, good = watch
    watching = Watch(api, str(good._engine.url))
    problem = {"content-type": "application/problem+json"}
    watching.judge("get_site", 500, "{}", problem, [])
    watching.judge("get_site", 409, "{}", problem, [])
    other = '{"type":"urn:fedclust:problem:round-closed"}'
    watching.judge("get_site", 404, other, problem, [])
    watching.judge("get_site", 404, "<html>", {"content-type": "text/html"}, [])
    watching.judge("get_site", 404, f'{{"detail": "{MARK}"}}', problem, [f"/v1/sites/{MARK}"])
    watching.judge("get_site", 404, '{"detail": "qzxvkwpj!"}', problem, ["/v1/sites/qzxvkwpj!"])
    watching.judge("get_site", 404, "{}", {**problem, "x": "qzxvkwpj!"}, ["qzxvkwpj!"])
    watching.judge("create_site", 201, "{}", {}, [])
    with good._engine.begin() as connection:
        connection.execute(text("UPDATE principals SET title = 'x' WHERE name = 'other'"))
    watching.judge("get_site", 200, "{}", {}, [])
    watching.judge("put_submission", 422, "{}", problem, [])
    assert {kind: len(found) for kind, found in watching.findings.faults.items()} == {
        "server errors": 1,
        "undocumented statuses": 2,
        "errors without a problem": 1,
        "echoes": 3,
        "rows outside the audit": 3,
    }
    watching.close()


def test_the_words_of_the_description_are_no_echo(watch: tuple[ApiCaller, Watch]) -> None:
    api, good = watch
    watching = Watch(api, str(good._engine.url))
    problem = {"content-type": "application/problem+json"}
    watching.judge(
        "create_site", 422, '{"pointer": "/min_group_size"}', problem, ["min_group_size"]
    )
    pointer = "/features/0/transform"
    watching.judge("create_site", 422, f'{{"pointer": "{pointer}"}}', problem, [pointer])
    assert watching.findings.faults == {}
    watching.close()
