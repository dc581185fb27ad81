"""dual: bounds that hold over weighted points, sites that leave, and answers that are refused."""

from dataclasses import replace
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from fedclust import rounds
from fedclust.rounds import Plan
from fedclust.schema.errors import MethodFailure, RuleViolation, broken_task_rule
from fedclust.schema.result import Result
from fedclust.schema.task import Contribution, Done
from fedclust_dual import server
from fedclust_dual.messages import multiplier_digest
from methods.dual_assignments import FloatArray, Sites, plan_for, points_of
from support.driven import Run, data_of, drive
from support.points import violation
from support.site_rows import blobs, least_inertia, pooled

RULES = ("quadratic_bundle", "subgradient", "bundle_trust", "quasi_newton")
#: What a site is told with a task.
STEP: dict[str, Any] = {"site": "a", "round_number": 9, "p": 1, "size_band": None}


def run(sites: Sites, **options: Any) -> tuple[Run, Result]:
    """Drive a session to its end."""
    found = drive(plan_for(sites, **{"iterations": 25, **options}), sites)
    assert found.result is not None
    return found, found.result


def few(seed: int, sizes: tuple[int, ...] = (4, 5, 4), d: int = 2) -> dict[str, FloatArray]:
    """Return sites with a few rows each, in clusters that overlap."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(2, d)) * 2.0
    return {
        "abc"[i]: centres[rng.integers(0, 2, n)] + rng.normal(size=(n, d))
        for i, n in enumerate(sizes)
    }


# --- Valid bounds ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("update", "symmetry"), [*((rule, "pairwise") for rule in RULES), (RULES[0], "none")]
)
def test_certified_bounds_enclose_the_optimum_in_every_round(update: str, symmetry: str) -> None:
    for seed in range(2):
        sites = few(seed)
        X = pooled(sites)
        least, _ = least_inertia(X)
        found, result = run(sites, update=update, symmetry=symmetry, iterations=10)
        lower = [e.lower_bound for e in result.history if e.lower_bound is not None]
        upper = [e.upper_bound for e in result.history if e.upper_bound is not None]
        assert max(lower) <= least * (1 + 1e-9)
        assert min(upper) >= least * (1 - 1e-9)
        bounds = result.bounds
        assert bounds.certified
        assert bounds.lower == max(lower)
        assert bounds.upper <= min(upper)
        away = ((X[:, None] - result.centroids) ** 2).sum(axis=2).min(axis=1)
        assert bounds.upper == pytest.approx(away.sum(), rel=1e-9)
        assert bounds.upper == pytest.approx(least, rel=1e-9) or update != "quadratic_bundle"
        assert len(lower) == sum(opened.phase == "dual" for opened in found.rounds)


@pytest.mark.parametrize("update", RULES)
def test_bounds_enclose_the_optimum_of_weighted_points(update: str) -> None:
    """Protection leaves few points of 3 to 9 persons, two of them equal."""
    sites = few(0, (15, 20, 12))
    policy = {"protection": "groups", "min_group_size": 3}
    plan = plan_for(sites, policy=policy, update=update, iterations=8)
    X, sizes = points_of(plan, sites)
    assert len(X) < len(pooled(sites)) / 2
    least, _ = least_inertia(X, sizes=sizes)
    found, result = run(sites, policy=policy, update=update, iterations=8)
    bounds = result.bounds
    assert bounds.certified
    assert "weighted points" in bounds.statement
    assert bounds.lower <= least * (1 + 1e-9)
    assert bounds.upper >= least * (1 - 1e-9)
    assert bounds.upper == pytest.approx(least, rel=1e-9) or update != "quadratic_bundle"
    away = ((X[:, None] - result.centroids) ** 2).sum(axis=2).min(axis=1)
    assert bounds.upper == pytest.approx(float(sizes @ away), rel=1e-9)
    for opened in found.rounds:
        for site, payload in opened.payloads.items():
            counts = payload.counts if opened.phase != "primal" else payload.counts[0]
            assert counts.sum() == len(sites[site])


@pytest.mark.parametrize("protection", ["groups", "none"])
def test_points_are_clipped_to_the_declared_bounds(protection: str) -> None:
    """A released mean is rounded, which may take it out of the bounds of its rows."""
    rng = np.random.default_rng(0)
    sites = {name: 1.0 - rng.random((12, 2)) ** 4 * 0.01 for name in "abc"}
    policy = {"protection": protection, "min_group_size": 3, "scaling": "standard"}
    _, result = run(sites, policy=policy, box=(0.0, 1.0), iterations=3)
    assert result.bounds.lower is not None


def test_the_gap_closes_for_clusters_far_apart() -> None:
    sites = blobs(np.array([[0.0, 0.0], [9.0, 3.0]]), (3, 4, 2), spread=0.3)
    found, result = run(sites)
    least, centroids = least_inertia(pooled(sites))
    assert result.stopped_because == "gap"
    assert result.bounds.gap <= 0.0025
    assert result.bounds.lower <= least * (1 + 1e-12)
    order = np.lexsort(centroids.T[::-1])
    np.testing.assert_allclose(result.centroids, centroids[order], atol=1e-9)
    assert sum(opened.phase == "dual" for opened in found.rounds) <= 3


@pytest.mark.parametrize("update", RULES[1:])
def test_the_papers_rules_measure_the_average_and_do_not_polish(update: str) -> None:
    found, _ = run(few(1), update=update, iterations=4, gap=0.0, residual=0.0)
    assert [opened.phase for opened in found.rounds] == ["cells", *("dual", "primal") * 4]
    for opened in found.rounds[2::2]:
        task = opened.tasks["a"].common
        answers = found.rounds[opened.number - 2].payloads
        mean = np.mean([answers[site].centroids for site in "abc"], axis=0)
        np.testing.assert_allclose(task.centroids, mean[None], atol=1e-12)


@pytest.mark.parametrize("update", RULES)
@pytest.mark.parametrize(("offset", "box"), [(0.0, 1e5), (1e6, 2e6)])
def test_wide_boxes_and_distant_rows_keep_valid_bounds(
    update: str, offset: float, box: float
) -> None:
    sites = {site: rows + offset for site, rows in few(2).items()}
    least, _ = least_inertia(pooled(few(2)))
    _, result = run(sites, update=update, box=(-box, box), iterations=6)
    bounds = result.bounds
    assert bounds.lower <= least * (1 + 1e-6)
    assert bounds.upper >= least * (1 - 1e-6)


@pytest.mark.parametrize("scaling", ["standard", "none"])
def test_close_rows_far_from_zero_pass_the_checks(scaling: str) -> None:
    """Scaling leaves few digits, so the last digits of the means do not add up."""
    rng = np.random.default_rng(0)
    sites = {name: 1e6 + 1e-3 * rng.normal(size=(6, 2)) for name in "abc"}
    _, result = run(sites, box=(1e6 - 1.0, 1e6 + 1.0), policy={"scaling": scaling})
    assert result.bounds.lower is not None


def test_a_node_limit_is_reported_and_its_bound_is_valid() -> None:
    sites = few(3, (6, 6, 5))
    least, _ = least_inertia(pooled(sites))
    _, result = run(sites, node_limit=3, iterations=4)
    assert 0 < result.bounds.limited <= result.bounds.iterations
    assert result.bounds.lower <= least
    assert any("node limit" in warning for warning in result.warnings)
    _, whole = run(sites, iterations=4)
    assert whole.bounds.limited == 0
    assert whole.bounds.lower > result.bounds.lower


# --- Forms without a certificate ------------------------------------------------------------------


@pytest.mark.parametrize("symmetry", ["cells", "reference", "pairwise"])
def test_a_form_that_cuts_off_the_optimum_is_not_certified(
    monkeypatch: pytest.MonkeyPatch, symmetry: str
) -> None:
    """Equation 36 and cells exclude the optimum where the references lack a cluster."""
    sites = {
        site: np.array([[0.0 + shift], [4.0 + shift], [20.0 - shift]])
        for site, shift in zip("abc", (0.0, 0.1, 0.3), strict=True)
    }
    least, centroids = least_inertia(pooled(sites))
    references = np.array([[0.0], [3.0]])
    monkeypatch.setattr(server, "best_partitions", lambda *_: [references])
    _, result = run(sites, symmetry=symmetry, iterations=12, polish=True)
    bounds = result.bounds
    assert bounds.upper == pytest.approx(least, rel=1e-9)
    if symmetry == "pairwise":
        assert bounds.certified
        assert bounds.lower <= least * (1 + 1e-9)
        return
    assert bounds.lower > least * 1.01
    assert not bounds.certified
    assert "not certified" in bounds.statement
    # No numbering of the optimum's clusters is in the region.
    away = np.abs(centroids - references.T)
    for order in permutations(range(2)):
        own = away[list(order)]
        # reference: another centroid is nearer to r_k; cells: another r is nearer to m_k.
        assert (own.diagonal() > own.min(axis=0 if symmetry == "reference" else 1) + 1e-9).any()


# --- Leaving sites, and the order of answers ------------------------------------------------------


@pytest.mark.parametrize("phase", ["dual", "primal"])
def test_an_empty_answer_ends_the_session_with_the_bounds_so_far(phase: str) -> None:
    """Bounds over fewer sites would belong to another problem."""
    sites = few(4)
    plan = plan_for(sites, update="subgradient", gap=0.0, residual=0.0, iterations=3)
    whole = drive(plan, sites)
    second = [opened.number for opened in whole.rounds if opened.phase == phase][1]
    opened = whole.rounds[second - 1]
    answers = [Contribution(s, None if s == "b" else opened.payloads[s], 1) for s in "abc"]
    step = rounds.advance(plan, opened.state, answers, "abc")
    assert isinstance(step, Done)
    assert step.result.stopped_because == "site_left"
    entry = step.result.history[second - 1]
    assert (entry.lower_bound, entry.upper_bound) == (None, None)
    lower = [e.lower_bound for e in step.result.history if e.lower_bound is not None]
    assert step.result.bounds.lower == max(lower)


def test_sites_without_points_are_counted_in_the_error() -> None:
    sites = {**few(4), "d": np.zeros((2, 2))}
    policy = {"protection": "groups", "min_group_size": 3}
    with pytest.raises(MethodFailure, match="1 had none"):
        drive(plan_for(sites, policy=policy), sites)


def test_the_order_of_sites_does_not_matter() -> None:
    sites = few(6)
    _, result = run(sites)
    _, back = run(dict(zip("cba", sites.values(), strict=True)))
    assert back.bounds.lower == pytest.approx(result.bounds.lower, rel=1e-4)
    assert back.bounds.upper == pytest.approx(result.bounds.upper, rel=1e-9)


# --- Degenerate data ------------------------------------------------------------------------------


@pytest.mark.parametrize("update", RULES)
def test_one_site_proves_its_optimum_in_one_round(update: str) -> None:
    sites = {"a": few(7)["b"]}
    least, _ = least_inertia(sites["a"])
    _, result = run(sites, update=update, gap=1e-6)
    assert result.bounds.iterations == 1
    assert result.bounds.lower == pytest.approx(least, rel=1e-6)
    assert result.bounds.upper == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("update", RULES)
def test_equal_rows_and_more_clusters_than_rows_have_no_cost(update: str) -> None:
    same = dict.fromkeys("abc", np.full((3, 2), 1.5))
    fewer = {site: np.array([[float(i), 1.0]]) for i, site in enumerate("abc")}
    for sites, k in ((same, 2), (fewer, 5)):
        _, result = run(sites, update=update, n_clusters=k, iterations=5)
        assert result.bounds.lower <= 1e-9
        assert result.bounds.upper == pytest.approx(0.0, abs=1e-9)


# --- Refusals -------------------------------------------------------------------------------------


def test_a_value_that_the_box_excludes_is_refused() -> None:
    """Both clusters have the mean of all rows: they add up, but no rows cost as much."""
    sites = few(8)
    config = {"update": "subgradient", "symmetry": "none", "gap": 0.0, "residual": 0.0}
    plan = plan_for(sites, **config, iterations=3)
    opened = [r for r in drive(plan, sites).rounds if r.phase == "dual"][2]
    task, answer = opened.tasks["a"], opened.payloads["a"]
    n = len(sites["a"])
    mean, mu = task.site.mean, task.site.multipliers
    # One row with all of the greatest pull, the others with the least: far from the best split.
    counts = np.array([1, n - 1])
    centroids = np.clip(mean - mu / (2.0 * counts[:, None]), -20.0, 20.0)
    about = centroids - task.common.origin
    cost = float(
        task.site.scatter
        + (counts * ((centroids - mean) ** 2).sum(axis=1)).sum()
        + (mu * about).sum()
    )
    together = []
    for k in range(2):
        alone = np.clip(mean - mu[k] / (2.0 * n), -20.0, 20.0)
        low, high = -20.0 - task.common.origin, 20.0 - task.common.origin
        corner = np.minimum(mu[1 - k] * low, mu[1 - k] * high).sum()
        pull = float(mu[k] @ (alone - task.common.origin))
        together.append(task.site.scatter + n * ((alone - mean) ** 2).sum() + pull + corner)
    assert cost > min(together) + 1e-3
    lie = answer.model_copy(
        update={
            "counts": counts,
            "means": np.array([mean, mean]),
            "centroids": centroids,
            "value": cost - 1e-6,
        }
    )
    broken = violation(rounds.check, plan, task, lie, p=1, size_band=None)
    assert (broken.rule, broken.pointer) == ("dual-value", "/value")
    assert "declared bounds" in broken.message


# --- Privacy --------------------------------------------------------------------------------------


def test_no_task_contains_the_centroids_of_a_site() -> None:
    """Tasks contain averages or clusterings over sites, never one site's own centroids."""
    sites = few(3, (12, 11, 13))
    found = drive(plan_for(sites), sites)
    own: list[FloatArray] = []
    shown = 0
    for opened in found.rounds:
        if opened.phase == "primal":
            common = next(iter(opened.tasks.values())).common
            for candidate in common.centroids:
                shown += 1
                for own_centroids in own:
                    apart = np.abs(candidate[:, None] - own_centroids).max(axis=2)
                    assert (apart.min(axis=1) >= 1e-9).any(), "the same, up to their order"
        for answer in opened.payloads.values():
            if opened.phase == "dual":
                own += [answer.centroids, answer.means]
    assert own
    assert shown


