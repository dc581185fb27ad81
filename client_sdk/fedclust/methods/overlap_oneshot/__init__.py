"""overlap_oneshot: sites with different, overlapping features, clustered in one round.

What it says and cites
    Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
    Algorithm 2. Every site clusters its own points by its own features and sends each cluster as
    a Gaussian. The coordinator draws as many proxies from each (``gaussians``), lets them attract
    each other over the features that both know, and merges groups of clusters by the greatest
    force (``agglomeration``) until K are left. A site's own rows follow their local cluster.

A Gaussian's variances are those of the cell's points plus the variance within groups: the share
that the site releases of each column, the same in all of its cells. Full covariances cannot be
completed like this, so they need exact records (``protection: none``).

Where the paper is wrong or silent: see ``agglomeration``; where K is not given, the tree of merges
is cut where the simplified silhouette is best. Draws come from the session's seed and the site's
name, so that no site's proxies depend on who else takes part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from fedclust.methods.common.assign import label_by_centroid
from fedclust.methods.common.cluster_sums import ClusterSums, check_sizes
from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.options import Count, Options, Restarts
from fedclust.methods.common.partial_features import LocalCentroids, merge
from fedclust.methods.overlap import (
    ALONE,
    CellsTask,
    alone_warning,
    check_cell_values,
    check_roster,
    local_cells,
    own_columns,
    sent_centroids,
    spread_out,
)
from fedclust.methods.overlap_oneshot.agglomeration import best_cut, forces, merge_tree
from fedclust.methods.overlap_oneshot.gaussians import (
    check_covariances,
    check_variances,
    covariances,
    proxies,
)
from fedclust.numeric.arrays import FloatMatrix, FloatTensor3, IntVector
from fedclust.numeric.canonical import highest
from fedclust.numeric.distances import nearest
from fedclust.numeric.random import server_rng
from fedclust.protection.message_checks import check_means, check_shape
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.method import LocalAnswer, Method
from fedclust.schema.model import Memory, Model
from fedclust.schema.points import Points, total_variances
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import Contribution, Disclosure, Done, Phase, SiteTask, Task

VERSION = 4
#: What a site remembers: its local means, for its own rows' labels.
_OWN = "overlap_oneshot"
#: Where neither K nor K_i is given, the most cells that a site tries.
_MOST_CELLS = 20
#: Numbers in the covariances of one answer: a body has at most 32 MiB.
_MOST_NUMBERS = 3_000_000

# --- Config ---------------------------------------------------------------------------------------


class Config(Options, title="OverlapOneshotConfig"):
    """What the analyst chooses.

    Attributes
    ----------
    n_clusters : int or None
        Number of clusters K. None: the cut of the tree of merges with the best simplified
        silhouette, from 2 on.
    local_clusters : int, "silhouette" or None
        K_i, the most cells that a site makes of its points. ``silhouette``: from 2 to K, or to 20
        where K is to be found, the number that has the best simplified silhouette at each site.
        None: K; ``silhouette`` where K is to be found.
    n_init : int or None
        Restarts of each site's k-means. None: 10, fewer at a large site, by a fixed rule.
    covariance : {"diagonal", "full"}
        What a cell's Gaussian holds: variances, or a matrix (with ``protection: none`` alone).
    proxies : int
        M, the points drawn from each Gaussian.
    w : float
        The power of the distance in forces.
    cannot_link : {"auto", "on", "off"}
        Whether clusters of one site are kept apart as long as anything else can be merged: right
        where sites do not split clusters, wrong where a site has fewer than it makes. ``auto``:
        both are tried, and the better simplified silhouette decides. The paper has ``off``.
    """

    n_clusters: Count | None = None
    local_clusters: Count | Literal["silhouette"] | None = None
    n_init: Restarts | None = None
    covariance: Literal["diagonal", "full"] = "diagonal"
    proxies: Annotated[int, Field(ge=2, le=1_000)] = 50
    w: Annotated[FiniteFloat, Field(ge=1, le=50)] = 2.0
    cannot_link: Literal["auto", "on", "off"] = "auto"

    @property
    def searches(self) -> bool:
        """Whether sites look for the number of their clusters."""
        if self.local_clusters is None:
            return self.n_clusters is None
        return self.local_clusters == "silhouette"

    @property
    def most_cells(self) -> int:
        """The most cells that a site makes of its points."""
        if isinstance(self.local_clusters, int):
            return self.local_clusters
        return _MOST_CELLS if self.n_clusters is None else self.n_clusters


def check_config(config: RunConfig) -> None:
    """Refuse full covariances under protection, and those that do not fit an answer."""
    options: Config = config.options
    d = len(config.columns)
    if options.covariance == "full" and config.policy.protection != "none":
        raise RuleViolation(
            "covariance",
            "full covariances need exact records: take covariance: diagonal, or protection: none "
            "with every site's consent",
            "/covariance",
        )
    if options.covariance == "full" and options.most_cells * d * d > _MOST_NUMBERS:
        raise RuleViolation(
            "covariance",
            f"full covariances of {options.most_cells} cells and {d} features do not fit one "
            "answer: take covariance: diagonal, fewer features or fewer local_clusters",
            "/covariance",
        )


# --- Payloads -------------------------------------------------------------------------------------


class GaussiansTask(CellsTask, title="GaussiansTask"):
    """Cluster your points by the features that you have, and describe each cell by a Gaussian.

    Attributes
    ----------
    n_clusters : int
        Into at most so many cells.
    search : bool
        Whether to make fewer where that has the better simplified silhouette.
    n_init : int or None
        Restarts; None leaves them to the site.
    full : bool
        Whether to send covariance matrices.
    """

    full: bool


class Gaussians(Model):
    """A site's local clusters.

    Attributes
    ----------
    counts : (K_i,) int64
        Persons in each cell.
    means, variances : (K_i, d) float64
        Scaled; 0 in the features that the site has not got.
    covariances : (K_i, d_i, d_i) float64
        Over the site's columns in their order. Of shape (0, 0, 0) where the task asks for none.
    """

    counts: IntVector
    means: FloatMatrix
    variances: FloatMatrix
    covariances: FloatTensor3


PHASES = (
    Phase(
        name="gaussians",
        once=True,
        summary=(
            "Each site clusters its own points by the features that it has and describes every "
            "cluster by a bell curve; the coordinator finds out which sites' clusters are one."
        ),
        task=GaussiansTask,
        payload=Gaussians,
        discloses=(
            Disclosure(
                field="counts",
                shape="up to K_i numbers",
                meaning="How many of your persons are in each cell of your own clustering.",
                identifies="Sums over whole groups of your protected table.",
            ),
            Disclosure(
                field="means",
                shape="up to K_i x d numbers",
                meaning=(
                    "The mean of each column over each cell, scaled. 0 in the features that your "
                    "site has not got."
                ),
                identifies="Means over whole groups." + ALONE,
            ),
            Disclosure(
                field="variances",
                shape="up to K_i x d numbers",
                meaning=(
                    "How widely each column is spread in each cell: the variance of the groups' "
                    "records, and the variance within groups, from the share that is released "
                    "once with the table."
                ),
                identifies="Sums over whole groups.",
            ),
            Disclosure(
                field="covariances",
                shape="up to K_i x d_i x d_i numbers",
                meaning=(
                    "Only with covariance: full, which needs protection: none. How your site's "
                    "columns hang together in each cell."
                ),
                identifies="Computed from exact records, like all that is sent then.",
            ),
        ),
    ),
)


def check_task(task: SiteTask, config: RunConfig) -> None:
    """Refuse another task than the definition's."""
    if task.common != _task(config.options):
        raise RuleViolation(
            "task", "the task asks for other cells than the definition", "/parameters"
        )


