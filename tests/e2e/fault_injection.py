"""Three coordinators on one PostgreSQL behind a balancing proxy, and faults drawn from a seed.

Workers are killed and started again, stopped for longer than a lease, cut off from their database,
or cannot reach it for longer than a lease; connections of sites are cut; the machines' clocks are
hours apart. One session runs before all faults and one after them; in between, several run at once
until all faults are done. `e2e.session_history` judges what was seen.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from sqlalchemy.engine import make_url

from e2e.random_kills import D, K, rows, shared
from e2e.session_history import Fault, History, Key, Request, violations
from fedclust import rounds, simulate
from fedclust.definition import plan_of
from fedclust.rounds import Plan
from fedclust.schema.size_bands import size_band
from fedclust.schema.task import Points
from fedclust.wire import codec
from fedclust.wire.models import SessionInfo
from fedclust.wire.submissions import BINARY, payload_bytes, write_submission
from fedclust_service.clock import StoreClock
from fedclust_service.domain.access import AuditSearch
from fedclust_service.store import Store, Tx
from support.api_caller import NOBODY
from support.consortium import Consortium, columns, declared, participation_in
from support.databases import PostgresServer
from support.definitions import session_body
from support.driven import data_of, site_step
from support.processes import WRONG_TIME
from support.proxies import Balancer, Link
from support.server import ServerProcess
from support.store_rows import rounds_to_aggregate
from support.timeouts import TIMEOUT_S

WORKERS = 3
#: Sessions that run at once while there are faults.
AT_ONCE = 3
KINDS = ("kill", "stop", "cut database", "hold database", "cut sites")
#: A fault begins after at most so many further requests.
REQUESTS_BETWEEN = 20
#: How many of the faults hit a worker that holds the lease of a round.
AIMED = 0.5
LEASE_S = 1
#: How long a worker stands still, or its database is out of reach.
STILL_S = 2.0 * LEASE_S
SKEWS_S = (0, 40_000, -40_000)
#: A long poll's length, and when a site gives a request up and asks again.
WAIT_S, GIVE_UP_S = 10, 20.0
POLICY = {"min_group_size": 3, "max_rounds": 6, "scaling": "standard"}


@dataclass
class FaultReport:
    """What one seed did, and what came of it."""

    seed: int
    faults: list[Fault] = field(default_factory=list)
    histories: list[History] = field(default_factory=list)
    takeovers: int = 0
    seconds: float = 0.0

    @property
    def violations(self) -> list[str]:
        """All sessions' violations, with the number of the session."""
        return [
            f"seed {self.seed}, session {number}: {found}"
            for number, history in enumerate(self.histories)
            for found in violations(history)
        ]


def run_with_faults(
    directory: Path, postgres: PostgresServer, seed: int, faults: int
) -> FaultReport:
    """Run sessions under ``faults`` faults that ``seed`` draws."""
    rng = np.random.default_rng(seed)
    report = FaultReport(seed)
    began = time.perf_counter()
    with ExitStack() as stack:
        scene = _Scene(directory, postgres, rng, stack)
        scene.run_sessions(report, 1)
        breaker = _Breaker(scene, report, _draw(rng, faults), rng)
        breaker.start()
        while breaker.is_alive():
            scene.run_sessions(report, AT_ONCE)
        breaker.join()
        if breaker.error is not None:
            raise breaker.error
        scene.run_sessions(report, 1)
        report.takeovers = scene.takeovers()
    report.seconds = time.perf_counter() - began
    return report


def _draw(rng: np.random.Generator, faults: int) -> list[str]:
    """Draw kinds of faults: every kind before one comes again."""
    drawn: list[str] = []
    while len(drawn) < faults:
        drawn += [KINDS[index] for index in rng.permutation(len(KINDS))]
    return drawn[:faults]


