"""Aggregate one round: from records of the database to the records to store.

Pure: no store, no clock, no logs. :func:`aggregate_round` runs in a thread for rounds that take a
moment, and in a process for the others (:mod:`.aggregation_pool`).
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedclust import rounds
from fedclust.rounds import EngineState, Plan
from fedclust.schema.errors import MethodFailure
from fedclust.schema.task import Contribution, Done, Next
from fedclust.wire import codec
from fedclust.wire.submissions import payload_from_bytes
from fedclust_service.logging import exception_chain


@dataclass(frozen=True)
class Opening:
    """A round that is ready to be opened, encoded for the database."""

    number: int
    phase: str
    needs_all: bool
    common: bytes
    parts: Mapping[str, tuple[bytes, str]]
    state: bytes
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finished:
    """A result, encoded."""

    result: bytes
    stopped_because: str


@dataclass(frozen=True)
class Raised:
    """The type and place of an exception that a method raised; its text may repeat a value."""

    error: str
    where: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """A round to aggregate, without its answers.

    ``definition`` is frozen, ``state`` the engine's, encoded. ``roster`` are the sites that take
    part now, sorted; ``masks`` has for each site the features (d,) that it has; ``silent`` are the
    sites that joined without enough points to answer about outcomes.
    """

    session: str
    definition: bytes
    number: int
    phase: str
    state: bytes | None
    roster: tuple[str, ...]
    masks: Mapping[str, NDArray[np.bool_]]
    silent: tuple[str, ...]


class StoredAnswer(NamedTuple):
    """A stored answer; ``payload`` is None if it is empty, ``p`` holds at its site."""

    site: str
    p: int
    payload: bytes | None


@dataclass(frozen=True)
class AggregationOutcome:
    """The outcome of an aggregation and the method's finite metrics."""

    what: Opening | Finished | MethodFailure | Raised
    metrics: dict[str, float]


def aggregate_round(plan: Plan, job: Job, answers: Iterable[StoredAnswer]) -> AggregationOutcome:
    """Aggregate a round; an exception of the method is an outcome too.

    ``plan`` is that of ``job.definition``; ``answers`` come in any order.
    """
    metrics: dict[str, float] = {}
    try:
        step = _step(plan, job, answers)
        metrics = {name: float(value) for name, value in step.metrics.items()}
        metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
        return AggregationOutcome(_ready(plan, job, step), metrics)
    except MethodFailure as failure:
        return AggregationOutcome(failure, metrics)
    except Exception as error:
        return AggregationOutcome(
            Raised(type(error).__name__, tuple(exception_chain(error))), metrics
        )


def _step(plan: Plan, job: Job, answers: Iterable[StoredAnswer]) -> Next | Done:
    phase = rounds.phase(plan, job.phase)
    if job.state is None:
        raise LookupError("the round has no state")
    contributions = [
        Contribution(each.site, payload_from_bytes(phase, each.payload), each.p) for each in answers
    ]
    state = codec.decode_model(EngineState, job.state)
    return rounds.advance(plan, state, contributions, job.roster, job.masks, job.silent)


def _ready(plan: Plan, job: Job, step: Next | Done) -> Opening | Finished:
    if isinstance(step, Done):
        return Finished(codec.encode_model(step.result), step.result.stopped_because)
    return encode_opening(job.session, plan, job.number + 1, job.roster, step)


def encode_opening(
    session: str, plan: Plan, number: int, roster: Sequence[str], following: Next
) -> Opening:
    """Encode the engine's next task for storage and for the sites."""
    task = following.task
    sites = sorted(task.sites if task.sites is not None else roster)
    common, _ = rounds.write_task(plan, session, number, task, None)
    shared = codec.encode(common)
    own = [codec.encode(rounds.write_task(plan, session, number, task, site)[1]) for site in sites]
    parts = zip(own, task_digests(shared, own), strict=True)
    return Opening(
        number=number,
        phase=task.phase,
        needs_all=task.needs_all or rounds.phase(plan, task.phase).needs_all,
        common=shared,
        parts=dict(zip(sites, parts, strict=True)),
        state=codec.encode_model(following.state),
        warnings=following.warnings,
    )


def task_digests(common: bytes, parts: Iterable[bytes]) -> Iterator[str]:
    """Yield `codec.task_digest` of the common part with each site's part, from canonical bytes.

    The common part is hashed only once: it may be long, and there may be many sites.
    """
    # The binary form of a map with two sorted keys.
    begun = hashlib.sha256(b"\x82\xa6common" + common + b"\xa4site")
    for part in parts:
        digest = begun.copy()
        digest.update(part)
        yield digest.hexdigest()
