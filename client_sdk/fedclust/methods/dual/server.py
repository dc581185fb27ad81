"""dual at the coordinator: dual and primal rounds, bounds, and splitting of the region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.finalize import raw_result
from fedclust.methods.dual.config import Config
from fedclust.methods.dual.domain_splitting import (
    Splitting,
    Whole,
    begin_splitting,
    proceed,
    taken_in,
)
from fedclust.methods.dual.feasible_set import CERTIFIED, Region
from fedclust.methods.dual.messages import (
    CELLS,
    DUAL,
    MOST_CANDIDATES,
    PRIMAL,
    AnyPayload,
    AnyTask,
    DualAnswer,
    DualCells,
    DualPart,
    DualTask,
    PrimalAnswer,
    PrimalPart,
    PrimalTask,
    digest_of,
    objective_of,
)
from fedclust.methods.dual.multiplier_update import (
    Advice,
    Ascent,
    DualRound,
    SiteModel,
    advance,
    begin,
    known_cost,
    learn,
    multipliers,
)
from fedclust.methods.dual.primal_step import Step, cost_of, lloyd_step
from fedclust.numeric.arrays import FloatMatrix, FloatTensor3, FloatVector
from fedclust.numeric.canonical import round_to_tolerance
from fedclust.numeric.distances import squared_distances
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import best_partitions
from fedclust.schema.errors import MethodFailure
from fedclust.schema.model import Model
from fedclust.schema.result import Bounds, Result, relative_gap
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import Contribution, Done, Next, Task, payloads_of

_Known = TypeVar("_Known")

#: Relative: a polishing step that gains less ends the polishing; costs no farther apart are one.
_SAME = 1e-9
#: Partitions of the local cells from which the polishing starts as well.
_STARTS = 8
#: Relative gap at which a box is done with even if none is allowed: the dual's own accuracy.
_CLOSED = 2e-6
#: Of the points' own scatter: less than this of a cost is rounding.
_ROUNDING = 1e-12
#: Where the dual rule is at its end.
_SPLITTABLE = ("converged", "stalled")


# --- Aggregation ----------------------------------------------------------------------------------


class Extent(Model):
    """All points of a site: persons, mean (d,), and squared distances from it, added up."""

    n: int
    mean: FloatVector
    scatter: FiniteFloat

    @classmethod
    def of(cls, cells: DualCells) -> Extent:
        n = int(cells.counts.sum())
        mean = cells.counts @ cells.means / n
        away = ((cells.means - mean) ** 2).sum(axis=1)
        return cls(n=n, mean=mean, scatter=float(cells.costs.sum() + cells.counts @ away))

    def square(self, origin: NDArray[np.float64]) -> float:
        """Return the sum of all points' squared distances from ``origin`` (d,)."""
        return self.scatter + self.n * float(((self.mean - origin) ** 2).sum())


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    phase : {"cells", "dual", "primal"}
        What the open round asks.
    seed : int
    sites : dict of site to Extent
        The chain, sorted; empty until the first centroids are known.
    references : (K, d) float64 or None
    lambdas : (S - 1, K, d) float64 or None
        Multipliers of the links, of the open or the next dual round.
    ascent : Ascent or None
        Of the update rule.
    iterations, limited : int
        Dual rounds that were closed, and how many met a node limit.
    lower, upper : float or None
        The best bounds so far.
    best : (K, d) float64 or None
        The centroids of ``upper``.
    candidates : (C, K, d) float64
        Centroids that the open or next primal round measures.
    optima : (m,) float64
        What the ends of polishing cost, so that none is gone to twice.
    ended : str
        Why no further dual round of the whole region is opened; empty until then.
    splitting : Splitting or None
        Its boxes, once it is cut.
    """

    phase: Literal["cells", "dual", "primal"]
    seed: int
    sites: dict[str, Extent] = Field(default_factory=dict)
    references: FloatMatrix | None = None
    lambdas: FloatTensor3 | None = None
    ascent: Ascent | None = None
    iterations: int = 0
    limited: int = 0
    lower: float | None = None
    upper: float | None = None
    best: FloatMatrix | None = None
    candidates: FloatTensor3 = np.zeros((0, 0, 0))
    optima: FloatVector = np.zeros(0)
    ended: str = ""
    splitting: Splitting | None = None


def start(config: RunConfig[Config], seed: int) -> tuple[State, Task[AnyTask]]:
    """Return the first state and task."""
    options = config.options
    task = kmeans_rounds.CellsTask(n_clusters=options.n_clusters, n_init=options.n_init)
    return State(phase="cells", seed=seed), Task(CELLS, task)


def aggregate(
    state: State, contributions: Sequence[Contribution[AnyPayload]], config: RunConfig[Config]
) -> Next[State, AnyTask] | Done:
    """Close a round; contributions sorted by site."""
    if state.phase == "cells":
        return _references(state, payloads_of(contributions, DualCells), config)
    answered = {c.site for c in contributions if c.payload is not None}
    if not set(state.sites) <= set(config.roster) & answered:
        # Bounds of fewer sites would be those of another question.
        return Done(finish(_ended(state, "site_left"), config))
    if state.phase == "dual":
        return _close_dual(state, payloads_of(contributions, DualAnswer), config)
    return _close_primal(state, payloads_of(contributions, PrimalAnswer), config)


def _references(
    state: State, sent: Mapping[str, DualCells], config: RunConfig[Config]
) -> Next[State, AnyTask]:
    """Cluster the sites' cells: the references, and where polishing starts."""
    options = config.options
    silent = [site for site in config.roster if site not in sent]
    if silent:
        raise MethodFailure(
            "site_without_points",
            f"dual needs an answer of every site, and {len(silent)} had none, as a site with "
            "fewer persons than min_group_size: create the session without such sites",
        )
    counts = np.concatenate([cells.counts for cells in sent.values()])
    means = np.concatenate([cells.means for cells in sent.values()])[counts > 0]
    lower, upper = scaled_bounds(config)
    starts = [
        np.clip(each, lower, upper)
        for each in best_partitions(
            means,
            counts[counts > 0].astype(np.float64),
            options.n_clusters,
            server_rng(state.seed, "dual-references"),
            _STARTS,
        )
    ]
    references = starts[0]
    sites = {site: Extent.of(sent[site]) for site in sorted(config.roster)}
    n_clusters, d = references.shape
    step = 0.5 if options.step is None else options.step
    residual = 1e-2 if options.residual is None else options.residual
    ascent = begin(options.update, len(sites), n_clusters, d, step=step, residual=residual)
    steps = {site: Step.of_cells(sent[site], references) for site in sites}
    following = state.model_copy(
        update={
            "sites": sites,
            "references": references,
            "lambdas": np.zeros((len(sites) - 1, n_clusters, d)),
            "ascent": _learnt(ascent, steps, sites, references.mean(axis=0)),
            "candidates": np.array(starts if options.polished else starts[:0]).reshape(
                -1, n_clusters, d
            ),
        }
    )
    return _open_dual(following, {})


