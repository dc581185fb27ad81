"""Node problems of `dual` against enumeration, an interior-point solver and themselves."""

from dataclasses import replace
from itertools import product

import clarabel
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from fedclust_dual import label_search
from fedclust_dual.compilation import compiled
from fedclust_dual.feasible_set import CentroidBounds, Region, Symmetry
from fedclust_dual.node_problem import NodeSolution, solve_node
from fedclust_dual.quadratic_program import Halfspaces, minimise

CONVEX: tuple[Symmetry, ...] = ("none", "cells", "pairwise")
FORMS: tuple[Symmetry, ...] = (*CONVEX, "reference")


def region_of(
    symmetry: Symmetry, references: np.ndarray, half: float = 1.5, origin: float = 0.0
) -> Region:
    d = references.shape[1]
    return Region(np.full(d, origin - half), np.full(d, origin + half), references, symmetry)


def problem(
    seed: int, n: int, K: int, d: int, pull: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return (rng.uniform(-1, 1, (n, d)), rng.normal(size=(K, d)) * pull, rng.uniform(-1, 1, (K, d)))


def cost_of(rows: np.ndarray, mu: np.ndarray, found: NodeSolution) -> float:
    squares = (rows - found.centroids[found.labels]) ** 2
    return float(squares.sum() + (mu * found.centroids).sum())


def by_interior_point(
    rows: np.ndarray, mu: np.ndarray, labels: np.ndarray, region: Region
) -> float:
    """Return the least cost of labels in a convex region, its constraints as printed."""
    K, d = mu.shape
    r = region.references
    counts = np.bincount(labels, minlength=K)
    linear = mu.copy()
    np.add.at(linear, labels, -2.0 * rows)
    sides = [np.eye(K * d), -np.eye(K * d)]
    right = [region.centroid_bounds.upper.ravel(), -region.centroid_bounds.lower.ravel()]
    for k in range(K):
        for other in range(K):
            row = np.zeros((K, d))
            if region.symmetry == "cells" and k != other:
                row[k] = 2.0 * (r[other] - r[k])
                right.append(np.array([r[other] @ r[other] - r[k] @ r[k]]))
                sides.append(row.reshape(1, -1))
            elif region.symmetry == "pairwise" and k < other:
                row[k], row[other] = r[other] - r[k], r[k] - r[other]
                right.append(np.zeros(1))
                sides.append(row.reshape(1, -1))
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-11
    bounds = np.concatenate(right)
    solved = clarabel.DefaultSolver(
        sparse.csc_matrix(np.diag(2.0 * np.repeat(counts, d))),
        linear.ravel(),
        sparse.csc_matrix(np.vstack(sides)),
        bounds,
        [clarabel.NonnegativeConeT(len(bounds))],
        options,
    ).solve()
    return float(solved.obj_val + (rows**2).sum())


def by_enumeration(rows: np.ndarray, mu: np.ndarray, region: Region) -> float:
    every = product(range(len(mu)), repeat=len(rows))
    return min(by_interior_point(rows, mu, np.array(labels), region) for labels in every)


def subdomain_of(region: Region, seed: int) -> Region:
    """Return the region with a random subdomain that contains ordered centroids."""
    rng = np.random.default_rng(seed)
    # About centroids in order: a random box of each, cut off at the region's.
    inside = np.clip(region.references * 0.5, region.lower, region.upper)
    away = rng.uniform(0.05, 0.8, (2, *inside.shape))
    lower, upper = inside - away[0], inside + away[1]
    return replace(
        region,
        subdomain=CentroidBounds(np.maximum(lower, region.lower), np.minimum(upper, region.upper)),
    )


@pytest.mark.parametrize(
    ("symmetry", "part"),
    [*((symmetry, False) for symmetry in CONVEX), ("none", True), ("pairwise", True)],
)
@pytest.mark.parametrize(
    ("seed", "n", "K", "d", "pull"),
    [(0, 5, 3, 2, 0.5), (1, 4, 3, 2, 4.0), (2, 5, 2, 3, 1.0), (3, 2, 3, 1, 1.0), (4, 4, 2, 2, 0.0)],
)
def test_the_optimum_agrees_with_enumeration(
    symmetry: Symmetry, part: bool, seed: int, n: int, K: int, d: int, pull: float
) -> None:
    """In the whole region, and in a part of it."""
    rows, mu, references = problem(seed, n, K, d, pull)
    # A box about another point than the rows, as declared bounds are.
    whole = region_of(symmetry, references, origin=0.4)
    region = subdomain_of(whole, seed) if part else whole
    found = solve_node(rows, mu, region, node_limit=100_000)
    assert found.complete
    assert found.value == pytest.approx(by_enumeration(rows, mu, region), abs=1e-7)
    assert found.value == pytest.approx(cost_of(rows, mu, found), abs=1e-9)
    assert found.value - 1e-6 <= found.bound <= found.value
    assert region.violation(found.centroids) <= region.tolerance
    if not part:
        return
    assert whole.violation(found.centroids) <= whole.tolerance
    # What a part costs at least is no less than what the whole does.
    assert found.bound >= solve_node(rows, mu, whole, node_limit=100_000).bound - 1e-9
    # And with what was kept of another part.
    solve_node(rows, mu, subdomain_of(whole, seed + 1), node_limit=100_000)
    again = solve_node(rows, mu, region, node_limit=100_000)
    assert (again.value, again.bound) == (found.value, found.bound)


@pytest.mark.parametrize("symmetry", FORMS)
def test_a_weight_counts_as_that_many_rows(symmetry: Symmetry) -> None:
    rows, mu, references = problem(3, 7, 3, 2, 2.0)
    sizes = np.array([1, 3, 2, 5, 1, 4, 2])
    region = region_of(symmetry, references)
    weighted = solve_node(rows, mu, region, weights=sizes, node_limit=20_000)
    repeated = solve_node(np.repeat(rows, sizes, axis=0), mu, region, node_limit=20_000)
    assert weighted.value == repeated.value
    assert weighted.bound == repeated.bound
    assert np.array_equal(np.repeat(weighted.labels, sizes), repeated.labels)


@pytest.mark.parametrize("seed", range(3))
def test_no_feasible_centroids_cost_less_under_equation_36(seed: int) -> None:
    rows, mu, references = problem(seed, 4, 2, 2, 1.5)
    region = region_of("reference", references)
    found = solve_node(rows, mu, region, node_limit=20_000)
    assert found.complete
    assert region.violation(found.centroids) <= region.tolerance
    # A grid over all centroids: what is feasible on it costs no less than the proven bound, and
    # the best of it not much more.
    axis = np.linspace(-1.5, 1.5, 25)
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    to_reference = ((points[:, None] - references) ** 2).sum(axis=2)
    to_rows = ((points[:, None] - rows) ** 2).sum(axis=2)
    nearest = np.minimum(to_rows[:, None, :], to_rows[None, :, :]).sum(axis=2)
    costs = nearest + (points @ mu[0])[:, None] + (points @ mu[1])[None, :]
    allowed = to_reference[:, 0][:, None] <= to_reference[:, 0][None, :]
    allowed &= to_reference[:, 1][None, :] <= to_reference[:, 1][:, None]
    best = costs[allowed].min()
    assert found.bound <= best
    assert found.value <= best


def test_equation_36_is_searched_beyond_its_relaxation() -> None:
    """The multipliers pull each cluster beyond the other's reference."""
    references = np.array([[-0.2, 0.0], [0.2, 0.0]])
    mu = np.array([[-4.0, 0.0], [-4.5, 0.0]])
    rows = np.array([[0.1, 0.1], [0.3, -0.1], [0.9, 0.2], [0.8, -0.2]])
    loose = solve_node(rows, mu, region_of("pairwise", references))
    region = region_of("reference", references)
    assert region.violation(loose.centroids) > 0.1
    found = solve_node(rows, mu, region, node_limit=20_000)
    assert found.complete
    assert found.value > loose.value + 1e-3
    assert region.violation(found.centroids) <= region.tolerance


@pytest.mark.parametrize("symmetry", FORMS)
def test_a_bound_is_valid_whenever_the_search_ends(symmetry: Symmetry) -> None:
    for seed, limit in product(range(3), (1, 3, 20)):
        rows, mu, references = problem(seed, 7, 3, 2, 1.0)
        region = region_of(symmetry, references)
        if limit == 1:
            whole = solve_node(rows, mu, region, node_limit=10_000)
        early = solve_node(rows, mu, region, node_limit=limit)
        assert early.n_nodes <= limit
        assert early.bound <= whole.value
        assert early.value >= whole.bound
        assert early.value == pytest.approx(cost_of(rows, mu, early), abs=1e-9)
        assert region.violation(early.centroids) <= region.tolerance
        if symmetry != "reference":
            assert whole.complete


@pytest.mark.parametrize("symmetry", FORMS)
def test_row_order_start_and_cache_do_not_change_bits(symmetry: Symmetry) -> None:
    rows, mu, references = problem(5, 9, 3, 2, 0.3)
    region = region_of(symmetry, references)
    found = solve_node(rows, mu, region)
    order = np.random.default_rng(0).permutation(len(rows))
    moved = solve_node(rows[order], mu, region)
    label_search._prepare.cache_clear()
    again = solve_node(rows, mu, region)
    started = solve_node(rows, mu, region, start=found.labels)
    for other in (moved, again, started):
        assert other.value == found.value
        assert np.array_equal(other.centroids, found.centroids)
    assert (moved.bound, again.bound) == (found.bound, found.bound)
    assert again.n_nodes == moved.n_nodes == found.n_nodes
    assert np.array_equal(moved.labels, found.labels[order])


def test_without_multipliers_the_pairwise_order_has_no_cost() -> None:
    """Any centroids can be renumbered into "pairwise"; cells may cut off the optimum."""
    for seed in range(6):
        rows, _, references = problem(seed, 12, 4, 2, 0.0)
        mu = np.zeros((4, 2))
        free = solve_node(rows, mu, region_of("none", references))
        ordered = region_of("pairwise", references)
        found = solve_node(rows, mu, ordered)
        assert found.complete
        assert found.value == pytest.approx(free.value, abs=1e-9)
        assert ordered.violation(found.centroids) <= ordered.tolerance
        assert solve_node(rows, mu, region_of("cells", references)).value >= free.bound


@pytest.mark.parametrize("symmetry", FORMS)
@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((0, 2)),
        np.array([[0.5, -0.5]]),
        np.tile([[0.25, 0.5]], (9, 1)),
        np.column_stack([np.full(8, 0.3), np.linspace(-1, 1, 8)]),
        np.repeat(np.array([[-0.5, 0.0], [0.5, 0.5], [0.9, -0.9]]), 4, axis=0),
    ],
    ids=["none", "one", "equal", "constant column", "duplicates"],
)
def test_few_and_equal_rows_are_solved(symmetry: Symmetry, rows: np.ndarray) -> None:
    _, mu, references = problem(8, 1, 3, 2, 0.3)
    region = region_of(symmetry, references)
    for pull in (np.zeros((3, 2)), mu):
        found = solve_node(rows, pull, region, node_limit=50_000)
        assert found.complete
        assert found.labels.shape == (len(rows),)
        assert found.value == pytest.approx(cost_of(rows, pull, found), abs=1e-9)
        assert region.violation(found.centroids) <= region.tolerance
    if len(rows) and symmetry in ("none", "pairwise") and len(np.unique(rows, axis=0)) <= 3:
        assert solve_node(rows, np.zeros((3, 2)), region).value == pytest.approx(0.0, abs=1e-9)


