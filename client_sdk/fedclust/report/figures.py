"""The figures of a result, for its report and for notebooks: ``result.plot.profile()``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress

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
    ink_on,
    line,
    line_chart,
    ruler,
    short,
    tag,
    text,
    ticks,
)
from fedclust.report.facts import Cluster, ClusterColumn, Facts

__all__ = [
    "MOST_COLUMNS",
    "Plots",
    "difference_colour",
    "drawn_figures",
    "mean_of",
    "ranked_columns",
]

#: Columns of a heat map; more would not be read.
MOST_COLUMNS = 40
_NAMES = ("profile", "sizes", "mix", "centroids", "convergence", "choice", "bounds")
_CALLS = ", ".join(f"plot.{name}()" for name in _NAMES)
#: Standardised differences that have the full colour.
_FULL = 2.0
#: Most centroids of which the closest are looked for.
_MOST_PAIRED = 200
#: Height of a bar or a row of the heat map.
_STEP = 26.0
#: Most clusters, columns or sites that a figure's description names.
_MOST_JOINED = 12


class Plots:
    """Draws a result's figures.

    Each method returns a :class:`~fedclust.report.drawing.Figure`, which notebooks show and
    ``save("x.svg")`` or ``save("x.png")`` writes, and raises UsageError where the result does not
    hold what it would show.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def __repr__(self) -> str:
        """List the figures that this result has."""
        found = ", ".join(f"{name}()" for name in drawn_figures(self))
        return f"Plots of {self._facts.definition.name}: {found or 'none'}"

    def __call__(self) -> Figure:
        """Raise UsageError: a figure has a name."""
        raise UsageError(f"name the figure: {_CALLS}")

    def __getattr__(self, name: str) -> Figure:
        raise AttributeError(f"there is no figure {name!r}; there are: {_CALLS}")

    def convergence(self) -> Figure:
        """Draw the inertia of every round that has one."""
        values = [
            (each.round, each.inertia)
            for each in self._facts.result.history
            if each.inertia is not None
        ]
        if len(values) < 2:
            raise UsageError("fewer than two rounds have an inertia: there is no line to draw")
        (begin, before), (end, after) = values[0], values[-1]
        described = f"From {short(before)} in round {begin} to {short(after)} in round {end}."
        return line_chart(
            "Inertia by round", "round", "inertia", {"inertia": values}, description=described
        )

    def bounds(self) -> Figure:
        """Draw the best lower and upper bound of the least inertia by round."""
        values = self._facts.bounds_by_round
        if len(values) < 2:
            raise UsageError("no bounds are known by round: this method proves none")
        gap = None if self._facts.result.bounds is None else self._facts.result.bounds.gap
        return line_chart(
            "Lower and upper bound by round",
            "round",
            "inertia",
            {
                "upper bound": [(number, upper) for number, _, upper in values],
                "lower bound": [(number, lower) for number, lower, _ in values],
            },
            description="The best bounds of the least inertia so far, at the end from "
            f"{short(values[-1][1])} to {short(values[-1][2])}. Gap: "
            + ("unknown." if gap is None else f"{100 * gap:.3g} %."),
        )

    def choice(self) -> Figure:
        """Draw silhouette and stability by number of clusters."""
        sweep = self._facts.result.sweep or ()
        lines = {
            "simplified silhouette": [(e.n_clusters, e.simplified_silhouette) for e in sweep],
            "stability": [(each.n_clusters, each.stability) for each in sweep],
        }
        values = [value for points in lines.values() for _, value in points if value is not None]
        if len(sweep) < 2 or not values:
            raise UsageError("one number of clusters was tried: there is nothing to compare")
        best = self._facts.result.n_clusters
        advice = "" if best is None else f" (K = {best} is recommended)"
        words = _joined(
            f"{e.n_clusters} clusters: silhouette {short(e.simplified_silhouette)}, stability "
            f"{short(e.stability)}"
            for e in sweep
        )
        return line_chart(
            "Choosing the number of clusters",
            f"number of clusters{advice}",
            "",
            lines,
            description=f"{words} {self._facts.result.recommendation or ''}".strip(),
            y_range=(min(0.0, *values), max(1.0, *values)),
        )

    def profile(self) -> Figure:
        """Draw a heat map: standardised differences as colours, means as numbers."""
        facts = self._facts
        shown = ranked_columns(facts, MOST_COLUMNS)
        if not shown:
            raise UsageError("no differences are known: the session had no closing evaluation")
        left, top, count = 210.0, 34.0, len(facts.clusters)
        wide = min(90.0, (WIDTH - left - RIGHT) / count)
        every = math.ceil(24.0 / wide)  # Numbers of three digits have room then.
        parts = [
            text(
                left + wide * (k + 0.5), top - 12, str(cluster.number), "middle", font_weight="600"
            )
            for k, cluster in enumerate(facts.clusters)
            if k % every == 0
        ]
        for i, place in enumerate(shown):
            at = top + _STEP * i
            parts.append(text(left - 8, at + 17, _clipped(facts.columns[place].name, 30), "end"))
            for k, cluster in enumerate(facts.clusters):
                entry, x = cluster.entries[place], left + wide * k
                fill, ink = difference_colour(entry.difference)
                parts.append(tag("rect", x=x, y=at, width=wide - 2, height=_STEP - 2, fill=fill))
                if wide >= 34:
                    middle = x + wide / 2 - 1
                    parts.append(text(middle, at + 16, mean_of(entry), "middle", fill=ink, size=11))
        described = (
            f"{len(shown)} columns by {count} clusters; blue is below the mean of all rows, red "
            "above, by standard deviations. "
        ) + _joined(f"Cluster {cluster.number}: {_in_words(cluster)}" for cluster in facts.clusters)
        return Figure(parts, top + _STEP * len(shown) + 8, "Profile of the clusters", described)

    def sizes(self) -> Figure:
        """Draw a bar for each cluster: its persons, by site where sites' parts are known."""
        facts = self._facts
        most = max((cluster.size or 0 for cluster in facts.clusters), default=0)
        if not most:
            raise UsageError("no sizes are known: the session had no closing evaluation")
        parts_of = facts.result.site_sizes
        sites = sorted(parts_of)
        left, top = 60.0, 10.0
        bottom = top + _STEP * len(facts.clusters)
        x = Axis(0.0, most * 1.02, left, WIDTH - RIGHT)
        parts = []
        for mark in ticks(0.0, float(most)):
            parts.append(line(x(mark), top, x(mark), bottom))
            parts.append(text(x(mark), bottom + 15, short(mark), "middle", size=11))
        for k, cluster in enumerate(facts.clusters):
            at = top + _STEP * k
            parts.append(text(left - 8, at + 17, str(cluster.number), "end", font_weight="600"))
            if cluster.size is None:
                parts.append(text(left + 4, at + 17, "not measured", "start", size=11))
                continue
            values = [(parts_of[site][k] or 0, _look(i)) for i, site in enumerate(sites)]
            values.append((cluster.size - sum(rows for rows, _ in values), _OTHERS))
            begin = 0
            for rows, look in values:
                if rows > 0:
                    place = {"x": x(begin), "y": at + 3, "width": x(rows) - x(0), "height": 18.0}
                    parts.append(tag("rect", **place, **look, stroke="#ffffff"))
                    begin += rows
        parts.append(text((left + WIDTH - RIGHT) / 2, bottom + 32, "persons", "middle"))
        for i, site in enumerate(sites):
            across, down = left + 160 * (i % 4), bottom + 52 + 18 * (i // 4)
            parts.append(tag("rect", x=across, y=down - 10, width=11, height=11, **_look(i)))
            name = _clipped(facts.site_name(site), 20)
            parts.append(text(across + 16, down, name, "start", size=11))
        described = _joined(
            f"Cluster {cluster.number}: {_persons(cluster.size, cluster.share)}"
            + "".join(
                f", {facts.site_name(site)} {parts_of[site][k]}" for site in sites[:_MOST_JOINED]
            )
            for k, cluster in enumerate(facts.clusters)
        )
        height = bottom + 60 + 18 * math.ceil(len(sites) / 4)
        title = "Sizes of the clusters"
        return Figure(parts, height, f"{title} by site" if sites else title, described)

    def mix(self) -> Figure:
        """Draw a bar for all persons and for each site: the shares of the clusters."""
        rows = self._facts.mix
        if not rows:
            raise UsageError("no sizes are known: the session had no closing evaluation")
        left, top = 170.0, 10.0
        bottom = top + _STEP * len(rows)
        x = Axis(0.0, 100.0, left, WIDTH - RIGHT - 14)
        parts = []
        for mark in ticks(0.0, 100.0):
            parts.append(line(x(mark), top, x(mark), bottom))
            parts.append(text(x(mark), bottom + 15, short(mark), "middle", size=11))
        for i, (name, shares) in enumerate(rows):
            at, begin = top + _STEP * i, 0.0
            parts.append(text(left - 8, at + 17, _clipped(name, 24), "end"))
            for k, share in enumerate(shares):
                here, wide = x(100 * begin), x(100 * share) - left
                begin += share
                if share <= 0:
                    continue
                look = _look(k)
                place = {"x": here, "y": at + 3, "width": wide, "height": 18.0}
                parts.append(tag("rect", **place, **look, stroke="#ffffff"))
                if wide >= 20:
                    ink = ink_on(look["fill"], float(look["fill_opacity"]))
                    middle = here + wide / 2
                    parts.append(text(middle, at + 16, str(k), "middle", fill=ink, size=11))
        name = "per cent of the persons, by cluster"
        parts.append(text((x.low + x.high) / 2, bottom + 32, name, "middle"))
        described = _joined(
            f"{name}: "
            + ", ".join(
                f"cluster {k} {100 * share:.0f} %" for k, share in enumerate(shares[:_MOST_JOINED])
            )
            for name, shares in rows
        )
        return Figure(parts, bottom + 42, "Mix of the clusters by site", described)

    def centroids(self) -> Figure:
        """Draw the centroids on their first two principal axes; two of them on their line."""
        facts = self._facts
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


def drawn_figures(plots: Plots) -> dict[str, Figure]:
    """Return every figure that a result has, by the name of its method."""
    found = {}
    for name in _NAMES:
        with suppress(UsageError):
            found[name] = getattr(plots, name)()
    return found


def mean_of(entry: ClusterColumn) -> str:
    """Return a mean as it is read: a share in per cent, a number in a few digits."""
    if entry.mean is not None and entry.column.kind == "binary":
        return f"{100 * entry.mean:.0f} %"
    return short(entry.mean)


def ranked_columns(facts: Facts, most: int) -> list[int]:
    """Return the columns in their order: all, or so many of them, those that differ most.

    Empty where no differences are known.
    """
    widest = [
        max((abs(cluster.entries[j].difference or 0.0) for cluster in facts.clusters), default=0.0)
        for j in range(len(facts.columns))
    ]
    if not any(widest):
        return []
    return sorted(sorted(range(len(widest)), key=lambda j: (-widest[j], j))[:most])


def difference_colour(difference: float | None) -> tuple[str, str]:
    """Return the fill of a standardised difference, blue below and red above, and the ink on it."""
    if difference is None:
        return "#eeeeee", "#222222"
    share = min(abs(difference) / _FULL, 1.0)
    end = (33, 102, 172) if difference < 0 else (178, 24, 43)
    fill = "#" + "".join(f"{round(255 + (value - 255) * share):02x}" for value in end)
    return fill, ink_on(fill)


def _look(site: int) -> dict[str, str]:
    """Return a site's colour; past the palette's end the opacity tells sites apart."""
    opacity = 1.0 - 0.35 * (site // len(PALETTE) % 3)
    return {"fill": PALETTE[site % len(PALETTE)], "fill_opacity": f"{opacity:.2f}"}


_OTHERS = {"fill": "#d0d0d0", "fill_opacity": "1.00"}


def _clipped(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


# --- words for the descriptions -------------------------------------------------------------------


def _joined(entries: Iterable[str]) -> str:
    """Return the first entries as one text, and how many more there are."""
    every = list(entries)
    more = len(every) - _MOST_JOINED
    return "; ".join(every[:_MOST_JOINED]) + (f"; and {more} more." if more > 0 else ".")


def _in_words(cluster: Cluster) -> str:
    words = [
        f"{entry.column.name} {mean_of(entry)} ({entry.difference:+.1f})"
        for entry in cluster.sets_apart
    ]
    return ", ".join(words) or "close to the average of all persons"


def _persons(size: int | None, share: float | None) -> str:
    if size is None:
        return "not measured"
    return f"{size} persons" + ("" if share is None else f" ({100 * share:.0f} %)")


def _closest(positions: NDArray[np.float64]) -> str:
    """Return which two of several places (K, 2) are closest, and which furthest apart."""
    if not 2 < len(positions) <= _MOST_PAIRED:
        return ""
    apart = np.linalg.norm(positions[:, None] - positions, axis=2)
    pairs = np.triu_indices(len(positions), 1)
    near, far = apart[pairs].argmin(), apart[pairs].argmax()
    (a, c), (b, d) = ((int(pairs[0][i]), int(pairs[1][i])) for i in (near, far))
    return f" Clusters {a} and {c} are closest, clusters {b} and {d} furthest apart."
