"""A coordinator that asks whatever it likes, over real HTTP, against the real SDK.

What was not consented to is refused, and nothing is sent. What may be asked is answered from the
protected table: the attack that recovers every chosen patient from ``protection: none`` recovers
none from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

from fedclust import Site, errors, rounds
from fedclust.methods.common.kmeans_rounds import CellsTask, Step, StepTask
from fedclust.methods.fkm import CandidatesTask, SeedsTask
from fedclust.rounds.evaluation import EvaluationTask
from fedclust.rounds.evidence import EvidenceTask
from fedclust.rounds.preparation import PreparationTask
from fedclust.schema.encoding import Space
from fedclust.schema.model import Model
from fedclust.site.cohorts import CohortStore
from fedclust.site.compute import refuse_foreign
from fedclust.site.state import SiteState
from fedclust.wire import codec, models
from fedclust.wire.submissions import BINARY, read_submission
from support.fake_coordinator import FakeCoordinator, in_json
from support.proxies import served

D = 6
FEATURES = tuple({"name": f"x{j}", "lower": -100.0, "upper": 100.0} for j in range(D))
IDS = [f"patient {number}" for number in range(150)]

POLICY = {"scaling": "none", "missing": "drop", "max_rounds": 4}
DEFINITION: dict[str, Any] = {"config": {"n_clusters": 3}, "policy": POLICY}

FloatArray = NDArray[np.float64]


def patients() -> FloatArray:
    """Return rows (150, d) of the breast cancer data, scaled."""
    X = load_breast_cancer().data[: len(IDS), :D]
    return np.asarray((X - X.mean(axis=0)) / X.std(axis=0))


@dataclass(frozen=True)
class Question:
    """A task; of another session, round or digest: `site/test_participate.py`."""

    phase: str
    parameters: Model
    space: Space | None = None

    def document(self, number: int) -> models.TaskDocument:
        space = self.space
        if space is None and self.phase != "prepare":
            space = Space.identity(D)
        common = {
            "session": "heart",
            "round": number,
            "phase": self.phase,
            "space": None if space is None else space.model_dump(),
            "parameters": self.parameters.model_dump(mode="python"),
        }
        common = codec.decode(codec.encode(common))
        digest = codec.task_digest(common, None)
        return models.TaskDocument(phase=self.phase, digest=digest, common=common, site=None)


class HostileCoordinator(FakeCoordinator):
    """Asks its questions one after another, whatever the answers, and then cancels."""

    def __init__(self, questions: Sequence[Question], **definition: Any) -> None:
        nobody = np.empty((0, D))
        super().__init__({"alpha": nobody, "beta": nobody}, features=FEATURES, **definition)
        self.questions = list(questions)
        self.ended: errors.FedclustError | None = None

    def task(self) -> models.TaskResponse:
        self.round = len(self.puts) + 1
        if self.presence != "joined" or self.round > len(self.questions):
            self.state = "running" if self.presence != "joined" else "cancelled"
            status = "invited" if self.presence != "joined" else "ended"
            return models.TaskResponse(session_state=self.state, status=status)
        return models.TaskResponse(
            session_state="running",
            status="work",
            round=self.round,
            task=self.questions[self.round - 1].document(self.round),
            progress=models.RoundProgress(answered=0, addressed=3),
        )

    def _open(self, step: Any) -> None:
        """Open no round of the method's."""

    def _submit(self, number: int, request: httpx.Request) -> httpx.Response:
        self.puts.append((number, request.content))
        phase = self.questions[number - 1].phase
        return in_json(self.receipt(number, phase, request.content), status=201)

    def ask(self, place: Path, rows: FloatArray) -> list[Any]:
        """Let the real SDK answer over HTTP until it refuses; return what it sent."""
        with (
            served(self) as url,
            Site(url, "fcs_secret", state_dir=place, give_up_after_s=0.0) as site,
            pytest.raises(errors.FedclustError) as ended,
        ):
            site.participate("heart", rows, person=IDS, consent=True)
        self.ended = ended.value
        found = []
        for number, body in self.puts:
            phase = rounds.phase(self.plan, self.questions[number - 1].phase)
            found.append(read_submission(phase, body, BINARY)[1])
        return found


# --- tasks that were not consented to -------------------------------------------------------------


def centroids(*shape: int) -> FloatArray:
    return np.random.default_rng(0).normal(size=(*shape, D))


CLOSING = (EvaluationTask(centroids=centroids(3)),)


PREPARE = Question("prepare", PreparationTask())
CELLS = Question("cells", CellsTask(n_clusters=3, n_init=3))
STEP = Question("lloyd", StepTask(centroids=centroids(3)))
EVALUATE = Question("evidence", EvidenceTask(n_clusters=np.zeros(0, dtype=np.int64), parts=CLOSING))
CANDIDATES = Question("candidates", CandidatesTask(centroids=centroids(8, 3)))
FKM = {"algorithm": "fkm"}
SCALED = {"policy": {**POLICY, "scaling": "standard"}}
SPACE = {"space": Space.identity(D).model_copy(update={"center": np.ones(D)})}

