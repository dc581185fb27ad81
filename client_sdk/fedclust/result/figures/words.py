"""Words for the descriptions of figures."""

from __future__ import annotations

from collections.abc import Iterable

from fedclust.result.wording import percent

#: Most clusters, columns or sites that a figure's description names.
MOST_JOINED = 12


def joined(entries: Iterable[str]) -> str:
    """Return the first entries as one text, and how many more there are."""
    every = list(entries)
    more = len(every) - MOST_JOINED
    return "; ".join(every[:MOST_JOINED]) + (f"; and {more} more." if more > 0 else ".")


def persons(size: int | None, share: float | None) -> str:
    """Return a number of persons with its share, where they are known."""
    if size is None:
        return "not measured"
    return f"{size} persons" + ("" if share is None else f" ({percent(share)})")
