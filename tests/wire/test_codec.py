"""The binary form: what it carries, what it refuses, and that its bytes are canonical."""

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedclust.wire import codec

finite = st.floats(allow_nan=False, allow_infinity=False)
arrays = npst.arrays(
    st.sampled_from([np.dtype("float64"), np.dtype("int64"), np.dtype("float32")]),
    npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    elements={"allow_nan": False, "allow_infinity": False},
)
leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | finite | st.text() | arrays
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3).filter(
            lambda tree: set(tree) != {"dtype", "shape", "data"}
        )
    ),
    max_leaves=8,
)


def same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@given(trees)
def test_a_tree_comes_back_as_it_was(tree: object) -> None:
    assert same(codec.decode(codec.encode(tree)), tree)


@given(st.dictionaries(st.text(max_size=4), leaves, min_size=2, max_size=5))
def test_the_bytes_do_not_depend_on_the_order_of_keys(tree: dict[str, object]) -> None:
    backwards = dict(reversed(list(tree.items())))
    assert codec.encode(tree) == codec.encode(backwards)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), np.array([np.nan]), np.array(["a"]), object(), {1: 2}]
)
def test_what_has_no_binary_form_is_refused(value: object) -> None:
    with pytest.raises(codec.CodecError):
        codec.encode({"x": value} if not isinstance(value, dict) else value)


def test_an_array_has_at_most_four_axes() -> None:
    """What else a body may lie about: `http/test_bad_submissions.py`."""
    with pytest.raises(codec.CodecError, match="at most 4"):
        codec.decode(msgpack.packb({"dtype": "float64", "shape": [1] * 5, "data": b"\0" * 8}))


def test_deep_nesting_is_refused_before_it_is_walked() -> None:
    tree: object = 1
    for _ in range(100):
        tree = [tree]
    with pytest.raises(codec.CodecError, match="deep"):
        codec.decode(msgpack.packb(tree))


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\xa1a\x01\xa1a\x02",
        b"\x91\x82\xa1a\x01\xa1a\x01",
        # The same text with a longer head.
        b"\x82\xa1a\x01\xd9\x01a\x02",
        codec.encode({"a": np.zeros(1), "b": 1}).replace(b"\xa1b", b"\xa1a"),
    ],
    ids=["first level", "nested, the same value", "another head", "an array"],
)
def test_a_map_with_the_same_key_twice_is_refused(data: bytes) -> None:
    with pytest.raises(codec.CodecError, match="same key twice"):
        codec.decode(data)
