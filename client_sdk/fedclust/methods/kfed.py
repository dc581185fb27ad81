"""kfed: k-FED, clustering in one round from the means of the sites' own clusters.

Dennis, Li & Smith, "Heterogeneity for the win: one-shot federated clustering", ICML 2021 (PMLR
139). Every site clusters its own points and sends the means. The coordinator clusters the means,
and each local cluster gets the cluster of its mean (Definition 3.3). A site that holds few clusters
separates them more easily than a central k-means of all: if no site has more than sqrt(K) of the K
clusters, pairs that never occur at one site need less separation (Theorem 3.1).

``variant: paper`` is Algorithms 1 and 2 as published, with one exception: a site with at most k'
rows makes fewer cells, because otherwise its rows would be its means. ``variant: default`` replaces
what fails on uneven sites. It uses k-means with restarts instead of one seeding and its 1/3 rule,
more cells than clusters, cells weighted by their counts, several starts at the coordinator, and
labels by the nearest centroid. ``refine`` adds exact Lloyd rounds.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field, RootModel

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.assign import CELLS_KEY, label_by_cells
from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.kmeans_rounds import (
    Cells,
    ClusterSums,
    StepTask,
    cluster_sums,
    local_kmeans,
    local_restarts,
    local_starts,
)
from fedclust.methods.common.options import Restarts, SweptOptions, refuse_dissimilarity, variants
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.arrays import FloatMatrix
from fedclust.numeric.canonical import (
    TIE_TOLERANCE,
    canonical_eigenbasis,
    tolerant_argmax,
    tolerant_argmin,
)
from fedclust.numeric.distances import first_occurrences, nearest_centroid, squared_distances
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.schema.display import counted
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import Method, no_centroids
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import centroid_rule
from fedclust.schema.task import (
    Contribution,
    Done,
    Next,
    Phase,
    Points,
    SiteSide,
    SiteTask,
    Task,
    payloads_of,
    row_points,
)

# --- Options --------------------------------------------------------------------------------------


#: The default local_clusters, per cluster. On the grid of the FKM paper more cells gave better
#: labels up to about this number: a cell on the border of two clusters mixes them.
_CELLS_PER_CLUSTER = 8
#: The fewest cells with which the default variant projects.
_MIN_PROJECTED_CELLS = 32


class _KfedOptions(SweptOptions):
    """Options of both variants."""

    local_clusters: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """k', the most cells of a site. None: 8 K; in the paper variant sqrt(K), rounded up."""
    refine: Annotated[int, Field(ge=0, le=99)] = 0
    """Exact Lloyd rounds after the first round."""

    @property
    def round_limit(self) -> int:
        """The fixed number of rounds."""
        return 1 + self.refine

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases of a session; ``refine`` is optional."""
        return ("cells", "refine") if self.refine else ("cells",)


class DefaultConfig(_KfedOptions, title="KfedDefaultConfig"):
    """Options of the default variant: more cells than clusters, and restarts."""

    variant: Literal["default"]
    n_init: Restarts | None = None
    """Restarts of each site's k-means. None: 10, down to 2 at a large site."""
    projection: Literal["auto", "on", "off"] = "auto"
    """Whether a site runs its k-means among projections on its singular vectors above the noise.
    `auto`: from 32 cells on.
    """
    labels: Literal["nearest", "cells"] = "nearest"
    """How a site that took part labels its rows: by the nearest centroid, or by the cluster of its
    own nearest cell (Definition 3.3). All other rows, and all rows after refinement, get the
    nearest centroid.
    """

    @property
    def cells(self) -> int:
        """The most cells of a site, k'."""
        return self.local_clusters or min(_CELLS_PER_CLUSTER * self.k, 10_000)

    @property
    def projects(self) -> bool:
        """Whether sites project their points."""
        if self.projection == "auto":
            return self.cells >= _MIN_PROJECTED_CELLS
        return self.projection == "on"


class PaperConfig(_KfedOptions, title="KfedPaperConfig"):
    """Options of the paper's variant: Algorithms 1 and 2 as published."""

    variant: Literal["paper"]
    projection: Literal["on", "off"] = "on"
    """Whether a site seeds its k-means in the space of its first k' singular vectors."""
    labels: Literal["cells", "nearest"] = "cells"
    """How a site that took part labels its rows: by the cluster of its own nearest cell (Definition
    3.3), or by the nearest centroid. All other rows, and all rows after refinement, get the nearest
    centroid.
    """
    server_lloyd: Literal["converge", "one"] = "converge"
    """Whether the coordinator runs Lloyd to convergence, as the authors' program does, or once
    (Algorithm 2, line 7).
    """

    @property
    def cells(self) -> int:
        """The most cells of a site, k'."""
        return self.local_clusters or int(np.ceil(np.sqrt(self.k)))

    @property
    def projects(self) -> bool:
        """Whether sites project their points."""
        return self.projection == "on"


