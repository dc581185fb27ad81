"""Two people at a site: one reviews, another approves; without that nothing is sent."""

import dataclasses
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import errors
from fedclust.schema.feature import Feature
from fedclust.site import Progress, Site
from fedclust.site.approvals import Approval, Review
from fedclust.site.data_terms import data_terms
from fedclust.site.journal import recorded_answers
from fedclust.site.ledger import Ledger
from fedclust.site.settings import settings_path
from fedclust.site.state import state_directory
from fedclust.wire.models import TaskResponse
from support.command_line import Terminal
from support.fake_coordinator import FakeCoordinator, three_clusters
from support.ledgers import body_lines

NAME = "Dr Ruth Levi"
FEATURES = (Feature(name="x"), Feature(name="y"))
MINE, OTHERS = three_clusters(80, 8), three_clusters(50, 9)


@pytest.fixture
def fake() -> FakeCoordinator:
    return FakeCoordinator()


@pytest.fixture
def site(fake: FakeCoordinator) -> Site:
    return fake.site(state_directory())


@pytest.fixture
def required() -> None:
    settings_path(state_directory()).write_text("require_approval = true\n", "utf-8")


def review(site: Site, rows: NDArray[np.float64] = MINE, **options: Any) -> Review:
    return site.review("heart", rows, site.state.directory.parent / "review.html", **options)


def approve(site: Site, code: str | None = None) -> Approval:
    asked = site.last_review("heart")
    return site.approvals.approve(asked, NAME, code or asked.code[:12])


def reviewed_and_approved(site: Site, **options: Any) -> None:
    review(site, **options)
    approve(site)


def refused(site: Site, error: type[Exception], match: str | None = None, **given: Any) -> Any:
    """Return the error with which taking part ends."""
    with pytest.raises(error, match=match) as caught:
        site.participate("heart", MINE, **given)
    return caught.value


def sent(fake: FakeCoordinator) -> list[str]:
    return [request for request in fake.requests if not request.startswith("GET")]


# --- what an approval covers ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"coordinator": "https://other.example"},
        {"site": "other"},
        {"definition": {"name": "other"}},
        {"definition": {"seed": 8}},
        {"p": 6},
        {"features": ("x",)},
        {"persons_declared": True},
        {"data": data_terms(MINE, FEATURES, ("x", "y"), id_column="mrn")},
        {"data": data_terms("cohort.csv", FEATURES, ("x", "y"))},
        {"separate_groups": "ethics 2026-17"},
        {"other_persons": "ethics 2026-17"},
        {"data": data_terms(MINE, FEATURES, ("x", "y"), later="_2027")},
        {"data": data_terms(MINE, FEATURES, ("x", "y"), id_map={"new": "old"})},
    ],
)
def test_every_term_changes_the_code(site: Site, change: dict[str, Any]) -> None:
    request = site.check("heart", MINE)
    if "definition" in change:
        change = {"definition": request.definition.model_copy(update=change["definition"])}
    assert dataclasses.replace(request, **change).approval_code != request.approval_code


def test_express_consents_are_part_of_the_code(tmp_path: Path) -> None:
    fake = FakeCoordinator({"alpha": OTHERS}, policy={"min_sites": 2, "max_rounds": 4})
    request = fake.site(tmp_path).check("heart", MINE)
    assert request.terms["two_sites_with"] == "alpha"
    assert request.terms["protection_none"] is False


# --- with an approval -----------------------------------------------------------------------------


