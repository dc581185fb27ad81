"""Bars: persons of each cluster by site, the mix at each site, how far clusters are found again."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedclust.result.drawing import (
    PALETTE,
    RIGHT,
    WIDTH,
    Axis,
    Figure,
    clipped,
    grid,
    ink_on,
    tag,
    text,
    words_width,
)
from fedclust.result.facts import Facts
from fedclust.result.wording import MOST_JOINED, joined, persons, titled
from fedclust.wire.errors import UsageError

#: Height of a bar with the room below it, and where the first one begins.
_STEP, _TOP = 26.0, 10.0
#: Names of clusters in a line of a figure's key, and the height of such a line.
_IN_LINE, _LINE = 3, 18.0
#: Of the bars of others than the sites that the reader sees.
_OTHERS = {"fill": "#d0d0d0", "fill_opacity": "1.00"}


@dataclass(frozen=True)
class _Bar:
    """A bar: its name, its parts (length, look, label), and what stands after it."""

    name: str
    parts: Sequence[tuple[float, Mapping[str, str], str]]
    after: str = ""


def _bars(bars: Sequence[_Bar], x: Axis, name: str) -> tuple[list[str], float]:
    """Return bars over an axis that begins at 0, and where they end."""
    bottom = _TOP + _STEP * len(bars)
    parts = grid(x, _TOP, bottom)
    for i, bar in enumerate(bars):
        at, begin = _TOP + _STEP * i, 0.0
        word = clipped(bar.name, x.low - 16, 13)
        parts.append(text(x.low - 8, at + 17, word, "end", font_weight="600"))
        for length, look, label in bar.parts:
            if length > 0:
                parts += _segment(x(begin), at + 3, x(length) - x(0.0), look, label)
                begin += length
        if bar.after:
            parts.append(text(x(begin) + 4, at + 17, bar.after, "start"))
    parts.append(text((x.low + x.high) / 2, bottom + 34, name, "middle"))
    return parts, bottom


def _room(facts: Facts) -> float:
    """Return the room that the clusters' names take."""
    return 176.0 if facts.named else 78.0


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
    sites, names = sorted(parts_of), facts.cluster_names if facts.named else facts.labels
    bars = []
    for k, cluster in enumerate(facts.clusters):
        own = [(parts_of[site][k] or 0, look_of(i), _letters(i)) for i, site in enumerate(sites)]
        rest = (cluster.size or 0) - sum(count for count, _, _ in own)
        after = "not measured" if cluster.size is None else ""
        bars.append(_Bar(names[k], [] if after else [*own, (rest, _OTHERS, "")], after))
    x = Axis(0.0, most * 1.02, _room(facts), WIDTH - RIGHT)
    parts, bottom = _bars(bars, x, "persons, by cluster")
    for i, site in enumerate(sites):
        across, down = x.low + 160 * (i % 4), bottom + 56 + 22 * (i // 4)
        look, label = look_of(i), _letters(i)
        parts += _segment(across, down - 13, max(18.0, words_width(label, 12) + 4), look, label)
        name = clipped(facts.site_name(site), 128)
        parts.append(text(across + 26, down, name, "start"))
    described = joined(
        f"{titled(facts.cluster_names[k])}: {persons(cluster.size, cluster.share)}"
        + "".join(f", {facts.site_name(site)} {parts_of[site][k]}" for site in sites[:MOST_JOINED])
        for k, cluster in enumerate(facts.clusters)
    )
    height = bottom + 52 + 22 * math.ceil(len(sites) / 4)
    title = "Sizes of the clusters"
    return Figure(parts, height, f"{title} by site" if sites else title, described)


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
    bars = [
        _Bar(name, [(100 * share, look_of(k), str(k)) for k, share in enumerate(shares)])
        for name, shares in rows
    ]
    x = Axis(0.0, 100.0, 176.0, WIDTH - RIGHT - 14)
    name = "per cent of the persons; the numbers in the bars are the clusters"
    parts, bottom = _bars(bars, x, name)
    parts += cluster_key(facts, x.low, bottom + 56)
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


def _segment(x: float, y: float, wide: float, look: Mapping[str, str], label: str) -> list[str]:
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
