"""dual: bounds that hold, whoever misses a round, and what its values must not give away."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedclust.algorithms import dual, engine
from fedclust.algorithms.base import (
    Contribution,
    Feature,
    Next,
    Policy,
    Result,
    RuleViolation,
    SiteData,
)
from fedclust.algorithms.engine import Plan
from fedclust.simulate import simulate
from fedclust.wire import codec
from support.hospitals import blobs, central_lloyd, pooled
from support.rounds import Round, Run, drive

FloatArray = NDArray[np.float64]
Sites = Mapping[str, FloatArray]
RULES = ("quadratic_bundle", "subgradient", "bundle_trust", "quasi_newton")
#: Every row may be told: what is looked at here are bounds.
OPEN = {"min_group_size": 1, "min_sites": 1, "scaling": "none"}


def plan_for(
    sites: Sites,
    *,
    policy: Mapping[str, Any] | None = None,
    box: tuple[float, float] = (-20.0, 20.0),
    **options: Any,
) -> Plan:
    d = next(iter(sites.values())).shape[1]
    features = tuple(Feature(name=f"x{j}", lower=box[0], upper=box[1]) for j in range(d))
    config = dual.Config(**{"n_clusters": 2, "iterations": 25, "evaluate": False, **options})
    return Plan(dual.METHOD, config, features, Policy(**{**OPEN, **(policy or {})}), seed=0)


def run(sites: Sites, **options: Any) -> tuple[Run, Result]:
    """Drive a session to its end."""
    found = drive(plan_for(sites, **options), sites)
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


def optimum(X: FloatArray, k: int = 2) -> tuple[float, FloatArray]:
    """Return the least inertia of k centroids, and these, by trying every labelling."""
    n = len(X)
    labels = (np.arange(k ** (n - 1))[:, None] // k ** np.arange(n)) % k
    middle = X - X.mean(axis=0)
    members = [(labels == cluster).astype(np.float64) for cluster in range(k)]
    counts = np.stack([own.sum(axis=1) for own in members])
    sums = np.stack([own @ middle for own in members])
    gains = ((sums**2).sum(axis=2) / np.maximum(counts, 1)).sum(axis=0)
    best = int(gains.argmax())
    means = sums[:, best] / np.maximum(counts[:, best], 1)[:, None] + X.mean(axis=0)
    return float((middle**2).sum() - gains[best]), means


def inertia(X: FloatArray, centroids: FloatArray) -> float:
    return float(((X[:, None] - centroids[None]) ** 2).sum(axis=2).min(axis=1).sum())


# --- bounds that hold -----------------------------------------------------------------------------


@pytest.mark.parametrize("symmetry", ["pairwise", "none"])
@pytest.mark.parametrize("update", RULES)
def test_every_round_of_a_certified_form_has_the_optimum_between_its_bounds(
    update: str, symmetry: str
) -> None:
    for seed in range(2):
        sites = few(seed)
        X = pooled(sites)
        least, _ = optimum(X)
        found, result = run(sites, update=update, symmetry=symmetry, iterations=10)
        lower = [e.lower_bound for e in result.history if e.lower_bound is not None]
        upper = [e.upper_bound for e in result.history if e.upper_bound is not None]
        assert max(lower) <= least * (1 + 1e-9)
        assert min(upper) >= least * (1 - 1e-9)
        bounds = result.bounds
        assert bounds is not None
        assert bounds.certified
        assert bounds.lower == max(lower)
        assert bounds.upper is not None
        assert bounds.upper <= min(upper)
        assert bounds.upper == pytest.approx(inertia(X, result.centroids), rel=1e-9)
        assert bounds.upper == pytest.approx(least, rel=1e-9) or update != "quadratic_bundle"
        # Each dual round told a bound: nobody held back.
        assert len(lower) == sum(opened.phase == "dual" for opened in found.rounds)


def test_where_clusters_are_far_apart_the_gap_closes() -> None:
    sites = blobs(np.array([[0.0, 0.0], [9.0, 3.0]]), (3, 4, 2), spread=0.3)
    found, result = run(sites)
    least, centroids = optimum(pooled(sites))
    assert result.stopped_because == "gap"
    assert result.bounds is not None
    assert result.bounds.gap is not None
    assert result.bounds.gap <= 0.0025
    assert result.bounds.lower is not None
    assert result.bounds.lower <= least * (1 + 1e-12)
    order = np.lexsort(centroids.T[::-1])
    np.testing.assert_allclose(result.centroids, centroids[order], atol=1e-9)
    assert sum(opened.phase == "dual" for opened in found.rounds) <= 3


@pytest.mark.parametrize("update", RULES[1:])
def test_the_papers_rules_measure_one_average_a_round_and_do_not_polish(update: str) -> None:
    found, _ = run(few(1), update=update, iterations=4, gap=0.0, residual=0.0)
    assert [opened.phase for opened in found.rounds] == ["cells", *("dual", "primal") * 4]
    for opened in found.rounds[2::2]:
        task = opened.tasks["a"].common
        answers = found.rounds[opened.number - 2].payloads
        mean = np.mean([answers[site].centroids for site in "abc"], axis=0)
        np.testing.assert_allclose(task.centroids, mean[None], atol=1e-12)


@pytest.mark.parametrize("update", RULES)
@pytest.mark.parametrize(("offset", "box"), [(0.0, 1e5), (1e6, 2e6)])
def test_far_bounds_and_far_rows_keep_the_bounds_in_order(
    update: str, offset: float, box: float
) -> None:
    sites = {site: rows + offset for site, rows in few(2).items()}
    least, _ = optimum(pooled(few(2)))
    _, result = run(sites, update=update, box=(-box, box), iterations=6)
    bounds = result.bounds
    assert bounds is not None
    assert bounds.lower is not None
    assert bounds.upper is not None
    assert bounds.lower <= least * (1 + 1e-6)
    assert bounds.upper >= least * (1 - 1e-6)


@pytest.mark.parametrize("scaling", ["standard", "none"])
def test_close_rows_far_from_zero_are_no_contradiction(scaling: str) -> None:
    """Scaling leaves few digits of them: the means' last ones do not add up."""
    rng = np.random.default_rng(0)
    sites = {name: 1e6 + 1e-3 * rng.normal(size=(6, 2)) for name in "abc"}
    _, result = run(sites, box=(1e6 - 1.0, 1e6 + 1.0), policy={"scaling": scaling})
    assert result.bounds is not None
    assert result.bounds.lower is not None


