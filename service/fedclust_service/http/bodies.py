"""Read request bodies within their limits; write answers in the form that ``Accept`` asks for.

The number of values in a body is limited before it is parsed: one byte of a body can become a value
of a hundred bytes in memory, or an error of a thousand. Without these limits, a body of 32 MiB took
8 GB and blocked all other requests for minutes.
"""

import asyncio
import functools
from collections.abc import Sequence
from typing import Final, TypeVar

import jiter
from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from fedclust.schema.field_names import unknown_field_message
from fedclust.wire import codec
from fedclust.wire.models import Participation
from fedclust.wire.submissions import BINARY, JSON, SubmissionError, read_body
from fedclust_service.domain.access import Refusal, wrong_field
from fedclust_service.http.dependencies import service_of
from fedclust_service.http.middleware import too_large
from fedclust_service.http.problems import invalid
from fedclust_service.usecases.coordinator import Coordinator

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


CSV = "text/csv"
M = TypeVar("M", bound=BaseModel)


# --- in -------------------------------------------------------------------------------------------


def media_type(request: Request, accepted: Sequence[str]) -> str:
    """Return the request's media type without parameters; Refusal (415) for another one."""
    value = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if value not in accepted:
        raise Refusal("unsupported-media-type", f"Send {' or '.join(accepted)}.")
    return value


async def read_bytes(request: Request, most: int | None = None) -> bytes:
    """Return the request's body; Refusal if it is too large or arrives too slowly.

    ``most`` bytes, and not more than any body.
    """
    settings = service_of(request).settings
    limit = settings.body_limit if most is None else min(most, settings.body_limit)
    chunks, size = [], 0
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise too_large(limit)
                chunks.append(chunk)
    except TimeoutError:
        raise Refusal(
            "request-timeout",
            f"Send the same body again: it has to arrive within {settings.body_timeout_s:g} s.",
            retry_after_s=1,
        ) from None
    return b"".join(chunks)


async def json_body(request: Request) -> bytes:
    """Return the bytes of a JSON body within its limits; none without a body."""
    body = await read_bytes(request)
    if body:
        media_type(request, [JSON])
        check_json_size(body)
    return body


async def either_body(request: Request) -> tuple[bytes, str]:
    """Return a body that may hold arrays, and its media type."""
    media = media_type(request, [JSON, BINARY])
    body = await read_bytes(request)
    if media == BINARY:
        check_msgpack_size(body)
    else:
        check_json_size(body, MAX_JSON_NUMBERS)
    return body, media


def parse(model: type[M], body: bytes, media: str = JSON) -> M:
    """Parse a body strictly; Refusal (400 or 422) names the fields. Call it in a thread.

    Unknown fields are named, if their names are plain, but not those that a site sent.
    """
    if media == JSON:
        check_repeated_keys(body)
    unknown = None
    if not issubclass(model, Participation):
        unknown = functools.partial(unknown_field_message, model)
    try:
        return read_body(model, body, media, unknown)
    except SubmissionError as error:
        raise invalid(error.errors) from None


# --- out ------------------------------------------------------------------------------------------


def negotiate(request: Request, offers: Sequence[str]) -> str:
    """Return the first of the offers that ``Accept`` prefers; Refusal (406) if it accepts none."""
    header = request.headers.get("accept", "").strip() or "*/*"
    ranges: dict[str, float] = {}
    for name, quality in map(_media_range, filter(str.strip, header.split(","))):
        ranges[name] = max(quality, ranges.get(name, 0.0))

    def quality_of(offer: str) -> float:
        """Return the quality of the most specific range that matches."""
        matching = (offer, f"{offer.partition('/')[0]}/*", "*/*")
        return next((ranges[name] for name in matching if name in ranges), 0.0)

    best = max(offers, key=quality_of)
    if not quality_of(best):
        raise Refusal("not-acceptable", f"Accept one of: {', '.join(offers)}.")
    return best


def _media_range(part: str) -> tuple[str, float]:
    name, *parameters = (item.strip().lower() for item in part.split(";"))
    quality = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                quality = min(1.0, max(0.0, float(value)))
            except ValueError:
                quality = 0.0
    return name, quality if quality == quality else 0.0


AUDIT_HEAD = "Fedclust-Audit-Head"
AUDIT_HEAD_HEADER = {
    AUDIT_HEAD: "`NUMBER:HASH` of the last sealed entry of the audit trail, which the site notes "
    "in its ledger. Absent before the first entry."
}


def with_audit_head(co: Coordinator, headers: dict[str, str]) -> dict[str, str]:
    """Add the last sealed audit entry that this process knows; reads no database."""
    head = co.sealer.head
    return headers if head is None or not head.number else {**headers, AUDIT_HEAD: str(head)}


def reply_as(
    media: str, model: BaseModel, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return a model that may hold arrays, as JSON or in the binary form."""
    tree = codec.to_tree(model)
    body = codec.encode(tree) if media == BINARY else codec.to_json(tree)
    return Response(body, status, {"Vary": "Accept", **(headers or {})}, media_type=media)
