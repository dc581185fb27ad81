"""Bad submissions over real HTTP: refused by name of field and rule; nothing stored or echoed."""

import json
import math
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest

from fedclust.wire import codec
from fedclust.wire.errors import Problem
from fedclust.wire.submissions import BINARY, JSON

from .conftest import Running
from .problems import MARK, problem
from .test_connections import connect

LIMIT = 32 * 2**20
Body = dict[str, Any]


@pytest.fixture(scope="module")
def honest(running: Running) -> Body:
    """Return the honest answer of ``north`` to round 1 (moments of two features)."""
    return dict(json.loads(running.api.answer("north", "heart")))


def refused(running: Running, response: httpx.Response, *slugs: str) -> Problem:
    """Assert a short problem, and that nothing was stored."""
    assert 400 <= response.status_code < 500, response.text
    assert len(response.content) < 8_000
    assert running.stored() == 0
    return problem(response, *slugs)


def changed(honest: Body, **payload: Any) -> dict[str, Any]:
    return {**honest, "payload": {**honest["payload"], **payload}}


# --- contents, in JSON ----------------------------------------------------------------------------

#: name -> (what is changed in the honest payload, pointer that must be named, rule or None)
CONTENTS: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "wrong shape": ({"mean": [1.0]}, "/payload/mean", None),
    "ragged": ({"mean": [[1.0], [1.0, 2.0]]}, "/payload/mean", None),
    "a rank too many": ({"mean": [[1.0, 2.0]]}, "/payload/mean", None),
    "text for numbers": ({"mean": [MARK, 2.0]}, "/payload/mean", "float_type"),
    "numbers as text": ({"mean": ["1.0", "2.0"]}, "/payload/mean", "float_type"),
    "float for a count": ({"n": 60.5}, "/payload/n", None),
    "false as a count": ({"n": False}, "/payload/n", "int_type"),
    "false in counts": ({"observed": [False, 60]}, "/payload/observed", "int_type"),
    "true in numbers": ({"mean": [True, 2.0]}, "/payload/mean", "float_type"),
    "null for a vector": ({"mean": None}, "/payload/mean", None),
    "count below p": ({"n": 4, "observed": [4, 4]}, "/payload", None),
    "observed below p": ({"observed": [4, 60]}, "/payload/observed", None),
    "complement below p": ({"observed": [57, 60]}, "/payload/observed", None),
    "negative count": ({"n": -60}, "/payload/n", None),
    "count beyond int64": ({"observed": [2**63, 60]}, "/payload/observed", None),
    "more observed than rows": ({"observed": [61, 60]}, "/payload/observed", None),
    "outside the declared bounds": ({"mean": [500.0, 200.0]}, "/payload/mean", None),
    "negative squares": ({"m2": [-1.0, 1.0]}, "/payload/m2", None),
    "a count that no site has": ({"n": 10**30}, "/payload/n", "count-range"),
    "counts that no site has": ({"observed": [60, 2**62]}, "/payload/observed", "count-range"),
    "outside the size band": ({"n": 5_000, "observed": [5_000, 5_000]}, "/payload/n", None),
    "a field of the sender's": ({MARK: 1}, "/payload", "extra_forbidden"),
    "a list for the payload": ({}, "/payload", None),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_contents_are_refused_by_field_and_rule(running: Running, honest: Body, name: str) -> None:
    change, pointer, rule = CONTENTS[name]
    body = changed(honest, **change)
    if name == "a list for the payload":
        body["payload"] = [1, 2]
    response = running.api.put("north", "heart", 1, json.dumps(body).encode())
    said = refused(running, response, "invalid", "disclosure-refused")
    assert any(error.pointer.startswith(pointer) for error in said.errors), response.text
    assert all(error.rule and error.message for error in said.errors)
    if rule is not None:
        assert rule in {error.rule for error in said.errors}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(
    running: Running, honest: Body, number: float
) -> None:
    bodies = {
        json.dumps(changed(honest, mean=[number, 2.0])).encode(): JSON,
        json.dumps(changed(honest, mean=["HERE", 2.0])).replace('"HERE"', "-1e999").encode(): JSON,
    }
    for dtype in ("float64", "float32"):
        raw = np.array([number, 2.0], dtype=dtype).tobytes()
        bodies[binary(honest, mean=array(raw, [2], dtype))] = BINARY
    for body, media in bodies.items():
        said = refused(running, running.api.put("north", "heart", 1, body, media), "invalid")
        pointer, rule = said.errors[0].pointer, said.errors[0].rule
        assert pointer.startswith("/payload/mean") or (media == JSON and "json" in rule)


