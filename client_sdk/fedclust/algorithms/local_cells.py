"""A site's own clustering of its own rows: the first thing that several methods ask for."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.assigning import STEP, nearest
from fedclust.algorithms.base import Memory, RunConfig, SiteData
from fedclust.algorithms.canonical import ascending, lowest, untied
from fedclust.algorithms.kmeans import SAME
from fedclust.algorithms.releasing import CANDIDATE, index_of, release
from fedclust.algorithms.rows import Rows, rows_of, whole
from fedclust.algorithms.tallies import assign, cells_of
from fedclust.privacy.counting import Labels, PersonIndex
from fedclust.privacy.moments import FeatureMoments, merge_features, total_moments

#: The local cells' partition: the guard's candidate, and its place in a site's memory.
LOCAL = "cells"
_MAX_ITERATIONS = 300
#: Of the rows' mean variance: what the centres may move, squared, in a step that ends Lloyd.
_TOLERANCE = 1e-4
#: Up to so many rows scikit-learn clusters them, all at once.
_LIBRARY = 65_536
#: Up to so many rows, seeds are looked for among distances that are computed once.
_PAIRED = 2_048
#: Rows whose distances are added up together.
_PART = 1 << 16


def local_kmeans(
    X: NDArray[np.float64] | Rows, n_clusters: int, n_init: int, rng: np.random.Generator
) -> NDArray[Any]:
    """Return the cell (n,) of each row in the site's own k-means; fewer cells where rows repeat.

    By scikit-learn where rows are few; it is the faster there. Beyond, the same in passes over the
    rows, which need not be in memory: greedy k-means++ (Arthur & Vassilvitskii 2007) and Lloyd from
    ``n_init`` starts, draw for draw, but all starts share their passes.
    """
    seed = int(rng.integers(2**31))
    rows = rows_of(X)
    if n_clusters <= 1:
        return np.asarray(rows.array(np.int64))
    if rows.shape[0] <= _LIBRARY:
        return _by_library(whole(rows), n_clusters, n_init, seed)
    total = _spread_of(rows)
    draws = np.random.RandomState(seed)
    starts = _seeded(rows, n_clusters, n_init, total.means, draws)
    tolerance = _TOLERANCE * float((total.m2 / rows.shape[0]).mean())
    return _lloyd(rows, starts, tolerance)


def _by_library(X: NDArray[np.float64], n_clusters: int, n_init: int, seed: int) -> Labels:
    # Imported here: it takes seconds, and only this step needs it.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    X = untied(X)
    # What all starts together ask for; distances of all pairs are fewer where there are many cells.
    asked = n_clusters * n_init * _trials(n_clusters)
    init = _Seeding(X) if len(X) <= min(asked, _PAIRED) else "k-means++"
    kmeans = KMeans(n_clusters, init=init, n_init=n_init, random_state=seed, algorithm="lloyd")
    with warnings.catch_warnings():
        # Fewer distinct rows than clusters: the surplus cells stay empty, which is what we want.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = kmeans.fit(X).labels_
    return np.asarray(labels, dtype=np.int64)


class _Seeding:
    """Greedy k-means++ as in scikit-learn, draw for draw, for many starts among the same rows.

    Parameters
    ----------
    X : (n, d) float64
    """

    def __init__(self, X: NDArray[np.float64]) -> None:
        #: Squared distances of all pairs, (n, n).
        centred = X - X.mean(axis=0)
        norms = np.einsum("ij,ij->i", centred, centred)
        squares = centred @ (-2.0 * centred.T)
        squares += norms[:, None]
        squares += norms
        self._squares = np.maximum(squares, 0.0, out=squares)
        np.fill_diagonal(squares, 0.0)

    def __call__(
        self, X: NDArray[np.float64], n_clusters: int, random_state: np.random.RandomState
    ) -> NDArray[np.float64]:
        """Return the seeds (K, d): rows of ``X`` (n, d), which may have been moved."""
        n, n_trials = len(X), _trials(n_clusters)
        chosen = [int(random_state.choice(n, p=np.full(n, 1.0 / n)))]
        gaps = self._squares[chosen[0]]
        potential = gaps.sum()
        for _ in range(n_clusters - 1):
            targets = random_state.uniform(size=n_trials) * potential
            drawn = np.minimum(np.cumsum(gaps).searchsorted(targets), n - 1)
            each = np.minimum(self._squares[drawn], gaps)
            potentials = each.sum(axis=1)
            best = int(potentials.argmin())
            gaps, potential = each[best], potentials[best]
            chosen.append(int(drawn[best]))
        return np.asarray(X[chosen])


def _trials(n_clusters: int) -> int:
    """Return how many rows are drawn for each seed, of which the best is taken."""
    return 2 + int(np.log(n_clusters))


def _spread_of(rows: Rows) -> FeatureMoments:
    d = rows.shape[1]
    total = FeatureMoments(np.zeros(d, dtype=np.int64), np.zeros(d), np.zeros(d))
    for part in rows.map(total_moments):
        total = merge_features(total, part)
    return total


def _seeded(
    rows: Rows,
    n_clusters: int,
    n_init: int,
    origin: NDArray[np.float64],
    draws: np.random.RandomState,
) -> list[NDArray[np.float64]]:
    """Return the seeds (K, d) of every start: of some rows drawn by distance, the best each time.

    The squared distances to the nearest seed so far are kept, of each row and trial.
    """
    n = rows.shape[0]
    n_trials = _trials(n_clusters)
    # Every start's draws, in the order in which one start after the other would make them.
    firsts, fractions = [], []
    for _ in range(n_init):
        firsts.append(min(int(draws.random_sample() * n), n - 1))
        fractions.append(draws.uniform(size=(n_clusters - 1, n_trials)))
    chosen = rows.take(np.array(firsts))
    seeds = [[row] for row in chosen]
    gaps = rows.array(np.float64, n_init)
    gaps[...] = np.inf
    trials = rows.array(np.float64, n_init, n_trials)
    potentials = _gaps(rows, chosen[:, None], gaps, origin, trials[:, :1])
    gaps[...] = trials[:, 0]
    for step in range(n_clusters - 1):
        numbers = [_drawn(gaps[i], fractions[i][step] * potentials[i].min()) for i in range(n_init)]
        candidates = rows.take(np.concatenate(numbers)).reshape(n_init, n_trials, -1)
        potentials = _gaps(rows, candidates, gaps, origin, trials)
        for i, best in enumerate(lowest(potentials)):
            seeds[i].append(candidates[i, best])
            gaps[i] = trials[i, best]
    return [np.array(each) for each in seeds]


def _gaps(
    rows: Rows,
    candidates: NDArray[np.float64],
    gaps: NDArray[np.float64],
    origin: NDArray[np.float64],
    out: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Write what ``gaps`` (s, n) become with each candidate (s, t, d) to ``out`` (s, t, n).

    Returns their sums (s, t).
    """
    start, sums = 0, np.zeros(candidates.shape[:2])
    for part in rows.map(partial(_run_gaps, candidates - origin, origin), gaps):
        end = start + part.shape[2]
        out[:, :, start:end] = part
        sums += part.sum(axis=2)
        start = end
    return sums


