"""How many values a body may hold, looked at before any of them is made.

A byte is enough for a value that takes a hundred in memory, and for an error that takes a thousand:
without this, the 32 MiB of a body became 8 GB and minutes in which nobody else was answered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import jiter

from fedclust.wire.problems import FieldError
from fedclust.wire.submissions import pointer
from fedclust_service.domain.refusal import Refusal

#: In JSON: values that follow another, where arrays are expected and elsewhere; texts, lists and
#: objects together. As many numbers of 17 digits as fit into 32 MiB are let through; more zeros
#: than that have to come in the binary form.
MAX_JSON_NUMBERS: Final = 1 << 21
MAX_JSON_VALUES: Final = 1 << 19
MAX_JSON_CONTAINERS: Final = 1 << 19
#: In the binary form, where an array with all that is in it takes eleven at most.
MAX_MSGPACK_VALUES: Final = 1 << 17
_SMALL: Final = 1 << 16

#: msgpack's first bytes: how many bytes of length follow, and what is counted in it. Of the others
#: `_FIXED` says how many bytes follow them.
_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSIONS: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_CONTAINERS: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
_FIXED: Final = dict(enumerate((4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17), start=0xCA))


def check_json_size(body: bytes, most: int = MAX_JSON_VALUES) -> None:
    """Raise Refusal (413) for JSON of too many values.

    Commas within texts count as well.
    """
    if len(body) > _SMALL:
        parts = body.count(b'"') // 2 + body.count(b"[") + body.count(b"{")
        if parts > MAX_JSON_CONTAINERS or body.count(b",") >= most:
            raise Refusal(
                "body-too-large",
                f"Send at most {most} values, and at most {MAX_JSON_CONTAINERS} texts, lists and "
                "objects.",
            )


def check_repeated_keys(body: bytes) -> None:
    """Raise Refusal (422) for JSON with a key twice in an object.

    The parser behind the models keeps the last; JSON that is not valid is left to it. All of the
    body is parsed: call it where that parser runs, not on the event loop.
    """
    try:
        jiter.from_json(body, catch_duplicate_keys=True)
    except ValueError as error:
        said = str(error)
        if not said.startswith("Detected duplicate key"):
            return
        # The key itself is the sender's; line and column follow it.
        place = " ".join(said.rsplit(" ", 4)[1:])
        fault = FieldError(
            # To find it takes another parse, too slow for a large body.
            pointer=pointer(_first_repeated(body)) if len(body) <= _SMALL else "",
            rule="repeated-key",
            message=f"one object has this key twice ({place}): keep one of them",
        )
        detail = "Send each key of an object once."
        raise Refusal("invalid", detail, [fault]) from None


@dataclass(frozen=True)
class _Repeated:
    key: str


def _first_repeated(body: bytes) -> tuple[str | int, ...]:
    """Return the path to a key that its object has twice; empty where the rest is not valid."""

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Repeated:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                return _Repeated(key)
            seen[key] = value
        return seen

    def paths(tree: Any, at: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
        if isinstance(tree, _Repeated):
            yield (*at, tree.key)
        elif isinstance(tree, dict | list):
            for place, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
                if isinstance(value, _Repeated | dict | list):
                    yield from paths(value, (*at, place))

    try:
        return next(paths(json.loads(body, object_pairs_hook=keep), ()), ())
    except (ValueError, RecursionError):
        return ()


def check_msgpack_size(body: bytes) -> None:
    """Raise Refusal (413) for msgpack of too many values; also where so many are only claimed."""
    at, end, wanted, seen = 0, len(body), 1, 0
    while wanted and at < end:
        first = body[at]
        at, wanted, seen = at + 1, wanted - 1, seen + 1
        if 0x80 <= first <= 0x9F:
            wanted += (first & 15) * (2 if first < 0x90 else 1)
        elif 0xA0 <= first <= 0xBF:
            at += first & 31
        elif first in _BYTES or first in _EXTENSIONS:
            size = _BYTES.get(first) or _EXTENSIONS[first]
            at += size + (first in _EXTENSIONS) + int.from_bytes(body[at : at + size], "big")
        elif first in _CONTAINERS:
            size, each = _CONTAINERS[first]
            wanted += each * int.from_bytes(body[at : at + size], "big")
            at += size
        else:
            at += _FIXED.get(first, 0)
        if seen + wanted > MAX_MSGPACK_VALUES:
            raise Refusal(
                "body-too-large",
                f"Send at most {MAX_MSGPACK_VALUES} values; whole arrays as dtype, shape and data.",
            )
