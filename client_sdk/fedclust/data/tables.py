"""What the engine computes from at a site: the points of its protected table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedclust.algorithms.base import Feature, Points, SiteData
from fedclust.algorithms.columns import columns_of, undone
from fedclust.algorithms.engine import Plan
from fedclust.algorithms.points import row_points, table_points
from fedclust.data.table import Table
from fedclust.protection.columns import Source
from fedclust.protection.table import TooFewPersons, form_table, person_values


def site_data(plan: Plan, table: Table) -> SiteData | Points:
    """Return a site's rows as the method takes them: as weighted points, or as they are."""
    if not plan.method.on_points:
        return SiteData(table.X, table.persons)
    if plan.policy.protection == "none":
        return row_points(table.X)
    sources = tuple(_source(plan, feature, table.X) for feature in plan.features)
    if table.persons is not None:
        sources = person_values(sources, table.persons)
    try:
        protected = form_table(sources, plan.policy.min_group_size)
    except TooFewPersons:
        return row_points(np.empty((0, len(plan.columns))))
    return table_points(protected, plan.features)


def _source(plan: Plan, feature: Feature, X: NDArray[np.float64]) -> Source:
    places = [
        j for j, column in enumerate(columns_of(plan.features)) if column.feature == feature.name
    ]
    values = undone(plan.columns, X)[:, places]
    if feature.kind != "categorical":
        return Source(feature.name, values[:, 0])
    missing = np.isnan(values).any(axis=1)
    codes = np.where(missing, np.nan, np.nan_to_num(values).argmax(axis=1))
    return Source(feature.name, codes, len(places))
