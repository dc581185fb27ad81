"""Draw the protected table and its resolution: ``python docs/protection_figures.py``.

The figures show what the code computes: groups, records and sums of fifteen made-up patients, and
clusters of four made-up hospitals.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from diagrams import (
    AMBER,
    BLUE,
    GREEN,
    INK,
    SIZE,
    WIDTH,
    Point,
    arrow,
    box,
    cross,
    heading,
    height_of,
    label,
    paragraph,
    save,
)
from fedclust import SessionResult, simulate
from fedclust.numeric.microaggregation import form_groups
from fedclust.protection.columns import SourceColumn
from fedclust.protection.groups import embed_persons
from fedclust.protection.table import ProtectedTable, form_table
from fedclust.result.drawing import PALETTE, Axis, Figure, frame, tag, text, words_width

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Age in years, systolic blood pressure in mmHg, whether they smoke.
PATIENTS = np.array(
    [
        *[(31, 118, 0), (28, 121, 1), (36, 115, 0), (33, 124, 0), (39, 119, 0)],
        *[(52, 131, 1), (49, 138, 1), (55, 142, 1), (47, 135, 1), (58, 140, 1)],
        *[(71, 149, 0), (68, 156, 0), (74, 161, 0), (66, 147, 0), (77, 152, 0)],
    ],
    dtype=np.float64,
)
P = 5
#: The round of the example asks for two clusters, which this age separates.
_YOUNG = 45
COLUMNS = ("age", "sbp", "smoker")


@dataclass(frozen=True)
class Grouped:
    """The patients' protected table, and the group of each patient."""

    table: ProtectedTable
    groups: IntArray

    @property
    def records(self) -> list[str]:
        """Return what each group releases, in words."""
        return [
            f"{size} persons: {age:.0f} years, {sbp:.0f} mmHg, smoker: {'yes' if smoker else 'no'}"
            for size, age, sbp, smoker in zip(
                self.table.sizes, *map(self.table.values, COLUMNS), strict=True
            )
        ]


@cache
def grouped_patients() -> Grouped:
    """Return the protected table of the patients."""
    sources = [
        SourceColumn(name, np.ascontiguousarray(values))
        for name, values in zip(COLUMNS, PATIENTS.T, strict=True)
    ]
    return Grouped(form_table(sources, P), form_groups(embed_persons(sources, P), P))


def protected_table() -> Figure:
    """Draw persons as dots, groups as hulls, and what the groups release."""
    found = grouped_patients()
    x, y = Axis(24, 82, 70, 690), Axis(102, 168, 372, 16)
    parts = frame(x, y, "age, years", "systolic blood pressure, mmHg", range(30, 90, 10))
    # Reports have smaller numbers.
    parts = [part.replace('font-size="12"', 'font-size="13"') for part in parts]
    places = [(x(age), y(sbp)) for age, sbp, _ in PATIENTS]
    for group, fill in enumerate((GREEN, BLUE, AMBER)):
        members = [place for place, of in zip(places, found.groups, strict=True) if of == group]
        corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in hull(members))
        style = {"fill": fill, "stroke": fill, "stroke_width": "26", "stroke_linejoin": "round"}
        parts.append(tag("polygon", points=corners, **style))
    for (cx, cy), (_, _, smoker) in zip(places, PATIENTS, strict=True):
        fill = INK if smoker else "#ffffff"
        parts.append(tag("circle", cx=cx, cy=cy, r=5.0, fill=fill, stroke=INK, stroke_width="1.5"))
    table = found.table
    for words, age, sbp in zip(
        found.records, table.values("age"), table.values("sbp"), strict=True
    ):
        parts.append(_plus(x(age), y(sbp)))
        count, _, rest = words.partition(": ")
        left = min(x(age) + 74, WIDTH - 10 - words_width(rest, 13))
        parts.append(heading(left, y(sbp) + 64, count, size=13))
        parts.append(paragraph(left, y(sbp) + 68, rest, 300, size=13))
    low = 436.0
    parts.append(tag("circle", cx=84.0, cy=low, r=5.0, fill="#ffffff", stroke=INK))
    parts.append(text(96, low + 5, "patient", "start", size=13))
    parts.append(tag("circle", cx=174.0, cy=low, r=5.0, fill=INK))
    parts.append(text(186, low + 5, "patient who smokes", "start", size=13))
    parts.append(_plus(354, low))
    parts.append(text(368, low + 5, "released record of a group", "start", size=13))
    description = "Fifteen patients by age and blood pressure, in three groups. " + ". ".join(
        f"Group {number} releases {words}" for number, words in enumerate(found.records, 1)
    )
    return Figure(parts, low + 18, "Persons, groups and what the groups release", description)


