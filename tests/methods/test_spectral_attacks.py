"""What a coordinator that chooses the anchors can learn about a real record."""

from typing import Any

import numpy as np
import pytest

from fedclust.methods import spectral
from fedclust.methods.spectral import AnchorPart, AnchorsTask, Config, EigenTask
from fedclust.rounds import Plan
from fedclust.schema.encoding import Space
from fedclust.schema.feature import Feature
from fedclust.schema.run_config import Policy
from fedclust.schema.task import SiteTask
from support.driven import data_of, site_step


def _answers(X: Any, someone: Any, gamma: float | None) -> list[Any]:
    """Return a site's anchors, and its eigenvectors when the anchor is a person's record."""
    options = Config(n_clusters=2, alignment="sign", gamma=gamma).root
    features = (Feature(name="x"), Feature(name="y"))
    policy = Policy(min_group_size=5, scaling="none")
    plan = Plan(spectral.METHOD, options, features, policy, 0)
    points = data_of(plan, X)
    space = Space.identity(2)
    tasks = (
        SiteTask("anchors", AnchorsTask(n_anchors=1), AnchorPart(anchors=True), space),
        SiteTask("eigen", EigenTask(anchors=someone, vectors=np.ones((1, 2))), None, space),
    )
    sent, memory = [], {}
    for number, task in enumerate(tasks, 1):
        payload, memory = site_step(plan, task, points, "a", number, memory=memory)
        sent.append(payload)
    return sent


@pytest.mark.parametrize("gamma", [None, 1.0, 1e4])
def test_answers_do_not_reveal_whether_a_site_holds_a_record(gamma: float | None) -> None:
    """The anchor is a person's record, and the graph joins only what is very near."""
    rng = np.random.default_rng(2)
    centres = rng.uniform(-9.0, 9.0, (16, 2))
    X = np.repeat(centres, 5, axis=0) + rng.normal(0.0, 0.02, (80, 2))
    someone = X[11:12].copy()
    away = X.copy()
    # The same group without that record: its mean is the same to the step.
    away[11] += 0.01
    away[12] -= 0.01
    assert not (away == someone).all(axis=1).any()

    for there, not_there in zip(
        _answers(X, someone, gamma), _answers(away, someone, gamma), strict=True
    ):
        for name in ("counts", "means", "vectors"):
            np.testing.assert_array_equal(getattr(there, name), getattr(not_there, name))
