"""fkm: federated k-means, which matches the sites' clusters by clustering their means.

Garst & Reinders, "Federated K-means clustering", arXiv 2310.01195, 2023. Every site sends the means
of its own clusters; it may hold any of the clusters. The coordinator clusters the means, weighted
by their counts, and sends the result back as the sites' next start. As published, the coordinator
restarts its k-means in every round. If clusters overlap, the result stays near the first one: 40
rounds instead of 10 improve the ARI by .007.

``variant: paper`` is Algorithm 1 as the authors' program runs it. ``variant: default`` starts from
several partitions of the sites' cells. Each continues by exact Lloyd steps in the same rounds, and
every few rounds the worse half is dropped.
"""

from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field, RootModel

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.kmeans_rounds import (
    Cells,
    CellsTask,
    Judgement,
    Steps,
    cluster_sums,
    disclosures,
    judge,
    local_starts,
)
from fedclust.methods.common.options import (
    Restarts,
    SweptOptions,
    Tolerance,
    refuse_dissimilarity,
    variants,
)
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.arrays import FloatMatrix, FloatTensor3
from fedclust.numeric.canonical import round_to_tolerance, tolerant_argmax, tolerant_argsort
from fedclust.numeric.distances import nearest_centroid, squared_distances
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import (
    SAME_INERTIA,
    best_partitions,
    kmeans_plus_plus,
    sklearn_kmeans,
)
from fedclust.schema.display import counted
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import Method
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import centroid_rule, median_rule
from fedclust.schema.task import (
    CentroidTask,
    Contribution,
    Done,
    Next,
    Phase,
    SiteSide,
    SiteTask,
    Task,
    with_payload,
)

# --- Options --------------------------------------------------------------------------------------


class DefaultConfig(SweptOptions, title="FkmDefaultConfig"):
    """Options of the default variant: exact Lloyd rounds of several candidates."""

    variant: Literal["default"]
    candidates: Annotated[int, Field(ge=1, le=64)] = 8
    """The most candidate clusterings that continue in parallel."""
    halve_every: Annotated[int, Field(ge=1, le=1_000)] = 3
    """Rounds after which the worse half of the candidates is dropped."""
    n_init: Restarts = 3
    """Restarts of each site's k-means in the phase `cells`."""
    tol: Tolerance = 1e-6
    """Relative improvement of the inertia below which a round counts as no improvement."""

    phases: ClassVar = ("cells", "candidates")

    @property
    def shape_numbers(self) -> dict[str, str]:
        """The values of K and c."""
        return {**super().shape_numbers, "c": str(self.candidates)}


class PaperConfig(SweptOptions, title="FkmPaperConfig"):
    """Options of the paper's variant: the published algorithm."""

    variant: Literal["paper"]
    rounds: Annotated[int, Field(ge=1, le=10_000)] = 10
    """How often the coordinator clusters the sites' means."""
    drop_empty: bool = True
    """Whether a site drops the global centroids that none of its points are nearest to (line 15 of
    the paper's algorithm). False is the paper's ablation.
    """
    drop_below: Annotated[int, Field(ge=1, le=1_000_000)] = 2
    """A site does not send a mean that fewer persons than this are nearest to."""
    weighted: bool = True
    """Whether means are weighted by persons (equation 1). False is the paper's ablation."""

    @property
    def round_limit(self) -> int:
        """The fixed number of rounds."""
        return self.rounds

    phases: ClassVar = ("seeds", "means")


Variants: TypeAlias = DefaultConfig | PaperConfig


def check_config(config: RunConfig[Variants]) -> None:
    """Raise RuleViolation if the paper variant is asked for another dissimilarity."""
    if isinstance(config.options, PaperConfig):
        refuse_dissimilarity(config)


Config: type[RootModel[Variants]] = variants("FkmConfig", DefaultConfig, PaperConfig)


# --- What travels ---------------------------------------------------------------------------------


class SeedsTask(Model):
    """Draw K of your points by k-means++."""


class MeansTask(CentroidTask):
    """Do one k-means iteration from ``centroids`` (K, d), scaled."""

    centroids: FloatMatrix


class CandidatesTask(CentroidTask):
    """Assign your points to the nearest centroid of each candidate.

    ``centroids`` (c, K, d) are scaled.
    """

    centroids: FloatTensor3


def _check_task(task: SiteTask[CandidatesTask], config: RunConfig[DefaultConfig]) -> None:
    """Raise RuleViolation if a task has more candidates than the definition names."""
    if len(task.common.centroids) > config.options.candidates:
        message = f"the definition names {config.options.candidates} candidates"
        raise RuleViolation("task", message, "/parameters/centroids")


# --- At a site ------------------------------------------------------------------------------------


def _step_candidates(task: SiteTask[CandidatesTask], site: SiteSide) -> Steps:
    rule = median_rule(site.config)
    return kmeans_rounds.site_lloyd_steps(task.common.centroids, site.points, rule)


