"""The node problem of `dual` (equation 14): labels and centroids of one site, with a proven bound.

What it says and cites
    Minimise ``sum_j n_j |y_j - m_w(j)|^2 + sum_k mu_k.m_k`` over labels w and centroids m in a
    region (Yfantis et al., "Federated K-means clustering via dual decomposition-based distributed
    optimization", equation 14, where every weight n_j is 1). Best-first branch and bound over the
    labels of one row after another. Brusco, "A repetitive branch-and-bound procedure for minimum
    within-cluster sums of squares partitioning", Psychometrika 2006: the rows not labelled yet cost
    at least what they cost alone, found by the same search over the last row, the last two and so
    on.

Equal rows are one row with their weights added: for any centroids they go to the same one.

A bound is the cost of the labelled rows with all of mu, plus that of the others alone, without mu.
Both hold for any centroids, so their sum does. Splitting mu between the two was tried: nodes became
more (tenfold with half of it) since clusters that the others leave empty then pay theirs in a
corner of the box. Without it, what the others cost alone is also the same for every mu: it is
found once and kept for the next rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.dual.feasible_set import Region
from fedclust.numeric.canonical import (
    coordinate_tolerance,
    round_to_tolerance,
    tolerant_argmax,
    tolerant_argmin,
    tolerant_lexsort,
)

if TYPE_CHECKING:
    from fedclust.methods.dual.branch_and_bound import Shape

__all__ = ["NODE_LIMIT", "NodeSolution", "solve_node"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: Nodes that one problem may visit by default: about a second; open ones take some 200 MB at most.
NODE_LIMIT = 200_000
#: Bounds this near, relative to the terms of the cost, are not told apart: what a search drops, and
#: what is subtracted from each proven bound for rounding.
_SLACK = 1e-9
#: Of that slack, what two processors may differ by.
_ROUNDING = 0.01
#: Vertices of a cell are looked for among so many choices of faces; beyond, the box must do.
_CHOICES = 6_000
#: Nodes that labels count for whose centroids had to be sought by splitting boxes.
_SPLIT = 100
#: Sets of rows whose costs alone are kept: one a site in `simulate`, and a few.
_KEPT = 64
#: Nodes visited before a local search is worth its time: most problems are solved by then.
_CHEAP = 2_000
_ITERATIONS = 100
#: Labels are kept in a byte.
_MOST_CLUSTERS = 127


@dataclass(frozen=True)
class NodeSolution:
    """What a node problem's solver found.

    Attributes
    ----------
    labels : (n,) int64
    centroids : (K, d) float64
        In the region; the best for these labels.
    value : float
        The cost of both.
    bound : float
        Proven: nothing costs less, solver tolerances already subtracted. At most ``value``.
    n_nodes : int
        Nodes visited, those for the rows' costs alone included.
    complete : bool
        Whether the bound meets the value within tolerance.
    """

    labels: IntArray
    centroids: FloatArray
    value: float
    bound: float
    n_nodes: int
    complete: bool


def solve_node(
    rows: FloatArray,
    mu: FloatArray,
    region: Region,
    *,
    weights: IntArray | None = None,
    solver: Literal["branch_and_bound", "scip"] = "branch_and_bound",
    node_limit: int = NODE_LIMIT,
    start: IntArray | None = None,
) -> NodeSolution:
    """Solve equation 14 for one site.

    The same input gives the same bits on one machine, and rows in another order the same value.

    Parameters
    ----------
    rows : (n, d) float64
        In the region's box; n may be 0.
    mu : (K, d) float64
        The multipliers of the site's centroids.
    region : Region
    weights : (n,) int64, optional
        At least 1 each; by default 1.
    solver : {"branch_and_bound", "scip"}
    node_limit : int
        At least 1. Where it is hit, the bound is what was proven until then.
    start : (n,) int64, optional
        Labels to start from, the last round's for example.

    Raises
    ------
    ValueError
        If shapes do not agree, or a row lies outside of the box.
    MissingExtra
        If numba, or pyscipopt for "scip", is not installed.
    """
    if mu.shape != region.references.shape or rows.shape[1:] != region.lower.shape:
        raise ValueError("rows, mu and the region must agree in columns and clusters")
    if len(mu) > _MOST_CLUSTERS:
        raise ValueError(f"at most {_MOST_CLUSTERS} clusters can be told apart")
    outside = np.maximum(region.lower - rows, rows - region.upper)
    if outside.max(initial=0.0) > region.tolerance:
        raise ValueError("rows must lie in the region's box")
    if node_limit < 1:
        raise ValueError("a node limit is at least 1")
    if weights is None:
        weights = np.ones(len(rows), dtype=np.int64)
    problem = _Problem(rows, weights, np.array(mu, dtype=np.float64), region)
    if len(rows) == 0:
        found = NodeSolution(*problem.settled(np.zeros(0, dtype=np.int64)), 0, True)
    elif solver == "scip":
        from fedclust.methods.dual.scip_solver import scip_solution

        first = problem.improved(start)
        labels, bound, visited, complete = scip_solution(
            problem.rows, problem.weights, problem.mu, region, first[0], node_limit
        )
        labels, centroids, value, _ = problem.better(first, problem.settled(labels))
        found = NodeSolution(labels, centroids, value, bound, visited, complete)
    else:
        found = _branch_and_bound(problem, start, node_limit)
    labels = np.empty(len(problem.rows), dtype=np.int64)
    labels[problem.order] = found.labels
    # Rounding may leave a proven bound above the value by its last bits.
    bound = min(found.bound - problem.slack, found.value)
    return replace(found, labels=labels[problem.places], bound=bound)


#: Labels, centroids, their cost and a lower bound of what the labels cost.
_Settled = tuple[IntArray, FloatArray, float, float]


class _Problem:
    """Distinct rows in an order that does not depend on the given one, and what labels cost.

    ``places`` (n,) is each given row's place among the distinct ones as they were sorted, and
    ``order`` the places in the order in which they are labelled.
    """

    def __init__(self, rows: FloatArray, weights: IntArray, mu: FloatArray, region: Region) -> None:
        distinct, places = np.unique(rows, axis=0, return_inverse=True)
        self.places = places.reshape(-1)
        together = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(together, self.places, weights)
        self.order = _spread_out(distinct)
        self.rows, self.weights = distinct[self.order], together[self.order]
        self.mu, self.region = mu, region
        self.middle = 0.5 * (region.lower + region.upper)
        if len(rows):
            mean = np.average(self.rows, axis=0, weights=self.weights)
            self.middle = np.clip(mean, region.lower, region.upper)
        self.centred = np.ascontiguousarray(self.rows - self.middle)
        self.squares = float(self.weights @ (self.centred**2).sum(axis=1))
        reach = np.maximum(region.upper - self.middle, self.middle - region.lower)
        # About the rows' mean, none of the cost's terms is greater than this.
        terms = float(self.squares + (np.abs(mu) * reach).sum())
        width = float((region.upper - region.lower).max(initial=0.0))
        self.slack = _SLACK * max(terms + 1e-3 * width**2, 1e-290)
        # The search reckons about that mean: what moving there takes from every cost.
        self.constant = float(mu.sum(axis=0) @ self.middle)

    def settled(self, labels: IntArray, enough: float = np.inf) -> _Settled:
        """Return labels with their best centroids, the cost and its proven lower bound.

        A bound that reaches ``enough`` is not improved further.
        """
        clusters = len(self.mu)
        counts = np.bincount(labels, self.weights, clusters).astype(np.float64)
        sums = np.zeros(self.mu.shape)
        np.add.at(sums, labels, self.weights[:, None] * self.centred)
        elsewhere = self.squares + self.constant
        centroids, value, bound = self.region.proven_centroids(
            counts, sums, self.mu, self.middle, enough - elsewhere
        )
        return labels, centroids, value + elsewhere, bound + elsewhere

    def started(self, start: IntArray) -> IntArray:
        """Return the labels (n,) given of the rows as those of the distinct ones, in order."""
        labels = np.empty(len(self.rows), dtype=np.int64)
        labels[self.places] = start
        return labels[self.order]

    def first(self, start: IntArray | None) -> _Settled:
        """Return what the labels given cost, or those by the nearest reference."""
        if start is not None:
            return self.settled(self.started(start))
        return self.settled(tolerant_argmin(_squared_distances(self.rows, self.region.home)))

    def better(self, best: _Settled, found: _Settled) -> _Settled:
        """Return what costs less; ``best`` where the two differ by rounding alone."""
        return found if found[2] < best[2] - _ROUNDING * self.slack else best

    def improved(self, start: IntArray | None) -> _Settled:
        """Return labels that rows' nearest centroids repeat, from the best of a few starts.

        From the references, from those with one left out (where mu is great, an empty cluster is
        worth its while) and from the labels given.
        """
        away = _squared_distances(self.rows, self.region.home)
        starts = [] if start is None else [self.started(start)]
        starts.append(tolerant_argmin(away))
        for left_out in range(len(self.mu) if len(self.mu) > 1 else 0):
            others = away.copy()
            others[:, left_out] = np.inf
            starts.append(tolerant_argmin(others))
        best = self.settled(starts[0])
        seen: set[bytes] = set()
        for labels in starts:
            before = np.inf
            for _ in range(_ITERATIONS):
                if labels.tobytes() in seen:
                    break
                seen.add(labels.tobytes())
                found = self.settled(labels)
                best = self.better(best, found)
                if found[2] >= before:
                    break
                before = found[2]
                labels = tolerant_argmin(_squared_distances(self.rows, found[1]))
        return best


def _squared_distances(rows: FloatArray, centroids: FloatArray) -> FloatArray:
    return np.asarray(((rows[:, None, :] - centroids[None, :, :]) ** 2).sum(axis=2))


def _spread_out(rows: FloatArray) -> IntArray:
    """Return an order of rows in which each is the farthest from all before it.

    The first rows then cost something however they are labelled, which is what prunes. Sorted
    before, so that the order in which rows come does not matter; equal rows stand together.
    """
    if len(rows) == 0:
        return np.zeros(0, dtype=np.int64)
    by_value = tolerant_lexsort(rows)
    sorted_rows = rows[by_value]
    first = np.r_[
        True, (np.abs(np.diff(sorted_rows, axis=0)) > coordinate_tolerance(rows)).any(axis=1)
    ]
    starts = np.flatnonzero(first)
    ends = np.r_[starts[1:], len(rows)]
    points = sorted_rows[starts]
    order = [int(tolerant_argmax(((points - sorted_rows.mean(axis=0)) ** 2).sum(axis=1)))]
    near = np.full(len(points), np.inf)
    for _ in range(len(points) - 1):
        near = np.minimum(near, ((points - points[order[-1]]) ** 2).sum(axis=1))
        near[order] = -1.0
        order.append(int(tolerant_argmax(near)))
    together = np.concatenate([np.arange(starts[at], ends[at]) for at in order])
    return np.asarray(by_value[together], dtype=np.int64)


def _branch_and_bound(problem: _Problem, start: IntArray | None, node_limit: int) -> NodeSolution:
    from fedclust.methods.dual.branch_and_bound import EXHAUSTED, LEAF

    region = problem.region
    # Where mu is 0, clusters differ in nothing but "cells" and "reference": an optimum without
    # symmetry can be renamed into "pairwise".
    alike = not problem.mu.any() and region.certified and region.part is None
    shape, tails, spent = _prepared(
        problem.centred.tobytes(),
        problem.weights.tobytes(),
        problem.centred.shape,
        problem.middle.tobytes(),
        region.lower.tobytes(),
        region.upper.tobytes(),
        region.references.tobytes(),
        len(problem.mu),
        region.symmetry,
        node_limit,
    )
    if region.part is not None:
        # What rows cost alone anywhere, they cost at least in a part.
        lower, upper = (bound - problem.middle for bound in region.part)
        shape = shape._replace(lower=lower, upper=upper)
    search = _Search(
        problem.centred,
        problem.weights,
        problem.mu,
        tails,
        alike,
        shape._replace(form=0) if alike else shape,
    )
    best = problem.first(start)
    floor, left, thorough = np.inf, node_limit - spent, False
    while left > 0:
        if not thorough and node_limit - spent - left >= _CHEAP:
            best, thorough = problem.better(best, problem.improved(start)), True
        cutoff = best[2] - problem.slack - problem.constant
        status, visits = search.run(cutoff, left if thorough else min(left, _CHEAP))
        left -= visits
        if status == EXHAUSTED:
            break
        if status == LEAF:
            named = _renamed(search.leaf, problem, region) if alike else search.leaf
            leaf = problem.settled(named, best[2])
            left -= _SPLIT if region.symmetry == "reference" and leaf[2] > leaf[3] else 0
            floor = min(floor, leaf[3])
            best = problem.better(best, leaf)
    if left <= 0 and not thorough:
        best = problem.better(best, problem.improved(start))
    # Dropped nodes cost at least the incumbent of their time less the slack, leaves what was
    # proven of them, open nodes their bound.
    floor = min(floor, best[2] - problem.slack, search.least + problem.constant)
    complete = best[2] - floor <= 4.0 * problem.slack
    spent = min(node_limit - left, node_limit)
    return NodeSolution(best[0], best[1], best[2], floor, spent, complete)


class _Search:
    """A search that can be resumed; its arrays grow as needed."""

    def __init__(
        self,
        rows: FloatArray,
        weights: IntArray,
        mu: FloatArray,
        tails: FloatArray,
        alike: bool,
        shape: Shape,
    ) -> None:
        from fedclust.methods.dual import branch_and_bound

        self._kernel = branch_and_bound
        self._given = (rows, weights, np.ascontiguousarray(mu), tails, alike)
        self._shape = shape
        self._tree = branch_and_bound.planted(len(rows), len(mu), mu.shape[1], 512)

    def run(self, cutoff: float, limit: int) -> tuple[int, int]:
        """Return why the search came back, and how many nodes were visited."""
        spent = 0
        while True:
            status, visits = self._kernel.search(
                *self._given, cutoff, limit - spent, self._shape, self._tree
            )
            spent += visits
            if status != self._kernel.FULL:
                return status, spent
            self._tree = self._kernel.grown(self._tree)

    @property
    def leaf(self) -> IntArray:
        """The labels of the leaf that was just visited."""
        slot = self._tree.heap[self._tree.sizes[0]]
        return np.asarray(self._tree.labels[slot], dtype=np.int64)

    @property
    def leaf_bound(self) -> float:
        return float(self._tree.bounds[self._tree.heap[self._tree.sizes[0]]])

    @property
    def least(self) -> float:
        """The least bound of the open nodes; infinite without any."""
        return float(self._tree.bounds[self._tree.heap[0]]) if self._tree.sizes[0] else np.inf


def _renamed(labels: IntArray, problem: _Problem, region: Region) -> IntArray:
    """Return the labels with clusters renamed so that their means satisfy "pairwise"."""
    if region.symmetry == "none":
        return labels
    from scipy.optimize import linear_sum_assignment

    used = {
        k: np.average(problem.rows[labels == k], axis=0, weights=problem.weights[labels == k])
        for k in np.unique(labels)
    }
    means = np.array([used.get(k, used[labels[0]]) for k in range(len(region.references))])
    # No exchange of two names makes the sum of means times references greater.
    _, names = linear_sum_assignment(round_to_tolerance(-means @ region.references.T))
    return np.asarray(names[labels], dtype=np.int64)


@lru_cache(maxsize=_KEPT)
def _prepared(
    rows: bytes,
    weights: bytes,
    size: tuple[int, int],
    middle: bytes,
    lower: bytes,
    upper: bytes,
    references: bytes,
    clusters: int,
    symmetry: Literal["pairwise", "cells", "reference", "none"],
    node_limit: int,
) -> tuple[Shape, FloatArray, int]:
    """Return what does not depend on mu: the region's shape, the rows' costs alone, visits spent.

    Keyed by the bits, and kept in the site's own process: a dual ascent asks for it every round.
    """
    n, d = size
    region = Region(
        np.frombuffer(lower),
        np.frombuffer(upper),
        np.frombuffer(references).reshape(clusters, d),
        symmetry,
    )
    shape = _shape(region, np.frombuffer(middle))
    alone = shape if symmetry == "cells" else shape._replace(form=0)
    centred = np.frombuffer(rows).reshape(size).copy()
    sizes = np.frombuffer(weights, dtype=np.int64).copy()
    mu = np.zeros((clusters, d))
    # costs[r]: what the last r rows cost at least; from all of them the search itself starts.
    costs, spent, budget = np.zeros(n + 1), 0, node_limit // 2
    from fedclust.methods.dual.branch_and_bound import LEAF

    # Rows from which on costs are those of one search; those before it cost what they cost alone.
    block = 0
    for r in range(1, n):
        share = (budget - spent) // (n - r)
        # One row more costs no less.
        costs[r] = costs[r - 1]
        if share == 0:
            continue
        part = centred[n - r : n - block]
        tails = costs[block : r + 1][::-1] - costs[block]
        own = sizes[n - r : n - block]
        search = _Search(part, own, mu, tails, symmetry != "cells", alone)
        status, visits = search.run(np.inf, share)
        spent += visits
        found = search.leaf_bound if status == LEAF else search.least
        rounding = _SLACK * 1e-3 * float(own @ (part**2).sum(axis=1))
        costs[r] = max(costs[r], costs[block] + found - rounding)
        if status != LEAF:
            block = r
    return shape, costs[::-1].copy(), spent


def _shape(region: Region, middle: FloatArray) -> Shape:
    from fedclust.methods.dual.branch_and_bound import CELLS, FREE, PAIRWISE, REFERENCE, Shape

    size, d = region.references.shape
    normals, offsets = np.zeros((size, size, d)), np.full((size, size), -np.inf)
    about = region.references - middle
    for k in range(size):
        for other in range(size):
            line = about[k] - about[other]
            length = float(np.sqrt((line**2).sum()))
            if length > 0:
                normals[k, other] = line / length
                offsets[k, other] = normals[k, other] @ (0.5 * (about[k] + about[other]))
    forms = {"none": FREE, "cells": CELLS, "pairwise": PAIRWISE, "reference": REFERENCE}
    corners = _corners(region, middle) if region.symmetry == "cells" else [np.zeros((0, d))] * size
    return Shape(
        region.boxes.lower - middle,
        region.boxes.upper - middle,
        forms[region.symmetry],
        about,
        normals,
        offsets,
        np.ascontiguousarray(np.vstack(corners)),
        np.cumsum([0, *(len(part) for part in corners)]),
    )


def _corners(region: Region, middle: FloatArray) -> list[FloatArray]:
    """Return the vertices of each cell in the box, about ``middle``; none where too many."""
    d = len(region.lower)
    found = []
    for cell in region.cells:
        normals = np.vstack([cell.normals, np.eye(d), -np.eye(d)])
        offsets = np.concatenate(
            [
                cell.offsets - cell.normals @ middle,
                region.lower - middle,
                middle - region.upper,
            ]
        )
        if comb(len(normals), d) > _CHOICES:
            found.append(np.zeros((0, d)))
            continue
        chosen = np.array(list(combinations(range(len(normals)), d)))
        faces = normals[chosen]
        regular = np.abs(np.linalg.det(faces)) > 1e-9
        points = np.linalg.solve(faces[regular], offsets[chosen[regular]][..., None])[..., 0]
        # Rather a point too many, a little outside, than one too few: the bound stays one.
        inside = (points @ normals.T >= offsets - 1e3 * region.tolerance).all(axis=1)
        found.append(points[inside])
    return found
