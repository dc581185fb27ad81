"""The pages of sessions: who sees what, what they say, what can be done, and the live view."""

import re
from unittest.mock import Mock

import httpx
import pytest

from fedclust.wire import codec
from fedclust_service.domain.notification import Channel, Outgoing
from fedclust_service.http.ui.rendering import listed
from support.api_caller import ApiCaller
from support.local_coordinator import LocalCoordinator

SITES = ["north", "south", "west"]
MARKUP = "<script>alert(1)</script>\"'{{ 7 * 7 }}"
HOSTILE = {"title": MARKUP, "purpose": f"אשכולות {MARKUP} {'x' * 200}", "contact": "y" * 200}


class Place:
    """A coordinator with sites and analysts; a session of each kind is made where it is needed."""

    def __init__(self, local: LocalCoordinator) -> None:
        self.local, self.clock = local, local.coordinator.clock
        self.api = ApiCaller.found(local, (*SITES, "east"), "ada", "ben")
        people = ("operator", "ada", "ben", "north", "south", "east")
        self.readers = {name: self.api.reader(name) for name in people}

    def open(self, who: str, path: str, *, status: int = 200) -> str:
        """Return a page below the sessions as words: one space where it has any white space."""
        return " ".join(self.readers[who].open(f"/ui/sessions{path}", status=status).split())

    def post(self, who: str, path: str, *fields: tuple[str, str]) -> httpx.Response:
        return self.readers[who].post(f"/ui/sessions{path}", fields)

    def running(self, name: str, *answered: str, **policy: int) -> None:
        """Make a session whose round 1 has these answers."""
        self.api.begin("ada", name, SITES, policy=policy)
        self.api.send(name, *answered)


@pytest.fixture(scope="module")
def place(served: LocalCoordinator) -> Place:
    return Place(served)


def test_empty_lists_say_what_to_do_next(place: Place) -> None:
    for who, words in (
        ("operator", "Register"),
        ("ben", "Define a session"),
        ("east", "fedclust participate"),
    ):
        assert words in place.open(who, ""), who


def test_everybody_lists_the_sessions_that_concern_them(place: Place) -> None:
    place.api.define("ada", "listed", SITES, title="Heart failure")
    place.running("listed-live", "north", round_timeout_s=60)
    for who, seen in (("operator", 1), ("ada", 1), ("north", 1), ("ben", 0), ("east", 0)):
        assert place.open(who, "").count('href="/ui/sessions/listed"') == seen, who
    place.clock.advance(61)
    assert "south and west" in place.open("ada", "?state=running")
    assert "Heart failure" not in place.open("ada", "?state=running")
    assert "No session matches" in place.open("ada", "?study=none")
    own = place.open("north", "")
    assert '<span class="badge answered">' in own
    assert place.api.definition("x", SITES)["purpose"] in own
    # First of all what waits for the site: a decision, and an answer that is late.
    waits = {
        who: re.findall(r'<li><a href="/ui/sessions/(listed[^"]*)"', place.open(who, ""))
        for who in ("north", "south", "ada")
    }
    assert waits["north"] == ["listed/consent"]
    assert waits["south"] == ["listed-live", "listed/consent"]
    assert waits["ada"] == []


def test_a_session_that_recruits_says_who_is_missing_and_starts(place: Place) -> None:
    place.api.define("ada", "spring", [*SITES, "east"], start="manual")
    page = place.open("ada", "/spring")
    assert "0 of 4 sites have joined. Waiting for north, south, west and 1 more" not in page
    assert "Waiting for east, north, south and west" in page
    assert 'id="do-start"' not in page
    refused = place.post("ada", "/spring/start")
    assert (refused.status_code, "0 of the 3 sites" in refused.text) == (409, True)
    for site in SITES:
        place.api.join(site, "spring")
    assert re.search(
        r'session-actions"> <a class="button primary" id="do-start"', place.open("ada", "/spring")
    )
    confirm = place.open("ada", "/spring/start")
    assert "starts with the 3 sites that have joined: north, south and west" in confirm
    assert "east has not joined. The method lets sites join later" in confirm
    started = place.post("ada", "/spring/start")
    assert started.headers["Location"] == "/ui/sessions/spring?notice=session-started"
    assert "The session has started." in place.open("ada", "/spring?notice=session-started")
    assert "Round 1 collects: 0 of 3 sites" in place.open("ada", "/spring")


