"""Every method over real HTTP: sites that come late and leave, and bad input of every kind."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclust import Site
from fedclust.definition import plan_of, read_definition
from fedclust.methods.common.options import variant_models
from fedclust.methods.registry import METHODS
from fedclust.schema.result import Result
from fedclust.wire import codec
from support.api_caller import ApiCaller, rows_of
from support.driven import drive
from support.local_coordinator import LocalCoordinator
from support.method_variants import KS, TRIED, once

from .problems import problem

SITES = ("north", "south", "west")
LATE = "late"
#: In a session with it the first phase of the method is the first round.
UNPREPARED = {"scaling": "none", "missing": "drop"}


@pytest.fixture(scope="module")
def api(aggregating: LocalCoordinator) -> ApiCaller:
    """A coordinator whose threads run, three sites and one more, and an analyst."""
    return ApiCaller.found(aggregating, (*SITES, LATE))


@pytest.fixture
def session(request: pytest.FixtureRequest) -> str:
    """Return a session's name that no other test uses."""
    return f"session-{zlib.crc32(request.node.name.encode()):08x}"


def begin(
    api: ApiCaller, session: str, method: str, options: dict[str, Any], **changes: Any
) -> list[str]:
    """Create a session of the method which the three sites have joined; return them."""
    config = {"n_clusters": 2, **options}
    api.begin("ada", session, SITES, algorithm=method, config=config, **changes)
    return list(SITES)


def put(api: ApiCaller, site: str, session: str, number: int, body: bytes) -> None:
    stored = api.put(site, session, number, body)
    assert stored.status_code == 201, stored.text


def round_open(api: ApiCaller, site: str, session: str, number: int) -> Any:
    """Return a site's view once round ``number`` has been opened."""
    return next(view for view in api.views(site, session) if (view["round"] or 0) >= number)


def result_of(api: ApiCaller, session: str, reader: str = "ada") -> dict[str, Any]:
    return dict(api.ok("GET", f"/v1/sessions/{session}/result", reader)["result"])


def answers(api: ApiCaller, session: str, number: int) -> dict[str, bool]:
    found = api.ok("GET", f"/v1/sessions/{session}/rounds/{number}", "ada")
    return {site["name"]: site["answered"] for site in found["sites"]}


# --- coming late, leaving -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options"), [case for case in once("lloyd") if METHODS[case.values[0]].joins_late]
)
def test_one_site_comes_late_and_one_leaves(
    api: ApiCaller, session: str, method: str, options: dict[str, Any]
) -> None:
    """``late`` joins while round 2 is open, ``west`` leaves while round 3 is: to the bit what the
    engine gives when driven so by hand."""
    config = {"n_clusters": 2, **options}
    everyone = [*SITES, LATE]
    policy = {"min_sites": 3, "quorum": 3}
    api.define(
        *("ada", session, everyone), algorithm=method, config=config, start="manual", policy=policy
    )
    for site in SITES:
        api.join(site, session)
    api.ok("POST", f"/v1/sessions/{session}/start", "ada")
    api.send(session, *SITES)
    round_open(api, "north", session, 2)
    api.join(LATE, session)
    view = api.ok("GET", f"/v1/sessions/{session}/task", LATE)
    assert (view["status"], view["task"]) == ("waiting", None)
    second = {site: api.answer(site, session) for site in SITES}
    unasked = api.put(LATE, session, 2, second["north"])
    problem(unasked, "not-addressed")
    for site in SITES:
        put(api, site, session, 2, second[site])
    assert round_open(api, LATE, session, 3)["status"] == "work"
    api.ok("DELETE", f"/v1/sessions/{session}/participation", "west")
    assert api.finish(session, ["north", "south", LATE]) == "completed"

    assert answers(api, session, 2) == dict.fromkeys(SITES, True)
    assert answers(api, session, 3) == {"late": True, "north": True, "south": True, "west": False}
    result = result_of(api, session)
    info = api.ok("GET", f"/v1/sessions/{session}", "ada")
    plan = plan_of(read_definition(codec.canonical_json(info["definition"])))
    joined = {1: SITES, 2: SITES, 3: (*SITES, LATE)}
    by_hand = drive(
        plan,
        {site: rows_of(site) for site in everyone},
        roster=lambda number: sorted(joined.get(number, ("north", "south", LATE))),
        silent=lambda number: ["west"] if number == 3 else [],
    ).result
    found = Result.model_validate_json(json.dumps({**result, "mapping": {}}))
    for name in ("centroids", "centroids_original", "center", "scale"):
        assert np.array_equal(getattr(found, name), getattr(by_hand, name)), name
    for name in ("sizes", "quality", "history"):
        assert getattr(found, name) == getattr(by_hand, name), name
    own = api.ok("GET", f"/v1/sessions/{session}/result", LATE)["result"]
    assert own["site_sizes"].keys() == {LATE}


# --- numbers of clusters --------------------------------------------------------------------------


def test_no_such_number_of_clusters(api: ApiCaller) -> None:
    for method in TRIED:
        fields = variant_models(METHODS[method].options)[0].model_fields
        # Null where the method chooses.
        null = [None] if fields["n_clusters"].is_required() else []
        for wrong in (0, -1, 10_001, 1.5, "2", False, *null):
            config = {"n_clusters": wrong}
            body = api.definition("none", list(SITES), algorithm=method, config=config)
            said = problem(api.request("POST", "/v1/sessions", "ada", json=body), "invalid")
            assert [error.pointer for error in said.errors] == ["/config/n_clusters"], method