def check(task: SiteTask, payload: Gaussians, config: RunConfig) -> None:
    """Check an answer at either end: shapes, counts, mask, bounds, variances, covariances."""
    # A site may make fewer cells than it was asked for.
    n_cells = min(max(len(payload.counts), 1), task.common.n_clusters)
    shape = (n_cells, len(config.columns))
    check_shape(payload.counts, (n_cells,), "/counts")
    check_shape(payload.means, shape, "/means")
    check_shape(payload.variances, shape, "/variances")
    check_sizes(payload.counts, config)
    check_cell_values(payload.counts, payload.means, config, "/means")
    check_cell_values(payload.counts, payload.variances, config, "/variances")
    lower, upper = scaled_bounds(config)
    known = np.where(config.mask, payload.counts[:, None], 0)
    check_means(known, payload.means, lower, upper, "/means")
    check_variances(known, payload.variances, _widest(payload.means, config))
    if task.common.full:
        check_covariances(payload.covariances, payload.variances[:, config.mask])
    else:
        check_shape(payload.covariances, (0, 0, 0), "/covariances")


def _widest(means: NDArray[np.float64], config: RunConfig) -> NDArray[np.float64]:
    """Return the largest variances (K, d) of values within the columns' bounds."""
    lower, upper = scaled_bounds(config)
    bounded = np.isfinite(lower) & np.isfinite(upper)
    with np.errstate(invalid="ignore"):
        return np.where(bounded, np.maximum((upper - means) * (means - lower), 0.0), np.inf)


