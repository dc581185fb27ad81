"""Bad bodies, parameters and addresses outside submissions; problems for what nobody foresaw."""

import json
import logging
from typing import Any
from unittest.mock import Mock

import pytest

from fedclust_service.http.app import api_routes
from fedclust_service.store import StoreBusy, StoreUnavailable
from fedclust_service.usecases import principals
from support.contract_watch import caller_of
from support.damage import change_stored

from .conftest import SITES, Running
from .problems import MARK, problem

#: What stands in the paths of routes.
NAMED = {
    "session": "heart",
    "study": "heart",
    "number": "1",
    "site": "west",
    "name": "north",
    "token_id": "x",
    "table_id": "0" * 32,
    "algorithm": "lloyd",
}
#: Every list of the API.
LISTS = [
    route.path.format(session="heart", site="north")
    for route in api_routes()
    if any(each.alias == "cursor" for each in route.dependant.query_params)
]

# --- bodies of JSON routes ------------------------------------------------------------------------

SESSION_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no algorithm of that name": ({"algorithm": MARK}, "/algorithm"),
    "no word of why": ({"purpose": ""}, "/purpose"),
    "a word of why": ({"purpose": "Research."}, "/purpose"),
    "a chapter of why": ({"purpose": "a" * 1_001}, "/purpose"),
    "lines of why": ({"purpose": "Which patients alike\nare there?"}, "/purpose"),
    "something invisible in why": (
        {"purpose": f"Which patients are{chr(0x200B)} alike?"},
        "/purpose",
    ),
    "a book of a title": ({"title": "a" * 201}, "/title"),
    "a time without its offset": ({"expires": "2030-01-01T00:00:00"}, "/expires"),
    "an unknown option": ({"config": {"n_clusters": 2, MARK: 1}}, "/config"),
    "text for a number": ({"config": {"n_clusters": MARK}}, "/config/n_clusters"),
    "a field of the sender's": ({MARK: 1}, ""),
    "a rule of the sender's": ({"policy": {MARK: 1}}, "/policy"),
    "quorum above the sites": ({"policy": {"quorum": 4}}, "/policy/quorum"),
    "a site that is not registered": ({"sites": ["north", "south", "nowhere"]}, "/sites/2"),
    "a site's name that cannot be": ({"sites": ["north", "south", MARK]}, "/sites/2"),
    "no features": ({"features": []}, "/features"),
    "bounds further apart than a number can say": (
        {"features": [{"name": "a", "lower": -1.7e308, "upper": 1.7e308}]},
        "/features/0/upper",
    ),
    "a seed too large": ({"seed": 2**53}, "/seed"),
    "a seed below 0": ({"seed": -1}, "/seed"),
    "a name that cannot be": ({"name": MARK}, "/name"),
    "a null character": ({"features": [{"name": "a\u0000b"}]}, "/features/0/name"),
}

#: Every route that takes JSON, but for submissions: method, path and operation.
JSON_ROUTES = [
    (method, route.path.format(**NAMED), route.operation_id or route.name)
    for route in api_routes()
    if route.body_field is not None
    for method in route.methods or ()
]


@pytest.mark.parametrize("name", SESSION_FAULTS)
def test_sessions_that_cannot_be_defined(running: Running, name: str) -> None:
    change, pointer = SESSION_FAULTS[name]
    body = running.api.definition("other", ["north", "south", "west"], **change)
    response = running.api.request("POST", "/v1/sessions", "ada", json=body)
    read = problem(response, "invalid")
    assert any(error.pointer.startswith(pointer) for error in read.errors), response.text
    assert running.api.request("GET", "/v1/sessions/other", "ada").status_code == 404


