"""A coordinator without HTTP, its people, and sessions of the method ``counting``.

direct = DirectApi(store, clock)
direct.session("heart", rounds=2)          # sites north, south, west by default; all join
direct.answer("heart", "north")            # the honest answer to the open round
direct.drive()                             # aggregate whatever waits
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from fedclust import rounds
from fedclust.wire import codec
from fedclust.wire.models import (
    Consents,
    Participation,
    PrincipalCreate,
    SessionCreate,
    SessionInfo,
    TableHeads,
    TokenCreate,
    TokenIssued,
)
from fedclust.wire.submissions import BINARY, write_submission
from fedclust_service.clock import StoreClock
from fedclust_service.domain.access import Actor, Refusal, Role
from fedclust_service.domain.notification import Outgoing
from fedclust_service.domain.round import Round
from fedclust_service.domain.session import Session
from fedclust_service.domain.tokens import SecretKeys
from fedclust_service.store import Store
from fedclust_service.usecases import participation, principals, sessions, submissions
from fedclust_service.usecases.attention import LEAST_FREE_BYTES, find_attention
from fedclust_service.usecases.coordinator import Coordinator
from fedclust_service.usecases.core import Limits
from fedclust_service.usecases.submissions import Body
from fedclust_service.usecases.sweeper import sweep
from support.definitions import session_request
from support.store_rows import counted, latest_state
from support.timeouts import TIMEOUT_S
from usecases import counting_method

SITES = ("north", "south", "west")
KEYS = SecretKeys([b"k" * 32])
#: However slow the machine is, no round goes to a process: it would not know the method, and under
#: a clock that stands still the lease of the lost process would never run out.
LIMITS = Limits(heartbeat_s=0.01, pooled_after=1000, pooled_above_s=math.inf)
_FAR = datetime(2040, 1, 1, tzinfo=UTC)


def refusal(call: Callable[..., object], *args: Any, **given: Any) -> Refusal:
    """Return what a call is refused with."""
    with pytest.raises(Refusal) as caught:
        call(*args, **given)
    return caught.value


def actor(role: Role, name: str) -> Actor:
    """Return somebody who has shown a token."""
    return Actor(role, name, "token", _FAR)


OPERATOR = actor(Role.OPERATOR, "root")
ANALYST = actor(Role.ANALYST, "ada")


def site(name: str) -> Actor:
    """Return a site."""
    return actor(Role.SITE, name)


class DirectApi:
    """A coordinator and whoever speaks to it."""

    def __init__(
        self,
        store: Store,
        clock: StoreClock,
        limits: Limits = LIMITS,
        outgoing: Outgoing | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.co = Coordinator(store, KEYS, limits, outgoing=outgoing or Outgoing())

    def another(self) -> Coordinator:
        """Return the coordinator of another process on the same database."""
        return Coordinator(self.store, KEYS, self.co.limits, outgoing=self.co.outgoing)

    def register(self, *names: str) -> None:
        """Register sites that are not registered yet."""

        def work(tx: Any) -> None:
            for name in names:
                if tx.principals.get(Role.SITE, name) is None:
                    tx.principals.add(Role.SITE, name, "")

        self.store.run_tx("test.register", work)

    def issue(self, role: Role, name: str, days: int = 365) -> TokenIssued:
        """Issue a token; register whom it is for if nobody has the name."""
        with contextlib.suppress(Refusal):
            principals.create_principal(self.co, OPERATOR, role, PrincipalCreate(name=name))
        body = TokenCreate(expires_in_days=days)
        return principals.issue_token(self.co, OPERATOR, role, name, body)

    def request(
        self,
        name: str = "heart",
        sites: tuple[str, ...] = SITES,
        start: str = "when_all_joined",
        policy: dict[str, Any] | None = None,
        **options: Any,
    ) -> SessionCreate:
        """Return a definition without a preparation; ``options`` are the method's."""
        rules = {"scaling": "none", "missing": "drop", "min_sites": min(3, len(sites))}
        return session_request(
            *("age", "chol"),
            name=name,
            algorithm=counting_method.NAME,
            config={"width": len(sites), **options},
            seed=7,
            sites=list(sites),
            start=start,
            policy={**rules, **(policy or {})},
        )

    def define(self, name: str = "heart", **given: Any) -> SessionInfo:
        """Create a session that nobody has joined."""
        request = self.request(name, **given)
        self.register(*request.sites)
        return sessions.create_session(self.co, ANALYST, request)[0]

    def session(self, name: str = "heart", **given: Any) -> SessionInfo:
        """Create a session that all its sites have joined."""
        info = self.define(name, **given)
        self.join(name, *info.definition.sites)
        return self.info(name)

    def answered(self, name: str = "heart", **given: Any) -> None:
        """Create a session whose first round all its sites have answered."""
        self.session(name, **given)
        self.answer_all(name)

    def consent(self, name: str, **changes: Any) -> Participation:
        """Return what a site sends to join; a table has one change, unless ``heads`` says more."""
        row = self.row(name)
        if changes.get("table_id") is not None:
            changes.setdefault("heads", chain("a"))
        methods = {counting_method.NAME: (row.method_version,)}
        sdk = {"sdk_version": "1.0", "methods": methods, "engine": (rounds.VERSION,)}
        data = {"features": ("age", "chol"), "size_band": "50-199", "consents": Consents()}
        return Participation(
            **{"definition_sha256": row.definition_sha256, **data, **sdk, **changes}
        )

    def join(self, name: str, *who: str, **changes: Any) -> None:
        """Have sites join."""
        for each in who:
            participation.join(self.co, site(each), name, self.consent(name, **changes))

    def row(self, name: str) -> Session:
        """Return a session as it is stored."""
        return self.store.read("test.session", lambda tx: tx.sessions.get(name))

    def info(self, name: str) -> SessionInfo:
        """Return a session as its analyst sees it."""
        return sessions.get_session(self.co, ANALYST, name)

    def view(self, name: str, who: str) -> submissions.TaskView:
        """Return what a site is told."""

        def work(tx: Any) -> submissions.TaskView:
            return submissions.task_view(tx, site(who), tx.site_views.by_name(name, who))

        return self.store.read("test.view", work)

    def body(
        self,
        name: str,
        who: str,
        *,
        number: int | None = None,
        empty: bool = False,
        media: str = BINARY,
        weight: float = 1.0,
        digest: str | None = None,
    ) -> bytes:
        """Return a site's honest answer to a round, the open one by default."""
        info = self.info(name)
        n = number or info.round or 1
        if digest is None:
            digest = self.digest(name, who, n)
        payload = None
        if not empty:
            width = info.definition.config["width"]
            votes = np.zeros(info.definition.config["rounds"] * width)
            votes[(n - 1) * width + info.definition.sites.index(who)] = weight
            payload = counting_method.Vote(votes=votes)
        return write_submission("count", digest, payload, media)

    def digest(self, name: str, who: str, number: int) -> str:
        """Return the digest of a site's task; of no task where it has none."""

        def work(tx: Any) -> str | None:
            asked = tx.site_views.by_name(name, who, number).round
            return asked.addressee.task_digest if asked and asked.addressee else None

        return self.store.read("test.digest", work) or codec.sha256(b"none")

    def put(
        self, name: str, who: str, body: bytes, number: int | None = None, media: str = BINARY
    ) -> submissions.Submitted:
        """Send bytes as a site."""
        n = number or self.info(name).round or 1
        return submissions.submit(self.co, site(who), name, n, Body(body, media)).result()

    def answer(self, name: str, *who: str, **given: Any) -> submissions.Submitted:
        """Send sites' honest answers to the open round; return what the last of them is told."""
        media = given.get("media", BINARY)
        bodies = {each: self.body(name, each, **given) for each in who}
        sent = [self.put(name, *each, given.get("number"), media) for each in bodies.items()]
        return sent[-1]

    def answer_all(self, name: str) -> None:
        """Have every site that is asked answer."""
        for each in self.info(name).definition.sites:
            if self.view(name, each).response.status == "work":
                self.answer(name, each)

    def drive(self, co: Coordinator | None = None) -> int:
        """Aggregate whatever waits; return how many rounds that was."""
        done = 0
        while (co or self.co).driver.run_once():
            done += 1
        return done

    def latest(self, name: str = "heart") -> Round:
        """Return a session's last round as it is stored."""
        row = self.row(name)
        return self.store.read("test.latest", lambda tx: tx.rounds.latest(row.id))

    def calls(self, name: str) -> int:
        """Return how many transactions of a name there were."""
        return counted(self.store, name)["calls"]

    def stored(self, name: str = "heart") -> list[str]:
        """Return the sites whose submissions are stored, each as often as it has one."""
        row = self.row(name)
        kept = self.store.read("t", lambda tx: tx.submissions.summaries(session_id=row.id))
        return sorted(each.site for each in kept)

    def payloads(self, name: str = "heart") -> int:
        """Return how many of a session's payloads are stored."""
        row = self.row(name)

        def count(tx: Any) -> int:
            found = [tx.submissions.list(each) for each in tx.rounds.numbers(row.id)]
            return sum(each.payload is not None for answers in found for each in answers)

        return self.store.read("test.payloads", count)

    def attention(
        self, free: int = LEAST_FREE_BYTES, *, backups: bool = False
    ) -> list[tuple[str, str, str | None]]:
        """Return the kind, subject and detail of all that an operator should look at."""
        now = self.clock.now()
        found = self.store.read(
            "test.attention", lambda tx: find_attention(tx, now, free, backups=backups)
        )
        return [(each.kind, each.subject, each.detail) for each in found]

    def later(self, seconds: float) -> None:
        """Let time pass, and do what is due then."""
        self.clock.advance(seconds)  # type: ignore[attr-defined]
        sweep(self.co)

    def finish(self, name: str) -> SessionInfo:
        """Answer and aggregate until the session has ended."""
        info = self.info(name)
        while info.state == "running":
            self.answer_all(name)
            self.drive()
            before, info = info, self.info(name)
            assert info != before, f"round {info.round} does not end"
        return info

    def audit(self, *, action: str | None = None) -> list[tuple[str, str, dict[str, Any]]]:
        """Return (actor, action, details but ``via``), oldest first."""
        rows = self.store.read("test.audit", lambda tx: tx.audit.list(1000))
        return [
            (row.actor, row.action, {k: v for k, v in row.details.items() if k != "via"})
            for row in reversed(rows)
            if action in (None, row.action)
        ]

    def votes(self, name: str) -> np.ndarray[Any, Any]:
        """Return the sum that the engine's last stored state holds, as (rounds, sites)."""
        row = self.row(name)
        tree = codec.decode(self.store.read("test.state", lambda tx: latest_state(tx, row.id)))
        width = self.info(name).definition.config["width"]
        return np.asarray(tree["method"]["votes"]).reshape(-1, width)