# --- Local step -----------------------------------------------------------------------------------


def local_step(
    task: SiteTask, points: Points, config: RunConfig, rng: np.random.Generator, memory: Memory
) -> LocalAnswer:
    """Cluster a site's scaled points and describe the cells."""
    own = own_columns(points, config)
    found = local_cells(task.common, own, rng)
    labels = nearest(own.X, found.centroids)
    matrices = covariances(own, labels, found) if task.common.full else np.zeros((0, 0, 0))
    means = spread_out(found.means, config)
    payload = Gaussians(
        counts=found.counts,
        means=means,
        variances=np.minimum(
            spread_out(_variances(own, labels, found), config), _widest(means, config)
        ),
        covariances=matrices,
    )
    return payload, {**memory, _OWN: {"means": means, "mask": config.mask}}


def _variances(
    points: Points, labels: NDArray[np.int64], found: ClusterSums
) -> NDArray[np.float64]:
    """Return the variances (K, d_i) of the cells' persons, between and within groups."""
    squares = np.zeros(found.means.shape)
    np.add.at(squares, labels, points.sizes[:, None] * (points.X - found.means[labels]) ** 2)
    between = squares / found.counts[:, None]
    return between + points.within * total_variances(points)


# --- Aggregation ----------------------------------------------------------------------------------


class State(Model):
    """What a session keeps until its only round has closed.

    Attributes
    ----------
    seed : int
    """

    seed: int


