"""Plots as plain SVG: lines over a number, with a legend. No more than the pages of docs need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 170, 34, 48
#: Okabe & Ito's palette, which colour-blind readers can tell apart, and a dash for each.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "", "6 3", "2 3")

Points = Sequence[tuple[float, float]]


def lines(path: Path, title: str, x_name: str, y_name: str, series: Mapping[str, Points]) -> None:
    """Write a plot of named lines; axes start and end at round numbers around the data."""
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def across(x: float) -> float:
        return LEFT + (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (right - LEFT)

    def down(y: float) -> float:
        return bottom - (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (bottom - TOP)

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'font-family="sans-serif" font-size="12" role="img">'
        ),
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    parts += [
        f'<path d="M{LEFT} {down(y):.1f}H{right}" stroke="#dddddd"/>'
        f'<text x="{LEFT - 6}" y="{down(y) + 4:.1f}" text-anchor="end">{y:g}</text>'
        for y in y_ticks
    ]
    parts += [
        f'<path d="M{across(x):.1f} {bottom}v4" stroke="#444444"/>'
        f'<text x="{across(x):.1f}" y="{bottom + 18}" text-anchor="middle">{x:g}</text>'
        for x in x_ticks
    ]
    parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#444444"/>')
    parts.append(
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" text-anchor="middle">'
        f"{escape(x_name)}</text>"
        f'<text transform="translate(16 {(TOP + bottom) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_name)}</text>'
    )
    for index, (name, points) in enumerate(series.items()):
        style = f'stroke="{COLOURS[index % 7]}" stroke-dasharray="{DASHES[index % 7]}"'
        way = "L".join(f"{across(x):.1f} {down(y):.1f}" for x, y in points)
        height = TOP + 12 + 18 * index
        parts.append(
            f'<path d="M{way}" fill="none" stroke-width="2" {style}/>'
            f'<path d="M{right + 12} {height}h24" stroke-width="2" {style}/>'
            f'<text x="{right + 42}" y="{height + 4}">{escape(name)}</text>'
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", "utf-8")


def ticks(least: float, most: float) -> list[float]:
    """Return four to nine round numbers, equally far apart, that hold both ends."""
    span = (most - least) or abs(most) or 1.0
    power = 1.0
    while power > span:
        power /= 10
    while power * 10 <= span:
        power *= 10
    step = next(power * m for m in (0.2, 0.25, 0.5, 1.0, 2.0) if span / (power * m) <= 7)
    first = int(least // step)
    last = first
    while last * step < most - 1e-9 * span:
        last += 1
    return [round(number * step, 12) for number in range(first, max(last, first + 1) + 1)]
