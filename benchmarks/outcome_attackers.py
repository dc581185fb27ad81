"""What attackers learn of one person's yes/no outcome from noisy tables of counts.

TPR is the share of persons with the outcome that an attacker names, FPR that of persons without it.
TPR - FPR is 0 for a guess and 1 for certainty. (1 + TPR - FPR) / 2 is the share of right guesses
among two equally probable outcomes.

informed
    Knows the outcomes of all persons but one, and in which cluster everybody is.
crafted
    Knows no outcome. Chooses centroids so that one person is alone in a cluster.
reconstructing
    Knows in which cluster each of 200 persons is, in each session, and that outcomes are
    independent. Estimates all outcomes at once by their posterior mean under a normal prior. The
    goal is for the threshold that is best in hindsight, with which TPR - FPR is above 0 even by
    chance: the same attacker with tables of other persons' outcomes is printed too. So is the
    figure with the threshold that an attacker can know, half-way between both groups' means.
"""

import argparse
import math
from typing import Any

import numpy as np

from _report import write
from outcomes import discrete_gaussian

PERSONS = 200
#: Cells of a yes/no outcome with a value.
N_CELLS = 2
#: Sessions and points of each: one question, and all points in two ways.
QUESTIONS = [(1, 10), (10, 10), (100, 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000, help="draws for each attacker")
    parser.add_argument("--sites", type=int, default=100, help="sites that are reconstructed")
    options = parser.parse_args()
    rows = [
        _one_person(name, sessions, points, options.runs)
        for name in ("informed", "crafted")
        for sessions, points in QUESTIONS
    ]
    write("outcome_attackers", rows, note=f"{options.runs} draws.")
    rows = [
        _reconstructing(n_clusters, share, sessions, points, options.sites)
        for n_clusters in (8, 64)
        for share in (0.1, 0.5)
        for sessions, points in QUESTIONS
    ]
    note = f"{PERSONS} persons, {options.sites} sites; the median of TPR - FPR."
    write("outcome_attackers_reconstructing", rows, note=note)


def _goal(sessions: int, points: int, one: float, every: float) -> float:
    return one if sessions * points == 10 else every


def _one_person(name: str, sessions: int, points: int, runs: int) -> dict[str, Any]:
    """Attack one person's outcome by the likelihood ratio of all tables, which no attack beats."""
    rng = np.random.default_rng(1)
    sigma = math.sqrt(250 / points)
    outcome = rng.integers(0, 2, runs)
    # The others in the person's cluster: known numbers without and with the outcome.
    others = rng.integers(0, 40, (runs, sessions, N_CELLS)) if name == "informed" else 0
    mine = np.stack([1 - outcome, outcome], axis=1)[:, None]
    seen = others + mine + discrete_gaussian(sigma, (runs, sessions, N_CELLS), rng) - others
    # log P(table | yes) - log P(table | no)
    no, yes = np.array([1, 0]), np.array([0, 1])
    ratio = ((seen - no) ** 2 - (seen - yes) ** 2).sum(axis=(1, 2)) / (2 * sigma**2)
    named = (ratio > 0) | ((ratio == 0) & (rng.random(runs) < 0.5))
    gained = float(named[outcome == 1].mean() - named[outcome == 0].mean())
    goal = _goal(sessions, points, 0.12, 0.36)
    return {
        "attacker": name,
        "sessions": sessions,
        "points each": points,
        "TPR - FPR": gained,
        "right guesses": (1 + gained) / 2,
        "goal": f"<= {goal}",
        "met": gained <= goal,
    }


def _reconstructing(
    n_clusters: int, share: float, sessions: int, points: int, sites: int
) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    found = [_reconstructed(n_clusters, share, sessions, points, rng) for _ in range(sites)]
    gained, chance, known = (float(each) for each in np.median(found, axis=0))
    goal = _goal(sessions, points, 0.22, 0.40)
    return {
        "clusters": n_clusters,
        "share": share,
        "sessions": sessions,
        "points each": points,
        "TPR - FPR": gained,
        "by chance": chance,
        "goal": f"<= {goal}",
        "met": gained <= goal,
        "without hindsight": known,
    }


def _reconstructed(
    n_clusters: int, share: float, sessions: int, points: int, rng: Any
) -> tuple[float, float, float]:
    """Return TPR - FPR of one site: in hindsight, by chance, and with a threshold known before."""
    sigma = math.sqrt(250 / points)
    outcome, other = rng.random((2, PERSONS)) < share
    label = rng.integers(0, n_clusters, (sessions, PERSONS))
    inside = (label[:, None] == np.arange(n_clusters)[None, :, None]).reshape(-1, PERSONS)
    inside = inside.astype(float)
    yes = inside @ outcome + discrete_gaussian(sigma, (len(inside),), rng)
    no = inside @ ~outcome + discrete_gaussian(sigma, (len(inside),), rng)
    # Who is in a cluster is known: both cells estimate its events, and their mean has half the
    # variance.
    events = (yes + inside.sum(axis=1) - no) / 2
    prior = share * (1 - share)
    precision = inside.T @ inside / (sigma**2 / 2) + np.eye(PERSONS) / prior
    rest = events - inside @ np.full(PERSONS, share)
    posterior = np.linalg.inv(precision)
    score = posterior @ (inside.T @ rest / (sigma**2 / 2))
    reliability = 1 - np.diag(posterior) / prior
    named = score > reliability * (0.5 - share)
    known = named[outcome].mean() - named[~outcome].mean()
    return _best(score, outcome), _best(score, other), float(known)


def _best(score: Any, outcome: Any) -> float:
    """Return the largest TPR - FPR over all thresholds."""
    order = np.argsort(-score)
    hits = np.cumsum(outcome[order]) / max(outcome.sum(), 1)
    false = np.cumsum(~outcome[order]) / max((~outcome).sum(), 1)
    return float(np.max(hits - false))


if __name__ == "__main__":
    main()
