"""Stored bytes that have changed: nothing is concluded from them, and everybody is told."""

import dataclasses
import functools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import literal_column, text, update

from fedclust.wire import codec
from fedclust.wire.models import SessionPatch
from fedclust.wire.submissions import BINARY
from fedclust_service.store import tables
from fedclust_service.usecases import (
    admin,
    damage,
    participation,
    results,
    round_lifecycle,
    rounds,
    sessions,
)
from fedclust_service.usecases.damage import DataDamaged
from support.damage import change_stored, two_bytes_changed
from support.databases import in_turn
from usecases.direct_api import ANALYST, OPERATOR, DirectApi, site, working

MARK = "stored_data_damaged"
Edit = Callable[[bytes], bytes]


def undecodable(stored: bytes) -> bytes:
    """Change one byte, to one that is in no text."""
    middle = len(stored) // 2
    return stored[:middle] + b"\xff" + stored[middle + 1 :]


def another_seed(stored: bytes) -> bytes:
    """Change a definition into another good one."""
    return stored.replace(b'"seed":7', b'"seed":8')


def refused(direct: DirectApi, act: Callable[[], object]) -> None:
    """Assert that an act meets damage, and refuse it as a request is refused."""
    with pytest.raises(DataDamaged) as met:
        act()
    refusal = damage.refusal_of(direct.co, "heart", met.value)
    assert (refusal.slug, refusal.status) == ("stored-data-damaged", 500)


def failed(direct: DirectApi, what: str, where: str | None, number: int = 1) -> None:
    """Assert that the session failed for damage, and that it is told of in fixed words alone."""
    row = direct.row("heart")
    assert (row.state.value, row.stopped_because) == ("failed", MARK)
    found = direct.latest()
    assert (found.number, found.state.value, found.close_reason) == (number, "failed", MARK)
    details = {"round": number, "what": what, "site": where}
    assert direct.audit(action="round.damaged") == [("coordinator", "round.damaged", details)]


@pytest.mark.parametrize(
    ("large", "database_url"),
    in_turn([False, True], ["in a thread", "in a process"]),
    indirect=["database_url"],
)
def test_no_round_closes_on_a_changed_payload(both: DirectApi, large: bool) -> None:
    if large:
        both.co.limits = dataclasses.replace(both.co.limits, pooled_above_s=-1)
    both.answered(rounds=1)
    change_stored(both.store, "submissions", "payload", two_bytes_changed, site="south")
    assert both.drive() == 1
    failed(both, "submission", "south")


def test_no_round_closes_on_a_payload_that_is_gone(direct: DirectApi) -> None:
    direct.answered(rounds=1)
    for column in ("payload", "payload_sha256"):
        change_stored(direct.store, "submissions", column, lambda _: None, site="west")
    direct.drive()
    failed(direct, "submission", "west")


def test_no_round_closes_on_a_changed_state(direct: DirectApi) -> None:
    direct.answered(rounds=3)
    direct.drive()
    direct.answer_all("heart")
    change_stored(direct.store, "states", "state", two_bytes_changed, round_number=1)
    direct.drive()
    failed(direct, "state", None, 2)


@pytest.mark.parametrize(
    ("table", "column", "other", "where"),
    [
        ("rounds", "common", {"number": 2}, {}),
        ("addressees", "site_part", {"place": 2}, {"site": "north"}),
    ],
    ids=["of all", "of one"],
)
def test_no_round_closes_that_asked_something_else(
    direct: DirectApi, table: str, column: str, other: Any, where: dict[str, str]
) -> None:
    direct.answered(rounds=1)
    change_stored(direct.store, table, column, lambda _: codec.encode(other), **where)
    direct.drive()
    failed(direct, "task", "north")


@pytest.mark.parametrize("edit", [undecodable, another_seed])
def test_a_changed_definition_ends_the_session(direct: DirectApi, edit: Edit) -> None:
    direct.session(rounds=1)
    direct.answer("heart", "north")
    change_stored(direct.store, "sessions", "definition", edit)
    direct.later(3601)
    failed(direct, "definition", None)


@pytest.mark.parametrize("what", ["read", "submit", "deadline"])
def test_the_first_request_that_meets_a_changed_definition_ends_the_session(
    direct: DirectApi, what: str
) -> None:
    direct.session(rounds=1)
    body = direct.body("heart", "south")
    change_stored(direct.store, "sessions", "definition", another_seed)
    patch = SessionPatch(deadline=direct.clock.now() + timedelta(hours=2))
    acts = {
        "read": lambda: direct.info("heart"),
        "submit": lambda: direct.put("heart", "south", body, 1),
        "deadline": lambda: sessions.patch_session(direct.co, ANALYST, "heart", patch),
    }
    refused(direct, acts[what])
    failed(direct, "definition", None)


@pytest.mark.parametrize("running", [True, False])
def test_a_session_without_its_definition_can_be_cancelled(
    direct: DirectApi, running: bool
) -> None:
    (direct.session if running else direct.define)(rounds=1)
    change_stored(direct.store, "sessions", "definition", another_seed)
    ended = sessions.cancel_session(direct.co, OPERATOR, "heart")
    assert (ended.state, ended.definition) == ("cancelled", None)


@pytest.mark.parametrize("running", [True, False])
def test_sites_may_go_without_the_definition(direct: DirectApi, running: bool) -> None:
    (direct.session if running else direct.define)(rounds=1)
    change_stored(direct.store, "sessions", "definition", another_seed)
    participation.leave(direct.co, site("south"), "heart")
    if running:
        failed(direct, "definition", None)
        return
    participation.exclude(direct.co, ANALYST, "heart", "west")
    states = {
        each.name: each.state for each in sessions.list_sessions(direct.co, ANALYST).items[0].sites
    }
    assert states == {"north": "invited", "south": "left", "west": "excluded"}


