"""A session under random operations, one-hot answers, and crashes; nothing is counted twice.

After the habit of Janus: draw operations (advance the clock, join, send, replay, send other bytes,
send nonsense, leave, exclude, refuse a task, close, move the deadline, sweep, aggregate, crash
while aggregating) and check after each that what is stored is what was acknowledged, and that the
engine's state is the sum of the stored answers of closed rounds, each once.
"""

import contextlib
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from fedclust.wire import codec
from fedclust.wire.codec import sha256
from fedclust.wire.models import SessionPatch, TaskRefusal
from fedclust_service.domain.access import Refusal
from fedclust_service.domain.round import RoundState
from fedclust_service.domain.session import ParticipationState
from fedclust_service.usecases import participation, rounds, sessions
from fedclust_service.usecases.submissions import TaskView, task_view
from fedclust_service.usecases.sweeper import sweep
from support.clock import ManualClock
from support.store_rows import latest_state
from usecases import counting_method
from usecases.direct_api import ANALYST, DirectApi, refusal, site

NAMES = ("a", "b", "c", "d", "e")
ROUNDS = 4
STEPS = 80


class Crash(BaseException):
    """The process dies here."""


class Trial:
    """One session and a model of what it must hold."""

    def __init__(self, direct: DirectApi, clock: ManualClock, seed: int) -> None:
        self.direct, self.clock = direct, clock
        self.random = random.Random(seed)
        self.min_sites = 3
        direct.define(
            sites=NAMES,
            start=self.random.choice(["manual", "when_all_joined"]),
            policy={
                "min_sites": self.min_sites,
                "quorum": self.random.choice([None, 3, 4]),
                "round_timeout_s": 1000,
                "fail_after_s": 50_000,
            },
            rounds=ROUNDS,
        )
        #: What was acknowledged with 201: (round, site) -> (hash, empty, the body).
        self.acknowledged: dict[tuple[int, str], tuple[str, bool, bytes]] = {}
        self.ended: str | None = None

    # --- operations -------------------------------------------------------------------------------

    def operations(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            (6, self.join),
            (14, self.send),
            (3, self.send_empty),
            (4, self.replay),
            (3, self.other_bytes),
            (2, self.nonsense),
            (8, self.aggregate),
            (3, self.crash_while_aggregating),
            (4, self.sweep),
            (4, self.time),
            (1, self.leave),
            (1, self.exclude),
            (1, self.refuse_task),
            (2, self.close),
            (1, self.move),
            (2, self.start),
        ]

    def step(self) -> None:
        weights, choices = zip(*self.operations(), strict=True)
        (operation,) = self.random.choices(choices, weights)
        # What may be refused is tested elsewhere; here only that nothing breaks.
        with contextlib.suppress(Refusal):
            operation()
        self.check(operation.__name__)

    def who(self) -> str:
        return self.random.choice(NAMES)

    def open_round(self) -> int:
        return self.direct.info("heart").round or 1

    def join(self) -> None:
        self.direct.join("heart", self.who())

    def start(self) -> None:
        sessions.start_session(self.direct.co, ANALYST, "heart")

    def send(self, *, empty: bool = False) -> None:
        who, number = self.who(), self.open_round()
        body = self.direct.body("heart", who, number=number, empty=empty)
        done = self.direct.put("heart", who, body, number)
        key = (number, who)
        if done.created:
            assert key not in self.acknowledged, "accepted a second time"
            self.acknowledged[key] = (done.receipt.sha256, empty, body)
        else:
            assert self.acknowledged[key][0] == done.receipt.sha256

    def send_empty(self) -> None:
        self.send(empty=True)

    def replay(self) -> None:
        if not self.acknowledged:
            return
        (number, who), (digest, _, body) = self.random.choice(list(self.acknowledged.items()))
        again = self.direct.put("heart", who, body, number)
        assert not again.created
        assert again.receipt.sha256 == digest

    def other_bytes(self) -> None:
        if not self.acknowledged:
            return
        number, who = self.random.choice(list(self.acknowledged))
        refused = refusal(self.direct.put, "heart", who, b"other", number)
        assert refused.slug == "submission-differs"

    def nonsense(self) -> None:
        who, number = self.who(), self.random.randint(1, ROUNDS + 1)
        if (number, who) not in self.acknowledged:
            refusal(self.direct.put, "heart", who, b"\xc1nonsense", number)

    def aggregate(self) -> None:
        self.direct.another().driver.run_once()

    def crash_while_aggregating(self) -> None:
        def die() -> None:
            raise Crash

        counting_method.HOOK.append(die)
        with contextlib.suppress(Crash):
            self.direct.another().driver.run_once()
        counting_method.HOOK.clear()

    def sweep(self) -> None:
        sweep(self.direct.co)

    def time(self) -> None:
        self.clock.advance(self.random.choice([1, 40, 600, 3000]))

    def leave(self) -> None:
        participation.leave(self.direct.co, site(self.who()), "heart")

    def exclude(self) -> None:
        participation.exclude(self.direct.co, ANALYST, "heart", self.who())

    def refuse_task(self) -> None:
        task = TaskRefusal(rule="task-rounds")
        participation.refuse(self.direct.co, site(self.who()), "heart", self.open_round(), task)

    def close(self) -> None:
        rounds.close_round(self.direct.co, ANALYST, "heart", self.open_round())

    def move(self) -> None:
        later = self.clock.now() + timedelta(seconds=self.random.randint(-100, 2000))
        sessions.patch_session(self.direct.co, ANALYST, "heart", SessionPatch(deadline=later))

    # --- what always holds ------------------------------------------------------------------------

    def check(self, after: str) -> None:
        row = self.direct.row("heart")

        def read(tx: Any) -> tuple[Any, ...]:
            seen = tx.site_views.by_name
            return (
                tx.rounds.list(row.id, 100),
                tx.submissions.summaries(session_id=row.id),
                latest_state(tx, row.id),
                tx.participations.list(row.id),
                tx.results.get(row.id),
                {who: task_view(tx, site(who), seen("heart", who)) for who in NAMES},
            )

        found, stored, state, parts, result, views = self.direct.store.read("t.check", read)
        number = {each.id: each.number for each in found}
        # Nothing acknowledged is lost, nothing is stored that was not acknowledged.
        assert {(number[each.round_id], each.site): each.sha256 for each in stored} == {
            key: digest for key, (digest, _, _) in self.acknowledged.items()
        }, after
        assert all(sha256(body) == digest for digest, _, body in self.acknowledged.values())
        # Rounds are numbered without gaps; all but the last are closed.
        assert [each.number for each in found] == list(range(1, len(found) + 1)), after
        assert all(each.state is RoundState.CLOSED for each in found[:-1]), after
        if found and not row.state.ended:
            assert found[-1].state in (RoundState.COLLECTING, RoundState.AGGREGATING)
        # Closed rounds had at least min_sites answers with contents.
        for each in found:
            if each.state is RoundState.CLOSED:
                full = [k for k, v in self.acknowledged.items() if k[0] == each.number and not v[1]]
                assert len(full) >= self.min_sites, after
        # Each answer of a closed round counts once: a two anywhere is a double count.
        closed = {each.number for each in found if each.state is RoundState.CLOSED}
        expected = np.zeros((ROUNDS, len(NAMES)))
        for (n, who), (_, empty, _) in self.acknowledged.items():
            if n in closed and not empty:
                expected[n - 1, NAMES.index(who)] = 1
        if result is not None:
            counted = codec.decode(result.result)["extra"]["votes"]
            assert np.array_equal(counted.reshape(ROUNDS, -1), expected), after
        elif state is not None:
            counted = codec.decode(state)["method"]["votes"]
            assert np.array_equal(counted.reshape(ROUNDS, -1), expected), after
        self.check_views(row, found, parts, views)
        self.check_end(row, result)

    def check_views(
        self, row: Any, found: list[Any], parts: list[Any], views: dict[str, TaskView]
    ) -> None:
        states = {each.site: each.state for each in parts}
        for who, view in views.items():
            status = view.response.status
            assert (status == "work") == (view.response.task is not None)
            if status == "work":
                assert states[who] is ParticipationState.JOINED
                assert (found[-1].number, who) not in self.acknowledged
                assert found[-1].state is RoundState.COLLECTING
            if status == "answered":
                assert (found[-1].number, who) in self.acknowledged
            assert (status == "ended") == row.state.ended
        if found and found[-1].state is RoundState.COLLECTING:
            self.check_refusals(found[-1].number, states)

    def check_refusals(self, number: int, states: dict[str, ParticipationState]) -> None:
        """No round waits that can never close because sites refused a task."""
        asked = rounds.get_round(self.direct.co, ANALYST, "heart", number).sites
        full = {
            who
            for (n, who), (_, empty, _) in self.acknowledged.items()
            if n == number and not empty
        }
        joined = {each.name for each in asked if states[each.name] is ParticipationState.JOINED}
        pending = {each.name for each in asked if not each.answered} & joined
        refused = ParticipationState.REFUSED in states.values()
        enough = len(joined) >= self.min_sites or len(full | pending) >= self.min_sites
        assert enough or not refused

    def check_end(self, row: Any, result: Any) -> None:
        assert (row.state.value == "completed") == (result is not None)
        if self.ended is not None:
            assert row.state.value == self.ended, "an ended session changed"
        if row.state.ended:
            self.ended = row.state.value