@contextlib.contextmanager
def working(worker: Any) -> Iterator[None]:
    """Let the thread of a driver or a sealer work for the length of the block."""
    worker.start()
    yield
    worker.ask_to_stop()
    worker.join(TIMEOUT_S)


@contextlib.contextmanager
def failing(
    store: Store, method: str, name: str, *errors: BaseException, after: bool = False
) -> Iterator[None]:
    """Have transactions of a name fail with these errors in turn, before or after their commit."""
    real, left = getattr(store, method), list(errors)

    def call(given: str, work: Callable[[Any], Any]) -> Any:
        if given != name or not left:
            return real(given, work)
        error = left.pop(0)
        if after:
            real(given, work)
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, method, call)
        yield


def at_once(act: Callable[[Any], Any], cases: Sequence[Any]) -> list[Any]:
    """Return what an act comes to in each case, all begun at the same moment."""
    barrier = threading.Barrier(len(cases))

    def one(case: Any) -> Any:
        barrier.wait(TIMEOUT_S)
        return act(case)

    with ThreadPoolExecutor(len(cases)) as pool:
        return list(pool.map(one, cases))


def paged(read: Callable[..., Any], *asked: Any, limit: int) -> list[Any]:
    """Return all items of a list, read page by page."""
    found, cursor = [], None
    while True:
        page = read(*asked, limit, cursor)
        assert len(page.items) <= limit
        found += page.items
        if (cursor := page.next) is None:
            return found


def chain(letters: str, first: int = 1) -> TableHeads:
    """Return heads of a table, one for each letter from ``a`` to ``f``."""
    return TableHeads(first=first, heads=tuple(each * 16 for each in letters))
