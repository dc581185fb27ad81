"""A session of 10 rounds during which coordinator and sites are killed at random moments.

Used by the tests with few kills, and by ``benchmarks/crash.py`` with many. Everything that is
claimed is checked against what a proxy between them recorded, and against ``simulate``.
"""

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from fedclust import simulate
from fedclust.schema.result import Result
from fedclust.site.ledger import Ledger
from fedclust.site.state import SiteState
from fedclust.wire.codec import encode, sha256, to_tree
from fedclust.wire.models import ResultDocument
from support.consortium import Command, Consortium, declared, read_labels, write_csv
from support.ledgers import body_lines
from support.method_variants import TRIED, busy
from support.proxies import Exchange, RecordingProxy, recorded
from support.server import ServerProcess, running_server
from support.timeouts import TIMEOUT_S

SESSION = "killed"
SIZES = {"berlin": 432, "oslo": 324, "porto": 540, "turin": 270}
K, D, ROUNDS = 8, 4, 10
POLICY = {"min_group_size": 3, "max_rounds": ROUNDS, "scaling": "standard"}
#: The command's exit code where the coordinator cannot be reached.
UNREACHED = 6
#: What analysts read of a result; its sweep is compared entry by entry.
#: Outcomes have random noise: of these only what each site sent has to stay the same.
SHARED = tuple(sorted(Result.model_fields.keys() - {"mapping", "sweep", "outcomes"}))


def rows() -> dict[str, NDArray[np.float64]]:
    """Return rows without clusters, on which k-means takes over 10 rounds to converge."""
    rng = np.random.default_rng(5)
    return {name: rng.random((n, D)) * [1.0, 2.0, 5.0, 10.0] for name, n in SIZES.items()}


