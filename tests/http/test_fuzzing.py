"""What schemathesis makes of the published description is answered as it says."""

from __future__ import annotations

import json
import random
from typing import Any

import hypothesis
import pytest
from hypothesis.errors import FlakyStrategyDefinition
from sqlalchemy import text

from fedclust.wire.submissions import JSON
from support.api_caller import ApiCaller
from support.contract_watch import MARK, Watch, caller_of, texts
from support.timeouts import TIMEOUT_S


@pytest.mark.parametrize(
    ("watch", "requests"),
    [
        ("sqlite", 240),
        pytest.param("sqlite", 600, marks=pytest.mark.long),
        pytest.param("postgresql", 600, marks=pytest.mark.long),
    ],
    indirect=["watch"],
)
def test_what_schemathesis_makes_is_answered_as_the_contract_says(
    watch: Watch, requests: int
) -> None:
    fuzz(watch, requests, seed=3)
    assert watch.findings.requests == requests
    assert watch.findings.faults == {}
    assert {200, 201, 403, 404} <= watch.findings.statuses.keys()


def test_a_watch_finds_each_kind_of_fault(watch: Watch) -> None:
    api, good = watch.api, watch
    watching = Watch(api, str(good._engine.url))
    problem = {"content-type": "application/problem+json"}
    watching.judge("get_site", 500, "{}", problem, [])
    watching.judge("get_site", 409, "{}", problem, [])
    other = '{"type":"urn:fedclust:problem:round-closed"}'
    watching.judge("get_site", 404, other, problem, [])
    watching.judge("get_site", 404, "<html>", {"content-type": "text/html"}, [])
    watching.judge("get_site", 404, f'{{"detail": "{MARK}"}}', problem, [f"/v1/sites/{MARK}"])
    watching.judge("get_site", 404, '{"detail": "qzxvkwpj!"}', problem, ["/v1/sites/qzxvkwpj!"])
    watching.judge("get_site", 404, "{}", {**problem, "x": "qzxvkwpj!"}, ["qzxvkwpj!"])
    watching.judge("create_site", 201, "{}", {}, [])
    with good._engine.begin() as connection:
        connection.execute(text("UPDATE principals SET title = 'x' WHERE name = 'other-sites'"))
    watching.judge("get_site", 200, "{}", {}, [])
    watching.judge("put_submission", 422, "{}", problem, [])
    assert {kind: len(found) for kind, found in watching.findings.faults.items()} == {
        "server errors": 1,
        "undocumented statuses": 2,
        "errors without a problem": 1,
        "echoes": 3,
        "rows outside the audit": 3,
    }
    watching.close()


