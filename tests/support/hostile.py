"""Hostile requests to a coordinator, and a watch that holds each answer to the contract.

    watch = Watch(api, database_url)
    for sent in hostile_bodies(api, session, 500, seed=1):
        watch.send(sent)
    fuzz(api, watch, 5_000, seed=1)      # schemathesis, stateful, from the published description
    watch.findings.faults                     # nothing

The watch reads the database beside the coordinator: before and after each request, over its own
connection. What it looks for is in `Findings`.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import hypothesis
import msgpack
import schemathesis
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from sqlalchemy import MetaData, create_engine, func, select

from fedclust.wire.submissions import BINARY, JSON
from fedclust_service.http.examples import recorded
from support.api_caller import ApiCaller
from support.timeouts import TIMEOUT_S

MARK = "Zx9SecretValueZx9"
#: Columns that change without anybody having done something that the audit trail is for.
_QUIET = {"last_seen_at", "last_used_at"}
#: What of a session moves is in its version; a lease is no change that anybody asked for.
_WATCHED = ("principals", "tokens", "sessions", "participations")
_COUNTED = ("rounds", "addressees", "submissions", "results")
_SITE = {"join_session", "leave_session", "get_task", "put_submission"}
_ANALYST = {
    "create_session",
    "change_session",
    "start_session",
    "cancel_session",
    "exclude_site",
    "close_round",
    "get_result",
}
_STREAM = "text/event-stream"
_LONG = re.compile(r"[^\x00-\x1f]{8,}")


KINDS = (
    "server errors",
    "undocumented statuses",
    "errors without a problem",
    "breaches of the description",
    "echoes",
    "rows outside the audit",
)


@dataclass
class Findings:
    """What was sent and what was wrong with the answers. ``faults`` empty: nothing."""

    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=dict)

    def fault(self, kind: str, text: str) -> None:
        assert kind in KINDS
        self.faults.setdefault(kind, []).append(text)

    def count(self, kind: str) -> int:
        """Return how many faults of a kind there were."""
        return len(self.faults.get(kind, ()))


@dataclass(frozen=True)
class Sent:
    """A request: which operation of the description it is, and what it says."""

    operation: str
    method: str
    path: str
    token: str | None
    content: bytes
    headers: Mapping[str, str]


class Watch:
    """Holds answers to the published description, and the database to the audit trail."""

    def __init__(self, api: ApiCaller, database_url: str) -> None:
        self.api, self.findings = api, Findings()
        self.document = api.ok("GET", "/openapi.json", api.operator)
        self._known = json.dumps(self.document, ensure_ascii=False).lower()
        self._answers = {
            operation["operationId"]: set(operation["responses"]) - {"default"}
            for methods in self.document["paths"].values()
            for operation in methods.values()
        }
        self._types = {
            (operation["operationId"], status): set(problem.get("examples", ()))
            for methods in self.document["paths"].values()
            for operation in methods.values()
            for status, answer in operation["responses"].items()
            for problem in answer.get("content", {}).values()
        }
        self._engine = create_engine(database_url)
        self._tables = MetaData()
        self._tables.reflect(self._engine)
        self._before = self._look()

    def close(self) -> None:
        self._engine.dispose()

    def send(self, sent: Sent) -> httpx.Response:
        """Send one request and judge its answer."""
        response = self.api.request(
            sent.method, sent.path, sent.token, content=sent.content, headers=dict(sent.headers)
        )
        said = [sent.path, *sent.headers.values(), *_texts(sent.content)]
        self.judge(sent.operation, response.status_code, response.text, response.headers, said)
        return response

    def judge(
        self, operation: str, status: int, body: str, headers: Mapping[str, Any], said: list[str]
    ) -> None:
        """Judge one answer; ``said``: what the request said, as text."""
        findings = self.findings
        findings.requests += 1
        findings.statuses[status] += 1
        findings.operations[operation] += 1
        if status >= 500:
            findings.fault("server errors", f"{operation}: {status}")
        if str(status) not in self._answers[operation]:
            findings.fault("undocumented statuses", f"{operation}: {status}")
        if status >= 400:
            if not str(headers.get("content-type")).count("application/problem+json"):
                findings.fault("errors without a problem", f"{operation}: {status}")
            slug = re.search(r'"type":"urn:fedclust:problem:([a-z-]+)"', body)
            if slug and slug[1] not in self._types.get((operation, str(status)), {slug[1]}):
                findings.fault("undocumented statuses", f"{operation}: {status} {slug[1]}")
            shown = body + json.dumps({str(k): str(v) for k, v in headers.items()})
            for piece in (piece for text in said if (piece := self._echoed(text, shown))):
                findings.fault("echoes", f"{operation}: {status}: {piece[:80]!r} in {body[:400]}")
                break
        self._audited(operation, status, body)

    def _echoed(self, text: str, shown: str) -> str:
        """Return the part of a text that an answer repeats; empty: none."""
        for piece in {text, *text.split("/")}:
            if MARK in piece and MARK in shown:
                return piece
            # Shorter ones are everybody's, and so are the description's words and pointers to them:
            # schemathesis itself sends back what problems have named.
            known = all(part.lower() in self._known for part in piece.split("/"))
            long = _LONG.fullmatch(piece) and not known
            if long and (piece in shown or json.dumps(piece)[1:-1] in shown):
                return piece
        return ""

    def _audited(self, operation: str, status: int, body: str) -> None:
        rows, state = self._look()
        written, changed = rows - self._before[0], state != self._before[1]
        self._before = rows, state
        must = status == 201 or (status == 200 and operation == "get_result")
        # Told to nobody before it is known that this site is asked for this round.
        refused = operation == "put_submission" and (
            status == 422 or (status == 409 and "task-mismatch" in body)
        )
        if (must or refused or changed) and written < 1:
            tell = "changed" if changed else "not audited"
            self.findings.fault("rows outside the audit", f"{operation}: {status} {tell}")

    def _look(self) -> tuple[int, tuple[Any, ...]]:
        """Return how many audit entries there are, and what they have to account for."""
        with self._engine.connect() as connection:
            tables = self._tables.tables
            audited = connection.scalar(select(func.count()).select_from(tables["audit"]))
            counts = tuple(
                connection.scalar(select(func.count()).select_from(tables[name]))
                for name in _COUNTED
            )
            watched = []
            for name in _WATCHED:
                columns = [c for c in tables[name].columns if c.name not in _QUIET]
                keys = [*tables[name].primary_key.columns]
                found = connection.execute(select(*columns).order_by(*keys)).all()
                watched.append(hash(repr(found)))
        return int(audited or 0), (counts, *watched)


# --- bodies ---------------------------------------------------------------------------------------

_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**63,
    10**40,
    1e308,
    MARK,
    f"{MARK}\u0000",
    f"{MARK}\n{MARK}",
    f"\u202e{MARK}\U0001f600",
    f"'; DROP TABLE sessions; -- {MARK}",
    f"../../{MARK}",
    MARK * 2_000,
    [],
    {},
    [MARK],
    {MARK: MARK},
    [[[[[[MARK]]]]]],
)
_SPELLINGS = (b"NaN", b"Infinity", b"1e999", b"-0", b"0x10", b"01", b"\xff", b'"\\ud800"', b"//")


def hostile_bodies(api: ApiCaller, session: str, n: int, seed: int) -> Iterator[Sent]:
    """Yield ``n`` bodies made from good ones: of every operation that takes one, in turn."""
    rng = random.Random(seed)
    targets = _targets(api, session)
    for number in range(n):
        operation, method, path, token, good, binary = targets[number % len(targets)]
        content, headers = _spoiled(good, rng, binary)
        yield Sent(operation, method, path, token, content, headers)


_OTHERS = {"sites": "other", "analysts": "other-analyst", "operators": "other-operator"}


def _targets(api: ApiCaller, session: str) -> list[tuple[str, str, str, str, Any, bool]]:
    document = api.ok("GET", "/openapi.json", api.operator)
    site = next(name for name in api.tokens if name not in {"operator", "bob"})
    found = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            name = operation["operationId"]
            good = recorded().get(name, {}).get("request")
            if good is None:
                continue
            # Nobody whose token the rest depends on is changed.
            who = _OTHERS[path.split("/")[2]] if "{name}" in path else ""
            filled = path.format(session=session, number=1, name=who, site=site)
            caller = site if name in _SITE else "bob" if name in _ANALYST else "operator"
            if name == "put_submission":
                good = json.loads(api.answer(site, session))
            binary = BINARY in operation["requestBody"]["content"]
            found.append((name, method.upper(), filled, caller, good, binary))
    return found


def _spoiled(good: Any, rng: random.Random, binary: bool) -> tuple[bytes, dict[str, str]]:
    """Return a body that somebody hostile made of a good one, and its headers."""
    headers = {"Content-Type": JSON}
    tree = json.loads(json.dumps(good))
    for _ in range(rng.randint(1, 3)):
        tree = _changed(tree, rng)
    way = rng.randrange(16)
    if way == 0:
        text = json.dumps(_changed(good, rng, "HERE")).encode()
        return text.replace(b'"HERE"', rng.choice(_SPELLINGS)), headers
    if way == 1:
        return json.dumps(tree).encode("utf-16"), headers
    if way == 2:
        return json.dumps(tree)[: rng.randrange(1, 60)].encode(), headers
    if way == 3:
        return _flipped(json.dumps(tree).encode(), rng), headers
    if way == 4:
        depth = rng.choice((40, 2_000, 60_000))
        return b'{"%s":' % MARK.encode() * depth + b"1" + b"}" * depth, headers
    if way == 5:
        return json.dumps(tree).encode(), {"Content-Type": rng.choice((MARK, "text/plain", ""))}
    if way == 6:
        return json.dumps(tree).encode(), {**headers, "Content-Encoding": MARK}
    if way in {7, 8} and (binary or way == 7):
        packed = msgpack.packb(tree if way == 7 else good, default=str)
        return _flipped(packed, rng), {"Content-Type": BINARY}
    if way == 9:
        twice = json.dumps(tree).rstrip("}]") + f', "{MARK}": 1, "{MARK}": 2}}'
        return twice.encode(), headers
    return json.dumps(tree, ensure_ascii=bool(way % 2)).encode("utf-8", "replace"), headers


def _changed(tree: Any, rng: random.Random, value: Any = ...) -> Any:
    """Return a tree with one thing in it replaced, left out or added."""
    chosen = rng.choice(_VALUES) if value is ... else value
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        key = rng.choice(sorted(tree))
        if value is ... and (way := rng.random()) < 0.15:
            return {name: item for name, item in tree.items() if name != key}
        if value is ... and way < 0.3:
            return {**tree, MARK: chosen}
        return {**tree, key: _changed(tree[key], rng, value)}
    if isinstance(tree, list) and tree and rng.random() < 0.8:
        index = rng.randrange(len(tree))
        return [*tree[:index], _changed(tree[index], rng, value), *tree[index + 1 :]]
    return 2**60 if isinstance(chosen, int) and chosen > 2**63 and rng.random() < 0.5 else chosen


def _flipped(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _texts(content: bytes) -> list[str]:
    """Return the texts that a body says, keys among them."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return [MARK]
    found, waiting = [MARK], [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str):
            found.append(item)
        elif isinstance(item, int) and not isinstance(item, bool) and abs(item) > 10**7:
            found.append(str(item))
    return found


