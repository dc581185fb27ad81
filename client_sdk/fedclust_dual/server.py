"""The coordinator's steps in ``dual``: dual and primal rounds, and the splitting of the domain."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedclust.methods.common import kmeans_rounds
from fedclust.methods.common.kmeans_rounds import Step, Steps
from fedclust.numeric.array_types import FloatArray
from fedclust.numeric.canonical import round_to_tolerance
from fedclust.numeric.distances import squared_distances
from fedclust.numeric.random import server_rng
from fedclust.numeric.weighted_kmeans import best_partitions
from fedclust.schema.errors import MethodFailure
from fedclust.schema.result import relative_gap
from fedclust.schema.run_config import RunConfig
from fedclust.schema.scaling import scaled_bounds
from fedclust.schema.task import Contribution, Done, Next, Task, payloads_of
from fedclust_dual.certificate import SPLITTABLE, finish
from fedclust_dual.config import Config
from fedclust_dual.domain_splitting import next_query, record_bound, start_splitting
from fedclust_dual.messages import (
    CELLS,
    DUAL,
    MAX_CANDIDATES,
    PRIMAL,
    DualAnswer,
    DualCells,
    DualPart,
    DualTask,
    PrimalPart,
    PrimalTask,
    multiplier_digest,
)
from fedclust_dual.multiplier_update import (
    Ascent,
    DualRound,
    Proposal,
    SiteAssignment,
    add_assignments,
    known_cost,
    site_multipliers,
    start_ascent,
    update_multipliers,
)
from fedclust_dual.primal_step import lloyd_step, step_from_cells, total_cost
from fedclust_dual.state import SiteTotals, State, require_value

__all__ = ["State", "aggregate", "finish", "start"]


#: Relative difference of two costs up to which they are equal: a polishing step that gains less
#: ends the polishing.
_SAME_COST = 1e-9
#: Partitions of the local cells from which the polishing starts.
_N_STARTS = 8
#: Least relative gap to which a box is closed: the accuracy of the dual bound.
_LEAST_GAP = 2e-6
#: Rounding error of a cost, relative to the points' scatter.
_ROUNDING = 1e-12
#: Defaults of the paper's rules.
_STEP, _RESIDUAL = 0.5, 1e-2


def start(config: RunConfig[Config], seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    options = config.options
    task = kmeans_rounds.CellsTask(n_clusters=options.n_clusters, n_init=options.n_init)
    return State(phase="cells", seed=seed), Task(CELLS, task)


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig[Config]
) -> Next[State] | Done:
    """Aggregate a round.

    Parameters
    ----------
    state : State
    contributions : sequence of Contribution
        Sorted by site.
    config : RunConfig

    Returns
    -------
    Next or Done

    Raises
    ------
    MethodFailure
        If a site sent no cells.
    """
    if state.phase == "cells":
        return _close_cells(state, payloads_of(contributions, DualCells), config)
    answered = {c.site for c in contributions if c.payload is not None}
    if not set(state.sites) <= set(config.roster) & answered:
        # Bounds over fewer sites would belong to another problem.
        return Done(finish(state.end("site_left"), config))
    if state.phase == "dual":
        return _close_dual(state, payloads_of(contributions, DualAnswer), config)
    return _close_primal(state, payloads_of(contributions, Steps), config)


# --- Cells ----------------------------------------------------------------------------------------


def _close_cells(
    state: State, cells: Mapping[str, DualCells], config: RunConfig[Config]
) -> Next[State]:
    """Cluster the sites' cells: this gives the references and the starts of the polishing."""
    options = config.options
    n_missing = len(set(config.roster) - set(cells))
    if n_missing:
        raise MethodFailure(
            "site_without_points",
            f"dual needs an answer of every site, and {n_missing} had none, as a site with "
            "fewer persons than min_group_size: create the session without such sites",
        )
    starts = _cluster_cells(cells, options.n_clusters, state.seed, config)
    references = starts[0]
    sites = {site: SiteTotals.from_cells(cells[site]) for site in sorted(config.roster)}
    shape = (len(sites), *references.shape)
    ascent = start_ascent(
        options.update,
        shape,
        step=_STEP if options.step is None else options.step,
        residual=_RESIDUAL if options.residual is None else options.residual,
    )
    candidates = starts if options.polished else starts[:0]
    state = state.model_copy(
        update={
            "sites": sites,
            "references": references,
            "lambdas": ascent.lambdas,
            "candidates": np.array(candidates).reshape(-1, *references.shape),
        }
    )
    steps = {site: step_from_cells(cells[site], references) for site in sites}
    return _open_dual(_add_steps(state, ascent, steps), {})


