"""A site's part in a session: what it consents to, accepts, sends, refuses, and gets."""

import copy
import dataclasses
import json
import logging
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from fedclust import errors, rounds, simulate
from fedclust.definition import canonical
from fedclust.methods.registry import METHODS
from fedclust.result.session_result import SessionResult
from fedclust.schema.task import SiteSide, SiteTask
from fedclust.site import Preview, Progress, Site
from fedclust.site.cohorts import CohortStore
from fedclust.site.consent import ConsentRequest
from fedclust.site.journal import Journal, recorded_answers
from fedclust.site.ledger import Ledger
from fedclust.site.settings import settings_path
from fedclust.site.state import SiteState, state_directory
from fedclust.wire import codec
from fedclust.wire.models import TaskResponse
from support.crashes import ticking
from support.fake_coordinator import EPOCH, URL, FakeCoordinator, in_json, refusal, three_clusters
from support.ledgers import body_lines

MINE = three_clusters(80, 3)
OTHERS = {"alpha": three_clusters(60, 1), "beta": three_clusters(50, 2)}


def coordinator(**definition: Any) -> FakeCoordinator:
    return FakeCoordinator(OTHERS, **definition)


@pytest.fixture
def fake() -> FakeCoordinator:
    return coordinator()


def refused(
    fake: FakeCoordinator, place: Path, error: Any, match: str | None = None, **given: Any
) -> Any:
    """Return the error with which taking part ends."""
    with pytest.raises(error, match=match) as caught:
        fake.site(place).participate("heart", MINE, **{"consent": True, **given})
    return caught.value


def journal(fake: FakeCoordinator, directory: Path) -> Journal:
    return Journal(SiteState(directory), URL, "me", "heart", fake.sha256)


