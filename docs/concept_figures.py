"""Draw the figures of the concepts and of the privacy pages: ``python docs/concept_figures.py``.

A test fails when a figure in ``docs/figures`` differs from what this draws.
"""

from __future__ import annotations

from dataclasses import dataclass

from diagrams import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    INK,
    WHITE,
    WIDTH,
    Edge,
    SequenceDiagram,
    arrow,
    box,
    graph,
    heading,
    height_of,
    paragraph,
    save,
    words_width,
    zone,
)
from fedclust.report.drawing import Figure, tag

_SMALL = 13
_EDGE, _GAP = 22.0, 14.0


@dataclass(frozen=True)
class Store:
    """Something that is stored: what it holds, and for how long."""

    title: str
    holds: str
    kept: str
    fill: str = WHITE

    def height(self, width: float) -> float:
        inside = width - 20
        kept = height_of(self.kept, inside, _SMALL, bold=True)
        return 40 + height_of(self.holds, inside, _SMALL) + kept

    def draw(self, x: float, y: float, width: float, height: float) -> str:
        kept_height = height_of(self.kept, width - 20, _SMALL, bold=True)
        return (
            box(x, y, width, height, self.fill)
            + heading(x + 10, y + 20, self.title)
            + paragraph(x + 10, y + 28, self.holds, width - 20, size=_SMALL)
            + paragraph(
                x + 10, y + height - kept_height - 6, self.kept, width - 20, size=_SMALL, bold=True
            )
        )

    def __str__(self) -> str:
        return f"{self.title}: {self.holds} {self.kept}"


HOSPITAL = (
    (
        Store(
            "Patient rows",
            "The hospital's file or database. fedclust reads it and changes nothing.",
            "Stay, by the hospital's own rules.",
            AMBER,
        ),
        Store(
            "Protected table",
            "Each person once in a group of at least p; what each group releases; keyed hashes of "
            "ids and values, and their key.",
            "Stays. Keep it for good, with a backup.",
            GREEN,
        ),
        Store(
            "Journal",
            "The exact bytes of each submission, written before they are sent.",
            "Stays. Until the hospital deletes it.",
            GREEN,
        ),
    ),
    (
        Store(
            "Labels",
            "The cluster of each of the hospital's rows, computed here from the result.",
            "Stay, in files that the hospital names.",
            AMBER,
        ),
        Store(
            "Consent",
            "The data manager reads the definition and what would leave, and says yes or no.",
            "Stays in the journal.",
            WHITE,
        ),
        Store(
            "Ledger",
            "One line for each body that left, with its hash, and for each review and approval.",
            "Stays. Until the hospital deletes it.",
            GREEN,
        ),
    ),
)
COORDINATOR = (
    (
        Store(
            "Submissions",
            "One for each site and round, with its receipt.",
            "Contents: until 30 days after the session's end (a setting). Hash, size, receipt "
            "and times stay.",
            GREEN,
        ),
        Store(
            "State of the method",
            "The numbers from which the next round continues.",
            "Until 30 days after the session's end (the same setting).",
            GREEN,
        ),
        Store(
            "Result",
            "The clusters: centroids, sizes, means and standard deviations.",
            "Stays.",
            BLUE,
        ),
    ),
    (
        Store(
            "Definition and tasks",
            "What is agreed for the session, and what each round asks.",
            "Stay.",
            BLUE,
        ),
        Store(
            "Accounts",
            "Names and e-mail addresses. Of tokens only a keyed hash.",
            "Stay. An address until an operator removes it.",
            WHITE,
        ),
        Store(
            "Audit trail",
            "Who did what and when: names, numbers and rules, never data.",
            "Stays.",
            WHITE,
        ),
    ),
)
_TO_COORDINATOR = (
    "Summaries only: counts, means and sums over groups of at least p persons. Also consent and "
    "what the site declares: its features, size band and versions."
)
_TO_HOSPITAL = "Definition, tasks, receipts, result."
_FROM_ANALYST = "Definition of the session."
_TO_ANALYST = "Progress and result. No submission."
_FROM_OPERATOR = "Accounts; closes rounds, excludes sites."
_TO_OPERATOR = "Overview, results, audit trail. No page and no address returns a submission."
_ANALYST = "Keeps the result and the report, by the rules of the study."
_OPERATOR = (
    "Runs the machine: database, backups and secret key. Can read the database, so can read "
    "stored submissions."
)
_COLOURS = (
    (AMBER, "single persons"),
    (GREEN, "groups of at least p persons"),
    (BLUE, "the session and its clusters"),
)


