"""Outcomes at a site: the columns that they are read from, and the cell of each person.

A person has one cell of each outcome, whatever is missing: the last one is for "no value". Cells
are never sent; ``protection.outcome_counts`` counts them with noise.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust import rounds
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.rounds import Plan
from fedclust.schema.errors import RuleViolation
from fedclust.schema.feature import Feature, Outcome
from fedclust.schema.model import Memory
from fedclust.schema.result import Result
from fedclust.schema.task import Points

#: The cell of each person (n,) or row, in each of q outcomes: (n, q).
CellArray: TypeAlias = NDArray[np.int8]
#: Below this share of persons a session that drops is not about the site's persons any more.
_FEW_STAY = 0.8


def outcome_columns(outcomes: Sequence[Outcome]) -> tuple[Feature, ...]:
    """Return the columns that outcomes are read from, each once."""
    columns = {column.name: column for outcome in outcomes for column in outcome.columns}
    return tuple(columns.values())


def with_outcomes(features: Sequence[Feature], outcomes: Sequence[Outcome]) -> tuple[Feature, ...]:
    """Return the features, and the columns of outcomes that are none."""
    names = {feature.name for feature in features}
    further = (each for each in outcome_columns(outcomes) if each.name not in names)
    return (*features, *further)


# --- cells ----------------------------------------------------------------------------------------


def cells_of_rows(
    outcome: Outcome, values: FloatArray, event: FloatArray | None = None
) -> CellArray:
    """Return the cell (n,) of each row.

    Parameters
    ----------
    outcome : Outcome
    values : (n,) float64
        In the session's unit, or 0 and 1, or indices of levels; NaN where missing or unknown.
    event : (n,) float64, optional
        Of a time: 1 where the event occurred at the time, 0 where the person left then.
    """
    known, edges = ~np.isnan(values), np.array(outcome.edges or ())
    if outcome.kind == "ordered":
        found = np.searchsorted(edges, values, side="right")
    elif outcome.kind == "time" and event is not None:
        known &= (values >= 0.0) & ((event == 0.0) | (event == 1.0))
        # An event at the end of an interval is in it; who left then was there for all of it.
        occurred = np.searchsorted(edges, values, side="left")
        left = np.searchsorted(edges, values, side="right")
        found = np.minimum(np.where(event == 1.0, 2 * occurred, 2 * left + 1), 2 * len(edges))
    else:
        found = np.where(known, values, 0.0).astype(np.int64)
    return np.where(known, found, len(outcome.cells) - 1).astype(np.int8)


def cells_of_persons(outcomes: Sequence[Outcome], cells: CellArray, persons: IntArray) -> CellArray:
    """Return each person's cell of each outcome, given those (n, q) of rows and their persons (n,).

    Rows without a value do not count. Of a time the last row counts, else the commonest cell. Of
    equally common ones the last counts: yes, as of a death that only one row has, or the highest.
    """
    n_persons = int(persons.max(initial=-1)) + 1
    found = np.empty((n_persons, len(outcomes)), dtype=np.int8)
    for j, outcome in enumerate(outcomes):
        own, missing = cells[:, j], len(outcome.cells) - 1
        chosen = np.full(n_persons, missing, dtype=np.int8)
        if outcome.kind == "time":
            known = own != missing
            # Of several rows of one person, NumPy keeps the last.
            chosen[persons[known]] = own[known]
        else:
            most = np.zeros(n_persons, dtype=np.int64)
            for cell in range(missing):
                rows = np.bincount(persons[own == cell], minlength=n_persons)
                chosen[rows >= np.maximum(most, 1)] = cell
                np.maximum(most, rows, out=most)
        found[:, j] = chosen
    return found


def differing_outcomes(
    outcomes: Sequence[Outcome], cells: CellArray, persons: IntArray
) -> list[tuple[str, int]]:
    """Return the outcomes in which rows of a person differ, and for how many; not of times."""
    found = []
    for outcome, own in zip(outcomes, cells.T, strict=True):
        known = own < len(outcome.cells) - 1
        pairs = np.unique(np.stack([persons[known], own[known]]), axis=1)
        differing = int((np.bincount(pairs[0].astype(np.int64)) > 1).sum())
        if differing and outcome.kind != "time":
            found.append((outcome.name, differing))
    return found


# --- persons by cluster ---------------------------------------------------------------------------


@dataclass(frozen=True)
class OutcomeBlock:
    """Some of the persons who count.

    Attributes
    ----------
    X : (n, d) float64
        Their values, as :func:`fedclust.schema.encoding.encode_features` gives them.
    takes_part : (n,) bool
        Whether their group takes part in the session.
    cells : (n, q) int8
    """

    X: FloatArray = field(repr=False)
    takes_part: BoolArray = field(repr=False)
    cells: CellArray = field(repr=False)


def taking_part(plan: Plan, points: Points) -> BoolArray:
    """Return which points (m,) take part: with ``missing: drop`` those without a missing value."""
    if plan.policy.missing != "drop":
        return np.ones(len(points.X), dtype=np.bool_)
    return np.asarray(~np.isnan(points.X).any(axis=1))


@dataclass(frozen=True)
class Staying:
    """The shares of a table's groups and persons that ``missing: drop`` does not leave out."""

    groups: float
    persons: float

    @property
    def few(self) -> bool:
        """Whether so few stay that imputing is better."""
        return self.persons < _FEW_STAY

    @property
    def text(self) -> str:
        """The shares in a sentence, and what to do if few stay."""
        found = "missing: drop leaves out groups that lack a column of the session: "
        found += f"{self.groups:.1%} of the groups stay, with {self.persons:.1%} of the persons"
        return found + ("; ask the analyst for missing: impute" if self.few else "")


def measure_staying(plan: Plan, points: Points) -> Staying | None:
    """Return how much of a site's table stays in a session; None if nothing is left out."""
    stays = taking_part(plan, points)
    if plan.policy.protection == "none" or stays.all():
        return None
    return Staying(float(stays.mean()), float(points.sizes[stays].sum() / points.n))


def label_persons(
    plan: Plan,
    model: Result,
    blocks: Iterable[OutcomeBlock],
    memory: Memory,
    site: str,
    mask: BoolArray,
) -> tuple[NDArray[np.int16], CellArray]:
    """Return the cluster (n,) and the cells (n, q) of all persons who count; -1 for no cluster.

    Rows are labelled a block at a time, and only labels and cells are kept.

    Raises
    ------
    RuleViolation
        The model cannot label rows: it came with a task, so the task is refused.
    """
    clusters, cells = [], []
    for block in blocks:
        try:
            labels = rounds.label(plan, model, block.X, memory, site, mask)
            own = np.array(labels, dtype=np.int64).reshape(len(block.X))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            message = "the model of the task cannot label rows"
            raise RuleViolation("task", message, "/parameters/model") from None
        # A refusal here would say whether a person is near that part of the model.
        own[(own >= len(model.centroids)) | ~block.takes_part] = -1
        clusters.append(np.maximum(own, -1).astype(np.int16))
        cells.append(block.cells)
    q = len(plan.outcomes)
    return (
        np.concatenate([np.zeros(0, dtype=np.int16), *clusters]),
        np.concatenate([np.zeros((0, q), dtype=np.int8), *cells]),
    )
