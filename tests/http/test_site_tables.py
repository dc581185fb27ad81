"""The heads of sites' tables over HTTP: what is refused, and what operators accept."""

from typing import Any

import pytest

from support.api_caller import ApiCaller
from support.local_coordinator import LocalCoordinator

SITES = ["north", "south", "west"]
TABLE = "5b0a0ad3f5f0443fbd2f3a4a8f6f7a3e"


@pytest.fixture(scope="module")
def api(served: LocalCoordinator) -> ApiCaller:
    api = ApiCaller.found(served, SITES)
    api.define("ada", "one", SITES)
    return api


def join(api: ApiCaller, heads: Any) -> Any:
    body = api.participation("south", "one") | {"table_id": TABLE, "heads": heads}
    return api.request("PUT", "/v1/sessions/one/participation", "south", json=body)


@pytest.mark.parametrize(
    ("wrong", "at"),
    [
        (None, "/heads"),
        ({"first": 1, "heads": []}, "/heads/heads"),
        ({"first": 0, "heads": ["a" * 16]}, "/heads/first"),
        ({"first": 2**31, "heads": ["a" * 16]}, "/heads/first"),
        ({"first": 1, "heads": ["A" * 16]}, "/heads/heads/0"),
        ({"first": 1, "heads": ["a" * 15]}, "/heads/heads/0"),
        ({"first": 1, "heads": ["a" * 16] * 100_001}, "/heads/heads"),
        ({"first": 1, "heads": "a" * 16}, "/heads/heads"),
    ],
)
def test_heads_that_are_none_are_refused_at_their_field(
    api: ApiCaller, wrong: Any, at: str
) -> None:
    refused = join(api, wrong)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == at


def test_as_many_heads_as_the_protocol_allows_are_taken(api: ApiCaller) -> None:
    many = {"first": 1, "heads": [f"{number:016x}" for number in range(100_000)]}
    assert join(api, many).status_code == 201
    (known,) = api.ok("GET", "/v1/sites/south/tables", "operator")["items"]
    assert (known["number"], known["head"]) == (100_000, f"{99_999:016x}")


@pytest.mark.parametrize(
    "wrong", [{"number": 0, "head": "a" * 16}, {"number": 1, "head": "x" * 16}, {"number": 1}]
)
def test_an_operator_who_mistypes_changes_nothing(api: ApiCaller, wrong: Any) -> None:
    path = "/v1/sites/west/tables"
    assert api.request("PUT", f"{path}/{TABLE}", "operator", json=wrong).status_code == 422
    right = {"number": 1, "head": "a" * 16}
    for table in ("0", TABLE.upper(), f"{TABLE}0"):
        assert api.request("PUT", f"{path}/{table}", "operator", json=right).status_code == 404
    assert api.ok("GET", path, "operator") == {"items": [], "next": None}