def _cluster_cells(
    cells: Mapping[str, DualCells], n_clusters: int, seed: int, config: RunConfig[Config]
) -> list[FloatArray]:
    """Return the best sets of centroids (K, d) of all sites' cells."""
    counts = np.concatenate([own.counts for own in cells.values()])
    means = np.concatenate([own.means for own in cells.values()])[counts > 0]
    weights = counts[counts > 0].astype(np.float64)
    rng = server_rng(seed, "dual-references")
    lower, upper = scaled_bounds(config)
    found = best_partitions(means, weights, n_clusters, rng, _N_STARTS)
    return [np.clip(centroids, lower, upper) for centroids in found]


def _add_steps(state: State, ascent: Ascent, steps: Mapping[str, Step]) -> State:
    """Add to the update rule the assignments of Lloyd steps, numbered as the references are."""
    origin, assignments = state.origin, []
    for site, totals in state.sites.items():
        counts = steps[site].counts
        sums = np.where((counts > 0)[:, None], steps[site].sums - counts[:, None] * origin, 0.0)
        square = totals.square(origin)
        assignments.append(SiteAssignment(counts=counts, sums=sums, square=square))
    return state.model_copy(update={"ascent": add_assignments(ascent, assignments)})


# --- Dual rounds ----------------------------------------------------------------------------------


def _open_dual(state: State, metrics: Mapping[str, float]) -> Next[State]:
    parts = {
        site: DualPart(
            multipliers=mu,
            digest=multiplier_digest(mu),
            n=totals.n,
            mean=totals.mean,
            scatter=totals.scatter,
        )
        for mu, (site, totals) in zip(
            site_multipliers(require_value(state.lambdas)), state.sites.items(), strict=True
        )
    }
    box = None if state.splitting is None else state.splitting.current
    task = DualTask(
        references=require_value(state.references),
        origin=state.origin,
        lower=None if box is None else box.lower,
        upper=None if box is None else box.upper,
    )
    state = state.model_copy(update={"phase": "dual"})
    return Next(state, Task(DUAL, task, per_site=parts), metrics)


def _close_dual(
    state: State, answers: Mapping[str, DualAnswer], config: RunConfig[Config]
) -> Next[State] | Done:
    dual_round = _dual_round(state, answers)
    # No inertia is negative, whatever the multipliers are.
    bound = max(dual_round.value, 0.0)
    if state.splitting is not None:
        splitting = record_bound(state.splitting, bound)
        state = state.model_copy(update={"splitting": splitting})
        bound = splitting.bound
    metrics = {"lower_bound": bound}
    state = state.model_copy(
        update={
            "iterations": state.iterations + 1,
            "limited": state.limited + any(answer.limited for answer in answers.values()),
            "lower": bound if state.lower is None else max(state.lower, bound),
        }
    )
    if state.splitting is not None:
        return _close_box_round(state, dual_round, config, metrics)
    state, consensus = _update_rule(state, dual_round, config)
    # The mean of the sites' centroids, equation 33.
    mean = np.clip(dual_round.centroids.mean(axis=0) + state.origin, *scaled_bounds(config))
    candidates = [mean]
    if config.options.polished:
        candidates += [] if consensus is None else [consensus]
        candidates += [*state.candidates]
    state = state.model_copy(update={"candidates": np.array(candidates[:MAX_CANDIDATES])})
    return _open_primal(state, metrics)