# --- the whole path -------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [1, 2])
def test_it_gives_what_simulate_gives_in_one_or_two_requests_a_round_and_five_around_it(
    tmp_path: Path, fake: FakeCoordinator, each: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    fake.sends_next = each == 1
    result = fake.site(tmp_path).participate("heart", MINE, consent=True)
    assert "fcs_secret" not in caplog.text
    assert str(MINE[0, 0])[:8] not in caplog.text
    n = len(fake.accepted)
    assert n >= 4
    assert len(fake.requests) == each * n + 5
    assert sum(request.endswith("/task") for request in fake.requests) == (each - 1) * n + 1
    expected = simulate(
        "lloyd",
        {**OTHERS, "me": MINE},
        config={"n_clusters": 3},
        policy={"max_rounds": 4},
        features=["x", "y"],
        seed=7,
    )
    np.testing.assert_array_equal(result.labels_, expected.labels_["me"])
    np.testing.assert_array_equal(result.cluster_centers_, expected.cluster_centers_)
    assert result.sizes_ == expected.sizes_
    np.testing.assert_array_equal(result.predict(MINE), result.labels_)


def test_json_bodies_give_the_same_and_can_be_read(tmp_path: Path) -> None:
    binary, plain = coordinator(), coordinator()
    one = binary.site(tmp_path / "a").participate("heart", MINE, consent=True)
    other = plain.site(tmp_path / "b", json_bodies=True).participate("heart", MINE, consent=True)
    assert codec.encode(one.document.result) == codec.encode(other.document.result)
    for body in plain.accepted.values():
        assert json.loads(body)["payload"]


def test_a_completed_session_gives_its_result_again(tmp_path: Path, fake: FakeCoordinator) -> None:
    first = fake.site(tmp_path).participate("heart", MINE, consent=True)
    fake.requests.clear()
    allow_from(11, tmp_path)  # also under a stricter setting
    again = fake.site(tmp_path).participate("heart", MINE, consent=True)
    np.testing.assert_array_equal(first.labels_, again.labels_)
    assert not [request for request in fake.requests if not request.startswith("GET")]


def test_too_few_rows_answer_empty_and_label_all_the_same(tmp_path: Path) -> None:
    fake = FakeCoordinator({**OTHERS, "gamma": three_clusters(40, 9)})
    result = fake.site(tmp_path).participate("heart", MINE[:3], consent=True)
    assert len(result.labels_) == 3
    entries = body_lines(tmp_path)
    assert all(entry["empty"] and entry["smallest_count"] is None for entry in entries)
    assert len(entries) == len(fake.accepted)


def test_rows_without_a_value_get_no_label(tmp_path: Path) -> None:
    holed = MINE.copy()
    holed[5, 1] = np.nan
    fake = coordinator(policy={"max_rounds": 4, "missing": "drop"})
    result = fake.site(tmp_path).participate("heart", holed, consent=True)
    assert result.labels_[5] == -1
    assert (np.delete(result.labels_, 5) >= 0).all()
    result.save(tmp_path / "r.fedclust")
    saved = (tmp_path / "r.fedclust").read_bytes()
    assert not [value for value in holed[0].tolist() if repr(value).encode() in saved]


def test_what_a_site_remembers_is_never_saved_with_its_result(tmp_path: Path) -> None:
    config = {"n_clusters": 3, "alignment": "procrustes"}
    fake, new = coordinator(algorithm="spectral", config=config), three_clusters(20, 9)
    found = fake.site(tmp_path).participate("heart", MINE, consent=True)
    labels = found.predict(new)
    sites = {**OTHERS, "me": MINE}
    expected = simulate("spectral", sites, config=config, features=["x", "y"], seed=7)
    assert np.array_equal(labels, expected.predict(new, site="me"))
    assert (labels >= 0).all()
    found.save(tmp_path / "saved")
    assert (SessionResult.load(tmp_path / "saved").predict(new) == -1).all()
    held = (tmp_path / "saved").read_bytes()
    for row in (*(MINE - found.result.center) / found.result.scale, *MINE):
        assert row.tobytes() not in held
        assert not [value for value in row.tolist() if repr(value).encode() in held]


# --- consent --------------------------------------------------------------------------------------


def test_consent_is_asked_once_with_all_that_matters_and_recorded(tmp_path: Path) -> None:
    asked: list[ConsentRequest] = []

    def agree(request: ConsentRequest) -> bool:
        asked.append(request)
        assert fake.joined is None, "asked before anything is told"
        return True

    fake = coordinator()
    fake.site(tmp_path).participate("heart", MINE, consent=agree, min_group_size=9)
    fake.site(tmp_path).participate("heart", MINE, consent=agree, min_group_size=9)
    (request,) = asked
    assert request.definition_sha256 == fake.sha256
    assert (request.p, request.persons, request.size_band) == (9, 80, "50-199")
    assert request.analyst == "ada"
    assert all(line.meaning for phase in request.phases for line in phase.discloses)
    assert "groups of at least 9 similar persons" in dict(request.text())["leaves"]
    assert any("Each row counts as a person" in note for note in request.notes)
    assert journal(fake, tmp_path).record.consented_at == EPOCH
    assert fake.joined.definition_sha256 == fake.sha256
    assert fake.joined.min_group_size == 9


def test_who_consents_reads_that_an_unused_column_repeats_ids(tmp_path: Path) -> None:
    """Each row counts as a person: two rows of one would be two of the five in a group."""
    table = pd.DataFrame(MINE, columns=["x", "y"])
    table["case"] = [f"c-{max(1, row)}" for row in range(len(table))]
    asked: list[ConsentRequest] = []
    for named in ({}, {"person": "case"}):
        with pytest.raises(errors.ConsentDeclined):
            coordinator().site(tmp_path).participate("heart", table, consent=asked.append, **named)
    unnamed, named = asked
    (said,) = unnamed.warnings
    assert "column 'case' looks like an identifier: 1 id occurs in several rows (2 rows)" in said
    assert ("warning", said) in unnamed.text()
    assert named.warnings == ()


def test_two_sites_need_it_said(tmp_path: Path) -> None:
    policy = {"min_sites": 2, "max_rounds": 4}
    fake = FakeCoordinator({"alpha": OTHERS["alpha"]}, policy=policy)
    caught = refused(fake, tmp_path, errors.ConsentNeeded, "two_sites_with alpha", consent=None)
    assert caught.needed == ("consent", "two_sites_with alpha")
    assert fake.joined is None
    fake.site(tmp_path).participate("heart", MINE, consent=True)
    assert fake.joined.consents.two_sites_with == "alpha"


def test_a_session_without_protection_needs_it_said(tmp_path: Path) -> None:
    fake = coordinator(policy={"protection": "none", "max_rounds": 4})
    refused(fake, tmp_path, errors.ConsentNeeded, "protection_none", consent=None)
    seen: list[ConsentRequest] = []
    fake.site(tmp_path).participate("heart", MINE, consent=lambda r: not seen.append(r))
    assert "can compute single records" in seen[0].promise
    assert fake.joined.consents.protection_none


def test_another_definition_is_asked_about_again(tmp_path: Path) -> None:
    asked = []
    for config in ({"n_clusters": 3}, {"n_clusters": 2}):
        fake = coordinator(config=config)
        fake.site(tmp_path).participate("heart", MINE, consent=lambda r: not asked.append(r))
    assert len({request.definition_sha256 for request in asked}) == 2


def test_ask_sees_every_submission_first_and_may_stop(tmp_path: Path) -> None:
    asked: list[Preview] = []

    def ask(preview: Preview) -> bool:
        assert len(fake.puts) == len(asked)
        asked.append(preview)
        return len(asked) < 3

    fake = coordinator()
    refused(fake, tmp_path, errors.ConsentDeclined, ask=ask)
    assert [preview.body for preview in asked[:2]] == [body for _, body in fake.puts]
    assert len(journal(fake, tmp_path).answers) == 2
    fake.site(tmp_path).participate("heart", MINE, ask=lambda _preview: True, consent=True)
    assert fake.accepted[3] == asked[2].body


# --- preview --------------------------------------------------------------------------------------


def test_preview_is_what_is_sent_byte_for_byte_and_sends_nothing(tmp_path: Path) -> None:
    fake = coordinator()
    site = fake.site(tmp_path)
    previews: dict[int, Preview] = {1: site.preview("heart", MINE)}
    assert "sites invited" in previews[1].note
    assert Ledger(SiteState(tmp_path)).head()[0] == 0
    assert CohortStore(SiteState(tmp_path)).records() == {}

    def look(progress: Progress) -> None:
        if progress.event in ("joined", "sent") and fake.state == "running":
            before = list(fake.requests)
            ahead = fake.site(tmp_path).preview("heart", MINE)
            assert all(r.startswith("GET") for r in fake.requests[len(before) :])
            previews[fake.round] = ahead

    site.participate("heart", MINE, on_progress=look, consent=True)
    assert {n: preview.body for n, preview in previews.items()} == fake.accepted
    assert [previews[n].phase for n in sorted(previews)][:2] == ["prepare", "cells"]
    after = site.preview("heart", MINE)
    assert after.body is None
    assert after.note


# --- what a site does not accept ------------------------------------------------------------------


def tampered(fake: FakeCoordinator, change: Any) -> None:
    """Let the coordinator answer the second round's task changed."""
    original = fake.task

    def task() -> TaskResponse:
        view = original()
        if view.task is None or view.round != 2:
            return view
        return change(view)

    fake.task = task  # type: ignore[method-assign]


def with_document(view: TaskResponse, *, rehash: bool, **changes: Any) -> TaskResponse:
    document = view.task.model_copy(update=changes)
    if rehash:
        digest = codec.task_digest(document.common, document.site)
        document = document.model_copy(update={"digest": digest})
    return view.model_copy(update={"task": document})


def other(view: TaskResponse | None = None, *, rehash: bool = True, **changes: Any) -> Any:
    """Return the same task with another common part, or what makes one of it."""
    if view is None:
        return lambda found: other(found, rehash=rehash, **changes)
    return with_document(view, rehash=rehash, common={**copy.deepcopy(view.task.common), **changes})


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (other(rehash=False, phase="lloyd"), "task-digest"),
        (other(session="other"), "task-place"),
        (other(round=1), "task-place"),
        (other(phase="lloyd"), "task-place"),
        (lambda v: with_document(other(v, phase="rows"), rehash=True, phase="rows"), "task-phase"),
        (other(parameters={"x": 1}), "task"),
        (lambda v: v.model_copy(update={"task": None}), "task"),
        (lambda v: other(v.model_copy(update={"round": 99}), round=99), "task-rounds"),
    ],
)
def test_a_task_that_is_not_what_was_consented_to_is_refused(
    tmp_path: Path, change: Any, rule: str, fake: FakeCoordinator
) -> None:
    tampered(fake, change)
    broken = refused(fake, tmp_path, errors.TaskRefused)
    assert [number for number, _ in fake.puts] == [1]
    assert list(journal(fake, tmp_path).answers) == [1]
    # The coordinator gets the rule and nothing else; the site takes no part from then on.
    assert broken.rule == rule
    assert [each for _, each in fake.refused] == [rule]
    refused(fake, tmp_path, errors.SiteLeft, f"refused a task .{rule}.")
    assert len(fake.puts) == len(fake.refused) == 1


