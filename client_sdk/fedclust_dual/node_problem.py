"""The node problem of `dual`: labels and centroids of one site's points, with a proven bound.

The problem is to minimise ``sum_j n_j |y_j - m_w(j)|^2 + sum_k mu_k.m_k`` over labels w and
centroids m in a region: equation 14 of [1]_, where every weight n_j is 1. Branch and bound labels
one point after another, best bound first. Equal points are merged and their weights added: for any
centroids they get the same label.

The bound of a tree node is the cost of the labelled points with all of mu, plus the cost of the
unlabelled points alone, without mu. Both hold for any centroids, so their sum does. Sharing mu
between the two was tried and needs more nodes (ten times as many at equal shares), because the
clusters that the unlabelled points leave empty then pay their part of mu in a corner of the box.

References
----------
.. [1] Yfantis, Wagner & Ruskowski, "Federated K-means clustering via dual decomposition-based
   distributed optimization".
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.canonical import (
    coordinate_tolerance,
    round_to_tolerance,
    tolerant_argmax,
    tolerant_argmin,
    tolerant_lexsort,
)
from fedclust_dual.feasible_set import Region
from fedclust_dual.label_search import SLACK, LabelSearch, prepare_search
from fedclust_dual.search_tree import INTERCHANGEABLE, SearchPoints

#: Default limit of nodes: about a second. The open nodes then take 200 MB at most.
NODE_LIMIT = 200_000
#: Part of the slack by which results may differ between processors.
_ROUNDING = 0.01
#: Nodes charged for a leaf whose centroids had to be found by splitting boxes.
_SPLITTING_NODES = 100
#: Nodes visited before the local search runs: most problems are solved by then.
_CHEAP_NODES = 2_000
#: Limit of Lloyd iterations in the local search.
_MAX_ITERATIONS = 100
#: Labels are stored in a byte.
_MAX_CLUSTERS = 127


@dataclass(frozen=True)
class NodeSolution:
    """The solution of a node problem.

    Attributes
    ----------
    labels : (n,) int64
    centroids : (K, d) float64
        The best centroids in the region for these labels.
    value : float
        The cost of labels and centroids.
    bound : float
        A proven lower bound of the problem, at most ``value``; solver tolerances are subtracted.
    n_nodes : int
        Nodes visited, including those for the costs of unlabelled points.
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
    node_limit: int = NODE_LIMIT,
    start: IntArray | None = None,
) -> NodeSolution:
    """Solve equation 14 for one site.

    The same input gives the same bits on one machine; the order of the rows does not change the
    value.

    Parameters
    ----------
    rows : (n, d) float64
        Points in the region's box; n may be 0.
    mu : (K, d) float64
        The multipliers of the site's centroids.
    region : Region
    weights : (n,) int64, optional
        At least 1 each; by default 1.
    node_limit : int
        At least 1. If the search reaches it, the bound is the one proven so far.
    start : (n,) int64, optional
        Labels to start from, for example those of the last round.

    Returns
    -------
    NodeSolution

    Raises
    ------
    ValueError
        If shapes do not agree, or a row lies outside the box.
    """
    _check_arguments(rows, mu, region, node_limit)
    if weights is None:
        weights = np.ones(len(rows), dtype=np.int64)
    problem = _Problem(rows, weights, np.array(mu, dtype=np.float64), region)
    if len(rows) == 0:
        found = NodeSolution(*problem.evaluate(np.zeros(0, dtype=np.int64)), 0, True)
    else:
        found = _branch_and_bound(problem, start, node_limit)
    labels = np.empty(len(problem.rows), dtype=np.int64)
    labels[problem.order] = found.labels
    # Rounding may leave a proven bound above the value in its last bits.
    bound = min(found.bound - problem.slack, found.value)
    return replace(found, labels=labels[problem.places], bound=bound)


def _check_arguments(rows: FloatArray, mu: FloatArray, region: Region, node_limit: int) -> None:
    if mu.shape != region.references.shape or rows.shape[1:] != region.lower.shape:
        raise ValueError("rows, mu and the region must agree in columns and clusters")
    if len(mu) > _MAX_CLUSTERS:
        raise ValueError(f"at most {_MAX_CLUSTERS} clusters are supported")
    outside = np.maximum(region.lower - rows, rows - region.upper)
    if outside.max(initial=0.0) > region.tolerance:
        raise ValueError("rows must lie in the region's box")
    if node_limit < 1:
        raise ValueError("a node limit is at least 1")


