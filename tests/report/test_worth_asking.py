"""Whether an outcome is worth its points, by the number of events that a ratio needs."""

import itertools
from typing import Any

import numpy as np
import pytest

from fedclust.numeric.cell_statistics import follow_up, rate_ratio
from fedclust.result.worth_asking import (
    ASK_ONCE,
    clusters_of,
    crowded_text,
    worth_asking,
    worth_lines,
)
from fedclust.schema.feature import Outcome
from fedclust.wire.models import SessionCreate
from support.definitions import session_request

OUTCOMES: list[dict[str, Any]] = [
    {"name": "died", "kind": "binary", "role": "outcome"},
    {"name": "ward", "kind": "categorical", "levels": ["icu", "home"], "role": "outcome"},
    {"name": "stay", "kind": "ordered", "edges": [3, 7], "points": 50, "role": "outcome"},
    {
        "name": "relapse",
        "kind": "time",
        "edges": [6, 12, 24, 36],
        "event": "relapsed",
        "role": "outcome",
    },
]


def session(*features: Any, **changes: Any) -> SessionCreate:
    given = {"sites": ["a", "b", "c", "d"], **changes}
    return session_request("age", *(features or OUTCOMES), **given)


@pytest.mark.parametrize(
    ("n_per_site", "share", "points", "likely"),
    [
        # The design's figures, four sites.
        (1000, 0.1, 10, True),
        (200, 0.1, 10, False),
        (200, 0.1, 50, True),
        (50, 0.1, 100, False),
        (625, 0.02, 50, True),
        (500, 0.02, 50, False),
    ],
)
def test_the_rule_agrees_with_what_was_measured(
    n_per_site: int, share: float, points: int, likely: bool
) -> None:
    found = worth_asking(points, 4, persons=4 * n_per_site, n_clusters=2, share=share)
    assert found.likely is likely
    assert found.points is not None
    if likely:
        assert found.points <= points
    enough = worth_asking(found.points, 4, persons=4 * n_per_site, n_clusters=2, share=share)
    assert enough.likely


def test_no_points_are_enough_where_nothing_is_expected() -> None:
    found = worth_asking(10, 4, persons=200, n_clusters=2, share=0.0)
    assert (found.likely, found.points, found.affordable) == (False, None, False)
    assert worth_asking(10, 4, persons=200).likely is None


def test_without_a_guess_the_rule_is_said() -> None:
    died, ward, stay, relapse, last = worth_lines(session())
    assert died.startswith("died: 10 points give noise with a standard deviation of 5. ")
    assert "Each of two clusters needs 50 persons with yes over all sites" in died
    assert "50 persons with the level" in ward
    assert "Each of two clusters needs 46 persons over all sites." in stay
    # The noise of four intervals adds up.
    assert relapse.endswith("needs 100 persons with the event over all sites.")
    assert last == ASK_ONCE


def test_with_persons_the_least_share_is_said() -> None:
    died, *_ = worth_lines(session(), persons=1000)
    assert died.endswith("of one size, the question is worth asking from a share of 10 % on.")
    died, _, _, relapse, _ = worth_lines(session(), persons=290)
    assert died.endswith("worth asking from a share of 34 % on.")
    few, *_ = worth_lines(session(), persons=150)
    assert "150 persons in 2 clusters are too few" in few
    assert "from a share of 69 % on" in relapse


def test_with_guesses_points_are_proposed() -> None:
    shares = {"died": 0.9, "ward": 0.02, "relapse": 0.9}
    died, ward, stay, relapse, _ = worth_lines(session(), persons=800, shares=shares)
    assert died.startswith("died: too few points.")
    assert died.endswith("16 points would be enough.")
    assert ward.startswith("ward: not worth asking: no allowance of 100 points is enough.")
    assert relapse.startswith("relapse: worth asking.")
    # Of an ordered outcome nothing is guessed.
    assert "worth asking. Each of two clusters needs 46 persons over all sites; about 400" in stay
    stay = worth_lines(session(), persons=80)[2]
    assert "too few points. Each of two clusters needs 46 persons over all sites; about 40" in stay


@pytest.mark.parametrize("shape", [1.0, 0.5])
def test_where_no_interval_is_crowded_a_rate_ratio_is_hardly_biased(shape: float) -> None:
    """For a constant and a falling rate, without noise and in a cluster of a tenth."""
    time = Outcome.model_validate({**OUTCOMES[3], "edges": (0.1, 0.3, 0.6, 1.0)})
    ends, times = np.array([0.0, *(time.edges or ())]), follow_up(time.edges or ())
    biases = []
    for share, ratio in itertools.product(np.arange(0.05, 0.9, 0.05), (2.0, 4.0)):
        curves = np.exp(np.log(1 - share) * np.array([[ratio], [1.0]]) * ends**shape)
        events = np.stack([-np.diff(curves), np.zeros((2, 4))], axis=-1).reshape(2, 8)
        x1, x0 = np.concatenate([events, curves[:, -1:], np.zeros((2, 1))], axis=1)
        both = 0.1 * x1 + 0.9 * x0
        measure = rate_ratio(1_000 * both, times)
        found = (x1 @ measure.a @ x0) / (x1 @ measure.b @ x0) / ratio
        at_once = [both[b] / both[b:].sum() for b in range(0, 8, 2)]
        biases.append((bool(crowded_text(time, at_once)), found - 1))
    assert all(-0.04 < bias < 0 for crowded, bias in biases if not crowded)
    assert min(bias for crowded, bias in biases if crowded) < -0.1


def test_crowded_intervals_are_named_with_edges_to_add() -> None:
    def said(edges: list[float], share: float | None = None, **changes: Any) -> str:
        relapse = {**OUTCOMES[3], "edges": edges}
        body = session(relapse, **changes)
        return worth_lines(body, shares={} if share is None else {"relapse": share})[0]

    assert said([7, 30, 60, 365]).endswith(
        "needs 100 persons with the event over all sites. If a third of all have the event, at a "
        "constant rate, 29 % of those at risk have the event from 60 to 365, which moves the rate "
        "ratio towards 1 and makes mean times too long. Choose a further edge at about 180."
    )
    assert "Choose" not in said([3, 6, 12, 24])
    at_half = "At a constant rate, 29 % of those at risk have the event from 12 to 24"
    assert at_half in said([3, 6, 12, 24], 0.5)
    assert "Choose" not in said([3, 6, 12, 24], 0.2)
    exact = said([1, 2, 3, 30], 0.8, policy={"protection": "none"})
    assert exact.startswith("relapse: At a constant rate, 77 % of those")
    assert exact.endswith("Choose further edges at about 8.9, 18.")
    assert "a further edge at about 15, and leave another out." in said([1, 2, 3, 4, 5, 30], 0.8)


def test_exact_sessions_and_sessions_without_outcomes_ask_no_points() -> None:
    assert worth_lines(session(policy={"protection": "none"})) == ()
    assert worth_lines(session_request("age")) == ()


def test_the_number_of_clusters_is_that_of_the_outcomes() -> None:
    assert clusters_of(session()) == 2
    several = {"n_clusters": [2, 5]}
    assert clusters_of(session(config=several, outcomes_k=2)) == 2
    assert clusters_of(session(config=several, outcomes_k="recommended")) == 5
    assert clusters_of(session(config={})) is None
