"""Best-first branch and bound over labels, compiled by numba (docs/adr/0009).

Only :mod:`fedclust_dual.label_search` imports this module, and only when it is needed:
importing it compiles the functions, or loads them from numba's cache. They are all in this file,
because the cache does not notice changes of other files. Sums are never reordered (no fastmath), so
the same input gives the same bits.
"""

from typing import Any

import numba
import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust_dual.compilation import compiled
from fedclust_dual.search_tree import (
    CELLS,
    INTERCHANGEABLE,
    PAIRWISE,
    REFERENCE,
    NodeRegion,
    SearchPoints,
    Tree,
    Workspace,
)

Reals = FloatArray
Ints = IntArray
#: Why :func:`search` returns: no node below the cutoff is left, a leaf has the least bound of all,
#: the visits are used up, or the slots are.
EXHAUSTED, LEAF, LIMIT, FULL = 0, 1, 2, 3
#: Limit of steps of the one-dimensional search for a multiplier.
_MAX_STEPS = 60
#: Sweeps over all pairs for a leaf, whose cost is later computed exactly; other nodes get one.
_LEAF_SWEEPS = 8


_types: Any = numba.types
_f8, _i8, _void = numba.float64, numba.int64, numba.void
_vector, _matrix, _tensor = _f8[::1], _f8[:, ::1], _f8[:, :, ::1]
_ints, _int_matrix = _i8[::1], _i8[:, ::1]
_POINTS = _types.NamedTuple((_matrix, _ints, _matrix, _vector), SearchPoints)
_REGION = _types.NamedTuple(
    (_matrix, _matrix, _i8, _matrix, _tensor, _matrix, _matrix, _ints), NodeRegion
)
_TREE = _types.NamedTuple(
    (_vector, _vector, _tensor, _int_matrix, numba.int8[:, ::1], _ints, _ints, _ints, _ints), Tree
)
_WORK = _types.NamedTuple((*[_matrix] * 4, _vector, _vector, _matrix, _vector), Workspace)


# --- Lower bounds of a node -----------------------------------------------------------------------


@compiled(_f8(_i8, _vector, _vector, _vector, _vector, _vector))
def _box_cost(count: int, total: Reals, mu: Reals, lower: Reals, upper: Reals, at: Reals) -> float:
    """Return the minimum of ``count |m|^2 - (2 total - mu).m`` in a box; ``at`` gets its place."""
    value = 0.0
    for c in range(len(total)):
        linear = 2.0 * total[c] - mu[c]
        if count > 0:
            at[c] = min(max(linear / (2.0 * count), lower[c]), upper[c])
            value += (count * at[c] - linear) * at[c]
            continue
        if mu[c] > 0.0:
            at[c] = lower[c]
        elif mu[c] < 0.0:
            at[c] = upper[c]
        else:
            at[c] = 0.5 * (lower[c] + upper[c])
        value += mu[c] * at[c]
    return value


@compiled(_f8(_f8, _i8, _vector, _vector, _matrix, _vector, _matrix))
def _cell_cost(
    value: float, count: int, mu: Reals, at: Reals, normals: Reals, offsets: Reals, vertices: Reals
) -> float:
    """Return a lower bound of a cluster's cost in its cell, given the minimum in the box.

    For an empty cluster it is the minimum over the cell's vertices, if they are known. Otherwise
    the box's minimum grows by count times the squared distance to the face that binds: from the
    minimiser the cost rises by at least that in every direction that stays in the box.
    """
    if count == 0 and len(vertices) > 0:
        least = np.inf
        for row in range(len(vertices)):
            value = 0.0
            for c in range(len(mu)):
                value += mu[c] * vertices[row, c]
            least = min(least, value)
        return least
    worst = 0.0
    for other in range(len(offsets)):
        gap = offsets[other]
        for c in range(len(mu)):
            gap -= normals[other, c] * at[c]
        worst = max(worst, gap)
    return value + count * worst * worst


@compiled(_f8(_ints, _matrix, _matrix, _tensor))
def _pair_cost(counts: Ints, mu: Reals, at: Reals, normals: Reals) -> float:
    """Return a lower bound of the cost of ordering the most expensive pair of centroids.

    From the box's minimisers ``at``, moving a cluster of n persons by a distance w costs at least
    n w^2, and moving an empty one at least w times its least slope. The gap is shared between the
    two so that the cost is least. The result is negative where all pairs are in order.
    """
    n_clusters, d = at.shape
    worst = -1.0
    for k in range(n_clusters):
        for other in range(k + 1, n_clusters):
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
                            slope = min(slope, abs(mu[one, c]) / abs(normals[k, other, c]))
                if count == 0:
                    cost = slope * gap
                else:
                    distance = min(gap, slope / (2.0 * count))
                    cost = slope * (gap - distance) + count * distance * distance
            worst = max(worst, cost)
    return worst