def test_a_refusal_is_repeated_until_it_arrives_and_a_preview_sends_none(
    tmp_path: Path, fake: FakeCoordinator
) -> None:
    tampered(fake, lambda v: with_document(v, rehash=False, digest="0" * 64))
    lost: list[str] = []

    def cut(request: httpx.Request) -> None:
        if request.url.path.endswith("/refusal"):
            raise httpx.ConnectError("down", request=request)

    def lose(request: httpx.Request) -> None:
        if request.url.path.endswith("/refusal") and not lost:
            lost.append(request.url.path)
            raise httpx.ReadError("lost", request=request)

    fake.before = cut
    refused(fake, tmp_path, errors.CoordinatorUnreachable)
    with pytest.raises(errors.TaskRefused):
        fake.site(tmp_path).preview("heart", MINE)
    assert fake.refused == []
    # Later it arrives, and its answer is lost.
    fake.before, fake.after = lambda _request: None, lose
    with pytest.raises(errors.TaskRefused):
        fake.site(tmp_path, give_up_after_s=60.0).participate("heart", MINE, consent=True)
    assert [rule for _, rule in fake.refused] == ["task-digest", "task-digest"]
    assert len(fake.puts) == 1


def test_a_round_is_never_answered_twice_differently(tmp_path: Path, fake: FakeCoordinator) -> None:
    """A coordinator that asks a round again with other parameters gets nothing."""
    fake.site(tmp_path).participate("heart", MINE, consent=True)
    second = FakeCoordinator({"alpha": OTHERS["alpha"] + 1, "beta": OTHERS["beta"]})
    assert second.sha256 == fake.sha256
    refused(second, tmp_path, errors.TaskRefused, "something else")
    # Round 1 asks the same of everybody, and gets the same bytes; round 2 would differ.
    assert [body for _, body in second.puts] == [fake.accepted[1]]


