"""Prepare and run the compiled branch and bound over the labels of one node problem.

The unlabelled points of a tree node cost at least as much as they would cost alone. That cost is
found by the same search over the last point, the last two points and so on, as in [1]_. It does
not depend on the multipliers, so it is computed once and kept for later rounds.

References
----------
.. [1] Brusco, "A repetitive branch-and-bound procedure for minimum within-cluster sums of squares
   partitioning", Psychometrika 2006.
"""

from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np

from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust_dual.feasible_set import Region, Symmetry
from fedclust_dual.search_tree import (
    CELLS,
    FREE,
    INTERCHANGEABLE,
    PAIRWISE,
    REFERENCE,
    NodeRegion,
    SearchPoints,
    double_capacity,
    new_workspace,
    root_tree,
)

#: Accuracy of bounds, relative to the terms of the cost: what a search ignores, and what is
#: subtracted from each proven bound for rounding.
SLACK = 1e-9
#: Rounding of the cost of unlabelled points, relative to their squares.
_REMAINDER_SLACK = SLACK * 1e-3
#: Limit of combinations of faces that are tried for a cell's vertices; beyond it, the cell is
#: replaced by the box.
_MAX_COMBINATIONS = 6_000
#: Point sets whose remainders are kept: one for each site in `simulate`, and some spare.
_KEPT_SETS = 64
_FORMS = {"none": FREE, "cells": CELLS, "pairwise": PAIRWISE, "reference": REFERENCE}
_FIRST_CAPACITY = 512


class LabelSearch:
    """A search that can be resumed; its tree grows as needed."""

    def __init__(self, points: SearchPoints, region: NodeRegion) -> None:
        # Imported here because importing it loads or compiles the kernel.
        from fedclust_dual import branch_and_bound

        self._kernel = branch_and_bound
        self._points, self._region = points, region
        n_clusters, d = points.mu.shape
        self._tree = root_tree(len(points.rows), n_clusters, d, _FIRST_CAPACITY)
        self._work = new_workspace(n_clusters, d)

    def run(self, cutoff: float, limit: int) -> tuple[bool, bool, int]:
        """Visit open nodes, least bound first, until one of them is a leaf.

        Parameters
        ----------
        cutoff : float
            Nodes whose bound reaches it are dropped.
        limit : int
            Largest number of visits.

        Returns
        -------
        at_leaf : bool
            Whether the search stopped at a leaf, which has the least bound of all open nodes.
        exhausted : bool
            Whether no node below the cutoff is left.
        visits : int
            Nodes visited.
        """
        visits = 0
        while True:
            status, visited = self._kernel.search(
                self._points, cutoff, limit - visits, self._region, self._tree, self._work
            )
            visits += visited
            if status != self._kernel.FULL:
                return status == self._kernel.LEAF, status == self._kernel.EXHAUSTED, visits
            self._tree = double_capacity(self._tree)

    @property
    def _leaf(self) -> int:
        return int(self._tree.heap[self._tree.sizes[0]])

    @property
    def leaf_labels(self) -> IntArray:
        """The labels (n,) of the leaf that was just visited."""
        return np.asarray(self._tree.labels[self._leaf], dtype=np.int64)

    @property
    def leaf_bound(self) -> float:
        """The bound of the leaf that was just visited."""
        return float(self._tree.bounds[self._leaf])

    @property
    def least_bound(self) -> float:
        """The least bound of the open nodes; infinite if there are none."""
        return float(self._tree.bounds[self._tree.heap[0]]) if self._tree.sizes[0] else np.inf


def prepare_search(
    rows: FloatArray, weights: IntArray, center: FloatArray, region: Region, node_limit: int
) -> tuple[NodeRegion, FloatArray, int]:
    """Return everything about a search that does not depend on the multipliers.

    Parameters
    ----------
    rows : (n, d) float64
        Distinct points minus ``center``, in the order in which they are labelled.
    weights : (n,) int64
    center : (d,) float64
    region : Region
        Its subdomain is ignored for the remainders: points cost at least as much in a subdomain.
    node_limit : int
        Half of it may be spent on the remainders.

    Returns
    -------
    region : NodeRegion
        Relative to ``center``.
    remainders : (n + 1,) float64
        For each depth, a lower bound of the cost of the unlabelled points, without mu.
    visits : int
        Nodes visited.
    """
    node_region, remainders, visits = _prepare(
        (rows.shape, rows.tobytes(), weights.tobytes(), center.tobytes()),
        (region.lower.tobytes(), region.upper.tobytes(), region.references.tobytes()),
        len(region.references),
        region.symmetry,
        node_limit,
    )
    if region.subdomain is not None:
        lower, upper = (bound - center for bound in region.subdomain)
        node_region = node_region._replace(lower=lower, upper=upper)
    return node_region, remainders, visits


