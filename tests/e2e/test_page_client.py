"""Sites written from ``docs/protocol.md`` alone: they finish sessions."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust import simulate
from support.api_caller import ApiCaller
from support.reference_table import find_parts, release_column, within_share
from support.server import running_server
from support.timeouts import TIMEOUT_S

SITES = ["lima", "oslo", "rome"]
FEATURES: list[dict[str, Any]] = [
    {"name": "age", "unit": "years", "lower": 0.0, "upper": 120.0},
    {"name": "chol", "unit": "mg/dl", "lower": 0.0, "upper": 1000.0},
    {"name": 'raucht "≥ 1"', "kind": "binary"},
]
P = 5
_BINARY = "application/vnd.fedclust.v1+msgpack"
_BANDS = ((50, "<50"), (200, "50-199"), (1_000, "200-999"))
FloatArray = NDArray[np.float64]
IntVector = NDArray[np.int64]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiCaller]:
    """Return a coordinator in a process of its own, with three sites and an analyst."""
    with running_server(tmp_path_factory.mktemp("page") / "coordinator") as server:
        yield ApiCaller.found(server, SITES)


def hospital(seed: int, holes: float) -> FloatArray:
    """Return rows (90, 3) of three groups that touch, some values missing."""
    rng = np.random.default_rng(seed)
    group = rng.integers(3, size=90)
    rows = np.array([[35.0, 190.0], [55.0, 260.0], [72.0, 205.0]])[group]
    rows = rows + rng.normal(0.0, [6.0, 18.0], (90, 2))
    yes = rng.random(90) < np.array([0.1, 0.5, 0.9])[group]
    rows = np.column_stack([rows, yes])
    rows[rng.random(rows.shape) < holes] = np.nan
    return rows


@pytest.mark.parametrize(
    ("name", "policy", "holes"),
    [
        ("standard", {}, 0.02),
        ("imputed", {"missing": "impute"}, 0.1),
        # No round of preparation.
        ("bounds", {"scaling": "bounds"}, 0.02),
    ],
)
def test_a_site_can_be_written_from_the_page(
    name: str, policy: dict[str, Any], holes: float, api: ApiCaller
) -> None:
    policy |= {"max_rounds": 12}
    config = {"n_clusters": 4, "tol": 1e-7}
    api.define("ada", name, SITES, features=FEATURES, config=config, policy=policy)
    sites = [
        PageSite(api.base_url, api.tokens[site], name, hospital(7 + i, holes))
        for i, site in enumerate(SITES)
    ]
    for site in sites:
        site.join()
    waiting = list(sites)
    while waiting:
        waiting = [site for site in waiting if site.turn() != "ended"]
    assert api.ok("GET", f"/v1/sessions/{name}", "ada")["state"] == "completed"

    result = api.ok("GET", f"/v1/sessions/{name}/result", "ada")["result"]
    scaled = [_scaled(site.rows, result) for site in sites]
    for site in sites:
        assert site.sizes.min() >= P
        assert len(site.bodies) >= 4
    # The groups are simple: what the clusters explain of the spread is most of what they explain
    # with the SDK at the sites.
    X, centroids = np.vstack(scaled), np.array(result["centroids"])
    whole = ~np.isnan(X).any(axis=1)
    X = X[whole]
    rows = {name: hospital(7 + i, holes) for i, name in enumerate(SITES)}
    theirs = simulate("lloyd", rows, config=config, policy=policy, features=FEATURES, seed=7)
    spread, best = (
        _cost(X, X.mean(axis=0)[None]),
        _cost(X, _scaled(theirs.cluster_centers_, result)),
    )
    assert spread - _cost(X, centroids) > 0.85 * (spread - best) > 0.4 * spread
    labels = np.concatenate([site.labels() for site in sites])[whole]
    assert np.array_equal(labels, _squares(X, centroids).argmin(axis=1))
    for site in sites:
        site.close()


def _squares(X: FloatArray, centroids: FloatArray) -> FloatArray:
    return np.asarray(((X[:, None] - centroids) ** 2).sum(axis=2))


def _cost(X: FloatArray, centroids: FloatArray) -> float:
    return float(_squares(X, centroids).min(axis=1).sum())


# --- the site, as the page describes it ----------------------------------------------------------


class PageSite:
    """One site in one session of `lloyd`; ``rows`` (n, d) in own units, NaN where missing.

    It uses nothing of the program: arithmetic and digests are its own, by "What a site computes" of
    the page, and so are the rules of the table. It sends JSON and reads tasks in binary.

    Attributes
    ----------
    points : (m, d) float64
        The records of its groups, NaN where a group does not release a column.
    sizes : (m,) int64
        The persons in each.
    bodies : list of dict
        What it sent, in order.
    """

    def __init__(self, url: str, token: str, session: str, rows: FloatArray) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False)
        self._at, self._etag = f"/v1/sessions/{session}", ""
        shown = self._http.get(self._at).raise_for_status().json()
        self.definition = shown["definition"]
        text = json.dumps(
            self.definition, sort_keys=True, ensure_ascii=False, separators=(",", ":")
        )
        self._hash = hashlib.sha256(text.encode()).hexdigest()
        assert self._hash == shown["definition_sha256"]
        features, policy = self.definition["features"], self.definition["policy"]
        self._yesno = np.array([feature["kind"] == "binary" for feature in features])
        self.rows = rows
        self.points, self.sizes, self._within = _table(rows, policy["min_group_size"])
        if policy["missing"] == "drop":
            whole = ~np.isnan(self.points).any(axis=1)
            self.points, self.sizes = self.points[whole], self.sizes[whole]
        n = int(self.sizes.sum())
        self._band = next((name for end, name in _BANDS if n < end), "1000-4999")
        self.bodies: list[dict[str, Any]] = []

    def join(self) -> None:
        body = {
            "definition_sha256": self._hash,
            "features": [feature["name"] for feature in self.definition["features"]],
            "size_band": self._band,
            "sdk_version": "of the page",
            "methods": {"lloyd": [4]},
            "engine": [10],
            "table_id": "5b0a0ad3f5f0443fbd2f3a4a8f6f7a3e",
            "heads": {"first": 1, "heads": ["9f86d081884c7d65"]},
        }
        assert self._http.put(f"{self._at}/participation", json=body).status_code == 201

    def turn(self) -> str:
        """Wait for something to do, and do it; return the task's status."""
        headers = {"Accept": _BINARY, "If-None-Match": self._etag}
        reply = self._http.get(f"{self._at}/task?wait=25", headers=headers)
        if reply.status_code == 304:
            return "waiting"
        self._etag = reply.raise_for_status().headers["ETag"]
        # What comes is canonical, and msgpack's own encoding keeps the order of keys.
        view = msgpack.unpackb(reply.content)
        if view["status"] == "work":
            task = view["task"]
            content = msgpack.packb({"common": task["common"], "site": task["site"]})
            assert hashlib.sha256(content).hexdigest() == task["digest"]
            self._submit(view["round"], task)
        return str(view["status"])

    def _submit(self, number: int, task: dict[str, Any]) -> None:
        common = _arrays(task["common"])
        payload = self._answer(common)
        body = {"phase": common["phase"], "task_digest": task["digest"], "payload": payload}
        self.bodies.append(body)
        sent = json.dumps(body, default=np.ndarray.tolist).encode()
        receipts = [self._put(number, sent) for _ in range(2)]
        assert [receipt.status_code for receipt in receipts] == [201, 200], receipts[0].text
        assert receipts[0].json() == receipts[1].json()
        assert receipts[0].json()["sha256"] == hashlib.sha256(sent).hexdigest()
        self._etag = receipts[1].headers.get("Fedclust-Task-ETag", "")

    def _put(self, number: int, content: bytes) -> httpx.Response:
        path = f"{self._at}/rounds/{number}/submission"
        return self._http.put(path, content=content, headers={"Content-Type": "application/json"})

    def labels(self) -> IntVector:
        """Return the cluster of each row, from the result."""
        result = self._http.get(f"{self._at}/result").raise_for_status().json()["result"]
        space = {name: result[name] for name in ("center", "scale", "impute")}
        return _nearest(_scaled(self.rows, space), np.array(result["centroids"]))

    def close(self) -> None:
        self._http.close()

    # --- what a site computes ---------------------------------------------------------------------

    def _answer(self, common: dict[str, Any]) -> Any:
        asked = common["parameters"]
        if common["phase"] == "prepare":
            return self._moments()
        X, sizes = _scaled(self.points, common["space"]), self.sizes
        if common["phase"] == "evidence":
            (asked,) = asked["parts"]
        if common["phase"] == "cells":
            k = asked["n_clusters"]
            labels = _kmeans(X, k)
        else:
            k, labels = len(asked["centroids"]), _nearest(X, asked["centroids"])
        counts = np.bincount(labels, sizes, k).astype(np.int64)
        sums = np.array([(X * sizes[:, None])[labels == c].sum(axis=0) for c in range(k)])
        means = sums / np.maximum(counts, 1)[:, None]
        if common["phase"] == "cells":
            return {"counts": counts, "means": means}
        apart = _squares(X, asked["centroids"])
        a = apart[np.arange(len(X)), labels]
        costs = np.bincount(labels, a * sizes, k)
        if common["phase"] == "lloyd":
            return {"counts": counts, "sums": sums, "costs": costs}
        apart[np.arange(len(X)), labels] = np.inf
        a, b = np.sqrt(a), np.sqrt(apart.min(axis=1))
        held = sizes[:, None] * ~np.isnan(self.points)
        valued = np.array([held[labels == c].sum(axis=0) for c in range(k)])
        means = np.array([(held * X)[labels == c].sum(axis=0) for c in range(k)])
        means /= np.maximum(valued, 1)
        spread = held * (X - means[labels]) ** 2
        between = np.average((X - np.average(X, 0, sizes)) ** 2, 0, sizes)
        most = np.array([max(sizes[own == value].sum() for value in own) for own in self.points.T])
        known = sizes @ ~np.isnan(self.points)
        measured = {
            "counts": counts,
            "points": np.bincount(labels, minlength=k),
            "costs": costs,
            "distances": np.bincount(labels, a * sizes, k),
            "silhouettes": np.bincount(labels, (b - a) / np.maximum(a, b) * sizes, k),
            "known": None if valued.sum() == held.shape[1] * sizes.sum() else valued,
            "means": means,
            "m2": np.array([spread[labels == c].sum(axis=0) for c in range(k)]),
            "within": self._within / (1.0 - self._within) * between,
            "constant": most == known,
            "typical": 2 * most >= known,
        }
        return {"parts": [measured]}

    def _moments(self) -> dict[str, Any]:
        seen = ~np.isnan(self.points)
        weights = self.sizes[:, None] * seen
        n = weights.sum(axis=0)
        X = np.where(seen, self.points, 0.0)
        mean = (weights * X).sum(axis=0) / n
        m2 = (weights * (X - mean) ** 2).sum(axis=0) / (1.0 - self._within)
        m2 = np.where(self._yesno, n * mean * (1.0 - mean), m2)
        return {"n": int(self.sizes.sum()), "observed": n, "mean": mean, "m2": m2}


