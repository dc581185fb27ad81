"""Studies, and sessions that are deleted, on SQLite and on PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest

from fedclust_service.store import AlreadyExists, ConstraintViolated, Store, Tx
from support.store_rows import (
    SITES,
    add_session,
    add_study,
    addressees,
    new_round,
    participation,
)


def test_a_study_comes_back_as_it_was_stored(store: Store) -> None:
    study = store.run_tx("add", add_study)
    for found in (
        store.read("get", lambda tx: tx.studies.get("hearts")),
        store.run_tx("lock", lambda tx: tx.studies.lock("hearts")),
    ):
        assert found == study
    assert store.read("get", lambda tx: tx.studies.get("none")) is None
    assert store.run_tx("lock", lambda tx: tx.studies.lock("none")) is None
    with pytest.raises(AlreadyExists):
        store.run_tx("add", lambda tx: add_study(tx, created_by="bob"))
    assert store.read("names", lambda tx: tx.studies.names(study.id, SITES[0]))
    assert not store.read("names", lambda tx: tx.studies.names(study.id, "basel"))


def test_studies_are_listed_newest_first_and_filtered(store: Store) -> None:
    def arrange(tx: Tx) -> None:
        for number in range(4):
            add_study(tx, f"s{number}", created_by="ana" if number % 2 else "bob")

    store.run_tx("arrange", arrange)

    def names(**filters: Any) -> list[str]:
        chosen = {"limit": 10, **filters}
        return [each.name for each in store.read("list", lambda tx: tx.studies.list(**chosen))]

    assert names() == ["s3", "s2", "s1", "s0"]
    assert names(created_by="ana") == ["s3", "s1"]
    assert names(site=SITES[0]) == ["s3", "s2", "s1", "s0"]
    assert names(site="basel") == []
    third = store.read("get", lambda tx: tx.studies.get("s2"))
    assert third is not None
    assert names(limit=1, after_id=third.id) == ["s1"]


def test_a_study_has_sessions_and_is_deleted_without_them(store: Store) -> None:
    def arrange(tx: Tx) -> None:
        add_study(tx)
        add_study(tx, "empty")
        for name, owner in (("one", "ana"), ("two", "bob")):
            session = add_session(tx, name, owner, "hearts")
            if name == "two":
                tx.participations.add(participation(session, "zurich"))
        add_session(tx, "other")

    store.run_tx("arrange", arrange)
    asked = ["hearts", "empty"]

    def sessions(**filters: str) -> Any:
        return store.read("sessions", lambda tx: tx.studies.session_counts(asked, **filters))

    assert sessions() == {"hearts": 2, "empty": 0}
    assert sessions(created_by="ana")["hearts"] == 1
    assert sessions(site="zurich")["hearts"] == 1
    listed = store.read("list", lambda tx: tx.sessions.list(limit=9, study="hearts"))
    assert [each.name for each in listed] == ["two", "one"]

    def delete(name: str) -> None:
        def work(tx: Tx) -> None:
            study = tx.studies.lock(name)
            assert study is not None
            tx.studies.delete(study.id)

        store.run_tx("delete", work)

    with pytest.raises(ConstraintViolated):
        delete("hearts")
    delete("empty")
    assert store.read("get", lambda tx: tx.studies.get("empty")) is None
    assert store.read("get", lambda tx: tx.studies.get("hearts")) is not None


def test_a_session_needs_its_study(store: Store) -> None:
    with pytest.raises(ConstraintViolated):
        store.run_tx("add", lambda tx: add_session(tx, study="nowhere"))


def test_a_session_is_deleted_with_its_invitations_and_wakes_who_waits(store: Store) -> None:
    heard: list[tuple[str, int]] = []
    store.on_touch(heard.extend)

    def arrange(tx: Tx) -> int:
        session = add_session(tx)
        for site in SITES:
            tx.participations.add(participation(session, site))
        return session.id

    first = store.run_tx("arrange", arrange)
    store.run_tx("delete", lambda tx: tx.sessions.delete(first))
    assert heard == [("heart", 2)]
    assert store.read("get", lambda tx: tx.sessions.get("heart")) is None
    assert store.read("list", lambda tx: tx.participations.list(first)) == []

    second = store.run_tx("add", add_session)
    assert store.read("list", lambda tx: tx.participations.list(second.id)) == []


def test_a_session_with_a_round_is_not_deleted(store: Store) -> None:
    def arrange(tx: Tx) -> int:
        session = add_session(tx)
        tx.rounds.add(new_round(session), addressees())
        return session.id

    session = store.run_tx("arrange", arrange)
    with pytest.raises(ConstraintViolated):
        store.run_tx("delete", lambda tx: tx.sessions.delete(session))
    assert store.read("get", lambda tx: tx.sessions.get("heart")) is not None
