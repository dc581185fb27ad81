"""Forms as browsers post them."""

from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from fedclust_service.domain.access import Refusal
from fedclust_service.http.bodies import media_type, read_bytes

#: The names and values of a posted form, in their order.
Form = ImmutableMultiDict[str, str]
_FORM = "application/x-www-form-urlencoded"
#: A session of a thousand sites and a thousand features has some 10,000 fields.
_MOST_FIELDS = 50_000
_MOST_BYTES = 4 << 20


async def read_form(request: Request, most: int = _MOST_BYTES) -> Form:
    """Return the posted form; Refusal for another body, or more than ``most`` bytes or fields."""
    media_type(request, [_FORM])
    body = await read_bytes(request, most)
    return await run_in_threadpool(_parsed, body)


def _parsed(body: bytes) -> Form:
    try:
        if b"\0" in body or b"%00" in body:  # no database takes it
            raise ValueError
        fields = parse_qsl(
            body.decode("utf-8"),
            keep_blank_values=True,
            max_num_fields=_MOST_FIELDS,
            errors="strict",
        )
    except ValueError:
        raise Refusal(
            "malformed-request", "The form cannot be read. Load the page again."
        ) from None
    # Browsers send two characters for the end of a line.
    return Form([(name, value.replace("\r\n", "\n")) for name, value in fields])