class _BoundedLabels(NamedTuple):
    """Labels with their best centroids, the cost, and a lower bound of the labels' cost."""

    labels: IntArray
    centroids: FloatArray
    value: float
    bound: float


class _Problem:
    """Distinct points in a canonical order, and the cost of labels.

    Attributes
    ----------
    places : (n,) int64
        The index of each given row among the sorted distinct ones.
    order : (m,) int64
        The sorted distinct rows in the order in which they are labelled.
    rows : (m, d) float64
        In that order.
    centred : (m, d) float64
        ``rows`` minus ``center``, their mean. The search is relative to it.
    constant : float
        The difference between costs and the search's costs.
    slack : float
        Accuracy of costs and bounds.
    """

    def __init__(self, rows: FloatArray, weights: IntArray, mu: FloatArray, region: Region) -> None:
        distinct, places = np.unique(rows, axis=0, return_inverse=True)
        self.places = places.reshape(-1)
        merged_weights = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(merged_weights, self.places, weights)
        self.order = _order_farthest_first(distinct)
        self.rows, self.weights = distinct[self.order], merged_weights[self.order]
        self.mu, self.region = mu, region
        self.center = 0.5 * (region.lower + region.upper)
        if len(rows):
            mean = np.average(self.rows, axis=0, weights=self.weights)
            self.center = np.clip(mean, region.lower, region.upper)
        self.centred = np.ascontiguousarray(self.rows - self.center)
        self.squares = float(self.weights @ (self.centred**2).sum(axis=1))
        reach = np.maximum(region.upper - self.center, self.center - region.lower)
        # Relative to the mean, no term of the cost is larger than this.
        terms = float(self.squares + (np.abs(mu) * reach).sum())
        width = float((region.upper - region.lower).max(initial=0.0))
        self.slack = SLACK * max(terms + 1e-3 * width**2, 1e-290)
        self.constant = float(mu.sum(axis=0) @ self.center)

    def evaluate(self, labels: IntArray, sufficient: float = np.inf) -> _BoundedLabels:
        """Return labels with their best centroids; improve the bound up to ``sufficient`` only."""
        n_clusters = len(self.mu)
        counts = np.bincount(labels, self.weights, n_clusters).astype(np.float64)
        sums = np.zeros(self.mu.shape)
        np.add.at(sums, labels, self.weights[:, None] * self.centred)
        constant = self.squares + self.constant
        centroids, value, bound = self.region.proven_centroids(
            counts, sums, self.mu, self.center, sufficient - constant
        )
        return _BoundedLabels(labels, centroids, value + constant, bound + constant)

    def reorder_labels(self, start: IntArray) -> IntArray:
        """Return labels (n,) of the given rows as labels (m,) of the distinct ones."""
        labels = np.empty(len(self.rows), dtype=np.int64)
        labels[self.places] = start
        return labels[self.order]

    def first_candidate(self, start: IntArray | None) -> _BoundedLabels:
        """Evaluate the given labels, or those of the nearest default centroids."""
        if start is not None:
            return self.evaluate(self.reorder_labels(start))
        return self.evaluate(
            tolerant_argmin(_squared_distances(self.rows, self.region.default_centroids))
        )

    def better_of(self, best: _BoundedLabels, other: _BoundedLabels) -> _BoundedLabels:
        """Return the cheaper candidate; ``best`` where the costs differ by rounding only."""
        return other if other.value < best.value - _ROUNDING * self.slack else best

    def local_search(self, start: IntArray | None) -> _BoundedLabels:
        """Return the best result of Lloyd iterations from a few starts.

        They start from the given labels, from the default centroids, and from these without one of
        them: where mu is large, an empty cluster can be best.
        """
        squares = _squared_distances(self.rows, self.region.default_centroids)
        starts = [] if start is None else [self.reorder_labels(start)]
        starts.append(tolerant_argmin(squares))
        for left_out in range(len(self.mu) if len(self.mu) > 1 else 0):
            others = squares.copy()
            others[:, left_out] = np.inf
            starts.append(tolerant_argmin(others))
        best = self.evaluate(starts[0])
        seen: set[bytes] = set()
        for labels in starts:
            last_value = np.inf
            for _ in range(_MAX_ITERATIONS):
                if labels.tobytes() in seen:
                    break
                seen.add(labels.tobytes())
                candidate = self.evaluate(labels)
                best = self.better_of(best, candidate)
                if candidate.value >= last_value:
                    break
                last_value = candidate.value
                labels = tolerant_argmin(_squared_distances(self.rows, candidate.centroids))
        return best


