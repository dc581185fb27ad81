"""A session's definition as the engine needs it, and the phases that it can have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedclust.engine import evaluation, preparation, sweep
from fedclust.schema.encoding import Column, columns_of
from fedclust.schema.errors import RuleViolation
from fedclust.schema.feature import Feature
from fedclust.schema.method import AnyMethod, Place
from fedclust.schema.options import MethodOptions
from fedclust.schema.policy import Policy
from fedclust.schema.task import Phase


@dataclass(frozen=True)
class Plan:
    """A session's definition as the engine needs it.

    Attributes
    ----------
    method : AnyMethod
    options : MethodOptions
        What ``method.options`` has read.
    features : tuple of Feature
        As declared, in the session's order. ``columns`` (d,) are what methods see of them.
    policy : Policy
    seed : int
    """

    method: AnyMethod
    options: MethodOptions
    features: tuple[Feature, ...]
    policy: Policy
    seed: int

    @property
    def columns(self) -> tuple[Column, ...]:
        """What the features become."""
        return columns_of(self.features)


def max_rounds(plan: Plan) -> int:
    """Return how many rounds the method itself may take."""
    limit = plan.policy.max_rounds or plan.method.default_max_rounds
    fixed = plan.options.round_limit
    return limit if fixed is None else min(limit, fixed)


def most_rounds(plan: Plan) -> int:
    """Return how many rounds a session may take, with preparation and evaluation."""
    around = int(preparation.needed(plan.policy)) + int(plan.options.evaluated)
    return max_rounds(plan) + around


def has_features(plan: Plan, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return which columns (d,) a site has that names these features of the session."""
    held = set(names)
    return np.array([column.feature in held for column in plan.columns], dtype=np.bool_)


def check_installed(plan: Plan, place: Place) -> None:
    """Raise RuleViolation where the method needs something that is not installed at ``place``."""
    lacking = plan.method.lacks(plan.options, place)
    if lacking is not None:
        raise RuleViolation("not-installed", lacking)


def is_exact(plan: Plan) -> bool:
    """Whether the points are single rows."""
    return plan.policy.protection == "none"


def phase(plan_or_method: Plan | AnyMethod, name: str) -> Phase:
    """Return the phase called ``name``, the engine's own included; KeyError where there is none."""
    method = plan_or_method.method if isinstance(plan_or_method, Plan) else plan_or_method
    for own in (preparation.PHASE, closing_phase(method)):
        if own.name == name:
            return own
    return method.phase(name)


def all_phases(method: AnyMethod) -> tuple[Phase, ...]:
    """Return every phase that a session of this method may have, in order."""
    return (preparation.PHASE, *method.phases, closing_phase(method))


def possible_phases(plan: Plan) -> tuple[Phase, ...]:
    """Return the phases that a session of this definition can have, in order."""
    found = [preparation.PHASE] if preparation.needed(plan.policy) else []
    names = plan.options.phases
    found += [each for each in plan.method.phases if names is None or each.name in names]
    if plan.options.evaluated:
        found.append(closing_phase(plan.method))
    return tuple(found)


def closing_phase(method: AnyMethod) -> Phase:
    return sweep.EVALUATION if method.sweeping else evaluation.PHASE
