"""What every repository promises, on SQLite and on PostgreSQL alike."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import event

from fedclust_service.domain.access import Role, Token
from fedclust_service.domain.round import RoundState
from fedclust_service.domain.session import SessionState
from fedclust_service.store import Store, StoreError, Tx, WaitingRound
from support.store_rows import (
    EPOCH,
    SITES,
    add_session,
    addressees,
    at,
    latest_state,
    lease,
    new_round,
    open_round,
    participation,
    rounds_to_aggregate,
    submission,
)

# ----------------------------------------------------------------------------- principals


def test_which_names_are_registered(store: Store) -> None:
    store.run_tx("add", lambda tx: [tx.principals.add(Role.SITE, s, "") for s in SITES])
    asked = ["zurich", "nowhere", "budapest", "zurich"]
    found = store.read("existing", lambda tx: tx.principals.existing(Role.SITE, asked))
    assert found == {"zurich", "budapest"}
    assert store.read("existing", lambda tx: tx.principals.existing(Role.ANALYST, asked)) == set()
    assert store.read("existing", lambda tx: tx.principals.existing(Role.SITE, [])) == set()


def test_a_principal_is_disabled_and_seen(store: Store) -> None:
    principal = store.run_tx("add", lambda tx: tx.principals.add(Role.SITE, "zurich", ""))
    other = store.run_tx("add", lambda tx: tx.principals.add(Role.SITE, "basel", ""))
    with pytest.raises(StoreError):
        store.run_tx("add", lambda tx: tx.principals.add(Role.SITE, "basel", "other"))

    def work(tx: Tx) -> None:
        tx.principals.update(replace(principal, title="new", disabled=True, name="ignored"))
        tx.principals.touch_seen(principal.id, at(20))
        tx.principals.touch_seen(principal.id, at(10))

    store.run_tx("change", work)
    found = store.read("get", lambda tx: tx.principals.get(Role.SITE, "zurich"))
    assert found == replace(principal, title="new", disabled=True, last_seen_at=at(20))
    assert store.read("get", lambda tx: tx.principals.get(Role.SITE, "basel")) == other


def test_tokens(store: Store) -> None:
    def work(tx: Tx) -> tuple[Token, Token]:
        owner = tx.principals.add(Role.SITE, "zurich", "")
        old = Token("t-old", owner.id, "h" * 64, EPOCH, at(100))
        new = Token("t-new", owner.id, "i" * 64, at(1), at(200))
        tx.tokens.add(new)
        tx.tokens.add(old)
        return old, new

    old, new = store.run_tx("add", work)
    with pytest.raises(StoreError):
        store.run_tx("add", lambda tx: tx.tokens.add(replace(old, secret_hmac="j" * 64)))
    assert store.read("list", lambda tx: tx.tokens.list_for(old.principal_id)) == [old, new]
    assert store.read("get", lambda tx: tx.tokens.get("t-none")) is None
    assert store.read("get", lambda tx: tx.tokens.with_owner("t-none")) is None
    found = store.read("get", lambda tx: tx.tokens.with_owner("t-old"))
    assert found[0] == old
    assert (found[1].id, found[1].name, found[1].role) == (old.principal_id, "zurich", Role.SITE)

    assert store.run_tx("revoke", lambda tx: tx.tokens.revoke("t-old", at(7)))
    assert not store.run_tx("revoke", lambda tx: tx.tokens.revoke("t-old", at(8)))
    assert not store.run_tx("revoke", lambda tx: tx.tokens.revoke("t-none", at(8)))
    store.run_tx("touch", lambda tx: tx.tokens.touch_used("t-new", at(9)))
    store.run_tx("touch", lambda tx: tx.tokens.touch_used("t-new", at(8)))
    assert store.read("get", lambda tx: tx.tokens.get("t-old")) == replace(old, revoked_at=at(7))
    assert store.read("get", lambda tx: tx.tokens.get("t-new")) == replace(new, last_used_at=at(9))


# ------------------------------------------------------------------------------- sessions


def test_sessions_that_have_not_ended(store: Store) -> None:
    def arrange(tx: Tx) -> None:
        for state in SessionState:
            tx.sessions.update(replace(add_session(tx, state.value), state=state))

    store.run_tx("arrange", arrange)
    going_on = store.read("going_on", lambda tx: tx.sessions.not_ended())
    assert [each.name for each in going_on] == [each for each in SessionState if not each.ended]


# --------------------------------------------------------------------------------- rounds


def test_what_a_site_asks_is_read_in_one_statement(store: Store) -> None:
    session, opened = open_round(store)

    def write(tx: Tx) -> None:
        tx.rounds.add(new_round(session, 2), addressees(["budapest"]))
        assert tx.submissions.insert(submission(opened, "zurich"))
        for name in ("zurich", "basel"):
            owner = tx.principals.get(Role.SITE, name) or tx.principals.add(Role.SITE, name, "")
            tx.tokens.add(Token(f"t-{name}", owner.id, "h" * 64, at(0), at(99)))
        tx.tokens.revoke("t-basel", at(7))

    store.run_tx("write", write)

    def read(tx: Tx) -> None:
        own = tx.participations.get(session.id, "zurich")
        answer = tx.submissions.summary(opened.id, "zurich")
        part = tx.rounds.addressees(opened.id)[2]
        first, second = tx.rounds.get(session.id, 1), tx.rounds.get(session.id, 2)
        stored = tx.sessions.get(session.name)
        seen = (stored, own, (first, part, answer))
        assert tx.site_views.by_name(session.name, "zurich", 1) == seen
        assert tx.site_views.by_name(session.name, "zurich") == (stored, own, (second, None, None))
        assert tx.site_views.by_name(session.name, "zurich", 3) == (stored, own, None)
        stranger = tx.site_views.by_name(session.name, "basel", 1)
        assert stranger == (stored, None, (first, None, None))
        assert tx.site_views.by_name("none", "zurich", 1) is None
        asking = tx.site_views.by_token("t-zurich", session.name, 1)
        assert asking == (*tx.tokens.with_owner("t-zurich"), seen)
        for number in (1, None):
            other = tx.site_views.by_token("t-basel", "none", number)
            assert other == (*tx.tokens.with_owner("t-basel"), None)
            assert other.token.revoked_at == at(7)
            assert tx.site_views.by_token("t-none", session.name, number) is None

    store.read("read", read)
    locked = store.run_tx(
        "lock", lambda tx: tx.site_views.by_name(session.name, "zurich", 1, lock=True)
    )
    assert locked == store.read("t", lambda tx: tx.site_views.by_name(session.name, "zurich", 1))


def test_release_works_once(store: Store) -> None:
    _, opened = open_round(store)
    released = [
        store.run_tx("release", lambda tx, site=site: tx.rounds.release(opened.id, site))
        for site in ("zurich", "zurich", "basel")
    ]
    assert released == [True, False, False]
    found = store.read("read", lambda tx: tx.rounds.addressees(opened.id))
    assert [addressee.released for addressee in found] == [False, False, True]


def test_due_rounds_are_collecting_and_past_their_deadline_or_overdue(store: Store) -> None:
    session = store.run_tx("add", add_session)

    def add(tx: Tx) -> None:
        tx.rounds.add(new_round(session, 1, RoundState.AGGREGATING, at(1)), [])
        tx.rounds.add(new_round(session, 2, RoundState.CLOSED, at(1)), [])
        tx.rounds.add(new_round(session, 3, deadline=at(20)), [])
        tx.rounds.add(new_round(session, 4, deadline=at(10)), [])
        tx.rounds.add(new_round(session, 5, deadline=at(30)), [])

    store.run_tx("add", add)

    def due(now: datetime) -> list[int]:
        numbers = store.read("numbers", lambda tx: tx.rounds.numbers(session.id))
        return [numbers[r.id] for r in store.read("due", lambda tx: tx.rounds.due(now))]

    assert due(at(9.999999)) == []
    assert due(at(10)) == [4]
    assert due(at(20)) == [4, 3]
    # A round that is marked overdue is looked at again, wherever its deadline has moved to.
    last = store.read("get", lambda tx: tx.rounds.get(session.id, 5))
    store.run_tx("overdue", lambda tx: tx.rounds.set_overdue(last.id, at(5)))
    assert due(at(9)) == [5]
    assert [r.number for r in store.read("aggregating", rounds_to_aggregate)] == [1]


def test_what_changes_in_which_state_of_a_round(store: Store) -> None:
    session, opened = open_round(store)
    assert store.run_tx("deadline", lambda tx: tx.rounds.set_deadline(opened.id, at(99)))
    assert store.run_tx("overdue", lambda tx: tx.rounds.set_overdue(opened.id, at(7)))
    assert not store.run_tx("overdue", lambda tx: tx.rounds.set_overdue(opened.id, at(8)))
    found = store.read("get", lambda tx: tx.rounds.get(session.id, 1))
    assert found == replace(opened, deadline=at(99), overdue_since=at(7))
    assert store.run_tx("overdue", lambda tx: tx.rounds.set_overdue(opened.id, None))
    assert not store.run_tx("overdue", lambda tx: tx.rounds.set_overdue(opened.id, None))

    move = (opened.id, RoundState.COLLECTING, RoundState.AGGREGATING)
    assert store.run_tx("move", lambda tx: tx.rounds.transition(*move))
    assert not store.run_tx("move", lambda tx: tx.rounds.transition(*move))
    assert not store.run_tx("deadline", lambda tx: tx.rounds.set_deadline(opened.id, at(5)))
    assert not store.run_tx("overdue", lambda tx: tx.rounds.set_overdue(opened.id, at(5)))

    # A transition out of aggregating drops the lease.
    rid = opened.id
    store.run_tx("take", lambda tx: tx.rounds.take_lease(rid, at(0), **lease("t1")))
    move = (rid, RoundState.AGGREGATING, RoundState.FAILED)
    assert store.run_tx("move", lambda tx: tx.rounds.transition(*move))
    assert not store.run_tx("finish", lambda tx: tx.rounds.finish(rid, "t1", 1.5, {}))
    found = store.read("get", lambda tx: tx.rounds.get_by_id(rid))
    assert (found.state, found.lease_token) == (RoundState.FAILED, None)
    assert not store.run_tx("take", lambda tx: tx.rounds.take_lease(rid, at(99), **lease("t2")))


def test_only_the_holder_renews_releases_and_finishes(store: Store) -> None:
    session, opened = open_round(store, RoundState.AGGREGATING)
    rid = opened.id
    assert store.run_tx("take", lambda tx: tx.rounds.take_lease(rid, at(0), **lease("t1")))
    assert not store.run_tx("renew", lambda tx: tx.rounds.renew_lease(rid, "t2", at(99)))
    assert store.run_tx("renew", lambda tx: tx.rounds.renew_lease(rid, "t1", at(60)))
    held = store.read("get", lambda tx: tx.rounds.get_by_id(rid))
    of = (held.lease_token, held.lease_holder, held.lease_expires_at)
    assert of == ("t1", "worker-1", at(60))
    assert not store.run_tx("take", lambda tx: tx.rounds.take_lease(rid, at(59), **lease("t2")))
    assert not store.run_tx("release", lambda tx: tx.rounds.release_lease(rid, "t2"))
    assert store.run_tx("release", lambda tx: tx.rounds.release_lease(rid, "t1"))
    taken = store.run_tx("take", lambda tx: tx.rounds.take_lease(rid, at(1), **lease("t2")))
    assert taken == store.read("get", lambda tx: tx.rounds.get_by_id(rid))
    assert (taken.lease_token, taken.lease_holder, taken.attempts) == ("t2", "worker-1", 2)
    assert taken.lease_expires_at == at(30)

    def finish(token: str) -> bool:
        return store.run_tx("finish", lambda tx: tx.rounds.finish(rid, token, 1.5, {"shift": 0.5}))

    assert not finish("t1")
    assert finish("t2")
    assert not finish("t2")
    assert not store.run_tx("renew", lambda tx: tx.rounds.renew_lease(rid, "t2", at(99)))
    closed = store.read("get", lambda tx: tx.rounds.get(session.id, 1))
    done = {"closed_at": store.clock.now(), "aggregation_s": 1.5, "metrics": {"shift": 0.5}}
    assert closed == replace(opened, state=RoundState.CLOSED, attempts=2, **done)


def test_the_effort_is_of_the_rounds_answers_and_the_sessions_last_round_of_the_phase(
    store: Store,
) -> None:
    session, first = open_round(store, RoundState.AGGREGATING)

    def arrange(tx: Tx) -> WaitingRound:
        tx.rounds.take_lease(first.id, at(0), **lease("t"))
        tx.rounds.finish(first.id, "t", 1.5, {})
        second = tx.rounds.add(new_round(session, number=2), addressees())
        for site, payload in (("zurich", b"one"), ("cleveland", b"four")):
            tx.submissions.insert(submission(second, site, payload))
        return WaitingRound(second.id, session.id, second.phase, 0)

    waiting = store.run_tx("arrange", arrange)
    for asked, effort in (
        (waiting, (2, 16, 1.5)),
        (waiting._replace(phase="other"), (2, 16, None)),
        (waiting._replace(id=first.id), (0, 0, 1.5)),
    ):
        found = store.read("effort", lambda tx, asked=asked: tx.rounds.effort(asked))
        assert found == effort


def test_the_open_sessions_of_one_site_are_touched(store: Store) -> None:
    def arrange(tx: Tx) -> None:
        for name, site in (("mine", "zurich"), ("theirs", "basel"), ("past", "zurich")):
            session = add_session(tx, name)
            tx.participations.add(participation(session, site))
        tx.sessions.update(replace(session, state=SessionState.FAILED, ended_at=at(1)))

    store.run_tx("arrange", arrange)
    touched: list[tuple[str, int]] = []
    store.on_touch(lambda *each: touched.append(each))
    store.run_tx("touch", lambda tx: tx.sessions.touch_open("zurich"))
    assert touched == [("mine", 2)]


# ---------------------------------------------------------------------------- submissions


def test_a_site_that_is_not_addressed_has_no_submission(store: Store) -> None:
    _, opened = open_round(store)
    foreign = submission(opened, "basel", b"secret-bytes")
    with pytest.raises(StoreError) as caught:
        store.run_tx("insert", lambda tx: tx.submissions.insert(foreign))
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_scrubbing_forgets_payloads_and_states_and_keeps_receipts(store: Store) -> None:
    session, opened = open_round(store)
    other = store.run_tx("add", lambda tx: add_session(tx, "other"))
    theirs = store.run_tx("add", lambda tx: tx.rounds.add(new_round(other), addressees()))

    def arrange(tx: Tx) -> None:
        for site, payload in (("zurich", b"one"), ("cleveland", b"two"), ("budapest", None)):
            tx.submissions.insert(submission(opened, site, payload))
        tx.submissions.insert(submission(theirs, "zurich", b"theirs"))
        for owner in (session, other):
            tx.states.put(owner.id, 1, b"state")
        tx.results.put(session.id, b"result", b"provenance", at(9))
        tx.sessions.update(replace(session, state=SessionState.COMPLETED, ended_at=at(10)))

    store.run_tx("arrange", arrange)

    def waiting(before: datetime) -> list[str]:
        return [s.name for s in store.read("due", lambda tx: tx.sessions.to_scrub(before))]

    assert waiting(at(10)) == []
    assert waiting(at(11)) == ["heart"]
    before = store.read("list", lambda tx: tx.submissions.list(opened.id))
    assert store.run_tx("scrub", lambda tx: tx.submissions.scrub(session.id, at(12))) == 2
    assert waiting(at(11)) == []
    assert store.run_tx("scrub", lambda tx: tx.submissions.scrub(session.id, at(13))) == 0

    def look(tx: Tx) -> None:
        after = tx.submissions.list(opened.id)
        assert list(after) == [replace(s, payload=None) for s in before]
        assert latest_state(tx, session.id) is None
        assert tx.results.get(session.id) is not None
        kept = tx.submissions.get(theirs.id, "zurich")
        assert kept.payload == b"theirs"
        assert latest_state(tx, other.id) == b"state"
        # The row still stands in the way of a second answer.
        assert not tx.submissions.insert(submission(opened, "zurich", b"again"))

    store.run_tx("look", look)


# ------------------------------------------------------------- states, results, audit, time


def test_the_audit_trail_has_no_way_to_change_it(store: Store) -> None:
    public = store.read("dir", lambda tx: {n for n in dir(tx.audit) if not n.startswith("_")})
    assert public == {"append", "began", "count", "last", "list"}


def test_the_entries_of_a_transaction_are_written_in_order_in_one_statement(store: Store) -> None:
    def append(tx: Tx, *actions: str) -> None:
        for action in actions:
            tx.audit.append("site:zurich", action, "heart", {"why": action}, EPOCH)

    def fail(tx: Tx) -> None:
        append(tx, "lost")
        raise KeyError

    run: list[str] = []
    engine = store._engines.write
    event.listen(engine, "before_cursor_execute", lambda *given: run.append(given[2]))
    store.run_tx("append", lambda tx: append(tx, "first", "second", "third"))
    with pytest.raises(KeyError):
        store.run_tx("fail", fail)
    assert [each.partition(" (")[0] for each in run] == ["INSERT INTO audit"]
    found = store.read("list", lambda tx: tx.audit.list(9))
    assert [(each.action, each.details) for each in reversed(found)] == [
        (action, {"why": action}) for action in ("first", "second", "third")
    ]


def test_times_come_back_aware_in_utc_and_no_naive_one_is_written(store: Store) -> None:
    elsewhere = datetime(2026, 3, 29, 1, 30, 0, 123457, timezone(timedelta(hours=5, minutes=30)))
    session = store.run_tx("add", add_session)
    changed = replace(session, started_at=elsewhere)
    store.run_tx("update", lambda tx: tx.sessions.update(changed))
    found = store.read("get", lambda tx: tx.sessions.get("heart"))
    assert found.started_at == elsewhere
    assert found.started_at.utcoffset() == timedelta(0)
    naive = replace(session, started_at=EPOCH.replace(tzinfo=None))
    with pytest.raises(Exception, match="must be aware"):
        store.run_tx("update", lambda tx: tx.sessions.update(naive))
