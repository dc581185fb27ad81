"""Three attackers on noisy tables of one yes/no outcome; `make bench outcome_attackers` has more.

TPR - FPR is 0 for a guess and 1 for certainty. Without noise each attacker reaches 1.
"""

from collections.abc import Callable
from fractions import Fraction
from random import Random

import numpy as np
import pytest

from fedclust.protection.outcome_counts import count_outcomes
from fedclust.schema.feature import Outcome

RUNS = 5_000
PERSONS = 120
CLUSTERS = 8
#: Sessions and points of each: one question, and all points of a site.
ONE, ALL = (1, 10), (10, 10)


def gained(named: np.ndarray, outcome: np.ndarray) -> float:
    """Return TPR - FPR."""
    return float(named[outcome].mean() - named[~outcome].mean())


def one_person(others: int, sessions: int, variance: Fraction) -> float:
    """Attack a person beside ``others`` in the cluster, whose outcomes are known.

    The sign of the sum of (yes - no - what is known) is the likelihood ratio's.
    """
    rng, lot = np.random.default_rng(1), Random(1)
    outcome = rng.random(RUNS) < 0.5
    score = np.empty(RUNS)
    cluster = np.zeros(others + 1, dtype=np.int64)
    for run in range(RUNS):
        cells = rng.integers(0, 2, others + 1)
        known = 2 * cells[1:].sum() - others
        cells[0] = outcome[run]
        tables = [
            count_outcomes(cluster, cells, 1, 2, variance, randbelow=lot.randrange)[0]
            for _ in range(sessions)
        ]
        score[run] = sum(int(yes) - int(no) - known for no, yes in tables)
    return gained(score > rng.normal(0.0, 1e-6, RUNS), outcome)


def informed(sessions: int, variance: Fraction) -> float:
    return one_person(30, sessions, variance)


def crafted(sessions: int, variance: Fraction) -> float:
    """Attack a person whom a centroid of its own puts alone into a cluster."""
    return one_person(0, sessions, variance)


def reconstructing(sessions: int, variance: Fraction, sites: int = RUNS // PERSONS) -> float:
    """Estimate all outcomes of sites at once; who is in which cluster is known."""
    rng, lot = np.random.default_rng(2), Random(2)
    found = []
    for _ in range(sites):
        outcome = rng.random(PERSONS) < 0.5
        inside, events = [], []
        for _ in range(sessions):
            label = rng.integers(0, CLUSTERS, PERSONS)
            table = count_outcomes(
                label, outcome.astype(np.int64), CLUSTERS, 2, variance, randbelow=lot.randrange
            )[:CLUSTERS]
            members = label == np.arange(CLUSTERS)[:, None]
            inside.append(members)
            # The size is known, so both cells estimate the events.
            events.append((table[:, 1] + members.sum(axis=1) - table[:, 0]) / 2)
        A = np.concatenate(inside).astype(float)
        rest = np.concatenate(events) - A.sum(axis=1) / 2
        each = max(float(variance) / 2, 1e-9)
        score = np.linalg.solve(A.T @ A / each + 4.0 * np.eye(PERSONS), A.T @ rest / each)
        found.append(gained(score > 0.0, outcome))
    return float(np.mean(found))


@pytest.mark.parametrize(
    ("attacker", "one", "every"),
    [
        # It knows what the crafted one knows, of 30 persons more.
        pytest.param(informed, 0.12, 0.36, marks=pytest.mark.long),
        (crafted, 0.12, 0.36),
        (reconstructing, 0.22, 0.40),
    ],
)
def test_an_attacker_learns_no_more_than_the_allowance_says(
    attacker: Callable[[int, Fraction], float], one: float, every: float
) -> None:
    # Three standard errors of TPR - FPR.
    error = 3.0 / np.sqrt(RUNS)
    for (sessions, points), limit in ((ONE, one), (ALL, every)):
        outcome = Outcome(name="died", role="outcome", kind="binary", points=points)
        assert attacker(sessions, outcome.variance) <= limit + error
    assert attacker(200 if attacker is reconstructing else 1, Fraction(0)) == 1.0
