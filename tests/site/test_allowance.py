"""The allowance of points: one sum for each set of persons, whatever coordinator or session."""

import itertools
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedclust import errors
from fedclust.protection.cohort import Cohort
from fedclust.protection.recognition import PersonSource
from fedclust.site.allowance import (
    ALLOWANCE,
    Allowance,
    Question,
    allowance_of,
    charge_key,
    points_of,
)
from fedclust.site.backup import back_up, restore, verify_state
from fedclust.site.charges import Charges
from fedclust.site.cohorts import OUTCOMES, CohortRecord, CohortStore, Overtaken, table_heads
from fedclust.site.journal import Journal, SessionRecord, WrittenAnswer
from fedclust.site.state import SiteState
from fedclust.wire.models import Participation, SiteTableInfo
from support.cohorts import persons, sources_of
from support.crashes import each_moment

NOW = datetime(2026, 3, 1, tzinfo=UTC)
FIRST, SECOND = "https://first.example", "https://second.example"
SHA = "a" * 64


def question(session: str = "heart", points: int = 10, where: str = FIRST, **more: Any) -> Question:
    outcomes = more.pop("outcomes", {"died": points})
    return Question(where, "me", session, SHA, outcomes, more.pop("columns", ("dead_30",)))


class Hospital:
    """A site's state with tables of made-up persons."""

    def __init__(self, directory: Path) -> None:
        self.state = SiteState(directory)
        self.store, self.charges = CohortStore(self.state), Charges(self.state)

    def update(
        self, n: int = 60, first: int = 0, names: tuple[str, ...] = ("x0", "x1"), **options: Any
    ) -> Cohort:
        """Bring the table of ``n`` persons up to date."""
        people = persons(120, 4, first=first)
        rows, ids = [row[: len(names)] for row in people.values()][:n], list(people)[:n]
        source = PersonSource(
            lambda: [(ids, sources_of(rows, names))], dict.fromkeys(names, "number")
        )
        return self.store.keep(self.store.draft(source, p=5, now=NOW, **options))

    def other_table(self, first: int = 500, **options: Any) -> str:
        return self.update(first=first, other_persons="board 7", **options).table_id

    def charge(self, table: str, asked: Question) -> bool:
        try:
            self.charges.charge(table, asked, NOW)
        except Overtaken:
            return False
        return True

    def of(self, table: str) -> Allowance:
        return self.charges.allowances()[table]

    def left(self, table: str) -> int:
        return self.of(table).left

    def history(self, table: str) -> Any:
        return self.store.records()[table].history

    def acts(self, table: str) -> list[str]:
        return [line["what"] for line in self.history(table)]

    def join(self, asked: Question, table: str | None = None) -> Journal:
        """Store the record of joining, as a session does."""
        names = (asked.coordinator, asked.site, asked.session, asked.definition_sha256)
        journal = Journal(self.state, *names)
        data = {"features": ("x0",), "size_band": "50-199", "table_id": table}
        sdk = {"sdk_version": "0", "methods": {}, "engine": ()}
        declared = Participation(definition_sha256=SHA, **data, **sdk)
        journal.write_record(SessionRecord(consented_at=NOW, participation=declared, within=()))
        return journal

    def draw(self, table: str, asked: Question) -> None:
        """Do what the round of the outcomes does: ask, draw, and store the answer, all in one."""
        journal = self.join(asked, table)
        with self.state.write():
            self.charges.require(table, asked.key)
            journal.commit(
                WrittenAnswer(
                    coordinator=asked.coordinator,
                    site=asked.site,
                    session=asked.session,
                    round=max(journal.answers, default=0) + 1,
                    phase=OUTCOMES,
                    task_digest=SHA,
                    media="",
                    body=b"noise",
                    fields={},
                    smallest_count=None,
                    data_digest=SHA,
                    written_at=NOW,
                    memory={},
                )
            )


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    return Hospital(tmp_path / "state")