# --- schemathesis ---------------------------------------------------------------------------------

_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def fuzz(api: ApiCaller, watch: Watch, n: int, seed: int) -> None:
    """Send ``n`` requests that schemathesis makes, following the description's links.

    In turns of all operations, and of those of sessions alone, which are harder to get at. Six in
    ten are sent on with the name of a session that is there, and most with a token of the role that
    the operation is for: without, they would end at 404 and 401.
    """
    schema = schemathesis.openapi.from_dict(watch.document)
    schema = schema.exclude(operation_id=_streams(watch.document))
    send = _Sender(api, watch, _Aims(api, random.Random(seed)), watch.findings.requests + n)
    machines = [
        _machine(schema, send),
        _machine(schema.include(path_regex="^/v1/sessions/"), send),
    ]
    turn = 0
    while watch.findings.requests < send.limit:
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


@dataclass
class _Sender:
    """Sends what a machine made, and has the answers judged, until it was enough."""

    api: ApiCaller
    watch: Watch
    aims: _Aims
    limit: int

    def call(self, case: Any, keywords: dict[str, Any]) -> Any:
        if self.watch.findings.requests >= self.limit:
            raise _Enough
        self.aims.aim(case)
        return case.call(**keywords)

    def judge(self, case: Any, response: Any, keywords: dict[str, Any]) -> None:
        operation = case.operation.definition.raw["operationId"]
        said = [*_said(case.path_parameters), *_said(case.query), *_said(case.body)]
        headers = {name: ", ".join(value) for name, value in response.headers.items()}
        self.watch.judge(operation, response.status_code, response.text, headers, said)
        try:
            case.validate_response(response, checks=_CHECKS, transport_kwargs=keywords)
        except FailureGroup as group:
            for failure in group.exceptions:
                text = f"{operation}: {failure}"
                self.watch.findings.fault("breaches of the description", text)


