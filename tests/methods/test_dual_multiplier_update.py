"""The update rules of `dual` against enumeration, linear programming and closed forms."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog, minimize

from fedclust.wire.codec import decode_model, encode_model
from fedclust_dual.cone_program import AssignmentCost, maximise_bundle, maximise_cutting_planes
from fedclust_dual.feasible_set import Region, Symmetry
from fedclust_dual.multiplier_update import (
    Ascent,
    DualRound,
    Proposal,
    Rule,
    SiteAssignment,
    add_assignments,
    site_multipliers,
    start_ascent,
    update_multipliers,
)
from methods.dual_assignments import assignment_of

RULES: tuple[Rule, ...] = ("subgradient", "bundle_trust", "quasi_newton", "quadratic_bundle")
CUTTING: tuple[Rule, ...] = ("bundle_trust", "quasi_newton")
SYMMETRIES: tuple[Symmetry, ...] = ("pairwise", "cells", "none")


class Consortium:
    """Sites of a few rows, whose node problems are solved by trying every assignment."""

    def __init__(self, sites: list[np.ndarray], region: Region) -> None:
        self.sites, self.region = sites, region
        self.n_clusters, self.d = region.references.shape

    def node(self, site: int, mu: np.ndarray) -> tuple[float, np.ndarray, SiteAssignment]:
        rows = self.sites[site]
        best: tuple[float, np.ndarray, SiteAssignment] | None = None
        for labels in itertools.product(range(self.n_clusters), repeat=len(rows)):
            model = assignment_of(rows, np.array(labels), self.n_clusters)
            counts = model.counts.astype(float)
            centroids, value = self.region.optimal_centroids(counts, model.sums, mu)
            if best is None or value + model.square < best[0] - 1e-12:
                best = value + model.square, centroids, model
        assert best is not None
        return best

    def answer(self, lambdas: np.ndarray) -> DualRound:
        answers = [self.node(i, mu) for i, mu in enumerate(site_multipliers(lambdas))]
        value = sum(value for value, _, _ in answers)
        return DualRound(
            lambdas=lambdas,
            centroids=np.array([centroids for _, centroids, _ in answers]),
            value=value,
            objective=value,
            models=tuple(model for _, _, model in answers),
        )

    def start(self, rule: Rule, memory: int = 50) -> Ascent:
        shape = len(self.sites), self.n_clusters, self.d
        return start_ascent(rule, shape, memory=memory, residual=1e-9)

    def run(
        self, rule: Rule, rounds: int, *, memory: int = 50, short: float = 0.0
    ) -> tuple[Ascent, list[DualRound], list[Proposal]]:
        """Run some rounds, whose lower bounds a node limit leaves ``short`` of the cost."""
        ascent = self.start(rule, memory)
        shown, proposals = [], []
        for _ in range(rounds):
            round_ = self.answer(ascent.lambdas)
            round_ = round_.model_copy(update={"value": round_.value - short})
            ascent, proposal = update_multipliers(ascent, round_, self.region)
            shown.append(round_)
            proposals.append(proposal)
            if proposal.finished:
                break
        return ascent, shown, proposals


def _consortium(
    seed: int, symmetry: Symmetry = "pairwise", *, n_sites: int = 2, d: int = 1, n_clusters: int = 2
) -> Consortium:
    rng = np.random.default_rng(seed)
    references = rng.uniform(-1, 1, (n_clusters, d))
    centres = references + rng.normal(0, 0.3, (n_sites, n_clusters, d))
    sites = [
        np.clip(own[rng.integers(0, n_clusters, 4)] + rng.normal(0, 0.3, (4, d)), -2, 2)
        for own in centres
    ]
    return Consortium(sites, Region(np.full(d, -2.0), np.full(d, 2.0), references, symmetry))


def _by_planes(consortium: Consortium, reach: float = 40.0) -> tuple[float, float]:
    """Bracket the dual optimum by Kelley's method, linear programs within |lambda| <= reach."""
    lambdas = consortium.start("subgradient").lambdas
    size, best = lambdas.size, -np.inf
    rows, limits = [], []
    for _ in range(400):
        shown = consortium.answer(lambdas)
        slopes = (shown.centroids[:-1] - shown.centroids[1:]).ravel()
        best = max(best, shown.value)
        rows.append(np.r_[-slopes, 1.0])
        limits.append(shown.value - slopes @ lambdas.ravel())
        found = linprog(
            np.r_[np.zeros(size), -1.0],
            A_ub=np.array(rows),
            b_ub=np.array(limits),
            bounds=[(-reach, reach)] * size + [(None, None)],
        )
        if -found.fun - best < 1e-7:
            break
        lambdas = found.x[:size].reshape(lambdas.shape)
    return best, -found.fun


