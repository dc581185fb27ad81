"""A session's definition as the engine needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedclust.engine import evidence, resampling
from fedclust.numeric.array_types import BoolArray
from fedclust.schema.encoding import Column, columns_of
from fedclust.schema.feature import Feature, Outcome
from fedclust.schema.method import AnyMethod
from fedclust.schema.options import MethodOptions
from fedclust.schema.policy import Policy
from fedclust.schema.run_config import RunConfig

#: Of the rounds that all methods share: preparation, evidence, resampling, outcomes, and what joins
#: several K. Raised when their tasks, payloads, state or arithmetic change.
VERSION = 4


@dataclass(frozen=True)
class Plan:
    """A session's definition as the engine needs it.

    Attributes
    ----------
    method : AnyMethod
    options : MethodOptions
        What ``method.options`` has read.
    features : tuple of Feature
        Those that persons are clustered by, in the session's order. ``columns`` (d,) are what
        methods see of them.
    policy : Policy
    seed : int
    outcomes : tuple of Outcome
        What is counted by final cluster. Methods do not see it.
    outcomes_k : int, "recommended" or None
        The number of clusters that outcomes are counted at, of several.
    """

    method: AnyMethod
    options: MethodOptions
    features: tuple[Feature, ...]
    policy: Policy
    seed: int
    outcomes: tuple[Outcome, ...] = ()
    outcomes_k: int | Literal["recommended"] | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """What the features become."""
        return columns_of(self.features)


def max_rounds(plan: Plan) -> int:
    """Return how many rounds the method itself may take."""
    limit = plan.policy.max_rounds or plan.method.default_max_rounds
    fixed = plan.options.round_limit
    return limit if fixed is None else min(limit, fixed)


def has_features(plan: Plan, names: Sequence[str]) -> BoolArray:
    """Return which columns (d,) a site has that names these features of the session."""
    held = set(names)
    return np.array([column.feature in held for column in plan.columns], dtype=np.bool_)


def check_evidence(method: AnyMethod, config: RunConfig) -> None:
    """Raise RuleViolation where stability or transfer cannot be measured; says what to change."""
    evidence.check_options(method, config)
    resampling.check_options(config)


def sends_cells(plan: Plan) -> bool:
    """Whether sites describe their records by cells in the closing round."""
    return evidence.sends_cells(plan.method, plan.options, plan.policy)


def is_exact(plan: Plan) -> bool:
    """Whether the points are single rows."""
    return plan.policy.protection == "none"
