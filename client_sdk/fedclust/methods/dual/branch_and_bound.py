"""The hot loop of `dual`'s branch and bound, compiled by numba (docs/adr/0009).

Imported lazily, by :mod:`fedclust.methods.dual.node_problem` only: importing it compiles, or loads
what was compiled before from numba's cache. A tree's nodes are slots of the arrays of
:class:`Tree`; its heap holds their numbers, least bound first, the slot first taken first among
equals. Nothing is summed in another order than written (no fastmath), so the same input gives the
same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.dual.extra import MissingExtra

try:
    import numba
except ImportError:
    raise MissingExtra("the branch and bound of dual") from None

__all__ = [
    "EXHAUSTED",
    "FULL",
    "LEAF",
    "LIMIT",
    "PAIRWISE",
    "Shape",
    "Tree",
    "grown",
    "planted",
    "search",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: Why :func:`search` came back: no node below the cutoff is left, a leaf has the least bound of
#: all, the visits are used up, or the slots are.
EXHAUSTED, LEAF, LIMIT, FULL = 0, 1, 2, 3
#: What ties centroids together beside the box: nothing, each to its cell, pairs to an order, or
#: pairs to equation 36.
FREE, CELLS, PAIRWISE, REFERENCE = 0, 1, 2, 3
#: Steps towards the force that brings two centroids in order: enough to halve a bracket to nothing.
_HALVINGS = 60
#: Rounds over all pairs for a leaf; what remains is solved exactly where it matters.
_SWEEPS = 8


class Shape(NamedTuple):
    """The region as the loop reads it, about the middle of the box.

    Attributes
    ----------
    lower, upper : (K, d) float64
        Of each cluster's box.
    form : int
        ``FREE``, ``CELLS``, ``PAIRWISE`` or ``REFERENCE``.
    references : (K, d) float64
    normals : (K, K, d) float64
        Unit vectors from r_l to r_k; 0 where they are equal.
    offsets : (K, K) float64
        The cell of k is ``normals[k, l] @ m >= offsets[k, l]``.
    corners : (v, d) float64
        Vertices of the cells in the box, cell by cell; none where they are too many.
    starts : (K + 1,) int64
        Where each cell's begin.
    """

    lower: FloatArray
    upper: FloatArray
    form: int
    references: FloatArray
    normals: FloatArray
    offsets: FloatArray
    corners: FloatArray
    starts: IntArray


class Tree(NamedTuple):
    """Open nodes of a search: slots of arrays, and the heap of them.

    Attributes
    ----------
    bounds : (c,) float64
    squares : (c,) float64
        Of the rows labelled so far, weighted.
    sums : (c, K, d) float64
        Weighted.
    counts : (c, K) int64
        Weights, added up.
    labels : (c, n) int8
    depths, heap, free : (c,) int64
    sizes : (3,) int64
        Nodes in the heap, slots ever taken, slots free among those.
    """

    bounds: FloatArray
    squares: FloatArray
    sums: FloatArray
    counts: IntArray
    labels: NDArray[np.int8]
    depths: IntArray
    heap: IntArray
    free: IntArray
    sizes: IntArray


def planted(n: int, clusters: int, d: int, capacity: int) -> Tree:
    """Return a tree that holds its root: no row labelled."""
    tree = Tree(
        np.empty(capacity),
        np.empty(capacity),
        np.empty((capacity, clusters, d)),
        np.empty((capacity, clusters), dtype=np.int64),
        np.empty((capacity, n), dtype=np.int8),
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int64),
        np.array([1, 1, 0]),
    )
    tree.bounds[0], tree.squares[0], tree.depths[0], tree.heap[0] = -np.inf, 0.0, 0, 0
    tree.sums[0], tree.counts[0], tree.labels[0] = 0.0, 0, 0
    return tree


def grown(tree: Tree) -> Tree:
    """Return the tree with twice its slots."""
    arrays = [np.concatenate([array, np.empty_like(array)]) for array in tree[:-1]]
    return tree._replace(**dict(zip(Tree._fields, arrays, strict=False)))


def _compiled(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile for one signature; kept on disk where numba finds a place that can be written."""

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(signature, cache=True)(function)
        except (RuntimeError, OSError):
            # A read-only install without a home: compiled again by every process.
            return numba.njit(signature)(function)

    return decorate


