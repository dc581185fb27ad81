"""Stored data that has changed, as clients are told of it: never as an error of theirs."""

from __future__ import annotations

import itertools
from typing import Any

import httpx

from support.damage import change_stored

from .conftest import SITES, Running

_COUNT = itertools.count()


def another_seed(stored: bytes) -> bytes:
    return stored.replace(b'"seed":7', b'"seed":8')


def damaged(running: Running, *, join: bool = True) -> str:
    """Return the path of a new session whose definition is damaged."""
    name = f"damaged-{next(_COUNT)}"
    running.api.define("ada", name, list(SITES))
    for site in SITES if join else ():
        running.api.join(site, name)
    change_stored(
        running.local.coordinator.store, "sessions", "definition", another_seed, name=name
    )
    return f"/v1/sessions/{name}"


def listed(running: Running, path: str) -> Any:
    items = running.api.ok("GET", "/v1/sessions?limit=200", "ada")["items"]
    whole = [each["name"] for each in items if each["definition"]]
    assert "heart" in whole
    (found,) = (each for each in items if path.endswith("/" + each["name"]))
    return found


def refused(response: httpx.Response) -> None:
    assert (response.status_code, response.json()["type"]) == (
        500,
        "urn:fedclust:problem:stored-data-damaged",
    )


def test_a_damaged_session_is_refused_and_has_failed(running: Running) -> None:
    path = damaged(running)
    assert (listed(running, path)["state"], listed(running, path)["definition"]) == (
        "running",
        None,
    )
    refused(running.api.request("GET", path, "ada"))
    found = listed(running, path)
    assert (found["state"], found["stopped_because"]) == ("failed", "stored_data_damaged")
    assert running.api.ok("GET", "/v1/sessions", "operator")["items"]
    assert running.api.ok("GET", "/v1/admin/overview", "operator")
