"""Cells of a site that took no part are assigned over real HTTP; nothing of them stays behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from fedclust import Site
from fedclust.client import Client
from fedclust.wire import codec
from fedclust.wire.problems import CATALOGUE, Problem
from fedclust.wire.submissions import BINARY, JSON
from fedclust_service.orchestration.results import MAX_CELLS
from support.clock import ManualClock
from support.inprocess import local_coordinator
from support.world import World, rows_of

from .conftest import SITES, Running

PATH = "/v1/sessions/heart/assignments"
SITES_OF_ALL = (*SITES, "reader", "decliner", "outcast", "leaver", "stranger")
#: A value that is found again wherever it is written.
MARK = 57.00390625123
CELLS = {"centroids": [[41.0, 181.0], [69.0, 259.0], [MARK, 260.0]], "counts": [5, 30, 7]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Session ``heart``, complete; ``reader`` was invited to it afterwards."""
    clock = ManualClock()
    place = tmp_path_factory.mktemp("assignments")
    with local_coordinator(place, clock=clock, threads=True) as local:
        world = World(local.base_url, local.operator_token)
        world.tokens["operator"] = local.operator_token
        world.register("sites", *SITES_OF_ALL)
        world.register("analysts", "ada", "eve")
        everyone = [*SITES, "decliner", "outcast", "leaver"]
        world.define("ada", "heart", everyone, start="manual", policy={"min_sites": 3})
        for site in (*SITES, "leaver"):
            world.join(site, "heart")
        world.ok("DELETE", "/v1/sessions/heart/participation", "decliner")
        world.ok("DELETE", "/v1/sessions/heart/participation/outcast", "ada")
        world.ok("POST", "/v1/sessions/heart/start", "ada")
        early = world.request("POST", PATH, "ada", json=CELLS)
        assert Problem.model_validate_json(early.content).slug == "result-not-ready"
        world.ok("DELETE", "/v1/sessions/heart/participation", "leaver")
        assert world.finish("heart", SITES) == "completed"
        world.ok("PATCH", "/v1/sessions/heart", "ada", json={"invite": ["reader"]})
        yield Running(local, world, clock)


def ask(finished: Running, who: str, body: Any = CELLS) -> httpx.Response:
    return finished.world.request("POST", PATH, who, json=body)


def refused(response: httpx.Response, slug: str) -> Problem:
    problem = Problem.model_validate_json(response.content)
    assert problem.slug == slug, response.text
    assert response.status_code == CATALOGUE[slug][0]
    assert str(MARK) not in response.text
    return problem


@pytest.mark.parametrize("who", ["ada", "operator", "reader", "decliner"])
def test_each_cell_goes_to_the_nearest_cluster(finished: Running, who: str) -> None:
    result = finished.world.ok("GET", "/v1/sessions/heart/result", who)["result"]
    scaled = (np.array(CELLS["centroids"]) - result["center"]) / result["scale"]
    apart = ((scaled[:, None] - np.array(result["centroids"])[None]) ** 2).sum(axis=2)
    response = ask(finished, who)
    assert response.status_code == 200, response.text
    assert response.json() == {"session": "heart", "clusters": apart.argmin(axis=1).tolist()}
    assert response.json()["clusters"][0] != response.json()["clusters"][1]


def test_both_forms_and_the_client_say_the_same(finished: Running) -> None:
    expected = ask(finished, "ada").json()["clusters"]
    centroids, counts = np.array(CELLS["centroids"]), np.array(CELLS["counts"])
    body = codec.encode({"centroids": centroids, "counts": counts})
    binary = finished.world.request(
        "POST", PATH, "ada", content=body, headers={"Content-Type": BINARY}
    )
    assert binary.json()["clusters"] == expected
    with Client(finished.local.base_url, finished.world.tokens["ada"]) as analyst:
        assert analyst.assign("heart", centroids, counts).tolist() == expected