def _dual_round(state: State, answers: Mapping[str, DualAnswer]) -> DualRound:
    """Return the sites' answers relative to the origin."""
    origin, lambdas = state.origin, require_value(state.lambdas)
    centroids, assignments = [], []
    value = objective = 0.0
    for mu, (site, totals) in zip(site_multipliers(lambdas), state.sites.items(), strict=True):
        answer = answers[site]
        sums = answer.counts[:, None] * (answer.means - origin)
        square = totals.square(origin)
        assignment = SiteAssignment(counts=answer.counts, sums=sums, square=square)
        centroids.append(answer.centroids - origin)
        assignments.append(assignment)
        value += answer.value
        objective += max(answer.value, assignment.objective(centroids[-1], mu))
    return DualRound(
        lambdas=lambdas,
        centroids=np.array(centroids),
        value=value,
        objective=objective,
        models=tuple(assignments),
    )


def _update_rule(
    state: State, dual_round: DualRound, config: RunConfig[Config]
) -> tuple[State, FloatArray | None]:
    """Update the multipliers; return the rule's primal centroids (K, d), if it has any."""
    options = config.options
    if len(state.sites) == 1:
        return state.end("dual_optimum"), None
    domain = state.domain(config)
    ascent, proposal = update_multipliers(require_value(state.ascent), dual_round, domain.region)
    ended: str = proposal.reason if proposal.finished else ""
    if not ended and state.iterations >= options.iterations:
        ended = "iterations"
    update = {"ascent": ascent, "lambdas": proposal.lambdas, "ended": ended}
    consensus = proposal.consensus
    if consensus is not None:
        consensus = np.clip(consensus + domain.origin, *scaled_bounds(config))
    return state.model_copy(update=update), consensus


# --- Primal rounds --------------------------------------------------------------------------------


def _open_primal(state: State, metrics: Mapping[str, float]) -> Next[State]:
    task = PrimalTask(centroids=state.candidates)
    parts = {site: PrimalPart(n=totals.n) for site, totals in state.sites.items()}
    state = state.model_copy(update={"phase": "primal"})
    return Next(state, Task(PRIMAL, task, per_site=parts), metrics)


def _close_primal(
    state: State, answers: Mapping[str, Steps], config: RunConfig[Config]
) -> Next[State] | Done:
    options = config.options
    state, candidates, least = _improve_candidates(state, answers, config)
    lower, upper = require_value(state.lower), require_value(state.upper)
    gap = relative_gap(lower, upper)
    metrics = {"upper_bound": least, "inertia": least, "gap": gap}
    shape = (-1, *state.candidates.shape[1:])
    state = state.model_copy(update={"candidates": np.array(candidates).reshape(shape)})
    if gap <= options.gap:
        return Done(finish(state.end("gap"), config), metrics)
    if candidates:
        return _open_primal(state, metrics)
    if state.splitting is not None:
        return _continue_splitting(state, config, metrics, None)
    if not state.ended:
        return _open_dual(state, metrics)
    if state.ended in SPLITTABLE and options.splits:
        n_clusters = len(require_value(state.references))
        splitting = start_splitting(*scaled_bounds(config), n_clusters, lower)
        state = state.model_copy(update={"splitting": splitting})
        return _continue_splitting(state, config, metrics, None)
    return Done(finish(state, config), metrics)


def _improve_candidates(
    state: State, answers: Mapping[str, Steps], config: RunConfig[Config]
) -> tuple[State, list[FloatArray], float]:
    """Keep the best candidate, and take a Lloyd step from each.

    Returns
    -------
    state : State
    candidates : list of (K, d) float64
        Improved by the step, and worth another one.
    least : float
        The least cost of a candidate, before or after its step.
    """
    improved: list[FloatArray] = []
    costs: list[float] = []
    for candidate, centroids in enumerate(state.candidates):
        steps = {site: answers[site].step(candidate) for site in state.sites}
        cost = total_cost(steps)
        if cost < min(costs, default=np.inf) * (1.0 - _SAME_COST):
            state = _learn_candidate(state, steps, centroids, config)
        costs.append(cost)
        state = _keep_best(state, cost, centroids)
        if not config.options.polished:
            continue
        moved, new_cost = lloyd_step(steps, centroids, config)
        costs.append(new_cost)
        state = _keep_best(state, new_cost, moved)
        if (np.abs(state.optima - new_cost) <= _SAME_COST * new_cost).any():
            continue
        if new_cost >= cost * (1.0 - _SAME_COST):
            state = state.model_copy(update={"optima": np.append(state.optima, new_cost)})
        else:
            improved.append(moved)
    return state, improved, min(costs)