def test_a_coordinator_that_keeps_asking_is_not_answered_for_ever(tmp_path: Path) -> None:
    fake = coordinator()
    fake.close_round = lambda: None  # type: ignore[method-assign]
    refused(fake, tmp_path, errors.TaskRefused, "asks again")
    # A coordinator restored from a backup is given the same bytes again.
    assert len(fake.puts) == 4
    assert len({body for _, body in fake.puts}) == 1


def test_a_site_joins_again_if_a_restored_coordinator_lost_its_joining(
    tmp_path: Path, fake: FakeCoordinator
) -> None:
    joins: list[bytes] = []

    def restored_once(request: httpx.Request) -> None:
        assert len(fake.requests) < 100
        if request.url.path.endswith("/participation"):
            joins.append(request.content)
        elif request.url.path.endswith("/task") and len(joins) == 1:
            fake.state, fake.presence, fake.round, fake.step = "recruiting", "invited", 0, None
            fake.memories = {name: {} for name in fake.others}

    fake.before = restored_once
    asked: list[ConsentRequest] = []
    result = fake.site(tmp_path).participate(
        "heart", MINE, consent=lambda request: asked.append(request) is None
    )
    assert result.labels is not None
    assert len(joins) == 2
    assert joins[0] == joins[1]
    assert len(asked) == 1


@pytest.mark.parametrize(
    "policy", [{"min_group_size": 2}, {"min_sites": 1}, {"min_sites": 2, "max_rounds": 4}]
)
def test_a_definition_below_the_floors_is_refused(tmp_path: Path, policy: dict[str, Any]) -> None:
    fake = coordinator()
    lowered = fake.definition.policy.model_copy(update=policy)
    fake.definition = fake.definition.model_copy(update={"policy": lowered})
    fake.sha256 = codec.sha256(canonical(fake.definition))
    refused(fake, tmp_path, errors.ProtocolError, "definition breaks")
    assert fake.joined is None


def test_a_definition_of_another_hash_is_refused(tmp_path: Path, fake: FakeCoordinator) -> None:
    fake.sha256 = "0" * 64
    refused(fake, tmp_path, errors.ProtocolError, "hash")


@pytest.mark.parametrize("of", ["method_version", "engine_version"])
def test_an_unsupported_version_names_the_upgrade(tmp_path: Path, of: str) -> None:
    fake = coordinator()
    fake.definition = fake.definition.model_copy(update={of: 99})
    fake.sha256 = codec.sha256(canonical(fake.definition))
    refused(fake, tmp_path, errors.VersionUnsupported, 'pip install "fedclust==VERSION"')