@pytest.fixture
def table(hospital: Hospital) -> str:
    return hospital.update().table_id


# --- one sum --------------------------------------------------------------------------------------


def test_what_a_site_has_of_the_outcomes_costs_their_points() -> None:
    outcomes = [SimpleNamespace(name=n, points=p) for n, p in (("died", 10), ("cost", 50))]
    assert points_of(outcomes, ["age", "cost", "died"]) == {"died": 10, "cost": 50}
    assert points_of(outcomes, ["age", "died"]) == {"died": 10}
    assert points_of((), ["age"]) == {}


def test_the_101st_point_is_refused_whatever_is_asked_and_by_whom(
    hospital: Hospital, table: str
) -> None:
    for place, (where, points) in enumerate([(FIRST, 60), (SECOND, 30), (FIRST, 10)]):
        assert hospital.charge(table, question(f"s{place}", points, where))
    assert hospital.left(table) == 0
    for where, column in itertools.product((FIRST, SECOND), ("dead_30", "new")):
        more = question("more", 1, where, outcomes={column: 1}, columns=(column,))
        assert not hospital.charge(table, more)
        assert not hospital.charges.balance(table, hospital.history(table), more).covers
    # Newcomers and new columns bring none.
    hospital.update(90, names=("x0", "x1", "x2"))
    assert not hospital.charge(table, question("more", 1))
    assert hospital.acts(table).count("charged") == 3


def test_each_act_is_a_change_with_its_own_head_and_line(hospital: Hospital, table: str) -> None:
    hospital.charge(table, question())
    hospital.charges.give_back(question().key, NOW, ended=False)
    hospital.charges.raise_limit(table[:6], 50, "Dr Levi", NOW)

    history = hospital.history(table)

    assert hospital.acts(table) == ["created", "charged", "returned", "raised"]
    assert len({line["random"] for line in history}) == 4
    assert hospital.store.heads(table).last == 4
    assert hospital.store.heads(table) == table_heads(history)
    assert verify_state(hospital.state).lines == 4
    assert (hospital.of(table).limit, hospital.left(table)) == (150, 150)


def test_an_attempt_with_other_columns_replaces_the_charge(hospital: Hospital, table: str) -> None:
    hospital.charge(table, question("heart", 60))
    both = question("heart", outcomes={"died": 60, "cost": 40}, columns=("cost", "dead_30"))
    assert hospital.charges.balance(table, hospital.history(table), both).covers
    assert hospital.charge(table, both)
    assert hospital.left(table) == 0
    too_many = question("heart", outcomes={"died": 60, "cost": 41}, columns=("cost", "dead_30"))
    assert not hospital.charges.balance(table, hospital.history(table), too_many).covers


# --- giving back ----------------------------------------------------------------------------------


def test_what_was_drawn_is_never_given_back(hospital: Hospital, table: str) -> None:
    asked = question("heart", 60)
    hospital.charge(table, asked)
    hospital.draw(table, asked)
    assert hospital.charges.open_charges(FIRST) == []
    for ended in (False, True):
        assert hospital.charges.give_back(asked.key, NOW, ended=ended) == 0
    other = question("heart", outcomes={"cost": 10}, columns=("cost",))
    assert hospital.charge(table, other)
    assert hospital.left(table) == 40
    assert hospital.acts(table) == ["created", "charged"]


# --- several tables -------------------------------------------------------------------------------