@compiled(_f8(_i8, _vector, _f8, _vector, _vector, _vector, _vector))
def _project_forced(
    count: int, linear: Reals, force: float, normal: Reals, lower: Reals, upper: Reals, at: Reals
) -> float:
    """Minimise ``count |m|^2 - (linear + force normal).m`` in a box.

    The minimiser is stored in ``at``; return its component along the normal.
    """
    along = 0.0
    for c in range(len(normal)):
        slope = linear[c] + force * normal[c]
        if count > 0:
            at[c] = min(max(slope / (2.0 * count), lower[c]), upper[c])
        elif slope > 0.0:
            at[c] = upper[c]
        elif slope < 0.0:
            at[c] = lower[c]
        else:
            at[c] = 0.5 * (lower[c] + upper[c])
        along += normal[c] * at[c]
    return along


@compiled(_f8(_i8, _vector, _vector, _vector, _vector))
def _compliance(count: int, at: Reals, normal: Reals, lower: Reals, upper: Reals) -> float:
    """Return the movement of a centroid along the normal for each unit of force."""
    compliance = 0.0
    if count > 0:
        for c in range(len(at)):
            if lower[c] < at[c] < upper[c]:
                compliance += normal[c] * normal[c] / (2.0 * count)
    return compliance


@compiled(_f8(_i8, _i8, _f8, _f8, _ints, _REGION, _WORK))
def _order_force(
    k: int, other: int, step: float, span: float, counts: Ints, region: NodeRegion, work: Workspace
) -> float:
    """Return the change of force that brings a pair just in order, by safeguarded Newton steps.

    The separation rises with the force, piecewise linearly, with jumps for empty clusters; steps
    out of the bracket are replaced by bisection.
    """
    normal = region.normals[k, other]
    lower, upper, linear, at = region.lower[k], region.upper[k], work.linear[k], work.moved[k]
    lower2, upper2, linear2 = region.lower[other], region.upper[other], work.linear[other]
    at2, count, count2 = work.moved[other], counts[k], counts[other]
    low: float = -work.forces[k, other]
    high, change = np.inf, low
    ahead = _project_forced(count, linear, low, normal, lower, upper, at)
    ahead -= _project_forced(count2, linear2, -low, normal, lower2, upper2, at2)
    if ahead >= 0.0:
        return change
    step = max(-low, step)
    for _ in range(_MAX_STEPS):
        rise = _compliance(count, at, normal, lower, upper)
        rise += _compliance(count2, at2, normal, lower2, upper2)
        if rise > 0.0:
            change -= ahead / rise
        if not (rise > 0.0 and low < change < high):
            if high < np.inf:
                change = 0.5 * (low + high)
            else:
                change = low + step
                step *= 4.0
        ahead = _project_forced(count, linear, change, normal, lower, upper, at)
        ahead -= _project_forced(count2, linear2, -change, normal, lower2, upper2, at2)
        if ahead < 0.0:
            low = change
        else:
            high = change
        if abs(ahead) <= 1e-12 * span or high - low <= 1e-9 * high:
            break
    return change


@compiled(_void(_f8, _vector, _f8, _vector, _vector, _vector, _vector))
def _project_curved(
    curvature: float,
    linear: Reals,
    force: float,
    reference: Reals,
    lower: Reals,
    upper: Reals,
    at: Reals,
) -> None:
    """Minimise ``curvature |m|^2 - linear.m + force |m - reference|^2`` in a box.

    The minimiser is stored in ``at``. Where the sum of curvature and force is not positive, it is
    an end of every interval.
    """
    curvature += force
    for c in range(len(reference)):
        slope = linear[c] + 2.0 * force * reference[c]
        if curvature > 0.0:
            at[c] = min(max(slope / (2.0 * curvature), lower[c]), upper[c])
        elif (curvature * lower[c] - slope) * lower[c] <= (curvature * upper[c] - slope) * upper[c]:
            at[c] = lower[c]
        else:
            at[c] = upper[c]


@compiled(_f8(_vector, _vector, _vector))
def _reference_violation(own: Reals, other: Reals, reference: Reals) -> float:
    """Return the violation of equation 36 as a difference of squares; negative where it holds."""
    gap = 0.0
    for c in range(len(own)):
        gap += (own[c] - reference[c]) ** 2 - (other[c] - reference[c]) ** 2
    return gap


