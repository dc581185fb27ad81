"""The effect of one flooding client on the other sites.

The coordinator runs in its own process with a soft limit of 1,024 file descriptors and the
machine's hard limit. Some floods run again with a hard limit of 1,024, so that the soft limit
cannot be raised. One process floods the coordinator while another site reads its task, each time
over a new connection, and answers a round of one session after another over a connection that it
keeps. A flooding client that is refused or disconnected comes back after a second, whatever
``Retry-After`` says.

The target: p99 of the other site at most 1 s, no failure, at most 100 kB of log. ``--beside DIR``
also measures the coordinator of another checkout (with its ``.venv``).
"""

import argparse
import asyncio
import contextlib
import http.client
import itertools
import json
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from fedclust.wire.submissions import JSON  # noqa: E402
from support.api_caller import ApiCaller  # noqa: E402
from support.processes import clean_environment  # noqa: E402
from support.server import lasting_port  # noqa: E402

SOFT = 1024
SECONDS = 5.0
#: Of the other site: a task read and a submission in each, as far as the answers keep up.
PER_SECOND = 10
#: A request that takes longer counts as failed.
TIMEOUT_S = 5.0
AGAIN_S = 1.0
SITES = ["north", "south", "west"]
#: name -> how many connections, and what each of them does
FLOODS: dict[str, tuple[int, str]] = {
    "none": (0, ""),
    "silent connections": (1100, "silent"),
    "half a request head": (1100, "half"),
    "long polls, one token": (1010, "poll"),
    "slow bodies, one token": (1010, "body"),
    "slow bodies, no token": (1010, "stranger"),
    "unread answers, no token": (1010, "unread"),
    "connection churn": (64, "churn"),
}
#: Those that run again with the lower hard limit.
TWICE = {"silent connections", "long polls, one token"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=Path, help="another checkout with the same methods")
    parser.add_argument("--only", help="floods whose name contains this")
    options = parser.parse_args()
    checkouts = [("this", ROOT)]
    if options.beside is not None:
        checkouts.append((options.beside.name, options.beside.resolve()))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows = []
    for flood, limit in itertools.product(FLOODS, (hard, SOFT)):
        if options.only and options.only not in flood:
            continue
        if limit == SOFT and flood not in TWICE:
            continue
        for name, checkout in checkouts:
            with tempfile.TemporaryDirectory() as folder:
                row = _measure(Path(folder), checkout, flood, limit)
            rows.append({"coordinator": name, "flood": flood, "hard limit": limit, **row})
    write(
        "floods",
        rows,
        note=(
            f"Soft limit {SOFT} descriptors. {SECONDS:g} s each; times of another site, a request "
            f"that takes longer than {TIMEOUT_S:g} s has failed. CPU and log of the coordinator "
            "from the flood's beginning. At most: p99 1000 ms, 0 failures, 100 kB."
        ),
    )


# --- the coordinator ------------------------------------------------------------------------------


@contextlib.contextmanager
def _serving(folder: Path, checkout: Path, hard: int) -> Iterator[tuple[ApiCaller, psutil.Process]]:
    log = folder / "log"
    command = [
        str(checkout / ".venv" / "bin" / "fedclust-service"),
        "serve",
        "--data-dir",
        str(folder / "data"),
        "--port",
        str(lasting_port()),
    ]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=clean_environment(),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, hard)),
        )
    try:
        give_up = time.monotonic() + 30
        while (said := re.search(r"^listening on (\S+)$", log.read_text("utf-8"), re.M)) is None:
            assert time.monotonic() < give_up, log.read_text("utf-8")
            time.sleep(0.02)
        operator = re.search(r"fco_\S+", log.read_text("utf-8"))
        assert operator is not None
        yield ApiCaller(said[1], operator[0]), psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


def _measure(folder: Path, checkout: Path, flood: str, hard: int) -> dict[str, Any]:
    connections, kind = FLOODS[flood]
    with _serving(folder, checkout, hard) as (api, coordinator):
        api.register("sites", *SITES, "flooder")
        api.register("analysts", "ada")
        sessions = [f"s{number}" for number in range(int(SECONDS * PER_SECOND))]
        for session in sessions:
            api.define("ada", session, SITES)
            for site in SITES:
                api.join(site, session)
        api.define("ada", "flooded", [*SITES, "flooder"])
        bodies = [(session, api.answer("north", session)) for session in sessions]
        log, cpu = (folder / "log").stat().st_size, sum(coordinator.cpu_times()[:2])
        with _flooding(api, connections, kind):
            times, failed = _other_site(api, bodies)
        cpu = sum(coordinator.cpu_times()[:2]) - cpu
        log = (folder / "log").stat().st_size - log
        return {
            "p50 ms": 1000 * _quantile(times, 0.5),
            "p99 ms": 1000 * _quantile(times, 0.99),
            "requests": len(times),
            "failed": failed,
            "CPU s": cpu,
            "log kB": log / 1000,
            "MiB": coordinator.memory_info().rss / 2**20,
        }