def _table(rows: FloatArray, p: int) -> tuple[FloatArray, IntVector, FloatArray]:
    """Return the records (m, d) and sizes (m,) of groups, and the share (d,) of variance within.

    Persons with the same missing columns are halved along their most widely spread column, and the
    halves again.
    """
    parts = [np.array(part) for part in find_parts(np.isnan(rows).tolist(), p)]
    groups = [group for part in parts for group in _halved(_standard(rows), part, p)]
    sizes = np.array([len(group) for group in groups])
    columns = [[values[group].tolist() for group in groups] for values in rows.T]
    released = [release_column(column, p)[1] for column in columns]
    records = _standard(np.column_stack(released))
    apart = _squares(records, records)
    np.fill_diagonal(apart, np.inf)
    nearest = [*enumerate(apart.argmin(axis=1).tolist())]
    within = [within_share(column, sizes.tolist(), nearest) for column in released]
    return np.column_stack(released), sizes, np.array(within)


def _standard(X: FloatArray) -> FloatArray:
    return np.nan_to_num((X - np.nanmean(X, axis=0)) / np.nanstd(X, axis=0))


def _halved(X: FloatArray, members: IntVector, least: int) -> list[IntVector]:
    if len(members) < 2 * least:
        return [members] if len(members) else []
    widest = int(X[members].std(axis=0).argmax())
    ordered = members[np.argsort(X[members, widest], kind="stable")]
    halves = np.array_split(ordered, 2)
    return [group for half in halves for group in _halved(X, half, least)]


