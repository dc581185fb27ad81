"""The closing round: how good the final centroids are, over the rows of sent cells.

What it computes
    Inertia and sizes; the simplified silhouette, the mean over rows of (b - a) / max(a, b) with a
    the distance to the row's own centroid and b to the nearest other one (Hruschka, de Castro &
    Campello, "Evolutionary algorithms for clustering gene-expression data", 2004), 0 where both
    are 0; and the Davies-Bouldin index (Davies & Bouldin, "A cluster separation measure", 1979)
    with distances to the centroids. Sums over sites are exact. With one cluster the last two
    are null. Where every feature is yes/no, or has no more than p values in a cell, few patterns of
    answers are possible, and a sum of distances tells how often each occurs: in a cell with a
    pattern of fewer than p persons the cell's moments stand in for its rows, so that both indices
    are approximate there. In a sweep they stand in for all such rows, for what patterns two Ks
    tell of could be taken from one another.

    Where sites lack features, a squared distance is the mean over the features that row and
    centroid share, times d. Where rows go with prototypes, both indices are null: they judge
    clusters by their centroids.

It is the last round of every session whose method ends in centroids, unless ``evaluate`` is
false; it is outside ``max_rounds`` and under the same disclosure rules as every other round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.arrays import BoolMatrix, FloatMatrix, FloatVector, IntVector
from fedclust.algorithms.assigning import BLOCK, masked_squares, nearest
from fedclust.algorithms.base import (
    Contribution,
    Disclosure,
    LocalAnswer,
    Memory,
    Model,
    Phase,
    Profile,
    Quality,
    Result,
    RuleViolation,
    RunConfig,
    SiteData,
    SiteTask,
    Task,
)
from fedclust.algorithms.finishing import merged
from fedclust.algorithms.local_cells import lay_base
from fedclust.algorithms.profiling import check_profile, merge_profile, site_profile
from fedclust.algorithms.releasing import Released, index_of, release
from fedclust.algorithms.spaces import binary_columns
from fedclust.algorithms.tallies import assign
from fedclust.algorithms.totals import SitePart, check_sizes, site_parts
from fedclust.privacy.checks import check_empty, check_shape
from fedclust.privacy.counting import Labels, row_hashes
from fedclust.privacy.moments import CellMoments, cell_costs
from fedclust.privacy.sizes import suppress_sizes

NAME = "evaluate"
_SLACK = 1e-9
#: Rows of a cell that are looked at first.
_FIRST = 64


class EvaluationTask(Model, title="GuardedEvaluationTask"):
    """Measure your rows against these centroids.

    Attributes
    ----------
    centroids : (K, d) float64
        Scaled, no two equal.
    cells : (C,) int64
        For each cell of the method's rounds, its centroid. The guard compares this round's
        partition with earlier ones, cell by cell.
    mask : (K, d) bool or None
        Where the centroids are known; None: everywhere.
    prototypes : (M, d) float64 or None
        Rows go with the nearest of these, where there are any, and not with the centroids.
    prototype_centroids : (M,) int64 or None
        The centroid of each prototype.
    """

    centroids: FloatMatrix
    cells: IntVector
    mask: BoolMatrix | None = None
    prototypes: FloatMatrix | None = None
    prototype_centroids: IntVector | None = None


class Evaluation(Model, title="GuardedEvaluation"):
    """A site's part of the quality: additive.

    Attributes
    ----------
    counts : (K,) int64
    costs, distances, silhouettes : (K,) float64
        Squared distances, distances and silhouette terms of each cell's rows, added up. With one
        centroid ``silhouettes`` is 0.
    means, m2 : (K, d) float64
        Of each cell's rows, scaled: mean and sum of squared deviations from it, 0 where that may
        not be told (``profiling``).
    """

    counts: IntVector
    costs: FloatVector
    distances: FloatVector
    silhouettes: FloatVector
    means: FloatMatrix
    m2: FloatMatrix


_GUARDED = (
    "Each number describes 0 or at least the smallest count of persons, held back by the guard "
    "like every earlier answer."
)
PHASE = Phase(
    name=NAME,
    optional=True,
    summary="Sizes and quality of the final clusters.",
    task=EvaluationTask,
    site_part=SitePart,
    payload=Evaluation,
    discloses=(
        Disclosure(
            field="counts",
            shape="K numbers",
            meaning="How many of your rows are in each final cluster.",
            identifies=_GUARDED,
        ),
        Disclosure(
            field="costs",
            shape="K numbers",
            meaning="How far these rows lie from their centroid, squared and added up.",
            identifies=_GUARDED,
        ),
        Disclosure(
            field="distances",
            shape="K numbers",
            meaning="How far these rows lie from their centroid, added up.",
            identifies=_GUARDED,
        ),
        Disclosure(
            field="silhouettes",
            shape="K numbers",
            meaning=(
                "How much closer these rows lie to their own centroid than to the next one, "
                "between -1 and 1 a row, added up."
            ),
            identifies=_GUARDED,
        ),
        Disclosure(
            field="means",
            shape="K x d numbers",
            meaning="The mean of each column over these rows, scaled.",
            identifies=(
                f"{_GUARDED} No mean is a person's record. Shares of yes/no columns and levels are "
                "rounded where fewer than the smallest count have, or lack, the property."
            ),
        ),
        Disclosure(
            field="m2",
            shape="K x d numbers",
            meaning=(
                "How widely each column is spread over these rows: squared deviations from the "
                "mean, added up."
            ),
            identifies=(
                f"{_GUARDED} 0 where all rows have one value, where fewer persons than the "
                "smallest count have another than the usual or would be told of by what this "
                "leaves of others, and everywhere where the smallest count is 2. Of a yes/no "
                "column it follows from the share, rounded or not."
            ),
        ),
    ),
)


def task(raw: Result, config: RunConfig) -> Task:
    """Return the task that evaluates a method's outcome."""
    firsts, cells = merged(raw.centroids, raw.mask)
    of = raw.prototype_labels
    return Task(
        NAME,
        EvaluationTask(
            centroids=raw.centroids[firsts],
            cells=cells,
            mask=None if raw.mask is None else raw.mask[firsts],
            prototypes=raw.prototypes,
            prototype_centroids=None if of is None else cells[np.array(of, dtype=np.int64)],
        ),
        per_site=site_parts(config, ask=False),
    )


