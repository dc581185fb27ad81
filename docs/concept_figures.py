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
    RED,
    SIZE,
    WHITE,
    WIDTH,
    Edge,
    SequenceDiagram,
    arrow,
    box,
    cross,
    graph,
    heading,
    height_of,
    paragraph,
    save,
    zone,
)
from fedclust.report.drawing import Figure, tag, text, words_width

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
        x += 52 + words_width(words, SIZE)
    dashed = tag("path", d=f"M10 {low + 32:.1f}h26", stroke=INK, stroke_dasharray="7 5")
    parts.append(dashed + paragraph(44, low + 23, "trust boundary", 240))
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
    return Figure(parts, low + 50, "What is stored where, and what travels", description)


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


def session() -> Figure:
    """Draw who does what in a session, in order."""
    drawing = SequenceDiagram(
        {"operator": GREY, "analyst": BLUE, "coordinator": BLUE, "each site": GREEN}
    )
    drawing.message("operator", "coordinator", "registers sites and analysts; each gets a token")
    drawing.message("analyst", "coordinator", "definition: purpose, features, method, sites")
    drawing.note("coordinator", "freezes the definition and computes its hash")
    drawing.message("coordinator", "each site", "invitation: the definition and its hash")
    drawing.note("each site", "reads what would leave; checks its own data; says yes or no")
    drawing.message("each site", "coordinator", "consent, with the hash")
    with drawing.frame("every round"):
        drawing.message("coordinator", "each site", "task")
        drawing.note("each site", "computes a summary from its protected table")
        drawing.message("each site", "coordinator", "submission")
        drawing.message("coordinator", "each site", "receipt", reply=True)
        drawing.note("coordinator", "combines the submissions of all sites")
    drawing.message("coordinator", "analyst", "result")
    drawing.message("coordinator", "each site", "result")
    drawing.note("each site", "labels its own rows; the labels stay")
    drawing.note("coordinator", "30 days later: deletes the contents of all submissions")
    return drawing.figure("A session, step by step")


def crash_before_sending() -> Figure:
    """Draw what happens if a site's program ends before it has sent its answer."""
    drawing = SequenceDiagram({"site": GREEN, "coordinator": BLUE})
    drawing.message("coordinator", "site", "task of round 3")
    drawing.note("site", "computes its answer and writes the exact bytes to its journal")
    drawing.crash(
        "site",
        "The program ends.",
        "starts again: the journal holds an answer of round 3 and no receipt for it",
    )
    drawing.message("site", "coordinator", "submission: the bytes of the journal")
    drawing.note("coordinator", "stores the submission")
    drawing.message("coordinator", "site", "receipt", reply=True)
    drawing.note("site", "enters the receipt in ledger and journal")
    return drawing.figure("The site ends before it has sent its answer")


def crash_before_receipt() -> Figure:
    """Draw what happens if the receipt does not arrive."""
    drawing = SequenceDiagram({"site": GREEN, "coordinator": BLUE})
    drawing.note("site", "has written its answer to the journal")
    drawing.message("site", "coordinator", "submission")
    drawing.note("coordinator", "stores the submission")
    drawing.message("coordinator", "site", "receipt", reply=True, lost=True)
    drawing.note("site", "cannot know whether the submission was stored")
    drawing.message("site", "coordinator", "the same bytes again")
    drawing.note(
        "coordinator",
        "has a submission of this site for this round, with the same SHA-256: stores nothing",
    )
    drawing.message("coordinator", "site", "the first receipt, once more", reply=True)
    drawing.note("site", "enters the receipt in ledger and journal")
    return drawing.figure("The receipt is lost")


def crash_in_aggregation() -> Figure:
    """Draw what happens if the coordinator ends while it combines a round's submissions."""
    drawing = SequenceDiagram({"site": GREEN, "coordinator": BLUE, "database": GREY})
    drawing.message("site", "coordinator", "last submission of round 3")
    drawing.message(
        "coordinator",
        "database",
        "one transaction: the submission is stored, round 3 is aggregating",
    )
    drawing.message("coordinator", "site", "receipt", reply=True)
    drawing.message("coordinator", "database", "takes the lease of round 3")
    drawing.note("coordinator", "computes from all submissions")
    drawing.crash(
        "coordinator",
        "The program ends.",
        "this worker after its start, or another worker, takes over the lease",
    )
    drawing.message("database", "coordinator", "the same submissions, the same state", reply=True)
    drawing.note("coordinator", "computes again and gets the same bytes")
    drawing.message(
        "coordinator",
        "database",
        "one transaction, only with the lease: round 3 is closed, round 4 is open",
    )
    drawing.message("coordinator", "site", "task of round 4")
    return drawing.figure("The coordinator ends while it aggregates")