@compiled(_f8(_i8, _i8, _f8, _f8, _REGION, _WORK))
def _reference_force(
    k: int, other: int, step: float, span: float, region: NodeRegion, work: Workspace
) -> float:
    """Return the change of force with which a pair just satisfies equation 36, by bisection."""
    reference, curve, curve2 = region.references[k], work.curvatures[k], work.curvatures[other]
    lower, upper, linear, at = region.lower[k], region.upper[k], work.linear[k], work.moved[k]
    lower2, upper2, linear2 = region.lower[other], region.upper[other], work.linear[other]
    at2, high = work.moved[other], np.inf
    low: float = -work.forces[k, other]
    _project_curved(curve, linear, low, reference, lower, upper, at)
    _project_curved(curve2, linear2, -low, reference, lower2, upper2, at2)
    if _reference_violation(at, at2, reference) <= 1e-12 * span:
        return low
    step, change = max(-low, step), low
    for _ in range(_MAX_STEPS):
        if high < np.inf:
            change = 0.5 * (low + high)
        else:
            change = low + step
            step *= 4.0
        _project_curved(curve, linear, change, reference, lower, upper, at)
        _project_curved(curve2, linear2, -change, reference, lower2, upper2, at2)
        if _reference_violation(at, at2, reference) > 0.0:
            low = change
        else:
            high = change
        if high - low <= 1e-9 * abs(high):
            break
    return change


@compiled(_f8(_ints, _matrix, _i8, _REGION, _WORK))
def _lagrangian_bound(
    counts: Ints, mu: Reals, sweeps: int, region: NodeRegion, work: Workspace
) -> float:
    """Return a lower bound of all clusters' costs in the box under the constraints on pairs.

    It is the Lagrangian's minimum over the box, valid for any non-negative multipliers ("forces").
    Each pair in turn gets the force with which it just satisfies its constraint. With equation 36,
    which is not convex, the Lagrangian is still a sum over coordinates with a closed form.
    """
    n_clusters, d = mu.shape
    pairwise = region.form == PAIRWISE
    first_step, span = 1e-300, 0.0
    work.forces[:] = 0.0
    for k in range(n_clusters):
        work.curvatures[k] = counts[k]
        for c in range(d):
            work.linear[k, c] = 2.0 * work.totals[k, c] - mu[k, c]
            slope, width = 1e-3 * abs(work.linear[k, c]), region.upper[k, c] - region.lower[k, c]
            first_step = max(first_step, slope if pairwise else slope / (width + 1e-300))
            if pairwise:
                span = max(span, width)
            elif k == 0:
                span += width**2
    for _ in range(sweeps):
        changed = False
        for k in range(n_clusters):
            for other in range(k + 1 if pairwise else 0, n_clusters):
                if k == other:
                    continue
                if pairwise:
                    change = _order_force(k, other, first_step, span, counts, region, work)
                else:
                    change = _reference_force(k, other, first_step, span, region, work)
                if change == 0.0:
                    continue
                changed = True
                work.forces[k, other] += change
                for c in range(d):
                    slope = region.normals[k, other, c]
                    if not pairwise:
                        slope = 2.0 * region.references[k, c]
                    work.linear[k, c] += change * slope
                    work.linear[other, c] -= change * slope
                if not pairwise:
                    work.curvatures[k] += change
                    work.curvatures[other] -= change
        if not changed:
            break
    value = 0.0
    for k in range(n_clusters):
        lower, upper, normal = region.lower[k], region.upper[k], region.normals[k, k]
        curve, reference = work.curvatures[k], region.references[k]
        if pairwise:
            _project_forced(counts[k], work.linear[k], 0.0, normal, lower, upper, work.moved[k])
        else:
            _project_curved(curve, work.linear[k], 0.0, reference, lower, upper, work.moved[k])
        for c in range(d):
            value += (curve * work.moved[k, c] - work.linear[k, c]) * work.moved[k, c]
    return value


@compiled(_f8(_f8, _f8, _f8, _i8, _ints, _matrix, _REGION, _WORK))
def _coupled_bound(
    bound: float,
    fixed: float,
    cutoff: float,
    sweeps: int,
    counts: Ints,
    mu: Reals,
    region: NodeRegion,
    work: Workspace,
) -> float:
    """Return ``bound``, raised by what the constraints between centroids cost.

    ``fixed`` is the part of the bound that does not depend on the centroids.
    """
    pair_cost = _pair_cost(counts, mu, work.at, region.normals)
    bound += max(pair_cost, 0.0)
    violated = pair_cost >= 0.0
    if region.form == REFERENCE:
        for k in range(len(mu)):
            for other in range(len(mu)):
                reference = region.references[k]
                violated |= _reference_violation(work.at[k], work.at[other], reference) > 0.0
    if not violated or bound >= cutoff:
        return bound
    joint: float = _lagrangian_bound(counts, mu, sweeps, region, work)
    return max(bound, fixed + joint)


