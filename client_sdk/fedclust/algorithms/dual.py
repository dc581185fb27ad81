"""dual: k-means by dual decomposition, with a lower and an upper bound in every round.

What it says and cites
    Yfantis, Wagner & Ruskowski, "Federated K-means clustering via dual decomposition-based
    distributed optimization" (papers/004). Sites in the order of their names form a chain, whose
    consensus constraints (equations 8 to 10) are dualised. A ``dual`` round hands each site its own
    part of the multipliers; it solves its clustering problem (equation 14) to proven optimality and
    answers with its centroids and the dual value. The values' sum is a lower bound of the inertia
    of *any* centroids; a ``primal`` round measures the averaged centroids (equations 33 and 34),
    which gives an upper one. Their distance (equation 35) is a certificate.

The multipliers move by one of four rules (``dual_masters``); the node problems are solved in
``dual_nodes``. Everything is reckoned about one origin, so that nothing cancels far from zero.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat

from fedclust.algorithms import guarded_lloyd as lloyd
from fedclust.algorithms.arrays import BoolVector, FloatMatrix, FloatTensor3, FloatVector
from fedclust.algorithms.assigning import label_by_centroid, squared_distances
from fedclust.algorithms.base import (
    Bounds,
    Contribution,
    Done,
    Memory,
    Method,
    MethodFailure,
    Model,
    Next,
    Place,
    Result,
    RuleViolation,
    RunConfig,
    Task,
    Totals,
    relative_gap,
)
from fedclust.algorithms.canonical import snapped
from fedclust.algorithms.dual_answers import (
    DUAL,
    PHASES,
    PRIMAL,
    DualAnswer,
    DualPart,
    DualTask,
    PrimalAnswer,
    PrimalTask,
    check,
    digest_of,
    objective_of,
)
from fedclust.algorithms.dual_masters import (
    Advice,
    Ascent,
    DualRound,
    Rule,
    SiteModel,
    advance,
    begin,
    known_cost,
    learn,
    multipliers,
)
from fedclust.algorithms.dual_primal import Step, cost_of, lloyd_step
from fedclust.algorithms.dual_region import CERTIFIED, Region, Symmetry
from fedclust.algorithms.dual_site import local_step
from fedclust.algorithms.dual_splitting import (
    Splitting,
    Whole,
    begin_splitting,
    proceed,
    taken_in,
)
from fedclust.algorithms.finishing import raw_result
from fedclust.algorithms.kmeans import distinct_best
from fedclust.algorithms.seeding import server_rng
from fedclust.algorithms.spaces import binary_columns, own_bounds, scaled_bounds
from fedclust.algorithms.totals import site_parts

VERSION = 2

_Known = TypeVar("_Known")

#: Relative: a polishing step that gains less ends the polishing; costs no farther apart are one.
_SAME = 1e-9
#: Partitions of the local cells from which the polishing starts as well.
_STARTS = 8
#: Of candidates that no step has led to.
_NO_PROMISE = float(np.finfo(np.float64).max)
#: Relative gap at which a box is done with even if none is allowed: the dual's own accuracy.
_CLOSED = 2e-6
#: Of the rows' own scatter: less than this of a cost is rounding.
_ROUNDING = 1e-12
#: Where the dual rule is at its end.
_SPLITTABLE = ("converged", "stalled")
#: Of the quasi-Newton rule.
_MULTIPLIERS = 500
#: The most sets of centroids that a primal round measures.
_CANDIDATES = 10

# --- Config ---------------------------------------------------------------------------------------


class Config(Model, title="DualConfig"):
    """What the analyst chooses.

    Attributes
    ----------
    n_clusters : int
        Number of clusters K.
    update : {"quadratic_bundle", "subgradient", "bundle_trust", "quasi_newton"}
        How the multipliers move; the last three are the paper's (sections IV-A to IV-C).
    symmetry : {"pairwise", "cells", "reference", "none"}
        What keeps the clusters' numbers apart. ``reference`` (equation 36) and ``cells`` may cut
        off the optimum: their lower bound is no certificate.
    node_solver : {"branch_and_bound", "scip"}
    node_limit : int
        Of each site's search, in nodes; where it ends there, the bound proven so far counts.
    gap : float
        Relative gap at which the session ends (the paper's 0.25 %).
    residual : float
        Of the paper's rules: length of the consensus constraints' violation at which it ends.
    step : float
        Of the paper's rules: alpha0, over the root of the iteration.
    splits : int
        How often the region of the centroids may be cut in two where the dual rule leaves a
        greater gap: with ``quadratic_bundle``, a certified form and ``min_group_size`` 1 only.
        Each cut takes about two more dual rounds.
    iterations : int
        The most dual rounds.
    polish : bool or None
        Whether centroids are improved by Lloyd steps in further primal rounds. By default with
        ``quadratic_bundle``; the paper's rules only measure the averages.
    n_init : int
        Restarts of each site's local k-means, from which the references come. What it finds is
        told first: a poor one keeps the first dual round's assignment back, which differs by few
        rows.
    evaluate : bool
        Whether a closing round measures the quality of the final centroids.
    """

    n_clusters: Annotated[int, Field(ge=1, le=20)]
    update: Rule = "quadratic_bundle"
    symmetry: Symmetry = "pairwise"
    node_solver: Literal["branch_and_bound", "scip"] = "branch_and_bound"
    node_limit: Annotated[int, Field(ge=1, le=100_000_000)] = 200_000
    gap: Annotated[FiniteFloat, Field(ge=0, lt=1)] = 0.0025
    residual: Annotated[FiniteFloat, Field(ge=0)] | None = None
    step: Annotated[FiniteFloat, Field(gt=0)] | None = None
    splits: Annotated[int, Field(ge=0, le=1_000)] = 0
    iterations: Annotated[int, Field(ge=1, le=5_000)] = 150
    polish: bool | None = None
    n_init: Annotated[int, Field(ge=1, le=100)] = 50
    evaluate: bool = True

    @property
    def polished(self) -> bool:
        """Whether primal rounds go on until Lloyd has converged."""
        return self.update == "quadratic_bundle" if self.polish is None else self.polish


def check_config(config: RunConfig) -> None:
    """Refuse features without bounds, and options of the paper's rules where they do nothing."""
    options: Config = config.options
    lower, upper = own_bounds(config.columns)
    bounded = np.isfinite(lower) & np.isfinite(upper)
    if not bounded.all():
        features = [c.feature for c, told in zip(config.columns, bounded, strict=True) if not told]
        raise RuleViolation(
            "bounds",
            "dual needs both bounds of every feature: declare lower and upper of "
            f"{', '.join(dict.fromkeys(features))}, wide enough for any patient, never the data's "
            "own extremes",
        )
    if options.update == "quadratic_bundle":
        for name in ("residual", "step"):
            if getattr(options, name) is not None:
                raise RuleViolation(
                    "update", f"{name} belongs to the paper's rules; leave it out", f"/{name}"
                )
    elif options.splits:
        raise RuleViolation(
            "update",
            "splits needs update quadratic_bundle, whose assignments hold in every part of the "
            "region; leave it out",
            "/splits",
        )
    if options.splits and options.symmetry not in CERTIFIED:
        raise RuleViolation(
            "symmetry",
            f"splits closes the gap of a proven bound, and {options.symmetry} proves none: use "
            "pairwise or none",
            "/splits",
        )
    if options.splits and config.policy.min_group_size > 1:
        raise RuleViolation(
            "min-group-size",
            "splits needs min_group_size 1, where nothing is protected: a site that answers box "
            "after box, or does not, tells where its few outlying rows are. Leave it out, or close "
            "the gap with fedclust.simulate on rows that may be together",
            "/splits",
        )


def check_roster(config: RunConfig) -> None:
    """Refuse more multipliers than the quasi-Newton rule's dense curvature is good for."""
    options: Config = config.options
    size = (len(config.roster) - 1) * options.n_clusters * len(config.columns)
    if options.update == "quasi_newton" and size > _MULTIPLIERS:
        raise RuleViolation(
            "update",
            f"quasi_newton keeps a square matrix of {size} multipliers ((sites - 1) x clusters x "
            f"columns), {_MULTIPLIERS} at most: use quadratic_bundle or bundle_trust",
        )


def lacks(options: Config, place: Place) -> str | None:
    """Return what has to be installed first; see ``Method.lacks``."""
    if place == "coordinator":
        needed = [] if options.update == "subgradient" else ["clarabel"]
    else:
        needed = ["pyscipopt" if options.node_solver == "scip" else "numba", "clarabel"]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    who = "this site" if place == "site" else "the coordinator"
    return (
        f"dual with these options needs {' and '.join(missing)} at {who}: "
        'pip install "fedclust[dual]"'
    )


# --- Aggregation ----------------------------------------------------------------------------------


class Held(Model):
    """The clusters that a site told last: ``known`` (K,) and ``centroids`` (K, d), scaled."""

    known: BoolVector
    centroids: FloatMatrix


class State(Model):
    """What a session keeps between rounds.

    Attributes
    ----------
    phase : {"cells", "dual", "primal"}
        What the open round asks.
    seed : int
    sites : tuple of str
        The chain, sorted; empty until the first centroids are known.
    references : (K, d) float64 or None
    lambdas : (S - 1, K, d) float64 or None
        Multipliers of the links, of the open or the next dual round.
    ascent : Ascent or None
        Of the update rule.
    iterations, limited : int
        Dual rounds that were closed, and how many met a node limit.
    held : dict of site to Held
    lower, upper : float or None
        The best bounds so far.
    best : (K, d) float64 or None
        The centroids of ``upper``.
    candidates : (C, K, d) float64
        Centroids that the open or next primal round measures.
    promised : (C,) float64
        What each candidate should cost at most by the step that it came from; infinite for others.
    measured : bool
        Whether any primal round has closed.
    optima : (m,) float64
        What the ends of polishing cost, so that none is gone to twice.
    ended : str
        Why no further dual round of the whole region is opened; empty until then.
    splitting : Splitting or None
        Its boxes, once it is cut.
    """

    phase: Literal["cells", "dual", "primal"]
    seed: int
    sites: tuple[str, ...] = ()
    references: FloatMatrix | None = None
    lambdas: FloatTensor3 | None = None
    ascent: Ascent | None = None
    iterations: int = 0
    limited: int = 0
    held: dict[str, Held] = Field(default_factory=dict)
    lower: float | None = None
    upper: float | None = None
    best: FloatMatrix | None = None
    candidates: FloatTensor3 = np.zeros((0, 0, 0))
    promised: FloatVector = np.zeros(0)
    measured: bool = False
    optima: FloatVector = np.zeros(0)
    ended: str = ""
    splitting: Splitting | None = None


def start(config: RunConfig, seed: int) -> tuple[State, Task]:
    """Return the first state and task."""
    options: Config = config.options
    task = lloyd.CellsTask(n_clusters=options.n_clusters, n_init=options.n_init)
    return State(phase="cells", seed=seed), Task("cells", task, per_site=site_parts(config))


def aggregate(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    """Close a round; contributions sorted by site."""
    if state.phase == "cells":
        return _references(state, contributions, config)
    if state.phase == "dual":
        return _close_dual(state, contributions, config)
    return _close_primal(state, contributions, config)


def _references(state: State, contributions: Sequence[Contribution], config: RunConfig) -> Next:
    """Cluster the sites' cells: the references, and where polishing starts."""
    options: Config = config.options
    sent = {c.site: c.payload for c in contributions if c.payload is not None}
    lloyd.refuse_too_few([cells.counts for cells in sent.values()], config)
    silent = [site for site in config.roster if site not in sent or site not in config.totals]
    if silent:
        raise MethodFailure(
            "nothing_to_release",
            f"dual needs an answer of every site, and {len(silent)} may send nothing: lower "
            "min_group_size, or create the session without the sites that have too few rows",
        )
    counts = np.concatenate([cells.counts for cells in sent.values()])
    means = np.concatenate([cells.means for cells in sent.values()])[counts > 0]
    lower, upper = scaled_bounds(config)
    starts = [
        np.clip(each, lower, upper)
        for each in distinct_best(
            means,
            counts[counts > 0].astype(np.float64),
            options.n_clusters,
            server_rng(state.seed, "dual-references"),
            _STARTS,
        )
    ]
    references = starts[0]
    sites = tuple(sorted(config.roster))
    n_clusters, d = references.shape
    step = 0.5 if options.step is None else options.step
    residual = 1e-2 if options.residual is None else options.residual
    ascent = begin(options.update, len(sites), n_clusters, d, step=step, residual=residual)
    steps = {
        site: Step.of_cells(cells.counts, cells.means, references) for site, cells in sent.items()
    }
    origin = references.mean(axis=0)
    following = state.model_copy(
        update={
            "sites": sites,
            "references": references,
            "lambdas": np.zeros((len(sites) - 1, n_clusters, d)),
            "ascent": _learnt(ascent, steps, sites, origin, config),
            "candidates": np.array(starts if options.polished else starts[:0]).reshape(
                -1, n_clusters, d
            ),
        }
    )
    return _open_dual(following, config, {})


def _open_dual(state: State, config: RunConfig, metrics: Mapping[str, float]) -> Next:
    origin = _origin(state)
    own = multipliers(_known(state.lambdas))
    parts = {}
    for i, site in enumerate(state.sites):
        totals = config.totals[site]
        parts[site] = DualPart(
            multipliers=own[i],
            digest=digest_of(own[i]),
            rows=totals.n,
            mean=totals.mean,
            scatter=float(totals.m2.sum()),
        )
    box = None if state.splitting is None else state.splitting.current
    task = DualTask(
        references=_known(state.references),
        origin=origin,
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


@dataclass(frozen=True)
class _Round:
    """A closed dual round: what the sites told, or last told, about the origin."""

    centroids: NDArray[np.float64]
    known: NDArray[np.bool_]
    frozen: NDArray[np.bool_]
    value: float | None
    objective: float | None
    models: tuple[SiteModel | None, ...]

    def as_round(self, lambdas: NDArray[np.float64]) -> DualRound:
        """Return it as the update rules read it; ``lambdas`` are what was asked."""
        return DualRound(
            lambdas=lambdas,
            centroids=self.centroids,
            value=self.value,
            objective=self.objective,
            frozen=self.frozen,
        )


def _close_dual(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    answers = {c.site: c.payload for c in contributions if c.payload is not None}
    state, closed = _read_answers(state, answers, config)
    metrics: dict[str, float] = {}
    # No inertia is negative, whatever the multipliers.
    told = None if closed.value is None else max(closed.value, 0.0)
    if state.splitting is not None:
        state = state.model_copy(update={"splitting": taken_in(state.splitting, told)})
        told = _known(state.splitting).bound
    lower = state.lower
    if told is not None:
        metrics["lower_bound"] = told
        lower = told if lower is None else max(lower, told)
    limited = any(answer.limited for answer in answers.values())
    state = state.model_copy(
        update={
            "iterations": state.iterations + 1,
            "limited": state.limited + limited,
            "lower": lower,
        }
    )
    if _left(state, config):
        return Done(finish(_ended(state, "site_left"), config), metrics)
    if state.splitting is not None:
        return _close_part(state, closed, config, metrics)
    state, consensus = _moved(state, closed, config)
    tried = [_averaged(state, closed, config)]
    if config.options.polished:
        tried += [] if consensus is None else [consensus]
        tried += [*state.candidates]
    state = state.model_copy(
        update={
            "candidates": np.array(tried[:_CANDIDATES]),
            "promised": np.full(len(tried[:_CANDIDATES]), _NO_PROMISE),
        }
    )
    return _open_primal(state, config, metrics)


def _left(state: State, config: RunConfig) -> bool:
    return not set(state.sites) <= set(config.roster)


def _ended(state: State, because: str) -> State:
    return state.model_copy(update={"ended": because})


def _read_answers(
    state: State, answers: Mapping[str, DualAnswer], config: RunConfig
) -> tuple[State, _Round]:
    """Put the sites' answers beside what they told before."""
    origin = _origin(state)
    n_clusters, d = _known(state.references).shape
    held = dict(state.held)
    centroids = np.zeros((len(state.sites), n_clusters, d))
    known = np.zeros((len(state.sites), n_clusters), dtype=np.bool_)
    # A link moves where both its sites told the cluster in this round, or repeat a whole answer.
    moves = known.copy()
    values: list[float] = []
    objectives: list[float] = []
    own = multipliers(_known(state.lambdas))
    models: list[SiteModel | None] = []
    for i, site in enumerate(state.sites):
        answer = answers.get(site)
        before = held.get(site)
        if answer is not None and answer.sent.any():
            earlier = np.zeros((n_clusters, d)) if before is None else before.centroids
            ever = answer.sent if before is None else answer.sent | before.known
            held[site] = Held(
                known=ever,
                centroids=np.where(answer.sent[:, None], answer.centroids, earlier),
            )
            moves[i] = answer.sent
        elif before is not None:
            moves[i] = before.known
        if site in held:
            known[i] = held[site].known
            centroids[i] = np.where(known[i][:, None], held[site].centroids - origin, 0.0)
        if answer is None or answer.value is None:
            models.append(None)
            continue
        model = _model(answer, config.totals[site], origin)
        models.append(model)
        values.append(answer.value)
        objectives.append(max(answer.value, objective_of(model, centroids[i], own[i])))
    whole = len(values) == len(state.sites)
    closed = _Round(
        centroids=centroids,
        known=known,
        frozen=~(moves[:-1] & moves[1:]),
        value=float(np.sum(values)) if whole else None,
        objective=float(np.sum(objectives)) if whole else None,
        models=tuple(models),
    )
    return state.model_copy(update={"held": held}), closed


def _learnt(
    ascent: Ascent,
    steps: Mapping[str, Step],
    sites: Sequence[str],
    origin: NDArray[np.float64],
    config: RunConfig,
) -> Ascent:
    """Tell the rule of assignments that sites told elsewhere: of all their rows, each is one."""
    models: list[SiteModel | None] = []
    for site in sites:
        own, totals = steps[site], config.totals[site]
        # A rounded share would make it the assignment of no rows.
        if own.counts.sum() != totals.n or binary_columns(config.columns).any():
            models.append(None)
            continue
        mean = totals.mean - origin
        counts = own.counts.astype(np.float64)[:, None]
        square = float(totals.m2.sum() + totals.n * float(mean @ mean))
        sums = np.where(counts > 0, own.sums - counts * origin, 0.0)
        models.append(SiteModel(counts=own.counts, sums=sums, square=square))
    return learn(ascent, models)


def _model(answer: DualAnswer, totals: Totals, origin: NDArray[np.float64]) -> SiteModel:
    mean = totals.mean - origin
    means = np.where((answer.counts > 0)[:, None], answer.means - origin, 0.0)
    return SiteModel(
        counts=answer.counts,
        sums=answer.counts.astype(np.float64)[:, None] * means,
        square=float(totals.m2.sum() + totals.n * float(mean @ mean)),
    )


def _moved(
    state: State, closed: _Round, config: RunConfig
) -> tuple[State, NDArray[np.float64] | None]:
    """Move the multipliers by the session's rule; return the master's centroids, if it has any."""
    options: Config = config.options
    if state.ascent is None:
        raise ValueError("the state has no ascent yet")
    origin = _origin(state)
    lower, upper = scaled_bounds(config)
    region = _whole(state, config).region
    if len(state.sites) == 1:
        because = "dual_optimum" if closed.value is not None else "held_back"
        return _ended(state, because), None
    ascent, advice = advance(
        state.ascent, closed.as_round(_known(state.lambdas)), closed.models, region
    )
    ended: str = advice.reason if advice.finished else ""
    if not ended and state.iterations >= options.iterations:
        ended = "iterations"
    following = state.model_copy(
        update={"ascent": ascent, "lambdas": advice.lambdas, "ended": ended}
    )
    consensus = (
        None if advice.consensus is None else np.clip(advice.consensus + origin, lower, upper)
    )
    return following, consensus


def _whole(state: State, config: RunConfig) -> Whole:
    origin = _origin(state)
    lower, upper = scaled_bounds(config)
    references = _known(state.references) - origin
    region = Region(lower - origin, upper - origin, references, config.options.symmetry)
    return Whole(region, origin)


def _averaged(state: State, closed: _Round, config: RunConfig) -> NDArray[np.float64]:
    """Return the mean (K, d) of the sites' centroids, eq. 33.

    A reference where fewer than ``min_sites`` have told theirs: what goes down to all sites must
    not be one site's own, nor follow by subtraction.
    """
    lower, upper = scaled_bounds(config)
    origin, weights = _origin(state), closed.known[:, :, None].astype(np.float64)
    sums = (closed.centroids * weights).sum(axis=0)
    told = weights.sum(axis=0) >= min(config.policy.min_sites, len(state.sites))
    means = sums / np.maximum(weights.sum(axis=0), 1.0) + origin
    return np.clip(np.where(told, means, _known(state.references)), lower, upper)


def _open_primal(state: State, config: RunConfig, metrics: Mapping[str, float]) -> Next:
    names = tuple(f"{PRIMAL}-{i}" for i in range(len(state.candidates)))
    task = PrimalTask(names=names, centroids=state.candidates)
    following = state.model_copy(update={"phase": "primal"})
    return Next(following, Task(PRIMAL, task, per_site=site_parts(config, ask=False)), metrics)


def _close_primal(
    state: State, contributions: Sequence[Contribution], config: RunConfig
) -> Next | Done:
    options: Config = config.options
    metrics: dict[str, float] = {}
    answers = {c.site: c.payload for c in contributions if c.payload is not None}
    further: list[tuple[NDArray[np.float64], float]] = []
    if set(answers) >= set(state.sites):
        state, further, least = _measured(state, answers, config)
        if least is not None:
            metrics["upper_bound"] = metrics["inertia"] = least
    moved = np.array([centroids for centroids, _ in further])
    state = state.model_copy(
        update={
            "candidates": moved.reshape(-1, *state.candidates.shape[1:]),
            "promised": np.array([reached for _, reached in further]),
            "measured": True,
        }
    )
    gap = None
    if state.lower is not None and state.upper is not None:
        gap = metrics["gap"] = relative_gap(state.lower, state.upper)
    if _left(state, config):
        return Done(finish(_ended(state, "site_left"), config), metrics)
    if gap is not None and gap <= options.gap:
        return Done(finish(_ended(state, "gap"), config), metrics)
    if further:
        return _open_primal(state, config, metrics)
    if state.splitting is not None:
        return _go_on_in_parts(state, config, metrics, None)
    if not state.ended:
        return _open_dual(state, config, metrics)
    if state.ended in _SPLITTABLE and options.splits and gap is not None:
        lower, upper = scaled_bounds(config)
        n_clusters = len(_known(state.references))
        boxes = begin_splitting(lower, upper, n_clusters, _known(state.lower))
        following = state.model_copy(update={"splitting": boxes})
        return _go_on_in_parts(following, config, metrics, None)
    return Done(finish(state, config), metrics)


# --- Closing the gap ------------------------------------------------------------------------------


def _close_part(
    state: State, closed: _Round, config: RunConfig, metrics: dict[str, float]
) -> Next | Done:
    """Close a dual round of one box; a primal one follows where the master has found better."""
    box = _known(_known(state.splitting).current)
    whole = _whole(state, config)
    shown = closed.as_round(_known(state.lambdas))
    ascent, advice = advance(_known(state.ascent), shown, closed.models, whole.part(box))
    state = state.model_copy(update={"ascent": ascent})
    if advice.consensus is not None and config.options.polished:
        # Known assignments cost no less than the best: a proven upper bound, without a round.
        cost = known_cost(ascent, advice.consensus)
        if cost < _known(state.upper) * (1.0 - _SAME):
            lower, upper = scaled_bounds(config)
            better = np.clip(advice.consensus + whole.origin, lower, upper)
            following = state.model_copy(
                update={"candidates": better[None], "promised": np.array([_NO_PROMISE])}
            )
            return _open_primal(following, config, metrics)
    return _go_on_in_parts(state, config, metrics, advice)


def _go_on_in_parts(
    state: State, config: RunConfig, metrics: dict[str, float], advice: Advice | None
) -> Next | Done:
    """Ask about the next box; end where none is left, or nothing more can be done."""
    options: Config = config.options
    goal = _known(state.upper) * (1.0 - max(options.gap, _CLOSED))
    # Rows that lie on their centroids cost some rounding: no bound comes nearer to that.
    goal -= _ROUNDING * sum(float(totals.m2.sum()) for totals in config.totals.values())
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
    return _open_dual(state.model_copy(update={"lambdas": ask.lambdas}), config, metrics)


def _measured(
    state: State, answers: Mapping[str, PrimalAnswer], config: RunConfig
) -> tuple[State, list[tuple[NDArray[np.float64], float]], float | None]:
    """Keep the best candidate; return what a Lloyd step makes of those that it improves.

    Each with what it costs at most; and the least that any of these costs.
    """
    further: list[tuple[NDArray[np.float64], float]] = []
    costs: list[float] = []
    for i, centroids in enumerate(state.candidates):
        if not all(answer.exact[i] for answer in answers.values()):
            continue
        own = {site: Step.of(answer, i) for site, answer in sorted(answers.items())}
        cost = cost_of(own, centroids, config)
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
        if cost / (1.0 + _SAME) > state.promised[i]:
            continue  # The guard has changed the cells: it would go round in circles.
        if reached >= cost * (1.0 - _SAME):
            state = state.model_copy(update={"optima": np.append(state.optima, reached)})
        else:
            further.append((moved, reached))
    return state, further, min(costs, default=None)


def _with_assignments(
    state: State, steps: Mapping[str, Step], centroids: NDArray[np.float64], config: RunConfig
) -> State:
    """Let the quadratic bundle know what a measured candidate assigns, numbered as references."""
    if config.options.update != "quadratic_bundle" or state.ascent is None:
        return state
    # Imported here: it takes a while, and a site does without.
    from scipy.optimize import linear_sum_assignment

    squares = squared_distances(_known(state.references), centroids)
    order = linear_sum_assignment(snapped(squares))[1]
    numbered = {site: own.numbered(order) for site, own in steps.items()}
    ascent = _learnt(state.ascent, numbered, state.sites, _origin(state), config)
    return state.model_copy(update={"ascent": ascent})


def _kept(state: State, cost: float, centroids: NDArray[np.float64]) -> State:
    if state.upper is not None and cost >= state.upper:
        return state
    # Of candidates that differ by rounding, the first.
    better = state.upper is None or cost < state.upper * (1.0 - _SAME)
    return state.model_copy(update={"upper": cost, "best": centroids if better else state.best})


# --- Convergence ----------------------------------------------------------------------------------


def finish(state: State, config: RunConfig) -> Result:
    """Return the best centroids that were measured, with the bounds; else the references."""
    centroids = state.best if state.best is not None else state.references
    if centroids is None:
        raise lloyd.nothing_to_release()
    result = raw_result(
        centroids, config, stopped_because=state.ended, warnings=_warnings(state, config)
    )
    return result.model_copy(update={"bounds": _bounds(state, config)})


def _bounds(state: State, config: RunConfig) -> Bounds:
    options: Config = config.options
    n_clusters = len(_known(state.references))
    certified = options.symmetry in CERTIFIED and state.lower is not None
    return Bounds(
        lower=state.lower,
        upper=state.upper,
        certified=certified,
        statement=_STATEMENTS[options.symmetry].format(k=n_clusters),
        n_clusters=n_clusters,
        iterations=state.iterations,
        limited=state.limited,
        splits=0 if state.splitting is None else state.splitting.splits,
    )


_CERTIFIED = (
    "No {k} centroids within the declared bounds have a lower inertia than the lower bound, over "
    "the rows of all sites, imputed values included: it is the sum of what every site proved for "
    "its part; where the region was cut, the least of these sums."
)
_NOT_CERTIFIED = (
    "Bound not certified: this symmetry form may cut off the best centroids, so that the lower "
    "bound can lie above what they cost. Use pairwise for a proof."
)
_STATEMENTS: dict[str, str] = {
    "pairwise": _CERTIFIED,
    "none": _CERTIFIED,
    "cells": _NOT_CERTIFIED,
    "reference": _NOT_CERTIFIED,
}


def _warnings(state: State, config: RunConfig) -> tuple[str, ...]:
    found = []
    told = len(_known(state.references))
    if told < config.options.n_clusters:
        found.append(
            f"the bounds hold for {told} clusters, not for the {config.options.n_clusters} that "
            "were asked for: the sites could tell no more cells to begin with"
        )
    if state.iterations == 0 or (state.upper is None and not state.measured):
        found.append("the session ended before its first bounds: allow more rounds")
        return tuple(found)
    if state.lower is None:
        found.append(
            "there is no lower bound: in every round some site could not send its own assignment. "
            "Lower min_group_size, or switch the differencing guard off with every site's consent"
        )
    if state.upper is None:
        found.append("there is no upper bound: shares were rounded in every round that measured")
    gap = _bounds(state, config).gap
    if gap is not None and gap > config.options.gap:
        if state.ended == "splits":
            found.append(f"a gap of {gap:.2%} is left: allow more splits, or more nodes")
        elif (
            state.ended in _SPLITTABLE
            and state.splitting is None
            and config.options.symmetry in CERTIFIED
        ):
            found.append(
                f"a gap of {gap:.2%} is left that no multipliers close; where rows may be told, "
                "with min_group_size 1, splits does, by cutting the region of the centroids"
            )
    if state.limited:
        found.append(
            f"in {state.limited} of {state.iterations} dual rounds a site's search ended at its "
            "node limit: raise node_limit. The bound is proven, but lower than need be; with a "
            "min_group_size above 1 such a site tells only what holds for any rows"
        )
    return tuple(found)


# --- Labelling ------------------------------------------------------------------------------------


def label(result: Result, X: NDArray[np.float64], memory: Memory | None) -> NDArray[np.int64]:
    """Label rows (n, d) in own units by the nearest centroid; ``memory`` plays no part."""
    del memory
    return label_by_centroid(result, X)


METHOD = Method(
    name="dual",
    version=VERSION,
    title="k-means by dual decomposition, with bounds",
    citation=(
        "V. Yfantis, A. Wagner, M. Ruskowski, Federated K-Means Clustering via Dual "
        "Decomposition-based Distributed Optimization, 2023"
    ),
    options=Config,
    default_max_rounds=300,
    joins_late=False,
    state=State,
    phases=PHASES,
    check_config=check_config,
    start=start,
    local_step=local_step,
    check=check,
    aggregate=aggregate,
    finish=finish,
    label=label,
    check_roster=check_roster,
    lacks=lacks,
)
