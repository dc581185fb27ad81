"""overlap: k-means of sites that have different, overlapping features, in several rounds.

What it says and cites
    Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
    Algorithm 1. Every site clusters its own points by its own features. The coordinator groups the
    local centroids where features overlap (``meta_clustering``) and merges each group, feature by
    feature. Then, F times: a site takes the global centroids that any of its points is nearest to,
    runs a few Lloyd iterations from them, and sends its centroids, matched with the global ones;
    the coordinator moves the global centroids towards what was sent.

Where the paper is wrong or silent, the reading here is: ``min(1, .)`` in equations 1 and 4 is
``max(1, .)``; weights are persons, counted for each feature, so that order does not matter; a
global centroid that no site matched keeps its place, and so does each feature that no site
reports; one that is reported for the first time is taken whole. Methods A and B: see
``meta_clustering``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from fedclust.methods.common import task_checks
from fedclust.methods.common.assign import label_by_centroid
from fedclust.methods.common.cluster_sums import ClusterSums, check_sizes, cluster_sums
from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.local_kmeans import local_kmeans
from fedclust.methods.common.options import Count, Options, Restarts
from fedclust.methods.common.partial_features import LocalCentroids, components, merge
from fedclust.methods.kfed.local_cells import local_restarts
from fedclust.methods.lloyd import Cells
from fedclust.methods.overlap.meta_clustering import Meta, cluster
from fedclust.numeric.arrays import BoolMatrix, FloatMatrix
from fedclust.numeric.canonical import highest, snapped
from fedclust.numeric.distances import nearest
from fedclust.protection.message_checks import check_empty, check_means, check_shape
from fedclust.schema.encoding import feature_names
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.method import LocalAnswer, Method
from fedclust.schema.model import Memory, Model
from fedclust.schema.points import Points, total_variances
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import Contribution, Disclosure, Done, Next, Phase, SiteTask, Task

VERSION = 4

# --- Config ---------------------------------------------------------------------------------------


class Config(Options, title="OverlapConfig"):
    """What the analyst chooses.

    Attributes
    ----------
    n_clusters : int
        Number of clusters K.
    local_clusters : int, "silhouette" or None
        K_i, the most cells that a site makes of its points. None: K. ``silhouette``: from 2 to K,
        the number that has the best simplified silhouette at each site, for sites that lack some
        clusters.
    n_init : int or None
        Restarts of each site's k-means. None: 10, fewer at a large site, by a fixed rule.
    meta : {"agglomerative", "A", "B", "auto"}
        How local clusters become global ones. ``auto`` chooses by the graph of the sites'
        overlapping features and says why in a warning.
    rounds : int
        F, the federated rounds after the first.
    local_iterations : int
        Lloyd iterations of a site in each of them.
    alpha : float
        Step size: 1 takes what the sites send, less keeps some of what was.
    """

    n_clusters: Count
    local_clusters: Count | Literal["silhouette"] | None = None
    n_init: Restarts | None = None
    meta: Meta = "agglomerative"
    rounds: Annotated[int, Field(ge=0, le=99)] = 3
    local_iterations: Annotated[int, Field(ge=1, le=100)] = 5
    alpha: Annotated[FiniteFloat, Field(gt=0, le=1)] = 0.8


def check_roster(config: RunConfig) -> None:
    """Refuse sites whose features leave them apart, or leave a feature to nobody.

    Raises
    ------
    RuleViolation
        Names the features that nobody has, or the smallest group of sites that shares no feature
        with the others, and what to change.
    """
    masks = np.array([config.masks[site] for site in config.roster], dtype=np.bool_)
    unseen = np.asarray(~masks.any(axis=0))
    if unseen.any():
        raise RuleViolation(
            "overlap",
            f"no site has the features {_named(unseen, config)}: leave them out of the session, "
            "or invite a site that has them",
            "/features",
        )
    parts = components(masks)
    if parts.max(initial=0) > 0:
        smallest = min(np.unique(parts), key=lambda part: int((parts == part).sum()))
        names = ", ".join(np.array(config.roster)[parts == smallest][:5])
        raise RuleViolation(
            "overlap",
            f"the sites fall into {int(parts.max()) + 1} groups that share no feature, so their "
            f"clusters cannot be compared; one of them is: {names}. Let them have a feature of "
            "the others, exclude them, or invite a site whose features overlap with both groups'",
            "/features",
        )


# --- Payloads -------------------------------------------------------------------------------------


class CellsTask(Model, title="OverlapCellsTask"):
    """Cluster your points by the features that you have into at most ``n_clusters`` cells.

    Attributes
    ----------
    n_clusters : int
    search : bool
        Whether to make fewer where that has the better simplified silhouette.
    n_init : int or None
        Restarts; None leaves them to the site.
    """

    n_clusters: Annotated[int, Field(ge=1)]
    search: bool
    n_init: Annotated[int, Field(ge=1)] | None


class FederatedTask(Model):
    """Run ``iterations`` Lloyd steps from those of the centroids that your points are nearest to.

    Attributes
    ----------
    centroids : (K, d) float64
        Scaled; 0 where unknown.
    mask : (K, d) bool
        Where they are known.
    iterations : int
    """

    centroids: FloatMatrix
    mask: BoolMatrix
    iterations: Annotated[int, Field(ge=1)]


_OF_GROUPS = "Sums over whole groups of your protected table."
#: Of means that a site alone contributes to.
ALONE = " Of a feature that your site alone has, the result shows everybody your own means."
PHASES = (
    Phase(
        name="cells",
        once=True,
        summary=(
            "Each site clusters its own points by the features that it has; the coordinator finds "
            "out which sites' clusters are one."
        ),
        task=CellsTask,
        payload=Cells,
        discloses=(
            Disclosure(
                field="counts",
                shape="up to K_i numbers",
                meaning="How many of your persons are in each cell of your own clustering.",
                identifies=_OF_GROUPS,
            ),
            Disclosure(
                field="means",
                shape="up to K_i x d numbers",
                meaning=(
                    "The mean of each column over each cell, scaled. 0 in the features that your "
                    "site has not got."
                ),
                identifies=_OF_GROUPS + ALONE,
            ),
        ),
    ),
    Phase(
        name="federated",
        optional=True,
        summary=(
            "Each site improves the global centroids that its points are nearest to by a few steps "
            "of its own."
        ),
        task=FederatedTask,
        payload=Cells,
        discloses=(
            Disclosure(
                field="counts",
                shape="K numbers",
                meaning=(
                    "How many of your persons are in each local cluster that belongs to a global "
                    "one, after a few steps from the global centroids."
                ),
                identifies=_OF_GROUPS,
            ),
            Disclosure(
                field="means",
                shape="K x d numbers",
                meaning=(
                    "The mean of each column over these, scaled. 0 in the features that your site "
                    "has not got."
                ),
                identifies=_OF_GROUPS + ALONE,
            ),
        ),
    ),
)


def check_task(task: SiteTask, config: RunConfig) -> None:
    """Refuse another task than the definition's, and centroids that do not fit the features."""
    options: Config = config.options
    if task.phase == "cells":
        if task.common != _cells_task(options):
            raise RuleViolation(
                "task", "the task asks for other cells than the definition", "/parameters"
            )
        return
    asked: FederatedTask = task.common
    shape = (len(asked.centroids), len(config.columns))
    check_shape(asked.centroids, shape, "/parameters/centroids")
    check_shape(asked.mask, shape, "/parameters/mask")
    task_checks.check_centroids(asked.centroids, asked.mask, config)
    if asked.iterations != options.local_iterations:
        raise RuleViolation(
            "task",
            f"the definition names {options.local_iterations} local iterations",
            "/parameters/iterations",
        )


