"""Which representation a client gets; results in each, and by reader."""

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from fedclust.result.tables import centroid_table
from fedclust.wire import codec
from fedclust.wire.models import ResultDocument
from fedclust.wire.submissions import BINARY, JSON
from fedclust_service.domain.access import Refusal
from fedclust_service.http.bodies import CSV, negotiate
from support.api_caller import FEATURES
from support.local_coordinator import local_coordinator

from .conftest import SITES, Running, round_1

RESULT = "/v1/sessions/heart/result"


def chosen(accept: str | None) -> str | None:
    headers = [] if accept is None else [(b"accept", accept.encode())]
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": headers})
    try:
        return negotiate(request, [JSON, BINARY, CSV])
    except Refusal as refusal:
        return None if refusal.slug == "not-acceptable" else refusal.slug


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        (None, JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        (JSON, JSON),
        (BINARY, BINARY),
        ("text/*", CSV),
        ("text/csv, */*;q=0.1", CSV),
        (f"{JSON};q=0.5, {BINARY}", BINARY),
        (f"{BINARY};q=0.5, {JSON};q=0.5", JSON),
        (f"{JSON};q=0, */*", BINARY),
        ("APPLICATION/JSON; charset=utf-8", JSON),
        ("text/html, application/xhtml+xml", None),
        ("text/html,*/*;q=0.8", JSON),
        (f"{JSON};q=0", None),
        (f"{JSON};q=nan", None),
        (f"{JSON};q=x", None),
        ("", JSON),
        ("nonsense", None),
        (",,;;", None),
    ],
)
def test_negotiation(accept: str | None, media: str | None) -> None:
    assert chosen(accept) == media


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=80))
def test_any_accept_header_is_answered(accept: str) -> None:
    assert chosen(accept) in {JSON, BINARY, CSV, None}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A session that has run to its end."""
    with round_1(tmp_path_factory.mktemp("finished"), threads=True) as running:
        assert running.api.finish("heart", SITES, BINARY) == "completed"
        # From now on two reads of the result name the same entry of the audit trail.
        running.local.coordinator.sealer.run_once()
        yield running


def read(finished: Running, reader: str, accept: str) -> Any:
    response = finished.api.request("GET", RESULT, reader, headers={"Accept": accept})
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"].partition(";")[0] == accept
    assert response.headers["Vary"] == "Accept"
    return response


@pytest.mark.parametrize("reader", ["ada", "north"])
def test_json_and_binary_hold_the_same_result(finished: Running, reader: str) -> None:
    as_json = ResultDocument.model_validate_json(read(finished, reader, JSON).content)
    as_binary = codec.decode_model(ResultDocument, read(finished, reader, BINARY).content)
    both = [json.loads(codec.to_json(codec.to_tree(each))) for each in (as_json, as_binary)]
    assert both[0] == both[1]
    assert isinstance(as_binary.result["centroids"], np.ndarray)


def test_the_tag_of_a_result_is_that_of_its_bytes(finished: Running) -> None:
    tags = set()
    for accept in (JSON, BINARY, CSV):
        tag = read(finished, "ada", accept).headers["ETag"]
        headers = {"Accept": accept, "If-None-Match": tag}
        again = finished.api.request("GET", RESULT, "ada", headers=headers)
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
        assert again.headers["Vary"] == "Accept"
        tags.add(tag)
    # A site sees its own part alone.
    tags.add(read(finished, "north", JSON).headers["ETag"])
    assert len(tags) == 4


def test_a_result_of_one_k_has_no_other(finished: Running) -> None:
    refused = finished.api.request("GET", f"{RESULT}?k=2", "ada")
    assert refused.status_code == 422
    assert "compared no numbers" in refused.json()["errors"][0]["message"]


def test_csv_is_the_centroids_and_the_sizes_that_were_measured(finished: Running) -> None:
    response = read(finished, "ada", CSV)
    assert response.headers["Content-Disposition"] == 'attachment; filename="heart.csv"'
    header, *rows = csv.reader(io.StringIO(response.text))
    assert header == ["cluster", "size", *(str(feature["name"]) for feature in FEATURES)]
    document = codec.decode_model(ResultDocument, read(finished, "ada", BINARY).content)
    assert [int(row[1]) for row in rows] == list(document.result["sizes"])
    # In ten digits, as people write numbers.
    values = [[float(value) for value in row[2:]] for row in rows]
    assert values == pytest.approx(document.result["centroids_original"], rel=1e-9)
    unevaluated = document.model_copy(update={"result": {**document.result, "sizes": None}})
    rows = list(csv.reader(io.StringIO(centroid_table(unevaluated).decode())))
    assert [row[:2] for row in rows] == [["cluster", "size"], ["0", ""], ["1", ""]]


# --- behind a proxy -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("proxy", "believed"), [("127.0.0.0/8", True), ("10.0.0.0/8", False), (None, False)]
)
def test_forwarded_headers_are_believed_from_the_proxy_only(
    tmp_path: Any, proxy: str | None, believed: bool
) -> None:
    settings = {} if proxy is None else {"behind_proxy": proxy}
    with local_coordinator(tmp_path, **settings) as local:
        headers = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7"}
        answered = local.http(**headers).get("/healthz").headers
    assert ("strict-transport-security" in answered) is believed