def _open_dual(state: State, metrics: Mapping[str, float]) -> Next[State, AnyTask]:
    own = multipliers(_known(state.lambdas))
    parts = {
        site: DualPart(
            multipliers=mu,
            digest=digest_of(mu),
            n=extent.n,
            mean=extent.mean,
            scatter=extent.scatter,
        )
        for mu, (site, extent) in zip(own, state.sites.items(), strict=True)
    }
    box = None if state.splitting is None else state.splitting.current
    task = DualTask(
        references=_known(state.references),
        origin=_origin(state),
        lower=None if box is None else box.lower,
        upper=None if box is None else box.upper,
    )
    following = state.model_copy(update={"phase": "dual"})
    return Next(following, Task(DUAL, task, per_site=parts), metrics)


def _origin(state: State) -> NDArray[np.float64]:
    return np.asarray(_known(state.references).mean(axis=0))


def _known(value: _Known | None) -> _Known:
    if value is None:
        raise ValueError("the round before has to be closed first")
    return value


def _close_dual(
    state: State, answers: Mapping[str, DualAnswer], config: RunConfig[Config]
) -> Next[State, AnyTask] | Done:
    closed = _read_answers(state, answers)
    metrics: dict[str, float] = {}
    # No inertia is negative, whatever the multipliers.
    told = max(closed.value, 0.0)
    if state.splitting is not None:
        state = state.model_copy(update={"splitting": taken_in(state.splitting, told)})
        told = _known(state.splitting).bound
    metrics["lower_bound"] = told
    state = state.model_copy(
        update={
            "iterations": state.iterations + 1,
            "limited": state.limited + any(answer.limited for answer in answers.values()),
            "lower": told if state.lower is None else max(state.lower, told),
        }
    )
    if state.splitting is not None:
        return _close_part(state, closed, config, metrics)
    state, consensus = _moved(state, closed, config)
    # The mean of the sites' centroids, eq. 33.
    lower, upper = scaled_bounds(config)
    tried = [np.clip(closed.centroids.mean(axis=0) + _origin(state), lower, upper)]
    if config.options.polished:
        tried += [] if consensus is None else [consensus]
        tried += [*state.candidates]
    state = state.model_copy(update={"candidates": np.array(tried[:MOST_CANDIDATES])})
    return _open_primal(state, metrics)