def _run_gaps(
    candidates: NDArray[np.float64],
    origin: NDArray[np.float64],
    run: NDArray[np.float64],
    gaps: NDArray[np.float64],
) -> NDArray[np.float64]:
    n_starts, n_trials, d = candidates.shape
    every = candidates.reshape(-1, d)
    norms = np.einsum("ij,ij->i", every, every)
    found = np.empty((len(every), len(run)))
    for at in range(0, len(run), STEP):
        centred = run[at : at + STEP] - origin
        squares = np.matmul(-2.0 * every, centred.T, out=None)
        squares += norms[:, None]
        squares += np.einsum("ij,ij->i", centred, centred)
        np.maximum(squares, 0.0, out=found[:, at : at + STEP])
    shaped = found.reshape(n_starts, n_trials, len(run))
    return np.minimum(shaped, gaps[:, None], out=shaped)


def _drawn(gaps: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the rows at which the gaps (n,), added up, reach the targets (t,)."""
    ends = np.cumsum([gaps[at : at + _PART].sum() for at in range(0, len(gaps), _PART)])
    found = []
    for target in targets:
        part = min(int(np.searchsorted(ends, target)), len(ends) - 1)
        before = ends[part - 1] if part else 0.0
        own = np.cumsum(gaps[part * _PART : (part + 1) * _PART])
        place = min(int(np.searchsorted(own, target - before)), len(own) - 1)
        found.append(part * _PART + place)
    return np.array(found, dtype=np.intp)


def _lloyd(rows: Rows, starts: Sequence[NDArray[np.float64]], tolerance: float) -> Labels:
    """Return the labels (n,) of the start that ends at the lowest inertia, the first of equals."""
    centres = dict(enumerate(starts))
    labels: dict[int, Labels] = {}
    # Of those that have ended: inertia and labels.
    ended: dict[int, tuple[float, Labels]] = {}
    last: dict[int, NDArray[np.float64]] = {}
    for step in range(_MAX_ITERATIONS + 1):
        found = assign(rows, list(centres.values()))
        for (i, points), (own, sums) in zip(list(centres.items()), found, strict=True):
            if i in last or step == _MAX_ITERATIONS:
                ended[i] = float(sums.squares.sum()), own
                continue
            moved = points + sums.offsets / np.maximum(sums.counts, 1)[:, None]
            apart = ((moved - points) ** 2).sum(axis=1)
            if i in labels and np.array_equal(own, labels[i]):
                ended[i] = float(sums.squares.sum() - (sums.counts * apart).sum()), own
                continue
            if not sums.counts.all():
                moved = _refilled(rows, own, points, moved, sums.counts)
                apart = ((moved - points) ** 2).sum(axis=1)
            if apart.sum() <= tolerance:
                # Once more, for labels that go with where the centres are.
                last[i] = moved
            centres[i], labels[i] = moved, own
        centres = {i: points for i, points in centres.items() if i not in ended}
        if not centres:
            break
    best = min(inertia for inertia, _ in ended.values())
    return next(own for _, (inertia, own) in sorted(ended.items()) if inertia <= best * (1 + SAME))


def _refilled(
    rows: Rows,
    labels: Labels,
    points: NDArray[np.float64],
    moved: NDArray[np.float64],
    counts: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the moved centres (K, d), each empty one at a row far from its own centre.

    Which that row leaves, as in scikit-learn; nothing changes where all rows are on centres.
    """
    gaps = rows.array(np.float64)
    start = 0
    for part in rows.map(partial(_run_own_gaps, points), labels):
        gaps[start : start + len(part)] = part
        start += len(part)
    if not gaps.any():
        return moved
    empty = np.flatnonzero(counts == 0)
    farthest = ascending(-gaps)[: len(empty)]
    taken = rows.take(farthest)
    sums, sizes = moved * counts[:, None], counts.copy()
    for k, number, row in zip(empty, farthest, taken, strict=True):
        left = int(labels[number])
        sums[left] -= row
        sizes[left] -= 1
        sums[k], sizes[k] = row, 1
    return np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], points)


