"""Lists and filters: what they return over random rows, and the indexes that they read."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event

from fedclust_service.domain.access import AuditEntry, AuditSearch, Visible
from fedclust_service.domain.session import Session, SessionState
from fedclust_service.store import Store, Tx
from fedclust_service.store.overview import _select_refusals
from support.store_rows import SITES, add_session, add_study, at, participation

ACTORS = ("site:zurich", "site:basel", "analyst:ana", "system")
ACTIONS = ("round.closed", "round.overdue", "site.joined")
SUBJECTS = ("lungs", "heart", "heart_2", "site:basel", "%")
PARTS = ("heart", "SITE:", "a", "_", "%", "ound.", "nowhere", "\\")
PAGE = 7


def pages(read: Callable[[int | None], Sequence[Any]]) -> list[Any]:
    """Read a list page by page to its end."""
    found = list(read(None))
    while more := read(found[-1].id if found else None):
        found += more
        if len(more) < PAGE:
            break
    return found


def matches(entry: AuditEntry, search: AuditSearch) -> bool:
    texts = (entry.subject, entry.actor, entry.action)
    wanted = (search.subject, search.actor, search.action)
    return (
        all(value in (None, text) for text, value in zip(texts, wanted, strict=True))
        and (search.since is None or entry.at >= search.since)
        and (search.until is None or entry.at < search.until)
        and (not search.text or any(search.text.lower() in text for text in texts))
    )


def test_the_audit_trail_is_searched(store: Store) -> None:
    draw = random.Random(31)

    def write(tx: Tx) -> None:
        for number in range(80):
            # The clock steps back a few times.
            time = at(number - 25 * (number // 20) + draw.choice((0, 0.5)))
            who, did, what = draw.choice(ACTORS), draw.choice(ACTIONS), draw.choice(SUBJECTS)
            tx.audit.append(who, did, what, {"n": number}, time)

    def maybe(values: Sequence[Any]) -> Any:
        return draw.choice(values) if draw.random() < 0.3 else None

    def read(tx: Tx) -> None:
        entries = tx.audit.list(1000)
        assert [each.details["n"] for each in entries] == [*reversed(range(80))]
        times = [at(seconds) for seconds in (-1, 8, 16, 24, 120)]
        for _ in range(60):
            search = AuditSearch(
                *(maybe(SUBJECTS), maybe(ACTORS), maybe(ACTIONS)),
                *(maybe(times), maybe(times), maybe(PARTS)),
            )
            found = pages(lambda after, asked=search: tx.audit.list(PAGE, after, asked))
            assert found == [each for each in entries if matches(each, search)], search

    store.run_tx("append", write)
    store.read("search", read)


def test_sessions_are_filtered(store: Store) -> None:
    draw = random.Random(12)
    states, people, studies = [*SessionState], ("ana", "ben"), ("hearts", "lungs", None)
    rows: list[tuple[Session, list[str]]] = []

    def write(tx: Tx) -> None:
        for study in ("hearts", "lungs"):
            add_study(tx, study)
        for number in range(40):
            added = add_session(tx, f"s-{number}", draw.choice(people), draw.choice(studies))
            session = replace(added, state=draw.choice(states), version=added.version + 1)
            tx.sessions.update(session)
            sites = draw.sample(SITES, draw.randint(0, len(SITES)))
            for site in sites:
                tx.participations.add(participation(session, site))
            rows.insert(0, (session, sites))

    def read(tx: Tx) -> None:
        for state in (None, *states):
            for study in studies:
                for person in (None, *people):
                    for site in (None, *SITES, "nowhere"):
                        seen = Visible(person, site)
                        asked = {"state": state, "study": study, "seen": seen}
                        expected = [
                            each
                            for each, sites in rows
                            if state in (None, each.state)
                            and study in (None, each.study)
                            and person in (None, each.created_by)
                            and (site is None or site in sites)
                        ]
                        found = tx.sessions.list(limit=PAGE, **asked)
                        assert found == expected[:PAGE], asked
                        if len(found) == PAGE:
                            rest = tx.sessions.list(limit=50, after_id=found[-1].id, **asked)
                            assert rest == expected[PAGE:], asked

    store.run_tx("add", write)
    store.read("list", read)


def sessions(**asked: Any) -> Callable[[Tx], Any]:
    return lambda tx: tx.sessions.list(limit=PAGE, **asked)


def audit(**asked: Any) -> Callable[[Tx], Any]:
    return lambda tx: tx.audit.list(PAGE, search=AuditSearch(**asked))


RUNNING = SessionState.RUNNING
ZURICH = Visible(site="zurich")
PLANS = {
    "sessions": (sessions(), "sessions"),
    "state": (sessions(state=RUNNING), "ix_sessions_state_id"),
    "study": (sessions(study="hearts"), "ix_sessions_study_id"),
    "creator": (sessions(seen=Visible("ana")), "ix_sessions_created_by_id"),
    "site": (sessions(seen=ZURICH), "sessions"),
    "site and state": (
        sessions(seen=ZURICH, state=RUNNING),
        "ix_sessions_state_id",
    ),
    "site and study": (
        sessions(seen=ZURICH, study="hearts"),
        "ix_sessions_study_id",
    ),
    "studies": (lambda tx: tx.studies.list(limit=PAGE), "studies"),
    "creator's studies": (
        lambda tx: tx.studies.list(limit=PAGE, seen=Visible("ana")),
        "ix_studies_created_by_id",
    ),
    "to scrub": (lambda tx: tx.sessions.to_scrub(at(0)), "ix_sessions_not_scrubbed"),
    "entries": (audit(), "audit"),
    "subject": (audit(subject="heart"), "ix_audit_subject_id"),
    "actor": (audit(actor="system"), "ix_audit_actor_id"),
    "action": (audit(action="site.joined"), "ix_audit_action_id"),
    "actor and action": (audit(actor="system", action="site.joined"), "ix_audit_actor_action_id"),
    "subject and action": (audit(subject="heart", action="site.joined"), "ix_audit_subject_id"),
    "subject and actor": (audit(subject="heart", actor="system"), "ix_audit_subject_id"),
    "time": (audit(since=at(0), until=at(1)), "audit"),
    "part": (audit(text="heart"), "audit"),
    "count": (lambda tx: tx.audit.count("heart"), "ix_audit_subject_id"),
    "refusals": (lambda tx: tx.overview._all(_select_refusals([1])).all(), "ix_audit_subject_"),
    "last of": (lambda tx: tx.chain.last_of("heart", frozenset({"a", "b"})), "ix_audit_subject_"),
}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("read", "index"), PLANS.values(), ids=PLANS)
def test_each_list_reads_an_index_in_its_order(
    store: Store, read: Callable[[Tx], Any], index: str
) -> None:
    def explain(tx: Tx) -> list[str]:
        asked: list[tuple[str, Any]] = []
        connection = tx._connection

        def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
            asked.append((statement, parameters))

        event.listen(connection, "before_cursor_execute", note)
        read(tx)
        event.remove(connection, "before_cursor_execute", note)
        statement, parameters = asked[-1]
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        return [row.detail for row in plan]

    plan = store.read("explain", explain)
    # Without an index, a list is read in the order of its ids until the page is full.
    assert plan[0].startswith(f"SCAN {index}" if "ix_" not in index else "SEARCH "), plan
    assert index in plan[0]
    assert not [step for step in plan if "FOR ORDER BY" in step], plan
    assert not [step for step in plan[1:] if step.startswith("SCAN ") and "(" not in step], plan