def test_further_tables_share_the_points_unless_their_approver_says_otherwise(
    hospital: Hospital, table: str
) -> None:
    hospital.charge(table, question("s1", 30))
    shared = hospital.other_table(500)
    own = hospital.other_table(900, no_person_in_another_table=True)
    assert [hospital.left(each) for each in (table, shared, own)] == [70, 70, 100]
    hospital.charge(shared, question("s2", 50))
    hospital.charge(own, question("s3", 90))
    assert [hospital.left(each) for each in (table, shared, own)] == [20, 20, 10]
    for each in (table, shared):
        assert not hospital.charge(each, question("s4", 21))
    for where, asked in ((table, "s1"), (shared, "s2"), (own, "s3")):
        hospital.draw(where, question(asked, {"s1": 30, "s2": 50, "s3": 90}[asked]))
    # A later one shares with all, and the fuller counter decides.
    last = hospital.other_table(1300)
    assert hospital.left(last) == 10
    assert not hospital.charge(last, question("s5", 11))
    assert hospital.charge(last, question("s5", 10))
    assert [hospital.left(each) for each in (table, shared, own, last)] == [10, 10, 0, 0]
    hospital.charges.give_back(question("s5").key, NOW, ended=True)
    assert [hospital.left(each) for each in (table, shared, own, last)] == [20, 20, 10, 10]


def test_what_a_new_table_shares_comes_back_to_it_too(hospital: Hospital, table: str) -> None:
    hospital.charge(table, question("drawn", 30))
    hospital.draw(table, question("drawn", 30))
    hospital.charge(table, question("open", 60, columns=("cost",)))
    second = hospital.other_table()
    (first_line,) = hospital.history(second)
    assert (first_line["spent"], [each["points"] for each in first_line["charges"]]) == (30, [60])
    assert [hospital.left(each) for each in (table, second)] == [10, 10]
    # The session itself needs no further points, whichever table answers it.
    for each in (table, second):
        assert hospital.charge(each, question("open", 60, columns=("cost",)))
    assert len(hospital.history(second)) == 1
    with pytest.raises(errors.PersonsRefused, match="fedclust allowance role cost"):
        hospital.update(names=("x0", "cost"), first=500, table=second)

    hospital.charges.give_back(question("open").key, NOW, ended=True)

    assert [hospital.left(each) for each in (table, second)] == [70, 70]
    hospital.update(names=("x0", "cost"), first=500, table=second)
    for each in (table, second):
        assert not hospital.charge(each, question("open", 60, columns=("cost",)))


def test_a_second_grouping_of_the_same_persons_has_no_points_of_its_own(
    hospital: Hospital, table: str
) -> None:
    hospital.charge(table, question("s1", 100))
    second = hospital.update(separate="board 9").table_id
    assert second != table
    assert hospital.left(second) == 0
    with pytest.raises(errors.PersonsRefused, match="fedclust allowance role dead_30"):
        hospital.update(names=("x0", "x1", "dead_30"), table=second)


def test_an_attempt_with_another_table_moves_the_charge(hospital: Hospital, table: str) -> None:
    own = hospital.other_table(900, no_person_in_another_table=True)
    asked = question("heart", 60)
    hospital.charge(table, asked)
    assert hospital.charge(own, asked)
    assert [hospital.left(each) for each in (table, own)] == [100, 40]
    hospital.draw(own, asked)
    with pytest.raises(errors.StateError, match="another table"):
        hospital.charge(table, asked)


def test_raising_opens_points_on_all_tables_of_the_counter(hospital: Hospital, table: str) -> None:
    shared = hospital.other_table(500)
    own = hospital.other_table(900, no_person_in_another_table=True)
    found = hospital.charges.raise_limit(shared, 50, "Dr Levi", NOW)
    assert {name: each.limit for name, each in found.items()} == {table: 150, shared: 150}
    assert hospital.of(own).limit == 100
    for start, points in (("", 5), ("xyz", 5), (table, 0), (table, 1001)):
        with pytest.raises(errors.UsageError):
            hospital.charges.raise_limit(start, points, "Dr Levi", NOW)


# --- roles ----------------------------------------------------------------------------------------