def fuzz(watch: Watch, n: int, seed: int) -> None:
    """Send ``n`` requests that schemathesis makes, following the description's links.

    In turns of all operations, and of those of sessions alone, which are harder to get at. Six in
    ten are sent on with the name of a session that is there, and most with a token of the role that
    the operation is for: without, they would end at 404 and 401.
    """
    # All workers collect this module, and one runs it: importing takes half a second.
    import schemathesis

    schema = schemathesis.openapi.from_dict(watch.document)
    aims, limit = _Aims(watch.api, random.Random(seed)), watch.findings.requests + n
    of_sessions = schema.include(path_regex="^/v1/sessions/")
    machines = [_machine(each, watch, aims, limit) for each in (schema, of_sessions)]
    turn = 0
    while watch.findings.requests < limit:
        turn += 1
        machine = machines[turn % 2]
        settings = hypothesis.settings(
            max_examples=5,
            stateful_step_count=15,
            deadline=None,
            database=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        machine.rule_order_seed = 1_000 * seed + turn
        try:
            hypothesis.seed(machine.rule_order_seed)(machine)
            machine.run(settings=settings)
        except _Enough:
            break
        except FlakyStrategyDefinition:
            # What follows a request depends on what the coordinator has become: begin again.
            continue


def _machine(schema: Any, watch: Watch, aims: _Aims, limit: int) -> Any:
    """Return a schema's state machine, which records what is wrong until it was enough."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.core.failures import FailureGroup
    from schemathesis.specs.openapi import checks

    judged = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
    ]

    class Machine(schema.as_state_machine()):  # type: ignore[misc]  # a class made at run time
        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"base_url": watch.api.base_url, "timeout": TIMEOUT_S}

        def call(self, case: Any, **keywords: Any) -> Any:
            if watch.findings.requests >= limit:
                raise _Enough
            aims.aim(case)
            return case.call(**keywords)

        def validate_response(self, response: Any, case: Any, *_: Any, **keywords: Any) -> None:
            operation = case.operation.definition.raw["operationId"]
            said = [*_said(case.path_parameters), *_said(case.query), *_said(case.body)]
            headers = {name: ", ".join(value) for name, value in response.headers.items()}
            watch.judge(operation, response.status_code, response.text, headers, said)
            try:
                case.validate_response(response, checks=judged, transport_kwargs=keywords)
            except FailureGroup as group:
                for failure in group.exceptions:
                    text = f"{operation}: {failure}"
                    watch.findings.fault("breaches of the description", text)

    return Machine


class _Enough(BaseException):
    """As many requests as were asked for; no error that a fuzzer may look into."""


class _Aims:
    """Names and tokens that make requests go past the door."""

    def __init__(self, api: ApiCaller, rng: random.Random) -> None:
        self.api, self.rng = api, rng
        self._sessions: list[str] = []
        self._sent = 0

    def aim(self, case: Any) -> None:
        operation = case.operation.definition.raw["operationId"]
        if self._sent % 150 == 0:
            self._renew()
        self._sent += 1
        sites = [name for name in self.api.tokens if name not in {"operator", "bob"}]
        own = self.rng.choice(sites)
        caller = caller_of(operation, own)
        if self.rng.random() < 0.15:
            caller = self.rng.choice([*self.api.tokens])
        headers = dict(case.headers or {})
        if self.rng.random() < 0.95:
            headers["Authorization"] = f"Bearer {self.api.tokens[caller]}"
        case.headers = headers
        named = case.path_parameters or {}
        if case.method != "GET" and named.get("name") in self.api.tokens:
            # Whom the rest goes through is not disabled: schemathesis learns names from lists.
            case.path_parameters = {**named, "name": f"not-{named['name']}"}
        if "session" in (case.path_parameters or {}) and self.rng.random() < 0.6:
            session = self.rng.choice(self._sessions)
            case.path_parameters = {**case.path_parameters, "session": session}
            self._sensible(case, operation, own, session)

    def _sensible(self, case: Any, operation: str, site: str, session: str) -> None:
        """Now and then, what a good site would send: sessions go on, and end."""
        if operation == "join_session" and self.rng.random() < 0.4:
            shown = self.api.request("GET", f"/v1/sessions/{session}", site)
            if shown.status_code == 200:
                case.body = self.api.participation(site, session)
        if operation == "put_submission" and self.rng.random() < 0.5:
            view = self.api.request("GET", f"/v1/sessions/{session}/task", site)
            if view.status_code == 200 and view.json()["status"] == "work":
                case.path_parameters = {**case.path_parameters, "number": view.json()["round"]}
                case.body, case.media_type = json.loads(self.api.answer(site, session)), JSON

    def _renew(self) -> None:
        """Define a session that runs, and let one that ran before come to its end."""
        sites = [name for name in self.api.tokens if name not in {"operator", "bob"}]
        name = f"live-{self._sent}"
        self.api.begin("bob", name, sites, policy={"max_rounds": 3})
        if self._sessions and self.rng.random() < 0.7:
            view = self.api.request("GET", f"/v1/sessions/{self._sessions[-1]}", "bob").json()
            joined = [site["name"] for site in view["sites"] if site["state"] == "joined"]
            if view["state"] == "running" and len(joined) == len(sites):
                self.api.finish(self._sessions[-1], sites)
        self._sessions = [*self._sessions[-3:], name]


def _said(value: Any) -> list[str]:
    if value is None or not isinstance(value, dict | list | str | int | float):
        return []
    try:
        return texts(json.dumps(value).encode())[1:]
    except (TypeError, ValueError):
        return []