# --- Local step -----------------------------------------------------------------------------------


def local_step(
    task: SiteTask,
    data: SiteData,
    config: RunConfig,
    memory: Memory,
    fewest: int = 0,
) -> LocalAnswer:
    """Measure a site's scaled rows against the task's centroids.

    ``fewest``, in a sweep: persons that a cell needs for its distances and silhouettes to be taken
    from its rows; else its moments, which are sent beside them, stand in for these.
    """
    centroids, cells = task.common.centroids, task.common.cells
    n_clusters = len(centroids)
    check_shape(centroids, (n_clusters, data.rows.shape[1]), "/parameters/centroids")
    # The first of the method's cells that stands for each centroid takes its rows.
    used, first = np.unique(cells, return_index=True)
    if not np.array_equal(used, np.arange(n_clusters)):
        raise RuleViolation("cells", "every centroid needs a cell", "/parameters/cells")
    mask = task.common.mask
    if mask is not None:
        check_shape(mask, centroids.shape, "/parameters/mask")
    placed = _placed(task.common, data, config)
    wanted = np.append(first, -1).astype(np.int16)[placed]
    if task.common.prototypes is not None and task.common.prototype_centroids is not None:
        of = first[task.common.prototype_centroids]
        memory = lay_base(task.common.prototypes, data, config, memory, of=of, n_cells=len(cells))
    else:
        memory = lay_base(
            centroids[cells], data, config, memory, known=None if mask is None else mask[cells]
        )
    released, memory = release(data, config, memory, wanted, len(cells))
    if released.empty:
        return None, memory
    moments = released.moments
    place = np.where(moments.counts > 0, cells, 0)
    counts = np.zeros(n_clusters, dtype=np.int64)
    costs = np.zeros(n_clusters)
    np.add.at(counts, place, moments.counts)
    spread = _costs(moments, centroids[cells], None if mask is None else mask[cells], config)
    np.add.at(costs, place, np.where(moments.counts > 0, spread, 0.0))
    by_moments = _few_values(data, released, config)
    if fewest:
        index, cells_of = index_of(data), released.labels
        small = [not index.reaches(cells_of == k, fewest) for k in range(len(by_moments))]
        by_moments = by_moments | np.array(small)
    else:
        by_moments = _rare_patterns(data, released, by_moments, config)
    withheld = released.rounded | by_moments[:, None]
    distances, silhouettes = _measure(data, released, withheld, task.common, config)
    means, m2, memory = site_profile(data, released, cells, n_clusters, config, memory)
    return (
        Evaluation(
            counts=counts,
            costs=costs,
            distances=distances,
            silhouettes=silhouettes,
            means=means,
            m2=m2,
        ),
        memory,
    )


