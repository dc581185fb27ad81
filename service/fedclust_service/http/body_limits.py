"""Limits on the number of values in a body, checked before it is parsed.

One byte of a body can become a value of a hundred bytes in memory, or an error of a thousand.
Without these limits, a body of 32 MiB took 8 GB and blocked all other requests for minutes.
"""

from typing import Final

import jiter

from fedclust_service.domain.refusal import Refusal, wrong_field

#: Limits for JSON: values where arrays are expected, values elsewhere, and texts, lists and objects
#: together. The first one admits as many numbers of 17 digits as fit into 32 MiB.
MAX_JSON_NUMBERS: Final = 1 << 21
MAX_JSON_VALUES: Final = 1 << 19
MAX_JSON_CONTAINERS: Final = 1 << 19
#: The limit for msgpack, where an array counts as eleven values at most.
MAX_MSGPACK_VALUES: Final = 1 << 17
_SMALL: Final = 1 << 16

#: First bytes of msgpack values: how many bytes of length follow, and how many values an item of a
#: container has. `_FIXED` holds how many bytes follow the other first bytes.
_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSIONS: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_CONTAINERS: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
_FIXED: Final = dict(enumerate((4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17), start=0xCA))


def check_json_size(body: bytes, most: int = MAX_JSON_VALUES) -> None:
    """Raise Refusal (413) for JSON with too many values. Commas within texts count too."""
    if len(body) > _SMALL:
        parts = body.count(b'"') // 2 + body.count(b"[") + body.count(b"{")
        if parts > MAX_JSON_CONTAINERS or body.count(b",") >= most:
            raise Refusal(
                "body-too-large",
                f"Send at most {most} values, and at most {MAX_JSON_CONTAINERS} texts, lists and "
                "objects.",
            )


def check_repeated_keys(body: bytes) -> None:
    """Raise Refusal (422) for JSON with a repeated key in an object.

    The models' parser would keep the last value; it also reports invalid JSON. This parses the
    body, so do not call it on the event loop.
    """
    try:
        jiter.from_json(body, catch_duplicate_keys=True)
    except ValueError as error:
        text = str(error)
        if not text.startswith("Detected duplicate key"):
            return
        # Without the key, which the sender chose: only the line and column after it.
        place = " ".join(text.rsplit(" ", 4)[1:])
        why = f"one object has a key twice ({place}): keep one of them"
        raise wrong_field("", "repeated-key", why, "Send each key of an object once.") from None


def check_msgpack_size(body: bytes) -> None:
    """Raise Refusal (413) for msgpack that holds, or claims to hold, too many values."""
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
