"""Addresses of pages."""

from urllib.parse import urlencode


def address(path: str, **query: str | None) -> str:
    """Return the address of a page; what is None or empty is left out of the query."""
    said = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(said)}" if said else path


def account_path(key: str) -> str | None:
    """Return the address of the page of an actor or an account such as ``site:north``."""
    role, _, name = key.partition(":")
    return f"/ui/{role}s/{name}" if name and role in ("site", "analyst", "operator") else None
