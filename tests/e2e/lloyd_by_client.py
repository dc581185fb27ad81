"""A session of `lloyd` with a generated client alone: ``lloyd_by_client.py URL OPERATOR_TOKEN``.

The rows of each site are JSON on standard input, two groups far apart; the result is JSON on
standard output. The arithmetic follows docs/protocol.md, "What a site computes". As the groups are
far apart, every site keeps one partition in all rounds.

Only `tests/e2e/test_generated_client.py` can run this: it makes the package that is imported here.
"""

from __future__ import annotations

import json
import math
import sys
from http import HTTPStatus
from typing import TypeVar

import httpx
from fedclust_coordinator_client import AuthenticatedClient
from fedclust_coordinator_client.api.analysts import create_analyst, issue_analyst_token
from fedclust_coordinator_client.api.participation import join_session
from fedclust_coordinator_client.api.results import get_result
from fedclust_coordinator_client.api.sessions import create_session, get_session
from fedclust_coordinator_client.api.sites import create_site, issue_site_token
from fedclust_coordinator_client.api.submissions import put_submission
from fedclust_coordinator_client.api.tasks import get_task
from fedclust_coordinator_client.models import (
    Cells,
    CellsSubmission,
    CellsTask,
    CellsTaskDocument,
    Consents,
    Evaluation,
    EvidencePart,
    EvidencePayload,
    EvidenceSubmission,
    EvidenceTask,
    EvidenceTaskDocument,
    Feature,
    LloydConfig,
    LloydSessionCreate,
    LloydSubmission,
    LloydTaskDocument,
    Outcome,
    Participation,
    ParticipationMethods,
    Policy,
    PolicyProtection,
    PrepareSubmission,
    PrepareTaskDocument,
    PrincipalCreate,
    PrincipalInfo,
    Receipt,
    ResultDocument,
    SessionInfo,
    SiteMoments,
    Step,
    StepTask,
    TaskResponse,
    TaskResponseStatus,
    TaskSpace,
    TokenCreate,
    TokenIssued,
)

SESSION = "heart-2026"
FEATURES: list[Feature | Outcome] = [
    Feature(name="age", unit="years", lower=0.0, upper=120.0),
    Feature(name="chol", unit="mg/dl", lower=0.0, upper=1000.0),
]
Rows = list[list[float]]
AnyTask = PrepareTaskDocument | CellsTaskDocument | LloydTaskDocument | EvidenceTaskDocument
AnySubmission = PrepareSubmission | CellsSubmission | LloydSubmission | EvidenceSubmission
T = TypeVar("T")


def known(kind: type[T], value: object) -> T:
    """Return what should be of this kind; SystemExit for a problem document or anything else."""
    if not isinstance(value, kind):
        raise SystemExit(f"{kind.__name__} expected, got {value}")
    return value


def client(url: str, token: str) -> AuthenticatedClient:
    return AuthenticatedClient(
        base_url=url, token=token, timeout=httpx.Timeout(None), httpx_args={"trust_env": False}
    )


