"""Closing the gap of `dual`: the centroids' region in boxes, each with a dual bound of its own.

What it says and cites
    Best-first branch and bound over where the centroids are, bounded by the Lagrangian dual: Held &
    Karp, "The traveling-salesman problem and minimum spanning trees", Operations Research 1970, for
    the idea; for consensus in a box, Carøe & Schultz, "Dual decomposition in stochastic integer
    programming", Operations Research Letters 1999, section 4. The paper (Yfantis et al.) stops at
    the gap that the dual leaves.

The best centroids are in one of the boxes, wherever that is: the least of the boxes' bounds is one
of all. A box is cut along the coordinate about which the sites' assignments disagree most, at the
master's consensus, which is what the dual bound cannot see. Every assignment that a site has ever
told bounds its cost in every box, so that most boxes are cut, or done with, in few rounds or none:
sites are asked only while the master's model says that the box's bound could reach its goal.

Everything here is a pure function of a state that is stored between rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from fedclust.methods.dual.feasible_set import Part, Region
from fedclust.methods.dual.multiplier_update import Advice, Ascent, enter
from fedclust.numeric.arrays import FloatMatrix
from fedclust.schema.model import Model

__all__ = ["Ask", "Box", "Splitting", "Whole", "begin_splitting", "proceed", "taken_in"]

FloatArray = NDArray[np.float64]
Reason: TypeAlias = Literal["", "converged", "splits"]

#: Boxes cut without asking: each takes the master from milliseconds to a second, and an aggregation
#: has a time limit.
_STRAIGHT = 10
#: A cut leaves either side this part of the box's width at least.
_SHARE = 0.2
#: Sides narrower than this part of the whole box's are not cut.
_NARROW = 1e-6
#: By how much, in units of the box's greatest width, the pairs' order may be missed in all of a box
#: that is kept.
_EMPTY = 1e-9


class Box(Model):
    """Where the centroids may be, (K, d) in the scaled space, and what is proven of them there.

    Faces are never moved to an origin and back: neighbours share them bit by bit.
    """

    lower: FloatMatrix
    upper: FloatMatrix
    bound: FiniteFloat


class Splitting(Model):
    """What is left to do.

    Attributes
    ----------
    waiting : tuple of Box
        Not yet looked into.
    current : Box or None
        What the sites are asked about.
    settled : tuple of Box
        That have reached their goal, or of which no more can be proven.
    splits : int
        Cuts so far.
    """

    waiting: tuple[Box, ...]
    current: Box | None = None
    settled: tuple[Box, ...] = ()
    splits: Annotated[int, Field(ge=0)] = 0

    @property
    def bound(self) -> float:
        """What is proven of all boxes together."""
        current = () if self.current is None else (self.current,)
        return float(min(box.bound for box in (*self.waiting, *current, *self.settled)))


@dataclass(frozen=True)
class Ask:
    """Which multipliers to ask the current box about, (S - 1, K, d); or why nothing is asked.

    Attributes
    ----------
    lambdas : (S - 1, K, d) float64 or None
    reason : {"", "converged", "splits"}
        ``converged``: every box has reached the goal; ``splits``: the cuts are used up, and no more
        can be proven of what is left.
    """

    lambdas: FloatArray | None
    reason: Reason = ""


@dataclass(frozen=True)
class Whole:
    """What is split: the session's region, which is about ``origin`` (d,)."""

    region: Region
    origin: FloatArray

    def part(self, box: Box) -> Region:
        """Return what of it is in a box."""
        return replace(self.region, part=Part(box.lower - self.origin, box.upper - self.origin))


def begin_splitting(lower: FloatArray, upper: FloatArray, clusters: int, bound: float) -> Splitting:
    """Return the state of one box, the declared one (d,), of which ``bound`` is proven."""
    whole = Box(
        lower=np.tile(lower, (clusters, 1)), upper=np.tile(upper, (clusters, 1)), bound=bound
    )
    return Splitting(waiting=(whole,))


def taken_in(splitting: Splitting, value: float) -> Splitting:
    """Take in what the sites proved of the current box."""
    current = splitting.current
    if current is None:
        raise ValueError("no box was asked about")
    proven = current.model_copy(update={"bound": max(current.bound, value)})
    return splitting.model_copy(update={"current": proven})