def test_an_outcome_becomes_no_feature_without_the_stewards_act(
    hospital: Hospital, table: str
) -> None:
    hospital.charge(table, question(columns=("dead_30",)))
    with pytest.raises(errors.PersonsRefused, match="fedclust allowance role dead_30") as refused:
        hospital.update(names=("x0", "x1", "dead_30"))
    assert refused.value.rule == "outcome-role"
    with pytest.raises(errors.UsageError, match="no table"):
        hospital.charges.release_role("x0", "Dr Levi", NOW)
    assert hospital.charges.release_role("dead_30", "Dr Levi", NOW) == [table]
    hospital.update(names=("x0", "x1", "dead_30"))
    assert hospital.acts(table) == ["created", "charged", "role", "updated"]


def test_a_feature_may_be_an_outcome_and_an_unanswered_outcome_a_feature(
    hospital: Hospital, table: str
) -> None:
    hospital.charge(table, question("s1", columns=("x0",)))
    hospital.charge(table, question("s2", columns=("dead_30",)))
    hospital.charges.give_back(question("s2").key, NOW, ended=True)
    hospital.update(names=("x0", "x1", "dead_30"))


# --- a state that lacks changes -------------------------------------------------------------------


def stored_at(hospital: Hospital, table: str) -> dict[str, SiteTableInfo]:
    """Return what a coordinator that was joined now has accepted of a table."""
    heads = hospital.store.heads(table)
    info = SiteTableInfo(table_id=table, number=heads.last, head=heads.heads[-1], accepted_at=NOW)
    return {table: info}


@pytest.fixture
def restored(hospital: Hospital, tmp_path: Path) -> Any:
    """Return a function that backs up, does something, and restores the backup."""

    def run(meanwhile: Callable[[], object]) -> Hospital:
        back_up(hospital.state, tmp_path / "backup.sqlite3")
        meanwhile()
        hospital.state.directory.rename(tmp_path / "lost")
        restore(hospital.state, tmp_path / "backup.sqlite3", NOW)
        return Hospital(hospital.state.directory)

    return run


def test_a_restored_state_has_no_points_until_every_coordinator_confirms(
    hospital: Hospital, table: str, restored: Any
) -> None:
    known = {}
    for where in (FIRST, SECOND):
        asked = question("s1", 10, where)
        hospital.charge(table, asked)
        hospital.join(asked, table)
        known[where] = stored_at(hospital, table)

    now = restored(lambda: None)

    assert now.left(table) == 0
    assert now.charges.doubted_at(FIRST) == {"me"}
    assert not now.charge(table, question("s2", 1))
    now.charges.confirm((FIRST, "me"), known[FIRST], NOW)
    assert now.left(table) == 0, "one confirmation says nothing about the others"
    now.charges.confirm((SECOND, "somebody"), known[SECOND], NOW)
    assert now.left(table) == 0
    now.charges.confirm((SECOND, "me"), known[SECOND], NOW)
    assert now.left(table) == 80
    # Noise may have been drawn for them after the backup.
    for where in (FIRST, SECOND):
        with pytest.raises(errors.StateError, match="restored"):
            now.draw(table, question("s1", 10, where))
        assert now.charges.give_back(question("s1", 10, where).key, NOW, ended=True) == 0
    assert verify_state(now.state).tables == 1


def test_a_restored_state_that_lacks_a_charge_is_not_confirmed(
    hospital: Hospital, table: str, restored: Any
) -> None:
    hospital.join(question("s1", 10))
    known = {}

    def meanwhile() -> None:
        hospital.charge(table, question("s2", 90))
        known.update(stored_at(hospital, table))

    now = restored(meanwhile)
    # The line about the restoring has the place of the charge that is lost.
    now.charges.confirm((FIRST, "me"), known, NOW)
    assert now.left(table) == 0
    now.charges.lose(table, NOW)
    now.charges.confirm((FIRST, "me"), {}, NOW)
    assert now.left(table) == 0
    now.charges.raise_limit(table, 20, "Dr Levi", NOW)
    assert now.left(table) == 20
    assert now.charge(table, question("s3", 20))
    assert not now.charge(table, question("s4", 1))