@pytest.mark.parametrize("n", [10**30, 2**64, 2**63 - 1])
def test_a_count_without_end(running: Running, n: int) -> None:
    """In a band without an upper end."""
    api = running.api
    name = f"endless-{n % 97}"
    api.define("ada", name, ["north", "south", "west"])
    for site in ("north", "south", "west"):
        body = {**api.participation(site, name), "size_band": ">=100000"}
        api.ok("PUT", f"/v1/sessions/{name}/participation", site, json=body)
    answer = json.loads(api.answer("north", name))
    answer["payload"]["n"] = n
    said = refused(running, api.put("north", name, 1, json.dumps(answer).encode()), "invalid")
    assert [(e.pointer, e.rule) for e in said.errors] == [("/payload/n", "count-range")]


# --- contents, in binary --------------------------------------------------------------------------


def array(data: bytes, shape: Any, dtype: Any = "float64") -> dict[str, Any]:
    return {"data": data, "dtype": dtype, "shape": shape}


def binary(honest: Body, **payload: Any) -> bytes:
    """Return the honest answer in binary, fields of the payload replaced by raw msgpack."""
    moments = honest["payload"]
    fields = {
        "n": moments["n"],
        "observed": array(np.array(moments["observed"], "<i8").tobytes(), [2], "int64"),
        "mean": array(np.array(moments["mean"], "<f8").tobytes(), [2]),
        "m2": array(np.array(moments["m2"], "<f8").tobytes(), [2]),
        **payload,
    }
    return bytes(msgpack.packb({**honest, "payload": fields}))


EIGHT = b"\0" * 8
BINARY_CONTENTS: dict[str, dict[str, Any]] = {
    "integers for floats": {"mean": array(EIGHT * 2, [2], "int64")},
    "floats for counts": {"observed": array(EIGHT * 2, [2], "float64")},
    "a dtype that is not used": {"mean": array(b"\0" * 4, [2], "float16")},
    "an object dtype": {"mean": array(EIGHT * 2, [2], "object")},
    "a dtype that is no text": {"mean": array(EIGHT * 2, [2], 7)},
    "wrong rank": {"mean": array(EIGHT * 2, [1, 2])},
    "wrong length": {"mean": array(EIGHT * 3, [3])},
    "a shape that lies": {"mean": array(EIGHT * 2, [10**12])},
    "a shape that overflows": {"mean": array(EIGHT * 2, [2**63, 2**63, 2**63, 2**63])},
    "nothing of everything": {"mean": array(b"", [0, 2**62])},
    "nothing of more than everything": {"mean": array(b"", [2**63, 0])},
    "a negative shape": {"mean": array(EIGHT * 2, [-1, -2])},
    "a shape of booleans": {"mean": array(EIGHT, [True])},
    "too many axes": {"mean": array(EIGHT, [1] * 64)},
    "data that is text": {"mean": {"data": "ab", "dtype": "float64", "shape": [2]}},
    "nested lists in place of an array": {"mean": [1.0, 2.0]},
    "false as a count": {"n": False},
    "a float as a count": {"n": 60.0},
    "a timestamp": {"n": msgpack.Timestamp(1, 0)},
    "an extension type": {"n": msgpack.ExtType(42, b"x")},
    "a field of the sender's": {MARK: 1},
    "a map with numbers as keys": {"mean": {1: 2}},
}


@pytest.mark.parametrize("name", BINARY_CONTENTS)
def test_binary_contents_are_refused(running: Running, honest: Body, name: str) -> None:
    body = binary(honest, **BINARY_CONTENTS[name])
    response = running.api.put("north", "heart", 1, body, BINARY)
    said = refused(running, response, "invalid", "disclosure-refused")
    assert said.errors


def test_the_honest_answer_in_binary_is_what_these_tests_change(
    running: Running, honest: Body
) -> None:
    assert codec.decode(binary(honest))["payload"]["n"] == honest["payload"]["n"]


# --- form -----------------------------------------------------------------------------------------