def _placed(common: EvaluationTask, data: SiteData, config: RunConfig) -> Labels:
    """Return the centroid (n,) that each row goes with; -1 where none shares a feature with it."""
    if common.prototypes is not None and common.prototype_centroids is not None:
        shape = (len(common.prototype_centroids), data.X.shape[1])
        check_shape(common.prototypes, shape, "/parameters/prototypes")
        of = common.prototype_centroids
        if len(of) and not 0 <= of.min() <= of.max() < len(common.centroids):
            at = "/parameters/prototype_centroids"
            raise RuleViolation("prototypes", "a prototype belongs to one of the centroids", at)
        return of[nearest(data.X, common.prototypes)]
    own = config.mask
    if common.mask is None and own.all():
        return assign(data.rows, [common.centroids])[0][0]
    known = None if common.mask is None else common.mask[:, own]
    if known is not None and not known.any():
        return np.full(len(data.X), -1, dtype=np.int64)
    return nearest(data.X[:, own], common.centroids[:, own], known)


def _costs(
    moments: CellMoments,
    centroids: NDArray[np.float64],
    mask: NDArray[np.bool_] | None,
    config: RunConfig,
) -> NDArray[np.float64]:
    """Return squared distances (K,) of the cells' rows from their centroids, added up."""
    if mask is None:
        return cell_costs(moments, centroids)
    shared = mask & config.mask
    means = np.where(shared, moments.means, 0.0)
    known = CellMoments(moments.counts, means, np.where(shared, moments.m2, 0.0))
    costs = cell_costs(known, np.where(shared, centroids, 0.0))
    return np.asarray(costs * (mask.shape[1] / np.maximum(shared.sum(axis=1), 1)))


def _few_values(data: SiteData, released: Released, config: RunConfig) -> NDArray[np.bool_]:
    """Return the cells (K,) of rows in which no number has more than p values: like yes/no rows."""
    few = (released.moments.counts > 0) & (config.p > 1)
    numeric = np.flatnonzero(config.mask & ~binary_columns(config.columns))
    if not numeric.size:
        return few
    # Among the first of its rows a cell has enough, mostly.
    firsts = [np.flatnonzero(released.labels == c)[:_FIRST] for c in np.flatnonzero(few)]
    if not firsts:
        return few
    values = np.split(data.rows.take(np.concatenate(firsts)), np.cumsum([*map(len, firsts)])[:-1])
    for cell, rows in zip(np.flatnonzero(few), values, strict=True):
        few[cell] = not any(len(np.unique(rows[:, j])) > config.p for j in numeric)
    unsure = np.flatnonzero(few)
    if unsure.size:
        found = [[np.empty(0)] * len(numeric) for _ in unsure]
        each = partial(_run_values, unsure, numeric, config.p)
        for part in data.rows.map(each, released.labels):
            for own, more in zip(found, part, strict=True):
                own[:] = [np.union1d(a, b)[: config.p + 1] for a, b in zip(own, more, strict=True)]
        for cell, own in zip(unsure, found, strict=True):
            few[cell] = all(len(distinct) <= config.p for distinct in own)
    return few


def _run_values(
    cells: NDArray[np.intp],
    numeric: NDArray[np.intp],
    p: int,
    run: NDArray[np.float64],
    labels: Labels,
) -> list[list[NDArray[np.float64]]]:
    """Return up to p + 1 values of each number in each of some cells."""
    return [[np.unique(run[labels == c, j])[: p + 1] for j in numeric] for c in cells]


