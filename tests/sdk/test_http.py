"""Retries, refusals and secrets of the HTTP layer, with time that stands still."""

import email.utils
import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedclust.client.http import ConnectionOptions, Http
from fedclust.wire.errors import (
    CoordinatorUnreachable,
    Internal,
    NotFound,
    ProtocolError,
    ProxyError,
    TLSError,
    Unauthenticated,
    Unavailable,
    UsageError,
)
from support.fake_coordinator import answer, refusal

URL = "https://coordinator.example"
SECRET = "fcs_swordfish"


class Script(httpx.BaseTransport):
    """Answers requests from a list; an exception in it is raised."""

    def __init__(self, *steps: httpx.Response | Exception | Callable[[], Exception]) -> None:
        self.steps = list(steps)
        self.seen: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, httpx.Response):
            return step
        raise step() if callable(step) else step


class Time:
    def __init__(self) -> None:
        self.now, self.slept = 0.0, []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def http(script: Script, time: Time | None = None, **options: Any) -> Http:
    time = time or Time()
    return Http(
        URL,
        SECRET,
        ConnectionOptions(**options),
        transport=script,
        sleep=time.sleep,
        monotonic=lambda: time.now,
    )


def caused(cause: Exception) -> httpx.ConnectError:
    error = httpx.ConnectError("failed")
    error.__cause__ = cause
    return error


def ok() -> httpx.Response:
    return answer(200, b"{}", "application/json")


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("slow"),
        httpx.ReadTimeout("slow"),
        httpx.ReadError("reset"),
        refusal("unavailable"),
        refusal("request-timeout"),
        answer(502, b"<html>bad gateway"),
        answer(504),
        # Whose connection ends during the handshake.
        caused(ssl.SSLEOFError(8, "EOF occurred in violation of protocol")),
    ],
)
def test_what_waiting_may_heal_is_tried_again(failure: httpx.Response | Exception) -> None:
    script, time = Script(failure, ok()), Time()
    assert http(script, time).request("PUT", "/v1/x", body=b"exact", media="a/b").status == 200
    assert len(time.slept) == 1
    assert [request.content for request in script.seen] == [b"exact", b"exact"]


def test_backoff_grows_is_capped_jitters_and_ends_in_time() -> None:
    script, time = Script(lambda: httpx.ConnectError("refused")), Time()
    with pytest.raises(CoordinatorUnreachable):
        http(script, time, give_up_after_s=3600).request("GET", "/v1/x")
    assert 3600 - 60 <= time.now <= 3600
    ceilings = [min(60, 0.5 * 2**k) for k in range(len(time.slept))]
    assert all(c / 2 <= s <= c for s, c in zip(time.slept, ceilings, strict=True))
    assert len({round(s, 6) for s in time.slept[8:]}) > 5


@pytest.mark.parametrize("date", [False, True])
def test_retry_after_is_heeded_in_seconds_and_as_a_date(date: bool) -> None:
    when = datetime.now(UTC) + timedelta(seconds=30)
    value = email.utils.format_datetime(when, usegmt=True) if date else "30"
    script, time = Script(refusal("unavailable", **{"Retry-After": value}), ok()), Time()
    http(script, time).request("GET", "/v1/x")
    assert 28 <= time.slept[0] <= 30.5


def test_retry_after_beyond_patience_gives_up_at_once() -> None:
    script, time = Script(refusal("unavailable", **{"Retry-After": "600"})), Time()
    with pytest.raises(Unavailable):
        http(script, time, give_up_after_s=60).request("GET", "/v1/x")
    assert time.slept == []


@pytest.mark.parametrize("value", ["soon", "-5", "", "Wed, 99 Foo"])
def test_a_senseless_retry_after_is_ignored(value: str) -> None:
    script, time = Script(refusal("unavailable", **{"Retry-After": value}), ok()), Time()
    http(script, time).request("GET", "/v1/x")
    assert time.slept[0] <= 0.5


@pytest.mark.parametrize(
    ("failure", "times"),
    [
        (httpx.ConnectError("never sent"), 2),
        (httpx.ReadError("may have been sent"), 1),
        (refusal("unavailable"), 1),
    ],
)
def test_what_may_not_happen_twice_is_repeated_only_if_never_sent(
    failure: httpx.Response | Exception, times: int
) -> None:
    script = Script(failure, ok())
    try:
        http(script).request("POST", "/v1/tokens", repeatable=False)
    except (TLSError, CoordinatorUnreachable, Unavailable):
        assert times == 1
    assert len(script.seen) == times


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (refusal("unauthenticated"), Unauthenticated),
        (refusal("not-found"), NotFound),
        (refusal("internal"), Internal),
        (caused(ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")), TLSError),
    ],
)
def test_refusals_and_wrong_certificates_end_it_at_once(step: Any, kind: type[Exception]) -> None:
    time = Time()
    with pytest.raises(kind):
        http(Script(step), time).request("GET", "/v1/x")
    assert time.slept == []


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_refused(status: int) -> None:
    script = Script(answer(status, Location="https://elsewhere.example/"))
    with pytest.raises(ProtocolError, match="redirects"):
        http(script).request("GET", "/v1/x")
    assert len(script.seen) == 1


def test_a_connection_that_is_always_closed_without_an_answer_hints_at_client_certificates() -> (
    None
):
    closed = httpx.RemoteProtocolError("Server disconnected without sending a response.")
    time = Time()
    with pytest.raises(TLSError, match="client certificate"):
        http(Script(closed), time, give_up_after_s=5).request("GET", "/v1/x")
    assert time.slept, "a coordinator that is being stopped looks the same"
    client = http(Script(ok(), closed), Time(), give_up_after_s=5)
    client.request("GET", "/v1/x")
    with pytest.raises(CoordinatorUnreachable):
        client.request("GET", "/v1/x")


