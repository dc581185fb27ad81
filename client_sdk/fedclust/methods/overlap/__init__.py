"""overlap: k-means of sites that have different, overlapping features, in several rounds.

Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
Algorithm 1. Every site clusters its own points by its own features. The coordinator groups the
local centroids by the features that they share (``meta_clustering``) and merges each group, feature
by feature. F federated rounds follow. In each a site takes the global centroids that any of its
points is nearest to, runs a few Lloyd iterations from them, and sends its centroids, matched with
the global ones. The coordinator moves the global centroids towards them.

Corrections, and what the paper leaves open: ``min(1, .)`` in equations 1 and 4 is ``max(1, .)``.
Weights are persons, counted for each feature, so that the order of merging does not matter. A
global centroid that no site matched keeps its place, and so does a feature that no site reports. A
feature reported for the first time takes the reported value. For Methods A and B see
``meta_clustering``.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, FiniteFloat

from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.kmeans_rounds import (
    GROUP_SUMS,
    Cells,
    ClusterSums,
    check_cells,
    cluster_sums,
    disclosures,
    local_starts,
)
from fedclust.methods.common.options import Count, EvaluatedOptions, Restarts
from fedclust.methods.common.own_features import (
    SINGLE_SITE_NOTE,
    CellsTask,
    check_roster,
    collect_centroids,
    expand_to_all_columns,
    local_cells,
    select_site_columns,
    single_site_feature_warning,
    sum_groups,
)
from fedclust.methods.overlap.meta_clustering import Meta, group_centroids
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.arrays import BoolMatrix, FloatMatrix
from fedclust.numeric.canonical import round_to_tolerance
from fedclust.numeric.distances import nearest_centroid
from fedclust.schema.display import counted
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import Method, no_centroids
from fedclust.schema.model import Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import (
    CentroidTask,
    Contribution,
    Done,
    Next,
    Phase,
    Points,
    SiteSide,
    SiteTask,
    Task,
    payloads_of,
)

# --- Options --------------------------------------------------------------------------------------


class Config(EvaluatedOptions, title="OverlapConfig"):
    """Options of ``overlap``."""

    n_clusters: Count
    """Number of clusters K."""
    local_clusters: Count | Literal["silhouette"] | None = None
    """K_i, the most cells of a site. None: K. `silhouette`: the number from 2 to K with the best
    simplified silhouette at each site, for sites that lack some clusters.
    """
    n_init: Restarts | None = None
    """Restarts of each site's k-means. None: 10, down to 2 at a large site."""
    meta: Meta = "agglomerative"
    """How local clusters are grouped to global ones. `auto` chooses by the graph of the sites'
    overlapping features and gives the reason in a warning.
    """
    rounds: Annotated[int, Field(ge=0, le=99)] = 3
    """F, the number of federated rounds after the first round."""
    local_iterations: Annotated[int, Field(ge=1, le=100)] = 5
    """Lloyd iterations of a site in each federated round."""
    alpha: Annotated[FiniteFloat, Field(gt=0, le=1)] = 0.8
    """Step size: 1 replaces the centroids by what the sites send; a smaller value moves them
    towards it.
    """

    @property
    def round_limit(self) -> int:
        """The fixed number of rounds."""
        return 1 + self.rounds


# --- What travels ---------------------------------------------------------------------------------


class FederatedTask(CentroidTask):
    """Run ``iterations`` Lloyd steps from the centroids that your points are nearest to.

    Attributes
    ----------
    centroids : (K, d) float64
        Scaled; 0 where unknown.
    mask : (K, d) bool
        The entries that are known.
    iterations : int
    """

    centroids: FloatMatrix
    mask: BoolMatrix
    iterations: Annotated[int, Field(ge=1)]


def cells_task(options: Config) -> CellsTask:
    """Return the task of the phase ``cells``."""
    most = options.local_clusters
    return CellsTask(
        n_clusters=most if isinstance(most, int) else options.n_clusters,
        search=most == "silhouette",
        n_init=options.n_init,
    )


def check_iterations(task: SiteTask[FederatedTask], config: RunConfig[Config]) -> None:
    """Raise RuleViolation if a task asks for other iterations than the definition."""
    iterations = config.options.local_iterations
    if task.common.iterations != iterations:
        message = f"the definition names {iterations} local iterations"
        raise RuleViolation("task", message, "/parameters/iterations")


# --- At a site ------------------------------------------------------------------------------------


def find_cells(task: SiteTask[CellsTask], site: SiteSide) -> Cells:
    """Return the cells of a site's scaled points, by the features that it has."""
    found = local_cells(task.common, select_site_columns(site.points, site.config), site.rng)
    return Cells(counts=found.counts, means=expand_to_all_columns(found.means, site.config))