def _machine(schema: Any, send: _Sender) -> Any:
    """Return a schema's state machine, which records what is wrong and goes on."""

    class Machine(schema.as_state_machine()):  # type: ignore[misc]  # a class made at run time
        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"base_url": send.api.base_url, "timeout": TIMEOUT_S}

        def call(self, case: Any, **keywords: Any) -> Any:
            return send.call(case, keywords)

        def validate_response(self, response: Any, case: Any, *_: Any, **keywords: Any) -> None:
            send.judge(case, response, keywords)

    return Machine


def _streams(document: dict[str, Any]) -> list[str]:
    """Return the operations that answer with a stream: it ends with its session."""
    return [
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
        if any(_STREAM in answer.get("content", {}) for answer in operation["responses"].values())
    ]


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
        caller = own if operation in _SITE else "bob" if operation in _ANALYST else "operator"
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
        self.api.define("bob", name, sites, policy={"max_rounds": 3})
        for site in sites:
            self.api.join(site, name)
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
        return _texts(json.dumps(value).encode())[1:]
    except (TypeError, ValueError):
        return []


def populate(api: ApiCaller, session: str) -> None:
    """Register the people that hostile requests go through, with a session in its first round."""
    api.tokens["operator"] = api.operator
    api.register("sites", "lima", "oslo", "rome")
    api.register("analysts", "bob")
    for kind, name in _OTHERS.items():
        api.ok("POST", f"/v1/{kind}", "operator", json={"name": name})
    sites = ["lima", "oslo", "rome"]
    api.define("bob", session, sites)
    for site in sites:
        api.join(site, session)
