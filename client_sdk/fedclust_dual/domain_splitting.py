"""Close the gap of `dual`: split the centroids' domain into boxes, each with its own dual bound.

This is best-first branch and bound over the position of the centroids, bounded by the Lagrangian
dual: [1]_ for the idea, [2]_ (section 4) for consensus in a box. The paper of `dual` (Yfantis et
al.) accepts the gap that the dual leaves.

The best centroids are in one of the boxes, so the least of the boxes' bounds is a bound of all. A
box is cut along the coordinate about which the sites' assignments disagree most, at the consensus
of the bundle model. Every assignment that a site has sent bounds its cost in every box, so most
boxes are cut or closed after few rounds or none: sites are asked only while the model says that
the box's bound could reach its target.

All functions are pure; the state is stored between rounds.

References
----------
.. [1] Held & Karp, "The traveling-salesman problem and minimum spanning trees", Operations Research
   1970.
.. [2] Carøe & Schultz, "Dual decomposition in stochastic integer programming", Operations Research
   Letters 1999.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field, FiniteFloat

from fedclust.numeric.array_types import BoolArray, FloatArray
from fedclust.numeric.arrays import FloatMatrix
from fedclust.schema.model import Model
from fedclust_dual.feasible_set import CentroidBounds, Region
from fedclust_dual.multiplier_update import Ascent, Proposal, propose_in_region

Reason: TypeAlias = Literal["", "converged", "splits"]

#: Limit of cuts in one aggregation, which has a time limit: each cut solves a cone program, which
#: takes milliseconds to a second.
_MAX_CUTS_AT_ONCE = 10
#: Least width of either half, relative to the box.
_LEAST_SHARE = 0.2
#: Sides narrower than this, relative to the declared box, are not cut.
_NARROW = 1e-6
#: A box is empty where the order of the pairs is violated everywhere by more than this, relative to
#: the declared box's width.
_EMPTY = 1e-9


class Box(Model):
    """Bounds (K, d) of the centroids in the scaled space, with the proven lower bound there.

    Faces are never shifted to an origin and back: neighbouring boxes share them bit by bit.
    """

    lower: FloatMatrix
    upper: FloatMatrix
    bound: FiniteFloat


class Splitting(Model):
    """The boxes of a domain.

    Attributes
    ----------
    waiting : tuple of Box
        Not yet processed.
    current : Box or None
        The box of the open dual round.
    settled : tuple of Box
        Closed: they reached the target, or no more can be proven of them.
    splits : int
        Cuts so far.
    """

    waiting: tuple[Box, ...]
    current: Box | None = None
    settled: tuple[Box, ...] = ()
    splits: Annotated[int, Field(ge=0)] = 0

    @property
    def bound(self) -> float:
        """The proven lower bound of all boxes together."""
        current = () if self.current is None else (self.current,)
        return float(min(box.bound for box in (*self.waiting, *current, *self.settled)))


@dataclass(frozen=True)
class Query:
    """The next dual round of the current box, or the reason why there is none.

    Attributes
    ----------
    lambdas : (S - 1, K, d) float64 or None
    reason : {"", "converged", "splits"}
        ``converged``: every box has reached the target; ``splits``: the cuts are used up, and no
        more can be proven of the remaining boxes.
    """

    lambdas: FloatArray | None
    reason: Reason = ""


@dataclass(frozen=True)
class Domain:
    """The region that is split, relative to ``origin`` (d,)."""

    region: Region
    origin: FloatArray

    def restrict(self, box: Box) -> Region:
        """Return the region within a box."""
        bounds = CentroidBounds(box.lower - self.origin, box.upper - self.origin)
        return replace(self.region, subdomain=bounds)


def start_splitting(
    lower: FloatArray, upper: FloatArray, n_clusters: int, bound: float
) -> Splitting:
    """Return the state with one box, that of the declared bounds.

    Parameters
    ----------
    lower, upper : (d,) float64
        Declared bounds, scaled.
    n_clusters : int
    bound : float
        The proven lower bound of the box.
    """
    shape = (n_clusters, 1)
    return Splitting(
        waiting=(Box(lower=np.tile(lower, shape), upper=np.tile(upper, shape), bound=bound),)
    )


def record_bound(splitting: Splitting, bound: float) -> Splitting:
    """Store a proven lower bound of the current box, if it is the best so far.

    Raises
    ------
    ValueError
        If there is no current box.
    """
    current = splitting.current
    if current is None:
        raise ValueError("the splitting has no current box")
    improved = current.model_copy(update={"bound": max(current.bound, bound)})
    return splitting.model_copy(update={"current": improved})


def next_query(
    splitting: Splitting,
    ascent: Ascent,
    domain: Domain,
    *,
    target: float,
    max_splits: int,
    proposal: Proposal | None = None,
) -> tuple[Splitting, Ascent, Query]:
    """Cut and close boxes until the sites have to be asked about one.

    Parameters
    ----------
    splitting : Splitting
    ascent : Ascent
        Of ``quadratic_bundle``.
    domain : Domain
    target : float
        The bound at which a box is closed.
    max_splits : int
        Limit of cuts in the session.
    proposal : Proposal, optional
        Of the dual round of the current box that has just been closed.

    Returns
    -------
    Splitting
    Ascent
    Query
    """
    limit = min(max_splits, splitting.splits + _MAX_CUTS_AT_ONCE)
    while True:
        splitting = _select_box(splitting, target)
        box = splitting.current
        if box is None:
            reached = splitting.bound >= target
            return splitting, ascent, Query(None, "converged" if reached else "splits")
        if box.bound >= target:
            splitting, proposal = _close_box(splitting, box), None
            continue
        # Without a dual round the model's error may hide what can still be gained in this box.
        answered = proposal is not None
        if proposal is None:
            ascent, proposal = propose_in_region(ascent, domain.restrict(box), box.bound)
        unsolved = proposal.consensus is None
        hopeless = proposal.model_value is not None and proposal.model_value < target
        exhausted = answered and (proposal.finished or unsolved)
        if not (exhausted or ((hopeless or unsolved) and splitting.splits < limit)):
            return splitting, ascent, Query(proposal.lambdas)
        if splitting.splits < max_splits:
            splitting = _cut_box(splitting, box, domain, proposal)
        else:
            splitting = _close_box(splitting, box)
        proposal = None


def _select_box(splitting: Splitting, target: float) -> Splitting:
    """Make the box with the least bound the current one; none if no more can be proven."""
    if splitting.current is not None or not splitting.waiting:
        return splitting
    box = min(splitting.waiting, key=lambda box: box.bound)
    if target > box.bound >= min((closed.bound for closed in splitting.settled), default=np.inf):
        # A closed box already determines the bound of all.
        return splitting
    waiting = tuple(other for other in splitting.waiting if other is not box)
    return splitting.model_copy(update={"waiting": waiting, "current": box})


def _close_box(splitting: Splitting, box: Box) -> Splitting:
    return splitting.model_copy(update={"current": None, "settled": (*splitting.settled, box)})


def _cut_box(splitting: Splitting, box: Box, domain: Domain, proposal: Proposal) -> Splitting:
    """Cut the current box in two; close it if it is too narrow."""
    widths = box.upper - box.lower
    wide = widths > _NARROW * _width(domain.region)
    if not wide.any():
        return _close_box(splitting, box)
    place, cut = _choose_cut(box, widths, wide, domain.origin, proposal)
    halves = []
    for side in ("upper", "lower"):
        bounds = np.array(getattr(box, side))
        bounds[place] = cut
        half = box.model_copy(update={side: bounds})
        if not _is_empty(domain.restrict(half)):
            halves.append(half)
    if not halves:
        return _close_box(splitting, box)
    return splitting.model_copy(
        update={
            "current": None,
            "waiting": (*splitting.waiting, *halves),
            "splits": splitting.splits + 1,
        }
    )


def _choose_cut(
    box: Box,
    widths: FloatArray,
    wide: BoolArray,
    origin: FloatArray,
    proposal: Proposal,
) -> tuple[tuple[np.intp, ...], float]:
    """Return the coordinate to cut and where; without a consensus the middle of the widest side."""
    if proposal.consensus is not None and proposal.disagreement is not None:
        disagreement = np.where(wide, proposal.disagreement, 0.0)
        if disagreement.any():
            place = np.unravel_index(int(disagreement.argmax()), widths.shape)
            least = box.lower[place] + _LEAST_SHARE * widths[place]
            most = box.upper[place] - _LEAST_SHARE * widths[place]
            return place, float(np.clip((proposal.consensus + origin)[place], least, most))
    place = np.unravel_index(int(widths.argmax()), widths.shape)
    return place, 0.5 * (box.lower[place] + box.upper[place])


def _width(region: Region) -> float:
    return max(float((region.upper - region.lower).max()), 1e-300)


def _is_empty(region: Region) -> bool:
    """Return whether no centroids within the bounds have the order of "pairwise"."""
    if region.symmetry == "none":
        return False
    normals = region.pairwise_halfspaces.normals
    width = _width(region)
    lower, upper = ((bound / width).ravel() for bound in region.centroid_bounds)
    # No linear program is needed where the default centroids are in order.
    center = np.clip((region.default_centroids / width).ravel(), lower, upper)
    if len(normals) == 0 or (normals @ center).min() >= 0:
        return False
    # Imported here because it is slow to import, and sites do not need it.
    from scipy.optimize import linprog

    # The largest margin by which all pairs can be in order.
    found = linprog(
        np.r_[np.zeros(len(lower)), -1.0],
        A_ub=np.column_stack([-normals, np.ones(len(normals))]),
        b_ub=np.zeros(len(normals)),
        bounds=[*zip(lower, upper, strict=True), (None, 1.0)],
        options={"primal_feasibility_tolerance": 1e-10},
    )
    return bool(found.status == 0 and -found.fun < -_EMPTY)
