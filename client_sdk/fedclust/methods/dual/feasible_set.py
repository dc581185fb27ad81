"""Where the centroids of `dual` may be: the box of the declared bounds and four forms of symmetry.

What it says and cites
    Yfantis et al., "Federated K-means clustering via dual decomposition-based distributed
    optimization", section IV-D2. The labels of clusters may be permuted; references r keep one
    order. ``reference`` is equation 36 as printed, ``cells`` the Voronoi cells of r, ``pairwise``
    ``(m_k - m_l).(r_k - r_l) >= 0`` for every pair.

Every set of centroids can be permuted into ``pairwise``: the permutation of the greatest
``sum_k m_k.r_k`` is in it. Of ``cells`` and ``reference`` this is not true, so that they may cut
off the optimum, and a bound found with them is not a certificate. Equation 36 of (k, l) and of
(l, k) together give ``pairwise`` of the pair, which is how it is relaxed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedclust.methods.dual.quadratic_program import Halfspaces, Minimum, minimise

__all__ = ["CERTIFIED", "Part", "Region", "Symmetry"]

FloatArray = NDArray[np.float64]
Symmetry = Literal["pairwise", "cells", "reference", "none"]
#: The forms that some permutation of any centroids satisfies: a bound then holds for all.
CERTIFIED: tuple[Symmetry, ...] = ("pairwise", "none")
#: What rounding may leave of a constraint, as a part of the box's greatest width.
_FEASIBLE = 1e-9


class Part(NamedTuple):
    """A box for every cluster: lower and upper bounds (K, d) of its centroid."""

    lower: FloatArray
    upper: FloatArray


@dataclass(frozen=True)
class Region:
    """The box and the form of symmetry that hold one session's centroids.

    Attributes
    ----------
    lower, upper : (d,) float64
        The box in the scaled space, finite; it holds all rows.
    references : (K, d) float64
        r; unused for "none", but its length says K.
    symmetry : {"pairwise", "cells", "reference", "none"}
    part : Part or None
        Of the box, where each centroid has to be. A bound of each of some parts that cover the
        region is one of the region.

    Raises
    ------
    ValueError
        If a shape is wrong, the box is empty or not finite, or, for "cells" and "reference", a
        reference lies outside of the box (its cell could then be empty) or there is a part.
    """

    lower: FloatArray
    upper: FloatArray
    references: FloatArray
    symmetry: Symmetry
    part: Part | None = None

    def __post_init__(self) -> None:
        if self.lower.ndim != 1 or self.lower.shape != self.upper.shape:
            raise ValueError("lower and upper bounds must be vectors of one length")
        if self.references.ndim != 2 or self.references.shape[1] != len(self.lower):
            raise ValueError("references must be a matrix with a column for every bound")
        if not (np.isfinite(self.lower).all() and np.isfinite(self.upper).all()):
            raise ValueError("the box must be finite")
        if (self.lower > self.upper).any():
            raise ValueError("the box is empty: a lower bound is above its upper bound")
        if self.symmetry not in ("pairwise", "cells", "reference", "none"):
            raise ValueError("symmetry must be pairwise, cells, reference or none")
        outside = np.maximum(self.lower - self.references, self.references - self.upper)
        if self.symmetry in ("cells", "reference") and outside.max(initial=0.0) > self.tolerance:
            raise ValueError(f"references must lie in the box for the symmetry {self.symmetry}")
        if self.part is not None:
            self._check(self.part)

    def _check(self, part: Part) -> None:
        if not self.certified:
            raise ValueError(f"the symmetry {self.symmetry} has no parts")
        if any(bound.shape != self.references.shape for bound in part):
            raise ValueError("a part has bounds for every centroid")
        inside = (self.lower <= part.lower) & (part.lower <= part.upper)
        if not (inside & (part.upper <= self.upper)).all():
            raise ValueError("a part must lie in the box")

    @cached_property
    def boxes(self) -> Part:
        """Where each centroid may be, symmetry aside: bounds (K, d)."""
        if self.part is not None:
            return self.part
        size = len(self.references)
        return Part(np.tile(self.lower, (size, 1)), np.tile(self.upper, (size, 1)))

    @property
    def certified(self) -> bool:
        """Whether some permutation of any centroids in the box is inside: a bound then holds."""
        return self.symmetry in CERTIFIED

    @cached_property
    def tolerance(self) -> float:
        """How far outside of a constraint counts as on it, in the scaled space's distance."""
        return _FEASIBLE * max(float((self.upper - self.lower).max(initial=0.0)), 1e-300)

    @cached_property
    def home(self) -> FloatArray:
        """Where a centroid belongs that nothing pulls, (K, d): its reference, in its box."""
        lower, upper = self.boxes
        if self.symmetry == "none":
            return 0.5 * (lower + upper)
        return np.clip(self.references, lower, upper)

    @cached_property
    def cells(self) -> tuple[Halfspaces, ...]:
        """For each cluster the half-spaces of its reference's Voronoi cell, of unit normals."""
        found = []
        for own in self.references:
            normals = own - self.references
            lengths = np.sqrt((normals**2).sum(axis=1))
            other = lengths > 0
            normals = normals[other] / lengths[other, None]
            middles = 0.5 * (own + self.references[other])
            found.append(Halfspaces(normals, (normals * middles).sum(axis=1)))
        return tuple(found)

    @cached_property
    def order(self) -> Halfspaces:
        """The half-spaces of "pairwise" over all centroids, flattened to K*d coordinates.

        Normals are of unit length in each of the two centroids, so that a pair is missed by the
        distance by which they stand in the wrong order along their references' line.
        """
        size, d = self.references.shape
        normals: list[FloatArray] = []
        for first in range(size):
            for second in range(first + 1, size):
                line = self.references[first] - self.references[second]
                length = float(np.sqrt((line**2).sum()))
                if length > 0:
                    normal = np.zeros((size, d))
                    normal[first], normal[second] = line / length, -line / length
                    normals.append(normal.ravel())
        stacked = np.array(normals).reshape(-1, size * d)
        return Halfspaces(stacked, np.zeros(len(stacked)))

    def optimal_centroids(
        self, counts: FloatArray, sums: FloatArray, mu: FloatArray
    ) -> tuple[FloatArray, float]:
        """Return the best centroids of fixed labels and what they cost.

        Parameters
        ----------
        counts : (K,)
            Rows of each cluster; 0 is allowed.
        sums : (K, d) float64
        mu : (K, d) float64

        Returns
        -------
        centroids : (K, d) float64
            Minimiser over the region of ``sum_k n_k|m_k|^2 - 2 s_k.m_k + mu_k.m_k``. Coordinates
            without cost are where the references are, or the middle of the box for "none".
        value : float
            That minimum, without the rows' squares.
        """
        weights = np.asarray(counts, dtype=np.float64)
        # About the rows' mean: far from it, in a wide box or from the origin, terms would cancel.
        middle = 0.5 * (self.lower + self.upper)
        if weights.any():
            middle = np.clip(sums.sum(axis=0) / weights.sum(), self.lower, self.upper)
        shifts = weights[:, None] * middle
        centroids, value, _ = self.proven_centroids(weights, sums - shifts, mu, middle)
        constant = mu.sum(axis=0) @ middle - (2.0 * sums - shifts).sum(axis=0) @ middle
        return centroids, value + float(constant)

    def proven_centroids(
        self,
        counts: FloatArray,
        sums: FloatArray,
        mu: FloatArray,
        middle: FloatArray,
        enough: float = np.inf,
    ) -> tuple[FloatArray, float, float]:
        """Return the best centroids of fixed labels, their cost and a proven lower bound of it.

        As :meth:`optimal_centroids`, but ``sums`` are of rows less ``middle`` (d,), and so is
        every m in both costs, which keep their digits however far away the origin is. A bound that
        reaches ``enough`` is not improved further (only "reference" would need to).
        """
        linear = 2.0 * sums - mu
        found = self._minimise(np.asarray(counts, dtype=np.float64), linear, middle, enough)
        centroids = np.clip(found.point.reshape(mu.shape) + middle, *self.boxes)
        return centroids, found.value, found.bound

    def _minimise(
        self, weights: FloatArray, linear: FloatArray, middle: FloatArray, enough: float
    ) -> Minimum:
        size, d = self.references.shape
        lower, upper, home = self.lower - middle, self.upper - middle, self.home - middle
        if self.symmetry == "cells":
            parts = []
            for k, cell in enumerate(self.cells):
                moved = Halfspaces(cell.normals, cell.offsets - cell.normals @ middle)
                weight = np.full(d, weights[k])
                parts.append(
                    minimise(weight, linear[k], lower, upper, moved, home[k], self.tolerance)
                )
            point = np.concatenate([part.point for part in parts])
            return Minimum(
                point, sum(part.value for part in parts), sum(part.bound for part in parts)
            )
        none = Halfspaces(np.zeros((0, size * d)), np.zeros(0))
        relaxed = minimise(
            np.repeat(weights, d),
            linear.ravel(),
            (self.boxes.lower - middle).ravel(),
            (self.boxes.upper - middle).ravel(),
            none if self.symmetry == "none" else self.order,
            home.ravel(),
            self.tolerance,
        )
        if self.symmetry != "reference":
            return relaxed
        if self.violation(relaxed.point.reshape(size, d) + middle) <= self.tolerance:
            return relaxed
        from fedclust.methods.dual.reference_projection import minimise_by_splitting

        return minimise_by_splitting(
            weights, linear, lower, upper, home, relaxed, self.tolerance, enough
        )

    def violation(self, centroids: FloatArray) -> float:
        """Return by how much centroids (K, d) miss the region; 0 inside.

        Parameters
        ----------
        centroids : (K, d) float64

        Returns
        -------
        float
            The greatest over all constraints, in the scaled space's distance: outside of the box,
            beyond the face of a cell, in the wrong order along two references' line, or (equation
            36) farther from a reference than another centroid is.
        """
        lower, upper = self.boxes
        outside = np.maximum(lower - centroids, centroids - upper)
        worst = float(outside.max(initial=0.0))
        if self.symmetry == "cells":
            for point, (normals, offsets) in zip(centroids, self.cells, strict=True):
                worst = max(worst, float((offsets - normals @ point).max(initial=0.0)))
        elif self.symmetry == "pairwise":
            worst = max(worst, float(-(self.order.normals @ centroids.ravel()).min(initial=0.0)))
        elif self.symmetry == "reference":
            between = centroids[None, :, :] - self.references[:, None, :]
            distances = np.sqrt((between**2).sum(axis=2))
            worst = max(worst, float((distances.diagonal() - distances.min(axis=1)).max()))
        return worst
