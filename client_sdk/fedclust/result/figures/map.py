"""Clusters, sites and columns on the axes along which all persons differ most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.result.drawing import (
    LEFT,
    PALETTE,
    WIDTH,
    Axis,
    Figure,
    clipped,
    frame,
    tag,
    text,
    ticks,
)
from fedclust.result.facts import Facts
from fedclust.result.figures.sizes import cluster_key, key_height
from fedclust.result.wording import MOST_JOINED, joined
from fedclust.schema.evidence import PrincipalAxes
from fedclust.wire.errors import UsageError

Places = NDArray[np.float64]

#: Columns that have an arrow: those with the largest loadings.
MOST_ARROWS = 6
#: Sites that have a name; others have a mark alone.
MOST_NAMED_SITES = 12
_TOP, _BOTTOM, _RIGHT = 12.0, 444.0, 496.0
#: The column to the right: where it begins, and the height of a line.
_ASIDE, _LINE = 518.0, 16.0
#: Middle and radius of the arrows, from there to the numbers, and the least angle between these.
_COMPASS, _REACH, _NUMBERS = (590.0, 310.0), 46.0, 58.0
_APART = math.radians(22)


def cluster_places(facts: Facts) -> Places:
    """Return the places (K, 2) of the centroids on the axes of all persons.

    Unknown entries count as the mean of all persons.

    Raises
    ------
    UsageError
        The result does not have two axes.
    """
    axes, mask = _axes(facts), facts.result.mask
    away = facts.result.centroids - axes.origin
    return np.asarray((away if mask is None else np.where(mask, away, 0.0)) @ axes.axes)


def _axes(facts: Facts) -> PrincipalAxes:
    axes = facts.result.axes
    if axes is None:
        raise UsageError("the axes of all persons are not known: set the option `evidence`")
    if not axes.shares[1] > 0:
        raise UsageError("persons differ along one axis: there is no map to draw")
    return axes


def site_places(facts: Facts) -> dict[str, Places]:
    """Return where visible sites are on these axes: the means of their persons' centroids."""
    clusters = cluster_places(facts)
    counts = {site: np.array(each, float) for site, each in facts.result.site_sizes.items()}
    return {
        facts.site_name(site): each @ clusters / each.sum()
        for site, each in sorted(counts.items())
        if each.sum() > 0
    }


def draw_map(facts: Facts) -> Figure:
    """Draw clusters as discs, sites as diamonds, and columns as arrows.

    A length is the same along both axes. A site is at the mean of its persons' centroids: its own
    mean is not part of a result.

    Raises
    ------
    UsageError
        The result does not have two axes.
    """
    axes, clusters, sites = _axes(facts), cluster_places(facts), site_places(facts)
    loadings, (first, second) = axes.axes, axes.shares
    x, y = _scales(np.array([*clusters, *sites.values(), (0.0, 0.0)]))
    names = (f"first axis, {100 * first:.0f} %", f"second axis, {100 * second:.0f} %")
    parts = frame(x, y, *names, ticks(x.least, x.most))
    parts += _site_names(sites, x, y)
    parts += _discs(facts, clusters, x, y)
    cross = f"M{x(0.0) - 6:.1f} {y(0.0):.1f}h12m-6 -6v12"
    parts.append(tag("path", d=cross, fill="none", stroke="#222222", stroke_width="2"))
    parts += [_diamond(x(float(a)), y(float(b))) for a, b in sites.values()]
    strongest = _strongest(loadings)
    parts += _arrows([facts.columns[j].name for j in strongest], loadings[strongest])
    described = (
        f"The first axis has {100 * first:.0f} % of the variance of all persons, the second "
        f"{100 * second:.0f} %. "
        + joined(
            f"Cluster {label} at {a:.2f}, {b:.2f}"
            for label, (a, b) in zip(facts.labels, clusters.tolist(), strict=True)
        )
        + "".join(
            f" {name} at {place[0]:.2f}, {place[1]:.2f}."
            for name, place in list(sites.items())[:MOST_JOINED]
        )
        + " Strongest columns: "
        + joined(
            f"{facts.columns[j].name} {loadings[j, 0]:+.2f}, {loadings[j, 1]:+.2f}"
            for j in strongest
        )
    )
    title = "Map of the clusters and sites" if sites else "Map of the clusters"
    parts += cluster_key(facts, LEFT, 516)
    return Figure(parts, 504 + key_height(facts), title, described)


def _scales(places: Places) -> tuple[Axis, Axis]:
    """Return two axes with one scale that have room for discs around all places."""
    low, high = places.min(axis=0), places.max(axis=0)
    middle = (low + high) / 2
    wide, tall = _RIGHT - LEFT, _BOTTOM - _TOP
    room = 56.0
    unit = max((high[0] - low[0]) / (wide - room), (high[1] - low[1]) / (tall - room), 1e-9)
    half = unit * wide / 2, unit * tall / 2
    return (
        Axis(float(middle[0] - half[0]), float(middle[0] + half[0]), LEFT, _RIGHT),
        Axis(float(middle[1] - half[1]), float(middle[1] + half[1]), _BOTTOM, _TOP),
    )