def check(task: SiteTask, payload: Cells, config: RunConfig) -> None:
    """Check an answer at either end: shapes, counts, mask, bounds."""
    if task.phase == "cells":
        # A site may make fewer cells than it was asked for.
        n_cells = min(max(len(payload.counts), 1), task.common.n_clusters)
    else:
        n_cells = len(task.common.centroids)
    check_shape(payload.counts, (n_cells,), "/counts")
    check_shape(payload.means, (n_cells, len(config.columns)), "/means")
    check_sizes(payload.counts, config)
    check_cell_values(payload.counts, payload.means, config, "/means")
    known = np.where(config.mask, payload.counts[:, None], 0)
    check_means(known, payload.means, *scaled_bounds(config), "/means")


def check_cell_values(
    counts: NDArray[np.int64], values: NDArray[np.float64], config: RunConfig, pointer: str
) -> None:
    """Raise unless values (K, d) are 0 in empty cells and in features that the site lacks."""
    check_empty(counts, values, pointer)
    foreign = np.argwhere((values != 0) & ~config.mask)
    if foreign.size:
        cell, column = (int(place) for place in foreign[0])
        raise RuleViolation(
            "mask",
            f"cell {cell}: the site joined without column {column}, so its number there must be 0",
            f"{pointer}/{cell}/{column}",
        )


