"""Sign-ins, on SQLite and on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedclust_service.domain.access import Role
from fedclust_service.store import AlreadyExists, ConstraintViolated, Store, Tx
from support.store_rows import EPOCH, add_sign_in, add_token, at


def arrange(store: Store) -> None:
    """Store two tokens of Ana with three sign-ins, and one of Eve with one."""

    def work(tx: Tx) -> None:
        add_token(tx, "t1", "ana")
        ana = tx.principals.get(Role.ANALYST, "ana")
        assert ana is not None
        add_token(tx, "t2", ana)
        add_token(tx, "t3", "eve")
        for sign_in_id, token_id, end in (("a", "t1", 50), ("b", "t1", 99), ("c", "t2", 99)):
            add_sign_in(tx, sign_in_id, token_id, at(end))
        add_sign_in(tx, "e", "t3", at(99))

    store.run_tx("arrange", work)


def opened(store: Store, now: float, used_after: float = -1, name: str = "ana") -> str:
    rows = store.read(
        "open", lambda tx: tx.sign_ins.open(Role.ANALYST, name, at(now), at(used_after))
    )
    return "".join(row.id for row in rows)


def test_a_sign_in_comes_with_its_token_and_owner(store: Store) -> None:
    arrange(store)
    found = store.read("get", lambda tx: tx.sign_ins.with_owner("c"))
    assert found is not None
    row, token, owner = found
    assert (row.ends_at, row.created_at, row.ended_at) == (at(99), EPOCH, None)
    assert (row.token_id, token.id, owner.name) == ("t2", "t2", "ana")
    assert store.read("get", lambda tx: tx.sign_ins.with_owner("none")) is None
    with pytest.raises(AlreadyExists):
        store.run_tx("again", lambda tx: add_sign_in(tx, "c", "t2"))
    with pytest.raises(ConstraintViolated):
        store.run_tx("no token", lambda tx: add_sign_in(tx, "d", "t9"))


def test_which_are_open(store: Store) -> None:
    arrange(store)
    assert opened(store, 49) == "abc"
    assert opened(store, 50) == "bc"
    assert opened(store, 99) == ""
    store.run_tx("use", lambda tx: tx.sign_ins.touch_used("b", at(9)))
    store.run_tx("use", lambda tx: tx.sign_ins.touch_used("b", at(8)))  # it never goes back
    assert opened(store, 10, used_after=0) == opened(store, 10, used_after=8.5) == "b"
    assert opened(store, 10, used_after=9) == ""
    store.run_tx("revoke", lambda tx: tx.tokens.revoke("t1", at(10)))
    assert opened(store, 10) == "c"
    assert opened(store, 10_000) == ""

    def disable(tx: Tx) -> None:
        ana = tx.principals.get(Role.ANALYST, "ana")
        assert ana is not None
        tx.principals.update(replace(ana, disabled=True))

    store.run_tx("disable", disable)
    assert (opened(store, 10), opened(store, 10, name="eve")) == ("", "e")


def test_they_end_once_alone_or_together(store: Store) -> None:
    arrange(store)
    assert [store.run_tx("end", lambda tx: tx.sign_ins.end("b", at(7))) for _ in range(2)] == [
        True,
        False,
    ]
    store.run_tx("end", lambda tx: tx.sign_ins.end_all(Role.ANALYST, "ana", at(8)))
    assert (opened(store, 10), opened(store, 10, name="eve")) == ("", "e")

    def ended(tx: Tx) -> list[object]:
        found = [tx.sign_ins.with_owner(each) for each in "abce"]
        return [each and each[0].ended_at for each in found]

    assert store.read("look", ended) == [at(8), at(7), at(8), None]
    assert store.run_tx("end", lambda tx: tx.sign_ins.end_every(at(9))) == 1
    assert store.read("look", ended) == [at(8), at(7), at(8), at(9)]


def test_old_ones_are_removed(store: Store) -> None:
    arrange(store)
    for before, left in ((50, "abc"), (51, "bc")):
        store.run_tx("remove", lambda tx, before=before: tx.sign_ins.remove(at(before)))
        assert opened(store, 0) == left