def _run_own_gaps(
    points: NDArray[np.float64], run: NDArray[np.float64], labels: Labels
) -> NDArray[np.float64]:
    return np.asarray(((run - points[labels]) ** 2).sum(axis=1))


def settled(
    data: SiteData,
    centroids: NDArray[np.float64],
    p: int,
    labels: Labels | None = None,
) -> Labels:
    """Return the centroid (n,) of each row: the nearest, or -1 where too few persons share it.

    Rows left over by fewer than ``p`` persons together would take a whole further cell into the
    rest with them (rule 3): they go to the nearest centroid that ``p`` persons stand for. More
    stay in the rest. Placed with far centroids too, they drew these away from their own rows:
    p=5 with the guard cost up to 34 % more than central k-means, 2 % as it is (twelve runs on
    FKM's data, beta 1, noise 1).

    ``labels`` (n,): the nearest, where they are known; they are returned where nothing changes.
    """
    index = index_of(data)
    if labels is None:
        labels = assign(data.rows, [centroids])[0][0]
    used = np.flatnonzero(np.bincount(labels, minlength=len(centroids)))
    large = np.array([k for k in used if index.reaches(labels == k, p)], dtype=np.int64)
    if len(large) in (0, len(used)):
        return labels
    left = ~np.isin(labels, large)
    placed = labels.copy()
    if index.reaches(left, p):
        placed[left] = -1
    else:
        rows = data.rows.take(np.flatnonzero(left))
        placed[left] = large[nearest(rows, centroids[large])]
    return placed


