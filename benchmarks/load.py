"""The cost of a submission for the coordinator: many sites at once, without the SDK.

One session of ``lloyd`` for each number of sites, K = 20 and d = 10, on SQLite and on PostgreSQL.
Sites are asyncio tasks over plain sockets: they join, poll their task and PUT a prepared body (only
the task's digest is inserted). The measurement starts with the session and ends with its last
submission: CPU of the server's process per submission, including the long polls, the aggregations
and the opening of rounds; the time of a PUT; submissions a second; the commits that stored
submissions (on SQLite each is one fsync); and on Linux the bytes that the server wrote to the disk.

``--base PATH`` runs the server of another checkout (with its own ``.venv``) in turns with this one
and prints the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
import numpy as np
import psutil
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from fedclust.wire import codec  # noqa: E402
from support.databases import PostgresServer  # noqa: E402
from support.server import ServerProcess  # noqa: E402

K, D = 20, 10
#: Rounds by the number of sites; few sites need more for a steady figure.
ROUNDS = {10: 30, 100: 5, 400: 3}
_DIGEST = "0" * 64
#: Behind each mean.
_ROWS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sites", type=int, nargs="+", default=list(ROUNDS))
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--base", type=Path, help="another checkout, to compare with")
    options = parser.parse_args()
    checkouts = {"now": ROOT} | ({"base": options.base} if options.base else {})
    rows = []
    for database in options.databases:
        found: dict[tuple[int, str], list[Load]] = {}
        with _servers(database, checkouts, max(options.sites)) as servers:
            for repeat in range(options.repeats):
                for sites in options.sites:
                    for name, server in servers.items():
                        load = asyncio.run(server.run(f"load-{sites}-{repeat}", sites))
                        found.setdefault((sites, name), []).append(load)
        for (sites, name), loads in found.items():
            row = _row(database, sites, name, loads)
            if options.base:
                cost = median(load.cpu_ms for load in found[sites, "base"])
                row["CPU / base"] = row["CPU ms"] / cost
            rows.append(row)
    write(
        "load",
        rows,
        note=(
            f"lloyd, {K} x {D}; per submission: CPU of the server's process, of it aggregating "
            "(wall), commits that store it, kB written to disk. PUT in ms. Medians of the sessions."
        ),
    )


@dataclass
class Load:
    """What one session took."""

    submissions: int
    seconds: float
    cpu_s: float
    aggregating_s: float
    commits: int
    written: int
    puts: list[float] = field(repr=False)

    @property
    def cpu_ms(self) -> float:
        return 1000 * self.cpu_s / self.submissions


def _row(database: str, sites: int, name: str, loads: list[Load]) -> dict[str, Any]:
    puts = [1000 * seconds for load in loads for seconds in load.puts]
    return {
        "database": database,
        "sites": sites,
        "server": name,
        "CPU ms": median(load.cpu_ms for load in loads),
        "aggregating ms": median(1000 * load.aggregating_s / load.submissions for load in loads),
        "PUT p50": median(puts),
        "PUT p99": quantiles(puts, n=100)[98],
        "a second": median(load.submissions / load.seconds for load in loads),
        "kB written": median(load.written / load.submissions / 1000 for load in loads),
        "commits": median(load.commits / load.submissions for load in loads),
    }


@contextmanager
def _servers(database: str, checkouts: dict[str, Path], sites: int) -> Iterator[dict[str, Server]]:
    postgres = PostgresServer(fsync=True) if database == "postgresql" else None
    running: list[Server] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            servers = {}
            for name, checkout in checkouts.items():
                address = postgres and postgres.url(postgres.create(migrated=False))
                server = Server(Path(folder) / name, checkout, address)
                running.append(server)
                server.register(sites)
                servers[name] = server
            yield servers
        finally:
            for server in running:
                server.process.kill()
            if postgres is not None:
                postgres.stop()


class Server:
    """The coordinator of a checkout, in a process of its own, and the sites registered there."""

    def __init__(self, folder: Path, checkout: Path, database: str | None) -> None:
        env = {"FEDCLUST_DATABASE_URL": database} if database else {}
        command = (str(checkout / ".venv" / "bin" / "fedclust-service"),)
        self.process = ServerProcess(folder / "data", env=env, command=command)
        folder.mkdir()
        self.process.start()
        assert self.process.process is not None
        self._watched = psutil.Process(self.process.process.pid)
        self._tokens: dict[str, str] = {}

    def register(self, sites: int) -> None:
        with self._operator() as operator:
            for number in range(sites):
                name = f"s{number:04}"
                _ok(operator.post("/v1/sites", json={"name": name}))
                issued = _ok(operator.post(f"/v1/sites/{name}/tokens"))
                self._tokens[name] = issued.json()["token"]

    def _operator(self) -> httpx.Client:
        head = {"Authorization": f"Bearer {self.process.operator_token}"}
        return httpx.Client(base_url=self.process.base_url, headers=head, timeout=60)

    async def run(self, session: str, sites: int) -> Load:
        """Run one session through and measure it."""
        rounds = ROUNDS.get(sites, 3)
        names = sorted(self._tokens)[:sites]
        with self._operator() as operator:
            body = _definition(session, names, rounds)
            info = _ok(operator.post("/v1/sessions", json=body)).json()
            joining = _joining(operator, info)
            everybody = [
                _Site(self.process.port, session, self._tokens[name], number, rounds)
                for number, name in enumerate(names)
            ]
            for site in everybody:
                await site.join(joining)
            before, counted = self._used(), _counted(operator)
            began = time.perf_counter()
            _ok(operator.post(f"/v1/sessions/{session}/start"))
            await asyncio.gather(*(site.take_part() for site in everybody))
            seconds = max(site.ended_at for site in everybody) - began
            cpu, written = (now - then for now, then in zip(self._used(), before, strict=True))
            aggregating, commits = (
                now - then for now, then in zip(_counted(operator), counted, strict=True)
            )
        for site in everybody:
            site.close()
        puts = [each for site in everybody for each in site.puts]
        assert len(puts) == rounds * sites
        return Load(len(puts), seconds, cpu, aggregating, int(commits), int(written), puts)

    def _used(self) -> tuple[float, float]:
        times, written = self._watched.cpu_times(), 0
        with suppress(AttributeError, psutil.AccessDenied):  # not everywhere
            written = self._watched.io_counters().write_bytes
        return times.user + times.system, written


def _ok(response: httpx.Response) -> httpx.Response:
    assert response.is_success, response.text
    return response


def _counted(operator: httpx.Client) -> tuple[float, float]:
    """Return the seconds that aggregations took, and the commits that stored submissions."""
    text = _ok(operator.get("/metrics")).text
    names = (
        r"fedclust_aggregation_seconds_sum\{.*\}",
        r'fedclust_store_calls_total\{transaction="submission.store"\}',
    )
    found = (re.findall(rf"^{name} (\S+)$", text, re.MULTILINE) for name in names)
    aggregating, commits = (sum(map(float, values)) for values in found)
    return aggregating, commits


def _definition(session: str, sites: list[str], rounds: int) -> dict[str, Any]:
    return {
        "name": session,
        "purpose": "What a benchmark measures on made-up rows.",
        "algorithm": "lloyd",
        "config": {
            "n_clusters": K,
            "start": "given",
            "centroids": _means(0).tolist(),
            "tol": 0,
            "evaluate": False,
        },
        "features": [{"name": f"x{i}", "lower": -100, "upper": 100} for i in range(D)],
        "sites": sites,
        "seed": 7,
        "start": "manual",
        "policy": {"scaling": "none", "missing": "drop", "max_rounds": rounds},
    }


def _joining(operator: httpx.Client, info: dict[str, Any]) -> bytes:
    spoken = _ok(operator.get("/v1/algorithms")).json()
    return codec.canonical_json(
        {
            "definition_sha256": info["definition_sha256"],
            "features": [f"x{i}" for i in range(D)],
            "size_band": "200-999",
            "sdk_version": "0",
            "methods": {each["name"]: [each["version"]] for each in spoken["items"]},
            "engine": [info["definition"]["engine_version"]],
        }
    )


def _means(seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(K, D))


class _Site:
    """A site over a socket of its own; it computes nothing."""

    def __init__(self, port: int, session: str, token: str, number: int, rounds: int) -> None:
        self._port, self._path = port, f"/v1/sessions/{session}"
        self._head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        means = _means(number)
        self._bodies = [
            codec.encode(
                {
                    "phase": "lloyd",
                    "task_digest": _DIGEST,
                    "payload": {
                        "counts": np.full(K, _ROWS),
                        "sums": _ROWS * means,
                        # Falling, so that no session ends before its last round.
                        "costs": np.full(K, 1e4 * 0.99**i),
                    },
                }
            )
            for i in range(rounds)
        ]
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.puts: list[float] = []
        self.ended_at = 0.0

    async def join(self, body: bytes) -> None:
        kind = "application/json"
        status, _, answer = await self._ask("PUT", "/participation", body, kind)
        assert status == 201, answer

    async def take_part(self) -> None:
        etag = None
        while True:
            known = f"If-None-Match: {etag}\r\n" if etag else ""
            status, headers, body = await self._ask("GET", "/task?wait=25", more=known)
            if status == 304:
                continue
            assert status == 200, body
            view: Any = codec.decode(body)
            if view["status"] == "ended":
                assert view["session_state"] == "completed"
                return
            etag = headers["etag"]
            if view["status"] == "work":
                etag = await self._answer(view["round"], view["task"]["digest"])

    async def _answer(self, number: int, digest: str) -> str | None:
        body = self._bodies[number - 1].replace(_DIGEST.encode(), digest.encode())
        path, began = f"/rounds/{number}/submission", time.perf_counter()
        status, headers, answer = await self._ask("PUT", path, body, codec.CONTENT_TYPE)
        self.ended_at = time.perf_counter()
        assert status == 201, answer
        self.puts.append(self.ended_at - began)
        return headers.get("fedclust-task-etag")

    async def _ask(
        self, method: str, path: str, body: bytes = b"", kind: str = "", more: str = ""
    ) -> tuple[int, dict[str, str], bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        if body:
            more += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._head}"
        head += f"Accept: {codec.CONTENT_TYPE}\r\n{more}\r\n"
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines[1:] if line)
        headers = {name.lower(): value for name, value in pairs}
        answer = await reader.readexactly(int(headers.get("content-length", "0")))
        return int(lines[0].split(" ")[1]), headers, answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


if __name__ == "__main__":
    main()
