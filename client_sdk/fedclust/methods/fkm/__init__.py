"""fkm: federated k-means, which aligns the sites' clusters by clustering their means.

What it says and cites
    Garst & Reinders, "Federated K-means clustering", arXiv 2310.01195 (2023). Every site
    sends the means of its own clusters, as many as it has; the coordinator clusters the means,
    weighted by their counts, and sends the outcome back as the sites' next start. Sites may hold
    any part of the clusters. As published it restarts the coordinator's k-means in every round,
    and on clusters that overlap it stays at what it started with: 40 rounds in place of 10 give
    .007 of ARI (ALGORITHMS).

``variant: paper`` is Algorithm 1 as the authors' program runs it. ``variant: default`` spends the
rounds on the start: several partitions of the sites' cells, each carried on by exact Lloyd steps in
the same rounds, of which the better half goes on every few rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedclust.methods import lloyd
from fedclust.methods.common.assign import label_by_centroid
from fedclust.methods.common.cluster_sums import cluster_sums
from fedclust.methods.common.convergence import Judgement, judge
from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.options import Restarts, SweptOptions, Tolerance, variants
from fedclust.methods.fkm.messages import (
    PHASES,
    CandidatesTask,
    MeansTask,
    SeedsTask,
    Steps,
    check,
    check_task,
)
from fedclust.methods.lloyd import Cells, CellsTask
from fedclust.numeric.arrays import FloatTensor3
from fedclust.numeric.canonical import ascending, highest, snapped
from fedclust.numeric.distances import nearest, squared_distances
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import SAME, distinct_best, plus_plus, restarted
from fedclust.protection.message_checks import check_shape
from fedclust.schema.method import LocalAnswer, Method
from fedclust.schema.model import Memory, Model
from fedclust.schema.points import Points
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Done, Next, SiteTask, Task

VERSION = 4
#: Restarts of the authors' program at the coordinator, in every round.
_PAPER_RESTARTS = 10

# --- Config ---------------------------------------------------------------------------------------


class DefaultConfig(SweptOptions, title="FkmDefaultConfig"):
    """What the analyst chooses in the default variant.

    Attributes
    ----------
    candidates : int
        The most partitions that are carried on at once.
    halve_every : int
        Rounds after which the better half of them goes on.
    n_init : int
        Restarts of each site's local k-means.
    tol : float
        Relative improvement of the inertia below which a round counts as no improvement.
    """

    variant: Literal["default"]
    candidates: Annotated[int, Field(ge=1, le=64)] = 8
    halve_every: Annotated[int, Field(ge=1, le=1_000)] = 3
    n_init: Restarts = 3
    tol: Tolerance = 1e-6


class PaperConfig(SweptOptions, title="FkmPaperConfig"):
    """What the analyst chooses in the paper's variant.

    Attributes
    ----------
    rounds : int
        How often the coordinator clusters; a fixed number.
    drop_empty : bool
        Whether a site drops the global centres that none of its points are nearest to (line 15).
        False is for the paper's ablation.
    drop_below : int
        A mean that fewer persons are nearest to is not sent.
    weighted : bool
        Whether means weigh as much as they have persons (equation 1). False is for the paper's
        ablation.
    """

    variant: Literal["paper"]
    rounds: Annotated[int, Field(ge=1, le=10_000)] = 10
    drop_empty: bool = True
    drop_below: Annotated[int, Field(ge=1, le=1_000_000)] = 2
    weighted: bool = True


Config = variants("FkmConfig", DefaultConfig, PaperConfig)


def rounds(options: DefaultConfig | PaperConfig) -> int | None:
    """Return the paper variant's fixed number of rounds."""
    return options.rounds if isinstance(options, PaperConfig) else None


# --- Local step -----------------------------------------------------------------------------------


def local_step(
    task: SiteTask, points: Points, config: RunConfig, rng: np.random.Generator, memory: Memory
) -> LocalAnswer:
    """Answer a task from a site's scaled points."""
    if task.phase == "seeds":
        return _seeds(points, config, rng), memory
    if task.phase == "means":
        return _means(task.common, points, config), memory
    if task.phase == "candidates":
        return _steps(task.common, points), memory
    return lloyd.local_step(task, points, config, rng, memory)


def _steps(task: CandidatesTask, points: Points) -> Steps:
    steps = [lloyd.add_up(centroids, points) for centroids in task.centroids]
    return Steps(
        counts=np.stack([step.counts for step in steps]),
        sums=np.stack([step.sums for step in steps]),
        costs=np.stack([step.costs for step in steps]),
    )


def _seeds(points: Points, config: RunConfig, rng: np.random.Generator) -> Cells:
    """Algorithm 1, lines 3 to 5."""
    n_clusters = config.options.k
    drawn = plus_plus(points.X, points.sizes.astype(np.float64), n_clusters, rng)
    counts = cluster_sums(points, nearest(points.X, drawn), drawn).counts
    return lloyd.padded(counts, drawn, n_clusters)