def test_a_node_limit_that_is_hit_is_said_and_its_bound_holds() -> None:
    sites = few(3, (6, 6, 5))
    least, _ = optimum(pooled(sites))
    _, result = run(sites, node_limit=3, iterations=4)
    assert result.bounds is not None
    assert result.bounds.lower is not None
    assert 0 < result.bounds.limited <= result.bounds.iterations
    assert result.bounds.lower <= least
    assert any("node limit" in warning for warning in result.warnings)
    _, whole = run(sites, iterations=4)
    assert whole.bounds is not None
    assert whole.bounds.limited == 0
    assert whole.bounds.lower is not None
    assert whole.bounds.lower > result.bounds.lower


# --- forms that are no certificate ----------------------------------------------------------------


@pytest.mark.parametrize("symmetry", ["cells", "reference", "pairwise"])
def test_a_form_that_cuts_the_optimum_off_has_a_bound_above_it_and_says_so(
    monkeypatch: pytest.MonkeyPatch, symmetry: str
) -> None:
    """Equation 36 and cells are more than symmetry breaking: the references lack a cluster here."""
    sites = {
        site: np.array([[0.0 + shift], [4.0 + shift], [20.0 - shift]])
        for site, shift in zip("abc", (0.0, 0.1, 0.3), strict=True)
    }
    least, centroids = optimum(pooled(sites))
    references = np.array([[0.0], [3.0]])
    monkeypatch.setattr(dual, "distinct_best", lambda *_: [references])
    _, result = run(sites, symmetry=symmetry, iterations=12, polish=True)
    bounds = result.bounds
    assert bounds is not None
    assert bounds.lower is not None
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


# --- whoever misses a round -----------------------------------------------------------------------


@pytest.mark.parametrize("update", RULES)
def test_a_round_that_misses_a_site_has_no_bound_and_does_not_move_its_links(update: str) -> None:
    sites = few(4)
    plan = plan_for(sites, update=update, gap=0.0, residual=0.0, iterations=3)
    before = drive(plan, sites)
    numbers = [opened.number for opened in before.rounds if opened.phase == "dual"]
    missed = numbers[0]
    found = drive(plan, sites, silent=lambda number: "c" if number == missed else "")
    assert found.result is not None
    entry = found.result.history[missed - 1]
    assert (entry.phase, entry.lower_bound) == ("dual", None)
    # c has told nothing yet: neither cluster of the link b to c may move.
    state = found.rounds[missed].state.method
    assert state is not None
    assert not np.asarray(state["lambdas"])[1].any()
    assert found.result.bounds is not None
    if found.result.bounds.lower is not None:
        assert found.result.bounds.lower <= optimum(pooled(sites))[0] * (1 + 1e-9)


