"""Cells of a site's records: what the coordinator knows of their distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedclust.engine.reference import MOST_VALUES, N_CELLS, SiteCells, describe_site
from fedclust.methods.common.kmeans_rounds import Cells, check_cells, count_sent_cells
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.arrays import FloatMatrix, FloatVector, IntMatrix, IntVector
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.protection.message_checks import check_counts, check_shape
from fedclust.schema.errors import RuleViolation
from fedclust.schema.evidence import PrincipalAxes
from fedclust.schema.points import Points
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds

__all__ = [
    "PooledCells",
    "RecordCells",
    "check_record_cells",
    "find_cells",
    "pool_cells",
    "principal_axes",
    "split_columns",
]

_SLACK = 1e-9


class RecordCells(Cells):
    """A site's own k-means cells of its records, at most ``N_CELLS``, none empty.

    Attributes
    ----------
    known : (m, d) int64 or None
        Persons in groups whose record holds a value that is not imputed. None if all do.
    n_values : (d,) int64
        How many different values these records hold, where these are at most ``MOST_VALUES``;
        elsewhere 0.
    values : (v,) float64
        These values, scaled, ascending in each column; one column after the other.
    persons : (v,) int64
        In groups whose record holds each.
    middles : (m, c) float64 or None
        The middle value of each cell's records in the c columns with such values, weighted by
        persons. None at a site with at most ``N_CELLS`` groups.
    """

    known: IntMatrix | None = None
    n_values: IntVector
    values: FloatVector
    persons: IntVector
    middles: FloatMatrix | None = None


def find_cells(points: Points, rng: np.random.Generator) -> RecordCells:
    """Describe a site's scaled points (m, d) by cells."""
    found = describe_site(points, rng)
    few = [j for j, values in enumerate(found.values) if values is not None]
    values = [each for each in found.values if each is not None]
    persons = [each for each in found.persons if each is not None]
    return RecordCells(
        counts=found.counts,
        means=found.means,
        n_values=np.array([0 if each is None else len(each) for each in found.values]),
        values=np.concatenate([np.zeros(0), *values]),
        known=None if (found.known == 1.0).all() else _persons_of(found),
        persons=np.concatenate([np.zeros(0, dtype=np.int64), *persons]),
        middles=found.middles[:, few] if len(points.X) > N_CELLS else None,
    )


def _persons_of(site: SiteCells) -> IntArray:
    return np.rint(site.known * site.counts[:, None]).astype(np.int64)


def check_record_cells(payload: RecordCells, config: RunConfig) -> None:
    """Check a site's cells at either end; RuleViolation."""
    try:
        check_cells(payload, count_sent_cells(payload, N_CELLS), config)
    except RuleViolation as broken:
        raise RuleViolation(broken.rule, broken.message, f"/cells{broken.pointer}") from None
    everybody = np.broadcast_to(payload.counts[:, None], payload.means.shape)
    if payload.known is not None:
        check_shape(payload.known, payload.means.shape, "/cells/known")
        check_counts(payload.known.ravel(), config.p, "/cells/known")
        check_counts((everybody - payload.known).ravel(), config.p, "/cells/known")
    known = everybody if payload.known is None else payload.known
    check_shape(payload.n_values, (len(config.columns),), "/cells/n_values")
    if ((payload.n_values < 0) | (payload.n_values > MOST_VALUES)).any():
        message = f"a column is described by at most {MOST_VALUES} values"
        raise RuleViolation("shape", message, "/cells/n_values")
    n = int(payload.n_values.sum())
    check_shape(payload.values, (n,), "/cells/values")
    check_shape(payload.persons, (n,), "/cells/persons")
    check_counts(payload.persons, config.p, "/cells/persons")
    lower, upper = scaled_bounds(config)
    columns = split_columns(payload.n_values, payload.values, payload.persons)
    for j, (values, persons) in columns.items():
        slack = _SLACK * np.maximum(1.0, np.abs(values))
        outside = (values < lower[j] - slack) | (values > upper[j] + slack)
        if (np.diff(values) <= 0).any() or outside.any():
            message = "the values of a column ascend, within its bounds"
            raise RuleViolation("bounds", message, "/cells/values")
        if (persons == 0).any() or persons.sum() != known[:, j].sum():
            message = "the persons of a column's values are those whose value is known"
            raise RuleViolation("complement", message, "/cells/persons")
    if payload.middles is not None:
        check_shape(payload.middles, (len(payload.counts), len(columns)), "/cells/middles")
        for found, (j, (values, _)) in zip(payload.middles.T, columns.items(), strict=True):
            if not np.isin(found[known[:, j] > 0], values).all():
                message = "a middle value is one of the column's values"
                raise RuleViolation("middle", message, "/cells/middles")


def split_columns(
    n_values: IntArray, values: FloatArray, persons: IntArray
) -> dict[int, tuple[FloatArray, IntArray]]:
    """Return the values and persons of each column that is described by its values."""
    ends = np.cumsum(n_values)
    return {
        int(j): (values[ends[j] - n_values[j] : ends[j]], persons[ends[j] - n_values[j] : ends[j]])
        for j in np.flatnonzero(n_values)
    }


# --- at the coordinator ---------------------------------------------------------------------------


@dataclass(frozen=True)
class PooledCells:
    """All sites' cells: ``means`` (m, d), ``counts`` (m,), and ``sites`` (m,) by number in
    ``names``.
    """

    means: FloatArray
    counts: IntArray
    sites: IntArray
    names: tuple[str, ...]


def pool_cells(sent: Mapping[str, RecordCells]) -> PooledCells:
    """Return the cells of the sites that sent any, in their order."""
    return PooledCells(
        np.concatenate([cells.means for cells in sent.values()]),
        np.concatenate([cells.counts for cells in sent.values()]),
        np.repeat(np.arange(len(sent)), [len(cells.counts) for cells in sent.values()]),
        tuple(sent),
    )


def principal_axes(cells: PooledCells) -> PrincipalAxes:
    """Return the axes of largest variance of all sites' cells, weighted by persons."""
    weights = cells.counts.astype(np.float64)
    origin = np.average(cells.means, axis=0, weights=weights)
    centred = (cells.means - origin) * np.sqrt(weights / weights.sum())[:, None]
    _, lengths, vectors = np.linalg.svd(centred, full_matrices=False)
    n_axes = min(2, len(lengths))
    axes, shares = np.zeros((len(origin), 2)), np.zeros(2)
    for j in range(n_axes):
        largest = vectors[j, int(tolerant_argmax(np.abs(vectors[j])))]
        axes[:, j] = vectors[j] * (1.0 if largest >= 0.0 else -1.0)
    shares[:n_axes] = lengths[:n_axes] ** 2 / max(float((lengths**2).sum()), 1e-300)
    return PrincipalAxes(origin=origin, axes=axes, shares=shares)
