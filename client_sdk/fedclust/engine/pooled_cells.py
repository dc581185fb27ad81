"""All sites' cells of the closing round, and what the coordinator reads from them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedclust.engine.evidence import EvidencePayload
from fedclust.methods.common.kmeans_rounds import collect_cells
from fedclust.numeric.array_types import FloatArray, IntArray
from fedclust.numeric.canonical import tolerant_argmax
from fedclust.schema.evidence import PrincipalAxes
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import own_bounds, scaled_bounds
from fedclust.schema.task import Contribution, payloads_of

__all__ = ["PooledCells", "bounding_box", "pooled_cells", "principal_axes"]


@dataclass(frozen=True)
class PooledCells:
    """All sites' cells: ``means`` (m, d), ``counts`` (m,), and ``sites`` (m,) by number in
    ``names``.
    """

    means: FloatArray
    counts: IntArray
    sites: IntArray
    names: tuple[str, ...]


def pooled_cells(contributions: Sequence[Contribution]) -> PooledCells:
    """Return the cells of the sites that sent any; contributions sorted by site."""
    sent = {
        site: payload.cells for site, payload in payloads_of(contributions, EvidencePayload).items()
    }
    found = [Contribution(site, cells, 1) for site, cells in sent.items()]
    means, counts = collect_cells(found)
    sites = np.repeat(np.arange(len(sent)), [len(cells.counts) for cells in sent.values()])
    return PooledCells(means, counts.astype(np.int64), sites, tuple(sent))


def bounding_box(contributions: Sequence[Contribution], config: RunConfig) -> FloatArray:
    """Return the least and greatest scaled values (2, d): declared bounds, where there are any.

    Of other columns the range of all sites' records.
    """
    declared = np.isfinite(np.stack(own_bounds(config.columns)))
    sent = payloads_of(contributions, EvidencePayload).values()
    extents = np.stack([each.extent for each in sent])
    found = np.stack([extents[:, 0].min(axis=0), extents[:, 1].max(axis=0)])
    return np.where(declared, np.stack(scaled_bounds(config)), found)


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
