"""Rules that update the multipliers of `dual` after each dual round.

The dual function ``d(lambda)``, the sum over sites of their optimal node problems (equation 12 of
[1]_), is concave and a lower bound of the clustering problem for every lambda. The rules of the
paper's section IV:

- ``subgradient`` follows the violation of consensus (equations 16 to 18);
- ``bundle_trust`` maximises the cutting-plane model of the last tau rounds within a trust region
  (equations 19 to 25);
- ``quasi_newton`` adds a quadratic model with BFGS curvature to the cuts (equations 26 to 32).

Two details differ from the paper. Constraint 32c is reverse convex as printed; this module
maximises the lower of model and cuts, which is concave. The BFGS update is skipped where it would
leave B indefinite or badly scaled, which can happen where a step crosses a kink.

A fourth rule, ``quadratic_bundle``, uses that every site sends the counts and sums of its optimal
assignment: they give the assignment's cost for every lambda, not only a plane. The rule maximises
the sum over sites of the least cost of a known assignment
(:func:`~fedclust_dual.cone_program.maximise_bundle`). There are finitely many assignments,
so it ends at the exact optimum of the dual.

All functions are pure; the state is stored between rounds.

References
----------
.. [1] Yfantis, Wagner & Ruskowski, "Federated K-means clustering via dual decomposition-based
   distributed optimization".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field, FiniteFloat

from fedclust.numeric.array_types import BoolArray, FloatArray
from fedclust.numeric.arrays import FloatMatrix, FloatTensor3, IntVector
from fedclust.schema.model import Model
from fedclust_dual.cone_program import AssignmentCost, maximise_bundle, maximise_cutting_planes
from fedclust_dual.feasible_set import Region

Rule: TypeAlias = Literal["subgradient", "bundle_trust", "quasi_newton", "quadratic_bundle"]
Reason: TypeAlias = Literal["", "residual", "converged", "stalled"]

#: Relative distance of the best bound and the model's maximum at which the rule has converged. The
#: node solvers and the cone solver stop at about a tenth of it.
_CONVERGED = 1e-6
#: Largest curvature in a BFGS update, per unit of lambda; beyond it the step crossed a kink.
_MAX_CURVATURE = 1e6
#: Relative difference of two sums up to which they belong to the same assignment.
_SAME_SUMS = 1e-9


class SiteAssignment(Model):
    """An assignment of a site's points; it costs ``sum_k n_k |m_k|^2 - 2 s_k . m_k + square``.

    Attributes
    ----------
    counts : (K,) int64
        n, persons in each cluster.
    sums : (K, d) float64
        s, sums of each cluster's points, weighted by persons.
    square : float
        Squared lengths of all points, weighted by persons and added up.
    """

    counts: IntVector
    sums: FloatMatrix
    square: FiniteFloat

    def objective(self, centroids: FloatArray, mu: FloatArray) -> float:
        """Return the cost with centroids and multipliers (K, d), all relative to one origin."""
        square = self.counts @ (centroids**2).sum(axis=1) + self.square
        return float(square + ((mu - 2.0 * self.sums) * centroids).sum())


class DualRound(Model):
    """The sites' answers to one lambda.

    Attributes
    ----------
    lambdas : (S - 1, K, d) float64
        Multipliers of the links between neighbouring sites in name order, equations 8 to 10.
    centroids : (S, K, d) float64
    value : float
        The sum of the sites' proven bounds: a lower bound.
    objective : float
        The sum of the costs of the sites' answers, at least ``value``. It is larger only where a
        node problem was stopped early. Cuts pass through it.
    models : tuple of SiteAssignment, one for each site in name order
    """

    lambdas: FloatTensor3
    centroids: FloatTensor3
    value: FiniteFloat
    objective: FiniteFloat
    models: tuple[SiteAssignment, ...]


class _KnownAssignment(Model):
    """An assignment that a site has sent; ``used``: the last round in which it was active."""

    site: int
    model: SiteAssignment
    used: int


class _Cut(Model):
    lambdas: FloatTensor3
    slopes: FloatTensor3
    value: FiniteFloat


class Ascent(Model):
    """The state of an update rule.

    Attributes
    ----------
    rule : str
    n_sites, n_clusters, n_features : int
    step : float
        alpha_0 of equations 18 and 37.
    memory : int
        tau of equation 19; for ``quadratic_bundle`` the number of assignments kept for each site.
        Active assignments are always kept.
    residual : float
        Norm of the consensus violation (equation 38) at which the paper's rules end.
    rounds : int
        Rounds processed so far.
    lambdas : (S - 1, K, d) float64
        The multipliers of the next round.
    best : float or None
        The largest value so far: the lower bound.
    curvature : (n, n) float64 or None
        B of equation 26, for ``quasi_newton``.
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
    known: tuple[_KnownAssignment, ...]


