"""What only ``dual`` can be told wrongly, and how its sessions end when a site leaves."""

import json
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest

from support.api_caller import ApiCaller
from support.local_coordinator import LocalCoordinator

from .problems import problem

SITES = ("north", "south", "west")
CONFIG = {"n_clusters": 2, "update": "subgradient", "node_limit": 100, "iterations": 3}


@pytest.fixture(scope="module")
def api(aggregating: LocalCoordinator) -> ApiCaller:
    """A coordinator whose threads run, three sites and an analyst."""
    return ApiCaller.found(aggregating, SITES)


def begin(api: ApiCaller, session: str, phase: str, times: int = 1) -> int:
    """Create a session; return its round once it asks for a phase so many times."""
    changes = {"algorithm": "dual", "config": CONFIG, "policy": {"scaling": "none"}}
    api.begin("ada", session, SITES, **changes)
    seen, number = 0, 0
    while True:
        view = next(
            view
            for view in api.views("north", session)
            if view["status"] == "ended" or (view["status"] == "work" and view["round"] > number)
        )
        number = view["round"]
        seen += view["task"]["phase"] == phase
        if seen == times:
            return int(number)
        api.send(session, *SITES, number=number)


# --- leaving --------------------------------------------------------------------------------------


def test_a_site_that_leaves_completes_the_session_with_the_bounds_so_far(api: ApiCaller) -> None:
    """Two are left, and three were to take part. Which bounds: `methods/test_dual.py`."""
    session = "left"
    number = begin(api, session, "primal", times=2)
    api.send(session, "north", number=number)
    api.ok("DELETE", f"/v1/sessions/{session}/participation", "west")
    assert api.finish(session, ["north", "south"]) == "completed"

    document = api.ok("GET", f"/v1/sessions/{session}/result", "ada")
    assert document["provenance"]["platform"]["fedclust-dual"] == version("fedclust-dual")
    result = document["result"]
    assert result["stopped_because"] == "site_left"
    assert result["bounds"]["lower"] <= result["bounds"]["upper"]
    assert result["bounds"]["certified"]
    # The round that it left says nothing of its own.
    entry = result["history"][number - 1]
    assert (entry["phase"], entry["lower_bound"], entry["upper_bound"]) == ("primal", None, None)
    closed = api.ok("GET", f"/v1/sessions/{session}/rounds/{number}", "ada")
    assert closed["close_reason"] == "site_left"


# --- answers that cannot be true ------------------------------------------------------------------

_Payload = dict[str, Any]


def _apart(payload: _Payload) -> _Payload:
    (n, m), ((a, *rest), (b, *other)) = payload["counts"], payload["means"]
    a, b = (a - 30.0 / n, b + 30.0 / m) if a < b else (a + 30.0 / n, b - 30.0 / m)
    spread = [[a + (a - b) * 30.0 / n, *rest], [b - (a - b) * 30.0 / m, *other]]
    return {"means": spread}


def _moved(payload: _Payload, by: float) -> _Payload:
    (a, *rest), other = payload["centroids"]
    return {"centroids": [[a + by, *rest], other]}


#: Phase, what is changed, the rule that it breaks, and where.
LIES: dict[str, tuple[str, Callable[[_Payload], _Payload], str, str]] = {
    "a value above any cost": ("dual", lambda _: {"value": 1e12}, "dual-value", "/value"),
    "a value below any cost": ("dual", lambda _: {"value": -1e12}, "dual-value", "/value"),
    "outside the box": ("dual", lambda sent: _moved(sent, -1e6), "bounds", "/centroids/0/0"),
    "not the best": ("dual", lambda sent: _moved(sent, 0.5), "dual-value", "/centroids"),
    "other multipliers": ("dual", lambda _: {"digest": "0" * 64}, "multipliers", "/digest"),
    "counts that do not add up": ("dual", lambda _: {"counts": [25, 30]}, "assignment", "/counts"),
    "counts of other means": ("dual", lambda _: {"counts": [35, 25]}, "assignment", "/counts"),
    "means too far apart": ("dual", _apart, "assignment", "/means"),
    "a cost below its own mean's": (
        *("primal", lambda sent: {"costs": [[0.0, *c[1:]] for c in sent["costs"]]}),
        *("cost", "/costs"),
    ),
    "candidates that nobody asked for": (
        *("primal", lambda sent: {"counts": [*sent["counts"], [60, 0]]}, "shape", "/counts"),
    ),
    "candidates of other persons": (
        *("primal", lambda sent: {"counts": [[31, 31], *sent["counts"][1:]]}, "counts", "/counts"),
    ),
}


@pytest.fixture(scope="module")
def asked(api: ApiCaller) -> dict[str, tuple[str, int, dict[str, Any]]]:
    """Sessions in which each phase is asked for, with its round and an honest answer."""
    found = {}
    for phase in ("dual", "primal"):
        session = f"lies-in-{phase}"
        number = begin(api, session, phase, times=2)
        found[phase] = session, number, json.loads(api.answer("north", session))
    return found


@pytest.mark.parametrize("lie", LIES)
def test_answers_that_cannot_be_true_are_refused_and_name_the_rule(
    api: ApiCaller, asked: dict[str, tuple[str, int, dict[str, Any]]], lie: str
) -> None:
    phase, change, rule, pointer = LIES[lie]
    session, number, honest = asked[phase]
    body = {**honest, "payload": {**honest["payload"], **change(honest["payload"])}}
    response = api.put("north", session, number, json.dumps(body).encode())
    (error,) = problem(response, "invalid").errors
    assert error.rule == rule, response.text
    assert error.pointer.startswith(f"/payload{pointer}")
    found = api.ok("GET", f"/v1/sessions/{session}/rounds/{number}", "ada")
    assert not any(site["answered"] for site in found["sites"])
