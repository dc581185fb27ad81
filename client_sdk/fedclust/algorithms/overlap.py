"""overlap: k-means of sites that have different, overlapping features, in several rounds.

What it says and cites
    Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
    Algorithm 1. Every site clusters its own rows by its own features. The coordinator groups the
    local centroids where features overlap (``metaclustering``) and merges each group, feature by
    feature. Then, F times: a site takes the global centroids that enough of its rows are nearest
    to, runs a few Lloyd iterations from them, and sends its centroids, matched with the global
    ones; the coordinator moves the global centroids towards what was sent.

Where the paper is wrong or silent, the reading here is: ``min(1, .)`` in equations 1 and 4 is
``max(1, .)``; counts are kept for each feature, so that order does not matter; a global centroid
that no site matched keeps its place, and so does each feature that no site reports; one that is
reported for the first time is taken whole. Methods A and B: see ``metaclustering``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from fedclust.algorithms import guarded_lloyd as lloyd
from fedclust.algorithms.arrays import BoolMatrix, FloatMatrix
from fedclust.algorithms.assigning import label_by_centroid, nearest
from fedclust.algorithms.base import (
    Contribution,
    Disclosure,
    Done,
    LocalAnswer,
    Memory,
    Method,
    Model,
    Next,
    Phase,
    Result,
    RuleViolation,
    RunConfig,
    SiteData,
    SiteTask,
    Task,
    Totals,
)
from fedclust.algorithms.canonical import highest, snapped
from fedclust.algorithms.columns import feature_names
from fedclust.algorithms.finishing import raw_result
from fedclust.algorithms.guarded_lloyd import Cells
from fedclust.algorithms.kfed_cells import local_restarts
from fedclust.algorithms.local_cells import LOCAL, lay_base, local_kmeans, without_small
from fedclust.algorithms.masked import Points, components, merge
from fedclust.algorithms.metaclustering import Meta, cluster
from fedclust.algorithms.releasing import CANDIDATE, index_of, persons, release, site_totals
from fedclust.algorithms.spaces import scaled_bounds
from fedclust.algorithms.totals import check_sizes, check_totals, site_parts
from fedclust.privacy.checks import check_empty, check_means, check_shape
from fedclust.privacy.counting import PersonIndex
from fedclust.privacy.moments import cell_moments

VERSION = 3

# --- Config ---------------------------------------------------------------------------------------


class Config(Model, title="OverlapConfig"):
    """What the analyst chooses.

    Attributes
    ----------
    n_clusters : int
        Number of clusters K.
    local_clusters : int, "silhouette" or None
        K_i, the most cells that a site makes of its rows. None: K. ``silhouette``: what each site
        finds best by the simplified silhouette, from 2 to K: where sites lack some clusters.
    n_init : int or None
        Restarts of each site's k-means. None: 10, fewer at a site where that is dear, by a fixed
        rule of its size.
    meta : {"agglomerative", "A", "B", "auto"}
        How local clusters become global ones. ``auto`` chooses by the graph of the sites'
        overlapping features and says why in a warning.
    rounds : int
        F, the federated rounds after the first.
    local_iterations : int
        Lloyd iterations of a site in each of them.
    alpha : float
        Step size: 1 takes what the sites send, less keeps some of what was.
    evaluate : bool
        Whether a closing round measures the quality of the final centroids.
    """

    n_clusters: Annotated[int, Field(ge=1, le=10_000)]
    local_clusters: Annotated[int, Field(ge=1, le=10_000)] | Literal["silhouette"] | None = None
    n_init: Annotated[int, Field(ge=1, le=100)] | None = None
    meta: Meta = "agglomerative"
    rounds: Annotated[int, Field(ge=0, le=99)] = 3
    local_iterations: Annotated[int, Field(ge=1, le=100)] = 5
    alpha: Annotated[FiniteFloat, Field(gt=0, le=1)] = 0.8
    evaluate: bool = True


def check_config(config: RunConfig) -> None:
    """Refuse nothing: every combination of these options is defined."""
    del config


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
    """Cluster your rows by the features that you have into at most ``n_clusters`` cells.

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
    """Run ``iterations`` Lloyd steps from those of the centroids that your rows are nearest to.

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


_OWN_FEATURES = " 0 in the features that your site has not got."
#: Rule 6: whose numbers everybody sees, whatever they are called.
ALONE = " Of a feature that your site alone has, the result shows everybody your own means."
_SHAPES = {"counts": "up to K_i numbers", "means": "up to K_i x d numbers"}
_LLOYD_CELLS = lloyd.PHASES[0]


def _cells_described(line: Disclosure) -> Disclosure:
    own, alone = (_OWN_FEATURES, ALONE) if line.field == "means" else ("", "")
    return line.model_copy(
        update={
            "shape": _SHAPES.get(line.field, line.shape),
            "meaning": line.meaning + own,
            "identifies": line.identifies + alone,
        }
    )


def _federated_described(line: Disclosure) -> Disclosure:
    meanings = {
        "counts": (
            "How many of your rows are in each local cluster that belongs to a global one, after "
            "a few steps from the global centroids."
        ),
        "means": "The mean of each feature over these rows, scaled." + _OWN_FEATURES,
    }
    identifies = line.identifies + (ALONE if line.field == "means" else "")
    meaning = meanings.get(line.field, line.meaning)
    return line.model_copy(update={"meaning": meaning, "identifies": identifies})


PHASES: tuple[Phase, ...] = (
    replace(
        _LLOYD_CELLS,
        summary=(
            "Each site clusters its own rows by the features that it has; the coordinator finds "
            "out which sites' clusters are one."
        ),
        task=CellsTask,
        discloses=tuple(_cells_described(line) for line in _LLOYD_CELLS.discloses),
    ),
    replace(
        _LLOYD_CELLS,
        name="federated",
        summary=(
            "Each site improves the global centroids that its rows are nearest to by a few steps "
            "of its own."
        ),
        task=FederatedTask,
        discloses=tuple(_federated_described(line) for line in _LLOYD_CELLS.discloses),
    ),
)


def check(task: SiteTask, payload: Cells, config: RunConfig) -> None:
    """Check an answer at either end: shapes, counts, complement, mask, bounds."""
    d = len(config.columns)
    check_totals(payload.totals, task.site, config)
    if task.phase == "cells":
        # As many cells as the site made, which are fewer than were asked for where it is small.
        n_cells = min(max(len(payload.counts), 1), task.common.n_clusters)
    else:
        n_cells = len(task.common.centroids)
    check_shape(payload.counts, (n_cells,), "/counts")
    check_shape(payload.means, (n_cells, d), "/means")
    check_sizes(payload.counts, payload.totals, task.site, config)
    check_empty(payload.counts, payload.means, "/means")
    foreign = np.argwhere((payload.means != 0) & ~config.mask)
    if foreign.size:
        cell, feature = (int(place) for place in foreign[0])
        raise RuleViolation(
            "mask",
            f"cell {cell}: the site joined without feature {feature}, so its mean there must be 0",
            f"/means/{cell}/{feature}",
        )
    known = np.where(config.mask, payload.counts[:, None], 0)
    check_means(known, payload.means, *scaled_bounds(config), "/means")


# --- Local step -----------------------------------------------------------------------------------


def local_step(
    task: SiteTask, data: SiteData, config: RunConfig, rng: np.random.Generator, memory: Memory
) -> LocalAnswer:
    """Answer a task from a site's scaled rows (n, d)."""
    asked = task.site is not None and task.site.totals
    totals = site_totals(data, config) if asked else None
    if task.phase == "cells":
        wanted = local_cells(task.common, data, config, rng)
        n_cells, candidate = int(wanted.max(initial=-1)) + 1, LOCAL
    else:
        common: FederatedTask = task.common
        n_cells, candidate = len(common.centroids), CANDIDATE
        check_shape(common.centroids, (n_cells, data.X.shape[1]), "/parameters/centroids")
        check_shape(common.mask, common.centroids.shape, "/parameters/mask")
        memory = lay_base(common.centroids, data, config, memory, candidate, common.mask)
        wanted = aligned(common, data, config)
    return _answer(wanted, n_cells, candidate, data, config, memory, totals)