def test_a_later_round_that_misses_a_site_repeats_what_it_told_last() -> None:
    sites = few(4)
    plan = plan_for(sites, update="subgradient", gap=0.0, residual=0.0, iterations=3)
    whole = drive(plan, sites)
    second = [opened.number for opened in whole.rounds if opened.phase == "dual"][1]
    found = drive(plan, sites, silent=lambda number: "b" if number == second else "")
    assert found.result is not None
    assert found.result.history[second - 1].lower_bound is None
    told = whole.rounds[second - 3].payloads["b"].centroids
    answers = found.rounds[second - 1].payloads
    task = found.rounds[second].tasks["a"].common
    mean = (answers["a"].centroids + told + answers["c"].centroids) / 3
    np.testing.assert_allclose(task.centroids, mean[None], atol=1e-12)


def _held_back(opened: Round, site: str, sent: list[bool]) -> Any:
    """Return a site's answer as it would be if only these clusters could be told."""
    answer, kept = opened.payloads[site], np.array(sent)
    return answer.model_copy(
        update={
            "sent": kept,
            "counts": np.where(kept, answer.counts, 0),
            "means": np.where(kept[:, None], answer.means, 0.0),
            "centroids": np.where(kept[:, None], answer.centroids, 0.0),
            "value": None,
        }
    )


@pytest.mark.parametrize("update", RULES)
@pytest.mark.parametrize("sent", [[True, False], [False, False]])
def test_links_of_untold_clusters_keep_their_multipliers(update: str, sent: list[bool]) -> None:
    sites = few(5)
    plan = plan_for(sites, update=update, gap=0.0, residual=0.0, policy={"max_rounds": 3})
    opened = drive(plan, sites).rounds[1]
    assert opened.phase == "dual"
    answers = [
        Contribution("a", opened.payloads["a"], 1),
        Contribution("b", _held_back(opened, "b", sent), 1),
        Contribution("c", opened.payloads["c"], 1),
    ]
    step = engine.advance(plan, opened.state, answers, "abc")
    assert isinstance(step, Next)
    assert "lower_bound" not in step.metrics
    lambdas = np.asarray(step.state.method["lambdas"])  # type: ignore[index]
    assert not lambdas[:, ~np.array(sent)].any()
    # Of the other, told by all three, they move towards agreement.
    if any(sent) and update != "quadratic_bundle":
        assert lambdas[:, np.array(sent)].any()


def test_the_order_of_answers_does_not_matter_and_reversed_names_say_the_same() -> None:
    sites = few(6)
    found, result = run(sites)
    plan = plan_for(sites)
    for opened in found.rounds:
        for order in ("bca", "cba"):
            answers = [Contribution(site, opened.payloads[site], 1) for site in order]
            again = engine.advance(plan, opened.state, answers, order)
            usual = engine.advance(plan, opened.state, sorted(answers, key=_site), "abc")
            one, other = (
                step.state if isinstance(step, Next) else step.result for step in (again, usual)
            )
            assert codec.encode_model(one) == codec.encode_model(other)
    _, back = run(dict(zip("cba", sites.values(), strict=True)))
    assert result.bounds is not None
    assert back.bounds is not None
    assert back.bounds.lower == pytest.approx(result.bounds.lower, rel=1e-4)
    assert back.bounds.upper == pytest.approx(result.bounds.upper, rel=1e-9)


def _site(contribution: Contribution) -> str:
    return contribution.site


# --- odd data -------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", RULES)
def test_one_site_proves_its_optimum_in_one_round(update: str) -> None:
    sites = {"a": few(7)["b"]}
    least, _ = optimum(sites["a"])
    _, result = run(sites, update=update, gap=1e-6)
    assert result.bounds is not None
    assert result.bounds.iterations == 1
    assert result.bounds.lower == pytest.approx(least, rel=1e-6)
    assert result.bounds.upper == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("update", RULES)