def _learn_candidate(
    state: State, steps: Mapping[str, Step], centroids: FloatArray, config: RunConfig[Config]
) -> State:
    """Add a candidate's assignment to the quadratic bundle."""
    if config.options.update != "quadratic_bundle":
        return state
    # Imported here because it is slow to import, and sites do not need it.
    from scipy.optimize import linear_sum_assignment

    squares = squared_distances(require_value(state.references), centroids)
    order = linear_sum_assignment(round_to_tolerance(squares))[1]
    renumbered = {
        site: Step(counts=step.counts[order], sums=step.sums[order], costs=step.costs[order])
        for site, step in steps.items()
    }
    return _add_steps(state, require_value(state.ascent), renumbered)


def _keep_best(state: State, cost: float, centroids: FloatArray) -> State:
    if state.upper is not None and cost >= state.upper:
        return state
    # Among candidates that differ by rounding, the first one stays.
    is_better = state.upper is None or cost < state.upper * (1.0 - _SAME_COST)
    return state.model_copy(update={"upper": cost, "best": centroids if is_better else state.best})


# --- Splitting the domain -------------------------------------------------------------------------


def _close_box_round(
    state: State, dual_round: DualRound, config: RunConfig[Config], metrics: dict[str, float]
) -> Next[State] | Done:
    """Close a dual round of one box; a primal round follows if better centroids are known."""
    box = require_value(require_value(state.splitting).current)
    domain = state.domain(config)
    region = domain.restrict(box)
    ascent, proposal = update_multipliers(require_value(state.ascent), dual_round, region)
    state = state.model_copy(update={"ascent": ascent})
    if proposal.consensus is not None and config.options.polished:
        # The cost under known assignments is an upper bound that needs no round.
        cost = known_cost(ascent, proposal.consensus)
        if cost < require_value(state.upper) * (1.0 - _SAME_COST):
            better = np.clip(proposal.consensus + domain.origin, *scaled_bounds(config))
            return _open_primal(state.model_copy(update={"candidates": better[None]}), metrics)
    return _continue_splitting(state, config, metrics, proposal)


def _continue_splitting(
    state: State, config: RunConfig[Config], metrics: dict[str, float], proposal: Proposal | None
) -> Next[State] | Done:
    """Open a dual round of the next box; end the session if there is none."""
    options = config.options
    target = require_value(state.upper) * (1.0 - max(options.gap, _LEAST_GAP))
    # Points that lie on their centroids have a cost by rounding, which no bound reaches.
    target -= _ROUNDING * sum(totals.scatter for totals in state.sites.values())
    splitting, ascent, query = next_query(
        require_value(state.splitting),
        require_value(state.ascent),
        state.domain(config),
        target=target,
        max_splits=options.splits,
        proposal=proposal,
    )
    lower = metrics["lower_bound"] = max(require_value(state.lower), splitting.bound)
    metrics["gap"] = relative_gap(lower, require_value(state.upper))
    state = state.model_copy(update={"splitting": splitting, "ascent": ascent, "lower": lower})
    if query.lambdas is None:
        reason = "gap" if metrics["gap"] <= options.gap else query.reason
        return Done(finish(state.end(reason), config), metrics)
    if state.iterations >= options.iterations:
        return Done(finish(state.end("iterations"), config), metrics)
    return _open_dual(state.model_copy(update={"lambdas": query.lambdas}), metrics)
