"""A site written from docs/protocol.md: JSON over a bare HTTP client, no SDK, no journal.

It shows that the page is complete, speaks the form that the SDK does not, and lets a test decide in
which order sites answer. Of fedclust it uses the local step and the models of payloads.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from fedclust import engine
from fedclust.definition import plan_of
from fedclust.protection.size_bands import size_band
from fedclust.wire.codec import task_digest, to_tree
from fedclust.wire.models import Definition
from fedclust.wire.submissions import JSON, write_submission
from support.api_caller import NOBODY
from support.rounds import data_of
from support.timeouts import TIMEOUT_S


class HandmadeSite:
    """One site in one session, a request at a time."""

    def __init__(
        self, url: str, token: str, name: str, session: str, X: NDArray[np.float64]
    ) -> None:
        self.name, self.X = name, X
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {token}"},
            timeout=TIMEOUT_S,
            trust_env=False,
            verify=NOBODY,
        )
        self._at = f"{url}/v1/sessions/{session}"
        found = self._http.get(self._at).raise_for_status().json()
        definition = Definition.model_validate_json(json.dumps(found["definition"]))
        self._plan = plan_of(definition)
        self._hash = found["definition_sha256"]
        self._band = size_band(len(X))
        self._memory: dict[str, Any] = {}
        self._etag: str | None = None

    def close(self) -> None:
        self._http.close()

    def join(self) -> None:
        method = self._plan.method
        body = {
            "definition_sha256": self._hash,
            "features": [feature.name for feature in self._plan.features],
            "size_band": self._band,
            "sdk_version": "handmade",
            "methods": {method.name: [method.version]},
        }
        self._http.put(f"{self._at}/participation", json=body).raise_for_status()

    def await_task(self) -> dict[str, Any]:
        """Return the task view once there is work, or the session has ended."""
        while True:
            headers = {} if self._etag is None else {"If-None-Match": self._etag}
            reply = self._http.get(f"{self._at}/task", params={"wait": 25}, headers=headers)
            if reply.status_code == 304:
                continue
            view: dict[str, Any] = reply.raise_for_status().json()
            self._etag = reply.headers["ETag"]
            if view["status"] in ("work", "ended"):
                return view

    def answer(self, view: dict[str, Any]) -> None:
        """Compute and submit the answer to a task, in JSON."""
        document = view["task"]
        phase = engine.phase(self._plan, document["phase"])
        parameters = phase.task.model_validate_json(json.dumps(document["common"]["parameters"]))
        common = {
            **document["common"],
            "parameters": to_tree(parameters),
            "space": _arrays(document["common"]["space"]),
        }
        part = document["site"]
        if part is not None:
            assert phase.site_part is not None
            part = to_tree(phase.site_part.model_validate_json(json.dumps(part)))
        assert task_digest(common, part) == document["digest"]
        payload, self._memory = engine.local_step(
            self._plan,
            engine.read_task(self._plan, common, part),
            data_of(self._plan, self.X),
            site=self.name,
            round_number=view["round"],
            p=self._plan.policy.min_group_size,
            size_band=self._band,
            memory=self._memory,
        )
        body = write_submission(phase.name, document["digest"], payload, JSON)
        url = f"{self._at}/rounds/{view['round']}/submission"
        reply = self._http.put(url, content=body, headers={"Content-Type": JSON})
        assert reply.status_code == 201, reply.text
        self._etag = reply.headers.get("Fedclust-Task-ETag")


def _arrays(space: dict[str, Any] | None) -> dict[str, Any] | None:
    if space is None:
        return None
    return {
        name: np.array(value, dtype=np.float64) if isinstance(value, list) else value
        for name, value in space.items()
    }
