"""kfed: k-FED, clustering in one round from the means of the sites' own clusters.

What it says and cites
    Dennis, Li & Smith, "Heterogeneity for the win: one-shot federated clustering", ICML 2021
    (PMLR 139). Every site clusters its own rows and sends the means. The coordinator clusters the
    means, and each local cluster, whole, goes where its mean went (Definition 3.3). What a site
    holds of few clusters it can tell apart more easily than anyone could who sees all: where no
    site has more than sqrt(K) of the K clusters, pairs that never meet at a site need less
    separation than central k-means asks for (Theorem 3.1).

``variant: paper`` is Algorithms 1 and 2 as published, but for sites with no more rows than k',
whose rows would be their own means: such a site makes fewer cells. ``variant: default`` replaces
the parts that fail on uneven sites: k-means with restarts for the one seeding and its 1/3 rule,
more cells than clusters, cells weighted by their counts at the coordinator, several starts there.
``refine`` adds exact Lloyd rounds, after which rows belong to the nearest centroid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedclust.algorithms import guarded_lloyd as lloyd
from fedclust.algorithms.arrays import FloatMatrix
from fedclust.algorithms.assigning import (
    first_occurrences,
    label_by_centroid,
    nearest,
    squared_distances,
)
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
from fedclust.algorithms.canonical import highest
from fedclust.algorithms.choosing import SweptOptions
from fedclust.algorithms.finishing import raw_result
from fedclust.algorithms.guarded_lloyd import Cells, Step, StepTask
from fedclust.algorithms.kfed_cells import (
    algorithm_1,
    converged,
    filled,
    k_means,
    local_restarts,
    without_small,
)
from fedclust.algorithms.kmeans import weighted_kmeans
from fedclust.algorithms.local_cells import LOCAL, packed, unpacked
from fedclust.algorithms.releasing import index_of, persons, release, site_totals
from fedclust.algorithms.rows import Rows, whole
from fedclust.algorithms.seeding import server_rng
from fedclust.algorithms.tallies import cells_of
from fedclust.algorithms.totals import site_parts
from fedclust.privacy.counting import Labels
from fedclust.privacy.moments import cell_moments

VERSION = 3
#: What a site remembers of its own clusters, for its own rows' labels.
_OWN = "kfed"
#: Where local_clusters is not given. On the grid of the FKM paper labels got better with more cells
#: until about so many: a cell on the border of two clusters takes all its rows to one of them.
_CELLS_PER_CLUSTER = 8
#: From so many cells on, the default variant projects (ALGORITHMS: none below 32).
_PROJECT_FROM = 32
#: Cells are filled to p rows where a site has no more rows than this: places are rows squared.
_MOST_FILLED = 500

# --- Config ---------------------------------------------------------------------------------------


class Config(SweptOptions, title="KfedConfig"):
    """What the analyst chooses.

    Attributes
    ----------
    n_clusters : int or tuple of int
        Number of clusters K; several for a sweep.
    variant : {"default", "paper"}
    local_clusters : int or None
        k', the most cells that a site makes of its rows. None: 8 K, and the root of K, rounded
        up, in the paper variant.
    n_init : int or None
        Restarts of each site's k-means. None: 10, fewer at a site where that is dear, by a fixed
        rule of its size. The paper variant has one seeding.
    projection : {"auto", "on", "off"}
        Whether a site seeds its k-means in the space of its first singular vectors: of k' in the
        paper variant, else of those that stand out of noise (:func:`directions`). ``auto``: in the
        paper variant always, else from 32 cells on.
    server_lloyd : {"converge", "one"}
        Paper variant: Lloyd's heuristic at the coordinator until nothing changes, as the authors'
        program does, or once (Algorithm 2, line 7).
    refine : int
        Exact Lloyd rounds after the first.
    evaluate : bool
        Whether a closing round measures the quality of the final centroids.
    """

    variant: Literal["default", "paper"] = "default"
    local_clusters: Annotated[int, Field(ge=1, le=10_000)] | None = None
    n_init: Annotated[int, Field(ge=1, le=100)] | None = None
    projection: Literal["auto", "on", "off"] = "auto"
    server_lloyd: Literal["converge", "one"] = "converge"
    refine: Annotated[int, Field(ge=0, le=99)] = 0
    evaluate: bool = True

    @property
    def cells(self) -> int:
        """The most cells that a site makes of its rows, k'."""
        if self.local_clusters is not None:
            return self.local_clusters
        if self.variant == "paper":
            return int(np.ceil(np.sqrt(self.k)))
        return min(_CELLS_PER_CLUSTER * self.k, 10_000)

    @property
    def projects(self) -> bool:
        """Whether sites project their rows."""
        if self.projection == "auto":
            return self.variant == "paper" or self.cells >= _PROJECT_FROM
        return self.projection == "on"


