"""A whole site of `lloyd` from what docs/protocol.md says, "What a site computes" above all.

It imports nothing of the program, its arithmetic, guard and digests are its own, and it speaks JSON
but for the tasks. `HandmadeSite` shares the SDK's local step; this one shows that nobody has to.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
from numpy.typing import NDArray

from support.patience import PATIENCE_S

_BINARY = "application/vnd.fedclust.v1+msgpack"
_BANDS = ((50, "<50"), (200, "50-199"), (1_000, "200-999"))
FloatArray = NDArray[np.float64]
IntVector = NDArray[np.int64]


class PageSite:
    """One site in one session; ``rows`` (n, d) in own units, NaN where a value is missing.

    Attributes
    ----------
    partitions : list of (str, (n,) int64)
        What it sent of which round: the cell of each row.
    bodies : list of dict
        What it sent, in order.
    """

    def __init__(self, url: str, token: str, session: str, rows: FloatArray, journal: Path) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(
            base_url=url, headers=headers, timeout=PATIENCE_S, trust_env=False
        )
        self._at, self._journal, self._etag = f"/v1/sessions/{session}", journal, ""
        told = self._http.get(self._at).raise_for_status().json()
        self.definition = told["definition"]
        text = json.dumps(
            self.definition, sort_keys=True, ensure_ascii=False, separators=(",", ":")
        )
        self._hash = hashlib.sha256(text.encode()).hexdigest()
        assert self._hash == told["definition_sha256"]
        features, policy = self.definition["features"], self.definition["policy"]
        self._yesno = np.array([feature["kind"] == "binary" for feature in features])
        self._p = policy["min_group_size"]
        if policy["missing"] == "drop":
            rows = rows[~np.isnan(rows).any(axis=1)]
        self.rows = rows
        self._band = next((name for end, name in _BANDS if len(rows) < end), "1000-4999")
        self.blocks: IntVector = np.zeros(len(rows), dtype=np.int64)
        self.partitions: list[tuple[str, IntVector]] = []
        self.bodies: list[dict[str, Any]] = []

    def join(self) -> None:
        body = {
            "definition_sha256": self._hash,
            "features": [feature["name"] for feature in self.definition["features"]],
            "size_band": self._band,
            "sdk_version": "of the page",
            "methods": {"lloyd": [3]},
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
            told = msgpack.packb({"common": task["common"], "site": task["site"]})
            assert hashlib.sha256(told).hexdigest() == task["digest"]
            self._submit(view["round"], task)
        return str(view["status"])

    def _submit(self, number: int, task: dict[str, Any]) -> None:
        common, part = _arrays(task["common"]), task["site"]
        payload = self._answer(number, common, part or {"totals": False})
        body = {"phase": common["phase"], "task_digest": task["digest"], "payload": payload}
        self.bodies.append(body)
        sent = json.dumps(body, default=np.ndarray.tolist).encode()
        self._journal.write_bytes(sent)
        receipts = [self._put(number, self._journal.read_bytes()) for _ in range(2)]
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
        return _nearest(self._scaled(space), np.array(result["centroids"]))

    def close(self) -> None:
        self._http.close()

    # --- what a site computes ---------------------------------------------------------------------

    def _answer(self, number: int, common: dict[str, Any], part: dict[str, Any]) -> Any:
        asked, n, d = common["parameters"], *self.rows.shape
        if common["phase"] == "prepare":
            return self._moments()
        space = common["space"]
        X, yesno = self._scaled(space), self._yesno
        persons = self._persons(X, np.arange(n))
        if persons < self._p:
            return None
        totals = None
        if part["totals"]:
            n, mean, m2 = self._cell(X, space)
            totals = {"n": n, "mean": mean, "m2": m2}
        if common["phase"] == "cells":
            wanted = _kmeans(X, min(asked["n_clusters"], persons // self._p))
            n_cells, centroids = asked["n_clusters"], np.zeros((0, d))
        else:
            centroids = asked["centroids"]
            wanted, n_cells = _nearest(X, centroids), len(centroids)
        placed = self._settled(X, wanted)
        self.partitions.append((f"round {number}, lloyd", placed))
        cells = [self._cell(X[placed == k], space) for k in range(n_cells)]
        counts = np.array([cell[0] for cell in cells])
        means, m2 = np.array([cell[1] for cell in cells]), np.array([cell[2] for cell in cells])
        if common["phase"] == "cells":
            return {"counts": counts, "means": means, "totals": totals}
        costs = (m2 + counts[:, None] * (means - centroids) ** 2).sum(axis=1) * (counts > 0)
        if common["phase"] == "lloyd":
            sums = means * counts[:, None]
            return {"counts": counts, "sums": sums, "costs": costs, "totals": totals}
        rows = np.where(yesno, means[placed], X)
        more = (m2 / np.maximum(counts, 1)[:, None] * yesno).sum(axis=1)[placed]
        apart = ((rows[:, None] - centroids) ** 2).sum(axis=2) + more[:, None]
        a = np.sqrt(apart[np.arange(n), placed])
        apart[np.arange(n), placed] = np.inf
        b = np.sqrt(apart.min(axis=1))
        terms = (b - a) / np.maximum(a, b)
        return {
            "counts": counts,
            "costs": costs,
            "distances": np.bincount(placed, a, n_cells),
            "silhouettes": np.bincount(placed, terms, n_cells),
            "means": means,
            "m2": m2 * (yesno | self._differ(X, placed)),
        }

    def _differ(self, X: FloatArray, placed: IntVector) -> bool:
        """Return whether each cell has more than p values of each number: its m2 may be told."""
        seen = ~np.isnan(self.rows)
        return self._p > 2 and all(
            len(np.unique(X[seen[:, j] & (placed == k), j])) > self._p
            for j in np.flatnonzero(~self._yesno)
            for k in np.unique(placed)
        )

    def _moments(self) -> dict[str, Any]:
        seen = ~np.isnan(self.rows)
        columns = [self.rows[seen[:, j], j][:, None] for j in range(seen.shape[1])]
        own = {"center": np.zeros(1), "scale": np.ones(1)}
        told = [self._cell(c, own, self._yesno[j : j + 1]) for j, c in enumerate(columns)]
        return {
            "n": len(self.rows),
            "observed": np.array([n for n, _, _ in told]),
            "mean": np.array([mean[0] for _, mean, _ in told]),
            "m2": np.array([m2[0] for _, _, m2 in told]),
        }

    def _scaled(self, space: dict[str, Any]) -> FloatArray:
        rows = self.rows
        if space["impute"] is not None:
            rows = np.where(np.isnan(rows), space["impute"], rows)
        return np.asarray((rows - space["center"]) / space["scale"])

    def _cell(
        self, X: FloatArray, space: dict[str, Any], yesno: NDArray[np.bool_] | None = None
    ) -> tuple[int, FloatArray, FloatArray]:
        """Return the number, mean and m2 of rows, shares rounded."""
        n, p = len(X), self._p
        if n == 0:
            return 0, np.zeros(X.shape[1]), np.zeros(X.shape[1])
        mean, center, scale = X.mean(axis=0), space["center"], space["scale"]
        m2 = ((X - mean) ** 2).sum(axis=0)
        share = np.clip(np.round((mean * scale + center) * n / p) * p / n, 0.0, 1.0)
        yesno = self._yesno if yesno is None else yesno
        mean = np.where(yesno, (share - center) / scale, mean)
        return n, mean, np.where(yesno, n * share * (1.0 - share) / np.square(scale), m2)

    def _persons(self, X: FloatArray, rows: IntVector) -> int:
        """Return the persons in a set of rows: the fewest for any feature."""
        seen = ~np.isnan(self.rows[rows])
        sets = [rows[seen[:, j]] for j in range(seen.shape[1])]
        return min(min(len(s), 1 + len(s) * bool((X[s] != X[s[:1]]).any())) for s in sets)

    def _settled(self, X: FloatArray, wanted: IntVector) -> IntVector:
        """Return the cell of each row by the rule of blocks, and remember the new ones."""
        placed, blocks = wanted.copy(), np.empty_like(wanted)
        fresh = 0
        for block in np.unique(self.blocks):
            rows = np.flatnonzero(self.blocks == block)
            sizes = {
                int(cell): self._persons(X, rows[wanted[rows] == cell])
                for cell in np.unique(wanted[rows])
            }
            largest = max(sizes, key=lambda cell: (sizes[cell], -cell))
            for cell, size in sizes.items():
                if size < self._p:
                    placed[rows[wanted[rows] == cell]] = largest
            for cell in np.unique(placed[rows]):
                blocks[rows[placed[rows] == cell]] = fresh
                fresh += 1
        self.blocks = blocks
        return placed


def _arrays(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == {"data", "dtype", "shape"}:
        return np.frombuffer(tree["data"], "<f8" if tree["dtype"] == "float64" else "<i8").reshape(
            tree["shape"]
        )
    return {name: _arrays(value) for name, value in tree.items()}


def _nearest(X: FloatArray, centroids: FloatArray) -> IntVector:
    return np.asarray(((X[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1))


def _kmeans(X: FloatArray, k: int) -> IntVector:
    """Return the cells of k-means from the farthest row, and from the farthest of these, ..."""
    centroids = X[[int(((X - X.mean(axis=0)) ** 2).sum(axis=1).argmax())]]
    while len(centroids) < k:
        apart = ((X[:, None] - centroids) ** 2).sum(axis=2).min(axis=1)
        centroids = np.vstack([centroids, X[apart.argmax()]])
    for _ in range(20):
        labels = _nearest(X, centroids)
        centroids = np.array(
            [X[labels == c].mean(axis=0) if (labels == c).any() else centroids[c] for c in range(k)]
        )
    return labels
