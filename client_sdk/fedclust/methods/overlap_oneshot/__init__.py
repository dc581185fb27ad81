"""overlap_oneshot: sites with different, overlapping features, clustered in one round.

Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
Algorithm 2. Every site clusters its own points by its own features and sends each cluster as a
Gaussian. The coordinator draws the same number of proxies from each (section 5.2), computes
attractive forces between them over shared features, and merges the groups of clusters of greatest
force (``agglomeration``) until K are left. A site's own rows follow their local cluster.

A Gaussian's variances are those of the cell's points plus the variance within groups, which the
site releases as a share for each column, the same in all cells. Full covariances cannot be
completed in this way, so they need exact records (``protection: none``).

For corrections of the paper see ``agglomeration``. If K is not given, the merge tree is cut at the
best simplified silhouette. Draws depend on the session's seed and the site's name: a site's proxies
do not depend on which other sites take part.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, FiniteFloat

from fedclust.methods.common.assign import check_mapping, label_by_centroid
from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.kmeans_rounds import (
    Cells,
    ClusterSums,
    check_cell_values,
    check_cells,
    disclosures,
    local_starts,
)
from fedclust.methods.common.options import Count, EvaluatedOptions, Restarts
from fedclust.methods.common.own_features import (
    SINGLE_SITE_NOTE,
    CellsTask,
    LocalCentroids,
    check_roster,
    collect_centroids,
    expand_to_all_columns,
    local_cells,
    select_site_columns,
    single_site_feature_warning,
    sum_groups,
    too_many_groups_warning,
)
from fedclust.methods.overlap_oneshot.agglomeration import (
    MergeTree,
    best_cut,
    build_merge_tree,
    cluster_forces,
)
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.arrays import FloatMatrix, FloatTensor3
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.random import server_rng
from fedclust.protection.message_checks import check_shape, check_shapes, refuse_first
from fedclust.schema.errors import RuleViolation
from fedclust.schema.method import Method
from fedclust.schema.model import Memory, Model
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import (
    Contribution,
    Done,
    Phase,
    Points,
    SiteSide,
    SiteTask,
    Task,
    payloads_of,
    total_variances,
)

# --- Options --------------------------------------------------------------------------------------


#: The most cells that a site tries if neither K nor K_i is given.
_MAX_CELLS = 20
#: The most numbers in the covariances of one message: a body has at most 32 MiB.
_MAX_NUMBERS = 3_000_000


class Config(EvaluatedOptions, title="OverlapOneshotConfig"):
    """Options of ``overlap_oneshot``."""

    n_clusters: Count | None = None
    """Number of clusters K. None: the number, at least 2, at which cutting the merge tree gives the
    best simplified silhouette.
    """
    local_clusters: Count | Literal["silhouette"] | None = None
    """K_i, the most cells of a site. `silhouette`: the number from 2 to K (to 20 if K is not given)
    with the best simplified silhouette at each site. None: K, or `silhouette` if K is not given.
    """
    n_init: Restarts | None = None
    """Restarts of each site's k-means. None: 10, down to 2 at a large site."""
    covariance: Literal["diagonal", "full"] = "diagonal"
    """Whether a Gaussian has variances, or a covariance matrix (only with `protection: none`)."""
    proxies: Annotated[int, Field(ge=2, le=1_000)] = 50
    """M, the number of points that the coordinator draws from each Gaussian."""
    w: Annotated[FiniteFloat, Field(ge=1, le=50)] = 2.0
    """The power of the distance in the attractive forces."""
    cannot_link: Literal["auto", "on", "off"] = "auto"
    """Whether clusters of one site are kept apart as long as any others can be merged. `on` is
    right if sites do not split clusters, and wrong if a site has fewer clusters than cells. `off`
    is the paper's rule. `auto` tries both and takes the one with the better simplified silhouette.
    """

    @property
    def searches(self) -> bool:
        """Whether each site chooses the number of its cells."""
        if self.local_clusters is None:
            return self.n_clusters is None
        return self.local_clusters == "silhouette"

    @property
    def most_cells(self) -> int:
        """The most cells of a site."""
        if isinstance(self.local_clusters, int):
            return self.local_clusters
        return _MAX_CELLS if self.n_clusters is None else self.n_clusters


