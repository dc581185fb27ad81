"""Cells of a site's records: what the coordinator knows of their distribution."""

import numpy as np

from fedclust.methods.common.kmeans_rounds import Cells, check_cells, local_restarts
from fedclust.numeric.array_types import BoolArray, FloatArray, IntArray
from fedclust.numeric.arrays import FloatMatrix, FloatVector, IntMatrix, IntVector
from fedclust.numeric.distances import nearest_centroid
from fedclust.numeric.weighted_kmeans import weighted_kmeans
from fedclust.protection.message_checks import check_counts, check_shapes
from fedclust.schema.errors import RuleViolation
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import Points

#: Cells of each site: as many as the landmarks of ``spectral``.
N_CELLS = 60
#: A site sends a column's values where its records hold at most so many.
MOST_VALUES = 10
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

    def columns(self) -> dict[int, tuple[FloatArray, IntArray]]:
        """Return values and persons of each column that is described by its values."""
        n, ends = self.n_values, np.cumsum(self.n_values)
        parts = {int(j): slice(ends[j] - n[j], ends[j]) for j in np.flatnonzero(n)}
        return {j: (self.values[part], self.persons[part]) for j, part in parts.items()}

    def middle_values(self) -> FloatArray:
        """Return the middle values (m, d), and means where a column has more values."""
        found = self.means.copy()
        if self.middles is not None:
            found[:, self.n_values > 0] = self.middles
        return found

    def known_shares(self) -> FloatArray:
        """Return the share (m, d) of persons whose record holds a value that is not imputed."""
        if self.known is None:
            return np.ones(self.means.shape)
        return np.asarray(self.known / self.counts[:, None])


def find_cells(points: Points, rng: np.random.Generator) -> RecordCells:
    """Describe a site's scaled points (m, d) by cells."""
    X, sizes = points.X, points.sizes
    known = np.ones(X.shape, dtype=np.bool_) if points.observed is None else points.observed
    n_values, values, persons = np.zeros(X.shape[1], dtype=np.int64), [np.zeros(0)], [sizes[:0]]
    for j, held in enumerate(known.T):
        found, places = np.unique(X[held, j], return_inverse=True)
        if len(found) <= MOST_VALUES:
            n_values[j] = len(found)
            values.append(found)
            persons.append(np.bincount(places, weights=sizes[held]).astype(np.int64))
    means, middles, reached, counts = cluster_records(X, known, sizes, rng)
    return RecordCells(
        counts=counts,
        means=means,
        known=None if known.all() else reached,
        n_values=n_values,
        values=np.concatenate(values),
        persons=np.concatenate(persons),
        middles=middles[:, n_values > 0] if len(X) > N_CELLS else None,
    )


def cluster_records(
    X: FloatArray, known: BoolArray, sizes: IntArray, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, IntArray, IntArray]:
    """Return the cells of records X (n, d), each of as many persons as ``sizes`` (n,) says.

    Means (m, d) include values that are not ``known`` (n, d), middle values (m, d) do not. Then
    how many persons have a known value (m, d), and how many there are (m,).
    """
    if len(X) <= N_CELLS:
        return X, X, known * sizes[:, None], sizes
    n_init = local_restarts(len(X), X.shape[1], N_CELLS)
    centres = weighted_kmeans(X, sizes.astype(np.float64), N_CELLS, rng, n_init)
    labels = nearest_centroid(X, centres)
    found = []
    for cell in np.unique(labels):
        own, held, weights = X[labels == cell], known[labels == cell], sizes[labels == cell]
        mass = np.where(held, weights[:, None], 1e-9)
        order = np.argsort(own, axis=0, kind="stable")
        reached = np.take_along_axis(mass, order, axis=0).cumsum(axis=0) >= mass.sum(axis=0) / 2.0
        # An imputed value is a middle value only where all are imputed.
        reached &= np.take_along_axis(held | ~held.any(axis=0), order, axis=0)
        ordered = np.take_along_axis(own, order, axis=0)
        middle = np.take_along_axis(ordered, reached.argmax(axis=0)[None], axis=0)[0]
        mean = np.average(own, axis=0, weights=weights)
        found.append((mean, middle, weights @ held, weights.sum()))
    means, middles, reached, counts = (np.array(each) for each in zip(*found, strict=True))
    return means, middles, reached, counts


def check_record_cells(payload: RecordCells, config: RunConfig) -> None:
    """Check a site's cells at either end; RuleViolation."""
    check_cells(payload, N_CELLS, config, fewer=True)
    everybody = np.broadcast_to(payload.counts[:, None], payload.means.shape)
    if payload.known is not None:
        check_shapes(payload, known=payload.means.shape)
        check_counts(payload.known.ravel(), config.p, "/known")
        check_counts((everybody - payload.known).ravel(), config.p, "/known")
    known = everybody if payload.known is None else payload.known
    check_shapes(payload, n_values=(len(config.columns),))
    if ((payload.n_values < 0) | (payload.n_values > MOST_VALUES)).any():
        message = f"a column is described by at most {MOST_VALUES} values"
        raise RuleViolation("shape", message, "/n_values")
    n = int(payload.n_values.sum())
    check_shapes(payload, values=(n,), persons=(n,))
    check_counts(payload.persons, config.p, "/persons")
    lower, upper = scaled_bounds(config)
    columns = payload.columns()
    for j, (values, persons) in columns.items():
        slack = _SLACK * np.maximum(1.0, np.abs(values))
        outside = (values < lower[j] - slack) | (values > upper[j] + slack)
        if (np.diff(values) <= 0).any() or outside.any():
            message = "the values of a column ascend, within its bounds"
            raise RuleViolation("bounds", message, "/values")
        if (persons == 0).any() or persons.sum() != known[:, j].sum():
            message = "the persons of a column's values are those whose value is known"
            raise RuleViolation("complement", message, "/persons")
    if payload.middles is not None:
        check_shapes(payload, middles=(len(payload.counts), len(columns)))
        for found, (j, (values, _)) in zip(payload.middles.T, columns.items(), strict=True):
            if not np.isin(found[known[:, j] > 0], values).all():
                message = "a middle value is one of the column's values"
                raise RuleViolation("middle", message, "/middles")
