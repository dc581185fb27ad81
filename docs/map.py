"""Draw which package imports which as ``docs/figures/map.svg``: ``python docs/map.py``.

Each box is a package or module; an arrow leads to what it imports. Boxes stand above all that they
import. An arrow is left out where others lead the same way: if a imports b and b imports c, there
is no arrow from a to c. A test fails when the figure differs from what this gives.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import grimp

from diagrams import AMBER, BLUE, LINE, box, head, heading
from fedclust.result.drawing import Figure, tag, text

FIGURE = Path(__file__).parent / "figures" / "map.svg"
#: Each root package with its name in the figure, its colour and the middle of its column.
ROOTS = {
    "fedclust": ("client_sdk/fedclust", BLUE, 246.0),
    "fedclust_service": ("service/fedclust_service", AMBER, 570.0),
}
#: A distribution of its own: the box `dual` in the column of the SDK.
DUAL = "fedclust_dual"
_TOP, _STEP, _HEIGHT, _GAP = 62.0, 52.0, 26.0, 8.0
Graph = dict[str, frozenset[str]]


def imports() -> Graph:
    """Return which packages and modules each one imports, two levels of names deep."""
    graph = grimp.build_graph(*ROOTS, DUAL, cache_dir=None)
    found: dict[str, set[str]] = {_box(module): set() for module in graph.modules if "." in module}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            if "." in module and "." in imported:
                found[_box(module)].add(_box(imported))
    return {name: frozenset(found[name] - {name}) for name in sorted(found)}


def draw(graph: Graph) -> Figure:
    """Return the figure of a graph without cycles."""
    levels = _levels(graph)
    top = max(levels.values())
    places: dict[str, tuple[float, float, float]] = {}
    for root, (_, _, middle) in ROOTS.items():
        for level in range(top + 1):
            row = [name for name in graph if levels[name] == level and _root(name) == root]
            places |= _row(row, middle, _TOP + (top - level) * _STEP)
    parts = [
        tag("path", d=_arrow(places[name], places[imported]), fill="none", stroke=LINE)
        + head((places[imported][0], 0), places[imported][:2])
        for name in graph
        for imported in sorted(_direct(graph, name))
    ]
    for name, (x, y, width) in places.items():
        fill = ROOTS[_root(name)][1]
        parts.append(box(x - width / 2, y, width, _HEIGHT, fill))
        parts.append(text(x, y + 17, name.partition(".")[2], "middle"))
    for title, _, middle in ROOTS.values():
        parts.append(heading(middle, 28, title, "middle"))
    description = "; ".join(
        f"{name} imports {', '.join(sorted(_direct(graph, name)))}" for name in graph if graph[name]
    )
    height = _TOP + top * _STEP + _HEIGHT + 16
    return Figure(parts, height, "Which package imports which", description)


def _box(module: str) -> str:
    if module.startswith(f"{DUAL}."):
        return "fedclust.dual"
    return ".".join(module.split(".")[:2])


def _root(name: str) -> str:
    return name.partition(".")[0]


def _levels(graph: Graph) -> dict[str, int]:
    """Return the row of each box, from 0 at the bottom: above all that it imports."""

    @cache
    def level(name: str) -> int:
        return 1 + max((level(imported) for imported in graph[name]), default=-1)

    levels = {name: level(name) for name in graph}
    for name in graph:
        above = [levels[other] for other in graph if name in graph[other]]
        # What imports nothing stands right below the first that imports it.
        if not graph[name] and above:
            levels[name] = min(above) - 1
    return levels


def _direct(graph: Graph, name: str) -> frozenset[str]:
    """Return what a box imports and does not reach through others that it imports."""

    @cache
    def below(of: str) -> frozenset[str]:
        return graph[of].union(*(below(imported) for imported in graph[of]))

    return graph[name].difference(*(below(imported) for imported in graph[name]))


def _row(names: Iterable[str], middle: float, y: float) -> dict[str, tuple[float, float, float]]:
    """Return the middle, the top and the width of each box of a row."""
    widths = {name: 6.6 * len(name.partition(".")[2]) + 16.0 for name in names}
    x = middle - (sum(widths.values()) + _GAP * (len(widths) - 1)) / 2
    places = {}
    for name, width in widths.items():
        places[name] = (x + width / 2, y, width)
        x += width + _GAP
    return places


def _arrow(start: tuple[float, float, float], end: tuple[float, float, float]) -> str:
    x1, y1, x2, y2 = start[0], start[1] + _HEIGHT, end[0], end[1] - 5
    bend = (y2 - y1) / 2
    return f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"


if __name__ == "__main__":
    FIGURE.write_text(draw(imports()).svg + "\n", "utf-8")