def _discs(facts: Facts, places: Places, x: Axis, y: Axis) -> list[str]:
    most = max(cluster.size or 0 for cluster in facts.clusters) or 1
    discs, numbers = [], []
    for k, (cluster, (a, b)) in enumerate(zip(facts.clusters, places.tolist(), strict=True)):
        radius = 8 + 16 * math.sqrt((cluster.size or 0) / most)
        look = {"fill": PALETTE[k % len(PALETTE)], "fill_opacity": "0.45", "stroke": "#333333"}
        discs.append((radius, tag("circle", cx=x(a), cy=y(b), r=radius, **look)))
        numbers.append(text(x(a), y(b) + 4, str(cluster.number), "middle", font_weight="600"))
    # Small discs stand before large ones.
    return [disc for _, disc in sorted(discs, key=lambda each: -each[0])] + numbers


def _site_names(sites: Mapping[str, Places], x: Axis, y: Axis) -> list[str]:
    """Return what the marks mean, and the name of each site at the end of a line to its mark."""
    parts = [text(_ASIDE, _TOP + 12, "+", "start", font_weight="600")]
    parts.append(text(_ASIDE + 14, _TOP + 12, "mean of all persons", "start"))
    if sites:
        parts.append(_diamond(_ASIDE + 4, _TOP + 8 + _LINE))
        parts.append(text(_ASIDE + 14, _TOP + 12 + _LINE, "site, by its mix", "start"))
    marks = sorted(((y(float(p[1])), x(float(p[0])), name) for name, p in sites.items()))
    marks = marks if len(marks) <= MOST_NAMED_SITES else []
    begin = _TOP + 12 + 2.4 * _LINE
    for i, (down, across, name) in enumerate(marks):
        at = begin + _LINE * i
        way = f"M{across:.1f} {down:.1f}L{_RIGHT:.1f} {at - 4:.1f}H{_ASIDE - 4:.1f}"
        parts.append(tag("path", d=way, fill="none", stroke="#777777"))
        parts.append(text(_ASIDE, at, clipped(name, WIDTH - _ASIDE - 8), "start"))
    return parts


def _diamond(across: float, down: float) -> str:
    way = f"M{across:.1f} {down - 6:.1f}l5 6l-5 6l-5 -6z"
    return tag("path", d=way, fill="#222222", stroke="#ffffff")


def _strongest(loadings: Places) -> list[int]:
    lengths = np.round(np.linalg.norm(loadings, axis=1), 9)
    order = sorted(range(len(lengths)), key=lambda j: (-lengths[j], j))
    return [j for j in order[:MOST_ARROWS] if lengths[j] > 0]


def _arrows(names: Sequence[str], loadings: Places) -> list[str]:
    """Return numbered arrows from one point, and below them what the numbers mean."""
    across, down = _COMPASS
    longest = float(np.linalg.norm(loadings, axis=1).max())
    parts = [tag("circle", cx=across, cy=down, r=_REACH, fill="none", stroke="#dddddd")]
    angles = _spread([math.atan2(float(b), float(a)) for a, b in loadings])
    for number, ((a, b), angle) in enumerate(zip(loadings.tolist(), angles, strict=True), 1):
        tip = across + _REACH * a / longest, down - _REACH * b / longest
        way = f"M{across:.1f} {down:.1f}L{tip[0]:.1f} {tip[1]:.1f}"
        parts.append(tag("path", d=way, fill="none", stroke="#333333", stroke_width="1.6"))
        parts.append(_head(tip, math.atan2(b, a)))
        label = across + _NUMBERS * math.cos(angle), down - _NUMBERS * math.sin(angle)
        parts.append(text(label[0], label[1] + 4, str(number), "middle", font_weight="600"))
    below = down + _NUMBERS + 28
    parts.append(text(_ASIDE, below, "columns rise along arrows", "start"))
    for number, name in enumerate(names, 1):
        words = clipped(f"{number}  {name}", WIDTH - _ASIDE - 8)
        parts.append(text(_ASIDE, below + _LINE * number - 0.5, words, "start"))
    return parts


def _head(tip: tuple[float, float], angle: float) -> str:
    ends = [
        (tip[0] - 7 * math.cos(angle + turn), tip[1] + 7 * math.sin(angle + turn))
        for turn in (-0.45, 0.45)
    ]
    (a, b), (c, d) = ends
    way = f"M{tip[0]:.1f} {tip[1]:.1f}L{a:.1f} {b:.1f}L{c:.1f} {d:.1f}z"
    return tag("path", d=way, fill="#333333")


def _spread(angles: Sequence[float]) -> list[float]:
    """Return angles at which numbers do not touch, in the same order around the circle."""
    order = sorted(range(len(angles)), key=lambda i: angles[i])
    turned = [angles[i] for i in order]
    for _ in range(20):
        for i in range(1, len(turned)):
            lacking = _APART - (turned[i] - turned[i - 1])
            if lacking > 0:
                turned[i - 1] -= lacking / 2
                turned[i] += lacking / 2
    found = [0.0] * len(angles)
    for i, angle in zip(order, turned, strict=True):
        found[i] = angle
    return found
