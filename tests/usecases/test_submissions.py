"""A submission is a PUT: the order of its checks, and exactly once."""

import logging
from typing import Any

import numpy as np
import pytest

from fedclust.wire.submissions import BINARY, JSON, write_submission
from fedclust_service.domain.access import Refusal
from fedclust_service.usecases import participation, sessions
from fedclust_service.usecases.submissions import list_receipts
from support.databases import sqlite_first  # noqa: F401  # in place of database_url
from usecases import counting_method
from usecases.direct_api import ANALYST, DirectApi, refusal, site


def refused(
    direct: DirectApi, who: str, body: bytes, number: int = 1, media: str = BINARY
) -> Refusal:
    return refusal(direct.put, "heart", who, body, number, media)


def test_the_same_bytes_get_the_first_receipt_in_any_state(direct: DirectApi) -> None:
    direct.session(rounds=1)
    bodies = {name: direct.body("heart", name) for name in ("north", "south", "west")}
    receipts = {name: direct.put("heart", name, body).receipt for name, body in bodies.items()}
    direct.clock.advance(50)
    for _ in range(2):  # aggregating, then completed
        for name, body in bodies.items():
            again = direct.put("heart", name, body, 1)
            assert not again.created
            assert again.receipt == receipts[name]
        direct.drive()
    assert direct.info("heart").state == "completed"
    assert direct.stored() == sorted(bodies)
    assert refused(direct, "north", bodies["north"] + b" ").slug == "submission-differs"


def test_other_bytes_are_refused_whatever_they_are_and_the_same_ones_known_for_good(
    direct: DirectApi,
) -> None:
    direct.session()
    body = direct.body("heart", "north")
    direct.put("heart", "north", body)
    for other in (b"nonsense", direct.body("heart", "north", media=JSON)):
        assert refused(direct, "north", other).slug == "submission-differs"
    participation.leave(direct.co, site("north"), "heart")
    assert refused(direct, "north", b"x").slug == "submission-differs"
    sessions.cancel_session(direct.co, ANALYST, "heart")
    assert not direct.put("heart", "north", body, 1).created
    assert refused(direct, "north", b"x").slug == "submission-differs"
    # The session's state comes before round, addressee and contents.
    for number in (1, 7):
        assert refused(direct, "south", b"nonsense", number).slug == "wrong-state"


def test_a_round_that_is_not_collecting_is_gone(direct: DirectApi) -> None:
    direct.session(rounds=3)
    direct.answer("heart", "north", "south")
    late = direct.body("heart", "west")
    direct.answer("heart", "west")
    participation.leave(direct.co, site("west"), "heart")
    direct.drive()
    # A site that is not there any more, a round that is over: the round comes first.
    closed = refused(direct, "north", b"nonsense", 7)
    assert (closed.slug, closed.extra) == ("round-closed", {"current_round": 2})
    assert not direct.put("heart", "west", late, 1).created
    assert refused(direct, "west", b"nonsense", 2).slug == "not-addressed"


def test_who_is_not_asked_is_refused_before_the_body_is_read(direct: DirectApi) -> None:
    direct.define(sites=("a", "b", "c", "d"), start="manual")
    direct.join("heart", "a", "b", "c")
    assert refused(direct, "a", b"nonsense").slug == "wrong-state", "it recruits"
    sessions.start_session(direct.co, ANALYST, "heart")
    assert refused(direct, "d", b"nonsense").slug == "not-addressed"
    direct.join("heart", "d")
    assert refused(direct, "d", b"nonsense").slug == "not-addressed"


def test_contents_are_parsed_then_matched_then_judged(direct: DirectApi) -> None:
    direct.session()
    wrong_digest = {"digest": "0" * 64}
    digest = direct.digest("heart", "north", 1)
    short = counting_method.Vote(votes=np.zeros(2))
    cases = [
        (b"\xc1", "invalid", ""),
        (b"", "invalid", ""),
        (write_submission("nope", digest, None), "invalid", "/phase"),
        (write_submission("rest", digest, None), "task-mismatch", ""),
        (direct.body("heart", "north", **wrong_digest), "task-mismatch", ""),
        (direct.body("heart", "north", empty=True, **wrong_digest), "task-mismatch", ""),
        (direct.body("heart", "south"), "task-mismatch", ""),
        (write_submission("count", digest, short), "invalid", "/payload/votes"),
        (direct.body("heart", "north", weight=0.0), "disclosure-refused", "/payload/votes/0"),
        # A body that cannot be parsed is told so before its digest is looked at.
        (write_submission("count", "0" * 64, counting_method.Place(rank=3)), "invalid", "/payload"),
    ]
    for body, slug, pointer in cases:
        found = refused(direct, "north", body)
        assert found.slug == slug
        if pointer:
            assert found.errors[0].pointer.startswith(pointer)
    assert direct.stored() == []
    refusals = direct.audit(action="submission.refused")
    assert len(refusals) == len(cases)
    assert all(details.keys() == {"round", "rule"} for _, _, details in refusals)
    assert direct.answer("heart", "north").created