def test_a_coordinator_that_never_saw_the_table_knows_no_charge(
    hospital: Hospital, table: str, restored: Any
) -> None:
    hospital.join(question("s1", 10))
    now = restored(lambda: None)
    now.charges.confirm((FIRST, "me"), {}, NOW)
    assert now.left(table) == ALLOWANCE


def test_a_restored_state_that_never_joined_keeps_its_points(
    hospital: Hospital, table: str, restored: Any
) -> None:
    assert restored(lambda: None).left(table) == ALLOWANCE


def test_points_of_a_charge_without_a_coordinator_to_ask_come_back_by_approval(
    hospital: Hospital, table: str, restored: Any
) -> None:
    hospital.charge(table, question("s1", 10, where="flower"))
    now = restored(lambda: None)
    assert now.left(table) == 0
    now.charges.raise_limit(table, 30, "Dr Levi", NOW)
    assert now.left(table) == 30


def test_a_state_that_a_coordinator_refused_has_lost_all_points(
    hospital: Hospital, table: str
) -> None:
    asked = question("s1", 10)
    hospital.charge(table, asked)
    hospital.charges.lose(table, NOW)
    assert hospital.of(table).spent == ALLOWANCE
    with pytest.raises(errors.StateError, match="restored"):
        hospital.draw(table, asked)
    assert hospital.charges.give_back(asked.key, NOW, ended=True) == 0
    before = len(hospital.history(table))
    hospital.charges.lose(table, NOW)
    assert len(hospital.history(table)) == before
    hospital.charges.raise_limit(table, 5, "Dr Levi", NOW)
    hospital.charges.lose(table, NOW)
    assert hospital.left(table) == 0


@pytest.mark.parametrize("moment", range(4))
def test_a_state_rolled_back_around_a_charge_has_not_the_accepted_chain(
    hospital: Hospital, table: str, tmp_path: Path, moment: int
) -> None:
    """Before, between and after two charges; with whatever it does then."""
    copies = [tmp_path / str(place) for place in range(4)]
    acts: list[Callable[[], object]] = [
        lambda: hospital.charge(table, question("s1", 40)),
        lambda: hospital.charge(table, question("s2", 60)),
        lambda: hospital.charges.give_back(question("s2").key, NOW, ended=True),
    ]
    for place, act in enumerate([*acts, lambda: None]):
        with hospital.state.read() as connection:  # all of it is in the file, not in the log
            connection.execute("PRAGMA wal_checkpoint")
        shutil.copytree(hospital.state.directory, copies[place])
        act()
    accepted = stored_at(hospital, table)[table]

    back = Hospital(copies[moment])
    for place in range(3):
        heads = back.store.heads(table)
        same = heads.at(accepted.number) == accepted.head
        assert same == (moment == 3)
        back.charge(table, question(f"other {place}", 1))


# --- at the same time -----------------------------------------------------------------------------


def test_two_sessions_at_once_never_get_the_same_points(hospital: Hospital, table: str) -> None:
    start = threading.Barrier(4)

    def join(asked: Question) -> bool:
        there = Hospital(hospital.state.directory)
        start.wait()
        return there.charge(table, asked)

    with ThreadPoolExecutor(4) as pool:
        for n in range(5):
            hospital.charges.raise_limit(table, 60, "Dr Levi", NOW)
            more = hospital.left(table) // 2 + 1
            got = pool.map(join, [question(f"{n}-{place}", more) for place in range(4)])
            assert sorted(got) == [False, False, False, True]
    assert hospital.of(table).spent <= hospital.of(table).limit