def _ended(state: State, because: str) -> State:
    return state.model_copy(update={"ended": because})


def _read_answers(state: State, answers: Mapping[str, DualAnswer]) -> DualRound:
    """Return what the sites answered, about the origin."""
    origin, lambdas = _origin(state), _known(state.lambdas)
    centroids, models = [], []
    value = objective = 0.0
    for mu, (site, extent) in zip(multipliers(lambdas), state.sites.items(), strict=True):
        answer = answers[site]
        sums = answer.counts[:, None] * (answer.means - origin)
        model = SiteModel(counts=answer.counts, sums=sums, square=extent.square(origin))
        centroids.append(answer.centroids - origin)
        models.append(model)
        value += answer.value
        objective += max(answer.value, objective_of(model, centroids[-1], mu))
    return DualRound(
        lambdas=lambdas,
        centroids=np.array(centroids),
        value=value,
        objective=objective,
        models=tuple(models),
    )


def _learnt(
    ascent: Ascent,
    steps: Mapping[str, Step],
    sites: Mapping[str, Extent],
    origin: NDArray[np.float64],
) -> Ascent:
    """Tell the rule of assignments that sites told elsewhere."""
    models = []
    for site, extent in sites.items():
        counts = steps[site].counts
        sums = np.where((counts > 0)[:, None], steps[site].sums - counts[:, None] * origin, 0.0)
        models.append(SiteModel(counts=counts, sums=sums, square=extent.square(origin)))
    return learn(ascent, models)


def _moved(
    state: State, closed: DualRound, config: RunConfig[Config]
) -> tuple[State, NDArray[np.float64] | None]:
    """Move the multipliers by the session's rule; return the master's centroids, if it has any."""
    options = config.options
    if len(state.sites) == 1:
        return _ended(state, "dual_optimum"), None
    whole = _whole(state, config)
    ascent, advice = advance(_known(state.ascent), closed, whole.region)
    ended: str = advice.reason if advice.finished else ""
    if not ended and state.iterations >= options.iterations:
        ended = "iterations"
    following = state.model_copy(
        update={"ascent": ascent, "lambdas": advice.lambdas, "ended": ended}
    )
    if advice.consensus is None:
        return following, None
    return following, np.clip(advice.consensus + whole.origin, *scaled_bounds(config))


def _whole(state: State, config: RunConfig[Config]) -> Whole:
    origin = _origin(state)
    lower, upper = scaled_bounds(config)
    references = _known(state.references) - origin
    region = Region(lower - origin, upper - origin, references, config.options.symmetry)
    return Whole(region, origin)


def _open_primal(state: State, metrics: Mapping[str, float]) -> Next[State, AnyTask]:
    task = PrimalTask(centroids=state.candidates)
    parts = {site: PrimalPart(n=extent.n) for site, extent in state.sites.items()}
    following = state.model_copy(update={"phase": "primal"})
    return Next(following, Task(PRIMAL, task, per_site=parts), metrics)