def hull(points: Iterable[Point]) -> list[Point]:
    """Return the corners of the smallest convex polygon around points."""
    ordered = sorted(points)
    found: list[Point] = []
    for run in (ordered, ordered[::-1]):
        side: list[Point] = []
        for point in run:
            while len(side) > 1 and _turn(side[-2], side[-1], point) <= 0:
                side.pop()
            side.append(point)
        found += side[:-1]
    return found


def _turn(a: Point, b: Point, c: Point) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _plus(x: float, y: float, arm: float = 9.0) -> str:
    d = f"M{x - arm:.1f} {y:.1f}h{2 * arm:.1f}M{x:.1f} {y - arm:.1f}v{2 * arm:.1f}"
    return tag("path", d=d, stroke="#a63603", stroke_width="4")


def rows_to_sums() -> Figure:
    """Draw the steps from rows to what leaves."""
    found = grouped_patients()
    n, age, sbp = found.table.sizes, found.table.values("age"), found.table.values("sbp")
    sums = [
        f"{n[of].sum()} persons: mean age {np.average(age[of], weights=n[of]):g}, "
        f"mean pressure {np.average(sbp[of], weights=n[of]):g}"
        for of in (age < _YOUNG, age >= _YOUNG)
    ]
    steps = (
        ("Rows", f"{len(PATIENTS)} patients with 3 values each", "never leave", AMBER),
        ("Groups", f"{len(n)} groups of at least {P} similar patients", "never leave", AMBER),
        ("Records", "\n".join(found.records), "stay, but made so that they may be known", GREEN),
        ("Sums", "\n".join(sums), "leave: a round that asks for 2 clusters", GREEN),
    )
    y, parts, said = 8.0, [], []
    for number, (title, words, fate, fill) in enumerate(steps):
        height = 18 + height_of(words, 380)
        parts.append(box(100, y, 400, height, fill))
        parts.append(heading(92, y + height / 2 + 5, title, "end"))
        parts.append(paragraph(112, y + 9, words, 380))
        parts.append(paragraph(516, y + height / 2 - 16, fate, 190))
        said.append(f"{title}: {'; '.join(words.splitlines())} ({fate})")
        y += height
        if number + 1 < len(steps):
            gap = 30.0 if number < 2 else 54.0
            parts.append(arrow([(300, y), (300, y + gap)]))
            if number == 2:
                wall = tag("path", d=f"M10 {y + 27:.1f}H710", stroke=INK, stroke_width="3")
                parts += [wall, label(605, y + 27, "the hospital ends here", 200, SIZE)]
            y += gap
    return Figure(parts, y + 10, "From rows to sums", ". ".join(said) + ".")


# --- resolution -----------------------------------------------------------------------------------

#: Mean age and pressure of four kinds of patients, their spread, and how many each site has.
KINDS = (((46, 125), 5, 70), ((64, 150), 5, 55), ((58, 118), 4, 45), ((74, 122), 3, 10))
SITES = ("north", "east", "south", "west")
FEATURES = (
    {"name": "age", "unit": "years", "lower": 0, "upper": 120},
    {"name": "sbp", "unit": "mmHg", "lower": 60, "upper": 250},
)


def hospitals() -> dict[str, FloatArray]:
    """Return the rows of four hospitals: three large kinds of patients and a small one."""
    rng = np.random.default_rng(3)
    return {
        site: np.vstack([np.rint(rng.normal(mean, sd, (n, 2))) for mean, sd, n in KINDS])
        for site in SITES
    }


