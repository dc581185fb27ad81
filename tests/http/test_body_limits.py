"""The look at how many values a body holds: right for whatever msgpack writes, and bounded."""

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclust_service.domain.access import Refusal
from fedclust_service.http import bodies

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=40),
    st.binary(max_size=40),
    st.sampled_from([b"x" * 300, b"x" * 70_000, "x" * 300, "x" * 70_000]),
    st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20)),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=20), st.dictionaries(st.text(max_size=5), inner, max_size=18)
    ),
    max_leaves=25,
)


def values(tree: Any) -> int:
    """Return how many values a tree has, itself and keys among them."""
    if isinstance(tree, dict):
        return 1 + len(tree) + sum(map(values, tree.values()))
    return 1 + sum(map(values, tree)) if isinstance(tree, list) else 1


def refuses(body: bytes, most: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(bodies, "MAX_MSGPACK_VALUES", most)
    try:
        bodies.check_msgpack_size(body)
    except Refusal:
        return True
    return False


@given(TREES)
def test_values_are_counted_as_msgpack_writes_them(tree: Any) -> None:
    body, n = msgpack.packb(tree), values(tree)
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert not refuses(body, n, monkeypatch)
        assert refuses(body, n - 1, monkeypatch)


@given(st.binary(max_size=200))
def test_any_bytes_are_looked_at_without_an_error(body: bytes) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        refuses(body, 100, monkeypatch)


def test_the_limits_are_those_of_the_bodies_that_are_due() -> None:
    # Ten thousand features and sites, each field written out; a matrix as large as 32 MiB hold.
    feature = {"name": "a" * 9, "unit": "mg", "lower": 0.0, "upper": 1.0, "kind": "numeric"}
    feature |= {"levels": None, "transform": "none", "weight": 1.0}
    session = {"features": [feature] * 10_000, "sites": ["site"] * 10_000, "config": {}}
    bodies.check_json_size(json.dumps(session).encode())
    body = b'{"payload":{"means":[' + b"[" + b"-1.2345678901234567," * 1_677_000 + b"1]]}}"
    assert 31 * 2**20 < len(body) <= 32 * 2**20
    bodies.check_json_size(body, bodies.MAX_JSON_NUMBERS)
    bodies.check_msgpack_size(msgpack.packb({"payload": {"means": body}}))


@given(TREES.map(lambda tree: json.dumps(tree, default=str)))
def test_json_of_distinct_keys_is_let_through(text: str) -> None:
    bodies.check_repeated_keys(text.encode())


@given(st.binary(max_size=200))
def test_bytes_that_are_no_json_are_left_to_the_parser(body: bytes) -> None:
    bodies.check_repeated_keys(body.replace(b":", b""))
