"""Who may open and post what: every page, every kind of reader, own, foreign, absent objects.

The cases come from the pages' routes. A route that `EXPECTED` does not name fails
`test_every_page_has_an_expectation`, so that a new one cannot be forgotten.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from fedclust_service.http import ui
from support.local_coordinator import LocalCoordinator

from .. import access
from ..conftest import two_analysts

READERS = {"site": "north", "analyst": "ada", "operator": "operator"}

_SESSION, _STUDY = "/sessions/{session}", "/studies/{study}"


def _people(many: str, listed: access.Access, seen: access.Access) -> dict[str, access.Access]:
    one = f"/{many}/{{name}}"
    changes = ("", "/disable", "/enable", "/tokens/{token}/revoke")
    return {
        f"GET /{many}": listed,
        f"GET /register/{many}": access.OPERATORS,
        f"GET {one}": seen,
        **{f"GET {one}{change}": access.PERSON for change in changes[1:]},
        f"POST /register/{many}": access.OPERATORS,
        f"POST {one}/tokens": access.PERSON,
        **{f"POST {one}{change}": access.PERSON for change in changes},
    }


_ACTS = (
    "/start",
    "/deadline",
    "/invite",
    "/names",
    "/rounds/{number}/close",
    "/sites/{site}/exclude",
    "/delete",
    "/cancel",
)
#: Posts that change most come last, so that they do not change who may do what.
EXPECTED: dict[str, access.Access] = {
    "GET /": access.EVERYBODY,
    "GET /sign-in": access.EVERYBODY,
    "GET /account": access.EVERYBODY,
    "GET /overview": access.OPERATORS,
    "POST /overview/backup": access.OPERATORS,
    "GET /audit": access.OPERATORS,
    "POST /audit/verification": access.OPERATORS,
    "GET /compare": access.EVERYBODY,
    "GET /sessions": access.EVERYBODY,
    f"GET {_SESSION}": access.SEEN,
    f"GET {_SESSION}/live": access.SEEN,
    f"GET {_SESSION}/definition.json": access.SEEN,
    f"GET {_SESSION}/consent": access.SEEN,
    f"GET {_SESSION}/receipts": access.SITES_OWN,
    f"GET {_SESSION}/result": access.SEEN,
    f"GET {_SESSION}/result/{{file}}": access.SEEN,
    f"GET {_SESSION}/result/figures/{{name}}.{{ending}}": access.SEEN,
    "GET /studies": access.EVERYBODY,
    f"GET {_STUDY}": access.SEEN,
    f"GET {_STUDY}/delete": access.MANAGED,
    **{f"GET /new-{what}": access.CREATORS for what in ("session", "study")},
    **{f"POST /new-{what}": access.CREATORS for what in ("session", "study")},
    f"GET {_SESSION}/retry": access.PERSON,
    **{f"GET {_SESSION}{act}": access.MANAGED for act in _ACTS},
    **_people("sites", access.CREATORS, access.Access(access.NOBODY, access.ALL, access.ALL)),
    "POST /sites/{name}/tables": access.PERSON,
    **_people("analysts", access.OPERATORS, access.PERSON),
    **_people("operators", access.OPERATORS, access.PERSON),
    f"POST {_SESSION}/retry": access.PERSON,
    **{f"POST {_SESSION}{act}": access.MANAGED for act in _ACTS},
    f"POST {_STUDY}/delete": access.MANAGED,
    "POST /sign-in": access.EVERYBODY,
    "POST /sign-out": access.EVERYBODY,
    "POST /sign-out-everywhere": access.EVERYBODY,
}
_OPEN = {"GET /sign-in", "POST /sign-in"}
POSTS = [each for each in EXPECTED if each.startswith("POST") and each not in _OPEN]


class Place:
    """Two analysts with a study and a session of three sites each, in round 1."""

    def __init__(self, local: LocalCoordinator) -> None:
        self.local = local
        self.api, self.ids = two_analysts(local)
        self.readers = {name: self.api.reader(name) for name in (*READERS.values(), "bob")}

    def path(self, page: str, which: str) -> str:
        template = page.partition(" ")[2].replace("{token}", "{token_id}")
        template = template.replace("{name}.{ending}", "sizes.svg")
        return "/ui" + access.path_of(template, which, self.ids, file="result.json")

    def ask(
        self, client: httpx.Client, page: str, which: str, csrf: str = "", **headers: str
    ) -> httpx.Response:
        method, path = page.split()[0], self.path(page, which)
        fields = {"data": {"csrf": csrf}} if method == "POST" else {}
        return client.request(method, path, headers=headers, **cast(Any, fields))

    def rows(self) -> list[str]:
        """Return all that the database holds."""
        (file,) = Path(self.local.settings.data_dir).glob("*.db")
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            return list(database.iterdump())


@pytest.fixture(scope="module")
def place(served: LocalCoordinator) -> Place:
    return Place(served)


def test_every_page_has_an_expectation() -> None:
    assert set(EXPECTED) == {
        f"{method} {route.path.removeprefix('/ui')}"
        for route in ui.ROUTES
        for method in route.methods or ()
        if method != "HEAD"
    }


def test_who_has_not_signed_in_reads_nothing(place: Place) -> None:
    visitor, before = place.local.http(), place.rows()
    bad = {"Cookie": f"fedclust={'a' * 12}.{'A' * 43}"}
    for page in set(EXPECTED) - _OPEN:
        answer = place.ask(visitor, page, access.OWN)
        leads = answer.headers.get("Location", "").partition("?")[0]
        expected = (401, "") if page in POSTS else (303, "/ui/sign-in")
        assert (answer.status_code, leads) == expected, page
        assert place.ask(visitor, page, access.OWN, **bad).status_code == 401, page
    assert place.rows() == before


def test_each_role_opens_what_it_may_and_changes_nothing_so(place: Place) -> None:
    before = place.rows()
    for role, name in READERS.items():
        for page in EXPECTED:
            if page.startswith("GET"):
                check_access(place, role, page)
            elif page in POSTS and page.replace("POST", "GET") not in EXPECTED:
                path = place.path(page, access.OWN)
                refused = place.readers[name].client.get(path)
                found = refused.status_code, refused.headers["Allow"]
                assert found == (405, "OPTIONS, POST"), page
    assert place.rows() == before


def check_access(place: Place, role: str, page: str, csrf: str = "") -> None:
    """Assert how a page is answered to a role."""

    def ask(which: str) -> httpx.Response:
        reader, token = place.readers[READERS[role]], csrf
        if page.startswith("POST /sign"):
            reader = place.api.reader(READERS[role])
            token = reader.csrf()
        return place.ask(reader.client, page, which, token)

    if page == "POST /sign-in":
        assert ask(access.OWN).status_code == 401  # for want of a token
    else:
        EXPECTED[page].check(role, ask)


def test_a_post_from_elsewhere_changes_nothing(place: Place) -> None:
    before = place.rows()
    client, other = place.readers["operator"].client, place.readers["bob"].csrf()
    own = place.readers["operator"].csrf()
    for page in POSTS:
        for csrf in ("", other):
            # A definition that was typed before another sign-in is shown again, and not created.
            status = 200 if page in ("POST /new-session", "POST /new-study") else 403
            assert place.ask(client, page, access.OWN, csrf).status_code == status, page
        for site in ("cross-site", "same-site"):
            elsewhere = {"Sec-Fetch-Site": site}
            assert place.ask(client, page, access.OWN, own, **elsewhere).status_code == 403, page
    assert place.rows() == before


def test_queries_do_not_tell_what_exists(place: Place) -> None:
    for name in ("ada", "north"):
        client = place.readers[name].client
        for path in (
            "/ui/compare?first=",
            "/ui/compare?first=of-ada&second=",
            "/ui/new-session?from=",
            "/ui/new-session?study=",
            "/ui/new-session?from=of-ada&study=",
            "/ui/sessions?study=",
        ):
            foreign, absent = (client.get(f"{path}{each}") for each in ("of-bob", "of-nobody"))
            assert access.shown(foreign, "of-bob") == access.shown(absent, "of-nobody"), path
    texts = []
    for study in ("of-bob", "of-nobody"):
        answer = place.readers["ada"].post("/ui/new-session", [("study", study)])
        texts.append(access.shown(answer, study))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("role", READERS)
def test_each_role_posts_what_it_may(place: Place, role: str) -> None:
    name = READERS[role]
    csrf = place.readers[name].csrf()
    for page in EXPECTED:
        if page.startswith("POST"):
            check_access(place, role, page, csrf)
    # Signed out everywhere: a test that runs later needs a reader who is signed in.
    place.readers[name] = place.api.reader(name)


#: Pages and what the HTTP interface says about the same.
_TWINS = {
    "": "",
    "/live": "",
    "/definition.json": "",
    "/consent": "",
    "/result": "/result",
    "/result/report.csv": "/result",
    "/result/figures/sizes.svg": "/result",
}


def test_pages_refuse_as_the_interface_for_programs_does(place: Place) -> None:
    """Also a site that was excluded: it sees the session, but not its result."""
    sites = ["north", "oslo", "rome", "west"]
    place.api.begin("bob", "twin", sites, policy={"quorum": 3})
    place.api.ok("DELETE", "/v1/sessions/twin/participation/west", "bob")
    place.local.coordinator.start()
    place.api.finish("twin", sites[:3])
    seen = set()
    for name in (*READERS.values(), "bob", "west"):
        reader = place.api.reader(name)
        for page, twin in _TWINS.items():
            shown = reader.client.get(f"/ui/sessions/twin{page}")
            said = place.api.request("GET", f"/v1/sessions/twin{twin}", name)
            assert shown.status_code == said.status_code, (name, page)
            seen.add(said.status_code)
    assert seen == {200, 403, 404}
