"""In which columns the two clusters of each pair differ most."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedclust.errors import UsageError
from fedclust.report.drawing import (
    WIDTH,
    Axis,
    Figure,
    clipped,
    ink_on,
    line,
    short,
    signed,
    tag,
    text,
    ticks,
)
from fedclust.report.facts import Cluster, Facts
from fedclust.report.figures.profile import mean_of
from fedclust.report.figures.words import joined
from fedclust.schema.encoding import Column

__all__ = ["MOST_PAIRS", "PairedColumn", "ProfilePair", "draw_pairs", "profile_pairs"]

#: Pairs of a figure: all of six clusters. Of more, those that differ least.
MOST_PAIRS = 15
#: Clusters whose pairs are compared; more have too many pairs.
_MOST_COMPARED = 200
#: Columns of each pair.
_MOST_NAMED = 4
_TOP, _BAR, _HEAD, _GAP = 22.0, 18.0, 22.0, 12.0
#: From the left of a panel: where the names end, and where the bars begin and end.
_NAMES, _LOW, _HIGH = 160.0, 166.0, 344.0
#: Width of a bar with room for its number.
_ROOM = 34.0
_SIDES = ("#0072b2", "#e69f00")


@dataclass(frozen=True)
class PairedColumn:
    """A column in the two clusters of a pair.

    ``difference`` is the first cluster's value minus the second's, in standard deviations of all
    persons; ``means`` are as people read them.
    """

    column: Column
    difference: float
    means: tuple[str, str]


@dataclass(frozen=True)
class ProfilePair:
    """Two clusters, with the columns in which they differ most first.

    ``apart`` is the root of the mean squared difference over all columns known in both.
    """

    first: int
    second: int
    apart: float
    columns: tuple[PairedColumn, ...]


def profile_pairs(facts: Facts) -> list[ProfilePair]:
    """Return the pairs of clusters; of more than 15 pairs those that differ least.

    They are in the order of their numbers. Empty where no differences are known.
    """
    clusters = facts.clusters
    if not 2 <= len(clusters) <= _MOST_COMPARED:
        return []
    # NaN where a difference is unknown.
    away = np.array([[e.difference for e in each.entries] for each in clusters], dtype=np.float64)
    first, second = np.triu_indices(len(clusters), 1)
    gaps = away[first] - away[second]
    known = np.isfinite(gaps)
    squares = np.where(known, gaps, 0.0) ** 2
    apart = np.sqrt(squares.sum(axis=1) / np.maximum(known.sum(axis=1), 1))
    if not apart.any():
        return []
    # Rounded, so that ties fall to the lower numbers on every machine.
    order = np.argsort(np.round(apart, 9), kind="stable")
    chosen = sorted([int(i) for i in order if known[i].any()][:MOST_PAIRS])
    return [
        _pair(clusters[first[i]], clusters[second[i]], gaps[i], float(apart[i])) for i in chosen
    ]


def _pair(first: Cluster, second: Cluster, gaps: NDArray[np.float64], apart: float) -> ProfilePair:
    """Return a pair with its columns, from the differences (d,) of its means; NaN is unknown."""
    order = np.argsort(-np.round(np.abs(gaps), 9), kind="stable")
    named = [int(j) for j in order if np.isfinite(gaps[j])][:_MOST_NAMED]
    columns = tuple(
        PairedColumn(
            first.entries[j].column,
            float(gaps[j]),
            (mean_of(first.entries[j]), mean_of(second.entries[j])),
        )
        for j in named
    )
    return ProfilePair(first.number, second.number, apart, columns)


def draw_pairs(facts: Facts) -> Figure:
    """Draw a panel for each pair: a bar for each of the columns in which its clusters differ most.

    A bar points to the side of the cluster with the higher value.

    Raises
    ------
    UsageError
        No differences between clusters are known.
    """
    pairs = profile_pairs(facts)
    if not pairs:
        raise UsageError("no differences between clusters are known")
    most = max(abs(each.difference) for pair in pairs for each in pair.columns)
    high = _HEAD + _BAR * max(len(pair.columns) for pair in pairs) + _GAP
    parts, wide = [], WIDTH / 2
    for number, pair in enumerate(pairs):
        left, top = wide * (number % 2), _TOP + high * (number // 2)
        parts += _panel(pair, left, top, most)
    rows = math.ceil(len(pairs) / 2)
    bottom = _TOP + high * rows
    for side in range(min(len(pairs), 2)):
        x = Axis(-most, most, wide * side + _LOW, wide * side + _HIGH)
        parts += [text(x(mark), bottom + 4, short(mark), "middle") for mark in ticks(-most, most)]
        name = "difference in standard deviations"
        parts.append(text(wide * side + (_LOW + _HIGH) / 2, bottom + 22, name, "middle"))
    described = joined(f"clusters {in_words(pair)}" for pair in pairs)
    return Figure(parts, bottom + 32, "Differences between pairs of clusters", described)


def _panel(pair: ProfilePair, left: float, top: float, most: float) -> list[str]:
    x = Axis(-most, most, left + _LOW, left + _HIGH)
    bottom = top + _HEAD + _BAR * len(pair.columns)
    parts = [
        text(left + _NAMES, top + 4, f"{pair.first} and {pair.second}", "end", font_weight="600")
    ]
    # Negative differences point to the left: there the second cluster is higher.
    parts.append(text(x(0.0) - 8, top + 4, f"← {pair.second} higher", "end"))
    parts.append(text(x(0.0) + 8, top + 4, f"{pair.first} higher →", "start"))
    parts += [line(x(mark), top + 10, x(mark), bottom) for mark in ticks(-most, most)]
    for row, each in enumerate(pair.columns):
        at = top + _HEAD - 8 + _BAR * row
        name = clipped(each.column.name, _NAMES - 8)
        parts.append(text(left + _NAMES, at + 13, name, "end"))
        begin, end = sorted((x(0.0), x(each.difference)))
        fill = _SIDES[0] if each.difference > 0 else _SIDES[1]
        parts.append(tag("rect", x=begin, y=at + 2, width=end - begin, height=13.0, fill=fill))
        # A number stands inside the tip of its bar, beyond the tip of a short one.
        inside, right = end - begin > _ROOM, each.difference > 0
        tip, away = (end, 4.0) if right else (begin, -4.0)
        anchor = "end" if inside == right else "start"
        ink = ink_on(fill) if inside else "#222222"
        spot = tip - away if inside else tip + away
        parts.append(text(spot, at + 13, signed(each.difference), anchor, fill=ink))
    zero = {"stroke": "#333333", "stroke_width": "1.5"}
    return [*parts, tag("line", x1=x(0.0), y1=top + 10, x2=x(0.0), y2=bottom, **zero)]


def in_words(pair: ProfilePair) -> str:
    """Return a pair with its columns and differences."""
    columns = ", ".join(
        f"{each.column.name} {signed(each.difference)} ({each.means[0]} against {each.means[1]})"
        for each in pair.columns
    )
    return f"{pair.first} and {pair.second}: {columns}"