# --- Ascent ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_reaches_the_pooled_scatter_of_a_smooth_dual(rule: Rule) -> None:
    """K = 1: the dual function is a smooth quadratic whose maximum is the pooled scatter."""
    rng = np.random.default_rng(3)
    sites = [rng.normal(rng.normal(0, 0.5, 2), 0.5, (n, 2)) for n in (3, 2, 4)]
    scatter = float(((np.vstack(sites) - np.vstack(sites).mean(axis=0)) ** 2).sum())
    region = Region(np.full(2, -9.0), np.full(2, 9.0), np.zeros((1, 2)), "none")
    consortium = Consortium(sites, region)
    rounds, part = {
        "subgradient": (60, 0.1),
        "bundle_trust": (60, 0.02),
        "quasi_newton": (40, 1e-4),
        "quadratic_bundle": (2, 1e-6),
    }[rule]
    ascent, shown, _ = consortium.run(rule, rounds)
    first = shown[0].value
    assert ascent.best <= scatter * (1 + 1e-9)
    assert scatter - ascent.best <= part * (scatter - first)
    assert ascent.best == max(round_.value for round_ in shown)


@pytest.mark.parametrize("symmetry", SYMMETRIES)
@pytest.mark.parametrize("seed", range(3))
def test_the_quadratic_bundle_ends_at_the_optimum_and_is_never_below_it(
    seed: int, symmetry: Symmetry
) -> None:
    consortium = _consortium(seed, symmetry)
    low, high = _by_planes(consortium)
    ascent, _, proposals = consortium.run("quadratic_bundle", 30)
    bounds = [proposal.model_value for proposal in proposals]
    assert proposals[-1].reason == "converged"
    assert ascent.best == pytest.approx(low, abs=2e-6)
    for bound in bounds:
        assert bound >= low - 1e-7
    assert bounds[-1] == pytest.approx(high, abs=2e-6)


@pytest.mark.parametrize("rule", CUTTING)
def test_cutting_planes_come_near_the_optimum_of_three_sites(rule: Rule) -> None:
    consortium = _consortium(1, "cells", n_sites=3, d=2)
    known = consortium.run("quadratic_bundle", 30)[0].best
    ascent, shown, _ = consortium.run(rule, 30)
    first = shown[0].value
    assert ascent.best <= known + 1e-6
    assert known - ascent.best <= 0.05 * (known - first)


def test_any_assignment_tightens_the_model_and_keeps_it_valid() -> None:
    consortium = _consortium(2, "pairwise", n_sites=3, d=2)
    low = consortium.run("quadratic_bundle", 30)[0].best
    assert low is not None
    plain = consortium.start("quadratic_bundle")
    rng = np.random.default_rng(0)
    models = [assignment_of(rows, rng.integers(0, 2, len(rows)), 2) for rows in consortium.sites]
    extended = add_assignments(add_assignments(plain, models), models)
    assert len(extended.known) == 3
    bounds = []
    for ascent in (plain, extended):
        round_ = consortium.answer(ascent.lambdas)
        _, proposal = update_multipliers(ascent, round_, consortium.region)
        assert proposal.model_value >= low - 1e-7
        bounds.append(proposal.model_value)
    assert bounds[1] < bounds[0] - 1e-6
    assert add_assignments(consortium.start("bundle_trust"), models).known == ()


def test_sites_that_agree_end_after_one_round() -> None:
    rows = np.array([[-1.0], [-0.8], [1.0], [1.2]])
    region = Region(np.full(1, -2.0), np.full(1, 2.0), np.array([[-1.0], [1.0]]), "pairwise")
    consortium = Consortium([rows, rows, rows], region)
    for rule in RULES:
        ascent, _, proposals = consortium.run(rule, 5)
        assert len(proposals) == 1
        assert proposals[0].reason == ("converged" if rule == "quadratic_bundle" else "residual")
        assert ascent.best == pytest.approx(3 * 0.04)