def test_noise_and_giving_back_exclude_each_other(hospital: Hospital, table: str) -> None:
    start = threading.Barrier(2)

    def draw(asked: Question) -> None:
        there = Hospital(hospital.state.directory)
        start.wait()
        there.draw(table, asked)

    with ThreadPoolExecutor(1) as pool:
        for n in range(6):
            asked = question(f"s{n}", 5)
            hospital.charge(table, asked)
            drawn = pool.submit(draw, asked)
            start.wait()
            returned = hospital.charges.give_back(asked.key, NOW, ended=True)
            assert type(drawn.exception()) is (errors.StateError if returned else type(None))


def test_a_kill_at_any_write_of_a_charge_or_its_return(
    hospital: Hospital, table: str, tmp_path: Path
) -> None:
    shared, asked = hospital.other_table(500), question("heart", 60)
    acts: list[Callable[[], object]] = [
        lambda: hospital.charge(table, asked),
        lambda: hospital.charges.give_back(asked.key, NOW, ended=True),
        lambda: hospital.charges.raise_limit(table, 10, "Dr Levi", NOW),
        lambda: hospital.charges.lose(table, NOW),
    ]
    for place, act in enumerate(acts):
        before = [hospital.of(each) for each in (table, shared)]
        places = list(each_moment(tmp_path / f"act {place}", hospital.state, act))
        after = [hospital.of(each) for each in (table, shared)]
        seen = set()
        for left in places:
            killed = Hospital(left)
            found = [killed.of(each) for each in (table, shared)]
            assert found in (before, after)
            seen.add(found == after)
            assert verify_state(killed.state).tables == 2
        assert seen == {False, True}
        assert before != after


# --- every short history --------------------------------------------------------------------------


def test_no_short_history_spends_more_than_the_limit() -> None:
    """All histories of up to six acts of one table, each act where it is allowed."""
    asks = {"a": 60, "b": 41, "c": 40}
    keys = {name: charge_key(FIRST, "me", name, SHA) for name in asks}
    place = {"coordinator": FIRST, "site": "me"}
    start = CohortRecord(Cohort.empty("0" * 32, 5), ()).after(
        Cohort.empty("0" * 32, 5), "created", NOW, persons=60
    )
    begun: tuple[list[dict[str, Any]], dict[str, int], int] = ([dict(start.history[0])], {}, 0)
    histories, seen = [begun], 0
    for _ in range(6):
        longer = []
        for lines, counted, opened in histories:
            found = allowance_of(lines)
            # Counted apart: every charge that was not given back, whatever became of the state.
            assert sum(counted.values()) <= ALLOWANCE + opened
            assert found.spent + found.withheld <= found.limit == ALLOWANCE + opened
            assert found.left == found.limit - found.spent - found.withheld
            for name, points in asks.items():
                asked = question(name, points)
                charge = found.charges.get(asked.key)
                if found.covers(asked) and (charge is None or charge.state == "returned"):
                    line = {"what": "charged", "key": keys[name], "points": points, **vars(asked)}
                    line |= {"time": "", "coordinator": FIRST}
                    longer.append(([*lines, line], {**counted, name: points}, opened))
                if charge is not None and charge.state == "open":
                    for ended in (False, True):
                        line = {"what": "returned", "key": keys[name], "ended": ended}
                        left = {k: v for k, v in counted.items() if k != name}
                        longer.append(([*lines, line], left, opened))
            more = [{"what": "raised", "points": 40}, {"what": "spent"}]
            more += [{"what": "restored", "places": [place]}]
            more += [{"what": "confirmed", **place}] if found.doubted else []
            longer += [
                ([*lines, line], counted, opened + int(line.get("points", 0))) for line in more
            ]
        histories, seen = longer, seen + len(longer)
    assert seen > 10_000


def test_without_a_table_nothing_is_done(hospital: Hospital) -> None:
    hospital.charges.lose("0" * 32, NOW)
    hospital.charges.doubt(NOW)
    assert hospital.charges.give_back("0" * 64, NOW, ended=True) == 0
    with pytest.raises(errors.StateError):
        hospital.charges.require("0" * 32, "0" * 64)
    assert hospital.charges.allowances() == hospital.store.records() == {}
