"""Sign-ins, on SQLite and on PostgreSQL."""

from dataclasses import replace

from fedclust_service.domain.access import Role
from fedclust_service.store import Store, Tx
from support.store_rows import add_sign_in, add_token, at


def arrange(store: Store) -> None:
    """Store two tokens of Ana with three sign-ins, and one of Eve with one."""

    def work(tx: Tx) -> None:
        add_token(tx, "t1", "ana")
        ana = tx.principals.get(Role.ANALYST, "ana")
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
        tx.principals.update(replace(ana, disabled=True))

    store.run_tx("disable", disable)
    assert (opened(store, 10), opened(store, 10, name="eve")) == ("", "e")
