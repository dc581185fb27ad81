"""Times as the wire and the ledger write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer
from pydantic_core import PydanticCustomError


def read_time(text: str) -> datetime | None:
    """Return a time with its offset, in UTC; None for any other text."""
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC) if time.tzinfo is not None else None
    except (ValueError, OverflowError):  # not a time, or out of range in UTC
        return None


def _read_time(value: Any) -> Any:
    time = read_time(value) if isinstance(value, str) else value
    if time is None and value is not None:
        raise PydanticCustomError("time", "a time must be RFC 3339 with a UTC offset")
    return time


def write_time(value: datetime) -> str:
    """Return a time as the wire and the ledger write it: UTC, milliseconds, Z."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


#: RFC 3339 in UTC on the wire.
Timestamp = Annotated[
    datetime,
    BeforeValidator(_read_time),
    PlainSerializer(write_time, return_type=str),
]
