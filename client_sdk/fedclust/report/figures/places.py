"""The clusters on two axes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedclust.errors import UsageError
from fedclust.report.drawing import (
    BOTTOM,
    LEFT,
    PALETTE,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Figure,
    frame,
    ruler,
    tag,
    text,
    ticks,
)
from fedclust.report.facts import Facts

__all__ = ["draw_centroids"]

#: Most centroids of which the closest are looked for.
_MOST_PAIRED = 200


def draw_centroids(facts: Facts) -> Figure:
    """Draw the centroids on their first two principal axes; two of them on their line.

    Raises
    ------
    UsageError
        The result has no clusters.
    """
    pair = len(facts.clusters) == 2
    height = 150.0 if pair else 360.0
    positions, explained = facts.axes
    if not facts.clusters:
        raise UsageError("the result has no clusters")
    across, upward = ([float(value) for value in axis] for axis in positions.T)
    x = Axis.around(across, LEFT, WIDTH - RIGHT, 0.15)
    y = Axis.around(upward, height - BOTTOM, TOP, 0.2)
    marks = ticks(x.least, x.most)
    if pair:
        # A second axis would hold nothing but zeros.
        parts = ruler(x, y(0.0), y.low, "the line through the two centroids", marks)
    else:
        first, second = (f"{100 * share:.0f} %" for share in explained)
        names = f"first principal axis, {first}", f"second, {second}"
        parts = frame(x, y, *names, marks)
    most = max(cluster.size or 0 for cluster in facts.clusters) or 1
    for k, (cluster, a, b) in enumerate(zip(facts.clusters, across, upward, strict=True)):
        radius = 8 + 16 * math.sqrt((cluster.size or 0) / most)
        look = {"fill": PALETTE[k % len(PALETTE)], "fill_opacity": "0.45", "stroke": "#333"}
        parts.append(tag("circle", cx=x(a), cy=y(b), r=radius, **look))
        parts.append(text(x(a), y(b) + 4, str(cluster.number), "middle", font_weight="600"))
    axes = "line through both" if pair else "two axes along which they differ most"
    described = (
        f"Centroids in the scaled space, on the {axes}; the area stands for the size."
        f"{_closest(positions)}"
    )
    title = "Centroids on a line" if pair else "Centroids in two dimensions"
    return Figure(parts, height, title, described)


def _closest(positions: NDArray[np.float64]) -> str:
    """Return which two of several places (K, 2) are closest, and which furthest apart."""
    if not 2 < len(positions) <= _MOST_PAIRED:
        return ""
    apart = np.linalg.norm(positions[:, None] - positions, axis=2)
    pairs = np.triu_indices(len(positions), 1)
    near, far = apart[pairs].argmin(), apart[pairs].argmax()
    (a, c), (b, d) = ((int(pairs[0][i]), int(pairs[1][i])) for i in (near, far))
    return f" Clusters {a} and {c} are closest, clusters {b} and {d} furthest apart."