def test_truncated_msgpack_is_refused_wherever_it_is_cut(running: Running, honest: Body) -> None:
    whole = binary(honest)
    for length in (*range(0, len(whole), 17), len(whole) - 1):
        response = running.api.put("north", "heart", 1, whole[:length], BINARY)
        refused(running, response, "invalid", "malformed-request")


def test_trailing_bytes_are_refused(running: Running, honest: Body) -> None:
    for media, body in ((BINARY, binary(honest)), (JSON, json.dumps(honest).encode())):
        response = running.api.put("north", "heart", 1, body + b"\0", media)
        refused(running, response, "invalid", "malformed-request")


LISTS = b"[" * 100_000 + b"]" * 100_000
DEEP: dict[str, tuple[bytes, str]] = {
    "lists in JSON": (b"[" * 100_000, JSON),
    "lists in JSON, closed": (LISTS, JSON),
    "maps in JSON": (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, JSON),
    "a deep payload in JSON": (
        b'{"phase":"prepare","task_digest":"%s","payload":%s}' % (b"0" * 64, LISTS),
        JSON,
    ),
    "lists in msgpack": (b"\x91" * 100_000 + b"\x01", BINARY),
    "lists in msgpack, some": (b"\x91" * 400 + b"\x01", BINARY),
    "maps in msgpack": (b"\x81\xa1a" * 50_000 + b"\x01", BINARY),
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_nesting_is_refused(running: Running, name: str) -> None:
    response = running.api.put("north", "heart", 1, *DEEP[name])
    refused(running, response, "invalid", "malformed-request", "task-mismatch")


def test_huge_claims_in_msgpack_are_refused_without_allocating(running: Running) -> None:
    for head in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"):
        response = running.api.put("north", "heart", 1, head, BINARY)
        refused(running, response, "invalid", "malformed-request", "body-too-large")


#: name -> (head, one of very many values, tail, media type); each is some 4 MB of them.
MANY: dict[str, tuple[bytes, bytes, bytes, str]] = {
    "numbers": (b'{"payload":{"observed":[', b"1,", b"1]}}", JSON),
    "objects": (b'{"payload":{"observed":[', b"{},", b"{}]}}", JSON),
    "lists": (b'{"payload":{"mean":[', b"[],", b"[]]}}", JSON),
    "fields": (b'{"payload":{', b'"x":1,', b'"x":1}}', JSON),
    "numbers in msgpack": (b"\x81\xa7payload\xdd\x00\x3f\xff\xff", b"\x01", b"", BINARY),
    "maps in msgpack": (b"\x81\xa7payload\xdd\x00\x3f\xff\xff", b"\x80", b"", BINARY),
    "lists of one in msgpack": (b"\x81\xa7payload", b"\x91" * 3, b"\x01", BINARY),
}


@pytest.mark.parametrize("name", MANY)
def test_more_values_than_anybody_needs_are_refused_unread(running: Running, name: str) -> None:
    head, value, tail, media = MANY[name]
    body = head + value * (2**22 // len(value)) * (2 if name == "numbers" else 1) + tail
    refused(running, running.api.put("north", "heart", 1, body, media), "body-too-large")


@pytest.mark.parametrize("field", ["observed", "mean"])
def test_of_very_many_wrong_numbers_the_first_is_named(
    running: Running, honest: Body, field: str
) -> None:
    body = json.dumps(changed(honest, **{field: "HERE"})).encode()
    body = body.replace(b'"HERE"', b"[" + b"null," * 10**5 + b"1]")
    said = refused(running, running.api.put("north", "heart", 1, body), "invalid")
    assert [error.pointer for error in said.errors] == [f"/payload/{field}/0"]


def test_of_many_wrong_fields_none_is_named(running: Running, honest: Body) -> None:
    body = json.dumps(changed(honest, **{f"{MARK}{i}": i for i in range(20_000)})).encode()
    said = refused(running, running.api.put("north", "heart", 1, body), "invalid")
    assert [(error.pointer, error.rule) for error in said.errors] == [("", "too-many-errors")]


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"1", b'"x"', b"{}", b"\xff\xfe", b"{"])
@pytest.mark.parametrize("media", [JSON, BINARY])
def test_what_is_no_submission_is_refused(running: Running, body: bytes, media: str) -> None:
    response = running.api.put("north", "heart", 1, body, media)
    refused(running, response, "invalid", "malformed-request")