@pytest.mark.parametrize(
    "deadline",
    [
        MARK,
        "2026-01-05",
        "2026-01-05T10:00:00",
        12,
        "9999-12-31T23:59:59-14:00",
        "0001-01-01T00:00:00+14:00",
        "2026-01-05T10:00:00+99:00",
    ],
)
def test_deadlines_that_cannot_be(running: Running, deadline: Any) -> None:
    response = running.api.request(
        "PATCH", "/v1/sessions/heart", "ada", json={"deadline": deadline}
    )
    read = problem(response, "invalid")
    assert [error.pointer for error in read.errors] == ["/deadline"]


GARBAGE = [
    b"{",
    b"\xff\xfe",
    b'{"a":' * 10_000,
    b"[" * 100_000,
    b"NaN",
    b'{"features": [{"name": "a", "lower": -Infinity}]}',
    b'{"features": [{"name": "a", "lower": 1e999}]}',
    b"[]",
    b"7",
    b"9" * 5_000,
    b'"x"',
    b'{"title": "\\ud800"}',
    b"null",
    json.dumps({MARK: MARK}).encode(),
    json.dumps({"title": "x"}).encode("utf-16"),
]


@pytest.mark.parametrize(("method", "path", "operation"), JSON_ROUTES)
def test_garbage_is_refused_everywhere(
    running: Running, method: str, path: str, operation: str
) -> None:
    caller, headers = caller_of(operation, "north", "ada"), {"Content-Type": "application/json"}
    for body in GARBAGE:
        response = running.api.request(method, path, caller, content=body, headers=headers)
        problem(response, "invalid", "malformed-request")
    for more in ({"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Encoding": MARK}):
        response = running.api.request(
            method, path, caller, content=b"a=1", headers={**headers, **more}
        )
        problem(response, "unsupported-media-type")
    if not path.endswith("/tokens"):  # whose body may be left out
        problem(running.api.request(method, path, caller), "unsupported-media-type")
        response = running.api.request(method, path, caller, headers=headers)
        problem(response, "invalid", "malformed-request")
    for body in (
        b'{"title": "a", "t\\u0069tle": "b"}',
        f'{{"config": [{{"{MARK}": 1, "{MARK}": 1}}]}}'.encode(),
    ):
        response = running.api.request(method, path, caller, content=body, headers=headers)
        (error,) = problem(response, "invalid").errors
        assert (error.pointer, error.rule) == ("", "repeated-key")


def test_an_answer_without_a_body_has_no_media_type(live: Running) -> None:
    api = live.api
    api.study("ada", "once", ["north", "south"])
    api.define("ada", "doomed", ["north", "south", "west"])
    (token,) = api.ok("GET", "/v1/sites/west", "operator")["tokens"]
    for method, path, caller in (
        ("DELETE", "/v1/studies/once", "ada"),
        ("DELETE", "/v1/sessions/doomed", "ada"),
        ("DELETE", "/v1/sessions/heart/participation", "north"),
        ("DELETE", "/v1/sessions/heart/participation/south", "ada"),
        ("DELETE", f"/v1/sites/west/tokens/{token['id']}", "operator"),
    ):
        response = api.request(method, path, caller)
        assert (response.status_code, response.content) == (204, b""), response.text
        assert "Content-Type" not in response.headers


def test_a_body_too_large_is_refused_before_it_is_known_who_sends_it(running: Running) -> None:
    headers = {"Content-Type": "application/json"}
    large = b" " * (32 * 2**20 + 1)
    response = running.api.request("POST", "/v1/sites", None, content=large, headers=headers)
    problem(response, "body-too-large")
    chunks = iter([b" " * 2**20] * 33)
    response = running.api.request("POST", "/v1/sites", None, content=chunks, headers=headers)
    problem(response, "unauthenticated")


