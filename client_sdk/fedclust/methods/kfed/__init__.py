"""kfed: k-FED, clustering in one round from the means of the sites' own clusters.

What it says and cites
    Dennis, Li & Smith, "Heterogeneity for the win: one-shot federated clustering", ICML 2021
    (PMLR 139). Every site clusters its own points and sends the means. The coordinator clusters the
    means, and each local cluster, whole, goes where its mean went (Definition 3.3). What a site
    holds of few clusters it can tell apart more easily than anyone could who sees all: where no
    site has more than sqrt(K) of the K clusters, pairs that never meet at a site need less
    separation than central k-means asks for (Theorem 3.1).

``variant: paper`` is Algorithms 1 and 2 as published, except at sites with no more rows than k',
whose rows would be their own means: such a site makes fewer cells. ``variant: default`` replaces
the parts that fail on uneven sites: it uses k-means with restarts instead of one seeding and its
1/3 rule, more cells than clusters, cells weighted by their counts at the coordinator, several
starts there, and labels by the nearest centroid. ``refine`` adds exact Lloyd rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedclust.methods import lloyd
from fedclust.methods.common.assign import label_by_centroid, scaled_rows
from fedclust.methods.common.cluster_sums import ClusterSums, cluster_sums
from fedclust.methods.common.finalize import raw_result
from fedclust.methods.common.options import Restarts, SweptOptions, variants
from fedclust.methods.kfed.local_cells import algorithm_1, converged, local_restarts, own_cells
from fedclust.methods.lloyd import Cells, Step, StepTask
from fedclust.numeric.arrays import FloatMatrix
from fedclust.numeric.canonical import highest
from fedclust.numeric.distances import first_occurrences, nearest, squared_distances
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.schema.errors import MethodFailure, RuleViolation
from fedclust.schema.method import LocalAnswer, Method
from fedclust.schema.model import Memory, Model
from fedclust.schema.points import Points, row_points
from fedclust.schema.result import Result
from fedclust.schema.run_config import RunConfig
from fedclust.schema.task import Contribution, Disclosure, Done, Next, Phase, SiteTask, Task

VERSION = 5
#: The means of a site's own cells, which it remembers to label its rows by them.
_CELLS = "kfed"
#: Where local_clusters is not given. On the grid of the FKM paper labels got better with more cells
#: until about so many: a cell on the border of two clusters mixes them.
_CELLS_PER_CLUSTER = 8
#: From so many cells on, the default variant projects (ALGORITHMS: none below 32).
_PROJECT_FROM = 32

# --- Config ---------------------------------------------------------------------------------------


class _KfedOptions(SweptOptions):
    """What the analyst chooses in both variants.

    Attributes
    ----------
    local_clusters : int or None
        k', the most cells that a site makes of its points. None: 8 K, and the root of K, rounded
        up, in the paper variant.
    refine : int
        Exact Lloyd rounds after the first.
    """

    local_clusters: Annotated[int, Field(ge=1, le=10_000)] | None = None
    refine: Annotated[int, Field(ge=0, le=99)] = 0


class DefaultConfig(_KfedOptions, title="KfedDefaultConfig"):
    """What the analyst chooses in the default variant.

    Attributes
    ----------
    n_init : int or None
        Restarts of each site's k-means. None: 10, fewer at a large site, by a fixed rule of its
        size.
    projection : {"auto", "on", "off"}
        Whether a site seeds its k-means in the space of those of its first singular vectors that
        stand out of noise (:func:`directions`). ``auto``: from 32 cells on.
    labels : {"nearest", "cells"}
        How a site that took part labels its rows: by the nearest centroid, or by the cluster of its
        nearest own cell (Definition 3.3). All other rows, and all rows after refinement, go by the
        nearest centroid.
    """

    variant: Literal["default"]
    n_init: Restarts | None = None
    projection: Literal["auto", "on", "off"] = "auto"
    labels: Literal["nearest", "cells"] = "nearest"

    @property
    def cells(self) -> int:
        """The most cells that a site makes of its points, k'."""
        return self.local_clusters or min(_CELLS_PER_CLUSTER * self.k, 10_000)

    @property
    def projects(self) -> bool:
        """Whether sites project their points."""
        if self.projection == "auto":
            return self.cells >= _PROJECT_FROM
        return self.projection == "on"


