"""Draw which questions lead to which method: ``python docs/choosing_figure.py``."""

from __future__ import annotations

from collections.abc import Callable

from diagrams import (
    BLUE,
    GREEN,
    WIDTH,
    arrow,
    box,
    heading,
    height_of,
    label,
    paragraph,
    save,
    word_box,
)
from fedclust.report.drawing import Figure

#: Each question, the answer that leads to the right, and what stands there: methods and a remark.
QUESTIONS = (
    (
        "Do all sites have the features that you want to cluster by?",
        "no",
        "overlap, overlap_oneshot",
        "several rounds, or one",
    ),
    (
        "Are the clusters of any shape, such as rings or curves, with gaps between them?",
        "yes",
        "spectral",
        "one round, needs many rows",
    ),
    (
        "Do you need a proof that no better centroids exist, for a small question?",
        "yes",
        "dual",
        "many rounds, small data",
    ),
    (
        "Must it be Lloyd's algorithm, step by step, or start from centroids that you give?",
        "yes",
        "lloyd",
        "about ten rounds",
    ),
    (
        "Do you want each person's probability of every class, or do clusters differ in spread?",
        "yes",
        "mixture",
        "ten to twenty rounds",
    ),
    (
        "Is every further round expensive, because people release it or sites are seldom online?",
        "yes",
        "kfed",
        "one round",
    ),
)
DEFAULT = ("fkm", "about ten rounds")
_LEFT, _RIGHT, _BOX = 8.0, 470.0, 372.0
_STEP, _SIZE = 74.0, 13


def draw() -> Figure:
    """Return the figure: questions from top to bottom, methods on the right."""
    parts, said = [], []
    middle = _LEFT + _BOX / 2
    for number, (question, answer, method, remark) in enumerate(QUESTIONS):
        y = 8 + number * _STEP
        other = "no" if answer == "yes" else "yes"
        parts.append(word_box(_LEFT, y, _BOX, 48, question, BLUE))
        parts.append(arrow([(_LEFT + _BOX, y + 24), (_RIGHT, y + 24)]))
        parts.append(label((_LEFT + _BOX + _RIGHT) / 2 - 4, y + 24, answer, 40, _SIZE))
        parts.append(arrow([(middle, y + 48), (middle, y + _STEP)]))
        parts.append(label(middle, y + 59, other, 40, _SIZE))
        parts.append(_method(_RIGHT, y, WIDTH - 8 - _RIGHT, method, remark))
        said.append(f"{question} If {answer}: {method}, {remark}.")
    y = 8 + len(QUESTIONS) * _STEP
    parts.append(_method(_LEFT, y, _BOX, *DEFAULT))
    said.append(f"Otherwise: {', '.join(DEFAULT)}.")
    return Figure(parts, y + 56, "Which method", " ".join(said))


def _method(x: float, y: float, width: float, name: str, remark: str) -> str:
    """Return a box with the name of a method and a remark."""
    words = paragraph(x + width / 2, y + 24, remark, width - 12, size=_SIZE, anchor="middle")
    height = 30 + max(height_of(remark, width - 12, _SIZE), 18)
    return box(x, y, width, height, GREEN) + heading(x + width / 2, y + 19, name, "middle") + words


FIGURES: dict[str, Callable[[], Figure]] = {"choosing_a_method": draw}

if __name__ == "__main__":
    save(FIGURES)