# --- parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=x",
        "limit=1.5",
        f"limit={'9' * 40}",
        f"cursor={MARK}",
        "cursor=",
        "cursor=%00",
        "state=nothing",
        f"state={MARK}",
        "cursor=" + "9" * 199,
    ],
)
def test_list_parameters(running: Running, query: str) -> None:
    allowed = {422} if query.startswith("limit") else {200, 422}
    for path in LISTS:
        response = running.api.request("GET", f"{path}?{query}", "operator")
        assert response.status_code in allowed, f"{path}: {response.text}"
        assert MARK not in response.text
        if response.status_code == 422:
            read = problem(response, "invalid")
            # Only the list of sessions has states.
            named = read.errors[0].rule != "extra_forbidden"
            assert read.errors[0].pointer == (f"/{query.partition('=')[0]}" if named else "")


# --- addresses and methods ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/sites/",
        "/v2/whoami",
        f"/{MARK}",
        "/v1/sessions/heart/task/",
        "/static/../settings.py",
        "/static/%2e%2e/app.py",
        "/static/nothing",
    ],
)
def test_addresses_that_are_not_there(running: Running, path: str) -> None:
    problem(running.api.request("GET", path, "operator"), "not-found")


def test_every_route_refuses_a_parameter_that_it_does_not_have(running: Running) -> None:
    for route in api_routes():
        path = route.path.format(**NAMED)
        (method,) = route.methods
        if path.startswith("/v1/"):
            unknown = running.api.request(method, f"{path}?limits=3")
            assert unknown.status_code == 401, f"{method} {path}: before the token is checked"
        refused = running.api.request(method, f"{path}?limits=3", "operator")
        (error,) = problem(refused, "invalid").errors
        assert error.rule == "extra_forbidden", f"{method} {path}"
        assert 'unknown parameter "limits"' in error.message
        if any(field.alias == "limit" for field in route.dependant.query_params):
            assert 'did you mean "limit"?' in error.message


def test_every_path_names_the_methods_that_it_takes(running: Running) -> None:
    by_path: dict[str, set[str]] = {}
    for route in api_routes():
        by_path.setdefault(route.path, set()).update(route.methods or set())
    for template, methods in by_path.items():
        path = template.format(**NAMED)
        allowed = methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"} - methods:
            response = running.api.request(method, path)
            problem(response, "method-not-allowed")
            assert set(response.headers["Allow"].split(", ")) == allowed
        options = running.api.request("OPTIONS", path)
        assert (options.status_code, options.headers.get("Content-Type")) == (204, None)
        assert set(options.headers["Allow"].split(", ")) == allowed


def test_head_is_get_without_a_body(running: Running) -> None:
    for path in ("/healthz", "/v1/whoami", "/v1/sessions/heart", "/v1/sessions/nothing", "/docs"):
        got = running.api.request("GET", path, "ada")
        head = running.api.request("HEAD", path, "ada")
        assert (head.status_code, head.content) == (got.status_code, b"")
        assert head.headers["Content-Length"] == got.headers["Content-Length"]


def test_authorization_is_one_bearer_token(running: Running) -> None:
    token = running.api.tokens["ada"]
    for value in (
        token,
        f"Basic {token}",
        f"Bearer {token} x",
        "Bearer",
        f"Bearer,{token}",
        f"Bearer {token * 20}",
        "Bearer \u00e9",
    ):
        headers = {"Authorization": value.encode("latin-1")}
        response = running.local.http().get("/v1/whoami", headers=headers)
        problem(response, "unauthenticated")
        assert token not in response.text
    twice = [("Authorization", f"Bearer {token}"), ("Authorization", f"Bearer {token}")]
    problem(running.local.http().get("/v1/whoami", headers=twice), "unauthenticated")
    headers = {"Authorization": f"bearer  {token}"}
    response = running.api.request("GET", "/v1/whoami", headers=headers)
    assert response.status_code == 200


def test_ids_of_requests_differ_and_an_inbound_one_is_not_believed(running: Running) -> None:
    headers = {"Fedclust-Request-Id": MARK, "X-Request-Id": MARK}
    response = running.api.request("GET", "/v1/whoami", headers=headers)
    problem(response, "unauthenticated")
    assert MARK not in str(response.headers)
    ids = {running.api.request("GET", "/healthz").headers["Fedclust-Request-Id"] for _ in range(9)}
    assert len(ids) == 9