class _Scene:
    """Workers, the proxies around them, and the sites."""

    def __init__(
        self, directory: Path, postgres: PostgresServer, rng: np.random.Generator, stack: ExitStack
    ) -> None:
        database = postgres.create()
        stack.callback(postgres.drop, database)
        direct = postgres.url(database)
        self.links, self.workers = [], []
        for number, skew in enumerate(rng.permutation(SKEWS_S)):
            link = Link(_socket(direct))
            stack.callback(link.close)
            place = directory / f"worker{number}"
            place.mkdir(parents=True)
            (place / "ahead").write_text(str(skew))
            worker = ServerProcess(
                place / "data",
                ("--lease-s", str(LEASE_S), "--clock-limit-s", "86400"),
                {
                    "FEDCLUST_DATABASE_URL": f"postgresql+psycopg://postgres@127.0.0.1:{link.port}"
                    f"/{database}",
                    "FEDCLUST_SECRET_KEY": '["' + "k" * 48 + '"]',
                },
                (sys.executable, "-c", WRONG_TIME, str(place / "ahead")),
            )
            stack.callback(worker.kill)
            worker.start()
            self.links.append(link)
            self.workers.append(worker)
        self.balancer = Balancer([worker.port for worker in self.workers])
        stack.callback(self.balancer.close)
        self.store = Store.open(direct, StoreClock())
        stack.callback(self.store.close)
        self._data = data = rows()
        #: What each site computes with: the same in all sessions.
        self._points: dict[str, Points] = {}
        self._people = Consortium.found(
            self.balancer.url, self.workers[0].operator_token, tuple(data)
        )
        features = declared(D, -20.0, 30.0)
        definition = {"config": {"n_clusters": K}, "policy": POLICY, "features": features}
        reference = simulate("lloyd", data, seed=7, **definition)
        self._expected_result = shared(codec.to_tree(reference.result))
        self._expected_answers = {
            (entry.round, entry.site): _digest(entry.payload) for entry in reference.trace_
        }
        self._definition = session_body(algorithm="lloyd", sites=sorted(data), seed=7, **definition)
        self._sessions = 0
        #: Released once for each request of a site.
        self.passed = threading.Semaphore(0)

    def run_sessions(self, report: FaultReport, count: int) -> None:
        """Run sessions at once to their ends and add their histories."""
        running = [self._begin() for _ in range(count)]
        report.histories += [self._end(name, sites) for name, sites in running]

    def _begin(self) -> tuple[str, list[_Site]]:
        name = f"session-{self._sessions}"
        self._sessions += 1
        with closing(self._person(self._people.analyst_token)) as analyst:
            created = analyst.insist("POST", "/v1/sessions", json=self._definition | {"name": name})
        info = SessionInfo.model_validate_json(created.content)
        plan = plan_of(info.definition)
        if not self._points:
            self._points = {site: data_of(plan, rows) for site, rows in self._data.items()}
        joining = participation_in(info, columns(D)).model_dump(mode="json", exclude_none=True)
        sites = [
            _Site(
                *(self._person(token), name, site, plan, self._points[site]),
                joining | {"size_band": size_band(len(self._data[site]))},
                self.passed,
            )
            for site, token in self._people.site_tokens.items()
        ]
        for site in sites:
            site.start()
        return name, sites

    def _end(self, name: str, sites: list[_Site]) -> History:
        for site in sites:
            site.join()
        for site in sites:
            if site.error is not None:
                raise site.error
        replays = [request for site in sites for request in site.replay()]
        for site in sites:
            site.person.close()
        stored, trail = self.store.read("history", lambda tx: _read_back(tx, name))
        return History(
            requests=[request for site in sites for request in site.requests],
            replays=replays,
            stored=stored,
            trail=trail,
            answers={key: digest for site in sites for key, digest in site.answers.items()},
            expected_answers=self._expected_answers,
            result=self._result(name),
            expected_result=self._expected_result,
        )

    def takeovers(self) -> int:
        """Return how many rounds another worker took over."""
        trail = self.store.read(
            "history",
            lambda tx: tx.audit.list(10_000, search=AuditSearch(action="round.taken_over")),
        )
        return len(trail)

    def _result(self, name: str) -> bytes:
        with closing(self._person(self._people.analyst_token)) as analyst:
            path = f"/v1/sessions/{name}/result"
            answer = analyst.insist("GET", path, headers={"Accept": BINARY})
        return shared(codec.decode(answer.content)["result"])

    def _person(self, token: str) -> _Person:
        return _Person(self.balancer.url, token)