def test_bounds_for_fewer_clusters_than_requested_are_reported() -> None:
    sites = {"a": np.ones((4, 2)), "b": np.full((4, 2), 3.0)}
    plan = plan_for(sites, n_clusters=4)
    bounds = drive(plan, sites).result.bounds
    assert bounds.n_clusters == 2
    assert "No 2 centroids" in bounds.statement
    assert any("2 clusters, not for the 4" in line for line in drive(plan, sites).result.warnings)


# --- Consent --------------------------------------------------------------------------------------


@cache
def _task_of_phase(phase: str) -> tuple[Plan, Any, Any]:
    sites = few(6)
    plan = plan_for(sites, gap=0.0, iterations=5)
    opened = next(one for one in drive(plan, sites).rounds if one.phase == phase)
    return plan, opened.tasks["a"], data_of(plan, sites["a"])


def test_more_clusters_and_columns_than_defined_are_refused_at_the_site() -> None:
    plan, task, points = _task_of_phase("dual")
    references, mu = (
        np.concatenate([each, each + 0.5])
        for each in (task.common.references, task.site.multipliers)
    )
    more = replace(
        task,
        common=task.common.model_copy(update={"references": references}),
        site=task.site.model_copy(update={"multipliers": mu, "digest": multiplier_digest(mu)}),
    )
    wide = replace(task, site=task.site.model_copy(update={"mean": task.site.mean[:1]}))
    for wrong in (more, wide):
        broken = violation(rounds.local_step, plan, wrong, points, memory={}, **STEP)
        assert broken_task_rule(broken) == "task"


def test_more_dual_rounds_than_defined_and_late_cells_are_refused() -> None:
    plan, task, points = _task_of_phase("dual")
    cells = _task_of_phase("cells")[1]
    memory: dict[str, Any] = {}
    iterations = plan.options.iterations  # type: ignore[attr-defined]
    for _ in range(iterations):
        _, memory = rounds.local_step(plan, task, points, memory=memory, **STEP)
    for late, message in ((task, f"after the {iterations} that"), (cells, "is over")):
        with pytest.raises(RuleViolation, match=message):
            rounds.local_step(plan, late, points, memory=memory, **STEP)