def test_rows_that_are_all_equal_and_more_clusters_than_rows_cost_nothing(update: str) -> None:
    same = dict.fromkeys("abc", np.full((3, 2), 1.5))
    fewer = {site: np.array([[float(i), 1.0]]) for i, site in enumerate("abc")}
    for sites, k in ((same, 2), (fewer, 5)):
        _, result = run(sites, update=update, n_clusters=k, iterations=5)
        assert result.bounds is not None
        assert result.bounds.lower is not None
        assert result.bounds.lower <= 1e-9
        assert result.bounds.upper == pytest.approx(0.0, abs=1e-9)


def test_rows_that_are_not_told_count_in_the_upper_bound() -> None:
    """With p = 5 two cells are held back; their rows cost what one cell of them costs at most."""
    rng = np.random.default_rng(3)
    centres = np.array([[0.0, 0.0], [12.0, 0.0], [0.0, 12.0], [12.0, 12.0]])
    sizes = {"a": (9, 3, 3, 8), "b": (7, 7, 7, 7), "c": (6, 8, 6, 6)}
    sites = {
        site: np.vstack([c + rng.normal(size=(n, 2)) for c, n in zip(centres, ns, strict=True)])
        for site, ns in sizes.items()
    }
    policy = {"min_group_size": 5, "min_sites": 3}
    found, result = run(sites, policy=policy, n_clusters=4, iterations=2, node_limit=1000)
    X = pooled(sites)
    told = [opened.payloads["a"].counts for opened in found.rounds if opened.phase == "primal"]
    assert any((len(sites["a"]) - counts.sum(axis=1) == 6).any() for counts in told)
    assert result.bounds is not None
    assert result.bounds.upper is not None
    assert result.bounds.upper >= inertia(X, result.centroids) * (1 - 1e-9)
    best = central_lloyd(X, centres)[2]
    assert result.bounds.lower is None or result.bounds.lower <= best


# --- what is refused ------------------------------------------------------------------------------


def test_rows_outside_the_bounds_are_refused_at_the_site_by_column_and_count() -> None:
    sites = few(1)
    sites["b"][[0, 2], 1] = 77.25
    features = [{"name": f"x{j}", "lower": -20, "upper": 20} for j in range(2)]
    with pytest.raises(RuleViolation) as caught:
        simulate("dual", sites, config={"n_clusters": 2}, features=features)
    assert "'x1'" in caught.value.message
    assert "2 rows" in caught.value.message
    assert "77" not in caught.value.message


@pytest.mark.parametrize(
    ("missing", "options", "places"),
    [
        ("numba", {}, ["site"]),
        ("pyscipopt", {"node_solver": "scip"}, ["site"]),
        ("clarabel", {}, ["site", "coordinator"]),
        ("clarabel", {"update": "subgradient"}, ["site"]),
    ],
)
def test_what_is_not_installed_is_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, missing: str, options: dict[str, Any], places: list[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else find(name)
    )
    plan = plan_for(few(0), **options)
    for place in ("site", "coordinator"):
        if place not in places:
            engine.check_installed(plan, place)  # type: ignore[arg-type]
            continue
        with pytest.raises(RuleViolation) as caught:
            engine.check_installed(plan, place)  # type: ignore[arg-type]
        assert missing in caught.value.message
        assert 'pip install "fedclust[dual]"' in caught.value.message
    with pytest.raises((RuleViolation, ValueError), match="fedclust"):
        simulate(
            *("dual", few(0)),
            config={"n_clusters": 2, **options},
            features=[{"name": f"x{j}", "lower": -20, "upper": 20} for j in range(2)],
            policy={"min_group_size": 1},
        )


def test_a_value_that_the_box_rules_out_is_refused() -> None:
    """Both clusters' means where all rows' mean is: they add up, and no rows cost as much."""
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
    with pytest.raises(RuleViolation) as caught:
        engine.check(plan, task, lie, p=1, size_band=None)
    assert (caught.value.rule, caught.value.pointer) == ("dual-value", "/value")
    assert "declared bounds" in caught.value.message


# --- what its values give away --------------------------------------------------------------------


