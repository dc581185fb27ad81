"""Forms as browsers post them, and as they are shown again with messages at their fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from fedclust_service.domain.access import Refusal
from fedclust_service.http.bodies import media_type, parse, read_bytes

M = TypeVar("M", bound=BaseModel)

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


@dataclass(frozen=True)
class FilledForm:
    """A form as it is shown again after a refusal: nothing that was typed is lost.

    ``errors`` are messages by the name of a field, ``general`` is about the form as a whole.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    general: str | None = None

    def text(self, name: str, default: str = "") -> str:
        """Return what was typed into a field; before that, its default."""
        return self.texts.get(name, default)

    def refused(self, refusal: Refusal) -> FilledForm:
        """Return the form with a refusal's messages at the fields that they are about."""
        errors: dict[str, str] = {}
        rest = []
        for error in refusal.errors:
            name = f"{error.pointer}/".split("/")[1]
            if name in self.texts:
                words = error.message.rstrip(".")
                errors.setdefault(name, f"{words[:1].upper()}{words[1:]}.")
            else:
                rest.append(str(error))
        general = "; ".join(rest) or (None if errors else refusal.detail)
        return replace(self, errors=errors, general=general)


def checked(model: type[M], body: Mapping[str, object]) -> M:
    """Return what a form says, checked as the API checks a body; Refusal names the fields."""
    return parse(model, json.dumps(body).encode())