def check_config(config: RunConfig[Config]) -> None:
    """Raise RuleViolation for full covariances under protection, or too large for a message."""
    options = config.options
    d = len(config.columns)
    if options.covariance != "full":
        return
    if config.policy.protection != "none":
        raise RuleViolation(
            "covariance",
            "full covariances need exact records: take covariance: diagonal, or protection: none "
            "with every site's consent",
            "/covariance",
        )
    if options.most_cells * d * d > _MAX_NUMBERS:
        raise RuleViolation(
            "covariance",
            f"full covariances of {options.most_cells} cells and {d} features do not fit one "
            "answer: take covariance: diagonal, fewer features or fewer local_clusters",
            "/covariance",
        )


# --- What travels ---------------------------------------------------------------------------------


class GaussiansTask(CellsTask, title="GaussiansTask"):
    """Cluster your points by the features that you have, and describe each cell by a Gaussian.

    Attributes
    ----------
    n_clusters : int
        The most cells.
    search : bool
        Whether to choose the number of cells by the simplified silhouette.
    n_init : int or None
        Restarts; None: the site chooses.
    full : bool
        Whether to send covariance matrices.
    """

    full: bool


class Gaussians(Cells):
    """A site's local clusters.

    Attributes
    ----------
    counts : (K_i,) int64
        Persons in each cell.
    means, variances : (K_i, d) float64
        Scaled; 0 in the features that the site lacks.
    covariances : (K_i, d_i, d_i) float64
        Over the site's columns in their order; shape (0, 0, 0) if the task asks for none.
    """

    variances: FloatMatrix
    covariances: FloatTensor3


def gaussians_task(options: Config) -> GaussiansTask:
    """Return the task of the phase ``gaussians``."""
    return GaussiansTask(
        n_clusters=options.most_cells,
        search=options.searches,
        n_init=options.n_init,
        full=options.covariance == "full",
    )


def check(task: SiteTask[GaussiansTask], payload: Gaussians, config: RunConfig[Config]) -> None:
    """Check a message at either end: shapes, counts, mask, bounds, variances, covariances."""
    check_cells(payload, task.common.n_clusters, config, fewer=True)
    check_shapes(payload, variances=payload.means.shape)
    check_cell_values(payload.counts, payload.variances, config, "/variances")
    known = np.where(config.mask, payload.counts[:, None], 0)
    check_variances(known, payload.variances, max_variances(payload.means, config))
    if task.common.full:
        check_covariances(payload.covariances, payload.variances[:, config.mask])
    else:
        check_shapes(payload, covariances=(0, 0, 0))


def max_variances(means: FloatArray, config: RunConfig) -> FloatArray:
    """Return the largest variances (K, d) that values within the columns' bounds can have."""
    lower, upper = scaled_bounds(config)
    bounded = np.isfinite(lower) & np.isfinite(upper)
    with np.errstate(invalid="ignore"):
        return np.where(bounded, np.maximum((upper - means) * (means - lower), 0.0), np.inf)


#: Relative slack of comparisons of floating-point numbers.
_SLACK = 1e-9


def check_variances(known: IntArray, variances: FloatArray, widest: FloatArray) -> None:
    """Raise RuleViolation if a variance (K, d) is negative, or above ``widest`` where known."""
    wide = (variances > widest + _SLACK * np.maximum(1.0, widest)) & (known > 0)
    message = "cell {}: the variance of column {} is negative or wider than its bounds allow"
    refuse_first((variances < 0) | wide, "spread", message, "/variances")


def check_covariances(matrices: FloatArray, variances: FloatArray) -> None:
    """Raise RuleViolation unless matrices (K, d_i, d_i) are covariances with these variances."""
    d = variances.shape[1]
    check_shape(matrices, (len(variances), d, d), "/covariances")
    for cell, matrix in enumerate(matrices):
        fault = _covariance_fault(matrix, variances[cell])
        if fault is not None:
            raise RuleViolation(fault[0], f"cell {cell}: {fault[1]}", f"/covariances/{cell}")