def _rare_patterns(
    data: SiteData, released: Released, cells: NDArray[np.bool_], config: RunConfig
) -> NDArray[np.bool_]:
    """Return those of ``cells`` (K,) in which 1 to p - 1 persons have some pattern of values."""
    rare = np.zeros_like(cells)
    if not cells.any():
        return rare
    patterns, start = data.rows.array(np.uint64), 0
    for part in data.rows.map(row_hashes):
        patterns[start : start + len(part)] = part
        start += len(part)
    sent = np.flatnonzero(cells[released.labels] & (released.labels >= 0))
    keyed = patterns[sent] + row_hashes(released.labels[sent][:, None].astype(np.float64))
    _, pattern = np.unique(keyed, return_inverse=True)
    pattern = pattern.reshape(-1)
    # Rows, where no persons are named: the same answers from two persons are no one's record.
    owners = np.arange(len(sent)) if data.persons is None else data.persons[sent]
    pairs = np.unique(np.column_stack([pattern, owners]), axis=0)
    persons = np.bincount(pairs[:, 0])
    rare[released.labels[sent][persons[pattern] < config.p]] = True
    return rare


def _measure(
    data: SiteData,
    released: Released,
    withheld: NDArray[np.bool_],
    common: EvaluationTask,
    config: RunConfig,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return sums of distances and of silhouette terms, each (K,), over the sent rows.

    Where ``withheld`` (K, d), the cell's moments stand in for the column's values: a sum of
    distances over yes/no values would give an exact prevalence back after it was rounded.
    """
    centroids, cells = common.centroids, common.cells
    n_clusters, d = centroids.shape
    moments = released.moments
    shared = np.broadcast_to(config.mask, centroids.shape)
    if common.mask is not None:
        shared = shared & common.mask
    # Times what masked_squares multiplies by.
    share = d / np.maximum(shared.sum(axis=1), 1)
    spread = np.where(withheld & shared[cells], moments.m2, 0.0).sum(axis=1)
    spread = spread * share[cells] / np.maximum(moments.counts, 1)
    measuring = partial(
        _measure_run,
        common=common,
        mask=config.mask,
        shared=shared,
        share=share,
        spread=spread,
        withheld=withheld if withheld.any() else None,
        means=moments.means,
    )
    distances, silhouettes = np.zeros(n_clusters), np.zeros(n_clusters)
    for of_run in data.rows.map(measuring, released.labels):
        distances += of_run[0]
        silhouettes += of_run[1]
    return distances, silhouettes


def _measure_run(
    run: NDArray[np.float64],
    cells_of: Labels,
    *,
    common: EvaluationTask,
    mask: NDArray[np.bool_],
    shared: NDArray[np.bool_],
    share: NDArray[np.float64],
    spread: NDArray[np.float64],
    withheld: NDArray[np.bool_] | None,
    means: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    centroids, cells = common.centroids, common.cells
    n_clusters = len(centroids)
    distances, silhouettes = np.zeros(n_clusters), np.zeros(n_clusters)
    for begin in range(0, len(run), BLOCK):
        labels = cells_of[begin : begin + BLOCK]
        sent = labels >= 0
        labels = labels[sent]
        rows = run[begin : begin + BLOCK][sent]
        if not len(rows):
            continue
        if withheld is not None:
            rows = np.where(withheld[labels], means[labels], rows)
        own = cells[labels]
        # Directly, not expanded: rows on their centroid are at distance 0 wherever that is.
        offsets = np.where(shared[own], rows - centroids[own], 0.0)
        a = np.sqrt(np.einsum("ij,ij->i", offsets, offsets) * share[own] + spread[labels])
        distances += np.bincount(own, weights=a, minlength=n_clusters)
        if n_clusters > 1 and common.prototypes is None:
            squares = masked_squares(rows, mask, centroids, common.mask)
            squares = squares + spread[labels, None]
            squares[np.arange(len(rows)), own] = np.inf
            b = np.sqrt(squares.min(axis=1))
            b = np.where(np.isfinite(b), b, a)
            widest = np.maximum(a, b)
            terms = np.divide(b - a, widest, out=np.zeros_like(a), where=widest > 0)
            silhouettes += np.bincount(own, weights=terms, minlength=n_clusters)
    return distances, silhouettes


# --- Check ----------------------------------------------------------------------------------------


def check(task: SiteTask, payload: Evaluation, config: RunConfig) -> None:
    """Check a site's evaluation at either end; RuleViolation."""
    n_clusters = len(task.common.centroids)
    check_shape(payload.counts, (n_clusters,), "/counts")
    check_sizes(payload.counts, None, task.site, config)
    for name in ("costs", "distances", "silhouettes"):
        values = getattr(payload, name)
        check_shape(values, (n_clusters,), f"/{name}")
        check_empty(payload.counts, values, f"/{name}")
    # Cauchy-Schwarz: a sum of n terms is at most the root of n times the sum of their squares.
    # Rounding is of the size of the coordinates, not of the distances.
    norms = 1.0 + np.sqrt((task.common.centroids**2).sum(axis=1))
    widest = np.sqrt(payload.counts * np.maximum(payload.costs, 0.0))
    wide = payload.distances > widest * (1.0 + _SLACK) + _SLACK * payload.counts * norms
    wrong = (payload.costs < 0) | (payload.distances < 0) | wide
    _refuse(wrong, "distances", "the distances do not fit the cost")
    wrong = np.abs(payload.silhouettes) > payload.counts * (1.0 + _SLACK)
    _refuse(wrong, "silhouettes", "the silhouette is outside -1 to 1 a row")
    check_profile(payload.counts, payload.costs, payload.means, payload.m2, config)


def _refuse(wrong: NDArray[np.bool_], name: str, message: str) -> None:
    if wrong.any():
        cell = int(np.flatnonzero(wrong)[0])
        raise RuleViolation(name, f"cell {cell}: {message}", f"/{name}/{cell}")


# --- Aggregation ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """Quality, sizes (K,) and profile of the distinct centroids, in the task's order.

    ``sizes`` are suppressed where they must be; ``site_sizes`` are each site's own.
    """

    quality: Quality | None
    sizes: tuple[int | None, ...]
    site_sizes: dict[str, tuple[int | None, ...]]
    profile: Profile | None


def aggregate(raw: Result, contributions: Sequence[Contribution], config: RunConfig) -> Outcome:
    """Add up what the sites measured; contributions sorted by site."""
    firsts, _ = merged(raw.centroids, raw.mask)
    centroids = raw.centroids[firsts]
    mask = None if raw.mask is None else raw.mask[firsts]
    n_clusters = len(centroids)
    judged = n_clusters > 1 and raw.prototypes is None
    answered = [c for c in contributions if c.payload is not None]
    parts = np.array([c.payload.counts for c in answered], dtype=np.int64)
    counts = parts.reshape(-1, n_clusters).sum(axis=0)
    costs, distances, silhouettes = np.zeros((3, n_clusters))
    for contribution in answered:
        costs = costs + contribution.payload.costs
        distances = distances + contribution.payload.distances
        silhouettes = silhouettes + contribution.payload.silhouettes
    n_rows = int(counts.sum())
    quality = None
    if n_rows:
        quality = Quality(
            inertia=float(costs.sum()),
            simplified_silhouette=float(silhouettes.sum() / n_rows) if judged else None,
            davies_bouldin=_davies_bouldin(centroids, mask, counts, distances) if judged else None,
            n_rows=n_rows,
        )
    strictest = max([config.p, *(c.p for c in answered)])
    sizes = suppress_sizes(counts, parts, strictest)
    shown = np.array([bool(size) for size in sizes], dtype=np.bool_)
    return Outcome(
        quality=quality,
        sizes=sizes,
        site_sizes={c.site: tuple(int(n) for n in c.payload.counts) for c in answered},
        profile=merge_profile(answered, shown, config),
    )


def _davies_bouldin(
    centroids: NDArray[np.float64],
    mask: NDArray[np.bool_] | None,
    counts: NDArray[np.int64],
    distances: NDArray[np.float64],
) -> float | None:
    """Return the index over the clusters that hold rows; None with fewer than two of them."""
    filled = counts > 0
    if filled.sum() < 2:
        return None
    spread = distances[filled] / counts[filled]
    known = np.ones_like(centroids, dtype=np.bool_) if mask is None else mask
    apart = np.stack(
        [
            np.sqrt(masked_squares(centroids[k][None], known[k], centroids, known))[0]
            for k in np.flatnonzero(filled)
        ]
    )[:, filled]
    # Clusters that share no feature, or that do not differ in those, are not compared.
    np.fill_diagonal(apart, np.inf)
    apart[apart == 0] = np.inf
    return float(((spread[:, None] + spread[None, :]) / apart).max(axis=1).mean())
