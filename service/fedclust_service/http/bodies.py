"""Read request bodies within their limits; write answers in the form that ``Accept`` asks for."""

import asyncio
import functools
from collections.abc import Sequence
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from fedclust.schema.field_names import unknown_field_message
from fedclust.wire import codec
from fedclust.wire.models import Participation
from fedclust.wire.submissions import BINARY, JSON, SubmissionError, read_body
from fedclust_service.domain.refusal import Refusal
from fedclust_service.http.body_limits import (
    MAX_JSON_NUMBERS,
    check_json_size,
    check_msgpack_size,
    check_repeated_keys,
)
from fedclust_service.http.dependencies import service_of
from fedclust_service.http.middleware import too_large
from fedclust_service.http.problems import invalid
from fedclust_service.usecases.coordinator import Coordinator

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
    ranges = [_media_range(part) for part in header.split(",") if part.strip()]
    best, best_quality = "", 0.0
    for offer in offers:
        kind = offer.partition("/")[0]
        # The most specific range that matches an offer gives its quality.
        quality = 0.0
        for wanted in (offer, f"{kind}/*", "*/*"):
            matching = [q for name, q in ranges if name == wanted]
            if matching:
                quality = max(matching)
                break
        if quality > best_quality:
            best, best_quality = offer, quality
    if not best:
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
