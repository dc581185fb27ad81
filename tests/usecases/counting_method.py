"""A method that counts: every answer is one-hot, so a double count shows as a two.

In round n the site with index i in the session's list answers with a vector of
``rounds * len(sites)`` zeros and a one at ``(n - 1) * len(sites) + i``; the aggregate is the sum of
all answers of the session. After ``rounds`` rounds the result carries it in ``extra["votes"]``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.arrays import FloatVector
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.method import Method
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import MethodOptions, RunConfig
from fedclust.schema.task import Contribution, Done, Next, Phase, SiteSide, SiteTask, Task

NAME = "counting"

#: What a test puts here is called at the beginning of every aggregation.
HOOK: list[Callable[[], None]] = []

#: The p and size band that `check` was given, and the p of every contribution.
CHECKED: list[tuple[int, str | None]] = []
CONTRIBUTED: list[tuple[str, int]] = []


class Config(MethodOptions):
    n_clusters: int | None = None
    rounds: int = 3
    width: int = 3
    needs_all: bool = False
    refuse_to_start: bool = False


class CountTask(Model):
    """Send a one at your place of this round."""

    number: int


class Place(Model):
    """A site's own part: where its one goes, by its rank in the roster."""

    rank: int


class Vote(Model):
    votes: FloatVector


class State(Model):
    number: int
    votes: FloatVector


def _task(number: int, config: RunConfig) -> Task:
    parts = {site: Place(rank=rank) for rank, site in enumerate(config.roster)}
    return Task("count", CountTask(number=number), parts, needs_all=config.options.needs_all)


def start(config: RunConfig, seed: int) -> tuple[State, Task]:
    if config.options.refuse_to_start:
        raise MethodFailure("cannot_start", "Choose other options.")
    zeros = np.zeros(config.options.rounds * config.options.width)
    return State(number=1, votes=zeros), _task(1, config)


def local_step(task: SiteTask, site: SiteSide) -> Vote:
    raise NotImplementedError("tests write the answers themselves")


def check(task: SiteTask, payload: Vote, config: RunConfig) -> None:
    CHECKED.append((config.p, config.size_band))
    if payload.votes.shape != (config.options.rounds * config.options.width,):
        raise RuleViolation("shape", "as many votes as rounds times sites", "/votes")
    if payload.votes.sum() < 1:
        raise RuleViolation("smallest-count", "cell 0 holds fewer than p", "/votes/0")


PHASE = Phase("count", "Counts answers.", CountTask, Vote, (), local_step, check, site_part=Place)
REST = Phase("rest", "Never asked for.", CountTask, Vote, (), local_step, check)


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    for hook in HOOK:
        hook()
    votes = state.votes.copy()
    for each in contributions:
        CONTRIBUTED.append((each.site, each.p))
        if each.payload is not None:
            votes = votes + each.payload.votes
    after = State(number=state.number + 1, votes=votes)
    metrics = {"votes": float(votes.sum())}
    if state.number >= config.options.rounds:
        return Done(_result(after, config, "converged"), metrics)
    return Next(after, _task(after.number, config), metrics)


def _result(state: State, config: RunConfig, why: str) -> Result:
    d = len(config.features)
    return Result(
        centroids=np.zeros((1, d)),
        centroids_original=np.zeros((1, d)),
        center=np.zeros(d),
        scale=np.ones(d),
        stopped_because=why,
        extra={"votes": state.votes},
    )


def finish(state: State, config: RunConfig) -> Result:
    return _result(state, config, "max_rounds")


def label(result: Result, rows: NDArray[np.float64], memory: Any) -> NDArray[np.int64]:
    return np.zeros(len(rows), dtype=np.int64)


def _check_config(config: RunConfig) -> None:
    return None


def method(*, joins_late: bool = True, version: int = 1) -> Method:
    """Return the method; register it with ``monkeypatch.setitem(METHODS, NAME, method())``."""
    return Method(
        name=NAME,
        version=version,
        title="Counting",
        citation="none",
        options=Config,
        default_max_rounds=50,
        state=State,
        phases=(PHASE, replace(REST, needs_all=not joins_late)),
        check_config=_check_config,
        start=start,
        aggregate=aggregate,
        finish=finish,
        label=label,
    )