# --- Local step -----------------------------------------------------------------------------------


def local_step(
    task: SiteTask, points: Points, config: RunConfig, rng: np.random.Generator, memory: Memory
) -> LocalAnswer:
    """Answer a task from a site's scaled points."""
    own = own_columns(points, config)
    if task.phase == "cells":
        found = local_cells(task.common, own, rng)
        return Cells(counts=found.counts, means=spread_out(found.means, config)), memory
    common: FederatedTask = task.common
    centroids, known = common.centroids[:, config.mask], common.mask[:, config.mask]
    # A site that came late may share no feature with any centroid.
    if not known.any():
        return None, memory
    found = improved(own, centroids, known, common.iterations)
    matched = match(found.means, centroids, known)
    counts = np.zeros(len(centroids), dtype=np.int64)
    means = np.zeros(common.centroids.shape)
    counts[matched], means[matched] = found.counts, spread_out(found.means, config)
    return Cells(counts=counts, means=means), memory


def own_columns(points: Points, config: RunConfig) -> Points:
    """Return the points in the columns that the site has."""
    X = np.ascontiguousarray(points.X[:, config.mask])
    return Points(X, points.sizes, points.within[config.mask])


def spread_out(values: NDArray[np.float64], config: RunConfig) -> NDArray[np.float64]:
    """Return values (K, d_i) of the site's columns as (K, d), 0 in the others."""
    whole = np.zeros((len(values), len(config.columns)))
    whole[:, config.mask] = values
    return whole


def local_cells(task: CellsTask, points: Points, rng: np.random.Generator) -> ClusterSums:
    """Cluster a site's points, in its own columns, by k-means (lines 1 to 3)."""
    most = min(task.n_clusters, len(points.X))
    n_init = task.n_init or local_restarts(len(points.X), points.X.shape[1], most)
    if not task.search or most <= 2:
        return local_kmeans(points, most, n_init, rng)
    found = [local_kmeans(points, k, n_init, rng) for k in range(2, most + 1)]
    return found[int(highest([simplified_silhouette(points, each.means) for each in found]))]


def simplified_silhouette(points: Points, means: NDArray[np.float64]) -> float:
    """Return the mean over persons of (b - a) / max(a, b); 0 with one of the ``means`` (K, d).

    a and b are the root mean squared distances of a point's persons from the nearest mean and the
    next, so that points that are means of groups are not taken for clusters of their own.
    """
    if len(means) < 2:
        return 0.0
    within = float((points.within * total_variances(points)).sum())
    squares = np.column_stack([((points.X - mean) ** 2).sum(axis=1) for mean in means])
    nearest_two = np.sqrt(np.partition(squares, 1, axis=1)[:, :2] + within)
    a, b = nearest_two.T
    terms = np.divide(b - a, b, out=np.zeros_like(b), where=b > 0)
    return float(np.average(terms, weights=points.sizes))


