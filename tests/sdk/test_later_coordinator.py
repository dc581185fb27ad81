"""A coordinator of a later version: each answer has more fields, and states have other values.

It is a real coordinator; what it answers is changed on the way to the SDK.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from fedclust import Client, Site, errors, simulate
from fedclust.client.http import ConnectionOptions, Http
from fedclust.result.session_result import SessionResult
from fedclust.site.progress import SessionStatus
from fedclust.wire import codec
from fedclust.wire.submissions import JSON
from support.fake_coordinator import FakeCoordinator, answer
from support.local_coordinator import LocalCoordinator, local_coordinator
from support.purpose import PURPOSE
from support.site_rows import breast_cancer

Z = {"name": "z", "role": "outcome", "kind": "ordered", "edges": [0, 1]}
FEATURES = [{"name": "x"}, {"name": "y"}, Z]
#: A session's definition and a site's task have a hash; the others are maps, whose keys are data.
KEPT = {"definition", "common", "site", "config_schema", "config"}
KEPT |= {"all_equal", "site_sizes", "columns", "mapping", "extra", "soft", "metrics", "platform"}
BY_SITE = {"sites", "by_site", "tables", "cluster_names"}
#: States by the field that they are in. A client cannot do without `work` and the ends.
LATER = {
    "state": {
        "recruiting": "held",
        "running": "held",
        "collecting": "held",
        "closed": "sealed",
        "invited": "asked",
        "joined": "refused",
    },
    "session_state": {"recruiting": "held", "running": "held"},
    "status": {"invited": "asked", "waiting": "resting", "answered": "resting"},
}


class LaterAnswers(httpx.BaseTransport):
    """Changes every answer; each task is first withheld in a status that nobody knows."""

    def __init__(self) -> None:
        self._inner = httpx.HTTPTransport(trust_env=False)
        self._held: set[str] = set()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        reply = self._inner.handle_request(request)
        body = reply.read()
        media = reply.headers.get("Content-Type", "").split(";")[0]
        if media == codec.CONTENT_TYPE:
            body = codec.encode(self._tree(codec.decode(body), reply))
        elif media.endswith("json"):
            body = json.dumps(self._tree(json.loads(body), reply)).encode()
        kept = {k: v for k, v in reply.headers.items() if k not in ("content-length", "date")}
        return httpx.Response(reply.status_code, headers=kept, stream=httpx.ByteStream(body))

    def _tree(self, found: Any, reply: httpx.Response) -> Any:
        later = _later(found)
        if later.get("status") == "work" and reply.headers["ETag"] not in self._held:
            self._held.add(reply.headers["ETag"])
            reply.headers["ETag"] = '"held"'
            later["status"] = "held"
        return later

    def close(self) -> None:
        self._inner.close()


def _later(found: Any) -> Any:
    """Return a tree with another field in every object, and later states."""
    if isinstance(found, dict):
        more = {name: _part(name, part) for name, part in found.items()}
        for name in more.keys() & LATER.keys():
            more[name] = LATER[name].get(more[name], more[name])
        return {**more, "since_later": {"whole": 1, "text": "x"}}
    if isinstance(found, list | tuple):
        return type(found)(map(_later, found))
    return found


def _part(name: str, part: Any) -> Any:
    if isinstance(part, dict) and name in KEPT:
        return part
    if isinstance(part, dict) and name in BY_SITE:
        return {site: _later(each) for site, each in part.items()}
    return _later(part)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCoordinator]:
    with local_coordinator(tmp_path_factory.mktemp("later"), threads=True) as local:
        yield local


def http(local: LocalCoordinator, token: str) -> Http:
    return Http(local.base_url, token, ConnectionOptions(), transport=LaterAnswers())


def client(local: LocalCoordinator, token: str) -> Client:
    return Client("", http=http(local, token))


def test_the_sdk_joins_computes_and_reads_the_result(
    local: LocalCoordinator, tmp_path: Path
) -> None:
    rows = {name: X[:60, : len(FEATURES)] for name, X in breast_cancer().items()}
    operator = client(local, local.operator_token)
    for name in rows:
        operator.add("sites", name)
    operator.add("analysts", "ada")
    tokens = {name: operator.issue_token("sites", name).token for name in rows}
    analyst = client(local, operator.issue_token("analysts", "ada").token)
    study = {"name": "hearts", "purpose": PURPOSE, "sites": list(rows), "features": FEATURES}
    analyst.create_study({**study, "defaults": {"policy": {"max_rounds": 3}}})
    config = {"n_clusters": [2, 3]}
    asked = {"name": "heart", "study": "hearts", "algorithm": "lloyd", "config": config, "seed": 7}
    asked["outcomes_k"] = 2
    assert analyst.create_session(asked).state == "held"

    def take_part(name: str) -> tuple[SessionResult, SessionStatus]:
        place = tmp_path / name
        with Site(http=http(local, tokens[name]), state_dir=place, progress=False) as site:
            result = site.participate("heart", rows[name], consent=True)
            return result, *site.status()

    with ThreadPoolExecutor(len(rows)) as pool:
        took_part = dict(zip(rows, pool.map(take_part, rows), strict=True))
    options = {"policy": {"max_rounds": 3}, "features": FEATURES, "seed": 7, "outcomes_k": 2}
    expected = simulate("lloyd", rows, config=config, **options)
    for name, (result, status) in took_part.items():
        np.testing.assert_array_equal(result.labels_, expected.labels_[name])
        assert (status.state, status.site_state) == ("completed", "refused")

    found = analyst.result("heart")
    np.testing.assert_array_equal(found.cluster_centers_, expected.cluster_centers_)
    found.save(tmp_path / "heart.fedclust")
    again = SessionResult.load(tmp_path / "heart.fedclust")
    assert codec.encode(codec.to_tree(again.result)) == codec.encode(codec.to_tree(found.result))
    assert {each.state for each in analyst.rounds("heart")} == {"sealed"}
    assert {each.state for each in analyst.sessions()[0].sites} == {"refused"}
    assert [each.name for each in analyst.studies()] == ["hearts"]
    assert analyst.study("hearts").features == analyst.session("heart").definition.features
    assert "lloyd" in {each.name for each in analyst.algorithms()}
    assert all(each.standing is not None for each in operator.session("heart").sites)
    assert {each.name for each in operator.principals("sites")} == set(rows)


def test_a_definition_of_a_later_version_is_listed_and_not_joined(tmp_path: Path) -> None:
    fake = FakeCoordinator({"alpha": np.ones((9, 2)), "beta": np.ones((9, 2))})

    def add_a_rule(request: httpx.Request) -> httpx.Response | None:
        if not request.url.path.startswith("/v1/sessions"):
            return None
        info = fake._info().model_dump(mode="json")
        info["definition"]["policy"]["later_rule"] = True
        info["definition_sha256"] = codec.sha256(codec.canonical_json(info["definition"]))
        listed = request.url.path.endswith("/sessions")
        return answer(200, codec.to_json({"items": [info]} if listed else info), JSON)

    fake.before = add_a_rule
    site = fake.site(tmp_path)
    (status,) = site.status()
    assert status.state == "recruiting"
    with pytest.raises(errors.ProtocolError, match="pip install --upgrade fedclust"):
        site.participate("heart", np.ones((9, 2)), consent=True)
    assert fake.joined is None
