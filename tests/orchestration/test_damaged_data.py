"""Stored bytes that have changed: nothing is concluded from them, and everybody is told."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text, update

from fedclust.wire import codec
from fedclust.wire.models import SessionPatch
from fedclust.wire.submissions import BINARY
from fedclust_service.orchestration import (
    admin,
    damage,
    participation,
    results,
    rounds,
    sessions,
    sweeper,
)
from fedclust_service.orchestration.aggregation import task_digests
from fedclust_service.orchestration.damage import DataDamaged
from fedclust_service.orchestration.sweeper import sweep
from fedclust_service.store import tables
from support.clock import ManualClock
from support.damage import change_stored, two_bytes_changed
from support.office import ANALYST, OPERATOR, Office, site
from support.patience import PATIENCE_S

MARK = "stored_data_damaged"
Edit = Callable[[bytes], bytes]


def undecodable(stored: bytes) -> bytes:
    """Change one byte, to one that is in no text."""
    middle = len(stored) // 2
    return stored[:middle] + b"\xff" + stored[middle + 1 :]


def another_seed(stored: bytes) -> bytes:
    """Change a definition into another good one."""
    return stored.replace(b'"seed":7', b'"seed":8')


EDITS = pytest.mark.parametrize("edit", [undecodable, another_seed])


def refused(office: Office, act: Callable[[], object]) -> None:
    """Assert that an act meets damage, and refuse it as a request is refused."""
    with pytest.raises(DataDamaged) as met:
        act()
    refusal = damage.refusal_of(office.co, "heart", met.value)
    assert (refusal.slug, refusal.status) == ("stored-data-damaged", 500)


def failed(office: Office, what: str, where: str | None, number: int = 1) -> None:
    """Assert that the session failed for damage, and that it is told of in fixed words alone."""
    row = office.row("heart")
    assert (row.state.value, row.stopped_because) == ("failed", MARK)
    found = office.store.read("test.round", lambda tx: tx.rounds.latest(row.id))
    assert found is not None
    assert (found.number, found.state.value, found.close_reason) == (number, "failed", MARK)
    told = {"round": number, "what": what, "site": where}
    assert office.audit(action="round.damaged") == [("coordinator", "round.damaged", told)]


@pytest.mark.parametrize("large", [False, True], ids=["in a thread", "in a process"])
def test_no_round_closes_on_a_changed_payload(both_office: Office, large: bool) -> None:
    office = both_office
    if large:
        office.co.limits = dataclasses.replace(office.co.limits, aggregation_process_bytes=0)
    office.session(rounds=1)
    office.answer_all("heart")
    change_stored(office.store, "submissions", "payload", two_bytes_changed, site="south")
    assert office.drive() == 1
    failed(office, "submission", "south")


def test_no_round_closes_on_a_payload_that_is_gone(office: Office) -> None:
    office.session(rounds=1)
    office.answer_all("heart")
    gone = update(tables.submissions).where(tables.submissions.c.site == "west")
    with office.store._engines.write.begin() as connection:
        connection.execute(gone.values(payload=None, payload_sha256=None))
    office.drive()
    failed(office, "submission", "west")


def test_no_round_closes_on_a_changed_state(both_office: Office) -> None:
    office = both_office
    office.session(rounds=3)
    office.answer_all("heart")
    office.drive()
    office.answer_all("heart")
    change_stored(office.store, "states", "state", two_bytes_changed, round_number=1)
    office.drive()
    failed(office, "state", None, 2)


@pytest.mark.parametrize(
    ("table", "column", "other", "where"),
    [
        ("rounds", "common", {"number": 2}, {}),
        ("addressees", "site_part", {"place": 2}, {"site": "north"}),
    ],
    ids=["of all", "of one"],
)
def test_no_round_closes_that_asked_something_else(
    both_office: Office, table: str, column: str, other: Any, where: dict[str, str]
) -> None:
    office = both_office
    office.session(rounds=1)
    office.answer_all("heart")
    change_stored(office.store, table, column, lambda _: codec.encode(other), **where)
    office.drive()
    failed(office, "task", "north")


@EDITS
def test_a_changed_definition_ends_the_session(
    both_office: Office, clock: ManualClock, edit: Edit
) -> None:
    office = both_office
    office.session(rounds=1)
    office.answer("heart", "north")
    change_stored(office.store, "sessions", "definition", edit)
    clock.advance(3601)
    sweep(office.co)
    failed(office, "definition", None)


@EDITS
@pytest.mark.parametrize("what", ["read", "submit", "deadline"])
def test_the_first_request_that_meets_a_changed_definition_ends_the_session(
    office: Office, clock: ManualClock, edit: Edit, what: str
) -> None:
    office.session(rounds=1)
    body = office.body("heart", "south")
    change_stored(office.store, "sessions", "definition", edit)
    patch = SessionPatch(deadline=clock.now() + timedelta(hours=2))
    acts = {
        "read": lambda: office.info("heart"),
        "submit": lambda: office.put("heart", "south", body, 1),
        "deadline": lambda: sessions.patch_session(office.co, ANALYST, "heart", patch),
    }
    refused(office, acts[what])
    failed(office, "definition", None)


@EDITS
def test_one_damaged_session_leaves_the_lists_whole(
    office: Office, edit: Edit, tmp_path: Path
) -> None:
    office.session("lung", rounds=1)
    office.session("heart", rounds=1)
    change_stored(office.store, "sessions", "definition", edit, name="heart")
    listed = sessions.list_sessions(office.co, OPERATOR).items
    assert [(each.name, each.definition is None) for each in listed] == [
        ("heart", True),
        ("lung", False),
    ]
    seen = admin.list_sessions(office.co, OPERATOR).items
    assert [each.name for each in seen] == ["heart", "lung"]
    assert admin.overview(office.co, OPERATOR, tmp_path).sessions["running"] == 2


@EDITS
@pytest.mark.parametrize("running", [True, False])
def test_a_session_without_its_definition_can_be_cancelled(
    office: Office, edit: Edit, running: bool
) -> None:
    (office.session if running else office.define)(rounds=1)
    change_stored(office.store, "sessions", "definition", edit)
    ended = sessions.cancel_session(office.co, OPERATOR, "heart")
    assert (ended.state, ended.definition) == ("cancelled", None)


@EDITS
@pytest.mark.parametrize("running", [True, False])
def test_sites_may_go_without_the_definition(office: Office, edit: Edit, running: bool) -> None:
    (office.session if running else office.define)(rounds=1)
    change_stored(office.store, "sessions", "definition", edit)
    participation.leave(office.co, site("south"), "heart")
    if running:
        failed(office, "definition", None)
        return
    participation.exclude(office.co, ANALYST, "heart", "west")
    states = {
        each.name: each.state for each in sessions.list_sessions(office.co, ANALYST).items[0].sites
    }
    assert states == {"north": "invited", "south": "left", "west": "excluded"}


def test_closing_a_round_without_the_definition_ends_the_session(office: Office) -> None:
    office.session(rounds=1)
    change_stored(office.store, "sessions", "definition", another_seed)
    assert rounds.close_round(office.co, ANALYST, "heart", 1).state == "failed"
    failed(office, "definition", None)


@pytest.mark.parametrize("edit", [undecodable, lambda _: codec.encode({"number": 2})])
@pytest.mark.parametrize(("table", "column"), [("rounds", "common"), ("addressees", "site_part")])
@pytest.mark.parametrize("what", ["task", "submit"])
def test_a_damaged_task_ends_the_session_when_it_is_met(
    office: Office, table: str, column: str, edit: Edit, what: str
) -> None:
    office.session(rounds=1)
    body = office.body("heart", "north")
    where = {"site": "north"} if table == "addressees" else {}
    change_stored(office.store, table, column, edit, **where)
    acts = {
        "task": lambda: office.view("heart", "north"),
        "submit": lambda: office.put("heart", "north", body, 1, BINARY),
    }
    refused(office, acts[what])
    failed(office, "task", "north")


def test_a_session_that_cannot_be_ended_keeps_no_other_waiting(
    office: Office, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    office.session("heart", rounds=1)
    office.session("lung", rounds=1)
    change_stored(office.store, "sessions", "definition", another_seed, name="heart")

    def broken(*_: object) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr(sweeper, "fail_damaged", broken)
    clock.advance(3601)
    sweep(office.co)
    assert [each["round"] for _, _, each in office.audit(action="round.overdue")] == [1]


def test_another_session_goes_on(office: Office) -> None:
    office.session("heart", rounds=1)
    office.session("lung", rounds=1)
    for name in ("heart", "lung"):
        office.answer_all(name)
    chosen = {"site": "south", "session_id": 1}
    change_stored(office.store, "submissions", "payload", two_bytes_changed, **chosen)
    assert office.drive() == 2
    assert office.info("heart").state == "failed"
    assert office.info("lung").state == "completed"


@pytest.mark.parametrize(("table", "column"), [("rounds", "opened_at"), ("sessions", "created_at")])
@pytest.mark.parametrize("value", ["20x6-99-99", 7, b"2026-01-05\xff"], ids=repr)
def test_an_unreadable_row_keeps_no_other_session_waiting(
    office: Office, clock: ManualClock, table: str, column: str, value: object
) -> None:
    """The damaged session stays as it is; one beside it is closed, aggregated and scrubbed."""
    office.co.limits = dataclasses.replace(office.co.limits, retention_days=1)

    def damage(name: str) -> None:
        session_id = office.row(name).id
        key = "id" if table == "sessions" else "session_id"
        # As text, so that bytes which are not UTF-8 are stored as a broken disk leaves them.
        stored = "CAST(:value AS TEXT)" if isinstance(value, bytes) else ":value"
        with office.store._engines.write.begin() as connection:
            query = text(f"UPDATE {table} SET {column} = {stored} WHERE {key} = :id")  # noqa: S608
            connection.execute(query, {"value": value, "id": session_id})

    for name in ("bad-to-aggregate", "good-to-aggregate"):
        office.session(name, rounds=1)
        office.answer_all(name)
    damage("bad-to-aggregate")
    four = ("north", "south", "west", "east")
    for name in ("bad-late", "good-late"):
        office.session(name, sites=four, policy={"quorum": 3}, rounds=1)
        for each in four[:3]:
            office.answer(name, each)
    damage("bad-late")
    office.session("bad-done", rounds=1)
    office.finish("bad-done")
    assert office.info("good-to-aggregate").state == "completed"
    if table == "sessions":
        damage("bad-done")
    clock.advance(2 * 86_400)
    sweep(office.co)
    office.co.driver.start()
    office.co.driver.ask_to_stop()
    office.co.driver.join(PATIENCE_S)
    office.drive()
    assert office.info("good-late").state == "completed"
    scrubbed = "SELECT name FROM sessions WHERE scrubbed_at IS NOT NULL"
    with office.store._engines.read.begin() as connection:
        found = connection.execute(text(scrubbed)).scalars().all()
    assert "good-to-aggregate" in found


@pytest.mark.parametrize("column", ["result", "provenance"])
def test_a_changed_result_is_not_served(both_office: Office, column: str) -> None:
    office = both_office
    office.session(rounds=1)
    office.finish("heart")
    change_stored(office.store, "results", column, lambda old: old[:-1] + b"\x00")
    for reader in (ANALYST, site("south")):
        refused(office, functools.partial(results.get_result, office.co, reader, "heart"))
    assert office.audit(action="result.damaged") == [("coordinator", "result.damaged", {})] * 2


@pytest.mark.parametrize("edit", [undecodable, lambda old: old.replace(b'"chol"', b'"evil"')])
def test_no_result_is_served_under_a_changed_definition(office: Office, edit: Edit) -> None:
    office.session(rounds=1)
    office.finish("heart")
    change_stored(office.store, "sessions", "definition", edit)
    refused(office, lambda: results.get_result(office.co, ANALYST, "heart"))
    assert office.row("heart").state.value == "completed"
    assert len(office.audit(action="definition.damaged")) == 1
    assert not office.audit(action="result.read")


def test_digests_of_stored_tasks_are_those_that_sites_name() -> None:
    common: Any = {"number": 3, "centroids": [1.0, 2.0], "prepared": None}
    parts: list[Any] = [{"place": place} for place in range(3)] + [None, {}]
    found = task_digests(codec.encode(common), map(codec.encode, parts))
    assert list(found) == [codec.task_digest(common, part) for part in parts]