def _store_rows(y: float, rows: tuple[tuple[Store, ...], ...]) -> tuple[str, float, list[float]]:
    """Return rows of boxes, their lower edge, and the middle of each row."""
    width = (WIDTH - 2 * _EDGE - 2 * 34) / 3
    parts, middles = [], []
    for row in rows:
        height = max(store.height(width) for store in row)
        for number, store in enumerate(row):
            parts.append(store.draw(_EDGE + number * (width + 34), y, width, height))
        middles.append(y + height / 2)
        y += height + 24
    return "".join(parts), y - 24, middles


def _across(number: int, middle: float) -> str:
    """Return an arrow from box ``number`` of a row to the next."""
    width = (WIDTH - 2 * _EDGE - 2 * 34) / 3
    x = _EDGE + number * (width + 34) + width
    return arrow([(x, middle), (x + 34, middle)])


def data_flow() -> Figure:
    """Draw what is stored where, for how long, and what crosses a trust boundary."""
    inside, hospital_end, middles = _store_rows(46, HOSPITAL)
    parts = [zone(10, 8, 700, hospital_end + 6, "Hospital", "#fffaf0"), inside]
    parts += [_across(0, middles[0]), _across(1, middles[0])]
    gap, top = hospital_end + 14, hospital_end + 14 + 118
    inside, end, middles = _store_rows(top + 38, COORDINATOR)
    parts += [zone(10, top, 700, end - top + 14, "Coordinator", "#f4f9fc"), inside]
    parts += [_across(0, middles[0]), _across(1, middles[0]), _wall(top - 28, 360)]
    parts += [
        arrow([(60, top), (60, gap)]),
        paragraph(72, gap + 10, _TO_HOSPITAL, 170, size=_SMALL),
        arrow([(600, gap), (600, top)]),
        paragraph(588, gap + 10, _TO_COORDINATOR, 380, size=_SMALL, anchor="end"),
    ]
    gap, bottom = end + 14, end + 14 + 132
    parts += [
        _wall(bottom - 28, 290),
        arrow([(40, bottom), (40, gap)]),
        paragraph(52, gap + 12, _FROM_ANALYST, 120, size=_SMALL),
        arrow([(190, gap), (190, bottom)]),
        paragraph(202, gap + 12, _TO_ANALYST, 130, size=_SMALL),
        arrow([(390, bottom), (390, gap)]),
        paragraph(402, gap + 12, _FROM_OPERATOR, 120, size=_SMALL),
        arrow([(530, gap), (530, bottom)]),
        paragraph(542, gap + 12, _TO_OPERATOR, 168, size=_SMALL),
        zone(10, bottom, 340, 88, "Analyst", "#f7f7f7"),
        paragraph(22, bottom + 30, _ANALYST, 316, size=_SMALL),
        zone(370, bottom, 340, 88, "Operator", "#f7f7f7"),
        paragraph(382, bottom + 30, _OPERATOR, 316, size=_SMALL),
    ]
    x, low = 10.0, bottom + 106
    for fill, words in _COLOURS:
        parts.append(box(x, low, 26, 16, fill) + paragraph(x + 34, low - 1, words, 240))
        x += 52 + words_width(words)
    dashed = tag("path", d=f"M{x:.1f} {low + 8:.1f}h26", stroke=INK, stroke_dasharray="7 5")
    parts.append(dashed + paragraph(x + 34, low - 1, "trust boundary", 120))
    stores = [
        f"{place}: " + " ".join(str(store) for row in rows for store in row)
        for place, rows in (("In the hospital", HOSPITAL), ("At the coordinator", COORDINATOR))
    ]
    description = " ".join(
        [
            *stores,
            "Each party is a trust boundary of its own. Only HTTPS crosses a boundary.",
            f"From hospital to coordinator: {_TO_COORDINATOR}",
            f"From coordinator to hospital: {_TO_HOSPITAL}",
            f"From analyst to coordinator: {_FROM_ANALYST} Back: {_TO_ANALYST}",
            f"From operator to coordinator: {_FROM_OPERATOR} Back: {_TO_OPERATOR}",
            f"Analyst: {_ANALYST} Operator: {_OPERATOR}",
        ]
    )
    return Figure(parts, low + 26, "What is stored where, and what travels", description)