class PaperConfig(_KfedOptions, title="KfedPaperConfig"):
    """What the analyst chooses in the paper's variant.

    Attributes
    ----------
    projection : {"on", "off"}
        Whether a site seeds its k-means in the space of its first k' singular vectors.
    labels : {"cells", "nearest"}
        As in the default variant.
    server_lloyd : {"converge", "one"}
        Lloyd's heuristic at the coordinator until nothing changes, as the authors' program does, or
        once (Algorithm 2, line 7).
    """

    variant: Literal["paper"]
    projection: Literal["on", "off"] = "on"
    labels: Literal["cells", "nearest"] = "cells"
    server_lloyd: Literal["converge", "one"] = "converge"

    @property
    def cells(self) -> int:
        """The most cells that a site makes of its points, k'."""
        return self.local_clusters or int(np.ceil(np.sqrt(self.k)))

    @property
    def projects(self) -> bool:
        """Whether sites project their points."""
        return self.projection == "on"


Config = variants("KfedConfig", DefaultConfig, PaperConfig)


def check_config(config: RunConfig) -> None:
    """Refuse more local clusters than the paper's variant can start from."""
    options: DefaultConfig | PaperConfig = config.options
    if isinstance(options, PaperConfig) and options.cells > options.k:
        raise RuleViolation(
            "variant",
            "variant: paper starts from one site's means: local_clusters is at most n_clusters",
            "/local_clusters",
        )


# --- Payloads -------------------------------------------------------------------------------------


class CellsTask(Model, title="KfedCellsTask"):
    """Cluster your points by yourself.

    Attributes
    ----------
    n_clusters : int
        Into at most so many cells, k'.
    variant : {"default", "paper"}
        How; see :func:`own_cells` and :func:`algorithm_1`.
    n_init : int or None
        Restarts, in the default variant; None: :func:`local_restarts`.
    project : bool
        Whether to seed among the points' projections on their first singular vectors.
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
        summary="Each site clusters its own points; the coordinator clusters the cells' means.",
        task=CellsTask,
        discloses=tuple(_described(line) for line in _LLOYD_CELLS.discloses),
    ),
    replace(
        _LLOYD_STEP,
        name="refine",
        summary=(
            "Only where the analyst asks for refinement: each site assigns its points to the "
            "nearest centroid and adds them up."
        ),
    ),
)


def _cells_task(options: DefaultConfig | PaperConfig) -> CellsTask:
    return CellsTask(
        n_clusters=options.cells,
        variant=options.variant,
        n_init=options.n_init if isinstance(options, DefaultConfig) else None,
        project=options.projects,
    )


def check_task(task: SiteTask, config: RunConfig) -> None:
    """Refuse other cells than the definition's, and more centroids than it names."""
    if task.phase == "cells":
        if task.common != _cells_task(config.options):
            raise RuleViolation(
                "task", "the task asks for other cells than the definition", "/parameters"
            )
        return
    lloyd.check_numbers(task, config)


def check(task: SiteTask, payload: Cells | Step, config: RunConfig) -> None:
    """Check an answer at either end: shapes, counts, bounds, costs."""
    if isinstance(payload, Cells):
        # As many cells as the site made, which are fewer than were asked for where it is small.
        n_cells = min(max(len(payload.counts), 1), task.common.n_clusters)
        task = replace(task, common=task.common.model_copy(update={"n_clusters": n_cells}))
    lloyd.check(task, payload, config)


# --- Local step -----------------------------------------------------------------------------------


def local_step(
    task: SiteTask, points: Points, config: RunConfig, rng: np.random.Generator, memory: Memory
) -> LocalAnswer:
    """Answer a task from a site's scaled points."""
    if task.phase != "cells":
        return lloyd.local_step(task, points, config, rng, memory)
    found = _cells(task.common, points, config.options, rng)
    filled = found.counts > 0
    sent = Cells(counts=found.counts[filled], means=found.means[filled])
    if config.options.labels == "cells":
        memory = {**memory, _CELLS: sent.means}
    return sent, memory


