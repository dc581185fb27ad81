"""Times as the wire and the ledger write them."""

from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer
from pydantic_core import PydanticCustomError


def read_time(text: str, default: tzinfo | None = None) -> datetime | None:
    """Return a time in UTC; None for any other text.

    A time without its offset is one of the zone ``default``, or is refused without it.
    """
    try:
        time = datetime.fromisoformat(text)
        zone = time.tzinfo or default
        return None if zone is None else time.replace(tzinfo=zone).astimezone(UTC)
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


def time_span(seconds: float, units: int = 2) -> str:
    """Return a length of time in its largest units, such as 3 h 20 min."""
    left = max(0, round(seconds))
    counts: list[tuple[int, str]] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or counts:
            counts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in counts[:units] if count) or "0 s"


def ago(time: datetime | None, now: datetime) -> str:
    """Return how long ago a time was, in the largest unit, such as ``2 h``."""
    return "" if time is None else time_span((now - time).total_seconds(), 1)


#: RFC 3339 in UTC on the wire.
Timestamp = Annotated[
    datetime,
    BeforeValidator(_read_time),
    PlainSerializer(write_time, return_type=str),
]