@lru_cache(maxsize=_KEPT_SETS)
def _prepare(
    points: tuple[tuple[int, int], bytes, bytes, bytes],
    bounds: tuple[bytes, bytes, bytes],
    n_clusters: int,
    symmetry: Symmetry,
    node_limit: int,
) -> tuple[NodeRegion, FloatArray, int]:
    """Cache :func:`prepare_search` by the bits of its arguments, in the site's own process."""
    (n, d), row_bytes, weight_bytes, center = points
    lower, upper, references = (np.frombuffer(bound) for bound in bounds)
    region = Region(lower, upper, references.reshape(n_clusters, d), symmetry)
    node_region = _node_region(region, np.frombuffer(center))
    form = CELLS if symmetry == "cells" else INTERCHANGEABLE
    rows = np.frombuffer(row_bytes).reshape(n, d).copy()
    weights = np.frombuffer(weight_bytes, dtype=np.int64).copy()
    costs, visits = _suffix_costs(rows, weights, node_region._replace(form=form), node_limit // 2)
    return node_region, costs[::-1].copy(), visits


def _suffix_costs(
    rows: FloatArray, weights: IntArray, region: NodeRegion, budget: int
) -> tuple[FloatArray, int]:
    """Return lower bounds (n + 1,) of the last r points' costs alone, and the nodes visited.

    All n points together are left to the main search.
    """
    n, mu = len(rows), np.zeros(region.references.shape)
    costs, visits = np.zeros(n + 1), 0
    # Points from here on were bounded by one search; those before it cost what they cost alone.
    block = 0
    for r in range(1, n):
        share = (budget - visits) // (n - r)
        # One more point costs no less.
        costs[r] = costs[r - 1]
        if share == 0:
            continue
        own, own_weights = rows[n - r : n - block], weights[n - r : n - block]
        remainders = costs[block : r + 1][::-1] - costs[block]
        search = LabelSearch(SearchPoints(own, own_weights, mu, remainders), region)
        at_leaf, _, visited = search.run(np.inf, share)
        visits += visited
        bound = search.leaf_bound if at_leaf else search.least_bound
        rounding = _REMAINDER_SLACK * float(own_weights @ (own**2).sum(axis=1))
        costs[r] = max(costs[r], costs[block] + bound - rounding)
        if not at_leaf:
            block = r
    return costs, visits


def _node_region(region: Region, center: FloatArray) -> NodeRegion:
    """Return the region without its subdomain as the kernel reads it, relative to ``center``."""
    n_clusters, d = region.references.shape
    references = region.references - center
    normals = np.zeros((n_clusters, n_clusters, d))
    offsets = np.full((n_clusters, n_clusters), -np.inf)
    for k in range(n_clusters):
        for other in range(n_clusters):
            line = references[k] - references[other]
            length = float(np.sqrt((line**2).sum()))
            if length > 0:
                normals[k, other] = line / length
                middle = 0.5 * (references[k] + references[other])
                offsets[k, other] = normals[k, other] @ middle
    vertices = [np.zeros((0, d))] * n_clusters
    if region.symmetry == "cells":
        vertices = _cell_vertices(region, center)
    return NodeRegion(
        region.centroid_bounds.lower - center,
        region.centroid_bounds.upper - center,
        _FORMS[region.symmetry],
        references,
        normals,
        offsets,
        np.ascontiguousarray(np.vstack(vertices)),
        np.cumsum([0, *(len(own) for own in vertices)]),
    )


def _cell_vertices(region: Region, center: FloatArray) -> list[FloatArray]:
    """Return the vertices (v, d) of each cell in the box; none where there are too many."""
    d = len(region.lower)
    vertices = []
    for cell in region.voronoi_cells:
        normals = np.vstack([cell.normals, np.eye(d), -np.eye(d)])
        offsets = np.concatenate(
            [cell.offsets - cell.normals @ center, region.lower - center, center - region.upper]
        )
        if comb(len(normals), d) > _MAX_COMBINATIONS:
            vertices.append(np.zeros((0, d)))
            continue
        chosen = np.array(list(combinations(range(len(normals)), d)))
        faces = normals[chosen]
        regular = np.abs(np.linalg.det(faces)) > 1e-9
        points = np.linalg.solve(faces[regular], offsets[chosen[regular]][..., None])[..., 0]
        # A vertex too many, slightly outside, keeps the bound valid; one too few would not.
        inside = (points @ normals.T >= offsets - 1e3 * region.tolerance).all(axis=1)
        vertices.append(points[inside])
    return vertices
