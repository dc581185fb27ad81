"""Domain splitting of dual: boxes cover the domain, and the gap closes around the optimum."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedclust import rounds
from fedclust.schema.errors import RuleViolation
from fedclust_dual.domain_splitting import (
    Box,
    Domain,
    Splitting,
    next_query,
    record_bound,
    start_splitting,
)
from fedclust_dual.feasible_set import Region
from fedclust_dual.multiplier_update import Proposal, add_assignments, known_cost, start_ascent
from methods.dual_assignments import FloatArray, Sites, assignment_of, plan_for, points_of
from support.driven import Run, data_of, drive, site_step
from support.site_rows import least_inertia, pooled

BOX = (-8.0, 8.0)


def sites_of(seed: int, sizes: tuple[int, ...], d: int = 2) -> dict[str, FloatArray]:
    """Return sites with a few rows each, in clusters that overlap: the dual leaves a gap."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(3, d)) * 1.5
    return {
        "abcd"[i]: centres[rng.integers(0, 3, n)] + rng.normal(size=(n, d))
        for i, n in enumerate(sizes)
    }


def run(sites: Sites, **options: Any) -> Run:
    return drive(plan_for(sites, box=BOX, **options), sites)


@pytest.mark.parametrize(
    ("k", "sizes", "symmetry"),
    [
        (2, (5, 5, 5), "pairwise"),
        pytest.param(2, (5, 5, 5), "none", marks=pytest.mark.long),
        pytest.param(2, (4, 4, 3, 4), "pairwise", marks=pytest.mark.long),
        pytest.param(3, (4, 3, 4), "pairwise", marks=pytest.mark.long),
    ],
)
def test_the_gap_closes_and_the_optimum_stays_between_the_bounds(
    k: int, sizes: tuple[int, ...], symmetry: str
) -> None:
    cut = 0
    for seed in range(2):
        sites = sites_of(seed, sizes)
        least, _ = least_inertia(pooled(sites), k)
        found = run(
            sites, n_clusters=k, symmetry=symmetry, splits=1_000, gap=0.002, iterations=2_000
        )
        bounds = found.result.bounds
        assert bounds.certified
        lower = [e.lower_bound for e in found.result.history if e.lower_bound is not None]
        assert bounds.lower == max(lower)
        assert bounds.lower <= least * (1 + 1e-9)
        assert bounds.upper == pytest.approx(least, rel=1e-9)
        assert bounds.gap <= 0.002
        assert found.result.stopped_because == "gap"
        cut += bounds.splits
    # Else nothing was seen here.
    assert cut > 1


def test_the_gap_of_weighted_points_closes() -> None:
    sites = sites_of(3, (18, 18, 20))
    policy = {"protection": "groups", "min_group_size": 3}
    plan = plan_for(sites, policy=policy, box=BOX, splits=1_000, iterations=2_000)
    found = drive(plan, sites).result
    X, sizes = points_of(plan, sites)
    least, _ = least_inertia(X, 2, sizes)
    assert found.bounds.lower <= least * (1 + 1e-9)
    assert found.bounds.upper == pytest.approx(least, rel=1e-9)
    assert found.stopped_because == "gap"


@pytest.fixture(scope="module")
def complete() -> Run:
    return run(sites_of(1, (5, 5, 5)), splits=1_000, gap=0.0, iterations=2_000)


@pytest.fixture(scope="module")
def split() -> Run:
    return run(sites_of(0, (5, 5, 5)), splits=20, gap=0.0)


def test_a_gap_of_0_closes_to_the_accuracy_of_the_dual(complete: Run) -> None:
    found = complete.result
    assert found.stopped_because == "converged"
    assert found.bounds.gap <= 3e-6
    assert found.bounds.splits > 0


def test_used_up_splits_are_reported_and_never_lower_the_bound() -> None:
    sites = sites_of(1, (5, 5, 5))
    bounds = []
    for splits in (0, 1, 3):
        found = run(sites, splits=splits, gap=0.0).result
        assert found.stopped_because == ("splits" if splits else "converged")
        assert found.bounds.splits == splits
        assert any("splits" in line for line in found.warnings)
        bounds.append(found.bounds.lower or 0.0)
    assert bounds == sorted(bounds)
    assert bounds[-1] > bounds[0]