def test_plain_http_that_is_always_closed_without_an_answer_hints_at_https() -> None:
    closed = httpx.RemoteProtocolError("Server disconnected without sending a response.")
    client = Http(
        "http://127.0.0.1:8400",
        SECRET,
        ConnectionOptions(give_up_after_s=0),
        transport=Script(closed),
    )
    with pytest.raises(CoordinatorUnreachable, match="use https://"):
        client.request("GET", "/v1/x")


def test_a_page_of_somebody_else_is_an_error_without_its_contents() -> None:
    script = Script(answer(403, b"<html>blocked by SECRET policy"))
    with pytest.raises(Exception, match="proxy or another server") as caught:
        http(script).request("GET", "/v1/x")
    assert "SECRET" not in str(caught.value)


def test_an_endless_answer_is_cut_off() -> None:
    script = Script(answer(200, b"x" * 1001))
    with pytest.raises(ProtocolError, match="1000 bytes"):
        http(script, max_answer=1000).request("GET", "/v1/x")


def test_a_long_poll_is_given_its_time() -> None:
    script = Script(ok())
    http(script).request("GET", "/v1/x", wait_s=25)
    others = dict.fromkeys(("connect", "write", "pool"), 10.0)
    assert script.seen[0].extensions["timeout"] == {"read": 35.0, **others}


def test_the_token_appears_nowhere_but_in_its_header(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    script = Script(httpx.ReadError("x"), refusal("unauthenticated"))
    client = http(script)
    with pytest.raises(Unauthenticated) as caught:
        client.request("GET", "/v1/x", params={"limit": 5})
    assert script.seen[0].headers["Authorization"] == f"Bearer {SECRET}"
    seen = [repr(client), repr(caught.value), str(caught.value), str(script.seen[0].url)]
    seen += [repr(client.options), caplog.text]
    assert not [text for text in seen if "swordfish" in text]


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1",
        "http://0.0.0.0:8400",
        "http://[2001:db8::1]",
        "http://127.0.0.1.nip.example",
        "http://localhost.example",
        "ftp://coordinator.example",
        "localhost:8400",
        "https://user:pw@coordinator.example",
        "https://coordinator.example?x=1",
        "https://",
        "https://[::1",
    ],
)
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        Http(url, SECRET)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.8.8.8", "http://[::1]:9"])
def test_plain_http_to_this_machine_ignores_proxies(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:3128")
    assert not Http(url, SECRET)._client._mounts
    with pytest.raises(UsageError):
        Http(url, SECRET, ConnectionOptions(proxy="http://proxy.example:3128"))


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "nö"])
def test_tokens_that_are_none(token: str) -> None:
    with pytest.raises(UsageError) as caught:
        Http(URL, token)
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize("proxy", ["gopher://u:hunter2@h:1", "http://u:hunter2@[::1", "nonsense"])
def test_a_wrong_proxy_is_refused_without_its_password(proxy: str) -> None:
    with pytest.raises(UsageError) as caught:
        Http(URL, SECRET, ConnectionOptions(proxy=proxy))
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_certificates_that_cannot_be_read(tmp_path: Path) -> None:
    absent, empty = tmp_path / "absent.pem", tmp_path / "empty.pem"
    empty.write_text("nothing", "utf-8")
    for options, said in (
        (ConnectionOptions(ca_bundle=absent), r"absent\.pem"),
        (ConnectionOptions(ca_bundle=empty), r"empty\.pem"),
        (ConnectionOptions(client_cert=absent), r"absent\.pem"),
        (ConnectionOptions(client_cert=empty), r"empty\.pem"),
        (ConnectionOptions(client_key=empty), "client"),
    ):
        with pytest.raises(UsageError, match=said):
            Http(URL, SECRET, options)


@pytest.mark.parametrize(
    "busy",
    [
        partial(refusal, "too-many-requests"),
        # Of a proxy that limits the rate.
        partial(answer, 429, b"<html>slow down</html>", "text/html"),
    ],
)
def test_a_full_budget_is_waited_for_whatever_the_request(
    busy: Callable[..., httpx.Response],
) -> None:
    """Who answers 429 has not begun with the request."""
    time = Time()
    full = [busy(**{"Retry-After": "5"}) for _ in range(2)]
    script = Script(*full, answer(201, b"{}", "application/json"))
    issued = http(script, time).request("POST", "/v1/sites/north/tokens", repeatable=False)
    assert issued.status == 201
    assert time.slept == [5.0, 5.0]


def test_an_address_that_cannot_be_reached_says_why_and_what_to_look_at() -> None:
    unknown = OSError(-2, "Name or service not known")
    with pytest.raises(CoordinatorUnreachable, match=r"Name or service not known.*--proxy"):
        http(Script(lambda: caused(unknown))).request("GET", "/v1/whoami")


@pytest.mark.parametrize("status", [407, None])
def test_a_proxy_password_is_not_asked_for_on_the_command_line(status: int | None) -> None:
    step = answer(407) if status else httpx.ProxyError("407 Proxy Authentication Required")
    time = Time()
    with pytest.raises(ProxyError, match="FEDCLUST_PROXY") as caught:
        http(Script(step), time).request("GET", "/v1/whoami")
    assert "--proxy" not in str(caught.value)
    assert time.slept == [], "it is not asked again"


def test_a_proxy_from_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "ftp://user:swordfish@proxy.example")
    with pytest.raises(UsageError, match="HTTPS_PROXY") as caught:
        Http(URL, SECRET)
    assert "swordfish" not in str(caught.value)