def _cells(
    task: CellsTask, points: Points, options: DefaultConfig | PaperConfig, rng: np.random.Generator
) -> ClusterSums:
    # Two persons a cell on average: a site with k' rows or fewer would send its rows.
    n_cells = max(min(task.n_clusters, points.n // 2), 1)
    if task.variant == "paper":
        return algorithm_1(points, n_cells, rng, project=task.project)
    n_init = task.n_init or local_restarts(len(points.X), points.X.shape[1], n_cells)
    return own_cells(points, n_cells, n_init, rng, options.k if task.project else None)


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
        Local cell to centroid; empty once refined, and with ``labels: nearest``.
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
    return State(phase="cells", seed=seed), Task("cells", _cells_task(config.options))


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    """Close a round; contributions sorted by site."""
    options: DefaultConfig | PaperConfig = config.options
    metrics: dict[str, float] = {}
    mapping: dict[str, tuple[int, ...]] = {}
    refined = 0
    if state.phase == "cells" or state.centroids is None:
        centroids, mapping = _one_shot(state.seed, contributions, config)
    else:
        centroids, _, metrics = lloyd.step(state.centroids, contributions)
        refined = state.refined + 1
    following = State(
        phase="refine", seed=state.seed, centroids=centroids, mapping=mapping, refined=refined
    )
    if refined >= options.refine:
        return Done(finish(following, config), metrics)
    return Next(following, Task("refine", StepTask(centroids=centroids)), metrics)


def _one_shot(
    seed: int, contributions: Sequence[Contribution], config: RunConfig
) -> tuple[NDArray[np.float64], dict[str, tuple[int, ...]]]:
    """Cluster the cells' means: return the centroids, and where each cell of a site belongs."""
    options: DefaultConfig | PaperConfig = config.options
    sent: dict[str, Cells] = {c.site: c.payload for c in contributions if c.payload is not None}
    means = np.concatenate([cells.means for cells in sent.values()])
    if isinstance(options, PaperConfig):
        first = next(iter(sent.values()))
        seeds = farthest_first(means, first.means, options.k)
        placed, centroids = _server_lloyd(means, seeds, once=options.server_lloyd == "one")
    else:
        counts = np.concatenate([cells.counts for cells in sent.values()]).astype(np.float64)
        centroids = weighted_kmeans(means, counts, options.k, server_rng(seed, "kfed-cells"))
        placed = nearest(means, centroids)
    if options.labels == "nearest":
        return centroids, {}
    ends = np.cumsum([len(cells.counts) for cells in sent.values()])
    mapping = {
        site: tuple(int(group) for group in own)
        for site, own in zip(sent, np.split(placed, ends[:-1]), strict=True)
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
    points, placed = row_points(means), nearest(means, seeds)
    found = cluster_sums(points, placed, seeds) if once else converged(points, seeds)
    centroids = np.where(found.counts[:, None] > 0, found.means, found.centroids)
    return (placed if once else nearest(means, centroids)), centroids


# --- Convergence ----------------------------------------------------------------------------------


def finish(state: State, config: RunConfig) -> Result:
    """Return the last centroids: the number of rounds is fixed."""
    if state.centroids is None:
        raise MethodFailure("no_centroids", "no round of the method was closed: raise max_rounds")
    raw = raw_result(state.centroids, config, stopped_because="finished")
    return raw.model_copy(update={"mapping": state.mapping})


# --- Labelling ------------------------------------------------------------------------------------


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units by the nearest centroid.

    With a mapping a site's own rows go with the nearest of its own cells (Definition 3.3). New
    rows, rows of a site that came later (Theorem 3.2), and all rows after refinement do not.
    """
    labels = label_by_centroid(result, X)
    cells = (memory or {}).get(_CELLS)
    if cells is None or not result.mapping:
        return labels
    (clusters,) = result.mapping.values()
    known = labels >= 0
    own = nearest(scaled_rows(result, X)[known], cells)
    labels[known] = np.array(clusters, dtype=np.int64)[own]
    return labels


def rounds(options: Any) -> int:
    """Return how many rounds a session takes."""
    return 1 + int(options.refine)


def possible_phases(options: Any) -> tuple[str, ...]:
    """Return the phases of a session: without refinement the cells alone."""
    return ("cells", "refine") if options.refine else ("cells",)


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
    check_task=check_task,
    rounds=rounds,
    possible_phases=possible_phases,
    sweeps=True,
)