@pytest.mark.parametrize("who", [*SITES, "leaver"])
def test_a_site_that_joined_is_refused(finished: Running, who: str) -> None:
    """What it sent here, its guard would not know of."""
    refused(ask(finished, who), "wrong-state")


def test_the_excluded_and_strangers_get_nothing(finished: Running) -> None:
    refused(ask(finished, "outcast"), "forbidden")
    refused(ask(finished, "stranger"), "not-found")
    refused(ask(finished, "eve"), "not-found")


BAD: dict[str, tuple[Any, str, str]] = {
    "a count below p": ({"counts": [5, 4, 7]}, "disclosure-refused", "/counts/1"),
    "a count of 0": ({"counts": [5, 0, 7]}, "disclosure-refused", "/counts/1"),
    "a negative count": ({"counts": [-5, 5, 7]}, "disclosure-refused", "/counts/0"),
    "outside the bounds": (
        {"centroids": [[41.0, 181.0], [200.0, 259.0], [MARK, 260.0]]},
        "invalid",
        "/centroids/1/0",
    ),
    "too few counts": ({"counts": [5, 5]}, "invalid", "/counts"),
    "a feature too few": ({"centroids": [[41.0], [69.0], [MARK]]}, "invalid", "/centroids"),
    "ragged": ({"centroids": [[41.0, 1.0], [69.0], [MARK, 1.0]]}, "invalid", "/centroids"),
    "no cell": ({"centroids": [], "counts": []}, "invalid", "/centroids"),
    "half a count": ({"counts": [5.5, 5, 7]}, "invalid", "/counts/0"),
    "false as a count": ({"counts": [False, 5, 7]}, "invalid", "/counts/0"),
    "text": ({"centroids": [["41", 1.0], [69.0, 1.0], [MARK, 1.0]]}, "invalid", "/centroids/0/0"),
    "an unknown field": ({"site": "north"}, "invalid", ""),
    "too many": (
        {"centroids": [[41.0, MARK]] * (MAX_CELLS + 1), "counts": [5] * (MAX_CELLS + 1)},
        "invalid",
        "/centroids",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_cells_are_refused_by_field(finished: Running, name: str) -> None:
    change, slug, pointer = BAD[name]
    problem = refused(ask(finished, "reader", {**CELLS, **change}), slug)
    assert problem.errors[0].pointer.startswith(pointer)
    assert problem.errors[0].rule


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused(finished: Running, number: str) -> None:
    text = json.dumps(CELLS).replace("41.0", number)
    response = finished.world.request(
        "POST", PATH, "reader", content=text, headers={"Content-Type": JSON}
    )
    assert response.status_code in {400, 422}, response.text


def test_nothing_of_the_cells_is_stored_and_asking_is_audited(finished: Running) -> None:
    assert ask(finished, "reader").status_code == 200
    store = finished.local.coordinator.store
    entry = store.read("test.audit", lambda tx: tx.audit.list(1))[0]
    assert (entry.actor, entry.action, entry.subject) == ("site:reader", "result.assigned", "heart")
    assert entry.details == {"cells": 3}
    raw = np.float64(MARK).tobytes()
    for path in finished.local.settings.data_dir.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert raw not in content, path.name
            assert str(MARK).encode() not in content, path.name


def test_a_site_that_comes_after_the_end_labels_its_rows_and_sends_nothing(
    finished: Running, tmp_path_factory: pytest.TempPathFactory
) -> None:
    journal = tmp_path_factory.mktemp("reader")
    rows = rows_of("reader")
    token = finished.world.tokens["reader"]
    with Site(finished.local.base_url, token=token, journal_dir=journal) as site:
        result = site.participate("heart", rows, consent=True)
    scaled = (rows - result.result_.center) / result.result_.scale
    apart = ((scaled[:, None] - result.result_.centroids[None]) ** 2).sum(axis=2)
    assert np.array_equal(result.labels_, apart.argmin(axis=1))
    assert not [path for path in journal.rglob("*ledger*") if path.is_file() and path.read_bytes()]