def test_used_up_iterations_end_with_the_bound_so_far(complete: Run) -> None:
    sites = sites_of(1, (5, 5, 5))
    dual_rounds = sum(opened.phase == "dual" for opened in complete.rounds)
    found = run(sites, splits=1_000, gap=0.0, iterations=dual_rounds - 2).result
    assert found.stopped_because == "iterations"
    assert found.bounds.iterations == dual_rounds - 2
    least, _ = least_inertia(pooled(sites), 2)
    assert (found.bounds.lower or 0.0) <= least * (1 + 1e-9)


def test_answers_lie_in_the_box_of_their_round(split: Run) -> None:
    asked = 0
    for opened in split.rounds:
        if opened.phase != "dual":
            continue
        task = opened.tasks["a"].common
        if task.lower is None:
            continue
        asked += 1
        assert (task.lower >= -8.0).all()
        assert (task.upper <= 8.0).all()
        assert (task.upper - task.lower < 16.0).any()
        for answer in opened.payloads.values():
            assert (answer.centroids >= task.lower - 1e-9).all()
            assert (answer.centroids <= task.upper + 1e-9).all()
            # The value is that of some centroids in the box: nothing in it costs less.
            assert answer.value is not None
    assert asked > 5


def test_rows_without_cost_need_no_cuts() -> None:
    """No cut can close the gap that rounding leaves."""
    rows = np.array([[0.1, 0.3], [2.7, 1.9]])
    sites = {name: rows[[0, 1, 0, 1]] for name in "ab"}
    found = run(sites, n_clusters=3, splits=1_000, gap=0.0, iterations=2_000).result
    assert found.bounds.splits <= 2
    assert found.bounds.iterations <= 6


# --- Boxes ----------------------------------------------------------------------------------------


def make_domain(symmetry: Any, seed: int = 0) -> Domain:
    rng = np.random.default_rng(seed)
    origin = rng.normal(size=2)
    region = Region(np.full(2, -2.0) - origin, np.full(2, 2.0) - origin, np.eye(2), symmetry)
    return Domain(region, origin)


def ascent_with_assignments(seed: int = 0) -> Any:
    """Return the state of a quadratic bundle that knows some assignments of two sites."""
    rng = np.random.default_rng(seed)
    ascent = start_ascent("quadratic_bundle", (2, 2, 2))
    for _ in range(4):
        models = [
            assignment_of(rng.normal(size=(8, 2)), rng.integers(0, 2, 8), 2) for _ in range(2)
        ]
        ascent = add_assignments(ascent, models)
    return ascent


def boxes_of(splitting: Splitting) -> list[Box]:
    current = [] if splitting.current is None else [splitting.current]
    return [*splitting.waiting, *splitting.settled, *current]


def test_boxes_cover_the_domain_without_overlap() -> None:
    domain = make_domain("none")
    splitting = start_splitting(np.full(2, -2.0), np.full(2, 2.0), 2, 0.0)
    ascent = ascent_with_assignments()
    for _ in range(6):
        splitting, ascent, ask = next_query(splitting, ascent, domain, target=1e9, max_splits=40)
        if ask.lambdas is None:
            break
        splitting = record_bound(splitting, 1.0)
    boxes = boxes_of(splitting)
    assert splitting.splits == 40
    volume = sum(np.prod(box.upper - box.lower) for box in boxes)
    assert volume == pytest.approx(4.0**4, rel=1e-12)
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            shared = np.minimum(one.upper, other.upper) - np.maximum(one.lower, other.lower)
            assert (shared <= 0).any()


@pytest.mark.parametrize("seed", range(4))
def test_only_boxes_without_ordered_centroids_are_dropped(seed: int) -> None:
    """Every ordered point of the region is in some kept box."""
    domain = make_domain("pairwise", seed)
    rng = np.random.default_rng(seed)
    splitting = start_splitting(np.full(2, -2.0), np.full(2, 2.0), 2, 0.0)
    splitting, _, _ = next_query(
        splitting, ascent_with_assignments(seed), domain, target=1e9, max_splits=8
    )
    boxes = boxes_of(splitting)
    assert splitting.splits == 8
    for point in rng.uniform(-2.0, 2.0, size=(500, 2, 2)):
        if domain.region.violation(point - domain.origin) > 0:
            continue
        assert any(((box.lower <= point) & (point <= box.upper)).all() for box in boxes)