def start(config: RunConfig, seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    return State(seed=seed), Task("gaussians", _task(config.options))


def _task(options: Config) -> GaussiansTask:
    return GaussiansTask(
        n_clusters=options.most_cells,
        search=options.searches,
        n_init=options.n_init,
        full=options.covariance == "full",
    )


def aggregate(state: State, contributions: Sequence[Contribution], config: RunConfig) -> Done:
    """Close the round; contributions sorted by site."""
    sent = [c for c in contributions if c.payload is not None]
    local = sent_centroids(sent, config)
    groups, warnings = _group(state.seed, sent, local, config)
    merged = merge(local, groups, int(groups.max()) + 1)
    mask = merged.mask if config.policy.missing == "mask" else None
    raw = raw_result(merged.means, config, mask=mask, stopped_because="finished", warnings=warnings)
    mapping = {}
    for number, contribution in enumerate(sent):
        own = np.full(len(contribution.payload.counts), -1, dtype=np.int64)
        own[contribution.payload.counts > 0] = groups[local.sites == number]
        mapping[contribution.site] = tuple(int(group) for group in own)
    return Done(raw.model_copy(update={"mapping": mapping}))


def _group(
    seed: int, sent: Sequence[Contribution], local: LocalCentroids, config: RunConfig
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the group (m,) of each local cluster (lines 4 to 12), and what should be known."""
    options: Config = config.options
    drawn = [_drawn(seed, contribution, config) for contribution in sent]
    masks = [config.masks[contribution.site] for contribution in sent]
    between = forces(drawn, masks, options.w)
    apart = {"auto": (False, True), "on": (True,), "off": (False,)}[options.cannot_link]
    trees = [merge_tree(between, local.sites if separate else None) for separate in apart]
    if len(trees) > 1 or options.n_clusters is None:
        variances = np.concatenate([c.payload.variances[c.payload.counts > 0] for c in sent])
        cuts = [best_cut(tree, local, variances, options.n_clusters) for tree in trees]
        # The first of equally good ones.
        best = int(highest([score for _, score in cuts]))
        tree, n_clusters = trees[best], options.n_clusters or cuts[best][0]
    else:
        tree, n_clusters = trees[0], options.n_clusters
    groups = tree.cut(n_clusters)
    warnings = []
    forced = tree.forced - (max(n_clusters, tree.n_roots) - tree.n_roots)
    if forced > 0:
        warnings.append(
            f"{forced} merges put clusters of one site together although cannot_link kept them "
            f"apart: sites have more clusters than {n_clusters}, or what fitted better was taken. "
            "Ask for more clusters, or for fewer local ones."
        )
    if tree.n_roots > n_clusters:
        warnings.append(
            f"{tree.n_roots} groups remain where {n_clusters} clusters were asked for: they share "
            "no feature, so nothing tells which of them are one."
        )
    return groups, (*warnings, *alone_warning(sent, config))


def _drawn(seed: int, contribution: Contribution, config: RunConfig) -> NDArray[np.float64]:
    """Return the proxies (K_i, M, d) of a site's cells (line 4)."""
    options: Config = config.options
    payload: Gaussians = contribution.payload
    filled = np.flatnonzero(payload.counts)
    return proxies(
        payload.means[filled],
        payload.variances[filled],
        np.flatnonzero(config.masks[contribution.site]),
        options.proxies,
        server_rng(seed, f"overlap_oneshot-proxies-{contribution.site}"),
        payload.covariances[filled] if options.covariance == "full" else None,
    )


# --- Convergence ----------------------------------------------------------------------------------


def finish(state: State, config: RunConfig) -> Result:
    """Fail: before its only round has closed, the method has nothing."""
    del state, config
    raise MethodFailure("no_centroids", "no round of the method was closed: raise max_rounds")


# --- Labelling ------------------------------------------------------------------------------------


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units.

    A site's own rows go with the local cluster of the nearest mean. New rows, and those of a site
    that came later, take the nearest centroid over the features that they have.
    """
    own = (memory or {}).get(_OWN)
    if own is None or not result.mapping:
        return label_by_centroid(result, X)
    (groups,) = result.mapping.values()
    mask = None if result.mask is None else np.tile(own["mask"], (len(groups), 1))
    local = result.model_copy(update={"centroids": own["means"], "mask": mask})
    cells = label_by_centroid(local, X)
    return np.where(cells >= 0, np.array(groups, dtype=np.int64)[cells], -1)


METHOD = Method(
    name="overlap_oneshot",
    version=VERSION,
    title="Clustering in overlapping feature spaces, in one round",
    citation=(
        "A. Maritan, L. Schenato, Distributed clustering in partially overlapping feature spaces, "
        "2025, Algorithm 2"
    ),
    options=Config,
    default_max_rounds=1,
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
    check_task=check_task,
    takes_masks=True,
)
