"""Bodies that somebody hostile makes of good ones are refused as the description says."""

import json
import random
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from sqlalchemy import text

from fedclust.wire.submissions import BINARY, JSON
from recorded import recorded_bodies
from support.api_caller import ApiCaller
from support.contract_watch import MARK, OTHERS, Sent, Watch, caller_of

BODIES = 160


@pytest.mark.parametrize(
    "watch", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)], indirect=True
)
def test_hostile_bodies_are_refused_as_the_contract_says(watch: Watch) -> None:
    for sent in hostile_bodies(watch.api, "target", BODIES, seed=3):
        watch.send(sent)
    assert watch.findings.faults == {}
    refused = sum(n for status, n in watch.findings.statuses.items() if status >= 400)
    assert refused > 0.9 * BODIES, watch.findings.statuses
    assert {400, 415, 422} <= watch.findings.statuses.keys()
    assert len(watch.findings.operations) >= 10


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
        connection.execute(text("UPDATE principals SET title = 'x' WHERE name = 'other'"))
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


def _targets(api: ApiCaller, session: str) -> list[tuple[str, str, str, str, Any, bool]]:
    document = api.ok("GET", "/openapi.json", api.operator)
    site = next(name for name in api.tokens if name not in {"operator", "bob"})
    found = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            name = operation["operationId"]
            good = recorded_bodies().get(name, {}).get("request")
            if good is None:
                continue
            # Nobody whose token the rest depends on is changed.
            who = OTHERS[path.split("/")[2]] if "{name}" in path else ""
            names = {"session": session, "study": "none", "name": who, "site": site}
            filled = path.format(**names, number=1, table_id="0" * 32)
            if name == "put_submission":
                good = json.loads(api.answer(site, session))
            binary = BINARY in operation["requestBody"]["content"]
            caller = caller_of(name, site)
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