@dataclass(frozen=True)
class Lane:
    """One site in a round: when it submits, as a share of the axis, and what is said of it."""

    site: str
    submits: float
    words: str
    accepted: bool = True


_DEADLINE = 0.62
_FIRST = (
    Lane("north", 0.14, "quick"),
    Lane("south", 0.36, "the program was started again in between"),
    Lane("west", 0.55, "slow"),
)
#: Each with its title, its lanes, and where it closes.
_ROUNDS = (
    (
        "Quorum of 3: the round closes at its deadline",
        (*_FIRST, Lane("east", 0.84, "late: refused", accepted=False)),
        _DEADLINE,
    ),
    (
        "No quorum (the default): the round waits for all sites",
        (*_FIRST, Lane("east", 0.84, "late: accepted")),
        0.84,
    ),
)


def round_timeline() -> Figure:
    """Draw when sites answer a round, with and without a quorum."""
    parts, said, y = [], [], 8.0
    for title, lanes, closes in _ROUNDS:
        parts.append(_lanes(y, title, lanes, closes))
        each = "; ".join(f"{lane.site} is {lane.words}" for lane in lanes)
        said.append(f"{title}. {each}.")
        y += 270
    parts.append(box(84, y, 26, 14, AMBER) + paragraph(118, y - 2, "computes", 100))
    parts.append(_mark(224, y + 7, accepted=True) + paragraph(238, y - 2, "receipt", 100))
    parts.append(_mark(324, y + 7, accepted=False) + paragraph(340, y - 2, "refusal", 100))
    said.append("After the round has closed, the coordinator aggregates and opens the next round.")
    return Figure(parts, y + 28, "A round in time", " ".join(said))


def _at(share: float) -> float:
    return 84.0 + 620.0 * share


def _mark(x: float, y: float, *, accepted: bool) -> str:
    if accepted:
        return tag("circle", cx=x, cy=y, r=7.0, fill="#00694d")
    return cross(x, y)


def _lanes(y: float, title: str, lanes: tuple[Lane, ...], closes: float) -> str:
    top, low = y + 52, y + 52 + 44 * len(lanes)
    begins, ends = _at(closes + 0.02), _at(closes + 0.1)
    parts = [heading(10, y + 16, title)]
    parts.append(box(begins, top, ends - begins, low - top, BLUE))
    parts.append(paragraph((begins + ends) / 2, low + 8, "aggregation", 120, anchor="middle"))
    deadline = _at(_DEADLINE)
    if closes > _DEADLINE:
        parts.append(box(deadline, top, _at(closes) - deadline, low - top, RED))
        middle = (deadline + _at(closes)) / 2
        parts.append(paragraph(middle, low + 8, "overdue", 100, anchor="middle"))
    for number, lane in enumerate(lanes):
        middle = top + 14 + 44 * number
        parts.append(text(76, middle + 5, lane.site, "end", size=14))
        start = _at(0) if lane.submits < _DEADLINE else _at(lane.submits - 0.16)
        parts.append(box(start, middle - 7, _at(lane.submits) - start, 14, AMBER))
        parts.append(_mark(_at(lane.submits), middle, accepted=lane.accepted))
        parts.append(paragraph(start + 2, middle + 9, lane.words, 400, size=_SMALL))
    d = f"M{deadline:.1f} {top - 8:.1f}V{low + 4:.1f}"
    parts.append(tag("path", d=d, stroke=INK, stroke_width="2", stroke_dasharray="6 4"))
    parts.append(paragraph(deadline, top - 28, "deadline", 100, anchor="middle"))
    parts.append(arrow([(_at(0), low + 4), (_at(1), low + 4)]))
    parts.append(paragraph(_at(0), low + 8, "task handed out", 140))
    return "".join(parts)


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
    "session": session,
    "round": round_timeline,
    "crash_before_sending": crash_before_sending,
    "crash_before_receipt": crash_before_receipt,
    "crash_in_aggregation": crash_in_aggregation,
}

if __name__ == "__main__":
    save(FIGURES)
