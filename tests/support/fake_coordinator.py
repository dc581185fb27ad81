"""A coordinator of one session as an HTTP transport: instant, in memory, and breakable at will.

It speaks the protocol's models and drives the real engine; the other sites answer inside it. Tests
hand ``site()``'s transport to the SDK and look at ``puts`` afterwards: everything that arrived.
"""

import hashlib
import itertools
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from fedclust import rounds
from fedclust.client.http import ConnectionOptions, Http
from fedclust.definition import canonical, freeze, plan_of
from fedclust.rounds import EngineState
from fedclust.schema.task import Contribution, Done
from fedclust.site import Site
from fedclust.wire import codec, models
from fedclust.wire.errors import CONTENT_TYPE, problem
from fedclust.wire.submissions import read_submission, read_submission_head
from support.definitions import session_request
from support.driven import count_of, data_of, site_step
from support.results import PROVENANCE

EPOCH = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
URL = "https://coordinator.example"
Handler = Callable[[httpx.Request], httpx.Response | None]
_NUMBERS = itertools.count()


def three_clusters(n: int, seed: int) -> NDArray[np.float64]:
    """Return rows of two features about three places on the diagonal."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)) + 6 * rng.integers(0, 3, (n, 1))


class FakeCoordinator(httpx.BaseTransport):
    """One session in which ``me`` is the site under test.

    Attributes
    ----------
    puts : list of (round, body)
        Every submission that arrived, whatever became of it.
    refused : list of (round, rule)
        The tasks that were refused.
    requests : list of str
        ``"PUT /v1/..."``, every request.
    sends_next : bool
        Whether a receipt has the next task with it; otherwise as if that came too late.
    before, after : callable
        Called with each request before it is handled and after; may raise, or (``before``)
        answer in the coordinator's place.
    """

    def __init__(
        self,
        others: Mapping[str, NDArray[np.float64]] | None = None,
        *,
        me: str = "me",
        features: tuple[dict[str, Any], ...] = ({"name": "x"}, {"name": "y"}),
        **definition: Any,
    ) -> None:
        if others is None:
            others = {"alpha": three_clusters(50, 1), "beta": three_clusters(45, 2)}
        asked = {"algorithm": "lloyd", "config": {"n_clusters": 3}, "policy": {"max_rounds": 4}}
        asked |= {"sites": sorted([me, *others]), **definition}
        self.definition = freeze(session_request(*features, **asked), 7)
        self.sha256 = codec.sha256(canonical(self.definition))
        self.plan = plan_of(self.definition)
        self.me, self.others, self.roster = me, dict(others), sorted([me, *others])
        self.memories: dict[str, Any] = {name: {} for name in others}
        self.state, self.failure, self.presence = "recruiting", None, "invited"
        self.joined: models.Participation | None = None
        self.round, self.step, self.answers = 0, None, {}
        self.accepted: dict[int, bytes] = {}
        self.receipts: dict[int, models.Receipt] = {}
        self.puts: list[tuple[int, bytes]] = []
        self.refused: list[tuple[int, str]] = []
        self.requests: list[str] = []
        self.sends_next = False
        self.before: Handler = lambda _request: None
        self.after: Callable[[httpx.Request], None] = lambda _request: None

    def site(self, directory: Path, *, url: str = URL, **options: Any) -> Site:
        """Return the SDK of the site under test, connected to this."""
        http = Http(
            url,
            "fcs_secret",
            ConnectionOptions(give_up_after_s=options.pop("give_up_after_s", 0.0)),
            transport=self,
            sleep=lambda _seconds: None,
        )
        return Site(http=http, state_dir=directory, now=lambda: EPOCH, **options)

    def stop_at(self, end: str) -> None:
        """Let the site die of a ZeroDivisionError at each request whose path ends so."""

        def stop(request: httpx.Request) -> None:
            if request.url.path.endswith(end):
                raise ZeroDivisionError

        self.before = stop

    # --- HTTP -------------------------------------------------------------------------------------

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(f"{request.method} {request.url.path}")
        reply = self.before(request) or self._route(request)
        self.after(request)
        return reply

    def _route(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/")
        parts = path.split("/")
        if path == "whoami":
            until = {"expires_at": EPOCH + timedelta(days=365)}
            spoken = {"server_version": "0", "protocol_version": models.PROTOCOL_VERSION}
            return in_json(models.WhoAmI(role="site", name=self.me, **until, **spoken))
        if path == "sessions":
            return in_json(models.Page(items=(self._info().model_dump(mode="json"),)))
        if parts[:2] != ["sessions", "heart"]:
            return refusal("not-found")
        match (request.method, *parts[2:]):
            case ("GET",):
                return in_json(self._info())
            case ("GET", "rounds"):
                rounds = tuple(
                    self._round(n).model_dump(mode="json") for n in sorted(self.accepted)
                )
                return in_json(models.Page(items=rounds))
            case ("PUT", "participation"):
                return self._join(request)
            case ("GET", "task"):
                return self._task(request)
            case ("PUT", "rounds", number, "submission"):
                return self._submit(int(number), request)
            case ("PUT", "rounds", number, "refusal"):
                return self._refuse(int(number), request)
            case ("GET", "result"):
                return _binary(self._result())
        return refusal("not-found")

    def _info(self) -> models.SessionInfo:
        presence = dict.fromkeys(self.others, "joined") | {self.me: self.presence}
        return models.SessionInfo(
            name="heart",
            state=self.state,
            created_by="ada",
            created_at=EPOCH,
            failure=self.failure,
            round=self.round or None,
            definition=self.definition,
            definition_sha256=self.sha256,
            sites=tuple(
                models.SitePresence(
                    name=name,
                    state=state,
                    refused_task=self.refused[-1][1] if state == "refused" else None,
                )
                for name, state in presence.items()
            ),
        )

    def _round(self, number: int) -> models.RoundInfo:
        return models.RoundInfo(
            session="heart",
            number=number,
            phase="lloyd",
            state="closed",
            overdue=False,
            needs_all=False,
            opened_at=EPOCH,
            deadline=EPOCH,
            sites=(models.RoundSite(name=self.me, answered=True, late=False),),
        )

    def _join(self, request: httpx.Request) -> httpx.Response:
        body = models.Participation.model_validate_json(request.content)
        if body.definition_sha256 != self.sha256:
            return refusal("consent-mismatch")
        self.joined, self.presence = body, "joined"
        if self.state == "recruiting":
            self.state = "running"
            self._open(rounds.start(self.plan, self.roster))
        return in_json(
            models.ParticipationInfo(
                session="heart", site=self.me, state="joined", size_band=body.size_band
            )
        )

    def task(self) -> models.TaskResponse:
        """Return what the site under test is asked now."""
        if self.state in ("completed", "failed", "cancelled"):
            return models.TaskResponse(session_state=self.state, status="ended")
        if self.presence in ("left", "excluded", "refused"):
            return models.TaskResponse(session_state=self.state, status="left")
        if self.step is None:
            return models.TaskResponse(session_state=self.state, status="invited")
        common, part = self._written(self.me)
        return models.TaskResponse(
            session_state=self.state,
            status="work",
            round=self.round,
            deadline=EPOCH + timedelta(hours=1),
            task=models.TaskDocument(
                phase=self.step.task.phase,
                digest=codec.task_digest(common, part),
                common=common,
                site=part,
            ),
            progress=models.RoundProgress(answered=len(self.others), addressed=len(self.roster)),
        )

    def _task(self, request: httpx.Request) -> httpx.Response:
        view = self.task()
        etag = f'"{hashlib.sha256(codec.encode_model(view)).hexdigest()}"'
        if request.headers.get("If-None-Match") == etag:
            return answer(304, ETag=etag)
        return _binary(view, ETag=etag)

    def receipt(self, number: int, phase: str, body: bytes) -> models.Receipt:
        received = EPOCH + timedelta(minutes=number)
        of = {"session": "heart", "site": self.me, "round": number, "phase": phase}
        sent = {"sha256": codec.sha256(body), "size": len(body), "received_at": received}
        return models.Receipt(**of, **sent)

    def _submit(self, number: int, request: httpx.Request) -> httpx.Response:
        body = request.content
        self.puts.append((number, body))
        if number in self.accepted:
            same = self.accepted[number] == body
            return in_json(self.receipts[number]) if same else refusal("submission-differs")
        if self.state != "running":
            return refusal("wrong-state")
        if number != self.round:
            return refusal("round-closed")
        media = request.headers["Content-Type"]
        common, part = self._written(self.me)
        if read_submission_head(body, media).task_digest != codec.task_digest(common, part):
            return refusal("task-mismatch")
        phase = rounds.phase(self.plan, self.step.task.phase)
        _, payload = read_submission(phase, body, media)
        task = rounds.read_task(self.plan, common, part)
        rounds.check(self.plan, task, payload, p=self.p, size_band=self.joined.size_band)
        self.answers[self.me] = payload
        self.accepted[number] = body
        self.receipts[number] = self.receipt(number, phase.name, body)
        self.close_round()
        if self.sends_next and "wait" in request.url.params:
            both = models.SubmissionReceipt(**vars(self.receipts[number]), next=self.task())
            return _binary(both, status=201, **{"Fedclust-Task-ETag": '"next"'})
        return in_json(self.receipts[number], status=201, **{"Fedclust-Task-ETag": '"answered"'})

    def _refuse(self, number: int, request: httpx.Request) -> httpx.Response:
        rule = models.TaskRefusal.model_validate_json(request.content).rule
        self.refused.append((number, rule))
        self.presence = "refused"
        return in_json(models.ParticipationInfo(session="heart", site=self.me, state=self.presence))

    # --- rounds -----------------------------------------------------------------------------------

    @property
    def p(self) -> int:
        own = self.joined.min_group_size if self.joined else None
        return max(self.plan.policy.min_group_size, own or 0)

    def close_round(self) -> None:
        """Aggregate what is there and open the next round."""
        state = codec.decode_model(EngineState, codec.encode_model(self.step.state))
        given = [Contribution(site, payload, self.p) for site, payload in self.answers.items()]
        self._open(rounds.advance(self.plan, state, given, self.roster))

    def _open(self, step: Any) -> None:
        self.step = step
        if isinstance(step, Done):
            self.state = "completed"
            return
        self.round, self.answers = self.round + 1, {}
        for name, rows in self.others.items():
            common, part = self._written(name)
            self.answers[name], self.memories[name] = site_step(
                self.plan,
                rounds.read_task(self.plan, common, part),
                data_of(self.plan, rows),
                name,
                self.round,
                memory=self.memories[name],
                count=count_of(self.plan, rows, name),
            )

    def _written(self, name: str) -> Any:
        written = rounds.write_task(self.plan, "heart", self.round, self.step.task, name)
        return codec.decode(codec.encode(written))

    def _result(self) -> models.ResultDocument:
        method = {"algorithm": "lloyd"}
        return models.ResultDocument(
            session="heart",
            completed_at=EPOCH,
            features=self.definition.features,
            result=codec.to_tree(self.step.result),
            provenance=PROVENANCE.model_copy(
                update={"definition_sha256": self.sha256, **method, "sites": tuple(self.roster)}
            ),
        )


def another(*given: Any, **definition: Any) -> FakeCoordinator:
    """Return a coordinator with a session of its own."""
    return FakeCoordinator(*given, title=f"session {next(_NUMBERS)}", **definition)


def joins(request: httpx.Request) -> bool:
    return request.method == "PUT" and request.url.path.endswith("/participation")


def answer(status: int, content: bytes = b"", media: str = "", **headers: str) -> httpx.Response:
    """Return an answer that is read from the wire, as real ones are."""
    if media:
        headers["Content-Type"] = media
    return httpx.Response(status, headers=headers, stream=httpx.ByteStream(content))


def refusal(slug: str, detail: str = "do something else", **headers: str) -> httpx.Response:
    """Return a problem document as an answer."""
    document = problem(slug, detail)
    return answer(document.status, document.model_dump_json().encode(), CONTENT_TYPE, **headers)


def in_json(model: Any, status: int = 200, **headers: str) -> httpx.Response:
    return answer(status, model.model_dump_json().encode(), "application/json", **headers)


def _binary(model: Any, status: int = 200, **headers: str) -> httpx.Response:
    return answer(status, codec.encode_model(model), codec.CONTENT_TYPE, **headers)