def check_config(config: RunConfig) -> None:
    """Refuse options that do not fit each other."""
    options: Config = config.options
    if options.variant == "paper":
        if options.n_init is not None:
            raise RuleViolation(
                "variant", "variant: paper has one seeding; leave n_init out", "/n_init"
            )
        if options.cells > options.k:
            raise RuleViolation(
                "variant",
                "variant: paper starts from one site's means: local_clusters is at most n_clusters",
                "/local_clusters",
            )
    elif options.server_lloyd != "converge":
        raise RuleViolation(
            "variant", "server_lloyd: one is only for variant: paper", "/server_lloyd"
        )


# --- Payloads -------------------------------------------------------------------------------------


class CellsTask(Model, title="KfedCellsTask"):
    """Cluster your rows by yourself.

    Attributes
    ----------
    n_clusters : int
        Into at most so many cells, k'.
    variant : {"default", "paper"}
        How; see :func:`k_means` and :func:`algorithm_1`.
    n_init : int or None
        Restarts, in the default variant; None: :func:`local_restarts`.
    project : bool
        Whether to seed among the rows' projections on their first singular vectors.
    """

    n_clusters: Annotated[int, Field(ge=1)]
    variant: Literal["default", "paper"]
    n_init: Annotated[int, Field(ge=1)] | None
    project: bool


_LLOYD_CELLS, _LLOYD_STEP = lloyd.PHASES
_SHAPES = {"counts": "up to k' numbers", "means": "up to k' x d numbers"}


def _described(line: Disclosure) -> Disclosure:
    return line.model_copy(update={"shape": _SHAPES.get(line.field, line.shape)})


PHASES: tuple[Phase, ...] = (
    replace(
        _LLOYD_CELLS,
        summary=(
            "Each site clusters its own rows; the coordinator clusters the cells' means, and tells "
            "each site where its cells belong."
        ),
        task=CellsTask,
        discloses=tuple(_described(line) for line in _LLOYD_CELLS.discloses),
    ),
    replace(
        _LLOYD_STEP,
        name="refine",
        summary=(
            "Only where the analyst asks for refinement: each site assigns its rows to the nearest "
            "centroid and adds them up."
        ),
    ),
)


def check(task: SiteTask, payload: Cells | Step, config: RunConfig) -> None:
    """Check an answer at either end: shapes, counts, complement, bounds, costs."""
    if isinstance(payload, Cells):
        # As many cells as the site made, which are fewer than were asked for where it is small.
        n_cells = min(max(len(payload.counts), 1), task.common.n_clusters)
        task = replace(task, common=task.common.model_copy(update={"n_clusters": n_cells}))
    lloyd.check(task, payload, config)


# --- Local step -----------------------------------------------------------------------------------


def local_step(
    task: SiteTask, data: SiteData, config: RunConfig, rng: np.random.Generator, memory: Memory
) -> LocalAnswer:
    """Answer a task from a site's scaled rows (n, d)."""
    if task.phase != "cells":
        return lloyd.local_step(task, data, config, rng, memory)
    asked = task.site is not None and task.site.totals
    totals = site_totals(data, config) if asked else None
    return _cells(task.common, data, config, rng, memory, totals)


