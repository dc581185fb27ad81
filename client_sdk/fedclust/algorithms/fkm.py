"""fkm: federated k-means, which aligns the sites' clusters by clustering their means.

What it says and cites
    Garst & Reinders, "Federated K-means clustering", arXiv 2310.01195 (2023). Every site
    sends the means of its own clusters, as many as it has; the coordinator clusters the means,
    weighted by their counts, and sends the outcome back as the sites' next start. Sites may hold
    any part of the clusters. As published it restarts the coordinator's k-means in every round,
    and on clusters that overlap it stays at what it started with: 40 rounds in place of 10 give
    .007 of ARI (ALGORITHMS).

``variant: paper`` is Algorithm 1 as the authors' program runs it, but for the first vectors, which
were records and are means here. ``variant: default`` spends the rounds on the start: several
partitions of the sites' cells, each carried on by exact Lloyd steps in the same rounds, of which
the better half goes on every few rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from fedclust.algorithms import guarded_lloyd as lloyd
from fedclust.algorithms.arrays import FloatTensor3
from fedclust.algorithms.assigning import label_by_centroid, squared_distances
from fedclust.algorithms.base import (
    Contribution,
    Done,
    Memory,
    Method,
    Model,
    Next,
    Result,
    RuleViolation,
    RunConfig,
    Task,
)
from fedclust.algorithms.canonical import ascending, snapped
from fedclust.algorithms.choosing import SweptOptions
from fedclust.algorithms.finishing import raw_result
from fedclust.algorithms.fkm_answers import (
    PHASES,
    CandidatesTask,
    Means,
    MeansTask,
    Seeds,
    SeedsTask,
    check,
)
from fedclust.algorithms.fkm_site import local_step
from fedclust.algorithms.guarded_lloyd import Cells, CellsTask, Step
from fedclust.algorithms.judging import Judgement, judge
from fedclust.algorithms.kmeans import SAME, distinct_best, restarted
from fedclust.algorithms.seeding import server_rng
from fedclust.algorithms.totals import site_parts

VERSION = 3
#: What the authors' program uses.
_PAPER_ROUNDS = 10
_PAPER_RESTARTS = 10
_CANDIDATES = 8
#: In a sweep the Ks share them, down to so many each: every candidate's partitions take from what
#: the guard lets all others send.
_SWEPT_CANDIDATES = 2

# --- Config ---------------------------------------------------------------------------------------


class Config(SweptOptions, title="FkmConfig"):
    """What the analyst chooses.

    Attributes
    ----------
    n_clusters : int or tuple of int
        Number of clusters K; several for a sweep.
    variant : {"default", "paper"}
    candidates : int or None
        Default variant: the most partitions that are carried on at once. None: 8; in a sweep, 8
        over the number of Ks, rounded down, and at least 2.
    halve_every : int or None
        Default variant: rounds after which the better half of them goes on. None: 3.
    n_init : int or None
        Default variant: restarts of each site's local k-means. None: 3.
    tol : float
        Default variant: relative improvement of the inertia below which a round counts as no
        improvement.
    rounds : int or None
        Paper variant: how often the coordinator clusters; a fixed number. None: 10.
    drop_empty : bool
        Paper variant: whether a site drops the global centres that none of its rows are nearest
        to (line 15). False is for the paper's ablation.
    weighted : bool
        Paper variant: whether means weigh as much as they have rows (equation 1). False is for
        the paper's ablation.
    evaluate : bool
        Whether a closing round measures the quality of the final centroids.
    """

    variant: Literal["default", "paper"] = "default"
    candidates: Annotated[int, Field(ge=1, le=64)] | None = None
    halve_every: Annotated[int, Field(ge=1, le=1_000)] | None = None
    n_init: Annotated[int, Field(ge=1, le=100)] | None = None
    tol: Annotated[FiniteFloat, Field(ge=0, lt=1)] | None = None
    rounds: Annotated[int, Field(ge=1, le=10_000)] | None = None
    drop_empty: bool = True
    weighted: bool = True
    evaluate: bool = True

    @property
    def tolerance(self) -> float:
        """``tol`` or its default."""
        return 1e-6 if self.tol is None else self.tol


_OF_DEFAULT = ("candidates", "halve_every", "n_init", "tol")


def check_config(config: RunConfig) -> None:
    """Refuse options of the other variant."""
    options: Config = config.options
    if options.variant == "paper":
        strange = [name for name in _OF_DEFAULT if getattr(options, name) is not None]
        other = "default"
    else:
        strange = [name for name in ("drop_empty", "weighted") if not getattr(options, name)]
        strange += [] if options.rounds is None else ["rounds"]
        other = "paper"
    if strange:
        raise RuleViolation(
            "variant", f"{strange[0]} is only for variant: {other}; leave it out", f"/{strange[0]}"
        )


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
    names : tuple of str, length c
        The candidates that go on, best first.
    centroids : (c, K, d) float64 or None
        Scaled; what the open round assigns to. In the paper variant c is 1.
    judgements : tuple of Judgement, length c
        Of each candidate by itself.
    best : Judgement
        Of every round's best candidate: holds the best centroids ever.
    """

    phase: Literal["cells", "candidates", "seeds", "means"]
    seed: int
    closed: int = 0
    names: tuple[str, ...] = ()
    centroids: FloatTensor3 | None = None
    judgements: tuple[Judgement, ...] = ()
    best: Judgement = Judgement()