def split_once(box: Box, region: Region) -> Splitting:
    """Return what becomes of a box whose round proposed nothing."""
    splitting = Splitting(waiting=(), current=box)
    ascent, domain = ascent_with_assignments(), Domain(region, np.zeros(2))
    return next_query(
        splitting, ascent, domain, target=1e9, max_splits=1, proposal=Proposal(np.zeros((1, 2, 2)))
    )[0]


def test_a_half_without_ordered_centroids_is_dropped() -> None:
    # In order where the first coordinate of centroid 0 is at least 1.5.
    lower = np.array([[-2.0, 0.5], [0.5, -0.6]])
    upper = np.array([[2.0, 0.6], [0.6, -0.5]])
    region = Region(np.full(2, -2.0), np.full(2, 2.0), np.eye(2), "pairwise")
    after = split_once(Box(lower=lower, upper=upper, bound=0.0), region)
    assert [float(box.lower[0, 0]) for box in boxes_of(after)] == [0.0]


def test_without_a_consensus_the_widest_side_is_halved() -> None:
    region = Region(np.array([-2.0, -1.0]), np.array([2.0, 1.0]), np.eye(2), "none")
    (whole,) = start_splitting(region.lower, region.upper, 2, 0.0).waiting
    after = split_once(whole, region)
    assert after.splits == 1
    assert {float(box.upper[0, 0]) for box in boxes_of(after)} == {0.0, 2.0}


def test_the_known_cost_is_an_upper_bound() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(9, 2)) for _ in range(3)]
    ascent = start_ascent("quadratic_bundle", (3, 2, 2))
    assert known_cost(ascent, np.eye(2)) == np.inf
    for _ in range(5):
        labels = [rng.integers(0, 2, 9) for _ in rows]
        models = [assignment_of(X, own, 2) for X, own in zip(rows, labels, strict=True)]
        ascent = add_assignments(ascent, models)
        for centroids in rng.normal(size=(5, 2, 2)):
            away = [((X[:, None] - centroids) ** 2).sum(axis=2) for X in rows]
            exact = sum(own.min(axis=1).sum() for own in away)
            direct = sum(
                own[np.arange(9), given].sum() for own, given in zip(away, labels, strict=True)
            )
            assert exact <= known_cost(ascent, centroids) * (1 + 1e-12)
            assert known_cost(ascent, centroids) <= direct * (1 + 1e-12)


# --- Checks at the site ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("symmetry", "lower", "upper"),
    [
        ("pairwise", np.full((2, 2), -9.0), np.full((2, 2), 8.0)),
        ("pairwise", np.full((2, 2), 1.0), np.full((2, 2), 0.0)),
        ("pairwise", np.full((1, 2), 0.0), np.full((1, 2), 1.0)),
        ("pairwise", np.full((2, 2), 0.0), None),
        ("cells", np.full((2, 2), 0.0), np.full((2, 2), 1.0)),
        # The definition allows no splits.
        ("none", np.full((2, 2), 0.0), np.full((2, 2), 1.0)),
    ],
)
def test_boxes_beyond_the_declared_bounds_are_refused(
    symmetry: str, lower: FloatArray, upper: FloatArray | None
) -> None:
    rows = sites_of(0, (6, 6))
    plan = plan_for(rows, box=BOX, symmetry=symmetry, splits=int(symmetry == "pairwise"))
    found = drive(plan, rows)
    opened = next(one for one in found.rounds if one.phase == "dual")
    task = opened.tasks["a"]
    wrong = task.common.model_copy(update={"lower": lower, "upper": upper})
    changed = replace(task, common=wrong)
    with pytest.raises(RuleViolation) as refused:
        site_step(*(plan, changed, data_of(plan, rows["a"])), "a", opened.number, p=1)
    assert refused.value.rule == "task"


def test_a_centroid_outside_its_box_is_refused(split: Run) -> None:
    plan = plan_for(sites_of(0, (5, 5, 5)), box=BOX, splits=20, gap=0.0)
    opened = [one for one in split.rounds if one.phase == "dual"][-1]
    answer, task = opened.payloads["a"], opened.tasks["a"]
    rounds.check(plan, task, answer, p=1, size_band=None)
    outside = np.clip(np.full((2, 2), 7.9), None, task.common.upper + 0.05)
    wrong = answer.model_copy(update={"centroids": outside})
    with pytest.raises(RuleViolation, match="round's box") as refused:
        rounds.check(plan, task, wrong, p=1, size_band=None)
    assert refused.value.rule == "bounds"
