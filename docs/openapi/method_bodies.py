"""The bodies in ``examples/``, taken from real sessions over real HTTP.

Three sites with seeded rows run every method to its end, once with each of its variants that tests
try. Of each phase the first round's task, submission (JSON and binary), receipt and a problem are
kept, as ``north`` saw them; of each method's first session its definition and its result, and of
one how a site joins. Clock, rows, seed and, of the session with outcomes, the noise are fixed. What
differs between machines or runs is made the same (the platform, the audit head, request ids); last
bits of numbers, and hashes over them, may differ.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedclust import rounds
from fedclust.methods.registry import METHODS
from fedclust.rounds import outcomes
from fedclust.wire.submissions import (
    BINARY,
    JSON,
    read_submission,
    read_submission_head,
    write_submission,
)
from support.api_caller import FEATURES, ROWS, ApiCaller, rows_of
from support.clock import ManualClock
from support.local_coordinator import local_coordinator
from support.method_variants import TRIED

SITES = ("north", "south", "west")
SITE = "north"
#: Counted at the end of one session of one method: the round is the same for every method.
DIED = {"name": "died", "role": "outcome", "kind": "binary"}


def session_of(method: str, variant: int = 0) -> str:
    """Return the name of a method's session."""
    return f"{method.replace('_', '-')}-{2026 + variant}"


def record_methods(place: Path) -> dict[str, bytes]:
    """Run the sessions in a coordinator below ``place``; return file names and contents."""
    files: dict[str, bytes] = {}
    with local_coordinator(place, clock=ManualClock(), threads=True) as local:
        api = ApiCaller(local.base_url, local.operator_token)
        api.register("sites", *SITES)
        api.register("analysts", "ada")
        for method in METHODS:
            for variant, options in enumerate(TRIED[method].variants):
                made = _Session(api, method, session_of(method, variant), options).run()
                files = {**made, **files}
        # At a site nothing seeds noise. Here it is the same in every run.
        api.randbelow = random.Random(7).randrange  # noqa: S311
        api.data = {site: np.column_stack([rows_of(site), np.arange(ROWS) % 2]) for site in SITES}
        counted = _Session(api, "lloyd", "lloyd-outcomes", {}, features=[*FEATURES, DIED])
        return {**counted.run(), **files}


class _Session:
    """One session, and what is kept of it."""

    def __init__(
        self, api: ApiCaller, method: str, name: str, options: dict[str, Any], **more: Any
    ) -> None:
        self.api, self.method, self.name = api, method, name
        self.definition = {
            "algorithm": method,
            "config": {"n_clusters": 2, **options},
            "policy": {"max_rounds": TRIED[method].rounds},
            **more,
        }

    def run(self) -> dict[str, bytes]:
        api, name, method = self.api, self.name, self.method
        body = api.definition(name, list(SITES), **self.definition)
        files = {f"{method}/session.json": _text(body)}
        api.define("ada", name, list(SITES), **self.definition)
        # It differs by method in versions and hashes alone.
        if method == "lloyd":
            files[f"{method}/participation.json"] = _text(api.participation(SITE, name))
        for site in SITES:
            api.join(site, name)
        while (task := next(api.views(SITE, name)))["status"] == "work":
            # The first round of a phase is the one that is kept.
            files = {**self._round(task), **files}
        assert task["session_state"] == "completed", task
        result = api.ok("GET", f"/v1/sessions/{name}/result", "ada")
        provenance = result["provenance"]
        provenance["platform"] = dict.fromkeys(provenance["platform"], "example")
        provenance["audit_head"] = {"number": 60, "hash": "0" * 64}
        files[f"{method}/result.json"] = _text(result)
        return files

    def _round(self, task: dict[str, Any]) -> dict[str, bytes]:
        api, name = self.api, self.name
        number, phase = task["round"], task["task"]["phase"]
        body = api.answer(SITE, name)
        problem = api.put(SITE, name, number, _refused(body))
        assert problem.status_code == 422, problem.text
        receipt = api.put(SITE, name, number, body)
        assert receipt.status_code == 201, receipt.text
        etag = receipt.headers["Fedclust-Task-ETag"]
        for site in SITES[1:]:
            path = f"/v1/sessions/{name}/task"
            if api.ok("GET", path, site)["status"] != "work":
                continue  # A phase may be for some sites only.
            stored = api.put(site, name, number, api.answer(site, name))
            assert stored.status_code == 201, stored.text
        next(api.views(SITE, name, etag))
        folder = f"{self.method}/{phase}"
        return {
            f"{folder}/task.json": _text(task),
            f"{folder}/submission.json": body,
            f"{folder}/submission.msgpack": self._in_binary(body),
            f"{folder}/receipt.json": _text(receipt.json()),
            f"{folder}/problem.json": _text({**problem.json(), "request_id": "0" * 16}),
        }

    def _in_binary(self, body: bytes) -> bytes:
        head = read_submission_head(body, JSON)
        _, payload = read_submission(rounds.phase(METHODS[self.method], head.phase), body, JSON)
        return write_submission(head.phase, head.task_digest, payload, BINARY)


def _refused(body: bytes) -> bytes:
    """Return an answer with a negative count, half a person, or too many."""
    answer = json.loads(body)
    if answer["phase"] == outcomes.NAME:
        answer["payload"]["cells"][0][0][0] = 1_000
    for counts in _counts_in(answer["payload"]):
        counts[0] = -1 if isinstance(counts[0], int) else counts[0] + 0.5
    return json.dumps(answer).encode()


def _counts_in(payload: Any) -> Iterator[list[float]]:
    """Yield the first row of every field of an answer that adds up to persons."""
    if isinstance(payload, list):
        for part in payload:
            yield from _counts_in(part)
    elif isinstance(payload, dict):
        for name, value in payload.items():
            counts = value if name in ("counts", "observed", "models", "totals") else None
            while counts and isinstance(counts[0], list):
                counts = counts[0]
            yield from [counts] if counts else _counts_in(value)


def _text(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