def _scaled(rows: FloatArray, space: dict[str, Any]) -> FloatArray:
    if space["impute"] is not None:
        rows = np.where(np.isnan(rows), space["impute"], rows)
    return np.asarray((rows - space["center"]) / space["scale"])


def _arrays(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_arrays(value) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == {"data", "dtype", "shape"}:
        return np.frombuffer(tree["data"], "<f8" if tree["dtype"] == "float64" else "<i8").reshape(
            tree["shape"]
        )
    return {name: _arrays(value) for name, value in tree.items()}


def _nearest(X: FloatArray, centroids: FloatArray) -> IntVector:
    return np.asarray(_squares(X, centroids).argmin(axis=1))


def _kmeans(X: FloatArray, k: int) -> IntVector:
    """Return the cells of k-means from the farthest row, and from the farthest of these, ..."""
    centroids = X[[int(((X - X.mean(axis=0)) ** 2).sum(axis=1).argmax())]]
    while len(centroids) < k:
        centroids = np.vstack([centroids, X[_squares(X, centroids).min(axis=1).argmax()]])
    for _ in range(20):
        labels = _nearest(X, centroids)
        centroids = np.array(
            [X[labels == c].mean(axis=0) if (labels == c).any() else centroids[c] for c in range(k)]
        )
    return labels
