"""The points of a session: charged before the site joins, given back if nothing was drawn."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from fedclust import errors
from fedclust.site import prepare
from fedclust.site.allowance import Allowance, allowance_of
from fedclust.site.backup import back_up, restore
from fedclust.site.charges import Charges
from fedclust.site.cohorts import CohortStore
from fedclust.site.consent import ConsentRequest
from fedclust.site.state import SiteState
from fedclust.wire.models import Page, Participation, SiteTableInfo
from support.fake_coordinator import (
    EPOCH,
    URL,
    FakeCoordinator,
    another,
    answer,
    in_json,
    joins,
    refusal,
)

RNG = np.random.default_rng(3)
FEATURES = (
    {"name": "x"},
    {"name": "y"},
    {"name": "died", "kind": "binary", "role": "outcome"},
)
IDS = [f"p{i}" for i in range(80)]
SECOND = "https://second.example"


def rows(n: int) -> np.ndarray:
    numbers = RNG.normal(size=(n, 2)) + 6 * RNG.integers(0, 3, (n, 1))
    return np.column_stack([numbers, RNG.integers(0, 2, n)])


MINE, OTHERS = rows(80), {"alpha": rows(50), "beta": rows(50)}


@pytest.fixture(autouse=True)
def points(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return what each outcome costs, to be changed by the test."""
    costs = {"died": 60}

    def points_of(outcomes: Any, features: Any) -> dict[str, int]:
        return {each.name: costs[each.name] for each in outcomes if each.name in features}

    monkeypatch.setattr(prepare, "points_of", points_of)
    return costs


def coordinator(**definition: Any) -> FakeCoordinator:
    """Return a coordinator with a session of its own."""
    return another(OTHERS, features=FEATURES, **definition)


def take_part(fake: FakeCoordinator, place: Path, url: str = URL, **more: Any) -> Any:
    options = {"person": IDS, "consent": True, **more}
    return fake.site(place, url=url).participate("heart", MINE, **options)


def cancelled(fake: FakeCoordinator) -> FakeCoordinator:
    """Return a coordinator whose session is cancelled once the site has joined."""

    def cancel(request: httpx.Request) -> None:
        if request.url.path.endswith("/task"):
            fake.state = "cancelled"

    fake.before = cancel
    return fake


def join_only(fake: FakeCoordinator, place: Path, url: str = URL, **more: Any) -> None:
    fake.stop_at("/task")
    with pytest.raises(ZeroDivisionError):
        take_part(fake, place, url, **more)
    assert fake.presence == "joined"


def history(place: Path) -> Any:
    (record,) = CohortStore(SiteState(place)).records().values()
    return record.history


def acts(place: Path) -> list[str]:
    return [line["what"] for line in history(place)]


def allowance(place: Path) -> Allowance:
    return allowance_of(history(place))


def short(fake: FakeCoordinator) -> bool:
    return fake.joined.points_short


# --- joining --------------------------------------------------------------------------------------


def test_points_are_charged_before_the_site_joins_with_the_head_after_it(tmp_path: Path) -> None:
    fake = coordinator()
    seen = []

    def look(request: httpx.Request) -> None:
        if joins(request):
            sent = Participation.model_validate_json(request.content)
            stored = CohortStore(SiteState(tmp_path)).heads(sent.table_id or "")
            seen.append((sent.heads == stored, sent.points_short, *acts(tmp_path)))
        if request.url.path.endswith("/task"):
            raise ZeroDivisionError

    fake.before = look
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            take_part(fake, tmp_path)

    assert seen == [(True, False, "created", "charged")] * 2
    (charge,) = allowance(tmp_path).charges.values()
    assert (charge.outcomes, charge.columns, charge.session) == ({"died": 60}, ("died",), "heart")


