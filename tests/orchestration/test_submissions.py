"""A submission is a PUT: the order of its checks, and exactly once."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from fedclust.wire.codec import sha256
from fedclust.wire.submissions import BINARY, JSON, write_submission
from fedclust_service.domain.refusal import Refusal
from fedclust_service.orchestration import participation, sessions
from support import tally
from support.clock import ManualClock
from support.office import ANALYST, Office, site


def refused(office: Office, who: str, body: bytes, number: int = 1, media: str = BINARY) -> Refusal:
    with pytest.raises(Refusal) as caught:
        office.put("heart", who, body, number, media)
    return caught.value


def stored(office: Office) -> int:
    row = office.row("heart")
    return len(office.store.read("t", lambda tx: tx.submissions.summaries(session_id=row.id)))


def test_the_first_bytes_are_stored_and_receipted(office: Office, clock: ManualClock) -> None:
    office.session()
    body = office.body("heart", "north")
    done = office.put("heart", "north", body)
    assert done.created
    receipt = done.receipt
    assert (receipt.session, receipt.site, receipt.round) == ("heart", "north", 1)
    assert (receipt.sha256, receipt.size) == (sha256(body), len(body))
    assert receipt.received_at == clock.now()
    assert office.view("heart", "north").response.status == "answered"


def test_the_same_bytes_get_the_first_receipt_in_any_state(
    office: Office, clock: ManualClock
) -> None:
    office.session(rounds=1)
    bodies = {name: office.body("heart", name) for name in ("north", "south", "west")}
    receipts = {name: office.put("heart", name, body).receipt for name, body in bodies.items()}
    clock.advance(50)
    for _ in range(2):  # aggregating, then completed
        for name, body in bodies.items():
            again = office.put("heart", name, body, 1)
            assert not again.created
            assert again.receipt == receipts[name]
        office.drive()
    assert office.info("heart").state == "completed"
    assert stored(office) == 3
    assert refused(office, "north", bodies["north"] + b" ").slug == "submission-differs"


def test_other_bytes_are_refused_whatever_they_are(office: Office) -> None:
    office.session()
    office.answer("heart", "north")
    for body in (b"nonsense", office.body("heart", "north", media=JSON)):
        assert refused(office, "north", body).slug == "submission-differs"
    participation.leave(office.co, site("north"), "heart")
    assert refused(office, "north", b"x").slug == "submission-differs"


def test_a_stored_answer_comes_before_the_end_of_the_session(office: Office) -> None:
    office.session()
    body = office.body("heart", "north")
    office.put("heart", "north", body)
    sessions.cancel_session(office.co, ANALYST, "heart")
    assert not office.put("heart", "north", body, 1).created
    assert refused(office, "north", b"x").slug == "submission-differs"
    # The session's state comes before round, addressee and contents.
    for number in (1, 7):
        assert refused(office, "south", b"nonsense", number).slug == "wrong-state"


def test_a_recruiting_session_takes_nothing(office: Office) -> None:
    office.define()
    office.join("heart", "north")
    assert refused(office, "north", b"nonsense").slug == "wrong-state"


def test_a_round_that_is_not_collecting_is_gone(office: Office) -> None:
    office.session(rounds=3)
    office.answer("heart", "north")
    office.answer("heart", "south")
    late = office.body("heart", "west")
    office.answer("heart", "west")
    participation.leave(office.co, site("west"), "heart")
    office.drive()
    # A site that is not there any more, a round that is over: the round comes first.
    refusal = refused(office, "north", b"nonsense", 7)
    assert (refusal.slug, refusal.extra) == ("round-closed", {"current_round": 2})
    assert not office.put("heart", "west", late, 1).created
    assert refused(office, "west", b"nonsense", 2).slug == "not-addressed"


def test_who_is_not_asked_is_refused_before_the_body_is_read(office: Office) -> None:
    office.define(sites=("a", "b", "c", "d"), start="manual")
    for name in ("a", "b", "c"):
        office.join("heart", name)
    sessions.start_session(office.co, ANALYST, "heart")
    assert refused(office, "d", b"nonsense").slug == "not-addressed"
    office.join("heart", "d")
    assert refused(office, "d", b"nonsense").slug == "not-addressed"


def test_who_has_left_the_open_round_is_not_asked_any_more(office: Office) -> None:
    office.session(sites=("a", "b", "c", "d"))
    body = office.body("heart", "d")
    participation.leave(office.co, site("d"), "heart")
    assert refused(office, "d", body).slug == "not-addressed"


def test_a_stranger_finds_nothing(office: Office) -> None:
    office.session()
    office.register("other")
    hidden = refused(office, "other", b"x")
    with pytest.raises(Refusal) as caught:
        participation.leave(office.co, site("other"), "nothing")
    assert hidden.to_problem() == caught.value.to_problem()


def test_contents_are_parsed_then_matched_then_judged(office: Office) -> None:
    office.session()
    wrong_digest = {"digest": "0" * 64}
    digest = office.digest("heart", "north", 1)
    short = tally.Vote(votes=np.zeros(2))
    cases = [
        (b"\xc1", "invalid", ""),
        (b"", "invalid", ""),
        (write_submission("nope", digest, None), "invalid", "/phase"),
        (write_submission("rest", digest, None), "task-mismatch", ""),
        (office.body("heart", "north", **wrong_digest), "task-mismatch", ""),
        (office.body("heart", "north", empty=True, **wrong_digest), "task-mismatch", ""),
        (office.body("heart", "south"), "task-mismatch", ""),
        (write_submission("count", digest, short), "invalid", "/payload/votes"),
        (office.body("heart", "north", weight=0.0), "disclosure-refused", "/payload/votes/0"),
        # A body that cannot be parsed is told so before its digest is looked at.
        (write_submission("count", "0" * 64, tally.Place(rank=3)), "invalid", "/payload"),
    ]
    for body, slug, pointer in cases:
        refusal = refused(office, "north", body)
        assert refusal.slug == slug
        if pointer:
            assert refusal.errors[0].pointer.startswith(pointer)
    assert stored(office) == 0
    refusals = office.audit(action="submission.refused")
    assert len(refusals) == len(cases)
    assert all(details.keys() == {"round", "rule"} for _, _, details in refusals)
    assert office.answer("heart", "north").created


def test_json_and_binary_are_stored_alike(office: Office) -> None:
    payloads = []
    for name, media in (("one", JSON), ("two", BINARY)):
        office.session(name)
        office.answer(name, "north", media=media)
        row = office.row(name)
        found = office.store.read("t", lambda tx, r=row: tx.rounds.latest(r.id))
        assert found is not None
        kept = office.store.read("t", lambda tx, f=found: tx.submissions.get(f.id, "north"))
        assert kept is not None
        payloads.append(kept.payload)
    assert payloads[0] == payloads[1] is not None


def test_the_larger_smallest_count_holds_everywhere(office: Office) -> None:
    office.define(rounds=1, policy={"min_group_size": 5})
    for name, own in (("north", 9), ("south", 3), ("west", None)):
        office.join("heart", name, min_group_size=own)
    for name in ("north", "south", "west"):
        office.answer("heart", name)
    assert tally.CHECKED == [(9, "50-199"), (5, "50-199"), (5, "50-199")]
    office.drive()
    assert tally.CONTRIBUTED == [("north", 9), ("south", 5), ("west", 5)]


def test_an_empty_answer_is_stored_as_empty(office: Office) -> None:
    office.session(sites=("a", "b", "c", "d"))
    assert office.answer("heart", "d", empty=True).created
    office.answer_all("heart")
    office.drive()
    assert office.tally("heart")[0].tolist() == [1, 1, 1, 0]


def test_the_etag_of_the_receipt_is_that_of_the_task(office: Office) -> None:
    office.session(rounds=2)
    for name in ("north", "south", "west"):
        done = office.answer("heart", name)
        assert done.task_etag == office.view("heart", name).etag
    waiting = office.view("heart", "north").etag
    office.drive()
    assert office.view("heart", "north").etag != waiting


def test_a_repeated_answer_does_not_hide_what_came_after_it(office: Office) -> None:
    """A site whose first receipt was lost must not wait with the ETag of a task unseen."""
    office.session(rounds=2)
    body = office.body("heart", "north")
    first = office.put("heart", "north", body, 1)
    again = office.put("heart", "north", body, 1)
    assert first.task_etag == again.task_etag == office.view("heart", "north").etag
    office.answer("heart", "south")
    office.answer("heart", "west")
    office.drive()
    assert office.view("heart", "north").response.status == "work"
    late = office.put("heart", "north", body, 1)
    assert (late.receipt, late.task_etag) == (first.receipt, None)


def test_an_answered_site_sleeps_until_the_next_round(office: Office) -> None:
    """Neither others' answers nor the aggregation change what it waits with."""
    office.session(rounds=2)
    etag = office.answer("heart", "north").task_etag
    version = office.view("heart", "north").version
    office.answer("heart", "south")
    office.answer("heart", "west")
    view = office.view("heart", "north")
    assert (view.etag, view.version) == (etag, version)
    assert office.drive() == 1
    assert office.view("heart", "north").version > version


def test_progress_is_outside_the_etag(office: Office) -> None:
    office.session()
    before = office.view("heart", "north")
    office.answer("heart", "south")
    after = office.view("heart", "north")
    assert before.response.progress != after.response.progress
    assert after.etag == before.etag
    assert after.etag.startswith('"')
    assert len(after.etag) == 66


def test_nothing_that_was_sent_is_logged_or_audited(
    office: Office, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    office.session()
    secret = "lifespan-of-patient-4711"
    digest = office.digest("heart", "north", 1)
    for text in (
        f'{{"phase":"{secret}","task_digest":"{digest}","payload":null}}',
        f'{{"phase":"count","task_digest":"{digest}","payload":{{"{secret}":1}}}}',
        f'{{"phase":"count","task_digest":"{secret}","payload":null}}',
    ):
        refusal = refused(office, "north", text.encode(), media=JSON)
        assert secret not in refusal.to_problem().model_dump_json()
    printed = capsys.readouterr()
    assert secret not in caplog.text + printed.out + printed.err + str(office.audit())