@pytest.mark.usefixtures("required")
def test_a_session_takes_a_review_and_an_approval_and_then_asks_nothing(
    site: Site, fake: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the account is called is asked of the operating system, not of the environment.
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody")
    reviewed = review(site)
    assert sent(fake) == []
    approval = approve(site)
    assert (approval.approved_by, approval.code) == (NAME, reviewed.code)
    if sys.platform != "win32":
        assert approval.account not in ("", "somebody")
    site.participate("heart", MINE)
    joined = fake.requests.count("PUT /v1/sessions/heart/participation")
    site.participate("heart", MINE)
    assert fake.requests.count("PUT /v1/sessions/heart/participation") == joined == 1
    ledger = Ledger(site.state)
    assert ledger.verify() == []
    events = {line["event"]: line for line in ledger.read() if "event" in line}
    recorded_approval = events["approval"]
    assert recorded_approval["approved_by"] == NAME
    assert recorded_approval["time"] == "2026-01-05T08:00:00.000Z"
    assert recorded_approval["definition_sha256"] == fake.sha256
    assert recorded_approval["code"] == events["review"]["code"] == approval.code


def test_resuming_with_separate_groups_needs_no_repeated_text(
    site: Site, fake: FakeCoordinator, tmp_path: Path
) -> None:
    ids = [f"p{i}" for i in range(len(MINE))]
    FakeCoordinator(policy={"max_rounds": 5}).site(state_directory()).participate(
        "heart", MINE, person=ids, consent=True
    )
    settings_path(state_directory()).write_text("require_approval = true\n", "utf-8")
    reviewed = review(site, person=ids, separate_groups="board 7")
    approve(site)
    with pytest.raises(errors.ConsentDeclined):
        site.participate(
            "heart",
            MINE,
            person=ids,
            separate_groups="board 7",
            ask=lambda following: following.round == 1,
        )
    assert len(fake.puts) == 1
    resumed = site.check("heart", MINE, person=ids)
    assert (resumed.separate_groups, resumed.approval_code) == ("board 7", reviewed.code)
    site.participate("heart", MINE, person=ids)
    assert len(fake.puts) > 1


def test_an_express_no_holds_against_an_approval(site: Site, fake: FakeCoordinator) -> None:
    reviewed_and_approved(site)
    refused(site, errors.ConsentDeclined, consent=False)
    assert sent(fake) == []


def test_an_approval_is_consent_where_none_is_required_and_express(tmp_path: Path) -> None:
    policy = {"min_sites": 2, "protection": "none", "max_rounds": 4}
    fake = FakeCoordinator({"alpha": OTHERS}, policy=policy)
    site = fake.site(tmp_path / "journal")
    reviewed_and_approved(site)
    site.participate("heart", MINE)
    assert fake.joined.consents.two_sites_with == "alpha"
    assert fake.joined.consents.protection_none


# --- without --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("required")
@pytest.mark.parametrize("consent", [None, True, lambda _request: True])
def test_where_an_approval_is_required_no_consent_replaces_it(
    site: Site, fake: FakeCoordinator, consent: Any
) -> None:
    review(site)
    caught = refused(site, errors.ApprovalNeeded, "no recorded approval", consent=consent)
    assert "fedclust review heart --data" in str(caught)
    assert "fedclust approve heart --name" in str(caught)
    assert sent(fake) == []


@pytest.mark.usefixtures("required")
def test_the_last_approval_counts_and_other_terms_are_named(
    site: Site, fake: FakeCoordinator
) -> None:
    reviewed_and_approved(site)
    reviewed_and_approved(site, min_group_size=7)
    refused(site, errors.ApprovalNeeded, r"min group size \(7 before, 5 now\)")
    declared = r"persons declared \(False before, True now\)"
    refused(site, errors.ApprovalNeeded, declared, person=[f"p{i}" for i in range(80)])
    assert sent(fake) == []
    site.participate("heart", MINE, min_group_size=7)


@pytest.mark.usefixtures("required")
def test_another_definition_is_reviewed_and_approved_again() -> None:
    before = FakeCoordinator().site(state_directory())
    review(before)
    approve(before)
    other = FakeCoordinator(config={"n_clusters": 2}).site(state_directory())
    with pytest.raises(errors.UsageError, match="another definition"):
        other.last_review("heart")
    refused(other, errors.ApprovalNeeded, "the definition")


def test_what_cannot_be_approved(site: Site) -> None:
    with pytest.raises(errors.UsageError, match="no review of session heart"):
        site.last_review("heart")
    earlier = review(site)
    review(site, min_group_size=7)
    asked = site.last_review("heart")
    for code in ("", asked.code[:11], "not hexadecimal", asked.code + "0"):
        with pytest.raises(errors.UsageError, match="at least the first 12 digits"):
            site.approvals.approve(asked, NAME, code)
    with pytest.raises(errors.UsageError, match="not the code of the last review"):
        site.approvals.approve(asked, NAME, "0" * 12)
    with pytest.raises(errors.UsageError, match=r"earlier page .*5 before, 7 now"):
        site.approvals.approve(asked, NAME, earlier.code[:12])
    for name in ("", "  ", "a\nb", "x" * 201):
        with pytest.raises(errors.UsageError, match="name of the person"):
            site.approvals.approve(asked, name, asked.code)
    spaced = f"{asked.code[:4]} {asked.code[4:8]}-{asked.code[8:12].upper()}"
    assert site.approvals.approve(asked, NAME, spaced).code == asked.code


def test_a_wrong_settings_file_stops_a_session_rather_than_being_ignored(site: Site) -> None:
    settings_path(state_directory()).write_text("require_approvals = true\n", "utf-8")
    refused(site, errors.UsageError, "require_approvals", consent=True)


# --- withdrawal -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("event", "rounds"), [("computing", [1]), ("sent", [1, 2])])
def test_a_withdrawal_stops_a_running_session_until_it_is_approved_again(
    site: Site, fake: FakeCoordinator, event: str, rounds: list[int]
) -> None:
    def withdraw(progress: Progress) -> None:
        if (progress.event, progress.round) == (event, 2):
            site.approvals.withdraw("heart", NAME)

    reviewed_and_approved(site)
    for _ in range(2):
        said = f"withdrawn \\({NAME}"
        refused(site, errors.ApprovalNeeded, said, consent=True, on_progress=withdraw)
        assert sorted(fake.accepted) == rounds
    assert [line["round"] for line in body_lines(site.state.directory)] == rounds
    assert all(outcome is not None for _, outcome in recorded_answers(site.state)), "none in flight"
    approve(site)
    site.participate("heart", MINE)
    assert [number for number, _ in fake.puts] == sorted(fake.accepted)
    assert Ledger(site.state).verify() == []
    # What is over is read as before: nothing more is sent for it.
    site.approvals.withdraw("heart", NAME)
    assert site.participate("heart", MINE).labels_ is not None


def test_a_withdrawal_ends_a_wait_for_the_first_round(
    site: Site, fake: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits() -> TaskResponse:
        site.approvals.withdraw("heart", NAME)
        return TaskResponse(session_state="recruiting", status="waiting")

    reviewed_and_approved(site)
    monkeypatch.setattr(fake, "task", waits)
    refused(site, errors.ApprovalNeeded, r"withdrawn.*Nothing is sent")
    assert fake.accepted == {}


def test_an_answer_without_a_receipt_is_not_sent_again_after_a_withdrawal(
    site: Site, fake: FakeCoordinator
) -> None:
    def cut(request: Any) -> None:
        if request.url.path.endswith("/rounds/2/submission"):
            raise ConnectionError

    reviewed_and_approved(site)
    fake.after = cut
    with pytest.raises(ConnectionError):
        site.participate("heart", MINE)
    fake.after = lambda _request: None
    before = list(fake.puts)
    site.approvals.withdraw("heart", NAME)
    refused(site, errors.ApprovalNeeded)
    assert fake.puts == before


def test_what_was_not_approved_cannot_be_withdrawn(site: Site) -> None:
    with pytest.raises(errors.UsageError, match="no approval of session heart is in force"):
        site.approvals.withdraw("heart", NAME)
    reviewed_and_approved(site)
    (given,) = site.approvals.withdraw("heart", NAME)
    assert site.approvals.held(given.coordinator, given.site, "heart") is None
    with pytest.raises(errors.UsageError, match="in force"):
        site.approvals.withdraw("heart", NAME)


# --- consent in Python ----------------------------------------------------------------------------


def test_without_a_terminal_python_needs_consent(site: Site, fake: FakeCoordinator) -> None:
    caught = refused(site, errors.ConsentNeeded, "consent=True")
    assert "site.check" in str(caught)
    assert caught.needed == ("consent",)
    assert sent(fake) == []


def test_a_session_that_was_joined_resumes_without_asking(
    site: Site, fake: FakeCoordinator
) -> None:
    refused(site, errors.ConsentDeclined, consent=True, ask=lambda preview: preview.round == 1)
    assert site.participate("heart", MINE).labels_ is not None


@pytest.mark.parametrize(("typed", "agreed"), [("what\nyes\n", True), ("n\n", False)])
def test_in_a_terminal_python_shows_what_is_asked_and_asks(
    site: Site, fake: FakeCoordinator, monkeypatch: pytest.MonkeyPatch, typed: str, agreed: bool
) -> None:
    screen = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", Terminal(typed))
        patch.setattr(sys, "stderr", screen)
        with nullcontext() if agreed else pytest.raises(errors.ConsentDeclined):
            site.participate("heart", MINE)
    text = " ".join(screen.getvalue().split())
    assert fake.sha256 in text
    assert "groups of at least 5 similar persons" in text
    assert text.count("Does this site take part? [y/N]") == (2 if agreed else 1)
    assert bool(fake.joined) == agreed
