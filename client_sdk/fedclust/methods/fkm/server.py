"""fkm at the coordinator: competing candidates, or the paper variant's k-means of means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.convergence import Judgement, judge
from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.kmeans_rounds import CellsTask
from fedclust.methods.fkm.config import DefaultConfig, PaperConfig, Variants
from fedclust.methods.fkm.messages import (
    AnyPayload,
    AnyTask,
    CandidatesTask,
    MeansTask,
    SeedsTask,
    Steps,
)
from fedclust.numeric.arrays import FloatTensor3
from fedclust.numeric.canonical import round_to_tolerance, tolerant_argsort
from fedclust.numeric.distances import squared_distances
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import SAME_INERTIA, best_partitions, sklearn_kmeans
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import centroid_rule
from fedclust.schema.task import Contribution, Done, Next, Task, with_payload

#: Restarts of the authors' program in every round.
_PAPER_RESTARTS = 10


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    phase : {"cells", "candidates", "seeds", "means"}
        The phase of the open round.
    seed : int
    closed : int
        Rounds closed since the candidates were found; in the paper variant, since the start.
    centroids : (c, K, d) float64 or None
        Scaled; the candidates of the open round, best first. In the paper variant c is 1.
    judgements : tuple of Judgement, length c
        Of each candidate by itself.
    best : Judgement
        Of the best candidate of each round.
    """

    phase: Literal["cells", "candidates", "seeds", "means"]
    seed: int
    closed: int = 0
    centroids: FloatTensor3 | None = None
    judgements: tuple[Judgement, ...] = ()
    best: Judgement = Judgement()

    @property
    def converged(self) -> bool:
        """Whether no candidate improves.

        While the leader stands still, others may catch up: ending then saved a round and cost up
        to 6 % in inertia.
        """
        return bool(self.judgements) and all(judged.converged for judged in self.judgements)


def start(config: RunConfig[Variants], seed: int) -> tuple[State, Task[AnyTask]]:
    """Return the first state and task."""
    options = config.options
    if isinstance(options, PaperConfig):
        return State(phase="seeds", seed=seed), Task("seeds", SeedsTask())
    task = CellsTask(n_clusters=options.k, n_init=options.n_init)
    return State(phase="cells", seed=seed), Task("cells", task)


def aggregate(
    state: State, contributions: Sequence[Contribution[AnyPayload]], config: RunConfig[Variants]
) -> Next[State, AnyTask] | Done:
    """Aggregate a round; contributions are sorted by site."""
    options = config.options
    if isinstance(options, PaperConfig):
        return _cluster_means(state, contributions, config, options)
    if state.centroids is None:
        return _first_candidates(state, contributions, config, options)
    steps = with_payload(contributions, Steps)
    return _candidates_step(state, state.centroids, steps, config, options)


def _next_step(
    state: State, centroids: NDArray[np.float64], metrics: Mapping[str, float] | None = None
) -> Next[State, AnyTask]:
    """Return the candidates' next Lloyd step."""
    return Next(state, Task("candidates", CandidatesTask(centroids=centroids)), metrics or {})


def _first_candidates(
    state: State, contributions: Sequence[Contribution], config: RunConfig, options: DefaultConfig
) -> Next[State, AnyTask]:
    """Cluster the sites' cells from several starts; the distinct results are the candidates."""
    means, counts = kmeans_rounds.collect_cells(contributions)
    rng = server_rng(state.seed, "fkm-candidates")
    rule = centroid_rule(config)
    found = best_partitions(means, counts, options.k, rng, options.candidates, rule=rule)
    centroids = np.stack(found)
    following = State(
        phase="candidates",
        seed=state.seed,
        centroids=centroids,
        judgements=(Judgement(),) * len(centroids),
    )
    return _next_step(following, centroids)


@dataclass(frozen=True)
class _SteppedCandidate:
    """A candidate after a Lloyd step: its new centroids, its judgement and its old inertia."""

    centroids: NDArray[np.float64]
    judgement: Judgement
    inertia: float


