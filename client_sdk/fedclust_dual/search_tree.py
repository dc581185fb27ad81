"""The data of `dual`'s branch and bound over labels: points, feasible set, and tree.

A node of the tree fixes the labels of the first points; its data are in one slot of the arrays of
:class:`Tree`. :mod:`~fedclust_dual.branch_and_bound` searches it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import FloatArray, IntArray

#: Constraints on centroids besides the box: none, Voronoi cells, pairwise order, equation 36.
#: ``INTERCHANGEABLE``: none, and clusters cost the same under any numbering, so that only one
#: numbering is searched.
FREE, INTERCHANGEABLE, CELLS, PAIRWISE, REFERENCE = range(5)


class SearchPoints(NamedTuple):
    """The points of a site, their multipliers, and bounds for the unlabelled ones.

    Attributes
    ----------
    rows : (n, d) float64
        Distinct, in the order in which they are labelled, relative to the search's origin.
    weights : (n,) int64
        Persons.
    mu : (K, d) float64
        Multipliers.
    remainders : (n + 1,) float64
        For each depth, a lower bound of the cost of the unlabelled points, without mu.
    """

    rows: FloatArray
    weights: IntArray
    mu: FloatArray
    remainders: FloatArray


class NodeRegion(NamedTuple):
    """The feasible set of the centroids, relative to the search's origin.

    Attributes
    ----------
    lower, upper : (K, d) float64
    form : int
        ``FREE``, ``INTERCHANGEABLE``, ``CELLS``, ``PAIRWISE`` or ``REFERENCE``.
    references : (K, d) float64
    normals : (K, K, d) float64
        Unit vectors from r_l to r_k; 0 where they are equal.
    offsets : (K, K) float64
        The Voronoi cell of k is ``normals[k, l] @ m >= offsets[k, l]``.
    vertices : (v, d) float64
        Vertices of the cells within the box, cell by cell; none where there are too many.
    first_vertices : (K + 1,) int64
        Where each cell's vertices begin.
    """

    lower: FloatArray
    upper: FloatArray
    form: int
    references: FloatArray
    normals: FloatArray
    offsets: FloatArray
    vertices: FloatArray
    first_vertices: IntArray


class Tree(NamedTuple):
    """The open nodes of a search: slots of arrays, and a heap of slots.

    Attributes
    ----------
    bounds : (c,) float64
    squares : (c,) float64
        Squared lengths of the labelled points, weighted and added up.
    sums : (c, K, d) float64
        Sums of each cluster's points, weighted.
    counts : (c, K) int64
        Persons in each cluster.
    labels : (c, n) int8
    depths, heap, free : (c,) int64
        Labelled points; slots in the heap; slots that are free again.
    sizes : (3,) int64
        Nodes in the heap, slots ever used, and slots free among those.
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


class Workspace(NamedTuple):
    """Arrays that the expansion of a node reuses.

    Attributes
    ----------
    totals : (K, d) float64
        The child's sums.
    at, moved : (K, d) float64
        Minimisers in the box, without and with forces between clusters.
    linear : (K, d) float64
        Linear terms of the Lagrangian.
    costs, curvatures : (K,) float64
        The clusters' costs, and quadratic terms of the Lagrangian.
    forces : (K, K) float64
        Multipliers of the constraints between two clusters.
    kept : (d,) float64
    """

    totals: FloatArray
    at: FloatArray
    moved: FloatArray
    linear: FloatArray
    costs: FloatArray
    curvatures: FloatArray
    forces: FloatArray
    kept: FloatArray


def root_tree(n: int, n_clusters: int, d: int, capacity: int) -> Tree:
    """Return a tree with one open node: no point is labelled."""
    tree = Tree(
        np.empty(capacity),
        np.empty(capacity),
        np.empty((capacity, n_clusters, d)),
        np.empty((capacity, n_clusters), dtype=np.int64),
        np.empty((capacity, n), dtype=np.int8),
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int64),
        np.array([1, 1, 0]),
    )
    tree.bounds[0], tree.squares[0], tree.depths[0], tree.heap[0] = -np.inf, 0.0, 0, 0
    tree.sums[0], tree.counts[0], tree.labels[0] = 0.0, 0, 0
    return tree


def double_capacity(tree: Tree) -> Tree:
    """Return the tree with twice as many slots."""
    arrays = [np.concatenate([array, np.empty_like(array)]) for array in tree[:-1]]
    return tree._replace(**dict(zip(Tree._fields, arrays, strict=False)))


def new_workspace(n_clusters: int, d: int) -> Workspace:
    """Return uninitialised arrays."""
    shape, k = (n_clusters, d), n_clusters
    return Workspace(
        *[np.empty(shape) for _ in range(4)],
        *[np.empty(k), np.empty(k), np.empty((k, k)), np.empty(d)],
    )