def _means(task: MeansTask, points: Points, config: RunConfig) -> Cells | None:
    """Algorithm 1, lines 13 to 18.

    As in the authors' program the means are those of the points nearest to the global centres (one
    iteration), and S_i counts the points nearest to the means.
    """
    options: PaperConfig = config.options
    centroids = task.centroids
    check_shape(centroids, (len(centroids), points.X.shape[1]), "/parameters/centroids")
    labels = nearest(points.X, centroids)
    if not options.drop_empty:
        labels = refill(points.X, labels, centroids)
    sums = cluster_sums(points, labels, centroids)
    means = sums.means[sums.counts > 0]
    counts = cluster_sums(points, nearest(points.X, means), means).counts
    kept = counts >= options.drop_below
    return lloyd.padded(counts[kept], means[kept], len(centroids)) if kept.any() else None


def refill(
    X: NDArray[np.float64], labels: NDArray[np.int64], centroids: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return labels (m,) in which each centre without points has the one farthest from its own.

    What scikit-learn does, and with it the authors' program where empty centres are not dropped.
    """
    labels = labels.copy()
    gaps = ((X - centroids[labels]) ** 2).sum(axis=1)
    for empty in np.flatnonzero(np.bincount(labels, minlength=len(centroids)) == 0)[: len(X)]:
        farthest = int(highest(gaps))
        labels[farthest], gaps[farthest] = empty, -1.0
    return labels


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


def start(config: RunConfig, seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    options: DefaultConfig | PaperConfig = config.options
    if isinstance(options, PaperConfig):
        return State(phase="seeds", seed=seed), Task("seeds", SeedsTask())
    task = CellsTask(n_clusters=options.k, n_init=options.n_init)
    return State(phase="cells", seed=seed), Task("cells", task)


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    """Close a round; contributions sorted by site."""
    if isinstance(config.options, PaperConfig):
        return _cluster_means(state, contributions, config)
    if state.centroids is None:
        return _first_candidates(state, contributions, config)
    return _candidates_step(state, state.centroids, contributions, config)


def _ask(state: State, centroids: NDArray[np.float64], metrics: dict[str, float]) -> Next:
    """Ask the candidates' next Lloyd step of every site."""
    return Next(state, Task("candidates", CandidatesTask(centroids=centroids)), metrics)


def _first_candidates(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next:
    """Cluster the sites' cells: several starts, of which distinct ones go on."""
    options: DefaultConfig = config.options
    means, counts = lloyd.sent_cells(contributions)
    rng = server_rng(state.seed, "fkm-candidates")
    centroids = np.stack(distinct_best(means, counts, options.k, rng, options.candidates))
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
    contributions: Sequence[Contribution],
    config: RunConfig,
) -> Next | Done:
    """Add up every candidate's step, judge, and choose who goes on."""
    options: DefaultConfig = config.options
    steps = []
    for i, candidate in enumerate(centroids):
        parts = [
            Contribution(c.site, None if c.payload is None else c.payload.step(i), c.p)
            for c in contributions
        ]
        steps.append((i, *lloyd.step(candidate, parts)))
    # Candidates are compared within the round: over the same sites.
    steps = [steps[place] for place in ascending([step[3]["inertia"] for step in steps])]
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
        if inertia > kept[-1][2] * (1.0 + SAME) and not judgement.converged:
            kept.append(standing)
    return kept


def _cluster_means(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    """Algorithm 1, lines 7 to 11, of the paper variant: k-means afresh in every round."""
    options: PaperConfig = config.options
    means, counts = lloyd.sent_cells(contributions)
    centroids = restarted(
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

    new, old = linear_sum_assignment(snapped(squared_distances(centroids, before)))
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


def finish(state: State, config: RunConfig) -> Result:
    """Return the best centroids ever judged; without any, the last ones, best candidate first.

    The paper variant judges nothing: it ends after its fixed number of rounds.
    """
    last = None if state.centroids is None else state.centroids[0]
    because = "converged" if _converged(state) else ""
    if isinstance(config.options, PaperConfig):
        because = "finished"
    return raw_result(lloyd.best_centroids(state.best, last), config, stopped_because=because)


# --- Labelling ------------------------------------------------------------------------------------


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units by the nearest centroid; ``memory`` plays no part."""
    del memory
    return label_by_centroid(result, X)


def possible_phases(options: DefaultConfig | PaperConfig) -> tuple[str, ...]:
    """Return the phases of a session, by its variant."""
    paper = isinstance(options, PaperConfig)
    return ("seeds", "means") if paper else ("cells", "candidates")


METHOD = Method(
    name="fkm",
    version=VERSION,
    title="FKM: federated k-means",
    citation="S. Garst, M. Reinders, Federated K-means clustering, arXiv 2310.01195, 2023",
    options=Config,
    default_max_rounds=100,
    joins_late=True,
    state=State,
    phases=PHASES,
    start=start,
    local_step=local_step,
    check=check,
    aggregate=aggregate,
    finish=finish,
    label=label,
    check_task=check_task,
    rounds=rounds,
    possible_phases=possible_phases,
    sweeps=True,
)
