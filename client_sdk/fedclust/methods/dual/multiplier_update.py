"""How `dual` moves its multipliers from round to round: the paper's three rules and one more.

What the paper says (Yfantis et al., section IV)
    The dual function ``d(lambda)``, the sum over sites of their optimal node problems (eq. 12), is
    concave and a lower bound of the clustering problem for every lambda. ``subgradient`` follows
    the violation of consensus (eq. 16 to 18); ``bundle_trust`` maximises the cutting-plane model of
    the last tau rounds within a trust region (eq. 19 to 25); ``quasi_newton`` puts a quadratic
    model of BFGS curvature under the same cuts (eq. 26 to 32).

Where this departs from it
    Constraint 32c is reverse convex as printed. Here the lower of model and cuts is maximised,
    which is concave. The BFGS update is skipped where it would leave B indefinite or unusable: at a
    kink, subgradients need not turn against the step.

``quadratic_bundle``
    Every site sends the counts and sums of its optimal assignment: what that assignment costs is
    then known for every lambda, not only along a plane. The master maximises the sum of the known
    assignments' costs (:func:`~fedclust.methods.dual.cone_program.best_of_model`); a finite number
    of assignments makes it end at the exact optimum of the dual.

Everything here is a pure function of a state that is stored between rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from fedclust.methods.dual.cone_program import Piece, best_of_model, best_step
from fedclust.methods.dual.feasible_set import Region
from fedclust.numeric.arrays import FloatMatrix, FloatTensor3, IntVector
from fedclust.schema.model import Model

__all__ = [
    "Advice",
    "Ascent",
    "DualRound",
    "Rule",
    "SiteModel",
    "advance",
    "begin",
    "enter",
    "known_cost",
    "learn",
    "multipliers",
]

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Rule: TypeAlias = Literal["subgradient", "bundle_trust", "quasi_newton", "quadratic_bundle"]
Reason: TypeAlias = Literal["", "residual", "converged", "stalled"]

#: Part of the value by which the best bound may lie below the master's: the node solvers and the
#: master stop at about a tenth of it.
_CONVERGED = 1e-6
#: Curvature that BFGS may claim, as a part of a unit of lambda: beyond it a kink was crossed.
_STEEPEST = 1e6
#: Difference of two sums, as a part of their size, that is rounding and no other assignment.
_SAME = 1e-9


class SiteModel(Model):
    """A site's optimal assignment: ``sum_k n_k |m_k|^2 - 2 s_k . m_k + square`` is its cost.

    Attributes
    ----------
    counts : (K,) int64
    sums : (K, d) float64
    square : float
        Sum of all points' squared lengths. All three are weighted by persons.
    """

    counts: IntVector
    sums: FloatMatrix
    square: FiniteFloat


class DualRound(Model):
    """What the sites answered to one lambda.

    Attributes
    ----------
    lambdas : (S - 1, K, d) float64
        Multipliers of the links of the chain of sites in name order, eq. 8 to 10.
    centroids : (S, K, d) float64
    value : float
        The sum of the sites' proven bounds: a lower bound.
    objective : float
        The sum of what the sites' answers cost, at least ``value``. Above it only where a node
        problem was stopped early; cuts pass through it.
    models : tuple of SiteModel, one for each site in name order
    """

    lambdas: FloatTensor3
    centroids: FloatTensor3
    value: FiniteFloat
    objective: FiniteFloat
    models: tuple[SiteModel, ...]


class _Known(Model):
    """An assignment that a site has sent, and the last round in which the master used it."""

    site: int
    model: SiteModel
    used: int


class _Cut(Model):
    lambdas: FloatTensor3
    slopes: FloatTensor3
    value: FiniteFloat


class Ascent(Model):
    """A rule's whole memory.

    Attributes
    ----------
    rule : str
    n_sites, n_clusters, n_features : int
    step : float
        alpha_0 of eq. 18 and 37.
    memory : int
        tau of eq. 19; of ``quadratic_bundle``, how many assignments of a site are kept. Those in
        use are kept always.
    residual : float
        Norm of the consensus violation (eq. 38) at which the paper's rules end.
    rounds : int
        Rounds taken so far.
    lambdas : (S - 1, K, d) float64
        What the next round is asked for.
    best : float or None
        The largest value so far: the lower bound.
    curvature : (n, n) float64 or None
        B of eq. 26, of ``quasi_newton``.
    """

    rule: Rule
    n_sites: int
    n_clusters: int
    n_features: int
    step: Annotated[FiniteFloat, Field(gt=0)]
    memory: Annotated[int, Field(ge=1)]
    residual: Annotated[FiniteFloat, Field(ge=0)]
    rounds: int
    lambdas: FloatTensor3
    best: FiniteFloat | None
    curvature: FloatMatrix | None
    cuts: tuple[_Cut, ...]
    known: tuple[_Known, ...]


@dataclass(frozen=True)
class Advice:
    """What to ask next.

    Attributes
    ----------
    lambdas : (S - 1, K, d) float64
    model_value : float or None
        Of ``quadratic_bundle``: the maximum of its model, above which the dual function has no
        value. None for ``reference``, whose region the model only relaxes, and where the solver
        stopped short.
    consensus : (K, d) float64 or None
        The master's primal point: centroids worth a try.
    apart : (K, d) float64 or None
        Of ``quadratic_bundle``: along which coordinates the sites' assignments disagree most.
    finished : bool
    reason : {"", "residual", "converged", "stalled"}
        ``residual``: the sites agree; ``converged``: the best value is the model's maximum;
        ``stalled``: the sites said nothing new, as at a node limit.
    """

    lambdas: FloatArray
    model_value: float | None
    consensus: FloatArray | None
    apart: FloatArray | None
    finished: bool
    reason: Reason


# --- what a round says ----------------------------------------------------------------------------


def multipliers(lambdas: FloatArray) -> FloatArray:
    """Return mu (S, K, d) with mu_i = A_i^T lambda: what each site is told, eq. 9 and 11."""
    none = np.zeros((1, *lambdas.shape[1:]))
    return np.asarray(np.concatenate([lambdas, none]) - np.concatenate([none, lambdas]))


def _slopes(centroids: FloatArray) -> FloatArray:
    """Return (S - 1, K, d): the subgradient of eq. 16."""
    return np.asarray(centroids[:-1] - centroids[1:])


# --- the rules ------------------------------------------------------------------------------------


def begin(
    rule: Rule,
    n_sites: int,
    n_clusters: int,
    n_features: int,
    *,
    step: float = 0.5,
    memory: int = 50,
    residual: float = 1e-2,
) -> Ascent:
    """Return the state before the first round: lambda 0, B_0 = -I (Table I).

    Parameters
    ----------
    rule : {"subgradient", "bundle_trust", "quasi_newton", "quadratic_bundle"}
    n_sites, n_clusters, n_features : int
    step : float
        Initial step, or squared radius of the trust region; not of ``quadratic_bundle``.
    memory : int
        Rounds that cuts are kept for; of ``quadratic_bundle``, a site's assignments that are.
    residual : float
        Consensus violation at which the paper's rules end.
    """
    shape = (n_sites - 1, n_clusters, n_features)
    size = int(np.prod(shape))
    return Ascent(
        rule=rule,
        n_sites=n_sites,
        n_clusters=n_clusters,
        n_features=n_features,
        step=step,
        memory=memory,
        residual=residual,
        rounds=0,
        lambdas=np.zeros(shape),
        best=None,
        curvature=-np.eye(size) if rule == "quasi_newton" else None,
        cuts=(),
        known=(),
    )


def advance(ascent: Ascent, round_: DualRound, region: Region) -> tuple[Ascent, Advice]:
    """Take one round in and say where to go next.

    Parameters
    ----------
    ascent : Ascent
    round_ : DualRound
    region : Region
        What the sites' centroids are confined to; ``quadratic_bundle`` alone reads it.

    Returns
    -------
    Ascent
        To be stored; ``rounds`` has grown by 1.
    Advice

    Raises
    ------
    MissingExtra
        If the rule needs the convex solver and it is not installed.
    """
    slopes = _slopes(round_.centroids)
    cuts = ascent.cuts
    if ascent.rule in ("bundle_trust", "quasi_newton"):
        cut = _Cut(lambdas=round_.lambdas, slopes=slopes, value=round_.objective)
        cuts = (*cuts, cut)[-ascent.memory :]
    ascent = ascent.model_copy(
        update={
            "rounds": ascent.rounds + 1,
            "lambdas": round_.lambdas,
            "best": round_.value if ascent.best is None else max(ascent.best, round_.value),
            "curvature": _curved(ascent, round_, slopes),
            "cuts": cuts,
            "known": _learned(ascent, round_.models),
        }
    )
    if ascent.rule == "quadratic_bundle":
        return _by_quadratics(ascent, region, slopes=slopes)
    if np.linalg.norm(slopes) <= ascent.residual:
        lambdas = ascent.lambdas
        return ascent, Advice(lambdas, None, None, None, finished=True, reason="residual")
    return _go(ascent, ascent.lambdas + _step(ascent, slopes))


def learn(ascent: Ascent, models: Sequence[SiteModel]) -> Ascent:
    """Take in assignments that sites told outside of a dual round, as of the primal's centroids.

    Any assignment of a site's points bounds its part of the dual function, the best one or
    not: the quadratic master is tighter for it, and needs fewer rounds. Other rules forget it.

    Parameters
    ----------
    ascent : Ascent
    models : sequence of SiteModel, one for each site in name order
    """
    return ascent.model_copy(update={"known": _learned(ascent, models)})


def enter(ascent: Ascent, region: Region, bound: float) -> tuple[Ascent, Advice]:
    """Begin in another region, of ``quadratic_bundle``: with every assignment that is known.

    What an assignment costs it costs for any centroids, so that the model holds in any part of
    the region too.

    Parameters
    ----------
    ascent : Ascent
    region : Region
    bound : float
        Proven of it already; that of a region that holds it, for example.
    """
    return _by_quadratics(ascent.model_copy(update={"best": bound}), region, slopes=None)


def known_cost(ascent: Ascent, centroids: FloatArray) -> float:
    """Return what centroids (K, d) cost at most by the assignments that are known.

    Infinite where nothing is known of some site.
    """
    least = np.full(ascent.n_sites, np.inf)
    for known in ascent.known:
        piece = _piece(known.site, known.model)
        cost = piece.counts @ ((centroids - piece.centres) ** 2).sum(axis=1) + piece.rest
        least[known.site] = min(least[known.site], float(cost))
    return float(least.sum())


def _go(ascent: Ascent, lambdas: FloatArray) -> tuple[Ascent, Advice]:
    ascent = ascent.model_copy(update={"lambdas": lambdas})
    return ascent, Advice(lambdas, None, None, None, finished=False, reason="")


# --- the paper's rules ----------------------------------------------------------------------------


def _length(ascent: Ascent) -> float:
    """Return alpha of eq. 18 and 37."""
    return float(ascent.step / np.sqrt(ascent.rounds))


def _along(ascent: Ascent, slopes: FloatArray) -> FloatArray:
    """Return the step of eq. 17."""
    return np.asarray(_length(ascent) * slopes)


def _step(ascent: Ascent, slopes: FloatArray) -> FloatArray:
    """Return one of the paper's steps from the current lambda: (S - 1, K, d)."""
    if ascent.rule == "subgradient":
        return _along(ascent, slopes)
    heights = np.array(
        [
            cut.value + float((cut.slopes * (ascent.lambdas - cut.lambdas)).sum())
            for cut in ascent.cuts
        ]
    )
    curvature = ascent.curvature
    found = best_step(
        np.array([cut.slopes.ravel() for cut in ascent.cuts]),
        heights - ascent.cuts[-1].value,
        float(np.sqrt(_length(ascent))),
        slope=None if curvature is None else slopes.ravel(),
        curvature=curvature,
    )
    return _along(ascent, slopes) if found is None else found.reshape(slopes.shape)