def _wall(y: float, middle: float) -> str:
    """Return a line that only HTTPS crosses, with its name around ``middle``."""
    line = tag("path", d=f"M10 {y:.1f}H710", stroke=INK, stroke_width="3")
    name = heading(middle, y + 5, "HTTPS, encrypted", "middle")
    return line + box(middle - 85, y - 14, 170, 28, GREY) + name


def protocol() -> Figure:
    """Draw a session by its requests, for the page of the protocol."""
    drawing = SequenceDiagram({"analyst": BLUE, "coordinator": BLUE, "each site": GREEN})
    drawing.message("analyst", "coordinator", "POST /v1/sessions (definition)")
    drawing.message("each site", "coordinator", "GET /v1/sessions/heart-2026")
    drawing.note("each site", "shows the definition and what leaves, asks for consent")
    drawing.message("each site", "coordinator", "PUT .../participation (hash of the definition)")
    with drawing.frame("every round"):
        drawing.message("each site", "coordinator", "GET .../task?wait=25 (If-None-Match)")
        drawing.message("coordinator", "each site", "200 task, digest, ETag", reply=True)
        drawing.note("each site", "local step, check, journal, ledger")
        drawing.message("each site", "coordinator", "PUT .../rounds/3/submission")
        drawing.message("coordinator", "each site", "201 receipt, Fedclust-Task-ETag", reply=True)
    drawing.message("each site", "coordinator", "GET .../result")
    drawing.note("each site", "labels its own rows")
    return drawing.figure("A session by its requests")


#: Columns and rows of the tables in the figure.
_TABLES = {
    "principals": (0, 0),
    "tokens": (1, 0),
    "sign_ins": (2, 0),
    "studies": (1, 1),
    "study_sites": (2, 1),
    "participations": (0, 2),
    "sessions": (1, 2),
    "rounds": (2, 2),
    "states": (0, 3),
    "results": (1, 3),
    "addressees": (2, 3),
    "submissions": (2, 4),
}
_RELATIONS = (
    Edge("principals", "tokens", "holds 0..n"),
    Edge("tokens", "sign_ins", "exchanged for 0..n"),
    Edge("studies", "study_sites", "names 0..n"),
    Edge("studies", "sessions", "groups 0..n"),
    Edge("sessions", "participations", "invites 0..n"),
    Edge("sessions", "rounds", "has 0..n"),
    Edge("sessions", "states", "continues from 0..n"),
    Edge("sessions", "results", "ends with 0..1"),
    Edge("rounds", "addressees", "asks 0..n"),
    Edge("addressees", "submissions", "answers 0..1"),
)


def data_model() -> Figure:
    """Draw which table of the coordinator refers to which."""
    places = {name: (105 + 255.0 * x, 30 + 96.0 * y) for name, (x, y) in _TABLES.items()}
    return graph("Tables of the coordinator", places, _RELATIONS)


FIGURES = {
    "data_flow": data_flow,
    "data_model": data_model,
    "protocol": protocol,
}

if __name__ == "__main__":
    save(FIGURES)
