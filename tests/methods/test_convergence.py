"""Convergence: comparable rounds, the best round, and when a session has converged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedclust.methods.common.kmeans_rounds import Judgement, judge
from fedclust.schema.run_config import Policy, RunConfig


def _config(*roster: str, quorum: int | None = None) -> RunConfig:
    return RunConfig(options=None, features=(), policy=Policy(quorum=quorum), roster=roster, p=5)


def _play(rounds: list[dict[str, float | None]], config: RunConfig, tol: float = 1e-6) -> Judgement:
    judgement = Judgement()
    for number, costs in enumerate(rounds):
        judgement = judge(judgement, np.full((1, 1), float(number)), costs, config, tol)
    return judgement


def _best(judgement: Judgement) -> float | None:
    return None if judgement.best is None else float(judgement.best.centroids[0, 0])


def test_two_rounds_without_improvement_in_succession_converge_on_the_best() -> None:
    config = _config("a", "b")
    rounds = [{"a": 10.0, "b": 10.0}, {"a": 6.0, "b": 9.0}, {"a": 6.0, "b": 9.5}]

    assert not _play(rounds, config).converged
    judged = _play([*rounds, {"a": 6.0, "b": 9.2}], config)
    assert (judged.converged, _best(judged)) == (True, 1.0)
    # An improvement restarts the count.
    costs, alone = (10.0, 10.0, 5.0, 5.0, 5.0), _config("a")
    assert not _play([{"a": cost} for cost in costs[:4]], alone).converged
    assert _play([{"a": cost} for cost in costs], alone).converged
    # Improvements below the tolerance are kept, but do not count.
    judged = _play([{"a": 1.0}, {"a": 1.0 - 1e-8}, {"a": 1.0 - 2e-8}], alone)
    assert (judged.converged, _best(judged)) == (True, 2.0)


def test_rounds_are_compared_over_the_sites_that_answered_both_if_these_are_enough() -> None:
    config = _config("a", "b", "c", quorum=2)
    # Without c the sum is smaller, but at a and b together it is larger.
    judged = _play([{"a": 1.0, "b": 1.0, "c": 9.0}, {"a": 1.0, "b": 1.5}], config)

    assert (_best(judged), judged.stale) == (0.0, 1)
    judged = _play([{"a": 5.0, "b": 5.0}, {"b": 1.0, "c": 1.0}, {"a": 1.0, "c": 1.0}], config)
    assert (_best(judged), judged.stale) == (0.0, 0)
    # Without a quorum in the policy every joined site must share.
    assert _best(_play([{"a": 5.0, "b": 5.0}, {"a": 1.0}], _config("a", "b"))) == 0.0


def test_a_roster_change_discards_the_best_round() -> None:
    judgement = _play([{"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 2.0}], _config("a", "b"))
    assert judgement.stale == 1
    changed = judge(judgement, np.full((1, 1), 7.0), {"a": 4.0, "b": 4.0}, _config("a"), 1e-6)

    assert _best(changed) == 7.0
    assert changed.stale == 0


def test_after_a_site_joined_there_is_no_best_until_it_answers() -> None:
    config = _config("a", "b")
    judgement = judge(Judgement(), np.zeros((1, 1)), {"a": 1.0}, config, 1e-6)
    assert judgement.best is None

    judgement = judge(judgement, np.ones((1, 1)), {"a": 1.0, "b": 3.0}, config, 1e-6)
    assert _best(judgement) == 1.0


def test_a_site_that_always_answers_empty_does_not_prevent_convergence() -> None:
    rounds: list[dict[str, float | None]] = [{"a": 1.0, "b": 1.0, "tiny": None}] * 3

    assert _play(rounds, _config("a", "b", "tiny")).converged


def test_a_site_without_a_cost_in_one_of_two_rounds_is_not_compared() -> None:
    config = _config("a", "b", quorum=1)
    judged = _play([{"a": 2.0, "b": None}, {"a": 1.0, "b": 50.0}], config)

    assert _best(judged) == 1.0


@given(st.lists(st.lists(st.floats(0, 1e9), min_size=2, max_size=2), min_size=1, max_size=12))
def test_if_all_sites_answer_the_best_round_has_the_least_cost(costs: list[list[float]]) -> None:
    judged = _play([{"a": a, "b": b} for a, b in costs], _config("a", "b"))
    totals = [a + b for a, b in costs]

    reached = sum(cost or 0.0 for cost in judged.best.costs.values())
    assert reached == pytest.approx(min(totals), rel=1e-9, abs=0.0)
