"""A clustering is kept where too few sites answer the evaluation or a round that improves it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.inprocess import local_coordinator
from support.world import World

SITES = ("north", "south", "west")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with local_coordinator(tmp_path_factory.mktemp("closing"), threads=True) as local:
        world = World(local.base_url, local.operator_token)
        world.register("sites", *SITES)
        world.register("analysts", "ada")
        yield world


def begin(world: World, session: str, **changes: Any) -> None:
    world.define("ada", session, list(SITES), **{"policy": {"max_rounds": 2}, **changes})
    for site in SITES:
        world.join(site, session)


def until(world: World, site: str, session: str, *reached: tuple[str, str | None]) -> str:
    """Wait until a site's status and phase are among these; return the phase, or the status."""
    etag = None
    while True:
        headers = {"If-None-Match": etag} if etag else {}
        path = f"/v1/sessions/{session}/task?wait=25"
        response = world.request("GET", path, site, headers=headers)
        etag = response.headers["ETag"]
        if response.status_code == 304:
            continue
        view = response.json()
        phase = view["task"]["phase"] if view["task"] else None
        if (view["status"], phase) in reached:
            return str(phase or view["status"])


def answer(world: World, site: str, session: str, *, empty: bool = False) -> None:
    body = world.answer(site, session)
    if empty:
        body = json.dumps({**json.loads(body), "payload": None}).encode()
    number = world.task(site, session)["round"]
    stored = world.put(site, session, number, body)
    assert stored.status_code == 201, stored.text


def result(world: World, session: str) -> dict[str, Any]:
    return dict(world.ok("GET", f"/v1/sessions/{session}/result", "ada")["result"])


@pytest.mark.parametrize("leaves", [("north",), SITES], ids=["one", "all"])
@pytest.mark.parametrize("how", ["empty", "leave"])
def test_the_clustering_is_kept_without_its_measures(
    world: World, how: str, leaves: tuple[str, ...]
) -> None:
    whole, session = f"whole-{how}-{len(leaves)}", f"short-{how}-{len(leaves)}"
    begin(world, whole)
    assert world.finish(whole, SITES) == "completed"

    begin(world, session)
    for phase in ("prepare", "cells", "lloyd"):
        for site in SITES:
            until(world, site, session, ("work", phase))
            answer(world, site, session)
    for site in SITES:
        until(world, site, session, ("work", "evaluate"))
    for site in SITES:
        if site not in leaves:
            answer(world, site, session)
        elif how == "empty":
            answer(world, site, session, empty=True)
        else:
            world.ok("DELETE", f"/v1/sessions/{session}/participation", site)
    until(world, "west", session, ("ended", None))

    info = world.ok("GET", f"/v1/sessions/{session}", "ada")
    assert (info["state"], info["stopped_because"]) == ("completed", "max_rounds")
    kept, measured = result(world, session), result(world, whole)
    assert kept["centroids"] == measured["centroids"]
    assert measured["quality"] is not None
    assert (kept["quality"], kept["sizes"], kept["site_sizes"]) == (None, None, {})
    assert "min_sites" in kept["warnings"][-1]


@pytest.mark.parametrize("how", ["empty", "leave", "two leave"])
def test_the_clustering_is_kept_where_too_few_improve_it(world: World, how: str) -> None:
    whole, session = f"unimproved-{how[:3]}", f"improved-{how[:3]}"
    begin(world, whole, algorithm="overlap", config={"n_clusters": 2, "rounds": 0})
    assert world.finish(whole, SITES) == "completed"

    begin(world, session, algorithm="overlap", config={"n_clusters": 2, "rounds": 3})
    for phase in ("prepare", "cells"):
        for site in SITES:
            until(world, site, session, ("work", phase))
            answer(world, site, session)
    for site in SITES:
        until(world, site, session, ("work", "federated"))
    for site in SITES:
        if how == "empty":
            answer(world, site, session, empty=True)
        elif how == "leave" or site != "west":
            world.ok("DELETE", f"/v1/sessions/{session}/participation", site)
        else:
            answer(world, site, session)
    if how != "leave":
        still = SITES if how == "empty" else ("west",)
        assert world.finish(session, still) == "completed"
    until(world, "west", session, ("ended", None))

    info = world.ok("GET", f"/v1/sessions/{session}", "ada")
    assert (info["state"], info["stopped_because"]) == ("completed", "too_few_contributors")
    kept, first = result(world, session), result(world, whole)
    assert kept["centroids"] == first["centroids"]
    assert any("the rounds before" in warning for warning in kept["warnings"])
    assert (kept["quality"] is None) == (how != "empty")