@_compiled(
    "f8(i8, f8[::1], f8[::1], i8, f8[::1], f8[::1], i8, f8[:,:,::1], f8[:,::1], f8[:,::1],"
    " i8[::1], f8[::1])"
)
def _cluster_cost(  # type: ignore[no-untyped-def]
    count, total, pull, k, lower, upper, form, normals, offsets, corners, starts, at
):
    """Return a lower bound of ``count |m|^2 - (2 total - pull).m`` over the cluster's region.

    Exact but for a cell whose face binds: then the minimum over the box plus what the way to the
    face costs (from the box's minimiser, the cost rises at least by count times the square of the
    way, into any direction that stays in the box). The box's minimiser is left in ``at``.
    """
    d = len(total)
    value = 0.0
    if count == 0:
        if form == 1 and starts[k + 1] > starts[k]:
            least = np.inf
            for row in range(starts[k], starts[k + 1]):
                value = 0.0
                for c in range(d):
                    value += pull[c] * corners[row, c]
                least = min(least, value)
            return least
        for c in range(d):
            if pull[c] > 0.0:
                at[c] = lower[c]
            elif pull[c] < 0.0:
                at[c] = upper[c]
            else:
                at[c] = 0.5 * (lower[c] + upper[c])
            value += pull[c] * at[c]
        return value
    for c in range(d):
        linear = 2.0 * total[c] - pull[c]
        point = min(max(linear / (2.0 * count), lower[c]), upper[c])
        at[c] = point
        value += (count * point - linear) * point
    if form == 1:
        worst = 0.0
        for other in range(normals.shape[0]):
            beyond = offsets[k, other]
            for c in range(d):
                beyond -= normals[k, other, c] * at[c]
            worst = max(worst, beyond)
        value += count * worst * worst
    return value


@_compiled("f8(i8[::1], f8[:,::1], f8[:,::1], f8[:,:,::1])")
def _pair_cost(counts, pulls, at, normals):  # type: ignore[no-untyped-def]
    """Return what the pair of centroids costs at least that is most expensive to put in order.

    From the box's minimisers ``at``, moving a cluster of n rows by a way w costs at least n w^2,
    one without rows at least its least pull by w: the gap is shared so that both cost least. Less
    than 0 where all pairs are in order.
    """
    clusters, d = at.shape
    worst = -1.0
    for k in range(clusters):
        for other in range(k + 1, clusters):
            gap = 0.0
            for c in range(d):
                gap -= (at[k, c] - at[other, c]) * normals[k, other, c]
            if gap <= 0.0:
                continue
            if counts[k] > 0 and counts[other] > 0:
                cost = gap * gap / (1.0 / counts[k] + 1.0 / counts[other])
            else:
                slope = np.inf
                count = 0
                for one in (k, other):
                    if counts[one] > 0:
                        count = counts[one]
                        continue
                    for c in range(d):
                        if normals[k, other, c] != 0.0:
                            slope = min(slope, abs(pulls[one, c]) / abs(normals[k, other, c]))
                if count == 0:
                    cost = slope * gap
                else:
                    way = min(gap, slope / (2.0 * count))
                    cost = slope * (gap - way) + count * way * way
            worst = max(worst, cost)
    return worst


@_compiled("f8(i8, f8[::1], f8, f8[::1], f8[::1], f8[::1], f8[::1])")
def _pushed(count, linear, push, normal, lower, upper, at):  # type: ignore[no-untyped-def]
    """Leave in ``at`` the box's minimiser of ``count |m|^2 - (linear + push normal).m``.

    Returns its way along the normal.
    """
    along = 0.0
    for c in range(len(linear)):
        force = linear[c] + push * normal[c]
        if count > 0:
            at[c] = min(max(force / (2.0 * count), lower[c]), upper[c])
        elif force > 0.0:
            at[c] = upper[c]
        elif force < 0.0:
            at[c] = lower[c]
        else:
            at[c] = 0.5 * (lower[c] + upper[c])
        along += normal[c] * at[c]
    return along


@_compiled("f8(i8, f8[::1], f8[::1], f8[::1], f8[::1])")
def _give(count, at, normal, lower, upper):  # type: ignore[no-untyped-def]
    """Return by how much a centroid gives way along the normal for each unit of force."""
    give = 0.0
    if count > 0:
        for c in range(len(at)):
            if lower[c] < at[c] < upper[c]:
                give += normal[c] * normal[c] / (2.0 * count)
    return give