def test_every_k_of_a_sweep_is_read_by_itself(api: ApiCaller, session: str) -> None:
    # The one that has a mapping as well; the service knows none by name.
    sites = begin(api, session, "kfed", {"n_clusters": list(KS)})
    assert api.finish(session, sites) == "completed"
    path = f"/v1/sessions/{session}/result"
    whole = result_of(api, session)
    assert [entry["n_clusters"] for entry in whole["sweep"]] == list(KS)
    assert whole["recommendation"].startswith(f"K = {whole['n_clusters']}: ")
    for entry in whole["sweep"]:
        k = entry["n_clusters"]
        for reader, sizes in (("ada", set(SITES)), ("north", {"north"})):
            found = api.ok("GET", f"{path}?k={k}", reader)["result"]
            assert (found["n_clusters"], found["sweep"]) == (k, None)
            assert len(found["centroids"]) == k
            assert set(found["site_sizes"]) == sizes
            assert set(found["mapping"]) <= {reader}
        (swept,) = [e for e in result_of(api, session, "north")["sweep"] if e["n_clusters"] == k]
        assert swept["result"] == found
        assert swept["inertia"] == found["quality"]["inertia"]
    table = api.request("GET", f"{path}?k=3", "ada", headers={"Accept": "text/csv"})
    assert len(table.text.splitlines()) == 4
    for wrong in ("7", "0", "x"):
        said = problem(api.request("GET", f"{path}?k={wrong}", "ada"), "invalid")
        assert [error.pointer for error in said.errors] == ["/k"]
        assert wrong != "7" or said.errors[0].message.endswith("2, 3, 5")


# --- answers that cannot be true ------------------------------------------------------------------


def _first(values: Any, value: float) -> Any:
    """Return nested lists with the first number replaced."""
    if isinstance(values[0], list):
        return [_first(values[0], value), *values[1:]]
    return [value, *values[1:]]


def _outside(payload: dict[str, Any]) -> dict[str, Any]:
    """Move one mean out of its feature's bounds, which are 0 to 120 years."""
    for name in ("means", "sums"):
        if name in payload:
            return {name: _first(payload[name], -1e6)}
    raise AssertionError("there are no vectors in this payload")


def _more_than_the_band(payload: dict[str, Any]) -> dict[str, Any]:
    counts = {"counts": _first(payload["counts"], 5_000)}
    totals = payload.get("totals")
    return counts if totals is None else {**counts, "totals": {**totals, "n": 5_030}}


LIES: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str, str]] = {
    "centroids outside the declared bounds": (_outside, "invalid", "bounds"),
    "a count that contradicts the size band": (_more_than_the_band, "invalid", "size-band"),
    "more rows in cells than there are": (
        lambda sent: {"counts": _first(sent["counts"], 1_000_000)},
        *("invalid", "size-band"),
    ),
    "a count below p": (
        lambda sent: {"counts": _first(sent["counts"], 4)},
        *("disclosure-refused", "smallest-count"),
    ),
}


@pytest.mark.parametrize(("method", "options"), once(*TRIED))
def test_answers_that_cannot_be_true_are_refused_and_not_stored(
    api: ApiCaller, session: str, method: str, options: dict[str, Any]
) -> None:
    """In the method's first phase, which has no preparation before it."""
    begin(api, session, method, options, policy=UNPREPARED)
    honest = json.loads(api.answer("north", session))
    for lie, (change, slug, rule) in LIES.items():
        body = {**honest, "payload": {**honest["payload"], **change(honest["payload"])}}
        said = problem(api.put("north", session, 1, json.dumps(body).encode()), slug)
        assert said.errors[0].rule == rule, lie
        assert said.errors[0].pointer.startswith("/payload/"), lie
        assert not answers(api, session, 1)["north"], lie
    put(api, "north", session, 1, json.dumps(honest).encode())


# --- what comes of it -----------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "options"), once("lloyd", "spectral"))
def test_a_site_that_comes_after_the_end_labels_its_rows_and_sends_nothing(
    api: ApiCaller, session: str, method: str, options: dict[str, Any], tmp_path: Path
) -> None:
    sites = begin(api, session, method, options)
    assert api.finish(session, sites) == "completed"
    api.ok("PATCH", f"/v1/sessions/{session}", "ada", json={"invite": [LATE]})
    rows = rows_of(LATE)
    with Site(api.base_url, token=api.tokens[LATE], state_dir=tmp_path) as site:
        found = site.participate(session, rows, consent=True)
    assert not [path for path in tmp_path.rglob("*ledger*") if path.read_bytes()]
    if options in TRIED[method].own_only:
        # Only sites that took part can label: the nearest centroid would be a guess.
        assert (found.labels_ == -1).all()
        return
    result = result_of(api, session)
    compared = np.array(result["prototypes"] or result["centroids"])
    scaled = (rows - result["center"]) / result["scale"]
    near = ((scaled[:, None] - compared[None]) ** 2).sum(axis=2).argmin(axis=1)
    of = result["prototype_labels"] or list(range(len(result["centroids"])))
    assert found.labels_.tolist() == [of[k] for k in near]
