"""Unions of sets of two partitions that nearly coincide.

Take the sets of two partitions of the same rows as the nodes of a graph, joined by the rows they
share. Any union of sets of the one and any union of sets of the other part the nodes in two, and
the rows in which the two unions differ are those on that cut. Two payloads can be subtracted to
give away fewer than p persons only where a cut holds 1 to p - 1 of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedclust.privacy.counting import Labels, PersonIndex, highest, joined, stretches

__all__ = ["Overlaps", "candidate_cuts", "components", "small_cut"]

IntVector = NDArray[np.int64]
RowNumbers = NDArray[np.intp]

#: Up to so many nodes every cut is looked at.
_EVERY_CUT: Final = 10
#: Beyond so many, none: finding the smallest takes time with their third power.
_MOST_NODES: Final = 64


class Overlaps:
    """Which sets of two partitions share rows, and how many.

    Attributes
    ----------
    first, second : (m,) int64
        Numbers of the two sets of each pair that shares rows, ascending.
    rows : (m,) int64
        How many rows they share, at least 1.
    """

    def __init__(self, a: Labels, b: Labels) -> None:
        width = highest(b) + 1
        pairs, self.rows = joined(a, b, max(width, 1))
        self.first, self.second = pairs // max(width, 1), pairs % max(width, 1)


def small_cut(
    a: Labels, b: Labels, index: PersonIndex, p: int, rows: RowNumbers | None
) -> RowNumbers:
    """Return which rows are on a cut of 1 to ``p`` - 1 persons between two partitions.

    Parameters
    ----------
    a, b : (m,) int64
        The sets of the two partitions that the rows ``rows`` belong to.
    index : PersonIndex
    p : int
    rows : (m,) intp or None
        None: all rows, in order.

    Returns
    -------
    (k,) intp
        Positions in ``rows``; empty where no such cut was found. Every cut is looked at where, up
        to sets that share ``p`` persons, at most 10 remain in one piece; the least by rows and
        others where at most 64 do.
    """
    nothing = np.zeros(0, dtype=np.intp)
    certain = index.certain(p)
    shared = Overlaps(a, b)
    n_first = highest(a) + 1
    n_nodes = n_first + highest(b) + 1
    strong = shared.rows >= certain
    group = components(n_nodes, shared.first[strong], shared.second[strong] + n_first)
    # Once the sets that share p persons are one node, hardly anything is left of most graphs.
    left, right = group[shared.first], group[shared.second + n_first]
    parted = left != right
    if not parted.any():
        return nothing
    inner = np.unique(np.concatenate([left[parted], right[parted]]))
    place = np.full(n_nodes, -1, dtype=np.int64)
    place[inner] = np.arange(inner.size)
    crossing = np.concatenate(
        [
            part.start + np.flatnonzero(group[a[part]] != group[n_first:][b[part]])
            for part in stretches(len(a))
        ]
    )
    ends = np.stack([place[group[a[crossing]]], place[group[n_first:][b[crossing]]]])
    ends, weights = _contract(
        ends, inner.size, index, p, crossing if rows is None else rows[crossing]
    )
    parts = components(len(weights), *np.nonzero(weights))
    for part in np.unique(parts):
        nodes = np.flatnonzero(parts == part)
        if not 1 < nodes.size <= _MOST_NODES:
            continue
        inside = weights[np.ix_(nodes, nodes)]
        cuts = _every_cut(nodes.size) if nodes.size <= _EVERY_CUT else _stacked(inside)
        crossed = ((cuts @ inside) * ~cuts).sum(axis=1)
        for cut in cuts[crossed < certain]:
            side = np.zeros(len(weights), dtype=np.bool_)
            side[nodes[cut]] = True
            across = crossing[side[ends[0]] != side[ends[1]]]
            if not index.reaches(across if rows is None else rows[across], p):
                return np.asarray(across, dtype=np.intp)
    return nothing


def _contract(
    ends: NDArray[np.int64], n_nodes: int, index: PersonIndex, p: int, rows: RowNumbers
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Make one node of any two that share p persons, until there are none.

    ``ends`` (2, m) are the nodes that each row joins. Returns the new ones, and the (k, k) numbers
    of rows between the nodes that remain.
    """
    certain = index.certain(p)
    while True:
        weights = np.zeros((n_nodes, n_nodes), dtype=np.int64)
        np.add.at(weights, (ends[0], ends[1]), 1)
        weights += weights.T
        np.fill_diagonal(weights, 0)
        joined = weights >= certain
        for i, j in np.argwhere(np.triu((weights >= p) & ~joined)):
            between = ((ends[0] == i) & (ends[1] == j)) | ((ends[0] == j) & (ends[1] == i))
            joined[i, j] = index.reaches(rows[between], p)
        if not joined.any():
            return ends, weights
        numbers, group = np.unique(components(n_nodes, *np.nonzero(joined)), return_inverse=True)
        ends, n_nodes = group[ends], numbers.size


def components(n_nodes: int, first: NDArray[np.intp], second: NDArray[np.intp]) -> IntVector:
    """Return the (n_nodes,) component of each node of an undirected graph: its lowest node.

    Parameters
    ----------
    n_nodes : int
    first, second : (m,) int
        The ends of its edges.
    """
    labels = np.arange(n_nodes, dtype=np.int64)
    while True:
        lowest = np.minimum(labels[first], labels[second])
        spread = labels.copy()
        np.minimum.at(spread, first, lowest)
        np.minimum.at(spread, second, lowest)
        if np.array_equal(spread, labels):
            return labels
        labels = spread


def candidate_cuts(weights: NDArray[np.int64]) -> Iterator[NDArray[np.bool_]]:
    """Yield sides of cuts of a connected graph, among them one of least weight.

    All cuts of a graph of at most 10 nodes; of a larger one, the cut that ends each phase of
    Stoer & Wagner, "A simple min-cut algorithm", J. ACM 44 (1997), section 2.

    Parameters
    ----------
    weights : (m, m) int64
        Symmetric, with a diagonal of 0.

    Yields
    ------
    (m,) bool
        The nodes on one side.
    """
    m = weights.shape[0]
    if m <= _EVERY_CUT:
        yield from _every_cut(m)
        return
    weights = weights.copy()
    members = np.eye(m, dtype=np.bool_)
    alive = np.ones(m, dtype=np.bool_)
    for _ in range(m - 1):
        waiting = alive.copy()
        pull = np.zeros(m, dtype=np.int64)
        before = last = -1
        while waiting.any():
            before, last = last, int(np.where(waiting, pull, -1).argmax())
            waiting[last] = False
            pull += weights[last]
        yield members[last].copy()
        weights[before] += weights[last]
        weights[:, before] += weights[:, last]
        weights[before, before] = 0
        weights[last] = weights[:, last] = 0
        members[before] |= members[last]
        alive[last] = False


@functools.cache
def _every_cut(m: int) -> NDArray[np.bool_]:
    """Return the sides (c, m) of all cuts of m nodes; the last is never on it: each comes once."""
    sides: NDArray[np.bool_] = np.arange(1, 1 << (m - 1))[:, None] >> np.arange(m) & 1 == 1
    sides.flags.writeable = False
    return sides


def _stacked(weights: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.stack(list(candidate_cuts(weights)))