def _curved(ascent: Ascent, round_: DualRound, slopes: FloatArray) -> FloatArray | None:
    """Return B after the step from the last round to this one, eq. 27 to 29."""
    old = ascent.curvature
    if old is None or not ascent.cuts:
        return old
    last = ascent.cuts[-1]
    s = (round_.lambdas - last.lambdas).ravel()
    y = (slopes - last.slopes).ravel()
    turn = float(y @ s)
    # Concave: y.s <= 0. At 0, B would lose its sign; far beyond, a kink lies on the way.
    if turn >= 0.0 or y @ y > -_STEEPEST * turn or -turn * _STEEPEST < s @ s:
        return old
    bent = old @ s
    new = old + np.outer(y, y) / turn - np.outer(bent, bent) / float(s @ bent)
    return np.asarray((new + new.T) / 2)


# --- the quadratic bundle -------------------------------------------------------------------------


def _by_quadratics(
    ascent: Ascent, region: Region, *, slopes: FloatArray | None
) -> tuple[Ascent, Advice]:
    """Ask for the maximum of the model of all assignments that the sites have sent.

    ``slopes`` are of the last round in this region, if there was one.
    """
    asked = ascent.lambdas
    pieces = [_piece(known.site, known.model) for known in ascent.known]
    optimum = best_of_model(pieces, region, ascent.n_sites)
    if optimum is None:
        return _go(ascent, asked if slopes is None else asked + _along(ascent, slopes))
    exact = np.isfinite(optimum.error)
    best = -np.inf if ascent.best is None else ascent.best
    reason: Reason = ""
    if exact and best >= optimum.value - _CONVERGED * abs(best) - optimum.error:
        reason = "converged"
    elif slopes is not None and np.array_equal(optimum.lambdas, asked):
        reason = "stalled"
    bounding = exact and region.symmetry != "reference"
    advice = Advice(
        lambdas=optimum.lambdas,
        model_value=optimum.value if bounding else None,
        consensus=optimum.consensus,
        apart=optimum.apart,
        finished=bool(reason),
        reason=reason,
    )
    ascent = ascent.model_copy(
        update={"lambdas": optimum.lambdas, "known": _in_use(ascent, optimum.active)}
    )
    return ascent, advice