@dataclass(frozen=True)
class Proposal:
    """The multipliers that a rule proposes for the next round.

    Attributes
    ----------
    lambdas : (S - 1, K, d) float64
    finished : bool
    reason : {"", "residual", "converged", "stalled"}
        ``residual``: the sites agree; ``converged``: the best value is the model's maximum;
        ``stalled``: the sites sent nothing new, for example at a node limit.
    model_value : float or None
        The maximum of the model of ``quadratic_bundle``, an upper limit of the dual function. None
        for the symmetry form "reference", where the model only relaxes the region, and where the
        solver missed its accuracy.
    consensus : (K, d) float64 or None
        The primal point of ``quadratic_bundle``: candidate centroids.
    disagreement : (K, d) float64 or None
        How much the sites' assignments disagree about each coordinate (``quadratic_bundle``).
    """

    lambdas: FloatArray
    finished: bool = False
    reason: Reason = ""
    model_value: float | None = None
    consensus: FloatArray | None = None
    disagreement: FloatArray | None = None


def site_multipliers(lambdas: FloatArray) -> FloatArray:
    """Return every site's multipliers.

    Parameters
    ----------
    lambdas : (S - 1, K, d) float64
        Multipliers of the links between neighbouring sites.

    Returns
    -------
    (S, K, d) float64
        mu_i = A_i^T lambda, equations 9 and 11.
    """
    zero = np.zeros((1, *lambdas.shape[1:]))
    return np.asarray(np.concatenate([lambdas, zero]) - np.concatenate([zero, lambdas]))


def start_ascent(
    rule: Rule,
    shape: tuple[int, int, int],
    *,
    step: float = 0.5,
    memory: int = 50,
    residual: float = 1e-2,
) -> Ascent:
    """Return the state before the first round: lambda is 0, and B_0 = -I (Table I).

    Parameters
    ----------
    rule : {"subgradient", "bundle_trust", "quasi_newton", "quadratic_bundle"}
    shape : tuple of int
        Numbers of sites S, clusters K and columns d.
    step : float
        Initial step length, or squared radius of the trust region; not for ``quadratic_bundle``.
    memory : int
        Rounds for which cuts are kept; for ``quadratic_bundle`` assignments kept for each site.
    residual : float
        Consensus violation at which the paper's rules end.
    """
    n_sites, n_clusters, n_features = shape
    lambdas = np.zeros((n_sites - 1, n_clusters, n_features))
    return Ascent(
        rule=rule,
        n_sites=n_sites,
        n_clusters=n_clusters,
        n_features=n_features,
        step=step,
        memory=memory,
        residual=residual,
        rounds=0,
        lambdas=lambdas,
        best=None,
        curvature=-np.eye(lambdas.size) if rule == "quasi_newton" else None,
        cuts=(),
        known=(),
    )