def test_nothing_is_charged_by_a_check_without_consent_or_without_outcomes(
    tmp_path: Path, points: dict[str, int]
) -> None:
    fake = coordinator()
    request = fake.site(tmp_path).check("heart", MINE, person=IDS)
    assert (request.points, request.points_left, request.points_short) == (60, 100, False)
    with pytest.raises(errors.ConsentDeclined):
        take_part(fake, tmp_path, consent=False)
    assert not SiteState(tmp_path).path.exists() or not CohortStore(SiteState(tmp_path)).records()
    points["died"] = 0
    join_only(fake, tmp_path)
    assert acts(tmp_path) == ["created"]


def test_exact_rows_and_fewer_than_p_persons_cost_nothing(tmp_path: Path) -> None:
    exact = coordinator(policy={"protection": "none", "max_rounds": 4})
    request = exact.site(tmp_path).check("heart", MINE)
    assert (request.points, request.points_left) == (0, None)
    assert request.exact_outcomes == ("died",)
    assert request.terms["exact_outcomes"] is True
    few = coordinator().site(tmp_path).check("heart", MINE[:4], person=IDS[:4])
    assert (few.points, few.exact_outcomes) == (0, ())


@pytest.mark.parametrize("at_once", [False, True])
def test_two_coordinators_share_the_points_and_the_second_session_goes_on_without(
    tmp_path: Path, at_once: bool
) -> None:
    first, second = coordinator(), coordinator()
    asked: list[bool] = []

    def consent(request: ConsentRequest) -> bool:
        asked.append(request.points_short)
        if at_once and len(asked) == 1:
            join_only(first, tmp_path)
        return True

    if not at_once:
        join_only(first, tmp_path)
    result = take_part(second, tmp_path, SECOND, consent=consent)

    assert (short(first), short(second)) == (False, True)
    assert asked == ([False, True] if at_once else [True]), "again if the answer is another"
    assert len(result.labels_) == len(MINE)
    assert acts(tmp_path) == ["created", "charged"]
    # It joined so; points that come back do not change that.
    Charges(SiteState(tmp_path)).raise_limit("", 50, "Dr Levi", EPOCH)
    take_part(second, tmp_path, SECOND)
    assert acts(tmp_path) == ["created", "charged", "raised"]


# --- giving back ----------------------------------------------------------------------------------


def test_a_refused_join_gives_back_and_the_next_one_charges_again(tmp_path: Path) -> None:
    fake = coordinator()
    fake.before = lambda request: refusal("version-unsupported") if joins(request) else None
    with pytest.raises(errors.VersionUnsupported):
        take_part(fake, tmp_path)
    assert acts(tmp_path) == ["created", "charged", "returned"]
    join_only(fake, tmp_path)
    assert acts(tmp_path) == ["created", "charged", "returned", "charged"]
    assert (allowance(tmp_path).left, short(fake)) == (40, False)


def test_a_coordinator_that_does_not_answer_gives_nothing_back(tmp_path: Path) -> None:
    fake = coordinator()
    fake.before = lambda request: refusal("unavailable") if joins(request) else None
    with pytest.raises((errors.Unavailable, errors.TransportError)):
        take_part(fake, tmp_path)
    assert acts(tmp_path) == ["created", "charged"]
    join_only(fake, tmp_path)
    assert acts(tmp_path) == ["created", "charged"]


def test_a_session_that_is_cancelled_gives_back_and_never_draws(tmp_path: Path) -> None:
    fake = cancelled(coordinator())
    with pytest.raises(errors.SessionCancelled):
        take_part(fake, tmp_path)
    assert acts(tmp_path) == ["created", "charged", "returned"]
    assert allowance(tmp_path).left == 100
    (charge,) = allowance(tmp_path).charges.values()
    with pytest.raises(errors.StateError, match="no points"):
        Charges(SiteState(tmp_path)).require(history(tmp_path)[0]["table"], charge.key)
    # The coordinator has it run again, and the site has not joined there.
    again = coordinator()
    again.definition, again.sha256, again.plan = fake.definition, fake.sha256, fake.plan
    join_only(again, tmp_path)
    assert short(again)
    assert acts(tmp_path) == ["created", "charged", "returned"]


