"""Groups of similar persons, each of at least a given size.

The groups are the smallest nodes of Ward's tree that hold enough persons. Small sites use one
tree; larger ones first cut their persons into blocks along principal axes; very large ones use
these cuts alone. All matrix products are of whole numbers and so exact: groups do not depend on the
CPU's kernels.

References
----------
Ward, "Hierarchical grouping to optimize an objective function", JASA 1963.
Domingo-Ferrer and Mateo-Sanz, "Practical data-oriented microaggregation for statistical disclosure
control", IEEE TKDE 14(1), 2002: groups of p to 2p - 1 records lose the least.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOST_GROUPS", "form_groups", "least_group_size"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
WholeArray = NDArray[np.int16]

#: A site keeps at most this many groups; above it, the least size grows with the site.
MOST_GROUPS = 200_000
#: Persons of one Ward tree: its time grows with the square, its groups hardly improve.
_BLOCK = 1_000
#: Above this number of persons the cuts along principal axes form the groups themselves.
_MOST_FOR_WARD = 50_000
#: Passes over a block's persons that look for a better group. Later passes move few persons.
_SWEEPS = 2
#: Groups next to one that is dissolved, which its rows may join.
_NEIGHBOURS = 16
#: Steps of the power iteration that finds a principal axis. A rough axis is enough to cut along.
_POWER_STEPS = 2
#: Rows of a part that its axis is found from.
_SAMPLE = 32
#: Cuts are made between whole numbers of at most this size, so that their sums of products are
#: exact on every processor.
_LARGEST = 2**15 - 1
#: Rows that are handled at once: few enough for the processor's cache.
_CHUNK = 2**12


def least_group_size(n_persons: int, p: int, *, has_levels: bool) -> int:
    """Return the least number of persons in a group of a site.

    Parameters
    ----------
    n_persons : int
        Persons of the site.
    p : int
        The least number of persons behind every released number.
    has_levels : bool
        Whether the table has yes/no columns or columns of levels. Their counts need groups of 2p.
    """
    least = 2 * p if has_levels else p
    return max(least, -(-n_persons // MOST_GROUPS))


def form_groups(points: FloatArray, least: int, sizes: IntArray | None = None) -> IntArray:
    """Partition points into groups of similar points.

    Every group weighs at least ``least``. Groups of single persons have fewer than ``2 * least``.
    The partition depends on the values alone, not on their order, but for equal rows.

    Parameters
    ----------
    points : (n, d) float64
        Scaled, without missing values.
    least : int
        At least 1. Fewer than ``2 * least`` persons form one group.
    sizes : (n,) int64, optional
        Persons that each point stands for; one each where it is absent.

    Returns
    -------
    (n,) int64
        The group of each point, numbered from 0 in the order of the sorted rows.
    """
    n = len(points)
    weights = np.ones(n, dtype=np.int64) if sizes is None else sizes
    if weights.sum() < 2 * least or least == 1:
        return np.zeros(n, dtype=np.int64) if least > 1 else np.arange(n)
    order = _by_value(points)
    whole, mass = _whole(points)[order], weights[order]
    # So many rows weigh at least ``least``, whichever they are.
    count = -(-least // int(mass.min()))
    if n > _MOST_FOR_WARD:
        found = _halved(whole, count, 2 * count - 1)
    else:
        found = _grouped_by_trees(points[order], mass, least, _halved(whole, count, _BLOCK))
    labels = np.empty(n, dtype=np.int64)
    labels[order] = _numbered(found)
    return labels


def _by_value(points: FloatArray) -> IntArray:
    """Return the order (n,) of points (n, d) by their first coordinate, then by the next."""
    order, tied = np.arange(len(points)), np.arange(len(points))
    run = np.zeros(len(points), dtype=np.int64)
    for column in points.T:
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


def _grouped_by_trees(rows: FloatArray, mass: IntArray, least: int, blocks: IntArray) -> IntArray:
    found = np.empty(len(rows), dtype=np.int64)
    first = 0
    for block in range(int(blocks.max()) + 1):
        members = np.flatnonzero(blocks == block)
        labels = _tree_groups(rows[members], mass[members], least)
        found[members] = first + labels
        first += int(labels.max()) + 1
    return found


def _numbered(labels: IntArray) -> IntArray:
    """Number labels by their first occurrence."""
    first = np.full(int(labels.max()) + 1, len(labels))
    np.minimum.at(first, labels, np.arange(len(labels)))
    return np.argsort(np.argsort(first))[labels]


# --- Ward's tree ----------------------------------------------------------------------------------


def _tree_groups(rows: FloatArray, mass: IntArray, least: int) -> IntArray:
    """Group the rows of one block."""
    if len(rows) == 1 or mass.sum() < 2 * least:
        return np.zeros(len(rows), dtype=np.int64)
    # Imported here: only sites form groups.
    from scipy.cluster.hierarchy import linkage

    nodes, branches = _cut_tree(linkage(rows, "ward"), mass, least)
    groups = _Groups(rows, mass, nodes)
    for branch in branches:
        groups.attach(branch)
    groups.halve(least)
    groups.exchange(least)
    groups.dissolve(least)
    groups.exchange(least)
    return groups.labels


def _cut_tree(
    tree: FloatArray, mass: IntArray, least: int
) -> tuple[list[IntArray], list[IntArray]]:
    """Return the smallest nodes that weigh at least ``least``, and the smaller branches."""
    n = len(mass)
    children = tree[:, :2].astype(np.int64)
    weight = np.concatenate([mass, np.zeros(n - 1, dtype=np.int64)])
    for step, (left, right) in enumerate(children):
        weight[n + step] = weight[left] + weight[right]
    nodes: list[IntArray] = []
    branches: list[IntArray] = []
    pending = [2 * n - 2]
    while pending:
        node = pending.pop()
        if weight[node] < least:
            branches.append(_leaves(children, node, n))
            continue
        split = node >= n and max(weight[children[node - n]]) >= least
        if split:
            pending += [int(child) for child in children[node - n][::-1]]
        else:
            nodes.append(_leaves(children, node, n))
    return nodes, branches


def _leaves(children: IntArray, node: int, n: int) -> IntArray:
    found: list[int] = []
    pending = [node]
    while pending:
        each = pending.pop()
        if each < n:
            found.append(each)
        else:
            pending += [int(child) for child in children[each - n]]
    return np.sort(np.array(found, dtype=np.int64))


@dataclass
class _Groups:
    """The groups of one block while they are improved: labels (n,), means and weights by group."""

    rows: FloatArray
    mass: IntArray
    nodes: list[IntArray]
    labels: IntArray = field(init=False)
    means: FloatArray = field(init=False)
    weights: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self.labels = np.full(len(self.rows), -1, dtype=np.int64)
        self.means = np.zeros((len(self.nodes), self.rows.shape[1]))
        self.weights = np.zeros(len(self.nodes))
        for group, members in enumerate(self.nodes):
            self.labels[members] = group
            self._measure(group)

    def _measure(self, group: int) -> None:
        members = self.labels == group
        mass = self.mass[members].astype(np.float64)
        self.weights[group] = mass.sum()
        self.means[group] = (self.rows[members] * mass[:, None]).sum(axis=0) / mass.sum()

    def _costs(self, mean: FloatArray, weight: float) -> FloatArray:
        """Return what a merger with each group adds to the sum of squares (Ward's cost)."""
        gaps = ((self.means - mean) ** 2).sum(axis=1)
        return np.asarray(gaps * self.weights * weight / (self.weights + weight))

    def attach(self, branch: IntArray) -> None:
        """Add a branch that is too small for a group to the nearest group."""
        mass = self.mass[branch].astype(np.float64)
        mean = (self.rows[branch] * mass[:, None]).sum(axis=0) / mass.sum()
        nearest = int(self._costs(mean, mass.sum()).argmin())
        self.labels[branch] = nearest
        self._measure(nearest)

    def halve(self, least: int) -> None:
        """Split groups of twice the least size or more where that leaves the least inertia."""
        for group in np.flatnonzero(self.weights >= 2 * least):
            self._replace([int(group)], self._pieces(np.flatnonzero(self.labels == group), least))

    def dissolve(self, least: int) -> None:
        """Give a group's rows to its neighbours, and split these, where that lowers the inertia."""
        for group in np.flatnonzero(self.weights):
            if not self.weights[group]:
                continue  # It has gone to its neighbours meanwhile.
            gaps = ((self.means - self.means[group]) ** 2).sum(axis=1)
            gaps[(self.weights == 0.0) | (np.arange(len(gaps)) == group)] = np.inf
            near = np.argsort(gaps, kind="stable")[: min(_NEIGHBOURS, np.isfinite(gaps).sum())]
            if not len(near):
                return
            rows = np.flatnonzero(self.labels == group)
            homes = near[self._homes(rows, self.means[near], self.weights[near])]
            before, pieces = [rows], []
            for home in np.unique(homes):
                before.append(np.flatnonzero(self.labels == home))
                pieces += self._pieces(np.sort(np.append(before[-1], rows[homes == home])), least)
            saved = sum(map(self._inertia, before)) - sum(map(self._inertia, pieces))
            if saved > 1e-9 * self._inertia(rows):
                self._replace([int(group), *np.unique(homes).tolist()], pieces)

    def _homes(self, rows: IntArray, means: FloatArray, weights: FloatArray) -> IntArray:
        """Return which group each row joins, one after another; changes means and weights."""
        homes = np.empty(len(rows), dtype=np.int64)
        for place, row in enumerate(rows):
            mass = float(self.mass[row])
            gaps = ((means - self.rows[row]) ** 2).sum(axis=1)
            homes[place] = home = int((gaps * weights * mass / (weights + mass)).argmin())
            weights[home] += mass
            means[home] += (self.rows[row] - means[home]) * mass / weights[home]
        return homes

    def _inertia(self, members: IntArray) -> float:
        rows, mass = self.rows[members], self.mass[members].astype(np.float64)
        mean = (rows * mass[:, None]).sum(axis=0) / mass.sum()
        return float((((rows - mean) ** 2).sum(axis=1) * mass).sum())

    def _pieces(self, members: IntArray, least: int) -> list[IntArray]:
        """Halve members until no part weighs twice the least size, as far as they can be cut."""
        pieces, pending = [], [members]
        while pending:
            part = pending.pop()
            upper = None
            if self.mass[part].sum() >= 2 * least:
                upper = _best_half(self.rows[part], self.mass[part], least)
            if upper is None:
                pieces.append(part)
            else:
                pending += [part[upper], np.delete(part, upper)]
        return pieces

    def _replace(self, groups: list[int], pieces: list[IntArray]) -> None:
        """Make ``pieces`` groups in place of ``groups``."""
        more = max(len(pieces) - len(groups), 0)
        groups = [*groups, *range(len(self.weights), len(self.weights) + more)]
        self.means = np.vstack([self.means, np.zeros((more, self.rows.shape[1]))])
        self.weights = np.append(self.weights, np.zeros(more))
        self.weights[groups] = 0.0
        for group, members in zip(groups, pieces, strict=False):
            self.labels[members] = group
        for group in groups[: len(pieces)]:
            self._measure(group)

    def exchange(self, least: int) -> None:
        """Move rows to other groups where that lowers the sum of squares.

        The group that is left keeps the least size; the other stays below twice that.
        """
        for _ in range(_SWEEPS):
            moved = False
            for row, mass in enumerate(self.mass.astype(np.float64)):
                old = int(self.labels[row])
                rest = self.weights[old] - mass
                if rest < least:
                    continue
                gaps = ((self.means - self.rows[row]) ** 2).sum(axis=1)
                saved = gaps[old] * self.weights[old] * mass / rest
                costs = gaps * self.weights * mass / (self.weights + mass)
                costs[(self.weights + mass >= 2 * least) | (self.weights == 0.0)] = np.inf
                costs[old] = np.inf
                new = int(costs.argmin())
                if costs[new] >= saved * (1.0 - 1e-9):
                    continue
                step = self.rows[row]
                self.means[old] -= (step - self.means[old]) * mass / rest
                self.means[new] += (step - self.means[new]) * mass / (self.weights[new] + mass)
                self.weights[old] -= mass
                self.weights[new] += mass
                self.labels[row] = new
                moved = True
            if not moved:
                return


def _best_half(rows: FloatArray, mass: IntArray, least: int) -> IntArray | None:
    """Return the upper part of the best cut along the principal axis; None where there is none."""
    whole = _whole(rows).astype(np.float64)
    order = np.argsort(whole @ _principal_axes(whole[None])[0], kind="stable")
    weights = mass[order].astype(np.float64)
    below = np.cumsum(weights)[:-1]
    above = weights.sum() - below
    centred = rows[order] - rows.mean(axis=0)
    sums = np.cumsum(centred * weights[:, None], axis=0)
    lower = (sums[:-1] ** 2).sum(axis=1) / below
    upper = ((sums[-1] - sums[:-1]) ** 2).sum(axis=1) / above
    between = np.where((below >= least) & (above >= least), lower + upper, -np.inf)
    if not len(between) or between.max() == -np.inf:
        return None
    return np.asarray(order[int(between.argmax()) + 1 :])


# --- cuts along principal axes --------------------------------------------------------------------


def _halved(whole: WholeArray, least: int, most: int) -> IntArray:
    """Halve rows along principal axes until each part has at most ``most``.

    No part has fewer than ``least`` rows. Of rows that are equally low along an axis the first are
    in the lower half: rows are in the order of their values.

    Returns
    -------
    (n,) int64
        The part of each row, numbered from 0.
    """
    n = len(whole)
    if n <= max(_CHUNK, most, 2 * least - 1):
        return _halved_together(whole.astype(np.float64), least, most)
    axis = _principal_axes(_sample(whole[None], n))[0]
    places = np.empty(n)
    for begin in range(0, n, _CHUNK):
        places[begin : begin + _CHUNK] = whole[begin : begin + _CHUNK].astype(np.float64) @ axis
    lower = _lowest(places[None], (n + 1) // 2)[0]
    labels = np.empty(n, dtype=np.int64)
    labels[lower] = below = _halved(whole[lower], least, most)
    labels[~lower] = below.max() + 1 + _halved(whole[~lower], least, most)
    return labels


def _halved_together(rows: FloatArray, least: int, most: int) -> IntArray:
    """Halve as :func:`_halved` does, all parts at once.

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
        lower = _lowest(places, half)
        halves = np.zeros((2 * n_parts, max(half, width - half)), dtype=np.int64)
        halves[0::2, :half] = members[lower].reshape(n_parts, half)
        halves[1::2, : width - half] = members[~lower].reshape(n_parts, width - half)
        members, sizes = halves, np.column_stack([np.full(n_parts, half), sizes - half]).ravel()


def _sample(parts: WholeArray | FloatArray, least: int) -> FloatArray:
    """Return rows at even distances of each part of at least ``least`` rows."""
    return parts[:, : least : max(1, least // _SAMPLE)].astype(np.float64)


def _lowest(places: FloatArray, count: int) -> NDArray[np.bool_]:
    """Return which ``count`` places in each row are lowest; of equal ones the first."""
    highest = np.partition(places, count - 1, axis=1)[:, count - 1, None]
    lower, level = places < highest, places == highest
    lacking = count - lower.sum(axis=1, keepdims=True)
    return np.asarray(lower | (level & (level.cumsum(axis=1) <= lacking)))


def _principal_axes(parts: FloatArray) -> FloatArray:
    """Return the principal axis of each part of whole numbers: (parts, k, d) to (parts, d)."""
    centred = parts - np.rint(parts.mean(axis=1, keepdims=True))
    spread = np.einsum("ijk,ijk->ik", centred, centred)
    axes = np.zeros(spread.shape)
    axes[np.arange(len(parts)), spread.argmax(axis=1)] = 1.0
    for _ in range(_POWER_STEPS):
        places = _rounded(centred @ axes[:, :, None])
        axes = _rounded(np.swapaxes(centred, 1, 2) @ places)[:, :, 0]
    return axes


def _rounded(vectors: FloatArray) -> FloatArray:
    """Return vectors (parts, k, 1) as whole numbers, the largest of each of a set size."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    return np.asarray(np.rint(vectors * (_LARGEST / np.maximum(largest, 1.0))))


def _whole(points: FloatArray) -> WholeArray:
    """Return points (n, d) as whole numbers, the largest of a set size."""
    largest = max(float(points.max()), -float(points.min()), np.finfo(np.float64).tiny)
    whole = np.empty(points.shape, dtype=np.int16)
    for begin in range(0, len(points), _CHUNK):
        some = slice(begin, begin + _CHUNK)
        whole[some] = np.rint(points[some] / largest * _LARGEST)
    return whole
