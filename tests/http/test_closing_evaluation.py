"""A clustering is kept where too few sites answer the evaluation or a round that improves it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.api_caller import ApiCaller
from support.local_coordinator import local_coordinator

SITES = ("north", "south", "west")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiCaller]:
    with local_coordinator(tmp_path_factory.mktemp("closing"), threads=True) as local:
        api = ApiCaller(local.base_url, local.operator_token)
        api.register("sites", *SITES)
        api.register("analysts", "ada")
        yield api


def begin(api: ApiCaller, session: str, **changes: Any) -> None:
    api.define("ada", session, list(SITES), **{"policy": {"max_rounds": 2}, **changes})
    for site in SITES:
        api.join(site, session)


def until(api: ApiCaller, site: str, session: str, *reached: tuple[str, str | None]) -> str:
    """Wait until a site's status and phase are among these; return the phase, or the status."""
    views = api.views(site, session)
    asked = ((view["status"], (view["task"] or {}).get("phase")) for view in views)
    status, phase = next(each for each in asked if each in reached)
    return str(phase or status)


def answer(api: ApiCaller, site: str, session: str) -> None:
    number = api.task(site, session)["round"]
    stored = api.put(site, session, number, api.answer(site, session))
    assert stored.status_code == 201, stored.text


def result(api: ApiCaller, session: str) -> dict[str, Any]:
    return dict(api.ok("GET", f"/v1/sessions/{session}/result", "ada")["result"])


def test_the_clustering_is_kept_without_its_measures(api: ApiCaller) -> None:
    whole, session = "whole", "short"
    begin(api, whole)
    assert api.finish(whole, SITES) == "completed"

    begin(api, session)
    for phase in ("prepare", "cells", "lloyd"):
        for site in SITES:
            until(api, site, session, ("work", phase))
            answer(api, site, session)
    for site in SITES:
        until(api, site, session, ("work", "evidence"))
    for site in SITES:
        api.ok("DELETE", f"/v1/sessions/{session}/participation", site)
    until(api, "west", session, ("ended", None))

    info = api.ok("GET", f"/v1/sessions/{session}", "ada")
    assert (info["state"], info["stopped_because"]) == ("completed", "max_rounds")
    kept, measured = result(api, session), result(api, whole)
    assert kept["centroids"] == measured["centroids"]
    assert measured["quality"] is not None
    assert (kept["quality"], kept["sizes"], kept["site_sizes"]) == (None, None, {})
    assert "min_sites" in kept["warnings"][-1]


def test_the_clustering_is_kept_where_too_few_improve_it(api: ApiCaller) -> None:
    whole, session = "unimproved", "improved"
    begin(api, whole, algorithm="overlap", config={"n_clusters": 2, "rounds": 0})
    assert api.finish(whole, SITES) == "completed"

    begin(api, session, algorithm="overlap", config={"n_clusters": 2, "rounds": 3})
    for phase in ("prepare", "cells"):
        for site in SITES:
            until(api, site, session, ("work", phase))
            answer(api, site, session)
    for site in SITES:
        until(api, site, session, ("work", "federated"))
    for site in ("north", "south"):
        api.ok("DELETE", f"/v1/sessions/{session}/participation", site)
    answer(api, "west", session)
    assert api.finish(session, ["west"]) == "completed"
    until(api, "west", session, ("ended", None))

    info = api.ok("GET", f"/v1/sessions/{session}", "ada")
    assert (info["state"], info["stopped_because"]) == ("completed", "too_few_contributors")
    kept, first = result(api, session), result(api, whole)
    assert kept["centroids"] == first["centroids"]
    assert any("the rounds before" in warning for warning in kept["warnings"])
    assert kept["quality"] is None
