"""What every repository promises, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from fedclust_service.domain.access import Role, Token
from fedclust_service.domain.round import RoundState
from fedclust_service.domain.session import ParticipationState, SessionState
from fedclust_service.domain.site_table import SiteTable
from fedclust_service.store import (
    AlreadyExists,
    ConstraintViolated,
    Store,
    StoredResult,
    Tx,
)
from support.clock import ManualClock
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
    submission,
)

# ----------------------------------------------------------------------------- principals


def test_principals_are_addressed_by_role_and_name(store: Store, clock: ManualClock) -> None:
    clock.advance(60)

    def work(tx: Tx) -> None:
        site = tx.principals.add(Role.SITE, "zurich", "Zürich Hospital")
        analyst = tx.principals.add(Role.ANALYST, "zurich", "")
        assert site.id != analyst.id
        assert (site.title, site.disabled, site.last_seen_at) == ("Zürich Hospital", False, None)
        assert site.created_at == at(60)

    store.run_tx("add", work)
    site = store.read("get", lambda tx: tx.principals.get(Role.SITE, "zurich"))
    assert site is not None
    assert site.role is Role.SITE
    assert store.read("get", lambda tx: tx.principals.get(Role.OPERATOR, "zurich")) is None


def test_a_taken_name_is_refused_and_the_transaction_goes_on(store: Store) -> None:
    def work(tx: Tx) -> None:
        tx.principals.add(Role.SITE, "zurich", "first")
        with pytest.raises(AlreadyExists):
            tx.principals.add(Role.SITE, "zurich", "second")
        tx.principals.add(Role.SITE, "basel", "")

    store.run_tx("add", work)
    found = store.read("list", lambda tx: tx.principals.list(Role.SITE, 10))
    assert [(p.name, p.title) for p in found] == [("basel", ""), ("zurich", "first")]


def test_principals_page_in_the_order_of_bytes(store: Store) -> None:
    # A language-aware collation ignores the hyphen and puts a-z behind aa.
    names = ["a", "a-z", "a0", "aa", "b", "z-1", "z0", "zz"]

    def add(tx: Tx) -> None:
        for name in reversed(names):
            tx.principals.add(Role.SITE, name, "")
        tx.principals.add(Role.ANALYST, "ab", "")

    store.run_tx("add", add)
    assert names == sorted(names)
    pages: list[str] = []
    after: str | None = None
    while page := store.read("list", lambda tx, a=after: tx.principals.list(Role.SITE, 3, a)):
        pages += [principal.name for principal in page]
        after = pages[-1]
    assert pages == names


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
        with pytest.raises(AlreadyExists):
            tx.tokens.add(replace(old, secret_hmac="j" * 64))
        return old, new

    old, new = store.run_tx("add", work)
    assert store.read("list", lambda tx: tx.tokens.list_for(old.principal_id)) == [old, new]
    assert store.read("get", lambda tx: tx.tokens.get("t-none")) is None
    assert store.read("get", lambda tx: tx.tokens.with_owner("t-none")) is None
    found = store.read("get", lambda tx: tx.tokens.with_owner("t-old"))
    assert found is not None
    assert found[0] == old
    assert (found[1].id, found[1].name, found[1].role) == (old.principal_id, "zurich", Role.SITE)

    assert store.run_tx("revoke", lambda tx: tx.tokens.revoke("t-old", at(7)))
    assert not store.run_tx("revoke", lambda tx: tx.tokens.revoke("t-old", at(8)))
    assert not store.run_tx("revoke", lambda tx: tx.tokens.revoke("t-none", at(8)))
    store.run_tx("touch", lambda tx: tx.tokens.touch_used("t-new", at(9)))
    store.run_tx("touch", lambda tx: tx.tokens.touch_used("t-new", at(8)))
    assert store.read("get", lambda tx: tx.tokens.get("t-old")) == replace(old, revoked_at=at(7))
    assert store.read("get", lambda tx: tx.tokens.get("t-new")) == replace(new, last_used_at=at(9))


def test_a_token_needs_its_principal(store: Store) -> None:
    orphan = Token("t", 999, "h", EPOCH, at(1))
    with pytest.raises(ConstraintViolated, match=r"(?i)foreign key|fk_tokens_principal_id"):
        store.run_tx("add", lambda tx: tx.tokens.add(orphan))


# ------------------------------------------------------------------------------- sessions


def test_a_session_comes_back_as_it_was_stored(store: Store) -> None:
    session = store.run_tx("add", add_session)
    assert session.state is SessionState.RECRUITING
    assert session.version == 1
    assert session.definition == b'{"name":"heart"}'
    assert session.created_at == EPOCH
    for found in (
        store.read("get", lambda tx: tx.sessions.get("heart")),
        store.read("get", lambda tx: tx.sessions.get_by_id(session.id)),
        store.run_tx("lock", lambda tx: tx.sessions.lock("heart")),
        store.run_tx("lock", lambda tx: tx.sessions.lock_by_id(session.id)),
    ):
        assert found == session
    assert store.run_tx("lock", lambda tx: tx.sessions.lock("none")) is None
    assert store.run_tx("lock", lambda tx: tx.sessions.lock_by_id(10**12)) is None
    with pytest.raises(AlreadyExists):
        store.run_tx("add", lambda tx: add_session(tx, created_by="bob"))


def test_update_writes_states_and_reasons_but_no_version(store: Store) -> None:
    session = store.run_tx("add", add_session)
    changed = replace(
        session,
        state=SessionState.FAILED,
        started_at=at(1),
        ended_at=at(2),
        stopped_because="max_rounds",
        failure="too_few_contributors",
        version=99,
        name="ignored",
    )
    store.run_tx("update", lambda tx: tx.sessions.update(changed))
    found = store.read("get", lambda tx: tx.sessions.get("heart"))
    assert found == replace(changed, version=1, name="heart")


def test_touch_counts_and_is_seen_in_its_own_transaction(store: Store) -> None:
    session = store.run_tx("add", add_session)

    def work(tx: Tx) -> list[int]:
        first, second = tx.sessions.touch(session.id), tx.sessions.touch(session.id)
        found = tx.sessions.get("heart")
        assert found is not None
        assert tx.touched == [("heart", 3)]
        return [first, second, found.version]

    assert store.run_tx("touch", work) == [2, 3, 3]
    with pytest.raises(KeyError):
        store.run_tx("touch", lambda tx: tx.sessions.touch(10**12))


def test_sessions_that_have_not_ended(store: Store) -> None:
    def arrange(tx: Tx) -> None:
        for state in SessionState:
            tx.sessions.update(replace(add_session(tx, state.value), state=state))

    store.run_tx("arrange", arrange)
    going_on = store.read("going_on", lambda tx: tx.sessions.not_ended())
    assert [each.name for each in going_on] == [each for each in SessionState if not each.ended]


def test_participations(store: Store) -> None:
    def work(tx: Tx) -> None:
        session, other = add_session(tx), add_session(tx, "other")
        for site in reversed(SITES):
            tx.participations.add(participation(session, site))
        tx.participations.add(participation(other, "zurich"))
        with pytest.raises(AlreadyExists):
            tx.participations.add(participation(session, "zurich"))
        joined = replace(
            participation(session, "zurich"),
            state=ParticipationState.JOINED,
            definition_sha256="d" * 64,
            two_sites_with="budapest",
            protection_none=True,
            features=("chol", "age", "Größe"),
            min_group_size=2**40,
            size_band="200-999",
            table_id="0" * 32,
            separate_groups=True,
            sdk_version="0.1.0",
            joined_at=at(1),
            left_at=at(2),
        )
        tx.participations.update(joined)
        assert tx.participations.get(session.id, "zurich") == joined
        assert tx.participations.get(session.id, "basel") is None
        listed = tx.participations.list(session.id)
        assert [p.site for p in listed] == list(SITES)
        assert listed[2] == joined
        assert tx.participations.get(other.id, "zurich") == participation(other, "zurich")

    store.run_tx("work", work)


def test_what_was_accepted_of_a_table_is_replaced(store: Store) -> None:
    first, second = (SiteTable("zurich", each * 32, 2**40, "a" * 16, at(1)) for each in "01")
    moved = replace(first, number=2, head="b" * 16, accepted_at=at(2))

    def work(tx: Tx) -> None:
        assert not tx.site_tables.any("zurich")
        for each in (second, first, moved):
            tx.site_tables.put(each)
        assert tx.site_tables.any("zurich")
        assert not tx.site_tables.any("basel")
        assert tx.site_tables.get("zurich", "0" * 32) == moved
        assert tx.site_tables.get("basel", "0" * 32) is None
        assert tx.site_tables.list("zurich", 5) == [moved, second]
        assert tx.site_tables.list("zurich", 1) == [moved]
        assert tx.site_tables.list("zurich", 5, "0" * 32) == [second]
        assert tx.site_tables.list("basel", 5) == []

    store.run_tx("work", work)


# --------------------------------------------------------------------------------- rounds


def test_a_round_and_its_addressees(store: Store) -> None:
    session, opened = open_round(store)
    assert opened == replace(new_round(session), id=opened.id)

    def read(tx: Tx) -> None:
        assert tx.rounds.get(session.id, 1) == opened
        assert tx.rounds.get_by_id(opened.id) == opened
        assert tx.rounds.get(session.id, 2) is None
        assert tx.rounds.get_by_id(10**12) is None
        found = tx.rounds.addressees(opened.id)
        assert [addressee.site for addressee in found] == list(SITES)
        assert {addressee.round_id for addressee in found} == {opened.id}
        assert found[2].site_part == b"part of zurich"
        assert not found[2].released

    store.read("read", read)


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
        assert tx.site_views.by_name(session.name, "basel", 1) == (
            stored,
            None,
            (first, None, None),
        )
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


def test_a_round_number_is_given_once(store: Store) -> None:
    session, _ = open_round(store)
    with pytest.raises(AlreadyExists):
        store.run_tx("add", lambda tx: tx.rounds.add(new_round(session), addressees()))
    store.run_tx("add", lambda tx: tx.rounds.add(new_round(session, 2), addressees(["zurich"])))
    latest = store.read("latest", lambda tx: tx.rounds.latest(session.id))
    assert latest is not None
    assert latest.number == 2
    assert store.read("latest", lambda tx: tx.rounds.latest(10**12)) is None


def test_rounds_are_listed_by_number_without_their_tasks(store: Store) -> None:
    session = store.run_tx("add", add_session)

    def add(tx: Tx) -> None:
        for number in (3, 1, 2):
            tx.rounds.add(new_round(session, number), [])

    store.run_tx("add", add)
    first = store.read("list", lambda tx: tx.rounds.list(session.id, 2))
    rest = store.read("list", lambda tx: tx.rounds.list(session.id, 2, after=2))
    assert [r.number for r in [*first, *rest]] == [1, 2, 3]
    assert {r.common for r in [*first, *rest]} == {b""}
    numbers = store.read("numbers", lambda tx: tx.rounds.numbers(session.id))
    assert numbers == {r.id: r.number for r in [*first, *rest]}


def test_release_works_once(store: Store) -> None:
    _, opened = open_round(store)
    assert store.run_tx("release", lambda tx: tx.rounds.release(opened.id, "zurich"))
    assert not store.run_tx("release", lambda tx: tx.rounds.release(opened.id, "zurich"))
    assert not store.run_tx("release", lambda tx: tx.rounds.release(opened.id, "basel"))
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
        return [r.number for r in store.read("due", lambda tx: tx.rounds.due(now))]

    assert due(at(9.999999)) == []
    assert due(at(10)) == [4]
    assert due(at(20)) == [4, 3]
    # A round that is marked overdue is looked at again, wherever its deadline has moved to.
    last = store.read("get", lambda tx: tx.rounds.get(session.id, 5))
    assert last is not None
    store.run_tx("overdue", lambda tx: tx.rounds.set_overdue(last.id, at(5)))
    assert due(at(9)) == [5]
    aggregating = store.read("aggregating", lambda tx: tx.rounds.aggregating())
    assert [r.number for r in aggregating] == [1]


def test_deadline_and_overdue_mark_change_only_while_collecting(store: Store) -> None:
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
    assert not store.run_tx("deadline", lambda tx: tx.rounds.set_deadline(opened.id, at(5)))
    assert not store.run_tx("overdue", lambda tx: tx.rounds.set_overdue(opened.id, at(5)))


def test_a_transition_needs_the_state_it_starts_from(store: Store) -> None:
    session, opened = open_round(store)
    back = (opened.id, RoundState.AGGREGATING, RoundState.CLOSED)
    assert not store.run_tx("move", lambda tx: tx.rounds.transition(*back))

    def fail(tx: Tx) -> bool:
        return tx.rounds.transition(
            opened.id,
            RoundState.COLLECTING,
            RoundState.FAILED,
            closed_at=at(4),
            close_reason="too_few_contributors",
            overdue_since=None,
            metrics={"inertia": 1.5},
            aggregation_s=0.25,
        )

    assert store.run_tx("move", fail)
    assert not store.run_tx("move", fail)
    assert store.read("get", lambda tx: tx.rounds.get(session.id, 1)) == replace(
        opened,
        state=RoundState.FAILED,
        closed_at=at(4),
        close_reason="too_few_contributors",
        metrics={"inertia": 1.5},
        aggregation_s=0.25,
    )


def test_a_lease_is_given_for_aggregating_rounds_only(store: Store) -> None:
    _, opened = open_round(store)
    assert not store.run_tx("take", lambda tx: tx.rounds.take_lease(opened.id, lease(), at(0)))


def test_a_lease_is_held_until_it_expires_and_each_taking_counts(store: Store) -> None:
    session, opened = open_round(store, RoundState.AGGREGATING)

    def take(token: str, now: datetime) -> bool:
        wanted = lease(token, expires_at=now + timedelta(seconds=30))
        return store.run_tx("take", lambda tx: tx.rounds.take_lease(opened.id, wanted, now))

    def state() -> tuple[str | None, int]:
        found = store.read("get", lambda tx: tx.rounds.get(session.id, 1))
        assert found is not None
        return (found.lease.token if found.lease else None), found.attempts

    assert take("t1", at(0))
    assert not take("t2", at(29.999999))
    assert state() == ("t1", 1)
    assert take("t2", at(30))
    assert state() == ("t2", 2)


def test_only_the_holder_renews_releases_and_finishes(store: Store) -> None:
    session, opened = open_round(store, RoundState.AGGREGATING)
    rid = opened.id
    assert store.run_tx("take", lambda tx: tx.rounds.take_lease(rid, lease("t1"), at(0)))
    assert not store.run_tx("renew", lambda tx: tx.rounds.renew_lease(rid, "t2", at(99)))
    assert store.run_tx("renew", lambda tx: tx.rounds.renew_lease(rid, "t1", at(60)))
    held = store.read("get", lambda tx: tx.rounds.get_by_id(rid))
    assert held is not None
    assert held.lease == lease("t1", expires_at=at(60))
    assert not store.run_tx("take", lambda tx: tx.rounds.take_lease(rid, lease("t2"), at(59)))
    assert not store.run_tx("release", lambda tx: tx.rounds.release_lease(rid, "t2"))
    assert store.run_tx("release", lambda tx: tx.rounds.release_lease(rid, "t1"))
    assert store.run_tx("take", lambda tx: tx.rounds.take_lease(rid, lease("t2"), at(1)))

    def finish(token: str) -> bool:
        return store.run_tx(
            "finish",
            lambda tx: tx.rounds.finish(
                rid, token, RoundState.CLOSED, closed_at=at(5), close_reason="all_answered"
            ),
        )

    assert not finish("t1")
    assert finish("t2")
    assert not finish("t2")
    assert not store.run_tx("renew", lambda tx: tx.rounds.renew_lease(rid, "t2", at(99)))
    closed = store.read("get", lambda tx: tx.rounds.get(session.id, 1))
    assert closed == replace(
        opened,
        state=RoundState.CLOSED,
        closed_at=at(5),
        close_reason="all_answered",
        attempts=2,
    )


def test_a_transition_out_of_aggregating_drops_the_lease(store: Store) -> None:
    _, opened = open_round(store, RoundState.AGGREGATING)
    rid = opened.id
    store.run_tx("take", lambda tx: tx.rounds.take_lease(rid, lease("t1"), at(0)))
    move = (rid, RoundState.AGGREGATING, RoundState.FAILED)
    assert store.run_tx("move", lambda tx: tx.rounds.transition(*move))
    assert not store.run_tx("finish", lambda tx: tx.rounds.finish(rid, "t1", RoundState.CLOSED))
    found = store.read("get", lambda tx: tx.rounds.get_by_id(rid))
    assert found is not None
    assert (found.state, found.lease) == (RoundState.FAILED, None)


# ---------------------------------------------------------------------------- submissions


def test_one_submission_a_round_and_site(store: Store) -> None:
    session, opened = open_round(store)
    first = submission(opened, "zurich", b"\x00\xff first")
    assert store.run_tx("insert", lambda tx: tx.submissions.insert(first))
    second = replace(first, payload=b"second", sha256="9" * 64)

    def again(tx: Tx) -> bool:
        inserted = tx.submissions.insert(second)
        tx.sessions.touch(session.id)
        return inserted

    assert not store.run_tx("insert", again)
    assert store.read("get", lambda tx: tx.submissions.get(opened.id, "zurich")) == first
    assert store.read("get", lambda tx: tx.submissions.get(opened.id, "basel")) is None


def test_submissions_are_listed_by_site_whatever_their_order(store: Store) -> None:
    session, opened = open_round(store)
    arrived = ["zurich", "budapest", "cleveland"]
    for site in arrived:
        payload = None if site == "budapest" else site.encode()
        new = submission(opened, site, payload)
        store.run_tx("insert", lambda tx, new=new: tx.submissions.insert(new))
    listed = store.read("list", lambda tx: tx.submissions.list(opened.id))
    assert [(s.site, s.empty, s.payload) for s in listed] == [
        ("budapest", True, None),
        ("cleveland", False, b"cleveland"),
        ("zurich", False, b"zurich"),
    ]
    stripped = [replace(s, payload=None) for s in listed]
    for filters in (
        {"session_id": session.id},
        {"round_id": opened.id},
        {"session_id": session.id, "round_id": opened.id},
    ):
        assert store.read("s", lambda tx, f=filters: tx.submissions.summaries(**f)) == stripped
    assert store.read("s", lambda tx: tx.submissions.summaries(round_id=10**12)) == []
    with pytest.raises(ValueError, match="session or of a round"):
        store.read("s", lambda tx: tx.submissions.summaries())


def test_a_site_that_is_not_addressed_has_no_submission(store: Store) -> None:
    _, opened = open_round(store)
    foreign = submission(opened, "basel", b"secret-bytes")
    with pytest.raises(ConstraintViolated) as caught:
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
        assert kept is not None
        assert kept.payload == b"theirs"
        assert latest_state(tx, other.id) == b"state"
        # The row still stands in the way of a second answer.
        assert not tx.submissions.insert(submission(opened, "zurich", b"again"))

    store.run_tx("look", look)


# ------------------------------------------------------------- states, results, audit, time


def test_states_and_results_are_written_once(store: Store) -> None:
    session = store.run_tx("add", add_session)

    def work(tx: Tx) -> None:
        assert latest_state(tx, session.id) is None
        assert tx.results.get(session.id) is None
        for number in (2, 10, 1):
            tx.states.put(session.id, number, f"state {number}".encode())
        with pytest.raises(AlreadyExists):
            tx.states.put(session.id, 10, b"other")
        assert [tx.states.get(session.id, n) for n in (2, 10)] == [b"state 2", b"state 10"]
        assert tx.states.get(session.id, 3) is None
        tx.results.put(session.id, b"result", b"provenance", at(3))
        with pytest.raises(AlreadyExists):
            tx.results.put(session.id, b"other", b"", at(4))
        expected = StoredResult(session.id, b"result", b"provenance", at(3))
        assert tx.results.get(session.id) == expected

    store.run_tx("work", work)


def test_audit_is_read_newest_first(store: Store) -> None:
    details = {"round": 3, "share": 0.5, "late": True, "why": None, "name": "Zürich"}

    def work(tx: Tx) -> None:
        for number in range(5):
            tx.audit.append("analyst:ana", f"did-{number}", "heart", details, at(number))

    store.run_tx("append", work)
    first = store.read("list", lambda tx: tx.audit.list(2))
    rest = store.read("list", lambda tx: tx.audit.list(10, after=first[-1].id))
    assert [e.action for e in [*first, *rest]] == ["did-4", "did-3", "did-2", "did-1", "did-0"]
    assert first[0].details == details
    assert (first[0].actor, first[0].at) == ("analyst:ana", at(4))


def test_the_audit_trail_has_no_way_to_change_it(store: Store) -> None:
    public = store.read("dir", lambda tx: {n for n in dir(tx.audit) if not n.startswith("_")})
    assert public == {"append", "began", "list"}


def test_times_come_back_aware_in_utc_to_the_microsecond(store: Store) -> None:
    elsewhere = datetime(2026, 3, 29, 1, 30, 0, 123457, timezone(timedelta(hours=5, minutes=30)))
    session = store.run_tx("add", add_session)
    changed = replace(session, started_at=elsewhere)
    store.run_tx("update", lambda tx: tx.sessions.update(changed))
    found = store.read("get", lambda tx: tx.sessions.get("heart"))
    assert found is not None
    assert found.started_at == elsewhere
    assert found.started_at.utcoffset() == timedelta(0)


def test_a_naive_time_is_refused(store: Store) -> None:
    session = store.run_tx("add", add_session)
    naive = replace(session, started_at=EPOCH.replace(tzinfo=None))
    with pytest.raises(Exception, match="must be aware"):
        store.run_tx("update", lambda tx: tx.sessions.update(naive))


def test_long_values_survive(store: Store) -> None:
    _, opened = open_round(store)
    payload = bytes(range(256)) * 16 * 1024
    new = submission(opened, "zurich", payload)
    store.run_tx("insert", lambda tx: tx.submissions.insert(new))
    found = store.read("get", lambda tx: tx.submissions.get(opened.id, "zurich"))
    assert found is not None
    assert found.payload == payload