class _Person:
    """A token's owner, who asks until there is an answer."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=GIVE_UP_S,
            trust_env=False,
            verify=NOBODY,
        )

    def close(self) -> None:
        self._http.close()

    def ask(self, method: str, path: str, **keywords: Any) -> httpx.Response | None:
        """Send a request once; None where no answer came."""
        try:
            return self._http.request(method, path, **keywords)
        except httpx.HTTPError:
            return None

    def insist(self, method: str, path: str, **keywords: Any) -> httpx.Response:
        """Send a request that may be repeated until it is answered with success."""
        give_up = time.monotonic() + TIMEOUT_S
        while True:
            answer = self.ask(method, path, **keywords)
            if answer is not None and answer.status_code != 503:
                assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
                return answer
            assert time.monotonic() < give_up, f"{method} {path} is not answered"
            time.sleep(_PAUSE_S)


_PAUSE_S = 0.05


class _Site(threading.Thread):
    """An honest site: it computes each answer once and sends those bytes until it has a receipt."""

    def __init__(
        self,
        person: _Person,
        session: str,
        name: str,
        plan: Plan,
        points: Points,
        joining: Mapping[str, Any],
        passed: threading.Semaphore,
    ) -> None:
        super().__init__(name=f"site-{name}", daemon=True)
        self.person = person
        self.site = name
        self.requests: list[Request] = []
        self.answers: dict[Key, str] = {}
        self.error: BaseException | None = None
        self._session = f"/v1/sessions/{session}"
        self._plan, self._points, self._joining = plan, points, joining
        self._bodies: dict[int, bytes] = {}
        self._memory: Any = {}
        self._passed = passed

    def run(self) -> None:
        try:
            self._take_part()
        except BaseException as error:
            self.error = error

    def replay(self) -> list[Request]:
        """Send every submission once more."""
        sent, self.requests = self.requests, []
        for number in self._bodies:
            self._submit(number)
        # Only the last of them has an answer where some were repeated.
        replays, self.requests = [each for each in self.requests if each.status], sent
        return replays

    def _take_part(self) -> None:
        self.person.insist("PUT", f"{self._session}/participation", json=self._joining)
        etag, give_up = "", time.monotonic() + TIMEOUT_S
        while True:
            assert time.monotonic() < give_up, f"{self.site}: {self.requests[-5:]}"
            began = time.perf_counter()
            answer = self.person.ask(
                "GET",
                f"{self._session}/task?wait={WAIT_S}",
                headers={"Accept": BINARY} | ({"If-None-Match": etag} if etag else {}),
            )
            view: Mapping[str, Any] = {}
            if answer is not None and answer.status_code == 200:
                view, etag = codec.decode(answer.content), answer.headers["ETag"]
                # The task has changed, so the session goes on, however slow the machine is.
                give_up = time.monotonic() + TIMEOUT_S
            status = None if answer is None else answer.status_code
            self._note("task", began, status, round=view.get("round"), state=view.get("status"))
            if view.get("status") == "ended":
                return
            if view.get("status") == "work":
                self._answer(view["task"])
                etag = self._submit(view["round"]) or etag
            elif status not in (200, 304):
                time.sleep(_PAUSE_S)

    def _answer(self, task: Mapping[str, Any]) -> None:
        number = task["common"]["round"]
        if number in self._bodies:
            return
        asked = rounds.read_task(self._plan, task["common"], task["site"])
        payload, self._memory = site_step(
            self._plan, asked, self._points, self.site, number, memory=self._memory
        )
        self.answers[number, self.site] = _digest(payload)
        self._bodies[number] = write_submission(task["phase"], task["digest"], payload, BINARY)

    def _submit(self, number: int) -> str | None:
        """Send an answer until it has a receipt; return the ETag to wait with.

        In every second round the receipt waits for the next task, which is then asked for again.
        """
        path, body = f"{self._session}/rounds/{number}/submission", self._bodies[number]
        path += f"?wait={WAIT_S}" if number % 2 else ""
        sha256, give_up = codec.sha256(body), time.monotonic() + TIMEOUT_S
        while True:
            began = time.perf_counter()
            answer = self.person.ask("PUT", path, content=body, headers={"Content-Type": BINARY})
            status = None if answer is None else answer.status_code
            receipt = answer.json() if answer is not None and answer.is_success else None
            following = receipt.pop("next", None) if receipt else None
            self._note("submit", began, status, round=number, receipt=receipt, sha256=sha256)
            if answer is not None and receipt is not None:
                return None if following else answer.headers.get("Fedclust-Task-ETag")
            assert status in (None, 503), f"{self.site}, round {number}: {status}"
            assert time.monotonic() < give_up, f"{self.site}: {self.requests[-5:]}"
            time.sleep(_PAUSE_S)

    def _note(self, kind: str, began: float, status: int | None, **seen: Any) -> None:
        self.requests.append(Request(self.site, kind, began, time.perf_counter(), status, **seen))
        self._passed.release()


class _Breaker(threading.Thread):
    """Does one fault after the other, each after a random number of further requests."""

    def __init__(
        self, scene: _Scene, report: FaultReport, kinds: Sequence[str], rng: np.random.Generator
    ) -> None:
        super().__init__(name="breaker", daemon=True)
        self.error: BaseException | None = None
        self._scene, self._report, self._kinds, self._rng = scene, report, kinds, rng

    def run(self) -> None:
        try:
            for kind in self._kinds:
                for _ in range(int(self._rng.integers(1, REQUESTS_BETWEEN + 1))):
                    assert self._scene.passed.acquire(timeout=TIMEOUT_S), "nothing moves"
                victim, delay = int(self._rng.integers(WORKERS)), float(self._rng.uniform(0, 0.04))
                if self._rng.random() < AIMED:
                    victim = self._aggregating()
                else:
                    # Up to about as long as a request and an aggregation take.
                    time.sleep(delay)
                began = time.perf_counter()
                self._do(kind, victim)
                worker = None if kind == "cut sites" else victim
                self._report.faults.append(Fault(kind, worker, began, time.perf_counter()))
        except BaseException as error:
            self.error = error

    def _aggregating(self) -> int:
        """Wait until a worker holds the lease of a round, and return which one."""
        processes = [worker.process.pid for worker in self._scene.workers if worker.process]
        give_up = time.monotonic() + TIMEOUT_S
        while True:
            for each in self._scene.store.read("aim", rounds_to_aggregate):
                # A worker that was killed before may still stand there.
                holder = int(each.lease_holder.split(":")[-2]) if each.lease_holder else None
                if holder in processes:
                    return processes.index(holder)
            assert time.monotonic() < give_up, "nobody aggregates"

    def _do(self, kind: str, victim: int) -> None:
        worker, link = self._scene.workers[victim], self._scene.links[victim]
        if kind == "kill":
            worker.restart()  # SIGKILL first
        elif kind == "stop":
            worker.process.send_signal(signal.SIGSTOP)
            time.sleep(STILL_S)
            worker.process.send_signal(signal.SIGCONT)
        elif kind == "cut database":
            link.cut()
        elif kind == "hold database":
            link.hold()
            time.sleep(STILL_S)
            link.release()
        else:
            self._scene.balancer.cut()


def _digest(payload: Any) -> str:
    return codec.sha256(payload_bytes(payload) or b"")


def _socket(url: str) -> Path | int:
    """Return where a PostgreSQL of `support.databases` listens."""
    parsed = make_url(url)
    folder = parsed.query.get("host")
    if folder is None:
        return parsed.port or 5432
    return Path(str(folder)) / f".s.PGSQL.{parsed.port or 5432}"


def _read_back(
    tx: Tx, name: str
) -> tuple[list[tuple[int, str, str]], list[tuple[str, int | None]]]:
    session = tx.sessions.get(name)
    numbers = tx.rounds.numbers(session.id)
    stored = [
        (numbers[each.round_id], each.site, each.sha256)
        for each in tx.submissions.summaries(session_id=session.id)
    ]
    trail = tx.audit.list(10_000, search=AuditSearch(subject=name))
    return stored, [(entry.action, entry.details.get("round")) for entry in reversed(trail)]