def test_a_search_at_its_node_limit_has_a_proven_bound() -> None:
    rows, mu, references = problem(9, 100, 4, 10, 1.0)
    for symmetry in ("cells", "pairwise"):
        found = solve_node(rows, mu, region_of(symmetry, references), node_limit=20_000)
        assert not found.complete
        assert found.n_nodes <= 20_000
        assert found.bound < found.value
        # Rows beyond those few that were labelled count too.
        assert found.bound > 0.2 * found.value


def test_rows_far_from_the_origin_lose_no_digits() -> None:
    rows, mu, references = problem(10, 12, 3, 2, 0.4)
    near = solve_node(rows, mu, region_of("cells", references))
    away = 1e5
    far = solve_node(rows + away, mu, region_of("cells", references + away, origin=away))
    assert np.array_equal(far.labels, near.labels)
    assert far.value - away * mu.sum() == pytest.approx(near.value, abs=1e-5)
    assert far.complete


@settings(max_examples=150)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(0, 6))
def test_small_quadratic_programs_have_a_proven_minimum(seed: int, size: int, faces: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 4, size).astype(float)
    linear = rng.normal(size=size) * rng.integers(0, 2, size)
    normals = rng.normal(size=(faces, size))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    inner = rng.uniform(-1, 1, size)
    halfspaces = Halfspaces(normals, normals @ inner - rng.uniform(0, 0.3, faces))
    lower, upper = np.full(size, -1.0), np.full(size, 1.0)
    found = minimise(weights, linear, lower, upper, halfspaces, np.zeros(size), 1e-9)
    assert (normals @ found.point >= halfspaces.offsets - 1e-8).all()
    assert (np.abs(found.point) <= 1.0).all()
    assert found.value == pytest.approx(weights @ found.point**2 - linear @ found.point, abs=1e-12)
    assert found.value - 1e-8 <= found.bound <= found.value