@cache
def clustered(p: int) -> SessionResult:
    """Return the clusters that a session finds with the least group size p; 1: from rows."""
    policy = {"protection": "none"} if p == 1 else {"min_group_size": p}
    config = {"n_clusters": len(KINDS)}
    return simulate("fkm", hospitals(), config=config, features=FEATURES, policy=policy, seed=7)


def inertia_ratio(p: int) -> float:
    """Return the inertia of all rows with the centroids found, over that of those found from rows.

    In standard deviations of all rows.
    """
    every = np.vstack(list(hospitals().values()))

    def inertia(centroids: FloatArray) -> float:
        gaps = (every[:, None] - centroids) / every.std(axis=0)
        return float((gaps**2).sum(axis=2).min(axis=1).sum())

    return inertia(clustered(p).cluster_centers_) / inertia(clustered(1).cluster_centers_)


def resolution() -> Figure:
    """Draw the clusters of the same rows with groups of different sizes."""
    parts, said = [], []
    for column, p in enumerate((1, 5, 25)):
        left = 10.0 + column * 238
        drawn, words = _panel(left, p)
        parts.append(drawn)
        said.append(words)
    low = 346.0
    parts.append(tag("circle", cx=20.0, cy=low, r=2.0, fill=INK))
    parts.append(text(30, low + 5, "person, in the colour of the cluster", "start", size=13))
    parts.append(tag("circle", cx=284.0, cy=low, r=6.0, fill="none", stroke=INK))
    parts.append(text(296, low + 5, "record of a group", "start", size=13))
    parts.append(cross(444, low, 6))
    parts.append(text(458, low + 5, "centroid", "start", size=13))
    axes = "Across: age, 28 to 86 years. Up: systolic blood pressure, 100 to 168 mmHg."
    parts.append(paragraph(14, low + 16, axes, 700, size=13))
    title = "The same patients with groups of different sizes"
    return Figure(parts, low + 40, title, " ".join(said))


def _panel(left: float, p: int) -> tuple[str, str]:
    result, rows = clustered(p), hospitals()
    x, y = Axis(28, 86, left, left + 224), Axis(100, 168, 262, 46)
    centroids = np.asarray(result.cluster_centers_)
    order = np.argsort(centroids[:, 0])
    title = "p = 1: from rows" if p == 1 else f"p = {p}"
    parts = [heading(left, 20, title), box(left, 40, 224, 226)]
    every = np.vstack(list(rows.values()))
    labels = np.concatenate([result.labels_[site] for site in rows])
    for rank, cluster in enumerate(order):
        ink = PALETTE[(0, 1, 2, 3)[rank]]
        dots = "".join(f"M{x(a):.0f} {y(b):.0f}h0" for a, b in every[labels == cluster])
        style = {"stroke_width": "4", "stroke_linecap": "round", "stroke_opacity": "0.55"}
        parts.append(tag("path", d=dots, stroke=ink, fill="none", **style))
    for values in rows.values() if p > 1 else ():
        ages, pressures = (np.ascontiguousarray(each) for each in values.T)
        table = form_table([SourceColumn("age", ages), SourceColumn("sbp", pressures)], p)
        records = zip(table.values("age"), table.values("sbp"), table.sizes, strict=True)
        parts += [
            tag("circle", cx=x(a), cy=y(b), r=3 + size**0.5 / 2, fill="none", stroke=INK)
            for a, b, size in records
        ]
    parts += [cross(x(a), y(b), 7) for a, b in centroids]
    sizes = ", ".join(str(result.sizes_[k]) for k in order)
    warned = "a warning" if result.warnings_ else "no warning"
    quality = f"{inertia_ratio(p):.2f} times the inertia"
    parts.append(paragraph(left, 270, f"{sizes} persons\n{quality}\n{warned}", 228, size=13))
    return "".join(parts), f"{title}: clusters of {sizes} persons, {quality}, {warned}."


FIGURES = {
    "protected_table": protected_table,
    "rows_to_sums": rows_to_sums,
    "resolution": resolution,
}

if __name__ == "__main__":
    save(FIGURES)