def start(config: RunConfig, seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    options: Config = config.options
    n_clusters = options.k
    if options.variant == "paper":
        parts = site_parts(config, ask=False)
        task = Task("seeds", SeedsTask(n_clusters=n_clusters), per_site=parts)
        return State(phase="seeds", seed=seed), task
    cells = CellsTask(n_clusters=n_clusters, n_init=options.n_init or 3)
    return State(phase="cells", seed=seed), Task("cells", cells, per_site=site_parts(config))


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    """Close a round; contributions sorted by site."""
    options: Config = config.options
    if options.variant == "paper":
        return _cluster_means(state, contributions, config)
    if state.centroids is None:
        return _first_candidates(state, contributions, config)
    return _candidates_step(state, state.centroids, contributions, config)


def _ask(state: State, metrics: dict[str, float], config: RunConfig) -> Next:
    """Ask the candidates' next Lloyd step of every site."""
    if state.centroids is None:
        raise lloyd.nothing_to_release()
    task = CandidatesTask(names=state.names, centroids=state.centroids)
    return Next(state, Task("candidates", task, per_site=site_parts(config)), metrics)


def _first_candidates(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next:
    """Cluster the sites' cells: several starts, of which distinct ones go on."""
    options: Config = config.options
    means, counts = _sent_means(contributions, config)
    found = distinct_best(
        means,
        counts.astype(np.float64),
        options.k,
        server_rng(state.seed, "fkm-candidates"),
        options.candidates or max(_CANDIDATES // max(len(config.sweep), 1), _SWEPT_CANDIDATES),
    )
    following = State(
        phase="candidates",
        seed=state.seed,
        names=tuple(f"start-{i}" for i in range(len(found))),
        centroids=np.stack(found),
        judgements=(Judgement(),) * len(found),
    )
    return _ask(following, {}, config)


def _sent_means(
    contributions: Sequence[Contribution], config: RunConfig
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return every mean (m, d) that was sent, and its count (m,) (Algorithm 1, lines 8 and 9)."""
    sent: list[Cells | Seeds | Means] = [c.payload for c in contributions if c.payload is not None]
    # A mean without rows behind it, or without weight, says nothing.
    usable = [
        np.where(payload.members > 0, payload.counts, 0)
        if isinstance(payload, Means)
        else payload.counts
        for payload in sent
    ]
    lloyd.refuse_too_few(usable, config)
    counts = np.concatenate(usable)
    means = np.concatenate([payload.means for payload in sent])
    return means[counts > 0], counts[counts > 0]


def _candidates_step(
    state: State,
    centroids: NDArray[np.float64],
    contributions: Sequence[Contribution],
    config: RunConfig,
) -> Next | Done:
    """Add up every candidate's step, judge, and choose who goes on."""
    options: Config = config.options
    tol = options.tolerance
    # Number, moved centroids, costs by site and metrics of each candidate that goes on.
    steps: list[tuple[int, NDArray[np.float64], dict[str, float | None], dict[str, float]]] = []
    for i in range(len(centroids)):
        parts = [
            Contribution(c.site, None if c.payload is None else c.payload.step(i), c.p)
            for c in contributions
        ]
        # What too few may send anything of drops out, unless that is all.
        with_cells = sum(c.payload is not None and bool(c.payload.counts.any()) for c in parts)
        if with_cells >= config.policy.min_sites or (not steps and i == len(centroids) - 1):
            moved, costs, metrics = lloyd.step(centroids[i], parts, config)
            costs = estimated(costs, parts, config)
            metrics["inertia"] = float(sum(cost or 0.0 for cost in costs.values()))
            steps.append((i, moved, costs, metrics))
    # Candidates are compared within the round: the same sites and rows, the rest included.
    steps = [steps[place] for place in ascending([step[3]["inertia"] for step in steps])]
    lead, _, costs, metrics = steps[0]
    best = judge(state.best, centroids[lead], costs, config, tol)
    going_on = []
    for i, moved, costs, measured in steps:
        judgement = judge(state.judgements[i], centroids[i], costs, config, tol)
        going_on.append((i, moved, judgement, measured["inertia"]))
    closed = state.closed + 1
    most = len(going_on)
    if closed % (options.halve_every or 3) == 0:
        most = (len(going_on) + 1) // 2
    going_on = _contenders(going_on)[:most]
    following = State(
        phase="candidates",
        seed=state.seed,
        closed=closed,
        names=tuple(state.names[i] for i, *_ in going_on),
        centroids=np.stack([moved for _, moved, *_ in going_on]),
        judgements=tuple(judgement for *_, judgement, _ in going_on),
        best=best,
    )
    if _converged(following):
        return Done(finish(following, config), metrics)
    return _ask(following, metrics, config)


def estimated(
    costs: Mapping[str, float | None], parts: Sequence[Contribution], config: RunConfig
) -> dict[str, float | None]:
    """Return what a candidate costs at each site, every unsent row at the mean of the sent ones.

    Parameters
    ----------
    costs : mapping of site to float or None
        Of :func:`lloyd.step`. They stay where a site's totals are unknown.
    parts : sequence of Contribution
        The candidate's steps, of which at least one has rows.

    Notes
    -----
    ALGORITHMS' common rule counts the rest as one cell. Of rows from all over, that cell costs
    what no clustering would, and the more the better a candidate tells them apart: on FKM's data
    at p=2, beta .1 and noise 1.5 the outcomes so chosen cost 1.7 % more than central k-means, and
    .2 % more by this estimate (means of ten runs). It moves no centroid.
    """
    sent: dict[str, Step] = {c.site: c.payload for c in parts if c.payload is not None}
    rows = sum(int(step.counts.sum()) for step in sent.values())
    mean = sum(float(step.costs.sum()) for step in sent.values()) / rows
    charged = dict(costs)
    for site in charged.keys() & config.totals.keys():
        step = sent.get(site)
        n_sent, cost = (0, 0.0) if step is None else (int(step.counts.sum()), step.costs.sum())
        charged[site] = float(cost) + (config.totals[site].n - n_sent) * mean
    return charged


_Standing = tuple[int, NDArray[np.float64], Judgement, float]


def _contenders(standings: Sequence[_Standing]) -> list[_Standing]:
    """Return, best first, the leader and whoever may still overtake it.

    That is neither a candidate that has converged to something worse, nor one that has come to the
    same inertia as a better one.
    """
    kept = [standings[0]]
    for standing in standings[1:]:
        _, _, judgement, inertia = standing
        if inertia > kept[-1][3] * (1.0 + SAME) and not judgement.converged:
            kept.append(standing)
    return kept


def _cluster_means(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    """Algorithm 1, lines 7 to 11, of the paper variant: k-means afresh in every round."""
    options: Config = config.options
    means, counts = _sent_means(contributions, config)
    centroids = restarted(
        means,
        counts.astype(np.float64) if options.weighted else np.ones(len(means)),
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
    if closed >= (options.rounds or _PAPER_ROUNDS):
        return Done(finish(following, config), metrics)
    task = MeansTask(centroids=centroids, drop_empty=options.drop_empty)
    return Next(following, Task("means", task, per_site=site_parts(config, ask=False)), metrics)


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
    best = state.best.best
    if best is not None:
        centroids = best.centroids
    elif state.centroids is not None:
        centroids = state.centroids[0]
    else:
        raise lloyd.nothing_to_release()
    because = "converged" if _converged(state) else ""
    if config.options.variant == "paper":
        because = "finished"
    return raw_result(centroids, config, stopped_because=because)


# --- Labelling ------------------------------------------------------------------------------------


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units by the nearest centroid; ``memory`` plays no part."""
    del memory
    return label_by_centroid(result, X)


def by_runs(options: Config) -> bool:
    """Return whether rows need not be in memory: the paper's steps need all at once."""
    return options.variant == "default"


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
    check_config=check_config,
    start=start,
    local_step=local_step,
    check=check,
    aggregate=aggregate,
    finish=finish,
    label=label,
    by_runs=by_runs,
    sweeps=True,
)