# --- headers --------------------------------------------------------------------------------------


def test_headers_that_protect(running: Running) -> None:
    elsewhere = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "GET"}
    for method, path, caller in (
        ("GET", "/v1/sessions/heart/task", "north"),
        ("GET", "/v1/whoami", "ada"),
        ("OPTIONS", "/v1/whoami", "ada"),
        ("GET", "/x", None),
    ):
        headers = running.api.request(method, path, caller, headers=elsewhere).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"
        assert "server" not in headers
        assert not [name for name in headers if name.startswith("access-control-")]
    issued = running.api.request("POST", "/v1/sites/north/tokens", "operator")
    assert issued.headers["Cache-Control"] == "no-store"


# --- failures -------------------------------------------------------------------------------------


def test_a_failure_that_nobody_foresaw(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        try:
            raise KeyError(MARK)
        except KeyError as error:
            raise RuntimeError(f"with {MARK}") from error

    monkeypatch.setattr(principals, "whoami", fail)
    with caplog.at_level(logging.INFO):
        response = running.api.request("GET", "/v1/whoami", "ada")
    read = problem(response, "internal")
    assert response.headers["Retry-After"]
    written = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    failed = [event for event in written if event["event"] == "request_failed"]
    assert failed[0]["request_id"] == read.request_id
    chain = failed[0]["raised"]
    assert chain[0].startswith("RuntimeError at ")
    assert chain[1].startswith("KeyError at ")
    assert MARK not in str(written)
    assert running.api.request("GET", "/healthz").status_code == 200


@pytest.mark.parametrize("error", [StoreBusy, StoreUnavailable])
def test_a_store_that_cannot_answer_now(
    running: Running, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setattr(principals, "whoami", Mock(side_effect=error("names of things")))
    response = running.api.request("GET", "/v1/whoami", "ada")
    problem(response, "unavailable")
    assert int(response.headers["Retry-After"]) > 0
    assert "names of things" not in response.text


def test_readiness_says_what_is_wrong(live: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    co = live.local.coordinator
    assert live.api.request("GET", "/readyz").status_code == 200
    monkeypatch.setattr(co.store, "expected_migration", lambda: "another")
    changed = problem(live.api.request("GET", "/readyz"), "unavailable").detail
    # The program in this process may be the older one, which cannot upgrade anything.
    assert "restart it with the version that changed it" in changed
    monkeypatch.setattr(co.store, "migration_head", Mock(side_effect=StoreUnavailable("lost")))
    assert "database" in problem(live.api.request("GET", "/readyz"), "unavailable").detail
    assert live.api.request("GET", "/healthz").status_code == 200
    monkeypatch.undo()
    co.stop()
    problem(live.api.request("GET", "/readyz"), "unavailable")


def test_a_damaged_session_is_refused_and_has_failed(running: Running) -> None:
    api, path = running.api, "/v1/sessions/damaged"
    api.begin("ada", "damaged", SITES)
    store = running.local.coordinator.store
    seed = (b'"seed":7', b'"seed":8')
    change_stored(store, "sessions", "definition", lambda old: old.replace(*seed), name="damaged")
    for state, why in (("running", None), ("failed", "stored_data_damaged")):
        listed = {each["name"]: each for each in api.ok("GET", "/v1/sessions", "ada")["items"]}
        assert listed["heart"]["definition"]
        found = listed["damaged"]
        assert (found["state"], found["stopped_because"], found["definition"]) == (state, why, None)
        refused = api.request("GET", path, "ada")
        assert refused.status_code == 500
        assert refused.json()["type"] == "urn:fedclust:problem:stored-data-damaged"
    listed = api.ok("GET", "/v1/sessions", "operator")["items"]
    assert all(site["standing"] for each in listed for site in each["sites"])
    assert api.ok("GET", "/v1/admin/overview", "operator")
