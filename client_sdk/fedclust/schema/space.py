"""The scaled space that methods compute in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedclust.numeric.array_types import FloatArray

#: Rows that are scaled at a time.
_TILE = 512


@dataclass(frozen=True)
class Space:
    """The map between a column's own units and the scaled space of the method.

    ``center`` and ``scale`` have shape (d,); ``impute`` (d,), in own units, or None. Own units are
    those after the feature's transform. A feature's weight is part of ``scale``. ``limit`` (d,) or
    None: scaled values count as at most so far from 0.
    """

    center: FloatArray
    scale: FloatArray
    impute: FloatArray | None = None
    limit: FloatArray | None = None

    @classmethod
    def identity(cls, d: int) -> Space:
        return cls(np.zeros(d), np.ones(d))

    def to_scaled(self, rows: FloatArray) -> FloatArray:
        """Map rows (n, d) in own units to the scaled space, within its limit."""
        scaled = self._affine(rows)
        if self.limit is not None:
            np.clip(scaled, -self.limit, self.limit, out=scaled)
        return scaled

    def _affine(self, rows: FloatArray) -> FloatArray:
        if rows.ndim != 2 or len(rows) <= _TILE:
            return (rows - self.center) / self.scale
        # Blocks of rows stay in the cache; tiled operands are faster than broadcast ones.
        center, scale = (np.tile(part, (_TILE, 1)) for part in (self.center, self.scale))
        scaled = np.empty(rows.shape)
        for start in range(0, len(rows), _TILE):
            part = scaled[start : start + _TILE]
            np.subtract(rows[start : start + _TILE], center[: len(part)], out=part)
            np.divide(part, scale[: len(part)], out=part)
        return scaled

    def to_original(self, rows: FloatArray) -> FloatArray:
        """Map rows or centroids (n, d) of the scaled space to own units."""
        return rows * self.scale + self.center
