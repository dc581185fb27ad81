"""The points that the engine computes from at a site: its protected table's records."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedclust.data.mapping import as_dataset
from fedclust.data.outcome_rows import OutcomeBlock, taking_part
from fedclust.data.persons import SitePersons, read_persons
from fedclust.data.readings import session_points
from fedclust.data.sources import describe
from fedclust.data.table import LabelRows, Table, load
from fedclust.data.trajectories import long_trajectories
from fedclust.numeric.array_types import IntArray
from fedclust.protection.table import ProtectedTable, TooFewPersons, form_by_blocks
from fedclust.rounds import Plan
from fedclust.schema.scaling import own_bounds
from fedclust.schema.task import Points, row_points
from fedclust.wire.errors import DataError


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
        return load(
            source,
            plan.features,
            person=person,
            id_column=id_column,
            lacking=lacking,
            outcomes=plan.outcomes,
        )
    return LabelRows(source, plan.features, id_column, lacking, outcomes=plan.outcomes)


def site_data(
    plan: Plan,
    source: Any,
    rows: Table | LabelRows,
    p: int,
    person: Any = None,
) -> tuple[Points, tuple[str, ...], tuple[OutcomeBlock, ...]]:
    """Return the points of a site, the features that it has, and the persons whose outcomes count.

    Parameters
    ----------
    plan : Plan
    source : Source
    rows : Table or LabelRows
        See :func:`session_rows`.
    p : int
    person
        As in :func:`fedclust.data.persons.read_persons`.

    Raises
    ------
    DataError
    """
    if plan.policy.protection == "none":
        assert isinstance(rows, Table)  # noqa: S101  (session_rows)
        given = as_dataset(source)
        options = given.options
        for each in long_trajectories(options.resolved(), plan.features, options.mapping_name):
            message = "with protection: none each row counts as a person, and the rows of "
            message += f"{each.of.name!r} are values of a person; give a table with a row for each "
            message += f"person and the columns {each.of.columns[0].name!r} and so on"
            place = describe(given.source)
            raise DataError(place, "persons", message, column=each.sources[2])
        counted: tuple[OutcomeBlock, ...] = ()
        if rows.cells is not None:
            counted = (OutcomeBlock(rows.X, np.ones(len(rows.X), dtype=np.bool_), rows.cells),)
        return row_points(np.clip(rows.X, *own_bounds(plan.columns))), rows.features, counted
    lacking = plan.policy.missing == "mask"
    persons = read_persons(
        source, plan.features, person=person, lacking=lacking, outcomes=plan.outcomes
    )
    points, counted = form_counted(plan, persons, p)
    return points, held_features(plan, persons, points), counted


def no_points(plan: Plan) -> Points:
    """Return what a site with too few persons computes from."""
    return row_points(np.empty((0, len(plan.columns))))


def form_counted(
    plan: Plan, persons: SitePersons, p: int
) -> tuple[Points, tuple[OutcomeBlock, ...]]:
    """Form the protected table of persons; return its points, none of fewer than p persons.

    And, in a session with outcomes, the persons, to count these.

    Raises
    ------
    DataError
    """
    try:
        table, groups = form_once(persons, p)
    except TooFewPersons:
        return no_points(plan), ()
    points = table_points(persons, table)
    takes_part = taking_part(plan, points)[point_of_group(table)]
    counted, first = [], 0
    for block in persons.blocks() if plan.outcomes else ():
        own = groups[first : first + block.n]
        first += block.n
        known = own >= 0
        takes = takes_part[own[known]]
        counted.append(OutcomeBlock(persons.matrix(block)[known], takes, block.cells[known]))
    return points, tuple(counted)


def form_once(persons: SitePersons, p: int) -> tuple[ProtectedTable, NDArray[np.int32]]:
    """Form the table of persons who are not recognised again, and the group of each (n,) or -1.

    Raises
    ------
    DataError
    TooFewPersons
    """
    blocks = (block.sources for block in persons.blocks())
    return form_by_blocks(blocks, p, persons.sample, persons.n_persons)


def point_of_group(table: ProtectedTable) -> IntArray:
    """Return the place (m,) of each group of a table among its points: see :func:`table_points`."""
    return np.argsort(table.order())


def table_points(persons: SitePersons, table: ProtectedTable) -> Points:
    """Return a site's table as points in the session's columns; DataError if it does not fit."""
    return session_points(table, persons.readings, persons.codes(), persons.rows.origin.source)


def held_features(plan: Plan, persons: SitePersons, points: Points) -> tuple[str, ...]:
    """Return the features that the site has, by the header and what its groups release.

    And the outcomes that it answers.

    Raises
    ------
    DataError
        If it has none; or, in a session that needs every feature, if a smaller share of persons
        than ``min_present`` are in groups that release one.
    """
    shares = []
    for reading in persons.readings:
        name = reading.feature.name
        places = [j for j, column in enumerate(plan.columns) if column.feature == name]
        released = ~np.isnan(points.X[:, places]).any(axis=1)
        there = float(reading.column is not None)
        shares.append(points.sizes[released].sum() / points.n if points.n else there)
    rows, what = persons.rows, "of the persons are in groups that release it"
    return rows.held(np.array(shares), rows.min_present, what)