def _covariance_fault(matrix: FloatArray, variances: FloatArray) -> tuple[str, str] | None:
    """Return rule and message if a matrix (d_i, d_i) is no covariance of these variances."""
    if not np.array_equal(matrix, matrix.T):
        return "symmetry", "a covariance matrix must be symmetric"
    if not np.allclose(matrix.diagonal(), variances, rtol=_SLACK, atol=0.0):
        return "covariance", "the diagonal of the covariance must be the variances"
    # Relative to each feature's deviation, or one wide feature would hide the others.
    unit = np.sqrt(np.where(variances > 0, variances, 1.0))
    scaled = matrix / unit / unit[:, None]
    bounded = (np.abs(scaled) <= 1.0 + _SLACK).all() and not matrix[variances == 0].any()
    if not (bounded and np.linalg.eigvalsh(scaled)[0] >= -_SLACK * len(variances)):
        return "definite", "a covariance matrix must have no eigenvalue below 0"
    return None


# --- At a site ------------------------------------------------------------------------------------


#: The key of a site's memory for its local means, which label its rows.
_MEMORY_KEY = "overlap_oneshot"


def local_step(task: SiteTask[GaussiansTask], site: SiteSide[Config]) -> Gaussians:
    """Cluster a site's scaled points and describe the cells."""
    config = site.config
    own = select_site_columns(site.points, config)
    found = local_cells(task.common, own, site.rng)
    labels = nearest_centroid(own.X, found.centroids)
    means = expand_to_all_columns(found.means, config)
    variances = expand_to_all_columns(cell_variances(own, labels, found), config)
    full = task.common.full
    site.memory[_MEMORY_KEY] = {"means": means, "mask": config.mask}
    return Gaussians(
        counts=found.counts,
        means=means,
        variances=np.minimum(variances, max_variances(means, config)),
        covariances=cell_covariances(own, labels, found) if full else np.zeros((0, 0, 0)),
    )


def cell_variances(points: Points, labels: IntArray, found: ClusterSums) -> FloatArray:
    """Return the variances (K, d_i) of the cells' persons, between and within groups.

    Parameters
    ----------
    points : Points
        In the site's own columns.
    labels : (m,) int64
        The cell of each point.
    found : ClusterSums
    """
    squares = np.zeros(found.means.shape)
    np.add.at(squares, labels, points.sizes[:, None] * (points.X - found.means[labels]) ** 2)
    between = squares / found.counts[:, None]
    return between + points.within * total_variances(points)


def cell_covariances(points: Points, labels: IntArray, found: ClusterSums) -> FloatArray:
    """Return the covariance matrices (K, d_i, d_i) of the cells' points.

    Parameters are those of :func:`cell_variances`.
    """
    d = points.X.shape[1]
    matrices = np.zeros((len(found.counts), d, d))
    for cell, (count, mean) in enumerate(zip(found.counts, found.means, strict=True)):
        inside = labels == cell
        deviations = points.X[inside] - mean
        matrix = (deviations * points.sizes[inside, None]).T @ deviations / count
        matrices[cell] = (matrix + matrix.T) / 2.0
    return matrices


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
        local_step=local_step,
        check=check,
        discloses=disclosures(
            counts="up to K_i numbers: How many of your persons are in each cell of your own "
            "clustering.",
            means="up to K_i x d numbers: The mean of each column over each cell, scaled. 0 in the "
            "features that your site has not got.",
            variances="up to K_i x d numbers: How widely each column is spread in each cell: the "
            "variance of the groups' records, and the variance within groups that is estimated "
            "from them.",
            covariances="up to K_i x d_i x d_i numbers: Only with covariance: full, which needs "
            "protection: none. How your site's columns hang together in each cell.",
            identify={
                "means": "Means over whole groups." + SINGLE_SITE_NOTE,
                "variances": "Sums over whole groups.",
                "covariances": "Computed from exact records, like all that is sent then.",
            },
        ),
    ),
)