def _answer(
    wanted: NDArray[np.int64],
    n_cells: int,
    candidate: str,
    data: SiteData,
    config: RunConfig,
    memory: Memory,
    totals: Totals | None,
) -> LocalAnswer:
    released, memory = release(data, config, memory, wanted, n_cells, candidate)
    if candidate == LOCAL:
        memory = {**memory, LOCAL: released.labels}
    if released.empty and totals is None:
        return None, memory
    moments = released.moments
    return Cells(counts=moments.counts, means=moments.means, totals=totals), memory


def local_cells(
    task: CellsTask, data: SiteData, config: RunConfig, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the cell (n,) of each row by k-means over the site's features (lines 1 to 3).

    Every cell has at least p persons, if any can.
    """
    X = np.ascontiguousarray(data.X[:, config.mask])
    # No more cells than groups of p persons, nor, where p is 1, of two: a site with K_i rows or
    # fewer would send its rows.
    most = max(min(task.n_clusters, persons(data) // max(config.p, 2)), 1)
    index = index_of(data)
    if not task.search or most <= 2:
        return _cells(X, most, task.n_init, index, config.p, rng)
    found = [_cells(X, k, task.n_init, index, config.p, rng) for k in range(2, most + 1)]
    return found[int(highest([simplified_silhouette(X, labels) for labels in found]))]


def _cells(
    X: NDArray[np.float64],
    n_cells: int,
    n_init: int | None,
    index: PersonIndex,
    p: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    n_init = n_init or local_restarts(len(X), X.shape[1], n_cells)
    labels = without_small(X, local_kmeans(X, n_cells, n_init, rng), index, p)
    return np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.int64)


def simplified_silhouette(X: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Return the mean of (b - a) / max(a, b) over distances from own and next mean; 0 for one."""
    n_cells = int(labels.max(initial=-1)) + 1
    if n_cells < 2:
        return 0.0
    means = cell_moments(X, labels, n_cells).means
    gaps = np.sqrt(((X[:, None, :] - means) ** 2).sum(axis=2))
    own = gaps[np.arange(len(X)), labels]
    gaps[np.arange(len(X)), labels] = np.inf
    other = gaps.min(axis=1)
    widest = np.maximum(own, other)
    terms = np.divide(other - own, widest, out=np.zeros_like(own), where=widest > 0)
    return float(terms.mean())


def aligned(task: FederatedTask, data: SiteData, config: RunConfig) -> NDArray[np.int64]:
    """Return the global centroid (n,) that each row's local cluster is matched with; -1 for none.

    Lines 13 to 18: Lloyd iterations among the site's features from the global centroids with at
    least p persons' rows, then the matching of least squared distance between local and global.
    """
    own, index = config.mask, index_of(data)
    X = np.ascontiguousarray(data.X[:, own])
    centroids, known = task.centroids[:, own], task.mask[:, own]
    labels = nearest(X, centroids, known)
    # A site that came late may share no feature with any centroid: then nothing is nearest.
    shared = known.sum(axis=1) > 0
    fits = [k for k in np.unique(labels) if shared[k] and index.reaches(labels == k, config.p)]
    if not fits:
        return np.full(len(X), -1, dtype=np.int64)
    labels = nearest(X, centroids[fits], known[fits])
    moments = cell_moments(X, labels, len(fits))
    for _ in range(task.iterations - 1):
        filled = np.flatnonzero(moments.counts)
        moved = filled[nearest(X, moments.means[filled])]
        if np.array_equal(moved, labels):
            break
        labels = moved
        moments = cell_moments(X, labels, len(fits))
    filled = np.flatnonzero(moments.counts)
    matched = np.full(len(fits), -1, dtype=np.int64)
    matched[filled] = match(moments.means[filled], centroids, known)
    return matched[labels]


def match(
    local: NDArray[np.float64], centroids: NDArray[np.float64], known: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the global centroid (m,) of each local one, no two the same (Hungarian method).

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
    options: Config = config.options
    most = options.local_clusters
    task = CellsTask(
        n_clusters=most if isinstance(most, int) else options.n_clusters,
        search=most == "silhouette",
        n_init=options.n_init,
    )
    return State(phase="cells"), Task("cells", task, per_site=site_parts(config))


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    """Close a round; contributions sorted by site."""
    options: Config = config.options
    sent = [c for c in contributions if c.payload is not None]
    lloyd.refuse_too_few([c.payload.counts for c in sent], config)
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
    return Next(following, Task("federated", task, per_site=site_parts(config)), metrics)


def points_of(sent: Sequence[Contribution], config: RunConfig) -> Points:
    """Return all local centroids that were sent, with their sites' masks."""
    values, masks, counts, sites = [], [], [], []
    for number, contribution in enumerate(sent):
        filled = contribution.payload.counts > 0
        values.append(contribution.payload.means[filled])
        counts.append(contribution.payload.counts[filled].astype(np.float64))
        masks.append(np.tile(config.masks[contribution.site], (int(filled.sum()), 1)))
        sites.append(np.full(int(filled.sum()), number, dtype=np.int64))
    return Points(
        np.concatenate(values), np.concatenate(masks), np.concatenate(counts), np.concatenate(sites)
    )


def _first_centroids(
    sent: Sequence[Contribution], config: RunConfig
) -> tuple[NDArray[np.float64], NDArray[np.bool_], tuple[str, ...]]:
    """Lines 4 to 11: group the local centroids and merge each group; masks and warnings too."""
    options: Config = config.options
    points = points_of(sent, config)
    grouping, warnings = cluster(points, options.n_clusters, options.meta)
    merged = merge(points, grouping.groups, grouping.n_groups)
    alone = np.array([config.masks[c.site] for c in sent]).sum(axis=0) == 1
    if alone.any():
        names = _named(alone, config)
        warning = f"One site alone has {names}: the centroids hold its own means there."
        warnings = (*warnings, warning)
    return merged.means, merged.mask, warnings


def _moved(
    centroids: NDArray[np.float64],
    mask: NDArray[np.bool_],
    sent: Sequence[Contribution],
    config: RunConfig,
) -> tuple[NDArray[np.float64], NDArray[np.bool_], float]:
    """Line 19: move every centroid by ``alpha`` towards what the sites sent for it; how far."""
    options: Config = config.options
    groups = np.concatenate([np.flatnonzero(c.payload.counts) for c in sent])
    merged = merge(points_of(sent, config), groups, len(centroids))
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
        raise lloyd.nothing_to_release()
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
    check_config=check_config,
    check_roster=check_roster,
    start=start,
    local_step=local_step,
    check=check,
    aggregate=aggregate,
    finish=finish,
    label=label,
    takes_masks=True,
)