@_compiled(
    "f8(i8[::1], f8[:,::1], f8[:,::1], f8[:,:,::1], f8[:,::1], f8[:,::1], i8,"
    " f8[:,::1], f8[:,::1], f8[:,::1])"
)
def _ordered_cost(  # type: ignore[no-untyped-def]
    counts, totals, pulls, normals, lower, upper, sweeps, at, linear, forces
):
    """Return a lower bound of all clusters' costs over the box and the pairs' order.

    The Lagrangian's minimum over the box is one for any forces that are not negative; one pair
    after another gets the force that makes it greatest, which is where the two just stand in order.
    """
    clusters, d = at.shape
    for k in range(clusters):
        for c in range(d):
            linear[k, c] = 2.0 * totals[k, c] - pulls[k, c]
        for other in range(clusters):
            forces[k, other] = 0.0
    widest, span = 1e-300, 0.0
    for k in range(clusters):
        for c in range(d):
            span = max(span, upper[k, c] - lower[k, c])
            widest = max(widest, 1e-3 * abs(linear[k, c]))
    for _ in range(sweeps):
        changed = False
        for k in range(clusters):
            for other in range(k + 1, clusters):
                old = forces[k, other]
                normal = normals[k, other]
                low = -old
                # The way between the two along their line rises with the force.
                ahead = _pushed(counts[k], linear[k], low, normal, lower[k], upper[k], at[k])
                ahead -= _pushed(
                    counts[other], linear[other], -low, normal, lower[other], upper[other],
                    at[other],
                )  # fmt: skip
                change = low
                if ahead < 0.0:
                    # Newton on a rising line with bends; jumps (of clusters without rows) and
                    # steps out of what is known are halved instead.
                    step = max(old, widest)
                    high = np.inf
                    for _ in range(_HALVINGS):
                        rise = _give(counts[k], at[k], normal, lower[k], upper[k])
                        rise += _give(counts[other], at[other], normal, lower[other], upper[other])
                        if rise > 0.0:
                            change -= ahead / rise
                        if not (rise > 0.0 and low < change < high):
                            if high < np.inf:
                                change = 0.5 * (low + high)
                            else:
                                change = low + step
                                step *= 4.0
                        ahead = _pushed(
                            counts[k], linear[k], change, normal, lower[k], upper[k], at[k]
                        )
                        ahead -= _pushed(
                            counts[other], linear[other], -change, normal, lower[other],
                            upper[other], at[other],
                        )  # fmt: skip
                        if ahead < 0.0:
                            low = change
                        else:
                            high = change
                        if abs(ahead) <= 1e-12 * span or high - low <= 1e-9 * high:
                            break
                if change != 0.0:
                    changed = True
                    forces[k, other] = old + change
                    for c in range(d):
                        linear[k, c] += change * normal[c]
                        linear[other, c] -= change * normal[c]
        if not changed:
            break
    value = 0.0
    for k in range(clusters):
        _pushed(counts[k], linear[k], 0.0, normals[k, k], lower[k], upper[k], at[k])
        for c in range(d):
            value += (counts[k] * at[k, c] - linear[k, c]) * at[k, c]
    return value


@_compiled("void(f8, f8[::1], f8, f8[::1], f8[::1], f8[::1], f8[::1])")
def _bent(square, linear, push, reference, lower, upper, at):  # type: ignore[no-untyped-def]
    """Leave in ``at`` the box's minimiser of ``square |m|^2 - linear.m + push |m - reference|^2``.

    Where the squares' sum is not positive, the cost is concave: an end of every interval.
    """
    square += push
    for c in range(len(linear)):
        force = linear[c] + 2.0 * push * reference[c]
        if square > 0.0:
            at[c] = min(max(force / (2.0 * square), lower[c]), upper[c])
        elif (square * lower[c] - force) * lower[c] <= (square * upper[c] - force) * upper[c]:
            at[c] = lower[c]
        else:
            at[c] = upper[c]


@_compiled("f8(f8[::1], f8[::1], f8[::1])")
def _behind(own, its, reference):  # type: ignore[no-untyped-def]
    """Return by how much equation 36 is missed, as a squared distance; below 0 where it holds."""
    gap = 0.0
    for c in range(len(own)):
        gap += (own[c] - reference[c]) ** 2 - (its[c] - reference[c]) ** 2
    return gap