# --- Models of the dual function ------------------------------------------------------------------


@pytest.mark.parametrize("rule", CUTTING)
def test_no_cut_is_below_the_dual_function(rule: Rule) -> None:
    consortium = _consortium(4, "pairwise", n_sites=3)
    ascent, _, _ = consortium.run(rule, 12)
    assert len(ascent.cuts) == 12
    for lambdas in np.random.default_rng(0).normal(0, 1.5, (40, *ascent.lambdas.shape)):
        heights = [
            cut.value + float((cut.slopes * (lambdas - cut.lambdas)).sum()) for cut in ascent.cuts
        ]
        assert min(heights) >= consortium.answer(lambdas).value - 1e-9


@pytest.mark.parametrize("rule", CUTTING)
def test_steps_stay_within_the_shrinking_trust_region(rule: Rule) -> None:
    _, shown, _ = _consortium(4, n_sites=3).run(rule, 15)
    asked = np.array([round_.lambdas for round_ in shown])
    lengths = np.sqrt(((asked[1:] - asked[:-1]) ** 2).sum(axis=(1, 2, 3)))
    radii = np.sqrt(0.5 / np.sqrt(np.arange(1, len(shown))))
    assert (lengths <= radii * (1 + 1e-6)).all()
    assert (lengths > 0).all()


def _after(first: np.ndarray, second: np.ndarray) -> tuple[Ascent, ...]:
    """Return two states of ``quasi_newton`` after rounds with these subgradients, two sites."""
    region = Region(np.full(2, -9.0), np.full(2, 9.0), np.zeros((2, 2)), "none")
    ascent, states = start_ascent("quasi_newton", (2, 2, 2)), []
    for slopes in (first, second):
        round_ = DualRound(
            lambdas=ascent.lambdas,
            centroids=np.array([slopes, np.zeros((2, 2))]),
            value=0.0,
            objective=0.0,
            models=(),
        )
        ascent, _ = update_multipliers(ascent, round_, region)
        states.append(ascent)
    return tuple(states)


def test_curvature_follows_the_subgradient_and_keeps_its_sign() -> None:
    first = np.array([[0.4, -0.3], [0.2, 0.5]])
    start, after = _after(first, first / 3)
    assert start.curvature is not None
    np.testing.assert_array_equal(start.curvature, -np.eye(4))
    step = start.lambdas.ravel()
    np.testing.assert_allclose(after.curvature @ step, (first / 3 - first).ravel(), atol=1e-12)
    # No turn, one that no concave function has, and one that only a kink makes.
    aside = np.array([[0.3, 0.4], [0.0, 0.0]])
    for second in (first, 3 * first, first - 1e-9 * step.reshape(2, 2) + aside):
        assert abs((second - first).ravel() @ step) < 1e-3 or (second == 3 * first).all()
        _, after = _after(first, second)
        np.testing.assert_array_equal(after.curvature, -np.eye(4))


@pytest.mark.parametrize("rule", CUTTING)
def test_cuts_older_than_the_memory_are_dropped(rule: Rule) -> None:
    consortium = _consortium(4, n_sites=3)
    ascent, shown, _ = consortium.run(rule, 6, memory=3)
    for cut, round_ in zip(ascent.cuts, shown[3:], strict=True):
        np.testing.assert_array_equal(cut.lambdas, round_.lambdas)


def _height(
    step: np.ndarray, slopes: np.ndarray, offsets: np.ndarray, bend: np.ndarray | None
) -> float:
    heights = list(offsets + slopes @ step)
    if bend is not None:
        heights.append(slopes[-1] @ step + step @ bend @ step / 2)
    return float(min(heights))


@pytest.mark.parametrize("curved", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_step_agrees_with_another_solver(seed: int, curved: bool) -> None:
    rng = np.random.default_rng(seed)
    slopes, offsets = rng.normal(size=(5, 3)), np.abs(rng.normal(size=5)) / 5
    offsets[-1] = 0.0
    root = rng.normal(size=(3, 3))
    bend = -root @ root.T if curved else None
    found = maximise_cutting_planes(
        slopes, offsets, 0.7, slope=slopes[-1] if curved else None, curvature=bend
    )
    assert np.linalg.norm(found) <= 0.7 * (1 + 1e-9)
    near = minimize(
        lambda s: -_height(s / max(1.0, np.linalg.norm(s) / 0.7), slopes, offsets, bend),
        found + 0.05,
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000},
    )
    assert _height(found, slopes, offsets, bend) >= -near.fun - 1e-7