def test_unknown_phase_and_extra_fields_are_refused(running: Running, honest: Body) -> None:
    for change in ({"phase": "nothing"}, {"phase": "lloyd"}, {"phase": MARK}, {"phase": 7}):
        body = json.dumps({**honest, **change}).encode()
        response = running.api.put("north", "heart", 1, body)
        refused(running, response, "invalid", "task-mismatch")
    body = json.dumps({**honest, MARK: 1}).encode()
    refused(running, running.api.put("north", "heart", 1, body), "invalid")
    body = json.dumps({name: value for name, value in honest.items() if name != "payload"})
    refused(running, running.api.put("north", "heart", 1, body.encode()), "invalid")


def test_another_tasks_digest_is_refused(running: Running, honest: Body) -> None:
    body = json.dumps({**honest, "task_digest": "0" * 64}).encode()
    refused(running, running.api.put("north", "heart", 1, body), "task-mismatch")
    for digest in ("0" * 63, MARK, 7, None):
        body = json.dumps({**honest, "task_digest": digest}).encode()
        said = refused(running, running.api.put("north", "heart", 1, body), "invalid")
        assert said.errors[0].pointer == "/task_digest"


# --- before parsing -------------------------------------------------------------------------------


def test_a_body_of_the_limit_is_read_and_one_byte_more_is_not(running: Running) -> None:
    exact = running.api.put("north", "heart", 1, b" " * LIMIT)
    refused(running, exact, "invalid", "malformed-request")
    chunks: Any = iter([b" " * LIMIT, b" "])
    for longer in (b" " * (LIMIT + 1), chunks):
        refused(running, running.api.put("north", "heart", 1, longer), "body-too-large")


def test_a_declared_length_is_refused_before_it_is_sent(running: Running) -> None:
    """With ``Expect: 100-continue`` the answer comes before a byte of the body."""
    with connect(running) as connection:
        connection.sendall(
            b"PUT /v1/sessions/heart/rounds/1/submission HTTP/1.1\r\nHost: x\r\n"
            b"Authorization: Bearer " + running.api.tokens["north"].encode() + b"\r\n"
            b"Content-Type: application/json\r\nContent-Length: 99999999999\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert connection.recv(65_536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity", "zstd"])
def test_content_encodings_are_refused(running: Running, honest: Body, encoding: str) -> None:
    body = json.dumps(honest).encode()
    headers = {"Content-Encoding": encoding}
    response = running.api.put("north", "heart", 1, body, JSON, **headers)
    refused(running, response, "unsupported-media-type")


@pytest.mark.parametrize(
    "media", ["", "text/plain", "application/x-msgpack", "multipart/form-data", MARK]
)
def test_other_media_types_are_refused(running: Running, honest: Body, media: str) -> None:
    body = json.dumps(honest).encode()
    refused(running, running.api.put("north", "heart", 1, body, media), "unsupported-media-type")


def test_a_charset_beside_the_media_type_does_no_harm(live: Running) -> None:
    body = live.api.answer("north", "heart")
    response = live.api.put("north", "heart", 1, body, "Application/JSON; charset=utf-8")
    assert response.status_code == 201


# --- where ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", ["0", "-1", "2", "999999999", "2147483648", "9" * 40, "1.5", "one", "1%00", "%F0%9F"]
)
def test_rounds_that_are_not_there(running: Running, honest: Body, number: str) -> None:
    path = f"/v1/sessions/heart/rounds/{number}/submission"
    response = running.api.request("PUT", path, "north", json=honest)
    refused(running, response, "not-found", "round-closed")


@pytest.mark.parametrize(
    "name",
    ["nothing", "HEART", "h%00eart", "-", "..", "%2e%2e", "a" * 64, "%F0%9F", "he art", "'--"],
)
def test_sessions_that_cannot_be_are_simply_not_there(
    running: Running, honest: Body, name: str
) -> None:
    path = f"/v1/sessions/{name}"
    for response in (
        running.api.request("PUT", f"{path}/rounds/1/submission", "north", json=honest),
        running.api.request("GET", f"{path}/task", "north"),
    ):
        refused(running, response, "not-found")
        assert name not in response.text or name in {"-", "..", "nothing"}