@_compiled(
    "f8(i8[::1], f8[:,::1], f8[:,::1], f8[:,::1], f8[:,::1], f8[:,::1], i8,"
    " f8[:,::1], f8[:,::1], f8[:,::1], f8[::1])"
)
def _reference_cost(  # type: ignore[no-untyped-def]
    counts, totals, pulls, references, lower, upper, sweeps, at, linear, forces, squares
):
    """Return a lower bound of all clusters' costs over the box and equation 36.

    As in ``_ordered_cost``; the Lagrangian stays a sum over coordinates though equation 36 is not
    convex, so that its minimum over the box is closed form too.
    """
    clusters, d = at.shape
    span, first = 0.0, 1e-300
    for c in range(d):
        span += (upper[0, c] - lower[0, c]) ** 2
    for k in range(clusters):
        squares[k] = counts[k]
        for c in range(d):
            linear[k, c] = 2.0 * totals[k, c] - pulls[k, c]
            wide = upper[k, c] - lower[k, c]
            first = max(first, 1e-3 * abs(linear[k, c]) / (wide + 1e-300))
        for other in range(clusters):
            forces[k, other] = 0.0
    for _ in range(sweeps):
        changed = False
        for k in range(clusters):
            for other in range(clusters):
                if k == other:
                    continue
                own = references[k]
                low = -forces[k, other]
                _bent(squares[k], linear[k], low, own, lower[k], upper[k], at[k])
                _bent(
                    squares[other], linear[other], -low, own, lower[other], upper[other], at[other]
                )
                change = low
                if _behind(at[k], at[other], own) > 1e-12 * span:
                    step, high = max(-low, first), np.inf
                    for _ in range(_HALVINGS):
                        if high < np.inf:
                            change = 0.5 * (low + high)
                        else:
                            change = low + step
                            step *= 4.0
                        _bent(squares[k], linear[k], change, own, lower[k], upper[k], at[k])
                        _bent(
                            squares[other], linear[other], -change, own, lower[other],
                            upper[other], at[other],
                        )  # fmt: skip
                        if _behind(at[k], at[other], own) > 0.0:
                            low = change
                        else:
                            high = change
                        if high - low <= 1e-9 * abs(high):
                            break
                if change != 0.0:
                    changed = True
                    forces[k, other] += change
                    squares[k] += change
                    squares[other] -= change
                    for c in range(d):
                        linear[k, c] += 2.0 * change * own[c]
                        linear[other, c] -= 2.0 * change * own[c]
        if not changed:
            break
    value = 0.0
    for k in range(clusters):
        _bent(squares[k], linear[k], 0.0, references[k], lower[k], upper[k], at[k])
        for c in range(d):
            value += (squares[k] * at[k, c] - linear[k, c]) * at[k, c]
    return value