def _candidates_step(
    state: State,
    centroids: NDArray[np.float64],
    contributions: Sequence[Contribution[Steps]],
    config: RunConfig[Variants],
    options: DefaultConfig,
) -> Next[State, AnyTask] | Done:
    """Combine and judge every candidate's step, and choose the candidates that continue."""
    steps = []
    for i, candidate in enumerate(centroids):
        parts = [
            Contribution(c.site, None if c.payload is None else c.payload.step(i), c.p)
            for c in contributions
        ]
        steps.append((i, *kmeans_rounds.combine_steps(candidate, parts, config)))
    # All candidates of a round are measured at the same sites, so their inertias are comparable.
    steps = [steps[place] for place in tolerant_argsort([step[3]["inertia"] for step in steps])]
    leader, _, costs, leader_metrics = steps[0]
    best = judge(state.best, centroids[leader], costs, config, options.tol)
    candidates = []
    for i, following_centroids, costs, metrics in steps:
        judgement = judge(state.judgements[i], centroids[i], costs, config, options.tol)
        candidates.append(_SteppedCandidate(following_centroids, judgement, metrics["inertia"]))
    closed = state.closed + 1
    most = len(candidates)
    if closed % options.halve_every == 0:
        most = (most + 1) // 2
    kept = _drop_hopeless(candidates)[:most]
    moved = np.stack([candidate.centroids for candidate in kept])
    following = State(
        phase="candidates",
        seed=state.seed,
        closed=closed,
        centroids=moved,
        judgements=tuple(candidate.judgement for candidate in kept),
        best=best,
    )
    if following.converged:
        return Done(finish(following, config), leader_metrics)
    return _next_step(following, moved, leader_metrics)


def _drop_hopeless(candidates: Sequence[_SteppedCandidate]) -> list[_SteppedCandidate]:
    """Return the leader and the candidates that may still overtake it; all sorted by inertia.

    A candidate is hopeless if it has converged, or has the same inertia as a better one.
    """
    kept = [candidates[0]]
    for candidate in candidates[1:]:
        distinct = candidate.inertia > kept[-1].inertia * (1.0 + SAME_INERTIA)
        if distinct and not candidate.judgement.converged:
            kept.append(candidate)
    return kept


def _cluster_means(
    state: State,
    contributions: Sequence[Contribution],
    config: RunConfig[Variants],
    options: PaperConfig,
) -> Next[State, AnyTask] | Done:
    """Aggregate a round of the paper variant by a new k-means of the means (lines 7 to 11)."""
    means, counts = kmeans_rounds.collect_cells(contributions)
    centroids = sklearn_kmeans(
        means,
        counts if options.weighted else np.ones(len(means)),
        options.k,
        server_rng(state.seed, f"fkm-means-{state.closed}"),
        _PAPER_RESTARTS,
    )
    metrics: dict[str, float] = {}
    if state.centroids is not None:
        centroids, shift = order_centroids(centroids, state.centroids[0])
        metrics["centroid_shift"] = shift
    closed = state.closed + 1
    following = State(phase="means", seed=state.seed, closed=closed, centroids=centroids[None])
    if closed >= options.rounds:
        return Done(finish(following, config), metrics)
    return Next(following, Task("means", MeansTask(centroids=centroids)), metrics)


def order_centroids(
    centroids: NDArray[np.float64], before: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Order centroids (K, d) as in the round before, by the cheapest matching (Hungarian).

    Returns
    -------
    ordered : (K, d) float64
        Those without a counterpart last.
    shift : float
        The largest distance of a matched pair.
    """
    from scipy.optimize import linear_sum_assignment

    new, old = linear_sum_assignment(round_to_tolerance(squared_distances(centroids, before)))
    place = np.full(len(centroids), len(before))
    place[new] = old
    ordered = centroids[np.argsort(place, kind="stable")]
    shift = np.sqrt(((centroids[new] - before[old]) ** 2).sum(axis=1).max())
    return ordered, float(shift)


def finish(state: State, config: RunConfig[Variants]) -> Result:
    """Return the best centroids of all rounds judged, or the last ones if none was.

    The paper variant judges no round: it ends after a fixed number.
    """
    last = None if state.centroids is None else state.centroids[0]
    because = "converged" if state.converged else ""
    if isinstance(config.options, PaperConfig):
        because = "finished"
    return raw_result(
        kmeans_rounds.best_centroids(state.best, last), config, stopped_because=because
    )
