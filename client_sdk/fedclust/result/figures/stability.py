"""How far each cluster is found again in resampled data, and whether it stands apart."""

from __future__ import annotations

from fedclust.errors import UsageError
from fedclust.result.drawing import PALETTE, RIGHT, WIDTH, Axis, Figure, ink_on, line, tag, text
from fedclust.result.facts import Facts
from fedclust.result.figures.words import joined
from fedclust.result.one_cloud import apart_text
from fedclust.rounds.stability import found_again

#: Height of a bar with the room below it; width of a bar with room for its number.
_STEP, _ROOM = 26.0, 40.0
#: Room for the verdict of each cluster, right of its bar.
_VERDICT = 190.0


def draw_stability(facts: Facts) -> Figure:
    """Draw a bar for each cluster: its mean Jaccard index, and whether it stands apart.

    Raises
    ------
    UsageError
        Stability was not measured.
    """
    found = facts.result.stability
    if found is None:
        raise UsageError("stability was not measured: set the option `stability`")
    left, top = 78.0, 14.0
    bottom = top + _STEP * len(found.jaccard)
    x = Axis(0.0, 1.0, left, WIDTH - RIGHT - _VERDICT)
    parts = []
    for mark in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(tag("line", x1=x(mark), y1=top, x2=x(mark), y2=bottom, stroke="#dddddd"))
        parts.append(line(x(mark), bottom, x(mark), bottom + 4))
        parts.append(text(x(mark), bottom + 18, f"{mark:g}", "middle"))
    fill, described = PALETTE[0], []
    for k, cluster in enumerate(facts.clusters):
        value, says = float(found.jaccard[k]), apart_text(facts.result, k)
        at, wide = top + _STEP * k, x(value) - left
        parts.append(text(left - 8, at + 18, str(cluster.number), "end", font_weight="600"))
        parts.append(tag("rect", x=left, y=at + 5, width=wide, height=16.0, fill=fill))
        inside = wide > _ROOM
        spot, anchor = (x(value) - 6, "end") if inside else (x(value) + 6, "start")
        ink = ink_on(fill) if inside else "#222222"
        parts.append(text(spot, at + 17, f"{value:.2f}", anchor, fill=ink))
        parts.append(text(x(1.0) + 10, at + 18, says, "start"))
        again = found_again(float(found.recovered[k]))
        described.append(
            f"Cluster {cluster.number}: {value:.2f}, found again in {again} samples, {says}"
        )
    words = "mean Jaccard index of each cluster in resampled data"
    parts.append(text((left + x(1.0)) / 2, bottom + 38, words, "middle"))
    return Figure(parts, bottom + 48, "How far clusters are found again", joined(described))