@_compiled(
    "UniTuple(i8, 2)(f8[:,::1], i8[::1], f8[:,::1], f8[::1], b1, f8, i8,"
    " f8[:,::1], f8[:,::1], i8, f8[:,::1], f8[:,:,::1], f8[:,::1], f8[:,::1], i8[::1],"
    " f8[::1], f8[::1], f8[:,:,::1], i8[:,::1], i1[:,::1], i8[::1], i8[::1], i8[::1], i8[::1])"
)
def _search(  # type: ignore[no-untyped-def]
    rows, weights, pulls, tails, alike, cutoff, limit,
    lower, upper, form, references, normals, offsets, corners, starts,
    bounds, squares, sums, counts, labels, depths, heap, free, sizes,
):  # fmt: skip
    n, d = rows.shape
    clusters = pulls.shape[0]
    at = np.empty((clusters, d))
    kept = np.empty(d)
    total = np.empty(d)
    costs = np.empty(clusters)
    scratch = np.empty((clusters, d))
    linear = np.empty((clusters, d))
    totals = np.empty((clusters, d))
    curves = np.empty(clusters)
    forces = np.empty((clusters, clusters))
    size, taken, unused = sizes[0], sizes[1], sizes[2]
    visits = 0
    status = EXHAUSTED
    while size > 0:
        node = heap[0]
        if bounds[node] >= cutoff:
            size = 0
            break
        if visits >= limit:
            status = LIMIT
            break
        if taken - unused + clusters > len(bounds):
            status = FULL
            break
        size -= 1
        last = heap[size]
        place = 0
        while True:
            child = 2 * place + 1
            if child >= size:
                break
            if child + 1 < size and bounds[heap[child + 1]] < bounds[heap[child]]:
                child += 1
            if bounds[heap[child]] >= bounds[last]:
                break
            heap[place] = heap[child]
            place = child
        heap[place] = last
        visits += 1
        depth = depths[node]
        if depth == n:
            # Left in its slot, which is free again: the caller reads it before it comes back.
            heap[size] = node
            free[unused] = node
            unused += 1
            status = LEAF
            break
        row, weight = rows[depth], weights[depth]
        square = squares[node]
        for c in range(d):
            square += weight * row[c] * row[c]
        whole = square + tails[depth + 1]
        for k in range(clusters):
            costs[k] = _cluster_cost(
                counts[node, k], sums[node, k], pulls[k], k, lower[k], upper[k], form, normals,
                offsets, corners, starts, at[k],
            )  # fmt: skip
            whole += costs[k]
        for k in range(clusters):
            for c in range(d):
                total[c] = sums[node, k, c] + weight * row[c]
                kept[c] = at[k, c]
            counts[node, k] += weight
            bound = whole - costs[k] + _cluster_cost(
                counts[node, k], total, pulls[k], k, lower[k], upper[k], form, normals, offsets,
                corners, starts, at[k],
            )  # fmt: skip
            if form >= 2 and bound < cutoff:
                order = _pair_cost(counts[node], pulls, at, normals)
                bound += max(order, 0.0)
                missed = order >= 0.0
                if form == 3:
                    for own in range(clusters):
                        for other in range(clusters):
                            missed |= _behind(at[own], at[other], references[own]) > 0.0
                if missed and bound < cutoff:
                    for other in range(clusters):
                        for c in range(d):
                            totals[other, c] = sums[node, other, c]
                    for c in range(d):
                        totals[k, c] = total[c]
                    sweeps = _SWEEPS if depth + 1 == n else 1
                    if form == 2:
                        together = _ordered_cost(
                            counts[node], totals, pulls, normals, lower, upper, sweeps, scratch,
                            linear, forces,
                        )  # fmt: skip
                    else:
                        together = _reference_cost(
                            counts[node], totals, pulls, references, lower, upper, sweeps, scratch,
                            linear, forces, curves,
                        )  # fmt: skip
                    bound = max(bound, square + tails[depth + 1] + together)
            for c in range(d):
                at[k, c] = kept[c]
            counts[node, k] -= weight
            bound = max(bound, bounds[node])
            if bound < cutoff:
                if unused > 0:
                    unused -= 1
                    new = free[unused]
                else:
                    new = taken
                    taken += 1
                bounds[new] = bound
                squares[new] = square
                depths[new] = depth + 1
                for j in range(depth):
                    labels[new, j] = labels[node, j]
                labels[new, depth] = k
                for other in range(clusters):
                    counts[new, other] = counts[node, other]
                    for c in range(d):
                        sums[new, other, c] = sums[node, other, c]
                counts[new, k] += weight
                for c in range(d):
                    sums[new, k, c] = total[c]
                place = size
                size += 1
                while place > 0:
                    parent = (place - 1) // 2
                    if bounds[heap[parent]] <= bound:
                        break
                    heap[place] = heap[parent]
                    place = parent
                heap[place] = new
            if alike and counts[node, k] == 0:
                # Clusters that differ in nothing: a row opens only the first of those still empty.
                break
        free[unused] = node
        unused += 1
    sizes[0], sizes[1], sizes[2] = size, taken, unused
    return status, visits


def search(
    rows: FloatArray,
    weights: IntArray,
    pulls: FloatArray,
    tails: FloatArray,
    alike: bool,
    cutoff: float,
    limit: int,
    shape: Shape,
    tree: Tree,
) -> tuple[int, int]:
    """Visit open nodes, least bound first, until a leaf has it; the tree is changed in place.

    Parameters
    ----------
    rows : (n, d) float64
        No two equal, in the order in which they are labelled, about the middle of the box.
    weights : (n,) int64
    pulls : (K, d) float64
        mu.
    tails : (n + 1,) float64
        Of every depth, what the rows not labelled yet cost at least, without mu.
    alike : bool
        Whether clusters may be renamed at will: only one naming is then searched.
    cutoff : float
        Nodes whose bound reaches it are dropped.
    limit : int
        Nodes that may be visited.
    shape : Shape
    tree : Tree

    Returns
    -------
    status : int
        ``EXHAUSTED``, ``LEAF`` (its slot is ``tree.heap[tree.sizes[0]]``), ``LIMIT`` or ``FULL``.
    visits : int
        Nodes visited.
    """
    status, visits = _search(rows, weights, pulls, tails, alike, cutoff, limit, *shape, *tree)
    return int(status), int(visits)