def _solved_for_a_row(rounds: list[tuple[FloatArray, float]], box: FloatArray) -> list[FloatArray]:
    """Return what an attacker finds who takes values for linear in multipliers.

    Where one row makes up a cluster, and another cluster is empty, its cost is ``mu_k.y - |mu_k|^2
    / 4`` plus the least that the other's multipliers give in the box, and what does not change.
    """
    found = []
    mus = np.array([mu for mu, _ in rounds])
    values = np.array([value for _, value in rounds])
    for n in (1, 2, 3):
        for k in range(2):
            other = np.minimum(mus[:, 1 - k] * box[0], mus[:, 1 - k] * box[1]).sum(axis=1)
            right = values + (mus[:, k] ** 2).sum(axis=1) / (4.0 * n) - other
            left = np.column_stack([np.ones(len(mus)), mus[:, k]])
            for width in (4, 6):
                for begin in range(len(mus) - width + 1):
                    part = slice(begin, begin + width)
                    solved, _, rank, _ = np.linalg.lstsq(left[part], right[part], rcond=None)
                    missed = np.abs(left[part] @ solved - right[part]).max()
                    if rank == 3 and missed <= 1e-6 * max(1.0, np.abs(right[part]).max()):
                        found.append(solved[1:])
    return found


@pytest.mark.parametrize("exact", [True, False])
def test_no_real_record_is_in_the_values_of_searches_that_met_their_limit(
    monkeypatch: pytest.MonkeyPatch, exact: bool
) -> None:
    """Such a search has labelled a row or two: the farthest patient's record, if told exactly."""
    rng = np.random.default_rng(1)
    sites = {
        site: np.vstack([rng.normal(c, 1.0, (30, 2)) for c in ([0.0, 0.0], [6.0, 4.0])])
        for site in "abc"
    }
    if exact:
        from fedclust.algorithms import dual_site

        monkeypatch.setattr(dual_site, "_tellable", lambda bound, *_: bound)
    policy = {"min_group_size": 5, "min_sites": 3}
    config = {"update": "subgradient", "symmetry": "none", "gap": 0.0, "residual": 0.0}
    plan = plan_for(
        *(sites,), policy=policy, box=(-30.0, 30.0), node_limit=1, iterations=14, **config
    )
    found = drive(plan, sites)
    recovered = set()
    for site, rows in sites.items():
        opened = [r for r in found.rounds if r.phase == "dual" and r.payloads[site].sent.all()]
        origin = found.rounds[1].tasks[site].common.origin
        seen = [(r.tasks[site].site.multipliers, r.payloads[site].value) for r in opened]
        assert len(seen) >= 10
        box = np.array([np.full(2, -30.0) - origin, np.full(2, 30.0) - origin])
        for row in _solved_for_a_row(seen, box):
            away = np.abs(rows - (row + origin)).max(axis=1)
            recovered |= {(site, int(i)) for i in np.flatnonzero(away < 1e-3)}
    assert bool(recovered) == exact


@pytest.mark.parametrize("node_limit", [1, 200_000])
def test_a_value_is_what_the_told_numbers_cost_or_what_holds_for_any_rows(node_limit: int) -> None:
    """Above p = 1; how near to the cost a search came would tell of the rows that it looked at."""
    sites = few(9, (12, 11, 13))
    told = {}
    for p in (1, 5):
        policy = {"min_group_size": p, "max_rounds": 2}
        plan = plan_for(sites, policy=policy, node_limit=node_limit)
        opened = drive(plan, sites).rounds[1]
        told[p] = opened.payloads
    both = [site for site in "abc" if told[1][site].sent.all() and told[5][site].sent.all()]
    assert both
    for site in both:
        exact, shown = told[1][site], told[5][site]
        assert np.array_equal(exact.counts, shown.counts)
        assert shown.value <= exact.value
        if shown.limited:
            # lambda is 0 in the first round: no rows cost less than nothing.
            assert shown.value == 0.0
        else:
            apart = (sites[site][:, None] - shown.centroids[None]) ** 2
            within = float(apart.sum(axis=2).min(axis=1).sum())
            assert shown.value == pytest.approx(within, rel=1e-5)
    assert any(told[5][site].limited for site in both) == (node_limit == 1)


def _by_two_rounds(run_: Run, site: str, most: int) -> list[FloatArray]:
    """Return the means of clusters of few rows, from centroids and multipliers alone.

    Of n rows the best centroid is their mean minus mu / (2 n): what it moved by between two rounds
    of one assignment tells n, and then the mean.
    """
    told = [
        (r.tasks[site].site.multipliers, r.payloads[site])
        for r in run_.rounds
        if r.phase == "dual" and r.payloads[site] is not None
    ]
    found = []
    for later, (mu, answer) in enumerate(told):
        for before_mu, before in told[:later]:
            for k in np.flatnonzero(answer.sent & before.sent):
                moved = answer.centroids[k] - before.centroids[k]
                pushed = before_mu[k] - mu[k]
                if np.abs(moved).min() < 1e-9:
                    continue
                n = pushed / (2.0 * moved)
                if np.ptp(n) < 1e-6 and 0.5 < n[0] < most + 0.5:
                    found.append(answer.centroids[k] + mu[k] / (2.0 * np.round(n[0])))
    return found