def proceed(
    splitting: Splitting,
    ascent: Ascent,
    whole: Whole,
    *,
    goal: float,
    most: int,
    advice: Advice | None = None,
) -> tuple[Splitting, Ascent, Ask]:
    """Cut boxes until there is one that the sites have to be asked about.

    Parameters
    ----------
    splitting : Splitting
    ascent : Ascent
        Of ``quadratic_bundle``.
    whole : Whole
    goal : float
        The bound at which a box is done with.
    most : int
        Cuts that may be made in all.
    advice : Advice, optional
        Of the round that was just taken in; the master is asked anew without it.
    """
    straight = splitting.splits
    while True:
        current = splitting.current
        if current is None:
            if not splitting.waiting:
                done = splitting.bound >= goal
                return splitting, ascent, Ask(None, "converged" if done else "splits")
            current = min(splitting.waiting, key=lambda box: box.bound)
            if current.bound < goal and current.bound >= min(
                (box.bound for box in splitting.settled), default=np.inf
            ):
                # What is settled already holds the bound of all down.
                return splitting, ascent, Ask(None, "splits")
            rest = tuple(box for box in splitting.waiting if box is not current)
            splitting = splitting.model_copy(update={"waiting": rest, "current": current})
        if current.bound >= goal:
            splitting, advice = _settled(splitting, current), None
            continue
        # Of a box that nobody was asked about the master may see no more to win, within its error:
        # one answer tells.
        asked = advice is not None
        if advice is None:
            ascent, advice = enter(ascent, whole.part(current), current.bound)
        cuts = most - splitting.splits
        hurried = splitting.splits - straight >= _STRAIGHT
        beyond = advice.model_value is not None and advice.model_value < goal
        blind = advice.consensus is None
        ended = asked and (advice.finished or blind)
        if not (ended or ((beyond or blind) and cuts and not hurried)):
            return splitting, ascent, Ask(advice.lambdas)
        if cuts:
            splitting = _cut(splitting, current, whole, advice)
        else:
            splitting = _settled(splitting, current)
        advice = None


def _settled(splitting: Splitting, box: Box) -> Splitting:
    return splitting.model_copy(update={"current": None, "settled": (*splitting.settled, box)})


def _cut(splitting: Splitting, box: Box, whole: Whole, advice: Advice) -> Splitting:
    """Cut the current box in two; settle it where it is too narrow."""
    wide = box.upper - box.lower
    room = wide > _NARROW * _width(whole.region)
    if not room.any():
        return _settled(splitting, box)
    doubt = np.zeros_like(wide) if advice.apart is None else np.where(room, advice.apart, 0.0)
    if advice.consensus is None or not doubt.any():
        place = np.unravel_index(int(wide.argmax()), wide.shape)
        middle = 0.5 * (box.lower[place] + box.upper[place])
    else:
        place = np.unravel_index(int(doubt.argmax()), wide.shape)
        least = box.lower[place] + _SHARE * wide[place]
        most = box.upper[place] - _SHARE * wide[place]
        middle = float(np.clip((advice.consensus + whole.origin)[place], least, most))
    halves = []
    for side in ("upper", "lower"):
        bounds = np.array(getattr(box, side))
        bounds[place] = middle
        half = box.model_copy(update={side: bounds})
        if not _is_empty(whole.part(half)):
            halves.append(half)
    if not halves:
        return _settled(splitting, box)
    return splitting.model_copy(
        update={
            "current": None,
            "waiting": (*splitting.waiting, *halves),
            "splits": splitting.splits + 1,
        }
    )


def _width(region: Region) -> float:
    return max(float((region.upper - region.lower).max()), 1e-300)


def _is_empty(region: Region) -> bool:
    """Return whether no centroids in the part's box are in the order of "pairwise"."""
    if region.symmetry == "none":
        return False
    normals = region.order.normals
    width = _width(region)
    lower, upper = ((bound / width).ravel() for bound in region.boxes)
    # Where no single pair's order fails in the middle, nothing has to be solved.
    middle = np.clip((region.home / width).ravel(), lower, upper)
    if len(normals) == 0 or (normals @ middle).min() >= 0:
        return False
    # Imported here: it takes a while, and a site does without.
    from scipy.optimize import linprog

    # The most by which all pairs can be in order.
    found = linprog(
        np.r_[np.zeros(len(lower)), -1.0],
        A_ub=np.column_stack([-normals, np.ones(len(normals))]),
        b_ub=np.zeros(len(normals)),
        bounds=[*zip(lower, upper, strict=True), (None, 1.0)],
        options={"primal_feasibility_tolerance": 1e-10},
    )
    return bool(found.status == 0 and -found.fun < -_EMPTY)