def test_json_and_binary_are_stored_alike(direct: DirectApi) -> None:
    payloads = []
    for name, media in (("one", JSON), ("two", BINARY)):
        direct.session(name)
        direct.answer(name, "north", media=media)
        current = direct.latest(name)
        kept = direct.store.read("t", lambda tx, r=current: tx.submissions.get(r.id, "north"))
        payloads.append(kept.payload)
    assert payloads[0] == payloads[1] is not None


def test_the_larger_smallest_count_holds_everywhere(direct: DirectApi) -> None:
    direct.define(rounds=1, policy={"min_group_size": 5})
    for name, own in (("north", 9), ("south", 3), ("west", None)):
        direct.join("heart", name, min_group_size=own)
    direct.answer("heart", "north", "south", "west")
    assert counting_method.CHECKED == [(9, "50-199"), (5, "50-199"), (5, "50-199")]
    direct.drive()
    assert counting_method.CONTRIBUTED == [("north", 9), ("south", 5), ("west", 5)]


def test_a_repeated_answer_does_not_hide_what_came_after_it(direct: DirectApi) -> None:
    """A site whose first receipt was lost must not wait with the ETag of a task unseen."""
    direct.session(rounds=2)
    body = direct.body("heart", "north")
    first = direct.put("heart", "north", body, 1)
    again = direct.put("heart", "north", body, 1)
    assert first.view.digest == again.view.digest == direct.view("heart", "north").digest
    direct.answer("heart", "south", "west")
    direct.drive()
    assert direct.view("heart", "north").response.status == "work"
    late = direct.put("heart", "north", body, 1)
    assert (late.receipt, late.view) == (first.receipt, None)


def test_an_answered_site_sleeps_until_the_next_round(direct: DirectApi) -> None:
    """Neither others' answers nor the aggregation change what it waits with."""
    direct.session(rounds=2)
    etag = direct.answer("heart", "north").view.digest
    before = direct.view("heart", "north")
    version, progress = before.version, before.response.progress
    assert (progress.answered, progress.addressed) == (1, 3)
    for name in ("south", "west"):
        assert direct.answer("heart", name).view.digest == direct.view("heart", name).digest
    view = direct.view("heart", "north")
    assert (view.digest, view.version) == (etag, version)
    assert direct.drive() == 1
    after = direct.view("heart", "north")
    assert after.version > version
    assert after.digest != etag


def test_nothing_that_was_sent_is_logged_or_audited(
    direct: DirectApi, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    direct.session()
    secret = "lifespan-of-patient-4711"
    digest = direct.digest("heart", "north", 1)
    for text in (
        f'{{"phase":"{secret}","task_digest":"{digest}","payload":null}}',
        f'{{"phase":"count","task_digest":"{digest}","payload":{{"{secret}":1}}}}',
        f'{{"phase":"count","task_digest":"{secret}","payload":null}}',
    ):
        found = refused(direct, "north", text.encode(), media=JSON)
        assert secret not in found.to_problem().model_dump_json()
    printed = capsys.readouterr()
    assert secret not in caplog.text + printed.out + printed.err + str(direct.audit())


def test_a_site_reads_its_receipts(both: DirectApi) -> None:
    both.session(sites=("east", "north", "south", "west"), rounds=2)
    both.answer("heart", "east")
    sent = [both.answer("heart", "north").receipt]
    both.answer("heart", "south", empty=True)
    both.answer("heart", "west")
    both.drive()
    sent.append(both.answer("heart", "north").receipt)

    def read(who: str, **page: Any) -> list[Any]:
        return list(list_receipts(both.co, site(who), "heart", **page).items)

    found = read("north")
    for mine, receipt in zip(found, sent, strict=True):
        assert mine.model_dump(exclude={"empty", "scrubbed"}) == receipt.model_dump(
            exclude={"session", "site"}
        )
    assert [(each.empty, each.scrubbed) for each in found] == [(False, False)] * 2
    (empty,) = read("south")
    assert (empty.empty, empty.scrubbed) == (True, False)
    first = list_receipts(both.co, site("north"), "heart", 1)
    assert [*first.items, *read("north", cursor=first.next)] == found
    both.finish("heart")
    both.later(31 * 86_400)
    assert [each.scrubbed for each in read("north")] == [True, True]
    assert not any(each.scrubbed for each in read("south") if each.empty)
