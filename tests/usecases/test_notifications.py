"""Notifications: what causes each, once; how they are sent, and what happens if that fails."""

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from fedclust.wire.models import PrincipalCreate, PrincipalPatch, SessionPatch
from fedclust_service.domain.access import Role
from fedclust_service.domain.notification import (
    DELIVERY_LEASE,
    KEPT_FOR,
    LONGEST_PAUSE,
    Body,
    Channel,
    DeliveryFailed,
    DeliveryState,
    NotificationKind,
    Outgoing,
)
from fedclust_service.store import Store, StoreFault
from fedclust_service.usecases import principals, sessions
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.participation import exclude
from fedclust_service.usecases.rounds import close_round
from fedclust_service.usecases.sweeper import sweep, tidy
from support.clock import ManualClock
from support.databases import BOTH, sqlite_first  # noqa: F401  # in place of database_url
from support.purpose import PURPOSE
from support.timeouts import TIMEOUT_S
from usecases.direct_api import ANALYST, OPERATOR, SITES, DirectApi, failing, refusal

OPS = "ops@hospital.example"
HOUR = 3600.0
DAY = 86_400.0


@dataclass
class Box:
    """A channel that keeps what it gets, or fails as it is told."""

    got: list[tuple[Body, tuple[str, ...]]] = field(default_factory=list)
    #: The id and the time of each attempt.
    asked: list[tuple[str, datetime]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def send(self, body: Body, address: str | None, now: datetime) -> str:
        self.asked.append((str(body["id"]), now))
        if self.failures:
            raise self.failures.pop(0)
        self.got.append((body, () if address is None else (address,)))
        return "kept"

    @property
    def kinds(self) -> list[tuple[Any, str]]:
        """The kind and the recipient of each, sorted."""
        return sorted((body["kind"], ", ".join(to)) for body, to in self.got)


class Killed(BaseException):
    """The process ends."""


class Notifying(DirectApi):
    """A coordinator with two sites and an analyst who have addresses, and what is sent."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.mails, self.posts = Box(), Box()
        outgoing = Outgoing(
            {Channel.EMAIL: self.mails, Channel.WEBHOOK: self.posts},
            operator_emails=(OPS,),
            public_url="https://coordinator.example",
        )
        super().__init__(store, clock, outgoing=outgoing)
        give_addresses(self)


@pytest.fixture
def notifying(store: Store, clock: ManualClock) -> Notifying:
    """Return such a coordinator on each database."""
    return Notifying(store, clock)


def give_addresses(direct: DirectApi) -> None:
    for role, name in ((Role.SITE, "north"), (Role.SITE, "south"), (Role.ANALYST, "ada")):
        body = PrincipalCreate(name=name, email=f"{name}@x.example")
        principals.create_principal(direct.co, OPERATOR, role, body)


def send_all(co: Coordinator) -> int:
    """Send what is due by every channel; return how many attempts that took."""
    attempts = 0
    for sender in co.senders:
        while sender.run_once():
            attempts += 1
    return attempts


def late(direct: DirectApi, seconds: float = HOUR + 1) -> None:
    """Let time pass, and send what is due then."""
    direct.later(seconds)
    send_all(direct.co)


def counts(direct: DirectApi) -> dict[DeliveryState, int]:
    found = direct.store.read("test.counts", lambda tx: tx.notifications.counts())
    return {state: count for state, count in found.items() if count}


def concerns(direct: DirectApi) -> list[tuple[str, str, datetime, str | None]]:
    """Return what the overview tells of notifications."""
    now = direct.clock.now()
    found = direct.store.read(
        "test.concerns",
        lambda tx: tx.overview.concerns(now=now, failed_since=now, expiring_by=now, limit=9),
    )
    return [(each.kind, each.subject, each.at, each.detail) for each in found]


# --- what causes them -----------------------------------------------------------------------------


def test_a_late_site_its_analyst_and_the_operators_are_notified_once(notifying: Notifying) -> None:
    notifying.session()
    send_all(notifying.co)
    notifying.mails.got.clear()
    notifying.posts.got.clear()
    notifying.answer("heart", "south")
    sweep(notifying.co)
    notifying.clock.advance(HOUR + 1)
    for _ in range(3):
        sweep(notifying.co)
    send_all(notifying.co)
    late = ("ada@x.example", "north@x.example", OPS)
    assert notifying.mails.kinds == [("overdue", each) for each in late]
    ((post, to),) = notifying.posts.got
    assert to == ()
    told = [post[name] for name in ("kind", "session", "round", "sites", "state")]
    assert told == ["overdue", "heart", 1, ["north", "west"], "running"]
    assert post["time"] == "2026-01-05T09:00:01.000Z"
    assert post["link"] == "https://coordinator.example/ui/sessions/heart"
    # Another deadline that passes is another cause.
    later = SessionPatch(deadline=notifying.clock.now() + timedelta(hours=1))
    sessions.patch_session(notifying.co, ANALYST, "heart", later)
    notifying.later(HOUR + 1)
    # An answer in between is none, and its site is not told any more that it is late.
    notifying.clock.advance(1)
    notifying.answer("heart", "north")
    send_all(notifying.co)
    assert [body["kind"] for body, _ in notifying.posts.got] == ["overdue"] * 2
    assert sorted(to for _, to in notifying.mails.got[3:]) == [("ada@x.example",), (OPS,)]
    texts = {to: str(body["text"]) for body, (to,) in notifying.mails.got[:3]}
    assert "Late: north, west" in texts[OPS]
    assert texts["ada@x.example"] == texts[OPS]
    assert texts["north@x.example"].startswith("The session heart waits for the site north\n")
    assert "west" not in texts["north@x.example"]
    assert texts[OPS].endswith(
        "\nCoordinator: https://coordinator.example\n"
        "In the browser: https://coordinator.example/ui/sessions/heart\n"
    )


def operators_text(mails: Box) -> str:
    """Return the last mail to the operators."""
    return [str(body["text"]) for body, to in mails.got if to == (OPS,)][-1]


def test_a_site_that_the_session_needs_is_not_to_be_excluded(notifying: Notifying) -> None:
    notifying.session()
    notifying.answer("heart", "south", "north")
    late(notifying, HOUR)
    text = operators_text(notifying.mails)
    assert "session exclude" not in text
    assert "The session needs 3 sites, so do not exclude it." in text
    assert "    fedclust session deadline heart 2026-01-06T09:00Z\n" in text
    assert "If nothing changes, the session fails on 2026-01-12 09:00 UTC." in text
    assert "    fedclust session cancel heart\n" in text
    assert "    fedclust session create NEW --from heart --sites SITES\n" in text
    notifying.clock.advance(60)
    exclude(notifying.co, ANALYST, "heart", "west")
    for _ in range(2):
        sweep(notifying.co)
    notifying.mails.got.clear()
    send_all(notifying.co)
    assert notifying.mails.kinds == [("overdue", "ada@x.example"), ("overdue", OPS)]
    text = operators_text(notifying.mails)
    assert "is overdue: too few sites take part\n" in text
    assert "still take part: 2. The session needs 3." in text
    assert "this session cannot go on: the session fails on 2026-01-12 09:00 UTC." in text
    assert "session invite" not in text
    refused = refusal(close_round, notifying.co, ANALYST, "heart", 1)
    assert "session create NEW --from heart" in refused.detail


def test_sites_that_the_session_can_spare_may_be_excluded(notifying: Notifying) -> None:
    notifying.session(sites=("a", "b", "c", "d", "e"))
    notifying.session("tight", sites=("a", "b", "c", "d", "e"), policy={"min_sites": 4})
    for name, site in itertools.product(("heart", "tight"), "abc"):
        notifying.answer(name, site)
    late(notifying, HOUR)
    texts = {
        str(body["session"]): str(body["text"]) for body, to in notifying.mails.got if to == (OPS,)
    }
    both = "    fedclust session exclude {0} d\n    fedclust session exclude {0} e\n"
    assert "Or continue without them, which" in texts["heart"]
    assert both.format("heart") in texts["heart"]
    assert "Or continue without at most 1 of them, which" in texts["tight"]
    for site in "de":
        exclude(notifying.co, ANALYST, "heart", site)
    assert notifying.drive() == 1, "the session goes on"


def test_a_session_that_lacks_sites_may_still_close_its_round(notifying: Notifying) -> None:
    notifying.session(sites=("a", "b", "c", "d"))
    notifying.answer("heart", "a")
    for site in "ab":
        exclude(notifying.co, ANALYST, "heart", site)
    send_all(notifying.co)
    assert "with the submissions of: c, d." in operators_text(notifying.mails)
    assert "fedclust session invite heart SITES" in operators_text(notifying.mails)


def test_a_token_of_a_day_is_warned_of_at_half_its_life(notifying: Notifying) -> None:
    notifying.issue(Role.ANALYST, "ada", 1)
    seen = []
    for _ in range(4):
        tidy(notifying.co)
        send_all(notifying.co)
        seen.append(len(notifying.mails.got))
        notifying.clock.advance(DAY / 4)
    assert seen == [0, 0, 2, 2]


def test_a_channel_that_keeps_failing_needs_attention(notifying: Notifying) -> None:
    begin = notifying.clock.now()
    notifying.define()
    notifying.posts.failures = [DeliveryFailed("webhook_url: status 500") for _ in range(2)]
    send_all(notifying.co)
    notifying.clock.advance(300)
    send_all(notifying.co)
    assert concerns(notifying) == []
    notifying.clock.advance(300)
    why = "webhook_url: status 500"
    assert concerns(notifying) == [("notifications-waiting", "webhook", begin, why)]
    send_all(notifying.co)
    assert concerns(notifying) == []


def test_sites_are_invited_at_creation_and_later(notifying: Notifying) -> None:
    notifying.register(*SITES)
    notifying.define(sites=("north", "west", "east"))
    sessions.delete_session(notifying.co, ANALYST, "heart")
    send_all(notifying.co)
    assert notifying.mails.kinds == [], "nobody is invited to a session that is gone"

    notifying.define(sites=("north", "west", "east"))
    notifying.define(sites=("north", "west", "east"))  # the same request again
    sessions.patch_session(notifying.co, ANALYST, "heart", SessionPatch(invite=("south", "north")))
    send_all(notifying.co)
    assert notifying.mails.kinds == [("invited", "north@x.example"), ("invited", "south@x.example")]
    invited = sorted(body["sites"] for body, _ in notifying.posts.got)
    assert invited == [["east", "north", "west"], ["south"]]
    text = str(notifying.mails.got[0][0]["text"])
    assert "fedclust check heart --data FILE" in text


def test_ends_are_notified_as_finished_or_failed(notifying: Notifying) -> None:
    notifying.session("done")
    notifying.finish("done")
    notifying.define("stopped")
    sessions.cancel_session(notifying.co, ANALYST, "stopped")
    notifying.session("late")
    notifying.later(HOUR + 1)
    late(notifying, 8 * DAY)
    ended = [body for body, _ in notifying.posts.got if body["kind"] in ("finished", "failed")]
    assert {(body["session"], body["kind"], body["state"]) for body in ended} == {
        ("done", "finished", "completed"),
        ("stopped", "finished", "cancelled"),
        ("late", "failed", "failed"),
    }
    assert len(ended) == 3
    recipients = {to for body, (to,) in notifying.mails.got if body["kind"] == "finished"}
    assert recipients == {OPS, "ada@x.example", "north@x.example", "south@x.example"}
    (failed,) = [body for body in ended if body["kind"] == "failed"]
    assert "fedclust session show late" in str(failed["text"])


def test_a_token_is_warned_of_twice_and_not_if_it_was_replaced(notifying: Notifying) -> None:
    notifying.issue(Role.SITE, "north", 30)
    notifying.issue(Role.SITE, "south", 7)
    revoked = notifying.issue(Role.SITE, "west", 7)
    principals.revoke_token(notifying.co, OPERATOR, Role.SITE, "west", revoked.id)
    seen = []
    for _ in range(30):
        for _ in range(2):
            tidy(notifying.co)
        send_all(notifying.co)
        seen.append([f"{body['account']} {to}" for body, (to,) in notifying.mails.got])
        notifying.mails.got.clear()
        notifying.clock.advance(DAY)
    both = ["site:north north@x.example", f"site:north {OPS}"]
    # South's token never was valid for more than 14 days.
    south = [f"site:south {OPS}", "site:south south@x.example"]
    assert [sorted(each) for each in seen] == [
        south if day == 5 else both if day in (16, 28) else [] for day in range(30)
    ]

    notifying.issue(Role.SITE, "north", 30)
    notifying.issue(Role.SITE, "north")
    notifying.clock.advance(20 * DAY)
    tidy(notifying.co)
    send_all(notifying.co)
    assert notifying.mails.got == []


def test_kinds_that_are_switched_off_are_not_written(store: Store, clock: ManualClock) -> None:
    box = Box()
    only = Outgoing({Channel.WEBHOOK: box}, frozenset({NotificationKind.FINISHED}))
    direct = DirectApi(store, clock, outgoing=only)
    direct.session()
    direct.finish("heart")
    send_all(direct.co)
    assert [body["kind"] for body, _ in box.got] == ["finished"]
    assert counts(direct) == {DeliveryState.SENT: 1}


def test_without_a_channel_nothing_is_written(direct: DirectApi) -> None:
    give_addresses(direct)
    direct.session()
    direct.later(HOUR + 1)
    tidy(direct.co)
    assert counts(direct) == {}
    assert direct.co.senders == ()


def test_tidying_that_finds_nothing_does_not_end_a_full_disk(direct: DirectApi) -> None:
    for _ in range(3):
        direct.co.clock.check()
        direct.clock.advance(HOUR)
    direct.store._health.write_ended(StoreFault.DISK_FULL)
    tidy(direct.co)
    assert StoreFault.DISK_FULL in direct.store.faults


def test_they_hold_no_values_no_words_of_the_analyst_and_no_token(
    notifying: Notifying,
    logged: pytest.LogCaptureFixture,
) -> None:
    issued = notifying.issue(Role.SITE, "north", 20)
    notifying.define()
    send_all(notifying.co)
    notifying.join("heart", *SITES)
    notifying.answer("heart", "south", weight=123.25)
    late(notifying)
    notifying.finish("heart")
    notifying.clock.advance(19 * DAY)
    tidy(notifying.co)
    send_all(notifying.co)
    bodies = [body for body, _ in notifying.mails.got + notifying.posts.got]
    kinds = {body["kind"] for body in bodies}
    assert kinds == {"invited", "overdue", "finished", "token-expiring"}
    fields = {"id", "kind", "time", "session", "round", "sites", "state", "account", "expires_at"}
    assert all(body.keys() == fields | {"text", "link"} for body in bodies)
    for secret in (PURPOSE, "123.25", issued.token, issued.id, "fcs_", "chol", "counting"):
        assert secret not in json.dumps(bodies), secret
    for secret in ("123.25", issued.token, OPS, "north@x.example"):
        assert secret not in logged.text, secret


# --- how they are sent ----------------------------------------------------------------------------


def test_a_failure_is_tried_again_less_and_less_often_for_a_day(
    notifying: Notifying, logged: pytest.LogCaptureFixture
) -> None:
    notifying.define()
    begin, tried = notifying.clock.now(), []
    notifying.posts.failures = [DeliveryFailed("webhook_url: status 500") for _ in range(100)]
    while counts(notifying).get(DeliveryState.FAILED, 0) == 0:
        send_all(notifying.co)
        new, at = notifying.posts.asked[-1]
        tried.append((at - begin).total_seconds())
        row = notifying.store.read("test.row", lambda tx, new=new: tx.notifications.get(new))
        notifying.clock.advance((row.due_at - notifying.clock.now()).total_seconds())
    assert len(notifying.posts.asked) == len(tried)
    pauses = [round(after - before, 6) for before, after in itertools.pairwise(tried)]
    assert 12 <= len(tried) <= 24
    for number, pause in enumerate(pauses):
        usual = min(30 * 2.0**number, LONGEST_PAUSE.total_seconds())
        assert 0.75 * usual <= pause <= 1.25 * usual
    assert 20 * HOUR < tried[-1] <= DAY
    assert "notification_failed" in logged.text
    assert "webhook_url: status 500" in logged.text
    notifying.clock.advance(2 * DAY)
    assert send_all(notifying.co) == 0


@pytest.mark.parametrize("database_url", BOTH, indirect=True)
def test_a_recipient_refused_for_good_fails_at_once_and_needs_attention(
    notifying: Notifying,
) -> None:
    notifying.define()
    notifying.mails.failures = [DeliveryFailed("refused (550)", final=True)]
    send_all(notifying.co)
    assert counts(notifying)[DeliveryState.FAILED] == 1
    ((kind, subject, at, detail),) = concerns(notifying)
    assert (kind, at, detail) == ("notification-failed", notifying.clock.now(), "refused (550)")
    assert subject in ("site:north", "site:south")


def test_a_defect_of_a_channel_stops_no_other_notification(
    notifying: Notifying, logged: pytest.LogCaptureFixture
) -> None:
    notifying.define()
    notifying.mails.failures = [ValueError("north@x.example is odd")]
    send_all(notifying.co)
    assert len(notifying.mails.got) == 1
    assert "north@x.example" not in logged.text
    notifying.clock.advance(60)
    send_all(notifying.co)
    assert notifying.mails.kinds == [("invited", "north@x.example"), ("invited", "south@x.example")]


def test_a_worker_that_dies_after_sending_leaves_it_to_another_with_the_same_id(
    notifying: Notifying,
) -> None:
    notifying.define()
    sender, *_ = [each for each in notifying.co.senders if "webhook" in each._name]
    with failing(notifying.store, "run_tx", "notify.sent", Killed()), pytest.raises(Killed):
        sender.run_once()
    other = notifying.another()
    assert len(notifying.posts.got) == 1
    send_all(other)
    assert len(notifying.posts.got) == 1  # the dead worker still has it
    notifying.clock.advance(DELIVERY_LEASE.total_seconds() + 1)
    send_all(other)
    (first, _), (second, _) = notifying.posts.got
    assert first == second
    assert counts(notifying) == {DeliveryState.SENT: 3}


def test_workers_that_race_send_each_once(notifying: Notifying) -> None:
    for number in range(5):
        notifying.define(f"heart-{number}")
    workers = [notifying.co, *(notifying.another() for _ in range(3))]
    with ThreadPoolExecutor(len(workers)) as threads:
        list(threads.map(send_all, workers))
    assert counts(notifying) == {DeliveryState.SENT: 15}
    ids = [str(body["id"]) for body, _ in notifying.posts.got + notifying.mails.got]
    assert len(ids) == len(set(ids)) == 15


def test_a_slow_delivery_to_the_webhook_delays_no_other(notifying: Notifying) -> None:
    notifying.define("heart")
    notifying.define("lungs")
    began, let_go, deliver = threading.Event(), threading.Event(), notifying.posts.send

    def send(body: Body, address: str | None, now: datetime) -> str:
        if not began.is_set():
            began.set()
            assert let_go.wait(TIMEOUT_S)
        return deliver(body, address, now)

    notifying.posts.send = send  # type: ignore[method-assign]
    first, second, *_ = [each for each in notifying.co.senders if "webhook" in each._name]
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(first.run_once)
        try:
            assert began.wait(TIMEOUT_S)
            assert second.run_once()
            assert len(notifying.posts.got) == 1
        finally:
            let_go.set()
        assert slow.result(TIMEOUT_S)
    assert {body["session"] for body, _ in notifying.posts.got} == {"heart", "lungs"}


def test_addresses_are_those_of_the_time_of_sending(notifying: Notifying) -> None:
    change = principals.patch_principal
    notifying.register(*SITES)
    gone = PrincipalPatch(email="west@x.example", disabled=True)
    change(notifying.co, OPERATOR, Role.SITE, "west", gone)
    notifying.define()
    change(notifying.co, OPERATOR, Role.SITE, "north", PrincipalPatch(email="new@x.example"))
    change(notifying.co, OPERATOR, Role.SITE, "south", PrincipalPatch(email=""))
    send_all(notifying.co)
    assert notifying.mails.kinds == [("invited", "new@x.example")]
    assert counts(notifying) == {DeliveryState.SENT: 2}


def test_each_operator_gets_a_mail_that_fails_or_is_repeated_by_itself(
    store: Store, clock: ManualClock
) -> None:
    mails = Box()
    both = Outgoing({Channel.EMAIL: mails}, operator_emails=(OPS, "two@x.example", OPS))
    direct = DirectApi(store, clock, outgoing=both)
    for name, email in (("grace", "grace@x.example"), ("same", OPS)):
        body = PrincipalCreate(name=name, email=email)
        principals.create_principal(direct.co, OPERATOR, Role.OPERATOR, body)
    direct.define()
    sessions.cancel_session(direct.co, ANALYST, "heart")
    mails.failures = [DeliveryFailed("refused (550)", final=True), DeliveryFailed("later (451)")]
    send_all(direct.co)
    assert counts(direct) == dict.fromkeys(DeliveryState, 1)
    clock.advance(60)
    send_all(direct.co)
    assert counts(direct) == {DeliveryState.SENT: 2, DeliveryState.FAILED: 1}
    reached = {to for _, (to,) in mails.got}
    assert len(reached & {OPS, "two@x.example", "grace@x.example"}) == 2


def test_after_an_outage_mails_come_in_order_and_what_has_passed_is_dropped(
    notifying: Notifying,
) -> None:
    notifying.session("closed")
    notifying.session("first")
    notifying.posts.failures = [DeliveryFailed("webhook_url: status 500") for _ in range(9)]
    for name in ("closed", "first"):
        late(notifying)
        if name == "closed":
            notifying.answer_all("closed")
    sessions.cancel_session(notifying.co, ANALYST, "closed")
    notifying.clock.advance(1)
    notifying.posts.failures = []
    send_all(notifying.co)
    sent = [(body["kind"], body["session"]) for body, _ in notifying.posts.got]
    assert sent == [("overdue", "first"), ("finished", "closed")]


def test_an_older_notification_that_keeps_failing_holds_no_other_up(notifying: Notifying) -> None:
    notifying.session()
    notifying.posts.failures = [DeliveryFailed("webhook_url: status 400")]
    late(notifying)
    notifying.clock.advance(1)
    sessions.cancel_session(notifying.co, ANALYST, notifying.define("other").name)
    notifying.posts.failures = [DeliveryFailed("webhook_url: status 400")]
    send_all(notifying.co)
    sent = [(body["kind"], body["session"]) for body, _ in notifying.posts.got]
    assert ("finished", "other") in sent


def test_old_rows_are_removed_once_the_clock_is_trusted(notifying: Notifying) -> None:
    notifying.define()
    notifying.mails.failures = [DeliveryFailed("refused (550)", final=True)]
    send_all(notifying.co)
    notifying.clock.advance(KEPT_FOR.total_seconds() + 1)
    notifying.define("other")
    tidy(notifying.co)
    ended = {DeliveryState.SENT: 2, DeliveryState.FAILED: 1}
    assert counts(notifying) == {**ended, DeliveryState.WAITING: 3}
    for _ in range(3):
        notifying.co.clock.check()
        notifying.clock.advance(HOUR)
    tidy(notifying.co)
    assert counts(notifying) == {DeliveryState.WAITING: 3}