def local_step(task: SiteTask[FederatedTask], site: SiteSide) -> Cells | None:
    """Improve the global centroids that a site's scaled points are nearest to."""
    config = site.config
    own, asked = select_site_columns(site.points, config), task.common
    centroids, known = asked.centroids[:, config.mask], asked.mask[:, config.mask]
    # A site that joined late may share no feature with any centroid.
    if not known.any():
        return None
    found = improve_centroids(own, centroids, known, asked.iterations)
    matched = match_centroids(found.means, centroids, known)
    counts = np.zeros(len(centroids), dtype=np.int64)
    means = np.zeros(asked.centroids.shape)
    counts[matched], means[matched] = found.counts, expand_to_all_columns(found.means, config)
    return Cells(counts=counts, means=means)


def improve_centroids(
    points: Points, centroids: FloatArray, known: BoolArray, iterations: int
) -> ClusterSums:
    """Run Lloyd from the centroids that any point is nearest to (Algorithm 1, lines 13 to 17).

    Parameters
    ----------
    points : Points
        In the site's own columns.
    centroids, known : (K, d_i) float64, bool
        0 where unknown. At least one entry is known.
    iterations : int
        At least 1.
    """
    kept, labels = _renumber_labels(nearest_centroid(points.X, centroids, known))
    found = cluster_sums(points, labels, centroids[kept])
    for _ in range(iterations - 1):
        _, moved = _renumber_labels(nearest_centroid(points.X, found.means))
        if np.array_equal(moved, labels):
            break
        labels = moved
        found = cluster_sums(points, labels, np.zeros((int(labels.max()) + 1, points.X.shape[1])))
    return found


def _renumber_labels(labels: IntArray) -> tuple[IntArray, IntArray]:
    """Return the labels that occur, ascending, and labels (m,) renumbered from 0."""
    kept, renumbered = np.unique(labels, return_inverse=True)
    return kept, renumbered.reshape(-1).astype(np.int64)


def match_centroids(local: FloatArray, centroids: FloatArray, known: BoolArray) -> IntArray:
    """Match each local centroid (m, d_i) with another global one (line 18; Hungarian).

    The cost is the mean squared difference over the features that the global centroid knows. One
    that shares no feature is matched last.

    Parameters
    ----------
    local : (m, d_i) float64
        m is at most K.
    centroids, known : (K, d_i) float64, bool
        In the site's own columns.

    Returns
    -------
    (m,) int64
    """
    # Imported here: it takes a while, and only this step needs it.
    from scipy.optimize import linear_sum_assignment

    squares = (local[:, None, :] - centroids) ** 2
    shared = known.sum(axis=1)
    cost = np.where(known, squares, 0.0).sum(axis=2) / np.maximum(shared, 1)
    cost[:, shared == 0] = cost.max() * len(local) + 1.0
    rows, columns = linear_sum_assignment(round_to_tolerance(cost))
    return np.asarray(columns[np.argsort(rows)], dtype=np.int64)


# --- The phases -----------------------------------------------------------------------------------


PHASES = (
    Phase(
        name="cells",
        once=True,
        summary=(
            "Each site clusters its own records by the features that it has; the coordinator finds "
            "out which sites' clusters are one."
        ),
        task=CellsTask,
        payload=Cells,
        local_step=find_cells,
        check=lambda task, sent, config: check_cells(
            sent, task.common.n_clusters, config, fewer=True
        ),
        discloses=disclosures(
            counts="up to K_i numbers: How many of your persons are in each cell of your own "
            "clustering.",
            means="up to K_i x d numbers: The mean of each column over each cell, scaled. 0 in the "
            "features that your site has not got.",
            identify={"means": GROUP_SUMS + SINGLE_SITE_NOTE},
        ),
    ),
    Phase(
        name="federated",
        optional=True,
        summary=(
            "Each site improves the global centroids that its records are nearest to by a few "
            "steps of its own."
        ),
        task=FederatedTask,
        payload=Cells,
        local_step=local_step,
        check=lambda task, sent, config: check_cells(sent, len(task.common.centroids), config),
        check_task=check_iterations,
        discloses=disclosures(
            counts="K numbers: How many of your persons are in each local cluster that belongs to "
            "a global one, after a few steps from the global centroids.",
            means="K x d numbers: The mean of each column over these, scaled. 0 in the features "
            "that your site has not got.",
            identify={"means": GROUP_SUMS + SINGLE_SITE_NOTE},
        ),
    ),
)


