"""Addresses of pages with a query."""

from __future__ import annotations

from urllib.parse import urlencode


def address(path: str, **query: str | None) -> str:
    """Return the address of a page; what is None or empty is left out of the query."""
    said = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(said)}" if said else path