def update_multipliers(
    ascent: Ascent, dual_round: DualRound, region: Region
) -> tuple[Ascent, Proposal]:
    """Process the answers of one dual round and propose the next multipliers.

    Parameters
    ----------
    ascent : Ascent
    dual_round : DualRound
    region : Region
        The feasible set of the sites' centroids; only ``quadratic_bundle`` needs it.

    Returns
    -------
    Ascent
        The new state; ``rounds`` has grown by 1.
    Proposal
    """
    # The subgradient, equation 16.
    slopes = np.asarray(dual_round.centroids[:-1] - dual_round.centroids[1:])
    cuts, value = ascent.cuts, dual_round.value
    if ascent.rule in ("bundle_trust", "quasi_newton"):
        cut = _Cut(lambdas=dual_round.lambdas, slopes=slopes, value=dual_round.objective)
        cuts = (*cuts, cut)[-ascent.memory :]
    ascent = ascent.model_copy(
        update={
            "rounds": ascent.rounds + 1,
            "lambdas": dual_round.lambdas,
            "best": value if ascent.best is None else max(ascent.best, value),
            "curvature": _bfgs_update(ascent, dual_round, slopes),
            "cuts": cuts,
            "known": _extend_known(ascent, dual_round.models),
        }
    )
    if ascent.rule == "quadratic_bundle":
        return _propose_by_bundle(ascent, region, slopes)
    if np.linalg.norm(slopes) <= ascent.residual:
        return ascent, Proposal(ascent.lambdas, finished=True, reason="residual")
    if ascent.rule == "subgradient":
        return _move_multipliers(ascent, _subgradient_step(ascent, slopes))
    return _move_multipliers(ascent, _cutting_plane_step(ascent, slopes))


def add_assignments(ascent: Ascent, assignments: Sequence[SiteAssignment]) -> Ascent:
    """Add assignments that are known from outside a dual round, for example from a primal round.

    Any assignment of a site's points, optimal or not, bounds the site's part of the dual function:
    it tightens the model of ``quadratic_bundle`` and saves rounds. Other rules ignore it.

    Parameters
    ----------
    ascent : Ascent
    assignments : sequence of SiteAssignment
        One for each site in name order.
    """
    return ascent.model_copy(update={"known": _extend_known(ascent, assignments)})


def propose_in_region(ascent: Ascent, region: Region, bound: float) -> tuple[Ascent, Proposal]:
    """Propose multipliers for another region, from all known assignments (``quadratic_bundle``).

    An assignment's cost does not depend on the region, so the model holds in every subdomain.

    Parameters
    ----------
    ascent : Ascent
    region : Region
    bound : float
        A proven lower bound of the region, for example that of a region that contains it.

    Returns
    -------
    Ascent
    Proposal
    """
    return _propose_by_bundle(ascent.model_copy(update={"best": bound}), region, None)


def known_cost(ascent: Ascent, centroids: FloatArray) -> float:
    """Return an upper bound of the cost of centroids (K, d), from the known assignments.

    It is infinite where no assignment of some site is known.
    """
    least = np.full(ascent.n_sites, np.inf)
    for known in ascent.known:
        assignment = _assignment_cost(known)
        squares = ((centroids - assignment.means) ** 2).sum(axis=1)
        cost = assignment.counts @ squares + assignment.within
        least[known.site] = min(least[known.site], float(cost))
    return float(least.sum())


# --- The paper's rules ----------------------------------------------------------------------------


def _move_multipliers(ascent: Ascent, step: FloatArray) -> tuple[Ascent, Proposal]:
    lambdas = ascent.lambdas + step
    return ascent.model_copy(update={"lambdas": lambdas}), Proposal(lambdas)


def _step_length(ascent: Ascent) -> float:
    """Return alpha of equations 18 and 37."""
    return float(ascent.step / np.sqrt(ascent.rounds))


def _subgradient_step(ascent: Ascent, slopes: FloatArray) -> FloatArray:
    """Return the step (S - 1, K, d) of equation 17."""
    return np.asarray(_step_length(ascent) * slopes)


def _cutting_plane_step(ascent: Ascent, slopes: FloatArray) -> FloatArray:
    """Return the step (S - 1, K, d) of equation 24 or, with curvature, of equation 32."""
    heights = np.array(
        [
            cut.value + float((cut.slopes * (ascent.lambdas - cut.lambdas)).sum())
            for cut in ascent.cuts
        ]
    )
    curvature = ascent.curvature
    step = maximise_cutting_planes(
        np.array([cut.slopes.ravel() for cut in ascent.cuts]),
        heights - ascent.cuts[-1].value,
        float(np.sqrt(_step_length(ascent))),
        slope=None if curvature is None else slopes.ravel(),
        curvature=curvature,
    )
    return _subgradient_step(ascent, slopes) if step is None else step.reshape(slopes.shape)