def _piece(site: int, model: SiteModel) -> Piece:
    counts = model.counts.astype(np.float64)
    centres = model.sums / np.maximum(counts, 1.0)[:, None]
    rest = model.square - float((model.sums * centres).sum())
    return Piece(site, counts, centres, max(rest, 0.0))


def _learned(ascent: Ascent, models: Sequence[SiteModel]) -> tuple[_Known, ...]:
    """Add the assignments that are new."""
    if ascent.rule != "quadratic_bundle":
        return ()
    known = list(ascent.known)
    for site, model in enumerate(models):
        if not any(site == old.site and _alike(model, old.model) for old in known):
            known.append(_Known(site=site, model=model, used=ascent.rounds + 1))
    return tuple(known)


def _alike(one: SiteModel, other: SiteModel) -> bool:
    """Whether two assignments cost the same everywhere, rounding of sums apart."""
    if not np.array_equal(one.counts, other.counts):
        return False
    size = max(1e-300, float(np.abs(other.sums).max(initial=0.0)))
    return float(np.abs(one.sums - other.sums).max(initial=0.0)) <= _SAME * size


def _in_use(ascent: Ascent, active: BoolArray) -> tuple[_Known, ...]:
    """Keep the assignments in use and, of each site, the ``memory`` that were so last."""
    known = [
        old.model_copy(update={"used": ascent.rounds}) if used else old
        for old, used in zip(ascent.known, active, strict=True)
    ]
    kept: set[int] = set()
    for site in range(ascent.n_sites):
        own = [index for index, old in enumerate(known) if old.site == site]
        own.sort(key=lambda index: (-known[index].used, index))
        kept.update(own[: ascent.memory])
    return tuple(
        old
        for index, (old, used) in enumerate(zip(known, active, strict=True))
        if used or index in kept
    )