def _model(assignments: list[AssignmentCost], region: Region, lambdas: np.ndarray) -> float:
    total = 0.0
    for site, mu in enumerate(site_multipliers(lambdas)):
        costs = []
        for assignment in (assignment for assignment in assignments if assignment.site == site):
            sums = assignment.counts[:, None] * assignment.means
            found = region.optimal_centroids(assignment.counts, sums, mu)[1]
            costs.append(found + float((sums * assignment.means).sum()) + assignment.within)
        total += min(costs)
    return total


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1e3, 1e4)])
@pytest.mark.parametrize("symmetry", SYMMETRIES)
def test_the_bundle_optimum_is_the_models_maximum(
    symmetry: Symmetry, scale: float, shift: float
) -> None:
    rng = np.random.default_rng(7)
    references = rng.uniform(-1, 1, (3, 2)) * scale + shift
    low, high = np.full(2, shift - 2 * scale), np.full(2, shift + 2 * scale)
    region = Region(low, high, references, symmetry)
    assignments = [
        AssignmentCost(
            site,
            np.array(counts, dtype=float),
            rng.uniform(-1.5, 1.5, (3, 2)) * scale + shift,
            rng.uniform(0, 1) * scale**2,
        )
        for site, counts in enumerate([(2, 3, 4), (5, 0, 4), (1, 1, 7)])
        for _ in range(3)
    ]
    best = maximise_bundle(assignments, region, 3)
    assert best.lambdas.shape == (2, 3, 2)
    slack = 1e-6 * scale**2
    assert _model(assignments, region, best.lambdas) == pytest.approx(best.value, abs=slack)
    for _ in range(20):
        aside = rng.normal(0, 0.3 * scale, best.lambdas.shape)
        assert _model(assignments, region, best.lambdas + aside) <= best.value + slack


# --- Node limits ----------------------------------------------------------------------------------


def test_low_bounds_of_a_node_limit_stall_the_quadratic_bundle() -> None:
    consortium = _consortium(3, n_sites=3, d=2)
    ascent, _, proposals = consortium.run("quadratic_bundle", 40, short=0.1)
    assert proposals[-1].reason == "stalled"
    assert ascent.best == pytest.approx(proposals[-1].model_value - 0.1, abs=1e-4)


def test_cuts_pass_through_costs_not_through_lower_bounds() -> None:
    consortium = _consortium(3)
    ascent, (round_,), _ = consortium.run("bundle_trust", 1, short=0.1)
    assert ascent.cuts[0].value == round_.objective
    assert ascent.best == round_.objective - 0.1


# --- Reproducibility ------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_a_stored_state_continues_with_the_same_bits(rule: Rule) -> None:
    consortium = _consortium(8, n_sites=3)
    straight = stored = consortium.start(rule)
    for _ in range(5):
        round_ = consortium.answer(straight.lambdas)
        straight, proposal = update_multipliers(straight, round_, consortium.region)
        read = decode_model(Ascent, encode_model(stored))
        stored, again = update_multipliers(read, round_, consortium.region)
        assert proposal.lambdas.tobytes() == again.lambdas.tobytes()
        assert proposal.model_value == again.model_value
        assert Ascent.model_validate_json(stored.model_dump_json()).model_dump_json() == (
            straight.model_dump_json()
        )
        if proposal.finished:
            break


def test_unused_assignments_are_dropped_beyond_the_memory() -> None:
    consortium = _consortium(3, "none", n_sites=3, d=2)
    ascent = consortium.start("quadratic_bundle", memory=1)
    most = 0
    for _ in range(40):
        round_ = consortium.answer(ascent.lambdas)
        ascent, proposal = update_multipliers(ascent, round_, consortium.region)
        most = max(most, len(ascent.known))
        if proposal.finished:
            break
    full = consortium.run("quadratic_bundle", 40)[0]
    assert proposal.reason == "converged"
    assert ascent.best == pytest.approx(full.best, abs=1e-5)
    assert most < len(full.known)
