"""Rounds of one session while another session's aggregation takes long, and small requests then.

Sessions of three sites run 20 rounds alone. Then the closing round of a sweep with stability is
aggregated, which takes about 45 s. The same sessions run 20 rounds meanwhile. A round's time is
from its last submission to when the session has left it. Small requests are timed at rest and
during the long aggregation. All of it runs on SQLite and on PostgreSQL.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from fedclust.wire.submissions import BINARY  # noqa: E402
from support.api_caller import ApiCaller  # noqa: E402
from support.databases import PostgresServer  # noqa: E402
from support.server import ServerProcess, running_server  # noqa: E402

SITES = ("berlin", "oslo", "porto")
LONG_SITES = tuple(f"long{number:02}" for number in range(12))
ROUNDS = 20
#: How long small requests are timed.
REQUESTS_S = 10.0
#: Their resampled models take about 45 s on a processor of 2024.
LONG = {"n_clusters": list(range(6, 26)), "stability": 200}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    options = parser.parse_args()
    rows = [_row(database) for database in options.databases]
    write(
        "aggregate_others",
        rows,
        note=(
            f"{ROUNDS} rounds of lloyd, {len(SITES)} sites: ms from the last submission until the "
            "session has left the round; at most 1.5 x alone. Requests: GET /v1/whoami, one after "
            "the other, p99 in ms; at most 2 x at rest."
        ),
    )


@contextmanager
def _server(database: str) -> Iterator[ServerProcess]:
    with tempfile.TemporaryDirectory() as folder:
        if database == "sqlite":
            with running_server(Path(folder) / "data") as server:
                yield server
            return
        postgres = PostgresServer(fsync=True)
        try:
            env = {"FEDCLUST_DATABASE_URL": postgres.url(postgres.create())}
            with running_server(Path(folder) / "data", env=env) as server:
                yield server
        finally:
            postgres.stop()


def _row(database: str) -> dict[str, Any]:
    with _server(database) as server:
        api = ApiCaller(server.base_url, server.operator_token)
        api.register("sites", *SITES, *LONG_SITES)
        api.register("analysts", "ada")
        _rounds(api, "warm", 3)
        at_rest = _requests(api)
        alone = _rounds(api, "alone", ROUNDS)
        _begin_long(api)
        began, ended = time.perf_counter(), threading.Event()
        threading.Thread(target=_watch, args=(server, api, ended), daemon=True).start()
        busy = _requests(api)
        beside = _rounds(api, "beside", ROUNDS)
        lasted = not ended.is_set()
        ended.wait()
        took = time.perf_counter() - began
    alone95, beside95 = (float(np.quantile(each, 0.95)) for each in (alone, beside))
    rest99, busy99 = (float(np.quantile(each, 0.99)) for each in (at_rest, busy))
    return {
        "database": database,
        "long aggregation s": round(took, 1),
        "all 20 beside it": lasted,
        "alone p50": round(1000 * float(np.median(alone)), 1),
        "beside p50": round(1000 * float(np.median(beside)), 1),
        "alone p95": round(1000 * alone95, 1),
        "beside p95": round(1000 * beside95, 1),
        "ratio (1.5)": round(beside95 / alone95, 2),
        "p99 at rest": round(1000 * rest99, 2),
        "p99 beside": round(1000 * busy99, 2),
        "p99 ratio (2)": round(busy99 / rest99, 2),
    }


def _rounds(api: ApiCaller, name: str, count: int) -> list[float]:
    """Run sessions of a few rounds each and return how long each of ``count`` rounds took."""
    taken: list[float] = []
    while len(taken) < count:
        session, number = f"{name}-{len(taken)}", 1
        _join(api, session, SITES, {"n_clusters": 3})
        known: dict[str, Any] = {"state": "running", "round": number}
        while known["state"] == "running" and len(taken) < count:
            number = known["round"]
            began = _answer(api, session, SITES, number)
            while known["state"] == "running" and known["round"] == number:
                time.sleep(0.002)
                known = api.ok("GET", f"/v1/sessions/{session}", "ada")
            taken.append(time.perf_counter() - began)
    return taken


def _join(api: ApiCaller, session: str, sites: Sequence[str], config: dict[str, Any]) -> None:
    api.define("ada", session, list(sites), config=config, policy={"max_rounds": 3})
    for site in sites:
        api.join(site, session)


def _answer(api: ApiCaller, session: str, sites: Sequence[str], number: int) -> float:
    """Send all answers to a round and return when the last one was sent."""
    bodies = [(site, api.answer(site, session, BINARY)) for site in sites]
    for site, body in bodies:
        began = time.perf_counter()
        stored = api.put(site, session, number, body, BINARY)
        assert stored.status_code == 201, stored.text
    return began


def _begin_long(api: ApiCaller) -> None:
    """Run a session to where its closing round is aggregated."""
    _join(api, "long", LONG_SITES, LONG)
    while True:
        known = api.ok("GET", "/v1/sessions/long/rounds?limit=200", "ada")["items"][-1]
        if known["state"] == "collecting":
            _answer(api, "long", LONG_SITES, known["number"])
            if known["phase"] == "evidence":
                return
        time.sleep(0.01)


def _watch(server: ServerProcess, api: ApiCaller, ended: threading.Event) -> None:
    """Wait for the end of the long aggregation, with few requests."""
    with httpx.Client(base_url=server.base_url, trust_env=False, timeout=60) as http:
        headers = {"Authorization": f"Bearer {api.tokens['ada']}"}
        while True:
            rounds = http.get("/v1/sessions/long/rounds?limit=200", headers=headers).json()["items"]
            if rounds[-1]["phase"] == "resampling":
                ended.set()
                return
            time.sleep(0.5)


def _requests(api: ApiCaller) -> list[float]:
    """Return the seconds that each of a row of small requests took."""
    taken, until = [], time.monotonic() + REQUESTS_S
    while time.monotonic() < until:
        began = time.perf_counter()
        api.ok("GET", "/v1/whoami", "ada")
        taken.append(time.perf_counter() - began)
        time.sleep(0.005)
    return taken


if __name__ == "__main__":
    main()
