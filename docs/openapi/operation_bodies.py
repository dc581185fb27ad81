"""Record one session over real HTTP, operation by operation: the examples of ``openapi.json``.

What differs between two runs is made the same: tokens, the platform, and the clock, which stands
still.
"""

import json
from pathlib import Path
from typing import Any

from fedclust_service.http.routes import api_routes
from support.api_caller import ApiCaller
from support.clock import ManualClock
from support.local_coordinator import local_coordinator

SITES = ("north", "south", "west")
SESSION = "heart-2026"
STUDY = "heart"
TOKEN_ID = "AAAAAAAAAAAA"
TABLE_ID = "5b0a0ad3f5f0443fbd2f3a4a8f6f7a3e"
SHOWN_TOKEN = f"fcs_{TOKEN_ID}_shown-once-and-never-again"
#: What no two machines or runs have alike.
MEASURED: dict[str, Any] = {
    "audit_head": {"number": 60, "hash": "0" * 64},
    "audit_unsealed": 0,
    "database_bytes": 524_288,
    "disk_free_bytes": 100_000_000_000,
    "python": "3.11.9",
}
_NAMES = {"sites": "north", "analysts": "ada", "operators": "grace"}
#: Bytes of bodies, to how many places: numbers have more or fewer digits on another processor.
PLACES = {"bytes_in": -3, "size": -2}


def definition() -> dict[str, Any]:
    """Return the body of the session."""
    return ApiCaller("", "").definition(SESSION, list(SITES))


def study() -> dict[str, Any]:
    """Return the body of the study."""
    body = definition()
    kept = ("purpose", "features", "sites")
    defaults = {"algorithm": body["algorithm"], "policy": body["policy"]}
    return {"name": STUDY, **{key: body[key] for key in kept}, "defaults": defaults}


def record_operations(place: Path) -> dict[str, Any]:
    """Run the session in a coordinator below ``place``; return bodies by operation."""
    with local_coordinator(place, clock=ManualClock(), threads=True) as local:
        api = ApiCaller(local.base_url, local.operator_token)
        return _Recorder(api).record()


class _Recorder:
    def __init__(self, api: ApiCaller) -> None:
        self.api = api
        self.bodies: dict[str, Any] = {}
        self._routes = {
            route.operation_id: (next(iter(route.methods or {"GET"})), route.path)
            for route in api_routes()
        }

    def record(self) -> dict[str, Any]:
        api = self.api
        api.register("sites", "south", "west")
        north = {"name": "north", "title": "North Hospital"}
        api.ok("POST", "/v1/sites", "operator", json=north)
        # A name that the README does not register: the example works after its first session.
        self._do("create_site", "operator", {"name": "vienna", "title": "Vienna Hospital"})
        api.tokens["north"] = self._do("issue_site_token", "operator", {"expires_in_days": 90})
        self._do("change_site", "operator", {"title": "Hospital of the North"})
        self._do("create_analyst", "operator", {"name": "ada"})
        api.tokens["ada"] = self._do("issue_analyst_token", "operator", {})
        self._do("change_analyst", "operator", {"title": "Ada"})
        self._do("create_operator", "operator", {"name": "grace", "title": "Grace"})
        self._do("issue_operator_token", "operator", {"expires_in_days": 30})
        self._do("change_operator", "operator", {"title": "Grace, on call"})
        self._do("create_study", "ada", study())
        self._do("create_session", "ada", definition())
        self._do("join_session", "north", api.participation("north", SESSION))
        for site in ("south", "west"):
            api.join(site, SESSION)
        accepted = {"number": 1, "head": "9f86d081884c7d65"}
        self._do("accept_site_table", "operator", accepted)
        self._do("start_session", "ada")
        self._do("retry_session", "operator")
        self._do("get_task", "north")
        self._do("change_session", "ada", {"deadline": "2026-01-05T12:00:00Z"})
        answer = json.loads(api.answer("north", SESSION))
        self._do("put_submission", "north", answer)
        for site in ("south", "west"):
            stored = api.put(site, SESSION, 1, api.answer(site, SESSION))
            assert stored.status_code == 201, stored.text
        assert api.finish(SESSION, SITES) == "completed"
        self._do("close_round", "ada")
        self._read_all()
        api.define("ada", "distrusted", list(SITES))
        for site in SITES:
            api.join(site, "distrusted")
        self._do("refuse_task", "north", {"rule": "task-rounds"}, session="distrusted")
        api.define("ada", "given-up", list(SITES))
        self._do("cancel_session", "ada", session="given-up")
        api.define("ada", "mistaken", list(SITES))
        self._do("delete_session", "ada", session="mistaken")
        self._do("delete_study", "ada")
        return dict(sorted(self.bodies.items()))

    def _read_all(self) -> None:
        """Record whatever else can be read."""
        for name, (method, path) in self._routes.items():
            if name in self.bodies or method != "GET" or path == "/metrics":
                continue
            self._do(name, "operator", query="?limit=1" if name.startswith("list_") else "")

    def _do(
        self,
        operation: str,
        caller: str,
        body: Any = None,
        query: str = "",
        session: str = SESSION,
    ) -> str:
        """Do an operation and record it; return the token that it issued, if any."""
        method, template = self._routes[operation]
        path = template.format(
            session=session,
            study=STUDY,
            number=1,
            name=next((name for kind, name in _NAMES.items() if f"/{kind}/" in template), ""),
            site="west",
            algorithm="lloyd",
            token_id=TOKEN_ID,
            table_id=TABLE_ID,
        )
        path += query
        keywords = {} if body is None else {"json": body}
        response = self.api.request(method, path, caller, **keywords)
        assert response.is_success, f"{operation}: {response.status_code} {response.text}"
        if not response.content:
            return ""
        answer = response.json()
        self.bodies[operation] = {"responses": {str(response.status_code): _same(answer)}}
        if body is not None:
            self.bodies[operation]["request"] = body
        return str(answer.get("token", ""))


def _same(value: Any, name: str = "") -> Any:
    """Return a value as every run gives it."""
    if name == "platform":
        return dict.fromkeys(value, "example")
    if name == "aggregation_s" and value is not None:
        return 0.25
    if name == "token":
        return SHOWN_TOKEN
    if name in MEASURED:
        return MEASURED[name]
    if name in PLACES:
        return round(value, PLACES[name])
    if name in {"id", "token_id"} and isinstance(value, str):
        return TOKEN_ID
    if isinstance(value, dict):
        if {"subject", "hash"} <= value.keys():  # sealed a moment after it is written
            value = {**value, "number": value["id"], "hash": "0" * 64}
        return {key: _same(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_same(item) for item in value]
    return value
