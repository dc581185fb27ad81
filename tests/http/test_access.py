"""Who may do what: every route, every kind of caller, own, foreign and absent objects.

The cases come from the application's routes. A route that `EXPECTED` does not name fails
`test_every_route_has_an_expectation`, so that a new one cannot be forgotten.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from description import build_description
from fedclust_service.domain.access import Role
from fedclust_service.domain.tokens import TokenText, new_token, parse_token
from fedclust_service.http.routes import api_routes
from support.api_caller import ApiCaller
from support.local_coordinator import LocalCoordinator

from . import access
from .conftest import two_analysts

#: Nobody's: the answer does not depend on a token.
OPEN = "open"

EXPECTED: dict[str, access.Access | str] = {
    "healthz": OPEN,
    "readyz": OPEN,
    # From this machine, without a token; test_metrics.py says who else.
    "metrics": OPEN,
    "whoami": access.EVERYBODY,
    "list_algorithms": access.EVERYBODY,
    "get_algorithm": access.Access(access.ALL, access.ALL, access.ALL),
    "create_site": access.OPERATORS,
    "list_sites": access.CREATORS,
    "get_site": access.Access(access.NOBODY, access.ALL, access.ALL),
    "change_site": access.PERSON,
    "issue_site_token": access.PERSON,
    "revoke_site_token": access.PERSON,
    "list_site_tables": access.Access(access.SEES, access.NOBODY, access.ALL),
    "accept_site_table": access.PERSON,
    "create_analyst": access.OPERATORS,
    "list_analysts": access.OPERATORS,
    "get_analyst": access.PERSON,
    "change_analyst": access.PERSON,
    "issue_analyst_token": access.PERSON,
    "revoke_analyst_token": access.PERSON,
    "create_operator": access.OPERATORS,
    "list_operators": access.OPERATORS,
    "get_operator": access.PERSON,
    "change_operator": access.PERSON,
    "issue_operator_token": access.PERSON,
    "revoke_operator_token": access.PERSON,
    "create_study": access.CREATORS,
    "list_studies": access.EVERYBODY,
    "get_study": access.SEEN,
    "delete_study": access.MANAGED,
    "create_session": access.CREATORS,
    "list_sessions": access.EVERYBODY,
    "get_session": access.SEEN,
    "change_session": access.MANAGED,
    "start_session": access.MANAGED,
    "retry_session": access.PERSON,
    "cancel_session": access.MANAGED,
    "delete_session": access.MANAGED,
    "join_session": access.SITES_OWN,
    "leave_session": access.SITES_OWN,
    "exclude_site": access.MANAGED,
    "get_task": access.SITES_OWN,
    "put_submission": access.SITES_OWN,
    "refuse_task": access.SITES_OWN,
    "list_rounds": access.SEEN,
    "get_round": access.SEEN,
    "close_round": access.MANAGED,
    "get_result": access.SEEN,
    "get_audit_head": access.EVERYBODY,
    "get_overview": access.OPERATORS,
    "list_audit": access.OPERATORS,
}
#: What is sent where a body is needed. Roles are decided before it is read.
BODIES: dict[str, Any] = {
    "create_site": {"name": "new-site"},
    "create_analyst": {"name": "new-analyst"},
    "create_operator": {"name": "new-operator"},
    "change_site": {"title": "changed"},
    "change_analyst": {"title": "changed"},
    "change_operator": {"title": "changed"},
    "accept_site_table": {"number": 1, "head": "0" * 16},
    "create_study": {"name": "incomplete"},
    "create_session": {"name": "incomplete"},
    "change_session": {},
    "join_session": {
        "definition_sha256": "0" * 64,
        "features": [],
        "size_band": "<50",
        "sdk_version": "0",
        "methods": {},
        "engine": [],
    },
    "put_submission": {},
    "refuse_task": {"rule": "task"},
}
#: Whom routes about people are asked about: nobody whose token another test needs.
CALLERS = {"site": "north", "analyst": "ada", "operator": "operator"}
ROUTES = {route.operation_id or route.name: route for route in api_routes()}


@dataclass
class Populated:
    """Two sessions of two analysts with three sites each, both in round 1, and bad tokens."""

    local: LocalCoordinator
    api: ApiCaller
    ids: dict[str, str]
    bad: dict[str, str | None]


@pytest.fixture(scope="module")
def populated(served: LocalCoordinator) -> Populated:
    api, ids = two_analysts(served)
    # The thread that does this does not run here.
    served.coordinator.sealer.run_once()
    short = api.ok("POST", "/v1/sites/north/tokens", api.operator, json={"expires_in_days": 1})
    revoked = api.ok("POST", "/v1/sites/north/tokens", api.operator)
    api.ok("DELETE", f"/v1/sites/north/tokens/{revoked['id']}", api.operator)
    api.register("sites", "closed")
    api.ok("PATCH", "/v1/sites/closed", api.operator, json={"disabled": True})
    served.coordinator.clock.advance(2 * 86_400)
    good = api.tokens["north"]
    text = parse_token(good)
    bad = {
        "none": None,
        "not a token": "hello",
        "mistyped": good[:-1] + ("a" if good[-1] != "a" else "b"),
        "unknown": new_token(Role.SITE).reveal(),
        # Its checksum is right.
        "of another role": TokenText(Role.OPERATOR, text.id, text.secret).reveal(),
        "expired": short["token"],
        "revoked": revoked["token"],
        "disabled": api.tokens["closed"],
    }
    return Populated(served, api, ids, bad)


def _call(populated: Populated, operation: str, which: str, token: str | None) -> httpx.Response:
    route = ROUTES[operation]
    (method,) = route.methods or {"GET"}
    keywords: dict[str, Any] = {}
    if operation in BODIES:
        keywords["json"] = BODIES[operation]
    own_tables = operation == "list_site_tables" and which == access.OWN
    names = {"site": CALLERS["site"]} if own_tables else {}
    path = access.path_of(route.path, which, populated.ids, **names)
    return populated.api.request(method, path, token, **keywords)


def test_every_route_has_an_expectation() -> None:
    assert set(ROUTES) == set(EXPECTED)


# The routes that change most come last: what they leave must not change who may do what.
_LAST = ["refuse_task", "leave_session", "exclude_site", "cancel_session"]
_ORDER = [name for name in EXPECTED if name not in _LAST] + _LAST
CLOSED = [name for name in _ORDER if EXPECTED[name] != OPEN]


@pytest.mark.parametrize("operation", CLOSED)
def test_without_a_good_token_every_route_answers_401(populated: Populated, operation: str) -> None:
    for kind, token in populated.bad.items():
        for which in (access.OWN, access.ABSENT) if kind in {"none", "disabled"} else (access.OWN,):
            response = _call(populated, operation, which, token)
            assert response.status_code == 401, f"{kind}, {which}"
            assert response.headers["WWW-Authenticate"].startswith("Bearer")
            assert response.headers["Content-Type"] == "application/problem+json"
            assert token is None or token not in response.text


#: What no parameter of a path, a query or a header can be, as it is sent.
_MALFORMED = {"number": "x", "limit": "x", "wait": "x", "k": "x"}
_ODD = "Bad%20Name%00"


def _odd_requests() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield every documented request with each of its parameters malformed, and with all."""
    for template, methods in build_description()["paths"].items():
        for method, operation in methods.items():
            if EXPECTED[operation["operationId"]] == OPEN:
                continue
            parameters = [(each["name"], each["in"]) for each in operation.get("parameters", ())]
            for odd in [*([each] for each in parameters), parameters]:
                values = {name: _MALFORMED.get(name, _ODD) for name, _ in odd}
                path = template.format_map(defaultdict(lambda: "1", values))
                asked = [name for name, where in odd if where == "query"]
                query = "&".join(f"{name}={values[name]}" for name in asked)
                sent = {name: values[name] for name, where in odd if where == "header"}
                yield method, f"{path}?{query}", sent


