"""What a steward reads before joining, and what the site has sent."""

import hashlib
import math
import re
from html import unescape
from statistics import NormalDist

import pytest

from fedclust.result.session_terms import SessionTerms
from fedclust.result.wording import isolated
from fedclust.wire.models import SessionInfo
from support.api_caller import ApiCaller
from support.local_coordinator import LocalCoordinator

SITES = ["north", "south", "west"]
DIED = {"name": "died", "role": "outcome", "kind": "binary", "points": 12}
HOSTILE = "<script>alert(1)</script> אשכולות " + "x" * 150


@pytest.fixture(scope="module")
def api(served: LocalCoordinator) -> ApiCaller:
    """Session ``heart``, of which north has sent its first submission, and one with no joins."""
    made = ApiCaller.found(served, (*SITES, "east"), "ada", "eve")
    made.begin("ada", "heart", SITES, title=HOSTILE)
    made.define("ada", "two", SITES[:2], policy={"min_sites": 2})
    made.define("ada", "exact", SITES, policy={"protection": "none"})
    features = [*({"name": f"x{j}"} for j in range(4)), DIED, {**DIED, "name": "moved"}]
    made.define("ada", "asked", SITES, features=features)
    return made


def test_a_steward_reads_every_line_of_the_consent_screen(api: ApiCaller) -> None:
    page = api.reader("north").open("/ui/sessions/heart/consent")
    assert "<script>alert" not in page
    info = SessionInfo.model_validate_json(
        api.request("GET", "/v1/sessions/heart", "north").content
    )
    terms = SessionTerms(api.base_url, "north", info.asker, info.operator, info.definition, 5)
    said = " ".join(unescape(page).split())
    for heading, line in terms.text(full=True):
        if heading not in {"session", "purpose"}:
            assert " ".join(line.split()) in said, heading
    assert said.index(info.definition.purpose) < said.index("In short")
    assert f"FEDCLUST_COORDINATOR={api.base_url}\n" in page
    assert "fedclust review heart --data FILE --id-column ID --mapping columns.toml" in page
    assert "<form" not in page.split("<main", 1)[1]  # nobody consents here
    assert "fedclust approve heart --name" in page


def test_an_analyst_reads_what_each_site_reads(api: ApiCaller) -> None:
    ada = api.reader("ada")
    page = unescape(ada.open("/ui/sessions/two/consent?site=south"))
    assert "north can subtract its own part from each sum" in page
    ada.open("/ui/sessions/two/consent?site=west", status=404)


def test_a_steward_reads_what_counts_of_outcomes_let_anybody_guess(api: ApiCaller) -> None:
    page = api.reader("north").open("/ui/sessions/asked/consent")
    short = " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())
    short = short.partition("In short")[2].partition("Annex:")[0]
    # Twice 12 points: of 250, so a shift of 0.438 standard deviations.
    assert "outcomes use 24 of the 100 points" in short
    right = 100 * NormalDist().cdf(math.sqrt(2 * 24 / 250) / 2)
    assert f"yes/no outcome right {right:.0f} times, and 67 once" in short
    before, said = short.split("The outcomes use")
    after = said.partition("points are used.")[2]
    assert len(f"{before} {after}".split()) <= 350, "without the paragraph on outcomes"
    assert "times in 100" not in api.reader("north").open("/ui/sessions/heart/consent")


def test_what_is_unusual_is_said_first_and_in_the_list(api: ApiCaller) -> None:
    north = api.reader("north")
    for name, said, mark in (
        ("exact", "No protection: this session works on exact rows", "exact rows"),
        ("two", "A session of two sites", "two sites"),
    ):
        for place in ("", "/consent"):
            page = north.open(f"/ui/sessions/{name}{place}")
            assert page.index(said) < page.index('id="purpose"')
        row = north.open("/ui/sessions").split(f'sessions/{name}">', 1)[1].split("</tr>", 1)[0]
        assert f"{mark}</span>" in row
        assert "asked by ada" in row
    usual = north.open("/ui/sessions/heart") + north.open("/ui/sessions/heart/consent")
    exact = north.open("/ui/sessions/exact/consent")
    assert "Single persons: a number about few rows shows their values." in exact
    assert "whole groups" not in exact
    assert "no person." not in exact
    assert "No protection" not in usual
    assert "A session of two sites" not in usual


def test_a_site_that_left_reads_no_command_to_join(api: ApiCaller) -> None:
    api.define("ada", "left", SITES)
    assert api.request("DELETE", "/v1/sessions/left/participation", "north").is_success
    north = api.reader("north")
    assert "fedclust participate" not in north.open("/ui/sessions/left/consent")
    page = " ".join(north.open("/ui/sessions/left").split())
    assert "it needs 3 sites, and of those invited 2 can still take part" in page


def test_words_from_the_right_do_not_turn_the_rest_of_a_line(api: ApiCaller) -> None:
    features = [{"name": "גיל", "unit": "שנים", "lower": 0, "upper": 120}]
    api.define("ada", "right", SITES, features=features, approval="ועדה 2026/0123-B")
    page = api.reader("north").open("/ui/sessions/right/consent")
    assert f"{isolated('גיל')} ({isolated('שנים')}, bounds 0 to 120)" in page
    assert f"approval: {isolated('ועדה 2026/0123-B')}; 3 sites" in page


def test_receipts_are_those_of_the_site_alone(api: ApiCaller) -> None:
    north, south = api.reader("north"), api.reader("south")
    assert "Nothing has left this site" in north.open("/ui/sessions/heart/receipts")
    body = api.answer("north", "heart")
    assert api.put("north", "heart", 1, body).status_code == 201
    page = north.open("/ui/sessions/heart/receipts")
    assert hashlib.sha256(body).hexdigest() in page
    assert "fedclust ledger show --session heart" in page
    phase = api.ok("GET", "/v1/sessions/heart/rounds", "north")["items"][0]["phase"]
    assert f"<h3>{phase}</h3>" in page
    assert "Nothing has left this site" in south.open("/ui/sessions/heart/receipts")