#: What the definition says, what is answered, and what is not. Other numbers and longer arrays than
#: the definition's: ``methods/test_crafted_tasks.py``, for every method.
NOT_CONSENTED: dict[str, tuple[dict[str, Any], list[Question], Question]] = {
    "no clusters": ({}, [CELLS], replace(STEP, parameters=StepTask(centroids=centroids(0)))),
    "cells twice": ({}, [CELLS], CELLS),
    "cells later": ({}, [CELLS, STEP], CELLS),
    "a fifth round": ({}, [CELLS, STEP, STEP, STEP], STEP),
    "a round after the evaluation": ({}, [CELLS, STEP, EVALUATE], STEP),
    "a second evaluation": ({}, [CELLS, STEP, EVALUATE], EVALUATE),
    "no evaluation": ({"config": {"n_clusters": 3, "evaluate": False}}, [CELLS, STEP], EVALUATE),
    "a preparation": ({}, [], PREPARE),
    "a second preparation": (SCALED, [PREPARE], PREPARE),
    "another method's phase": ({}, [CELLS], CANDIDATES),
    "the paper's phases": (FKM, [CELLS], Question("seeds", SeedsTask())),
    "another space": ({}, [CELLS], replace(STEP, **SPACE)),
}


@pytest.mark.parametrize("case", NOT_CONSENTED)
def test_what_was_not_consented_to_is_not_answered_real_record(tmp_path: Path, case: str) -> None:
    definition, answered, refused = NOT_CONSENTED[case]
    hostile = HostileCoordinator([*answered, refused], **DEFINITION | definition)

    hostile.ask(tmp_path, patients())

    assert isinstance(hostile.ended, errors.TaskRefused)
    assert [number for number, _ in hostile.puts] == list(range(1, len(answered) + 1))
    # The coordinator learns at once which rule it broke.
    assert hostile.refused == [(len(answered) + 1, hostile.ended.rule)]


def test_a_round_after_the_last_possible_one_is_refused() -> None:
    config = {"n_clusters": 3, "stability": 20}
    plan = HostileCoordinator([], **DEFINITION | {"config": config}).plan
    most = POLICY["max_rounds"] + 2
    refuse_foreign(plan, "heart", most, STEP.document(most))
    with pytest.raises(errors.TaskRefused, match="beyond what was consented to"):
        refuse_foreign(plan, "heart", most + 1, STEP.document(most + 1))


# --- tasks within consent -------------------------------------------------------------------------

CHOSEN = (3, 31, 62, 90, 140)
#: The values of a chosen patient that the attacker knows: by each, one question cuts the patient
#: out of all others.
KNOWN = (0, 1, 4, 5)
CLOSE = 1e-6


def around(X: FloatArray) -> list[Question]:
    """Return 20 questions whose middle cell holds those with a chosen patient's value."""
    found = []
    for patient in CHOSEN:
        for j in KNOWN:
            cut = np.tile(X[patient], (3, 1))
            cut[:, j] += np.array([-2.0, 0.0, 2.0]) * CLOSE
            found.append(Question("lloyd", StepTask(centroids=cut)))
    return found


def nearest(X: FloatArray, question: Question) -> NDArray[np.int64]:
    """Return the cell of each row (n,) for a question."""
    apart = X[:, None] - question.parameters.centroids[None]
    return np.asarray((apart**2).sum(axis=2).argmin(axis=1))


def recovered(
    sent: list[Step], questions: list[Question], members: FloatArray, X: FloatArray
) -> set[int]:
    """Return the patients whose records follow from the sums, by least squares.

    Parameters
    ----------
    sent : list of Step
    questions : list of Question
    members : (n, d) float64
        By where these lie the attacker takes a person to be in a cell.
    X : (n, d) float64
        The truth, to judge by.
    """
    cells = [nearest(members, each) == k for each in questions for k in range(3)]
    sums = np.concatenate([step.sums for step in sent])
    found = np.linalg.lstsq(np.array(cells, dtype=np.float64), sums, rcond=None)[0]
    hits = (np.abs(found - X) <= CLOSE).all(axis=1)
    return set(np.flatnonzero(hits).tolist())


@pytest.mark.parametrize("protection", ["groups", "none"])
def test_twenty_rounds_around_chosen_patients_give_no_real_record(
    tmp_path: Path, protection: str
) -> None:
    X = patients()
    questions = around(X)
    policy = {**POLICY, "protection": protection, "max_rounds": len(questions)}
    hostile = HostileCoordinator(questions, **DEFINITION | {"policy": policy})

    sent = hostile.ask(tmp_path, X)

    assert isinstance(hostile.ended, errors.SessionCancelled)
    assert len(sent) == 20
    found = recovered(sent, questions, X, X)
    if protection == "none":
        assert found >= set(CHOSEN)
        return
    assert not found
    (record,) = CohortStore(SiteState(tmp_path)).records().values()
    table = record.cohort.table([f"x{j}" for j in range(D)])
    points = np.column_stack([table.values(f"x{j}") for j in range(D)])
    for question, step in zip(questions, sent, strict=True):
        cells = nearest(points, question)
        for k in range(3):
            here = table.sizes[cells == k]
            assert step.counts[k] == here.sum()
            np.testing.assert_allclose(step.sums[k], here @ points[cells == k], atol=1e-9)
    # Not even to an attacker who knows which persons are in each sum.
    rows = record.cohort.table_rows(SiteState(tmp_path).secret(), IDS)
    assert not recovered(sent, questions, points[rows], X)
