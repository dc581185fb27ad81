"""Microaggregation: a partition of points into groups of a least size, of similar points each.

The groups are the smallest nodes of Ward's tree that hold enough points, improved by exchanges.
Few points make one tree; more are first cut into blocks along principal axes; very many are grouped
by these cuts alone. All matrix products are of integers and therefore exact: groups do
not depend on the CPU's kernels.

References
----------
Ward, "Hierarchical grouping to optimize an objective function", JASA 1963.
Domingo-Ferrer and Mateo-Sanz, "Practical data-oriented microaggregation for statistical disclosure
control", IEEE TKDE 14(1), 2002: groups of p to 2p - 1 records lose the least.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray

SmallIntArray = NDArray[np.int16]

#: Points of one Ward tree: its time grows with the square, its groups hardly improve.
_BLOCK = 1_000
#: Above this number of points the cuts along principal axes form the groups themselves.
_MOST_FOR_WARD = 50_000
#: Sweeps over a block's points that look for a better group. Later sweeps move few points.
_SWEEPS = 2
#: Nearest groups that the rows of a dissolved group may join.
_NEIGHBOURS = 16
#: Steps of the power iteration that finds a principal axis. A rough axis is enough to cut along.
_POWER_STEPS = 2
#: Rows of a part from which its axis is found.
_SAMPLE = 32
#: Cuts are made between integers of at most this size, so that their sums of products are exact on
#: every processor.
_LARGEST = 2**15 - 1
#: Rows processed at once: few enough for the processor's cache.
_CHUNK = 2**12
#: Smaller relative gains are rounding errors.
_TOLERANCE = 1e-9


def form_groups(points: FloatArray, least: int, ties: Sequence[FloatArray] = ()) -> IntArray:
    """Partition points into groups of ``least`` to ``2 * least - 1`` similar points.

    The partition depends on the values of points and ties, not on their order.

    Parameters
    ----------
    points : (n, d) float64
        Scaled, without missing values.
    least : int
        At least 1. Fewer than ``2 * least`` points form one group.
    ties : sequence of (n,) float64
        Further columns, by which equal points are ordered.

    Returns
    -------
    (n,) int64
        The group of each point, numbered from 0 in the order of the sorted rows.
    """
    n = len(points)
    if n < 2 * least or least == 1:
        return np.zeros(n, dtype=np.int64) if least > 1 else np.arange(n)
    order = value_order([*points.T, *ties])
    integers = to_integers(points)[order]
    if n > _MOST_FOR_WARD:
        found = _halve(integers, least, 2 * least - 1)
    else:
        blocks = _halve(integers, least, _BLOCK)
        found = _group_by_trees(points[order], least, blocks)
    labels = np.empty(n, dtype=np.int64)
    _, first, found = np.unique(found, return_index=True, return_inverse=True)
    labels[order] = np.argsort(np.argsort(first))[found]
    return labels


def value_order(columns: Sequence[FloatArray | IntArray]) -> IntArray:
    """Return the order (n,) of rows by their first column, then by the next."""
    n = len(columns[0])
    order, tied = np.arange(n), np.arange(n)
    run = np.zeros(n, dtype=np.int64)
    for column in columns:
        # Only points that are equal in all coordinates before: mostly few after the first.
        rows = order[tied]
        rows = rows[np.lexsort((column[rows], run))]
        order[tied] = rows
        begins = np.append(True, (np.diff(run) > 0) | (np.diff(column[rows]) > 0.0))
        run = np.cumsum(begins)
        equal = ~(begins & np.append(begins[1:], True))
        tied, run = tied[equal], run[equal]
        if not len(tied):
            break
    return order


def _group_by_trees(rows: FloatArray, least: int, blocks: IntArray) -> IntArray:
    found = np.empty(len(rows), dtype=np.int64)
    first = 0
    for block in range(int(blocks.max()) + 1):
        members = np.flatnonzero(blocks == block)
        labels = _group_block(rows[members], least)
        found[members] = first + labels
        first += int(labels.max()) + 1
    return found


# --- Ward's tree ----------------------------------------------------------------------------------


def _group_block(rows: FloatArray, least: int) -> IntArray:
    if len(rows) < 2 * least:
        return np.zeros(len(rows), dtype=np.int64)
    # Imported here: only sites form groups.
    from scipy.cluster.hierarchy import linkage, to_tree

    nodes, branches = _cut_tree(to_tree(linkage(rows, "ward")), least)
    groups = _Groups(rows, nodes, least)
    for branch in branches:
        groups.attach(branch)
    groups.split_large()
    groups.exchange()
    groups.dissolve()
    groups.exchange()
    return groups.labels


def _cut_tree(root: Any, least: int) -> tuple[list[IntArray], list[IntArray]]:
    """Return the smallest nodes with at least ``least`` points, and the smaller branches."""
    nodes: list[IntArray] = []
    branches: list[IntArray] = []
    pending = [root]
    while pending:
        node = pending.pop()
        children = [] if node.is_leaf() else [node.get_right(), node.get_left()]
        if any(child.get_count() >= least for child in children):
            pending += children
        else:
            found = nodes if node.get_count() >= least else branches
            found.append(np.sort(node.pre_order()))
    return nodes, branches


class _Groups:
    """The groups of one block while they are improved.

    ``labels`` (n,) of the rows; ``means`` (m, d) and ``totals`` (m,), the rows of each group.
    """

    def __init__(self, rows: FloatArray, nodes: list[IntArray], least: int) -> None:
        self.rows, self.least = rows, least
        self.labels = np.full(len(rows), -1, dtype=np.int64)
        self.means = np.zeros((len(nodes), rows.shape[1]))
        self.totals = np.zeros(len(nodes))
        for group, members in enumerate(nodes):
            self._assign(members, group)

    def _assign(self, members: IntArray, group: int) -> None:
        self.labels[members] = group
        self._measure(group)

    def _measure(self, group: int) -> None:
        members = np.flatnonzero(self.labels == group)
        self.totals[group] = len(members)
        self.means[group] = self.rows[members].mean(axis=0)

    def attach(self, branch: IntArray) -> None:
        """Add a branch that is too small for a group where it costs least (Ward's cost)."""
        total = len(branch)
        gaps = ((self.means - self.rows[branch].mean(axis=0)) ** 2).sum(axis=1)
        costs = gaps * self.totals * total / (self.totals + total)
        self._assign(branch, int(costs.argmin()))

    def split_large(self) -> None:
        """Split groups of twice the least size or more where that leaves the least inertia."""
        for group in np.flatnonzero(self.totals >= 2 * self.least):
            self._replace([int(group)], self._split(np.flatnonzero(self.labels == group)))

    def dissolve(self) -> None:
        """Give a group's rows to its neighbours, and split these, where that lowers the inertia."""
        for group in np.flatnonzero(self.totals):
            if not self.totals[group]:
                continue  # Dissolved earlier in this loop.
            gaps = ((self.means - self.means[group]) ** 2).sum(axis=1)
            gaps[(self.totals == 0.0) | (np.arange(len(gaps)) == group)] = np.inf
            near = np.argsort(gaps, kind="stable")[: min(_NEIGHBOURS, np.isfinite(gaps).sum())]
            if not len(near):
                return
            rows = np.flatnonzero(self.labels == group)
            joined = near[self._nearest(rows, self.means[near], self.totals[near])]
            before, pieces = [rows], []
            for other in np.unique(joined):
                before.append(np.flatnonzero(self.labels == other))
                pieces += self._split(np.sort(np.append(before[-1], rows[joined == other])))
            saved = sum(map(self._inertia, before)) - sum(map(self._inertia, pieces))
            if saved > _TOLERANCE * self._inertia(rows):
                self._replace([int(group), *np.unique(joined).tolist()], pieces)

    def _nearest(self, rows: IntArray, means: FloatArray, totals: FloatArray) -> IntArray:
        """Return which group each row joins, one after another; changes means and totals."""
        joined = np.empty(len(rows), dtype=np.int64)
        for at, row in enumerate(rows):
            gaps = ((means - self.rows[row]) ** 2).sum(axis=1)
            joined[at] = group = int((gaps * totals / (totals + 1.0)).argmin())
            totals[group] += 1.0
            means[group] += (self.rows[row] - means[group]) / totals[group]
        return joined

    def _inertia(self, members: IntArray) -> float:
        rows = self.rows[members]
        return float(((rows - rows.mean(axis=0)) ** 2).sum())

    def _split(self, members: IntArray) -> list[IntArray]:
        """Halve members until no part has twice the least size, as far as they can be cut."""
        pieces, pending = [], [members]
        while pending:
            part = pending.pop()
            if len(part) < 2 * self.least:
                pieces.append(part)
            else:
                upper = _best_half(self.rows[part], self.least)
                pending += [part[upper], np.delete(part, upper)]
        return pieces

    def _replace(self, groups: list[int], pieces: list[IntArray]) -> None:
        """Make ``pieces`` groups in place of ``groups``."""
        n_more = max(len(pieces) - len(groups), 0)
        groups = [*groups, *range(len(self.totals), len(self.totals) + n_more)]
        self.means = np.vstack([self.means, np.zeros((n_more, self.rows.shape[1]))])
        self.totals = np.append(self.totals, np.zeros(n_more))
        self.totals[groups] = 0.0
        for group, members in zip(groups, pieces, strict=False):
            self.labels[members] = group
        for group in groups[: len(pieces)]:
            self._measure(group)

    def exchange(self) -> None:
        """Move rows to other groups where that lowers the sum of squares.

        The group that a row leaves keeps the least size; the other stays below twice that.
        """
        for _ in range(_SWEEPS):
            moved = False
            for row, point in enumerate(self.rows):
                old = int(self.labels[row])
                rest = self.totals[old] - 1.0
                if rest < self.least:
                    continue
                gaps = ((self.means - point) ** 2).sum(axis=1)
                saved = gaps[old] * self.totals[old] / rest
                costs = gaps * self.totals / (self.totals + 1.0)
                full = self.totals + 1.0 >= 2 * self.least
                costs[full | (self.totals == 0.0)] = np.inf
                costs[old] = np.inf
                new = int(costs.argmin())
                if costs[new] >= saved * (1.0 - _TOLERANCE):
                    continue
                self.means[old] -= (point - self.means[old]) / rest
                self.means[new] += (point - self.means[new]) / (self.totals[new] + 1.0)
                self.totals[old] -= 1.0
                self.totals[new] += 1.0
                self.labels[row] = new
                moved = True
            if not moved:
                return


def _best_half(rows: FloatArray, least: int) -> IntArray:
    """Return the upper part of the best cut along the principal axis of ``2 * least`` rows or more.

    Both parts have at least ``least`` rows.
    """
    integers = to_integers(rows).astype(np.float64)
    order = np.argsort(integers @ _principal_axes(integers[None])[0], kind="stable")
    n = len(rows)
    below = np.arange(1.0, n)
    sums = np.cumsum(rows[order] - rows.mean(axis=0), axis=0)
    lower = (sums[:-1] ** 2).sum(axis=1) / below
    upper = ((sums[-1] - sums[:-1]) ** 2).sum(axis=1) / (n - below)
    between = (lower + upper)[least - 1 : n - least]
    return np.asarray(order[least + int(between.argmax()) :])


# --- cuts along principal axes --------------------------------------------------------------------


def _halve(integers: SmallIntArray, least: int, most: int) -> IntArray:
    """Halve rows along principal axes until each part has at most ``most``, never below ``least``.

    Rows are sorted by value, and of rows that are equally low along an axis the first ones go to
    the lower half.

    Returns
    -------
    (n,) int64
        The part of each row, numbered from 0.
    """
    n = len(integers)
    if n <= max(_CHUNK, most, 2 * least - 1):
        return _halve_together(integers.astype(np.float64), least, most)
    axis = _principal_axes(_sample(integers[None], n))[0]
    places = np.empty(n)
    for begin in range(0, n, _CHUNK):
        places[begin : begin + _CHUNK] = integers[begin : begin + _CHUNK].astype(np.float64) @ axis
    lower = _mark_lowest(places[None], (n + 1) // 2)[0]
    labels = np.empty(n, dtype=np.int64)
    labels[lower] = below = _halve(integers[lower], least, most)
    labels[~lower] = below.max() + 1 + _halve(integers[~lower], least, most)
    return labels


def _halve_together(rows: FloatArray, least: int, most: int) -> IntArray:
    """Do what :func:`_halve` does for all parts at once.

    The sizes of two parts differ by at most one, so that all parts fit into one array.
    """
    labels = np.empty(len(rows), dtype=np.int64)
    members, sizes, first = np.arange(len(rows))[None, :], np.array([len(rows)]), 0
    while True:
        small = sizes <= max(most, 2 * least - 1)
        finished = members[small][np.arange(members.shape[1]) < sizes[small, None]]
        labels[finished] = first + np.repeat(np.arange(small.sum()), sizes[small])
        if small.all():
            return labels
        first += int(small.sum())
        members, sizes = members[~small], sizes[~small]
        n_parts, width = members.shape
        least_size = int(sizes.min())
        half = (least_size + 1) // 2
        parts = rows.take(members, axis=0)
        axes = _principal_axes(_sample(parts, least_size))
        places = (parts @ axes[:, :, None])[:, :, 0]
        places[np.arange(width) >= sizes[:, None]] = np.inf
        lower = _mark_lowest(places, half)
        halves = np.zeros((2 * n_parts, max(half, width - half)), dtype=np.int64)
        halves[0::2, :half] = members[lower].reshape(n_parts, half)
        halves[1::2, : width - half] = members[~lower].reshape(n_parts, width - half)
        members, sizes = halves, np.column_stack([np.full(n_parts, half), sizes - half]).ravel()


def _sample(parts: SmallIntArray | FloatArray, least: int) -> FloatArray:
    """Return evenly spaced rows of each part of at least ``least`` rows."""
    return parts[:, : least : max(1, least // _SAMPLE)].astype(np.float64)


def _mark_lowest(places: FloatArray, count: int) -> BoolArray:
    """Mark the ``count`` lowest values in each row; of equal ones the first."""
    highest = np.partition(places, count - 1, axis=1)[:, count - 1, None]
    lower, level = places < highest, places == highest
    lacking = count - lower.sum(axis=1, keepdims=True)
    return np.asarray(lower | (level & (level.cumsum(axis=1) <= lacking)))


def _principal_axes(parts: FloatArray) -> FloatArray:
    """Return the principal axis of each part of integers: (parts, k, d) to (parts, d)."""
    centred = parts - np.rint(parts.mean(axis=1, keepdims=True))
    spread = np.einsum("ijk,ijk->ik", centred, centred)
    axes = np.zeros(spread.shape)
    axes[np.arange(len(parts)), spread.argmax(axis=1)] = 1.0
    for _ in range(_POWER_STEPS):
        places = _round_scaled(centred @ axes[:, :, None])
        axes = _round_scaled(np.swapaxes(centred, 1, 2) @ places)[:, :, 0]
    return axes


def _round_scaled(vectors: FloatArray) -> FloatArray:
    """Scale vectors (parts, k, 1) to the same largest size, and round them to integers."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    return np.asarray(np.rint(vectors * (_LARGEST / np.maximum(largest, 1.0))))


def to_integers(points: FloatArray) -> SmallIntArray:
    """Scale points (n, d) to a fixed largest size, and round them to integers."""
    largest = max(float(points.max()), -float(points.min()), np.finfo(np.float64).tiny)
    integers = np.empty(points.shape, dtype=np.int16)
    for begin in range(0, len(points), _CHUNK):
        some = slice(begin, begin + _CHUNK)
        integers[some] = np.rint(points[some] / largest * _LARGEST)
    return integers
