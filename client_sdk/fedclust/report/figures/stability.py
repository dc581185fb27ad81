"""How far each cluster is found again in resampled data, and which clusters mix."""

from __future__ import annotations

import math

from fedclust.engine.stability import BANDS, band
from fedclust.errors import UsageError
from fedclust.report.drawing import PALETTE, RIGHT, WIDTH, Axis, Figure, ink_on, line, tag, text
from fedclust.report.facts import Facts
from fedclust.report.figures.words import joined
from fedclust.schema.evidence import Stability

__all__ = ["BOUNDS", "draw_consensus", "draw_stability"]

#: Where the bands of the mean Jaccard index begin, after Hennig (2007).
BOUNDS = tuple(sorted(BANDS.values())[-3:])
#: Each band: where it begins, its name in at most two lines, and its background.
_BANDS = (
    (0.0, ("not to be trusted",), "#eeeeee"),
    (BOUNDS[0], ("doubtful", "pattern"), "#e7eff7"),
    (BOUNDS[1], ("stable",), "#cfe1f0"),
    (BOUNDS[2], ("highly", "stable"), "#b6d2e9"),
)
#: Height of a bar with the room below it; width of a bar with room for its number.
_STEP, _ROOM = 26.0, 40.0
#: Clusters of the consensus; of more, the cells would not be seen.
_MOST_CLUSTERS = 60
#: Cells of the consensus: the widest, and the least with room for a number.
_WIDEST, _READABLE = 56.0, 34.0
#: What is the full colour of the consensus.
_BLUE = (33, 102, 172)


def _measured(facts: Facts) -> Stability:
    if facts.result.stability is None:
        raise UsageError("stability was not measured: set the option `stability`")
    return facts.result.stability


def draw_stability(facts: Facts) -> Figure:
    """Draw a bar for each cluster: its mean Jaccard index, before the bands that Hennig names.

    Raises
    ------
    UsageError
        Stability was not measured.
    """
    found = _measured(facts)
    values = [float(value) for value in found.jaccard]
    left, top = 78.0, 40.0
    bottom = top + _STEP * len(values)
    x = Axis(0.0, 1.0, left, WIDTH - RIGHT - 14)
    parts = []
    ends = [*BOUNDS, 1.0]
    for (begin, names, fill), end in zip(_BANDS, ends, strict=True):
        place = {"x": x(begin), "y": top, "width": x(end) - x(begin), "height": bottom - top}
        parts.append(tag("rect", **place, fill=fill))
        for number, name in enumerate(names):
            down = top - 8 - 15 * (len(names) - 1 - number)
            parts.append(text(x((begin + end) / 2), down, name, "middle"))
    for mark in (0.0, 0.2, 0.4, *BOUNDS, 1.0):
        parts.append(line(x(mark), bottom, x(mark), bottom + 4))
        parts.append(text(x(mark), bottom + 18, f"{mark:g}", "middle"))
    for mark in BOUNDS:
        style = {"stroke": "#333333", "stroke_dasharray": "4 3"}
        parts.append(tag("line", x1=x(mark), y1=top, x2=x(mark), y2=bottom, **style))
    fill = PALETTE[0]
    for k, (cluster, value) in enumerate(zip(facts.clusters, values, strict=True)):
        at, wide = top + _STEP * k, x(value) - left
        parts.append(text(left - 8, at + 18, str(cluster.number), "end", font_weight="600"))
        parts.append(tag("rect", x=left, y=at + 5, width=wide, height=16.0, fill=fill))
        inside = wide > _ROOM
        spot, anchor = (x(value) - 6, "end") if inside else (x(value) + 6, "start")
        ink = ink_on(fill) if inside else "#222222"
        parts.append(text(spot, at + 17, f"{value:.2f}", anchor, fill=ink))
    name = "mean Jaccard index, by cluster"
    parts.append(text((x.low + x.high) / 2, bottom + 38, name, "middle"))
    described = f"Mean Jaccard index over {found.n_models} models of resampled data. " + joined(
        f"Cluster {cluster.number}: {value:.2f}, {band(value)}"
        for cluster, value in zip(facts.clusters, values, strict=True)
    )
    return Figure(parts, bottom + 48, "Stability of the clusters", described)


def draw_consensus(facts: Facts) -> Figure:
    """Draw how probably models put a person of one cluster and a person of another together.

    Raises
    ------
    UsageError
        Stability was not measured, or there are one or too many clusters.
    """
    consensus = _measured(facts).consensus
    numbers = [str(cluster.number) for cluster in facts.clusters]
    if len(numbers) < 2:
        raise UsageError("one cluster: there is no other that it could mix with")
    if len(numbers) > _MOST_CLUSTERS:
        raise UsageError(f"the consensus is drawn of at most {_MOST_CLUSTERS} clusters")
    left, top = 78.0, 26.0
    wide = min(_WIDEST, (WIDTH - left - RIGHT) / len(numbers))
    high = min(wide, 36.0)
    parts = [text(left - 8, top - 10, "cluster", "end")]
    every = math.ceil(26.0 / wide), math.ceil(16.0 / high)
    for k, number in enumerate(numbers):
        if k % every[0] == 0:
            parts.append(
                text(left + wide * (k + 0.5), top - 10, number, "middle", font_weight="600")
            )
        if k % every[1] == 0:
            parts.append(
                text(left - 8, top + high * (k + 0.5) + 4, number, "end", font_weight="600")
            )
        for i, value in enumerate(float(each) for each in consensus[k]):
            x, y = left + wide * i, top + high * k
            fill, ink = share_colour(value)
            edge = {"stroke": "#333333" if i == k else "#dddddd"}
            size = {"width": wide - 2, "height": high - 2}
            parts.append(tag("rect", x=x + 1, y=y + 1, **size, fill=fill, **edge))
            if wide >= _READABLE:
                words = f"{value:.2f}"
                parts.append(text(x + wide / 2, y + high / 2 + 4, words, "middle", fill=ink))
    bottom = top + high * len(numbers)
    for step in range(5):
        fill, ink = share_colour(step / 4)
        place = {"x": left + 40 * step, "y": bottom + 14, "width": 38.0, "height": 18.0}
        parts.append(tag("rect", **place, fill=fill, stroke="#bbbbbb"))
        spot = left + 40 * step + 19
        parts.append(text(spot, bottom + 27, f"{step / 4:g}", "middle", fill=ink))
    words = "probability that a model puts two persons together"
    parts.append(text(left + 210, bottom + 27, words, "start"))
    pairs = [
        (float(consensus[k][i]), f"clusters {numbers[i]} and {numbers[k]} {consensus[k][i]:.2f}")
        for k in range(len(numbers))
        for i in range(k)
    ]
    pairs.sort(key=lambda pair: -pair[0])
    within = ", ".join(f"{n} {consensus[k][k]:.2f}" for k, n in enumerate(numbers[:12]))
    described = f"Within clusters: {within}. Between: {joined(words for _, words in pairs)}"
    return Figure(parts, bottom + 42, "Consensus between the clusters", described)


def share_colour(share: float) -> tuple[str, str]:
    """Return the fill of a share, white for 0 and blue for 1, and the ink on it."""
    share = min(max(share, 0.0), 1.0)
    fill = "#" + "".join(f"{round(255 + (value - 255) * share):02x}" for value in _BLUE)
    return fill, ink_on(fill)
