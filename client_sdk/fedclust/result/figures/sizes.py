"""Persons of each cluster by site, and the mix of clusters at each site."""

from __future__ import annotations

import math

from fedclust.result.drawing import (
    PALETTE,
    RIGHT,
    WIDTH,
    Axis,
    Figure,
    clipped,
    ink_on,
    line,
    short,
    tag,
    text,
    ticks,
    words_width,
)
from fedclust.result.facts import Facts
from fedclust.result.wording import MOST_JOINED, joined, persons, titled
from fedclust.wire.errors import UsageError

#: Height of a bar with the room below it.
_STEP = 26.0
#: Names of clusters in a line of a figure's key, and the height of such a line.
_IN_LINE, _LINE = 3, 18.0
#: Of the bars of others than the sites that the reader sees.
_OTHERS = {"fill": "#d0d0d0", "fill_opacity": "1.00"}


def draw_sizes(facts: Facts) -> Figure:
    """Draw a bar for each cluster: its persons, by site where sites' parts are known.

    Raises
    ------
    UsageError
        No sizes are known.
    """
    most = max((cluster.size or 0 for cluster in facts.clusters), default=0)
    if not most:
        raise UsageError("no sizes are known: the session had no closing evaluation")
    parts_of = facts.result.site_sizes
    sites = sorted(parts_of)
    left, top = 176.0 if facts.named else 78.0, 10.0
    bottom = top + _STEP * len(facts.clusters)
    x = Axis(0.0, most * 1.02, left, WIDTH - RIGHT)
    parts = []
    for mark in ticks(0.0, float(most)):
        parts.append(line(x(mark), top, x(mark), bottom))
        parts.append(text(x(mark), bottom + 16, short(mark), "middle"))
    for k, cluster in enumerate(facts.clusters):
        at = top + _STEP * k
        name = clipped(facts.cluster_names[k], left - 16, 13) if facts.named else str(k)
        parts.append(text(left - 8, at + 17, name, "end", font_weight="600"))
        if cluster.size is None:
            parts.append(text(left + 4, at + 17, "not measured", "start"))
            continue
        values = [(parts_of[site][k] or 0, look_of(i), _letters(i)) for i, site in enumerate(sites)]
        rest = cluster.size - sum(count for count, _, _ in values)
        begin = 0
        for count, look, label in [*values, (rest, _OTHERS, "")]:
            if count > 0:
                parts += _segment(x(begin), at + 3, x(count) - x(0), look, label)
                begin += count
    parts.append(text((left + WIDTH - RIGHT) / 2, bottom + 34, "persons, by cluster", "middle"))
    for i, site in enumerate(sites):
        across, down = left + 160 * (i % 4), bottom + 56 + 22 * (i // 4)
        look, label = look_of(i), _letters(i)
        parts += _segment(across, down - 13, max(18.0, words_width(label, 12) + 4), look, label)
        name = clipped(facts.site_name(site), 128)
        parts.append(text(across + 26, down, name, "start"))
    described = joined(
        f"{titled(facts.cluster_names[k])}: {persons(cluster.size, cluster.share)}"
        + "".join(f", {facts.site_name(site)} {parts_of[site][k]}" for site in sites[:MOST_JOINED])
        for k, cluster in enumerate(facts.clusters)
    )
    height = bottom + 46 + 22 * math.ceil(len(sites) / 4)
    title = "Sizes of the clusters"
    return Figure(parts, height + 6, f"{title} by site" if sites else title, described)


def draw_mix(facts: Facts) -> Figure:
    """Draw a bar for all persons and for each site: the shares of the clusters.

    Raises
    ------
    UsageError
        No sizes are known.
    """
    rows = facts.mix
    if not rows:
        raise UsageError("no sizes are known: the session had no closing evaluation")
    left, top = 176.0, 10.0
    bottom = top + _STEP * len(rows)
    x = Axis(0.0, 100.0, left, WIDTH - RIGHT - 14)
    parts = []
    for mark in ticks(0.0, 100.0):
        parts.append(line(x(mark), top, x(mark), bottom))
        parts.append(text(x(mark), bottom + 16, short(mark), "middle"))
    for i, (name, shares) in enumerate(rows):
        at, begin = top + _STEP * i, 0.0
        parts.append(text(left - 8, at + 17, clipped(name, left - 16), "end"))
        for k, share in enumerate(shares):
            here, wide = x(100 * begin), x(100 * share) - left
            begin += share
            if share > 0:
                parts += _segment(here, at + 3, wide, look_of(k), str(k))
    parts += cluster_key(facts, left, bottom + 56)
    name = "per cent of the persons; the numbers in the bars are the clusters"
    parts.append(text((x.low + x.high) / 2, bottom + 34, name, "middle"))
    described = joined(
        f"{name}: "
        + ", ".join(
            f"{facts.cluster_names[k]} {100 * share:.0f} %"
            for k, share in enumerate(shares[:MOST_JOINED])
        )
        for name, shares in rows
    )
    height = bottom + 44 + key_height(facts)
    return Figure(parts, height, "Mix of the clusters by site", described)


def look_of(number: int) -> dict[str, str]:
    """Return the colour of a cluster or site; past the palette's end the opacity differs."""
    opacity = 1.0 - 0.35 * (number // len(PALETTE) % 3)
    return {"fill": PALETTE[number % len(PALETTE)], "fill_opacity": f"{opacity:.2f}"}


def cluster_key(facts: Facts, left: float, down: float) -> list[str]:
    """Return lines that say the names of clusters whose numbers are drawn; none without names."""
    room = (WIDTH - left) / _IN_LINE
    return [
        text(left + room * (k % _IN_LINE), down + _LINE * (k // _IN_LINE), word, "start")
        for k, word in enumerate(clipped(label, room - 8) for label in facts.labels)
        if facts.named
    ]


def key_height(facts: Facts) -> float:
    """Return how much room :func:`cluster_key` takes."""
    return _LINE * math.ceil(len(facts.clusters) / _IN_LINE) if facts.named else 0.0


def _segment(x: float, y: float, wide: float, look: dict[str, str], label: str) -> list[str]:
    """Return a part of a bar, with its label where that has room: a colour alone tells nothing."""
    parts = [tag("rect", x=x, y=y, width=wide, height=18.0, **look, stroke="#ffffff")]
    if label and wide >= words_width(label, 12) + 2:
        ink = ink_on(look["fill"], float(look["fill_opacity"]))
        parts.append(text(x + wide / 2, y + 13, label, "middle", fill=ink))
    return parts


def _letters(number: int) -> str:
    """Return A to Z, then AA, AB and so on."""
    first, last = divmod(number, 26)
    return (chr(64 + first) if first else "") + chr(65 + last)