@pytest.mark.parametrize(
    ("seed", "database_url"),
    [
        *((seed, "sqlite") for seed in range(2)),
        *(pytest.param(seed, "sqlite", marks=pytest.mark.long) for seed in range(2, 12)),
        *((100, "postgresql"), pytest.param(101, "postgresql", marks=pytest.mark.long)),
    ],
    indirect=["database_url"],
)
def test_random_operations(both: DirectApi, clock: ManualClock, seed: int) -> None:
    trial = Trial(both, clock, seed)
    for _ in range(STEPS):
        trial.step()


def test_the_trials_reach_what_they_are_for(direct: DirectApi, clock: ManualClock) -> None:
    """A seed on which several rounds close after crashes: the check above is not idle."""
    trial = Trial(direct, clock, 3)
    direct.join("heart", *NAMES)
    if direct.info("heart").state == "recruiting":
        trial.start()
    for _ in range(600):
        if trial.ended:
            break
        operations = (trial.send, trial.crash_while_aggregating, trial.aggregate, trial.time)
        try:
            trial.random.choice(operations)()
        except Refusal:
            continue
        trial.check("reach")
    assert trial.ended == "completed"
    assert len({number for number, _ in trial.acknowledged}) == ROUNDS
    assert direct.audit(action="round.taken_over")