def _seed_means(_task: SiteTask[SeedsTask], site: SiteSide[PaperConfig]) -> Cells | None:
    """Return the means of the points nearest to each of K k-means++ seeds (Algorithm 1, lines 3-5).

    The authors' program sends the seeds themselves. A lone outlier is often one of them, and would
    count as a cluster at the coordinator.
    """
    points, k = site.points, site.config.options.k
    seeds = kmeans_plus_plus(points.X, points.sizes.astype(np.float64), k, site.rng)
    sums = cluster_sums(points, nearest_centroid(points.X, seeds), seeds)
    return _keep_large_cells(sums.counts, sums.means, site.config.options, k)


def _update_means(task: SiteTask[MeansTask], site: SiteSide[PaperConfig]) -> Cells | None:
    """Do one k-means iteration from the global centroids (Algorithm 1, lines 13 to 18).

    As in the authors' program, S_i counts the points nearest to the new means.
    """
    points, centroids, options = site.points, task.common.centroids, site.config.options
    labels = nearest_centroid(points.X, centroids)
    if not options.drop_empty:
        labels = fill_empty_clusters(points.X, labels, centroids)
    sums = cluster_sums(points, labels, centroids)
    means = sums.means[sums.counts > 0]
    counts = cluster_sums(points, nearest_centroid(points.X, means), means).counts
    return _keep_large_cells(counts, means, options, len(centroids))


def _keep_large_cells(
    counts: IntArray, means: FloatArray, options: PaperConfig, n_cells: int
) -> Cells | None:
    """Return the cells of at least ``drop_below`` persons, padded; None if there are none."""
    kept = counts >= options.drop_below
    if not kept.any():
        return None
    return kmeans_rounds.pad_cells(counts[kept], means[kept], n_cells)


def fill_empty_clusters(X: FloatArray, labels: IntArray, centroids: FloatArray) -> IntArray:
    """Return labels (m,) that give each empty cluster the point farthest from its centroid.

    As scikit-learn does, which the authors' program uses.
    """
    labels = labels.copy()
    gaps = ((X - centroids[labels]) ** 2).sum(axis=1)
    for empty in np.flatnonzero(np.bincount(labels, minlength=len(centroids)) == 0)[: len(X)]:
        farthest = int(tolerant_argmax(gaps))
        labels[farthest], gaps[farthest] = empty, -1.0
    return labels


# --- The phases -----------------------------------------------------------------------------------


PHASES = (
    kmeans_rounds.CELLS,
    Phase(
        name="candidates",
        summary="Each site adds up its records at the nearest centroids, for c candidates.",
        task=CandidatesTask,
        payload=Steps,
        local_step=_step_candidates,
        check=lambda task, sent, config: kmeans_rounds.check_steps(
            sent, task.common.centroids, config
        ),
        check_task=_check_task,
        discloses=disclosures(
            counts="c x K numbers: How many of your persons are nearest to each centroid, for each "
            "of c clusterings that are tried side by side: at first as many as the option "
            "candidates says, later fewer.",
            sums="c x K x d numbers: The sum of each column over these, scaled.",
            costs="c x K numbers: How far their records lie from the centroid, squared and added "
            "up.",
        ),
    ),
    Phase(
        name="seeds",
        once=True,
        summary="Only in the paper's variant: means of the points nearest to K seeds of k-means++.",
        task=SeedsTask,
        payload=Cells,
        local_step=_seed_means,
        check=lambda _, sent, config: kmeans_rounds.check_cells(sent, config.options.k, config),
        discloses=disclosures(
            counts="K numbers: How many of your persons are nearest to each of K points drawn at "
            "random.",
            means="K x d numbers: The means of the points nearest to each of them, scaled.",
        ),
    ),
    Phase(
        name="means",
        summary="Only in the paper's variant: each site does one k-means iteration of its own.",
        task=MeansTask,
        payload=Cells,
        local_step=_update_means,
        check=lambda task, sent, config: kmeans_rounds.check_cells(
            sent, len(task.common.centroids), config
        ),
        discloses=disclosures(
            counts="K numbers: How many of your persons are nearest to each of the new means.",
            means="K x d numbers: The mean of each column over the points nearest to each "
            "centroid, scaled.",
        ),
    ),
)


# --- At the coordinator ---------------------------------------------------------------------------


#: Restarts of the authors' program in every round.
_PAPER_RESTARTS = 10


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
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


def start(config: RunConfig[Variants], seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    options = config.options
    if isinstance(options, PaperConfig):
        return State(seed=seed), Task("seeds", SeedsTask())
    task = CellsTask(n_clusters=options.k, n_init=options.n_init)
    return State(seed=seed), Task("cells", task)


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig[Variants]
) -> Next[State] | Done:
    """Aggregate a round; contributions are sorted by site."""
    options = config.options
    if isinstance(options, PaperConfig):
        return _cluster_means(state, contributions, config, options)
    if state.centroids is None:
        return _first_candidates(state, contributions, config, options)
    steps = with_payload(contributions, Steps)
    return _candidates_step(state, state.centroids, steps, config, options)


def _next_step(
    state: State, centroids: FloatArray, metrics: Mapping[str, float] | None = None
) -> Next[State]:
    """Return the candidates' next Lloyd step."""
    return Next(state, Task("candidates", CandidatesTask(centroids=centroids)), metrics or {})