def _close_primal(
    state: State, answers: Mapping[str, PrimalAnswer], config: RunConfig[Config]
) -> Next[State, AnyTask] | Done:
    options = config.options
    state, further, least = _measured(state, answers, config)
    lower, upper = _known(state.lower), _known(state.upper)
    gap = relative_gap(lower, upper)
    metrics = {"upper_bound": least, "inertia": least, "gap": gap}
    state = state.model_copy(
        update={"candidates": np.array(further).reshape(-1, *state.candidates.shape[1:])}
    )
    if gap <= options.gap:
        return Done(finish(_ended(state, "gap"), config), metrics)
    if further:
        return _open_primal(state, metrics)
    if state.splitting is not None:
        return _go_on_in_parts(state, config, metrics, None)
    if not state.ended:
        return _open_dual(state, metrics)
    if state.ended in _SPLITTABLE and options.splits:
        n_clusters = len(_known(state.references))
        boxes = begin_splitting(*scaled_bounds(config), n_clusters, lower)
        following = state.model_copy(update={"splitting": boxes})
        return _go_on_in_parts(following, config, metrics, None)
    return Done(finish(state, config), metrics)


# --- Closing the gap ------------------------------------------------------------------------------


def _close_part(
    state: State, closed: DualRound, config: RunConfig[Config], metrics: dict[str, float]
) -> Next[State, AnyTask] | Done:
    """Close a dual round of one box; a primal one follows where the master has found better."""
    box = _known(_known(state.splitting).current)
    whole = _whole(state, config)
    ascent, advice = advance(_known(state.ascent), closed, whole.part(box))
    state = state.model_copy(update={"ascent": ascent})
    if advice.consensus is not None and config.options.polished:
        # Known assignments cost no less than the best: a proven upper bound, without a round.
        cost = known_cost(ascent, advice.consensus)
        if cost < _known(state.upper) * (1.0 - _SAME):
            better = np.clip(advice.consensus + whole.origin, *scaled_bounds(config))
            return _open_primal(state.model_copy(update={"candidates": better[None]}), metrics)
    return _go_on_in_parts(state, config, metrics, advice)


def _go_on_in_parts(
    state: State, config: RunConfig[Config], metrics: dict[str, float], advice: Advice | None
) -> Next[State, AnyTask] | Done:
    """Ask about the next box; end where none is left, or nothing more can be done."""
    options = config.options
    goal = _known(state.upper) * (1.0 - max(options.gap, _CLOSED))
    # Points that lie on their centroids cost some rounding: no bound comes nearer to that.
    goal -= _ROUNDING * sum(extent.scatter for extent in state.sites.values())
    splitting, ascent, ask = proceed(
        _known(state.splitting),
        _known(state.ascent),
        _whole(state, config),
        goal=goal,
        most=options.splits,
        advice=advice,
    )
    lower = metrics["lower_bound"] = max(_known(state.lower), splitting.bound)
    metrics["gap"] = relative_gap(lower, _known(state.upper))
    state = state.model_copy(update={"splitting": splitting, "ascent": ascent, "lower": lower})
    if ask.lambdas is None:
        because = "gap" if metrics["gap"] <= options.gap else ask.reason
        return Done(finish(_ended(state, because), config), metrics)
    if state.iterations >= options.iterations:
        return Done(finish(_ended(state, "iterations"), config), metrics)
    return _open_dual(state.model_copy(update={"lambdas": ask.lambdas}), metrics)


def _measured(
    state: State, answers: Mapping[str, PrimalAnswer], config: RunConfig[Config]
) -> tuple[State, list[NDArray[np.float64]], float]:
    """Keep the best candidate; return what a Lloyd step makes of those that it improves.

    And the least that any of these, or of the candidates, costs.
    """
    further: list[NDArray[np.float64]] = []
    costs: list[float] = []
    for i, centroids in enumerate(state.candidates):
        own = {site: Step.of(answers[site], i) for site in state.sites}
        cost = cost_of(own)
        if cost < min(costs, default=np.inf) * (1.0 - _SAME):
            state = _with_assignments(state, own, centroids, config)
        costs.append(cost)
        state = _kept(state, cost, centroids)
        if not config.options.polished:
            continue
        moved, reached = lloyd_step(own, centroids, config)
        costs.append(reached)
        state = _kept(state, reached, moved)
        if (np.abs(state.optima - reached) <= _SAME * reached).any():
            continue
        if reached >= cost * (1.0 - _SAME):
            state = state.model_copy(update={"optima": np.append(state.optima, reached)})
        else:
            further.append(moved)
    return state, further, min(costs)