# --- At the coordinator ---------------------------------------------------------------------------


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    centroids : (K, d) float64 or None
        Scaled; 0 where unknown.
    mask : (K, d) bool or None
        The entries that are known.
    closed : int
        Federated rounds closed.
    warnings : tuple of str
    """

    centroids: FloatMatrix | None = None
    mask: BoolMatrix | None = None
    closed: int = 0
    warnings: tuple[str, ...] = ()


def start(config: RunConfig[Config], seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    del seed  # The coordinator draws nothing.
    return State(), Task("cells", cells_task(config.options))


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig[Config]
) -> Next[State] | Done:
    """Aggregate a round; contributions are sorted by site."""
    options = config.options
    sent = payloads_of(contributions, Cells)
    metrics: dict[str, float] = {}
    warnings, closed = state.warnings, 0
    if state.centroids is None or state.mask is None:
        centroids, mask, warnings = _first_centroids(sent, config)
    else:
        centroids, mask, shift = _move_centroids(state.centroids, state.mask, sent, config)
        metrics, closed = {"centroid_shift": shift}, state.closed + 1
    following = State(centroids=centroids, mask=mask, closed=closed, warnings=warnings)
    if closed >= options.rounds:
        return Done(finish(following, config), metrics)
    task = FederatedTask(centroids=centroids, mask=mask, iterations=options.local_iterations)
    return Next(following, Task("federated", task), metrics)


def _first_centroids(
    sent: Mapping[str, Cells], config: RunConfig[Config]
) -> tuple[FloatArray, BoolArray, tuple[str, ...]]:
    """Group and merge the local centroids (lines 4 to 11); return means, masks and warnings."""
    options = config.options
    local = collect_centroids(sent, config)
    grouping, warnings = group_centroids(local, options.n_clusters, options.meta)
    merged = sum_groups(local, grouping.groups, grouping.n_groups)
    return merged.means, merged.mask, (*warnings, *single_site_feature_warning(sent, config))


def _move_centroids(
    centroids: FloatArray, mask: BoolArray, sent: Mapping[str, Cells], config: RunConfig[Config]
) -> tuple[FloatArray, BoolArray, float]:
    """Move every centroid by ``alpha`` towards what the sites sent for it (line 19).

    Entries that no site reports keep their value; those unknown before take the new one. Also
    returns the new masks and the largest move.
    """
    options = config.options
    groups = np.concatenate([np.flatnonzero(cells.counts) for cells in sent.values()])
    merged = sum_groups(collect_centroids(sent, config), groups, len(centroids))
    step = np.where(merged.mask, np.where(mask, options.alpha, 1.0), 0.0)
    moved = centroids + step * (merged.means - centroids)
    shift = np.sqrt((np.where(mask, moved - centroids, 0.0) ** 2).sum(axis=1).max())
    return moved, mask | merged.mask, float(shift)


def finish(state: State, config: RunConfig[Config]) -> Result:
    """Return the last centroids: the number of rounds is fixed."""
    if state.centroids is None:
        raise no_centroids()
    # Without ``missing: mask`` every site has every feature, and nothing is unknown.
    mask = state.mask if config.policy.missing == "mask" else None
    return raw_result(
        state.centroids, config, mask=mask, stopped_because="finished", warnings=state.warnings
    )


# --- What a paper says ----------------------------------------------------------------------------


_GROUPINGS = {
    "agglomerative": "by agglomeration, no two cells of one site in a group",
    "A": "by Method A of the paper",
    "B": "by Method B of the paper",
    "auto": "by the paper's Method A or B or by agglomeration, as the shared features allowed",
}


def describe(options: Config) -> str:
    """Return what a methods section of a paper says of these options."""
    if options.local_clusters == "silhouette":
        cells = "as many cells, from 2 to K, as gave the best simplified silhouette,"
    else:
        cells = f"at most {options.local_clusters or 'K'} cells"
    return (
        f"Each site divided its own points into {cells} by weighted k-means from "
        f"{local_starts(options.n_init)}, in the features that it had. The coordinator grouped the "
        f"cells of all sites {_GROUPINGS[options.meta]}, and merged each group feature by feature, "
        f"weighted by persons. In each of {counted(options.rounds, 'further round')} the sites ran "
        f"{counted(options.local_iterations, 'Lloyd iteration')} from the global centroids, which "
        f"then moved towards the sites' centroids with step size {options.alpha:g}."
    )


METHOD: Method[Config, State] = Method(
    name="overlap",
    version=4,
    title="Federated k-means for sites with different, overlapping features",
    citation=(
        "A. Maritan, L. Schenato, Distributed clustering in partially overlapping feature spaces, "
        "2025, Algorithm 1"
    ),
    references=("maritan2025",),
    describe=describe,
    options=Config,
    phases=PHASES,
    check_roster=check_roster,
    state=State,
    start=start,
    aggregate=aggregate,
    finish=finish,
    takes_masks=True,
)