def _first_candidates(
    state: State, contributions: Sequence[Contribution], config: RunConfig, options: DefaultConfig
) -> Next[State]:
    """Cluster the sites' cells from several starts; the distinct results are the candidates."""
    means, counts = kmeans_rounds.collect_cells(contributions)
    rng = server_rng(state.seed, "fkm-candidates")
    rule = centroid_rule(config)
    found = best_partitions(means, counts, options.k, rng, options.candidates, rule=rule)
    centroids = np.stack(found)
    following = State(
        seed=state.seed,
        centroids=centroids,
        judgements=(Judgement(),) * len(centroids),
    )
    return _next_step(following, centroids)


def _candidates_step(
    state: State,
    centroids: FloatArray,
    contributions: Sequence[Contribution[Steps]],
    config: RunConfig[Variants],
    options: DefaultConfig,
) -> Next[State] | Done:
    """Combine and judge every candidate's step, and choose the candidates that continue."""
    steps = []
    for i, candidate in enumerate(centroids):
        parts = [each.part(methodcaller("step", i)) for each in contributions]
        steps.append((i, *kmeans_rounds.combine_steps(candidate, parts, config)))
    # All candidates of a round are measured at the same sites, so their inertias are comparable.
    steps = [steps[place] for place in tolerant_argsort([step[3]["inertia"] for step in steps])]
    leader, _, costs, leader_metrics = steps[0]
    best = judge(state.best, centroids[leader], costs, config, options.tol)
    kept: list[tuple[FloatArray, Judgement]] = []
    highest = 0.0
    for i, stepped, costs, metrics in steps:
        judgement = judge(state.judgements[i], centroids[i], costs, config, options.tol)
        # The leader stays. No other can overtake it that has converged, or that has the same
        # inertia as a better one.
        distinct = metrics["inertia"] > highest * (1.0 + SAME_INERTIA)
        if not kept or (distinct and not judgement.converged):
            kept.append((stepped, judgement))
            highest = metrics["inertia"]
    closed = state.closed + 1
    if closed % options.halve_every == 0:
        kept = kept[: (len(steps) + 1) // 2]
    moved = np.stack([stepped for stepped, _ in kept])
    following = State(
        seed=state.seed,
        closed=closed,
        centroids=moved,
        judgements=tuple(judgement for _, judgement in kept),
        best=best,
    )
    if following.converged:
        return Done(finish(following, config), leader_metrics)
    return _next_step(following, moved, leader_metrics)


def _cluster_means(
    state: State,
    contributions: Sequence[Contribution],
    config: RunConfig[Variants],
    options: PaperConfig,
) -> Next[State] | Done:
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
    following = State(seed=state.seed, closed=closed, centroids=centroids[None])
    if closed >= options.rounds:
        return Done(finish(following, config), metrics)
    return Next(following, Task("means", MeansTask(centroids=centroids)), metrics)


def order_centroids(centroids: FloatArray, before: FloatArray) -> tuple[FloatArray, float]:
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


# --- What a paper says ----------------------------------------------------------------------------


def describe(options: Variants) -> str:
    """Return what a methods section of a paper says of these options."""
    if isinstance(options, DefaultConfig):
        return (
            "In its default variant, each site first divided its own points into at most K cells "
            f"by weighted k-means from {local_starts(options.n_init)}. The coordinator clustered "
            "the cells' means, weighted by their persons, from several starts (farthest first, "
            f"k-means++, Ward's agglomeration). Up to {options.candidates} of the best distinct "
            "partitions were candidates, which exact Lloyd steps over all sites improved side by "
            f"side; after every {counted(options.halve_every, 'round')} the worse half was "
            "dropped. The rounds ended when no candidate improved its inertia by more than "
            f"{options.tol:g}, relative, in two successive rounds."
        )
    dropped = (
        "left out the centroids that none of its points was nearest to"
        if options.drop_empty
        else "kept the centroids that none of its points was nearest to"
    )
    weights = "weighted by persons" if options.weighted else "with equal weights"
    persons = "person" if options.drop_below == 1 else "persons"
    return (
        "In the published variant (Algorithm 1), each site drew its first centroids by "
        f"k-means++. In each of {counted(options.rounds, 'round')} the coordinator clustered the "
        f"sites' means, {weights}, by k-means from 10 starts; each site then {dropped}, made one "
        f"k-means iteration from the others, and sent the means of {options.drop_below} "
        f"{persons} or more."
    )


METHOD: Method[Variants, State] = Method(
    name="fkm",
    version=5,
    title="FKM: federated k-means",
    citation="S. Garst, M. Reinders, Federated K-means clustering, arXiv 2310.01195, 2023",
    references=("garst2023", "lloyd1982"),
    describe=describe,
    options=Config,
    phases=PHASES,
    check_config=check_config,
    state=State,
    start=start,
    aggregate=aggregate,
    finish=finish,
    dissimilarities=("euclidean", "gower", "k-prototypes"),
)