def _with_assignments(
    state: State,
    steps: Mapping[str, Step],
    centroids: NDArray[np.float64],
    config: RunConfig[Config],
) -> State:
    """Let the quadratic bundle know what a measured candidate assigns, numbered as references."""
    if config.options.update != "quadratic_bundle":
        return state
    # Imported here: it takes a while, and a site does without.
    from scipy.optimize import linear_sum_assignment

    squares = squared_distances(_known(state.references), centroids)
    order = linear_sum_assignment(round_to_tolerance(squares))[1]
    numbered = {site: own.numbered(order) for site, own in steps.items()}
    ascent = _learnt(_known(state.ascent), numbered, state.sites, _origin(state))
    return state.model_copy(update={"ascent": ascent})


def _kept(state: State, cost: float, centroids: NDArray[np.float64]) -> State:
    if state.upper is not None and cost >= state.upper:
        return state
    # Of candidates that differ by rounding, the first.
    better = state.upper is None or cost < state.upper * (1.0 - _SAME)
    return state.model_copy(update={"upper": cost, "best": centroids if better else state.best})


# --- Convergence ----------------------------------------------------------------------------------


def finish(state: State, config: RunConfig[Config]) -> Result:
    """Return the best centroids that were measured, with the bounds; else the references."""
    centroids = state.best if state.best is not None else state.references
    if centroids is None:
        raise MethodFailure("no_centroids", "no round of the method was closed: raise max_rounds")
    result = raw_result(
        centroids, config, stopped_because=state.ended, warnings=_warnings(state, config)
    )
    return result.model_copy(update={"bounds": _bounds(state, config)})


def _bounds(state: State, config: RunConfig[Config]) -> Bounds:
    options = config.options
    n_clusters = len(_known(state.references))
    proves = options.symmetry in CERTIFIED
    statement = _CERTIFIED.format(
        k=n_clusters,
        points="rows" if config.policy.protection == "none" else "weighted points",
        note="" if config.policy.protection == "none" else _OF_POINTS,
    )
    return Bounds(
        lower=state.lower,
        upper=state.upper,
        certified=proves and state.lower is not None,
        statement=statement if proves else _NOT_CERTIFIED,
        n_clusters=n_clusters,
        iterations=state.iterations,
        limited=state.limited,
        splits=0 if state.splitting is None else state.splitting.splits,
    )


_CERTIFIED = (
    "No {k} centroids within the declared bounds have a lower inertia than the lower bound, over "
    "the {points} of all sites, imputed values included: it is the sum of what every site proved "
    "for its part; where the region was cut, the least of these sums.{note}"
)
_OF_POINTS = (
    " The points are the records of the sites' protected tables, weighted by persons: of the rows "
    "themselves the bounds prove nothing."
)
_NOT_CERTIFIED = (
    "Bound not certified: this symmetry form may cut off the best centroids, so that the lower "
    "bound can lie above what they cost. Use pairwise for a proof."
)


def _warnings(state: State, config: RunConfig[Config]) -> tuple[str, ...]:
    found = []
    told = len(_known(state.references))
    if told < config.options.n_clusters:
        found.append(
            f"the bounds hold for {told} clusters, not for the {config.options.n_clusters} that "
            "were asked for: the sites could tell no more cells to begin with"
        )
    if state.lower is None or state.upper is None:
        found.append("the session ended before its first bounds: allow more rounds")
        return tuple(found)
    gap = relative_gap(state.lower, state.upper)
    if gap > config.options.gap:
        if state.ended == "splits":
            found.append(f"a gap of {gap:.2%} is left: allow more splits, or more nodes")
        elif (
            state.ended in _SPLITTABLE
            and state.splitting is None
            and config.options.symmetry in CERTIFIED
        ):
            found.append(
                f"a gap of {gap:.2%} is left that no multipliers close; splits does, by cutting "
                "the region of the centroids"
            )
    if state.limited:
        found.append(
            f"in {state.limited} of {state.iterations} dual rounds a site's search ended at its "
            "node limit: raise node_limit. The bound is proven, but lower than need be"
        )
    return tuple(found)