def test_the_token_is_looked_at_before_anything_else(populated: Populated) -> None:
    client = populated.local.http()
    asked = 0
    for method, path, headers in _odd_requests():
        for kind in ("none", "revoked"):
            token = populated.bad[kind]
            sent = {**headers, "Content-Type": "application/json"}
            if token is not None:
                sent["Authorization"] = f"Bearer {token}"
            response = client.request(method, path, headers=sent, content=b'{"a":1,"a":')
            assert response.status_code == 401, f"{method} {path} with {kind}: {response.text}"
            asked += 1
    assert asked > 2 * len(ROUTES)


@pytest.mark.parametrize("operation", [name for name in _ORDER if EXPECTED[name] == OPEN])
def test_open_routes_need_no_token(populated: Populated, operation: str) -> None:
    # The threads behind readiness do not run here.
    assert _call(populated, operation, access.OWN, None).status_code in {200, 503}


@pytest.mark.parametrize("operation", CLOSED)
def test_access(populated: Populated, operation: str) -> None:
    expected = EXPECTED[operation]
    for role, caller in CALLERS.items():
        expected.check(role, lambda which, who=caller: _call(populated, operation, which, who))


def test_sites_see_of_other_sites_only_name_and_state(populated: Populated) -> None:
    session = populated.api.ok("GET", "/v1/sessions/of-bob", "lima")
    assert [site["name"] for site in session["sites"]] == ["lima", "oslo", "rome"]
    seen = {key for site in session["sites"] for key in site}
    assert seen <= {"name", "state", "answered", "late", "refused_task", "points_short", "standing"}
    for caller in ("lima", "bob"):
        session = populated.api.ok("GET", "/v1/sessions/of-bob", caller)
        assert [site["standing"] for site in session["sites"]] == [None] * 3
    rounds = populated.api.ok("GET", "/v1/sessions/of-bob/rounds", "lima")
    for site in rounds["items"][0]["sites"]:
        shown = {key for key, value in site.items() if value is not None}
        assert shown <= {"name", "answered", "late"}