Variants: TypeAlias = DefaultConfig | PaperConfig
Config: type[RootModel[Variants]] = variants("KfedConfig", DefaultConfig, PaperConfig)


def check_config(config: RunConfig[Variants]) -> None:
    """Raise RuleViolation if the paper variant has too many local clusters, or is not Euclidean."""
    options = config.options
    if isinstance(options, PaperConfig):
        refuse_dissimilarity(config)
    if isinstance(options, PaperConfig) and options.cells > options.k:
        raise RuleViolation(
            "variant",
            "variant: paper starts from one site's means: local_clusters is at most n_clusters",
            "/local_clusters",
        )


# --- What travels ---------------------------------------------------------------------------------


class CellsTask(Model, title="KfedCellsTask"):
    """Cluster your own points.

    Attributes
    ----------
    n_clusters : int
        The most cells, k'.
    variant : {"default", "paper"}
        By :func:`restarted_cells`, or by :func:`algorithm_1`.
    n_init : int or None
        Restarts of the default variant; None: :func:`local_restarts`.
    project : bool
        Whether to project the points on their first singular vectors to find cells.
    """

    n_clusters: Annotated[int, Field(ge=1)]
    variant: Literal["default", "paper"]
    n_init: Annotated[int, Field(ge=1)] | None
    project: bool


def cells_task(options: Variants) -> CellsTask:
    """Return the task of the phase ``cells``."""
    return CellsTask(
        n_clusters=options.cells,
        variant=options.variant,
        n_init=options.n_init if isinstance(options, DefaultConfig) else None,
        project=options.projects,
    )


# --- At a site ------------------------------------------------------------------------------------