def with_outcome(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows with a yes/no column that goes with the first one."""
    return np.column_stack([X, (X[:, 0] + X[:, 1] / 4 > 0.9).astype(np.float64)])


def shared(result: dict[str, Any]) -> bytes:
    """Return the bytes that have to be the same however a session went."""
    sweep = result.get("sweep") or ()
    every = [result, *(entry["result"] for entry in sweep)]
    kept = [{name: each[name] for name in SHARED} for each in every]
    table = [{**entry, "result": None} for entry in sweep]
    return encode([kept, table, result.get("recommendation")])


@dataclass
class KillReport:
    """What happened, for the benchmark's table."""

    coordinator_kills: int = 0
    site_kills: int = 0
    requests: int = 0
    submissions: int = 0
    repeated: int = 0
    cut_off: int = 0
    rounds: int = 0
    seconds: float = 0.0


def run_with_kills(
    directory: Path,
    method: str = "lloyd",
    options: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None,
    *,
    outcome: bool = False,
    database_url: str,
    coordinator_kills: int,
    site_kills: int,
    seed: int,
    requests_between: int,
) -> KillReport:
    """Run the session and check it.

    Parameters
    ----------
    directory : Path
    method : str
    options : dict, optional
        In place of those with which the method's sessions last.
    policy : dict, optional
        Beyond ``POLICY``. With ``missing: mask`` each site lacks another column.
    outcome : bool
        Whether the session has an outcome.
    database_url : str
    coordinator_kills, site_kills : int
        How many of each, in random order.
    seed : int
        Draws order, victims and moments.
    requests_between : int
        Most requests that pass between one kill and the next.
    """
    began = time.monotonic()
    rng = np.random.default_rng(seed)
    data, policy = rows(), {**POLICY, **(policy or {})}
    features, has = declared(D, -20.0, 30.0), dict.fromkeys(data, range(D))
    if policy.get("missing") == "mask":
        has = {name: np.delete(range(D), place % D) for place, name in enumerate(data)}
    if outcome:
        features.append({"name": f"x{D}", "kind": "binary", "role": "outcome", "points": 50})
        data = {name: with_outcome(X) for name, X in data.items()}
        has = {name: [*columns, D] for name, columns in has.items()}
    files = {name: directory / name / "rows.csv" for name in data}
    for name, X in data.items():
        write_csv(files[name], X, has[name])
    config = {"n_clusters": K, **(busy(method) if options is None else options)}
    several = isinstance(config["n_clusters"], list)
    asked = {"outcomes_k": config["n_clusters"][0]} if outcome and several else {}
    reference = simulate(
        method, files, config=config, policy=policy, features=features, seed=7, **asked
    )
    long = reference.result.stopped_because == "max_rounds"
    assert long or TRIED[method].few or options is not None, "the run is to be long"
    report = KillReport()
    # A killed worker's lease on PostgreSQL is waited for.
    with (
        running_server(
            directory / "server", "--lease-s", "1", env={"FEDCLUST_DATABASE_URL": database_url}
        ) as server,
        recorded(server.base_url) as tap,
    ):
        consortium = Consortium.found(server.base_url, server.operator_token, tuple(data))
        session = {"algorithm": method, "config": config, "policy": policy, **asked}
        consortium.create(SESSION, D, features=features, **session)
        sites = {}
        for name in data:
            sites[name] = Command(consortium.at(tap.url), SESSION, name, directory / name)
        victims = ["coordinator"] * coordinator_kills + ["site"] * site_kills
        rng.shuffle(victims)
        killer = _Killer(tap, server, sites, victims, rng, requests_between, report)
        try:
            for site in sites.values():
                site.start()
            killer.run()
            with ThreadPoolExecutor(len(sites)) as pool:
                # At once: a site that waits for another one does not end before it.
                codes = dict(zip(sites, pool.map(_end, sites.values()), strict=True))
            for name, code in codes.items():
                assert code == 0, f"{name} ended with {code}: {sites[name].log.read_text()[-2000:]}"
        finally:
            for site in sites.values():
                site.kill()
        document = consortium.result(SESSION)
        ledgers: dict[str, dict[int, str]] = {}
        assert shared(document.result) == shared(to_tree(reference.result))
        for name in data:
            labels = read_labels(directory / name / "labels.csv")
            assert np.array_equal(labels, reference.labels_[name])
            ledgers[name] = _ledger(directory / name / "state")
        kept = _check_submissions(tap.puts(), consortium, document, report)
        # Each site's own ledger says the same as the coordinator and the wire.
        assert {(n, site): digest for site in data for n, digest in ledgers[site].items()} == kept
        report.rounds = max(entry.round for entry in document.provenance.submissions)
    report.requests = len(tap.exchanges)
    report.seconds = time.monotonic() - began
    return report


def _end(site: Command) -> int:
    """Return what a site ends with."""
    if (code := site.wait()) == UNREACHED:
        # It waits 30 s on first contact, and requests may be kept back for longer.
        site.start()
        code = site.wait()
    return code


class _Killer:
    """Kills one victim after another, each after a random number of further requests.

    Until the last has been killed, no other request passes: the session is not faster.
    """

    def __init__(
        self,
        tap: RecordingProxy,
        server: ServerProcess,
        sites: dict[str, Command],
        victims: list[str],
        rng: np.random.Generator,
        requests_between: int,
        report: KillReport,
    ) -> None:
        self._tap, self._server, self._sites = tap, server, sites
        self._victims, self._rng, self._report = victims, rng, report
        self._between = requests_between
        self._moved = threading.Condition()
        #: How many more requests may pass.
        self._open = 0.0
        tap.on_request = self._keep_back

    def _keep_back(self, _: Exchange) -> None:
        with self._moved:
            kills = self._report.coordinator_kills
            while self._open <= 0 and kills == self._report.coordinator_kills:
                assert self._moved.wait(TIMEOUT_S)
            if kills != self._report.coordinator_kills:
                raise httpx.ReadError("lost with the connection to the coordinator that was killed")
            self._open -= 1
            self._moved.notify_all()

    def _let_pass(self, requests: float) -> None:
        with self._moved:
            self._open = requests
            self._moved.notify_all()

    def run(self) -> None:
        try:
            self._kill_all()
        finally:
            self._let_pass(math.inf)

    def _kill_all(self) -> None:
        for victim in self._victims:
            self._let_pass(int(self._rng.integers(1, self._between + 1)))
            with self._moved:
                passed = self._moved.wait_for(lambda: self._open == 0, TIMEOUT_S)
            assert passed, "the session stands still"
            # Up to about as long as a request and an aggregation take.
            time.sleep(float(self._rng.uniform(0, 0.04)))
            if victim == "coordinator":
                self._server.kill()
                with self._moved:
                    self._report.coordinator_kills += 1
                    self._moved.notify_all()
                self._server.start()
            else:
                running = [site for site in self._sites.values() if site.running()]
                assert running, "all sites have ended before the last kill"
                site = running[int(self._rng.integers(len(running)))]
                site.kill()
                site.start()
                self._report.site_kills += 1


def _ledger(directory: Path) -> dict[int, str]:
    """Return the hash that a site's ledger has for each round."""
    ledger = Ledger(SiteState(directory))
    assert ledger.verify() == []
    lines = body_lines(directory)
    found = {int(line["round"]): str(line["sha256"]) for line in lines}
    assert len(found) == len(lines), "a body stands in the ledger twice"
    return found


def _check_submissions(
    puts: list[Exchange], consortium: Consortium, document: ResultDocument, report: KillReport
) -> dict[tuple[int, str], str]:
    names = {token: name for name, token in consortium.site_tokens.items()}
    stored = document.provenance.submissions
    kept = {(entry.round, entry.site): entry.sha256 for entry in stored}
    assert len(kept) == len(stored), "an answer is stored twice"
    sent: dict[tuple[int, str], set[str]] = {}
    for put in puts:
        number = int(put.path.split("/rounds/")[1].split("/")[0])
        key = (number, names[put.token])
        digest = sha256(put.body)
        report.repeated += key in sent
        report.cut_off += put.status is None
        sent.setdefault(key, set()).add(digest)
        if put.status is not None and 200 <= put.status < 300:
            assert kept.get(key) == digest, "an acknowledged answer is lost"
    report.submissions = len(sent)
    assert all(len(bodies) == 1 for bodies in sent.values()), "an answer was sent in other words"
    assert kept.keys() == sent.keys()
    return kept