# --- The search -----------------------------------------------------------------------------------


@compiled(_void(_vector, _ints, _i8))
def _sift_down(bounds: Reals, heap: Ints, size: int) -> None:
    """Replace the root of the heap by its last entry, at ``size``."""
    last, place = heap[size], 0
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


@compiled(_void(_vector, _ints, _i8, _i8))
def _sift_up(bounds: Reals, heap: Ints, place: int, node: int) -> None:
    """Add a node to the heap, at ``place`` or above."""
    while place > 0:
        parent = (place - 1) // 2
        if bounds[heap[parent]] <= bounds[node]:
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = node


# Longer than other functions: passing all arrays to another one costs as much as expanding a node.
@compiled(_types.UniTuple(_i8, 2)(_POINTS, _f8, _i8, _REGION, _TREE, _WORK))
def search(
    points: SearchPoints, cutoff: float, limit: int, region: NodeRegion, tree: Tree, work: Workspace
) -> tuple[int, int]:
    """Visit open nodes, least bound first, until one of them is a leaf; return status and visits.

    See :meth:`fedclust_dual.label_search.LabelSearch.run` for the parameters. The status is
    ``EXHAUSTED``, ``LEAF`` (its slot is ``tree.heap[tree.sizes[0]]``), ``LIMIT`` or ``FULL``.
    """
    rows, weights, mu, remainders = points
    bounds, squares, sums, counts, labels, depths, heap, free, sizes = tree
    lower, upper, form, _, normals, offsets, vertices, starts = region
    at, totals = work.at, work.totals
    (n, d), n_clusters, visits = rows.shape, len(mu), 0
    while sizes[0] > 0:
        node = heap[0]
        if bounds[node] >= cutoff:
            sizes[0] = 0
            break
        if visits >= limit:
            return LIMIT, visits
        if sizes[1] - sizes[2] + n_clusters > len(bounds):
            return FULL, visits
        visits += 1
        sizes[0] -= 1
        _sift_down(bounds, heap, sizes[0])
        depth = depths[node]
        if depth == n:
            # The caller reads the leaf from its slot, although that is free, before it continues.
            heap[sizes[0]] = free[sizes[2]] = node
            sizes[2] += 1
            return LEAF, visits
        row, weight, square = rows[depth], weights[depth], squares[node]
        for c in range(d):
            square += weight * row[c] * row[c]
        fixed = whole = square + remainders[depth + 1]
        for k in range(n_clusters):
            cost = _box_cost(counts[node, k], sums[node, k], mu[k], lower[k], upper[k], at[k])
            if form == CELLS:
                own = vertices[starts[k] : starts[k + 1]]
                cost = _cell_cost(cost, counts[node, k], mu[k], at[k], normals[k], offsets[k], own)
            work.costs[k] = cost
            whole += cost
            for c in range(d):
                totals[k, c] = sums[node, k, c]
        for k in range(n_clusters):
            counts[node, k] += weight
            for c in range(d):
                totals[k, c] = sums[node, k, c] + weight * row[c]
                work.kept[c] = at[k, c]
            cost = _box_cost(counts[node, k], totals[k], mu[k], lower[k], upper[k], at[k])
            if form == CELLS:
                own = vertices[starts[k] : starts[k + 1]]
                cost = _cell_cost(cost, counts[node, k], mu[k], at[k], normals[k], offsets[k], own)
            bound = whole - work.costs[k] + cost
            if form >= PAIRWISE and bound < cutoff:
                sweeps = _LEAF_SWEEPS if depth + 1 == n else 1
                bound = _coupled_bound(bound, fixed, cutoff, sweeps, counts[node], mu, region, work)
            bound = max(bound, bounds[node])
            if bound < cutoff:
                if sizes[2] > 0:
                    sizes[2] -= 1
                    new = free[sizes[2]]
                else:
                    new = sizes[1]
                    sizes[1] += 1
                bounds[new], squares[new], depths[new] = bound, square, depth + 1
                for j in range(depth):
                    labels[new, j] = labels[node, j]
                labels[new, depth] = k
                for other in range(n_clusters):
                    counts[new, other] = counts[node, other]
                    for c in range(d):
                        sums[new, other, c] = totals[other, c]
                _sift_up(bounds, heap, sizes[0], new)
                sizes[0] += 1
            counts[node, k] -= weight
            for c in range(d):
                totals[k, c] = sums[node, k, c]
                at[k, c] = work.kept[c]
            if form == INTERCHANGEABLE and counts[node, k] == 0:
                # Empty clusters are equivalent: the point opens only the first of them.
                break
        free[sizes[2]] = node
        sizes[2] += 1
    return EXHAUSTED, visits