@pytest.mark.parametrize("p", [1, 5])
def test_no_real_record_is_in_what_centroids_moved_by_between_rounds(p: int) -> None:
    """With p = 1 it is there: this attack works."""
    rng = np.random.default_rng(2)
    sites = {
        site: np.vstack([rng.normal(c, 1.0, (9, 2)) for c in ([0.0, 0.0], [5.0, 4.0])])
        for site in "abc"
    }
    sites["b"][3] = [-9.0, 11.0]
    policy = {"min_group_size": p, "min_sites": 3}
    config = {"update": "subgradient", "n_clusters": 3, "node_limit": 3000, "iterations": 8}
    found, _ = run(sites, policy=policy, gap=0.0, residual=0.0, step=0.2, **config)
    recovered = set()
    for site, rows in sites.items():
        for mean in _by_two_rounds(found, site, most=p - 1 or 1):
            away = np.abs(rows - mean).max(axis=1)
            recovered |= {(site, int(i)) for i in np.flatnonzero(away < 1e-6)}
    assert ("b", 3) in recovered if p == 1 else not recovered


def test_no_site_is_shown_the_centroids_of_another() -> None:
    """Rule 6: what goes down to all is averaged, or clustered, over sites; never one site's own."""
    sites = few(3, (12, 11, 13))
    found = drive(plan_for(sites, policy={"min_group_size": 1}), sites)
    own: list[FloatArray] = []
    shown = 0
    for opened in found.rounds:
        if opened.phase == "primal":
            common = next(iter(opened.tasks.values())).common
            for candidate in common.centroids:
                shown += 1
                for told in own:
                    assert not _same_up_to_order(candidate, told)
        for answer in opened.payloads.values():
            if opened.phase == "dual" and answer is not None and answer.sent.all():
                own += [answer.centroids, answer.means]
    assert own
    assert shown


def _same_up_to_order(one: FloatArray, other: FloatArray) -> bool:
    apart = np.abs(one[:, None] - other[None]).max(axis=2)
    return bool((apart.min(axis=1) < 1e-9).all())


def test_bounds_of_fewer_clusters_than_were_asked_for_say_so() -> None:
    sites = {"a": np.ones((4, 2)), "b": np.full((4, 2), 3.0)}
    plan = plan_for(sites, policy={"min_group_size": 1}, n_clusters=4)
    bounds = drive(plan, sites).result.bounds
    assert bounds is not None
    assert bounds.n_clusters == 2
    assert "No 2 centroids" in bounds.statement
    assert any("2 clusters, not for the 4" in line for line in drive(plan, sites).result.warnings)


def test_an_average_of_fewer_sites_than_min_sites_is_not_shown() -> None:
    """Where two of three sites hold back, the mean of the told centroids is one site's own."""
    sites = few(3, (12, 11, 13))
    plan = plan_for(sites, policy={"min_group_size": 1, "min_sites": 3})
    step: Any = engine.start(plan, list(sites))
    memory: dict[str, Any] = {site: {} for site in sites}
    for number in (1, 2):
        answers = []
        for site, rows in sites.items():
            written = engine.write_task(plan, "s", number, step.task, site)
            task = engine.read_task(plan, *written)
            answer, memory[site] = engine.local_step(
                *(plan, task, SiteData(rows)),
                site=site,
                round_number=number,
                p=1,
                size_band=None,
                memory=memory[site],
            )
            if number == 2 and site != "a":
                silent = np.zeros(2, dtype=np.bool_)
                none = {"counts": np.zeros(2, dtype=np.int64), "value": None, "sent": silent}
                zeros = np.zeros((2, 2))
                answer = answer.model_copy(update={**none, "means": zeros, "centroids": zeros})
            answers.append(Contribution(site, answer, p=1))
        told = answers[0].payload
        step = engine.advance(plan, step.state, answers, list(sites))
    assert step.task.phase == "primal"
    for candidate in step.task.common.centroids:
        assert not _same_up_to_order(candidate, told.centroids)
