"""Signing in to the pages, what guards their forms, and how they refuse."""

import re
import socket
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fedclust_service.domain.access import Role
from fedclust_service.domain.tokens import new_token, parse_token
from fedclust_service.usecases import sessions
from support.api_caller import ApiCaller
from support.local_coordinator import LocalCoordinator, local_coordinator
from support.timeouts import TIMEOUT_S

from ..conftest import Running

STARTS = {"operator": "/ui/overview", "ada": "/ui/sessions", "north": "/ui/sessions"}


@pytest.fixture(scope="module")
def place(served: LocalCoordinator) -> Running:
    """A coordinator with one site and one analyst."""
    return Running(served, ApiCaller.found(served, ("north",)), served.coordinator.clock)


def test_an_unexpected_error_is_a_page_that_repeats_nothing(
    place: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("s3cret")

    reader = place.api.reader("ada")
    monkeypatch.setattr(sessions, "list_sessions", fail)
    answer = reader.client.get("/ui/sessions")
    assert (answer.status_code, answer.headers["Retry-After"]) == (500, "5")
    assert answer.headers["Content-Type"].startswith("text/html")
    assert answer.headers["Fedclust-Request-Id"] in answer.text
    assert 'href="/ui/studies"' in answer.text  # whoever has signed in finds the way on
    assert "s3cret" not in answer.text


@pytest.mark.parametrize("name", STARTS)
def test_a_token_is_exchanged_for_a_cookie_that_scripts_cannot_read(
    place: Running, name: str
) -> None:
    visitor = place.local.http()
    answer = visitor.post("/ui/sign-in", data={"token": f" {place.api.tokens[name]}\n"})
    assert (answer.status_code, answer.headers["Location"]) == (303, STARTS[name])
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/" in cookie
    # Until the browser is closed; and over plain HTTP, which is for loopback alone, not Secure.
    assert "expires" not in cookie.lower()
    assert place.api.tokens[name] not in cookie
    account = visitor.get("/ui/account")
    assert account.status_code == 200
    assert account.headers["Cache-Control"] == "no-store"
    assert name in account.text
    assert place.api.tokens[name] not in account.text


def test_a_wrong_token_is_refused_in_words_and_not_repeated(place: Running) -> None:
    wrong = "fco_" + "a" * 12 + "_" + "B" * 49
    answer = place.local.http().post("/ui/sign-in", data={"token": wrong})
    assert answer.status_code == 401
    assert "not a complete token" in answer.text
    assert wrong not in answer.text
    assert "set-cookie" not in answer.headers


def test_who_has_not_signed_in_is_led_to_the_form_and_back(place: Running) -> None:
    visitor = place.local.http()
    asked = visitor.get("/ui/account")
    assert asked.status_code == 303
    form = visitor.get(asked.headers["Location"])
    wanted = re.search(r'name="next" value="([^"]*)"', form.text)
    assert wanted.group(1) == "/ui/account"
    fields = {"token": place.api.tokens["ada"], "next": "/ui/account"}
    assert visitor.post("/ui/sign-in", data=fields).headers["Location"] == "/ui/account"


@pytest.mark.parametrize(
    "elsewhere",
    ["https://example.org/", "//example.org/ui/", "/ui//x\\@y", "/v1/whoami", "/ui/a?b"],
)
def test_signing_in_never_leads_elsewhere(place: Running, elsewhere: str) -> None:
    fields = {"token": place.api.tokens["ada"], "next": elsewhere}
    answer = place.local.http().post("/ui/sign-in", data=fields)
    assert answer.headers["Location"] == "/ui/sessions"


def test_a_link_in_an_email_finds_the_reader_signed_in(place: Running) -> None:
    """A browser withholds the cookie; the same address asked for from here comes with it."""
    answer = place.local.http().get("/ui/account", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
    assert answer.headers["Refresh"] == "0;url=/ui/account"
    for path in ("/ui/x;url=https://example.org/", "/ui/%0D%0ASet-Cookie:%20a=b", "/ui/%D7%90"):
        odd = place.local.http().get(path, headers={"Sec-Fetch-Site": "cross-site"})
        assert odd.status_code == 404


def test_a_form_of_another_site_signs_nobody_in_or_out(place: Running) -> None:
    """What guards the other forms: test_page_access."""
    headers, token = {"Sec-Fetch-Site": "cross-site"}, {"token": place.api.tokens["ada"]}
    refused = place.local.http().post("/ui/sign-in", data=token, headers=headers)
    assert (refused.status_code, "Nothing was done" in refused.text) == (403, True)
    assert "set-cookie" not in refused.headers
    # The browser sends no cookie with it, but would take an answer that deletes it.
    for sent in ({}, headers):
        answer = place.local.http().post("/ui/sign-out", data={"csrf": "x"}, headers=sent)
        assert (answer.status_code, "not done" in answer.text) == (401, True)
        assert not {"set-cookie", "refresh"} & set(answer.headers)


def test_signing_out_ends_one_sign_in_and_everywhere_ends_all(place: Running) -> None:
    first, second, third = (place.api.reader("ada") for _ in range(3))
    bystander = place.api.reader("north")
    cookies = dict(first.client.cookies)
    assert first.post("/ui/sign-out").headers["Location"] == "/"
    assert not dict(first.client.cookies)
    stolen = httpx.get(f"{place.local.base_url}/ui/account", cookies=cookies, trust_env=False)
    assert stolen.status_code == 401
    second.open("/ui/account")
    assert second.post("/ui/sign-out-everywhere").status_code == 303
    assert "signed out" in third.open("/ui/account", status=401)
    bystander.open("/ui/account")


def test_signing_in_again_ends_the_earlier_sign_in_of_the_browser(place: Running) -> None:
    reader, bystander = place.api.reader("ada"), place.api.reader("ada")
    cookies = dict(reader.client.cookies)
    again = reader.client.post("/ui/sign-in", data={"token": place.api.tokens["ada"]})
    assert again.status_code == 303
    assert dict(reader.client.cookies) != cookies
    stolen = httpx.get(f"{place.local.base_url}/ui/account", cookies=cookies, trust_env=False)
    assert stolen.status_code == 401
    for each in (reader, bystander):
        each.open("/ui/account")


def test_a_revoked_token_ends_what_it_signed_in(place: Running) -> None:
    issued = place.api.ok("POST", "/v1/analysts/ada/tokens", "operator")
    reader = place.api.reader(issued["token"])
    reader.open("/ui/account")
    place.api.ok("DELETE", f"/v1/analysts/ada/tokens/{issued['id']}", "operator")
    for here, leads_to in (
        (f"{place.local.base_url}/ui/sites?limit=2", "/ui/sites"),
        ("https://elsewhere.example//elsewhere.example/ui/sites", "/ui/sign-in"),
        (None, "/ui/sign-in"),
    ):
        said = {"HX-Request": "true"} | ({"HX-Current-URL": here} if here else {})
        part = reader.client.get("/ui/account", headers=said)
        assert part.headers["HX-Redirect"] == leads_to
    posted = reader.client.post("/ui/sign-out", data={"csrf": "x"})
    assert (posted.status_code, "revoked" in posted.text) == (401, True)
    # The browser forgets the cookie, so the next page leads to the form.
    assert "Your token" in reader.open("/ui/account")


def test_a_reader_who_was_away_signs_in_again(place: Running) -> None:
    reader = place.api.reader("north")
    place.local.coordinator.clock.advance(29 * 60)
    reader.open("/ui/account")
    place.local.coordinator.clock.advance(29 * 60)
    # What an open page asks by itself is no use of the sign-in.
    reader.open("/ui/sessions/none/live", status=404)
    place.local.coordinator.clock.advance(2 * 60)
    assert 'name="next" value="/ui/account"' in reader.open("/ui/account", status=401)
    # What was typed does not come back in the page to sign in, and a wrong token neither.
    typed = reader.client.post("/ui/new-session", data={"/title": "Typed", "csrf": "x"})
    assert (typed.status_code, "Typed" in typed.text) == (401, False)
    wrong = reader.client.post("/ui/sign-in", data={"token": "fca_Typed", "next": "/ui/account"})
    assert (wrong.status_code, "Typed" in wrong.text) == (401, False)
    assert 'name="next" value="/ui/account"' in wrong.text
    assert "Your token" in reader.open("/ui/account")


def test_errors_are_pages_and_name_nothing_that_was_sent(place: Running) -> None:
    reader = place.api.reader("ada")
    page = reader.client.get("/ui/<script>alert(1)</script>")
    assert (page.status_code, page.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "alert(1)" not in page.text
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert reader.client.get("/ui/sign-out").status_code == 405
    upload = reader.client.post("/ui/sign-out", json={"csrf": reader.csrf()})
    assert (upload.status_code, "<h1>" in upload.text) == (415, True)


def test_no_database_is_asked_about_odd_addresses(place: Running) -> None:
    reader = place.api.reader("operator")
    name = "n" * 65
    for path in ("/ui/sites/%00", f"/ui/sites/{name}", "/ui/sites/%F0%9F%98%80/disable"):
        assert reader.client.get(path).status_code == 404, path
    for number in ("9" * 5_000, "9" * 25, "-1", "%D9%A3"):
        for act in (reader.client.get, reader.post):
            answer = act(f"/ui/sessions/heart/rounds/{number}/close")
            assert answer.status_code == 404, number
    for query in ("name=%00", f"cursor={'x' * 1_001}"):
        assert reader.client.get(f"/ui/sites?{query}").status_code == 400, query
    assert reader.post("/ui/sites/north", [("title", "\0")]).status_code == 400


def test_little_is_read_of_a_form_before_its_sender_is_known(place: Running) -> None:
    visitor, reader = place.local.http(), place.api.reader("ada")
    large = {"token": "x" * 270_000}
    assert visitor.post("/ui/sign-in", data=large).status_code == 413
    # What an unknown caller sends is not even looked at.
    assert visitor.post("/ui/new-session", content=b"\xff").status_code == 401
    answer = reader.post("/ui/new-session", [("/title", "x" * (4 << 20))])
    assert answer.status_code == 413


def test_nothing_below_ui_is_kept_by_a_browser(place: Running) -> None:
    visitor, reader = place.local.http(), place.api.reader("ada")
    away = {"Sec-Fetch-Site": "cross-site"}
    answers = [
        visitor.get("/ui/account"),
        visitor.get("/ui/account", headers=away),
        visitor.get("/ui/account", headers={"HX-Request": "true"}),
        visitor.post("/ui/sign-in", data={"token": place.api.tokens["ada"]}),
        reader.client.get("/ui/"),
        reader.post("/ui/new-session", [("file", "1")]),
        reader.post("/ui/sign-out"),
    ]
    for answer in answers:
        assert answer.headers["Cache-Control"] == "no-store", answer.request.url
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert answer.headers["Referrer-Policy"] == "no-referrer"


def test_over_https_the_cookie_is_for_this_host_alone(tmp_path: Path) -> None:
    with local_coordinator(tmp_path, behind_proxy="127.0.0.0/8", requests_per_token="1") as local:
        browser = local.http(**{"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.1"})
        answer = browser.post("/ui/sign-in", data={"token": local.operator_token})
        name, _, value = answer.headers["Set-Cookie"].partition(";")[0].partition("=")
        assert name == "__Host-fedclust"
        assert {"Path=/", "Secure", "HttpOnly", "SameSite=strict"} <= {
            each.strip() for each in answer.headers["Set-Cookie"].split(";")
        }
        assert "Domain" not in answer.headers["Set-Cookie"]
        browser.cookies.clear()
        own = f"{name}={value}"
        # A cookie that a page of another port or host could set does not count.
        for cookie, status in ((own, 200), (f"fedclust=x; {own}", 200), (f"fedclust={value}", 303)):
            found = browser.get("/ui/account", headers={"Cookie": cookie})
            assert found.status_code == status, cookie
        # What nobody is authenticated with does not give another budget.
        url = httpx.URL(local.base_url)
        form = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 9"
        head = f"POST /ui/sign-out HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: https\r\n{form}\r\n"
        head += f"Expect: 100-continue\r\nCookie: {own}\r\n\r\n"
        with socket.create_connection((url.host, url.port), timeout=TIMEOUT_S) as open_request:
            open_request.sendall(head.encode())
            assert open_request.recv(65_536).startswith(b"HTTP/1.1 100 ")
            for more in ([("Authorization", "Bearer other")], [("Cookie", f"fedclust=y; {own}")]):
                headers = [*more, ("Cookie", own)]
                refused = browser.get("/ui/account", headers=headers)
                assert (refused.status_code, "<h1>" in refused.text) == (429, True)


def test_failed_attempts_keep_nobody_else_out(place: Running) -> None:
    """Who varies the token waits as one; a token waits only after attempts with its own id."""
    visitor, right = place.local.http(), place.api.tokens["ada"]
    answers = [
        visitor.post("/ui/sign-in", data={"token": token})
        for token in ("x", *(new_token(Role.ANALYST).reveal() for _ in range(11)))
    ]
    assert {answer.status_code for answer in answers} == {401, 429}
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["Retry-After"]) > 0
    assert "Too many attempts" in answers[-1].text
    assert "Your token" in answers[-1].text
    assert visitor.post("/ui/sign-in", data={"token": right}).status_code == 303
    guesses = [
        replace(parse_token(right), secret=new_token(Role.ANALYST).secret) for _ in range(10)
    ]
    for guess in guesses:
        answer = place.local.http().post("/ui/sign-in", data={"token": guess.reveal()})
        assert answer.status_code == 401
    assert place.local.http().post("/ui/sign-in", data={"token": right}).status_code == 429
    other = place.api.tokens["north"]
    assert place.local.http().post("/ui/sign-in", data={"token": other}).status_code == 303