class Site:
    """One site of the session; ``rows`` (n, d) in own units."""

    def __init__(self, http: AuthenticatedClient, rows: Rows) -> None:
        self._http, self._rows, self._etag = http, rows, ""

    def join(self) -> None:
        session = known(SessionInfo, get_session.sync(SESSION, client=self._http))
        methods = ParticipationMethods()
        methods["lloyd"] = [session.definition.method_version]
        body = Participation(
            consents=Consents(protection_none=True),
            definition_sha256=session.definition_sha256,
            engine=[session.definition.engine_version],
            features=[feature.name for feature in session.definition.features],
            methods=methods,
            sdk_version="generated",
            size_band="50-199",
        )
        joined = join_session.sync_detailed(SESSION, client=self._http, body=body)
        assert joined.status_code == HTTPStatus.CREATED, joined.content

    def turn(self) -> TaskResponseStatus:
        """Wait for something new, answer a task, and return the site's status."""
        reply = get_task.sync_detailed(
            SESSION, client=self._http, wait=25.0, if_none_match=self._etag
        )
        if reply.status_code == HTTPStatus.NOT_MODIFIED:
            return TaskResponseStatus.WAITING
        view = known(TaskResponse, reply.parsed)
        self._etag = reply.headers["ETag"]
        if view.status == TaskResponseStatus.WORK:
            assert isinstance(view.task, AnyTask)
            self._submit(known(int, view.round_), view.task)
        return view.status

    def _submit(self, number: int, task: AnyTask) -> None:
        stored = put_submission.sync_detailed(
            SESSION, number, client=self._http, body=self._answer(task)
        )
        assert stored.status_code == HTTPStatus.CREATED, stored.content
        receipt = known(Receipt, stored.parsed)
        assert (receipt.round_, receipt.phase) == (number, task.phase)
        self._etag = stored.headers.get("Fedclust-Task-ETag", "")

    # --- what a site computes ---------------------------------------------------------------------

    def _answer(self, task: AnyTask) -> AnySubmission:
        digest = task.digest
        if isinstance(task, PrepareTaskDocument):
            n, mean, m2 = moments(self._rows)
            sent = SiteMoments(n=n, observed=[n] * len(mean), mean=mean, m2=m2)
            return PrepareSubmission(phase="prepare", task_digest=digest, payload=sent)
        scaled = in_space(self._rows, known(TaskSpace, task.common.space))
        if isinstance(task, CellsTaskDocument):
            asked = known(CellsTask, task.common.parameters)
            found = [moments(cell) for cell in two_means(scaled)]
            assert len(found) == asked.n_clusters
            cells = Cells(counts=[n for n, _, _ in found], means=[mean for _, mean, _ in found])
            return CellsSubmission(phase="cells", task_digest=digest, payload=cells)
        if isinstance(task, LloydTaskDocument):
            centroids = known(StepTask, task.common.parameters).centroids
            parts = nearest(scaled, centroids)
            step = Step(
                counts=[len(part) for part in parts],
                sums=[[math.fsum(column) for column in zip(*part, strict=True)] for part in parts],
                costs=[cost(part, c) for part, c in zip(parts, centroids, strict=True)],
            )
            return LloydSubmission(phase="lloyd", task_digest=digest, payload=step)
        (asked,) = known(EvidenceTask, task.common.parameters).parts
        centroids = asked.centroids
        parts = nearest(scaled, centroids)
        apart = [[sorted(math.dist(row, c) for c in centroids) for row in part] for part in parts]
        evaluation = Evaluation(
            counts=[len(part) for part in parts],
            costs=[cost(part, c) for part, c in zip(parts, centroids, strict=True)],
            distances=[math.fsum(a for a, *_ in part) for part in apart],
            silhouettes=[math.fsum((b - a) / b for a, b, *_ in part) for part in apart],
            means=[moments(part)[1] for part in parts],
            m2=[moments(part)[2] for part in parts],
            points=[len(part) for part in parts],
            within=[0.0] * len(centroids[0]),
            constant=[False] * len(centroids[0]),
            typical=[False] * len(centroids[0]),
        )
        sent = EvidencePayload(parts=[EvidencePart(evaluation=evaluation)])
        return EvidenceSubmission(phase="evidence", task_digest=digest, payload=sent)


def moments(rows: Rows) -> tuple[int, list[float], list[float]]:
    """Return the number of rows, and of each column the mean and the sum of squared deviations."""
    columns = list(zip(*rows, strict=True))
    means = [math.fsum(column) / len(rows) for column in columns]
    m2 = [math.fsum((x - m) ** 2 for x in c) for c, m in zip(columns, means, strict=True)]
    return len(rows), means, m2


def in_space(rows: Rows, space: TaskSpace) -> Rows:
    return [
        [(x - c) / s for x, c, s in zip(row, space.center, space.scale, strict=True)]
        for row in rows
    ]


def nearest(rows: Rows, centroids: Rows) -> list[Rows]:
    """Return the rows that are nearest to each centroid."""
    parts: list[Rows] = [[] for _ in centroids]
    for row in rows:
        apart = [math.dist(row, centroid) for centroid in centroids]
        parts[apart.index(min(apart))].append(row)
    return parts


def two_means(rows: Rows) -> list[Rows]:
    """Return the cells of k-means from the lowest and the highest row."""
    centroids = [min(rows), max(rows)]
    while True:
        parts = nearest(rows, centroids)
        moved = [moments(part)[1] for part in parts]
        if moved == centroids:
            return parts
        centroids = moved


def cost(rows: Rows, centroid: list[float]) -> float:
    return math.fsum(math.dist(row, centroid) ** 2 for row in rows)


def main(url: str, operator_token: str) -> None:
    """Register everybody, define the session, let the sites answer, and print the result."""
    rows: dict[str, Rows] = json.load(sys.stdin)
    operator = client(url, operator_token)
    sites = []
    for name in rows:
        known(PrincipalInfo, create_site.sync(client=operator, body=PrincipalCreate(name=name)))
        issued = issue_site_token.sync(name, client=operator, body=TokenCreate(expires_in_days=1))
        sites.append(Site(client(url, known(TokenIssued, issued).token), rows[name]))
    known(PrincipalInfo, create_analyst.sync(client=operator, body=PrincipalCreate(name="ada")))
    issued = issue_analyst_token.sync("ada", client=operator, body=TokenCreate(expires_in_days=1))
    analyst = client(url, known(TokenIssued, issued).token)
    definition = LloydSessionCreate(
        algorithm="lloyd",
        config=LloydConfig(n_clusters=2),
        features=FEATURES,
        name=SESSION,
        purpose="Which groups of patients do these sites share?",
        sites=list(rows),
        policy=Policy(protection=PolicyProtection.NONE),
        seed=7,
    )
    known(SessionInfo, create_session.sync(client=analyst, body=definition))
    for site in sites:
        site.join()
    waiting = list(sites)
    while waiting:
        waiting = [site for site in waiting if site.turn() != TaskResponseStatus.ENDED]
    result = known(ResultDocument, get_result.sync(SESSION, client=analyst))
    sys.stdout.write(json.dumps(result.to_dict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
