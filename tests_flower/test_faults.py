"""What a site refuses over Flower, and what happens to a session when nodes fail."""

import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedclust import simulate
from fedclust.data.row_warnings import DataWarning
from fedclust.flower import site
from fedclust.flower.messages import Ask, Declaration, Reply, pack, unpack
from fedclust.flower.site import PLACE
from fedclust.rounds import outcomes
from fedclust.site.approvals import Approvals
from fedclust.site.charges import Charges
from fedclust.site.journal import recorded_answers
from fedclust.site.ledger import Ledger
from fedclust.site.session_run import SessionAnswers
from fedclust.wire.codec import encode_model, sha256, task_digest
from fedclust.wire.errors import SessionFailed, UsageError
from in_process import (
    FEATURES,
    OUTCOMES,
    SIZES,
    Federation,
    InProcessGrid,
    Node,
    context,
    define,
    state_of,
)

SESSION: dict[str, Any] = {"algorithm": "lloyd", "config": {"n_clusters": 4}, "features": FEATURES}
ASKING = {**SESSION, "features": FEATURES + OUTCOMES}
ENDURING = {**SESSION, "policy": {"round_timeout_s": 600}}


def expected(federation: Federation) -> bytes:
    files: Any = federation.files
    found = simulate("lloyd", files, config=SESSION["config"], features=FEATURES, seed=7)
    return encode_model(found.result)


def approved(federation: Federation, **session: Any) -> bytes:
    """Return a definition that all sites have approved."""
    definition = define(SIZES, **session)
    federation.approve(definition)
    return definition


def lines(federation: Federation, name: str) -> list[dict[str, Any]]:
    return [line for line in Ledger(federation.state(name)).read() if "event" not in line]


def ask(federation: Federation, name: str, asked: Ask) -> Reply:
    """Ask a site once more, as a message of Flower."""
    message = Message(pack(asked), 1, "query")
    message.metadata.__dict__["_message_id"] = "again"
    with state_of(federation.place / name):
        return unpack(Reply, site.app(message, context(1)))


def test_a_site_without_approval_says_only_that(federation: Federation) -> None:
    definition = define(SIZES, **SESSION)
    federation.approve(definition, "ada", "brno", "cadiz")
    federation.files["delft"].unlink()
    federation.run(definition, join_s=30.0)

    said = {encode_model(reply) for _, reply in federation.node("delft").replies}
    assert said == {encode_model(Reply(refused="not approved"))}
    assert lines(federation, "delft") == []
    assert len(lines(federation, "ada")) > 0


def test_a_site_begins_no_session_that_has_expired(federation: Federation) -> None:
    definition = approved(federation, **SESSION, expires="2020-01-01T00:00:00Z")
    assert ask(federation, "ada", Ask(definition=definition)) == Reply(refused="expired")
    with pytest.raises(SessionFailed, match="have not joined"):
        federation.run(definition, join_s=30.0)
    assert lines(federation, "ada") == []