def test_closing_a_round_without_the_definition_ends_the_session(direct: DirectApi) -> None:
    direct.session(rounds=1)
    change_stored(direct.store, "sessions", "definition", another_seed)
    assert rounds.close_round(direct.co, ANALYST, "heart", 1).state == "failed"
    failed(direct, "definition", None)


@pytest.mark.parametrize(
    ("what", "table", "column", "edit"),
    [
        ("task", "rounds", "common", undecodable),
        ("task", "addressees", "site_part", lambda _: codec.encode({"number": 2})),
        ("submit", "rounds", "common", lambda _: codec.encode({"number": 2})),
        ("submit", "addressees", "site_part", undecodable),
    ],
)
def test_a_damaged_task_ends_the_session_when_it_is_met(
    direct: DirectApi, table: str, column: str, edit: Edit, what: str
) -> None:
    direct.session(rounds=1)
    body = direct.body("heart", "north")
    where = {"site": "north"} if table == "addressees" else {}
    change_stored(direct.store, table, column, edit, **where)
    acts = {
        "task": lambda: direct.view("heart", "north"),
        "submit": lambda: direct.put("heart", "north", body, 1, BINARY),
    }
    refused(direct, acts[what])
    failed(direct, "task", "north")


def test_a_session_that_cannot_be_ended_keeps_no_other_waiting(
    direct: DirectApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct.session("heart", rounds=1)
    direct.session("lung", rounds=1)
    change_stored(direct.store, "sessions", "definition", another_seed, name="heart")

    def broken(*_: object) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr(round_lifecycle, "fail_damaged", broken)
    direct.later(3601)
    assert [each["round"] for _, _, each in direct.audit(action="round.overdue")] == [1]


def test_the_overview_names_the_late_sites_of_a_round_that_cannot_be_read(
    direct: DirectApi, tmp_path: Path
) -> None:
    for name in ("heart", "lung"):
        direct.session(name, rounds=1)
        direct.answer(name, "north")
    direct.clock.advance(3601)
    with direct.store._engines.write.begin() as connection:
        session_id = direct.row("heart").id
        damaged = update(tables.rounds).where(tables.rounds.c.session_id == session_id)
        connection.execute(damaged.values(opened_at=literal_column("'20x6-99-99'")))
    found = admin.overview(direct.co, OPERATOR, tmp_path).attention
    late = {each.subject: each.detail for each in found if each.kind == "round-late"}
    assert late == dict.fromkeys(("heart", "lung"), "south, west")


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("rounds", "opened_at", "20x6-99-99"),
        ("rounds", "opened_at", b"2026-01-05\xff"),
        ("sessions", "created_at", 7),
    ],
)
def test_an_unreadable_row_keeps_no_other_session_waiting(
    direct: DirectApi, table: str, column: str, value: object
) -> None:
    """The damaged session stays as it is; one beside it is closed, aggregated and scrubbed."""
    direct.co.limits = dataclasses.replace(direct.co.limits, retention_days=1)

    def damage(name: str) -> None:
        session_id = direct.row(name).id
        key = "id" if table == "sessions" else "session_id"
        # As text, so that bytes which are not UTF-8 are stored as a broken disk leaves them.
        stored = "CAST(:value AS TEXT)" if isinstance(value, bytes) else ":value"
        with direct.store._engines.write.begin() as connection:
            query = text(f"UPDATE {table} SET {column} = {stored} WHERE {key} = :id")  # noqa: S608
            connection.execute(query, {"value": value, "id": session_id})

    for name in ("bad-to-aggregate", "good-to-aggregate"):
        direct.answered(name, rounds=1)
    damage("bad-to-aggregate")
    four = ("north", "south", "west", "east")
    for name in ("bad-late", "good-late"):
        direct.session(name, sites=four, policy={"quorum": 3}, rounds=1)
        direct.answer(name, *four[:3])
    damage("bad-late")
    direct.session("bad-done", rounds=1)
    direct.finish("bad-done")
    assert direct.info("good-to-aggregate").state == "completed"
    if table == "sessions":
        damage("bad-done")
    direct.later(2 * 86_400)
    with working(direct.co.driver):
        pass
    direct.drive()
    assert direct.info("good-late").state == "completed"
    scrubbed = "SELECT name FROM sessions WHERE scrubbed_at IS NOT NULL"
    with direct.store._engines.read.begin() as connection:
        found = connection.execute(text(scrubbed)).scalars().all()
    assert "good-to-aggregate" in found


@pytest.mark.parametrize("column", ["result", "provenance"])
def test_a_changed_result_is_not_served(direct: DirectApi, column: str) -> None:
    direct.session(rounds=1)
    direct.finish("heart")
    change_stored(direct.store, "results", column, lambda old: old[:-1] + b"\x00")
    for reader in (ANALYST, site("south")):
        refused(direct, functools.partial(results.get_result, direct.co, reader, "heart"))
    assert direct.audit(action="result.damaged") == [("coordinator", "result.damaged", {})] * 2


@pytest.mark.parametrize("edit", [undecodable, lambda old: old.replace(b'"chol"', b'"evil"')])
def test_no_result_is_served_under_a_changed_definition(direct: DirectApi, edit: Edit) -> None:
    direct.session(rounds=1)
    direct.finish("heart")
    change_stored(direct.store, "sessions", "definition", edit)
    refused(direct, lambda: results.get_result(direct.co, ANALYST, "heart"))
    assert direct.row("heart").state.value == "completed"
    assert len(direct.audit(action="definition.damaged")) == 1
    assert not direct.audit(action="result.read")