def label(result: Result, X: FloatArray, memory: Memory | None) -> IntArray:
    """Label rows (n, d) in own units; -1 for rows that cannot be labelled.

    A site's own rows get the cluster of the nearest local mean. New rows, and rows of a site that
    joined later, get the nearest centroid over the features that they have.
    """
    own = (memory or {}).get(_MEMORY_KEY)
    if own is None or not result.mapping:
        return label_by_centroid(result, X)
    (clusters,) = result.mapping.values()
    check_mapping(clusters, len(own["means"]))
    mask = None if result.mask is None else np.tile(own["mask"], (len(clusters), 1))
    local = result.model_copy(update={"centroids": own["means"], "mask": mask})
    cells = label_by_centroid(local, X)
    return np.where(cells >= 0, np.array(clusters, dtype=np.int64)[cells], -1)


# --- At the coordinator ---------------------------------------------------------------------------


class State(Model):
    """What a session keeps until its only round closes.

    Attributes
    ----------
    seed : int
    """

    seed: int


def start(config: RunConfig[Config], seed: int) -> tuple[State, Task[GaussiansTask]]:
    """Return the first state and task."""
    return State(seed=seed), Task("gaussians", gaussians_task(config.options))


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig[Config]
) -> Done:
    """Aggregate the round; contributions are sorted by site."""
    sent = payloads_of(contributions, Gaussians)
    local = collect_centroids(sent, config)
    tree, n_clusters = _choose_tree(state.seed, sent, local, config)
    groups = tree.cut(n_clusters)
    merged = sum_groups(local, groups, int(groups.max()) + 1)
    mapping = {}
    for number, (site, cells) in enumerate(sent.items()):
        own = np.full(len(cells.counts), -1, dtype=np.int64)
        own[cells.counts > 0] = groups[local.sites == number]
        mapping[site] = tuple(own.tolist())
    raw = raw_result(
        merged.means,
        config,
        mask=merged.mask if config.policy.missing == "mask" else None,
        stopped_because="finished",
        warnings=(
            *_forced_merge_warning(tree, n_clusters),
            *too_many_groups_warning(tree.n_roots, n_clusters),
            *single_site_feature_warning(sent, config),
        ),
        mapping=mapping,
    )
    return Done(raw)


def _choose_tree(
    seed: int, sent: Mapping[str, Gaussians], local: LocalCentroids, config: RunConfig[Config]
) -> tuple[MergeTree, int]:
    """Merge the local clusters (lines 4 to 12); return the best tree and where to cut it."""
    options = config.options
    proxies = [_draw_site_proxies(seed, site, cells, config) for site, cells in sent.items()]
    masks = [config.masks[site] for site in sent]
    forces = cluster_forces(proxies, masks, options.w)
    apart = {"auto": (False, True), "on": (True,), "off": (False,)}[options.cannot_link]
    trees = [build_merge_tree(forces, local.sites if separate else None) for separate in apart]
    if len(trees) == 1 and options.n_clusters is not None:
        return trees[0], options.n_clusters
    variances = np.concatenate([cells.variances[cells.counts > 0] for cells in sent.values()])
    cuts = [best_cut(tree, local, variances, options.n_clusters) for tree in trees]
    best = int(tolerant_argmax([score for _, score in cuts]))
    return trees[best], options.n_clusters or cuts[best][0]


def _draw_site_proxies(
    seed: int, site: str, cells: Gaussians, config: RunConfig[Config]
) -> FloatArray:
    """Return the proxies (K_i, M, d) of a site's cells (line 4)."""
    options = config.options
    filled = np.flatnonzero(cells.counts)
    return draw_proxies(
        cells.means[filled],
        cells.variances[filled],
        np.flatnonzero(config.masks[site]),
        options.proxies,
        server_rng(seed, f"overlap_oneshot-proxies-{site}"),
        cells.covariances[filled] if options.covariance == "full" else None,
    )