def improved(
    points: Points, centroids: NDArray[np.float64], known: NDArray[np.bool_], iterations: int
) -> ClusterSums:
    """Run Lloyd iterations from the centroids that any point is nearest to (lines 13 to 17).

    Parameters
    ----------
    points : Points
        In the site's own columns.
    centroids, known : (K, d_i)
        Where a centroid is unknown it is 0. One at least shares a column with the site.
    iterations : int
    """
    kept, labels = _used(nearest(points.X, centroids, known))
    found = cluster_sums(points, labels, centroids[kept])
    for _ in range(iterations - 1):
        _, moved = _used(nearest(points.X, found.means))
        if np.array_equal(moved, labels):
            break
        labels = moved
        found = cluster_sums(points, labels, np.zeros((int(labels.max()) + 1, points.X.shape[1])))
    return found


def _used(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the labels that occur, ascending, and labels (m,) that number these from 0."""
    kept, numbered = np.unique(labels, return_inverse=True)
    return kept, numbered.reshape(-1).astype(np.int64)


def match(
    local: NDArray[np.float64], centroids: NDArray[np.float64], known: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the global centroid (m,) of each local one, no two the same (line 18; Hungarian).

    Parameters
    ----------
    local : (m, d_i) float64
        m is at most K.
    centroids, known : (K, d_i)
        Over the site's features.
    """
    # Imported here: it takes a while, and only this step needs it.
    from scipy.optimize import linear_sum_assignment

    squares = (local[:, None, :] - centroids) ** 2
    shared = known.sum(axis=1)
    cost = np.where(known, squares, 0.0).sum(axis=2) / np.maximum(shared, 1)
    # What shares no feature is matched last.
    cost[:, shared == 0] = cost.max() * len(local) + 1.0
    rows, columns = linear_sum_assignment(snapped(cost))
    return np.asarray(columns[np.argsort(rows)], dtype=np.int64)


# --- Aggregation ----------------------------------------------------------------------------------


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    phase : {"cells", "federated"}
        What the open round asks.
    centroids : (K, d) float64 or None
        Scaled; 0 where unknown.
    mask : (K, d) bool or None
        Where they are known.
    closed : int
        Federated rounds that have closed.
    warnings : tuple of str
    """

    phase: Literal["cells", "federated"]
    centroids: FloatMatrix | None = None
    mask: BoolMatrix | None = None
    closed: int = 0
    warnings: tuple[str, ...] = ()


def start(config: RunConfig, seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    del seed  # Sites draw from their own; the coordinator draws nothing.
    return State(phase="cells"), Task("cells", _cells_task(config.options))


def _cells_task(options: Config) -> CellsTask:
    most = options.local_clusters
    return CellsTask(
        n_clusters=most if isinstance(most, int) else options.n_clusters,
        search=most == "silhouette",
        n_init=options.n_init,
    )


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    """Close a round; contributions sorted by site."""
    options: Config = config.options
    sent = [c for c in contributions if c.payload is not None]
    metrics: dict[str, float] = {}
    warnings, closed = state.warnings, 0
    if state.centroids is None or state.mask is None:
        centroids, mask, warnings = _first_centroids(sent, config)
    else:
        centroids, mask, shift = _moved(state.centroids, state.mask, sent, config)
        metrics, closed = {"centroid_shift": shift}, state.closed + 1
    following = State(
        phase="federated", centroids=centroids, mask=mask, closed=closed, warnings=warnings
    )
    if closed >= options.rounds:
        return Done(finish(following, config), metrics)
    task = FederatedTask(centroids=centroids, mask=mask, iterations=options.local_iterations)
    return Next(following, Task("federated", task), metrics)


def sent_centroids(sent: Sequence[Contribution], config: RunConfig) -> LocalCentroids:
    """Return all local centroids that were sent, with their sites' masks."""
    values, masks, counts, sites = [], [], [], []
    for number, contribution in enumerate(sent):
        filled = contribution.payload.counts > 0
        values.append(contribution.payload.means[filled])
        counts.append(contribution.payload.counts[filled].astype(np.float64))
        masks.append(np.tile(config.masks[contribution.site], (int(filled.sum()), 1)))
        sites.append(np.full(int(filled.sum()), number, dtype=np.int64))
    return LocalCentroids(
        np.concatenate(values), np.concatenate(masks), np.concatenate(counts), np.concatenate(sites)
    )


def _first_centroids(
    sent: Sequence[Contribution], config: RunConfig
) -> tuple[NDArray[np.float64], NDArray[np.bool_], tuple[str, ...]]:
    """Lines 4 to 11: group the local centroids and merge each group; masks and warnings too."""
    options: Config = config.options
    local = sent_centroids(sent, config)
    grouping, warnings = cluster(local, options.n_clusters, options.meta)
    merged = merge(local, grouping.groups, grouping.n_groups)
    return merged.means, merged.mask, (*warnings, *alone_warning(sent, config))


def alone_warning(sent: Sequence[Contribution], config: RunConfig) -> tuple[str, ...]:
    """Return a warning that names the features that one site alone has, if there are any."""
    alone = np.array([config.masks[c.site] for c in sent]).sum(axis=0) == 1
    if not alone.any():
        return ()
    names = _named(alone, config)
    return (f"One site alone has {names}: the centroids hold its own means there.",)


def _moved(
    centroids: NDArray[np.float64],
    mask: NDArray[np.bool_],
    sent: Sequence[Contribution],
    config: RunConfig,
) -> tuple[NDArray[np.float64], NDArray[np.bool_], float]:
    """Line 19: move every centroid by ``alpha`` towards what the sites sent for it; how far."""
    options: Config = config.options
    groups = np.concatenate([np.flatnonzero(c.payload.counts) for c in sent])
    merged = merge(sent_centroids(sent, config), groups, len(centroids))
    # What nobody reports keeps its value; what was unknown is taken as it comes.
    step = np.where(merged.mask, np.where(mask, options.alpha, 1.0), 0.0)
    moved = centroids + step * (merged.means - centroids)
    shift = np.sqrt((np.where(mask, moved - centroids, 0.0) ** 2).sum(axis=1).max())
    return moved, mask | merged.mask, float(shift)


def _named(columns: NDArray[np.bool_], config: RunConfig) -> str:
    """Return the names of the features of some columns (d,), five at most."""
    features = feature_names(config.columns, columns)
    names = ", ".join(map(repr, features[:5]))
    return names if len(features) <= 5 else f"{names} and {len(features) - 5} more"


# --- Convergence ----------------------------------------------------------------------------------


def finish(state: State, config: RunConfig) -> Result:
    """Return the last centroids: the number of rounds is fixed."""
    if state.centroids is None or state.mask is None:
        raise MethodFailure("no_centroids", "no round of the method was closed: raise max_rounds")
    # Where every site has every feature there is nothing unknown.
    mask = state.mask if config.policy.missing == "mask" else None
    return raw_result(
        state.centroids,
        config,
        mask=mask,
        stopped_because="finished",
        warnings=state.warnings,
    )


# --- Labelling ------------------------------------------------------------------------------------


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units by the nearest centroid over the features that they have."""
    del memory
    return label_by_centroid(result, X)


def rounds(options: Any) -> int:
    """Return how many rounds a session takes."""
    return 1 + int(options.rounds)


METHOD = Method(
    name="overlap",
    version=VERSION,
    title="Federated k-means for sites with different, overlapping features",
    citation=(
        "A. Maritan, L. Schenato, Distributed clustering in partially overlapping feature spaces, "
        "2025, Algorithm 1"
    ),
    options=Config,
    default_max_rounds=100,
    joins_late=True,
    state=State,
    phases=PHASES,
    check_roster=check_roster,
    start=start,
    local_step=local_step,
    check=check,
    aggregate=aggregate,
    finish=finish,
    label=label,
    check_task=check_task,
    rounds=rounds,
    takes_masks=True,
)