def find_cells(task: SiteTask[CellsTask], site: SiteSide[Variants]) -> Cells:
    """Return a site's cells; remember their means if they label its rows."""
    asked, points, options = task.common, site.points, site.config.options
    # At least two persons per cell on average: a site with k' rows or fewer would send its rows.
    n_cells = max(min(asked.n_clusters, points.n // 2), 1)
    if asked.variant == "paper":
        found = algorithm_1(points, n_cells, site.rng, project=asked.project)
    else:
        n_init = asked.n_init or local_restarts(len(points.X), points.X.shape[1], n_cells)
        n_clusters = options.k if asked.project else None
        found = restarted_cells(points, n_cells, n_init, site.rng, n_clusters)
    filled = found.counts > 0
    sent = Cells(counts=found.counts[filled], means=found.means[filled])
    if options.labels == "cells":
        site.memory[CELLS_KEY] = sent.means
    return sent


# --- How a site clusters its own points -----------------------------------------------------------


#: Singular values up to this share of the largest are rounding errors.
_RANK_TOLERANCE = 1e-6
_MAX_ITERATIONS = 300


def algorithm_1(
    points: Points, n_cells: int, rng: np.random.Generator, *, project: bool = True
) -> ClusterSums:
    """Return a site's cells by Algorithm 1, lines 2 to 4.

    The 10-approximation of line 2 is one k-means++ seeding. If no point is three times nearer to a
    seed than to the others (line 3), the centre is the mean of the points nearest to that seed.

    Parameters
    ----------
    points : Points
        Scaled.
    n_cells : int
        k', the most cells.
    rng : numpy.random.Generator
    project : bool
        Whether to seed among the projections on the first k' singular vectors (line 2).
    """
    X = _project_points(points, n_cells) if project else points.X
    seeds = draw_seeds(X, points.sizes, n_cells, rng)
    squares = squared_distances(X, seeds)
    closest = tolerant_argmin(squares)
    core = np.full(len(closest), True)
    if len(seeds) > 1:
        ordered = np.partition(squares, 1, axis=1)
        # Line 3, squared: nine times the nearest is at most the second nearest.
        core = ordered[:, 0] <= ordered[:, 1] / 9.0 + TIE_TOLERANCE * ordered.max()
    core_sums = _sum_cells(points, np.where(core, closest, -1), len(seeds))
    voronoi = _sum_cells(points, closest, len(seeds))
    centres = np.where(core_sums.counts[:, None] > 0, core_sums.means, voronoi.means)
    return lloyd_to_convergence(points, centres[voronoi.counts > 0])


def draw_seeds(
    X: FloatArray, weights: IntArray, n_seeds: int, rng: np.random.Generator
) -> FloatArray:
    """Return seeds (s, d) drawn from weighted points (m, d) by plain, not greedy, k-means++.

    Fewer than ``n_seeds`` if there are fewer distinct points.
    """
    seeds: list[FloatArray] = []
    gaps = np.ones(len(X))
    while len(seeds) < n_seeds and gaps.any():
        mass = np.cumsum(weights * gaps)
        drawn = int(np.searchsorted(mass, rng.random() * mass[-1], side="right"))
        seeds.append(X[min(drawn, len(X) - 1)])
        # Differences, not the expanded square: the gap between equal points must be 0.
        squares = ((X - seeds[-1]) ** 2).sum(axis=1)
        gaps = squares if len(seeds) == 1 else np.minimum(gaps, squares)
    return np.array(seeds)


def restarted_cells(
    points: Points,
    n_cells: int,
    n_init: int,
    rng: np.random.Generator,
    n_clusters: int | None = None,
) -> ClusterSums:
    """Return a site's cells by weighted k-means with restarts.

    Small cells in many dimensions follow noise and mix clusters. With ``n_clusters`` k-means
    therefore runs among the projections on the singular vectors of :func:`count_directions`. If
    there are no more cells than these vectors, the cells are large, and Lloyd continues from the
    result among the points themselves.

    Parameters
    ----------
    points : Points
        Scaled.
    n_cells, n_init : int
        The most cells, and the restarts.
    rng : numpy.random.Generator
    n_clusters : int, optional
        K, to project.
    """
    kept = None
    if n_clusters is not None:
        project, values = _singular_projection(points)
        # Constant columns hold no noise and must not count as dimensions of it.
        varying = int((points.X[0] != points.X).any(axis=0).sum())
        kept = count_directions(values, (len(points.X), varying), n_clusters)
    if kept is None:
        return local_kmeans(points, n_cells, n_init, rng)
    projected = replace(points, X=project(kept), within=np.zeros(kept))
    centres = local_kmeans(projected, n_cells, n_init, rng).means
    found = _sum_cells(points, nearest_centroid(projected.X, centres), len(centres))
    if n_cells > kept:
        return found
    return lloyd_to_convergence(points, found.means[found.counts > 0])


def count_directions(values: FloatArray, shape: tuple[int, int], n_clusters: int) -> int | None:
    """Return the number of singular vectors that separate clusters; the others are noise.

    Those with a singular value above the optimal threshold for noise of unknown level (Gavish &
    Donoho, "The optimal hard threshold for singular values is 4/sqrt(3)", 2014, equation 11), and
    at least sqrt(K): the clusters of a heterogeneous site (Definition 3.2) span as many directions.

    Parameters
    ----------
    values : (r,) float64
        All singular values of a site's points, descending.
    shape : tuple of int
        (m, d), of the columns that vary.
    n_clusters : int
        K. The means of K clusters span up to K directions.

    Returns
    -------
    int or None
        None: all, because there are at most K.
    """
    if not values.any():
        return None
    # Values from constant or repeated columns are rounding errors, not noise.
    values = values[values > _RANK_TOLERANCE * values[0]]
    if len(values) <= n_clusters:
        return None
    beta = len(values) / max(shape)
    omega = 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43
    found = int((values > omega * np.median(values)).sum())
    return max(found, int(np.ceil(np.sqrt(n_clusters))))


def _project_points(points: Points, n_vectors: int) -> FloatArray:
    """Return coordinates (m, r) in the span of the first singular vectors of X, not centred.

    Algorithm 1, line 2. Distances are those of the projections in the original space.
    """
    if n_vectors >= min(points.X.shape):
        return points.X
    return _singular_projection(points)[0](n_vectors)


def _singular_projection(points: Points) -> tuple[Callable[[int], FloatArray], FloatArray]:
    """Return a function that projects points on r singular vectors, and all values, descending.

    Points are weighted by persons: the mean of more persons has less noise, and so all noise has
    the same level. Computed from the smaller of the two matrices of products.
    """
    roots = np.sqrt(points.sizes)[:, None]
    X = points.X * roots
    wide = X.shape[1] > len(X)
    # Cached for the other numbers of clusters of a sweep.
    if "singular" not in points.derived:
        squares, vectors = np.linalg.eigh(X @ X.T if wide else X.T @ X)
        vectors = canonical_eigenbasis(squares / max(float(squares[-1]), 1e-300), vectors)[:, ::-1]
        points.derived["singular"] = squares, vectors
    squares, vectors = points.derived["singular"]
    values = np.sqrt(np.maximum(squares[::-1], 0.0))
    if wide:
        return lambda r: np.asarray(vectors[:, :r] * values[:r] / roots), values
    return lambda r: np.asarray(points.X @ vectors[:, :r]), values


def _sum_cells(points: Points, labels: IntArray, n_cells: int) -> ClusterSums:
    """Sum up points by cell, relative to the mean of all points."""
    centre = np.average(points.X, axis=0, weights=points.sizes)
    return cluster_sums(points, labels, np.tile(centre, (n_cells, 1)))


def lloyd_to_convergence(points: Points, centres: FloatArray) -> ClusterSums:
    """Run Lloyd steps until no point changes its cell (Algorithm 1, line 4).

    Starts from ``centres`` (K, d). A centre without points keeps its place.
    """
    labels = nearest_centroid(points.X, centres)
    for _ in range(_MAX_ITERATIONS):
        found = cluster_sums(points, labels, centres)
        centres = np.where(found.counts[:, None] > 0, found.means, centres)
        moved = nearest_centroid(points.X, centres)
        if np.array_equal(moved, labels):
            break
        labels = moved
    return found


# --- The phases -----------------------------------------------------------------------------------


_SHAPES = {"counts": "up to k' numbers", "means": "up to k' x d numbers"}

PHASES: tuple[Phase, ...] = (
    replace(
        kmeans_rounds.CELLS,
        summary="Each site clusters its own points; the coordinator clusters the cells' means.",
        task=CellsTask,
        local_step=find_cells,
        check=lambda task, sent, config: kmeans_rounds.check_cells(
            sent, task.common.n_clusters, config, fewer=True
        ),
        discloses=tuple(
            line.model_copy(update={"shape": _SHAPES[line.field]})
            for line in kmeans_rounds.CELLS.discloses
        ),
    ),
    replace(
        kmeans_rounds.STEP,
        name="refine",
        summary=(
            "Only where the analyst asks for refinement: each site assigns its points to the "
            "nearest centroid and adds them up."
        ),
    ),
)


# --- At the coordinator ---------------------------------------------------------------------------


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    seed : int
    centroids : (K, d) float64 or None
        Scaled.
    mapping : dict of site to tuple of int
        The cluster of each of its cells; empty after refinement, and with ``labels: nearest``.
    refined : int
        Refinement rounds closed.
    """

    seed: int
    centroids: FloatMatrix | None = None
    mapping: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    refined: int = 0


def start(config: RunConfig[Variants], seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    return State(seed=seed), Task("cells", cells_task(config.options))


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig[Variants]
) -> Next[State] | Done:
    """Aggregate a round; contributions are sorted by site."""
    options = config.options
    metrics: dict[str, float] = {}
    mapping: dict[str, tuple[int, ...]] = {}
    refined = 0
    if state.centroids is None:
        centroids, mapping = _cluster_cells(state.seed, contributions, config)
    else:
        centroids, _, metrics = kmeans_rounds.combine_steps(state.centroids, contributions, config)
        refined = state.refined + 1
    following = State(seed=state.seed, centroids=centroids, mapping=mapping, refined=refined)
    if refined >= options.refine:
        return Done(finish(following, config), metrics)
    return Next(following, Task("refine", StepTask(centroids=centroids)), metrics)


def _cluster_cells(
    seed: int, contributions: Sequence[Contribution], config: RunConfig[Variants]
) -> tuple[FloatArray, dict[str, tuple[int, ...]]]:
    """Cluster the cells' means; return the centroids and the mapping of :class:`State`."""
    options, sent = config.options, payloads_of(contributions, Cells)
    means = np.concatenate([cells.means for cells in sent.values()])
    if isinstance(options, PaperConfig):
        first = next(iter(sent.values()))
        seeds = farthest_first(means, first.means, options.k)
        clusters, centroids = _server_lloyd(means, seeds, once=options.server_lloyd == "one")
    else:
        counts = np.concatenate([cells.counts for cells in sent.values()]).astype(np.float64)
        rng, rule = server_rng(seed, "kfed-cells"), centroid_rule(config)
        centroids = weighted_kmeans(means, counts, options.k, rng, rule=rule)
        clusters = nearest_centroid(means, centroids)
    if options.labels == "nearest":
        return centroids, {}
    ends = np.cumsum([len(cells.counts) for cells in sent.values()])
    by_site = zip(sent, np.split(clusters, ends[:-1]), strict=True)
    return centroids, {site: tuple(own.tolist()) for site, own in by_site}


def farthest_first(means: FloatArray, first: FloatArray, n_clusters: int) -> FloatArray:
    """Return the seeds M (K', d) of Algorithm 2, lines 2 to 6.

    One site's means, then each time the mean farthest from all seeds. Fewer than ``n_clusters``
    if there are not enough distinct means.

    Parameters
    ----------
    means : (m, d) float64
        Of all sites.
    first : (k', d) float64
        Of one site.
    n_clusters : int
    """
    seeds = list(first[first_occurrences(first)])
    gaps = np.full(len(means), np.inf)
    for number in range(n_clusters):
        if number == len(seeds):
            if not gaps.any():
                break
            seeds.append(means[int(tolerant_argmax(gaps))])
        np.minimum(gaps, squared_distances(means, seeds[number][None])[:, 0], out=gaps)
        # Rounding must not leave a gap between equal means, or one would be chosen twice.
        gaps[(means == seeds[number]).all(axis=1)] = 0.0
    return np.array(seeds)


def _server_lloyd(
    means: FloatArray, seeds: FloatArray, *, once: bool
) -> tuple[IntArray, FloatArray]:
    """Return the clusters tau (m,) and centroids (K, d) of Algorithm 2, line 7.

    All means have the same weight.
    """
    points, clusters = row_points(means), nearest_centroid(means, seeds)
    found = cluster_sums(points, clusters, seeds) if once else lloyd_to_convergence(points, seeds)
    centroids = np.where(found.counts[:, None] > 0, found.means, found.centroids)
    return (clusters if once else nearest_centroid(means, centroids)), centroids


def finish(state: State, config: RunConfig) -> Result:
    """Return the last centroids: the number of rounds is fixed."""
    if state.centroids is None:
        raise no_centroids()
    mapping = state.mapping
    return raw_result(state.centroids, config, stopped_because="finished", mapping=mapping)


# --- What a paper says ----------------------------------------------------------------------------


_PROJECTIONS = {
    "auto": "with 32 cells or more among projections on its singular vectors above the noise",
    "on": "among projections on its singular vectors above the noise",
    "off": "without projection",
}


def describe(options: Variants) -> str:
    """Return what a methods section of a paper says of these options."""
    if options.refine:
        further = f"Then {counted(options.refine, 'exact Lloyd round')} over all sites followed."
    else:
        further = "No Lloyd rounds over all sites followed."
    if isinstance(options, DefaultConfig):
        cells = "8 K" if options.local_clusters is None else f"{options.local_clusters}"
        steps = (
            f"In its default variant, each site divided its own points into at most {cells} cells "
            f"by weighted k-means from {local_starts(options.n_init)}, "
            f"{_PROJECTIONS[options.projection]}. The coordinator clustered the cells' means, "
            "weighted by their persons, from several starts (k-means++, farthest first, Ward's "
            "agglomeration)."
        )
    else:
        cells = "the root of K, rounded up," if options.local_clusters is None else ""
        cells = cells or f"{options.local_clusters}"
        seeded = (
            "seeded by k-means++ in the space of its first singular vectors"
            if options.projection == "on"
            else "seeded by k-means++ without projection"
        )
        lloyd = (
            "Lloyd's algorithm to convergence"
            if options.server_lloyd == "converge"
            else "one Lloyd step"
        )
        steps = (
            "In the published variant (Algorithms 1 and 2), each site divided its own points into "
            f"at most {cells} cells by k-means, {seeded}. The coordinator started from the means "
            "of the first site by name, added the mean farthest from all others until there were "
            f"K, and ran {lloyd} on the means with equal weights."
        )
    labels = (
        "Rows were labelled by the nearest centroid."
        if options.labels == "nearest"
        else "Without Lloyd rounds, a site that took part labelled its rows by the cluster of the "
        "nearest of its own cells; other rows were labelled by the nearest centroid."
    )
    return f"{steps} {further} {labels}"


METHOD: Method[Variants, State] = Method(
    name="kfed",
    version=5,
    title="k-FED: one-shot federated clustering (k-means)",
    citation=(
        "D. K. Dennis, T. Li, V. Smith, Heterogeneity for the win: one-shot federated clustering, "
        "ICML 2021 (PMLR 139)"
    ),
    references=("dennis2021",),
    describe=describe,
    options=Config,
    phases=PHASES,
    check_config=check_config,
    # Definition 3.3; after refinement there is no mapping.
    label=label_by_cells,
    state=State,
    start=start,
    aggregate=aggregate,
    finish=finish,
    dissimilarities=("euclidean", "k-prototypes"),
)