def test_a_session_that_has_begun_goes_on_after_it_expired(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    expires = federation.now + timedelta(days=1)
    definition = approved(federation, **SESSION, expires=expires.isoformat())
    node, begin = federation.node("ada"), SessionAnswers.__init__

    def later(self: SessionAnswers, *given: Any) -> None:
        begin(self, *given)
        self.now = lambda: expires

    def pass_time(asked: Ask) -> None:
        if asked.round == 2:
            monkeypatch.setattr(SessionAnswers, "__init__", later)

    node.fault = pass_time
    assert encode_model(federation.run(definition).result) == expected(federation)


def test_too_few_approvals_end_the_run(federation: Federation) -> None:
    definition = define(SIZES, **SESSION)
    federation.approve(definition, "ada", "brno")
    with pytest.raises(SessionFailed, match="have not joined: cadiz, delft"):
        federation.run(definition, join_s=30.0)


def test_another_definition_is_not_approved(federation: Federation) -> None:
    federation.approve(define(SIZES, **SESSION))
    changed = define(SIZES, **SESSION, title="Another")
    for foreign in (changed, b"{", b"[" * 100_000, bytes(1_000_000)):
        assert ask(federation, "ada", Ask(definition=foreign)) == Reply(refused="not approved")


def test_after_its_session_a_site_repeats_its_answers_and_gives_no_other(
    federation: Federation,
) -> None:
    definition = approved(federation, **ASKING)
    federation.run(definition)
    before, state, file = lines(federation, "ada"), federation.state("ada"), federation.files["ada"]
    away = file.rename(federation.place / "away")
    node = federation.node("ada")
    answered = [each for each in node.replies if each[0].task is not None]
    assert len(answered) == 7
    for asked, reply in answered:
        assert ask(federation, "ada", asked) == reply
    away.rename(file)
    assert {answer.coordinator for answer, _ in recorded_answers(state, "heart")} == {PLACE}

    asked = answered[5][0]

    def told(**changes: Any) -> Reply:
        """Ask with another task and its digest."""
        common = {**asked.task.common, **changes}
        digest = task_digest(common, asked.task.site)
        task = asked.task.model_copy(update={"common": common, "digest": digest})
        number = common["round"]
        return ask(federation, "ada", Ask(definition=definition, round=number, task=task))

    assert told(parameters={}) == Reply(refused="task-answered", final=True)
    for number in (-1, 0, 10_000, 2**62):
        assert told(round=number) == Reply(refused="task-rounds", final=True)
    assert lines(federation, "ada") == before

    with state.write() as connection:
        connection.execute("DELETE FROM ledger WHERE line = (SELECT max(line) FROM ledger)")
    assert ask(federation, "ada", asked) == Reply(refused="error")
    # Another site withdraws its approval: a damaged ledger takes no line.
    Approvals(federation.state("brno")).withdraw("heart", "Dr Ruth Levi")
    assert ask(federation, "brno", asked) == Reply(refused="not approved")


LIES: dict[str, tuple[str, Callable[[Ask], Any]]] = {
    "another session": ("task-place", lambda _: {"session": "heart-2"}),
    "another round": ("task-place", lambda asked: {"round": asked.round + 1}),
    "another phase": ("task-phase", lambda _: {"phase": "spectral"}),
    "another space": ("task-space", lambda _: {"space": {**SPACE, "center": np.zeros(2)}}),
    "another K": ("task", lambda _: {"parameters": {"centroids": np.zeros((5, 3))}}),
    "huge arrays": ("task", lambda _: {"parameters": {"centroids": np.zeros((200_000, 3))}}),
    "broken arrays": ("task", lambda _: {"parameters": {"centroids": np.zeros((4, 3, 1))}}),
    "texts for numbers": ("task", lambda _: {"parameters": {"centroids": "4 rows"}}),
}
SPACE = {"center": np.zeros(3), "scale": np.ones(3), "impute": None, "limit": None}


@pytest.mark.parametrize(("rule", "lie"), LIES.values(), ids=LIES)
def test_a_server_that_lies_gets_no_answer(
    federation: Federation, rule: str, lie: Callable[[Ask], Any]
) -> None:
    """The digest of each task is right: a lying server computes it anew."""
    definition = approved(federation, **SESSION)
    refused = []

    def change(asked: Ask) -> None:
        if asked.round == 3:
            common = {**asked.task.common, **lie(asked)}
            digest, phase = task_digest(common, asked.task.site), common["phase"]
            told = {"common": common, "digest": digest, "phase": phase}
            task = asked.task.model_copy(update=told)
            refused.append(ask(federation, "ada", asked.model_copy(update={"task": task})))

    federation.node("ada").fault = change
    federation.run(definition)
    assert refused == [Reply(refused=rule, final=True)]
    # The right task of this round is answered afterwards.
    assert [line["round"] for line in lines(federation, "ada")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("content", ["nothing", "text", "msgpack", "deep"])
def test_a_message_that_is_none_of_ours_gets_one_word(
    federation: Federation, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    body: Any = {"text": "4711", "msgpack": b"\xc1", "deep": b"\x91" * 10_000}.get(content, b"")
    given = {} if content == "nothing" else {"fedclust": ConfigRecord({"body": body})}
    message = Message(RecordDict(given), 1, "query")
    message.metadata.__dict__["_message_id"] = "foreign"
    with state_of(federation.place / "ada"):
        reply = site.app(message, context(1))
    assert unpack(Reply, reply) == Reply(refused="error")
    assert "4711" not in caplog.text


@pytest.mark.parametrize("features", [FEATURES, FEATURES + OUTCOMES], ids=["sums", "noise"])
def test_a_site_that_is_killed_before_the_ledger_has_an_answer_sends_that_answer(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, features: list[dict[str, Any]]
) -> None:
    """In each round: with SIGKILL, after the journal has the answer."""
    definition = approved(federation, **{**SESSION, "features": features})
    node, state, stored = federation.node("ada"), federation.state("ada"), {}

    def kill(asked: Ask) -> None:
        if asked.task is None:
            return
        child = os.fork()
        if child == 0:
            own = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
            monkeypatch.setattr(SessionAnswers, "settle", own)
            with suppress(Exception), state_of(node.state):
                site.answer(asked)
            os._exit(1)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        left = [own for own, outcome in recorded_answers(state, "heart") if outcome is None]
        stored.update({own.round: own.body for own in left})

    node.fault = kill
    federation.run(definition)
    sent = {asked.round: reply.body for asked, reply in node.replies if asked.task is not None}
    assert len(sent) > 4
    assert sent == stored
    assert [line["round"] for line in lines(federation, "ada")] == sorted(sent)


def test_two_runs_at_once_get_the_same_answers(federation: Federation) -> None:
    """The second one begins while the first is in its third round."""
    definition = approved(federation, **SESSION)
    found = []

    def again(asked: Ask) -> None:
        if asked.round == 3 and not found:
            found.append(None)
            found.append(federation.run(definition))

    federation.node("brno").fault = again
    first = federation.run(definition)
    assert encode_model(first.result) == encode_model(found[1].result) == expected(federation)
    assert first.provenance.submissions == found[1].provenance.submissions
    rounds = [line["round"] for line in lines(federation, "ada")]
    assert rounds == sorted(set(rounds))


def test_a_site_whose_session_runs_in_another_process_says_no_more(federation: Federation) -> None:
    definition = approved(federation, **SESSION)
    names = ("heart", PLACE, "ada", sha256(definition))
    lock = federation.state("ada").lock("session", *names)
    try:
        assert ask(federation, "ada", Ask(definition=definition)) == Reply(refused="error")
    finally:
        lock.release()


def test_an_unanswered_message_is_repeated_after_twice_the_time(federation: Federation) -> None:
    """A site that computes for long does not get a queue of the same message."""
    definition = approved(federation, **ENDURING)
    node, times = federation.node("brno"), list[float]()

    def keep_silent(asked: Ask) -> None:
        if asked.round == 2:
            times.append(federation.clock.time)
            node.alive = len(times) == 4

    def connected() -> None:
        node.alive = True

    node.fault, federation.clock.at = keep_silent, connected
    assert encode_model(federation.run(definition).result) == expected(federation)
    assert np.diff(times).tolist() == [60.0, 120.0, 240.0]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_node_that_dies_in_a_round_and_comes_back_changes_no_byte(
    federation: Federation, after: bool
) -> None:
    """It dies before it computes, or after its answer is stored and before it has left."""
    definition = approved(federation, **ENDURING)
    node, answer = federation.node("brno"), site.answer

    def die(asked: Ask) -> None:
        if asked.round == 2 and federation.clock.time < 100:
            node.alive = False
            if after:
                with state_of(node.state):
                    answer(asked)
            federation.clock.at = back

    def back() -> None:
        # With another number, as a SuperNode without keys of its own.
        if federation.clock.time > 100 and not node.alive:
            node.alive = True
            federation.grid.nodes[99] = federation.grid.nodes.pop(2)

    node.fault = die
    found = federation.run(definition)
    assert encode_model(found.result) == expected(federation)
    rounds = [line["round"] for line in lines(federation, "brno")]
    assert rounds == [line["round"] for line in lines(federation, "ada")]


class SlowGrid(InProcessGrid):
    """The first reply of node 1 to round 1 arrives in round 2, after that to the second message."""

    late, arrives = "", False

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        (message,) = messages
        (number,) = super().push_messages([message])
        asked = unpack(Ask, message)
        if (message.metadata.dst_node_id, asked.round) == (1, 1):
            self.late = self.late or number
        self.arrives = self.arrives or asked.round == 2
        return [number]

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        return super().pull_messages(
            [each for each in numbers if each != self.late or self.arrives]
        )


def test_a_late_reply_to_an_earlier_round_puts_no_site_out(federation: Federation) -> None:
    definition = approved(federation, **SESSION)
    federation.grid = SlowGrid(federation.nodes)
    found = federation.run(definition)
    assert federation.grid.arrives
    assert federation.clock.time > 60
    assert encode_model(found.result) == expected(federation)


def test_a_node_that_stays_away_is_late_and_the_quorum_goes_on(federation: Federation) -> None:
    definition = approved(federation, **SESSION, policy={"round_timeout_s": 600, "quorum": 3})
    node = federation.node("brno")
    node.fault = lambda asked: setattr(node, "alive", asked.round < 2)
    found = federation.run(definition)
    assert found.stopped_because_ == "converged"
    assert [line["round"] for line in lines(federation, "brno")] == [1]


def test_sites_that_refuse_end_a_session_at_once(federation: Federation) -> None:
    """Not at the deadline: a site that has refused a task does not come back."""
    definition = approved(federation, **SESSION)
    for name in ("ada", "brno"):
        federation.node(name).fault = lambda asked: (
            Reply(refused="task-space", final=True) if asked.round == 2 else None
        )
    with pytest.raises(SessionFailed, match="Sites have refused a task"):
        federation.run(definition)
    assert federation.clock.time < 100


def test_a_site_that_declares_false_features_is_refused_alone(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    definition = approved(federation, **SESSION)
    declared = Declaration(features=("x0", "x1"), size_band="50-99")
    federation.node("brno").fault = lambda asked: (
        Reply(site="brno", declared=declared) if asked.task is None else None
    )
    with caplog.at_level(logging.WARNING, "flwr.fedclust"):
        found = federation.run(definition, join_s=30.0)
    assert "node 2, brno: not invited, or with other features" in caplog.text
    assert found.provenance.sites == ("ada", "cadiz", "delft")


def test_a_node_that_takes_the_name_of_another_is_not_asked(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    definition = approved(federation, **SESSION)
    double = federation.node("ada")
    federation.grid.nodes[50] = Node(double.app, context(50), double.state)
    with caplog.at_level(logging.WARNING, "fedclust.flower"):
        found = federation.run(definition)
    assert encode_model(found.result) == expected(federation)
    assert all(asked.task is None for asked, _ in federation.grid.nodes[50].replies)


def test_a_site_that_is_out_ends_no_later_round(federation: Federation) -> None:
    """Rounds that end when a site leaves them: this one had left before."""
    config: dict[str, Any] = {"n_clusters": 3}
    definition = approved(federation, algorithm="dual", config=config, features=FEATURES)
    federation.node("brno").fault = lambda asked: (
        Reply(site="brno", body=b"no submission") if asked.round == 1 else None
    )
    found = federation.run(definition)
    files: Any = {name: file for name, file in federation.files.items() if name != "brno"}
    alone = simulate("dual", files, config=config, features=FEATURES, seed=7)
    assert encode_model(found.result) == encode_model(alone.result)


@pytest.mark.parametrize("kind", [ValueError, UsageError])
def test_no_text_of_an_error_reaches_the_server(
    federation: Federation,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Exception],
) -> None:
    """Neither the reply nor the log has it: NVFlare sends a site's log to its server."""

    def fail(*_: object) -> Reply:
        raise kind("the value 4711 of patient 12")

    monkeypatch.setattr(site, "answer", fail)
    reply = ask(federation, "ada", Ask(definition=define(SIZES, **SESSION)))
    assert reply == Reply(refused="error")
    assert kind.__name__ in caplog.text
    assert "4711" not in caplog.text


def test_no_warning_about_rows_reaches_the_log(federation: Federation) -> None:
    """It has numbers of values and the name of the file; the review shows it."""
    narrow = [{"name": "x0", "lower": -1e5, "upper": 103.0}, *FEATURES[1:]]
    definition = define(SIZES, **{**SESSION, "features": narrow})
    with pytest.warns(DataWarning, match="outside the session's bounds"):
        federation.approve(definition)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        federation.run(definition)
    assert [str(each.message) for each in said] == []


# --- outcomes -------------------------------------------------------------------------------------


def charges(federation: Federation, name: str) -> list[str]:
    found = Charges(federation.state(name)).allowances().values()
    return [each.state for own in found for each in own.charges.values()]


def test_the_points_are_charged_before_the_first_answer(federation: Federation) -> None:
    definition = approved(federation, **ASKING)
    node, seen = federation.node("ada"), {}
    node.fault = lambda asked: seen.setdefault(asked.round, charges(federation, "ada")) and None
    federation.run(definition)
    assert seen[0] == seen[1] == []
    assert seen[2] == charges(federation, "ada") == ["open"]


def test_points_that_bought_no_answer_go_back(federation: Federation) -> None:
    definition = approved(federation, **ASKING, policy={"round_timeout_s": 60, "fail_after_s": 60})
    node = federation.node("brno")
    node.fault = lambda asked: setattr(node, "alive", asked.round < 2)
    with pytest.raises(SessionFailed, match=r"Too few sites answered .* Without an answer: brno"):
        federation.run(definition)
    assert charges(federation, "ada") == ["ended"]


def test_a_server_that_asks_for_outcomes_after_the_end_gets_none(federation: Federation) -> None:
    """The points went back, so no noise may be drawn any more."""
    definition = approved(federation, **ASKING)

    def end(asked: Ask) -> None:
        if asked.task is not None and asked.task.phase == outcomes.NAME:
            ask(federation, "ada", Ask(definition=definition, ended=True))

    federation.node("ada").fault = end
    federation.run(definition)
    assert charges(federation, "ada") == ["ended"]
    answered = {line["site"]: line for line in lines(federation, "ada") + lines(federation, "brno")}
    assert [answered[name]["empty"] for name in ("ada", "brno")] == [True, False]


def test_a_server_that_breaks_down_does_not_end_the_session(federation: Federation) -> None:
    """Sites must not record an end, or they would answer no outcomes when the run is repeated."""
    definition = approved(federation, **ASKING)

    def lose_connection() -> None:
        if federation.node("ada").replies[-1][0].round == 2:
            raise ConnectionError

    federation.clock.at = lose_connection
    with pytest.raises(ConnectionError):
        federation.run(definition)
    assert charges(federation, "ada") == ["open"]
    federation.clock.at = lambda: None
    found = federation.run(definition).outcomes_
    assert found is not None
    assert found.silent == ()


def test_a_restored_state_answers_no_outcome(federation: Federation) -> None:
    """It knows no HTTPS coordinator that could confirm it: only an approval opens points."""
    first = approved(federation, **ASKING)
    federation.run(first)
    own = Charges(federation.state("ada"))
    own.doubt(federation.now)

    second = approved(federation, **{**ASKING, "name": "heart-2"})
    found = federation.run(second).outcomes_
    assert found.silent == ("ada",)
    (table,) = own.allowances()
    own.raise_limit(table, 10, "Dr Ruth Levi", federation.now)
    third = approved(federation, **{**ASKING, "name": "heart-3"})
    again = federation.run(third).outcomes_
    assert again.silent == ()