def test_a_centroid_without_cost_stays_at_its_reference() -> None:
    references = np.array([[-0.5, 0.25], [0.5, -0.25]])
    sums, mu = np.zeros((2, 2)), np.zeros((2, 2))
    for symmetry in ("cells", "pairwise", "reference"):
        region = region_of(symmetry, references)
        centroids, value = region.optimal_centroids(np.zeros(2), sums, mu)
        np.testing.assert_allclose(centroids, references, atol=1e-12)
        assert value == pytest.approx(0.0, abs=1e-12)


def test_the_violation_is_a_distance() -> None:
    references = np.array([[-0.5, 0.0], [0.5, 0.0]])
    swapped = np.array([[0.3, 0.1], [-0.2, 0.0]])
    assert region_of("none", references).violation(swapped) == 0.0
    assert region_of("none", references).violation(np.full((2, 2), 1.75)) == pytest.approx(0.25)
    assert region_of("cells", references).violation(swapped) == pytest.approx(0.3)
    assert region_of("pairwise", references).violation(swapped) == pytest.approx(0.5)
    gap = np.hypot(0.8, 0.1) - 0.3
    assert region_of("reference", references).violation(swapped) == pytest.approx(gap)
    for symmetry in FORMS:
        assert region_of(symmetry, references).violation(references) == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lower": np.array([-1.0])}, "bounds must be vectors of one length"),
        ({"lower": np.array([2.0, -1.0])}, "the box is empty"),
        ({"upper": np.array([np.inf, 1.0])}, "the box must be finite"),
        ({"references": np.zeros((2, 3))}, "a column for every bound"),
        ({"references": np.full((2, 2), 3.0)}, "references must lie in the box"),
        ({"symmetry": "other"}, "symmetry must be"),
        ({"subdomain": CentroidBounds(np.zeros((2, 2)), np.ones((2, 2)))}, "allows no subdomain"),
        (
            {"symmetry": "none", "subdomain": CentroidBounds(np.zeros((1, 2)), np.ones((1, 2)))},
            "bounds for every centroid",
        ),
        (
            {"symmetry": "none", "subdomain": CentroidBounds(np.eye(2) - 1.5, np.ones((2, 2)))},
            "must lie in the box",
        ),
    ],
)
def test_an_invalid_region_is_refused(change: dict[str, object], message: str) -> None:
    given = {
        "lower": np.full(2, -1.0),
        "upper": np.full(2, 1.0),
        "references": np.zeros((2, 2)),
        "symmetry": "cells",
    }
    with pytest.raises(ValueError, match=message):
        Region(**(given | change))  # type: ignore[arg-type]


def test_functions_are_compiled_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_one = numba.njit

    def refusing(signature: str, cache: bool = False) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return compile_one(signature)

    monkeypatch.setattr(numba, "njit", refusing)
    doubled = compiled("f8(f8)")(lambda x: 2.0 * x)
    assert doubled(1.5) == 3.0
