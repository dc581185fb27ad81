"""Times as the wire and the ledger write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer
from pydantic_core import PydanticCustomError


def _read_time(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    except (ValueError, OverflowError):  # not a time, or out of range in UTC
        pass
    raise PydanticCustomError("time", "a time must be RFC 3339 with a UTC offset")


def write_time(value: datetime) -> str:
    """Return a time as the wire and the ledger write it: UTC, milliseconds, Z."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


#: RFC 3339 in UTC on the wire.
Timestamp = Annotated[
    datetime,
    BeforeValidator(_read_time),
    PlainSerializer(write_time, return_type=str),
]
