"""fkm at the coordinator: candidates that compete, or the paper's k-means of means."""

from __future__ import annotations

from collections.abc import Sequence
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
from fedclust.schema.task import Contribution, Done, Next, Task, with_payload

#: Restarts of the authors' program at the coordinator, in every round.
_PAPER_RESTARTS = 10


# --- Aggregation ----------------------------------------------------------------------------------


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    phase : {"cells", "candidates", "seeds", "means"}
        What the open round asks.
    seed : int
    closed : int
        Rounds that have closed since the candidates were found; in the paper variant, since the
        start.
    centroids : (c, K, d) float64 or None
        Scaled; the candidates that go on, best first: what the open round assigns to. In the
        paper variant c is 1.
    judgements : tuple of Judgement, length c
        Of each candidate by itself.
    best : Judgement
        Of every round's best candidate: holds the best centroids ever.
    """

    phase: Literal["cells", "candidates", "seeds", "means"]
    seed: int
    closed: int = 0
    centroids: FloatTensor3 | None = None
    judgements: tuple[Judgement, ...] = ()
    best: Judgement = Judgement()


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
    """Close a round; contributions sorted by site."""
    options = config.options
    if isinstance(options, PaperConfig):
        return _cluster_means(state, contributions, config, options)
    if state.centroids is None:
        return _first_candidates(state, contributions, options)
    steps = with_payload(contributions, Steps)
    return _candidates_step(state, state.centroids, steps, config, options)


def _ask(
    state: State, centroids: NDArray[np.float64], metrics: dict[str, float]
) -> Next[State, AnyTask]:
    """Ask the candidates' next Lloyd step of every site."""
    return Next(state, Task("candidates", CandidatesTask(centroids=centroids)), metrics)


def _first_candidates(
    state: State, contributions: Sequence[Contribution], options: DefaultConfig
) -> Next[State, AnyTask]:
    """Cluster the sites' cells: several starts, of which distinct ones go on."""
    means, counts = kmeans_rounds.collect_cells(contributions)
    rng = server_rng(state.seed, "fkm-candidates")
    centroids = np.stack(best_partitions(means, counts, options.k, rng, options.candidates))
    following = State(
        phase="candidates",
        seed=state.seed,
        centroids=centroids,
        judgements=(Judgement(),) * len(centroids),
    )
    return _ask(following, centroids, {})


def _candidates_step(
    state: State,
    centroids: NDArray[np.float64],
    contributions: Sequence[Contribution[Steps]],
    config: RunConfig[Variants],
    options: DefaultConfig,
) -> Next[State, AnyTask] | Done:
    """Add up every candidate's step, judge, and choose who goes on."""
    steps = []
    for i, candidate in enumerate(centroids):
        parts = [
            Contribution(c.site, None if c.payload is None else c.payload.step(i), c.p)
            for c in contributions
        ]
        steps.append((i, *kmeans_rounds.combine_steps(candidate, parts)))
    # Candidates are compared within the round: over the same sites.
    steps = [steps[place] for place in tolerant_argsort([step[3]["inertia"] for step in steps])]
    lead, _, costs, metrics = steps[0]
    best = judge(state.best, centroids[lead], costs, config, options.tol)
    standings = []
    for i, moved, costs, measured in steps:
        judgement = judge(state.judgements[i], centroids[i], costs, config, options.tol)
        standings.append((moved, judgement, measured["inertia"]))
    closed = state.closed + 1
    most = len(standings)
    if closed % options.halve_every == 0:
        most = (most + 1) // 2
    going_on = _contenders(standings)[:most]
    following = State(
        phase="candidates",
        seed=state.seed,
        closed=closed,
        centroids=np.stack([moved for moved, *_ in going_on]),
        judgements=tuple(judgement for _, judgement, _ in going_on),
        best=best,
    )
    if _converged(following):
        return Done(finish(following, config), metrics)
    return _ask(following, np.stack([moved for moved, *_ in going_on]), metrics)


#: The moved centroids, the judgement and the inertia of a candidate.
_Standing = tuple[NDArray[np.float64], Judgement, float]


def _contenders(standings: Sequence[_Standing]) -> list[_Standing]:
    """Return, best first, the leader and whoever may still overtake it.

    That is neither a candidate that has converged to something worse, nor one that has come to the
    same inertia as a better one.
    """
    kept = [standings[0]]
    for standing in standings[1:]:
        _, judgement, inertia = standing
        if inertia > kept[-1][2] * (1.0 + SAME_INERTIA) and not judgement.converged:
            kept.append(standing)
    return kept


def _cluster_means(
    state: State,
    contributions: Sequence[Contribution],
    config: RunConfig[Variants],
    options: PaperConfig,
) -> Next[State, AnyTask] | Done:
    """Algorithm 1, lines 7 to 11, of the paper variant: k-means afresh in every round."""
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
        centroids, shift = matched(centroids, state.centroids[0])
        metrics["centroid_shift"] = shift
    closed = state.closed + 1
    following = State(phase="means", seed=state.seed, closed=closed, centroids=centroids[None])
    if closed >= options.rounds:
        return Done(finish(following, config), metrics)
    return Next(following, Task("means", MeansTask(centroids=centroids)), metrics)


def matched(
    centroids: NDArray[np.float64], before: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Order centroids (K, d) as the round before, by the cheapest matching (Hungarian).

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


# --- Convergence ----------------------------------------------------------------------------------


def _converged(state: State) -> bool:
    """Whether no candidate improves any more.

    Not sooner: where the leader stands, the others may be gaining on it still. Ending there cost up
    to 6 % in inertia and saved a round.
    """
    return bool(state.judgements) and all(judged.converged for judged in state.judgements)


def finish(state: State, config: RunConfig[Variants]) -> Result:
    """Return the best centroids ever judged; without any, the last ones, best candidate first.

    The paper variant judges nothing: it ends after its fixed number of rounds.
    """
    last = None if state.centroids is None else state.centroids[0]
    because = "converged" if _converged(state) else ""
    if isinstance(config.options, PaperConfig):
        because = "finished"
    return raw_result(
        kmeans_rounds.best_centroids(state.best, last), config, stopped_because=because
    )
