"""overlap_oneshot: sites with different, overlapping features, clustered in one round.

What it says and cites
    Maritan & Schenato, "Distributed clustering in partially overlapping feature spaces", 2025,
    Algorithm 2. Every site clusters its own rows by its own features and sends each cluster as a
    Gaussian (``gaussians``). The coordinator draws as many points from each, lets the points
    attract each other over the features that both know, and merges groups of clusters by the
    greatest force (``forces``) until K are left. A local cluster goes, whole, where it was merged.

Where the paper is wrong or silent: see ``forces``; where K is not given, the tree of merges is cut
where the simplified silhouette is best. Draws come from the session's seed and the site's name, so
that no site's proxies depend on who else takes part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from fedclust.algorithms import guarded_lloyd as lloyd
from fedclust.algorithms.arrays import FloatMatrix, FloatTensor3, IntVector
from fedclust.algorithms.assigning import label_by_centroid
from fedclust.algorithms.base import (
    Contribution,
    Disclosure,
    Done,
    LocalAnswer,
    Memory,
    Method,
    Model,
    Phase,
    Result,
    RuleViolation,
    RunConfig,
    SiteData,
    SiteTask,
    Task,
    Totals,
)
from fedclust.algorithms.canonical import highest
from fedclust.algorithms.columns import feature_names
from fedclust.algorithms.finishing import raw_result
from fedclust.algorithms.forces import best_cut, forces, merge_tree
from fedclust.algorithms.gaussians import (
    check_covariances,
    check_spread,
    covariance,
    proxies,
    rows_needed,
    smallest_cell,
    without_few,
)
from fedclust.algorithms.local_cells import LOCAL
from fedclust.algorithms.masked import Points, merge
from fedclust.algorithms.overlap import ALONE, CellsTask, check_roster, local_cells, points_of
from fedclust.algorithms.releasing import persons, release, site_totals
from fedclust.algorithms.seeding import server_rng
from fedclust.algorithms.spaces import scaled_bounds
from fedclust.algorithms.totals import DISCLOSURE, SitePart, check_sizes, check_totals, site_parts
from fedclust.privacy.checks import check_empty, check_means, check_shape

VERSION = 3
#: What a site remembers of its own clusters, for its own rows' labels.
_OWN = "overlap_oneshot"
#: Where neither K nor K_i is given, the most cells that a site tries.
_MOST_CELLS = 20
#: Numbers in the covariances of one answer: a body has at most 32 MiB.
_MOST_NUMBERS = 3_000_000

# --- Config ---------------------------------------------------------------------------------------


class Config(Model, title="OverlapOneshotConfig"):
    """What the analyst chooses.

    Attributes
    ----------
    n_clusters : int or None
        Number of clusters K. None: the cut of the tree of merges with the best simplified
        silhouette, from 2 on.
    local_clusters : int, "silhouette" or None
        K_i, the most cells that a site makes of its rows. ``silhouette``: what each site finds
        best by the simplified silhouette, from 2 to K, or to 20 where K is to be found. None: K;
        ``silhouette`` where K is to be found.
    n_init : int or None
        Restarts of each site's k-means. None: 10, fewer at a site where that is dear, by a fixed
        rule of its size.
    covariance : {"diagonal", "full"}
        What a cell's Gaussian holds. ``full``: a matrix for cells with at least five rows for
        each feature of the site, variances for the others.
    proxies : int
        M, the points drawn from each Gaussian.
    w : float
        The power of the distance in forces.
    cannot_link : {"auto", "on", "off"}
        Whether clusters of one site are kept apart as long as anything else can be merged: right
        where sites do not split clusters, wrong where a site has fewer than it makes. ``auto``:
        both are tried, and the better simplified silhouette decides. The paper has ``off``.
    evaluate : bool
        Whether a closing round measures the quality of the final centroids.
    """

    n_clusters: Annotated[int, Field(ge=1, le=10_000)] | None = None
    local_clusters: Annotated[int, Field(ge=1, le=10_000)] | Literal["silhouette"] | None = None
    n_init: Annotated[int, Field(ge=1, le=100)] | None = None
    covariance: Literal["diagonal", "full"] = "diagonal"
    proxies: Annotated[int, Field(ge=2, le=1_000)] = 50
    w: Annotated[FiniteFloat, Field(ge=1, le=50)] = 2.0
    cannot_link: Literal["auto", "on", "off"] = "auto"
    evaluate: bool = True

    @property
    def searches(self) -> bool:
        """Whether sites look for the number of their clusters."""
        if self.local_clusters is None:
            return self.n_clusters is None
        return self.local_clusters == "silhouette"

    @property
    def most_cells(self) -> int:
        """The most cells that a site makes of its rows."""
        if isinstance(self.local_clusters, int):
            return self.local_clusters
        return _MOST_CELLS if self.n_clusters is None else self.n_clusters


def check_config(config: RunConfig) -> None:
    """Refuse what no site could send."""
    options: Config = config.options
    d = len(config.columns)
    if options.covariance == "full" and options.most_cells * d * d > _MOST_NUMBERS:
        raise RuleViolation(
            "covariance",
            f"full covariances of {options.most_cells} cells and {d} features do not fit one "
            "answer: take covariance: diagonal, fewer features or fewer local_clusters",
            "/covariance",
        )


# --- Payloads -------------------------------------------------------------------------------------


class GaussiansTask(CellsTask, title="GaussiansTask"):
    """Cluster your rows by the features that you have, and describe each cell by a Gaussian.

    Attributes
    ----------
    n_clusters : int
        Into at most so many cells.
    search : bool
        Whether to make fewer where that has the better simplified silhouette.
    n_init : int or None
        Restarts; None leaves them to the site.
    full : bool
        Whether to send the covariance matrices of cells that are large enough.
    """

    full: bool


class Gaussians(Model):
    """A site's local clusters.

    Attributes
    ----------
    counts : (K_i,) int64
        Rows in each cell; 0 for those that may not be sent, whose numbers are 0.
    means : (K_i, d) float64
        Scaled; 0 in the features that the site has not got.
    m2 : (K_i, d) float64
        Sums of squared deviations from the means; likewise.
    covariances : (K_i, d_i, d_i) float64
        By the number of rows, over the site's features in their order; 0 for cells that are too
        small for one. Of shape (0, 0, 0) where the task asks for none.
    totals : Totals or None
    """

    counts: IntVector
    means: FloatMatrix
    m2: FloatMatrix
    covariances: FloatTensor3
    totals: Totals | None = None


_GUARDED = (
    "Each number describes 0 or at least the smallest count of persons, and three at least. The "
    "guard holds back whatever would single out fewer when this answer is compared with any "
    "earlier one."
)
PHASES = (
    Phase(
        name="gaussians",
        summary=(
            "Each site clusters its own rows by the features that it has and describes every "
            "cluster by a bell curve; the coordinator finds out which sites' clusters are one."
        ),
        task=GaussiansTask,
        site_part=SitePart,
        payload=Gaussians,
        discloses=(
            Disclosure(
                field="counts",
                shape="up to K_i numbers",
                meaning="How many of your rows are in each cell of your own clustering.",
                identifies=_GUARDED,
            ),
            Disclosure(
                field="means",
                shape="up to K_i x d numbers",
                meaning=(
                    "The mean of each feature over the rows of each cell, scaled. 0 in the "
                    "features that your site has not got."
                ),
                identifies=(
                    f"{_GUARDED} No mean is a person's record. The share of a yes/no feature or "
                    "level is rounded where fewer than the smallest count have, or lack, it."
                    f"{ALONE}"
                ),
            ),
            Disclosure(
                field="m2",
                shape="up to K_i x d numbers",
                meaning=(
                    "How widely each feature is spread in each cell: its squared deviations from "
                    "the mean, added up."
                ),
                identifies=(
                    f"{_GUARDED} 0 where all rows of the cell have one value, or all but those of "
                    "fewer than the smallest count of persons, and where it would tell such a "
                    "cell's. Of a yes/no feature it follows from the share, rounded or not."
                ),
            ),
            Disclosure(
                field="covariances",
                shape="up to K_i x d_i x d_i numbers",
                meaning=(
                    "Only with covariance: full. How your site's features hang together in each "
                    "cell with at least five rows for each of them; 0 in the others."
                ),
                identifies=(
                    "With a yes/no feature, what the others are among those who answer yes. Where "
                    "these, or the others, or those with two features' values, are fewer than the "
                    "smallest count of persons, it is not told."
                ),
            ),
            DISCLOSURE,
        ),
    ),
)


def check(task: SiteTask, payload: Gaussians, config: RunConfig) -> None:
    """Check an answer at either end: shapes, counts, complement, mask, bounds, covariances."""
    check_totals(payload.totals, task.site, config)
    # As many cells as the site made, which are fewer than were asked for where it is small.
    n_cells = min(max(len(payload.counts), 1), task.common.n_clusters)
    shape = (n_cells, len(config.columns))
    check_shape(payload.counts, (n_cells,), "/counts")
    check_sizes(payload.counts, payload.totals, task.site, _strict(config))
    for name in ("means", "m2"):
        values = getattr(payload, name)
        check_shape(values, shape, f"/{name}")
        check_empty(payload.counts, values, f"/{name}")
        foreign = np.argwhere((values != 0) & ~config.mask)
        if foreign.size:
            cell, feature = (int(place) for place in foreign[0])
            raise RuleViolation(
                "mask",
                f"cell {cell}: the site joined without feature {feature}, so its numbers there "
                "must be 0",
                f"/{name}/{cell}/{feature}",
            )
    lower, upper = scaled_bounds(config)
    known = np.where(config.mask, payload.counts[:, None], 0)
    check_means(known, payload.means, lower, upper, "/means")
    lower, upper = np.where(config.mask, lower, 0.0), np.where(config.mask, upper, 0.0)
    check_spread(payload.counts, payload.means, payload.m2, lower, upper)
    if task.common.full:
        check_covariances(payload.covariances, payload.counts, payload.m2, config)
    else:
        check_shape(payload.covariances, (0, 0, 0), "/covariances")


def _strict(config: RunConfig) -> RunConfig:
    """Return the configuration under which Gaussians are released: of no fewer than three."""
    return replace(config, p=smallest_cell(config.p))


# --- Local step -----------------------------------------------------------------------------------


def local_step(
    task: SiteTask, data: SiteData, config: RunConfig, rng: np.random.Generator, memory: Memory
) -> LocalAnswer:
    """Cluster a site's scaled rows (n, d) and describe the cells."""
    strict = _strict(config)
    if persons(data) < strict.p:
        return None, memory
    asked = task.site is not None and task.site.totals
    totals = site_totals(data, config) if asked else None
    wanted = local_cells(task.common, data, strict, rng)
    n_cells = int(wanted.max(initial=-1)) + 1
    released, memory = release(data, strict, memory, wanted, n_cells, candidate=LOCAL)
    released, memory = without_few(data, released, strict, memory)
    memory = {**memory, LOCAL: released.labels, _OWN: wanted}
    if released.empty and totals is None:
        return None, memory
    moments = released.moments
    covariances = np.zeros((0, 0, 0))
    if task.common.full:
        d_i = int(config.mask.sum())
        covariances = np.zeros((n_cells, d_i, d_i))
        for cell in np.flatnonzero(moments.counts >= rows_needed(config.p, d_i)):
            covariances[cell] = covariance(data, released, int(cell), strict)
    return (
        Gaussians(
            counts=moments.counts,
            means=moments.means,
            m2=moments.m2,
            covariances=covariances,
            totals=totals,
        ),
        memory,
    )


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
    options: Config = config.options
    task = GaussiansTask(
        n_clusters=options.most_cells,
        search=options.searches,
        n_init=options.n_init,
        full=options.covariance == "full",
    )
    return State(seed=seed), Task("gaussians", task, per_site=site_parts(config))