def _squared_distances(rows: FloatArray, centroids: FloatArray) -> FloatArray:
    return np.asarray(((rows[:, None, :] - centroids[None, :, :]) ** 2).sum(axis=2))


def _order_farthest_first(rows: FloatArray) -> IntArray:
    """Return an order of rows in which each is the farthest from all rows before it.

    The first rows then have a cost under any labels, which prunes the search. Rows are sorted
    first, so that their given order does not matter; equal rows stay together.
    """
    if len(rows) == 0:
        return np.zeros(0, dtype=np.int64)
    by_value = tolerant_lexsort(rows)
    sorted_rows = rows[by_value]
    is_new = np.r_[
        True, (np.abs(np.diff(sorted_rows, axis=0)) > coordinate_tolerance(rows)).any(axis=1)
    ]
    starts = np.flatnonzero(is_new)
    ends = np.r_[starts[1:], len(rows)]
    points = sorted_rows[starts]
    order = [int(tolerant_argmax(((points - sorted_rows.mean(axis=0)) ** 2).sum(axis=1)))]
    distances = np.full(len(points), np.inf)
    for _ in range(len(points) - 1):
        distances = np.minimum(distances, ((points - points[order[-1]]) ** 2).sum(axis=1))
        distances[order] = -1.0
        order.append(int(tolerant_argmax(distances)))
    places = np.concatenate([np.arange(starts[point], ends[point]) for point in order])
    return np.asarray(by_value[places], dtype=np.int64)


def _branch_and_bound(problem: _Problem, start: IntArray | None, node_limit: int) -> NodeSolution:
    region = problem.region
    node_region, remainders, visits = prepare_search(
        problem.centred, problem.weights, problem.center, region, node_limit
    )
    # With mu = 0 clusters differ only in "cells", in "reference" and in a subdomain; otherwise an
    # optimum without symmetry form can be renumbered into "pairwise".
    interchangeable = not problem.mu.any() and region.certified and region.subdomain is None
    if interchangeable:
        node_region = node_region._replace(form=INTERCHANGEABLE)
    mu = np.ascontiguousarray(problem.mu)
    search = LabelSearch(
        SearchPoints(problem.centred, problem.weights, mu, remainders), node_region
    )
    best = problem.first_candidate(start)
    floor, left, searched_locally = np.inf, node_limit - visits, False
    while left > 0:
        if not searched_locally and node_limit - visits - left >= _CHEAP_NODES:
            best = problem.better_of(best, problem.local_search(start))
            searched_locally = True
        cutoff = best.value - problem.slack - problem.constant
        limit = left if searched_locally else min(left, _CHEAP_NODES)
        at_leaf, exhausted, visited = search.run(cutoff, limit)
        left -= visited
        if exhausted:
            break
        if at_leaf:
            labels = search.leaf_labels
            if interchangeable:
                labels = _renumber_pairwise(labels, problem)
            leaf = problem.evaluate(labels, best.value)
            if region.symmetry == "reference" and leaf.value > leaf.bound:
                left -= _SPLITTING_NODES
            floor = min(floor, leaf.bound)
            best = problem.better_of(best, leaf)
    if left <= 0 and not searched_locally:
        best = problem.better_of(best, problem.local_search(start))
    # Dropped nodes cost at least the best value of that time minus the slack, leaves their proven
    # bound, and open nodes theirs.
    floor = min(floor, best.value - problem.slack, search.least_bound + problem.constant)
    complete = best.value - floor <= 4.0 * problem.slack
    n_nodes = min(node_limit - left, node_limit)
    return NodeSolution(best.labels, best.centroids, best.value, floor, n_nodes, complete)


def _renumber_pairwise(labels: IntArray, problem: _Problem) -> IntArray:
    """Return the labels with clusters renumbered so that their means satisfy "pairwise"."""
    references = problem.region.references
    if problem.region.symmetry == "none":
        return labels
    from scipy.optimize import linear_sum_assignment

    means = {
        k: np.average(problem.rows[labels == k], axis=0, weights=problem.weights[labels == k])
        for k in np.unique(labels)
    }
    all_means = np.array([means.get(k, means[labels[0]]) for k in range(len(references))])
    # The renumbering with the largest sum of means times references is in order.
    _, numbers = linear_sum_assignment(round_to_tolerance(-all_means @ references.T))
    return np.asarray(numbers[labels], dtype=np.int64)
