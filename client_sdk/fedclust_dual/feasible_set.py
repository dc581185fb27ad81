"""The feasible set of `dual`'s centroids: the box of declared bounds and a symmetry form.

Clusters can be renumbered freely; references r fix one numbering (section IV-D2 of [1]_). The form
``reference`` is equation 36 as printed, ``cells`` keeps each centroid in the Voronoi cell of its
reference, and ``pairwise`` is ``(m_k - m_l).(r_k - r_l) >= 0`` for every pair.

Some renumbering of any centroids satisfies ``pairwise``: the one with the largest
``sum_k m_k.r_k``. This does not hold for ``cells`` and ``reference``, which may cut off the
optimum; a bound found with them is not a certificate. Equation 36 for (k, l) and for (l, k)
together imply ``pairwise`` for the pair, which serves as its relaxation.

References
----------
.. [1] Yfantis, Wagner & Ruskowski, "Federated K-means clustering via dual decomposition-based
   distributed optimization".
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np

from fedclust.numeric.array_types import FloatArray
from fedclust_dual.quadratic_program import Halfspaces, Minimum, minimise

Symmetry = Literal["pairwise", "cells", "reference", "none"]
#: The forms that some renumbering of any centroids satisfies: their bounds hold for all centroids.
CERTIFIED: tuple[Symmetry, ...] = ("pairwise", "none")
#: Accepted violation of a constraint, relative to the box's largest width.
_FEASIBILITY = 1e-9


class CentroidBounds(NamedTuple):
    """A box for every centroid: lower and upper bounds (K, d)."""

    lower: FloatArray
    upper: FloatArray


@dataclass(frozen=True)
class Region:
    """The box and the symmetry form that constrain a session's centroids.

    Attributes
    ----------
    lower, upper : (d,) float64
        The box in the scaled space, finite. It contains all points.
    references : (K, d) float64
        r. Unused for "none", except for its length K.
    symmetry : {"pairwise", "cells", "reference", "none"}
    subdomain : CentroidBounds or None
        A further box for each centroid, within the box. If several subdomains cover the region,
        the least of their lower bounds is a lower bound of the region.

    Raises
    ------
    ValueError
        If a shape is wrong, or the box is empty or not finite; for "cells" and "reference" also if
        a reference lies outside the box (its cell could then be empty) or there is a subdomain.
    """

    lower: FloatArray
    upper: FloatArray
    references: FloatArray
    symmetry: Symmetry
    subdomain: CentroidBounds | None = None

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
        if self.subdomain is not None:
            self._check_subdomain(self.subdomain)

    def _check_subdomain(self, subdomain: CentroidBounds) -> None:
        if not self.certified:
            raise ValueError(f"the symmetry {self.symmetry} allows no subdomain")
        if any(bound.shape != self.references.shape for bound in subdomain):
            raise ValueError("a subdomain needs bounds for every centroid")
        inside = (self.lower <= subdomain.lower) & (subdomain.lower <= subdomain.upper)
        if not (inside & (subdomain.upper <= self.upper)).all():
            raise ValueError("a subdomain must lie in the box")

    @cached_property
    def centroid_bounds(self) -> CentroidBounds:
        """Bounds (K, d) of each centroid, without the symmetry form."""
        if self.subdomain is not None:
            return self.subdomain
        shape = (len(self.references), 1)
        return CentroidBounds(np.tile(self.lower, shape), np.tile(self.upper, shape))

    @property
    def certified(self) -> bool:
        """Whether some renumbering of any centroids in the box is in the region."""
        return self.symmetry in CERTIFIED

    @cached_property
    def tolerance(self) -> float:
        """Accepted violation of a constraint, as a distance in the scaled space."""
        return _FEASIBILITY * max(float((self.upper - self.lower).max(initial=0.0)), 1e-300)

    @cached_property
    def default_centroids(self) -> FloatArray:
        """The position (K, d) of centroids without cost: their references, in their bounds."""
        lower, upper = self.centroid_bounds
        if self.symmetry == "none":
            return 0.5 * (lower + upper)
        return np.clip(self.references, lower, upper)

    @cached_property
    def voronoi_cells(self) -> tuple[Halfspaces, ...]:
        """The half-spaces of each reference's Voronoi cell, with unit normals."""
        cells = []
        for reference in self.references:
            normals = reference - self.references
            lengths = np.sqrt((normals**2).sum(axis=1))
            distinct = lengths > 0
            normals = normals[distinct] / lengths[distinct, None]
            middles = 0.5 * (reference + self.references[distinct])
            cells.append(Halfspaces(normals, (normals * middles).sum(axis=1)))
        return tuple(cells)

    @cached_property
    def pairwise_halfspaces(self) -> Halfspaces:
        """The half-spaces of "pairwise" over all centroids, flattened to K*d coordinates.

        A normal has unit length in each of its two centroids, so that a violation is the distance
        by which they are in the wrong order along the line of their references.
        """
        n_clusters, d = self.references.shape
        normals: list[FloatArray] = []
        for first, second in combinations(range(n_clusters), 2):
            line = self.references[first] - self.references[second]
            length = float(np.sqrt((line**2).sum()))
            if length > 0:
                normal = np.zeros((n_clusters, d))
                normal[first], normal[second] = line / length, -line / length
                normals.append(normal.ravel())
        stacked = np.array(normals).reshape(-1, n_clusters * d)
        return Halfspaces(stacked, np.zeros(len(stacked)))

    def optimal_centroids(
        self, counts: FloatArray, sums: FloatArray, mu: FloatArray
    ) -> tuple[FloatArray, float]:
        """Return the best centroids of fixed labels and their cost.

        Parameters
        ----------
        counts : (K,)
            Persons in each cluster; 0 is allowed.
        sums : (K, d) float64
            Sums of each cluster's points, weighted by persons.
        mu : (K, d) float64
            Multipliers.

        Returns
        -------
        centroids : (K, d) float64
            Minimiser over the region of ``sum_k n_k|m_k|^2 - 2 s_k.m_k + mu_k.m_k``. Coordinates
            without cost are those of the references; for "none", the middle of the box.
        value : float
            That minimum, without the points' squares.
        """
        weights = np.asarray(counts, dtype=np.float64)
        # Relative to the points' mean, so that terms do not cancel far from the origin.
        center = 0.5 * (self.lower + self.upper)
        if weights.any():
            center = np.clip(sums.sum(axis=0) / weights.sum(), self.lower, self.upper)
        shifts = weights[:, None] * center
        centroids, value, _ = self.proven_centroids(weights, sums - shifts, mu, center)
        constant = mu.sum(axis=0) @ center - (2.0 * sums - shifts).sum(axis=0) @ center
        return centroids, value + float(constant)

    def proven_centroids(
        self,
        counts: FloatArray,
        sums: FloatArray,
        mu: FloatArray,
        center: FloatArray,
        sufficient: float = np.inf,
    ) -> tuple[FloatArray, float, float]:
        """Return the best centroids of fixed labels, their cost and a proven lower bound of it.

        As :meth:`optimal_centroids`, but sums and costs are of points and centroids minus
        ``center`` (d,), which keeps their digits far from the origin. A bound that reaches
        ``sufficient`` is not improved further (this matters for "reference" only).
        """
        weights, linear = np.asarray(counts, dtype=np.float64), 2.0 * sums - mu
        if self.symmetry == "cells":
            minimum = self._minimise_in_cells(weights, linear, center)
        else:
            minimum = self._minimise_jointly(weights, linear, center, sufficient)
        centroids = np.clip(minimum.point.reshape(mu.shape) + center, *self.centroid_bounds)
        return centroids, minimum.value, minimum.bound

    def _minimise_in_cells(
        self, weights: FloatArray, linear: FloatArray, center: FloatArray
    ) -> Minimum:
        lower, upper = self.lower - center, self.upper - center
        default = self.default_centroids - center
        minima = []
        for k, (normals, offsets) in enumerate(self.voronoi_cells):
            cell = Halfspaces(normals, offsets - normals @ center)
            weight = np.full(len(center), weights[k])
            minima.append(
                minimise(weight, linear[k], lower, upper, cell, default[k], self.tolerance)
            )
        return Minimum(
            np.concatenate([minimum.point for minimum in minima]),
            sum(minimum.value for minimum in minima),
            sum(minimum.bound for minimum in minima),
        )

    def _minimise_jointly(
        self, weights: FloatArray, linear: FloatArray, center: FloatArray, sufficient: float
    ) -> Minimum:
        n_clusters, d = self.references.shape
        default = self.default_centroids - center
        unconstrained = Halfspaces(np.zeros((0, n_clusters * d)), np.zeros(0))
        relaxed = minimise(
            np.repeat(weights, d),
            linear.ravel(),
            (self.centroid_bounds.lower - center).ravel(),
            (self.centroid_bounds.upper - center).ravel(),
            unconstrained if self.symmetry == "none" else self.pairwise_halfspaces,
            default.ravel(),
            self.tolerance,
        )
        if self.symmetry != "reference":
            return relaxed
        if self.violation(relaxed.point.reshape(n_clusters, d) + center) <= self.tolerance:
            return relaxed
        from fedclust_dual.reference_projection import minimise_by_splitting

        lower, upper = self.lower - center, self.upper - center
        return minimise_by_splitting(
            weights, linear, lower, upper, default, relaxed, self.tolerance, sufficient
        )

    def violation(self, centroids: FloatArray) -> float:
        """Return the largest violation of a constraint by centroids (K, d); 0 inside the region.

        It is a distance in the scaled space: out of the bounds, beyond the face of a cell, in the
        wrong order along the line of two references, or (equation 36) the distance by which another
        centroid is nearer to a reference.
        """
        lower, upper = self.centroid_bounds
        outside = np.maximum(lower - centroids, centroids - upper)
        worst = float(outside.max(initial=0.0))
        if self.symmetry == "cells":
            for point, (normals, offsets) in zip(centroids, self.voronoi_cells, strict=True):
                worst = max(worst, float((offsets - normals @ point).max(initial=0.0)))
        elif self.symmetry == "pairwise":
            normals = self.pairwise_halfspaces.normals
            worst = max(worst, float(-(normals @ centroids.ravel()).min(initial=0.0)))
        elif self.symmetry == "reference":
            differences = centroids[None, :, :] - self.references[:, None, :]
            distances = np.sqrt((differences**2).sum(axis=2))
            worst = max(worst, float((distances.diagonal() - distances.min(axis=1)).max()))
        return worst