def draw_proxies(
    means: FloatArray,
    variances: FloatArray,
    own: IntArray,
    n_proxies: int,
    rng: np.random.Generator,
    matrices: FloatArray | None = None,
) -> FloatArray:
    """Draw points from the Gaussians of a site's cells.

    The points of a cell are shifted and scaled to have exactly the mean and variances sent; with
    covariances they are scaled along the principal axes. Only their shape is random.

    Parameters
    ----------
    means, variances : (K, d) float64
    own : (d_i,) int64
        The site's columns.
    n_proxies : int
        M, at least 2.
    rng : numpy.random.Generator
    matrices : (K, d_i, d_i) float64, optional
        Covariances, instead of the variances.

    Returns
    -------
    (K, M, d) float64
        0 in the other columns.
    """
    points = np.zeros((len(means), n_proxies, means.shape[1]))
    for cell in range(len(means)):
        drawn = rng.standard_normal((n_proxies, len(own)))
        drawn -= drawn.mean(axis=0)
        drawn /= drawn.std(axis=0)
        if matrices is None:
            drawn *= np.sqrt(variances[cell, own])
        else:
            # By rounding the smallest eigenvalues can be slightly negative.
            values, vectors = np.linalg.eigh(matrices[cell])
            # The symmetric root does not depend on the signs or order of the eigenvectors.
            drawn = drawn @ (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        points[cell][:, own] = means[cell, own] + drawn
    return points


def _forced_merge_warning(tree: MergeTree, n_clusters: int) -> Iterator[str]:
    """Warn if the cut merged clusters of one site in spite of ``cannot_link``."""
    forced = tree.forced - (max(n_clusters, tree.n_roots) - tree.n_roots)
    if forced > 0:
        yield (
            f"{forced} merges put clusters of one site together although cannot_link kept them "
            f"apart: sites have more clusters than {n_clusters}, or what fitted better was taken. "
            "Ask for more clusters, or for fewer local ones."
        )


# --- What a paper says ----------------------------------------------------------------------------


_CANNOT_LINK = {
    "auto": "with and without keeping cells of one site apart, whichever gave the better "
    "simplified silhouette",
    "on": "keeping cells of one site apart as long as any others could be merged",
    "off": "whether or not the cells were of one site",
}


def describe(options: Config) -> str:
    """Return what a methods section of a paper says of these options."""
    most = f"{options.most_cells}" if options.n_clusters is None else "K"
    if options.searches:
        cells = f"as many cells, from 2 to {most}, as gave the best simplified silhouette,"
    elif options.local_clusters is None:
        cells = "at most K cells"
    else:
        cells = f"at most {options.local_clusters} cells"
    moments = "variances" if options.covariance == "diagonal" else "covariance matrix"
    until = (
        "until K were left"
        if options.n_clusters is not None
        else "and the tree of merges was cut where the simplified silhouette was best"
    )
    return (
        f"Each site divided its own points into {cells} by weighted k-means from "
        f"{local_starts(options.n_init)}, in the features that it had, and sent count, mean and "
        f"{moments} of each. The coordinator drew {options.proxies} points from the Gaussian of "
        "each cell. The force between two of these points was one over their distance, over the "
        f"features that both knew, to the power of {options.w:g}; that between two groups of cells "
        "was the mean over their points. The two groups of greatest force were merged repeatedly, "
        f"{_CANNOT_LINK[options.cannot_link]}, {until}."
    )


METHOD: Method[Config, State] = Method(
    name="overlap_oneshot",
    version=4,
    title="Clustering in overlapping feature spaces, in one round",
    citation=(
        "A. Maritan, L. Schenato, Distributed clustering in partially overlapping feature spaces, "
        "2025, Algorithm 2"
    ),
    references=("maritan2025",),
    describe=describe,
    options=Config,
    phases=PHASES,
    check_config=check_config,
    check_roster=check_roster,
    label=label,
    state=State,
    start=start,
    aggregate=aggregate,
    default_max_rounds=1,
    takes_masks=True,
)
