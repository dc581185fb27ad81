"""The points that the engine computes from at a site: its protected table's records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedclust.data.person_blocks import SitePersons
from fedclust.data.persons import read_persons
from fedclust.data.readings import session_points
from fedclust.data.table import LabelRows, Table, load
from fedclust.engine import Plan
from fedclust.errors import DataError
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.protection.figures import TableFigures, measure_table
from fedclust.protection.table import (
    ProtectedTable,
    TooFewPersons,
    encode_sources,
    form_table_by_blocks,
    group_persons,
    release_blocks,
)
from fedclust.schema.points import Points, row_points
from fedclust.schema.scaling import own_bounds


def session_rows(
    plan: Plan, source: Any, *, person: Any = None, id_column: str | None = None
) -> Table | LabelRows:
    """Return a site's rows: in memory with ``protection: none``, else read only for labels.

    Raises
    ------
    DataError
    """
    lacking = plan.policy.missing == "mask"
    if plan.policy.protection == "none":
        return load(source, plan.released, person=person, id_column=id_column, lacking=lacking)
    return LabelRows(source, plan.released, id_column, lacking)


def site_data(
    plan: Plan,
    source: Any,
    rows: Table | LabelRows,
    p: int,
    *,
    person: Any = None,
    id_column: str | None = None,
) -> tuple[Points, tuple[str, ...]]:
    """Return the points that a site computes from, and the features that it has.

    Parameters
    ----------
    plan : Plan
    source : Source
    rows : Table or LabelRows
        See :func:`session_rows`.
    p : int
    person, id_column
        As in :func:`fedclust.data.persons.read_persons`.

    Raises
    ------
    DataError
    """
    if plan.policy.protection == "none":
        assert isinstance(rows, Table)  # noqa: S101  (session_rows)
        outcomes = rows.outcomes
        if outcomes is not None:
            outcomes = np.clip(outcomes, *own_bounds(plan.outcome_columns))
        return row_points(np.clip(rows.X, *own_bounds(plan.columns)), outcomes), rows.features
    lacking = plan.policy.missing == "mask"
    persons = read_persons(
        source, plan.released, person=person, id_column=id_column, lacking=lacking
    )
    points = form_points(plan, persons, p)
    return points, held_features(plan, persons, points)


def no_points(plan: Plan) -> Points:
    """Return what a site with too few persons computes from."""
    outcomes = np.empty((0, len(plan.outcome_columns)))
    return row_points(np.empty((0, len(plan.columns))), outcomes)


def form_points(plan: Plan, persons: SitePersons, p: int) -> Points:
    """Form the protected table of persons, and return its points; none of fewer than p persons.

    Raises
    ------
    DataError
    """
    blocks = (block.sources for block in persons.blocks())
    try:
        table = form_table_by_blocks(
            persons.describe(p), blocks, p, persons.n_persons, persons.apart
        )
    except TooFewPersons:
        return no_points(plan)
    return table_points(persons, table)


def measure_persons(plan: Plan, persons: SitePersons, p: int) -> tuple[Points, TableFigures | None]:
    """Do what :func:`form_points` does, and also measure how close the table is to the persons.

    Raises
    ------
    DataError
    """
    columns, labels = persons.describe(p), []
    first = 0

    def grouped() -> Iterator[tuple[list[FloatArray], IntArray]]:
        nonlocal first
        for block in persons.blocks():
            encoded = encode_sources(columns, block.sources)
            groups = group_persons(columns, encoded, p, persons.n_persons, persons.apart)
            # Kept for the second pass; int32 halves the memory.
            labels.append((first + groups).astype(np.int32))
            first += int(groups.max()) + 1
            yield encoded, groups

    try:
        table = release_blocks(columns, grouped(), p)
    except TooFewPersons:
        return no_points(plan), None
    blocks = (
        (block.sources, groups.astype(np.int64))
        for block, groups in zip(persons.blocks(), labels, strict=True)
    )
    return table_points(persons, table), measure_table(table, blocks)


def table_points(persons: SitePersons, table: ProtectedTable) -> Points:
    """Return a site's table as points in the session's columns; DataError if it does not fit."""
    return session_points(table, persons.readings, persons.codes(), persons.source)


def held_features(plan: Plan, persons: SitePersons, points: Points) -> tuple[str, ...]:
    """Return the features that the site has, by the header and what its groups release.

    The outcomes for which it has a column follow.

    Raises
    ------
    DataError
        If it has none; or, in a session that needs every feature, if a smaller share of persons
        than ``min_present`` are in groups that release one.
    """
    lacking = plan.policy.missing == "mask"
    held = []
    for reading in persons.readings:
        name = reading.feature.name
        if reading.feature.role == "outcome":
            continue
        places = [j for j, column in enumerate(plan.columns) if column.feature == name]
        released = ~np.isnan(points.X[:, places]).any(axis=1)
        share = points.sizes[released].sum() / points.n if points.n else 1.0
        if reading.column is None or (lacking and (not share or share < persons.min_present)):
            continue
        if share < persons.min_present:
            message = f"{share:.1%} of the persons are in groups that release it, and "
            message += f"min_present (--min-present) asks for {persons.min_present:.1%}; only a "
            message += "session with missing: mask does without it"
            raise DataError(persons.source, "too-few-present", message, column=reading.column)
        held.append(name)
    if not held:
        message = "it has none of the session's features; docs/data.md says how columns of other "
        message += "names are found"
        raise DataError(persons.source, "no-features", message)
    there = {each.feature.name for each in persons.readings if each.column is not None}
    return (*held, *(outcome.name for outcome in plan.outcomes if outcome.name in there))