def aggregate(state: State, contributions: Sequence[Contribution], config: RunConfig) -> Done:
    """Close the round; contributions sorted by site."""
    sent = [c for c in contributions if c.payload is not None and c.payload.counts.any()]
    lloyd.refuse_too_few([c.payload.counts for c in sent], config)
    points = points_of(sent, config)
    groups, warnings = _group(state.seed, sent, points, config)
    merged = merge(points, groups, int(groups.max()) + 1)
    mask = merged.mask if config.policy.missing == "mask" else None
    raw = raw_result(merged.means, config, mask=mask, stopped_because="finished", warnings=warnings)
    mapping = {}
    for number, contribution in enumerate(sent):
        own = np.full(len(contribution.payload.counts), -1, dtype=np.int64)
        own[contribution.payload.counts > 0] = groups[points.sites == number]
        mapping[contribution.site] = tuple(int(group) for group in own)
    return Done(raw.model_copy(update={"mapping": mapping}))


def _group(
    seed: int, sent: Sequence[Contribution], points: Points, config: RunConfig
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the group (m,) of each local cluster (lines 4 to 12), and what should be known."""
    options: Config = config.options
    drawn = [_drawn(seed, contribution, config) for contribution in sent]
    masks = [config.masks[contribution.site] for contribution in sent]
    between = forces(drawn, masks, options.w)
    apart = {"auto": (False, True), "on": (True,), "off": (False,)}[options.cannot_link]
    trees = [merge_tree(between, points.sites if separate else None) for separate in apart]
    if len(trees) > 1 or options.n_clusters is None:
        variances = _variances(sent)
        cuts = [best_cut(tree, points, variances, options.n_clusters) for tree in trees]
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
    alone = np.array(masks).sum(axis=0) == 1
    if alone.any():
        features = feature_names(config.columns, alone)
        names = ", ".join(map(repr, features[:5]))
        more = f" and {len(features) - 5} more" if len(features) > 5 else ""
        warnings.append(
            f"One site alone has {names}{more}: the centroids hold its own means there."
        )
    return groups, tuple(warnings)


def _drawn(seed: int, contribution: Contribution, config: RunConfig) -> NDArray[np.float64]:
    """Return the proxies (K_i, M, d) of a site's cells (line 4)."""
    options: Config = config.options
    payload: Gaussians = contribution.payload
    filled = np.flatnonzero(payload.counts)
    return proxies(
        payload.means[filled],
        payload.m2[filled],
        payload.counts[filled],
        np.flatnonzero(config.masks[contribution.site]),
        options.proxies,
        server_rng(seed, f"overlap_oneshot-proxies-{contribution.site}"),
        payload.covariances[filled] if options.covariance == "full" else None,
    )


def _variances(sent: Sequence[Contribution]) -> NDArray[np.float64]:
    """Return the variances (m, d) of all cells that were sent."""
    found = []
    for contribution in sent:
        payload: Gaussians = contribution.payload
        filled = payload.counts > 0
        found.append(payload.m2[filled] / payload.counts[filled, None])
    return np.concatenate(found)


# --- Convergence ----------------------------------------------------------------------------------


def finish(state: State, config: RunConfig) -> Result:
    """Fail: before its only round has closed, the method has nothing."""
    del state, config
    raise lloyd.nothing_to_release()


# --- Labelling ------------------------------------------------------------------------------------


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units.

    A site's own rows go with their local cluster. Rows of one that was not sent, new rows and
    those of a site that came later take the nearest centroid over the features that they have.
    """
    labels = label_by_centroid(result, X)
    own = (memory or {}).get(_OWN)
    if own is None or not result.mapping:
        return labels
    (mapped,) = result.mapping.values()
    known = labels >= 0
    if int(known.sum()) != len(own) or own.max(initial=-1) >= len(mapped):
        raise RuleViolation("rows", "these are not the rows that took part in the session")
    groups = np.array(mapped, dtype=np.int64)[own]
    labels[known] = np.where(groups >= 0, groups, labels[known])
    return labels


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
    takes_masks=True,
)
