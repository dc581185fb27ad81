"""A populated coordinator, spoken to over plain HTTP: what the SDK would send, without the SDK.

api = ApiCaller.found(coordinator, ("north", "south", "west"))      # and the analyst ada
api.define("ada", "heart", ["north", "south", "west"])
for site in ("north", "south", "west"): api.join(site, "heart")
body = api.answer("north", "heart")           # the honest answer to the open task
api.put("north", "heart", 1, body)
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from fedclust import __version__, rounds
from fedclust.definition import plan_of, read_definition
from fedclust.methods.registry import METHODS
from fedclust.protection.outcome_counts import RandBelow
from fedclust.schema.size_bands import size_band
from fedclust.wire import codec
from fedclust.wire.submissions import BINARY, JSON, write_submission
from support.definitions import session_body
from support.driven import count_of, data_of
from support.purpose import PURPOSE
from support.reader import NOBODY, Reader
from support.timeouts import TIMEOUT_S

FEATURES = [
    {"name": "age", "unit": "years", "lower": 0.0, "upper": 120.0},
    {"name": "chol", "unit": "mg/dl", "lower": 0.0, "upper": 1000.0},
]
ROWS = 60


@dataclass
class ApiCaller:
    """People at a coordinator and their tokens, ``operator`` among them.

    ``data`` where not ``rows_of`` is meant.

    ``randbelow`` draws the noise of outcomes.
    """

    base_url: str
    operator: str
    tokens: dict[str, str] = field(default_factory=dict)
    memories: dict[tuple[str, str], Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    data: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    randbelow: RandBelow = secrets.randbelow

    def __post_init__(self) -> None:
        self.tokens.setdefault("operator", self.operator)

    @classmethod
    def found(cls, at: Any, sites: Iterable[str], *analysts: str) -> ApiCaller:
        """Return the caller at a coordinator after it has registered these people."""
        api = cls(at.base_url, at.operator_token)
        api.register("sites", *sites)
        api.register("analysts", *(analysts or ("ada",)))
        return api

    def request(
        self, method: str, path: str, token: str | None = None, **keywords: Any
    ) -> httpx.Response:
        """Send one request; ``token`` is a token, or the name of somebody registered."""
        headers = dict(keywords.pop("headers", None) or {})
        if token is not None:
            headers["Authorization"] = f"Bearer {self.tokens.get(token, token)}"
        return self._client.request(method, path, headers=headers, **keywords)

    @cached_property
    def _client(self) -> httpx.Client:
        options = {"timeout": TIMEOUT_S, "trust_env": False, "verify": NOBODY, **self.options}
        return httpx.Client(base_url=self.base_url, **options)

    def ok(self, method: str, path: str, token: str, **keywords: Any) -> Any:
        """As :meth:`request`; AssertionError unless 2xx. Returns the JSON, or None."""
        response = self.request(method, path, token, **keywords)
        assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
        return response.json() if response.content else None

    def reader(self, name: str) -> Reader:
        """Return somebody who has signed in to the pages; ``name`` as in :meth:`request`."""
        return Reader(self.base_url, self.tokens.get(name, name))

    def register(self, kind: str, *names: str) -> None:
        """Register sites or analysts with a token each."""
        for name in names:
            self.ok("POST", f"/v1/{kind}", self.operator, json={"name": name})
            issued = self.ok("POST", f"/v1/{kind}/{name}/tokens", self.operator)
            self.tokens[name] = issued["token"]

    def definition(self, name: str, sites: list[str], /, **changes: Any) -> dict[str, Any]:
        """Return the body of a session of lloyd, K = 2."""
        policy = {"min_sites": min(3, len(sites)), "min_group_size": 5}
        policy |= changes.pop("policy", {})
        given = {"name": name, "algorithm": "lloyd", "sites": sites, "seed": 7, "policy": policy}
        return session_body(*FEATURES, **{**given, **changes})

    def define(self, owner: str, name: str, sites: list[str], **changes: Any) -> Any:
        """Create a session."""
        body = self.definition(name, sites, **changes)
        return self.ok("POST", "/v1/sessions", owner, json=body)

    def begin(self, owner: str, name: str, sites: Iterable[str], **changes: Any) -> None:
        """Create a session that all its sites join."""
        self.define(owner, name, list(sites), **changes)
        for site in sites:
            self.join(site, name)

    def study(self, owner: str, name: str, sites: list[str], **more: Any) -> Any:
        """Create a study."""
        body = {"name": name, "purpose": PURPOSE, "sites": sites, **more}
        return self.ok("POST", "/v1/studies", owner, json=body)

    def participation(self, site: str, session: str) -> dict[str, Any]:
        """Return what a site joins with."""
        info = self.ok("GET", f"/v1/sessions/{session}", site)
        return {
            "definition_sha256": info["definition_sha256"],
            "consents": {"protection_none": info["definition"]["policy"]["protection"] == "none"},
            "features": [feature["name"] for feature in info["definition"]["features"]],
            "size_band": size_band(len(self._rows(site))),
            "table_id": uuid.uuid5(uuid.NAMESPACE_DNS, site).hex,
            "heads": {"first": 1, "heads": [codec.sha256(site.encode())[:16]]},
            "sdk_version": __version__,
            "methods": {name: [method.version] for name, method in METHODS.items()},
            "engine": [rounds.VERSION],
        }

    def join(self, site: str, session: str, **changes: Any) -> Any:
        """Let a site join, with changes to what it joins with."""
        body = self.participation(site, session) | changes
        return self.ok("PUT", f"/v1/sessions/{session}/participation", site, json=body)

    def task(self, site: str, session: str, media: str = BINARY) -> Any:
        """Return what a site is asked, decoded."""
        headers = {"Accept": media}
        response = self.request("GET", f"/v1/sessions/{session}/task", site, headers=headers)
        assert response.status_code == 200, response.text
        return codec.decode(response.content) if media == BINARY else response.json()

    def views(self, site: str, session: str, etag: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield what a site should do, and again after each change, however long it takes.

        With an ``etag`` the first view is the next one that differs from it.
        """
        while True:
            headers = {"If-None-Match": etag} if etag else {}
            path = f"/v1/sessions/{session}/task?wait=25"
            response = self.request("GET", path, site, headers=headers)
            etag = response.headers.get("ETag")
            if response.status_code != 304:
                assert response.status_code == 200, response.text
                yield dict(response.json())

    def answer(self, site: str, session: str, media: str = JSON) -> bytes:
        """Return the honest answer of a site to its open task; both in ``media``."""
        task = self.task(site, session, media)["task"]
        info = self.request("GET", f"/v1/sessions/{session}", site)
        plan = plan_of(read_definition(codec.canonical_json(info.json()["definition"])))
        number, phase = task["common"]["round"], task["phase"]
        common, part = task["common"], task["site"]
        if media == JSON:
            common, part = _from_json(rounds.phase(plan, phase), common, part)
        assert codec.task_digest(common, part) == task["digest"]
        payload, memory = rounds.local_step(
            plan,
            rounds.read_task(plan, common, part),
            data_of(plan, self._rows(site)),
            site=site,
            round_number=number,
            p=plan.policy.min_group_size,
            size_band=size_band(len(self._rows(site))),
            memory=self.memories.get((site, session), {}),
            count=count_of(plan, self._rows(site), site, self.randbelow),
        )
        self.memories[site, session] = memory
        return write_submission(phase, task["digest"], payload, media)

    def put(
        self, site: str, session: str, number: int, body: bytes, media: str = JSON, **headers: str
    ) -> httpx.Response:
        """Send a submission."""
        path = f"/v1/sessions/{session}/rounds/{number}/submission"
        return self.request(
            "PUT", path, site, content=body, headers={"Content-Type": media, **headers}
        )

    def send(self, session: str, *sites: str, number: int = 1) -> None:
        """Send the honest answers of sites to a round."""
        for site in sites:
            stored = self.put(site, session, number, self.answer(site, session))
            assert stored.status_code == 201, stored.text

    def finish(
        self,
        session: str,
        sites: Sequence[str],
        media: str = JSON,
        rng: np.random.Generator | None = None,
    ) -> str:
        """Answer honestly as these sites until the session has ended; return its state.

        They answer in the order given, or in each round in one that ``rng`` draws.
        """
        etags: dict[str, str] = {}
        while True:
            for site in sites if rng is None else rng.permutation(sites).tolist():
                headers = {"If-None-Match": etags[site]} if site in etags else {}
                path = f"/v1/sessions/{session}/task?wait=25"
                response = self.request("GET", path, site, headers=headers)
                if response.status_code == 304:
                    continue
                assert response.status_code == 200, response.text
                view, etags[site] = response.json(), response.headers["ETag"]
                if view["status"] == "ended":
                    return str(view["session_state"])
                if view["status"] == "work":
                    body = self.answer(site, session, media)
                    stored = self.put(site, session, view["round"], body, media)
                    assert stored.status_code == 201, stored.text
                    if (known := stored.headers.get("Fedclust-Task-ETag")) is not None:
                        etags[site] = known

    def _rows(self, site: str) -> NDArray[np.float64]:
        return self.data[site] if site in self.data else rows_of(site)


def _from_json(phase: Any, common: dict[str, Any], part: Any) -> tuple[dict[str, Any], Any]:
    """Return a task that was read as JSON as the binary form gives it, with arrays."""
    parameters = phase.task.model_validate_json(json.dumps(common["parameters"]))
    space = common["space"] and {
        name: np.array(value, dtype=np.float64) if isinstance(value, list) else value
        for name, value in common["space"].items()
    }
    if part is not None:
        part = codec.to_tree(phase.site_part.model_validate_json(json.dumps(part)))
    return {**common, "parameters": codec.to_tree(parameters), "space": space}, part


def rows_of(site: str) -> NDArray[np.float64]:
    """Return a site's rows, the same every time; two groups apart from each other."""
    rng = np.random.default_rng(list(site.encode()))
    first = rng.normal([40.0, 180.0], [4.0, 12.0], (ROWS // 2, 2))
    second = rng.normal([70.0, 260.0], [4.0, 12.0], (ROWS - ROWS // 2, 2))
    return np.vstack([first, second])
