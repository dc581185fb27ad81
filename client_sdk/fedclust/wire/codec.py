"""The binary form: msgpack with arrays as ``{dtype, shape, data}``, and its canonical bytes.

A *tree* is None, bool, int, float, str, array, or a tuple or str-keyed dict of trees. Arrays are
raw little-endian bytes in C order. Canonical bytes (sorted keys, float64 scalars, shortest
integers) are what digests are taken over and what the coordinator stores.
"""

import hashlib
import json
import math
from typing import Any, TypeVar

import msgpack
import numpy as np
from pydantic import BaseModel

from fedclust.schema.model import Tree

CONTENT_TYPE = "application/vnd.fedclust.v1+msgpack"
_DTYPES = {"float64": "<f8", "float32": "<f4", "int64": "<i8", "bool": "|b1"}
_ARRAY_KEYS = {"dtype", "shape", "data"}
_MAX_DEPTH = 32
M = TypeVar("M", bound=BaseModel)


class CodecError(ValueError):
    """The bytes are not the binary form, or a value cannot be encoded."""


def encode(tree: Tree) -> bytes:
    """Return the canonical bytes of a tree; CodecError for NaN, infinity or a foreign type."""
    return bytes(msgpack.packb(_msgpack_value(tree), use_bin_type=True))


def _msgpack_value(tree: Tree) -> Any:
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise CodecError("map keys must be text")
        return {key: _msgpack_value(tree[key]) for key in sorted(tree)}
    if isinstance(tree, (tuple, list)):
        return [_msgpack_value(item) for item in tree]
    if isinstance(tree, np.ndarray):
        name = tree.dtype.name
        if name not in _DTYPES:
            raise CodecError(f"arrays of {name} have no binary form")
        if tree.dtype.kind == "f" and not np.isfinite(tree).all():
            raise CodecError("every number must be finite")
        data = np.ascontiguousarray(tree, dtype=_DTYPES[name]).tobytes()
        return {"data": data, "dtype": name, "shape": list(tree.shape)}
    if isinstance(tree, bool) or tree is None or isinstance(tree, (str, int, bytes)):
        return tree
    if isinstance(tree, float):
        if not math.isfinite(tree):
            raise CodecError("every number must be finite")
        return tree
    raise CodecError(f"values of type {type(tree).__name__} have no binary form")


def decode(data: bytes) -> Tree:
    """Decode the binary form; CodecError for truncated, too deep or inconsistent data."""
    try:
        raw = msgpack.unpackb(data, use_list=False, raw=False, object_pairs_hook=_distinct)
    except CodecError:
        raise
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise CodecError("the body is not valid msgpack") from error
    return _revive(raw, 0)


def _distinct(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise CodecError("a map has the same key twice")
    return found


def _revive(raw: Any, depth: int) -> Tree:
    if depth > _MAX_DEPTH:
        raise CodecError(f"values are nested more than {_MAX_DEPTH} deep")
    if isinstance(raw, (msgpack.ExtType, msgpack.Timestamp)):
        raise CodecError("msgpack extension types are not used")
    if isinstance(raw, dict):
        if raw.keys() == _ARRAY_KEYS:
            return _array(raw)
        if not all(isinstance(key, str) for key in raw):
            raise CodecError("map keys must be text")
        return {key: _revive(value, depth + 1) for key, value in raw.items()}
    if isinstance(raw, tuple):
        return tuple(_revive(value, depth + 1) for value in raw)
    return raw


def _array(raw: dict[str, Any]) -> np.ndarray[Any, Any]:
    name, shape, data = raw["dtype"], raw["shape"], raw["data"]
    if not isinstance(name, str) or name not in _DTYPES:
        raise CodecError(f"an array's dtype must be one of {', '.join(_DTYPES)}")
    whole = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
    if not whole or len(shape) > 4 or not isinstance(data, bytes):
        raise CodecError("an array needs a shape of at most 4 whole numbers and its raw bytes")
    dtype = np.dtype(_DTYPES[name])
    # Compared before anything is allocated, since a sender can claim any shape.
    if math.prod(shape) * dtype.itemsize != len(data):
        raise CodecError("an array's bytes do not fill its shape")
    if dtype.kind == "b" and data.strip(b"\0\1"):
        raise CodecError("a boolean is one byte, 0 or 1")
    try:
        return np.frombuffer(data, dtype=dtype).reshape(shape)
    except (ValueError, OverflowError):  # such as [0, 2**62]
        raise CodecError("an array's shape is too large") from None


def to_tree(model: BaseModel) -> Tree:
    """Return a model's tree, arrays kept as arrays."""
    return model.model_dump(mode="python")


def encode_model(model: BaseModel) -> bytes:
    """Return the canonical bytes of a model."""
    return encode(to_tree(model))


def decode_model(model: type[M], data: bytes) -> M:
    """Read a model from its binary form; CodecError or pydantic's ValidationError."""
    return model.model_validate(decode(data))


def to_json(tree: Tree) -> bytes:
    """Return a tree as JSON, arrays as nested lists."""
    return json.dumps(tree, default=_json_default, allow_nan=False, separators=(",", ":")).encode()


def _json_default(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise CodecError(f"values of type {type(value).__name__} have no JSON form")


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and no spaces: the form that definitions are frozen in."""
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    ).encode()


def sha256(data: bytes) -> str:
    """Return the SHA-256 of bytes as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def task_digest(common: Tree, site: Tree) -> str:
    """Return the digest of a task, which a submission names."""
    return sha256(encode({"common": common, "site": site}))