@pytest.mark.parametrize("how", ["ended", "gone", "replaced", "left", "running", "silent"])
@pytest.mark.parametrize("command", ["status", "check", "leave"])
def test_each_command_looks_after_open_charges(tmp_path: Path, how: str, command: str) -> None:
    fake = coordinator()
    join_only(fake, tmp_path)
    asked: list[str] = []

    def reply(request: httpx.Request) -> httpx.Response | None:
        path = request.url.path
        if path.endswith("/participation"):
            return answer(204)
        if not path.endswith("/sessions/heart") or asked:
            return None
        asked.append(path)
        return {"gone": refusal("not-found"), "silent": refusal("internal")}.get(how)

    fake.before = reply
    fake.state = "failed" if how == "ended" else fake.state
    fake.presence = "excluded" if how == "left" else fake.presence
    site, left = fake.site(tmp_path), 40 if how in ("running", "silent") else 100
    if how == "replaced":
        other = coordinator()
        other.before = reply
        site = other.site(tmp_path)
    calls: dict[str, Callable[[], object]] = {
        "status": site.status,
        "check": lambda: site.check("heart", MINE, person=IDS),
        "leave": lambda: site.leave("heart"),
    }
    calls[command]()
    assert allowance(tmp_path).left == left


def test_another_coordinator_and_another_site_give_nothing_back(tmp_path: Path) -> None:
    fake = coordinator()
    join_only(fake, tmp_path)
    fake.state, fake.before = "failed", lambda _request: None
    fake.site(tmp_path, url=SECOND).status()
    fake.me = "somebody"
    fake.site(tmp_path).status()
    assert allowance(tmp_path).left == 40
    fake.me = "me"
    fake.site(tmp_path).status()
    assert allowance(tmp_path).left == 100


# --- a state that lacks changes -------------------------------------------------------------------


def test_a_state_that_the_coordinator_refuses_has_no_points_left(tmp_path: Path) -> None:
    fake = coordinator()
    fake.before = lambda request: refusal("table-changed") if joins(request) else None
    for _ in range(2):
        with pytest.raises(errors.TableChanged):
            take_part(fake, tmp_path)
    assert acts(tmp_path) == ["created", "charged", "spent"]
    # The operator has accepted the chain: the session goes on without outcomes.
    fake.before = lambda _request: None
    take_part(fake, tmp_path)
    assert short(fake)
    assert allowance(tmp_path).left == 0


def test_a_restored_state_asks_its_coordinators(tmp_path: Path) -> None:
    place, backup = tmp_path / "state", tmp_path / "backup.sqlite3"
    with pytest.raises(errors.SessionCancelled):
        take_part(cancelled(coordinator()), place)
    table = history(place)[0]["table"]
    heads = CohortStore(SiteState(place)).heads(table)
    back_up(SiteState(place), backup)
    shutil.rmtree(place)
    restore(SiteState(place), backup, EPOCH)
    assert allowance(place).left == 0

    fake = coordinator()
    info = SiteTableInfo(
        table_id=table, number=heads.last, head="0" * 16, accepted_at=EPOCH
    ).model_dump(mode="json")

    def tables(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith("/sites/me/tables"):
            return in_json(Page(items=(info,)))
        return None

    fake.before = tables
    fake.site(place).status()
    assert allowance(place).left == 0, "the coordinator has accepted another change"
    info["head"] = heads.heads[-1]
    request = fake.site(place).check("heart", MINE, person=IDS)
    assert (request.points_left, request.points_short) == (100, False)
    assert acts(place)[-2:] == ["restored", "confirmed"]
    # Asked once.
    fake.requests.clear()
    fake.site(place).status()
    assert not any(each.endswith("/tables") for each in fake.requests)