def _cells(
    task: CellsTask,
    data: SiteData,
    config: RunConfig,
    rng: np.random.Generator,
    memory: Memory,
    totals: Totals | None,
) -> LocalAnswer:
    # No more cells than groups of p persons, nor, where p is 1, of two: a site with k' rows or
    # fewer would send its rows.
    n_cells = max(min(task.n_clusters, persons(data) // max(config.p, 2)), 1)
    rows = data.rows
    own: Labels
    labels: Labels
    if task.variant == "paper":
        labels = own = algorithm_1(data.X, n_cells, rng, project=task.project)
    else:
        n_init = task.n_init or local_restarts(*rows.shape, n_cells)
        n_clusters = config.options.k if task.project else None
        own = k_means(rows, n_cells, n_init, rng, n_clusters)
        index = index_of(data)
        # Fewer than p rows for each of K clusters: here merged cells would be dear. With more,
        # cells that follow the rows alone are truer.
        tight = rows.shape[0] < config.p * config.options.k
        if tight and rows.shape[0] <= _MOST_FILLED and np.bincount(own).min() < config.p:
            own = filled(whole(rows), own, config.p)
        labels = without_small(rows, own, index, config.p)
    numbers = np.flatnonzero(np.bincount(labels))
    place = np.zeros(int(numbers[-1]) + 1, dtype=np.int16)
    place[numbers] = np.arange(len(numbers))
    wanted = place[labels]
    released, memory = release(data, config, memory, wanted, len(numbers), candidate=LOCAL)
    memory = {**memory, LOCAL: packed(released.labels), _OWN: _remembered(rows, own, numbers)}
    if released.empty and totals is None:
        return None, memory
    moments = released.moments
    return Cells(counts=moments.counts, means=moments.means, totals=totals), memory


def _remembered(rows: Rows, own: Labels, numbers: NDArray[np.intp]) -> Memory:
    """Return a site's own clusters: of each row, their means, and each one's cell, -1 for none.

    ``numbers`` are those of the clusters that are cells; the others were too small.
    """
    n_own = int(own.max()) + 1
    cells = np.full(n_own, -1, dtype=np.int64)
    cells[numbers] = np.arange(len(numbers))
    means = cells_of(rows, own, n_own).means
    return {"labels": packed(own), "means": means, "cells": cells}


# --- Aggregation ----------------------------------------------------------------------------------


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    phase : {"cells", "refine"}
        What the open round asks.
    seed : int
    centroids : (K, d) float64 or None
        Scaled.
    mapping : dict of site to tuple of int
        Local cell to centroid, -1 for cells that were not sent; empty once refined.
    refined : int
        Lloyd rounds that have closed.
    """

    phase: Literal["cells", "refine"]
    seed: int
    centroids: FloatMatrix | None = None
    mapping: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    refined: int = 0


def start(config: RunConfig, seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    options: Config = config.options
    task = CellsTask(
        n_clusters=options.cells,
        variant=options.variant,
        n_init=options.n_init,
        project=options.projects,
    )
    return State(phase="cells", seed=seed), Task("cells", task, per_site=site_parts(config))


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    """Close a round; contributions sorted by site."""
    options: Config = config.options
    metrics: dict[str, float] = {}
    mapping: dict[str, tuple[int, ...]] = {}
    refined = 0
    if state.phase == "cells" or state.centroids is None:
        centroids, mapping = _one_shot(state.seed, contributions, config)
    else:
        centroids, _, metrics = lloyd.step(state.centroids, contributions, config)
        refined = state.refined + 1
    following = State(
        phase="refine", seed=state.seed, centroids=centroids, mapping=mapping, refined=refined
    )
    if refined >= options.refine:
        return Done(finish(following, config), metrics)
    task = Task("refine", StepTask(centroids=centroids), per_site=site_parts(config))
    return Next(following, task, metrics)


def _one_shot(
    seed: int, contributions: Sequence[Contribution], config: RunConfig
) -> tuple[NDArray[np.float64], dict[str, tuple[int, ...]]]:
    """Cluster the cells' means: return the centroids, and where each cell of a site belongs."""
    options: Config = config.options
    sent: dict[str, Cells] = {c.site: c.payload for c in contributions if c.payload is not None}
    lloyd.refuse_too_few([cells.counts for cells in sent.values()], config)
    counts = np.concatenate([cells.counts for cells in sent.values()])
    filled = counts > 0
    means = np.concatenate([cells.means for cells in sent.values()])[filled]
    if options.variant == "paper":
        first = next(cells for cells in sent.values() if cells.counts.any())
        seeds = farthest_first(means, first.means[first.counts > 0], options.k)
        placed, centroids = _server_lloyd(means, seeds, once=options.server_lloyd == "one")
    else:
        centroids = weighted_kmeans(
            means,
            counts[filled].astype(np.float64),
            options.k,
            server_rng(seed, "kfed-cells"),
        )
        placed = nearest(means, centroids)
    groups = np.full(len(counts), -1, dtype=np.int64)
    groups[filled] = placed
    ends = np.cumsum([len(cells.counts) for cells in sent.values()])
    mapping = {
        site: tuple(int(group) for group in own)
        for site, own in zip(sent, np.split(groups, ends[:-1]), strict=True)
    }
    return centroids, mapping


def farthest_first(
    means: NDArray[np.float64], first: NDArray[np.float64], n_clusters: int
) -> NDArray[np.float64]:
    """Return M (K', d) of Algorithm 2, lines 2 to 6: one site's means, then always the farthest.

    Fewer than ``n_clusters`` where there are no more distinct means.
    """
    chosen = list(first[first_occurrences(first)])
    gap = np.full(len(means), np.inf)
    for seed in chosen:
        _shrink(gap, means, seed)
    while len(chosen) < n_clusters and gap.any():
        chosen.append(means[int(highest(gap))])
        _shrink(gap, means, chosen[-1])
    return np.array(chosen)


def _shrink(
    gap: NDArray[np.float64], means: NDArray[np.float64], seed: NDArray[np.float64]
) -> None:
    """Take one more seed into the squared distances (m,) of means from their nearest seed."""
    np.minimum(gap, squared_distances(means, seed[None])[:, 0], out=gap)
    # Rounding must not leave a gap between equal means, or one would be chosen twice.
    gap[(means == seed).all(axis=1)] = 0.0


def _server_lloyd(
    means: NDArray[np.float64], seeds: NDArray[np.float64], *, once: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return (tau (m,), their means (K, d)) of Algorithm 2, line 7: every mean weighs the same."""
    placed = nearest(means, seeds) if once else converged(means, seeds)
    moments = cell_moments(means, placed, len(seeds))
    return placed, np.where(moments.counts[:, None] > 0, moments.means, seeds)


# --- Convergence ----------------------------------------------------------------------------------


def finish(state: State, config: RunConfig) -> Result:
    """Return the last centroids: the number of rounds is fixed."""
    if state.centroids is None:
        raise lloyd.nothing_to_release()
    raw = raw_result(state.centroids, config, stopped_because="finished")
    return raw.model_copy(update={"mapping": state.mapping})


# --- Labelling ------------------------------------------------------------------------------------


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units.

    A site's own rows go with their local cluster (Definition 3.3). One that was too small to be
    sent goes to the centroid nearest its mean (Theorem 3.2), which the site finds by itself. New
    rows, rows of a site that came later, and all rows after refinement take the nearest centroid.
    """
    labels = label_by_centroid(result, X)
    return labels if memory is None else label_own(result, labels, memory)


def label_own(result: Result, labels: NDArray[np.int64], memory: Memory) -> NDArray[np.int64]:
    """Return the labels of a site's own rows, of which ``labels`` (n,) are by centroid."""
    own = memory.get(_OWN)
    if own is None or not result.mapping:
        return labels
    (mapped,) = result.mapping.values()
    known = labels >= 0
    cells = own["cells"]
    labels_of = unpacked(own["labels"])
    if int(known.sum()) != len(labels_of) or cells.max() >= len(mapped):
        raise RuleViolation("rows", "these are not the rows that took part in the session")
    # The last entry is for clusters that are no cell.
    groups = np.array([*mapped, -1], dtype=np.int64)[cells]
    groups = np.where(groups >= 0, groups, nearest(own["means"], result.centroids))
    labels[known] = groups[labels_of]
    return labels


def by_runs(options: Config) -> bool:
    """Return whether rows need not be in memory: the paper's steps need all at once."""
    return options.variant == "default"


METHOD = Method(
    name="kfed",
    version=VERSION,
    title="k-FED: one-shot federated clustering (k-means)",
    citation=(
        "D. K. Dennis, T. Li, V. Smith, Heterogeneity for the win: one-shot federated clustering, "
        "ICML 2021 (PMLR 139)"
    ),
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
    label_own=label_own,
    by_runs=by_runs,
    sweeps=True,
)