def _quantile(times: list[float], q: float) -> float:
    return sorted(times)[min(len(times) - 1, int(q * len(times)))]


# --- another site ---------------------------------------------------------------------------------


def _other_site(api: ApiCaller, bodies: list[tuple[str, bytes]]) -> tuple[list[float], int]:
    host = api.base_url.removeprefix("http://")
    headers = {"Authorization": f"Bearer {api.tokens['north']}"}
    kept = http.client.HTTPConnection(host, timeout=TIMEOUT_S)

    def read(session: str, _: bytes) -> int:
        fresh = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
        with contextlib.closing(fresh):
            return _status(fresh, "GET", f"/v1/sessions/{session}/task", None, headers)

    def submit(session: str, body: bytes) -> int:
        path = f"/v1/sessions/{session}/rounds/1/submission"
        media = {**headers, "Content-Type": JSON}
        try:
            return _status(kept, "PUT", path, body, media)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            kept.close()  # it was idle: the SDK opens another one at once, too
            return _status(kept, "PUT", path, body, media)

    times, failed = [], 0
    began = time.perf_counter()
    asked = [(step, *each) for each in bodies for step in (read, submit)]
    for number, (step, session, body) in enumerate(asked):
        at = time.perf_counter()
        if at - began > SECONDS:
            break
        try:
            good = step(session, body) in (200, 201)
        except OSError:
            good = False
            kept.close()
        failed += not good
        times.append(time.perf_counter() - at if good else max(TIMEOUT_S, time.perf_counter() - at))
        time.sleep(max(0.0, began + (number + 1) / (2 * PER_SECOND) - time.perf_counter()))
    return times, failed


def _status(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
) -> int:
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    response.read()
    return response.status


# --- the flood ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _flooding(api: ApiCaller, connections: int, kind: str) -> Iterator[None]:
    if not connections:
        yield
        return
    token = api.tokens["flooder"]
    path = "/v1/sessions/flooded/task"
    etag = api.request("GET", path, "flooder").headers["ETag"]
    said = json.dumps([api.base_url, kind, connections, token, etag])
    process = subprocess.Popen([sys.executable, __file__, "--flood", said], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"flooding\n"
        yield
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class _Flood:
    host: str
    port: int
    kind: str
    token: str
    etag: str

    def sent(self) -> bytes:
        """Return what a connection begins with."""
        token = f"Authorization: Bearer {self.token}\r\n"
        if self.kind == "silent":
            return b""
        if self.kind == "half":
            return b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Half: "
        if self.kind == "poll":
            line, more = "GET /v1/sessions/flooded/task?wait=25", f"If-None-Match: {self.etag}\r\n"
            return f"{line} HTTP/1.1\r\nHost: x\r\n{token}{more}\r\n".encode()
        if self.kind in ("body", "stranger"):
            line = "PUT /v1/sessions/flooded/rounds/1/submission"
            more = f"Content-Type: {JSON}\r\nContent-Length: 1000000\r\n"
            known = token if self.kind == "body" else ""
            return f"{line} HTTP/1.1\r\nHost: x\r\n{known}{more}\r\n{{".encode()
        if self.kind == "unread":
            return b"GET /static/swagger-ui/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n"
        return b"GET /v1/whoami HTTP/1.1\r\nHost: x\r\n\r\n"

    async def connection(self) -> None:
        opened = socket.socket()
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, (self.host, self.port))
        reader, writer = await asyncio.open_connection(sock=opened, limit=2**10)
        try:
            writer.write(self.sent())
            if self.kind == "unread" and (await reader.readexactly(12)).endswith(b"200"):
                writer.transport.pause_reading()
                await asyncio.sleep(60)
            while self.kind in ("body", "stranger"):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 1.0)
                    return
                writer.write(b" ")
            if self.kind == "churn":
                await reader.readuntil(b"\r\n\r\n")
                return
            while await reader.read(2**10):
                if self.kind == "poll":
                    await asyncio.sleep(AGAIN_S)
                    writer.write(self.sent())
        finally:
            writer.transport.abort()

    async def client(self) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self.connection()
            if self.kind != "churn":
                await asyncio.sleep(AGAIN_S)


async def _flood(url: str, kind: str, connections: int, token: str, etag: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    flood = _Flood(host, int(port), kind, token, etag)
    clients = [asyncio.create_task(flood.client()) for _ in range(connections)]
    print("flooding", flush=True)
    await asyncio.gather(*clients)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--flood"]:
        asyncio.run(_flood(*json.loads(sys.argv[2])))
    else:
        main()