def test_who_must_tell_a_session_to_its_sites_is_said_until_all_have_joined(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.api.define("ada", "told", SITES)
    place.api.join("north", "told")
    for path in ("/told?notice=session-created", "/told", "/told/live"):
        page = place.open("ada", path)
        part = page[page.index('id="tell"') : page.index("</section>")]
        assert "Tell south and west" in part
        assert "The coordinator sends no mails." in part
        assert 'href="/ui/sessions/told/consent?site=south">What sites read</a>' in part
        for command in ("check", "review", "approve", "participate"):
            assert f" fedclust {command} told " in part
        assert part.count("export FEDCLUST_") == 2
    assert 'id="tell"' not in place.open("south", "/told"), "a site is told what it can do"
    # A page asks only whether there is a sender.
    mails = Outgoing({Channel.EMAIL: Mock()})
    monkeypatch.setattr(place.local.coordinator, "outgoing", mails)
    assert "The coordinator has mailed those with an address only." in place.open("ada", "/told")
    for site in ("south", "west"):
        place.api.join(site, "told")
    assert 'id="tell"' not in place.open("ada", "/told")


def test_closing_a_round_says_what_happens_to_those_that_have_not_answered(place: Place) -> None:
    place.api.register("sites", "delta")
    place.api.begin("ada", "closing", [*SITES, "delta"], policy={"quorum": 3})
    place.api.send("closing", *SITES[:2])
    too_early = place.open("operator", "/closing/rounds/1/close")
    assert "2 of the 3 answers" in too_early
    assert "<form method" not in too_early[too_early.index("<h1>") :]
    assert place.post("operator", "/closing/rounds/1/close").status_code == 409
    place.api.send("closing", "west")
    confirm = place.open("operator", "/closing/rounds/1/close")
    assert "closes with the answers of 3 of 4 sites. delta has not answered" in confirm
    assert "In the next round it is asked again" in confirm
    assert place.post("operator", "/closing/rounds/1/close").status_code == 303
    assert "has its answers" in place.open("ada", "/closing")
    assert "closed by hand" in place.open("ada", "/closing")
    assert "does not collect" in place.open("ada", "/closing/rounds/1/close")
    assert "There is no round" in place.open("ada", f"/closing/rounds/{10**12}/close", status=404)


def test_a_deadline_moves_by_a_button_or_to_a_time_in_utc(place: Place) -> None:
    place.running("slow", "north", round_timeout_s=600)
    place.clock.advance(601)
    late = place.open("operator", "/slow")
    assert "<b>south and west</b> are late since" in late
    choice = re.search(r'name="at" value="([^"]+)">1 day', place.open("ada", "/slow/deadline"))
    for _ in range(2):  # pressed twice, it moves once
        assert place.post("ada", "/slow/deadline", ("at", choice.group(1))).status_code == 303
    assert choice.group(1)[:16] in place.open("ada", "/slow")
    assert "are late" not in place.open("ada", "/slow")
    other = ("deadline", "2026-03-01T12:30")
    assert place.post("ada", "/slow/deadline", other).status_code == 303
    assert 'datetime="2026-03-01T12:30:00Z"' in place.open("ada", "/slow")
    for wrong in ("2020-01-01T00:00", "soon", "", "9999-12-31T23:59-23:00"):
        refused = place.post("ada", "/slow/deadline", ("deadline", wrong))
        assert (refused.status_code, "Give more time" in refused.text) == (422, True)


def test_excluding_says_how_many_sites_are_left(place: Place) -> None:
    place.running("smaller", "north")
    confirm = place.open("ada", "/smaller/sites/west/exclude")
    assert "2 sites would be left: north and south. <b>The session needs 3.</b>" in confirm
    assert place.post("ada", "/smaller/sites/west/exclude").status_code == 303
    assert '<span class="badge excluded">' in place.open("ada", "/smaller")
    assert "no site" in place.open("ada", "/smaller/sites/x/exclude", status=404)


def test_a_refused_task_is_shown_with_its_reason(place: Place) -> None:
    place.running("distrusted", "south")
    path = "/v1/sessions/distrusted/rounds/1/refusal"
    place.api.ok("PUT", path, "north", json={"rule": "task-rounds"})
    for reader in ("ada", "operator"):
        shown = place.open(reader, "/distrusted")
        assert '<span class="badge refused">' in shown
        assert "more rounds than the definition allows" in shown
    assert "Refused: task-rounds (north)." in place.open("ada", "/distrusted")
    own = place.open("north", "/distrusted")
    assert "This site refused a task" in own
    assert "takes no part" in place.open("north", "/distrusted/consent")
    wrong = place.api.request("PUT", path, "north", json={"rule": "43 patients of SECRET"})
    assert wrong.status_code == 422
    assert "SECRET" not in wrong.text


def test_sites_whose_points_are_short_are_named(place: Place) -> None:
    features = [{"name": "age"}, {"name": "chol"}]
    died = {"name": "died", "kind": "binary", "role": "outcome", "points": 25}
    place.api.define("ada", "deaths", SITES, features=[*features, died])
    place.api.join("north", "deaths", features=["age", "chol", "died"], points_short=True)
    place.api.join("south", "deaths", features=["age", "chol", "died"])
    for reader in ("ada", "north", "south"):
        shown = place.open(reader, "/deaths")
        assert shown.count("refused: points short") == 1
        assert "The session asks 25 points of the allowance of each site (died 25)." in shown
        assert "are at least 5 persons, except counts of outcomes, which have random" in shown


def test_inviting_cancelling_and_deleting(place: Place) -> None:
    place.api.define("ada", "short", SITES)
    assert 'value="east"' in place.open("ada", "/short/invite")
    assert place.post("ada", "/short/invite").status_code == 422
    assert place.post("ada", "/short/invite", ("site", "<b>")).status_code == 422
    # Twice the same is once, however often.
    assert place.post("ada", "/short/invite", *[("site", "east")] * 10_001).status_code == 303
    assert 'value="east"' not in place.open("ada", "/short/invite")
    assert "its 4 invitations" in place.open("ada", "/short/delete")
    assert place.post("ada", "/short/delete").headers["Location"].startswith("/ui/sessions?")
    place.open("ada", "/short", status=404)
    place.running("over", "north")
    stays = place.post("ada", "/over/delete")
    assert (stays.status_code, "so it stays" in stays.text) == (409, True)
    assert "the answers of 1 of 3 sites are not used" in place.open("ada", "/over/cancel")
    assert place.post("ada", "/over/cancel").status_code == 303
    page = place.open("ada", "/over")
    assert "The session was cancelled" in page
    assert 'id="poll"' not in page
    assert "/cancel" not in page
    assert place.post("ada", "/over/sites/north/exclude").status_code == 409


def test_a_site_sees_of_others_only_whether_they_answered(place: Place) -> None:
    place.running("private", "north", "south")
    own, all_ = place.open("north", "/private"), place.open("operator", "/private")
    sites = own[own.index('id="sites"') : own.index('id="rounds"')]
    assert sites.count("answered</span>") == 2
    for word in ("<time", "bytes", "Last seen", "/exclude", "0.1.0"):
        assert word not in sites, word
    assert "Last seen" in all_
    assert "bytes" in all_
    for word in ("/start", "/cancel", "/invite", "/deadline", "/close"):
        assert f'private{word}"' not in own, word
    assert "/ui/sessions/private/consent" in own
    assert "fedclust participate" in own


def test_text_of_other_people_stays_text(place: Place) -> None:
    place.api.define("ada", "hostile", SITES, **HOSTILE, start="manual")
    for who in ("operator", "ada", "north"):
        for page in (place.open(who, "/hostile"), place.open(who, "")):
            assert "<script>alert" not in page
            assert "{{ 7 * 7 }}" in page
        assert "y" * 200 in place.open(who, "/hostile")


def test_the_definition_is_the_one_that_sites_consent_to(place: Place) -> None:
    place.api.define("ada", "frozen", SITES)
    sha256 = place.api.ok("GET", "/v1/sessions/frozen", "ada")["definition_sha256"]
    got = place.readers["north"].client.get("/ui/sessions/frozen/definition.json")
    assert codec.sha256(got.content) == sha256
    assert got.headers["Content-Disposition"] == 'attachment; filename="frozen.json"'
    assert sha256 in place.open("ada", "/frozen")


def test_an_open_page_asks_for_what_has_changed_until_the_end(place: Place) -> None:
    def question(page: str) -> list[str]:
        return re.findall(r'hx-get="(.+?)" hx-trigger="every 3s"', page)

    place.running("live", "north")
    reader = place.api.reader("ada")
    (asked,) = question(reader.open("/ui/sessions/live"))
    for who in (reader, place.readers["operator"]):
        assert (got := who.client.get(asked)).status_code == 204
        assert got.content == b""
    place.api.send("live", "south")
    (again,) = question(reader.open(asked))
    assert reader.client.get(again).status_code == 204
    place.api.ok("POST", "/v1/sessions/live/cancel", "operator")
    last = reader.open(again)
    assert "The session was cancelled" in last
    assert question(last) == []
    # The page of what is gone is loaded again, to say so.
    gone = reader.client.get("/ui/sessions/gone/live", headers={"HX-Request": "true"})
    assert (gone.status_code, gone.headers["HX-Refresh"]) == (404, "true")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, ""), (1, "a"), (2, "a and b"), (4, "a, b, c and d"), (6, "a, b, c and 3 more")],
)
def test_long_lists_of_names_are_cut(count: int, text: str) -> None:
    assert listed(list("abcdef")[:count]) == text