def _bfgs_update(ascent: Ascent, dual_round: DualRound, slopes: FloatArray) -> FloatArray | None:
    """Return B after the step from the last round to this one, equations 27 to 29."""
    old = ascent.curvature
    if old is None or not ascent.cuts:
        return old
    last = ascent.cuts[-1]
    s = (dual_round.lambdas - last.lambdas).ravel()
    y = (slopes - last.slopes).ravel()
    product = float(y @ s)
    # Concave: y.s <= 0. At 0, B would lose its sign; a very large curvature comes from a kink.
    if product >= 0.0 or y @ y > -_MAX_CURVATURE * product or -product * _MAX_CURVATURE < s @ s:
        return old
    image = old @ s
    new = old + np.outer(y, y) / product - np.outer(image, image) / float(s @ image)
    return np.asarray((new + new.T) / 2)


# --- The quadratic bundle -------------------------------------------------------------------------


def _propose_by_bundle(
    ascent: Ascent, region: Region, slopes: FloatArray | None
) -> tuple[Ascent, Proposal]:
    """Propose the maximiser of the model; ``slopes`` of the last round in this region, if any."""
    assignments = [_assignment_cost(known) for known in ascent.known]
    optimum = maximise_bundle(assignments, region, ascent.n_sites)
    if optimum is None:
        if slopes is None:
            return ascent, Proposal(ascent.lambdas)
        return _move_multipliers(ascent, _subgradient_step(ascent, slopes))
    exact = np.isfinite(optimum.error)
    best = -np.inf if ascent.best is None else ascent.best
    reason: Reason = ""
    if exact and best >= optimum.value - _CONVERGED * abs(best) - optimum.error:
        reason = "converged"
    elif slopes is not None and np.array_equal(optimum.lambdas, ascent.lambdas):
        reason = "stalled"
    proposal = Proposal(
        lambdas=optimum.lambdas,
        finished=bool(reason),
        reason=reason,
        model_value=optimum.value if exact and region.symmetry != "reference" else None,
        consensus=optimum.consensus,
        disagreement=optimum.disagreement,
    )
    known = _forget_unused(ascent, optimum.active)
    return ascent.model_copy(update={"lambdas": optimum.lambdas, "known": known}), proposal


def _assignment_cost(known: _KnownAssignment) -> AssignmentCost:
    model = known.model
    counts = model.counts.astype(np.float64)
    means = model.sums / np.maximum(counts, 1.0)[:, None]
    within = model.square - float((model.sums * means).sum())
    return AssignmentCost(known.site, counts, means, max(within, 0.0))


def _extend_known(
    ascent: Ascent, assignments: Sequence[SiteAssignment]
) -> tuple[_KnownAssignment, ...]:
    if ascent.rule != "quadratic_bundle":
        return ()
    known = list(ascent.known)
    for site, model in enumerate(assignments):
        if not any(site == old.site and _is_same(model, old.model) for old in known):
            known.append(_KnownAssignment(site=site, model=model, used=ascent.rounds + 1))
    return tuple(known)


def _is_same(one: SiteAssignment, other: SiteAssignment) -> bool:
    """Return whether two assignments have the same cost everywhere, up to rounding of sums."""
    if not np.array_equal(one.counts, other.counts):
        return False
    size = max(1e-300, float(np.abs(other.sums).max(initial=0.0)))
    return float(np.abs(one.sums - other.sums).max(initial=0.0)) <= _SAME_SUMS * size


def _forget_unused(ascent: Ascent, active: BoolArray) -> tuple[_KnownAssignment, ...]:
    """Keep the active assignments and each site's ``memory`` most recently used ones."""
    known = [
        old.model_copy(update={"used": ascent.rounds}) if is_active else old
        for old, is_active in zip(ascent.known, active, strict=True)
    ]
    kept = set(np.flatnonzero(active).tolist())
    for site in range(ascent.n_sites):
        own = [index for index, old in enumerate(known) if old.site == site]
        own.sort(key=lambda index: (-known[index].used, index))
        kept.update(own[: ascent.memory])
    return tuple(known[index] for index in sorted(kept))