def without_outliers(
    data: SiteData, p: int, n_clusters: int, n_init: int, rng: np.random.Generator, labels: Labels
) -> Labels:
    """Return a site's own k-means (n,) of all but the rows of cells that may not be sent.

    These are set aside and the others clustered again, until every cell stands for ``p`` persons.
    Set aside they take no cell of their own, and so no other cell with them (rule 3): fewer than
    ``p`` persons' go to the nearest cell, more stay in the rest, -1.

    Parameters
    ----------
    data : SiteData
        Scaled rows.
    p : int
    n_clusters, n_init : int
    rng : numpy.random.Generator
    labels : (n,) int
        The k-means of all rows.
    """
    index = index_of(data)
    kept = np.ones(index.n, dtype=np.bool_)
    while True:
        used = np.flatnonzero(np.bincount(labels[kept], minlength=1))
        small = np.array([k for k in used if not index.reaches(kept & (labels == k), p)])
        if not small.size:
            break
        kept &= ~np.isin(labels, small)
        wanted = min(n_clusters, index.count(kept) // p)
        if not wanted:
            return np.full(index.n, -1, dtype=np.int64)
        labels = np.full(index.n, -1, dtype=np.int64)
        labels[kept] = local_kmeans(data.rows.kept(kept), wanted, n_init, rng)
    if not kept.all() and not index.reaches(~kept, p):
        cells = cells_of(data.rows, labels, int(labels.max()) + 1)
        used = np.flatnonzero(cells.counts)
        rows = data.rows.take(np.flatnonzero(~kept))
        labels[~kept] = used[nearest(rows, cells.means[used])]
    return labels


def without_small(
    X: NDArray[np.float64] | Rows, labels: Labels, index: PersonIndex, p: int
) -> NDArray[Any]:
    """Return labels (n,) in which every cell stands for at least ``p`` persons, if any can.

    One by one, smallest first, a cell that may not be sent gives its rows to the nearest others.
    """
    rows = rows_of(X)
    centres = cells_of(rows, labels, int(labels.max(initial=-1)) + 1).means
    while True:
        counts = np.bincount(labels, minlength=len(centres))
        used = np.flatnonzero(counts)
        small = [k for k in used if not index.reaches(labels == k, p)]
        if not small or len(used) == 1:
            return labels
        smallest = min(small, key=lambda k: counts[k])
        others = used[used != smallest]
        moving = np.flatnonzero(labels == smallest)
        labels = labels.copy()
        labels[moving] = others[nearest(rows.take(moving), centres[others])]


def packed(labels: Labels) -> bytes:
    """Return labels (n,), at most 32,767, as a site's memory keeps them where rows may be many."""
    return zlib.compress(labels.astype("<i2").tobytes(), 1)


def unpacked(kept: bytes) -> NDArray[np.int16]:
    """Return the labels (n,) that :func:`packed` kept."""
    return np.frombuffer(zlib.decompress(kept), dtype="<i2").astype(np.int16)


def lay_base(
    centroids: NDArray[np.float64],
    data: SiteData,
    config: RunConfig,
    memory: Memory,
    candidate: str = CANDIDATE,
    known: NDArray[np.bool_] | None = None,
    of: NDArray[np.int64] | None = None,
    n_cells: int | None = None,
) -> Memory:
    """Give the guard, once, a partition to go back to: the site's own cells, each whole.

    Rows that the guard may not let change place in the first step would otherwise take their
    whole cell into the rest. Every sent cell goes to the centroid nearest its mean, so this
    partition says nothing that the cells did not say; it is remembered as if it had been sent.
    ``known`` (K, d): where the centroids are. ``of`` (K,): the cell that each of the ``centroids``
    stands for, of ``n_cells``, where they are prototypes; by default each has its own.
    """
    cells = memory.get(LOCAL)
    if cells is None:
        return memory
    if isinstance(cells, bytes):
        cells = unpacked(cells)
    memory = {name: kept for name, kept in memory.items() if name != LOCAL}
    sent = cells >= 0
    if not sent.any():
        return memory
    moments = cells_of(data.rows, cells, int(cells.max()) + 1)
    own = config.mask
    seen = None if known is None else known[:, own]
    of = np.arange(len(centroids)) if of is None else of
    placed = of[nearest(moments.means[:, own], centroids[:, own], seen)]
    whole = np.where(sent, placed[cells], -1)
    return release(data, config, memory, whole, n_cells or len(centroids), candidate)[1]
