"""Several workers on one PostgreSQL, behind a proxy that sends each request to the next worker.

Wakes: how long after a change that one worker commits a long poll ends in that worker, and in
another. The time starts when the changing request is sent, so it includes that request. Sessions:
four sites through the SDK, with one, two and three workers, in turns.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from _report import write  # noqa: E402
from support.api_caller import ApiCaller  # noqa: E402
from support.consortium import Consortium  # noqa: E402
from support.databases import PostgresServer  # noqa: E402
from support.proxies import Balancer  # noqa: E402
from support.server import ServerProcess, running_server  # noqa: E402

WORKERS = (1, 2, 3)
SITES = ("berlin", "oslo", "porto", "turin")
WAITING = ("quito", "rome", "sofia")
D, K, ROUNDS = 4, 8, 10
#: Beyond this a wake is one by the end of the long poll.
WAIT_S = 25


@dataclass
class Cluster:
    """Workers on one database, and who may speak to them."""

    workers: list[ServerProcess]
    balancer: Balancer
    consortium: Consortium
    operator: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wakes", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    postgres = PostgresServer()
    try:
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            folder = Path(name)
            os.environ["FEDCLUST_STATE_DIR"] = str(folder / "groups")
            clusters = {
                n: stack.enter_context(_cluster(folder / str(n), postgres, n)) for n in WORKERS
            }
            write("workers_wakes", _wakes(clusters[2], options.wakes))
            write(
                "workers",
                _sessions(clusters, folder, options.repeats),
                note=f"Seconds of a session of {ROUNDS} rounds; medians of {options.repeats}.",
            )
    finally:
        postgres.stop()


@contextmanager
def _cluster(folder: Path, postgres: PostgresServer, n: int) -> Iterator[Cluster]:
    env = {
        "FEDCLUST_DATABASE_URL": postgres.url(postgres.create()),
        "FEDCLUST_SECRET_KEY": '["' + "k" * 48 + '"]',
    }
    with ExitStack() as stack:
        workers = [
            stack.enter_context(running_server(folder / f"worker{i}" / "data", env=env))
            for i in range(n)
        ]
        balancer = Balancer([worker.port for worker in workers])
        stack.callback(balancer.close)
        operator = workers[0].operator_token
        consortium = Consortium.found(balancer.url, operator, SITES)
        yield Cluster(workers, balancer, consortium, operator)


def _wakes(cluster: Cluster, repeats: int) -> list[dict[str, object]]:
    """Let a site wait at one worker and move the deadline at another."""
    here, there = (
        ApiCaller(worker.base_url, cluster.operator, {**cluster.consortium.site_tokens})
        for worker in cluster.workers[:2]
    )
    here.tokens["ada"] = cluster.consortium.analyst_token
    # Sites of their own: the tables they declare are made up.
    here.register("sites", *WAITING)
    there.tokens.update({site: here.tokens[site] for site in WAITING})
    here.define("ada", "wakes", list(WAITING), policy={"round_timeout_s": 86400})
    for site in WAITING:
        here.join(site, "wakes")
    found: dict[str, list[float]] = {"same worker": [], "other worker": []}
    gone = time.monotonic() + 60
    deadline = datetime.now(UTC) + timedelta(days=1)
    for _ in range(repeats):
        for kind, waiter in (("same worker", here), ("other worker", there)):
            deadline += timedelta(seconds=1)
            found[kind].append(_wake(here, waiter, deadline))
        if time.monotonic() > gone:
            break
    return [
        {
            "long poll in the": kind,
            "wakes": len(times),
            "p50 s": float(np.quantile(times, 0.5)),
            "p99 s": float(np.quantile(times, 0.99)),
            "most s": max(times),
        }
        for kind, times in found.items()
    ]


def _wake(here: ApiCaller, waiter: ApiCaller, deadline: datetime) -> float:
    path = "/v1/sessions/wakes/task"
    etag = waiter.request("GET", path, WAITING[0]).headers["ETag"]
    woken: list[float] = []

    def wait() -> None:
        answer = waiter.request(
            "GET", f"{path}?wait={WAIT_S}", WAITING[0], headers={"If-None-Match": etag}
        )
        assert answer.status_code in (200, 304)
        woken.append(time.perf_counter())

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.02 + 0.05 * np.random.default_rng().random())
    began = time.perf_counter()
    here.ok("PATCH", "/v1/sessions/wakes", "ada", json={"deadline": deadline.isoformat()})
    waiting.join()
    return woken[0] - began


def _sessions(clusters: dict[int, Cluster], folder: Path, repeats: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(11)
    data = {site: rng.random((900, D)) for site in SITES}
    took: dict[int, list[float]] = {n: [] for n in clusters}
    for repeat in range(repeats + 1):
        for n, cluster in clusters.items():
            name = f"run-{repeat}"
            policy = {"max_rounds": ROUNDS, "scaling": "standard"}
            cluster.consortium.create(name, D, config={"n_clusters": K}, policy=policy)
            began = time.perf_counter()
            cluster.consortium.run(name, data, folder / f"states-{n}")
            # The first session of a worker imports what the others find.
            if repeat:
                took[n].append(time.perf_counter() - began)
    one = median(took[1])
    return [
        {
            "workers": n,
            "session s": median(times),
            "least": min(times),
            "most": max(times),
            "of one worker": median(times) / one,
        }
        for n, times in took.items()
    ]


if __name__ == "__main__":
    main()