def test_an_answer_that_breaks_a_rule_stays_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The method's local step goes wrong; the site's own check stands in the way."""
    sound, method, asked = rounds.local_step, METHODS["lloyd"], []

    def noted(*args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs["site"])
        return sound(*args, **kwargs)

    def leaky(task: SiteTask, site: SiteSide) -> Any:
        payload = rounds.phase(method, task.phase).local_step(task, site)
        if asked[-1] == "me":
            counts = np.array(payload.counts)
            counts[0] = 1
            payload = payload.model_copy(update={"counts": counts})
        return payload

    monkeypatch.setattr(rounds, "local_step", noted)
    phases = tuple(dataclasses.replace(each, local_step=leaky) for each in method.phases)
    monkeypatch.setitem(METHODS, "lloyd", dataclasses.replace(method, phases=phases))
    fake = coordinator()
    refused(fake, tmp_path, errors.DisclosureError)
    assert [number for number, _ in fake.puts] == [1]
    assert list(journal(fake, tmp_path).answers) == [1]


def test_data_that_do_not_fit_are_refused_first(tmp_path: Path, fake: FakeCoordinator) -> None:
    path = tmp_path / "c.csv"
    path.write_text("x,z\n1,2\n", "utf-8")
    with pytest.raises(errors.DataError, match=r"c\.csv, column 'y'"):
        fake.site(tmp_path / "state").participate("heart", path, consent=True)
    assert fake.requests == ["GET /v1/whoami", "GET /v1/sessions/heart"]


def test_a_token_of_somebody_else(tmp_path: Path, fake: FakeCoordinator) -> None:
    for change, kind in (
        ({"role": "analyst"}, errors.Forbidden),
        ({"protocol_version": 2}, errors.ProtocolError),
        ({"name": "../../etc"}, errors.ProtocolError),
    ):
        site = fake.site(tmp_path)
        who = site._client.whoami().model_copy(update=change)
        site._client.whoami = lambda who=who: who  # type: ignore[method-assign, misc]
        with pytest.raises(kind):
            site.participate("heart", MINE, consent=True)
    assert fake.joined is None


@pytest.mark.parametrize("number", [0, 1, -3])
def test_a_smallest_count_below_2_is_refused(tmp_path: Path, number: int) -> None:
    with pytest.raises(errors.UsageError):
        coordinator().site(tmp_path).participate("heart", MINE, min_group_size=number, consent=True)


# --- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "kind", "reason"),
    [
        ("state", "failed", errors.SessionFailed, "too_few_contributors"),
        ("state", "cancelled", errors.SessionCancelled, None),
        ("presence", "left", errors.SiteLeft, "left"),
        ("presence", "excluded", errors.SiteLeft, "excluded"),
    ],
)
@pytest.mark.parametrize("rounds", [0, 2])
def test_a_session_that_ends_otherwise_or_for_this_site(
    tmp_path: Path,
    fake: FakeCoordinator,
    field: str,
    value: str,
    kind: Any,
    reason: Any,
    rounds: int,
) -> None:
    fake.failure = "too_few_contributors"

    def end(progress: Progress | None = None) -> None:
        if progress is None or (progress.event, progress.round) == ("sent", rounds):
            setattr(fake, field, value)

    if not rounds:
        end()
    caught = refused(fake, tmp_path, kind, on_progress=end)
    assert (caught.session, getattr(caught, "reason", None)) == ("heart", reason)
    assert len(fake.puts) == rounds


# --- refusals of a submission ---------------------------------------------------------------------


def answering(fake: FakeCoordinator, number: int, slug: str, then: Any = None) -> None:
    """Let the coordinator refuse the submission of a round."""

    def before(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith(f"/rounds/{number}/submission"):
            fake.puts.append((number, request.content))
            if then is not None:
                then()
            return refusal(slug)
        return None

    fake.before = before


def test_a_round_that_has_moved_on_is_recorded_and_the_next_one_answered(tmp_path: Path) -> None:
    # Closed without this site just before its answer arrived: at the deadline, with the quorum.
    fake = FakeCoordinator({**OTHERS, "gamma": three_clusters(40, 9)})
    answering(fake, 3, "round-closed", lambda: fake.close_round())
    reported: list[Progress] = []
    result = fake.site(tmp_path).participate(
        "heart", MINE, on_progress=reported.append, consent=True
    )
    assert result.labels_ is not None
    assert 3 not in fake.accepted
    assert {2, 4} <= fake.accepted.keys()
    entries = {entry["round"]: entry for entry in body_lines(tmp_path)}
    assert entries[3]["refused"] == "round-closed"
    assert entries[3]["receipt"] is None
    assert entries[4]["receipt"]["round"] == 4
    assert [e.round for e in reported if e.event == "refused"] == [3]
    # Its memory is kept all the same: the bytes left.
    assert 3 in journal(fake, tmp_path).answers


@pytest.mark.parametrize(
    ("slug", "kind"),
    [
        ("disclosure-refused", errors.DisclosureRefused),
        ("invalid", errors.Invalid),
        ("task-mismatch", errors.TaskMismatch),
        ("submission-differs", errors.SubmissionDiffers),
    ],
)
def test_a_body_that_is_refused_stops_and_is_in_the_ledger(
    tmp_path: Path, slug: str, kind: Any, fake: FakeCoordinator
) -> None:
    answering(fake, 2, slug)
    for _ in range(2):
        refused(fake, tmp_path, kind)
    bodies = {body for number, body in fake.puts if number == 2}
    assert len(bodies) == 1
    entries = [entry for entry in body_lines(tmp_path) if entry["round"] == 2]
    assert [entry["refused"] for entry in entries] == [slug]


def test_a_receipt_of_other_bytes_is_not_believed(tmp_path: Path, fake: FakeCoordinator) -> None:
    original = fake._submit

    def lying(number: int, request: httpx.Request) -> httpx.Response:
        reply = original(number, request)
        if number == 2:
            other = fake.receipts[2].model_copy(update={"sha256": "0" * 64})
            return in_json(other, 201)
        return reply

    fake._submit = lying  # type: ignore[method-assign]
    refused(fake, tmp_path, errors.ProtocolError, "receipt")
    assert [answer.round for answer in journal(fake, tmp_path).unsettled()] == [2]


# --- resuming -------------------------------------------------------------------------------------


def interrupted(tmp_path: Path, after: int = 1) -> FakeCoordinator:
    """Return a session whose site lost the answer to submission ``after + 1``."""
    fake = coordinator()

    def lose(request: httpx.Request) -> None:
        if "submission" in request.url.path and len(fake.puts) > after:
            raise httpx.ReadError("the connection broke")

    fake.after = lose
    refused(fake, tmp_path, errors.CoordinatorUnreachable)
    fake.after = lambda _request: None
    return fake


@pytest.mark.parametrize("other", [MINE[::-1], MINE + 1e-9])
def test_other_rows_are_refused_before_anything_is_sent(
    tmp_path: Path, other: NDArray[np.float64]
) -> None:
    fake = interrupted(tmp_path)
    sent = len(fake.puts)
    with pytest.raises(errors.OtherData):
        fake.site(tmp_path).participate("heart", other, consent=True)
    with pytest.raises(errors.OtherData):
        fake.site(tmp_path).preview("heart", other)
    refused(fake, tmp_path, errors.OtherData, person=np.arange(80) // 2)
    said = r"\(--min-group-size, site.toml\) differs"
    refused(fake, tmp_path, errors.OtherData, said, min_group_size=20)
    assert len(fake.puts) == sent


# --- the site's own least group size --------------------------------------------------------------


def allow_from(least: int, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    settings_path(directory).write_text(f"min_group_size = {least}\n", "utf-8")


@pytest.mark.parametrize(("given", "session_p", "used"), [(None, 5, 11), (7, 5, 11), (20, 12, 20)])
def test_the_settings_raise_the_least_group_size(
    tmp_path: Path, given: int | None, session_p: int, used: int
) -> None:
    allow_from(11, tmp_path)
    fake = coordinator(policy={"max_rounds": 4, "min_group_size": session_p})
    site = fake.site(tmp_path)
    assert site.check("heart", MINE, min_group_size=given).p == used
    for _ in range(2):  # the second call resumes
        site.participate("heart", MINE, min_group_size=given, consent=True)
    assert fake.joined.min_group_size == used
    (table,) = CohortStore(SiteState(tmp_path)).records().values()
    assert table.cohort.sizes.min() >= used
    assert {line["smallest_count"] >= used for line in body_lines(tmp_path)} == {True}


def test_a_session_joined_with_smaller_groups_sends_nothing_more(tmp_path: Path) -> None:
    fake = interrupted(tmp_path)
    sent = len(fake.puts)
    allow_from(11, tmp_path)
    for own in (None, 5):
        said = r"at least 5 persons.*fedclust leave"
        refused(fake, tmp_path, errors.DisclosureError, said, min_group_size=own)
    assert len(fake.puts) == sent


def test_a_setting_that_is_made_during_a_session_holds_from_the_next_body_on(
    tmp_path: Path, fake: FakeCoordinator
) -> None:
    def ask(preview: Preview) -> bool:
        if preview.round == 2:
            allow_from(11, tmp_path)
        return True

    refused(fake, tmp_path, errors.DisclosureError, "fewer than 11", ask=ask)
    assert [number for number, _ in fake.puts] == [1]


def test_a_least_group_size_in_the_settings_allows_no_exact_rows(tmp_path: Path) -> None:
    allow_from(3, tmp_path)
    fake = coordinator(policy={"protection": "none", "max_rounds": 4})
    for act in (fake.site(tmp_path).participate, fake.site(tmp_path).check):
        with pytest.raises(errors.DisclosureError, match="asks for exact rows"):
            act("heart", MINE)
    assert fake.joined is None


LOST = {
    "all": ("DELETE FROM answers", "DELETE FROM sessions"),
    "the record": ("DELETE FROM sessions",),
    "the last round": ("DELETE FROM answers WHERE round = (SELECT max(round) FROM answers)",),
    "one in the middle": ("DELETE FROM answers WHERE round = 2",),
    "half of each line of the ledger": ("UPDATE ledger SET text = substr(text, 20)",),
}


@pytest.mark.parametrize("lost", LOST)
def test_a_state_that_lacks_what_was_sent_is_refused(tmp_path: Path, lost: str) -> None:
    fake = interrupted(tmp_path, after=3)
    with SiteState(tmp_path).write() as connection:
        for statement in ("PRAGMA foreign_keys = OFF", *LOST[lost]):
            connection.execute(statement)
    sent = len(fake.puts)
    refused(fake, tmp_path, errors.StateDamaged, "ledger" if "ledger" in lost else None)
    assert len(fake.puts) == sent


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("sessions", "record"),
        ("sessions", "standing"),
        ("answers", "answer"),
        ("answers", "outcome"),
    ],
)
def test_damage_of_the_journal_stops_the_site(tmp_path: Path, table: str, column: str) -> None:
    fake = interrupted(tmp_path)
    state = SiteState(tmp_path)
    sent = len(fake.puts)
    with state.read() as connection:
        query = f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL"  # noqa: S608
        row, sound = connection.execute(query).fetchone()
    put = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"  # noqa: S608
    for damaged in (sound[:-3] + b"???", sound[:-1], b""):
        with state.write() as connection:
            connection.execute(put, (damaged, row))
        refused(fake, tmp_path, errors.StateDamaged, "fedclust restore")
    assert len(fake.puts) == sent
    with state.write() as connection:
        connection.execute(put, (sound, row))
    fake.site(tmp_path).participate("heart", MINE, consent=True)


def test_another_journal_that_answers_meanwhile_is_noticed(tmp_path: Path) -> None:
    """Without the answer to round 1 nothing shows what was sent."""
    fake = coordinator()

    def overtaken(request: httpx.Request) -> None:
        if request.url.path.endswith("/participation"):
            fake.after = lambda _request: None
            with pytest.raises(errors.ConsentDeclined):
                fake.site(tmp_path / "a").participate(
                    "heart", MINE, ask=lambda p: p.round == 1, consent=True
                )

    fake.after = overtaken
    refused(fake, tmp_path / "b", errors.StateDamaged, "answered round 1")
    assert [number for number, _ in fake.puts] == [1]


@pytest.mark.parametrize("at", [0, 3, 5, 8, 11])
def test_a_disk_that_fills_up_is_named_and_nothing_is_lost(tmp_path: Path, at: int) -> None:
    fake, counted = coordinator(), iter(range(1000))

    def full() -> None:
        if next(counted) >= at:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

    with ticking(full), pytest.raises(errors.StateError, match=r"is full.*same command again"):
        fake.site(tmp_path / "state").participate("heart", MINE, consent=True)
    fake.site(tmp_path / "state").participate("heart", MINE, consent=True)
    assert len({number for number, _ in fake.puts}) == len(set(fake.puts))
    assert Ledger(SiteState(tmp_path / "state")).verify() == []


def test_a_callers_own_error_is_not_taken_for_the_journals(tmp_path: Path) -> None:
    def broken(_progress: Progress) -> None:
        raise FileNotFoundError(2, "No such file", "report.txt")

    with pytest.raises(FileNotFoundError):
        coordinator().site(tmp_path).participate("heart", MINE, on_progress=broken, consent=True)


def test_an_account_has_one_state_and_without_a_home_directory_must_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("FEDCLUST_STATE_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    assert state_directory() == tmp_path / "fedclust"

    for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(errors.UsageError, match="FEDCLUST_STATE_DIR"):
        state_directory()
    monkeypatch.setenv("FEDCLUST_STATE_DIR", str(tmp_path))
    assert state_directory() == tmp_path
    assert SiteState().path == tmp_path / "state.sqlite3"


def test_first_contact_is_as_patient_as_asked(tmp_path: Path, fake: FakeCoordinator) -> None:
    fake.before = lambda _request: refusal("unavailable")
    site = fake.site(tmp_path, give_up_after_s=7.0)
    seen: list[float] = []
    fake.after = lambda _request: seen.append(site._http.patience_s)
    with pytest.raises(errors.Unavailable):
        _ = site.name
    assert set(seen) == {7.0}
    site._http.patience_s = 86_400.0
    with pytest.raises(errors.Unavailable):
        _ = site.name
    assert site._http.patience_s == 86_400.0


def test_a_site_that_joined_before_waits(tmp_path: Path, fake: FakeCoordinator) -> None:
    """After a power cut both come back, in any order: the address is known to be right."""
    seen: list[float] = []
    for _ in range(2):
        site = fake.site(tmp_path, give_up_after_s=86_400.0)
        fake.after = lambda _request, site=site: seen.append(site._http.patience_s)
        assert site.name == fake.me
        fake.after = lambda _request: None
        site.participate("heart", MINE, consent=True)
    assert seen == [30.0, 86_400.0]


def test_a_proxy_that_removes_the_etag_is_reported(tmp_path: Path, fake: FakeCoordinator) -> None:
    """Or every long poll would be answered at once, for as long as a round lasts."""

    def bare(request: httpx.Request) -> httpx.Response | None:
        if not request.url.path.endswith("/task"):
            return None
        reply = fake._task(request)
        del reply.headers["ETag"]
        return reply

    fake.before = bare
    refused(fake, tmp_path, errors.ProtocolError, "ETag")


def test_no_payload_and_no_label_is_in_a_repr(tmp_path: Path) -> None:
    fake, shown = coordinator(), []
    ids = [f"SECRET{i}" for i in range(len(MINE))]
    frame = pd.DataFrame({"mrn": ids, "x": MINE[:, 0], "y": MINE[:, 1]})
    site = fake.site(tmp_path)
    result = site.participate(
        "heart",
        frame,
        id_column="mrn",
        ask=lambda preview: shown.append(repr(preview)) is None,
        consent=True,
    )
    (answer, _), *_ = recorded_answers(SiteState(tmp_path))
    texts = [*shown, repr(result), repr(site), repr(answer)]
    assert all("SECRET" not in text and "labels_" not in text for text in texts)
    assert all("body=" not in text and "memory=" not in text for text in texts)


def test_two_processes_do_not_run_one_session(tmp_path: Path, fake: FakeCoordinator) -> None:
    def second(progress: Progress) -> None:
        if progress.event == "joined":
            refused(fake, tmp_path, errors.StateLocked)

    fake.site(tmp_path).participate("heart", MINE, on_progress=second, consent=True)


def test_an_upgrade_between_two_runs_does_not_stop_a_session(tmp_path: Path) -> None:
    fake = interrupted(tmp_path)
    written = journal(fake, tmp_path)
    older = written.record.participation.model_copy(update={"sdk_version": "0.0.1"})
    written.write_record(written.record.model_copy(update={"participation": older}))
    fake.site(tmp_path).participate("heart", MINE, consent=True)


# --- the ledger's lines ---------------------------------------------------------------------------


def test_ledger_and_journal_record_what_left(tmp_path: Path, fake: FakeCoordinator) -> None:
    fake.site(tmp_path).participate("heart", MINE, consent=True)
    entries = body_lines(tmp_path)
    assert Ledger(SiteState(tmp_path)).verify() == []
    assert [entry["round"] for entry in entries] == sorted(fake.accepted)
    for entry in entries:
        body = fake.accepted[entry["round"]]
        assert entry["sha256"] == codec.sha256(body)
        assert entry["size"] == len(body)
        assert entry["coordinator"] == URL
        assert (entry["site"], entry["session"]) == ("me", "heart")
        payload = codec.decode(body)["payload"]
        assert {name.split(".")[0].split("[")[0] for name in entry["fields"]} <= payload.keys()
        if "counts" in payload:
            counts = payload["counts"]
            assert entry["smallest_count"] <= min(counts[counts > 0])
            assert entry["fields"]["counts"] == f"int64[{len(counts)}]"
        assert entry["smallest_count"] >= 5
    answers = journal(fake, tmp_path).answers
    assert not any(answer.memory for answer in answers.values())
    assert {n: answer.body for n, answer in answers.items()} == fake.accepted


def test_status_knows_what_is_in_flight(tmp_path: Path) -> None:
    fake = interrupted(tmp_path, after=2)
    (status,) = fake.site(tmp_path).status()
    assert (status.session, status.state, status.site_state) == ("heart", "running", "joined")
    assert (status.sent, status.in_flight) == (2, 1)
    assert fake.site(tmp_path).status("heart") == [status]
    assert status.round == fake.round
    sessions = fake.site(tmp_path).status()
    head, line = repr(sessions).splitlines()
    shown = dict(zip(head.split(), line.split(), strict=True))
    assert (shown["session"], shown["state"]) == ("heart", "running")
    assert (shown["sent"], shown["in_flight"]) == ("2", "1")
    for cell in ("<th>session</th>", ">heart</td>", ">running</td>"):
        assert cell in sessions._repr_html_()


def test_environment_variables_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDCLUST_TOKEN", raising=False)
    monkeypatch.setenv("FEDCLUST_COORDINATOR", URL)
    with pytest.raises(errors.UsageError, match="give url and token"):
        Site()
    monkeypatch.setenv("FEDCLUST_TOKEN", "fcs_secret")
    with Site() as site:
        assert repr(site) == f"Site('{URL}')"


def test_waiting_reports_how_many_have_answered(tmp_path: Path, fake: FakeCoordinator) -> None:
    """Counts stand outside the ETag: a poll that ends quietly asks once without one."""
    answered, reported = iter((1, 2)), []

    def waits(request: httpx.Request) -> httpx.Response | None:
        if not request.url.path.endswith("/task"):
            return None
        if request.headers.get("If-None-Match") == '"wait"':
            return httpx.Response(304, headers={"ETag": '"wait"'}, stream=httpx.ByteStream(b""))
        count = next(answered, None)
        if count is None:
            return None
        view = TaskResponse(
            session_state="running",
            status="waiting",
            round=1,
            progress={"answered": count, "addressed": 3},
        )
        return in_json(view, ETag='"wait"')

    fake.before = waits
    fake.site(tmp_path).participate("heart", MINE, on_progress=reported.append, consent=True)
    waiting = [(each.answered, each.addressed) for each in reported if each.event == "waiting"]
    assert waiting == [(1, 3), (2, 3)]
    quiet = [request for request in fake.requests if request.endswith("/task")]
    assert len(quiet) >= 4
