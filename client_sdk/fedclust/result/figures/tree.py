"""The top of a tree of clusters."""

import numpy as np

from fedclust.numeric.array_types import FloatArray
from fedclust.result.drawing import WIDTH, Axis, Figure, grid, short, tag, text
from fedclust.result.facts import Facts
from fedclust.result.figures.sizes import cluster_key, key_height, look_of
from fedclust.result.wording import joined
from fedclust.schema.display import counted
from fedclust.schema.result import Dendrogram
from fedclust.wire.errors import UsageError

#: Height of a leaf's line.
_STEP = 15.0
_TOP, _LEFT, _LABELS = 30.0, 16.0, 150.0
#: Least distance between the names of two cuts.
_NAME = 42.0
_JOINING = "#555555"
#: Measured in docs/results/table_one.md.
_OF_GROUPS = "; of groups, not of persons"


def places(tree: Dendrogram) -> tuple[FloatArray, FloatArray]:
    """Return the place (2T - 1,) across the leaves, and the height, of every node.

    Leaves stand at 0 to T - 1, so that no branches cross; clusters with low numbers stand first
    where the tree allows it.
    """
    n_leaves = len(tree.sizes)
    below = [[leaf] for leaf in range(n_leaves)]
    for pair in tree.merges.tolist():
        first, second = sorted(pair, key=lambda node: min(tree.clusters[below[node]]))
        below.append(below[first] + below[second])
    across = np.zeros(len(below))
    across[below[-1]] = np.arange(n_leaves)
    for number, pair in enumerate(tree.merges.tolist()):
        across[n_leaves + number] = across[pair].mean()
    return across, np.concatenate([np.zeros(n_leaves), tree.heights])


def cut_height(tree: Dendrogram, n_clusters: int) -> float | None:
    """Return a height at which the tree has ``n_clusters`` branches; None where it has none."""
    heights, at = tree.heights, len(tree.heights) - n_clusters + 1
    if not 0 <= at < len(heights):
        return None
    return float((heights[at] + (heights[at - 1] if at else 0.0)) / 2)


def draw_tree(facts: Facts) -> Figure:
    """Draw the top of the tree, the persons of each leaf, and where it is cut.

    Raises
    ------
    UsageError
        The method builds no tree, or the tree has one leaf.
    """
    tree = facts.result.dendrogram
    if tree is None or not len(tree.heights):
        raise UsageError("there is no tree: `ward` builds one")
    across, heights = places(tree)
    n_leaves = len(tree.sizes)
    bottom = _TOP + _STEP * n_leaves
    x = Axis(0.0, float(heights.max()) * 1.02 or 1.0, WIDTH - _LABELS, _LEFT)
    y = _TOP + _STEP * (across + 0.5)
    parts = grid(x, _TOP, bottom)
    cluster = [{int(k)} for k in tree.clusters]
    for number, pair in enumerate(tree.merges.tolist()):
        node = n_leaves + number
        cluster.append(cluster[pair[0]] | cluster[pair[1]])
        one = len(cluster[node]) == 1
        colour = look_of(min(cluster[node]))["fill"] if one else _JOINING
        a, b = pair
        way = (
            f"M{x(heights[a]):.1f} {y[a]:.1f}H{x(heights[node]):.1f}V{y[b]:.1f}H{x(heights[b]):.1f}"
        )
        parts.append(tag("path", d=way, fill="none", stroke=colour, stroke_width="1.5"))
    for leaf, size in enumerate(tree.sizes.tolist()):
        k = int(tree.clusters[leaf])
        at = float(y[leaf])
        square = {"x": WIDTH - _LABELS + 4, "y": at - 5, "width": 10.0, "height": 10.0}
        words = f"{k}: {counted(size, 'person')}"
        parts.append(tag("rect", **square, **look_of(k)))
        parts.append(text(WIDTH - _LABELS + 18, at + 4, words, "start"))
    cuts = _cuts(facts, tree)
    named: list[float] = []
    for k, height in sorted(cuts.items(), key=lambda each: each[0] != len(facts.clusters)):
        place = x(height)
        down = f"M{place:.1f} {_TOP - 8:.1f}V{bottom:.1f}"
        parts.append(tag("path", d=down, stroke="#222222", stroke_dasharray="4 3"))
        if all(abs(place - other) >= _NAME for other in named):
            parts.append(text(place, _TOP - 12, f"K = {k}", "middle"))
            named.append(place)
    name = "height in the scaled space; at the right the cluster and the persons of each leaf"
    parts.append(text(_LEFT, bottom + 34, name + _OF_GROUPS * facts.of_groups, "start"))
    last = ", ".join(short(float(height)) for height in tree.heights[::-1][:5])
    described = f"{n_leaves} leaves of {tree.n_cells} cells. The last merges are at {last}. "
    described += joined(f"K = {k} is cut at {short(height)}" for k, height in cuts.items())
    parts += cluster_key(facts, _LEFT, bottom + 56)
    return Figure(parts, bottom + 44 + key_height(facts), "Top of the tree of clusters", described)


def _cuts(facts: Facts, tree: Dendrogram) -> dict[int, float]:
    """Return where the tree is cut at each K of the session."""
    sweep = facts.result.sweep or ()
    ks = [entry.n_clusters for entry in sweep] or [len(facts.clusters)]
    heights = {k: cut_height(tree, k) for k in ks}
    return {k: height for k, height in heights.items() if height is not None}
