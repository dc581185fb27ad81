"""Where persons go from K - 1 to K clusters."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedclust.result.drawing import WIDTH, Figure, ink_on, tag, text
from fedclust.result.facts import Facts
from fedclust.result.figures.sizes import look_of
from fedclust.result.wording import joined
from fedclust.wire.errors import UsageError

Table = NDArray[np.int64]

#: Numbers of clusters of a figure, those around the recommended one.
MOST_STAGES = 8
#: Clusters of a stage: more ribbons would not be seen.
_MOST_CLUSTERS = 60
_NODE, _EDGE, _HEAD = 24.0, 10.0, 24.0
#: Least height that a cluster takes, so that numbers do not touch; least height of a number's bar.
_SLOT, _WRITTEN = 17.0, 14.0


def draw_sweep_flow(facts: Facts) -> Figure:
    """Draw how the persons of each cluster divide when K grows.

    Raises
    ------
    UsageError
        No two successive numbers of clusters have a table.
    """
    sweep = facts.result.sweep or ()
    tables = [entry.flow for entry in sweep[1:]]
    if not any(table is not None for table in tables):
        raise UsageError("no persons were counted between two numbers of clusters")
    begin = 0
    if len(sweep) > MOST_STAGES:
        tried = [entry.n_clusters for entry in sweep]
        at = tried.index(facts.result.n_clusters) if facts.result.n_clusters in tried else 0
        begin = min(max(at - MOST_STAGES // 2, 0), len(sweep) - MOST_STAGES)
    shown = sweep[begin : begin + MOST_STAGES]
    return draw_flow(
        [f"K = {entry.n_clusters}" for entry in shown],
        tables[begin : begin + MOST_STAGES - 1],
        "Persons by number of clusters",
    )


def draw_flow(stages: Sequence[str], tables: Sequence[Table | None], title: str) -> Figure:
    """Draw an alluvial diagram.

    Parameters
    ----------
    stages : sequence of str
        Names of two or more successive clusterings.
    tables : sequence of (K', K) int64 or None
        Persons by cluster of a stage and of the next; one fewer than ``stages``.
    title : str

    Raises
    ------
    UsageError
        No table has any persons, or there are too many clusters.
    """
    known = [table for table in tables if table is not None and table.any()]
    if not known:
        raise UsageError("no table has any persons: there is nothing to draw")
    most = max(max(table.shape) for table in known)
    if most > _MOST_CLUSTERS:
        raise UsageError(f"an alluvial diagram has at most {_MOST_CLUSTERS} clusters at each step")
    high = max(180.0, min(420.0, 60.0 * most), _SLOT * most)
    parts = _alluvial((_EDGE, 0.0, WIDTH - 2 * _EDGE, high), stages, tables)
    words = "Height: persons. Numbers: clusters. Colour: where most of a cluster's persons were."
    parts.append(text(_EDGE, _HEAD + high + 22, words, "start"))
    described = " ".join(
        f"From {before} to {after}: {_in_words(table)}"
        for (before, after), table in zip(itertools.pairwise(stages), tables, strict=True)
        if table is not None
    )
    return Figure(parts, _HEAD + high + 32, title, described)


def _alluvial(
    place: tuple[float, float, float, float],
    stages: Sequence[str],
    tables: Sequence[Table | None],
) -> list[str]:
    """Return names, ribbons and bars in a place (left, top, width, height below the names).

    Clusters stand next to those that their persons come from and take the colour of these.
    """
    left, top, wide, high = place
    sizes = _sizes(len(stages), tables)
    orders = _orders(sizes, tables)
    scale = min((_scale(each, high) for each in sizes if each.any()), default=0.0)
    tops = [_tops(size, order, scale, high) for size, order in zip(sizes, orders, strict=True)]
    step = (wide - _NODE) / (len(stages) - 1)
    looks = _looks(sizes, tables)
    names: list[str] = []
    ribbons: list[tuple[float, str]] = []
    bars: list[str] = []
    for i, name in enumerate(stages):
        x = left + step * i
        anchor = "start" if i == 0 else "end" if i == len(stages) - 1 else "middle"
        at = x + {"start": 0.0, "middle": _NODE / 2, "end": _NODE}[anchor]
        names.append(text(at, top + _HEAD - 8, name, anchor))
        for k, size in enumerate(sizes[i]):
            if not size:
                continue
            bars += _bar(x, top + _HEAD + tops[i][k], size * scale, k, look_of(looks[i][k]))
    for i, table in enumerate(tables):
        if table is None:
            continue
        across = left + step * i + _NODE, left + step * (i + 1)
        begins = np.array(tops[i], dtype=np.float64)
        ends = np.array(tops[i + 1], dtype=np.float64)
        for a, b in itertools.product(orders[i], orders[i + 1]):
            thick = table[a, b] * scale
            if thick > 0:
                down = top + _HEAD + float(begins[a]), top + _HEAD + float(ends[b])
                way = _ribbon(across, down, thick, look_of(looks[i][a])["fill"])
                ribbons.append((thick, way))
                begins[a] += thick
                ends[b] += thick
    # Thin ribbons stand before thick ones.
    ribbons.sort(key=lambda each: -each[0])
    return [*names, *(way for _, way in ribbons), *bars]


def _sizes(count: int, tables: Sequence[Table | None]) -> list[NDArray[np.int64]]:
    """Return the persons of each cluster of each stage, from the tables before and after it."""
    found = []
    for i in range(count):
        before = None if i == 0 else tables[i - 1]
        after = None if i == count - 1 else tables[i]
        sums = [
            table.sum(axis=axis) for table, axis in ((before, 0), (after, 1)) if table is not None
        ]
        found.append(np.max(sums, axis=0) if sums else np.zeros(0, dtype=np.int64))
    return found


def _orders(sizes: Sequence[NDArray[np.int64]], tables: Sequence[Table | None]) -> list[list[int]]:
    """Return the order of the clusters of each stage: next to where most of their persons were."""
    orders = [list(range(len(sizes[0])))]
    for size, table in zip(sizes[1:], tables, strict=True):
        here = list(range(len(size)))
        if table is not None:
            places = np.empty(len(table))
            places[orders[-1]] = np.arange(len(table))
            total = np.maximum(table.sum(axis=0), 1)
            # Rounded, so that ties fall to the lower number on every machine.
            middle = np.round(places @ table / total, 9)
            here = [int(k) for k in np.argsort(middle, kind="stable")]
        orders.append(here)
    return orders


def _scale(sizes: NDArray[np.int64], high: float) -> float:
    """Return pixels a person, such that all bars, or slots for small ones, fit into a height."""
    persons, free = float(sizes.sum()), high - 4.0 * len(sizes)
    scale = free / persons
    for _ in range(len(sizes)):
        small = sizes * scale < _SLOT
        rest = float(sizes[~small].sum())
        if not rest:
            break
        scale = max(free - _SLOT * small.sum(), 0.0) / rest
    return min(scale, free / persons)


def _tops(sizes: NDArray[np.int64], order: Sequence[int], scale: float, high: float) -> list[float]:
    """Return where each cluster's bar begins: in the middle of its slot."""
    slots = np.maximum(sizes * scale, _SLOT)
    gap = (high - float(slots.sum())) / max(len(sizes) - 1, 1)
    tops, at = [0.0] * len(sizes), 0.0
    for k in order:
        tops[k] = at + (float(slots[k]) - float(sizes[k]) * scale) / 2
        at += float(slots[k]) + gap
    return tops


def _looks(sizes: Sequence[NDArray[np.int64]], tables: Sequence[Table | None]) -> list[list[int]]:
    """Return a number of a colour for each cluster: that of the cluster where most of it was."""
    looks = [list(range(len(sizes[0])))]
    for size, table in zip(sizes[1:], tables, strict=True):
        here: dict[int, int] = {}
        if table is not None:
            pairs = itertools.product(range(len(table)), range(len(size)))
            for a, b in sorted(pairs, key=lambda pair: (-table[pair], pair)):
                if table[a, b] and b not in here and looks[-1][a] not in here.values():
                    here[b] = looks[-1][a]
        unused = (n for n in itertools.count() if n not in here.values())
        looks.append(
            [here[k] if k in here else here.setdefault(k, next(unused)) for k in range(len(size))]
        )
    return looks


def _bar(x: float, y: float, high: float, number: int, look: Mapping[str, str]) -> list[str]:
    """Return a cluster's bar with its number, which stands on a label where the bar is low."""
    bar = tag("rect", x=x, y=y, width=_NODE, height=high, **look, stroke="#333333")
    middle = x + _NODE / 2, y + high / 2
    if high >= _WRITTEN:
        ink = ink_on(look["fill"], float(look["fill_opacity"]))
        return [bar, text(middle[0], middle[1] + 4, str(number), "middle", fill=ink)]
    ground = {"x": x + 2, "y": middle[1] - 7, "width": _NODE - 4, "height": 14.0}
    label = tag("rect", **ground, fill="#ffffff", stroke="#333333")
    return [bar, label, text(middle[0], middle[1] + 4, str(number), "middle")]


def _ribbon(x: tuple[float, float], y: tuple[float, float], thick: float, fill: str) -> str:
    half = (x[0] + x[1]) / 2
    over = (
        f"M{x[0]:.1f} {y[0]:.1f}C{half:.1f} {y[0]:.1f} {half:.1f} {y[1]:.1f} {x[1]:.1f} {y[1]:.1f}"
    )
    low = y[0] + thick, y[1] + thick
    back = f"v{thick:.1f}C{half:.1f} {low[1]:.1f} {half:.1f} {low[0]:.1f} {x[0]:.1f} {low[0]:.1f}z"
    return tag("path", d=over + back, fill=fill, fill_opacity="0.45")


def _in_words(table: Table) -> str:
    """Return where most persons of each row's cluster go."""

    def of(row: int) -> str:
        total = int(table[row].sum())
        first = sorted(range(table.shape[1]), key=lambda k: (-int(table[row, k]), k))[:2]
        parts = ", ".join(
            f"{100 * table[row, k] / total:.0f} % to {k}" for k in first if table[row, k]
        )
        return f"of cluster {row} ({total} persons) {parts}"

    return joined(of(row) for row in range(len(table)) if table[row].any())
